import signal
from pathlib import Path

import jax
import pytest

from calibayes._backend.memory import clear_caches_if_full

# What is compiled is kept for the other worker and for the next run.
CACHE = Path(__file__).parents[1] / ".pytest_cache" / "jax"
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)

# For the tests that share out observations and rows; all others keep to the first.
jax.config.update("jax_num_cpu_devices", 4)

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


# A shell that runs the tests in the background has them ignore Ctrl-C, which some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def _room_for_compiled_programs():
    """So that no worker runs out of maps, and both stay small."""
    yield
    clear_caches_if_full(0.3)


@pytest.fixture(scope="session")
def key():
    return jax.random.key(20240425)
