"""What a sampler is: a way to have particles on every row at any learning rate."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from calibayes.particles import Particles
from calibayes.samplers.start import Pilot
from calibayes.target import Target


class Reach(NamedTuple):
    """How well a sampler reached a learning rate."""

    short: Bool[np.ndarray, " B"]
    """Rows that did not get there."""
    unmixed: Bool[np.ndarray, " B"]
    """Rows whose first particles had not forgotten where they came from."""
    invalid: int
    """Evaluations at which the loss was NaN; those particles were given up."""
    rungs: int
    """Steps on the way, of the slowest row."""
    acceptance: float
    ess: Float[np.ndarray, " B"]
    """Effective number of particles."""


class Sampler(eqx.Module):
    """Its state is a pytree with `particles`, one `Particles` over all rows."""

    @property
    @abstractmethod
    def n_draws(self) -> int:
        """Particles a row."""

    @property
    def n_pilot(self) -> int:
        """Draws on the data to start from."""
        return 1000

    def check(self, target: Target) -> None:
        """Raise if this sampler cannot work on this target."""

    @abstractmethod
    def init(self, key: PRNGKeyArray, target: Target, pilot: Pilot) -> Any:
        """The state at the pilot's learning rate."""

    @abstractmethod
    def move(self, target: Target, state: Any, eta: float, on_step: Callable[[float], None]) -> Any:
        """The state at `eta`. `on_step` is told the share of the way, often enough to interrupt."""

    def snapshots(self, target: Target, state: Any) -> Iterator[Particles]:
        """The particles, and more of them at the same learning rate where they come cheap."""
        yield state.particles

    @abstractmethod
    def reach(self, state: Any, eta: float) -> Reach:
        """How the state was reached."""
