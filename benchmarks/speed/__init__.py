"""Speed of the library as ratios, both sides measured in one run: `python -m benchmarks.speed`."""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from benchmarks.speed.measurement import Measurements
    from benchmarks.speed.problems import Sizes


class Part(NamedTuple):
    """A part of the benchmark: a module of this package with a function `measure(sizes)`, imported when it is run."""

    title: str
    long: bool
    """Whether it takes minutes; a quick run leaves it out."""
    on_request: bool = False
    """Whether it runs only if it is named."""


PARTS = {
    "engine": Part("Risk engine", long=False),
    "start": Part("Cold start", long=False),
    "memory": Part("Memory", long=True),
    "large": Part("A million observations", long=True, on_request=True),
    "passes": Part("Passes over the observations", long=True),
    "algorithms": Part("Transport and the paper's algorithms", long=True),
    "peers": Part("Transport and general-purpose samplers", long=True),
    "scaling": Part("Scaling", long=True),
}


def select_parts(only: Sequence[str], quick: bool) -> list[str]:
    """Return the parts to run: those in `only`, or by default all that need no request, in a quick run the short ones.

    Raises
    ------
    ValueError
        If `only` contains the name of no part.
    """
    for name in only:
        if name not in PARTS:
            raise ValueError(f"--only must be one of {', '.join(PARTS)}; got {name!r}.")
    by_default = lambda part: not (part.on_request or (quick and part.long))
    return [name for name, part in PARTS.items() if (name in only if only else by_default(part))]


def measure(name: str, sizes: "Sizes") -> "Measurements":
    """Measure one part."""
    return import_module(f"benchmarks.speed.{name}").measure(sizes)
