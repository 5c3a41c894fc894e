"""Several devices give the results of one.

Sums over observations are added in another order on several devices, which changes the last digits in float32.
Replicates are not added, so that dividing them between devices changes nothing.
"""

from threading import Thread

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend import devices
from calibayes._backend.devices import choose_mesh, padded_size
from calibayes._core.counts import PoissonSpec
from calibayes._core.particles import normalise
from calibayes._core.sandwich import influences, mean_shifts
from calibayes._core.target import Target, evaluate, make_target

pytestmark = pytest.mark.cpu("four devices of a CPU stand for a mesh")

N, B, K, M = 101, 10, 3, 24
"""Eleven replicates with the data, and 13 blocks: neither is divisible by the number of devices."""
MESHES = [(1, 2), (3, 1), (2, 2), (4, 1), (1, 4)]
PRIOR = cb.priors.Normal(scale=3.0)


def absolute(theta, datum):
    x, y = datum
    return jnp.abs(y - x @ theta)


MODELS = {
    "linear": cb.GibbsModel(cb.losses.Quantile(0.3), PRIOR),
    "generic": cb.GibbsModel(absolute, PRIOR, dim=K),
}


def data():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(N), rng.normal(size=(N, K - 1))])
    return x, x @ [1.0, 2.0, -1.0] + rng.standard_t(3, size=N)


def make_target_on(shape, model, stored=True) -> Target:
    rng = np.random.default_rng(1)
    counts = rng.multinomial(N, np.full(N, 1 / N), size=B) if stored else PoissonSpec(jax.random.key(3), B, N)
    with cb.mesh(replicates=shape[0], observations=shape[1]):
        return make_target(MODELS[model], data(), counts, K)


def make_particles(target):
    theta = np.random.default_rng(2).normal(size=(K, target.n_replicates, M))
    return evaluate(target, jnp.asarray(theta, float))


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "drawn"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", MESHES)
def test_risk_is_that_of_one_device(shape, model, stored):
    """Float32 sums of 101 losses of order 3: 1e-5 of the largest is far above rounding, and far below one loss."""
    one, many = (make_target_on(s, model, stored) for s in ((1, 1), shape))
    assert one.mesh is None
    assert many.mesh is not None
    assert many.mesh.devices.shape == shape
    expected, got = (np.asarray(make_particles(target).risk) for target in (one, many))
    assert got.shape == (B + 1, M)
    if shape[1] == 1:
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("shape", MESHES)
def test_selected_replicates_are_those_of_one_device(shape):
    """Replicates of a distributed target, one of them twice; and the data alone."""
    one, many = (make_target_on(s, "linear").select(jnp.asarray([0, 7, 7, 3])) for s in ((1, 1), shape))
    np.testing.assert_allclose(make_particles(many).risk, make_particles(one).risk, rtol=1e-5, atol=1e-3)
    one, many = (make_target_on(s, "linear").replicate(0) for s in ((1, 1), shape))
    np.testing.assert_allclose(make_particles(many).risk, make_particles(one).risk, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "stored"),
    [((1, 4), True), pytest.param((2, 2), False, marks=pytest.mark.slow)],
    ids=["stored", "drawn"],
)
def test_other_sums_over_observations_are_those_of_one_device(shape, stored):
    """Totals, influences, the mean shifts and the learning rate computed from them, after recentring."""
    results = []
    for s in ((1, 1), shape):
        target = make_target_on(s, "linear", stored).recentre(jnp.asarray([0.5, 1.0, -0.5]))
        populations = target.select(jnp.zeros(2, int))
        particles = make_particles(populations)
        particles = particles.with_log_weights(normalise(-0.3 * particles.risk))
        influence, eta = influences(target, particles, 1.0)
        shifts, relative_totals = mean_shifts(target, influence)
        results.append((relative_totals, np.asarray(influence)[:, :N], shifts, eta))
        # The padding of the last blocks has no influence.
        assert not np.asarray(influence)[:, N:].any()
    for one, many in zip(*results, strict=True):
        np.testing.assert_allclose(many, one, atol=2e-5 * np.abs(one).max(), rtol=0)
    np.testing.assert_allclose(results[1][0][0], 1)


def test_calibration_is_that_of_one_device_up_to_one_replicate():
    """Rounding can change whether a proposal is accepted, and thereby the coverage of a replicate."""
    options = {"sampler": cb.Transport(n_particles=150), "bootstrap": 61, "region": "box", "progress": False}
    one = cb.calibrate(MODELS["linear"], data(), seed=0, **options)
    with cb.mesh(replicates=2, observations=2):
        many = cb.calibrate(MODELS["linear"], data(), seed=0, **options)
    critical = one.curve.critical_etas()
    assert abs(int((critical < many.eta).sum()) - int((critical < one.eta).sum())) <= 1


def test_default_mesh_divides_observations_first():
    """Small problems use one device. A mesh that was chosen in one thread does not apply to others."""
    assert len(jax.devices()) == 4
    shape_for = lambda *sizes: None if (mesh := choose_mesh(*sizes)) is None else mesh.devices.shape
    assert shape_for(100_000, 1_600_000, 500) == (1, 4)
    assert shape_for(3 * devices.CONFIG.min_blocks_per_device, 500, 100_000) == (2, 2)
    assert shape_for(5, 80, 1_000_000) == (4, 1)
    assert shape_for(100, 1_600, 500) is None
    with cb.mesh(replicates=3):
        assert shape_for(100, 1_600, 500) == (3, 1)
        with cb.mesh():
            assert shape_for(100_000, 1_600_000, 500) is None
        assert shape_for(100, 1_600, 500) == (3, 1)
        shapes = []
        thread = Thread(target=lambda: shapes.append(shape_for(100_000, 1_600_000, 500)))
        thread.start()
        thread.join()
        assert shapes == [(1, 4)]


@pytest.mark.parametrize(
    ("n", "on_cpu", "on_gpu"),
    [
        (1, 256, 256),
        (256, 256, 256),
        (400, 1024, 1024),
        (410, 1024, 1024),
        (700, 1024, 1024),
        (1025, 4096, 1280),
        (5000, 8192, 5120),
        (2**16, 2**16, 2**16),
        (2**16 + 1, 5 * 2**14, 5 * 2**14),
        (10**6, 2**20, 2**20),
        (7 * 2**17 + 1, 2**20, 2**20),
    ],
)
def test_data_are_stored_in_a_few_sizes(n, on_cpu, on_gpu, monkeypatch):
    assert padded_size(n) == on_cpu
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert padded_size(n) == on_gpu
    assert n <= 1024 or on_gpu <= 1.25 * n


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"replicates": 0}, "replicates must be a number of devices, at least 1; got 0"),
        ({"observations": -1}, "observations must be a number of devices, at least 1; got -1"),
        ({"replicates": 2, "observations": 4}, "a mesh of 2 x 4 needs 8 devices; 4 are available"),
    ],
)
def test_impossible_meshes_are_rejected(shape, message):
    with pytest.raises(ValueError, match=message), cb.mesh(**shape):
        pass


def test_mesh_over_several_processes_must_use_all_devices(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="a mesh over 2 processes must use all of their 4 devices"), cb.mesh():
        pass


def test_devices_of_different_kinds_are_rejected(monkeypatch):
    class Device:
        def __init__(self, kind):
            self.device_kind = kind

    monkeypatch.setattr(jax, "devices", lambda *_: [Device("fast"), Device("slow")])
    with pytest.raises(RuntimeError, match="must be of one kind"):
        choose_mesh(1000, 10**6, 10**4)
