"""A small part of the invalid and unusual input of `make inputs`, and the page about it."""

import jaxtyping
import numpy as np
import pytest

from benchmarks import robust_page
from benchmarks.inputs import __main__ as inputs
from benchmarks.inputs.invalid import calibrate
from benchmarks.inputs.outcome import attempt


@pytest.fixture(autouse=True)
def _without_type_checks(monkeypatch):
    """Disable the run-time type checks of the tests, which users do not have."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def test_invalid_arguments_are_rejected_before_compilation():
    outcome = inputs.check_invalid(400)
    assert sum(outcome["rejected"].values()) >= 400
    assert len(outcome["rejected"]) > 15
    assert outcome["messages"] > 50


@pytest.mark.filterwarnings("ignore")
def test_unusual_files_are_rejected_with_a_message_or_accepted():
    outcome = inputs.check_files(150)
    assert outcome["rejected"] > 50
    # The number depends on the loaded modules, from which Hypothesis takes constants.
    assert outcome["accepted"] > 0


def test_internal_errors_are_not_taken_for_rejections():
    assert attempt(lambda: np.ones(3).reshape(2)).kind == "wrong"
    assert attempt(lambda: int("a")).kind == "wrong"
    assert attempt(lambda: calibrate(level=2.0)).kind == "rejected"


def test_page_is_up_to_date():
    assert robust_page.PAGE.read_text() == robust_page.page_text(), "run make robust-page"
