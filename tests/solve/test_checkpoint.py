"""Checkpoints: a run that was killed at any save continues to the same result, and unusable files are rejected."""

import math
import os
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from typer.testing import CliRunner

import calibayes as cb
import exact_sampler
from calibayes._backend import treefile
from calibayes._core.target import make_target
from calibayes.cli import app
from calibayes.kernels.base import metropolis, random_walk_noise
from calibayes.samplers.audit import audit
from calibayes.solve import verify
from calibayes.solve.checkpoint import Checkpoint, check_path
from calibayes.solve.search import Search, SearchState
from exact_sampler import CALLS, ExactSampler, make_location_problem, make_location_target
from example_results import run_findings

ROOT = Path(__file__).parents[2]
MODEL = cb.GibbsModel(cb.losses.Absolute(), cb.priors.Normal(scale=10.0))
DATA = (np.ones((40, 1)), np.random.default_rng(0).normal(size=40))
# The tempering schedule of the fallback sampler, so that it is compiled once.
SCHEDULE = {"ess_target": 0.5, "resample_below": 1.0, "n_moves": 4, "kernel": cb.kernels.CrankNicolson()}
SMALL = cb.Transport(n_particles=100)

write = treefile.write


class CostlyTransport(cb.Transport):
    """Transport whose first curve is a rough one, as for data on which the refinement takes long."""

    def refine_is_cheap(self, target, state):
        return False


class ScaledWalk(cb.kernels.Kernel):
    """A user's kernel: a random walk with a fixed length, which counts its steps."""

    length: float = eqx.field(static=True)

    def init(self, covariance):
        return Steps(jnp.zeros(len(covariance)))

    def step(self, keys, target, eta, particles, adaptation, adapt):
        normal, log_uniforms = random_walk_noise(keys, particles.theta)
        move = metropolis(log_uniforms, target, eta, particles, particles.theta + self.length * normal)
        return move.particles, Steps(adaptation.number + 1), move.info


class Steps(NamedTuple):
    number: Array


@dataclass(frozen=True, kw_only=True)
class BisectionState(SearchState):
    low: float
    high: float


class Bisection(Search[BisectionState]):
    """A user's search rule."""

    def init(self, eta):
        return BisectionState(eta=eta, low=0.01, high=100.0)

    def update(self, state, evaluation):
        if abs(evaluation.coverage - evaluation.level) < evaluation.tolerance:
            return replace(state, status=cb.Status.CONVERGED)
        covers = evaluation.coverage > evaluation.level
        low, high = (state.eta, state.high) if covers else (state.low, state.eta)
        return replace(state, low=low, high=high, eta=math.sqrt(low * high))


CASES = {
    "transport": {"sampler": SMALL},
    "transport, rough curve first": {"sampler": CostlyTransport(n_particles=100)},
    # It stops where it starts, is refined, and moves on to refine its answer.
    "transport, stochastic": {"sampler": SMALL, "search": cb.RobbinsMonro(), "tolerance": 0.045},
    "fallback": {"sampler": cb.Transport(n_particles=100, audit=True)},
    "smc": {"sampler": cb.SMC(n_particles=100, **SCHEDULE), "tolerance": 0.011},
    # The best learning rate is not the last.
    "smc, steps too long": {
        "sampler": cb.SMC(n_particles=100, **SCHEDULE),
        "tolerance": 0.011,
        "search": cb.RobbinsMonro(gain=60.0),
        "max_iterations": 2,
    },
    "mcmc": {"sampler": cb.MCMC(n_draws=300, n_warmup=100), "tolerance": 0.011, "search": cb.RobbinsMonro(gain=2.0)},
    "own kernel": {"sampler": cb.SMC(n_particles=100, **SCHEDULE | {"kernel": ScaledWalk(0.3)}), "tolerance": 0.021},
    "own search": {"sampler": SMALL, "search": Bisection(), "tolerance": 0.011},
}


class Killed(BaseException):
    """Stands for the end of the process: no handler of the library catches it."""


@pytest.fixture(autouse=True)
def _transport_fails_its_audit(monkeypatch):
    """Only the particles of transport have unequal weights."""

    def judge(key, target, particles, *rest):
        unequal = float(np.ptp(particles.log_weights)) > 1e-6
        return audit(key, target, particles, *rest)._replace(failed=unequal)

    monkeypatch.setattr(verify, "audit", judge)


