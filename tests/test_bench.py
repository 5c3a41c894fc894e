"""The benchmarks: that they run, that ratios are what they say, and that the page is what is stored."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.speed import PARTS, at_scale, chosen, measured, passes, problems, tables
from benchmarks.speed.engine import measure as measure_engine
from benchmarks.speed.measured import Measured, Ratio, Report, best_of, load, slope
from benchmarks.speed.page import BEGIN, END, write
from benchmarks.speed.peers import Chains, Rows, _weighted_multi_ess, random_walk
from typer.testing import CliRunner

from calibayes._core.convergence import multi_ess
from calibayes._core.particles import Particles, normalise
from calibayes.cli import app

TINY = problems.Sizes(quick=True, rows=6, particles=20, large=30, middle=30, doublings=1, repeats=1)


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)], env={"COLUMNS": "120"})


def test_ratios_and_aims():
    assert Ratio("a", "b", 2.0, 10.0).ratio == 5
    assert Ratio("a", "b", 2.0, 10.0).met is None
    assert Ratio("a", "b", 2.0, 10.0, wanted=5.0).met
    assert not Ratio("a", "b", 2.0, 10.0, wanted=5.1).met


def test_slope_is_the_power():
    sizes = np.array([100, 200, 400])
    assert slope([100, 200, 400], (3e-5 * sizes**1.3).tolist()) == pytest.approx(1.3)


def test_the_best_is_of_turns(monkeypatch):
    """Each call has its own shortest time, each time after one that does not count."""
    took = iter([0.0, 3.0, 0.0, 7.0, 0.0, 4.0, 0.0, 5.0])
    clock = [0.0]

    def perf_counter():
        clock[0] += next(took)
        return clock[0]

    monkeypatch.setattr(measured.time, "perf_counter", perf_counter)
    order = []
    assert best_of([partial(order.append, "a"), partial(order.append, "b")], 2) == [3.0, 5.0]
    assert order == ["a", "a", "b", "b"] * 2


def test_chains_until_an_effective_size():
    """Ten seconds for 200 are forty for 800, and the warm-up comes once."""
    assert Chains(warm_up=1.0, seconds=10.0, draws=2000, size=200.0).until(800.0) == 41.0


@pytest.fixture
def normals():
    """Standard normals on four rows, shifted by their counts."""
    shifts = jnp.arange(4.0)[:, None]
    density = lambda theta, row: -0.5 * ((theta - row) ** 2).sum()
    return Rows(density, shifts, jnp.broadcast_to(shifts, (4, 2)), jnp.eye(2))


def test_a_peer_is_worth_what_its_draws_are(normals):
    """A random walk in two dimensions is worth some tenth of its draws, and costs in proportion."""
    pytest.importorskip("blackjax")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        chains = random_walk(normals, TINY._replace(draws=2000))
    assert chains.draws == 2000
    assert 0.05 < chains.size / chains.draws < 0.3
    assert chains.seconds > 0


def test_a_peer_that_is_missing_is_named(normals, monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(ImportError) as error:
        random_walk(normals, TINY)
    assert error.value.name == "blackjax"


def test_weighted_effective_size_of_equal_weights_is_multi_ess():
    rng = np.random.default_rng(0)
    theta = jnp.asarray(rng.normal(size=(2, 3, 400)), float)
    even = jnp.full((3, 400), -np.log(400))
    sizes = np.asarray(_weighted_multi_ess(Particles(theta, even, even, even)))
    expected = [multi_ess(np.asarray(theta[:, b].T)) for b in range(3)]
    np.testing.assert_allclose(sizes, expected, rtol=0.01)


def test_weights_cost_what_they_cost():
    """A normal widened to 0.8 of its precision: M var / E[w^2 z^2] draws' worth for the mean, in closed form."""
    rng = np.random.default_rng(1)
    z = jnp.asarray(rng.normal(size=(1, 100, 4000)), float)
    log_weights = normalise(0.1 * z[0] ** 2)
    sizes = np.asarray(_weighted_multi_ess(Particles(z, log_weights, log_weights, log_weights)))
    # Weights are N(0, 1 / 0.8) to N(0, 1): E[w^2 z^2] = 0.8 * 0.6^-1.5, and the variance is 1 / 0.8.
    assert np.median(sizes) == pytest.approx(4000 / 0.8 / (0.8 * 0.6**-1.5), rel=0.1)


