"""What a benchmark measures: ratios of two times taken in one run, and figures to draw."""

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
from typing import Any

import jax
import numpy as np
from studies.runner import machine

PACKAGES = ("calibayes", "jax", "numpy", "equinox", "numba", "blackjax", "numpyro")


@dataclass(frozen=True)
class Ratio:
    """One thing against another: seconds, unless `unit` says otherwise."""

    what: str
    against: str
    ours: float
    theirs: float
    wanted: float | None = None
    """The ratio aimed at, at least."""
    note: str = ""
    """How it came about."""
    unit: str = "s"

    @property
    def ratio(self) -> float:
        """Theirs in units of ours: how many times less ours takes."""
        return self.theirs / self.ours

    @property
    def met(self) -> bool | None:
        return None if self.wanted is None else self.ratio >= self.wanted


@dataclass
class Measured:
    """All of one part."""

    ratios: list[Ratio] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """Numbers that are no ratios, by name."""
    skipped: list[str] = field(default_factory=list)
    """What was not measured, and why."""
    quick: bool = False
    made: str = ""
    """The day, and the commit."""


@dataclass
class Report:
    """The parts measured on one machine, in a file or not."""

    machine: str
    versions: dict[str, str]
    parts: dict[str, Measured]
    path: Path | None = None
    made: str = field(default_factory=lambda: made())
    """The day, and the commit, when it was begun."""

    @classmethod
    def here(cls, path: Path | None) -> "Report":
        """Of this machine, with the parts that are in the file already."""
        report = cls(machine(), _versions(), {}, path)
        if path is not None and path.exists():
            stored = load(path)
            if stored.place != report.place:
                raise ValueError(
                    f"{path} was measured on another machine, {stored.place}: ratios are of one machine; "
                    "pass another file."
                )
            report.parts = stored.parts
        return report

    @property
    def place(self) -> str:
        """The machine, without what is installed on it."""
        return self.machine.split(";")[0]

    def add(self, name: str, measured: Measured) -> None:
        """Keep a part, in the place of what was measured before, and write it down."""
        self.parts[name] = replace(measured, made=self.made)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            stored = {"machine": self.machine, "versions": self.versions, "parts": self.parts}
            self.path.write_text(json.dumps(stored, indent=1, default=_plain) + "\n")


def load(path: Path) -> Report:
    """What is in a file."""
    try:
        stored = json.loads(path.read_text())
        parts = {
            name: Measured(
                [Ratio(**{key: value for key, value in ratio.items() if key != "ratio"}) for ratio in part["ratios"]],
                part["figures"],
                part["skipped"],
                part["quick"],
                part.get("made", ""),
            )
            for name, part in stored["parts"].items()
        }
        return Report(stored["machine"], stored["versions"], parts, path)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a file of calibayes bench ({error!r}): move it away.") from None


def made() -> str:
    """Today, and the last commit of this package, if it is a repository's."""
    here = Path(__file__).parents[1]

    def git(*words: str) -> str:
        try:
            return subprocess.run(["git", "-C", here, *words, "--", "."], capture_output=True, text=True).stdout.strip()
        except OSError:
            return ""

    commit = git("log", "-1", "--format=%h")
    changed = " with uncommitted changes" if commit and git("status", "--porcelain") else ""
    return f"{datetime.now(UTC):%Y-%m-%d}{f', commit {commit}' if commit else ''}{changed}"


def _plain(value: Any) -> Any:
    if isinstance(value, Measured):
        return asdict(value) | {"ratios": [asdict(ratio) | {"ratio": ratio.ratio} for ratio in value.ratios]}
    return float(value)


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


_AT_ONCE = 20


def best_of(calls: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Shortest of some timings of each; in turns, so that all meet the same machine.

    Each time after one that is not timed: it fills the caches, and lets the threads of whoever came before go to sleep.
    An accelerator is given several at once, as a calibration does, which waits for it only now and then.
    """
    at_once = 1 if jax.default_backend() == "cpu" else _AT_ONCE

    def once(call: Callable[[], Any]) -> float:
        jax.block_until_ready(call())
        return _seconds(partial(_several, call, at_once))[1]

    rounds = [[once(call) for call in calls] for _ in range(repeats)]
    return [min(own) / at_once for own in zip(*rounds, strict=True)]


def _several(call: Callable[[], Any], times: int) -> list[Any]:
    return [call() for _ in range(times)]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a calibration finds, and its seconds without those in which XLA compiled."""
    listened = _compiling()
    before = sum(listened)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out, seconds = _seconds(call)
    return out, seconds - (sum(listened) - before)


def slope(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The power of size that time grows with, by a log-log fit."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def _seconds(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    out = jax.block_until_ready(call())
    return out, time.perf_counter() - began


@cache
def _compiling() -> list[float]:
    """Seconds of every compilation since it was first asked for."""
    took: list[float] = []

    def add(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration" and math.isfinite(duration_secs):
            took.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(add)
    return took
