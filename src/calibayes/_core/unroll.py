"""Unroll products and sums of short vectors in a function of one particle.

A user's loss contains `x @ theta`, and a prior sums over parameters. For many particles XLA would compute such a
product as an operation of its own, write the result to memory and read it again. Written out term by term, it is part
of one fused pass over the particles (`calibayes._core.risk`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import Array, PyTree


@dataclass(frozen=True)
class UnrollConfig:
    """Largest vectors that are unrolled. The values affect compile and running time, and results by rounding only."""

    max_product_length: int = 16
    """Length of two vectors up to which their inner product is unrolled, so that programs do not grow with the number
    of parameters. On a CPU longer unrolled products took as long as matrix products, or longer."""
    max_sum_length: int = 12
    """Length of a vector up to which its sum is unrolled. XLA stores the terms of longer unrolled sums in memory
    (`docs/performance.md`)."""


CONFIG = UnrollConfig()


def unroll(fn: Callable[..., Array], *example: PyTree[Array]) -> Callable[..., Array]:
    """Return an equivalent function with short products and sums unrolled.

    Parameters
    ----------
    fn : callable
        Function that returns one array.
    *example : pytree of Array
        Arguments with the shapes and dtypes of the later calls.

    Returns
    -------
    callable
        Function of the same arguments.
    """
    # Products that are not unrolled have the precision of those that are, also on a GPU.
    with jax.default_matmul_precision("highest"):
        closed = jax.make_jaxpr(fn)(*example)

    def call(*args: PyTree[Array]) -> Array:
        (value,) = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args))
        return jnp.asarray(value)

    return call


def _evaluate(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Evaluate a jaxpr equation by equation, with short products and sums replaced."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    read = lambda atom: atom.val if isinstance(atom, Literal) else values[atom]
    for equation in jaxpr.eqns:
        operands, primitive = [read(atom) for atom in equation.invars], equation.primitive
        inner = equation.params.get("jaxpr")
        if _is_short_product(equation, operands):
            dtype = equation.params["preferred_element_type"]
            a, b = operands if dtype is None else (operand.astype(dtype) for operand in operands)
            outputs = [_add([a[k] * b[k] for k in range(len(a))])]
        elif _is_short_sum(equation, operands):
            outputs = [_add([operands[0][k] for k in range(len(operands[0]))])]
        elif primitive.name in ("jit", "pjit") and isinstance(inner, ClosedJaxpr):
            outputs = _evaluate(inner.jaxpr, inner.consts, operands)
        else:
            with equation.ctx.manager:
                outputs = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
            outputs = outputs if primitive.multiple_results else [outputs]
        values |= dict(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _add(terms: list[Any]) -> Any:
    return sum(terms[1:], terms[0])


def _is_short_product(equation: JaxprEqn, operands: Sequence[Any]) -> bool:
    """Return whether an equation is the inner product of two short vectors."""
    if equation.primitive.name != "dot_general" or equation.params["dimension_numbers"] != (((0,), (0,)), ((), ())):
        return False
    return all(operand.ndim == 1 and 1 <= len(operand) <= CONFIG.max_product_length for operand in operands)


def _is_short_sum(equation: JaxprEqn, operands: Sequence[Any]) -> bool:
    """Return whether an equation is the sum of one short vector."""
    if equation.primitive.name != "reduce_sum" or equation.params["axes"] != (0,):
        return False
    return operands[0].ndim == 1 and 1 <= len(operands[0]) <= CONFIG.max_sum_length
