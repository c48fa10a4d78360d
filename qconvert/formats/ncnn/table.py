"""Calibration tables of ncnn, read and written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.encodings import Encoding, Encodings, Place, QParams, symmetric_quantization
from qconvert.errors import InvalidModelError, OptionError, UnsupportedError, format_count
from qconvert.files import map_file
from qconvert.graph import Array, Graph, Op, Quantization
from qconvert.operators import kind_of

_PARAMETER = re.compile(r"(.+)_param_(\d+)", re.DOTALL)
#: What ncnn's own reader takes of a key, and of a file what the largest networks have many times over.
_LONGEST, _LARGEST = 255, 64_000_000
_START = 4096


def holds(path: Path) -> bool:
    """Whether a file is a table by its first line: a key and numbers.

    Raises:
        FileAccessError: it cannot be read.
    """
    try:
        lines = bytes(map_file(path)[:_START]).decode("utf-8", "replace").splitlines()
    except InvalidModelError:
        return False
    found = next((line.split() for line in lines if line.strip() and not line.startswith("#")), [])
    return len(found) > 1 and _number(found[1]) is not None


def read(path: Path, options: Mapping[str, Any]) -> Encodings:
    """The encodings of a table: int8 with zero point 0; of weights without -128, which ncnn does not use.

    Raises:
        FileAccessError: it cannot be read.
        InvalidModelError: a line is damaged.
        UnsupportedError: it has weights in blocks, or other parameters than the first.
    """
    data = map_file(path)
    if len(data) > _LARGEST:
        raise InvalidModelError(f"has {len(data)} bytes; a table of at most {_LARGEST} bytes can be read", rule="file-too-large")
    try:
        lines = bytes(data).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidModelError(f"is not UTF-8: {error.reason} at byte {error.start}", rule="not-utf8") from error
    entries: dict[Place, Encoding] = {}
    notes: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            if any(later.strip() for later in lines[number:]):
                notes.append(f"line {number} is empty: ncnn reads no further, here the rest is taken too")
            continue
        if not line.startswith("#"):
            _add_entry(entries, line.split(), f"line {number}")
    if not entries:
        raise InvalidModelError("is not a table of ncnn: no line has the name of a layer and its scales", rule="not-this-format")
    lone = sorted({place.name for place in entries if place.index == 0} - {place.name for place in entries if place.index == 1})
    if lone:
        notes.append(
            f"{format_count(len(lone), 'layer', 'have')} a scale of data and none of weights, at which ncnn2int8 stops: "
            f"{', '.join(lone[:3])}"
        )
    return Encodings(entries, "ncnn's table", notes=tuple(dict.fromkeys(notes)))


def _add_entry(entries: dict[Place, Encoding], words: list[str], at: str) -> None:
    """Takes the entry of a line in."""
    key, rest = words[0], words[1:]
    if len(key.encode()) > _LONGEST:
        raise InvalidModelError(f"the key has {len(key.encode())} bytes; ncnn requires at most {_LONGEST}", where=at, rule="name-too-long")
    if any("=" in word for word in rest):
        raise UnsupportedError(f"{key!r} has weights in blocks ({rest[0]}), which are not covered", where=at, rule="blocks-not-covered")
    found = _PARAMETER.fullmatch(key)
    if found is not None and int(found[2]):
        raise UnsupportedError(
            f"{key!r} is a second set of weights, as attention and recurrent layers have, which are not covered",
            where=at,
            rule="not-covered",
        )
    values = [_number(word) for word in rest]
    if not rest or any(value is None for value in values):
        raise InvalidModelError(f"{key!r} is followed by {rest[:1]}, which is not a number", where=at, rule="not-a-number")
    scale = _scales(np.array(values, np.float64), f"{at}, {key!r}")
    if found is None and scale.size != 1:
        raise InvalidModelError(f"{key!r} has {scale.size} scales of data; ncnn requires one", where=at, rule="not-per-tensor")
    place = Place(key if found is None else found[1], "input", 0 if found is None else 1)
    if place in entries:
        raise InvalidModelError(f"{key!r} occurs twice", where=at, rule="duplicate-name")
    limits = (None, None) if found is None else (-127, 127)
    entries[place] = Encoding(QParams("int8", Quantization(scale, np.zeros(scale.shape, np.int64), None, 0, *limits)))


def _scales(inverse: Array, at: str) -> Array:
    """Scales of the numbers in a table. 0 marks a channel of zeros, which any scale holds: it gets the largest scale of the others.

    Raises:
        InvalidModelError: a number is no positive one.
    """
    if not np.isfinite(inverse).all() or (inverse < 0).any() or not inverse.any():
        raise InvalidModelError("a scale is not a finite, positive number", where=at, rule="scale-not-positive")
    inverse = np.where(inverse > 0, inverse, inverse[inverse > 0].min())
    with np.errstate(over="ignore", under="ignore"):
        scale = (1 / inverse).astype(np.float32)
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise InvalidModelError("a scale is outside the range of float32", where=at, rule="scale-not-float32")
    return scale


def _number(word: str) -> float | None:
    try:
        return float(word) if "_" not in word else None
    except ValueError:
        return None


_REMEDY = "Calibrate with --symmetric, which gives the zero point 0."


def write(encodings: Encodings, graph: Graph | None, path: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
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
    return (f"the table has {format_count(len(data), 'layer')}; ncnn has no place for other scales",) if rest > 0 else ()


def _find_encoding(encodings: Encodings, op: Op, index: int) -> Encoding | None:
    """The encoding of an input of a layer, by the tensor or by the layer."""
    places = (Place(op.inputs[index]), Place(op.source_name, "input", index), Place(op.outputs[0], "input", index))
    return next((encodings.entries[place] for place in places if place.name and place in encodings.entries), None)


def _name(op: Op) -> str:
    name = op.source_name or op.outputs[0]
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
            f"the type is {quantization.dtype} and the zero point is {q.point}; ncnn requires symmetric int8",
            where=repr(at),
            remedy=_REMEDY,
            rule="quantization-not-storable",
        )
    return " ".join(f"{1 / float(scale):.9g}" for scale in np.asarray(q.scale, np.float32).reshape(-1))
