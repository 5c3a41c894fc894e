"""Modes that no particle visited are found from draws at smaller learning rates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.target import evaluate, make_target
from calibayes.samplers.audit import audit
from calibayes.samplers.unvisited import CONFIG, unvisited_log_densities

GAP, N, B, M, ETA = 4.0, 40, 60, 400, 4.0


@pytest.fixture(scope="module")
def problem():
    """A bounded loss and two clusters of data; replicates in which the smaller cluster is the larger one."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(-GAP, 0.5, 24), rng.normal(GAP, 0.5, 16)])
    counts = rng.multinomial(N, np.full(N, 1 / N), size=B).astype(float)
    model = cb.GibbsModel(
        lambda theta, y: 1 - jnp.exp(-0.5 * jnp.square(y - theta[0])), cb.priors.Normal(scale=3.0), dim=1
    )
    larger = np.concatenate([[False], counts[:, 24:].sum(1) > counts[:, :24].sum(1)])
    assert 2 <= larger.sum() <= 15
    return make_target(model, y, counts, 1), larger


def particles_at(target, modes):
    """Return particles around one mode of each replicate."""
    noise = np.random.default_rng(1).normal(0.0, 0.2, size=(1, B + 1, M))
    return evaluate(target, jnp.asarray(modes[:, None] + noise, float))


def test_unvisited_modes_have_a_large_density(problem):
    target, larger = problem
    densities = unvisited_log_densities(jax.random.key(0), target, particles_at(target, np.full(B + 1, -GAP)), ETA)
    assert (densities[larger] > 0).all()
    assert densities[0] < CONFIG.notable


def test_visited_modes_are_not_reported(problem):
    target, larger = problem
    densities = unvisited_log_densities(
        jax.random.key(0), target, particles_at(target, np.where(larger, GAP, -GAP)), ETA
    )
    assert (densities[larger] < 0).all()


def test_replicates_with_unvisited_modes_are_audited(problem):
    target, larger = problem
    particles = particles_at(target, np.full(B + 1, -GAP))
    point = np.array([-GAP], np.asarray(particles.theta).dtype)
    outcome = audit(jax.random.key(0), target, particles, ETA, cb.regions.Interval(0), point)
    audited = np.isin(np.flatnonzero(larger) - 1, outcome.replicates)
    assert audited.sum() >= min(larger.sum(), 10)
    assert outcome.failed
