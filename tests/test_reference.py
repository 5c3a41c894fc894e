"""Every sampler on the reference problems, whose critical etas are stored (`benchmarks/validate/reference.py`)."""

import json
import warnings

import jax
import numpy as np
import pytest

import calibayes as cb
from benchmarks.validate import reference
from benchmarks.validate.adversarial.run import tolerance

DEFAULT = ["normal location, prior in conflict", "median regression, hpd", "median regression, slope"]
"""Problems that share programs with other tests."""
OTHERS = [name for name in reference.PROBLEMS if name not in DEFAULT]


@pytest.fixture(autouse=True)
def _user_settings():
    """Use the promotion rules that users have by default, and let calibrations warn."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def assert_covers(name, sampler, n_replicates, extra=0.0, **options):
    """Assert that the exact coverage at the reported eta is the level, up to Monte Carlo error and `extra`."""
    problem = reference.load(name)
    case, critical_etas = problem.case, problem.critical_etas[:n_replicates]
    counts = case.exact.counts[:n_replicates]
    result = cb.calibrate(
        case.model,
        case.data,
        level=case.level,
        region=case.library_region,
        bootstrap=counts,
        sampler=sampler,
        seed=0,
        progress=False,
        **options,
    )
    assert result.converged, result.message
    coverage = np.mean(critical_etas >= result.eta)
    allowed = tolerance(case._replace(exact=case.exact._replace(counts=counts))) + extra
    assert abs(coverage - case.level) <= allowed, (result.eta, problem.eta, coverage)


@pytest.mark.parametrize("name", [*DEFAULT, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_default_sampler(name):
    assert_covers(name, "auto", 400)


@pytest.mark.slow
@pytest.mark.parametrize("name", reference.PROBLEMS)
def test_smc(name):
    assert_covers(name, "smc", 400)


@pytest.mark.slow
@pytest.mark.parametrize("name", reference.PROBLEMS)
def test_mcmc(name):
    """On 100 replicates, from near the solution; the search stops within 0.02 of the level."""
    eta = reference.load(name).eta
    assert_covers(name, cb.MCMC(n_draws=10_000), 100, 0.02, eta_init=1.2 * eta, tolerance=0.02)


@pytest.mark.parametrize("name", reference.PROBLEMS)
def test_stored_critical_etas_agree_with_integration(name):
    """At the solution, sets of replicates with a smaller critical eta miss the estimate, those of others contain it.

    Checked for the 40 replicates with the smallest critical etas, 20 on each side. Critical etas are interpolated, so
    that those within 2% are left out.
    """
    problem = reference.load(name)
    smallest = np.argsort(problem.critical_etas)[:40]
    stored, case = problem.critical_etas[smallest], problem.case
    levels = case._replace(exact=case.exact._replace(counts=case.exact.counts[smallest])).exact.critical_levels(
        problem.eta, case.region, case.estimate
    )
    clear = np.abs(np.log(stored / problem.eta)) > 0.02
    assert ((levels <= case.level) == (stored >= problem.eta))[clear].all()
    assert (stored[clear] < problem.eta).sum() >= 10


def test_problems_are_stored_with_their_code():
    stored = json.loads(reference.FILE.read_text())
    assert list(stored) == list(reference.PROBLEMS)
    for name, (family, constants) in reference.PROBLEMS.items():
        assert (stored[name]["family"], stored[name]["constants"]) == (family.__name__, constants)
        assert reference.load(name).coverage(reference.load(name).eta) == pytest.approx(0.95, abs=0.003)
