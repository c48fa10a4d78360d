"""Activation functions and normalizations along an axis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.arithmetic import exponential_table
from qconvert.arithmetic.storage import REALS
from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.ops.elementwise import read_same_named, write_same_named
from qconvert.formats.onnx.ops.quantize import dequantize_with_scale, write_line
from qconvert.formats.onnx.ops.reduce import store_steps
from qconvert.formats.onnx.reading import NotCoveredError, ReadFunction, Reading
from qconvert.graph import Op, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.graph.activations import clip_range, is_exact
from qconvert.graph.metadata import source_opset
from qconvert.kernels.litert.forms import distribution, hard_swish_form
from qconvert.rewriting.lowering import Scope, conditions, since

__all__ = ["READERS", "WRITERS"]

#: Attributes of activations with one or two parameters, with ONNX's defaults.
_PARAMETERS: dict[str, dict[str, float]] = {
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "Celu": {"alpha": 1.0},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    "ThresholdedRelu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Shrink": {"lambd": 0.5, "bias": 0.0},
}


def write_leaky_relu(op: Op, b: Builder) -> None:
    """LeakyRelu, as a kernel rounds it if the operator asks for it."""
    if not write_line(op, b):
        write_parametric(op, b)


def write_clip(op: Op, b: Builder) -> None:
    """Relu and Clip: a Clip of stored integers where input and output share one quantization, else of float values."""
    limits = [b.graph.constant(name) if name else None for name in (*op.inputs[1:], "", "")[:2]]
    lower, upper = (None if v is None else float(v.reshape(-1)[0]) for v in limits)
    bounds = (0.0, None) if op.kind == "Relu" else (lower, upper)
    data, result = b.tensor(op.inputs[0]), b.tensor(op.outputs[0])
    if data.is_quantized and data.shares_quantization(result) and result.dtype in ("int8", "uint8") and is_exact(bounds, result):
        b.clip_stored(b.stored_value(data.name), result, *clip_range(result, bounds))
        return
    values = [b.float_value(data.name), *(b.stored_value(name) for name in op.inputs[1:])]
    b.compute(op, values)


def write_parametric(op: Op, b: Builder) -> None:
    """An activation with numbers as attributes."""
    attributes: dict[str, Any] = {name: float(op[name]) for name in _PARAMETERS[op.kind]}
    b.compute(op, **attributes)


@conditions(lambda op, scope: "" if op["arithmetic"] else since(14)(op, scope))
def write_hard_swish(op: Op, b: Builder) -> None:
    """HardSwish, with the integers of a kernel as its two parts on another scale and slope; see quantize.write_line()."""
    found, data = hard_swish_form(b.graph, op) if op["arithmetic"] else None, b.tensor(op.inputs[0])
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


@conditions(_lacks_swish)
def write_swish(op: Op, b: Builder) -> None:
    """Swish."""
    b.compute(op, op_type="Swish", alpha=float(op["alpha"]))


@conditions(since(18))
def write_mish(op: Op, b: Builder) -> None:
    """Mish."""
    b.compute(op)


def _has_own_gelu(metadata: Mapping[str, str]) -> bool:
    """Whether the source may have onnxruntime's own operators, which compute the same bits as the Gelu of opset 20."""
    opset = source_opset(metadata)
    return opset is not None and opset < 20


@conditions(lambda op, scope: "" if _has_own_gelu(scope.metadata) else since(20)(op, scope))
def write_gelu(op: Op, b: Builder) -> None:
    """Gelu; below opset 20 onnxruntime's own operators, where they may be the source's."""
    if b.opset >= 20:
        b.compute(op, op_type="Gelu", approximate=op["approximate"])
    else:
        b.compute(op, op_type="FastGelu" if op["approximate"] == "tanh" else "Gelu", domain="com.microsoft")


