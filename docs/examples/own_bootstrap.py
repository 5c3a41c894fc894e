"""A bootstrap: random halves of the data, each observation counted twice."""

import jax
import jax.numpy as jnp

import calibayes as cb
from calibayes.bootstrap import Bootstrap


class Halves(Bootstrap):
    """Half of the observations, drawn without replacement. The base class has the field `n_replicates`."""

    def replicate(self, key, n):
        return jnp.where(jax.random.permutation(key, n) < n // 2, 2.0, 0.0)


def main():
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    return cb.calibrate(model, cb.datasets.median_regression(n=60, seed=0), bootstrap=Halves(200), seed=0)


if __name__ == "__main__":
    print(main())
