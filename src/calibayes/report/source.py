"""Write the Python script that repeats a calibration, from the objects and settings of its result."""

import ast
import builtins
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import calibayes
from calibayes._core.status import Code
from calibayes.bootstrap import Bootstrap
from calibayes.interop.numpyro import NumPyroPrior
from calibayes.io import StoredSetting
from calibayes.losses import FisslerZiegel, FunctionRisk, Generic, LinearLoss
from calibayes.methods import GPC, METHODS, Method, label
from calibayes.model import GibbsModel
from calibayes.regions import REGIONS, UnavailableRegion
from calibayes.result import Result
from calibayes.samplers import Transport
from calibayes.solve.bracket import Bracket
from calibayes.solve.robbins_monro import RobbinsMonro


@dataclass(frozen=True)
class SourceConfig:
    """Layout of the script; display choices."""

    longest_list: int = 20
    """Number of elements up to which a list or vector is written out."""
    line_width: int = 88
    """Characters above which the call is spread over several lines."""


CONFIG = SourceConfig()


def calibration_script(result: Result) -> str:
    """Return the code that repeats a calibration.

    Objects that have no source text, such as the data, appear as names; a comment lists them.
    """
    call = result.settings.get("call")
    text = _script(result) if call is None else _recorded_call(result, str(call))
    undefined = _undefined_names(text)
    if not undefined:
        return text
    return f"# Define {', '.join(undefined)} as in the original analysis.\n{text}"


def python_source(value: object, placeholder: str = "...") -> str:
    """Return an expression that evaluates to `value`, or `placeholder` if it has none that is short."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        words = np.asarray(jax.random.key_data(value)).tolist()
        return f"jax.random.wrap_key_data(np.array({words}, np.uint32))"
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        if array.ndim == 0:
            return str(array)
        short = array.ndim == 1 and len(array) <= CONFIG.longest_list
        return f"[{', '.join(map(str, array))}]" if short else placeholder
    if isinstance(value, eqx.Module) and type(value).__module__.startswith("calibayes."):
        return _constructor_call(value)
    if isinstance(value, StoredSetting):
        return value if _is_expression(value) else placeholder
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float | None):
        return repr(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(map(python_source, value))}]" if len(value) <= CONFIG.longest_list else placeholder
    text = getattr(value, "__name__", None) or repr(value)
    return text if _is_expression(text) else placeholder


def model_source(model: GibbsModel, dim: int) -> str:
    """Return the constructor call of a model with `dim` parameters."""
    if isinstance(model.prior, NumPyroPrior):
        return f"cb.GibbsModel.from_numpyro({python_source(model.prior.model, 'numpyro_model')}, data)"
    prior = python_source(getattr(model.prior, "distribution", model.prior), "prior")
    if isinstance(model.loss, FunctionRisk):
        options = [
            f"{name}={python_source(value, name)}"
            for name, value in (("prepare", model.loss.prepare_fn), ("nuisance", model.loss.nuisance_fn))
            if value is not None
        ]
        options += [f"{name}=True" for name in ("nuisance_on_host", "convex") if getattr(model.loss, name)]
        arguments = [python_source(model.loss.fn, "risk"), prior, f"dim={dim}", *options]
        return f"cb.GibbsModel.from_risk({', '.join(arguments)})"
    if not isinstance(model.loss, Generic) or isinstance(model.loss, FisslerZiegel):
        needs_dim = not isinstance(model.loss, LinearLoss) and model.dim is not None
        return f"cb.GibbsModel({python_source(model.loss, 'loss')}, {prior}{f', dim={dim}' if needs_dim else ''})"
    constructor = "cb.GibbsModel" if model.loss.sign == 1 else "cb.GibbsModel.from_log_likelihood"
    return f"{constructor}({python_source(model.loss.fn, 'loss')}, {prior}, dim={dim})"


def _undefined_names(text: str) -> list[str]:
    """Return the names that a script uses but does not define; none if it is not Python, such as a shell command."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return []
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return sorted(used - assigned - imported - set(dir(builtins)))


def _recorded_call(result: Result, call: str) -> str:
    """Return the recorded call, followed by `result.at` if this result has another level or region."""
    changes = {}
    if result.level != result.settings["level"]:
        changes["level"] = python_source(float(result.level))
    if result.region.name != result.settings["region"]:
        changes["region"] = _region_source(result.region)
    arguments = ", ".join(f"{name}={value}" for name, value in changes.items())
    return f"{call}\nresult = result.at({arguments})" if changes else call


