"""The web UI as a person uses it: what a browser shows of cells, plots and checks, and what its buttons do."""

import io
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions
from selenium.webdriver.support.wait import WebDriverWait

from tta_pipeline_tests.chromium import chromium
from tta_pipeline_tests.web.server import WebServer, happens, is_running
from tta_pipeline_tests.web.test_web_ui import contrast_5

PATIENCE_S = 300


@pytest.fixture(scope="module")
def browser(server: WebServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """A browser without a window and without history."""
    # What "Skip" does in the invitation that covers the first page of a new instance.
    server.ask("mutation { setNuxSeen }")
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(autouse=True)
def left(browser: webdriver.Chrome) -> Iterator[None]:
    """Leave the page behind a test: the UI asks the server again and again for what it shows."""
    yield
    browser.get("about:blank")


def test_the_grid_and_the_picture_of_a_cell(server: WebServer, browser: webdriver.Chrome, tmp_path: Path):
    """The page of an experiment shows its corruptions and how many cells are done; two clicks on, a cell's picture."""
    browser.get(f"{server.url}/assets/small/evaluation/tent?view=partitions")
    for text in ("Materialized (4)", "Missing (0)", "Failed (0)", "gaussian_noise", "contrast"):
        assert seen(browser, text).is_displayed()
    browser.save_screenshot(str(tmp_path / "grid.png"))

    for text in ("contrast", "5"):
        seen(browser, text).click()
    seen(browser, "[Show Markdown]", within="//tr[td[normalize-space()='samples']]").click()
    picture = patiently(browser).until(
        expected_conditions.visibility_of_element_located((By.CSS_SELECTOR, "img[src^='data:image/png']"))
    )
    browser.save_screenshot(str(tmp_path / "picture.png"))
    assert int(picture.get_property("naturalWidth")) > 0


def test_the_lineage_of_a_group_fits_one_screen(server: WebServer, browser: webdriver.Chrome, tmp_path: Path):
    """At 1600 x 860 nothing of the group of the cells is cut: its experiments, what they need, and the report."""
    size = {"width": 1600, "height": 860, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(f"{server.url}/locations/tta_pipeline.definitions/asset-groups/small/lineage")
        columns = [
            [seen(browser, name).rect for name in names]
            for names in (("shard_manifest", "source_model"), ("source", "norm", "tent"), ("robustness_report",))
        ]
        browser.save_screenshot(str(tmp_path / "lineage.png"))
        above = seen(browser, "Search and filter assets").rect
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    assert all(above["y"] + above["height"] < each["y"] < 860 for column in columns for each in column)
    for left, right in pairwise(columns):
        assert max(each["x"] for each in left) < min(each["x"] for each in right)


@pytest.mark.slow
@pytest.mark.parametrize("across", ["Partitions", "Events"])
def test_plots_of_what_was_measured(server: WebServer, browser: webdriver.Chrome, tmp_path: Path, across: str):
    """Numbers of an experiment are drawn as lines, over its cells and over time."""
    browser.get(f"{server.url}/assets/small/evaluation/tent")
    seen(browser, "Plots").click()
    seen(browser, across).click()

    for name in ("error", "ece", "images_per_s", "wall_s", "peak_rss_gib"):
        title = seen(browser, name)
        plot = title.find_element(By.XPATH, "following::canvas")
        browser.execute_script("arguments[0].scrollIntoView()", title)
        patiently(browser).until(lambda _, plot=plot: has_a_line(plot.screenshot_as_png), f"{name} is not drawn")
        browser.save_screenshot(str(tmp_path / f"{name}.png"))


@pytest.mark.slow
def test_a_check_says_what_it_found_and_in_which_cells(server: WebServer, browser: webdriver.Chrome):
    """Its page shows its result of the newest cell and how many cells passed: all of them."""
    browser.get(f"{server.url}/assets/small/evaluation/tent?view=checks")
    seen(browser, "every_sample_evaluated_once").click()
    for text in ("Passed", "150"):
        assert seen(browser, text).is_displayed()
    seen(browser, "Partitions").click()
    for text in ("4 Partitions", "Passed (4)", "Missing (0)", "Failed (0)"):
        assert seen(browser, text).is_displayed()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("benchmark", "status", "says"),
    [
        ("small", "SUCCESS", ""),
        ("slow", "FAILURE", "slow/shard_manifest has no materialized partition"),
    ],
)
def test_checks_on_their_own_are_of_all_that_was_made(
    server: WebServer, browser: webdriver.Chrome, benchmark: str, status: str, says: str
):
    """Execute all, which gives no partition, checks again each cell that was materialized; without any it fails."""
    known = server.runs()
    browser.get(f"{server.url}/assets/{benchmark}/shard_manifest?view=checks")
    assert seen(browser, "every_class_present").is_displayed()  # the button waits for them
    seen(browser, "Execute all").click()
    patiently(browser).until(lambda _: server.runs() != known)

    run = server.end(server.runs()[0])

    assert status == run.status, run.errors
    assert says in run.errors
    assert (4 * 3 if status == "SUCCESS" else 0) == server.checks_made(run.run_id)


@pytest.mark.slow
def test_a_launched_cell_succeeds(server: WebServer, browser: webdriver.Chrome):
    """Materialize, a cell, Launch: the run is a success, and its result has the error of the same cell elsewhere."""
    launch(server, browser, "slow/evaluation/norm")

    assert seen(browser, "Success").is_displayed()
    known, made = (contrast_5(server.project, benchmark, "norm") for benchmark in ("small", "slow"))
    assert known.evaluations[0].error == made.evaluations[0].error
    assert made.run_id in browser.current_url


@pytest.mark.slow
def test_a_cancelled_run_ends_and_leaves_nothing_half_done(server: WebServer, browser: webdriver.Chrome):
    """Terminate, in the middle of adaptation: the process goes, and there is no result and no unpublished file."""
    seconds_to_cancel(server, browser)


@pytest.mark.slow
def test_a_cancelled_run_is_gone_within_two_seconds(server: WebServer, browser: webdriver.Chrome):
    """On a machine that does nothing else: the median of three."""
    assert sorted(seconds_to_cancel(server, browser) for _ in range(3))[1] <= 2


def seconds_to_cancel(server: WebServer, browser: webdriver.Chrome) -> float:
    """Start a long run, cancel it, see that nothing is half done, and return the seconds until its process had gone."""
    launch(server, browser, "slow/evaluation/tent")
    process_id = int(re.findall(r"\d+", seen(browser, "Started process for run (pid: ", whole=False).text)[0])
    patiently(browser).until(lambda _: says(browser, " of 150 images, "), "the run does not say how far it is")
    seen(browser, "Terminate").click()
    confirm = seen(browser, "Terminate 1 run")

    clicked = time.monotonic()
    confirm.click()
    assert happens(lambda: not is_running(process_id), within_s=PATIENCE_S)
    took_s = time.monotonic() - clicked

    assert seen(browser, "Canceled").is_displayed()
    assert not list(server.project.locations.root.rglob("*unpublished*"))
    assert not (server.project.locations.results("slow") / "evaluations" / "tent").exists()
    return took_s


def launch(server: WebServer, browser: webdriver.Chrome, asset: str) -> None:
    """Materialize contrast 5 of *asset*, whose inputs Dagster has not seen made, and look at the run."""
    browser.get(f"{server.url}/assets/{asset}")
    seen(browser, "Materialize…").click()
    seen(browser, "Confirm").click()
    for key in ("5", "contrast"):  # the last field that is still empty comes first
        seen(browser, "Select a partition or create one").click()
        seen(browser, key, within="//*[@role='menuitem']").click()
        seen(browser, f"Launch runs to materialize {asset.replace('/', ' / ')}").click()  # what closes the menu
    seen(browser, "Launch 1 run").click()
    seen(browser, "View").click()


def seen(browser: webdriver.Chrome, text: str, *, within: str = "", whole: bool = True) -> Any:
    """Return the innermost element that shows *text* and nothing else, or among others, as soon as it stands still.

    A click on it fails if anything covers it.
    """
    shows = f"normalize-space()='{text}'" if whole else f"contains(normalize-space(), '{text}')"
    before = None

    def at_rest(browser: webdriver.Chrome) -> Any:
        nonlocal before
        found = [each for each in browser.find_elements(By.XPATH, f"{within}//*[{shows}]") if each.is_displayed()]
        now, last = (found[-1].rect, before) if found else (None, None)
        before = now
        return found[-1] if now and now == last else None

    return patiently(browser).until(at_rest, f"no {text!r} is shown")


def says(browser: webdriver.Chrome, text: str) -> bool:
    """Tell whether the page shows *text*, though it moves: lines of a log do with each that comes."""
    return bool(browser.execute_script("return document.body.innerText.includes(arguments[0])", text))


def patiently(browser: webdriver.Chrome) -> WebDriverWait[webdriver.Chrome]:
    """Return what waits, also while the page draws anew what was just found."""
    return WebDriverWait(browser, PATIENCE_S, 0.1, [StaleElementReferenceException])


def has_a_line(png: bytes) -> bool:
    """Tell whether a picture has something in colour; axes, grid and labels are grey."""
    with Image.open(io.BytesIO(png)) as image:
        saturation = np.asarray(image.convert("HSV"))[..., 1]
    return bool((saturation > 128).sum() > 100)
