"""Pools, resizing, reductions and searches."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.plugin import Op
from qconvert_openvino.ops.products import PADDINGS, auto_pad_of, split_pads
from qconvert_openvino.reading import Reading
from qconvert_openvino.writing import Writing, unsupported_error

_MODES = {"nearest": "nearest", "linear_onnx": "linear", "linear": "linear"}
_COORDINATES = {name: name for name in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")}
_NEAREST = {name: name for name in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")}

#: Canonical kind -> layer.
_REDUCTIONS = {
    **{kind: kind for kind in ("ReduceMean", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2")},
    "ReduceAll": "ReduceLogicalAnd",
    "ReduceAny": "ReduceLogicalOr",
}
_KINDS = {layer: kind for kind, layer in _REDUCTIONS.items()}


def _window(r: Reading) -> dict[str, Any]:
    auto, spatial = r.choice("auto_pad", PADDINGS, "explicit"), r.rank() - 2
    rounding = r.choice("rounding_type", {"floor": "", "ceil_torch": "ceil", "ceil": "ceil"}, "floor")
    pads = (*r.integers("pads_begin"), *r.integers("pads_end")) if auto == "NOTSET" else (0,) * 2 * spatial
    found: dict[str, Any] = {"kernel_shape": tuple(r.integers("kernel")), "strides": tuple(r.integers("strides")), "pads": pads,
                             "data_format": "channels_first"}  # fmt: skip
    if auto != "NOTSET":
        found["auto_pad"] = auto
    if rounding:
        found["ceil_mode"] = 1
    return found


def read_avg_pool(r: Reading) -> None:
    include = {} if r.flag("exclude-pad", r.flag("exclude_pad")) else {"count_include_pad": 1}
    window = _window(r)
    r.emit("AveragePool", [r.value(0)], **window, **(include if any(window["pads"]) or "auto_pad" in window else {}))


def write_avg_pool(op: Op, w: Writing) -> None:
    begin, end = split_pads(op)
    if op["ceil_mode"] and op["count_include_pad"] and any((*begin, *end)):
        raise unsupported_error(op, "whose last windows hang over padding that counts, which OpenVINO divides by more elements,")
    exclude, rounding = not op["count_include_pad"], _rounding(op)
    kernel, strides = list(op["kernel_shape"]), list(op["strides"])
    from openvino import opset14  # its ceil_torch is ONNX's ceil_mode

    w.finish(op, opset14.avg_pool(w.value(op.inputs[0]), strides, begin, end, kernel, exclude, rounding, auto_pad_of(op)))


def read_max_pool(r: Reading) -> None:
    """MaxPool, without the second result of opset8, the indices."""
    ports = [*r.node.ports]
    if any(r.draft.readers.get((r.node.id, port)) for port in ports[1:]):
        raise r.unsupported_error("with indices")
    for port in ports[1:]:
        del r.node.ports[port]
    dilations = r.integers("dilations", "")
    r.emit("MaxPool", [r.value(0)], **_window(r), **({"dilations": tuple(dilations)} if max(dilations, default=1) > 1 else {}))


def write_max_pool(op: Op, w: Writing) -> None:
    begin, end = split_pads(op)
    kernel, strides = list(op["kernel_shape"]), list(op["strides"])
    dilations, rounding = list(op["dilations"] or [1] * len(kernel)), _rounding(op)
    from openvino import opset14

    found = opset14.max_pool(w.value(op.inputs[0]), strides, dilations, begin, end, kernel, rounding, auto_pad_of(op))
    w.finish(op, found.output(0))


def write_global_pool(op: Op, w: Writing) -> None:
    """A mean, or the maximum, over the spatial axes."""
    data = w.value(op.inputs[0])
    axes = w.numbers(range(2, data.get_partial_shape().rank.get_length()))
    make = w.op.reduce_mean if op.kind == "GlobalAveragePool" else w.op.reduce_max
    w.finish(op, make(data, axes, True))


def _rounding(op: Op) -> str:
    return "ceil_torch" if op["ceil_mode"] else "floor"


def read_interpolate(r: Reading) -> None:
    """Interpolate over the spatial axes, to static sizes."""
    rank, shape = r.rank(), r.result.shape
    axes = r.axes(r.count - 1, rank) if r.count > (2 if r.node.opset == "opset11" else 3) else [*range(rank)]
    sizes = shape[2:]
    kept = r.port(0).shape[:2] == shape[:2]
    if -1 in sizes or not kept or rank < 3 or any(axis < 2 and shape[axis] != r.port(0).shape[axis] for axis in axes):
        raise r.unsupported_error("to sizes that are computed when the model runs, or along batch or channels", rule="not-constant")
    if r.text("shape_calculation_mode") == "scales":  # OpenVINO samples by these factors, not by those of the sizes
        factors = r.data(1 if r.node.opset == "opset11" else 2)
        before = [r.port(0).shape[axis] for axis in axes]
        if factors is None or (np.ravel(factors) * before != [shape[axis] for axis in axes]).any():
            raise r.unsupported_error("by factors that are not those of its sizes")
    if any(r.integers("pads_begin", "0")) or any(r.integers("pads_end", "0")) or r.flag("antialias"):
        raise r.unsupported_error("with padding or antialias")
    mode, nearest = r.choice("mode", _MODES), r.choice("nearest_mode", _NEAREST, "round_prefer_floor")
    coordinates = r.choice("coordinate_transformation_mode", _COORDINATES, "half_pixel")
    extra = {"nearest_mode": nearest} if mode == "nearest" else {}
    r.emit("Resize", [r.value(0), r.index(sizes)], data_format="channels_first", mode=mode,
           coordinate_transformation_mode=coordinates, **extra)  # fmt: skip


def write_resize(op: Op, w: Writing) -> None:
    """Interpolate to the sizes of the spatial axes."""
    mode = {"nearest": "nearest", "linear": "linear_onnx"}.get(op["mode"], "")
    coordinates = op["coordinate_transformation_mode"]
    if not mode or coordinates not in _COORDINATES:
        raise unsupported_error(op, f"with mode {op['mode']!r} and {coordinates!r}")
    data = w.value(op.inputs[0])
    axes = w.numbers(range(2, data.get_partial_shape().rank.get_length()))
    from openvino import opset11

    found = opset11.interpolate(
        data, w.value(op.inputs[1]), mode, "sizes", axes=axes, coordinate_transformation_mode=coordinates,
        nearest_mode=op["nearest_mode"],
    )  # fmt: skip
    w.finish(op, found)


def read_reduction(r: Reading) -> None:
    """A reduction; over no axes OpenVINO copies the data."""
    axes = r.axes(1, r.rank())
    if not axes:
        r.emit("Identity", [r.value(0)])
        return
    r.emit(_KINDS[r.node.type], [r.value(0), r.index(axes)], **({} if r.flag("keep_dims") else {"keepdims": 0}))


def write_reduction(op: Op, w: Writing) -> None:
    """A reduction; no axes at all, which mean all of them, are written as these."""
    data, axes = w.inputs(op)
    if w.graph[op.inputs[1]].static_shape == (0,):
        axes = w.numbers(range(data.get_partial_shape().rank.get_length()))
    w.finish(op, w.create(_REDUCTIONS[op.kind], data, axes, bool(op["keepdims"])))


def read_topk(r: Reading) -> None:
    """TopK: values, and their indices."""
    largest = r.choice("mode", {"max": "1", "min": "0"})
    order = r.choice("sort", {"value": "1", "none": "0"}, "none")
    r.emit("TopK", [r.value(0), r.index([r.single(1, "a count")])], axis=r.integer("axis"), largest=int(largest), sorted=int(order))


def write_topk(op: Op, w: Writing) -> None:
    """TopK, sorted in either case: OpenVINO's `stable`, by which the first of equal values wins, requires it."""
    count, mode = w.integers_of(op, 1, "counts")[0], "max" if op["largest"] else "min"
    found = w.op.topk(w.value(op.inputs[0]), w.op.constant(count), int(op["axis"]), mode, "value", _index_type(op, w, 1), True)
    w.finish(op, found.output(0), found.output(1))


