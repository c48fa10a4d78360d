"""Any of MNN's documents of scales -> Encodings, told apart by content."""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qconvert.encodings import Encodings
from qconvert.errors import InvalidModelError, OptionError, QConvertError, UnsupportedError
from qconvert.files import map_file
from qconvert.files.documents import json_of
from qconvert.formats.mnn.dump import is_dump, read_dump
from qconvert.formats.mnn.messages import from_bytes, from_json
from qconvert.formats.mnn.net_reader import network_encodings
from qconvert.formats.mnn.network import Network, is_network, read_network
from qconvert.formats.mnn.pipeline import is_pipeline, pipeline_encodings
from qconvert.formats.mnn.ppq import is_ppq, read_ppq

__all__ = ["holds", "read_encodings"]

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
    beside = str(options.get("mnn") or "")
    try:
        data = map_file(path)
        if _is_binary_pipeline(data):
            _require_alone(beside)
            with memoryview(data) as view:
                return pipeline_encodings(from_bytes(view))
        named = read_network(Path(beside)) if beside else None
        if not _is_text(data):
            return network_encodings(path, named)
        return _read_document(json_of(_text(data), "the file"), named)
    except QConvertError as error:
        error.file = error.file or str(path)
        raise


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
