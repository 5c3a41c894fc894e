"""The page for a referee: its numbers are the result's, it asks nothing of the network, and it moves."""

import json
import pickle
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import jax
import numpy as np
import pytest

import calibayes as cb
from calibayes import report
from calibayes._core.curve import Curve
from calibayes.io import StoredSetting
from calibayes.report.source import calibration_script, python_source
from calibayes.result import Coverage
from calibayes.solve.found import FELL_BACK, NOT_AUDITED

NASTY = "</script><b>&\"'"
CITED = {"https://arxiv.org/abs/2404.16528", "https://doi.org/10.1093/biomet/asy054"}


class Page(HTMLParser):
    """Text of elements by id and by tag, and every attribute."""

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.by_id, self.by_tag = [], [], {}, {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.attributes += [(tag, *pair) for pair in attributes.items()]
        self.by_tag.setdefault(tag, []).append("")
        if tag not in ("meta", "input", "link"):
            self.open.append((tag, len(self.by_tag[tag]) - 1, attributes.get("id")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for tag, index, name in self.open:
            self.by_tag[tag][index] += data
            if name is not None:
                self.by_id[name] = self.by_id.get(name, "") + data

    @property
    def figures(self):
        return json.loads(self.by_id["figures"])


@pytest.fixture(scope="module")
def result():
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data = cb.datasets.median_regression(60, seed=0)
    return cb.calibrate(model, data, seed=0, bootstrap=200, names=["intercept", NASTY], progress=False)


@pytest.fixture(scope="module")
def live(result, tmp_path_factory):
    return report.write(result, tmp_path_factory.mktemp("report") / "live.html", title=f"Wages {NASTY}")


@pytest.fixture
def page_of(tmp_path):
    def page_of(result, **options):
        return Page(report.write(result, tmp_path / "page.html", **options).read_text("utf-8"))

    return page_of


@pytest.fixture(scope="module")
def quiet(result):
    """Without its particles, so that nothing is calibrated anew; and with nothing to worry about."""
    many = result.settings | {"n": 5_000}
    return replace(result, calibration=None, eta_se=0.03 * result.eta, settings=many)


def many(result, k):
    """The same with other draws of many parameters."""
    draws = np.random.default_rng(0).normal(size=(1000, k)).astype(np.float32)
    names = [f"parameter {i}" for i in range(k)]
    return replace(result, draws=draws, risk=np.zeros(1000, np.float32), names=names, estimate=np.zeros(k, np.float32))


def test_numbers_are_the_results(result, live):
    page = Page(live.read_text("utf-8"))
    low, high = result.coverage.interval
    assert page.by_id["eta"] == f"{result.eta:.4g}"
    assert page.by_id["eta-se"] == f"{result.eta_se:.2g}"
    assert page.by_id["coverage"] == f"{result.coverage:.1%}"
    assert page.by_id["coverage-interval"] == f"{low:.1%} to {high:.1%}"
    own, cells = result.intervals(), page.by_tag["td"]
    for k, (low, high) in enumerate(result.marginal_intervals()):
        column = result.draws[:, k]
        assert cells[5 * k : 5 * k + 5] == [
            f"{result.estimate[k]:.4g}",
            f"{column.std():.4g}",
            f"{low:.4g} to {high:.4g}",
            "{:.4g} to {:.4g}".format(*own.bounds[k]),
            f"{own.eta[k]:.4g} ± {own.eta_se[k]:.2g}",
        ]
    said = " ".join(page.by_tag["p"])
    assert "2 parameters and 60 observations" in said
    assert "200 bootstrap samples" in said


def test_what_is_drawn_is_the_results(result, live):
    figures = Page(live.read_text("utf-8")).figures
    home = figures["etas"].index(result.eta)
    assert figures["coverage"][home] == pytest.approx(result.coverage)
    on_grid = [g for g in range(len(figures["etas"])) if g != home]
    np.testing.assert_allclose(np.array(figures["etas"])[on_grid], result.curve.etas, rtol=1e-5)
    np.testing.assert_allclose(np.array(figures["coverage"])[on_grid], result.curve.coverage(), atol=1e-5)
    np.testing.assert_allclose(np.array(figures["band"])[on_grid], result.curve.band(), atol=1e-5)
    for parameter, interval, deviation in zip(
        figures["parameters"], result.marginal_intervals(), result.draws.std(0), strict=True
    ):
        drawn = [parameter["low"][home], parameter["high"][home]]
        np.testing.assert_allclose(drawn, interval, atol=1e-3 * deviation)
    # The bars above the level are the rows that are not covered.
    above = np.array(figures["levels"]["edges"])[1:] > result.level + 1e-9
    missed = np.array(figures["levels"]["counts"])[:, above].sum(1)[on_grid]
    np.testing.assert_allclose(missed, 200 * (1 - result.curve.coverage()), atol=0.1)


def test_reweighting_is_right_for_a_normal_posterior(quiet, page_of):
    """With risk n (theta - 1)^2 / 2 the posterior at eta is normal with the variance 1 / (n eta)."""
    n, eta = 50, quiet.eta
    z = np.random.default_rng(0).normal(size=200_000)
    theta = 1 + z / np.sqrt(n * eta)
    normal = replace(quiet, draws=theta[:, None], risk=0.5 * n * (theta - 1) ** 2, names=["theta"], estimate=np.ones(1))
    figures = page_of(normal).figures
    at = np.array(figures["etas"])
    expected = 1.95996 / np.sqrt(n * at)
    # A quantile of so many draws has an error of 0.7% of the interval's half-width; a few times that where reweighted.
    np.testing.assert_allclose(1 - np.array(figures["parameters"][0]["low"]), expected, rtol=0.025)
    np.testing.assert_allclose(np.array(figures["parameters"][0]["high"]) - 1, expected, rtol=0.025)


def test_nothing_is_asked_of_the_network(live):
    text = live.read_text("utf-8")
    page = Page(text)
    assert {value for _, name, value in page.attributes if name == "href"} == CITED
    assert not [pair for pair in page.attributes if pair[1] in ("src", "srcset", "data", "action")]
    assert "link" not in page.by_tag
    assert "url(" not in text
    assert "@import" not in text
    # Namespaces are names, and no addresses that anyone would call.
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= CITED | {"http://www.w3.org/2000/svg"}
    assert len(text.encode()) < 300_000


def test_names_and_titles_are_escaped(live):
    page = Page(live.read_text("utf-8"))
    assert len(page.by_tag["script"]) == 2
    assert page.by_tag["title"] == page.by_tag["h1"] == [f"Wages {NASTY}"]
    assert NASTY in page.by_tag["th"]
    assert page.figures["parameters"][1]["name"] == NASTY
    assert json.dumps(NASTY) in page.by_tag["pre"][0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "You can report this"),
        ({"converged": False, "message": "eta had not settled after 3 iterations"}, "Do not report this"),
        (
            {"message": "the 0.95 sets cover at 0.95; 3 rows whose weights had failed were sampled by ASMC*"},
            "You can report this",
        ),
        ({"concerns": ["particles had not settled on 7 rows"]}, "Report with care"),
        ({"concerns": ["particles had not settled on 3 rows"]}, "You can report this"),
        ({"concerns": ["the effective size collapsed on 70 rows, to below 10"]}, "Do not report this"),
        ({"concerns": ["eta could not be refined: it jumps"]}, "Report with care"),
        ({"concerns": ["transport failed its audit (bias)", FELL_BACK]}, "You can report this"),
        ({"repaired_rows": np.arange(60)}, "You can report this"),
        ({"repaired_rows": np.arange(120)}, "Report with care"),
        ({"eta_se": float("nan")}, "Do not report this"),
        ({"eta_se": float("inf")}, "Do not report this"),
        ({"coverage": Coverage(150, 200)}, "Report with care"),
        ({"settings": {"sampler": cb.Transport()}}, "Report with care"),
        ({"concerns": [f"{NOT_AUDITED}: the prior cannot be sampled"]}, "Report with care"),
    ],
)
def test_verdict(quiet, page_of, changes, expected):
    page = page_of(replace(quiet, **changes))
    assert page.by_id["verdict"] == expected
    if "converged" in changes:
        assert "Eta had not settled after 3 iterations" in page.by_tag["li"][0]


@pytest.mark.parametrize(
    ("n", "expected", "said"),
    [
        (100, "Report with care", "100 for 2 parameters. The bootstrap is too hopeful on few observations"),
        (400, "You can report this", "400 for 2 parameters. The bootstrap is too hopeful"),
        (1600, "You can report this", "checks are passed"),
    ],
)
def test_few_observations_are_told_of(quiet, page_of, n, expected, said):
    page = page_of(replace(quiet, settings=quiet.settings | {"n": n}, own=None))
    assert page.by_id["verdict"] == expected
    assert said in " ".join([*page.by_tag.get("li", []), *page.by_tag["p"]])


def test_what_was_noted_is_listed(quiet, page_of):
    page = page_of(replace(quiet, concerns=["transport failed its audit (bias)", FELL_BACK]))
    said = page.by_tag["li"][0]
    assert said.startswith("Sampler: fell back. Transport failed its audit (bias), so every row was sampled by SMC")


def test_an_audit_of_other_sets_says_so(result, page_of):
    other = result.at(region="box")
    assert "agrees, for HPD" in page_of(other, intervals=False).by_tag["td"]
    assert "agrees" in page_of(result, intervals=False).by_tag["td"]


def test_concerns_about_the_sampler_stay(result):
    """Whatever else its particles are asked."""
    calibration = result.calibration
    worried = replace(calibration.found, concerns=[f"{NOT_AUDITED}: no prior to sample", "of this region only"])
    with pytest.warns(cb.CalibrationWarning, match=NOT_AUDITED):
        other = replace(calibration, found=worried).at(None, "box")
    assert other.concerns == [f"{NOT_AUDITED}: no prior to sample"]


def test_large_error_asks_for_care(quiet, page_of):
    assert page_of(replace(quiet, eta_se=0.2 * quiet.eta)).by_id["verdict"] == "Report with care"


def test_few_effective_draws_ask_for_care(quiet, page_of):
    few = Curve(quiet.curve.etas, quiet.curve.critical_levels, np.full_like(quiet.curve.ess, 50.0), quiet.level)
    assert page_of(replace(quiet, curve=few)).by_id["verdict"] == "Report with care"


@pytest.mark.parametrize("k", [1, 30, 400])
def test_any_number_of_parameters(quiet, page_of, k):
    page = page_of(many(quiet, k))
    assert len(page.figures["parameters"]) == k
    assert f"parameter {k - 1}" in page.by_tag["th"]
    assert len(json.dumps(page.figures)) < 150_000


def test_no_curve(quiet, page_of):
    page = page_of(replace(quiet, curve=Curve.empty(200, 0.95), eta_se=float("inf"), converged=False))
    assert page.by_id["verdict"] == "Do not report this"
    assert page.by_id["eta-se"] == "unknown"
    assert page.figures["etas"] == [quiet.eta]
    assert page.figures["error"] is None


def test_loaded_results_say_the_same(quiet, page_of):
    """A file keeps settings as text, and neither model, data nor counts."""
    before = page_of(quiet)
    pickled = page_of(pickle.loads(pickle.dumps(quiet)))
    assert pickled.by_tag == before.by_tag
    text = {name: StoredSetting(repr(value)) for name, value in quiet.settings.items()}
    loaded = page_of(replace(quiet, model=None, data=None, counts=None, settings=text))
    assert loaded.by_tag["td"] == before.by_tag["td"]
    assert loaded.by_id["verdict"] == before.by_id["verdict"]
    assert loaded.by_tag["pre"][0] == re.sub(r"model = .*\n", "", before.by_tag["pre"][0]).replace(
        "# With data", "# With data, model"
    )


def test_own_intervals_are_a_choice(result, quiet, page_of):
    assert "own 95% interval" not in page_of(result, intervals=False).by_tag["th"]
    with pytest.raises(RuntimeError, match="without its particles"):
        page_of(quiet, intervals=True)


def test_given_call_is_shown(quiet, page_of):
    assert page_of(quiet, call="mine(1 < 2)").by_tag["pre"] == ["mine(1 < 2)"]


def test_call_gives_the_result_again(result):
    names = {"data": result.data}
    exec(calibration_script(result).replace("seed=0", "seed=0, progress=False"), names)
    assert names["result"].eta == result.eta
    assert names["result"].names == result.names


def test_call_names_what_it_needs(result):
    assert calibration_script(result).startswith("# With data as they were.\nimport calibayes as cb\n")
    own = replace(result, model=cb.GibbsModel(own_loss, cb.priors.Normal(), dim=2))
    assert calibration_script(replace(own, settings=own.settings | {"draws": True})).startswith("# With data, draws, own_loss as")
    asked = replace(result, settings=result.settings | {"call": "calibayes fit a.csv", "level": 0.95, "region": "HPD"})
    assert calibration_script(asked) == "calibayes fit a.csv"


def own_loss(theta, datum):
    return (datum - theta[0]) ** 2


@pytest.mark.parametrize(
    "value",
    [
        cb.SMC(n_particles=200, start="prior"),
        cb.MCMC(n_draws=500, kernel=cb.kernels.RAM()),
        cb.RobbinsMonro(gain=0.1, refine=False),
        cb.bootstrap.Block(200, 10),
        cb.bootstrap.Multinomial(200, size=7),
        cb.losses.Huber(0.1),
        cb.priors.StudentT(3.0, scale=[1.0, 2.5]),
        cb.regions.Interval(1),
        cb.regions.Linear([1.0, 2.5]),
        [1, "a", None, 2.5],
    ],
    ids=repr,
)
def test_source_is_python(value):
    again = eval(python_source(value), {"cb": cb})
    assert type(again) is type(value)
    assert jax.tree.all(jax.tree.map(np.array_equal, again, value))


def test_what_cannot_be_written_is_named():
    assert python_source(np.zeros(100), "weights") == "weights"
    assert python_source(cb.losses.Generic(own_loss).fn) == "own_loss"
    assert python_source(lambda: None, "loss") == "loss"
    assert python_source(cb.interop.LogDensity(own_loss)).startswith("cb.interop.LogDensity(fn")
    assert python_source(cb.bootstrap.Cluster(20, np.arange(50))) == "cb.bootstrap.Cluster(20, groups)"
    assert python_source(jax.random.key(3)) == "jax.random.wrap_key_data(np.array([0, 3], np.uint32))"


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no browser")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser):
    """A page in the browser, of which nothing may be complained about, and that asks for no other file."""
    complaints, contexts = [], []

    def opened(path, width=1400, scheme="light", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        return page

    yield opened
    assert complaints == []
    for context in contexts:
        context.close()


def width_of(page, k):
    bar = page.locator(f"[data-parameter='{k}']")
    return float(bar.get_attribute("x2")) - float(bar.get_attribute("x1"))


def percentage(page):
    return float(page.locator("#at-coverage").inner_text().rstrip("%"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_slider_moves_intervals_and_coverage(result, live, opened, width, scheme):
    page = opened(live, width, scheme)
    page.locator("[data-parameter='0'][x1]").wait_for(state="attached")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) > 600) == (scheme == "light")
    first = [width_of(page, k) for k in range(2)]
    assert page.locator("#at-eta").inner_text() == f"{result.eta:.4g}"
    assert percentage(page) == pytest.approx(100 * result.coverage, abs=0.05)
    dot = page.locator("#curve .ring")
    start = float(dot.get_attribute("cx"))
    page.focus("#slider")
    page.keyboard.press("End")
    assert all(width_of(page, k) < 0.95 * first[k] for k in range(2))
    assert percentage(page) == pytest.approx(100 * result.curve.coverage()[-1], abs=0.06)
    assert float(dot.get_attribute("cx")) > start
    page.keyboard.press("Home")
    assert all(width_of(page, k) > 1.05 * first[k] for k in range(2))
    assert percentage(page) == pytest.approx(100 * result.curve.coverage()[0], abs=0.06)
    assert page.locator("#slider").get_attribute("aria-valuetext").endswith(f"coverage {percentage(page)}%")
    page.click("#home")
    assert [width_of(page, k) for k in range(2)] == first
    assert page.locator("#at-eta").inner_text() == f"{result.eta:.4g}"


@pytest.mark.parametrize("width", [360, 1400])
def test_many_parameters_and_no_curve_in_the_browser(quiet, tmp_path, opened, width):
    page = opened(report.write(many(quiet, 30), tmp_path / "many.html"), width)
    page.locator("[data-parameter='29'][x1]").wait_for(state="attached")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    bare = replace(quiet, curve=Curve.empty(200, 0.95), eta_se=float("nan"), converged=False)
    page = opened(report.write(bare, tmp_path / "bare.html"), width)
    page.locator("[data-parameter='0'][x1]").wait_for(state="attached")
    assert page.locator("#no-curve").is_visible()
    assert not page.locator("#slider").is_visible()


def test_without_scripts_the_numbers_are_there(result, live, opened):
    page = opened(live, java_script_enabled=False)
    assert page.locator("#eta").inner_text() == f"{result.eta:.4g}"
    assert page.locator("#table").is_visible()
    assert page.locator("noscript").is_visible()
    assert not page.locator("#slider").is_visible()
