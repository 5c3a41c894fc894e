"""Geweke's joint-distribution test of Markov kernels (Geweke 2004).

A chain alternates between moving the parameters by a kernel given the data and drawing the data given the parameters. A
kernel that leaves the posterior invariant leaves the joint distribution of parameters and data invariant. Chains that
start from a draw of that distribution have it at every step, so their states after a number of steps are compared with
fresh draws; no autocorrelation has to be allowed for.

The adaptation of a kernel is frozen: it is computed from other particles, which carry all the weight and do not move,
while the particle that moves has weight zero.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import stats

import calibayes as cb
from benchmarks.validate.models import MODELS, Model, stack
from calibayes._backend.memory import clear_caches_if_full
from calibayes._backend.rng import replicate_keys
from calibayes._core.particles import Particles, covariance
from calibayes._core.target import Target, evaluate
from calibayes.kernels import Kernel

CHAINS = 50
STEPS = 30
OBSERVATIONS = 4
_FIXED_PARTICLES = 24
"""Particles per chain from which the adaptation is computed."""
_SHRINKAGE = 0.4
"""Spread of those particles relative to the prior, so that enough proposals are accepted."""
_MAX_STUCK = 0.3
"""Share of chains that may not have moved; a kernel that does not move would pass the test."""

KERNELS: dict[str, Kernel] = {
    "random walk": cb.kernels.RWMH(),
    "RAM": cb.kernels.RAM(),
    "Crank-Nicolson": cb.kernels.CrankNicolson(),
    "Polson-Scott": cb.kernels.PolsonScott(),
}


def kernels_for(model: cb.GibbsModel) -> dict[str, Kernel]:
    """Return the kernels that support a model."""
    svm = isinstance(model.loss, cb.losses.Hinge) and isinstance(model.prior, cb.priors.Laplace)
    return {name: kernel for name, kernel in KERNELS.items() if svm or name != "Polson-Scott"}


def alternate(kernel: Kernel, model: Model, seed: int, steps: int = STEPS) -> np.ndarray:
    """Return parameters and risk of several chains after a number of steps, shape (K + 1, chains)."""
    problem = stack(model, seed, CHAINS, OBSERVATIONS)
    target = problem.target.recentre(jnp.zeros(model.dim))
    fixed_key, chain_key = jax.random.split(jax.random.key(seed + 500))
    fixed = model.prior.sample(fixed_key, (CHAINS, _FIXED_PARTICLES, model.dim))
    fixed = (1 - _SHRINKAGE) * fixed.mean(1, keepdims=True) + _SHRINKAGE * fixed
    theta = jnp.concatenate([problem.theta.T[:, :, None], jnp.moveaxis(fixed, -1, 0)], -1)
    z = target.coordinates.unconstrain(theta)
    if not steps:
        return np.asarray(_moving(evaluate(target, z)))
    x, counts = jnp.asarray(problem.x, float), jnp.asarray(problem.counts, float)
    keys = replicate_keys(chain_key, steps)
    return np.asarray(_chain(keys, kernel, model, target, x, problem.y.reshape(-1), counts, z))


@eqx.filter_jit
def _chain(
    keys: Array, kernel: Kernel, model: Model, initial: Target, x: Array, y: Array, counts: Array, z: Array
) -> Float[Array, "K+1 chains"]:
    """Alternate moves and observations; return parameters and risk after the last move."""
    weights = jnp.full(z.shape[1:], -np.log(z.shape[-1] - 1)).at[:, 0].set(-jnp.inf)
    fixed = z[:, :, 1:]
    adaptation = kernel.init(covariance(z, jnp.exp(weights)))

    def step(carry: tuple[Array, Array], key: PRNGKeyArray) -> tuple[tuple[Array, Array], Array]:
        y, z = carry
        move_key, data_key = jax.random.split(key)
        target = _with_y(initial, y)
        particles = target.evaluate(z).with_log_weights(weights)
        chain_keys = jax.vmap(jax.random.fold_in, (None, 0))(move_key, jnp.arange(CHAINS))
        moved, _, _ = kernel.step(chain_keys, target, jnp.full(CHAINS, model.eta), particles, adaptation, False)
        theta = target.coordinates.constrain(moved.theta[:, :, :1])[..., 0].T
        z = jnp.concatenate([moved.theta[:, :, :1], fixed], -1)
        return (_observe(model, data_key, x, theta, counts), z), _moving(moved)

    return jax.lax.scan(step, (y, z), keys)[1][-1]


def _observe(model: Model, key: PRNGKeyArray, x: Array, theta: Array, counts: Array) -> Array:
    return jax.vmap(model.data)(jax.random.split(key, len(x)), x, theta, counts).reshape(-1)


def _with_y(target: Target, y: Array) -> Target:
    """Return the target with other observations, padded and split into blocks as in the original."""
    old = target.data[1]
    y = jnp.concatenate([y, jnp.broadcast_to(y[-1], (old.size - len(y),))]).reshape(old.shape)
    return eqx.tree_at(lambda t: t.data[1], target, y).recentre(target.reference)


def _moving(particles: Particles) -> Array:
    """Return parameters and risk of the particle of each chain that moves."""
    return jnp.concatenate([particles.theta[:, :, 0], particles.risk[None, :, 0]])


def compare(name: str, kernel: Kernel, model: Model, batches: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return a p-value for each parameter and the risk, by the two-sample Kolmogorov-Smirnov test."""
    seeds = [1000 * seed + batch for batch in range(2 * batches)]
    start, fresh = (
        np.concatenate([alternate(kernel, model, batch_seed, 0) for batch_seed in half], 1)
        for half in (seeds[:batches], seeds[batches:])
    )
    end = np.concatenate([alternate(kernel, model, batch_seed) for batch_seed in seeds[:batches]], 1)
    stuck = float((start[0] == end[0]).mean())
    if stuck > _MAX_STUCK:
        raise RuntimeError(f"{name} on {model.name}: {stuck:.0%} of the chains did not move.")
    names = [f"parameter {k}" for k in range(model.dim)] + ["risk"]
    p_values = [float(stats.ks_2samp(a, b).pvalue) for a, b in zip(end, fresh, strict=True)]
    return [
        {"kernel": name, "model": model.name, "quantity": quantity, "p": p, "n": end.shape[1]}
        for quantity, p in zip(names, p_values, strict=True)
    ]


def run(batches: int = 20) -> list[dict[str, Any]]:
    """Test every kernel on every model that it supports."""
    results = []
    for model in MODELS.values():
        clear_caches_if_full()
        for seed, (name, kernel) in enumerate(kernels_for(model.gibbs).items()):
            tests = compare(name, kernel, model, batches, seed)
            print(name, model.name, *(f"{test['p']:.3f}" for test in tests), flush=True)
            results += tests
    return results
