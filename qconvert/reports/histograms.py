"""Histograms of tensors over their quantization: of stored values, of what calibration counted, and of activations in a few runs of the
model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.calibration.observer import Histogram
from qconvert.checking.adapted_files import write_adapted_copy
from qconvert.checking.file_in_runtime import Side, model_file
from qconvert.conversion.loading import source_format
from qconvert.data import Preparation, accepted_inputs, load_inputs
from qconvert.errors import QConvertError
from qconvert.files.system import temporary_folder
from qconvert.graph import Array, Graph, Tensor, integer_range
from qconvert.plugins import runtime_of
from qconvert.tables import format_sentence

#: Bars of a picture.
_BARS = 64
#: Of larger tensors every n-th element is counted, so that about as many are.
_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Bars:
    """A histogram as a page draws it.

    Attributes:
        low, high: the outer edges of the first and the last bar: stored integers of a quantized tensor, else float values.
        counts: of each bar.
        ends: of the quantization, in the same unit; () without a quantization.
        stored: whether the unit is stored integers.
        used: how many of the quantization's integers occur; 0 where that is not counted.
    """

    low: float
    high: float
    counts: tuple[int, ...]
    ends: tuple[float, ...] = ()
    stored: bool = False
    used: int = 0


def bars_of(tensor: Tensor, values: Array) -> Bars | None:
    """The histogram of a tensor's stored values; None where there is nothing to count.

    Args:
        tensor: whose type and quantization are meant.
        values: stored ones, of any shape.
    """
    flat = np.asarray(values).reshape(-1)
    flat = flat[:: max(1, flat.size // _ELEMENTS)]
    if flat.size < 2 or flat.dtype.kind not in "iuf":
        return None
    if flat.dtype.kind == "f":
        flat = flat[np.isfinite(flat)].astype(np.float64)
        return _count_values(flat) if flat.size else None
    if tensor.quantization is None or tensor.dtype not in ("int4", "uint4", "int2", "uint2", "int8", "uint8"):
        return _count_values(flat.astype(np.float64), _storage_limits(tensor), stored=tensor.quantization is not None)
    low, high = integer_range(tensor.dtype)
    each = np.bincount(np.clip(flat.astype(np.int64), low, high) - low, minlength=high - low + 1)
    width = max(1, each.size // _BARS)
    counts = each.reshape(-1, width).sum(axis=1)
    return Bars(low - 0.5, high + 0.5, tuple(map(int, counts)), _storage_limits(tensor), True, int((each > 0).sum()))


def bars_of_histogram(histogram: Histogram, ends: tuple[float, ...]) -> Bars:
    """What calibration counted, in fewer bars; `ends` of the quantization that was chosen, as float values."""
    counts, edges = histogram.merge_bins(_BARS)
    return Bars(float(edges[0]), float(edges[-1]), tuple(map(int, counts)), ends)


def _storage_limits(tensor: Tensor) -> tuple[float, ...]:
    """Of the quantization; those of 32 bits and more are beyond any picture."""
    if tensor.quantization is None or tensor.dtype in ("int32", "int64"):
        return ()
    return tuple(map(float, tensor.quantization.limits(tensor.dtype)))


def _count_values(values: Array, ends: tuple[float, ...] = (), *, stored: bool = False) -> Bars | None:
    low, high = float(values.min()), float(values.max())
    if not np.isfinite(high - low):
        return None
    if low == high:
        return Bars(low, high, (values.size,), ends, stored)
    counts, edges = np.histogram(values, _BARS, (low, high))
    return Bars(float(edges[0]), float(edges[-1]), tuple(map(int, counts)), ends, stored)


#: Inputs that are run.
_INPUTS = 2


def activation_bars(
    path: Path, graph: Graph, data: Sequence[str | Path], options: Mapping[str, Any], format: str = ""
) -> tuple[dict[str, Bars], str]:
    """The histogram of each activation that the file's runtime gives out, by name, and in words why some or all are missing; "" else.

    Args:
        path: a model file.
        graph: its canonical graph.
        data: files and folders of inputs; random inputs without.
        options: of its reader.
        format: the name of its format; "" where the suffix says it.

    Raises:
        QConvertError: the files of inputs cannot be read, or do not fit.
    """
    given = load_inputs(graph, data, _INPUTS, Preparation().with_stretch())[0] if data else []
    try:
        form = source_format(path, format)
        runtime, kernels = runtime_of(form.name, ())
        taken = {option.name for option in form.read_options}
        file = model_file(path, form, kernels, {name: value for name, value in options.items() if name in taken})
        with temporary_folder() as folder:
            side = Side(file, form, runtime)
            copy = write_adapted_copy(side, Path(folder))
            feeds, runs = _run_inputs(side if copy is None else copy.side, graph, given)
    except QConvertError as error:
        return {}, f"Activations have no histograms: {format_sentence(error.reason)}."
    if runs is None:
        return {}, f"{runtime.title} returns no inner tensors: activations have no histograms."
    joined: dict[str, list[Array]] = {}
    for values in (*runs, *feeds):
        for name, value in values.items():
            joined.setdefault(name, []).append(np.asarray(value).reshape(-1))
    found = {name: bars_of(graph[name], np.concatenate(parts)) for name, parts in joined.items() if name in graph}
    return {name: bars for name, bars in found.items() if bars is not None}, ""


def _run_inputs(side: Side, graph: Graph, given: list[dict[str, Array]]) -> tuple[list[dict[str, Array]], list[dict[str, Array]] | None]:
    """The inputs given, or random ones, and the inner tensors in each run of them; None where the runtime gives out none."""
    inside = side.inside(graph)
    if inside is None:
        return [], None
    feeds = given or accepted_inputs(graph, _INPUTS, 0, side.open().run)[0]
    return feeds, [inside.values(feed) for feed in feeds]
