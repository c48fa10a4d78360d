"""What a node's read function sees: the node's attributes, inputs and declared outputs, labels for its inputs, and ways to add canonical
operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.formats.onnx.model import DEFAULT_DOMAINS, Graph, all_nodes, attribute_value, domain_of, embed_constants
from qconvert.formats.onnx.proto import AttributeType
from qconvert.formats.onnx.signatures import result_type, signature, type_reason, type_remedy
from qconvert.formats.reading.draft import Draft, OperatorReading
from qconvert.formats.reading.quantizations import label_tensor, unlabel_tensor
from qconvert.graph import Array, Attribute, Op, Quantization, Shape, Tensor, canonical_dtype, integer_range
from qconvert.operators import KINDS, REQUIRED, kind_of
from qconvert.operators.properties import AxisMove
from qconvert.operators.shapes_and_functions import merge_shapes
from qconvert.operators.sizes import is_compatible

#: A version that no opset has: of each operator the newest definition.
_NEWEST = 2**31 - 1


class NotCoveredError(Exception):
    """A node that its read function does not take: the reader carries it through as an Opaque operator."""


def decode_texts(data: Array) -> Array:
    """The data of a constant as the graph has them: text as str."""
    if data.dtype.kind not in "OSU":
        return data
    texts = [item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in data.reshape(-1)]
    return np.array(texts, object).reshape(data.shape)


def _is_ordered(op: Op) -> bool:
    """Whether an operator means in float what ONNX computes on stored integers of one quantization: it chooses among them, or compares."""
    kind = kind_of(op)
    compares = kind.ranks or (kind.rule == "index" and len(kind.data(op)) > 1)
    return kind.chooses or compares or kind.joins(op) or op.kind == "Clip" or op.attributes.get("mode") == "nearest"


class Reading(OperatorReading):
    """One ONNX node that is being read.

    Attributes:
        op_type, domain: of the node; domain "" is ai.onnx.
        attributes: its AttributeProtos by name.
        declared: type and shape of each value, as the file or its shape inference says them.
        version: the opset of its domain that the model imports.
        source: type and name, such as "Conv /features/0/Conv".
        inputs: names of its input values; "" for an absent one.
        outputs: names of its output values; "" for an absent one.
    """

    def __init__(
        self,
        draft: Draft,
        node: Any,
        graph: Graph,
        declared: MutableMapping[str, tuple[str, Shape | None]],
    ) -> None:
        super().__init__(draft, node.op_type, f"{node.op_type} {node.name}".strip(), tuple(node.input), tuple(node.output))
        self._known = draft.known
        self._graph = graph
        self.declared = declared
        self.attributes = {item.name: item for item in node.attribute}
        self.op_type: str = node.op_type
        self.domain = domain_of(node)
        self.version = int(graph.opsets.get(self.domain, 1))  # 1 for a domain that is not imported, which onnxruntime takes

    def attribute(self, name: str, default: Any = None) -> Any:
        """The attribute `name`: a number, text, a tuple of them, an array for a tensor; `default` if the node lacks it.

        Numbers are float32 in a file, and so is the default.
        """
        if name not in self.attributes:
            return float(np.float32(default)) if isinstance(default, float) else default
        return attribute_value(self.attributes[name], self._graph.files)

    def own_attributes(self, kind: str = "") -> dict[str, Any]:
        """The attributes that both a kind, by default that of the node's name, and ONNX's operator of this name have, as the node states
        them. Images have their channels first, as in all of ONNX."""
        kind = kind or self.op_type
        specs, known = KINDS[kind].attributes, signature(kind, "", _NEWEST)
        shared = {name: spec.default for name, spec in specs.items() if known is not None and name in known.attributes}
        layout = {"data_format": "channels_first"} if "data_format" in specs else {}
        stated = {name: self.attribute(name, default) for name, default in shared.items()}
        return {name: value for name, value in stated.items() if value is not REQUIRED} | layout

    def require_types(self) -> None:
        """Raises InvalidModelError if the operator does not take the types of its inputs, or gives its outputs other ones than declared."""
        inputs = [self.draft.tensors[name].dtype if name else "" for name in self.inputs]
        outputs = [self.declared_dtype(index) if name else "" for index, name in enumerate(self.outputs)]
        if reason := type_reason(self.op_type, self.domain, self.version, inputs, outputs):
            remedy = type_remedy(self.op_type, self.domain, self.version, inputs, outputs)
            raise self.invalid(reason, remedy=remedy, rule="operand-types")

    def require_only(self, **defaults: Any) -> None:
        """Raises NotCoveredError if one of the attributes has another value than the one given here, which is its only covered one."""
        for name, default in defaults.items():
            if self.attribute(name, default) != (float(np.float32(default)) if isinstance(default, float) else default):
                raise NotCoveredError(f"{name} {self.attribute(name)}")

    def is_used(self, index: int) -> bool:
        """Whether some node or the graph itself reads output `index`."""
        return index < len(self.outputs) and self.outputs[index] in self._graph.read

    def assume(self, index: int, dtype: str) -> None:
        """Says what type input `index` has, if neither the file nor its shape inference does."""
        tensor = self.tensor(index)
        if tensor.dtype == "unknown":
            self.draft.tensors[tensor.name] = replace(tensor, dtype=dtype)

    def rank(self, index: int = 0) -> int:
        """The rank of input `index`; raises NotCoveredError if it is not known."""
        rank = self.tensor(index).rank
        if rank is None:
            raise NotCoveredError(f"input {self.inputs[index]!r} of unknown rank")
        return rank

    def constant(self, index: int) -> Array | None:
        """The data of input `index` if they are known before the model runs, else None."""
        return self._known.get(self.inputs[index]) if self.has(index) else None

    def ints(self, index: int) -> tuple[int, ...]:
        """The integers of input `index`, flat; raises NotCoveredError if they are computed at run time."""
        name, data = self.input(index), self.constant(index)
        if data is None:
            raise NotCoveredError(f"input {name!r} that is computed at run time")
        if data.dtype.kind not in "iu":
            raise self.invalid(f"input {name!r} is {data.dtype}, not integers", rule="not-integers")
        return tuple(int(value) for value in data.reshape(-1))

    def declared_dtype(self, index: int) -> str:
        """The type of output `index` as the file or its shape inference says it; "unknown" if neither does."""
        return self.declared.get(self.outputs[index], ("unknown", None))[0]

    def after_dequantize(self, index: int) -> Tensor | None:
        """The quantized tensor whose float values input `index` is, with its data if they are known; None if there is none."""
        op = self.producer(self.input(index), "Dequantize")
        if op is None:
            return None
        tensor = self.draft.tensors[op.inputs[0]]
        return replace(tensor, data=self._known.get(tensor.name))

    def quantization(self, scale: int, zero_point: int, axis: int | None = None, block_size: int = 0) -> Quantization:
        """The quantization that inputs `scale` and `zero_point` state.

        Args:
            scale: index of the scale: one element, or a list along `axis`, or in blocks of the data's rank.
            zero_point: index of the zero point; 0 if it is absent.
            axis: the dimension that a list runs along; None if there may be one value alone.
            block_size: elements along `axis` that share a scale; 0 without blocks.

        Raises:
            NotCoveredError: the scale or zero point is computed at run time.
            InvalidModelError: they do not fit each other.
        """
        scales, points = self.constant(scale), self.constant(zero_point)
        if scales is None or (points is None and self.has(zero_point)):
            raise NotCoveredError(f"a {'scale' if scales is None else 'zero point'} that is computed at run time")
        if scales.dtype.kind not in "fV" and scales.dtype.name != "bfloat16":
            raise self.invalid(f"the scale {self.inputs[scale]!r} is {scales.dtype}, not float", rule="scale-type")
        values = np.asarray(scales).astype(np.float32)
        real_zeros = np.zeros(values.shape) if points is None else np.asarray(points).astype(np.float64)
        if not (np.abs(real_zeros) < 2**62).all():  # NaN neither
            raise self.invalid(
                f"the zero point {self.inputs[zero_point]!r} is {points}, which is not an integer type", rule="zero-point-type"
            )
        zeros = real_zeros.astype(np.int64)
        if zeros.size != values.size and zeros.size != 1:
            raise self.invalid(f"{zeros.size} zero points for {values.size} scales", rule="counts-differ")
        zeros = np.full(values.shape, zeros.item()) if zeros.size == 1 else zeros.reshape(values.shape)
        if block_size:
            if axis is None:
                raise self.invalid("blocks of scales without an axis", rule="counts-differ")
            if (values <= 0).any() and self.constant(0) is None:
                raise NotCoveredError("scales that are not positive, for data")
            return Quantization(values, zeros, axis, block_size)
        if values.ndim > 1 or (values.size != 1 and axis is None):
            raise self.invalid(
                f"the scale {self.inputs[scale]!r} has shape {values.shape}, which fits neither a tensor nor an axis",
                rule="counts-differ",
            )
        # A list of one value along an axis of one element is per axis; without an axis, or next to a longer one, it is per tensor.
        along = axis if values.ndim == 1 and axis is not None and not (values.size == 1 and axis is None) else None
        return Quantization(values.reshape(-1), zeros.reshape(-1), along)

    def noted_quantization(self) -> tuple[bool, Quantization | None]:
        """Whether a note gives output 0 another quantization than that of input 0, or none, and the quantization; one that cannot be is no
        note."""
        name, before = self.outputs[0], self.tensor(0)
        if name not in self.draft.relabelled or "int" not in before.dtype:
            return False, None
        quantization = self.draft.relabelled[name]
        if quantization is not None:
            low, high = integer_range(before.dtype)
            sizes = before.shape or ()
            fits = quantization.axis is None or (
                0 <= quantization.axis < len(sizes) and sizes[quantization.axis] == quantization.scale.size
            )
            positive = quantization.scale.size > 0 and bool(((quantization.scale > 0) & np.isfinite(quantization.scale)).all())
            if not (fits and positive and low <= int(quantization.zero_point.min()) and int(quantization.zero_point.max()) <= high):
                return False, None
        return quantization != before.quantization, quantization

    def label_input(self, index: int, quantization: Quantization, dtype: str = "") -> str:
        """Input `index` with a label (formats/reading/quantizations.py); `dtype` is the label's type where nothing else states one."""
        if dtype:
            self.assume(index, dtype)
        return label_tensor(self.draft, self.tensor(index), quantization, self._where())

    def inner(self, attribute: str) -> Graph | None:
        """The graph in an attribute of the node; None if it has none."""
        proto = self.attributes.get(attribute)
        return None if proto is None or proto.type != AttributeType.GRAPH else Graph(proto.g, self._graph.opsets, self._graph.files)

    def copy_node(self, node: Any) -> Any:
        """A copy of a NodeProto of the same graph in which every constant is whole, and ai.onnx is left out."""
        copy = type(node).FromString(node.SerializeToString())
        embed_constants([copy], self._graph.files)
        for item in all_nodes([copy]):
            if item.domain in DEFAULT_DOMAINS:
                item.ClearField("domain")
        return copy

    def declare_constant(self, data: Any) -> None:
        """Makes output 0 a constant."""
        array = decode_texts(np.asarray(data))
        self.draft.add_exactly(self.outputs[0], canonical_dtype(array.dtype), array.shape, array)

    def fold_input(self, index: int) -> str:
        """Input `index` as a constant wherever its value is known before the model runs, else as it is."""
        return self.draft.fold_constant(self.input(index))

    def intermediate(self, hint: str, dtype: str, quantization: Quantization | None = None) -> str:
        """Adds a tensor between two canonical operators that one node becomes; emit() gives it its shape."""
        return self.draft.add(f"{self.outputs[0]}/{hint}", dtype, None, None, quantization)

    def emit(
        self,
        kind: str,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        *,
        dtype: str | Sequence[str] = "",
        quantization: Quantization | None = None,
        integers: bool = False,
        **attributes: Attribute,
    ) -> list[str]:
        """Appends a canonical operator; inputs and outputs are this node's unless given. Returns the outputs' names.

        Args:
            kind: a kind of ops.KINDS.
            inputs, outputs: tensor names. Outputs that do not exist yet are declared.
            dtype: of the outputs, one for all or one each; by default the type stated in the file, else that of the first input.
            quantization: of the outputs. Data movement hands on that of its input.
            integers: whether the node is defined on quantized values (QLinearConv …), so that labelled integers mean float values.
            attributes: of the operator.
        """
        outs = list(self.outputs if outputs is None else outputs)
        op = Op(kind, tuple(self.inputs if inputs is None else inputs), tuple(outs), attributes, self.source)
        known, rule, ordered = KINDS[kind], KINDS[kind].rule, _is_ordered(op)
        if not integers and (known.joins(op) or rule in ("real", "index")):
            op = self._unify_labels(op) if ordered else self._drop_labels(op)
        first = next((self.draft.tensors[name] for name in (*known.data(op), *op.inputs) if name), None)
        moved = None
        if first is not None and (rule == "move" or (ordered and rule == "real" and not integers)):
            moved = first.quantization
        shapes = self.draft.shapes(self.draft.check_op(op))
        if not integers and moved is not None and moved.axis is not None and not self._axis_stays(op, moved.axis, shapes[0]):
            op, moved = self._drop_labels(op), None
        for position, (name, shape) in enumerate(zip(outs, shapes, strict=True)):
            if not name:
                continue
            wanted = dtype if isinstance(dtype, str) else dtype[position]
            found = wanted or self._dtype(position, first, kind)
            self._declare(name, found, shape, moved if quantization is None and name in known.results_of(op) else quantization)
        self.draft.append(op, shapes)
        return outs

    def emit_inner(self, kind: str, inputs: Sequence[str], hint: str, dtype: str = "", **attributes: Any) -> str:
        """Appends an operator between this node's inputs and outputs; returns its result, which is of the first input's type by default.

        Args:
            kind, inputs, attributes: as of emit().
            hint: ends the name of the result.
            dtype: of the result.
        """
        dtype = dtype or self.lookup(inputs[0]).dtype
        return self.emit(kind, inputs, [self.intermediate(hint, dtype)], dtype=dtype, **attributes)[0]

    def emit_biased(self, kind: str, inputs: Sequence[str], bias: int, dtype: str, **attributes: Any) -> None:
        """Appends an operator that gives output 0, with an Add of input `bias` after it if that is there."""
        if self.has(bias):
            product = self.emit_inner(kind, inputs, "product", dtype, **attributes)
            self.emit("Add", [product, self.input(bias)], dtype=dtype)
        else:
            self.emit(kind, inputs, dtype=dtype, **attributes)

    def emit_control(self, kind: str, inputs: Sequence[str], results: Sequence[Tensor], **attributes: Attribute) -> None:
        """Appends an operator that runs functions, whose outputs are this node's.

        Args:
            kind: of the operator.
            inputs: tensor names.
            results: type, shape and quantization of each output, as the functions give them.
            attributes: of the operator.
        """
        for name, result in zip(self.outputs, results, strict=True):
            if name:
                self._declare(name, result.dtype, result.shape, result.quantization)
        self.draft.append(Op(kind, tuple(inputs), self.outputs, attributes, self.source))

    def _dtype(self, position: int, first: Tensor | None, kind: str) -> str:
        stated = self.declared_dtype(position) if position < len(self.outputs) else "unknown"
        if stated != "unknown":
            return stated
        if kind == self.op_type:
            inputs = [self.draft.tensors[name].dtype if name else "" for name in self.inputs]
            if found := result_type(kind, self.domain, self.version, position, inputs):
                return found
        return KINDS[kind].result_type or ("unknown" if first is None else first.dtype)

    def _declare(self, name: str, dtype: str, shape: Shape | None, quantization: Quantization | None) -> None:
        """Adds the tensor `name`, or completes it: with the file's names of sizes, but where the file contradicts the operator."""
        old = self.draft.tensors.get(name)
        known = self.declared.get(name, ("", None))[1] if old is None else old.shape
        merged = merge_shapes(name, known if known is not None and is_compatible(known, shape) else shape, shape)
        if quantization is not None and quantization.axis is not None and shape is not None:
            quantization = self._along(quantization, shape)
        if old is None:
            self.draft.tensors[name] = Tensor(name, dtype, merged, None, quantization)
        else:
            self.draft.tensors[name] = replace(old, shape=merged, quantization=old.quantization or quantization)

    def _axis_stays(self, op: Op, axis: int, after: Shape | None) -> bool:
        """Whether a movement leaves the axis of a label where it is."""
        kind, before = kind_of(op), self.draft.tensors[op.inputs[0]].shape
        if kind.keeps_axis is None or "filler" in kind.roles:  # which is one integer without an axis
            return False
        if before is None or after is None or axis >= min(len(before), len(after)) or before[axis] != after[axis]:
            return False

        def integers(index: int) -> Array:
            data = self._known.get(op.inputs[index])
            return np.zeros(0, np.int64) if data is None else np.asarray(data, np.int64).reshape(-1)

        return kind.keeps_axis(AxisMove(op, integers, before, after, axis, axis))

    @staticmethod
    def _along(quantization: Quantization, shape: Shape) -> Quantization | None:
        """Scales along an axis are kept by data movement that keeps the axis; the validation says whether they fit."""
        axis, sizes, block = quantization.axis, quantization.scale.shape, quantization.block_size
        if axis is None or axis >= len(shape):
            return None
        length = shape[axis]
        blocks = -(-length // block) if block and isinstance(length, int) else length
        fits = sizes == (*shape[:axis], blocks, *shape[axis + 1 :]) if block else sizes == (length,)
        return quantization if fits else None

    def _drop_labels(self, op: Op) -> Op:
        """The operator on inputs without the labels that a DequantizeLinear elsewhere gave them: ONNX computes on their integers."""
        tensors = self.draft.tensors
        return replace(op, inputs=tuple(self.without_label(name) if name and tensors[name].is_quantized else name for name in op.inputs))

    def _unify_labels(self, op: Op) -> Op:
        """The same for one that gives the same on integers and in float if all data have one label: on data that have one, or none."""
        data = [self.draft.tensors[name] for name in kind_of(op).data(op)]
        labels = [tensor.quantization for tensor in data if "int" in tensor.dtype]
        if not labels or all(label == labels[0] for label in labels):
            return op
        if (quantization := self._shared_label(data)) is None:
            return self._drop_labels(op)
        plain = dict.fromkeys(tensor.name for tensor in data if tensor.quantization is None)
        labelled = {name: label_tensor(self.draft, self.draft.tensors[name], quantization, self.source) for name in plain}
        return op.with_names(labelled)

    def _shared_label(self, data: Sequence[Tensor]) -> Quantization | None:
        """The label of all data that have one, if it is that of a state or all others are constants: their integers are joined with those
        of a quantized tensor, and so have its quantization."""
        stated, plain = ([tensor for tensor in data if (tensor.quantization is None) == is_plain] for is_plain in (False, True))
        label = stated[0].quantization if stated else None
        if label is None or any(tensor.quantization != label for tensor in stated):
            return None
        are_constants = label.is_per_tensor and all(tensor.data is not None for tensor in plain)
        return label if are_constants or any(state.quantization == label for state in self.draft.states.values()) else None

    def without_label(self, name: str) -> str:
        """A tensor with its integers as plain numbers."""
        return unlabel_tensor(self.draft, self.draft.tensors[name], self.source)


ReadFunction = Callable[[Reading], None]
Readers = Mapping[str, ReadFunction]
