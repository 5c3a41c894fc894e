"""Families of models that are difficult to calibrate.

A family is a function of its constants that returns a `Case`: the model for the library, and the same model in NumPy.
`FIXED` lists cases with constants chosen by hand, among them all those that once were answered wrongly. `drawn_cases`
draws the constants of each family at random, so that nothing can be tuned to them.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import calibayes as cb
from benchmarks.validate.adversarial.grid import Exact

N_REPLICATES = 400


class Case(NamedTuple):
    """A calibration with an exact answer."""

    name: str
    model: cb.GibbsModel
    data: Any
    exact: Exact
    region: str = "hpd"
    level: float = 0.95
    estimate: str = "mean"

    @property
    def library_region(self) -> Any:
        """The region as an argument of `calibrate`."""
        kind, _, index = self.region.partition(" ")
        if kind == "interval":
            return cb.regions.Interval(int(index))
        if kind == "linear":
            return cb.regions.Linear([float(number) for number in index.split(",")])
        return kind

    def coverage(self, eta: float) -> float:
        """Return the exact coverage at a learning rate."""
        return self.exact.coverage(eta, self.region, self.level, self.estimate)


# Priors, for the library and in NumPy


class Prior(NamedTuple):
    """A prior and its log-density in NumPy."""

    prior: Any
    log_density: Callable[[np.ndarray], np.ndarray]
    bounds: np.ndarray | None = None


def normal(loc: float = 0.0, scale: float = 10.0) -> Prior:
    return Prior(cb.priors.Normal(loc, scale), lambda t: -0.5 * np.square((t - loc) / scale).sum(-1))


def laplace(loc: float, scale: float) -> Prior:
    return Prior(cb.priors.Laplace(loc, scale), lambda t: -np.abs((t - loc) / scale).sum(-1))


def student(df: float, loc: float, scale: float) -> Prior:
    density = lambda t: -0.5 * (df + 1) * np.log1p(np.square((t - loc) / scale) / df).sum(-1)
    return Prior(cb.priors.StudentT(df, loc, scale), density)


def uniform(low: float, high: float) -> Prior:
    return Prior(cb.priors.Uniform(low, high), lambda t: np.zeros(len(t)), np.array([[low], [high]]))


class UnstatedBound(eqx.Module):
    """An exponential prior that does not state its bound at zero."""

    scale: float

    def log_prob(self, theta):
        return jnp.where(theta >= 0, -theta / self.scale, -jnp.inf).sum()

    def sample(self, key, shape):
        return self.scale * jax.random.exponential(key, shape)


def unstated_bound(scale: float) -> Prior:
    return Prior(UnstatedBound(scale), lambda t: -t.sum(-1) / scale, np.array([[0.0], [np.inf]]))


# Cases with one parameter


def _counts(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.multinomial(n, np.full(n, 1 / n), size=N_REPLICATES).astype(float)


def scalar(
    name: str,
    loss: Any,
    rho: Callable[[np.ndarray, np.ndarray], np.ndarray],
    y: np.ndarray,
    prior: Prior,
    box: tuple[float, float],
    seed: int = 1,
    stretch: float = 0.0,
    **options: Any,
) -> Case:
    """Return a case with one parameter.

    Parameters
    ----------
    name : str
        Name of the case.
    loss : LinearLoss or callable
        Loss for the library: of an intercept, or `fn(theta, y)`.
    rho : callable
        The loss in NumPy, `rho(theta, y)`.
    y : ndarray of shape (N,)
        Data.
    prior : Prior
        Prior.
    box : tuple of float
        An interval that contains all posteriors.
    seed : int
        Seed of the bootstrap counts. Default: 1.
    stretch : float
        Growth of the cells of the grid from its centre to its ends. Default: 0.
    **options
        Region, level and estimate of the case.
    """
    linear = isinstance(loss, cb.losses.LinearLoss)
    data = (np.ones((len(y), 1)), y) if linear else y
    model = cb.GibbsModel(loss, prior.prior, dim=None if linear else 1)
    low, high = box
    exact = Exact(
        losses=lambda theta: rho(theta[:, 0][None], y[:, None]),
        log_prior=prior.log_density,
        counts=_counts(np.random.default_rng(seed), len(y)),
        centre=np.array([(low + high) / 2]),
        root=np.array([[(high - low) / 2]]),
        bounds=prior.bounds,
        stretch=stretch,
    )
    return Case(name, model, data, exact, **options)


def _squared(theta, y):
    return 0.5 * np.square(y - theta)


def _quantile(tau):
    return lambda theta, y: np.maximum(tau * (y - theta), (tau - 1) * (y - theta))


def _centred(n: int, seed: int, mean: float = 0.0, sd: float = 1.0) -> np.ndarray:
    y = np.random.default_rng(seed).normal(size=n)
    return mean + sd * (y - y.mean()) / y.std()


def conflict(prior: str = "normal", loc: float = 3.0, scale: float = 0.03, loss: str = "squared", n: int = 60) -> Case:
    """A prior that disagrees with the data, which have mean 0 and standard deviation 1."""
    chosen = {"normal": normal, "laplace": laplace, "student": lambda loc, scale: student(3.0, loc, scale)}[prior]
    y, box = _centred(n, 0), (-8.0 - abs(loc), 8.0 + 2 * abs(loc))
    losses = {"squared": (cb.losses.Squared(), _squared), "median": (cb.losses.Quantile(0.5), _quantile(0.5))}
    name = f"{loss}, {prior} prior at {loc:g} with scale {scale:g}, N {n}"
    return scalar(name, *losses[loss], y, chosen(loc, scale), box)


def bound(mean: float = -0.1, high: float = 5.0, stated: bool = True, n: int = 56, region: str = "interval 0") -> Case:
    """A normal mean that is bounded below by zero, with the sample mean near or beyond the bound."""
    prior = uniform(0.0, high) if stated else unstated_bound(high)
    name = f"mean {mean:g} bounded by 0{'' if stated else ' (not stated)'}, {region}"
    loss = lambda theta, y: 0.5 * jnp.square(y - theta[0])
    return scalar(
        name, loss, _squared, _centred(n, 3, mean), prior, (0.0, high if stated else 12 * high), region=region
    )


def narrow_bounds(width: float = 0.2, n: int = 50) -> Case:
    """Both bounds are inside the range that the data allow."""
    prior = uniform(-width, width)
    loss = lambda theta, y: 0.5 * jnp.square(y - theta[0])
    return scalar(f"mean within +-{width:g}, N {n}", loss, _squared, _centred(n, 4), prior, (-width, width))


def welsch(gap: float = 2.0, width: float = 0.7, share: float = 0.5, n: int = 56, region: str = "interval 0") -> Case:
    """A bounded loss and two clusters of data, which make two modes."""
    rng = np.random.default_rng(5)
    first = round(share * n)
    y = np.concatenate([rng.normal(-gap, width, first), rng.normal(gap, width, n - first)])
    name = f"Welsch loss, clusters at +-{gap:g} of width {width:g}, share {share:g}, {region}"
    loss = lambda theta, y: 1 - jnp.exp(-0.5 * jnp.square(y - theta[0]))
    rho = lambda theta, y: 1 - np.exp(-0.5 * np.square(y - theta))
    return scalar(name, loss, rho, y, normal(scale=3.0), (-30.0, 30.0), region=region)


def narrow_well(width: float = 0.1, n: int = 60) -> Case:
    """A bounded loss that is much narrower than the data are spread."""
    name = f"Welsch loss of width {width:g}, N {n}"
    loss = lambda theta, y: 1 - jnp.exp(-0.5 * jnp.square((y - theta[0]) / width))
    rho = lambda theta, y: 1 - np.exp(-0.5 * np.square((y - theta) / width))
    return scalar(name, loss, rho, _centred(n, 6), normal(scale=2.0), (-20.0, 20.0))


def mirrored(mean: float = 2.0, n: int = 50, estimate: str = "mean") -> Case:
    """A loss that depends on the absolute value of the parameter: two mirrored modes."""
    name = f"absolute value of a mean of {mean:g}, estimate {estimate}"
    loss = lambda theta, y: 0.5 * jnp.square(y - jnp.abs(theta[0]))
    rho = lambda theta, y: 0.5 * np.square(y - np.abs(theta))
    return scalar(name, loss, rho, _centred(n, 7, mean), normal(0.5, 3.0), (-30.0, 30.0), estimate=estimate)


def wiggly(amplitude: float = 0.5, frequency: float = 8.0, n: int = 40) -> Case:
    """A squared loss with a wave on it."""
    name = f"squared loss with waves of {amplitude:g} at frequency {frequency:g}"
    loss = lambda theta, y: 0.5 * jnp.square(y - theta[0]) + amplitude * jnp.cos(frequency * (y - theta[0]))
    rho = lambda theta, y: 0.5 * np.square(y - theta) + amplitude * np.cos(frequency * (y - theta))
    return scalar(name, loss, rho, _centred(n, 8), normal(), (-40.0, 40.0))


def cauchy(scale: float = 1.0, n: int = 60, df: float = 1.0) -> Case:
    """A loss with logarithmic tails, and data with heavy ones."""
    y = np.random.default_rng(9).standard_t(df, size=n)
    name = f"Cauchy loss of scale {scale:g}, t data with {df:g} df, N {n}"
    loss = lambda theta, y: jnp.log1p(jnp.square((y - theta[0]) / scale))
    rho = lambda theta, y: np.log1p(np.square((y - theta) / scale))
    return scalar(name, loss, rho, y, normal(), (-60.0, 60.0))


def heavy_prior(df: float = 1.5, n: int = 20) -> Case:
    """A heavy-tailed prior and a loss that is bounded, so that the posterior has the prior's tails.

    With one degree of freedom the posterior would have no mean.
    """
    loss = lambda theta, y: 1 - jnp.exp(-0.5 * jnp.square(y - theta[0]))
    rho = lambda theta, y: 1 - np.exp(-0.5 * np.square(y - theta))
    name = f"Welsch loss, t prior with {df:g} df, N {n}"
    return scalar(name, loss, rho, _centred(n, 10), student(df, 0.0, 3.0), (-3e4, 3e4), stretch=12.0)


def threshold(n: int = 60, accuracy: float = 0.8) -> Case:
    """A 0-1 loss: the posterior is a step function."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=n)
    y = np.where(rng.uniform(size=n) < np.where(x > 0, accuracy, 1 - accuracy), 1.0, -1.0)
    prior = normal(scale=2.0)
    loss = lambda theta, datum: jnp.where(jnp.where(theta[0] <= datum[0], 1.0, -1.0) != datum[1], 1.0, 0.0)
    losses = lambda theta: np.where(np.where(theta[:, 0] <= x[:, None], 1.0, -1.0) != y[:, None], 1.0, 0.0)
    counts = _counts(np.random.default_rng(12), n)
    exact = Exact(losses, prior.log_density, counts, np.zeros(1), np.full((1, 1), 20.0))
    model = cb.GibbsModel(loss, prior.prior, dim=1)
    return Case(f"0-1 loss, N {n}, accuracy {accuracy:g}", model, (x, y), exact, region="interval 0")


