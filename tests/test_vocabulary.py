"""Code and prose use the terms of CONTRIBUTING.md. Terms that they replaced do not come back."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "docs", "benchmarks", "studies")
SUFFIXES = (".py", ".md", ".toml", ".html", ".js")
FILES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    + [
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES and not {"_build", "__pycache__"} & {*path.parts} and path != Path(__file__)
    ]
)

RETIRED = {
    "rung, ladder, climb: write temperature step, tempering schedule, temper": (
        r"\brungs?\b|_rungs?\b|\brungs?_|\bladders?\b|_ladders?\b|\bladders?_|\bclimb(s|ed|ing)?\b|_climb\b"
    ),
    "settle: write mix, converge": r"\b(un)?settle[sd]?\b|\bsettling\b|_settled?\b",
    "unmixed: write not mixed": r"\bunmixed\b",
    "walkers: write particles, chains": r"(?<!holmes-)\bwalkers?\b",
    "mend: write repair": r"\bmend(s|ed|ing)?\b|_mend(ed)?\b",
    "pilot: write initial draws": r"\bpilots?\b|_pilot\b|\bPilot\b",
    "crew: write population": r"\bcrews?\b|_crews?\b|\bCREWS?\b",
    "concern, except as a verb: write diagnostic": r"[._]concerns?\b|\bconcerns?(_\w+|\s*[=(\[]|\s+(for|in)\b)",
    "distrust, standing: write diagnostic": r"\bdistrust(s|ed)?\b|\bstanding\b",
    "reach, as a noun: write SamplerInfo": r"\bReach\b|\.reach\b|\bdef reach\b",
    "found, as a variable: write iterate, or another noun": r"\bfound\s*(=(?!=)|:=|\.\w|\[)|\bFound\(|_found\b",
    "handed, parted, folded: write host array, split key, fold key": r"\bhanded\b|\bparted\b|\bfolded\(",
    "told, except told apart: write default, argument": r"\btold\b(?! apart)",
    "sound: write validate, check": r"\bsound\b",
    "bootstrap row: write replicate": (
        r"\bbootstrap rows?\b|\bn_rows\b|\brepaired_rows\b|\brows? of counts\b|\bon every row\b|\brow's\b"
    ),
    "unless told, so many, is said: write default, number of, the statement itself": (
        r"\bunless told\b|\bso many\b|\b(is|are|was|were|be) said\b"
    ),
}

ALLOWED = {
    # term, text, start of the path: a data frame does have rows.
    ("bootstrap row: write replicate", "n_rows", "src/calibayes/cli/"),
    ("bootstrap row: write replicate", "n_rows", "src/calibayes/tables/"),
}


def hits(pattern):
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for match in re.finditer(pattern, line):
                yield name, number, match[0], line.strip()


def is_allowed(term, text, name):
    return any(term == other and text == word and name.startswith(where) for other, word, where in ALLOWED)


@pytest.mark.parametrize("term", RETIRED)
def test_term_is_not_used(term):
    uses = [
        f"{name}:{number}: {line}"
        for name, number, text, line in hits(RETIRED[term])
        if not is_allowed(term, text, name)
    ]
    assert not uses, "\n" + "\n".join(uses)
