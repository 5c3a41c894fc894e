"""Memory that the compiler has freed is returned to the system."""

import numpy as np
import pytest

from calibayes._backend import heap
from calibayes._backend.entry import entry_point
from calibayes._backend.jit import jit


@pytest.fixture
def releases(monkeypatch):
    """Arguments of the calls of the C library."""
    calls = []
    monkeypatch.setattr(heap, "_malloc_trim", lambda: calls.append)
    monkeypatch.setattr(heap, "_last_release", -float("inf"))
    return calls


def test_memory_is_released_after_a_call_that_compiles(releases):
    fn = jit(lambda x: x + 4)
    with entry_point():
        fn(np.zeros(2))
    assert releases
    releases.clear()
    with entry_point():
        fn(np.zeros(2))
    assert not releases


def test_releases_have_a_minimum_interval(releases):
    heap.release_freed_memory(60.0)
    heap.release_freed_memory(60.0)
    assert releases == [0]
    heap.release_freed_memory()
    assert releases == [0, 0]


def test_libraries_without_trimming_are_accepted(monkeypatch):
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda _: object())
    assert heap._malloc_trim.__wrapped__() is None
