"""Plots show the numbers of the result, on the axes of the caller."""

import dataclasses
import pickle
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

import calibayes as cb
from calibayes import plots
from calibayes._core.curve import Curve
from calibayes._core.status import Status
from calibayes.compare import ComparedMethod, compare_with
from calibayes.plots.density import density_estimate, highest_density_region
from calibayes.plots.drawing import set_log_scale
from calibayes.samplers.transport.repair import has_degenerate_weights

LEVEL = 0.95
AXES_PLOTS = [plots.coverage, plots.trace, plots.posterior, plots.fit, plots.forest, plots.diagnostics]


@pytest.fixture(scope="module", autouse=True)
def headless():
    backend = plt.get_backend()
    plt.switch_backend("agg")
    yield
    plt.switch_backend(backend)


@pytest.fixture(autouse=True)
def render_figures():
    """Render every figure of a test; close those that other tests left open first."""
    plt.close("all")
    yield
    for number in plt.get_fignums():
        plt.figure(number).canvas.draw()
    plt.close("all")


@pytest.fixture(scope="module")
def result():
    x, y = cb.datasets.median_regression(100, seed=0)
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    sampler = cb.Transport(n_particles=200, max_evaluations=1)
    return cb.calibrate(
        model, (x, y), seed=0, bootstrap=200, sampler=sampler, names=["intercept", "slope"], progress=False
    )


@pytest.fixture(scope="module")
def before(result):
    return result.posterior(1.0)


@pytest.fixture(scope="module")
def loaded(result):
    return pickle.loads(pickle.dumps(result))


@pytest.fixture(scope="module")
def wide(loaded):
    """A result with nine parameters."""
    draws = np.random.default_rng(0).normal(size=(400, 9))
    names = [f"b{k}" for k in range(9)]
    return dataclasses.replace(
        loaded, draws=draws, risk=np.zeros(400), estimate=draws.mean(0), names=names, model=None, data=None
    )


def long_trace(result, n):
    etas = 1.5 + np.cos(np.arange(n)) / (1 + np.arange(n))
    return [dataclasses.replace(result.trace[0], iteration=i + 1, eta=float(eta)) for i, eta in enumerate(etas)]


def lines(ax):
    return [np.asarray(line.get_xydata()) for line in ax.lines]


def has_line(ax, x, y):
    expected = np.column_stack([x, y])
    return any(line.shape == expected.shape and np.allclose(line, expected) for line in lines(ax))


def outline(collection):
    return np.concatenate([path.vertices for path in collection.get_paths()])


@pytest.mark.parametrize("plot", AXES_PLOTS)
def test_plots_draw_on_the_axes_of_the_caller_and_change_no_settings(plot, result):
    settings, backend = dict(mpl.rcParams), plt.get_backend()
    _, (ax, other) = plt.subplots(1, 2)
    assert plot(result, ax=ax) is ax
    assert not other.has_data()
    assert len(plt.get_fignums()) == 1
    new = plot(result)
    assert new.figure.get_size_inches()[0] == pytest.approx(5.0)
    assert {text.get_fontsize() for text in (new.xaxis.label, new.yaxis.label)} == {9}
    assert ax.yaxis.label.get_fontsize() == 10
    assert dict(mpl.rcParams) == settings
    assert plt.get_backend() == backend


@pytest.mark.parametrize("plot", AXES_PLOTS)
def test_text_is_inside_the_figure(plot, result):
    figure = plot(result).figure
    figure.canvas.draw()
    low, high = figure.get_tightbbox().min, figure.get_tightbbox().max
    assert (low >= 0).all()
    assert (high <= figure.get_size_inches()).all()


@pytest.mark.parametrize("plot", [plots.coverage, plots.trace, plots.fit])
def test_several_axes_are_rejected(plot, result):
    with pytest.raises(TypeError, match="one matplotlib Axes; got ndarray"):
        plot(result, ax=plt.subplots(1, 2)[1])


