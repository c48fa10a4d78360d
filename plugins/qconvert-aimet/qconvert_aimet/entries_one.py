"""Entries of the versions 0.4 to 1.0, as they are stated.

Version 0 has a list of objects for each tensor, one a channel; version 1 one object with lists, of blocks too. LPBQ has scales in two
steps: scale of a block = per_block_int_scale * scale of its output channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.plugin import UnsupportedError, documents

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
