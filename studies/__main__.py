"""Run `python -m studies`."""

import os
from pathlib import Path

from studies.cli import app

if __name__ == "__main__":
    # Compiled programs are shared by the worker processes and kept for the next study.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "calibayes"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    app(prog_name="python -m studies")
