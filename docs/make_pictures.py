"""Pictures of a report's graphs for the documentation: docs/pictures/graphs.png.

build/tools/bin/python docs/make_pictures.py REPORT.html

The report is that of a check, such as `qconvert check model.tflite model.onnx --per-op --html REPORT.html`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def main(report: str) -> None:
    """Chooses an operator in the middle of the source's graph, and takes the graphs and what is shown of it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1100, "height": 680}, device_scale_factor=1.25)
        tab.goto(Path(report).resolve().as_uri())
        tab.wait_for_selector("html.drawn")
        tab.locator(".view").first.locator("g.node").nth(3).press("Enter")
        tab.wait_for_timeout(300)
        section = tab.locator("section", has=tab.locator(".panes")).first
        tab.evaluate("scrollTo(0, 0)")
        box = section.bounding_box() or {}
        place = Path(__file__).parent / "pictures" / "graphs.png"
        tab.screenshot(path=place, clip={**box, "height": 900}, full_page=True)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
