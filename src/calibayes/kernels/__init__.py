"""Markov kernels. Each moves the particles of every replicate and leaves the posteriors invariant."""

from calibayes.kernels.base import Kernel as Kernel
from calibayes.kernels.crank_nicolson import CrankNicolson as CrankNicolson
from calibayes.kernels.polson_scott import PolsonScott as PolsonScott
from calibayes.kernels.ram import RAM as RAM
from calibayes.kernels.rwmh import RWMH as RWMH
