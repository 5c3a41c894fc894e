"""Bootstrap schemes against closed forms of their first two moments."""

import jax
import jaxtyping
import numpy as np
import pandas as pd
import pytest

from calibayes.bootstrap import (
    Bayesian,
    Block,
    Cluster,
    Multinomial,
    Poisson,
    Stratified,
    _integers,
    _random_words,
    replicate_keys,
)

N = 7
N_REPLICATES = 20_000
GROUPS = np.array([0, 1, 0, 2, 1, 0, 2])
STRATA = np.array([0, 1, 0, 1, 1, 0, 1])
CLUSTERS = np.array([0, 2, 1, 3, 2, 0, 4])
"""Two clusters in the first stratum and three in the second."""


def block_covariance(length, circular):
    """Enumerate the starts: independent full blocks and one truncated block."""
    starts = range(N if circular else N - length + 1)

    def one_block_covariance(size):
        counts = np.zeros((len(starts), N))
        for start in starts:
            for step in range(size):
                counts[start, (start + step) % N] += 1
        centred = counts - counts.mean(0)
        return centred.T @ centred / len(starts)

    n_full, remainder = divmod(N, length)
    return n_full * one_block_covariance(length) + one_block_covariance(remainder)


def stratified_covariance(groups):
    """The unbiased covariance of a sum of n units of a stratum, n / (n - 1) times that of n draws of n."""
    covariance = np.zeros((N, N))
    for stratum in np.unique(STRATA):
        members = np.flatnonzero(stratum == STRATA)
        n_units = len(np.unique(groups[members]))
        same = groups[members][:, None] == groups[members]
        covariance[np.ix_(members, members)] = n_units / (n_units - 1) * (same - 1 / n_units)
    return covariance


EYE, ONES = np.eye(N), np.ones((N, N))
CASES = {
    "multinomial": (Multinomial, {}, EYE - ONES / N),
    "bayesian": (Bayesian, {}, (N * EYE - ONES) / (N + 1)),  # N^2 times the covariance of a Dirichlet variable
    "poisson": (Poisson, {}, EYE),
    "circular 3": (Block, {"length": 3}, block_covariance(3, True)),
    "circular 1": (Block, {"length": 1}, EYE - ONES / N),
    "circular 7": (Block, {"length": 7}, 0 * ONES),
    "moving 3": (Block, {"length": 3, "circular": False}, block_covariance(3, False)),
    "moving 2": (Block, {"length": 2, "circular": False}, block_covariance(2, False)),
    "cluster": (Cluster, {"groups": GROUPS}, (GROUPS[:, None] == GROUPS) - ONES / 3),
    "stratified": (Stratified, {"strata": STRATA}, stratified_covariance(np.arange(N))),
    "cluster in strata": (Cluster, {"groups": CLUSTERS, "strata": STRATA}, stratified_covariance(CLUSTERS)),
}


def make(name, n_replicates):
    kind, options, _ = CASES[name]
    return kind(n_replicates, **options)


