"""movement_in_float: quantized data are moved, chosen and compared as the float values that they stand for. Exact.

Of 2 and 4 bits for every target: ONNX allows few of its operators on such integers, and onnxruntime (1.31) has kernels for Transpose alone.
Of any number of bits for a target whose `moves_in_float` says so: compilers and accelerators know an operator on integers by the Dequantize
before it and the Quantize after it, and refuse one that stands on the integers themselves. Nothing is rounded on the way: what comes out
has the quantization that went in, or is quantized as it was.
"""

from __future__ import annotations

from qconvert.graph import Graph, Op
from qconvert.operators import kind_of
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter

_FEW = ("int2", "uint2", "int4", "uint4")


def movement_in_float(graph: Graph, target: Target | None) -> PassResult:
    """Put each such operator between Dequantize and Quantize; of few bits, what one gives to the next is not quantized between them."""
    rewriter = Rewriter(graph)
    every = target is not None and target.storage.moves_in_float
    reals: dict[str, str] = {}  # quantized data -> the same values in float32

    def emit_dequantize(name: str, op: Op) -> str:
        if name not in reals:
            reals[name] = rewriter.dequantize(name, f"{name}/moved", op.source)
        return reals[name]

    moved: list[str] = []
    for op in rewriter:
        if not _is_concerned(graph, op, every):
            continue
        inputs = [emit_dequantize(name, op) if graph.is_quantized(name) else name for name in op.inputs]
        results = rewriter.run_in_float(op, inputs, "moved")
        pairs = [(name, real) for name, real in zip(op.outputs, results, strict=True) if name != real]
        if kind_of(op).rule == "move" and not every:  # what is moved has its quantization already
            reals.update(pairs)
            moved += [name for name, _ in pairs]
    for name in moved:
        if name not in graph.public and all(map(rewriter.is_replaced, rewriter.readers[name])):
            rewriter.relate(name, reals[name])
    what = "data" if every else "data of 2 or 4 bits"
    return rewriter.finish_with(lambda count: f"{count} operators move, select or compare {what} in float", prune=True)


def _is_concerned(graph: Graph, op: Op, every: bool) -> bool:
    kind = kind_of(op)
    if (kind.transposes and not every) or not (kind.rule in ("move", "index") or kind.chooses or kind.clips or kind.layout.sized):
        return False
    return any(graph.is_quantized(name) and (every or graph[name].dtype in _FEW) for name in op.names)
