"""The audit fails where a vulnerability is known, and says so where nothing could be looked up."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("audit", Path(__file__).parents[1] / ".ci" / "audit.py")
audit = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(audit)

WELL = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
SKIPPED = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "status", "said"),
    [
        ([WELL, SKIPPED], 0, "1 of 2 packages looked up, 0 known"),
        ([WELL, BAD], 1, "b 2: CVE-1, fixed in 3"),
        ([SKIPPED], 0, "NOTHING WAS AUDITED: the index knows none of 1 packages"),
        (None, 0, "NOTHING WAS AUDITED: no route"),
    ],
)
def test_audit(packages, status, said, monkeypatch, tmp_path, capsys):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip-audit").touch()
    monkeypatch.setattr(audit, "PLACE", tmp_path)
    out = "" if packages is None else json.dumps({"dependencies": packages})
    ran = subprocess.CompletedProcess([], status, out, "a\nno route")
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: ran)
    assert audit.main() == status
    assert said in capsys.readouterr().out


def test_no_network_to_install_from(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(audit, "PLACE", tmp_path)
    monkeypatch.setattr(audit.venv, "create", lambda *_, **__: None)
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    assert audit.main() == 0
    assert "could not be installed" in capsys.readouterr().out
