"""Write the tables of docs/robust.md from stored results. The text around them is written by hand.

python -m benchmarks.robust_page
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, ROOT, Marks, Table
from benchmarks.line_coverage import shares

PAGE = ROOT / "docs" / "robust.md"
MARKS = Marks.named("robust")


def tables(results: Path = RESULTS) -> str:
    """Return all generated sections."""
    paragraphs = []
    for name, section in SECTIONS.items():
        path = results / f"{name}.json"
        missing = [f"Not measured on this version: {MISSING[name]}."]
        paragraphs += section(json.loads(path.read_text())) if path.exists() else missing
    return "\n\n".join(paragraphs)


def page_text() -> str:
    """Return the text of the page with its tables rebuilt."""
    return MARKS.replace(PAGE, f"\n\n{tables()}\n\n")


def _inputs(stored: dict[str, Any]) -> list[str]:
    arguments, files, data = stored["arguments"], stored["files"], stored["data"]
    outcomes = ("answer", "not converged", "rejected")
    rows = [[kind, *(_number(counts.get(outcome, 0)) for outcome in outcomes)] for kind, counts in data.items()]
    totals = [sum(counts.get(outcome, 0) for counts in data.values()) for outcome in outcomes]
    n_arguments = sum(arguments["rejected"].values())
    return [
        "## Invalid arguments",
        f"{n_arguments:,} calls, each with one invalid argument. All raised an error that names the argument "
        f"({arguments['messages']} different messages), and {arguments['compiled']} programs were compiled.",
        Table(["argument", "rejected"], [[name, f"{n:,}"] for name, n in arguments["rejected"].items()]).markdown(),
        "## Files",
        f"{sum(files.values()):,} files passed to `calibayes fit`, most of them unusual or broken: "
        f"{files.get('rejected', 0):,} were rejected with an error message, {files.get('accepted', 0):,} were "
        "accepted, and none led to a traceback.",
        "## Unusual data",
        f"{sum(totals):,} calibrations of unusual but possibly valid data. Another memory layout or type gave "
        "identical results; in other units, eta was within 20% of its known value. Every calibration without an answer "
        "reported so or raised an error. No number of an answer was NaN.",
        Table(["data", *outcomes], [*rows, ["all", *(f"{n:,}" for n in totals)]]).markdown(),
    ]


def _kills(stored: dict[str, Any]) -> list[str]:
    problems = stored["problems"]
    columns = ("killed", "saved", "finished", "identical")
    total = {name: sum(counts[name] for counts in problems.values()) for name in columns}
    rows = [
        [name, f"{counts['iterations']}", f"{counts['seconds']:.1f}", *(f"{counts[column]}" for column in columns)]
        for name, counts in problems.items()
    ]
    head = ["sampler", "iterations", "seconds, uninterrupted", "kills", "kills after a save", "finished", "identical"]
    return [
        "## Killed processes",
        f"{total['finished']} calibrations with a checkpoint were killed {total['killed']} times in total, by SIGKILL "
        f"at random times, and started again until they finished. {total['saved']} of the kills were after the first "
        f"checkpoint was saved, from which the next process continued. {total['identical']} of {total['finished']} "
        "gave exactly the result of an uninterrupted run: eta, its standard error, the draws, the trace and the curve.",
        Table(head, rows).markdown(),
        f"On {stored['machine']}; Python {stored['python_version']}.",
    ]


def _soak(stored: dict[str, Any]) -> list[str]:
    same, new, default = stored["same shape"], stored["new shapes"], stored["default settings"]
    rows = [
        ["calibrations of new data of one shape", f"{same['calibrations']:,}"],
        [f"memory after the first {same['warm_up']}, MB", f"{same['memory_first_mb']:,}"],
        ["memory at the end, MB", f"{same['memory_last_mb']:,}"],
        ["programs compiled", f"{same['programs']:,}"],
        ["programs first compiled in the second half", f"{same['programs_in_second_half']:,}"],
        ["most calibrations that compiled one function for the same shapes", str(same["most_compilations"])],
        ["calibrations of a new shape each", f"{new['calibrations']:,}"],
        ["largest number of memory maps", f"{new['most_maps']:,}"],
        ["memory maps allowed by the system", f"{new['max_maps']:,}"],
        ["number of times that compiled programs were dropped", f"{new['drops']:,}"],
        ["largest memory, MB", f"{new['most_memory_mb']:,}"],
        ["calibrations of a new shape each with the default settings", f"{default['shapes']:,}"],
        ["memory after the first, MB", f"{default['memory_first_mb']:,}"],
        ["memory after the last, MB", f"{default['memory_last_mb']:,}"],
        ["largest memory between calibrations, MB", f"{default['most_memory_mb']:,}"],
        ["largest memory during a calibration, MB", f"{default['peak_memory_mb']:,}"],
    ]
    return [
        "## Long runs",
        f"Successive calibrations, each part for at least half of {stored['minutes']:g} minutes. Memory may grow by "
        f"{same['max_growth']:.0%} after the first {same['warm_up']} calibrations. A function may be compiled again "
        "for arguments of the same shapes if another caller uses other static arguments, but by at most "
        f"{same['max_compilations']} calibrations. In the second part, compiled programs are dropped at "
        f"{new['map_share']:.0%} of the allowed memory maps, earlier than by default. In the third part, the memory of "
        f"a session with {default['shapes']} shapes (up to 4,500 observations and 10 parameters, 2,000 replicates) may "
        f"reach {default['max_memory_mb']:,} MB, with the particles of all replicates during a calibration: compiled "
        "programs that have not been used for the longest time are dropped, and freed memory is returned to the "
        "system.",
        Table(["quantity", "measured"], rows).markdown(),
        f"On {stored['device']}; jax {stored['jax_version']}, Python {stored['python_version']}.",
    ]


def _reproduced(stored: dict[str, Any]) -> list[str]:
    rows = []
    for title in ("same packages", "pinned packages"):
        other = stored[title]
        packages = " and ".join(f"{name} {other['versions'][f'{name}_version']}" for name in ("jax", "numpy"))
        for name, one in other["problems"].items():
            identical = "yes" if one["identical"] else "no"
            difference = f"{one['difference_in_se']:.2f}"
            rows.append([other["versions"]["python_version"], packages, name, identical, difference])
    reference = stored["versions"]
    head = ["Python", "packages", "sampler", "identical", "difference of eta in standard errors"]
    return [
        "## Another Python version",
        f"Calibrations with one seed by Python {reference['python_version']}, jax {reference['jax_version']} and numpy "
        f"{reference['numpy_version']}, compared with another version. With the same packages, eta, its standard error "
        "and the draws must be identical. Other versions of JAX round differently, and Markov chains that round "
        f"differently diverge: eta must then agree within {stored['max_difference_in_se']} standard errors.",
        Table(head, rows).markdown(),
        f"On {stored['machine']}.",
    ]


def _coverage(stored: dict[str, Any]) -> list[str]:
    lines, branches = shares(stored)
    rows = [
        [f"`{entry['file']}`", f"`{entry['function']}`", entry["lines"], entry["reason"]] for entry in stored["missing"]
    ]
    return [
        "## Lines run by the tests",
        f"`make test` runs {lines:.1%} of {stored['lines']:,} lines and {branches:.1%} of {stored['branches']:,} "
        f"branches in {stored['files']} files, including the processes that tests start. Functions traced by JAX count "
        "as run. The remaining lines:",
        Table(["file", "function", "lines", "why no test runs them"], rows).markdown(),
        f"Python {stored['python_version']}.",
    ]


MISSING = {
    "inputs": "invalid and unusual input",
    "kills": "killed processes",
    "soak": "long runs",
    "reproduced": "another Python version",
    "coverage": "line coverage of the tests",
}
"""Description of each section, for results that are not stored."""
SECTIONS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "inputs": _inputs,
    "kills": _kills,
    "soak": _soak,
    "reproduced": _reproduced,
    "coverage": _coverage,
}


def _number(number: int) -> str:
    return f"{number:,}" if number else "-"


if __name__ == "__main__":
    PAGE.write_text(page_text())
    print(f"wrote {PAGE}")
