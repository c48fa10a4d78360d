"""Metadata buffers and files that travel with a .tflite model, as texts of the graph's metadata.

Label files and the like are a ZIP archive after the FlatBuffer, which the metadata buffer TFLITE_METADATA describes
(tensorflow.org/lite/models/convert/metadata).
"""

from __future__ import annotations

import base64
import io
import mmap
import zipfile
import zlib
from collections.abc import Mapping

from qconvert.graph.metadata import BASE64, SOURCE_FILES

__all__ = ["bytes_of", "read_files", "text_of", "with_files"]

#: Larger contents are named by their size alone.
_LARGEST = 2**18
#: The end record of a ZIP archive and its longest comment.
_END_RECORD, _END_SPAN = b"PK\x05\x06", 22 + 2**16


def text_of(data: bytes) -> str:
    """A short text as it is, other data in base64; "<n> bytes" for what is above 256 KB."""
    text = data.rstrip(b"\0")
    if len(text) < 256 and text.isascii() and text.decode("ascii").isprintable():
        return text.decode("ascii")
    return BASE64 + base64.b64encode(data).decode("ascii") if len(data) <= _LARGEST else f"{len(data)} bytes"


def bytes_of(text: str) -> bytes | None:
    """What text_of() made a text of, without trailing zeros; None where it kept the size alone."""
    if text.startswith(BASE64):
        try:
            return base64.b64decode(text.removeprefix(BASE64), validate=True)
        except ValueError:  # a text that someone else put there
            return text.encode()
    return None if text.endswith(" bytes") and text[:-6].isdigit() else text.encode()


def read_files(data: mmap.mmap | bytes) -> dict[str, str]:
    """The files of the archive after the FlatBuffer, as entries of the graph's metadata; none if there is no readable archive."""
    if _END_RECORD not in data[-_END_SPAN:]:
        return {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            small = [info for info in archive.infolist() if info.file_size <= _LARGEST and not info.is_dir()]
            return {f"{SOURCE_FILES}{info.filename}": text_of(archive.read(info)) for info in small}
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, OSError, EOFError, ValueError):
        return {}  # the model itself does not depend on what follows it


def with_files(packed: bytes, metadata: Mapping[str, str]) -> bytes:
    """The FlatBuffer with an archive of the metadata's files after it; itself if there are none."""
    files = {key.removeprefix(SOURCE_FILES): bytes_of(text) for key, text in metadata.items() if key.startswith(SOURCE_FILES)}
    if not any(content is not None for content in files.values()):
        return packed
    result = io.BytesIO(packed)
    with zipfile.ZipFile(result, "a") as archive:
        for name, content in files.items():
            if content is not None:
                archive.writestr(zipfile.ZipInfo(name), content)  # its date is fixed, so equal graphs give equal files
    return result.getvalue()
