"""Minimisers of the population risk and Wald sets, against closed forms."""

from statistics import NormalDist

import jax
import numpy as np
import pytest

import calibayes as cb
from studies import misspecified as study
from studies.names import ERRORS

PHI = NormalDist().cdf


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("loss", study.LOSSES)
def test_expected_score_is_zero_at_the_truth(error, loss):
    """The mean score of 400,000 observations has a standard error of its SD / 632; tolerance of five of these."""
    x, y = study.draw(error, 400_000, 0)
    theta = np.array(study.truth(error, loss))
    score = study.SCORES[loss](y - x @ theta)[:, None] * x
    assert (np.abs(score.mean(0)) < 5 * score.std(0) / np.sqrt(len(y))).all()


@pytest.mark.parametrize("loss", study.LOSSES)
def test_scores_are_derivatives_of_the_losses(loss):
    residuals = np.array([-3.0, -0.7, 0.4, 2.0])
    slopes = np.array(
        [-jax.grad(lambda a, e=e: study.LOSSES[loss].rho(a, jax.numpy.float32(e)))(0.0) for e in residuals]
    )
    ratios = slopes / study.SCORES[loss](residuals)
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-5)
    assert ratios[0] > 0


def test_truth_under_contamination():
    assert study.truth("contaminated", "squared")[0] == pytest.approx(2.5, abs=1e-6)
    median = study.truth("contaminated", "quantile")[0] - 2
    assert 0.9 * PHI(median) + 0.1 * PHI(median - 5) == pytest.approx(0.5, abs=1e-4)
    assert 2 + median < study.truth("contaminated", "huber")[0] < 2.5


@pytest.mark.slow
def test_wald_sets_agree_with_hc0():
    """Least squares with a flat prior: the sandwich is White's HC0, up to the Monte Carlo error of the draws.

    With 20,000 draws the covariances in the influences have an error of 1 / sqrt(20,000) = 0.7%, and so has the mean.
    """
    x, y = study.draw("heteroscedastic", 200, 3)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=100.0))
    result = cb.calibrate(model, (x, y), bootstrap=100, sampler="transport", seed=0, progress=False)
    bread = np.linalg.inv(x.T @ x)
    fit = bread @ x.T @ y
    meat = (x * (y - x @ fit)[:, None] ** 2).T @ x
    covariance = bread @ meat @ bread
    theta = np.array([2.0, 1.0])
    difference = theta - fit
    levels = study._wald_levels(result, (2.0, 1.0))
    distance = difference @ np.linalg.solve(covariance, difference)
    assert levels["ellipsoid"] == pytest.approx(1 - np.exp(-distance / 2), abs=0.02)
    assert levels["slope"] == pytest.approx(2 * PHI(abs(difference[1]) / covariance[1, 1] ** 0.5) - 1, abs=0.02)
