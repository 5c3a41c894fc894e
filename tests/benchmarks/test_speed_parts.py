"""The parts of the speed benchmark, with calibrations and processes replaced by stubs."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.speed import algorithms, large, memory, passes, peers, problems, projection, scaling, start
from benchmarks.speed.measurement import Measurements, Ratio, Report
from benchmarks.speed.page import write
from calibayes._core.particles import Particles
from calibayes._core.status import Status
from calibayes.samplers.base import Snapshot
from example_results import make_result

TINY = problems.Sizes(quick=True, replicates=6, particles=20, large=30, middle=30, draws=400, doublings=1, repeats=1)


@pytest.fixture
def processes(monkeypatch):
    """Stub of subprocess.run: the arguments of each call, and the outputs to return, in order."""
    commands, outputs = [], []

    def run(command, **_):
        commands.append([str(part) for part in command[1:]])
        out, error = outputs.pop(0)
        return subprocess.CompletedProcess(command, 0, out, error)

    monkeypatch.setattr(subprocess, "run", run)
    return commands, outputs


@pytest.fixture
def loops(monkeypatch):
    """The handwritten loops as plain Python, without compilation by numba."""
    numba = pytest.importorskip("numba")
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    monkeypatch.delitem(sys.modules, "benchmarks.speed.handwritten", raising=False)
    yield importlib.import_module("benchmarks.speed.handwritten")
    sys.modules.pop("benchmarks.speed.handwritten", None)


@pytest.mark.parametrize("dim", [2, 8])
def test_handwritten_loops_compute_the_risk(loops, dim):
    """With more particles than fit into a tile, and with counts of zero."""
    rng = np.random.default_rng(0)
    replicates, particles, n = 2, loops.TILE + 3, 5
    theta = rng.normal(size=(dim, replicates, particles)).astype(np.float32)
    x, counts = rng.normal(size=(n, dim)).astype(np.float32), rng.integers(0, 3, (replicates, n)).astype(np.float32)
    y = (rng.normal(size=n) if dim == 2 else np.sign(rng.normal(size=n))).astype(np.float32)
    predicted, out = np.einsum("ik,kbm->bim", x, theta), np.zeros((replicates, particles), np.float32)
    if dim == 2:
        loops.quantile_2(theta, x, y, counts, np.float32(0.3), out)
        residual = y[:, None] - predicted
        losses = np.maximum(0.3 * residual, -0.7 * residual)
    else:
        loops.hinge_8(theta, x, y, counts, out)
        losses = 2 * np.maximum(0, 1 - y[:, None] * predicted)
    np.testing.assert_allclose(out, np.einsum("bi,bim->bm", counts, losses), rtol=1e-4, atol=1e-4)


def test_chains_have_the_counted_length(loops):
    values = np.linspace(0, 1, loops.TILE, dtype=np.float32)
    expected = 0.5 + (values - 0.5) * 0.9 ** (2 * 16)
    loops.chains(values, np.float32(0.9), np.float32(0.05), 2)
    np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_memory_is_compared_with_all_losses(processes):
    commands, outputs = processes
    outputs += [("200000\n", ""), ("a warning\n300000\n", ""), ("400000\n", "")]
    measured = memory.measure(TINY)
    assert measured.figures["imported"] == {"GB": 0.2}
    assert [ratio.ours for ratio in measured.ratios] == [0.3, 0.4]
    assert [ratio.theirs for ratio in measured.ratios] == pytest.approx([4e-9 * 30 * 24 * 20, 4e-9 * 462 * 6 * 4000])
    assert "bootstrap=24" in commands[1][1]
    assert "0.20 GB of it after `import calibayes`" in measured.ratios[0].note


def test_large_problem_runs_in_its_own_process(processes):
    commands, outputs = processes
    output = {"seconds": [30.0], "GB": 2.0, "eta": 0.7, "message": "fine"}
    outputs.append((f"noise\n{json.dumps(output)}\n", ""))
    measured = large.measure(TINY)
    assert commands[0][2:] == ["20000", "10", "6", "10", "1"]
    assert measured.figures["large"] == output | {"N": 20_000}
    assert (measured.ratios[0].ours, measured.ratios[0].theirs, measured.ratios[0].unit) == (2.0, 8.0, "GB")


def test_passes_and_host_time(processes):
    commands, outputs = processes
    outputs.append(("[[7, 20, 3]]\n", ""))
    counted = passes.measure(TINY).figures["passes"]
    assert counted["calls"] == [[7, 20, 3]]
    assert commands[0][2:] == ["500", "10", "6", "20"]
    assert counted["host N"] == 10_000
    assert counted["host seconds"] > 0


IMPORTS = """import time:      1000 |       3000 | jax.numpy
import time:      4000 |       4000 |   calibayes.solve.solver
import time:       500 |        500 | jax
"""


@pytest.mark.parametrize("quick", [True, False])
def test_cold_start(processes, quick):
    _, outputs = processes
    outputs += [("0.5\n", ""), ("0.4\n", ""), ("", IMPORTS), ("9.0\n1.0\n", ""), ("3.0\n0.5\n", "")]
    measured = start.measure(TINY._replace(quick=quick))
    assert measured.figures["imports"] == {"calibayes": 0.004, "jax": 0.0015}
    ratios = [ratio.ratio for ratio in measured.ratios]
    assert ratios == pytest.approx([2.0, 0.8] if quick else [2.0, 0.8, 3.0, 6.0, 18.0])
    assert bool(measured.skipped) == quick


def test_scaling_doubles_one_size_at_a_time(monkeypatch):
    """With a stub whose time is the square of the number of replicates."""
    monkeypatch.setattr(scaling.cb, "calibrate", lambda *_, bootstrap, **__: make_result(eta=float(bootstrap)))
    monkeypatch.setattr(scaling, "timed", lambda call: (None, call().eta ** 2))
    figures = scaling.measure(TINY).figures
    assert figures["calibration in B"]["sizes"] == [6, 12]
    assert figures["calibration in B"]["slope"] == pytest.approx(2)
    assert figures["calibration in N"]["slope"] == pytest.approx(0)
    assert figures["calibration in K"]["goal"] is None
    assert all(seconds > 0 for axis in "NBMK" for seconds in figures[f"risk in {axis}"]["seconds"])


def test_algorithms_are_compared_on_the_same_replicates(monkeypatch):
    """Transport takes one second, ten iterations of GPC-SMC 40, and each iteration of GPC-MCMC three."""
    counts, one = [], make_result()
    many = make_result(trace=one.trace * 10, status=Status.MAX_ITERATIONS)

    def method(result):
        def call(*_, bootstrap, max_iterations=None, **__):
            counts.append(np.asarray(bootstrap))
            return result if max_iterations is None else make_result(trace=one.trace * max_iterations)

        return call

    for name, result in (("calibrate", one), ("gpc_smc", many), ("gpc_mcmc", many)):
        monkeypatch.setattr(algorithms.cb, name, method(result))
    seconds = {id(one): 1.0, id(many): 40.0}
    monkeypatch.setattr(algorithms, "timed", lambda call: (result := call(), seconds.get(id(result), 6.0)))
    measured = algorithms.measure(TINY)
    assert [ratio.ratio for ratio in measured.ratios] == pytest.approx([*[40, 40, 30, 30] * 2, 1])
    assert {len(replicates) for replicates in counts} == {6}
    assert "not converged" in measured.ratios[0].note
    assert "10 iterations, as many as GPC-SMC, x 3.0 s, the mean of 2" in measured.ratios[2].note


def test_peers_pay_for_every_learning_rate(monkeypatch):
    """Six learning rates, each ten seconds and one of warm-up, against one second; the goal is for the fastest peer."""
    uniform = jnp.full((7, 20), -np.log(20))
    theta = jax.random.normal(jax.random.key(0), (2, 7, 20))
    particles = Particles(theta, uniform, uniform, uniform)

    def result_with(n_snapshots):
        snapshots = [Snapshot(particles, particles)] * n_snapshots
        sampler = SimpleNamespace(snapshots=lambda target, state: snapshots)
        problem, iterate = SimpleNamespace(target=None, sampler=sampler), SimpleNamespace(state=None)
        return make_result(calibration=SimpleNamespace(problem=problem, iterate=iterate))

    result = result_with(2)
    assert peers.transport_ess(result) > 1.2 * peers.transport_ess(result_with(1))
    draw = np.random.default_rng(0).normal
    ours = lambda model, data, **_: replace(result, draws=draw(size=(100, k := data[0].shape[1])), estimate=np.zeros(k))
    monkeypatch.setattr(peers.cb, "calibrate", ours)
    monkeypatch.setattr(peers.cb, "gpc_smc", lambda *_, **__: make_result(trace=result.trace * 6))
    monkeypatch.setattr(algorithms, "timed", lambda call: (call(), 1.0))

    def slow(posteriors, sizes):
        density = posteriors.log_density(posteriors.initial[0], posteriors.counts[0])
        assert np.isfinite(density)
        return peers.Chains(1.0, 10.0, 100, peers.transport_ess(result))

    def missing(posteriors, sizes):
        raise ImportError("no", name="blackjax")

    slower = lambda posteriors, sizes: slow(posteriors, sizes)._replace(warm_up=100.0)
    monkeypatch.setattr(peers, "PEERS", {"a": slow, "b": slower, "c": missing})
    measured = peers.measure(TINY)
    assert [(ratio.ratio, ratio.goal) for ratio in measured.ratios] == [(66.0, 100.0), (660.0, None)] * 2
    assert measured.skipped == ["c, because blackjax is not installed."] * 2


@pytest.mark.slow
@pytest.mark.parametrize(("peer", "package"), [(peers.nuts, "blackjax"), (peers.numpyro_nuts, "numpyro")])
def test_effective_sample_size_of_nuts_is_about_its_draws(peer, package):
    """On normal posteriors, with the counts as means."""
    pytest.importorskip(package)
    shifts = jnp.arange(4.0)[:, None]
    density = lambda theta, counts: -0.5 * ((theta - counts) ** 2).sum()
    posteriors = peers.Posteriors(density, shifts, jnp.broadcast_to(shifts, (4, 2)), jnp.eye(2))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        chains = peer(posteriors, TINY)
    assert chains.draws == 200
    assert 0.3 < chains.ess / chains.draws < 3


def test_projection_is_on_the_page(tmp_path):
    """It needs the number of passes, a large calibration without compilation, and a small one."""
    counted = {"N": 500, "K": 3, "B": 10, "M": 1000, "calls": [[20, 1000, 5]], "host N": 1_000, "host seconds": 0.25}
    report = Report("an accelerator; jax 1", {"jax": "1"}, {}, tmp_path / "bench_x.json")
    report.add("passes", Measurements(figures={"passes": counted}))
    report.add("start", Measurements(figures={"imports": {"jax": 0.3, "calibayes": 0.1}}, quick=True))
    write(tmp_path, tmp_path / "docs")
    page = tmp_path / "docs" / "performance.md"
    assert "Projection" not in page.read_text()
    assert "by package: jax 75%, calibayes 25%" in page.read_text()
    assert "From a quick run with small sizes." in page.read_text()
    report.add("large", Measurements(figures={"large": {"N": 1_000_000, "seconds": [9.0, 2.5]}}))
    report.add("algorithms", Measurements([Ratio("transport", "GPC-SMC", 0.5, 20.0)]))
    write(tmp_path, tmp_path / "docs")
    text = page.read_text()
    speed = projection.device(counted, 1_000_000, 2.5, 0.5)
    section = projection.section("an accelerator", f"an accelerator, {report.date}", speed, counted, 1_000_000)
    assert "\n\n".join(section) in text
    # A billion observations on one device take a thousand times the two seconds of a million.
    assert "| 1,000,000,000 | 1 | 2,000 s |" in text
    assert "5 for 1,000 particles on 20 replicates" in text
