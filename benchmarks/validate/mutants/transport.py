"""Errors in the transport sampler."""

from benchmarks.validate.mutation import rewrite

_MAPS = "samplers/transport/test_maps.py"
_IMPORTANCE = "samplers/transport/test_importance.py"
_POOL = "samplers/transport/test_pool.py"
_SUBSAMPLE = "samplers/transport/test_subsample.py"
_TRANSPORT = "samplers/transport/test_transport.py"

rewrite(
    "weights_without_density_of_the_pool",
    "calibayes.samplers.transport.maps:transport_and_weight",
    "_d - _p",
    "_d",
    "Drop the density of the pool from the importance weights.",
    tests=[_MAPS],
)
rewrite(
    "rotated_pool_keeps_densities",
    "calibayes.samplers.transport.maps:WhitenedPool.rotated",
    "jnp.roll(self.log_density, -1, 0)",
    "self.log_density",
    "Rotate the populations, but not their densities.",
    tests=[_MAPS],
)
rewrite(
    "replicates_refitted_with_other_populations",
    "calibayes.samplers.transport.maps:WhitenedPool.for_replicates",
    "_i % self.u.shape[1]",
    "(_i + 1) % self.u.shape[1]",
    "Refit replicates with the populations of others.",
    tests=[_TRANSPORT, _MAPS],
)
rewrite(
    "scaled_maps_use_variance_as_standard_deviation",
    "calibayes.samplers.transport.maps:AffineMaps.scaled",
    "self.root * jnp.sqrt(_f)",
    "self.root * _f",
    "Scale standard deviations by the factor of the variances.",
    tests=[_MAPS, _SUBSAMPLE],
)
rewrite(
    "moments_where_too_few_particles_are_effective",
    "calibayes.samplers.transport.refit:refit_maps",
    "return jnp.where(_c, _a, _b), jnp.where(_m, _d, _e)",
    "return jnp.where(_c, _b, _a), jnp.where(_m, _e, _d)",
    "Use weighted moments where too few particles are effective, and regression elsewhere.",
    tests=[_MAPS, _TRANSPORT],
)
rewrite(
    "one_refit_too_many",
    "calibayes.samplers.transport.fitting:refit_until",
    "_e < goal.max_evaluations",
    "_e <= goal.max_evaluations",
    "Evaluate the risk once more than allowed.",
    tests=[_TRANSPORT],
)
rewrite(
    "part_of_the_particles_stands_for_all",
    "calibayes.samplers.transport.sampler:Transport._fit_all_particles",
    "_use_all_particles(_t, _s, _g)",
    "_refit_until(_t, _s, _g)",
    "Refine with the part of the particles that the search used.",
    tests=[_TRANSPORT],
)
rewrite(
    "repair_weights_at_another_eta",
    "calibayes.samplers.transport.repair:sample_by_tempering",
    "transport_and_weight(_t, _p, _m, host_array(_e))",
    "transport_and_weight(_t, _p, _m, host_array(eta))",
    "Weight the broadened particles at the final learning rate.",
    tests=[_TRANSPORT],
)
rewrite(
    "populations_mapped_to_their_common_mean",
    "calibayes.samplers.transport.subsample:_maps_to_populations",
    "mean(_t, _w)",
    "jnp.broadcast_to(mean(_t, _w).mean(1, keepdims=True), _t.shape[:2])",
    "Map all populations to their common mean.",
    tests=[_SUBSAMPLE],
)
rewrite(
    "wrong_matching_eta",
    "calibayes.samplers.transport.matching:influence_and_match",
    "matching_eta(_i, _p, _e[None])",
    "matching_eta(_i, _p, 2 * _e[None])",
    "Go to another learning rate than the matching one.",
    tests=[_POOL],
)
rewrite(
    "student_t_density_without_dimension",
    "calibayes.samplers.transport.importance:_draw_and_weight",
    "-0.5 * (_f + _k) * jnp.log1p(_q)",
    "-0.5 * _f * jnp.log1p(_q)",
    "Use the exponent of a Student t density with fewer parameters.",
    tests=[_IMPORTANCE],
)
rewrite(
    "normal_draws_weighted_as_student_t",
    "calibayes.samplers.transport.importance:_draw_and_weight",
    "normals(_u) * jnp.sqrt(_f / _c)[None]",
    "normals(_u) + 0 * _c[None]",
    "Draw from a normal distribution, but weight as if from a Student t.",
    tests=[_IMPORTANCE],
)
rewrite(
    "importance_weights_at_another_eta",
    "calibayes.samplers.transport.importance:_draw_and_weight",
    "log_density(_p, jnp.full(_n, _e))",
    "log_density(_p, jnp.full(_n, 0.8 * _e))",
    "Weight draws of the proposal at another learning rate.",
    tests=[_IMPORTANCE],
)
rewrite(
    "importance_draws_resampled_equally",
    "calibayes.samplers.transport.importance:_resample_each",
    "_p.weights",
    "0 * _p.weights + 1",
    "Resample draws without their weights.",
    tests=[_IMPORTANCE],
)
rewrite(
    "degenerate_importance_weights_accepted",
    "calibayes.samplers.transport.importance:_draw_populations",
    "ess(_w).min() >= _m",
    "ess(_w).min() >= -1.0",
    "Accept populations with degenerate weights.",
    tests=[_IMPORTANCE],
)
rewrite(
    "convexity_inherited_by_overriding_subclasses",
    "calibayes.samplers.transport.importance:_declares",
    "vars(_d).get(_a, False)",
    "getattr(instance, _a, False)",
    "Take a loss for convex although a subclass overrides it.",
    tests=[_IMPORTANCE],
)
rewrite(
    "importance_sampling_of_bounded_posteriors",
    "calibayes.samplers.transport.importance:supports",
    "_a and _b and target.coordinates.unbounded",
    "_a and _b",
    "Take a posterior for log-concave in bounded coordinates.",
    tests=[_IMPORTANCE],
)
