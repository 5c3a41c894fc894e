"""The HTML report shows the numbers of the result, needs no network, and its slider works."""

import json
import pickle
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import calibayes as cb
import example_results
from calibayes import report
from calibayes._core.curve import Curve
from calibayes._core.status import Code, Status
from calibayes.io import StoredSetting
from calibayes.report.figures import _decimals

NASTY_NAME = "</script><b>&\"'"
CITED = {"https://arxiv.org/abs/2404.16528", "https://doi.org/10.1093/biomet/asy054"}


class Page(HTMLParser):
    """Text of elements by id and by tag, and all attributes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.by_id, self.by_tag, self.cells = [], [], {}, {}, {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.attributes += [(tag, *pair) for pair in attributes.items()]
        self.by_tag.setdefault(tag, []).append("")
        if "data-label" in attributes:
            self.cells.setdefault(attributes["data-label"], []).append(len(self.by_tag[tag]) - 1)
        if tag not in ("meta", "input", "link"):
            self.open.append((tag, len(self.by_tag[tag]) - 1, attributes.get("id")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for tag, index, name in self.open:
            self.by_tag[tag][index] += data
            if name is not None:
                self.by_id[name] = self.by_id.get(name, "") + data

    def column(self, label):
        """Text of the cells with this label."""
        return [self.by_tag["td"][index] for index in self.cells.get(label, [])]

    @property
    def figures(self):
        return json.loads(self.by_id["figures"])


@pytest.fixture(scope="module")
def result():
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data = cb.datasets.median_regression(60, seed=0)
    return cb.calibrate(model, data, seed=0, bootstrap=200, names=["intercept", NASTY_NAME], progress=False)


@pytest.fixture(scope="module")
def page_path(result, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "page.html"
    return report.write(result, path, title=f"Wages {NASTY_NAME}")


@pytest.fixture
def page_of(tmp_path):
    def page_of(result, **options):
        return Page(report.write(result, tmp_path / "page.html", **options).read_text("utf-8"))

    return page_of


@pytest.fixture(scope="module")
def plain_result(result):
    """The result without particles, so that nothing is calibrated again, and with all checks passed."""
    settings = result.settings | {"n": 5_000}
    return replace(result, calibration=None, eta_se=0.03 * result.eta, settings=settings, diagnostics=[])


def with_parameters(result, k):
    """Replace the draws by draws of k parameters."""
    draws = np.random.default_rng(0).normal(size=(1000, k)).astype(np.float32)
    names = [f"parameter {i}" for i in range(k)]
    return replace(result, draws=draws, risk=np.zeros(1000, np.float32), names=names, estimate=np.zeros(k, np.float32))


def test_page_shows_the_numbers_of_the_result(result, page_path):
    page = Page(page_path.read_text("utf-8"))
    low, high = result.coverage.interval
    assert page.by_id["eta"] == f"{result.eta:.4g}"
    assert page.by_id["eta-se"] == f"{result.eta_se:.2g}"
    assert page.by_id["coverage"] == f"{result.coverage:.1%}"
    assert page.by_id["coverage-interval"] == f"{low:.1%} to {high:.1%}"
    assert page.by_id["headline"] == "Calibration of 2 parameters, 60 observations."
    cells = page.by_tag["td"]
    for k, (_, mean, error, low, high, eta) in enumerate(result.intervals().cells()[1:]):
        assert cells[4 * k : 4 * k + 4] == [mean, error, f"{low} to {high}", eta]
    for (low, high), cell in zip(result.marginal_intervals(), page.column("95% interval at joint η"), strict=True):
        np.testing.assert_allclose(list(map(float, cell.split(" to "))), [low, high], atol=0.005 * (high - low))
    text = " ".join(page.by_tag["p"])
    assert "2 parameters and the data have 60 observations" in text
    assert "200 bootstrap replicates" in text


def test_figures_show_the_numbers_of_the_result(result, page_path):
    figures = Page(page_path.read_text("utf-8")).figures
    calibrated = figures["etas"].index(result.eta)
    assert figures["coverage"][calibrated] == pytest.approx(result.coverage)
    grid = [g for g in range(len(figures["etas"])) if g != calibrated]
    np.testing.assert_allclose(np.array(figures["etas"])[grid], result.curve.etas, rtol=1e-5)
    np.testing.assert_allclose(np.array(figures["coverage"])[grid], result.curve.coverage(), atol=1e-5)
    np.testing.assert_allclose(np.array(figures["band"])[grid], result.curve.band(), atol=1e-5)
    for parameter, interval, deviation in zip(
        figures["parameters"], result.marginal_intervals(), result.draws.std(0), strict=True
    ):
        drawn = [parameter["low"][calibrated], parameter["high"][calibrated]]
        np.testing.assert_allclose(drawn, interval, atol=1e-3 * deviation)
    # The bars above the level are the replicates that are not covered.
    above = np.array(figures["levels"]["edges"])[1:] > result.level + 1e-9
    missed = np.array(figures["levels"]["counts"])[:, above].sum(1)[grid]
    np.testing.assert_allclose(missed, 200 * (1 - result.curve.coverage()), atol=0.1)


def test_reweighted_intervals_match_a_normal_posterior(plain_result, page_of):
    """With risk n (theta - 1)^2 / 2 the posterior at eta is normal with variance 1 / (n eta)."""
    n, eta = 50, plain_result.eta
    z = np.random.default_rng(0).normal(size=200_000)
    theta = 1 + z / np.sqrt(n * eta)
    risk = 0.5 * n * (theta - 1) ** 2
    normal = replace(plain_result, draws=theta[:, None], risk=risk, names=["theta"], estimate=np.ones(1))
    figures = page_of(normal).figures
    expected = 1.95996 / np.sqrt(n * np.array(figures["etas"]))
    # A quantile of 200,000 draws has an error of 0.7% of the half-width of the interval; reweighting multiplies it.
    np.testing.assert_allclose(1 - np.array(figures["parameters"][0]["low"]), expected, rtol=0.025)
    np.testing.assert_allclose(np.array(figures["parameters"][0]["high"]) - 1, expected, rtol=0.025)


def test_page_needs_no_network(page_path):
    text = page_path.read_text("utf-8")
    page = Page(text)
    assert {value for _, name, value in page.attributes if name == "href"} == CITED
    assert not [pair for pair in page.attributes if pair[1] in ("src", "srcset", "data", "action")]
    assert "link" not in page.by_tag
    assert "url(" not in text
    assert "@import" not in text
    # The SVG namespace is a name, which browsers do not request.
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= CITED | {"http://www.w3.org/2000/svg"}
    assert len(text.encode()) < 300_000


def test_names_and_titles_are_escaped(page_path):
    page = Page(page_path.read_text("utf-8"))
    assert len(page.by_tag["script"]) == 2
    assert page.by_tag["title"] == page.by_tag["h1"] == [f"Wages {NASTY_NAME}"]
    assert NASTY_NAME in page.by_tag["th"]
    assert page.figures["parameters"][1]["name"] == NASTY_NAME
    assert json.dumps(NASTY_NAME) in page.by_tag["pre"][0]


def test_page_shows_the_verdict_and_its_reasons(plain_result, page_of):
    page = page_of(plain_result)
    assert page.by_id["verdict"] == "This result can be reported"
    assert re.search(r"All \d checks passed", " ".join(page.by_tag["p"]))
    page = page_of(replace(plain_result, status=Status.MAX_ITERATIONS))
    assert page.by_id["verdict"] == "Do not report this result"
    assert page.by_tag["li"][0].startswith(f"Search: not converged. {Status.MAX_ITERATIONS.value}")
    few = replace(plain_result, settings=plain_result.settings | {"n": 400})
    assert page_of(few).by_tag["li"][0].startswith("Observations: 400 for 2 parameters. The bootstrap approximates")


def test_page_mentions_that_another_region_was_audited(result, page_of):
    other = result.at(region="box")
    assert "passed, for HPD" in page_of(other, intervals=False).by_tag["td"]
    assert "passed" in page_of(result, intervals=False).by_tag["td"]


def test_diagnostics_of_the_sampler_hold_for_other_regions(result):
    calibration = result.calibration
    about_sampler = example_results.make_diagnostic(Code.NOT_AUDITED, message="The prior cannot be sampled.")
    about_region = example_results.make_diagnostic(Code.NOT_INTERPOLATED, message="Coverage jumps.")
    iterate = replace(calibration.iterate, diagnostics=(about_sampler, about_region))
    with pytest.warns(cb.CalibrationWarning, match="The prior cannot be sampled"):
        other = replace(calibration, iterate=iterate).at(None, "box")
    assert about_sampler in other.diagnostics
    assert about_region not in other.diagnostics


@pytest.mark.parametrize("k", [1, 30, 400])
def test_page_handles_any_number_of_parameters(plain_result, page_of, k):
    page = page_of(with_parameters(plain_result, k))
    assert len(page.figures["parameters"]) == k
    assert f"parameter {k - 1}" in page.by_tag["th"]
    assert len(json.dumps(page.figures)) < 150_000


def test_page_without_a_coverage_curve(plain_result, page_of):
    no_curve = Curve.empty(200, 0.95)
    page = page_of(replace(plain_result, curve=no_curve, eta_se=float("inf"), status=Status.NOT_REACHED))
    assert page.by_id["verdict"] == "Do not report this result"
    assert page.by_id["eta-se"] == "unknown"
    assert page.figures["etas"] == [plain_result.eta]
    assert page.figures["eta_se"] is None


def test_loaded_results_have_the_same_page(plain_result, page_of):
    """A file stores settings as text, and neither model, data nor counts."""
    before = page_of(plain_result)
    pickled = page_of(pickle.loads(pickle.dumps(plain_result)))
    assert pickled.by_tag == before.by_tag
    text = {name: StoredSetting(repr(value)) for name, value in plain_result.settings.items()}
    loaded = page_of(replace(plain_result, model=None, data=None, counts=None, settings=text))
    assert loaded.by_tag["td"] == before.by_tag["td"]
    assert loaded.by_id["verdict"] == before.by_id["verdict"]
    assert loaded.by_tag["pre"][0] == re.sub(r"model = .*\n", "", before.by_tag["pre"][0]).replace(
        "# Define data", "# Define data, model"
    )


def test_individual_intervals_are_optional(result, plain_result, page_of):
    assert page_of(result).by_tag["th"][:4] == ["parameter", "mean", "standard error", "95% interval"]
    assert "95% interval" not in page_of(result, intervals=False).by_tag["th"]
    with pytest.raises(RuntimeError, match="without its particles"):
        page_of(plain_result, intervals=True)


def test_page_shows_the_given_call(plain_result, page_of):
    assert page_of(plain_result, call="mine(1 < 2)").by_tag["pre"] == ["mine(1 < 2)"]


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
def open_page(browser):
    """Open a page in the browser; it must log no message and request no other file."""
    complaints, contexts = [], []

    def open_page(path, width=1400, scheme="light", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        return page

    yield open_page
    assert complaints == []
    for context in contexts:
        context.close()


CUT_OFF = """[...document.querySelectorAll("svg text, td, th, p, li, h1, h2, dd, dt, code")]
  .filter((e) => e.getClientRects().length)
  .filter((e) => e.getBoundingClientRect().left < -1 || e.getBoundingClientRect().right > innerWidth + 1)
  .map((e) => e.textContent)"""
"""Texts that extend beyond the window."""


def width_of(page, k):
    bar = page.locator(f"[data-parameter='{k}']")
    return float(bar.get_attribute("x2")) - float(bar.get_attribute("x1"))


def percentage(page):
    return float(page.locator("#reading-coverage").inner_text().rstrip("%"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_slider_changes_intervals_and_coverage(result, page_path, open_page, width, scheme):
    page = open_page(page_path, width, scheme)
    page.locator("[data-parameter='0'][x1]").wait_for(state="attached")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CUT_OFF) == []
    assert page.locator("#intervals .interval").count() == 2
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) > 600) == (scheme == "light")
    first = [width_of(page, k) for k in range(2)]
    assert page.locator("#reading-eta").inner_text() == f"{result.eta:.4g}"
    assert percentage(page) == pytest.approx(100 * result.coverage, abs=0.05)
    marker = page.locator("#curve .marker")
    start = float(marker.get_attribute("cx"))
    page.focus("#slider")
    page.keyboard.press("End")
    assert all(width_of(page, k) < 0.95 * first[k] for k in range(2))
    assert percentage(page) == pytest.approx(100 * result.curve.coverage()[-1], abs=0.06)
    assert float(marker.get_attribute("cx")) > start
    page.keyboard.press("Home")
    assert all(width_of(page, k) > 1.05 * first[k] for k in range(2))
    assert percentage(page) == pytest.approx(100 * result.curve.coverage()[0], abs=0.06)
    assert page.locator("#slider").get_attribute("aria-valuetext").endswith(f"coverage {percentage(page)}%")
    page.click("#reset")
    assert [width_of(page, k) for k in range(2)] == first
    assert page.locator("#reading-eta").inner_text() == f"{result.eta:.4g}"


def test_search_of_one_iteration_has_no_trace_figure(plain_result, tmp_path, open_page):
    for n, visible in ((1, False), (2, True)):
        records = [replace(plain_result.trace[0], iteration=k + 1) for k in range(n)]
        page = open_page(report.write(replace(plain_result, trace=records), tmp_path / "page.html"))
        page.locator("[data-parameter='0'][x1]").wait_for(state="attached")
        assert page.locator("#trace-eta").is_visible() == visible


@pytest.mark.parametrize("width", [360, 1400])
def test_browser_draws_many_parameters_and_pages_without_a_curve(plain_result, tmp_path, open_page, width):
    page = open_page(report.write(with_parameters(plain_result, 30), tmp_path / "many.html"), width)
    page.locator("[data-parameter='29'][x1]").wait_for(state="attached")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    no_curve = Curve.empty(200, 0.95)
    bare = replace(plain_result, curve=no_curve, eta_se=float("nan"), status=Status.NOT_REACHED)
    page = open_page(report.write(bare, tmp_path / "bare.html"), width)
    page.locator("[data-parameter='0'][x1]").wait_for(state="attached")
    assert page.locator("#no-curve").is_visible()
    assert not page.locator("#slider").is_visible()


def test_numbers_are_visible_without_javascript(result, page_path, open_page):
    page = open_page(page_path, java_script_enabled=False)
    assert page.locator("#eta").inner_text() == f"{result.eta:.4g}"
    assert page.locator("#table").is_visible()
    assert page.locator("noscript").is_visible()
    assert not page.locator("#slider").is_visible()


@pytest.mark.parametrize(("deviation", "expected"), [(0.0, 6), (np.nan, 6), (np.inf, 6), (1e-20, 12), (1e9, 0)])
def test_decimals_are_limited(deviation, expected):
    assert _decimals(deviation) == expected


def test_page_of_a_table_names_target_file_formula_and_rows(plain_result, page_of):
    about = {
        "title": "Median regression",
        "target": "wage",
        "file": "wages.csv",
        "formula": "wage ~ age + C(sex)",
        "notes": ["dropped 3 of 63 rows, with missing values in age (3)"],
        "roles": {"cluster": "firm", "weights": "w"},
        "bootstrap": cb.bootstrap.Cluster(200, np.arange(60) // 5),
        "weights": "survey",
        "reference_categories": {"sex": "female"},
        "n": 60,
    }
    page = page_of(replace(plain_result, settings=plain_result.settings | about))
    assert page.by_tag["h1"] == ["Median regression of wage"]
    assert page.by_id["headline"] == "Median regression of wage on 1 column, 60 rows of wages.csv."
    assert page.by_tag["p"][2] == (
        "The formula is wage ~ age + C(sex). Dropped 3 of 63 rows, with missing values in age (3). The observations "
        "are weighted by w and resampled in 12 clusters of firm. The categories are compared with: sex = female."
    )
    without_formula = replace(plain_result, settings=plain_result.settings | about | {"formula": None, "classes": None})
    assert page_of(without_formula).by_id["headline"] == (
        f"Median regression of wage on {NASTY_NAME}, 60 rows of wages.csv."
    )
