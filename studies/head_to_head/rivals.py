"""Other Python software in the head-to-head: statsmodels, arch, scikit-learn, and a wild cluster bootstrap.

Options are the defaults, unless the name of the method says otherwise. Needs the packages of the dependency group
`study` in an environment of its own, and neither calibayes nor jax:

    python -m venv study && study/bin/pip install --upgrade pip && study/bin/pip install --group study
    PYTHONPATH=. study/bin/python -m studies.head_to_head.rivals python --datasets 500
    PYTHONPATH=. study/bin/python -m studies.head_to_head.rivals r --datasets 500

The second line runs R with the package quantreg (`apt-get install r-base-core r-cran-quantreg r-cran-boot`).
"""

import argparse
import importlib.util
import math
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from studies.head_to_head import designs
from studies.head_to_head.names import (
    AR1,
    CLUSTERS,
    DESIGNS,
    FOLDER,
    LEVEL,
    LOSSES,
    PYTHON,
    SIZES,
    SLOPE,
    R,
    block_length,
    is_joint,
)
from studies.head_to_head.wild import WildClusterTest
from studies.records import ALL, Outcome, Record, RecordFolder, failure

REPLICATES = 1000
_TAIL = (1 - LEVEL) / 2
Method = Callable[[designs.Data, int], Any]
"""Computes a fit with `conf_int` and `cov_params`, or the two bounds for the slope, from data and a seed."""


def methods(loss: str, design: str) -> dict[str, Method]:
    """Return the methods for a loss and design."""
    if loss == "squared":
        return _least_squares(design)
    if loss in ("median", "tau 0.9"):
        return {"statsmodels QuantReg": _quantile(0.5 if loss == "median" else designs.TAU)}
    if loss == "huber":
        return {"statsmodels RLM": _robust}
    if loss == "logistic":
        return _logistic(design)
    return {"scikit-learn, percentile": _linear_svc}


def _least_squares(design: str) -> dict[str, Method]:
    chosen: dict[str, Method] = {"OLS": _ols(), "OLS HC3": _ols(cov_type="HC3")}
    chosen["OLS HC3, t"] = _ols(cov_type="HC3", use_t=True)
    if design == CLUSTERS:
        chosen["OLS cluster"] = lambda data, seed: _ols(**_clustered(data))(data, seed)
        chosen["OLS cluster, t"] = lambda data, seed: _ols(**_clustered(data), use_t=True)(data, seed)
        chosen["wild cluster bootstrap"] = _wild_cluster
    elif design == AR1:
        chosen["OLS HAC"] = lambda data, seed: _ols(**_serial(data))(data, seed)
        chosen["arch block bootstrap, percentile"] = _arch("percentile", blocks=True)
    else:
        chosen |= {f"arch bootstrap, {kind}": _arch(kind) for kind in ("percentile", "bca", "studentized")}
    return chosen


def _ols(**options: Any) -> Method:
    import statsmodels.api as sm

    return lambda data, seed: sm.OLS(data.y, data.x).fit(**options)  # noqa: ARG005


def _clustered(data: designs.Data) -> dict[str, Any]:
    return {"cov_type": "cluster", "cov_kwds": {"groups": data.groups}}


def _serial(data: designs.Data) -> dict[str, Any]:
    """Return options of the covariance of Newey and West, with the usual rule for the number of lags."""
    return {"cov_type": "HAC", "cov_kwds": {"maxlags": math.floor(4 * (len(data.y) / 100) ** (2 / 9))}}


def _quantile(tau: float) -> Method:
    import statsmodels.api as sm

    return lambda data, seed: sm.QuantReg(data.y, data.x).fit(q=tau)  # noqa: ARG005


def _robust(data: designs.Data, seed: int) -> Any:  # noqa: ARG001
    import statsmodels.api as sm

    return sm.RLM(data.y, data.x, M=sm.robust.norms.HuberT(designs.HUBER_DELTA)).fit()


def _logistic(design: str) -> dict[str, Method]:
    import statsmodels.api as sm

    fit = lambda data, **options: sm.GLM((data.y > 0).astype(float), data.x, sm.families.Binomial()).fit(**options)
    chosen: dict[str, Method] = {"GLM": lambda data, seed: fit(data)}  # noqa: ARG005
    chosen["GLM HC3"] = lambda data, seed: fit(data, cov_type="HC3")  # noqa: ARG005
    if design == CLUSTERS:
        chosen["GLM cluster"] = lambda data, seed: fit(data, **_clustered(data))  # noqa: ARG005
    if design == AR1:
        chosen["GLM HAC"] = lambda data, seed: fit(data, **_serial(data))  # noqa: ARG005
    return chosen


def _wild_cluster(data: designs.Data, seed: int) -> tuple[float, float]:
    assert data.groups is not None
    return WildClusterTest(data.x, data.y, data.groups, REPLICATES - 1, seed).interval(LEVEL)


