"""Quantized tensors stored as another integer type of the same width.

Exact: every stored integer and its zero point move by half the range together, so the float values stay as they are.

signed_to_unsigned, unsigned_to_signed: quantized tensors of 4, 8 and 16 bits are stored as integers of the other sort. Exact.

Activations, weights, graph inputs and outputs alike: stored integers and zero points move by half the range. Biases (int32) stay. Where
an operator needs the integers themselves (one outside the operator set, an int64 bias), its tensors stay, after a Requantize.

store_activations: 8-bit activations are stored as the integer type that the target runs fastest.

Exact: every stored integer and its zero point move by 128 together, so the float values stay as they are. Graph inputs and outputs
keep the type that the model has; a Requantize stands between. Likewise 16-bit ones, by 32,768, where the target has one of their types;
there inputs and outputs move along, unless the target leaves them free, and the note names them.

The type before is noted in the metadata, so that a target whose `activations` are "source" can give it back. Without a note such a target
keeps the model's type, if the weights next to uint8 data can be uint8 with one scale too, as kernels for uint8 require; else, or where an
operator has a kernel for int8 alone and no zero point is lost, all becomes int8.

A target whose `activations` are "int8_or_source" takes int8 where there are weights, and each of their integers less its zero point is an
int8: so nothing is lost. Otherwise, and where there is a note (a .tflite file of uint8 is read with one too), it takes what "source" gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from qconvert.arithmetic.storage import fits_dtype
from qconvert.errors import format_count, quote_some
from qconvert.graph import Graph, Op, Tensor, integer_range, numpy_dtype
from qconvert.graph.metadata import ACTIVATIONS
from qconvert.operators import integer_weights, is_dynamic, kind_of
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter

#: Signed type -> unsigned type of the same width, and back.
UNSIGNED = {"int4": "uint4", "int8": "uint8", "int16": "uint16"}
SIGNED = {unsigned: signed for signed, unsigned in UNSIGNED.items()}


def shift_to_dtype(tensor: Tensor, dtype: str) -> Tensor:
    """Return the tensor with its stored integers in `dtype`, of the same width."""
    offset, stored = integer_range(dtype)[0] - integer_range(tensor.dtype)[0], numpy_dtype(dtype)
    data = tensor.data
    if data is not None and data.dtype.kind in "iu":  # of 8 and 16 bits: the highest bit is the offset
        unsigned = np.dtype(f"u{stored.itemsize}")
        data = (data.view(unsigned) ^ unsigned.type(abs(offset))).view(stored)
    elif data is not None:
        data = (data.astype(np.int16) + offset).astype(stored)
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


_EIGHT_BITS = ("int8", "uint8")
#: Inputs and outputs that a note names; the others are counted.
_NAMED = 8


def weight_inputs(op: Op) -> tuple[int, ...]:
    """Return positions of the inputs that hold weights and biases when they are constant: their storage is not the activations'."""
    kind = kind_of(op)
    if kind.sums_products:
        return tuple(kind.positions(op, *(("weights", "bias") if kind.has_weights else ("data", "factor"))))
    return (0,) if kind_of(op).dequantizes else integer_weights(op) if is_dynamic(op) else ()


def find_weights(graph: Graph) -> set[str]:
    """Return the tensors that operators read as weights or biases."""
    return {op.inputs[index] for op in graph.ops for index in weight_inputs(op)}


def store_activations(graph: Graph, target: Target) -> PassResult:
    """Shift all 8-bit quantized activations to target.storage.activations; constants that are data, not weights, go along."""
    graph, notes = _store_16_bits(graph, target)
    changed, others = _store_8_bits(graph, target)
    return changed, (*notes, *others)


def _store_16_bits(graph: Graph, target: Target) -> PassResult:
    """Store uint16 or int16 activations in the other type if the target has that alone, or wants all unsigned."""
    if target.storage.activations == "unsigned":
        return _store_type(_narrow_biases(graph), "int16", "uint16")
    for old, new in (("uint16", "int16"), ("int16", "uint16")):
        if new in target.storage.activation_dtypes and old not in target.storage.activation_dtypes:
            return _store_type(graph, old, new, keep_io=target.storage.free_edges)
    return graph, ()


