"""Simulation-based calibration: true parameters rank uniformly among posterior draws (Talts et al. 2018).

Parameters are drawn from the prior and data from the model. A sampler draws from the posterior of a bootstrap replicate
at the learning rate at which the generalized posterior is the exact posterior. The rank of each true parameter, and of
its risk, among 99 independent draws is then uniform on 0, ..., 99. Chains are thinned to 99 draws; particles are
resampled to 99 by their weights.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import stats

import calibayes as cb
from benchmarks.validate.models import MODELS, Model, stack
from calibayes._backend.memory import clear_caches_if_full
from calibayes._core.particles import Particles
from calibayes._core.target import Target, evaluate, make_target
from calibayes.bootstrap import Multinomial
from calibayes.kernels import Kernel
from calibayes.samplers import Sampler

DRAWS = 99
BINS = 10
OBSERVATIONS = 16
SETS_SEQUENTIAL, SETS_STACKED = 100, 500
"""Number of data sets, if each has its own target and if they are replicates of one."""
_SETS_PER_STACK = 25
_REPLICATES = 4


class Ranks(NamedTuple):
    """Ranks of the true parameters among the draws of a sampler."""

    sampler: str
    model: str
    ranks: np.ndarray
    """Shape (data sets, parameters and risk)."""

    def tests(self) -> list[dict[str, Any]]:
        """Return a p-value for each quantity, by a chi-squared test on ten bins of ranks."""
        names = [f"parameter {k}" for k in range(self.ranks.shape[1] - 1)] + ["risk"]
        return [
            {"sampler": self.sampler, "model": self.model, "quantity": name, "p": p_value(ranks), "n": len(ranks)}
            for name, ranks in zip(names, self.ranks.T, strict=True)
        ]


def p_value(ranks: np.ndarray) -> float:
    """Return the p-value of the chi-squared test that ranks are uniform."""
    counts = np.bincount(ranks * BINS // (DRAWS + 1), minlength=BINS)
    return float(stats.chisquare(counts).pvalue)


def compute_ranks(seed: int, particles: Particles, truth: Particles, thin: bool) -> np.ndarray:
    """Return the ranks of the true parameters and risks of each replicate.

    Ranks are computed in unconstrained coordinates, whose order is that of the parameters. Ties, such as risks of zero,
    are broken at random.
    """
    rng = np.random.default_rng(seed)
    values = np.concatenate([particles.theta, particles.risk[None]])
    true_values = np.concatenate([truth.theta, truth.risk[None]])
    n_replicates, size = particles.risk.shape
    ranks = np.empty((n_replicates, len(values)), int)
    weights = np.asarray(particles.weights, np.float64)
    for b in range(n_replicates):
        thinned = (np.arange(1, DRAWS + 1) * size) // DRAWS - 1
        picked = thinned if thin else rng.choice(size, DRAWS, p=weights[b] / weights[b].sum())
        ties = (values[:, b, picked] == true_values[:, b]).sum(-1)
        ranks[b] = (values[:, b, picked] < true_values[:, b]).sum(-1) + rng.integers(0, ties + 1)
    return ranks


def stacked_ranks(name: str, sampler: Sampler, model: Model, n_sets: int, thin: bool, seed: int) -> Ranks:
    """Rank on data sets that are replicates of one target.

    A sampler of weighted particles starts at another learning rate and moves to the model's, to include that move.
    """
    ranks = []
    for part in range(-(-n_sets // _SETS_PER_STACK)):
        part_seed = 1000 * seed + part
        problem = stack(model, part_seed, _SETS_PER_STACK, OBSERVATIONS)
        keys = jax.random.split(jax.random.key(part_seed + 500), 2)
        eta_init = model.eta if thin else 0.5 * model.eta
        sampler.check(problem.target)
        initial = sampler.draw_initial(keys[0], problem.target, eta_init, None)
        state = sampler.init(keys[1], initial.target, initial, eta_init)
        if not thin:
            state = sampler.move(initial.target, state, model.eta, lambda _: None)
        ranks.append(compute_ranks(part_seed, state.particles, _truth(initial.target, problem.theta), thin))
    return Ranks(name, model.name, np.concatenate(ranks))


def sequential_ranks(name: str, sampler: Sampler, model: Model, n_sets: int, seed: int) -> Ranks:
    """Rank on one data set after another, each with further bootstrap replicates beside the one that is ranked."""
    ranks = []
    for part in range(n_sets):
        part_seed = 1000 * seed + part
        problem = stack(model, part_seed, 1, 2 * OBSERVATIONS)
        data = (problem.x[0], np.asarray(problem.y[0], np.float64))
        keys = jax.random.split(jax.random.key(part_seed + 500), 3)
        others = np.asarray(Multinomial(_REPLICATES - 1).counts(keys[2], 2 * OBSERVATIONS))
        target = make_target(model.gibbs, data, np.concatenate([problem.counts, others]), model.dim)
        initial = sampler.draw_initial(keys[0], target, None, None)
        state = sampler.init(keys[1], initial.target, initial, model.eta)
        state = sampler.refine(initial.target, state, lambda _: None)
        truth = _truth(initial.target.replicate(1), problem.theta)
        ranks.append(compute_ranks(part_seed, state.particles.replicate(1), truth, thin=False))
    return Ranks(name, model.name, np.concatenate(ranks))


def _truth(target: Target, theta: jax.Array) -> Particles:
    return evaluate(target, target.coordinates.unconstrain(theta.T[:, :, None]))


def _smc(kernel: Kernel) -> Sampler:
    return cb.SMC(n_particles=300, ess_target=0.9, kernel=kernel)


SAMPLERS: dict[str, Sampler] = {
    "transport": cb.Transport(n_particles=400),
    "SMC, random walk": _smc(cb.kernels.RWMH()),
    "SMC, Crank-Nicolson": _smc(cb.kernels.CrankNicolson()),
    "MCMC, RAM": cb.MCMC(n_draws=40 * DRAWS, n_warmup=1000),
    "MCMC, Polson-Scott": cb.MCMC(n_draws=12 * DRAWS, n_warmup=100, kernel=cb.kernels.PolsonScott()),
}


def ranks(name: str, model: Model, n_sets: int) -> Ranks:
    """Rank the true parameters of a model among a sampler's draws; every sampler has its own data sets."""
    sampler, seed = SAMPLERS[name], list(SAMPLERS).index(name)
    if isinstance(sampler, cb.Transport):
        return sequential_ranks(name, sampler, model, n_sets, seed)
    return stacked_ranks(name, sampler, model, n_sets, isinstance(sampler, cb.MCMC), seed)


def run() -> list[dict[str, Any]]:
    """Test every sampler on every model that it supports."""
    results = []
    for name, sampler in SAMPLERS.items():
        for model in MODELS.values():
            if "Polson" in name and model.normaliser is None:
                continue
            clear_caches_if_full()
            n_sets = SETS_SEQUENTIAL if isinstance(sampler, cb.Transport) else SETS_STACKED
            tests = ranks(name, model, n_sets).tests()
            print(name, model.name, *(f"{test['p']:.3f}" for test in tests), flush=True)
            results += tests
    return results
