"""Intervals of many linear combinations, against a separate calibration of each and against a closed form."""

import numpy as np
import pytest

import calibayes as cb
from calibayes._core.curve import Curve
from calibayes.requery import Calibration, _Marginal
from calibayes.solve.marginals import CONFIG, is_inside
from calibayes.solve.problem import CoverageProblem, NotReachedError

VECTORS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 2.0], [1.0, -1.5]])


@pytest.fixture(scope="module")
def result():
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data = cb.datasets.median_regression(60, 0)
    return cb.calibrate(model, data, seed=0, bootstrap=200, progress=False)


def test_learning_rates_and_intervals_match_the_closed_form():
    """With squared error and a flat prior the posterior of a replicate is normal about its least-squares fit, with
    variance (X'WX)^-1 / eta. This gives the critical eta of each replicate, and eta is a quantile of those. Read off a
    curve around another eta, it has an error of 2 to 2.7% over seeds: 10% is four of those.
    """
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(60), rng.normal(size=60)])
    y = x @ [1.0, 2.0] + rng.standard_t(4, size=60)
    counts = rng.multinomial(60, np.full(60, 1 / 60), size=400)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=1000.0))
    intervals = cb.calibrate(model, (x, y), bootstrap=counts, seed=0, progress=False).intervals(of=VECTORS)
    centre = np.linalg.lstsq(x, y)[0]
    for r, vector in enumerate(VECTORS):
        critical = []
        for count in counts:
            inverse = np.linalg.inv(x.T @ (count[:, None] * x))
            distance = vector @ (inverse @ x.T @ (count * y) - centre)
            critical.append((1.95996 / distance) ** 2 * (vector @ inverse @ vector))
        low, high = np.sort(critical)[[19, 20]]
        eta = np.sqrt(low * high)
        assert intervals.eta[r] == pytest.approx(eta, rel=0.1)
        half = 1.95996 * np.sqrt(vector @ np.linalg.inv(x.T @ x) @ vector / eta)
        np.testing.assert_allclose(intervals.bounds[r], vector @ centre + [-half, half], atol=0.05 * half)


def test_answer_without_a_standard_error_is_not_inside(result):
    """If the order statistics of the standard error lie off the curve, the combination is calibrated separately."""
    curve = result.curve

    def truncated(k):
        return Curve(curve.etas[:k], curve.critical_levels[:k], curve.ess[:k], curve.level)

    shortest = max(k for k in range(2, 15) if np.isinf(truncated(k).eta_se()))
    assert not is_inside(truncated(shortest), result.eta)
    assert is_inside(curve, result.eta)


def test_simultaneous_calibration_agrees_with_separate_ones(result):
    """The replicates are the same, and the particles differ only where a search has moved them.

    Eta agrees to 0.4 of its standard error, and bounds to 6% of the width: about a thousand particles per replicate
    have an error of about 2% of the width.
    """
    together = result.intervals(of=VECTORS)
    for r, vector in enumerate(VECTORS):
        separate = result.at(region=cb.regions.Linear(vector))
        assert together.eta[r] == pytest.approx(separate.eta, abs=0.4 * separate.eta_se + 0.03 * separate.eta)
        bounds = np.quantile(separate.draws @ vector, [0.025, 0.975])
        np.testing.assert_allclose(together.bounds[r], bounds, atol=0.06 * np.diff(bounds)[0])
        assert together.eta_se[r] == pytest.approx(separate.eta_se, rel=0.6)
    assert together.converged.all()
    assert together.status == [cb.Status.CONVERGED] * len(VECTORS)


def test_answers_do_not_depend_on_the_number_of_combinations(result):
    """Batches are padded to a common size, which does not change the answers."""
    assert 10 * len(VECTORS) > CONFIG.batch > len(VECTORS)
    repeated = np.tile(VECTORS, (10, 1))
    many, few = result.intervals(of=repeated), result.intervals(of=VECTORS)
    np.testing.assert_allclose(many.eta, np.tile(few.eta, 10), rtol=1e-5)
    np.testing.assert_allclose(many.bounds, np.tile(few.bounds, (10, 1)), rtol=1e-4, atol=1e-5)


def test_default_combinations_are_the_parameters(result):
    intervals = result.intervals()
    np.testing.assert_allclose(intervals.bounds, result.intervals(of=np.eye(2)).bounds, rtol=1e-6)
    assert intervals.names == result.names
    assert intervals.eta[0] != intervals.eta[1]


def test_linear_region_of_a_unit_vector_is_an_interval(result):
    assert result.at(region=cb.regions.Linear([0.0, 1.0])).eta == result.at(region=cb.regions.Interval(1)).eta


def test_learning_rate_does_not_depend_on_the_scale_of_a_combination(result):
    a, b = result.intervals(of=[[1.0, 2.0]]), result.intervals(of=[[-10.0, -20.0]])
    assert a.eta[0] == pytest.approx(b.eta[0], rel=1e-3)
    np.testing.assert_allclose(-10 * a.bounds[0, ::-1], b.bounds[0], rtol=2e-3)


@pytest.mark.slow
def test_combinations_off_all_curves_are_calibrated_separately(result, monkeypatch):
    together = result.intervals(of=VECTORS)
    monkeypatch.setattr("calibayes.requery.is_inside", lambda curve, eta: False)
    separate = result.intervals(of=VECTORS)
    assert (separate.eta != together.eta).any()
    np.testing.assert_allclose(separate.eta, together.eta, rtol=0.1)


@pytest.mark.parametrize("of", [[1.0, 0.0], [[1.0]], [[1.0, np.nan]]])
def test_invalid_combinations_are_rejected(result, of):
    with pytest.raises(ValueError, match=r"rows of 2 numbers|2 finite numbers"):
        result.intervals(of=of)


def test_particles_are_moved_towards_distant_combinations(result, monkeypatch):
    """If the first particles are too far from all answers, they are moved. The answers agree to a tenth of eta."""
    near, first_eta, etas = result.intervals(of=VECTORS), result.calibration.iterate.sampled_eta, []

    def is_inside_elsewhere(curve, eta):
        etas.append(eta)
        return eta != first_eta and is_inside(curve, eta)

    monkeypatch.setattr("calibayes.requery.is_inside", is_inside_elsewhere)
    moved = result.intervals(of=VECTORS)
    assert etas[0] == first_eta
    assert etas[-1] != first_eta
    np.testing.assert_allclose(moved.eta, near.eta, rtol=0.1)
    # In units of the width of each interval.
    width = np.diff(near.bounds)
    np.testing.assert_allclose(moved.bounds / width, near.bounds / width, rtol=0, atol=0.08)
    assert moved.converged.all()


def test_combinations_whose_learning_rate_is_not_reached_are_calibrated_separately(result, monkeypatch):
    """If the sampler does not reach the learning rate that the particles are moved to, no further move is made."""
    etas, separate = [], []

    def not_reached(self, state, eta, *, refined=False):
        etas.append(eta)
        raise NotReachedError("not reached")

    def answer_alone(self, level, vector):
        separate.append(vector)
        return _Marginal(np.zeros(2), 1.0, 0.1, cb.Status.CONVERGED, [])

    monkeypatch.setattr("calibayes.requery.is_inside", lambda curve, eta: False)
    monkeypatch.setattr(CoverageProblem, "evaluate", not_reached)
    monkeypatch.setattr(Calibration, "_answer_alone", answer_alone)
    result.intervals(of=VECTORS)
    assert len(etas) == 1
    np.testing.assert_array_equal(separate, VECTORS)
