"""Diagnostics of Markov chains, importance weights and populations of particles."""

from calibayes._core.convergence import min_ess as min_ess
from calibayes._core.convergence import multi_ess as multi_ess
from calibayes._core.convergence import pareto_k as pareto_k
from calibayes._core.convergence import pareto_k_limit as pareto_k_limit
from calibayes._core.convergence import population_ess as population_ess
from calibayes._core.convergence import r_hat as r_hat
