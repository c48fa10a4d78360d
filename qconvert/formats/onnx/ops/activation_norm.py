"""Activation functions, and normalizations along an axis or by statistics that are given or are the data's own."""

from __future__ import annotations

import math

import numpy as np

from qconvert.arithmetic import exponential_table
from qconvert.arithmetic.storage import REALS
from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.ops.quantize import dequantize_with_scale, write_line
from qconvert.formats.onnx.ops.reduce import store_steps
from qconvert.formats.onnx.ops.same_named import write_named
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.formats.onnx.values import axes, place_of
from qconvert.graph import Op, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.graph.activations import clip_range, is_exact
from qconvert.graph.metadata import source_opset
from qconvert.kernels.litert.forms import distribution, hard_swish_form
from qconvert.operators import kind_of
from qconvert.operators.sizes import reshape_sizes
from qconvert.rewriting.lowering import Scope, conditions, since


def write_leaky_relu(op: Op, b: Builder) -> None:
    """LeakyRelu, as a kernel rounds it if the operator asks for it."""
    if not write_line(op, b):
        b.compute(op)


def write_clip(op: Op, b: Builder) -> None:
    """Relu and Clip: a Clip of stored integers where input and output share one quantization, else of float values."""
    bounds, data, result = kind_of(op).limits(op, b.graph.constant), b.operand(op), b.result(op)
    is_moved = data.is_quantized and data.shares_quantization(result) and result.dtype in ("int8", "uint8")
    if is_moved and bounds is not None and is_exact(bounds, result):
        b.clip_stored(b.stored_value(data.name), result, *clip_range(result, bounds))
        return
    values = [b.float_value(data.name), *(b.stored_value(name) for name in op.inputs[1:])]
    b.compute(op, values)


@conditions(lambda op, scope: "" if op["arithmetic"] else since(14)(op, scope))
def write_hard_swish(op: Op, b: Builder) -> None:
    """HardSwish, with the integers of a kernel as its two parts on another scale and slope; see quantize.write_line()."""
    found, data = hard_swish_form(b.graph, op) if op["arithmetic"] else None, b.operand(op)
    if found is None:
        b.compute(op)
        return
    value = dequantize_with_scale(b, data, found.scale)
    gate = b.node("HardSigmoid", [value], hint=f"{op.outputs[0]}/gate", alpha=found.alpha, beta=found.beta)
    b.compute(op, [value, *gate], "Mul")


def _lacks_swish(op: Op, scope: Scope) -> str:
    """onnxruntime has no kernel of Swish as of 1.32, so that only what has the operator already keeps it."""
    opset = source_opset(scope.metadata)
    return since(24)(op, scope) or ("" if opset is not None and opset >= 24 else "onnxruntime has no kernel of it")


def _lacks_gelu(op: Op, scope: Scope) -> str:
    """Older sources may have onnxruntime's own operators, which compute the same bits as the Gelu of opset 20."""
    opset = source_opset(scope.metadata)
    return "" if opset is not None and opset < 20 else since(20)(op, scope)


@conditions(_lacks_gelu)
def write_gelu(op: Op, b: Builder) -> None:
    """Gelu; below opset 20 onnxruntime's own operators, where they may be the source's."""
    if b.opset >= 20:
        b.compute(op)
    else:
        b.compute(op, op_type="FastGelu" if op["approximate"] == "tanh" else "Gelu", domain="com.microsoft")


def _write_tflite_softmax(op: Op, b: Builder, data: Tensor, result: Tensor) -> None:
    """TFLite's SOFTMAX of bytes (arithmetic.softmax_steps()): CumSum is the node that adds one element after the other."""
    at, axis = place_of(op, b), int(op["axis"])
    assert data.quantization is not None and result.quantization is not None
    stored = at.stored(data.name, "int32")
    table = at.constant(exponential_table(data.quantization.scale[0] * np.float32(op["beta"])))
    found = table.then("Gather", stored.reduce("ReduceMax", axis) - stored)
    total = found.then("CumSum", np.array(axis, np.int64)).then("Gather", axes(-1), axis=axis)
    # Both sides are doubled, since onnxruntime makes x / y of x * (1 / y), which rounds once (DivMulFusion).
    step = result.quantization.scale[0]
    inverse = np.float32(1 / step) / total if np.frexp(step)[0] == 0.5 else 2 / (total * (2 * step))
    below_half = np.nextafter(np.float32(0.5), np.float32(0))  # half takes 0.49999997 up too
    steps, point = found * inverse + below_half, result.quantization.point
    store_steps(op, steps.floor() + point if point else steps)  # a cast of positive values takes the floor


@conditions(lambda op, scope: "" if op["beta"] == 1 or op["arithmetic"] else "Softmax has no beta")
def write_softmax(op: Op, b: Builder) -> None:
    """Softmax; with the integers of a kernel, or in float64 where onnxruntime's integer kernel would be wrong."""
    if op["arithmetic"] and distribution(b.graph, op):
        _write_tflite_softmax(op, b, b.operand(op), b.result(op))
        return
    b.compute(op, in_float64=bool(b.kernel_fault(op)))


