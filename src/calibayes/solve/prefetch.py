"""Compile the programs of a calibration in the background, while the first of them already run.

A calibration needs some thirty programs, one after the other. Their shapes are known from the start, so a thread traces
them in order and several threads compile them. The main thread waits only for the program that it needs next.
"""

import threading
from collections.abc import Hashable
from contextlib import suppress

import jax
import numpy as np

from calibayes._backend.jit import abstract, is_array_like, prefetch, trace_settings
from calibayes._core.target import Target
from calibayes.regions import Region, critical_levels
from calibayes.samplers.base import Sampler
from calibayes.samplers.populations import N_POPULATIONS
from calibayes.solve import curve as curves
from calibayes.solve.curve import levels_on_grid
from calibayes.solve.iterate import summarize
from calibayes.solve.problem import CoverageProblem

_started: set[Hashable] = set()
"""Signatures of the problems whose programs have been requested by this process."""


def prefetch_programs(problem: CoverageProblem) -> None:
    """Start to compile the programs that the calibration of a problem needs, once per process and shape.

    Parameters
    ----------
    problem : CoverageProblem
        The problem. Only shapes and static values are used.
    """
    if problem.target.mesh is not None or jax.process_count() > 1 or jax.config.values["jax_disable_jit"]:
        return
    parts = problem.target, problem.sampler, problem.region
    shapes = jax.tree.map(lambda leaf: abstract(leaf) if is_array_like(leaf) else leaf, parts)
    leaves, structure = jax.tree.flatten(shapes)
    settings = trace_settings()
    with suppress(TypeError):  # static values that cannot be hashed
        signature = (
            structure,
            tuple((leaf.shape, leaf.dtype) if is_array_like(leaf) else leaf for leaf in leaves),
            settings,
        )
        if signature not in _started:
            _started.add(signature)
            threading.Thread(target=_prefetch, args=(*shapes, settings), daemon=True, name="calibayes-prefetch").start()


def _prefetch(target: Target, sampler: Sampler, region: Region, settings: tuple[Hashable, ...]) -> None:
    """Trace the programs in order. An error, such as one in the user's loss, is raised again when a program is used."""
    # Double precision may be set for the thread of the caller only.
    with jax.enable_x64(target.reference.dtype == np.float64), suppress(Exception):
        if settings != trace_settings():
            return  # another setting of that thread
        particles = sampler.prefetch(target)
        if particles is None:
            return
        dtype = target.reference.dtype
        number, point = jax.ShapeDtypeStruct((), dtype), jax.ShapeDtypeStruct((target.dim,), dtype)
        prefetch(summarize, target, particles, number, region, point)
        n_points = curves.CONFIG.n_points
        grid, points = jax.ShapeDtypeStruct((2, n_points), dtype), jax.ShapeDtypeStruct((n_points, target.dim), dtype)
        prefetch(levels_on_grid, target, particles, grid, region, points)
        if sampler.needs_audit:
            chosen = jax.ShapeDtypeStruct((N_POPULATIONS,), np.int32)
            some_target, some = (prefetch(type(whole).select, whole, chosen) for whole in (target, particles))
            prefetch(critical_levels, some_target, some, number, region, point)
