"""The quantized constants of an ONNX file as the file itself has them, next to the source's: no reader of ours stands between."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic.quantization import Quantization
from qconvert.graph import Graph
from qconvert.operators.spatial import swapped_weights
from qconvert.rules.changed_values import difference

__all__ = ["differing_constants"]


def differing_constants(graph: Graph, model: Any) -> dict[str, str]:
    """What differs in each constant that does, by its name (see graph.changed_values.changed_values).

    Args:
        graph: the source's canonical graph.
        model: the onnx.ModelProto made from it.
    """
    from onnx import numpy_helper

    values = {item.name: item for item in model.graph.initializer}
    turned = {op.inputs[1]: int(op["group"]) for op in graph.ops if op.kind == "ConvTranspose"}
    found: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type != "DequantizeLinear" or not all(name in values for name in node.input):
            continue
        tensor = graph.tensors.get(node.input[0])
        in_blocks = any(a.name == "block_size" and a.i for a in node.attribute)
        if tensor is None or tensor.data is None or tensor.quantization is None or tensor.quantization.block_size or in_blocks:
            continue
        data, scale, *rest = (numpy_helper.to_array(values[name]) for name in node.input)
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        zero_point = rest[0].astype(np.int64) if rest else np.zeros_like(scale, np.int64)
        shape = [-1 if scale.size > 1 and i == axis % data.ndim else 1 for i in range(data.ndim)]
        centred = data.astype(np.int64) - zero_point.reshape(shape if scale.size > 1 else ())
        if tensor.name in turned and centred.ndim > 2 and centred.shape[0] % turned[tensor.name] == 0:
            centred = swapped_weights(centred, turned[tensor.name])
        text = difference(tensor, centred, Quantization(scale.reshape(-1), zero_point.reshape(-1)))
        if text:
            found[tensor.name] = text
    return found
