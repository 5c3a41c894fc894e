"""Bad input in bulk: a right answer, an error that names the argument, or a status that says what is wrong.

python -m benchmarks.inputs [--examples 5000] [--tables 1000] [--runs 400 --minutes 15]
"""
