"""The speed benchmark: ratios, stored reports, the page, and the projection to many devices."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.common import ROOT
from benchmarks.speed import PARTS, measurement, passes, problems, projection, select_parts, tables
from benchmarks.speed.cli import app
from benchmarks.speed.engine import measure as measure_engine
from benchmarks.speed.measurement import Measurements, Ratio, Report, best_of, load, slope
from benchmarks.speed.page import MARKS, write
from benchmarks.speed.peers import Chains, Posteriors, _weighted_multi_ess, random_walk
from calibayes._core.convergence import multi_ess
from calibayes._core.particles import Particles, normalise

TINY = problems.Sizes(quick=True, replicates=6, particles=20, large=30, middle=30, doublings=1, repeats=1)


def invoke(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "120"})


def test_ratios_and_goals():
    assert Ratio("a", "b", 2.0, 10.0).ratio == 5
    assert Ratio("a", "b", 2.0, 10.0).met is None
    assert Ratio("a", "b", 2.0, 10.0, goal=5.0).met
    assert not Ratio("a", "b", 2.0, 10.0, goal=5.1).met


def test_slope_is_the_exponent():
    sizes = np.array([100, 200, 400])
    assert slope([100, 200, 400], (3e-5 * sizes**1.3).tolist()) == pytest.approx(1.3)


def test_calls_are_timed_in_turns(monkeypatch):
    """Each call has its shortest time, and each timed call follows one that is not timed."""
    durations = iter([0.0, 3.0, 0.0, 7.0, 0.0, 4.0, 0.0, 5.0])
    clock = [0.0]

    def perf_counter():
        clock[0] += next(durations)
        return clock[0]

    monkeypatch.setattr(measurement.time, "perf_counter", perf_counter)
    order = []
    assert best_of([partial(order.append, "a"), partial(order.append, "b")], 2) == [3.0, 5.0]
    assert order == ["a", "a", "b", "b"] * 2


def test_time_for_an_effective_sample_size():
    """Ten seconds for an ESS of 200 are forty for 800; the warm-up is counted once."""
    assert Chains(warm_up=1.0, seconds=10.0, draws=2000, ess=200.0).seconds_for(800.0) == 41.0


@pytest.fixture
def normals():
    """Normal posteriors of four replicates, with their counts as means."""
    shifts = jnp.arange(4.0)[:, None]
    density = lambda theta, counts: -0.5 * ((theta - counts) ** 2).sum()
    return Posteriors(density, shifts, jnp.broadcast_to(shifts, (4, 2)), jnp.eye(2))


def test_effective_sample_size_of_a_random_walk(normals):
    """In two dimensions it is about a tenth of the draws."""
    pytest.importorskip("blackjax")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        chains = random_walk(normals, TINY._replace(draws=2000))
    assert chains.draws == 2000
    assert 0.05 < chains.ess / chains.draws < 0.3
    assert chains.seconds > 0


def test_missing_peer_is_named(normals, monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(ImportError) as error:
        random_walk(normals, TINY)
    assert error.value.name == "blackjax"


def test_weighted_ess_of_equal_weights_is_multi_ess():
    rng = np.random.default_rng(0)
    theta = jnp.asarray(rng.normal(size=(2, 3, 400)), float)
    uniform = jnp.full((3, 400), -np.log(400))
    sizes = np.asarray(_weighted_multi_ess(Particles(theta, uniform, uniform, uniform)))
    expected = [multi_ess(np.asarray(theta[:, b].T)) for b in range(3)]
    np.testing.assert_allclose(sizes, expected, rtol=0.01)


def test_weighted_ess_has_a_closed_form_for_normals():
    """A normal reweighted to 0.8 times its precision: the ESS of the mean is M var / E[w^2 z^2]."""
    rng = np.random.default_rng(1)
    z = jnp.asarray(rng.normal(size=(1, 100, 4000)), float)
    log_weights = normalise(0.1 * z[0] ** 2)
    sizes = np.asarray(_weighted_multi_ess(Particles(z, log_weights, log_weights, log_weights)))
    # Weights are the ratio of N(0, 1 / 0.8) to N(0, 1): E[w^2 z^2] = 0.8 * 0.6^-1.5, and the variance is 1 / 0.8.
    assert np.median(sizes) == pytest.approx(4000 / 0.8 / (0.8 * 0.6**-1.5), rel=0.1)


def test_default_parts():
    assert select_parts([], quick=False) == [name for name in PARTS if name != "large"]
    assert set(select_parts([], quick=True)) == {"engine", "start"}
    assert select_parts(["scaling"], quick=True) == ["scaling"]


def test_unknown_part_is_rejected():
    result = invoke("--only", "nothing")
    assert result.exit_code == 2
    assert "nothing" in result.output
    assert "engine" in result.output


def test_quick_run_replaces_one_stored_part(monkeypatch, tmp_path):
    """Other parts are kept, and missing numba is reported."""
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(problems, "QUICK", TINY)
    monkeypatch.setattr(measurement, "date_and_commit", lambda: "today")
    path = tmp_path / "bench.json"
    Report("machine", {}, {}, path).add("memory", Measurements([Ratio("old", "b", 1.0, 2.0)]))
    monkeypatch.setattr(measurement, "machine", lambda: "machine; jax 1")
    result = invoke("--quick", "--only", "engine", "--json", path)
    assert result.exit_code == 0, result.output
    assert "numba is not installed" in result.output
    stored = json.loads(path.read_text())
    assert stored["versions"]["jax"]
    assert list(stored["parts"]) == ["memory", "engine"]
    engine = stored["parts"]["engine"]
    assert engine["quick"]
    assert {ratio["baseline"] for ratio in engine["ratios"]} == {"measured peak", "same loss as a linear loss"}
    for ratio in engine["ratios"]:
        assert ratio["ratio"] == ratio["theirs"] / ratio["ours"] > 0
    assert engine["date"] == "today"
    # For each of 120 particles its parameters and risk; for each observation six counts, x, y, an offset and a loss.
    shapes = [(shape["operations"], shape["bytes"]) for shape in engine["figures"]["roofline"]["shapes"]]
    assert shapes == [
        (n * 120 * (2 * dim + 4), 4 * (120 * (dim + 1) + 6 * n + n * (dim + 3))) for n, dim in ((30, 2), (462, 8))
    ]
    # The few losses of this problem stay below the peak on any number of threads.
    assert all(ratio["ratio"] < 1 for ratio in engine["ratios"] if ratio["baseline"] == "measured peak")
    monkeypatch.setattr(measurement, "machine", lambda: "another; jax 1")
    with pytest.raises(ValueError, match="another machine"):
        Report.for_this_machine(path)


def test_efficiency_is_relative_to_the_larger_bound():
    shape = {"case": "a", "operations": 3e9, "bytes": 2e6, "peak": 1e12, "seconds": 0.02}
    for bandwidth, efficiency in ((1e9, "15%"), (1e8, "100%")):
        figures = {"roofline": {"bandwidth": bandwidth, "shapes": [shape]}}
        (row,) = tables.roofline(Measurements(figures=figures)).rows
        assert row[1:3] == ("3 G", "2 MB")
        assert row[3].startswith("3 and ")
        assert row[-2:] == ("20 ms", efficiency)


def test_date_and_commit(monkeypatch):
    """The commit is that of the last change of sources or benchmarks; without Git there is only the date."""
    day = r"\d{4}-\d\d-\d\d"
    if shutil.which("git"):
        command = ["git", "-C", ROOT, "log", "-1", "--format=%h", "--", "src", "benchmarks"]
        commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
        expected = f", commit {commit}( with uncommitted changes)?" if commit else ""
        assert re.fullmatch(day + expected, measurement.date_and_commit())
    monkeypatch.setenv("PATH", "")
    assert re.fullmatch(day, measurement.date_and_commit())


def test_handwritten_loop_must_agree_with_the_engine(monkeypatch):
    wrong = lambda: np.random.default_rng(2).normal(size=(TINY.replicates, TINY.particles))
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr("benchmarks.speed.engine._handwritten_loop", lambda *_: wrong)
    with pytest.raises(AssertionError, match="do not compute the same"):
        measure_engine(TINY)


@pytest.fixture
def stored(tmp_path):
    line = {"sizes": [100, 200, 400], "seconds": [1.0, 2.0, 4.0], "slope": 1.0, "goal": 1.05}
    figures = {f"{kind} in {axis}": line for kind in ("risk", "calibration") for axis in "NBMK"}
    report = Report("two cores; jax 1", {"jax": "1"}, {}, tmp_path / "bench_cpu.json")
    report.add("scaling", Measurements(figures=figures))
    ratio = Ratio("transport", "GPC by BlackJAX", 0.5, 20.0, 100.0, "10 learning rates x 2 s")
    report.add("peers", Measurements([ratio], skipped=["NumPyro, because numpyro is not installed."]))
    return tmp_path


def test_page_has_the_stored_measurements(stored):
    result = invoke("--page", "--results", stored, "--docs", stored / "docs")
    assert result.exit_code == 0, result.output
    page = stored / "docs" / "performance.md"
    text = page.read_text()
    assert "| transport | GPC by BlackJAX | 40 | 100, missed | 0.5 and 20 s |" in text
    assert "- transport, relative to GPC by BlackJAX: 10 learning rates x 2 s." in text
    assert "| risk in N | 100 to 400 | 1.00 | 1.05, met |" in text
    assert "Not measured: NumPyro, because numpyro is not installed." in text
    assert f"Measured {load(stored / 'bench_cpu.json').parts['peers'].date}." in text
    assert "Not measured on this machine: risk engine, transport and the paper's algorithms, cold start" in text
    assert (stored / "docs" / "cpu_scaling.png").stat().st_size > 5000


def test_text_around_the_tables_is_kept(stored):
    docs = stored / "docs"
    write(stored, docs)
    page = docs / "performance.md"
    page.write_text(page.read_text() + "\n## Roofline\n\nWritten by hand.\n")
    before = page.read_text()
    write(stored, docs)
    assert page.read_text() == before
    page.write_text(page.read_text().replace(MARKS.end, ""))
    with pytest.raises(ValueError, match=MARKS.begin):
        write(stored, docs)


def test_other_files_are_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"no bench_\*.json"):
        write(tmp_path, tmp_path)
    path = tmp_path / "bench_cpu.json"
    path.write_text('{"ratios": []}')
    with pytest.raises(ValueError, match="not a file of the speed benchmark"):
        load(path)


PASSES = {
    "N": 500,
    "K": 3,
    "B": 10,
    "M": 100,
    "calls": [[20, 100, 5], [11, 100, 2]],
    "host N": 1_000,
    "host seconds": 0.25,
}


def test_projected_cost():
    """Ten operations for each of 12,200 particles and each observation; then a sum of as many numbers in each pass."""
    assert projection.operations(PASSES["calls"], 7, 3) == (20 * 100 * 5 + 11 * 100 * 2) * 10 * 7
    speed = projection.device(PASSES, 1_000, 2.5, 0.5)
    assert speed == (12_200 * 10 * 1_000 / 2.0, 0.5)
    single, four = (projection.cost(speed, PASSES, 10**6, devices) for devices in (1, 4))
    assert single == pytest.approx((2_000.0, 0.0, 0.5, 250.0, 36e6))
    sent = 2 * 4 * 12_200 * 3 / 4
    assert four == pytest.approx((500.0, sent / projection.BANDWIDTH + 7 * 4 * projection.LATENCY, 0.5, 250.0, 9e6))
    # With 4,000 devices, 2,000 s of passes take as long as the fixed half second; sums take under a millisecond.
    assert projection.saturating_devices(speed, PASSES, 10**6) == pytest.approx(4_000, rel=0.01)


@pytest.mark.slow
def test_passes_are_counted():
    """On the replicates, and of the populations on the data."""
    counted = passes.measure(TINY._replace(replicates=40, particles=100)).figures["passes"]
    numbers = {(replicates, particles): n for replicates, particles, n in counted["calls"]}
    assert numbers[counted["B"] + 1, counted["M"]] >= 1
    assert numbers[20, counted["M"]] > 20
