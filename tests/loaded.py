"""Graphs of models in memory, as load() gives them: read, in their format's normal form, validated."""

from __future__ import annotations

from qconvert.conversion.loading import normal_form
from qconvert.graph import Graph
from qconvert.plugins import format_named


def onnx_graph(data: bytes, name: str = "model") -> Graph:
    from qconvert.formats.onnx.reader import read_bytes

    return normal_form(read_bytes(data, name), format_named("onnx"))


def tflite_graph(data: bytes, name: str = "model") -> Graph:
    from qconvert.formats.tflite.reader import read_bytes

    return normal_form(read_bytes(data, name), format_named("tflite"))
