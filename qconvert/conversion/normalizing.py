"""normalize(): the passes that fit a graph to a target; run_passes(): passes by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qconvert.conversion.pipeline import Observer, pipeline, run_pipeline
from qconvert.errors import InternalError, InvalidGraphError, OptionError
from qconvert.graph import Graph
from qconvert.plugins import Change, Format, Pass, Target, options_named, passes, target_named, targets
from qconvert.plugins.options import check_options
from qconvert.rules.validation import validate

__all__ = ["chosen_target", "normalize", "require_valid", "run_passes"]


def run_passes(
    graph: Graph, names: Sequence[str], target: Target | None = None, *, observers: Sequence[Observer] = (), **options: Any
) -> tuple[Graph, tuple[Change, ...]]:
    """The graph after the passes of these names, in their order, and what each changed.

    Args:
        graph: what they rewrite.
        names: of passes, with their options if any (`power_of_two:rounding=mse`); docs/passes.md lists the built-in ones.
        target: for those passes that ask for one; without it they change nothing.
        observers: are told of each pass that has run (see conversion/pipeline.py).
        options: of passes.

    Raises:
        OptionError: there is no such pass or option, or the order is wrong.
        InternalError: a pass made a graph that breaks an invariant; it is named.
    """
    given = _check_options(options)
    listed = pipeline(names)
    for text, item in zip(names, listed, strict=True):
        if twice := given.keys() & options_named(text).keys():
            raise OptionError(f"the option {min(twice)} is given twice, once of them with the pass {item.name}", rule="duplicate-option")
    return _valid(graph, listed, target or Target("", "", "no target"), given, by_hand=True, observers=observers)


def normalize(
    graph: Graph, target: Target | None, *, observers: Sequence[Observer] = (), **options: Any
) -> tuple[Graph, tuple[Change, ...]]:
    """The graph rewritten for a target by the passes in their order, and what each changed.

    Args:
        graph: what they rewrite.
        target: names the passes; None changes nothing.
        observers: are told of each pass that has run (see conversion/pipeline.py).
        options: of passes, such as io_layout; `qconvert passes` lists them. Those of passes that the target does not name do nothing.

    Raises:
        OptionError: there is no such option, or the order of the target's passes is wrong.
        InternalError: a pass made a graph that breaks an invariant; it is named.
    """
    given = _check_options(options)
    if target is None:
        return graph, ()
    return _valid(graph, pipeline(target.passes), target, given, observers=observers)


def _valid(
    graph: Graph,
    passes: Sequence[Pass],
    target: Target,
    options: Mapping[str, Any],
    *,
    by_hand: bool = False,
    observers: Sequence[Observer],
) -> tuple[Graph, tuple[Change, ...]]:
    """What run_pipeline() gives, validated; the passes run once more, one by one, where it is not valid, to find the one to name."""
    changed, changes = run_pipeline(graph, passes, target, options, by_hand=by_hand, observers=observers)
    if changed is graph:
        return graph, changes
    try:
        validate(changed)
    except InvalidGraphError:
        run_pipeline(graph, passes, target, options, by_hand=by_hand, observers=(_require_valid_result,))
        raise
    return changed, changes


def _require_valid_result(item: Pass, before: Graph, after: Graph, notes: tuple[Change, ...]) -> None:
    """An observer that names a pass after which the graph is not valid."""
    require_valid(after, f"the pass {item.name} makes a graph that is not valid")


def require_valid(graph: Graph, said: str) -> None:
    """Validates what qconvert, or a plugin, made of a valid graph.

    Raises:
        InternalError: it is not valid: the reason is `said` and which invariant is broken, and `where` the operator.
    """
    try:
        validate(graph)
    except InvalidGraphError as error:
        raise InternalError(f"{said}: {error.reason}", where=error.where, rule=error.rule) from error


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    return check_options(options, (option for item in passes().values() for option in item.options), "no pass")


def chosen_target(writer: Format, name: str, form: str = "") -> Target | None:
    """The target of that name, or the format's default, or the first for the form; raises OptionError if it is for another one."""
    wanted = name or _default_target(writer, form)
    if not wanted:
        return None
    target = target_named(wanted)
    if target.format != writer.name:
        known = ", ".join(item.name for item in targets().values() if item.format == writer.name) or "none"
        raise OptionError(
            f"the target {wanted} is for {target.format} files, not {writer.name}",
            remedy=f"Targets of {writer.name}: {known}.",
            rule="target-of-other-format",
        )
    if form and _form(target) not in ("", form):
        known = ", ".join(item.name for item in targets().values() if item.format == writer.name and _form(item) in ("", form))
        raise OptionError(
            f"the target {wanted} is for the form {_form(target)}, not {form}",
            remedy=f"Targets of {form}: {known}.",
            rule="target-of-other-form",
        )
    return target


def _default_target(writer: Format, form: str) -> str:
    usual = writer.default_target
    if not form or not usual or _form(target_named(usual)) in ("", form):
        return usual
    return next((item.name for item in targets().values() if item.format == writer.name and _form(item) == form), usual)


def _form(target: Target) -> str:
    """The form of files that a target is for; "" for any."""
    return str(target.write_options.get("form", ""))