def cusped(power: float = 0.5, n: int = 50) -> Case:
    """A concave power of the distance: a cusp at every observation."""
    name = f"loss |y - theta|^{power:g}, N {n}"
    loss = lambda theta, y: jnp.power(jnp.abs(y - theta[0]) + 1e-6, power)
    rho = lambda theta, y: np.power(np.abs(y - theta) + 1e-6, power)
    return scalar(name, loss, rho, _centred(n, 13), normal(scale=3.0), (-40.0, 40.0))


def flat(tolerance: float = 1.0, n: int = 60) -> Case:
    """A loss that is zero within a distance: the risk is flat around its minimum."""
    name = f"insensitive loss, tolerance {tolerance:g}, N {n}"
    loss = lambda theta, y: jnp.maximum(jnp.abs(y - theta[0]) - tolerance, 0.0)
    rho = lambda theta, y: np.maximum(np.abs(y - theta) - tolerance, 0.0)
    return scalar(name, loss, rho, _centred(n, 14), normal(scale=3.0), (-40.0, 40.0))


def discrete(n: int = 12, ones: int = 5, level: float = 0.9, region: str = "hpd") -> Case:
    """Binary data with few distinct replicates: coverage is a step function of eta."""
    y = np.repeat([1.0, 0.0], [ones, n - ones])
    name = f"binary data, {ones} of {n}, level {level:g}, {region}"
    prior = normal(scale=5.0)
    return scalar(name, cb.losses.Squared(), _squared, y, prior, (-60.0, 60.0), level=level, region=region)


