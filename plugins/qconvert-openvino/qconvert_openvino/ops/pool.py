"""Pools and resizing."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.plugin import Op
from qconvert_openvino.ops.conv import PADDINGS, auto_pad_of, split_pads
from qconvert_openvino.reading import Reading
from qconvert_openvino.writing import Writing, unsupported_error

_MODES = {"nearest": "nearest", "linear_onnx": "linear", "linear": "linear"}
_COORDINATES = {name: name for name in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")}
_NEAREST = {name: name for name in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")}


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


def _auto(op: Op) -> str:
    return next(own for own, name in PADDINGS.items() if name == op["auto_pad"])


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


READERS = {"AvgPool": read_avg_pool, "MaxPool": read_max_pool, "Interpolate": read_interpolate}
WRITERS = {
    "AveragePool": write_avg_pool,
    "MaxPool": write_max_pool,
    "GlobalAveragePool": write_global_pool,
    "GlobalMaxPool": write_global_pool,
    "Resize": write_resize,
}
