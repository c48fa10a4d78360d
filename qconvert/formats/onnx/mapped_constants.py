"""Constants of an ONNX protobuf as arrays on mapped files."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.files import map_file
from qconvert.formats.onnx.verify_constants import BITS, STRING
from qconvert.formats.onnx.wire import OWN_FILE
from qconvert.graph import Array

__all__ = ["ConstantData", "Files"]


class Files:
    """The files that hold constants, each mapped once.

    Args:
        folder: where external data lie.
        own: the model's own file, in which large constants lie (wire.py).
    """

    def __init__(self, folder: Path, own: mmap.mmap | bytes) -> None:
        self._folder = folder
        self._mapped: dict[str, mmap.mmap | bytes] = {OWN_FILE: own}

    def bytes_of(self, tensor: Any) -> Array:
        """The bytes of a verified external TensorProto, as a view."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries["location"]
        if location not in self._mapped:
            self._mapped[location] = map_file(self._folder / location)
        count = (int(np.prod(tensor.dims, dtype=np.int64)) * BITS[tensor.data_type] + 7) // 8
        return np.frombuffer(self._mapped[location], np.uint8, count, int(entries.get("offset", 0))) if count else np.empty(0, np.uint8)

    def embed_data(self, tensor: Any) -> None:
        """Puts the bytes of an external TensorProto into it."""
        if tensor.data_location == tensor.EXTERNAL:
            data = self.bytes_of(tensor).tobytes()
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
            tensor.raw_data = data


class ConstantData:
    """A constant of a model: an array is made of it when it is asked for.

    Attributes:
        proto: the onnx.TensorProto.
        shape: its dims.
    """

    __slots__ = ("_files", "proto", "shape")

    def __init__(self, proto: Any, files: Files) -> None:
        self.proto = proto
        self.shape: tuple[int, ...] = tuple(proto.dims)
        self._files = files

    def numpy(self) -> Array:
        """The values: a view on the file where they lie in one whole, text as bytes."""
        from onnx import helper, numpy_helper

        tensor = self.proto
        if tensor.data_type == STRING:
            return np.array(list(tensor.string_data), object).reshape(self.shape)
        if tensor.data_location != tensor.EXTERNAL:
            return np.asarray(numpy_helper.to_array(tensor))
        if BITS[tensor.data_type] < 8:  # several to a byte
            copy = type(tensor)()
            copy.CopyFrom(tensor)
            self._files.embed_data(copy)
            return np.asarray(numpy_helper.to_array(copy))
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return self._files.bytes_of(tensor).view(dtype.newbyteorder("<")).reshape(self.shape)
