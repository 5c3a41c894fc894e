"""Check that the tests notice every mutant: run the tests named for it, one file after another, until one fails.

The test that noticed a mutant the last time is run first. As many mutants as there are cores are tried at the same
time.
"""

import ast
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.validate import store
from benchmarks.validate.mutants import MUTANTS
from benchmarks.validate.mutation import ROOT, VARIABLE, Mutant

PART = "mutants"
_FILE_TIMEOUT, _TEST_TIMEOUT = 900, 240
"""Seconds after which a test file, and a single test, count as failed: a mutant may cause an endless loop."""
_NO_FAILURE = (0, 4)
"""Exit codes of pytest: all tests passed; a test that is named does not exist any more."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) tests/(\S+::.+?)(?: - |$)", re.MULTILINE)
_SITE = Path(__file__).with_name("site")


def run(path: Path, only: str = "") -> list[dict[str, Any]]:
    """Run the mutants whose result is not stored yet, and store each result at once.

    Parameters
    ----------
    path : Path
        File of stored results.
    only : str
        Run only the mutants whose name contains this text, stored or not. Default: all that are not stored.

    Returns
    -------
    list of dict
        The stored result of every mutant that has one.

    Raises
    ------
    RuntimeError
        If a test that noticed a mutant fails without any mutant, too.
    """
    for mutant in MUTANTS.values():
        mutant.check()
    digests = {mutant.name: digest(mutant) for mutant in MUTANTS.values()}
    part = store.load(path).get(PART, {"seconds": 0, "lines": []})
    known = {line["digest"]: line for line in part["lines"] if line["noticed_by"]}
    earlier = {line["name"]: line["noticed_by"] for line in known.values()}
    pending = [one for one in MUTANTS.values() if only in one.name and (only or digests[one.name] not in known)]
    results = {name: known[key] for name, key in digests.items() if key in known}
    start = time.perf_counter()
    # The tests run in processes of their own: one at a time for each core.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for future in as_completed([pool.submit(_result, one, earlier.get(one.name)) for one in pending]):
            line = future.result()
            results[line["name"]] = line | {"digest": digests[line["name"]]}
            store.add(path, PART, _ordered(results), part["seconds"] + time.perf_counter() - start)
    noticed = {results[mutant.name]["noticed_by"] for mutant in pending}
    tests = sorted(test for test in noticed if test and "::" in test)
    if tests and (failed := _first_failure(tests, "")):
        raise RuntimeError(f"tests/{failed} fails without a mutant, so it cannot notice one.")
    return _ordered(results)


def digest(mutant: Mutant) -> str:
    """Return a digest of the mutant, of the module with the error in it and of the tests that should notice it.

    Comments and docstrings do not count.
    """
    sources = [mutant.source(), *((ROOT / "tests" / test).read_text() for test in mutant.tests)]
    return sha256("".join([mutant.definition, *map(_code, sources)]).encode()).hexdigest()[:12]


def _code(source: str) -> str:
    """Return Python source without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return ast.unparse(tree)


def _ordered(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [results[name] for name in MUTANTS if name in results]


def _result(mutant: Mutant, earlier: str | None) -> dict[str, Any]:
    """Run the test that noticed the mutant earlier, then all test files named for it, until one fails."""
    start = time.perf_counter()
    noticed_by = None
    first = [earlier] if earlier and earlier.partition("::")[0] in mutant.tests else []
    for test in [*first, *mutant.tests]:
        if noticed_by := _first_failure([test], mutant.name):
            break
    print(f"{mutant.name}: {noticed_by or 'NOT NOTICED'} ({time.perf_counter() - start:.0f} s)", flush=True)
    return {
        "name": mutant.name,
        "description": mutant.description,
        "target": mutant.target,
        "noticed_by": noticed_by,
    }


def _first_failure(tests: list[str], mutant: str) -> str | None:
    """Return the first test that fails with a mutant, None if all pass."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "-rfE",
        f"--timeout={_TEST_TIMEOUT}",
    ]
    paths = os.pathsep.join([str(_SITE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, VARIABLE: mutant}
    try:
        done = subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_FILE_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return f"{tests[0]} (timeout)"
    if done.returncode in _NO_FAILURE:
        return None
    failure = _FAILED.search(done.stdout)
    if failure is None:
        raise RuntimeError(f"the tests did not run:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return failure[1]
