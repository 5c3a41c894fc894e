"""Errors in Markov kernels."""

from benchmarks.validate.mutation import rewrite

_KERNELS = "kernels/test_kernels.py"
_CRANK_NICOLSON = "kernels/test_crank_nicolson.py"
_VALIDATION = "benchmarks/test_validation.py"

rewrite(
    "metropolis_ratio_inverted",
    "calibayes.kernels.base:metropolis",
    "_f(_a, _e) - _f(_b, _e)",
    "_f(_b, _e) - _f(_a, _e)",
    "Invert the Metropolis-Hastings ratio.",
    tests=[_KERNELS, _CRANK_NICOLSON],
)
rewrite(
    "metropolis_keeps_risk_of_rejected_proposals",
    "calibayes.kernels.base:metropolis",
    "jnp.where(_c, _a.risk, _b.risk)",
    "_a.risk",
    "Store the risk of a rejected proposal.",
    tests=[_KERNELS, _CRANK_NICOLSON],
)
rewrite(
    "metropolis_keeps_prior_of_rejected_proposals",
    "calibayes.kernels.base:metropolis",
    "jnp.where(_c, _a.log_prior, _b.log_prior)",
    "_a.log_prior",
    "Store the prior density of a rejected proposal.",
    tests=[_KERNELS, _CRANK_NICOLSON, _VALIDATION],
)
rewrite(
    "crank_nicolson_correction_negated",
    "calibayes.kernels.crank_nicolson:CrankNicolson.step",
    "jnp.square(_a).sum(0) - jnp.square(_b).sum(0)",
    "jnp.square(_b).sum(0) - jnp.square(_a).sum(0)",
    "Negate the correction for the Crank-Nicolson proposal.",
    tests=[_CRANK_NICOLSON],
)
rewrite(
    "crank_nicolson_correction_for_random_walks",
    "calibayes.kernels.crank_nicolson:CrankNicolson.step",
    "jnp.where(_w, 0.0, 0.5 * _c)",
    "0.5 * _c",
    "Apply the Crank-Nicolson correction to the symmetric random walk, too.",
    tests=[_CRANK_NICOLSON],
)
rewrite(
    "crank_nicolson_shrinkage_linear",
    "calibayes.kernels.crank_nicolson:CrankNicolson.step",
    "jnp.sqrt(1 - jnp.square(_b))",
    "1 - _b",
    "Shrink by 1 - beta instead of sqrt(1 - beta^2).",
    tests=[_CRANK_NICOLSON],
)
rewrite(
    "rwmh_adapts_in_the_wrong_direction",
    "calibayes.kernels.rwmh:RWMH._adapt",
    "-_e if self.as_printed else _e",
    "_e if self.as_printed else -_e",
    "Adapt the scale of the random walk away from its target acceptance.",
    tests=[_KERNELS, _CRANK_NICOLSON],
)
rewrite(
    "ram_adapts_in_the_wrong_direction",
    "calibayes.kernels.ram:RAM._adapt",
    "_g[:, None] * (_p - _t)",
    "_g[:, None] * (_t - _p)",
    "Adapt the shape of RAM away from its target acceptance.",
    tests=[_KERNELS, _CRANK_NICOLSON],
)
rewrite(
    "polson_scott_weight_missing_in_linear_term",
    "calibayes.kernels.polson_scott:_sweep",
    "_a * (1 + _a * _l) * _y",
    "_a * (1 + _l) * _y",
    "Drop the weight of an observation from the linear term.",
    tests=[_KERNELS, _VALIDATION],
)
rewrite(
    "polson_scott_weight_not_squared_in_precision",
    "calibayes.kernels.polson_scott:_sweep",
    "(jnp.square(_a) * _l)[None]",
    "(_a * _l)[None]",
    "Do not square the weight of an observation in the precision.",
    tests=[_KERNELS, _VALIDATION],
)
rewrite(
    "polson_scott_prior_scale_inverted",
    "calibayes.kernels.polson_scott:_sweep",
    "_s * jnp.abs(_t - _m)",
    "jnp.abs(_t - _m) / _s",
    "Divide by the prior scale instead of multiplying.",
    tests=[_KERNELS, _VALIDATION],
)
rewrite(
    "polson_scott_prior_location_missing",
    "calibayes.kernels.polson_scott:_sweep",
    "_x @ _v + _o * _m",
    "_x @ _v",
    "Drop the prior location.",
    tests=[_KERNELS, _VALIDATION],
)
rewrite(
    "inverse_gaussian_wrong_root",
    "calibayes.kernels.polson_scott:inverse_gaussian",
    "_u <= 1 / (1 + _r)",
    "_u <= _r / (1 + _r)",
    "Choose the larger root of the inverse Gaussian too often.",
    tests=[_KERNELS],
)
