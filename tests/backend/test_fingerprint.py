"""Digests: equal values have the same digest in every process, and different values have different ones."""

import collections
import functools
import os
import subprocess
import sys
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import calibayes as cb
from calibayes._backend.fingerprint import UnstableDigestError, digest


def line(x, slope=1.0):
    return slope * x


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    @property
    def twice(self):
        return 2 * self.factor

    def multiply(self, x):
        return self.factor * x


class Slotted:
    """An object whose attributes are in slots, one of them with a private name."""

    __slots__ = ("__factor",)

    def __init__(self, factor):
        self.__factor = factor


class Level(float):
    pass


class Doubled(Level):
    def scale(self, x):
        return 2 * self * x


class Pair(NamedTuple):
    a: float
    b: float


Swapped = collections.namedtuple("Pair", "b a")


class ArrayLike:
    """A type without attributes that converts to an array."""

    __slots__ = ("values",)

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


def wrapped_line(slope):
    @functools.wraps(line)
    def call(x):
        return line(x, slope)

    return functools.lru_cache(call)


PAIRS = {
    "numbers": (lambda: 1.5, lambda: 1.25),
    "a number and a string": (lambda: 1, lambda: "1"),
    "True and 1": (lambda: True, lambda: 1),
    "dtypes": (lambda: np.arange(3.0), lambda: np.arange(3)),
    "shapes": (lambda: np.zeros((2, 3)), lambda: np.zeros((3, 2))),
    "keys": (lambda: jax.random.key(1), lambda: jax.random.key(2)),
    "arrays of objects": (lambda: np.array(["a", None]), lambda: np.array(["b", None])),
    "lists": (lambda: [1, [2]], lambda: [[1], 2]),
    "sets": (lambda: {"a", "b", "c"}, lambda: {"a", "b"}),
    "dictionaries": (lambda: {"a": 1}, lambda: {"a": 2}),
    "partial functions": (lambda: functools.partial(line, slope=2.0), lambda: functools.partial(line, slope=3.0)),
    "methods": (lambda: Scaled(2).multiply, lambda: Scaled(3).multiply),
    "objects": (lambda: Scaled(2), lambda: Scaled(3)),
    "slots": (lambda: Slotted(2), lambda: Slotted(3)),
    "named tuples": (lambda: Pair(1.0, 2.0), lambda: Swapped(1.0, 2.0)),
    "numbers of user classes": (lambda: Level(0.5), lambda: Doubled(0.5)),
    "classes": (lambda: Scaled, lambda: ArrayLike),
    "modules": (lambda: functools, lambda: types),
    "properties": (lambda: Scaled.twice, lambda: property(lambda self: 3 * self.factor)),
    "wrapped functions": (lambda: wrapped_line(1.0), lambda: functools.lru_cache(lambda x: x)),
    "array-likes": (lambda: ArrayLike([1.0, 2.0]), lambda: ArrayLike([1.0, 3.0])),
    "library functions": (lambda: np.mean, lambda: np.median),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_equal_values_have_equal_digests_and_others_differ(pair):
    make, make_other = pair
    assert digest(make()) == digest(make())
    assert digest(make()) != digest(make_other())
    assert len(digest(make())) == 64


def test_user_module_is_hashed_by_its_source(tmp_path):
    module = types.ModuleType("mine")
    module.__file__ = str(tmp_path / "mine.py")
    (tmp_path / "mine.py").write_text("a = 1\n")
    first = digest(module)
    assert digest(module) == first
    (tmp_path / "mine.py").write_text("a = 2\n")
    assert digest(module) != first


def test_value_that_contains_itself_has_a_digest():
    cyclic = [1]
    cyclic.append(cyclic)
    same = [1]
    same.append(same)
    assert digest(cyclic) == digest(same)
    assert digest(cyclic) != digest([1, [1]])


def make_loss(scale, shape=lambda u: jnp.abs(u)):
    return lambda theta, datum: scale * shape(datum - theta[0])


def test_functions_are_compared_by_code_and_captured_values():
    prior = cb.priors.Normal(scale=10.0)
    first, same = (digest(cb.GibbsModel(make_loss(2.0), prior, dim=1)) for _ in range(2))
    assert first == same
    others = (make_loss(3.0), make_loss(2.0, lambda u: u * u), lambda theta, datum: 2.0 * jnp.abs(datum - theta))
    for other in others:
        assert digest(cb.GibbsModel(other, prior, dim=1)) != first


def test_digest_does_not_depend_on_the_process():
    """Sets of strings, whose order depends on the hash seed of the process, are part of the value."""
    imports = "import calibayes as cb, numpy as np, jax.numpy as jnp; from calibayes._backend.fingerprint import digest"
    value = "(lambda t, d: jnp.where(d in {'a', 'b', 'c'}, t, np.log(d)), cb.losses.Quantile(0.3), {1.5, 'x'})"
    digests = [
        subprocess.run(
            [sys.executable, "-c", f"{imports}\nprint(digest({value}))"],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert digests[0] == digests[1]
    assert len(digests[0].strip()) == 64


class Power:
    exponent = 1.0

    @staticmethod
    def transform(x):
        return x

    def apply(self, x):
        return self.transform(x) ** self.exponent


@pytest.mark.parametrize(
    ("name", "value"), [("exponent", 2.0), ("transform", staticmethod(lambda x: -x)), ("apply", lambda self, x: x)]
)
def test_attributes_of_user_classes_are_part_of_the_digest(monkeypatch, name, value):
    before = digest(Power), digest(Power())
    monkeypatch.setattr(Power, name, value)
    assert digest(Power) != before[0]
    assert digest(Power()) != before[1]


def importing(x):
    import test_compilations

    return test_compilations.SCALE * x


@pytest.mark.parametrize(
    "value",
    [
        types.ModuleType("settings"),
        collections.deque([1.0]),
        collections.defaultdict(list),
        Pair(1.0, 2.0),
        frozenset({Pair(1.0, 2.0)}),
        Level(0.5),
        np.ma.masked_array([1.0]),
        bytearray(b"a"),
        types.MappingProxyType({"a": 1}),
        jax.nn.initializers.constant(1.0),
        importing,
        scipy.special.logsumexp,
    ],
    ids=[
        "module",
        "deque",
        "defaultdict",
        "named tuple",
        "set",
        "number",
        "masked",
        "bytearray",
        "proxy",
        "closure of a library",
        "import",
        "another package",
    ],
)
def test_strict_digest_rejects_values_whose_state_it_cannot_see(value):
    with pytest.raises(UnstableDigestError):
        digest(value, strict=True)


def test_type_is_hashed_by_its_code():
    """A class is often defined again under the same name, as in a notebook."""

    def make(power):
        class Settings(NamedTuple):
            tau: float

            def weight(self, r):
                return self.tau * r**power

        return Settings(0.5)

    assert digest(make(1)) == digest(make(1))
    assert digest(make(1)) != digest(make(2))


def test_objects_with_many_references_to_each_other_are_hashed_once():
    """Each object has references to the one before it: without a memory there would be 2**60 paths."""
    chain = Scaled(0)
    for _ in range(60):
        chain = Scaled([chain, chain])
    assert digest(chain) != digest(chain.factor[0])
