"""The documentation's pages as a whole: all are in the site, summaries say what details say, and generated pages are up to date."""

from __future__ import annotations

import re
import subprocess
import sys
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


@pytest.mark.parametrize("script", ["make_operators.py", "make_reference.py"])
def test_generated_pages_are_up_to_date(script: str) -> None:
    done = subprocess.run([sys.executable, str(DOCS / script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"python docs/{script} writes them anew: {done.stdout}{done.stderr}"


def test_every_kind_of_operator_says_what_it_means() -> None:
    rows = re.findall(r"^\| \*\*(\w+)\*\* \| (.*?) \|", (DOCS / "operators.md").read_text(), re.M)
    assert len(rows) > 150
    assert [kind for kind, meaning in rows if not meaning.strip()] == []


def test_every_error_is_on_the_page_of_exit_codes() -> None:
    from qconvert import errors

    known = {one.code: one.exit_code for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.QConvertError)}
    told = {
        code: int(exit_code)
        for code, exit_code in re.findall(r"^\| `([\w-]+)` \| .* \| (\d) \|$", (DOCS / "exit-codes.md").read_text(), re.M)
    }
    known.pop("error")
    assert {code: told.get(code) for code in known} == known


def test_every_target_is_in_the_table_of_machines() -> None:
    from qconvert.plugins import targets

    page = (DOCS / "tasks" / "choose-a-target.md").read_text()
    built_in = [name for name in targets() if name != "mnn"]  # chosen by the suffix
    assert [name for name in built_in if f"`{name}`" not in page] == []


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
