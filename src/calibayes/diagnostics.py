"""Diagnostics of calibrations, Markov chains, importance weights and populations of particles.

Every result has a `Status` and a list of `Diagnostic`, each with a `Code` and a `Severity`. The functions assess draws
of any origin:

- `multi_ess` and `smallest_ess`: effective sample size of a Markov chain.
- `pareto_k` and `pareto_k_limit`: reliability of importance weights.
- `r_hat` and `population_ess`: agreement of independent populations.
"""

from calibayes._core.convergence import multi_ess as multi_ess
from calibayes._core.convergence import pareto_k as pareto_k
from calibayes._core.convergence import pareto_k_limit as pareto_k_limit
from calibayes._core.convergence import population_ess as population_ess
from calibayes._core.convergence import r_hat as r_hat
from calibayes._core.convergence import smallest_ess as smallest_ess
from calibayes._core.status import Code as Code
from calibayes._core.status import Diagnostic as Diagnostic
from calibayes._core.status import Severity as Severity
from calibayes._core.status import Status as Status
