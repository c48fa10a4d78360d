"""Calibration caches of TensorRT, read and written."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from qconvert.encodings import BATCH_NORM, FUSED, Encoding, Encodings, Place, QParams, symmetric_quantization, weights_quantization
from qconvert.errors import InvalidModelError, OptionError, UnsupportedError, format_count, format_verb, quote_some
from qconvert.files import map_file
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.operators import kind_of
from qconvert.plugins import Change

_VERSION = re.compile(r"(\d{1,2})\.(\d{1,2})(?:\.(\d{1,2}))?")
#: The last version that reads caches.
_LAST = 10
_SHOWN = 5
_TARGET = "Convert with --target tensorrt and without a cache: that file states every scale."
_SYMMETRIC = "Calibrate with `qconvert calibrate --symmetric`, or convert with --target tensorrt --calibration-cache."


def write(encodings: Encodings, graph: Graph | None, path: Path, options: Mapping[str, Any]) -> tuple[Change | str, ...]:
    """Writes the file.

    Args:
        encodings: by tensors.
        graph: of float values, that they belong to; None where the entries are of activations alone.
        path: of the file.
        options: "trt_version", such as "8.6.1", and "trt_calibrator", the algorithm of the calibrator that is to read the cache.

    Raises:
        OptionError: there is no such version, or it reads no caches; or there are weights, and no graph.
        UnsupportedError: an activation is not int8 with one scale and zero point 0, or weights have scales that TensorRT does not derive.
    """
    version, algorithm = str(options["trt_version"]), str(options["trt_calibrator"])
    header = f"TRT-{_number(version)}-{algorithm}"
    readers = _readers(graph)
    activations, weights = dict[str, Encoding](), dict[str, Encoding]()
    for place, found in encodings.entries.items():
        if place.role != "tensor":
            raise UnsupportedError(
                "a calibration cache has entries of tensors, not of the inputs and outputs of operators",
                where=str(place),
                remedy=_TARGET,
                rule="not-a-tensor",
            )
        if _is_bias(found):
            continue
        if graph is None and found.integers is not None:
            raise OptionError(
                "the encodings hold quantized constants; which of them are weights is known from the network alone",
                where=repr(place.name),
                remedy="Give the network along with the scales: graph=…",
                rule="graph-missing",
            )
        (weights if place.name in readers else activations)[place.name] = found
    lines = [f"{_require_storable_name(name)}: {_scale(name, found)}" for name, found in activations.items()]
    if graph is not None:
        _require_derived(weights, readers, graph)
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8", newline="\n")
    taken = f"the cache is for TensorRT {version} with {algorithm}; another version requires -O trt_version=…"
    said = [taken, *_note_missing_scales(graph, encodings)]
    if weights:
        said.append(
            f"scales of {format_count(len(weights), 'weight')} are not in the cache: TensorRT derives the same, max|w| / 127 of each "
            "output channel"
        )
    return tuple(said)


def _note_missing_scales(graph: Graph | None, encodings: Encodings) -> list[str]:
    """Return a note on the float tensors of the model that have no scale."""
    tensors = graph.tensors.values() if graph is not None else ()
    names = [
        item.name for item in tensors if item.dtype == "float32" and not item.is_constant and Place(item.name) not in encodings.entries
    ]
    listed = quote_some(names, _SHOWN)
    return [f"{format_count(len(names), 'tensor', 'have')} no scale, so TensorRT leaves them in float: {listed}"] if names else []


def _number(version: str) -> int:
    """The number of a version as TensorRT writes it: 8601 of 8.6.1, 100300 of 10.3.0."""
    match = _VERSION.fullmatch(version)
    if match is None:
        raise OptionError(
            f"the version of TensorRT is {version!r}; a version has two numbers or more",
            remedy="Write it like 8.6.1 or 10.3.0.",
            rule="unknown-version",
        )
    major, minor, patch = (int(part or 0) for part in match.groups())
    if major > _LAST:
        raise OptionError(
            f"TensorRT {version} does not read calibration caches; versions up to {_LAST} do", remedy=_TARGET, rule="version-not-covered"
        )
    return major * (10_000 if major >= 10 else 1000) + minor * 100 + patch


def _readers(graph: Graph | None) -> dict[str, Op]:
    """Constant weights -> a layer that reads them."""
    found: dict[str, Op] = {}
    for op in graph.ops if graph is not None else ():
        if kind_of(op).sums_products and graph is not None and graph[op.inputs[1]].is_constant:
            found.setdefault(op.inputs[1], op)
    return found


def _is_bias(found: Encoding) -> bool:
    """Whether it is of a bias, which TensorRT adds in float."""
    return found.qparams is not None and found.qparams.dtype in ("int32", "int64")


def _require_storable_name(name: str) -> str:
    if ": " in name or name != name.strip() or len(name.splitlines()) != 1:
        raise UnsupportedError(
            "the name cannot be stored in a calibration cache, where a colon and a blank, or a line break, end a name",
            where=repr(name),
            remedy=_TARGET,
            rule="name-not-storable",
        )
    return name


def _scale(name: str, found: Encoding) -> str:
    """The scale of an activation as eight hexadecimal digits."""
    quantization, middle = symmetric_quantization(found)
    q = quantization.quantization
    if middle is None:
        _refuse(name, f"the type is {quantization.dtype}; a calibration cache holds scales of int8", _TARGET, rule="dtype-not-storable")
    if q.scale.size != 1 or q.block_size:
        _refuse(
            name,
            f"there are {q.scale.size} scales; a calibration cache holds one scale for each activation",
            _TARGET,
            rule="not-per-tensor",
        )
    if q.point != middle:
        _refuse(
            name,
            f"the zero point is {q.point} of {quantization.dtype}; a calibration cache requires symmetric quantization",
            _SYMMETRIC,
            rule="zero-point-not-storable",
        )
    low, high = (limit - middle for limit in q.limits(quantization.dtype))
    if (low, high) not in ((-128, 127), (-127, 127)):
        _refuse(
            name,
            f"the integers run from {low} to {high}; a calibration cache requires -128 to 127 or -127 to 127",
            _TARGET,
            rule="limits-not-storable",
        )
    return struct.pack(">f", q.scale[0]).hex()


def _refuse(name: str, reason: str, remedy: str, *, rule: str) -> NoReturn:
    raise UnsupportedError(reason, where=repr(name), remedy=remedy, rule=rule)


def _require_derived(weights: Mapping[str, Encoding], readers: Mapping[str, Op], graph: Graph) -> None:
    """Raises UnsupportedError, which names layers whose weights have other scales than TensorRT derives from their float values."""
    found = []
    for name, encoding in weights.items():
        problem = _difference(encoding, graph[name], readers[name])
        if problem:
            found.append(f"{readers[name]}: {name!r} {problem}")
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise UnsupportedError(
            f"{len(found)} of {format_count(len(weights), 'weight')} {format_verb(len(found), 'have')} other scales than max|w| / 127 "
            f"of each output channel, which is what TensorRT derives: {'; '.join(found[:_SHOWN])}{more}",
            remedy=_TARGET,
            rule="scales-not-derived",
        )


def _difference(encoding: Encoding, tensor: Tensor, reader: Op) -> str:
    """How scales of weights differ from those that TensorRT derives, by more than a unit in the last place; "" if they do not."""
    quantization, middle = symmetric_quantization(encoding)
    q = quantization.quantization
    if q.block_size or middle is None:
        return f"is {quantization.dtype}" + (f" in blocks of {q.block_size}" if q.block_size else "")
    if (q.zero_point != middle).any():
        return f"has zero points other than {middle} of {quantization.dtype}"
    derived = weights_quantization(tensor, reader).quantization
    assert tensor.data is not None and derived.axis is not None
    if q.scale.size > 1 and (q.scale.size != derived.scale.size or q.axis not in (None, derived.axis)):
        return f"has {q.scale.size} scales along axis {q.axis}, not along the output channels"
    others = tuple(axis for axis in range(tensor.data.ndim) if axis != derived.axis)
    used = (tensor.data != 0).any(axis=others)
    stated = np.broadcast_to(q.scale, derived.scale.shape)
    wrong = np.flatnonzero(used & (np.abs(stated - derived.scale) > np.spacing(np.maximum(stated, derived.scale))))
    if not wrong.size:
        return ""
    at = int(wrong[0])
    return f"in {wrong.size} of {used.size} channels, as channel {at}: {float(stated[at]):.8g}, derived {float(derived.scale[at]):.8g}"


#: Such as TRT-8601-EntropyCalibration2; scripts that make caches write TRT-8XXX too.
_FIRST = re.compile(rb"(?:\xef\xbb\xbf)?TRT-([0-9A-Za-z.]{1,20})-([0-9A-Za-z_]{1,60})[ \t]*(?=[\r\n]|\Z)")
_LINE = re.compile(r"(.+):[ \t]*(\S*)", re.DOTALL)
_HEX = re.compile(r"[0-9A-Fa-f]{1,8}")
#: Names that TensorRT and its parser of ONNX give to what a model has no name for.
_UNNAMED = re.compile(r"\(Unnamed Layer\* \d+\) \[.*\]_output.*|ONNXTRT_.*", re.DOTALL)
#: A cache of the largest networks has a few megabytes.
_LARGEST = 32_000_000
_START = 128


def holds(path: Path) -> bool:
    """Whether a file is a calibration cache, by its first line.

    Raises:
        FileAccessError: it cannot be read.
    """
    try:
        return _FIRST.match(map_file(path)[:_START]) is not None
    except InvalidModelError:
        return False


def read(path: Path, options: Mapping[str, Any]) -> Encodings:
    """The encodings of a cache: int8 with zero point 0.

    Raises:
        FileAccessError: it cannot be read.
        InvalidModelError: it is no cache, or a line of it is damaged.
    """
    data = map_file(path)
    first = _FIRST.match(data[:_START])
    if first is None:
        raise InvalidModelError(
            "is not a calibration cache: the first line of one reads like TRT-8601-EntropyCalibration2", rule="not-this-format"
        )
    if len(data) > _LARGEST:
        raise InvalidModelError(
            f"has {len(data)} bytes; a calibration cache of at most {_LARGEST} bytes can be read", rule="file-too-large"
        )
    try:
        lines = bytes(data[first.end() :]).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidModelError(f"is not UTF-8: {error.reason} at byte {first.end() + error.start}", rule="not-utf8") from error
    entries: dict[Place, Encoding] = {}
    idle: list[str] = []
    for number, line in enumerate(re.split(r"\r\n|\r|\n", lines), 1):
        if line.strip():
            _add_entry(entries, idle, line, number)
    version, algorithm = (part.decode() for part in first.groups())
    notes = (
        (
            f"{format_count(len(idle), 'tensor')} of TensorRT's own {format_verb(len(idle), 'have no scale')}: "
            f"{', '.join(map(repr, idle[:3]))}",
        )
        if idle
        else ()
    )
    metadata = {"tensorrt.version": version, "tensorrt.algorithm": algorithm, BATCH_NORM: FUSED}
    return Encodings(entries, f"TensorRT's cache of {algorithm}, version {version}", "max-abs", metadata, notes)


def _add_entry(entries: dict[Place, Encoding], idle: list[str], line: str, number: int) -> None:
    """Takes the entry of a line in; tensors without a name in the model that have no scale go to `idle`."""
    match = _LINE.fullmatch(line.rstrip())
    if match is None:
        raise InvalidModelError("is not a name and a scale, separated by a colon", where=f"line {number}", rule="malformed-line")
    name, digits = match.groups()
    where = f"line {number}, {name!r}"
    if not _HEX.fullmatch(digits):
        raise InvalidModelError(
            f"the scale is {digits!r}; a calibration cache requires 1 to 8 hexadecimal digits", where=where, rule="malformed-scale"
        )
    scale = struct.unpack(">f", bytes.fromhex(digits.zfill(8)))[0]
    is_named = _UNNAMED.fullmatch(name) is None
    if not (np.isfinite(scale) and scale > 0):
        if is_named:
            remedy = "TensorRT found no range: calibrate with inputs that activate this tensor, or delete the line."
            raise InvalidModelError(
                f"the scale is {scale} ({digits}); TensorRT requires a finite, positive number",
                where=where,
                remedy=remedy,
                rule="scale-not-positive",
            )
        idle.append(name)
        return
    found = Encoding(QParams("int8", Quantization.per_tensor(scale)), required=is_named)
    if entries.setdefault(Place(name), found) != found:
        raise InvalidModelError("the tensor has an entry already, with another scale", where=where, rule="contradicting-scales")
