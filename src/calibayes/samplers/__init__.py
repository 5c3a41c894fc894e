"""Samplers: ways of reaching a learning rate on every row. One way a file."""

from calibayes.samplers.base import Sampler as Sampler
from calibayes.samplers.mcmc import MCMC as MCMC
from calibayes.samplers.smc import SMC as SMC
from calibayes.samplers.transport.sampler import Transport as Transport
