"""Saved results that were damaged or edited load with the same numbers, or raise an error with the cause."""

import json
import random
import subprocess
import sys

import h5py
import numpy as np
import pytest
import xarray
from typer.testing import CliRunner

import calibayes as cb
import example_results
from calibayes._backend.files import append_checksum
from calibayes._core.status import Status
from calibayes.cli import app
from calibayes.io import from_datatree
from damage import damage


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return example_results.make_stored_result().save(tmp_path_factory.mktemp("saved") / "result.nc")


@pytest.fixture
def copy(path, tmp_path):
    """A copy of the file in a folder of its own."""
    (tmp_path / "result.nc").write_bytes(path.read_bytes())
    return tmp_path / "result.nc"


def numbers(result):
    """Return everything that a file holds, so that it can be compared."""
    arrays = [result.draws, result.risk, result.estimate, result.repaired_replicates, result.curve.etas]
    arrays += [result.curve.critical_levels, result.curve.ess, result.curve.first_critical_levels]
    arrays += [result.saved_intervals.bounds, result.saved_intervals.eta, result.saved_intervals.eta_se]
    arrays += [record.intervals for record in result.trace]
    texts = [repr(result), result.summary(), repr(result.trace), repr(result.settings), repr(result.versions)]
    return [*texts, repr(result.saved_intervals), *(array.tobytes() for array in arrays)]


def edit(path, change):
    """Change the content of a file by `change(file)`, and write a valid checksum."""
    with h5py.File(path, "r+") as file:
        change(file)
    append_checksum(path)


# Damage


def check_damaged_files(path, tmp_path, n_files):
    """Load damaged copies of a file; any exception other than a ValueError fails the test."""
    content, expected = path.read_bytes(), numbers(cb.load(path))
    damaged, rng, messages = tmp_path / "damaged.nc", random.Random(0), []
    for _ in range(n_files):
        damaged.write_bytes(damage(content, rng))
        try:
            loaded = cb.load(damaged)
        except ValueError as error:
            messages.append(str(error))
        else:
            assert numbers(loaded) == expected
    assert len(messages) > 0.95 * n_files
    assert all(str(damaged) in message for message in messages)


def test_damaged_files_are_rejected(path, tmp_path):
    check_damaged_files(path, tmp_path, 200)


@pytest.mark.slow
def test_many_damaged_files_are_rejected(path, tmp_path):
    check_damaged_files(path, tmp_path, 5000)


def test_every_single_bit_is_protected(path, tmp_path):
    """One byte in every 97, from the signature of HDF5 to the checksum itself."""
    content, damaged = path.read_bytes(), tmp_path / "damaged.nc"
    for position in [*range(0, len(content), 97), *range(len(content) - 90, len(content))]:
        flipped = bytes([content[position] ^ 1])
        damaged.write_bytes(content[:position] + flipped + content[position + 1 :])
        with pytest.raises(ValueError, match="checksum"):
            cb.load(damaged)


@pytest.mark.parametrize("content", [b"", b"x", b"\x89HDF\r\n\x1a\n", b"\ncalibayes sha256 ", bytes(10_000)])
def test_other_files_are_rejected(content, tmp_path):
    path = tmp_path / "other.nc"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"other\.nc cannot be loaded: .* checksum"):
        cb.load(path)
    append_checksum(path)
    with pytest.raises(ValueError, match=r"other\.nc cannot be loaded"):
        cb.load(path)


def test_file_without_checksum_is_rejected_and_can_be_converted(path, tmp_path):
    """As of an earlier version, or of another program."""
    without = tmp_path / "old.nc"
    with xarray.open_datatree(path, engine="h5netcdf") as tree:
        tree.to_netcdf(without, engine="h5netcdf")
    with pytest.raises(ValueError, match="does not end with a checksum"):
        cb.load(without)
    with xarray.open_datatree(without, engine="h5netcdf") as tree:
        assert numbers(from_datatree(tree)) == numbers(cb.load(path))


@pytest.mark.parametrize("engine", ["h5netcdf", None])
def test_other_programs_read_a_file_with_its_checksum(path, engine):
    with xarray.open_datatree(path, engine=engine) as tree:
        assert tree["posterior"].attrs["eta"] == 0.8
        assert tree["posterior"]["a"].shape == (4, 25)


