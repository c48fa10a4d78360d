"""match_rounding: operators give the integers of the source's kernels, where the target's would round otherwise.

Rows of kernels say what the source gives (kernels/). What takes one or two tensors of 8 bits is simply tried on all inputs: for about half
of all additions XNNPACK's 20-bit multipliers and onnxruntime's float32 are equal on all 65,536 pairs. Of the rest, as of 16-bit arithmetic,
means, sums over axes and roots, the row names a form, which the attribute `arithmetic` asks of the format's writer: ONNX's gives additions
other input scales (arithmetic/nudged.py) or spells the arithmetic out in float64, PyTorch's in int64; 16-bit convolutions become two in
float32, where the sums of either half of the data are exact; means are made of integers.

With numerics "strict" functions of one tensor of 8 bits follow: as a LeakyRelu between Dequantize and Quantize with the scale and the slope
that the row says, where it says so, which onnxruntime runs as a table of 256 and faster than the function itself; else as a Gather of what
the kernel gives, which takes ten times as long (docs/measured/forms.md). With numerics "fast" nothing is done.

Additions, averages and first roundings of PyTorch's engines, which a reader notes at the operators: see torch_rounding.py.
"""

from __future__ import annotations

import json
from collections import Counter

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.evaluate.curves import codes_of
from qconvert.graph import Array, Graph, Op, Quantization
from qconvert.graph.metadata import SOURCE_KERNELS, STATED_ATTRIBUTES
from qconvert.kernels import Kernel, Kernels
from qconvert.kernels.proofs import integers_for_all
from qconvert.operators import kind_of
from qconvert.passes.torch_rounding import TorchRounding, rounds_as_torch, without_torch
from qconvert.passes.unary_to_table import Tables
from qconvert.plugins import Target, kernels_of_source
from qconvert.rewriting import Rewriter

__all__ = ["run"]

_NOTES = {
    "xnnpack": "additions are decomposed, to round as XNNPACK does for every pair of inputs",
    "xnnpack_qs8": "means and sums over axes are computed in integers and rounded as XNNPACK does",
    "xnnpack_qu8": "means and sums over axes are computed in integers and rounded as XNNPACK does",
    "tflite": "operators are decomposed, to round as TFLite's own kernels do",
}


def run(graph: Graph, target: Target, *, numerics: str = "exact", biases: str = "round", io: str = "") -> tuple[Graph, tuple[str, ...]]:
    """Mark the operators that the target would round otherwise than the source's kernels; rewrite those of PyTorch's."""
    source = graph.metadata.get(SOURCE_KERNELS, "")
    of_torch = source.startswith("torch:") or (graph.is_from("torch") and biases == "keep") or any(map(rounds_as_torch, graph.ops))
    rewritten: tuple[str, ...] = ()
    if of_torch:
        graph, rewritten = _of_torch(graph, target, numerics, biases, io == "integer")
    found = kernels_of_source(graph) if numerics != "fast" else None
    if found is None or target.format in found[0].formats:
        return graph, rewritten
    matched, notes = _matched(graph, found[1], target.kernels, tables=numerics == "strict")
    return matched, (*rewritten, *notes)


def _matched(graph: Graph, rows: Kernels, own: Kernels, *, tables: bool) -> tuple[Graph, tuple[str, ...]]:
    rewriter = Rewriter(graph)
    made = Tables(rewriter)
    done: Counter[str] = Counter()
    for op in rewriter:
        kernel = None if rounds_as_torch(op) else rows.of(graph, op)
        if kernel is None or not (kernel.arithmetic or tables):
            continue
        values = integers_for_all(graph, op, kernel) if kernel.reference is not None else None
        # Roundings behind each other onnxruntime's optimizer merges, with other integers: a line between them keeps them apart.
        is_between = tables and kernel.line is not None and kind_of(op).rule == "convert"
        if values is not None and not is_between:
            others = integers_for_all(graph, op, own.of(graph, op))
            if others is not None and np.array_equal(values, others):
                continue
        if arithmetic := kernel.arithmetic(graph, op) if kernel.arithmetic is not None else "":
            rewriter.replace(op, op.with_attributes(arithmetic=arithmetic))
            done[_NOTES.get(arithmetic, f"operators are decomposed, to round as {arithmetic} does")] += 1
        elif form := _function(graph, op, kernel, values, rewriter, made) if tables and values is not None else []:
            rewriter.replace(op, *form)
            done["functions of one tensor are lookup tables, or lines, to round as the source's kernels do"] += 1
    return rewriter.finish(), tuple(f"{count} {text}" for text, count in done.items())


def _function(graph: Graph, op: Op, kernel: Kernel, values: Array, rewriter: Rewriter, tables: Tables) -> list[Op]:
    """Return the operators that give what a kernel gives for each code of an operator's one operand; none where it has another."""
    if values.ndim > 1 or not kind_of(op).rounds:
        return []
    found = kernel.line(graph, op) if kernel.line is not None else None
    return (_line(graph, op, rewriter, *found, values) if found else []) or tables.lookup(op, op.inputs[0], values)


def _line(graph: Graph, op: Op, rewriter: Rewriter, scale: float, slope: float, values: Array) -> list[Op]:
    """Return a LeakyRelu between Dequantize and Quantize, which onnxruntime runs as a table; none if it gives other integers for a code."""
    given, result = graph[op.inputs[0]], graph[op.outputs[0]]
    assert given.quantization is not None and result.quantization is not None
    grid = Quantization.per_tensor(float(np.float32(scale)), int(given.quantization.zero_point[0]))
    real = dequantize(codes_of(given.dtype), grid)
    lined = quantize(np.where(real < 0, real * np.float32(slope), real), result.quantization, result.dtype)
    if not np.array_equal(lined, values):
        return []
    data = rewriter.add(f"{result.name}/data", given, quantization=grid)
    names = [rewriter.add(f"{result.name}/{word}", given, dtype="float32", quantization=None) for word in ("real", "line")]
    return [
        Op("Reinterpret", op.inputs[:1], (data,), {}, op.source),
        Op("Dequantize", (data,), (names[0],), {}, op.source),
        Op("LeakyRelu", (names[0],), (names[1],), {"alpha": slope}, op.source),
        Op("Quantize", (names[1],), op.outputs, {}, op.source),
    ]


def _of_torch(graph: Graph, target: Target, numerics: str, biases: str, io_integer: bool) -> tuple[Graph, tuple[str, ...]]:
    if numerics == "fast":
        return without_torch(graph), ()
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
