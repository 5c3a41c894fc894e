"""Is every deliberate error noticed? Each in a copy of the sources, and the tests named for it until one fails."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.validate import stored
from benchmarks.validate.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
_LONGEST = 900
_FAILED = re.compile(r"^(?:FAILED|ERROR) tests/(\S+::.+?)(?: - |$)", re.MULTILINE)
_NOBODY = "nobody"


def check(mutant: Mutant) -> str:
    """The file as it would be; an error if what it is to replace is not there, or the rest is no Python."""
    text = (ROOT / "src" / "calibayes" / mutant.file).read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} has {text.count(mutant.old)} times, not once: {mutant.old}")
    changed = text.replace(mutant.old, mutant.new)
    compile(changed, mutant.file, "exec")
    for test in mutant.tests:
        if not (ROOT / "tests" / test).exists():
            raise ValueError(f"{mutant.name}: there is no tests/{test}")
    return changed


def run(path: Path, only: str = "") -> list[dict[str, Any]]:
    """What became of each, stored one by one; not again those that the same tests noticed before in the same file.

    With `only`, those with that in their names are, and no others. Tests that notice one must pass without any.
    """
    texts = {mutant: check(mutant) for mutant in MUTANTS}
    part = stored.load(path).get("mutations", {"seconds": 0, "lines": []})
    known = {line["digest"]: line for line in part["lines"] if line["caught"]}
    asked = [mutant for mutant in MUTANTS if only in mutant.name and (only or digest(mutant) not in known)]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        _require_copy(source)
        for mutant in asked:
            known[digest(mutant)] = _one(source, mutant, texts[mutant])
            lines = [known[digest(each)] for each in MUTANTS if digest(each) in known]
            stored.add(path, "mutations", lines, part["seconds"] + time.perf_counter() - began)
        lines = [known[digest(each)] for each in MUTANTS if digest(each) in known]
        new = [known[digest(mutant)]["caught"] or "" for mutant in asked]
        noticed = tuple(sorted({test for test in new if "::" in test}))
        failed, _ = _test(source, noticed) if noticed else (_NOBODY, 0.0)
        if failed != _NOBODY:
            raise RuntimeError(f"tests/{failed} fails as things are: it notices nothing.")
        return lines


def digest(mutant: Mutant) -> str:
    """Of the file as it would be, and of the tests that are to notice it."""
    tests = [(ROOT / "tests" / test).read_text() for test in mutant.tests]
    return sha256("".join([check(mutant), *tests]).encode()).hexdigest()[:12]


def _one(source: Path, mutant: Mutant, text: str) -> dict[str, Any]:
    place = source / "calibayes" / mutant.file
    kept = place.read_text()
    place.write_text(text)
    try:
        for test in mutant.tests:
            caught, seconds = _test(source, (test,))
            if caught != _NOBODY:
                break
    finally:
        place.write_text(kept)
    print(f"{mutant.name}: {caught} ({seconds:.0f} s)", flush=True)
    noticed = None if caught == _NOBODY else caught
    return {"name": mutant.name, "file": mutant.file, "caught": noticed, "digest": digest(mutant)}


def _test(source: Path, tests: tuple[str, ...]) -> tuple[str, float]:
    """The first test that fails on these sources, or nobody; and how long that took."""
    command = [sys.executable, "-m", "pytest", "-x", "-n", "0", "-p", "no:cacheprovider", "--no-header", "-rfE"]
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=ROOT,
            env=_environment(source),
            capture_output=True,
            text=True,
            timeout=_LONGEST,
        )
    except subprocess.TimeoutExpired:
        return "the time allowed", time.perf_counter() - began
    seconds = time.perf_counter() - began
    if done.returncode == 0:
        return _NOBODY, seconds
    found = _FAILED.search(done.stdout)
    if found is None:
        raise RuntimeError(f"the tests did not run:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return found[1], seconds


def _require_copy(source: Path) -> None:
    """The copy is what is imported."""
    asked = [sys.executable, "-c", "import calibayes; print(calibayes.__file__)"]
    found = subprocess.run(asked, env=_environment(source), capture_output=True, text=True, check=True).stdout
    if not Path(found.strip()).is_relative_to(source):
        raise RuntimeError(f"calibayes is imported from {found.strip()}, and not from the copy.")


def _environment(source: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
