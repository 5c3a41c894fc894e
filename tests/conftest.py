"""Settings and fixtures of all tests."""

import signal
from pathlib import Path

import jax
import pytest

from calibayes._backend.memory import clear_caches_if_full

# Compiled programs are shared between workers and kept for the next run.
CACHE = Path(__file__).parents[1] / ".pytest_cache" / "jax"
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)

# Tests of several devices use all four; all others use the first.
jax.config.update("jax_num_cpu_devices", 4)

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


# A shell that runs the tests in the background makes them ignore SIGINT, which some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def _limit_compiled_programs():
    """Drop compiled programs between modules, before a worker runs out of memory maps."""
    yield
    clear_caches_if_full(0.3)


@pytest.fixture(scope="session")
def key():
    return jax.random.key(20240425)
