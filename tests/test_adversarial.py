"""A small part of the difficult models of `make validate`, most of which were once answered wrongly.

Cases share shapes of data and replicates where possible, so that few programs are compiled.
"""

import warnings

import jax
import pytest

import calibayes as cb
from benchmarks.validate.adversarial import families, run

CASES = {
    "prior in conflict with the data": families.conflict(loc=3.0, scale=0.03),
    "very informative prior": families.conflict(loc=0.0, scale=0.02),
    "location of 1e6": families.huge(location=1e6),
    "mode beyond a bound": families.bound(mean=-1.0),
    "Poisson counts near 1e6": families.poisson(mean=1e6),
    "few distinct replicates": families.discrete(n=12, ones=5, level=0.9),
    "y near 100 and a prior at zero": families.regression(offset=100.0, prior_scale=5.0),
}


@pytest.fixture(autouse=True)
def _user_settings():
    """Use the promotion rules that users have by default, and let calibrations warn."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", [name for name in CASES if name != "mode beyond a bound"])
def test_difficult_model_gets_the_exact_answer(name):
    line = run.check(CASES[name])
    assert line["verdict"] == "right", run.describe(line)
    if name == "few distinct replicates":
        assert cb.Code.LEVEL_NOT_ATTAINED in line["codes"]


def test_coverage_without_a_crossing_is_declined():
    """A sample mean far beyond a bound: every replicate covers at every learning rate."""
    line = run.check(CASES["mode beyond a bound"])
    assert line["verdict"] == "declined", run.describe(line)
    assert line["status"] == "NO_CROSSING"
    assert not line["has_answer"]
