"""Compares the quantized constants that source and result both name: a wrong weight shows even where no input brings it out."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.graph import Array, Graph, Tensor

__all__ = ["differing_constants"]


def differing_constants(graph: Graph, model: Any) -> dict[str, str]:
    """What differs in each constant that does, by its name.

    Storage does not count: the integers are compared less their zero points, so that int8 may have become uint8. Constants whose
    shape the result has changed are left out, as are those that it does not have under the source's name.

    Args:
        graph: the source's canonical graph.
        model: the onnx.ModelProto made from it.
    """
    from onnx import numpy_helper

    values = {item.name: item for item in model.graph.initializer}
    found: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type != "DequantizeLinear" or not all(name in values for name in node.input):
            continue
        tensor = graph.tensors.get(node.input[0])
        if tensor is None or tensor.data is None or tensor.quantization is None or tensor.quantization.block_size:
            continue
        data, scale, *rest = (numpy_helper.to_array(values[name]) for name in node.input)
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        centred = data.astype(np.int64) - (_along(rest[0].astype(np.int64), axis, data.ndim) if rest else 0)
        difference = _difference(tensor, centred, scale.reshape(-1).astype(np.float64))
        if difference:
            found[tensor.name] = difference
    return found


def _along(values: Array, axis: int, rank: int) -> Array:
    """Per-axis values in a shape that broadcasts over `rank` axes."""
    if values.size == 1:
        return values.reshape(())
    return values.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def _difference(tensor: Tensor, centred: Array, scale: Array) -> str:
    assert tensor.data is not None and tensor.quantization is not None
    own = tensor.quantization
    if tensor.data.shape != centred.shape:
        return ""
    wanted = tensor.data.astype(np.int64) - _along(own.zero_point.astype(np.int64), own.axis or 0, tensor.data.ndim)
    wrong = int((wanted != centred).sum())
    if wrong:
        return f"{wrong} of {wanted.size} integers of {tensor.name!r} are not the source's"
    if scale.size not in (1, own.scale.size) and own.scale.size != 1:
        return f"{tensor.name!r} has {scale.size} scales instead of {own.scale.size}"
    off = float(np.abs(scale / own.scale.astype(np.float64) - 1).max(initial=0))
    return f"a scale of {tensor.name!r} is off by {100 * off:.3g}%" if off else ""
