"""Arithmetic on one tensor and on pairs of tensors, with broadcasting; comparisons, logic, choice, and functions of bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.arithmetic import INTEGER_FACTORS, has_addition, is_accumulator_scale
from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.initializers import DTYPE_NAMES
from qconvert.formats.onnx.ops.integer_arithmetic import write_pair_of_16_bits
from qconvert.formats.onnx.ops.same_named import write_named
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.formats.onnx.values import place_of
from qconvert.graph import Graph, Op, Quantization, integer_range, numpy_dtype
from qconvert.graph.activations import activation_bounds, clip_range
from qconvert.kernels.kernel import quantizations_of
from qconvert.kernels.litert.forms import pair
from qconvert.operators import is_onnxruntime_add, nudge_input_scales
from qconvert.rewriting.lowering import Scope, conditions


def _unfused_bias(op: Op, b: Builder) -> list[str] | None:
    """The operands of the bias of a MatMul, this of rank 2; None where that is not needed.

    onnxruntime makes one Gemm of MatMul and a vector (MatMulAddFusion), not of a matrix. Where the bias is int32, its integer kernel
    takes the integers as they are, on whatever scale. On some CPUs onnxruntime turns int8 activations into uint8 and puts a QuantizeLinear
    after data movement; from opset 21 on it then refuses the model, as output_dtype stays int8 and the zero point is uint8. The Reshape of
    that Gemm, with more than two axes, is the only data movement not written on integers.
    """
    vectors = [name for name in op.inputs if b.tensor(name).data is not None and b.tensor(name).rank == 1]
    if len(op.inputs) != 2 or len(vectors) != 1:
        return None
    vector, other = b.tensor(vectors[0]), b.tensor(op.inputs[op.inputs[0] == vectors[0]])
    product, quantization = b.producer(other.name, "MatMul"), vector.quantization
    if product is None or other.is_quantized or vector.data is None:
        return None
    operands = [b.tensor(name) for name in product.inputs]
    refused = b.opset >= 21 and (other.rank or 0) > 2 and any(item.dtype == "int8" and not item.is_constant for item in operands)
    scales = [item.per_tensor.scale for item in operands if item.per_tensor is not None]
    own = (
        quantization is not None
        and vector.dtype == "int32"
        and not (len(scales) == 2 and is_accumulator_scale(quantization.scale, np.prod(scales)))
    )
    if not (refused or own) or (quantization is not None and not quantization.is_per_tensor):
        return None
    row = b.const(vector.data.reshape(1, -1), f"{vector.name}/row")
    value = row if quantization is None else b.dequantize(row, vector.dtype, quantization)
    return [value if name == vector.name else b.float_value(name) for name in op.inputs]


def write_add(op: Op, b: Builder) -> None:
    """Add of float values, or with the integers of a kernel, by scales at which QLinearAdd gives them or else decomposed in float64.

    Without three quantizations on scales that the kernel takes there are no multipliers, and the attribute says nothing.
    """
    if op["arithmetic"] == "tflite":
        write_arithmetic(op, b)
        return
    found, kernel = quantizations_of(b.graph, op, 2), str(op["arithmetic"])
    if not found or not has_addition(kernel, (found[0], found[1]), found[2]) or is_onnxruntime_add(b.graph, op):
        b.compute(op, _unfused_bias(op, b))
        return
    dtype, quantizations = b.result(op).dtype, nudge_input_scales(b.graph, op)
    if quantizations is not None:
        # A Cast to the same type, which onnxruntime drops: after it the integers are plain, and may get another scale.
        plain = [b.cast(b.stored_value(name), dtype, hint=f"{name}/plain") for name in op.inputs]
        values = [b.dequantize(name, dtype, quantization) for name, quantization in zip(plain, quantizations, strict=True)]
        b.compute(op, values)
    elif kernel in INTEGER_FACTORS:
        _write_in_float64(op, b, (found[0], found[1]), found[2])
    else:
        b.compute(op)


def _write_in_float64(op: Op, b: Builder, quantizations: tuple[Quantization, Quantization], output: Quantization) -> None:
    """(a * multiplier + b * multiplier) >> shift. The products have fewer than 53 bits, so float64 holds them exactly, scaled by the shift.

    XNNPACK takes ties up: after the Clip to the type's range a Cast, which drops the fraction of a number that is not negative, is the
    shift. qnnpack takes them away from zero.
    """
    at, result = place_of(op, b), b.result(op)
    low, _ = integer_range(result.dtype)
    multipliers, shift = INTEGER_FACTORS[str(op["arithmetic"])](quantizations, output)
    point, away = output.point - low, op["arithmetic"] == "qnnpack"
    factors = [multiplier * 2.0**-shift for multiplier in multipliers]
    offset = 0.0 if away else 0.5 + point
    for factor, quantization in zip(factors, quantizations, strict=True):
        offset -= factor * quantization.point
    first, second = (at.stored(name, "float64") * factor for name, factor in zip(op.inputs, factors, strict=True))
    total = first + second + offset
    total = total.round_away() + point if away else total
    lowest, highest = clip_range(result, activation_bounds(op))
    clipped = total.clip(lowest - low, highest - low)
    (clipped if result.dtype == "uint8" else clipped.floor() + low).finish(result.name)


def write_arithmetic(op: Op, b: Builder) -> None:
    """Add, Sub and Mul, of 16-bit data as TFLite's kernels round if the operator asks for it."""
    if op["arithmetic"] == "tflite" and b.opset >= 13 and pair(b.graph, op):
        write_pair_of_16_bits(op, b)
    else:
        b.compute(op)


