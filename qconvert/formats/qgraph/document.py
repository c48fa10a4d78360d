"""The canonical graph as a JSON document, and back. `qconvert inspect --json` prints the same document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.graph import DTYPES, Array, Graph, Op, Quantization, Signature, Tensor

__all__ = ["VERSION", "from_document", "to_document"]

VERSION = 1


def to_document(graph: Graph) -> dict[str, Any]:
    """The graph without the data of its constants. Numbers survive: a float32 is printed with the digits that identify it."""
    return {
        "qgraph": VERSION,
        "name": graph.name,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "signatures": [{"key": s.key, "inputs": dict(s.inputs), "outputs": dict(s.outputs)} for s in graph.signatures],
        "metadata": dict(graph.metadata),
        "ops": [_op(op) for op in graph.ops],
        "tensors": [_tensor(tensor) for tensor in graph.tensors.values()],
    }


def _op(op: Op) -> dict[str, Any]:
    attributes = {k: list(v) if isinstance(v, tuple) else v for k, v in op.attributes.items()}
    return {"kind": op.kind, "inputs": list(op.inputs), "outputs": list(op.outputs), "attributes": attributes, "source": op.source}


def _tensor(tensor: Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": None if tensor.shape is None else list(tensor.shape),
        "constant": tensor.is_constant,
    }
    if tensor.quantization is not None:
        q = tensor.quantization
        found["quantization"] = {
            "scale": [float(v) for v in q.scale],
            "zero_point": [int(v) for v in q.zero_point],
            "axis": q.axis,
            "block_size": q.block_size,
        }
    return found


def from_document(document: Any, constants: Mapping[str, Array]) -> Graph:
    """The graph of a document and the data of its constants by name.

    Raises InvalidModelError if the document does not have the form of docs/qgraph.schema.json.
    """
    try:
        if document["qgraph"] != VERSION:
            raise InvalidModelError(f"version {document['qgraph']!r} of the graph document; this program reads {VERSION}")
        graph = Graph(
            name=_text(document["name"]),
            tensors={t.name: t for t in (_read_tensor(item, constants) for item in document["tensors"])},
            ops=tuple(_read_op(item) for item in document["ops"]),
            inputs=tuple(map(_text, document["inputs"])),
            outputs=tuple(map(_text, document["outputs"])),
            signatures=tuple(Signature(_text(s["key"]), _texts(s["inputs"]), _texts(s["outputs"])) for s in document["signatures"]),
            metadata=_texts(document["metadata"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidModelError(f"the graph document is damaged: {type(error).__name__}: {error}") from error
    if len(graph.tensors) != len(document["tensors"]):
        raise InvalidModelError("two tensors have the same name")
    return graph


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _texts(value: Any) -> dict[str, str]:
    return {_text(k): _text(v) for k, v in value.items()}


def _read_op(item: Any) -> Op:
    attributes = {k: tuple(v) if isinstance(v, list) else v for k, v in item["attributes"].items()}
    return Op(_text(item["kind"]), tuple(map(_text, item["inputs"])), tuple(map(_text, item["outputs"])), attributes, _text(item["source"]))


def _read_tensor(item: Any, constants: Mapping[str, Array]) -> Tensor:
    name, dtype = _text(item["name"]), item["dtype"]
    if dtype not in DTYPES:
        raise ValueError(f"there is no type {dtype!r}")
    shape = None if item["shape"] is None else tuple(size if isinstance(size, str) else int(size) for size in item["shape"])
    data = constants[name] if item["constant"] else None
    quantization = None
    if "quantization" in item:
        q = item["quantization"]
        axis = None if q["axis"] is None else int(q["axis"])
        scale, zero_point = np.array(q["scale"], np.float32), np.array(q["zero_point"], np.int64)
        if scale.ndim != 1 or zero_point.ndim != 1:
            raise ValueError(f"the scales of {name!r} are no list of numbers")
        quantization = Quantization(scale, zero_point, axis, int(q["block_size"]))
    return Tensor(name, dtype, shape, data, quantization)
