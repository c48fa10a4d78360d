"""What a kind says of its operators besides shapes and values: how they take part in a change of layout, whether they keep the samples of a
batch apart, between which float values results lie, which functions they run, and the one form that comparisons know.

passes/assign_layout.py changes layouts; conversion/adapting/ asks for samples. Bounds say what is sure for a real-valued function, before
an activation; passes/quantizations/activations.py takes them through a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic import dequantize
from qconvert.arithmetic.storage import Array, numpy_dtype
from qconvert.errors import UnsupportedError
from qconvert.graph.schema import Graph, Op, Shape, Tensor
from qconvert.operators.call import spatial_axes
from qconvert.operators.sizes import factors_of_sizes, reshape_sizes


class Suits(Enum):
    """Which layouts an operator runs in."""

    PINNED = "the source's alone: its meaning depends on the order of all axes (Reshape, MatMul)"
    DECIDES = "the one that its attribute data_format says; a target wants all such operators to have one"
    TRANSPOSES = "it joins two layouts"
    BROADCASTS = "any, if every operand has the data's rank, or is a constant that can be given it, or is a single element"
    KEEPS_RANK = "any, if its data and results have the rank concerned and what names axes is constant; axes are renumbered"
    REDUCES = "any, as before, if the dimensions that remain keep their order"


class Layout(NamedTuple):
    """The layout role of a kind.

    Attributes:
        suits: which layouts it runs in.
        axes: the input that lists axes, which are renumbered; -1 if there is none.
        per_axis: the input that has one or two values for each axis, which are put into the new order; -1 if there is none.
        word: what these values are called.
        flat: the input whose rank must be 1; -1 if there is none.
        sized: whether its sizes say the layout in a file without data_format (ONNX's Resize), which may then have any.
    """

    suits: Suits
    axes: int = -1
    per_axis: int = -1
    word: str = ""
    flat: int = -1
    sized: bool = False


PINNED = Layout(Suits.PINNED)
DECIDES = Layout(Suits.DECIDES)
TRANSPOSES = Layout(Suits.TRANSPOSES)
ELEMENTWISE = Layout(Suits.BROADCASTS)
ALONG_AXIS = Layout(Suits.KEEPS_RANK)
REDUCES = Layout(Suits.REDUCES, axes=1)


def per_axis(index: int, word: str) -> Layout:
    """The role of an operator whose input `index` has values for each axis, called `word`."""
    return Layout(Suits.KEEPS_RANK, per_axis=index, word=word)


def permutation(wanted: str, rank: int) -> tuple[int, ...]:
    """The transposition of data of `rank` dimensions to the data_format `wanted`."""
    return (0, rank - 1, *range(1, rank - 1)) if wanted == "channels_first" else (0, *range(2, rank), 1)


#: (operator, index of the input, the axis of its samples, its rank) -> whether samples stay separate.
_IsSeparate = Callable[[Op, int, int, int], bool]


class Samples(NamedTuple):
    """What an operator does with the samples of a batch.

    Attributes:
        is_separate: whether it computes each sample by itself, where an input has them along an axis.
        rows: the inputs that have something for each sample, with the axis of it, where the data (input 0, or all of one role) have the
            samples along an axis: (operator, that axis) -> axis by input. A constant for one sample is repeated for each.
    """

    is_separate: _IsSeparate
    rows: Callable[[Op, int], Mapping[int, int]] = lambda op, axis: {}


#: Nothing keeps the samples apart, or nobody knows.
MIXES = Samples(lambda op, index, axis, rank: False)
#: Each element of the result belongs to the samples of its data, wherever these stand: that the result has them along one axis is all that
#: need be seen.
WHEREVER = Samples(lambda op, index, axis, rank: True)
#: The data have the samples first.
FIRST = Samples(lambda op, index, axis, rank: index == axis == 0)
#: It computes along the axis that the attribute names.
UNLESS_ALONG = Samples(lambda op, index, axis, rank: op["axis"] % rank != axis)


def before_last(count: int) -> Samples:
    """It computes along so many of the last axes."""
    return Samples(lambda op, index, axis, rank: axis < rank - count)


def in_rows(rows: Callable[[Op], Mapping[int, int]]) -> Samples:
    """Its data and its states have the samples along these axes: (operator) -> axis by input."""

    def is_separate(op: Op, index: int, axis: int, rank: int) -> bool:
        return rows(op).get(index) == axis

    return Samples(is_separate, lambda op, axis: {index: own for index, own in rows(op).items() if index})


class Port(NamedTuple):
    """What stands next to an input or an output of a function.

    Attributes:
        tensor: of the operator; "" for a number that the operator itself counts or tests.
        dtype: of such a number, which has one element.
        axis: along which the operator's tensor is a stack of what the function takes or gives at each turn; None if both are one value.
    """

    tensor: str = ""
    dtype: str = ""
    axis: int | None = None


class FunctionCall(NamedTuple):
    """A function that an operator runs, and what it runs it with.

    Attributes:
        attribute: that names the function.
        function: its name.
        inputs, outputs: what stands next to those of the function.
        carried: (output, input) of the function that are one value from one turn to the next.
    """

    attribute: str
    function: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    carried: tuple[tuple[int, int], ...] = ()


class AxisMove(NamedTuple):
    """An axis of the data of a movement, and one of the same size of its result.

    Attributes:
        op: the operator.
        constant: index of an input -> its constant integers.
        before, after: the shapes of data and result.
        a, b: the axis of the data, and that of the result.
    """

    op: Op
    constant: Callable[[int], Any]
    before: Shape
    after: Shape
    a: int
    b: int


#: Whether an axis of the input of a data movement is that of its output, each index in its place.
AxisRule = Callable[[AxisMove], bool]


def same_axes(move: AxisMove) -> bool:
    """The elements before the axis stay before it (Identity, Reshape, Squeeze, Unsqueeze)."""
    return factors_of_sizes(move.before[: move.a]) == factors_of_sizes(move.after[: move.b])


def unless_along(move: AxisMove) -> bool:
    """The operator works along another axis than the scales (Split, TopK)."""
    return move.a == move.b and int(move.op["axis"]) % len(move.before) != move.a


#: Smallest and largest float value, both included.
Interval = tuple[float, float]
#: The number that a size known only at run time has.
Number = Callable[[int | str], int]
#: (index of an input, smallest and largest value that the operator takes there).
Demand = tuple[int, float, float]

ANY: Interval = (-math.inf, math.inf)
#: The smallest value of what is divided by, or whose logarithm is taken.
POSITIVE = 1e-2


class Operands(NamedTuple):
    """What is known of the inputs of an operator before it runs.

    Attributes:
        op: the operator.
        tensors: of its inputs; None for those that are absent.
        intervals: in which their float values lie.
        data: the intervals of the inputs that hold its data.
    """

    op: Op
    tensors: tuple[Tensor | None, ...]
    intervals: tuple[Interval, ...] = ()
    data: tuple[Interval, ...] = ()

    def tensor(self, index: int) -> Tensor | None:
        """Input `index`; None if it is absent."""
        return self.tensors[index] if index < len(self.tensors) else None

    def shape(self, index: int) -> Shape | None:
        """The shape of input `index`; None if it is absent, or its rank is not known."""
        tensor = self.tensor(index)
        return None if tensor is None else tensor.shape

    def interval(self, index: int, absent: Interval = ANY) -> Interval:
        """That of input `index`, or `absent`."""
        return absent if self.tensor(index) is None else self.intervals[index]

    def constant(self, index: int) -> Array | None:
        """The stored values of input `index`; None if it is absent or computed at run time."""
        tensor = self.tensor(index)
        return None if tensor is None else tensor.data

    def float_values(self, index: int) -> Array | None:
        """The float values of input `index`, likewise."""
        tensor = self.tensor(index)
        if tensor is None or tensor.data is None or (tensor.quantization is not None and "float" in tensor.dtype):
            return None
        return tensor.data.astype(np.float64) if tensor.quantization is None else dequantize(tensor.data, tensor.quantization)

    def size(self, index: int, axis: int, number: Number) -> int:
        """A size of input `index`; 1 where its rank is not known."""
        shape = self.shape(index)
        return number(shape[axis]) if shape is not None and -len(shape) <= axis < len(shape) else 1


#: Between which values results lie.
Bounds = Callable[[Operands], Interval]
#: Which values the operator takes: what it says of none is free.
Domain = Callable[[Operands, Number], Iterable[Demand]]
#: Which values of its inputs give results within an interval, where all but one of them are constants.
Preimage = Callable[[Operands, Interval], Iterable[Demand]]
#: Pairs of sizes of the inputs that are one number.
MatchingSizes = Callable[[Operands], Iterator[tuple[int | str, int | str]]]


def hull(intervals: Iterable[Interval]) -> Interval:
    """The smallest interval that holds all; any value if there are none."""
    found = list(intervals)
    return (min(low for low, _ in found), max(high for _, high in found)) if found else ANY


def any_value(operands: Operands) -> Interval:
    """The function may give any value."""
    return ANY


def fixed_bounds(low: float, high: float = math.inf) -> Bounds:
    """The function's values lie between two numbers, whatever its data are."""
    return lambda operands: (low, high)


def within_data(operands: Operands) -> Interval:
    """Between the smallest and the largest of the data."""
    return hull(operands.data)


def within_data_or_zero(operands: Operands) -> Interval:
    """Likewise, with the zero of padding."""
    return hull([*operands.data, (0.0, 0.0)])


def of_positive_data(least: float = POSITIVE) -> Domain:
    """The function is one of data from `least` on. Quantizations say by themselves what quantized data are."""

    def domain(operands: Operands, number: Number) -> Iterator[Demand]:
        tensor = operands.tensor(0)
        if tensor is not None and not tensor.is_quantized:
            yield 0, least, math.inf

    return domain


def without_zero_bias(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    """A bias of zeros adds nothing."""
    bias = graph.constant(op.inputs[2]) if op.has(2) else None
    return op if bias is None or bias.any() else replace(op, inputs=op.inputs[:2])


def as_reduction(kind: str) -> Callable[[Graph, Op, dict[str, Tensor]], Op]:
    """Global pooling is a reduction of all spatial dimensions."""

    def canonical(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
        rank = graph[op.inputs[0]].rank
        if rank is None:
            return op
        axes = np.array(spatial_axes(op, rank))
        return op.derive(kind, (op.inputs[0], _constant(graph, f"{op.name}/axes", axes, tensors)), op.outputs, keepdims=1)

    return canonical


def with_positive_axes(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    """The axes of a reduction in rising order, counted from the first."""
    rank = graph[op.inputs[0]].rank
    axes = graph.constant(op.inputs[1]) if op.has(1) else None
    if rank is None or axes is None:
        return op
    return op.with_input(1, _constant(graph, f"{op.name}/axes", np.sort(axes % rank), tensors))


def with_sizes(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    """A Reshape to the sizes that the result has, -1 for one that is known only at run time."""
    shape = graph[op.name].shape
    if shape is None or sum(isinstance(size, str) for size in shape) > 1:
        return op
    sizes = np.array(reshape_sizes(shape))
    return op.derive("Reshape", (op.inputs[0], _constant(graph, f"{op.name}/sizes", sizes, tensors)), op.outputs)


def with_last_axis(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    """The last axis as -1."""
    return op.with_attributes(axis=-1) if op["axis"] + 1 in (0, graph[op.inputs[0]].rank) else op


def _constant(graph: Graph, wanted: str, values: Array, tensors: dict[str, Tensor]) -> str:
    name = graph.names(tensors).fresh(wanted)
    tensors[name] = Tensor(name, "int64", values.shape, values.astype(np.int64))
    return name


#: How often the body of one loop runs, at most: a file can ask for 2**63 turns.
MOST_TURNS = 100_000


class Running:
    """An operator that is being run. `calls` are its functions by the attribute, of which `body` runs one on stored values."""

    def __init__(self, graph: Graph, op: Op, calls: dict[str, FunctionCall], body: Callable[[str, Sequence[Any]], list[Array]]) -> None:
        self.graph, self.op, self.calls, self.body = graph, op, calls, body

    def stack_outputs(self, index: int, values: list[Array], axis: int) -> Array:
        """Output `index` of the body of a loop at each turn, stacked along an axis; without turns, dynamic sizes are 0."""
        if values:
            return np.stack(values, axis)
        inner = self.graph.functions[self.calls["body"].function]
        tensor = inner[inner.outputs[index]]
        sizes = [size if isinstance(size, int) else 0 for size in tensor.shape or ()]
        sizes.insert(axis if axis >= 0 else len(sizes) + 1 + axis, 0)
        return np.zeros(sizes, numpy_dtype(tensor.dtype))

    def turn(self, number: int) -> int:
        """The number of the turn, if so many are run."""
        if number >= MOST_TURNS:
            raise UnsupportedError(
                f"it runs for more than {MOST_TURNS:,} iterations", where=f"{self.op.source} {self.op}".strip(), rule="too-many-iterations"
            )
        return number
