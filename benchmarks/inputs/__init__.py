"""Invalid and unusual input in bulk: each call must give a correct answer, an error, or a status that says why not.

Run with `python -m benchmarks.inputs [--examples 5000] [--files 1000] [--runs 400 --minutes 15]`.
"""
