"""Files of a result that are finished, each with a record next to it: what the configuration and the report say of its layers. The next run
of the same conversion takes them over where one was interrupted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qconvert.checkpoints.activations import Activations
from qconvert.checkpoints.container import LayerKind

_SUFFIX = ".finished"


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What the configuration and the report say of a layer in blocks of the source.

    Attributes:
        name: of the layer.
        kind: how it is stored; None where it became floats.
        scales: their type.
        integers: how many it has.
        scale_count: how many scales it has.
        has_groups: whether its inputs are in another order than their blocks.
        is_new: whether it was quantized again.
        sqnr_db: of its new weights, in decibels; None where none changed.
        dropped: how data were rounded that stay float now.
    """

    name: str
    kind: LayerKind | None = None
    scales: str = ""
    integers: int = 0
    scale_count: int = 0
    has_groups: bool = False
    is_new: bool = False
    sqnr_db: float | None = None
    dropped: Activations | None = None


@dataclass(frozen=True, slots=True)
class FinishedFile:
    """What a finished file holds.

    Attributes:
        tensors: their names.
        size: bytes of them.
        layers: those of the source that it holds.
    """

    tensors: Sequence[str]
    size: int
    layers: Sequence[LayerFacts]


def record_file(path: Path, found: FinishedFile) -> None:
    """Write down that a file is finished. A record that was interrupted is no JSON, and counts for nothing."""
    path.with_name(path.name + _SUFFIX).write_text(json.dumps({**asdict(found), "file": _describe(path)}), encoding="utf-8")


def take_finished_files(folder: Path) -> dict[str, FinishedFile]:
    """The finished files of a folder, by their names; all else in it is removed."""
    found: dict[str, FinishedFile] = {}
    for record in folder.glob(f"*{_SUFFIX}"):
        path = record.with_suffix("")
        with suppress(OSError, ValueError, KeyError, TypeError):
            stated = json.loads(record.read_text(encoding="utf-8"))
            if stated["file"] == _describe(path):
                found[path.name] = FinishedFile(stated["tensors"], stated["size"], [_read_facts(layer) for layer in stated["layers"]])
    for item in folder.iterdir():
        if item.is_dir():
            shutil.rmtree(item)
        elif item.name.removesuffix(_SUFFIX) not in found:
            item.unlink()
    return found


def remove_records(folder: Path) -> None:
    """Remove all records of a folder."""
    for record in folder.glob(f"*{_SUFFIX}"):
        record.unlink()


def _describe(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _read_facts(stated: Mapping[str, Any]) -> LayerFacts:
    kind, dropped = stated["kind"], stated["dropped"]
    if kind is not None:
        kind = LayerKind(**{**kind, "activations": kind["activations"] and Activations(**kind["activations"])})
    return LayerFacts(**{**stated, "kind": kind, "dropped": dropped and Activations(**dropped)})
