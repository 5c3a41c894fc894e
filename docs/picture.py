"""Draw the picture of the README (`make picture`): the coverage curve, and intervals before and after calibration."""

import matplotlib.pyplot as plt
import numpy as np

import calibayes as cb
from calibayes.cli.demo import calibrate_example, uncalibrated_coverage, uncalibrated_intervals

BEFORE, AFTER, INK = "#b0563a", "#20639b", "#333333"


def main(path: str = "docs/picture.png") -> None:
    result = calibrate_example()
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.1), width_ratios=[1.25, 1], layout="constrained")
    draw_coverage(left, result)
    draw_intervals(right, result)
    # The numbers of the picture, which a test compares with those of the text.
    low, high = result.intervals().bounds[1]
    numbers = f"eta {result.eta:.4g} (standard error {result.eta_se:.2g}), slope from {low:.3f} to {high:.3f}"
    figure.savefig(path, dpi=160, metadata={"Description": numbers})


def draw_coverage(axes: plt.Axes, result: cb.Result) -> None:
    curve = result.curve
    axes.fill_between(curve.etas, *curve.band().T, color=AFTER, alpha=0.15, lw=0)
    axes.plot(curve.etas, curve.coverage(), color=AFTER, lw=1.5)
    axes.axhline(result.level, color=INK, lw=0.8, ls=":")
    axes.axvspan(result.eta - result.eta_se, result.eta + result.eta_se, color=AFTER, alpha=0.12, lw=0)
    axes.plot(result.eta, result.level, "o", color=AFTER, ms=7)
    axes.annotate(
        f"$\\hat\\eta$ = {result.eta:.2f} ± {result.eta_se:.2f}",
        (result.eta, result.level),
        (8, 12),
        textcoords="offset points",
        color=AFTER,
    )
    before = float(uncalibrated_coverage(result))
    axes.plot(1.0, before, "o", color=BEFORE, ms=7)
    axes.annotate("$\\eta$ = 1", (1.0, before), (0, -34), textcoords="offset points", color=BEFORE, ha="center")
    axes.set(xlabel="learning rate", ylabel="coverage of 95% sets", ylim=(0.85, 1.005), xlim=(0.85, 2.15))


def draw_intervals(axes: plt.Axes, result: cb.Result) -> None:
    names = result.names
    for intervals, color, shift, label in (
        (uncalibrated_intervals(result), BEFORE, 0.12, "uncalibrated, $\\eta$ = 1"),
        (result.intervals().bounds, AFTER, -0.12, "calibrated"),
    ):
        centred = intervals - np.array(cb.datasets.TRUE_THETA)[:, None]
        for k, (low, high) in enumerate(centred):
            axes.plot(
                [low, high], [k + shift] * 2, color=color, lw=5, solid_capstyle="round", label=label if k == 0 else None
            )
    axes.axvline(0, color=INK, lw=0.8, ls=":")
    axes.set(
        yticks=range(len(names)),
        yticklabels=names,
        ylim=(-0.5, len(names) - 0.1),
        xlabel="95% interval minus true value",
    )
    axes.legend(frameon=False, loc="lower center", ncols=2, fontsize=8.5, bbox_to_anchor=(0.45, 0.98))


if __name__ == "__main__":
    main()