def tiny(n: int = 4, loss: str = "squared") -> Case:
    """Very few observations."""
    losses = {"squared": (cb.losses.Squared(), _squared), "median": (cb.losses.Quantile(0.5), _quantile(0.5))}
    return scalar(f"{loss}, N {n}", *losses[loss], _centred(n, 15), normal(), (-120.0, 120.0))


def extreme_tau(tau: float = 0.01, n: int = 100, df: float = 3.0) -> Case:
    """A quantile far out in the tail."""
    y = np.random.default_rng(16).standard_t(df, size=n)
    name = f"quantile {tau:g} of t data with {df:g} df, N {n}"
    return scalar(name, cb.losses.Quantile(tau), _quantile(tau), y, normal(scale=20.0), (-250.0, 250.0))


def huge(location: float = 1e6, scale: float = 1.0, loss: str = "squared", n: int = 60, linear: bool = True) -> Case:
    """Data far from zero, or of extreme scale, with a weak prior around them."""
    y = _centred(n, 17, location, scale)
    losses: dict[str, tuple[Any, Any]] = {
        "squared": (cb.losses.Squared(), _squared),
        "median": (cb.losses.Quantile(0.5), _quantile(0.5)),
    }
    library, rho = losses[loss]
    if not linear:
        library = lambda theta, y: 0.5 * jnp.square(y - theta[0])
    name = f"{loss}{'' if linear else ' (own function)'}, location {location:g}, scale {scale:g}"
    prior = normal(location, 50 * scale)
    return scalar(name, library, rho, y, prior, (location - 200 * scale, location + 200 * scale))


