"""Where particles come from: the prior, by a ladder; or a posterior nearby, by forgetting it.

*From the prior*: ASMC* from eta 0, with coarse rungs and Crank-Nicolson moves. It needs no hint, no gradient and no
mode.

*By MCMC*, as the paper suggests: every particle is a chain of its own, started from a draw of the
posterior on the data, and moved at a fixed eta until the row has forgotten its start. After n moves the
correlation, over particles, between where they started and where they are is below 0.1 in every parameter;
after 3 n it is near 0.001. If the mean of a parameter or of the risk has still changed between n and 3 n, by more
than its Monte Carlo error, the row was not there yet and begins again from where it is. A row that does not settle in
`max_moves` is reported.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.rng import replicate_keys
from calibayes._core.convergence import within_between_variances
from calibayes._core.particles import Particles, mean
from calibayes._core.target import Target, evaluate
from calibayes.kernels import CrankNicolson
from calibayes.samplers.tempering import TemperingSchedule, TemperingState, init_tempering, rejuvenate, temper_steps

_FAINT = 0.1
_ALIVE = 10
_DRIFT = 4.5
_UNKNOWN = 2**30
_CHUNK = 16
_LOOK_EVERY = 4
_MAX_STEPS = 2_000
_FROM_ELSEWHERE = 64
_PATIENCE = 200
_AT_ONCE = 64

STAGE = 16.0
"""On the way from the prior eta grows by this at most before it is looked at whether the posterior's spread matches."""

N_POPULATIONS = 20
"""Rows that are sampled at once where a few are: the populations of a pool, an audit, a repair. One shape, so that
they share what is compiled."""

COARSE_SCHEDULE = TemperingSchedule(
    CrankNicolson(), ess_target=0.5, resample_below=1.0, n_moves=4, resampling="stratified"
)
"""Rungs that halve the effective size, each followed by a resampling, so that weights are always equal, and enough
moves to spread again."""


class InitialDraws(NamedTuple):
    """Rough draws of the posterior on the data at `eta`, and the target with its reference among them."""

    target: Target
    particles: Particles
    eta: float


def temper_from_prior(key: PRNGKeyArray, target: Target, eta: float, n_particles: int) -> TemperingState:
    """Particles at `eta` on every row, by ASMC* from the prior."""
    walk_key, walkers = start_at_prior(key, target, n_particles)
    return temper_to(replicate_keys(walk_key, target.n_replicates), target, walkers, eta)


def start_at_prior(key: PRNGKeyArray, target: Target, n_particles: int) -> tuple[PRNGKeyArray, TemperingState]:
    """Particles at eta 0 about to leave, each row's its own; and a key for the way."""
    prior_key, walk_key = jax.random.split(key)
    particles = prior_particles(prior_key, target, n_particles)
    alive = int(np.isfinite(particles.risk).sum(-1).min())
    if alive < _ALIVE:
        raise ValueError(
            f"the loss is infinite or NaN at all but {alive} of {n_particles} draws of the prior. Choose a prior "
            "nearer to where the loss is finite, or pass draws of the posterior (draws=)."
        )
    return walk_key, init_tempering(COARSE_SCHEDULE.kernel, particles, host_array(0.0))


