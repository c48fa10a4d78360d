"""Parameters, buffers and constants of a torch.export archive: raw bytes next to a list of what they are, or before PyTorch 2.9 pickles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qconvert.arithmetic.dtypes import numpy_dtype
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.archive import Archive
from qconvert.formats.torch.dtypes import EXPORT
from qconvert.formats.torch.export.document import sizes_of
from qconvert.formats.torch.stored_values import StoredTensor, WrappedTensor
from qconvert.formats.torch.strided import Storages
from qconvert.formats.torch.unpickler import unpickle

__all__ = ["read_early_tensors", "read_saved", "read_stored_tensors"]

_FOLDERS = (("data/weights", "_weights_config.json"), ("data/constants", "_constants_config.json"))
_EARLY = ("serialized_state_dict.pt", "serialized_constants.pt")


def read_stored_tensors(archive: Archive, model: str = "model") -> dict[str, StoredTensor | WrappedTensor]:
    """Every parameter, buffer and constant, by its name in the model.

    Args:
        archive: the file's.
        model: the name of the program in it.

    Raises:
        InvalidModelError: a tensor does not lie within its bytes, or the list is damaged.
    """
    found: dict[str, StoredTensor | WrappedTensor] = {}
    storages = Storages()
    for folder, ending in _FOLDERS:
        name = f"{folder}/{model}{ending}"
        found |= _dictionary(archive, f"{folder}/{model}.pt")
        if name not in archive:
            continue
        try:
            config = json.loads(archive.text(name))["config"]
            for key, entry in config.items():
                path = f"{folder}/{entry['path_name']}"
                value = (
                    _read_pickled(archive, path, str(key)) if entry.get("use_pickle") else _tensor(archive, storages, path, entry, str(key))
                )
                if value is not None:
                    found[str(key)] = value
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise InvalidModelError(f"the list {name} is damaged: {type(error).__name__} {error}", rule="damaged-entry") from error
    return found


def read_early_tensors(archive: Archive) -> dict[str, StoredTensor | WrappedTensor]:
    """The tensors of an archive of PyTorch 2.1 to 2.7: dictionaries written by torch.save."""
    found: dict[str, StoredTensor | WrappedTensor] = {}
    for entry in _EARLY:
        found |= _dictionary(archive, entry)
    return found


def _dictionary(archive: Archive, entry: str) -> dict[str, StoredTensor | WrappedTensor]:
    """The tensors of a dictionary that torch.save wrote; none where the archive has no such entry."""
    if entry not in archive or not archive.storage(entry).size:
        return {}
    values = read_saved(archive, entry)
    if not isinstance(values, dict):
        raise InvalidModelError("the entry does not hold a dictionary of tensors", where=entry, rule="damaged-entry")
    return {str(key): value for key, value in values.items() if isinstance(value, (StoredTensor, WrappedTensor))}


def read_saved(archive: Archive, entry: str) -> Any:
    """Unpickle an entry written by torch.save: an archive in the archive."""
    inner = Archive(archive.storage(entry).data)
    return unpickle(inner.read("data.pkl"), lambda key: inner.storage(f"data/{key}"), entry)


def _read_pickled(archive: Archive, path: str, name: str) -> StoredTensor | WrappedTensor | None:
    """A tensor of a class that keeps others inside, such as those of torchao."""
    try:
        value = read_saved(archive, path)
    except UnsupportedError as error:
        error.where = f"{name}: {error.where}"
        raise
    return value if isinstance(value, (StoredTensor, WrappedTensor)) else None


def _tensor(archive: Archive, storages: Storages, path: str, entry: Mapping[str, Any], name: str) -> StoredTensor | None:
    meta = entry.get("tensor_meta")
    if meta is None:  # an object of somebody's class
        return None
    dtype = EXPORT.get(meta["dtype"])
    if dtype is None:
        raise UnsupportedError(f"storage type number {meta['dtype']} is not covered", where=name, rule="dtype-not-covered")
    shape, strides = sizes_of(meta["sizes"]), sizes_of(meta["strides"])
    (offset,) = sizes_of([meta["storage_offset"]])
    try:
        data = storages.view(path, archive.storage(path), numpy_dtype(dtype), (offset, shape, strides))
    except ValueError as error:
        raise InvalidModelError(str(error), where=name, rule="damaged-tensor") from error
    return StoredTensor(data, dtype, tuple(data.shape))
