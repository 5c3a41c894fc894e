r"""Draws of a posterior with one mode, by weights alone: no chain, nothing to forget.

A convex loss and a log-concave prior make a log-concave posterior: there is one mode to be found, and no tail is
heavier than an exponential. So draws of Student's t, whose tails are heavier, have bounded weights

$$ w = \exp\{-\eta R(\theta)\}\,p(\theta) / t(\theta; \mu, \Sigma), $$

and most of them count where $\mu$ and $\Sigma$ are the posterior's own and it is not far from normal, up to some 50
parameters. These are had rung by rung: weights of draws
that are there, for an eta at which enough of them still count, give the mean and covariance to draw from next (adaptive
importance sampling, as in population Monte Carlo: Cappe et al. 2004).

Weights also tell where that fails, and then there is the ladder of `start.py`, which takes any posterior.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.rng import normals, replicate_keys, split_key, uniforms
from calibayes._core.convergence import population_agreement
from calibayes._core.particles import (
    Particles,
    covariance,
    ess,
    ess_after,
    factor,
    mean,
    normalise,
    reweight,
    stratified,
    transform,
)
from calibayes._core.sandwich import matching_eta
from calibayes._core.target import Target, log_density
from calibayes.samplers.initial import N_POPULATIONS, STAGE, first_stage, population_target, prior_particles, spreads_of
from calibayes.samplers.tempering import step_keys

_DF = 8
"""Of Student's t; even, so that its chi-squared is a product of uniforms."""
_LEFT = 0.05
"""A rung leaves this share of the effective size, at least."""
_STEPS, _APART = 64, 0.35
"""Steps of eta to choose from, each by so much shorter, in logarithms: down to a share of 1e-9 of the way."""
_FAIR = 0.4
"""Of the draws for a pool, the share that must count."""
_SOME = 0.1
"""And of those on the way."""
_POOR = 0.02
"""A fit after which fewer count has failed."""
_MAX_STEPS, _MOST_FITS = 80, 3
"""In all; and at one learning rate."""
_MOST_PARAMETERS = 50
"""Half of the draws of a t count where the posterior is normal and has so many; of more, fewer."""
_OVER = 4
"""Draws for each one that is kept: so many that few are kept twice."""


_LAST: Any = np.asarray(True)
_NOT_LAST: Any = np.asarray(False)
"""Goals, as programs are handed them."""


class NoFitError(Exception):
    """The weights say that this is not the way."""


def has_one_mode(target: Target) -> bool:
    """Whether the posterior is known to be log-concave, at any learning rate, and of so few parameters that weights of
    a t can be even. In other coordinates than the parameters' own nothing is known.
    """
    loss, prior = target.loss, target.prior
    known = _says(loss, "convex", ("rho", "decompose")) and _says(prior, "log_concave", ("log_prob",))
    return known and target.coordinates.unbounded and target.dim <= _MOST_PARAMETERS


def _says(thing: Any, what: str, of: tuple[str, ...]) -> bool:
    """Whether a class says so that is not above one which defines `of`: a function of one's own inherits nothing."""
    defining = next((cls for cls in type(thing).__mro__ if any(name in vars(cls) for name in of)), object)
    return bool(vars(defining).get(what, False))


class _Fit(NamedTuple):
    """What to draw from."""

    centre: Float[Array, " K"]
    root: Float[Array, "K K"]


def matched_by_weights(key: PRNGKeyArray, target: Target, n: int) -> tuple[Particles, float]:
    """N draws in each population at the learning rate where the posterior's spread matches the sandwich's, of equal
    weight; and that learning rate. From the prior.
    """
    walk_key, particles, first = _at_the_prior(key, target, n)
    particles, eta, ok = _travel(walk_key, target, particles, host_array(0.0), first, _NOT_LAST)
    eta, ok = jax.device_get((eta, ok))
    if not ok:
        raise NoFitError
    return particles, float(eta)


def moved_by_weights(key: PRNGKeyArray, target: Target, particles: Particles, eta: float, to: float) -> Particles:
    """Draws of equal weight at another learning rate, as many."""
    particles, _, ok = _travel(key, target, particles, host_array(eta), host_array(to), _LAST)
    if not ok:
        raise NoFitError
    return particles


def drawn_by_weights(
    key: PRNGKeyArray, target: Target, rough: Particles, eta: float, n: int
) -> tuple[Particles, tuple[float, float]]:
    """N draws in each population, of equal weight, from others at the same learning rate; and how well they agree."""
    particles, spreads, ok = _drawn(key, target, rough, host_array(eta), n)
    (within, between), ok = jax.device_get((spreads, ok))
    if not ok:
        raise NoFitError
    return particles, population_agreement(within, between, N_POPULATIONS, n)


@jit
def _at_the_prior(key: PRNGKeyArray, target: Target, n: int) -> tuple[PRNGKeyArray, Particles, Float[Array, ""]]:
    """A key for the way from there, draws, and where to go first."""
    prior_key, walk_key = split_key(key)
    particles = prior_particles(prior_key, population_target(target), n)
    return walk_key, particles, first_stage(particles)


class _Journey(NamedTuple):
    rung: Int[Array, ""]
    fits: Int[Array, ""]
    """At the goal."""
    particles: Particles
    eta: Float[Array, ""]
    goal: Float[Array, ""]
    last: Bool[Array, ""]
    """Whether there is none after it."""
    counting: Float[Array, ""]
    """Effective size of all particles together."""
    over: Bool[Array, ""]


