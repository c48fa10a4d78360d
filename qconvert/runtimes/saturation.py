"""Unsigned weights for onnxruntime on x86-64 CPUs without VNNI, where its kernels of unsigned activations and signed weights saturate.

They add two neighbouring products in 16 bits (the instruction vpmaddubsw). There the model is run with such weights stored as unsigned
ones, each and its zero point 128 higher, which are the same numbers and have kernels that are exact. onnxruntime does the same by itself
if session.x64quantprecision is set, but only while it optimizes, and (1.31) refuses models in which two operators share a constant, or
which have int8 activations in QLinear operators.
"""

from __future__ import annotations

import platform
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import QConvertError
from qconvert.files import map_file
from qconvert.graph import Array

__all__ = ["NOTE", "cpu_saturates", "has_vnni", "with_unsigned_weights"]

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
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_CPUINFO = Path("/proc/cpuinfo")
_X86 = ("x86_64", "amd64", "i386", "i686", "x86")
#: Operators that may stand between weights and their DequantizeLinear.
_MOVING = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")


def cpu_saturates(cpuinfo: Path = _CPUINFO, machine: str = "") -> bool:
    """Whether this CPU is an x86 one without VNNI, or does not list it; see has_vnni()."""
    return (machine or platform.machine()).lower() in _X86 and not has_vnni(cpuinfo, machine)


@cache
def has_vnni(cpuinfo: Path = _CPUINFO, machine: str = "") -> bool:
    """Whether this CPU is an x86 one and lists VNNI.

    Args:
        cpuinfo: where Linux lists the CPU's features.
        machine: the architecture, by default that of this machine.
    """
    if (machine or platform.machine()).lower() not in _X86:
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
        elif optimize and node.op_type in _WEIGHTED:
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
        beside = external_files(model) if isinstance(model, Path) else ()
    except (DecodeError, QConvertError):  # onnxruntime will say what is wrong
        return None
    nodes = [node for graph in (light.graph, *light.functions) for node in graph.node]
    constants = [*light.graph.initializer, *(a.t for node in nodes if node.op_type == "Constant" for a in node.attribute)]
    if not any(item.data_type == TensorProto.INT8 for item in constants):
        return None
    if len(data) + sum(item.stat().st_size for item in beside) > _LARGEST_PROTOBUF:
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
