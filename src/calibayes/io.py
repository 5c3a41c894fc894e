"""A result as an ArviZ DataTree, and back: what is in it, but not the particles that could be asked again."""

import json
import platform
from pathlib import Path
from typing import Any

import jax
import numpy as np

from calibayes._backend.distributed import leads
from calibayes._core.curve import Coverage, Curve
from calibayes.regions import REGIONS, Interval, Linear, Region, Remembered
from calibayes.result import Intervals, Record, Result

_TRACE = ("eta", "coverage", "ess", "ess_min", "rungs", "acceptance", "seconds")
_OWN = ("eta", "eta_se", "converged")
_QUICK = 10
"""Parameters up to which their own intervals are found when a result is saved, if they have not been asked for."""


def to_datatree(result: Result) -> Any:
    """The groups of `Result.to_datatree`."""
    arviz = _arviz("to_datatree")
    curve, trace = result.curve, result.trace
    draws = len(result.draws)
    groups: dict[str, dict[str, Any]] = {
        "posterior": {"theta": result.draws[None]},
        "sample_stats": {
            "risk": result.risk[None],
            "log_weight": np.full((1, draws), -np.log(draws)),
        },
        "bootstrap": {"repaired": np.isin(np.arange(result.coverage.n_replicates), result.repaired_replicates)},
        "curve": {"critical_level": curve.critical_levels, "ess": curve.ess, "band": curve.band()},
        "trace": {name: np.array([getattr(record, name) for record in trace]) for name in _TRACE},
        "estimate": {"theta": result.estimate},
    }
    if curve.in_groups is not None:
        groups["bootstrap"]["critical_level"] = curve.in_groups
    groups["trace"]["intervals"] = np.array([record.intervals for record in trace])
    own = result.kept
    if own is not None:
        groups["own"] = {"bounds": own.bounds} | {name: getattr(own, name) for name in _OWN}
    dims = {
        "theta": ["parameter"],
        "repaired": ["row"],
        "critical_level": ["learning_rate", "row"],
        "ess": ["learning_rate"],
        "band": ["learning_rate", "bound"],
        "intervals": ["iteration", "parameter", "bound"],
        "bounds": ["parameter", "bound"],
    }
    coords = {
        "parameter": result.names,
        "learning_rate": curve.etas,
        "bound": ["low", "high"],
        "iteration": [record.iteration for record in trace],
    }
    return _tree(arviz, result, groups, dims, coords)


def _tree(arviz: Any, result: Result, groups: dict[str, Any], dims: dict[str, Any], coords: dict[str, Any]) -> Any:
    own = {
        "bootstrap": dims | {"critical_level": ["row"]},
        "trace": dims | {name: ["iteration"] for name in _TRACE},
        "own": dims | {name: ["parameter"] for name in _OWN},
    }
    from xarray import DataTree

    made = {}
    for name, variables in groups.items():
        sampled = name in ("posterior", "sample_stats")
        made[name] = arviz.dict_to_dataset(
            variables,
            dims=own.get(name, dims),
            coords=coords,
            sample_dims=["chain", "draw"] if sampled else [],
            inference_library=None,
        )
        made[name].attrs = {}
    made["posterior"].attrs = attributes(result)
    if result.kept is not None:
        made["own"].attrs = {"messages": json.dumps(result.kept.messages)}
    return DataTree.from_dict(made)


def attributes(result: Result) -> dict[str, Any]:
    """What a file says of the calibration, in numbers and words."""
    return {
        "eta": result.eta,
        "eta_se": result.eta_se,
        "level": result.level,
        "region": result.region.name,
        "coverage": float(result.coverage),
        "n_rows": result.coverage.n_replicates,
        "converged": int(result.converged),
        "message": result.message,
        "concerns": json.dumps(result.concerns),
        "groups": result.curve.groups,
        "settings": json.dumps(_written(result)),
        **result.versions,
    }


def _written(result: Result) -> dict[str, str]:
    """The settings as text, and the model, which is not kept itself; those of a loaded result are text already."""
    if all(isinstance(value, Written) for value in result.settings.values()):
        return {name: str(value) for name, value in result.settings.items()}
    from calibayes.report.source import model_of

    text = {name: repr(value) for name, value in result.settings.items()}
    return text if result.model is None else text | {"model": model_of(result.model, len(result.names))}