def temper_to(keys: Key[Array, " B"], target: Target, walkers: TemperingState, eta: float) -> TemperingState:
    """Every row at `eta`, by coarse rungs."""
    for _ in range(_MAX_STEPS // _CHUNK):
        walkers = temper_steps(keys, target, walkers, host_array(eta), COARSE_SCHEDULE, _CHUNK)
        if (np.asarray(walkers.eta) == np.asarray(host_array(eta))).all():
            return walkers
    raise RuntimeError(
        f"the ladder did not reach eta = {eta:g} in {_MAX_STEPS} rungs. The prior may be very far from the data: "
        "choose a narrower one, or pass draws of the posterior (draws=)."
    )


def initial_draws(
    key: PRNGKeyArray, target: Target, eta: float, n_particles: int, draws: Float[Array, "M K"] | None
) -> InitialDraws:
    """The posterior on the data at `eta`, from the prior or from the user's draws of it."""
    temper_key, pick_key = jax.random.split(key)
    if draws is None:
        particles = temper_from_prior(temper_key, target.replicate(0), eta, n_particles).particles
    else:
        picked = jax.random.choice(pick_key, draws, (n_particles,), replace=len(draws) < n_particles)
        particles = evaluate(target.replicate(0), target.coordinates.unconstrain(picked.T[:, None, :]))
    target = target.recentre(centre(target, particles))
    return InitialDraws(target, evaluate(target.replicate(0), particles.theta), eta)


@jit
def centre(target: Target, particles: Particles) -> Float[Array, " K"]:
    """The mean of particles on rows of the same density, as parameters."""
    return mean(target.constrained(particles).theta, particles.weights).mean(1)


def rejuvenate_until_mixed(
    key: PRNGKeyArray,
    target: Target,
    particles: Particles,
    eta: float,
    max_moves: int = 2_000,
    at_least: int = _FROM_ELSEWHERE,
) -> tuple[TemperingState, Bool[Array, " B"]]:
    """Particles moved at `eta` until each row has forgotten its start and settled; and which rows have.

    Crank-Nicolson moves forget the bulk in no time, but only the random walks among them empty a tail that a start
    elsewhere filled: hence `at_least` so many moves, unless the particles were drawn at `eta` already.
    """
    walkers = init_tempering(COARSE_SCHEDULE.kernel, particles, host_array(eta))
    memory = _Memory.of(walkers, at_least)
    keys = replicate_keys(key, target.n_replicates)
    walkers, memory = _until_settled(keys, target, walkers, memory, max_moves)
    return walkers, memory.settled


def _until_settled(
    keys: Key[Array, " B"], target: Target, walkers: TemperingState, memory: "_Memory", max_moves: int
) -> tuple[TemperingState, "_Memory"]:
    done = 0
    while done + _LOOK_EVERY <= max_moves:
        left, patience = jnp.asarray(max_moves - done), jnp.asarray(_PATIENCE - done)
        moves, walkers, memory = _settle(keys, target, walkers, memory, left, patience)
        done += int(moves)
        restless = np.flatnonzero(~np.asarray(memory.settled))
        if not len(restless):
            break
        if done >= _PATIENCE and len(restless) <= N_POPULATIONS < target.n_replicates:
            # A few rows must not keep all of them moving.
            rows = jnp.asarray(np.resize(restless, N_POPULATIONS))
            few = _some_rows(walkers, memory, rows)
            few = _until_settled(keys[rows], target.select(rows), *few, max_moves - done)
            # Each once: those that fill up the crew go nowhere, off the end.
            places = np.where(
                np.arange(N_POPULATIONS) < len(restless), np.resize(restless, N_POPULATIONS), target.n_replicates
            )
            return _put_back(walkers, memory, jnp.asarray(places), *few)
    return walkers, memory


@jit
def _settle(
    keys: Key[Array, " B"],
    target: Target,
    walkers: TemperingState,
    memory: "_Memory",
    left: Int[Array, ""],
    patience: Int[Array, ""],
) -> tuple[Int[Array, ""], TemperingState, "_Memory"]:
    """Moves until all rows have settled or, out of patience, all but a few; and their number.

    Not too many at once, so that there is a moment to be interrupted in.
    """

    def going_on(carry):
        done, _, memory = carry
        restless = (~memory.settled).sum()
        a_few = (done >= patience) & (restless <= N_POPULATIONS) & (target.n_replicates > N_POPULATIONS)
        return (restless > 0) & ~a_few & (done + _LOOK_EVERY <= left) & (done < _AT_ONCE)

    def look(carry):
        done, walkers, memory = carry
        walkers = rejuvenate(keys, target, walkers, COARSE_SCHEDULE.kernel, _LOOK_EVERY, memory.settled)
        return done + _LOOK_EVERY, walkers, memory.after(walkers)

    return jax.lax.while_loop(going_on, look, (jnp.zeros_like(left), walkers, memory))


def moved(
    key: PRNGKeyArray, target: Target, particles: Particles, eta: float, to: float
) -> tuple[Particles, Bool[Array, " B"]]:
    """Weighted particles at `eta`, at another learning rate, by ASMC*; and which rows have settled there."""
    temper_key, mix_key = jax.random.split(key)
    walkers = init_tempering(COARSE_SCHEDULE.kernel, particles, host_array(eta))
    walkers = temper_to(replicate_keys(temper_key, target.n_replicates), target, walkers, to)
    walkers, settled = rejuvenate_until_mixed(mix_key, target, walkers.particles, to, at_least=0)
    return walkers.particles, settled


class _Memory(eqx.Module):
    """Where each row began, and whether it still shows."""

    start: Float[Array, "K B M"]
    begun: Int[Array, " B"]
    """Moves when the row began to be watched."""
    enough: Int[Array, " B"]
    """Moves at which it will be judged; not known before the correlation with the start is faint."""
    means: Float[Array, "P B"]
    """Means of the parameters and the risk at that moment."""
    settled: Bool[Array, " B"]
    at_least: int = eqx.field(static=True)

    @staticmethod
    @eqx.filter_jit
    def of(walkers: TemperingState, at_least: int) -> "_Memory":
        n_replicates = walkers.moves.shape[0]
        unknown = jnp.full(n_replicates, _UNKNOWN, int)
        means, _ = _moments(walkers.particles)
        return _Memory(walkers.particles.theta, walkers.moves, unknown, means, jnp.zeros(n_replicates, bool), at_least)

    @jit
    def after(self, walkers: TemperingState) -> "_Memory":
        """What is left after some moves."""
        particles, moves = walkers.particles, walkers.moves
        means, errors = _moments(particles)
        correlation = jnp.abs(_correlation(self.start, particles.theta, particles.weights)).max(0)
        faint = (correlation < _FAINT) & (self.enough == _UNKNOWN)
        lasting = jnp.maximum(3 * (moves - self.begun), self.at_least)
        enough = jnp.where(faint, self.begun + lasting, self.enough)
        judged = (moves >= enough) & ~self.settled
        drifted = (jnp.abs(means - self.means) > _DRIFT * errors).any(0)
        again = judged & drifted
        return _Memory(
            jnp.where(again[None, :, None], particles.theta, self.start),
            jnp.where(again, moves, self.begun),
            jnp.where(again, _UNKNOWN, enough),
            jnp.where(faint[None], means, self.means),
            self.settled | (judged & ~drifted),
            self.at_least,
        )


@jit
def _some_rows(walkers: TemperingState, memory: _Memory, rows: Int[Array, " R"]) -> tuple[TemperingState, _Memory]:
    some = jax.tree.map(lambda leaf: leaf[rows], _without_particles(walkers))
    start, means = memory.start[:, rows], memory.means[:, rows]
    remembered = _Memory(start, memory.begun[rows], memory.enough[rows], means, memory.settled[rows], memory.at_least)
    return _with_particles(some, walkers.particles.select(rows)), remembered


@jit
def _put_back(
    walkers: TemperingState, memory: _Memory, places: Int[Array, " R"], few: TemperingState, few_memory: _Memory
) -> tuple[TemperingState, _Memory]:
    put = lambda leaf, new: leaf.at[places].set(new, mode="drop")
    whole = jax.tree.map(put, _without_particles(walkers), _without_particles(few))
    memory = eqx.tree_at(lambda m: m.settled, memory, put(memory.settled, few_memory.settled))
    return _with_particles(whole, walkers.particles.with_replicates(places, few.particles)), memory


def _without_particles(walkers: TemperingState) -> TemperingState:
    """What has rows in front."""
    return eqx.tree_at(lambda w: w.particles, walkers, None)


def _with_particles(walkers: TemperingState, particles: Particles) -> TemperingState:
    return eqx.tree_at(lambda w: w.particles, walkers, particles, is_leaf=lambda leaf: leaf is None)


@jit
def first_stage(particles: Particles) -> Float[Array, ""]:
    """A learning rate small enough for the prior, which the particles are of, to matter still: of the order of one over
    the spread of the risk. Not a number if too few risks are any.
    """
    alive = jnp.isfinite(particles.risk)
    low, high = jnp.nanquantile(jnp.where(alive, particles.risk, jnp.nan), jnp.array([0.25, 0.75]))
    return jnp.where(alive.sum(-1).min() >= _ALIVE, 1 / jnp.maximum(high - low, 1e-6), jnp.nan)


@jit
def spreads_of(particles: Particles) -> tuple[Float[Array, " P"], Float[Array, " P"]]:
    """Of the parameters and the risk, within populations and between them."""
    return within_between_variances(jnp.concatenate([particles.theta, particles.risk[None]]))


@jit
def population_target(target: Target) -> Target:
    """The data's row, once for each population."""
    return target.select(jnp.zeros(N_POPULATIONS, int))


@jit
def prior_particles(key: PRNGKeyArray, target: Target, n_particles: int) -> Particles:
    """Draws of the prior on every row, each row's its own."""
    draw = lambda key: target.prior.sample(key, (n_particles, target.dim)).astype(target.reference.dtype)
    theta = jax.lax.map(draw, jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(target.n_replicates)))
    return target.evaluate(target.coordinates.unconstrain(jnp.moveaxis(theta, -1, 0)))


def _moments(particles: Particles) -> tuple[Float[Array, "P B"], Float[Array, "P B"]]:
    """Means of the parameters and the risk, and the error of the difference of two independent such means."""
    risk = jnp.where(jnp.isfinite(particles.risk), particles.risk, 0.0)
    values = jnp.concatenate([particles.theta, risk[None]])
    means = mean(values, particles.weights)
    variance = mean(jnp.square(values - means[:, :, None]), particles.weights)
    return means, jnp.sqrt(2 * variance / values.shape[-1])


def _correlation(a: Array, b: Array, weights: Array) -> Float[Array, "K B"]:
    def centre(values):
        return values - mean(values, weights)[:, :, None]

    a, b = centre(a), centre(b)
    power = mean(a * a, weights) * mean(b * b, weights)
    return mean(a * b, weights) / jnp.sqrt(jnp.where(power > 0, power, 1.0))
