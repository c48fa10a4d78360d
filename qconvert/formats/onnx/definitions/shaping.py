"""Definitions of operators that move, choose or make values."""

from __future__ import annotations

import math

import numpy as np

from qconvert.formats.onnx.definitions.decomposition import Decomposition, Definition, Definitions, NoDefinitionError
from qconvert.graph import numpy_dtype


def _size(s: Decomposition) -> None:
    """The number of elements."""
    shape = s.tensor().static_shape
    if shape is not None:
        s.end(s("Identity", np.array(math.prod(shape), np.int64)))
    else:
        s.end(s("ReduceProd", s("Shape", s.x), keepdims=0))


def _eye_like(s: Decomposition) -> None:
    """Ones on a diagonal; of sizes that are dynamic, where the columns' indices are those of rows + k."""
    from onnx import helper

    if s.rank() != 2:
        raise NoDefinitionError("no matrix")
    element, shape, k = s.attribute("dtype"), s.tensor().static_shape, int(s.attribute("k", 0))
    if shape is not None:
        s.require_small(*shape)
        dtype = numpy_dtype(s.tensor().dtype) if element is None else helper.tensor_dtype_to_np_dtype(int(element))
        s.end(s("Identity", np.eye(shape[0], shape[1], k, dtype)))
        return
    sizes = s("Shape", s.x)
    first, step = (s.const(np.array(value, np.int64)) for value in (0, 1))
    rows, columns = (s("Range", first, s("Gather", sizes, np.array(axis, np.int64)), step) for axis in (0, 1))
    edge = s("Add", s("Unsqueeze", rows, [1]), [k]) if k else s("Unsqueeze", rows, [1])
    s.end(s("Cast", s("Equal", columns, edge), to=s.element() if element is None else int(element)))


def _dropout(s: Decomposition) -> None:
    """Dropout where nothing is trained: the data, and a mask that is true everywhere."""
    if s.input(2) and bool(s.known(2).reshape(-1)[0]):
        raise NoDefinitionError("training")
    s.end(s("Identity", s.x))
    if len(s.op.outputs) > 1 and s.op.outputs[1]:
        s.end(s("Identity", np.ones(s.shape(), bool)), 1)


def _compress(s: Decomposition) -> None:
    """The slices along an axis, or the elements, at which a condition holds."""
    axis = s.attribute("axis")
    data = s.x if axis is not None else s("Reshape", s.x, [-1])
    condition = s.constant(1)
    if condition is not None:
        indices = s.ints(*(int(index) for index in np.flatnonzero(condition)))
    else:
        indices = s("Reshape", s("NonZero", s.input(1)), [-1])
    s.end(s("Gather", data, indices, axis=0 if axis is None else int(axis)))


