"""A graph as text, an operator a line: for people who follow what passes do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from qconvert.errors import printable
from qconvert.graph.schema import Graph, Op, Tensor

#: Constants of at most so many elements are printed with their values.
_FEW = 4


def format_graph(graph: Graph) -> str:
    """Inputs, operators in order, and outputs, each tensor with its type, shape and quantization where it is made.

    A line reads `y: int8[1, 4] 0.5 +3 = Conv(x, w: int8[4, 3, 1, 1] 0.01) strides=(1, 1)  # CONV_2D #0`: the result with its scale and zero
    point, the kind, the operands (constants in full), the attributes, and what the operator comes from.
    """
    return "\n".join(printable(line, one_line=True) for line in _lines(graph))


def _lines(graph: Graph) -> Iterator[str]:
    yield f"graph {graph.name!r}: {len(graph.ops)} operators"
    for name in graph.inputs:
        yield f"  input {_format_tensor(graph[name])}"
    for state in graph.states.values():
        yield f"  state {_format_tensor(state)}"
    for op in graph.ops:
        yield f"  {_operator(graph, op)}"
    yield f"  output {', '.join(graph.outputs)}"


def _operator(graph: Graph, op: Op) -> str:
    results = ", ".join(_format_tensor(graph[name]) if name else "-" for name in op.outputs) or "-"
    operands = ", ".join((_format_tensor(graph[name]) if graph[name].is_constant else name) if name else "-" for name in op.inputs)
    attributes = "".join(f" {key}={_value(value)}" for key, value in _drop_empty(op.attributes).items())
    return f"{results} = {op.kind}({operands}){attributes}" + (f"  # {op.source}" if op.source else "")


def _drop_empty(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if value != ""}


def _value(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _format_tensor(tensor: Tensor) -> str:
    shape = "?" if tensor.shape is None else ", ".join(map(str, tensor.shape))
    text = f"{tensor.name}: {tensor.dtype}[{shape}]"
    if tensor.quantization is not None:
        text += f" {tensor.quantization}"
    if tensor.data is not None and tensor.data.size <= _FEW:
        text += f" = {np.asarray(tensor.data).tolist()}"
    return text
