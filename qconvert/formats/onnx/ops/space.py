"""Resizing, data movement between space, depth and batch, regions of images, and suppression of boxes that overlap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.ops.quantize import dequantize_with_scale
from qconvert.formats.onnx.ops.same_named import write_stored
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.formats.onnx.values import axes, place_of
from qconvert.graph import Array, Graph, Op, Quantization, Shape, integer_range
from qconvert.kernels.litert.forms import TIES_UP
from qconvert.operators.space import positions
from qconvert.rewriting.lowering import Scope, conditions, since

#: Sizes and factors from here on are none.
_FAR = 2.0**40


def read_resize(r: Reading) -> None:
    """Resize of spatial dimensions to known sizes, or by factors that give whole sizes; the rest stays as it is."""
    if r.version < 11:
        read_upsample(r)
        return
    mode = r.attribute("mode", "nearest")
    coordinates, nearest = r.attribute("coordinate_transformation_mode", "half_pixel"), r.attribute("nearest_mode", "round_prefer_floor")
    r.require_only(antialias=0, exclude_outside=0, keep_aspect_ratio_policy="stretch", axes=None, cubic_coeff_a=-0.75)
    if coordinates not in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"):
        raise NotCoveredError(f"coordinates {coordinates}")
    _emit_resize(r, r.constant(2), r.constant(3), mode, coordinates, nearest)


def read_upsample(r: Reading) -> None:
    """Upsample, and the Resize of opset 10: coordinates are multiplied, and rounded down where sizes grow."""
    scales = r.constant(1) if r.version >= 9 else np.array(r.attribute("scales", ()), np.float32)
    if scales is None or (scales < 1).any():
        raise NotCoveredError("factors below 1")
    mode = "linear" if r.attribute("mode", "nearest") in ("linear", "bilinear") else r.attribute("mode", "nearest")
    _emit_resize(r, scales, None, mode, "asymmetric", "floor")


def _emit_resize(r: Reading, scales: Array | None, sizes: Array | None, mode: str, coordinates: str, nearest: str) -> None:
    shape = r.tensor(0).shape
    if shape is None or len(shape) != 4 or mode not in ("nearest", "linear"):
        raise NotCoveredError(f"data of shape {shape} and mode {mode}")
    spatial, target, result, layout = shape[2:], "", [0], "channels_first"
    if sizes is not None and sizes.size:
        wanted = [int(size) for size in sizes.reshape(-1)]
        layout = _resized_layout(shape, wanted)
        result = wanted[2:] if layout == "channels_first" else wanted[1:-1]
    elif scales is not None and scales.size == len(shape) and all(isinstance(size, int) for size in spatial):
        products = [int(size) * float(scale) for size, scale in zip(spatial, scales.reshape(-1)[2:], strict=True)]
        result = [int(value) if abs(value) < _FAR else 0 for value in products]
        if (scales.reshape(-1)[:2] != 1).any() or result != products or 0 in result:
            raise NotCoveredError(f"factors {scales.reshape(-1).tolist()} for shape {shape}")
    else:
        target = _computed_sizes(r, shape, scales)
    target = target or r.list64(result, "sizes")
    attributes: dict[str, Any] = {"nearest_mode": nearest} if mode == "nearest" else {}
    r.emit("Resize", [r.input(0), target], mode=mode, coordinate_transformation_mode=coordinates, data_format=layout, **attributes)


def _resized_layout(shape: Shape, sizes: list[int]) -> str:
    """The layout of data that get these sizes: those of batch and channels stay."""
    for layout, fixed in (("channels_first", (0, 1)), ("channels_last", (0, 3))):
        if len(sizes) == len(shape) and all(not isinstance(shape[axis], int) or shape[axis] == sizes[axis] for axis in fixed):
            return layout
    raise NotCoveredError(f"sizes {sizes} for shape {shape}")


def _computed_sizes(r: Reading, shape: Shape, scales: Array | None) -> str:
    """Spatial sizes that are computed at run time: a part of those that are given, or the data's times whole factors."""
    count = len(shape) - 2
    if scales is not None and scales.size == len(shape):
        factors = [float(scale) for scale in scales.reshape(-1)]
        if factors[:2] != [1, 1] or any(not 1 <= factor < _FAR or not factor.is_integer() for factor in factors):
            raise NotCoveredError(f"factors {factors} for shape {shape}")
        whole = r.emit_inner("Shape", [r.input(0)], "shape", "int64", integers=True)
        own = _after_channels(r, whole, count)
        by = r.list64(map(int, factors[2:]), "factors")
        return r.emit_inner("Mul", [own, by], "sizes")
    sizes, forms = r.draft.known.sizes, r.draft.known.sizes.get(r.inputs[3]) if r.has(3) else None
    if forms is None or len(forms) != len(shape) or list(forms[:2]) != [sizes.size(size) for size in shape[:2]]:
        raise NotCoveredError("sizes or factors that are computed at run time")
    return _after_channels(r, r.input(3), count)


