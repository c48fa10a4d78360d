"""Forms of operators that LiteRT's integer kernels do not support; they run in float."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import tflite_logarithm
from qconvert.graph import Graph, Op
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.operators.pool import average_pads
from qconvert.operators.spatial import same_pads

__all__ = ["average_pool", "elu", "logarithm", "lp_normalization", "reduce_sum", "square_root", "volume"]


def average_pool(graph: Graph, op: Op) -> str:
    """Averages whose padding is neither counted nor SAME are multiplied by factors that differ from place to place."""
    if len(op["kernel_shape"]) == 3:
        return "it would be two pools, which round twice"
    data, result = graph[op.inputs[0]].static_shape, graph[op.outputs[0]].static_shape
    if data is None or result is None or len(data) != 4 or len(result) != 4 or op["data_format"] != "channels_last":
        return ""
    pads, share = average_pads(op, data[1:3], result[1:3])
    own = pads == same_pads(data[1:3], op["kernel_shape"], op["strides"], (1, 1)) and not op["count_include_pad"]
    return "" if own or not any(pads) or (share == 1).all() else "its padding is neither counted nor SAME"


def elu(graph: Graph, op: Op) -> str:
    return "" if float(op["alpha"]) == 1.0 else "its kernel supports only alpha 1"


def lp_normalization(graph: Graph, op: Op) -> str:
    return "" if int(op["p"]) == 2 else "its kernel supports only the Euclidean norm"


def volume(graph: Graph, op: Op) -> str:
    return "its 3-D kernel computes in float" if graph[op.inputs[0]].rank == 5 else ""


def square_root(graph: Graph, op: Op) -> str:
    """Models of TFLite, also after conversion (passes/match_rounding.py), mean its kernel."""
    own = op["arithmetic"] == "tflite" or graph.metadata.get(SOURCE_KERNELS) == "litert:default"
    return "" if own else "its kernel drops the fraction of its results"


def logarithm(graph: Graph, op: Op) -> str:
    """Points of 16-bit tables are the smallest result up to zero, and the next may be more than 16 bits above it."""
    data, result = (graph[name] for name in (op.inputs[0], op.outputs[0]))
    if data.dtype != "int16" or any(item.quantization is None or not item.quantization.is_per_tensor for item in (data, result)):
        return ""
    scales = (float(item.quantization.scale[0]) for item in (data, result) if item.quantization is not None)
    overflows = tflite_logarithm(np.arange(-(2**15), 2**15), *scales)[1]
    return "neighbouring points of its 16-bit table differ by more than 16 bits" if overflows else ""


def reduce_sum(graph: Graph, op: Op) -> str:
    """SUM of the reference kernels is right only in its first sum (measured with LiteRT 2.3)."""
    return "its reference kernel adds onto what is not cleared"
