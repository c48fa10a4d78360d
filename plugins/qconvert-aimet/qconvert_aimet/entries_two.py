"""Entries of the versions 2.0 and 2.1, which have the parameters of ONNX's QuantizeLinear."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qconvert.plugin import Array, QParams, UnsupportedError, documents
from qconvert_aimet.quantizations import quantization_of_bits

_REQUIRED = {"name", "output_dtype"}
_OPTIONAL = {"y_scale", "y_zero_point", "axis", "block_size", "per_block_int_scale", "per_channel_float_scale"}
#: Of scales that are quantized themselves, since 2.1.
_NESTED = {"x", "x_scale"}
_DEEPEST = 8


def read_version_2(document: Mapping[str, Any]) -> list[tuple[str, QParams]]:
    """Return the quantizations of all entries by name.

    Raises:
        InvalidModelError: an entry is damaged.
        UnsupportedError: one is of floats, or its scales have zero points.
    """
    return documents.list_of(document.get("encodings"), "encodings", _entry)


def _entry(item: Any, place: str) -> tuple[str, QParams]:
    fields = documents.object_of(item, place, _REQUIRED, _OPTIONAL)
    name = documents.text(fields["name"], f"{place}.name")
    at = f"encodings of {name!r}"
    dtype = documents.text(fields["output_dtype"], f"{at}, output_dtype")
    signed, bits = _bits(name, dtype)
    scale = _scale(name, fields, at)
    points = _array(fields["y_zero_point"], f"{at}, y_zero_point", documents.integer) if "y_zero_point" in fields else np.zeros(scale.shape)
    if points.size != scale.size:
        documents.fail(at, f"there are {scale.size} scales and {points.size} zero points", rule="counts-differ")
    block = documents.integer(fields.get("block_size") or 0, f"{at}, block_size", 0)
    axis = documents.integer(fields["axis"], f"{at}, axis") if block and fields.get("axis") is not None else None
    if (scale.ndim > 1) != bool(block) or (block and (axis is None or not -scale.ndim <= axis < scale.ndim)):
        documents.fail(at, f"blocks of {block} along axis {axis} do not fit scales of {scale.ndim} dimensions", rule="blocks-do-not-fit")
    points = points.reshape(scale.shape).astype(np.int64)
    if axis is not None and axis % scale.ndim == 0:
        scale, points, axis = _move_outputs_first(scale), _move_outputs_first(points), 1 if scale.ndim > 2 else None
    axis = axis + scale.ndim if axis is not None and axis < 0 else axis
    return name, quantization_of_bits(bits, signed, scale, points, axis, block, where=name)


def _move_outputs_first(values: Array) -> Array:
    """Return values of blocks with their first two axes swapped: the file has inputs first, the canonical graph outputs.

    Values of matrices become a list, one output channel after the other.
    """
    turned = values.swapaxes(0, 1)
    return turned.reshape(-1) if turned.ndim == 2 else turned


def _bits(name: str, dtype: str) -> tuple[bool, int]:
    """Return whether a type is signed, and its bits; numpy need not have the type."""
    found = re.fullmatch(r"(u?)int([1-9][0-9]?)", dtype)
    if found is None or not 2 <= int(found[2]) <= 32:
        raise UnsupportedError(f"the type is {dtype}; integers of 2 to 32 bits are covered", where=repr(name), rule="dtype-not-covered")
    return not found[1], int(found[2])


def _scale(name: str, fields: Mapping[str, Any], at: str) -> Array:
    """Return the scales, float64; those of LPBQ, which are quantized themselves, are dequantized."""
    if isinstance(fields.get("y_scale"), dict):
        nested = fields["y_scale"]
        unknown = nested.keys() - _NESTED - {"axis", "input_dtype"}
        if unknown:
            raise UnsupportedError(
                f"the scales have the member {min(unknown)}, which is not covered", where=repr(name), rule="form-not-covered"
            )
        nested = documents.object_of(nested, f"{at}, y_scale", _NESTED, {"axis", "input_dtype"})
        steps = _array(nested["x"], f"{at}, y_scale, x", documents.integer)
        base = _array(nested["x_scale"], f"{at}, y_scale, x_scale", documents.number)
        axis = documents.integer(nested.get("axis", 0), f"{at}, y_scale, axis", 0)
        if base.ndim == 1 and base.size > 1 and axis < steps.ndim:
            base = base.reshape([-1 if other == axis else 1 for other in range(steps.ndim)])
    elif "per_block_int_scale" in fields:
        steps = _array(fields["per_block_int_scale"], f"{at}, per_block_int_scale", documents.integer)
        base = _array(fields.get("per_channel_float_scale"), f"{at}, per_channel_float_scale", documents.number)
    else:
        return _array(fields.get("y_scale"), f"{at}, y_scale", documents.number).astype(np.float64)
    if base.size != 1 and (base.ndim != steps.ndim or any(a not in (1, b) for a, b in zip(base.shape, steps.shape, strict=True))):
        documents.fail(
            at, f"the scales of channels have the shape {list(base.shape)}, those of blocks {list(steps.shape)}", rule="counts-differ"
        )
    return np.asarray(steps.astype(np.float64) * base.astype(np.float64))


def _array(value: Any, at: str, read_one: Callable[[Any, str], Any]) -> Array:
    """Return numbers, perhaps in lists of lists, each read by a function of it and its place."""
    try:
        found = np.array(value if isinstance(value, list) else [value])
    except (ValueError, OverflowError):
        documents.fail(at, "has lists of several lengths", rule="ragged-list")
    if found.dtype.kind not in "iuf" or not found.size or found.ndim > _DEEPEST:
        documents.fail(at, "is not made of numbers", rule="wrong-type")
    return np.array([read_one(one, at) for one in found.reshape(-1).tolist()]).reshape(found.shape)
