"""Measurements of the speed benchmark: ratios of two quantities from one run, and figures; how they are stored."""

import json
import math
import subprocess
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from benchmarks.common import ROOT, machine

PACKAGES = ("calibayes", "jax", "numpy", "equinox", "numba", "blackjax", "numpyro")
_CALLS_PER_TIMING = 20
"""Calls in a row that are timed together on an accelerator, which a calibration rarely waits for."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ratio:
    """A quantity measured for this library and for a baseline in the same run.

    Attributes
    ----------
    case, baseline : str
        What was measured, and what it is compared with.
    ours, theirs : float
        The two quantities, in `unit`.
    goal : float or None
        The smallest ratio that is aimed at.
    note : str
        How the quantities were obtained.
    unit : str
        Default: seconds.
    """

    case: str
    baseline: str
    ours: float
    theirs: float
    goal: float | None = None
    note: str = ""
    unit: str = "s"

    @property
    def ratio(self) -> float:
        """Baseline relative to ours: 10 if ours takes a tenth."""
        return self.theirs / self.ours

    @property
    def met(self) -> bool | None:
        """Whether the ratio reaches the goal; None without a goal."""
        return None if self.goal is None else self.ratio >= self.goal


@dataclass
class Measurements:
    """The measurements of one part."""

    ratios: list[Ratio] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """Further numbers, by name."""
    skipped: list[str] = field(default_factory=list)
    """What was not measured, with the reason."""
    quick: bool = False
    date: str = ""
    """Day and commit of the measurement."""


@dataclass
class Report:
    """The parts measured on one machine, stored in a file if `path` is given."""

    machine: str
    versions: dict[str, str]
    parts: dict[str, Measurements]
    path: Path | None = None
    date: str = field(default_factory=lambda: date_and_commit())
    """Day and commit when the report was started."""

    @classmethod
    def for_this_machine(cls, path: Path | None) -> "Report":
        """Return a report with the parts that the file already contains.

        Raises
        ------
        ValueError
            If the file was measured on another machine, because ratios of several machines do not compare.
        """
        report = cls(machine(), _versions(), {}, path)
        if path is not None and path.exists():
            stored = load(path)
            if stored.device != report.device:
                raise ValueError(f"{path} was measured on another machine ({stored.device}). Pass another file.")
            report.parts = stored.parts
        return report

    @property
    def device(self) -> str:
        """The processor or accelerator, without versions."""
        return self.machine.split(";")[0]

    def add(self, name: str, measurements: Measurements) -> None:
        """Store a part in place of its earlier measurements."""
        self.parts[name] = replace(measurements, date=self.date)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            stored = {"machine": self.machine, "versions": self.versions, "parts": self.parts}
            self.path.write_text(json.dumps(stored, indent=1, default=_to_json) + "\n")


def load(path: Path) -> Report:
    """Read a stored report."""
    try:
        stored = json.loads(path.read_text())
        parts = {
            name: Measurements(
                [Ratio(**{key: value for key, value in ratio.items() if key != "ratio"}) for ratio in part["ratios"]],
                part["figures"],
                part["skipped"],
                part["quick"],
                part.get("date", ""),
            )
            for name, part in stored["parts"].items()
        }
        return Report(stored["machine"], stored["versions"], parts, path)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a file of the speed benchmark ({error!r}). Move it away.") from None


def date_and_commit() -> str:
    """Return today's date and, inside a Git repository, its last commit."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments, "--", "src", "benchmarks"]
        try:
            return subprocess.run(command, capture_output=True, text=True).stdout.strip()
        except OSError:
            return ""

    commit = git("log", "-1", "--format=%h")
    changed = " with uncommitted changes" if commit and git("status", "--porcelain") else ""
    return f"{datetime.now(UTC):%Y-%m-%d}{f', commit {commit}' if commit else ''}{changed}"


def _to_json(value: Any) -> Any:
    if isinstance(value, Measurements):
        return asdict(value) | {"ratios": [asdict(ratio) | {"ratio": ratio.ratio} for ratio in value.ratios]}
    return float(value)


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def best_of(calls: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Return the shortest time of each call in seconds; the calls take turns, so that all meet the same machine.

    Each timed call follows one that is not timed, which fills the caches and lets the threads of the previous call go
    to sleep.
    """
    n_calls = 1 if jax.default_backend() == "cpu" else _CALLS_PER_TIMING

    def once(call: Callable[[], Any]) -> float:
        jax.block_until_ready(call())
        return _seconds(partial(_repeat, call, n_calls))[1]

    rounds = [[once(call) for call in calls] for _ in range(repeats)]
    return [min(times) / n_calls for times in zip(*rounds, strict=True)]


def _repeat(call: Callable[[], Any], times: int) -> list[Any]:
    return [call() for _ in range(times)]


def timed(call: Callable[[], Value]) -> tuple[Value, float]:
    """Return the result of a call and its time in seconds, without the time spent on compilation."""
    compile_times = _compile_times()
    before = sum(compile_times)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result, seconds = _seconds(call)
    return result, seconds - (sum(compile_times) - before)


def slope(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the exponent of time as a power of size, by a log-log fit."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def _seconds(call: Callable[[], Value]) -> tuple[Value, float]:
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    return result, time.perf_counter() - start


@cache
def _compile_times() -> list[float]:
    """Return a list that grows by the duration of every compilation, from the first call on."""
    times: list[float] = []

    def add(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration" and math.isfinite(duration_secs):
            times.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(add)
    return times
