"""normalize(): the passes that fit a graph to a target; run_passes(): passes by their names, which run in a checked order, each with its
own options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qconvert.errors import InternalError, InvalidGraphError, OptionError
from qconvert.graph import Graph
from qconvert.graph.correspondence import compose
from qconvert.plugins import (
    Change,
    Format,
    Pass,
    Target,
    find_target,
    name_changes,
    options_named,
    pass_named,
    passes,
    target_named,
    targets,
)
from qconvert.plugins.options import check_options, fill_defaults
from qconvert.rules.validation import validate

#: What reading ensures (a format's normal form).
READ = ("absorbed",)

#: Is told of each pass that has run: the pass, the graph before and after it, and what it changed.
Observer = Callable[[Pass, Graph, Graph, tuple[Change, ...]], None]


def pipeline(names: Sequence[str], given: Sequence[str] = READ) -> tuple[Pass, ...]:
    """The passes of these names, in their order.

    Args:
        names: of passes, each with its options if any (`power_of_two:rounding=mse`).
        given: properties of the graph that hold before the first.

    Raises:
        OptionError: there is no such pass, one stands before a pass that it has to follow, or what it requires is not ensured.
    """
    found = tuple(pass_named(name) for name in names)
    ensured = set(given)
    names = [item.name for item in found]
    for index, item in enumerate(found):
        for earlier in item.after:
            if earlier in names[index:] and earlier not in names[:index]:
                raise OptionError(
                    f"the pass {item.name} has to run after {earlier}", remedy=f"Put {earlier} before {item.name}.", rule="pass-order"
                )
        missing = [wanted for wanted in item.requires if wanted not in ensured]
        if missing:
            raise OptionError(f"the pass {item.name} requires what no earlier pass ensures: {', '.join(missing)}", rule="pass-requirement")
        ensured.update(item.ensures)
    return found


def run_pipeline(
    graph: Graph,
    passes: Sequence[Pass],
    target: Target,
    options: Mapping[str, Any],
    *,
    by_hand: bool,
    observers: Sequence[Observer],
) -> tuple[Graph, tuple[Change, ...]]:
    """The graph after the passes, and what each changed.

    Args:
        graph: what they rewrite.
        passes: in their order.
        target: that they fit the graph to.
        options: values of options by name; each pass gets those that it declares.
        by_hand: whether the user named the passes himself.
        observers: are told of each pass that has run.
    """
    changes: list[Change] = []
    for item in passes:
        before = graph
        given = fill_defaults(options, item.options, by_hand=by_hand)
        graph, notes = _run_alone(item, before, target, given)
        found = _changes(item, notes, by_hand)
        if before.functions and not item.border:
            graph, inner = _in_functions(item, graph, target, given, by_hand)
            found += inner
        changes += found
        for observer in observers:
            observer(item, before, graph, found)
        graph = _with_history(before, graph)
    return graph, tuple(changes)


def _run_alone(item: Pass, before: Graph, target: Target, options: Mapping[str, Any]) -> tuple[Graph, Any]:
    """Run a pass on the graph without its correspondence, so that the pass records its own alone; a graph that it leaves is returned."""
    bare = replace(before, correspondence={}) if before.correspondence else before
    graph, notes = _call_pass(item, bare, target, options)
    return before if graph is bare else graph, notes


def _with_history(before: Graph, graph: Graph) -> Graph:
    """Return the graph after a pass, with its correspondence composed with that of the graph before."""
    if graph.correspondence is before.correspondence:  # the pass left the graph
        return graph
    return replace(graph, correspondence=compose(before.correspondence, graph.correspondence))


def _call_pass(item: Pass, graph: Graph, target: Target, options: Mapping[str, Any]) -> tuple[Graph, Any]:
    """Run a pass and return its result, checked: the pass may belong to a plugin."""
    returned = item.run(graph, target, **options)
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[0], Graph):
        raise OptionError(
            f"the pass {item.name} returned {returned!r}"[:200],
            remedy="Return the new graph and the texts of the changes.",
            rule="wrong-result",
        )
    return returned


def _changes(item: Pass, notes: Iterable[Change | str], by_hand: bool) -> tuple[Change, ...]:
    return name_changes(notes, by=item.name, exact=item.exact, user_named=by_hand)


def _in_functions(item: Pass, graph: Graph, target: Target, options: Mapping[str, Any], by_hand: bool) -> tuple[Graph, tuple[Change, ...]]:
    """The graph with the pass run on each of its functions too; options about the network's inputs and outputs keep their defaults."""
    inner_options = {
        option.name: option.default if option.border else options[option.name] for option in item.options if option.name in options
    }
    functions: dict[str, Graph] = {}
    found: list[Change] = []
    for name, inner in graph.functions.items():
        changed, notes = _run_alone(item, inner, target, inner_options)
        functions[name] = _with_history(inner, changed)
        found += (replace(change, text=f"in function {name!r}: {change.text}") for change in _changes(item, notes, by_hand))
    return replace(graph, functions=functions), tuple(found)


def run_passes(
    graph: Graph, names: Sequence[str], target: Target | None = None, *, observers: Sequence[Observer] = (), **options: Any
) -> tuple[Graph, tuple[Change, ...]]:
    """The graph after the passes of these names, in their order, and what each changed.

    Args:
        graph: what they rewrite.
        names: of passes, with their options if any (`power_of_two:rounding=mse`); docs/passes.md lists the built-in ones.
        target: for those passes that ask for one; without it they change nothing.
        observers: are told of each pass that has run (see conversion/normalizing.py).
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
    graph: Graph, target: Target | str | None, *, observers: Sequence[Observer] = (), **options: Any
) -> tuple[Graph, tuple[Change, ...]]:
    """The graph rewritten for a target by the passes in their order, and what each changed.

    Args:
        graph: what they rewrite.
        target: a Target, which names the passes, or its name; None changes nothing.
        observers: are told of each pass that has run (see conversion/normalizing.py).
        options: of passes, such as io_layout; `qconvert passes` lists them. Those of passes that the target does not name do nothing.

    Raises:
        OptionError: there is no such target or option, or the order of the target's passes is wrong.
        InternalError: a pass made a graph that breaks an invariant; it is named.
    """
    given = _check_options(options)
    if target is None:
        return graph, ()
    chosen = find_target(target)
    return _valid(graph, pipeline(chosen.passes), chosen, given, observers=observers)


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
