"""A canonical graph from the JSON document of a .qgraph file (docs/qgraph.schema.json)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.formats.qgraph.to_document import STORED_AS, VERSION
from qconvert.graph import (
    DTYPES,
    Array,
    Attribute,
    Graph,
    Op,
    Quantization,
    Shape,
    Signature,
    Tensor,
    integer_range,
    numpy_dtype,
)
from qconvert.graph.kinds import KINDS

__all__ = ["from_document"]

_MOST_ELEMENTS = 2**40
_MAX_RANK = 64


def from_document(document: Any, constants: Mapping[str, Array]) -> Graph:
    """The graph of a document.

    Args:
        document: JSON values in the form of docs/qgraph.schema.json.
        constants: the arrays of the file by key, with the types and shapes that they are stored under.

    Raises:
        InvalidModelError: the document does not have that form or does not fit the arrays; where says the place.
    """
    fields = _object(document, "graph", {"qgraph", *_REQUIRED}, {*_OPTIONAL, "functions", "states"})
    if fields["qgraph"] != VERSION or isinstance(fields["qgraph"], bool):
        _fail("qgraph", f"version {fields['qgraph']!r} of the document; version {VERSION} can be read")
    functions = fields.get("functions", {})
    if not isinstance(functions, dict):
        _fail("functions", f"is {_sort(functions)}, not an object")
    return replace(
        _graph({name: value for name, value in fields.items() if name in (*_REQUIRED, *_OPTIONAL)}, "", constants),
        functions={_text(name, "functions"): _graph(inner, f"functions[{name!r}].", constants) for name, inner in functions.items()},
        states=_tensors(fields.get("states", []), "states", constants),
    )


_REQUIRED = frozenset(("name", "inputs", "outputs", "ops", "tensors"))
_OPTIONAL = frozenset(("signatures", "metadata"))


def _graph(value: Any, at: str, constants: Mapping[str, Array]) -> Graph:
    """A graph without functions and states; `at` stands in front of the names of its parts in errors."""
    fields = _object(value, at.rstrip(".") or "graph", {*_REQUIRED}, {*_OPTIONAL})
    return Graph(
        name=_text(fields["name"], f"{at}name"),
        tensors=_tensors(fields["tensors"], f"{at}tensors", constants),
        ops=tuple(_list(fields["ops"], f"{at}ops", _op)),
        inputs=_texts(fields["inputs"], f"{at}inputs"),
        outputs=_texts(fields["outputs"], f"{at}outputs"),
        signatures=tuple(_list(fields.get("signatures", []), f"{at}signatures", _signature)),
        metadata=_text_map(fields.get("metadata", {}), f"{at}metadata"),
    )


def _tensors(value: Any, at: str, constants: Mapping[str, Array]) -> dict[str, Tensor]:
    listed = _list(value, at, lambda item, place: _tensor(item, place, constants))
    found = {tensor.name: tensor for tensor in listed}
    if len(found) != len(listed):
        _fail(at, "two tensors have the same name")
    return found


def _fail(at: str, reason: str) -> NoReturn:
    raise InvalidModelError(reason, where=f"graph document, {at}")


def _object(value: Any, at: str, required: set[str], optional: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        _fail(at, f"is {_sort(value)}, not an object")
    missing, unknown = required - value.keys(), value.keys() - required - optional
    if missing or unknown:
        _fail(at, f"lacks {min(missing)!r}" if missing else f"has {min(unknown)!r}, which does not belong there")
    return value


def _sort(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _list(value: Any, at: str, read: Callable[[Any, str], Any]) -> list[Any]:
    if not isinstance(value, list):
        _fail(at, f"is {_sort(value)}, not a list")
    return [read(item, f"{at}[{index}]") for index, item in enumerate(value)]


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        _fail(at, f"is {_sort(value)}, not text")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        _fail(at, "holds half a surrogate pair")
    return value


def _texts(value: Any, at: str) -> tuple[str, ...]:
    return tuple(_list(value, at, _text))


def _text_map(value: Any, at: str) -> dict[str, str]:
    if not isinstance(value, dict):
        _fail(at, f"is {_sort(value)}, not an object")
    return {_text(key, at): _text(item, f"{at}[{key!r}]") for key, item in value.items()}


def _integer(value: Any, at: str, least: int = -(2**63)) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        _fail(at, "is no integer")
    if not least <= value < 2**63:
        _fail(at, f"is {value}, outside {least} to 2^63 - 1")
    return value


def _number(value: Any, at: str) -> float:
    value = _special(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        _fail(at, f"is {_sort(value)}, not a number")
    try:
        return float(value)
    except OverflowError:
        _fail(at, "is a number beyond the range of a float")


def _special(value: Any) -> Any:
    """The float that {"float": "inf"} and the like stand for; any other value as it is."""
    if isinstance(value, dict) and value.keys() == {"float"} and value["float"] in ("inf", "-inf", "nan"):
        return float(value["float"])
    return value


def _signature(item: Any, at: str) -> Signature:
    fields = _object(item, at, {"key", "inputs", "outputs"}, set())
    inputs, outputs = (_text_map(fields[side], f"{at}.{side}") for side in ("inputs", "outputs"))
    return Signature(_text(fields["key"], f"{at}.key"), inputs, outputs)


def _op(item: Any, at: str) -> Op:
    fields = _object(item, at, {"kind", "inputs", "outputs"}, {"attributes", "source"})
    kind = _text(fields["kind"], f"{at}.kind")
    attributes = fields.get("attributes", {})
    if not isinstance(attributes, dict):
        _fail(f"{at}.attributes", f"is {_sort(attributes)}, not an object")
    return Op(
        kind,
        _texts(fields["inputs"], f"{at}.inputs"),
        _texts(fields["outputs"], f"{at}.outputs"),
        {_text(name, at): _attribute(kind, name, value, f"{at}.attributes.{name}") for name, value in attributes.items()},
        _text(fields.get("source", ""), f"{at}.source"),
    )


def _attribute(kind: str, name: str, value: Any, at: str) -> Attribute:
    """A value or a tuple of one sort. Some writers print 1.0 as 1: the operator set says what is a float."""
    if isinstance(value, list):
        items = [_scalar(item, f"{at}[{index}]") for index, item in enumerate(value)]
        if len({isinstance(item, str) for item in items}) > 1:
            _fail(at, "mixes text and numbers")
        if any(isinstance(item, float) for item in items):
            return tuple(float(item) for item in items)
        return tuple(items)
    value = _scalar(value, at)
    is_float = kind in KINDS and name in KINDS[kind].attributes and KINDS[kind].attributes[name].sort == "number"
    return _number(value, at) if is_float and isinstance(value, int) else value


def _scalar(value: Any, at: str) -> Any:
    value = _special(value)
    if isinstance(value, str):
        return _text(value, at)
    return value if isinstance(value, float) else _integer(value, at)


def _tensor(item: Any, at: str, constants: Mapping[str, Array]) -> Tensor:
    fields = _object(item, at, {"name", "dtype", "shape"}, {"quantization", "data", "strings"})
    name, dtype = _text(fields["name"], f"{at}.name"), _text(fields["dtype"], f"{at}.dtype")
    if dtype not in DTYPES:
        _fail(f"{at}.dtype", f"there is no type {dtype!r}")
    shape = _shape(fields["shape"], f"{at}.shape")
    quantization = _quantization(fields["quantization"], f"{at}.quantization", shape) if "quantization" in fields else None
    data = None
    if "strings" in fields:
        data = _strings(fields["strings"], f"{at}.strings", dtype, shape)
    if "data" in fields:
        key = _text(fields["data"], f"{at}.data")
        if data is not None or key not in constants:
            _fail(f"{at}.data", f"the file holds no array {key!r}" if data is None else "there are strings too")
        data = _typed(constants[key], dtype, shape, f"{at}.data")
    return Tensor(name, dtype, shape, data, quantization)


def _shape(value: Any, at: str) -> Shape | None:
    if value is None:
        return None
    shape = tuple(_list(value, at, lambda item, place: item if isinstance(item, str) else _integer(item, place, 0)))
    count = math.prod(size for size in shape[:_MAX_RANK] if isinstance(size, int) and size)
    if len(shape) > _MAX_RANK or count > _MOST_ELEMENTS:
        _fail(at, f"has rank {len(shape)} or more than 2^40 elements")
    return tuple(_text(size, at) if isinstance(size, str) else size for size in shape)


def _strings(value: Any, at: str, dtype: str, shape: Shape | None) -> Array:
    found = np.array(_list(value, at, _text), object)
    if dtype != "string" or shape is None or math.prod(s if isinstance(s, int) else -1 for s in shape) != found.size:
        _fail(at, f"{found.size} strings do not make a tensor of {dtype} with shape {shape}")
    return found.reshape(tuple(int(size) for size in shape))


def _typed(array: Array, dtype: str, shape: Shape | None, at: str) -> Array:
    """The stored array as the tensor's type, without a copy."""
    if dtype in ("string", "unknown") or array.dtype != numpy_dtype(STORED_AS.get(dtype, dtype)) or array.shape != shape:
        _fail(at, f"the array is {array.dtype} of shape {array.shape}, the tensor {dtype} of shape {shape}")
    if dtype not in STORED_AS:
        return array
    low, high = (0, 15) if dtype == "float4e2m1" else integer_range(dtype)
    if array.size and not (low <= array.min() and array.max() <= high):
        _fail(at, f"the array holds values outside {dtype}")
    return array.view(numpy_dtype(dtype))


