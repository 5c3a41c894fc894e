r"""Affine maps from the pool to every row, fitted to importance weights.

Row b's particles are $T_b(u_m) = \mu_b + L_b u_m$, with $u$ a population of the pool whitened by its own mean and
covariance. Their weights are the ratio of the row's density to the pool's,

$$ \log w_m = [-\eta R_b(T_b u_m) + \log p(T_b u_m)] - [-\eta_0 R(\theta_m) + \log p(\theta_m)] : $$

the map is affine, so its Jacobian is the same for all m and cancels. A refit moves $\mu_b, L_b$ to the weighted mean
and covariance. What counts is how these are had from weights that are far from even:

- *moments*: the weighted ones, the weights flattened ($w^t$, t below one) until enough of them count, and the
  covariance shrunk towards the present map's by what noise adds to their distance;
- *regression*, where weighted moments would need more particles than count: on normal u, for
  $\log w = a + \delta^\top u - u^\top Q u / 2$, the averages of $\log w \cdot u$ and $-\log w \cdot uu^\top$ over all
  particles (centred) are $\delta$ and $Q$ (Stein's identity), so the row's precision is $I + Q$ and its mean
  $(I + Q)^{-1}\delta$. Q is shrunk likewise.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from calibayes._backend.jit import jit
from calibayes._backend.linalg import cholesky, clip_eigenvalues, lower_inverse
from calibayes._core.particles import (
    Particles,
    covariance,
    ess,
    factor,
    mean,
    normalise,
    outer_products,
    transform,
)
from calibayes._core.sandwich import influences, mean_shifts
from calibayes._core.target import Target, log_density

ENOUGH = 25
"""Effective particles a parameter, for weighted moments to be trusted."""
_FEW_PARAMETERS = 0.1
"""Moments alone, if that is less than this share of all particles."""
_WIDER = 0.8
"""What is added to a map's variances for one parameter. Less for more: by chance a particle of many coordinates is in
some tail anyway, and width costs effective size in every one of them."""
_STRETCH = 4.0
"""No refit widens or narrows a direction by more, in variance."""
_LOWEST = 30.0
_HALVINGS = 12


class Base(eqx.Module):
    """The pool, whitened population by population, and its log-density."""

    u: Float[Array, "K R M"]
    log_density: Float[Array, "R M"]
    centre: Float[Array, " K"]
    root: Float[Array, "K K"]
    """Mean and factor of the covariance of all populations together."""

    @staticmethod
    @jit
    def of(particles: Particles, eta: Float[Array, ""]) -> "Base":
        theta, weights = particles.theta, particles.weights
        centre, within = mean(theta, weights), covariance(theta, weights)
        between = jnp.atleast_2d(jnp.cov(centre, bias=True))
        return Base(
            transform(lower_inverse(factor(within)), theta - centre[:, :, None]),
            log_density(particles, jnp.full(weights.shape[0], eta)),
            centre.mean(1),
            factor((within.mean(0) + between)[None])[0],
        )

    @jax.jit
    def turned(self) -> "Base":
        """The same, but every row will be dealt the next population."""
        return Base(jnp.roll(self.u, -1, 1), jnp.roll(self.log_density, -1, 0), self.centre, self.root)

    def few(self, n: int) -> "Base":
        """The same with n particles of each population, where a search or a fit needs no more."""
        return Base(self.u[:, :, :n], self.log_density[:, :n], self.centre, self.root)

    def of_rows(self, rows: Int[Array, " R"]) -> "Base":
        """The populations that some of the rows are dealt, in their order."""
        dealt = rows % self.u.shape[1]
        return Base(self.u[:, dealt], self.log_density[dealt], self.centre, self.root)

    def on_rows(self, n_replicates: int) -> tuple[Float[Array, "K B M"], Float[Array, "B M"]]:
        """A population for every row, dealt out in turn."""
        times = -(-n_replicates // self.u.shape[1])
        return jnp.tile(self.u, (1, times, 1))[:, :n_replicates], jnp.tile(self.log_density, (times, 1))[:n_replicates]


class Maps(eqx.Module):
    centre: Float[Array, "K B"]
    root: Float[Array, "B K K"]

    def where(self, chosen: Bool[Array, " B"], other: "Maps") -> "Maps":
        """These maps on the chosen rows, others elsewhere."""
        return Maps(
            jnp.where(chosen[None], self.centre, other.centre),
            jnp.where(chosen[:, None, None], self.root, other.root),
        )


@jit
def jackknifed(target: Target, pool: Particles, eta: Float[Array, ""]) -> Float[Array, "K B"]:
    """How far the infinitesimal jackknife moves the pool's mean to be each row's."""
    return mean_shifts(target, influences(target, pool.merge_replicates(), eta[None]))


@jit
def first_maps(target: Target, base: Base, moves: Float[Array, "K B"], ratio: Float[Array, ""]) -> Maps:
    """The pool's mean moved, its spread scaled to the row's number of observations."""
    maps = spread(base, target, ratio)
    return Maps(maps.centre + moves, maps.root)


@jit
def spread(base: Base, target: Target, ratio: Float[Array, ""]) -> Maps:
    """The pool as it is, but as wide as `ratio` times its learning rate over the row's makes it."""
    width = jnp.sqrt(ratio * target.counts.n.astype(float) / target.totals())
    centre = jnp.broadcast_to(base.centre[:, None], (target.dim, target.n_replicates))
    return Maps(centre, width[:, None, None] * base.root[None])


