"""Binary classification estimators."""

import numpy as np
from jaxtyping import Float, Shaped
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import validate_data

from calibayes import losses
from calibayes.estimators.base import LinearEstimator, name_of, require_numeric
from calibayes.losses import LinearLoss


class Classifier(ClassifierMixin, LinearEstimator):
    """Base class of the classification estimators."""

    def fit(self, X: object, y: object, sample_weight: object = None) -> "Classifier":
        """Calibrate the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns.
        y : array-like of shape (n_samples,)
            Labels of two classes.
        sample_weight : array-like of shape (n_samples,), optional
            Weight of each row, as `weights` in `calibayes.calibrate`. Default: all one.

        Returns
        -------
        Classifier
            The fitted estimator.

        Raises
        ------
        ValueError
            If y does not have exactly two classes.
        """
        require_numeric(X)
        columns, labels = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(labels)
        kind = type_of_target(labels, input_name="y")
        if kind != "binary":
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class, {self.classes_[0]!r}: a classifier needs two.")
        design = self._design_of(columns, sample_weight)
        if design.weights is not None and len(np.unique(labels[design.weights > 0])) < 2:
            raise ValueError("y has only one class where sample_weight is positive: a classifier needs two.")
        self._calibrate(design, columns, np.where(labels == self.classes_[1], 1.0, -1.0), name_of(y))
        return self

    def decision_function(self, X: object) -> Float[np.ndarray, " N"]:
        """Return the linear prediction, which is positive for the second of `classes_`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns.

        Returns
        -------
        ndarray of shape (n_samples,)
            Linear predictions.
        """
        return self._linear_prediction(X)

    def predict(self, X: object) -> Shaped[np.ndarray, " N"]:
        """Return the predicted classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns.

        Returns
        -------
        ndarray of shape (n_samples,)
            Predicted classes.
        """
        is_second = self.decision_function(X) > 0
        return self.classes_[is_second.astype(int)]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class SVMClassifier(Classifier):
    """Linear support vector machine of two classes, with calibrated credible intervals.

    Intervals of predictions are intervals of the decision function.

    Parameters
    ----------
    level : float
        Credible level of the intervals. Default: 0.95.
    region : str or Region
        Joint credible region that `eta_` calibrates. Default: "hpd".
    method : str or Method
        How the learning rate is set, as in `calibayes.calibrate`. Default: "gpc".
    shape : str, optional
        "sandwich" gives the posterior the shape of the sandwich covariance, as in `calibayes.calibrate`. Default: None.
    prior : Prior, optional
        Prior of the linear prediction at the means of the columns (absent if `fit_intercept=False`), followed by the
        coefficients. Default: independent normal distributions, weak compared with the spread of the data.
    bootstrap : int, Bootstrap or ndarray, optional
        Bootstrap replicates, as in `calibayes.calibrate`.
    sampler : str or Sampler
        Sampler, as in `calibayes.calibrate`. Default: "auto".
    fit_intercept : bool
        Whether the model has an intercept. Default: True.
    random_state : int, RandomState, Generator or None
        Seed. Default: 0, which makes repeated fits identical.

    Attributes
    ----------
    classes_ : ndarray of shape (2,)
        The two classes.
    coef_ : ndarray of shape (n_features,)
        Posterior mean of the coefficients at `eta_`.
    coef_interval_ : ndarray of shape (n_features, 2)
        Credible interval of each coefficient at `level`, calibrated at its own learning rate. Computed at the first
        access.
    coef_eta_ : ndarray of shape (n_features,)
        Learning rate at which each coefficient's interval is calibrated.
    intercept_ : float
        Posterior mean of the intercept, the linear prediction where all columns are zero; 0 if `fit_intercept=False`.
    intercept_interval_ : ndarray of shape (2,)
        Calibrated credible interval of the intercept.
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
    calibayes.losses.Hinge : The loss.

    Examples
    --------
    >>> import calibayes as cb
    >>> from calibayes.estimators import SVMClassifier
    >>> X, y = cb.datasets.heart_disease(("age", "ldl"))
    >>> estimator = SVMClassifier(bootstrap=300, sampler="transport").fit(X[:, 1:], y)
    >>> estimator.coef_.shape, estimator.coef_interval_.shape
    ((2,), (2, 2))
    """

    def _loss(self) -> LinearLoss:
        return losses.Hinge()


class LogisticClassifier(Classifier):
    """Logistic regression of two classes, with calibrated credible intervals.

    Intervals of predictions are intervals of the probability of the second of `classes_`.

    Parameters
    ----------
    level : float
        Credible level of the intervals. Default: 0.95.
    region : str or Region
        Joint credible region that `eta_` calibrates. Default: "hpd".
    method : str or Method
        How the learning rate is set, as in `calibayes.calibrate`. Default: "gpc".
    shape : str, optional
        "sandwich" gives the posterior the shape of the sandwich covariance, as in `calibayes.calibrate`. Default: None.
    prior : Prior, optional
        Prior of the linear prediction at the means of the columns (absent if `fit_intercept=False`), followed by the
        coefficients. Default: independent normal distributions, weak compared with the spread of the data.
    bootstrap : int, Bootstrap or ndarray, optional
        Bootstrap replicates, as in `calibayes.calibrate`.
    sampler : str or Sampler
        Sampler, as in `calibayes.calibrate`. Default: "auto".
    fit_intercept : bool
        Whether the model has an intercept. Default: True.
    random_state : int, RandomState, Generator or None
        Seed. Default: 0, which makes repeated fits identical.

    Attributes
    ----------
    classes_ : ndarray of shape (2,)
        The two classes.
    coef_ : ndarray of shape (n_features,)
        Posterior mean of the coefficients at `eta_`.
    coef_interval_ : ndarray of shape (n_features, 2)
        Credible interval of each coefficient at `level`, calibrated at its own learning rate. Computed at the first
        access.
    coef_eta_ : ndarray of shape (n_features,)
        Learning rate at which each coefficient's interval is calibrated.
    intercept_ : float
        Posterior mean of the intercept, the linear prediction where all columns are zero; 0 if `fit_intercept=False`.
    intercept_interval_ : ndarray of shape (2,)
        Calibrated credible interval of the intercept.
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
    calibayes.losses.Logistic : The loss.

    Examples
    --------
    >>> import calibayes as cb
    >>> from calibayes.estimators import LogisticClassifier
    >>> X, y = cb.datasets.heart_disease(("age", "ldl"))
    >>> estimator = LogisticClassifier(bootstrap=300, sampler="transport").fit(X[:, 1:], y)
    >>> estimator.coef_.shape, estimator.coef_interval_.shape
    ((2,), (2, 2))
    """

    def _loss(self) -> LinearLoss:
        return losses.Logistic()

    def predict_proba(self, X: object) -> Float[np.ndarray, "N 2"]:
        """Return the probabilities of the two classes at the posterior mean.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns.

        Returns
        -------
        ndarray of shape (n_samples, 2)
            Probabilities, in the order of `classes_`.
        """
        second = _logistic(self.decision_function(X))
        return np.column_stack([1 - second, second])

    def predict_interval(self, X: object, level: float | None = None) -> Float[np.ndarray, "N 2"]:
        """Return credible intervals of the probability of the second class at each row of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns.
        level : float, optional
            Credible level. Default: `level` of the estimator.

        Returns
        -------
        ndarray of shape (n_samples, 2)
            Lower and upper bounds.
        """
        return _logistic(super().predict_interval(X, level))


def _logistic(log_odds: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-log_odds))
