"""A loss of a linear prediction: log-cosh, a smooth version of the absolute error."""

import jax
import jax.numpy as jnp

import calibayes as cb
from calibayes.losses import LinearLoss


class LogCosh(LinearLoss):
    """Quadratic for residuals below `width`, linear above."""

    location = True  # depends on y - prediction only
    convex = True  # with a log-concave prior, the posterior has one mode
    width: jax.Array  # an array field: another value does not recompile anything

    def __init__(self, width=1.0):
        self.width = jnp.asarray(width, float)

    def rho(self, prediction, y):
        scaled = (y - prediction) / self.width
        return self.width * jnp.logaddexp(scaled, -scaled)


def main():
    model = cb.GibbsModel(LogCosh(0.5), cb.priors.Normal(scale=100.0))
    return cb.calibrate(model, cb.datasets.median_regression(n=60, seed=0), bootstrap=200, seed=0)


if __name__ == "__main__":
    print(main())
