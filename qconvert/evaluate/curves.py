"""Elementwise functions of one tensor of codes: everything that is computed of 8 bits, element by element, has at most 256 values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from qconvert.arithmetic import dequantize
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Arrays, Graph, Op, Tensor, integer_range, numpy_dtype
from qconvert.operators import kind_of
from qconvert.operators.properties import ELEMENTWISE

#: Storage types whose codes are few enough to try them all.
_CODES = ("int8", "uint8", "int16", "uint16")


def has_codes(tensor: Tensor) -> bool:
    """Whether a tensor is computed at run time and stored as codes of one quantization, few enough to try them all."""
    return tensor.dtype in _CODES and tensor.per_tensor is not None and not tensor.is_constant


def curve_roots(graph: Graph) -> dict[str, tuple[str, ...]]:
    """The tensors of codes that each tensor is computed of, element by element, and of constants of one element: any of them alone says
    what it is. The nearest is first; there are as many as _NEAREST at most.
    """
    found: dict[str, tuple[str, ...]] = {}
    for op in graph.ops:
        kind = kind_of(op)
        if kind.layout is not ELEMENTWISE or len(op.outputs) != 1 or kind.evaluate is None:
            continue
        tensors = [graph[name] for name in op.inputs if name]
        shape = graph[op.outputs[0]].shape
        varying = list(dict.fromkeys(tensor.name for tensor in tensors if not tensor.is_constant))
        if not varying or shape is None or any(tensor.data is not None and tensor.data.size != 1 for tensor in tensors):
            continue
        ways = [(name, *found.get(name, ())) for name in varying]
        common = (name for name in ways[0] if all(name in way for way in ways[1:]))
        roots = tuple(name for name in common if has_codes(graph[name]) and graph[name].shape == shape)[:_NEAREST]
        if roots:
            found[op.outputs[0]] = roots
    return found


def curve_values(graph: Graph, producers: Mapping[str, Op], name: str, root: str) -> Array:
    """What a tensor stores for each code of one of its curve_roots(), from the lowest, with every rounding on the way.

    Args:
        graph: what both belong to.
        producers: the graph's.
        name: of the tensor.
        root: the tensor of codes.
    """
    values: dict[str, Array] = {root: codes_of(graph[root].dtype)}
    for op in curve_operators(graph, producers, name, root).values():
        inputs = [_value(graph, values, item) if item else None for item in op.inputs]
        (result,) = evaluate_op(graph, op, inputs)
        values[op.outputs[0]] = np.broadcast_to(result.stored, values[root].shape)
    return np.ascontiguousarray(values[name])


def curve_float_values(graph: Graph, producers: Mapping[str, Op], name: str, root: str) -> Array:
    """The float values of a tensor for each code of one of its curve_roots(): curve_values() without the roundings on the way. Values
    outside the range of a quantization on the way are clipped.

    Args:
        graph, producers, name, root: as in curve_values().
    """
    way = curve_operators(graph, producers, name, root)
    real = graph.evolve(tensors=[replace(graph[item], dtype="float32", quantization=None) for item in (root, *way)])
    values: dict[str, Array] = {root: _dequantize_codes(graph[root], codes_of(graph[root].dtype))}
    for op in way.values():
        if kind_of(op).rule in ("move", "convert"):  # which of elementwise operators only store float values otherwise
            found = values[op.inputs[0]]
        else:
            found = evaluate_op(real, op, [_value(real, values, item) if item else None for item in op.inputs])[0].stored
        quantization, dtype = graph[op.outputs[0]].quantization, graph[op.outputs[0]].dtype
        ends = None if quantization is None else dequantize(np.array(quantization.limits(dtype)), quantization)
        values[op.outputs[0]] = np.broadcast_to(found if ends is None else np.clip(found, *ends), values[root].shape)
    return np.asarray(values[name], np.float64)


def _dequantize_codes(tensor: Tensor, values: Array) -> Array:
    assert tensor.quantization is not None
    return dequantize(values, tensor.quantization).astype(np.float32)


def codes_of(dtype: str) -> Array:
    """Every stored value of a type, from the lowest."""
    low, high = integer_range(dtype)
    return np.arange(low, high + 1).astype(numpy_dtype(dtype))


def _value(graph: Graph, values: Arrays, name: str) -> Array:
    data = graph.constant(name)
    return values[name] if data is None else data.reshape(1)


def curve_operators(graph: Graph, producers: Mapping[str, Op], name: str, root: str) -> dict[str, Op]:
    """The operators between one of a tensor's curve_roots() and it, by what they write, in an order in which they can run."""
    found: dict[str, Op] = {}
    pending = [name]
    while pending:
        op = producers[pending[-1]]
        missing = [item for item in op.inputs if item and item != root and item not in found and not graph[item].is_constant]
        if missing:
            pending += missing
        else:
            found.setdefault(pending.pop(), op)
    return found


class Lookup(NamedTuple):
    """A tensor that is looked up in a table.

    Attributes:
        root: the tensor of codes that says where.
        values: the stored value for each of its codes, from the lowest.
    """

    root: str
    values: Array


def find_lookup(graph: Graph, producers: Mapping[str, Op], op: Op) -> Lookup | None:
    """What a Gather looks up for each code of a tensor, where its indices are computed of these codes as plain integers, perhaps in another
    order of axes; else None.
    """
    if op.kind != "Gather" or op["batch_dims"]:
        return None
    table, index = graph.constant(op.inputs[0]), op.inputs[1]
    if table is None or table.ndim != 1:
        return None
    way: list[Op] = []
    while index in producers and not has_codes(graph[index]):
        step = producers[index]
        varying = [name for name in step.inputs if name and not graph[name].is_constant]
        if step.kind not in ("Cast", "Add", "Sub", "Identity", "Transpose") or len(varying) != 1 or len(way) > _LONGEST:
            return None
        way.append(step)
        index = varying[0]
    if not has_codes(graph[index]):
        return None
    values: dict[str, Array] = {index: codes_of(graph[index].dtype)}
    for step in reversed(way):
        if kind_of(step).transposes:  # of which only the order of elements changes
            values[step.outputs[0]] = values[step.inputs[0]]
            continue
        inputs = [_value(graph, values, name) for name in step.inputs]
        if any(value.size != 1 and value.shape != values[index].shape for value in inputs):
            return None
        values[step.outputs[0]] = evaluate_op(graph, step, inputs)[0].stored
    places = values[op.inputs[1]].astype(np.int64)
    if places.min() < -table.size or places.max() >= table.size:
        return None
    return Lookup(index, table[places])


#: Roots of a tensor that are kept: the nearest ones.
_NEAREST = 16
#: Operators between codes and indices that are followed.
_LONGEST = 8
