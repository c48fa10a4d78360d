"""What an operator's write function sees: real and stored values of tensors, and ways to add ONNX nodes.

A quantized tensor exists in two forms in a QDQ model: its stored integers, under the tensor's own name, and its float values,
after a DequantizeLinear that is made when first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qconvert.errors import OptionError, UnsupportedError
from qconvert.formats.onnx.initializers import ELEMENT_TYPES
from qconvert.formats.onnx.proto import AttributeType, make_attribute, make_node
from qconvert.formats.onnx.signatures import signature
from qconvert.formats.writing import OperatorWriting
from qconvert.graph import Array, Graph, Names, Op, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.graph.activations import activation_bounds, clip_range
from qconvert.kernels import KERNELS
from qconvert.operators import kind_of

if TYPE_CHECKING:
    from qconvert.formats.onnx.graph_writing import Forms


#: The opset from which QuantizeLinear and DequantizeLinear take a type (ONNX operator changelog).
QDQ_OPSETS = {
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"), 19),
    **dict.fromkeys(("int16", "uint16", "int4", "uint4"), 21),
    "float4e2m1": 23, "int2": 25, "uint2": 25,
}  # fmt: skip

#: The opset from which scales may belong to blocks.
_BLOCKS = 21

#: Integer types for which onnxruntime's CPU provider has no Clip (1.31, measured).
_NO_CLIP = ("int16", "uint16", "int4", "uint4", "int2", "uint2")

_INT64 = frozenset(["int64"])

#: What a graph and those inside its nodes have in common.
_OF_THE_FILE = ("is_exact", "functions", "domains", "stated_scales", "_taken", "_names", "_hoisted", "_node_names", "_free_node_names")


def qdq_opset(tensor: Tensor) -> int:
    """The opset from which QuantizeLinear and DequantizeLinear take the type and the scales of a tensor; 0 if it is not quantized."""
    if tensor.quantization is None:
        return 0
    return max(QDQ_OPSETS.get(tensor.dtype, 0), _BLOCKS if tensor.quantization.block_size else 0)


class Builder(OperatorWriting):
    """Collects the nodes and initializers of an ONNX graph.

    Attributes:
        opset: the version of the default operator set.
        is_exact: whether forms that round as the source's kernels do are preferred to faster ones.
        nodes: NodeProtos in order.
        initializers: constants by name.
        domains: versions of other domains that nodes need.
        stated_scales: scales of biases, where the operator's form has no place for them and implies others.
        hidden_reads: for the position of a node in `nodes`, the outer values that its subgraphs read.
        functions: of the whole network.
        forms: that operators get.
    """

    destination = "to ONNX"

    def __init__(self, graph: Graph, opset: int, forms: Forms, numerics: str = "exact") -> None:
        super().__init__(graph)
        self.functions = graph.functions
        self.forms = forms
        self.opset = opset
        self.is_exact = numerics != "fast"
        self.nodes: list[Any] = []
        self.initializers: dict[str, Array] = {}
        self.domains: dict[str, int] = {}
        self.hidden_reads: dict[int, list[str]] = {}
        self.stated_scales: dict[str, list[float]] = {}
        self.source = ""
        self._parameters: dict[tuple[str, str], tuple[str, str]] = {}  # (value, type of its float values) -> scale and zero point
        self._points: dict[str, str] = {}  # value -> zero point
        self._real: dict[str, str] = {}  # quantized tensor -> the value after its DequantizeLinear
        self._stored: dict[str, str] = {}  # the same from right to left
        self._once: dict[tuple[str, str], list[str]] = {}  # what was made once of a value
        self._node_names: set[str] = set()
        self._free_node_names = Names(self._node_names)
        self._outer: Builder | None = None
        self._hoisted: dict[str, Array] = {}  # constants of graphs inside nodes
        self._scope = set(graph.tensors)  # names of values here and around
        self._taken = set(graph.tensors)  # those of all graphs of the file
        self._names = Names(self._taken)
        self._shown: dict[str, Tensor] = {}

    def name(self, wanted: str) -> str:
        """An unused value name."""
        name = self._names.fresh(wanted)
        self._taken.add(name)
        self._scope.add(name)
        return name

    def inner_builder(self, graph: Graph) -> Builder:
        """A builder for the nodes of a graph inside a node."""
        found = Builder(graph, self.opset, self.forms)
        for name in _OF_THE_FILE:
            setattr(found, name, getattr(self, name))
        found._outer = self
        found._scope |= self._scope
        return found

    def inner_names(self, tensors: Iterable[Tensor]) -> dict[str, str]:
        """Names for the values of a graph inside a node: their own, but where a value around it has it.

        Graphs side by side may share names, but for those of constants that stand in the main graph for them.
        """
        tensors = list(tensors)
        found = {tensor.name: tensor.name for tensor in tensors if self._is_free(tensor)}
        self._taken.update(found)  # before other names are made, which could be those of tensors further on
        for tensor in tensors:
            if tensor.name not in found:
                found[tensor.name] = self._names.fresh(tensor.name)
                self._taken.add(found[tensor.name])
        return found

    def _is_free(self, tensor: Tensor) -> bool:
        """Whether nothing around a graph inside a node has the name of one of its tensors, but the same constant."""
        hoisted = self._hoisted.get(tensor.name)
        return tensor.name not in self._scope if hoisted is None else hoisted is tensor.data

    def reads_inside(self, names: Collection[str]) -> None:
        """Says which values around it a graph reads that is inside the node to be added next."""
        self.hidden_reads.setdefault(len(self.nodes), []).extend(sorted(names))

    def hoist(self, name: str, data: Array) -> None:
        """Puts a constant of a graph inside a node into the main graph."""
        outermost = self
        while outermost._outer is not None:
            outermost = outermost._outer
        outermost.initializers[name] = data
        self._hoisted[name] = data

    def declare_output(self, name: str, tensor: Tensor) -> None:
        """Declares type and shape of an output whose name is not that of a tensor of the graph."""
        self._shown[name] = replace(tensor, name=name)

    def output_tensor(self, name: str) -> Tensor:
        """Type and shape of an output."""
        return self._shown[name] if name in self._shown else self.graph.tensors[name]

    def outer_types(self) -> dict[str, str]:
        """The types of the tensors around."""
        if self._outer is None:
            return {}
        return self._outer.outer_types() | {tensor.name: tensor.dtype for tensor in self._outer.graph.tensors.values()}

    def node(
        self, op_type: str, inputs: Sequence[str], outputs: Sequence[str] | int = 1, *, hint: str = "", domain: str = "", **attributes: Any
    ) -> list[str]:
        """Adds a node; outputs are names, or how many new names to make (from `hint`). Returns the outputs' names."""
        if isinstance(outputs, int):
            outputs = [self.name(hint or f"{inputs[0] or 'value'}/{op_type}") for _ in range(outputs)]
        while not domain and len(inputs) > 1 and not inputs[-1]:  # at a LayerNormalization with an absent bias onnxruntime crashes
            inputs = inputs[:-1]
        stated = {key: value for key, value in attributes.items() if value is not None}
        known = signature(op_type, domain, self.opset)
        for index, (_, allowed) in enumerate(known.input_types[: len(inputs)] if known is not None else ()):
            if allowed == _INT64:
                inputs = [*inputs[:index], self.int64(inputs[index]), *inputs[index + 1 :]]
        name = self.node_name(op_type, outputs)
        empty = [key for key, value in stated.items() if isinstance(value, (list, tuple)) and not value]  # whose type no value shows
        typed = {key: value for key, value in stated.items() if key not in empty}
        if known is not None:  # a number of the graph may be an integer, of which helper would make an attribute of integers
            typed |= {key: float(value) for key, value in typed.items() if known.attributes.get(key) == AttributeType.FLOAT}
        node = make_node(op_type, inputs, outputs, name, domain, **typed)
        node.attribute.extend(make_attribute(key, [], known.attributes[key]) for key in empty if known is not None)
        if self.source:
            node.doc_string = self.source
        self.nodes.append(node)
        if domain:
            self.domains.setdefault(domain, 1)
        return list(outputs)

    def note_decomposed(self, op: Op) -> None:
        """Notes that an operator's nodes are not read as that operator; the file's metadata state it."""
        self.forms.decomposed.add(id(op))

    def kernel_fault(self, op: Op) -> str:
        """What onnxruntime's integer kernel does wrong with an operator, in words; "" if nothing."""
        return KERNELS["onnxruntime:optimized"].fault(self.graph, op)

    def cast(self, value: str, dtype: str, output: str = "", *, hint: str = "") -> str:
        """Adds a Cast to another type, whose result is `output`, or a new value made from `hint`; returns its name."""
        return self.node("Cast", [value], [output] if output else 1, hint=hint or f"{value}/{dtype}", to=ELEMENT_TYPES[dtype])[0]

    def node_name(self, op_type: str, outputs: Sequence[str]) -> str:
        """An unused name for a node: the source's for the operator that it stands for, else one made of its type and output."""
        kind, _, named = self.source.partition(" ")
        if kind == op_type and named and not named.startswith("#") and named not in self._node_names:
            wanted = named
        else:
            wanted = f"{op_type}:{next(filter(None, outputs), '')}"
        name = self._free_node_names.fresh(wanted)
        self._node_names.add(name)
        return name

    def make_once(self, what: str, of: str, made: Callable[[], list[str]]) -> list[str]:
        """The values `what` derived from the value `of`; `made` writes them at the first call."""
        if (what, of) not in self._once:
            self._once[what, of] = made()
        return self._once[what, of]

    def const(self, data: Any, hint: str) -> str:
        """Adds an initializer; returns its name."""
        name = self.name(hint)
        self.initializers[name] = np.asarray(data)
        return name

    def stored_value(self, name: str) -> str:
        """The tensor's value as it is stored; a constant becomes an initializer. "" stays ""."""
        tensor = self.graph.tensors[name] if name else None
        if tensor is not None and tensor.data is not None and name not in self.initializers:
            self.initializers[name] = tensor.data
        return name

    def int64(self, name: str) -> str:
        """The stored value of a tensor of the graph as int64, as ONNX wants most sizes, axes and indices; any other name as it is."""
        tensor = self.graph.tensors.get(name)
        if tensor is None or tensor.dtype in ("int64", "unknown") or tensor.is_quantized:
            return self.stored_value(name) if tensor is not None else name
        if tensor.data is not None:
            return self.const(np.asarray(tensor.data).astype(np.int64), f"{name}/int64")
        return self.cast(name, "int64")

    def replace_constant(self, name: str, data: Array, hint: str = "turned") -> str:
        """The constant `name` in the order of axes or the type that ONNX wants: under its own name if nobody else reads or sees it."""
        if self._reads[name] > 1 or name in self.initializers or name in self.graph.public:
            return self.const(data, f"{name}/{hint}")
        self.initializers[name] = data
        return name

    def float_value(self, name: str) -> str:
        """The tensor's float values: after a DequantizeLinear if it is quantized, else the tensor itself. "" stays ""."""
        tensor = self.graph.tensors[name] if name else None
        if tensor is None or tensor.quantization is None:
            return self.stored_value(name)
        if name not in self._real:
            real = self.dequantize(self.stored_value(name), tensor.dtype, tensor.quantization)
            self._record_real(name, real if tensor.is_constant else self._guard_fp8(real, tensor))
        return self._real[name]

    def _guard_fp8(self, value: str, tensor: Tensor) -> str:
        """Float values on either side of data of FP8, of which onnxruntime (1.31) makes integer operators that it then refuses."""
        return self.keep_apart(value) if tensor.dtype.startswith("float8") and self.forms.guards else value

    def keep_apart(self, value: str, hint: str = "") -> str:
        """Adds a Max of one operand, across which onnxruntime's optimizer fuses nothing; returns its result."""
        return self.node("Max", [value], hint=f"{hint or value}/apart")[0]

    def dequantize(self, value: str, dtype: str, quantization: Quantization, real: str = "float32") -> str:
        """Adds a DequantizeLinear of an integer value; returns the name of the value of type `real`."""
        self._require_type(dtype, value)
        if dtype == "int32" and not quantization.is_symmetric:
            return self._dequantize_int32(value, quantization, real)
        scale, zero_point = self.parameters(value, dtype, quantization, real)
        attributes = self._axis(quantization, value)
        if dtype == "int32":
            zero_point = ""  # ONNX: there is none for int32 (DequantizeLinear-13)
        inputs = [value, scale] + ([zero_point] if zero_point else [])
        return self.node("DequantizeLinear", inputs, hint=f"{value}/real", **attributes)[0]

    def _dequantize_int32(self, value: str, quantization: Quantization, real: str) -> str:
        """The float values of int32 with a zero point, for which ONNX has no DequantizeLinear; differences of int32 are exact in
        float64."""
        if not quantization.is_per_tensor:
            raise UnsupportedError(
                "int32 with zero points for each channel cannot be written to ONNX", where=f"tensor {value!r}", rule="several-zero-points"
            )
        wide = self.cast(value, "float64")
        steps = self.node("Sub", [wide, self.const(np.float64(quantization.point), f"{value}/shift")])[0]
        product = self.node("Mul", [steps, self.const(np.float64(quantization.step), f"{value}/step")])[0]
        return self.cast(product, real, hint=f"{value}/real")

    def quantize(self, value: str, tensor: Tensor, output: str, real: str = "float32") -> None:
        """Adds a QuantizeLinear of a value of type `real` to the quantization of `tensor`, named `output`."""
        assert tensor.quantization is not None
        self._require_type(tensor.dtype, tensor.name)
        scale, zero_point = self.parameters(output, tensor.dtype, tensor.quantization, real)
        inputs = [self._guard_fp8(value, tensor), scale, zero_point]
        self.node("QuantizeLinear", inputs, [output], **self._axis(tensor.quantization, output))

    def quantization(self, name: str) -> tuple[str, str]:
        """The initializers for scale and zero point of the quantized tensor `name`."""
        tensor = self.graph.tensors[name]
        assert tensor.quantization is not None
        return self.parameters(name, tensor.dtype, tensor.quantization)

    def parameters(self, value: str, dtype: str, quantization: Quantization, real: str = "float32") -> tuple[str, str]:
        """Initializers for scale, of type `real`, and zero point, of rank 0 per tensor: onnxruntime's fused operators refuse shape [1]."""
        if (value, real) in self._parameters:  # QuantizeLinear and DequantizeLinear of one tensor share them
            return self._parameters[value, real]
        scales: Array = quantization.scale.astype(numpy_dtype(real), copy=False)
        points = quantization.zero_point.astype(numpy_dtype(dtype))
        if quantization.axis is None:
            scales, points = scales.reshape(()), points.reshape(())
        # By fresh names, as another tensor of the graph may be called so.
        scale = self.const(scales, f"{value}/scale" if real == "float32" else f"{value}/scale_{real}")
        if value not in self._points:
            self._points[value] = self.const(points, f"{value}/zero_point")
        self._parameters[value, real] = scale, self._points[value]
        return self._parameters[value, real]

    def _axis(self, quantization: Quantization, where: str) -> dict[str, Any]:
        """The attributes `axis` and `block_size` of a quantization; those that it has."""
        if quantization.block_size and self.opset < _BLOCKS:
            raise OptionError(
                f"blocks of scales need opset {_BLOCKS}, not {self.opset}",
                where=where,
                remedy=f"Use --opset {_BLOCKS}.",
                rule="opset-too-old",
            )
        sizes = {"axis": quantization.axis, "block_size": quantization.block_size or None}
        return {key: value for key, value in sizes.items() if value is not None}

    def _require_type(self, dtype: str, where: str) -> None:
        needed = QDQ_OPSETS.get(dtype, 0)
        if self.opset < needed:
            raise OptionError(
                f"{dtype} values need opset {needed}, not {self.opset}", where=where, remedy=f"Use --opset {needed}.", rule="opset-too-old"
            )

    def own_attributes(self, op: Op) -> dict[str, Any]:
        """The attributes of an operator that ONNX's operator of the kind's name has too in the opset that is written."""
        known = signature(op.kind, "", self.opset)
        return {} if known is None else {name: op[name] for name in kind_of(op).attributes if name in known.attributes}

    def compute(
        self,
        op: Op,
        values: Sequence[str] | None = None,
        op_type: str = "",
        *,
        domain: str = "",
        in_float64: bool = False,
        **attributes: Any,
    ) -> None:
        """Writes an operator as one node of float values, and ends it.

        Args:
            op: the operator.
            values: that the node takes; by default the float values of all inputs.
            op_type: of the node; by default the kind's name.
            domain: of the node.
            in_float64: whether the node computes float32 values in float64, which onnxruntime fuses to no integer kernel.
            attributes: of the node; those of own_attributes() too, where it has the kind's name.
        """
        hint = f"{op.outputs[0]}/real_result"
        operands = self.float_values(op) if values is None else values
        if not op_type:
            attributes = self.own_attributes(op) | attributes
        if in_float64:
            operands = [self.cast(name, "float64") for name in operands]
        result = self.node(op_type or op.kind, operands, hint=f"{hint}/float64" if in_float64 else hint, domain=domain, **attributes)[0]
        self.finish(op, self.cast(result, "float32", hint=hint) if in_float64 else result)

    def compute_stored(self, op: Op, **attributes: Any) -> None:
        """Writes an operator as one node of its kind's name on stored values. Attributes: see compute()."""
        self.node(op.kind, [self.stored_value(name) for name in op.inputs], op.outputs, **self.own_attributes(op) | attributes)

    def finish(self, op: Op, value: str, index: int = 0) -> None:
        """Ends an operator: its float value becomes output `index`, with the fused activation, quantized if the tensor is.

        On a quantized output the activation is a Clip of the integers after QuantizeLinear, which is exact and keeps
        onnxruntime's fusion, and only where the range does not imply it already. In files for others (without guards) it stands before
        QuantizeLinear, as compilers expect it, which is as exact: rounding is monotone, and the bounds are values of the quantization.
        """
        tensor = self.tensor(op.outputs[index])
        bounds = activation_bounds(op)
        if tensor.quantization is None:
            self.rename(self._clip_to_bounds(value, tensor, bounds, tensor.dtype), tensor.name)
            return
        if bounds == (None, None) or tensor.dtype.startswith("float"):
            self.quantize(self._clip_to_bounds(value, tensor, bounds), tensor, tensor.name)
            return
        lowest, highest = clip_range(tensor, bounds)
        if (lowest, highest) == integer_range(tensor.dtype):
            self.quantize(value, tensor, tensor.name)
            return
        if tensor.dtype in _NO_CLIP or not self.forms.guards:
            scale, point = tensor.quantization.step, tensor.quantization.point
            pairs = zip((lowest, highest), integer_range(tensor.dtype), strict=True)
            low, high = (None if limit == end else (limit - point) * scale for limit, end in pairs)
            self.quantize(self._clip_to_bounds(value, tensor, (low, high)), tensor, tensor.name)
            return
        unclipped = self.name(f"{tensor.name}/unclipped")
        self.quantize(value, tensor, unclipped)
        self.clip_stored(unclipped, tensor, lowest, highest)

    def clip_stored(self, value: str, tensor: Tensor, lowest: int, highest: int) -> None:
        """Adds a Clip of stored integers, which becomes `tensor`."""
        dtype = "int32" if tensor.dtype in _NO_CLIP else tensor.dtype
        limits = self._limits(tensor, (lowest, highest), dtype)
        if dtype == tensor.dtype:
            self.node("Clip", [value, *limits], [tensor.name])
            return
        wide = self.node("Cast", [value], hint=f"{tensor.name}/int32", to=ELEMENT_TYPES["int32"])
        clipped = self.node("Clip", [*wide, *limits], hint=f"{tensor.name}/clipped")[0]
        self.cast(clipped, tensor.dtype, tensor.name)

    def _clip_to_bounds(self, value: str, tensor: Tensor, bounds: tuple[float | None, float | None], dtype: str = "float32") -> str:
        """A value of type `dtype` between bounds; itself if there are none."""
        if bounds == (None, None):
            return value
        if bounds == (0.0, None) and "float" in dtype:
            return self.node("Relu", [value], hint=f"{tensor.name}/clipped")[0]
        return self.node("Clip", [value, *self._limits(tensor, bounds, dtype)], hint=f"{tensor.name}/clipped")[0]

    def _limits(self, tensor: Tensor, bounds: tuple[float | None, float | None], dtype: str) -> list[str]:
        """The bounds of a Clip that gives `tensor`, as constants; "" for none."""
        return [
            "" if limit is None else self.const(np.array(limit, numpy_dtype(dtype)), f"{tensor.name}/{word}")
            for word, limit in zip(("lowest", "highest"), bounds, strict=True)
        ]

    def rename(self, value: str, name: str) -> None:
        """Makes `value` be called `name`: renames the output that makes it, or adds an Identity if it is another tensor of the graph."""
        if self.nodes and value in self.nodes[-1].output and value not in self.graph.tensors:
            position = list(self.nodes[-1].output).index(value)
            self.nodes[-1].output[position] = name
            if value in self._stored:
                self._record_real(self._stored.pop(value), name)
        else:
            self.node("Identity", [value], [name])

    def _record_real(self, name: str, real: str) -> None:
        """Records `real` as the value that holds the float values of the quantized tensor `name`."""
        self._real[name], self._stored[real] = real, name

    def float_values(self, op: Op) -> list[str]:
        """The float values of all inputs."""
        return [self.float_value(name) for name in op.inputs]


WriteFunction = Callable[[Op, Builder], None]
Writers = Mapping[str, WriteFunction]
