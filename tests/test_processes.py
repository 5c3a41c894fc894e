"""Calibrations in child processes and in threads: refused where JAX would wait for ever, else as in the main thread."""

import multiprocessing
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import joblib
import pytest

import calibayes as cb
import conftest

TESTS = Path(conftest.__file__).parent
TIMEOUT = 60
"""Seconds after which a process that hangs fails the test."""
OPTIONS = {"bootstrap": 100, "progress": False}


def calibrate(seed: int) -> cb.Result:
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    return cb.calibrate(model, cb.datasets.median_regression(60, 0), seed=seed, **OPTIONS)


def calibrated_eta(seed: int) -> float:
    return calibrate(seed).eta


def errors_of_fork(calls) -> list[str]:
    """Make calls in a forked child, and return the error message of each."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run():
        messages = []
        for call in calls:
            try:
                call()
                messages.append("")
            except RuntimeError as error:
                messages.append(str(error))
        sender.send(messages)

    child = context.Process(target=run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX and Python warn of the fork.
        child.start()
    try:
        assert receiver.poll(TIMEOUT), "the child hangs"
        return receiver.recv()
    finally:
        child.kill()
        child.join()


@pytest.fixture(scope="module")
def result():
    return calibrate(0)


def test_fork_after_use_is_refused(result):
    calls = [
        lambda: calibrate(0),
        lambda: cb.priors.Normal(scale=2.0),
        lambda: result.at(level=0.9),
        lambda: result.intervals(level=0.8),
        lambda: result.posterior(2 * result.eta),
        lambda: result.level_of(result.estimate),
        result.validate,
    ]
    for message in errors_of_fork(calls):
        assert "forked after JAX had started" in message
        assert "spawn" in message
        assert "loky" in message


def test_numbers_of_a_result_are_available_after_a_fork(result):
    assert errors_of_fork([lambda: result.summary(), lambda: repr(result)]) == ["", ""]


FORK_SCRIPT = """
import os, signal
import jax
from calibayes._backend.fork import require_working_jax

def refused_in_fork(call):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            os._exit(int(call()))
        except RuntimeError:
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

def compute():
    require_working_jax()
    return jax.numpy.zeros(3).sum()

print(refused_in_fork(compute))                             # before any use
print(refused_in_fork(lambda: compute() + 7 * (not refused_in_fork(compute))))  # used in the child, which forks again
jax.numpy.ones(3)                                           # a use that is not by calibayes
print(refused_in_fork(compute))
"""


def test_fork_before_use_works_and_any_use_of_jax_counts():
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent / "src"), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK_SCRIPT],
        env=environment,
        timeout=TIMEOUT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["False", "False", "True"], done.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods_work(method, result):
    assert result.converged
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        assert pool.apply_async(_prior_scale).get(TIMEOUT) == 2.0


def _prior_scale() -> float:
    return float(cb.priors.Normal(scale=2.0).scale)


def test_joblib_gives_the_same_result(result, monkeypatch):
    """The default backend, loky, starts fresh processes."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(conftest.CACHE))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)]))
    with joblib.parallel_config(backend="loky", inner_max_num_threads=2):
        etas = joblib.Parallel(n_jobs=2, timeout=4 * TIMEOUT)([joblib.delayed(calibrated_eta)(0)])
    assert etas == [pytest.approx(result.eta, rel=1e-6)]


def test_threads_give_the_same_results(result):
    other = calibrate(1)
    with ThreadPoolExecutor(2) as threads:
        at_once = list(threads.map(calibrate, [0, 1], timeout=4 * TIMEOUT))
    for one, alone in zip(at_once, [result, other], strict=True):
        assert (one.eta, one.draws.tobytes()) == (alone.eta, alone.draws.tobytes())
