"""The registry of mutants: deliberate errors, each of which some test must notice.

Each changes the numbers that are computed, not only the speed. Run them with `make mutants`. A mutant that no longer
applies, because its function was renamed or rewritten, fails `tests/benchmarks/test_mutants.py`: adapt its target or
its pattern, so that it makes the same error again.
"""

from benchmarks.validate.mutants import backend, core, kernels, models, samplers, solve, transport  # noqa: F401
from benchmarks.validate.mutation import REGISTRY

MUTANTS = REGISTRY
