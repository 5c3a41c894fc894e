"""Problems without an answer: an error or a status that names the cause, soon and not after minutes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.coordinates import Coordinates
from calibayes._core.precision import PrecisionCheck, PrecisionError
from calibayes._core.target import make_target
from calibayes._validate.data import check_data
from calibayes._validate.settings import check_bootstrap
from calibayes._validate.start import check_initial_draws, check_initial_risk

RNG = np.random.default_rng(5)
N = 40
X = np.column_stack([np.ones(N), RNG.normal(size=N)])
Y = X @ [1.0, 2.0] + RNG.normal(size=N)
NORMAL = cb.priors.Normal(scale=100.0)
SMALL = {"bootstrap": 100, "sampler": cb.Transport(n_particles=200, audit=True), "progress": False}


def model(loss=None, prior=NORMAL, **options):
    return cb.GibbsModel(loss or cb.losses.Quantile(0.5), prior, **options)


class UserPrior:
    """A standard normal prior whose density or bounds are replaced."""

    def __init__(self, log_prob=lambda theta: -0.5 * jnp.square(theta).sum(), **attributes):
        self.log_prob = log_prob
        vars(self).update(attributes)

    def sample(self, key, shape):
        return jax.random.normal(key, shape)


# Priors


@pytest.mark.parametrize("value", [jnp.nan, -jnp.inf, jnp.inf])
def test_prior_without_density_at_its_draws_is_rejected(value):
    prior = UserPrior(lambda theta: value + 0.0 * theta.sum())
    with pytest.raises(ValueError, match=r"64 of 64 draws of prior.sample"):
        check_initial_draws(None, prior, 2)


def test_prior_with_a_few_draws_outside_its_support_is_accepted():
    prior = UserPrior(lambda theta: jnp.where(theta[0] > -1.0, -0.5 * theta[0] ** 2, -jnp.inf))
    assert check_initial_draws(None, prior, 2) is None


def test_draws_outside_the_support_of_the_prior_are_rejected():
    prior = UserPrior(lambda theta: jnp.where(theta[0] > 0.0, 0.0, -jnp.inf))
    target = make_target(model(prior=prior), (X, Y), np.ones((2, N)), 2)
    with pytest.raises(ValueError, match=r"prior.log_prob.*of 100 draws"):
        check_initial_risk(target, RNG.normal(size=(100, 2)))


@pytest.mark.parametrize(
    "bounds",
    [3, "ab", (0.0,), (0.0, 1.0, 2.0), (1.0, 0.0), (0.0, 0.0), (np.nan, 1.0), ([0.0] * 3, 1.0), (None, 1.0), (0, "x")],
)
def test_invalid_bounds_are_rejected_by_name(bounds):
    with pytest.raises(ValueError, match=r"prior.bounds must be a pair"):
        check_data(model(prior=UserPrior(bounds=bounds)), (X, Y), None)


@pytest.mark.parametrize("bounds", [None, (0, 1), ([0.0, -np.inf], np.inf), np.array([[0.0, 0.0], [1.0, 2.0]])])
def test_valid_bounds_are_accepted(bounds):
    Coordinates.from_prior(UserPrior(bounds=bounds), 2)


# Counts


@pytest.mark.parametrize("factor", [1e30, 1e6, 1e-30])
def test_counts_of_another_size_than_the_data_are_rejected(factor):
    counts = np.ones((30, N))
    counts[3] *= factor
    with pytest.raises(ValueError, match=r"counts of replicate 3 sum to .* 40 observations"):
        check_bootstrap(counts, N, 100)


def test_counts_of_a_small_bootstrap_are_accepted():
    counts = np.zeros((30, 1000))
    counts[:, 0] = 1.0
    check_bootstrap(counts, 1000, 100)


# Data that are fitted exactly


@pytest.mark.filterwarnings("ignore:X. its columns are collinear")
@pytest.mark.parametrize("loss", [cb.losses.Quantile(0.5), cb.losses.Squared(), cb.losses.Logistic()])
@pytest.mark.parametrize("n", [6, 8])
def test_as_many_parameters_as_observations_and_a_wide_prior_are_rejected(loss, n):
    x = RNG.normal(size=(n, 8))
    with pytest.raises(ValueError, match=f"{n} observations do not determine 8 parameters"):
        check_data(model(loss), (x, np.sign(x[:, 0])), None)


@pytest.mark.filterwarnings("ignore:X. its columns are collinear")
def test_prior_may_determine_what_observations_do_not():
    x = RNG.normal(size=(6, 8))
    check_data(model(prior=cb.priors.Normal(scale=0.5)), (x, x[:, 0]), None)
    check_data(model(prior=UserPrior()), (x, x[:, 0]), None)


@pytest.mark.parametrize("y", [X @ [1e-3, 2.0], np.ones(N), np.zeros(N), 1e-30 * X[:, 1]])
def test_exact_fit_is_rejected(y):
    with pytest.raises(ValueError, match="fitted exactly by the columns of X"):
        check_data(model(), (X, y), None)


def test_prior_that_cannot_be_sampled_is_not_asked_for_its_width():
    """An exact fit is then accepted: the prior may determine the parameters, as it does if it is narrow."""

    class Unsampled:
        def log_prob(self, theta):
            return -0.5 * jnp.square(theta).sum()

    with pytest.raises(ValueError, match="fitted exactly"):
        check_data(model(), (X, X @ [1.0, 2.0]), None)
    check_data(model(prior=Unsampled()), (X, X @ [1.0, 2.0]), None)


@pytest.mark.parametrize("size", [1.0, 1e3])
def test_exact_fit_of_all_but_one_observation_is_named(size):
    """The median regression of every replicate is the same, and no learning rate is too large but for the floats."""
    y = X @ [1.0, 2.0] + size * (np.arange(N) == N - 1)
    with pytest.raises(ValueError, match=r"float64.* X .*determines? most values of y"):
        cb.calibrate(model(), (X, y), seed=0, **SMALL)


@pytest.mark.parametrize("noise", [1e-12, 1.0])
def test_inexact_fit_is_accepted(noise):
    check_data(model(), (X, X @ [1.0, 2.0] + noise * (np.arange(N) == N - 1)), None)


def test_identical_labels_are_no_exact_fit():
    check_data(model(cb.losses.Logistic()), (X, np.sign(X[:, 1])), None)


# Losses


@pytest.mark.parametrize("sampler", [cb.Transport(n_particles=200), cb.SMC(n_particles=200)])
def test_constant_loss_is_named(sampler):
    constant = model(lambda theta, y: 3.0 + 0.0 * theta[0] * y, dim=1)
    with pytest.raises(ValueError, match=r"the loss is the same at all of .* it must depend on the parameters"):
        cb.calibrate(constant, Y, **SMALL | {"sampler": sampler})


def test_loss_without_a_lower_bound_is_named():
    falling = model(lambda theta, y: -jnp.abs(y - theta[0]), dim=1)
    with pytest.raises(RuntimeError, match="the loss has no lower bound"):
        cb.calibrate(falling, Y, **SMALL)


# The range of floats


@pytest.mark.parametrize(
    ("x_unit", "y_unit", "name"),
    [
        (1.0, 1e24, "values of y"),
        (1.0, 2.0**-80, "values of y"),
        (1e20, 1.0, "column 1 of X"),
        (1e9, 1e-9, "parameter"),
    ],
)
def test_data_whose_squares_leave_single_precision_are_calibrated_in_double(x_unit, y_unit, name):
    data = (X * [1.0, x_unit], Y * y_unit)
    target = make_target(model(), data, np.ones((2, N)), 2)
    with pytest.raises(PrecisionError, match=name):
        PrecisionCheck(model(), data).check_range(target)
    with jax.enable_x64(True):
        PrecisionCheck(model(), data).check_range(target)


@pytest.mark.parametrize("scale", [1e20, 1e-20, [1.0, 1e25]])
def test_priors_whose_squared_scales_leave_single_precision_are_used_in_double(scale):
    wide = model(prior=cb.priors.Normal(scale=scale))
    target = make_target(wide, (X, Y), np.ones((2, N)), 2)
    with pytest.raises(PrecisionError, match="scales of the prior"):
        PrecisionCheck(wide, (X, Y)).check_range(target)


def test_usual_units_are_calibrated_in_single_precision():
    for loss, unit in [(cb.losses.Quantile(0.5), 1e12), (cb.losses.Squared(), 1e6), (cb.losses.Squared(), 1e-6)]:
        data = (X, Y * unit)
        PrecisionCheck(model(loss), data).check_range(make_target(model(loss), data, np.ones((2, N)), 2))


def test_eta_of_data_beyond_single_precision_scales_with_the_unit():
    usual = cb.calibrate(model(), (X, Y), seed=0, **SMALL)
    prior = cb.priors.Normal(scale=1e26)
    result = cb.calibrate(model(prior=prior), (X, 1e24 * Y), seed=0, **SMALL)
    assert result.converged
    assert cb.Code.DOUBLE_PRECISION in {finding.code for finding in result.diagnostics}
    assert result.eta * 1e24 == pytest.approx(usual.eta, rel=0.2)


def test_prior_far_too_narrow_for_the_data_is_named():
    with pytest.raises(ValueError, match="Use a prior that agrees with the data"):
        cb.calibrate(model(), (X, 1e24 * Y), **SMALL)


# Separable classes


@pytest.mark.filterwarnings("ignore::calibayes.NotConvergedWarning")
def test_separable_classes_end_without_a_second_sampler():
    result = cb.calibrate(model(cb.losses.Hinge()), (X, np.sign(X[:, 1])), **SMALL | {"bootstrap": 40})
    assert result.status is cb.Status.NO_CROSSING
    codes = [finding.code for finding in result.diagnostics]
    assert codes == [cb.Code.FEW_OBSERVATIONS, cb.Code.NO_CROSSING, cb.Code.NOT_AUDITED]


# Debugging options of JAX


@pytest.mark.parametrize("option", [jax.debug_nans, jax.debug_infs, jax.disable_jit])
def test_debugging_options_do_not_change_the_result(option):
    usual = cb.calibrate(model(), (X, Y), seed=0, **SMALL)
    with option(True):
        result = cb.calibrate(model(), (X, Y), seed=0, **SMALL)
        intervals = result.intervals()
        assert result.validate().n_replicates == usual.coverage.n_replicates
    assert result.eta == usual.eta
    np.testing.assert_array_equal(intervals.bounds, usual.intervals().bounds)
