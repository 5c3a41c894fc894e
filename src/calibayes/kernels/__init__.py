"""Markov kernels: how particles move at a fixed learning rate. One kernel a file."""

from calibayes.kernels.base import Kernel as Kernel
from calibayes.kernels.polson_scott import PolsonScott as PolsonScott
from calibayes.kernels.ram import RAM as RAM
from calibayes.kernels.rwmh import RWMH as RWMH
