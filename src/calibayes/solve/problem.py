"""The equation to solve: coverage of the point estimate, as a function of the learning rate, equals the level."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._core.curve import Coverage, Curve, Jump
from calibayes._core.particles import Particles, host_reweight, pool
from calibayes._core.shape import shape_target
from calibayes._core.status import Code, Diagnostic, Severity
from calibayes._core.target import Target
from calibayes.bootstrap import Bootstrap
from calibayes.regions import Region
from calibayes.samplers.base import Sampler, SamplerState, Snapshot
from calibayes.samplers.initial import InitialDraws
from calibayes.solve import curve as curves
from calibayes.solve.curve import grid_around, half_width, local_curve
from calibayes.solve.estimate import Estimate, point_estimate, points_along
from calibayes.solve.iterate import Iterate, diagnose, marginal_intervals, summarize
from calibayes.solve.ties import average_equal


@dataclass(frozen=True)
class ProblemConfig:
    """Constants of the coverage problem."""

    large_excess: float = 0.02
    """Excess of the coverage over the level, where coverage jumps, from which on a user should know of it. Order of the
    Monte Carlo error of a coverage with a few hundred replicates."""


CONFIG = ProblemConfig()


class NotReachedError(Exception):
    """The sampler did not reach a learning rate."""


@dataclass(frozen=True)
class CoverageProblem:
    """Coverage as a function of the learning rate.

    Attributes
    ----------
    target : Target
        The data (replicate 0) and the bootstrap replicates.
    sampler : Sampler
        How particles are obtained at a learning rate.
    region : Region
        Credible set.
    level : float
        Requested level.
    estimate : str or callable
        Point estimate that the sets should cover.
    key : PRNGKeyArray
        Key of the search.
    draws : Array or None
        The user's draws of the posterior, if any.
    initial : InitialDraws or None
        Initial draws on the data, once they have been drawn.
    labels : ndarray of shape (B,) or None
        Labels of the replicates, the same for equal data sets (`calibayes.solve.ties`); None if all are distinct.
    bootstrap : Bootstrap or None
        Bootstrap that drew the counts, which states how observations depend on each other; None for counts in an array.
    shape : ndarray of shape (K, K) or None
        Matrix that maps the particles of every replicate around their mean (`calibayes._core.shape`); None for the
        posteriors as they are.
    """

    target: Target
    sampler: Sampler
    region: Region
    level: float
    estimate: Estimate
    key: PRNGKeyArray
    draws: Float[Array, "M K"] | None = None
    initial: InitialDraws | None = None
    labels: Int[np.ndarray, " B"] | None = None
    bootstrap: Bootstrap | None = None
    shape: Float[np.ndarray, "K K"] | None = None

    def shaped_target(self, particles: Particles) -> Target:
        """Return the posteriors with the requested shape (`shape="sandwich"`), around the means of the particles."""
        return self.target if self.shape is None else shape_target(self.target, particles, self.shape)

    def shaped_particles(self, on_data: Particles) -> Particles:
        """Return particles on the data with the requested shape."""
        return on_data if self.shape is None else shape_target(self.target, on_data, self.shape).shaped(on_data)

    def snapshots(self, state: SamplerState) -> Iterator[Snapshot]:
        """Yield the sampler's snapshots, with the requested shape."""
        target, raw, on_data = self.shaped_target(state.particles), None, None
        for snapshot in self.sampler.snapshots(self.target, state):
            if on_data is None or snapshot.on_data is not raw:
                raw, on_data = snapshot.on_data, self.shaped_particles(snapshot.on_data)
            yield Snapshot(on_data, target.shaped(snapshot.replicates))

    def evaluate(self, state: SamplerState, eta: float, *, refined: bool = False) -> Iterate:
        """Return the coverage at the learning rate of the sampler's state.

        Raises
        ------
        NotReachedError
            If some replicates are not at `eta`.
        """
        info = self.sampler.info(state, eta)
        if not_reached := int(info.not_reached.sum()):
            raise NotReachedError(
                f"{not_reached:,} replicates did not reach eta = {eta:.4g} within the sampler's maximum number of steps"
            )
        on_data = self.shaped_particles(self.sampler.particles_on_data(state))
        point = self.point(on_data, eta)
        self._require_point(np.asarray(point))
        target = self.shaped_target(state.particles)
        particles = target.shaped(state.particles)
        summary = jax.device_get(summarize(target, particles, host_array(eta), self.region, point))
        info = info if info.invalid is not None else info._replace(invalid=int(summary.n_invalid.sum()))
        levels = average_equal(summary.levels[1:], self.labels)
        return Iterate(
            eta=eta,
            sampled_eta=eta,
            coverage=Coverage(int((levels <= self.level).sum()), len(levels)),
            point=point,
            particles=on_data,
            state=state,
            info=info,
            diagnostics=diagnose(info, int(np.isnan(levels).sum()), self.level),
            half_width=half_width(eta, float(np.median(summary.risk_variances))),
            intervals=marginal_intervals(self.target.constrained(on_data), self.level),
            refined=refined,
        )

    def with_curve(self, iterate: Iterate, *, rough: bool) -> Iterate:
        """Return the iterate with the coverage curve around it.

        A rough curve is computed from the first snapshot of the particles, others from all (`Sampler.snapshots`).
        """
        on_data: list[Particles] = []

        def collected() -> Iterator[Snapshot]:
            for snapshot in islice(self.snapshots(iterate.state), 1 if rough else None):
                if not on_data or snapshot.on_data is not on_data[-1]:
                    on_data.append(snapshot.on_data)
                yield snapshot

        curve = self.curve(iterate, collected(), rough=rough)
        return replace(iterate, curve=curve, particles=on_data[0] if len(on_data) == 1 else pool(on_data))

    def curve(self, iterate: Iterate, snapshots: Iterable[Snapshot], *, rough: bool = False) -> Curve:
        """Return the coverage curve around the learning rate of the particles."""

        def points_of(on_data: Particles, etas: np.ndarray) -> Float[np.ndarray, "G K"]:
            return points_along(self.estimate, self.key, self.target, on_data, iterate.eta, etas)

        n_points = curves.CONFIG.n_rough_points if rough else curves.CONFIG.n_points
        etas = grid_around(iterate.eta, iterate.half_width, n_points)
        n_populations = self.sampler.n_populations
        curve = local_curve(
            self.shaped_target(iterate.state.particles),
            snapshots,
            iterate.eta,
            etas,
            self.region,
            points_of,
            self.level,
            n_populations,
        )
        return self.with_equal_replicates(curve)

    def with_equal_replicates(self, curve: Curve) -> Curve:
        """Return a curve with the critical levels of equal replicates replaced by their mean."""
        if self.labels is None:
            return curve
        levels = average_equal(curve.critical_levels, self.labels)
        n_distinct = int(self.labels.max()) + 1
        return replace(curve, critical_levels=levels, first_critical_levels=None, n_distinct=n_distinct)

    def at_crossing(self, iterate: Iterate) -> Iterate:
        """Return the iterate at the crossing of its curve, the particles reweighted to it."""
        assert iterate.curve is not None
        eta, coverage, jump = iterate.curve.attainable_eta()
        n_replicates = iterate.coverage.n_replicates
        findings = iterate.diagnostics if jump is None else (*iterate.diagnostics, self.describe_jump(jump))
        at_eta = self._reweighted(iterate, eta, Coverage(round(coverage * n_replicates), n_replicates))
        return replace(at_eta, diagnostics=findings)

    def at_eta(self, iterate: Iterate, eta: float) -> Iterate:
        """Return the iterate at a learning rate on its curve, the particles reweighted to it."""
        assert iterate.curve is not None
        covered = int((iterate.curve.critical_etas() >= eta).sum())
        return self._reweighted(iterate, eta, Coverage(covered, iterate.coverage.n_replicates))

    def _reweighted(self, iterate: Iterate, eta: float, coverage: Coverage) -> Iterate:
        particles = host_reweight(iterate.particles, eta - iterate.eta)
        point = self.point(particles, eta)
        self._require_point(np.asarray(point))
        return replace(iterate, eta=eta, coverage=coverage, particles=particles, point=point)

    def describe_jump(self, jump: Jump) -> Diagnostic:
        """Return a diagnostic of a coverage that jumps past the level."""
        assert self.labels is not None
        message = (
            f"Coverage jumps from {jump.below:.3f} to {jump.above:.3f} at eta = {jump.eta:.4g}, because only "
            f"{self.labels.max() + 1:,} of {len(self.labels):,} bootstrap replicates are different data sets. The "
            "reported learning rate is on the conservative side of the jump."
        )
        severity = Severity.WARNING if jump.below - self.level > CONFIG.large_excess else Severity.INFO
        return Diagnostic(Code.LEVEL_NOT_ATTAINED, severity, 0, message)

    def point(self, particles: Particles, eta: float) -> Float[Array | np.ndarray, " K"]:
        """Return the point estimate from particles on the data."""
        point = point_estimate(self.estimate, self.key, self.target, particles, eta)
        if point.shape != (self.target.dim,):
            self._require_point(np.asarray(point))
        return point

    def _require_point(self, point: Float[np.ndarray, "..."]) -> None:
        if point.shape != (self.target.dim,) or not np.isfinite(point).all():
            raise ValueError(f"estimate must be {self.target.dim} finite numbers; got {point}.")