def _quantization(value: Any, at: str, shape: Shape | None) -> Quantization:
    fields = _object(value, at, {"scale", "zero_point"}, {"axis", "block_size", "quant_min", "quant_max"})
    with np.errstate(over="ignore"):
        scale = np.array(_list(fields["scale"], f"{at}.scale", _number), np.float32)
    zero_point = np.array(_list(fields["zero_point"], f"{at}.zero_point", _integer), np.int64)
    axis = fields.get("axis")
    axis = None if axis is None else _integer(axis, f"{at}.axis", 0)
    block_size = _integer(fields.get("block_size", 0), f"{at}.block_size", 0)
    if block_size and axis is not None:
        blocks = _block_shape(shape, axis, block_size, at)
        if scale.size != math.prod(blocks) or zero_point.size != scale.size:
            _fail(at, f"{scale.size} scales and {zero_point.size} zero points are not one for each block, {blocks}")
        scale, zero_point = scale.reshape(blocks), zero_point.reshape(blocks)
    limits = (_integer(fields[name], f"{at}.{name}") if name in fields else None for name in ("quant_min", "quant_max"))
    return Quantization(scale, zero_point, axis, block_size, *limits)


def _block_shape(shape: Shape | None, axis: int, block_size: int, at: str) -> tuple[int, ...]:
    """The shape of the scales of a tensor: its own, but for `axis`, which has one for each block."""
    if shape is None or axis >= len(shape) or any(isinstance(size, str) for size in shape):
        _fail(at, f"blocks along axis {axis} need a tensor with that axis and with sizes that are known, not {shape}")
    return tuple(-(-int(size) // block_size) if i == axis else int(size) for i, size in enumerate(shape))
