"""Every row of the kernels (qconvert/kernels) against its runtime: random operators, elements compared, and those beyond what the row says.

    python benchmarks/kernel_rows.py [KERNELS ...] [--count 40] [--markdown docs/measured/kernels.md]

The second table has the rows without a reference, and why. References of operators that no target writes were tried one by one
(tests/test_kernel_tolerances.py, tests/test_float_kernels.py).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from page import Section, publish

from qconvert.conformance.examples import QUANTIZED_KINDS
from qconvert.kernels import KERNELS
from qconvert.testing import try_kernels

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from test_kernel_problems import CASES


def try_rows(kernels: str, count: int) -> list[str]:
    """A set of kernels as a row of the table."""
    rows = KERNELS[kernels]
    kinds = [kind for kind in QUANTIZED_KINDS if any(kind in row.kinds and row.runs in ("integers", "float") for row in rows.rows)]
    tried = [item for target, types in CASES[kernels] for item in try_kernels(kernels, target, kinds=kinds, types=types, count=count)]
    known, reached = sum(row.reference is not None for row in rows.rows), len({id(item.row) for item in tried})
    elements, differing = (sum(getattr(item, name) for item in tried) for name in ("elements", "differing"))
    targets = ", ".join(target for target, _ in CASES[kernels])
    return [kernels, targets, str(len(rows.rows)), str(known), str(reached), f"{elements:,}", str(differing)]


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
    parser.add_argument("--count", type=int, default=40, help="problems of each kind and type")
    parser.add_argument("--markdown", type=Path, help="the page to update")
    given = parser.parse_args()
    header = ["kernels", "targets", "rows", "with a reference", "reached", "elements", "beyond their rows"]
    tried = Section("Rows against their runtimes", header, [try_rows(name, given.count) for name in given.kernels], "")
    header = ["kernels", "kinds", "types", "why"]
    unknown = Section("Rows without a reference", header, unknown_rows(), "Rows of operators in float are left out.")
    for section in (tried, unknown):
        publish(section, given.markdown, "python benchmarks/kernel_rows.py", 200)


if __name__ == "__main__":
    main()
