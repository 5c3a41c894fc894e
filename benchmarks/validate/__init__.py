"""Statistical tests of the library that take minutes, and the results they stored.

`python -m benchmarks.validate` runs them. `docs/trust.md` contains tables generated from `results/validation.json`.
"""
