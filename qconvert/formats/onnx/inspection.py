"""What an .onnx file holds, in the form of the graph document, for `qconvert inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError, QConvertError
from qconvert.files import map_file
from qconvert.formats.onnx.storage import ELEMENT_TYPES
from qconvert.formats.onnx.verify import verify
from qconvert.formats.onnx.wire import without_large_constants

__all__ = ["inspect", "parse"]

_NAMES = {number: name for name, number in ELEMENT_TYPES.items()}


def parse(path: Path, *, load_external: bool = True) -> Any:
    """The onnx.ModelProto in a file, verified, with external constants loaded into it; raises InvalidModelError if it is none."""
    from google.protobuf.message import DecodeError
    from onnx import ModelProto
    from onnx.external_data_helper import load_external_data_for_model

    data = map_file(path)
    try:
        without_large_constants(data)  # counts what a parser would make objects of
        model = ModelProto.FromString(bytes(data))
        verify(model, path.parent, len(data))
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidModelError("no ONNX file, or a damaged one", file=str(path)) from error
    except QConvertError as error:
        error.file = error.file or str(path)
        raise
    if load_external:
        load_external_data_for_model(model, str(path.parent))
    return model


def inspect(path: Path) -> dict[str, Any]:
    """Operators, inputs, outputs, and every tensor that a QuantizeLinear or DequantizeLinear gives a constant scale."""
    from onnx import numpy_helper

    model, folder = parse(path, load_external=False), str(path.parent)
    values = {item.name: item for item in model.graph.initializer}
    quantized: dict[str, dict[str, Any]] = {}
    for node in model.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or len(node.input) < 2 or node.input[1] not in values:
            continue
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        scale = np.atleast_1d(numpy_helper.to_array(values[node.input[1]], folder))
        zero = values.get(node.input[2]) if len(node.input) > 2 else None
        points = np.zeros(scale.size, np.int64) if zero is None else np.atleast_1d(numpy_helper.to_array(zero, folder)).astype(np.int64)
        name = node.input[0] if node.op_type == "DequantizeLinear" else node.output[0]
        quantized[name] = {
            "scale": [float(v) for v in scale.reshape(-1)],
            "zero_point": [int(v) for v in points.reshape(-1)],
            "axis": axis if scale.size > 1 else None,
            "block_size": 0,
        }
    return {
        "name": model.graph.name,
        "inputs": [item.name for item in model.graph.input],
        "outputs": [item.name for item in model.graph.output],
        "metadata": {item.key: item.value for item in model.metadata_props},
        "opset": {item.domain or "ai.onnx": item.version for item in model.opset_import},
        "ops": [{"kind": n.op_type, "inputs": list(n.input), "outputs": list(n.output), "source": n.doc_string} for n in model.graph.node],
        "tensors": _tensors(model, quantized),
    }


def _tensors(model: Any, quantized: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Inputs, outputs and weights, and whatever else is quantized. Scales themselves are left out."""
    found: dict[str, dict[str, Any]] = {}
    for item in (*model.graph.input, *model.graph.output):
        shape = [d.dim_param or d.dim_value for d in item.type.tensor_type.shape.dim]
        found[item.name] = {
            "name": item.name,
            "dtype": _NAMES.get(item.type.tensor_type.elem_type, "?"),
            "shape": shape,
            "constant": False,
        }
    for item in model.graph.initializer:
        if item.name in quantized:
            dtype = _NAMES.get(item.data_type, "?")
            found[item.name] = {"name": item.name, "dtype": dtype, "shape": list(item.dims), "constant": True}
    for name, quantization in quantized.items():
        entry = found.setdefault(name, {"name": name, "dtype": "integer", "shape": None, "constant": False})
        entry["quantization"] = quantization
    return list(found.values())
