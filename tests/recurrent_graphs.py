"""Graphs of one integer recurrent operator, of the layers in lstm_files."""

from __future__ import annotations

from typing import Any

import numpy as np
from lstm_files import Lstm, svdf_file

from qconvert.arithmetic import GATES
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.operators.integer_recurrent import LSTM_INPUTS


def quantization(scale: float, zero_point: int = 0) -> Quantization:
    return Quantization(np.array([scale], np.float32), np.array([zero_point], np.int64))


def lstm_graph(layer: Lstm) -> Graph:
    """The layer with its states as inputs and outputs."""
    layer.file()
    made, width = layer.made, layer.outputs if layer.projection else layer.cells
    steps = (layer.steps, layer.rows) if layer.time_major else (layer.rows, layer.steps)
    cell = quantization(2.0**layer.cell_power)
    tensors = [
        Tensor("data", "int8", (*steps, layer.inputs), None, quantization(*layer.data)),
        *(Tensor(name, "int8", (layer.rows, width), None, quantization(*layer.state)) for name in ("hidden", "hidden_after")),
        *(Tensor(name, "int16", (layer.rows, layer.cells), None, cell) for name in ("cell", "cell_after")),
        Tensor("outputs", "int8", (*steps, width), None, quantization(*layer.output)),
    ]
    inputs = ["data", "hidden", "cell"]
    for name in LSTM_INPUTS[3:]:
        data, scale = made.get(name.replace("_", "/"), (None, 0.0))
        inputs.append("" if data is None else name)
        if data is not None:
            tensors.append(Tensor(name, data.dtype.name, data.shape, data, quantization(scale)))
    attributes: dict[str, Any] = {
        "hidden_scale": float(np.float32(layer.hidden[0])), "hidden_zero_point": layer.hidden[1], "time_major": int(layer.time_major),
        "cell_clip": layer.cell_clip, "projection_clip": layer.proj_clip,
    }  # fmt: skip
    if layer.norm:
        attributes |= {f"{gate}_scale": made[f"{gate}/scale"] for gate in GATES}
    outputs = ("outputs", "hidden_after", "cell_after")
    op = Op("IntegerLSTM", tuple(inputs), outputs, attributes)
    return Graph("layer", {tensor.name: tensor for tensor in tensors}, (op,), tuple(inputs[:3]), outputs)


def svdf_graph(seed: int = 0, rows: int = 1, **options: Any) -> Graph:
    """The layer with its memory as input and output."""
    _, made = svdf_file(seed, rows, **options)
    data, feature, time, memory = made["scales"]
    filters, places = made["time"].shape
    units, kept = filters // options.get("rank", 1), options.get("state", "int16")
    tensors = [
        Tensor("data", "int8", (rows, made["feature"].shape[1]), None, quantization(data, 4)),
        *(Tensor(name, kept, (rows, filters * places), None, quantization(memory)) for name in ("memory", "memory_after")),
        Tensor("feature", "int8", made["feature"].shape, made["feature"], quantization(feature)),
        Tensor("time", kept, made["time"].shape, made["time"], quantization(time)),
        Tensor("outputs", "int8", (rows, units), None, quantization(*made["output"])),
    ]
    inputs = ["data", "memory", "feature", "time"]
    if made["bias"] is not None:
        tensors.append(Tensor("bias", "int32", (units,), made["bias"], quantization(memory * time)))
        inputs.append("bias")
    outputs = ("outputs", "memory_after")
    op = Op("IntegerSVDF", tuple(inputs), outputs, {"rank": options.get("rank", 1)})
    return Graph("layer", {tensor.name: tensor for tensor in tensors}, (op,), ("data", "memory"), outputs)
