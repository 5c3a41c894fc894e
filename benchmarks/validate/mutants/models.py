"""Errors in losses, priors, bootstraps, regions and checks of models."""

from benchmarks.validate.mutation import rewrite

_LOSSES = "test_losses.py"
_PRIORS = "test_priors.py"
_BOOTSTRAP = "test_bootstrap.py"
_REGIONS = "test_regions.py"

rewrite(
    "quantile_loss_of_the_other_side",
    "calibayes.losses:Quantile.rho",
    "jnp.maximum(_t * _r, (_t - 1) * _r)",
    "jnp.maximum((1 - _t) * _r, -_t * _r)",
    "Use 1 - tau instead of tau.",
    tests=[_LOSSES],
)
rewrite(
    "quantile_loss_slope_negated",
    "calibayes.losses:Quantile.decompose",
    "0.5 - self.tau",
    "self.tau - 0.5",
    "Negate the slope of the linear part of the quantile loss.",
    tests=[_LOSSES],
)
rewrite(
    "prior_draws_without_location",
    "calibayes.priors:_affine",
    "jnp.broadcast_to(_l, _z.shape) + _s",
    "_s",
    "Drop the location from draws of a prior.",
    tests=[_PRIORS],
)
rewrite(
    "bootstrap_misses_last_observation",
    "calibayes.bootstrap:Multinomial._counts",
    "_integers(_d, _n)",
    "_integers(_d, _n - 1)",
    "Never draw the last observation.",
    tests=[_BOOTSTRAP],
)
rewrite(
    "bayesian_bootstrap_not_normalised",
    "calibayes.bootstrap:Bayesian._counts",
    "_w * (_n / _w.sum(-1, keepdims=True))",
    "_w",
    "Do not normalise the Dirichlet weights.",
    tests=[_BOOTSTRAP],
)
rewrite(
    "hpd_counts_less_dense_particles",
    "calibayes.regions:HPD.critical_level",
    "_a.log_density > _b",
    "_a.log_density < _b",
    "Count the particles that are less dense than the point.",
    tests=[_REGIONS],
)
rewrite(
    "ellipsoid_ranks_its_own_particles",
    "calibayes.regions:Ellipsoid.critical_level",
    "own / remainder",
    "own",
    "Rank the particles by the ellipsoid that was fitted to them.",
    tests=[_REGIONS],
)
rewrite(
    "box_averages_marginal_levels",
    "calibayes.regions:Box.critical_level",
    "_l.max(0)",
    "_l.mean(0)",
    "Average the marginal levels instead of taking the largest.",
    tests=[_REGIONS],
)
rewrite(
    "simultaneous_box_inside_in_any_parameter",
    "calibayes.regions:Simultaneous.critical_level",
    "_i.all(0)",
    "_i.any(0)",
    "Count particles that are inside in any parameter.",
    tests=[_REGIONS],
)
rewrite(
    "interval_one_sided",
    "calibayes.regions:Interval.critical_level",
    "jnp.abs(2 * _b - 1)",
    "_b",
    "Compute the level of a one-sided interval.",
    tests=[_REGIONS],
)
rewrite(
    "checked_models_are_not_checked_with_other_data",
    "calibayes._validate.functions:check_functions",
    "_f((_m, _t, _d))",
    "_f((_m, _t))",
    "Accept a model that was checked with other data.",
    tests=["validate/test_traced_functions.py", "validate/test_calls.py", "validate/test_data.py"],
)
