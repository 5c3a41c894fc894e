"""Compiled functions: one program per shape, compiled in the background or read from disk where possible.

`jit` compiles a function for the shapes, dtypes and static values of its arguments, like `equinox.filter_jit`. In
addition

- a program is read from the program cache on disk if an earlier process compiled it (`program_cache.py`), without
  tracing the function again;
- `prefetch` compiles a program for arguments that do not exist yet, in a thread, while other work continues;
- a call takes a fraction of the time of `equinox.filter_jit`, because a calibration calls dozens of programs that run
  for less time than it needs to dispatch them (`docs/performance.md`).

Inside the trace of another function, under a JAX debugging option, and for arrays on several devices, JAX compiles the
function itself.
"""

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial, wraps
from typing import Any, ClassVar, NamedTuple, TypeVar, cast
from weakref import WeakSet

import equinox as eqx
import jax
import numpy as np

from calibayes._backend import program_cache
from calibayes._backend.fingerprint import UnstableDigestError, digest
from calibayes._backend.heap import release_freed_memory
from calibayes._backend.time_limit import check_time_limit

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class JitConfig:
    """Constants of the compilation."""

    max_threads: int = 16
    """Largest number of programs that are compiled at the same time; never more than there are processors."""
    release_interval: float = 0.5
    """Smallest time in seconds between two releases of the memory that compilations leave behind. A release takes
    20 ms; without any, the memory adds to that of the particles."""
    light_options: tuple[tuple[str, bool], ...] = (("xla_cpu_use_fusion_emitters", False),)
    """Compiler options of a `light` program on a CPU. The older code generator of XLA takes half the time to compile,
    but does not vectorise some functions: the logistic risk took several times as long. Hence it is for programs that
    do not evaluate the risk."""


CONFIG = JitConfig()

_TRACE_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_device",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
)
"""JAX settings that change a program."""
_DEBUG_SETTINGS = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs", "jax_check_tracer_leaks")
"""JAX settings that change how a program is run; with any of them JAX compiles and runs the function itself."""


def jit(fn: F, *, light: bool = False) -> F:
    """Compile a function of positional arguments.

    Parameters
    ----------
    fn : callable
        Function of pytrees. Leaves that are not arrays, such as integers, are static and must be hashable.
    light : bool
        Whether the function takes a small part of the running time, so that a short compilation matters more than a
        fast program. Default: False.

    Returns
    -------
    callable
        Compiled function, with the `Program` as its attribute `program`.
    """
    program = Program(fn, light)

    @wraps(fn)
    def call(*args: object) -> Any:
        return program(*args)

    call.program = program  # type: ignore[attr-defined]
    return cast(F, call)


def light_jit(fn: F) -> F:
    """Compile a function that takes a small part of the running time for any data: quickly, for a slower program."""
    return jit(fn, light=True)


def prefetch(fn: Callable[..., Any], *args: object) -> Any:
    """Start to compile a function made by `jit` for arguments of given shapes.

    Parameters
    ----------
    fn : callable
        Function made by `jit`.
    *args : pytree
        Arguments of a later call, with arrays or `jax.ShapeDtypeStruct` as leaves.

    Returns
    -------
    pytree
        The value of the function, with `jax.ShapeDtypeStruct` in place of arrays.
    """
    return fn.program.prefetch(*args)  # type: ignore[attr-defined]


def clear_programs() -> None:
    """Drop all compiled programs from memory."""
    for program in list(_PROGRAMS):
        program.clear()
    jax.clear_caches()


def n_programs() -> int:
    """Return the number of compiled programs in memory."""
    return sum(len(program.items()) for program in list(_PROGRAMS))


def n_compiled() -> int:
    """Return the number of programs that this process has compiled or read from disk so far."""
    return _Entry.n_created


def drop_oldest_programs(n_kept: int) -> None:
    """Drop the compiled programs that have not been called for the longest time, except for `n_kept`."""
    entries = [
        (entry.last_used, id(program), key, program) for program in list(_PROGRAMS) for key, entry in program.items()
    ]
    entries.sort(key=lambda entry: entry[:2], reverse=True)
    for _, _, key, program in entries[n_kept:]:
        program.drop(key)


