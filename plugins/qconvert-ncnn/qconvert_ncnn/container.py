"""The files of a network of ncnn: .param, text with a line for each layer, and .bin, the layers' weights one after the other.

A line is `<type> <name> <inputs> <outputs> <blobs…> <key>=<value>…`; keys are small numbers, of arrays -23300 less the key. The weights of
each type of layer are in the order of its load_model (src/layer/*.cpp). Sources: ncnn,
docs/developer-guide/param-and-model-file-structure.md, src/paramdict.cpp and src/modelbin.cpp.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import Array, InvalidModelError, UnsupportedError, map_file

#: The first line of a .param file.
MAGIC = "7767517"
#: ncnn reads names of up to 255 bytes, and has keys up to 31.
_LONGEST, _KEYS = 255, 32
_ARRAY = -23300
_MOST_LAYERS, _MOST_BLOBS = 1_000_000, 10_000
#: Marks before weights: float16, int8, and float32 without a mark of its own.
_HALF, _INT8, _PLAIN = 0x01306B47, 0x000D4B38, 0x0002C056

Number = int | float


@dataclass(frozen=True, slots=True)
class Layer:
    """A line of a .param file.

    Attributes:
        kind: its type, such as "Convolution".
        inputs, outputs: names of blobs.
        params: key -> a number, or numbers.
        weights: its packed weights in the .bin file, in order; () for a layer that was read.
    """

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    params: dict[int, Number | tuple[Number, ...]] = field(default_factory=dict)
    weights: tuple[bytes, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def invalid(self, what: str, *, rule: str) -> InvalidModelError:
        """Return the error for something that ncnn does not allow."""
        return InvalidModelError(what, where=str(self), rule=rule)

    def integer(self, key: int, default: int = 0) -> int:
        """Return an integer parameter."""
        found = self.params.get(key, default)
        if isinstance(found, tuple) or found != int(found):
            raise self.invalid(f"the parameter {key} is {found}, not an integer", rule="not-a-number")
        return int(found)

    def number(self, key: int, default: float = 0.0) -> float:
        found = self.params.get(key, default)
        if isinstance(found, tuple):
            raise self.invalid(f"the parameter {key} is a list of numbers, not one number", rule="not-a-number")
        return float(found)

    def numbers(self, key: int) -> tuple[Number, ...]:
        """Return an array parameter; () if it is missing."""
        found = self.params.get(key, ())
        return found if isinstance(found, tuple) else (found,)

    def rename(self, names: Mapping[str, str]) -> Layer:
        """Return the layer with renamed blobs."""
        inputs, outputs = (tuple(names.get(name, name) for name in side) for side in (self.inputs, self.outputs))
        return replace(self, inputs=inputs, outputs=outputs)


def format_param(layers: Sequence[Layer]) -> str:
    """Return the text of the .param file of layers, in order."""
    blobs = sum(len(layer.outputs) for layer in layers)
    lines = [MAGIC, f"{len(layers)} {blobs}"]
    for layer in layers:
        words = [layer.kind, layer.name, str(len(layer.inputs)), str(len(layer.outputs)), *layer.inputs, *layer.outputs]
        lines.append(" ".join([*words, *(_format_parameter(key, value) for key, value in sorted(layer.params.items()))]))
    return "\n".join(lines) + "\n"


def _format_parameter(key: int, value: Number | tuple[Number, ...]) -> str:
    if isinstance(value, tuple):
        return ",".join([f"{_ARRAY - key}={len(value)}", *(_format_number(item) for item in value)])
    return f"{key}={_format_number(value)}"


def _format_number(value: Number) -> str:
    """Return a number as text; ncnn reads one with a point or an exponent as float32, for which nine digits are exact."""
    return str(value) if isinstance(value, int) else f"{value:.8e}"


def pack_weights(data: Array, marked: bool = False) -> bytes:
    """Pack weights as in a .bin file.

    Args:
        data: float32, or int8.
        marked: whether a mark of their type precedes them, as for weights of several possible types.
    """
    if data.dtype == np.int8:
        return _INT8.to_bytes(4, "little") + data.tobytes() + bytes(-data.size % 4)
    return (bytes(4) if marked else b"") + np.ascontiguousarray(data, "<f4").tobytes()


def read_param(path: Path) -> list[Layer]:
    """Read the layers of a .param file.

    Raises:
        FileAccessError: it cannot be read.
        InvalidModelError: it is damaged.
    """
    try:
        lines = bytes(map_file(path)).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidModelError(f"is not UTF-8: {error.reason} at byte {error.start}", rule="not-utf8") from error
    lines = [line for line in lines if line.strip()]
    counts = lines[1].split() if len(lines) > 1 else []
    if not lines or lines[0].strip() != MAGIC or len(counts) != 2:
        raise InvalidModelError(f"is not a .param file of ncnn: it does not begin with {MAGIC} and two counts", rule="not-this-format")
    if int(_read_count(counts[0], "line 2")) != len(lines) - 2 or len(lines) > _MOST_LAYERS:
        raise InvalidModelError(f"the file states {counts[0][:20]} layers and has {len(lines) - 2}", rule="counts-differ")
    layers = [_read_layer(line.split(), f"layer {index}") for index, line in enumerate(lines[2:])]
    _require_blob_order(layers)
    return layers


def _read_layer(words: list[str], at: str) -> Layer:
    if len(words) < 4:
        raise InvalidModelError(f"the line has {len(words)} words and no counts of blobs", where=at, rule="malformed-line")
    kind, name = words[:2]
    takes, gives = (_read_count(word, at) for word in words[2:4])
    end = 4 + takes + gives
    if takes > _MOST_BLOBS or gives > _MOST_BLOBS or end > len(words) or any(len(word.encode()) > _LONGEST for word in words[:end]):
        raise InvalidModelError(
            f"the line states {takes} and {gives} blobs, which it does not have", where=f"{at}, {name[:60]!r}", rule="counts-differ"
        )
    params: dict[int, Number | tuple[Number, ...]] = {}
    for word in words[end:]:
        key, value = _read_parameter(word, f"{at}, {name!r}")
        params[key] = value
    return Layer(kind, name, tuple(words[4 : 4 + takes]), tuple(words[4 + takes : end]), params)


def _read_parameter(word: str, at: str) -> tuple[int, Number | tuple[Number, ...]]:
    key, _, value = word.partition("=")
    if not re.fullmatch(r"-?[0-9]{1,6}", key):
        raise InvalidModelError(f"{word[:40]!r} is not a parameter", where=at, rule="malformed-parameter")
    number = int(key)
    if number > _ARRAY:
        found: Number | tuple[Number, ...] = (
            tuple(_read_number(item, at) for item in value.split(",")) if "," in value else _read_number(value, at)
        )
    else:
        number, (count, *items) = _ARRAY - number, value.split(",")
        found = tuple(_read_number(item, at) for item in items)
        if _read_count(count, at) != len(items):
            raise InvalidModelError(f"the line states {count[:20]} numbers and has {len(items)}", where=at, rule="counts-differ")
    if not 0 <= number < _KEYS:
        raise InvalidModelError(f"the parameter is {word[:40]!r}; ncnn has 0 to {_KEYS - 1}", where=at, rule="unknown-parameter")
    return number, found


def _read_number(word: str, at: str) -> Number:
    if re.fullmatch(r"[+-]?[0-9]{1,10}", word):
        return int(word)
    try:
        found = float(np.float32(word)) if re.fullmatch(r"[0-9eE.+-]{1,40}", word) else math.nan
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InvalidModelError(f"{word[:40]!r} is not a number", where=at, rule="not-a-number")
    return found


def _read_count(word: str, at: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", word):
        raise InvalidModelError(f"{word[:40]!r} is not a count", where=at, rule="not-a-number")
    return int(word)


def _require_blob_order(layers: list[Layer]) -> None:
    """Raise InvalidModelError unless every blob is computed once, before the layers that read it."""
    known: set[str] = set()
    for layer in layers:
        for name in layer.inputs:
            if name not in known:
                raise layer.invalid(f"the layer reads {name!r}, which no layer before it computes", rule="unknown-blob")
        for name in layer.outputs:
            if name in known:
                raise layer.invalid(f"the layer computes {name!r}, which another layer has computed", rule="duplicate-name")
            known.add(name)


class Weights:
    """A .bin file, read from its beginning to its end.

    Args:
        path: the file; a missing file counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self._name = path.name
        is_empty = not path.exists() or (path.is_file() and not path.stat().st_size)
        self._data = memoryview(b"") if is_empty else memoryview(map_file(path))
        self._at = 0

    @property
    def bytes_left(self) -> int:
        """The number of bytes that are left."""
        return len(self._data) - self._at

    def trailing_bytes(self) -> bytes:
        """Return the bytes after the last layer's weights."""
        return bytes(self._data[self._at :])

    def read_float32(self, count: int, layer: Layer) -> Array:
        """Read float32 weights without a mark."""
        return np.frombuffer(self._take(4 * count, layer), "<f4").astype(np.float32)

    def read_marked(self, count: int, layer: Layer) -> Array:
        """Read weights after a mark of their type: float32, float16 as float32, or int8.

        Raises:
            InvalidModelError: the file is too short.
            UnsupportedError: they have another type.
        """
        mark = int.from_bytes(self._take(4, layer), "little")
        if mark in (0, _PLAIN):
            return self.read_float32(count, layer)
        if mark == _HALF:
            found: Array = np.frombuffer(self._take(2 * count, layer), "<f2").astype(np.float32)
        elif mark == _INT8:
            found = np.frombuffer(self._take(count, layer), np.int8)
        else:
            raise UnsupportedError(
                f"the weights have the type mark {mark:#x}, which is not covered", where=str(layer), rule="dtype-not-covered"
            )
        self._take(-found.size * (2 if mark == _HALF else 1) % 4, layer)
        return found

    def _take(self, count: int, layer: Layer) -> Any:
        if count < 0 or count > self.bytes_left:
            raise layer.invalid(
                f"the weights have {count} bytes, of which {self._name} next to the .param file has {self.bytes_left}",
                rule="file-too-short",
            )
        self._at += count
        return self._data[self._at - count : self._at]


