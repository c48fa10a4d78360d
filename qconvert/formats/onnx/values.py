"""Arithmetic that is written as nodes, in the graph or in the body of a Scan: operators on Values add a node each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.initializers import ELEMENT_TYPES
from qconvert.formats.onnx.proto import GraphProto, make_node, make_value_info
from qconvert.graph import Array, Op, canonical_dtype, numpy_dtype
from qconvert.operators.values import Values, apply

#: What stands next to a value: numbers become constants of its type, arrays keep their own.
Operand: TypeAlias = "Value | Array | float | np.generic"
#: Elements of a constant up to which it is in the file once, however often it is used.
_SMALL = 16


class Emitter(Protocol):
    """What nodes are added to: the graph, or the body of a loop."""

    def node(self, op_type: str, inputs: Sequence[str], outputs: int = 1, *, hint: str = "", **attributes: Any) -> list[str]: ...


class Place(NamedTuple):
    """Where nodes go.

    Attributes:
        b: the graph, which has all constants.
        to: the graph too, or the body of a loop in it.
        hint: begins the names of results.
    """

    b: Builder
    to: Emitter
    hint: str

    def value(self, name: str, dtype: str) -> Value:
        """What is called so, of that type."""
        return Value(self, name, dtype)

    def stored(self, name: str, dtype: str = "") -> Value:
        """The stored values of a tensor of the graph, as another type if one is given."""
        found = Value(self, self.b.stored_value(name), self.b.tensor(name).dtype)
        return found.cast(dtype) if dtype else found

    def floats(self, name: str) -> Value:
        """The float values of a tensor of the graph, which is quantized or float32."""
        return Value(self, self.b.float_value(name), "float32")

    def constant(self, data: Any, dtype: str = "") -> Value:
        """A constant; of its own type unless another one is given."""
        values = np.asarray(data, numpy_dtype(dtype) if dtype else None)
        dtype = canonical_dtype(values.dtype)
        name = f"{self.hint}/constant" if self.hint and values.ndim else "constant"
        if values.size > _SMALL:
            return Value(self, self.b.const(values, name), dtype)
        made = self.b.make_once("constant", f"{dtype} {values.tolist()!r}", lambda: [self.b.const(values, name)])
        return Value(self, made[0], dtype)

    def nodes(self, kind: str, operands: Sequence[Value], dtypes: Sequence[str], **attributes: Any) -> list[Value]:
        """The results of a node, of those types."""
        hint = f"{self.hint}/{kind}" if self.hint else kind
        names = self.to.node(kind, [operand.name for operand in operands], len(dtypes), hint=hint, **attributes)
        return [Value(self, name, dtype) for name, dtype in zip(names, dtypes, strict=True)]

    def node(self, kind: str, *operands: Value, dtype: str = "", **attributes: Any) -> Value:
        """The one result of a node, of the first operand's type unless another one is given."""
        return self.nodes(kind, operands, [dtype or operands[0].dtype], **attributes)[0]

    def split(self, value: Value, sizes: Sequence[int], axis: int = 0) -> list[Value]:
        """Parts of a value along an axis."""
        return self.nodes("Split", [value, self.constant(axes(*sizes))], [value.dtype] * len(sizes), axis=axis)


def place_of(op: Op, b: Builder) -> Place:
    """Where the nodes of an operator of the graph go; their results are named after its first one."""
    return Place(b, b, next(filter(None, op.outputs)))


def axes_opset(kind: str) -> int:
    """The opset from which a reduction takes its axes as an input (ONNX operator changelog)."""
    return 13 if kind == "ReduceSum" else 18


