"""Comparison of two source trees, on stubs of the library."""

import pytest

from benchmarks import compare
from benchmarks.common import ROOT
from benchmarks.compare import Timing, Version

STUB = """
import time
from types import SimpleNamespace

class losses:
    Quantile = Hinge = Logistic = staticmethod(lambda *_: None)

class priors:
    Normal = Laplace = staticmethod(lambda **_: None)

class datasets:
    median_regression = heart_disease = staticmethod(lambda *_: None)

def GibbsModel(*_):
    pass

def calibrate(model, data, seed, progress, bootstrap=None):
    time.sleep({seconds})
    return SimpleNamespace(eta={eta} + seed)
"""


@pytest.fixture
def make_tree(tmp_path):
    def make(name, seconds, eta):
        package = tmp_path / name / "calibayes"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(STUB.format(seconds=seconds, eta=eta))
        return package.parent

    return make


def test_versions_are_timed_in_turns(make_tree):
    """The old version sleeps for three times as long."""
    versions = [Version(make_tree("old", 0.03, 1.0)), Version(make_tree("new", 0.01, 1.0))]
    try:
        first, later = compare.measure(versions, 0, 4)
    finally:
        for version in versions:
            version.close()
    result = compare.summarise("a", first, later)
    assert 2 < result["ratio"] < 4
    assert result["same_eta"]
    assert [len(timings) for timings in later] == [2] * 4
    assert all(version.process.returncode == 0 for version in versions)


def test_other_etas_are_reported():
    result = compare.summarise("a", [Timing(1, 1), Timing(1, 1)], [[Timing(4.0, 1.0), Timing(2.0, 1.5)]])
    assert (result["ratio"], result["same_eta"]) == (2.0, False)
    ((name, old, new, ratio, _, same),) = compare.table([result]).rows
    assert (name, old, new, ratio, same) == ("a", "4", "2", "2.00 (2.00, 2.00)", "no")


def test_folder_without_the_package_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="is not a source tree of calibayes"):
        Version(tmp_path)


def test_default_tree_is_this_repository():
    assert (ROOT / "src" / "calibayes" / "__init__.py").exists()
