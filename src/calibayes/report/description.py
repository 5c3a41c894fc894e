"""Describe a calibration in sentences that a paper could use.

The sentences are plain text; the caller escapes them for HTML. They depend on the types of the model's parts and on
the settings of the result.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibayes import bootstrap as bootstraps
from calibayes import losses, methods, priors, regions, samplers
from calibayes.io import StoredSetting
from calibayes.report.source import python_source
from calibayes.report.verdict import audit_passed, n_observations
from calibayes.result import Result
from calibayes.result.intervals import format_number, percent
from calibayes.result.wording import describe_data


@dataclass(frozen=True)
class DescriptionConfig:
    """Length of the sentences; display choices."""

    max_listed: int = 6
    """Number of predictors up to which the headline names them."""


CONFIG = DescriptionConfig()

_TITLES = {"Absolute": "Least absolute error", "Squared": "Least squares"}
"""Names of regressions that are not the name of the loss."""

_AS_WIDE = "the η stated is that of a posterior as wide as the reported draws"


def describe(result: Result) -> list[str]:
    """Return paragraphs about the question, the model and the computation."""
    level, n_replicates = percent(result.level), f"{result.coverage.n_replicates:,}"
    question = (
        f"The learning rate η of the generalized posterior exp(−η × risk) × prior was {_choice(result)}. The sets are "
        f"{_region(result)}.{_interval(result)}{_shape(result)}"
    )
    computation = (
        f"Coverage was estimated on {n_replicates} {_bootstrap(result)}: a replicate counts as covered if the {level} "
        f"set of its posterior at η contains {_estimate(result.settings.get('estimate'))} on the data. "
        f"{_sampler(result)}"
    )
    return [question, _model(result), computation.strip()]


def descriptions_to_store(result: Result) -> dict[str, str]:
    """Return the descriptions of objects that files do not store: of loss and prior, and of the bootstrap.

    A saved result has them as settings, and `describe` uses them if the result is loaded.
    """
    descriptions = {"bootstrap_description": _bootstrap(result)}
    return descriptions if result.model is None else descriptions | {"model_description": _loss_and_prior(result)}


def model_title(loss: losses.LinearLoss | losses.Cox) -> str:
    """Return the usual name of a model of columns with this loss."""
    match loss:
        case losses.Cox():
            return "Cox regression"
        case losses.Quantile():
            return "Median regression" if float(loss.tau) == 0.5 else f"{float(loss.tau):.3g} quantile regression"
        case losses.Expectile():
            return f"{float(loss.tau):.3g} expectile regression"
        case losses.Huber():
            return f"Huber regression (delta {float(loss.delta):.4g})"
        case losses.Hinge():
            return "Support vector machine"
        case losses.Linear():
            return "Linear model with a user-defined loss"
    name = type(loss).__name__
    return f"{_TITLES.get(name, name)} regression"


def default_title(result: Result) -> str:
    """Return the title of the report: the kind of model and its target."""
    title, target = result.settings.get("title"), result.settings.get("target")
    return f"{title.partition(' (')[0]} of {target}" if title and target else "Calibration report"


def headline(result: Result) -> str:
    """Return model, target, predictors and data of a linear model in one sentence; a general title for others."""
    settings, n = result.settings, n_observations(result)
    if settings.get("target") is None:
        return f"Calibration of {_count(len(result.names), 'parameter')}" + (f", {n:,} observations." if n else ".")
    classes = settings.get("classes")
    target = settings["target"] if classes is None else f"{settings['target']} = {classes[1]}"
    predictors = [f"“{name}”" if "," in name else name for name in result.names if name != "intercept"]
    listed = len(predictors) <= CONFIG.max_listed and not settings.get("formula")
    on = f" on {', '.join(predictors) if listed else _count(len(predictors), 'column')}" if predictors else ""
    rows = f", {n:,} rows" if n else ""
    file = f" of {settings['file']}" if rows and settings.get("file") else ""
    return f"{settings.get('title', 'Linear model')} of {target}{on}{rows}{file}."


def describe_table(result: Result) -> str:
    """Describe the table: formula, rows that were left out, weights, resampling and reference categories."""
    settings = result.settings
    sentences = []
    if settings.get("formula"):
        sentences.append(f"The formula is {settings['formula']}.")
    sentences += [f"{note[0].upper()}{note[1:]}." for note in settings.get("notes") or []]
    sentences += [f"The {label} are {text}." for label, text in describe_data(settings).items()]
    return " ".join(sentences)


def _choice(result: Result) -> str:
    """Describe how the learning rate was chosen."""
    method, level = result.settings.get("method"), percent(result.level)
    match method:
        case methods.DoubleGPC():
            return f"chosen such that its {level} credible sets have a coverage of {level} by a nested bootstrap"
        case methods.StudentizedGPC():
            return f"chosen such that its {level} credible sets, studentized, have a coverage of {level}"
        case methods.Matching():
            return "set where the posterior covariance matches the sandwich covariance, K / tr(H⁻¹J)"
        case methods.LyddonHolmesWalker():
            return "set by the information of the loss-likelihood bootstrap, tr(HJ⁻¹H) / tr(H)"
        case methods.HolmesWalker():
            return "set where the expected information of an observation is that of the model (Holmes and Walker)"
        case methods.SafeBayes(variant=variant):
            return f"set where the sequential predictions of the observations are best ({variant}-SafeBayes)"
        case methods.BayesBag(eta=eta):
            return f"replaced by the average of the posteriors of the replicates at η = {eta:g} (BayesBag); {_AS_WIDE}"
        case methods.PosteriorBootstrap():
            return f"replaced by the minimizers of the risk on the replicates (posterior bootstrap); {_AS_WIDE}"
        case methods.QPosterior():
            return f"replaced by a quadratic form of the gradients of the risk (Q-posterior); {_AS_WIDE}"
        case methods.Coarsened(alpha=alpha):
            return f"set to α / (α + n) with α = {alpha:g} (coarsened posterior)"
        case methods.Fixed():
            return "chosen by the user"
        case None | methods.GPC():
            return f"chosen such that its {level} credible sets have a coverage of {level}"
    return f"set by {method}"


def _shape(result: Result) -> str:
    if result.settings.get("shape") != "sandwich":
        return ""
    return " The draws were mapped around their mean to have the shape of the sandwich covariance."


def _region(result: Result) -> str:
    region = result.region
    names: dict[type[regions.Region], str] = {
        regions.HPD: "highest posterior density sets",
        regions.Ellipsoid: "ellipsoids around the posterior mean",
        regions.Box: "boxes, the product of the marginal intervals, each at the level",
        regions.Simultaneous: "boxes of marginal intervals whose joint posterior probability is the level",
        regions.Linear: "the equal-tailed intervals of a linear combination of the parameters",
    }
    if isinstance(region, regions.Interval):
        return f"the equal-tailed intervals of one parameter, {result.names[region.index]}"
    if isinstance(region, regions.Functional):
        name = python_source(region.fn, "defined by the user")
        return f"the equal-tailed intervals of a function of the parameters, {name}"
    return names.get(type(region), f"of the type {region.name}")


def _interval(result: Result) -> str:
    """State the interval of a function of the parameters that is not a parameter itself."""
    bounds = None if isinstance(result.region, regions.Interval) else result.region_interval()
    if bounds is None:
        return ""
    low, high = (format_number(bound, bounds[1] - bounds[0]) for bound in bounds)
    return f" The calibrated {percent(result.level)} interval is {low} to {high}."


def _model(result: Result) -> str:
    """Describe loss, prior and sizes."""
    n = n_observations(result)
    sizes = f"The model has {_count(len(result.names), 'parameter')}"
    sizes += f" and the data have {n:,} observations." if n else "."
    if result.settings.get("centred"):
        sizes += (
            " The columns were centred for sampling, and the prior applies to the centred model. The reported "
            "intercept is the prediction where every column is zero."
        )
    if result.model is not None:
        return f"{_loss_and_prior(result)} {sizes}"
    if "model_description" in result.settings:
        return f"{result.settings['model_description']} {sizes}"
    return f"{sizes} Loss and prior are not described here, because the result was saved without a description of them."


def _loss_and_prior(result: Result) -> str:
    assert result.model is not None
    loss = result.model.loss
    risk = f"The risk is the {_sum(result)} over observations of {_loss(loss)}"
    if isinstance(loss, losses.CountsRisk):
        risk = f"The risk is {_risk(loss)}"
    return f"{risk}; {_prior(result.model.prior)}"


def _risk(risk: losses.CountsRisk) -> str:
    match risk:
        case losses.Cox(ties=ties):
            return f"the negative log partial likelihood of Cox’s model, with {ties.capitalize()}’s treatment of ties"
        case losses.AUC(surrogate="none"):
            return "half the squared distance from the area under the ROC curve, times the number of observations"
        case losses.GMM():
            return "half the objective function of the generalized method of moments"
        case losses.MMD():
            return "the squared maximum mean discrepancy to a simulator, times the number of observations"
        case losses.Composite():
            return "the negative pairwise composite log-likelihood"
        case losses.FunctionRisk():
            return "a user-defined function of the counts" + _name_in_brackets(risk.fn)
    return f"the risk {type(risk).__name__}"


def _sum(result: Result) -> str:
    kinds = {"repetitions": "sum, weighted by numbers of repetitions,", "survey": "weighted sum"}
    return kinds.get(str(result.settings.get("weights")).strip("'"), "sum")


def _loss(loss: object) -> str:
    match loss:
        case losses.Quantile():
            tau = python_source(loss.tau)
            return f"the check loss at τ = {tau}" + (" (median regression)" if tau == "0.5" else "")
        case losses.Absolute():
            return "absolute errors"
        case losses.Squared():
            return "half squared errors"
        case losses.Huber():
            return f"Huber’s loss with δ = {python_source(loss.delta)}"
        case losses.Expectile():
            return f"the asymmetric squared error at τ = {python_source(loss.tau)}"
        case losses.Hinge():
            return "twice the hinge loss (a support vector machine in the form of Polson and Scott)"
        case losses.Logistic():
            return "the logistic loss"
        case losses.FisslerZiegel():
            return f"the Fissler–Ziegel loss for value at risk and expected shortfall at {python_source(loss.alpha)}"
        case losses.Generic():
            kind = "a user-defined loss" if loss.sign == 1 else "minus a user-defined log-likelihood"
            return kind + _name_in_brackets(loss.fn)
        case losses.Linear():
            return "a user-defined loss of the linear prediction" + _name_in_brackets(loss.fn)
    return f"the loss {type(loss).__name__}"


def _prior(prior: object) -> str:
    families: dict[Any, str] = {
        priors.Normal: "normal",
        priors.Laplace: "Laplace",
        priors.StudentT: "Student t",
        priors.Uniform: "uniform",
    }
    if type(prior) not in families:
        return f"the prior is {type(getattr(prior, 'distribution', prior)).__name__}."
    labels = {"loc": "location", "df": "degrees of freedom", "low": "lower bound", "high": "upper bound"}
    values = [f"{labels.get(name, name)} {_values(value)}" for name, value in vars(prior).items()]
    return f"the prior is {families[type(prior)]}, independent over parameters, with {_join(values)}."


def _bootstrap(result: Result) -> str:
    bootstrap: Any = result.settings.get("bootstrap")
    if "bootstrap_description" in result.settings:
        return str(result.settings["bootstrap_description"])
    match bootstrap:
        case bootstraps.Bayesian():
            return "replicates of the Bayesian bootstrap"
        case bootstraps.Poisson():
            return "replicates of the Poisson bootstrap"
        case bootstraps.Block() | bootstraps.Cluster() | bootstraps.Stratified():
            return f"bootstrap replicates, {describe_data(result.settings)['observations']}"
        case bootstraps.Multinomial(size=int(size)):
            return f"bootstrap replicates of {size:,} observations each"
        case StoredSetting():
            name = bootstrap if len(bootstrap) < 60 else bootstrap.split("(")[0]
            return f"replicates of the data, drawn by {name}"
        case _ if np.ndim(bootstrap) == 2:
            return "replicates of the data, with user-supplied counts"
    return "bootstrap replicates of the data"


def _estimate(estimate: Any) -> str:
    names = {
        "mean": "the posterior mean",
        "mode": "the posterior mode",
        "minimizer": "the minimizer of the risk",
        None: "the estimate",
    }
    return names.get(estimate, "the user-defined estimate")


def _sampler(result: Result) -> str:
    match result.settings.get("sampler"):
        case samplers.Transport():
            text = "Posterior draws on the data were carried to every replicate by an affine map and corrected by "
            text += "importance weights"
            audit = "; an independent sampler agreed on a subset of the replicates" if audit_passed(result) else ""
            return f"{text}{audit}."
        case samplers.SMC(n_particles=n):
            return f"The posterior of every replicate was sampled by sequential Monte Carlo with {n:,} particles."
        case samplers.MCMC(n_draws=n):
            return f"The posterior of every replicate was sampled by a Markov chain of {n:,} draws after warm-up."
    return ""


def _name_in_brackets(fn: object) -> str:
    name = python_source(fn, "")
    return f" ({name})" if name else ""


def _values(value: object) -> str:
    array = np.asarray(value)
    if array.ndim and np.ptp(array) == 0:
        array = array[0]
    return f"{array:.6g}" if array.ndim == 0 else f"from {array.min():.4g} to {array.max():.4g}"


def _join(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")
