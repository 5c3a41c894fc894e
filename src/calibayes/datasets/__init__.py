"""The paper's two problems, each an `(X, y)` pair with the intercept first."""

from importlib import resources

import numpy as np
from jaxtyping import Float

PAPER_PREDICTORS = ("sbp", "tobacco", "ldl", "famhist", "obesity", "alcohol", "age")
ALL_PREDICTORS = ("sbp", "tobacco", "ldl", "adiposity", "famhist", "typea", "obesity", "alcohol", "age")

TRUE_THETA = (2.0, 1.0)
"""The parameters behind `median_regression`."""


def median_regression(n: int = 100, seed: int = 0) -> tuple[Float[np.ndarray, "N 2"], Float[np.ndarray, " N"]]:
    """The paper's synthetic data: `y = 2 + x + e`, with `x + 2` chi-squared (4) and `e` standard normal."""
    if n < 1:
        raise ValueError(f"n must be at least 1; got {n}.")
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.chisquare(4, n) - 2])
    return x, x @ np.array(TRUE_THETA) + rng.normal(size=n)


def heart_disease(
    predictors: tuple[str, ...] | str = "paper", centre: bool = True
) -> tuple[Float[np.ndarray, "N K"], Float[np.ndarray, " N"]]:
    """South African heart disease: 462 men, 160 cases, labels -1 and 1, predictors standardised.

    Rousseauw et al., South African Medical Journal 64 (1983); a sample published with Hastie, Tibshirani and
    Friedman, The Elements of Statistical Learning. `predictors` is `"paper"` for the seven of section 4.4.2 there,
    `"all"` for the nine, or their names. Without `centre` they are scaled, but keep their means.
    """
    chosen = (
        {"paper": PAPER_PREDICTORS, "all": ALL_PREDICTORS}.get(predictors)
        if isinstance(predictors, str)
        else predictors
    )
    if chosen is None or not set(chosen) <= set(ALL_PREDICTORS):
        raise ValueError(
            f"predictors must be 'paper', 'all' or names among {', '.join(ALL_PREDICTORS)}; got {predictors!r}."
        )
    with resources.files(__package__).joinpath("heart_disease.csv").open() as file:
        header = file.readline().strip().split(",")
        table = np.loadtxt(file, delimiter=",")
    raw = table[:, [header.index(name) for name in chosen]]
    x = (raw - raw.mean(0) if centre else raw) / raw.std(0, ddof=1)
    return np.column_stack([np.ones(len(x)), x]), 2 * table[:, header.index("chd")] - 1
