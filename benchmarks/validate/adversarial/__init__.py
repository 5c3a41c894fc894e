"""Models that are difficult to calibrate, with exact answers by integration on a grid.

`families.py` defines the models, `grid.py` integrates them, and `run.py` calibrates them and compares.
"""
