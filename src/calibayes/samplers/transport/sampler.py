"""Transport: draws of the posterior on the data, moved to every replicate by affine maps and importance weights.

Only a pool of draws on the data is sampled (`pool.py`). The first map of each replicate shifts the pool by the
infinitesimal jackknife; one or two refits to a part of the particles make the maps good enough to search for eta
(`maps.py`, `refit.py`, `fitting.py`). Where the search ends, the maps are applied to all particles, and refitted if
necessary. At another learning rate the maps are made from the pool again, so the result does not depend on the path of
the search. The posterior on the data is treated like that of a replicate: each population has a map to it, which is
refitted, and whose weights are checked.

Degenerate weights reveal a replicate on which the map fails; it is sampled by tempering instead (`repair.py`). Weights
do not reveal a mode or a bound that no particle visited; the audit (`calibayes.samplers.audit`) does.
"""

import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from calibayes._backend.arguments import integer
from calibayes._backend.functions import host_array
from calibayes._backend.linalg import host_factor
from calibayes._backend.rng import fold_key
from calibayes._backend.time_limit import has_time_limit
from calibayes._backend.warnings import LongRunWarning
from calibayes._core.particles import Particles, host_moments
from calibayes._core.sandwich import influences, mean_shifts
from calibayes._core.status import Code, Diagnostic, Severity
from calibayes._core.target import Model, Target
from calibayes.regions import Region
from calibayes.samplers.base import OnStep, Sampler, SamplerInfo, Snapshot
from calibayes.samplers.initial import InitialDraws
from calibayes.samplers.normal import (
    NotNormalError,
    can_fit_normal,
    can_fit_normal_to,
    fit_to_data,
    fit_to_replicates,
)
from calibayes.samplers.populations import N_POPULATIONS, population_target, replicate_batches
from calibayes.samplers.smc import SMC
from calibayes.samplers.tempering import COARSE_SCHEDULE
from calibayes.samplers.transport import config
from calibayes.samplers.transport.fitting import (
    FitGoal,
    TransportedParticles,
    choose_replicates,
    n_losses,
    refit_replicates,
    refit_until,
    transport,
    transport_and_fit,
)
from calibayes.samplers.transport.initial_eta import initial_eta
from calibayes.samplers.transport.maps import AffineMaps, WhitenedPool
from calibayes.samplers.transport.matching import initial_populations, move_populations, n_initial_draws
from calibayes.samplers.transport.pool import Pool, make_pool
from calibayes.samplers.transport.prefetch import prefetch_transport
from calibayes.samplers.transport.refit import required_ess, whiten
from calibayes.samplers.transport.repair import has_degenerate_weights, sample_again


class PreparedPool(NamedTuple):
    """A pool, and the quantities from which the first maps are made."""

    pool: Pool
    whitened: WhitenedPool
    search: WhitenedPool
    """A part of the draws of each population, used during the search."""
    jackknife: "Jackknife | None"
    """Shifts of the posterior mean to each replicate; None where normal approximations replace them."""


class Jackknife(NamedTuple):
    """Shifts of the posterior mean by the infinitesimal jackknife."""

    shifts: Float[np.ndarray, "K B"]
    """Shift of the posterior mean to each replicate."""
    relative_totals: Float[np.ndarray, " B"]
    """Totals of the counts of each replicate, relative to the number of observations."""


class DataState(NamedTuple):
    """The pool on the data; every population is a replicate of its own."""

    transported: TransportedParticles
    merged: Particles
    """All populations as one replicate."""
    repaired: Bool[np.ndarray, " R"]
    """Populations with degenerate importance weights, which were sampled by tempering."""
    not_mixed: Bool[np.ndarray, " R"]
    """Repaired populations that have not mixed."""
    degenerate: Bool[np.ndarray, " R"]
    """Populations with degenerate importance weights that were not repaired."""


class TransportState(NamedTuple):
    """State of `Transport`."""

    populations: dict[int, InitialDraws]
    """Initial populations by step: step 0 are the initial draws, step s is at `eta_step ** s` times their eta."""
    pools: dict[int, PreparedPool]
    """Pools by step, as far as they were needed."""
    current: PreparedPool
    """The pool that `eta` uses."""
    eta: float
    data_state: DataState
    """The pool on the data at `eta`."""
    transported: TransportedParticles
    """Particles on every replicate; the maps and effective sample sizes are those before any repair."""
    key: PRNGKeyArray
    evaluations: int
    """Number of evaluations of the risk at `eta`."""
    fitted: bool
    """Whether the maps are fitted to all particles."""
    repaired: Bool[np.ndarray, " B"]
    """Replicates that were sampled by tempering."""
    not_mixed: Bool[np.ndarray, " B"]
    """Repaired replicates that have not mixed."""

    @property
    def particles(self) -> Particles:
        return self.transported.particles

    @property
    def pool(self) -> Pool:
        return self.current.pool

    @property
    def whitened(self) -> WhitenedPool:
        """The whitened pool that the particles were transported from."""
        search = self.current.search
        return search if self.transported.n_particles == search.n_particles else self.current.whitened


