"""Display of a running calibration."""

import io
import time

import pytest
from rich.console import Console

from calibayes.progress import LiveLine


@pytest.fixture
def stream(monkeypatch):
    """Output of a terminal."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    monkeypatch.setattr("calibayes.progress.Console", lambda stderr: console)
    return stream


def test_terminal_shows_iteration_and_phase(stream):
    with LiveLine(True, n_draws=200) as live:
        live.phase("bootstrap replicates")
        live.iteration(3, 1.5, 0.95, 50.0)
        live.fraction_done(0.5)
    text = stream.getvalue()
    assert "iteration   3  eta 1.5  coverage 0.950  ESS  25%" in text
    assert "bootstrap replicates" in text


def test_nothing_is_shown_without_progress(stream):
    with LiveLine(False, n_draws=200) as live:
        live.iteration(1, 1.0, 0.9, 100.0)
    assert stream.getvalue() == ""


def test_compilation_is_shown_with_its_time(stream, monkeypatch):
    monkeypatch.setattr("calibayes.progress.compiling_since", lambda: time.monotonic() - 7)
    with LiveLine(True, n_draws=200) as live:
        live.phase("bootstrap replicates")
    text = stream.getvalue()
    assert "compiling, 7 s" in text
    assert "bootstrap replicates" not in text
