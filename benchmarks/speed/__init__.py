"""Speed as ratios, both sides measured in one run: `calibayes bench`."""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from benchmarks.speed.measured import Measured
    from benchmarks.speed.problems import Sizes


class Part(NamedTuple):
    """A module here with a function `measure(sizes)`; nothing is imported before it is run."""

    title: str
    long: bool
    asked: bool = False
    """Run only if asked for: many minutes, on a processor."""


PARTS = {
    "engine": Part("Risk engine", long=False),
    "start": Part("Cold start", long=False),
    "memory": Part("Memory", long=True),
    "large": Part("A million observations", long=True, asked=True),
    "passes": Part("Passes over the observations", long=True),
    "algorithms": Part("Transport and the paper's algorithms", long=True),
    "peers": Part("Transport and what one would otherwise write", long=True),
    "scaling": Part("Scaling", long=True),
}


def chosen(only: Sequence[str], quick: bool) -> list[str]:
    """The parts to run: those asked for; else all that need no asking, or the short ones of them."""
    for name in only:
        if name not in PARTS:
            raise ValueError(f"--only must be among {', '.join(PARTS)}; got {name!r}.")
    by_itself = lambda part: not (part.asked or (quick and part.long))
    return [name for name, part in PARTS.items() if (name in only if only else by_itself(part))]


def measure(name: str, sizes: "Sizes") -> "Measured":
    """Measure one part."""
    return import_module(f"benchmarks.speed.{name}").measure(sizes)
