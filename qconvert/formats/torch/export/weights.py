"""Parameters, buffers and constants of a torch.export archive: raw bytes beside a list of what they are, or in older files a pickle."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import numpy_dtype
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.archive import Archive
from qconvert.formats.torch.dtypes import EXPORT
from qconvert.formats.torch.export.document import sizes_of
from qconvert.formats.torch.pickled import StoredTensor

__all__ = ["stored_tensors"]

_FOLDERS = (("data/weights", "model_weights_config.json"), ("data/constants", "model_constants_config.json"))


def stored_tensors(archive: Archive) -> dict[str, StoredTensor]:
    """Every parameter, buffer and constant, by its name in the model.

    Raises:
        InvalidModelError: a tensor does not lie within its bytes, or the list is damaged.
    """
    found: dict[str, StoredTensor] = {}
    for folder, listed in _FOLDERS:
        name = f"{folder}/{listed}"
        if name not in archive:
            continue
        try:
            config = json.loads(archive.text(name))["config"]
            for key, entry in config.items():
                found[str(key)] = _tensor(archive, f"{folder}/{entry['path_name']}", entry, str(key))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidModelError(f"the list {name} is damaged: {type(error).__name__} {error}") from error
    return found


def _tensor(archive: Archive, path: str, entry: Mapping[str, Any], name: str) -> StoredTensor:
    if entry.get("use_pickle"):
        raise UnsupportedError("a parameter that is kept as a pickle is not covered", where=name)
    meta = entry["tensor_meta"]
    dtype = EXPORT.get(meta["dtype"])
    if dtype is None:
        raise UnsupportedError(f"storage type number {meta['dtype']} is not covered", where=name)
    shape, strides = sizes_of(meta["sizes"]), sizes_of(meta["strides"])
    (offset,) = sizes_of([meta["storage_offset"]])
    kind = numpy_dtype(dtype)
    content = archive.storage(path)
    available = content.nbytes // kind.itemsize
    numbers = (offset, *shape, *strides)
    if len(shape) != len(strides) or len(shape) > 32 or any(not isinstance(number, int) or number < 0 for number in numbers):
        raise InvalidModelError(f"sizes {shape} and strides {strides} are no tensor's", where=name)
    sizes, steps, first = [int(s) for s in shape], [int(s) for s in strides], int(offset)
    if 0 in sizes:
        return StoredTensor(np.zeros(sizes, kind), dtype, tuple(sizes))
    last = first + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    if last >= available or math.prod(sizes) > max(available, 2**24):
        raise InvalidModelError(f"its {available} stored elements are too few for a tensor of shape {tuple(sizes)}", where=name)
    flat = content[: available * kind.itemsize].view(kind)
    data = np.lib.stride_tricks.as_strided(flat[first:], sizes, [step * kind.itemsize for step in steps], writeable=False)
    return StoredTensor(data, dtype, tuple(sizes))
