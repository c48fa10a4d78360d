"""Reads any of MNN's documents of scales as Encodings; they are told apart by content. Scales of a quantized .mnn and of PPQ's file are
found here.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import integer_range
from qconvert.encodings import Encoding, Encodings, Place, QParams
from qconvert.errors import InvalidModelError, OptionError, UnsupportedError, name_file_in_errors, quote_some
from qconvert.files import map_file
from qconvert.files.documents import fail, json_of, number
from qconvert.formats.mnn.dump import is_dump, read_dump
from qconvert.formats.mnn.network import Network, TensorQuantization, copy_names, is_network, read_network
from qconvert.formats.mnn.pipeline import from_bytes, from_json, is_pipeline, pipeline_encodings
from qconvert.formats.mnn.scales import MATMUL, activation_quantization, find_misnamed, group_of, is_own_name, model_name, place_encodings
from qconvert.formats.mnn.weights import LayerWeights, concatenate_groups
from qconvert.graph import Array, Quantization, numpy_dtype

#: By how many steps an offset may be next to a whole number of them: float32 holds it no better.
_EXACT = 1e-3
#: The scale of channels that are all 0 in a layer that is all 0.
_NO_SCALE = 2.0**-12
_SHOWN = 3
#: Its weights lie inputs first, and MNN cuts these into as many rows as there are outputs: scales of no channels.
_TRANSPOSED = "Deconvolution"
_LOST = re.compile(r"(Depthwise)?ConvInt8\d+")


def network_encodings(path: Path, named: Network | None = None) -> Encodings:
    """The encodings of a .mnn file.

    Args:
        path: the file.
        named: the network before quantization, where the quantizer took the names away.

    Raises:
        FileAccessError: it cannot be read.
        InvalidModelError: it is damaged, a scale or zero point is none, or its layers have lost their names.
        UnsupportedError: see read_network().
    """
    network = read_network(path)
    with name_file_in_errors(path):
        return _encodings(network if named is None else copy_names(network, named))


def _encodings(network: Network) -> Encodings:
    quantizations = {index: _quantization(found, repr(network.names[index])) for index, found in network.quantizations.items()}
    for layer in network.layers:
        for found, indices in ((layer.data, layer.node.inputs[:1]), (layer.result, layer.node.outputs[:1])):
            if found is not None and indices:
                quantizations.setdefault(indices[0], _quantization(found, repr(layer.node.name)))
    if lost := [layer.node.name for layer in network.layers if _LOST.fullmatch(layer.node.name)]:
        raise InvalidModelError(
            f"{len(lost)} of {len(network.layers)} layers have names that MNN's quantizer made up, as its method EMA does, such as "
            f"{lost[0]!r}",
            remedy="Give the .mnn file that the quantizer read as well: --mnn FILE.",
            rule="names-lost",
        )
    wrong = find_misnamed(network.nodes, network.names)
    names = ["" if index in wrong else name for index, name in enumerate(network.names)]
    entries = place_encodings(network.nodes, names, quantizations, "MNN")
    offset: list[str] = []
    for name, weights, is_matrix in _weights(network):
        encoding = weights_encoding(weights, is_matrix=is_matrix)
        if encoding.integers is None:
            offset.append(name)
        entries[Place(name, "input", 1)] = encoding if not is_own_name(name) else replace(encoding, required=False)
    if not entries:
        raise InvalidModelError(
            "the layers are not quantized: the file has no scales",
            remedy="Give the file that mnnquant, or mnnconvert with scales, wrote.",
            rule="no-scales",
        )
    metadata = {name: text for name, text in (("mnn.uuid", network.uuid), ("mnn.biz_code", network.code)) if text}
    return Encodings(entries, "MNN's network", metadata=metadata, notes=_notes(network, offset))


def _weights(network: Network) -> Iterator[tuple[str, LayerWeights, bool]]:
    """(what a layer computes in a model, its weights, whether they are a matrix there), those of one convolution's groups together."""
    groups: dict[str, list[LayerWeights]] = {}
    for layer in network.layers:
        if layer.weights is None or layer.node.type == _TRANSPOSED:
            continue
        if base := group_of(layer.node.name):
            groups.setdefault(base, []).append(layer.weights)
            continue
        name = network.names[layer.node.outputs[0]] if layer.node.outputs else layer.node.name
        yield model_name(name), layer.weights, layer.node.name.endswith(MATMUL)
    for base, parts in groups.items():
        yield base, concatenate_groups(parts, base), False


