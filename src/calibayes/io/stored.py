"""Check the content of a stored result: names and shapes of its variables, ranges of their values, and its texts.

A file may have been edited, or written by another program. An error is better than a report with a negative learning
rate.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibayes._core.status import Status
from calibayes.io.layout import N_CHAINS, blocks, dimensions
from calibayes.result.wording import LABELS

if TYPE_CHECKING:
    from xarray import Dataset
else:
    # xarray is an optional dependency, so that its types are not available at run time.
    Dataset = Any


@dataclass(frozen=True)
class StoredConfig:
    """Tolerances of the checks."""

    rounding: float = 1e-5
    """Amount by which a probability may exceed one. It is a sum of weights in single precision, whose rounding error is
    about 1e-7 times the square root of their number."""
    max_populations: int = 1_000
    """Largest number of populations of draws, which bounds the memory of the coverage band. Transport has 20."""
    max_description: int = 20_000
    """Number of characters of a description; those of usual models have a few hundred. Order-of-magnitude choice."""


CONFIG = StoredConfig()


class Range(NamedTuple):
    """Smallest and largest value, and whether a value may also be NaN."""

    low: float = -math.inf
    high: float = math.inf
    allows_nan: bool = False

    def contains(self, values: np.ndarray) -> bool:
        """Return whether all values lie in the range."""
        inside = (values >= self.low) & (values <= self.high)
        return bool((inside | np.isnan(values) if self.allows_nan else inside).all())

    def __str__(self) -> str:
        return f"between {self.low:g} and {self.high:g}{' or NaN' * self.allows_nan}"


_ANY = Range(allows_nan=True)
_LARGEST, _SMALLEST = float(np.finfo(float).max), float(np.nextafter(0.0, 1.0))
_FINITE = Range(-_LARGEST, _LARGEST)
_POSITIVE = Range(_SMALLEST, _LARGEST)
_NOT_NEGATIVE = Range(0.0)
_PROBABILITY = Range(0.0, 1.0 + CONFIG.rounding)
_PROBABILITY_OR_NAN = _PROBABILITY._replace(allows_nan=True)
_SIZE_OR_NAN = Range(0.0, allows_nan=True)

_DRAWS = {
    ("sample_stats", "risk"): ("chain", "draw"),
    ("estimate", "theta"): ("parameter",),
}
"""Variables that are finite if the calibration converged, with their dimensions; so are the draws."""
_VARIABLES = {
    ("bootstrap", "repaired"): (("replicate",), Range(0, 1)),
    ("bootstrap", "critical_level"): (("replicate",), _PROBABILITY_OR_NAN),
    ("curve", "learning_rate"): (("learning_rate",), _POSITIVE),
    ("curve", "critical_level"): (("learning_rate", "replicate"), _PROBABILITY_OR_NAN),
    ("curve", "ess"): (("learning_rate",), _SIZE_OR_NAN),
    ("trace", "iteration"): (("iteration",), Range(1, _LARGEST)),
    ("trace", "eta"): (("iteration",), _POSITIVE),
    ("trace", "coverage"): (("iteration",), _PROBABILITY),
    ("trace", "ess"): (("iteration",), _SIZE_OR_NAN),
    ("trace", "ess_min"): (("iteration",), _SIZE_OR_NAN),
    ("trace", "steps"): (("iteration",), Range(0, _LARGEST)),
    ("trace", "acceptance"): (("iteration",), _PROBABILITY_OR_NAN),
    ("trace", "seconds"): (("iteration",), Range(0, _LARGEST)),
    ("trace", "intervals"): (("iteration", "parameter", "bound"), _ANY),
    ("intervals", "bounds"): (("parameter", "bound"), _ANY),
    ("intervals", "eta"): (("parameter",), _POSITIVE),
    ("intervals", "eta_se"): (("parameter",), _NOT_NEGATIVE),
}
"""Dimensions and ranges of the other variables."""
_OPTIONAL = {("bootstrap", "critical_level"), *(key for key in _VARIABLES if key[0] == "intervals")}
_NUMBERS = {
    "eta": _POSITIVE,
    "eta_se": _NOT_NEGATIVE,
    "level": Range(_SMALLEST, math.nextafter(1.0, 0.0)),
    "coverage": Range(0.0, 1.0),
    "n_replicates": Range(1, 2**53),
    "n_populations": Range(1, CONFIG.max_populations),
}
"""Attributes of the posterior that are numbers."""
_TEXTS = ("region", "region_arguments", "status", "diagnostics", "settings")
"""Attributes of the posterior that are texts."""
_DESCRIPTIONS = (*LABELS, "model_description", "bootstrap_description")
"""Settings that are sentences, which summaries and reports show; files of earlier versions have none."""


def shorten_description(text: str) -> str:
    """Return a description that is not too long to be loaded."""
    limit = CONFIG.max_description
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def check_stored(groups: Mapping[str, Dataset]) -> None:
    """Check the groups of a stored result.

    Parameters
    ----------
    groups : mapping of str to xarray.Dataset
        Groups of the `DataTree` by name.

    Raises
    ------
    ValueError
        If a variable is missing, has other dimensions or sizes than it should, or has an impossible value.
    """
    if "posterior" not in groups or "eta" not in groups["posterior"].attrs:
        raise ValueError("its posterior has no learning rate in its attributes.")
    _check_attributes(groups["posterior"].attrs)
    converged = Status[groups["posterior"].attrs["status"]].is_success
    sizes = {"bound": 2, "replicate": int(groups["posterior"].attrs["n_replicates"])}
    required = {key: (dims, _FINITE if converged else _ANY) for key, dims in _DRAWS.items()} | _VARIABLES
    for (group, name), (dims, allowed) in required.items():
        if (group, name) in _OPTIONAL and name not in groups.get(group, {}):
            continue
        _check_variable(groups, group, name, dims, allowed, sizes)
    if sizes["chain"] not in (1, N_CHAINS):
        raise ValueError(f"it has {sizes['chain']} chains; it should have 1 or {N_CHAINS}.")
    _check_draws(groups, _FINITE if converged else _ANY, sizes)
    for group, name in (("curve", "learning_rate"), ("trace", "iteration")):
        if (np.diff(groups[group][name].values) <= 0).any():
            raise ValueError(f"{name} of {group} does not increase.")
    for group, name in (("trace", "intervals"), ("intervals", "bounds")):
        if group in groups and (np.diff(groups[group][name].values) < 0).any():
            raise ValueError(f"{name} of {group} has a lower bound above its upper bound.")
    if not sizes["parameter"] or not sizes["draw"]:
        raise ValueError("it has no draws.")


def stored_names(groups: Mapping[str, Dataset]) -> list[str]:
    """Return the names of the parameters."""
    return [str(name) for name in groups["estimate"]["parameter"].values]


def _check_draws(groups: Mapping[str, Dataset], allowed: Range, sizes: dict[str, int]) -> None:
    """Check the variables with the draws of the parameters."""
    for name, block in blocks(stored_names(groups)).items():
        axes = dimensions(name, block)
        expected = sizes | dict(zip(axes, block.shape, strict=True))
        _check_variable(groups, "posterior", name, ("chain", "draw", *axes), allowed, expected)


def _check_attributes(attributes: Mapping[str, Any]) -> None:
    for name, allowed in _NUMBERS.items():
        value = np.asarray(attributes.get(name))
        if value.shape != () or value.dtype.kind not in "iuf" or not allowed.contains(value.astype(float)):
            raise ValueError(f"{name} must be {allowed}; it is {attributes.get(name)!r}.")
    for name in _TEXTS:
        if not isinstance(attributes.get(name), str):
            raise ValueError(f"its attribute {name} is not a text.")
    _check_settings(json.loads(attributes["settings"]))
    if attributes["status"] not in Status.__members__:
        raise ValueError(f"status is {attributes['status']!r}.")
    covered = float(attributes["coverage"]) * int(attributes["n_replicates"])
    if not math.isclose(covered, round(covered), abs_tol=1e-3):
        raise ValueError("coverage is not a share of the replicates.")


def _check_settings(settings: object) -> None:
    if not isinstance(settings, dict) or not all(isinstance(text, str) for text in settings.values()):
        raise ValueError("its settings are not texts by name.")
    for name in _DESCRIPTIONS:
        if len(settings.get(name, "")) > CONFIG.max_description:
            raise ValueError(f"{name} has more than {CONFIG.max_description:,} characters.")


def _check_variable(
    groups: Mapping[str, Dataset], group: str, name: str, dims: tuple[str, ...], allowed: Range, sizes: dict[str, int]
) -> None:
    """Check one variable; sizes of dimensions that are not yet known are added to `sizes`."""
    if group not in groups or name not in groups[group].variables:
        raise ValueError(f"the variable {name} of {group} is missing.")
    variable = groups[group][name]
    if variable.dims != dims or variable.dtype.kind not in "biuf":
        raise ValueError(f"{name} of {group} has the dimensions {variable.dims} and the type {variable.dtype}.")
    for dim, size in variable.sizes.items():
        if sizes.setdefault(str(dim), size) != size:
            raise ValueError(f"{name} of {group} has {size} values along {dim}; it should have {sizes[str(dim)]}.")
    if not allowed.contains(variable.values.astype(float)):
        raise ValueError(f"{name} of {group} must be {allowed}.")
