"""Every row of the kernels (qconvert/kernels) that has a reference against its runtime, on random operators (kernel_problems.py).

    python benchmarks/kernel_rows.py [KERNELS ...] [--cases 1000000] [--results FILE] [--markdown docs/measured/kernels.md]

Each kind and type of data is tried until every row that it reached has as many elements, and an operator with scales and zero points of
its own for each 5,000 of them, or twice as many operators have been tried. What --results has is not tried again, so that a run goes on
where it ended.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from kernel_problems import vary
from page import Section, publish

from qconvert.conformance.examples import QUANTIZED_KINDS
from qconvert.kernels import KERNELS, Kernel
from qconvert.plugins import Derived, Target, find_target
from qconvert.testing import Tried, try_kernels

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from test_kernel_problems import CASES

_BATCH, _ELEMENTS, _ATTEMPTS = 25, 5_000, 2


def list_problems(kernels: str) -> Iterator[tuple[str, Target | Derived, str, str]]:
    """Yield target, kind and type for all that rows of a set of kernels with a reference take, each target with its name.

    Operators that a target leaves in float, though there is a kernel, are written without the target's passes.
    """
    rows = [row for row in KERNELS[kernels].rows if row.reference is not None]
    for name, types in CASES[kernels]:
        target = find_target(name)
        for kind in QUANTIZED_KINDS:
            own = [row for row in rows if kind in row.kinds]
            for dtype in types:
                if any(row.runs != "inexact" for row in own if not row.types or dtype in row.types):
                    yield name, target, kind, dtype
                if any(row.runs == "inexact" for row in own if not row.types or dtype in row.types):
                    yield f"{name} as it is", replace(target, passes=()), kind, dtype


def find_row(kernels: str, row: Kernel) -> tuple[str, int] | None:
    """Return the set of the runtime's kernels that has a row, and its place there; None for a row of the target."""
    runtime = kernels.partition(":")[0]
    sets = [kernels, *(name for name in KERNELS if name.startswith(f"{runtime}:"))]
    return next(((name, place) for name in sets for place, item in enumerate(KERNELS[name].rows) if item is row), None)


