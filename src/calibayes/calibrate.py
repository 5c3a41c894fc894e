"""`calibrate`: what a user asks for, checked, run and reported; and the paper's two algorithms by name."""

import time
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from calibayes._backend.arguments import display
from calibayes._backend.distributed import agree, guarded
from calibayes._backend.rng import split_key
from calibayes._backend.room import make_room
from calibayes._core.target import make_target
from calibayes._validate.checks import (
    as_key,
    check_counts,
    check_data,
    check_draws,
    check_estimate,
    check_first,
    check_numbers,
    check_start,
)
from calibayes.bootstrap import Bootstrap, drawn
from calibayes.kernels import Kernel
from calibayes.model import GibbsModel
from calibayes.progress import LiveLine
from calibayes.regions import Region, as_region
from calibayes.requery import Calibration, Problem
from calibayes.result import Result
from calibayes.samplers import MCMC, SMC, Sampler, Transport
from calibayes.solve import seek
from calibayes.solve.checkpoint import Checkpoint, Journal, check_path, fingerprint
from calibayes.solve.fallback import make_sure
from calibayes.solve.loop import Loop
from calibayes.solve.search import Bracket, RobbinsMonro, Search

SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "auto": lambda: Transport(audit=True),
    "transport": Transport,
    "smc": SMC,
    "mcmc": MCMC,
}
_ROWS = 2_000
_PAPER_ROWS = 500
_SECONDS = 1.0
"""Between looks at the room there is: to compile what fills it takes longer."""


@guarded()
def calibrate(
    model: GibbsModel,
    data: Any,
    *,
    level: float = 0.95,
    region: str | Region = "hpd",
    sampler: str | Sampler = "auto",
    search: Search | None = None,
    bootstrap: Any = None,
    estimate: str | Callable[..., Any] = "mean",
    eta_init: float | None = None,
    tolerance: float = 0.005,
    max_iterations: int = 100,
    draws: Any = None,
    names: Sequence[str] | None = None,
    seed: Any,
    progress: bool = True,
    checkpoint: str | PathLike[str] | None = None,
) -> Result:
    """Choose eta so that credible sets at `level` cover as often as they say.

    Args:
        model: a `GibbsModel`.
        data: `(X, y)` for linear losses; else a pytree of arrays with observations leading.
        level: the credible level that coverage should meet.
        region: which set: `"hpd"`, `"ellipsoid"`, `"box"`, `"simultaneous"`, `regions.Interval(k)` or
            `regions.Functional(fn)`.
        sampler: `"auto"` is `"transport"`, audited on some rows by an independent sampler, with `"smc"` from the prior
            to fall back on; or `"smc"`, `"mcmc"`, or a `Transport(...)`, `SMC(...)` or `MCMC(...)`.
        search: the rule for the next eta; `Bracket()` for transport and `RobbinsMonro()` for the others, unless told.
        bootstrap: a number of rows (2,000 for transport and 500 for the others unless told), one of
            `calibayes.bootstrap`, or counts (B, N). A number stands for the multinomial bootstrap; for Poisson's, which
            is never stored, where B x N is large.
        estimate: what the sets should cover: `"mean"`, `"mode"`, `"minimizer"`, or `fn(draws, weights)`.
        eta_init: where the search starts. Unless told, where the posterior's spread matches the sandwich's for
            transport, 1 for the others.
        tolerance: a `RobbinsMonro` search stops when coverage is closer than this to `level`.
        max_iterations: of the search.
        draws: (M, K) draws of the posterior at `eta_init` to start from; else the start is from the prior.
        names: of the parameters; else the columns of a data frame.
        seed: an int or a JAX key.
        progress: show a live line on a terminal or in a notebook.
        checkpoint: a file to save to after the start and every iteration. The same call made again, after it was
            killed or interrupted, goes on from there, to the same result bit for bit on the same machine; after the
            end it has the result at once. With more `max_iterations` it goes on after a stop for their number. A file
            of another call is a `CheckpointError`. The file stays when all is done.

    Interrupted (Ctrl-C), it returns the best result so far; where several processes work together, each of which is
    interrupted at a moment of its own, it ends.
    """
    began = time.perf_counter()
    make_room(every=_SECONDS)
    place = None if checkpoint is None else check_path(checkpoint)
    observations = check_data(model, data, names)
    sampler = _as_sampler(sampler)
    size = sampler.size(observations.dim)
    rows = check_counts(bootstrap, observations.n, _ROWS if isinstance(sampler, Transport) else _PAPER_ROWS)
    n_replicates = rows.n_replicates if isinstance(rows, Bootstrap) else len(rows)
    check_draws(size, observations.dim, n_replicates)
    check_estimate(estimate)
    if search is None:
        search = Bracket() if isinstance(sampler, Transport) else RobbinsMonro()
    if not isinstance(search, Search):
        raise TypeError(f"search must be a Bracket(...) or a RobbinsMonro(...); got {display(search)}.")
    check_numbers(level, tolerance, eta_init, max_iterations, n_replicates, not isinstance(search, Bracket))
    level, tolerance, max_iterations = float(level), float(tolerance), int(max_iterations)
    region = as_region(region)
    region.check(observations.dim)
    given = check_first(draws, model.prior, observations.dim)

    key = as_key(seed)
    chosen = {"sampler": sampler, "search": search, "region": region, "estimate": estimate, "draws": draws}
    numbers = {"level": level, "tolerance": tolerance, "seed": key}
    first = {"eta_init": None if eta_init is None else float(eta_init)}
    journal = None
    if place is not None or jax.process_count() > 1:
        same = fingerprint(model, observations, rows, chosen | numbers | first)
        journal = None if place is None else Checkpoint(place, same, max_iterations)
        found_there = "" if journal is None else journal.found
        agree(same | {"max_iterations": str(max_iterations), "checkpoint": found_there})
    row_key, check_key, search_key, draw_key = _keys(key)
    counts = drawn(rows, row_key, observations.n)
    target = make_target(model, observations.data, counts, observations.dim)
    sampler.check(target)
    target, start = check_start(target, given, check_key)
    loop = Loop(
        target=target,
        draws=start,
        region=region,
        sampler=sampler,
        search=search,
        estimate=estimate,
        eta=first["eta_init"],
        level=level,
        tolerance=tolerance,
        max_iterations=max_iterations,
        key=search_key,
        began=began,
    )
    if journal is not None:
        journal.begin(target)
        loop.journal = journal
    settings = {
        "estimate": estimate,
        "bootstrap": bootstrap,
        "eta_init": eta_init,
        "tolerance": tolerance,
        "max_iterations": max_iterations,
        "draws": draws is not None,
        "seed": seed,
        "n": observations.n,
        "device": jax.devices()[0].device_kind,
    }
    drawn_from = rows if isinstance(rows, Bootstrap) else None
    kept = counts if isinstance(counts, np.ndarray) else None
    problem = Problem(model, data, observations.data, observations.names, drawn_from, kept, settings, draw_key)
    with LiveLine(progress, size) as live:
        found = seek.run(loop, live)
        if isinstance(sampler, Transport) and sampler.audit:
            loop, found = make_sure(loop, found, live)
            settings["audited"] = region.name
    if journal is not None:
        journal.save()
        loop.journal = Journal()
    return Calibration(problem, loop, found).result()


