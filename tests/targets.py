"""Small targets with known posteriors, shared by the tests of kernels and samplers."""

import jax
import jax.numpy as jnp
import numpy as np

import calibayes as cb
from calibayes._core.precision import PrecisionCheck, PrecisionError
from calibayes._core.target import make_target


class Flat:
    """Uniform prior that does not state its bounds, so that particles move in the parameter itself."""

    def log_prob(self, theta):
        return jnp.where(jnp.abs(theta) < 20, -jnp.log(40.0), -jnp.inf).sum()

    def sample(self, key, shape):
        return jax.random.uniform(key, shape, minval=-20.0, maxval=20.0)


def gamma_target(n_replicates=3, n=40, seed=0):
    """Return an asymmetric target in closed form: exponential observations with a log-rate parameter.

    The loss `exp(t) y - t` with a flat prior gives exp(t) ~ Gamma(eta * sum(c), rate eta * sum(c y)) in each replicate.
    Also returns the sums of the counts c and of c y.
    """
    rng = np.random.default_rng(seed)
    y = rng.exponential(0.5, n)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=n_replicates - 1)
    model = cb.GibbsModel(lambda theta, datum: jnp.exp(theta[0]) * datum - theta[0], Flat(), dim=1)
    target = make_target(model, y, counts, 1)
    with_data = np.concatenate([np.ones((1, n)), counts])
    return target, with_data.sum(1), with_data @ y


def log_gamma_moments(shape, rate):
    """Return mean, variance and third central moment of the logarithm of a gamma variable."""
    from scipy.special import digamma, polygamma

    return digamma(shape) - np.log(rate), polygamma(1, shape), polygamma(2, shape)


def gamma_draws(rng, shape, rate, size):
    """Return exact draws of theta of the gamma target, of shape (1, B, M)."""
    draws = rng.gamma(np.asarray(shape)[:, None], 1 / np.asarray(rate)[:, None], (len(shape), size))
    return jnp.asarray(np.log(draws)[None], float)


def svm_target(n_replicates=3):
    """Return the target of the paper's support vector machine."""
    x, y = cb.datasets.heart_disease()
    counts = np.random.default_rng(4).multinomial(len(y), np.full(len(y), 1 / len(y)), size=n_replicates - 1)
    model = cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0))
    return make_target(model, (x, y), counts, x.shape[1])


def assert_log_gamma_moments(particles, eta, total, weighted, inflation=1.0):
    """Check mean, variance and third moment on the gamma target within 4 standard errors of the effective sample size.

    `inflation` multiplies the errors, to allow for resampling and correlated moves.
    """
    weights, theta = np.asarray(particles.weights, float), np.asarray(particles.theta[0], float)
    size = 1 / (weights**2).sum(1)
    mu, var, third = log_gamma_moments(eta * total, eta * weighted)
    m = (weights * theta).sum(1)
    v = (weights * (theta - mu[:, None]) ** 2).sum(1)
    t = (weights * (theta - mu[:, None]) ** 3).sum(1)
    assert (np.abs(m - mu) < inflation * 4 * np.sqrt(var / size)).all()
    assert (np.abs(v / var - 1) < inflation * 4 * np.sqrt(2.5 / size)).all()
    # The variance of the third power of a normal variable is 15 sd^6.
    assert (np.abs(t - third) < inflation * 4 * np.sqrt(15 / size) * var**1.5).all()


class CoarseFloats(PrecisionCheck):
    """Check of the precision that fails at the answer: of the risk, or of the parameters."""

    def __init__(self, name):
        setattr(self, name, self.fail)

    def check_initial(self, target, particles, eta):
        pass

    def check_risk(self, eta):
        pass

    def check_parameters(self, target, particles, eta):
        pass

    def fail(self, *_):
        raise PrecisionError("parameter 0 is near 1. Centre X.")
