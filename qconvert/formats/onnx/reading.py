"""What a node's read function sees: its inputs, outputs and attributes, and ways to add canonical operators.

Reading is literal: a QuantizeLinear becomes a Quantize, a DequantizeLinear a Dequantize, and what stands between them stays on real
values. passes/absorb_quantization.py then turns the pattern into quantized operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.evaluate.known_values import KnownValues
from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.operator import OperatorReading
from qconvert.graph import Array, Attribute, Op, Quantization, Shape, Tensor, canonical_dtype, numpy_dtype
from qconvert.graph.kinds import KINDS
from qconvert.graph.shapes import compatible, merged, output_shapes

__all__ = ["NotCoveredError", "ReadFunction", "Reading"]

#: Kinds whose real-valued meaning on tensors of one quantization is what ONNX computes on the stored integers.
_ORDERED = frozenset(
    ["Max", "Min", "Where", "Concat", "Clip", "ArgMax", "ArgMin", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
)


class NotCoveredError(Exception):
    """A node that its read function does not take: the reader carries it through as an Opaque operator."""


class Reading(OperatorReading):
    """One ONNX node that is being read.

    Attributes:
        op_type, domain: of the node; domain "" is ai.onnx.
        version: the opset of its domain that the model imports.
        source: type and name, such as "Conv /features/0/Conv".
        inputs: names of its input values; "" for an absent one.
        outputs: names of its output values; "" for an absent one.
    """

    def __init__(
        self,
        draft: Draft,
        known: KnownValues,
        node: Any,
        version: int,
        declared: Mapping[str, tuple[str, Shape | None]],
    ) -> None:
        inputs = tuple("" if value is None else str(value.name) for value in node.inputs)
        outputs = tuple(str(value.name or "") for value in node.outputs)
        super().__init__(draft, node.op_type, f"{node.op_type} {node.name}".strip(), inputs, outputs)
        self._known = known
        self._node = node
        self._declared = declared
        self.op_type: str = node.op_type
        self.domain: str = node.domain
        self.version = version

    # attributes

    def attribute(self, name: str, default: Any = None) -> Any:
        """The attribute `name`: a number, text, a tuple of them, an array for a tensor; `default` if the node lacks it.

        Numbers are float32 in a file, and so is the default.
        """
        found = self._node.attributes.get(name)
        if found is None:
            return float(np.float32(default)) if isinstance(default, float) else default
        if found.is_ref():
            raise self.invalid(f"attribute {name!r} refers to a function's attribute outside a function")
        value = found.value
        if found.type.name == "TENSOR":
            return value.numpy()
        if isinstance(value, (list, tuple)) or found.type.name in ("INTS", "FLOATS", "STRINGS"):
            return tuple(value)
        return value

    def require_only(self, **defaults: Any) -> None:
        """Raises NotCoveredError if one of the attributes has another value than the one given here, which is its only covered one."""
        for name, default in defaults.items():
            if self.attribute(name, default) != (float(np.float32(default)) if isinstance(default, float) else default):
                raise NotCoveredError(f"{name} {self.attribute(name)}")

    # tensors

    def is_used(self, index: int) -> bool:
        """Whether some node or the graph itself reads output `index`."""
        if index >= len(self.outputs) or not self.outputs[index]:
            return False
        value = self._node.outputs[index]
        return bool(value.uses()) or bool(value.is_graph_output())

    def assume(self, index: int, dtype: str) -> None:
        """Says what type input `index` has, if neither the file nor its shape inference does."""
        tensor = self.tensor(index)
        if tensor.dtype == "unknown":
            self._draft.tensors[tensor.name] = replace(tensor, dtype=dtype)

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
        data = self.constant(index)
        if data is None:
            raise NotCoveredError(f"input {self.inputs[index]!r} that is computed at run time")
        if data.dtype.kind not in "iu":
            raise self.invalid(f"input {self.inputs[index]!r} is {data.dtype}, not integers")
        return tuple(int(value) for value in data.reshape(-1))

    def declared_dtype(self, index: int = 0) -> str:
        """The type of output `index` as the file or its shape inference says it; "unknown" if neither does."""
        return self._declared.get(self.outputs[index], ("unknown", None))[0]

    # new tensors and operators

    def const(self, data: Any, hint: str = "constant", quantization: Quantization | None = None) -> str:
        """Adds a constant named after the first output and `hint`; returns its name."""
        array = np.asarray(data)
        return self._draft.add(f"{self.outputs[0]}/{hint}", canonical_dtype(array.dtype), array.shape, array, quantization)

    def declare_constant(self, data: Any) -> None:
        """Makes output 0 a constant."""
        array = np.asarray(data)
        if array.dtype.kind in "OSU":
            texts = [item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in array.reshape(-1)]
            array = np.array(texts, object).reshape(array.shape)
        self._draft.add_exactly(self.outputs[0], canonical_dtype(array.dtype), array.shape, array)

    def folded(self, index: int) -> str:
        """Input `index` as a constant wherever its value is known before the model runs, else as it is."""
        tensor = self.tensor(index)
        data = self.constant(index)
        if tensor.data is not None or data is None:
            return tensor.name
        return self._draft.variant(tensor.name, "folded", data, None)

    def intermediate(self, hint: str, dtype: str, quantization: Quantization | None = None) -> str:
        """Adds a tensor between two canonical operators that one node becomes; emit() gives it its shape."""
        return self._draft.add(f"{self.outputs[0]}/{hint}", dtype, None, None, quantization)

    def behind_dequantize(self, index: int) -> Tensor | None:
        """The quantized tensor whose real values input `index` is, with its data if they are known; None if there is none."""
        op = self._draft.producers.get(self.input(index))
        if op is None or op.kind != "Dequantize":
            return None
        tensor = self._draft.tensors[op.inputs[0]]
        return replace(tensor, data=self._known.get(tensor.name))

    def turned(self, tensor: Tensor, key: str, data: Array, quantization: Quantization | None) -> str:
        """The constant `tensor` in another order of axes; see variant()."""
        return self._draft.variant(tensor.name, key, data, quantization)

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
            dtype: of the outputs, one for all or one each; by default that of the first input, or what the file says if that differs.
            quantization: of the outputs. Data movement hands on that of its input.
            integers: whether the node is defined on quantized values (QLinearConv …), so that labelled integers mean real values.
            attributes: of the operator.
        """
        ins = list(self.inputs if inputs is None else inputs)
        outs = list(self.outputs if outputs is None else outputs)
        rule = KINDS[kind].rule
        ordered = kind in _ORDERED or attributes.get("mode") == "nearest"
        if not integers and rule in ("real", "index"):
            ins = self._plain(kind, ins, ordered)
        first = next((self._draft.tensors[name] for name in (ins[1:] if kind == "Where" else ins) if name), None)
        moved = None
        if first is not None and (rule == "move" or (ordered and rule == "real" and not integers)):
            moved = first.quantization
        op = Op(kind, tuple(ins), tuple(outs), attributes, self.source)
        shapes = output_shapes(self._draft.tensors, op)
        for position, (name, shape) in enumerate(zip(outs, shapes, strict=True)):
            if not name:
                continue
            wanted = dtype if isinstance(dtype, str) else dtype[position]
            found = wanted or self._dtype(position, first, kind)
            given = quantization if quantization is not None else moved if position == 0 or kind in ("Split", "Unpack") else None
            self._declare(name, found, shape, given)
        self._draft.append(op)
        return outs

    def _dtype(self, position: int, first: Tensor | None, kind: str) -> str:
        stated = self.declared_dtype(position) if position < len(self.outputs) else "unknown"
        if stated != "unknown":
            return stated
        return "bool" if KINDS[kind].result_type == "bool" else "unknown" if first is None else first.dtype

    def _declare(self, name: str, dtype: str, shape: Shape | None, quantization: Quantization | None) -> None:
        """Adds the tensor `name`, or completes it: with the file's names of sizes, but where the file contradicts the operator."""
        old = self._draft.tensors.get(name)
        if old is None:
            stated = self._declared.get(name, ("", None))[1]
            old = Tensor(name, dtype, stated if compatible(stated, shape) else None)
        known = old.shape if compatible(old.shape, shape) else None
        if quantization is not None and quantization.axis is not None and shape is not None:
            quantization = self._along(quantization, shape)
        label = quantization if old.quantization is None else old.quantization
        self._draft.tensors[name] = replace(old, shape=merged(name, shape if known is None else known, shape), quantization=label)

    @staticmethod
    def _along(quantization: Quantization, shape: Shape) -> Quantization | None:
        """Scales along an axis survive a move only where the axis does; the validation says whether they fit."""
        axis, sizes, block = quantization.axis, quantization.scale.shape, quantization.block_size
        if axis is None or axis >= len(shape):
            return None
        length = shape[axis]
        blocks = -(-length // block) if block and isinstance(length, int) else length
        fits = sizes == (*shape[:axis], blocks, *shape[axis + 1 :]) if block else sizes == (length,)
        return quantization if fits else None

    def _plain(self, kind: str, names: list[str], ordered: bool) -> list[str]:
        """The inputs without the labels that a DequantizeLinear elsewhere gave them: ONNX computes on their integers as they are.

        What only compares and moves (`ordered`) gives the same on integers and on real values, if all have one label.
        """
        if ordered:
            op = Op(kind, tuple(names), ())
            data = [self._draft.tensors[name] for name in KINDS[kind].data(op)]
            labels = [tensor.quantization for tensor in data if "int" in tensor.dtype]
            if not labels or all(label == labels[0] for label in labels):
                return names
        return [self._unlabelled(name) if name and self._draft.tensors[name].is_quantized else name for name in names]

    def _unlabelled(self, name: str) -> str:
        tensor = self._draft.tensors[name]
        if tensor.data is not None:
            return self._draft.variant(name, "plain", tensor.data, None)
        plain = self._draft.add(f"{name}/plain", tensor.dtype, tensor.shape)
        self._draft.append(Op("Reinterpret", (name,), (plain,), {}, self.source))
        return plain

    # quantization

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
            raise self.invalid(f"the scale {self.inputs[scale]!r} is {scales.dtype}, not real numbers")
        values = np.asarray(scales).astype(np.float32)
        zeros = np.zeros(values.shape, np.int64) if points is None else np.asarray(points).astype(np.float64).astype(np.int64)
        if zeros.size != values.size and zeros.size != 1:
            raise self.invalid(f"{zeros.size} zero points beside {values.size} scales")
        zeros = np.broadcast_to(zeros.reshape(()), values.shape) if zeros.size == 1 else zeros.reshape(values.shape)
        if block_size:
            if axis is None:
                raise self.invalid("blocks of scales without an axis")
            if (values < 0).any():  # onnxruntime's quantizer of weights in blocks makes such scales
                raise NotCoveredError("negative scales")
            return Quantization(values, np.array(zeros), axis, block_size)
        if values.ndim > 1 or (values.size != 1 and axis is None):
            raise self.invalid(f"the scale {self.inputs[scale]!r} has shape {values.shape}, which fits neither a tensor nor an axis")
        # A list of one value along an axis of one element is per axis; without an axis, or beside a longer one, it is per tensor.
        along = axis if values.ndim == 1 and axis is not None and not (values.size == 1 and axis is None) else None
        return Quantization(values.reshape(-1), np.array(zeros).reshape(-1), along)

    def labelled(self, index: int, quantization: Quantization, dtype: str = "") -> str:
        """Input `index` with a label: the tensor itself if it has none or the same one, else the same integers under another label.

        Plain integers get their label back through the movements that led to them, up to a constant or an input of the graph. `dtype` is
        what the label says of the type, for a tensor whose type nothing else says.
        """
        if dtype:
            self.assume(index, dtype)
        tensor = self.tensor(index)
        if "int" not in tensor.dtype and not tensor.dtype.startswith("float8") and tensor.dtype != "float4e2m1":
            raise self.invalid(f"input {tensor.name!r} is {tensor.dtype}, not a quantized type")
        self._require_fit(tensor, quantization)
        if tensor.quantization == quantization:
            return tensor.name
        data = tensor.data if tensor.quantization is not None else None
        if tensor.data is None and tensor.name in self._draft.producers:
            data = self._known.get(tensor.name)
        if data is not None:
            return self._draft.variant(tensor.name, f"label_{_key(quantization)}", data, quantization)
        if tensor.quantization is None and self._label(tensor, quantization):
            return tensor.name
        name = self._draft.add(f"{tensor.name}/labelled", tensor.dtype, tensor.shape, None, quantization)
        self._draft.append(Op("Reinterpret", (tensor.name,), (name,), {}, self.source))
        return name

    def _require_fit(self, tensor: Tensor, quantization: Quantization) -> None:
        axis, shape = quantization.axis, tensor.shape
        if axis is None or shape is None:
            return
        size = shape[axis] if axis < len(shape) else None
        if quantization.block_size == 0 and isinstance(size, int) and size != quantization.scale.size:
            raise self.invalid(f"{quantization.scale.size} scales for axis {axis} of {tensor.name!r}, whose shape is {shape}")

    def _label(self, tensor: Tensor, quantization: Quantization) -> bool:
        """Labels a tensor and the movements that lead to it; False, and nothing is done, if another operator made the integers."""
        chain = [tensor]
        while (op := self._draft.producers.get(chain[-1].name)) is not None:
            source = self._draft.tensors[op.inputs[0]] if op.inputs else None
            per_tensor = quantization.axis is None or op.kind == "Identity"
            if op.kind in ("Concat", "Pack", "ScatterND", "ScatterElements"):  # the other integers that join would need the label too
                return False
            if source is None or KINDS[op.kind].rule != "move" or source.quantization is not None or not per_tensor or len(op.outputs) > 1:
                return KINDS[op.kind].rule in ("plain", "opaque", "index") and self._keep(chain, quantization)
            chain.append(source)
        return self._keep(chain, quantization)

    def _keep(self, chain: list[Tensor], quantization: Quantization) -> bool:
        readers = [op for tensor in chain for op in self._draft.readers.get(tensor.name, [])]
        if any(KINDS[op.kind].rule in ("real", "index") for op in readers):
            return False
        written = {tensor.name for tensor in chain}
        pads = [op for op in self._draft.ops if op.kind == "Pad" and op["mode"] == "constant" and op.outputs[0] in written]
        values = [self._known.get(op.inputs[2]) if len(op.inputs) > 2 else np.array(0) for op in pads]
        if any(value is None or value.size != 1 for value in values):
            return False
        for tensor in chain:
            self._draft.tensors[tensor.name] = replace(tensor, quantization=quantization)
        for op, value in zip(pads, values, strict=True):
            self._refill(op, int(np.asarray(value).reshape(())), quantization)
        return True

    def _refill(self, op: Op, value: int, quantization: Quantization) -> None:
        """Gives the padding of integers the label that they got; none where it is real zero. ONNX's default is the integer 0."""
        tensor = self._draft.tensors[op.outputs[0]]
        inputs = op.inputs[:2]
        if value != int(quantization.zero_point[0]):
            data = np.array(value, numpy_dtype(tensor.dtype))
            inputs = (*inputs, self._draft.add(f"{tensor.name}/padding", tensor.dtype, (), data, quantization))
        new = replace(op, inputs=inputs)
        self._draft.ops[self._draft.ops.index(op)] = new
        self._draft.producers[tensor.name] = new


def _key(quantization: Quantization) -> str:
    import hashlib

    parts = quantization.scale.tobytes() + quantization.zero_point.tobytes() + str(quantization.axis).encode()
    return hashlib.sha256(parts).hexdigest()[:8]


ReadFunction = Callable[[Reading], None]
