"""Further questions to a finished calibration: another level or region, single parameters, fresh replicates.

Every answer starts from the particles of the calibration. They are moved or refitted only where the answer lies at
another learning rate.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from calibayes._backend.arguments import positive
from calibayes._backend.devices import use_mesh
from calibayes._backend.entry import entry_point
from calibayes._backend.functions import as_float
from calibayes._backend.outdated import drop_outdated_programs, state_of
from calibayes._backend.rng import fold_key, split_key
from calibayes._backend.time_limit import TimeLimitError, time_limit
from calibayes._backend.versions import versions
from calibayes._backend.warnings import CalibrationWarning, NotConvergedWarning, warn_user
from calibayes._core.curve import Coverage, Curve
from calibayes._core.particles import Particles, host_reweight
from calibayes._core.parts import CheckedParts, n_observations
from calibayes._core.precision import PrecisionCheck, double_precision
from calibayes._core.shape import shape_target
from calibayes._core.status import ABOUT_THE_SAMPLER, Code, Diagnostic, Severity, Status, worst
from calibayes._core.target import Target, make_target
from calibayes._core.weights import Weights
from calibayes._validate.settings import as_key, check_bootstrap, check_level, check_n_particles
from calibayes.bootstrap import Bootstrap
from calibayes.methods import Method
from calibayes.methods.base import describe_host_nuisance
from calibayes.methods.moments import DrawsOnData, LearningRate
from calibayes.model import GibbsModel
from calibayes.regions import HPD, Ellipsoid, Linear, Region, as_region, critical_levels
from calibayes.reparametrize import Reparametrization
from calibayes.resampling import draw_counts
from calibayes.result import Intervals, Result, describe
from calibayes.samplers.mixing import temper_and_mix
from calibayes.solve.bracket import Bracket
from calibayes.solve.checkpoint import Checkpoint
from calibayes.solve.crossings import describe_crossings
from calibayes.solve.iterate import Iterate, TraceRecord
from calibayes.solve.marginals import is_inside, marginal_curves
from calibayes.solve.problem import CoverageProblem, NotReachedError
from calibayes.solve.progress import Progress
from calibayes.solve.search import Search
from calibayes.solve.solver import Solver, check_reliability, check_rounding


@dataclass(frozen=True)
class RequeryConfig:
    """Constants of the answers to further questions."""

    max_combinations: int = 256
    """Linear combinations whose critical levels on all replicates are in memory at the same time."""
    max_moves: int = 6
    """Times that the particles are moved towards combinations whose learning rate is far from the joint one."""
    min_worth_a_move: int = 3
    """Number of such combinations from which moving all particles is cheaper than one calibration for each."""
    max_draws: int = 4_000
    """Largest number of reported draws."""
    draws_share: float = 0.25
    """Reported draws relative to particles, so that resampling repeats few of them."""
    min_draws: int = 100
    """Smallest number of reported draws."""
    min_time_limit: float = 180.0
    """Smallest default time limit of `intervals`, in seconds: the longest that most users wait without a question. It
    is generous, because the answer of a slow or busy machine should not differ from that of a fast one."""
    relative_time_limit: float = 20.0
    """Default time limit of `intervals` relative to the time of the calibration."""
    uncertain: float = 0.1
    """Standard error of eta, relative to eta, above which a note says so. Widths of intervals scale with eta^(-1/2), so
    that they are then uncertain by 5%. This and the next two are order-of-magnitude choices."""
    very_uncertain: float = 0.35
    """Relative standard error above which it is a warning."""
    useless: float = 0.7
    """Relative standard error above which the learning rate is unreliable."""


CONFIG = RequeryConfig()

F = TypeVar("F", bound=Callable[..., Any])
_VALIDATION_STREAM, _POSTERIOR_STREAM = 5, 6
"""Numbers folded into the key of the draws, for independent random streams."""


@dataclass(frozen=True)
class Inputs:
    """The validated arguments of a calibration.

    Attributes
    ----------
    model : GibbsModel
        Loss and prior.
    data : object
        The data as the user passed them.
    observations : pytree of ndarray or CheckedParts
        The validated data.
    names : sequence of str
        Names of the parameters.
    bootstrap : Bootstrap or None
        Bootstrap that the counts were drawn from; None if the user passed counts.
    counts : ndarray of shape (B, N) or None
        Counts; None if they are drawn on the fly.
    settings : dict
        Arguments of the call, for the report.
    key : PRNGKeyArray
        Key for reported draws and further questions.
    reparametrization : Reparametrization or None
        Map from sampled to reported parameters; None if they are the same.
    double : bool
        Whether the calibration is in double precision although JAX's setting is single precision. Default: False.
    precision : PrecisionCheck or None
        Check of the rounding errors. Default: None, no check.
    weights : Weights or None
        Weights of the observations. Default: None, all one.
    findings : tuple of Diagnostic
        Findings about the data. Default: none.
    state_of_model : str or None
        Digest of the loss and the prior at the end of the calibration (`calibayes._backend.outdated`). Default: None,
        unknown.
    """

    model: GibbsModel
    data: object
    observations: PyTree[np.ndarray] | CheckedParts
    names: Sequence[str]
    bootstrap: Bootstrap | None
    counts: Float[np.ndarray, "B N"] | None
    settings: dict[str, Any]
    key: PRNGKeyArray
    reparametrization: Reparametrization | None = None
    double: bool = False
    precision: PrecisionCheck | None = None
    weights: Weights | None = None
    findings: tuple[Diagnostic, ...] = ()
    state_of_model: str | None = None


def _in_own_precision(method: F) -> F:
    """Run a method of `Calibration` in the precision of its particles."""

    @wraps(method)
    def call(self: "Calibration", *args: Any, **options: Any) -> Any:
        with double_precision(self.inputs.double):
            return method(self, *args, **options)

    return cast(F, call)


class _Marginal(NamedTuple):
    """The calibrated interval of one linear combination."""

    bounds: np.ndarray
    eta: float
    eta_se: float
    status: Status
    diagnostics: list[Diagnostic]

    def checked(self) -> "_Marginal":
        """Return the interval with a diagnostic if its learning rate is too uncertain, and the status that follows."""
        uncertainty = [one for one in _uncertainty(self.eta, self.eta_se) if one.severity > Severity.INFO]
        diagnostics = [*self.diagnostics, *uncertainty]
        return self._replace(status=_lowered(self.status, diagnostics), diagnostics=diagnostics)


@dataclass(frozen=True)
class Calibration:
    """A finished calibration: inputs, the problem with its sampler, and the final iterate.

    Attributes
    ----------
    inputs : Inputs
        Validated arguments.
    problem : CoverageProblem
        The equation that was solved.
    iterate : Iterate
        Its solution.
    trace : tuple of TraceRecord
        Learning rates visited.
    search : Search
        Search rule.
    max_iterations : int
        Limit on further searches.
    fell_back : bool
        Whether the fallback sampler produced the solution.
    method : Method
        How the learning rate was set.
    draws : DrawsOnData
        Draws on the data and their moments, for methods that need them.
    computed_intervals : dict
        Answers of `intervals` by level.
    """

    inputs: Inputs
    problem: CoverageProblem
    iterate: Iterate
    trace: tuple[TraceRecord, ...]
    search: Search
    max_iterations: int
    fell_back: bool
    method: Method
    draws: DrawsOnData
    computed_intervals: dict[float, Intervals] = field(default_factory=dict, init=False, repr=False, compare=False)

    def with_reparametrization(
        self, reparametrization: Reparametrization, data: object, settings: dict[str, Any]
    ) -> "Calibration":
        """Return the calibration with parameters reported in other coordinates, in which `data` are the data."""
        settings = self.inputs.settings | settings
        inputs = replace(self.inputs, reparametrization=reparametrization, data=data, settings=settings)
        return replace(self, inputs=inputs)

    @_in_own_precision
    def result(self) -> Result:
        """Return the result, and warn of diagnostics that its user should know about."""
        iterate, problem, inputs = self.iterate, self.problem, self.inputs
        assert iterate.status is not None
        assert iterate.curve is not None
        of_nuisance = describe_host_nuisance(inputs.model.loss, self.method, problem.shape is not None)
        uncertainty = _uncertainty(iterate.eta, iterate.eta_se)
        diagnostics = [*inputs.findings, *of_nuisance, *iterate.diagnostics, *uncertainty]
        status = _lowered(iterate.status, diagnostics)
        _warn("calibration", status, diagnostics)
        repaired = np.full(iterate.coverage.n_replicates + 1, self.fell_back)
        if iterate.info.repaired is not None:
            repaired |= iterate.info.repaired
        draws, risk = self._reported_draws()
        result = Result(
            eta=iterate.eta,
            eta_se=iterate.eta_se,
            coverage=iterate.coverage,
            status=status,
            diagnostics=diagnostics,
            trace=list(self.trace),
            draws=draws,
            risk=risk,
            curve=iterate.curve,
            estimate=np.asarray(iterate.point),
            level=problem.level,
            names=list(inputs.names),
            repaired_replicates=np.flatnonzero(repaired[1:]),
            region=problem.region,
            model=inputs.model,
            data=inputs.data,
            counts=inputs.counts,
            settings=inputs.settings | {"sampler": problem.sampler, "search": self.search, "method": self.method},
            versions=versions(),
            calibration=self,
        )
        mapping = inputs.reparametrization
        return result if mapping is None else mapping.transform_result(result)

    @entry_point()
    @_in_own_precision
    def at(self, level: float | None, region: str | Region | None) -> Result:
        """Return the result for another level or region."""
        self._require_unchanged_model()
        level = self.problem.level if level is None else level
        check_level(level, self.iterate.coverage.n_replicates)
        if region is None:
            return self._solve_for(level, self.problem.region).result()
        region = as_region(region)
        drop_outdated_programs(region)
        region.check(self.problem.target.dim)
        mapping = self.inputs.reparametrization
        mapped = region if mapping is None else mapping.transform_region(region)
        return self._solve_for(level, mapped).result()

    def _require_unchanged_model(self) -> None:
        """Raise an error if the loss or the prior has changed: its particles are no draws of the changed posterior."""
        model, problem = self.inputs.model, self.problem
        drop_outdated_programs(model.loss, model.prior, problem.region, problem.estimate, problem.sampler)
        state, recorded = state_of(model.loss, model.prior), self.inputs.state_of_model
        if None not in (state, recorded) and state != recorded:
            raise ValueError(
                "the loss or the prior of this result has changed since the calibration, in an attribute of an object "
                "or in a variable that a function uses. Calibrate again."
            )

    def _solve_for(self, level: float, region: Region) -> "Calibration":
        """Solve for another region or level, starting from the particles of this calibration.

        The check by an independent sampler (the audit) is not repeated.
        """
        self.method.check_region(region, self.problem.target.dim)
        problem, search = replace(self.problem, region=region, level=level), Bracket()
        solver = Solver(search, np.nan, self.max_iterations, Checkpoint(), Progress(), time.perf_counter())
        # The curve is that of the old region and level.
        same = region is self.problem.region and level == self.problem.level
        known = replace(self.iterate, reported=None)
        known = known if same else replace(known, curve=None)
        solution = self.method.solve_again(solver, problem, known, self.draws)
        iterate = self._inherit(solution.iterate)
        if all(finding.code is not Code.ROUNDING for finding in iterate.diagnostics):
            iterate = check_rounding(self.inputs.precision, problem, iterate, repeatable=False)
        iterate = check_reliability(iterate)
        trace = solution.trace or self.trace
        return replace(self, problem=problem, iterate=iterate, trace=trace, search=search)

    @entry_point()
    @_in_own_precision
    def with_method(self, method: Method) -> "Calibration":
        """Return the calibration by another method, from the same draws and replicates."""
        self._require_unchanged_model()
        # The learning rate is that of the other method.
        known = replace(self.iterate, eta_se_of_method=None)
        return replace(self, method=method, iterate=known)._solve_for(self.problem.level, self.problem.region)

    def _inherit(self, iterate: Iterate) -> Iterate:
        """Return an iterate with the diagnostics that are about the sampler."""
        own = iterate.diagnostics
        inherited = [one for one in self.iterate.diagnostics if one.code in ABOUT_THE_SAMPLER and one not in own]
        return replace(iterate, diagnostics=(*inherited, *iterate.diagnostics))

    @entry_point()
    @_in_own_precision
    def intervals(self, level: float | None, of: object) -> Intervals:
        """Return equal-tailed intervals of linear combinations, each at the eta that calibrates that interval."""
        level = self.problem.level if level is None else level
        check_level(level, self.iterate.coverage.n_replicates)
        if of is None and level in self.computed_intervals:
            return self.computed_intervals[level]
        self._require_unchanged_model()
        vectors, constants = self._combinations(of)
        names = list(self.inputs.names) if of is None else [f"row {i}" for i in range(len(vectors))]
        with time_limit(self._seconds_for_intervals()):
            marginals = self._answer_all(level, vectors)
        _warn_of_marginals(names, marginals)
        intervals = Intervals(
            names,
            level,
            bounds=np.array([marginal.bounds for marginal in marginals]).reshape(-1, 2) + constants[:, None],
            eta=np.array([marginal.eta for marginal in marginals]),
            eta_se=np.array([marginal.eta_se for marginal in marginals]),
            status=[marginal.status for marginal in marginals],
            diagnostics=[marginal.diagnostics for marginal in marginals],
            means=vectors @ self._means() + constants,
        )
        if of is None and Status.INTERRUPTED not in intervals.status:
            self.computed_intervals[level] = intervals
        return intervals

    def _seconds_for_intervals(self) -> float:
        """Return the time limit of `intervals`: that of the calibration, or a multiple of the time it took."""
        chosen = self.inputs.settings.get("max_seconds")
        return chosen or max(CONFIG.min_time_limit, CONFIG.relative_time_limit * self.trace[-1].seconds)

    def _answer_all(self, level: float, vectors: np.ndarray) -> list["_Marginal"]:
        """Return the intervals of combinations. If the time is over, those at the joint eta, with a diagnostic."""
        answers: list[_Marginal | None] = [None if vector.any() else self._of_nothing() for vector in vectors]
        pending = np.flatnonzero([answer is None for answer in answers])
        try:
            for part in np.array_split(pending, -(-len(pending) // CONFIG.max_combinations) or 1):
                for i, answer in zip(part, self._answer_by_method(level, vectors[part]), strict=True):
                    answers[i] = answer
            for i in pending:
                answers[i] = answers[i] or self._answer_alone(level, vectors[i])
        except TimeLimitError:
            with time_limit(None):
                for i in pending:
                    answers[i] = answers[i] or self._at_joint_eta(level, vectors[i])
        return [answer for answer in answers if answer is not None]

    def _of_nothing(self) -> "_Marginal":
        """Return the interval of a combination whose coefficients are all zero."""
        assert self.iterate.status is not None
        return _Marginal(np.zeros(2), self.iterate.eta, self.iterate.eta_se, self.iterate.status, [])

    def _at_joint_eta(self, level: float, vector: np.ndarray) -> "_Marginal":
        """Return the interval of a combination at the joint eta, for a calibration that did not end in time."""
        message = (
            f"This interval was not calibrated within {self._seconds_for_intervals():.0f} s, and is shown at the joint "
            "learning rate. Set max_seconds= in calibrate to allow more time, which a busy machine may need; if that "
            "does not help, the data may not determine the parameter."
        )
        finding = Diagnostic(Code.TIME_LIMIT, Severity.ERROR, 0, message)
        bounds = self._bounds_at(self.iterate.eta, level, vector)
        return _Marginal(bounds, self.iterate.eta, self.iterate.eta_se, Status.TIME_LIMIT, [finding])

    def _means(self) -> Float[np.ndarray, " K"]:
        """Return the posterior means of the sampled parameters at the joint learning rate."""
        if self.problem.estimate == "mean":
            return np.asarray(self.iterate.point, np.float64)
        return self._reported_draws()[0].mean(0)

    def _reported_draws(self) -> tuple[Float[np.ndarray, "M K"], Float[np.ndarray, " M"]]:
        """Return the draws of the result and their risks: of the particles, or those that the method reports."""
        key, target, reported = self.inputs.key, self.problem.target, self.iterate.reported
        if reported is None:
            return _draw(key, target.constrained(self.iterate.particles))
        return _draw(key, target.constrained(reported), share=1.0)

    def _combinations(self, of: object) -> tuple[Float[np.ndarray, "R K"], Float[np.ndarray, " R"]]:
        """Return the requested combinations of sampled parameters, and constants to add."""
        dim, mapping = self.problem.target.dim, self.inputs.reparametrization
        vectors = np.eye(dim) if of is None else np.asarray(of, float)
        if vectors.ndim != 2 or vectors.shape[1] != dim:
            raise ValueError(f"of must hold rows of {dim} numbers, one per parameter; got shape {vectors.shape}.")
        constants = np.zeros(len(vectors))
        if mapping is not None:
            vectors, constants = mapping.pull_back(vectors)
        for vector in vectors:
            Linear(vector).check(dim)
        return vectors, constants

    def _answer_by_method(self, level: float, vectors: np.ndarray) -> list["_Marginal | None"]:
        """Return the intervals at the learning rates that the method states, or calibrate them."""
        rates = self.method.interval_etas(self.problem, self.iterate, self.draws, level, vectors)
        if rates is None:
            return self._answer_together(level, vectors)
        status = self.iterate.status
        assert status is not None
        # The method states those of an interval's own learning rate.
        joint = (Code.COVERAGE_OFF_LEVEL, Code.NOT_RESOLVED)
        findings = [finding for finding in self.iterate.diagnostics if finding.code not in joint]

        def answer(rate: LearningRate, vector: np.ndarray) -> _Marginal:
            known = [*findings, *rate.findings]
            failed = status.is_success and worst(known) is Severity.ERROR
            bounds = self._bounds_at(rate.eta, level, vector)
            return _Marginal(bounds, rate.eta, rate.eta_se, Status.UNRELIABLE if failed else status, known)

        return [None if rate is None else answer(rate, vector) for rate, vector in zip(rates, vectors, strict=True)]

    def _bounds_at(self, eta: float, level: float, vector: np.ndarray) -> np.ndarray:
        """Return the interval of a combination on the data at a learning rate."""
        iterate = self.iterate
        if iterate.reported is not None:
            return self._quantiles(iterate.reported, level, vector)
        near = abs(np.log(eta / iterate.sampled_eta)) <= iterate.half_width
        particles = host_reweight(iterate.particles, eta - iterate.eta) if near else self._particles_at(eta)
        return self._quantiles(particles, level, vector)

    def _quantiles(self, particles: Particles, level: float, vector: np.ndarray) -> np.ndarray:
        constrained = self.problem.target.constrained(particles)
        weights = np.asarray(constrained.weights[0], np.float64)
        values = vector @ np.asarray(constrained.theta[:, 0], np.float64)
        return np.quantile(values, _tails(level), weights=weights, method="inverted_cdf")

    def _answer_together(self, level: float, vectors: np.ndarray) -> list["_Marginal | None"]:
        """Calibrate combinations from the particles near the joint eta, and near a few others.

        None for combinations that need a calibration of their own, and for all if the particles are unreliable.
        """
        iterate = self.iterate
        answers: list[_Marginal | None] = [None] * len(vectors)
        remaining = (
            np.arange(len(vectors)) if iterate.status is not None and iterate.status.is_success else np.empty(0, int)
        )
        for is_last in [False] * CONFIG.max_moves + [True]:
            if not len(remaining):
                break
            curves, data = marginal_curves(self.problem, iterate, level, vectors[remaining])
            proposals = []
            for r, curve in zip(remaining, curves, strict=True):
                if is_inside(curve, iterate.sampled_eta):
                    answers[r] = self._read_off(iterate, level, vectors[r], curve, data)
                else:
                    proposals.append(float(np.clip(curve.eta_hat(), curve.etas[0], curve.etas[-1])))
            remaining = np.array([r for r in remaining if answers[r] is None], int)
            if len(remaining) < CONFIG.min_worth_a_move or is_last:
                break
            moved_iterate = self._move(iterate, float(np.median(proposals)))
            if moved_iterate is None:
                break
            iterate = moved_iterate
        return answers

    def _move(self, iterate: Iterate, eta: float) -> Iterate | None:
        """Return the iterate at another learning rate; None if the sampler does not reach it."""
        problem = self.problem
        silent = Progress().fraction_done
        state = problem.sampler.move(problem.target, iterate.state, eta, silent)
        try:
            return self._inherit(problem.evaluate(problem.sampler.refine(problem.target, state, silent), eta))
        except NotReachedError:
            return None

    def _read_off(
        self, iterate: Iterate, level: float, vector: np.ndarray, curve: Curve, data: Particles
    ) -> "_Marginal":
        """Return the interval at the crossing of a combination's own curve."""
        eta, _, jump = curve.attainable_eta()
        bounds = self._quantiles(host_reweight(data, eta - iterate.sampled_eta), level, vector)
        # The joint eta's standard error, refinement, jump and other crossings are not this interval's.
        joint = (Code.ETA_SE_UNKNOWN, Code.NOT_INTERPOLATED, Code.LEVEL_NOT_ATTAINED, Code.SEVERAL_CROSSINGS)
        findings = [finding for finding in iterate.diagnostics if finding.code not in joint]
        findings += [] if jump is None else [self.problem.describe_jump(jump)]
        crossings = describe_crossings(curve, eta, ())
        findings += [] if crossings is None else [crossings]
        return _Marginal(bounds, eta, curve.eta_se(), Status.CONVERGED, findings).checked()

    def _answer_alone(self, level: float, vector: np.ndarray) -> "_Marginal":
        """Return the interval of one combination by a calibration of its own."""
        own = self._solve_for(level, Linear(vector))
        iterate = own.iterate
        assert iterate.status is not None
        if iterate.status is Status.TIME_LIMIT:
            return self._at_joint_eta(level, vector)
        draws, _ = _draw(self.inputs.key, own.problem.target.constrained(iterate.particles))
        bounds = np.quantile(draws.astype(np.float64) @ vector, _tails(level))
        return _Marginal(bounds, iterate.eta, iterate.eta_se, iterate.status, list(iterate.diagnostics)).checked()

    @entry_point()
    @_in_own_precision
    def posterior(self, eta: float) -> Float[np.ndarray, "M K"]:
        """Return draws of the posterior on the data at any learning rate."""
        self._require_unchanged_model()
        draws, _ = _draw(self.inputs.key, self.problem.target.constrained(self._particles_at(eta)))
        mapping = self.inputs.reparametrization
        return draws if mapping is None else mapping.apply(draws)

    @entry_point()
    @_in_own_precision
    def level_of(self, theta: object, eta: float | None) -> float:
        """Return the smallest level at which the set on the data contains a point."""
        self._require_unchanged_model()
        target = self.problem.target
        point = np.asarray(theta, float)
        if point.shape != (target.dim,) or not np.isfinite(point).all():
            raise ValueError(f"theta must be {target.dim} finite numbers; got {theta!r}.")
        if self.inputs.reparametrization is not None:
            point = self.inputs.reparametrization.invert(point)
        reported = self.iterate.reported
        if eta is None and reported is not None:
            # Their density is not known.
            region = Ellipsoid() if isinstance(self.problem.region, HPD) else self.problem.region
            levels = critical_levels(target.replicate(0), reported, as_float(1.0), region, as_float(point))
            return float(levels[0])
        eta = self.iterate.eta if eta is None else eta
        particles, target = self._particles_at(eta), target.replicate(0)
        if self.problem.shape is not None:
            # The mean, around which draws are mapped, is not changed by the map.
            target = shape_target(target, particles, self.problem.shape)
        levels = critical_levels(target, particles, as_float(eta), self.problem.region, as_float(point))
        return float(levels[0])

    def _particles_at(self, eta: float) -> Particles:
        """Return particles on the data, moved by SMC if they are at another learning rate."""
        positive("eta", eta)
        iterate, key = self.iterate, fold_key(self.inputs.key, _POSTERIOR_STREAM)
        if eta == iterate.eta:
            return iterate.particles
        data, first, first_eta = self.problem.target.replicate(0), iterate.particles, iterate.eta
        if self.problem.shape is not None:
            first, first_eta = self.problem.sampler.particles_on_data(iterate.state), iterate.sampled_eta
        particles, mixed = temper_and_mix(key, data, first, first_eta, float(eta))
        if not np.all(mixed):
            message = f"The particles have not mixed at eta = {eta:.4g}; draws of the posterior there are rough."
            warn_user(message, CalibrationWarning)
        return self.problem.shaped_particles(particles)

    @entry_point()
    @_in_own_precision
    def validate(self, bootstrap: object, seed: object) -> Coverage:
        """Return the coverage at eta on replicates that had no part in choosing it."""
        self._require_unchanged_model()
        inputs, problem = self.inputs, self.problem
        if bootstrap is None:
            bootstrap = inputs.bootstrap
            if bootstrap is None:
                raise ValueError(
                    "validate cannot draw fresh replicates, because the counts of this calibration were passed as an "
                    "array. Pass bootstrap=, with the same meaning as in calibrate."
                )
        if isinstance(bootstrap, int | np.integer) and not isinstance(bootstrap, bool) and inputs.bootstrap is not None:
            bootstrap = inputs.bootstrap.with_replicates(int(bootstrap))
        n, in_parts = n_observations(inputs.observations), isinstance(inputs.observations, CheckedParts)
        default = problem.target.n_replicates - 1
        replicates = check_bootstrap(bootstrap, n, default, inputs.weights, in_parts=in_parts)
        n_replicates = replicates.n_replicates if isinstance(replicates, Bootstrap) else len(replicates)
        dim = problem.target.dim
        check_n_particles(problem.sampler.size_for(problem.target, dim), dim, n_replicates)
        key = fold_key(inputs.key, _VALIDATION_STREAM) if seed is None else as_key(seed)
        counts_key, initial_key, init_key = split_key(key, 3)
        with use_mesh(problem.target.mesh):
            counts = draw_counts(replicates, counts_key, n, inputs.weights, in_parts=in_parts)
            pad = not problem.sampler.reads_data
            target = make_target(inputs.model, inputs.observations, counts, dim, pad, inputs.weights)
        coverage, findings = self._coverage_on(target, initial_key, init_key)
        if worst(findings) >= Severity.WARNING:
            serious = [finding.message for finding in findings if finding.severity >= Severity.WARNING]
            warn_user(f"on the fresh replicates: {' '.join(serious)}", CalibrationWarning)
        return coverage

    def _coverage_on(
        self, target: Target, initial_key: PRNGKeyArray, init_key: PRNGKeyArray
    ) -> tuple[Coverage, tuple[Diagnostic, ...]]:
        """Return the coverage of the calibrated sets on other replicates, and the diagnostics of that run."""
        problem, eta = self.problem, self.iterate.eta
        sampler, initial = problem.sampler, problem.initial
        assert initial is not None
        target = target.recentre(problem.target.reference)
        initial = sampler.draw_initial_again(initial_key, target, initial, eta, problem.draws)
        fresh = replace(problem, target=target, labels=None)
        # The calibration was within reach, and this run takes no longer.
        with time_limit(np.inf):
            state = sampler.init(init_key, target, initial, eta)
        state = sampler.refine(target, state, Progress().fraction_done)
        iterate = fresh.evaluate(state, eta)
        # Averaged over snapshots, as the calibration's curve is.
        curve = fresh.curve(iterate, fresh.snapshots(state))
        levels = curve.critical_levels[len(curve.etas) // 2]
        return Coverage(int((levels <= problem.level).sum()), len(levels)), iterate.diagnostics


def _uncertainty(eta: float, eta_se: float) -> list[Diagnostic]:
    """Return a finding if the standard error of the learning rate is finite, but large."""
    relative = eta_se / eta
    if not CONFIG.uncertain < relative < np.inf:
        return []
    severity = Severity.INFO
    if relative > CONFIG.very_uncertain:
        severity = Severity.ERROR if relative > CONFIG.useless else Severity.WARNING
    message = (
        f"The standard error of the learning rate is {relative:.0%} of it, so that the widths of intervals are known "
        f"to about {relative / 2:.0%}. Use more bootstrap replicates."
    )
    return [Diagnostic(Code.ETA_UNCERTAIN, severity, 0, message)]


def _lowered(status: Status, diagnostics: Sequence[Diagnostic]) -> Status:
    """Return the status, UNRELIABLE in place of a success if a diagnostic is an error."""
    return Status.UNRELIABLE if status.is_success and worst(diagnostics) is Severity.ERROR else status


def _tails(level: float) -> list[float]:
    return [(1 - level) / 2, (1 + level) / 2]


def _warn(subject: str, status: Status, diagnostics: Sequence[Diagnostic]) -> None:
    """Warn if a calibration did not converge, or of its diagnostics from severity WARNING."""
    if not status.is_success:
        warn_user(f"{subject}: {describe(status, diagnostics)}", NotConvergedWarning)
    elif worst(diagnostics) >= Severity.WARNING:
        serious = [finding.message for finding in diagnostics if finding.severity >= Severity.WARNING]
        warn_user(f"{subject}: {' '.join(serious)}", CalibrationWarning)


def _warn_of_marginals(names: list[str], marginals: list[_Marginal]) -> None:
    """Warn of the first interval with a problem, and of the number of others."""
    failed = [
        (name, marginal)
        for name, marginal in zip(names, marginals, strict=True)
        if not marginal.status.is_success or worst(marginal.diagnostics) >= Severity.WARNING
    ]
    if not failed:
        return
    # The most serious first, so that the class of the warning is that of the worst interval.
    name, first = min(failed, key=lambda pair: pair[1].status.is_success)
    others = f" (and {len(failed) - 1} others)" if len(failed) > 1 else ""
    _warn(f"calibration of {name}{others}", first.status, first.diagnostics)


def _draw(
    key: PRNGKeyArray, particles: Particles, share: float = CONFIG.draws_share
) -> tuple[Float[np.ndarray, "M K"], Float[np.ndarray, " M"]]:
    """Return equally weighted draws on the data and their risks, by stratified resampling of the particles.

    The draws are in the order of the particles, so that consecutive quarters come from different populations, or from
    different times of a Markov chain (`calibayes.io.layout`).
    """
    on_device = (particles.theta, particles.risk, particles.log_weights, jax.random.key_data(key))
    theta, risk, log_weights, seed = jax.device_get(on_device)
    weights = np.exp(log_weights[0].astype(np.float64))
    n = min(CONFIG.max_draws, max(int(share * len(weights)), CONFIG.min_draws))
    # A multiple of the number of chains that `Result.to_datatree` splits them into.
    n -= n % 4
    rng = np.random.default_rng(seed)
    cdf = np.cumsum(weights)
    ancestors = np.searchsorted(cdf, (np.arange(n) + rng.uniform(size=n)) / n * cdf[-1], side="right")
    picked = np.minimum(ancestors, len(weights) - 1)
    # In double precision, in which means are accurate however far from zero the draws are.
    return theta[:, 0].T[picked].astype(np.float64), risk[0, picked].astype(np.float64)
