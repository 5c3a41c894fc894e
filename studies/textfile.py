"""Text files that grow by appending, plain or compressed (`.gz`), and survive an interrupted write.

In a compressed file every appended text is a gzip member of its own, so that a member that was cut short does not
damage the others. `replace` writes one member, which is several times smaller. In a plain file, the last line counts
only if it is complete.
"""

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path


class TextFile:
    """A text file that grows by appending.

    Parameters
    ----------
    path : Path
        The file, compressed if its name ends with `.gz`. It is created, with its folder, by the first `append`.
    """

    def __init__(self, path: Path):
        self.path = path
        self._is_compressed = path.suffix == ".gz"
        self._size = -1

    def read(self) -> str:
        """Return the complete content; empty if the file does not exist."""
        text, self._size = self._read()
        return text

    def append(self, text: str) -> None:
        """Append a text after the complete content. It is on disk when the method returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            self._size = 0
        elif self.path.stat().st_size != self._size:
            # Another process wrote to the file, or its end was cut short.
            self.read()
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.truncate(self._size)
            file.seek(self._size)
            file.write(self._encode(text))
            self._size = file.tell()

    def replace(self, text: str) -> None:
        """Replace the content in one step; a compressed file becomes one member."""
        part = self.path.with_name(self.path.name + ".part")
        part.write_bytes(self._encode(text))
        os.replace(part, self.path)
        self._size = -1

    def _encode(self, text: str) -> bytes:
        return gzip.compress(text.encode(), mtime=0) if self._is_compressed else text.encode()

    def _read(self) -> tuple[str, int]:
        """Return the complete content, and its size in the file in bytes."""
        content = self.path.read_bytes() if self.path.exists() else b""
        if not self._is_compressed:
            complete = content[: content.rfind(b"\n") + 1]
            return complete.decode(), len(complete)
        texts, size = [], 0
        for text, length in _members(content):
            texts.append(text)
            size += length
        return b"".join(texts).decode(), size


def _members(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the text and the length of every complete gzip member."""
    while content:
        decompressor = zlib.decompressobj(wbits=31)
        try:
            text = decompressor.decompress(content)
        except zlib.error:
            return
        if not decompressor.eof:
            return
        yield text, len(content) - len(decompressor.unused_data)
        content = decompressor.unused_data
