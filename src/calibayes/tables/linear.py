"""A linear model of a table: from selected columns and the name of a loss to a calibration.

`calibayes.fit` and the command line run the same steps, so that they give the same numbers.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from calibayes import bootstrap as bootstraps
from calibayes import losses
from calibayes._validate.settings import check_weights
from calibayes.design import Design
from calibayes.losses import Cox, LinearLoss
from calibayes.report.description import model_title
from calibayes.result import Result
from calibayes.samplers import Transport
from calibayes.survival import calibrate_survival
from calibayes.tables.columns import Selection, class_target, numeric_target, survival_target
from calibayes.tables.wording import option


@dataclass(frozen=True)
class LinearModel:
    """A linear model of selected columns of a table.

    Attributes
    ----------
    selection : Selection
        The columns.
    loss : LinearLoss or Cox
        The loss.
    y : ndarray of shape (N,) or tuple of ndarray
        Response; -1 and 1 for a loss of two classes; times, events and times of entry of a survival model.
    classes : list of str or None
        Labels of the classes -1 and 1; None for other losses.
    design : Design
        Centring and scaling of the columns.
    """

    selection: Selection
    loss: LinearLoss | Cox
    y: Float[np.ndarray, " N"] | tuple[Float[np.ndarray, " N"], ...]
    classes: list[str] | None
    design: Design

    @staticmethod
    def of(selection: Selection, loss: LinearLoss, positive: str | float | None, default_delta: bool) -> "LinearModel":
        """Return the model of a loss.

        Parameters
        ----------
        selection : Selection
            The columns.
        loss : LinearLoss
            The loss.
        positive : str, number or None
            Label of the positive class.
        default_delta : bool
            Whether the threshold of Huber's loss is computed from the residuals.

        Raises
        ------
        ValueError
            If the target does not suit the loss, or there are too few rows.
        """
        y, classes = _target_values(loss, selection, positive)
        require_rows(len(y), selection.columns.shape[1] + selection.intercept)
        design = Design.from_columns(selection.columns, selection.intercept, selection.weights)
        if default_delta:
            loss = losses.Huber(design.default_huber_delta(selection.columns, y))
        return LinearModel(selection, loss, y, classes, design)

    def about(self, file: str | None) -> dict[str, Any]:
        """Return what a report says about model and data."""
        about = {"file": file, "title": model_title(self.loss), "classes": self.classes}
        return about | self.selection.description()

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.selection.columns)

    @staticmethod
    def of_survival(selection: Selection) -> "LinearModel":
        """Return Cox's model of columns that were selected by a formula with `Surv(time, event)` on the left side.

        Ties are those of Efron, or of Breslow with survey weights.
        """
        require_rows(len(selection.y), selection.columns.shape[1])
        if not selection.columns.shape[1]:
            raise ValueError("a survival model needs a column on the right side of the formula.")
        design = Design.from_columns(selection.columns, False, selection.weights)
        survival = survival_target(selection)
        # Efron's treatment of ties is for weights that are numbers of repetitions.
        weights = check_weights(selection.weights, len(selection.y))
        risk = Cox("efron" if weights is None or weights.repeats else "breslow")
        return LinearModel(replace(selection, intercept=False), risk, survival, None, design)

    def calibrate(
        self, *, bootstrap: object, block: int | None = None, call: str, file: str | None = None, **options: Any
    ) -> Result:
        """Calibrate the model, with the clusters, strata or blocks of the rows; see `Design.calibrate`."""
        scheme = self._bootstrap(bootstrap, block)
        selection = self.selection
        options |= {"names": selection.names, "call": call, "about": self.about(file), "bootstrap": scheme}
        if isinstance(self.loss, Cox):
            return calibrate_survival(
                self.loss, selection.columns, tuple(self.y), weights=self.design.weights, **options
            )
        return self.design.calibrate(self.loss, selection.columns, np.asarray(self.y), **options)

    def _bootstrap(self, bootstrap: object, block: int | None) -> object:
        groups, strata = self.selection.groups, self.selection.strata
        if groups is None and strata is None and block is None:
            return bootstrap
        number = Transport.default_replicates if bootstrap is None else bootstrap
        if not isinstance(number, int | np.integer):
            raise ValueError("bootstrap must be a number of replicates if there are clusters, strata or blocks.")
        number = int(number)
        if block is not None:
            if not (groups is None and strata is None):
                raise ValueError(f"{option('--block')} cannot be combined with clusters or strata: use one of them.")
            return bootstraps.Block(number, block)
        if groups is None:
            return bootstraps.Stratified(number, strata)
        return bootstraps.Cluster(number, groups, strata)


def _target_values(
    loss: LinearLoss, selection: Selection, positive: str | float | None
) -> tuple[Float[np.ndarray, " N"], list[str] | None]:
    """Return the target as numbers, or as -1 and 1 with the labels of these two classes."""
    if loss.margin:
        return class_target(selection.y, selection.target, positive)
    if positive is not None:
        raise ValueError(f"{option('--positive')} is for the losses hinge and logistic, whose target has two classes.")
    return numeric_target(selection.y, selection.target), None


def require_rows(n_rows: int, n_coefficients: int) -> None:
    """Raise an error if a bootstrap replicate would have fewer distinct rows than coefficients.

    A replicate contains a share 1 - 1/e = 63% of the rows on average.
    """
    required = math.ceil(n_coefficients / (1 - math.exp(-1))) + 1
    if n_rows < required:
        raise ValueError(
            f"{n_rows} rows are too few for {n_coefficients} coefficients: bootstrap replicates would not determine "
            f"all of them. Use at least {required} rows, or fewer columns."
        )
