"""What plugins give to the hooks: formats and passes (targets are in target.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qconvert.graph import Graph

__all__ = ["Format", "Pass"]


@dataclass(frozen=True, slots=True)
class Format:
    """A file format. `read` and `write` import what they need when they are called.

    Attributes:
        name: as on the command line, such as "tflite".
        suffixes: file name endings, with the dot.
        summary: one line for `qconvert formats`.
        read: file -> Graph, or None if the format cannot be read.
        write: (Graph, file, options) -> notes, or None. It writes the file at the path given, and further files beside it if the
            format needs them, which the caller moves into place. It may return, in words, what the user should know of the form
            that it chose.
        default_target: the target that a conversion to this format uses when none is named.
        own_target: likewise for a conversion from this format to itself.
        companions: file -> the further files that belong to it, or None if there are never any.
        normal_form: names of the passes that a graph just read goes through, so that a reader stays literal: one function an operator.
    """

    name: str
    suffixes: tuple[str, ...]
    summary: str
    read: Callable[[Path], Graph] | None = None
    write: Callable[[Graph, Path, Mapping[str, Any]], tuple[str, ...] | None] | None = None
    default_target: str = ""
    own_target: str = ""
    companions: Callable[[Path], tuple[Path, ...]] | None = None
    normal_form: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pass:
    """A named rewriting: (graph, target, options of its own) -> the new graph and, in words, what was changed.

    Attributes:
        name: as in `--passes`.
        summary: one line for `qconvert passes`.
        run: the function; its target is None where a conversion has none.
        exact: whether every output stays the same, bit for bit; if not, what was changed says by how much.
    """

    name: str
    summary: str
    run: Callable[..., tuple[Graph, tuple[str, ...]]]
    exact: bool = True