class Transport(Sampler[TransportState]):
    """Importance sampling on every replicate through affine maps of draws on the data.

    The fastest sampler, and the default with an audit (`sampler="auto"`). It samples the posterior on the data once,
    and needs a few evaluations of the risk on the replicates.

    Parameters
    ----------
    n_particles : int or None
        Number of particles per replicate. Default: 40 per parameter (20 for a convex loss of a linear prediction
        with a log-concave prior), but at least 1,000. The posterior on the data is represented by 20
        times as many draws, from which the particles of the replicates are taken.
    max_evaluations : int
        Largest number of evaluations of the risk for fitting the affine maps. During the search the maps are fitted
        with some of the particles; at the end of the search they are fitted again with all, under the same limit.
        Default: 3.
    repair : bool
        Whether to sample replicates with degenerate weights by tempering. Default: True.
    audit : bool
        Whether to check some replicates by an independent sampler at the end, and to fall back to SMC from the prior if
        the check fails. Default: False; `sampler="auto"` sets it.

    Raises
    ------
    TypeError, ValueError
        If `n_particles` or `max_evaluations` is not a positive integer.

    Examples
    --------
    >>> import calibayes as cb
    >>> sampler = cb.Transport(n_particles=2_000, audit=True)
    >>> sampler.size(dim=5), sampler.needs_audit
    (2000, True)
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
    def needs_audit(self) -> bool:
        """Whether the answer should be checked by an independent sampler."""
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
        constants = config.CONFIG.size
        default = max(constants.min_particles, constants.particles_per_parameter * dim)
        return default if self.n_particles is None else self.n_particles

    def size_for(self, model: Model, dim: int) -> int:
        if self.n_particles is not None or not can_fit_normal_to(model, dim):
            return self.size(dim)
        constants = config.CONFIG.size
        return max(constants.min_particles, constants.normal_particles_per_parameter * dim)

    def prefetch(self, target: Target) -> Particles:
        size = self.size_for(target, target.dim)
        return prefetch_transport(target, n_initial_draws(target, size), size)

    def draw_initial(
        self, key: PRNGKeyArray, target: Target, eta: float | None, draws: Float[Array, "M K"] | None
    ) -> InitialDraws:
        size = self.size_for(target, target.dim)
        return initial_populations(key, target, size, draws, 1.0 if eta is None else eta)

    def draw_initial_again(
        self, key: PRNGKeyArray, target: Target, initial: InitialDraws, eta: float, draws: Float[Array, "M K"] | None
    ) -> InitialDraws:
        return initial._replace(target=target)

    def move_initial(self, key: PRNGKeyArray, initial: InitialDraws, eta: float) -> InitialDraws:
        return move_populations(key, initial, eta)

    def initial_eta(self, target: Target, initial: InitialDraws, region: Region, level: float) -> float:
        return initial_eta(target, initial, region, level)

    def init(self, key: PRNGKeyArray, target: Target, initial: InitialDraws, eta: float) -> TransportState:
        return self._transport(key, target, {0: initial}, {}, eta, is_first=True)

    def move(self, target: Target, state: TransportState, eta: float, on_step: OnStep) -> TransportState:
        return self._transport(state.key, target, state.populations, state.pools, eta)

    def particles_on_data(self, state: TransportState) -> Particles:
        return state.data_state.merged

    def snapshots(self, target: Target, state: TransportState) -> Iterator[Snapshot]:
        on_data = self.particles_on_data(state)
        yield Snapshot(on_data, state.particles)
        pool = state.whitened
        n_snapshots = -(-config.CONFIG.size.draws_per_curve // state.transported.n_particles)
        cheap = n_losses(target, pool) < config.CONFIG.fit.cheap_evaluation
        for _ in range(n_snapshots - 1 if cheap else 0):
            pool = pool.rotated()
            particles = transport(target, pool, state.transported.maps, state.eta).particles
            if state.repaired.any():
                particles = choose_replicates(state.repaired, state.particles, particles)
            yield Snapshot(on_data, particles)

    def info(self, state: TransportState, eta: float) -> SamplerInfo:
        # Repaired replicates have equal weights.
        sizes = np.where(state.repaired, state.transported.n_particles, state.transported.ess)
        return SamplerInfo(
            not_reached=np.zeros(len(state.repaired), bool),
            not_mixed=state.not_mixed,
            invalid=None,
            steps=state.evaluations,
            acceptance=float("nan"),
            ess=sizes,
            repaired=state.repaired,
            diagnostics=(*state.pool.diagnostics, *_diagnose_data(state.data_state)),
        )

    def refine_is_cheap(self, target: Target, state: TransportState) -> bool:
        constants = config.CONFIG
        degenerate = state.transported.ess < constants.repair.min_ess(state.transported.n_particles)
        is_cheap = n_losses(target, state.current.whitened) < constants.fit.cheap_evaluation
        return bool(is_cheap and degenerate.sum() <= N_POPULATIONS)

    def refine(self, target: Target, state: TransportState, on_step: OnStep) -> TransportState:
        if state.fitted:
            degenerate = has_degenerate_weights(state.particles.log_weights, state.transported.ess)
        else:
            state, degenerate = self._fit_all_particles(target, state)
            state = state._replace(data_state=_repair_draws_on_data(target, state, self.repair))
        indices = np.flatnonzero(degenerate & ~state.repaired)
        if not self.repair or not len(indices):
            return state
        if len(indices) > max(N_POPULATIONS, config.CONFIG.repair.many_replicates * target.n_replicates):
            message = (
                f"the importance weights of {len(indices)} of {target.n_replicates} replicates are degenerate, because "
                "their posteriors are far from normal. Each of them is sampled by tempering, which is slow. A "
                "narrower prior or fewer bootstrap replicates would shorten the run."
            )
            warnings.warn(message, LongRunWarning, stacklevel=2)
        return _repair(target, state, indices, on_step)

    def _transport(
        self,
        key: PRNGKeyArray,
        target: Target,
        populations: dict[int, InitialDraws],
        pools: dict[int, PreparedPool],
        eta: float,
        is_first: bool = False,
    ) -> TransportState:
        """Transport a part of the pool to every replicate at `eta`, by maps good enough for the search."""
        constants = config.CONFIG.fit
        populations, step = _populations_near(key, populations, eta)
        if step not in pools:
            pool = make_pool(fold_key(key, 3, step), populations[step], self.size_for(target, target.dim))
            pools = pools | {step: _prepare(target, pool)}
        current, no_replicate = pools[step], np.zeros(target.n_replicates, bool)
        limit = self._max_evaluations(target, pools[step].search)
        good = FitGoal(constants.good_ess, constants.min_share_of_replicates, min(constants.search_evaluations, limit))
        fair = FitGoal(constants.fair_ess, constants.fair_share, limit)
        data_state = _transport_to_data(target, current, eta)
        if np.median(data_state.transported.ess) < constants.fair_ess * data_state.transported.n_particles:
            # Between two learning rates of the grid the posterior moves too far for one affine map, as under a prior in
            # conflict with the data.
            moved = move_populations(fold_key(key, 5, step), populations[step], eta)
            current = _prepare(target, make_pool(fold_key(key, 6, step), moved, self.size_for(target, target.dim)))
            data_state = _transport_to_data(target, current, eta)
        maps = _first_maps(target, current, data_state, eta)
        first, evaluations = transport_and_fit(target, current.search, maps, eta, good)
        state = TransportState(
            populations, pools, current, eta, data_state, first, key, evaluations, False, no_replicate, no_replicate
        )
        state = _refit_until(target, state, fair)
        if fair.is_met(state.transported):
            return state
        # If the maps miss even the lower goal, fit them again with all particles.
        if is_first:
            _require_within_reach(target, state)
        return _use_all_particles(target, state, fair)

    def _max_evaluations(self, target: Target, pool: WhitenedPool) -> int:
        """Return the largest number of evaluations of the risk for fitting maps.

        Moments of too few particles are worse than the normal approximations from which the maps come.
        """
        too_few = can_fit_normal(target) and required_ess(target.dim) > pool.n_particles
        return 1 if too_few else self.max_evaluations

    def _fit_all_particles(
        self, target: Target, state: TransportState
    ) -> tuple[TransportState, Bool[np.ndarray, " B"]]:
        """Use all particles, and refit the maps of the replicates that need it.

        Returns the state, and the replicates whose weights are still degenerate.
        """
        constants = config.CONFIG.fit
        limit = self._max_evaluations(target, state.current.whitened)
        goal = FitGoal(constants.full_ess, constants.min_share_of_replicates, limit)
        state = _use_all_particles(target, state, goal)
        transported = state.transported
        degenerate = has_degenerate_weights(transported.particles.log_weights, transported.ess)
        for _ in range(limit - 1):
            sizes = transported.ess
            poor = np.flatnonzero(degenerate | (sizes < constants.full_ess * transported.n_particles))
            if not len(poor):
                break
            poor = poor[np.argsort(sizes[poor])][: constants.max_extra_batches * N_POPULATIONS]
            for batch in replicate_batches(poor):
                part = refit_replicates(target, state.current.whitened, transported, batch, state.eta)
                degenerate[batch] = has_degenerate_weights(part.particles.log_weights, part.ess)
                transported = transported.with_replicates(batch, part)
        return state._replace(transported=transported, fitted=True), degenerate


def _refit_until(target: Target, state: TransportState, goal: FitGoal) -> TransportState:
    """Refit all maps until the goal is met or `goal.max_evaluations` are used, those of the state included."""
    transported, evaluations = refit_until(
        target, state.whitened, state.transported, state.eta, goal, state.evaluations
    )
    return state._replace(transported=transported, evaluations=evaluations)


def _use_all_particles(target: Target, state: TransportState, goal: FitGoal) -> TransportState:
    """Transport all of the pool by the present maps, and refit them with further `goal.max_evaluations`."""
    pool, used = state.current.whitened, state.evaluations
    if state.transported.n_particles == pool.n_particles:
        return _refit_until(target, state, goal._replace(max_evaluations=used + goal.max_evaluations - 1))
    transported, evaluations = transport_and_fit(target, pool, state.transported.maps, state.eta, goal)
    return state._replace(transported=transported, evaluations=used + evaluations)


def _populations_near(
    key: PRNGKeyArray, populations: dict[int, InitialDraws], eta: float
) -> tuple[dict[int, InitialDraws], int]:
    """Return populations within half a step of `eta`, and their step.

    They are moved by whole steps from step 0, so they do not depend on the path of the search.
    """
    eta_step = config.CONFIG.pool.eta_step
    last = round(float(np.log(eta / populations[0].eta) / np.log(eta_step)))
    sign = 1 if last > 0 else -1
    for step in range(sign, last + sign, sign) if last else ():
        if step not in populations:
            step_eta = populations[0].eta * eta_step**step
            moved = move_populations(fold_key(key, 1, step), populations[step - sign], step_eta)
            populations = populations | {step: moved}
    return populations, last


def _prepare(target: Target, pool: Pool) -> PreparedPool:
    """Return the pool with its whitened draws, and the part of them for the search."""
    normal = can_fit_normal(target)
    return PreparedPool(
        pool, *whiten(pool.particles, pool.eta, not normal), None if normal else _jackknife(target, pool)
    )


def _jackknife(target: Target, pool: Pool) -> Jackknife:
    influence = influences(target, pool.particles, pool.eta).values
    return Jackknife(*(np.asarray(value) for value in mean_shifts(target, influence)))


def _transport_to_data(target: Target, current: PreparedPool, eta: float) -> DataState:
    """Transport all of the pool to the data at `eta`."""
    constants, pool = config.CONFIG.fit, current.whitened
    goal = FitGoal(constants.good_ess, constants.min_share_of_replicates, constants.data_evaluations)
    maps = AffineMaps.around(
        np.asarray(pool.centre), np.asarray(pool.root), np.full(N_POPULATIONS, current.pool.eta / eta)
    )
    transported, _ = transport_and_fit(population_target(target), pool, maps, eta, goal)
    no_population = np.zeros(N_POPULATIONS, bool)
    merged = transported.particles.merge_replicates()
    return DataState(transported, merged, no_population, no_population, no_population)


def _first_maps(target: Target, current: PreparedPool, data_state: DataState, eta: float) -> AffineMaps:
    """Return maps to the posterior on the data at `eta`, moved to every replicate.

    If too few particles on the data are effective to estimate its moments, those of the pool are scaled to `eta`.
    """
    pool = current.whitened
    if np.median(data_state.transported.ess) >= required_ess(len(pool.centre)):
        means, covariances = host_moments(data_state.merged)
        centre, root, on_data = means[:, 0], host_factor(covariances)[0], 1.0
    else:
        centre, root, on_data = np.asarray(pool.centre), np.asarray(pool.root), current.pool.eta / eta
    if can_fit_normal(target):
        with suppress(NotNormalError):
            fits = fit_to_replicates(target, fit_to_data(target, centre, on_data * root @ root.T, eta))
            relative = np.linalg.solve(fits.root[:1], fits.root)
            shifts = fits.centre - fits.centre[:, :1]
            return AffineMaps(host_array(centre[:, None] + shifts), host_array(on_data**0.5 * root @ relative))
    shifts, relative_totals = current.jackknife or _jackknife(target, current.pool)
    return AffineMaps.around(centre, root, on_data / relative_totals, shifts)


def _require_within_reach(target: Target, state: TransportState) -> None:
    """Raise an error if most replicates would have to be sampled by tempering, which would take very long.

    Only for targets with normal approximations (`can_fit_normal`), because no better first maps are known than theirs.
    A time limit is taken as permission to try.
    """
    constants, transported = config.CONFIG.repair, state.transported
    degenerate = float((transported.ess < constants.min_ess(transported.n_particles)).mean())
    on_cpu = jax.default_backend() == "cpu"
    n_evaluations = constants.evaluations_per_replicate * degenerate * n_losses(target, state.current.whitened)
    large = n_evaluations > (constants.max_losses if on_cpu else constants.max_losses_on_accelerator)
    if degenerate > constants.out_of_reach and large and can_fit_normal(target) and not has_time_limit():
        n, dim = int(target.counts.n), target.dim
        raise RuntimeError(
            f"the posteriors of {degenerate:.0%} of the bootstrap replicates differ too much from that of the data for "
            f"importance sampling: there may be too few observations ({n:,}) for {dim} parameters, classes that are "
            "nearly separable, or columns of X that are nearly collinear. Use a prior with a smaller scale, fewer "
            'columns, or sampler="smc", which takes long. To try nevertheless, set a time limit (max_seconds=).'
        )


def _repair_draws_on_data(target: Target, state: TransportState, repair: bool) -> DataState:
    """Repair populations with degenerate weights on the data."""
    transported = state.data_state.transported
    degenerate = has_degenerate_weights(transported.particles.log_weights, transported.ess)
    if not degenerate.any():
        return state.data_state
    if not repair:
        return state.data_state._replace(degenerate=degenerate)
    key, maps = fold_key(state.key, 4), transported.maps
    sampled, mixed = sample_again(
        key, population_target(target), state.current.whitened, maps, state.eta, N_POPULATIONS
    )
    particles = choose_replicates(degenerate, sampled, transported.particles)
    transported = transported._replace(particles=particles)
    merged, no_population = particles.merge_replicates(), np.zeros(N_POPULATIONS, bool)
    return DataState(transported, merged, degenerate, degenerate & ~mixed, no_population)


def _diagnose_data(data_state: DataState) -> tuple[Diagnostic, ...]:
    """Return what a user should know about the draws of the posterior on the data."""
    if data_state.degenerate.any() or data_state.not_mixed.any():
        message = (
            "The importance weights of the draws on the data are degenerate, so that the point estimate and the "
            'intervals are unreliable. Use a prior that agrees with the data, or sampler="smc".'
        )
        return (Diagnostic(Code.DATA_UNRELIABLE, Severity.ERROR, 0, message),)
    if data_state.repaired.any():
        message = (
            "The importance weights of draws on the data were degenerate; they were sampled again by a slower sampler."
        )
        return (Diagnostic(Code.DATA_REPAIRED, Severity.INFO, 0, message),)
    return ()


def _repair(target: Target, state: TransportState, indices: Int[np.ndarray, " R"], on_step: OnStep) -> TransportState:
    """Sample the replicates of `indices` again, batch by batch."""
    particles, not_mixed, repaired = state.particles, state.not_mixed.copy(), state.repaired.copy()
    for i, batch in enumerate(replicate_batches(indices)):
        # The last batch repeats its replicates to be complete; all copies of a replicate get the same particles.
        unique = indices[i * N_POPULATIONS : (i + 1) * N_POPULATIONS]
        first_copies = np.resize(np.arange(len(unique)), N_POPULATIONS)
        key, maps = fold_key(state.key, 2, int(unique[0])), state.transported.maps.select(batch)
        sampled, mixed = sample_again(key, target.select(batch), state.current.whitened, maps, state.eta, len(unique))
        particles = particles.with_replicates(batch, sampled.select(first_copies))
        not_mixed[unique] = ~mixed[: len(unique)]
        on_step((i * N_POPULATIONS + len(unique)) / len(indices))
    repaired[indices] = True
    transported = state.transported._replace(particles=particles)
    return state._replace(transported=transported, repaired=repaired, not_mixed=not_mixed)