def read_clip(r: Reading) -> None:
    """Clip with known bounds: attributes before opset 11, inputs since. Bounds of labelled integers become float values."""
    if r.version < 11:
        if r.tensor(0).dtype not in REALS:
            unknown = r.tensor(0).dtype == "unknown"
            raise (
                NotCoveredError("data of an unknown type")
                if unknown
                else r.invalid(f"clips {r.tensor(0).dtype}, before opset 11", rule="opset-too-old")
            )
        dtype = numpy_dtype(r.tensor(0).dtype)
        given = (r.attribute("min"), r.attribute("max"))
        limits = [None if value is None else np.array(value, dtype) for value in given]
        names = ["" if limit is None else r.const(limit, hint) for limit, hint in zip(limits, ("lowest", "highest"), strict=True)]
    else:
        limits = [r.constant(index) for index in (1, 2)]
        if any(r.has(index) and (limit is None or limit.size != 1) for index, limit in zip((1, 2), limits, strict=True)):
            raise NotCoveredError("bounds that are computed at run time")
        names = [r.fold_input(index) if r.has(index) else "" for index in (1, 2)]
    tensor = r.tensor(0)
    if tensor.quantization is not None:
        if any(limit is not None and limit.dtype.kind not in "iu" for limit in limits):
            raise r.invalid(f"its bounds are not integers, but {tensor.name!r} is {tensor.dtype}", rule="operand-types")
        _read_stored_clip(r, tensor, tensor.quantization, [None if limit is None else int(limit.reshape(-1)[0]) for limit in limits])
    else:
        r.emit("Clip", [r.input(0), *names])


def _read_stored_clip(r: Reading, tensor: Tensor, q: Quantization, limits: list[int | None]) -> None:
    """Clip of stored integers: nothing if it leaves the whole type, integers if they are known, else a Clip between float values.

    The bounds are scale * (bound - zero_point) in float32, which come back as the same integers when divided by the scale.
    """
    low, high = integer_range(tensor.dtype)
    lowest, highest = low if limits[0] is None else limits[0], high if limits[1] is None else limits[1]
    data = r.constant(0)
    if lowest <= low and highest >= high:
        r.emit("Identity", [tensor.name])
    elif data is not None:
        kept = np.minimum(np.maximum(data, data.dtype.type(lowest)), data.dtype.type(highest))
        r.emit("Identity", [r.const(kept, "clipped", q)])
    elif not q.is_per_tensor:
        raise NotCoveredError("bounds of integers with several scales")
    else:
        steps = [None if limit is None else np.float32(limit - q.point) for limit in limits]
        bounds = [
            "" if n is None else r.const(np.float32(n * q.scale[0]), hint) for n, hint in zip(steps, ("lowest", "highest"), strict=True)
        ]
        r.emit("Clip", [tensor.name, *bounds])


def read_gelu(r: Reading) -> None:
    """Gelu; in onnxruntime's own domain FastGelu is the tanh approximation, and it and BiasGelu may add a bias first."""
    data = [r.input(0)]
    if r.has(1):
        data = [r.emit_inner("Add", [*data, r.input(1)], "biased")]
    r.emit("Gelu", data, r.outputs[:1], approximate="tanh" if r.op_type == "FastGelu" else r.attribute("approximate", "none"))


def read_softmax(r: Reading) -> None:
    """Softmax, LogSoftmax and Hardmax. Before opset 13 they work on a matrix, whose rows are all dimensions from the axis on."""
    if r.version >= 13:
        r.emit(r.op_type, **r.own_attributes())
        return
    rank = r.rank()
    axis = r.axis(r.attribute("axis", 1), rank) if rank else 0
    if axis == rank - 1:
        r.emit(r.op_type, axis=axis)
        return
    shape = r.tensor(0).shape or ()
    sizes = reshape_sizes(shape)
    if 0 in sizes:
        raise NotCoveredError(f"no elements in the shape {shape}")
    is_known = sizes.count(-1) <= 1
    length = -1 if -1 in sizes[axis:] else math.prod(sizes[axis:])
    rows = r.list64([*(sizes[:axis] if is_known else [0] * axis), length], "rows")  # 0: the size that the data has
    curve = r.emit_inner(r.op_type, [r.emit_inner("Reshape", [r.input(0), rows], "flat")], "result", axis=axis)
    if is_known:
        back = r.list64(sizes, "sizes")
    else:
        back = r.emit_inner("Shape", [r.input(0)], "shape", "int64")
    r.emit("Reshape", [curve, back], dtype=r.tensor(0).dtype)


#: Where a rank is unknown, an axis counted from the end is believed up to here: numpy has no more.
_MOST_AXES = 64


