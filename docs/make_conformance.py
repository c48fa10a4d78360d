"""What works where, tried: docs/conformance.json, and docs/conformance.md, the view of it.

python docs/make_conformance.py            tries every kind, type and target, and writes both
python docs/make_conformance.py --check    says whether the page is that of the JSON; tests/test_conformance.py tries what that says
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ["QCONVERT_DISABLE_PLUGINS"] = "1"  # what is installed next to qconvert is no part of it
DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

from make_operators import FAMILIES, table, written  # noqa: E402

from qconvert.conformance.examples import find_kinds_without_example  # noqa: E402
from qconvert.conformance.matrix import TARGETS, Cell, conformance  # noqa: E402
from qconvert.operators import KINDS  # noqa: E402

JSON, PAGE = DOCS / "conformance.json", DOCS / "conformance.md"
MADE = "<!-- made by docs/make_conformance.py; change the code, not this page -->"
#: How the page says what became of an operator.
_SIGNS = {"equal": "=", "explained": "≈", "one step": "1", "different": "≠", "": ""}
_RUNS = {"integers": "i", "floats": "f", "refused": "–", "fails": "✗"}
_INTRODUCTION = """\
One operator of each kind and type, with random scales and data, is converted for each target, written, read again and run in the target's
runtime; its results are compared with the exact value, rounded once. docs/conformance.json has the same for programs, with reasons.

A cell has one entry for each type. **i** runs on integers, **f** in float (between Dequantize and Quantize where it is quantized), **–**
is refused, with a reason; **✗** is a fault: the runtime does not take the file, or it cannot be read again. Then the result: **=** equal
in every element, **≈** within what the kernel's row in kernels/ says, or in the last bits of floats, **1** at most one step of the result
away, **≠** further. **∘** says that other operators stand for it in the file, by a formula or a pass. TensorRT's files are not run here.
"""


def stored(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Return cells as they stand in the JSON, without the size of differences, which depends on the processor."""
    return [{name: value for name, value in cell.to_json().items() if name != "largest"} for cell in cells]


def _entry(cell: Mapping[str, Any]) -> str:
    is_other = cell["runs"] != "refused" and cell.get("form", []) != [cell["kind"]]
    return _RUNS[cell["runs"]] + _SIGNS[cell.get("result", "")] + ("∘" if is_other else "")


def _rows(cells: Sequence[Mapping[str, Any]], kinds: Iterable[str]) -> Iterator[list[str]]:
    """Yield a row for each kind; types with the same entries in all targets stand together."""
    by_kind: dict[str, dict[str, dict[str, str]]] = {}
    for cell in cells:
        by_kind.setdefault(cell["kind"], {}).setdefault(cell["dtype"], {})[cell["target"]] = _entry(cell)
    for kind in kinds:
        alike: dict[tuple[str, ...], list[str]] = {}
        for dtype, found in by_kind.get(kind, {}).items():
            alike.setdefault(tuple(found.get(target, "") for target in TARGETS), []).append(dtype)
        for place, (entries, types) in enumerate(alike.items()):
            yield [f"**{kind}**" if not place else "", " ".join(types).replace("plain", "its own"), *entries]


def page(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of what cells say."""
    lines = ["# What works where", "", MADE, "", _INTRODUCTION]
    counts = {target: Counter(_entry(cell)[:2].strip("∘") for cell in cells if cell["target"] == target) for target in TARGETS}
    signs = sorted({sign for count in counts.values() for sign in count})
    lines += table(("target", "run with", *signs), ([target, kernels or "not run", *(str(counts[target][sign] or "") for sign in signs)]
                                                    for target, kernels in TARGETS.items()))  # fmt: skip
    tried = {cell["kind"] for cell in cells}
    families: dict[str, list[str]] = {}
    for name in KINDS:
        if name in tried:
            families.setdefault(_family(name), []).append(name)
    for family, kinds in families.items():
        lines += ["", f"## {FAMILIES[family]}", "", *table(("kind", "types", *TARGETS), _rows(cells, kinds))]
    lines += ["", "## Why operators are refused or fail", ""]
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell["runs"] in ("refused", "fails"):
            reasons.setdefault((cell["target"], _general(cell)), []).append(f"{cell['kind']} {cell['dtype']}")
    lines += table(("target", "reason", "operators"), ([target, reason, _listed(names)] for (target, reason), names in reasons.items()))
    lines += ["", "## What is tried elsewhere", ""]
    lines += table(("kinds", "why not here"), ([", ".join(kinds), why] for why, kinds in _grouped(find_kinds_without_example())))
    return "\n".join(lines).rstrip() + "\n"


def _family(name: str) -> str:
    return next(family for family in FAMILIES if any(kind.name == name for kind in import_module(f"qconvert.operators.{family}").KINDS))


def _general(cell: Mapping[str, Any]) -> str:
    """Return a reason without what is said of one operator alone, as a cell of a table."""
    reason = str(cell["reason"]).split("; the model has others")[0].split("\n")[0].replace(cell["kind"], "the operator")
    return reason.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")[:200]


def _listed(names: Sequence[str]) -> str:
    kinds: dict[str, list[str]] = {}
    for name in names:
        kind, _, dtype = name.partition(" ")
        kinds.setdefault(kind, []).append(dtype)
    return ", ".join(f"{kind} ({' '.join(types)})" if types != ["plain"] else kind for kind, types in kinds.items())


def _grouped(reasons: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    for why in dict.fromkeys(reasons.values()):
        yield why, [kind for kind, reason in reasons.items() if reason == why]


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        tried = [cell for target, kernels in TARGETS.items() for cell in stored(conformance(target, kernels))]
        JSON.write_text("[\n" + ",\n".join(json.dumps(cell) for cell in tried) + "\n]\n")
    raise SystemExit(written({PAGE: page(json.loads(JSON.read_text()))}, sys.argv[1:]))
