"""The documentation's pages as a whole: all are in the site, summaries say what details say, and generated pages are up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DETAILS = sorted((DOCS / "benchmarks").glob("*.md"))


def test_figures_of_the_summary_are_those_of_the_details() -> None:
    """Every row of a table in docs/benchmarks.md but the list of pages stands in one of them, to the letter."""
    details = {line for page in DETAILS for line in page.read_text().splitlines()}
    rows = [line for line in (DOCS / "benchmarks.md").read_text().splitlines() if line.startswith("| ") and "](benchmarks/" not in line]
    assert len(rows) > 30
    assert [row for row in rows if row not in details and row != "| page | what it has |"] == []


@pytest.mark.parametrize("page", DETAILS, ids=lambda page: page.stem)
def test_scripts_know_the_page_that_they_write(page: Path) -> None:
    scripts = {name for line in re.findall(r"^Made by `.*$", page.read_text(), re.M) for name in re.findall(r"benchmarks/(\w+)\.py", line)}
    texts = {name: (ROOT / "benchmarks" / f"{name}.py").read_text() for name in sorted(scripts)}
    told = {name: set(re.findall(r"docs/benchmarks/([\w-]+)\.md", text)) for name, text in texts.items() if "--markdown" in text}
    assert told == {name: {page.stem} for name in told}
