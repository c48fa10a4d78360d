"""Pages of reports: how long they take to make, how large they are, and how long a headless Chromium takes to draw them.

python benchmarks/reports.py MODEL [MODEL …]

The browser's time is that of the whole process with the page, less that with an empty page; the least of five each.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import qconvert

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def drawn(page: Path, profile: Path) -> float:
    """Seconds of a browser that dumps the page as it is drawn."""
    assert CHROMIUM is not None, "there is no Chromium here"
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    times = []
    for _ in range(5):
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        times.append(time.monotonic() - began)
    assert page.name == "empty.html" or "drawn" in done.stdout[:200]
    return min(times)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "empty.html").write_text("<!doctype html><title>empty</title>")
        nothing = drawn(folder / "empty.html", folder / "profile")
        for model in map(Path, sys.argv[1:]):
            result = folder / ("result.tflite" if model.suffix == ".onnx" else "result.onnx")
            qconvert.convert(model, result, force=True)
            report = qconvert.check(model, result, per_op=True, samples=1)
            page = folder / "page.html"
            began = time.monotonic()
            qconvert.html_report(report, page)
            made = time.monotonic() - began
            operators = [sum(len(part.ops) for part in (graph, *graph.functions.values())) for graph in map(qconvert.load, (model, result))]
            seconds = drawn(page, folder / "profile") - nothing
            print(f"{model.name}: {report.verdict}; {operators[0]} and {operators[1]} operators; made in {made:.1f} s; "
                  f"{page.stat().st_size / 1e6:.2f} MB; drawn in {seconds:.2f} s")  # fmt: skip


if __name__ == "__main__":
    main()
