"""Programs in memory whose user objects have changed.

Compiled programs are found by the tree structure and the static values of their arguments. These compare equal although
an object has changed in place: a bound method after an assignment to an attribute of its object, or an equinox module
or dataclass one of whose methods uses a global variable that has another value now. Hence the state of the user's
objects, which is a digest of their attributes, their methods and the variables that these capture, is recorded at the
start of every calibration. If it differs from the one for which programs were compiled, all programs are dropped.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import jax

from calibayes._backend.fingerprint import digest
from calibayes._backend.jit import clear_programs, is_array_like


@dataclass(frozen=True)
class OutdatedConfig:
    """Tuning constants of the recorded states."""

    max_recorded: int = 256
    """Number of objects whose states are recorded. When it is exceeded, all programs are dropped and the states
    forgotten. Order-of-magnitude choice; it affects the running time only."""


CONFIG = OutdatedConfig()

_states: dict["_Key", str | None] = {}
"""State of each object for which programs may have been compiled, by what the programs are found by."""


def state_of(*objects: object) -> str | None:
    """Return a digest of everything in the user's objects that programs are compiled for, except for shapes of arrays.

    Parameters
    ----------
    *objects : pytree
        Parts of a model, or other objects of a user, whose arrays are arguments of the programs.

    Returns
    -------
    str or None
        The state; None if it cannot be determined.
    """
    try:
        return digest(jax.tree.map(lambda leaf: None if is_array_like(leaf) else leaf, objects))
    except Exception:
        return None


def drop_outdated_programs(*objects: object) -> bool:
    """Drop all compiled programs from memory if an object has changed since its state was recorded.

    Parameters
    ----------
    *objects : pytree
        Objects that programs take as arguments, alone or with others.

    Returns
    -------
    bool
        Whether programs were dropped.
    """
    current = _current_states(objects)
    # A state that cannot be determined may be another one.
    is_outdated = any(key in _states and (state is None or _states[key] != state) for key, state in current.items())
    if is_outdated or len(_states) > CONFIG.max_recorded:
        clear_programs()
        _states.clear()
    _states.update(current)
    return is_outdated


def record_states(*objects: object) -> None:
    """Record the states of objects after a calibration: values that an object computes once and keeps are no change."""
    _states.update(_current_states(objects))


def _current_states(objects: Sequence[object]) -> dict["_Key", str | None]:
    """Return the states of objects and of the static leaves in them, which other objects may share."""
    leaves = [leaf for leaf in jax.tree.leaves(objects) if not is_array_like(leaf)]
    states = {}
    for one in (*objects, *leaves):
        key = _key(one)
        # No program is found by an object that has no hash.
        if key is not None:
            states[key] = state_of(one)
    return states


@dataclass(frozen=True)
class _Key:
    """What programs are found by, in so far as it depends on an object."""

    parts: tuple[Hashable, ...]

    def __hash__(self) -> int:
        return hash(self.parts)

    def __eq__(self, other: object) -> bool:
        try:
            return isinstance(other, _Key) and self.parts == other.parts
        except Exception:
            # Invalid arguments, such as an array as the index of an interval, cannot be compared.
            return False


def _key(tree: object) -> _Key | None:
    """Return the key of an object; None if it has no hash."""
    leaves, structure = jax.tree.flatten(tree)
    key = _Key((structure, *((type(leaf), leaf) for leaf in leaves if not is_array_like(leaf))))
    try:
        hash(key)
    except TypeError:
        return None
    return key
