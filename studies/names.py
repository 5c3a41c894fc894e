"""What studies are made of, by name; nothing here computes."""

MEDIAN_REGRESSION = "median regression"
HEART_DISEASE = "heart disease SVM"
SIZES = (100, 400, 1600)
SAMPLERS = ("transport", "smc", "mcmc")
KNOWN = "known"
"""In a sampler's place: the eta that the truth asks for, which a calibration does not know."""
REGIONS = ("box", "ellipsoid", "hpd", "slope")
"""In the order they are calibrated in: the first from nothing, the others from its particles."""
ERRORS = ("normal", "heteroscedastic", "t3", "contaminated")
LOSSES = ("quantile", "huber", "squared")

ROWS = 500
"""Bootstrap rows, as in the paper."""
PARTICLES = {MEDIAN_REGRESSION: 1000, HEART_DISEASE: 4000}
DRAWS = 20_000
