"""Reads AIMET's encodings.

Until 1.0 a quantization is unsigned, [0, 2^bw - 1], with real = (q + offset) * scale; parameters are stored here as signed integers,
activations as unsigned ones: zero point -offset - 2^(bw - 1), or -offset. Since 2.0 entries have the parameters of ONNX's
QuantizeLinear (entries.py). Sources: AIMET's "Quantization Encoding Specification"; aimet_onnx 2.42 (_encoding.py,
qc_quantize_op.py), which the tests run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import (
    Encoding,
    Encodings,
    InvalidModelError,
    Place,
    QParams,
    UnsupportedError,
    documents,
    format_count,
    map_file,
    quote_some,
)
from qconvert_aimet.entries import PARAMETERS, SIDES, Stated, read_entries, read_version_2
from qconvert_aimet.quantizations import quantization_of_bits

#: For entries whose range implies another zero point than their offset, as in AIMET's own examples.
_NOTE = "with an offset that contradicts the range, which is used: "


def holds(path: Path) -> bool:
    """Return whether the content of a file is AIMET's."""
    try:
        document = _document(path)
    except InvalidModelError:
        return False
    if not isinstance(document, dict) or "version" not in document:
        return False
    return set(SIDES) <= document.keys() or isinstance(document.get("encodings"), list)


def read(path: Path, options: Mapping[str, Any]) -> Encodings:
    """Return the encodings of a file.

    Raises:
        InvalidModelError: it is damaged.
        UnsupportedError: the version is later, or an entry is no quantization of integers.
    """
    document = _document(path)
    if not isinstance(document, dict):
        documents.fail("AIMET's encodings", "is not an object", rule="wrong-type")
    version = documents.text(document.get("version"), "AIMET's encodings, version")
    if version.startswith("2."):
        return _encodings(version, read_version_2(document), ())
    if version.startswith(("0.", "1.")):
        return _encodings(version, *_read_versions_0_and_1(document))
    raise UnsupportedError(f"the version of AIMET's encodings is {version}; versions before 3 can be read", rule="version-not-covered")


def _document(path: Path) -> Any:
    return documents.json_of(bytes(map_file(path)), "the file")


def _encodings(version: str, found: Iterable[tuple[str, QParams]], notes: tuple[str, ...]) -> Encodings:
    entries: dict[Place, Encoding] = {}
    for name, quantization in found:
        if Place(name) in entries:
            raise InvalidModelError("the tensor has two entries", where=repr(name), rule="duplicate-name")
        # Biases get input scale * weight scale, as all biases do; the scale in the file is nearly the same.
        if quantization.dtype not in ("int32", "uint32"):
            entries[Place(name)] = Encoding(quantization, required=not name.endswith("__o"))
    return Encodings(entries, f"AIMET's encodings {version}", metadata={"aimet.version": version}, notes=notes)


def _read_versions_0_and_1(document: Mapping[str, Any]) -> tuple[list[tuple[str, QParams]], tuple[str, ...]]:
    """Return the quantizations and notes of versions 0.4 to 1.0, which separate activations from parameters."""
    stated = [(side, found) for side in SIDES for found in read_entries(document.get(side, {}), side)]
    twice = next((name for name, count in Counter(found.name for _, found in stated).items() if count > 1), "")
    if twice:
        raise InvalidModelError("the tensor has two entries", where=repr(twice), rule="duplicate-name")
    quantizations = [(found.name, _quantization(found, signed=side == PARAMETERS)) for side, found in stated if not found.is_float]
    floats = [found.name for _, found in stated if found.is_float]
    doubtful = [found.name for _, found in stated if not found.agrees]
    notes = [f"{format_count(len(doubtful), 'tensor')} {_NOTE}{quote_some(doubtful, 3)}"] if doubtful else []
    notes += [f"{format_count(len(floats), 'tensor')} left float, as the encodings say: {quote_some(floats, 3)}"] if floats else []
    return quantizations, tuple(notes)


def _quantization(found: Stated, *, signed: bool) -> QParams:
    shift = 2 ** (found.bits - 1) if signed else 0
    points = np.array([-offset - shift for offset in found.offsets], np.int64)
    return quantization_of_bits(found.bits, signed, np.array(found.scales, np.float64), points, None, found.block_size, where=found.name)
