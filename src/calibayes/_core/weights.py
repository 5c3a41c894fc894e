r"""Weights of the observations.

The data have the risk $\sum_i w_i\,r_i(\theta)$. Integer weights are numbers of repetitions: an observation of weight
two is two observations. Other weights, such as survey weights, multiply the risk of one observation, and a bootstrap
replicate that draws it c times has its risk c w times. The two differ in the sandwich covariance

$$ J = \sum_i w_i u_i\,g_i g_i^\top, $$

where $u_i = 1$ if the weights are numbers of repetitions, so that $J = \sum_i w_i\,g_i g_i^\top$, and $u_i = w_i$
otherwise, so that $J = \sum_i w_i^2\,g_i g_i^\top$.
"""

from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float


class Weights(NamedTuple):
    """Validated weights.

    Attributes
    ----------
    values : ndarray of shape (N,)
        One weight per observation, not negative.
    repeats : bool
        Whether the weights are integers, numbers of repetitions.
    """

    values: Float[np.ndarray, " N"]
    repeats: bool

    @property
    def kind(self) -> str:
        """Kind of weights, "repetitions" or "survey"."""
        return "repetitions" if self.repeats else "survey"

    @property
    def n_resampled(self) -> int:
        """Number of observations that are resampled, with repetitions."""
        return int(self.values.sum()) if self.repeats else len(self.values)

    @property
    def per_draw(self) -> Float[np.ndarray, " N"]:
        """Weight of each observation every time that a bootstrap replicate draws it."""
        return np.ones(len(self.values)) if self.repeats else self.values


class ObservationWeights(eqx.Module):
    """Weights in the blocks of a target.

    Attributes
    ----------
    values : Array of shape (G, L)
        Weight of every observation.
    per_draw : Array of shape (G, L)
        Weight of every observation each time that a bootstrap replicate draws it: one if weights are numbers of
        repetitions.
    """

    values: Float[Array, "G L"]
    per_draw: Float[Array, "G L"]
