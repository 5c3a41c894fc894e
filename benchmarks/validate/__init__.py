"""Is the library right? Statistical tests that take minutes, and what they found.

`python -m benchmarks.validate` runs them; `docs/trust.md` is written from what is stored.
"""
