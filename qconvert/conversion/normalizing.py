"""normalize(): the passes that fit a graph to a target; run_passes(): passes by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qconvert.errors import OptionError
from qconvert.graph import Graph
from qconvert.graph.validation import validate
from qconvert.plugins import Format, Target, pass_named, target_named, targets

__all__ = ["chosen_target", "normalize", "run_passes"]


def run_passes(graph: Graph, names: Sequence[str], target: Target | None = None) -> tuple[Graph, tuple[tuple[str, str], ...]]:
    """The graph after the passes of these names, in their order, and what each changed.

    Args:
        graph: what they rewrite.
        names: of passes; docs/passes.md lists the built-in ones.
        target: for those passes that ask for one; without it they change nothing.

    Raises:
        OptionError: there is no such pass.
        InvalidGraphError: what the passes made breaks an invariant.
    """
    target = target or Target("", "", "no target")
    changes: list[tuple[str, str]] = []
    for name in names:
        graph, notes = pass_named(name).run(graph, target, **({"wanted": True} if name in ("float_io", "integer_io") else {}))
        changes += [(name, note) for note in notes]
    if names:
        validate(graph)
    return graph, tuple(changes)


def normalize(
    graph: Graph,
    target: Target | None,
    *,
    io_layout: str = "",
    io_float: bool = False,
    io_integer: bool = False,
    numerics: str = "exact",
    partial: str = "allow",
) -> tuple[Graph, tuple[tuple[str, str], ...]]:
    """The graph rewritten for a target by the passes in their order, and what each changed; the options are those of convert()."""
    if io_layout not in ("", "nchw", "nhwc"):
        raise OptionError(f"there is no layout {io_layout!r}", remedy="Use nchw or nhwc.")
    if numerics not in ("exact", "fast"):
        raise OptionError(f"there is no numerics {numerics!r}", remedy="Use exact or fast.")
    if partial not in ("allow", "forbid"):
        raise OptionError(f"there is no partial {partial!r}", remedy="Use allow or forbid.")
    if io_float and io_integer:
        raise OptionError("inputs and outputs cannot be float and integer")
    if target is None:
        return graph, ()
    options: dict[str, dict[str, Any]] = {
        "assign_layout": {"io_layout": io_layout},
        "match_add": {"numerics": numerics},
        "isolate_float": {"partial": partial},
        "float_io": {"wanted": io_float},
        "integer_io": {"wanted": io_integer},
    }
    changes: list[tuple[str, str]] = []
    for name in target.passes:
        graph, notes = pass_named(name).run(graph, target, **options.get(name, {}))
        changes += [(name, note) for note in notes]
    return graph, tuple(changes)


def chosen_target(writer: Format, name: str) -> Target | None:
    """The target of that name, or the format's default; raises OptionError if it is for another format."""
    wanted = name or writer.default_target
    if not wanted:
        return None
    target = target_named(wanted)
    if target.format != writer.name:
        known = ", ".join(item.name for item in targets().values() if item.format == writer.name) or "none"
        raise OptionError(
            f"the target {wanted} is for {target.format} files, not {writer.name}",
            remedy=f"Targets of {writer.name}: {known}.",
        )
    return target
