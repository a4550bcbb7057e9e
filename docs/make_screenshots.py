"""Photograph the report of `make demo`: `.venv/bin/python docs/make_screenshots.py data/digits_c/report`.

The pictures are in docs/images/. Needs chromium and chromedriver on the PATH.
"""

import io
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

sys.path.insert(0, str(Path(__file__).parents[1]))
from tta_pipeline_tests.chromium import chromium

IMAGES = Path(__file__).parent / "images"
SHOTS = (
    ("report", "index.html", 1200, 1500, "light"),
    ("report_phone", "index.html#heat_map", 390, 844, "dark"),
    ("cell", "cells/fog-5.html#samples", 1200, 1100, "light"),
    ("compare", "compare.html?a=tent&b=norm", 1200, 1000, "dark"),
)
"""Name of the picture, page, width and height in pixels, theme."""


def photograph(browser: webdriver.Chrome, url: str, width: int, height: int, theme: str) -> Image.Image:
    """Return what the browser shows of *url*."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(url)
    WebDriverWait(browser, 30).until(lambda each: each.execute_script("return document.readyState") == "complete")
    time.sleep(1)  # charts are drawn after the page is complete
    return Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")


def main(report: Path) -> None:
    """Write each picture, with 256 colours."""
    with TemporaryDirectory() as profile, chromium(Path(profile)) as browser:
        for name, page, width, height, theme in SHOTS:
            image = photograph(browser, f"{report.resolve().as_uri()}/{page}", width, height, theme)
            image.quantize(256, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
