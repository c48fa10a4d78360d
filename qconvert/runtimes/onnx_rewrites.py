"""Models rewritten for onnxruntime before it runs them. QONNX, which it has no kernels for, is decomposed in ONNX's own nodes, as the
qonnx package computes them in float32. On x86-64 CPUs without VNNI, where its kernels of unsigned activations and signed weights add
two neighbouring products in 16 bits (vpmaddubsw) and saturate, such weights are stored as unsigned ones, each and its zero point 128
higher: the same numbers, for kernels that are exact. onnxruntime does the same by itself if session.x64quantprecision is set, but only
while it optimizes, and (1.31) refuses models in which two operators share a constant, or which have int8 activations in QLinear
operators.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import QConvertError
from qconvert.files import map_file
from qconvert.formats.onnx.model import replace_items
from qconvert.formats.onnx.qonnx.nodes import limits_of, rounding_of, storage
from qconvert.formats.onnx.signatures import QONNX_DOMAINS
from qconvert.graph import Array, integer_range
from qconvert.operators import KINDS

#: What the user should know where weights were changed.
NOTE = (
    "this CPU has no VNNI, so that onnxruntime's kernels of unsigned activations and signed weights saturate on it; such weights were "
    "run as unsigned ones, which are the same numbers with their zero points 128 higher"
)
_LARGEST_PROTOBUF = 2**31 - 1
#: Operators on integers -> the inputs that hold the data, its zero point (-1: none, the data are made unsigned by the operator itself),
#: the weights and their zero point; for each of its weights.
_INTEGER_OPERATORS = {
    "QLinearConv": [(0, 2, 3, 5)], "QLinearMatMul": [(0, 2, 3, 5)], "QGemm": [(0, 2, 3, 5)], "MatMulInteger": [(0, 2, 1, 3)],
    "ConvInteger": [(0, 2, 1, 3)], "MatMulIntegerToFloat": [(0, 4, 1, 5)], "DynamicQuantizeMatMul": [(0, -1, 1, 3)],
    "QAttention": [(0, 6, 1, 7)], "DynamicQuantizeLSTM": [(0, -1, 1, 9), (0, -1, 2, 11)],
}  # fmt: skip
#: Operators that onnxruntime's optimizer gives integer kernels if they stand between DequantizeLinear and QuantizeLinear.
PRODUCTS = frozenset(name for name, kind in KINDS.items() if kind.sums_products)
_CPUINFO = Path("/proc/cpuinfo")
_X86 = ("x86_64", "amd64", "i386", "i686", "x86")
#: Operators that may stand between weights and their DequantizeLinear.
_MOVING = {"Flatten"}.union(name for name, kind in KINDS.items() if kind.keeps_elements or kind.copies)


def cpu_saturates(cpuinfo: Path = _CPUINFO, machine: str = "") -> bool:
    """Whether this CPU is an x86 one without VNNI, or does not list it; see has_vnni()."""
    return is_x86(machine) and not has_vnni(cpuinfo, machine)


def is_x86(machine: str) -> bool:
    """Whether an architecture, by default that of this machine, is x86 or x86-64."""
    return (machine or platform.machine()).lower() in _X86


@cache
def has_vnni(cpuinfo: Path = _CPUINFO, machine: str = "") -> bool:
    """Whether this CPU is an x86 one and lists VNNI.

    Args:
        cpuinfo: where Linux lists the CPU's features.
        machine: the architecture, by default that of this machine.
    """
    if not is_x86(machine):
        return False
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return False
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags") and ":" in line), [])
    return bool({"avx512_vnni", "avx_vnni"} & set(flags))


def with_unsigned_weights(model: bytes | Path, optimize: bool) -> bytes | None:
    """Return the model with unsigned weights wherever integer kernels would multiply signed ones by unsigned activations; None if nowhere.

    Args:
        model: an .onnx file or its content.
        optimize: whether onnxruntime optimizes its graph, where operators between DequantizeLinear and QuantizeLinear become integer
            operators.
    """
    proto = _parse_model(model)
    if proto is None:
        return None
    weights = _Weights(proto.graph)
    for node in proto.graph.node:
        if node.op_type in _INTEGER_OPERATORS:
            weights.shift_integer_operator(node)
        elif optimize and node.op_type in PRODUCTS:
            weights.shift_float_operator(node)
    return bytes(proto.SerializeToString()) if weights.changed else None


def _parse_model(model: bytes | Path) -> Any:
    """Return the ModelProto with functions inlined and external data loaded; None without an int8 constant, or if it cannot be changed."""
    from google.protobuf.message import DecodeError
    from onnx import ModelProto, TensorProto, inliner
    from onnx.external_data_helper import load_external_data_for_model

    from qconvert.formats.onnx.container import external_files
    from qconvert.formats.onnx.wire import without_large_constants

    data = map_file(model) if isinstance(model, Path) else model
    try:
        light = ModelProto.FromString(without_large_constants(data))
        data_files = external_files(model) if isinstance(model, Path) else ()
    except (DecodeError, QConvertError):  # onnxruntime will say what is wrong
        return None
    nodes = [node for graph in (light.graph, *light.functions) for node in graph.node]
    constants = [*light.graph.initializer, *(a.t for node in nodes if node.op_type == "Constant" for a in node.attribute)]
    if not any(item.data_type == TensorProto.INT8 for item in constants):
        return None
    if len(data) + sum(item.stat().st_size for item in data_files) > _LARGEST_PROTOBUF:
        return None
    proto = ModelProto.FromString(bytes(data))
    if isinstance(model, Path):
        load_external_data_for_model(proto, str(model.parent))
    return inliner.inline_local_functions(proto) if proto.functions else proto


class _Weights:
    """Changes the weights of a GraphProto's operators; `changed` says whether it did."""

    def __init__(self, graph: Any) -> None:
        self.changed = False
        self._graph = graph
        self._producers = {name: node for node in graph.node for name in node.output}
        self._constants = {item.name: item for item in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self._constants[node.output[0]] = node.attribute[0].t
        self._readers = Counter(name for node in graph.node for name in node.input)
        self._types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
        self._new: dict[str, str] = {}

    def shift_integer_operator(self, node: Any) -> None:
        for places in _INTEGER_OPERATORS[node.op_type]:
            self._shift_weights(node, *places)

    def _shift_weights(self, node: Any, data: int, data_zero: int, weights: int, zero: int) -> None:
        signed = self._is_signed_constant(_input(node, weights))
        zero_known = not _input(node, zero) or self._is_signed_constant(_input(node, zero))
        if signed and zero_known and (data_zero < 0 or self._is_unsigned(_input(node, data), _input(node, data_zero))):
            node.input[weights] = self._shift_constant(node.input[weights])
            node.input.extend([""] * (zero + 1 - len(node.input)))
            node.input[zero] = (
                self._shift_constant(node.input[zero]) if node.input[zero] else self._add_zero_point(node, np.array(128, np.uint8))
            )

    def shift_float_operator(self, node: Any) -> None:
        """Shift dequantized weights if the data are dequantized too; the storage of a DequantizeLinear does not change its result."""
        weights, data = self._find_dequantize(_input(node, 1)), self._find_dequantize(_input(node, 0), through_all=True)
        if weights is None or data is None or any(a.name == "block_size" and a.i for a in weights.attribute):
            return
        zero, scale, places = _input(weights, 2), self._constants.get(weights.input[1]), self._find_constants(weights)
        if not places or (zero and not self._is_signed_constant(zero)):
            return
        if not zero:
            if scale is None:
                return
            del weights.input[2:]
            weights.input.append(self._add_zero_point(weights, np.full(tuple(scale.dims), 128, np.uint8)))
            places.remove((weights, 2))
        for node, position in places:
            node.input[position] = self._shift_constant(node.input[position])

    def _find_constants(self, node: Any) -> list[tuple[Any, int]]:
        """Return the operator inputs with the constants of a DequantizeLinear, its zero point included; [] if not all are known."""
        places, name = [(node, 2)], node.input[0]
        while not self._is_signed_constant(name):
            node = self._producers.get(name)
            if node is None or self._readers[name] > 1:
                return []
            if node.op_type == "QuantizeLinear" and node.input[0] in self._constants:
                return [*places, (node, 2)] if self._is_signed_constant(_input(node, 2)) else []
            if node.op_type == "Clip":
                bounds = [position for position in range(1, len(node.input)) if node.input[position]]
                if not all(self._is_signed_constant(node.input[position]) for position in bounds):
                    return []
                places += [(node, position) for position in bounds]
            elif node.op_type not in _MOVING:
                return []
            name = node.input[0]
        return [*places, (node, 0)]

    def _find_dequantize(self, name: str, through_all: bool = False) -> Any:
        """Return the DequantizeLinear before a value, through data movement or through all operators; None if there is none."""
        node = self._producers.get(name)
        while node is not None and node.op_type != "DequantizeLinear":
            node = self._producers.get(_input(node, 0)) if through_all or node.op_type in _MOVING else None
        return node

    def _is_signed_constant(self, name: str) -> bool:
        from onnx import TensorProto

        return name in self._constants and bool(self._constants[name].data_type == TensorProto.INT8)

    def _is_unsigned(self, data: str, zero: str) -> bool:
        from onnx import TensorProto

        if zero in self._constants:
            return bool(self._constants[zero].data_type == TensorProto.UINT8)
        node = self._producers.get(data)
        if node is not None and node.op_type == "QuantizeLinear":
            return not _input(node, 2) or self._is_unsigned(data, node.input[2])
        return (node is not None and node.op_type == "DynamicQuantizeLinear") or self._types.get(data) == TensorProto.UINT8

    def _shift_constant(self, name: str) -> str:
        """Return the name of a uint8 constant that is 128 higher."""
        from onnx import numpy_helper

        if name not in self._new:
            self._new[name] = self._add_constant(name, numpy_helper.to_array(self._constants[name]).view(np.uint8) ^ np.uint8(128))
        return self._new[name]

    def _add_zero_point(self, node: Any, values: Array) -> str:
        return self._add_constant(f"{node.output[0]}/zero_point", values)

    def _add_constant(self, wanted: str, values: Array) -> str:
        from onnx import numpy_helper

        name = f"{wanted}/unsigned"
        while name in self._constants or name in self._producers:
            name += "'"
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
        self._constants[name] = self._graph.initializer[-1]
        self.changed = True
        return name


def _input(node: Any, index: int) -> str:
    return str(node.input[index]) if index < len(node.input) else ""


def with_onnx_nodes(model: Any) -> bool:
    """Replace every QONNX node in the main graph of a ModelProto; return False without a change if there is none, or an unknown one.

    Integers of a quantization get the names that the reader gives them (formats/onnx/qonnx), so that a check finds them.
    """
    found = [node for node in model.graph.node if node.domain in QONNX_DOMAINS]
    if not found or any(node.op_type not in _FORMS for node in found):
        return False
    constants = {item.name: item for item in model.graph.initializer}
    nodes: list[Any] = []
    for number, node in enumerate(model.graph.node):
        if node.domain in QONNX_DOMAINS:
            _FORMS[node.op_type](_Decomposition(node, nodes, f"{node.output[0]}/{number}", constants))
        else:
            nodes.append(node)
    replace_items(model.graph.node, nodes)
    return True


def without_qonnx(model: bytes) -> bytes:
    """A serialized model without QONNX nodes; itself if it has none."""
    if not any(domain.encode() in model for domain in QONNX_DOMAINS):
        return model
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    proto = ModelProto()
    try:
        proto.ParseFromString(model)
    except DecodeError:
        return model
    return bytes(proto.SerializeToString()) if with_onnx_nodes(proto) else model


class _Decomposition:
    """One node that is being replaced."""

    def __init__(self, node: Any, nodes: list[Any], prefix: str, constants: Mapping[str, Any]) -> None:
        self._constants = constants
        self.inputs = list(node.input)
        self._output = node.output[0]
        self._attributes = {item.name: item.s.decode("ascii", "replace").upper() if item.type == 3 else item.i for item in node.attribute}
        self._nodes, self._prefix, self._count = nodes, prefix, 0

    def attribute(self, name: str, default: Any) -> Any:
        return self._attributes.get(name, default)

    def add(self, op_type: str, *inputs: str | float) -> str:
        """Adds a node, numbers as constants; returns its output."""
        from onnx import helper, numpy_helper

        names = []
        for item in inputs:
            if not isinstance(item, str):
                value = numpy_helper.from_array(np.array(item, np.float32))
                item = self._name()
                self._nodes.append(helper.make_node("Constant", [], [item], value=value))
            names.append(item)
        self._nodes.append(helper.make_node(op_type, names, [self._name()]))
        return str(self._nodes[-1].output[0])

    def _name(self) -> str:
        self._count += 1
        return f"{self._prefix}/{self._count}"

    def end(self, value: str) -> None:
        """Make a value the node's result."""
        from onnx import helper

        self._nodes.append(helper.make_node("Identity", [value], [self._output]))

    def add_rounding(self, value: str, mode: str) -> str:
        op_type, offset = rounding_of(mode)
        if offset is None:
            return self.add(op_type, value)
        return self.add("Mul", self.add("Sign", value), self.add(op_type, self.add("Add", self.add("Abs", value), offset)))

    def constant(self, index: int) -> Array | None:
        """The numbers of an input, if it is an initializer."""
        from onnx import numpy_helper

        found = self._constants.get(self.inputs[index])
        return None if found is None else np.asarray(numpy_helper.to_array(found))

    def clip_to_limits(self, value: str, bits: str) -> str:
        narrow = float(self.attribute("narrow", 0))
        if self.attribute("signed", 1):
            half = self.add("Pow", 2.0, self.add("Sub", bits, 1.0))
            low, high = self.add("Add", self.add("Neg", half), narrow), self.add("Sub", half, 1.0)
        else:
            low, high = self.add("Mul", bits, 0.0), self.add("Sub", self.add("Pow", 2.0, bits), 1.0 + narrow)
        return self.add("Max", self.add("Min", value, high), low)

    def add_named_integers(self, whole: str, limits: tuple[float, float], dtype: str, hint: str) -> str:
        """Clip whole numbers to limits and store them as integers with a name of their own; return them as float32."""
        from onnx import helper

        name = f"{self._output}/{hint}"
        number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        within = self.add("Max", self.add("Min", whole, limits[1]), limits[0])
        self._nodes.append(helper.make_node("Cast", [within], [name], to=number))
        self._nodes.append(helper.make_node("Cast", [name], [self._name()], to=1))
        return str(self._nodes[-1].output[0])

    def add_signs(self, value: str) -> str:
        return self.add("Where", self.add("GreaterOrEqual", value, 0.0), 1.0, -1.0)


def _quant(s: _Decomposition) -> None:
    x, scale, point, bits = s.inputs
    steps = s.add("Add", s.add("Div", x, scale), point)
    mode = s.attribute("rounding_mode", "ROUND")
    widths, points, scales = s.constant(3), s.constant(2), s.constant(1)
    width = 0 if widths is None else float(widths.reshape(-1)[0])
    signed = bool(s.attribute("signed", 1))
    dtype = None
    if 1 <= width <= 16 and width == int(width) and (width > 1 or not signed) and points is not None and scales is not None:
        limits = limits_of(int(width), signed, bool(s.attribute("narrow", 0)))
        dtype = storage(limits, signed, points)
    if dtype is None:
        whole = s.add_rounding(s.clip_to_limits(steps, bits), mode)
        if signed:
            whole = s.add("Where", s.add("Equal", bits, 1.0), s.add_signs(steps), whole)
    else:
        low, high = integer_range(dtype)
        whole = s.add_rounding(s.add("Max", s.add("Min", steps, float(high)), float(low)), mode)
        one = scales is not None and points is not None and scales.size == points.size == 1
        whole = s.add_named_integers(whole, (low, high) if one else limits, dtype, dtype)
        if one and limits != (low, high):
            whole = s.add_named_integers(whole, limits, dtype, "clipped")
    s.end(s.add("Mul", s.add("Sub", whole, point), scale))


def _bipolar(s: _Decomposition) -> None:
    x, scale = s.inputs
    s.end(s.add("Mul", s.add_signs(x), scale))


def _trunc(s: _Decomposition) -> None:
    x, scale, point, in_bits, *others = s.inputs
    steps = s.add("Round", s.add("Add", s.add("Div", x, scale), point))
    mode = s.attribute("rounding_mode", "FLOOR")
    if len(others) == 1:
        divisor = s.add("Pow", 2.0, s.add("Sub", in_bits, others[0]))
        whole = s.add_rounding(s.add("Div", steps, divisor), mode)
        s.end(s.add("Mul", s.add("Sub", whole, point), scale))
        return
    out_scale, out_bits = others
    binary = s.add("Div", s.add("Log", s.add("Div", out_scale, scale)), float(np.log(2)))
    divisor = s.add("Pow", 2.0, s.add("Round", binary))
    whole = s.add_rounding(s.clip_to_limits(s.add("Div", steps, divisor), out_bits), mode)
    s.end(s.add("Mul", s.add("Sub", whole, s.add("Div", point, divisor)), out_scale))


_FORMS: Mapping[str, Callable[[_Decomposition], None]] = {"Quant": _quant, "IntQuant": _quant, "BipolarQuant": _bipolar, "Trunc": _trunc}
