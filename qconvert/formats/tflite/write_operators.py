"""The TFLite operators of a graph, made once for the rules of a target and for the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from qconvert.arithmetic.storage import REALS
from qconvert.errors import QConvertError
from qconvert.formats.tflite.variables import inner_states, variable_keys
from qconvert.formats.tflite.writing import Writing
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.operators.formulas import FORMULAS, along_axes
from qconvert.operators.shapes_and_functions import all_graphs, all_ops
from qconvert.plugins import operators
from qconvert.rewriting.control_flow import without_calls
from qconvert.rewriting.loops import loops_to_whiles
from qconvert.rewriting.lowering import Legal, legality, legality_error, lower


def find_counters(graph: Graph) -> dict[str, frozenset[str]]:
    """Body of a While -> those of its inputs that begin at 0 or above and grow at each turn, wherever it is run."""
    found: dict[str, frozenset[str]] = {}
    for _, inner in all_graphs(graph):
        for op in inner.of_kind("While"):
            name = str(op["body"])
            own = _loop_counters(inner, op, graph.functions[name])
            found[name] = found.get(name, own) & own
    return found


def _loop_counters(graph: Graph, op: Op, body: Graph) -> frozenset[str]:
    makers = body.producers()
    found = set()
    for given, inside, after in zip(op.inputs, body.inputs, body.outputs, strict=True):
        first, maker = graph.constant(given), makers.find(after, "Add")
        if first is None or first.dtype.kind != "i" or not (first >= 0).all() or maker is None:
            continue
        steps = [body.constant(name) for name in maker.inputs if name != inside]
        if inside in maker.inputs and len(steps) == 1 and steps[0] is not None and (steps[0] >= 0).all():
            found.add(inside)
    return frozenset(found)


class Written(NamedTuple):
    """The operators that a graph becomes.

    Attributes:
        graph: the graph.
        writing: what the writers made.
        functions: the same of each function, in the order of their subgraphs.
        failures: the operators that they refused, and why.
        without_form: ids of the operators that have no writer, and were not lowered either.
    """

    graph: Graph
    writing: Writing
    functions: tuple[Writing, ...]
    failures: tuple[tuple[Op, QConvertError], ...]
    without_form: frozenset[int]


#: Formulas that TFLite prefers to others.
_PREFERRED = (along_axes.softmax_along_last, along_axes.lp_normalization_along_last)
#: Where the subgraph with the first values of variables stands: after the main one.
_INITIAL = 1

#: What was made last, by the graph it was made of: a conversion judges a graph and then writes the same one.
_last: dict[int, Written] = {}


def write_operators(graph: Graph) -> Written:
    """Run the writers on all operators that have one, so that every refusal is known at once."""
    found = _last.get(id(graph))
    if found is None or found.graph is not graph:
        found = _write_network(graph)
        _last.clear()
        _last[id(graph)] = found
    return found


def take_operators(graph: Graph) -> Written:
    """The same, but not kept for a later call, so that the caller may change it."""
    found = write_operators(graph)
    _last.clear()
    return found


def write_initial_values(graph: Graph) -> Writing | None:
    """The subgraph that gives the variables their first values, which the runtime runs once; None without such states."""
    inner = inner_states(graph)
    outer = {name: state for name, state in graph.states.items() if name not in inner}
    if not outer:
        return None
    made = Writing(Graph("first values", {}, (), (), ()), variable_keys=variable_keys(graph))
    for name, state in outer.items():
        value = made.add(f"{name}/first", state.dtype, state.shape, state.data, state.quantization)
        made.emit("ASSIGN_VARIABLE", [made.handle(name), value], [])
    return made


def _write_network(graph: Graph) -> Written:
    failures: list[tuple[Op, QConvertError]] = []
    writers = operators("tflite", "write")
    lowered = lower(loops_to_whiles(without_calls(graph, lambda op: _is_composite(graph, op))), _legality(writers), prefers=_PREFERRED)
    decomposed = lowered.graph
    without_form = frozenset(id(op) for op in all_ops(decomposed) if op.kind not in writers)
    first = _INITIAL + (inner_states(graph) != set(graph.states))
    subgraphs = {name: first + position for position, name in enumerate(decomposed.functions)}
    counted = find_counters(decomposed)
    entries = {"", *(signature.function for signature in graph.signatures)} if first > _INITIAL else set()
    known, writings = (subgraphs, variable_keys(graph), lowered.whole), []
    for name, inner in all_graphs(decomposed):
        writings.append(Writing(inner, *known, counted.get(name, frozenset())))
        if name in entries:
            writings[-1].emit("CALL_ONCE", [], [], initSubgraphIndex=_INITIAL)
        _write_graph(writings[-1], writers, failures)
    writing, *functions = writings
    return Written(graph, writing, tuple(functions), tuple(failures), without_form)


def _legality(writers: Mapping[str, Any]) -> Legal:
    """What TFLite takes: operators that have a writer which takes them, on quantized data or on real ones."""
    has_writer = legality(writers, also=("Call", "Loop", "Scan"))  # which are written as others

    def legal(tensors: Mapping[str, Tensor], op: Op) -> str:
        return has_writer(tensors, op) or _type_mixture(tensors, op)

    return legal


#: The kind whose kernel takes quantized data and gives real ones.
_DEQUANTIZES = "DetectionPostProcess"


def _type_mixture(tensors: Mapping[str, Tensor], op: Op) -> str:
    """Why an operator of a formula would make an invalid file: it has quantized data next to real ones."""
    kind = kind_of(op)
    if kind.rule not in ("real", "index") or op.kind == _DEQUANTIZES:
        return ""
    sides = [tensors[name] for name in (*kind.data(op), *kind.results_of(op)) if name]
    mixed = any(item.is_quantized for item in sides) and any(item.dtype in REALS for item in sides)
    return "it has quantized data next to real ones" if mixed else ""


def _not_lowered(op: Op, writing: Writing) -> QConvertError:
    """The error for an operator that would be several on these data."""
    sides = [writing.tensor(name) for name in op.names if name]
    quantized = next((item.name for item in sides if item.is_quantized), "")
    if quantized:
        return writing.unsupported_error(op, f"quantized {quantized!r}, which TFLite composes of several operators,", rule="quantized-data")
    seen = ", ".join(f"{item.dtype} of shape {item.shape}" for item in sides)
    return writing.unsupported_error(op, f"{seen}, for which no formula holds,", rule="no-formula")


def _is_composite(graph: Graph, op: Op) -> bool:
    """Whether a region of a partition becomes a composite: it computes alone, without variables and without subgraphs of its own."""
    if not op["target"] or not op.outputs:
        return False
    return all(kind_of(inner).rule not in ("state", "control") for inner in graph.functions[str(op["function"])].ops)


def _write_graph(writing: Writing, writers: Mapping[str, Any], failures: list[tuple[Op, QConvertError]]) -> None:
    """Write the operators of one graph; those that are refused join `failures`."""
    graph, has_writer = writing.graph, legality(writers)
    for name in graph.inputs:
        writing.use(name)
    for op in graph.ops:
        writer = writers.get(op.kind)
        try:
            if writer is not None and (reason := has_writer(graph.tensors, op)):
                raise legality_error(op, reason, "TFLite")
            if writer is not None:
                writing.write(op, writer)
            elif op.kind in FORMULAS:
                raise _not_lowered(op, writing)
        except QConvertError as error:
            failures.append((writing.whole.get(id(op), op), error))