def poisson(mean: float = 1e5, overdispersion: float = 1.0, n: int = 40) -> Case:
    """A Poisson log-likelihood in the logarithm of the rate."""
    rng = np.random.default_rng(18)
    y = np.round(mean + math.sqrt(mean * overdispersion) * rng.normal(size=n)).clip(0)
    log_mean = math.log(mean)
    prior = normal(log_mean, 2.0)
    log_likelihood = lambda theta, y: y * theta[0] - jnp.exp(theta[0]) - jax.scipy.special.gammaln(y + 1)
    model = cb.GibbsModel.from_log_likelihood(log_likelihood, prior.prior, dim=1)
    # Relative to the mean, where the terms would otherwise be large.
    rho = lambda theta, y: -y * (theta - log_mean) + mean * np.expm1(theta - log_mean)
    exact = Exact(
        lambda theta: rho(theta[:, 0][None], y[:, None]),
        prior.log_density,
        _counts(np.random.default_rng(19), n),
        np.array([log_mean]),
        np.array([[1.0]]) if mean > 1e3 else np.array([[6.0]]),
    )
    return Case(f"Poisson counts near {mean:g}, dispersion {overdispersion:g}", model, y, exact)


def waiting_times(shape: float = 1.0, n: int = 50, region: str = "hpd") -> Case:
    """An exponential log-likelihood with a bounded rate, for gamma data."""
    y = np.random.default_rng(20).gamma(shape, 1 / shape, size=n)
    prior = uniform(0.0, 50.0)
    loss = lambda theta, y: theta[0] * y - jnp.log(theta[0])
    rho = lambda theta, y: theta * y - np.log(theta)
    return scalar(
        f"exponential rate, gamma data of shape {shape:g}, {region}", loss, rho, y, prior, (0.0, 50.0), region=region
    )


# Cases with two parameters


def regression(
    loss: str = "median",
    region: str = "hpd",
    n: int = 60,
    first: float = 0.0,
    offset: float = 0.0,
    prior_scale: float = 100.0,
    level: float = 0.95,
) -> Case:
    """A regression on one column; `first` is its smallest value, as for a column of years."""
    rng = np.random.default_rng(21)
    z = rng.uniform(0, 10, n)
    x = np.column_stack([np.ones(n), first + z])
    y = offset + 2 + 0.5 * z + rng.standard_t(4, size=n) * (1 + 0.1 * z)
    losses = {"median": (cb.losses.Quantile(0.5), _quantile(0.5)), "squared": (cb.losses.Squared(), _squared)}
    library, rho = losses[loss]
    fit = np.linalg.lstsq(x, y)[0]
    root = np.linalg.cholesky(np.linalg.inv(x.T @ x) * np.var(y - x @ fit))
    prior = normal(0.0, prior_scale)
    # With a tight prior the posteriors lie between the fit and zero.
    reach = 12.0 if prior_scale * abs(offset) == 0 or prior_scale > abs(offset) else 60.0 * abs(offset)
    exact = Exact(
        lambda theta: rho((theta @ x.T).T, y[:, None]),
        prior.log_density,
        _counts(np.random.default_rng(22), n),
        fit,
        reach * root,
    )
    name = f"{loss} regression, x from {first:g}, y near {offset:g}, prior scale {prior_scale:g}, {region}"
    return Case(name, cb.GibbsModel(library, prior.prior), (x, y), exact, region=region, level=level)


