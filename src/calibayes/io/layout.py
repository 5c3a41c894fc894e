"""Layout of the draws in the posterior group of a `DataTree`: one variable per parameter, or per array of parameters.

Parameters whose names are the elements of one array, such as `beta[0]` and `beta[1]`, are one variable. Every other
parameter is a variable of its own. If there were too many variables, all parameters are one, `theta`, with their names
as coordinates.

The draws are split into chains. `Result.draws` are in the order of the particles that they come from: transport draws
them in independent populations, and a Markov chain in time. Chains are therefore drawn by different populations, or at
different times, and R-hat compares these.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

N_CHAINS = 4
"""Number of chains, as usual in practice; one if the number of draws is not a multiple of it."""

_ELEMENT = re.compile(r"(.+)\[(\d+(?:,\d+)*)\]")
_RESERVED = {"chain", "draw", "parameter"}
"""Names of coordinates."""


MAX_VARIABLES = 50
"""Largest number of variables and of axes of arrays; more make files slow to read. Order-of-magnitude choice."""


class Block(NamedTuple):
    """The parameters of one variable: consecutive in the result, in C order."""

    first: int
    shape: tuple[int, ...]
    by_name: bool = False
    """Whether the names of the parameters are coordinates of the variable."""

    @property
    def size(self) -> int:
        """Number of parameters."""
        return int(np.prod(self.shape))


def blocks(names: Sequence[str]) -> dict[str, Block]:
    """Return the parameters of every variable by its name.

    Examples
    --------
    >>> from calibayes.io.layout import blocks
    >>> blocks(["mu", "beta[0]", "beta[1]"])
    {'mu': Block(first=0, shape=(), by_name=False), 'beta': Block(first=1, shape=(2,), by_name=False)}
    """
    variables: dict[str, Block] = {}
    k = 0
    while k < len(names):
        stem, shape = _array_from(names, k)
        stem = stem.replace("/", "_")
        while stem in variables or stem in _RESERVED:
            stem += "_"
        variables[stem] = Block(k, shape)
        k += variables[stem].size
    n_variables = sum(1 + len(block.shape) for block in variables.values())
    return variables if n_variables <= MAX_VARIABLES else {"theta": Block(0, (len(names),), by_name=True)}


def dimensions(name: str, block: Block) -> list[str]:
    """Return the names of the axes of a variable, after those of chains and draws."""
    return ["parameter"] if block.by_name else [f"{name}_dim_{axis}" for axis in range(len(block.shape))]


def _array_from(names: Sequence[str], first: int) -> tuple[str, tuple[int, ...]]:
    """Return name and shape of the array whose elements are the next names; the next name if they are no array."""
    match = _ELEMENT.fullmatch(names[first])
    if match is None:
        return names[first], ()
    stem, indices = match[1], []
    for name in names[first:]:
        element = _ELEMENT.fullmatch(name)
        if element is None or element[1] != stem:
            break
        indices.append(tuple(map(int, element[2].split(","))))
    if len({len(index) for index in indices}) == 1:
        shape = tuple(1 + max(index[axis] for index in indices) for axis in range(len(indices[0])))
        if int(np.prod(shape)) == len(indices) and indices == list(np.ndindex(shape)):
            return stem, shape
    return names[first], ()


def split_chains(values: Float[np.ndarray, "M ..."]) -> Float[np.ndarray, "C D ..."]:
    """Return draws as chains."""
    n_chains = N_CHAINS if len(values) % N_CHAINS == 0 else 1
    return values.reshape(n_chains, -1, *values.shape[1:])


def to_variables(names: Sequence[str], draws: Float[np.ndarray, "M K"]) -> dict[str, np.ndarray]:
    """Return the draws of every variable, with chains and draws as the first two axes."""
    chains = split_chains(np.asarray(draws))
    return {
        name: chains[..., block.first : block.first + block.size].reshape(*chains.shape[:2], *block.shape)
        for name, block in blocks(names).items()
    }


def from_variables(names: Sequence[str], variables: dict[str, np.ndarray]) -> Float[np.ndarray, "M K"]:
    """Return the draws, given those of every variable."""
    parts = [variables[name].reshape(-1, block.size) for name, block in blocks(names).items()]
    return np.concatenate(parts, axis=1)
