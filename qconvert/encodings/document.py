"""Encodings as a JSON document (docs/encodings.schema.json), and back."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import INTEGERS, Array, integer_range, numpy_dtype
from qconvert.encodings.types import ROLES, WEIGHTS, Encoding, Encodings, Place, QParams, Range
from qconvert.files.documents import fail, integer, list_of, number, object_of, text, text_map, texts, truth
from qconvert.graph import Quantization

#: Of the document's form.
VERSION = 2
#: Before the place of an error.
_ROOT = "encodings, "
#: Dimensions of scales and integers.
_DEEPEST = 16
#: Types that numpy has.
_WIDE = frozenset(("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"))


def to_document(encodings: Encodings) -> dict[str, Any]:
    """The JSON values of encodings. Scales are numbers whose nearest float32 is the scale, integers bytes in base64."""
    beside = {"origin": encodings.origin, "weights": encodings.weights}
    return {
        "encodings": VERSION,
        **{name: value for name, value in beside.items() if value},
        **({"metadata": dict(encodings.metadata)} if encodings.metadata else {}),
        **({"notes": list(encodings.notes)} if encodings.notes else {}),
        "entries": [_entry_document(place, found) for place, found in encodings.entries.items()],
    }


def _entry_document(place: Place, found: Encoding) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": place.name}
    if place.role != "tensor":
        entry |= {"role": place.role, "index": place.index}
    if found.qparams is not None:
        entry["qparams"] = _qparams_document(found.qparams)
    if found.range is not None:
        lowest, highest = found.range.lowest.tolist(), found.range.highest.tolist()
        entry["range"] = {"lowest": lowest, "highest": highest, "axis": found.range.axis}
    if found.integers is not None:
        entry["integers"] = _integers_document(found.integers)
    if found.origin:
        entry["origin"] = found.origin
    return entry if found.required else {**entry, "required": False}


def _qparams_document(qparams: QParams) -> dict[str, Any]:
    q = qparams.quantization
    limits = {"quant_min": q.quant_min, "quant_max": q.quant_max}
    return {
        "dtype": qparams.dtype,
        "scale": q.scale.astype(np.float64).tolist(),
        "zero_point": q.zero_point.tolist(),
        "axis": q.axis,
        "block_size": q.block_size,
        **{name: limit for name, limit in limits.items() if limit is not None},
        **({"runs_in_float": True} if qparams.runs_in_float else {}),
    }


def _integers_document(values: Array) -> dict[str, Any]:
    wide = values if values.dtype.itemsize > 1 else values.astype(np.int8 if values.dtype.name.startswith("int") else np.uint8)
    data = np.ascontiguousarray(wide.astype(wide.dtype.newbyteorder("<"), copy=False))
    return {"shape": list(values.shape), "data": base64.b64encode(data.tobytes()).decode("ascii")}


def from_document(document: Any) -> Encodings:
    """The encodings of a document.

    Raises:
        InvalidModelError: it does not have the form of docs/encodings.schema.json, or says what no encoding can be; `where` is the place.
    """
    fields = object_of(document, f"{_ROOT}document", {"encodings", "entries"}, {"origin", "weights", "metadata", "notes", "$schema"})
    if fields["encodings"] != VERSION or isinstance(fields["encodings"], bool):
        fail(
            f"{_ROOT}encodings",
            f"the version of the document is {fields['encodings']!r}; version {VERSION} can be read",
            rule="version-not-covered",
        )
    pairs = list_of(fields["entries"], f"{_ROOT}entries", _entry)
    entries = dict(pairs)
    if len(entries) != len(pairs):
        twice = next(place for index, (place, _) in enumerate(pairs) if place in dict(pairs[:index]))
        fail(f"{_ROOT}entries", f"{twice} has two entries", rule="duplicate-name")
    return Encodings(
        entries,
        text(fields.get("origin", ""), f"{_ROOT}origin"),
        _choice(fields.get("weights", ""), f"{_ROOT}weights", WEIGHTS),
        text_map(fields.get("metadata", {}), f"{_ROOT}metadata"),
        texts(fields.get("notes", []), f"{_ROOT}notes"),
    )


def _choice(value: Any, at: str, choices: tuple[str, ...]) -> str:
    if text(value, at) not in choices:
        fail(at, f"is {value!r}, not one of {', '.join(map(repr, choices))}", rule="unknown-word")
    return str(value)


def _entry(item: Any, at: str) -> tuple[Place, Encoding]:
    fields = object_of(item, at, {"name"}, {"role", "index", "qparams", "range", "integers", "origin", "required"})
    place = Place(
        text(fields["name"], f"{at}.name"),
        _choice(fields.get("role", "tensor"), f"{at}.role", ROLES),
        integer(fields.get("index", 0), f"{at}.index", 0),
    )
    if ("qparams" in fields) == ("range" in fields):
        fail(
            at,
            "has quantization parameters and a range" if "qparams" in fields else "has neither quantization parameters nor a range",
            rule="qparams-or-range",
        )
    required = truth(fields.get("required", True), f"{at}.required")
    qparams = _qparams(fields["qparams"], f"{at}.qparams") if "qparams" in fields else None
    found = _range(fields["range"], f"{at}.range") if "range" in fields else None
    integers = None
    if "integers" in fields:
        if qparams is None:
            fail(f"{at}.integers", "integers require quantization parameters", rule="qparams-missing")
        integers = _integers(fields["integers"], f"{at}.integers", qparams.dtype)
    return place, Encoding(qparams, found, integers, text(fields.get("origin", ""), f"{at}.origin"), required)


def _qparams(value: Any, at: str) -> QParams:
    fields = object_of(value, at, {"dtype", "scale"}, {"zero_point", "axis", "block_size", "quant_min", "quant_max", "runs_in_float"})
    dtype = text(fields["dtype"], f"{at}.dtype")
    if dtype not in INTEGERS and not dtype.startswith("float"):
        fail(f"{at}.dtype", f"the type is {dtype!r}, which no qparams has", rule="unknown-type")
    with np.errstate(over="ignore"):
        scale = _read_array(fields["scale"], f"{at}.scale", number).astype(np.float32)
    zero_point = _read_array(fields.get("zero_point", 0), f"{at}.zero_point", integer).astype(np.int64)
    if zero_point.size == 1:
        zero_point = np.broadcast_to(zero_point.reshape(-1)[0], scale.shape).copy()
    if zero_point.shape != scale.shape:
        fail(at, f"has {scale.size} scales and {zero_point.size} zero points", rule="counts-differ")
    axis, block_size = _axis(fields, at), integer(fields.get("block_size", 0), f"{at}.block_size", 0)
    of_layer = axis is None and scale.ndim == 1
    if (scale.ndim > 1 and not block_size) or (block_size and not of_layer and (axis is None or axis >= scale.ndim)):
        fail(at, f"blocks of {block_size} along axis {axis} do not fit scales of {scale.ndim} dimensions", rule="blocks-do-not-fit")
    limits = [integer(fields[name], f"{at}.{name}") if name in fields else None for name in ("quant_min", "quant_max")]
    runs_in_float = truth(fields.get("runs_in_float", False), f"{at}.runs_in_float")
    return QParams(dtype, Quantization(scale, zero_point, axis, block_size, *limits), runs_in_float)


def _axis(fields: Mapping[str, Any], at: str) -> int | None:
    axis = fields.get("axis")
    return None if axis is None else integer(axis, f"{at}.axis", 0)


def _read_array(value: Any, at: str, read: Any) -> Array:
    """Numbers in lists of lists, of one length in each dimension; one number is a list of one."""
    if not isinstance(value, list):
        return np.array([read(value, at)])
    shape: list[int] = []
    inner: Any = value
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
        if len(shape) > _DEEPEST:
            fail(at, f"is nested more than {_DEEPEST} deep", rule="nested-too-deeply")
    flat: list[Any] = []
    _flatten(value, at, shape, read, flat)
    if math.prod(shape) != len(flat) or not flat:
        fail(at, "has no numbers" if not flat else "has lists of several lengths", rule="ragged-list")
    try:
        return np.array(flat).reshape(shape)
    except OverflowError:
        fail(at, "has a number beyond 64 bits", rule="number-out-of-range")


def _flatten(value: list[Any], at: str, shape: list[int], read: Any, flat: list[Any]) -> None:
    if len(value) != shape[0]:
        fail(at, "has lists of several lengths", rule="ragged-list")
    for index, item in enumerate(value):
        if len(shape) == 1:
            flat.append(read(item, f"{at}[{index}]"))
        elif isinstance(item, list):
            _flatten(item, f"{at}[{index}]", shape[1:], read, flat)
        else:
            fail(f"{at}[{index}]", "is not a list", rule="wrong-type")


def _range(value: Any, at: str) -> Range:
    fields = object_of(value, at, {"lowest", "highest"}, {"axis"})
    lowest, highest = (_read_array(fields[name], f"{at}.{name}", number).astype(np.float64) for name in ("lowest", "highest"))
    return Range(lowest, highest, _axis(fields, at))


def _integers(value: Any, at: str, dtype: str) -> Array:
    fields = object_of(value, at, {"shape", "data"}, ())
    shape = tuple(list_of(fields["shape"], f"{at}.shape", lambda item, place: integer(item, place, 0)))
    try:
        data = base64.b64decode(text(fields["data"], f"{at}.data"), validate=True)
    except (binascii.Error, ValueError):
        fail(f"{at}.data", "is not base64", rule="not-base64")
    if dtype not in INTEGERS:
        fail(at, f"integers of {dtype} cannot be stored", rule="type-without-integers")
    stored = np.dtype(dtype) if dtype in _WIDE else np.dtype(np.int8 if dtype.startswith("int") else np.uint8)
    if len(shape) > _DEEPEST or math.prod(shape) * stored.itemsize != len(data):
        fail(at, f"{len(data)} bytes are not {shape} of {dtype}", rule="counts-differ")
    found = np.frombuffer(data, stored.newbyteorder("<")).reshape(shape).astype(stored, copy=False)
    low, high = integer_range(dtype)
    if found.size and not (low <= int(found.min()) and int(found.max()) <= high):
        fail(at, f"a value is outside of {dtype}", rule="value-outside-type")
    return found if dtype in _WIDE else found.astype(numpy_dtype(dtype))
