"""The interface of a Markov kernel, and the Metropolis-Hastings step that most kernels share.

A kernel moves all particles of all replicates at once and leaves the generalized posterior of each replicate,
proportional to `exp(-eta * risk(theta)) * prior(theta)`, invariant. It receives the `Target`, so it may use the
structure of the loss and the prior. It knows nothing of regions or coverage.
"""

from abc import abstractmethod
from typing import ClassVar, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from calibayes._backend.rng import normals, uniforms
from calibayes._core.particles import Particles
from calibayes._core.target import Target, log_density


class KernelInfo(NamedTuple):
    """Outcome of one move on every replicate."""

    acceptance: Float[Array, " B"]
    """Acceptance probability, averaged over the particles."""
    invalid: Int[Array, " B"]
    """Number of proposals at which the loss was NaN."""


Adaptation = TypeVar("Adaptation")


class Kernel(eqx.Module, Generic[Adaptation]):
    """Base class of Markov kernels that leave the posterior at `eta` invariant.

    A subclass implements `init` and `step`. Both work on all replicates at once; parameters are the first axis and
    particles the last, as in `Particles`. The type parameter is the type of the adaptation, a pytree of arrays.

    Attributes
    ----------
    needs_particles : bool
        Class attribute. Whether the proposal is computed from the particles of a replicate, so that the kernel cannot
        move a single chain. Default: False.
    reads_data : bool
        Class attribute. Whether a step computes with `target.data` itself, so that padding of the data takes time. The
        data are then padded only to the next multiple of the number of observations that are processed at once, and a
        data set of another size compiles the programs again.
        Default: False.

    Examples
    --------
    A random walk with a fixed step size:

    >>> from calibayes.kernels.base import Kernel, metropolis, random_walk_noise
    >>> class FixedRandomWalk(Kernel):
    ...     step_size: float
    ...
    ...     def init(self, covariance):
    ...         return ()
    ...
    ...     def step(self, keys, target, eta, particles, adaptation, adapt):
    ...         normal, log_uniforms = random_walk_noise(keys, particles.theta)
    ...         proposal = particles.theta + self.step_size * normal
    ...         move = metropolis(log_uniforms, target, eta, particles, proposal)
    ...         return move.particles, adaptation, move.info
    >>> FixedRandomWalk(step_size=0.1)
    FixedRandomWalk(step_size=0.1)
    """

    needs_particles: ClassVar[bool] = False
    reads_data: ClassVar[bool] = False

    def check(self, target: Target) -> None:
        """Raise an error if this kernel cannot sample this target.

        Parameters
        ----------
        target : Target
            The posteriors to be sampled.

        Raises
        ------
        TypeError, ValueError
            If the loss, the prior or the counts do not suit the kernel.
        """

    @abstractmethod
    def init(self, covariance: Float[Array, "B K K"]) -> Adaptation:
        """Return the initial adaptation.

        Parameters
        ----------
        covariance : array of shape (B, K, K)
            Estimate of the posterior covariance of each replicate.

        Returns
        -------
        pytree of arrays
            The adaptation; the replicates are the leading axis of each array. An empty tuple if the kernel does not
            adapt.
        """

    @abstractmethod
    def step(
        self,
        keys: Key[Array, " B"],
        target: Target,
        eta: Float[Array, " B"],
        particles: Particles,
        adaptation: Adaptation,
        adapt: bool,
    ) -> tuple[Particles, Adaptation, KernelInfo]:
        """Move every particle once.

        Parameters
        ----------
        keys : array of B random keys
            One key per replicate.
        target : Target
            The posteriors to leave invariant.
        eta : array of shape (B,)
            Learning rate of each replicate.
        particles : Particles
            The particles to move.
        adaptation : pytree of arrays
            The adaptation, as returned by `init` or by the previous step.
        adapt : bool
            Whether to update the adaptation. If False, the kernel is Markov.

        Returns
        -------
        particles : Particles
            The moved particles, with unchanged weights.
        adaptation : pytree of arrays
            The new adaptation.
        info : KernelInfo
            Acceptance rates and the number of invalid proposals.
        """


class MetropolisMove(NamedTuple):
    """Result of a Metropolis-Hastings step."""

    particles: Particles
    probability: Float[Array, "B M"]
    """Acceptance probability of each proposal."""
    info: KernelInfo


