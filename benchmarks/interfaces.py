"""Fit six tables from CSV to report by Python, scikit-learn estimator and command line, and compare the intervals.

    python -m benchmarks.interfaces [--bootstrap 2000] [--reports FOLDER]

The tables are those of statsmodels (Engel, Spector, state crime, affairs) and scikit-learn (Linnerud, diabetes). The
table of affairs has categories, missing values and weights. statsmodels is not a dependency of the project: install it
with pip, or its tables are left out. Where statsmodels has robust standard errors for the same model, the ratio of the
standard errors is printed. It is near 1 for least squares with many rows; it need not be for 32 rows (Spector), or
where robust standard errors rest on an estimated density (Engel).

The exit status is 1 if intervals differ by more than 1e-6 of their width, or a report lacks one of them.
"""

import argparse
import html
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

import calibayes as cb
from calibayes import estimators
from calibayes.result import Intervals

TOLERANCE = 1e-6
"""Largest difference of two bounds, relative to the width of the interval: rounding errors."""


@dataclass(frozen=True)
class Case:
    """A table and a linear model of it."""

    name: str
    load: Callable[[], pd.DataFrame]
    target: str
    predictors: list[str]
    loss: str
    estimator: Callable[..., Any]
    """Constructor of the estimator with this loss."""
    robust: Callable[[pd.DataFrame, str], Any] | None = None
    """Function of the table and the formula that returns a fit of statsmodels with robust standard errors."""
    categories: list[str] = field(default_factory=list)
    weights: str | None = None

    @property
    def formula(self) -> str:
        """The formula of the model."""
        terms = [f"C({name})" if name in self.categories else name for name in self.predictors]
        return f"{self.target} ~ {' + '.join(terms)}"


def _statsmodels(name: str) -> Callable[[], pd.DataFrame]:
    def load() -> pd.DataFrame:
        import statsmodels.datasets

        return getattr(statsmodels.datasets, name).load_pandas().data

    return load


def _scikit_learn(name: str, **options: Any) -> Callable[[], pd.DataFrame]:
    def load() -> pd.DataFrame:
        import sklearn.datasets

        bunch = getattr(sklearn.datasets, f"load_{name}")(as_frame=True, **options)
        return pd.concat([bunch.data, bunch.target], axis=1)

    return load


def _affairs() -> pd.DataFrame:
    """Return the first 600 women of the table, with texts as categories, some values deleted, and random weights."""
    rng = np.random.default_rng(0)
    table = _statsmodels("fair")().iloc[:600]
    jobs = {1: "student", 2: "worker", 3: "clerk", 4: "teacher", 5: "manager", 6: "professional"}
    table = table.assign(job=table["occupation"].map(jobs), weight=rng.uniform(0.5, 2.0, len(table)).round(2))
    table.loc[rng.choice(len(table), 20, replace=False), "age"] = np.nan
    table.loc[rng.choice(len(table), 10, replace=False), "job"] = None
    return table[["rate_marriage", "age", "children", "job", "weight"]]


def _quantreg(table: pd.DataFrame, formula: str) -> Any:
    import statsmodels.formula.api

    return statsmodels.formula.api.quantreg(formula, table).fit(q=0.5)


def _logit(table: pd.DataFrame, formula: str) -> Any:
    import statsmodels.formula.api

    return statsmodels.formula.api.logit(formula, table).fit(cov_type="HC0", disp=False)


def _hc3(table: pd.DataFrame, formula: str) -> Any:
    import statsmodels.formula.api

    return statsmodels.formula.api.ols(formula, table).fit(cov_type="HC3")


CASES = [
    Case("Engel", _statsmodels("engel"), "foodexp", ["income"], "quantile", estimators.QuantileRegressor, _quantreg),
    Case(
        "Spector",
        _statsmodels("spector"),
        "GRADE",
        ["GPA", "TUCE", "PSI"],
        "logistic",
        estimators.LogisticClassifier,
        _logit,
    ),
    Case(
        "state crime",
        _statsmodels("statecrime"),
        "murder",
        ["urban", "poverty", "hs_grad", "single"],
        "huber",
        estimators.HuberRegressor,
    ),
    Case(
        "affairs",
        _affairs,
        "rate_marriage",
        ["age", "children", "job"],
        "squared",
        lambda **options: estimators.GibbsRegressor("squared", **options),
        categories=["job"],
        weights="weight",
    ),
    Case(
        "Linnerud",
        _scikit_learn("linnerud"),
        "Waist",
        ["Chins", "Situps"],
        "absolute",
        lambda **options: estimators.GibbsRegressor("absolute", **options),
    ),
    Case(
        "diabetes",
        _scikit_learn("diabetes", scaled=False),
        "target",
        ["age", "sex", "bmi", "bp", "s5"],
        "squared",
        lambda **options: estimators.GibbsRegressor("squared", **options),
        _hc3,
    ),
]