def test_missing_matplotlib_is_named(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"calibayes\[plots\]"):
        plots.coverage(result)


def test_coverage(result):
    ax = plots.coverage(result)
    assert has_line(ax, result.curve.etas, result.curve.coverage())
    assert has_line(ax, [0, 1], [LEVEL, LEVEL])
    assert has_line(ax, [result.eta, result.eta], [0, 1])
    band = outline(ax.collections[0])
    for side in result.curve.band().T:
        assert all(np.isclose(band, point).all(1).any() for point in np.column_stack([result.curve.etas, side]))
    (span,) = ax.patches
    assert span.get_x() == pytest.approx(result.eta - result.eta_se)
    assert span.get_width() == pytest.approx(2 * result.eta_se)
    assert ax.get_xscale() == "log"
    ax.figure.canvas.draw()
    ticks = [float(label.get_text()) for label in ax.get_xticklabels()]
    assert sum(ax.get_xlim()[0] <= tick <= ax.get_xlim()[1] for tick in ticks) >= 3
    assert ax.get_ylabel() == "coverage of 95% sets"
    assert ax.texts[0].get_text() == f"η = {result.eta:.4g} ± {result.eta_se:.2g}"


def test_coverage_at_another_level(result):
    ax = plots.coverage(result, level=0.8)
    assert has_line(ax, result.curve.etas, result.curve.coverage(0.8))
    assert has_line(ax, [result.curve.eta_hat(0.8)] * 2, [0, 1])
    assert ax.get_ylabel() == "coverage of 80% sets"
    assert result.curve.eta_hat(0.02) in (0, np.inf)
    ax = plots.coverage(result, level=0.02)
    assert len(ax.lines) == 2
    assert not ax.patches


def test_coverage_of_incomplete_results(result):
    empty = dataclasses.replace(result, curve=Curve.empty(200, LEVEL), status=Status.NOT_REACHED)
    with pytest.raises(ValueError, match=f"no coverage curve to draw. {Status.NOT_REACHED.value}"):
        plots.coverage(empty)
    with pytest.raises(ValueError, match=r"For 95% write 0\.95"):
        plots.coverage(result, level=95.0)
    failed = dataclasses.replace(result, status=Status.MAX_ITERATIONS)
    assert "not converged" in plots.coverage(failed).texts[0].get_text()
    plots.coverage(dataclasses.replace(result, eta_se=float("inf")))


@pytest.mark.parametrize("n", [1, 3, 60])
def test_trace(result, n):
    traced = dataclasses.replace(result, trace=long_trace(result, n))
    ax = plots.trace(traced)
    lower = ax.figure.axes[1]
    iterations = np.arange(1, n + 1)
    assert has_line(ax, iterations, [record.eta for record in traced.trace])
    assert has_line(lower, iterations, [record.coverage for record in traced.trace])
    assert has_line(ax, [0, 1], [result.eta, result.eta])
    assert has_line(lower, [0, 1], [LEVEL, LEVEL])
    # The ring at the end is the reported learning rate, so that one iteration is not a single point.
    assert has_line(ax, [n, n + 1], [traced.trace[-1].eta, result.eta])
    assert has_line(lower, [n, n + 1], [traced.trace[-1].coverage, float(result.coverage)])
    assert [label.get_text() for label in lower.get_xticklabels()][-1] == "reported"
    coverage = cb.Coverage(round(traced.trace[0].coverage * 200), 200)
    np.testing.assert_allclose(lower.collections[0].get_segments()[0][:, 1], coverage.interval)
    assert all(tick == int(tick) for tick in lower.get_xticks())
    assert plt.gca() is ax


