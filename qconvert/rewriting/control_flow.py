"""Control flow for formats that lack some of it: functions put in the place of operators that run them, a Loop in the place of a While,
and how often a Loop runs, where its condition says so without being run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from qconvert.arithmetic.storage import EXACT_IN_FLOAT32, Array
from qconvert.errors import UnsupportedError
from qconvert.graph.names import Names
from qconvert.graph.schema import Attribute, Graph, Op, Producers, Tensor
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import all_graphs, named_functions, with_used_functions
from qconvert.rewriting.rewriter import MOST_INLINED, Rewriter


def without_calls(graph: Graph, kept: Callable[[Op], bool] = lambda op: False) -> Graph:
    """Return the graph with functions in the place of every Call, in its functions too, but for those that are `kept`."""

    def inline_call(rewriter: Rewriter, op: Op, functions: dict[str, Graph], names: Names) -> None:
        if not kept(op):
            prefix = "" if op["target"] else prefix_of(op)
            rewriter.replace(op, *rewriter.inline(functions[str(op["function"])], op.inputs, op.outputs, prefix))

    return replace_kind(graph, "Call", inline_call)


def without_regions(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """Return the graph with the operators of regions in the place of their calls, and tensor -> the region, by its function, that computes
    it."""
    rewriter, found = Rewriter(graph), dict[str, str]()
    for op in rewriter.of_kind("Call"):
        if op["target"]:
            name = str(op["function"])
            inlined = rewriter.inline(graph.functions[name], op.inputs, op.outputs, "")
            found |= {result: name for inner in inlined for result in inner.outputs if result}
            rewriter.replace(op, *inlined)
    return (with_used_functions(rewriter.finish()), found) if found else (graph, {})


def require_few_expanded(graph: Graph) -> None:
    """For formats that hold a function inside each operator that names it.

    Raises:
        UnsupportedError: that would be more operators than any network has, as where each of many functions names the next one twice.
    """
    sizes: dict[str, int] = {}
    for name in _callees_first(graph):
        inner = graph.functions[name]
        sizes[name] = len(inner.ops) + sum(sizes[one] for op in inner.ops for one in named_functions(op))
    if sum(sizes[one] for op in graph.ops for one in named_functions(op)) > MOST_INLINED:
        raise UnsupportedError(
            f"the functions inside of operators would expand to more than {MOST_INLINED:,} operators", rule="too-many-operators"
        )


def whiles_to_loops(graph: Graph) -> Graph:
    """Return the graph with a Loop in the place of every While, in its functions too: the condition is asked before it, and after its
    body."""

    def write_loop(rewriter: Rewriter, op: Op, functions: dict[str, Graph], names: Names) -> None:
        condition, body = (functions[str(op[name])] for name in ("condition", "body"))
        first = rewriter.add(f"{prefix_of(op)}/condition", condition[condition.outputs[0]])
        asked = rewriter.inline(condition, op.inputs, (first,), f"{prefix_of(op)}/first")
        name = names.fresh(str(op["body"]))
        functions[name] = _loop_body(body, condition)
        attributes: dict[str, Attribute] = {"body": name, "carried": len(op.outputs)}
        rewriter.replace(op, *asked, op.derive("Loop", ("", first, *op.inputs), op.outputs, **attributes))

    return replace_kind(graph, "While", write_loop)


def replace_kind(graph: Graph, kind: str, change: Callable[[Rewriter, Op, dict[str, Graph], Names], None]) -> Graph:
    """Return the graph with something else in the place of each operator of a kind; functions change before those that name them."""
    if not any(inner.of_kind(kind) for _, inner in all_graphs(graph)):
        return graph
    functions = dict(graph.functions)
    names = Names(functions)

    def replace_ops(inner: Graph) -> Graph:
        rewriter = Rewriter(inner)
        for op in rewriter.of_kind(kind):
            change(rewriter, op, functions, names)
        return rewriter.finish()

    for name in _callees_first(graph):
        functions[name] = replace_ops(functions[name])
    main = replace_ops(graph)
    return with_used_functions(replace(main, functions=functions))


def _callees_first(graph: Graph) -> list[str]:
    """Return the functions, each after those that it names."""
    called = {name: {one for op in inner.ops for one in named_functions(op)} for name, inner in graph.functions.items()}
    order: dict[str, None] = {}
    while len(order) < len(called):
        order.update((name, None) for name in called if called[name] <= order.keys())
    return list(order)


def prefix_of(op: Op) -> str:
    """Return what stands before names of tensors that come in the place of an operator."""
    return next(filter(None, op.outputs), op.kind)


def _loop_body(body: Graph, condition: Graph) -> Graph:
    """Return the function that a Loop runs: the number of the turn and the condition, which it does not need, and what a While carries."""
    rewriter = Rewriter(body)
    turn = rewriter.add("turn", Tensor("", "int64", ()))
    before = rewriter.add("condition", Tensor("", "bool", ()))
    outputs = copy_duplicates(body.outputs, body.inputs, rewriter.copy)
    after = rewriter.add("again", condition[condition.outputs[0]])
    rewriter.append(*rewriter.inline(condition, outputs, (after,), "condition"))
    return rewriter.finish(inputs=(turn, before, *body.inputs), outputs=(after, *outputs))


def copy_duplicates(outputs: Sequence[str], inputs: Iterable[str], copy: Callable[[str], str]) -> tuple[str, ...]:
    """Return outputs of which each is a value of its own: `copy` makes an Identity of one that is not, and returns its result."""
    taken = set(inputs)
    found = []
    for name in outputs:
        name = copy(name) if name in taken else name
        taken.add(name)
        found.append(name)
    return tuple(found)


def skip_identities(makers: Producers, name: str) -> str:
    """Return the tensor of which another one is a copy, by however many Identities."""
    while (maker := makers.find(name, "Identity")) is not None:
        name = maker.inputs[0]
    return name


def trip_count(outer: Graph | Rewriter, op: Op, body: Graph) -> float | None:
    """Return how many turns a Loop runs; None where only a run can say.

    That is its trip count, or less if its condition compares numbers that grow by 1 at each turn with constants.

    Args:
        outer: the graph around it.
        op: the Loop.
        body: its function.

    Returns:
        A whole number; infinity for a condition that is always true, without a constant as its count.
    """
    given = outer[op.inputs[1]].data if op.inputs[1] else None
    if op.inputs[1] and (given is None or not given.all()):
        return None
    count = outer[op.inputs[0]].data if op.inputs[0] else None
    counting = _Counting(outer, op, body)

    def is_true(name: str) -> bool:
        data = counting.constant(name)
        return name == body.inputs[1] or (data is not None and bool(data.all()))

    turns = turns_while(counting.makers, body.outputs[0], counting.start, counting.number, is_true)
    return None if turns is None else min(1 + turns, math.inf if count is None else max(int(count.reshape(-1)[0]), 0))


def turns_while(
    makers: Producers,
    condition: str,
    start: Callable[[str], float | None],
    number: Callable[[str], float | None],
    is_true: Callable[[str], bool] = lambda name: False,
) -> float | None:
    """Return in how many turns, from the first on, a condition holds; None where only a run can say.

    Args:
        makers: the operators that compute it.
        condition: comparisons of numbers that grow by 1 at each turn with constants, all of which have to hold.
        start: gives such a number in the first turn; None for other values.
        number: gives the number that a constant is; None for other values.
        is_true: whether a value is true in every turn.

    Returns:
        A whole number; infinity for a condition that is always true.
    """
    least, waiting = math.inf, [condition]
    while waiting:
        name = skip_identities(makers, waiting.pop())
        if (both := makers.find(name, "And")) is not None:
            waiting += both.inputs
        elif (less := makers.find(name, "Less")) is not None:
            first, end = start(less.inputs[0]), number(less.inputs[1])
            if first is None or end is None or max(abs(end), abs(first)) > EXACT_IN_FLOAT32:  # in which some exporters compare
                return None
            least = min(least, max(0, math.ceil(end - first)))
        elif not is_true(name):
            return None
    return least


def counter_start(makers: Producers, first: Array | None, own: str, after: str, number: Callable[[str], float | None]) -> int | None:
    """Return where an integer starts to which each turn adds 1; None where it is none.

    Args:
        makers: the operators of the body.
        first: what it is before the first turn, if that is known.
        own, after: its names at the begin and at the end of a turn.
        number: gives the number that a constant is; None for other values.
    """
    maker = makers.find(skip_identities(makers, after), "Add")
    if first is None or first.size != 1 or first.dtype.kind != "i" or maker is None:
        return None
    steps = [number(other) for name, other in (maker.inputs, maker.inputs[::-1]) if skip_identities(makers, name) == own]
    return int(first.reshape(-1)[0]) if steps == [1.0] else None


def single_number(data: Array | None) -> float | None:
    """Return the finite number that a constant is; None for other values."""
    if data is None or data.size != 1 or data.dtype.kind not in "iuf":
        return None
    number = float(data.reshape(-1)[0])
    return number if math.isfinite(number) else None


class _Counting:
    """The body of a Loop that is being looked at."""

    def __init__(self, outer: Graph | Rewriter, op: Op, body: Graph) -> None:
        self._outer, self._op, self._body, self.makers = outer, op, body, body.producers()
        self._carried = range(2, 2 + int(op["carried"]))

    def constant(self, name: str) -> Array | None:
        """Return the constant that a name stands for in each turn, of the body or from around it."""
        inputs = self._body.inputs
        place = inputs.index(name) if name in inputs else 0
        if place >= self._carried.stop:
            return self._outer[self._op.inputs[place]].data
        return self._body.constant(name)

    def number(self, name: str) -> float | None:
        """Return the number that a name stands for in each turn."""
        return single_number(self.constant(name))

    def start(self, name: str) -> float | None:
        """Return what a value is in the first turn, if it is one more in each: the number of the turn, or one that is carried."""
        shift = 0.0
        while (maker := self.makers.get(name)) is not None:
            if kind_of(maker).sum_sign > 0:
                summands = [
                    (other, number) for other, own in (maker.inputs, maker.inputs[::-1]) if (number := self.number(own)) is not None
                ]
                if len(summands) != 1 or not summands[0][1].is_integer():
                    return None
                name, shift = summands[0][0], shift + summands[0][1]
            elif kind_of(maker).copies or (kind_of(maker).casts and maker["to"] in ("int32", "int64", "float32", "float64")):
                name = maker.inputs[0]
            else:
                return None
        place = self._body.inputs.index(name) if name in self._body.inputs else -1
        if place == 0:
            return shift
        if place not in self._carried:
            return None
        first = self._outer[self._op.inputs[place]].data
        found = counter_start(self.makers, first, self._body.inputs[place], self._body.outputs[place - 1], self.number)
        return None if found is None else found + shift
