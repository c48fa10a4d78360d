"""Archives of torch.export made by hand, so that tests need no torch."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_SCALAR_TYPES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 8, "bool": 12}


def zipped(path: Path, entries: Mapping[str, bytes | str], root: str = "m/") -> Path:
    """An archive with all its entries in one folder, stored as PyTorch stores them."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(root + name, content)
    return path


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
