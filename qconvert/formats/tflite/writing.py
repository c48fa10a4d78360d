"""What an operator's write function sees: the canonical graph, and ways to add TFLite tensors, buffers and operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.errors import UnsupportedError
from qconvert.formats.tflite import schema
from qconvert.formats.tflite.operator import Operator, version_of
from qconvert.formats.tflite.tensors import DTYPE_NUMBERS, RESOURCE
from qconvert.formats.tflite.variables import inner_states
from qconvert.formats.writing import OperatorWriting
from qconvert.graph import Array, Graph, Op, Quantization, Shape, Tensor, canonical_dtype, integer_range
from qconvert.operators.sizes import reshape_sizes

#: Operators whose result may state another scale than their data, as their kernels look at none; XNNPACK refuses the others of 8 bits.
_SCALELESS = frozenset(
    "RESHAPE SQUEEZE STRIDED_SLICE TILE BROADCAST_TO GATHER GATHER_ND REVERSE_SEQUENCE REVERSE_V2 SCATTER_ND TOPK_V2 ONE_HOT SPLIT_V "
    "MAXIMUM MINIMUM SELECT SELECT_V2 AVERAGE_POOL_2D RESIZE_NEAREST_NEIGHBOR".split()
)
_SCALELESS_WIDE = frozenset("TRANSPOSE SLICE SPLIT MAX_POOL_2D CONCATENATION RESIZE_BILINEAR".split())


#: Operators that take complex numbers.
_COMPLEX = frozenset("REAL IMAG COMPLEX_ABS".split())


class Writing(OperatorWriting):
    """Collects the tensors and operators of a TFLite subgraph.

    Attributes:
        tensors: every tensor that the file will hold, by name, in TFLite's order of axes.
        inner_states: states that are variables of one operator.
        variables: tensors that are such variables.
        subgraphs: function -> the number of the subgraph that it becomes.
        counters: inputs that are numbers of turns.
        variable_keys: state -> container and shared name.
        whole: id of an operator that lowering emitted -> the one that it is a part of.
    """

    destination = "to TFLite"

    def __init__(
        self,
        graph: Graph,
        subgraphs: Mapping[str, int] | None = None,
        variable_keys: Mapping[str, tuple[str, str]] | None = None,
        whole: Mapping[int, Op] | None = None,
        counters: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(graph)
        self.subgraphs, self.variable_keys, self.whole, self.counters = subgraphs or {}, variable_keys or {}, whole or {}, counters
        self.tensors: dict[str, Tensor] = {}
        self.inner_states = inner_states(graph)
        self.variables: set[str] = set()
        self._names = graph.names(self.tensors)
        self._variants: dict[tuple[str, str], str] = {}
        #: For each tensor its canonical readers, once for each input that it is.
        self._readers: dict[str, dict[tuple[int, int], Op]] = {}
        for op in graph.ops:
            for position, name in enumerate(op.inputs):
                self._readers.setdefault(name, {})[id(op), position] = op
        self._operators: dict[int, Operator] = {}  # by the order in which they were made
        self._made = 0
        self._made_of: dict[int, list[int]] = {}  # id of a canonical operator -> its operators here
        self._uses: Counter[str] = Counter()  # how often they name each tensor
        self._absorbed: set[int] = set()
        self._handles: dict[str, str] = {}  # state -> the tensor that stands for its variable
        self._parts: dict[str, str] = {}  # tensor of complex numbers -> its parts along a last axis
        self._current: Op | None = None

    @property
    def operators(self) -> list[Operator]:
        """What was written, in order."""
        return list(self._operators.values())

    def write(self, op: Op, function: WriteFunction) -> None:
        """Writes `op`, unless an operator before it took it in."""
        if id(op) not in self._absorbed:
            self._current = op
            function(op, self)

    def successor(self, name: str, *kinds: str) -> Op | None:
        """The one canonical operator that reads `name`, of one of `kinds` if these are given; None if there are several, or if the graph
        gives it out."""
        readers = self._readers.get(name, {})
        reader = next(iter(readers.values())) if len(readers) == 1 and name not in self.graph.public else None
        return reader if reader is not None and (not kinds or reader.kind in kinds) else None

    def is_inner(self, name: str, hint: str) -> bool:
        """Whether `name` lies between two canonical operators that the TFLite reader made of one operator.

        Args:
            name: computed by one of them.
            hint: what the reader appends to an output's name to call it; it outlives a way through another format.
        """
        first, second = self.producer(name), self.successor(name)
        if first is None or second is None:
            return False
        hinted = {f"{other}/{hint}" for other in (*first.inputs[:1], *second.outputs[:1])}
        return (first.source != "" and first.source == second.source) or name in hinted

    def absorb(self, op: Op) -> None:
        """Leaves out a later operator, as the one that is being written does its work."""
        self._absorbed.add(id(op))

    def is_absorbed(self, op: Op) -> bool:
        """Whether the work of `op` is done already."""
        return id(op) in self._absorbed

    def is_read_by(self, name: str, ops: Sequence[Op]) -> bool:
        """Whether nothing but these operators reads a tensor."""
        own = {id(op) for op in ops}
        return name not in self.graph.public and all(id(reader) in own for reader in self._readers.get(name, {}).values())

    def retract(self, op: Op, writing: Sequence[Op] = ()) -> None:
        """Takes back an earlier operator with one output, as the one that is being written does its work, unless others read its result.

        Args:
            op: the earlier operator.
            writing: what is being written, if that is more than one operator.
        """
        if not (self.is_read_by(op.outputs[0], writing) if writing else self.successor(op.outputs[0])):
            return
        for number in self._made_of.pop(id(op), ()):
            operator = self._operators.pop(number)
            self._uses.subtract((*operator.inputs, *operator.outputs))
        for position, name in enumerate(op.inputs):
            self._readers[name].pop((id(op), position), None)
        for name in op.names:
            if not self._uses[name] and name not in self.graph.inputs and self.tensors.get(name) is self.graph.tensors.get(name):
                self.tensors.pop(name, None)

    def prune(self) -> None:
        """Drops tensors that nothing uses; the name of a constant that is not used goes to its first variant."""
        used = {name for operator in self.operators for name in (*operator.inputs, *operator.outputs, *operator.intermediates)}
        used |= {*self.graph.inputs, *self.graph.outputs}
        renamed: dict[str, str] = {}
        given: set[str] = set()
        for (original, _), variant in self._variants.items():
            if original not in used and variant in used and original not in given:
                renamed[variant] = original
                given.add(original)
        kept = (replace(tensor, name=renamed.get(name, name)) for name, tensor in self.tensors.items() if name in used)
        self.tensors = {tensor.name: tensor for tensor in kept}
        for operator in self.operators:
            operator.inputs = tuple(renamed.get(name, name) for name in operator.inputs)

    def _absorb_reinterpret(self, builtin: str, name: str) -> str:
        """The tensor after the Reinterpret of a result, where the reader made both of one operator that looks at no scales."""
        narrow = self.tensor(name).dtype in ("int8", "uint8")
        reader = self.successor(name, "Reinterpret") if builtin in (_SCALELESS if narrow else _SCALELESS | _SCALELESS_WIDE) else None
        if reader is None or not self.is_inner(name, "moved"):
            return name
        self.absorb(reader)
        return reader.outputs[0]

    def index(self, op: Op, position: int, *, wide: bool = False) -> str:
        """Input `position` of `op` as TFLite takes shapes, axes and indices: int32.

        Args:
            op: that reads it.
            position: of the input.
            wide: whether the kernel takes int64 too; without it, int64 values that are computed at run time go through a CAST.
        """
        name = op.inputs[position]
        tensor = self.tensor(name)
        if tensor.dtype == "int32":
            return name
        if tensor.data is not None:
            low, high = integer_range("int32")
            if tensor.data.size and not low <= tensor.data.min() <= tensor.data.max() <= high:
                raise self.unsupported_error(op, f"{name!r} that does not fit int32", rule="integers-too-large")
            return self.variant(name, "int32", tensor.data.astype(np.int32), None)
        maker = self.producer(name, "Cast")
        if maker is not None and self.tensor(maker.inputs[0]).dtype == "int32":
            self.retract(maker)
            return maker.inputs[0]
        return name if wide else self.cast(name)

    def cast(self, name: str, dtype: str = "int32") -> str:
        """The tensor `name` after a CAST to a type of integers."""
        return self.emit_new("CAST", [name], f"{name}/{dtype}", dtype, self.tensor(name).shape)

    def reshape(self, name: str, sizes: Sequence[int], result: str, hint: str = "shape") -> str:
        """Adds a RESHAPE of `name`; returns the name of its result, which is declared already."""
        return self.emit("RESHAPE", [name, self.ints(sizes, f"{result}/{hint}")], [result])[0]

    def transpose(self, name: str, perm: Sequence[int], result: str) -> str:
        """Adds a TRANSPOSE of `name`; returns the name of its result, which is declared already."""
        return self.emit("TRANSPOSE", [name, self.ints(perm, f"{result}/perm")], [result])[0]

    def slice_steps(self, name: str, bounds: Iterable[Sequence[int]], result: str, **masks: Any) -> str:
        """Adds a STRIDED_SLICE of `name`, whose bounds are begins, ends and strides; returns the name of its result, which is declared."""
        lists = zip(bounds, ("begin", "end", "strides"), strict=True)
        return self.emit("STRIDED_SLICE", [name, *(self.ints(values, f"{result}/{hint}") for values, hint in lists)], [result], **masks)[0]

    def rows(self, op: Op, position: int) -> str:
        """Input `position` of `op`, all that is before and then all that is after, as TFLite has it: rows of (before, after)."""
        data, hint = self.operand(op, position).data, f"{op.outputs[0]}/rows"
        if data is not None:
            return self.ints(data.reshape(2, -1).T.tolist(), hint)
        flat = self.index(op, position)
        length = (self.tensor(flat).static_shape or (0,))[0]
        if not length:
            raise self.unsupported_error(op, f"{flat!r} of shape {self.tensor(flat).shape}", rule="unsupported-shape")
        sides = self.add(f"{hint}/sides", "int32", (2, length // 2))
        self.emit("RESHAPE", [flat, self.ints([2, length // 2], f"{hint}/sides_shape")], [sides])
        return self.transpose(sides, [1, 0], self.add(hint, "int32", (length // 2, 2)))

    def absorb_int32_cast(self, op: Op, position: int = 0) -> str:
        """Where output `position` of an operator with int64 results goes: to the int32 tensor that a Cast would make of it, or itself."""
        name = op.outputs[position]
        reader = self.successor(name, "Cast")
        if reader is None or reader["to"] != "int32":
            return name
        self.absorb(reader)
        return reader.outputs[0]

    def tensor(self, name: str) -> Tensor:
        """The canonical tensor called `name`, or one that was added here."""
        return self.tensors[name] if name in self.tensors else self.graph.tensors[name]

    def shape(self, name: str, op: Op, axes: slice = slice(None)) -> tuple[int, ...]:
        """The sizes of a tensor along `axes` in numbers; raises UnsupportedError if one of them is dynamic."""
        shape = self.tensor(name).shape
        sizes = tuple(size for size in (shape or ())[axes] if isinstance(size, int))
        if shape is None or len(sizes) != len(shape[axes]):
            raise self.unsupported_error(op, f"{name!r} of the dynamic shape {shape}", rule="dynamic-dimension")
        return sizes

    def complex(self, op: Op, name: str) -> str:
        """Declares a tensor of real and imaginary parts along its last axis as one of complex numbers; returns its name."""
        tensor = self.tensor(name)
        if tensor.dtype == "complex64":
            return name
        if tensor.dtype != "float32" or tensor.data is not None or not tensor.shape or tensor.shape[-1] != 2:
            raise self.unsupported_error(
                op, f"{name!r} of {tensor.dtype} and shape {tensor.shape} for complex numbers", rule="complex-numbers"
            )
        if name in self.tensors and name not in self.graph.inputs:
            raise self.unsupported_error(
                op, f"{name!r} of real and imaginary parts from another operator than a transform", rule="complex-numbers"
            )
        self.tensors[name] = replace(tensor, dtype="complex64", shape=tensor.shape[:-1])
        return name

    def _with_parts(self, name: str) -> str:
        """A tensor of complex numbers as its parts along a last axis, for an operator that does not know them."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.dtype != "complex64":
            return name
        if name not in self._parts:
            parts = [self.add(f"{name}/{part}", "float32", tensor.shape) for part in ("real", "imaginary")]
            for part, kernel in zip(parts, ("REAL", "IMAG"), strict=True):
                self.emit(kernel, [name], [part])
            axis = len(tensor.shape or ())
            joined = self.add(f"{name}/parts", "float32", self.graph.tensors[name].shape)
            self._parts[name] = joined
            self.emit("PACK", parts, [joined], axis=axis, valuesCount=2)
        return self._parts[name]

    def sizes(self, name: str, op: Op) -> str:
        """The constant that makes a RESHAPE of a tensor's shape: -1 is the one size that is dynamic.

        Raises UnsupportedError if more are, or the other sizes do not tell it.
        """
        known = reshape_sizes(self.tensor(name).shape or ())
        if known.count(-1) > 1 or (-1 in known and 0 in known) or self.tensor(name).shape is None:
            raise self.unsupported_error(op, f"{name!r} of the dynamic shape {self.tensor(name).shape}", rule="dynamic-dimension")
        return self.ints(known, f"{name}/shape")

    def variable(self, op: Op, name: str, shape: tuple[int, ...] | None = None) -> str:
        """Makes the tensor `name`, a state that `op` alone reads and writes again, a variable of its own.

        Args:
            op: the operator.
            name: of the tensor.
            shape: that its kernel demands, with as many elements; None for its own.

        Raises:
            UnsupportedError: it is no such state.
        """
        reader = self.producer(name, "ReadState")
        if reader is None or str(reader["state"]) not in self.inner_states:
            raise self.unsupported_error(op, f"{name!r}, which is not a state of its own that starts with zeros,", rule="not-a-zero-state")
        self.variables.add(name)
        if shape is not None:
            self.tensors[name] = replace(self.graph.tensors[name], shape=shape)
        return self.use(name)

    def handle(self, state: str) -> str:
        """The tensor that stands for the variable that a state becomes."""
        if state not in self._handles:
            self._handles[state] = self.add(state, RESOURCE, ())
            container, shared = self.variable_keys[state]
            self.emit("VAR_HANDLE", [], [self._handles[state]], sharedName=shared, container=container or None)
        return self._handles[state]

    def use(self, name: str) -> str:
        """Declares a tensor of the graph as it is; "" stays "". Returns its name."""
        if name and name not in self.tensors:
            self.tensors[name] = self.graph.tensors[name]
        return name

    def add(self, wanted: str, dtype: str, shape: Shape | None, data: Array | None = None, quantization: Quantization | None = None) -> str:
        """Declares a tensor that the graph does not have; returns its name."""
        name = self._names.fresh(wanted)
        self.tensors[name] = Tensor(name, dtype, shape, data, quantization)
        return name

    def const(self, data: Any, hint: str, quantization: Quantization | None = None) -> str:
        """Declares a constant; returns its name."""
        array = np.asarray(data)
        return self.add(hint, canonical_dtype(array.dtype), array.shape, array, quantization)

    def ints(self, values: Sequence[int] | Sequence[Sequence[int]] | int, hint: str) -> str:
        """Declares an int32 constant, TFLite's type for shapes, axes and paddings."""
        return self.const(as_int32(values, hint), hint)

    def like(self, hint: str, name: str, shape: Shape | None) -> str:
        """Declares a tensor of the dtype and quantization of `name` with another shape."""
        tensor = self.tensor(name)
        return self.add(hint, tensor.dtype, shape, None, tensor.quantization)

    def variant(self, name: str, key: str, data: Array, quantization: Quantization | None) -> str:
        """The constant `name` in the order of axes that TFLite wants: under its own name if no other operator reads it."""
        if (name, key) not in self._variants:
            wanted = self.graph.tensors[name]
            changed = replace(wanted, dtype=canonical_dtype(data.dtype), shape=data.shape, data=data, quantization=quantization)
            if self._reads[name] == 1 and name not in self.tensors:
                self.tensors[name] = changed
                self._variants[name, key] = name
            else:
                self._variants[name, key] = self.add(f"{name}/{key}", changed.dtype, changed.shape, data, quantization)
        return self._variants[name, key]

    def require_one_quantization(self, op: Op) -> None:
        """Raises UnsupportedError if operands, but for conditions, and the result of a kernel of stored integers differ in quantization."""
        result = self.graph[op.outputs[0]].quantization
        for tensor in map(self.tensor, op.inputs):
            if tensor.dtype != "bool" and tensor.quantization != result:
                what = f"{tensor.name!r} and {op.outputs[0]!r} of different quantization"
                raise self.unsupported_error(op, what, rule="quantization-mismatch")

    def axis(self, op: Op, value: Any, name: str = "") -> int:
        """A possibly negative axis of the tensor `name`, by default the first input, as one from 0."""
        name = name or op.inputs[0]
        rank = self.tensor(name).rank
        if rank is None:
            raise self.unsupported_error(op, f"{name!r} of unknown rank", rule="unknown-rank")
        return int(value) % rank if rank else 0

    def emit(
        self,
        builtin: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        custom: bytes | None = None,
        version: int = 1,
        intermediates: Sequence[str] = (),
        **fields: Any,
    ) -> list[str]:
        """Adds an operator.

        Args:
            builtin: its name in the schema, or of a custom operator.
            inputs, outputs: tensor names; those of the graph are declared.
            custom: options of a custom operator.
            version: of a custom operator; that of a builtin one follows from its types.
            intermediates: tensors that carry quantizations of what the operator computes inside.
            fields: of its options, by the schema's names in camel case, but for those that state the type of a tensor.
        """
        outputs = [self._absorb_reinterpret(builtin, name) for name in outputs]
        if builtin not in _COMPLEX and not any(name in self.tensors and self.tensors[name].dtype == "complex64" for name in outputs):
            inputs = [self._with_parts(name) for name in inputs]
        names = [self.use(name) for name in inputs], [self.use(name) for name in outputs]
        options = None
        if custom is None:
            given, results = [self.tensors.get(name) for name in names[0]], [self.tensors[name] for name in names[1]]
            options = schema.options_of(builtin, {**_stated_types(builtin, [*given, *results]), **fields})
            version = version_of(builtin, given, results, options)
        self._made_of.setdefault(id(self._current), []).append(self._made)
        origin = self.whole.get(id(self._current), self._current)
        self._operators[self._made] = Operator(
            builtin, tuple(names[0]), tuple(names[1]), options, version, custom, origin, tuple(intermediates)
        )
        self._made += 1
        self._uses.update((*names[0], *names[1]))
        return names[1]

    def emit_new(self, builtin: str, inputs: Sequence[str], hint: str, dtype: str, shape: Shape | None, **fields: Any) -> str:
        """Adds an operator whose one result is a new tensor; returns its name. See emit() and add()."""
        return self.emit(builtin, inputs, [self.add(hint, dtype, shape)], **fields)[0]

    def activation(self, op: Op) -> int:
        """The number of the fused activation of `op` in the schema."""
        return schema.FUSED_ACTIVATIONS.index(str(op.attributes.get("activation", "")))


#: Fields of options that state the type of a tensor, and its place among inputs and outputs.
_TYPE_FIELDS = {
    "CAST": {"inDataType": 0, "outDataType": 1},
    "SHAPE": {"outType": 1},
    "ARG_MAX": {"outputType": 2},
    "ARG_MIN": {"outputType": 2},
    "UNIQUE": {"idxOutType": 2},
}


def _stated_types(builtin: str, tensors: Sequence[Tensor | None]) -> dict[str, int]:
    found = {name: tensors[place] for name, place in _TYPE_FIELDS.get(builtin, {}).items()}
    return {name: DTYPE_NUMBERS[tensor.dtype] for name, tensor in found.items() if tensor is not None}


def as_int32(values: Sequence[int] | Sequence[Sequence[int]] | int, name: str) -> Array:
    """Integers in the type that TFLite has for sizes.

    Raises:
        UnsupportedError: one of them is too large for it.
    """
    try:
        return np.array(values, np.int32)
    except OverflowError as error:
        raise UnsupportedError(
            f"{values} do not fit int32, the type of shapes, axes and sizes in TFLite", where=f"{name!r}", rule="integers-too-large"
        ) from error


WriteFunction = Callable[[Op, Writing], None]
Writers = Mapping[str, WriteFunction]