def compiling_since() -> float | None:
    """Return the time, by `time.monotonic`, since which a call has been waiting for a program; None if none is."""
    return _waiting.since


def _at_full_precision(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with matrix products of full precision; by default those of a GPU have 10 bits."""

    @wraps(fn)
    def traced(*args: object) -> Any:
        with jax.default_matmul_precision("highest"):
            return fn(*args)

    return traced


class Program:
    """A function and its compiled programs, one for each set of shapes, dtypes and static values."""

    def __init__(self, fn: Callable[..., Any], light: bool):
        self._fn, self._traced = fn, _at_full_precision(fn)
        self._compile_fast = light
        self._jitted, self._filter_jitted = cache(partial(jax.jit, self._traced)), eqx.filter_jit(self._traced)
        self._executables: dict[Hashable, _Entry] = {}
        self._lock = threading.Lock()
        _PROGRAMS.add(self)

    def __call__(self, *args: object) -> Any:
        leaves, structure = jax.tree.flatten(args)
        arrays: list[jax.Array | np.ndarray] = []
        entries: list[Hashable] = []
        for leaf in leaves:
            if isinstance(leaf, jax.Array):
                if isinstance(leaf, jax.core.Tracer) or not _is_local(leaf):
                    return self._call_jax(args)
                arrays.append(leaf)
                entries.append((leaf.shape, leaf.dtype))
            elif isinstance(leaf, np.ndarray):
                arrays.append(_canonical(leaf))
                entries.append((leaf.shape, arrays[-1].dtype))
            else:
                entries.append((type(leaf), leaf))
        if any(getattr(jax.config, name) for name in _DEBUG_SETTINGS):
            return self._call_jax(args)
        check_time_limit()
        key = (structure, tuple(entries), trace_settings())
        future = self._executables.get(key)
        if future is None or not future.done():
            with _waiting():
                return self._obtain(key, args)(arrays)
        future.last_used = time.monotonic()
        return future.result()(arrays)

    def prefetch(self, *args: object) -> Any:
        """Start to compile the program for `args`, and return the shapes of its value."""
        leaves, structure = jax.tree.flatten(args)
        entries = [(leaf.shape, abstract(leaf).dtype) if is_array_like(leaf) else (type(leaf), leaf) for leaf in leaves]
        key = (structure, tuple(entries), trace_settings())
        future, is_new = self._future(key)
        return self._start(key, args, future) if is_new else future.result().shapes()

    def items(self) -> "list[tuple[Hashable, _Entry]]":
        """Return the compiled programs in memory with their keys."""
        with self._lock:
            return [(key, entry) for key, entry in self._executables.items() if entry.done()]

    def drop(self, key: Hashable) -> None:
        """Drop one compiled program from memory; calls of it that are under way are not affected."""
        with self._lock:
            self._executables.pop(key, None)

    def clear(self) -> None:
        """Drop the compiled programs from memory."""
        with self._lock:
            self._executables.clear()
        self._jitted = cache(partial(jax.jit, self._traced))

    def _call_jax(self, args: Sequence[object]) -> Any:
        """Call the function through JAX's own compilation, which also handles traced arguments."""
        integers = tuple(i for i, arg in enumerate(args) if type(arg) is int)
        others = [arg for arg in args if type(arg) is not int] if integers else args
        only_arrays = all(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(others))
        return (self._jitted(static_argnums=integers) if only_arrays else self._filter_jitted)(*args)

    def _obtain(self, key: Hashable, args: Sequence[object]) -> "_Executable":
        """Return the program for `args`: the one that is being compiled, or a new one."""
        future, is_new = self._future(key)
        if is_new:
            self._start(key, args, future, in_background=False)
        return future.result()

    def _future(self, key: Hashable) -> "tuple[_Entry, bool]":
        """Return the program that is or will be compiled, and whether the caller has to compile it."""
        with self._lock:
            is_new = key not in self._executables
            if is_new:
                self._executables[key] = _Entry()
            return self._executables[key], is_new

    def _fail(self, key: Hashable, future: "_Entry", error: BaseException) -> None:
        """Report an error to everyone who waits for a program; a later call tries again."""
        with self._lock:
            self._executables.pop(key, None)
        future.set_exception(error)

    def _start(self, key: Hashable, args: Sequence[object], future: "_Entry", in_background: bool = True) -> Any:
        """Read or compile a program, set the result of `future`, and return the shapes of the value."""
        try:
            name = self._cache_name(args)
            executable = None if name is None else _read(name, args)
            if executable is not None:
                future.set_result(executable)
                return executable.shapes()
            lowered, structure, statics = self._lower(args)
            if name is None:
                name = program_cache.name_of(_describe(lowered) if program_cache.is_enabled() else "")
            finish = partial(_compile, lowered, structure, statics, name, args, self._compile_fast)
            if in_background:
                _executor().submit(self._finish, key, future, finish)
            else:
                future.set_result(finish())
            return _fill(structure, statics, jax.tree.leaves(lowered.out_info))
        except BaseException as error:
            self._fail(key, future, error)
            raise

    def _finish(self, key: Hashable, future: "_Entry", make: "Callable[[], _Executable]") -> None:
        """Compile a program in a thread."""
        try:
            future.set_result(make())
        except BaseException as error:
            self._fail(key, future, error)

    def _lower(self, args: Sequence[object]) -> tuple[jax.stages.Lowered, Any, list[Any]]:
        """Return the traced function, the tree structure of its value, and those leaves of it that are not arrays."""
        leaves, structure = cast(tuple[list[Any], Any], jax.tree.flatten(tuple(args)))
        is_array = [is_array_like(leaf) for leaf in leaves]
        value: list[Any] = []

        def flat(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            remaining = iter(arrays)
            inputs = [next(remaining) if array else leaf for leaf, array in zip(leaves, is_array, strict=True)]
            outputs, out_structure = jax.tree.flatten(self._traced(*structure.unflatten(inputs)))
            statics = [_ARRAY if eqx.is_array(leaf) else leaf for leaf in outputs]
            value[:] = [out_structure, statics]
            return tuple(leaf for leaf in outputs if eqx.is_array(leaf))

        flat.__name__ = flat.__qualname__ = getattr(self._fn, "__name__", "program")
        shapes = [abstract(leaf) for leaf, array in zip(leaves, is_array, strict=True) if array]
        return jax.jit(flat).lower(*shapes), value[0], value[1]

    def _cache_name(self, args: Sequence[object]) -> str | None:
        """Return the name of the program in the cache on disk; None if it cannot be determined without tracing."""
        if not (program_cache.is_enabled() and program_cache.covers(self._fn)):
            return None
        described = jax.tree.map(
            lambda leaf: (leaf.shape, str(abstract(leaf).dtype)) if is_array_like(leaf) else leaf,
            tuple(args),
        )
        identity = (self._fn.__module__, self._fn.__qualname__, self._compile_fast, trace_settings())
        try:
            return program_cache.name_of(digest((*map(str, identity), described), strict=True), of_code=True)
        except UnstableDigestError:
            return None


class _Executable(NamedTuple):
    """A compiled program of flat lists of arrays, and the structure of its value."""

    compiled: jax.stages.Compiled
    structure: Any
    """Structure of the value, as a JAX `PyTreeDef`."""
    statics: list[object]
    """Leaves of the value; `_ARRAY` in place of an array."""

    def __call__(self, arrays: Sequence[object]) -> Any:
        return _fill(self.structure, self.statics, self.compiled(*arrays))

    def shapes(self) -> Any:
        """Return the value of the function with shapes in place of arrays."""
        infos = jax.tree.leaves(self.compiled.out_info)
        return _fill(self.structure, self.statics, [jax.ShapeDtypeStruct(i.shape, i.dtype) for i in infos])


class _Entry(Future[_Executable]):
    """A program that has been or is being compiled, and the time at which it was last called or begun."""

    n_created: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        _Entry.n_created += 1
        self.last_used = time.monotonic()


class _ArrayMarker:
    """Place of an array among the leaves of a value."""


_ARRAY = _ArrayMarker()
_PROGRAMS: WeakSet[Program] = WeakSet()


class _Waiting:
    """Since when at least one call has been waiting for a program."""

    def __init__(self) -> None:
        self.since: float | None = None
        self._calls = 0
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._calls += 1
            self.since = self.since or time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                self.since = self.since if self._calls else None


_waiting = _Waiting()


def _compile(
    lowered: jax.stages.Lowered, structure: Any, statics: list[object], name: str, args: Sequence[object], light: bool
) -> _Executable:
    compiled = program_cache.read_compiled(name)
    if compiled is None:
        compiled = (_compile_light if light and jax.default_backend() == "cpu" else jax.stages.Lowered.compile)(lowered)
        skeleton = structure.unflatten(list(range(len(statics)))), [leaf is _ARRAY for leaf in statics]
        release_freed_memory(CONFIG.release_interval)
        program_cache.write(name, compiled, (skeleton, [None if leaf is _ARRAY else leaf for leaf in statics]), args)
    return _Executable(compiled, structure, statics)


def _describe(lowered: jax.stages.Lowered) -> str:
    """Return the text of a lowered program with the shapes of all arguments; the text omits those it does not use."""
    shapes = [(info.shape, str(info.dtype)) for info in jax.tree.leaves(lowered.args_info)]
    return f"{shapes}\n{lowered.as_text()}"


def _compile_light(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile with `CONFIG.light_options`; without them if this version of XLA does not have them."""
    if _light_options.supported:
        try:
            return lowered.compile(dict(CONFIG.light_options))
        except jax.errors.JaxRuntimeError:
            compiled = lowered.compile()
            _light_options.supported = False
            return compiled
    return lowered.compile()


class _LightOptions:
    """Whether this version of XLA has the options of light programs."""

    supported: bool = True


_light_options = _LightOptions()


def _read(name: str, args: Sequence[object]) -> _Executable | None:
    """Return a program of the cache on disk."""
    entry = program_cache.read(name, args)
    if entry is None:
        return None
    compiled, ((skeleton, is_array), statics) = entry
    structure = jax.tree.structure(skeleton)
    return _Executable(
        compiled, structure, [_ARRAY if array else leaf for leaf, array in zip(statics, is_array, strict=True)]
    )


def _fill(structure: Any, statics: list[object], arrays: Sequence[object]) -> Any:
    remaining = iter(arrays)
    return structure.unflatten([next(remaining) if leaf is _ARRAY else leaf for leaf in statics])


def is_array_like(leaf: object) -> bool:
    """Return whether a leaf is an array or a shape, and not static."""
    return isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def abstract(leaf: jax.Array | np.ndarray | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an array; a weak dtype, that of a Python number, is taken as an ordinary one."""
    leaf = _canonical(leaf) if isinstance(leaf, np.ndarray) else leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _canonical(array: np.ndarray) -> np.ndarray:
    """Return a host array with the dtype that JAX gives to it."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return array if array.dtype == dtype else array.astype(dtype)


def _is_local(array: jax.Array) -> bool:
    """Return whether an array is on the default device of this process."""
    return _only_device() or (array.is_fully_addressable and array.devices() == {_default_device()})


def _only_device() -> bool:
    return jax.device_count() == 1


def _default_device() -> jax.Device:
    device = getattr(jax.config, "jax_default_device")  # noqa: B009  # JAX does not declare it
    return device if isinstance(device, jax.Device) else jax.local_devices()[0]


def trace_settings() -> tuple[Hashable, ...]:
    """Return the JAX settings that change a program, as they are in this thread."""
    return tuple(getattr(jax.config, name) for name in _TRACE_SETTINGS)


@cache
def _executor() -> ThreadPoolExecutor:
    threads = min(CONFIG.max_threads, os.cpu_count() or 1)
    return ThreadPoolExecutor(threads, thread_name_prefix="calibayes-compile")
