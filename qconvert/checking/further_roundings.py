"""What the roundings that a result has beyond the source's add to the tolerance of its kernels (see classify.py)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from qconvert.graph import Graph, Op, integer_range
from qconvert.operators import kind_of
from qconvert.rewriting.cutting import computable_ops

__all__ = ["further_tolerance", "is_storage"]


def further_tolerance(graph: Graph, other: Graph, shared: set[str], declared: Collection[str]) -> dict[str, float]:
    """For the outputs of the source's operators, in steps of their scale; those that the result rounds as often are absent.

    A rounding that the conversion did not declare adds nothing: whatever it costs is the result's fault.

    Args:
        graph, other: the source's and the result's canonical graphs.
        shared: names of the tensors at which both are cut.
        declared: names of the result's tensors onto which the conversion declared that it rounds.
    """
    found = dict(_add_up_roundings(other, computable_ops(other, shared), shared, declared))
    producers = other.producers()
    for op in graph.ops:
        pair = producers.get(op.outputs[0]) if op.outputs else None
        stays = pair is not None and pair.kind == op.kind and len(pair.inputs) > 2 and bool(pair.inputs[2])
        if not stays or pair is None or other[pair.inputs[2]].dtype != "float32":
            added = _bias_tolerance(graph, op)
            found.update({name: found.get(name, 0.0) + added for name in op.outputs if added})
    return found


def _add_up_roundings(other: Graph, ops: list[Op], shared: set[str], declared: Collection[str]) -> Iterator[tuple[str, float]]:
    """Yield each output after intermediate roundings, and their addition to the kernel's tolerance, in steps of the output's scale.

    A rounding before the last one is off by half a step of its own scale; a Requantize multiplies with 8 fractional bits at least
    (see classify.py), which counts where it stands for a part of another operator.
    """
    inner: dict[str, float] = {}
    onto = set(declared)
    for op in reversed(ops):  # what is only moved to a declared quantization was rounded onto it before
        if kind_of(op).rule == "move" and op.outputs[0] in onto:
            onto.update(op.inputs[:1] if other[op.inputs[0]].quantization == other[op.outputs[0]].quantization else ())
    for op in ops:
        output = other[op.outputs[0]] if op.outputs else None
        if output is None or output.quantization is None or not output.quantization.is_per_tensor:
            continue
        step = float(output.quantization.scale[0])
        before = max((inner.get(name, 0.0) for name in op.inputs if name not in shared), default=0.0)
        rounds = kind_of(op).rule in ("real", "convert") and not is_storage(other, op)
        coarse = 0.5 if op.kind == "Requantize" and rounds and before else 0.0
        for name in op.outputs:
            if name in shared:
                if before:
                    yield name, before / step + coarse
            else:
                inner[name] = before + (0.5 + coarse) * step if rounds and name in onto else before


def is_storage(graph: Graph, op: Op) -> bool:
    """Whether a Requantize only stores the same steps in another integer type: one scale, zero points as far above the lowest integer."""
    if op.kind != "Requantize":
        return False
    a, b = (graph[name] for name in (op.inputs[0], op.outputs[0]))
    if a.quantization is None or b.quantization is None or not (a.quantization.is_per_tensor and b.quantization.is_per_tensor):
        return False
    zeros = [int(t.quantization.zero_point[0]) - integer_range(t.dtype)[0] for t in (a, b) if t.quantization is not None]
    return bool(a.quantization.scale[0] == b.quantization.scale[0] and zeros[0] == zeros[1] and {a.dtype, b.dtype} <= {"int8", "uint8"})


def _bias_tolerance(graph: Graph, op: Op) -> float:
    """What a float bias rounded to int32 adds to the tolerance, in steps: half of input scale * weight scale."""
    result = graph[op.outputs[0]].quantization if op.outputs else None
    if not kind_of(op).has_weights or result is None or len(op.inputs) < 3 or not op.inputs[2] or graph[op.inputs[2]].dtype != "float32":
        return 0.0
    quantizations = [graph[name].quantization for name in op.inputs[:2]]
    steps = [float(np.max(quantization.scale)) for quantization in quantizations if quantization is not None]
    return 0.5 * steps[0] * steps[1] / float(result.scale[0]) if len(steps) == len(quantizations) else 0.0