def test_what_is_run():
    assert chosen([], quick=False) == [name for name in PARTS if name != "large"]
    assert set(chosen([], quick=True)) == {"engine", "start"}
    assert chosen(["scaling"], quick=True) == ["scaling"]


def test_a_part_that_is_not_there():
    result = invoke("--only", "nothing")
    assert result.exit_code == 2
    assert "nothing" in result.output
    assert "engine" in result.output


def test_quick_is_stored_by_part(monkeypatch, tmp_path):
    """Without numba, a line says so; a part measured again takes the place of the old, and others stay."""
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(problems, "QUICK", TINY)
    monkeypatch.setattr(measured, "made", lambda: "today")
    path = tmp_path / "bench.json"
    Report("machine", {}, {}, path).add("memory", Measured([Ratio("old", "b", 1.0, 2.0)]))
    monkeypatch.setattr(measured, "machine", lambda: "machine; jax 1")
    result = invoke("--quick", "--only", "engine", "--json", path)
    assert result.exit_code == 0, result.output
    assert "numba is not installed" in result.output
    stored = json.loads(path.read_text())
    assert stored["versions"]["jax"]
    assert list(stored["parts"]) == ["memory", "engine"]
    engine = stored["parts"]["engine"]
    assert engine["quick"]
    assert {ratio["against"] for ratio in engine["ratios"]} == {"measured peak", "the same as a linear loss"}
    for ratio in engine["ratios"]:
        assert ratio["ratio"] == ratio["theirs"] / ratio["ours"] > 0
    assert engine["made"] == "today"
    # Parameters and a risk for each of 120 particles; for each observation six counts, x, y, an offset and a loss.
    shapes = [(roof["operations"], roof["bytes"]) for roof in engine["figures"]["roofline"]["shapes"]]
    assert shapes == [
        (n * 120 * (2 * dim + 4), 4 * (120 * (dim + 1) + 6 * n + n * (dim + 3))) for n, dim in ((30, 2), (462, 8))
    ]
    # Twelve threads or one, the peak is nothing that 30 x 6 x 20 losses get past.
    assert all(ratio["ratio"] < 1 for ratio in engine["ratios"] if ratio["against"] == "measured peak")
    monkeypatch.setattr(measured, "machine", lambda: "another; jax 1")
    with pytest.raises(ValueError, match="another machine"):
        Report.here(path)


def test_a_roof_is_the_larger_of_two_floors():
    shape = {"what": "a", "operations": 3e9, "bytes": 2e6, "peak": 1e12, "seconds": 0.02}
    for bandwidth, reached in ((1e9, "15%"), (1e8, "100%")):
        figures = {"roofline": {"bandwidth": bandwidth, "shapes": [shape]}}
        (row,) = tables.roofline(Measured(figures=figures)).rows
        assert row[1:3] == ("3 G", "2 MB")
        assert row[3].startswith("3 and ")
        assert row[-2:] == ("20 ms", reached)


def test_when_it_was_measured_and_on_which_commit(monkeypatch):
    """Today, and this repository's; elsewhere the day alone."""
    day = r"\d{4}-\d\d-\d\d"
    here = Path(measured.__file__).parents[1]
    if shutil.which("git"):
        asked = ["git", "-C", here, "log", "-1", "--format=%h", "--", "."]
        commit = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        expected = f", commit {commit}( with uncommitted changes)?" if commit else ""
        assert re.fullmatch(day + expected, measured.made())
    monkeypatch.setenv("PATH", "")
    assert re.fullmatch(day, measured.made())


