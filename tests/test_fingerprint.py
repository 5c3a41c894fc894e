"""The same value is the same in another process; another is another, however it is put together."""

import functools
import types

import jax
import numpy as np
import pytest

from calibayes._backend.fingerprint import digest


def line(x, slope=1.0):
    return slope * x


class Scaled:
    def __init__(self, by):
        self.by = by

    @property
    def twice(self):
        return 2 * self.by

    def of(self, x):
        return self.by * x


class Like:
    """An array in all but name."""

    __slots__ = ("values",)

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


def wrapped(by):
    @functools.wraps(line)
    def call(x):
        return line(x, by)

    return functools.lru_cache(call)


PAIRS = {
    "numbers": (lambda: 1.5, lambda: 1.25),
    "a number and a text": (lambda: 1, lambda: "1"),
    "true and one": (lambda: True, lambda: 1),
    "arrays": (lambda: np.arange(3.0), lambda: np.arange(3)),
    "shapes": (lambda: np.zeros((2, 3)), lambda: np.zeros((3, 2))),
    "keys": (lambda: jax.random.key(1), lambda: jax.random.key(2)),
    "objects in arrays": (lambda: np.array(["a", None]), lambda: np.array(["b", None])),
    "lists": (lambda: [1, [2]], lambda: [[1], 2]),
    "sets": (lambda: {"a", "b", "c"}, lambda: {"a", "b"}),
    "dictionaries": (lambda: {"a": 1}, lambda: {"a": 2}),
    "partial functions": (lambda: functools.partial(line, slope=2.0), lambda: functools.partial(line, slope=3.0)),
    "methods": (lambda: Scaled(2).of, lambda: Scaled(3).of),
    "objects": (lambda: Scaled(2), lambda: Scaled(3)),
    "classes": (lambda: Scaled, lambda: Like),
    "modules": (lambda: functools, lambda: types),
    "properties": (lambda: Scaled.twice, lambda: property(lambda self: 3 * self.by)),
    "wrapped functions": (lambda: wrapped(1.0), lambda: functools.lru_cache(lambda x: x)),
    "array-likes": (lambda: Like([1.0, 2.0]), lambda: Like([1.0, 3.0])),
    "functions of a library": (lambda: np.mean, lambda: np.median),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_the_same_and_another(pair):
    one, other = pair
    assert digest(one()) == digest(one())
    assert digest(one()) != digest(other())
    assert len(digest(one())) == 64


def test_a_module_of_ones_own_is_its_code(tmp_path):
    module = types.ModuleType("mine")
    module.__file__ = str(tmp_path / "mine.py")
    (tmp_path / "mine.py").write_text("a = 1\n")
    first = digest(module)
    assert digest(module) == first
    (tmp_path / "mine.py").write_text("a = 2\n")
    assert digest(module) != first


def test_what_holds_itself():
    """Ends, and tells it from what does not."""
    loop = [1]
    loop.append(loop)
    again = [1]
    again.append(again)
    assert digest(loop) == digest(again)
    assert digest(loop) != digest([1, [1]])
