"""Reads a calibration cache of TensorRT.

A line that names version and algorithm, then one for each tensor: its name, a colon, a blank, and the scale as the hexadecimal digits of a
big-endian float32. Tools that write the digits with hex() leave zeros in front out. The range is 127 times the scale, the zero point 0.
Weights are not in the file: TensorRT takes max|w| / 127 of each output channel.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np

from qconvert.encodings import BATCH_NORM, FUSED, Encoding, Encodings, Place, QParams
from qconvert.errors import InvalidModelError
from qconvert.files import map_file
from qconvert.graph import Quantization

__all__ = ["holds", "read"]

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


def read(path: Path) -> Encodings:
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
    notes = (f"{len(idle)} tensors of TensorRT's own have no scale: {', '.join(map(repr, idle[:3]))}",) if idle else ()
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
