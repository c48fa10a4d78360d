"""Networks cut into regions that targets run, and the rest: the algorithm, files of parts with a manifest, and what runs that."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from qconvert.plugins import Format, Runtime, defer_imports, hookimpl

_lazy = defer_imports(__name__)


def _companions(path: Path) -> tuple[Path, ...]:
    from qconvert.partitioning.manifest import read_manifest

    return tuple(path.parent / item.file for item in read_manifest(path, verify=False).files())


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    summary = "the manifest of a model that was cut into files (partition, with --split)"
    return [
        Format(
            "partition", (".json",), summary, read=_lazy("running", "compose_graph"), recognizes=_lazy("manifest", "is_manifest"),
            companions=_companions, scopes=("functions", "states"),
        )
    ]  # fmt: skip


@hookimpl
def qconvert_runtimes() -> Iterable[Runtime]:
    summary = "the parts of a manifest one after the other, each in the runtime that it names"
    return [
        Runtime(
            "partition", ("partition",), summary, "the parts of the partition", kernels=("parts",), layout="channels_first",
            open=_lazy("running", "PartitionModel"), rows=_lazy("running", "rows"),
            inside=_lazy("inside", "PartitionInside"), taken_by=_lazy("inside", "taken_by"), by_others=True,
        )
    ]  # fmt: skip
