"""Variation of tuning constants."""

import json
import subprocess
import sys

import pytest
from rich.console import Console

from benchmarks import sensitivity
from benchmarks.common import ROOT
from benchmarks.sensitivity import CONSTANTS, Constant


def test_paths_are_unique():
    assert len({constant.path for constant in CONSTANTS}) == len(CONSTANTS) > 20


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda constant: constant.path)
def test_constant_exists_and_is_varied(constant):
    """Otherwise the constant was renamed: adapt its path."""
    default, values = constant.default(), constant.values_to_try()
    assert len(values) == 2
    assert all(type(value) is type(default) and value != default for value in values)


def test_nested_fields_are_replaced():
    constant = Constant("calibayes.samplers.transport.config:CONFIG.fit.good_ess")
    from calibayes.samplers.transport import config

    changed = sensitivity.with_value(config.CONFIG, constant.names[1:], 0.7)
    assert (changed.fit.good_ess, config.CONFIG.fit.good_ess) == (0.7, constant.default())
    assert changed.pool == config.CONFIG.pool
    with pytest.raises(ValueError, match="FitConfig has no field 'nothing'"):
        sensitivity.with_value(config.CONFIG, ["fit", "nothing"], 0.7)


PROGRAM = """
import calibayes as cb
from benchmarks.sensitivity import override
override("calibayes.samplers.populations:N_POPULATIONS", 7)
override("calibayes.solve.curve:CONFIG.n_points", 5)
from calibayes.samplers import populations
from calibayes.samplers.transport import pool
from calibayes.solve import curve
print(populations.N_POPULATIONS, pool.N_POPULATIONS, cb.Transport.n_populations, curve.CONFIG.n_points)
"""


def test_override_replaces_every_reference():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["7", "7", "7", "5"]


def results(eta, seconds=1.0, converged=True):
    return {"problems": {"a": {"eta": eta, "eta_se": [0.1, 0.2], "converged": converged, "seconds": seconds}}}


def test_results_are_stored_and_tabulated(monkeypatch, tmp_path):
    """Differences are in standard errors, the largest over seeds; other constants of the file are kept."""
    path = tmp_path / "sensitivity.json"
    answers = {
        ("", None): results([1.0, 2.0]),
        ("calibayes.solve.curve:CONFIG.n_points", 5): results([1.05, 1.8], 0.5),
        ("calibayes.solve.curve:CONFIG.n_points", 50): {"error": "no memory"},
    }
    monkeypatch.setattr(sensitivity, "run_worker", lambda *key: answers[key])
    old = {"path": "calibayes.other:CONFIG.gone", "default": 1, "value": 2, **results([1.0, 2.0], 2.0, False)}
    path.write_text(json.dumps({"constants": [old]}))
    constants = [Constant("calibayes.solve.curve:CONFIG.n_points", (5, 50))]
    stored = sensitivity.measure(constants, path, Console(quiet=True))
    assert json.loads(path.read_text()) == stored
    assert "jax" in stored["machine"]
    rows = sensitivity.table(stored).rows
    assert rows == [
        ["defaults", "", "+0.00", "1.00"],
        ["solve.curve:CONFIG.n_points", "15 -> 5", "-1.00", "0.50"],
        ["solve.curve:CONFIG.n_points", "15 -> 50", "no memory", ""],
        ["other:CONFIG.gone", "1 -> 2", "+0.00 (not converged)", "2.00"],
    ]
    monkeypatch.setattr(sensitivity, "run_worker", lambda *key: pytest.fail(f"{key} was run again"))
    assert sensitivity.measure(constants, path, Console(quiet=True), resume=True) == stored