@jit
def weigh(target: Target, base: Base, maps: Maps, eta: Float[Array, ""]) -> tuple[Particles, Float[Array, " B"]]:
    """The pool carried to every row and weighted there, and the effective sizes. One evaluation of the risk."""
    u, pool_density = base.on_rows(target.n_replicates)
    particles = target.evaluate(maps.centre[:, :, None] + transform(maps.root, u))
    density = log_density(particles, jnp.full(target.n_replicates, eta))
    ratio = jnp.where(jnp.isfinite(pool_density), density - pool_density, -jnp.inf)
    weighted = particles.with_log_weights(normalise(ratio))
    return weighted, ess(weighted.log_weights)


@jit
def refit(base: Base, maps: Maps, log_weights: Float[Array, "B M"]) -> Maps:
    """Maps to the mean and covariance that the weights speak for."""
    n_replicates, size = log_weights.shape
    u, _ = base.on_rows(n_replicates)
    dim = len(u)
    enough = ENOUGH * dim
    if enough <= _FEW_PARAMETERS * size:
        step, spread = _moments(u, log_weights, enough)
    elif enough >= size:
        step, spread = _regression(u, log_weights)
    else:
        few, moments = ess(log_weights) < enough, _moments(u, log_weights, enough)

        def by_regression_where_few():
            (step, spread), (other_step, other_spread) = moments, _regression(u, log_weights)
            return jnp.where(few[None], other_step, step), jnp.where(few[:, None, None], other_spread, spread)

        step, spread = jax.lax.cond(few.any(), by_regression_where_few, lambda: moments)
    moved = maps.centre + (maps.root * step.T[:, None, :]).sum(-1).T
    # A little wider than fits: weights are unbounded where a map's tails are lighter than the row's, and an estimate
    # of the mass there is too low more often than not.
    wider = (1 + _WIDER / dim**1.25) ** 0.5
    return Maps(moved, wider * maps.root @ factor(spread))


def _moments(u: Float[Array, "K B M"], log_weights: Float[Array, "B M"], enough: int):
    """Mean and covariance by flattened weights, the covariance shrunk towards one."""
    finite = jnp.maximum(log_weights, log_weights.max(-1, keepdims=True) - 1e4)

    def halve(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        even = ess(middle[:, None] * finite) >= enough
        return jnp.where(even, middle, low), jnp.where(even, high, middle)

    few, zero = ess(log_weights) < enough, jnp.zeros(len(log_weights), u.dtype)
    flattened = lambda: jax.lax.fori_loop(0, _HALVINGS, halve, (zero, zero + 1))[0]
    power = jnp.where(few, jax.lax.cond(few.any(), flattened, lambda: zero), 1.0)
    weights = normalise(jnp.where(jnp.isfinite(log_weights), power[:, None] * finite, -jnp.inf))
    return mean(u, jnp.exp(weights)), _shrunk(covariance(u, jnp.exp(weights)), 1 / ess(weights))


def _shrunk(matrix: Float[Array, "B K K"], variance: Float[Array, " B"]) -> Float[Array, "B K K"]:
    """Matrices drawn towards one by what noise adds to their distance from it, given its variance (James-Stein)."""
    dim = matrix.shape[-1]
    eye = jnp.eye(dim)[None]
    distance = jnp.square(matrix - eye).sum((-1, -2))
    kept = jnp.clip(1 - dim * (dim + 1) * variance / jnp.where(distance > 0, distance, 1.0), 0.0, 1.0)
    return eye + kept[:, None, None] * (matrix - eye)


def _regression(u: Float[Array, "K B M"], log_weights: Float[Array, "B M"]):
    """Mean and covariance by Stein's identity, from all particles alike."""
    dim, _, size = u.shape
    top = log_weights.max(-1, keepdims=True)
    value = jnp.maximum(log_weights, top - _LOWEST)
    value = value - value.mean(-1, keepdims=True)
    slope = (u * value[None]).mean(-1)
    rest = value - sum(slope[k][:, None] * u[k] for k in range(dim))
    precision = _shrunk(jnp.eye(dim)[None] - outer_products(u, rest / size), jnp.square(rest).mean(-1) / size)
    precision = jnp.where(jnp.isfinite(precision), precision, jnp.eye(dim)[None])
    inverse = lower_inverse(cholesky(clip_eigenvalues(precision, 1 / _STRETCH, _STRETCH)))
    spread = jnp.matmul(jnp.swapaxes(inverse, -1, -2), inverse, precision=jax.lax.Precision.HIGHEST)
    return (spread * slope.T[:, None, :]).sum(-1).T, spread
