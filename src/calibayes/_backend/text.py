"""Text from tables and files that is safe to print.

Names of columns, categories and files may contain characters that control a terminal or reorder the text around them.
Only output is changed: data, results and files keep the names as they are.
"""

import unicodedata
from collections.abc import Sequence

_CONTROL = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories of control and format characters, surrogates, and separators of lines and paragraphs."""
_JOINERS = "\u200c\u200d"
"""Format characters that belong to the spelling of words in some scripts, and do not affect other text."""


def printable(text: str, multiline: bool = False) -> str:
    r"""Return text with control characters, such as those of ANSI escapes, written as backslash escapes.

    Parameters
    ----------
    text : str
        Any text.
    multiline : bool
        Whether line breaks and tabs are kept. Default: False, for names.

    Returns
    -------
    str
        Text without control, format and bidirectional override characters.

    Examples
    --------
    >>> from calibayes._backend.text import printable
    >>> print(printable("a\x1b[31mb"))
    a\x1b[31mb
    """
    if text.isprintable():
        return text
    kept = _JOINERS + ("\n\t" if multiline else "")
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _CONTROL and char not in kept else char
        for char in text
    )


def align(table: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, the first column flush left and the others flush right."""
    table = [[printable(cell) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in table
    ]
