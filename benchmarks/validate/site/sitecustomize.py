"""Imported by every interpreter that has this folder in PYTHONPATH: applies the mutant that the environment names."""

import os

if name := os.environ.get("CALIBAYES_MUTANT"):
    from benchmarks.validate.mutants import MUTANTS
    from benchmarks.validate.mutation import install

    install(MUTANTS[name])
