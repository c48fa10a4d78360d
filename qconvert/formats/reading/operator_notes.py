"""Operators in notes next to a model: what a writer says of those that it decomposes into several nodes.

A reader never believes a note. It writes the operator once more, and puts it in place of the nodes only if they are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.operators import KINDS, kind_of

__all__ = ["Noted", "Stated", "quantization_of", "read_note", "stated_quantization", "write_note"]

#: A quantization in a note: scale and zero point, or scales, zero points and their axis; and then the limits within its type, if it has
#: any.
Stated = tuple[Any, ...]

_SMALL = 64  # elements of a constant in a note
_NOTED = ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float16", "float32", "float64")
_SMALL_TYPES = ("int2", "uint2", "int4", "uint4")


@dataclass(frozen=True, slots=True)
class Noted:
    """An operator in a note.

    Attributes:
        op: the operator.
        quantizations: of its tensors, by name.
        constants: its small constants: sizes, axes, paddings, which nodes may have in another form.
        types: of tensors of less than eight bits, and of results that nothing reads, which a file may leave out.
    """

    op: Op
    quantizations: Mapping[str, Quantization]
    constants: Sequence[Tensor]
    types: Mapping[str, str]


def write_note(graph: Graph, op: Op, on_quantizations: Callable[[Op], Sequence[str]] | None = None) -> dict[str, Any]:
    """An operator of a graph as a note has it.

    Args:
        graph: the graph.
        op: the operator.
        on_quantizations: the names of those of its tensors whose quantizations are noted; by default those that it computes with, and of
            data movement none.
    """
    names = (_on_quantizations if on_quantizations is None else on_quantizations)(op)
    unread = _unread(graph, op)
    types = {
        name: graph[name].dtype for name in (*op.inputs, *op.outputs) if name and (graph[name].dtype in _SMALL_TYPES or name in unread)
    }
    return {
        "kind": op.kind, "inputs": list(op.inputs), "outputs": list(op.outputs), "attributes": dict(op.attributes), "source": op.source,
        "quantizations": {name: stated_quantization(found) for name in names if name and (found := graph[name].quantization) is not None
                  and not found.block_size and (found.is_per_tensor or graph[name].is_constant)},
        "constants": {name: _write_constant(graph[name]) for name in _small_constants(graph, op)},
        **({"types": types} if types else {}),
    }  # fmt: skip


def _unread(graph: Graph, op: Op) -> set[str]:
    """Those of several results that no operator reads and the graph does not give."""
    if len(op.outputs) < 2:
        return set()
    return set(filter(None, op.outputs)).difference(graph.outputs, *(other.inputs for other in graph.ops))


def read_note(item: Mapping[str, Any]) -> Noted:
    """The operator in a note.

    Raises:
        OverflowError, ValueError, TypeError, KeyError, AttributeError: it is none.
    """
    quantizations = {str(name): quantization_of(quantization) for name, quantization in item.get("quantizations", {}).items()}
    types = {str(name): str(dtype) for name, dtype in item.get("types", {}).items()}
    return Noted(_operator(item), quantizations, _constants(item.get("constants", {})), types)


def _on_quantizations(op: Op) -> tuple[str, ...]:
    """The tensors whose quantizations an operator needs; data movement is the same with any."""
    return () if kind_of(op).rule == "move" else (*op.inputs, *op.outputs)


def _small_constants(graph: Graph, op: Op) -> list[str]:
    """The constants of an operator that a note holds: sizes, parameters, and fillers without a quantization."""
    kind = kind_of(op)
    fillers = [name for name in kind.inputs_with_role(op, "filler") if not graph[name].is_quantized]
    return [name for name in (*kind.inputs_with_role(op, "index", "parameter"), *fillers) if _is_small(graph[name])]


def _is_small(tensor: Tensor) -> bool:
    """Whether a tensor is a constant that a note can hold."""
    return tensor.data is not None and tensor.data.size <= _SMALL and tensor.dtype in _NOTED and bool(np.isfinite(tensor.data).all())


def _write_constant(tensor: Tensor) -> tuple[str, list[int], list[float]]:
    assert tensor.data is not None
    return tensor.dtype, list(tensor.data.shape), tensor.data.reshape(-1).tolist()


def stated_quantization(quantization: Quantization) -> Stated:
    """A quantization as a note has it."""
    limits = (
        ()
        if quantization.quant_min is None and quantization.quant_max is None
        else ({"limits": (quantization.quant_min, quantization.quant_max)},)
    )
    if quantization.axis is None:
        return float(quantization.scale[0]), int(quantization.zero_point[0]), *limits
    return tuple(quantization.scale.tolist()), tuple(quantization.zero_point.tolist()), quantization.axis, *limits


def quantization_of(given: Sequence[Any]) -> Quantization:
    """The quantization in a note; raises ValueError or TypeError if it is none."""
    numbers = [item for item in given if not isinstance(item, Mapping)]
    named = next((item for item in given if isinstance(item, Mapping)), {})
    low, high = (None if limit is None else int(limit) for limit in named.get("limits", (None, None)))
    if len(numbers) == 2:
        return replace(Quantization.per_tensor(float(numbers[0]), int(numbers[1])), quant_min=low, quant_max=high)
    scales, points, axis = numbers
    if np.ndim(scales) != 1 or np.ndim(points) != 1:
        raise ValueError("scales along an axis are not a vector")
    return Quantization(np.array(scales, np.float32), np.array(points, np.int64), int(axis), 0, low, high)


def _operator(item: Mapping[str, Any]) -> Op:
    kind = str(item["kind"])
    if kind not in KINDS:
        raise ValueError(f"there is no operator {kind!r}")
    attributes = {str(name): tuple(value) if isinstance(value, list) else value for name, value in item["attributes"].items()}
    inputs, outputs = (tuple(str(name) for name in item[side]) for side in ("inputs", "outputs"))
    return Op(kind, inputs, outputs, attributes, str(item.get("source", "")))


def _constants(given: Mapping[str, Any]) -> list[Tensor]:
    found = []
    for name, (dtype, shape, values) in given.items():
        if dtype not in _NOTED or len(values) > _SMALL:
            raise ValueError("no small constant")
        data = np.array([float(value) if "float" in dtype else int(value) for value in values], dtype).reshape(
            [int(size) for size in shape]
        )
        found.append(Tensor(str(name), dtype, data.shape, data))
    return found
