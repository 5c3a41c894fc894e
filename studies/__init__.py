"""Simulation studies over many data sets: the table and figures of the paper, and further ones.

Run them from the repository with `python -m studies COMMAND`. Each study stores one line per calibration in a CSV file
of `results/`, continues from that file when it is started again, and prints a summary of it.
"""
