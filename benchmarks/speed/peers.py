"""What one would otherwise write: calibration by Markov chains from BlackJAX or NumPyro, one on every bootstrap row.

The search runs a chain on every row at each learning rate it tries. So its time is

    learning rates tried x (seconds of warm-up + seconds of a draw x draws for an effective size E),

with E that of the particles that transport reads its answer from, and as many learning rates as the paper's search
tries on the same data. The peers get the best of what can be said for them: nothing that compiles is counted, nor are
the sets and their coverage; chains start inside the posterior, with its covariance on the data as that of proposals or
as the inverse mass; and the faster of their samplers counts.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import calibayes as cb
from benchmarks.speed.algorithms import Repeated
from benchmarks.speed.measured import Measured, Ratio, timed
from benchmarks.speed.problems import Data, Sizes, heart_disease, median_regression, rows_of
from calibayes._core.convergence import batch_means_ess
from calibayes._core.particles import ess, pool

WANTED = 100.0
"""How many times ahead of the fastest peer transport should be."""
_WARM_UP = 500
_TARGET_ACCEPTANCE = 0.3


class Rows(NamedTuple):
    """The posteriors to be sampled, at one learning rate, and where chains start."""

    log_density: Callable[..., Array]
    """Of parameters and a row of counts."""
    counts: Float[Array, "B N"]
    starts: Float[Array, "B K"]
    covariance: Float[Array, "K K"]


class Chains(NamedTuple):
    """A peer's cost at one learning rate."""

    warm_up: float
    seconds: float
    """Of the draws."""
    draws: int
    size: float
    """Their effective size, the median over rows."""

    def until(self, size: float) -> float:
        """Seconds to an effective size, warm-up included."""
        return self.warm_up + self.seconds * size / self.size


def measure(sizes: Sizes) -> Measured:
    found = Measured(quick=sizes.quick)
    for data in (median_regression(sizes.middle), heart_disease()):
        _one(data, sizes, found)
    return found


def _one(data: Data, sizes: Sizes, found: Measured) -> None:
    counts = rows_of(len(data.y), sizes.rows)
    sampler = cb.Transport(n_particles=sizes.particles)
    call = partial(cb.calibrate, data.model, (data.x, data.y), region="box", progress=False, bootstrap=counts)
    by_seed = _tried(data, sizes)
    tried, each = int(np.median(by_seed)), ", ".join(map(str, by_seed))
    ours = Repeated(partial(call, sampler=sampler))
    size, rows = transport_size(ours.result), _rows(data, counts, ours.result)
    ratios = []
    for name, peer in PEERS.items():
        try:
            chains = peer(rows, sizes)
        except ImportError as error:
            found.skipped.append(f"{name}: {error.name} is not installed.")
            continue
        once, seconds = chains.until(size), ours.seconds()
        note = (
            f"{tried} learning rates (by seed {each}) x ({chains.warm_up:.2f} s + {chains.seconds:.2f} s x "
            f"{size:.0f} / {chains.size:.0f}), where {chains.draws:,} draws took {chains.seconds:.2f} s and are worth "
            f"{chains.size:.0f}; transport needs {seconds / once:.2f} of one learning rate's time"
        )
        ratios.append(Ratio(f"transport, {data.shape}", name, seconds, tried * once, note=note))
    fastest = min((ratio.ratio for ratio in ratios), default=0.0)
    found.ratios += [replace(ratio, wanted=WANTED) if ratio.ratio == fastest else ratio for ratio in ratios]


def transport_size(result: cb.Result) -> float:
    """Effective size of the particles that a row's level is read from, of as many populations as are carried there, the
    median over rows: by their weights or by `multi_ess`, the smaller.

    A weighted particle stands in the mean as its deviation times its weight, and those are a chain that `multi_ess`
    takes; its covariance against that of the posterior is what the weights cost.
    """
    loop, state = result.calibration.loop, result.calibration.found.state
    particles = pool([on_rows for _, on_rows in loop.sampler.snapshots(loop.target, state)])
    return float(np.median(np.minimum(ess(particles.log_weights), _weighted_multi_ess(particles))[1:]))


@jax.jit
def _weighted_multi_ess(particles: Any) -> Float[Array, " B"]:
    theta, weights = jnp.moveaxis(particles.theta, 0, -1), particles.weights

    def row(theta, weights):
        centred = theta - (weights @ theta)[None]
        terms = len(weights) * weights[:, None] * centred
        of_posterior = (weights[:, None] * centred).T @ centred
        cost = jnp.linalg.slogdet(of_posterior)[1] - jnp.linalg.slogdet(jnp.atleast_2d(jnp.cov(terms, rowvar=False)))[1]
        return batch_means_ess(terms) * jnp.exp(cost / theta.shape[1])

    return jax.vmap(row)(theta, weights)


def _tried(data: Data, sizes: Sizes) -> list[int]:
    """How many learning rates the paper's search tries on this problem, seed by seed."""
    smc = partial(cb.gpc_smc, data.model, (data.x, data.y), n_particles=sizes.particles, progress=False)
    smc = partial(smc, bootstrap=sizes.rows)
    return [len(timed(partial(smc, seed=seed))[0].trace) for seed in range(1 if sizes.quick else 3)]


def _rows(data: Data, counts: np.ndarray, result: cb.Result) -> Rows:
    x, y, eta = jnp.asarray(data.x, float), jnp.asarray(data.y, float), float(result.eta)
    loss: Any = data.model.loss

    def log_density(theta, row):
        return -eta * (row @ loss.rho(x @ theta, y)) + data.model.prior.log_prob(theta)

    starts = result.draws[np.arange(len(counts)) % len(result.draws)]
    covariance = np.atleast_2d(np.cov(result.draws.T))
    return Rows(log_density, *(jnp.asarray(a, float) for a in (counts, starts, covariance)))


