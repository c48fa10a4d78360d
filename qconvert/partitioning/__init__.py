"""Networks cut into regions that targets run, and the rest: the algorithm, files of parts with a manifest, and what runs that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Format, Runtime, hookimpl

if TYPE_CHECKING:
    from qconvert.graph import Graph


def _read(path: Path, options: Mapping[str, Any]) -> Graph:
    from qconvert.partitioning.running import compose_graph

    return compose_graph(path, options)


def _recognizes(start: bytes) -> bool:
    from qconvert.partitioning.manifest import is_manifest

    return is_manifest(start)


def _companions(path: Path) -> tuple[Path, ...]:
    from qconvert.partitioning.manifest import read_manifest

    return tuple(path.parent / item.file for item in read_manifest(path, verify=False).files())


def _lazy(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a module of this package; the module is imported at the first call."""

    def call(*arguments: Any) -> Any:
        return getattr(import_module(f"qconvert.partitioning.{module}"), name)(*arguments)

    return call


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    summary = "the manifest of a model that was cut into files (partition, with --split)"
    scopes = ("functions", "states")
    return [Format("partition", (".json",), summary, read=_read, recognizes=_recognizes, companions=_companions, scopes=scopes)]


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