def _quantization(found: TensorQuantization, where: str) -> QParams:
    return activation_quantization([found.scale], found.zero, where, (found.lowest, found.highest))


def _notes(network: Network, offset: list[str]) -> tuple[str, ...]:
    notes = []
    if offset:
        shown = quote_some(offset, _SHOWN)
        notes.append(
            f"the weights of {len(offset)} layers ({shown}) have float offsets, as MNN's asymmetric weights do: no integer zero "
            "point equals"
            " these, so the weights are requantized with MNN's scales and the nearest zero points"
        )
    if halves := sum(layer.weights is None for layer in network.layers):
        notes.append(f"{halves} layers have float weights, in float16 or sparse")
    if transposed := sum(layer.weights is not None and layer.node.type == _TRANSPOSED for layer in network.layers):
        notes.append(f"the weights of {transposed} transposed convolutions have scales in MNN that belong to no channel, and none here")
    return tuple(notes)


def weights_encoding(weights: LayerWeights, *, is_matrix: bool = False) -> Encoding:
    """The encoding of a layer's weights, outputs first: with their integers, or, where no quantization has their float values, the
    quantization alone.

    Args:
        weights: as the file has them.
        is_matrix: whether the model has them as a matrix.
    """
    dtype, half = "int4" if weights.bits <= 4 else "int8", 1 << (weights.bits - 1)
    limits = (-half, half - 1) if weights.is_full and -half != integer_range(dtype)[0] else (None, None)
    scales, zero_points, integers = weights.scales, np.zeros(weights.scales.shape, np.int64), weights.integers
    if not (scales > 0).all():
        scales, integers = _replace_zero_scales(weights)
    is_held = True
    if weights.offsets is not None:
        scales, zero_points, is_held = _offsets_to_zero_points(scales, weights.offsets.astype(np.float64), half, integer_range(dtype))
    if is_matrix and integers.shape[2:] == (1, 1):
        integers = integers[:, :, 0, 0]
    axis, block_size = None, 0
    if scales.ndim > 1:  # as ONNX has blocks: scales in all dimensions of the weights
        axis, block_size = 1, integers.shape[1] // scales.shape[1]
        shape, ones = (*scales.shape, *integers.shape[2:]), (1,) * (integers.ndim - 2)
        scales, zero_points = (np.broadcast_to(found.reshape(*scales.shape, *ones), shape).copy() for found in (scales, zero_points))
    quantization = QParams(dtype, Quantization(scales, zero_points, axis, block_size, *limits))
    return Encoding(quantization, integers=integers.astype(numpy_dtype(dtype)) if is_held else None, origin="MNN")


def _offsets_to_zero_points(scales: Array, offsets: Array, half: int, limits: tuple[int, int]) -> tuple[Array, Array, bool]:
    """(scales, zero points, whether s (q - z) is s q + b everywhere).

    A channel whose offset is no zero point of its type gets the quantization of the range that its integers span, with 0.
    """
    with np.errstate(all="ignore"):
        points = np.rint(-offsets / scales)
        is_held = bool((np.abs(points + offsets / scales) <= _EXACT).all())
        is_outside = ~((points >= limits[0]) & (points <= limits[1]))
        if not is_outside.any():
            return scales, points.astype(np.int64), is_held
        lowest, highest = (offsets + scales.astype(np.float64) * q for q in (-half, half - 1))
        lowest, highest = np.minimum(lowest, 0), np.maximum(highest, 0)
        wide = (highest - lowest) / (2 * half - 1)
        points = np.where(is_outside, np.clip(np.rint(-half - lowest / wide), -half, half - 1), points)
        return np.where(is_outside, wide, scales).astype(np.float32), np.nan_to_num(points).astype(np.int64), False


def _replace_zero_scales(weights: LayerWeights) -> tuple[Array, Array]:
    """(scales, integers) where channels of scale 0, whose weights are all one number, have the smallest other scale, and integers of 0."""
    positive = weights.scales[weights.scales > 0]
    scales = np.where(weights.scales > 0, weights.scales, np.float32(positive.min() if positive.size else _NO_SCALE)).astype(np.float32)
    integers = weights.integers.reshape(*scales.shape, -1).copy()
    integers[weights.scales <= 0] = 0
    return scales, integers.reshape(weights.integers.shape)


