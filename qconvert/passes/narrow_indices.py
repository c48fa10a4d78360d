"""narrow_indices: indices of int64 are int32 where whoever reads them takes either, for runtimes whose kernels give int32 alone.

    ArgMax -> int64 -> graph output        ArgMax -> int32 -> graph output

Every index of a tensor that fits into memory on such a device is a number of 32 bits. Exact, but for the type of outputs.
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.errors import format_count
from qconvert.graph import Graph
from qconvert.operators import kind_of
from qconvert.operators.typing import output_type
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def narrow_indices(graph: Graph, target: Target | None) -> PassResult:
    """Change the type of results that a kind says are indices, and that others read as such or not at all."""
    rewriter, count = Rewriter(graph), 0
    for op in graph.ops:
        for place, name in enumerate(op.outputs):
            if name and output_type(kind_of(op), place) == "index" and graph[name].dtype == "int64" and _takes_either(rewriter, name):
                rewriter.define(replace(graph[name], dtype="int32"))
                count += 1
    return rewriter.finish_with(lambda number: f"{format_count(number, 'tensor')} of indices: int32 in place of int64", count)


def _takes_either(rewriter: Rewriter, name: str) -> bool:
    """Whether all operators that read a tensor take integers of 32 bits as well."""
    for reader in rewriter.readers[name]:
        places = [place for place, given in enumerate(reader.inputs) if given == name]
        if not kind_of(reader).casts and not all(kind_of(reader).role(place) == "index" for place in places):
            return False
    return True