@pytest.fixture(autouse=True)
def _record_warnings(recwarn):
    """Most of these runs are too small to be reliable, and warn of it."""
    CALLS.clear()
    return recwarn


@pytest.fixture(scope="module")
def uninterrupted():
    """Results of runs without a checkpoint, by case."""
    return {}


def run(case, **options):
    settings = {"bootstrap": 100, "seed": 3, "progress": False, "eta_init": 1.0} | CASES[case] | options
    return cb.calibrate(MODEL, DATA, **settings)


def run_uninterrupted(uninterrupted, case):
    if case not in uninterrupted:
        uninterrupted[case] = run(case)
    return uninterrupted[case]


def run_exact(**options):
    """Calibrate with a user's sampler, which is exact and fast."""
    model, data, counts = make_location_problem()
    settings = {"level": 0.9, "region": cb.regions.Interval(0), "tolerance": 0.011, "eta_init": 0.1}
    settings |= {"sampler": ExactSampler.of_problem(excess=1.01), "bootstrap": counts, "progress": False}
    return cb.calibrate(model, data, **settings | options)


def assert_same(a, b):
    """Assert that two results are equal bit for bit, except for the seconds of their traces."""
    assert (a.eta, a.eta_se, a.coverage) == (b.eta, b.eta_se, b.coverage)
    assert (a.status, a.diagnostics, a.message) == (b.status, b.diagnostics, b.message)
    assert a.draws.tobytes() == b.draws.tobytes()
    assert a.risk.tobytes() == b.risk.tobytes()
    assert a.estimate.tobytes() == b.estimate.tobytes()
    for name in ("etas", "critical_levels", "ess"):
        assert getattr(a.curve, name).tobytes() == getattr(b.curve, name).tobytes()
    assert len(a.trace) == len(b.trace)
    for old, new in zip(a.trace, b.trace, strict=True):
        for field in fields(old):
            if field.name != "seconds":
                np.testing.assert_array_equal(getattr(old, field.name), getattr(new, field.name))
    np.testing.assert_array_equal(a.repaired_replicates, b.repaired_replicates)


def write_and_die(*args):
    write(*args)
    raise Killed


def fail_to_write(*_):
    raise AssertionError("a finished run was saved again")


def run_killed_at_every_save(monkeypatch, calibrate, path):
    """Repeat a call that is killed after each save until it returns; return its result and the number of kills."""
    n_kills = 0
    with monkeypatch.context() as patched:
        patched.setattr(treefile, "write", write_and_die)
        while True:
            try:
                return calibrate(checkpoint=path), n_kills
            except Killed:
                n_kills += 1


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@pytest.mark.parametrize("case", CASES)
def test_killed_run_continues_to_the_same_result(case, uninterrupted, monkeypatch, tmp_path):
    expected = run_uninterrupted(uninterrupted, case)
    fell_back = cb.Code.FALLBACK in [finding.code for finding in expected.diagnostics]
    assert fell_back == (case == "fallback")
    assert (case == "smc, steps too long") == (expected.eta == expected.trace[0].eta)
    path = tmp_path / "run.ckpt"
    result, n_kills = run_killed_at_every_save(monkeypatch, lambda **options: run(case, **options), path)
    # At least after the initial draws, the particles on all replicates, and the solution.
    assert n_kills > 2
    assert_same(result, expected)
    assert np.all(np.diff([record.seconds for record in result.trace]) > 0)

    monkeypatch.setattr(treefile, "write", fail_to_write)
    finished = run(case, checkpoint=str(path))
    assert_same(finished, expected)
    # Its particles answer further questions.
    assert finished.at(level=0.9).eta == expected.at(level=0.9).eta
    assert list(tmp_path.iterdir()) == [path]


EXACT_SEARCHES = {
    "bracket": cb.Bracket(),
    "robbins-monro": cb.RobbinsMonro(gain=3.0),
    "not refined": cb.RobbinsMonro(gain=3.0, interpolate=False),
    "own search": Bisection(),
}


