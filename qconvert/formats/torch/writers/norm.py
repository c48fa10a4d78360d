"""Normalizations, softmax and reductions, in float."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from qconvert.formats.torch.program import Node
from qconvert.formats.torch.writers.kernels import write_kernel_reduction
from qconvert.formats.torch.writing import Builder, WriteFunction
from qconvert.graph import Op
from qconvert.rewriting.lowering import conditions


def write_layer_norm(op: Op, b: Builder) -> None:
    """LayerNormalization over the axes from `axis` on."""
    shape = b.shape(op)
    sizes = shape[op["axis"] % len(shape) :]
    if op.outputs[1:]:
        raise b.unsupported_error(op, "further results")
    first = len(shape) - len(sizes)
    known = [b.size_at(op, first + place) for place in range(len(sizes))]
    names = op.input(1), op.input(2)
    if all(not name or b.tensor(name).shape == tuple(sizes) for name in names):
        parameters = [b.float_value(name) for name in names]
        b.finish(op, b.aten("layer_norm", b.float_input(op), known, *parameters, float(op["epsilon"])))
        return
    node = b.aten("layer_norm", b.float_input(op), known, None, None, float(op["epsilon"]))
    for operator, name in zip(("mul.Tensor", "add.Tensor"), names, strict=True):  # parameters that are broadcast
        node = b.aten(operator, node, b.float_value(name)) if name else node
    b.note_operator()
    b.finish(op, node)


def write_instance_norm(op: Op, b: Builder) -> None:
    """InstanceNormalization."""
    data, weight, bias = b.float_values(op)
    b.finish(op, b.aten("instance_norm", data, weight, bias, None, None, True, 0.1, float(op["epsilon"]), False))


def write_group_norm(op: Op, b: Builder) -> None:
    """GroupNormalization."""
    data, weight, bias = b.float_values(op)
    b.finish(op, b.aten("group_norm", data, op["num_groups"], weight, bias, float(op["epsilon"])))


def write_softmax(operator: str) -> WriteFunction:
    """Softmax and LogSoftmax."""

    def write(op: Op, b: Builder) -> None:
        if op["axis"] < 0:  # a reader counts axes from the front
            b.note_operator()
        b.finish(op, b.aten(operator, b.float_input(op), op["axis"]))

    return write


def write_reduction(operator: str, finish_integers: Callable[[Op, Builder, Node], Node] | None = None) -> WriteFunction:
    """A reduction over constant axes, which none stated stand for all.

    Args:
        operator: of aten.
        finish_integers: makes the result of the sum of plain integers in int64; None where the operator takes them itself.
    """

    def write(op: Op, b: Builder) -> None:
        data = b.operand(op)
        if finish_integers is not None and "int" in data.dtype and not data.is_quantized:
            total = b.aten("sum.dim_IntList", b.stored_value(data.name), axes_of(op, b), bool(op["keepdims"]))
            node = finish_integers(op, b, total)
            b.note_operator()
            b.store_indices(op.outputs[0], node)
        elif not write_kernel_reduction(op, b, axes_of(op, b)):
            b.note_operator()  # its axes keep their name
            b.finish(op, b.aten(operator, b.float_input(op), axes_of(op, b), bool(op["keepdims"])))

    return write


def _divide_integers(op: Op, b: Builder, total: Node) -> Node:
    """The mean of plain integers, which is cut off."""
    sizes = b.known_sizes(op, [b.shape(op)[axis] for axis in axes_of(op, b)], "the mean of an unknown number of integers")
    return b.aten("div.Tensor_mode", total, math.prod(sizes), rounding_mode="trunc")


def axes_of(op: Op, b: Builder) -> list[int]:
    """The axes of a reduction, from 0 on; all where none are stated."""
    rank = b.rank(op)
    stated = b.integers(op, 1) if op.has(1) else []
    return [axis % max(rank, 1) for axis in stated] or list(range(rank))


def write_arg(operator: str) -> WriteFunction:
    """ArgMax and ArgMin: the first of equal ones."""

    def write(op: Op, b: Builder) -> None:
        b.store_indices(op.outputs[0], b.aten(operator, b.float_input(op), op["axis"], bool(op["keepdims"])))

    return write


def write_product(op: Op, b: Builder) -> None:
    """ReduceProd, one axis after the other."""
    node = b.float_input(op)
    for axis in sorted(axes_of(op, b), reverse=True):
        node = b.aten("prod.dim_int", node, axis, bool(op["keepdims"]))
    dtype = b.result(op).dtype
    b.note_operator()
    b.finish(op, b.cast(node, dtype) if "int" in dtype and not b.result(op).is_quantized else node)


def write_cumulative(op: Op, b: Builder) -> None:
    """CumSum and CumProd, in reverse too; results of integers stay in their type. An exclusive sum is the sum less the element."""
    axis, node = op["axis"] % b.rank(op), b.float_input(op)
    node = b.aten("flip", node, [axis]) if op["reverse"] else node
    tensor = b.result(op)
    kind = {} if tensor.is_quantized else {"dtype": b.dtype(tensor.dtype)}
    total = b.aten(op.kind.lower(), node, axis, **kind)
    total = total - node if op["exclusive"] else total
    b.note_operator()
    b.finish(op, b.aten("flip", total, [axis]) if op["reverse"] else total)


def write_local_response(op: Op, b: Builder) -> None:
    """LRN: sums of squares of neighbouring channels."""
    node, size, rank = b.float_input(op), op["size"], b.rank(op)
    before = (size - 1) // 2
    squares = b.aten("constant_pad_nd", b.aten("square", node), [*[0] * (2 * rank - 4), before, size - 1 - before], 0.0)
    (count,) = b.known_sizes(op, b.shape(op)[1:2], "channels of unknown number")
    total = b.aten("slice.Tensor", squares, 1, 0, count)
    for place in range(1, size):
        total = total + b.aten("slice.Tensor", squares, 1, place, place + count)
    base = total * (float(op["alpha"]) / size) + float(op["bias"])
    b.note_operator()
    b.finish(op, node / b.aten("pow.Tensor_Scalar", base, float(op["beta"])))


WRITERS: Mapping[str, WriteFunction] = {
    "BatchNormalization": lambda op, b: b.finish(op, b.aten("batch_norm", *b.float_values(op), False, 0.1, float(op["epsilon"]), False)),
    "LayerNormalization": write_layer_norm,
    "InstanceNormalization": write_instance_norm,
    "GroupNormalization": write_group_norm,
    "Softmax": conditions(lambda op, scope: "" if op["beta"] == 1 else "Softmax has no beta")(write_softmax("softmax.int")),
    "LogSoftmax": write_softmax("log_softmax.int"),
    "ReduceMean": write_reduction("mean.dim", _divide_integers),
    "ReduceSum": write_reduction("sum.dim_IntList", lambda op, b, total: total),
    "ReduceMax": write_reduction("amax"),
    "ReduceMin": write_reduction("amin"),
    "ReduceAll": write_reduction("all.dims"),
    "ReduceAny": write_reduction("any.dims"),
    "ReduceLogSumExp": write_reduction("logsumexp"),
    "ReduceProd": write_product,
    "CumSum": write_cumulative,
    "CumProd": conditions(lambda op, scope: "cumprod has no exclusive form" if op["exclusive"] else "")(write_cumulative),
    "LRN": write_local_response,
    "ArgMax": write_arg("argmax"),
    "ArgMin": write_arg("argmin"),
}
