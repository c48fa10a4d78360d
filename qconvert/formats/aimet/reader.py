"""Reads AIMET's encodings.

Until 1.0 a grid is unsigned, [0, 2^bw - 1], with real = (q + offset) * scale; parameters are stored here as signed integers, activations
as unsigned ones: zero point -offset - 2^(bw - 1), or -offset. Since 2.0 entries say what ONNX's QuantizeLinear does. Sources: AIMET's
"Quantization Encoding Specification"; aimet_onnx 2.42 (qc_quantize_op.py), of which the tests have files of three versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import INTEGERS
from qconvert.encodings import Encoding, Encodings, Grid, Place
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.files import map_file
from qconvert.files.documents import fail, integer, json_of, listed, number, object_of, text
from qconvert.graph import Array, Quantization

__all__ = ["holds", "read"]

_AT = "AIMET's encodings, "
_SIDES = ("activation_encodings", "param_encodings")
#: Storage of so many bits; what is between uses a part of the next.
_STORED = (2, 4, 8, 16, 32)
#: A zero point that its range states otherwise than the offset: AIMET's own examples do so.
_NOTE = "tensors state an offset that is not that of their range; the range holds: "


def holds(path: Path) -> bool:
    """Whether a file is AIMET's by its content."""
    try:
        document = json_of(bytes(map_file(path)), "the file")
    except InvalidModelError:
        return False
    if not isinstance(document, dict) or "version" not in document:
        return False
    return set(_SIDES) <= document.keys() or isinstance(document.get("encodings"), list)


def read(path: Path) -> Encodings:
    """The encodings of a file.

    Raises:
        InvalidModelError: it is damaged.
        UnsupportedError: it is of a later version, or has scales in blocks of blocks (LPBQ).
    """
    document = json_of(bytes(map_file(path)), "the file")
    if not isinstance(document, dict):
        fail(f"{_AT}document", "is no object")
    version = text(document.get("version"), f"{_AT}version")
    notes: list[str] = []
    if version.startswith("2."):
        found = _second(document)
    elif version.startswith(("0.", "1.")):
        found, notes = _first(document)
    else:
        raise UnsupportedError(f"version {version} of AIMET's encodings; those before 3 are read")
    return Encodings(found, f"AIMET's encodings {version}", metadata={"aimet.version": version}, notes=tuple(notes))


def _first(document: Mapping[str, Any]) -> tuple[dict[Place, Encoding], list[str]]:
    """Versions 0.4 to 1.0: activations and parameters apart."""
    entries: dict[Place, Encoding] = {}
    doubtful: list[str] = []
    real: list[str] = []
    for side in _SIDES:
        for name, item, at in _named(document.get(side, {}), f"{_AT}{side}"):
            grid, agrees = _unsigned_grid(item, at, signed=side == "param_encodings")
            if grid is None:
                real.append(name)
                continue
            if not agrees:
                doubtful.append(name)
            _add(entries, name, grid, at)
    notes = [f"{len(doubtful)} {_NOTE}{', '.join(map(repr, doubtful[:3]))}"] if doubtful else []
    notes += [f"{len(real)} tensors are floats by their encodings and stay real"] if real else []
    return entries, notes


def _named(value: Any, at: str) -> list[tuple[str, list[dict[str, Any]], str]]:
    """Name, one object for each scale, and place: from the object of version 0, or the list of version 1."""
    if isinstance(value, dict):
        return [
            (text(name, at), listed(item, f"{at}[{name!r}]", lambda one, place: _an_object(one, place)), f"{at}[{name!r}]")
            for name, item in value.items()
        ]
    return listed(value, at, _of_version_one)


