"""What a graph holds, in a form for terminals and notebooks, and the graph as text, an operator a line, for people who follow passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.errors import format_count, printable
from qconvert.graph.schema import Graph, Op, Tensor, count_kinds
from qconvert.tables import Rows, Shown, format_text

#: Constants of at most so many elements are printed with their values.
_FEW = 4


@dataclass(frozen=True, slots=True, repr=False)
class Summary(Shown):
    """What a graph holds.

    Attributes:
        name: of the network.
        inputs, outputs: the tensors, as in repr().
        operators: kind -> how many, the most frequent first, those in functions included.
        quantized: how many of the tensors that operators compute are quantized.
        computed: how many tensors operators compute.
        parameters: how many elements the constants have.
        stored: bytes of the constants, by storage type.
        functions, states: how many of each.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: Mapping[str, int]
    quantized: int
    computed: int
    parameters: int
    stored: Mapping[str, int]
    functions: int
    states: int

    def _rows(self) -> list[tuple[str, str]]:
        sizes = ", ".join(f"{dtype} {size:,} bytes" for dtype, size in self.stored.items())
        rows = [("input", text) for text in self.inputs] + [("output", text) for text in self.outputs]
        rows.append(("operators", f"{sum(self.operators.values())}: " + ", ".join(f"{kind} {n}" for kind, n in self.operators.items())))
        rows.append(("quantized", f"{self.quantized} of {self.computed} computed tensors"))
        rows.append(("constants", f"{self.parameters:,} elements" + (f": {sizes}" if sizes else "")))
        rows += [(word, str(count)) for word, count in (("functions", self.functions), ("states", self.states)) if count]
        return [(head, printable(text, one_line=True)) for head, text in rows]

    def __str__(self) -> str:
        return "\n".join([printable(self.name, one_line=True) or "network", *(f"  {head:10} {text}" for head, text in self._rows())])

    @property
    def sentence(self) -> str:
        """How much there is."""
        counts = f"{sum(self.operators.values())} operators, {self.quantized} of {self.computed} computed tensors quantized"
        return f"{format_text(self.name) or 'network'}: {counts}, {self.parameters:,} constants."

    def tables(self) -> tuple[Rows, ...]:
        """Inputs, outputs and counts."""
        return (Rows("", ("", ""), tuple(self._rows())),)


def summarize_graph(graph: Graph) -> Summary:
    """The summary of a graph, functions included."""
    parts = (graph, *graph.functions.values())
    kinds = count_kinds(op for part in parts for op in part.ops)
    constants: list[Tensor] = [tensor for part in parts for tensor in part.constants()]
    stored: Counter[str] = Counter()
    for tensor in constants:
        assert tensor.data is not None
        stored[tensor.dtype] += tensor.data.nbytes
    computed = [part[name] for part in parts for op in part.ops for name in op.outputs if name]
    return Summary(
        graph.name,
        tuple(repr(graph[name]) for name in graph.inputs),
        tuple(repr(graph[name]) for name in graph.outputs),
        dict(kinds.most_common()),
        sum(tensor.is_quantized for tensor in computed),
        len(computed),
        sum(tensor.data.size for tensor in constants if tensor.data is not None),
        dict(stored.most_common()),
        len(graph.functions),
        len(graph.states),
    )


def format_graph(graph: Graph) -> str:
    """Inputs, operators in order, and outputs, each tensor with its type, shape and quantization where it is made.

    A line reads `y: int8[1, 4] 0.5 +3 = Conv(x, w: int8[4, 3, 1, 1] 0.01) strides=(1, 1)  # CONV_2D #0`: the result with its scale and zero
    point, the kind, the operands (constants in full), the attributes, and what the operator comes from.
    """
    return "\n".join(printable(line, one_line=True) for line in _lines(graph))


def _lines(graph: Graph) -> Iterator[str]:
    yield f"graph {graph.name!r}: {format_count(len(graph.ops), 'operator')}"
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
    attributes = "".join(f" {key}={_value(value)}" for key, value in op.attributes.items() if value != "")
    return f"{results} = {op.kind}({operands}){attributes}" + (f"  # {op.source}" if op.source else "")


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
