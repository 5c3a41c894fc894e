"""Files that are written as a whole or not at all, with a checksum at their end that reveals any damage."""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import file_digest, sha256
from pathlib import Path

_LABEL = b"\ncalibayes sha256 "
_TRAILER_SIZE = len(_LABEL) + 64


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Provide a temporary file in the folder of `path`, which replaces `path` if no exception is raised.

    Every call has a temporary file of its own, so that processes that write the same file do not disturb each other.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def remove_temporary_files(path: Path) -> None:
    """Remove temporary files of `path` that killed processes left behind. No process may be writing `path`."""
    for temporary in path.parent.iterdir():
        if re.fullmatch(rf"{re.escape(path.name)}\.\d+-[0-9a-f]{{8}}\.tmp", temporary.name):
            with suppress(OSError):
                temporary.unlink()


def append_checksum(path: Path) -> None:
    """Append a line with the SHA-256 digest of the content of a file."""
    with path.open("rb+") as file:
        digest = file_digest(file, sha256).hexdigest()
        file.seek(0, os.SEEK_END)
        file.write(_LABEL + digest.encode())


def read_with_checksum(path: Path) -> memoryview:
    """Return the content of a file without its checksum.

    Raises
    ------
    ValueError
        If the last line is not the checksum of the content before it.
    """
    file = memoryview(path.read_bytes())
    content, trailer = file[:-_TRAILER_SIZE], bytes(file[-_TRAILER_SIZE:])
    if not trailer.startswith(_LABEL):
        raise ValueError(
            "it does not end with a checksum: it is incomplete, or was written by another program or version."
        )
    if trailer != _LABEL + sha256(content).hexdigest().encode():
        raise ValueError("its checksum differs: it was damaged or changed after it was saved.")
    return content


def stored_checksum(path: Path) -> str:
    """Return the checksum at the end of a file."""
    with path.open("rb") as file:
        file.seek(-64, os.SEEK_END)
        return file.read().decode("ascii")
