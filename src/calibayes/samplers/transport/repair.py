"""Replicates whose importance weights have degenerated, and their repair by tempering.

Weights are degenerate if their effective sample size is low, or if the Pareto shape of their tail is too large (Vehtari
et al. 2024). If the posteriors are log-concave, such a replicate is sampled by importance sampling from a Student t
distribution around its map (`calibayes.samplers.importance`), which has heavier tails than the pool. Otherwise, or if
these weights are degenerate too, it is sampled by ASMC* (`calibayes.samplers.tempering`), starting from its map: the
map is broadened, the particles are weighted at a fraction of eta, and tempered to eta.
"""

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from calibayes._backend.rng import replicate_keys, split_key
from calibayes._core.convergence import pareto_k, pareto_k_limit
from calibayes._core.particles import Particles
from calibayes._core.target import Target
from calibayes.samplers.importance import Proposal, can_importance_sample, random_generator, sample_and_check
from calibayes.samplers.initial import temper_from_prior
from calibayes.samplers.mixing import rejuvenate_until_mixed, temper_to
from calibayes.samplers.tempering import init_coarse
from calibayes.samplers.transport import config
from calibayes.samplers.transport.fitting import choose_replicates, transport
from calibayes.samplers.transport.maps import AffineMaps, WhitenedPool


def has_degenerate_weights(log_weights: Float[Array, "B M"], ess: Float[np.ndarray, " B"]) -> Bool[np.ndarray, " B"]:
    """Return the replicates whose importance weights are degenerate.

    Parameters
    ----------
    log_weights : array of shape (B, M)
        Log-weights of each replicate.
    ess : array of shape (B,)
        Their effective sample sizes.
    """
    n_particles = log_weights.shape[-1]
    # If the weights are nearly equal, the shape of their tail carries no information.
    doubtful = np.flatnonzero(ess < config.CONFIG.fit.good_ess * n_particles)
    if jax.default_backend() == "cpu":
        shapes = pareto_k(np.asarray(log_weights)[doubtful])
    else:
        # The transfer of all log-weights takes longer than the shapes of all tails.
        shapes = pareto_k(log_weights)[doubtful]
    degenerate = ess < config.CONFIG.repair.min_ess(n_particles)
    degenerate[doubtful] |= shapes > pareto_k_limit(n_particles)
    return degenerate


def sample_again(
    key: PRNGKeyArray, target: Target, pool: WhitenedPool, maps: AffineMaps, eta: float, n_needed: int
) -> tuple[Particles, Bool[np.ndarray, " R"]]:
    """Sample a batch of replicates by importance sampling around their maps, or by tempering.

    The first `n_needed` replicates of the batch must be sampled well; the others repeat them. The other parameters and
    the returned values are those of `sample_by_tempering`.
    """
    if not can_importance_sample(target):
        return sample_by_tempering(key, target, pool, maps, eta)
    root, min_ess = np.asarray(maps.root, np.float64), config.CONFIG.repair.degenerate_ess
    proposal = Proposal(np.asarray(maps.centre, np.float64), root @ np.swapaxes(root, 1, 2))
    drawn, sufficient = sample_and_check(random_generator(key), target, proposal, eta, pool.n_particles, min_ess)
    if sufficient[:n_needed].all():
        return drawn, np.ones(target.n_replicates, bool)
    tempered, mixed = sample_by_tempering(key, target, pool, maps, eta)
    return choose_replicates(sufficient, drawn, tempered), sufficient | mixed


def sample_by_tempering(
    key: PRNGKeyArray, target: Target, pool: WhitenedPool, maps: AffineMaps, eta: float
) -> tuple[Particles, Bool[np.ndarray, " R"]]:
    """Sample a batch of replicates by tempering from their broadened maps.

    Where even the broadened map has degenerate weights, temper from the prior instead, if it can be sampled.

    Parameters
    ----------
    key : PRNGKeyArray
        Random key.
    target : Target
        The posteriors of the batch.
    pool : WhitenedPool
        The pool.
    maps : AffineMaps
        The maps of the batch.
    eta : float
        The learning rate.

    Returns
    -------
    particles : Particles
        Equally weighted particles.
    mixed : array of bool, shape (R,)
        Replicates that have mixed.
    """
    constants = config.CONFIG.repair
    temper_key, mix_key, prior_key = split_key(key, 3)
    first_eta = eta / constants.broadening
    broad = transport(target, pool, maps.scaled(constants.broadening), first_eta)
    state = init_coarse(broad.particles, first_eta)
    particles = temper_to(replicate_keys(temper_key, target.n_replicates), target, state, eta).particles
    degenerate = broad.ess < constants.min_ess(broad.n_particles)
    if degenerate.any() and hasattr(target.prior, "sample"):
        from_prior = temper_from_prior(prior_key, target, eta, broad.n_particles).particles
        particles = choose_replicates(degenerate, from_prior, particles)
    state, mixed = rejuvenate_until_mixed(mix_key, target, particles, eta, min_moves=0)
    return state.particles, np.asarray(mixed)
