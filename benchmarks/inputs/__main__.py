"""Try invalid and unusual input in bulk, and store how the calls ended.

python -m benchmarks.inputs [--examples 5000] [--files 1000] [--runs 400 --minutes 15]
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

import calibayes as cb
from benchmarks.common import RESULTS, write_json
from benchmarks.inputs import files, invalid, losses, unusual
from benchmarks.inputs.outcome import Outcome, attempt, no_sampler
from calibayes._backend.versions import versions

_SHARE_OF_DATA = 0.6
"""Share of the time for unusual data; the rest is for user-defined losses, each of which is compiled."""


def for_each(examples: int, strategy: SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """Check a number of examples, the same in every run."""
    quiet = settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    quiet(given(strategy)(check))()


def check_invalid(examples: int) -> dict[str, Any]:
    """Check that invalid arguments raise an error that names them, and that nothing is compiled.

    Returns
    -------
    dict
        Number of calls per argument, and number of different messages.
    """
    counts: Counter[str] = Counter()
    messages: set[str] = set()
    with no_sampler():
        # The first call of a process compiles the creation of keys and the like.
        attempt(invalid.calibrate)

        def check(example: invalid.Invalid) -> None:
            outcome = attempt(example.call)
            assert outcome.kind == "rejected", f"{example!r}: {outcome.kind}, {outcome.message}"
            assert any(word in outcome.message for word in example.words), f"{example!r}: {outcome.message}"
            assert not outcome.compiled, f"{example!r}: {outcome.compiled} programs compiled before {outcome.message}"
            counts[example.argument] += 1
            messages.add(outcome.template)

        for_each(examples, invalid.invalid_calls(), check)
    return {"rejected": dict(sorted(counts.items())), "messages": len(messages), "compiled": 0}


def check_unusual(examples: int, minutes: float = np.inf) -> dict[str, dict[str, int]]:
    """Calibrate unusual data and user-defined losses, and check answers that are known.

    Parameters
    ----------
    examples : int
        Number of calibrations.
    minutes : float
        Time after which the remaining examples are skipped.

    Returns
    -------
    dict
        Number of outcomes by kind of data.
    """
    start = time.perf_counter()
    usual = unusual.run()
    counts: dict[str, Counter[str]] = {}

    def check(example: unusual.Unusual, share: float) -> None:
        if time.perf_counter() > start + 60 * share * minutes:
            return
        outcome = attempt(example.call)
        assert outcome.kind != "wrong", f"{example!r}: {outcome.message}"
        _require_known_answer(example, outcome, usual)
        counts.setdefault(example.kind, Counter())[outcome.kind] += 1

    for_each(examples, unusual.unusual_calls(), lambda example: check(example, _SHARE_OF_DATA))
    for example in losses.user_losses():
        check(example, 1.0)
    return {kind: dict(counts[kind]) for kind in sorted(counts)}


def _require_known_answer(example: unusual.Unusual, outcome: Outcome, usual: cb.Result) -> None:
    if not example.identical and example.unit is None:
        return
    assert outcome.kind == "answer", f"{example!r}: {outcome.message}"
    result = outcome.result
    assert result is not None
    if example.identical:
        assert (result.eta, result.draws.tobytes()) == (usual.eta, usual.draws.tobytes()), repr(example)
    if example.unit is not None:
        ratio = result.eta * example.unit / usual.eta
        assert abs(ratio - 1) < unusual.TOLERANCE, f"{example!r}: eta is {ratio:.3f} times its known value"


def check_files(examples: int) -> dict[str, int]:
    """Pass files to the command line; return the number of each outcome."""
    counts: Counter[str] = Counter()

    def check(example: tuple[str, bytes, list[tuple[str, str]]]) -> None:
        with no_sampler():
            outcome = files.fit(*example)
        assert outcome.kind != "wrong", f"{example!r}: {outcome.message}"
        counts[outcome.kind] += 1

    for_each(examples, files.unusual_files(), check)
    return dict(sorted(counts.items()))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=5000, help="number of invalid calls")
    parser.add_argument("--files", type=int, default=1000, help="number of files for the command line")
    parser.add_argument("--runs", type=int, default=400, help="number of calibrations of unusual data")
    parser.add_argument("--minutes", type=float, default=15.0, help="time limit for those calibrations")
    parser.add_argument("--out", type=Path, default=RESULTS / "inputs.json")
    options = parser.parse_args()
    stored: dict[str, Any] = {"device": jax.devices()[0].platform, **versions()}
    for name, check, number in (
        ("arguments", check_invalid, options.examples),
        ("files", check_files, options.files),
        ("data", partial(check_unusual, minutes=options.minutes), options.runs),
    ):
        stored[name] = check(number)
        print(name, json.dumps(stored[name], indent=2), flush=True)
    write_json(options.out, stored)


if __name__ == "__main__":
    main()
