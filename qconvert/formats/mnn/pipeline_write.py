"""MNN's Pipeline (MNN_compression.proto): the scales that its converter takes by --compressionParamsFile, as JSON and as protobuf.

An entry of the input, the names of all entries and the version are required: without them MNN crashes, or takes no part of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from qconvert.formats.mnn.layers import Activation, Layer
from qconvert.formats.mnn.messages_write import to_bytes

__all__ = ["pipeline_binary", "pipeline_json"]

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
