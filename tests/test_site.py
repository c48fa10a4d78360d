"""The documentation's pages as a whole: all are in the site, summaries say what details say, and generated pages are up to date."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = [pytest.mark.end_to_end, pytest.mark.repository]

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DETAILS = sorted((DOCS / "measured").glob("*.md"))


def test_figures_of_the_summary_are_those_of_the_details() -> None:
    """Every row of a table in docs/benchmarks.md but the list of pages stands in one of them, to the letter."""
    details = {line for page in DETAILS for line in page.read_text().splitlines()}
    rows = [line for line in (DOCS / "benchmarks.md").read_text().splitlines() if line.startswith("| ") and "](measured/" not in line]
    assert len(rows) > 30
    assert [row for row in rows if row not in details and row != "| page | what it has |"] == []


@pytest.mark.parametrize("page", DETAILS, ids=lambda page: page.stem)
def test_scripts_know_the_page_that_they_write(page: Path) -> None:
    scripts = {name for line in re.findall(r"^Made by `.*$", page.read_text(), re.M) for name in re.findall(r"benchmarks/(\w+)\.py", line)}
    texts = {name: (ROOT / "benchmarks" / f"{name}.py").read_text() for name in sorted(scripts)}
    told = {name: set(re.findall(r"docs/measured/([\w-]+)\.md", text)) for name, text in texts.items() if "--markdown" in text}
    assert told == {name: {page.stem} for name in told}


@pytest.mark.parametrize("script", ["make_operators.py", "make_reference.py", "make_conformance.py"])
def test_generated_pages_are_up_to_date(script: str) -> None:
    done = subprocess.run([sys.executable, str(DOCS / script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"python docs/{script} writes them again: {done.stdout}{done.stderr}"


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


def test_hints_to_install_name_extras_that_there_are() -> None:
    """In errors, pages and READMEs: `pip install '.[check]'` and `pip install 'qconvert[torch]'`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    package = [path for path in (ROOT / "qconvert").rglob("*.py") if path.name != "scaffold.py"]  # which writes of its own package
    texts = [*package, *DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    named = {
        extra.strip(): path
        for path in texts
        for extras in re.findall(r"pip install ['\"]?(?:qconvert|\.)\[([^\]{]+)\]", path.read_text())
        for extra in extras.split(",")
    }
    assert {"check", "torch", "mnn", "micro", "tensorrt"} <= {*named}
    assert [f"{extra} in {path}" for extra, path in named.items() if extra not in project["optional-dependencies"]] == []


#: Where an error names an extra for a package of another name than the module that is imported: extra -> package.
ASKED_FOR = {
    "images": "pillow",
    "cluster": "distributed",
    "mnn": "mnn",
    "torch": "torch",
    "tensorrt": "tensorrt-rtx",
    "texts": "tokenizers",
}


def test_packages_that_errors_ask_for_are_in_their_extras() -> None:
    """`runtime_package(module, "qconvert[extra]", …)` and the errors of other rooms: what is missing is what the extra installs."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    texts = {path: path.read_text() for path in (ROOT / "qconvert").rglob("*.py")}
    calls = {call for text in texts.values() for call in re.findall(r"runtime_package\(\s*\"([\w.]+)\",\s*\"qconvert\[(\w+)\]\"", text)}
    assert len(calls) >= 3
    asked = {(extra, module.partition(".")[0].replace("_", "-")) for module, extra in calls} | {*ASKED_FOR.items()}
    lacking = [
        (extra, package)
        for extra, package in sorted(asked)
        if not any(r.lower().replace("_", "-").startswith(package) for r in extras[extra])
    ]
    assert lacking == []
    named = {extra for text in texts.values() for extra in re.findall(r"qconvert\[(\w+)\]", text)}
    assert named <= {extra for extra, _ in asked}


def test_the_menu_names_pages_that_there_are() -> None:
    """mkdocs says so too, when the site is built; here it costs nothing."""
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    named = re.findall(r"([\w/-]+\.md)$", menu, re.M)
    elsewhere = ("index.md", "changelog.md", "contributing.md")
    assert len(named) > 40
    assert [page for page in named if page not in elsewhere and not (DOCS / page).exists()] == []


def test_nothing_in_pages_is_loaded_from_elsewhere() -> None:
    """Pictures of pages and diagrams are files next to them."""
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        for source in re.findall(r"!\[[^\]\n]*\]\(([^)\s]+)\)", page.read_text()):
            assert (page.parent / source).exists(), f"{page}: {source}"
        assert "```mermaid" not in page.read_text(), f"{page}: the theme would load mermaid from elsewhere"
    for picture in DOCS.rglob("*.svg"):
        assert not re.findall(r"(?:href|src)=\"(?!#)|url\((?!#)|@import|<script", picture.read_text()), picture
