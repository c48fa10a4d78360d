"""normalize(): the passes that fit a graph to a target; run_passes(): passes by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qconvert.conversion.pipeline import Observer, pipeline, run_pipeline
from qconvert.errors import OptionError
from qconvert.graph import Graph
from qconvert.graph.validation import validate
from qconvert.plugins import Format, Target, passes, target_named, targets
from qconvert.plugins.options import checked

__all__ = ["chosen_target", "normalize", "run_passes"]


def run_passes(
    graph: Graph, names: Sequence[str], target: Target | None = None, *, observers: Sequence[Observer] = (), **options: Any
) -> tuple[Graph, tuple[tuple[str, str], ...]]:
    """The graph after the passes of these names, in their order, and what each changed.

    Args:
        graph: what they rewrite.
        names: of passes; docs/passes.md lists the built-in ones.
        target: for those passes that ask for one; without it they change nothing.
        observers: are told of each pass that has run (see conversion/pipeline.py).
        options: of passes.

    Raises:
        OptionError: there is no such pass or option, or the order is wrong.
        InvalidGraphError: what the passes made breaks an invariant.
    """
    given = _checked(options)
    graph, changes = run_pipeline(graph, pipeline(names), target or Target("", "", "no target"), given, by_hand=True, observers=observers)
    if names:
        validate(graph)
    return graph, changes


def normalize(
    graph: Graph, target: Target | None, *, observers: Sequence[Observer] = (), **options: Any
) -> tuple[Graph, tuple[tuple[str, str], ...]]:
    """The graph rewritten for a target by the passes in their order, and what each changed.

    Args:
        graph: what they rewrite.
        target: names the passes; None changes nothing.
        observers: are told of each pass that has run (see conversion/pipeline.py).
        options: of passes, such as io_layout; `qconvert passes` lists them. Those of passes that the target does not name do nothing.

    Raises:
        OptionError: there is no such option, or the order of the target's passes is wrong.
    """
    given = _checked(options)
    if given.get("io_float") and given.get("io_integer"):
        raise OptionError("inputs and outputs cannot be float and integer")
    if target is None:
        return graph, ()
    return run_pipeline(graph, pipeline(target.passes), target, given, observers=observers)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    return checked(options, (option for item in passes().values() for option in item.options), "no pass")


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
