"""PyTorch's model files: TorchScript and torch.export archives, read without PyTorch and without running them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Format, Option, hookimpl
from qconvert.plugins.options import NUMERICS

if TYPE_CHECKING:
    from qconvert.graph import Graph


def _read(path: Path, options: Mapping[str, Any]) -> Graph:
    from qconvert.formats.torch.reader import read

    return read(path, options)


def _write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
    from qconvert.formats.torch.writer import write

    return write(graph, path, options)


def _recognizes(start: bytes) -> bool:
    """A zip archive whose first entry lies in a folder, as in every file of today; an older .pt2 begins with its version."""
    name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    inside = b"/" in name or len(name) == len(start) - 30 or name.startswith((b"serialized_", b"version"))
    return start[:4] == b"PK\x03\x04" and inside and name.isascii() and name.decode("ascii").isprintable()


_READ_OPTIONS = (Option("input_shape", str, "", "shapes of inputs of a PyTorch file, such as 1,3,224,224 or x=1,3,224,224; y=batch,10."),)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    summary = "PyTorch: TorchScript (.pt, .ptl) and torch.export (.pt2)"
    return [
        Format(
            "torch",
            (".pt", ".ptl", ".pt2", ".pth"),
            summary,
            read=_read,
            write=_write,
            default_target="torch",
            own_target="torch",
            narrow_ranges=True,
            recognizes=_recognizes,
            read_options=_READ_OPTIONS,
            write_options=(NUMERICS,),
            normal_form=("absorb_quantization", "fold_qat_batch_norm", "restate_attributes"),
        )
    ]


@hookimpl
def qconvert_operators(format: str, direction: str) -> Mapping[str, Callable[..., Any]]:
    if (format, direction) != ("torch", "write"):
        return {}
    from qconvert.formats.torch.writers import WRITERS

    return WRITERS
