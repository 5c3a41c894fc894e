"""Bootstrap replicates that are equal data sets."""

import numpy as np
import pytest

from calibayes.solve.ties import average_equal, label_equal_replicates

Y = np.array([0.0, 0.0, 1.0, 1.0, 1.0])


def test_replicates_with_the_same_observations_have_the_same_label():
    """They have as many ones; which of the equal observations were drawn does not matter."""
    counts = np.random.default_rng(0).multinomial(5, np.full(5, 0.2), size=200).astype(float)
    labels = label_equal_replicates({"y": Y}, counts)
    n_ones = counts @ Y
    for label in np.unique(labels):
        assert len(set(n_ones[labels == label])) == 1
    assert labels.max() + 1 == len(set(n_ones))


def test_distinct_replicates_have_no_labels():
    counts = np.random.default_rng(0).multinomial(50, np.full(50, 0.02), size=20).astype(float)
    assert label_equal_replicates((np.ones((50, 1)), np.arange(50.0)), counts) is None


@pytest.mark.parametrize("counts", [np.random.default_rng(0).dirichlet(np.ones(5), 10), "drawn on the fly"])
def test_weights_and_drawn_counts_are_taken_as_distinct(counts):
    assert label_equal_replicates(Y, counts) is None


def test_levels_of_equal_replicates_are_averaged():
    levels = np.array([[0.1, 0.3, 0.9], [0.5, 0.5, 0.2]])
    np.testing.assert_allclose(average_equal(levels, np.array([0, 0, 1])), [[0.2, 0.2, 0.9], [0.5, 0.5, 0.2]])
    np.testing.assert_array_equal(average_equal(levels, None), levels)