def by_python(case: Case, path: Path, bootstrap: int) -> cb.Result:
    """Fit by `cb.fit`."""
    return cb.fit(
        case.formula,
        path,
        loss=case.loss,
        missing="drop",
        weights=case.weights,
        bootstrap=bootstrap,
        progress=False,
    )


def by_estimator(case: Case, path: Path, bootstrap: int) -> cb.Result:
    """Fit by the estimator, after encoding the categories and dropping rows as scikit-learn requires."""
    table = pd.read_csv(path)
    roles = [] if case.weights is None else [case.weights]
    table = table[[case.target, *case.predictors, *roles]].dropna()
    X = pd.get_dummies(table[case.predictors], columns=case.categories, drop_first=True, dtype=float)
    weights = None if case.weights is None else table[case.weights]
    model = case.estimator(bootstrap=bootstrap).fit(X, table[case.target], sample_weight=weights)
    return model.result_


def by_command(case: Case, path: Path, bootstrap: int, report: Path) -> dict[str, Any]:
    """Fit by the command line, with a report, and return its JSON output."""
    line = [sys.executable, "-m", "calibayes", "fit", str(path), "--formula", case.formula, "--loss", case.loss]
    line += ["--drop-missing", "--bootstrap", str(bootstrap), "--json", "--report", str(report)]
    line += [] if case.weights is None else ["--weights", case.weights]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{case.name}: {ended.stdout}{ended.stderr}")
    return json.loads(ended.stdout)


def shown_in(page: Path, intervals: Intervals) -> bool:
    """Return whether a report shows all these intervals."""
    text = html.unescape(page.read_text("utf-8"))
    return all(f">{low} to {high}<" in text for _, low, high in intervals.cells(["low", "high"])[1:])


def compare(case: Case, folder: Path, bootstrap: int) -> tuple[Intervals, float, bool, cb.Result]:
    """Return the intervals by Python, the largest relative difference to the others, and whether all reports agree."""
    path = folder / f"{case.name.replace(' ', '_')}.csv"
    case.load().to_csv(path, index=False)
    reports = {name: path.with_suffix(f".{name}.html") for name in ("python", "estimator", "command")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CalibrationWarning)
        result, fitted = by_python(case, path, bootstrap), by_estimator(case, path, bootstrap)
        intervals = result.intervals()
        others = [fitted.intervals().bounds]
    result.report(reports["python"])
    fitted.report(reports["estimator"])
    content = by_command(case, path, bootstrap, reports["command"])
    others.append(np.array([[entry["low"], entry["high"]] for entry in content["coefficients"]]))
    widths = np.ptp(intervals.bounds, 1)[:, None]
    difference = max(float(np.abs((bounds - intervals.bounds) / widths).max()) for bounds in others)
    return intervals, difference, all(shown_in(page, intervals) for page in reports.values()), result


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", type=int, default=2000, help="number of bootstrap replicates")
    parser.add_argument("--reports", type=Path, help="folder for the CSV files and reports; default: a temporary one")
    options = parser.parse_args()
    table = Table("table", "rows", "loss", "largest difference", "reports", "ratio to robust se")
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.reports or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for case in CASES:
            try:
                case.load()
            except ImportError as error:
                table.add_row(case.name, "", case.loss, f"left out: {error}", "", "")
                continue
            _, difference, agree, result = compare(case, folder, options.bootstrap)
            failed |= difference > TOLERANCE or not agree
            ratios = "" if case.robust is None else _ratios(case, result)
            shown = "equal" if agree else "DIFFER"
            table.add_row(case.name, str(result.settings["n"]), case.loss, f"{difference:.1e}", shown, ratios)
    Console(width=120).print(table)
    return int(failed)


def _ratios(case: Case, result: cb.Result) -> str:
    """Return calibrated standard errors of the coefficients, relative to robust ones of statsmodels."""
    assert case.robust is not None
    if find_spec("statsmodels") is None:
        return "needs statsmodels"
    robust = case.robust(case.load(), case.formula).bse
    return ", ".join(f"{result.bse[name] / robust[name]:.2f}" for name in case.predictors)


if __name__ == "__main__":
    sys.exit(main())