def axes(*values: int) -> Array:
    """Axes, sizes or places, for an operand of int64."""
    return np.array(values, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Value(Values):
    """A value in the file: a name, its type, and where nodes that are made of it go. Formulas whose kinds ONNX has become nodes."""

    at: Place
    name: str
    dtype: str

    def apply(self, kind: str, operands: Sequence[Any], attributes: Mapping[str, Any], outputs: int) -> Any:
        if kind == "Square":
            return self * self
        if kind.startswith("Reduce") and self.at.b.opset < axes_opset(kind):
            operands, attributes = operands[:1], {**attributes, "axes": operands[1].tolist()}
        given = [self._operand(item) for item in operands]
        found = self.at.nodes(kind, given, [given[0].dtype] * outputs, **attributes)
        return found if outputs > 1 else found[0]

    def then(self, kind: str, *operands: Operand, dtype: str = "", **attributes: Any) -> Value:
        """The result of a node of this value and others."""
        return self.at.node(kind, self, *map(self._operand, operands), dtype=dtype, **attributes)

    def _operand(self, given: Operand) -> Value:
        if isinstance(given, Value):
            return given
        return self.at.constant(given, "" if isinstance(given, np.ndarray) else self.dtype)

    def __lt__(self, other: Operand) -> Value:
        return self.then("Less", other, dtype="bool")

    def __gt__(self, other: Operand) -> Value:
        return self.then("Greater", other, dtype="bool")

    def equals(self, other: Operand) -> Value:
        return self.then("Equal", other, dtype="bool")

    def where(self, then: Operand, other: Value) -> Value:
        """One value where this one is true, else the other one."""
        return self.at.node("Where", self, other._operand(then), other, dtype=other.dtype)

    def cast(self, dtype: str) -> Value:
        """This value as another type; itself if it has that."""
        return self if dtype == self.dtype else self.then("Cast", dtype=dtype, to=ELEMENT_TYPES[dtype])

    def floor(self) -> Value:
        return self.then("Floor")

    def round(self) -> Value:
        """The nearest whole number, ties to even."""
        return self.then("Round")

    def round_up(self) -> Value:
        """The nearest whole number, ties up."""
        return (self + 0.5).floor()

    def round_away(self) -> Value:
        """The nearest whole number, ties away from zero."""
        return self.then("Sign") * self.then("Abs").round_up()

    def clip(self, low: float, high: float) -> Value:
        return self.then("Clip", low, high)

    def transpose(self, *perm: int) -> Value:
        return self.then("Transpose", perm=perm)

    def reduce(self, kind: str, *along: int, keepdims: int = 1) -> Value:
        """A reduction along axes."""
        found: Value = apply(kind, self, axes(*along), keepdims=keepdims)
        return found

    def finish(self, output: str) -> None:
        """Makes this value, as the type of the tensor `output` of the graph, that tensor; "" is nothing."""
        b = self.at.b
        if output:
            b.rename(self.cast(b.tensor(output).dtype).name, output)


class ScanBody:
    """The nodes of a Scan's body; what it names from outside are values of the graph around.

    Args:
        b: of that graph.
        prefix: of the names inside.
        inputs: what the body takes, and the canonical type of each: states first, then what it takes of the one sequence.
    """

    def __init__(self, b: Builder, prefix: str, inputs: Mapping[str, str]) -> None:
        self._b, self._prefix = b, prefix
        self._place = Place(b, self, "")
        self.inputs = [self._place.value(b.name(f"{prefix}/{what}"), dtype) for what, dtype in inputs.items()]
        self.nodes: list[Any] = []

    def node(self, op_type: str, inputs: Sequence[str], outputs: int = 1, *, hint: str = "", **attributes: Any) -> list[str]:
        names = [self._b.name(f"{self._prefix}/{hint or op_type}") for _ in range(outputs)]
        self.nodes.append(make_node(op_type, inputs, names, **attributes))
        return names

    def scan(self, at: Place, given: Sequence[Value], states: Sequence[Value], shown: Value, backwards: bool = False) -> list[Value]:
        """Adds the Scan over one sequence.

        Args:
            at: the graph.
            given: first values of the states, and the sequence.
            states: the next value of each.
            shown: what each step gives.
            backwards: from the last step to the first.

        Returns:
            The last value of each state, and what all steps gave.
        """
        b, results = self._b, [*states, shown]
        inputs, outputs = ([make_value_info(value.name, ELEMENT_TYPES[value.dtype], None) for value in side]
                           for side in (self.inputs, results))  # fmt: skip
        graph = GraphProto(node=self.nodes, name=self._prefix, input=inputs, output=outputs)
        own = {*(value.name for value in self.inputs), *(name for node in self.nodes for name in node.output)}
        b.reads_inside({name for node in self.nodes for name in node.input} - own)
        ways: dict[str, Any] = {"scan_input_directions": [1], "scan_output_directions": [1]} if backwards else {}
        names = b.node("Scan", [value.name for value in given], len(results), hint=f"{at.hint}/scan", body=graph, num_scan_inputs=1, **ways)
        return [at.value(name, value.dtype) for name, value in zip(names, results, strict=True)]


def zero_states(data: Value, size: int) -> Value:
    """States of zeros, of shape (rows, size), for data of shape (steps, rows, inputs)."""
    rows = data.then("Shape", dtype="int64").then("Slice", axes(1), axes(2))
    return rows.then("Concat", axes(size), axis=0).then("ConstantOfShape", dtype="float32")
