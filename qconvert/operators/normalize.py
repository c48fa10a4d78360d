"""Normalizations: data shifted and scaled by statistics that are given or are their own; functions of all elements along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from qconvert.arithmetic import saturate, softmax_steps
from qconvert.arithmetic.storage import Array, Quantization
from qconvert.graph.schema import Op
from qconvert.operators.attributes import DATA_FORMAT, AttributeSpec, along_axis, choice, has, integer, number
from qconvert.operators.call import Call, Function, channels_first, channels_last, with_kernel
from qconvert.operators.kind import Kind
from qconvert.operators.properties import (
    ALONG_AXIS,
    DECIDES,
    UNLESS_ALONG,
    Bounds,
    Operands,
    Samples,
    any_value,
    fixed_bounds,
    with_last_axis,
)
from qconvert.operators.sizes import ShapeContext, Shapes, Size, broadcast, channel_count, failure, is_compatible, unify_sizes

Axes = tuple[int, ...]
#: Data as they are standardized, over which axes, and the shape that they have before.
Grouped = tuple[Array, Axes, tuple[int, ...]]
Group = Callable[[Call], Grouped]


def _per_channel(op: Op, s: ShapeContext) -> Shapes:
    """The shape of the data; every parameter is a list of one value a channel, and groups divide the channels."""
    shape = s.known_shape(0)
    channels = shape[0] if len(shape) == 1 else channel_count(op, shape) if shape else 0
    groups = int(op["num_groups"]) if "num_groups" in op.attributes else 1
    if not shape or groups < 1 or (isinstance(channels, int) and channels % groups):
        raise failure(op, f"{groups} groups do not divide the channels of data of shape {shape}", rule="groups-do-not-divide")
    for index in range(1, len(op.inputs)):
        sizes = s.shape(index)
        if sizes is not None and (len(sizes) != 1 or unify_sizes(op, [channels, *sizes], "channels and parameters") is None):
            raise failure(op, f"parameters of shape {sizes} are not a vector", rule="wrong-rank")
    return [shape]


def _matching_last(operands: Operands) -> Iterator[tuple[Size, Size]]:
    """The last sizes of the data are those of the scale."""
    data, scale = operands.shape(0), operands.shape(1)
    if data and scale:
        yield from zip(data[-len(scale) :], scale, strict=False)


def _from_axis(op: Op, s: ShapeContext) -> Shapes:
    """The shape of the data; scale and bias broadcast to it."""
    (shape,) = along_axis(op, s)
    for index in range(1, len(op.inputs)):
        sizes = s.shape(index) if s.has(index) else ()
        full = None if shape is None or sizes is None else broadcast(op, [shape, sizes])
        if not is_compatible(full, shape):
            raise failure(op, f"parameters of shape {sizes} do not broadcast to data of shape {shape}", rule="shape-mismatch")
    return [shape]


def _standardize(x: Array, axes: Axes, epsilon: float) -> Array:
    """x without its mean over some axes, and divided by its standard deviation (of the population) over them."""
    below = x - x.mean(axis=axes, keepdims=True)
    return np.asarray(below / np.sqrt(np.square(below).mean(axis=axes, keepdims=True) + epsilon))


def _bound_standardize(x: Array, axes: Axes, epsilon: float) -> Array:
    """By how much _standardize() in float32 may be off.

    The mean of n elements is off by (n + 4) * eps * mean of |x| (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), and
    so is each element less it. Where the elements are nearly equal, and epsilon is as small as BERT's 1e-12, little else is left, and the
    division by the deviation makes it large.
    """
    below = x - x.mean(axis=axes, keepdims=True)
    deviation = np.sqrt(np.square(below).mean(axis=axes, keepdims=True) + epsilon)
    off = (math.prod(x.shape[axis] for axis in axes) + 4) * 2.0**-23 * np.abs(x).mean(axis=axes, keepdims=True)
    return np.asarray(off / deviation * (1 + np.abs(below) / deviation))


def _standardized(group: Group) -> Function:
    """The meaning of a kind that standardizes its data, for parameters that broadcast to (…, channels)."""

    def evaluate(call: Call) -> Array:
        x, axes, shape = group(call)
        y = _standardize(x, axes, call["epsilon"]).reshape(shape) * call.values(1)
        return _with_layout(call, np.asarray(y + call.values(2) if call.has(2) else y))

    return evaluate


def _cancelled(group: Group) -> Callable[[Call], Array]:
    """By how much float32 may make the result of such a kind off."""

    def bound(call: Call) -> Array:
        x, axes, shape = group(call)
        return _with_layout(call, _bound_standardize(x, axes, call["epsilon"]).reshape(shape) * np.abs(call.values(1)))

    return bound


def _with_layout(call: Call, values: Array) -> Array:
    return channels_first(call, values) if "data_format" in call.op.attributes else values


def batch_normalization(call: Call) -> Array:
    """BatchNormalization of ONNX in inference: (X, scale, B, mean, var), one value a channel."""
    scale, bias, mean, variance = (call.values(index) for index in range(1, 5))
    x = channels_last(call, call.values()) if call.raw().ndim > 1 else call.values()
    y = (x - mean) / np.sqrt(variance + call["epsilon"]) * scale + bias
    return channels_first(call, y) if y.ndim > 1 else np.asarray(y)


def _instances(call: Call) -> Grouped:
    """Of InstanceNormalization of ONNX, (X, scale, B): each channel of each instance."""
    x = channels_last(call, call.values())
    return x, tuple(range(1, x.ndim - 1)), x.shape


def _groups(call: Call) -> Grouped:
    """Of GroupNormalization of ONNX (opset 21), (X, scale, B): each group of channels of each instance, scale and B one a channel."""
    x, groups = channels_last(call, call.values()), call["num_groups"]
    grouped = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    return grouped, (*range(1, x.ndim - 1), x.ndim), x.shape


def _layers(call: Call) -> Grouped:
    """Of LayerNormalization of ONNX, (X, scale[, B]): the axes from `axis` to the last."""
    x = call.values()
    return x, tuple(range(call["axis"] % x.ndim, x.ndim)), x.shape


def rms_normalization(call: Call) -> Array:
    """RMSNormalization of ONNX (opset 23): x over its root mean square over the axes from `axis` to the last, times a scale."""
    x = call.values()
    axes = tuple(range(call["axis"] % x.ndim, x.ndim))
    return np.asarray(x / np.sqrt(np.square(x).mean(axis=axes, keepdims=True) + call["epsilon"]) * call.values(1))


_BEFORE_AXIS = Samples(lambda op, index, axis, rank: axis < op["axis"] % rank)


def softmax(call: Call) -> Array:
    """exp(beta * x) over its sum along the axis."""
    axis, x = call["axis"], call["beta"] * call.values()
    raised = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(raised / raised.sum(axis=axis, keepdims=True))


def _softmax_by_tflite(call: Call, given: Quantization, output: Quantization) -> Array:
    scale = given.scale[0] * np.float32(call["beta"])
    steps = softmax_steps(call.raw().astype(np.int64), scale, output.scale[0], call["axis"])
    return saturate(steps + output.point, call.results[0].dtype)


def hardmax(call: Call) -> Array:
    """Hardmax of ONNX: 1 at the first largest element along the axis, else 0."""
    values, axis = call.raw(), int(call["axis"])
    found = np.zeros_like(values)
    if values.size:
        np.put_along_axis(found, np.argmax(values, axis, keepdims=True), 1, axis)
    return found


def log_softmax(call: Call) -> Array:
    """The logarithm of Softmax."""
    axis, x = call["axis"], call.values()
    below = x - x.max(axis=axis, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(axis=axis, keepdims=True)))


def lp_normalization(call: Call) -> Array:
    """LpNormalization of ONNX: x over its norm along the axis; a vector of zeros stays."""
    x, order = call.values(), call["p"]
    norm = (np.abs(x) ** order).sum(axis=call["axis"], keepdims=True) ** (1 / order)
    return np.asarray(x / np.where(norm == 0, 1, norm))


def _along_axis(name: str, evaluate: Function, bounds: Bounds, *, rule: str = "real", types: str = "",
                **attributes: AttributeSpec) -> Kind:  # fmt: skip
    return Kind(name, samples=UNLESS_ALONG, bounds=bounds, canonical=with_last_axis, shape=along_axis, rule=rule, evaluate=evaluate,
                layout=ALONG_AXIS, types=types, attributes=has(axis=integer(-1), **attributes))  # fmt: skip


KINDS = (
    # Of inference.
    Kind(
        "BatchNormalization",
        "data parameter parameter parameter parameter",
        bounds=any_value,
        shape=_per_channel,
        evaluate=batch_normalization,
        layout=DECIDES,
        attributes=has(DATA_FORMAT, epsilon=number(1e-5)),
    ),
    Kind(
        "InstanceNormalization",
        "data parameter parameter",
        bounds=any_value,
        shape=_per_channel,
        evaluate=_standardized(_instances),
        cancellation=_cancelled(_instances),
        layout=DECIDES,
        attributes=has(DATA_FORMAT, epsilon=number(1e-5)),
    ),
    # One scale and bias for each channel (opset 21).
    Kind(
        "GroupNormalization",
        "data parameter parameter",
        bounds=any_value,
        shape=_per_channel,
        evaluate=_standardized(_groups),
        cancellation=_cancelled(_groups),
        layout=DECIDES,
        attributes=has(DATA_FORMAT, num_groups=integer(), epsilon=number(1e-5)),
    ),
    Kind(
        "LayerNormalization",
        "data parameter parameter?",
        samples=_BEFORE_AXIS,
        bounds=any_value,
        matching_sizes=_matching_last,
        shape=_from_axis,
        evaluate=_standardized(_layers),
        cancellation=_cancelled(_layers),
        attributes=has(axis=integer(-1), epsilon=number(1e-5)),
    ),
    Kind(
        "RMSNormalization",
        "data parameter",
        samples=_BEFORE_AXIS,
        bounds=any_value,
        shape=_from_axis,
        evaluate=rms_normalization,
        attributes=has(axis=integer(-1), epsilon=number(1e-5)),
    ),
    _along_axis(
        "Softmax",
        with_kernel(softmax, _softmax_by_tflite),
        fixed_bounds(0.0, 1.0),
        beta=number(1.0),
        arithmetic=choice(("", "tflite_softmax"), ""),
    ),
    _along_axis("LogSoftmax", log_softmax, fixed_bounds(-math.inf, 0.0)),
    _along_axis("Hardmax", hardmax, fixed_bounds(0.0, 1.0), rule="plain", types="T -> T"),
    Kind(
        "LpNormalization",
        samples=UNLESS_ALONG,
        bounds=fixed_bounds(-1.0, 1.0),
        shape=along_axis,
        evaluate=lp_normalization,
        layout=ALONG_AXIS,
        attributes=has(axis=integer(-1), p=integer(2)),
    ),
)
