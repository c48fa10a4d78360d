"""The zip archives in which PyTorch keeps models, read within limits.

Storages lie uncompressed and are views on the mapped file; code, pickles and JSON may be compressed. Nothing is ever extracted to disk, and
no name of an entry becomes a path.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from io import SEEK_CUR, SEEK_END, BufferedReader, RawIOBase
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.files import map_file
from qconvert.graph import Array

#: d2go, a real detector, has 945 entries, and 2 GB of weights are some thousands.
_MOST_ENTRIES = 100_000
#: What is not a storage: code and JSON. The largest seen has 11 MB.
_LARGEST_TEXT = 2**28
#: zlib cannot compress by more than 1032; code and JSON of real models have ratios up to 40.
_LARGEST_RATIO = 200
#: What all compressed entries that are read may expand to: this, and so many times the file.
_EXPANDED, _EXPANDED_TIMES = 2**20, 16
_DAMAGED = "The file is damaged or was not written to its end."
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_COMPRESSED = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}


class Archive:
    """The entries of a model's archive, by their names after the archive's root folder.

    Args:
        source: the path of the file, or the bytes of an archive that lies in another.

    Raises:
        FileAccessError: it cannot be read.
        InvalidModelError: it is no zip archive, is damaged, or breaks a limit: at most 100,000 entries; at most 256 MB an entry of
            code or JSON; a compression ratio of at most 200; at most 1 MB plus 16 times the file for all compressed entries that are
            read; no name leaves the archive, no entry overlaps another, no bytes precede the first.
    """

    def __init__(self, source: Path | memoryview) -> None:
        self._mapping = memoryview(map_file(source)) if isinstance(source, Path) else source
        try:
            self._infos = self._check_entries(zipfile.ZipFile(BufferedReader(_Stream(self._mapping))).infolist())
        except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, struct.error, ValueError, OverflowError) as error:
            raise InvalidModelError(f"is not a readable zip archive: {error}", remedy=_DAMAGED, rule="not-a-zip") from error
        roots = {name.partition("/")[0] if "/" in name else "" for name in self._infos}
        #: The folder, with its slash, in which everything lies; "" if there is none.
        self.root = f"{roots.pop()}/" if len(roots) == 1 and "" not in roots else ""
        self._expanded: set[str] = set()
        self._expanded_size = 0

    def __contains__(self, name: str) -> bool:
        return self.root + name in self._infos

    def __iter__(self) -> Iterator[str]:
        """Names after the root folder."""
        return (name[len(self.root) :] for name in self._infos)

    def read(self, name: str) -> bytes:
        """The content of a small entry: code, a pickle, JSON."""
        info = self._info(name)
        start, stored = self._span(info)
        if info.file_size > _LARGEST_TEXT:
            raise InvalidModelError(
                f"the entry {name!r} has {info.file_size} bytes; at most {_LARGEST_TEXT} are read", rule="entry-too-large"
            )
        content: bytes | memoryview = self._mapping[start : start + stored]
        if info.compress_type == zipfile.ZIP_DEFLATED:
            content = self._inflate_entry(content, info)
        if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
            raise InvalidModelError(f"the entry {name!r} is damaged: its checksum is wrong", rule="damaged-entry")
        return bytes(content)

    def size(self, name: str) -> int:
        """How many bytes an entry has."""
        return self._info(name).file_size

    def text(self, name: str) -> str:
        """The content of an entry in UTF-8."""
        try:
            return self.read(name).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidModelError(f"the entry {name!r} is not UTF-8 text: {error}", rule="not-utf8") from error

    def storage(self, name: str) -> Array:
        """The bytes of a storage, as uint8: a view on the mapped file, or, where it is compressed, a copy."""
        info = self._info(name)
        start, stored = self._span(info)
        if info.compress_type == zipfile.ZIP_DEFLATED:
            return np.frombuffer(self.read(name), np.uint8)
        return np.frombuffer(self._mapping, np.uint8, stored, start)

    def _info(self, name: str) -> zipfile.ZipInfo:
        info = self._infos.get(self.root + name)
        if info is None:
            raise InvalidModelError(f"the archive has no entry {name!r}", remedy=_DAMAGED, rule="entry-missing")
        return info

    def _inflate_entry(self, content: bytes | memoryview, info: zipfile.ZipInfo) -> bytes:
        if info.filename not in self._expanded:
            self._expanded.add(info.filename)
            self._expanded_size += info.file_size
        if self._expanded_size > _EXPANDED + _EXPANDED_TIMES * len(self._mapping):
            raise InvalidModelError(
                f"the compressed entries expand to more than {_EXPANDED_TIMES} times the size of the file",
                where=info.filename,
                rule="expands-too-much",
            )
        decompress = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            return decompress.decompress(content, info.file_size + 1)
        except zlib.error as error:
            raise InvalidModelError(f"the entry {info.filename!r} is damaged: {error}", rule="damaged-entry") from error

    def _span(self, info: zipfile.ZipInfo) -> tuple[int, int]:
        """Where the bytes of an entry begin, and how many there are in the file."""
        header = bytes(self._mapping[info.header_offset : info.header_offset + 30])
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise InvalidModelError(
                f"the entry {info.filename!r} is damaged: no entry begins at the offset that the directory states", rule="damaged-entry"
            )
        _, name, extra = _LOCAL_HEADER.unpack(header)
        start = info.header_offset + 30 + name + extra
        stated = info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437")
        if bytes(self._mapping[info.header_offset + 30 : info.header_offset + 30 + name]) != stated:
            raise InvalidModelError(f"the entry {info.filename!r} is damaged: its own header has another name", rule="damaged-entry")
        if start + info.compress_size > len(self._mapping):
            raise InvalidModelError(f"the entry {info.filename!r} is damaged: it runs past the end of the file", rule="damaged-entry")
        return start, info.compress_size

    def _check_entries(self, infos: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
        if len(infos) > _MOST_ENTRIES:
            raise InvalidModelError(f"the archive has {len(infos)} entries; at most {_MOST_ENTRIES} are read", rule="too-many-entries")
        found: dict[str, zipfile.ZipInfo] = {}
        end = -1
        for info in sorted(infos, key=lambda info: info.header_offset):
            name = info.filename
            if name.endswith("/"):
                continue
            if name.startswith("/") or "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
                raise InvalidModelError(f"the archive has an entry {name!r}, whose path leaves the archive", rule="entry-outside-archive")
            if name in found:
                raise InvalidModelError(f"the archive has two entries {name!r}", rule="duplicate-entry")
            if info.flag_bits & 1:
                raise InvalidModelError(f"the entry {name!r} is encrypted", rule="entry-encrypted")
            if info.compress_type not in _COMPRESSED:
                raise InvalidModelError(
                    f"the entry {name!r} is compressed by method {info.compress_type}; PyTorch stores or deflates entries",
                    rule="compression-not-covered",
                )
            if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
                raise InvalidModelError(
                    f"the entry {name!r} is damaged: it is stored, and its compressed size differs from its size", rule="damaged-entry"
                )
            if info.file_size > _LARGEST_RATIO * max(info.compress_size, 64):
                raise InvalidModelError(
                    f"the entry {name!r} expands to {info.file_size} bytes, more than {_LARGEST_RATIO} times its compressed size",
                    rule="expands-too-much",
                )
            if end < 0 and info.header_offset:  # a reader that does not look for it takes other entries: it hides what it holds
                raise InvalidModelError(
                    f"{info.header_offset} bytes precede the first entry of the archive, {name!r}", rule="damaged-entry"
                )
            if info.header_offset < end:
                raise InvalidModelError(f"the entry {name!r} overlaps another entry", rule="entries-overlap")
            end = info.header_offset + 30 + info.compress_size
            found[name] = info
        return found


class _Stream(RawIOBase):
    """Bytes as a file, without a copy of them."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = max(offset + {SEEK_CUR: self._place, SEEK_END: len(self._content)}.get(whence, 0), 0)
        return self._place

    def readinto(self, buffer: Any) -> int:
        part = self._content[self._place : self._place + len(buffer)]
        buffer[: len(part)] = part
        self._place += len(part)
        return len(part)
