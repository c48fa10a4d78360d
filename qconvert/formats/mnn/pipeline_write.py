"""MNN's Pipeline (MNN_compression.proto): the scales that its converter takes by --compressionParamsFile, as JSON and as protobuf.

An entry of the input, the names of all entries and the version are required: without them MNN crashes, or takes no part of the file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from qconvert.formats.mnn.layers import Activation, Layer

__all__ = ["pipeline_binary", "pipeline_json"]

_VERSION = "0.0.0"
_LOW, _HIGH = -128, 127
_VARINT, _BYTES, _FIXED32 = 0, 2, 5


def pipeline_json(layers: Iterable[Layer]) -> str:
    """The Pipeline as JSON, as protobuf spells it."""
    entries = [
        {
            "input": [_activation_json(layer.data)],
            "weight": [
                {"name": layer.weights, "bits": 8, "scales": [float(scale) for scale in layer.scales], "clampMin": _LOW, "clampMax": _HIGH}
            ],
            "output": [_activation_json(layer.result, layer.name)],
            "method": "QAT",
            "opName": layer.operator,
        }
        for layer in layers
    ]
    document = {"version": _VERSION, "algo": [{"type": "QUANTIZE", "quantParams": {"layer": entries}}], "forGuide": False}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _activation_json(tensor: Activation, name: str = "") -> dict[str, Any]:
    return {
        "name": name or tensor.name,
        "bits": 8,
        "scales": [tensor.scale],
        "zeroPoint": tensor.zero_point,
        "clampMin": _LOW,
        "clampMax": _HIGH,
    }


def pipeline_binary(layers: Iterable[Layer]) -> bytes:
    """The same as protobuf; the numbers are those of the fields in MNN_compression.proto."""
    params = b"".join(_message(4, _layer_binary(layer)) for layer in layers)
    algorithm = _number(1, 0) + _message(2, params)
    return _message(1, _VERSION.encode()) + _message(2, algorithm) + _number(4, 0)


def _layer_binary(layer: Layer) -> bytes:
    weight = _message(1, layer.weights.encode()) + _number(2, 8) + _floats(3, layer.scales.tolist()) + _number(4, _LOW) + _number(5, _HIGH)
    return (
        _message(1, _activation_binary(layer.data, layer.data.name))
        + _message(2, weight)
        + _message(3, _activation_binary(layer.result, layer.name))
        + _number(4, 0)
        + _message(6, layer.operator.encode())
    )


def _activation_binary(tensor: Activation, name: str) -> bytes:
    head = _message(1, name.encode()) + _number(2, 8) + _floats(3, [tensor.scale])
    return head + _number(4, tensor.zero_point) + _number(5, _LOW) + _number(6, _HIGH)


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _floats(field: int, values: Sequence[float]) -> bytes:
    """Repeated floats, each with its own tag: the schema is of proto2, where they are not packed."""
    tag = _varint(field << 3 | _FIXED32)
    return b"".join(tag + struct.pack("<f", value) for value in values)
