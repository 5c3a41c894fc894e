"""Geweke's joint-distribution test (2004): parameters by a kernel given data, data given parameters, and again.

A kernel that leaves the posterior invariant leaves the joint law of parameters and data invariant. Chains that start
from a draw of that law are there at every step, so after some steps they are compared with fresh draws: no
autocorrelation to allow for. What a kernel learns from its particles is frozen: it is learned from others, which carry
all the weight and stay, while the one that moves carries none.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import stats

import calibayes as cb
from benchmarks.validate.models import MODELS, Model, stack
from calibayes._backend.rng import replicate_keys
from calibayes._backend.room import make_room
from calibayes._core.particles import Particles, covariance
from calibayes._core.target import Target, evaluate
from calibayes.kernels import Kernel

CHAINS = 50
STEPS = 30
OBSERVATIONS = 4
_OTHERS = 24
_NARROWER = 0.4

KERNELS: dict[str, Kernel] = {
    "random walk": cb.kernels.RWMH(),
    "RAM": cb.kernels.RAM(),
    "Crank-Nicolson": cb.kernels.CrankNicolson(),
    "Polson-Scott": cb.kernels.PolsonScott(),
}


def kernels_for(model: cb.GibbsModel) -> dict[str, Kernel]:
    """Those that can move on a model."""
    svm = isinstance(model.loss, cb.losses.Hinge) and isinstance(model.prior, cb.priors.Laplace)
    return {name: kernel for name, kernel in KERNELS.items() if svm or name != "Polson-Scott"}


def alternate(kernel: Kernel, model: Model, seed: int, steps: int = STEPS) -> np.ndarray:
    """Parameters and risk of some chains after so many moves, (K + 1, chains); as they are drawn, for none."""
    problem = stack(model, seed, CHAINS, OBSERVATIONS)
    target = problem.target.recentre(jnp.zeros(model.dim))
    other_key, walk_key = jax.random.split(jax.random.key(seed + 500))
    others = model.gibbs.prior.sample(other_key, (CHAINS, _OTHERS, model.dim))
    others = (1 - _NARROWER) * others.mean(1, keepdims=True) + _NARROWER * others
    theta = jnp.concatenate([problem.theta.T[:, :, None], jnp.moveaxis(others, -1, 0)], -1)
    z = target.coordinates.unconstrain(theta)
    if not steps:
        return np.asarray(_first(evaluate(target, z)))
    x, counts = jnp.asarray(problem.x, float), jnp.asarray(problem.counts, float)
    return np.asarray(
        _walk(replicate_keys(walk_key, steps), kernel, model, target, x, problem.y.reshape(-1), counts, z)
    )


@eqx.filter_jit
def _walk(
    keys: Array, kernel: Kernel, model: Model, given: Target, x: Array, y: Array, counts: Array, z: Array
) -> Array:
    """Move, observe, move ...; parameters and risk after the last move."""
    weights = jnp.full(z.shape[1:], -np.log(z.shape[-1] - 1)).at[:, 0].set(-jnp.inf)
    others = z[:, :, 1:]
    adaptation = kernel.init(covariance(z, jnp.exp(weights)))

    def step(carry: Any, key: Array) -> Any:
        y, z = carry
        move_key, data_key = jax.random.split(key)
        target = _with_y(given, y)
        particles = target.evaluate(z).with_log_weights(weights)
        rows = jax.vmap(jax.random.fold_in, (None, 0))(move_key, jnp.arange(CHAINS))
        moved, _, _ = kernel.step(rows, target, jnp.full(CHAINS, model.eta), particles, adaptation, False)
        theta = target.coordinates.constrain(moved.theta[:, :, :1])[..., 0].T
        z = jnp.concatenate([moved.theta[:, :, :1], others], -1)
        return (_observe(model, data_key, x, theta, counts), z), _first(moved)

    return jax.lax.scan(step, (y, z), keys)[1][-1]


def _observe(model: Model, key: Any, x: Array, theta: Array, counts: Array) -> Array:
    return jax.vmap(model.data)(jax.random.split(key, len(x)), x, theta, counts).reshape(-1)


def _with_y(target: Target, y: Array) -> Target:
    """The same with other observations, in the blocks that targets have them in."""
    old = target.data[1]
    y = jnp.concatenate([y, jnp.broadcast_to(y[-1], (old.size - len(y),))]).reshape(old.shape)
    return eqx.tree_at(lambda t: t.data[1], target, y).recentre(target.reference)


def _first(particles: Particles) -> Array:
    return jnp.concatenate([particles.theta[:, :, 0], particles.risk[None, :, 0]])


def compare(name: str, kernel: Kernel, model: Model, batches: int, seed: int = 0) -> list[dict[str, Any]]:
    """A p-value for each parameter and the risk: two samples, Kolmogorov and Smirnov."""
    own = [1000 * seed + batch for batch in range(2 * batches)]
    start, fresh = (
        np.concatenate([alternate(kernel, model, each, 0) for each in half], 1)
        for half in (own[:batches], own[batches:])
    )
    end = np.concatenate([alternate(kernel, model, each) for each in own[:batches]], 1)
    stuck = float((start[0] == end[0]).mean())
    if stuck > 0.3:  # Proposals that are not adapted are often too wide; a kernel that goes nowhere proves nothing.
        raise RuntimeError(f"{name} on {model.name}: {stuck:.0%} of the chains have not moved.")
    names = [f"parameter {k}" for k in range(model.dim)] + ["risk"]
    return [
        {"kernel": name, "model": model.name, "what": what, "p": float(stats.ks_2samp(a, b).pvalue), "n": end.shape[1]}
        for what, a, b in zip(names, end, fresh, strict=True)
    ]


def run(batches: int = 20) -> list[dict[str, Any]]:
    """Every kernel on every model it can do."""
    tests = []
    for model in MODELS.values():
        make_room()
        for seed, (name, kernel) in enumerate(kernels_for(model.gibbs).items()):
            own = compare(name, kernel, model, batches, seed)
            print(name, model.name, *(f"{test['p']:.3f}" for test in own), flush=True)
            tests += own
    return tests