def _script(result: Result) -> str:
    lines = list[str]()
    if isinstance(result.model, GibbsModel):
        lines.append(f"model = {model_source(result.model, len(result.names))}")
    elif "model" in result.settings:
        lines.append(f"model = {result.settings['model']}")
    options = [f"{name}={value}" for name, value in _options(result).items()]
    call = f"result = cb.calibrate(model, data, {', '.join(options)})"
    if len(call) > CONFIG.line_width:
        arguments = "".join(f"    {argument},\n" for argument in ("model", "data", *options))
        call = f"result = cb.calibrate(\n{arguments})"
    text = "\n".join([*lines, call])
    imports = ["import jax"] if "jax." in text else []
    imports += ["import numpy as np"] if "np." in text else []
    return "\n".join([*imports, "import calibayes as cb", "", text])


def _options(result: Result) -> dict[str, str]:
    """Return the options of `calibrate`: those that always matter, and the others if they are not the defaults."""
    settings = result.settings
    sampler = settings.get("sampler")
    # A fallback sampler is the outcome of sampler="auto".
    fell_back = any(diagnostic.code is Code.FALLBACK for diagnostic in result.diagnostics)
    uses_bracket = fell_back or isinstance(sampler, Transport)
    defaults = {
        "search": Bracket() if uses_bracket else RobbinsMonro(),
        "method": GPC(),
        "shape": None,
        "estimate": "mean",
        "eta_init": None,
        "tolerance": 0.005,
        "max_iterations": 100,
        "max_seconds": None,
    }
    options = {name: name for name in ("draws", "weights") if settings.get(name)}
    options |= {
        "level": python_source(float(result.level)),
        "region": _region_source(result.region),
        "sampler": python_source("auto") if fell_back else _sampler_source(sampler),
        "bootstrap": _bootstrap_source(settings.get("bootstrap"), result.coverage.n_replicates),
    }
    for name, default in defaults.items():
        value = settings.get(name, default)
        if python_source(value) != python_source(default) and repr(value) != repr(default):
            options[name] = _method_source(value) if name == "method" else python_source(value, name)
    if result.names != [f"theta[{k}]" for k in range(len(result.names))]:
        options["names"] = python_source(result.names, "names")
    return options | {"seed": python_source(settings.get("seed"), "seed")}


def _constructor_call(module: eqx.Module) -> str:
    """Return the constructor call of a loss, prior, sampler or similar, without arguments at their defaults."""
    arguments = []
    for parameter in inspect.signature(type(module)).parameters.values():
        # An argument that is not stored under its own name cannot be recovered, and appears as its name.
        stored = getattr(module, parameter.name, None) if parameter.name in vars(module) else None
        value = parameter.name if stored is None else python_source(stored, parameter.name)
        if parameter.default is inspect.Parameter.empty:
            arguments.append(value)
        elif stored is not None and value != python_source(_default(module, parameter)):
            arguments.append(f"{parameter.name}={value}")
    return f"{_qualified_name(type(module))}({', '.join(arguments)})"


def _default(module: eqx.Module, parameter: inspect.Parameter) -> Any:
    """Return the default of a constructor parameter, converted to the type in which the module stores it."""
    factory = getattr(type(module).__dataclass_fields__.get(parameter.name), "default_factory", None)
    default = factory() if callable(factory) else parameter.default
    stored = getattr(module, parameter.name)
    return np.asarray(default, stored.dtype) if isinstance(stored, jax.Array) and default is not None else default


def _qualified_name(cls: type) -> str:
    if getattr(calibayes, cls.__name__, None) is cls:
        return f"cb.{cls.__name__}"
    return f"cb.{cls.__module__.split('.')[1]}.{cls.__name__}"


def _region_source(region: Any) -> str:
    if isinstance(region, UnavailableRegion):
        return "region"
    names = {cls: name for name, cls in REGIONS.items()}
    return python_source(names.get(type(region), region), "region")


def _method_source(method: Any) -> str:
    named = isinstance(method, Method) and label(method) in METHODS
    return python_source(method.name if named else method, "method")


def _sampler_source(sampler: object) -> str:
    if isinstance(sampler, Transport) and sampler == Transport(audit=sampler.audit):
        return python_source("auto" if sampler.audit else "transport")
    return python_source(sampler, "sampler")


def _bootstrap_source(bootstrap: object, n_replicates: int) -> str:
    if isinstance(bootstrap, Bootstrap):
        return python_source(bootstrap)
    return str(n_replicates) if bootstrap is None or isinstance(bootstrap, int | np.integer) else "counts"


def _is_expression(text: str) -> bool:
    """Return whether a representation can stand in a script: one line, without a memory address."""
    return not (text.startswith("<") or "\n" in text or " at 0x" in text)
