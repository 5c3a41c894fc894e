"""What was done, in sentences that a paper could use. Plain text: whoever puts it on a page escapes it."""

from typing import Any

import numpy as np

from calibayes import bootstrap as bootstraps
from calibayes import losses, priors, regions, samplers
from calibayes.io import Written
from calibayes.report.source import source
from calibayes.report.verdict import audited, observations
from calibayes.result import Result


def done(result: Result) -> list[str]:
    """Paragraphs: what was asked, of what, and how it was found."""
    percent, count = level(result.level), f"{result.coverage.n_replicates:,}"
    asked = (
        f"The learning rate η of the generalized posterior exp(−η × risk) × prior was sought at which its {percent} "
        f"credible sets cover as often as they say. The sets are {region(result)}."
    )
    how = (
        f"Coverage is a share of {count} {_bootstrap(result)}: a sample is covered if its own {percent} set, from its "
        f"own posterior at η, holds {_estimate(result.settings.get('estimate'))} on the data. {_sampler(result)}"
    )
    return [part for part in (asked, _model(result), how) if part]


def level(value: float) -> str:
    return f"{100 * value:.4g}%"


def region(result: Result) -> str:
    kind = result.region
    known = {
        regions.HPD: "highest posterior density sets",
        regions.Ellipsoid: "ellipsoids around the posterior mean",
        regions.Box: "boxes, the product of the marginal intervals, each at the level",
        regions.Simultaneous: "boxes of marginal intervals, widened until they hold the level jointly",
    }
    if isinstance(kind, regions.Interval):
        return f"the equal-tailed intervals of one parameter, {result.names[kind.index]}"
    if isinstance(kind, regions.Functional):
        return f"the equal-tailed intervals of a function of the parameters, {source(kind.fn, 'the user’s own')}"
    if isinstance(kind, regions.Linear):
        return "the equal-tailed intervals of a linear combination of the parameters"
    return known.get(type(kind), f"given by {kind.name}")


def _model(result: Result) -> str:
    """Loss, prior and sizes, as far as they are known."""
    n, parameters = observations(result), _count(len(result.names), "parameter")
    sizes = f"There are {parameters}" + (f" and {n:,} observations." if n else ".")
    if result.settings.get("centred"):
        sizes += " To sample, columns were centred, and the prior is for that. The intercept that is reported is the "
        sizes += "prediction where every column is zero."
    if result.model is None:
        return sizes
    return f"The risk is the sum over observations of {_loss(result.model.loss)}; {_prior(result.model.prior)} {sizes}"


def _loss(loss: Any) -> str:
    match loss:
        case losses.Quantile():
            tau = source(loss.tau)
            return f"the check loss at τ = {tau}" + (", whose target is the median" if tau == "0.5" else "")
        case losses.Absolute():
            return "absolute errors"
        case losses.Squared():
            return "half squared errors"
        case losses.Huber():
            return f"Huber’s loss with δ = {source(loss.delta)}"
        case losses.Expectile():
            return f"the asymmetric squared error at τ = {source(loss.tau)}"
        case losses.Hinge():
            return "twice the hinge loss, as in a support vector machine"
        case losses.Logistic():
            return "the logistic loss"
        case losses.Generic():
            kind = "a loss" if loss.sign == 1 else "minus a log-likelihood"
            return f"{kind} of the user’s own" + _named(loss.fn)
        case losses.Linear():
            return "a loss of the linear prediction, of the user’s own" + _named(loss.fn)
    return f"the loss {type(loss).__name__}"


def _prior(prior: Any) -> str:
    names: dict[Any, str] = {
        priors.Normal: "normal",
        priors.Laplace: "Laplace",
        priors.StudentT: "Student t",
        priors.Uniform: "uniform",
    }
    if type(prior) not in names:
        return f"the prior is {type(getattr(prior, 'distribution', prior)).__name__}."
    words = {"loc": "location", "df": "degrees of freedom", "low": "lower end", "high": "upper end"}
    values = [f"{words.get(key, key)} {_values(value)}" for key, value in vars(prior).items()]
    return f"the prior is {names[type(prior)]}, independent over parameters, with {_list(values)}."


def _bootstrap(result: Result) -> str:
    given: Any = result.settings.get("bootstrap")
    match given:
        case bootstraps.Bayesian():
            return "samples of the Bayesian bootstrap"
        case bootstraps.Poisson():
            return "samples of the Poisson bootstrap"
        case bootstraps.Block(length=length):
            return f"samples of the block bootstrap (blocks of {length})"
        case bootstraps.Cluster(n_groups=groups):
            return f"bootstrap samples of whole clusters (of {groups})"
        case bootstraps.Multinomial(size=int(size)):
            return f"bootstrap samples of {size:,} observations each"
        case Written():
            return f"samples of the data, drawn by {given if len(given) < 60 else given.split('(')[0]}"
        case _ if np.ndim(given) == 2:
            return "reweighted samples of the data, with counts that were given"
    return "bootstrap samples of the data"


def _estimate(estimate: Any) -> str:
    known = {
        "mean": "the posterior mean",
        "mode": "the posterior mode",
        "minimizer": "the minimizer of the risk",
        None: "the estimate",
    }
    return known.get(estimate, "the user’s own estimate")


def _sampler(result: Result) -> str:
    match result.settings.get("sampler"):
        case samplers.Transport():
            text = "Draws of the posterior on the data were carried to every sample by affine maps and corrected by "
            text += "importance weights"
            seen = ", and an independent sampler checked some of the samples" if audited(result) else ""
            return f"{text}{seen}."
        case samplers.SMC(n_particles=n):
            return f"Every sample’s posterior was drawn by sequential Monte Carlo with {n:,} particles."
        case samplers.MCMC(n_draws=n):
            return f"Every sample’s posterior was drawn by a Markov chain of {n:,} kept draws."
    return ""


def _named(fn: Any) -> str:
    name = source(fn, "")
    return f" ({name})" if name else ""


def _values(value: Any) -> str:
    array = np.asarray(value)
    if array.ndim and np.ptp(array) == 0:
        array = array[0]
    return f"{array:.6g}" if array.ndim == 0 else f"from {array.min():.4g} to {array.max():.4g}"


def _list(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")
