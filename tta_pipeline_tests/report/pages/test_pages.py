"""The report in a real browser: what is clicked, sorted, compared and drawn, for every reader, from disk."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select
from selenium.webdriver.support.wait import WebDriverWait

from tta_pipeline.cli import main
from tta_pipeline.domain.locations import Locations
from tta_pipeline_tests.chromium import chromium
from tta_pipeline_tests.conftest import Project

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
PAGES = ("index.html", "cells/contrast-5.html#experiment-tent", "compare.html?a=tent&b=source")

MINUS = "\N{MINUS SIGN}"


@pytest.fixture(scope="module")
def locations(sweep: Project) -> Locations:
    """The sweep, which has its report."""
    return sweep.locations


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """A browser without history."""
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def opened(locations: Locations, browser: webdriver.Chrome):
    """Open a page of the report, and fail at the end if the browser complained."""

    def open_page(name: str) -> webdriver.Chrome:
        browser.get(f"{locations.report('small').as_uri()}/{name}")
        return browser

    yield open_page
    assert not [entry["message"] for entry in browser.get_log("browser") if "axe" not in entry["message"]]
    browser.get("about:blank")


def drawn(browser: webdriver.Chrome, selector: str) -> str:
    """Return the chart at *selector* when it is drawn, as text."""
    chart = WebDriverWait(browser, 30).until(lambda _: browser.find_element(By.CSS_SELECTOR, f"{selector} svg"))
    return str(chart.get_attribute("outerHTML"))


def page_width(browser: webdriver.Chrome, width: int) -> int:
    """Return how wide the page is in a window of *width*, both in pixels."""
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    return int(browser.execute_script("return document.documentElement.scrollWidth"))


def in_theme(browser: webdriver.Chrome, theme: str) -> None:
    """Show pages as to a reader who prefers *theme*."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )


@pytest.mark.parametrize("page", PAGES)
def test_a_screen_reader_and_a_keyboard_find_everything(locations: Locations, browser: webdriver.Chrome, page: str):
    """Axe finds nothing on any page, in either theme, with everything unfolded; no page is wider than a phone."""
    in_theme(browser, "light")
    page_width(browser, 390)
    try:
        browser.get(f"{locations.report('small').as_uri()}/{page}")
        browser.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        if "index" not in page:
            drawn(browser, ".chart")
        browser.execute_script(AXE.read_text())
        # It would load the style again to look at it, which a page on disk may not.
        found = browser.execute_async_script("axe.run({preload: false}).then(arguments[0])")["violations"]
        in_theme(browser, "dark")  # in which nothing but colours differs
        of_colours = "axe.run({preload: false, runOnly: ['color-contrast', 'link-in-text-block']}).then(arguments[0])"
        found += browser.execute_async_script(of_colours)["violations"]
        wider = [width for width in (390, 1400) if page_width(browser, width) > width]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    assert not [(each["id"], each["nodes"][0]["html"]) for each in found]
    assert not wider


def test_the_leaderboard_sorts_by_whole_numbers_and_filters(opened, locations: Locations):
    """A click on a column sorts by it, a second the other way round; a word leaves the rows that have it."""
    browser = opened("index.html")

    def names() -> list[str]:
        return [each.text for each in browser.find_elements(By.CSS_SELECTOR, "#board tbody tr:not([hidden]) th")]

    with (locations.report("small") / "tables" / "leaderboard.csv").open() as file:
        errors = {row["experiment"]: float(row["clean_error"]) for row in csv.DictReader(file)}
    column = browser.find_element(By.XPATH, "//table[@id='board']//button[.='clean error']")
    column.click()
    ascending = [errors[name] for name in names()]
    column.click()
    descending = [errors[name] for name in names()]
    browser.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys("tent")

    assert sorted(errors.values()) == ascending
    assert sorted(errors.values(), reverse=True) == descending
    assert ["tent"] == names()
    assert "1 of 3 rows" == browser.find_element(By.ID, "board-said").text


def test_a_page_that_is_printed_at_once_has_every_picture(opened):
    """A browser may print without a visit to the lower end of the page."""
    assert opened("index.html").execute_script("return [...document.images].every((image) => image.naturalWidth > 0)")


def test_a_cell_of_the_heat_map_opens_its_experiment(opened):
    """The page of the cell unfolds it, with calibration and timeline drawn, and the command that repeats it."""
    browser = opened("index.html")
    browser.find_element(By.CSS_SELECTOR, "#map-tent a[href='cells/contrast-5.html#experiment-tent']").click()

    assert "contrast, severity 5" == browser.find_element(By.TAG_NAME, "h1").text
    section = browser.find_element(By.ID, "experiment-tent")
    assert section.get_attribute("open")
    assert "dg launch --assets 'small/evaluation/tent' --partition 'contrast|5'" in section.text
    assert "Accuracy at each confidence" in drawn(browser, "#experiment-tent [data-chart=reliability]")
    assert "Accuracy along the stream" in drawn(browser, "#experiment-tent [data-chart=timeline]")
    assert not browser.find_elements(By.CSS_SELECTOR, "#experiment-norm svg")


