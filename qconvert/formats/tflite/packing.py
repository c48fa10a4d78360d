"""Packs the objects of a .tflite file, and takes a file apart into them: constants of files above 2 GB lie after the FlatBuffer."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

from qconvert.errors import QConvertError
from qconvert.formats.flatbuffers import LARGEST, DeferredBytes, TooLargeError, unpack_view
from qconvert.formats.flatbuffers import pack_parts as pack_flatbuffer
from qconvert.formats.tflite.tensors import bytes_of_buffer, bytes_of_options

#: Bytes of a constant from which on it lies after the FlatBuffer of a file above 2 GB, and a multiple of which its place is.
_LARGE, _ALIGNMENT = 1024, 64


def unpack_model(view: Any, data: mmap.mmap | bytes) -> Any:
    """Return the object of a model, to be changed and packed, with all that lies after the FlatBuffer in it.

    Args:
        view: the root of the file, verified.
        data: the file.
    """
    model = unpack_view(view)
    for buffer in model.buffers or ():
        found = bytes_of_buffer(buffer, data)
        buffer.data, buffer.offset, buffer.size = found if found is None else found.data, 0, 0
    for operator in (operator for subgraph in model.subgraphs or () for operator in subgraph.operators or ()):
        operator.customOptions = bytes_of_options(operator, data)
        operator.largeCustomOptionsOffset = operator.largeCustomOptionsSize = 0
    return model


def pack_parts(model: Any) -> Iterator[bytes | memoryview]:
    """Yield the file of a model in parts. Above 2 GB, which offsets of a FlatBuffer can address, large constants lie after the FlatBuffer,
    where Buffer.offset and Buffer.size say (schema.fbs); their buffers lose their data.

    Raises:
        QConvertError: what remains is above 2 GB.
    """
    try:
        return pack_flatbuffer(model)
    except TooLargeError:
        return _pack_data_after(model)


def _pack_data_after(model: Any) -> Iterator[bytes | memoryview]:
    kept = {entry.buffer for entry in model.metadata or ()}  # readers of metadata look for it in the FlatBuffer
    outside = [
        buffer
        for number, buffer in enumerate(model.buffers)
        if number not in kept and buffer.data is not None and len(buffer.data) >= _LARGE
    ]
    contents = [buffer.data for buffer in outside]
    for buffer, content in zip(outside, contents, strict=True):
        buffer.data, buffer.offset, buffer.size = None, LARGEST, len(content)  # the offset is not known before the FlatBuffer's size
    try:
        end = sum(map(len, pack_flatbuffer(model)))
        for buffer in outside:
            buffer.offset = end + -end % _ALIGNMENT
            end = buffer.offset + buffer.size
        place = 0
        for part in pack_flatbuffer(model):
            place += len(part)
            yield part
    except TooLargeError as error:
        raise QConvertError(
            "the model without its constants is above 2 GB; a TFLite file requires that its FlatBuffer is smaller",
            remedy="Write it as ONNX or .qgraph, which hold more.",
            rule="file-too-large",
        ) from error
    for buffer, content in zip(outside, contents, strict=True):
        yield bytes(buffer.offset - place)
        yield from content.pieces() if isinstance(content, DeferredBytes) else (memoryview(content),)
        place = buffer.offset + buffer.size
