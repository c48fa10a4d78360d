"""Quantizations that a reader finds for what a file states as plain integers: of tensors, of inputs and outputs of functions, and of
operators that become quantized ones.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Literal

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.formats.reading.draft import Draft
from qconvert.graph import Graph, Op, Quantization, Tensor, numpy_dtype
from qconvert.operators import kind_of
from qconvert.plugins import pass_named


def label_tensor(draft: Draft, tensor: Tensor, quantization: Quantization, source: str) -> str:
    """A tensor with a label: itself if it has none or the same one, else the same integers under another label.

    Plain integers get their label back through the movements that led to them, up to a constant or an input of the graph:

        x (uint8) -> Reshape -> a (uint8)      -> Transpose -> b (uint8)      -> DequantizeLinear(s, z) -> y
        x (s, z)  -> Reshape -> a (s, z)       -> Transpose -> b (s, z)       -> Dequantize             -> y

    and where the tensor has another label already:

        c (uint8) -> DequantizeLinear(s, z) -> y,  c -> DequantizeLinear(t, z) -> w
        c (s, z)  -> Dequantize -> y,              c -> Reinterpret -> c/labelled (t, z) -> Dequantize -> w

    Args:
        draft: the graph while it grows.
        tensor: of integers.
        quantization: what an operator states of it.
        source: that operator, for messages.

    Raises:
        InvalidModelError: the tensor has no integers, or another number of them along the axis than there are scales.
    """
    if "int" not in tensor.dtype and not tensor.dtype.startswith("float8") and tensor.dtype != "float4e2m1":
        raise InvalidModelError(
            f"input {tensor.name!r} is {tensor.dtype}, which is not a quantized type", where=source, rule="not-quantized"
        )
    _require_fit(tensor, quantization, source)
    if tensor.quantization == quantization:
        return tensor.name
    data = tensor.data if tensor.quantization is not None else None
    if tensor.data is None and tensor.name in draft.producers:
        data = draft.known.get(tensor.name)
    if data is not None:
        return draft.variant(tensor.name, f"label_{label_key(quantization)}", data, quantization)
    if tensor.quantization is None and _label_chain(draft, tensor, quantization):
        return tensor.name
    name = draft.add(f"{tensor.name}/labelled", tensor.dtype, tensor.shape, None, quantization)
    draft.append(Op("Reinterpret", (tensor.name,), (name,), {}, source))
    return name


def unlabel_tensor(draft: Draft, tensor: Tensor, source: str) -> str:
    """The same integers as plain numbers: a tensor itself if it has no label."""
    if tensor.quantization is None:
        return tensor.name
    if tensor.data is not None:
        return draft.variant(tensor.name, "plain", tensor.data, None)
    name = draft.add(f"{tensor.name}/plain", tensor.dtype, tensor.shape, None, None)
    draft.append(Op("Reinterpret", (tensor.name,), (name,), {}, source))
    return name


def _require_fit(tensor: Tensor, quantization: Quantization, source: str) -> None:
    axis, shape = quantization.axis, tensor.shape
    if axis is None or shape is None:
        return
    size = shape[axis] if axis < len(shape) else None
    if quantization.block_size == 0 and isinstance(size, int) and size != quantization.scale.size:
        raise InvalidModelError(
            f"{quantization.scale.size} scales for axis {axis} of {tensor.name!r}, whose shape is {shape}",
            where=source,
            rule="counts-differ",
        )


def _label_chain(draft: Draft, tensor: Tensor, quantization: Quantization) -> bool:
    """Labels a tensor and the movements that lead to it; False, and nothing is done, if another operator made the integers."""
    chain: dict[str, Tensor] = {}
    waiting, origins = [tensor], 0
    while waiting:
        current = waiting.pop()
        if current.name in chain:
            continue
        chain[current.name] = current
        if (op := draft.producers.get(current.name)) is None:
            origins += 1
            continue
        kind = kind_of(op)
        is_movement = kind.rule == "move" or (kind.chooses and kind.by_place)  # a Concat moves integers whose labels are equal
        sources = [draft.tensors[name] for name in kind.data(op)] if is_movement else []
        is_plain = bool(sources) and all(source.quantization is None for source in sources)
        if is_plain and (quantization.axis is None or kind.copies) and len(op.outputs) == 1:
            waiting += sources
        elif kind.rule in ("plain", "opaque", "index"):
            origins += 1
        else:
            return False
    # Of several, the other integers that are joined would need the label too: parts and copies of one tensor have it.
    return origins == 1 and _label_holders(draft, list(chain.values()), quantization)


def _label_holders(draft: Draft, chain: list[Tensor], quantization: Quantization) -> bool:
    found = _holders(draft, chain, quantization)
    if found is None:
        return False
    tensors, moves = found
    pads = [op for op in moves if op.kind == "Pad" and op["mode"] == "constant"]
    values = [draft.known.get(op.inputs[2]) if len(op.inputs) > 2 else np.array(0) for op in pads]
    if any(value is None or value.size != 1 for value in values):
        return False
    for tensor in tensors:
        draft.tensors[tensor.name] = replace(tensor, quantization=quantization)
    for op, value in zip(pads, values, strict=True):
        _refill(draft, op, int(np.asarray(value).reshape(())), quantization)
    return True


def _holders(draft: Draft, chain: list[Tensor], quantization: Quantization) -> tuple[list[Tensor], list[Op]] | None:
    """All tensors that hold the integers of `chain`, and the movements between them: a label is on all of them, or on none.

    None if one of them has another label, or is read by what does not take this one: an operator on plain numbers, a joining one.
    """
    found = {tensor.name: tensor for tensor in chain}
    writers = [draft.producers.get(tensor.name) for tensor in reversed(chain)]
    moves = [op for op in writers if op is not None and kind_of(op).rule == "move"]
    waiting = list(chain)
    while waiting:
        name = waiting.pop().name
        for op in draft.readers.get(name, []):
            kind, made = kind_of(op), set(filter(None, op.outputs))
            if made and made <= found.keys():
                continue
            if kind.rule in ("real", "index", "control"):
                return None
            if kind.rule != "move" or name not in kind.moved_inputs(op):
                continue
            results = [draft.tensors[item] for item in kind.results_of(op) if item]
            new = [tensor for tensor in results if tensor.name not in found]
            if not new:
                continue
            along = quantization.axis is not None and not kind.copies
            if along or kind.data(op) != [name] or any(tensor.quantization is not None for tensor in new):
                return None
            moves.append(op)
            found |= {tensor.name: tensor for tensor in new}
            waiting += new
    return list(found.values()), moves


def _refill(draft: Draft, op: Op, value: int, quantization: Quantization) -> None:
    """Gives the padding of integers the label that they got; none where it means 0.0. ONNX's default is the integer 0."""
    tensor = draft.tensors[op.outputs[0]]
    inputs = op.inputs[:2]
    if value != quantization.point:
        data = np.array(value, numpy_dtype(tensor.dtype))
        inputs = (*inputs, draft.add(f"{tensor.name}/padding", tensor.dtype, (), data, quantization))
    draft.exchange(op, replace(op, inputs=inputs))


