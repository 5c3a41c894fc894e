"""Vary the tuning constants of the library, and compare the learning rate and the time with the defaults.

    python -m benchmarks.sensitivity                          # all constants, hours; stores results/sensitivity.json
    python -m benchmarks.sensitivity --only transport curve   # constants whose path contains one of these texts
    python -m benchmarks.sensitivity --print                  # print the stored table

Each value is tried in a fresh process, which replaces the constant (usually a field of a `CONFIG` object) before
anything is traced. The difference of eta from the default is given in units of its standard error `eta_se`: all values
use the same seeds and bootstrap replicates, so a constant that results do not hinge on gives a difference well below 1.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.common import RESULTS, ROOT, Table, machine, write_json

FACTORS = (0.5, 2.0)
SEEDS = 2
_TIMINGS = 3
"""Calibrations without compilation of which the shortest time is reported."""
_DEFAULT = "defaults"


class Constant(NamedTuple):
    """A constant of the library, and the values to try."""

    path: str
    """`"module:OBJECT.field"`, with further dots for nested objects, or `"module:NAME"` for a number."""
    values: tuple[Any, ...] = ()
    """Default: the present value times each of `FACTORS`."""

    @property
    def module(self) -> str:
        return self.path.partition(":")[0]

    @property
    def names(self) -> list[str]:
        """Names of the module-level object and of the field in it."""
        return self.path.partition(":")[2].split(".")

    def default(self) -> Any:
        """Return the value that the library uses."""
        return reduce(getattr, self.names, import_module(self.module))

    def values_to_try(self) -> tuple[Any, ...]:
        """Return the values to try; those of integer constants are rounded to integers of at least 1."""
        if self.values:
            return self.values
        default = self.default()
        scaled = [default * factor for factor in FACTORS]
        return tuple(dict.fromkeys(max(1, round(value)) if isinstance(default, int) else value for value in scaled))


_TRANSPORT = "calibayes.samplers.transport.config:CONFIG"
CONSTANTS = (
    Constant("calibayes.samplers.populations:N_POPULATIONS"),
    Constant(f"{_TRANSPORT}.size.min_particles"),
    Constant(f"{_TRANSPORT}.size.draws_per_curve"),
    Constant(f"{_TRANSPORT}.refit.ess_per_parameter"),
    Constant(f"{_TRANSPORT}.refit.widening"),
    Constant(f"{_TRANSPORT}.refit.max_variance_ratio"),
    Constant(f"{_TRANSPORT}.fit.good_ess", (0.6, 0.95)),
    Constant(f"{_TRANSPORT}.fit.full_ess", (0.3, 0.8)),
    Constant(f"{_TRANSPORT}.fit.fair_ess", (0.2, 0.7)),
    Constant(f"{_TRANSPORT}.fit.search_evaluations"),
    Constant(f"{_TRANSPORT}.fit.search_thinning"),
    Constant(f"{_TRANSPORT}.fit.min_ess_ratio", (0.25, 1.0)),
    Constant(f"{_TRANSPORT}.matching.max_growth"),
    Constant(f"{_TRANSPORT}.matching.match_factor", (0.25, 0.8)),
    Constant(f"{_TRANSPORT}.pool.eta_step", (1.6, 4.0)),
    Constant(f"{_TRANSPORT}.repair.degenerate_ess"),
    Constant(f"{_TRANSPORT}.repair.broadening"),
    Constant("calibayes.samplers.tempering:COARSE_SCHEDULE.ess_target", (0.3, 0.8)),
    Constant("calibayes.samplers.tempering:COARSE_SCHEDULE.n_moves"),
    Constant("calibayes.samplers.mixing:CONFIG.max_correlation"),
    Constant("calibayes.samplers.mixing:CONFIG.min_moves"),
    Constant("calibayes.samplers.audit:CONFIG.significance", (1e-6, 1e-2)),
    Constant("calibayes.samplers.audit:CONFIG.min_difference"),
    Constant("calibayes.solve.curve:CONFIG.n_points"),
    Constant("calibayes.solve.curve:CONFIG.n_rough_points"),
    Constant("calibayes.solve.curve:CONFIG.max_half_width", (0.3, 0.65)),
    Constant("calibayes.solve.bracket:CONFIG.rough_tolerance"),
    Constant("calibayes.kernels.crank_nicolson:CONFIG.random_walk_probability"),
)
"""Constants that the default sampler uses on the problems below."""


def with_value(instance: Any, path: Sequence[str], value: Any) -> Any:
    """Return a copy of a (nested) frozen object with one field replaced."""
    if not path:
        return value
    first, *rest = path
    if not is_dataclass(instance) or first not in {field.name for field in fields(instance)}:
        raise ValueError(f"{type(instance).__name__} has no field {first!r}.")
    return replace(instance, **{first: with_value(getattr(instance, first), rest, value)})  # type: ignore[type-var]


def override(path: str, value: Any) -> None:
    """Replace a constant in this process, in every module of the library that has imported it by name.

    Class attributes that were computed from a number, such as `Transport.n_populations`, are replaced, too.
    """
    constant = Constant(path)
    name, *field_names = constant.names
    old = getattr(import_module(constant.module), name)
    new = with_value(old, field_names, value)
    for module in [module for key, module in sys.modules.items() if key.startswith("calibayes")]:
        for attribute, present in list(vars(module).items()):
            if present is old and (attribute == name or is_dataclass(old)):
                setattr(module, attribute, new)
            elif isinstance(present, type) and vars(present).get(name.lower()) is old:
                setattr(present, name.lower(), new)


def calibrate_problems() -> Iterator[tuple[str, dict[str, Any]]]:
    """Calibrate each problem, first for each seed, then again for the time without compilation."""
    import time
    import warnings

    import jax.numpy as jnp
    import numpy as np

    import calibayes as cb

    warnings.simplefilter("ignore")
    y = np.random.default_rng(5).standard_t(2, size=80) + 1
    cauchy = lambda theta, y: jnp.log1p(jnp.square((y - theta[0]) * jnp.exp(-theta[1]))) + theta[1]
    problems: dict[str, tuple[cb.GibbsModel, Any, dict[str, Any]]] = {
        "median regression": (
            cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0)),
            cb.datasets.median_regression(100),
            {},
        ),
        "heart disease SVM": (
            cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0)),
            cb.datasets.heart_disease(),
            {"bootstrap": 500},
        ),
        "Cauchy loss": (cb.GibbsModel(cauchy, cb.priors.Normal(scale=10.0), dim=2), y, {"bootstrap": 500}),
    }
    for name, (model, data, options) in problems.items():
        results = [cb.calibrate(model, data, seed=seed, progress=False, **options) for seed in range(SEEDS)]
        seconds = []
        for _ in range(_TIMINGS):
            start = time.perf_counter()
            cb.calibrate(model, data, seed=0, progress=False, **options)
            seconds.append(time.perf_counter() - start)
        yield (
            name,
            {
                "eta": [float(result.eta) for result in results],
                "eta_se": [float(result.eta_se) for result in results],
                "converged": all(result.converged for result in results),
                "seconds": min(seconds),
            },
        )


def run_worker(path: str, value: Any) -> dict[str, Any]:
    """Calibrate all problems with one constant changed, in a fresh process."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.sensitivity", "--worker", json.dumps([path, value])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return {"problems": json.loads(done.stdout.splitlines()[-1])}