def write_extreme(op: Op, b: Builder) -> None:
    """Max and Min: of stored integers of 8 bits where all sides share one quantization; plain integers of 16 bits as int32, which has a
    kernel."""
    tensor = b.result(op)
    if all(b.tensor(name).is_quantized for name in (*op.inputs, tensor.name)):
        b.note_decomposed(op)  # a node of stored integers says nothing of their scales
    if tensor.dtype in ("int8", "uint8") and tensor.is_quantized and all(b.tensor(name).shares_quantization(tensor) for name in op.inputs):
        b.node(op.kind, [b.stored_value(name) for name in op.inputs], [tensor.name])
        return
    if tensor.is_quantized or tensor.dtype not in ("int16", "uint16"):
        b.compute(op)
        return
    at = place_of(op, b)
    at.node(op.kind, *(at.stored(name, "int32") for name in op.inputs)).finish(tensor.name)


#: Plain integers of few bits, on which TFLite's kernels compute in 32 bits, and wrap the result around.
_NARROW = ("int8", "int16")


def write_neg(op: Op, b: Builder) -> None:
    """Neg; of plain integers of few bits as int32."""
    tensor = b.result(op)
    if tensor.is_quantized or tensor.dtype not in _NARROW:
        b.compute(op)
        return
    place_of(op, b).stored(op.inputs[0], "int32").then("Neg").finish(tensor.name)


@conditions(lambda op, scope: f"has no FloorMod of {scope.tensors[op.outputs[0]].dtype}"
            if scope.tensors[op.outputs[0]].is_quantized or "float" in scope.tensors[op.outputs[0]].dtype else "")  # fmt: skip
def write_floor_mod(op: Op, b: Builder) -> None:
    """The remainder of integers with the sign of the divisor."""
    b.node("Mod", b.float_values(op), op.outputs)


def write_mod(op: Op, b: Builder) -> None:
    """The remainder with the sign of the dividend."""
    b.compute(op, fmod=1)


def write_sqrt(op: Op, b: Builder) -> None:
    """Sqrt; with the arithmetic "tflite" rounded down to a step of the result's quantization, as TFLite's kernel does in float32."""
    quantization = b.result(op).quantization
    if op["arithmetic"] != "tflite" or quantization is None:
        b.compute(op)
        return
    root, scale = place_of(op, b).floats(op.inputs[0]).then("Sqrt"), quantization.scale[0]
    b.finish(op, ((root / scale).floor() * scale).name)