@pytest.mark.parametrize("make", [lambda f: f.add_subplot(2, 2, 1), lambda f: f.add_axes((0.2, 0.1, 0.5, 0.6))])
def test_trace_keeps_the_position_of_its_axes(result, make):
    figure = plt.figure()
    ax = make(figure)
    before = ax.get_position()
    plots.trace(result, ax=ax)
    upper, lower = (axes.get_position() for axes in figure.axes)
    assert upper.y1 == pytest.approx(before.y1)
    assert lower.y0 == pytest.approx(before.y0)
    assert lower.y1 < upper.y0
    assert upper.x0 == lower.x0 == pytest.approx(before.x0)


def test_trace_needs_iterations(result):
    with pytest.raises(ValueError, match="no trace"):
        plots.trace(dataclasses.replace(result, trace=[]))


@pytest.mark.parametrize("k", ["slope", 1])
def test_posterior_of_one_parameter(result, before, k):
    ax = plots.posterior(result, k)
    bars = [line for line in lines(ax) if len(line) == 2]
    np.testing.assert_allclose(bars[0][:, 0], np.quantile(before[:, 1], [0.025, 0.975]))
    np.testing.assert_allclose(bars[1][:, 0], result.marginal_intervals()[1])
    (mark,) = (line for line in lines(ax) if len(line) == 1)
    assert mark[0, 0] == pytest.approx(result.estimate[1])
    assert ax.get_xlabel() == "slope"
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["η = 1", f"calibrated, η = {result.eta:.3g}"]


def test_legend_covers_no_data(result):
    ax = plots.posterior(result, "slope")
    ax.figure.canvas.draw()
    assert ax.get_legend().get_window_extent().y0 >= ax.get_window_extent().y1 - 1


def test_posterior_of_two_parameters(result, before):
    ax = plots.posterior(result)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("intercept", "slope")
    for contour, draws in zip(ax.collections, (before, result.draws), strict=False):
        (path,) = contour.get_paths()
        assert path.contains_points(draws).mean() == pytest.approx(LEVEL, abs=0.03)
    swapped = plots.posterior(result, ["slope", 0], before=None)
    assert (swapped.get_xlabel(), swapped.get_ylabel()) == ("slope", "intercept")


@pytest.mark.parametrize("before", [None, 1.0])
def test_posterior_without_comparison(result, loaded, before):
    ax = plots.posterior(result if before is None else loaded, "slope", before=before)
    assert len(ax.get_legend().get_texts()) == 1
    assert len(ax.lines) == 3


def test_posterior_rejects_invalid_parameters(result, wide):
    with pytest.raises(ValueError, match=r"no parameter 'age'\. Use one of intercept, slope"):
        plots.posterior(result, "age")
    with pytest.raises(ValueError, match="no parameter 2"):
        plots.posterior(result, 2)
    with pytest.raises(ValueError, match="two different ones"):
        plots.posterior(result, [1, "slope"])
    with pytest.raises(ValueError, match="must name one parameter or two"):
        plots.posterior(wide)
    with pytest.raises(ValueError, match="must be positive and finite"):
        plots.posterior(result, "slope", before=-1.0)
    assert not plt.get_fignums()


def test_pairs(result):
    axes = plots.pairs(result)
    assert axes.shape == (2, 2)
    assert not axes[0, 1].axison
    assert (axes[1, 0].get_xlabel(), axes[1, 0].get_ylabel()) == ("intercept", "slope")
    assert axes[1, 1].get_xlabel() == "slope"
    (mark,) = (line for line in lines(axes[1, 0]) if len(line) == 1)
    np.testing.assert_allclose(mark[0], result.estimate)
    assert axes[1, 0].get_xlim() == axes[0, 0].get_xlim()
    assert len(axes[0, 0].figure.legends[0].get_texts()) == 2


