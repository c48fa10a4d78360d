"""What operators say of a whole graph: the shapes of their outputs, worked out by the rules of their kinds, the functions and states of the
graph that they name, and which of them its outputs need.

A rule gets the operator and a ShapeContext (sizes.py) and gives a shape for each output; None means that not even the rank is known. A
dynamic size is a string. UNKNOWN ("?") is an unknown size; infer() names it after tensor and axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from qconvert.graph.schema import Graph, Op, Shape, Tensor
from qconvert.operators import KINDS, kind_of
from qconvert.operators.sizes import UNKNOWN, Known, ShapeContext, Shapes, Size, UnknownRankError, failure, is_compatible


def output_shapes(tensors: Mapping[str, Tensor], op: Op, known: Known | None = None) -> Shapes:
    """The shapes that the rule of `op` gives its outputs.

    Args:
        tensors: every input of `op`, by name.
        op: of a kind in KINDS, with the arity and the attributes that its kind asks for.
        known: tells of integers that are computed at run time.

    Raises:
        InvalidGraphError: inputs and attributes contradict each other; the error names the operator.
    """
    try:
        return kind_of(op).shape(op, ShapeContext(tensors, op, known))
    except UnknownRankError:
        return [None] * len(op.outputs)
    except (IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise failure(op, f"its inputs or attributes do not fit its kind ({error})", rule="wrong-arguments") from error


def infer(graph: Graph) -> Graph:
    """The graph with the shape of every operator output worked out again; what was known more exactly is kept.

    Raises:
        InvalidGraphError: a shape contradicts what its operator gives, or inputs contradict each other.
    """
    tensors = dict(graph.tensors)
    for op in graph.ops:
        for name, shape in zip(op.outputs, output_shapes(tensors, op), strict=True):
            if not name:
                continue
            old = tensors[name].shape
            if not is_compatible(old, shape):
                raise failure(op, f"gives {name!r} the shape {shape}, but the graph states {old}", rule="shape-mismatch")
            tensors[name] = replace(tensors[name], shape=merge_shapes(name, shape, old))
    return replace(graph, tensors=tensors)


def merge_shapes(name: str, inferred: Shape | None, old: Shape | None) -> Shape | None:
    """The more exact of two compatible shapes; what neither knows is named after tensor `name` and axis."""
    if inferred is None or (inferred == old and UNKNOWN not in inferred):
        return old
    known = (UNKNOWN,) * len(inferred) if old is None else old
    return tuple(_merge_size(f"{name}_{axis}", *sizes) for axis, sizes in enumerate(zip(inferred, known, strict=True)))


def agreed_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """What two shapes have in common, of sizes that differ UNKNOWN; None where not even the rank is common."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else UNKNOWN for x, y in zip(a, b, strict=True))


def _merge_size(fresh: str, inferred: Size, old: Size) -> Size:
    if isinstance(inferred, int) or isinstance(old, int):
        return inferred if isinstance(inferred, int) else old
    return next((size for size in (inferred, old) if size != UNKNOWN), fresh)


def named_functions(op: Op) -> list[str]:
    """The functions that an operator names."""
    attributes = kind_of(op).attributes if op.kind in KINDS else {}
    return [str(value) for name, value in op.attributes.items() if name in attributes and attributes[name].sort == "function"]


def rename_functions(op: Op, names: Mapping[str, str]) -> Op:
    """The operator with other names of its functions."""
    own = {
        name: names[str(op[name])] for name, spec in kind_of(op).attributes.items() if spec.sort == "function" and str(op[name]) in names
    }
    return replace(op, attributes={**op.attributes, **own}) if own else op


def rename_state(op: Op, names: Mapping[str, str]) -> Op:
    """The operator with another name of the state that it reads or writes."""
    is_renamed = kind_of(op).rule == "state" and str(op["state"]) in names
    return op.with_attributes(state=names[str(op["state"])]) if is_renamed else op


def all_graphs(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """The graph itself, under the name "", and its functions by their names."""
    yield "", graph
    yield from graph.functions.items()


def is_quantized(graph: Graph) -> bool:
    """Whether anything in a graph or its functions has a scale."""
    return any(tensor.is_quantized for _, inner in all_graphs(graph) for tensor in inner.tensors.values())


def all_ops(graph: Graph) -> Iterator[Op]:
    """The operators of a graph and of its functions, each once."""
    for _, inner in all_graphs(graph):
        yield from inner.ops


def in_function(graph: Graph, name: str) -> Graph:
    """A function as a graph of its own, with the functions and states that its operators name."""
    return replace(graph.functions[name], functions=graph.functions, states=graph.states)


def closed_graphs(graph: Graph) -> Iterator[Graph]:
    """The graph itself and its functions, each with all functions and states, so that whatever its operators name is there."""
    yield graph
    yield from (in_function(graph, name) for name in graph.functions)


def called_functions(graph: Graph, ops: Iterable[Op]) -> set[str]:
    """The functions that operators name, and those that operators of these name."""
    used: set[str] = set()
    waiting = list(ops)
    while waiting:
        found = {name for name in named_functions(waiting.pop()) if name in graph.functions} - used
        waiting += [op for name in found for op in graph.functions[name].ops]
        used |= found
    return used


def named_states(graph: Graph, ops: Iterable[Op]) -> tuple[str, ...]:
    """The states that operators read or write, themselves or in functions that they run."""
    found: dict[str, None] = {}
    for op in ops:
        inner = (item for name in sorted(called_functions(graph, [op])) for item in graph.functions[name].ops)
        states = (item for item in (op, *inner) if item.kind in KINDS and kind_of(item).rule == "state")
        found.update(dict.fromkeys(str(item["state"]) for item in states))
    return tuple(found)


def states_by_reader(graph: Graph) -> dict[str, str]:
    """The tensors that a graph reads from states -> the state."""
    return {op.name: str(op["state"]) for op in graph.ops if kind_of(op).reads_state}


def with_used_functions(graph: Graph) -> Graph:
    """The graph without functions that nothing enters: no signature, no operator of it, and none of a function that is named."""
    entered = {signature.function for signature in graph.signatures if signature.function}
    used = entered | called_functions(graph, [*graph.ops, *(op for name in entered for op in graph.functions[name].ops)])
    if used >= graph.functions.keys():
        return graph
    functions: Mapping[str, Graph] = {name: inner for name, inner in graph.functions.items() if name in used}
    return replace(graph, functions=functions)


def needed_ops(ops: Sequence[Op], outputs: Iterable[str], can_go: Callable[[Op], bool] | None = None) -> list[Op]:
    """Return the operators that outputs depend on, those that write a state, and those with a false `can_go`, in order.

    Of several operators that write one tensor, as while operators are exchanged, the last one counts.
    """
    wanted, kept = set(outputs), []
    for op in reversed(ops):
        if wanted.intersection(filter(None, op.outputs)) or kind_of(op).has_effect or (can_go and not can_go(op)):
            wanted.difference_update(op.outputs)
            wanted.update(op.inputs)
            kept.append(op)
    return kept[::-1]
