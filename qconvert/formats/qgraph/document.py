"""The canonical graph as a JSON document, and back. `qconvert inspect --json` prints the same document.

docs/qgraph.schema.json describes it. Numbers survive: a float is printed with the digits that identify it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from qconvert.errors import InvalidModelError
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

__all__ = ["STORED_AS", "VERSION", "data_keys", "from_document", "to_document"]

VERSION = 1

#: Types that safetensors lacks -> the one-byte type that stores them, one element a byte; a float4e2m1 as its four bits.
STORED_AS = {"int2": "int8", "uint2": "uint8", "int4": "int8", "uint4": "uint8", "float4e2m1": "uint8"}

_MOST_ELEMENTS = 2**40
_MAX_RANK = 64


def data_keys(graph: Graph) -> dict[str, str]:
    """The key in the safetensors file of each constant stored as an array: its name, if that is free."""
    keys: dict[str, str] = {}
    for tensor in graph.constants():
        if tensor.dtype != "string":
            reserved = tensor.name == "__metadata__"  # safetensors' own key
            keys[tensor.name] = graph.names().fresh("__metadata___data") if reserved else tensor.name
    return keys


def to_document(graph: Graph) -> dict[str, Any]:
    """The graph as JSON values, with keys in place of the constants' data; strings stand in the document."""
    keys = data_keys(graph)
    return {
        "qgraph": VERSION,
        "name": graph.name,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "signatures": [{"key": s.key, "inputs": dict(s.inputs), "outputs": dict(s.outputs)} for s in graph.signatures],
        "metadata": dict(graph.metadata),
        "ops": [_op_document(op) for op in graph.ops],
        "tensors": [_tensor_document(tensor, keys) for tensor in graph.tensors.values()],
    }


def _op_document(op: Op) -> dict[str, Any]:
    attributes = {
        name: [_value_document(item) for item in value] if isinstance(value, tuple) else _value_document(value)
        for name, value in op.attributes.items()
    }
    return {
        "kind": op.kind,
        "inputs": list(op.inputs),
        "outputs": list(op.outputs),
        "attributes": attributes,
        "source": op.source,
    }


def _value_document(value: Any) -> Any:
    """JSON has no infinity and no NaN: these become {"float": "inf"} and the like."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    return value


def _tensor_document(tensor: Tensor, keys: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": None if tensor.shape is None else list(tensor.shape),
    }
    if tensor.quantization is not None:
        q = tensor.quantization
        found["quantization"] = {
            "scale": [_value_document(float(value)) for value in q.scale.reshape(-1)],
            "zero_point": [int(value) for value in q.zero_point.reshape(-1)],
            "axis": q.axis,
            "block_size": q.block_size,
        }
    if tensor.name in keys:
        found["data"] = keys[tensor.name]
    elif tensor.data is not None:
        found["strings"] = [str(value) for value in tensor.data.reshape(-1)]
    return found


def from_document(document: Any, constants: Mapping[str, Array]) -> Graph:
    """The graph of a document.

    Args:
        document: JSON values in the form of docs/qgraph.schema.json.
        constants: the arrays of the file by key, with the types and shapes that they are stored under.

    Raises:
        InvalidModelError: the document does not have that form or does not fit the arrays; where says the place.
    """
    fields = _object(
        document,
        "graph",
        {"qgraph", "name", "inputs", "outputs", "ops", "tensors"},
        {"signatures", "metadata"},
    )
    if fields["qgraph"] != VERSION or isinstance(fields["qgraph"], bool):
        _fail("qgraph", f"version {fields['qgraph']!r} of the document; version {VERSION} can be read")
    listed = _list(fields["tensors"], "tensors", lambda item, at: _tensor(item, at, constants))
    tensors = {tensor.name: tensor for tensor in listed}
    if len(tensors) != len(listed):
        _fail("tensors", "two tensors have the same name")
    return Graph(
        name=_text(fields["name"], "name"),
        tensors=tensors,
        ops=tuple(_list(fields["ops"], "ops", _op)),
        inputs=_texts(fields["inputs"], "inputs"),
        outputs=_texts(fields["outputs"], "outputs"),
        signatures=tuple(_list(fields.get("signatures", []), "signatures", _signature)),
        metadata=_text_map(fields.get("metadata", {}), "metadata"),
    )


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
    is_float = kind in KINDS and isinstance(KINDS[kind].attributes.get(name), float)
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
    fields = _object(value, at, {"scale", "zero_point"}, {"axis", "block_size"})
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
    return Quantization(scale, zero_point, axis, block_size)


def _block_shape(shape: Shape | None, axis: int, block_size: int, at: str) -> tuple[int, ...]:
    """The shape of the scales of a tensor: its own, but for `axis`, which has one for each block."""
    if shape is None or axis >= len(shape) or any(isinstance(size, str) for size in shape):
        _fail(at, f"blocks along axis {axis} need a tensor with that axis and with sizes that are known, not {shape}")
    return tuple(-(-int(size) // block_size) if i == axis else int(size) for i, size in enumerate(shape))