@pytest.mark.parametrize("search", EXACT_SEARCHES.values(), ids=EXACT_SEARCHES)
def test_users_sampler_and_search_are_restored(search, monkeypatch, tmp_path):
    """State classes are found in the modules of the sampler and of the search."""
    path = tmp_path / "run.ckpt"
    expected = run_exact(search=search)
    result, n_kills = run_killed_at_every_save(monkeypatch, lambda **options: run_exact(search=search, **options), path)
    # The initial draws, the first state, every learning rate of the search, and the solution.
    assert n_kills >= 3 + len({record.eta for record in expected.trace})
    assert_same(result, expected)


def test_finished_run_is_not_sampled_again(tmp_path):
    path = tmp_path / "run.ckpt"
    expected = run_exact(search=cb.Bracket(), checkpoint=path)
    CALLS.clear()
    content = path.read_bytes()
    assert_same(run_exact(search=cb.Bracket(), checkpoint=path), expected)
    assert not CALLS
    assert path.read_bytes() == content


def test_continued_run_repeats_no_completed_step(monkeypatch, tmp_path):
    """All calls of the sampler together are those of an uninterrupted run."""
    run_exact(search=cb.Bracket())
    expected = list(CALLS)
    CALLS.clear()
    run_killed_at_every_save(
        monkeypatch, lambda **options: run_exact(search=cb.Bracket(), **options), tmp_path / "run.ckpt"
    )
    assert expected == CALLS


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@pytest.mark.parametrize("case", ["transport", "smc"])
def test_larger_iteration_limit_continues_a_stopped_run(case, uninterrupted, tmp_path):
    path = tmp_path / "run.ckpt"
    options = {"eta_init": 0.2} if case == "transport" else {}
    stopped = run(case, checkpoint=path, max_iterations=2, **options)
    assert stopped.status is cb.Status.MAX_ITERATIONS
    assert_same(run(case, checkpoint=path, max_iterations=2, **options), stopped)
    expected = run(case, **options) if options else run_uninterrupted(uninterrupted, case)
    assert_same(run(case, checkpoint=path, **options), expected)
    with pytest.raises(cb.CheckpointError, match="max_iterations = 100"):
        run(case, checkpoint=path, max_iterations=2, **options)


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@pytest.mark.parametrize("search", EXACT_SEARCHES.values(), ids=EXACT_SEARCHES)
def test_iteration_limit_may_be_raised_step_by_step(search, tmp_path):
    path = tmp_path / "run.ckpt"
    expected = run_exact(search=search)
    for limit in range(1, 100):
        result = run_exact(search=search, checkpoint=path, max_iterations=limit)
        if result.converged:
            break
        assert result.status is cb.Status.MAX_ITERATIONS
        assert_same(run_exact(search=search, checkpoint=path, max_iterations=limit), result)
    assert limit > 1
    assert_same(result, expected)


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
def test_larger_iteration_limit_continues_a_stopped_fallback(monkeypatch, tmp_path):
    """The fallback stops at the limit; the audit of the first answer is not repeated."""
    path = tmp_path / "run.ckpt"
    n_audits = []

    def fail_first_audit(key, target, particles, *rest):
        n_audits.append(1)
        return audit(key, target, particles, *rest)._replace(failed=len(n_audits) == 1)

    monkeypatch.setattr(verify, "audit", fail_first_audit)
    far = ExactSampler.of_problem(scale=30.0)
    sampler = ExactSampler.of_problem(is_audited=True, replacement=far)
    options = {"sampler": sampler, "search": cb.Bracket(), "eta_init": 1.5}
    stopped = run_exact(checkpoint=path, max_iterations=2, **options)
    assert stopped.status is cb.Status.MAX_ITERATIONS
    assert cb.Code.FALLBACK in [finding.code for finding in stopped.diagnostics]
    continued = run_exact(checkpoint=path, **options)
    assert continued.converged
    assert len(n_audits) == 2
    n_audits.clear()
    assert_same(continued, run_exact(**options))


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
def test_failed_fallback_returns_the_same_result_again(monkeypatch, tmp_path):
    path = tmp_path / "run.ckpt"

    def fail(*_):
        raise RuntimeError("stuck")

    monkeypatch.setattr(cb.SMC, "init", fail)
    expected = run("fallback", checkpoint=path)
    (finding,) = [finding for finding in expected.diagnostics if finding.code is cb.Code.FALLBACK_FAILED]
    assert "stuck" in finding.message
    repeated = run("fallback", checkpoint=path)
    assert_same(repeated, expected)
    assert repeated.at(level=0.9).eta == expected.at(level=0.9).eta


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
def test_interrupted_run_has_a_result_and_continues(uninterrupted, monkeypatch, tmp_path):
    path = tmp_path / "run.ckpt"
    move, calls = cb.SMC.move, []

    def interrupt_third_call(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return move(*args)

    monkeypatch.setattr(cb.SMC, "move", interrupt_third_call)
    stopped = run("smc", checkpoint=path)
    assert stopped.status is cb.Status.INTERRUPTED
    assert len(stopped.trace) == 3
    assert_same(run("smc", checkpoint=path), run_uninterrupted(uninterrupted, "smc"))


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
def test_interrupted_audit_is_run_by_the_next_call(monkeypatch, tmp_path):
    path = tmp_path / "run.ckpt"
    n_audits = []

    def interrupt_first_audit(key, target, particles, *rest):
        n_audits.append(1)
        if len(n_audits) == 1:
            raise KeyboardInterrupt
        return audit(key, target, particles, *rest)._replace(failed=False)

    monkeypatch.setattr(verify, "audit", interrupt_first_audit)
    options = {"sampler": ExactSampler.of_problem(is_audited=True), "search": cb.Bracket(), "checkpoint": path}
    assert run_exact(**options).status is cb.Status.INTERRUPTED
    CALLS.clear()
    finished = run_exact(**options)
    assert finished.converged
    assert not run_findings(finished)
    assert not CALLS


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@pytest.mark.parametrize("broken", ["os.replace", "os.fsync"])
def test_crash_while_saving_leaves_the_old_file(broken, uninterrupted, monkeypatch, tmp_path):
    path = tmp_path / "run.ckpt"
    monkeypatch.setattr(treefile, "write", write_and_die)
    with pytest.raises(Killed):
        run("smc", checkpoint=path)
    before = path.read_bytes()

    def crash(*_):
        raise Killed

    with monkeypatch.context() as crashing:
        crashing.setattr(treefile, "write", write)
        crashing.setattr(broken, crash)
        with pytest.raises(Killed):
            run("smc", checkpoint=path)
    assert path.read_bytes() == before
    monkeypatch.setattr(treefile, "write", write)
    # A killed process leaves its temporary file behind.
    (tmp_path / "run.ckpt.123-0123abcd.tmp").write_bytes(before[:100])
    assert_same(run("smc", checkpoint=path), run_uninterrupted(uninterrupted, "smc"))
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_does_not_end_a_run(uninterrupted, monkeypatch, tmp_path):
    def fail(_):
        raise OSError(28, "No space left on device")

    run_uninterrupted(uninterrupted, "smc")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.warns(cb.CalibrationWarning, match=r"could not be written: No space left"):
        result = run("smc", checkpoint=tmp_path / "run.ckpt")
    assert_same(result, uninterrupted["smc"])
    assert not list(tmp_path.iterdir())


# Stages


def test_stage_is_computed_once(tmp_path):
    path = tmp_path / "run.ckpt"
    first = Checkpoint(path, {}, 1)
    assert first.stage("a", lambda: [1]) == [1]
    assert first.stage("a", lambda: [2]) == [1]
    second = Checkpoint(path, {}, 1)
    second.load(make_location_target())
    assert second.get("a") == [1]
    assert second.get("b") is None
    assert second.stage("a", lambda: [3]) == [1]


def test_stages_are_kept_in_memory_only_with_a_path():
    nothing = Checkpoint()
    assert nothing.stage("a", lambda: [1]) == [1]
    assert nothing.get("a") is None
    assert nothing.stage("a", lambda: [2]) == [2]


def test_discarded_stage_is_computed_again(tmp_path):
    saved = Checkpoint(tmp_path / "run.ckpt", {}, 1)
    saved.stage("a", lambda: [1])
    saved.discard("a", "b")
    assert saved.stage("a", lambda: [2]) == [2]


@pytest.mark.parametrize(("limit", "allowed"), [(5, False), (6, True)])
def test_checkpoint_knows_whether_more_iterations_are_allowed(limit, allowed, tmp_path):
    path = tmp_path / "run.ckpt"
    Checkpoint(path, {}, 5).put("a", 1)
    assert Checkpoint(path, {}, limit).allows_more_iterations is allowed
    with pytest.raises(cb.CheckpointError, match=r"max_iterations = 5\..* at least as many; got 4"):
        Checkpoint(path, {}, 4)


def test_object_shared_by_two_stages_is_one_object(tmp_path):
    """Whether the refinement changed a state is decided by identity, also in a continued run."""
    path, state = tmp_path / "run.ckpt", [1]
    saved = Checkpoint(path, {}, 1)
    saved.put("a", state)
    saved.put("b", (state, [1]))
    loaded = Checkpoint(path, {}, 1)
    loaded.load(make_location_target())
    shared, other = loaded.get("b")
    assert shared is loaded.get("a")
    assert other is not shared


def test_targets_are_stored_by_their_reference(tmp_path):
    path, target = tmp_path / "run.ckpt", make_location_target()
    moved = target.recentre(target.reference + 0.5)
    Checkpoint(path, {}, 1).put("a", [target, moved])
    assert path.stat().st_size < 2000
    loaded = Checkpoint(path, {}, 1)
    loaded.load(target)
    same, other = loaded.get("a")
    assert same is target
    for expected, restored in zip(jax.tree.leaves(moved), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(expected), np.asarray(restored))


def test_reference_of_another_target_is_rejected(tmp_path):
    path = tmp_path / "run.ckpt"
    rng = np.random.default_rng(0)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal())
    other = make_target(model, (rng.normal(size=(20, 2)), rng.normal(size=20)), np.ones((3, 20)), 2)
    Checkpoint(path, {}, 1).put("a", other)
    with pytest.raises(cb.CheckpointError, match="damaged"):
        Checkpoint(path, {}, 1).load(make_location_target())


