"""scikit-learn estimators: linear models with calibrated credible intervals.

`fit` centres the columns, adds an intercept (not for Cox's model) and a weakly informative prior, and calibrates the
posterior of the loss. `eta_` is the learning rate of the joint credible region. The interval of a coefficient or of a
prediction is calibrated separately, at its own learning rate.

scikit-learn is an optional dependency: `pip install 'calibayes[sklearn]'`.
"""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("calibayes.estimators needs scikit-learn: pip install 'calibayes[sklearn]'.") from error

from calibayes.estimators.classifiers import LogisticClassifier, SVMClassifier
from calibayes.estimators.quantiles import MultiQuantileRegressor
from calibayes.estimators.regressors import (
    ExpectileRegressor,
    GibbsRegressor,
    HuberRegressor,
    PoissonRegressor,
    QuantileRegressor,
)
from calibayes.estimators.survival import CoxPHSurvivalAnalysis

__all__ = [
    "CoxPHSurvivalAnalysis",
    "ExpectileRegressor",
    "GibbsRegressor",
    "HuberRegressor",
    "LogisticClassifier",
    "MultiQuantileRegressor",
    "PoissonRegressor",
    "QuantileRegressor",
    "SVMClassifier",
]
