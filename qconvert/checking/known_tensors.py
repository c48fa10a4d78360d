"""The values of a side's tensors in a run: from the unchanged file in its runtime, and the others from the evaluator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping

from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op
from qconvert.operators import KINDS, kind_of

__all__ = [
    "complete_values",
    "find_fixed_outputs",
    "find_settled",
    "find_varying",
    "follow_movement",
    "is_shape_query",
    "is_value_independent",
    "keep_varying",
]


def complete_values(graph: Graph, values: Mapping[str, Array], states: MutableMapping[str, Array] | None = None) -> dict[str, Array]:
    """`values` with every tensor that the evaluator can work out from them, such as those that the reader added; the rest are absent.

    Args:
        graph: the canonical graph.
        values: stored values of activations by name, the graph's inputs at least.
        states: what the graph's states hold, which the run changes; without, what is read of them is not known.
    """
    found = dict(values)
    for op in graph.ops:
        if states is not None and kind_of(op).rule == "state":
            _pass_state(graph, op, found, states)
        if all(not name or name in found for name in op.outputs):
            continue
        inputs = [None if not name else graph.constant(name) if graph[name].is_constant else found.get(name) for name in op.inputs]
        if op.kind == "Opaque" or any(name and value is None for name, value in zip(op.inputs, inputs, strict=True)):
            continue
        try:
            results = evaluate_op(graph, op, inputs)
        except QConvertError:
            continue
        found.update((name, result.stored) for name, result in zip(op.outputs, results, strict=False) if name and name not in found)
    return found


def _pass_state(graph: Graph, op: Op, found: dict[str, Array], states: MutableMapping[str, Array]) -> None:
    first = graph.states[str(op["state"])].data if op["state"] in graph.states else None
    value = states.get(str(op["state"]), first)
    if op.outputs and op.outputs[0] in found:  # as the runtime has it
        return
    if op.outputs and value is not None:
        found[op.outputs[0]] = value
    elif not op.outputs and op.inputs[0] in found:
        states[str(op["state"])] = found[op.inputs[0]]


def follow_movement(graph: Graph, values: Mapping[str, Array]) -> dict[str, Array]:
    """`values` with the tensors that are only moved from them, such as rows that a runtime does not give out by themselves."""
    found = dict(values)
    for op in graph.ops:
        known = all(not name or graph[name].is_constant or name in found for name in op.inputs)
        if not known or kind_of(op).rule not in ("move", "relabel") or all(not name or name in found for name in op.outputs):
            continue
        inputs = [None if not name else graph.constant(name) if graph[name].is_constant else found[name] for name in op.inputs]
        try:
            results = evaluate_op(graph, op, inputs)
        except QConvertError:
            continue
        found.update((name, result.stored) for name, result in zip(op.outputs, results, strict=False) if name and name not in found)
    return found


def find_settled(graph: Graph, given: Iterable[str]) -> set[str]:
    """The tensors whose values are beyond doubt once those of `given` are known: every runtime would give the same for them.

    These are what operators that round nothing make of them: data movement, comparisons, sizes, and stored integers as real numbers.
    """
    found = {*given, *(tensor.name for tensor in graph.constants())}
    for op in graph.ops:
        if _is_exact(graph, op) and all(not name or name in found for name in op.inputs):
            found.update(name for name in op.outputs if name)
    return found


def _is_exact(graph: Graph, op: Op) -> bool:
    rule = kind_of(op).rule if op.kind in KINDS else "opaque"
    if op.kind == "DynamicQuantizeLinear" or rule in ("state", "control", "opaque"):
        return False
    plain = all(not name or ("float" not in graph[name].dtype and graph[name].quantization is None) for name in op.outputs)
    return rule in ("move", "relabel", "index", "plain") or op.kind == "Dequantize" or plain


#: Operators of ONNX that have no kind of their own and depend on the sizes of their data alone.
_OF_SIZES = frozenset(("Size", "EyeLike"))


def is_shape_query(op: Op) -> bool:
    """Whether the result of an operator depends on the sizes of its data alone."""
    return str(op["op_type"]) in _OF_SIZES if op.kind == "Opaque" else kind_of(op).reads_shape


def is_value_independent(graph: Graph, op: Op) -> bool:
    """Whether the values of an operator's data do not matter: it asks for their sizes, which are known, or gives no elements."""
    if is_shape_query(op):
        return all(not name or graph[name].static_shape is not None for name in op.inputs)
    return bool(op.outputs) and all(0 in (graph[name].shape or ()) for name in op.outputs if name)


def find_fixed_outputs(graph: Graph) -> set[str]:
    """The outputs that are the same whatever the values of the inputs are."""
    fixed = {tensor.name for tensor in graph.constants()}
    for op in graph.ops:
        if kind_of(op).rule != "state" and (is_value_independent(graph, op) or all(not name or name in fixed for name in op.inputs)):
            fixed.update(op.outputs)
    return fixed.intersection(graph.outputs)


def find_varying(graph: Graph) -> set[str]:
    """Names of the tensors that depend on the graph's inputs; runtimes give out nothing that is constant."""
    fixed = {tensor.name for tensor in graph.constants()}
    for op in graph.ops:
        if op.inputs and all(not name or name in fixed for name in op.inputs):
            fixed.update(op.outputs)
    return graph.tensors.keys() - fixed


def keep_varying(graph: Graph, values: Mapping[str, Array]) -> dict[str, Array]:
    """Without the tensors that do not depend on the graph's inputs: a runtime that folds them may leave what it gives out unwritten, as
    XNNPACK does with weights of float16 after a DEQUANTIZE."""
    kept = find_varying(graph)
    return {name: value for name, value in values.items() if name in kept}
