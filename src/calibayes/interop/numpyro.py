"""NumPyro's models.

A model is run on one observation at a time. Its observed sites are the log-likelihood, which bootstrap counts weight;
its latent ones are the parameters, laid end to end in the order they are sampled, and their joint density is the prior,
however they depend on each other.
"""

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from calibayes._backend.functions import Function, as_float, static
from calibayes.interop.draws import numbered

_LOOKS = 4
"""Draws of the prior at which a model is looked at."""
_ROUNDING = 1e-3
"""Of a sum, in units of its terms: what float32 may lose in it."""

_ONE_AT_A_TIME = threading.RLock()
"""NumPyro's handlers are the same for all threads, of which `calibayes._backend.jit` has many."""


@dataclass(frozen=True)
class Layout:
    """Which latent site lies where in the parameter vector."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def names(self) -> list[str]:
        return [name for site, shape in self.shapes for name in numbered(site, shape)]

    def split(self, theta: Any) -> dict[str, Any]:
        ends = np.cumsum([int(np.prod(shape)) for _, shape in self.shapes])
        return {
            site: theta[..., end - int(np.prod(shape)) : end].reshape(*theta.shape[:-1], *shape)
            for (site, shape), end in zip(self.shapes, ends, strict=True)
        }

    def join(self, values: Mapping[str, Any]) -> Float[Array, " K"]:
        parts = [jnp.broadcast_to(as_float(values[site]), shape).ravel() for site, shape in self.shapes]
        return jnp.concatenate(parts)


class NumPyroPrior(eqx.Module):
    """The joint density of a NumPyro model's latent sites."""

    model: Callable[..., Any] = eqx.field(converter=static)
    datum: PyTree[Array]
    """One observation to run the model on, whichever."""
    bounds: tuple[Float[Array, " K"], Float[Array, " K"]]
    layout: Layout = eqx.field(static=True)

    @property
    def size(self) -> int:
        return len(self.names)

    @property
    def names(self) -> list[str]:
        return self.layout.names

    def latents(self, draws: Any) -> dict[str, Any]:
        """Draws (..., K) by site, as NumPyro's `Predictive` takes them."""
        return self.layout.split(draws)

    def log_prob(self, theta: Float[Array, " K"]) -> Float[Array, ""]:
        return _log_prob(self.model, self.datum, self.latents(theta), observed=False)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        one = lambda key: self.layout.join(_values(_run(self.model, self.datum, key)))
        return jax.vmap(one)(jax.random.split(key, int(np.prod(shape[:-1])))).reshape(shape)


class NumPyroLikelihood(eqx.Module):
    """The log-likelihood of one observation: the density of a NumPyro model's observed sites."""

    model: Callable[..., Any] = eqx.field(converter=static)
    layout: Layout = eqx.field(static=True)

    def __call__(self, theta: Float[Array, " K"], datum: PyTree[Array]) -> Float[Array, ""]:
        return _log_prob(self.model, _alone(datum), self.layout.split(theta), observed=True)


def from_numpyro(model: Callable[..., Any], data: Any) -> tuple[NumPyroLikelihood, NumPyroPrior]:
    """The log-likelihood of one observation and the prior of a NumPyro model; see `GibbsModel.from_numpyro`."""
    model, data = static(model), _arrays(data)
    datum = _alone(jax.tree.map(lambda leaf: leaf[0], data))
    try:
        looks = [_run(model, data, jax.random.key(seed)) for seed in range(_LOOKS)]
    except NotImplementedError as error:
        raise ValueError("a latent site of the NumPyro model cannot be sampled: give it a proper prior.") from error
    try:
        alone = _run(model, datum, jax.random.key(0))
    except Exception as error:
        raise ValueError(
            "the NumPyro model runs on the data, but not on one observation of them: all that comes by observation "
            "must be in data, and plates sized by it, as numpyro.plate('data', len(y))."
        ) from error
    latents = [name for name, site in looks[0].items() if not site["is_observed"]]
    for name in latents:
        _check_latent(name, looks[0][name], alone.get(name))
    if not latents or len(latents) == len(looks[0]):
        raise ValueError("the NumPyro model must have a sample site with obs= from data, and one without obs=.")
    for name in set(looks[0]) - set(latents):
        _check_observed(name, [look[name] for look in looks])
    bounds = [_fixed_bounds(name, [look[name] for look in looks]) for name in latents]
    low, high = (as_float(np.concatenate(side)) for side in zip(*bounds, strict=True))
    layout = Layout(tuple((name, jnp.shape(looks[0][name]["value"])) for name in latents))
    likelihood, prior = NumPyroLikelihood(model, layout), NumPyroPrior(model, datum, (low, high), layout)
    _check_sums(likelihood, prior, data, jnp.stack([layout.join(_values(look)) for look in looks]))
    return likelihood, prior


def _handlers() -> Any:
    try:
        from numpyro import handlers
    except ImportError as error:
        raise ImportError("a NumPyro model needs NumPyro: pip install 'calibayes[numpyro]'.") from error
    return handlers


