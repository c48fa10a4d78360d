"""Integers that get another quantization without being changed (Reinterpret): ONNX has an Identity for them, and the quantization stands in
the metadata.

Where a DequantizeLinear reads them it says their scale; nothing does so of outputs, and of what is compared or moved as plain integers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.graph import Graph, Quantization
from qconvert.graph.metadata import RELABELLED

__all__ = ["read_relabelled_notes", "relabelled_notes"]


def relabelled_notes(*graphs: Graph) -> str:
    """The metadata entry for the results of every Reinterpret: [scale, zero point], [scales, zero points, axis] along an axis, null for
    plain integers; "" if there are none."""
    quantizations = {op.outputs[0]: graph[op.outputs[0]].quantization for graph in graphs for op in graph.ops if op.kind == "Reinterpret"}
    found = {
        name: None if quantization is None else _note(quantization)
        for name, quantization in quantizations.items()
        if quantization is None or not quantization.block_size
    }
    return json.dumps(found) if found else ""


def _note(quantization: Quantization) -> list[Any]:
    if quantization.axis is None:
        return [float(quantization.scale[0]), int(quantization.zero_point[0])]
    return [quantization.scale.tolist(), quantization.zero_point.tolist(), quantization.axis]


def _quantization(note: Sequence[Any]) -> Quantization:
    if len(note) == 2:
        return Quantization.per_tensor(float(note[0]), int(note[1]))
    scales, zero_points, axis = note
    return Quantization.per_axis([float(scale) for scale in scales], int(axis), [int(point) for point in zero_points])


def read_relabelled_notes(metadata: Mapping[str, str]) -> dict[str, Quantization | None]:
    """What the entry says, by tensor.

    Raises:
        InvalidModelError: it is not a map of names to scales and zero points.
    """
    text = metadata.get(RELABELLED)
    if text is None:
        return {}
    try:
        return {str(name): None if note is None else _quantization(note) for name, note in json.loads(text).items()}
    except (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise InvalidModelError(
            f"the metadata entry {RELABELLED} is not a map of names to scales and zero points", rule="malformed-metadata"
        ) from error