def _max_unpool(s: Decomposition) -> None:
    """Values put at the places in the flat result that their indices say, among zeros."""
    shape = s.shape()
    if s.input(2):
        sizes = [int(size) for size in s.known(2).reshape(-1)]
    else:
        kernel = s.attribute("kernel_shape")
        count = len(kernel)
        strides, pads = s.attribute("strides", [1] * count), s.attribute("pads", [0] * 2 * count)
        space = ((shape[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[count + i] for i in range(count))
        sizes = [*shape[:2], *space]
    zeros = np.zeros(math.prod(sizes), numpy_dtype(s.tensor().dtype))
    indices = s("Reshape", s.input(1), [-1, 1])
    flat = s("ScatterND", zeros, indices, s("Reshape", s.x, [-1]))
    s.end(s("Reshape", flat, sizes))


def _affine_grid(s: Decomposition) -> None:
    """The positions of a result's elements in the data, between -1 and 1, moved by one affine map for each batch."""
    sizes = [int(size) for size in s.known(1).reshape(-1)]
    space, align = sizes[2:], bool(s.attribute("align_corners", 0))
    s.require_small(*space)
    lines = [np.linspace(-1, 1, size) if align and size > 1 else (2 * np.arange(size) + 1) / size - 1 for size in space]
    lines = [np.zeros(1) if align and line.size == 1 else line for line in lines]
    grids = np.meshgrid(*lines, indexing="ij")[::-1]
    points = np.stack([*grids, np.ones(space)], axis=-1).reshape(1, -1, len(space) + 1)
    moved = s("MatMul", points.astype(numpy_dtype(s.tensor().dtype)), s("Transpose", s.x, perm=[0, 2, 1]))
    s.end(s("Reshape", moved, [sizes[0], *space, len(space)]))


def _group_normalization(s: Decomposition) -> None:
    """GroupNormalization of opset 18, whose scales and biases are those of groups: repeated for their channels."""
    groups, channels = int(s.attribute("num_groups", 0)), s.shape()[1]
    if s.version >= 21 or s.attribute("stash_type", 1) != 1 or groups < 1 or channels % groups:
        raise NoDefinitionError("scales of channels")
    which = s.ints(*(channel // (channels // groups) for channel in range(channels)))
    factors = [s("Gather", s.input(index), which, axis=0) for index in (1, 2)]
    s.end(s("GroupNormalization", s.x, *factors, num_groups=groups, epsilon=float(s.attribute("epsilon", 1e-5))))


def _skip_layer_normalization(s: Decomposition) -> None:
    """onnxruntime's SkipLayerNormalization and its form without a mean: of x + skip + bias, which may be given out too."""
    if any(s.op.outputs[1:3]):
        raise NoDefinitionError("statistics as outputs")
    simple = s.op["op_type"] == "SkipSimplifiedLayerNormalization"
    bias = s.input(3 if simple else 4)
    total = s("Add", s.x, s.input(1))
    total = s("Add", total, bias) if bias else total
    kind = "RMSNormalization" if simple else "LayerNormalization"
    value = s(kind, total, s.input(2), "" if simple else s.input(3), axis=-1, epsilon=float(s.attribute("epsilon", 1e-12)))
    if len(s.op.outputs) > 3 and s.op.outputs[3]:
        s.end(total, 3)
    s.end(value)


def _early_layer_normalization(s: Decomposition) -> None:
    """LayerNormalization as onnxruntime had it before opset 17, and SimplifiedLayerNormalization, which has no mean."""
    simple = s.op["op_type"] == "SimplifiedLayerNormalization"
    if any(s.op.outputs[1:]) or (s.version >= 17 and not simple and not s.op["domain"]):
        raise NoDefinitionError("statistics as outputs")
    kind = "RMSNormalization" if simple else "LayerNormalization"
    s.end(
        s(
            kind,
            s.x,
            s.input(1),
            "" if simple else s.input(2),
            axis=int(s.attribute("axis", -1)),
            epsilon=float(s.attribute("epsilon", 1e-5)),
        )
    )


def _expand_dims(s: Decomposition) -> None:
    """onnxruntime's ExpandDims: an Unsqueeze at one axis."""
    s.end(s("Unsqueeze", s.x, [int(s.known(1).reshape(-1)[0])]))


def _early(kind: str, *names: str) -> Definition:
    """An operator that onnxruntime had before ONNX took it over as it is, with those attributes."""

    def define(s: Decomposition) -> None:
        s.end(s(kind, *(s.input(index) for index in range(len(s.op.inputs))), **s.attributes(*names)))

    return define


DEFINITIONS: Definitions = {
    "com.microsoft.Trilu": _early("Trilu", "upper"),
    "com.microsoft.GatherND": _early("GatherND"),
    "com.microsoft.Pad": _early("Pad", "mode"),
    "com.microsoft.ExpandDims": _expand_dims,
    "Size": _size,
    "EyeLike": _eye_like,
    "Compress": _compress,
    "Dropout": _dropout,
    "MaxUnpool": _max_unpool,
    "AffineGrid": _affine_grid,
    "GroupNormalization": _group_normalization,
    "LayerNormalization": _early_layer_normalization,
    "SimplifiedLayerNormalization": _early_layer_normalization,
    "com.microsoft.SkipLayerNormalization": _skip_layer_normalization,
    "com.microsoft.SkipSimplifiedLayerNormalization": _skip_layer_normalization,
}
