"""Convert a result to an ArviZ `DataTree`, save it as NetCDF, and read it back.

A file holds the numbers of a result: draws, coverage curve, trace, intervals, status and diagnostics. It also holds
the settings as source text, and sentences about loss, prior and bootstrap for reports. It does not hold the particles
on the bootstrap replicates, so methods of a loaded result that need particles (`at`, `posterior`, `validate`,
`level_of`) raise an error.

A file ends with the SHA-256 digest of all bytes before it, which readers of NetCDF ignore. It is compared before the
HDF5 library parses the file, because that can crash or return other numbers if a byte has changed. Then the declared
sizes and the ranges of all numbers are checked, for files that were not written by this library.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibayes._backend.distributed import is_main_process
from calibayes._backend.files import append_checksum, read_with_checksum, replace_file
from calibayes._backend.text import printable
from calibayes._backend.versions import versions
from calibayes._core.curve import Coverage, Curve
from calibayes._core.status import Code, Diagnostic, Severity, Status
from calibayes.io.layout import blocks, dimensions, from_variables, split_chains, to_variables
from calibayes.io.netcdf import check_sizes
from calibayes.io.stored import check_stored, shorten_description, stored_names
from calibayes.regions import REGIONS, Interval, Linear, Region, UnavailableRegion
from calibayes.result import Intervals, Result, TraceRecord
from calibayes.result.wording import describe_data

if TYPE_CHECKING:
    from xarray import Dataset, DataTree
else:
    # xarray is an optional dependency, so that its types are not available at run time.
    Dataset = DataTree = Any


@dataclass(frozen=True)
class StorageConfig:
    """Choices for saving a result."""

    max_parameters_for_intervals: int = 30
    """Number of parameters up to which `save` and the HTML report compute `result.intervals()` without being asked.
    That takes about as long as a second calibration; an order-of-magnitude choice."""


CONFIG = StorageConfig()

_TRACE_FIELDS = ("eta", "coverage", "ess", "ess_min", "steps", "acceptance", "seconds")
_INTERVAL_FIELDS = ("eta", "eta_se")


class StoredSetting(str):
    """The source text of a setting of a loaded result."""


def save(result: Result, path: str | Path) -> Path:
    """Write a result as NetCDF.

    Parameters
    ----------
    result : Result
        The result of `calibayes.calibrate`. If it converged and has at most `CONFIG.max_parameters_for_intervals`
        parameters, `result.intervals()` is computed first, so that the file contains the intervals.
    path : str or Path
        Path of the file; must end in `.nc`.

    Returns
    -------
    Path
        The path of the written file.

    Raises
    ------
    ValueError
        If `path` does not end in `.nc`.
    ImportError
        If the packages of the extra `calibayes[arviz]` are not installed.

    Examples
    --------
    >>> str(result.save("result.nc"))
    'result.nc'
    """
    path = Path(path)
    if path.suffix != ".nc":
        raise ValueError(f"path must end in .nc (NetCDF); got {str(path)!r}.")
    if result.calibration is not None and result.converged and len(result.names) <= CONFIG.max_parameters_for_intervals:
        result.intervals()  # computed now, so that the file contains them
    tree = to_datatree(result)
    if is_main_process():
        with replace_file(path.resolve()) as temporary:
            tree.to_netcdf(temporary, engine="h5netcdf")
            append_checksum(temporary)
    return path


def load(path: str | Path) -> Result:
    """Read a result that `Result.save` wrote.

    Parameters
    ----------
    path : str or Path
        Path of the NetCDF file.

    Returns
    -------
    Result
        The result with its numbers, draws, coverage curve, trace and, if `save` stored them, intervals. Its model and
        data are None, and methods that need particles raise a `RuntimeError`.

    Raises
    ------
    FileNotFoundError
        If there is no file at `path`.
    ValueError
        If the file is damaged, has no checksum, or its contents are inconsistent, such as arrays whose shapes do not
        agree.
    ImportError
        If the packages of the extra `calibayes[arviz]` are not installed.

    Notes
    -----
    Files without a checksum, from other programs and from earlier versions, are rejected. If you trust such a file, use
    `calibayes.io.from_datatree(xarray.load_datatree(path, engine="h5netcdf"))`.

    Examples
    --------
    >>> path = result.save("result.nc")
    >>> loaded = cb.load(path)
    >>> loaded.eta == result.eta
    True
    """
    _import_arviz("load")
    from xarray import open_datatree

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    try:
        # All checks and the library see the same bytes, and no file stays open after an error.
        content = BytesIO(read_with_checksum(path))
        check_sizes(content)
        with open_datatree(content, engine="h5netcdf", decode_times=False) as tree:
            return from_datatree(tree)
    except Exception as error:
        # Libraries raise errors of many types for content that they do not expect.
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be loaded: {reason} Save the result again, or restore a copy.") from error


def to_datatree(result: Result) -> DataTree:
    """Return the `DataTree` of `Result.to_datatree`."""
    arviz = _import_arviz("to_datatree")
    from xarray import DataTree

    # Texts in HDF5 cannot contain the null character.
    names = [name.replace("\0", printable("\0")) for name in result.names]
    groups = _groups(result, names)
    dims = _dims(groups) | {"posterior": {name: dimensions(name, block) for name, block in blocks(names).items()}}
    coords = {
        "parameter": names,
        "learning_rate": result.curve.etas,
        "bound": ["low", "high"],
        "iteration": [record.iteration for record in result.trace],
    }
    datasets = {}
    for name, variables in groups.items():
        sample_dims = ["chain", "draw"] if name in ("posterior", "sample_stats") else []
        datasets[name] = arviz.dict_to_dataset(
            variables, dims=dims[name], coords=coords, sample_dims=sample_dims, inference_library=None
        )
        datasets[name].attrs = {}
    datasets["posterior"].attrs = _attributes(result)
    if result.computed_intervals is not None:
        datasets["intervals"].attrs = {
            "status": json.dumps([status.name for status in result.computed_intervals.status]),
            "diagnostics": json.dumps(
                [encode_diagnostics(diagnostics) for diagnostics in result.computed_intervals.diagnostics]
            ),
        }
    return DataTree.from_dict(datasets)


def _groups(result: Result, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the variables of every group."""
    curve, trace = result.curve, result.trace
    n_draws, n_replicates = len(result.draws), result.coverage.n_replicates
    equal_weights = np.full(n_draws, -np.log(n_draws))
    groups: dict[str, dict[str, Any]] = {
        "posterior": to_variables(names, result.draws),
        "sample_stats": {"risk": split_chains(result.risk), "log_weight": split_chains(equal_weights)},
        "bootstrap": {"repaired": np.isin(np.arange(n_replicates), result.repaired_replicates)},
        "curve": {"critical_level": curve.critical_levels, "ess": curve.ess, "band": curve.band()},
        "trace": {name: np.array([getattr(record, name) for record in trace]) for name in _TRACE_FIELDS},
        "estimate": {"theta": result.estimate},
    }
    if curve.first_critical_levels is not None:
        groups["bootstrap"]["critical_level"] = curve.first_critical_levels
    groups["trace"]["intervals"] = np.array([record.intervals for record in trace])
    if result.computed_intervals is not None:
        groups["intervals"] = {name: getattr(result.computed_intervals, name) for name in ("bounds", *_INTERVAL_FIELDS)}
    return groups


