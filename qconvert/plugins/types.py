"""What plugins give to the hooks: formats and passes (targets are in target.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins.options import Option

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
        read: (file, options) -> Graph, or None if the format cannot be read.
        write: (Graph, file, options) -> notes, or None. It writes the file at the path given, and further files beside it if the
            format needs them, which the caller moves into place. It may return, in words, what the user should know of the form
            that it chose.
        default_target: the target that a conversion to this format uses when none is named.
        own_target: likewise for a conversion from this format to itself.
        companions: file -> the further files that belong to it, or None if there are never any.
        read_options, write_options: what `read` and `write` take; `write` gets the mapping "provenance" besides.
        normal_form: names of the passes that a graph just read goes through, so that a reader stays literal: one function an operator.
    """

    name: str
    suffixes: tuple[str, ...]
    summary: str
    read: Callable[[Path, Mapping[str, Any]], Graph] | None = None
    write: Callable[[Graph, Path, Mapping[str, Any]], tuple[str, ...] | None] | None = None
    default_target: str = ""
    own_target: str = ""
    companions: Callable[[Path], tuple[Path, ...]] | None = None
    normal_form: tuple[str, ...] = ()
    read_options: tuple[Option, ...] = ()
    write_options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Pass:
    """A named rewriting: (graph, target, options of its own) -> the new graph and, in words, what was changed.

    Attributes:
        name: as in `--passes`.
        summary: one line for `qconvert passes`.
        run: the function; its target is None where a conversion has none.
        exact: whether every output stays the same, bit for bit; if not, what was changed says by how much.
        within: of a pass that is not exact, the largest mean change of an output, as a share of the range of its values, that it may
            cost; None where no bound is known. `--verify-each` holds it to that.
        options: what `run` takes by keyword.
        after: names of passes that, where they are in the same list, come before this one.
        requires: properties of the graph, in words of their own, that passes before this one, or reading, must ensure.
        ensures: properties of the graph that hold behind this pass.
    """

    name: str
    summary: str
    run: Callable[..., tuple[Graph, tuple[str, ...]]]
    exact: bool = True
    within: float | None = None
    options: tuple[Option, ...] = ()
    after: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()
