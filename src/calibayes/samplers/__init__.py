"""Samplers: algorithms that provide weighted particles on every replicate at any learning rate."""

from calibayes.samplers.base import Sampler as Sampler
from calibayes.samplers.mcmc import MCMC as MCMC
from calibayes.samplers.smc import SMC as SMC
from calibayes.samplers.transport.sampler import Transport as Transport
