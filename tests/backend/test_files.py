"""Files are replaced as a whole, and their checksum reveals any damage."""

import os
import re

import pytest

from calibayes._backend.files import (
    append_checksum,
    read_with_checksum,
    remove_temporary_files,
    replace_file,
    stored_checksum,
)


def test_file_is_replaced_at_the_end(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with replace_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == tmp_path
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_exception_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")

    def interrupt():
        with replace_file(path) as temporary:
            temporary.write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "usual").write_text("")
    with replace_file(tmp_path / "a") as temporary:
        temporary.write_text("")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_simultaneous_writers_have_different_temporary_files(tmp_path):
    path = tmp_path / "a"
    with replace_file(path) as first, replace_file(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_temporary_files_are_removed(tmp_path):
    """Those of this file, and no others."""
    path = tmp_path / "a[1]"
    with replace_file(path) as temporary:
        temporary.write_text("")
        name = temporary.name
        assert re.fullmatch(rf"a\[1\]\.{os.getpid()}-[0-9a-f]{{8}}\.tmp", name)
    others = ["a[1].tmp", "a[1].x.tmp", "a1.12-01234567.tmp", "a[1].5.12-01234567.tmp", "a[1].lock"]
    for other in [*others, name]:
        (tmp_path / other).write_text("")
    remove_temporary_files(path)
    assert {file.name for file in tmp_path.iterdir()} == {"a[1]", *others}


@pytest.mark.parametrize("content", [b"", b"abc", bytes(100_000)])
def test_content_is_read_without_its_checksum(content, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(content)
    append_checksum(path)
    assert read_with_checksum(path) == content
    assert path.read_bytes().endswith(stored_checksum(path).encode())


@pytest.mark.parametrize("content", [b"", b"abc", bytes(1000), b"\ncalibayes sha256 " + b"0" * 64])
def test_content_without_a_valid_checksum_is_rejected(content, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        read_with_checksum(path)
