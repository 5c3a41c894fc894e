"""Benchmarks and long-running checks of calibayes. They run from the repository and are not installed with the package.

`benchmarks.speed` measures speed, `benchmarks.validate` tests statistical correctness, `benchmarks.inputs` tries
invalid and unusual input. The other modules are single commands; each prints its options with `--help`.
"""
