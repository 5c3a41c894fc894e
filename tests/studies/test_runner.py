"""Running the cases of a study: continuation, failures, interrupts, several processes, timing."""

import math

import jax
import numpy as np
import pytest
from rich.console import Console

import calibayes as cb
from calibayes._core.status import Status
from example_results import make_result
from studies import runner
from studies.runner import Case, run, time_left
from studies.store import Line, Store

CASES = [Case("p", n, dataset, "smc", ("box", "hpd")) for dataset in range(3) for n in (10, 20)]


def make_lines(case):
    """Lines whose eta depends on the case only."""
    eta = float(np.random.default_rng([case.n, case.dataset]).normal())
    return [
        Line(*case[:4], region, eta, 0.1, 0.5, 3, True, 2.0, "warm", "", runner.machine()) for region in case.regions
    ]


def fail_one_case(case):
    if (case.n, case.dataset) == (10, 1):
        raise ValueError("no answer")
    return make_lines(case)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "study.csv")


@pytest.fixture
def console():
    return Console(quiet=True)


def test_only_missing_cases_are_run(store, console):
    store.add(make_lines(CASES[0]) + make_lines(CASES[1]._replace(regions=("box",))))
    done = []

    def run_case(case):
        done.append(case)
        return make_lines(case)

    assert run(CASES, run_case, store, console)
    # A case with one region missing is run as a whole.
    assert done == CASES[1:]
    assert len({line.key for line in store.lines}) == 12
    assert run(CASES, run_case, store, console)
    assert len(done) == 5


def test_lines_do_not_depend_on_the_number_of_processes(tmp_path):
    stores = [Store(tmp_path / f"{processes}.csv") for processes in (1, 2)]
    texts = []
    for processes, store in enumerate(stores, 1):
        console = Console(record=True, width=300)
        assert run(CASES, fail_one_case, store, console, processes)
        texts.append("p, N 10, smc, dataset 1: no answer" in console.export_text())
    assert texts == [True, True]
    sequential, parallel = ({line.key: line for line in Store(store.path).lines} for store in stores)
    assert len(sequential) == 12
    assert {key: _fields(line) for key, line in sequential.items()} == {
        key: _fields(line) for key, line in parallel.items()
    }


def _fields(line):
    return [None if isinstance(value, float) and math.isnan(value) else value for value in vars(line).values()]


def test_parallel_study_continues(store, console):
    store.add(make_lines(CASES[2]))
    assert run(CASES, make_lines, store, console, 2)
    assert {line.key for line in Store(store.path).lines} == {(*case[:4], r) for case in CASES for r in case.regions}


def test_interrupted_study_keeps_finished_cases(store):
    def run_case(case):
        if case.dataset == 1:
            raise KeyboardInterrupt
        return make_lines(case)

    console = Console(record=True, width=300)
    assert not run(CASES, run_case, store, console)
    assert "the same command continues" in console.export_text()
    assert [line.key for line in Store(store.path).lines] == [line.key for line in store.lines]
    assert len(store.lines) == 4


def test_failed_cases_are_stored_and_the_study_continues(store):
    def run_case(case):
        if case.n == 10:
            raise RuntimeError("the sampler did not reach eta")
        return make_lines(case)

    console = Console(record=True, width=300)
    assert run(CASES, run_case, store, console)
    assert "N 10, smc, dataset 2: the sampler did not reach eta" in console.export_text()
    failed = [line for line in Store(store.path).lines if line.n == 10]
    assert len(failed) == 6
    assert all(not line.converged and line.covered == 0 and "did not reach" in line.note for line in failed)


def test_time_left():
    a, b = ("p", 10, "smc"), ("p", 20, "smc")
    assert time_left({a: 3, b: 0}, {a: [2.0, 2.0, 50.0]}) == "about 6 s left"
    assert time_left({a: 3, b: 1}, {a: [2.0]}) == "more than 6 s left"
    assert time_left({a: 60, b: 60}, {a: [2.0], b: [4.0]}) == "about 6 min left"
    assert time_left({a: 3}, {}) == "time left unknown"
    assert time_left({a: 0}, {a: [1.0]}) == ""


@pytest.fixture
def requery(monkeypatch):
    monkeypatch.setattr(cb.Result, "at", lambda result, region: make_result(region=region))


@pytest.mark.usefixtures("requery")
def test_timing_of_the_first_region_tells_whether_it_compiled():
    def compile_and_return(region):
        jax.jit(lambda x: x + 1)(1.0)
        return make_result(region=region)

    calibrated = runner.calibrate_regions(CASES[0], compile_and_return)
    assert [timed.timing for timed in calibrated.values()] == ["cold", "requery"]
    assert isinstance(calibrated["hpd"].result.region, cb.regions.HPD)
    calibrated = runner.calibrate_regions(CASES[0], lambda region: make_result(region=region))
    assert [timed.timing for timed in calibrated.values()] == ["warm", "requery"]


@pytest.mark.usefixtures("requery")
def test_times_of_a_worker_process_are_marked_as_shared(monkeypatch):
    monkeypatch.setattr(runner, "_shared", True)
    calibrated = runner.calibrate_regions(CASES[0], lambda region: make_result(region=region))
    assert [timed.timing for timed in calibrated.values()] == ["shared", "requery"]


def test_interrupted_calibration_ends_the_study(store):
    def run_case(case):
        runner.calibrate_regions(case, lambda region: make_result(region=region, status=Status.INTERRUPTED))
        raise AssertionError("continued after an interrupt")

    assert not run(CASES, run_case, store, Console(quiet=True))
    assert store.lines == []


def test_regions_by_name():
    assert runner.region_by_name("slope") == cb.regions.Interval(1)
    assert runner.region_by_name("intercept") == cb.regions.Interval(0)
    assert runner.region_by_name("hpd") == cb.regions.HPD()


def test_machine_includes_versions():
    name = runner.machine()
    assert "jax" in name
    assert f"calibayes {cb.__version__}" in name