def metropolis(
    log_uniforms: Float[Array, "B M"],
    target: Target,
    eta: Float[Array, " B"],
    particles: Particles,
    proposal: Float[Array, "K B M"],
    log_correction: Float[Array, "B M"] | float = 0.0,
) -> MetropolisMove:
    r"""Accept or reject proposals by the Metropolis-Hastings rule.

    Parameters
    ----------
    log_uniforms : array of shape (B, M)
        Logarithms of uniform random numbers.
    target : Target
        The posteriors to leave invariant.
    eta : array of shape (B,)
        Learning rate of each replicate.
    particles : Particles
        Current particles.
    proposal : array of shape (K, B, M)
        Proposed particles, in the target's unconstrained coordinates.
    log_correction : array of shape (B, M) or float
        $\log q(\theta \mid \theta') - \log q(\theta' \mid \theta)$ for the proposal density q. Default: 0, for
        symmetric proposals.

    Returns
    -------
    MetropolisMove
        The particles after the step, the acceptance probabilities and their summary. A proposal whose density is NaN is
        rejected.

    Examples
    --------
    >>> import jax, numpy as np
    >>> import jax.numpy as jnp
    >>> import calibayes as cb
    >>> from calibayes._core.target import make_target
    >>> from calibayes.kernels.base import metropolis
    >>> model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=10.0))
    >>> target = make_target(model, (np.ones((4, 1)), np.zeros(4)), np.ones((1, 4)), 1)
    >>> particles = target.evaluate(jnp.zeros((1, 2, 3)))
    >>> log_uniforms = jnp.log(jnp.full((2, 3), 0.5))
    >>> move = metropolis(log_uniforms, target, jnp.ones(2), particles, particles.theta + 5.0)
    >>> print(move.particles.theta.max(), move.info.acceptance.max() < 1e-3)
    0.0 True
    """
    proposed = target.evaluate(proposal)
    log_ratio = log_density(proposed, eta) - log_density(particles, eta) + log_correction
    log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
    accepted = log_uniforms < log_ratio
    moved = Particles(
        jnp.where(accepted[None], proposed.theta, particles.theta),
        jnp.where(accepted, proposed.risk, particles.risk),
        jnp.where(accepted, proposed.log_prior, particles.log_prior),
        particles.log_weights,
    )
    probability = jnp.exp(jnp.minimum(log_ratio, 0.0))
    return MetropolisMove(moved, probability, KernelInfo(probability.mean(-1), jnp.isnan(proposed.risk).sum(-1)))


def random_walk_noise(
    keys: Key[Array, " B"], theta: Float[Array, "K B M"]
) -> tuple[Float[Array, "K B M"], Float[Array, "B M"]]:
    """Draw the random numbers of a random-walk Metropolis step.

    Parameters
    ----------
    keys : array of B random keys
        One key per replicate. The numbers of a replicate depend on its key alone.
    theta : array of shape (K, B, M)
        The particles; only the shape is used.

    Returns
    -------
    normal : array of shape (K, B, M)
        Standard normal increments.
    log_uniforms : array of shape (B, M)
        Logarithms of uniform random numbers, for `metropolis`.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from calibayes.kernels.base import random_walk_noise
    >>> keys = jax.random.split(jax.random.key(0), 2)
    >>> normal, log_uniforms = random_walk_noise(keys, jnp.zeros((3, 2, 5)))
    >>> normal.shape, log_uniforms.shape
    ((3, 2, 5), (2, 5))
    """
    normal, uniform = normals_and_uniforms(keys, theta, 1)
    return normal, jnp.log(uniform[0])


def normals_and_uniforms(
    keys: Key[Array, " B"], theta: Float[Array, "K B M"], n_uniforms: int
) -> tuple[Float[Array, "K B M"], Float[Array, "U B M"]]:
    """Return standard normal numbers of the shape of `theta`, and `n_uniforms` uniform numbers per particle."""
    dim, _, size = theta.shape
    uniform = uniforms(keys, dim + n_uniforms, size)
    # Without the barrier XLA generates the normal numbers again in every computation that reads them.
    normal = jax.lax.optimization_barrier(normals(uniform[:dim]))
    return normal, uniform[dim:]