def gpc_smc(model: GibbsModel, data: Any, *, seed: Any, n_particles: int = 1000, **options: Any) -> Result:
    """Generalized posterior calibration by sequential Monte Carlo (figure 3), with the paper's settings.

    `options` are those of `calibrate`, but the region is the box unless told. The paper takes 1,000 particles for
    quantile regression, 4,000 for the SVM.
    """
    return calibrate(model, data, seed=seed, **_paper(options, SMC(n_particles=n_particles)))


def gpc_mcmc(
    model: GibbsModel, data: Any, *, seed: Any, n_draws: int = 20_000, kernel: Kernel | None = None, **options: Any
) -> Result:
    """Generalized posterior calibration by MCMC (figure 1; Syring and Martin 2019), with the paper's settings.

    `options` are those of `calibrate`, but the region is the box unless told. The kernel is `kernels.RAM()` unless
    told; for the SVM the paper takes `kernels.PolsonScott()`.
    """
    sampler = MCMC(n_draws=n_draws) if kernel is None else MCMC(n_draws=n_draws, kernel=kernel)
    return calibrate(model, data, seed=seed, **_paper(options, sampler))


def _paper(options: dict[str, Any], sampler: Sampler) -> dict[str, Any]:
    if "sampler" in options:
        raise TypeError("sampler is settled by the algorithm's name; to choose another, use calibrate(sampler=...).")
    settings = {"search": RobbinsMonro("kesten"), "region": "box", "bootstrap": 500, "eta_init": 1.0}
    return settings | options | {"sampler": sampler}


@jax.jit
def _keys(key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray, PRNGKeyArray]:
    """For the rows, the check of the start, the search and the draws that are reported."""
    row_key, check_key, run_key = split_key(key, 3)
    return row_key, check_key, *split_key(run_key)


def _as_sampler(sampler: str | Sampler) -> Sampler:
    if isinstance(sampler, Sampler):
        return sampler
    if not isinstance(sampler, str) or sampler not in SAMPLERS:
        raise ValueError(
            f"sampler must be one of {', '.join(SAMPLERS)}, or a Transport(...), SMC(...) or MCMC(...); "
            f"got {display(sampler)}."
        )
    return SAMPLERS[sampler]()
