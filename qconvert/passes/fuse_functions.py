"""fuse_functions: functions that an exporter decomposed become one operator again, if the target's format has it.

Gelu, HardSwish, Swish, Mish, LayerNormalization and others, on real or quantized values, in whichever order they are written
(rewriting/recognition.py). Exact in real numbers; a kernel for the whole may give another last bit of a float.
"""

from __future__ import annotations

from collections import Counter

from qconvert.graph import Graph
from qconvert.plugins import Target, operators
from qconvert.rewriting import Rewriter
from qconvert.rewriting.lowering import legality
from qconvert.rewriting.recognition import Recognizer

__all__ = ["run"]

#: The kinds that are looked for; those with more parameters first, as parts of one may look like another.
_KINDS = ("LayerNormalization", "RMSNormalization", "Gelu", "HardSwish", "Mish", "Swish")


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Replace the last operator of each decomposition; parts with other readers stay."""
    writers = operators(target.format, "write") if target is not None else {}
    legal = legality(writers)
    kinds = [kind for kind in _KINDS if target is None or kind in writers]
    rewriter = Rewriter(graph)
    done: Counter[str] = Counter()
    for end, found in Recognizer(graph, kinds).find_operators():
        if target is None or not legal(graph.tensors, found):
            rewriter.replace(end, found)
            done[found.kind] += 1
    if not done:
        return graph, ()
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(done.items()))
    return rewriter.finish(prune=True), (f"decomposed functions are one operator each: {listed}",)