def _after_channels(r: Reading, sizes: str, count: int) -> str:
    """The sizes after batch and channels."""
    bounds = [r.list64([value], "bound") for value in (2, 2 + count, 0)]
    return r.emit_inner("Slice", [sizes, *bounds], "spatial", "int64")


def read_depth_to_space(r: Reading) -> None:
    """DepthToSpace; its attribute mode is new in opset 11."""
    attributes: dict[str, Any] = {"mode": "CRD"} if r.attribute("mode", "DCR") == "CRD" else {}
    r.emit("DepthToSpace", blocksize=r.attribute("blocksize"), data_format="channels_first", **attributes)


def write_resize(op: Op, b: Builder) -> None:
    """Resize in either layout (kernels/onnxruntime.py says when the channels stand last): of float values if it interpolates, of stored
    integers if it takes the nearest."""
    name, data, result = op.outputs[0], b.operand(op), b.result(op)
    sizes = _resize_sizes(op, b)
    coordinates, nearest = op["coordinate_transformation_mode"], op["nearest_mode"]
    if _is_doubling(op, b.graph):
        coordinates, nearest = "asymmetric", "floor"
        b.note_decomposed(op)
    attributes = {
        "mode": op["mode"],
        "coordinate_transformation_mode": coordinates,
        "nearest_mode": nearest if op["mode"] == "nearest" else None,
    }
    if op["arithmetic"] == "ties_up" and data.quantization is not None and data.shares_quantization(result):
        _write_with_ties_up(op, b, data.quantization, sizes)
        return
    moves = op["mode"] == "nearest" and data.shares_quantization(result) and data.dtype in ("uint8", "int8", "float32")
    value = b.stored_value(data.name) if moves else b.float_value(data.name)
    resized = b.node("Resize", [value, "", "", sizes], hint=f"{name}/real_result", **attributes)[0]
    if moves:
        b.rename(resized, name)
    else:
        b.finish(op, resized)


def _write_with_ties_up(op: Op, b: Builder, quantization: Quantization, sizes: str) -> None:
    """A linear Resize of bytes whose ties go up: no value is below zero where the zero point is the lowest integer, and all are larger by a
    share that takes ties up and crosses no other value (kernels/litert/forms.py)."""
    data, name = b.operand(op), op.outputs[0]
    low = integer_range(data.dtype)[0]
    value = dequantize_with_scale(b, data, quantization.step * (1 + TIES_UP), low)
    whole = replace(data, quantization=Quantization.per_tensor(quantization.step, low))
    stored = b.name(f"{name}/whole")
    if count := _lines_of_a_row(op, b):
        b.quantize(_interpolate_by_products(op, b, value, count), whole, stored)
        shape = b.result(op).static_shape or ()
        lines = b.node("Reshape", [stored, b.const(axes(1, -1, *shape[2:]), f"{name}/lines")])[0]
        bounds = [b.const(axes(bound), f"{name}/{word}") for word, bound in (("starts", 0), ("ends", shape[1]), ("axes", 1))]
        stored = b.node("Slice", [lines, *bounds])[0]
    else:
        attributes = {"mode": "linear", "coordinate_transformation_mode": op["coordinate_transformation_mode"]}
        b.quantize(b.node("Resize", [value, "", "", sizes], hint=f"{name}/real_result", **attributes)[0], whole, stored)
    b.cast(stored, data.dtype, name)