def difference(default: dict[str, Any], changed: dict[str, Any]) -> float:
    """Return the largest difference of eta over seeds, in standard errors of the default."""
    triples = zip(default["eta"], changed["eta"], default["eta_se"], strict=True)
    return max(((other - eta) / se for eta, other, se in triples), key=abs)


def table(stored: dict[str, Any]) -> Table:
    """Return the differences of eta and the times, one row per value."""
    default = stored["defaults"]["problems"]
    rows = [[_DEFAULT, "", *_cells(default, default)]]
    for entry in stored["constants"]:
        value = f"{entry['default']:g} -> {entry['value']:g}"
        cells = (
            [entry["error"], *[""] * (2 * len(default) - 1)] if "error" in entry else _cells(default, entry["problems"])
        )
        rows.append([entry["path"].removeprefix("calibayes."), value, *cells])
    columns = [column for name in default for column in (f"{name}: eta difference / SE", "seconds")]
    return Table(["constant", "value", *columns], rows)


def _cells(default: dict[str, Any], changed: dict[str, Any]) -> list[str]:
    cells = []
    for name, result in changed.items():
        mark = "" if result["converged"] else " (not converged)"
        cells += [f"{difference(default[name], result):+.2f}{mark}", f"{result['seconds']:.2f}"]
    return cells


def measure(constants: Sequence[Constant], path: Path, console: Console, *, resume: bool = False) -> dict[str, Any]:
    """Measure the defaults and every value, and store the result after each process.

    Parameters
    ----------
    constants : sequence of Constant
        Constants to vary. Stored values of other constants are kept.
    path : Path
        File of the results.
    console : Console
        Where progress is printed.
    resume : bool
        Whether to keep all stored values, to continue an interrupted run of the same source code. Default: False.

    Returns
    -------
    dict
        The content of the file.
    """
    from calibayes._backend.versions import versions

    previous = json.loads(path.read_text()) if path.exists() else {"constants": []}
    stored: dict[str, Any] = {"machine": machine(), **versions(), "seeds": SEEDS}
    stored["defaults"] = previous["defaults"] if resume and "defaults" in previous else run_worker("", None)
    if "error" in stored["defaults"]:
        raise RuntimeError(f"the calibrations with default constants failed: {stored['defaults']['error']}")
    pending = [(constant, value) for constant in constants for value in constant.values_to_try()]
    measured = {(entry["path"], entry["value"]) for entry in previous["constants"] if resume}
    pending = [(constant, value) for constant, value in pending if (constant.path, value) not in measured]
    replaced = {constant.path for constant in constants if not resume}
    stored["constants"] = [entry for entry in previous["constants"] if entry["path"] not in replaced]
    order = {constant.path: i for i, constant in enumerate(CONSTANTS)}
    for constant, value in pending:
        entry = {"path": constant.path, "default": constant.default(), "value": value}
        stored["constants"].append(entry | run_worker(constant.path, value))
        stored["constants"].sort(key=lambda entry: order.get(entry["path"], len(order)))
        write_json(path, stored)
        console.print(f"{constant.path} {value}", highlight=False)
    return stored


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="vary the constants whose path contains one of these")
    parser.add_argument("--out", type=Path, default=RESULTS / "sensitivity.json")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run of the same source code")
    parser.add_argument("--print", action="store_true", help="print the stored table and run nothing")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    console = Console(width=200)
    if options.worker:
        path, value = json.loads(options.worker)
        import_module("calibayes")
        if path:
            override(path, value)
        print(json.dumps(dict(calibrate_problems())))
    elif options.print:
        console.print(table(json.loads(options.out.read_text())).rich())
    else:
        selected = [constant for constant in CONSTANTS if any(text in constant.path for text in options.only)]
        console.print(table(measure(selected, options.out, console, resume=options.resume)).rich())


if __name__ == "__main__":
    main()
