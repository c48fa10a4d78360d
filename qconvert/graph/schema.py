"""The canonical quantized graph: what every reader produces, every pass rewrites and every writer takes.

Operator names, attributes and meaning are ONNX's (see operators/ for the few additions). All classes are frozen; a pass returns a
new graph that shares what it did not touch. Constant data are numpy arrays, often views on the source file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from qconvert.arithmetic.rounding import dequantize, subtract_zero_points
from qconvert.arithmetic.storage import Array, Quantization, equal_data, read_only, reduce_frozen
from qconvert.errors import InvalidGraphError
from qconvert.graph.correspondence import Correspondence
from qconvert.graph.metadata import SOURCE_FORMAT
from qconvert.graph.names import Names

if TYPE_CHECKING:
    from qconvert.graph.summary import Summary


#: Kind -> attribute -> its default. The operator set fills it in when it registers a kind (qconvert.operators).
DEFAULTS: dict[str, Mapping[str, Any]] = {}

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
Shape = tuple[int | str, ...]
#: Values by the names of their tensors.
Arrays = Mapping[str, Array]


def frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """A view of a mapping that cannot be changed."""
    return mapping if isinstance(mapping, MappingProxyType) else MappingProxyType(mapping)


def drop_keys(mapping: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """A copy of metadata or attributes without some keys."""
    return {key: value for key, value in mapping.items() if key not in keys}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensor:
    """A value in the graph: an activation, or a constant when `data` is set.

    Attributes:
        name: unique in the graph; the source's own name wherever it has one.
        dtype: storage type, one of DTYPES.
        shape: sizes; a string names a size that is known only when the model runs. None: not even the rank is known.
        data: the stored values of a constant, of `shape` and of numpy_dtype(dtype).
        quantization: how stored integers map to float values; None for plain numbers.

    The data are read-only: a pass that changes them makes an array of its own.
    """

    name: str
    dtype: str
    shape: Shape | None
    data: Array | None = None
    quantization: Quantization | None = None

    def __post_init__(self) -> None:
        if self.data is not None:
            object.__setattr__(self, "data", read_only(self.data))

    __reduce__ = reduce_frozen

    @property
    def is_constant(self) -> bool:
        return self.data is not None

    @property
    def is_quantized(self) -> bool:
        return self.quantization is not None

    @property
    def per_tensor(self) -> Quantization | None:
        """The quantization, if it is one for the whole tensor."""
        return self.quantization if self.quantization is not None and self.quantization.is_per_tensor else None

    def require_quantization(self) -> Quantization:
        """The quantization of a tensor that has one.

        Raises:
            InvalidGraphError: it holds plain numbers.
        """
        if self.quantization is None:
            raise InvalidGraphError("has no quantization", where=repr(self.name), rule="not-quantized")
        return self.quantization

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape when every size is a number, else None."""
        if self.shape is None:
            return None
        for size in self.shape:
            if isinstance(size, str):
                return None
        return tuple(map(int, self.shape))

    def float_values(self) -> Array:
        """The float values of a constant: float64 where it is quantized, else its data as they are.

        Raises:
            InvalidGraphError: it is computed when the model runs.
        """
        if self.data is None:
            raise InvalidGraphError("is computed at run time and has no values in the graph", where=repr(self.name), rule="not-constant")
        return self.data if self.quantization is None else dequantize(self.data, self.quantization)

    def steps(self) -> Array:
        """The integers of a quantized constant less their zero points, in int64."""
        assert self.data is not None and self.quantization is not None
        return subtract_zero_points(self.data, self.quantization)

    def shares_quantization(self, other: Tensor) -> bool:
        """Whether stored values mean the same in both: of one type, under one quantization or none."""
        return self.dtype == other.dtype and self.quantization == other.quantization

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        same = (self.name, self.dtype, self.shape) == (other.name, other.dtype, other.shape)
        return same and self.quantization == other.quantization and equal_data(self.data, other.data)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Short, as a graph has many: Tensor('w', int8[4, 3, 1, 1], Quantization(0.5, +3), constant)."""
        parts = [repr(self.name), _format_type(self)]
        parts += [repr(self.quantization)] if self.quantization is not None else []
        return f"Tensor({', '.join(parts + ['constant'] * self.is_constant)})"


@dataclass(frozen=True, slots=True)
class Op:
    """One operator.

    Attributes:
        kind: a name from operators.KINDS.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", frozen(self.attributes))

    __reduce__ = reduce_frozen

    def __getitem__(self, name: str) -> Any:
        """The attribute `name`, or the default that the operator set gives it."""
        if name in self.attributes:
            return self.attributes[name]
        return DEFAULTS[self.kind][name]

    @property
    def name(self) -> str:
        """What it is called: its first result, which no other operator has, or, without results, its kind and what it came from."""
        return self.outputs[0] if self.outputs else " ".join(filter(None, (self.kind, self.source)))

    @property
    def location(self) -> str:
        """Where errors place it: what it came from, and what it is."""
        return f"{self.source} {self}".strip()

    @property
    def source_name(self) -> str:
        """Its own name in the source's file, such as "/features/0/Conv" of "Conv /features/0/Conv"; "" if that gives it none."""
        name = self.source.partition(" ")[2]
        return "" if name.startswith("#") else name

    @property
    def label(self) -> str:
        """What it came from, or its kind where it came from no operator of a source."""
        return self.source or self.kind

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its tensors, those of absent ones ("") too: inputs, then outputs."""
        return self.inputs + self.outputs

    def input(self, index: int) -> str:
        """The tensor that is input `index`, which may be an optional one; "" if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def has(self, index: int) -> bool:
        """Whether input `index`, which may be an optional one, is there."""
        return bool(self.input(index))

    def derive(self, kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], /, **attributes: Attribute) -> Op:
        """A further operator that comes from the same operator of the source file."""
        return Op(kind, inputs, outputs, attributes, self.source)

    def with_attributes(self, **changes: Attribute) -> Op:
        return replace(self, attributes={**self.attributes, **changes})

    def with_input(self, index: int, name: str) -> Op:
        """The operator with another tensor as input `index`, which may come next after the last."""
        return replace(self, inputs=(*self.inputs[:index], name, *self.inputs[index + 1 :]))

    def with_names(self, new: Mapping[str, str]) -> Op:
        """The operator with other names of tensors, old -> new."""
        inputs, outputs = (tuple(new.get(name, name) for name in names) for names in (self.inputs, self.outputs))
        return replace(self, inputs=inputs, outputs=outputs)

    def __str__(self) -> str:
        return " ".join((self.kind, *map(repr, self.outputs[:1])))