def _narrow_biases(graph: Graph) -> Graph:
    """Store biases of int64 as int32 where they fit: next to int64 the data would have to stay int16. Exact."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        bias = graph[op.inputs[2]] if kind_of(op).has_weights and op.has(2) else None
        if bias is not None and bias.dtype == "int64" and bias.data is not None and fits_dtype(bias.data, "int32"):
            narrow = rewriter.replace_constant(
                bias.name, replace(bias, dtype="int32", data=bias.data.astype(np.int32)), f"{bias.name}/int32"
            )
            rewriter.replace(op, op.with_input(2, narrow))
    return rewriter.finish()


def _store_8_bits(graph: Graph, target: Target) -> PassResult:
    wanted = target.storage.activations
    if wanted in ("source", "int8_or_source"):
        wanted = _source_type(graph, target)
    wanted = "uint8" if wanted == "unsigned" else wanted
    other = {"uint8": "int8", "int8": "uint8"}.get(wanted)
    if other is None:
        return graph, ()
    changed, notes = _store_type(graph, other, wanted)
    if notes and ACTIVATIONS not in graph.metadata and not _has_inner_activation(graph, wanted):
        changed = replace(changed, metadata={**changed.metadata, ACTIVATIONS: other})
    return changed, notes


def _store_type(graph: Graph, old: str, new: str, keep_io: bool = True) -> PassResult:
    """Store all activations of one type in another of its width."""
    source, graph = graph, separate_roles(graph, (old,))
    weights = find_weights(graph)
    moved = [
        tensor
        for tensor in graph.tensors.values()
        if tensor.dtype == old and tensor.is_quantized and not (tensor.is_constant and tensor.name in weights)
    ]
    if not moved:
        return source, ()
    changed, count = change_storage(graph, moved, {old: new}, keep_io=keep_io)
    offset = integer_range(new)[0] - integer_range(old)[0]
    edges = changed_edges(graph, changed)
    return changed, (format_count(count, f"{old} activation", f"are stored as {new} (integer and zero point {offset:+d}){edges}"),)


def changed_edges(graph: Graph, changed: Graph) -> str:
    """Return words on graph inputs and outputs whose type or quantization a pass changed, "" if there are none: a user has to know."""
    names = [
        name
        for name in dict.fromkeys((*graph.inputs, *graph.outputs))
        if (graph[name].dtype, graph[name].quantization) != (changed[name].dtype, changed[name].quantization)
    ]
    return f", inputs and outputs {quote_some(names, _NAMED)} too" if names else ""


def separate_roles(graph: Graph, dtypes: Collection[str]) -> Graph:
    """Copy constants of some types that are weights of one operator and data of another, such as the table of an embedding."""
    roles: dict[str, set[bool]] = {}
    for op in graph.ops:
        for position, name in enumerate(op.inputs):
            if name and graph[name].dtype in dtypes and graph[name].is_constant and graph[name].is_quantized:
                roles.setdefault(name, set()).add(position in weight_inputs(op))
    rewriter = Rewriter(graph)
    both = [name for name, found in roles.items() if len(found) == 2]
    copies = {name: rewriter.add(f"{name}/data", graph[name], data=graph[name].data) for name in both}
    for op in rewriter:
        if not copies.keys().isdisjoint(op.inputs):
            as_weights = weight_inputs(op)
            inputs = tuple(name if position in as_weights else copies.get(name, name) for position, name in enumerate(op.inputs))
            rewriter.replace(op, replace(op, inputs=inputs))
    return rewriter.finish()


def _has_inner_activation(graph: Graph, dtype: str) -> bool:
    """Whether an activation inside the graph is quantized in a type."""
    outer = {*graph.inputs, *graph.outputs}
    return any(t.dtype == dtype and t.is_quantized and not t.is_constant and t.name not in outer for t in graph.tensors.values())


def _has_signed_weights(graph: Graph, op: Op) -> bool:
    """Whether an operator multiplies uint8 data with signed weights: a pass made them, since the source's kernel would take no such."""
    if not kind_of(op).has_weights or graph[op.inputs[0]].dtype != "uint8" or not graph[op.inputs[0]].is_quantized:
        return False
    weights = graph[op.inputs[1]]
    return weights.is_quantized and weights.dtype in ("int8", "int4")


def _weights_of_bytes(graph: Graph) -> list[Tensor]:
    """Return the constant weights, on scales, that operators multiply data of 8 bits with and sum the products."""
    found = (
        graph[op.inputs[1]]
        for op in graph.ops
        if kind_of(op).sums_products and len(op.inputs) > 1 and graph[op.inputs[0]].dtype in _EIGHT_BITS
    )
    return [tensor for tensor in found if tensor.is_constant and tensor.is_quantized]


def _is_exact_signed(weights: Tensor) -> bool:
    """Whether weights keep their values and scales where they are signed and have the zero point 0."""
    signed = as_signed(weights)
    quantization = signed.require_quantization()
    if quantization.is_symmetric:
        return True
    steps = signed.steps()
    if quantization.block_size or not steps.size:
        return False
    low, high = integer_range(signed.dtype)
    return bool(low < steps.min() and steps.max() <= high)


def _source_type(graph: Graph, target: Target) -> str:
    """Return the type that all 8-bit activations get for a target to which the source's matters; "" where they stay as they are."""
    if not any(tensor.dtype == "uint8" and tensor.is_quantized for tensor in graph.tensors.values()):
        return ""
    if graph.is_from(target.format) and not any(_has_signed_weights(graph, op) for op in graph.ops):
        return ""
    noted, weights = graph.metadata.get(ACTIVATIONS), _weights_of_bytes(graph)
    if target.storage.activations == "int8_or_source" and noted is None and weights and all(map(_is_exact_signed, weights)):
        return "int8"  # in which runtimes compute products faster
    symmetric = True
    for item in weights:
        if item.dtype not in _EIGHT_BITS or item.per_tensor is None:
            return "int8"
        symmetric &= as_signed(item).require_quantization().is_symmetric
    if noted in _EIGHT_BITS:
        return str(noted)
    quantized = (op for op in graph.ops if any(graph.is_quantized(name) for name in op.outputs))
    kernels = [target.kernels.types(op) or () for op in quantized]
    return "int8" if symmetric and any("int8" in types and "uint8" not in types for types in kernels) else "uint8"
