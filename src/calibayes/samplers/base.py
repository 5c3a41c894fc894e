"""The interface of a sampler: weighted particles on every replicate, at any learning rate.

A sampler knows nothing of coverage. The solver (`calibayes.solve`) asks it, in this order, for

1. `draw_initial`: draws of the posterior on the data,
2. `initial_eta`: a guess of the learning rate, where the user gave none,
3. `init`: a state with particles on every replicate at that learning rate,
4. `move`: the state at another learning rate, as often as the search asks for one,
5. `refine`: the state made as good as the sampler can, before the answer is computed from it,
6. `info`: how well the state represents the posteriors.

A state is any pytree of arrays, numbers and named tuples or `equinox.Module`s with an attribute `particles`; the solver
stores it in checkpoints.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from calibayes._core.particles import Particles
from calibayes._core.status import Diagnostic
from calibayes._core.target import Target
from calibayes.regions import Region
from calibayes.samplers.initial import InitialDraws, initial_draws

OnStep = Callable[[float], None]
"""Called with the completed share of the work, often enough to be interrupted."""


@runtime_checkable
class SamplerState(Protocol):
    """The part of a sampler's state that the solver reads."""

    @property
    def particles(self) -> Particles: ...


State = TypeVar("State", bound=SamplerState)


class SamplerInfo(NamedTuple):
    """How well a state represents the posteriors at its learning rate."""

    not_reached: Bool[np.ndarray, " B"]
    """Replicates whose particles are not at the requested learning rate."""
    not_mixed: Bool[np.ndarray, " B"]
    """Replicates whose particles still depend on where they started."""
    invalid: int | None
    """Number of evaluations at which the loss was NaN; None if those particles are still part of the state."""
    steps: int
    """Number of steps to this learning rate (temperature steps, or evaluations of the risk), largest over replicates."""
    acceptance: float
    """Mean acceptance rate of the last move; NaN without a Markov kernel."""
    ess: Float[np.ndarray, " B"]
    """Effective sample size."""
    repaired: Bool[np.ndarray, " B"] | None = None
    """Replicates that were resampled by SMC because their importance weights had degenerated."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """Further findings of the sampler."""


class Snapshot(NamedTuple):
    """Particles at one learning rate: on the data, as one replicate, and on all replicates, the data first."""

    data: Particles
    replicates: Particles


class Sampler(eqx.Module, Generic[State]):
    """A way to have particles on every replicate at any learning rate. Replicate 0 is the data."""

    default_search: ClassVar[str] = "robbins-monro"
    """Search rule that suits this sampler: `"robbins-monro"` or `"bracket"`."""
    default_replicates: ClassVar[int] = 500
    """Default number of bootstrap replicates."""
    n_populations: ClassVar[int] = 1
    """Replicates b, b + n_populations, ... share the Monte Carlo error of the same draws."""

    @property
    def audited(self) -> bool:
        """Whether the answer should be checked by an independent sampler."""
        return False

    def fallback(self, dim: int) -> "Sampler | None":  # noqa: ARG002
        """Return the sampler to use if the audit fails or no answer is found; None if there is none."""
        return None

    @abstractmethod
    def size(self, dim: int) -> int:
        """Return the number of particles per replicate for `dim` parameters."""

    def check(self, target: Target) -> None:
        """Raise an error if this sampler cannot work on this target."""

    def draw_initial(
        self, key: PRNGKeyArray, target: Target, eta: float | None, draws: Float[Array, "M K"] | None
    ) -> InitialDraws:
        """Draw from the posterior on the data: from the prior, or from the user's `draws` at `eta`."""
        return initial_draws(key, target, 1.0 if eta is None else eta, max(self.size(target.dim), 1000), draws)

    def draw_initial_again(
        self, key: PRNGKeyArray, target: Target, initial: InitialDraws, eta: float, draws: Float[Array, "M K"] | None
    ) -> InitialDraws:
        """Return initial draws for other replicates of the same data."""
        return self.draw_initial(key, target, eta, draws)

    def initial_eta(self, target: Target, initial: InitialDraws, region: Region, level: float) -> float:
        """Return a guess of the learning rate at which the credible sets cover at `level`."""
        return initial.eta

    @abstractmethod
    def init(self, key: PRNGKeyArray, target: Target, initial: InitialDraws, eta: float) -> State:
        """Return the state at `eta`."""

    @abstractmethod
    def move(self, target: Target, state: State, eta: float, on_step: OnStep) -> State:
        """Return the state at another learning rate."""

    def refine(self, target: Target, state: State, on_step: OnStep) -> State:
        """Return the state made as good as this sampler can; the same object if there is nothing to do."""
        return state

    def refine_is_cheap(self, target: Target, state: State) -> bool:
        """Return whether `refine` costs so little that it may run before the state is known to be near the answer."""
        return False

    def data(self, state: State) -> Particles:
        """Return the particles on the data, as one replicate."""
        return state.particles.replicate(0)

    def snapshots(self, target: Target, state: State) -> Iterator[Snapshot]:
        """Yield the particles, then further particles at the same learning rate where they are cheap."""
        yield Snapshot(self.data(state), state.particles)

    @abstractmethod
    def info(self, state: State, eta: float) -> SamplerInfo:
        """Return how well the state represents the posteriors at `eta`."""
