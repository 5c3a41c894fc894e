"""The pool carried to every row by maps, in programs of some evaluations of the risk each."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._core.particles import Particles, choose
from calibayes._core.target import Target
from calibayes.samplers.initial import population_target
from calibayes.samplers.transport.maps import Base, Maps, first_maps, refit, spread, weigh

_LONG = 2**36
"""Losses of one observation and particle, which take a processor some ten seconds."""


class Wanted(NamedTuple):
    """Of maps: that a share of rows has an effective size of so much of its particles; or a limit of evaluations."""

    size: float
    share: float
    limit: int

    def told(self, eta: float, target: Target, base: Base) -> Any:
        """What a program is told, with the learning rate, in one go. It takes one evaluation at a time if that is
        long, to be interrupted in between.
        """
        return host_array([eta, self.size, self.share, self.limit if losses(target, base) < _LONG else 1])


def losses(target: Target, base: Base) -> int:
    """Of one observation and particle, that an evaluation of the risk asks for."""
    return target.reference_loss.size * target.n_replicates * base.log_density.shape[-1]


class Carried(NamedTuple):
    """The pool on every row by some maps, weighted there."""

    maps: Maps
    particles: Particles
    ess: Float[Array, " B"]


def n_particles(carried: Carried) -> int:
    return carried.particles.risk.shape[-1]


@jit
def set_out(
    target: Target,
    base: Base,
    few: Base,
    moves: Float[Array, "K B"],
    ratio: Float[Array, ""],
    wanted: Float[Array, " 4"],
) -> tuple[Particles, Carried, Int[Array, ""]]:
    """The pool on the data at a learning rate, as one row; and some of it on every row."""
    populations = population_target(target)
    data, _ = weigh(populations, base, spread(base, populations, ratio), wanted[0])
    return data.merge_replicates(), *carry(target, few, first_maps(target, base, moves, ratio), wanted)


@jit
def carry(target: Target, base: Base, maps: Maps, wanted: Float[Array, " 4"]) -> tuple[Carried, Int[Array, ""]]:
    """The pool on every row by some maps, which are fitted on as long as they are not what is `Wanted`; and how many
    evaluations of the risk that took.
    """
    eta, size, share, limit = wanted
    on_cpu = jax.default_backend() == "cpu"

    def going_on(at):
        carried, evaluations = at
        good = (carried.ess >= size * n_particles(carried)).astype(float).mean() >= share
        return (evaluations == 0) | (evaluations < limit.astype(np.int32)) & ~good

    def once(at):
        old, evaluations = at
        fitted = lambda: refit(base, old.maps, old.particles.log_weights)
        maps = jax.lax.cond(evaluations == 0, lambda: old.maps, fitted) if on_cpu else fitted()
        return _better(Carried(maps, *weigh(target, base, maps, eta)), old), evaluations + 1

    if on_cpu:
        # One place that evaluates the risk is compiled sooner than two. It begins with what is worse than anything.
        shapes = jax.eval_shape(lambda: weigh(target, base, maps, eta))
        none = jax.tree.map(lambda leaf: jnp.full(leaf.shape, -1, leaf.dtype), shapes)
        first, evaluations = Carried(maps, *none), 0
    else:
        # And runs longer elsewhere, where every condition is waited for.
        first, evaluations = Carried(maps, *weigh(target, base, maps, eta)), 1
    return jax.lax.while_loop(going_on, once, (first, jnp.asarray(evaluations, np.int32)))


@jit
def fit_on(target: Target, base: Base, carried: Carried, eta: Float[Array, ""]) -> Carried:
    """Every row's map fitted once more."""
    maps = refit(base, carried.maps, carried.particles.log_weights)
    return _better(Carried(maps, *weigh(target, base, maps, eta)), carried)


@jit
def _better(new: Carried, old: Carried) -> Carried:
    """On each row the new, unless it clearly failed.

    Not the larger effective size: that would pick the weights that happened to miss a tail.
    """
    where = new.ess > 0.5 * old.ess
    return Carried(
        new.maps.where(where, old.maps),
        choose(where, new.particles, old.particles),
        jnp.where(where, new.ess, old.ess),
    )


@jit
def refit_some(
    target: Target, base: Base, carried: Carried, rows: Int[Array, " R"], eta: Float[Array, ""]
) -> tuple[Carried, Carried]:
    """All rows, some of which are fitted once more; and those."""
    old = Carried(some_maps(carried.maps, rows), carried.particles.select(rows), carried.ess[rows])
    own = base.of_rows(rows)
    new = fit_on(target.select(rows), own, old, eta)
    maps = Maps(carried.maps.centre.at[:, rows].set(new.maps.centre), carried.maps.root.at[rows].set(new.maps.root))
    return Carried(maps, carried.particles.with_replicates(rows, new.particles), carried.ess.at[rows].set(new.ess)), new


@jit
def some_maps(maps: Maps, rows: Int[Array, " R"]) -> Maps:
    return Maps(maps.centre[:, rows], maps.root[rows])