#: Layers with a larger int8_scale_term have int8 results.
REQUANTIZED = 100
_MOST_NUMBERS = 2**31
#: The most elements of a layer without weights.
_MOST_MADE = 2**24


def _count(layer: Layer, key: int) -> int:
    found = layer.integer(key)
    if not 0 < found < _MOST_NUMBERS:
        raise layer.invalid(f"the parameter {key} is {found}, not a positive count", rule="not-a-count")
    return found


def _product(layer: Layer, file: Weights, bias_key: int, size_key: int, scales: int) -> tuple[Array, ...]:
    """Read weights, bias or an empty array, and for int8 the scales of the weights, the data, and an int8 result."""
    weights = file.read_marked(_count(layer, size_key), layer)
    bias = file.read_float32(_count(layer, 0), layer) if layer.integer(bias_key) else np.zeros(0, np.float32)
    term = layer.integer(8)
    if (weights.dtype == np.int8) != bool(term):
        raise layer.invalid(f"the weights are {weights.dtype}, and the parameter 8 is {term}", rule="contradicting-types")
    if not term:
        return weights, bias
    found = [weights, bias, file.read_float32(scales, layer), file.read_float32(1, layer)]
    if term > REQUANTIZED:
        found.append(file.read_float32(1, layer))
    for item in found[2:]:
        if not (np.isfinite(item).all() and (item >= 0).all()):
            raise layer.invalid("a scale is negative or not finite", rule="scale-not-positive")
    if not found[3][0] or (len(found) > 4 and not found[4][0]):
        raise layer.invalid("the scale of the data is 0", rule="scale-not-positive")
    return tuple(found)