def two_clusters(gap: float = 1.5, n: int = 60, region: str = "hpd") -> Case:
    """A bounded loss in two dimensions, with two modes of unequal weight."""
    rng = np.random.default_rng(23)
    first = round(0.6 * n)
    y = np.concatenate([rng.normal(gap, 0.6, (first, 2)), rng.normal(-gap, 0.6, (n - first, 2))])
    prior = normal(scale=2.0)
    loss = lambda theta, y: 1 - jnp.exp(-0.5 * jnp.square(y - theta).sum())
    losses = lambda theta: 1 - np.exp(-0.5 * np.square(y[:, None] - theta[None]).sum(-1))
    exact = Exact(losses, prior.log_density, _counts(np.random.default_rng(24), n), np.zeros(2), 10.0 * np.eye(2))
    model = cb.GibbsModel(loss, prior.prior, dim=2)
    return Case(f"two clusters in two dimensions at +-{gap:g}, {region}", model, y, exact, region=region)


FIXED: tuple[tuple[Callable[..., Case], dict[str, Any]], ...] = (
    (conflict, {}),
    (conflict, {"loc": 10.0, "scale": 0.1}),
    (conflict, {"loc": 100.0, "scale": 1.0}),
    (conflict, {"loc": 1.0, "scale": 0.1}),
    (conflict, {"loc": 0.5, "scale": 0.05}),
    (conflict, {"loc": 0.0, "scale": 0.02}),
    (conflict, {"loc": 0.1, "scale": 0.01}),
    (conflict, {"prior": "laplace", "loc": 3.0, "scale": 0.05}),
    (conflict, {"prior": "student", "loc": 5.0, "scale": 0.3}),
    (conflict, {"prior": "student", "loc": 30.0, "scale": 1.0}),
    (conflict, {"loss": "median", "loc": 3.0, "scale": 0.1}),
    (conflict, {"loss": "median", "prior": "laplace", "loc": -2.0, "scale": 0.05}),
    (bound, {}),
    (bound, {"mean": 0.05}),
    (bound, {"mean": -1.0}),
    (bound, {"mean": -0.1, "region": "hpd"}),
    (bound, {"mean": -0.1, "stated": False}),
    (bound, {"mean": 1.0}),
    (narrow_bounds, {}),
    (narrow_bounds, {"width": 1.0}),
    (welsch, {}),
    (welsch, {"gap": 1.0}),
    (welsch, {"gap": 4.0, "share": 0.6}),
    (welsch, {"gap": 2.0, "share": 0.8, "region": "hpd"}),
    (narrow_well, {}),
    (narrow_well, {"width": 0.4}),
    (mirrored, {}),
    (mirrored, {"mean": 0.3}),
    (mirrored, {"mean": 2.0, "estimate": "mode"}),
    (wiggly, {}),
    (wiggly, {"amplitude": 0.2, "frequency": 20.0}),
    (cauchy, {}),
    (cauchy, {"scale": 0.3, "n": 30}),
    (heavy_prior, {}),
    (heavy_prior, {"df": 3.0, "n": 40}),
    (threshold, {}),
    (threshold, {"n": 150, "accuracy": 0.9}),
    (cusped, {}),
    (cusped, {"power": 0.8}),
    (flat, {}),
    (flat, {"tolerance": 2.5}),
    (discrete, {}),
    (discrete, {"n": 12, "ones": 6, "level": 0.95}),
    (discrete, {"n": 8, "ones": 3, "level": 0.8, "region": "interval 0"}),
    (discrete, {"n": 40, "ones": 12, "level": 0.95}),
    (tiny, {"n": 3}),
    (tiny, {"n": 5}),
    (tiny, {"n": 6, "loss": "median"}),
    (extreme_tau, {}),
    (extreme_tau, {"tau": 0.05}),
    (extreme_tau, {"tau": 0.95, "df": 2.0}),
    (extreme_tau, {"tau": 0.99, "n": 200}),
    (huge, {}),
    (huge, {"loss": "median"}),
    (huge, {"linear": False}),
    (huge, {"location": 0.0, "scale": 1e8}),
    (huge, {"location": 0.0, "scale": 1e-8}),
    (huge, {"location": -1e4, "scale": 0.01, "linear": False}),
    (poisson, {}),
    (poisson, {"mean": 1e6}),
    (poisson, {"mean": 20.0, "overdispersion": 3.0}),
    (waiting_times, {}),
    (waiting_times, {"shape": 0.5, "region": "interval 0"}),
    (regression, {}),
    (regression, {"region": "ellipsoid"}),
    (regression, {"region": "box"}),
    (regression, {"region": "simultaneous"}),
    (regression, {"region": "interval 1"}),
    (regression, {"region": "linear 1,5"}),
    (regression, {"level": 0.5}),
    (regression, {"level": 0.99}),
    (regression, {"first": 1990.0, "loss": "squared"}),
    (regression, {"first": 1990.0, "prior_scale": 1e4}),
    (regression, {"offset": 100.0, "prior_scale": 5.0}),
    (two_clusters, {}),
    (two_clusters, {"gap": 0.8, "region": "ellipsoid"}),
)
"""Families with constants chosen by hand."""


