"""Simulation-based calibration (Talts et al. 2018): parameters that data came from rank evenly among posterior draws.

Parameters from the prior, data from the model, draws by a sampler on a bootstrap row at the learning rate that makes
the generalized posterior the posterior. The rank of each parameter, and that of the risk, among 99 draws is uniform on
0 to 99, if the draws are independent. Chains are thinned to 99; of particles 99 are drawn by their weights.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import stats

import calibayes as cb
from benchmarks.validate.models import MODELS, Model, stack
from calibayes._backend.room import make_room
from calibayes._core.particles import Particles
from calibayes._core.target import Target, evaluate, make_target
from calibayes.bootstrap import Multinomial
from calibayes.samplers import Sampler

DRAWS = 99
BINS = 10
OBSERVATIONS = 16
ONE_BY_ONE, SIDE_BY_SIDE = 100, 500
"""Datasets, by how they are done."""
_AT_ONCE = 25
_ROWS = 4


class Ranks(NamedTuple):
    sampler: str
    model: str
    ranks: np.ndarray
    """(datasets, parameters and risk)"""

    def tests(self) -> list[dict[str, Any]]:
        """A p-value for each quantity: chi-squared on ten bins of ranks."""
        names = [f"parameter {k}" for k in range(self.ranks.shape[1] - 1)] + ["risk"]
        return [
            {"sampler": self.sampler, "model": self.model, "what": name, "p": p_value(ranks), "n": len(ranks)}
            for name, ranks in zip(names, self.ranks.T, strict=True)
        ]


def p_value(ranks: np.ndarray) -> float:
    counts = np.bincount(ranks * BINS // (DRAWS + 1), minlength=BINS)
    return float(stats.chisquare(counts).pvalue)


def ranks_of(seed: int, particles: Particles, truth: Particles, thin: bool) -> np.ndarray:
    """Of the truth on every row, parameters as coordinates, whose order is theirs."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([particles.theta, particles.risk[None]])
    at = np.concatenate([truth.theta, truth.risk[None]])
    n_replicates, size = particles.risk.shape
    found = np.empty((n_replicates, len(values)), int)
    weights = np.asarray(particles.weights, np.float64)
    for b in range(n_replicates):
        evenly = (np.arange(1, DRAWS + 1) * size) // DRAWS - 1
        picked = evenly if thin else rng.choice(size, DRAWS, p=weights[b] / weights[b].sum())
        # Among draws that are equal to it, as losses of zero are, the truth has any place.
        ties = (values[:, b, picked] == at[:, b]).sum(-1)
        found[b] = (values[:, b, picked] < at[:, b]).sum(-1) + rng.integers(0, ties + 1)
    return found


def side_by_side(name: str, sampler: Sampler, model: Model, n_sets: int, thin: bool, seed: int) -> Ranks:
    """Datasets that are rows of one target. The sampler comes from another learning rate, if it can carry particles."""
    found = []
    for part in range(-(-n_sets // _AT_ONCE)):
        own = 1000 * seed + part
        problem = stack(model, own, _AT_ONCE, OBSERVATIONS)
        keys = jax.random.split(jax.random.key(own + 500), 2)
        first = model.eta if thin else 0.5 * model.eta
        sampler.check(problem.target)
        start = sampler.draw_initial(keys[0], problem.target, first, None)
        state = sampler.init(keys[1], start.target, start, first)
        if not thin:
            state = sampler.move(start.target, state, model.eta, lambda _: None)
        found.append(ranks_of(own, state.particles, _truth(start.target, problem.theta), thin))
    return Ranks(name, model.name, np.concatenate(found))


def one_by_one(name: str, sampler: Sampler, model: Model, n_sets: int, seed: int) -> Ranks:
    """A dataset at a time, with other bootstrap rows beside the one that is looked at."""
    found = []
    for part in range(n_sets):
        own = 1000 * seed + part
        problem = stack(model, own, 1, 2 * OBSERVATIONS)
        data = (problem.x[0], np.asarray(problem.y[0], np.float64))
        keys = jax.random.split(jax.random.key(own + 500), 3)
        others = np.asarray(Multinomial(_ROWS - 1).counts(keys[2], 2 * OBSERVATIONS))
        target = make_target(model.gibbs, data, np.concatenate([problem.counts, others]), model.dim)
        start = sampler.draw_initial(keys[0], target, None, None)
        state = sampler.init(keys[1], start.target, start, model.eta)
        state = sampler.refine(start.target, state, lambda _: None)
        row = start.target.replicate(1)
        found.append(ranks_of(own, state.particles.replicate(1), _truth(row, problem.theta), thin=False))
    return Ranks(name, model.name, np.concatenate(found))


def _truth(target: Target, theta: jax.Array) -> Particles:
    return evaluate(target, target.coordinates.unconstrain(theta.T[:, :, None]))


def _smc(kernel: Any) -> Sampler:
    return cb.SMC(n_particles=300, ess_target=0.9, kernel=kernel)


SAMPLERS: dict[str, Sampler] = {
    "transport": cb.Transport(n_particles=400),
    "SMC, random walk": _smc(cb.kernels.RWMH()),
    "SMC, Crank-Nicolson": _smc(cb.kernels.CrankNicolson()),
    "MCMC, RAM": cb.MCMC(n_draws=40 * DRAWS, n_warmup=1000),
    "MCMC, Polson-Scott": cb.MCMC(n_draws=12 * DRAWS, n_warmup=100, kernel=cb.kernels.PolsonScott()),
}


def ranks(name: str, model: Model, n_sets: int) -> Ranks:
    """Of a sampler on a model, on datasets that no other sampler has."""
    sampler, seed = SAMPLERS[name], list(SAMPLERS).index(name)
    if isinstance(sampler, cb.Transport):
        return one_by_one(name, sampler, model, n_sets, seed)
    return side_by_side(name, sampler, model, n_sets, isinstance(sampler, cb.MCMC), seed)


def run() -> list[dict[str, Any]]:
    """Every sampler on every model it can do."""
    tests = []
    for name, sampler in SAMPLERS.items():
        for model in MODELS.values():
            if "Polson" in name and model.normaliser is None:
                continue
            make_room()
            own = ranks(name, model, ONE_BY_ONE if isinstance(sampler, cb.Transport) else SIDE_BY_SIDE).tests()
            print(name, model.name, *(f"{test['p']:.3f}" for test in own), flush=True)
            tests += own
    return tests
