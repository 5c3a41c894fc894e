"""Tables and formulas that need more memory than is available are rejected before allocation."""

import gzip
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from calibayes._backend import memory
from calibayes.cli import app
from calibayes.tables.columns import select_columns
from calibayes.tables.files import read_table


@pytest.fixture
def one_megabyte(monkeypatch, tmp_path):
    """A machine with one megabyte of available memory."""
    (tmp_path / "meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable: 1000 kB\n")
    monkeypatch.setattr(memory, "CONFIG", replace(memory.CONFIG, meminfo=tmp_path / "meminfo", min_bytes=0))


def test_files_that_do_not_fit_are_rejected(one_megabyte, tmp_path):
    """Also a compressed file, by its size when it is unpacked."""
    lines = "a,y\n" + "1.5,2.5\n" * 200_000
    (tmp_path / "big.csv").write_text(lines)
    with gzip.open(tmp_path / "small.csv.gz", "wt") as file:
        file.write(lines)
    assert (tmp_path / "small.csv.gz").stat().st_size < 10_000
    for name in ("big.csv", "small.csv.gz"):
        with pytest.raises(ValueError, match=rf"{name} cannot be read .*: the table would take at least 0.0 GB"):
            read_table(tmp_path / name)
    ended = CliRunner().invoke(app, ["fit", str(tmp_path / "big.csv"), "--target", "y"])
    assert ended.exit_code == 2
    assert "the table would take" in " ".join(ended.output.split())


def test_parquet_files_that_do_not_fit_are_rejected(one_megabyte, tmp_path):
    """By the number of values in their header."""
    pd.DataFrame({"a": np.ones(100_000), "y": np.ones(100_000)}).to_parquet(tmp_path / "ones.parquet")
    assert (tmp_path / "ones.parquet").stat().st_size < 10_000
    with pytest.raises(ValueError, match="the table would take"):
        read_table(tmp_path / "ones.parquet")


@pytest.mark.parametrize(
    ("formula", "columns"),
    [
        ("y ~ C(code)", "2,000"),
        ("y ~ `a name`", "2,000"),
        ("y ~ 0 + `a name`:C(`code`, contr.sum)", "3,996,001"),
        ("C(code) ~ x", "1,999"),
    ],
)
def test_formulas_with_too_many_categories_are_rejected(one_megabyte, monkeypatch, tmp_path, formula, columns):
    """Before the matrix is made: 2,000 rows and as many columns take 32 MB, and one is available."""
    n = 2_000
    rows = [f"{i},n{i},{i % 7},{i}" for i in range(n)]
    (tmp_path / "t.csv").write_text("\n".join(["code,a name,x,y", *rows]))
    frame = read_table(tmp_path / "t.csv")
    matrices = []
    monkeypatch.setattr("formulaic.model_matrix", lambda *args, **options: matrices.append(args))
    message = rf"--formula: a matrix of 2,000 rows and {columns} columns would take at least [\d,.]+ GB, and 0\.0 GB"
    with pytest.raises(ValueError, match=message):
        select_columns(frame, None, formula=formula)
    assert not matrices
    ended = CliRunner().invoke(app, ["fit", str(tmp_path / "t.csv"), "--formula", formula])
    assert ended.exit_code == 2
    assert "merge rare categories" in " ".join(ended.output.replace("│", " ").split())


def test_formulas_that_fit_are_accepted(one_megabyte, tmp_path):
    rows = [f"{i % 7},n{i % 5},{i}" for i in range(400)]
    (tmp_path / "t.csv").write_text("\n".join(["code,name,y", *rows]))
    frame = read_table(tmp_path / "t.csv")
    selection = select_columns(frame, None, formula="y ~ C(code) * name + np.log(code + 1)")
    # Six codes and four names beyond the first, their products, and the logarithm.
    assert selection.columns.shape == (400, 35)


@pytest.mark.parametrize("end", [30, -20])
def test_damaged_archives_are_rejected(tmp_path, end):
    text = "a,y\n" + "\n".join(f"{i},{i * i % 7}" for i in range(500))
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(text.encode())[:end] + b"\xff" * 30)
    with pytest.raises(ValueError, match="cut"):
        read_table(tmp_path / "cut.csv.gz")


def test_running_out_of_memory_is_explained(monkeypatch, tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,2\n2,3\n")

    def read_csv(*_, **__):
        raise MemoryError

    monkeypatch.setattr(pd, "read_csv", read_csv)
    with pytest.raises(ValueError, match=r"t.csv does not fit into memory"):
        read_table(tmp_path / "t.csv")
