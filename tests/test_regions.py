"""Critical levels of every region against closed forms for a normal posterior."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from calibayes import regions
from calibayes.regions import Point, ReplicateParticles

SD = np.array([0.5, 1.0, 3.0])


def normal_particles(n_replicates, m, seed=0, weighted=False):
    """Draw correlated normal particles on each replicate, or weighted ones from a wider normal distribution."""
    rng = np.random.default_rng(seed)
    root = np.diag(SD) @ np.linalg.cholesky(np.array([[1, 0.6, 0], [0.6, 1, -0.3], [0, -0.3, 1]]))
    z = rng.normal(size=(n_replicates, m, 3)) * (1.3 if weighted else 1.0)
    log_w = -0.5 * (z**2).sum(-1) * (1 - 1.3**-2) if weighted else np.zeros((n_replicates, m))
    weights = np.exp(log_w - log_w.max(1, keepdims=True))
    theta = (z @ root.T).transpose(2, 0, 1)
    density = -0.5 * (z**2).sum(-1)
    as_array = lambda a: jnp.asarray(a, float)
    particles = ReplicateParticles(
        as_array(theta), as_array(weights / weights.sum(1, keepdims=True)), as_array(density)
    )
    return particles, root


def point_at(z, root, n_replicates):
    theta = root @ z
    return Point(jnp.asarray(theta, float), jnp.full(n_replicates, -0.5 * float(z @ z)))


EXACT = {
    "hpd": lambda z, root: stats.chi2(3).cdf(z @ z),
    "ellipsoid": lambda z, root: stats.chi2(3).cdf(z @ z),
    "box": lambda z, root: (2 * stats.norm.cdf(np.abs(root @ z) / SD) - 1).max(),
    "interval": lambda z, root: 2 * stats.norm.cdf(abs((root @ z)[2]) / SD[2]) - 1,
    "functional": lambda z, root: 2 * stats.norm.cdf(abs((root @ z).sum()) / np.sqrt((root.sum(0) ** 2).sum())) - 1,
}
EXACT["linear"] = EXACT["functional"]
REGIONS = {
    "hpd": regions.HPD(),
    "ellipsoid": regions.Ellipsoid(),
    "box": regions.Box(),
    "interval": regions.Interval(2),
    "functional": regions.Functional(lambda theta: theta.sum()),
    "linear": regions.Linear([1.0, 1.0, 1.0]),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("z", [(0.3, -0.8, 0.1), (1.5, 0.4, -1.9), (-0.2, 2.4, 0.7)])
def test_critical_level_matches_closed_form(name, z, weighted):
    """Mean over 40 replicates of 2,000 particles. Tolerance: four Monte Carlo errors and a bias of order 1 / M."""
    particles, root = normal_particles(40, 2000, weighted=weighted)
    z = np.array(z)
    levels = np.asarray(REGIONS[name].critical_level(particles, point_at(z, root, 40)))
    error = levels.std() / np.sqrt(40)
    assert abs(levels.mean() - EXACT[name](z, root)) < 4 * error + 5e-4


def test_ellipsoid_is_not_biased_by_ranking_its_own_particles():
    """Critical levels of points drawn from the posterior itself are uniform on 0, 1/M, ..., 1, also with few particles.

    Over 4,000 replicates the share of at most 56 of 60 has a standard error of 0.0039. An ellipsoid that ranks the
    particles it was fitted to, 60 in 3 dimensions, would miss by about 0.03.
    """
    n_replicates, m = 4000, 60
    rng = np.random.default_rng(3)
    theta = jnp.asarray(rng.normal(size=(3, n_replicates, m + 1)), float)
    flat = jnp.full((n_replicates, m), 1 / m)
    particles = ReplicateParticles(theta[:, :, :m], flat, jnp.zeros((n_replicates, m)))
    # The point is the same on all replicates: shift each replicate so that its own point is the origin.
    shifted = ReplicateParticles(particles.theta - theta[:, :, m:], flat, particles.log_density)
    levels = regions.Ellipsoid().critical_level(shifted, Point(jnp.zeros(3), jnp.zeros(n_replicates)))
    assert abs(float((levels < 56.5 / m).mean()) - 57 / (m + 1)) < 4 * 0.0039


def test_critical_level_of_simultaneous_box_is_its_mass():
    """The critical level of a point is the mass of the box with the point on its boundary."""
    particles, root = normal_particles(20, 20_000)
    rng = np.random.default_rng(9)
    sample = rng.normal(size=(400_000, 3)) @ root.T
    for z in [(0.9, -0.2, 0.4), (-1.8, 0.3, 1.1)]:
        theta = root @ np.array(z)
        c = np.abs(theta / SD).max()
        exact = (np.abs(sample / SD) < c).all(1).mean()
        levels = np.asarray(regions.Simultaneous().critical_level(particles, point_at(np.array(z), root, 20)))
        assert abs(levels.mean() - exact) < 4 * (levels.std() / np.sqrt(20) + np.sqrt(exact * (1 - exact) / 4e5)) + 2e-4
        box = np.asarray(regions.Box().critical_level(particles, point_at(np.array(z), root, 20)))
        assert (box > levels).all()


def test_critical_level_increases_from_the_centre():
    particles, root = normal_particles(5, 2000)
    for region in [*REGIONS.values(), regions.Simultaneous()]:
        path = [
            np.asarray(region.critical_level(particles, point_at(np.full(3, r), root, 5))) for r in (0.0, 0.7, 1.4, 4.0)
        ]
        assert (np.diff(path, axis=0) > -0.02).all()
        assert path[0].max() < 0.08
        assert path[-1].min() > 0.95


def test_ties_count_half_and_plateaus_are_included_completely():
    theta = jnp.asarray([[[0.0, 1.0, 1.0, 2.0]]])
    weights = jnp.full((1, 4), 0.25)
    density = jnp.asarray([[0.0, 1.0, 1.0, 0.0]])
    particles = ReplicateParticles(theta, weights, density)
    assert regions.Interval(0).critical_level(particles, Point(jnp.ones(1), jnp.zeros(1)))[0] == 0.0
    assert regions.HPD().critical_level(particles, Point(jnp.ones(1), jnp.ones(1)))[0] == 0.0
    assert regions.HPD().critical_level(particles, Point(jnp.ones(1), jnp.zeros(1)))[0] == 0.5


def test_invalid_regions_are_rejected():
    assert isinstance(regions.as_region("box"), regions.Box)
    with pytest.raises(ValueError, match="region must be one of hpd"):
        regions.as_region("circle")
    with pytest.raises(ValueError, match="there are 2"):
        regions.Interval(2).check(2)
    with pytest.raises(ValueError, match="scalar"):
        regions.Functional(lambda theta: theta).check(2)


def test_unavailable_region_has_no_critical_level():
    particles, root = normal_particles(5, 20)
    region = regions.UnavailableRegion("Functional")
    levels = np.asarray(region.critical_level(particles, point_at(np.zeros(3), root, 5)))
    assert levels.shape == (5,)
    assert np.isnan(levels).all()
    with pytest.raises(ValueError, match="region Functional of a loaded result is known only by its name"):
        region.check(3)