def count_kinds(ops: Iterable[Op]) -> Counter[str]:
    """How many of the operators are of each kind."""
    return Counter(op.kind for op in ops)


@dataclass(frozen=True, slots=True)
class Signature:
    """A named entry point of the source: public argument names mapped to tensor names.

    Attributes:
        key: its name.
        inputs, outputs: argument -> tensor, of the network or of a function.
        function: the function that it enters; "" for the network itself.
    """

    key: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    function: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", frozen(self.inputs))
        object.__setattr__(self, "outputs", frozen(self.outputs))

    __reduce__ = reduce_frozen


def _format_type(tensor: Tensor) -> str:
    """Type and shape in short."""
    return f"{tensor.dtype}[{'?' if tensor.shape is None else ', '.join(map(str, tensor.shape))}]"


class Producers(dict[str, Op]):
    """The operator that writes each tensor, by the tensor's name."""

    def find(self, name: str, *kinds: str) -> Op | None:
        """The operator that writes `name`, of one of `kinds` if these are given; None if there is none."""
        op = self.get(name)
        return op if op is not None and (not kinds or op.kind in kinds) else None


class Consumers(dict[str, list[Op]]):
    """The operators that read each tensor, by its name, in order, once for each time they read it; none where nothing does."""

    def __missing__(self, name: str) -> list[Op]:
        return []


