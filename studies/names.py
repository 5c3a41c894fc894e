"""Names and settings of the studies. This module imports nothing, so that the command line prints its help quickly."""

MEDIAN_REGRESSION = "median regression"
HEART_DISEASE = "heart disease SVM"
SIZES = (100, 400, 1600)
SAMPLERS = ("transport", "smc", "mcmc")
REGIONS = ("box", "ellipsoid", "hpd", "slope")
"""Regions of a case, in the order of calibration: the first from scratch, the others from its particles."""
ERRORS = ("normal", "heteroscedastic", "t3", "contaminated")
LOSSES = ("quantile", "huber", "squared")
HAZARDS = ("proportional", "not proportional")

ONE_THREAD = {
    "JAX_PLATFORMS": "cpu",
    "NPROC": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Environment in which a process computes on one thread of the CPU."""

MANY_SIZES = (50, 100)
MANY_FOLDER = "many_parameters"
MANY_VALIDATED = 10
"""Number of data sets whose calibration is validated on fresh replicates."""

REPLICATES = 500
"""Number of bootstrap replicates, as in the paper."""
PARTICLES = {MEDIAN_REGRESSION: 1000, HEART_DISEASE: 4000}
"""Number of particles of GPC-SMC, as in the paper."""
DRAWS = 20_000
"""Number of draws of GPC-MCMC, as in the paper."""