@pytest.fixture(scope="module")
def replicates(key):
    return {name: np.asarray(make(name, N_REPLICATES).counts(key, N), float) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_expected_count_is_one(replicates, name):
    """Tolerance: five standard errors of the mean, and 1e-5 for sums in float32."""
    counts = replicates[name]
    assert counts.shape == (N_REPLICATES, N)
    error = np.sqrt(np.diag(CASES[name][2]) / N_REPLICATES)
    assert (np.abs(counts.mean(0) - 1) < 5 * error + 1e-5).all()


@pytest.mark.parametrize("name", CASES)
def test_counts_have_the_exact_covariance(replicates, name):
    """Tolerance: five empirical standard errors of the mean of products about the known mean 1."""
    centred = replicates[name] - 1
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(0) / np.sqrt(N_REPLICATES)
    assert (np.abs(products.mean(0) - CASES[name][2]) < 5 * error + 1e-5).all()


@pytest.mark.parametrize("name", [name for name in CASES if name != "poisson" and "cluster" not in name])
def test_counts_of_a_replicate_sum_to_n(replicates, name):
    np.testing.assert_allclose(replicates[name].sum(1), N, rtol=1e-6)


@pytest.mark.parametrize("name", ["multinomial", "poisson", "circular 3", "cluster"])
def test_counts_are_integers(replicates, name):
    counts = replicates[name]
    assert (counts == np.round(counts)).all()
    assert counts.min() == 0
    assert counts.max() > 1


@pytest.mark.parametrize(("size", "rate"), [(2, 0.5), (3, 1 / 3), (N, 1 / 3), (5, 0.1)])
def test_m_out_of_n_counts_are_scaled_by_the_rate(size, rate, key):
    """Counts are multinomial times a scale such that eta = N^(2 gamma - 1) times the sum of counts is m^(2 gamma).

    The posterior then has width m^-gamma, like the minimiser on m observations. Tolerances as above.
    """
    counts = np.asarray(Multinomial(N_REPLICATES, size, rate).counts(key, N), float)
    np.testing.assert_allclose(counts.sum(1) * N ** (2 * rate - 1), size ** (2 * rate), rtol=1e-6)
    assert (np.abs(counts.mean(0) - (size / N) ** (2 * rate)) < 5 * counts.std(0) / np.sqrt(N_REPLICATES) + 1e-5).all()
    scale = (N / size) ** (1 - 2 * rate)
    unscaled = counts / scale
    np.testing.assert_allclose(unscaled, unscaled.round(), atol=1e-5)
    centred = unscaled - size / N
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(0) / np.sqrt(N_REPLICATES)
    assert (np.abs(products.mean(0) - size / N * (EYE - ONES / N)) < 5 * error + 1e-5).all()
    np.testing.assert_array_equal(np.asarray(Multinomial(5, size, rate).counts(key, N), float), counts[:5])


@pytest.mark.parametrize("options", [{}, {"size": N}, {"rate": 1 / 3}], ids=str)
def test_n_out_of_n_counts_n_draws_with_replacement(options, key):
    """At size N the rate has no effect."""
    counts = np.asarray(Multinomial(20, **options).counts(key, N))
    for b, replicate in enumerate(counts):
        indices = jax.random.randint(jax.random.fold_in(key, b), (N,), 0, N)
        np.testing.assert_array_equal(replicate, np.bincount(indices, minlength=N))


@pytest.mark.parametrize("n", [7, 257, 70_001])
@pytest.mark.parametrize("name", [name for name in CASES if name != "circular 7"])
def test_counts_of_all_replicates_are_those_of_each_replicate(name, n, key):
    """Drawn for a padded number of observations, or one by one. Sums of Bayesian weights are rounded differently."""
    kind, options, _ = CASES[name]
    resized = {key: np.resize(value, n) if np.ndim(value) else value for key, value in options.items()}
    scheme = kind(3, **resized)
    counts = np.asarray(scheme.counts(key, n))
    for replicate_key, row in zip(replicate_keys(key, 3), counts, strict=True):
        np.testing.assert_allclose(row, scheme.replicate(replicate_key, n), rtol=1e-5 * (name == "bayesian"))


@pytest.mark.parametrize("limit", [1, 2, 6, 100, 65_536, 65_537, 10**6, 2**31 - 1])
def test_integers_are_those_of_jax_random(limit, key):
    words = np.asarray(_random_words(500, key))
    np.testing.assert_array_equal(_integers(words, limit), jax.random.randint(key, (500,), 0, limit))


def test_a_subclass_may_define_its_own_replicates(key):
    class Doubled(Multinomial):
        def replicate(self, key, n):
            return 2 * super().replicate(key, n)

    np.testing.assert_array_equal(Doubled(5).counts(key, N), 2 * Multinomial(5).counts(key, N))


@pytest.mark.parametrize("size", [1, 0, -3, N + 1, 3.0, True])
def test_size_must_be_an_integer_from_2_to_n(size, key, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # otherwise the type checker raises first
    with pytest.raises(ValueError, match=rf"size of a bootstrap sample must be .* from 2 to N = {N}; got {size}"):
        Multinomial(50, size).counts(key, N)


@pytest.mark.parametrize("rate", [0.0, -0.5, 0.51, 1.0, float("nan")])
def test_rate_must_be_in_0_to_one_half(rate, key):
    with pytest.raises(ValueError, match=rf"rate must be above 0 and at most 1/2.*got {rate}"):
        Multinomial(50, 3, rate).counts(key, N)


def test_bayesian_weights_are_positive_and_scaled_beta(replicates):
    """The marginal distribution is a scaled Beta(1, N - 1), with distribution function 1 - (1 - x / N)^(N - 1)."""
    counts = replicates["bayesian"]
    assert counts.min() > 0
    for x in (0.1, 0.5, 2.0):
        expected = 1 - (1 - x / N) ** (N - 1)
        error = np.sqrt(expected * (1 - expected) / N_REPLICATES)
        assert abs((counts[:, 0] < x).mean() - expected) < 4 * error


def test_poisson_counts_have_poisson_probabilities(replicates):
    for count, expected in enumerate(np.exp(-1) / np.array([1, 1, 2, 6])):
        share = (replicates["poisson"][:, 2] == count).mean()
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / N_REPLICATES)


def test_members_of_a_cluster_share_their_count(replicates):
    counts = replicates["cluster"]
    for group in range(3):
        members = counts[:, group == GROUPS]
        assert (members == members[:, :1]).all()
    # Three clusters are drawn three times.
    assert (counts[:, [0, 1, 3]].sum(1) == 3).all()


@pytest.mark.parametrize(
    "labels", [10 * GROUPS - 5, np.array(["b", "c", "a"])[GROUPS], list(GROUPS)], ids=["gaps", "text", "list"]
)
def test_cluster_labels_may_be_of_any_type(labels, key):
    """Three clusters are drawn three times, whatever their labels."""
    counts = np.asarray(Cluster(50, labels).counts(key, N))
    assert (counts[:, [0, 1, 3]].sum(1) == 3).all()
    assert (counts[:, [0, 1, 3]] == counts[:, [5, 4, 6]]).all()
    assert np.ptp(counts) >= 2


DATES = pd.to_datetime(["2020-01-01", "2020-01-02", None, "2020-01-01"])
MISSING = {
    "NaN": np.array([1.0, np.nan, 2.0, 1.0]),
    "None": [None, "a", "b", "a"],
    "NaN among texts": [np.nan, "a", "b", "a"],
    "NaN among objects": np.array([np.nan, 1, 2, 1], object),
    "NaT": DATES,
    "NaT in a series": pd.Series(DATES),
    "NaT in an array": np.array(DATES),
    "NaT among objects": np.array(DATES, object),
    "NaT of timedelta": DATES - DATES[0],
    "NA": [pd.NA, "a", "b", "a"],
    "NA of texts": pd.array(["a", None, "b", "a"], dtype="string"),
    "NA of integers": pd.array([1, None, 2, 1], dtype="Int64"),
    "category": pd.Categorical(["a", None, "b", "a"]),
}


@pytest.mark.parametrize("labels", MISSING.values(), ids=MISSING)
def test_missing_cluster_labels_are_rejected(labels):
    with pytest.raises(ValueError, match="groups must have a label for every observation; 1 are missing"):
        Cluster(50, labels)


@pytest.mark.parametrize("labels", [DATES.fillna(DATES[1]), [date.date() for date in DATES.fillna(DATES[1])]])
def test_cluster_labels_may_be_dates(labels):
    assert Cluster(50, labels).n_groups == 2


@pytest.mark.parametrize("name", CASES)
def test_replicate_does_not_depend_on_the_number_of_replicates(replicates, name, key):
    first = make(name, 5).counts(key, N)
    np.testing.assert_array_equal(np.asarray(first, float), replicates[name][:5])


def test_replicate_keys_are_folded_in(key):
    for b, replicate_key in enumerate(replicate_keys(key, 3)):
        assert (jax.random.key_data(replicate_key) == jax.random.key_data(jax.random.fold_in(key, b))).all()


@pytest.mark.parametrize("name", [name for name in CASES if name != "circular 7"])
def test_replicates_differ_within_and_between_keys(replicates, name):
    counts = replicates[name]
    assert len(np.unique(counts[:50].round(4), axis=0)) > 5
    other = make(name, 5).counts(jax.random.key(1), N)
    assert (np.asarray(other, float) != counts[:5]).any()


@pytest.mark.parametrize("length", [0, -1, N + 1])
@pytest.mark.parametrize("circular", [True, False])
def test_block_length_must_not_exceed_the_series(length, circular, key):
    with pytest.raises(ValueError, match=rf"length of a block must be between 1 and N = {N}; got {length}"):
        Block(50, length, circular).counts(key, N)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.array([0, 1, 0]), r"groups must hold one label for each of 7 observations; got \(3,\)"),
        (np.zeros(N, int), "groups must name at least two clusters"),
    ],
)
def test_invalid_groups_are_rejected(groups, message, key):
    with pytest.raises(ValueError, match=message):
        Cluster(50, groups).counts(key, N)


def test_strata_with_one_unit_are_rejected():
    with pytest.raises(ValueError, match="1 of 2 strata have only one observation"):
        Stratified(50, [0, 0, 0, 0, 0, 0, 1]).counts(jax.random.key(0), N)
    with pytest.raises(ValueError, match="1 of 2 strata have only one cluster"):
        Cluster(50, [0, 0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 1, 1, 1]).counts(jax.random.key(0), N)


def test_clusters_must_lie_in_one_stratum():
    with pytest.raises(ValueError, match="a cluster lies in more than one stratum"):
        Cluster(50, GROUPS, STRATA + (GROUPS == 2) * [0, 0, 0, 1, 0, 0, 0])
    with pytest.raises(ValueError, match="strata must hold one label for each of 7 observations; got 6"):
        Cluster(50, GROUPS, STRATA[:6])
