"""The equation to solve: coverage of the point estimate, as a function of the learning rate, equals the level."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._core.curve import Coverage, Curve
from calibayes._core.particles import Particles, pool, reweight_particles
from calibayes._core.target import Target
from calibayes.regions import Region
from calibayes.samplers.base import Sampler, SamplerState, Snapshot
from calibayes.samplers.initial import InitialDraws
from calibayes.solve import curve as curves
from calibayes.solve.curve import grid_around, half_width, local_curve
from calibayes.solve.estimate import Estimate, point_estimate, points_along
from calibayes.solve.iterate import Iterate, diagnose, summarize


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
    """

    target: Target
    sampler: Sampler
    region: Region
    level: float
    estimate: Estimate
    key: PRNGKeyArray
    draws: Float[Array, "M K"] | None = None
    initial: InitialDraws | None = None

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
        data = self.sampler.data(state)
        point = None if self.estimate == "mean" else self.point(data, eta)
        summary = summarize(
            self.target, state.particles, data, host_array(eta), self.region, point, host_array(self.level)
        )
        levels, point_values, n_invalid, variance, intervals = jax.device_get(summary)
        self._require_point(point_values)
        info = info if info.invalid is not None else info._replace(invalid=int(n_invalid))
        levels = levels[1:]
        return Iterate(
            eta=eta,
            sampled_eta=eta,
            coverage=Coverage(int((levels <= self.level).sum()), len(levels)),
            point=summary.point,
            particles=data,
            state=state,
            info=info,
            diagnostics=diagnose(info, int(np.isnan(levels).sum()), self.level),
            half_width=half_width(eta, float(variance)),
            intervals=intervals,
            refined=refined,
        )

    def with_curve(self, iterate: Iterate, *, rough: bool) -> Iterate:
        """Return the iterate with the coverage curve around it, from one snapshot of the particles or from all."""
        data: list[Particles] = []

        def collected() -> Iterator[Snapshot]:
            for snapshot in islice(self.sampler.snapshots(self.target, iterate.state), 1 if rough else None):
                if not data or snapshot.data is not data[-1]:
                    data.append(snapshot.data)
                yield snapshot

        curve = self.curve(iterate, collected(), rough=rough)
        return replace(iterate, curve=curve, particles=data[0] if len(data) == 1 else pool(data))

    def curve(self, iterate: Iterate, snapshots: Iterable[Snapshot], *, rough: bool = False) -> Curve:
        """Return the coverage curve around the learning rate of the particles."""

        def points_of(data: Particles, etas: np.ndarray) -> Float[Array, "G K"] | None:
            if self.estimate == "mean":
                return None
            return points_along(self.estimate, self.key, self.target, data, iterate.eta, etas)

        n_points = curves.CONFIG.n_rough_points if rough else curves.CONFIG.n_points
        etas = grid_around(iterate.eta, iterate.half_width, n_points)
        n_populations = self.sampler.n_populations
        return local_curve(self.target, snapshots, iterate.eta, etas, self.region, points_of, self.level, n_populations)

    def at_crossing(self, iterate: Iterate, eta: float) -> Iterate:
        """Return the iterate at another learning rate on its curve, the particles reweighted to it."""
        assert iterate.curve is not None
        particles = reweight_particles(iterate.particles, host_array(eta - iterate.eta))
        point = self.point(particles, eta)
        self._require_point(np.asarray(point))
        n_covered = int((iterate.curve.critical_etas() >= eta).sum())
        coverage = Coverage(n_covered, iterate.coverage.n_replicates)
        return replace(iterate, eta=eta, coverage=coverage, particles=particles, point=point)

    def point(self, particles: Particles, eta: float) -> Float[Array, " K"]:
        """Return the point estimate from particles on the data."""
        point = point_estimate(self.estimate, self.key, self.target, particles, eta)
        if point.shape != (self.target.dim,):
            self._require_point(np.asarray(point))
        return point

    def _require_point(self, point: Float[np.ndarray, "..."]) -> None:
        if point.shape != (self.target.dim,) or not np.isfinite(point).all():
            raise ValueError(f"estimate must be {self.target.dim} finite numbers; got {point}.")