def fixed_cases() -> list[Case]:
    """Return the cases with constants chosen by hand."""
    return [family(**constants) for family, constants in FIXED]


def drawn_cases(seed: int) -> list[Case]:
    """Return one case of every family, with constants drawn at random."""
    rng = np.random.default_rng(seed)
    between = lambda low, high: float(f"{rng.uniform(low, high):.3g}")
    magnitude = lambda low, high: float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.3g}")
    size = lambda low, high: int(rng.integers(low, high + 1))
    choose = lambda *options: options[rng.integers(len(options))]
    drawn: list[tuple[Callable[..., Case], dict[str, Any]]] = [
        (conflict, {"loc": magnitude(0.2, 50), "scale": magnitude(0.01, 1), "n": size(30, 100)}),
        (conflict, {"loc": magnitude(0.2, 10), "scale": magnitude(0.02, 1), "prior": "laplace", "loss": "median"}),
        (conflict, {"loc": magnitude(1, 20), "scale": magnitude(0.1, 1), "prior": "student", "n": size(30, 100)}),
        (bound, {"mean": between(-0.4, 0.4), "region": choose("hpd", "interval 0")}),
        (bound, {"mean": between(-0.2, 0.3), "stated": False}),
        (narrow_bounds, {"width": magnitude(0.1, 1.5)}),
        (welsch, {"gap": between(0.8, 4), "width": between(0.4, 1), "share": between(0.5, 0.8)}),
        (narrow_well, {"width": magnitude(0.05, 0.5)}),
        (mirrored, {"mean": between(0.2, 3), "estimate": choose("mean", "mode")}),
        (wiggly, {"amplitude": between(0.1, 0.8), "frequency": between(3, 25)}),
        (cauchy, {"scale": magnitude(0.2, 2), "n": size(20, 100), "df": between(1, 3)}),
        (heavy_prior, {"df": between(1.2, 4), "n": size(15, 50)}),
        (threshold, {"n": size(40, 150), "accuracy": between(0.7, 0.95)}),
        (cusped, {"power": between(0.4, 0.9)}),
        (flat, {"tolerance": between(0.5, 3)}),
        (discrete, {"n": size(8, 40), "ones": size(3, 5), "level": choose(0.8, 0.9, 0.95)}),
        (tiny, {"n": size(3, 8), "loss": choose("squared", "median")}),
        (extreme_tau, {"tau": choose(between(0.01, 0.1), between(0.9, 0.99)), "df": between(2, 5)}),
        (huge, {"location": magnitude(1e4, 1e7), "scale": magnitude(0.1, 10), "loss": choose("squared", "median")}),
        (huge, {"location": 0.0, "scale": magnitude(1e-9, 1e9)}),
        (huge, {"location": magnitude(1e3, 1e6), "scale": magnitude(0.1, 10), "linear": False}),
        (poisson, {"mean": magnitude(10, 1e6), "overdispersion": between(0.5, 3)}),
        (waiting_times, {"shape": magnitude(0.4, 3), "region": choose("hpd", "interval 0")}),
        (regression, {"region": choose("hpd", "ellipsoid", "box", "simultaneous", "interval 0", "linear 1,5")}),
        (regression, {"first": between(100, 2500), "loss": choose("squared", "median"), "prior_scale": 1e4}),
        (two_clusters, {"gap": between(0.5, 2), "region": choose("hpd", "ellipsoid", "box")}),
    ]
    return [family(**constants) for family, constants in drawn]
