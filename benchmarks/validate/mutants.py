"""Deliberate errors, as they are written down in `mutants.toml`."""

import tomllib
from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


_FILE = Path(__file__).with_name("mutants.toml")
MUTANTS = [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in tomllib.loads(_FILE.read_text())["mutants"]]