def _convolution(layer: Layer, file: Weights) -> tuple[Array, ...]:
    """Read a convolution: a scale for each output, or with groups one for each of these, or one for all."""
    if layer.integer(19):
        raise UnsupportedError("the weights are computed by another layer", where=str(layer), rule="weights-not-constant")
    is_grouped = layer.kind == "ConvolutionDepthWise"
    one = is_grouped and layer.integer(8) in (2, REQUANTIZED + 2)
    return _product(layer, file, 5, 6, 1 if one else _count(layer, 7 if is_grouped else 0))


def _deconvolution(layer: Layer, file: Weights) -> tuple[Array, ...]:
    if layer.integer(28) or layer.integer(8):
        raise UnsupportedError("the weights are computed by another layer, or are int8", where=str(layer), rule="form-not-covered")
    return _product(layer, file, 5, 6, 0)


def _inner_product(layer: Layer, file: Weights) -> tuple[Array, ...]:
    if layer.integer(8) > REQUANTIZED:
        raise UnsupportedError("the result is int8", where=str(layer), rule="form-not-covered")
    return _product(layer, file, 1, 2, _count(layer, 0))


def _gemm(layer: Layer, file: Weights) -> tuple[Array, ...]:
    """Read a constant matrix N x K as the second factor, or K x N, and a bias for each column."""
    form = [layer.integer(key) for key in (4, 5, 2, 11, 12, 13, 14, 18)]
    scaled = (layer.number(0, 1.0), layer.number(1, 1.0)) != (1.0, 1.0)
    if form != [0, 1, 0, 0, 0, 0, 0, 0] or scaled or (layer.integer(6) and layer.integer(10) not in (-1, 4)):
        raise UnsupportedError(
            "is not a product of data with constants plus one number for each column", where=str(layer), rule="form-not-covered"
        )
    weights = file.read_marked(_count(layer, 8) * _count(layer, 9), layer)
    if weights.dtype == np.int8:
        raise UnsupportedError("the weights are int8", where=str(layer), rule="form-not-covered")
    added = layer.integer(6) and layer.integer(10) == 4
    return weights, file.read_marked(_count(layer, 8), layer) if added else np.zeros(0, np.float32)