def _arch(kind: str, blocks: bool = False) -> Method:
    from arch.bootstrap import CircularBlockBootstrap, IIDBootstrap

    def compute(data: designs.Data, seed: int) -> np.ndarray:
        length = (block_length(len(data.y)),) if blocks else ()
        bootstrap = (CircularBlockBootstrap if blocks else IIDBootstrap)(*length, data.x, data.y, seed=seed)
        errors = {"std_err_func": _white_errors} if kind == "studentized" else {}
        return np.asarray(bootstrap.conf_int(_fit, REPLICATES, method=kind, size=LEVEL, **errors))[:, SLOPE]

    return compute


def _fit(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.linalg.solve(x.T @ x, x.T @ y)


def _white_errors(fit: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the standard errors of White (1980)."""
    influences = np.linalg.solve(x.T @ x, x.T) * (y - x @ fit)
    return np.sqrt(np.square(influences).sum(1))


def _linear_svc(data: designs.Data, seed: int) -> np.ndarray:
    from sklearn.svm import LinearSVC

    rng, slopes = np.random.default_rng([seed, 27]), []
    for _ in range(REPLICATES // 5):
        rows = rng.integers(0, len(data.y), len(data.y))
        # Without a penalty to speak of, as for the weak prior of the posterior.
        fit = LinearSVC(loss="hinge", C=1e3, fit_intercept=False, max_iter=10_000)
        slopes.append(fit.fit(data.x[rows], data.y[rows]).coef_[0, SLOPE])
    return np.quantile(slopes, [_TAIL, 1 - _TAIL])


def outcome(method: Method, data: designs.Data, seed: int, theta: Sequence[float], joint: bool) -> Outcome:
    """Return the interval of the slope, and the level of the joint Wald set that reaches the true parameter."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            computed = method(data, seed)
            if not hasattr(computed, "conf_int"):
                bounds, level = computed, math.nan
            else:
                bounds = np.asarray(computed.conf_int(1 - LEVEL))[SLOPE]
                gap = np.asarray(computed.params) - theta
                distance = gap @ np.linalg.solve(np.asarray(computed.cov_params()), gap) if joint else math.nan
                level = float(stats.chi2(len(gap)).cdf(distance))
        except (ValueError, RuntimeError, np.linalg.LinAlgError) as error:
            return failure(f"{type(error).__name__}: {error}", time.process_time() - start)
    low, high = float(bounds[0]), float(bounds[1])
    if not (math.isfinite(low) and math.isfinite(high)):
        return failure("the interval is not finite", time.process_time() - start)
    return Outcome(math.nan, level, [(low, high)], "COMPUTED", time.process_time() - start)


def kinds(losses: Sequence[str], chosen: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[str, str, int]]:
    """Return the combinations of loss, design and number of observations."""
    return product(losses, chosen, sizes)


def run_python(folder: RecordFolder, cells: Sequence[tuple[str, str, int]], numbers: Sequence[int]) -> None:
    """Apply the methods to all data sets that are not stored yet."""
    machine = f"{platform.machine()}; " + ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    for number, (loss, design, n) in product(numbers, cells):
        problem = f"{loss}, {design}"
        if (problem, n, number, PYTHON, ALL) in folder:
            continue
        data, theta = designs.draw(loss, design, n, number), designs.truth(loss, design)
        outcomes = {
            name: outcome(method, data, number, theta, is_joint(loss, design, n))
            for name, method in methods(loss, design).items()
        }
        folder.add([Record(problem, n, number, PYTHON, outcomes, machine)])


_PACKAGES = ("statsmodels", "arch", "scikit-learn")


def main() -> None:
    """Run the study from the command line."""
    parser = argparse.ArgumentParser(prog="python -m studies.head_to_head.rivals", description=__doc__.splitlines()[0])
    parser.add_argument("source", choices=(PYTHON, R))
    parser.add_argument("--datasets", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first data set")
    parser.add_argument("--loss", action="append", choices=LOSSES)
    parser.add_argument("--design", action="append", choices=DESIGNS)
    parser.add_argument("--n", action="append", type=int, choices=SIZES)
    parser.add_argument("--out", type=Path, default=Path("results") / FOLDER)
    chosen = parser.parse_args()
    cells = list(kinds(chosen.loss or LOSSES, chosen.design or DESIGNS, chosen.n or SIZES))
    numbers = range(chosen.first, chosen.first + chosen.datasets)
    folder = RecordFolder(chosen.out)
    if chosen.source == PYTHON:
        missing = [name for name in ("statsmodels", "arch", "sklearn") if importlib.util.find_spec(name) is None]
        if missing:
            sys.exit(f"{', '.join(missing)} not installed: pip install --group study, in an environment of its own.")
        run_python(folder, cells, numbers)
    else:
        from studies.head_to_head import quantreg

        quantreg.run(folder, cells, numbers)
    folder.compact()


if __name__ == "__main__":
    main()
