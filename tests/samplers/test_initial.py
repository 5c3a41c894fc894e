"""Tempering from the prior gives draws of the posterior."""

import pytest

from calibayes.samplers.initial import temper_from_prior
from targets import assert_log_gamma_moments, gamma_target


@pytest.mark.parametrize("eta", [0.05, 3.0])
def test_tempering_from_the_prior_is_exact(eta, key):
    target, total, weighted = gamma_target(n=12)
    state = temper_from_prior(key, target, eta, 4000)
    assert_log_gamma_moments(state.particles, eta, total, weighted, inflation=1.5)
