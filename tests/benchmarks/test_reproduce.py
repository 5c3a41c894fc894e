"""Comparison of the results of two Python versions."""

import pytest

from benchmarks import reproduce


def results(eta, draws):
    return {"versions": {}, "results": {"smc": {"eta": eta.hex(), "eta_se": (0.01).hex(), "draws": draws}}}


def test_results_must_be_identical_with_the_same_packages():
    reference = results(0.5, [1.0, 2.0])
    identical = reproduce.compare(reference, results(0.5, [1.0, 2.0]))
    near = reproduce.compare(reference, results(0.5, [1.0, 2.0000001]))
    far = reproduce.compare(reference, results(0.6, [1.0, 2.0]))
    assert reproduce.failures(identical, near) == []
    assert reproduce.failures(near, identical) == ["smc: not identical with the same packages"]
    assert reproduce.failures(identical, far) == ["smc: a different eta"]
    assert far["problems"]["smc"]["difference_in_se"] == pytest.approx(0.1 / (0.01 * 2**0.5))