def write_atan(op: Op, b: Builder) -> None:
    """Atan; onnxruntime has none of float64."""
    if b.result(op).dtype != "float64":
        b.compute(op)
        return
    place_of(op, b).stored(op.inputs[0], "float32").then("Atan").finish(op.outputs[0])


def write_truth(op: Op, b: Builder) -> None:
    """A comparison of float values, IsNaN and IsInf."""
    b.node(op.kind, b.float_values(op), op.outputs)


#: Types of which onnxruntime's CPU provider has a Where (1.31, measured).
_CHOSEN = ("float16", "float32", "float64", "int32", "int64", "uint8", "string")


def write_where(op: Op, b: Builder) -> None:
    """Where: on stored integers if all three share one quantization, else in float; of int8 between pairs, as quantizers write it."""
    result = b.result(op)
    condition = b.stored_value(op.inputs[0])
    moved = all(b.tensor(name).shares_quantization(result) for name in op.inputs[1:])
    if moved and (result.dtype != "int8" or not result.is_quantized):
        values = [b.stored_value(name) for name in op.inputs[1:]]
        if result.dtype in _CHOSEN:
            b.node("Where", [condition, *values], [result.name])
            return
        wide = "float32" if "float" in result.dtype else "int64" if result.dtype in ("uint32", "uint64") else "int32"
        b.cast(b.node("Where", [condition, *(b.cast(value, wide) for value in values)])[0], result.dtype, result.name)
        return
    values = [b.float_value(name) for name in op.inputs[1:]]
    b.compute(op, [condition, *values])


def write_cast(op: Op, b: Builder) -> None:
    """Cast of stored numbers."""
    b.cast(b.stored_value(op.inputs[0]), str(op["to"]), op.outputs[0])


def read_is_inf(r: Reading) -> None:
    """IsInf of both infinities."""
    r.require_only(detect_negative=1, detect_positive=1)
    r.emit("IsInf")


def _lacks_sum(op: Op, scope: Scope) -> str:
    result = scope.tensors[op.outputs[0]]
    return "" if "float" in result.dtype or result.is_quantized else f"has no Sum of {result.dtype}"


def read_variadic(r: Reading) -> None:
    """Max, Min and Sum of any number of inputs: a chain of pairs from the left, which is the order in which onnxruntime works."""
    _chain(r, "Add" if r.op_type == "Sum" else r.op_type, r.outputs[0])


def read_mean(r: Reading) -> None:
    """Mean: the sum times the reciprocal of the number of inputs, as onnxruntime computes it."""
    if len(r.inputs) == 1:
        _chain(r, "Add", r.outputs[0])
        return
    dtype = r.tensor(0).dtype
    share = r.const(np.array(1 / len(r.inputs), numpy_dtype(dtype)), "share")
    total = _chain(r, "Add", r.intermediate("sum", dtype))
    r.emit("Mul", [total, share], dtype=dtype)


def _chain(r: Reading, kind: str, output: str) -> str:
    """All inputs joined by an operator of two; one input alone is passed on."""
    names = [r.input(index) for index in range(len(r.inputs))]
    if len(names) == 1:
        return r.emit("Identity", names, [output])[0]
    total, dtype = names[0], r.tensor(0).dtype
    for position, name in enumerate(names[1:], 2):
        result = output if position == len(names) else r.intermediate("partial", dtype)
        total = r.emit(kind, [total, name], [result], dtype=dtype)[0]
    return total


def read_mod(r: Reading) -> None:
    """Mod of integers, whose remainder has the sign of the divisor; fmod's has that of the dividend."""
    fmod = bool(r.attribute("fmod", 0))
    if not fmod and "int" not in r.tensor(0).dtype:
        raise NotCoveredError(f"remainders of {r.tensor(0).dtype}")
    r.emit("Mod" if fmod else "FloorMod")


def read_cast(r: Reading) -> None:
    """Cast, and CastLike, to the type of its second input."""
    r.require_only(saturate=1, round_mode="up")
    wanted = r.tensor(1).dtype if r.op_type == "CastLike" else DTYPE_NAMES.get(r.attribute("to", 0), "unknown")
    if wanted == "unknown":
        raise NotCoveredError("a type that is not known")
    r.emit("Cast", [r.input(0)], dtype=wanted, to=wanted)


