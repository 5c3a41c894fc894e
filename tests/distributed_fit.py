"""The command `calibayes` with counts that are never stored, as for large files; started by test_distributed.py."""

import dataclasses
import sys

from calibayes import resampling
from calibayes.cli import app

if __name__ == "__main__":
    resampling.CONFIG = dataclasses.replace(resampling.CONFIG, max_stored_counts=0)
    app(sys.argv[1:])
