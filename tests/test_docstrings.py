"""Docstrings of the public interface are complete, and their examples run.

A public object is a name in `calibayes`, in a public module such as `calibayes.losses`, or one of the classes in
`RETURNED`, which users receive but do not construct. Docstrings are in NumPy style. Every public class and function has
the sections that apply to it: `Parameters` (or `Attributes`) that document each argument, `Returns`, and `Examples`.
Public methods have `Parameters` and `Returns`.

The examples of all modules are run, also those of private ones. They may use the following names without defining them:

- `cb`, `np`, `jax`, `jnp`: `calibayes`, `numpy`, `jax` and `jax.numpy`;
- `data`: 60 observations of `cb.datasets.median_regression`;
- `model`: median regression with a weak normal prior;
- `result`: a small calibration of `model` on `data`, with two parameters.

Examples run in an empty temporary directory, and with JAX's default settings for type promotion.
"""

import ast
import doctest
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

import calibayes as cb

SOURCE = Path(cb.__file__).parent
MODULES = (
    "calibayes",
    "calibayes.bootstrap",
    "calibayes.datasets",
    "calibayes.diagnostics",
    "calibayes.estimators",
    "calibayes.interop",
    "calibayes.kernels",
    "calibayes.losses",
    "calibayes.methods",
    "calibayes.plots",
    "calibayes.priors",
    "calibayes.regions",
    "calibayes.samplers",
)
RETURNED = (
    "calibayes._core.curve.Curve",
    "calibayes.interop.numpyro.NumPyroPrior",
    "calibayes.result.Intervals",
    "calibayes.result.TraceRecord",
)
SLOW = {  # Each compiles a calibration of another loss; QuantileRegressor stands for them in quick runs.
    "estimators/classifiers.py::LogisticClassifier",
    "estimators/classifiers.py::SVMClassifier",
    "estimators/regressors.py::GibbsRegressor",
    "estimators/regressors.py::HuberRegressor",
}
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def public_names(module):
    """Return the names in `__all__`, or else the classes and functions that are defined or re-exported here."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    exported = set(re.findall(r"^from \S+ import (\w+) as \1$", inspect.getsource(module), re.MULTILINE))
    defined = {name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
    return sorted(name for name in exported | defined if not name.startswith("_"))


def public_objects():
    """Return the public classes and functions by their qualified names."""
    objects = {}
    for path in MODULES:
        module = importlib.import_module(path)
        objects |= {f"{path}.{name}": getattr(module, name) for name in public_names(module)}
    for path in RETURNED:
        module, _, name = path.rpartition(".")
        objects[path] = getattr(importlib.import_module(module), name)
    unique = {id(value): (name, value) for name, value in reversed(objects.items())}
    return {name: value for name, value in unique.values() if inspect.isclass(value) or inspect.isroutine(value)}


def public_methods():
    """Return the public methods and properties that public classes define or inherit within this package."""
    methods, seen = {}, set()
    for path, cls in OBJECTS.items():
        for name in dir(cls) if inspect.isclass(cls) and not issubclass(cls, enum.Enum | Exception) else ():
            owner = next((base for base in cls.__mro__ if name in vars(base)), object)
            value = vars(owner).get(name)
            is_method = isinstance(value, property | classmethod | staticmethod) or inspect.isroutine(value)
            is_public = not name.startswith("_") and owner.__module__.startswith("calibayes")
            if is_method and is_public and (owner, name) not in seen:
                methods[f"{path}.{name}"] = getattr(cls, name)
                seen.add((owner, name))
    return methods


OBJECTS = public_objects()
METHODS = public_methods()


def sections(value):
    """Return the text of each section of a docstring by its title."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}$", inspect.getdoc(value) or "", flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def documented_names(section):
    """Return the names in a section of parameters: the part before the colon of the lines without indentation."""
    lines = re.findall(r"^(\S[^:\n]*)", section, re.MULTILINE)
    return {name.strip(" *") for line in lines for name in line.split(",")}


def arguments(value):
    """Return the names of the public arguments of a function, method or constructor."""
    if inspect.isclass(value) and issubclass(value, enum.Enum | Exception):
        return set()
    names = inspect.signature(value).parameters
    return {name for name in names if name not in ("self", "cls", "args", "kwargs", "options") and name[0] != "_"}


