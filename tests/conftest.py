"""Settings and fixtures of all tests."""

import os
import re
import signal
import zlib
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


def pytest_addoption(parser):
    parser.addoption("--platform", default="cpu", choices=["cpu", "gpu"], help="device that the tests run on")
    parser.addoption("--part", default="1/1", help="run a part of the tests: 2/7 is the second of seven parts")


def pytest_configure(config):
    # Processes that tests start use the same platform.
    os.environ["JAX_PLATFORMS"] = platforms = {"cpu": "cpu", "gpu": "cuda,cpu"}[config.getoption("--platform")]
    jax.config.update("jax_platforms", platforms)


def pytest_collection_modifyitems(config, items):
    """Select the tests of a part. A test belongs to the same part whatever other tests there are."""
    for item in items:
        if config.getoption("--platform") != "cpu" and item.get_closest_marker("cpu"):
            item.add_marker(pytest.mark.skip(reason=item.get_closest_marker("cpu").args[0]))
    part, n_parts = map(int, config.getoption("--part").split("/"))
    chosen = [item for item in items if zlib.crc32(item.nodeid.encode()) % n_parts == part - 1]
    if len(chosen) < len(items):
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = chosen


def _skip_what_is_missing(item, error):
    """Skip a test on a GPU that needs several devices, or a package that the environment lacks."""
    several_devices = isinstance(error, ValueError) and re.search(r"needs \d+ devices; \d+ are available", str(error))
    if item.config.getoption("--platform") == "gpu" and (several_devices or isinstance(error, ImportError)):
        pytest.skip(str(error))
    raise error


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    try:
        return (yield)
    except (ImportError, ValueError) as error:
        _skip_what_is_missing(item, error)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except (ImportError, ValueError) as error:
        _skip_what_is_missing(item, error)


@pytest.fixture(scope="session")
def on_gpu(pytestconfig):
    return pytestconfig.getoption("--platform") == "gpu"


@pytest.fixture(scope="module", autouse=True)
def _limit_compiled_programs():
    """Drop compiled programs between modules, before a worker runs out of memory maps."""
    yield
    clear_caches_if_full(0.3)


@pytest.fixture(scope="session")
def key():
    return jax.random.key(20240425)
