"""A canonical graph as the JSON document of a .qgraph file (docs/qgraph.schema.json), and back. Constants are read as views on the
memory-mapped file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import IN_BYTES
from qconvert.checkpoints.safetensors import read_tensors
from qconvert.errors import FileAccessError, InvalidModelError, UnsupportedError
from qconvert.files.documents import fail, integer, json_of, list_of, number, object_of, sort_of, special, text, text_map, texts
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
from qconvert.operators import KINDS

VERSION = 1

#: Types that safetensors lacks -> the one-byte type that stores them, one element a byte; a float4e2m1 as its four bits.
STORED_AS = {**IN_BYTES, "float4e2m1": "uint8"}


def stored_arrays(graph: Graph) -> dict[str, Tensor]:
    """The constants that are stored as arrays, by their keys in the safetensors file: their names, if these are free."""
    found: dict[str, Tensor] = {}
    for tensor in _constants(graph):
        if tensor.dtype == "string":
            continue
        # "__metadata__" is safetensors' own key; functions and states may have tensors of the same names.
        key, number = "__metadata___data" if tensor.name == "__metadata__" else tensor.name, 1
        while key in found or (key != tensor.name and key in graph.tensors):
            key, number = f"{tensor.name}_{number}", number + 1
        found[key] = tensor
    return found


def _constants(graph: Graph) -> Iterator[Tensor]:
    yield from graph.constants()
    yield from graph.states.values()
    for inner in graph.functions.values():
        yield from inner.constants()


def to_document(graph: Graph) -> dict[str, Any]:
    """The graph as JSON values, with keys in place of the constants' data; strings stand in the document."""
    keys = {id(tensor): key for key, tensor in stored_arrays(graph).items()}
    document = {"qgraph": VERSION, **_graph_document(graph, keys)}
    if graph.functions:
        document["functions"] = {name: _graph_document(inner, keys) for name, inner in graph.functions.items()}
    if graph.states:
        document["states"] = [_tensor_document(state, keys) for state in graph.states.values()]
    return document