def test_pairs_of_one_and_of_many_parameters(wide):
    one = dataclasses.replace(wide, draws=wide.draws[:, :1], estimate=wide.estimate[:1], names=["mean"])
    assert plots.pairs(one).shape == (1, 1)
    assert plots.posterior(one).get_xlabel() == "mean"
    with pytest.raises(ValueError, match=r"1 to 8 different parameters; got 9. Choose them with names="):
        plots.pairs(wide)
    with pytest.raises(ValueError, match="different"):
        plots.pairs(wide, names=["b1", 1])
    axes = plots.pairs(wide, names=["b8", 0, "b3"])
    assert [ax.get_xlabel() for ax in axes[-1]] == ["b8", "b0", "b3"]
    assert axes[2, 0].get_ylim() == axes[2, 1].get_ylim()


def test_density_is_normalized_and_respects_bounds():
    rng = np.random.default_rng(1)
    grid, density = density_estimate(rng.exponential(size=20_000), 0.0, np.inf)
    assert grid.min() > 0
    assert density.sum() * (grid[1] - grid[0]) == pytest.approx(1)
    np.testing.assert_allclose(density[grid < 3], np.exp(-grid[grid < 3]), atol=0.1)


def test_bounds_of_the_prior_are_not_those_of_an_intercept_of_raw_columns(loaded):
    """The prior bounds the prediction at the means of the columns, not the intercept that is reported then."""
    draws = np.random.default_rng(0).exponential(size=(2_000, 2))
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Uniform([0.0, 0.0], [100.0, 100.0]))
    bounded = dataclasses.replace(loaded, draws=draws, risk=np.zeros(2_000), model=model)
    centred = dataclasses.replace(bounded, settings=loaded.settings | {"centred": True})
    for drawn, k, is_bounded in ((bounded, 0, True), (bounded, 1, True), (centred, 0, False), (centred, 1, True)):
        grid = plots.posterior(drawn, k, before=None).lines[0].get_xdata()
        assert (min(grid) > 0) == is_bounded


def test_ticks_of_a_logarithmic_axis_are_at_1_2_and_5_over_several_decades():
    _, ax = plt.subplots()
    set_log_scale(ax, "x", np.array([0.02, 3.0]))
    low, high = ax.get_xlim()
    ticks = [tick for tick in ax.get_xticks() if low <= tick <= high]
    np.testing.assert_allclose(ticks, [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0])


def test_highest_density_region_of_a_gaussian():
    rng = np.random.default_rng(2)
    root = np.array([[1.0, 0.0], [-2.97, 0.3]])
    draws = 5 + rng.normal(size=(20_000, 2)) @ root.T
    x, y, density, threshold = highest_density_region(draws, 0.9)
    inside = density >= threshold
    squared = np.square(np.linalg.solve(root, np.stack([x[inside] - 5, y[inside] - 5]))).sum(0)
    assert squared.max() == pytest.approx(-2 * np.log(0.1), rel=0.2)


def test_fit(result):
    x, y = result.data
    ax = plots.fit(result)
    assert has_line(ax, x[:, 1], y)
    grid = np.linspace(x[:, 1].min(), x[:, 1].max(), 100)
    rows = np.column_stack([np.ones(100), grid])
    assert has_line(ax, grid, rows @ result.estimate)
    band = outline(ax.collections[0])
    for side in np.quantile(rows @ result.draws.T, [0.025, 0.975], axis=1):
        assert all(np.isclose(band, point).all(1).any() for point in np.column_stack([grid, side]))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["data", "95% band", "fitted median"]


def test_fit_holds_other_columns_at_their_means(result):
    x, y = result.data
    three = dataclasses.replace(
        result,
        data=(np.column_stack([x, x[:, 1] ** 2]), np.sign(y - 2)[:, None]),
        model=cb.GibbsModel(cb.losses.Hinge(), cb.priors.Normal()),
        draws=np.column_stack([result.draws, result.draws[:, 1]]),
        estimate=np.array([1.0, 2.0, 3.0]),
        names=["one", "age", "square"],
    )
    with pytest.raises(ValueError, match="choose one of: age, square"):
        plots.fit(three)
    with pytest.raises(ValueError, match="one is constant"):
        plots.fit(three, "one")
    ax = plots.fit(three, "age")
    grid = np.linspace(x[:, 1].min(), x[:, 1].max(), 100)
    assert has_line(ax, grid, 1 + 2 * grid + 3 * np.mean(x[:, 1] ** 2))
    assert ax.get_ylabel().startswith("score")