def _an_object(value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        fail(at, "is no object")
    return value


def _of_version_one(item: Any, at: str) -> tuple[str, list[dict[str, Any]], str]:
    fields = _an_object(item, at)
    name, kind = text(fields.get("name"), f"{at}.name"), text(fields.get("enc_type", "PER_TENSOR"), f"{at}.enc_type")
    if text(fields.get("dtype", "INT"), f"{at}.dtype") == "FLOAT":
        return name, [{"dtype": "float"}], at
    if kind not in ("PER_TENSOR", "PER_CHANNEL"):
        raise UnsupportedError(
            f"has encodings {kind}, whose blocks version 1 does not lay out", where=repr(name), remedy="Export version 2.0.0."
        )
    scales = listed(fields.get("scale"), f"{at}.scale", number)
    offsets = listed(fields.get("offset", [0] * len(scales)), f"{at}.offset", number)
    if len(scales) != len(offsets) or (kind == "PER_TENSOR" and len(scales) != 1):
        fail(at, f"has {len(scales)} scales and {len(offsets)} offsets, {kind}")
    return name, [{"bitwidth": fields.get("bw", 8), "scale": s, "offset": o} for s, o in zip(scales, offsets, strict=True)], at


def _unsigned_grid(items: list[dict[str, Any]], at: str, *, signed: bool) -> tuple[Grid | None, bool]:
    """The grid of entries of version 0 or 1, or None of floats, and whether their offsets are those of their ranges."""
    if not items:
        fail(at, "has no encodings")
    if any(text(item.get("dtype", "int"), f"{at}.dtype").lower() == "float" for item in items):
        return None, True
    widths = {integer(item.get("bitwidth"), f"{at}.bitwidth", 2) for item in items}
    if len(widths) != 1 or max(widths) > 32:
        fail(at, f"has the bit widths {sorted(widths)}")
    bits = widths.pop()
    scales = [number(item.get("scale"), f"{at}.scale") for item in items]
    offsets, agree = [], True
    for item, scale in zip(items, scales, strict=True):
        stated = _whole(number(item.get("offset", 0), f"{at}.offset"), at)
        low = number(item["min"], f"{at}.min") if "min" in item else None
        implied = _whole(round(low / scale), at) if low is not None and scale and np.isfinite(low / scale) else stated
        # A parameter of many bits has a range that double precision rounds.
        agree &= abs(implied - stated) <= max(0.5, abs(stated) * 1e-6)
        offsets.append(int(stated if abs(implied - stated) <= max(0.5, abs(stated) * 1e-6) else implied))
    shift = 2 ** (bits - 1) if signed else 0
    points = np.array([-offset - shift for offset in offsets], np.int64)
    return _grid(bits, signed, _float32(scales), points, at), agree


def _whole(offset: float, at: str) -> float:
    """An offset that is a number of 62 bits."""
    if not abs(offset) < 2**62:
        fail(at, f"has the offset {offset:g}")
    return offset


def _grid(bits: int, signed: bool, scale: Array, points: Array, at: str) -> Grid:
    stored = next(size for size in _STORED if bits <= size)
    dtype = f"{'int' if signed else 'uint'}{stored}"
    limits: tuple[int | None, int | None] = (None, None)
    if stored != bits:
        limits = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if not points.size:
        fail(at, "has no scales")
    return Grid(dtype, Quantization(scale, points, None, 0, *limits))


def _second(document: Mapping[str, Any]) -> dict[Place, Encoding]:
    """Version 2.0: entries that say what QuantizeLinear does."""
    entries: dict[Place, Encoding] = {}

    def read_entry(item: Any, at: str) -> None:
        fields = object_of(item, at, {"name", "output_dtype"}, _FIELDS_TWO)
        name, dtype = text(fields["name"], f"{at}.name"), text(fields["output_dtype"], f"{at}.output_dtype")
        if "per_block_int_scale" in fields or "y_scale" not in fields:
            raise UnsupportedError("has scales in blocks of blocks (LPBQ), or none", where=repr(name))
        if dtype not in INTEGERS:
            raise UnsupportedError(f"has a grid of {dtype}", where=repr(name))
        scale = _array(fields["y_scale"], f"{at}.y_scale", number).astype(np.float32)
        points = _array(fields["y_zero_point"], f"{at}.y_zero_point", integer) if "y_zero_point" in fields else np.zeros(scale.shape)
        if points.size != scale.size:
            fail(at, f"has {scale.size} scales and {points.size} zero points")
        block = integer(fields.get("block_size") or 0, f"{at}.block_size", 0)
        axis = integer(fields["axis"], f"{at}.axis") if block and fields.get("axis") is not None else None
        if (scale.ndim > 1) != bool(block) or (block and (axis is None or not -scale.ndim <= axis < scale.ndim)):
            fail(at, f"blocks of {block} along axis {axis} do not fit scales of {scale.ndim} dimensions")
        axis = axis + scale.ndim if axis is not None and axis < 0 else axis
        _add(entries, name, Grid(dtype, Quantization(scale, points.reshape(scale.shape).astype(np.int64), axis, block)), at)

    listed(document.get("encodings"), f"{_AT}encodings", read_entry)
    return entries


_FIELDS_TWO = {"y_scale", "y_zero_point", "axis", "block_size", "per_block_int_scale", "per_channel_float_scale"}


def _array(value: Any, at: str, read_one: Any) -> Array:
    """Numbers, perhaps in lists of lists."""
    try:
        found = np.array(value if isinstance(value, list) else [value])
    except (ValueError, OverflowError):
        fail(at, "has lists of several lengths")
    if found.dtype.kind not in "iuf" or not found.size or found.ndim > 8:
        fail(at, "is not made of numbers")
    return found


def _float32(values: list[float]) -> Array:
    with np.errstate(over="ignore"):
        return np.array(values, np.float32)


def _add(entries: dict[Place, Encoding], name: str, grid: Grid, at: str) -> None:
    """Takes an entry in; biases are left to the rule of all biases, input scale * weight scale, which theirs nearly is."""
    if Place(name) in entries:
        fail(at, f"is a second entry of {name!r}")
    if grid.dtype not in ("int32", "uint32"):
        entries[Place(name)] = Encoding(grid, required=not name.endswith("__o"))