def write_arg(op: Op, w: Writing) -> None:
    """ArgMax and ArgMin: the index of a TopK of one; of equal values the first wins, as `stable` says."""
    data, axis = w.value(op.inputs[0]), int(op["axis"])
    mode = "max" if op.kind == "ArgMax" else "min"
    found = w.op.topk(data, w.op.constant(1), axis, mode, "value", _index_type(op, w, 0), True).output(1)
    w.finish(op, found if op["keepdims"] else w.op.squeeze(found, w.numbers([axis])))


def _index_type(op: Op, w: Writing, output: int) -> str:
    named = op.outputs[output] if output < len(op.outputs) else ""
    return "i32" if named and w.graph[named].dtype == "int32" else "i64"


def read_cum_sum(r: Reading) -> None:
    flags = {name: 1 for name in ("exclusive", "reverse") if r.flag(name)}
    r.emit("CumSum", [r.value(0)], axis=r.single(1, "an axis"), **flags)


def write_cum_sum(op: Op, w: Writing) -> None:
    w.finish(op, w.op.cum_sum(w.value(op.inputs[0]), w.op.constant(np.int64(op["axis"])), bool(op["exclusive"]), bool(op["reverse"])))


READERS = {
    "AvgPool": read_avg_pool,
    "MaxPool": read_max_pool,
    "Interpolate": read_interpolate,
    **dict.fromkeys(_KINDS, read_reduction),
    "TopK": read_topk,
    "CumSum": read_cum_sum,
}
WRITERS = {
    "AveragePool": write_avg_pool,
    "MaxPool": write_max_pool,
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), write_global_pool),
    "Resize": write_resize,
    **dict.fromkeys(_REDUCTIONS, write_reduction),
    "TopK": write_topk,
    **dict.fromkeys(("ArgMax", "ArgMin"), write_arg),
    "CumSum": write_cum_sum,
}
