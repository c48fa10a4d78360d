"""What an operator is expected to give: the exact values of its outputs, error bounds of float sums and ties, and the results of kernels
that overflow.

An LSTM that rounds its hidden values at each step rounds one that is near a tie to either side, and all later steps depend on it. The
bounds for that come from runs of the operator with hidden values that are off by as little; they are zero where no value is near a tie.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from qconvert.arithmetic import dequantize, dynamic_steps
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate_op, known_inputs, stored_inputs
from qconvert.graph import Array, Arrays, Graph, Op, Tensor, in_bytes, integer_range
from qconvert.kernels import Kernels
from qconvert.operators import Call, is_dynamic, kind_of, range_axes
from qconvert.operators.call import Result

_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
#: Roundings besides those of the sum: of the product, of a weight that is dequantized, of the bias, of the result.
_FURTHER_ROUNDINGS = 4
#: And of a range, of its scale and the scale's reciprocal, of the product of scales.
_OF_DYNAMIC_RANGE = 4
#: Attributes that limit or round what a sum is of.
_ROUNDS = ("activation", "arithmetic")


def exact_value(graph: Graph, op: Op, values: Arrays, index: int, writers: Mapping[str, Op]) -> tuple[Array, Op] | None:
    """Output `index` of an operator in real numbers, and the operator that rounds them; None where that is not known.

    A move, Relu, Clip, or sum with something known, of something that `values` does not have is traced back to that: none enlarges
    an error.

    Args:
        graph, op: the operator.
        values: stored values by name; whatever they lack is not known.
        index: of the output.
        writers: the operator that computes each tensor.
    """
    rule = kind_of(op).rule
    inputs = stored_inputs(graph, op, values)
    lacking = [i for i, (name, value) in enumerate(zip(op.inputs, inputs, strict=True)) if name and value is None]
    if rule in ("real", "convert") and not lacking:
        try:
            real = evaluate_op(graph, op, inputs)[index].real
        except QConvertError:
            return None
        return None if real is None else (real, op)
    passed = [i for i in lacking if len(lacking) == 1 and i in find_passed_inputs(graph, op)]
    writer = writers.get(op.inputs[passed[0]]) if passed else None
    if writer is None:
        return None
    before = exact_value(graph, writer, values, writer.outputs.index(op.inputs[passed[0]]), writers)
    if before is None:
        return None
    given, tensors = list[Array | None](inputs), [graph[name] if name else None for name in op.inputs]
    given[passed[0]], tensors[passed[0]] = before[0], _make_float_tensor(graph[op.inputs[passed[0]]])
    moved = _compute_real(graph, op, given, tensors)
    found = moved[index] if isinstance(moved, list) else moved
    return (found, before[1]) if isinstance(found, np.ndarray) else None


def _compute_real(graph: Graph, op: Op, inputs: Sequence[Array | None], tensors: Sequence[Tensor | None]) -> Result | None:
    """What an operator gives in real numbers for inputs that `tensors` describe; None where that cannot be computed."""
    function = kind_of(op).evaluate
    outputs = tuple(_make_float_tensor(graph[name]) for name in op.outputs if name)
    try:
        return None if function is None else function(Call(op, tuple(inputs), tuple(tensors), outputs))
    except (ArithmeticError, AssertionError, IndexError, KeyError, TypeError, ValueError):
        return None


def find_passed_inputs(graph: Graph, op: Op) -> Collection[int]:
    """Return the inputs whose errors the operator does not enlarge: of data movement, limits, and sums of floats."""
    if kind_of(op).sum_sign:
        return () if any(graph[name].is_quantized for name in op.names) else range(2)
    single = kind_of(op).rule in ("move", "relabel") and kind_of(op).moved_inputs(op) == [op.inputs[0]]
    return range(1) if single or kind_of(op).clips else ()


def sum_bound(graph: Graph, op: Op, values: Arrays) -> Array | None:
    """By how much a result in floats may differ from the exact one, whatever the order of its sums: (n + 4) * eps * sum of |x * w|.

    n is the number of terms of a sum (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1: gamma_n times the sum of
    the absolute values); four further roundings are of the product, a dequantized weight, the bias and the result. None for operators
    that are no sums.
    """
    if kind_of(op).normalizes:
        return _normalized_bound(graph, op, values)
    if kind_of(op).sum_sign:
        op = op.derive("Add", op.inputs, op.outputs)
    elif not (kind_of(op).sums_products or kind_of(op).averages):
        return None
    found = _evaluate_absolute(graph, op, values)
    if found is None:
        return None
    sizes = (None if value is None else value.shape for value in (_find_value(graph, name, values) for name in op.inputs[:2] if name))
    return share_of_terms(op, count_terms(op, tuple(sizes), found.shape) or 1, graph[op.outputs[0]].dtype) * found


def share_of_terms(op: Op, count: float, dtype: str) -> float:
    """By what share of the sum of the magnitudes of its terms an operator may be off in a type of float, whatever their order."""
    further = _FURTHER_ROUNDINGS + (_OF_DYNAMIC_RANGE if is_dynamic(op) else 0)
    return (count + further) * _EPSILON.get(dtype, 2.0**-23)


def _normalized_bound(graph: Graph, op: Op, values: Arrays) -> Array | None:
    """x * factor + (bias - mean * factor), factor being scale / sqrt(var + epsilon): each product has the roundings of the factor (the sum
    with epsilon, the root, the quotient) besides its own and those of the two sums."""
    inputs = [_find_value(graph, name, values) for name in op.inputs]
    if len(inputs) != 5 or any(value is None or value.dtype.kind != "f" for value in inputs):
        return None
    data, scale, bias, mean, variance = (np.asarray(value, np.float64) for value in inputs)
    # |x| - (-|mean|) is what may cancel.
    signed = (np.abs(data), np.abs(scale), np.abs(bias), -np.abs(mean), variance)
    found = _compute_real(graph, op, signed, [_make_float_tensor(graph[name]) for name in op.inputs])
    if not isinstance(found, np.ndarray):
        return None
    return (3 + _FURTHER_ROUNDINGS) * _EPSILON.get(graph[op.outputs[0]].dtype, 2.0**-23) * np.abs(found)


def bound_cancellation(graph: Graph, op: Op, values: Arrays) -> Array | float:
    """By how much the result of an operator in float32 may differ from the exact one because terms cancel, in float values."""
    function, inputs = kind_of(op).cancellation, [_find_value(graph, name, values) if name else None for name in op.inputs]
    if function is None or any(value is None and name for value, name in zip(inputs, op.inputs, strict=True)):
        return 0.0
    tensors = tuple(graph[name] if name else None for name in op.inputs)
    return function(Call(op, tuple(inputs), tensors, tuple(graph[name] for name in op.outputs)))


def bound_ties(graph: Graph, op: Op, values: Arrays) -> Array | float:
    """By how much ties may move the result of an operator of dynamic range: by a step of each of its data that is near one, times |w|.

    A kernel that multiplies by a reciprocal, where another divides, may round them to the other side.
    """
    if not is_dynamic(op):
        return 0.0
    data, weights = (_find_value(graph, name, values) for name in op.inputs[:2])
    if data is None:
        return 0.0
    kernel = weights.shape[2:] if weights is not None else graph[op.inputs[1]].static_shape or ()
    _, scale, near = dynamic_steps(data, range_axes(op, data.ndim, kernel), str(op["arithmetic"]))
    if not near.any():
        return 0.0
    found = propagate_errors(graph, op, near * scale, values)
    return 0.0 if found is None else found


def propagate_errors(graph: Graph, op: Op, errors: Array, values: Arrays) -> Array | None:
    """By how much float values that its data are off by may move the result of an operator with weights: these, times |w|."""
    return _evaluate_absolute(graph, replace(op, inputs=op.inputs[:2]), {**values, op.inputs[0]: errors})


def _evaluate_absolute(graph: Graph, op: Op, values: Arrays) -> Array | None:
    """The operator, without its activation, on the absolute values of what it sums."""
    kind = kind_of(op)
    plain = op.with_attributes(**{key: "" for key in _ROUNDS if op.attributes.get(key)})
    inputs: list[Array | None] = []
    tensors: list[Tensor | None] = []
    for index, name in enumerate(op.inputs):
        value, tensor = (_find_value(graph, name, values), graph[name]) if name else (None, None)
        if name and value is None:
            return None
        if value is not None and tensor is not None and kind.role(index) in ("data", "factor", "weights", "bias"):
            value = in_bytes(value)
            has_quantization = tensor.quantization is not None and value.dtype.kind in "iu"
            value = np.abs(dequantize(value, tensor.quantization) if has_quantization and tensor.quantization else value.astype(np.float64))
            value = value + (_zero_point_value(tensor) if has_quantization and kind.role(index) == "data" else 0.0)
            tensor = _make_float_tensor(tensor)
        inputs.append(value)
        tensors.append(tensor)
    found = _compute_real(graph, plain, inputs, tensors)
    return np.abs(found) if isinstance(found, np.ndarray) else None


def _zero_point_value(tensor: Tensor) -> float:
    """What a zero point stands for: without it the sum is larger, and a bias takes it off again (pass shift_to_symmetric)."""
    q = tensor.per_tensor
    if q is None:
        return 0.0
    middle = sum(integer_range(tensor.dtype)) // 2 + 1 if tensor.dtype.startswith("u") else 0
    return float(abs(q.point - middle) * q.step)


def count_terms(op: Op, sizes: Sequence[tuple[int, ...] | None], result: tuple[int, ...] | None) -> float | None:
    """How many terms an operator that sums its data, products of them or their averages has at most in one element of its result; None if
    that is not known.

    Args:
        op: the operator.
        sizes, result: those of its first inputs and of its result; None where they are not known.
    """
    kind, data = kind_of(op), sizes[0]
    if kind.sum_sign:
        return 1
    if kind.has_weights:
        weights = sizes[1]
        return None if weights is None else math.prod(weights[1:])
    if kind.sums_products:
        is_turned = bool(op["trans_a"]) and data is not None and len(data) > 1
        return data[-2 if is_turned else -1] if data else None
    if "kernel_shape" in op.attributes:
        return float(math.prod(op["kernel_shape"]))
    return None if data is None or result is None else math.prod(data) / max(math.prod(result), 1)


def _find_value(graph: Graph, name: str, values: Arrays) -> Array | None:
    if name in values:
        return values[name]
    return graph.constant(name) if graph[name].is_constant else None


def _make_float_tensor(tensor: Tensor) -> Tensor:
    return Tensor(tensor.name, "float64", tensor.shape)


#: By what share of the largest hidden value these are off: some roundings of sigmoid, tanh and sums in float32.
_SHARE = 1e-6
#: How often the operator runs; a value next to a tie falls to each side in half of them.
_RUNS = 16
#: Of distances between runs: several ties may fall together as in none of them.
_MARGIN = 2.0
#: Inputs of an LSTM.
_LENGTHS, _HIDDEN, _CELL = 4, 5, 6


def bound_step_ties(graph: Graph, op: Op, index: int, rounder: Op, values: Arrays, writers: Mapping[str, Op]) -> Array | None:
    """Bound the error of output `index` of `op`, which is `rounder` or data movement after it; None if `rounder` is no such LSTM.

    Args:
        graph: of both operators.
        op, rounder: the operators.
        index: of the output.
        values: stored values by name.
        writers: the operator that computes each tensor.
    """
    runs = _run_perturbed(graph, rounder, values) if rounder.kind == "LSTM" and is_dynamic(rounder) else None
    if runs is None:
        return None
    try:
        found = [_follow_movement(graph, op.outputs[index], run, writers) for run in runs]
    except (QConvertError, KeyError):
        return None
    return np.asarray(_MARGIN * np.max([np.abs(value - found[0]) for value in found], axis=0))


def _follow_movement(graph: Graph, name: str, run: Arrays, writers: Mapping[str, Op]) -> Array:
    """What operators that move them make of the outputs of a run."""
    data = run.get(name, graph.constant(name))
    if data is not None:
        return data
    op = writers[name]
    inputs = [_follow_movement(graph, item, run, writers) if item else None for item in op.inputs]
    return np.asarray(evaluate_op(graph, op, inputs)[op.outputs.index(name)].stored)


def _run_perturbed(graph: Graph, op: Op, values: Arrays) -> list[dict[str, Array]] | None:
    """The outputs of the operator by name: as it is, and with hidden values that are off."""
    given = known_inputs(graph, op, values)
    if given is None or len(given) <= _CELL or given[_LENGTHS] is not None or op["layout"] != 0 or op["direction"] == "bidirectional":
        return None
    data = given[0]
    if data is None or given[_HIDDEN] is None or given[_CELL] is None:
        return None
    tensors = [graph[name] if name else None for name in op.inputs]
    call = Call(op, tuple(given), tuple(tensors), tuple(graph[name] for name in op.outputs if name))
    real = [None if value is None else call.values(place) for place, value in enumerate(given)]
    plainly = tuple(None if tensor is None else _make_float_tensor(tensor) for tensor in tensors)
    rng, shown = np.random.default_rng(0), []

    def draw_errors(hidden: Array) -> Array:
        found = rng.uniform(-1, 1, hidden.shape) * _SHARE * np.abs(hidden).max(initial=0)
        found[:, ::_RUNS] = 0  # the first run of each row
        return np.asarray(found)

    states = [np.repeat(np.asarray(real[place]), _RUNS, axis=1) for place in (_HIDDEN, _CELL)]
    states[0] = states[0] + draw_errors(states[0])  # a runtime's own states are what it computed before
    function = kind_of(op).evaluate
    assert function is not None
    order = range(len(data))
    for step in reversed(order) if op["direction"] == "reverse" else order:
        one = [np.repeat(data[step : step + 1].astype(np.float64), _RUNS, axis=1), *real[1:_HIDDEN], *states, *real[_CELL + 1 :]]
        results = function(replace(call, stored=tuple(one), tensors=plainly))
        assert isinstance(results, list)
        moved = draw_errors(results[1])
        states = [results[1] + moved, results[2]]
        shown.append(results[0] + moved[None])
    whole = np.concatenate(shown[::-1] if op["direction"] == "reverse" else shown)
    named = list(zip(op.outputs, (whole, *states), strict=False))
    found = []
    for run in range(_RUNS):
        chosen = [row * _RUNS + run for row in range(data.shape[1])]
        found.append({name: np.take(value, chosen, axis=-2) for name, value in named if name})
    return found


def is_score_tie(graph: Graph, op: Op, values: Arrays, chosen: Array) -> bool:
    """Whether a SelectBoxes of `values`, by name, may give `chosen`, had it the boxes of equal score in another order.

    LiteRT takes boxes from a std::priority_queue that compares scores alone (non_max_suppression.h), so that the order of equal ones is
    the heap's; ONNX takes the first. The evaluation takes the first, too: with the chosen boxes put in front, it has to choose them.
    """
    inputs = known_inputs(graph, op, values)
    boxes, scores = (None, None) if inputs is None else inputs[:2]
    if inputs is None or boxes is None or scores is None or len(op.outputs) < 2:
        return False
    first = dict.fromkeys(int(place) for place in chosen.reshape(-1) if 0 <= place < len(scores))
    order = np.array([*first, *(place for place in range(len(scores)) if place not in first)], np.int64)
    try:
        places, count, *_ = evaluate_op(graph, op, [boxes[order], scores[order], *inputs[2:]])
    except QConvertError:
        return False
    found, kept = np.zeros_like(places.stored), int(count.stored)
    found[:kept] = order[places.stored[:kept]]
    return np.array_equal(found, chosen)


@dataclass(frozen=True, slots=True)
class Overflowed:
    """An output as the source's kernels give it, and as the operator means it.

    Attributes:
        forms: as the kernels give it, with whatever overflows: each element is that of one of them.
        meant: with nothing that overflows, each operator rounded once.
        values: what is meant on the way, by name.
        places: the operators that overflow, or are wrong in another way that is known.
        fault: that of the last of them; see kernels.Integers.
    """

    forms: tuple[Array, ...]
    meant: Array
    values: Arrays
    places: tuple[Op, ...]
    fault: str

    def can_give(self, found: Array) -> bool:
        """Whether the kernels may give these values, to the last bit."""
        if any(form.shape != found.shape for form in self.forms):
            return False
        return bool(np.any([form == found for form in self.forms], axis=0).all())


def compute_overflow(graph: Graph, op: Op, index: int, values: Arrays, writers: Mapping[str, Op], kernels: Kernels) -> Overflowed | None:
    """Compute output `index` of an operator if its kernel overflows on these values; None if none does. An operator before it counts too if
    `values` lack its result, as of a computed constant.

    Args:
        graph, op, index: the operator.
        values: stored values by name.
        writers: the operator that computes each tensor.
        kernels: of the runtime.
    """
    made = _Made(graph, values, writers, kernels)
    try:
        made.compute(op)
    except (QConvertError, KeyError):
        return None
    name = op.outputs[index]
    if not made.places:
        return None
    return Overflowed(made.forms.get(name, (made.stored[name],)), made.meant[name], made.meant, tuple(made.places), made.fault)


@dataclass(slots=True)
class _Made:
    graph: Graph
    values: Arrays
    writers: Mapping[str, Op]
    kernels: Kernels
    stored: dict[str, Array] = field(default_factory=dict)
    meant: dict[str, Array] = field(default_factory=dict)
    places: list[Op] = field(default_factory=list)
    forms: dict[str, tuple[Array, ...]] = field(default_factory=dict)
    fault: str = ""

    def compute(self, op: Op) -> None:
        """Both forms of an operator's outputs, and of whatever before it is not known."""
        for name in op.inputs:
            if name and name not in self.stored:
                known = self.graph.constant(name) if self.graph[name].is_constant else self.values.get(name)
                if known is None:
                    self.compute(self.writers[name])
                else:
                    self.stored[name] = self.meant[name] = known
        found = self.kernels.integers(self.graph, op, [self.stored[name] if name else None for name in op.inputs])
        for way in (self.stored, self.meant):
            results = evaluate_op(self.graph, op, [way[name] if name else None for name in op.inputs])
            way.update((name, result.stored) for name, result in zip(op.outputs, results, strict=False) if name)
        if found is not None and found.fault and not all(np.array_equal(way, self.meant[op.outputs[0]]) for way in found.ways):
            self.stored[op.outputs[0]], self.forms[op.outputs[0]] = found.ways[0], found.ways
            self.places.append(op)
            self.fault = found.fault