def test_interrupted_save_leaves_the_old_file(copy, monkeypatch):
    before = copy.read_bytes()

    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(xarray.DataTree, "to_netcdf", fail)
    with pytest.raises(KeyboardInterrupt):
        example_results.make_stored_result(eta=0.9).save(copy)
    assert copy.read_bytes() == before
    assert list(copy.parent.iterdir()) == [copy]


def test_save_follows_a_link(copy):
    link = copy.with_name("link.nc")
    link.symlink_to(copy)
    example_results.make_stored_result(eta=0.9).save(link)
    assert link.is_symlink()
    assert cb.load(copy).eta == 0.9


def test_command_line_reports_damage(copy):
    for content in (copy.read_bytes()[:-1], b"", bytes(2000)):
        copy.write_bytes(content)
        outcome = CliRunner().invoke(app, ["report", str(copy)], env={"COLUMNS": "300"})
        assert outcome.exit_code == 2
        assert isinstance(outcome.exception, SystemExit)
        assert "cannot be loaded: it does not end with a checksum" in outcome.output
        assert not copy.with_suffix(".html").exists()


# Edited files


def set_attribute(name, value, group="posterior"):
    return lambda file: file[group].attrs.__setitem__(name, value)


def change_settings(**texts):
    """Add texts to the settings."""

    def change(file):
        attributes = file["posterior"].attrs
        attributes["settings"] = json.dumps(json.loads(attributes["settings"]) | texts)

    return change


def set_value(name, value, index=0):
    def change(file):
        variable = file[name]
        variable[np.unravel_index(index, variable.shape)] = value

    return change


def replace_variable(name, values):
    def change(file):
        attributes = dict(file[name].attrs)
        del file[name]
        file[name] = values
        for key, value in attributes.items():
            if key not in ("REFERENCE_LIST", "DIMENSION_LIST", "CLASS", "NAME"):
                file[name].attrs[key] = value

    return change


