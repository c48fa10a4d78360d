"""The rooms of qconvert and the imports between them, read from the code; draws the picture in docs/architecture.md.

python docs/make_house.py            writes docs/pictures/house.svg, and the lines between the marks in docs/architecture.md
python docs/make_house.py --check    says whether they are up to date
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from house_picture import drawn

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "qconvert"
PAGE = Path(__file__).with_name("architecture.md")
PICTURE = PAGE.parent / "pictures" / "house.svg"
BEGIN, END = "<!-- house: begin (docs/make_house.py) -->", "<!-- house: end -->"

#: From the bottom up: a room may import those before it, and of its own floor none but those before it.
FLOORS = (
    "version lazy garbage errors",
    "arguments",
    "files arithmetic tables",
    "checkpoints",
    "graph",
    "operators",
    "rules",
    "evaluate",
    "kernels",
    "rewriting",
    "encodings",
    "plugins",
    "data",
    "formats.reading formats.writing formats.flatbuffers",
    "formats.tflite formats.onnx formats.torch formats.qgraph formats.encodings formats.mnn formats.ncnn formats.calibration_cache "
    "formats.checkpoints",
    "targets",
    "passes",
    "conversion",
    "live",
    "runtimes",
    "calibration",
    "streaming",
    "partitioning",
    "checking",
    "benchmarking",
    "reports",
    "batches",
    "conformance",
    "plugin",
    "testing",
    "pytest_plugin",
    "qconvert",
    "cli",
    "__main__",
)
ORDER = [room for floor in FLOORS for room in floor.split()]


def room_of(module: str) -> str:
    """The room that a module belongs to; "qconvert" is the public API, qconvert/__init__.py."""
    parts = module.split(".")[1:]
    if not parts:
        return "qconvert"
    return ".".join(parts[:2]) if parts[0] == "formats" and len(parts) > 1 else parts[0]


def modules() -> dict[str, Path]:
    """Every module of the package with its file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("qconvert", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> tuple[tuple[str, str, int], ...]:
    """(module, what it imports, line), those inside functions and under TYPE_CHECKING too."""
    return tuple(_imports())


def _imports() -> Iterator[tuple[str, str, int]]:
    known = modules()
    for module, path in known.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named = [(alias.name, node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                named = [(inner if (inner := f"{node.module}.{alias.name}") in known else node.module, node.lineno) for alias in node.names]
            else:
                continue
            yield from ((module, name, line) for name, line in named if name.split(".")[0] == "qconvert")


def arrows() -> dict[tuple[str, str], list[str]]:
    """(room, room that it imports) -> the places."""
    found: dict[tuple[str, str], list[str]] = {}
    for module, name, line in imports():
        pair = room_of(module), room_of(name)
        if pair[0] != pair[1]:
            found.setdefault(pair, []).append(f"{module}:{line} imports {name}")
    return found


def reduced(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows that no path of other arrows stands for, so that the picture can be read."""
    below = {room: {b for a, b in pairs if a == room} for room in ORDER}

    def reach(room: str) -> set[str]:
        return below[room].union(*(reach(other) for other in below[room]))

    return {(a, b) for a, b in pairs if not any(b in reach(other) for other in below[a] if other != b)}


def picture() -> str:
    """The marked part of docs/architecture.md, around the picture itself."""
    found = arrows()
    rooms = {room_of(module) for module in modules()}
    return (
        "![The rooms of qconvert](pictures/house.svg)\n\n"
        f"{len(rooms & {*ORDER})} rooms, {len(found)} arrows; those that a longer path implies are not drawn."
    )


def svg() -> str:
    """The picture, docs/pictures/house.svg."""
    rooms = {room_of(module) for module in modules()}
    arrows_drawn = sorted(reduced(set(arrows())), key=lambda pair: (ORDER.index(pair[0]), ORDER.index(pair[1])))
    return drawn([room for room in ORDER if room in rooms], arrows_drawn)


def page() -> str:
    """docs/architecture.md with the picture as the code is now."""
    text = PAGE.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    return f"{before}{BEGIN}\n{picture()}\n{END}{after}"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        raise SystemExit(PAGE.read_text() != page() or PICTURE.read_text() != svg())
    PAGE.write_text(page())
    PICTURE.write_text(svg())
