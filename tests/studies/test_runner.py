from types import SimpleNamespace

import jax
import pytest
from rich.console import Console
from studies.runner import Case, run, time_left
from studies.store import Line, Store

import calibayes as cb
from calibayes._backend.jit import side_by_side
from studies import runner

CASES = [Case("p", n, dataset, "smc", ("box", "hpd")) for dataset in range(3) for n in (10, 20)]


def lines_for(case):
    return [
        Line(*case[:4], region, 1.0, 0.1, 0.5, 3, True, 2.0, "warm", "", runner.machine()) for region in case.regions
    ]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "study.csv")


@pytest.fixture
def console():
    return Console(quiet=True)


def test_only_what_is_missing_is_done(store, console):
    store.add(lines_for(CASES[0]) + lines_for(CASES[1]._replace(regions=("box",))))
    done = []

    def work(case):
        done.append(case)
        return lines_for(case)

    assert run(CASES, work, store, console)
    # A case with a region missing as a whole, for the same lines as without a stop.
    assert done == CASES[1:]
    assert len({line.key for line in store.lines}) == 12
    assert run(CASES, work, store, console)
    assert len(done) == 5


def test_several_at_once(store, console):
    """The first of a kind alone, so that it compiles; the others side by side."""
    seen = {}

    def work(case):
        seen[case] = side_by_side()
        return lines_for(case)

    assert run(CASES, work, store, console, at_once=2)
    assert [seen[case] for case in CASES] == [False, False, True, True, True, True]
    assert len(Store(store.path).lines) == 12


def test_interrupted_it_keeps_what_was_done(store):
    def work(case):
        if case.dataset == 1:
            raise KeyboardInterrupt
        return lines_for(case)

    console = Console(record=True, width=300)
    assert not run(CASES, work, store, console)
    assert "the same command goes on" in console.export_text()
    assert [line.key for line in Store(store.path).lines] == [line.key for line in store.lines]
    assert len(store.lines) == 4


def test_failures_are_stored_and_do_not_end_the_study(store):
    def work(case):
        if case.n == 10:
            raise RuntimeError("the ladder did not get there")
        return lines_for(case)

    console = Console(record=True, width=300)
    assert run(CASES, work, store, console)
    assert "N 10, smc, dataset 2: the ladder did not get there" in console.export_text()
    failed = [line for line in Store(store.path).lines if line.n == 10]
    assert len(failed) == 6
    assert all(not line.converged and line.covered == 0 and "ladder" in line.note for line in failed)


def test_time_left():
    a, b = ("p", 10, "smc"), ("p", 20, "smc")
    assert time_left({a: 3, b: 0}, {a: [2.0, 2.0, 50.0]}) == "about 6 s left"
    assert time_left({a: 3, b: 1}, {a: [2.0]}) == "more than 6 s left"
    assert time_left({a: 60, b: 60}, {a: [2.0], b: [4.0]}) == "about 6 min left"
    assert time_left({a: 3}, {}) == "time left unknown"
    assert time_left({a: 0}, {a: [1.0]}) == ""


class Fake(cb.Result):
    """A result as far as it is timed."""

    def __init__(self, region, interrupted=False):
        object.__setattr__(self, "region", region)
        object.__setattr__(self, "calibration", SimpleNamespace(loop=SimpleNamespace(interrupted=interrupted)))

    def at(self, region):
        return Fake(region)


def test_the_first_region_is_timed_from_nothing_and_told_if_it_compiled():
    def compiling(region):
        jax.jit(lambda x: x + 1)(1.0)
        return Fake(region)

    found = runner.in_regions(CASES[0], compiling)
    assert [timed.how for timed in found.values()] == ["cold", "at"]
    assert isinstance(found["hpd"].result.region, cb.regions.HPD)
    assert [timed.how for timed in runner.in_regions(CASES[0], Fake).values()] == ["warm", "at"]


def test_an_interrupt_that_a_calibration_survives_ends_the_study(store):
    def work(case):
        runner.in_regions(case, lambda region: Fake(region, interrupted=True))
        raise AssertionError("went on")

    assert not run(CASES, work, store, Console(quiet=True))
    assert store.lines == []


def test_regions_by_name():
    assert runner.as_named("slope") == cb.regions.Interval(1)
    assert runner.as_named("intercept") == cb.regions.Interval(0)
    assert runner.as_named("hpd") == cb.regions.HPD()


def test_machine_is_named():
    name = runner.machine()
    assert "jax" in name
    assert f"calibayes {cb.__version__}" in name
