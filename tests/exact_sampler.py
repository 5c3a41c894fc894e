"""A sampler without Monte Carlo error, for tests of the solver: quantiles of the exact posteriors of a normal mean."""

import logging
import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.stats import norm

import calibayes as cb
from calibayes._core.particles import Particles
from calibayes._core.target import evaluate, make_target
from calibayes.samplers.base import Sampler, SamplerInfo
from calibayes.samplers.initial import InitialDraws

N, B = 40, 100

CALLS: list[str] = []
"""Methods of `ExactSampler` that were called, in this order. Tests clear it."""


class _Recorder(logging.Handler):
    def emit(self, record):
        CALLS.append(record.getMessage())


# Calls are logged, because a list that the sampler refers to would be part of its fingerprint.
logging.getLogger(__name__).addHandler(_Recorder())
logging.getLogger(__name__).setLevel(logging.DEBUG)
logging.getLogger(__name__).propagate = False


def make_location_problem(seed=0):
    """Return a model, data and counts whose posterior in replicate b is normal with variance `1 / (eta N)`."""
    rng = np.random.default_rng(seed)
    y = rng.normal(1.0, 1.0, size=N)
    counts = rng.multinomial(N, np.full(N, 1 / N), size=B)
    return cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=1000.0)), (np.ones((N, 1)), y), counts


def make_location_target(seed=0):
    model, data, counts = make_location_problem(seed)
    return make_target(model, data, counts, 1)


class ExactState(NamedTuple):
    """Particles at a learning rate; unrefined ones may be too wide."""

    particles: Particles
    eta: float
    refined: bool


class ExactSampler(Sampler[ExactState]):
    """Equally spaced quantiles of the posterior of a normal mean in every replicate.

    Parameters
    ----------
    means : array of shape (B + 1,)
        Posterior means of the data and of the replicates.
    n_particles : int
        Particles per replicate.
    scale, exponent : float
        The standard deviation is `scale * eta**exponent / sqrt(N)`; the exact posterior has 1 and -0.5.
    excess : float
        Factor on the standard deviation before `refine`.
    cheap : bool
        Answer of `refine_is_cheap`.
    max_eta : float
        Larger learning rates are not reached.
    n_unmixed : int
        Number of replicates that are reported as not mixed.
    is_audited : bool
        Whether the answer should be audited.
    replacement : Sampler or None
        The fallback sampler.
    """

    means: Float[Array, " R"]
    n_particles: int = eqx.field(static=True, default=1000)
    scale: float = eqx.field(static=True, default=1.0)
    exponent: float = eqx.field(static=True, default=-0.5)
    excess: float = eqx.field(static=True, default=1.0)
    cheap: bool = eqx.field(static=True, default=False)
    max_eta: float = eqx.field(static=True, default=math.inf)
    n_unmixed: int = eqx.field(static=True, default=0)
    is_audited: bool = eqx.field(static=True, default=False)
    replacement: Sampler | None = None

    @classmethod
    def of_problem(cls, seed=0, **options):
        """Return the sampler of `make_location_problem`."""
        _, (_, y), counts = make_location_problem(seed)
        means = np.concatenate([[y.mean()], counts @ y / N])
        return cls(jnp.asarray(means, float), **options)

    @property
    def needs_audit(self):
        return self.is_audited

    def fallback(self, dim):
        logging.getLogger(__name__).debug("fallback")
        return self.replacement

    def size(self, dim):
        return self.n_particles

    def draw_initial(self, key, target, eta, draws):
        logging.getLogger(__name__).debug("draw_initial")
        target = target.recentre(self.means[:1])
        eta = 1.0 if eta is None else eta
        return InitialDraws(target, self._particles(target, eta).replicate(0), eta)

    def initial_eta(self, target, initial, region, level):
        logging.getLogger(__name__).debug("initial_eta")
        return 2.0

    def init(self, key, target, initial, eta):
        logging.getLogger(__name__).debug("init")
        return self._state(target, eta)

    def move(self, target, state, eta, on_step):
        logging.getLogger(__name__).debug("move")
        on_step(1.0)
        return self._state(target, eta)

    def refine(self, target, state, on_step):
        logging.getLogger(__name__).debug("refine")
        on_step(1.0)
        if state.refined:
            return state
        return ExactState(self._particles(target, state.eta), state.eta, True)

    def refine_is_cheap(self, target, state):
        logging.getLogger(__name__).debug("refine_is_cheap")
        return self.cheap

    def info(self, state, eta):
        logging.getLogger(__name__).debug("info")
        n = len(self.means)
        return SamplerInfo(
            not_reached=np.full(n, eta > self.max_eta),
            not_mixed=np.arange(n) >= n - self.n_unmixed,
            invalid=0,
            steps=1,
            acceptance=math.nan,
            ess=np.full(n, float(self.n_particles)),
        )

    def _state(self, target, eta):
        particles = self._particles(target, eta, self.excess)
        return ExactState(particles, eta, self.excess == 1.0)

    def _particles(self, target, eta, factor=1.0):
        quantiles = norm.ppf((np.arange(self.n_particles) + 0.5) / self.n_particles)
        # In random order, as draws are.
        quantiles = np.random.default_rng(0).permutation(quantiles)
        sd = factor * self.scale * eta**self.exponent / math.sqrt(N)
        return evaluate(target, jnp.asarray(np.asarray(self.means)[None, :, None] + sd * quantiles, float))
