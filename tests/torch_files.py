"""Small archives of PyTorch, made by hand: TorchScript of one method, and torch.export programs."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_CLASS = "class M(Module):\n  __parameters__ = []\n  __buffers__ = []\n  training : bool\n"
#: A module without attributes: what `data.pkl` holds for a class __torch__.M.
_MODULE = b"\x80\x02c__torch__\nM\n)\x81}X\x08\x00\x00\x00training\x89sb."
_STORAGES = {"uint8": "ByteStorage", "int8": "CharStorage", "int16": "ShortStorage", "int32": "IntStorage", "int64": "LongStorage",
             "float16": "HalfStorage", "float32": "FloatStorage", "float64": "DoubleStorage", "bool": "BoolStorage"}  # fmt: skip
_SCALAR_TYPES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 8, "bool": 12}


def zipped(path: Path, entries: Mapping[str, bytes | str], root: str = "m/") -> Path:
    """An archive with all its entries in one folder, stored as PyTorch stores them."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(root + name, content)
    return path


def torchscript(path: Path, method: str, constants: Sequence[np.ndarray[Any, Any]] = ()) -> Path:
    """A TorchScript archive of one module without attributes.

    Args:
        path: of the file.
        method: the text of `forward`, as PyTorch prints it: "def forward(self, x: Tensor) -> Tensor: …".
        constants: what it calls CONSTANTS.c0 and so on.
    """
    indented = "".join(f"  {line}\n" for line in method.splitlines())
    entries = {"data.pkl": _MODULE, "code/__torch__.py": _CLASS + indented, "version": "3\n"}
    entries["constants.pkl"] = b"\x80\x02(" + b"".join(_pickled(value, str(key)) for key, value in enumerate(constants)) + b"t."
    return zipped(path, {**entries, **{f"constants/{key}": value.tobytes() for key, value in enumerate(constants)}})


def _pickled(value: np.ndarray[Any, Any], key: str) -> bytes:
    """A tensor in a pickle, its numbers in the storage `key`."""

    def numbers(values: Sequence[int]) -> bytes:
        return b"(" + b"".join(b"I%d\n" % number for number in values) + b"t"

    data = np.ascontiguousarray(value).reshape(value.shape)
    strides = [step // data.itemsize for step in data.strides]
    storage = b"(Vstorage\nctorch\n%s\nV%s\nVcpu\nI%d\ntQ" % (_STORAGES[str(data.dtype)].encode(), key.encode(), data.size)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"I0\n" + numbers(data.shape) + numbers(strides) + b"I00\n}tR"


def exported(path: Path, program: Mapping[str, Any], tensors: Mapping[str, np.ndarray[Any, Any]]) -> Path:
    """A torch.export archive.

    Args:
        path: of the file.
        program: the document models/model.json.
        tensors: parameters, buffers and constants by name.
    """
    config: dict[str, Any] = {}
    entries: dict[str, bytes | str] = {"archive_format": "pt2", "archive_version": "0", "byteorder": "little"}
    entries["models/model.json"] = json.dumps(program)
    for index, (name, value) in enumerate(tensors.items()):
        data = np.ascontiguousarray(value).reshape(value.shape)
        strides = [step // data.itemsize for step in data.strides]
        meta = {"dtype": _SCALAR_TYPES[str(data.dtype)], "storage_offset": {"as_int": 0}}
        meta |= {key: [{"as_int": n} for n in numbers] for key, numbers in (("sizes", data.shape), ("strides", strides))}
        config[name] = {"path_name": f"weight_{index}", "is_param": False, "use_pickle": False, "tensor_meta": meta}
        entries[f"data/weights/weight_{index}"] = data.tobytes()
    entries["data/weights/model_weights_config.json"] = json.dumps({"config": config})
    return zipped(path, entries)