@dataclass(frozen=True, slots=True, repr=False)
class Graph:
    """A whole network.

    Attributes:
        name: of the network.
        tensors: every tensor that an operator, an input or an output names, by name.
        ops: in an order in which they can run. Reads and writes of states happen in this order.
        inputs, outputs: names of tensors.
        signatures: named entry points.
        metadata: texts by the keys in graph/metadata.py.
        functions: subgraphs that operators name by an attribute (of the sort "function"). A function sees nothing of what surrounds it
            but the states: a value that it captures is an input of it and of the operator. Functions stand in the whole network's graph
            alone, never in another function's.
        states: tensors that live from one run to the next, by name: their type, shape and quantization, and, as data, their first value.
            ReadState and WriteState name them. They stand in the whole network's graph alone.
        correspondence: which of its tensors hold the values of the graph that it was made of (graph/correspondence.py).
        public: the tensors that a user sees, whatever reads them inside: outputs, and those of signatures.
    """

    name: str
    tensors: Mapping[str, Tensor]
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    signatures: tuple[Signature, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, Graph] = field(default_factory=dict)
    states: Mapping[str, Tensor] = field(default_factory=dict)
    correspondence: Correspondence = field(default_factory=dict, repr=False, compare=False)
    public: frozenset[str] = field(init=False, repr=False, compare=False)
    _ends: list[tuple[Producers, Consumers]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", [])
        object.__setattr__(self, "public", frozenset(self.outputs).union(*(s.outputs.values() for s in self.signatures if not s.function)))
        for name in ("tensors", "metadata", "functions", "states"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    __reduce__ = reduce_frozen

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        """Whether a tensor has this name."""
        return name in self.tensors

    def __iter__(self) -> Iterator[Op]:
        """The operators in their order."""
        return iter(self.ops)

    def __repr__(self) -> str:
        """Short: Graph('net', 12 operators, x: int8[1, 4] -> y: int8[1, 2])."""
        sides = [", ".join(f"{name}: {_format_type(self.tensors[name])}" for name in names) for names in (self.inputs, self.outputs)]
        return f"Graph({self.name!r}, {len(self.ops)} operators, {sides[0]} -> {sides[1]})"

    def summary(self) -> Summary:
        """What it holds, for people: `print(graph.summary())`, or the last line of a notebook's cell."""
        from qconvert.graph.summary import summarize_graph

        return summarize_graph(self)

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def constant(self, name: str) -> Array | None:
        """The data of the tensor `name` if it is a constant, else None."""
        return self.tensors[name].data if name else None

    def is_quantized(self, name: str) -> bool:
        """Whether the tensor `name` has a quantization; an input that is absent ("") has none."""
        return bool(name) and self.tensors[name].is_quantized

    def is_from(self, format: str) -> bool:
        """Whether the graph was read from a file of that format."""
        return self.metadata.get(SOURCE_FORMAT) == format

    def with_names(self, new: Mapping[str, str]) -> Graph:
        """The graph with other names of tensors, old -> new; those of states, signatures and metadata stay."""
        return replace(
            self,
            tensors={new.get(name, name): replace(tensor, name=new.get(name, name)) for name, tensor in self.tensors.items()},
            ops=tuple(op.with_names(new) for op in self.ops),
            inputs=tuple(new.get(name, name) for name in self.inputs),
            outputs=tuple(new.get(name, name) for name in self.outputs),
        )

    def of_kind(self, *kinds: str) -> list[Op]:
        """The operators that have one of the kinds, in their order."""
        return [op for op in self.ops if op.kind in kinds]

    def producers(self) -> Producers:
        """The operator that writes each tensor; graph inputs and constants are absent."""
        return Producers((name, op) for op in self.ops for name in op.outputs if name)

    def consumers(self) -> Consumers:
        """The operators that read each tensor, in order, once for each time they read it."""
        found = Consumers()
        for op in self.ops:
            for name in op.inputs:
                if name:
                    found.setdefault(name, []).append(op)
        return found

    def ends(self) -> tuple[Producers, Consumers]:
        """Producers and consumers, listed once for all that ask of single operators; not to be changed."""
        if not self._ends:
            self._ends.append((self.producers(), self.consumers()))
        return self._ends[0]

    def constants(self) -> Iterator[Tensor]:
        return (tensor for tensor in self.tensors.values() if tensor.is_constant)

    def varying(self) -> set[str]:
        """Names of the tensors that are neither constants nor computed from constants alone."""
        fixed = {tensor.name for tensor in self.constants()}
        for op in self.ops:
            if op.inputs and all(not name or name in fixed for name in op.inputs):
                fixed.update(op.outputs)
        return self.tensors.keys() - fixed

    def evolve(self, *, tensors: Iterable[Tensor] = (), ops: Iterable[Op] | None = None, **changes: Any) -> Graph:
        """A copy with some tensors added or replaced (by name), other operators, or other fields.

        Tensors that no operator, input, output or signature names any more are dropped.
        """
        ops = self.ops if ops is None else tuple(ops)
        borders = [changes.get("inputs", self.inputs), changes.get("outputs", self.outputs)]
        borders += [
            side.values()
            for signature in changes.get("signatures", self.signatures)
            for side in (signature.inputs, signature.outputs)
            if not signature.function
        ]
        used = {name for op in ops for side in (op.inputs, op.outputs) for name in side}.union(*borders)
        merged = {**self.tensors, **{tensor.name: tensor for tensor in tensors}}
        kept = {name: tensor for name, tensor in merged.items() if name in used}
        return replace(self, tensors=kept, ops=ops, **changes)

    def names(self, *taken: Container[str]) -> Names:
        """Names for new tensors, which neither the graph uses nor one of `taken`; see Names."""
        return Names(self.tensors, *taken)
