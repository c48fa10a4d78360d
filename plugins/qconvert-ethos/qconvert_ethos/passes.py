"""Passes for Ethos-U in addition to those for tflite-micro: integers from the first operator on, and no operator that Vela refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qconvert.plugin import Change, Graph, Op, Rewriter, Target, Tensor, Value, apply, format_count, lower, lowers

#: Data movement whose result has the quantization of its data.
_MOVES = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


def quantize_first(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Move Quantize before data movement, and Dequantize after data movement, where no other operator reads between them. Exact."""
    moved = 0
    while True:
        rewriter = Rewriter(graph)
        done: set[int] = set()
        for op in rewriter:
            if id(op) not in done and (other := _move_quantize_up(rewriter, op) or _move_dequantize_down(rewriter, op)) is not None:
                done |= {id(op), id(other)}
        if not done:
            break
        moved += len(done) // 2
        graph = rewriter.finish()
    return graph, ((f"data at float inputs and outputs are moved as integers by {format_count(moved, 'operator')}",) if moved else ())


def _move_quantize_up(rewriter: Rewriter, op: Op) -> Op | None:
    """Swap a Quantize with the data movement before it; return the data movement, or None."""
    graph = rewriter.graph
    move = rewriter.producers.get(op.inputs[0]) if op.kind == "Quantize" else None
    if move is None or move.kind not in _MOVES or not rewriter.is_read_once(op.inputs[0]) or rewriter.is_replaced(move):
        return None
    data, result = graph[move.inputs[0]], graph[op.outputs[0]]
    if result.per_tensor is None:
        return None
    stored = rewriter.add(f"{data.name}/quantized", data, dtype=result.dtype, quantization=result.quantization)
    quantize = replace(op, inputs=(data.name,), outputs=(stored,))
    rewriter.replace(move, quantize, replace(move, inputs=(stored, *move.inputs[1:]), outputs=op.outputs))
    rewriter.remove(op)
    return move


def _move_dequantize_down(rewriter: Rewriter, op: Op) -> Op | None:
    """Swap a Dequantize with the data movement after it; return the data movement, or None."""
    graph = rewriter.graph
    move = rewriter.only_reader(op.outputs[0]) if op.kind == "Dequantize" else None
    if move is None:
        return None
    data = graph[op.inputs[0]]
    if move.kind not in _MOVES or rewriter.is_replaced(move) or data.per_tensor is None:
        return None
    result = graph[move.outputs[0]]
    stored = rewriter.add(f"{result.name}/quantized", result, dtype=data.dtype, quantization=data.quantization)
    moved = replace(move, inputs=(data.name, *move.inputs[1:]), outputs=(stored,))
    rewriter.replace(move, moved, replace(op, inputs=(stored,), outputs=move.outputs))
    rewriter.remove(op)
    return move


@lowers("HardSwish")
def hard_swish_by_relu6(x: Value) -> Value:
    """x * relu6(x + 3) / 6 (Howard et al., 2019), of operators that tflite-micro has."""
    found: Value = x * apply("Clip", x + 3.0, 0.0, 6.0) * (1 / 6)
    return found


def lower_for_vela(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Write HardSwish of float data, for which Vela refuses a whole file, by its formula; it runs on the CPU in either form."""
    found = lower(graph, _refusal_reason, prefers=(hard_swish_by_relu6,))
    count = len(found.reasons)
    return (found.graph, (f"HardSwish of float data is written as operators that Vela accepts: {count}",)) if count else (graph, ())


def _refusal_reason(tensors: Mapping[str, Tensor], op: Op) -> str:
    """Return why Vela refuses a whole file for an operator, or ""."""
    return "HARD_SWISH of float data" if op.kind == "HardSwish" and not tensors[op.inputs[0]].is_quantized else ""
