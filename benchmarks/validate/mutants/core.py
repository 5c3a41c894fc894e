"""Errors in particles, targets, coordinates, counts, the risk and the sandwich covariance."""

from benchmarks.validate.mutation import rewrite

_PARTICLES = "core/test_particles.py"
_TARGET = "core/test_target.py"
_COORDINATES = "core/test_coordinates.py"
_SANDWICH = "core/test_sandwich.py"
_VALIDATION = "benchmarks/test_validation.py"

rewrite(
    "resampling_off_by_one",
    "calibayes._core.particles:_inverse_cdf",
    "return _number_at_or_below(_c, _p)",
    "return jnp.maximum(_number_at_or_below(_c, _p) - 1, 0)",
    "Resample the particle before the drawn one.",
    tests=[_PARTICLES],
)
rewrite(
    "resampling_strata_half_used",
    "calibayes._core.particles:_inverse_cdf",
    "(_i + _u) / _n",
    "(_i + 0.5 * _u) / _n",
    "Draw from the lower half of each stratum only.",
    tests=[_PARTICLES],
)
rewrite(
    "resampling_keeps_weights",
    "calibayes._core.particles:Particles.take",
    "uniform_log_weights(_a.shape)",
    "self.log_weights[:, : _a.shape[1]]",
    "Keep the weights after resampling.",
    tests=[_PARTICLES],
)
rewrite(
    "resampling_keeps_prior_densities",
    "calibayes._core.particles:Particles.take",
    "jnp.take_along_axis(self.log_prior, _a, -1)",
    "self.log_prior[:, : _a.shape[1]]",
    "Do not resample the prior densities.",
    tests=[_PARTICLES, "samplers/test_tempering.py", _VALIDATION],
)
rewrite(
    "reweighting_sign_of_risk",
    "calibayes._core.particles:_unnormalised",
    "_w - _s[:, None] * jnp.where(_a, _r, 0.0)",
    "_w + _s[:, None] * jnp.where(_a, _r, 0.0)",
    "Reweight with the wrong sign of the risk.",
    tests=[_PARTICLES],
)
rewrite(
    "covariance_not_centred",
    "calibayes._core.particles:mean_and_covariance",
    "_t - _c[:, None]",
    "_t",
    "Compute the covariance without centring.",
    tests=[_PARTICLES],
)
rewrite(
    "covariance_without_weights",
    "calibayes._core.particles:mean_and_covariance",
    "jnp.matmul(_c * _w[None], _c.T, precision=_p)",
    "_c @ _c.T / len(_w)",
    "Compute the covariance without weights.",
    tests=[_PARTICLES],
)
rewrite(
    "ess_sum_not_squared",
    "calibayes._core.particles:ess_of_weights",
    "jnp.square(_t) / _d",
    "_t / _d",
    "Do not square the sum of weights in the effective sample size.",
    tests=[_PARTICLES],
)
rewrite(
    "quantile_excludes_equal_values",
    "calibayes._core.particles:quantile",
    "jnp.where(_v[None] <= _p[..., None], _w[None], 0.0)",
    "jnp.where(_v[None] < _p[..., None], _w[None], 0.0)",
    "Exclude values equal to the candidate from a quantile.",
    tests=[_PARTICLES],
)
rewrite(
    "share_below_counts_ties_fully",
    "calibayes._core.particles:share_below",
    "jnp.where(_a == _b, 0.5, 0.0)",
    "jnp.where(_a == _b, 1.0, 0.0)",
    "Count ties fully instead of half.",
    tests=[_PARTICLES],
)
rewrite(
    "weights_after_not_normalised",
    "calibayes._core.particles:weights_after",
    "_s / jnp.where(_t > 0, _t, 1.0)[:, None]",
    "_s",
    "Return weights that do not sum to one.",
    tests=[_PARTICLES],
)
rewrite(
    "log_density_without_prior",
    "calibayes._core.target:log_density",
    "-_e[:, None] * _p.risk + _p.log_prior",
    "-_e[:, None] * _p.risk",
    "Drop the prior from the posterior density.",
    tests=[_TARGET],
)
rewrite(
    "jacobian_subtracted",
    "calibayes._core.target:Target.evaluate",
    "_p + self.coordinates.log_jacobian(_z)",
    "_p - self.coordinates.log_jacobian(_z)",
    "Divide by the Jacobian of the coordinates.",
    tests=[_COORDINATES],
)
rewrite(
    "constrained_keeps_density_of_coordinates",
    "calibayes._core.target:Target._constrained",
    "_p.log_prior - self.coordinates.log_jacobian(_z)",
    "_p.log_prior",
    "Return the density of the coordinates as that of the parameters.",
    tests=[_COORDINATES],
)
rewrite(
    "subsample_misses_last_observations",
    "calibayes._core.target:Target.subsample",
    "_r * int(self.counts.n) // _s",
    "_r * (int(self.counts.n) // _s)",
    "Never subsample the last observations.",
    tests=["samplers/transport/test_subsample.py"],
)
rewrite(
    "logit_jacobian_one_sided",
    "calibayes._core.coordinates:Coordinates.log_jacobian",
    "_w + jax.nn.log_sigmoid(_z) + jax.nn.log_sigmoid(-_z)",
    "_w + jax.nn.log_sigmoid(_z)",
    "Drop one factor of the Jacobian of the logit.",
    tests=[_COORDINATES],
)
rewrite(
    "data_counted_twice",
    "calibayes._core.counts:StoredCounts.from_array",
    "1 if weights is None else _v",
    "2 if weights is None else _v",
    "Count every observation of the data twice.",
    tests=[_TARGET, "core/test_counts.py"],
)
rewrite(
    "risk_misses_last_observation_of_a_block",
    "calibayes._core.risk:weighted_risk",
    "sum(_t[1:], _t[0])",
    "sum(_t[1:-1], _t[0])",
    "Drop the last observation of each block.",
    tests=[_TARGET],
)
rewrite(
    "risk_caps_counts_at_one",
    "calibayes._core.risk:weighted_risk",
    "_c[_i][:, None] * _l",
    "jnp.minimum(_c[_i][:, None], 1.0) * _l",
    "Treat counts above one as one.",
    tests=[_TARGET],
    occurrence=0,
)
rewrite(
    "risk_drops_constant_of_linear_part",
    "calibayes._core.risk:weighted_risk",
    "(_c - _r)[None]",
    "(-_r)[None]",
    "Drop the constant of the linear part of a loss.",
    tests=[_TARGET],
)
rewrite(
    "risk_batch_starts_beyond_the_end",
    "calibayes._core.risk:in_batches",
    "jnp.minimum(_b * jnp.arange(_n), _m)",
    "_b * jnp.arange(_n)",
    "Let the last batch of replicates start too late.",
    tests=[_TARGET],
)
rewrite(
    "risk_keeps_repeated_replicates",
    "calibayes._core.risk:in_batches",
    "_v[-1, _r:]",
    "_v[-1, : _v.shape[1] - _r]",
    "Keep the repeated replicates of the last batch instead of the new ones.",
    tests=[_TARGET],
)
rewrite(
    "unrolled_product_misses_a_term",
    "calibayes._core.unroll:_add",
    "sum(_t[1:], _t[0])",
    "sum(_t[2:], _t[0])",
    "Drop a term of an unrolled product.",
    tests=["core/test_unroll.py"],
)
rewrite(
    "influence_negated",
    "calibayes._core.sandwich:_loss_covariances",
    "-jnp.tensordot(_a, _b, _c)",
    "jnp.tensordot(_a, _b, _c)",
    "Negate the influence of an observation.",
    tests=[_SANDWICH],
)
rewrite(
    "sandwich_covariance_not_scaled_by_eta",
    "calibayes._core.sandwich:influences_on",
    "host_inverse_factor(_c)",
    "host_inverse_factor(_c / eta)",
    "Do not multiply the covariance by eta.",
    tests=[_SANDWICH],
)
rewrite(
    "host_moments_without_weights",
    "calibayes._core.particles:host_moments",
    "_c * _w[:, None]",
    "_c / _w.shape[-1]",
    "Compute covariances on the host without weights.",
    tests=["core/test_particles.py"],
)
rewrite(
    "host_weights_moved_in_the_wrong_direction",
    "calibayes._core.particles:host_reweight",
    "_l - step * _r",
    "_l + step * _r",
    "Reweight on the host in the wrong direction.",
    tests=["core/test_particles.py"],
)
rewrite(
    "pareto_tail_reversed",
    "calibayes._core.convergence:_pareto_k_on_device",
    "jax.lax.top_k(_w, _n)[0][:, ::-1]",
    "jax.lax.top_k(_w, _n)[0]",
    "Fit the generalized Pareto distribution to the reversed tail.",
    tests=["core/test_convergence.py"],
)
