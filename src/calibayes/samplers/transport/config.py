"""Tuning constants of the transport sampler, grouped by the module that uses them.

Modules read `config.CONFIG` when they are traced, so a script can replace it before anything is compiled:
`config.CONFIG = dataclasses.replace(config.CONFIG, fit=dataclasses.replace(config.CONFIG.fit, fair_ess=0.5))`.

Effective sample sizes (ESS) are shares of the number of particles. Unless stated otherwise, a value is an
order-of-magnitude choice on which results do not hinge; `python -m benchmarks.sensitivity` varies them.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SizeConfig:
    """Default numbers of particles (`sampler.py`)."""

    min_particles: int = 1_000
    """Smallest default number of particles per replicate. The Monte Carlo error of a critical level near 0.95 is then
    0.01."""
    particles_per_parameter: int = 40
    """Default number of particles per parameter, if that is more. The refits estimate K (K + 1) / 2 covariances."""
    normal_particles_per_parameter: int = 20
    """The same where normal approximations replace the refits. Only ellipsoids then need covariances of replicates.
    With 50 parameters and 5,000 observations, 99% of 1,000 particles are effective for the logistic and Huber's loss,
    and 35% for a check loss."""
    common_moments_from: int = 11
    """Number of parameters from which on all populations of the pool are whitened by common moments. Own moments
    reduce the Monte Carlo error of particles under maps that are fitted to their moments."""
    draws_per_curve: int = 2_000
    """Draws per replicate, over all snapshots, from which the coverage curve is computed if evaluations of the risk are
    cheap (`FitConfig.cheap_evaluation`). With fewer, the Monte Carlo error of the critical levels blurs the curve."""


@dataclass(frozen=True)
class RefitConfig:
    """One refit of the affine maps (`refit.py`)."""

    ess_per_parameter: int = 25
    """Effective particles per parameter that weighted moments require. With fewer, the weights are tempered, or the map
    is fitted by regression."""
    moments_only_below: float = 0.1
    """Use weighted moments on all replicates if the required effective particles are at most this share of all
    particles: replicates with fewer are then rare, and the regression need not be compiled."""
    widening: float = 0.8
    """Relative widening of the variances of a map with one parameter. The tails of the proposal must not be lighter
    than those of the posterior, and estimated variances are too small more often than not."""
    widening_decay: float = 1.25
    """The widening for K parameters is `widening / K ** widening_decay`: widening costs effective sample size
    in every dimension. Chosen empirically."""
    max_variance_ratio: float = 4.0
    """Largest factor by which a refit by regression widens or narrows the variance in any direction."""
    log_weight_range: float = 30.0
    """Log-weights are clipped at this distance below the largest before the regression; otherwise the smallest ones
    dominate it."""
    tempering_bisections: int = 12
    """Bisections for the exponent of the tempered weights: an accuracy of 2 ** -12."""
    max_log_weight_gap: float = 1e4
    """Log-weights are clipped at this distance below the largest before they are tempered, so that products with a
    small exponent stay finite."""


@dataclass(frozen=True)
class FitConfig:
    """The iteration of refits on all replicates (`fitting.py`, `sampler.py`)."""

    good_ess: float = 0.8
    """ESS above which a map is good: no further refit, and no doubt about the tail of its weights."""
    full_ess: float = 0.6
    """ESS that all particles should have under maps that were fitted to a part of them."""
    min_share_of_replicates: float = 0.95
    """Share of replicates that should reach `good_ess` or `full_ess`."""
    fair_ess: float = 0.4
    """ESS above which a map is good enough to search for eta."""
    fair_share: float = 0.5
    """Share of replicates that should reach `fair_ess`."""
    search_evaluations: int = 2
    """Evaluations of the risk that may be spent to reach `good_ess` during the search."""
    search_thinning: int = 4
    """One in this number of particles is used during the search. A quarter of them locates eta to about 10%, at a
    quarter of the cost."""
    min_search_particles: int = 200
    """Smallest number of particles used during the search."""
    data_evaluations: int = 8
    """Largest number of evaluations of the risk for fitting the maps from the initial draws to the posterior on the
    data at another learning rate. They are cheap, because there is one map for each of the 20 populations. The point
    estimate and the first maps of all replicates depend on them. If the prior disagrees with the data, this posterior
    moves with eta by several standard deviations, and three evaluations were not sufficient."""
    min_ess_ratio: float = 0.5
    """A refit is rejected if it reduces the ESS below this multiple of the previous one. Smaller reductions are
    accepted: choosing the larger ESS would favour weights that miss a tail. For models with at least
    `common_moments_from` parameters the moments of a refit are noisy; a refit is then accepted only if it increases the
    ESS."""
    max_extra_batches: int = 5
    """Largest number of batches of replicates that are refitted further on their own. If more replicates are poor, the
    maps do not suit the problem and refits do not help."""
    cheap_evaluation: int = 2**31
    """Number of losses (observations x particles x replicates) below which an evaluation of the risk is cheap: it
    takes about a third of a second on a processor."""


@dataclass(frozen=True)
class MatchingConfig:
    """Initial populations at the learning rate that matches the sandwich covariance (`matching.py`)."""

    min_initial_draws: int = 200
    """Smallest number of initial draws in a population."""
    initial_draws_per_parameter: int = 40
    """Smallest number of initial draws in a population, per parameter. With fewer in many dimensions, tempering ends
    with too little spread."""
    max_growth: float = 16.0
    """Largest growth of eta between two estimates of the matching learning rate: an estimate at a much smaller eta,
    where the prior dominates, may be far too large."""
    max_stages: int = 20
    """Largest number of such estimates; eta grows by at most 16 ** 20 = 1e24."""
    match_factor: float = 0.5
    """Eta matches if it is within this factor of the estimate, on either side. The estimate is then used."""
    close_match: float = 0.01
    """If eta came this close to the estimate (as a ratio) and then moved away by more than `max_growth`, no better
    match will follow, and the best is used."""
    no_match: float = 1e-6
    """If the best ratio is no larger, the loss does not depend on the parameters, and an error is raised."""


@dataclass(frozen=True)
class SubsampleConfig:
    """Initial populations from a part of many observations (`subsample.py`)."""

    min_observations: int = 2**14
    """Smallest size of the subsample. Events with a frequency of 0.001 are then not missing from it."""
    observations_per_parameter: int = 200
    """Smallest size of the subsample, per parameter."""
    max_map_fits: int = 5
    """Largest number of refits of the map to all observations."""
    min_population_ess: float = 0.3
    """ESS that every population must have on all observations; otherwise the populations are tempered on all of
    them."""


@dataclass(frozen=True)
class PoolConfig:
    """The pool of draws on the data (`pool.py`, `sampler.py`)."""

    eta_step: float = 2.5
    """Pools are made at the matching learning rate times integer powers of this factor. A map then rescales the
    pool by at most sqrt(2.5) in eta, well within the factor of two beyond which weights have infinite variance."""
    max_rounds: int = 3
    """Rounds of rejuvenation until the populations agree."""
    max_r_hat: float = 1.02
    """R-hat above which populations disagree. Independent populations have an R-hat near 1; a value of 1.02 means that
    population means differ by 0.2 posterior standard deviations."""


@dataclass(frozen=True)
class InitialEtaConfig:
    """The first guess of eta (`initial_eta.py`)."""

    max_factor: float = 16.0
    """Largest factor between the guess and the learning rate of the initial draws."""


@dataclass(frozen=True)
class RepairConfig:
    """Replicates with degenerate weights (`repair.py`)."""

    degenerate_ess: float = 0.1
    """ESS below which weights count as degenerate, whatever the shape of their tail."""
    sufficient_particles: float = 100.0
    """Number of effective particles from which on the ESS is not too small, however many particles there are."""
    broadening: float = 4.0
    """Tempering starts at eta divided by this factor, from maps with variances multiplied by it."""
    many_replicates: float = 0.25
    """Share of degenerate replicates above which a warning announces a long run."""

    out_of_reach: float = 0.5
    """Share of replicates with degenerate weights above which a large problem is out of reach. Below, refits of single
    maps may help."""
    evaluations_per_replicate: int = 200
    """Evaluations of the risk to sample a replicate by tempering. Order of magnitude."""
    max_losses: int = 2**36
    """Number of losses of a repair of all replicates above which a problem is large: about a minute on two cores with
    30 parameters. The breast cancer data of scikit-learn take 2.8e11."""
    max_losses_on_accelerator: int = 2**41
    """The same on an accelerator."""

    def min_ess(self, n_particles: int) -> float:
        """Return the number of effective particles, of `n_particles`, below which weights count as degenerate."""
        return min(self.degenerate_ess * n_particles, self.sufficient_particles)


@dataclass(frozen=True)
class TransportConfig:
    """All tuning constants of the transport sampler."""

    size: SizeConfig = field(default_factory=SizeConfig)
    refit: RefitConfig = field(default_factory=RefitConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    matching: MatchingConfig = field(default_factory=MatchingConfig)
    subsample: SubsampleConfig = field(default_factory=SubsampleConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    initial_eta: InitialEtaConfig = field(default_factory=InitialEtaConfig)
    repair: RepairConfig = field(default_factory=RepairConfig)


CONFIG = TransportConfig()
