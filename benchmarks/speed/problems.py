"""The paper's two problems, and how large a benchmark makes them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

import calibayes as cb


class Sizes(NamedTuple):
    """Of a full run, unless told."""

    quick: bool = False
    rows: int = 500
    particles: int = 1000
    svm_particles: int = 4000
    """Of GPC-SMC on the SVM, in the paper."""
    large: int = 1600
    """Observations of median regression, where the risk engine runs alone."""
    middle: int = 400
    """Where there are whole calibrations."""
    draws: int = 5000
    """Of the peers' random walks."""
    chain: int = 20_000
    """Of GPC-MCMC."""
    doublings: int = 2
    """How far each size is scaled up."""
    repeats: int = 7


QUICK = Sizes(
    quick=True,
    rows=100,
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
    """A model and what it is fitted to."""

    name: str
    model: cb.GibbsModel
    x: np.ndarray
    y: np.ndarray

    @property
    def shape(self) -> str:
        return f"{self.name}, N {len(self.y):,}"


def median_regression(n: int, dim: int = 2) -> Data:
    """The paper's; with more columns, of normal noise."""
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    x, y = cb.datasets.median_regression(n)
    more = np.random.default_rng(0).normal(size=(n, max(dim - 2, 0)))
    return Data("median regression", model, np.column_stack([x, more]), y)


def heart_disease() -> Data:
    model = cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0))
    return Data("heart disease SVM", model, *cb.datasets.heart_disease())


def rows_of(n: int, n_replicates: int, seed: int = 0) -> Int[np.ndarray, "B N"]:
    """Bootstrap counts, the same for all who are compared."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=n_replicates)
