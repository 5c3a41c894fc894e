"""Intervals of many linear combinations, against a calibration of each and against a closed form."""

import numpy as np
import pytest

import calibayes as cb
from calibayes._core.curve import Curve
from calibayes.solve.combinations import answered

VECTORS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 2.0], [1.0, -1.5]])


@pytest.fixture(scope="module")
def result():
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data = cb.datasets.median_regression(60, 0)
    return cb.calibrate(model, data, seed=0, bootstrap=200, progress=False)


def test_closed_form():
    """Squared error, flat prior: on every row the posterior is normal, about its least squares, with a variance of
    (X'WX)^-1 / eta. So the critical eta of each row is known, and eta is their quantile. Particles miss it by
    2 to 2.7%, over seeds, where it is read off a curve about another eta: 10% is four of those.
    """
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(60), rng.normal(size=60)])
    y = x @ [1.0, 2.0] + rng.standard_t(4, size=60)
    counts = rng.multinomial(60, np.full(60, 1 / 60), size=400)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=1000.0))
    many = cb.calibrate(model, (x, y), bootstrap=counts, seed=0, progress=False).intervals(of=VECTORS)
    centre = np.linalg.lstsq(x, y)[0]
    for r, vector in enumerate(VECTORS):
        critical = []
        for row in counts:
            inverse = np.linalg.inv(x.T @ (row[:, None] * x))
            away = vector @ (inverse @ x.T @ (row * y) - centre)
            critical.append((1.95996 / away) ** 2 * (vector @ inverse @ vector))
        low, high = np.sort(critical)[[19, 20]]
        eta = np.sqrt(low * high)
        assert many.eta[r] == pytest.approx(eta, rel=0.1)
        half = 1.95996 * np.sqrt(vector @ np.linalg.inv(x.T @ x) @ vector / eta)
        np.testing.assert_allclose(many.bounds[r], vector @ centre + [-half, half], atol=0.05 * half)


def test_an_answer_has_an_error(result):
    """One whose error runs off its curve is calibrated by itself."""
    curve = result.curve

    def up_to(k):
        return Curve(curve.etas[:k], curve.critical_levels[:k], curve.ess[:k], curve.level)

    short = max(k for k in range(2, 15) if np.isinf(up_to(k).eta_se()))
    assert not answered(up_to(short), result.eta)
    assert answered(curve, result.eta)


def test_as_each_by_itself(result):
    """Same rows, same particles but for those that a search moved: eta to 0.4 of its error, ends to 6% of a width.

    Rows are common to both, so what differs is the error of particles, some thousand a row: about 2% of a width.
    """
    many = result.intervals(of=VECTORS)
    for r, vector in enumerate(VECTORS):
        own = result.at(region=cb.regions.Linear(vector))
        assert many.eta[r] == pytest.approx(own.eta, abs=0.4 * own.eta_se + 0.03 * own.eta)
        alone = np.quantile(own.draws @ vector, [0.025, 0.975])
        np.testing.assert_allclose(many.bounds[r], alone, atol=0.06 * np.diff(alone)[0])
        assert many.eta_se[r] == pytest.approx(own.eta_se, rel=0.6)
    assert many.converged.all()


def test_number_of_combinations_does_not_matter(result):
    """Blocks of combinations are filled up: each answer is as if it had been asked for alone."""
    repeated = np.tile(VECTORS, (10, 1))
    many, few = result.intervals(of=repeated), result.intervals(of=VECTORS)
    np.testing.assert_allclose(many.eta, np.tile(few.eta, 10), rtol=1e-5)
    np.testing.assert_allclose(many.bounds, np.tile(few.bounds, (10, 1)), rtol=1e-4, atol=1e-5)


def test_parameters_are_combinations(result):
    own = result.intervals()
    np.testing.assert_allclose(own.bounds, result.intervals(of=np.eye(2)).bounds, rtol=1e-6)
    assert own.names == result.names
    assert own.eta[0] != own.eta[1]


def test_linear_is_interval(result):
    assert result.at(region=cb.regions.Linear([0.0, 1.0])).eta == result.at(region=cb.regions.Interval(1)).eta


def test_scale_does_not_matter(result):
    a, b = result.intervals(of=[[1.0, 2.0]]), result.intervals(of=[[-10.0, -20.0]])
    assert a.eta[0] == pytest.approx(b.eta[0], rel=1e-3)
    np.testing.assert_allclose(-10 * a.bounds[0, ::-1], b.bounds[0], rtol=2e-3)


@pytest.mark.slow
def test_far_ones_are_calibrated_by_themselves(result, monkeypatch):
    near = result.intervals(of=VECTORS)
    monkeypatch.setattr("calibayes.requery.answered", lambda curve, eta: False)
    own = result.intervals(of=VECTORS)
    assert (own.eta != near.eta).any()
    np.testing.assert_allclose(own.eta, near.eta, rtol=0.1)


@pytest.mark.parametrize("of", [[1.0, 0.0], [[1.0]], [[1.0, np.nan]]])
def test_nonsense_is_refused(result, of):
    with pytest.raises(ValueError, match=r"rows of 2 numbers|2 finite numbers"):
        result.intervals(of=of)


def test_far_ones_are_reached_together(result, monkeypatch):
    """Told that the first particles are too far for all, they are moved; the answers stay, to a tenth of eta."""
    near, first, asked = result.intervals(of=VECTORS), result.calibration.found.sampled, []

    def elsewhere(curve, eta):
        asked.append(eta)
        return eta != first and answered(curve, eta)

    monkeypatch.setattr("calibayes.requery.answered", elsewhere)
    moved = result.intervals(of=VECTORS)
    assert asked[0] == first
    assert asked[-1] != first
    np.testing.assert_allclose(moved.eta, near.eta, rtol=0.1)
    # In units of each interval's own width.
    width = np.diff(near.bounds)
    np.testing.assert_allclose(moved.bounds / width, near.bounds / width, rtol=0, atol=0.08)
    assert moved.converged.all()
