"""Inputs and outputs of two models beside each other: the same values for both, and how far what they give differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np

from qconvert.checking.findings import OutputComparison
from qconvert.errors import OptionError
from qconvert.graph import Array, Graph, Tensor
from qconvert.plugins import LoadedModel

__all__ = ["compared", "matched_inputs", "matched_outputs"]

_TO_FIRST = (0, 3, 1, 2)


def matched_inputs(graph: Graph, feed: Mapping[str, Array], runtime: LoadedModel) -> dict[str, Array]:
    """The same values for the result: inputs by name or else by position, quantized ones as float if it takes float."""
    names = list(runtime.inputs)
    by_name = set(names) == set(feed)
    if len(names) != len(feed):
        raise OptionError(f"the source has {len(feed)} inputs, the result {len(names)}")
    matched = {}
    for position, (name, value) in enumerate(feed.items()):
        other = name if by_name else names[position]
        dtype, shape = runtime.inputs[other]
        tensor = graph[name]
        if dtype == "float32" and tensor.quantization is not None:
            value = ((value.astype(np.float64) - tensor.quantization.zero_point[0]) * tensor.quantization.scale[0]).astype(np.float32)
        matched[other] = _in_layout(value, shape)
    return matched


def _in_layout(value: Array, shape: tuple[Any, ...]) -> Array:
    """`value`, transposed to channels first if only that fits `shape`."""
    if value.ndim == 4 == len(shape) and not _fits(value.shape, shape) and _fits(value.transpose(_TO_FIRST).shape, shape):
        return value.transpose(_TO_FIRST)
    return value


def _fits(actual: tuple[int, ...], wanted: tuple[Any, ...]) -> bool:
    return all(not isinstance(size, int) or size in (0, own) for own, size in zip(actual, wanted, strict=True))


def matched_outputs(graph: Graph, expected: Mapping[str, Array], actual: Mapping[str, Array]) -> list[tuple[str, Array, Array]]:
    """(canonical name, source's values, result's values in the source's layout and as its integers where it can)."""
    if len(expected) != len(actual):
        raise OptionError(f"the source has {len(expected)} outputs, the result {len(actual)}")
    found = []
    for position, name in enumerate(graph.outputs):
        a = list(expected.values())[position]
        b = actual[name] if name in actual else list(actual.values())[position]
        if b.ndim == a.ndim == 4 and b.shape != a.shape and b.transpose(0, 2, 3, 1).shape == a.shape:
            b = b.transpose(0, 2, 3, 1)
        found.append((name, a, b.reshape(a.shape) if b.size == a.size else b))
    return found


def compared(tensor: Tensor, pairs: list[tuple[Array, Array]]) -> OutputComparison:
    """Statistics over all runs, in steps of the source's scale."""
    if any(a.shape != b.shape for a, b in pairs):
        raise OptionError(f"the result gives shape {pairs[0][1].shape} instead of {pairs[0][0].shape}", where=f"output {tensor.name!r}")
    left, right = (np.concatenate([_steps(tensor, pair[side]).reshape(-1) for pair in pairs]) for side in (0, 1))
    with np.errstate(invalid="ignore"):
        difference = np.abs(left - right)
    difference[(left == right) | (np.isnan(left) & np.isnan(right))] = 0  # infinities and NaN of both sides are equal
    difference[np.isnan(difference)] = np.inf
    unit, scale = "LSB", 1.0
    finite = left[np.isfinite(left)]
    if pairs[0][0].dtype.kind == "f":
        unit, scale = "of range", float(finite.max(initial=0) - finite.min(initial=0)) or 1.0
    noise = float(np.square(difference).mean()) if difference.size else 0.0
    offset = 0 if tensor.quantization is None else tensor.quantization.zero_point[0]
    signal = float(np.square(finite - offset).mean()) if finite.size else 0.0
    is_scores = all(a.ndim == 2 and a.shape[0] == 1 and a.shape[1] > 1 for a, _ in pairs)
    same = float(np.mean([_steps(tensor, a).argmax() == _steps(tensor, b).argmax() for a, b in pairs])) if is_scores else None
    return OutputComparison(
        tensor.name,
        float((difference == 0).mean()) if difference.size else 1.0,
        float(difference.max(initial=0)) / scale,
        float(difference.mean()) / scale if difference.size else 0.0,
        unit,
        None if noise == 0 else float(10 * (np.log10(max(signal, 1e-300)) - np.log10(noise))),
        same,
    )


def _steps(tensor: Tensor, values: Array) -> Array:
    """Stored values as float64; real values of a quantized output in steps of its scale; texts as numbers of their own."""
    if values.dtype.kind in "OSU":
        return np.array([crc32(str(value).encode()) for value in values.reshape(-1)], np.float64).reshape(values.shape)
    if tensor.quantization is not None and values.dtype.kind == "f" and "int" in tensor.dtype:
        return np.asarray(np.rint(values.astype(np.float64) / tensor.quantization.scale[0] + tensor.quantization.zero_point[0]))
    offset = {("int8", "uint8"): -128, ("uint8", "int8"): 128}.get((tensor.dtype, values.dtype.name), 0)
    return np.asarray(values.astype(np.float64) + offset)
