r"""The negative logarithm of Cox's partial likelihood, as a function of the counts of the observations.

With hazards $h_j = c_j \exp(x_j^\top\theta)$, the set $\mathcal{R}(t)$ of observations at risk just before t and the
set $\mathcal{D}(t)$ of those with an event at t,

$$ R(\theta, c) = \sum_t d_t \log S_t - \sum_i c_i \delta_i\,x_i^\top\theta, \qquad
   S_t = \sum_{j \in \mathcal{R}(t)} h_j, \qquad d_t = \sum_{i \in \mathcal{D}(t)} c_i, $$

which is Breslow's approximation for ties. Efron's replaces $d \log S$ by $\sum_{k=0}^{d-1} \log(S - k \bar{h})$ with
the mean hazard $\bar{h} = \sum_{\mathcal{D}} h_j / d$ of the events. With $a = S / \bar{h} \ge d$ this is

$$ d \log\bar{h} + \log\Gamma(a + 1) - \log\Gamma(a - d + 1), $$

which is also defined, and smooth, for counts that are not integers. Stirling's series gives the difference of the log
gamma functions without cancellation.

Observations are sorted by decreasing time once. An evaluation is one pass over them, a few at a time, that adds the
hazards to $S$, relative to the largest so far (as in a log-sum-exp), and with the rounding errors of single precision
compensated (Knuth's two-sum). With left truncation an observation leaves $S$ at its entry; because of the compensation
this costs no accuracy. The risk is relative to that of $\theta = 0$, whose terms are of the order of $\log N$.

References
----------
Cox (1972), Regression models and life-tables, Journal of the Royal Statistical Society B 34, 187-220.
Efron (1977), The efficiency of Cox's likelihood function for censored data, Journal of the American Statistical
Association 72, 557-565.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from calibayes._backend.arguments import display
from calibayes._core.loss import CountsRisk


@dataclass(frozen=True)
class CoxConfig:
    """Constants of the evaluation. They affect the running time, and results by rounding only."""

    block_length: int = 8
    """Number of observations in one step of the pass."""
    max_unrolled_dim: int = 16
    """Number of parameters up to which linear predictors are unrolled sums, as for losses of a linear prediction."""
    min_exponent: float = -60.0
    """Smallest logarithm of a hazard relative to the largest: single precision represents the sum of a million hazards
    divided by exp(-60), and exp(-87)."""
    shift: int = 4
    """Number added to the arguments of the log gamma functions, so that Stirling's series is accurate: with the terms
    below the error at arguments from 5 on is below 1e-9."""


CONFIG = CoxConfig()

_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)


class SurvivalData(NamedTuple):
    """Sorted data, in blocks of items. An item adds an observation to the risk set, or removes it at its entry."""

    x: Float[Array | np.ndarray, "G L K"]
    """Columns, centred."""
    row: Int[Array | np.ndarray, "G L"]
    """Index of the observation."""
    sign: Float[Array | np.ndarray, "G L"]
    """1 where the observation enters the sum, -1 where it leaves it, 0 for padding."""
    event: Float[Array | np.ndarray, "G L"]
    """Whether the item is an event."""
    same_time: Float[Array | np.ndarray, "G L"]
    """0 for the first item of every time, else 1."""
    same_stratum: Float[Array | np.ndarray, "G L"]
    """0 for the first item of every stratum, else 1."""
    is_last: Bool[Array | np.ndarray, "G L"]
    """Whether the item is the last one of a time with events."""
    since_stratum: Float[Array | np.ndarray, "G L L"]
    """Whether the second item of the block is not after the first, and of the same stratum."""
    since_time: Float[Array | np.ndarray, "G L L"]
    """Whether the second item of the block is not after the first, and of the same time."""


class _Sums(NamedTuple):
    """State of the pass over the observations, for one particle."""

    largest: Array
    """Largest linear predictor so far, by whose exponential function hazards are divided."""
    hazard: tuple[Array, Array]
    """Sum of the hazards at risk, and its rounding error."""
    event_hazard: Array
    """Sum of the hazards of the events at the current time."""
    risk: tuple[Array, Array]
    """Risk of the times so far, without its linear part, and its rounding error."""
    at_risk: Array
    """Number at risk, the sum of their counts."""
    n_events: Array
    """Number of events at the current time."""


class Cox(CountsRisk):
    r"""Negative log partial likelihood of Cox's proportional hazards model.

    Parameters
    ----------
    ties : {"efron", "breslow"}
        Approximation for tied event times. Default: "efron". A bootstrap replicate that draws an event twice has a tie.

    Notes
    -----
    Data are `(X, time, event)`, `(X, time, event, entry)` or `(X, time, event, entry, strata)`: columns without an
    intercept, positive times, whether the time is that of an event (1) or of censoring (0), times of entry (left
    truncation; an observation is at risk from then on), and labels of strata with their own baseline hazards. `entry`
    and `strata` may be None. A count of two has the same risk as the row twice. The risk is relative to that of
    $\theta = 0$.

    With "efron", weights must be integers, numbers of repetitions, because copies of an event are tied. Survey weights
    need "breslow", whose estimate does not change if all weights are multiplied by a number.

    The calibrated intervals are robust to misspecification, such as hazards that are not proportional: they are about
    those of the sandwich estimator of Lin and Wei (1989). With "breslow" the score of an observation (see
    `GibbsModel.from_risk`) is exactly its score residual; with "efron" it also contains the change of the correction
    for ties, of the order of one divided by the number at risk, because two copies of an event are a tie.

    References
    ----------
    Cox (1972), Regression models and life-tables, Journal of the Royal Statistical Society B 34, 187-220.
    Efron (1977), The efficiency of Cox's likelihood function for censored data, Journal of the American Statistical
    Association 72, 557-565.
    Lin and Wei (1989), The robust inference for the Cox proportional hazards model, Journal of the American Statistical
    Association 84, 1074-1078.

    Examples
    --------
    >>> import numpy as np
    >>> import calibayes as cb
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 1))
    >>> time, event = rng.exponential(np.exp(-X[:, 0])), rng.uniform(size=100) < 0.7
    >>> model = cb.GibbsModel(cb.losses.Cox(), cb.priors.Normal(scale=10.0))
    >>> result = cb.calibrate(model, (X, time, event), names=["x"])  # doctest: +SKIP
    """

    convex: ClassVar[bool] = True
    ties: str = eqx.field(static=True)

    def __init__(self, ties: str = "efron"):
        if ties not in ("efron", "breslow"):
            raise ValueError(f'ties must be "efron" or "breslow"; got {display(ties)}.')
        self.ties = ties

    def check(self, data):
        x, time, event, entry, strata = _parts(data)
        for name, values in (("time", time), ("event", event), ("entry", entry), ("strata", strata)):
            if values is not None and values.shape != (len(x),):
                raise ValueError(f"{name} must have one dimension, as long as X; got shape {values.shape}.")
        if not (time > 0).all():
            raise ValueError(f"time must be positive; {int((time <= 0).sum())} values are not, such as {time.min():g}.")
        if not np.isin(event, (0, 1)).all():
            raise ValueError(f"event must be 0 (censored) or 1; got {np.unique(event)[:5].tolist()}.")
        if not event.any():
            raise ValueError("event is 0 for all observations: without an event there is no partial likelihood.")
        if entry is not None and not ((entry >= 0) & (entry < time)).all():
            late = int((~((entry >= 0) & (entry < time))).sum())
            raise ValueError(f"entry must be at least 0 and before time; in {late} rows it is not.")
        labels = None if strata is None else np.unique(strata, return_inverse=True)[1]
        # The sort by decreasing time negates the times, and the negative of an unsigned integer wraps around.
        time, event, entry = (None if part is None else part.astype(np.float64) for part in (time, event, entry))
        return x, time, event, entry, labels

    def check_weights(self, are_repetitions):
        if not are_repetitions and self.ties == "efron":
            raise ValueError(
                "weights that are not integers, such as survey weights, are not available with Efron's ties, which "
                'would take a weight as a number of tied events. Use ties="breslow".'
            )

    def n_parameters(self, data):
        return data[0].shape[1]

    def prepare(self, data):
        x, time, event, entry, strata = data
        return SurvivalData(*_sorted_items(x - x.mean(0), time, event, entry, strata))

    def memory_per_particle(self, data, n_stored):  # noqa: ARG002
        return data.x.shape[-1] + 2 * CONFIG.block_length

    def __call__(self, theta, data, counts, nuisance=None):  # noqa: ARG002
        item_counts = counts[data.row]
        # With few parameters the linear predictor is written out term by term, so that XLA computes it within the loop
        # over particles instead of storing it.
        thetas = [theta[k] for k in range(len(theta))] if len(theta) <= CONFIG.max_unrolled_dim else theta

        def add_block(sums: _Sums, scanned: tuple[SurvivalData, Array]) -> tuple[_Sums, None]:
            return _add_block(sums, *scanned, thetas, self.ties == "efron"), None

        zero = jnp.zeros((), theta.dtype)
        start = _Sums(zero - 1e30, (zero, zero), zero, (zero, zero), zero, zero)
        end = jax.lax.scan(add_block, start, (data, item_counts))[0]
        total, rounding_error = end.risk
        return total + (rounding_error - _linear_part(theta, data, item_counts))

    def differentiable_risk(self, theta, data, counts, nuisance=None):  # noqa: ARG002
        # The same risk by cumulative sums over all observations, without the scan, which is slow to differentiate.
        item_counts = counts[data.row]
        flatten = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])
        linear, counts = _linear_part(theta, data, item_counts), flatten(item_counts)
        data = SurvivalData(*map(flatten, data))
        predictor = jnp.matmul(data.x, theta, precision=jax.lax.Precision.HIGHEST)
        counted = (data.sign > 0) & (counts > 0)
        largest = jax.lax.stop_gradient(jnp.max(jnp.where(counted, predictor, -1e30)))
        exponent = jnp.maximum(jnp.where(counts > 0, predictor - largest, 0.0), CONFIG.min_exponent)
        hazard = counts * jnp.exp(exponent)
        total, at_risk = (_sums_since_start(data.same_stratum, data.sign * values) for values in (hazard, counts))
        event_hazard, n_events = (_sums_of_groups(data.same_time, data.event * values) for values in (hazard, counts))
        # By rounding, the total of a risk set can come out below the hazard of its own events.
        total = jnp.maximum(total, event_hazard)
        evaluated = data.is_last & (n_events > 0)
        sums = (total, event_hazard, n_events, at_risk)
        terms = _terms(evaluated, sums, largest, self.ties == "efron")
        return terms.sum() - linear


def _linear_part(theta: Float[Array, " K"], data: SurvivalData, counts: Float[Array, "G L"]) -> Float[Array, ""]:
    """Return the sum of the linear predictors of all events."""
    of_events = jnp.tensordot(counts * data.event, data.x, 2, precision=jax.lax.Precision.HIGHEST)
    return sum((of_events[k] * theta[k] for k in range(1, len(theta))), of_events[0] * theta[0])


def _sums_since_start(same: Float[Array, " J"], values: Float[Array, " J"]) -> Float[Array, " J"]:
    """Return the cumulative sums since the last item where `same` is zero."""
    totals = jnp.cumsum(values)
    start = jax.lax.cummax(jnp.where(same == 0, jnp.arange(len(values)), 0))
    return totals - jnp.where(start > 0, totals[jnp.maximum(start - 1, 0)], 0.0)


def _sums_of_groups(same: Float[Array, " J"], values: Float[Array, " J"]) -> Float[Array, " J"]:
    """Return the sum over the group of every item. The first item of a group is where `same` is zero."""
    group = jnp.cumsum((same == 0).astype(int)) - 1
    return jax.ops.segment_sum(values, group, len(values), indices_are_sorted=True)[group]


def _parts(data: PyTree[np.ndarray]) -> tuple[Any, ...]:
    """Return X, time, event, entry and strata, None for those that are missing."""
    if not isinstance(data, tuple | list) or not 3 <= len(data) <= 5:
        raise TypeError("data must be (X, time, event), followed by entry and strata if needed, for Cox.")
    x, time, event, *rest = data
    if x is None or time is None or event is None or x.ndim != 2 or not x.shape[1]:
        raise ValueError("X must have two dimensions, (observations, parameters), for Cox.")
    return x, time, event, *rest, *(None,) * (2 - len(rest))


def _sorted_items(
    x: np.ndarray, time: np.ndarray, event: np.ndarray, entry: np.ndarray | None, strata: np.ndarray | None
) -> SurvivalData:
    """Return the items in the order of the pass: by stratum, by decreasing time, and within blocks of equal length."""
    n = len(time)
    rows, times, sign, is_event = (np.asarray(values) for values in (range(n), time, np.ones(n), event))
    labels = np.zeros(n, int) if strata is None else strata
    if entry is not None and (entry > 0).any():
        rows, times = np.tile(rows, 2), np.concatenate([time, entry])
        sign, is_event = np.repeat([1.0, -1.0], n), np.concatenate([event, np.zeros(n)])
        labels = np.tile(labels, 2)
    order = np.lexsort((-times, labels))
    rows, times, sign, is_event, labels = (values[order] for values in (rows, times, sign, is_event, labels))
    new_stratum = np.diff(labels, prepend=-1) != 0
    new_time = new_stratum | (np.diff(times, prepend=np.nan) != 0)
    group = np.cumsum(new_time) - 1
    has_event = np.bincount(group, is_event) > 0
    is_last = np.append(new_time[1:], True) & has_event[group]
    fill = -len(rows) % CONFIG.block_length

    def in_blocks(values: np.ndarray, padding: float | bool) -> np.ndarray:
        padded = np.concatenate([values, np.full((fill, *values.shape[1:]), padding, values.dtype)])
        return padded.reshape(-1, CONFIG.block_length, *values.shape[1:])

    same_time, same_stratum = in_blocks(1.0 - new_time, 1.0), in_blocks(1.0 - new_stratum, 1.0)
    return SurvivalData(
        in_blocks(x[rows], 0.0),
        in_blocks(rows, False),
        in_blocks(sign, 0.0),
        in_blocks(is_event, 0.0),
        same_time,
        same_stratum,
        in_blocks(is_last, False),
        _not_after(same_stratum),
        _not_after(same_time),
    )


def _not_after(same: Float[np.ndarray, "G L"]) -> Float[np.ndarray, "G L L"]:
    """Return which items of a block belong to the group of another item, and are not after it."""
    group = np.cumsum(same == 0, 1)
    return np.tril(group[:, :, None] == group[:, None]).astype(np.float64)


def _add_block(
    sums: _Sums, data: SurvivalData, counts: Float[Array, " L"], thetas: Array | list[Array], efron: bool
) -> _Sums:
    """Add a block of items to the sums, and the terms of its event times to the risk."""
    predictor = _predictor(data.x, thetas)
    counted = (data.sign > 0) & (counts > 0)
    # The risk does not depend on this constant. The barriers keep XLA from computing values again for every result.
    largest = jnp.maximum(sums.largest, jnp.max(jnp.where(counted, predictor, sums.largest)))
    largest = jax.lax.stop_gradient(_barrier(largest))
    scale = jnp.exp(sums.largest - largest)
    exponent = jnp.maximum(jnp.where(counts > 0, predictor - largest, 0.0), CONFIG.min_exponent)
    hazard = _barrier(counts * jnp.exp(exponent))
    carried, error = sums.hazard[0] * scale, sums.hazard[1] * scale
    partial = _products(data.since_stratum, data.sign * hazard)
    # 1 up to the end of the stratum, and of the time, with which the block begins.
    kept, same_time = jnp.cumprod(data.same_stratum), jnp.cumprod(data.same_time)
    total = kept * carried + (kept * error + partial)
    event_hazard = same_time * (sums.event_hazard * scale) + _products(data.since_time, data.event * hazard)
    at_risk = kept * sums.at_risk + _products(data.since_stratum, data.sign * counts)
    n_events = same_time * sums.n_events + _products(data.since_time, data.event * counts)
    evaluated = data.is_last & (n_events > 0)
    added = _barrier(_terms(evaluated, (total, event_hazard, n_events, at_risk), largest, efron).sum())
    hazard_sum = _add(kept[-1] * carried, kept[-1] * error, partial[-1])
    return _Sums(largest, hazard_sum, event_hazard[-1], _add(*sums.risk, added), at_risk[-1], n_events[-1])


def _predictor(x: Float[Array | np.ndarray, "L K"], thetas: Array | list[Array]) -> Float[Array, " L"]:
    if not isinstance(thetas, list):
        return jnp.matmul(x, thetas, precision=jax.lax.Precision.HIGHEST)
    columns = jnp.asarray(x)
    return sum((columns[:, k] * thetas[k] for k in range(1, len(thetas))), columns[:, 0] * thetas[0])


def _products(matrix: Float[Array | np.ndarray, "L L"], values: Float[Array | np.ndarray, " L"]) -> Float[Array, " L"]:
    return jnp.matmul(matrix, values, precision=jax.lax.Precision.HIGHEST)


def _terms(
    evaluated: Array | np.ndarray, sums: tuple[Array, Array, Array, Array], largest: Array, efron: bool
) -> Array:
    """Return the terms of event times, relative to those of parameters of zero up to a constant; zero elsewhere.

    `sums` are the sum of the hazards at risk, that of the events, and the numbers of events and at risk. Hazards far
    below the largest so far may have been rounded to zero; they are replaced by the smallest hazard.
    """
    total, event_hazard, n_events, at_risk = (jnp.where(evaluated, value, 1.0) for value in sums)
    return jnp.where(evaluated, _term(total, event_hazard, n_events, at_risk, largest, efron), 0.0)


def _term(total: Array, event_hazard: Array, n_events: Array, at_risk: Array, largest: Array, efron: bool) -> Array:
    smallest = math.exp(CONFIG.min_exponent)
    total = jnp.maximum(total, smallest)
    if not efron:
        return n_events * (jnp.log(total / at_risk) + largest)
    mean = jnp.maximum(event_hazard / n_events, jnp.maximum(smallest, jnp.finfo(total.dtype).eps * total))
    # Scaled first: the derivative of a quotient contains the square of its denominator.
    scale = jax.lax.stop_gradient(1 / total)
    # At least as many are at risk as have events, but for rounding errors.
    first = jnp.maximum((total * scale) / (mean * scale) - n_events, 0.0) + 1
    z, end = first + CONFIG.shift, first + (CONFIG.shift + n_events)
    ratio = jnp.ones_like(first)
    for j in range(CONFIG.shift):
        ratio = ratio * ((first + (j + n_events)) / (first + j))
    value = n_events * (jnp.log((total + (CONFIG.shift + 1) * mean) / at_risk) + largest)
    stirling = (z - 0.5) * jnp.log1p(n_events / z) - n_events + (_remainder(end) - _remainder(z))
    return value + (stirling - jnp.log(ratio))


def _remainder(z: Array) -> Array:
    """Return the logarithm of the gamma function minus the leading terms of Stirling's series."""
    inverse = 1 / z
    square, total = inverse * inverse, jnp.zeros_like(z)
    for coefficient in reversed(_STIRLING):
        total = total * square + coefficient
    return total * inverse


def _add(total: Array, error: Array, value: Array) -> tuple[Array, Array]:
    """Add a value to a sum with its rounding error (Knuth's two-sum)."""
    new = total + value
    virtual = new - total
    return new, error + ((total - (new - virtual)) + (value - virtual))


def _barrier(values: Array) -> Array:
    return jax.lax.optimization_barrier(values)
