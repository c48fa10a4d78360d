"""Checks that a .tflite file is a sound FlatBuffer of the TFLite schema, before anything else looks at it.

The Python FlatBuffers library trusts every offset and length it finds; formats/flatbuffers/verify.py looks at each.
"""

from __future__ import annotations

import mmap

from qconvert.errors import InvalidModelError
from qconvert.formats.flatbuffers import MOST_VISITS, verify_tables
from qconvert.formats.tflite.schema import TFLITE

__all__ = ["verify"]

#: Where a table says (place, length) of data after the FlatBuffer, in files above 2 GB.
_OUTSIDE = {"Buffer": (6, 8), "Operator": (22, 24)}
_OTHER_FORMATS = (
    (b"PK\x03\x04", "a zip archive, such as a PyTorch, Keras or NumPy file"),
    (b"GGUF", "a GGUF file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, such as an older Keras model"),
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer; fetch the file itself with `git lfs pull`"),
    (b"<", "an HTML or XML page, which servers send in place of a file"),
    *((bytes([0x80, protocol]), "a Python pickle") for protocol in range(2, 6)),
    # ModelProto.ir_version (field 1, varint), then producer_name, domain, graph or opset_import (onnx.proto).
    *((bytes([8, version, tag]), "an ONNX file") for version in range(1, 32) for tag in (0x12, 0x22, 0x3A, 0x42)),
)


def verify(data: bytes | bytearray | memoryview | mmap.mmap, *, max_tables: int = MOST_VISITS) -> None:
    """Checks every offset, vtable, vector and string of a .tflite file, see verify_tables().

    Args:
        data: the whole file.
        max_tables: how many tables and vectors a walk may meet.

    Raises:
        InvalidModelError: it is no TFLite file or is damaged; the reason names the field, the place and the excess.
    """
    with memoryview(data) as raw, raw.cast("B") as view:
        if len(view) < 8:
            reason = f"a TFLite file has at least 8 bytes, this one has {len(view)}" if len(view) else "the file is empty"
            raise InvalidModelError(reason, rule="not-this-format")
        _require_identifier(view)
        verify_tables(view, TFLITE, max_tables=max_tables, outside=_OUTSIDE)


def _require_identifier(view: memoryview) -> None:
    magic = bytes(view[4:8])
    if magic == b"TFL3":
        return
    start = bytes(view[:32])
    hint = next((f"; it looks like {name}" for prefix, name in _OTHER_FORMATS if start.startswith(prefix)), "")
    if start[8:10] == b'{"':
        hint = "; it looks like a safetensors file"
    raise InvalidModelError(f"this is not a TFLite file: bytes 4 to 7 are {magic!r} instead of b'TFL3'{hint}", rule="not-this-format")
