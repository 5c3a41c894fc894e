"""Compiled programs on disk, so that the second process neither traces nor compiles.

Every program is one file in the folder `calibayes/programs` of the user's cache folder. Its name is a digest of
everything that determines the program: the versions of Python, JAX and calibayes (by the content of its source files),
the tuning constants, the processor or accelerator, and either the function with its static arguments and the shapes of
the others, or, if these contain code that cannot be identified with certainty, the lowered program itself.

A file is written under a temporary name and renamed, so that processes can share the folder. It begins with a checksum;
a damaged file is ignored and replaced. The programs that have not been used for the longest time are deleted when they
take too much space; other files in the folder are left alone. Loading a program runs its machine code: the folder is
created with permissions for its owner only, and a file is ignored unless it belongs to the user and nobody else can
write to it.

The cache is not used if JAX's own persistent compilation cache is configured, which then keeps the programs.
"""

import io
import os
import pickle
import platform
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jaxlib.version
import numpy as np
from jax.experimental import serialize_executable

from calibayes._backend.fingerprint import digest
from calibayes._backend.functions import Function

_TEMPORARY = "calibayes-"
_OWN_FILE = re.compile(rf"[0-9a-f]{{40}}|{_TEMPORARY}\w+\.tmp")
"""Names of the files of this cache: programs, and those left by processes that were killed while they wrote one."""
VARIABLE = "CALIBAYES_CACHE_DIR"
"""Environment variable with the folder of the cache, or `off`."""


@dataclass(frozen=True)
class ProgramCacheConfig:
    """Limits of the program cache."""

    max_bytes: int = 2**29
    """Size of the folder above which the oldest files are deleted. A calibration of a new shape stores about 5 MB, so
    that 512 MB hold about a hundred."""
    keep_share: float = 0.8
    """Share of `max_bytes` that is left after a deletion, so that not every write deletes."""


CONFIG = ProgramCacheConfig()


class _Setting:
    """The folder that the user has set in this process."""

    folder: Path | None = None
    is_set: bool = False


def set_cache_dir(folder: str | os.PathLike | None) -> None:
    """Choose the folder in which compiled programs are kept for later processes, or turn this off.

    Parameters
    ----------
    folder : str, PathLike or None
        Folder for the compiled programs; it is created if necessary. None: keep nothing on disk.

    Notes
    -----
    By default programs are kept in `calibayes/programs` in the user's cache folder (`$XDG_CACHE_HOME`, or `~/.cache`),
    up to 512 MB. The environment variable `CALIBAYES_CACHE_DIR` sets another folder, or `off`. If JAX's persistent
    compilation cache is configured (`jax_compilation_cache_dir`), it is used instead.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.set_cache_dir(None)
    """
    _Setting.folder = None if folder is None else Path(folder).expanduser()
    _Setting.is_set = True


def is_enabled() -> bool:
    """Return whether programs are kept on disk by this module."""
    return cache_dir() is not None


def cache_dir() -> Path | None:
    """Return the folder of the cache; None if nothing is kept."""
    if jax.config.values["jax_compilation_cache_dir"] is not None or jax.process_count() > 1:
        return None
    if _Setting.is_set:
        return _Setting.folder
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return None if chosen.lower() in ("", "off", "0") else Path(chosen).expanduser()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calibayes" / "programs"
    except RuntimeError:  # no home folder
        return None


def covers(fn: Callable[..., Any]) -> bool:
    """Return whether the source code of this package determines a function: it is not defined inside another one."""
    return fn.__module__.partition(".")[0] == __name__.partition(".")[0] and "<" not in fn.__qualname__


def name_of(text: str, of_code: bool = False) -> str:
    """Return the name of a program.

    Parameters
    ----------
    text : str
        Description of the program: the lowered program, or a digest of a function and its arguments.
    of_code : bool
        Whether `text` describes a function of this package, whose source code is then part of the name.
    """
    code = (_source_digest(), _constants_digest()) if of_code else ()
    return digest((text, *_environment(), *code))[:40]


def read(name: str, args: Sequence[object]) -> tuple[jax.stages.Compiled, Any] | None:
    """Return a program and the description of its value; None if the cache has none.

    Parameters
    ----------
    name : str
        Name of the program.
    args : sequence of pytree
        Arguments of the program; their static parts also occur in the pytree that it returns.
    """
    content = _content(name)
    if content is None:
        return None
    with suppress(Exception):
        executable, n_inputs, n_outputs, value = pickle.loads(content)
        if value is None:
            return None
        return _load(executable, n_inputs, n_outputs), _Unpickler(io.BytesIO(value), _static_objects(args)).load()
    return None


def read_compiled(name: str) -> jax.stages.Compiled | None:
    """Return a program without the description of its value; None if the cache has none."""
    content = _content(name)
    if content is None:
        return None
    with suppress(Exception):
        return _load(*pickle.loads(content)[:3])
    return None


