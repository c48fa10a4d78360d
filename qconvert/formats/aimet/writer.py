"""Writes AIMET's encodings, of the versions 1.0.0 and 2.0.0; the mirror of reader.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qconvert.encodings import Encoding, Encodings, Grid, Place, grid_of
from qconvert.errors import UnsupportedError
from qconvert.graph import Graph, integer_range

__all__ = ["write"]

_REMEDY = "Write qconvert's own encodings, a .json file."


def write(encodings: Encodings, graph: Graph | None, path: Path, version: str) -> tuple[str, ...]:
    """Writes the file. Integers of constants are not in it: AIMET rounds the weights of the model anew.

    Args:
        encodings: by tensors.
        graph: that they belong to, which says what is a parameter; None where the entries' integers say it.
        path: of the file.
        version: "1.0.0" or "2.0.0".

    Raises:
        UnsupportedError: an entry is of an operator's input or output, or on a grid that AIMET has not.
    """
    entries = [(_name(place), found, _grid(found)) for place, found in encodings.entries.items()]
    if version == "2.0.0":
        document: dict[str, Any] = {"encodings": [_second(name, grid) for name, _, grid in entries]}
    else:
        document = {"activation_encodings": [], "param_encodings": []}
        for name, found, grid in entries:
            side = "param_encodings" if _is_parameter(name, found, graph) else "activation_encodings"
            document[side].append(_first(name, grid))
    path.write_text(json.dumps({**document, "version": version, "producer": {"package": "qconvert"}}, indent=1) + "\n", encoding="utf-8")
    kept = sum(found.integers is not None for _, found, _ in entries)
    return (f"the integers of {kept} constants are not in the file: AIMET rounds the model's weights onto these grids",) if kept else ()


def _name(place: Place) -> str:
    if place.role != "tensor":
        raise UnsupportedError("AIMET names tensors, not operators", where=str(place), remedy=_REMEDY)
    return place.name


def _grid(found: Encoding) -> Grid:
    if found.grid is not None:
        return found.grid
    assert found.range is not None
    return grid_of(found.range)


def _is_parameter(name: str, found: Encoding, graph: Graph | None) -> bool:
    if graph is not None and name in graph.tensors:
        return graph[name].is_constant
    return found.integers is not None


def _bits(name: str, grid: Grid) -> int:
    """The bits that a grid uses; AIMET's are whole: -2^(bits - 1) to 2^(bits - 1) - 1, or from 0."""
    low, high = integer_range(grid.dtype) if not grid.dtype.startswith("float") else (0, 0)
    if high <= 0:
        raise UnsupportedError(
            f"has a grid of {grid.dtype}, which AIMET's encodings of this version have not", where=repr(name), remedy=_REMEDY
        )
    return (high - low).bit_length()


def _first(name: str, grid: Grid) -> dict[str, Any]:
    q, bits = grid.quantization, _bits(name, grid)
    if q.block_size:
        raise UnsupportedError("has scales in blocks, which version 1 does not lay out", where=repr(name), remedy="Write version 2.0.0.")
    shift = 2 ** (bits - 1) if grid.dtype.startswith("int") else 0
    return {
        "name": name,
        "enc_type": "PER_TENSOR" if q.scale.size == 1 else "PER_CHANNEL",
        "dtype": "INT",
        "bw": bits,
        "is_sym": bool(shift) and q.is_symmetric,
        "scale": [float(value) for value in q.scale],
        "offset": [-int(point) - shift for point in q.zero_point],
    }


def _second(name: str, grid: Grid) -> dict[str, Any]:
    q = grid.quantization
    _bits(name, grid)
    scale, points = q.scale.astype(float).tolist(), q.zero_point.tolist()
    if q.scale.size == 1 and not q.block_size:
        scale, points = scale[0], points[0]
    entry = {"name": name, "output_dtype": grid.dtype, "y_scale": scale}
    if q.zero_point.any():
        entry["y_zero_point"] = points
    if q.axis is not None:
        entry["axis"] = q.axis
    return {**entry, "block_size": q.block_size} if q.block_size else entry
