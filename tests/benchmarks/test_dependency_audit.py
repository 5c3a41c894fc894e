"""The audit fails if a vulnerability is known, and reports if no package could be looked up."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("audit", Path(__file__).parents[2] / ".ci" / "audit.py")
audit = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(audit)

SAFE = {"name": "a", "version": "1", "vulns": []}
VULNERABLE = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
SKIPPED = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "status", "message"),
    [
        ([SAFE, SKIPPED], 0, "1 of 2 packages looked up, 0 known"),
        ([SAFE, VULNERABLE], 1, "b 2: CVE-1, fixed in 3"),
        ([SKIPPED], 0, "NOTHING WAS AUDITED: the index has none of 1 packages"),
        (None, 0, "NOTHING WAS AUDITED: no route"),
    ],
)
def test_status_and_message(packages, status, message, monkeypatch, tmp_path, capsys):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip-audit").touch()
    monkeypatch.setattr(audit, "ENVIRONMENT", tmp_path)
    out = "" if packages is None else json.dumps({"dependencies": packages})
    done = subprocess.CompletedProcess([], status, out, "a\nno route")
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: done)
    assert audit.main() == status
    assert message in capsys.readouterr().out


def test_missing_network_is_reported(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(audit, "ENVIRONMENT", tmp_path)
    monkeypatch.setattr(audit.venv, "create", lambda *_, **__: None)
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    assert audit.main() == 0
    assert "could not be installed" in capsys.readouterr().out