def write(name: str, compiled: jax.stages.Compiled, value: object, args: Sequence[object]) -> None:
    """Store a program; a program that cannot be stored, or a folder that cannot be written to, is no error.

    Parameters
    ----------
    name : str
        Name of the program.
    compiled : jax.stages.Compiled
        The program.
    value : object
        The pytree that the program returns, without its arrays.
    args : sequence of pytree
        Arguments of the program; their static parts also occur in the pytree that it returns.
    """
    folder = cache_dir()
    if folder is None:
        return
    with suppress(Exception):
        executable, inputs, outputs = serialize_executable.serialize(compiled)
        content = pickle.dumps((executable, inputs.num_leaves, outputs.num_leaves, _pickled(value, args)))
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=_TEMPORARY, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(sha256(content).digest() + content)
            os.replace(temporary, folder / name)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _delete_oldest(folder)


def _content(name: str) -> bytes | None:
    """Return the content of a file, if its checksum is right, and mark the file as used."""
    folder = cache_dir()
    if folder is None:
        return None
    with suppress(OSError), (folder / name).open("rb") as file:
        if not _only_user_can_write(os.fstat(file.fileno())):
            return None
        stored = file.read()
        if sha256(stored[32:]).digest() == stored[:32]:
            with suppress(OSError):  # on a read-only file system
                os.utime(folder / name)
            return stored[32:]
    return None


def _only_user_can_write(status: os.stat_result) -> bool:
    """Return whether a file belongs to the user and nobody else can write to it; its content is run."""
    if not hasattr(os, "getuid"):  # Windows
        return True
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _load(executable: bytes, n_inputs: int, n_outputs: int) -> jax.stages.Compiled:
    inputs = jax.tree.structure(((0,) * n_inputs, {}))
    outputs = jax.tree.structure((0,) * n_outputs)
    devices = jax.local_devices()[:1]
    return serialize_executable.deserialize_and_load(executable, inputs, outputs, execution_devices=devices)


def _delete_oldest(folder: Path) -> None:
    """Delete the programs that have not been used for the longest time; other files in the folder are not touched."""
    files = []
    for path in folder.iterdir():
        if not _OWN_FILE.fullmatch(path.name):
            continue
        with suppress(OSError):
            status = path.stat()
            files.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in files)
    if total <= CONFIG.max_bytes:
        return
    for _, size, path in sorted(files):
        with suppress(OSError):
            path.unlink()
        total -= size
        if total <= CONFIG.keep_share * CONFIG.max_bytes:
            return


# The value of a program shares objects such as the user's loss with its arguments. They are stored as references.


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[object]):
        super().__init__(file)
        self._index = {id(value): i for i, value in enumerate(shared)}

    def persistent_id(self, obj: object) -> int | None:
        return self._index.get(id(obj))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[object]):
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: int) -> object:
        return self._shared[pid]


class _Collector(pickle.Pickler):
    """Pickler that collects the user's functions, in the order in which they occur."""

    def __init__(self, collected: list[object]):
        super().__init__(io.BytesIO())
        self._collected = collected

    def persistent_id(self, obj: object) -> int | None:
        if isinstance(obj, Function):
            self._collected.append(obj)
            return len(self._collected)
        return None


def _static_objects(args: Sequence[object]) -> list[object]:
    """Return the objects among the arguments that are passed on by reference, in a fixed order."""
    is_array = lambda leaf: isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)
    plain = (bool, int, float, str, bytes, type(None))
    collected: list[object] = [
        leaf for leaf in jax.tree.leaves(args) if not is_array(leaf) and not isinstance(leaf, plain)
    ]
    without_arrays = jax.tree.map(
        lambda leaf: 0 if is_array(leaf) or any(leaf is other for other in collected) else leaf, args
    )
    _Collector(collected).dump(without_arrays)
    return collected


def _pickled(value: object, args: Sequence[object]) -> bytes | None:
    """Return the pickled description of a value; None if it contains objects that cannot be pickled."""
    file = io.BytesIO()
    try:
        _Pickler(file, _static_objects(args)).dump(value)
    except Exception:
        return None
    return file.getvalue()


# Everything else that determines a program


@cache
def _source_digest() -> str:
    root = Path(__file__).parents[1]
    total = sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def _constants_digest() -> str:
    """Return a digest of the tuning constants, which a script may have replaced."""
    package = __name__.partition(".")[0]
    modules = sorted((name, module) for name, module in sys.modules.items() if name.partition(".")[0] == package)
    return digest([(name, module.CONFIG) for name, module in modules if hasattr(module, "CONFIG")])


def _environment() -> tuple[str, ...]:
    """Return the versions of the compiler and of the hardware."""
    device = jax.local_devices()[0]
    versions = (sys.version, jax.__version__, jaxlib.version.__version__, np.__version__, eqx.__version__)
    hardware = (device.platform, device.device_kind, device.client.platform_version, _processor())
    return (*versions, *hardware, os.environ.get("XLA_FLAGS", ""), str(jax.local_device_count()))


@cache
def _processor() -> str:
    """Return the model and the features of the processor: a program may use any of them."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        relevant = {line for line in lines if line.split(":")[0].strip() in ("model name", "flags", "Features")}
        return "\n".join(sorted(relevant))
    return f"{platform.machine()} {platform.processor()}"