class Written(str):
    """A setting of a loaded result: of what it was, only the text is left."""


def versions() -> dict[str, str]:
    """Of what computed it."""
    from calibayes import __version__

    return {
        "calibayes_version": __version__,
        "jax_version": jax.__version__,
        "numpy_version": np.__version__,
        "python_version": platform.python_version(),
    }


def from_datatree(tree: Any) -> Result:
    """The result in a DataTree that `Result.to_datatree` made."""
    if "eta" not in tree["posterior"].attrs:
        raise ValueError("this DataTree is not a calibration: its posterior has no learning rate in its attributes.")
    said = tree["posterior"].attrs
    posterior, curve, trace, rows = (tree[name] for name in ("posterior", "curve", "trace", "bootstrap"))
    level, etas = float(said["level"]), curve["learning_rate"].values
    found = Curve(
        etas=etas,
        critical_levels=curve["critical_level"].values,
        ess=curve["ess"].values,
        level=level,
        groups=int(said["groups"]),
        in_groups=rows["critical_level"].values if "critical_level" in rows else None,
    )
    numbers = {name: trace[name].values for name in _TRACE}
    steps = numbers.pop("rungs")
    records = [
        Record(
            iteration=int(number),
            steps=int(steps[i]),
            intervals=trace["intervals"].values[i],
            **{name: float(values[i]) for name, values in numbers.items()},
        )
        for i, number in enumerate(trace["iteration"].values)
    ]
    return Result(
        eta=float(said["eta"]),
        eta_se=float(said["eta_se"]),
        coverage=Coverage(round(float(said["coverage"]) * int(said["n_rows"])), int(said["n_rows"])),
        converged=bool(said["converged"]),
        message=str(said["message"]),
        concerns=json.loads(str(said["concerns"])),
        trace=records,
        draws=posterior["theta"].values[0],
        risk=tree["sample_stats"]["risk"].values[0],
        curve=found,
        estimate=tree["estimate"]["theta"].values,
        level=level,
        names=[str(name) for name in posterior["parameter"].values],
        repaired_replicates=np.flatnonzero(rows["repaired"].values),
        region=_region(str(said["region"])),
        settings={name: Written(value) for name, value in json.loads(str(said["settings"])).items()},
        versions={name: str(said[name]) for name in versions()},
        own=_own(tree["own"], level) if "own" in tree.children else None,
    )


def _own(kept: Any, level: float) -> Intervals:
    return Intervals(
        names=[str(name) for name in kept["parameter"].values],
        level=level,
        bounds=kept["bounds"].values,
        converged=kept["converged"].values.astype(bool),
        eta=kept["eta"].values,
        eta_se=kept["eta_se"].values,
        messages=json.loads(str(kept.attrs["messages"])),
    )


def _region(name: str) -> Region:
    """The region of that name, if a name says it all."""
    for make in REGIONS.values():
        if make().name == name:
            return make()
    if name.startswith("Interval("):
        return Interval(int(name.removeprefix("Interval(").rstrip(")")))
    if name.startswith("Linear("):
        return Linear(np.array(json.loads(name.removeprefix("Linear(").rstrip(")")), float))
    return Remembered(name)


def save(result: Result, path: str | Path) -> Path:
    """Write the DataTree as NetCDF; with each parameter's own interval, which is a second's work for a few."""
    path = Path(path)
    if path.suffix != ".nc":
        raise ValueError(f"path must end in .nc (NetCDF); got {str(path)!r}.")
    if result.calibration is not None and result.converged and len(result.names) <= _QUICK:
        result.intervals()
    tree = to_datatree(result)
    if leads():
        tree.to_netcdf(path, engine="h5netcdf")
    return path


def load(path: str | Path) -> Result:
    """A saved result. Its numbers, draws, curve and `intervals()` are there; what needs particles, calibrated again."""
    _arviz("load")
    from xarray import load_datatree

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}.")
    return from_datatree(load_datatree(path, engine="h5netcdf"))


def _arviz(what: str) -> Any:
    try:
        import arviz_base
    except ImportError as error:
        raise ImportError(f"{what} needs ArviZ: pip install 'calibayes[arviz]'.") from error
    return arviz_base
