"""Text is printed without characters that control a terminal or reorder other text."""

import unicodedata

import pytest

from calibayes._backend.text import printable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("age", "age"),
        ("", ""),
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("a\x7fb\x00", r"a\x7fb\x00"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("a\u202eb\u2066c\u200fd", r"a\u202eb\u2066c\u200fd"),
        ("a\u2028b\ufeffc\U000e0041", r"a\u2028b\ufeffc\U000e0041"),
        ("a\udc80", r"a\udc80"),
    ],
)
def test_control_characters_are_escaped(text, expected):
    assert printable(text) == expected
    assert printable(expected) == expected


@pytest.mark.parametrize("text", ["größe", "年齢", "عمر", "می\u200cخواهم", "👩\u200d🔬", "e\u0301", "a b", "a\u00a0b"])
def test_words_of_all_scripts_are_kept(text):
    assert printable(text) == text


def test_lines_are_kept_where_they_are_wanted():
    assert printable("a\n\tb\r\x1b", multiline=True) == "a\n\tb\\r\\x1b"


def test_no_control_character_remains():
    every = "".join(map(chr, range(0x110000)))
    kinds = {unicodedata.category(char) for char in printable(every) if char not in "\u200c\u200d"}
    assert not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}
