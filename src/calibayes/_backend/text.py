"""Text from tables and files that is safe to print.

Names of columns, categories and files may contain characters that control a terminal or reorder the text around them.
Only output is changed: data, results and files keep the names as they are.
"""

import html
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


def html_table(table: Sequence[Sequence[str]], caption: str = "", *notes: str) -> str:
    """Return a table with a head as HTML; the caption and each of the notes are paragraphs around it."""
    paragraphs = lambda *texts: "".join(f"<p>{_escape_html(text)}</p>" for text in texts if text)
    cells = lambda tag, row: "".join(f"<{tag}>{_escape_html(cell)}</{tag}>" for cell in row)
    head, *rows = table
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f"{paragraphs(caption)}<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"
        f"{paragraphs(*notes)}"
    )


def markdown_table(table: Sequence[Sequence[str]]) -> str:
    """Return a table with a head as Markdown, all but the first column flush right."""
    rows = [" | ".join(printable(cell).replace("|", "\\|") for cell in row) for row in table]
    rule = " | ".join(["---", *["---:"] * (len(table[0]) - 1)])
    return "\n".join(f"| {row} |" for row in [rows[0], rule, *rows[1:]])


def latex_table(table: Sequence[Sequence[str]]) -> str:
    """Return a table with a head as a LaTeX `tabular` environment, all but the first column flush right."""
    head, *rows = [" & ".join(_escape_latex(cell) for cell in row) + r" \\" for row in table]
    columns = "l" + "r" * (len(table[0]) - 1)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", head, r"\hline", *rows, r"\hline", r"\end{tabular}"]
    return "\n".join(lines)


_LATEX = {char: rf"\{char}" for char in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in printable(text))


def _escape_html(text: str) -> str:
    return html.escape(printable(text))
