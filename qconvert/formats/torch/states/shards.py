"""Checkpoints in several files: an index next to them says which tensor is in which (model.safetensors.index.json of Hugging Face)."""

from __future__ import annotations

from pathlib import Path

from qconvert.errors import FileAccessError, InvalidModelError
from qconvert.files.documents import json_next_to
from qconvert.formats.torch.states.safetensors import safe_tensors
from qconvert.formats.torch.stored import StoredTensor, WrappedTensor

__all__ = ["sharded_tensors"]

_LARGEST, _MOST_FILES = 200_000_000, 10_000


def sharded_tensors(path: Path) -> dict[str, StoredTensor | WrappedTensor]:
    """The tensors of a .safetensors file, with those of all files of its checkpoint where an index next to it lists it.

    Raises:
        FileAccessError: a file cannot be read, or is missing.
        InvalidModelError: a file is damaged, the index leads outside of its folder, or a tensor is not where it says.
        UnsupportedError: a tensor is of a type or class that is not covered.
    """
    places = _index(path)
    if not places:
        return safe_tensors(path)
    names = sorted(set(places.values()))
    if len(names) > _MOST_FILES:
        raise InvalidModelError(f"the index lists {len(names)} files; at most {_MOST_FILES} are read", rule="too-many-files")
    found: dict[str, StoredTensor | WrappedTensor] = {}
    for name in names:
        file = path.parent / name
        if Path(name).name != name or name in ("", ".", ".."):
            raise InvalidModelError(f"the index leads to {name!r}; a file of its own folder is required", rule="outside-folder")
        if not file.is_file():
            raise FileAccessError("the index lists the file, which is not there", file=str(file), rule="file-missing")
        tensors = safe_tensors(file)
        lacking = [tensor for tensor, where in places.items() if where == name and tensor not in tensors]
        if lacking:
            raise InvalidModelError(
                f"the index says that {name} has the tensor, which it lacks", where=repr(lacking[0]), rule="tensor-missing"
            )
        found.update(tensors)
    return found


def _index(path: Path) -> dict[str, str]:
    """Tensor -> the name of its file, by the index that lists `path`; empty where there is none."""
    for file in sorted(path.parent.glob("*.safetensors.index.json")):
        found = json_next_to(file, _LARGEST)
        if not isinstance(found, dict):
            raise InvalidModelError(f"{file.name} is no index", rule="damaged-config")
        places = found.get("weight_map")
        if isinstance(places, dict) and path.name in places.values() and all(isinstance(name, str) for name in places.values()):
            return places
    return {}
