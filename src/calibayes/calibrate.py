"""`calibrate`: validate the input, assemble the problem, solve it and wrap the result.

`gpc_mcmc` is the algorithm of Syring and Martin (2019) and `gpc_smc` that of Tanaka (2024), arXiv:2404.16528, both with
the settings of the latter.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from calibayes._backend.arguments import display
from calibayes._backend.distributed import DistributedError, agree
from calibayes._backend.entry import entry_point
from calibayes._backend.memory import clear_caches_if_full
from calibayes._backend.outdated import drop_outdated_programs, record_states, state_of
from calibayes._backend.rng import split_key
from calibayes._backend.time_limit import time_limit
from calibayes._backend.warnings import CheckpointError
from calibayes._core.parts import Parts, columns_of
from calibayes._core.precision import PrecisionCheck, PrecisionError, double_precision, is_double
from calibayes._core.status import Code, Diagnostic, Severity
from calibayes._core.target import make_target
from calibayes._validate.data import Observations, check_data
from calibayes._validate.functions import forget_passed_checks
from calibayes._validate.parts import check_parts
from calibayes._validate.sample import few_observations, many_repetitions, redundant_columns
from calibayes._validate.settings import (
    as_key,
    check_bootstrap,
    check_estimate,
    check_max_seconds,
    check_n_particles,
    check_search_settings,
    check_weights,
)
from calibayes._validate.start import check_initial_draws, check_initial_risk
from calibayes.bootstrap import Bootstrap
from calibayes.kernels import Kernel
from calibayes.losses import CountsRisk, LinearLoss
from calibayes.methods import Method, as_method
from calibayes.methods.base import draws_on_data
from calibayes.methods.shape import check_shape, describe_shape, with_sandwich_shape
from calibayes.model import GibbsModel
from calibayes.progress import LiveLine
from calibayes.regions import Region, as_region
from calibayes.requery import Calibration, Inputs
from calibayes.resampling import draw_counts
from calibayes.result import Result
from calibayes.samplers import MCMC, SMC, Sampler, Transport
from calibayes.solve.bracket import Bracket
from calibayes.solve.checkpoint import Checkpoint, check_path, fingerprint, lock_checkpoint
from calibayes.solve.prefetch import prefetch_programs
from calibayes.solve.problem import CoverageProblem
from calibayes.solve.robbins_monro import RobbinsMonro
from calibayes.solve.search import Search
from calibayes.solve.solver import Solver
from calibayes.solve.ties import label_equal_replicates
from calibayes.solve.verify import FinalSolution

SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "auto": lambda: Transport(audit=True),
    "transport": Transport,
    "smc": SMC,
    "mcmc": MCMC,
}
SEARCHES: dict[str, Callable[[], Search]] = {"robbins-monro": RobbinsMonro, "bracket": Bracket}
_CACHE_CHECK_SECONDS = 1.0
"""Seconds between checks of the memory that compiled programs take; compiling enough to fill it takes longer."""


@entry_point()
def calibrate(
    model: GibbsModel,
    data: object,
    *,
    level: float = 0.95,
    region: str | Region = "hpd",
    method: str | Method = "gpc",
    shape: str | None = None,
    sampler: str | Sampler = "auto",
    search: Search | None = None,
    bootstrap: object = None,
    estimate: str | Callable[..., Any] = "mean",
    weights: object = None,
    eta_init: float | None = None,
    tolerance: float = 0.005,
    max_iterations: int = 100,
    max_seconds: float | None = None,
    draws: object = None,
    names: Sequence[str] | None = None,
    seed: object = 0,
    progress: bool = True,
    checkpoint: str | PathLike[str] | None = None,
) -> Result:
    """Choose the learning rate eta so that a share `level` of the replicates' credible sets contain the estimate.

    This is `method="gpc"`, the default. Other methods choose eta by another criterion, or report draws of another
    distribution.

    Parameters
    ----------
    model : GibbsModel
        Loss and prior.
    data : (X, y) or pytree of arrays
        `(X, y)` for losses of a linear prediction (`calibayes.losses.LinearLoss`); otherwise a pytree of arrays whose
        first axis is the observations. pandas and polars frames are accepted. Or `calibayes.Parts`, which each process
        reads in parts.
    level : float
        Credible level that coverage should equal. Default: 0.95.
    region : str or Region
        Credible set: "hpd", "ellipsoid", "box", "simultaneous", or one of `calibayes.regions`. Default: "hpd".
    method : str or Method
        How the learning rate is set. "gpc" solves for the eta at which coverage on the replicates equals `level`.
        "gpc-studentized" and "gpc-double" correct this eta for small numbers of observations. "matching"
        and "lyddon-holmes-walker" compute eta from the gradients of the losses and the covariance of the draws,
        "holmes-walker" from the gradients of the log-likelihood at the data and at simulated data; "safe-bayes" chooses
        it from a grid by sequential predictions. "bayesbag", "posterior-bootstrap" and "q-posterior" report draws of
        another distribution; eta and coverage are then those of the generalized posterior of about the same width. Or
        one of `calibayes.methods`. For all but "gpc", coverage on the replicates is reported and need not equal
        `level`. Default: "gpc".
    shape : str, optional
        "sandwich" transforms the deviations of the draws from their mean linearly, so that their covariance is
        proportional to the sandwich covariance (open-faced sandwich). `method` then sets the learning rate of the
        transformed posterior, which calibrates the intervals of all parameters approximately at once. It needs a
        posterior that is near normal. Default: None, the posterior as it is.
    sampler : str or Sampler
        "auto" is "transport", audited on some replicates by an independent sampler, with SMC from the prior as
        fallback. "smc", "mcmc", or a `Transport`, `SMC` or `MCMC` object. Default: "auto".
    search : Search, optional
        Rule for the next eta. Default: `Bracket()` for transport and `RobbinsMonro()` for the others.
    bootstrap : int, Bootstrap or array_like of shape (B, N), optional
        Number of replicates of the multinomial bootstrap (of the Poisson bootstrap where B x N is too large to store),
        one of `calibayes.bootstrap`, or the counts. Default: 2,000 for transport and 500 for the others.
    estimate : str or callable
        Point estimate that the sets should cover: "mean", "mode", "minimizer" or `fn(draws, weights)`. Default: "mean".
    weights : array_like of shape (N,), optional
        Weight of each observation, not negative. If all are integers they are numbers of repetitions, and the result is
        that of the repeated data. Otherwise, such as for survey weights, they multiply the loss of each observation,
        and the bootstrap resamples the N observations. Divide integer survey weights by their mean. If `bootstrap` is
        an array, its counts must already be multiplied by the weights, which are not applied to it again. Default: all
        one.
    eta_init : float, optional
        Learning rate at which the search starts. Default: for transport, the one at which the credible set given the
        observed data contains a share `level` of the replicates' estimates, by their first-order approximations; for
        the other samplers, 1.
    tolerance : float
        A `RobbinsMonro` search stops when coverage is within this distance of `level`. Default: 0.005.
    max_iterations : int
        Maximum number of learning rates that the search visits. Default: 100.
    max_seconds : float, optional
        Time limit in seconds. The best result so far is then returned, with `Status.TIME_LIMIT`. The limit is checked
        between steps: a step that is running or being compiled is finished first. With `checkpoint`, the same call
        continues. Default: no limit.
    draws : array_like of shape (D, K), optional
        At least 100 draws of the posterior given the observed data at learning rate `eta_init`, or at 1 if that is
        None, to start from. Default: the sampler computes such draws, by tempering from the prior or importance
        sampling.
    names : sequence of str, optional
        Names of the parameters. Default: the columns of a data frame.
    seed : int or JAX key
        Seed of all random numbers. Default: 0.
    progress : bool
        Whether to show a live line on a terminal or in a notebook. Default: True.
    checkpoint : path, optional
        File to save to after every step. The same call made again after it was killed or interrupted continues from
        there, to a result that is bit for bit the same on the same machine; after the end it returns the result at
        once. With a larger `max_iterations` it continues after a stop at the limit. The file is not removed at the end.

    Returns
    -------
    Result
        Learning rate with its standard error, draws of the calibrated posterior, status and diagnostics.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, before anything is compiled.
    CheckpointError
        If `checkpoint` is damaged, belongs to another calibration, or is in use by another process.
    TimeoutError
        If `max_seconds` pass before the coverage is known at any learning rate.

    Warns
    -----
    NotConvergedWarning
        If the result should not be relied on.
    CalibrationWarning
        If there are diagnostics of severity WARNING.

    Notes
    -----
    An interrupted call (Ctrl-C) returns the best result so far; a run of several processes ends instead.

    Examples
    --------
    >>> import calibayes as cb
    >>> X, y = cb.datasets.median_regression(n=100, seed=0)
    >>> model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    >>> result = cb.calibrate(model, (X, y), seed=0)  # doctest: +SKIP
    """
    started = time.perf_counter()
    clear_caches_if_full(min_interval=_CACHE_CHECK_SECONDS)
    of_model = (getattr(model, "loss", None), getattr(model, "prior", None))
    if drop_outdated_programs(*of_model):
        # The loss or the prior has changed, so that it has to be checked again.
        forget_passed_checks()
    path = None if checkpoint is None else check_path(checkpoint)
    in_parts = isinstance(data, Parts)
    observations = check_parts(model, data, names) if isinstance(data, Parts) else check_data(model, data, names)
    method = as_method(method)
    check_shape(shape)
    sampler = _as_sampler(sampler)
    size = sampler.size_for(model, observations.dim)
    observation_weights = check_weights(weights, observations.n)
    if isinstance(model.loss, CountsRisk) and observation_weights is not None:
        model.loss.check_weights(observation_weights.repeats)
    replicates = check_bootstrap(
        bootstrap, observations.n, sampler.default_replicates, observation_weights, in_parts=in_parts
    )
    n_replicates = replicates.n_replicates if isinstance(replicates, Bootstrap) else len(replicates)
    check_n_particles(size, observations.dim, n_replicates)
    drawn_by = replicates if isinstance(replicates, Bootstrap) else None
    n_resampled = observations.n if observation_weights is None else observation_weights.n_resampled
    findings = few_observations(n_resampled, observations.dim, replicates) + many_repetitions(observation_weights)
    if isinstance(model.loss, LinearLoss):
        x, extremes = columns_of(observations.data)
        findings += redundant_columns(x, observations.names, extremes)
    method.check(model, drawn_by, shape, observation_weights)
    check_estimate(estimate)
    search = _as_search(search, sampler)
    check_search_settings(level, tolerance, eta_init, max_iterations, n_replicates, search.uses_tolerance)
    max_seconds = check_max_seconds(max_seconds)
    level, tolerance, max_iterations = float(level), float(tolerance), int(max_iterations)
    eta_init = None if eta_init is None else float(eta_init)
    region = as_region(region)
    region.check(observations.dim)
    method.check_region(region, observations.dim)
    drop_outdated_programs(region, estimate, sampler)
    validated_draws = check_initial_draws(draws, model.prior, observations.dim)
    key = as_key(seed)
    counts_key, _, search_key, draw_key = _split(key)

    with _open_checkpoint(
        path,
        max_iterations,
        (sampler, search),
        _data_and_model(model, observations, replicates)
        | ({} if observation_weights is None else {"weights": observation_weights.values})
        | {"sampler": sampler, "search": search, "region": region, "estimate": estimate, "draws": draws}
        | {"method": method, "shape": shape, "level": level, "tolerance": tolerance, "seed": key, "eta_init": eta_init},
    ) as saved:
        counts = draw_counts(replicates, counts_key, observations.n, observation_weights, in_parts=in_parts)
        if isinstance(model.loss, CountsRisk) and isinstance(counts, np.ndarray):
            model.loss.check_counts(observations.data, counts)
        labels = label_equal_replicates(observations.data, counts)

        def make_problem() -> CoverageProblem:
            pad = not sampler.reads_data
            target = make_target(model, observations.data, counts, observations.dim, pad, observation_weights)
            sampler.check(target)
            initial_draws = None
            if validated_draws is not None:
                target, initial_draws = check_initial_risk(target, validated_draws)
            return CoverageProblem(
                target, sampler, region, level, estimate, search_key, initial_draws, labels=labels, bootstrap=drawn_by
            )

        with LiveLine(progress, size) as live:
            precision = PrecisionCheck(model, observations.data, observation_weights)
            solver = Solver(search, tolerance, max_iterations, saved, live, started, precision)
            with time_limit(max_seconds):
                verified, double = _solve(method, shape, solver, make_problem, eta_init)
    record_states(*of_model, region, estimate, sampler)
    settings = {
        "estimate": estimate,
        "weights": None if observation_weights is None else observation_weights.kind,
        "bootstrap": bootstrap,
        "eta_init": eta_init,
        "tolerance": tolerance,
        "max_iterations": max_iterations,
        "max_seconds": max_seconds,
        "draws": draws is not None,
        "seed": seed,
        "shape": shape,
        "n": observations.n,
        "device": jax.devices()[0].device_kind,
    }
    if verified.audited:
        settings["audited_region"] = region.name
    inputs = Inputs(
        model=model,
        data=data,
        observations=observations.data,
        names=observations.names,
        bootstrap=drawn_by,
        counts=counts if isinstance(counts, np.ndarray) else None,
        settings=settings,
        key=draw_key,
        double=double,
        precision=precision,
        weights=observation_weights,
        findings=tuple(findings),
        state_of_model=state_of(model.loss, model.prior),
    )
    solution = verified.solution
    with double_precision(double):
        draws_of_data = draws_on_data(solution.problem, solution.iterate)
    return Calibration(
        inputs,
        solution.problem,
        solution.iterate,
        solution.trace,
        search,
        max_iterations,
        verified.fell_back,
        method,
        draws_of_data,
    ).result()


def gpc_smc(model: GibbsModel, data: object, *, seed: object = 0, n_particles: int = 1000, **options: Any) -> Result:
    """Run generalized posterior calibration by sequential Monte Carlo (Tanaka 2024, figure 3).

    The settings of the sampler, the steps of the search and the number of replicates are those of Tanaka. Unlike there,
    the learning rate at which the search stops is replaced by the crossing of the coverage curve; with
    `search=cb.RobbinsMonro(interpolate=False)` it is not.

    Parameters
    ----------
    model, data, seed
        As for `calibrate`.
    n_particles : int
        Particles per replicate. Tanaka (2024) uses 1,000 for quantile regression and 4,000 for the SVM. Default: 1,000.
    **options
        Further arguments of `calibrate`. The default region is "box", the default bootstrap has 500 replicates.

    Returns
    -------
    Result

    References
    ----------
    Tanaka (2024), arXiv:2404.16528.

    Examples
    --------
    >>> import calibayes as cb
    >>> data = cb.datasets.median_regression(n=100, seed=0)
    >>> model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    >>> result = cb.gpc_smc(model, data, seed=0)  # doctest: +SKIP
    """
    return calibrate(model, data, seed=seed, **_paper_settings(options, SMC(n_particles=n_particles)))


def gpc_mcmc(
    model: GibbsModel,
    data: object,
    *,
    seed: object = 0,
    n_draws: int = 20_000,
    kernel: Kernel | None = None,
    **options: Any,
) -> Result:
    """Run generalized posterior calibration by MCMC (Syring and Martin 2019).

    The settings are those of Tanaka (2024, figure 1), except that the learning rate at which the search stops is
    replaced by the crossing of the coverage curve; with `search=cb.RobbinsMonro(interpolate=False)` it is not.

    Parameters
    ----------
    model, data, seed
        As for `calibrate`.
    n_draws : int
        Draws kept of each replicate's chain. Default: 20,000.
    kernel : Kernel, optional
        Markov kernel. Default: `kernels.RAM()`; for the SVM Tanaka (2024) uses `kernels.PolsonScott()`.
    **options
        Further arguments of `calibrate`. The default region is "box", the default bootstrap has 500 replicates.

    Returns
    -------
    Result

    References
    ----------
    Syring and Martin (2019), Biometrika 106, 479-486.
    Tanaka (2024), arXiv:2404.16528.

    Examples
    --------
    >>> import calibayes as cb
    >>> data = cb.datasets.median_regression(n=100, seed=0)
    >>> model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    >>> result = cb.gpc_mcmc(model, data, seed=0, n_draws=2_000)  # doctest: +SKIP
    """
    sampler = MCMC(n_draws=n_draws) if kernel is None else MCMC(n_draws=n_draws, kernel=kernel)
    return calibrate(model, data, seed=seed, **_paper_settings(options, sampler))


def _paper_settings(options: dict[str, Any], sampler: Sampler) -> dict[str, Any]:
    if "sampler" in options:
        raise TypeError("sampler is fixed by the algorithm. To choose another one, use calibrate(sampler=...).")
    settings = {"search": RobbinsMonro("kesten"), "region": "box", "bootstrap": 500, "eta_init": 1.0}
    return settings | options | {"sampler": sampler}


def _solve(
    method: Method,
    shape: str | None,
    solver: Solver,
    make_problem: Callable[[], CoverageProblem],
    eta: float | None,
) -> tuple[FinalSolution, bool]:
    """Solve a problem, in double precision if single precision does not resolve its posteriors.

    Returns the verified solution, and whether it is in double precision although JAX's setting is single precision.
    """
    reason = None
    if not solver.checkpoint.in_double:
        try:
            return _solve_once(method, shape, solver, make_problem(), eta), False
        except PrecisionError as error:
            if is_double():
                raise
            reason = str(error)
            solver.checkpoint.restart_in_double()
    with double_precision(True):
        verified = _solve_once(method, shape, solver, make_problem(), eta)
    message = f"The calibration was computed in double precision{'' if reason is None else f', because {reason}'}"
    finding = Diagnostic(Code.DOUBLE_PRECISION, Severity.INFO, 0, message)
    iterate = verified.solution.iterate
    iterate = replace(iterate, diagnostics=(finding, *iterate.diagnostics))
    return replace(verified, solution=replace(verified.solution, iterate=iterate)), True


def _solve_once(
    method: Method, shape: str | None, solver: Solver, problem: CoverageProblem, eta: float | None
) -> FinalSolution:
    if solver.precision is not None:
        solver.precision.check_range(problem.target)
    solver.checkpoint.load(problem.target)
    prefetch_programs(problem)
    problem = solver.draw_initial(problem, eta)
    if shape is not None:
        problem = with_sandwich_shape(solver, problem)
    verified = method.solve(solver, problem, eta)
    return verified if shape is None else describe_shape(verified)


def _split(key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray, PRNGKeyArray]:
    """Return keys for the counts, the check of the initial draws, the search and the reported draws."""
    counts_key, check_key, run_key = split_key(key, 3)
    search_key, draw_key = split_key(run_key)
    return counts_key, check_key, search_key, draw_key


def _as_sampler(sampler: str | Sampler) -> Sampler:
    if isinstance(sampler, Sampler):
        return sampler
    if not isinstance(sampler, str) or sampler not in SAMPLERS:
        raise ValueError(
            f"sampler must be one of {', '.join(SAMPLERS)}, or a Transport(...), SMC(...) or MCMC(...); "
            f"got {display(sampler)}."
        )
    return SAMPLERS[sampler]()


def _as_search(search: Search | None, sampler: Sampler) -> Search:
    if search is None:
        return SEARCHES[sampler.default_search]()
    if not isinstance(search, Search):
        raise TypeError(f"search must be a Bracket(...) or a RobbinsMonro(...); got {display(search)}.")
    return search


def _data_and_model(model: GibbsModel, observations: Observations, replicates: object) -> dict[str, Any]:
    """Return data, model and bootstrap, by the names that an error message uses; the caller adds the settings."""
    return {
        "data": getattr(observations.data, "checksum", observations.data),
        "loss": model.loss,
        "prior": model.prior,
        "number of parameters": observations.dim,
        "bootstrap": replicates,
    }


@contextmanager
def _open_checkpoint(
    path: Path | None, max_iterations: int, user_objects: tuple[object, ...], parts: dict[str, Any]
) -> Iterator[Checkpoint]:
    """Lock and open the checkpoint, and check that all processes make the same call."""
    if path is None and jax.process_count() == 1:
        yield Checkpoint()
        return
    digests = fingerprint(parts)
    parts_of_objects = [part for user_object in user_objects for part in (user_object, *vars(user_object).values())]
    modules = {type(part).__module__ for part in parts_of_objects if isinstance(part, eqx.Module)}
    call = digests | {"max_iterations": str(max_iterations)}
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_checkpoint(path))
            saved = Checkpoint(path, digests, max_iterations, frozenset(modules))
        except CheckpointError:
            # The other processes would wait for this one.
            with suppress(DistributedError):
                agree(call | {"checkpoint": "unusable"})
            raise
        agree(call | {"checkpoint": saved.loaded_checksum})
        yield saved
