"""Checkpoints in a directory without write permission are rejected."""

import pytest

import calibayes as cb
from calibayes.solve import checkpoint


def test_unwritable_directory_is_rejected(monkeypatch, tmp_path):
    """Root may write anywhere, so that the permission is replaced."""
    monkeypatch.setattr(checkpoint.os, "access", lambda *_: False)
    with pytest.raises(cb.CheckpointError, match="is not writable"):
        checkpoint.check_path(tmp_path / "run.ckpt")