def read_dropout(r: Reading) -> None:
    """Dropout in inference: its input. A mask that somebody reads, or training, is another operator's case."""
    training = r.constant(2) if r.has(2) else None
    if r.is_used(1) or (r.has(2) and (training is None or training.any())):
        raise NotCoveredError("a mask or training")
    r.emit("Identity", [r.input(0)], r.outputs[:1])


def write_bit_shift(op: Op, b: Builder) -> None:
    """BitShift, which ONNX has of unsigned integers. To the left, signed ones have the same bits; to the right, -1 - x, which is not
    negative where x is, is shifted instead. TFLite's kernels shift to the right by fewer than all bits, and by as many to the left give 0.
    """
    name, dtype = op.outputs[0], b.result(op).dtype
    at = place_of(op, b)
    wide = {"uint16": "uint32", "int8": "uint8", "int16": "uint32", "int32": "uint32", "int64": "uint64"}.get(dtype, dtype)
    if wide == dtype and b.graph.is_from("onnx"):
        b.compute_stored(op)
        return
    bits, known = numpy_dtype(dtype).itemsize * 8, b.graph.constant(op.inputs[1])
    data, number = at.stored(op.inputs[0]), "int64" if bits > 31 else "int32"
    is_inside = known is not None and bool((known.astype(np.int64) >= 0).all() and (known.astype(np.int64) < bits).all())
    by = at.constant(known, wide) if is_inside else at.stored(op.inputs[1], number)
    inside = by if is_inside else by.clip(0, bits - 1).cast(wide)
    if op["direction"] == "LEFT":
        shifted = data.cast(wide).then("BitShift", inside, direction="LEFT")
        (shifted if is_inside else shifted * by.equals(inside.cast(number)).cast(wide)).finish(name)
        return
    if dtype.startswith("u"):
        data.cast(wide).then("BitShift", inside, direction="RIGHT").finish(name)
        return
    whole = data.cast("int64" if dtype == "int64" else "int32")
    negative = whole < 0
    size = negative.where(-1 - whole, whole).cast(wide)
    shifted = size.then("BitShift", inside, direction="RIGHT").cast(whole.dtype)
    negative.where(-1 - shifted, shifted).finish(name)


def write_bitcast(op: Op, b: Builder) -> None:
    """Bitcast between integers of one size as a Cast, which keeps the bits; onnxruntime has no operator for others."""
    data, result = b.operand(op), b.result(op)
    if data.dtype != result.dtype and ("int" not in data.dtype or "int" not in result.dtype or op["ratio"] != 1):
        raise b.unsupported_error(
            op, f"the bits of {data.dtype} as {result.dtype}, for which onnxruntime has no operator,", rule="operand-types"
        )
    if data.dtype == result.dtype:
        b.node("Identity", [b.stored_value(data.name)], op.outputs)
    else:
        b.cast(b.stored_value(data.name), result.dtype, result.name)


READERS: Readers = {
    "IsInf": read_is_inf,
    **dict.fromkeys(("Max", "Min", "Sum"), read_variadic),
    "Mean": read_mean,
    "Mod": read_mod,
    "Cast": read_cast,
    "CastLike": read_cast,
    "Dropout": read_dropout,
}

WRITERS: Writers = {
    "Sum": conditions(_lacks_sum)(write_named),
    "Atan": write_atan,
    "Sub": write_arithmetic,
    "Mul": write_arithmetic,
    **dict.fromkeys(("Max", "Min"), write_extreme),
    **dict.fromkeys("Equal Greater GreaterOrEqual Less LessOrEqual IsNaN IsInf".split(), write_truth),
    "Add": write_add,
    "Neg": write_neg,
    "FloorMod": write_floor_mod,
    "Mod": write_mod,
    "Sqrt": write_sqrt,
    "Where": write_where,
    "Cast": write_cast,
    "BitShift": write_bit_shift,
    "Bitcast": write_bitcast,
}

OPSETS: dict[str, Callable[[Graph, Op], int]] = dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"), lambda graph, op: 18)
