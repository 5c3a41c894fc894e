r"""Area under the receiver operating characteristic (ROC) curve: of a given marker, or maximized over linear scores.

With a marker s, and observations of two classes with counts c, the area is the share of pairs in the right order,

$$ A(c) = \sum_{i \in +} \sum_{j \in -} c_i c_j \{1(s_i > s_j) + \tfrac12 1(s_i = s_j)\} / (C_+ C_-), $$

a function of the weighted ranks. Its derivatives in the counts are the components of DeLong's variance.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from calibayes._backend.arguments import display, positive
from calibayes._core.loss import CountsRisk

_SURROGATES = ("none", "logistic", "sigmoid")
_MAX_UNDEFINED = 0.01
"""Largest share of replicates with a single class, which changes the coverage by as much at most."""


class _Ranks(NamedTuple):
    """A sorted marker."""

    row: Int[Array | np.ndarray, " N"]
    """Observation at each rank."""
    positive: Bool[Array | np.ndarray, " N"]
    """Whether that observation is of the positive class."""
    first: Int[Array | np.ndarray, " N"]
    """Number of ranks with a smaller marker."""
    end: Int[Array | np.ndarray, " N"]
    """Number of ranks with a marker that is not larger."""


class _Classes(NamedTuple):
    """Columns of the two classes, and the indices of their observations."""

    positive: Float[Array | np.ndarray, "P K"]
    negative: Float[Array | np.ndarray, "Q K"]
    positive_row: Int[Array | np.ndarray, " P"]
    negative_row: Int[Array | np.ndarray, " Q"]


class AUC(CountsRisk):
    r"""Risks about the area under the ROC curve.

    Parameters
    ----------
    surrogate : {"none", "logistic", "sigmoid"}
        "none": the parameter is the area of a given marker, and the risk $n (\theta - A)^2 / 2$ with the empirical area
        A, from exact weighted ranks, and the sum n of the counts. "logistic": the parameters are the coefficients of a
        linear score; the risk is n times the mean of $\log\{1 + \exp(-(x_i - x_j)^\top\theta)\}$ over pairs of the two
        classes, which is convex. "sigmoid": n times one minus a smoothed area of the score, whose coefficient of the
        first column is one, so that the parameters are those of the other columns. Default: "none".
    bandwidth : float
        Width of the smoothing of the score differences with "sigmoid", in units of the first column. Default: 1.

    Notes
    -----
    Data are `(marker, y)` or `(X, y)` without an intercept, with labels y of -1 and 1, or of 0 and 1. The risks are not
    sums over observations: they depend on pairs. With surrogates an evaluation takes a time proportional to the number
    of pairs of the two classes. The risk of a replicate with observations of one class only is zero. If more than 1% of
    the replicates are such, `calibrate` raises an error: use `bootstrap.Stratified` with the labels as strata.

    References
    ----------
    Wang and Martin (2020), Model-free posterior inference on the area under the receiver operating characteristic
    curve, Journal of Statistical Planning and Inference 209.
    DeLong, DeLong and Clarke-Pearson (1988), Comparing the areas under two or more correlated receiver operating
    characteristic curves, Biometrics 44, 837-845.
    Pepe, Cai and Longton (2006), Combining predictors for classification using the area under the receiver operating
    characteristic curve, Biometrics 62, 221-229.

    Examples
    --------
    >>> import numpy as np
    >>> import calibayes as cb
    >>> marker, y = np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])
    >>> cb.losses.AUC.empirical(marker, y)
    0.75
    >>> model = cb.GibbsModel(cb.losses.AUC(), cb.priors.Uniform(0.0, 1.0))
    """

    convex: bool = eqx.field(static=True)  # type: ignore[misc]
    surrogate: str = eqx.field(static=True)
    bandwidth: float = eqx.field(static=True)

    def __init__(self, surrogate: str = "none", bandwidth: float = 1.0):
        if surrogate not in _SURROGATES:
            raise ValueError(f"surrogate must be one of {', '.join(_SURROGATES)}; got {display(surrogate)}.")
        self.surrogate, self.bandwidth = surrogate, positive("bandwidth", bandwidth)
        self.convex = surrogate != "sigmoid"

    @staticmethod
    def empirical(marker: object, y: object, counts: object = None) -> float:
        """Return the area under the empirical ROC curve of a marker; a tie counts one half.

        Parameters
        ----------
        marker : array_like of shape (N,)
            Values that should be larger for the positive class.
        y : array_like of shape (N,)
            Labels, -1 and 1 or 0 and 1.
        counts : array_like of shape (N,), optional
            Counts or weights. Default: all one.

        Returns
        -------
        float

        Raises
        ------
        ValueError
            If the arrays do not have equal lengths, a value is not finite, or a class has no observations.
        """
        values, labels, risk = np.asarray(marker, np.float64), np.asarray(y), AUC()
        weights = np.ones(values.shape) if counts is None else np.asarray(counts, np.float64)
        if not values.shape == labels.shape == weights.shape or values.ndim != 1:
            raise ValueError(
                "marker, y and counts must have one dimension and equal lengths; got shapes "
                f"{values.shape}, {labels.shape} and {weights.shape}."
            )
        if not np.isfinite(values).all():
            raise ValueError(f"marker must be finite; {int((~np.isfinite(values)).sum())} values are not.")
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError("counts must be finite and at least 0.")
        data = risk.check((values, labels))
        if _has_one_class(data[1], weights[None]).any():
            raise ValueError("counts are zero for all observations of a class: an area under the ROC curve needs two.")
        return float(_area(risk.prepare(data), jnp.asarray(weights))[0])

    def check(self, data):
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise TypeError("data must be a pair (marker, y), or (X, y) with a surrogate, for AUC.")
        x, y = data
        x = x[:, 0] if self.surrogate == "none" and x.ndim == 2 and x.shape[1] == 1 else x
        if x.ndim != (1 if self.surrogate == "none" else 2):
            expected = "(observations,)" if self.surrogate == "none" else "(observations, columns)"
            raise ValueError(f"the first array of data must have shape {expected} for AUC; got {x.shape}.")
        if self.surrogate == "sigmoid" and x.shape[1] < 2:
            raise ValueError(
                'X must have at least two columns with surrogate="sigmoid"; the first has coefficient one.'
            )
        labels = np.unique(y)
        if y.ndim != 1 or not (np.isin(labels, (0, 1)).all() or np.isin(labels, (-1, 1)).all()):
            raise ValueError(f"y must hold labels -1 and 1, or 0 and 1, for AUC; got {labels[:5].tolist()}.")
        if len(labels) < 2:
            raise ValueError(f"y has only one class, {int(labels[0])}: an area under the ROC curve needs two.")
        return np.asarray(x, np.float64), y > 0

    def check_counts(self, data, counts):
        n_undefined = int(_has_one_class(data[1], counts).sum())
        if n_undefined > _MAX_UNDEFINED * len(counts):
            raise ValueError(
                f"{n_undefined:,} of {len(counts):,} bootstrap replicates contain observations of one class only, for "
                "which an area under the ROC curve is not defined. Use bootstrap=cb.bootstrap.Stratified(2000, y), "
                "which keeps the size of both classes."
            )

    def n_parameters(self, data):
        x = data[0]
        return 1 if self.surrogate == "none" else x.shape[1] - (self.surrogate == "sigmoid")

    def prepare(self, data):
        x, y = data
        if self.surrogate == "none":
            row = np.argsort(x, kind="stable")
            ordered = x[row]
            return _Ranks(row, y[row], *(np.searchsorted(ordered, ordered, side) for side in ("left", "right")))
        row_positive, row_negative = np.flatnonzero(y), np.flatnonzero(~y)
        centred = x - x.mean(0)
        return _Classes(centred[row_positive], centred[row_negative], row_positive, row_negative)

    def memory_per_particle(self, data, n_stored):  # noqa: ARG002
        return 8 if self.surrogate == "none" else len(data.positive) * len(data.negative)

    def __call__(self, theta, data, counts, nuisance=None):  # noqa: ARG002
        if self.surrogate == "none":
            area, is_defined = _area(data, counts)
            return jnp.where(is_defined, 0.5 * counts.sum() * jnp.square(theta[0] - area), 0.0)
        coefficients = theta
        if self.surrogate == "sigmoid":
            coefficients = jnp.concatenate([jnp.ones_like(theta[:1]), theta])
        scores = [jnp.matmul(x, coefficients, precision=jax.lax.Precision.HIGHEST) for x in data[:2]]
        differences = scores[0][:, None] - scores[1][None]
        if self.surrogate == "sigmoid":
            losses = jax.nn.sigmoid(-differences / self.bandwidth)
        else:
            losses = jax.nn.softplus(-differences)
        of_positive, of_negative = counts[data.positive_row], counts[data.negative_row]
        total = of_positive @ (losses @ of_negative)
        return counts.sum() * total / _positive(of_positive.sum() * of_negative.sum())


def _area(ranks: _Ranks, counts: Float[Array, " N"]) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """Return the weighted area, and whether both classes have counts; else the area is zero.

    Counts of observations are divided, so that products of sums do not overflow.
    """
    ordered = counts[ranks.row]
    is_positive = jnp.asarray(ranks.positive)
    negative = jnp.where(is_positive, 0.0, ordered)
    below = jnp.concatenate([jnp.zeros_like(negative[:1]), jnp.cumsum(negative)])
    share = 0.5 * (below[ranks.first] + below[ranks.end]) / _positive(below[-1])
    weights = jnp.where(is_positive, ordered, 0.0)
    total = weights.sum()
    return (weights * share).sum() / _positive(total), (total > 0) & (below[-1] > 0)


def _positive(total: Float[Array, ""]) -> Float[Array, ""]:
    """Return a sum that is not negative, with one in place of zero, so that derivatives of quotients are finite."""
    return jnp.where(total > 0, total, 1.0)


def _has_one_class(is_positive: Bool[np.ndarray, " N"], counts: Float[np.ndarray, "B N"]) -> Bool[np.ndarray, " B"]:
    """Return for which replicates the counts of all observations of a class are zero."""
    positive, negative = counts[:, is_positive] > 0, counts[:, ~is_positive] > 0
    return ~np.logical_and(positive.any(1), negative.any(1))
