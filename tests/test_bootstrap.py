"""Bootstraps against the closed forms of their first two moments."""

import jax
import jaxtyping
import numpy as np
import pytest

from calibayes.bootstrap import Bayesian, Block, Cluster, Multinomial, Poisson, replicate_keys

N = 7
ROWS = 20_000
GROUPS = np.array([0, 1, 0, 2, 1, 0, 2])


def block_covariance(length, circular):
    """By enumeration of the starts: whole blocks and a last one cut short, all independent."""
    starts = range(N if circular else N - length + 1)

    def of_one(size):
        counts = np.zeros((len(starts), N))
        for start in starts:
            for step in range(size):
                counts[start, (start + step) % N] += 1
        centred = counts - counts.mean(0)
        return centred.T @ centred / len(starts)

    whole, rest = divmod(N, length)
    return whole * of_one(length) + of_one(rest)


EYE, ONES = np.eye(N), np.ones((N, N))
CASES = {
    "multinomial": (Multinomial, {}, EYE - ONES / N),
    "bayesian": (Bayesian, {}, (N * EYE - ONES) / (N + 1)),  # N^2 times Dirichlet's
    "poisson": (Poisson, {}, EYE),
    "circular 3": (Block, {"length": 3}, block_covariance(3, True)),
    "circular 1": (Block, {"length": 1}, EYE - ONES / N),
    "circular 7": (Block, {"length": 7}, 0 * ONES),
    "moving 3": (Block, {"length": 3, "circular": False}, block_covariance(3, False)),
    "moving 2": (Block, {"length": 2, "circular": False}, block_covariance(2, False)),
    "cluster": (Cluster, {"groups": GROUPS}, (GROUPS[:, None] == GROUPS) - ONES / 3),
}


def make(name, n_replicates):
    kind, options, _ = CASES[name]
    return kind(n_replicates, **options)


@pytest.fixture(scope="module")
def drawn(key):
    return {name: np.asarray(make(name, ROWS).counts(key, N), float) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_every_observation_is_expected_once(drawn, name):
    """Five standard errors of a mean of the known variance; 1e-5 for sums in float32."""
    counts = drawn[name]
    assert counts.shape == (ROWS, N)
    error = np.sqrt(np.diag(CASES[name][2]) / ROWS)
    assert (np.abs(counts.mean(0) - 1) < 5 * error + 1e-5).all()


@pytest.mark.parametrize("name", CASES)
def test_covariance(drawn, name):
    """About the known mean 1 each entry is a mean of products: five of its standard errors, as found."""
    centred = drawn[name] - 1
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(0) / np.sqrt(ROWS)
    assert (np.abs(products.mean(0) - CASES[name][2]) < 5 * error + 1e-5).all()


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("poisson", "cluster")])
def test_rows_sum_to_n(drawn, name):
    np.testing.assert_allclose(drawn[name].sum(1), N, rtol=1e-6)


@pytest.mark.parametrize("name", ["multinomial", "poisson", "circular 3", "cluster"])
def test_counts_are_whole_numbers(drawn, name):
    counts = drawn[name]
    assert (counts == np.round(counts)).all()
    assert counts.min() == 0
    assert counts.max() > 1


@pytest.mark.parametrize(("size", "rate"), [(2, 0.5), (3, 1 / 3), (N, 1 / 3), (5, 0.1)])
def test_m_out_of_n(size, rate, key):
    """Multinomial counts of m draws, times a scale at which eta = N^(2 gamma - 1) on a row makes m^(2 gamma) in all.

    That is a posterior of width m^-gamma, that of the minimiser on m observations. Five standard errors, as above.
    """
    counts = np.asarray(Multinomial(ROWS, size, rate).counts(key, N), float)
    np.testing.assert_allclose(counts.sum(1) * N ** (2 * rate - 1), size ** (2 * rate), rtol=1e-6)
    assert (np.abs(counts.mean(0) - (size / N) ** (2 * rate)) < 5 * counts.std(0) / np.sqrt(ROWS) + 1e-5).all()
    scale = (N / size) ** (1 - 2 * rate)
    drawn = counts / scale
    np.testing.assert_allclose(drawn, drawn.round(), atol=1e-5)
    centred = drawn - size / N
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(0) / np.sqrt(ROWS)
    assert (np.abs(products.mean(0) - size / N * (EYE - ONES / N)) < 5 * error + 1e-5).all()
    np.testing.assert_array_equal(np.asarray(Multinomial(5, size, rate).counts(key, N), float), counts[:5])


