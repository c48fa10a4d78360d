"""Entries of AIMET's versions 0.4 to 2.1, as they are stated.

Version 0 has a list of objects for each tensor, one a channel; version 1 one object with lists, of blocks too; version 2 the parameters of
ONNX's QuantizeLinear. LPBQ has scales in two steps: scale of a block = per_block_int_scale * scale of its output channel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.plugin import Array, QParams, UnsupportedError, documents
from qconvert_aimet.quantizations import quantization_of_bits

PARAMETERS = "param_encodings"
SIDES = ("activation_encodings", PARAMETERS)
_KINDS = ("PER_TENSOR", "PER_CHANNEL", "PER_BLOCK", "LPBQ")
#: A parameter of many bits has a range that double precision rounds: offset and range agree within this part.
_SAME = 1e-6


@dataclass(frozen=True, slots=True)
class Stated:
    """The entry of one tensor.

    Attributes:
        name: of the tensor.
        bits: of the quantization; 0 of floats.
        scales: one, or one for each channel or block.
        offsets: likewise; real = (q + offset) * scale with q from 0.
        block_size: values that share a scale; 0 for no blocks.
        agrees: whether offsets are those of the ranges next to them.
        is_float: whether the tensor stays float.
    """

    name: str
    bits: int = 0
    scales: tuple[float, ...] = ()
    offsets: tuple[int, ...] = ()
    block_size: int = 0
    agrees: bool = True
    is_float: bool = False


def read_entries(value: Any, side: str) -> list[Stated]:
    """Return the entries of one side: the object of version 0, or the list of version 1.

    Raises:
        InvalidModelError: they are damaged.
        UnsupportedError: one has zero points between integers.
    """
    if isinstance(value, dict):
        return [_read_version_0(documents.text(name, side), item, f"{side}[{name!r}]") for name, item in value.items()]
    return documents.list_of(value, side, _read_version_1)


def _object(value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        documents.fail(at, f"is {documents.sort_of(value)}, not an object", rule="wrong-type")
    return value


def _bits(value: Any, at: str) -> int:
    bits = documents.integer(value, at, 2)
    if bits > 32:
        documents.fail(at, f"is {bits}; at most 32 bits are covered", rule="bits-not-covered")
    return bits


def _is_symmetric(value: Any, at: str) -> bool:
    if value not in (True, False, "True", "False", "true", "false") or isinstance(value, int) != isinstance(value, bool):
        documents.fail(at, "is neither true nor false", rule="wrong-type")
    return value in (True, "True", "true")


def _read_offset(value: Any, at: str) -> int:
    """Return an offset, which files hold as a float."""
    offset = documents.number(value, at)
    if not (abs(offset) < 2**62 and offset == int(offset)):
        documents.fail(at, f"is {offset:g}, not an integer of 62 bits", rule="wrong-type")
    return int(offset)


def _read_version_0(name: str, value: Any, at: str) -> Stated:
    items = documents.list_of(value, at, _object)
    if not items:
        documents.fail(at, "the list of encodings is empty", rule="no-scales")
    kinds = {documents.text(item.get("dtype", "int"), f"{at}.dtype").lower() for item in items}
    if kinds == {"float"}:
        return Stated(name, is_float=True)
    if kinds != {"int"}:
        documents.fail(f"{at}.dtype", f"is {', '.join(sorted(kinds))}, not int or float", rule="unknown-word")
    widths = {_bits(item.get("bitwidth"), f"{at}.bitwidth") for item in items}
    symmetric = {_is_symmetric(item.get("is_symmetric", "False"), f"{at}.is_symmetric") for item in items}
    if len(widths) != 1 or len(symmetric) != 1:
        documents.fail(
            at,
            "the channels have several bit widths" if len(widths) != 1 else "some channels are symmetric and others are not",
            rule="contradicting-channels",
        )
    scales = tuple(documents.number(item.get("scale"), f"{at}.scale") for item in items)
    stated = [_read_offset(item.get("offset", 0), f"{at}.offset") for item in items]
    implied = [_derive_offset(item, scale, offset, at) for item, scale, offset in zip(items, scales, stated, strict=True)]
    same = [abs(a - b) <= abs(b) * _SAME for a, b in zip(implied, stated, strict=True)]
    offsets = tuple(b if alike else a for a, b, alike in zip(implied, stated, same, strict=True))
    return Stated(name, widths.pop(), scales, offsets, agrees=all(same))


def _derive_offset(item: dict[str, Any], scale: float, offset: int, at: str) -> int:
    """Return the offset that the range implies; the stated offset without a range or a positive scale."""
    if "min" not in item:
        return offset
    low = documents.number(item["min"], f"{at}.min")
    if not np.isfinite(low):
        documents.fail(f"{at}.min", f"is {low}", rule="range-not-finite")
    if not scale > 0 or not np.isfinite(low / scale):
        return offset
    return _read_offset(float(round(low / scale)), f"{at}.offset of the range")


def _read_version_1(item: Any, place: str) -> Stated:
    fields = _object(item, place)
    name = documents.text(fields.get("name"), f"{place}.name")
    at = f"{place.partition('[')[0]} of {name!r}"
    dtype = documents.text(fields.get("dtype", "INT"), f"{at}, dtype")
    if dtype == "FLOAT":
        return Stated(name, is_float=True)
    kind = documents.text(fields.get("enc_type", "PER_TENSOR"), f"{at}, enc_type")
    if dtype != "INT" or kind not in _KINDS:
        documents.fail(
            at,
            f"the dtype is {dtype!r}; INT and FLOAT are known" if dtype != "INT" else f"the enc_type is {kind!r}, which is unknown",
            rule="unknown-word",
        )
    _is_symmetric(fields.get("is_sym", False), f"{at}, is_sym")
    shifts = fields.get("zero_point_shift", 0)
    if any(documents.number(shift, f"{at}, zero_point_shift") for shift in (shifts if isinstance(shifts, list) else [shifts])):
        raise UnsupportedError(
            "the zero point lies between two integers (zero_point_shift); quantization requires an integer",
            where=repr(name),
            rule="zero-point-not-integer",
        )
    scales = documents.list_of(fields.get("scale"), f"{at}, scale", documents.number)
    offsets = documents.list_of(fields.get("offset", [0] * len(scales)), f"{at}, offset", _read_offset)
    if not scales or len(scales) != len(offsets) or (kind == "PER_TENSOR" and len(scales) != 1):
        documents.fail(at, f"there are {len(scales)} scales and {len(offsets)} offsets for the enc_type {kind}", rule="counts-differ")
    bits = _bits(fields.get("bw", 8), f"{at}, bw")
    if kind in ("PER_TENSOR", "PER_CHANNEL"):
        return Stated(name, bits, tuple(scales), tuple(offsets))
    block_size = documents.integer(fields.get("block_size"), f"{at}, block_size", 1)
    if kind == "PER_BLOCK":
        return Stated(name, bits, tuple(scales), tuple(offsets), block_size)
    return _read_lpbq(name, fields, scales, block_size, at)


def _read_lpbq(name: str, fields: dict[str, Any], scales: list[float], block_size: int, at: str) -> Stated:
    """Read LPBQ: integers that scale the blocks of each channel. Its values have compressed_bw bits and are symmetric."""
    bits = _bits(fields.get("compressed_bw"), f"{at}, compressed_bw")
    factors = documents.list_of(fields.get("per_block_int_scale"), f"{at}, per_block_int_scale", documents.integer)
    if not factors or len(factors) % len(scales):
        documents.fail(at, f"there are {len(scales)} scales of channels and {len(factors)} of blocks", rule="counts-differ")
    products = np.outer(scales, np.ones(len(factors) // len(scales))).reshape(-1) * np.array(factors, np.float64)
    return Stated(name, bits, tuple(products.tolist()), (-(2 ** (bits - 1)),) * len(factors), block_size)


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
    signed, bits = _bits_of_type(name, dtype)
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


def _bits_of_type(name: str, dtype: str) -> tuple[bool, int]:
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
