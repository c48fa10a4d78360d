"""FlatBuffers (https://flatbuffers.dev/internals) by tables: a schema's fields as data, views on a file, and objects that are written.

A format states its schema as data (Schema) and needs no generated code. A file is looked through (Verifier) before anything is read of it.
"""

from __future__ import annotations

from qconvert.formats.flatbuffers.packing import LARGEST, DeferredBytes, TooLargeError, pack_model, pack_parts
from qconvert.formats.flatbuffers.schema import SCALARS, Field, Schema, Table, TableObject, unpack_view
from qconvert.formats.flatbuffers.verify import MOST_VISITS, damaged_error, verify_tables

__all__ = [
    "LARGEST",
    "MOST_VISITS",
    "SCALARS",
    "DeferredBytes",
    "Field",
    "Schema",
    "Table",
    "TableObject",
    "TooLargeError",
    "damaged_error",
    "pack_model",
    "pack_parts",
    "unpack_view",
    "verify_tables",
]