def _dims(groups: dict[str, dict[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """Return the dimensions of the variables of every group."""
    common = {
        "theta": ["parameter"],
        "repaired": ["replicate"],
        "critical_level": ["learning_rate", "replicate"],
        "ess": ["learning_rate"],
        "band": ["learning_rate", "bound"],
        "bounds": ["parameter", "bound"],
    }
    special = {
        "bootstrap": {"critical_level": ["replicate"]},
        "trace": {name: ["iteration"] for name in _TRACE_FIELDS} | {"intervals": ["iteration", "parameter", "bound"]},
        "intervals": {name: ["parameter"] for name in _INTERVAL_FIELDS},
    }
    return {name: common | special.get(name, {}) for name in groups}


def _attributes(result: Result) -> dict[str, Any]:
    """Return the scalars and texts of a result as attributes of its posterior."""
    return {
        "eta": result.eta,
        "eta_se": result.eta_se,
        "level": result.level,
        "region": result.region.name,
        "region_arguments": json.dumps(_region_arguments(result.region)),
        "coverage": float(result.coverage),
        "n_replicates": result.coverage.n_replicates,
        "status": result.status.name,
        "diagnostics": json.dumps(encode_diagnostics(result.diagnostics)),
        "n_populations": result.curve.n_populations,
        "settings": json.dumps(_settings(result)),
        **result.versions,
    }


def _settings(result: Result) -> dict[str, str]:
    """Return settings and model as source text, with descriptions; settings of a loaded result are text already."""
    if all(isinstance(value, StoredSetting) for value in result.settings.values()):
        return {name: str(value) for name, value in result.settings.items()}
    from calibayes.report.description import descriptions_to_store
    from calibayes.report.source import model_source

    text = {name: repr(value) for name, value in result.settings.items()}
    descriptions = describe_data(result.settings) | descriptions_to_store(result)
    text |= {name: shorten_description(description) for name, description in descriptions.items()}
    return text if result.model is None else text | {"model": model_source(result.model, len(result.names))}


def from_datatree(tree: DataTree) -> Result:
    """Return the result in a `DataTree` that `Result.to_datatree` made.

    Raises
    ------
    ValueError
        If the `DataTree` does not describe a calibration, or contains impossible values.
    """
    groups = {name: node.to_dataset() for name, node in tree.children.items()}
    try:
        check_stored(groups)
        return _result(groups)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is not a calibration: {error}") from error


def _result(groups: dict[str, Dataset]) -> Result:
    posterior = groups["posterior"]
    attrs = posterior.attrs
    level, n_replicates = float(attrs["level"]), int(attrs["n_replicates"])
    names = stored_names(groups)
    region = _region(str(attrs["region"]), json.loads(attrs["region_arguments"]))
    if not isinstance(region, UnavailableRegion):
        region.check(len(names))
    result = Result(
        eta=float(attrs["eta"]),
        eta_se=float(attrs["eta_se"]),
        coverage=Coverage(round(float(attrs["coverage"]) * n_replicates), n_replicates),
        status=Status[attrs["status"]],
        diagnostics=_decode_diagnostics(json.loads(attrs["diagnostics"])),
        trace=_trace(groups["trace"]),
        draws=from_variables(names, {str(name): variable.values for name, variable in posterior.data_vars.items()}),
        risk=groups["sample_stats"]["risk"].values.ravel(),
        curve=_curve(groups["curve"], groups["bootstrap"], level, int(attrs["n_populations"])),
        estimate=groups["estimate"]["theta"].values,
        level=level,
        names=names,
        repaired_replicates=np.flatnonzero(groups["bootstrap"]["repaired"].values),
        region=region,
        settings={str(name): StoredSetting(value) for name, value in json.loads(attrs["settings"]).items()},
        versions={name: str(attrs[name]) for name in versions()},
    )
    if "intervals" not in groups:
        return result
    return replace(result, saved_intervals=_intervals(groups["intervals"], names, level, result.means))


def _curve(curve: Dataset, bootstrap: Dataset, level: float, n_populations: int) -> Curve:
    return Curve(
        etas=curve["learning_rate"].values,
        critical_levels=curve["critical_level"].values,
        ess=curve["ess"].values,
        level=level,
        n_populations=n_populations,
        first_critical_levels=bootstrap["critical_level"].values if "critical_level" in bootstrap else None,
    )


def _trace(trace: Dataset) -> list[TraceRecord]:
    columns = {name: trace[name].values.tolist() for name in _TRACE_FIELDS}
    return [
        TraceRecord(
            iteration=int(iteration),
            intervals=trace["intervals"].values[i],
            **{name: values[i] for name, values in columns.items()},
        )
        for i, iteration in enumerate(trace["iteration"].values)
    ]


def _intervals(intervals: Dataset, names: list[str], level: float, means: np.ndarray) -> Intervals:
    status = [Status[name] for name in json.loads(intervals.attrs["status"])]
    diagnostics = [_decode_diagnostics(entries) for entries in json.loads(intervals.attrs["diagnostics"])]
    if not len(status) == len(diagnostics) == len(names):
        raise ValueError(f"intervals has {len(status)} statuses and {len(diagnostics)} lists of diagnostics.")
    return Intervals(
        names=names,
        level=level,
        bounds=intervals["bounds"].values,
        eta=intervals["eta"].values,
        eta_se=intervals["eta_se"].values,
        status=status,
        diagnostics=diagnostics,
        means=means,
    )


def encode_diagnostics(diagnostics: Iterable[Diagnostic]) -> list[dict[str, Any]]:
    """Return diagnostics as JSON data."""
    return [
        {
            "code": diagnostic.code.value,
            "severity": diagnostic.severity.name,
            "count": diagnostic.count,
            "message": diagnostic.message,
        }
        for diagnostic in diagnostics
    ]


def _decode_diagnostics(entries: Iterable[dict[str, Any]]) -> list[Diagnostic]:
    return [
        Diagnostic(Code(entry["code"]), Severity[entry["severity"]], int(entry["count"]), str(entry["message"]))
        for entry in entries
    ]


def _region_arguments(region: Region) -> dict[str, Any]:
    """Return the constructor arguments of a region that has any and can be stored."""
    match region:
        case Interval():
            return {"index": int(region.index)}
        case Linear():
            return {"vector": np.asarray(region.vector).tolist()}
    return {}


def _region(name: str, arguments: dict[str, Any]) -> Region:
    """Return the stored region; a `UnavailableRegion` if only its name could be stored."""
    if "index" in arguments:
        return Interval(arguments["index"])
    if "vector" in arguments:
        return Linear(arguments["vector"])
    known = {make().name: make for make in REGIONS.values()}
    return known[name]() if name in known else UnavailableRegion(name)


def _import_arviz(caller: str) -> Any:
    try:
        import arviz_base
    except ImportError as error:
        raise ImportError(f"{caller} needs ArviZ: pip install 'calibayes[arviz]'.") from error
    return arviz_base
