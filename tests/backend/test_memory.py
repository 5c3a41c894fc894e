"""What would take more memory than there is, is refused with its size, before it is allocated."""

import gzip

import jax
import jaxtyping
import numpy as np
import pytest
from typer.testing import CliRunner

import calibayes as cb
from calibayes._backend import memory
from calibayes._validate.checks import check_bootstrap, check_data, check_n_particles
from calibayes.cli import app, tables
from calibayes.cli.columns import select_columns

MODEL = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal())


@pytest.fixture
def little(monkeypatch, tmp_path):
    """A machine with a megabyte to spare."""
    (tmp_path / "meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable: 1000 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_LITTLE", 0)


def test_counts(little):
    check_bootstrap(cb.bootstrap.Multinomial(100), 1000, 500)
    with pytest.raises(ValueError, match=r"bootstrap: counts of 10,000 observations on 500 rows would take 0.0 GB"):
        check_bootstrap(cb.bootstrap.Multinomial(500), 10_000, 500)


def test_sizes_are_said():
    with pytest.raises(ValueError, match=r"counts of 1,000,000 observations .* take 80,000.0 GB .*Poisson"):
        check_bootstrap(cb.bootstrap.Bayesian(10**7), 10**6, 500)
    with pytest.raises(ValueError, match=r"bootstrap, sampler: 1,000 particles .* take 40,000.0 GB .* fewer rows"):
        check_n_particles(1000, 2, 10**9)
    with pytest.raises(ValueError, match=r"take more than 1,000,000 GB"):
        check_n_particles(10**300, 2, 500)


@pytest.mark.parametrize("kind", [float, np.int8])
def test_data_that_take_no_memory_themselves(kind, monkeypatch):
    """A broadcast array, whose copy would be terabytes."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    huge = np.broadcast_to(np.ones(2, kind), (10**12, 2))
    with pytest.raises(ValueError, match=r"X: numbers in the shape \(1000000000000, 2\) would take"):
        check_data(MODEL, (huge, np.ones(3)), None)


def test_files(little, tmp_path):
    lines = "a,y\n" + "1.5,2.5\n" * 200_000
    (tmp_path / "big.csv").write_text(lines)
    with gzip.open(tmp_path / "small.csv.gz", "wt") as file:
        file.write(lines)
    assert (tmp_path / "small.csv.gz").stat().st_size < 10_000
    for name in ("big.csv", "small.csv.gz"):
        with pytest.raises(ValueError, match=rf"{name} cannot be read .*: the table would take 0.0 GB at least"):
            tables.read_table(tmp_path / name)
    ended = CliRunner().invoke(app, ["fit", str(tmp_path / "big.csv"), "--target", "y"])
    assert ended.exit_code == 2
    assert "the table would take" in " ".join(ended.output.split())


def test_a_parquet_file_says_how_large_it_is(little, tmp_path):
    import pandas as pd

    pd.DataFrame({"a": np.ones(100_000), "y": np.ones(100_000)}).to_parquet(tmp_path / "ones.parquet")
    assert (tmp_path / "ones.parquet").stat().st_size < 10_000
    with pytest.raises(ValueError, match="the table would take"):
        tables.read_table(tmp_path / "ones.parquet")


@pytest.mark.parametrize(
    ("formula", "columns"),
    [
        ("y ~ C(code)", "2,000"),
        ("y ~ `a name`", "2,000"),
        ("y ~ 0 + `a name`:C(`code`, contr.sum)", "3,996,001"),
        ("C(code) ~ x", "1,999"),
    ],
)
def test_categories_that_would_make_a_wide_matrix(little, monkeypatch, tmp_path, formula, columns):
    """Before any of it is made: 2,000 rows and as many columns are 32 MB, where there is one."""
    n = 2_000
    rows = [f"{i},n{i},{i % 7},{i}" for i in range(n)]
    (tmp_path / "t.csv").write_text("\n".join(["code,a name,x,y", *rows]))
    frame = tables.read_table(tmp_path / "t.csv")
    made = []
    monkeypatch.setattr("formulaic.model_matrix", lambda *args, **options: made.append(args))
    said = rf"--formula: a matrix of 2,000 rows and {columns} columns would take [\d,.]+ GB at least, and 0\.0 GB"
    with pytest.raises(ValueError, match=said):
        select_columns(frame, None, formula=formula)
    assert not made
    ended = CliRunner().invoke(app, ["fit", str(tmp_path / "t.csv"), "--formula", formula])
    assert ended.exit_code == 2
    assert "merge rare categories" in " ".join(ended.output.replace("│", " ").split())


def test_a_formula_that_fits_is_not_refused(little, tmp_path):
    rows = [f"{i % 7},n{i % 5},{i}" for i in range(400)]
    (tmp_path / "t.csv").write_text("\n".join(["code,name,y", *rows]))
    chosen = select_columns(tables.read_table(tmp_path / "t.csv"), None, formula="y ~ C(code) * name + np.log(code + 1)")
    # Six and four, their products, and one.
    assert chosen.columns.shape == (400, 35)


@pytest.mark.parametrize("start", [30, -20])
def test_damaged_files(tmp_path, start):
    text = "a,y\n" + "\n".join(f"{i},{i * i % 7}" for i in range(500))
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(text.encode())[:start] + b"\xff" * 30)
    with pytest.raises(ValueError, match="cut"):
        tables.read_table(tmp_path / "cut.csv.gz")


def test_containers_have_limits(monkeypatch, tmp_path):
    (tmp_path / "max").write_text("5000000\n")
    (tmp_path / "current").write_text("3000000\n")
    monkeypatch.setattr(memory, "_LIMIT", tmp_path / "max")
    monkeypatch.setattr(memory, "_USED", tmp_path / "current")
    assert memory.host_memory() == 2_000_000
    (tmp_path / "max").write_text("max\n")
    assert memory.host_memory() > 2_000_000
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    assert memory.host_memory() > 2_000_000


def test_accelerators_have_memory_of_their_own(monkeypatch):
    class Device:
        def memory_stats(self):
            return {"bytes_limit": 1000, "bytes_in_use": 400}

    assert memory.device_memory() is None or jax.default_backend() != "cpu"
    monkeypatch.setattr(jax, "local_devices", lambda: [Device(), Device()])
    assert memory.device_memory() == 600
    with pytest.raises(ValueError, match="the device's memory"):
        check_n_particles(1000, 2, 10_000)
