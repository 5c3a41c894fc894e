"""Errors in random numbers, linear algebra, devices and input checks."""

from benchmarks.validate.mutation import rewrite

_RNG = "backend/test_rng.py"
_LINALG = "backend/test_linalg.py"
_DEVICES = "backend/test_devices.py"

rewrite(
    "uniforms_same_for_every_parameter",
    "calibayes._backend.rng:uniforms",
    "jax.lax.broadcasted_iota(jnp.uint32, _s, 0)",
    "jnp.zeros(_s, jnp.uint32)",
    "Use the same random numbers for every parameter.",
    tests=[_RNG],
)
rewrite(
    "fold_key_ignores_later_words",
    "calibayes._backend.rng:fold_key",
    "fold_in(_k, _a(word & _m, _t))",
    "fold_in(_k, _a(words[0] & _m, _t))",
    "Fold the first word into a key instead of the later ones.",
    tests=[_RNG],
)
rewrite(
    "cholesky_by_lapack",
    "calibayes._backend.linalg:cholesky",
    "jax.lax.platform_dependent(_m, cpu=_c, default=_d)",
    "jax.lax.platform_dependent(_m, cpu=_d, default=_d)",
    "Call LAPACK inside a compiled program, where it can deadlock.",
    tests=[_LINALG],
)
rewrite(
    "eigenvalues_not_clipped_from_above",
    "calibayes._backend.linalg:clip_eigenvalues",
    "np.clip(_v, low, high)",
    "np.maximum(_v, low)",
    "Clip eigenvalues from below only.",
    tests=[_LINALG],
)
rewrite(
    "no_sum_over_devices",
    "calibayes._backend.devices:sum_over_devices",
    "jax.lax.psum(fn(_i, *args), OBSERVATIONS)",
    "fn(_i, *args)",
    "Do not sum over the devices that hold the observations.",
    tests=[_DEVICES],
)
rewrite(
    "every_device_computes_the_first_replicates",
    "calibayes._backend.devices:sum_over_devices",
    "jax.lax.axis_index(REPLICATES) * _s + jnp.arange(_s)",
    "0 * jax.lax.axis_index(REPLICATES) + jnp.arange(_s)",
    "Let every device compute the first replicates.",
    tests=[_DEVICES],
)
