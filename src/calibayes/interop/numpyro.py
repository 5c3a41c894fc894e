"""Gibbs models from NumPyro model functions.

The model is traced on one observation at a time. Its observed sites are the log-likelihood, whose terms are weighted by
the bootstrap counts. Its latent sites are the parameters, concatenated in the order in which they are sampled; their
joint density is the prior, including any dependence between them.
"""

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

from calibayes._backend.functions import Function, as_float, static
from calibayes.interop.draws import element_names

Sites = dict[str, dict[str, Any]]
"""Sample sites of one run of a NumPyro model, by name, as `numpyro.handlers.trace` records them."""


@dataclass(frozen=True)
class NumPyroConfig:
    """Constants of the checks of a NumPyro model."""

    n_runs: int = 4
    """Number of prior draws at which a model is checked. A few suffice: models that violate an assumption do so at
    almost every draw."""
    relative_tolerance: float = 1e-3
    """Largest difference of two log-densities that are attributed to rounding, relative to the sum of their absolute
    terms. Sums of millions of float32 terms stay below it; an order-of-magnitude choice."""


CONFIG = NumPyroConfig()

_HANDLER_LOCK = threading.RLock()
"""NumPyro's stack of handlers is shared by all threads, and a program may calibrate in several threads."""


@dataclass(frozen=True)
class Layout:
    """Positions of the latent sites in the parameter vector.

    Attributes
    ----------
    shapes : tuple of (str, tuple of int)
        Name and shape of each latent site, in order.
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def names(self) -> list[str]:
        """Names of the parameters."""
        return [name for site, shape in self.shapes for name in element_names(site, shape)]

    def split(self, theta: Shaped[Array | np.ndarray, "... K"]) -> dict[str, Any]:
        """Return the values of each site, given parameter vectors along the last axis."""
        ends = np.cumsum([int(np.prod(shape)) for _, shape in self.shapes])
        return {
            site: theta[..., end - int(np.prod(shape)) : end].reshape(*theta.shape[:-1], *shape)
            for (site, shape), end in zip(self.shapes, ends, strict=True)
        }

    def join(self, values: Mapping[str, Any]) -> Float[Array, " K"]:
        """Return the parameter vector, given the value of each site."""
        parts = [jnp.broadcast_to(as_float(values[site]), shape).ravel() for site, shape in self.shapes]
        return jnp.concatenate(parts)


class NumPyroPrior(eqx.Module):
    """Joint density of the latent sites of a NumPyro model, as made by `GibbsModel.from_numpyro`.

    Attributes
    ----------
    model : callable
        The NumPyro model.
    datum : pytree of arrays
        An observation on which the model is run; the prior does not depend on its values.
    bounds : tuple of (Array, Array)
        Lower and upper bounds of the parameters.
    layout : Layout
        Positions of the latent sites in the parameter vector.

    Examples
    --------
    >>> import numpy as np
    >>> import calibayes as cb
    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> def normal(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    ...     sigma = numpyro.sample("sigma", dist.HalfNormal(5.0))
    ...     with numpyro.plate("data", len(y)):
    ...         numpyro.sample("y", dist.Normal(mu, sigma), obs=y)
    >>> prior = cb.GibbsModel.from_numpyro(normal, np.array([0.5, 1.5, 2.5])).prior
    >>> prior.names
    ['mu', 'sigma']
    >>> {site: draws.shape for site, draws in prior.latents(np.ones((1000, 2))).items()}
    {'mu': (1000,), 'sigma': (1000,)}
    """

    model: Callable[..., Any] = eqx.field(converter=static)
    datum: PyTree[Array]
    bounds: tuple[Float[Array, " K"], Float[Array, " K"]]
    layout: Layout = eqx.field(static=True)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return len(self.names)

    @property
    def names(self) -> list[str]:
        """Names of the parameters."""
        return self.layout.names

    def latents(self, draws: Shaped[Array | np.ndarray, "... K"]) -> dict[str, Any]:
        """Split draws by site, as `numpyro.infer.Predictive` takes them.

        Parameters
        ----------
        draws : array of shape (..., K)
            Draws of the parameters.

        Returns
        -------
        dict of str to array
            Draws of each latent site.
        """
        return self.layout.split(draws)

    def log_prob(self, theta: Float[Array, " K"]) -> Float[Array, ""]:
        """Return the log-density of one parameter vector.

        Parameters
        ----------
        theta : Array of shape (K,)
            Parameters.

        Returns
        -------
        Array
            Log-density, a scalar.
        """
        return _log_prob(self.model, self.datum, self.latents(theta), observed=False)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Draw parameter vectors.

        Parameters
        ----------
        key : PRNGKeyArray
            JAX random key.
        shape : tuple of int
            Shape of the draws. The last axis has one entry per parameter.

        Returns
        -------
        Array
            Draws, of shape `shape`.
        """
        draw_one = lambda key: self.layout.join(_values(_run(self.model, self.datum, key)))
        return jax.vmap(draw_one)(jax.random.split(key, int(np.prod(shape[:-1])))).reshape(shape)


class NumPyroLikelihood(eqx.Module):
    """Log-likelihood of one observation: the log-density of the observed sites of a NumPyro model."""

    model: Callable[..., Any] = eqx.field(converter=static)
    layout: Layout = eqx.field(static=True)

    def __call__(self, theta: Float[Array, " K"], datum: PyTree[Array]) -> Float[Array, ""]:
        return _log_prob(self.model, _as_batch(datum), self.layout.split(theta), observed=True)


def from_numpyro(model: Callable[..., Any], data: PyTree) -> tuple[NumPyroLikelihood, NumPyroPrior]:
    """Return the log-likelihood of one observation and the prior of a NumPyro model.

    See `GibbsModel.from_numpyro` for the parameters and the assumptions, which are checked at draws of the prior.
    """
    model, data = static(model), _arrays(data)
    datum = _as_batch(jax.tree.map(lambda leaf: leaf[0], data))
    try:
        runs = [_run(model, data, jax.random.key(seed)) for seed in range(CONFIG.n_runs)]
    except NotImplementedError as error:
        raise ValueError("a latent site of the NumPyro model cannot be sampled: give it a proper prior.") from error
    try:
        single = _run(model, datum, jax.random.key(0))
    except Exception as error:
        raise ValueError(
            "the NumPyro model runs on the data, but not on one observation: pass every array with one entry per "
            "observation in data, and take the size of plates from it, as in numpyro.plate('data', len(y))."
        ) from error
    latents = [name for name, site in runs[0].items() if not site["is_observed"]]
    for name in latents:
        _check_latent(name, runs[0][name], single.get(name))
    if not latents or len(latents) == len(runs[0]):
        raise ValueError("the NumPyro model must have a sample site with obs= from data, and one without obs=.")
    for name in set(runs[0]) - set(latents):
        _check_observed(name, [run[name] for run in runs])
    bounds = [_constant_bounds(name, [run[name] for run in runs]) for name in latents]
    low, high = (as_float(np.concatenate(side)) for side in zip(*bounds, strict=True))
    layout = Layout(tuple((name, jnp.shape(runs[0][name]["value"])) for name in latents))
    likelihood, prior = NumPyroLikelihood(model, layout), NumPyroPrior(model, datum, (low, high), layout)
    _check_sums(likelihood, prior, data, jnp.stack([layout.join(_values(run)) for run in runs]))
    return likelihood, prior


def _handlers() -> ModuleType:
    try:
        from numpyro import handlers
    except ImportError as error:
        raise ImportError("a NumPyro model needs NumPyro: pip install 'calibayes[numpyro]'.") from error
    return handlers


def _run(model: Callable[..., Any], data: PyTree[Array], key: PRNGKeyArray | None = None) -> Sites:
    """Run a NumPyro model and return its sample sites. With a key, latent sites are drawn from their priors."""
    handlers = _handlers()
    run = model
    if isinstance(model, Function):
        # NumPyro needs the function itself: data may be passed by name.
        model.check_unchanged()
        run = model.fn
    if key is not None:
        run = handlers.seed(run, key)
    with _HANDLER_LOCK, handlers.trace() as sites:
        if isinstance(data, dict):
            run(**data)
        else:
            run(*(data if isinstance(data, tuple | list) else (data,)))
    for name, site in sites.items():
        if site["type"] == "param":
            raise ValueError(f"{name!r} is a numpyro.param, which has no prior: make it a numpyro.sample.")
    return {name: site for name, site in sites.items() if site["type"] == "sample"}


def _values(sites: Sites) -> dict[str, Any]:
    return {name: site["value"] for name, site in sites.items()}


def _log_prob(
    model: Callable[..., Any], data: PyTree[Array], latents: dict[str, Any], observed: bool
) -> Float[Array, ""]:
    """Return the log-density of the observed or of the latent sites."""
    with _HANDLER_LOCK, _handlers().substitute(data=latents):
        sites = [site for site in _run(model, data).values() if site["is_observed"] == observed]
    total = jnp.zeros(())
    for site in sites:
        value = as_float(site["fn"].log_prob(site["value"])).sum()
        total += value if site["scale"] is None else value * site["scale"]
    return total


def _arrays(data: PyTree) -> PyTree[Array]:
    arrays = jax.tree.map(np.asarray, data)
    leaves = jax.tree.leaves(arrays)
    if any(leaf.dtype.kind not in "biuf" for leaf in leaves):
        raise TypeError("data must hold arrays of numbers.")
    if len({leaf.shape[:1] for leaf in leaves}) != 1 or leaves[0].ndim == 0 or len(leaves[0]) < 2:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise ValueError(f"data must be arrays with at least two observations along the first axis; got {shapes}.")
    return jax.tree.map(lambda leaf: as_float(leaf) if leaf.dtype.kind == "f" else jnp.asarray(leaf), arrays)


def _as_batch(datum: PyTree[Array]) -> PyTree[Array]:
    """Return one observation as data of length one."""
    return jax.tree.map(lambda leaf: leaf[None], datum)


def _check_latent(name: str, site: dict[str, Any], single: dict[str, Any] | None) -> None:
    """Check a latent site, given the same site of a run on one observation."""
    if single is None or jnp.shape(site["value"]) != jnp.shape(single["value"]):
        raise ValueError(
            f"{name!r} has one value per observation. If it is observed, data must hold its obs= array; otherwise it "
            "cannot be a parameter, because bootstrap replicates count observations: integrate it out."
        )
    if site["fn"].support.is_discrete:
        raise ValueError(f"{name!r} is discrete: sum it out, as numpyro.distributions.MixtureSameFamily does.")


def _check_observed(name: str, sites: list[dict[str, Any]]) -> None:
    """Check that the values of an observed site, given on several runs, are in the support of its distribution.

    Values outside it, such as labels -1 and 1 of a Bernoulli site, would make the density zero everywhere. Masked
    values, of log-density zero, are not checked.
    """
    support, value = sites[0]["fn"].support, jnp.asarray(sites[0]["value"])
    if value.size == 0 or support is None or any(site["fn"].support != support for site in sites):
        return
    with warnings.catch_warnings(action="ignore"):
        masked = sites[0]["fn"].log_prob(value) == 0
    if not (support(value) | masked).all():
        raise ValueError(f"{name!r} has observed values outside the support of its distribution, {support}.")


def _constant_bounds(name: str, sites: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of the elements of a latent site, which must be the same on all runs."""
    bounds = [_bounds(name, site) for site in sites]
    if any(not np.array_equal(bounds[0], other) for other in bounds):
        raise ValueError(
            f"the bounds of {name!r} depend on other parameters, but samplers need constant bounds. Sample it between "
            "0 and 1, and rescale it by numpyro.deterministic."
        )
    return bounds[0]


def _bounds(name: str, site: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    from numpyro.distributions import constraints

    support, shape = site["fn"].support, jnp.shape(site["value"])
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    supported = (constraints.greater_than, constraints.less_than, constraints.interval, type(constraints.real))
    if not isinstance(support, supported):
        raise ValueError(
            f"{name!r} has support {support}; parameters must be real, or bounded on one or both sides. Compute "
            "it from such sites by numpyro.deterministic."
        )
    low, high = getattr(support, "lower_bound", -np.inf), getattr(support, "upper_bound", np.inf)
    return np.broadcast_to(low, shape).ravel(), np.broadcast_to(high, shape).ravel()


def _check_sums(
    likelihood: NumPyroLikelihood, prior: NumPyroPrior, data: PyTree[Array], thetas: Float[Array, "L K"]
) -> None:
    """Check that the log-likelihood is a sum over observations, and that the prior does not depend on the data."""

    @jax.jit
    def log_densities(theta, data):
        whole = [_log_prob(prior.model, data, prior.latents(theta), observed) for observed in (True, False)]
        terms = jax.vmap(likelihood, (None, 0))(theta, data)
        return (whole[0], terms.sum(), jnp.abs(terms).sum()), (whole[1], prior.log_prob(theta), jnp.zeros(()))

    rules = ("likelihood must be a sum over observations", "prior must be the same for all observations")
    for theta in thetas:
        for rule, (whole, by_observation, size) in zip(rules, log_densities(theta, data), strict=True):
            tolerance = CONFIG.relative_tolerance * (1 + size + abs(by_observation))
            if np.isfinite([whole, by_observation]).all() and abs(whole - by_observation) > tolerance:
                raise ValueError(
                    f"the model's log-{rule}: it is {whole:.6g} on all observations at once, but {by_observation:.6g} "
                    "by single observations. Pass every array with one entry per observation in data, take the size "
                    "of plates from it, as in numpyro.plate('data', len(y)), without subsampling, and compute nothing "
                    "across observations."
                )
