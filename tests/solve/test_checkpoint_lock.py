"""A checkpoint belongs to one run at a time, and damaged checkpoints are rejected."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import calibayes as cb
from calibayes._backend.lock import lock_path
from calibayes.cli import app
from calibayes.solve.checkpoint import Checkpoint, lock_checkpoint
from damage import damage
from exact_sampler import ExactSampler, make_location_problem, make_location_target

TESTS = Path(__file__).parents[1]
# A run that stops in the middle, with its checkpoint written, and waits to be killed.
LIVE_RUN = """
import sys, time
from test_checkpoint_lock import run_exact
from calibayes._backend import treefile

write, n_saves = treefile.write, []

def write_and_wait(*args):
    write(*args)
    n_saves.append(1)
    if len(n_saves) == 2:
        print("waiting", flush=True)
        time.sleep(600)

treefile.write = write_and_wait
run_exact(checkpoint=sys.argv[1])
"""


def run_exact(**options):
    """Calibrate with a sampler that is exact and fast."""
    model, data, counts = make_location_problem()
    settings = {"level": 0.9, "region": cb.regions.Interval(0), "tolerance": 0.011, "eta_init": 0.1, "seed": 0}
    settings |= {"sampler": ExactSampler.of_problem(excess=1.01), "bootstrap": counts, "progress": False}
    return cb.calibrate(model, data, search=cb.Bracket(), **settings | options)


@pytest.fixture
def live_run(tmp_path):
    """A process in the middle of a calibration, and its checkpoint."""
    path = tmp_path / "run.ckpt"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS / "solve"), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-c", LIVE_RUN, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout.readline() == "waiting\n"
    yield process, path
    process.kill()
    process.wait()
    process.stdout.close()


def test_checkpoint_of_a_live_run_is_refused_and_that_of_a_killed_run_continues(live_run):
    """Also for a call with another seed, which would replace the file."""
    process, path = live_run
    before = path.read_bytes()
    for seed in (0, 1):
        with pytest.raises(cb.CheckpointError, match=rf"is in use by process {process.pid} on .*name another file"):
            run_exact(checkpoint=path, seed=seed)
    assert path.read_bytes() == before
    # As if it were killed while it writes the file.
    temporary = path.with_name(f"run.ckpt.{process.pid}-0123abcd.tmp")
    temporary.write_bytes(before[:100])
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert lock_path(path).exists()
    with pytest.raises(cb.CheckpointError, match="another calibration, which differs in seed"):
        run_exact(checkpoint=path, seed=1)
    continued = run_exact(checkpoint=path)
    np.testing.assert_array_equal(continued.draws, run_exact().draws)
    assert continued.eta == run_exact().eta
    assert list(path.parent.iterdir()) == [path]


def test_second_run_in_the_same_process_is_refused(tmp_path):
    path = tmp_path / "run.ckpt"
    with lock_checkpoint(path), pytest.raises(cb.CheckpointError, match=f"in use by process {os.getpid()} on "):
        run_exact(checkpoint=path)
    assert not list(tmp_path.iterdir())


def test_lock_is_released_by_errors_and_interrupts(tmp_path, monkeypatch):
    path = tmp_path / "run.ckpt"
    for error in (RuntimeError("failed"), MemoryError(), KeyboardInterrupt()):

        def fail(*_, error=error):
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(ExactSampler, "draw_initial", fail)
            with pytest.raises(type(error)):
                run_exact(checkpoint=path)
        assert not lock_path(path).exists()
    assert run_exact(checkpoint=path).converged
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_lock_is_reported(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(cb.CheckpointError, match="cannot be locked: No space left"), lock_checkpoint(tmp_path / "a"):
        pass


def test_command_line_reports_a_checkpoint_in_use(tmp_path):
    table = tmp_path / "data.csv"
    table.write_text("x,y\n" + "\n".join(f"{i},{i % 7}" for i in range(40)))
    path = tmp_path / "run.ckpt"
    with lock_checkpoint(path):
        outcome = CliRunner().invoke(
            app, ["fit", str(table), "--target", "y", "--checkpoint", str(path)], env={"COLUMNS": "300"}
        )
    assert outcome.exit_code == 2
    assert f"is in use by process {os.getpid()}" in outcome.output


# Damage


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run.ckpt"
    return path, run_exact(checkpoint=path)


def check_damaged_files(finished, tmp_path, n_files):
    """Load damaged copies of a checkpoint; any exception other than a CheckpointError fails the test."""
    path, _ = finished
    content, rng = path.read_bytes(), random.Random(0)
    copy, n_rejected = tmp_path / "run.ckpt", 0
    for _ in range(n_files):
        damaged = damage(content, rng)
        copy.write_bytes(damaged)
        try:
            Checkpoint(copy, {}, 1000, frozenset({"exact_sampler"})).load(make_location_target())
        except cb.CheckpointError:
            n_rejected += 1
        else:
            assert damaged == content
    assert n_rejected > 0.95 * n_files


def test_damaged_checkpoints_are_rejected(finished, tmp_path):
    check_damaged_files(finished, tmp_path, 300)


@pytest.mark.slow
def test_many_damaged_checkpoints_are_rejected(finished, tmp_path):
    check_damaged_files(finished, tmp_path, 10_000)


def test_calibration_does_not_replace_a_damaged_checkpoint(finished, tmp_path):
    path, result = finished
    content, copy = path.read_bytes(), tmp_path / "run.ckpt"
    copy.write_bytes(content[:-1])
    with pytest.raises(cb.CheckpointError, match=r"damaged\. Remove it to start afresh"):
        run_exact(checkpoint=copy)
    assert copy.read_bytes() == content[:-1]
    assert list(tmp_path.iterdir()) == [copy]
    copy.write_bytes(content)
    assert run_exact(checkpoint=copy).eta == result.eta