def _graph_document(graph: Graph, keys: Mapping[int, str]) -> dict[str, Any]:
    return {
        "name": graph.name,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "signatures": [
            {"key": s.key, "inputs": dict(s.inputs), "outputs": dict(s.outputs), **({"function": s.function} if s.function else {})}
            for s in graph.signatures
        ],
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


def _tensor_document(tensor: Tensor, keys: Mapping[int, str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": None if tensor.shape is None else list(tensor.shape),
    }
    if tensor.quantization is not None:
        found["quantization"] = _quantization_document(tensor.quantization)
    if id(tensor) in keys:
        found["data"] = keys[id(tensor)]
    elif tensor.data is not None:
        found["strings"] = [str(value) for value in tensor.data.reshape(-1)]
    return found


def _quantization_document(q: Quantization) -> dict[str, Any]:
    limits = {"quant_min": q.quant_min, "quant_max": q.quant_max}
    return {
        "scale": [_value_document(float(value)) for value in q.scale.reshape(-1)],
        "zero_point": [int(value) for value in q.zero_point.reshape(-1)],
        "axis": q.axis,
        "block_size": q.block_size,
        **{name: limit for name, limit in limits.items() if limit is not None},
    }


#: Before the place of an error.
_ROOT = "graph document, "
#: Of a tensor in a file.
MOST_ELEMENTS = 2**40
MAX_RANK = 64


def from_document(document: Any, constants: Mapping[str, Array]) -> Graph:
    """The graph of a document.

    Args:
        document: JSON values in the form of docs/qgraph.schema.json.
        constants: the arrays of the file by key, with the types and shapes that they are stored under.

    Raises:
        InvalidModelError: the document does not have that form or does not fit the arrays; where says the place.
    """
    fields = object_of(document, f"{_ROOT}graph", {"qgraph", *_REQUIRED}, {*_OPTIONAL, "functions", "states"})
    if fields["qgraph"] != VERSION or isinstance(fields["qgraph"], bool):
        fail(
            f"{_ROOT}qgraph",
            f"the version of the document is {fields['qgraph']!r}; version {VERSION} can be read",
            rule="version-not-covered",
        )
    functions = fields.get("functions", {})
    if not isinstance(functions, dict):
        fail(f"{_ROOT}functions", f"is {sort_of(functions)}, not an object", rule="wrong-type")
    return replace(
        _graph({name: value for name, value in fields.items() if name in (*_REQUIRED, *_OPTIONAL)}, _ROOT, constants),
        functions={
            text(name, f"{_ROOT}functions"): _graph(inner, f"{_ROOT}functions[{name!r}].", constants) for name, inner in functions.items()
        },
        states=_tensors(fields.get("states", []), f"{_ROOT}states", constants),
    )


_REQUIRED = frozenset(("name", "inputs", "outputs", "ops", "tensors"))
_OPTIONAL = frozenset(("signatures", "metadata"))


def _graph(value: Any, at: str, constants: Mapping[str, Array]) -> Graph:
    """A graph without functions and states; `at` stands before the names of its parts in errors."""
    fields = object_of(value, at.rstrip(".") if at != _ROOT else f"{_ROOT}graph", {*_REQUIRED}, {*_OPTIONAL})
    return Graph(
        name=text(fields["name"], f"{at}name"),
        tensors=_tensors(fields["tensors"], f"{at}tensors", constants),
        ops=tuple(list_of(fields["ops"], f"{at}ops", _op)),
        inputs=texts(fields["inputs"], f"{at}inputs"),
        outputs=texts(fields["outputs"], f"{at}outputs"),
        signatures=tuple(list_of(fields.get("signatures", []), f"{at}signatures", _signature)),
        metadata=text_map(fields.get("metadata", {}), f"{at}metadata"),
    )


def _tensors(value: Any, at: str, constants: Mapping[str, Array]) -> dict[str, Tensor]:
    tensors = list_of(value, at, lambda item, place: _tensor(item, place, constants))
    found = {tensor.name: tensor for tensor in tensors}
    if len(found) != len(tensors):
        fail(at, "two tensors have the same name", rule="duplicate-name")
    return found


def _signature(item: Any, at: str) -> Signature:
    fields = object_of(item, at, {"key", "inputs", "outputs"}, {"function"})
    inputs, outputs = (text_map(fields[side], f"{at}.{side}") for side in ("inputs", "outputs"))
    return Signature(text(fields["key"], f"{at}.key"), inputs, outputs, text(fields.get("function", ""), f"{at}.function"))


def _op(item: Any, at: str) -> Op:
    fields = object_of(item, at, {"kind", "inputs", "outputs"}, {"attributes", "source"})
    kind = text(fields["kind"], f"{at}.kind")
    attributes = fields.get("attributes", {})
    if not isinstance(attributes, dict):
        fail(f"{at}.attributes", f"is {sort_of(attributes)}, not an object", rule="wrong-type")
    return Op(
        kind,
        texts(fields["inputs"], f"{at}.inputs"),
        texts(fields["outputs"], f"{at}.outputs"),
        {text(name, at): _attribute(kind, name, value, f"{at}.attributes.{name}") for name, value in attributes.items()},
        text(fields.get("source", ""), f"{at}.source"),
    )


def _attribute(kind: str, name: str, value: Any, at: str) -> Attribute:
    """A value or a tuple of one sort. Some writers print 1.0 as 1: the operator set says what is a float."""
    if isinstance(value, list):
        items = [_scalar(item, f"{at}[{index}]") for index, item in enumerate(value)]
        if len({isinstance(item, str) for item in items}) > 1:
            fail(at, "is a list of both text and numbers", rule="mixed-list")
        is_text = any(isinstance(item, str) for item in items)
        if not is_text and (any(isinstance(item, float) for item in items) or _sort(kind, name) == "numbers"):
            return tuple(float(item) for item in items)
        return tuple(items)
    value = _scalar(value, at)
    return number(value, at) if _sort(kind, name) == "number" and isinstance(value, int) else value


def _sort(kind: str, name: str) -> str:
    """The sort of an attribute; "" of one that nobody knows."""
    return KINDS[kind].attributes[name].sort if kind in KINDS and name in KINDS[kind].attributes else ""


def _scalar(value: Any, at: str) -> Any:
    value = special(value)
    if isinstance(value, str):
        return text(value, at)
    return value if isinstance(value, float) else integer(value, at)


def _tensor(item: Any, at: str, constants: Mapping[str, Array]) -> Tensor:
    fields = object_of(item, at, {"name", "dtype", "shape"}, {"quantization", "data", "strings"})
    name, dtype = text(fields["name"], f"{at}.name"), text(fields["dtype"], f"{at}.dtype")
    if dtype not in DTYPES:
        fail(f"{at}.dtype", f"the type is {dtype!r}, which is unknown", rule="unknown-type")
    shape = _shape(fields["shape"], f"{at}.shape")
    quantization = _quantization(fields["quantization"], f"{at}.quantization", shape) if "quantization" in fields else None
    data = None
    if "strings" in fields:
        data = _strings(fields["strings"], f"{at}.strings", dtype, shape)
    if "data" in fields:
        key = text(fields["data"], f"{at}.data")
        if data is not None or key not in constants:
            fail(
                f"{at}.data",
                f"the file has no array {key!r}" if data is None else "the tensor has both strings and data",
                rule="array-missing",
            )
        data = _view_as_type(constants[key], dtype, shape, f"{at}.data")
    return Tensor(name, dtype, shape, data, quantization)


def _shape(value: Any, at: str) -> Shape | None:
    if value is None:
        return None
    shape = tuple(list_of(value, at, lambda item, place: item if isinstance(item, str) else integer(item, place, 0)))
    count = math.prod(size for size in shape[:MAX_RANK] if isinstance(size, int) and size)
    if len(shape) > MAX_RANK or count > MOST_ELEMENTS:
        fail(at, f"the rank is {len(shape)}; at most {MAX_RANK} dimensions and 2^40 elements are allowed", rule="too-many-elements")
    return tuple(text(size, at) if isinstance(size, str) else size for size in shape)


def _strings(value: Any, at: str, dtype: str, shape: Shape | None) -> Array:
    found = np.array(list_of(value, at, text), object)
    if dtype != "string" or shape is None or math.prod(s if isinstance(s, int) else -1 for s in shape) != found.size:
        fail(at, f"{found.size} strings do not make a tensor of {dtype} with shape {shape}", rule="array-does-not-fit")
    return found.reshape(tuple(int(size) for size in shape))


def _view_as_type(array: Array, dtype: str, shape: Shape | None, at: str) -> Array:
    """The stored array as the tensor's type, without a copy."""
    if dtype in ("string", "unknown") or array.dtype != numpy_dtype(STORED_AS.get(dtype, dtype)) or array.shape != shape:
        fail(at, f"the array is {array.dtype} of shape {array.shape}, the tensor {dtype} of shape {shape}", rule="array-does-not-fit")
    if dtype not in STORED_AS:
        return array
    low, high = (0, 15) if dtype == "float4e2m1" else integer_range(dtype)
    if array.size and not (low <= array.min() and array.max() <= high):
        fail(at, f"a value of the array is outside of {dtype}", rule="value-outside-type")
    return array.view(numpy_dtype(dtype))


def _quantization(value: Any, at: str, shape: Shape | None) -> Quantization:
    fields = object_of(value, at, {"scale", "zero_point"}, {"axis", "block_size", "quant_min", "quant_max"})
    with np.errstate(over="ignore"):
        scale = np.array(list_of(fields["scale"], f"{at}.scale", number), np.float32)
    zero_point = np.array(list_of(fields["zero_point"], f"{at}.zero_point", integer), np.int64)
    axis = fields.get("axis")
    axis = None if axis is None else integer(axis, f"{at}.axis", 0)
    block_size = integer(fields.get("block_size", 0), f"{at}.block_size", 0)
    if block_size and axis is not None:
        blocks = _block_shape(shape, axis, block_size, at)
        if scale.size != math.prod(blocks) or zero_point.size != scale.size:
            fail(at, f"{scale.size} scales and {zero_point.size} zero points are not one for each block, {blocks}", rule="counts-differ")
        scale, zero_point = scale.reshape(blocks), zero_point.reshape(blocks)
    limits = (integer(fields[name], f"{at}.{name}") if name in fields else None for name in ("quant_min", "quant_max"))
    return Quantization(scale, zero_point, axis, block_size, *limits)


def _block_shape(shape: Shape | None, axis: int, block_size: int, at: str) -> tuple[int, ...]:
    """The shape of the scales of a tensor: its own, but for `axis`, which has one for each block."""
    if shape is None or axis >= len(shape) or any(isinstance(size, str) for size in shape):
        fail(
            at,
            f"blocks along axis {axis} require a tensor with that axis and with static sizes; its shape is {shape}",
            rule="blocks-do-not-fit",
        )
    return tuple(-(-int(size) // block_size) if i == axis else int(size) for i, size in enumerate(shape))


def read(path: Path, options: Mapping[str, Any]) -> Graph:
    """The graph in a .qgraph file.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is damaged.
        UnsupportedError: an array is of a type that is not covered.
    """
    arrays, metadata = read_tensors(path)
    if "qgraph" not in metadata:
        raise InvalidModelError("is a safetensors file without a graph in its metadata", rule="not-this-format")
    return from_document(json_of(metadata["qgraph"], "the graph document"), arrays)


def write(graph: Graph, path: Path, options: Mapping[str, Any]) -> None:
    """Writes the graph to `path`.

    Args:
        graph: what to write.
        path: the file.
        options: "provenance" (str -> str) joins the metadata.

    Raises:
        FileAccessError: the file cannot be written.
        UnsupportedError: a constant string is no text, or a constant's type is unknown.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {}
    for key, tensor in stored_arrays(graph).items():
        assert tensor.data is not None
        if tensor.dtype == "unknown":
            raise UnsupportedError(
                "a constant of an unknown type cannot be stored", where=f"tensor {tensor.name!r}", rule="type-not-storable"
            )
        arrays[key] = np.asarray(_cast_for_storage(tensor.dtype, tensor.data), order="C")
    for tensor in graph.constants():
        if tensor.dtype == "string" and not all(isinstance(value, str) for value in tensor.data.flat):  # type: ignore[union-attr]
            raise UnsupportedError(
                "a constant of strings that are not text cannot be stored", where=f"tensor {tensor.name!r}", rule="text-not-storable"
            )
    document = to_document(graph)
    document["metadata"].update(options.get("provenance") or {})
    try:
        path.touch()
        mode = path.stat().st_mode  # which others may read, as a file of any other format: safetensors makes one for its owner alone
        save_file(arrays, path, metadata={"qgraph": json.dumps(document, allow_nan=False)})
        path.chmod(mode)
    except (SafetensorError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise FileAccessError(f"cannot be written: {reason or error}", file=str(path), rule="file-not-written") from error


def _cast_for_storage(dtype: str, data: Array) -> Array:
    """The data in a type that safetensors has."""
    if dtype == "float4e2m1":
        return data.view(np.uint8) & np.uint8(15)
    return data.astype(STORED_AS[dtype]) if dtype in STORED_AS else data
