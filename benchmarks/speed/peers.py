"""Calibration with general-purpose samplers: Markov chains of BlackJAX or NumPyro on every bootstrap replicate.

The search runs a chain on every replicate at each learning rate that it tries, so its time is

    learning rates tried x (seconds of warm-up + seconds per draw x draws for an effective sample size E),

where E is the effective sample size of the particles from which transport computes its answer, and the learning rates
tried are as many as in the search of the paper on the same data.

The comparison favours the peers: compilation is not counted, nor are the credible sets and their coverage; chains start
inside the posterior and use its covariance on the data for proposals or as inverse mass matrix; and the goal applies to
their fastest sampler.
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
from benchmarks.speed.measurement import Measurements, Ratio, timed
from benchmarks.speed.problems import Data, Sizes, bootstrap_counts, heart_disease, median_regression
from calibayes._core.convergence import batch_means_ess
from calibayes._core.particles import Particles, ess, pool

GOAL = 100.0
"""How many times faster than the fastest peer transport should be."""
_WARM_UP = 500
_TARGET_ACCEPTANCE = 0.3


class Posteriors(NamedTuple):
    """The posteriors of all replicates at one learning rate, and initial states of the chains."""

    log_density: Callable[[Array, Array], Array]
    """Log density of parameters and the counts of a replicate."""
    counts: Float[Array, "B N"]
    initial: Float[Array, "B K"]
    covariance: Float[Array, "K K"]


class Chains(NamedTuple):
    """Cost of a peer at one learning rate."""

    warm_up: float
    """Seconds of the warm-up."""
    seconds: float
    """Seconds of the draws."""
    draws: int
    ess: float
    """Effective sample size of the draws, median over replicates."""

    def seconds_for(self, ess: float) -> float:
        """Return the seconds to reach an effective sample size, warm-up included."""
        return self.warm_up + self.seconds * ess / self.ess


def measure(sizes: Sizes) -> Measurements:
    """Compare transport with every installed peer on both problems of the paper."""
    measurements = Measurements(quick=sizes.quick)
    for data in (median_regression(sizes.middle), heart_disease()):
        _compare(data, sizes, measurements)
    return measurements


def _compare(data: Data, sizes: Sizes, measurements: Measurements) -> None:
    counts = bootstrap_counts(len(data.y), sizes.replicates)
    sampler = cb.Transport(n_particles=sizes.particles)
    call = partial(cb.calibrate, data.model, (data.x, data.y), region="box", progress=False, bootstrap=counts)
    tried_by_seed = _learning_rates_tried(data, sizes)
    tried = int(np.median(tried_by_seed))
    transport = Repeated(partial(call, sampler=sampler))
    size, posteriors = transport_ess(transport.result), _posteriors(data, counts, transport.result)
    ratios = []
    for name, peer in PEERS.items():
        try:
            chains = peer(posteriors, sizes)
        except ImportError as error:
            measurements.skipped.append(f"{name}, because {error.name} is not installed.")
            continue
        per_eta, seconds = chains.seconds_for(size), transport.seconds()
        note = (
            f"{tried} learning rates (by seed {', '.join(map(str, tried_by_seed))}) x ({chains.warm_up:.2f} s + "
            f"{chains.seconds:.2f} s x {size:.0f} / {chains.ess:.0f}), where {chains.draws:,} draws took "
            f"{chains.seconds:.2f} s and have an effective sample size of {chains.ess:.0f}; transport takes "
            f"{seconds / per_eta:.2f} of the time of one learning rate"
        )
        ratios.append(Ratio(f"transport, {data.description}", name, seconds, tried * per_eta, note=note))
    fastest = min((ratio.ratio for ratio in ratios), default=0.0)
    measurements.ratios += [replace(ratio, goal=GOAL) if ratio.ratio == fastest else ratio for ratio in ratios]


def transport_ess(result: cb.Result) -> float:
    """Return the effective sample size of the particles from which a critical level is computed.

    It is the median over replicates. All snapshots are pooled. The effective sample size is the smaller of the one by
    weights and `multi_ess`.
    """
    calibration = result.calibration
    assert calibration is not None
    problem, state = calibration.problem, calibration.iterate.state
    particles = pool([snapshot.replicates for snapshot in problem.sampler.snapshots(problem.target, state)])
    return float(np.median(np.minimum(ess(particles.log_weights), _weighted_multi_ess(particles))[1:]))


@jax.jit
def _weighted_multi_ess(particles: Particles) -> Float[Array, " B"]:
    """Return `multi_ess` of weighted particles.

    A particle contributes its deviation times its weight to the weighted mean. These terms form a chain for
    `multi_ess`, and their covariance relative to that of the posterior measures the loss by weighting.
    """
    theta, weights = jnp.moveaxis(particles.theta, 0, -1), particles.weights

    def replicate(theta, weights):
        centred = theta - (weights @ theta)[None]
        terms = len(weights) * weights[:, None] * centred
        posterior = (weights[:, None] * centred).T @ centred
        of_terms = jnp.atleast_2d(jnp.cov(terms, rowvar=False))
        log_loss = jnp.linalg.slogdet(posterior)[1] - jnp.linalg.slogdet(of_terms)[1]
        return batch_means_ess(terms) * jnp.exp(log_loss / theta.shape[1])

    return jax.vmap(replicate)(theta, weights)


def _learning_rates_tried(data: Data, sizes: Sizes) -> list[int]:
    """Return the number of learning rates that the search of the paper tries, for each of several seeds."""
    smc = partial(cb.gpc_smc, data.model, (data.x, data.y), n_particles=sizes.particles, progress=False)
    smc = partial(smc, bootstrap=sizes.replicates)
    return [len(timed(partial(smc, seed=seed))[0].trace) for seed in range(1 if sizes.quick else 3)]


def _posteriors(data: Data, counts: np.ndarray, result: cb.Result) -> Posteriors:
    x, y, eta = jnp.asarray(data.x, float), jnp.asarray(data.y, float), float(result.eta)
    loss: Any = data.model.loss

    def log_density(theta, counts):
        return -eta * (counts @ loss.rho(x @ theta, y)) + data.model.prior.log_prob(theta)

    initial = result.draws[np.arange(len(counts)) % len(result.draws)]
    covariance = np.atleast_2d(np.cov(result.draws.T))
    return Posteriors(log_density, *(jnp.asarray(array, float) for array in (counts, initial, covariance)))


def _cost(warm_up: Callable[[], Any], draw: Callable[[Any], Float[Array, "B R K"]], draws: int) -> Chains:
    """Time a warm-up and the draws that follow it, each after compilation."""
    warmed = warm_up()
    size = _median_ess(draw(warmed))
    return Chains(timed(warm_up)[1], timed(partial(draw, warmed))[1], draws, size)


def _median_ess(chains: Float[Array, "B R K"]) -> float:
    return float(np.median(jax.vmap(batch_means_ess)(chains)))


def _nuts_draws(sizes: Sizes) -> int:
    """Return a tenth of the draws of the random walk, because each takes many gradients; enough for the ESS."""
    return max(sizes.draws // 10, 200)


def _nuts_warm_up(draws: int) -> int:
    return min(draws, _WARM_UP // 2)


def random_walk(posteriors: Posteriors, sizes: Sizes) -> Chains:
    """Measure the random walk of BlackJAX, with a proposal scale adapted for each replicate in the warm-up."""
    import blackjax

    root = jnp.linalg.cholesky(posteriors.covariance)
    n_replicates, dim = posteriors.initial.shape

    def step(key, state, counts, log_scale):
        propose = blackjax.mcmc.random_walk.normal(jnp.exp(log_scale) * root)
        log_density = partial(_log_density, posteriors, counts)
        return blackjax.additive_step_random_walk(log_density, propose).step(key, state)

    all_replicates = jax.vmap(step)

    @jax.jit
    def warm_up(key):
        def adapt(carry, number):
            state, log_scale = carry
            keys = jax.random.split(jax.random.fold_in(key, number), n_replicates)
            state, info = all_replicates(keys, state, posteriors.counts, log_scale)
            return (state, log_scale + (number + 1.0) ** -0.6 * (info.acceptance_rate - _TARGET_ACCEPTANCE)), None

        init = lambda theta, counts: blackjax.rmh.init(theta, partial(_log_density, posteriors, counts))
        state = jax.vmap(init)(posteriors.initial, posteriors.counts)
        log_scale = jnp.full(n_replicates, np.log(2.38 / dim**0.5))
        return jax.lax.scan(adapt, (state, log_scale), jnp.arange(_WARM_UP))[0]

    @jax.jit
    def draw(warmed, key):
        def draw_once(state, number):
            keys = jax.random.split(jax.random.fold_in(key, number), n_replicates)
            state, _ = all_replicates(keys, state, posteriors.counts, warmed[1])
            return state, state.position

        return jnp.moveaxis(jax.lax.scan(draw_once, warmed[0], jnp.arange(sizes.draws))[1], 0, 1)

    return _cost(partial(warm_up, jax.random.key(0)), partial(draw, key=jax.random.key(1)), sizes.draws)


def nuts(posteriors: Posteriors, sizes: Sizes) -> Chains:
    """Measure NUTS of BlackJAX after its window adaptation, with a dense mass matrix."""
    import blackjax

    draws = _nuts_draws(sizes)
    keys = jax.random.split(jax.random.key(0), len(posteriors.initial))

    @jax.jit
    @jax.vmap
    def warm_up(key, initial, counts):
        adaptation = blackjax.window_adaptation(
            blackjax.nuts,
            partial(_log_density, posteriors, counts),
            is_mass_matrix_diagonal=False,
            initial_inverse_mass_matrix=posteriors.covariance,
            adaptation_info_fn=lambda *_: None,
        )
        (state, parameters), _ = adaptation.run(key, initial, _nuts_warm_up(draws))
        return state, {name: parameters[name] for name in ("step_size", "inverse_mass_matrix")}

    @jax.jit
    @jax.vmap
    def draw(key, warmed, counts):
        state, parameters = warmed
        kernel = blackjax.nuts(partial(_log_density, posteriors, counts), **parameters)

        def draw_once(state, key):
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(draw_once, state, jax.random.split(key, draws))[1]

    return _cost(
        partial(warm_up, keys, posteriors.initial, posteriors.counts),
        lambda warmed: draw(keys, warmed, posteriors.counts),
        draws,
    )


def numpyro_nuts(posteriors: Posteriors, sizes: Sizes) -> Chains:
    """Measure NUTS of NumPyro with a dense mass matrix, vmapped over replicates.

    Warm-up and draws are one call there, so the time of the draws is a difference of two calls.
    """
    from numpyro.infer import MCMC, NUTS

    draws = _nuts_draws(sizes)
    keys = jax.random.split(jax.random.key(0), len(posteriors.initial))

    def sampler(n_samples: int) -> Callable[[], Array]:
        def run(key, initial, counts):
            kernel = NUTS(
                potential_fn=lambda theta: -posteriors.log_density(theta, counts),
                dense_mass=True,
                inverse_mass_matrix=posteriors.covariance,
            )
            chain = MCMC(kernel, num_warmup=_nuts_warm_up(draws), num_samples=n_samples, progress_bar=False)
            chain.run(key, init_params=initial)
            return chain.get_samples()

        return partial(jax.jit(jax.vmap(run)), keys, posteriors.initial, posteriors.counts)

    warm_up, whole = sampler(1), sampler(draws)
    warm_up()
    size, seconds = _median_ess(whole()), timed(warm_up)[1]
    return Chains(seconds, timed(whole)[1] - seconds, draws, size)


def _log_density(posteriors: Posteriors, counts: Array, theta: Array) -> Array:
    return posteriors.log_density(theta, counts)


PEERS: dict[str, Callable[[Posteriors, Sizes], Chains]] = {
    "GPC by BlackJAX, random walk": random_walk,
    "GPC by BlackJAX, NUTS": nuts,
    "GPC by NumPyro, NUTS": numpyro_nuts,
}
