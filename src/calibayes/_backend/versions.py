"""Versions of the software that determines a result."""

import platform

import jax
import numpy as np


def versions() -> dict[str, str]:
    """Return the versions of calibayes, JAX, NumPy and Python that are running."""
    from calibayes import __version__

    return {
        "calibayes_version": __version__,
        "jax_version": jax.__version__,
        "numpy_version": np.__version__,
        "python_version": platform.python_version(),
    }