@jit
def _travel(
    key: PRNGKeyArray,
    target: Target,
    start: Particles,
    eta: Float[Array, ""],
    goal: Float[Array, ""],
    last: Bool[Array, ""],
) -> tuple[Particles, Float[Array, ""], Bool[Array, ""]]:
    """Particles of equal weight at the goal, from such particles at `eta`; where they are, and whether that is it.

    A goal that is not the last is followed by another, until it is within a factor of two of the learning rate that
    matches there; then by that one.
    """
    populations, keys = population_target(target), replicate_keys(key, N_POPULATIONS)
    n_replicates, size = start.risk.shape
    everything = n_replicates * size

    def going_on(at: _Journey):
        lost = ~(at.counting >= _POOR * everything) | (at.rung >= _MAX_STEPS) | (at.fits >= _MOST_FITS)
        return ~at.over & ~lost

    def up(at: _Journey) -> _Journey:
        fit, eta = _next(at.particles, at.eta, at.goal)
        particles = _weighted(step_keys(keys, 2, jnp.full(n_replicates, at.rung)), populations, fit, eta, size)
        counting = ess(particles.log_weights.reshape(-1))
        there = (eta == at.goal) & (counting >= _SOME * everything)
        fits = jnp.where(there, 0, at.fits + (eta == at.goal).astype(int))
        further, here = lambda: _onward(populations, particles, eta), lambda: (at.goal, at.last)
        goal, last = jax.lax.cond(there & ~at.last, further, here)
        return _Journey(at.rung + 1, fits, particles, eta, goal, last, counting, there & at.last)

    none, no = jnp.zeros((), int), jnp.zeros((), bool)
    first = _Journey(none, none, start, eta, goal, last, jnp.asarray(everything, float), no)
    end = jax.lax.while_loop(going_on, up, first)
    return (
        _kept(step_keys(keys, 3, jnp.full(n_replicates, end.rung)), _row_by_row(end.particles), size),
        end.eta,
        end.over,
    )


def _onward(
    populations: Target, particles: Particles, eta: Float[Array, ""]
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """Where to go from a goal, and whether that is the last."""
    matching = matching_eta(populations, particles.merge_replicates(), eta[None])
    matching = jnp.where(jnp.isfinite(matching), matching, jnp.inf)
    near = jnp.minimum(eta / matching, matching / eta) > 0.5
    return jnp.where(near, matching, jnp.minimum(matching, STAGE * eta)), near


def _next(particles: Particles, at: Float[Array, ""], eta: Float[Array, ""]) -> tuple[_Fit, Float[Array, ""]]:
    """What to draw from for a learning rate further towards `eta`, and which."""
    one = particles.merge_replicates()
    # Longest first; one of a few will do.
    shares = jnp.exp(-jnp.arange(_STEPS, dtype=eta.dtype) * _APART)
    shape = (_STEPS, one.risk.shape[-1])
    log_weights, risk = jnp.broadcast_to(one.log_weights, shape), jnp.broadcast_to(one.risk, shape)
    enough = ess_after(log_weights, risk, shares * (eta - at)) >= _LEFT * ess(one.log_weights)
    first = jnp.argmax(enough)
    step = jnp.where(enough.any(), shares[first], 0.0) * (eta - at)
    return _fit(one, reweight(one.log_weights, one.risk, step[None])), jnp.where(enough[0], eta, at + step)


def _fit(one: Particles, log_weights: Float[Array, "1 M"]) -> _Fit:
    weights = jnp.exp(log_weights)
    return _Fit(mean(one.theta, weights)[:, 0], factor(covariance(one.theta, weights))[0])


def _weighted(keys: Key[Array, " B"], populations: Target, fit: _Fit, eta: Float[Array, ""], size: int) -> Particles:
    """Draws of Student's t on every row, and their weights, which sum to one over all rows."""
    dim = len(fit.centre)
    uniform = uniforms(keys, dim + _DF // 2, size)
    chi_squared = -2 * sum(jnp.log(uniform[dim + i]) for i in range(_DF // 2))
    # Once for all: what reads the normals must not draw them again.
    z = jax.lax.optimization_barrier(normals(uniform[:dim]) * jnp.sqrt(_DF / chi_squared)[None])
    root = jnp.broadcast_to(fit.root[None], (len(keys), dim, dim))
    particles = populations.evaluate(fit.centre[:, None, None] + transform(root, z))
    log_t = -0.5 * (_DF + dim) * jnp.log1p(jnp.square(z).sum(0) / _DF)
    ratio = log_density(particles, jnp.full(len(keys), eta)) - log_t
    return particles.with_log_weights(normalise(ratio.reshape(-1)).reshape(ratio.shape))


def _row_by_row(particles: Particles) -> Particles:
    return particles.with_log_weights(normalise(particles.log_weights))


@jit
def _drawn(
    key: PRNGKeyArray, target: Target, rough: Particles, eta: Float[Array, ""], n: int
) -> tuple[Particles, tuple[Float[Array, " P"], Float[Array, " P"]], Bool[Array, ""]]:
    keys, one = replicate_keys(key, N_POPULATIONS), rough.merge_replicates()
    fit = _fit(one, one.log_weights)
    once = jnp.zeros(N_POPULATIONS, int)
    rows = _row_by_row(_weighted(step_keys(keys, 0, once), population_target(target), fit, eta, _OVER * n))
    there = ess(rows.log_weights).min() >= _FAIR * _OVER * n
    drawn = _kept(step_keys(keys, 1, once), rows, n)
    return drawn, spreads_of(drawn), there


def _kept(keys: Key[Array, " B"], particles: Particles, n: int) -> Particles:
    """N of every row, as often as they weigh."""
    return particles.take(jax.vmap(stratified, (0, 0, None))(keys, particles.weights, n))