def test_the_photographs_are_those_that_the_experiments_disagree_about(opened, locations: Locations):
    """Each has its label, and who said what; all experiments say something of each, and at most twelve are kept."""
    browser = opened("cells/contrast-5.html")
    photographs = browser.find_elements(By.CSS_SELECTOR, ".photographs li")

    assert 12 == len(photographs)
    for each in photographs:
        assert int(each.find_element(By.TAG_NAME, "img").get_property("naturalWidth")) == 12 * 96
        said = re.findall(r"[✓✗] \d: ([a-z, ]+)", each.text)
        experiments = [name for names in said for name in names.split(", ") if name != "nobody"]
        assert {"source", "norm", "tent"} == set(experiments)
        assert len(experiments) == 3
    assert any("✗" in each.text for each in photographs)


def test_two_experiments_side_by_side_say_what_the_command_line_says(opened, locations: Locations):
    """The sentence and every cell are those of `compare`, in this order and the other way round."""
    runner = CliRunner(env={"TTA_DATA_ROOT": str(locations.root)})

    def asked(*words: str) -> str:
        return runner.invoke(main, ["compare", *words, "--cells"], catch_exceptions=False).stdout

    _, *cells = json.loads(asked("tent", "source", "--json"))
    verdict, swapped = (asked(*names).partition("\n\n")[0] for names in (("tent", "source"), ("source", "tent")))
    browser = opened("compare.html?a=tent&b=source")

    assert " ".join(verdict.split()) == browser.find_element(By.ID, "mean").text
    rows = browser.find_elements(By.CSS_SELECTOR, "#cells tbody tr")
    shown = [[each.text for each in row.find_elements(By.CSS_SELECTOR, "td:not(.stream)")][3:5] for row in rows]
    assert [[str(cell["only_a_wrong"]), str(cell["only_b_wrong"])] for cell in cells] == shown
    assert f"Error of source {MINUS} error of tent." == browser.find_element(By.ID, "what").text
    assert "gaussian_noise" in drawn(browser, "#map")
    ends = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "#scale span:not(.colours)")]
    assert [f"{MINUS}, source is better", "+, tent is better"] == [re.sub(r"[\d.]+%", "", each) for each in ends]

    browser.find_element(By.ID, "swap").click()
    assert "source" == Select(browser.find_element(By.ID, "a")).first_selected_option.text
    assert " ".join(swapped.split()) == browser.find_element(By.ID, "mean").text
    assert browser.current_url.endswith("?a=source&b=tent")


def test_an_experiment_beside_itself_shows_nothing_of_the_pair_before(opened):
    """The page says what to choose, and neither the map nor the photographs of two others stay."""
    browser = opened("compare.html?a=tent&b=source")
    Select(browser.find_element(By.ID, "b")).select_by_value("tent")

    assert "Choose two different experiments." == browser.find_element(By.ID, "mean").text
    for name in ("where", "only-a", "only-b"):
        assert not browser.find_element(By.ID, name).is_displayed()


@pytest.mark.parametrize("width", [1040, 1400])
def test_a_comparison_shows_who_is_better_without_scrolling_sideways(opened, width: int):
    """The table is below the map where both beside each other would cut its last column."""
    browser = opened("compare.html?a=tent&b=source")
    page_width(browser, width)
    drawn(browser, "#map")
    try:
        table = browser.find_element(By.CSS_SELECTOR, ".scroll:has(#cells)")
        assert table.get_property("scrollWidth") == table.get_property("clientWidth")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_tables_need_no_script(locations: Locations, browser: webdriver.Chrome):
    """With scripts off, leaderboard, heat maps, samples and classes are there, and nothing that would need one."""
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        folder = locations.report("small").as_uri()
        browser.get(f"{folder}/index.html")
        assert "tent" in browser.find_element(By.ID, "board").text
        assert not browser.find_element(By.CSS_SELECTOR, "input[type=search]").is_displayed()
        browser.find_element(By.CSS_SELECTOR, "#map-tent a").click()
        assert "gaussian_noise, severity 3" == browser.find_element(By.TAG_NAME, "h1").text
        assert browser.find_element(By.ID, "class_errors").is_displayed()
        assert browser.find_element(By.CSS_SELECTOR, ".photographs img").is_displayed()
        browser.get(f"{folder}/compare.html")
        assert "tta-pipeline compare" in browser.find_element(By.CSS_SELECTOR, ".without-script").text
        assert not browser.find_element(By.ID, "swap").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_the_table_for_a_paper_marks_what_may_be_the_best(locations: Locations):
    """A dagger at the best and at those it is not shown to be better than, and the interval of each mean error."""
    runner = CliRunner(env={"TTA_DATA_ROOT": str(locations.root)})
    text = runner.invoke(main, ["leaderboard", "--format", "latex"], catch_exceptions=False).stdout
    page = (locations.report("small") / "index.html").read_text()

    rows = {
        name: line for line in text.splitlines() for name in ("source", "norm", "tent") if line.startswith(f"{name} &")
    }
    marked = {name for name, line in rows.items() if r"$^\dagger$" in line}
    shaded = set(re.findall(r'<tr class="leading"><th scope="row"[^>]*>(\w+)', page))
    assert shaded == marked
    assert "source" not in marked
    assert marked
    assert "% dagger: the best of the rows" in text
    error, low, high = (float(each) for each in re.findall(r"\d+\.\d", rows["source"])[:3])

    assert low < error < high
