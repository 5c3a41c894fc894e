"""Time limits of computations."""

import time

import jax
import jax.numpy as jnp
import pytest

from calibayes._backend.jit import jit
from calibayes._backend.time_limit import TimeLimitError, check_time_limit, time_limit


@jit
def double(x):
    return 2 * x


def test_programs_run_before_the_limit_and_raise_after_it():
    with time_limit(60.0):
        assert double(jnp.ones(())) == 2
    with time_limit(1e-9):
        time.sleep(0.001)
        with pytest.raises(TimeLimitError, match=r"time limit of 1e-09 s \(max_seconds=\) passed"):
            double(jnp.ones(()))
    assert double(jnp.ones(())) == 2


def test_limit_of_the_outer_context_is_lifted_and_restored():
    with time_limit(1e-9):
        time.sleep(0.001)
        with time_limit(None):
            check_time_limit()
        with pytest.raises(TimeoutError):
            check_time_limit()


def test_programs_that_are_part_of_another_one_are_traced_after_the_limit():
    """JAX would keep the error of a trace that is cut short; the program that contains it has checked the limit."""
    with time_limit(1e-9):
        time.sleep(0.001)
        assert jax.jit(lambda x: double(x) + 1)(jnp.ones(())) == 3
