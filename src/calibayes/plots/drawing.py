"""Helpers of the plots: axes, styles, labels and points."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from calibayes._backend.functions import as_float
from calibayes._core.convergence import pareto_k, pareto_k_limit
from calibayes._core.target import Target
from calibayes.losses import Absolute, LinearLoss, Poisson, Quantile, Squared
from calibayes.result import Result
from calibayes.result.intervals import percent
from calibayes.samplers.transport import config
from calibayes.samplers.transport.maps import transport_and_weight
from calibayes.samplers.transport.sampler import TransportState

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
else:
    # matplotlib is an optional dependency, so that its types are not available at run time.
    Axes = Any

Parameter = str | int | np.integer
"""Name or index of a parameter."""

CALIBRATED, COMPARED, NEUTRAL = "#20639b", "#dd8047", "#333333"
"""Colours of the calibrated posterior, of the posterior that it is compared with, and of everything else."""


@dataclass(frozen=True)
class PlotConfig:
    """Layout of the plots; display choices."""

    width: float = 5.0
    """Width of a new figure in inches, which is readable in a notebook. For a column of a journal, pass axes."""
    height: float = 3.3
    """Height of a new figure in inches."""
    wide: float = 7.5
    """Width of a new figure with several panels in inches."""
    font_size: int = 9
    """Font size of a new figure in points."""
    max_pairs: int = 8
    """Number of parameters that `pairs` draws at most, so that its panels stay readable."""
    n_density: int = 200
    """Bins of a density estimate in one dimension."""
    n_contour: int = 120
    """Bins per axis of a density estimate in two dimensions."""
    n_fit: int = 100
    """Points at which `fit` evaluates the prediction."""


CONFIG = PlotConfig()

_LEGEND: dict[str, Any] = {"frameon": False, "handlelength": 1.4, "handletextpad": 0.5, "borderaxespad": 0.2}


def draw_replicates(
    ax: Axes, x: np.ndarray, y: np.ndarray, flagged: Bool[np.ndarray, " B"], labels: tuple[str, str]
) -> None:
    """Draw one point per replicate, and a cross for each flagged one."""
    styles: tuple[dict[str, Any], dict[str, Any]] = (
        {"marker": "o", "ms": 2.5, "mew": 0, "alpha": 0.5, "color": CALIBRATED},
        {"marker": "x", "ms": 4, "color": COMPARED},
    )
    for label, chosen, style in zip(labels, (~flagged, flagged), styles, strict=True):
        if chosen.any():
            ax.plot(x[chosen], y[chosen], ls="", clip_on=False, label=f"{label} ({chosen.sum():,})", **style)


def draw_importance_weights(ax: Axes, target: Target, state: TransportState) -> None:
    """Draw effective sample size and Pareto shape of the importance weights of every replicate."""
    # Replicates that were sampled again by SMC keep their affine maps, which give the original, degenerate weights.
    particles, _ = transport_and_weight(target, state.whitened, state.transported.maps, as_float(state.eta))
    k_hat, n_particles = pareto_k(particles.log_weights)[1:], particles.risk.shape[-1]
    limit, finite = pareto_k_limit(n_particles), k_hat[np.isfinite(k_hat)]
    low, high = min([0.0, *finite]) - 0.1, max([1.0, *finite]) + 0.1
    degenerate = config.CONFIG.repair.min_ess(n_particles)
    reliable = config.CONFIG.fit.good_ess * n_particles
    ax.fill_between([0, degenerate], low, high, color=NEUTRAL, alpha=0.1, lw=0)
    ax.fill_between([degenerate, reliable], limit, high, color=NEUTRAL, alpha=0.1, lw=0)
    ess = np.asarray(state.transported.ess)[1:]
    draw_replicates(ax, ess, np.clip(k_hat, low, high), state.repaired[1:], ("reliable weights", "repaired"))
    xlabel = f"effective sample size of {n_particles:,} particles"
    ax.set(xlabel=xlabel, ylabel=r"Pareto shape $\hat{k}$", xlim=(0, n_particles), ylim=(low, high))


def fitted_label(loss: LinearLoss) -> str:
    """Return the name of the quantity that a linear model with this loss predicts."""
    if isinstance(loss, Quantile) and float(loss.tau) != 0.5:
        return f"fitted {percent(float(loss.tau))} quantile"
    names = {Quantile: "fitted median", Absolute: "fitted median", Squared: "fitted mean", Poisson: "fitted mean"}
    return names.get(type(loss), "fit")


def response_label(result: Result, is_classifier: bool) -> str:
    """Return the name of the response, or, for a classifier, that of its score with the labels of the classes."""
    target = result.settings.get("target") or "y"
    if not is_classifier:
        return str(target)
    labels = result.settings.get("classes") or ["−1", "1"]
    return f"score of {target} ({labels[0]} at −1, {labels[1]} at 1)"


def parameter_index(result: Result, parameter: Parameter) -> int:
    """Return the index of a parameter from its name or index."""
    if isinstance(parameter, str) and parameter in result.names:
        return result.names.index(parameter)
    if isinstance(parameter, int | np.integer) and 0 <= parameter < len(result.names):
        return int(parameter)
    raise ValueError(
        f"there is no parameter {parameter!r}. Use one of {', '.join(result.names)}, or an index from 0 to "
        f"{len(result.names) - 1}."
    )


def varying_column(result: Result, matrix: np.ndarray, x: Parameter | None) -> int:
    """Return the index of column `x`, or of the only column that varies if it is None."""
    varies = np.ptp(matrix, axis=0) > 0
    if x is None:
        if varies.sum() != 1:
            names = ", ".join(result.names[k] for k in np.flatnonzero(varies))
            raise ValueError(f"x must be a column of X that varies; choose one of: {names or 'none'}.")
        return int(np.argmax(varies))
    k = parameter_index(result, x)
    if not varies[k]:
        raise ValueError(f"x must be a column of X that varies; {result.names[k]} is constant.")
    return k


def mark_eta(
    line: Callable[..., Any], span: Callable[..., Any], eta: float, error: float, limits: tuple[float, float]
) -> None:
    """Draw a line at eta and a band of one standard error on either side, clipped to the limits of the axis."""
    line(eta, color=CALIBRATED, lw=0.9, ls="--")
    span(*np.clip([eta - error, eta + error], *limits), color=CALIBRATED, alpha=0.1, lw=0)


def annotate_eta(ax: Axes, result: Result, eta: float, error: float) -> None:
    """Write eta beside its line: the decreasing curve leaves room at the lower left and at the upper right."""
    etas = result.curve.etas
    left = eta > 0.95 * np.sqrt(etas[0] * etas[-1])
    ax.annotate(
        f"η = {eta:.4g} ± {error:.2g}" + ("" if result.converged else "\nnot converged"),
        (eta, 0.04 if left else 0.96),
        (-6 if left else 6, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right" if left else "left",
        va="bottom" if left else "top",
        color=CALIBRATED,
        fontsize="small",
    )


def pyplot() -> Any:
    """Import `matplotlib.pyplot`, or raise an error that names the extra to install."""
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'calibayes[plots]'.") from error
    return matplotlib.pyplot


def open_axes(ax: Axes | None, height: float = CONFIG.height) -> tuple[Axes, int | None]:
    """Return the axes to draw on, and the font size of new ones; None if they are the caller's."""
    if ax is None:
        return pyplot().subplots(figsize=(CONFIG.width, height), layout="constrained")[1], CONFIG.font_size
    if not hasattr(ax, "get_subplotspec"):
        raise TypeError(f"ax must be one matplotlib Axes; got {type(ax).__name__}.")
    return ax, None