EDITS = {
    "negative eta": (set_attribute("eta", -0.8), "eta must be"),
    "zero eta": (set_attribute("eta", 0.0), "eta must be"),
    "infinite eta": (set_attribute("eta", np.inf), "eta must be"),
    "eta is NaN": (set_attribute("eta", np.nan), "eta must be"),
    "eta is text": (set_attribute("eta", "0.8"), "eta must be"),
    "eta is a list": (set_attribute("eta", [0.8, 0.8]), "eta must be"),
    "no eta": (lambda file: file["posterior"].attrs.__delitem__("eta"), "no learning rate"),
    "negative standard error": (set_attribute("eta_se", -0.1), "eta_se must be"),
    "level of one": (set_attribute("level", 1.0), "level must be"),
    "level in per cent": (set_attribute("level", 95.0), "level must be"),
    "coverage above one": (set_attribute("coverage", 1.01), "coverage must be"),
    "coverage is no share": (set_attribute("coverage", 0.951), "coverage is not a share"),
    "no replicates": (set_attribute("n_replicates", 0), "n_replicates must be"),
    "other number of replicates": (set_attribute("n_replicates", 80), "repaired of bootstrap has 40 values"),
    "too many populations": (set_attribute("n_populations", 2**40), "n_populations must be"),
    "unknown status": (set_attribute("status", "FINE"), "status is 'FINE'"),
    "status is a number": (set_attribute("status", 1), "status is not a text"),
    "settings are no JSON": (set_attribute("settings", "{"), "cannot be loaded"),
    "settings are a list": (set_attribute("settings", "[]"), "cannot be loaded"),
    "setting is a number": (set_attribute("settings", '{"seed": 0}'), "settings are not texts by name"),
    "description is a list": (set_attribute("settings", '{"model_description": ["x"]}'), "settings are not texts"),
    "long description": (change_settings(model_description="x" * 20_001), "model_description has more than 20,000"),
    "long line of the summary": (change_settings(observations="x" * 20_001), "observations has more than 20,000"),
    "deep JSON": (set_attribute("settings", "[" * 60_000), "cannot be loaded"),
    "unknown code": (set_attribute("diagnostics", '[{"code": "x"}]'), "cannot be loaded"),
    "region out of range": (set_attribute("region_arguments", '{"index": 7}'), "out of range"),
    "region of another size": (set_attribute("region_arguments", '{"vector": [1.0]}'), "finite numbers"),
    "no version": (lambda file: file["posterior"].attrs.__delitem__("jax_version"), "jax_version"),
    "draw is NaN": (set_value("posterior/a", np.nan, 5), "a of posterior must be"),
    "draw is infinite": (set_value("posterior/a", np.inf), "a of posterior must be"),
    "risk is NaN": (set_value("sample_stats/risk", np.nan, 3), "risk of sample_stats must be"),
    "estimate is NaN": (set_value("estimate/theta", np.nan), "theta of estimate must be"),
    "critical level above one": (set_value("curve/critical_level", 1.1, 7), "critical_level of curve must be"),
    "negative critical level": (set_value("bootstrap/critical_level", -0.1), "critical_level of bootstrap must be"),
    "etas do not increase": (set_value("curve/learning_rate", 0.9), "learning_rate of curve does not increase"),
    "negative eta on the curve": (set_value("curve/learning_rate", -0.5), "learning_rate of curve must be"),
    "negative effective size": (set_value("curve/ess", -1.0), "ess of curve must be"),
    "negative iteration": (set_value("trace/iteration", -1), "iteration of trace must be"),
    "negative eta in the trace": (set_value("trace/eta", -1.0), "eta of trace must be"),
    "coverage above one in the trace": (set_value("trace/coverage", 1.5), "coverage of trace must be"),
    "acceptance above one": (set_value("trace/acceptance", 1.5), "acceptance of trace must be"),
    "negative seconds": (set_value("trace/seconds", -1.0), "seconds of trace must be"),
    "crossed bounds": (set_value("intervals/bounds", 5.0), "bounds of intervals has a lower bound above"),
    "negative eta of an interval": (set_value("intervals/eta", -1.0), "eta of intervals must be"),
    "status of one interval": (set_attribute("status", '["CONVERGED"]', "intervals"), "1 statuses"),
    "no draws": (lambda file: file.__delitem__("posterior/a"), "a of posterior is missing"),
    "no trace": (lambda file: file.__delitem__("trace"), "iteration of trace is missing"),
    "other number of draws": (replace_variable("sample_stats/risk", np.zeros((4, 24))), "cannot be loaded"),
    "draws are text": (replace_variable("posterior/a", ["a", "b"]), "cannot be loaded"),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("case", EDITS)
def test_impossible_content_is_rejected(case, copy):
    change, message = EDITS[case]
    edit(copy, change)
    with pytest.raises(ValueError, match=message) as raised:
        cb.load(copy)
    assert str(copy) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_edited_file_with_possible_content_is_accepted(copy):
    """The cases above fail because of their values, and not because the file was written again."""
    edit(copy, set_attribute("eta", 0.7))
    assert cb.load(copy).eta == 0.7
    edit(copy, change_settings(model_description="x" * 20_000))
    assert cb.load(copy).settings["model_description"] == "x" * 20_000


def test_edited_descriptions_are_escaped(copy):
    """They contain neither markup nor lines of their own."""
    edit(
        copy,
        change_settings(model_description="<script>alert(1)</script>\x1b[31m", observations="weighted\nstatus  fine"),
    )
    loaded = cb.load(copy)
    page = loaded.report(copy.with_suffix(".html")).read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m The model has 2 parameters" in page
    assert "observations    weighted\\nstatus  fine" in loaded.summary().splitlines()


def test_long_descriptions_are_shortened(tmp_path):
    """Such as that of a thousand categorical columns, so that the result can be loaded."""
    settings = {"reference_categories": {f"column {k} with a long name": "a" for k in range(1000)}}
    loaded = cb.load(example_results.make_stored_result(settings=settings).save(tmp_path / "result.nc"))
    assert len(loaded.settings["categories"]) == 20_000
    assert loaded.settings["categories"].endswith("...")


def test_results_that_did_not_converge_may_have_undefined_numbers(tmp_path):
    draws = example_results.make_stored_result().draws.copy()
    draws[0] = np.nan
    failed = example_results.make_stored_result(status=Status.NO_CROSSING, eta_se=np.inf, draws=draws)
    loaded = cb.load(failed.save(tmp_path / "failed.nc"))
    np.testing.assert_array_equal(loaded.draws, draws)
    assert loaded.eta_se == np.inf


def test_result_without_a_curve_can_be_loaded(tmp_path):
    example = example_results.make_result(versions=example_results.versions())
    assert len(cb.load(example.save(tmp_path / "result.nc")).curve.etas) == 0


# Sizes


def add(name, **options):
    return lambda file: file.create_dataset(name, **options)


def point_to_one_text(file):
    """Replace the names of the parameters by references to one text: few bytes that become many."""
    del file["estimate/parameter"]
    names = file.create_dataset("estimate/parameter", (2000,), h5py.string_dtype())
    names[0] = "x" * 60_000
    offset, length = names.id.get_offset(), names.id.get_storage_size() // 2000
    file.flush()
    with open(file.filename, "rb+") as raw:
        raw.seek(offset)
        reference = raw.read(length)
        raw.seek(offset)
        raw.write(reference * 2000)


BOMBS = {
    "compressed": (add("curve/bomb", data=np.zeros((1000, 100_000), "i1"), compression="gzip"), "compressed"),
    "chunked": (add("curve/bomb", shape=(10**6, 10**4), dtype="f8", chunks=(1000, 10)), "compressed"),
    "not written": (add("curve/bomb", shape=(10**6, 10**4), dtype="f8"), "file has fewer bytes of"),
    "not written, small": (add("curve/bomb", shape=(100,), dtype="f8"), "file has fewer bytes of"),
    "more than any memory": (
        add("curve/bomb", shape=(2**20, 2**30), dtype="f8"),
        "file has fewer bytes of",
    ),
    "one text many times": (point_to_one_text, "longer than the file"),
    "other type": (add("curve/bomb", data=np.zeros(3, complex)), "has the type complex128"),
    "group in a group": (lambda file: file.create_group("curve/deep/deeper"), "is not an array"),
    "array at the root": (add("bomb", data=np.zeros(3)), "bomb is not a group"),
    "group in itself": (lambda file: file["curve"].__setitem__("curve", file["curve"]), "is not an array"),
    "link to another file": (
        lambda file: file.__setitem__("curve/link", h5py.ExternalLink("other.nc", "/x")),
        "has a link to another place",
    ),
    "soft link": (lambda file: file.__setitem__("curve/link", h5py.SoftLink("/posterior/a")), "has a link to"),
    "stored in another file": (
        lambda file: file.create_dataset("curve/x", (8,), "i1", external=[("/etc/hostname", 0, 8)]),
        "is stored elsewhere",
    ),
    "many groups": (lambda file: [file.create_group(f"g{i}") for i in range(100)], "more than 20 members"),
    "list of texts as an attribute": (set_attribute("names", ["a", "b"], "curve"), "names of /curve"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_sizes_are_checked_before_anything_is_allocated(case, copy, monkeypatch):
    monkeypatch.chdir(copy.parent)
    change, message = BOMBS[case]
    edit(copy, change)

    def fail(*_, **__):
        raise AssertionError("the file was opened by xarray")

    monkeypatch.setattr(xarray, "open_datatree", fail)
    with pytest.raises(ValueError, match=message):
        cb.load(copy)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_compressed_file_does_not_exhaust_memory(copy):
    """A small file that declares 3.2 GB is rejected in a process that stays below 1.5 GB."""

    def replace_draws(file):
        del file["posterior/a"]
        file.create_dataset("posterior/a", (4, 10**8), "f8", compression="gzip", chunks=(1, 10**6))

    edit(copy, replace_draws)
    program = f"import calibayes as cb\ntry: cb.load({str(copy)!r})\nexcept ValueError as error: print(error)\n"
    # Not resource.getrusage, whose maximum includes that of the parent before it started the process.
    program += "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    message, peak = output.splitlines()
    assert "is compressed" in message
    assert int(peak) * 1024 < 1.5e9
