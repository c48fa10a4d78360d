"""Passes change graphs through the Rewriter alone: none has a walker, or a helper for names and constants, of its own."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What the Rewriter has: free names, the operators of the new graph, tensors that are put into it, dead code.
OWN = re.compile(r"\bgraph\.names\(|\bNames\(|\bops\.append\(|\.evolve\([^)]*\b(?:ops|tensors)=|(?<!def )\bremove_dead_code\(")
#: Pass -> what it has nevertheless, and why.
KEPT = {
    "fuse_recurrence.py": (1, "names of functions, which are no tensors"),
    "match_rounding.py": (4, "graphs whose integers are asked for and that are thrown away"),
    "states.py": (1, "names of functions, which are no tensors"),
    "weight_storage.py": (1, "a graph that is judged and thrown away"),
}


def test_no_pass_has_a_rewriter_of_its_own() -> None:
    passes = ROOT / "qconvert" / "passes"
    found = {str(path.relative_to(passes)): len(OWN.findall(path.read_text())) for path in sorted(passes.rglob("*.py"))}
    assert {name: count for name, count in found.items() if count} == {name: count for name, (count, _) in KEPT.items()}
