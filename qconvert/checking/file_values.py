"""Values as a file itself gives them, in a run and as stored constants, and whether rewritten pieces of the file reproduce them. Where
they do not, the file was not read as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping

import numpy as np

from qconvert.checking.file_in_runtime import Side
from qconvert.checking.findings import Finding
from qconvert.checking.memory import Splitting
from qconvert.checking.outputs import absolute_difference, largest_magnitude
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate_op, known_inputs
from qconvert.graph import Array, Arrays, Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.plugins import Inside


def complete_values(graph: Graph, values: Arrays, states: MutableMapping[str, Array] | None = None) -> dict[str, Array]:
    """`values` with every tensor that the evaluator can work out from them, such as those that the reader added; the rest are absent.

    Args:
        graph: the canonical graph.
        values: stored values of activations by name, the graph's inputs at least.
        states: what the graph's states hold, which the run changes; without, what is read of them is not known.
    """
    return _evaluate_ops(graph, values, lambda op: True, states)


def complete_settled(graph: Graph, values: Arrays) -> dict[str, Array]:
    """`values` with the tensors that a runtime may not give out although they are beyond doubt: what is only moved, and sizes."""

    def follows(op: Op) -> bool:
        integers = not any("float" in graph[name].dtype for name in op.outputs if name)
        return kind_of(op).rule in ("move", "relabel") or (integers and _is_exact(graph, op))

    return _evaluate_ops(graph, values, follows)


def _evaluate_ops(
    graph: Graph, values: Arrays, takes: Callable[[Op], bool], states: MutableMapping[str, Array] | None = None
) -> dict[str, Array]:
    """Return `values` with the results of the chosen operators, where the evaluator knows them."""
    found = dict(values)
    for op in graph.ops:
        if states is not None and kind_of(op).rule == "state":
            _pass_state(graph, op, found, states)
        if not takes(op) or all(not name or name in found for name in op.outputs):
            continue
        inputs = known_inputs(graph, op, found)
        if inputs is None:
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


def find_settled(graph: Graph, given: Iterable[str]) -> set[str]:
    """The tensors whose values are beyond doubt once those of `given` are known: every runtime would give the same for them.

    These are what operators that round nothing make of them: data movement, comparisons, sizes, and stored integers as real numbers.
    """
    return _spread(graph, given, lambda op, known: known and _is_exact(graph, op))


def _spread(graph: Graph, given: Iterable[str], follows: Callable[[Op, bool], bool]) -> set[str]:
    """Names of tensors, of constants, and of what follows from these: (operator, whether all that it reads is among them) -> bool."""
    found = {*given, *(tensor.name for tensor in graph.constants())}
    for op in graph.ops:
        if follows(op, all(not name or name in found for name in op.inputs)):
            found.update(name for name in op.outputs if name)
    return found


def _is_exact(graph: Graph, op: Op) -> bool:
    rule = kind_of(op).rule
    if op.kind == "DynamicQuantizeLinear" or kind_of(op).is_structural:
        return False
    plain = all(not name or ("float" not in graph[name].dtype and graph[name].quantization is None) for name in op.outputs)
    return rule in ("move", "relabel", "index", "plain") or kind_of(op).dequantizes or plain


#: Operators of ONNX that have no kind of their own and depend on the sizes of their data alone.
_OF_SIZES = frozenset(("Size", "EyeLike"))


def is_shape_query(op: Op) -> bool:
    """Whether the result of an operator depends on the sizes of its data alone."""
    return str(op["op_type"]) in _OF_SIZES if kind_of(op).rule == "opaque" else kind_of(op).reads_shape


def is_value_independent(graph: Graph, op: Op) -> bool:
    """Whether the values of an operator's data do not matter: it asks for their sizes, which are known, or gives no elements."""
    if is_shape_query(op):
        return all(not name or graph[name].static_shape is not None for name in op.inputs)
    return bool(op.outputs) and all(0 in (graph[name].shape or ()) for name in op.outputs if name)


def find_fixed_outputs(graph: Graph) -> set[str]:
    """The outputs that are the same whatever the values of the inputs are."""
    fixed = _spread(graph, (), lambda op, known: kind_of(op).rule != "state" and (known or is_value_independent(graph, op)))
    return fixed.intersection(graph.outputs)


#: The share of the largest value by which float results may differ: the order of a sum may be another.
_FLOAT_SHARE = 1e-5
#: Elements that may lie so near to a tie by chance, however few are expected.
_FEW = 2


def find_reading_errors(side: Side, inside: Inside, pieces: Splitting, feed: Arrays) -> dict[str, Finding]:
    """The tensors that the pieces do not compute as the file does, each from the file's own tensors.

    Args:
        side: the file.
        inside: the untouched file.
        pieces: those of its canonical graph.
        feed: stored inputs of the file, in its order.
    """
    own = inside.values(feed)
    known = complete_values(side.graph, own)
    if not all(name in known for name in pieces.input_names):
        return {}
    found: dict[str, Finding] = {}
    writers = side.graph.producers()
    for name, again in (item for part in pieces.parts(known.__getitem__) for item in part.items() if item[0] in own):
        wrong, largest = _count_differing(own[name], again)
        rounded = name in writers and kind_of(writers[name]).quantizes
        if wrong and not (rounded and largest <= 1 and wrong <= _count_float_ties(side.graph[name], own[name])):
            reason = f"reading error: what is read of {side.path.name} does not compute the file's own values"
            found[name] = Finding("unexplained", reason, 1 - wrong / max(own[name].size, 1), largest, 0.0, wrong)
    return found


def _count_float_ties(tensor: Tensor, own: Array) -> float:
    """How many elements may round to the next integer where the floats in front, of another kernel, differ by their share."""
    if tensor.per_tensor is None:
        return 0.0
    steps = np.abs(own.astype(np.int64) - tensor.per_tensor.point).max(initial=0)
    return float(_FEW + 2 * _FLOAT_SHARE * steps * own.size)


def _count_differing(own: Array, again: Array) -> tuple[int, float]:
    """How many elements differ, and the largest difference."""
    if own.shape != again.shape or own.dtype != again.dtype:
        return own.size or 1, float("inf")
    if np.array_equal(own, again):
        return 0, 0.0
    if own.dtype.kind not in "iuf":
        wrong = int((own != again).sum())
        return wrong, float(bool(wrong))
    difference = absolute_difference(own, again)
    allowed = _FLOAT_SHARE * largest_magnitude(own.astype(np.float64)) if own.dtype.kind == "f" else 0.0
    return int((difference > allowed).sum()), float(difference.max(initial=0))