#: Lines between two rows from which on products of matrices are faster, and columns of the data up to which they are.
_LEAST_LINES, _MOST_COLUMNS = 4, 48


def _lines_of_a_row(op: Op, b: Builder) -> int:
    """How many lines of the result belong to each row of the data where products of matrices are faster than onnxruntime's Resize, else 0.

    Corners are aligned then and the channels last (docs/measured/forms.md).
    """
    data, result = b.operand(op).static_shape, b.result(op).static_shape
    if op["coordinate_transformation_mode"] != "align_corners" or op["data_format"] != "channels_last" or not data or not result:
        return 0
    if len(data) != 4 or data[0] != 1 or data[1] < 2 or data[2] < 2 or (result[1] - 1) % (data[1] - 1):
        return 0
    count = (result[1] - 1) // (data[1] - 1)
    return count if count >= _LEAST_LINES and data[2] <= _MOST_COLUMNS else 0


def _interpolate_by_products(op: Op, b: Builder, value: str, count: int) -> str:
    """Float values of a linear Resize: a product for the columns of each row, and one for the `count` lines from each row to the next.

    Sums have one or two terms that are not 0, so that they are Resize's. The shape is rows, lines of a row, columns * channels; the last
    row has lines beyond the result.
    """
    name, (_, rows, width, _), (_, _, columns, channels) = op.outputs[0], b.operand(op).static_shape or (), b.result(op).static_shape or ()
    numerators, denominator = positions("align_corners", width, columns)
    near, far = numerators // denominator, np.minimum(numerators // denominator + 1, width - 1)
    share = (numerators % denominator / denominator).astype(np.float32)
    shares = np.zeros((columns, width), np.float32)
    shares[np.arange(columns), far] = share
    shares[np.arange(columns), near] += 1 - share
    across = b.node("MatMul", [b.const(shares, f"{name}/columns"), value])[0]
    whole_rows = b.node("Reshape", [across, b.const(axes(rows, columns * channels), f"{name}/rows")])[0]
    neighbours = np.stack([np.arange(rows), np.minimum(np.arange(rows) + 1, rows - 1)], 1)
    pairs = b.node("Gather", [whole_rows, b.const(neighbours, f"{name}/neighbours")], axis=0)[0]
    part = (np.arange(count) / count).astype(np.float32)
    return b.node("MatMul", [b.const(np.stack([1 - part, part], 1), f"{name}/shares"), pairs], hint=f"{name}/real_result")[0]


def _is_doubling(op: Op, graph: Graph) -> bool:
    """Whether a nearest Resize repeats each row and column once, by coordinates for which onnxruntime has no kernel of its own.

    Half pixels choose the same: (i + 0.5) / 2 - 0.5 lies a quarter from i // 2. Its kernel for doubled data takes asymmetric ones that are
    rounded down, and is 14 times as fast (docs/measured/forms.md). What an ONNX file states stays.
    """
    if op["mode"] != "nearest" or op["data_format"] != "channels_first" or graph.is_from("onnx"):
        return False
    data, sizes = graph[op.inputs[0]].shape, graph.constant(op.inputs[1])
    if op["coordinate_transformation_mode"] != "half_pixel" or op["nearest_mode"] not in ("round_prefer_floor", "round_prefer_ceil"):
        return False
    if data is None or len(data) != 4 or sizes is None or not all(isinstance(size, int) for size in data):
        return False
    return sizes.reshape(-1).tolist() == [2 * int(size) for size in data[2:]]