def split_axes(ax: Axes) -> Axes:
    """Shrink axes to the upper half of their place, and return new ones in the lower half."""
    spec, figure = ax.get_subplotspec(), ax.figure
    if spec is None:
        box = ax.get_position()
        half = 0.46 * box.height
        ax.set_position((box.x0, box.y1 - half, box.width, half))
        lower_ax = figure.add_axes((box.x0, box.y0, box.width, half), sharex=ax)
    else:
        halves = spec.subgridspec(2, 1, hspace=0.1)
        ax.set_subplotspec(halves[0])
        lower_ax = figure.add_subplot(halves[1], sharex=ax)
    figure.sca(ax)
    return lower_ax


def tidy(ax: Axes, font_size: int | None) -> None:
    """Remove the upper and right spine, and set all fonts to `font_size` unless it is None."""
    from matplotlib.text import Text

    ax.spines[["top", "right"]].set_visible(False)
    if font_size is not None:
        ax.tick_params(labelsize=font_size)
        for text in ax.findobj(Text):
            text.set_fontsize(font_size)


def set_log_scale(ax: Axes, axis_name: str, values: Float[np.ndarray, " G"]) -> None:
    """Make the x or y axis logarithmic around the values, with plain tick labels also within one decade."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    low, high = values.min(), values.max()
    margin = max(1.04, float(high / low) ** 0.05)
    ax.set(**{f"{axis_name}scale": "log", f"{axis_name}lim": (low / margin, high * margin)})
    axis = getattr(ax, f"{axis_name}axis")
    if high > 10 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    else:
        n_ticks = 6 if axis_name == "x" else 4
        axis.set_major_locator(MaxNLocator(n_ticks, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def add_legend(ax: Axes, font_size: int | None) -> None:
    """Add a legend above the axes, where it covers no data."""
    size: int | str = "small" if font_size is None else font_size
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, columnspacing=1.0, fontsize=size, **_LEGEND)


def add_figure_legend(ax: Axes, font_size: int) -> None:
    """Add the legend of `ax` at the upper right of its figure."""
    ax.figure.legend(*ax.get_legend_handles_labels(), loc="upper right", fontsize=font_size, **_LEGEND)
