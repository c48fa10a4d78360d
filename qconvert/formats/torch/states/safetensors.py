"""Tensors in a .safetensors file, read as views on it (https://github.com/huggingface/safetensors#format), and torchao's in their parts.

torchao keeps a quantized weight as several tensors, `0._weight_qdata`, `0._weight_scale` …, and says in the metadata, by the name of
the weight and as JSON, of which class it is, what its parts are called and what else it keeps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.files import map_file
from qconvert.formats.torch.stored import StoredTensor, TorchType, WrappedTensor
from qconvert.graph import numpy_dtype

__all__ = ["is_safetensors", "safe_tensors"]

_LARGEST_HEADER = 100_000_000  # safetensors' own limit
_MAX_RANK = 64
_TYPES = {
    "BOOL": "bool", "I8": "int8", "U8": "uint8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32", "I64": "int64",
    "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8e4m3fn", "F8_E5M2": "float8e5m2",
}  # fmt: skip


def is_safetensors(path: Path) -> bool:
    """Whether a file begins with the length of a JSON object and that object."""
    start = bytes(memoryview(map_file(path))[:9])
    return len(start) == 9 and start[8:] == b"{" and 2 <= int.from_bytes(start[:8], "little") <= _LARGEST_HEADER


def safe_tensors(path: Path) -> dict[str, StoredTensor | WrappedTensor]:
    """The tensors of a file, by name.

    Raises:
        FileAccessError: it cannot be read.
        InvalidModelError: it is damaged.
        UnsupportedError: a tensor is of a type or class that is not covered.
    """
    content = memoryview(map_file(path))
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, _LARGEST_HEADER):
        raise InvalidModelError(f"the header claims {length} bytes in a file of {len(content)}", rule="damaged-header")
    try:
        header = json.loads(bytes(content[8 : 8 + length]))
        metadata = header.pop("__metadata__", {})
        tensors = {name: _tensor(content[8 + length :], name, entry) for name, entry in header.items()}
        return _together(tensors, {name: json.loads(text) for name, text in metadata.items() if text[:1] == "{"})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidModelError(f"the header is damaged: {type(error).__name__} {error}", rule="damaged-header") from error


def _tensor(content: memoryview, name: str, entry: Mapping[str, Any]) -> StoredTensor:
    shape, (first, last) = entry["shape"], entry["data_offsets"]
    if entry["dtype"] not in _TYPES:
        raise UnsupportedError(f"the type {str(entry['dtype'])[:20]!r} is not covered", where=name, rule="dtype-not-covered")
    dtype = _TYPES[entry["dtype"]]
    if len(shape) > _MAX_RANK or any(type(number) is not int or not 0 <= number < 2**62 for number in (*shape, first, last)):
        raise ValueError(f"{name!r} has sizes {shape} at {first} to {last}")
    size = math.prod(shape) * numpy_dtype(dtype).itemsize
    if last - first != size or last > len(content):
        raise ValueError(f"{name!r} needs {size} bytes, and has {first} to {last} of {len(content)}")
    stored = np.frombuffer(content, np.uint8, size, first) if size else np.zeros(0, np.uint8)
    return StoredTensor(stored.view(numpy_dtype(dtype)).reshape(shape), dtype, tuple(shape))


def _together(tensors: dict[str, StoredTensor], classes: Mapping[str, Mapping[str, Any]]) -> dict[str, StoredTensor | WrappedTensor]:
    """The tensors, those of torchao's classes put together from their parts."""
    found: dict[str, StoredTensor | WrappedTensor] = dict(tensors)
    for name, said in classes.items():
        if said.get("_type") == "Tensor":
            continue
        module, _, own = name.rpartition(".")
        names = {part: f"{module}{'.' if module else ''}_{own}_{part}" for part in said["_tensor_data_names"]}
        parts = {part: found.pop(key) for part, key in names.items()}
        kept = {key: _value(value) for key, value in said["_data"].items()}
        shape = parts["qdata"].shape if "qdata" in parts else ()
        found[name] = WrappedTensor(f"torchao.quantization.{said['_type']}", shape, {**kept, **parts})
    return found


def _value(value: Any) -> Any:
    """What a part is that is no tensor: dtypes are objects of their own."""
    if isinstance(value, dict) and value.get("_type") == "torch.dtype":
        return TorchType(str(value.get("_data")))
    return value
