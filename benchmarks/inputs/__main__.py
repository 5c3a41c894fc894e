"""Try them all, and store how they ended."""

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

from benchmarks.inputs import answered, losses, refused, tables
from benchmarks.inputs.endings import Ending, attempt, no_sampler
from calibayes.io import versions

RESULTS = Path(__file__).parents[2] / "results" / "inputs.json"


def each(examples: int, strategy: SearchStrategy, judge: Callable[[Any], None]) -> None:
    """Judge so many examples, always the same ones."""
    quiet = settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    quiet(given(strategy)(judge))()


def refusals(examples: int) -> dict[str, Any]:
    """Wrong arguments: refused by name, with nothing compiled. How many of each, and the kinds of what was said."""
    counts: Counter[str] = Counter()
    said: set[str] = set()
    with no_sampler():
        # What any first call compiles, a key and the like.
        attempt(refused.calibrate)

        def judge(bad: refused.Bad) -> None:
            ending = attempt(bad.call)
            assert ending.kind == "refused", f"{bad!r}: {ending.kind}, {ending.said}"
            assert any(word in ending.said for word in bad.words), f"{bad!r}: {ending.said}"
            assert not ending.jit, f"{bad!r}: {ending.jit} programs were compiled before {ending.said}"
            counts[bad.argument] += 1
            said.add(ending.template)

        each(examples, refused.bad_calls(), judge)
    return {"refused": dict(sorted(counts.items())), "messages": len(said), "compiled": 0}


def answers(examples: int, minutes: float = np.inf) -> dict[str, dict[str, int]]:
    """Odd data and losses: how many of each kind ended how; what is known of an answer was held against it.

    When the time is over, what is left of the examples is left out.
    """
    began = time.perf_counter()
    usual = answered.run()
    counts: dict[str, Counter[str]] = {}

    def judge(odd: answered.Odd, share: float = 0.6) -> None:
        if time.perf_counter() > began + 60 * share * minutes:
            return
        ending = attempt(odd.call)
        assert ending.kind != "wrong", f"{odd!r}: {ending.said}"
        _require_known(odd, ending, usual)
        counts.setdefault(odd.kind, Counter())[ending.kind] += 1

    each(examples, answered.odd_calls(), lambda odd: judge(odd))
    # Each of these is compiled for itself.
    for odd in losses.own_losses():
        judge(odd, share=1.0)
    return {kind: dict(counts[kind]) for kind in sorted(counts)}


def _require_known(odd: answered.Odd, ending: Ending, usual: Any) -> None:
    if odd.same:
        assert ending.kind == "answer", f"{odd!r}: {ending.said}"
        assert (ending.result.eta, ending.result.draws.tobytes()) == (usual.eta, usual.draws.tobytes()), repr(odd)
    if odd.unit is not None:
        assert ending.kind == "answer", f"{odd!r}: {ending.said}"
        ratio = ending.result.eta * odd.unit / usual.eta
        assert abs(ratio - 1) < answered.CLOSE, f"{odd!r}: eta is {ratio:.3f} of what it should be"


def files(examples: int) -> dict[str, int]:
    """Tables: how many the command refused, and how many it would have fitted."""
    counts: Counter[str] = Counter()

    def judge(table: tuple[str, bytes, list[tuple[str, str]]]) -> None:
        with no_sampler():
            ending = tables.fit(*table)
        assert ending.kind != "wrong", f"{table!r}: {ending.said}"
        counts[ending.kind] += 1

    each(examples, tables.odd_tables(), judge)
    return dict(sorted(counts.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=5000, help="wrong arguments")
    parser.add_argument("--runs", type=int, default=400, help="odd data that are calibrated")
    parser.add_argument("--minutes", type=float, default=15.0, help="for those, at most")
    parser.add_argument("--tables", type=int, default=1000, help="files for the command line")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    found: dict[str, Any] = {"device": jax.devices()[0].platform, **versions()}
    for name, part, number in (
        ("arguments", refusals, options.examples),
        ("tables", files, options.tables),
        ("data", partial(answers, minutes=options.minutes), options.runs),
    ):
        found[name] = part(number)
        print(name, json.dumps(found[name], indent=2), flush=True)
    options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
