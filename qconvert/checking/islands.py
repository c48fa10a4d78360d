"""Cuts an ONNX model at every tensor that the source has too, so that each operator can be fed with the source's own tensors.

A name of the source that the result still has is a cut: whoever reads it gets it as a graph input, whoever writes it writes a graph
output. Between the cuts stand islands of nodes, one for each operator of the source that kept its output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.graph import Array, Tensor, integer_range
from qconvert.graph.metadata import TRANSPOSED

__all__ = ["COMPUTED", "Islands", "cut", "transposed"]

#: What is appended to the name of a cut value for its second name, that of what the result computes.
COMPUTED = "/computed by the result"
_TO_FIRST = (0, 3, 1, 2)


@dataclass(frozen=True, slots=True)
class Islands:
    """The cut model.

    Attributes:
        model: serialized; its inputs are the source's tensors, by name, as the result stores them.
        fed: names of its inputs.
        computed: name of a tensor -> name of the output that holds it as the result computes it.
        shapes: for each name, the rank-known shape in the result (None for a size known only at run time), or None.
        dtypes: for each name, the numpy type in the result.
        transposed: names whose layout is not the source's although their shape does not show it.
        layout: the permutation from the source's layout to the result's, where they differ.
    """

    model: bytes
    fed: tuple[str, ...]
    computed: dict[str, str]
    shapes: dict[str, tuple[int | None, ...] | None]
    dtypes: dict[str, str]
    transposed: frozenset[str]
    layout: tuple[int, ...] = _TO_FIRST

    def as_stored_in_result(self, tensor: Tensor, data: Array) -> Array:
        """The source's stored values as the result stores them: int8 moved to uint8 or back, in the result's layout.

        Zero points do not take part on purpose: a result whose zero point is wrong must not be fed as if it were right.
        """
        moved = _shifted(tensor, data, tensor.dtype, self.dtypes[tensor.name])
        shape = self.shapes[tensor.name]
        if moved.ndim != 4 or shape is None or len(shape) != 4:
            return moved
        permuted = moved.transpose(self.layout)
        if tensor.name in self.transposed or (not _fits(moved.shape, shape) and _fits(permuted.shape, shape)):
            return permuted
        return moved

    def as_stored_in_source(self, tensor: Tensor, data: Array, like: Array) -> Array:
        """What the result computed, in the layout and storage of the source's values `like`."""
        if data.ndim == 4 == like.ndim and (tensor.name in self.transposed or data.shape != like.shape):
            back = data.transpose(np.argsort(self.layout))
            data = back if back.shape == like.shape else data
        return _shifted(tensor, data, self.dtypes[tensor.name], tensor.dtype)


def cut(model: Any, names: set[str], described: Mapping[str, Any] | None = None) -> Islands:
    """Cuts an onnx.ModelProto at the values called `names`; those that it does not have are ignored.

    Args:
        model: the model.
        names: where to cut.
        described: the values' ValueInfoProtos by name; by default what onnx's shape inference finds.
    """
    from onnx import helper

    known = _inferred(model) if described is None else described
    constants = {item.name for item in model.graph.initializer}
    written = {name for node in model.graph.node for name in node.output}
    cuts = {name for name in names if (name in written or name in known) and name not in constants}
    untyped = sorted(name for name in cuts if name not in known or not known[name].type.tensor_type.elem_type)
    if untyped:
        raise InvalidModelError("has a value whose type cannot be inferred", where=repr(untyped[0]))
    cut_model = type(model)()
    cut_model.CopyFrom(model)
    read: set[str] = set()
    for node in cut_model.graph.node:
        read.update(name for name in _reads(node) if name in cuts)
        for position, name in enumerate(node.output):
            if name in cuts:
                node.output[position] = name + COMPUTED
    del cut_model.graph.input[:]
    del cut_model.graph.output[:]
    del cut_model.graph.value_info[:]
    fed = [name for name in sorted(cuts) if name in read]
    cut_model.graph.input.extend(known[name] for name in fed)
    computed = {name: name + COMPUTED for name in sorted(cuts & written)}
    cut_model.graph.output.extend(
        helper.make_tensor_value_info(new, known[name].type.tensor_type.elem_type, None) for name, new in computed.items()
    )
    return Islands(
        cut_model.SerializeToString(),
        tuple(fed),
        computed,
        {name: _shape(known[name]) for name in cuts},
        {name: helper.tensor_dtype_to_np_dtype(known[name].type.tensor_type.elem_type).name for name in cuts},
        frozenset(transposed({item.key: item.value for item in model.metadata_props})),
    )


def _inferred(model: Any) -> dict[str, Any]:
    """Names, types and shapes of a model's values, as onnx infers them."""
    from onnx import shape_inference

    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    return {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}


def _reads(node: Any) -> Iterator[str]:
    """The names that a node reads, those in its subgraphs included."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from _reads(inner)


def transposed(metadata: Mapping[str, str]) -> list[str]:
    """What a result's own metadata say of layouts."""
    try:
        found = json.loads(metadata.get(TRANSPOSED, "[]"))
    except ValueError:
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _shape(value: Any) -> tuple[int | None, ...] | None:
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim)


def _shifted(tensor: Tensor, data: Array, have: str, want: str) -> Array:
    """Stored values moved by 128 between int8 and uint8, or as real numbers where only one side has floats there, and back."""
    if tensor.quantization is not None and have != want and "float32" in (have, want):
        scale, zero_point = float(tensor.quantization.scale[0]), int(tensor.quantization.zero_point[0])
        if want == "float32":
            return np.asarray((data.astype(np.float64) - zero_point) * scale, np.float32)
        low, high = integer_range(want)
        return np.asarray(np.clip(np.rint(data.astype(np.float64) / scale) + zero_point, low, high).astype(want))
    offset = {("int8", "uint8"): 128, ("uint8", "int8"): -128}.get((have, want), 0)
    return np.asarray((data.astype(np.int16) + offset).astype(want) if offset else data)


def _fits(actual: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return all(w is None or w in (0, a) for a, w in zip(actual, wanted, strict=True))
