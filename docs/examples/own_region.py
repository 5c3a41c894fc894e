"""A credible region: all values of one parameter below an upper posterior quantile."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import calibayes as cb
from calibayes.regions import Region


class UpperBound(Region):
    """One-sided interval of the parameter `index`."""

    index: int = eqx.field(static=True)

    def critical_level(self, particles, point):
        below = particles.theta[self.index] < point.theta[self.index]
        return jnp.where(below, particles.weights, 0.0).sum(-1)


def main():
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data = cb.datasets.median_regression(n=60, seed=0)
    return cb.calibrate(model, data, region=UpperBound(1), bootstrap=200, seed=0)


if __name__ == "__main__":
    result = main()
    print(f"95% upper bound of the slope: {np.quantile(result.draws[:, 1], 0.95):.3f}, at eta {result.eta:.2f}")
