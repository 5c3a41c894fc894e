"""Two processes with two devices each on this machine, with the environment that Slurm gives them."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

import calibayes as cb
import conftest
import distributed_run
from calibayes._backend import distributed
from calibayes.solve.checkpoint import lock_checkpoint

pytestmark = pytest.mark.cpu("processes that share a CPU")

TESTS = Path(conftest.__file__).parent
NONE = -1
TIMEOUT = 240
"""Seconds after which a process that hangs fails the test."""


class Ended(NamedTuple):
    """How a process ended, and at what time."""

    returncode: int
    stdout: str
    stderr: str
    at: float


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def run_two_processes(command: list[str]) -> list[Ended]:
    """Run a command in two processes, which find each other by the environment variables of Slurm."""
    common = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)]),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "2",
        "JAX_COMPILATION_CACHE_DIR": str(conftest.CACHE),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
        "JAX_COORDINATOR_PORT": str(free_port()),
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
    }
    environments = [common | {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)} for i in range(2)]

    def run(env: dict[str, str]) -> Ended:
        process = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        return Ended(process.returncode, process.stdout, process.stderr, time.monotonic())

    with ThreadPoolExecutor() as both:
        return list(both.map(run, environments))


def run_calibration(
    path: Path | str, *, seeds=(0, 0), failing=NONE, failure="kill", n_saves=0, mesh=(4, 1)
) -> list[Ended]:
    script = str(TESTS / "distributed_run.py")
    return run_two_processes([sys.executable, script, str(path), json.dumps([seeds, failing, failure, n_saves, mesh])])


@pytest.fixture(scope="module")
def single_process():
    """Result of one process with one device. Its 43 replicates with the data are not divisible by four devices."""
    return distributed_run.summarize_calibration(0, None)


@pytest.mark.parametrize("failing", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_lost_process_ends_the_other_and_both_can_be_restarted(single_process, failing, tmp_path):
    """A killed process ends the other with an error; restarted, both obtain the result of one process up to rounding.

    Only replicates are divided. Matrix products over the replicates of a device are rounded differently if their number
    differs, by about 1e-6 of eta. The loss of process 1 is noticed by a failed
    sum, or by JAX after the heartbeat timeout. Process 0 runs the coordination service: without it JAX aborts the other
    process, possibly before that can raise an error.
    """
    path = tmp_path / "run.ckpt"
    killed = run_calibration(path, failing=failing, n_saves=2)
    lost, other = killed[failing], killed[1 - failing]
    assert lost.returncode == -9
    assert other.returncode not in (0, -9), other.stderr
    assert not other.stdout
    # Another 20 seconds for two processes that share the cores of a busy machine.
    assert other.at - lost.at < distributed_run.HEARTBEAT_TIMEOUT + 20
    messages = ["a process of this run was lost", "heartbeat timeout"]
    if failing == 0:
        messages.append("leader task was preempted/died")
    assert any(message in other.stderr for message in messages), other.stderr
    if failing == 1:
        assert "Start all processes again by the same command" in other.stderr
    assert path.exists()
    resumed = run_calibration(path)
    for process in resumed:
        assert process.returncode == 0, process.stderr
    first, second = (json.loads(process.stdout.splitlines()[-1]) for process in resumed)
    assert first == second
    assert first.pop("devices") == 4
    assert first == {name: pytest.approx(value, rel=1e-5) for name, value in single_process.items()}


def test_uncaught_exception_in_one_process_ends_the_other(tmp_path):
    """JAX alone would let both wait for each other until its shutdown timeout of five minutes."""
    raised, other = reversed(run_calibration(tmp_path / "run.ckpt", failing=1, failure="raise", n_saves=2))
    assert raised.returncode == 1
    assert "LookupError: an error in one process" in raised.stderr
    assert other.returncode not in (0, -9), other.stderr
    assert other.at - raised.at < distributed_run.HEARTBEAT_TIMEOUT + 20
    assert not other.stdout


def test_observations_divided_between_processes(single_process, tmp_path):
    """Sums are rounded differently, which can change the acceptance of a proposal, and the coverage of a replicate."""
    first, second = run_calibration(tmp_path / "run.ckpt", mesh=(1, 4))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stdout == second.stdout
    low, high = sorted([json.loads(first.stdout)["eta"], single_process["eta"]])
    assert sum(low < critical < high for critical in single_process["critical"]) <= 1


def test_each_process_reads_and_checks_its_own_part():
    """Process 1 has rows 32 to 59, of which row 50 is invalid in a second calibration: both end with an error."""
    expected = distributed_run.summarize_parts()
    assert expected["error"].startswith("ValueError: y must be finite; 1 of 60 values")
    processes = run_calibration("parts", mesh=(1, 4))
    for process in processes:
        assert process.returncode == 0, process.stderr
    first, second = (json.loads(process.stdout.splitlines()[-1]) for process in processes)
    assert {tuple(rows) for rows in first.pop("rows")} == {(0, 1), (0, 32), (0, 16), (16, 32)}
    assert {tuple(rows) for rows in second.pop("rows")} == {(0, 1), (32, 60), (32, 48), (48, 60)}
    assert second.pop("error").startswith("ValueError: y must be finite; 1 of 28 values")
    assert first.pop("error").startswith("DistributedError: process 1 of this run failed. ValueError: y must be finite")
    assert first == second
    # Rounding can change the coverage of a replicate.
    low, high = sorted([first["eta"], expected["eta"]])
    assert sum(low < critical < high for critical in expected["critical"]) <= 1
    assert abs(first["fresh"] - expected["fresh"]) <= 1.5 / 42


def test_processes_with_different_data_are_rejected(tmp_path):
    """Before anything is computed: otherwise each process would wait for sums that the other never asks for."""
    for process in run_calibration(tmp_path / "run.ckpt", seeds=(0, 1)):
        assert process.returncode not in (0, -9)
        assert "DistributedError: the 2 processes of this run differ in: data." in process.stderr


def test_checkpoint_in_use_ends_all_processes(tmp_path):
    """Only process 0 locks the file; the other does not wait for it."""
    path = tmp_path / "run.ckpt"
    with lock_checkpoint(path):
        first, second = run_calibration(path)
    assert first.returncode == 1
    assert f"CheckpointError: checkpoint '{path}' is in use by process {os.getpid()} on " in first.stderr
    assert second.returncode not in (0, -9)
    assert "DistributedError: the 2 processes of this run differ in: checkpoint." in second.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_command_line_prints_and_writes_once(tmp_path):
    """`srun calibayes fit` in two processes."""
    x, y = cb.datasets.median_regression(60, 0)
    table = tmp_path / "table.csv"
    table.write_text("x,y\n" + "".join(f"{a},{b}\n" for a, b in zip(x[:, 1], y, strict=True)))
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "calibayes", "fit", str(table), "--target", "y", "--bootstrap", "42", "--json"]
    first, second = run_two_processes([*command, "--report", str(report)])
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert json.loads(first.stdout)["n"] == 60
    assert not second.stdout
    assert report.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("target", "options"), [("y", "huber"), ("y", "quantile"), ("label", "logistic")])
def test_command_line_reads_parquet_in_parts(target, options, tmp_path):
    """Two processes give the numbers of one that reads the whole file, up to one replicate of coverage.

    The standard error of eta corresponds to sqrt(60 x 0.95 x 0.05) = 1.7 replicates.
    """
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    x, z = rng.normal(5.0, 2.0, 1101), rng.normal(size=1101)
    y, label = x - z + rng.standard_t(3, 1101), rng.integers(0, 2, 1101)
    table = tmp_path / "table.parquet"
    frame = pandas.DataFrame({"x": x, "z": z, "constant": 3.0, "y": y, "label": label})
    frame.to_parquet(table, row_group_size=100)
    command = [sys.executable, str(TESTS / "distributed_fit.py"), "fit", str(table), "--target", target]
    command += ["--columns", "x,z,constant", "--loss", options, "--bootstrap", "60", "--json"]
    first, second = run_two_processes(command)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent / "src"), "JAX_PLATFORMS": "cpu"}
    single = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    two, one = json.loads(first.stdout), json.loads(single.stdout)
    assert {name: two[name] for name in ("title", "n", "classes", "notes")} == {
        name: one[name] for name in ("title", "n", "classes", "notes")
    }
    assert two["eta"] == pytest.approx(one["eta"], abs=2 * one["eta_se"] / 1.7)
    for ours, whole in zip(two["coefficients"], one["coefficients"], strict=True):
        assert ours["mean"] == pytest.approx(whole["mean"], abs=0.1 * whole["se"])


@pytest.mark.slow
def test_program_of_the_documentation():
    """Two processes give the eta of one, up to one replicate of coverage.

    The standard error of eta corresponds to sqrt(500 x 0.95 x 0.05) = 4.9 replicates; two adjacent replicates may be
    twice as far apart as replicates are on average.
    """
    program = str(TESTS.parent / "docs" / "examples" / "many_processes.py")
    first, second = run_two_processes([sys.executable, program, "together"])
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent / "src"), "JAX_PLATFORMS": "cpu"}
    single = subprocess.run(
        [sys.executable, program], env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert single.returncode == 0, single.stderr
    printed = [re.search(r"eta = ([\d.]+) \+- ([\d.]+)", process.stdout) for process in (single, first)]
    (eta, se), (other, _) = (map(float, match.groups()) for match in printed)
    assert other == pytest.approx(eta, abs=2 * se / 4.9)
    assert "eta" not in second.stdout


def test_single_process_needs_no_runtime(monkeypatch):
    """Neither does the only task of a Slurm job."""
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    distributed.join_processes()
    assert not jax.distributed.is_initialized()
    assert distributed.is_main_process()
    distributed.agree({"data": "a"})
    with distributed.raise_distributed_errors():
        pass


def test_failed_communication_becomes_a_cluster_error(monkeypatch):
    """Running out of memory does not, nor does any error in a single process."""
    lost = jax.errors.JaxRuntimeError("UNAVAILABLE: connection closed\nmore")
    assert not distributed.processes_out_of_sync(lost)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(distributed, "_register_exit_handler", lambda: None)
    with (
        pytest.raises(
            cb.DistributedError, match=r"a process of this run was lost \(UNAVAILABLE: connection closed\)\."
        ),
        distributed.raise_distributed_errors(),
    ):
        raise lost
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE"), distributed.raise_distributed_errors():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
    assert distributed.processes_out_of_sync(KeyboardInterrupt())
    assert distributed.processes_out_of_sync(cb.DistributedError("a process of this run was lost"))
    assert not distributed.processes_out_of_sync(ValueError("a user's error"))