def _cost(warm_up: Callable[[], Any], draw: Callable[[Any], Array], draws: int) -> Chains:
    """A warm-up and the draws (B, R, K) that follow it, each timed when compiled."""
    warmed = warm_up()
    size = _size(draw(warmed))
    return Chains(timed(warm_up)[1], timed(partial(draw, warmed))[1], draws, size)


def _size(chains: Float[Array, "B R K"]) -> float:
    return float(np.median(jax.vmap(batch_means_ess)(chains)))


def _nuts_draws(sizes: Sizes) -> int:
    """A tenth as many as of the walk, for each is many gradients; no fewer than `multi_ess` can do with."""
    return max(sizes.draws // 10, 200)


def _nuts_warm_up(draws: int) -> int:
    return min(draws, _WARM_UP // 2)


def random_walk(rows: Rows, sizes: Sizes) -> Chains:
    """BlackJAX's random walk, the scale of every row's proposal adapted in the warm-up."""
    import blackjax

    root = jnp.linalg.cholesky(rows.covariance)
    n_replicates, dim = rows.starts.shape

    def step(key, state, row, log_scale):
        propose = blackjax.mcmc.random_walk.normal(jnp.exp(log_scale) * root)
        return blackjax.additive_step_random_walk(partial(rows.log_density, row=row), propose).step(key, state)

    every_row = jax.vmap(step)

    @jax.jit
    def warm_up(key):
        def adapt(carry, number):
            state, log_scale = carry
            keys = jax.random.split(jax.random.fold_in(key, number), n_replicates)
            state, info = every_row(keys, state, rows.counts, log_scale)
            return (state, log_scale + (number + 1.0) ** -0.6 * (info.acceptance_rate - _TARGET_ACCEPTANCE)), None

        begin = lambda theta, row: blackjax.rmh.init(theta, partial(rows.log_density, row=row))
        state = jax.vmap(begin)(rows.starts, rows.counts)
        log_scale = jnp.full(n_replicates, np.log(2.38 / dim**0.5))
        return jax.lax.scan(adapt, (state, log_scale), jnp.arange(_WARM_UP))[0]

    @jax.jit
    def draw(warmed, key):
        def one(state, number):
            keys = jax.random.split(jax.random.fold_in(key, number), n_replicates)
            state, _ = every_row(keys, state, rows.counts, warmed[1])
            return state, state.position

        return jnp.moveaxis(jax.lax.scan(one, warmed[0], jnp.arange(sizes.draws))[1], 0, 1)

    return _cost(partial(warm_up, jax.random.key(0)), partial(draw, key=jax.random.key(1)), sizes.draws)


def nuts(rows: Rows, sizes: Sizes) -> Chains:
    """BlackJAX's NUTS after its window adaptation, with a dense mass."""
    import blackjax

    draws = _nuts_draws(sizes)
    keys = jax.random.split(jax.random.key(0), len(rows.starts))

    @jax.jit
    @jax.vmap
    def warm_up(key, start, row):
        adaptation = blackjax.window_adaptation(
            blackjax.nuts,
            partial(rows.log_density, row=row),
            is_mass_matrix_diagonal=False,
            initial_inverse_mass_matrix=rows.covariance,
            adaptation_info_fn=lambda *_: None,
        )
        (state, parameters), _ = adaptation.run(key, start, _nuts_warm_up(draws))
        return state, {name: parameters[name] for name in ("step_size", "inverse_mass_matrix")}

    @jax.jit
    @jax.vmap
    def draw(key, warmed, row):
        state, parameters = warmed
        kernel = blackjax.nuts(partial(rows.log_density, row=row), **parameters)

        def one(state, key):
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(one, state, jax.random.split(key, draws))[1]

    return _cost(
        partial(warm_up, keys, rows.starts, rows.counts), lambda warmed: draw(keys, warmed, rows.counts), draws
    )


def numpyro_nuts(rows: Rows, sizes: Sizes) -> Chains:
    """NumPyro's NUTS with a dense mass, its runs vmapped over rows; warm-up and draws are one call there."""
    from numpyro.infer import MCMC, NUTS

    draws = _nuts_draws(sizes)
    keys = jax.random.split(jax.random.key(0), len(rows.starts))

    def of_length(length: int) -> Callable[[], Array]:
        def run(key, start, row):
            kernel = NUTS(
                potential_fn=lambda theta: -rows.log_density(theta, row),
                dense_mass=True,
                inverse_mass_matrix=rows.covariance,
            )
            chain = MCMC(kernel, num_warmup=_nuts_warm_up(draws), num_samples=length, progress_bar=False)
            chain.run(key, init_params=start)
            return chain.get_samples()

        return partial(jax.jit(jax.vmap(run)), keys, rows.starts, rows.counts)

    warm_up, whole = of_length(1), of_length(draws)
    warm_up()
    size, seconds = _size(whole()), timed(warm_up)[1]
    return Chains(seconds, timed(whole)[1] - seconds, draws, size)


PEERS: dict[str, Callable[[Rows, Sizes], Chains]] = {
    "GPC by BlackJAX, random walk": random_walk,
    "GPC by BlackJAX, NUTS": nuts,
    "GPC by NumPyro, NUTS": numpyro_nuts,
}
