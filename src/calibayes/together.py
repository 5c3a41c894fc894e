"""Several calibrations as one computation.

A small calibration leaves most of an accelerator idle. `together` runs calls side by side, each in a thread of its own.
At every function compiled by `jit` they wait until all of them have come to one; then those who came to the same
function with arguments of the same shapes have it run once for all of them, vmapped. Each goes its own way in between,
so nothing that is written for one calibration knows of the others. What a function computes is what it would compute
alone up to rounding; what a sampler makes of that, up to its own error.
"""

import copy
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

from calibayes.compiled import compiled

F = TypeVar("F", bound=Callable[..., Any])

_FULL_ENOUGH = 0.25
"""From this share of all on a function is run for all of them at once, the empty places filled up; below, one by one.
Every other size would be compiled by itself."""

_meeting: ContextVar["_Meeting | None"] = ContextVar("meeting", default=None)


def jit(fn: F) -> F:
    """`compiled`, of a function without keywords; and a place where calls that run side by side meet."""
    alone, for_all = compiled(fn), _for_all(fn)

    @wraps(fn)
    def call(*args: Any) -> Any:
        meeting = _meeting.get()
        if meeting is None or any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
            return alone(*args)
        return meeting.come(_Seat(alone, for_all, args))

    return cast(F, call)


def side_by_side() -> bool:
    """Whether this runs together with others."""
    return _meeting.get() is not None


def together(calls: Sequence[Callable[[], Any]], at_once: int) -> None:
    """Run the calls, so many of them at a time. What they find they must keep themselves; an error ends them all."""
    if jax.process_count() > 1:
        raise RuntimeError(
            "calls side by side run in one process; here are several, which would meet in another order."
        )
    waiting = SimpleQueue[Callable[[], Any]]()
    for call in calls:
        waiting.put(call)
    meeting = _Meeting(min(at_once, len(calls)))

    def work() -> None:
        _meeting.set(meeting)
        try:
            while not meeting.over:
                try:
                    call = waiting.get_nowait()
                except Empty:
                    break
                call()
            meeting.leave()
        except BaseException as error:
            meeting.end(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(meeting.size)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)
    except BaseException as error:
        meeting.end(error)
        for thread in threads:
            if thread.is_alive():
                thread.join()
    if meeting.error is not None:
        raise meeting.error


def _for_all(fn: Callable[..., Any]) -> Callable[[list[Any]], list[Any]]:
    """The function on a list of arguments, vmapped; stacked and taken apart within the one program."""

    def run(many: list[Any]) -> list[Any]:
        arrays, static = zip(*(eqx.partition(args, eqx.is_array) for args in many), strict=True)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
        out, rest = eqx.partition(eqx.filter_vmap(fn)(*eqx.combine(stacked, static[0])), eqx.is_array)
        return [eqx.combine(jax.tree.map(lambda leaf, i=i: leaf[i], out), rest) for i in range(len(many))]

    run.__name__ = run.__qualname__ = f"{getattr(fn, '__name__', 'function')}_for_all"
    return eqx.filter_jit(run)


class _Over(BaseException):
    """Raised in a call when another one has ended them all."""


class _Seat:
    """One call's arguments, waiting; then what came of them."""

    def __init__(self, alone: Callable[..., Any], for_all: Callable[..., Any], args: tuple[Any, ...]):
        self.alone, self.for_all = alone, for_all
        as_array = lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf
        self.args: Any = jax.tree.map(as_array, args)
        leaves, structure = jax.tree.flatten(self.args)
        shapes = tuple(jax.typeof(leaf) if eqx.is_array(leaf) else (type(leaf), leaf) for leaf in leaves)
        self.kind = (for_all, structure, shapes)
        # Here, so that arguments that cannot be compared fail in the call that brought them.
        hash(self.kind)
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None

    def serve_alone(self) -> None:
        try:
            self.result = self.alone(*self.args)
        except Exception as error:
            self.error = error


class _Meeting:
    def __init__(self, size: int):
        self.size = self.running = size
        self.seats: list[_Seat] = []
        self.changed = threading.Condition()
        self.error: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.error is not None

    def come(self, seat: _Seat) -> Any:
        """What the function gives for these arguments, when everyone has come somewhere."""
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
        """Nobody waits any longer. Said before the lock is there, which is held while a function runs."""
        if self.error is None and not isinstance(error, _Over):
            self.error = error
        with self.changed:
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
        if len(group) < max(2, _FULL_ENOUGH * self.size):
            for seat in group:
                seat.serve_alone()
        else:
            self._serve_as_one(group)
        for seat in group:
            seat.done, seat.args = True, None

    def _serve_as_one(self, group: list[_Seat]) -> None:
        try:
            filled = [*group, *[group[0]] * (self.size - len(group))]
            results = group[0].for_all([seat.args for seat in filled])
            for seat, result in zip(group, results, strict=False):
                seat.result = result
        except jax.errors.JaxRuntimeError:
            # All at once are too many for the memory, perhaps.
            for seat in group:
                seat.serve_alone()
        except Exception as error:
            for seat in group:
                seat.error = copy.copy(error)
