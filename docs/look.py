"""Opens every page of the built site in Chromium and says what is wrong with it: `make look`.

python docs/look.py build/site [--pictures FOLDER] [--match TEXT]

Each page is opened narrow and wide, light and dark. What it prints on the console, what it asks for that is not there or not in the site,
and what hangs over its right edge is a fault. With --pictures it keeps a picture of the top of each page as it looked.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

#: Width in pixels, and the colours, which the theme calls default and slate.
LOOKS = ((1280, "default"), (1280, "slate"), (400, "slate"))
_WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
_BROKEN = "() => [...document.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src)"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what is wrong is seen in the browser."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The site on a port of this machine alone; gives its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=site)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Looker:
    """A tab of the browser, and what pages say or ask for in it."""

    def __init__(self, browser: Any, place: str) -> None:
        self._tab = browser.new_page()
        self._place = place
        self._said: list[str] = []
        inside = (place, "data:", "blob:", "about:")
        self._tab.on("console", lambda message: self._hear(message.type in ("error", "warning"), f"console: {message.text}"))
        self._tab.on("pageerror", lambda error: self._hear(True, f"script: {error}"))
        self._tab.on("request", lambda request: self._hear(not request.url.startswith(inside), f"asks for {request.url}"))
        self._tab.on("requestfailed", lambda request: self._hear(True, f"lacks {request.url}"))

    def _hear(self, wrong: bool, what: str) -> None:
        if wrong:
            self._said.append(what)

    def faults(self, name: str, pictures: Path | None) -> Iterator[str]:
        """What is wrong with one page, in any look."""
        self._said.clear()
        self._tab.set_viewport_size({"width": LOOKS[0][0], "height": 900})
        self._tab.goto(f"{self._place}{name}.html")
        for width, scheme in LOOKS:
            self._tab.set_viewport_size({"width": width, "height": 900})
            self._tab.evaluate("scheme => document.body.setAttribute('data-md-color-scheme', scheme)", scheme)
            if (wider := self._tab.evaluate(_WIDER)) > 0:
                yield f"{wider} pixels hang over the edge of {width}"
            if pictures:
                self._tab.wait_for_timeout(300)  # colours fade into each other
                self._tab.screenshot(path=pictures / f"{name.replace('/', '-')}-{width}-{scheme}.png")
        if not self._tab.evaluate("() => document.querySelector('article h1') !== null"):
            yield "has no heading"
        yield from (f"picture: {source}" for source in self._tab.evaluate(_BROKEN))
        yield from self._said


def searched(browser: Any, place: str) -> Iterator[str]:
    """What is wrong with the search, which runs in the browser."""
    tab = browser.new_page()
    tab.goto(f"{place}index.html")
    tab.locator(".md-search__input").fill("requantize")
    try:
        tab.wait_for_selector(".md-search-result__item", timeout=10_000)
    except Exception as error:
        yield f"the search finds nothing: {str(error).splitlines()[0]}"
    tab.close()


def main(arguments: list[str]) -> int:
    """Looks at all pages; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of what was seen")
    parser.add_argument("--match", default="", help="look at pages with this in their path alone")
    given = parser.parse_args(arguments)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("nobody looked at the pages: there is no Chromium (on Debian: apt-get install chromium)")
        return 0
    from playwright.sync_api import sync_playwright

    site = given.site.resolve()
    names = sorted(page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html"))
    pages = [name for name in names if given.match in name and name != "404"]
    wrong = 0
    with served(site) as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        looker = Looker(browser, place)
        for fault in searched(browser, place):
            print(fault)
            wrong += 1
        for name in pages:
            for fault in looker.faults(name, given.pictures):
                print(f"{name}: {fault}")
                wrong += 1
        browser.close()
    print(f"{len(pages)} pages, each in {len(LOOKS)} looks: {wrong or 'no'} faults")
    return int(wrong > 0 or not pages)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
