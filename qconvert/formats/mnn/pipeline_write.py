"""MNN's Pipeline (MNN_compression.proto): the scales that its converter takes by --compressionParamsFile, as JSON and as protobuf.

An entry of the input, the names of all entries and the version are required: without them MNN crashes, or takes no part of the file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from qconvert.formats.mnn.layers import Activation, Layer
from qconvert.formats.mnn.messages import MESSAGES, MessageField

__all__ = ["pipeline_binary", "pipeline_json"]

_VARINT, _BYTES, _FIXED32 = 0, 2, 5


def to_bytes(message: str, fields: Mapping[str, Any]) -> bytes:
    """A message as protobuf, the fields that it has in the order of their numbers.

    Repeated floats have a tag each: the schema is of proto2, where they are not packed.

    Args:
        message: its name in MESSAGES.
        fields: values by name; messages are mappings, enumerations names.
    """
    parts = []
    for number, field in MESSAGES[message].items():
        if field.name in fields:
            values = fields[field.name] if field.repeated else [fields[field.name]]
            parts += [_encode_field(number, field, value) for value in values]
    return b"".join(parts)


def _encode_field(number: int, field: MessageField, value: Any) -> bytes:
    if field.kind == "float":
        return _encode_varint(number << 3 | _FIXED32) + struct.pack("<f", value)
    if isinstance(field.kind, tuple):
        return _encode_varint(number << 3 | _VARINT) + _encode_varint(field.kind.index(value))
    if field.kind in ("int32", "bool"):
        return _encode_varint(number << 3 | _VARINT) + _encode_varint(int(value))
    content = value.encode() if field.kind == "string" else to_bytes(field.kind, value)
    return _encode_varint(number << 3 | _BYTES) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    value &= 2**64 - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


_VERSION = "0.0.0"
_LOW, _HIGH = -128, 127


def pipeline_json(layers: Iterable[Layer]) -> str:
    """The Pipeline as JSON, as protobuf writes it."""
    return json.dumps(_pipeline(layers), indent=1, ensure_ascii=False) + "\n"


def pipeline_binary(layers: Iterable[Layer]) -> bytes:
    """The same as protobuf."""
    return to_bytes("Pipeline", _pipeline(layers))


def _pipeline(layers: Iterable[Layer]) -> dict[str, Any]:
    entries = [
        {
            "input": [_activation(layer.data)],
            "weight": [
                {"name": layer.weights, "bits": 8, "scales": [float(scale) for scale in layer.scales], "clampMin": _LOW, "clampMax": _HIGH}
            ],
            "output": [_activation(layer.result, layer.name)],
            "method": "QAT",
            "opName": layer.operator,
        }
        for layer in layers
    ]
    return {"version": _VERSION, "algo": [{"type": "QUANTIZE", "quantParams": {"layer": entries}}], "forGuide": False}


def _activation(tensor: Activation, name: str = "") -> dict[str, Any]:
    return {
        "name": name or tensor.name,
        "bits": 8,
        "scales": [tensor.scale],
        "zeroPoint": tensor.zero_point,
        "clampMin": _LOW,
        "clampMax": _HIGH,
    }
