"""Quantized tensors stored as another integer type of the same width.

Exact: every stored integer and its zero point move by half the range together, so the float values stay as they are.

signed_to_unsigned, unsigned_to_signed: quantized tensors of 4, 8 and 16 bits are stored as integers of the other sort. Exact.

Activations, weights, graph inputs and outputs alike: stored integers and zero points move by half the range. Biases (int32) stay. Where
an operator needs the integers themselves (one outside the operator set, an int64 bias), its tensors stay, after a Requantize.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from qconvert.errors import format_count
from qconvert.graph import Graph, Op, Tensor, integer_range, numpy_dtype
from qconvert.operators import kind_of
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter

#: Signed type -> unsigned type of the same width, and back.
UNSIGNED = {"int4": "uint4", "int8": "uint8", "int16": "uint16"}
SIGNED = {unsigned: signed for signed, unsigned in UNSIGNED.items()}


def shift_to_dtype(tensor: Tensor, dtype: str) -> Tensor:
    """Return the tensor with its stored integers in `dtype`, of the same width."""
    offset, stored = integer_range(dtype)[0] - integer_range(tensor.dtype)[0], numpy_dtype(dtype)
    wider = np.int16 if stored.itemsize == 1 else np.int32
    data = None if tensor.data is None else (tensor.data.astype(wider) + offset).astype(stored)
    return replace(tensor, dtype=dtype, data=data, quantization=tensor.require_quantization().shift_zero_point(offset))


def as_signed(tensor: Tensor) -> Tensor:
    """Return the tensor with its stored integers in the signed type of their width."""
    return shift_to_dtype(tensor, SIGNED[tensor.dtype]) if tensor.dtype in SIGNED else tensor


def needs_storage(graph: Graph, op: Op) -> bool:
    """Whether the stored integers themselves matter to an operator, or its rule names their type.

    A state follows the tensors of its ReadState and WriteState, unless functions may name it, the operator stands in one, or a reader
    takes integers as they are.
    """
    if kind_of(op).rule == "state":
        state = op["state"]
        return bool(graph.functions) or state not in graph.states or state in _find_stored_states(graph)
    if kind_of(op).takes_stored or op.attributes.get("reduction") == "mul":
        return True
    if kind_of(op).rule == "relabel":  # next to plain integers, which stay what they are
        return not all(graph[name].is_quantized for name in op.names)
    if op.attributes.get("arithmetic") == "ties_away":  # away from a stored zero, which only uint8 is known to keep at 128
        return graph[op.inputs[0]].dtype not in ("int8", "uint8")
    return op.has(2) and kind_of(op).has_weights and graph[op.inputs[2]].dtype == "int64"


def _find_stored_states(graph: Graph) -> frozenset[str]:
    """Return the states that operators on stored integers read or write."""
    stored = [op for op in graph.ops if kind_of(op).rule == "stored"]
    names = {name for op in stored for name in op.names}
    passing = (op for op in graph.ops if kind_of(op).rule == "state")
    return frozenset(str(op["state"]) for op in passing if names.intersection(op.names))


def change_storage(graph: Graph, moved: Iterable[Tensor], dtypes: Mapping[str, str], *, keep_io: bool) -> tuple[Graph, int]:
    """Store tensors in other types, with a Requantize where an operator needs the old one. Return the number of activations changed too.

    Args:
        graph: what is changed.
        moved: quantized tensors, activations and constants.
        dtypes: old type -> new type.
        keep_io: whether graph inputs and outputs stay as they are.
    """
    changed = {tensor.name: shift_to_dtype(tensor, dtypes[tensor.dtype]) for tensor in moved}
    follow = {str(op["state"]) for op in graph.ops if kind_of(op).rule == "state" and not needs_storage(graph, op)}
    states = {
        name: shift_to_dtype(state, dtypes[state.dtype])
        for name, state in graph.states.items()
        if name in follow and state.dtype in dtypes and state.is_quantized
    }
    return replace_quantizations(graph, changed, lambda tensor: tensor.dtype, keeps=needs_storage, keep_io=keep_io, states=states)


def replace_quantizations(
    graph: Graph,
    changed: Mapping[str, Tensor],
    suffix: Callable[[Tensor], str],
    *,
    keeps: Callable[[Graph, Op], bool],
    keep_io: bool,
    states: Mapping[str, Tensor],
) -> tuple[Graph, int]:
    """Give tensors another quantization, with a Requantize where an operator needs the old one.

    Return the new graph, and the number of activations changed.

    Args:
        graph: what is changed.
        changed: name -> the tensor with its new quantization.
        suffix: of the name of the new one where the old one stays too.
        keeps: whether an operator needs its tensors as they are.
        keep_io: whether graph inputs and outputs stay as they are.
        states: those that change too.
    """
    rewriter = Rewriter(graph)
    kept = {id(op) for op in graph.ops if keeps(graph, op)}
    held = {name for op in graph.ops if id(op) in kept for name in op.names}
    held |= {*graph.inputs, *graph.outputs} if keep_io else set()
    twins: dict[str, str] = {}  # tensor that has to stay -> the same values with the new quantization
    for name, tensor in changed.items():
        if name in held:
            twins[name] = rewriter.add(f"{name}/{suffix(tensor)}", tensor, data=tensor.data)
        else:
            rewriter.define(tensor)
    old_read = graph.public.union(*(op.inputs for op in graph.ops if id(op) in kept))
    new_read = set[str]().union(*(op.inputs for op in graph.ops if id(op) not in kept))
    for name in graph.inputs:
        if name in twins and name in new_read:
            rewriter.emit(Op("Requantize", (name,), (twins[name],)))
    for op in rewriter:
        results = [name for name in op.outputs if name in twins]
        if id(op) in kept:
            rewriter.replace(op, op, *(Op("Requantize", (name,), (twins[name],)) for name in results if name in new_read))
            continue
        back = (Op("Requantize", (twins[name],), (name,)) for name in results if name in old_read)
        rewriter.replace(op, op.with_names(twins), *back)
    count = sum(not tensor.is_constant for tensor in changed.values())
    return rewriter.finish(states={**graph.states, **states}), count


def signed_to_unsigned(graph: Graph, target: Target | None) -> PassResult:
    """int4, int8 and int16 become uint4, uint8 and uint16. Who feeds the graph adds 8, 128 or 32768."""
    return _store_as(graph, UNSIGNED)


def unsigned_to_signed(graph: Graph, target: Target | None) -> PassResult:
    """uint4, uint8 and uint16 become int4, int8 and int16. Who feeds the graph subtracts 8, 128 or 32768."""
    return _store_as(graph, SIGNED)


def _store_as(graph: Graph, dtypes: Mapping[str, str]) -> PassResult:
    """Store all quantized tensors in other types, old -> new."""
    moved = [tensor for tensor in graph.tensors.values() if tensor.is_quantized and tensor.dtype in dtypes]
    changed, count = change_storage(graph, moved, dtypes, keep_io=False)
    if all(tensor.name in changed.tensors and changed[tensor.name] == tensor for tensor in moved):
        return graph, ()
    types = ", ".join(f"{dtype} as {dtypes[dtype]}" for dtype in sorted({tensor.dtype for tensor in moved}))
    constants = sum(tensor.is_constant for tensor in moved)
    return changed, (
        f"{format_count(count, 'activation')} and {format_count(constants, 'constant')} are stored as another type ({types}); "
        "their dequantized values are unchanged",
    )
