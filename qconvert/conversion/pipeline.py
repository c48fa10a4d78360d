"""A list of passes, put together: their order is checked, and each gets its own options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qconvert.errors import OptionError
from qconvert.graph import Graph
from qconvert.graph.correspondence import compose
from qconvert.plugins import Change, Pass, Target, name_changes, pass_named
from qconvert.plugins.options import fill_defaults

__all__ = ["READ", "Observer", "pipeline", "run_pipeline"]

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
    by_hand: bool = False,
    observers: Sequence[Observer] = (),
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
