"""Killed at every save, a run ends as one that never was; and no file can do more than be refused."""

import io
import json
import os
import pickle
import subprocess
import sys
import zlib
from dataclasses import fields
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import calibayes as cb
from calibayes._backend import treefile
from calibayes._backend.fingerprint import digest
from calibayes.cli import app
from calibayes.samplers.audit import audit
from calibayes.solve import fallback, seek
from calibayes.solve.checkpoint import Checkpoint, check_path
from calibayes.solve.search import Bracket

ROOT = Path(__file__).parents[1]
MODEL = cb.GibbsModel(cb.losses.Absolute(), cb.priors.Normal(scale=10.0))
DATA = (np.ones((40, 1)), np.random.default_rng(0).normal(size=40))
# The ladder of the fallback, so that it is compiled once.
LADDER = {"ess_target": 0.5, "resample_below": 1.0, "n_moves": 4, "kernel": cb.kernels.CrankNicolson()}
SMALL = cb.Transport(n_particles=100)


class Looking(cb.Transport):
    """With a look at the particles before they are fitted, as where that takes long."""

    def quick(self, target, state):
        return False


CASES = {
    "transport": {"sampler": SMALL},
    "transport, with a first look": {"sampler": Looking(n_particles=100)},
    # It stops where it starts, is mended, and moves on to be refined.
    "transport, stochastic": {"sampler": SMALL, "search": cb.RobbinsMonro(), "tolerance": 0.045},
    "fallback": {"sampler": cb.Transport(n_particles=100, audit=True)},
    "smc": {"sampler": cb.SMC(n_particles=100, **LADDER), "tolerance": 0.011},
    # The best is not the last.
    "smc, too far": {
        "sampler": cb.SMC(n_particles=100, **LADDER),
        "tolerance": 0.011,
        "search": cb.RobbinsMonro(gain=60.0),
        "max_iterations": 2,
    },
    "mcmc": {"sampler": cb.MCMC(n_draws=300, n_warmup=100), "tolerance": 0.011, "search": cb.RobbinsMonro(gain=2.0)},
}
write = treefile.write


class Killed(BaseException):
    """As sudden as a process can be killed from within."""


@pytest.fixture(autouse=True)
def transport_fails_its_audit(monkeypatch):
    """Whoever has weights that are not even is transport."""

    def judge(key, target, particles, *rest):
        uneven = float(np.ptp(particles.log_weights)) > 1e-6
        return audit(key, target, particles, *rest)._replace(failed=uneven)

    monkeypatch.setattr(fallback, "audit", judge)


@pytest.fixture(autouse=True)
def quiet(recwarn):
    """Most of these runs are too small for anything, and say so."""
    return recwarn


@pytest.fixture(scope="module")
def never_killed():
    return {}


def run(case, **options):
    choices = {"bootstrap": 100, "seed": 3, "progress": False, "eta_init": 1.0} | CASES[case] | options
    return cb.calibrate(MODEL, DATA, **choices)


def whole(never_killed, case):
    if case not in never_killed:
        never_killed[case] = run(case)
    return never_killed[case]


def assert_same(a, b):
    assert (a.eta, a.eta_se, a.coverage, a.message) == (b.eta, b.eta_se, b.coverage, b.message)
    assert a.draws.tobytes() == b.draws.tobytes()
    assert a.risk.tobytes() == b.risk.tobytes()
    for name in ("etas", "critical_levels", "ess"):
        assert getattr(a.curve, name).tobytes() == getattr(b.curve, name).tobytes()
    assert len(a.trace) == len(b.trace)
    for old, new in zip(a.trace, b.trace, strict=True):
        for field in fields(old):
            if field.name != "seconds":
                np.testing.assert_array_equal(getattr(old, field.name), getattr(new, field.name))


def killed_after_a_save(*args):
    write(*args)
    raise Killed


