"""The quantizations of matched encodings, as they fit the tensors of a graph."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import numpy as np

from qconvert.encodings import Encoding, QParams, quantization_of
from qconvert.errors import InvalidModelError
from qconvert.graph import Op, Quantization, Tensor
from qconvert.operators import output_axis

__all__ = ["fit_quantization", "orient"]

#: Whose weights may have scales in blocks without an axis. A transposed convolution is none: files differ in which channels come first.
_BLOCKED = frozenset(("Conv", "Gemm", "MatMul"))


def fit_quantization(encoding: Encoding, tensor: Tensor, reader: Op | None, index: int, dtype: str) -> QParams:
    """Return the quantization of a tensor: a range has become one, and several scales have their axis.

    Args:
        encoding: of the tensor.
        tensor: in the graph.
        reader: an operator that reads it, for the axis of weights; None if none does.
        index: which of its inputs that is.
        dtype: the type that activations get where the encoding is a range; weights get int8 around zero.

    Raises:
        InvalidModelError: scales are not as many as channels.
    """
    if encoding.qparams is not None:
        axis, count = encoding.qparams.quantization.axis, encoding.qparams.quantization.scale.size
    else:
        assert encoding.range is not None
        axis, count = encoding.range.axis, encoding.range.lowest.size
    if count == 1 and not tensor.is_constant:
        axis = None  # of one sample: kernels take activations with one scale alone
    if encoding.qparams is not None and encoding.qparams.quantization.block_size:
        q = _blocks(encoding.qparams.quantization, tensor, reader, index)
        encoding, axis, count = replace(encoding, qparams=replace(encoding.qparams, quantization=q)), q.axis, q.scale.size
    elif axis is None and count > 1:
        axis = _channels(tensor, reader, index, count)
    _require_length(encoding, tensor, axis, count)
    if encoding.qparams is not None:
        return replace(encoding.qparams, quantization=replace(encoding.qparams.quantization, axis=axis))
    assert encoding.range is not None
    on = replace(encoding.range, axis=axis)
    return quantization_of(on, "int8", symmetric=True, narrow=True) if tensor.is_constant else quantization_of(on, dtype)


def orient(encoding: Encoding, tensor: Tensor, reader: Op | None, index: int) -> Encoding:
    """Return an encoding whose integers are of the tensor's shape.

    Next to several scales without an axis they lie outputs first, as the scales do; sizes of 1 may be more or fewer, as where a runtime
    computes a matrix product or a layer of one dimension as a convolution of two.

    Raises:
        InvalidModelError: they do not fit the tensor.
    """
    integers = encoding.integers
    if integers is None or encoding.qparams is None:
        return encoding
    if tensor.data is None:
        raise InvalidModelError(
            f"has integers of shape {list(integers.shape)} in its encoding, but is computed; only constants have them",
            where=repr(tensor.name),
            rule="integers-not-constant",
        )
    shape, q = tensor.data.shape, encoding.qparams.quantization
    is_turned = q.axis is None and q.scale.size > 1 and index == 1 and reader is not None and output_axis(reader, len(shape)) != 0
    whole = tuple(size for size in integers.shape if size != 1)
    turned = integers.transpose() if is_turned and integers.ndim == len(shape) == 2 else integers
    if turned.shape != shape and not is_turned and whole == tuple(size for size in shape if size != 1):
        turned = turned.reshape(shape)
    if turned.shape != shape:
        raise InvalidModelError(
            f"has integers of shape {list(integers.shape)} in its encoding; its own shape is {list(shape)}",
            where=repr(tensor.name),
            rule="shape-mismatch",
        )
    return encoding if turned is integers else replace(encoding, integers=turned)


def _channels(tensor: Tensor, reader: Op | None, index: int, count: int) -> int:
    """The axis of scales whose file does not state it: the output channels of weights, the axis of that length of other tensors."""
    shape = tensor.shape or ()
    if reader is not None and index == 1 and tensor.is_constant:
        return output_axis(reader, len(shape))
    fitting = [axis for axis, size in enumerate(shape) if size == count]
    if len(fitting) != 1:
        _refuse(tensor, count, f"{len(fitting)} axes are as long")
    return fitting[0]


def _blocks(q: Quantization, tensor: Tensor, reader: Op | None, index: int) -> Quantization:
    """Scales in blocks as ONNX has them: of the tensor's shape but for the axis of the blocks.

    A file may say one scale for all places of a kernel, sizes of 1; or without an axis a list, channel by channel of the output, of the
    blocks along the channels of the input.
    """
    shape = tuple(size for size in tensor.shape or () if isinstance(size, int))
    axis, scale, points = q.axis, q.scale, q.zero_point
    if axis is None:
        if reader is None or index != 1 or not tensor.is_constant or reader.kind not in _BLOCKED or len(shape) < 2:
            _refuse(tensor, scale.size, f"blocks of {q.block_size} without an axis are of the weights of a Conv, Gemm or MatMul")
        out = output_axis(reader, len(shape))
        axis = 1 if out == 0 else 2 * len(shape) - 3 - out
        laid = (shape[out], -(-shape[axis] // q.block_size))
        if scale.size != laid[0] * laid[1]:
            _refuse(tensor, scale.size, f"{laid[0]} channels in {laid[1]} blocks of {q.block_size} need {laid[0] * laid[1]}")
        sizes = [size if other == out else laid[1] if other == axis else 1 for other, size in enumerate(shape)]
        scale, points = ((values.reshape(laid) if out < axis else values.reshape(laid).T).reshape(sizes) for values in (scale, points))
    if scale.ndim == len(shape) and axis < len(shape):
        whole = tuple(scale.shape[axis] if other == axis else size for other, size in enumerate(shape))
        if all(have in (1, size) for have, size in zip(scale.shape, whole, strict=True)):
            scale, points = np.broadcast_to(scale, whole), np.broadcast_to(points, whole)
    return replace(q, scale=scale, zero_point=points, axis=axis)


def _require_length(encoding: Encoding, tensor: Tensor, axis: int | None, count: int) -> None:
    """Raises InvalidModelError where scales do not fit the tensor."""
    q = encoding.qparams.quantization if encoding.qparams is not None else None
    shape = tensor.shape
    if axis is None or shape is None:
        return
    if axis >= len(shape):
        _refuse(tensor, count, f"there is no axis {axis}")
    if q is not None and q.block_size:
        blocks = tuple(-(-int(s) // q.block_size) if i == axis else s for i, s in enumerate(shape) if isinstance(s, int))
        if q.scale.shape != blocks:
            _refuse(tensor, count, f"blocks of {q.block_size} along axis {axis} need {blocks}")
    elif isinstance(shape[axis], int) and shape[axis] != count:
        _refuse(tensor, count, f"axis {axis} has {shape[axis]}")


def _refuse(tensor: Tensor, count: int, why: str) -> NoReturn:
    raise InvalidModelError(
        f"has {count} scales, which do not fit the shape {list(tensor.shape or ())}: {why}",
        where=repr(tensor.name),
        rule="blocks-do-not-fit",
    )
