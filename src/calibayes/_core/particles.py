r"""Weighted particles on many rows, and what is asked of them.

Axes: K parameters, B rows, M particles. Parameters lead and particles are minor, because the risk
engine runs over particles innermost. Weights are kept as logarithms, normalised to sum to one.
No function here sorts: a share of particles on one side of a point is a comparison and a sum, and a
quantile is found from such shares, bit by bit.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, UInt

from calibayes._backend.jit import jit
from calibayes._backend.linalg import cholesky

UNROLLED = 16
"""Up to this many parameters a product of matrix and particles is unrolled; beyond, it is one of matrices."""


class Particles(eqx.Module):
    """M weighted particles on each of B rows, with what was evaluated at them."""

    theta: Float[Array, "K B M"]
    """Where they are, in the target's free coordinates: the parameters themselves, where no prior bounds them."""
    risk: Float[Array, "B M"]
    log_prior: Float[Array, "B M"]
    log_weights: Float[Array, "B M"]

    @property
    def weights(self) -> Float[Array, "B M"]:
        return jnp.exp(self.log_weights)

    def with_log_weights(self, log_weights: Float[Array, "B M"]) -> "Particles":
        return Particles(self.theta, self.risk, self.log_prior, log_weights)

    @eqx.filter_jit
    def replicate(self, index: int) -> "Particles":
        """One row alone; the rows' axis stays."""
        at = slice(index, index + 1)
        return Particles(self.theta[:, at], self.risk[at], self.log_prior[at], self.log_weights[at])

    @jit
    def select(self, indices: Int[Array, " R"]) -> "Particles":
        """Some rows, in this order; a row may come again."""
        return Particles(self.theta[:, indices], self.risk[indices], self.log_prior[indices], self.log_weights[indices])

    @jit
    def with_replicates(self, indices: Int[Array, " R"], new: "Particles") -> "Particles":
        """These particles, but those rows replaced."""
        return Particles(
            self.theta.at[:, indices].set(new.theta),
            self.risk.at[indices].set(new.risk),
            self.log_prior.at[indices].set(new.log_prior),
            self.log_weights.at[indices].set(new.log_weights),
        )

    def take(self, ancestors: Int[Array, "B n"]) -> "Particles":
        """Some of every row's particles, of equal weight."""
        return Particles(
            jnp.take_along_axis(self.theta, jnp.broadcast_to(ancestors[None], (len(self.theta), *ancestors.shape)), -1),
            jnp.take_along_axis(self.risk, ancestors, -1),
            jnp.take_along_axis(self.log_prior, ancestors, -1),
            uniform_log_weights(ancestors.shape),
        )

    @jax.jit
    def merge_replicates(self) -> "Particles":
        """All rows as one, of the same density: several populations as a single one."""
        joined = Particles(
            self.theta.reshape(len(self.theta), 1, -1),
            self.risk.reshape(1, -1),
            self.log_prior.reshape(1, -1),
            self.log_weights.reshape(1, -1),
        )
        return joined.with_log_weights(normalise(joined.log_weights))


def uniform_log_weights(shape: tuple[int, ...]) -> Float[Array, "B M"]:
    return jnp.full(shape, -math.log(shape[-1]), float)


def normalise(log_weights: Float[Array, "... M"]) -> Float[Array, "... M"]:
    """Log-weights that sum to one; all minus infinity stays so, and has an effective size of zero."""
    most = log_weights.max(-1, keepdims=True)
    # Taken off first: the logarithm of a sum is lost in the rounding of a large number.
    relative = log_weights - jnp.broadcast_to(jnp.where(jnp.isfinite(most), most, 0.0), log_weights.shape)
    total = jax.nn.logsumexp(relative, axis=-1, keepdims=True)
    return jnp.where(jnp.isfinite(total), relative - jnp.broadcast_to(total, log_weights.shape), -jnp.inf)


def reweight(log_weights: Float[Array, "B M"], risk: Float[Array, "B M"], step: Float[Array, " B"]):
    r"""Weights after eta moved by `step`: $W_t = w_{t-1}\, q^{\eta_t - \eta_{t-1}}$, normalised."""
    return normalise(_unnormalised(log_weights, risk, step))


@jax.jit
def reweight_particles(particles: Particles, step: Float[Array, ""]) -> Particles:
    """Particles reweighted by one step of eta on every row."""
    steps = jnp.full(particles.risk.shape[0], step)
    return particles.with_log_weights(reweight(particles.log_weights, particles.risk, steps))


def _unnormalised(log_weights, risk, step):
    # No weight where the risk is no number, in both directions: going down, minus infinity would be plus.
    # Nor where there was none: minus infinity less minus infinity is no number.
    alive = jnp.isfinite(risk) & (log_weights > -jnp.inf)
    return jnp.where(alive, log_weights - step[:, None] * jnp.where(alive, risk, 0.0), -jnp.inf)


