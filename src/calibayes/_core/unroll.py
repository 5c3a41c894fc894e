"""A function of one particle with products and sums of short vectors written out, term by term.

A user's loss says `x @ theta`, a prior sums over parameters. For many particles XLA would compute that by itself, go to
memory with it and come back for the rest; written out it is part of one fused pass (see `calibayes._core.risk`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import Array, PyTree

LONGEST = 64
"""Beyond, a product is a product."""
LONGEST_SUM = 12
"""Beyond, a sum is a sum: XLA would store its terms."""


def unroll(fn: Callable[..., Array], *example: PyTree[Array]) -> Callable[..., Array]:
    """`fn` of arguments like these, which has one array for a value."""
    closed = jax.make_jaxpr(fn)(*example)

    def call(*args: PyTree[Array]) -> Array:
        (value,) = _run(closed.jaxpr, closed.consts, jax.tree.leaves(args))
        return jnp.asarray(value)

    return call


def _run(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    value = lambda atom: atom.val if isinstance(atom, Literal) else known[atom]
    for equation in jaxpr.eqns:
        operands, primitive = [value(atom) for atom in equation.invars], equation.primitive
        inner = equation.params.get("jaxpr")
        if _is_short_product(equation, operands):
            wanted = equation.params["preferred_element_type"]
            a, b = operands if wanted is None else (operand.astype(wanted) for operand in operands)
            found = [_summed([a[k] * b[k] for k in range(len(a))])]
        elif _is_short_sum(equation, operands):
            found = [_summed([operands[0][k] for k in range(len(operands[0]))])]
        elif primitive.name in ("jit", "pjit") and isinstance(inner, ClosedJaxpr):
            found = _run(inner.jaxpr, inner.consts, operands)
        else:
            with equation.ctx.manager:
                found = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
            found = found if primitive.multiple_results else [found]
        known |= dict(zip(equation.outvars, found, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _summed(terms: list[Any]) -> Any:
    return sum(terms[1:], terms[0])


def _is_short_sum(equation: JaxprEqn, operands: Sequence[Any]) -> bool:
    """Of one vector."""
    if equation.primitive.name != "reduce_sum" or equation.params["axes"] != (0,):
        return False
    return operands[0].ndim == 1 and 1 <= len(operands[0]) <= LONGEST_SUM


def _is_short_product(equation: JaxprEqn, operands: Sequence[Any]) -> bool:
    """Of two vectors."""
    if equation.primitive.name != "dot_general" or equation.params["dimension_numbers"] != (((0,), (0,)), ((), ())):
        return False
    return all(operand.ndim == 1 and 1 <= len(operand) <= LONGEST for operand in operands)