def real_dtype(op: Op, b: Builder) -> Any:
    """The numpy type of the float values of an operator's data.

    Raises:
        UnsupportedError: they are plain integers, of which constants next to them would lose their fractions.
    """
    tensor = b.tensor(op.inputs[0])
    if not tensor.is_quantized and "float" not in tensor.dtype:
        raise b.unsupported_error(op, f"data of {tensor.dtype}", rule="operand-types")
    return np.dtype(np.float32) if tensor.is_quantized else numpy_dtype(tensor.dtype)


def _write_tflite_softmax(op: Op, b: Builder, data: Tensor, result: Tensor) -> None:
    """TFLite's SOFTMAX of bytes (arithmetic.softmax_steps()): CumSum is the node that adds one element after the other."""
    hint, axis = result.name, int(op["axis"])
    assert data.quantization is not None and result.quantization is not None
    stored = b.cast(b.stored_value(data.name), "int32")
    below = b.node("Sub", [b.reduce("ReduceMax", stored, [axis]), stored])[0]
    table = exponential_table(data.quantization.scale[0] * np.float32(op["beta"]))
    found = b.node("Gather", [b.const(table, f"{hint}/exponentials"), below])[0]
    added = b.node("CumSum", [found, b.const(np.int64(axis), f"{hint}/axis")])[0]
    total = b.node("Gather", [added, b.const(np.array([-1], np.int64), f"{hint}/last")], axis=axis)[0]
    # Both sides are doubled, since onnxruntime makes x / y of x * (1 / y), which rounds once (DivMulFusion).
    divisor = b.node("Mul", [total, b.const(2 * result.quantization.scale[0], f"{hint}/scale")])[0]
    factor = b.node("Div", [b.const(np.float32(2), f"{hint}/two"), divisor])[0]
    shares = b.node("Mul", [found, factor])[0]
    below_half = np.nextafter(np.float32(0.5), np.float32(0))  # half takes 0.49999997 up too
    steps = b.node("Floor", b.node("Add", [shares, b.const(below_half, f"{hint}/half")]))[0]
    if point := int(result.quantization.zero_point[0]):
        steps = b.node("Add", [steps, b.const(np.float32(point), f"{hint}/point")])[0]
    store_steps(op, b, steps, np.float32)


@conditions(lambda op, scope: "" if op["beta"] == 1 or op["arithmetic"] else "Softmax has no beta")
def write_softmax(op: Op, b: Builder) -> None:
    """Softmax; with the integers of a kernel, or in float64 where onnxruntime's integer kernel would be wrong."""
    if op["arithmetic"] and distribution(b.graph, op):
        _write_tflite_softmax(op, b, b.tensor(op.inputs[0]), b.tensor(op.outputs[0]))
        return
    if b.kernel_fault(op):
        b.finish(op, b.node_in_float64("Softmax", b.float_values(op), f"{op.outputs[0]}/real_result", axis=int(op["axis"])))
    else:
        b.compute(op, op_type="Softmax", axis=int(op["axis"]))


def write_log_softmax(op: Op, b: Builder) -> None:
    """LogSoftmax."""
    b.compute(op, op_type="LogSoftmax", axis=int(op["axis"]))


def write_lp_normalization(op: Op, b: Builder) -> None:
    """LpNormalization."""
    b.compute(op, op_type="LpNormalization", axis=int(op["axis"]), p=int(op["p"]))


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
        steps = [None if limit is None else np.float32(limit - int(q.zero_point[0])) for limit in limits]
        bounds = [
            "" if n is None else r.const(np.float32(n * q.scale[0]), hint) for n, hint in zip(steps, ("lowest", "highest"), strict=True)
        ]
        r.emit("Clip", [tensor.name, *bounds])


def read_parametric(r: Reading) -> None:
    """An activation with numbers as attributes."""
    attributes: dict[str, Any] = {name: float(r.attribute(name, default)) for name, default in _PARAMETERS[r.op_type].items()}
    r.emit(r.op_type, **attributes)