# Files that are rejected


@pytest.fixture(scope="module")
def started_file(tmp_path_factory):
    """A checkpoint of an SMC run that was killed after its initial draws."""
    path = tmp_path_factory.mktemp("started") / "run.ckpt"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(treefile, "write", write_and_die)
        with pytest.raises(Killed):
            run("smc", checkpoint=path)
    return path


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"level": 0.9}, r"level \(0.95 in the file, 0.9 in this call\)"),
        ({"tolerance": 0.012}, r"tolerance \(0.011 in the file, 0.012 in this call\)"),
        ({"eta_init": 2.0}, r"eta_init \(1.0 in the file, 2.0 in this call\)"),
        ({"seed": 4}, "seed"),
        ({"region": "box"}, "region"),
        ({"estimate": "mode"}, r"estimate \('mean' in the file, 'mode' in this call\)"),
        ({"estimate": lambda draws, weights: draws.mean(0)}, "estimate"),
        ({"sampler": cb.SMC(n_particles=100)}, "sampler"),
        ({"search": cb.RobbinsMonro(gain=2.0)}, "search"),
        ({"search": cb.Bracket()}, "search"),
        ({"bootstrap": 120}, "bootstrap"),
        ({"bootstrap": cb.bootstrap.Poisson(100)}, "bootstrap"),
        ({"draws": np.zeros((100, 1))}, "draws"),
    ],
)
def test_another_call_is_rejected(started_file, options, difference):
    before = started_file.read_bytes()
    with pytest.raises(cb.CheckpointError, match=rf"another calibration, which differs in {difference}\."):
        run("smc", checkpoint=started_file, **options)
    assert started_file.read_bytes() == before


