"""Each part of the benchmarks, with what takes long stood in for: what it compares, and how the figures are made."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from benchmarks.speed import algorithms, at_scale, large, memory, passes, peers, problems, scaling, start
from benchmarks.speed.measured import Measured, Ratio, Report
from benchmarks.speed.page import write

import example_results
from calibayes._core.particles import Particles

TINY = problems.Sizes(quick=True, rows=6, particles=20, large=30, middle=30, draws=400, doublings=1, repeats=1)


@pytest.fixture
def printed(monkeypatch):
    """Programs that are not run: what they would have printed, in turn; and the arguments they were given."""
    asked, answers = [], []

    def run(command, **_):
        asked.append([str(part) for part in command[1:]])
        out, error = answers.pop(0)
        return subprocess.CompletedProcess(command, 0, out, error)

    monkeypatch.setattr(subprocess, "run", run)
    return asked, answers


@pytest.fixture
def loops(monkeypatch):
    """The loops by hand as Python, which numba would compile."""
    numba = pytest.importorskip("numba")
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    monkeypatch.delitem(sys.modules, "benchmarks.speed.handwritten", raising=False)
    yield importlib.import_module("benchmarks.speed.handwritten")
    sys.modules.pop("benchmarks.speed.handwritten", None)


@pytest.mark.parametrize("dim", [2, 8])
def test_loops_by_hand_are_the_risk(loops, dim):
    """Of more particles than go into a tile, with observations that a row does not hold."""
    rng = np.random.default_rng(0)
    rows, particles, n = 2, loops.TILE + 3, 5
    theta = rng.normal(size=(dim, rows, particles)).astype(np.float32)
    x, counts = rng.normal(size=(n, dim)).astype(np.float32), rng.integers(0, 3, (rows, n)).astype(np.float32)
    y = (rng.normal(size=n) if dim == 2 else np.sign(rng.normal(size=n))).astype(np.float32)
    predicted, out = np.einsum("ik,kbm->bim", x, theta), np.zeros((rows, particles), np.float32)
    if dim == 2:
        loops.quantile_2(theta, x, y, counts, np.float32(0.3), out)
        residual = y[:, None] - predicted
        each = np.maximum(0.3 * residual, -0.7 * residual)
    else:
        loops.hinge_8(theta, x, y, counts, out)
        each = 2 * np.maximum(0, 1 - y[:, None] * predicted)
    np.testing.assert_allclose(out, np.einsum("bi,bim->bm", counts, each), rtol=1e-4, atol=1e-4)


def test_chains_by_hand_are_as_long_as_is_counted(loops):
    values = np.linspace(0, 1, loops.TILE, dtype=np.float32)
    expected = 0.5 + (values - 0.5) * 0.9 ** (2 * 16)
    loops.chains(values, np.float32(0.9), np.float32(0.05), 2)
    np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_memory_is_held_against_all_losses(printed):
    asked, answers = printed
    answers += [("200000\n", ""), ("a warning\n300000\n", ""), ("400000\n", "")]
    found = memory.measure(TINY)
    assert found.figures["imported"] == {"GB": 0.2}
    assert [ratio.ours for ratio in found.ratios] == [0.3, 0.4]
    assert [ratio.theirs for ratio in found.ratios] == pytest.approx([4e-9 * 30 * 24 * 20, 4e-9 * 462 * 6 * 4000])
    assert "bootstrap=24" in asked[1][1]
    assert "0.20 GB of it as soon as calibayes is imported" in found.ratios[0].note


def test_a_million_observations_in_a_process_of_its_own(printed):
    asked, answers = printed
    said = {"seconds": [30.0], "GB": 2.0, "eta": 0.7, "message": "fine"}
    answers.append((f"noise\n{json.dumps(said)}\n", ""))
    found = large.measure(TINY)
    assert asked[0][2:] == ["20000", "10", "6", "10", "1"]
    assert found.figures["large"] == said | {"N": 20_000}
    assert (found.ratios[0].ours, found.ratios[0].theirs, found.ratios[0].unit) == (2.0, 8.0, "GB")


def test_passes_and_the_host(printed):
    asked, answers = printed
    answers.append(("[[7, 20, 3]]\n", ""))
    found = passes.measure(TINY).figures["passes"]
    assert found["calls"] == [[7, 20, 3]]
    assert asked[0][2:] == ["500", "10", "6", "20"]
    assert found["host N"] == 10_000
    assert found["host seconds"] > 0


IMPORTS = """import time:      1000 |       3000 | jax.numpy
import time:      4000 |       4000 |   calibayes.solve.loop
import time:       500 |        500 | jax
"""


@pytest.mark.parametrize("quick", [True, False])
def test_cold_start(printed, quick):
    _, answers = printed
    answers += [("0.5\n", ""), ("0.4\n", ""), ("", IMPORTS), ("9.0\n1.0\n", ""), ("3.0\n0.5\n", "")]
    found = start.measure(TINY._replace(quick=quick))
    assert found.figures["imports"] == {"calibayes": 0.004, "jax": 0.0015}
    ratios = [ratio.ratio for ratio in found.ratios]
    assert ratios == pytest.approx([2.0, 0.8] if quick else [2.0, 0.8, 3.0, 6.0, 18.0])
    assert bool(found.skipped) == quick


def test_scaling_doubles_one_size_at_a_time(monkeypatch):
    """A calibration whose time is as its rows squared, and as nothing else."""
    monkeypatch.setattr(scaling.cb, "calibrate", lambda *_, bootstrap, **__: example_results.make_result(eta=float(bootstrap)))
    monkeypatch.setattr(scaling, "timed", lambda call: (None, call().eta ** 2))
    figures = scaling.measure(TINY).figures
    assert figures["calibration in B"]["sizes"] == [6, 12]
    assert figures["calibration in B"]["slope"] == pytest.approx(2)
    assert figures["calibration in N"]["slope"] == pytest.approx(0)
    assert figures["calibration in K"]["wanted"] is None
    assert all(seconds > 0 for axis in "NBMK" for seconds in figures[f"risk in {axis}"]["seconds"])


def test_algorithms_are_compared_on_the_same_rows(monkeypatch):
    """Transport in one second; ten iterations of GPC-SMC in 40, and of GPC-MCMC at three each; and one second."""
    rows, one = [], example_results.make_result()
    many = example_results.make_result(trace=one.trace * 10, converged=False)

    def method(result):
        def call(*_, bootstrap, max_iterations=None, **__):
            rows.append(np.asarray(bootstrap))
            return result if max_iterations is None else example_results.make_result(trace=one.trace * max_iterations)

        return call

    for name, result in (("calibrate", one), ("gpc_smc", many), ("gpc_mcmc", many)):
        monkeypatch.setattr(algorithms.cb, name, method(result))
    seconds = {id(one): 1.0, id(many): 40.0}
    monkeypatch.setattr(algorithms, "timed", lambda call: (found := call(), seconds.get(id(found), 6.0)))
    found = algorithms.measure(TINY)
    assert [ratio.ratio for ratio in found.ratios] == pytest.approx([*[40, 40, 30, 30] * 2, 1])
    assert {len(own) for own in rows} == {6}
    assert "not converged" in found.ratios[0].note
    assert "10 iterations, as GPC-SMC had, x 3.0 s, the mean of 2" in found.ratios[2].note


def test_peers_pay_for_every_learning_rate(monkeypatch):
    """Six rates tried, each ten seconds and one of warm-up, against one second; the fastest peer has the aim."""
    even = jnp.full((7, 20), -np.log(20))
    theta = jax.random.normal(jax.random.key(0), (2, 7, 20))
    sampler = SimpleNamespace(snapshots=lambda target, state: [(None, state), (None, state)])
    loop, found = (
        SimpleNamespace(target=None, sampler=sampler),
        SimpleNamespace(state=Particles(theta, even, even, even)),
    )
    result = example_results.make_result(calibration=SimpleNamespace(loop=loop, found=found))
    one = SimpleNamespace(target=None, sampler=SimpleNamespace(snapshots=lambda target, state: [(None, state)]))
    half = example_results.make_result(calibration=SimpleNamespace(loop=one, found=found))
    assert peers.transport_size(result) > 1.2 * peers.transport_size(half)
    draw = np.random.default_rng(0).normal
    ours = lambda model, data, **_: replace(result, draws=draw(size=(100, k := data[0].shape[1])), estimate=np.zeros(k))
    monkeypatch.setattr(peers.cb, "calibrate", ours)
    monkeypatch.setattr(peers.cb, "gpc_smc", lambda *_, **__: example_results.make_result(trace=result.trace * 6))
    monkeypatch.setattr(algorithms, "timed", lambda call: (call(), 1.0))

    def slow(rows, sizes):
        density = rows.log_density(rows.starts[0], rows.counts[0])
        assert np.isfinite(density)
        return peers.Chains(1.0, 10.0, 100, peers.transport_size(result))

    def missing(rows, sizes):
        raise ImportError("no", name="blackjax")

    slower = lambda rows, sizes: slow(rows, sizes)._replace(warm_up=100.0)
    monkeypatch.setattr(peers, "PEERS", {"a": slow, "b": slower, "c": missing})
    found = peers.measure(TINY)
    assert [(ratio.ratio, ratio.wanted) for ratio in found.ratios] == [(66.0, 100.0), (660.0, None)] * 2
    assert found.skipped == ["c: blackjax is not installed."] * 2


@pytest.mark.parametrize(("peer", "needs"), [(peers.nuts, "blackjax"), (peers.numpyro_nuts, "numpyro")])
def test_nuts_is_worth_about_its_draws(peer, needs):
    """On standard normals, shifted by their counts."""
    pytest.importorskip(needs)
    shifts = jnp.arange(4.0)[:, None]
    density = lambda theta, row: -0.5 * ((theta - row) ** 2).sum()
    rows = peers.Rows(density, shifts, jnp.broadcast_to(shifts, (4, 2)), jnp.eye(2))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        chains = peer(rows, TINY)
    assert chains.draws == 200
    assert 0.3 < chains.size / chains.draws < 3


def test_many_devices_on_paper_are_on_the_page(monkeypatch, tmp_path):
    """If what they follow from was measured: passes, a large calibration that was compiled, a small one."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # An int is a float here.
    counted = {"N": 500, "K": 3, "B": 10, "M": 1000, "calls": [[20, 1000, 5]], "host N": 1_000, "host seconds": 0.25}
    report = Report("an accelerator; jax 1", {"jax": "1"}, {}, tmp_path / "bench_x.json")
    report.add("passes", Measured(figures={"passes": counted}))
    report.add("start", Measured(figures={"imports": {"jax": 0.3, "calibayes": 0.1}}, quick=True))
    write(tmp_path, tmp_path / "docs")
    page = tmp_path / "docs" / "performance.md"
    assert "On paper" not in page.read_text()
    assert "by package: jax 75%, calibayes 25%" in page.read_text()
    assert "From a quick run, at small sizes." in page.read_text()
    report.add("large", Measured(figures={"large": {"N": 1_000_000, "seconds": [9.0, 2.5]}}))
    report.add("algorithms", Measured([Ratio("transport", "GPC-SMC", 0.5, 20.0)]))
    write(tmp_path, tmp_path / "docs")
    text = page.read_text()
    own = at_scale.machine(counted, 1_000_000, 2.5, 0.5)
    on_paper = at_scale.section("an accelerator", f"an accelerator, {report.made}", own, counted, 1_000_000)
    assert "\n\n".join(on_paper) in text
    # A billion observations on a device: a thousand times the two seconds of a million.
    assert "| 1,000,000,000 | 1 | 2,000 s |" in text
    assert "5 for 1,000 particles on 20 rows" in text
