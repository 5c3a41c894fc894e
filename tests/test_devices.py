"""Observations and rows shared out over devices: what comes out is what one device finds.

Sums over observations are added up in another order on several devices, which float32 shows in its last digits; rows
are not added up, so that sharing them out changes nothing at all.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend import devices
from calibayes._backend.devices import choose_mesh
from calibayes._backend.jit import together
from calibayes._core.counts import PoissonSpec
from calibayes._core.particles import normalise
from calibayes._core.sandwich import influences, matching_eta, mean_shifts
from calibayes._core.target import Target, evaluate, make_target

N, ROWS, K, M = 101, 10, 3, 24
"""Eleven rows with the data's, and 13 blocks: nothing is divisible by anything."""
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


def target_on(shape, model, stored=True) -> Target:
    rng = np.random.default_rng(1)
    counts = rng.multinomial(N, np.full(N, 1 / N), size=ROWS) if stored else PoissonSpec(jax.random.key(3), ROWS, N)
    with cb.mesh(replicates=shape[0], observations=shape[1]):
        return make_target(MODELS[model], data(), counts, K)


def particles_of(target):
    theta = np.random.default_rng(2).normal(size=(K, target.n_replicates, M))
    return evaluate(target, jnp.asarray(theta, float))


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "drawn"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", MESHES)
def test_risk(shape, model, stored):
    """Float32 sums of 101 losses of order 3: 1e-5 of the largest is far beyond rounding, and far below one loss."""
    one, many = (target_on(s, model, stored) for s in ((1, 1), shape))
    assert one.mesh is None
    assert many.mesh is not None
    assert many.mesh.devices.shape == shape
    expected, got = (np.asarray(particles_of(target).risk) for target in (one, many))
    assert got.shape == (ROWS + 1, M)
    if shape[1] == 1:
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("shape", MESHES)
def test_some_rows(shape):
    """Rows taken out of a target that is shared out, one of them twice, and the data's alone."""
    one, many = (target_on(s, "linear").select(jnp.asarray([0, 7, 7, 3])) for s in ((1, 1), shape))
    np.testing.assert_allclose(particles_of(many).risk, particles_of(one).risk, rtol=1e-5, atol=1e-3)
    one, many = (target_on(s, "linear").replicate(0) for s in ((1, 1), shape))
    np.testing.assert_allclose(particles_of(many).risk, particles_of(one).risk, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "stored"),
    [((1, 4), True), pytest.param((2, 2), False, marks=pytest.mark.slow)],
    ids=["stored", "drawn"],
)
def test_what_else_goes_over_observations(shape, stored):
    """Totals, influences, the shifts and the learning rate that follow from them; and a reference moved."""
    found = []
    for s in ((1, 1), shape):
        target = target_on(s, "linear", stored).recentre(jnp.asarray([0.5, 1.0, -0.5]))
        populations = target.select(jnp.zeros(2, int))
        particles = particles_of(populations)
        particles = particles.with_log_weights(normalise(-0.3 * particles.risk))
        moves = influences(target, particles, jnp.ones(2))
        eta = matching_eta(target, particles, jnp.ones(2))
        found.append((target.totals(), np.asarray(moves)[:, :N], mean_shifts(target, moves), eta))
        # What fills up the last blocks does nothing.
        assert not np.asarray(moves)[:, N:].any()
    for one, many in zip(*found, strict=True):
        np.testing.assert_allclose(many, one, atol=2e-5 * np.abs(one).max(), rtol=0)
    np.testing.assert_allclose(found[1][0][0], N)


def test_a_calibration_shared_out():
    """To one row of coverage: rounding flips an acceptance here and there."""
    options = {"sampler": cb.Transport(n_particles=150), "bootstrap": 61, "region": "box", "progress": False}
    one = cb.calibrate(MODELS["linear"], data(), seed=0, **options)
    with cb.mesh(replicates=2, observations=2):
        many = cb.calibrate(MODELS["linear"], data(), seed=0, **options)
    critical = one.curve.critical_etas()
    assert abs(int((critical < many.eta).sum()) - int((critical < one.eta).sum())) <= 1


def test_which_devices():
    """All of them where it is worth it, observations first; one otherwise."""
    assert len(jax.devices()) == 4
    shape_for = lambda *sizes: None if (mesh := choose_mesh(*sizes)) is None else mesh.devices.shape
    assert shape_for(100_000, 1_600_000, 500) == (1, 4)
    assert shape_for(3 * devices._FEWEST_BLOCKS, 500, 100_000) == (2, 2)
    assert shape_for(5, 80, 1_000_000) == (4, 1)
    assert shape_for(100, 1_600, 500) is None
    with cb.mesh(replicates=3):
        assert shape_for(100, 1_600, 500) == (3, 1)
        with cb.mesh():
            assert shape_for(100_000, 1_600_000, 500) is None
        assert shape_for(100, 1_600, 500) == (3, 1)
    found = []
    together([lambda: found.append(shape_for(100_000, 1_600_000, 500))] * 2, at_once=2)
    assert found == [None, None]


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"rows": 0}, "rows must be a number of devices, at least 1; got 0"),
        ({"observations": -1}, "observations must be a number of devices, at least 1; got -1"),
        ({"rows": 2, "observations": 4}, "a mesh of 2 x 4 needs 8 devices; there are 4"),
    ],
)
def test_no_such_mesh(shape, said):
    with pytest.raises(ValueError, match=said), cb.mesh(**shape):
        pass