@pytest.mark.parametrize("options", [{}, {"size": N}, {"rate": 1 / 3}], ids=str)
def test_n_out_of_n_is_efrons(options, key):
    """The row's own N draws, counted: the same numbers, whatever the rate, as before there was a `size`."""
    counts = np.asarray(Multinomial(20, **options).counts(key, N))
    for b, row in enumerate(counts):
        indices = jax.random.randint(jax.random.fold_in(key, b), (N,), 0, N)
        np.testing.assert_array_equal(row, np.bincount(indices, minlength=N))


@pytest.mark.parametrize("size", [1, 0, -3, N + 1, 3.0, True])
def test_size_within_the_data(size, key, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # else the type checker is first to complain
    with pytest.raises(ValueError, match=rf"size of a bootstrap sample must be .* from 2 to N = {N}; got {size}"):
        Multinomial(50, size).counts(key, N)


@pytest.mark.parametrize("rate", [0.0, -0.5, 0.51, 1.0, float("nan")])
def test_rate_of_an_estimator(rate, key):
    with pytest.raises(ValueError, match=rf"rate must be above 0 and at most 1/2.*got {rate}"):
        Multinomial(50, 3, rate).counts(key, N)


def test_bayesian_leaves_nothing_out(drawn):
    """A weight below x has probability 1 - (1 - x / N)^(N - 1): the marginal is a scaled Beta(1, N - 1)."""
    counts = drawn["bayesian"]
    assert counts.min() > 0
    for x in (0.1, 0.5, 2.0):
        expected = 1 - (1 - x / N) ** (N - 1)
        error = np.sqrt(expected * (1 - expected) / ROWS)
        assert abs((counts[:, 0] < x).mean() - expected) < 4 * error


def test_poisson_probabilities(drawn):
    for count, expected in enumerate(np.exp(-1) / np.array([1, 1, 2, 6])):
        share = (drawn["poisson"][:, 2] == count).mean()
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / ROWS)


def test_members_of_a_cluster_share_their_count(drawn):
    counts = drawn["cluster"]
    for group in range(3):
        of_group = counts[:, group == GROUPS]
        assert (of_group == of_group[:, :1]).all()
    # Three draws of three groups.
    assert (counts[:, [0, 1, 3]].sum(1) == 3).all()


@pytest.mark.parametrize(
    "labels", [10 * GROUPS - 5, np.array(["b", "c", "a"])[GROUPS], list(GROUPS)], ids=["gaps", "text", "list"]
)
def test_labels_of_clusters_are_only_names(labels, key):
    """Whatever they are called, three clusters are drawn three times."""
    counts = np.asarray(Cluster(50, labels).counts(key, N))
    assert (counts[:, [0, 1, 3]].sum(1) == 3).all()
    assert (counts[:, [0, 1, 3]] == counts[:, [5, 4, 6]]).all()
    assert np.ptp(counts) >= 2


@pytest.mark.parametrize("name", CASES)
def test_row_does_not_depend_on_the_number_of_rows(drawn, name, key):
    few = make(name, 5).counts(key, N)
    np.testing.assert_array_equal(np.asarray(few, float), drawn[name][:5])


def test_row_keys_are_folded_in(key):
    for b, row_key in enumerate(replicate_keys(key, 3)):
        assert (jax.random.key_data(row_key) == jax.random.key_data(jax.random.fold_in(key, b))).all()


@pytest.mark.parametrize("name", [name for name in CASES if name != "circular 7"])
def test_rows_and_keys_differ(drawn, name):
    counts = drawn[name]
    assert len(np.unique(counts[:50].round(4), axis=0)) > 5
    other = make(name, 5).counts(jax.random.key(1), N)
    assert (np.asarray(other, float) != counts[:5]).any()


@pytest.mark.parametrize("length", [0, -1, N + 1])
@pytest.mark.parametrize("circular", [True, False])
def test_block_length_within_the_series(length, circular, key):
    with pytest.raises(ValueError, match=rf"length of a block must be between 1 and N = {N}; got {length}"):
        Block(50, length, circular).counts(key, N)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.array([0, 1, 0]), r"groups must hold one label for each of 7 observations; got \(3,\)"),
        (np.zeros(N, int), "groups must name at least two clusters"),
    ],
)
def test_cluster_errors(groups, message, key):
    with pytest.raises(ValueError, match=message):
        Cluster(50, groups).counts(key, N)
