"""The canonical quantized graph: what every reader produces, every pass rewrites and every writer takes.

Operator names, attributes and meaning are ONNX's (see kinds/ for the few additions). All classes are frozen; a pass returns a
new graph that shares what it did not touch. Constant data are numpy arrays, often views on the source file.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qconvert.arithmetic.dtypes import Array, equal_data
from qconvert.arithmetic.quantization import Quantization
from qconvert.graph.names import Names

__all__ = ["Attribute", "Graph", "Op", "Shape", "Signature", "Tensor"]

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
Shape = tuple[int | str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A value in the graph: an activation, or a constant when `data` is set.

    Attributes:
        name: unique in the graph; the source's own name wherever it has one.
        dtype: storage type, one of DTYPES.
        shape: sizes; a string names a size that is known only when the model runs. None: not even the rank is known.
        data: the stored values of a constant, of `shape` and of numpy_dtype(dtype).
        quantization: how stored integers map to real values; None for plain numbers.
    """

    name: str
    dtype: str
    shape: Shape | None
    data: Array | None = None
    quantization: Quantization | None = None

    @property
    def is_constant(self) -> bool:
        return self.data is not None

    @property
    def is_quantized(self) -> bool:
        return self.quantization is not None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape when every size is a number, else None."""
        if self.shape is None or any(isinstance(size, str) for size in self.shape):
            return None
        return tuple(int(size) for size in self.shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        same = (self.name, self.dtype, self.shape) == (other.name, other.dtype, other.shape)
        return same and self.quantization == other.quantization and equal_data(self.data, other.data)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Op:
    """One operator.

    Attributes:
        kind: a name from ops.KINDS.
        inputs: tensor names; "" stands for an optional input that is absent.
        outputs: tensor names.
        attributes: ONNX attributes of the kind, and `activation` (relu, relu6, relu_n1_to_1) where one is fused.
        source: the operator of the source file that this one came from, such as "CONV_2D #12".
    """

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    source: str = ""

    def __getitem__(self, name: str) -> Any:
        """The attribute `name`, or the default that the operator set gives it."""
        if name in self.attributes:
            return self.attributes[name]
        from qconvert.graph.kinds import KINDS

        return KINDS[self.kind].attributes[name]

    def with_attributes(self, **changes: Attribute) -> Op:
        return replace(self, attributes={**self.attributes, **changes})

    def __str__(self) -> str:
        return f"{self.kind} {self.outputs[0]!r}" if self.outputs else self.kind


@dataclass(frozen=True, slots=True)
class Signature:
    """A named entry point of the source: public argument names mapped to tensor names."""

    key: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole network. `ops` are in an order in which they can run; `tensors` holds every name that they use."""

    name: str
    tensors: Mapping[str, Tensor]
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    signatures: tuple[Signature, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def constant(self, name: str) -> Array | None:
        """The data of the tensor `name` if it is a constant, else None."""
        return self.tensors[name].data if name else None

    def is_from(self, format: str) -> bool:
        """Whether the graph was read from a file of that format."""
        return self.metadata.get("source.format") == format

    def producers(self) -> dict[str, Op]:
        """The operator that writes each tensor; graph inputs and constants are absent."""
        return {name: op for op in self.ops for name in op.outputs if name}

    def consumers(self) -> dict[str, list[Op]]:
        """The operators that read each tensor, in order, once for each time they read it."""
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in op.inputs:
                if name:
                    found.setdefault(name, []).append(op)
        return found

    def constants(self) -> Iterator[Tensor]:
        return (tensor for tensor in self.tensors.values() if tensor.is_constant)

    def evolve(self, *, tensors: Iterable[Tensor] = (), ops: Iterable[Op] | None = None, **changes: Any) -> Graph:
        """A copy with some tensors added or replaced (by name), other operators, or other fields.

        Tensors that no operator, input or output names any more are dropped.
        """
        merged = {**self.tensors, **{tensor.name: tensor for tensor in tensors}}
        graph = replace(self, tensors=merged, ops=self.ops if ops is None else tuple(ops), **changes)
        used = {name for op in graph.ops for name in (*op.inputs, *op.outputs)} | {*graph.inputs, *graph.outputs}
        kept = {name: tensor for name, tensor in merged.items() if name in used}
        return replace(graph, tensors=kept)

    def names(self, *taken: Container[str]) -> Names:
        """Names for new tensors, which neither the graph uses nor one of `taken`; see Names."""
        return Names(self.tensors, *taken)