def _memory(layer: Layer, file: Weights) -> tuple[Array, ...]:
    count = 1
    for key in (0, 1, 11, 2):
        count *= max(layer.integer(key), 1)
    if count > _MOST_NUMBERS:
        raise layer.invalid(f"the number of elements is {count}", rule="too-many-elements")
    return (file.read_float32(count, layer) if layer.integer(21, 1) else file.read_marked(count, layer),)


def _several(layer: Layer, file: Weights, arrays: int) -> tuple[Array, ...]:
    """Read so many arrays, the parameter 0 being the size of each."""
    return tuple(file.read_float32(_count(layer, 0), layer) for _ in range(arrays))


def _affine(layer: Layer, file: Weights, size_key: int, affine_key: int) -> tuple[Array, ...]:
    """Read factors and addends; () without them: the reader of the layer makes factors of 1 and addends of 0."""
    count = _count(layer, size_key)
    if layer.integer(affine_key, 1):
        return tuple(file.read_float32(count, layer) for _ in range(2))
    if count > _MOST_MADE:
        raise layer.invalid(f"the number of elements is {count}, without weights", rule="too-many-elements")
    return ()


def bottom_scale(layer: Layer, weights: tuple[Array, ...]) -> float:
    """Return the inverse scale to which an int8 layer rounds its data; 0 for all other layers."""
    return float(weights[3][0]) if len(weights) > 3 and layer.integer(8) else 0.0


def top_scale(weights: tuple[Array, ...]) -> float:
    """Return the inverse scale of an int8 result; 0 for a float result."""
    return float(weights[4][0]) if len(weights) > 4 else 0.0


def scales_of(weights: tuple[Array, ...]) -> Array:
    """Return the inverse scales of weights. 0 marks a channel of zeros, which gets the least positive one."""
    found = weights[2]
    return np.where(found > 0, found, found[found > 0].min() if (found > 0).any() else np.float32(1)).astype(np.float32)


LOADERS: dict[str, Callable[[Layer, Weights], tuple[Array, ...]]] = {
    "Convolution": _convolution,
    "ConvolutionDepthWise": _convolution,
    "Deconvolution": _deconvolution,
    "DeconvolutionDepthWise": _deconvolution,
    "InnerProduct": _inner_product,
    "Gemm": _gemm,
    "MemoryData": _memory,
    "PReLU": lambda layer, file: _several(layer, file, 1),
    "BatchNorm": lambda layer, file: _several(layer, file, 4),
    "Scale": lambda layer, file: _several(layer, file, 2 if layer.integer(1) else 1),
    "Bias": lambda layer, file: _several(layer, file, 1),
    "LayerNorm": lambda layer, file: _affine(layer, file, 0, 2),
    "InstanceNorm": lambda layer, file: _affine(layer, file, 0, 2),
    "GroupNorm": lambda layer, file: _affine(layer, file, 1, 3),
}
