"""The exact meaning of a canonical graph: every operator as the real-valued function that it stands for, in float64.

A quantized operator is the real function of its dequantized inputs, rounded once (ties to even) onto its output's quantization and
saturated. Sums of products run over whole steps and are exact below 2**53. The functions stand with their kinds (operators/).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence

import numpy as np

from qconvert.arithmetic import quantize
from qconvert.arithmetic.storage import REALS
from qconvert.errors import InvalidGraphError, OptionError, UnsupportedError
from qconvert.graph import Array, Arrays, Graph, Op, Tensor, numpy_dtype
from qconvert.operators import Call, ExactResult, find_kind, kind_of
from qconvert.operators.properties import Running
from qconvert.operators.shapes_and_functions import in_function

__all__ = ["ExactResult", "evaluate", "evaluate_op", "known_inputs", "stored_inputs"]


#: (graph, operator, stored inputs) -> the stored result as a runtime's kernel computes it; None where it is not known, so that the exact
#: value, rounded once, stands for it. Kernels.stored (kernels/) is one.
Resolver = Callable[[Graph, Op, Sequence[Array | None]], Array | None]


def stored_inputs(graph: Graph, op: Op, values: Arrays) -> list[Array | None]:
    """Return the stored values of the inputs of an operator, in order: constants, else what `values` has by name; None for the others."""
    return [None if not name else graph.constant(name) if graph[name].is_constant else values.get(name) for name in op.inputs]


def known_inputs(graph: Graph, op: Op, values: Arrays) -> list[Array | None] | None:
    """Return the inputs of stored_inputs(); None if one that the operator has is not known."""
    found = stored_inputs(graph, op, values)
    return None if any(name and value is None for name, value in zip(op.inputs, found, strict=True)) else found


def evaluate_op(
    graph: Graph,
    op: Op,
    inputs: Sequence[Array | None],
    states: MutableMapping[str, Array] | None = None,
    kernels: Resolver | None = None,
) -> list[ExactResult]:
    """The exact outputs of one operator.

    Args:
        graph: the graph that the operator belongs to, with the functions that it runs.
        op: the operator.
        inputs: stored values of its inputs, in order; None for an optional one that is absent.
        states: see evaluate(); functions may read and write them.
        kernels: see evaluate().

    Returns:
        A result for each output.

    Raises:
        UnsupportedError: the operator, or an attribute's value, has no function here.
        InvalidGraphError: the inputs do not fit the operator.
    """
    spec = find_kind(op)
    if spec is not None and spec.run is not None:
        return _evaluate_control(graph, op, inputs, states, kernels)
    if kernels is not None and (own := kernels(graph, op, inputs)) is not None:
        return [ExactResult(None, own)]
    if spec is None or spec.evaluate is None:
        raise UnsupportedError(f"the operator {op.kind} is not evaluated", where=op.location, rule="not-evaluated")
    tensors = tuple(graph.tensors[name] if name else None for name in op.inputs)
    results = tuple(graph.tensors[name] for name in op.outputs if name)
    call = Call(op, tuple(inputs), tensors, results)
    try:
        with np.errstate(all="ignore"):
            found = spec.evaluate(call)
            outputs = found if isinstance(found, list) else [found]
            kept = [output for output, name in zip(outputs, op.outputs, strict=False) if name]
            return [_result(op, value, tensor) for value, tensor in zip(kept, results, strict=True)]
    except (ArithmeticError, AssertionError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InvalidGraphError(f"its inputs do not fit it: {error}", where=op.location, rule="wrong-arguments") from error


def _evaluate_control(
    graph: Graph, op: Op, inputs: Sequence[Array | None], states: MutableMapping[str, Array] | None, kernels: Resolver | None
) -> list[ExactResult]:
    """What an operator gives that runs functions: stored values as they are."""
    kind = kind_of(op)
    assert kind.run is not None

    def body(attribute: str, values: Sequence[Array]) -> list[Array]:
        inner = in_function(graph, calls[attribute].function)
        found = evaluate(inner, dict(zip(inner.inputs, values, strict=True)), states, kernels)
        return [found[name] for name in inner.outputs]

    try:
        calls = {call.attribute: call for call in kind.calls(op)}
        found = kind.run(Running(graph, op, calls, body), list(inputs))
        kept = [np.asarray(value) for value, name in zip(found, op.outputs, strict=True) if name]
    except (AssertionError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InvalidGraphError(f"its inputs do not fit it: {error}", where=op.location, rule="wrong-arguments") from error
    tensors = [graph[name] for name in op.outputs if name]
    reals = [tensor.dtype in REALS and not tensor.is_quantized for tensor in tensors]
    return [ExactResult(value.astype(np.float64) if real else None, value) for value, real in zip(kept, reals, strict=True)]


def _result(op: Op, value: Array | ExactResult, tensor: Tensor) -> ExactResult:
    """The output as stored: float values are rounded to the quantization, moved and plain ones keep their value."""
    if isinstance(value, ExactResult):
        return value
    dtype = numpy_dtype(tensor.dtype)
    if kind_of(op).rounds and tensor.quantization is not None:
        real = np.asarray(value, np.float64)
        return ExactResult(real, quantize(real, tensor.quantization, tensor.dtype))
    stored = np.asarray(value).astype(dtype)
    is_real = tensor.dtype in REALS
    return ExactResult(np.asarray(value, np.float64) if is_real else None, stored)


def evaluate(
    graph: Graph, inputs: Arrays, states: MutableMapping[str, Array] | None = None, kernels: Resolver | None = None
) -> dict[str, Array]:
    """Runs a whole graph; each operator gets the stored outputs of those before it.

    Args:
        graph: the graph.
        inputs: stored values of the graph's inputs, by tensor name.
        states: stored values of the graph's states, by name, which the run changes; one that is absent has its first value.
        kernels: what knows the integers of a runtime's kernels, such as KERNELS["litert:default"].compute_stored; without it every operator
            gives its exact value, rounded once.

    Returns:
        Stored values of the graph's outputs, by tensor name.

    Raises:
        OptionError: an input is missing.
    """
    missing = [name for name in graph.inputs if name not in inputs]
    if missing:
        raise OptionError(f"there is no value for input{'s' * (len(missing) > 1)} {', '.join(missing)}", rule="input-missing")
    values = {tensor.name: tensor.data for tensor in graph.constants() if tensor.data is not None}
    values.update({name: np.asarray(inputs[name]) for name in graph.inputs})
    uses = Counter(name for op in graph.ops for name in op.inputs) + Counter(graph.outputs)
    kept: MutableMapping[str, Array] = {} if states is None else states
    for name, state in graph.states.items():
        if state.data is not None:
            kept.setdefault(name, state.data)
    for op in graph.ops:
        if (kind := find_kind(op)) is not None and kind.rule == "state":
            _pass_state(op, values, kept)
        else:
            results = evaluate_op(graph, op, [values[name] if name else None for name in op.inputs], kept, kernels)
            values.update(zip((name for name in op.outputs if name), (result.stored for result in results), strict=True))
        for name in filter(None, op.inputs):
            uses[name] -= 1
            if not uses[name]:
                del values[name]
    return {name: values[name] for name in graph.outputs}


def _pass_state(op: Op, values: dict[str, Array], states: MutableMapping[str, Array]) -> None:
    """A state's value to the output of a ReadState, or the input of a WriteState to the state."""
    name = str(op["state"])
    if op.outputs:
        values[op.outputs[0]] = states[name]
    else:
        states[name] = values[op.inputs[0]]