def try_kind(kernels: str, target: Target | Derived, kind: str, dtype: str, cases: int) -> list[dict[str, Any]]:
    """Try a kind and a type until every row that is reached has enough cases, and return what became of them, by row."""
    totals: dict[tuple[str, int], dict[str, Any]] = {}
    least = max(cases // _ELEMENTS, _BATCH)
    for batch in range(_ATTEMPTS * least // _BATCH):
        rng = np.random.default_rng((batch, *kind.encode(), *dtype.encode()))
        examples = [vary(kind, rng, 2 * cases // least) for _ in range(_BATCH)]
        found = try_kernels(kernels, target, kinds=[kind], types=(dtype,), count=_BATCH, seed=batch, examples=examples)
        for item in found:
            _add(totals, kernels, item)
        done = (batch + 1) * _BATCH >= least
        if done and all(total["known"] >= cases and total["problems"] >= least for total in totals.values() if total["known"]):
            break
    return list(totals.values())


def _add(totals: dict[tuple[str, int], dict[str, Any]], kernels: str, item: Tried) -> None:
    place = find_row(kernels, item.row)
    if place is None or not item.known:
        return
    total = totals.setdefault(place, {"set": place[0], "row": place[1], "problems": 0, "known": 0, "differing": 0, "worst": 0.0})
    total["worst"] = max(total["worst"], item.worst)
    for name in ("problems", "known", "differing"):
        total[name] += getattr(item, name)


def run_all(chosen: list[str], cases: int, results: Path) -> list[dict[str, Any]]:
    """Try what the results lack, write each as a line, and return all."""
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    done = {tuple(line["key"]) for line in lines}
    results.parent.mkdir(parents=True, exist_ok=True)
    for kernels in chosen:
        for name, target, kind, dtype in list_problems(kernels):
            key = (kernels, name, kind, dtype, cases)
            if key in done:
                continue
            found = try_kind(kernels, target, kind, dtype, cases)
            lines.append({"key": key, "found": found})
            with results.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            said = ", ".join(f"{item['set']} {item['row']}: {item['known']:,} ({item['differing']})" for item in found)
            print(*key[:4], said, flush=True)
    return [line for line in lines if line["key"][0] in chosen and line["key"][-1] == cases]


def count_by_set(lines: list[dict[str, Any]], cases: int) -> list[list[str]]:
    """Return for each set of kernels how many rows were compared, and with what result."""
    known: dict[tuple[str, int], int] = defaultdict(int)
    operators, differing = defaultdict[str, int](int), defaultdict[str, int](int)
    for item in (item for line in lines for item in line["found"]):
        known[item["set"], item["row"]] += item["known"]
        operators[item["set"]] += item["problems"]
        differing[item["set"]] += item["differing"]
    table = []
    for name in operators:
        own = [count for (of, _), count in known.items() if of == name and count]
        references = sum(row.reference is not None for row in KERNELS[name].rows)
        numbers = (references, len(own), sum(count >= cases for count in own), operators[name], sum(own), differing[name])
        table.append([name, *(f"{number:,}" for number in numbers)])
    return table


def count_by_kind(lines: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the kinds, with the elements compared by type in each set of kernels."""
    counts: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    differing: dict[tuple[str, str, str], int] = defaultdict(int)
    for line in lines:
        kernels, _, kind, dtype, _ = line["key"]
        for item in line["found"]:
            counts[kind][kernels][dtype] += item["known"]
            differing[kind, kernels, dtype] += item["differing"]
    sets = list(dict.fromkeys(line["key"][0] for line in lines))

    def cell(kind: str, kernels: str) -> str:
        parts = []
        for dtype, count in counts[kind][kernels].items():
            if count:
                wrong = differing[kind, kernels, dtype]
                parts.append(f"{dtype} {count / 1e6:.1f}" + (f" ({wrong:,} differ)" if wrong else ""))
        return ", ".join(parts)

    table = [[kind, *(cell(kind, kernels) for kernels in sets)] for kind in sorted(counts)]
    return ["kind", *sets], [line for line in table if any(line[1:])]


def unknown_rows() -> list[list[str]]:
    """The rows without a reference whose integers are not the exact values, rounded, and why."""
    found: dict[tuple[str, ...], list[str]] = {}
    for kernels, rows in KERNELS.items():
        for row in rows.rows:
            if row.reference is None and row.tolerance is not None and row.runs not in ("nothing", "float"):
                found.setdefault((" ".join(row.kinds), " ".join(row.types), row.unknown), []).append(kernels)
    return [[", ".join(names), *row] for row, names in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", default=list(CASES), help="by default all that can be run")
    parser.add_argument("--cases", type=int, default=1_000_000, help="elements for each kind and type")
    parser.add_argument("--results", type=Path, default=Path("build/kernel_rows.jsonl"), help="what was tried, which is not tried again")
    parser.add_argument("--markdown", type=Path, help="the page to update")
    given = parser.parse_args()
    lines = run_all(given.kernels, given.cases, given.results)
    header = ["kernels", "rows with a reference", "reached", f"with {given.cases:,} elements", "operators", "elements", "differ"]
    note = "Operators have scales, zero points, shapes and attributes of their own; half of them have extreme ones."
    sections = [Section("References against their runtimes", header, count_by_set(lines, given.cases), note)]
    header, table = count_by_kind(lines)
    sections.append(Section("Elements compared, by kind", header, table, "In millions."))
    header = ["kernels", "kinds", "types", "why"]
    for section in sections:
        publish(section, given.markdown, "python benchmarks/kernel_rows.py", 200)
    publish(Section("Rows without a reference", header, unknown_rows(), "Rows of operators in float are left out."), None, "", 200)


if __name__ == "__main__":
    main()
