"""QONNX in onnxruntime, which has no kernels for it: its nodes decomposed in ONNX's own, as the qonnx package computes them in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qconvert.formats.onnx.contrib import QONNX_DOMAINS
from qconvert.formats.onnx.qonnx.ranges import limits_of, storage
from qconvert.graph import Array, integer_range

__all__ = ["with_onnx_nodes", "without_qonnx"]

#: Rounding modes: what the magnitude is rounded by and what is added to it before, or the operator on the value itself.
_MODES: Mapping[str, tuple[str, float | None]] = {
    "ROUND": ("Round", None), "HALF_EVEN": ("Round", None), "CEIL": ("Ceil", None), "FLOOR": ("Floor", None),
    "UP": ("Ceil", 0.0), "DOWN": ("Floor", 0.0), "HALF_UP": ("Floor", 0.5), "HALF_DOWN": ("Ceil", -0.5),
}  # fmt: skip


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
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
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
        op_type, offset = _MODES[mode]
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
