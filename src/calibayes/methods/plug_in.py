r"""Learning rates by a formula: from the sandwich covariance, from the number of observations, or chosen by the user.

With the Hessian $H$ of the risk and the summed outer products $J$ of the gradients of the losses
(`calibayes.methods.moments`), the posterior at $\eta$ has the covariance $H^{-1} / \eta$ and the estimate has the
covariance $H^{-1} J H^{-1}$. One number cannot make two matrices equal. The methods differ in how they compare them.
"""

from typing import ClassVar

import equinox as eqx
import numpy as np

from calibayes._backend.arguments import positive
from calibayes.methods.base import PlugInMethod
from calibayes.methods.moments import LearningRate, Moments, matching_eta, require_full_rank


class Matching(PlugInMethod):
    r"""Match the posterior covariance to the sandwich covariance, `method="matching"`.

    The learning rate is $K / \mathrm{tr}(H^{-1} J)$. With the true parameters $\theta_0$, the average over data sets of
    $\eta (\theta_0 - \hat\theta)^\top H (\theta_0 - \hat\theta)$ is then K, the posterior mean of the same form, so
    that credible ellipsoids have about their nominal coverage. For the interval of one parameter it is $[H^{-1}]_{kk} /
    [H^{-1} J H^{-1}]_{kk}$, which makes the two variances equal.

    Notes
    -----
    Needs draws on the data only; the replicates are sampled to report the coverage. The formula matches a mean, not a
    quantile: where the eigenvalues of $H^{-1} J$ differ much, joint sets cover less than the level, while intervals are
    not affected. It relies on a posterior that is near normal, and fails where the posterior has several modes or lies
    at a bound. The learning rate does not depend on the level.

    References
    ----------
    Pauli, Racugno and Ventura (2011), Bayesian composite marginal likelihoods, Statistica Sinica 21, 149-164.
    Ribatet, Cooley and Davison (2012), Bayesian inference from composite likelihoods, with an application to spatial
    extremes, Statistica Sinica 22, 813-845 (magnitude adjustment).

    Examples
    --------
    >>> matched = cb.calibrate(
    ...     model, data, method=cb.methods.Matching(), bootstrap=100, sampler="transport", progress=False
    ... )
    >>> matched.status.name
    'COMPUTED'
    """

    name: ClassVar[str] = "matching"

    def learning_rate(self, draws, vector):
        return draws.moments.learning_rate(lambda moments: matching_eta(_along(moments, vector)))


class LyddonHolmesWalker(PlugInMethod):
    r"""Match the information of the loss-likelihood bootstrap, `method="lyddon-holmes-walker"`.

    The learning rate is $\mathrm{tr}(H J^{-1} H) / \mathrm{tr}(H)$: the trace of the precision of the loss-likelihood
    bootstrap, $H J^{-1} H$, equals that of the posterior, $\eta H$. For the interval of one parameter it is the same as
    `Matching`.

    Notes
    -----
    Needs draws on the data only. The trace adds precisions in the units of the parameters: if a parameter or a column
    is rescaled, the learning rate changes, and the parameters with the smallest standard deviations, such as the
    coefficients of columns with large values, determine it. It relies on a posterior that is near normal.

    References
    ----------
    Lyddon, Holmes and Walker (2019), General Bayesian updating and the loss-likelihood bootstrap, Biometrika 106,
    465-478.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.methods.LyddonHolmesWalker().name
    'lyddon-holmes-walker'
    """

    name: ClassVar[str] = "lyddon-holmes-walker"

    def learning_rate(self, draws, vector):
        return draws.moments.learning_rate(lambda moments: _information_eta(_along(moments, vector)))


class Coarsened(PlugInMethod):
    r"""Power posterior that approximates the coarsened posterior, `method=cb.methods.Coarsened(alpha)`.

    The learning rate is $\alpha / (\alpha + n)$ for n observations. It approximates the posterior given that the
    relative entropy between the empirical distribution of the data and the model is below a threshold, which has an
    exponential prior with rate $\alpha$.

    Parameters
    ----------
    alpha : float
        Rate, positive. About the number of observations from which on the model is distinguishable from the data.

    Notes
    -----
    Targets robustness to small deviations from a model, not coverage, and is meant for losses that are negative
    log-likelihoods. All intervals are at the same learning rate.

    References
    ----------
    Miller and Dunson (2019), Robust Bayesian inference via coarsening, Journal of the American Statistical Association
    114, 1113-1125.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.methods.Coarsened(50.0).alpha
    50.0
    """

    name: ClassVar[str] = "coarsened"
    uses_moments: ClassVar[bool] = False
    uses_sandwich: ClassVar[bool] = False
    alpha: float = eqx.field(static=True)

    def __init__(self, alpha: float):
        self.alpha = positive("alpha", alpha)

    def learning_rate(self, draws, vector):  # noqa: ARG002
        return LearningRate(self.alpha / (self.alpha + draws.n), 0.0)


class Fixed(PlugInMethod):
    """A learning rate chosen by the user, `method=cb.methods.Fixed(eta)`.

    `Fixed(1.0)` with a negative log-likelihood is ordinary Bayesian inference.

    Parameters
    ----------
    eta : float
        Learning rate, positive.

    Notes
    -----
    Shows the coverage of sets at a learning rate from elsewhere. All intervals are at the same learning rate.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.methods.Fixed(1.0).eta
    1.0
    """

    name: ClassVar[str] = "fixed"
    uses_moments: ClassVar[bool] = False
    uses_sandwich: ClassVar[bool] = False
    eta: float = eqx.field(static=True)

    def __init__(self, eta: float):
        self.eta = positive("eta", eta)

    def learning_rate(self, draws, vector):  # noqa: ARG002
        return LearningRate(self.eta, 0.0)


def _along(moments: Moments, vector: np.ndarray | None) -> Moments:
    return moments if vector is None else moments.along(vector)


def _information_eta(moments: Moments) -> float:
    """Return tr(H J^-1 H) / tr(H); H J^-1 H is the inverse of the sandwich."""
    require_full_rank(moments)
    return float(np.trace(np.linalg.inv(moments.sandwich)) / np.trace(np.linalg.inv(moments.inverse_hessian)))
