"""The page on what the library does with bad input, killed processes and long runs, from what is stored.

    python -m benchmarks.robust

Only what stands between two marks is rebuilt.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import covered

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "robust.md"
BEGIN, END = "<!-- robust: begin -->", "<!-- robust: end -->"


def markdown(results: Path = ROOT / "results") -> str:
    """The tables."""
    sections = _inputs(json.loads((results / "inputs.json").read_text()))
    for name, section in SECTIONS.items():
        sections += section(json.loads((results / f"{name}.json").read_text()))
    return "\n\n".join(sections)


def _inputs(found: dict[str, Any]) -> list[str]:
    refused, tables, data = found["arguments"]["refused"], found["tables"], found["data"]
    total = sum(refused.values())
    endings = ("answer", "not converged", "refused")
    rows = [[kind, *(_shown(ended.get(ending, 0)) for ending in endings)] for kind, ended in data.items()]
    every = [sum(ended.get(ending, 0) for ended in data.values()) for ending in endings]
    return [
        "## Wrong arguments",
        f"{total:,} calls with one thing wrong each: all refused by an error that names the argument, of "
        f"{found['arguments']['messages']} kinds, with {found['arguments']['compiled']} programs compiled.",
        _table(["wrong", "refused"], [[name, f"{n:,}"] for name, n in refused.items()]),
        "## Files",
        f"{sum(tables.values()):,} files for `calibayes fit`, most of them odd or broken: {tables.get('refused', 0):,} "
        f"refused in a sentence, {tables.get('reached', 0):,} found in order, none ended in a traceback.",
        "## Odd data",
        f"{sum(every):,} calibrations of data that could be right. What was only laid out otherwise gave the same "
        "numbers to the bit; in other units eta was within 20% of what it had to be. "
        "Where there was no answer the result said so, "
        "or an error did. No number in an answer was NaN.",
        _table(["data", *endings], [*rows, ["all", *(f"{n:,}" for n in every)]]),
    ]


def _kills(found: dict[str, Any]) -> list[str]:
    problems = found["problems"]
    total = {name: sum(one[name] for one in problems.values()) for name in ("killed", "saved", "ended", "same")}
    rows = [
        [name, f"{one['iterations']}", f"{one['seconds']:.1f}", *(f"{one[column]}" for column in total)]
        for name, one in problems.items()
    ]
    return [
        "## Killed processes",
        f"{total['killed']} processes with a checkpoint ended by SIGKILL at random moments, each followed by another. "
        f"{total['saved']} of them had saved something, from which the next one went on. {total['same']} of the "
        f"{total['ended']} runs that came to their end found what a run "
        "left alone finds, byte for byte: eta, its error, the draws, the trace, the curve.",
        _table(["sampler", "iterations", "seconds left alone", "killed", "had saved", "ended", "the same"], rows),
        f"On {found['machine']}; Python {found['python_version']}.",
    ]


def _soak(found: dict[str, Any]) -> list[str]:
    same, new = found["same shape"], found["new shapes"]
    rows = [
        ["calibrations of one shape, on new data", f"{same['calibrations']:,}"],
        [f"memory after the first {same['first']}, MB", f"{same['memory_first_mb']:,}"],
        ["memory at the end, MB", f"{same['memory_last_mb']:,}"],
        ["programs compiled", f"{same['programs']:,}"],
        ["of them first needed in the last half", f"{same['programs_in_last_half']:,}"],
        ["calibrations that compiled the same function for the same shapes, at most", str(same["compiled_by_at_most"])],
        ["calibrations of a new shape each", f"{new['calibrations']:,}"],
        ["memory maps at most", f"{new['maps_most']:,}"],
        ["memory maps allowed", f"{new['maps_allowed']:,}"],
        ["times that compiled programs were forgotten", f"{new['forgot']:,}"],
        ["memory at most, MB", f"{new['memory_most_mb']:,}"],
    ]
    return [
        "## Long runs",
        f"Calibrations one after another; each part in half of {found['minutes']:g} minutes, or longer. "
        f"Memory may grow by {same['allowed']:.0%} after the first {same['first']}. "
        "A function may be compiled once more for arguments of the same shapes where another place calls it, "
        f"but by no more than {same['compiled_by_allowed']} calibrations: one that is lost is compiled by each. "
        f"In the second part programs are forgotten at {new['share']:.0%} of the maps allowed, sooner than usual.",
        _table(["", "measured"], rows),
        f"On {found['device']}; jax {found['jax_version']}, Python {found['python_version']}.",
    ]


def _reproduced(found: dict[str, Any]) -> list[str]:
    rows = []
    for which in ("same packages", "as pinned"):
        there = found[which]
        packages = " and ".join(f"{name} {there['versions'][f'{name}_version']}" for name in ("jax", "numpy"))
        for name, one in there["problems"].items():
            bits = "yes" if one["same"] else "no"
            rows.append([there["versions"]["python_version"], packages, name, bits, f"{one['errors_apart']:.2f}"])
    here = found["versions"]
    return [
        "## Another Python",
        f"Calibrations of one seed by Python {here['python_version']} with jax {here['jax_version']} and numpy "
        f"{here['numpy_version']}, compared with those of another. With the same packages every bit of eta, its error "
        "and the draws must be the same. Other versions of JAX round otherwise, and a random walk that is rounded "
        f"otherwise soon walks elsewhere: eta must then be within {found['errors_allowed']} standard errors.",
        _table(["Python", "with", "sampler", "the same to the bit", "eta apart, in errors"], rows),
        f"On {found['machine']}.",
    ]


def _coverage(found: dict[str, Any]) -> list[str]:
    lines, branches = covered.shares(found)
    rows = [[f"`{one['file']}`", f"`{one['function']}`", one["lines"], one["reason"]] for one in found["left"]]
    return [
        "## Lines that tests run",
        f"{lines:.1%} of {found['lines']:,} lines and {branches:.1%} of {found['branches']:,} branches in "
        f"{found['files']} files, by `make test`, its processes included. What JAX traces counts as run. "
        "The others, and why:",
        _table(["file", "function", "lines", "why no test runs them"], rows),
        f"Python {found['python_version']}.",
    ]


SECTIONS = {"kills": _kills, "soak": _soak, "reproduced": _reproduced, "coverage": _coverage}


def _shown(number: int) -> str:
    return f"{number:,}" if number else "-"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rebuilt(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{markdown()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(rebuilt(PAGE.read_text()))
    print(f"wrote {PAGE}")
