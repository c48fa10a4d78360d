"""Inputs and outputs of 2 and 4 bits: onnxruntime's Python interface has no arrays of these types, so it runs a copy of the model with
bytes as inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qconvert.graph import Array, numpy_dtype

__all__ = ["FEW_BITS", "NO_BYTES", "Bytes", "with_bytes"]

#: onnxruntime's names of types -> the canonical type, and the bytes that hold it.
FEW_BITS = {f"tensor({name})": (name, "uint8" if name.startswith("u") else "int8") for name in ("int4", "uint4", "int2", "uint2")}
#: The opset from which on Cast knows them; before it they stand next to onnxruntime's own conversions.
_OPSET, _CONTRIB = 21, "com.microsoft"
_SUFFIX = "/qconvert_bytes"


class Bytes:
    """The inputs and outputs of 2 and 4 bits, which are bytes in the copy.

    Args:
        types: name in the model -> canonical type.
        held: the type of all of them in the copy; "" for the bytes of each.
    """

    def __init__(self, types: Mapping[str, str], held: str = "") -> None:
        self.types, self._held = types, held

    def name_in_copy(self, name: str) -> str:
        """Return the name in the copy of an input or output of the model."""
        return name + _SUFFIX if name in self.types else name

    def name_in_model(self, name: str) -> str:
        """Return the name in the model of an input or output of the copy."""
        plain = name.removesuffix(_SUFFIX)
        return plain if plain in self.types else name

    def pack_inputs(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs of the copy for inputs of the model."""
        return {
            self.name_in_copy(name): value.astype(self._held or _byte_type(self.types[name])) if name in self.types else value
            for name, value in inputs.items()
        }

    def unpack_output(self, name: str, value: Array) -> Array:
        """Return an output of the model for the value that the copy computed."""
        return value.astype(numpy_dtype(self.types[name])) if name in self.types else value


NO_BYTES = Bytes(MappingProxyType({}))


def with_bytes(model: bytes | Path, inputs: Iterable[Any], outputs: Iterable[Any]) -> tuple[bytes, Bytes] | None:
    """Return the copy; None for a model without such inputs and outputs, or without an operator that converts them to bytes.

    Args:
        model: the file's content, or the file.
        inputs, outputs: what onnxruntime says of them.
    """
    types = {item.name: FEW_BITS[item.type][0] for item in (*inputs, *outputs) if item.type in FEW_BITS}
    if not types:
        return None
    from onnx import ModelProto, TensorProto

    from qconvert.formats.onnx.container import load_proto

    proto = load_proto(model) if isinstance(model, Path) else ModelProto.FromString(bytes(model))
    casts = any(item.domain in ("", "ai.onnx") and item.version >= _OPSET for item in proto.opset_import)
    if not casts and not any(item.domain == _CONTRIB for item in proto.opset_import):
        return None
    graph, before, following = proto.graph, list[Any](), list[Any]()
    for value in graph.input:
        if value.name in types:
            before.append(_make_conversion_node(proto, "QuantizeLinear", value.name + _SUFFIX, value.name, types[value.name], casts))
            value.type.tensor_type.elem_type = _element_type(_byte_type(types[value.name]) if casts else "float")
            value.name += _SUFFIX
    taken = {value.name for value in graph.input}
    for value in graph.output:
        if value.name in types:
            if value.name + _SUFFIX not in taken:
                following.append(
                    _make_conversion_node(proto, "DequantizeLinear", value.name, value.name + _SUFFIX, types[value.name], casts)
                )
            elem: Any = value.type.tensor_type
            if elem.elem_type != TensorProto.UNDEFINED:
                elem.elem_type = _element_type(_byte_type(types[value.name]) if casts else "float")
            value.name += _SUFFIX
    nodes = [*before, *graph.node, *following]
    del graph.node[:]
    graph.node.extend(nodes)
    return proto.SerializeToString(), Bytes(types, "" if casts else "float32")


def _make_conversion_node(proto: Any, op_type: str, data: str, result: str, dtype: str, casts: bool) -> Any:
    """Return the node between few bits and bytes: Cast, or onnxruntime's own conversion to float32 with a scale of 1."""
    from onnx import helper

    if casts:
        return helper.make_node("Cast", [data], [result], to=_element_type(dtype if op_type == "QuantizeLinear" else _byte_type(dtype)))
    scale, zero_point = f"{result}/scale", f"{result}/zero_point"
    proto.graph.initializer.extend([
        helper.make_tensor(scale, _element_type("float"), [], [1.0]),
        helper.make_tensor(zero_point, _element_type(dtype), [], [0]),
    ])  # fmt: skip
    return helper.make_node(op_type, [data, scale, zero_point], [result], domain=_CONTRIB)


def _byte_type(dtype: str) -> str:
    return FEW_BITS[f"tensor({dtype})"][1]


def _element_type(dtype: str) -> int:
    from onnx import TensorProto

    return int(getattr(TensorProto, dtype.upper()))