def test_other_data_model_or_versions_are_rejected(started_file, monkeypatch):
    options = {"bootstrap": 100, "seed": 3, "eta_init": 1.0, "checkpoint": started_file} | CASES["smc"]
    x, y = DATA
    with pytest.raises(cb.CheckpointError, match=r"differs in data\."):
        cb.calibrate(MODEL, (x, y + 1e-9), **options)
    with pytest.raises(cb.CheckpointError, match=r"differs in prior\."):
        cb.calibrate(cb.GibbsModel(cb.losses.Absolute(), cb.priors.Normal(scale=11.0)), DATA, **options)
    with pytest.raises(cb.CheckpointError, match=r"differs in loss\."):
        cb.calibrate(cb.GibbsModel(cb.losses.Squared(), MODEL.prior), DATA, **options)
    monkeypatch.setattr(jax, "__version__", "0.0")
    monkeypatch.setattr(cb, "__version__", "9.9")
    expected = r"calibayes \(.* in the file, 9.9 in this call\), jax \(.* in the file, 0.0 in this call\)"
    with pytest.raises(cb.CheckpointError, match=expected):
        run("smc", checkpoint=started_file)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_truncated_or_changed_file_is_rejected(started_file, tmp_path, share):
    path, content = tmp_path / "run.ckpt", started_file.read_bytes()
    position = int(share * len(content))
    flipped = content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
    for damaged in (content[:position], flipped):
        path.write_bytes(damaged)
        with pytest.raises(cb.CheckpointError, match="damaged"):
            run("smc", checkpoint=path)
        assert path.read_bytes() == damaged