def ess(log_weights: Float[Array, "... M"]) -> Float[Array, "..."]:
    r"""Effective sample size $(\sum W)^2 / \sum W^2$; weights need not be normalised."""
    return _size(_scaled(log_weights))


def _size(weights: Float[Array, "... M"]) -> Float[Array, "..."]:
    total, squares = weights.sum(-1), jnp.square(weights).sum(-1)
    return jnp.where(squares > 0, jnp.square(total) / jnp.where(squares > 0, squares, 1.0), 0.0)


def _scaled(log_weights: Float[Array, "... M"]) -> Float[Array, "... M"]:
    """Weights of which the largest is one."""
    top = jnp.max(log_weights, axis=-1, keepdims=True)
    return jnp.exp(log_weights - jnp.broadcast_to(jnp.where(jnp.isfinite(top), top, 0.0), log_weights.shape))


def ess_after(log_weights: Float[Array, "B M"], risk: Float[Array, "B M"], step: Float[Array, " B"]):
    """The effective sample size that moving eta by `step` would leave."""
    return ess(_unnormalised(log_weights, risk, step))


def weights_after(
    log_weights: Float[Array, "B M"], risk: Float[Array, "B M"], step: Float[Array, " B"]
) -> tuple[Float[Array, "B M"], Float[Array, " B"]]:
    """The weights that moving eta by `step` would leave, by one exponential each, and their effective size."""
    scaled = _scaled(_unnormalised(log_weights, risk, step))
    total = scaled.sum(-1)
    return scaled / jnp.where(total > 0, total, 1.0)[:, None], _size(scaled)


def mean(theta: Float[Array, "K B M"], weights: Float[Array, "B M"]) -> Float[Array, "K B"]:
    return (theta * weights[None]).sum(-1)


def covariance(theta: Float[Array, "K B M"], weights: Float[Array, "B M"]) -> Float[Array, "B K K"]:
    """Weighted, centred covariance of every row."""

    def one(theta: Float[Array, "K M"], weights: Float[Array, " M"]) -> Float[Array, "K K"]:
        centred = theta - (theta @ weights)[:, None]
        return (centred * weights[None]) @ centred.T

    return _row_by_row(one, theta, weights)


def outer_products(theta: Float[Array, "K B M"], weights: Float[Array, "B M"]) -> Float[Array, "B K K"]:
    """Weighted sum of the outer products of particles on every row; weights of any sign."""
    return _row_by_row(lambda theta, weights: (theta * weights[None]) @ theta.T, theta, weights)


def _row_by_row(fn: Any, theta: Float[Array, "K B M"], weights: Float[Array, "B M"]) -> Float[Array, "B K K"]:
    """`fn` of every row. A batched product would first copy the particles, rows leading: not on a CPU."""

    def by_row(theta, weights):
        return jax.lax.map(lambda b: fn(theta[:, b], weights[b]), jnp.arange(weights.shape[0]))

    return jax.lax.platform_dependent(theta, weights, cpu=by_row, default=jax.vmap(fn, (1, 0)))


def transform(matrix: Float[Array, "B K K"], theta: Float[Array, "K B M"]) -> Float[Array, "K B M"]:
    """`matrix @ theta` on every row; unrolled for few parameters, so that it is one pass without copies."""
    dim = len(theta)
    if dim > UNROLLED:
        return jnp.einsum("bkj,jbm->kbm", matrix, theta)
    return jnp.stack([sum(matrix[:, k, j, None] * theta[j] for j in range(dim)) for k in range(dim)])


