"""The call that gives a result again, as Python: from the objects that it was asked with."""

import ast
import builtins
import inspect
import json
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from calibayes.bootstrap import Bootstrap
from calibayes.interop.numpyro import NumPyroPrior
from calibayes.io import Written
from calibayes.losses import Generic
from calibayes.model import GibbsModel
from calibayes.regions import REGIONS, Remembered
from calibayes.result import Result
from calibayes.samplers import Transport
from calibayes.solve.found import FELL_BACK
from calibayes.solve.search import Bracket, RobbinsMonro

_IMPORT = ast.Import | ast.ImportFrom
_LONG = 20
_WIDTH = 88


def call_of(result: Result) -> str:
    """A script from the settings; what cannot be written down is a name that stands for it."""
    given = result.settings.get("call")
    text = _script(result) if given is None else _since(result, str(given))
    missing = _missing(text)
    return f"# With {', '.join(missing)} as they were.\n{text}" if missing else text


def _missing(text: str) -> list[str]:
    """Names that a script does not make itself; none of what is no Python."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return []
    made = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    imported = {(alias.asname or alias.name) for node in nodes if isinstance(node, _IMPORT) for alias in node.names}
    used = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    return sorted(set(used) - made - imported - set(dir(builtins)))


def _since(result: Result, call: str) -> str:
    """The call that was made, and what its result was asked then."""
    asked = {}
    if result.level != result.settings["level"]:
        asked["level"] = source(float(result.level))
    if result.region.name != result.settings["region"]:
        asked["region"] = _region(result.region)
    changed = ", ".join(f"{name}={value}" for name, value in asked.items())
    return f"{call}\nresult = result.at({changed})" if asked else call


def _script(result: Result) -> str:
    lines = list[str]()
    if isinstance(result.model, GibbsModel):
        lines.append(f"model = {model_of(result.model, len(result.names))}")
    elif "model" in result.settings:
        lines.append(f"model = {result.settings['model']}")
    named = ", ".join(f"{name}={value}" for name, value in _options(result).items())
    one = f"result = cb.calibrate(model, data, {named})"
    if len(one) > _WIDTH:
        options = "".join(f"    {name}={value},\n" for name, value in _options(result).items())
        one = f"result = cb.calibrate(\n    model,\n    data,\n{options})"
    text = "\n".join([*lines, one])
    needed = [f"import {name}" for name in ("jax",) if f"{name}." in text]
    needed += ["import numpy as np"] if "np." in text else []
    return "\n".join([*needed, "import calibayes as cb", "", text])


def source(value: Any, name: str = "...") -> str:
    """`value` as Python would make it; `name` where there is too much of it to write down."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        words = np.asarray(jax.random.key_data(value)).tolist()
        return f"jax.random.wrap_key_data(np.array({words}, np.uint32))"
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        if array.ndim == 0:
            return str(array)
        return f"[{', '.join(map(str, array))}]" if array.ndim == 1 and len(array) <= _LONG else name
    if isinstance(value, eqx.Module) and type(value).__module__.startswith("calibayes."):
        return _module(value)
    if isinstance(value, Written):
        return _plain(value) or name
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float | None):
        return repr(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(map(source, value))}]" if len(value) <= _LONG else name
    return _plain(getattr(value, "__name__", None) or repr(value)) or name


def _module(module: eqx.Module) -> str:
    """A loss, prior, sampler or the like by its constructor, less what is as it would be anyway."""
    parameters = list(inspect.signature(type(module)).parameters.values())
    given = []
    for parameter in parameters:
        # What is kept under another name stands for itself.
        kept = getattr(module, parameter.name, None) if parameter.name in vars(module) else None
        value = parameter.name if kept is None else source(kept, parameter.name)
        if parameter.default is inspect.Parameter.empty:
            given.append(value)
        elif kept is None:
            continue
        elif value != source(_default(module, parameter)):
            given.append(f"{parameter.name}={value}")
    return f"{_path(type(module))}({', '.join(given)})"


def _default(module: eqx.Module, parameter: inspect.Parameter) -> Any:
    """What a parameter would be; as the module keeps it, where that differs."""
    factory = getattr(type(module).__dataclass_fields__.get(parameter.name), "default_factory", None)
    default = factory() if callable(factory) else parameter.default
    kept = getattr(module, parameter.name)
    return np.asarray(default, kept.dtype) if isinstance(kept, jax.Array) and default is not None else default


def _path(cls: type) -> str:
    room = cls.__module__.split(".")[1]
    return f"cb.{cls.__name__}" if room in ("samplers", "search") else f"cb.{room}.{cls.__name__}"


def model_of(model: GibbsModel, dim: int) -> str:
    """A model by its constructor."""
    if isinstance(model.prior, NumPyroPrior):
        return f"cb.GibbsModel.from_numpyro({source(model.prior.model, 'numpyro_model')}, data)"
    prior = source(getattr(model.prior, "distribution", model.prior), "prior")
    if not isinstance(model.loss, Generic):
        return f"cb.GibbsModel({source(model.loss, 'loss')}, {prior})"
    maker = "cb.GibbsModel" if model.loss.sign == 1 else "cb.GibbsModel.from_log_likelihood"
    return f"{maker}({source(model.loss.fn, 'loss')}, {prior}, dim={dim})"


def _options(result: Result) -> dict[str, str]:
    """The options of `calibrate`: those that decide what is found, and others that are not as usual."""
    settings = result.settings
    sampler = settings.get("sampler")
    fell_back = FELL_BACK in result.concerns
    transport = fell_back or isinstance(sampler, Transport)
    usual = {
        "search": Bracket() if transport else RobbinsMonro(),
        "estimate": "mean",
        "eta_init": None,
        "tolerance": 0.005,
        "max_iterations": 100,
    }
    start = {"draws": "draws"} if settings.get("draws") else {}
    options = start | {
        "level": source(float(result.level)),
        "region": _region(result.region),
        "sampler": source("auto") if fell_back else _sampler(sampler),
        "bootstrap": _bootstrap(settings.get("bootstrap"), result.coverage.n_replicates),
    }
    for name, value in usual.items():
        given = settings.get(name, value)
        if source(given) != source(value) and repr(given) != repr(value):
            options[name] = source(given, name)
    if result.names != [f"theta[{k}]" for k in range(len(result.names))]:
        options["names"] = source(result.names, "names")
    return options | {"seed": source(settings.get("seed"), "seed")}


def _region(region: Any) -> str:
    known = {cls: name for name, cls in REGIONS.items()}
    if isinstance(region, Remembered):
        return "region"
    return source(known.get(type(region), region), "region")


def _sampler(sampler: Any) -> str:
    if isinstance(sampler, Transport) and sampler == Transport(audit=sampler.audit):
        return source("auto" if sampler.audit else "transport")
    return source(sampler, "sampler")


def _bootstrap(bootstrap: Any, n_replicates: int) -> str:
    if isinstance(bootstrap, Bootstrap):
        return source(bootstrap)
    return str(n_replicates) if bootstrap is None or isinstance(bootstrap, int | np.integer) else "counts"


def _plain(text: str) -> str | None:
    """A representation, unless it names a place in memory or runs over lines."""
    return None if text.startswith("<") or "\n" in text or " at 0x" in text else text
