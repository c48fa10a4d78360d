"""QLinearAveragePool, QLinearGlobalAveragePool and QLinearReduceMean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.ops.pool import may_tie
from qconvert.formats.onnx.qoperator.forms import CONTRIB, WriteForm, read_form, write_one_type
from qconvert.formats.onnx.reading import ReadFunction, Reading
from qconvert.graph import Op

__all__ = ["READERS", "WRITERS"]


def read_average_pool(r: Reading) -> None:
    """QLinearAveragePool."""
    r.require_only(channels_last=0)
    kernel = r.attribute("kernel_shape")
    if kernel is None:
        raise r.invalid("kernel_shape is absent", rule="attribute-missing")
    auto, none = r.attribute("auto_pad", "NOTSET"), (0,) * 2 * len(kernel)
    window: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": r.attribute("strides", (1,) * len(kernel)),
        "pads": r.attribute("pads", none) if auto == "NOTSET" else none,
        "auto_pad": auto,
        "ceil_mode": int(r.attribute("ceil_mode", 0)),
        "count_include_pad": int(r.attribute("count_include_pad", 0)),
    }
    read_form(r, "AveragePool", (0,), 3, data_format="channels_first", **window)


def write_average_pool(op: Op, b: Builder) -> str:
    """AveragePool, where no average can be a tie that its source rounds in another way than the kernel."""
    if may_tie(op, b):
        return f"QLinearAveragePool rounds ties to even, not {op['arithmetic'].removeprefix('ties_')}"
    auto = op["auto_pad"]
    attributes: dict[str, Any] = {
        "kernel_shape": list(op["kernel_shape"]),
        "strides": list(op["strides"]),
        "pads": list(op["pads"]) if auto == "NOTSET" else None,
        "auto_pad": None if auto == "NOTSET" else auto,
        "ceil_mode": int(op["ceil_mode"]),
        "count_include_pad": int(op["count_include_pad"]),
    }
    return write_one_type(op, b, "QLinearAveragePool", **attributes)


def read_global_average_pool(r: Reading) -> None:
    """QLinearGlobalAveragePool."""
    r.require_only(channels_last=0)
    read_form(r, "GlobalAveragePool", (0,), 3, data_format="channels_first")


def write_global_average_pool(op: Op, b: Builder) -> str:
    """GlobalAveragePool."""
    return write_one_type(op, b, "QLinearGlobalAveragePool", channels_last=0)


def read_reduce_mean(r: Reading) -> None:
    """QLinearReduceMean: axes are an attribute."""
    axes = r.const(np.array(r.attribute("axes", ()), np.int64), "axes")
    read_form(r, "ReduceMean", (0,), 3, trailing=[axes], keepdims=int(r.attribute("keepdims", 1)))


def write_reduce_mean(op: Op, b: Builder) -> str:
    """ReduceMean: no runtime has a kernel of QLinearReduceMean, which is a schema alone (onnxruntime 1.31)."""
    return "onnxruntime has no kernel of QLinearReduceMean"


WRITERS: Mapping[str, WriteForm] = {
    "AveragePool": write_average_pool,
    "GlobalAveragePool": write_global_average_pool,
    "ReduceMean": write_reduce_mean,
}

READERS: Mapping[str, ReadFunction] = {
    f"{CONTRIB}.QLinearAveragePool": read_average_pool,
    f"{CONTRIB}.QLinearGlobalAveragePool": read_global_average_pool,
    f"{CONTRIB}.QLinearReduceMean": read_reduce_mean,
}
