r"""Causal effects by orthogonal scores, with cross-fitted nuisance functions from scikit-learn.

An orthogonal score has an expectation whose derivative in the nuisance functions is zero, so that their errors change
the estimate only to second order (Chernozhukov et al. 2018). With the nuisance functions fitted to other folds of the
data, an observation's score can be treated like an observation: `average_treatment_effect` and `partially_linear`
return data `(X, y)` for the model `GibbsModel(losses.Squared(), prior)`, whose calibrated interval has the width of the
usual interval.

References
----------
Chernozhukov et al. (2018), Double/debiased machine learning for treatment and structural parameters, Econometrics
Journal 21, C1-C68.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from calibayes._backend.arguments import display, integer

__all__ = ["average_treatment_effect", "partially_linear"]


def average_treatment_effect(
    X: object,
    treatment: object,
    y: object,
    *,
    outcome: object,
    propensity: object,
    n_folds: int = 5,
    clip: float = 0.01,
    groups: object = None,
    seed: int = 0,
) -> tuple[Float[np.ndarray, "N 1"], Float[np.ndarray, " N"]]:
    r"""Return the data whose mean is the average treatment effect, by augmented inverse probability weighting.

    Parameters
    ----------
    X : array_like of shape (N, P)
        Covariates that the treatment may depend on.
    treatment : array_like of shape (N,)
        1 for treated observations, 0 for others.
    y : array_like of shape (N,)
        Outcome.
    outcome : regressor
        scikit-learn estimator of the mean outcome given X; fitted to treated and untreated observations separately.
    propensity : classifier
        scikit-learn estimator of the probability of the treatment given X, with `predict_proba`.
    n_folds : int
        Number of folds. Predictions for a fold come from estimators fitted to the others. Default: 5.
    clip : float
        Smallest probability of either treatment; smaller estimates are replaced by it. Default: 0.01.
    groups : array_like of shape (N,), optional
        Clusters, which are not split between folds. Default: independent observations.
    seed : int
        Seed of the random folds. Default: 0.

    Returns
    -------
    X : ndarray of shape (N, 1)
        Ones.
    y : ndarray of shape (N,)
        Scores, whose mean is the estimated effect.

    Raises
    ------
    ValueError
        If the treatment is not 0 or 1, or a fold leaves no treated or no untreated observation.

    Notes
    -----
    With the mean outcomes $\mu_1, \mu_0$ and the probability e of the treatment the score is

    $$ \mu_1(x) - \mu_0(x) + \frac{d\,(y - \mu_1(x))}{e(x)} - \frac{(1 - d)\,(y - \mu_0(x))}{1 - e(x)}. $$

    Examples
    --------
    >>> import numpy as np
    >>> import calibayes as cb
    >>> from sklearn.linear_model import LinearRegression, LogisticRegression
    >>> from calibayes.causal import average_treatment_effect
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> d = rng.uniform(size=200) < 1 / (1 + np.exp(-X[:, 0]))
    >>> y = X[:, 0] + d + rng.normal(size=200)
    >>> data = average_treatment_effect(X, d, y, outcome=LinearRegression(), propensity=LogisticRegression())
    >>> model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=10.0))
    >>> result = cb.calibrate(model, data, names=["effect"])  # doctest: +SKIP
    """
    columns, d, response = _checked(X, treatment, y)
    if not np.isin(d, (0, 1)).all():
        raise ValueError(f"treatment must be 0 or 1; got {np.unique(d)[:5].tolist()}.")
    if not 0 < clip < 0.5:
        raise ValueError(f"clip must be between 0 and 0.5; got {display(clip)}.")
    means, probability = np.empty((2, len(d))), np.empty(len(d))
    for train, test in _folds(len(d), n_folds, groups, seed):
        for label in (0, 1):
            chosen = train[d[train] == label]
            if not len(chosen):
                raise ValueError(
                    f"treatment is {1 - label} for all observations outside of a fold: use fewer folds (n_folds=)."
                )
            means[label, test] = _fitted(outcome, columns[chosen], response[chosen]).predict(columns[test])
        probability[test] = _fitted(propensity, columns[train], d[train]).predict_proba(columns[test])[:, 1]
    probability = np.clip(probability, clip, 1 - clip)
    treated = d * (response - means[1]) / probability
    untreated = (1 - d) * (response - means[0]) / (1 - probability)
    return np.ones((len(d), 1)), means[1] - means[0] + treated - untreated


def partially_linear(
    X: object,
    treatment: object,
    y: object,
    *,
    outcome: object,
    exposure: object,
    n_folds: int = 5,
    groups: object = None,
    seed: int = 0,
) -> tuple[Float[np.ndarray, "N 1"], Float[np.ndarray, " N"]]:
    r"""Return the data whose regression through the origin has the effect of a treatment as its slope.

    The model is $y = \theta d + g(x) + \varepsilon$ with any function g. The returned data are the residuals of d and
    of y given x (partialling out).

    Parameters
    ----------
    X : array_like of shape (N, P)
        Covariates.
    treatment : array_like of shape (N,)
        Treatment, a real number.
    y : array_like of shape (N,)
        Outcome.
    outcome : regressor
        scikit-learn estimator of the mean of y given X.
    exposure : regressor
        scikit-learn estimator of the mean of the treatment given X.
    n_folds, groups, seed
        As for `average_treatment_effect`.

    Returns
    -------
    X : ndarray of shape (N, 1)
        Residuals of the treatment.
    y : ndarray of shape (N,)
        Residuals of the outcome.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> from calibayes.causal import partially_linear
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> d = X[:, 0] + rng.normal(size=200)
    >>> learners = {"outcome": LinearRegression(), "exposure": LinearRegression()}
    >>> residual_d, residual_y = partially_linear(X, d, X[:, 0] + 0.5 * d, **learners)
    >>> round(float(residual_d[:, 0] @ residual_y / np.sum(residual_d**2)), 3)
    0.5
    """
    columns, d, response = _checked(X, treatment, y)
    residuals = np.empty((2, len(d)))
    for train, test in _folds(len(d), n_folds, groups, seed):
        for residual, learner, values in zip(residuals, (exposure, outcome), (d, response), strict=True):
            residual[test] = values[test] - _fitted(learner, columns[train], values[train]).predict(columns[test])
    return residuals[0][:, None], residuals[1]


def _checked(X: object, treatment: object, y: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    columns, d, response = (np.asarray(values, np.float64) for values in (X, treatment, y))
    if columns.ndim != 2 or d.shape != (len(columns),) or response.shape != (len(columns),):
        raise ValueError(
            "X must have two dimensions, and treatment and y one number per row of X; got shapes "
            f"{columns.shape}, {d.shape} and {response.shape}."
        )
    for name, values in (("X", columns), ("treatment", d), ("y", response)):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} must be finite; {int((~np.isfinite(values)).sum())} values are not.")
    return columns, d, response


def _folds(
    n: int, n_folds: int, groups: object, seed: int
) -> Iterator[tuple[Int[np.ndarray, " T"], Int[np.ndarray, " F"]]]:
    """Yield the indices outside and inside of every fold. All observations of a group are in one fold."""
    labels = np.arange(n) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    n_groups, n_folds = int(labels.max()) + 1, integer("n_folds", n_folds, 2)
    if labels.shape != (n,) or n_folds > n_groups:
        raise ValueError(f"n_folds must be at most the number of observations or groups, {n_groups}; got {n_folds}.")
    fold = (np.random.default_rng(seed).permutation(n_groups) % n_folds)[labels]
    for k in range(n_folds):
        yield np.flatnonzero(fold != k), np.flatnonzero(fold == k)


def _fitted(learner: object, columns: np.ndarray, values: np.ndarray) -> Any:
    """Return a copy of an estimator, fitted."""
    from sklearn.base import clone

    return clone(learner).fit(columns, values)
