"""Graphs of an ONNX model, the main one and those inside nodes: their values, and their nodes read in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from qconvert.formats.onnx.initializers import DTYPE_NAMES
from qconvert.formats.onnx.opaque import read_opaque
from qconvert.formats.onnx.reading import NotCoveredError, Reading, decode_texts
from qconvert.formats.reading.draft import Draft
from qconvert.graph import Shape, canonical_dtype
from qconvert.operators.sizes import UNKNOWN
from qconvert.plugins import operators

Declared = MutableMapping[str, tuple[str, Shape | None]]


def declared_values(graph: Any) -> Iterator[tuple[str, tuple[str, Shape | None]]]:
    """Name, type and shape of every value that a graph names, as the file or its shape inference says it."""
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs if value.name)]
    inputs = set(graph.inputs)
    for value in values:
        is_tensor = value.type is None or value.type.name == "Tensor"
        dtype = DTYPE_NAMES.get(value.type.element, "unknown") if value.type is not None and is_tensor else "unknown"
        yield value.name, (dtype, _shape(value, value in inputs) if is_tensor else None)


def _shape(value: Any, is_input: bool) -> Shape | None:
    """The shape that is stated. Sizes without a name, or numbered by onnx's shape inference (unk__0 …), say nothing of inner values."""
    if value.shape is None:
        return None
    sizes = [None if isinstance(size, str) and size.startswith("unk__") and not is_input else size for size in value.shape]
    unnamed = (f"{value.name}_{axis}" if is_input else UNKNOWN for axis in range(len(sizes)))
    return tuple(size if isinstance(size, int) else size or name for size, name in zip(sizes, unnamed, strict=True))


def add_constants(graph: Any, draft: Draft) -> None:
    """Declares the constants of a graph."""
    for value in graph.initializers.values():
        data = decode_texts(value.const_value.numpy())
        draft.add_exactly(value.name, canonical_dtype(data.dtype), data.shape, data)


def read_nodes(nodes: Iterable[Any], draft: Draft, opsets: Mapping[str, int], declared: Declared) -> None:
    """Reads nodes in order into `draft`; what no read function takes becomes an Opaque operator.

    Args:
        nodes: of one graph.
        draft: with the inputs and constants of that graph.
        opsets: version of each domain.
        declared: see declared_values().
    """
    readers = operators("onnx", "read")
    for node in nodes:
        reading = Reading(draft, node, opsets, declared)
        reading.require_types()
        key = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        count, functions = len(draft.ops), len(draft.functions)
        try:
            if key not in readers:
                raise NotCoveredError(key)
            readers[key](reading)
        except NotCoveredError:
            draft.withdraw(count, functions)
            read_opaque(reading, node, draft)
