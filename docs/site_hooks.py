"""What `mkdocs build` does besides (mkdocs.yml): pages that stand elsewhere in the repository, and pages that the menu does not name.

README.md is the first page of the site; CHANGELOG.md, CONTRIBUTING.md and the READMEs of plugins are pages too, each written once. Links to
what is no page go to the repository, if mkdocs.yml names one, else they become plain text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
#: Files of the repository -> the page that they become.
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
_LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(([^)\s]+)\)")
_PICTURE = re.compile(r"(!\[[^\]\n]*\]\()([^)\s]+)(\))")


def pages() -> Iterator[tuple[str, str]]:
    """(file in the repository, page of the site) of what stands outside of docs/."""
    yield from PAGES.items()
    for readme in sorted(ROOT.glob("plugins/*/README.md")):
        yield f"plugins/{readme.parent.name}/README.md", f"plugins/{readme.parent.name}.md"


def moved(text: str, file: str, page: str) -> str:
    """The text of a file as a page of the site: its links and pictures lead to pages, to files in docs/, or are left away."""
    known = dict(pages())

    def place(link: str) -> str | None:
        """Where a link leads from the page; None for what is not in the site."""
        if re.match(r"[a-z]+:|#", link):
            return link
        path, mark, anchor = link.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
        inside = known.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        return None if inside is None else posixpath.relpath(inside, posixpath.dirname(page) or ".") + mark + anchor

    def link(match: re.Match[str]) -> str:
        where = place(match[2])
        return match[1] if where is None else f"[{match[1].removeprefix('docs/')}]({where})"

    return _LINK.sub(link, _PICTURE.sub(lambda match: f"{match[1]}{place(match[2]) or match[2]}{match[3]}", text))


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that stand outside of docs/."""
    for file, page in pages():
        files.append(File.generated(config, page, content=moved((ROOT / file).read_text(), file, page)))
    named = set(_named(config["nav"]))
    rest = [file.src_uri for file in files.documentation_pages() if file.src_uri not in named and file.inclusion.is_included()]
    own = [page for page in rest if page.startswith("plugins/")]
    for title, found in (("Plugins", own), ("More", [page for page in rest if page not in own])):
        if found:
            config["nav"].append({title: sorted(found)})
    return files


def _named(nav: Any) -> Iterator[str]:
    """Every page that the menu names."""
    for item in nav:
        for value in item.values() if isinstance(item, dict) else (item,):
            yield from _named(value) if isinstance(value, list) else (value,)
