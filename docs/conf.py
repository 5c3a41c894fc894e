"""Sphinx configuration: `sphinx-build -W --keep-going -b html docs docs/_build/html`. The build needs no network."""

import os
import re
import sys
from pathlib import Path

import calibayes

BUILD = Path(__file__).parent / "_build"

project = "calibayes"
author = "The calibayes developers"
version = release = calibayes.__version__
project_copyright = author
html_title = "calibayes"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#20639b", "color-brand-content": "#20639b"},
    "dark_css_variables": {"color-brand-primary": "#7fb4e0", "color-brand-content": "#7fb4e0"},
}
html_copy_source = False
pygments_style = "friendly"

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3

nb_execution_mode = "cache"
nb_execution_cache_path = str(BUILD / ".jupyter_cache")
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_merge_streams = True

default_role = "code"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
python_maximum_signature_line_length = 90
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

# The notebook kernels inherit these settings: a cache of compiled programs, the commands of this Python environment,
# and no progress bars.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(BUILD / "jax")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
os.environ["IPYTHONDIR"] = str(BUILD / "ipython")
os.environ["TTY_COMPATIBLE"] = "0"
os.environ["COLUMNS"] = "88"

_PROFILE = BUILD / "ipython" / "profile_default"
(_PROFILE / "startup").mkdir(parents=True, exist_ok=True)
(_PROFILE / "ipython_kernel_config.py").write_text(
    'c.InlineBackend.figure_formats = {"svg"}\nc.HistoryManager.enabled = False\nc.IPKernelApp.log_level = "ERROR"\n'
)
(_PROFILE / "startup" / "plain.py").write_text("import rich.console\nrich.console._is_jupyter = lambda: False\n")


def convert_docstring(app, what, name, obj, options, lines):  # noqa: ARG001
    """Convert formulas between dollar signs to reStructuredText, and escape names such as `coef_` in types."""
    text = re.sub(r"(?<![`\w])(\w+)_(?=[,)])", r"\1\\_", "\n".join(lines))
    # Names of attributes in fields, such as `:ivar coef_:`.
    text = re.sub(r"^(\s*:\w+ \w+)_:", r"\1\\_:", text, flags=re.MULTILINE)
    text = re.sub(r"\$\$(.+?)\$\$", _display_math, text, flags=re.DOTALL)
    text = re.sub(r"\$([^$`]+?)\$", lambda match: f":math:`{' '.join(match[1].split())}`", text)
    lines[:] = text.split("\n")


def _display_math(match):
    return "\n\n.. math::\n\n   " + " ".join(match[1].split()) + "\n\n"


SHORT_TYPES = {
    r"~?[\w.]*_jax\.Array": "Array",
    r"~[\w.]*Key\[Array, ''\] \| .*?'4'\]": "PRNGKeyArray",
    r"Array \| ~numpy\.ndarray \| .*?Sequence\[float\]": "Numbers",
    r"<factory>": "...",
}


def shorten_types(app, what, name, obj, options, signature, return_annotation):  # noqa: ARG001
    """Replace expanded types in signatures by the names that they have in the source."""
    texts = [signature, return_annotation]
    for long, short in SHORT_TYPES.items():
        texts = [text and re.sub(long, short, text) for text in texts]
    return tuple(texts)


def setup(app):
    app.connect("autodoc-process-signature", shorten_types)
    app.connect("autodoc-process-docstring", convert_docstring, priority=600)
