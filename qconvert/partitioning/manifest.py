"""The manifest of a split network: its parts in the order in which they run, the tensors between them, and hashes of the files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from qconvert.errors import FileAccessError, InvalidModelError
from qconvert.files import file_digest, map_file
from qconvert.files.documents import fail, integer, json_of, list_of, object_of, read_members, text, texts, truth

#: The name that the manifest has in its folder.
NAME = "manifest.json"
#: The version of its form, under this key.
_KEY, _VERSION = "qconvert_partition", 1
#: A larger one is none.
_LARGEST = 2**26


@dataclass(frozen=True, slots=True)
class FileOf:
    """A file in the folder of the manifest.

    Attributes:
        file: its name.
        sha256: of its content.
    """

    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class PartFile:
    """A part of the network.

    Attributes:
        name: of the region; "rest_0" … of the parts that no target took.
        target: what its file is for.
        region: whether it is a region.
        model: its file, or the artefact of a code generator.
        format: of the file; "" of an artefact.
        runtime: its runtime and kernels, as in `--kernels`; "" if none here runs it.
        graph: of an artefact, the region as a .qgraph file.
        beside: further files that belong to it.
        inputs, outputs: the tensors that it takes and gives, in the order of the file's own.
        operators, macs: how large it is.
    """

    name: str
    target: str
    region: bool
    model: FileOf
    format: str
    runtime: str
    graph: FileOf | None
    beside: tuple[FileOf, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: int
    macs: int


@dataclass(frozen=True, slots=True)
class CrossingState:
    """A state that no part holds: its value goes from part to part as a tensor.

    Attributes:
        name: of the state; its initial value is in the file of values.
        reads: the tensors that are its value from the run before.
        written: the tensor that is its value for the next run; "" if it never changes.
    """

    name: str
    reads: tuple[str, ...]
    written: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of manifest.json.

    Attributes:
        source: name of the model's file, and its sha256; "" both of a graph.
        targets: those that regions were cut for, by priority.
        inputs, outputs: of the network.
        values: a .qgraph file of all tensors that go from part to part, with their types and quantizations, of outputs that are constants,
            and of the first values of states.
        states: those that no part holds.
        parts: in the order in which they run.
        read: options with which the source was read.
    """

    source: FileOf
    targets: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: FileOf
    states: tuple[CrossingState, ...]
    parts: tuple[PartFile, ...]
    read: Mapping[str, Any] = field(default_factory=dict)

    def files(self) -> Iterator[FileOf]:
        """Yield every file that belongs to the manifest."""
        yield self.values
        for part in self.parts:
            yield part.model
            yield from part.beside
            if part.graph is not None:
                yield part.graph


def manifest_json(manifest: Manifest, version: str) -> str:
    """Return the JSON of a manifest."""
    return json.dumps({_KEY: _VERSION, "qconvert": version, **asdict(manifest)}, indent=2) + "\n"


def is_manifest(start: bytes) -> bool:
    """Whether a file with this start is a manifest."""
    return start.lstrip().startswith(b"{") and f'"{_KEY}"'.encode() in start


def read_manifest(path: Path, *, verify: bool = True) -> Manifest:
    """Read the manifest in a file.

    Args:
        path: the file; those that it names lie next to it.
        verify: whether these are compared with their hashes.

    Raises:
        FileAccessError: a file cannot be read.
        InvalidModelError: it is no manifest, contradicts itself, or a file was changed since the split.
    """
    data = map_file(path)
    if len(data) > _LARGEST:
        raise InvalidModelError(
            f"the manifest has {len(data):,} bytes; at most {_LARGEST:,} are allowed", file=str(path), rule="file-too-large"
        )
    at, found = "manifest", json_of(bytes(data), "the manifest")
    if not isinstance(found, dict) or _KEY not in found:
        raise InvalidModelError("is not the manifest of a partition", file=str(path), rule="not-this-format")
    item = object_of(found, at, (_KEY, "qconvert", *_MEMBERS), ("read",))
    if integer(item[_KEY], f"{at}.{_KEY}") != _VERSION:
        fail(f"{at}.{_KEY}", f"is {item[_KEY]}; version {_VERSION} can be read", rule="unknown-version")
    read = item.get("read", {})
    options = object_of(read, f"{at}.read", (), read if isinstance(read, dict) else ())
    manifest = Manifest(**read_members(item, at, _MEMBERS), read=options)
    _require_order(manifest)
    for entry in manifest.files() if verify else ():
        place = path.parent / entry.file
        if not os.path.isfile(place):
            raise FileAccessError(
                f"the file {entry.file!r}, which the manifest names, does not exist", file=str(path), rule="file-not-found"
            )
        if file_digest(place) != entry.sha256:
            reason = f"the file {entry.file!r} was changed since the split: its SHA-256 differs"
            raise InvalidModelError(reason, file=str(path), remedy="Split the model again.", rule="file-changed")
    return manifest