def _run(model: Callable[..., Any], data: Any, key: PRNGKeyArray | None = None) -> dict[str, Any]:
    """The sample sites of one run of a NumPyro model; with a key, latent ones are drawn."""
    handlers = _handlers()
    run = model.fn if isinstance(model, Function) else model
    if key is not None:
        run = handlers.seed(run, key)
    with _ONE_AT_A_TIME, handlers.trace() as sites:
        if isinstance(data, dict):
            run(**data)
        else:
            run(*(data if isinstance(data, tuple | list) else (data,)))
    for name, site in sites.items():
        if site["type"] == "param":
            raise ValueError(f"{name!r} is a numpyro.param, which has no prior: make it a numpyro.sample.")
    return {name: site for name, site in sites.items() if site["type"] == "sample"}


def _values(sites: Mapping[str, Any]) -> dict[str, Any]:
    return {name: site["value"] for name, site in sites.items()}


def _log_prob(model: Callable[..., Any], data: Any, latents: dict[str, Any], observed: bool) -> Float[Array, ""]:
    with _ONE_AT_A_TIME, _handlers().substitute(data=latents):
        sites = [site for site in _run(model, data).values() if site["is_observed"] == observed]
    total = jnp.zeros(())
    for site in sites:
        value = as_float(site["fn"].log_prob(site["value"])).sum()
        total += value if site["scale"] is None else value * site["scale"]
    return total


def _arrays(data: Any) -> PyTree[Array]:
    arrays = jax.tree.map(np.asarray, data)
    leaves = jax.tree.leaves(arrays)
    if any(leaf.dtype.kind not in "biuf" for leaf in leaves):
        raise TypeError("data must hold arrays of numbers.")
    if len({leaf.shape[:1] for leaf in leaves}) != 1 or leaves[0].ndim == 0 or len(leaves[0]) < 2:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise ValueError(f"data must be arrays with at least two observations along the first axis; got {shapes}.")
    return jax.tree.map(lambda leaf: as_float(leaf) if leaf.dtype.kind == "f" else jnp.asarray(leaf), arrays)


def _alone(datum: PyTree[Array]) -> PyTree[Array]:
    """One observation as data of length one."""
    return jax.tree.map(lambda leaf: leaf[None], datum)


def _check_latent(name: str, site: Any, alone: Any) -> None:
    if alone is None or jnp.shape(site["value"]) != jnp.shape(alone["value"]):
        raise ValueError(
            f"{name!r} has one value an observation. If it is observed, data must hold what its obs= is; else it "
            "cannot be a parameter, as bootstrap samples count observations: integrate it out."
        )
    if site["fn"].support.is_discrete:
        raise ValueError(f"{name!r} is discrete: sum it out, as numpyro.distributions.MixtureSameFamily does.")


def _check_observed(name: str, looks: list[Any]) -> None:
    """Data coded for something else, as -1 and 1 for 0 and 1, would make the density zero everywhere."""
    support, value = looks[0]["fn"].support, jnp.asarray(looks[0]["value"])
    if value.size == 0 or support is None or any(look["fn"].support != support for look in looks):
        return
    with warnings.catch_warnings(action="ignore"):
        masked = looks[0]["fn"].log_prob(value) == 0
    if not (support(value) | masked).all():
        raise ValueError(f"{name!r} is observed where its distribution cannot be: its support is {support}.")


def _fixed_bounds(name: str, looks: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of a latent site's elements, which must be the same at every look."""
    each = [_bounds(name, look) for look in looks]
    if any(not np.array_equal(each[0], other) for other in each):
        raise ValueError(
            f"the bounds of {name!r} depend on other parameters, and samplers need them fixed. Sample it between 0 "
            "and 1, and scale it by numpyro.deterministic."
        )
    return each[0]


def _bounds(name: str, site: Any) -> tuple[np.ndarray, np.ndarray]:
    from numpyro.distributions import constraints

    support, shape = site["fn"].support, jnp.shape(site["value"])
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    kinds = (constraints.greater_than, constraints.less_than, constraints.interval, type(constraints.real))
    if not isinstance(support, kinds):
        raise ValueError(
            f"{name!r} has support {support}; parameters must be real, above or below a bound, or between two. Build "
            "it from such sites by numpyro.deterministic."
        )
    low, high = getattr(support, "lower_bound", -np.inf), getattr(support, "upper_bound", np.inf)
    return np.broadcast_to(low, shape).ravel(), np.broadcast_to(high, shape).ravel()


def _check_sums(likelihood: NumPyroLikelihood, prior: NumPyroPrior, data: Any, thetas: Float[Array, "L K"]) -> None:
    """Whether what the model says of all the data is what it says of each observation, and the prior's the same."""

    @jax.jit
    def sums(theta, data):
        whole = [_log_prob(prior.model, data, prior.latents(theta), observed) for observed in (True, False)]
        each = jax.vmap(likelihood, (None, 0))(theta, data)
        return (whole[0], each.sum(), jnp.abs(each).sum()), (whole[1], prior.log_prob(theta), jnp.zeros(()))

    rules = ("likelihood must be a sum over observations", "prior must be the same for all observations")
    for theta in thetas:
        for rule, (whole, own, size) in zip(rules, sums(theta, data), strict=True):
            if np.isfinite([whole, own]).all() and abs(whole - own) > _ROUNDING * (1 + size + abs(own)):
                raise ValueError(
                    f"the model's log-{rule}: from all at once it is {whole:.6g}, from one at a time {own:.6g}. "
                    "All that comes by observation must be in data, plates sized by it, as numpyro.plate('data', "
                    "len(y)), without subsampling, and nothing computed across observations."
                )
