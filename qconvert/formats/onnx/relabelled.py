"""Integers that get another grid without being changed (Reinterpret): ONNX has an Identity for them, and the grid stands in the metadata.

Where a DequantizeLinear reads them it says their scale; nothing does so of outputs, and of what is compared or moved as plain integers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from qconvert.errors import InvalidModelError
from qconvert.graph import Graph, Quantization
from qconvert.graph.metadata import RELABELLED

__all__ = ["relabelled", "relabelled_notes"]


def relabelled_notes(*graphs: Graph) -> str:
    """The metadata entry for the results of every Reinterpret: [scale, zero point], null for plain integers; "" if there are none."""
    grids = {op.outputs[0]: graph[op.outputs[0]].quantization for graph in graphs for op in graph.ops if op.kind == "Reinterpret"}
    found = {
        name: None if grid is None else [float(grid.scale[0]), int(grid.zero_point[0])]
        for name, grid in grids.items()
        if grid is None or grid.is_per_tensor
    }
    return json.dumps(found) if found else ""


def relabelled(metadata: Mapping[str, str]) -> dict[str, Quantization | None]:
    """What the entry says, by tensor.

    Raises:
        InvalidModelError: it is no map of names to grids.
    """
    text = metadata.get(RELABELLED)
    if text is None:
        return {}
    try:
        found = {str(name): None if grid is None else (float(grid[0]), int(grid[1])) for name, grid in json.loads(text).items()}
        return {name: None if grid is None else Quantization.per_tensor(*grid) for name, grid in found.items()}
    except (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise InvalidModelError(f"the metadata entry {RELABELLED} is no map of names to grids") from error
