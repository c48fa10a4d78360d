"""match_rounding: operators give the integers of the source's kernels, where the target's would round otherwise.

Rows of kernels say what the source gives (kernels/). What takes one or two tensors of 8 bits is simply tried on all inputs: for about half
of all additions XNNPACK's 20-bit multipliers and onnxruntime's float32 are equal on all 65,536 pairs. Of the rest, as of 16-bit arithmetic,
means, sums over axes and roots, the row names a form, which the attribute `arithmetic` asks of the format's writer: ONNX's gives additions
other input scales (arithmetic/nudged.py) or writes the arithmetic out in float64, PyTorch's in int64; 16-bit convolutions become two in
float32, where the sums of either half of the data are exact; means are made of integers. Requantizations and LeakyRelus become a LeakyRelu
with another scale and slope (kernels/litert/forms.py), which onnxruntime runs as a table of 256, about as fast as a plain requantization.
It also keeps roundings one after the other apart, which onnxruntime's optimizer merges to one with other integers.

With numerics "strict" the other functions of one tensor of 8 bits follow, as a Gather of what the kernel gives, which takes ten times as
long (docs/measured/forms.md). With numerics "fast" nothing is done.

Additions, averages and first roundings of PyTorch's engines, which a reader notes at the operators: see torch_rounding.py.
"""

from __future__ import annotations

import json
from collections import Counter

import numpy as np

from qconvert.graph import Graph, Op
from qconvert.graph.metadata import SOURCE_KERNELS, STATED_ATTRIBUTES
from qconvert.kernels import Kernels
from qconvert.kernels.proofs import integers_for_all
from qconvert.operators import kind_of
from qconvert.passes.torch_rounding import TorchRounding, drop_torch_rounding, rounds_as_torch
from qconvert.passes.unary_to_table import Tables
from qconvert.plugins import Target, kernels_of_source
from qconvert.rewriting import Rewriter

__all__ = ["run"]

_NOTES = {
    "xnnpack": "additions are decomposed, to round as XNNPACK does for every pair of inputs",
    "xnnpack_qs8": "means and sums over axes are computed in integers and rounded as XNNPACK does",
    "xnnpack_qu8": "means and sums over axes are computed in integers and rounded as XNNPACK does",
    "tflite": "operators are decomposed, to round as TFLite's own kernels do",
    "ties_up": "interpolations take ties up, as XNNPACK does",
    "tflite_hard_swish": "HardSwishes have another scale and slope, to round as TFLite's kernel does for every input",
}
_LINES = "requantizations and LeakyRelus have another scale and slope, to round as XNNPACK does for every input"


def run(graph: Graph, target: Target, *, numerics: str = "exact", biases: str = "round", io: str = "") -> tuple[Graph, tuple[str, ...]]:
    """Mark the operators that the target would round otherwise than the source's kernels; rewrite those of PyTorch's."""
    source = graph.metadata.get(SOURCE_KERNELS, "")
    of_torch = source.startswith("torch:") or (graph.is_from("torch") and biases == "keep") or any(map(rounds_as_torch, graph.ops))
    rewritten: tuple[str, ...] = ()
    if of_torch:
        graph, rewritten = _match_torch(graph, target, numerics, biases, io == "integer")
    found = kernels_of_source(graph) if numerics != "fast" else None
    if found is None or target.format in found[0].formats:
        return graph, rewritten
    matched, notes = _match_kernels(graph, found[1], target.kernels, tables=numerics == "strict")
    return matched, (*rewritten, *notes)


def _match_kernels(graph: Graph, rows: Kernels, own: Kernels, *, tables: bool) -> tuple[Graph, tuple[str, ...]]:
    rewriter = Rewriter(graph)
    made = Tables(rewriter)
    done: Counter[str] = Counter()
    for op in rewriter:
        added = kind_of(op).rule == "convert" and not op.source  # by a pass, which no kernel of the source computes
        kernel = None if added or rounds_as_torch(op) else rows.of(graph, op)
        if kernel is None or not (kernel.arithmetic or tables):
            continue
        values = integers_for_all(graph, op, kernel) if kernel.reference is not None else None
        if values is not None and not (own.merges_roundings and kernel.arithmetic is not None and _rounds_again(graph, op)):
            others = integers_for_all(graph, op, own.of(graph, op))
            if others is not None and np.array_equal(values, others):
                continue
        if arithmetic := kernel.arithmetic(graph, op) if kernel.arithmetic is not None else "":
            rewriter.replace(op, op.with_attributes(arithmetic=arithmetic))
            is_line = arithmetic == "xnnpack" and len(op.inputs) == 1
            done[_LINES if is_line else _NOTES.get(arithmetic, f"operators are decomposed, to round as {arithmetic} does")] += 1
        elif tables and values is not None and values.ndim == 1 and kind_of(op).rounds:
            rewriter.replace(op, *made.lookup(op, op.inputs[0], values))
            done["functions of one tensor are lookup tables, to round as the source's kernels do"] += 1
    return rewriter.finish(), tuple(f"{count} {text}" for text, count in done.items())


def _rounds_again(graph: Graph, op: Op) -> bool:
    """Whether an operator brings integers to another scale, and does nothing else."""
    given, result = (graph[name].quantization for name in (op.inputs[0], op.outputs[0]))
    return kind_of(op).rule == "convert" and given is not None and result is not None and not np.array_equal(given.scale, result.scale)


def _match_torch(graph: Graph, target: Target, numerics: str, biases: str, io_integer: bool) -> tuple[Graph, tuple[str, ...]]:
    if numerics == "fast":
        return drop_torch_rounding(graph), ()
    if target.format not in ("onnx", "tflite"):
        return graph, ()
    rewriter = Rewriter(graph)
    rounding = TorchRounding(rewriter, target, biases == "keep", io_integer)
    for op in rewriter:
        rounding.visit(op)
    notes = tuple(f"{count} {text}" for text, count in rounding.done.items())
    if not rounding.stated:
        return rewriter.finish(), notes
    return rewriter.finish(metadata={**graph.metadata, STATED_ATTRIBUTES: json.dumps(rounding.stated)}), notes
