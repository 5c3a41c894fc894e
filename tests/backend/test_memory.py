"""Requests that need more memory than is available are rejected before allocation; compiled programs are dropped."""

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend import memory
from calibayes._backend.jit import jit, n_programs
from calibayes._backend.memory import clear_caches_if_full
from calibayes._validate.data import check_data
from calibayes._validate.settings import check_bootstrap, check_n_particles

MODEL = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal())


@pytest.fixture
def one_megabyte(monkeypatch, tmp_path):
    """A machine with one megabyte of available memory."""
    (tmp_path / "meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable: 1000 kB\n")
    monkeypatch.setattr(memory, "CONFIG", replace(memory.CONFIG, meminfo=tmp_path / "meminfo", min_bytes=0))


def test_counts_that_do_not_fit_are_rejected(one_megabyte):
    check_bootstrap(cb.bootstrap.Multinomial(100), 1000, 500)
    message = r"bootstrap: counts of 10,000 observations in 500 replicates would take at least 0.0 GB"
    with pytest.raises(ValueError, match=message):
        check_bootstrap(cb.bootstrap.Multinomial(500), 10_000, 500)


def test_errors_state_the_size_and_a_remedy():
    with pytest.raises(ValueError, match=r"counts of 1,000,000 observations .* take at least 80,000.0 GB.*Poisson"):
        check_bootstrap(cb.bootstrap.Bayesian(10**7), 10**6, 500)
    message = r"bootstrap, sampler: 1,000 particles .* take at least 40,000.0 GB.*fewer replicates"
    with pytest.raises(ValueError, match=message):
        check_n_particles(1000, 2, 10**9)
    with pytest.raises(ValueError, match=r"take more than 1,000,000 GB"):
        check_n_particles(10**300, 2, 500)


@pytest.mark.parametrize("dtype", [float, np.int8])
def test_broadcast_data_whose_copies_do_not_fit_are_rejected(dtype, monkeypatch):
    """The array takes no memory itself, but its copies would take terabytes."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    huge = np.broadcast_to(np.ones(2, dtype), (10**12, 2))
    with pytest.raises(ValueError, match=r"X: an array of shape \(1000000000000, 2\) would take"):
        check_data(MODEL, (huge, np.ones(3)), None)


def test_limit_of_a_container_is_respected(monkeypatch, tmp_path):
    (tmp_path / "max").write_text("5000000\n")
    (tmp_path / "current").write_text("3000000\n")
    files = {"cgroup_limit": tmp_path / "max", "cgroup_usage": tmp_path / "current", "cgroup_stat": tmp_path / "none"}
    config = replace(memory.CONFIG, **files)
    monkeypatch.setattr(memory, "CONFIG", config)
    assert memory.host_memory() == 2_000_000
    # Pages of files are freed when memory is needed.
    (tmp_path / "stat").write_text("anon 1000000\ninactive_file 700000\nactive_file 300000\n")
    monkeypatch.setattr(memory, "CONFIG", replace(config, cgroup_stat=tmp_path / "stat"))
    assert memory.host_memory() == 3_000_000
    (tmp_path / "max").write_text("max\n")
    assert memory.host_memory() > 2_000_000
    monkeypatch.setattr(memory, "CONFIG", replace(config, meminfo=tmp_path / "none"))
    assert memory.host_memory() > 2_000_000


def test_memory_of_accelerators_is_respected(monkeypatch):
    class Device:
        def memory_stats(self):
            return {"bytes_limit": 1000, "bytes_in_use": 400}

    assert memory.device_memory() is None or jax.default_backend() != "cpu"
    monkeypatch.setattr(jax, "local_devices", lambda: [Device(), Device()])
    assert memory.device_memory() == 600
    with pytest.raises(ValueError, match="of device memory are available"):
        check_n_particles(1000, 2, 10_000)


@pytest.fixture
def no_maps_left(tmp_path, monkeypatch):
    """A process that has used all of its memory maps."""
    (tmp_path / "limit").write_text("10\n")
    monkeypatch.setattr(memory, "CONFIG", replace(memory.CONFIG, map_limit=tmp_path / "limit"))


def n_compiled(fn):
    return fn._cache_size()


def test_compiled_programs_are_dropped_when_maps_run_out(no_maps_left):
    fn = jax.jit(lambda x: x + 1)
    fn(jnp.zeros(3))
    assert n_compiled(fn) == 1
    assert clear_caches_if_full()
    assert n_compiled(fn) == 0
    assert float(fn(jnp.zeros(3))[0]) == 1


def test_compiled_programs_are_kept_while_maps_are_left(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "CONFIG", replace(memory.CONFIG, max_programs=10**6))
    fn = jax.jit(lambda x: x + 2)
    fn(jnp.zeros(3))
    assert not clear_caches_if_full(1.0)
    assert n_compiled(fn) == 1
    monkeypatch.setattr(memory, "CONFIG", replace(memory.CONFIG, map_limit=tmp_path / "missing"))
    assert not clear_caches_if_full(0.0)


def test_programs_that_were_not_called_for_long_are_dropped(monkeypatch):
    fn = jit(lambda x: x + 3)
    for size in range(1, 6):
        fn(np.zeros(size))
    fn(np.zeros(1))
    others = n_programs() - 5
    monkeypatch.setattr(memory, "CONFIG", replace(memory.CONFIG, max_programs=others + 5))
    assert not clear_caches_if_full(1.0)
    # The two programs called last remain, out of five of this function and those of others, which were called before.
    monkeypatch.setattr(memory, "CONFIG", replace(memory.CONFIG, max_programs=2, kept_share=1.0))
    assert clear_caches_if_full(1.0)
    sizes = sorted(key[1][0][0] for key, _ in fn.program.items())
    assert sizes == [(1,), (5,)]
    assert n_programs() == 2
    assert float(fn(np.zeros(3))[0]) == 3.0


def test_maps_are_counted_once_per_interval(no_maps_left):
    """Counting them takes long compared with a small calibration."""
    assert clear_caches_if_full()
    assert not clear_caches_if_full(min_interval=60.0)
    assert clear_caches_if_full()


def test_calibrate_counts_maps_first(monkeypatch):
    """Before anything is compiled, so that a loop over shapes does not run out of maps."""
    intervals = []
    monkeypatch.setattr(
        sys.modules["calibayes.calibrate"], "clear_caches_if_full", lambda min_interval: intervals.append(min_interval)
    )
    with pytest.raises(ValueError, match="level"):
        cb.calibrate(MODEL, cb.datasets.median_regression(20), level=2.0, seed=0)
    assert intervals == [1.0]
