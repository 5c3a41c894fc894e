"""Models, priors and draws from elsewhere: NumPyro's models, any log-density, draws of other samplers."""

from calibayes.interop.density import LogDensity as LogDensity
from calibayes.interop.draws import draws_from as draws_from