def _resize_sizes(op: Op, b: Builder) -> str:
    """All four sizes of a Resize's result: a constant if they are known, else batch and channels of the data around input 1."""
    at, shape, spatial = place_of(op, b), b.operand(op).shape or (), b.graph.constant(op.inputs[1])
    before, after = (slice(0, 2), None) if op["data_format"] == "channels_first" else (slice(0, 1), slice(3, 4))
    sides = [side for side in (before, after) if side is not None]
    known = all(isinstance(size, int) for side in sides for size in shape[side])
    if known and spatial is not None:
        front, back = ([] if side is None else shape[side] for side in (before, after))
        return b.const(np.array([*front, *spatial.reshape(-1), *back], np.int64), f"{at.hint}/sizes")
    whole = None if known else at.stored(op.inputs[0]).then("Shape", dtype="int64")
    parts = [
        at.constant(np.array(shape[side], np.int64)) if whole is None else whole.then("Slice", axes(side.start), axes(side.stop))
        for side in sides
    ]
    return at.node("Concat", parts[0], at.stored(op.inputs[1]), *parts[1:], axis=0).name


def _takes_floats(op: Op, scope: Scope) -> str:
    """onnxruntime's own operators take floats, of late bytes too; of bytes these are written where height or width are dynamic."""
    data = scope.tensors[op.inputs[0]]
    is_open = data.shape is not None and len(data.shape) == 4 and not all(isinstance(size, int) for size in data.shape[1:])
    return "" if data.dtype == "float32" or (is_open and data.dtype in ("int8", "uint8")) else f"has no {op.kind} of {data.dtype}"


def read_roi_align(r: Reading) -> None:
    """RoiAlign of means of a number of points that is stated."""
    each, mode = r.attribute("sampling_ratio", 0), r.attribute("mode", "avg")
    if mode != "avg" or each < 1:
        raise NotCoveredError("the largest of points" if mode != "avg" else "a number of points that goes by each region")
    where = r.attribute("coordinate_transformation_mode", "half_pixel" if r.version >= 16 else "output_half_pixel")
    r.emit("RoiAlign", **r.own_attributes() | {"coordinate_transformation_mode": where})


@conditions(lambda op, scope: since(16 if op["coordinate_transformation_mode"] == "half_pixel" else 10)(op, scope))
def write_roi_align(op: Op, b: Builder) -> None:
    """RoiAlign, which knew half pixels of the output alone before opset 16."""
    inputs = [*(b.float_value(name) for name in op.inputs[:2]), b.int64(op.inputs[2])]
    b.finish(op, b.node("RoiAlign", inputs, mode="avg", **b.own_attributes(op))[0])


def read_suppression(r: Reading) -> None:
    """NonMaxSuppression."""
    operands = [r.input(0), r.input(1), *(r.fold_input(index) if r.has(index) else "" for index in range(2, len(r.inputs)))]
    r.emit("NonMaxSuppression", operands, **r.own_attributes())


def write_suppression(op: Op, b: Builder) -> None:
    """NonMaxSuppression, whose number and thresholds are lists of one."""
    one = b.const(axes(1), f"{op.outputs[0]}/one")
    operands = [b.stored_value(name) for name in op.inputs]
    for position, name in enumerate(op.inputs[2:], 2):
        if name and b.tensor(name).rank == 0:
            operands[position] = b.node("Reshape", [operands[position], one])[0]
    b.node("NonMaxSuppression", operands, op.outputs, center_point_box=op["center_point_box"] or None)


READERS: Readers = {
    "Resize": read_resize,
    "Upsample": read_upsample,
    "DepthToSpace": read_depth_to_space,
    "RoiAlign": read_roi_align,
    "NonMaxSuppression": read_suppression,
}

WRITERS: Writers = {
    "Resize": write_resize,
    **dict.fromkeys(("SpaceToDepth", "DepthToSpace"), conditions(_takes_floats)(write_stored)),
    "RoiAlign": write_roi_align,
    "NonMaxSuppression": write_suppression,
}
