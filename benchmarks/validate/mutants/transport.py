"""Errors in the transport sampler."""

from benchmarks.validate.mutation import rewrite

_MAPS = "samplers/transport/test_maps.py"
_IMPORTANCE = "samplers/test_importance.py"
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
    "np.roll(self.log_density, -1, 0)",
    "self.log_density",
    "Rotate the populations, but not their densities.",
    tests=[_MAPS],
)
rewrite(
    "replicates_refitted_with_other_populations",
    "calibayes.samplers.transport.maps:WhitenedPool.for_replicates",
    "_i % self.n_populations",
    "(_i + 1) % self.n_populations",
    "Refit replicates with the populations of others.",
    tests=[_TRANSPORT, _MAPS],
)
rewrite(
    "scaled_maps_use_variance_as_standard_deviation",
    "calibayes.samplers.transport.maps:AffineMaps.scaled",
    "self.root * _f**0.5",
    "self.root * _f",
    "Scale standard deviations by the factor of the variances.",
    tests=[_MAPS, _SUBSAMPLE],
)
rewrite(
    "moments_where_too_few_particles_are_effective",
    "calibayes.samplers.transport.refit:refit_maps",
    "too_few & _b | _c",
    "~too_few & _b | _c",
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
    "transport(_t, _p, _m, _e)",
    "transport(_t, _p, _m, eta)",
    "Weight the broadened particles at the final learning rate.",
    tests=[_TRANSPORT],
)
rewrite(
    "populations_mapped_to_their_common_mean",
    "calibayes.samplers.transport.subsample:_maps_to_populations",
    "AffineMaps(host_array(_m), _r)",
    "AffineMaps(host_array(0 * _m + _m.mean(1, keepdims=True)), _r)",
    "Map all populations to their common mean.",
    tests=[_SUBSAMPLE],
)
rewrite(
    "wrong_matching_eta",
    "calibayes.samplers.transport.matching:_match_by_importance",
    "influences(_t, _p, eta)",
    "influences(_t, _p, 2 * eta)",
    "Go to another learning rate than the matching one.",
    tests=[_POOL],
)
rewrite(
    "student_t_density_without_dimension",
    "calibayes.samplers.importance:draw_and_weight",
    "-0.5 * (_f + _k) * np.log1p(_q)",
    "-0.5 * _f * np.log1p(_q)",
    "Use the exponent of a Student t density with fewer parameters.",
    tests=[_IMPORTANCE],
)
rewrite(
    "normal_draws_weighted_as_student_t",
    "calibayes.samplers.importance:draw_and_weight",
    "np.sqrt(_f / _c)",
    "np.sqrt(_f / _c) ** 0",
    "Draw from a normal distribution, but weight as if from a Student t.",
    tests=[_IMPORTANCE],
)
rewrite(
    "importance_weights_at_another_eta",
    "calibayes.samplers.importance:draw_and_weight",
    "-eta * _r + _p",
    "-0.8 * eta * _r + _p",
    "Weight draws of the proposal at another learning rate.",
    tests=[_IMPORTANCE],
)
rewrite(
    "importance_draws_resampled_equally",
    "calibayes.samplers.importance:sample_and_check",
    "_stratified(_r, _w, _n)",
    "_stratified(_r, 0 * _w + 1, _n)",
    "Resample draws without their weights.",
    tests=[_IMPORTANCE],
)
rewrite(
    "degenerate_importance_weights_accepted",
    "calibayes.samplers.importance:sample_and_check",
    "_e(_w) >= _m * _n",
    "_e(_w) >= 0 * _m",
    "Accept populations with degenerate weights.",
    tests=[_IMPORTANCE],
)
rewrite(
    "convexity_inherited_by_overriding_subclasses",
    "calibayes._core.target:_declares",
    "vars(_d).get(_a, False)",
    "getattr(instance, _a, False)",
    "Take a loss for convex although a subclass overrides it.",
    tests=[_IMPORTANCE],
)
rewrite(
    "importance_sampling_of_bounded_posteriors",
    "calibayes._core.target:is_log_concave",
    "_a and target.coordinates.unbounded",
    "_a",
    "Take a posterior for log-concave in bounded coordinates.",
    tests=[_IMPORTANCE],
)
rewrite(
    "curvature_of_normal_fits_not_smoothed_twice",
    "calibayes.samplers.normal:smoothed_derivatives",
    "jnp.maximum(_c, 0.0) / jnp.square(_s)",
    "jnp.maximum(_c, 0.0) / _s",
    "Divide the curvature of the smoothed loss by the scale instead of its square.",
    tests=["samplers/test_normal.py"],
)
rewrite(
    "normal_fits_without_the_prior",
    "calibayes.samplers.normal:_newton_steps",
    "eta * _g + derivatives.prior_gradient",
    "eta * _g",
    "Leave the prior out of the gradient on the replicates.",
    tests=["samplers/test_normal.py"],
)
rewrite(
    "proposal_does_not_move",
    "calibayes.samplers.importance:adapt",
    "theta - (proposal.centre if _f else _c)",
    "theta - _c",
    "Fit the proposal around the best draws only, so that it shrinks before it arrives.",
    tests=[_IMPORTANCE],
)
rewrite(
    "data_not_checked",
    "calibayes.samplers.transport.sampler:_repair_draws_on_data",
    "not degenerate.any()",
    "True",
    "Do not repair degenerate weights on the data.",
    tests=[_TRANSPORT],
)
rewrite(
    "data_not_refitted",
    "calibayes.samplers.transport.sampler:_transport_to_data",
    "FitGoal(_e, _s, _n)",
    "FitGoal(_e, _s, 1)",
    "Scale the pool to another learning rate on the data without a refit.",
    tests=[_TRANSPORT],
)