def factor(covariance: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    """Lower Cholesky factor; a nearly singular covariance gets a ridge, a collapsed one a tiny diagonal."""
    dim = covariance.shape[-1]
    eye = jnp.eye(dim, dtype=covariance.dtype)[None]
    variance = jnp.maximum(jnp.diagonal(covariance, axis1=-2, axis2=-1), jnp.finfo(covariance.dtype).tiny)
    scale = jnp.sqrt(variance)
    correlation = covariance / (scale[:, :, None] * scale[:, None, :])
    ridged = (correlation * (1 - eye) + eye + 1e-5 * eye) / (1 + 1e-5)
    root = cholesky(ridged)
    return scale[:, :, None] * jnp.where(jnp.isfinite(root), root, eye)


def share_below(values: Float[Array, "... M"], weights: Float[Array, "... M"], point: Float[Array, "..."]):
    """Weighted share of particles below a point; those equal to it count half."""
    at = jnp.broadcast_to(point[..., None], values.shape)
    side = jnp.where(values < at, 1.0, jnp.where(values == at, 0.5, 0.0))
    return (side * weights).sum(-1)


def quantile(
    values: Float[Array, "... M"], weights: Float[Array, "... M"], probability: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Smallest value with at least `probability` of the weight at or below it.

    It is found among all floating-point numbers, in their order, bit by bit of its place there: exactly, whatever the
    range. Several bits at a time where a pass over the particles takes less time than its launch.
    """
    bits, at_once = jnp.finfo(values.dtype).bits, 1 if jax.default_backend() == "cpu" else 4
    kind = jnp.uint32 if bits == 32 else jnp.uint64
    infinity = jnp.asarray(0xFF800000 if bits == 32 else 0xFFF0000000000000, kind)
    least, most = values.min(-1), values.max(-1)
    parts = jnp.arange(1, 2**at_once, dtype=kind).reshape(-1, *(1,) * probability.ndim)

    def look(i, place):
        """The place as far as it is known, and zeros; then with more bits."""
        shift = (bits - at_once * (i + 1)).astype(kind)
        at = _at_place(jnp.minimum(place[None] + (parts << shift) - 1, infinity), values.dtype)
        below = jnp.where(values[None] <= at[..., None], weights[None], 0.0).sum(-1)
        # All weights may sum to a little less than asked for, or none be asked for.
        short = ((below < probability[None]) | ~(at >= least[None])) & ~(at >= most[None])
        return place + (short.sum(0).astype(kind) << shift)

    place = jax.lax.fori_loop(0, bits // at_once, look, jnp.zeros(probability.shape, kind))
    return _at_place(place, values.dtype)


def _at_place(place: UInt[Array, "..."], dtype: Any) -> Float[Array, "..."]:
    """A float by its place among all floats, counted from the least."""
    top = jnp.asarray(1 << (8 * place.dtype.itemsize - 1), place.dtype)
    at = jax.lax.bitcast_convert_type(jnp.where(place >= top, place ^ top, ~place), dtype)
    # What is too small to have all digits is zero to a processor.
    return jnp.where(jnp.abs(at) < jnp.finfo(dtype).tiny, 0.0, at)


def stratified(key: PRNGKeyArray, weights: Float[Array, " M"], n: int | None = None) -> Int[Array, " n"]:
    """N ancestors, or M, by stratified resampling (Kitagawa 1996): one uniform in each of as many equal strata."""
    return _inverse_cdf(weights, jax.random.uniform(key, weights.shape if n is None else (n,)))


def systematic(key: PRNGKeyArray, weights: Float[Array, " M"]) -> Int[Array, " M"]:
    """Ancestors by systematic resampling: the same uniform in each of M equal strata."""
    return _inverse_cdf(weights, jnp.full_like(weights, jax.random.uniform(key, ())))


def _inverse_cdf(weights: Float[Array, " M"], uniforms: Float[Array, " n"]) -> Int[Array, " n"]:
    size, n = weights.shape[0], uniforms.shape[0]
    points = (jnp.arange(n, dtype=weights.dtype) + uniforms) / n
    # A parallel sum of many weights need not be monotone in floating point: make it so.
    cdf = jax.lax.cummax(jnp.cumsum(weights))
    # One pass, where every pass of a loop would be a launch.
    method = "scan" if jax.default_backend() == "cpu" else "scan_unrolled"
    found = jnp.minimum(jnp.searchsorted(cdf, points * cdf[-1], side="right", method=method), size - 1)
    # Nor need it stand still at a weight of zero: such a particle gives way to the last before it that has weight.
    holder = jax.lax.cummax(jnp.where(weights > 0, jnp.arange(size), jnp.argmax(weights > 0)))
    return holder[found]


RESAMPLING = {"stratified": stratified, "systematic": systematic}


def resample(
    keys: Key[Array, " B"], particles: Particles, where: Bool[Array, " B"], scheme: str = "stratified"
) -> Particles:
    """Particles with the chosen rows resampled to equal weights; nothing is done if no row is."""

    def do() -> Particles:
        ancestors = jax.vmap(RESAMPLING[scheme])(keys, particles.weights)
        return choose(where, particles.take(ancestors), particles)

    return jax.lax.cond(where.any(), do, lambda: particles)


@jax.jit
def pool(parts: list[Particles]) -> Particles:
    """Several sets of particles on the same rows as one."""
    joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, -1), *parts)
    return joined.with_log_weights(normalise(joined.log_weights))


def choose(where: Bool[Array, " B"], new: Particles, old: Particles) -> Particles:
    """`new` on the rows of `where`, `old` on the others."""
    at = where[:, None]
    return Particles(
        jnp.where(at[None], new.theta, old.theta),
        jnp.where(at, new.risk, old.risk),
        jnp.where(at, new.log_prior, old.log_prior),
        jnp.where(at, new.log_weights, old.log_weights),
    )
