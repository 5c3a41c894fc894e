r"""Where to go next: the stochastic approximation of the learning rate (paper, section 2.1).

$$ \eta_{s+1} = \eta_s + \varsigma\,[\hat c(\eta_s) - (1 - \alpha)] $$

The step $\varsigma = l^{-0.51}$ follows Kesten's rule, by which $l$ grows only when eta turns round and coverage
is below one; or Syring and Martin's, by which it grows at every step. States hold arrays of any shape.

With counts and particles fixed, every row has a critical eta, where its set just lets the point go, and the answer is
a quantile of those: nothing random is left to be averaged. `Bracket` reads it off the coverage curve around the
present eta (`calibayes.solve.curve`), and only needs to say where to look where that curve does not meet the level.
"""

from abc import abstractmethod
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from calibayes._backend.arguments import positive, scalar


class Search(eqx.Module):
    """A rule for the next learning rate."""

    @abstractmethod
    def init(self, eta: Float[Array, "..."]) -> Any:
        """The state at the first learning rate, with `eta` in it."""

    @abstractmethod
    def update(self, state: Any, coverage: Float[Array, "..."], level: Float[Array, ""] | float) -> Any:
        """The state with the next `eta`, given the coverage at the present one."""


class RobbinsMonroState(eqx.Module):
    eta: Float[Array, "..."]
    clock: Float[Array, "..."]
    """The paper's l."""
    direction: Float[Array, "..."]
    """Sign of the last step, 0 before the first."""


class RobbinsMonro(Search):
    """Stochastic approximation with a step that shrinks.

    `gain` multiplies the step; the paper's 1 suits learning rates of the order of one. Eta stays positive: a step
    that would take it to zero or below halves it instead. The paper reports the eta at which the search stops:
    `refine=False`. It comes from one side and stops at the first coverage that chance brings near the level.
    """

    step: Literal["kesten", "syring-martin"] = eqx.field(static=True)
    gain: Float[Array, ""]
    refine: bool = eqx.field(static=True)

    def __init__(
        self, step: Literal["kesten", "syring-martin"] = "kesten", gain: ArrayLike = 1.0, *, refine: bool = True
    ):
        self.step, self.gain, self.refine = step, scalar("gain", gain), refine
        if self.step not in ("kesten", "syring-martin"):
            raise ValueError(f"step must be 'kesten' or 'syring-martin'; got {self.step!r}.")

    def init(self, eta):
        return RobbinsMonroState(eta, jnp.ones_like(eta), jnp.zeros_like(eta))

    def update(self, state, coverage, level):
        error = coverage - level
        direction = jnp.sign(error)
        turned = (direction * state.direction < 0) & (coverage < 1)
        clock = state.clock + jnp.where(turned, 1.0, 0.0) if self.step == "kesten" else state.clock
        eta = state.eta + self.gain * clock**-0.51 * error
        if self.step == "syring-martin":
            clock = clock + 1
        return RobbinsMonroState(jnp.where(eta > 0, eta, 0.5 * state.eta), clock, direction)


class BracketState(eqx.Module):
    eta: Float[Array, "..."]
    low: Float[Array, "..."]
    """The largest learning rate known to cover too often; 0 before there is one."""
    high: Float[Array, "..."]
    """The smallest known to cover too seldom."""


class Bracket(Search):
    r"""Solve for the learning rate on the rows' critical etas.

    Done when the answer is within `closeness` (in log eta) of where the particles are, at most; then that answer is
    read off their curve. Where the curve does not meet the level, the next eta is where a normal posterior would:
    coverage $P(|Z| < z)$ goes with $z \propto \eta^{-1/2}$. It moves at most 16-fold, and never out of the bracket.
    """

    closeness: float = eqx.field(static=True, default=0.2)

    @staticmethod
    def nearby() -> "Bracket":
        """For particles good enough to be reweighted over some distance."""
        return Bracket(closeness=0.6)

    def __check_init__(self):
        positive("closeness", self.closeness)

    def init(self, eta):
        return BracketState(eta, jnp.zeros_like(eta), jnp.full_like(eta, jnp.inf))

    def update(self, state, coverage, level):
        enough = coverage >= level
        low = jnp.where(enough, jnp.maximum(state.low, state.eta), state.low)
        high = jnp.where(enough, state.high, jnp.minimum(state.high, state.eta))
        ratio = jnp.square(_two_sided(coverage) / _two_sided(jnp.full_like(coverage, level)))
        # At least by half, or a coverage just off the level would keep it where it is.
        factor = jnp.where(enough, jnp.clip(ratio, 1.5, 16.0), jnp.clip(ratio, 1 / 16, 1 / 1.5))
        bounded = (low > 0) & jnp.isfinite(high)
        middle = jnp.sqrt(low * jnp.where(bounded, high, 1.0))
        eta = state.eta * factor
        return BracketState(jnp.where(bounded & ((eta <= low) | (eta >= high)), middle, eta), low, high)


def _two_sided(coverage: Float[Array, "..."]) -> Float[Array, "..."]:
    """The z at which a normal's central interval has this coverage."""
    return jnp.sqrt(2.0) * jax.lax.erf_inv(jnp.clip(coverage, 0.0, 1 - 1e-6))
