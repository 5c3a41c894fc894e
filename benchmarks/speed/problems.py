"""The two problems of the paper and the sizes of the benchmark."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

import calibayes as cb


class Sizes(NamedTuple):
    """Sizes of a benchmark run; the defaults are those of a full run."""

    quick: bool = False
    replicates: int = 500
    particles: int = 1000
    svm_particles: int = 4000
    """Particles of GPC-SMC on the SVM in the paper."""
    large: int = 1600
    """Observations of median regression where the risk engine is measured alone."""
    middle: int = 400
    """Observations of median regression in whole calibrations."""
    draws: int = 5000
    """Draws of the peers' random walks."""
    chain: int = 20_000
    """Draws of GPC-MCMC."""
    doublings: int = 2
    """How often each size is doubled to measure scaling."""
    repeats: int = 7


QUICK = Sizes(
    quick=True,
    replicates=100,
    particles=500,
    svm_particles=500,
    large=400,
    middle=100,
    draws=1000,
    chain=2000,
    doublings=1,
    repeats=3,
)


class Data(NamedTuple):
    """A model and its data."""

    name: str
    model: cb.GibbsModel
    x: np.ndarray
    y: np.ndarray

    @property
    def description(self) -> str:
        return f"{self.name}, N {len(self.y):,}"


def median_regression(n: int, dim: int = 2) -> Data:
    """Return the median regression of the paper; further columns are normal noise."""
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    x, y = cb.datasets.median_regression(n)
    noise = np.random.default_rng(0).normal(size=(n, max(dim - 2, 0)))
    return Data("median regression", model, np.column_stack([x, noise]), y)


def heart_disease() -> Data:
    """Return the support vector machine of the paper."""
    model = cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0))
    return Data("heart disease SVM", model, *cb.datasets.heart_disease())


def bootstrap_counts(n: int, n_replicates: int, seed: int = 0) -> Int[np.ndarray, "B N"]:
    """Return bootstrap counts, the same for all methods that are compared."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=n_replicates)
