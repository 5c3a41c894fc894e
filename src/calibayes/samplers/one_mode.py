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

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from calibayes.functions import handed
from calibayes.noise import normals, uniforms
from calibayes.particles import (
    Particles,
    covariance,
    ess,
    ess_after,
    factor,
    mean,
    normalise,
    resample,
    reweight,
    stratified,
    transform,
)
from calibayes.samplers.asmc import Walkers, fresh_keys
from calibayes.target import Target, log_density
from calibayes.together import jit

_DF = 8
"""Of Student's t; even, so that its chi-squared is a product of uniforms."""
_LEFT = 0.15
"""A rung leaves this share of the effective size, at least."""
_STEPS, _APART = 64, 0.35
"""Steps of eta to choose from, each by so much shorter, in logarithms: down to a share of 1e-9 of the way."""
_FAIR = 0.4
"""Of the draws for a pool, the share that must count."""
_SOME = 0.1
"""And of those on the way."""
_POOR = 0.02
"""A fit after which fewer count has failed."""
_MOST_RUNGS, _MOST_FITS = 40, 3
"""To another learning rate; and there."""
_MOST_PARAMETERS = 50
"""Half of the draws of a t count where the posterior is normal and has so many; of more, fewer."""
_OVER = 4
"""Draws for each one that is kept: so many that few are kept twice."""


class NoFitError(Exception):
    """The weights say that this is not the way."""


def has_one_mode(target: Target) -> bool:
    """Whether the posterior is known to be log-concave, at any learning rate, and of so few parameters that weights of
    a t can be even. In other coordinates than the parameters' own nothing is known.
    """
    loss, prior = target.model.loss, target.model.prior
    known = _says(loss, "convex", ("rho", "parts")) and _says(prior, "log_concave", ("log_prob",))
    return known and target.coordinates.free and target.dim <= _MOST_PARAMETERS


def _says(thing: Any, what: str, of: tuple[str, ...]) -> bool:
    """Whether a class says so that is not above one which defines `of`: a function of one's own inherits nothing."""
    defining = next((cls for cls in type(thing).__mro__ if any(name in vars(cls) for name in of)), object)
    return bool(vars(defining).get(what, False))


class _Fit(NamedTuple):
    """What to draw from."""

    centre: Float[Array, " K"]
    root: Float[Array, "K K"]


def climb_by_weights(keys: Key[Array, " B"], crew: Target, walkers: Walkers, eta: float) -> Walkers:
    """Particles of equal weight at `eta`, from such particles at another; all rows are of the same density."""
    walkers, ok = _climb(keys, crew, walkers, handed(eta))
    if not ok:
        raise NoFitError
    return walkers


def drawn_by_weights(keys: Key[Array, " B"], crew: Target, rough: Particles, eta: float, n: int) -> Particles:
    """N draws at `eta` on each row, of equal weight, from others there."""
    particles, ok = _drawn(keys, crew, rough, handed(eta), n)
    if not ok:
        raise NoFitError
    return particles


@jit
def _climb(
    keys: Key[Array, " B"], crew: Target, walkers: Walkers, eta: Float[Array, ""]
) -> tuple[Walkers, Bool[Array, ""]]:
    n_rows, size = walkers.particles.risk.shape
    everything = n_rows * size

    def going_on(carry):
        rung, fits, _, at, counting = carry
        arrived = (at == eta) & (counting >= _SOME * everything)
        return ~arrived & (counting >= _POOR * everything) & (rung < _MOST_RUNGS) & (fits < _MOST_FITS)

    def up(carry):
        rung, fits, particles, at, _ = carry
        fit, at = _next(particles, at, eta)
        particles = _weighted(fresh_keys(keys, 2, walkers.moves + rung), crew, fit, at, size)
        return rung + 1, fits + (at == eta).astype(int), particles, at, ess(particles.log_weights.reshape(-1))

    none = jnp.zeros((), int)
    start = (none, none, walkers.particles, walkers.eta[0], jnp.asarray(everything, float))
    rungs, _, particles, at, counting = jax.lax.while_loop(going_on, up, start)
    moves = walkers.moves + rungs
    everywhere = jnp.ones(n_rows, bool)
    particles = resample(fresh_keys(keys, 3, moves), _row_by_row(particles), everywhere)
    there = (at == eta) & (counting >= _SOME * everything)
    return replace(walkers, particles=particles, eta=jnp.full(n_rows, eta), moves=moves), there


def _next(particles: Particles, at: Float[Array, ""], eta: Float[Array, ""]) -> tuple[_Fit, Float[Array, ""]]:
    """What to draw from for a learning rate further towards `eta`, and which."""
    one = particles.flat()
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


def _weighted(keys: Key[Array, " B"], crew: Target, fit: _Fit, eta: Float[Array, ""], size: int) -> Particles:
    """Draws of Student's t on every row, and their weights, which sum to one over all rows."""
    dim = len(fit.centre)
    uniform = uniforms(keys, dim + _DF // 2, size)
    chi_squared = -2 * sum(jnp.log(uniform[dim + i]) for i in range(_DF // 2))
    # Once for all: what reads the normals must not draw them again.
    z = jax.lax.optimization_barrier(normals(uniform[:dim]) * jnp.sqrt(_DF / chi_squared)[None])
    root = jnp.broadcast_to(fit.root[None], (len(keys), dim, dim))
    particles = crew.evaluate(fit.centre[:, None, None] + transform(root, z))
    log_t = -0.5 * (_DF + dim) * jnp.log1p(jnp.square(z).sum(0) / _DF)
    ratio = log_density(particles, jnp.full(len(keys), eta)) - log_t
    return particles.with_log_weights(normalise(ratio.reshape(-1)).reshape(ratio.shape))


def _row_by_row(particles: Particles) -> Particles:
    return particles.with_log_weights(normalise(particles.log_weights))


@jit
def _drawn(
    keys: Key[Array, " B"], crew: Target, rough: Particles, eta: Float[Array, ""], n: int
) -> tuple[Particles, Bool[Array, ""]]:
    one = rough.flat()
    many = _weighted(fresh_keys(keys, 0, jnp.zeros(len(keys), int)), crew, _fit(one, one.log_weights), eta, _OVER * n)
    rows = _row_by_row(many)
    weights = rows.weights
    kept = jax.vmap(stratified, (0, 0, None))(fresh_keys(keys, 1, jnp.zeros(len(keys), int)), weights, n)
    there = ess(rows.log_weights).min() >= _FAIR * weights.shape[-1]
    return many.picked(kept), there
