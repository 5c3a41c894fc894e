"""The interface of a sampler: weighted particles on every replicate, at any learning rate.

A sampler knows nothing of coverage. The solver (`calibayes.solve`) calls, in this order,

1. `draw_initial`: draws of the posterior on the data,
2. `initial_eta`: a guess of the learning rate, if the user gave none,
3. `init`: a state with particles on every replicate at that learning rate,
4. `move`: the state at another learning rate, as often as the search requests one,
5. `refine`: the state with the sampler's full accuracy, before the answer is computed from it,
6. `info`: diagnostics of the state.

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
from calibayes._core.target import Model, Target
from calibayes.regions import Region
from calibayes.samplers.initial import InitialDraws, initial_draws, n_initial_draws

OnStep = Callable[[float], None]
"""Called with the completed share of the work, often enough to be interrupted."""


@runtime_checkable
class SamplerState(Protocol):
    """The part of a sampler's state that the solver reads."""

    @property
    def particles(self) -> Particles: ...


State = TypeVar("State", bound=SamplerState)


class SamplerInfo(NamedTuple):
    """Diagnostics of a state: how well it represents the posteriors at its learning rate.

    Index 0 of the arrays of shape (B,) is the data; the bootstrap replicates follow.
    """

    not_reached: Bool[np.ndarray, " B"]
    """Replicates whose particles are not at the learning rate to which the sampler was asked to move."""
    not_mixed: Bool[np.ndarray, " B"]
    """Replicates whose particles still depend on where they started."""
    invalid: int | None
    """Number of proposals rejected, and of initial particles discarded, because their loss was NaN. None for samplers
    that do not reject them; such particles are then counted in the state."""
    steps: int
    """Number of steps to this learning rate (temperature steps, or evaluations of the risk), largest over
    replicates."""
    acceptance: float
    """Mean acceptance rate of the last move; NaN without a Markov kernel."""
    ess: Float[np.ndarray, " B"]
    """Effective sample size."""
    repaired: Bool[np.ndarray, " B"] | None = None
    """Replicates with degenerate importance weights, whose posterior was sampled again by a slower sampler (the
    bootstrap counts are unchanged)."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """Further findings of the sampler."""


class Snapshot(NamedTuple):
    """Particles at one learning rate: on the data, as one replicate, and on all replicates, the data first."""

    on_data: Particles
    replicates: Particles


class Sampler(eqx.Module, Generic[State]):
    """Base class of samplers, which provide particles on every replicate at any learning rate.

    In a target, a state and a `SamplerInfo`, index 0 of the replicates is the data and the bootstrap replicates follow.
    `Result.counts` and `Result.repaired_replicates` leave out the data: index 0 is the first bootstrap replicate.

    A subclass implements `size`, `init`, `move` and `info`, and may override the other methods. The type parameter is
    the type of its state: `class SMC(Sampler[SMCState])`.

    Attributes
    ----------
    default_search : str
        Class attribute. Search rule that suits the sampler: `"robbins-monro"` (the default) or `"bracket"`.
    default_replicates : int
        Class attribute. Number of bootstrap replicates if `calibrate(bootstrap=)` is not given. Default: 500 in this
        base class, 2,000 for transport.
    n_populations : int
        Class attribute. Number of independent populations of draws, if replicates share draws: replicates b,
        b + n_populations, ... then share the Monte Carlo error of one population. 1 if replicates do not share draws.
        Default: 1.
    needs_audit : bool
        Whether the answer should be checked by an independent sampler. Default: False.
    reads_data : bool
        Whether the sampler's kernel computes with the observations itself; see `Kernel`. Default: False.

    Examples
    --------
    >>> import calibayes as cb
    >>> from calibayes.samplers import Sampler
    >>> sampler = cb.SMC(n_particles=500)
    >>> isinstance(sampler, Sampler), sampler.size(dim=2), sampler.default_search
    (True, 500, 'robbins-monro')
    """

    default_search: ClassVar[str] = "robbins-monro"
    default_replicates: ClassVar[int] = 500
    n_populations: ClassVar[int] = 1

    @property
    def needs_audit(self) -> bool:
        """Whether the answer should be checked by an independent sampler."""
        return False

    @property
    def reads_data(self) -> bool:
        """Whether the sampler's kernel computes with the observations itself; see `Kernel`."""
        return False

    def fallback(self, dim: int) -> "Sampler | None":
        """Return the sampler to use if the audit fails or no answer is found.

        Parameters
        ----------
        dim : int
            Number of parameters.

        Returns
        -------
        Sampler or None
            The other sampler. Default: None, if there is none.
        """
        return None

    @abstractmethod
    def size(self, dim: int) -> int:
        """Return the number of particles per replicate.

        Parameters
        ----------
        dim : int
            Number of parameters.

        Returns
        -------
        int
            Number of particles (or draws) per replicate.
        """

    def size_for(self, model: Model, dim: int) -> int:
        """Return the number of particles per replicate for a model.

        Parameters
        ----------
        model : Model
            Loss and prior.
        dim : int
            Number of parameters.

        Returns
        -------
        int
            Default: `size(dim)`, for all models.
        """
        del model
        return self.size(dim)

    def check(self, target: Target) -> None:
        """Raise an error if this sampler cannot work on this target.

        Parameters
        ----------
        target : Target
            The posteriors to be sampled.
        """

    def prefetch(self, target: Target) -> Particles | None:
        """Start to compile the programs of a calibration (`calibayes._backend.jit.prefetch`).

        Called in a thread before the initial draws. Optional; the base class does nothing.

        Parameters
        ----------
        target : Target
            The posteriors, with shapes in place of arrays.

        Returns
        -------
        Particles or None
            Shapes of the particles on every replicate; None if they are unknown.
        """
        del target
        return None

    def draw_initial(
        self, key: PRNGKeyArray, target: Target, eta: float | None, draws: Float[Array, "M K"] | None
    ) -> InitialDraws:
        """Draw from the posterior on the data.

        Parameters
        ----------
        key : PRNGKeyArray
            Random key.
        target : Target
            The posteriors.
        eta : float or None
            Learning rate of the draws. If None, the sampler chooses it; the base class uses 1.
        draws : array of shape (M, K) or None
            The user's draws of the posterior at `eta`. If None, temper from the prior.

        Returns
        -------
        InitialDraws
            The draws, their learning rate, and the target whose risks are differences from the risk at the mean of the
            draws (`target.reference`).
        """
        n_draws = n_initial_draws(self.size(target.dim))
        return initial_draws(key, target, 1.0 if eta is None else eta, n_draws, draws)

    def draw_initial_again(
        self, key: PRNGKeyArray, target: Target, initial: InitialDraws, eta: float, draws: Float[Array, "M K"] | None
    ) -> InitialDraws:
        """Return initial draws for another set of bootstrap replicates of the same data, for `Result.validate`.

        Parameters
        ----------
        key : PRNGKeyArray
            Random key.
        target : Target
            The posteriors on the other set of replicates.
        initial : InitialDraws
            The initial draws of the calibration, for its own set of replicates.
        eta : float
            Learning rate of the draws.
        draws : array of shape (M, K) or None
            The user's draws of the posterior at `eta`.

        Returns
        -------
        InitialDraws
            Default: new draws, by `draw_initial`.
        """
        return self.draw_initial(key, target, eta, draws)

    def move_initial(self, key: PRNGKeyArray, initial: InitialDraws, eta: float) -> InitialDraws:
        """Return initial draws at another learning rate.

        Parameters
        ----------
        key : PRNGKeyArray
            Random key.
        initial : InitialDraws
            Initial draws.
        eta : float
            The other learning rate.

        Returns
        -------
        InitialDraws
            Default: new draws, by `draw_initial`.
        """
        return self.draw_initial(key, initial.target, eta, None)

    def initial_eta(self, target: Target, initial: InitialDraws, region: Region, level: float) -> float:
        """Return a guess of the learning rate at which the credible sets cover at `level`.

        Parameters
        ----------
        target : Target
            The posteriors.
        initial : InitialDraws
            The initial draws.
        region : Region
            The credible sets.
        level : float
            Their level.

        Returns
        -------
        float
            The guess. Default: the learning rate of the initial draws.
        """
        return initial.eta

    @abstractmethod
    def init(self, key: PRNGKeyArray, target: Target, initial: InitialDraws, eta: float) -> State:
        """Return the state at a first learning rate.

        Parameters
        ----------
        key : PRNGKeyArray
            Random key; the state stores the keys that later calls need.
        target : Target
            The posteriors.
        initial : InitialDraws
            The initial draws.
        eta : float
            The learning rate.

        Returns
        -------
        State
            The state at `eta`.
        """

    @abstractmethod
    def move(self, target: Target, state: State, eta: float, on_step: OnStep) -> State:
        """Return the state at another learning rate.

        Parameters
        ----------
        target : Target
            The posteriors.
        state : State
            The state at some learning rate.
        eta : float
            The other learning rate.
        on_step : callable
            Called with the completed share of the work.

        Returns
        -------
        State
            The state at `eta`.
        """

    def refine(self, target: Target, state: State, on_step: OnStep) -> State:
        """Return the state with the sampler's full accuracy.

        Parameters
        ----------
        target : Target
            The posteriors.
        state : State
            The state at some learning rate.
        on_step : callable
            Called with the completed share of the work.

        Returns
        -------
        State
            The refined state; the same object if there is nothing to do.
        """
        return state

    def refine_is_cheap(self, target: Target, state: State) -> bool:
        """Return whether `refine` costs so little that it may run before the state is known to be near the answer.

        Parameters
        ----------
        target : Target
            The posteriors.
        state : State
            The state at some learning rate.

        Returns
        -------
        bool
            Default: False.
        """
        return False

    def particles_on_data(self, state: State) -> Particles:
        """Return the particles on the data.

        Parameters
        ----------
        state : State
            The state at some learning rate.

        Returns
        -------
        Particles
            The particles on the data, as one replicate.
        """
        return state.particles.replicate(0)

    def snapshots(self, target: Target, state: State) -> Iterator[Snapshot]:
        """Yield the particles, then further particles at the same learning rate if they are cheap.

        Parameters
        ----------
        target : Target
            The posteriors.
        state : State
            The state at some learning rate.

        Yields
        ------
        Snapshot
            Particles on the data and on all replicates.
        """
        yield Snapshot(self.particles_on_data(state), state.particles)

    @abstractmethod
    def info(self, state: State, eta: float) -> SamplerInfo:
        """Return diagnostics of the state.

        Parameters
        ----------
        state : State
            The state at some learning rate.
        eta : float
            The learning rate that was requested.

        Returns
        -------
        SamplerInfo
            How well the state represents the posteriors at `eta`.
        """
