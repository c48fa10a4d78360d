"""Writes a calibration table of ncnn; the mirror of table.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qconvert.encodings import Encoding, Encodings, Place, symmetric_quantization
from qconvert.errors import OptionError, UnsupportedError
from qconvert.graph import Graph, Op
from qconvert.operators import kind_of

__all__ = ["write"]

_REMEDY = "Calibrate with --symmetric, which gives the zero point 0."


def write(encodings: Encodings, graph: Graph | None, path: Path) -> tuple[str, ...]:
    """Writes the lines of layers whose data and weights both have scales; a line of data alone makes ncnn2int8 stop there.

    Args:
        encodings: by tensors or operators.
        graph: of float values, that they belong to: its layers are the lines.
        path: of the file.

    Raises:
        OptionError: there is no graph, or no layer with both scales.
        UnsupportedError: a scale has a quantization that ncnn has not, or a layer's name has blanks.
    """
    if graph is None:
        raise OptionError(
            "a table of ncnn has scales of layers, which are known from the network alone",
            remedy="Give the network along with the scales: graph=…",
            rule="graph-missing",
        )
    weights, data = list[str](), list[str]()
    for op in graph.ops:
        if not kind_of(op).has_weights:
            continue
        found = [_find_encoding(encodings, op, index) for index in (0, 1)]
        if found[0] is None or found[1] is None:
            continue
        name = _name(op)
        weights.append(f"{name}_param_0 {_numbers(found[1], f'{name}_param_0')}")
        data.append(f"{name} {_numbers(found[0], name)}")
    if not data:
        raise OptionError(
            "no layer has scales both of its data and of its weights",
            remedy="Calibrate the network, or write a .json file.",
            rule="no-scales",
        )
    path.write_text("\n".join([*weights, *data]) + "\n", encoding="utf-8", newline="\n")
    rest = len(encodings) - 2 * len(data)
    return (f"the table has {len(data)} layers; ncnn has no place for other scales",) if rest > 0 else ()


def _find_encoding(encodings: Encodings, op: Op, index: int) -> Encoding | None:
    """The encoding of an input of a layer, by the tensor or by the layer."""
    places = (Place(op.inputs[index]), Place(_name_in_file(op), "input", index), Place(op.outputs[0], "input", index))
    return next((encodings.entries[place] for place in places if place.name and place in encodings.entries), None)


def _name_in_file(op: Op) -> str:
    """The operator's name in its file, "" if that gives it none."""
    name = op.source.partition(" ")[2]
    return "" if name.startswith("#") else name


def _name(op: Op) -> str:
    name = _name_in_file(op) or op.outputs[0]
    if len(name.split()) != 1 or name != name.strip() or name.startswith("#") or "_param_" in name:
        raise UnsupportedError(
            "the layer has a name with blanks, '#' or '_param_', which a table of ncnn cannot hold",
            where=repr(name),
            rule="name-not-storable",
        )
    return name


def _numbers(found: Encoding, at: str) -> str:
    """127 / max|x| of each scale, with the digits that bring the float32 back."""
    quantization, middle = symmetric_quantization(found)
    q = quantization.quantization
    if middle is None or q.block_size or (q.zero_point != middle).any():
        raise UnsupportedError(
            f"the type is {quantization.dtype} and the zero point is {int(q.zero_point.reshape(-1)[0])}; ncnn requires symmetric int8",
            where=repr(at),
            remedy=_REMEDY,
            rule="quantization-not-storable",
        )
    return " ".join(f"{1 / float(scale):.9g}" for scale in np.asarray(q.scale, np.float32).reshape(-1))
