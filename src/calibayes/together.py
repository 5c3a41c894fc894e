"""Several calibrations as one computation.

A small calibration leaves most of an accelerator idle. `together` runs calls side by side, each in a thread of its own.
Where they come to the same compiled function with arguments of the same shapes they wait for one another, and it is
run once for all of them, vmapped. Each goes its own way in between, so nothing that is written for one calibration
knows of the others; what it computes is what it would compute alone, up to rounding.
"""

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import wraps
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

_FULL_ENOUGH = 0.25
"""From this share of all on a function is run for all of them at once, the empty places filled up; below, one by one.
Every other size would be compiled by itself."""

_meeting: ContextVar["_Meeting | None"] = ContextVar("meeting", default=None)


def jit(fn: F) -> F:
    """`equinox.filter_jit`; and a place where calls that run side by side meet."""
    alone, for_all = eqx.filter_jit(fn), eqx.filter_jit(eqx.filter_vmap(fn))

    @wraps(fn)
    def call(*args: Any) -> Any:
        meeting = _meeting.get()
        if meeting is None or any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
            return alone(*args)
        return meeting.come(alone, for_all, args)

    return cast(F, call)


def side_by_side() -> bool:
    """Whether this runs together with others."""
    return _meeting.get() is not None


def together(calls: Sequence[Callable[[], Any]], at_once: int) -> None:
    """Run the calls, so many of them at a time. What they find they must keep themselves; an error ends them all."""
    waiting = SimpleQueue[Callable[[], Any]]()
    for call in calls:
        waiting.put(call)
    meeting = _Meeting(min(at_once, len(calls)))

    def work() -> None:
        _meeting.set(meeting)
        try:
            while not meeting.over:
                waiting.get_nowait()()
        except Empty:
            pass
        except BaseException as error:
            meeting.end(error)
        finally:
            meeting.leave()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(meeting.size)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)
    except KeyboardInterrupt as interrupt:
        meeting.end(interrupt)
        for thread in threads:
            thread.join()
    if meeting.error is not None:
        raise meeting.error


class _Over(BaseException):
    """Raised in a call when another one has ended them all."""


class _Seat:
    """One call's arguments, waiting; then what came of them."""

    def __init__(self, alone: Callable[..., Any], for_all: Callable[..., Any], args: tuple[Any, ...]):
        self.alone, self.for_all = alone, for_all
        as_array = lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf
        self.args = jax.tree.map(as_array, args)
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None

    @property
    def kind(self) -> Any:
        leaves, structure = jax.tree.flatten(self.args)
        shapes = tuple((leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf for leaf in leaves)
        return (self.for_all, structure, shapes)


class _Meeting:
    def __init__(self, size: int):
        self.size = self.running = size
        self.seats: list[_Seat] = []
        self.changed = threading.Condition()
        self.error: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.error is not None

    def come(self, alone: Callable[..., Any], for_all: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """What the function gives for these arguments, when everyone has come somewhere."""
        seat = _Seat(alone, for_all, args)
        with self.changed:
            self.seats.append(seat)
            self._start_if_all_are_here()
            self.changed.wait_for(lambda: seat.done or self.over)
        if self.over:
            raise _Over
        if seat.error is not None:
            raise seat.error
        return seat.result

    def leave(self) -> None:
        with self.changed:
            self.running -= 1
            self._start_if_all_are_here()

    def end(self, error: BaseException) -> None:
        with self.changed:
            if self.error is None and not isinstance(error, _Over):
                self.error = error
            self.changed.notify_all()

    def _start_if_all_are_here(self) -> None:
        if not self.seats or len(self.seats) < self.running or self.over:
            return
        seats, self.seats = self.seats, []
        groups: dict[Any, list[_Seat]] = {}
        for seat in seats:
            groups.setdefault(seat.kind, []).append(seat)
        for group in groups.values():
            self._serve(group)
        self.changed.notify_all()

    def _serve(self, group: list[_Seat]) -> None:
        try:
            if len(group) < max(2, _FULL_ENOUGH * self.size):
                results = [seat.alone(*seat.args) for seat in group]
            else:
                results = self._as_one(group)
            for seat, result in zip(group, results, strict=True):
                seat.result = result
        except Exception as error:
            for seat in group:
                seat.error = error
        for seat in group:
            seat.done = True

    def _as_one(self, group: list[_Seat]) -> list[Any]:
        filled = [*group, *[group[0]] * (self.size - len(group))]
        arrays, static = zip(*(eqx.partition(seat.args, eqx.is_array) for seat in filled), strict=True)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
        out, rest = eqx.partition(group[0].for_all(*eqx.combine(stacked, static[0])), eqx.is_array)
        return [eqx.combine(jax.tree.map(lambda leaf, i=i: leaf[i], out), rest) for i in range(len(group))]