#: A Pipeline of protobuf begins with its version: field 1, a short text.
_PIPELINE = re.compile(rb"\n([\x01-\x20])[0-9A-Za-z.+_-]{1,32}")
#: Of JSON; such a document of the largest networks has a few megabytes.
_LARGEST_TEXT = 200_000_000
_KINDS = "a dump of MNN's quantizer, a Pipeline, or PPQ's scales for MNN"


def holds(path: Path) -> bool:
    """Whether a file is one of MNN's.

    Raises:
        FileAccessError: it cannot be read.
    """
    try:
        data = map_file(path)
        if path.suffix.lower() == ".mnn" or _is_binary_pipeline(data):
            return True
        if not _is_text(data):
            return is_network(data)
        document = json_of(_text(data), "the file")
    except (InvalidModelError, UnsupportedError):
        return False
    return is_dump(document) or is_pipeline(document) or is_ppq(document)


def read_encodings(path: Path, options: Mapping[str, Any]) -> Encodings:
    """The encodings of a dump, a Pipeline, PPQ's file or a .mnn file.

    Args:
        path: the file.
        options: "mnn": a .mnn file that names the tensors of a dump, or of a .mnn file whose own names are lost.

    Raises:
        FileAccessError: a file cannot be read.
        InvalidModelError: it is none of these, is damaged, or a scale or zero point is none.
        UnsupportedError: it holds what no known version of MNN writes, or what no scales say.
        OptionError: a .mnn file is given next to a document that needs none.
    """
    names_file = str(options.get("mnn") or "")
    with name_file_in_errors(path):
        data = map_file(path)
        if _is_binary_pipeline(data):
            _require_alone(names_file)
            return pipeline_encodings(from_bytes(bytes(data)))
        named = read_network(Path(names_file)) if names_file else None
        if not _is_text(data):
            return network_encodings(path, named)
        return _read_document(json_of(_text(data), "the file"), named)


def _read_document(document: Any, named: Network | None) -> Encodings:
    if is_dump(document):
        return read_dump(document, named)
    _require_alone(named)
    if is_pipeline(document):
        return pipeline_encodings(from_json(document))
    if is_ppq(document):
        return read_ppq(document)
    raise InvalidModelError(f"is JSON, but neither {_KINDS}", rule="not-this-format")


def _require_alone(named: object) -> None:
    if named:
        raise OptionError(
            "the option mnn applies to a dump of MNN's quantizer, or to the .mnn file that it wrote",
            remedy="Leave out the option: this file names its tensors.",
            rule="option-not-applicable",
        )


def _is_binary_pipeline(data: mmap.mmap) -> bool:
    match = _PIPELINE.match(data[:40])
    return match is not None and len(match[0]) - 2 >= match[1][0]


def _is_text(data: mmap.mmap) -> bool:
    """Whether the first letter is that of a JSON array or object."""
    return data[:64].removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"[", b"{")


def _text(data: mmap.mmap) -> bytes:
    if len(data) > _LARGEST_TEXT:
        raise InvalidModelError(
            f"has {len(data)} bytes; a JSON document of at most {_LARGEST_TEXT} bytes can be read", rule="file-too-large"
        )
    return bytes(data).removeprefix(b"\xef\xbb\xbf")


_KEY = re.compile(r"(.+) (input|output)_tensor_(\d{1,9})", re.DOTALL)
_BESIDE = "shape"


def is_ppq(document: Any) -> bool:
    """Whether a JSON document looks like such a file."""
    keys = document.keys() - {_BESIDE} if isinstance(document, dict) else ()
    return bool(keys) and all(_KEY.fullmatch(key) for key in keys)


def read_ppq(document: dict[str, Any]) -> Encodings:
    """The encodings of a document of which is_ppq() holds.

    Raises:
        InvalidModelError: a scale is no positive number.
    """
    entries: dict[Place, Encoding] = {}
    for key, value in document.items():
        match = _KEY.fullmatch(key)
        if match is None:
            continue
        scale = number(value, repr(key))
        place = Place(match[1], match[2], int(match[3]))
        if place in entries:
            fail(repr(key), "the same number of a tensor occurs twice, written differently", rule="duplicate-name")
        if scale != 0:
            entries[place] = Encoding(activation_quantization([scale], 0, repr(key)), origin="PPQ")
    if not entries:
        raise InvalidModelError("every scale is 0", remedy="Calibrate the network in PPQ before it is written.", rule="all-scales-zero")
    return Encodings(entries, "PPQ's scales for MNN", weights="max-abs")
