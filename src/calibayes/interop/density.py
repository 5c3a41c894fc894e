"""Any log-density as a prior."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np

from calibayes._backend.functions import as_float, static


class LogDensity(eqx.Module):
    """A prior from the log of its density, `fn(theta) -> scalar`, up to a constant.

    A start from the prior and the audit of `sampler="auto"` need `sample(key, shape)`, where `shape` ends in K; without
    it `calibrate` needs `draws`. The density is zero outside of `bounds`, `(low, high)`.
    """

    log_prob: Callable[..., Any] = eqx.field(converter=static)
    bounds: tuple[Any, Any]
    drawn: Callable[..., Any] | None

    def __init__(
        self,
        fn: Callable[..., Any],
        sample: Callable[..., Any] | None = None,
        bounds: tuple[Any, Any] = (-np.inf, np.inf),
    ):
        self.log_prob = fn
        self.drawn = None if sample is None else static(sample)
        self.bounds = (as_float(bounds[0]), as_float(bounds[1]))

    @property
    def sample(self) -> Callable[..., Any]:
        if self.drawn is None:
            raise AttributeError("this prior was given no sample(key, shape).")
        return self.drawn
