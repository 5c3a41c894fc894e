"""What a sampler is: a way to have particles on every row at any learning rate."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from calibayes.particles import Particles
from calibayes.regions import Region
from calibayes.samplers.start import pilot
from calibayes.target import Target


class Reach(NamedTuple):
    """How well a sampler reached a learning rate."""

    short: Bool[np.ndarray, " B"]
    """Rows that did not get there."""
    unmixed: Bool[np.ndarray, " B"]
    """Rows whose first particles had not forgotten where they came from."""
    invalid: int | None
    """Evaluations at which the loss was NaN, those particles being given up; None if all of them are still there."""
    rungs: int
    """Steps on the way, of the slowest row."""
    acceptance: float
    ess: Float[np.ndarray, " B"]
    """Effective number of particles."""
    repaired: Bool[np.ndarray, " B"] | None = None
    """Rows that were sampled because their weights had failed."""
    concerns: tuple[str, ...] = ()
    """What else a user should know, in words."""


class Snapshot(NamedTuple):
    """Particles at one learning rate."""

    data: Particles
    """On the data, as one row."""
    rows: Particles
    """On every row, the data's first."""


class Sampler(eqx.Module):
    """Its state has `particles`, one `Particles` over all rows."""

    populations: ClassVar[int] = 1
    """Rows b, b + populations, ... share the Monte Carlo error of the same draws."""

    @abstractmethod
    def size(self, dim: int) -> int:
        """Particles a row, for so many parameters."""

    def check(self, target: Target) -> None:
        """Raise if this sampler cannot work on this target."""

    def begin(self, key: PRNGKeyArray, target: Target, eta: float | None, draws: Float[Array, "M K"] | None) -> Any:
        """Draws on the data to start from: `target` with its reference among them, `particles`, and their `eta`."""
        return pilot(key, target, 1.0 if eta is None else eta, max(self.size(target.dim), 1000), draws)

    def begin_again(
        self, key: PRNGKeyArray, target: Target, start: Any, eta: float, draws: Float[Array, "M K"] | None
    ) -> Any:
        """What to start from on other rows of the same data, given what it began with."""
        # The user's draws, if there are any, are of the posterior at their own eta; moves take care of the rest.
        return self.begin(key, target, eta, draws)

    def first_eta(self, target: Target, start: Any, region: Region, level: float) -> float:
        """Where to look first for the learning rate at which sets cover at `level`."""
        return start.eta

    @abstractmethod
    def init(self, key: PRNGKeyArray, target: Target, start: Any, eta: float) -> Any:
        """The state at `eta`, from what it began with."""

    @abstractmethod
    def move(self, target: Target, state: Any, eta: float, on_step: Callable[[float], None]) -> Any:
        """The state at `eta`. `on_step` is told the share of the way, often enough to interrupt."""

    def mend(self, target: Target, state: Any, on_step: Callable[[float], None]) -> Any:
        """The state with the rows put right that are known to be wrong; the same object, if there are none."""
        return state

    def quick(self, target: Target, state: Any) -> bool:
        """Whether mending takes so little time that it need not be known first that the state is worth it."""
        return False

    def data(self, state: Any) -> Particles:
        """The particles on the data."""
        return state.particles.row(0)

    def snapshots(self, target: Target, state: Any) -> Iterator[Snapshot]:
        """The particles, and more of them at the same learning rate where they come cheap."""
        yield Snapshot(self.data(state), state.particles)

    @abstractmethod
    def reach(self, state: Any, eta: float) -> Reach:
        """How the state was reached."""
