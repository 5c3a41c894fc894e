"""Two processes of two devices each, on this machine, started as Slurm starts them."""

import json
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import calibayes as cb
import conftest
import one_of_many
from calibayes._backend import distributed as cluster

HERE = Path(__file__).parent
NOBODY = -1
SECONDS = 240


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


def slurm(command: list[str]) -> list[subprocess.CompletedProcess]:
    """The command in two processes, which find each other by what Slurm tells them."""
    common = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)]),
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
    own = [common | {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)} for i in range(2)]
    run = lambda env: subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS)
    with ThreadPoolExecutor() as both:
        return list(both.map(run, own))


def calibrated(path: Path, *, seeds=(0, 0), victim=NOBODY, steps=0, mesh=(4, 1)) -> list[subprocess.CompletedProcess]:
    script = str(HERE / "one_of_many.py")
    return slurm([sys.executable, script, str(path), json.dumps([seeds, victim, steps, mesh])])


@pytest.fixture(scope="module")
def alone():
    """One process, one device. 43 rows with the data's are not divisible by four devices."""
    return one_of_many.found(0, None)


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_the_same_answer_even_after_a_process_was_killed(alone, victim, tmp_path):
    """The other one ends with an error; both, started again, go on to what one process finds, bit for bit.

    So few observations are not shared out, only rows are: nothing is added up in another order. Process 1 is missed by
    the guard or in the middle of a sum, whichever comes first; process 0 by JAX itself, which needs it at any moment.
    """
    path = tmp_path / "run.ckpt"
    killed = calibrated(path, victim=victim, steps=2)
    other = killed[1 - victim]
    assert killed[victim].returncode == -9
    assert other.returncode not in (0, -9), other.stderr
    assert not other.stdout
    said = ("lost touch with each other", "is gone") if victim else ("leader task was preempted/died", "is gone")
    assert any(words in other.stderr for words in said), other.stderr
    if victim:
        assert "Start all processes again by the same command" in other.stderr
    assert path.exists()
    resumed = calibrated(path)
    for process in resumed:
        assert process.returncode == 0, process.stderr
        assert json.loads(process.stdout.splitlines()[-1]) == {"devices": 4, **alone}


def test_observations_shared_out_between_processes(alone, tmp_path):
    """Each holds some that the other does not: sums are rounded otherwise, which may flip an acceptance, and a row."""
    first, second = calibrated(tmp_path / "run.ckpt", mesh=(1, 4))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stdout == second.stdout
    low, high = sorted([json.loads(first.stdout)["eta"], alone["eta"]])
    assert sum(low < critical < high for critical in alone["critical"]) <= 1


def test_other_arguments_are_noticed(tmp_path):
    """Before anything is computed: processes with other data would each wait for what the other never asks."""
    for process in calibrated(tmp_path / "run.ckpt", seeds=(0, 1)):
        assert process.returncode not in (0, -9)
        assert "ClusterError: the 2 processes of this run differ in: data." in process.stderr


@pytest.mark.slow
def test_the_command_line(tmp_path):
    """`srun calibayes fit` prints once, and writes once."""
    x, y = cb.datasets.median_regression(60, 0)
    table = tmp_path / "table.csv"
    table.write_text("x,y\n" + "".join(f"{a},{b}\n" for a, b in zip(x[:, 1], y, strict=True)))
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "calibayes", "fit", str(table), "--target", "y", "--bootstrap", "42", "--json"]
    first, second = slurm([*command, "--report", str(report)])
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert json.loads(first.stdout)["n"] == 60
    assert not second.stdout
    assert report.exists()


@pytest.mark.slow
def test_the_program_of_the_docs():
    """In two processes as in one, to a row of coverage. The standard error of eta is worth 4.9 rows, the square root of
    500 x 0.95 x 0.05; and two rows next to each other may be twice as far apart as rows are on average.
    """
    program = str(HERE.parent / "docs" / "examples" / "many_processes.py")
    first, second = slurm([sys.executable, program, "together"])
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    env = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "JAX_PLATFORMS": "cpu"}
    alone = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, timeout=SECONDS)
    assert alone.returncode == 0, alone.stderr
    said = [re.search(r"eta = ([\d.]+) \+- ([\d.]+)", process.stdout) for process in (alone, first)]
    (eta, se), (other, _) = (map(float, found.groups()) for found in said)
    assert other == pytest.approx(eta, abs=2 * se / 4.9)
    assert "eta" not in second.stdout


def test_one_process_needs_nobody(monkeypatch):
    """Nor does one task of a job of one."""
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    cluster.join()
    assert cluster.leads()
    cluster.agree({"data": "a"})
    with cluster.raise_cluster_errors():
        pass
    assert cluster._Guard.only is None
