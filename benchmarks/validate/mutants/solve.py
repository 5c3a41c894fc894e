"""Errors in the coverage curve, the point estimate, the search rules and the solver."""

from benchmarks.validate.mutation import mutant, rewrite

_CURVE_DATA = "core/test_curve_data.py"
_CURVE = "solve/test_curve.py"
_BRACKET = "solve/test_bracket.py"
_ROBBINS_MONRO = "solve/test_robbins_monro.py"
_ESTIMATE = "solve/test_estimate.py"
_SOLVER = "solve/test_solver.py"
_VALIDATION = "benchmarks/test_validation.py"

rewrite(
    "eta_from_the_wrong_tail",
    "calibayes._core.curve:eta_covering",
    "round((1 - _l) * _n)",
    "round(_l * _n)",
    "Take the quantile of the critical etas at the wrong tail.",
    tests=[_CURVE_DATA],
)
rewrite(
    "eta_from_the_next_order_statistic",
    "calibayes._core.curve:eta_covering",
    "_a, _b = _o[_i - 1], _o[_i]",
    "_a, _b = _o[_i], _o[min(_i + 1, n - 1)]",
    "Take the next order statistic.",
    tests=[_CURVE_DATA],
)
rewrite(
    "eta_se_without_tail_probability",
    "calibayes._core.curve:Curve.coverage_se",
    "np.sqrt(_l * (1 - _l) * _d / _n)",
    "np.sqrt(_l * _d / _n)",
    "Drop the tail probability from the standard error.",
    tests=[_CURVE_DATA],
)
rewrite(
    "critical_eta_at_the_first_crossing",
    "calibayes._core.curve:Curve._crossings",
    "_m.shape[0] - 1 - _m[::-1].argmax(0)",
    "_m.argmax(0)",
    "Start from the first learning rate at which the point is inside.",
    tests=[_CURVE_DATA],
)
rewrite(
    "curve_counts_the_data_as_a_replicate",
    "calibayes.solve.curve:local_curve",
    "np.mean(_l, axis=0)[:, 1:]",
    "np.mean(_l, axis=0)",
    "Count the data among the bootstrap replicates.",
    tests=[_CURVE, "test_result.py", _VALIDATION],
)
rewrite(
    "curve_reweights_in_the_wrong_direction",
    "calibayes.solve.curve:local_curve",
    "host_array([_g - _e, _g])",
    "host_array([_e - _g, _g])",
    "Reweight the particles in the wrong direction.",
    tests=[_VALIDATION, "test_calibrate.py"],
)
rewrite(
    "curve_keeps_the_mean_of_the_particles",
    "calibayes.solve.estimate:points_along",
    "_means_along(_d, _s)",
    "_means_along(_d, 0 * _s)",
    "Use the mean at the sampled learning rate along the whole curve.",
    tests=[_CURVE],
)
rewrite(
    "curve_too_wide",
    "calibayes.solve.curve:half_width",
    "np.sqrt(np.log(2) / _v)",
    "np.sqrt(4 * np.log(2) / _v)",
    "Extend the curve twice as far as the weights allow.",
    tests=[_CURVE],
)
rewrite(
    "estimate_without_weights",
    "calibayes._core.particles:host_means",
    "np.exp(_w)",
    "np.full(_w.shape, 1 / _w.shape[-1])",
    "Compute the posterior mean without weights.",
    tests=[_ESTIMATE, _VALIDATION],
)
rewrite(
    "mode_without_prior",
    "calibayes.solve.estimate:_optimum",
    "-_e.risk if _r else _d",
    "-_e.risk",
    "Compute the mode without the prior.",
    tests=[_ESTIMATE],
)
rewrite(
    "means_along_at_one_eta",
    "calibayes.solve.estimate:_means_along",
    "host_reweight(_p, _s)",
    "_p",
    "Use the mean at one learning rate for all.",
    tests=[_ESTIMATE, _CURVE],
)
rewrite(
    "search_in_the_wrong_direction",
    "calibayes.solve.robbins_monro:RobbinsMonro._next",
    "_s.eta + self.gain * _c * _e",
    "_s.eta - self.gain * _c * _e",
    "Step away from the level.",
    tests=[_ROBBINS_MONRO],
)
rewrite(
    "kesten_clock_advances_at_full_coverage",
    "calibayes.solve.robbins_monro:RobbinsMonro._next",
    "_d * _s.direction < 0 and _c < 1",
    "_d * _s.direction < 0",
    "Advance the clock of Kesten's rule although all replicates are covered.",
    tests=[_ROBBINS_MONRO],
)
rewrite(
    "bracket_ratio_not_squared",
    "calibayes.solve.bracket:_narrow",
    "(_a / _b) ** 2",
    "_a / _b",
    "Do not square the ratio of z-values.",
    tests=[_BRACKET],
)
rewrite(
    "bracket_of_rough_curves_kept",
    "calibayes.solve.bracket:Bracket._step_refined",
    "replace(_s, low=0.0, high=math.inf)",
    "_s",
    "Keep the bracket of rough curves that a full curve contradicts.",
    tests=[_BRACKET, _SOLVER],
)
rewrite(
    "first_full_curve_always_leads",
    "calibayes.solve.bracket:Bracket._step_refined",
    "not _s.first_curve_was_refined or _c",
    "True",
    "Let the first full curve lead the search wherever it points.",
    tests=[_BRACKET, _SOLVER],
)
rewrite(
    "bracket_never_too_narrow",
    "calibayes.solve.bracket:Bracket._is_narrow",
    "_s.high < math.exp(_c) * _s.low",
    "_s.high < _s.low",
    "Never take a bracket for too narrow to search further.",
    tests=[_BRACKET, _SOLVER],
)
rewrite(
    "bracket_on_the_wrong_side",
    "calibayes.solve.bracket:_side",
    "_a if _o.crossing >= _o.eta else _b",
    "_a if _o.crossing < _o.eta else _b",
    "Look below for a crossing that is above.",
    tests=[_BRACKET, "test_requery.py"],
)
rewrite(
    "coverage_of_sets_without_the_point",
    "calibayes.solve.problem:CoverageProblem.evaluate",
    "_l <= self.level",
    "_l > self.level",
    "Count the sets that do not contain the point.",
    tests=[_SOLVER, _BRACKET],
)
rewrite(
    "draws_left_at_the_sampled_eta",
    "calibayes.solve.problem:CoverageProblem._reweighted",
    "host_reweight(_p, _e)",
    "_p",
    "Do not reweight the draws to the calibrated learning rate.",
    tests=[_VALIDATION, "test_requery.py"],
)
rewrite(
    "worst_iterate_reported",
    "calibayes.solve.solver:Solver._evaluate",
    "_f(_p, _a) <= _f(_p, _b)",
    "_f(_p, _a) >= _f(_p, _b)",
    "Report the iterate whose coverage is furthest from the level.",
    tests=[_SOLVER],
)


@mutant("calibayes.solve.bracket:_is_near", tests=[_BRACKET])
def crossing_always_near(is_near):
    """Accept any crossing, however far from the particles."""

    def broken(observation, closeness):  # noqa: ARG001
        return 0 < observation.crossing < float("inf") or is_near(observation, 0.0)

    return broken