def read_swish(r: Reading) -> None:
    """Swish."""
    r.emit("Swish", alpha=float(r.attribute("alpha", 1.0)))


def read_gelu(r: Reading) -> None:
    """Gelu; in onnxruntime's own domain FastGelu is the tanh approximation, and it and BiasGelu may add a bias first."""
    data = [r.input(0)]
    if r.has(1):
        data = r.emit("Add", [*data, r.input(1)], [r.intermediate("biased", r.tensor(0).dtype)], dtype=r.tensor(0).dtype)
    r.emit("Gelu", data, r.outputs[:1], approximate="tanh" if r.op_type == "FastGelu" else r.attribute("approximate", "none"))


def write_hardmax(op: Op, b: Builder) -> None:
    """Hardmax."""
    b.compute_stored(op, "Hardmax", axis=int(op["axis"]))


def read_softmax(r: Reading) -> None:
    """Softmax, LogSoftmax and Hardmax. Before opset 13 they work on a matrix, whose rows are all dimensions from the axis on."""
    if r.version >= 13:
        r.emit(r.op_type, axis=int(r.attribute("axis", -1)))
        return
    rank = r.rank()
    axis = r.axis(int(r.attribute("axis", 1)), rank) if rank else 0
    if axis == rank - 1:
        r.emit(r.op_type, axis=axis)
        return
    shape, dtype = r.tensor(0).shape or (), r.tensor(0).dtype
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    if 0 in sizes:
        raise NotCoveredError(f"no elements in the shape {shape}")
    is_known = sizes.count(-1) <= 1
    length = -1 if -1 in sizes[axis:] else math.prod(sizes[axis:])
    rows = r.const(np.array([*(sizes[:axis] if is_known else [0] * axis), length], np.int64), "rows")  # 0: the size that the data has
    flat = r.emit("Reshape", [r.input(0), rows], [r.intermediate("flat", dtype)], dtype=dtype)
    curve = r.emit(r.op_type, flat, [r.intermediate("result", dtype)], dtype=dtype, axis=axis)
    if is_known:
        back = r.const(np.array(sizes, np.int64), "sizes")
    else:
        (back,) = r.emit("Shape", [r.input(0)], [r.intermediate("shape", "int64")], dtype="int64")
    r.emit("Reshape", [*curve, back], dtype=dtype)


def read_lp_normalization(r: Reading) -> None:
    """LpNormalization."""
    r.emit("LpNormalization", axis=int(r.attribute("axis", -1)), p=int(r.attribute("p", 2)))


_PLAIN = "Sigmoid Tanh PRelu Softplus Softsign"

WRITERS: dict[str, WriteFunction] = {
    **dict.fromkeys(_PLAIN.split(), write_same_named),
    **dict.fromkeys(_PARAMETERS, write_parametric),
    "LeakyRelu": write_leaky_relu,
    "Relu": write_clip,
    "Clip": write_clip,
    "HardSwish": write_hard_swish,
    "Mish": write_mish,
    "Swish": write_swish,
    "Gelu": write_gelu,
    "Softmax": write_softmax,
    "LogSoftmax": write_log_softmax,
    "Hardmax": write_hardmax,
    "LpNormalization": write_lp_normalization,
}

READERS: dict[str, ReadFunction] = {
    **dict.fromkeys(f"{_PLAIN} Relu HardSwish Mish".split(), read_same_named),
    **dict.fromkeys(_PARAMETERS, read_parametric),
    "Clip": read_clip,
    "Gelu": read_gelu,
    "Swish": read_swish,
    "com.microsoft.Gelu": read_gelu,
    "com.microsoft.FastGelu": read_gelu,
    "com.microsoft.BiasGelu": read_gelu,
    "Softmax": read_softmax,
    "LogSoftmax": read_softmax,
    "Hardmax": read_softmax,
    "LpNormalization": read_lp_normalization,
}