def label_key(quantization: Quantization) -> str:
    """A hash of a label, for the names of variants."""
    parts = quantization.scale.tobytes() + quantization.zero_point.tobytes() + str(quantization.axis).encode()
    return hashlib.sha256(parts).hexdigest()[:8]


def requantize_end(graph: Graph, side: Literal["inputs", "outputs"], index: int, quantization: Quantization | None) -> Graph:
    """The function one of whose inputs or outputs has another quantization, or none: a Reinterpret stands between it and the one that
    operators know."""
    names: tuple[str, ...] = getattr(graph, side)
    old = graph[names[index]]
    if old.quantization == quantization:
        return graph
    new: Tensor = replace(old, name=graph.names().fresh(f"{old.name}/given"), data=None, quantization=quantization)
    if side == "inputs":
        ops = (Op("Reinterpret", (new.name,), (old.name,)), *graph.ops)
    else:
        ops = (*graph.ops, Op("Reinterpret", (old.name,), (new.name,)))
    return graph.evolve(tensors=[new], ops=ops, **{side: (*names[:index], new.name, *names[index + 1 :])})


#: What makes quantized operators of the operators that a runtime runs as such.
_PASSES = ("absorb_quantization", "fuse_dynamic")


def fuse_quantized_ops(graph: Graph) -> Graph:
    """The graph with quantized operators where a runtime finds them, in functions too."""
    for item in map(pass_named, _PASSES):
        graph, _ = item.run(graph, None)
        graph = replace(graph, functions={name: item.run(inner, None)[0] for name, inner in graph.functions.items()})
    return graph