def test_a_loop_by_hand_that_differs_is_noticed(monkeypatch):
    wrong = lambda: np.random.default_rng(2).normal(size=(TINY.rows, TINY.particles))
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr("benchmarks.speed.engine._by_hand", lambda *_: wrong)
    with pytest.raises(AssertionError, match="do not compute the same"):
        measure_engine(TINY)


@pytest.fixture
def stored(tmp_path):
    line = {"sizes": [100, 200, 400], "seconds": [1.0, 2.0, 4.0], "slope": 1.0, "wanted": 1.05}
    figures = {f"{kind} in {axis}": line for kind in ("risk", "calibration") for axis in "NBMK"}
    report = Report("two cores; jax 1", {"jax": "1"}, {}, tmp_path / "bench_cpu.json")
    report.add("scaling", Measured(figures=figures))
    ratio = Ratio("transport", "GPC by BlackJAX", 0.5, 20.0, 100.0, "10 learning rates x 2 s")
    report.add("peers", Measured([ratio], skipped=["NumPyro: numpyro is not installed."]))
    return tmp_path


def test_the_page_is_what_is_stored(stored):
    result = invoke("--page", "--results", stored, "--docs", stored / "docs")
    assert result.exit_code == 0, result.output
    page = stored / "docs" / "performance.md"
    text = page.read_text()
    assert "| transport | GPC by BlackJAX | 40 | 100, missed | 0.5 and 20 s |" in text
    assert "- transport, against GPC by BlackJAX: 10 learning rates x 2 s." in text
    assert "| risk in N | 100 to 400 | 1.00 | 1.05, met |" in text
    assert "Not measured: NumPyro: numpyro is not installed." in text
    assert f"Measured {load(stored / 'bench_cpu.json').parts['peers'].made}." in text
    assert "Not measured there: risk engine, transport and the paper's algorithms, cold start" in text
    assert (stored / "docs" / "cpu_scaling.png").stat().st_size > 5000


def test_what_is_written_around_the_tables_stays(stored):
    docs = stored / "docs"
    write(stored, docs)
    page = docs / "performance.md"
    page.write_text(page.read_text() + "\n## Roofline\n\nWritten by hand.\n")
    before = page.read_text()
    write(stored, docs)
    assert page.read_text() == before
    page.write_text(page.read_text().replace(END, ""))
    with pytest.raises(ValueError, match=BEGIN):
        write(stored, docs)


def test_what_is_no_report_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no bench_\*.json"):
        write(tmp_path, tmp_path)
    path = tmp_path / "bench_cpu.json"
    path.write_text('{"ratios": []}')
    with pytest.raises(ValueError, match="not a file of calibayes bench"):
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


def test_cost_on_paper():
    """Ten operations for each of 12,200 particles and each observation; then a sum of as many numbers a pass."""
    assert at_scale.operations(PASSES["calls"], 7, 3) == (20 * 100 * 5 + 11 * 100 * 2) * 10 * 7
    own = at_scale.machine(PASSES, 1_000, 2.5, 0.5)
    assert own == (12_200 * 10 * 1_000 / 2.0, 0.5)
    alone, four = (at_scale.cost(own, PASSES, 10**6, devices) for devices in (1, 4))
    assert alone == pytest.approx((2_000.0, 0.0, 0.5, 250.0, 36e6))
    sent = 2 * 4 * 12_200 * 3 / 4
    assert four == pytest.approx((500.0, sent / at_scale.LINK + 7 * 4 * at_scale.MESSAGE, 0.5, 250.0, 9e6))
    # 2,000 s of passes come down to the other half second with 4,000 devices; sums are under a millisecond.
    assert at_scale.enough(own, PASSES, 10**6) == pytest.approx(4_000, rel=0.01)


@pytest.mark.slow
def test_passes_are_counted():
    """Of the rows, and of the populations on the data."""
    found = passes.measure(TINY._replace(rows=40, particles=100)).figures["passes"]
    times = {(rows, size): n for rows, size, n in found["calls"]}
    assert times[found["B"] + 1, found["M"]] >= 1
    assert times[20, found["M"]] > 20
