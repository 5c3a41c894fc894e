"""The limit on temperature steps of `SMC`."""

import jax

import calibayes as cb
from calibayes.samplers.initial import initial_draws
from targets import gamma_target


def test_number_of_temperature_steps_is_limited():
    target, *_ = gamma_target(n=12)
    sampler = cb.SMC(n_particles=200, ess_target=0.9999, max_steps=3)
    initial = initial_draws(jax.random.key(1), target, 1.0, 1000, None)
    state = sampler.init(jax.random.key(0), target, initial, 1.0)
    state = sampler.move(target, state, 5.0, lambda share: None)
    info = sampler.info(state, 5.0)
    assert info.steps == 3
    assert info.not_reached.all()
