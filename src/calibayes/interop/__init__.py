"""Priors and draws from other libraries. For NumPyro models see `GibbsModel.from_numpyro`."""

from calibayes.interop.density import LogDensity
from calibayes.interop.draws import draws_from

__all__ = ["LogDensity", "draws_from"]
