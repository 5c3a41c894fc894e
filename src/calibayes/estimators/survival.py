"""Survival analysis: Cox's proportional hazards model."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.utils.validation import check_is_fitted, validate_data

from calibayes import losses
from calibayes.design import Design
from calibayes.estimators.base import LinearEstimator, require_numeric
from calibayes.result import Result
from calibayes.survival import calibrate_survival


class CoxPHSurvivalAnalysis(LinearEstimator):
    """Cox's proportional hazards model with calibrated credible intervals, named as in scikit-survival.

    The intervals are robust to misspecification, such as hazards that are not proportional.

    Parameters
    ----------
    ties : {"efron", "breslow"}
        Approximation for tied event times. Default: "efron".
    level : float
        Credible level of the intervals. Default: 0.95.
    region : str or Region
        Joint credible region that `eta_` calibrates. Default: "hpd".
    method : str or Method
        How the learning rate is set, as in `calibayes.calibrate`. Default: "gpc".
    shape : str, optional
        "sandwich" gives the posterior the shape of the sandwich covariance, as in `calibayes.calibrate`. Default: None.
    prior : Prior, optional
        Prior of the coefficients. Default: independent normal distributions with a standard deviation of ten divided by
        the standard deviation of the column.
    bootstrap : int, Bootstrap or ndarray, optional
        Bootstrap replicates, as in `calibayes.calibrate`.
    sampler : str or Sampler
        Sampler, as in `calibayes.calibrate`. Default: "auto".
    random_state : int, RandomState, Generator or None
        Seed. Default: 0, which makes repeated fits identical.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Posterior mean of the coefficients (log hazard ratios) at `eta_`.
    coef_interval_ : ndarray of shape (n_features, 2)
        Credible interval of each coefficient at `level`, calibrated at its own learning rate. Computed at the first
        access.
    coef_eta_ : ndarray of shape (n_features,)
        Learning rate at which each coefficient's interval is calibrated.
    eta_ : float
        Learning rate at which the joint credible region is calibrated.
    result_ : Result
        The calibration.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, if X was a data frame.

    See Also
    --------
    calibayes.losses.Cox : The risk, which also has left truncation and strata.

    Examples
    --------
    >>> import numpy as np
    >>> import calibayes as cb
    >>> from calibayes.estimators import CoxPHSurvivalAnalysis
    >>> X, time, event = cb.datasets.remission()
    >>> y = np.array(list(zip(event == 1, time)), dtype=[("event", bool), ("time", float)])
    >>> estimator = CoxPHSurvivalAnalysis(bootstrap=100, sampler="transport").fit(X, y)
    >>> estimator.coef_.shape, estimator.coef_interval_.shape
    ((2,), (2, 2))
    """

    fit_intercept = False

    def __init__(
        self,
        ties="efron",
        *,
        level=0.95,
        region="hpd",
        method="gpc",
        shape=None,
        prior=None,
        bootstrap=None,
        sampler="auto",
        random_state=0,
    ):
        self.ties = ties
        self.level = level
        self.region = region
        self.method = method
        self.shape = shape
        self.prior = prior
        self.bootstrap = bootstrap
        self.sampler = sampler
        self.random_state = random_state

    def _loss(self) -> losses.Cox:
        return losses.Cox(self.ties)

    def _calibrator(self, design: Design) -> Callable[..., Result]:
        return partial(calibrate_survival, weights=design.weights)

    def fit(self, X: object, y: object, sample_weight: object = None) -> "CoxPHSurvivalAnalysis":
        """Calibrate the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns, without an intercept.
        y : structured array of shape (n_samples,)
            Event indicator (boolean) in the first field and time in the second, as for scikit-survival.
        sample_weight : array-like of shape (n_samples,), optional
            Weight of each row, as `weights` in `calibayes.calibrate`. Weights that are not integers, such as survey
            weights, need `ties="breslow"`. Default: all one.

        Returns
        -------
        CoxPHSurvivalAnalysis
            The fitted estimator.

        Raises
        ------
        TypeError, ValueError
            If y is not such an array, a time is not positive, there are no events, or weights that are not integers are
            used with `ties="efron"`.
        """
        require_numeric(X)
        columns = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        event, time = _event_and_time(y, len(columns))
        design, time_name = self._design_of(columns, sample_weight), (np.asarray(y).dtype.names or ("", "time"))[1]
        self._calibrate(design, columns, (time, event), time_name)
        return self

    def predict(self, X: object) -> Float[np.ndarray, " N"]:
        """Return the linear predictor, the logarithm of the hazard relative to that of columns of zero.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns.

        Returns
        -------
        ndarray of shape (n_samples,)
            Risk scores.
        """
        return self._linear_prediction(X)

    def score(self, X: object, y: object) -> float:
        """Return the concordance index (Harrell 1982) of the predictions.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns.
        y : structured array of shape (n_samples,)
            Event indicator and time.

        Returns
        -------
        float
            Share of the comparable pairs, of an event and an observation that is still at risk then, in which the event
            has the larger risk score; ties of scores count half.
        """
        check_is_fitted(self)
        scores = self.predict(X)
        event, time = _event_and_time(y, len(scores))
        concordant, comparable = 0.0, 0
        for i in np.flatnonzero(event):
            later = scores[(time > time[i]) | ((time == time[i]) & (event == 0))]
            concordant += (scores[i] > later).sum() + 0.5 * (scores[i] == later).sum()
            comparable += len(later)
        if not comparable:
            raise ValueError("y has no comparable pairs: no observation is at risk after an event.")
        return float(concordant / comparable)


def _event_and_time(y: Any, n: int) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return the two fields of a structured array as numbers."""
    array = np.asarray(y)
    if array.dtype.names is None or len(array.dtype.names) != 2:
        raise TypeError(
            "y must be a structured array of event (boolean) and time: np.array(list(zip(event, time)), "
            f'dtype=[("event", bool), ("time", float)]); got {array.dtype}.'
        )
    event, time = (array[name] for name in array.dtype.names)
    if event.dtype.kind != "b":
        raise TypeError(f"the first field of y must be the boolean event indicator; {array.dtype.names[0]} is not.")
    if array.shape != (n,):
        raise ValueError(f"X and y must have the same length; got {n} and {array.shape}.")
    return event.astype(np.float64), time.astype(np.float64)