def test_fit_needs_a_linear_model_and_data(result, wide):
    generic = cb.GibbsModel(lambda theta, datum: jnp.square(datum - theta).sum(), cb.priors.Normal(), dim=1)
    with pytest.raises(TypeError, match="loss of a linear prediction"):
        plots.fit(dataclasses.replace(result, model=generic))
    with pytest.raises(RuntimeError, match="without its model and data"):
        plots.fit(wide)


@pytest.mark.parametrize(
    ("loss", "label"),
    [
        (cb.losses.Quantile(0.9), "fitted 90% quantile"),
        (cb.losses.Absolute(), "fitted median"),
        (cb.losses.Squared(), "fitted mean"),
        (cb.losses.Huber(), "fit"),
    ],
)
def test_fit_names_the_fitted_quantity(result, loss, label):
    ax = plots.fit(dataclasses.replace(result, model=cb.GibbsModel(loss, cb.priors.Normal())))
    assert ax.get_legend().get_texts()[-1].get_text() == label


def test_forest(result):
    """One line per parameter from bound to bound of its calibrated interval, and optionally of the joint one."""
    intervals = result.intervals()
    ax = plots.forest(result, names=["slope", 0], joint=True)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["slope", "intercept"]
    own, joint = ([path.vertices[:, 0] for path in lines.get_paths()] for lines in ax.collections)
    np.testing.assert_allclose(own, intervals.bounds[[1, 0]])
    np.testing.assert_allclose(joint, result.marginal_intervals()[[1, 0]])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["95% interval", "at the joint η"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    means = result.means[[1, 0]]
    assert [abs(float(text.get_text().split()[0]) - mean) < 0.005 for text, mean in zip(ax.texts, means, strict=True)]
    with pytest.raises(ValueError, match="there is no parameter 'x'"):
        plots.forest(result, names=["x"])
    with pytest.raises(ValueError, match="at least one parameter"):
        plots.forest(result, names=[])


def test_axes_have_the_names_and_units_of_a_table(result):
    """The intercept is not drawn with the coefficients, unless it is named."""
    named = dataclasses.replace(result, settings=result.settings | {"target": "wage"})
    ax = plots.forest(named)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["slope"]
    assert ax.get_xlabel() == "change of wage per unit of slope"
    assert plots.forest(named, names=[0, 1]).get_xlabel() == "coefficient"
    assert plots.fit(named).get_ylabel() == "wage"
    assert plots.fit(result).get_ylabel() == "y"


def test_fit_of_counts_is_on_the_scale_of_the_counts(result):
    x, y = result.data
    counts = dataclasses.replace(
        result,
        data=(x, np.round(np.exp(y / 4))),
        model=cb.GibbsModel(cb.losses.Poisson(), cb.priors.Normal()),
        draws=result.draws / 4,
        estimate=result.estimate / 4,
    )
    grid = np.linspace(x[:, 1].min(), x[:, 1].max(), 100)
    rows = np.column_stack([np.ones(100), grid])
    assert has_line(plots.fit(counts), grid, np.exp(rows @ counts.estimate))


def test_forest_marks_intervals_that_did_not_converge(loaded, result):
    intervals = dataclasses.replace(result.intervals(), status=[Status.CONVERGED, Status.UNRELIABLE])
    ax = plots.forest(dataclasses.replace(loaded, saved_intervals=intervals))
    assert has_line(ax, [intervals.bounds[1].mean()], [1])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["95% interval", "not converged"]


def test_diagnostics_of_transport(result):
    ax = plots.diagnostics(result)
    weighted, repaired = lines(ax)
    info, state = result.calibration.iterate.info, result.calibration.iterate.state
    kept = ~info.repaired[1:]
    np.testing.assert_allclose(weighted[:, 0], info.ess[1:][kept], rtol=1e-6)
    np.testing.assert_allclose(
        weighted[:, 1], cb.diagnostics.pareto_k(state.particles.log_weights)[1:][kept], atol=1e-3
    )
    assert not has_degenerate_weights(state.particles.log_weights, state.transported.ess)[1:][kept].any()
    assert len(repaired) == len(result.repaired_replicates) > 0
    # Repaired replicates are in the grey area, and no others.
    limit = cb.diagnostics.pareto_k_limit(200)
    in_grey = lambda points: (points[:, 0] < 20) | ((points[:, 1] > limit) & (points[:, 0] < 160))
    assert in_grey(repaired).all()
    assert not in_grey(weighted).any()
    areas = [outline(area) for area in ax.collections]
    assert [area[:, 0].max() for area in areas] == [20, 160]
    assert areas[1][:, 1].min() == pytest.approx(limit)


def with_other_state(result, not_mixed):
    """Replace the sampler state by one that is not that of transport."""
    iterate = result.calibration.iterate
    state = SimpleNamespace(particles=iterate.state.particles)
    other = dataclasses.replace(iterate, state=state, info=iterate.info._replace(not_mixed=not_mixed))
    return dataclasses.replace(result, calibration=dataclasses.replace(result.calibration, iterate=other))


def test_diagnostics_of_other_samplers(result):
    """States of other samplers show sorted effective sample sizes, and mark replicates that have not mixed."""
    ess, not_mixed = result.calibration.iterate.info.ess, np.arange(201) % 50 == 1
    ax = plots.diagnostics(with_other_state(result, not_mixed))
    mixed, slow = lines(ax)
    points = np.concatenate([mixed, slow])
    np.testing.assert_allclose(points[np.argsort(points[:, 0]), 1], np.sort(ess[1:]))
    np.testing.assert_allclose(np.sort(slow[:, 1]), np.sort(ess[not_mixed]))
    assert ax.get_legend().get_texts()[1].get_text() == "not mixed (4)"


def test_diagnostics_if_all_replicates_have_mixed(result):
    ax = plots.diagnostics(with_other_state(result, np.zeros(201, bool)))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["mixed (200)"]


def test_diagnostics_need_the_particles(loaded):
    with pytest.raises(RuntimeError, match=r"without its particles\. Run `calibrate` again"):
        plots.diagnostics(loaded)


def test_loaded_results_can_be_drawn(loaded, result):
    assert has_line(plots.coverage(loaded), result.curve.etas, result.curve.coverage())
    plots.trace(loaded)
    plots.fit(loaded)
    assert plots.pairs(loaded).shape == (2, 2)


def test_comparison_draws_learning_rates_and_intervals(result):
    comparison = compare_with(result, [cb.methods.Fixed(1.0), "gpc-studentized"])
    axes = cb.plots.compare(comparison)
    assert [ax.get_xlabel() for ax in axes] == ["learning rate η", "intercept", "slope"]
    points = {line.get_label(): line.get_xydata()[0] for line in axes[0].lines if line.get_marker() == "o"}
    assert list(points) == list(comparison)
    for name, point in points.items():
        np.testing.assert_allclose(point, [comparison[name].eta, comparison[name].coverage])
    assert [text.get_text() for text in axes[1].get_yticklabels()] == [*comparison][::-1]
    drawn = [line.get_xdata() for line in axes[2].lines if line.get_marker() == "None"]
    np.testing.assert_allclose(drawn, [row.intervals.bounds[1] for row in comparison.rows][::-1])


def test_comparison_without_results_raises():
    row = ComparedMethod("gpc", None, None, 0.0, "It went wrong.")
    with pytest.raises(ValueError, match="no method of the comparison has a result"):
        cb.plots.compare(cb.Comparison((row,), LEVEL, ("a",)))
