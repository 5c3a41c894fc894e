"""The start of the SMC sampler."""

import jax
import jax.numpy as jnp
import numpy as np

import calibayes as cb
from calibayes._core.target import make_target
from calibayes.samplers import smc

MODEL = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))


def test_only_unmixed_replicates_are_tempered_from_the_prior(monkeypatch):
    sampler = cb.SMC(n_particles=200)
    counts = np.random.default_rng(0).multinomial(60, np.full(60, 1 / 60), size=8)
    target = make_target(MODEL, cb.datasets.median_regression(60), counts, 2)
    initial = sampler.draw_initial(jax.random.key(1), target, 0.8, None)
    rejuvenate_until_mixed, temper_from_prior, states = smc.rejuvenate_until_mixed, smc.temper_from_prior, {}

    def rejuvenate(*args, **options):
        states["rejuvenated"], mixed = rejuvenate_until_mixed(*args, **options)
        return states["rejuvenated"], jnp.arange(len(mixed)) != 3

    def temper(*args):
        states["tempered"] = temper_from_prior(*args)
        return states["tempered"]

    monkeypatch.setattr(smc, "rejuvenate_until_mixed", rejuvenate)
    monkeypatch.setattr(smc, "temper_from_prior", temper)
    state = sampler.init(jax.random.key(0), initial.target, initial, 0.8)
    theta, rejuvenated, tempered = (
        np.asarray(s.particles.theta) for s in (state, states["rejuvenated"], states["tempered"])
    )
    np.testing.assert_array_equal(theta[:, 3], tempered[:, 3])
    np.testing.assert_array_equal(np.delete(theta, 3, 1), np.delete(rejuvenated, 3, 1))
    assert np.all(state.mixed)