@pytest.mark.parametrize("content", [b"", b"\x00" * 1000, b"calibayes checkpoint 5\n" + b"\x00" * 100])
def test_file_that_is_no_checkpoint_is_rejected(content, tmp_path):
    path = tmp_path / "run.ckpt"
    path.write_bytes(content)
    with pytest.raises(cb.CheckpointError, match=r"run\.ckpt' was not written by calibayes, or is damaged"):
        run("smc", checkpoint=path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("stages", [1, [1], {1: "a"}, None])
def test_file_without_named_stages_is_rejected(stages, tmp_path):
    path = tmp_path / "run.ckpt"
    treefile.write(path, {"fingerprint": {}, "max_iterations": 1}, stages, frozenset(), lambda value: None)
    with pytest.raises(cb.CheckpointError, match="damaged"):
        Checkpoint(path, {}, 1).load(make_location_target())


@pytest.mark.parametrize("header", [{}, {"fingerprint": 1, "max_iterations": 1}, {"fingerprint": {}}])
def test_file_with_another_header_is_rejected(header, tmp_path):
    path = tmp_path / "run.ckpt"
    treefile.write(path, header, {}, frozenset(), lambda value: None)
    with pytest.raises(cb.CheckpointError):
        Checkpoint(path, {}, 1)


def test_class_of_a_module_that_is_not_trusted_is_rejected(tmp_path):
    """Without the sampler whose module defines the state, the file cannot be loaded."""
    path = tmp_path / "run.ckpt"
    state = exact_sampler.ExactState(None, 1.0, False)
    Checkpoint(path, {}, 1, frozenset({"exact_sampler"})).put("a", state)
    trusting = Checkpoint(path, {}, 1, frozenset({"exact_sampler"}))
    trusting.load(make_location_target())
    assert trusting.get("a") == state
    with pytest.raises(cb.CheckpointError, match="damaged"):
        Checkpoint(path, {}, 1).load(make_location_target())
    with pytest.raises(cb.CheckpointError, match="exact_sampler:ExactState, which cannot be stored"):
        Checkpoint(path, {}, 1).put("a", state)


def test_invalid_paths_are_rejected(tmp_path):
    for path, message in (
        (tmp_path, "is a directory"),
        (tmp_path / "nowhere" / "run.ckpt", "does not exist"),
        ("/dev/null", "must be a regular file"),
    ):
        with pytest.raises(cb.CheckpointError, match=message):
            run("smc", checkpoint=path)
    with pytest.raises(TypeError, match="path of a file; got True"):
        check_path(True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_directory_without_write_permission_is_rejected(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(cb.CheckpointError, match="is not writable"):
        run("smc", checkpoint=tmp_path / "run.ckpt")


def test_command_line_reports_an_invalid_path(tmp_path):
    table = tmp_path / "data.csv"
    table.write_text("x,y\n" + "\n".join(f"{i},{i % 7}" for i in range(40)))
    path = str(tmp_path / "nowhere" / "run.ckpt")
    result = CliRunner().invoke(app, ["fit", str(table), "--target", "y", "--checkpoint", path], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "does not exist" in result.output


@pytest.mark.slow
def test_processes_killed_at_random_moments_continue(tmp_path):
    command = [sys.executable, "-m", "benchmarks.kills", "--kills", "9", "--out", str(tmp_path / "kills.json")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=1200)
