"""BayesBag: the average of the posteriors on bootstrap replicates of the data."""

from typing import ClassVar

import equinox as eqx
import jax
import numpy as np

from calibayes._backend.arguments import positive
from calibayes.methods.reported import DrawsMethod, ReportedDraws, as_particles_on_data, random_generator, replicates_at

_STREAM = 11
_MIN_DRAWS = 4_000
"""Minimum number of draws, pooled over all replicates. Results report at most as many."""


class BayesBag(DrawsMethod):
    r"""Average of the posteriors given the bootstrap replicates (bagged posterior), `method="bayesbag"`.

    The covariance of the draws is the mean covariance of the replicates' posteriors plus the covariance of their means,
    about $H^{-1} / \eta + H^{-1} J H^{-1}$.

    Parameters
    ----------
    eta : float
        Learning rate of the replicates' posteriors. Default: 1, which is Bayesian inference if the loss is a negative
        log-likelihood.

    Notes
    -----
    Targets reproducible inference under misspecification: two data sets should rarely give disjoint sets. It is
    conservative: for a well-specified likelihood the variance is twice that of the posterior. Bootstrap data sets have
    the size of the data. Costs as much as the coverage at one learning rate. Dependence between observations is taken
    into account as far as the bootstrap does so (by blocks or clusters). The draws are not those of a posterior at one
    learning rate; `result.eta` is the matching learning rate with the covariance of the draws in place of the sandwich:
    that of the generalized posterior whose variances are as large, averaged over all directions.

    References
    ----------
    Huggins and Miller (2019), Robust inference and model criticism using bagged posteriors, arXiv:1912.07104.
    Huggins and Miller (2023), Reproducible model selection using bagged posteriors, Bayesian Analysis 18, 79-104.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.methods.BayesBag().eta
    1.0
    """

    name: ClassVar[str] = "bayesbag"
    eta: float = eqx.field(static=True)

    def __init__(self, eta: float = 1.0):
        self.eta = positive("eta", eta)

    def sampling_eta(self):
        return self.eta

    def draw(self, problem, iterate, draws):
        particles = replicates_at(iterate, self.eta)
        theta, log_weights = jax.device_get((particles.theta[:, 1:], particles.log_weights[1:]))
        n_replicates = len(log_weights)
        n_each = -(-_MIN_DRAWS // n_replicates)
        rng = random_generator(draws, _STREAM)
        cdf = np.cumsum(np.exp(log_weights.astype(np.float64)), 1)
        points = (np.arange(n_each) + rng.uniform(size=(n_replicates, n_each))) / n_each * cdf[:, -1:]
        chosen = [np.searchsorted(cdf[b], points[b]) for b in range(n_replicates)]
        last = theta.shape[-1] - 1
        z = np.concatenate([theta[:, b, np.minimum(chosen[b], last)] for b in range(n_replicates)], 1)
        return ReportedDraws(as_particles_on_data(problem.target, z), float(n_replicates))