def check_arguments(value, titles):
    """Check that the docstring documents every argument in one of the sections."""
    text = sections(value)
    documented = {name for title in titles for name in documented_names(text.get(title, ""))}
    missing = arguments(value) - documented
    assert not missing, f"not documented in {' or '.join(titles)}: {', '.join(sorted(missing))}"


def check_returns(value):
    annotation = inspect.signature(value).return_annotation
    if annotation not in (None, Iterator[None], inspect.Signature.empty):
        assert {"Returns", "Yields"} & set(sections(value)), "no section Returns"


@pytest.mark.parametrize("path", OBJECTS)
def test_public_object_has_a_complete_docstring(path):
    value = OBJECTS[path]
    assert inspect.getdoc(value), "no docstring"
    if inspect.isclass(value):
        assert value.__doc__, "no docstring of its own"
        check_arguments(value, ("Parameters", "Attributes"))
    else:
        check_arguments(value, ("Parameters",))
        check_returns(value)
    if not (inspect.isclass(value) and issubclass(value, Exception)):
        assert ">>>" in sections(value).get("Examples", ""), "no Examples"


@pytest.mark.parametrize("path", METHODS)
def test_public_method_has_a_complete_docstring(path):
    value = METHODS[path]
    assert inspect.getdoc(value), "no docstring"
    if not isinstance(value, property):
        check_arguments(value, ("Parameters",))
        check_returns(value)


@pytest.mark.parametrize("path", OBJECTS)
def test_attributes_are_documented_one_by_one(path):
    """The API page shows the first of several names on a line as the type of the last."""
    lines = re.findall(r"^(\S[^:\n]*)", sections(OBJECTS[path]).get("Attributes", ""), re.MULTILINE)
    assert not [line for line in lines if "," in line]


@pytest.mark.parametrize("path", [path for path, value in METHODS.items() if isinstance(value, property)])
def test_first_line_of_a_property_has_no_colon(path):
    """The API page shows the words before it as the type of the property."""
    assert ": " not in inspect.getdoc(METHODS[path]).splitlines()[0]


def test_first_line_of_a_code_has_no_colon():
    """The same for the members of the enum, whose documentation is a string after each of them."""
    (definition,) = (node for node in ast.parse((SOURCE / "_core" / "status.py").read_text()).body if is_code(node))
    strings = [node.value.value for node in definition.body if isinstance(node, ast.Expr)]
    assert len(strings) > len(cb.Code)
    assert not [text for text in strings[1:] if ": " in text.splitlines()[0]]


def is_code(node):
    return isinstance(node, ast.ClassDef) and node.name == "Code"


def test_public_modules_have_docstrings():
    modules = [getattr(cb, name) for name in public_names(cb) if isinstance(getattr(cb, name), ModuleType)]
    assert {module.__name__ for module in modules} <= set(MODULES)
    assert all(importlib.import_module(path).__doc__ for path in MODULES)


def examples():
    """Return the docstrings with examples in all files of the package, by file and qualified name."""
    tests = {}
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text())
        for name, node in documented_nodes(tree, ""):
            docstring = ast.get_docstring(node)
            if docstring and ">>>" in docstring:
                tests[f"{file.relative_to(SOURCE)}::{name or 'module'}"] = docstring
    return tests


def documented_nodes(node, prefix):
    yield prefix, node
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from documented_nodes(child, f"{prefix}.{child.name}" if prefix else child.name)


@pytest.fixture(scope="module", autouse=True)
def _default_settings():
    mpl.use("Agg")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
    plt.close("all")


@pytest.fixture(scope="module")
def names():
    """Names that examples may use."""
    data = cb.datasets.median_regression(n=60, seed=0)
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    result = cb.calibrate(model, data, bootstrap=100, sampler="transport", seed=0, progress=False)
    return {"cb": cb, "np": np, "jax": jax, "jnp": jnp, "data": data, "model": model, "result": result}


EXAMPLES = examples()


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=pytest.mark.slow) if path in SLOW else path for path in EXAMPLES]
)
def test_example_runs(path, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(EXAMPLES[path], dict(names), path, path, 0)
    report = []
    doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=report.append)
    assert not report, "".join(report)
