"""Markov kernels: one a file. Each moves particles on every row and leaves the target invariant."""

from calibayes.kernels.base import Kernel as Kernel
from calibayes.kernels.crank_nicolson import CrankNicolson as CrankNicolson
from calibayes.kernels.polson_scott import PolsonScott as PolsonScott
from calibayes.kernels.ram import RAM as RAM
from calibayes.kernels.rwmh import RWMH as RWMH
