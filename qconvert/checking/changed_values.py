"""Compares the quantized constants that source and result both name: a wrong weight shows even where no input brings it out."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.graph import Array, Graph, Tensor, integer_range

__all__ = ["changed_quantization", "differing_constants"]

_INTEGERS = {"int4", "uint4", "int8", "uint8", "int16", "uint16", "int32"}


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
    wanted = tensor.data.astype(np.int64) - _along(own.zero_point.astype(np.int64), own.axis or 0, tensor.data.ndim)
    if wanted.ndim == 2 and (wanted.shape != centred.shape or np.array_equal(wanted.T, centred)):
        wanted = wanted.T  # the weights of a MatMul, as a Gemm has them
    if wanted.shape != centred.shape:
        return ""
    wrong = int((wanted != centred).sum())
    if wrong:
        return f"{wrong} of {wanted.size} integers of {tensor.name!r} are not the source's"
    return _off(tensor, scale)


def changed_quantization(graph: Graph, other: Graph) -> dict[str, str]:
    """What differs in the integers of constants, and in the scale and zero point of every quantized tensor, by the tensor's name.

    Tensors are paired by name. Storage does not count: integers are compared less their zero points, and a zero point less the
    lowest integer of its type, so that int8 may have become uint8.
    """
    found: dict[str, str] = {}
    for name, tensor in graph.tensors.items():
        pair = other.tensors.get(name)
        if pair is None or tensor.quantization is None or pair.quantization is None or tensor.quantization.block_size:
            continue
        if tensor.is_constant != pair.is_constant or not {tensor.dtype, pair.dtype} <= _INTEGERS:
            continue
        scale = pair.quantization.scale.reshape(-1).astype(np.float64)
        if pair.data is None:
            text = _moved(tensor, pair) or _off(tensor, scale)
        else:
            zero_point = _along(pair.quantization.zero_point, pair.quantization.axis or 0, pair.data.ndim)
            text = _difference(tensor, pair.data.astype(np.int64) - zero_point, scale)
        if text:
            found[name] = text
    return found


def _moved(a: Tensor, b: Tensor) -> str:
    """A zero point of an activation that is not the source's."""
    assert a.quantization is not None and b.quantization is not None
    old, new = (int(t.quantization.zero_point[0]) - integer_range(t.dtype)[0] for t in (a, b) if t.quantization is not None)
    if a.dtype == b.dtype:
        old, new = int(a.quantization.zero_point[0]), int(b.quantization.zero_point[0])
    return f"the zero point of {a.name!r} is {new} instead of {old}" if old != new else ""


def _off(tensor: Tensor, scale: Array) -> str:
    """A scale that is not the source's."""
    assert tensor.quantization is not None
    own = tensor.quantization.scale.reshape(-1)
    if scale.size not in (1, own.size) and own.size != 1:
        return f"{tensor.name!r} has {scale.size} scales instead of {own.size}"
    off = float(np.abs(scale / own.astype(np.float64) - 1).max(initial=0))
    return f"a scale of {tensor.name!r} is off by {100 * off:.3g}%" if off else ""
