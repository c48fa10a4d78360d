"""The canonical quantized graph: what every reader produces, every pass rewrites and every writer takes.

Operator names, attributes and meaning are ONNX's (see ops.py for the few additions). All classes are frozen; a pass returns a
new graph that shares what it did not touch. Constant data are numpy arrays, often views on the source file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

__all__ = [
    "DTYPES",
    "Attribute",
    "Graph",
    "Op",
    "Quantization",
    "Shape",
    "Signature",
    "Tensor",
    "canonical_dtype",
    "integer_range",
    "numpy_dtype",
]

Array = np.ndarray[Any, np.dtype[Any]]
Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
Shape = tuple[int | str, ...]

DTYPES = (
    "bool", "int2", "int4", "int8", "int16", "int32", "int64", "uint4", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "string",
    "uint2", "float4e2m1", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "unknown",
)  # fmt: skip

_PACKED = frozenset((
    "int2", "uint2", "int4", "uint4", "bfloat16", "float4e2m1", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz",
))  # fmt: skip
_ML_NAMES = {"float4e2m1": "float4_e2m1fn", "float8e4m3fn": "float8_e4m3fn", "float8e4m3fnuz": "float8_e4m3fnuz",
             "float8e5m2": "float8_e5m2", "float8e5m2fnuz": "float8_e5m2fnuz"}  # fmt: skip
_CANONICAL_NAMES = {other: name for name, other in _ML_NAMES.items()}

_RANGES = {
    "int2": (-2, 1),
    "uint2": (0, 3),
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a canonical dtype name; types that numpy lacks come from ml_dtypes, those below 8 bits one element a byte."""
    if name in ("string", "unknown"):
        return np.dtype(object)
    if name in _PACKED:
        import ml_dtypes

        packed: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_NAMES.get(name, name)))
        return packed
    return np.dtype(name)


def canonical_dtype(dtype: np.dtype[Any]) -> str:
    """The canonical name of a numpy dtype; see numpy_dtype()."""
    if dtype.kind in "OSU":
        return "string"
    name = dtype.name
    return _CANONICAL_NAMES.get(name, name)


def integer_range(dtype: str) -> tuple[int, int]:
    """The smallest and largest stored value of an integer dtype."""
    return _RANGES[dtype]


@dataclass(frozen=True, slots=True, eq=False)
class Quantization:
    """real = scale * (stored - zero_point), as in the TFLite and ONNX specifications.

    Attributes:
        scale: float32, one value, or one for each index along `axis`, or in blocks: of the tensor's rank, and of its shape but for
            `axis`, which has one for each block.
        zero_point: int64, of the shape of `scale`.
        axis: the dimension that the scales run along; None means one scale for the whole tensor.
        block_size: elements along `axis` that share a scale; 0 means no blocks.
    """

    scale: Array
    zero_point: Array
    axis: int | None = None
    block_size: int = 0

    @classmethod
    def per_tensor(cls, scale: float, zero_point: int = 0) -> Quantization:
        """One scale and zero point for the whole tensor."""
        return cls(np.array([scale], np.float32), np.array([zero_point], np.int64))

    @classmethod
    def per_axis(cls, scale: Any, axis: int, zero_point: Any = 0) -> Quantization:
        """One scale for each index along `axis`; `zero_point` is one value for all or one each."""
        scale = np.asarray(scale, np.float32)
        return cls(scale, np.broadcast_to(np.asarray(zero_point, np.int64), scale.shape).copy(), axis)

    @property
    def is_per_tensor(self) -> bool:
        return self.axis is None

    @property
    def is_symmetric(self) -> bool:
        return not self.zero_point.any()

    def shifted(self, offset: int) -> Quantization:
        """The quantization of the same real values when `offset` is added to every stored integer."""
        return replace(self, zero_point=self.zero_point + offset)

    def with_axis(self, axis: int | None) -> Quantization:
        """The same scales along another dimension, after a transposition."""
        return replace(self, axis=axis)

    def transposed(self, perm: Sequence[int]) -> Quantization:
        """The quantization of the tensor's transpose, whose axis i is the tensor's axis perm[i]."""
        if self.axis is None:
            return self
        axis = list(perm).index(self.axis)
        if self.scale.ndim == 1:
            return replace(self, axis=axis)
        return replace(self, axis=axis, scale=self.scale.transpose(perm), zero_point=self.zero_point.transpose(perm))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantization):
            return NotImplemented
        return (
            (self.axis, self.block_size) == (other.axis, other.block_size)
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )

    __hash__ = None  # type: ignore[assignment]


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


def equal_data(a: Array | None, b: Array | None) -> bool:
    """Whether two constants hold the same bits (NaN equals NaN, and -0.0 differs from 0.0)."""
    if a is None or b is None or a is b:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype == object or a.dtype.name in ("int2", "uint2", "int4", "uint4"):  # the unused high bits of their bytes mean nothing
        return bool((a == b).all())
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


@dataclass(frozen=True, slots=True)
class Op:
    """One operator.

    Attributes:
        kind: a name from ops.OPS.
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
        from qconvert.ops import OPS

        return OPS[self.kind].attributes[name]

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

    def fresh_name(self, wanted: str, taken: Iterable[str] = ()) -> str:
        """`wanted`, or with a number appended if the graph or `taken` already uses it."""
        others = set(taken)
        name, number = wanted, 1
        while name in self.tensors or name in others:
            name, number = f"{wanted}_{number}", number + 1
        return name

    def validate(self) -> None:
        """Raises InvalidGraphError, naming the operator or tensor, if an invariant is broken (see validation.py)."""
        from qconvert.validation import validate

        validate(self)
