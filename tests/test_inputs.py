"""A thin slice of the bad input that `make inputs` tries in bulk; and the page is what is stored."""

import jaxtyping
import pytest
from benchmarks import robust
from benchmarks.inputs import __main__ as inputs
from benchmarks.inputs.endings import attempt
from benchmarks.inputs.refused import calibrate


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch):
    """Without the type checker, or NumPy's and JAX's usual rules for types."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def test_wrong_arguments_are_refused_before_anything_is_compiled():
    found = inputs.refusals(400)
    assert sum(found["refused"].values()) >= 400
    assert len(found["refused"]) > 15
    assert found["messages"] > 50


@pytest.mark.filterwarnings("ignore")
def test_odd_files_are_refused_in_a_sentence_or_found_in_order():
    found = inputs.files(150)
    assert found["refused"] > 50
    # How many depends on the modules that are loaded, from which Hypothesis takes constants.
    assert found["reached"] > 0


def test_errors_of_others_are_not_taken_for_ours():
    """Without this the tests above would prove nothing."""
    import numpy as np

    assert attempt(lambda: np.ones(3).reshape(2)).kind == "wrong"
    assert attempt(lambda: int("a")).kind == "wrong"
    assert attempt(lambda: calibrate(level=2.0)).kind == "refused"


def test_the_page_is_what_is_stored():
    page = robust.PAGE.read_text()
    assert page == robust.rebuilt(page)
