"""Floats that are too coarse for a posterior."""

import numpy as np
import pytest

import calibayes as cb
from calibayes._backend.functions import as_float
from calibayes._core.particles import Particles
from calibayes._core.precision import PrecisionCheck, PrecisionError, double_precision, is_double
from calibayes._core.target import make_target

N = 40


def check(constant, eta=1.0, location=0.0):
    """Check a normal mean, with a constant in the loss or far from zero, at draws of its posterior."""
    y = location + np.random.default_rng(0).normal(size=N)
    model = cb.GibbsModel(lambda theta, y: constant + 0.5 * (y - theta[0]) ** 2, cb.priors.Normal(scale=1e9), dim=1)
    target = make_target(model, y, np.ones((1, N)), 1)
    theta = as_float(y.mean() + np.random.default_rng(1).normal(size=(1, 1, 100)) / np.sqrt(eta * N))
    target = target.recentre(as_float([y.mean()]))
    particles = Particles(theta, *3 * [theta[0]])
    checked = PrecisionCheck(model, y)
    checked.check_initial(target, particles, eta)
    return checked


def test_small_risks_pass_until_the_learning_rate_is_large():
    checked = check(0.0)
    checked.check_risk(1e3)
    with pytest.raises(PrecisionError, match="rounds eta"):
        checked.check_risk(1e9)


@pytest.mark.parametrize(("constant", "double"), [(1e7, False), (1e16, True)])
def test_large_constants_of_the_loss_are_rejected(constant, double):
    with double_precision(double):
        assert is_double() == double
        name = "float64" if double else "float32"
        with pytest.raises(PrecisionError, match=f"{name} rounds .* subtract from the loss the part"):
            check(constant)


def test_constant_that_float32_cannot_hold_passes_in_double_precision():
    with double_precision(True):
        check(1e7)


@pytest.mark.parametrize(("location", "double"), [(1e6, False), (1e15, True)])
def test_parameters_far_from_zero_are_rejected(location, double):
    with double_precision(double), pytest.raises(PrecisionError, match="too narrow for float"):
        check(0.0, location=location)
