"""Example data sets: the two problems of Tanaka (2024), arXiv:2404.16528, and survival times.

Each function returns the data that a model takes: a design matrix X, whose first column is the intercept, and a
response y; or, for survival times, X without an intercept, times and events.
"""

from importlib import resources

import numpy as np
from jaxtyping import Float

__all__ = [
    "HEART_DISEASE_ALL_PREDICTORS",
    "HEART_DISEASE_PAPER_PREDICTORS",
    "TRUE_THETA",
    "heart_disease",
    "median_regression",
    "remission",
]

HEART_DISEASE_PAPER_PREDICTORS = ("sbp", "tobacco", "ldl", "famhist", "obesity", "alcohol", "age")
"""Predictors of the heart disease data in Tanaka (2024)."""

HEART_DISEASE_ALL_PREDICTORS = ("sbp", "tobacco", "ldl", "adiposity", "famhist", "typea", "obesity", "alcohol", "age")
"""All predictors of the heart disease data."""

TRUE_THETA = (2.0, 1.0)
"""True intercept and slope of `median_regression`."""


def median_regression(n: int = 100, seed: int = 0) -> tuple[Float[np.ndarray, "N 2"], Float[np.ndarray, " N"]]:
    r"""Simulate the median regression data of Tanaka (2024, section 3.1).

    Parameters
    ----------
    n : int
        Number of observations. Default: 100.
    seed : int
        Seed of the random numbers. Default: 0.

    Returns
    -------
    X : ndarray of shape (n, 2)
        Intercept and predictor.
    y : ndarray of shape (n,)
        Response.

    Notes
    -----
    $y = 2 + x + \varepsilon$, with $x + 2 \sim \chi^2_4$ and $\varepsilon \sim N(0, 1)$. The true parameters are in
    `TRUE_THETA`.

    Examples
    --------
    >>> import calibayes as cb
    >>> X, y = cb.datasets.median_regression(n=100, seed=0)
    >>> X.shape, y.shape
    ((100, 2), (100,))
    """
    if n < 1:
        raise ValueError(f"n must be at least 1; got {n}.")
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.chisquare(4, n) - 2])
    return x, x @ np.array(TRUE_THETA) + rng.normal(size=n)


def heart_disease(
    predictors: tuple[str, ...] | str = "paper", centre: bool = True
) -> tuple[Float[np.ndarray, "N K"], Float[np.ndarray, " N"]]:
    """Load the South African heart disease data (Tanaka 2024, section 3.2).

    Parameters
    ----------
    predictors : str or tuple of str
        `"paper"` for the seven predictors of Tanaka (2024), `"all"` for all nine, or the names of the predictors.
        Default: "paper".
    centre : bool
        Whether to subtract the means of the predictors. They are divided by their standard deviations in any case.
        Default: True.

    Returns
    -------
    X : ndarray of shape (462, K)
        Intercept and predictors.
    y : ndarray of shape (462,)
        Coronary heart disease: 1 for the 160 cases, -1 for the controls.

    Raises
    ------
    ValueError
        If a predictor is unknown.

    References
    ----------
    Rousseauw et al. (1983), Coronary risk factor screening in three rural communities, South African Medical Journal
    64. The sample of 462 men is published with Hastie, Tibshirani and Friedman, The Elements of Statistical Learning,
    whose section 4.4.2 uses the seven predictors.

    Examples
    --------
    >>> import calibayes as cb
    >>> X, y = cb.datasets.heart_disease()
    >>> X.shape, int((y == 1).sum())
    ((462, 8), 160)
    """
    by_name = {"paper": HEART_DISEASE_PAPER_PREDICTORS, "all": HEART_DISEASE_ALL_PREDICTORS}
    selected = by_name.get(predictors) if isinstance(predictors, str) else predictors
    if selected is None or not set(selected) <= set(HEART_DISEASE_ALL_PREDICTORS):
        raise ValueError(
            f"predictors must be 'paper', 'all' or names among {', '.join(HEART_DISEASE_ALL_PREDICTORS)}; "
            f"got {predictors!r}."
        )
    with resources.files(__package__).joinpath("heart_disease.csv").open() as file:
        header = file.readline().strip().split(",")
        table = np.loadtxt(file, delimiter=",")
    raw = table[:, [header.index(name) for name in selected]]
    x = (raw - raw.mean(0) if centre else raw) / raw.std(0, ddof=1)
    return np.column_stack([np.ones(len(x)), x]), 2 * table[:, header.index("chd")] - 1


def remission() -> tuple[Float[np.ndarray, "42 2"], Float[np.ndarray, " 42"], Float[np.ndarray, " 42"]]:
    """Load times to relapse of 42 children with leukemia in remission, in a trial of 6-mercaptopurine.

    Returns
    -------
    X : ndarray of shape (42, 2)
        Treatment (1 for placebo, 0 for 6-mercaptopurine), and the logarithm of the white blood cell count.
    time : ndarray of shape (42,)
        Weeks in remission.
    event : ndarray of shape (42,)
        1 if the time is that of a relapse, 0 if it is censored.

    References
    ----------
    Freireich et al. (1963), The effect of 6-mercaptopurine on the duration of steroid-induced remissions in acute
    leukemia, Blood 21, 699-716. Cox (1972) analysed these times. The white blood cell counts are published with
    Kleinbaum and Klein, Survival Analysis: A Self-Learning Text.

    Examples
    --------
    >>> import calibayes as cb
    >>> X, time, event = cb.datasets.remission()
    >>> X.shape, int(event.sum())
    ((42, 2), 30)
    """
    with resources.files(__package__).joinpath("remission.csv").open() as file:
        header = file.readline().strip().split(",")
        table = dict(zip(header, np.loadtxt(file, delimiter=",").T, strict=True))
    return np.column_stack([table["placebo"], table["log_wbc"]]), table["weeks"], table["relapse"]
