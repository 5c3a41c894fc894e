"""Names and settings of the head-to-head. This module imports nothing but the standard library."""

from pathlib import Path

LEVEL = 0.95
REPLICATES = 250
"""Number of bootstrap replicates of calibayes: their error hardly changes a coverage over data sets."""
UNIT_DATASETS = 200
"""Number of data sets for which the posterior at learning rate one is stored."""
SLOPE = 1
"""Index of the parameter that is compared."""

LOSSES = ("median", "squared", "tau 0.9", "huber", "logistic", "hinge")
CLASSIFIERS = ("logistic", "hinge")
NORMAL, SKEWED, HETEROSCEDASTIC, T3, OUTLIERS, CLUSTERS, AR1 = DESIGNS = (
    "normal",
    "skewed regressor",
    "heteroscedastic",
    "t3",
    "outliers",
    "clusters",
    "AR(1)",
)
SIZES = (50, 100, 400)
WIDE, WIDE_SIZE = "squared K 4", 400
"""Least squares with four parameters and heteroscedastic errors, for the shape of the posterior; its size."""

OURS, PYTHON, R = SOURCES = ("calibayes", "python", "r")
"""Programs that store results, each in files of its own."""
UNIT, SANDWICH = "eta 1", "sandwich, "
"""Name of the posterior at learning rate one, and prefix of methods with the shape of the sandwich."""

FOLDER = Path("head_to_head")
"""Folder of the results within `results/`."""


def is_joint(loss: str, design: str, n: int) -> bool:
    """Return whether joint sets are stored besides the interval of the slope."""
    return loss in ("median", "squared") and design in (SKEWED, HETEROSCEDASTIC) and n < SIZES[-1]


def block_length(n: int) -> int:
    """Return the length of blocks of a series, 2 n^(1/3) as for an AR(1) with moderate correlation."""
    return round(2 * n ** (1 / 3))