def write_group_normalization(op: Op, b: Builder) -> None:
    """GroupNormalization (opset 21); below, an InstanceNormalization of the groups, scaled channel by channel."""
    epsilon, groups = float(op["epsilon"]), op["num_groups"]
    if b.opset >= 21:
        b.compute(op)
        return
    data = b.operand(op)
    if data.rank is None:
        raise b.unsupported_error(op, f"data of unknown rank below opset 21, in opset {b.opset},", rule="unknown-rank")
    at, dtype = place_of(op, b), _real_dtype(op, b)
    x, scale, bias = (at.value(name, dtype) for name in b.float_values(op))
    ones, zeros = (at.constant(np.full(groups, value), dtype) for value in (1, 0))
    even = x.then("Reshape", axes(0, groups, -1)).then("InstanceNormalization", ones, zeros, epsilon=epsilon)
    back = even.then("Reshape", x.then("Shape", dtype="int64"))
    factor, offset = (value.then("Reshape", axes(-1, *[1] * (data.rank - 2))) for value in (scale, bias))
    b.finish(op, (back * factor + offset).name)


def _real_dtype(op: Op, b: Builder) -> str:
    """The type of the float values of an operator's data.

    Raises:
        UnsupportedError: they are plain integers, of which constants next to them would lose their fractions.
    """
    tensor = b.operand(op)
    if not tensor.is_quantized and "float" not in tensor.dtype:
        raise b.unsupported_error(op, f"data of {tensor.dtype}", rule="operand-types")
    return "float32" if tensor.is_quantized else tensor.dtype


def write_layer_normalization(op: Op, b: Builder) -> None:
    """LayerNormalization (opset 17) and RMSNormalization (opset 23); below, their definitions."""
    axis, epsilon = op["axis"], float(op["epsilon"])
    if b.opset >= (17 if op.kind == "LayerNormalization" else 23):
        b.compute(op)
        return
    data = b.operand(op)
    if data.rank is None and not -_MOST_AXES <= axis < 0:
        raise b.unsupported_error(op, f"data of unknown rank in opset {b.opset}", rule="unknown-rank")
    at, dtype = place_of(op, b), _real_dtype(op, b)
    x, *operands = (at.value(name, dtype) for name in b.float_values(op))
    along = range(axis - (data.rank or 0) if axis >= 0 else axis, 0)
    if op.kind == "LayerNormalization":
        x = x - x.reduce("ReduceMean", *along)
    value = x / ((x * x).reduce("ReduceMean", *along) + epsilon).then("Sqrt")
    for kind, operand in zip(("Mul", "Add"), operands, strict=False):
        value = value.then(kind, operand) if operand.name else value
    b.finish(op, value.name)


def read_batch_normalization(r: Reading) -> None:
    """BatchNormalization of inference, with one mean and variance a channel."""
    r.require_only(training_mode=0, spatial=1)
    _emit_without_statistics(r)


def _emit_without_statistics(r: Reading) -> None:
    if any(r.is_used(index) for index in range(1, len(r.outputs))):
        raise NotCoveredError("statistics as outputs")
    r.emit(r.op_type, outputs=r.outputs[:1], **r.own_attributes())


def read_group_normalization(r: Reading) -> None:
    """GroupNormalization: before opset 21 it had one scale for each group, not for each channel."""
    if r.version < 21:
        raise NotCoveredError("scales for each group")
    r.require_only(stash_type=1)
    r.emit("GroupNormalization", **r.own_attributes())


def read_layer_normalization(r: Reading) -> None:
    """LayerNormalization and RMSNormalization, without the statistics as outputs.

    onnxruntime has a LayerNormalization of its own under that name in older opsets.
    """
    if r.version < 17:
        raise NotCoveredError("an opset without LayerNormalization")
    r.require_only(stash_type=1)
    _emit_without_statistics(r)


WRITERS: Writers = {
    "GroupNormalization": write_group_normalization,
    "LayerNormalization": write_layer_normalization,
    "RMSNormalization": write_layer_normalization,
    "LeakyRelu": write_leaky_relu,
    "Relu": write_clip,
    "Clip": write_clip,
    "HardSwish": write_hard_swish,
    "Mish": conditions(since(18))(write_named),
    "Swish": conditions(_lacks_swish)(write_named),
    "Gelu": write_gelu,
    "Softmax": write_softmax,
}

READERS: Readers = {
    "BatchNormalization": read_batch_normalization,
    "GroupNormalization": read_group_normalization,
    "LayerNormalization": read_layer_normalization,
    "RMSNormalization": read_layer_normalization,
    "Clip": read_clip,
    "Gelu": read_gelu,
    "com.microsoft.Gelu": read_gelu,
    "com.microsoft.FastGelu": read_gelu,
    "com.microsoft.BiasGelu": read_gelu,
    "Softmax": read_softmax,
    "LogSoftmax": read_softmax,
    "Hardmax": read_softmax,
}