def nothing_to_write(*_):
    raise AssertionError("a finished run was not finished")


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@pytest.mark.parametrize("case", CASES)
def test_killed_at_every_save(case, never_killed, monkeypatch, tmp_path):
    expected = whole(never_killed, case)
    assert (case == "fallback") == any("SMC" in concern for concern in expected.concerns)
    assert (case == "smc, too far") == (expected.eta == expected.trace[0].eta)
    path = tmp_path / "run.ckpt"
    monkeypatch.setattr(treefile, "write", killed_after_a_save)
    kills = 0
    while True:
        try:
            result = run(case, checkpoint=path)
            break
        except Killed:
            kills += 1
    # The start, the rows, every move, the end.
    assert kills > 2
    assert_same(result, expected)
    assert np.all(np.diff([record.seconds for record in result.trace]) > 0)

    monkeypatch.setattr(treefile, "write", nothing_to_write)
    again = run(case, checkpoint=str(path))
    assert_same(again, expected)
    # Its particles are there, to be asked.
    assert again.at(level=0.9).eta == expected.at(level=0.9).eta
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@pytest.mark.parametrize("case", ["transport", "smc"])
def test_more_iterations_go_on_after_a_stop(case, never_killed, tmp_path):
    path = tmp_path / "run.ckpt"
    options = {"eta_init": 0.2} if case == "transport" else {}
    stopped = run(case, checkpoint=path, max_iterations=2, **options)
    assert "after 2 iterations" in stopped.message
    expected = run(case, **options) if options else whole(never_killed, case)
    assert_same(run(case, checkpoint=path, **options), expected)
    with pytest.raises(cb.CheckpointError, match="max_iterations = 100"):
        run(case, checkpoint=path, max_iterations=2, **options)


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
def test_what_the_fallback_returns_to_is_kept(monkeypatch, tmp_path):
    path, solve = tmp_path / "run.ckpt", seek.solve

    def stuck(loop, *args, **options):
        if loop.fell_back:
            raise RuntimeError("stuck")
        return solve(loop, *args, **options)

    monkeypatch.setattr(seek, "solve", stuck)
    expected = run("fallback", checkpoint=path)
    assert "SMC from the prior could not take over: stuck" in expected.message
    again = run("fallback", checkpoint=path)
    assert_same(again, expected)
    assert again.at(level=0.9).eta == expected.at(level=0.9).eta


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
def test_interrupted_it_has_a_result_and_goes_on(never_killed, monkeypatch, tmp_path):
    path = tmp_path / "run.ckpt"
    move, calls = cb.SMC.move, []

    def third(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return move(*args)

    monkeypatch.setattr(cb.SMC, "move", third)
    assert "interrupted after iteration 3" in run("smc", checkpoint=path).message
    assert_same(run("smc", checkpoint=path), whole(never_killed, "smc"))


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@pytest.mark.parametrize("broken", ["os.replace", "os.fsync"])
def test_a_crash_while_writing_leaves_the_old_file(broken, never_killed, monkeypatch, tmp_path):
    path = tmp_path / "run.ckpt"
    monkeypatch.setattr(treefile, "write", killed_after_a_save)
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
    # A killed process cannot clean up.
    (tmp_path / "run.ckpt.tmp").write_bytes(before[:100])
    assert_same(run("smc", checkpoint=path), whole(never_killed, "smc"))
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_ends_no_run(never_killed, monkeypatch, tmp_path):
    def full(_):
        raise OSError(28, "No space left on device")

    whole(never_killed, "smc")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(cb.CalibrationWarning, match=r"could not be written: No space left"):
        result = run("smc", checkpoint=tmp_path / "run.ckpt")
    assert_same(result, never_killed["smc"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("changed", [False, True])
def test_whether_mending_changed_a_state_outlives_it(changed, tmp_path):
    path = tmp_path / "run.ckpt"
    first = Checkpoint(path, {}, 1)
    first.begin(None)
    state = first.step("init", lambda: [1])
    first.step("mend", lambda: [2] if changed else state)
    first.step("move", lambda: [3])
    again = Checkpoint(path, {}, 1)
    again.begin(None)
    before, after, last = (again.step(name, Killed) for name in ("init", "mend", "move"))
    assert isinstance(before, treefile.Gone)
    assert (before is not after) == changed
    assert last == [3]


@pytest.mark.parametrize("kernel", [cb.kernels.RWMH(), cb.kernels.RAM(), cb.kernels.CrankNicolson()])
def test_what_a_kernel_learned_is_kept(kernel, tmp_path):
    learned = kernel.init(jnp.asarray([[[0.1]], [[np.pi]]]))
    kept = [learned, learned, {1: jax.random.key(5), "a": (np.float32(0.1), float("nan"), None)}]
    treefile.write(tmp_path / "a", {"n": 1}, kept, None)
    header, tree = treefile.read(tmp_path / "a")
    again = tree(None)
    assert header == {"n": 1}
    assert again[0] is again[1]
    assert digest(again) == digest(kept)


class Notes:
    """What a kernel of the user's own might keep."""


def test_what_it_does_not_know_it_does_not_write(tmp_path):
    with pytest.raises(cb.CheckpointError, match=r"a test_checkpoint\.Notes, which cannot be stored"):
        treefile.write(tmp_path / "a", {}, [Notes()], None)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A checkpoint of the SMC's start."""
    path = tmp_path_factory.mktemp("begun") / "run.ckpt"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(treefile, "write", killed_after_a_save)
        with pytest.raises(Killed):
            run("smc", checkpoint=path)
    return path


@pytest.mark.parametrize(
    ("options", "differing"),
    [
        ({"level": 0.9}, r"level \(0.95 there, 0.9 here\)"),
        ({"tolerance": 0.012}, r"tolerance \(0.011 there, 0.012 here\)"),
        ({"eta_init": 2.0}, r"eta_init \(1.0 there, 2.0 here\)"),
        ({"seed": 4}, "seed"),
        ({"region": "box"}, "region"),
        ({"estimate": "mode"}, r"estimate \('mean' there, 'mode' here\)"),
        ({"estimate": lambda draws, weights: draws.mean(0)}, "estimate"),
        ({"sampler": cb.SMC(n_particles=100)}, "sampler"),
        ({"search": cb.RobbinsMonro(gain=2.0)}, "search"),
        ({"search": Bracket()}, "search"),
        ({"bootstrap": 120}, "bootstrap"),
        ({"bootstrap": cb.bootstrap.Poisson(100)}, "bootstrap"),
        ({"draws": np.zeros((100, 1))}, "draws"),
    ],
)
def test_another_call_is_refused(begun, options, differing):
    before = begun.read_bytes()
    with pytest.raises(cb.CheckpointError, match=rf"another calibration, by its {differing}\."):
        run("smc", checkpoint=begun, **options)
    assert begun.read_bytes() == before


def test_other_data_model_or_versions_are_refused(begun, monkeypatch):
    options = {"bootstrap": 100, "seed": 3, "eta_init": 1.0, "checkpoint": begun} | CASES["smc"]
    x, y = DATA
    with pytest.raises(cb.CheckpointError, match=r"by its data\."):
        cb.calibrate(MODEL, (x, y + 1e-9), **options)
    with pytest.raises(cb.CheckpointError, match=r"by its prior\."):
        cb.calibrate(cb.GibbsModel(cb.losses.Absolute(), cb.priors.Normal(scale=11.0)), DATA, **options)
    with pytest.raises(cb.CheckpointError, match=r"by its loss\."):
        cb.calibrate(cb.GibbsModel(cb.losses.Squared(), MODEL.prior), DATA, **options)
    monkeypatch.setattr(jax, "__version__", "0.0")
    monkeypatch.setattr(cb, "__version__", "9.9")
    with pytest.raises(cb.CheckpointError, match=r"calibayes \(.* there, 9.9 here\), jax \(.* there, 0.0 here\)"):
        run("smc", checkpoint=begun)


def loss_with(scale, shape=lambda u: jnp.abs(u)):
    return lambda theta, datum: scale * shape(datum - theta[0])


def test_functions_are_what_they_compute():
    same = [digest(cb.GibbsModel(loss_with(2.0), MODEL.prior, dim=1)) for _ in range(2)]
    assert same[0] == same[1]
    for other in (loss_with(3.0), loss_with(2.0, lambda u: u * u), lambda theta, datum: 2.0 * jnp.abs(datum - theta)):
        assert digest(cb.GibbsModel(other, MODEL.prior, dim=1)) != same[0]


def test_another_process_finds_the_same_digest():
    code = "import calibayes as cb, numpy as np, jax.numpy as jnp; from calibayes._backend.fingerprint import digest\n"
    made = "digest((lambda t, d: jnp.where(d in {'a', 'b', 'c'}, t, np.log(d)), cb.losses.Quantile(0.3), {1.5, 'x'}))"
    found = [
        subprocess.run(
            [sys.executable, "-c", f"{code}print({made})"],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert len(found[0].strip()) == 64


def forged(arrays, nodes, data=b"", **header):
    """A file whose length and checksum are right, whatever is in it."""
    head = json.dumps({"arrays": arrays, "nodes": nodes} | header).encode()
    whole = treefile._MAGIC + len(head).to_bytes(8, "little") + head + data
    return whole + zlib.crc32(whole).to_bytes(4, "little")


class Evil:
    def __reduce__(self):
        return (os.abort, ())


def evil_npz():
    buffer = io.BytesIO()
    np.savez(buffer, a=np.array([Evil()], object))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 1000,
        np.random.default_rng(0).bytes(5000),
        pickle.dumps(Evil()),
        evil_npz(),
        treefile._MAGIC,
        treefile._MAGIC + (2**63).to_bytes(8, "little"),
        treefile._MAGIC + (2).to_bytes(8, "little") + b"[]" + b"1234",
        forged([["float64", [10**13]]], [["jax", 0]]),
        forged([["float64", [0, 10**30]]], [["jax", 0]]),
        forged([["float64", [-1]]], [["jax", 0]]),
        forged([["object", [1]]], [["numpy", 0]], b"12345678"),
        forged([["V8", [1]]], [["numpy", 0]], b"12345678"),
        forged([["float32", [1] * 100]], [["numpy", 0]], b"1234"),
        treefile._MAGIC + (100_000).to_bytes(8, "little") + b"[" * 100_000 + b"1234",
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(content, tmp_path):
    path = tmp_path / "run.ckpt"
    path.write_bytes(content)
    with pytest.raises(cb.CheckpointError, match=r"run\.ckpt' was not written by calibayes, or is damaged"):
        run("smc", checkpoint=path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_a_file_cut_short_or_changed_is_refused(begun, tmp_path, share):
    path, content = tmp_path / "run.ckpt", begun.read_bytes()
    at = int(share * len(content))
    for damaged in (content[:at], content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(cb.CheckpointError, match="damaged"):
            run("smc", checkpoint=path)


@pytest.mark.parametrize(
    "nodes",
    [
        [],
        [["known", "os.system", 0]],
        [["known", "calibayes._core.particles.Particles"]],
        [["tuple", 1]],
        [["jax", 5]],
        [["plain", [[[]]]], ["target", 0, 0]],
        [["eval", "1 + 1"]],
        "abc",
        [["plain", 1], ["dict", 0]],
    ],
)
def test_a_tree_of_anything_else_is_refused(nodes, tmp_path):
    path = tmp_path / "run.ckpt"
    path.write_bytes(forged([], nodes))
    with pytest.raises(cb.CheckpointError, match="damaged"):
        treefile.read(path)[1](None)


def test_steps_that_are_none_are_refused(tmp_path):
    path = tmp_path / "run.ckpt"
    path.write_bytes(forged([], [["plain", 1]], fingerprint={}, max_iterations=1))
    with pytest.raises(cb.CheckpointError, match="damaged"):
        Checkpoint(path, {}, 1).begin(None)


def test_what_is_no_place_for_a_file_is_refused(tmp_path):
    for place, message in (
        (tmp_path, "is a directory"),
        (tmp_path / "nowhere" / "run.ckpt", "there is no directory"),
        ("/dev/null", "is something else"),
    ):
        with pytest.raises(cb.CheckpointError, match=message):
            run("smc", checkpoint=place)
    with pytest.raises(TypeError, match="path of a file; got True"):
        check_path(True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written_to_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(cb.CheckpointError, match="nothing can be written"):
        run("smc", checkpoint=tmp_path / "run.ckpt")


def test_command_line_says_so_too(tmp_path):
    table = tmp_path / "data.csv"
    table.write_text("x,y\n" + "\n".join(f"{i},{i % 7}" for i in range(40)))
    bad = str(tmp_path / "nowhere" / "run.ckpt")
    result = CliRunner().invoke(app, ["fit", str(table), "--target", "y", "--checkpoint", bad], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "there is no directory" in result.output


@pytest.mark.slow
def test_processes_killed_at_random_moments(tmp_path):
    command = [sys.executable, "-m", "benchmarks.kills", "--kills", "9", "--out", str(tmp_path / "kills.json")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=1200)
