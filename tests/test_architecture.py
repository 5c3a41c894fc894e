"""docs/architecture.md states the layers of the package and the modules that a calibration enters."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "calibayes"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MAX_PATH = 25

TRACE = """
import re, sys, threading
from pathlib import Path
import calibayes as cb

package = str(Path(cb.__file__).parent) + "/"
entered = []

def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(package):
        entered.append(code.co_filename)

example = re.search(r"```python\\n(.*?)```", Path(sys.argv[1]).read_text(), re.DOTALL)[1]
model_and_data, call = re.match(r"(.*)^(result = [^\\n]*)", example, re.DOTALL | re.MULTILINE).groups()
scope = {}
exec(model_and_data, scope)
threading.setprofile(profile)
sys.setprofile(profile)
exec(call, scope)
scope["result"].eta
sys.setprofile(None)
print("\\n".join(path.removeprefix(package) for path in dict.fromkeys(entered)))
"""


def modules_between(name):
    """Return the modules of the table between two marks of the page, in order."""
    table = PAGE.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return [module for cell in cells for module in re.findall(r"`([^`]+)`", cell)]


@pytest.fixture(scope="module")
def entered():
    """The modules of which a function runs between the call of `calibrate` and `result.eta`."""
    env = {"PATH": "/usr/bin:/bin", "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir)}
    command = [sys.executable, "-c", TRACE, str(ROOT / "README.md")]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.split()


def test_lists_are_the_modules_that_the_example_enters(entered):
    path, support = modules_between("path"), modules_between("support")
    assert len(path) <= MAX_PATH
    assert len({*path, *support}) == len(path) + len(support)
    assert {*path, *support} == set(entered)


def test_modules_of_the_page_exist():
    assert all((PACKAGE / module).exists() for name in ("path", "support") for module in modules_between(name))


def test_picture_shows_the_layers_that_are_checked():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    checked = [sorted(layer.split(" : ")) for layer in contract["layers"]]
    picture = re.findall(r'class="name"[^>]*>([^<]+)<', (ROOT / "docs" / "layers.svg").read_text())
    drawn = [row.split(" · ") for row in picture]
    # A row of the picture may join several layers; the order is the same.
    assert sorted(name for row in drawn for name in row) == sorted(name for layer in checked for name in layer)
    position = {name: i for i, row in enumerate(drawn) for name in row}
    positions = [position[name] for layer in checked for name in layer]
    assert positions == sorted(positions)
    described = re.search(r"From top to bottom: (.*?)\.\]", PAGE, re.DOTALL)[1]
    assert [[name.strip() for name in row.split(",")] for row in described.split(";")] == drawn
