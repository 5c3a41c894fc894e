"""The posterior on the data, carried to every row by a map and corrected by weights.

A pool of draws on the data is all that is sampled. Each row's first map is the infinitesimal jackknife's
(`calibayes._core.sandwich`), with the pool's own spread. An evaluation or two of the risk of a part of the particles fit it
(`maps.py`), well enough to search by; where the search ends one of all particles follows, or more where that tells that
the fit was not good. Rows take the pool's populations in turn, so that they do not all share one Monte Carlo error. At
another learning rate the maps are made from the pool anew: what is found there does not depend on where the search came
from.

Weights tell when a map fails on a row (effective size, Pareto k). Such rows are finished by ASMC*: particles spread to
twice the map's width, weighted for a quarter of eta, climb from there. What weights cannot tell, a mode or a bound
that no particle came to, an audit can (`calibayes.samplers.audit`).
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from calibayes._backend.arguments import integer
from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.rng import fold_key, replicate_keys, split_key
from calibayes._backend.warnings import LongRunWarning
from calibayes._core.convergence import pareto_k, pareto_k_limit
from calibayes._core.particles import Particles, choose, ess
from calibayes._core.target import Target
from calibayes.regions import Region
from calibayes.samplers.base import Sampler, SamplerInfo, Snapshot
from calibayes.samplers.initial import (
    COARSE_SCHEDULE,
    N_POPULATIONS,
    InitialDraws,
    rejuvenate_until_mixed,
    temper_from_prior,
    temper_to,
)
from calibayes.samplers.smc import SMC
from calibayes.samplers.tempering import init_tempering
from calibayes.samplers.transport.initial_eta import initial_eta
from calibayes.samplers.transport.maps import ENOUGH, Base, Maps, jackknifed, weigh
from calibayes.samplers.transport.pool import Pool, make_pool, moved_draws, rough_draws
from calibayes.samplers.transport.transfer import (
    Carried,
    Wanted,
    carry,
    fit_on,
    losses,
    n_particles,
    refit_some,
    set_out,
    some_maps,
)

GOOD = 0.8
_MOSTLY = 0.95
"""Maps are fitted well when this share of rows has that share of its particles' effective size, of those that they
were fitted to."""
_OF_ALL = 0.6
"""And that share of all."""
_FAIR = 0.4
"""They will do to search by when half of the rows have this one."""
LOW_ESS = 0.1
_PART, _FEWEST = 4, 200
"""One particle in so many is searched by, but not fewer than these, nor than a fit by regression needs."""
_SOME_CREWS = 5
"""Of rows that are fitted on by themselves, at most."""
_SHORT = 2**31
"""Losses of one observation and particle; fewer are evaluated without a look whether it will be in vain."""
_STEP = 2.5
"""The pool follows eta by powers of this: maps scale it over less than half a step."""
_BROADER = 4.0
_MANY_FAIL = 0.25

_ENOUGH_DRAWS = 2_000
"""Draws a row, over snapshots, for the noise in its level not to blur the coverage curve."""

_ess = jax.jit(ess)
_choose = jax.jit(choose)


class Source(NamedTuple):
    """A pool, and what maps from it to all rows begin with."""

    pool: Pool
    base: Base
    few: Base
    """With some of the particles of each population, to search by."""
    moves: Float[Array, "K B"]


class TransportState(NamedTuple):
    """Weighted particles on every row, and the pool they come from."""

    rough: dict[int, InitialDraws]
    """The first draws, number 0, and those they were moved to: number s is `_STEP` to the s times its learning rate."""
    sources: dict[int, Source]
    """Pools made of them so far."""
    source: Source
    eta: float
    data: Particles
    """The pool at `eta`, as one row."""
    carried: Carried
    key: PRNGKeyArray
    evaluations: int
    fitted: bool
    repaired: Bool[np.ndarray, " B"]
    not_mixed: Bool[np.ndarray, " B"]

    @property
    def particles(self) -> Particles:
        return self.carried.particles

    @property
    def pool(self) -> Pool:
        return self.source.pool

    @property
    def base(self) -> Base:
        """Of the pool, with as many particles as are carried."""
        few = self.source.few
        return few if n_particles(self.carried) == few.log_density.shape[-1] else self.source.base


class Transport(Sampler):
    """Importance sampling through maps fitted row by row.

    `n_particles` a row, unless told the larger of 1,000 and 40 a parameter, from a pool of 20 times as many on the
    data. `max_evaluations` of the risk fit the maps to some of the particles, and again to all where that is not
    enough. A row whose weights fail is sampled instead, if `repair`. With `audit`, as in `sampler="auto"`, an
    independent sampler checks some rows at the end, and takes over if they are wrong.
    """

    default_search: ClassVar[str] = "bracket"
    default_replicates: ClassVar[int] = 2_000
    n_populations: ClassVar[int] = N_POPULATIONS
    n_particles: int | None = eqx.field(static=True, default=None)
    max_evaluations: int = eqx.field(static=True, default=3)
    repair: bool = eqx.field(static=True, default=True)
    audit: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        integer("max_evaluations", self.max_evaluations, 1)
        if self.n_particles is not None:
            integer("n_particles", self.n_particles, 1)

    @property
    def audited(self) -> bool:
        return self.audit

    def fallback(self, dim: int) -> Sampler | None:
        if not self.audit:
            return None
        schedule = COARSE_SCHEDULE
        return SMC(
            n_particles=self.size(dim),
            ess_target=schedule.ess_target,
            resample_below=schedule.resample_below,
            n_moves=schedule.n_moves,
            kernel=schedule.kernel,
            start="prior",
        )

    def size(self, dim: int) -> int:
        return max(1000, 40 * dim) if self.n_particles is None else self.n_particles

    def draw_initial(
        self, key: PRNGKeyArray, target: Target, eta: float | None, draws: Float[Array, "M K"] | None
    ) -> InitialDraws:
        start = None if draws is None else (draws, 1.0 if eta is None else eta)
        return rough_draws(key, target, self.size(target.dim), start)

    def draw_initial_again(
        self, key: PRNGKeyArray, target: Target, start: InitialDraws, eta: float, draws: Float[Array, "M K"] | None
    ) -> InitialDraws:
        return start._replace(target=target)

    def initial_eta(self, target: Target, start: InitialDraws, region: Region, level: float) -> float:
        return initial_eta(target, start, region, level)

    def init(self, key: PRNGKeyArray, target: Target, start: InitialDraws, eta: float) -> TransportState:
        return self._carry(key, target, {0: start}, {}, eta)

    def move(
        self, target: Target, state: TransportState, eta: float, on_step: Callable[[float], None]
    ) -> TransportState:
        return self._carry(state.key, target, state.rough, state.sources, eta)

    def _carry(
        self, key: PRNGKeyArray, target: Target, rough: dict[int, InitialDraws], sources: dict[int, Source], eta: float
    ) -> TransportState:
        """Some of the pool on every row at `eta`, by maps that will do to search by."""
        rough, step = _follow(key, rough, eta)
        if step not in sources:
            mix_key = fold_key(key, 3, step)
            pool = make_pool(mix_key, rough[step], self.size(target.dim))
            sources = sources | {step: Source(pool, *_bases(target, pool.particles, host_array(pool.eta)))}
        source, none = sources[step], np.zeros(target.n_replicates, bool)
        wanted = Wanted(GOOD, _MOSTLY, min(2, self.max_evaluations))
        told = wanted.told(eta, target, source.few)
        data, first, evaluations = set_out(target, *source[1:], host_array(source.pool.eta / eta), told)
        n = _number(evaluations, first)
        state = TransportState(rough, sources, source, eta, data, first, key, n, False, none, none)
        state = self._fit(target, state, wanted)
        state = self._fit(target, state, Wanted(_FAIR, 0.5, self.max_evaluations))
        if not _count(state.carried, _FAIR, 0.5):
            # Maps that do badly need all the particles there are.
            state = self._with_all(target, state, Wanted(_FAIR, 0.5, self.max_evaluations))
        return state

    def _with_all(self, target: Target, state: TransportState, wanted: Wanted) -> TransportState:
        """All of the pool carried by the maps that are there, fitted on."""
        base, before = state.source.base, state.evaluations
        if n_particles(state.carried) == base.log_density.shape[-1]:
            return self._fit(target, state, wanted._replace(limit=before + wanted.limit - 1))
        told = wanted.told(state.eta, target, base)
        carried, evaluations = carry(target, base, state.carried.maps, told)
        state = state._replace(carried=carried, evaluations=before + _number(evaluations, carried))
        return self._fit(target, state, wanted._replace(limit=before + wanted.limit))

    def _fit(self, target: Target, state: TransportState, wanted: Wanted) -> TransportState:
        """The maps fitted on, as long as they are not what is wanted."""
        carried, evaluations, base = state.carried, state.evaluations, state.base
        while evaluations < wanted.limit and not _count(carried, wanted.size, wanted.share):
            carried = fit_on(target, base, carried, host_array(state.eta))
            evaluations += 1
        return state._replace(carried=carried, evaluations=evaluations)

    def _fitted(self, target: Target, state: TransportState) -> tuple[TransportState, Bool[np.ndarray, " B"]]:
        """All of the pool on every row, by maps fitted to some of it, or to all, where that is not enough; and the rows
        whose weights fail even so. Those, and where few particles count, were fitted on.
        """
        state = self._with_all(target, state, Wanted(_OF_ALL, _MOSTLY, self.max_evaluations))
        carried, base, eta = state.carried, state.source.base, host_array(state.eta)
        failed, sizes = failing(carried.particles.log_weights, carried.ess), np.array(carried.ess)
        for more in range(self.max_evaluations - 1):
            poor = np.flatnonzero(failed | (sizes < _OF_ALL * n_particles(carried)))
            if more and not len(poor):
                break
            # Not too many, which is a matter of the maps; and some in any case, so that what is compiled does not
            # depend on the data.
            poor = (
                poor[np.argsort(sizes[poor])][: _SOME_CREWS * N_POPULATIONS]
                if len(poor)
                else np.argsort(sizes)[:N_POPULATIONS]
            )
            crews, judged = _crews(poor), []
            for rows in crews:
                carried, some = refit_some(target, base, carried, rows, eta)
                judged.append((some.particles.log_weights, some.ess))
            for rows, (log_weights, own) in zip(crews, judged, strict=True):
                failed[rows], sizes[rows] = failing(log_weights, own), own
        return state._replace(carried=carried, fitted=True), failed

    def data(self, state: TransportState) -> Particles:
        return state.data

    def snapshots(self, target: Target, state: TransportState) -> Iterator[Snapshot]:
        """The same maps with one population after another; repaired rows have but one."""
        yield Snapshot(state.data, state.particles)
        base, once = state.base, Wanted(0, 0, 1).told(state.eta, target, state.base)
        for _ in range(-(-_ENOUGH_DRAWS // state.particles.risk.shape[-1]) - 1):
            base = base.turned()
            particles = carry(target, base, state.carried.maps, once)[0].particles
            if state.repaired.any():
                particles = _choose(jnp.asarray(state.repaired), state.particles, particles)
            yield Snapshot(state.data, particles)

    def info(self, state: TransportState, eta: float) -> SamplerInfo:
        return SamplerInfo(
            not_reached=np.zeros(len(state.repaired), bool),
            not_mixed=state.not_mixed,
            invalid=None,
            steps=state.evaluations,
            acceptance=float("nan"),
            ess=np.asarray(_ess(state.particles.log_weights) if state.repaired.any() else state.carried.ess),
            repaired=state.repaired,
            diagnostics=state.pool.diagnostics,
        )

    def refine_is_cheap(self, target: Target, state: TransportState) -> bool:
        poor = np.asarray(state.carried.ess) < LOW_ESS * n_particles(state.carried)
        return bool(losses(target, state.source.base) < _SHORT and poor.sum() <= N_POPULATIONS)

    def refine(self, target: Target, state: TransportState, on_step: Callable[[float], None]) -> TransportState:
        """The state with its maps fitted, and the rows sampled whose weights fail even so."""
        if state.fitted:
            failing_now = failing(state.particles.log_weights, state.carried.ess)
        else:
            state, failing_now = self._fitted(target, state)
        failed = np.flatnonzero(failing_now & ~state.repaired)
        if not self.repair or not len(failed):
            return state
        if len(failed) > max(N_POPULATIONS, _MANY_FAIL * target.n_replicates):
            message = (
                f"the weights fail on {len(failed)} of {target.n_replicates} rows, whose posteriors are far from normal: "
                "each is sampled by itself, which takes long. A narrower prior, or fewer bootstrap rows, takes less."
            )
            warnings.warn(message, LongRunWarning, stacklevel=2)
        particles, not_mixed = state.particles, state.not_mixed.copy()
        for start, populations in enumerate(_crews(failed)):
            rows = failed[start * N_POPULATIONS : (start + 1) * N_POPULATIONS]
            again, some = jnp.asarray(np.resize(np.arange(len(rows)), N_POPULATIONS)), jnp.asarray(populations)
            key = fold_key(state.key, 2, int(rows[0]))
            sampled, settled = _finish(key, target.select(some), some_maps(state.carried.maps, some), state)
            particles = particles.with_replicates(some, sampled.select(again))
            not_mixed[rows] = ~settled[: len(rows)]
            on_step((start * N_POPULATIONS + len(rows)) / len(failed))
        repaired = state.repaired.copy()
        repaired[failed] = True
        return state._replace(
            carried=state.carried._replace(particles=particles), repaired=repaired, not_mixed=not_mixed
        )


def _number(evaluations: Int[Array, ""], carried: Carried) -> int:
    """As a number; with the effective sizes, which are asked for next, in one go."""
    return int(jax.device_get((evaluations, carried.ess))[0])


def _count(carried: Carried, wanted: float, share: float) -> bool:
    """Whether on a share of the rows so much of the particles counts."""
    return bool((np.asarray(carried.ess) >= wanted * n_particles(carried)).mean() >= share)


def _crews(rows: Int[np.ndarray, " R"]) -> list[Any]:
    """Rows by full crews, whose last come again, so that any number of rows is compiled once."""
    return [
        np.resize(rows[start : start + N_POPULATIONS], N_POPULATIONS) for start in range(0, len(rows), N_POPULATIONS)
    ]


def failing(log_weights: Float[Array, "B M"], ess: Float[Array, " B"]) -> Bool[np.ndarray, " B"]:
    """Rows whose weights, of that effective size, are not to be trusted."""
    size = log_weights.shape[-1]
    # A GPU has the shapes of all tails sooner than an answer as to which are asked for.
    shapes = None if jax.default_backend() == "cpu" else pareto_k(log_weights)
    sizes = np.asarray(ess)
    # Where the weights are all but even, the shape of their tail says nothing.
    doubtful = np.flatnonzero(sizes < GOOD * size)
    k = pareto_k(np.asarray(log_weights)[doubtful]) if shapes is None else shapes[doubtful]
    failed = sizes < LOW_ESS * size
    failed[doubtful] |= k > pareto_k_limit(size)
    return failed


def _follow(key: PRNGKeyArray, rough: dict[int, InitialDraws], eta: float) -> tuple[dict[int, InitialDraws], int]:
    """Rough draws within half a step of eta, and their number, by whole steps from the first: the same whatever the
    path of eta.
    """
    wanted = round(float(np.log(eta / rough[0].eta) / np.log(_STEP)))
    outward = 1 if wanted > 0 else -1
    for step in range(outward, wanted + outward, outward) if wanted else ():
        if step not in rough:
            move_key = fold_key(key, 1, step)
            rough = rough | {step: moved_draws(move_key, rough[step - outward], rough[0].eta * _STEP**step)}
    return rough, wanted


def _finish(
    key: PRNGKeyArray, target: Target, maps: Maps, state: TransportState
) -> tuple[Particles, Bool[np.ndarray, " R"]]:
    """Particles on some rows by ASMC*, from transported ones spread out and weighted for a fraction of eta."""
    temper_key, mix_key, prior_key = split_key(key, 3)
    eta = state.eta / _BROADER
    broad, sizes = weigh(target, state.source.base, Maps(maps.centre, maps.root * _BROADER**0.5), host_array(eta))
    walkers = init_tempering(COARSE_SCHEDULE.kernel, broad, host_array(eta))
    walkers = temper_to(replicate_keys(temper_key, N_POPULATIONS), target, walkers, state.eta)
    particles = walkers.particles
    hopeless = np.asarray(sizes) < LOW_ESS * broad.risk.shape[-1]
    if hopeless.any() and hasattr(target.prior, "sample"):
        anew = temper_from_prior(prior_key, target, state.eta, broad.risk.shape[-1]).particles
        particles = _choose(jnp.asarray(hopeless), anew, particles)
    walkers, settled = rejuvenate_until_mixed(mix_key, target, particles, state.eta, at_least=0)
    return walkers.particles, np.asarray(settled)


@jit
def _bases(target: Target, pool: Particles, eta: Float[Array, ""]) -> tuple[Base, Base, Float[Array, "K B"]]:
    """What maps from a pool begin with: itself, some of it, and how far each row is."""
    base, size = Base.of(pool, eta), pool.risk.shape[-1]
    few = base.few(min(size, max(size // _PART, ENOUGH * target.dim, _FEWEST)))
    return base, few, jackknifed(target, pool, eta)