def _file(found: Any, at: str, *, named: bool = True) -> FileOf:
    """Read the entry of a file: its name, without a folder, and its hash."""
    item = object_of(found, at, ("file", "sha256"), ())
    name = text(item["file"], f"{at}.file")
    if named and (not name or name in (".", "..", NAME) or any(char in name for char in "/\\\0:")):
        fail(f"{at}.file", f"is {name!r}, which is not the name of a file in the folder of the manifest", rule="file-outside")
    return FileOf(name, text(item["sha256"], f"{at}.sha256"))


def _files(found: Any, at: str) -> tuple[FileOf, ...]:
    return tuple(list_of(found, at, _file))


def _states(found: Any, at: str) -> tuple[CrossingState, ...]:
    return tuple(CrossingState(**item) for item in _objects(found, at, {"name": text, "reads": texts, "written": text}))


def _parts(found: Any, at: str) -> tuple[PartFile, ...]:
    parts = tuple(PartFile(**item) for item in _objects(found, at, _PART))
    if (place := next((place for place, part in enumerate(parts) if not part.format and part.graph is None), None)) is not None:
        fail(f"{at}[{place}]", "has neither a format nor a graph", rule="missing-member")
    return parts


def _objects(found: Any, at: str, members: Mapping[str, Callable[[Any, str], Any]]) -> list[dict[str, Any]]:
    """Read a list of objects with the same members."""
    return list_of(found, at, lambda item, place: read_members(object_of(item, place, members, ()), place, members))


_COUNT = partial(integer, least=0)
_PART: Mapping[str, Callable[[Any, str], Any]] = {
    "name": text, "target": text, "region": truth, "model": _file, "format": text, "runtime": text,
    "graph": lambda found, at: None if found is None else _file(found, at), "beside": _files, "inputs": texts, "outputs": texts,
    "operators": _COUNT, "macs": _COUNT,
}  # fmt: skip
_MEMBERS: Mapping[str, Callable[[Any, str], Any]] = {
    "source": partial(_file, named=False), "targets": texts, "inputs": texts, "outputs": texts, "values": _file, "states": _states,
    "parts": _parts,
}  # fmt: skip


def _require_order(manifest: Manifest) -> None:
    """Raise an error unless every part reads tensors computed before it, and none is computed twice. Outputs may be constants."""
    _require_distinct((item.file for item in manifest.files()), "the file {} is named twice")
    _require_distinct((part.name for part in manifest.parts), "two parts have the name {}")
    _require_distinct((state.name for state in manifest.states), "two states have the name {}")
    _require_distinct(manifest.inputs, "the input {} is named twice")
    _require_distinct(manifest.outputs, "the output {} is named twice")
    ready: list[str] = [*manifest.inputs, *(name for state in manifest.states for name in state.reads)]
    for part in manifest.parts:
        missing = next((name for name in part.inputs if name not in ready), None)
        if missing is not None:
            fail(f"part {part.name!r}", f"reads {missing!r}, which no earlier part computes", rule="value-not-computed")
        ready += part.outputs
    _require_distinct(ready, "the tensor {} is computed twice")


def _require_distinct(names: Iterable[str], reason: str) -> None:
    seen: dict[str, None] = {}
    for name in names:
        if name in seen:
            fail("manifest", reason.format(repr(name)), rule="duplicate-name")
        seen[name] = None


def hash_file(folder: Path, name: str) -> FileOf:
    """Return the entry of a file in a folder, with its hash."""
    return FileOf(name, file_digest(folder / name))
