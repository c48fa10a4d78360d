"""What a definition sees of the node that it decomposes, and how it adds nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.formats.onnx.initializers import ELEMENT_TYPES
from qconvert.formats.onnx.proto import make_node
from qconvert.graph import Array, Graph, Op, Tensor, canonical_dtype, numpy_dtype

#: What a node reads: the name of a value, "" for an absent one; a list of int64; a number of the type of the first input; data as they are.
Operand = str | Sequence[int] | float | Array | np.generic

#: The most elements of a constant that is made of sizes alone.
_MOST_PLACES = 2**24


class NoDefinitionError(Exception):
    """A form of an operator that its definition does not cover: the node stays as it is."""


class Decomposition:
    """The nodes that stand for one node; each call adds one and gives its result's name.

    Attributes:
        op: the Opaque operator.
        nodes: NodeProtos so far.
        constants: arrays by name.
    """

    def __init__(self, graph: Graph, op: Op, node: Any) -> None:
        self.op = op
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self._graph = graph
        self._attributes: Mapping[str, Any] = {item.name: _value(item) for item in node.attribute}

    @property
    def version(self) -> int:
        """The opset of the node's domain."""
        return int(self.op["version"])

    @property
    def x(self) -> str:
        """The first input."""
        return self.op.inputs[0]

    def input(self, index: int) -> str:
        """Input `index`; "" if it is absent."""
        return self.op.inputs[index] if index < len(self.op.inputs) else ""

    def tensor(self, index: int = 0) -> Tensor:
        """Input `index`; raises NoDefinitionError if it is absent."""
        if not self.input(index):
            raise NoDefinitionError(f"no input {index}")
        return self._graph[self.input(index)]

    def rank(self, index: int = 0) -> int:
        """The rank of input `index`; raises NoDefinitionError if it is not known."""
        rank = self.tensor(index).rank
        if rank is None:
            raise NoDefinitionError("an unknown rank")
        return rank

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The sizes of input `index`; raises NoDefinitionError if one is not known."""
        shape = self.tensor(index).static_shape
        if shape is None:
            raise NoDefinitionError("unknown sizes")
        return shape

    def shape_of(self, index: int, axis: int) -> int:
        """One size of input `index`; raises NoDefinitionError if it is not known."""
        shape = self.tensor(index).shape
        size = shape[axis] if shape and -len(shape) <= axis < len(shape) else None
        if not isinstance(size, int):
            raise NoDefinitionError("an unknown size")
        return size

    def real_type(self, index: int) -> type[np.floating[Any]]:
        """The type of input `index`, whose values are real."""
        found: type[np.floating[Any]] = numpy_dtype(self.tensor(index).dtype).type
        return found

    def require_small(self, *sizes: int) -> None:
        """Raises NoDefinitionError if a constant of so many elements would be too large for what it is good for."""
        if math.prod(sizes) > _MOST_PLACES:
            raise NoDefinitionError(f"{' x '.join(map(str, sizes))} places, more than {_MOST_PLACES}")

    def constant(self, index: int) -> Array | None:
        """The data of input `index`; None if it is absent or computed at run time."""
        return self._graph.constant(self.input(index))

    def known(self, index: int) -> Array:
        """The data of input `index`; raises NoDefinitionError if they are computed at run time."""
        data = self.constant(index)
        if data is None:
            raise NoDefinitionError(f"input {index} is computed at run time")
        return data

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the node."""
        return self._attributes.get(name, default)

    def attributes(self, *names: str) -> dict[str, Any]:
        """Some attributes of the node by name, None where it lacks one."""
        return {name: self.attribute(name) for name in names}

    def axis(self, name: str = "axis", default: int = -1, index: int = 0) -> int:
        """An attribute that is an axis of input `index`, counted from the front."""
        rank, axis = self.rank(index), int(self.attribute(name, default))
        if not -rank <= axis < rank:
            raise NoDefinitionError(f"axis {axis} of rank {rank}")
        return axis % rank

    def number(self, value: float, index: int = 0) -> str:
        """A constant of the type of input `index`."""
        return self.const(np.array(value, numpy_dtype(self.tensor(index).dtype)))

    def element(self, index: int = 0) -> int:
        """The number of the type of input `index` in ONNX, for a Cast."""
        return ELEMENT_TYPES[canonical_dtype(numpy_dtype(self.tensor(index).dtype))]

    def ints(self, *values: int) -> str:
        """A constant list of int64."""
        return self.const(np.array(values, np.int64))

    def const(self, data: Any) -> str:
        """A constant."""
        name = f"{self.op.outputs[0]}/constant_{len(self.constants)}"
        self.constants[name] = np.asarray(data)
        return name

    def __call__(self, op_type: str, *operands: Operand, domain: str = "", **attributes: Any) -> str:
        """Adds a node with one output; operands that are no names become constants."""
        names = [item if isinstance(item, str) else self._add_operand(item) for item in operands]
        while names and not names[-1]:
            names.pop()
        result = f"{self.op.outputs[0]}/{op_type}_{len(self.nodes)}"
        self.nodes.append(make_node(op_type, names, [result], domain=domain, **attributes))
        return result

    def _add_operand(self, given: Sequence[int] | float | Array | np.generic) -> str:
        if isinstance(given, np.ndarray | np.generic):
            return self.const(given)
        return self.ints(*given) if isinstance(given, Sequence) else self.number(given)

    def end(self, value: str, index: int = 0) -> None:
        """Makes `value`, the result of a node, output `index` of the operator."""
        wanted = self.op.outputs[index]
        for node in self.nodes:
            for names in (node.input, node.output):
                names[:] = [wanted if name == value else name for name in names]


def _value(attribute: Any) -> Any:
    from onnx import helper

    value = helper.get_attribute_value(attribute)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


Definition = Callable[[Decomposition], None]
Definitions = Mapping[str, Definition]
