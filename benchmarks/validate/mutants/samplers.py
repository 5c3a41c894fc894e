"""Errors in tempering, SMC and MCMC."""

from benchmarks.validate.mutation import mutant, rewrite

_TEMPERING = "samplers/test_tempering.py"
_VALIDATION = "benchmarks/test_validation.py"

rewrite(
    "temperature_step_overshoots",
    "calibayes.samplers.tempering:change_eta",
    "jnp.where(_s == _e - _t.eta, _e, _t.eta + _s)",
    "jnp.where(_s == _e - _t.eta, _e, _t.eta + 2 * _s)",
    "Record twice the step of eta by which the particles were reweighted.",
    tests=[_TEMPERING],
)
rewrite(
    "tempering_repeats_random_numbers",
    "calibayes.samplers.tempering:_move_once",
    "_f(_k, 1, _s.moves)",
    "_f(_k, 1, 0 * _s.moves)",
    "Use the same random numbers in every move.",
    tests=[_TEMPERING, _VALIDATION],
)
rewrite(
    "chain_repeats_random_numbers",
    "calibayes.samplers.mcmc:_run_chains",
    "_f(_k, _s + _i)",
    "_f(_k, 0 * _s + _i)",
    "Start the random numbers again with every segment of a chain.",
    tests=["samplers/test_mcmc.py"],
)
rewrite(
    "smc_weights_initial_draws_by_their_density",
    "calibayes.samplers.smc:SMC.init",
    'self.initial_weights == "density"',
    'self.initial_weights != "density"',
    "Weight the initial draws by their density, as the paper prints.",
    tests=["test_result.py", _VALIDATION],
)


@mutant("calibayes.samplers.tempering:next_step", tests=[_TEMPERING])
def temperature_step_ignores_ess_target(next_step):
    """Always take the whole way to the new learning rate in one step."""

    def broken(particles, distance, ess_target):  # noqa: ARG001
        return next_step(particles, distance, 0.0)

    return broken
