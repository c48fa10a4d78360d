"""QLinearMatMul, QGemm, MatMulIntegerToFloat, DynamicQuantizeMatMul, MatMulNBits with its packed weights, and rows of such."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import accumulator_quantization
from qconvert.arithmetic.storage import pack_bits, unpack_bits
from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.ops.conv import conv_window, read_conv_window
from qconvert.formats.onnx.ops.matrix import matmul_operand
from qconvert.formats.onnx.qoperator.forms import (
    WriteForms,
    bias_reason,
    emit_result,
    linear_reason,
    one_quantization,
    operand,
    stored_bias,
    write_form,
)
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.formats.onnx.signatures import CONTRIB
from qconvert.formats.reading.quantizations import label_key
from qconvert.graph import Array, Op, Quantization, Tensor, numpy_dtype
from qconvert.operators import is_dynamic, output_axis

#: Sizes of blocks that onnxruntime's kernels take: powers of two from here on; those of rows that are divided have at most so many.
_SMALLEST_BLOCK, _LARGEST_BLOCK = 16, 128
#: Bits -> the type that weights are read as.
_STORAGE = {2: "uint4", 4: "uint4", 8: "uint8"}
_BITS = {"uint4": 4, "uint8": 8, "int4": 4, "int8": 8}
#: Where the bias stands among the inputs, after zero points and the order of groups.
_BIAS = 5


def read_matmul_nbits(r: Reading) -> None:
    """MatMulNBits as a MatMul with the float values of weights (K,N), which have blocks of scales along K."""
    r.require_only(accuracy_level=0, weight_prepacked=0)
    bits, real_type = int(r.attribute("bits", 4)), r.tensor(2).dtype
    if r.has(4) or r.rank(0) < 2 or bits not in _STORAGE or (r.has(3) and r.tensor(3).dtype != "uint8"):
        raise NotCoveredError("an order of groups, a vector, other bits than 2, 4 and 8, or zero points that are not packed")
    packed, scales, points = r.constant(1), r.constant(2), r.constant(3)
    if packed is None or scales is None or (points is None and r.has(3)):
        raise NotCoveredError("weights that are computed at run time")
    columns, depth, block = (int(r.attribute(name, 0)) for name in ("N", "K", "block_size"))
    blocks, each = count_blocks(packed, scales, (columns, depth, block), bits), 8 // bits
    if not blocks:
        raise r.invalid(
            f"weights of shape {packed.shape} and {scales.size} scales for N {columns}, K {depth} in blocks of {block}", rule="block-scales"
        )
    if packed.dtype != np.uint8:
        raise r.invalid(f"weights of {packed.dtype}, which are not packed", rule="block-scales")
    if points is None:
        zeros = np.full((columns, blocks), 2 ** (bits - 1), np.int64)
    elif points.size != columns * -(-blocks // each):
        raise r.invalid(f"{points.size} bytes of zero points for {columns} columns of {blocks} blocks", rule="block-scales")
    else:
        zeros = unpack_bits(points.reshape(columns, -1), bits)[:, :blocks].astype(np.int64)
    quantization = Quantization(
        np.ascontiguousarray(scales.reshape(columns, blocks).T, np.float32), np.ascontiguousarray(zeros.T), 0, block
    )
    weights = np.ascontiguousarray(unpack_bits(packed.reshape(columns, -1), bits)[:, :depth].T).astype(numpy_dtype(_STORAGE[bits]))
    stored = r.variant(1, f"unpacked_{label_key(quantization)}", weights, quantization)
    real = r.emit_inner("Dequantize", [stored], "weights", real_type)
    r.emit_biased("MatMul", [r.input(0), real], _BIAS, real_type)


def count_blocks(packed: Array, scales: Array, sizes: tuple[int, int, int], bits: int) -> int:
    """The number of blocks along K of the weights of a MatMulNBits, of so many columns, rows and rows a block; 0 if they do not fit."""
    columns, depth, block = sizes
    blocks, each = -(-depth // block) if block > 0 else 0, 8 // bits
    is_packed = min(columns, depth, blocks) >= 1 and not block % each and packed.size == columns * blocks * block // each
    return blocks if is_packed and scales.size == columns * blocks else 0


def read_gather_blocks(r: Reading) -> None:
    """GatherBlockQuantized of a table in bytes, with its zero points, as a Gather of rows of its float values, or of matrices.

    Other tables have a definition (definitions/embedding.py).
    """
    bits, block, real_type = int(r.attribute("bits", 4)), int(r.attribute("block_size", 128)), r.tensor(2).dtype
    packed, scales, points = r.constant(0), r.constant(2), r.constant(3)
    axes = int(r.attribute("gather_axis", 0)), int(r.attribute("quantize_axis", 1))
    if packed is None or scales is None or points is None or bits not in _STORAGE or block < 1:
        raise NotCoveredError("a table without zero points or computed at run time, or other bits")
    last = packed.ndim - 1
    if last < 1 or axes not in ((0, last), (0, -1)):
        raise NotCoveredError("other axes")
    if packed.dtype != np.uint8 or points.dtype != np.uint8 or scales.ndim != packed.ndim or points.ndim != packed.ndim:
        raise NotCoveredError("a table that is not of bytes")
    stored, zeros = unpack_bits(packed, bits), unpack_bits(points, bits)[..., : scales.shape[-1]]
    if scales.shape != (*stored.shape[:-1], -(-stored.shape[-1] // block)) or zeros.shape != scales.shape:
        raise NotCoveredError("scales that do not fit")
    quantization = Quantization(scales.astype(np.float32), zeros.astype(np.int64), last, block)
    table = r.variant(0, f"unpacked_{label_key(quantization)}", stored.astype(numpy_dtype(_STORAGE[bits])), quantization)
    real = r.emit_inner("Dequantize", [table], "table", real_type)
    r.emit("Gather", [real, r.input(1)], dtype=real_type, axis=0)


def write_matmul_nbits(op: Op, b: Builder) -> str:
    """MatMul or Gemm of float data with weights of 4 or 8 bits as MatMulNBits: in blocks along K, or rows that are divided into blocks."""
    weights = _divide_rows(op, _stored_weights(op.inputs[1], b))
    reason = _reason(op, b, weights)
    if reason or weights is None or weights.data is None or weights.quantization is None:
        return reason
    quantization, data, bits = _without_signs(weights.quantization, weights.data, weights.dtype)
    if output_axis(op, 2) != 0:
        quantization, data = quantization.transpose((1, 0)), data.T
    columns, depth = data.shape
    blocks = quantization.scale.shape[1]
    rows = np.pad(data, ((0, 0), (0, blocks * quantization.block_size - depth)))
    packed = pack_bits(rows, bits).reshape(columns, blocks, quantization.block_size * bits // 8)
    tables = _packed_tables(b, weights.name, packed, quantization, bits, b.result(op).dtype)
    inputs = [b.stored_value(op.inputs[0]), *(tables if (quantization.zero_point != 2 ** (bits - 1)).any() else tables[:2])]
    if op.has(2):
        inputs += [*[""] * (_BIAS - len(inputs)), b.stored_value(op.inputs[2])]
    sizes = {"K": depth, "N": columns, "bits": bits, "block_size": quantization.block_size}
    b.compute(op, inputs, "MatMulNBits", domain=CONTRIB, **sizes)
    return ""


def _without_signs(quantization: Quantization, data: Array, dtype: str) -> tuple[Quantization, Array, int]:
    """A quantization and its integers as uint8, from 0 on, and how many bits they have."""
    bits = _BITS[dtype]
    offset = 2 ** (bits - 1) if dtype.startswith("int") else 0
    return quantization.shift_zero_point(offset), (data.astype(np.int16) + offset).astype(np.uint8), bits


def _packed_tables(b: Builder, name: str, packed: Array, quantization: Quantization, bits: int, real_type: str) -> list[str]:
    """Names of the constants: packed integers, scales, and packed zero points."""
    return [
        b.const(packed, f"{name}/packed"),
        b.const(np.ascontiguousarray(quantization.scale).astype(numpy_dtype(real_type)), f"{name}/packed_scale"),
        b.const(pack_bits(quantization.zero_point.astype(np.uint8), bits), f"{name}/packed_zero_point"),
    ]


def write_gather(op: Op, b: Builder) -> str:
    """Gather of rows of a table in blocks, or of matrices of experts, as GatherBlockQuantized, which dequantizes these alone.

    Zero points are always written, since the default differs between types (gather_block_quantized.cc).
    """
    weights = _stored_weights(op.inputs[0], b)
    quantization = None if weights is None else weights.quantization
    if weights is None or weights.data is None or quantization is None or not quantization.block_size:
        return "GatherBlockQuantized takes a constant table in blocks"
    real_type, block = b.result(op).dtype, quantization.block_size
    last = weights.data.ndim - 1
    has_rows = last > 0 and quantization.axis == last and weights.data.shape[last] % block == 0
    if not has_rows or int(op["axis"]) % (last + 1) or int(op["batch_dims"]) or weights.dtype not in _BITS:
        return "GatherBlockQuantized takes the first axis of a table of 4 or 8 bits with whole blocks along the last"
    is_read_alone = b.producer(op.inputs[0]) is not None and b.result(op).quantization is None
    if not is_read_alone or block < _SMALLEST_BLOCK or block & (block - 1) or real_type not in ("float32", "float16"):
        return "GatherBlockQuantized gives float32 or float16, of blocks of 16, 32, 64 and so on"
    quantization, data, bits = _without_signs(quantization, weights.data, weights.dtype)
    packed, scale, zero_point = _packed_tables(b, weights.name, pack_bits(data, bits), quantization, bits, real_type)
    inputs = [packed, b.stored_value(op.inputs[1]), scale, zero_point]
    b.compute(op, inputs, "GatherBlockQuantized", domain=CONTRIB, bits=bits, block_size=block, gather_axis=0, quantize_axis=last)
    return ""


def _stored_weights(name: str, b: Builder) -> Tensor | None:
    """The quantized constant whose float values `name` are."""
    op = b.producer(name, "Dequantize")
    tensor = b.tensor(name if op is None else op.inputs[0])
    return tensor if tensor.data is not None and tensor.quantization is not None else None


def _divide_rows(op: Op, weights: Tensor | None) -> Tensor | None:
    """The weights with the scale of each row for blocks of it; as they are where it has them already, or is not divisible."""
    quantization = None if weights is None else weights.quantization
    if weights is None or quantization is None or quantization.block_size or weights.static_shape is None or weights.rank != 2:
        return weights
    depth_axis = 1 - output_axis(op, 2)
    depth, outputs = weights.static_shape[depth_axis], weights.static_shape[1 - depth_axis]
    block = math.gcd(depth, _LARGEST_BLOCK)
    if block < _SMALLEST_BLOCK or quantization.axis == depth_axis:
        return weights
    perm = (0, 1) if depth_axis else (1, 0)
    scale, zero = (
        np.repeat(np.broadcast_to(values.reshape(-1, 1), (outputs, 1)), depth // block, axis=1).transpose(perm)
        for values in (quantization.scale, quantization.zero_point)
    )
    return replace(weights, quantization=replace(quantization, scale=scale, zero_point=zero, axis=depth_axis, block_size=block))


def _reason(op: Op, b: Builder, weights: Tensor | None) -> str:
    """Why a MatMul with a real left operand is no MatMulNBits; "" if it is one."""
    if weights is None or weights.quantization is None:
        return "QOperator has no product of real and quantized operands"
    if is_dynamic(op):
        return "MatMulNBits does not round its data"
    quantization = weights.quantization
    if weights.dtype not in _BITS or not quantization.block_size:
        return f"MatMulNBits takes weights of 4 and 8 bits in blocks, not {weights.dtype}{'' if quantization.block_size else ' without'}"
    if weights.rank != 2 or quantization.axis != 1 - output_axis(op, 2) or op.attributes.get("trans_a"):
        return "MatMulNBits takes a matrix with blocks along its rows"
    if op.kind == "Gemm" and (op["activation"] or any(b.tensor(name).is_quantized for name in filter(None, op.inputs[2:3]))):
        return "MatMulNBits takes a float bias, and fuses no activation"
    if quantization.block_size < _SMALLEST_BLOCK or quantization.block_size & (quantization.block_size - 1):
        return f"MatMulNBits takes blocks of 16, 32, 64 and so on, not {quantization.block_size}"
    types = {b.tensor(name).dtype for name in (op.inputs[0], op.outputs[0])}
    return "" if types in ({"float32"}, {"float16"}) else "MatMulNBits takes and gives float32 or float16"


def read_qlinear_matmul(r: Reading) -> None:
    """QLinearMatMul(a, a_scale, a_zero_point, b, …, y_scale, y_zero_point)."""
    quantizations = one_quantization(r, 1), _columns_quantization(r, 3, 4)
    result = one_quantization(r, 6)
    inputs = [r.label_input(0, quantizations[0]), r.label_input(3, quantizations[1])]
    emit_result(r, "MatMul", inputs, r.tensor(0).dtype, 6, result)


def _columns_quantization(r: Reading, data: int, scale: int) -> Quantization:
    """The quantization of a right operand, whose zero point is input 5: one scale, or a list along its columns."""
    if r.rank(0) < 2 or r.rank(data) < 2:
        raise NotCoveredError("a vector")
    scales = r.constant(scale)
    if scales is not None and scales.ndim > 1:
        raise NotCoveredError(f"scales of shape {scales.shape}")
    is_list = scales is not None and scales.size > 1
    return r.quantization(scale, 5, r.rank(data) - 1 if is_list else None)


def read_matmul_integer_to_float(r: Reading) -> None:
    """MatMulIntegerToFloat(A, B, a_scale, b_scale, a_zero_point, b_zero_point, bias): the result and the bias are real."""
    if r.tensor(2).dtype != "float32":
        raise NotCoveredError(f"scales of {r.tensor(2).dtype}")
    data, points = r.constant(2), r.constant(4)
    if data is not None and data.size != 1:
        raise NotCoveredError(f"{data.size} scales of the left operand")
    if data is None or (points is None and r.has(4)):
        _rounded_product(r, (r.input(0), r.input(2), r.inputs[4] if r.has(4) else ""), (1, 3, 5), 6)
        return
    quantizations = r.quantization(2, 4), _columns_quantization(r, 1, 3)
    inputs = [r.label_input(0, quantizations[0]), r.label_input(1, quantizations[1])]
    r.emit_biased("MatMul", inputs, 6, "float32", integers=True)


def read_dynamic_quantize_matmul(r: Reading) -> None:
    """DynamicQuantizeMatMul(A, B, b_scale, b_zero_point, bias): A is rounded by the range of all its values when the model runs."""
    made = [r.intermediate(*item) for item in (("stored", "uint8"), ("scale", "float32"), ("zero_point", "uint8"))]
    stored, scale, point = r.emit("DynamicQuantizeLinear", [r.input(0)], made, dtype=("uint8", "float32", "uint8"))
    _rounded_product(r, (stored, scale, point), (1, 2, 3), 4)


def _rounded_product(r: Reading, data: tuple[str, str, str], weights: tuple[int, int, int], bias: int) -> None:
    """Data with a scale computed when the model runs, times integers, both scales and a bias: as quantize_dynamic decomposes it, which
    fuse_dynamic knows.

    Args:
        r: the node.
        data: names of the integers, their scale and their zero point, "" for none.
        weights: indices of the integers, their scales and their zero points.
        bias: its index.
    """
    if r.rank(weights[0]) < 2 or r.lookup(data[0]).rank in (None, 1):
        raise NotCoveredError("a vector")
    points = r.inputs[weights[2]] if r.has(weights[2]) else ""
    inputs = [data[0], r.input(weights[0]), data[2], points]
    while not inputs[-1]:
        inputs.pop()
    total = r.emit_inner("MatMulInteger", inputs, "sum", "int32")
    real = r.emit_inner("Cast", [total], "sum_real", "float32", to="float32")
    r.emit_biased("Mul", [real, r.emit_inner("Mul", [data[1], r.input(weights[1])], "scales", "float32")], bias, "float32")


def read_qgemm(r: Reading) -> None:
    """QGemm(A, a_scale, a_zero_point, B, …, C, y_scale, y_zero_point): y = alpha * A' @ B' + C, C being int32 at the scale of the product.

    The scale of B takes a positive factor alpha, as that of the product does. The result may be real.
    """
    alpha = float(r.attribute("alpha", 1.0))
    transposed = bool(r.attribute("transB", 0))
    shape = r.tensor(6).static_shape if r.has(6) else ()
    size = -1 if shape is None else math.prod(shape)
    if r.rank(0) != 2 or r.rank(3) != 2:
        raise NotCoveredError("operands that are not matrices")
    columns = (r.tensor(3).shape or ("", ""))[0 if transposed else 1]
    if alpha <= 0 or (r.has(6) and size != columns):
        raise NotCoveredError(f"a factor {alpha}, or a bias of shape {shape}")
    quantizations = one_quantization(r, 1), weights_quantization(r, 4, 0 if transposed else 1)
    if alpha != 1:
        quantizations = quantizations[0], replace(quantizations[1], scale=quantizations[1].scale * np.float32(alpha))
    result = one_quantization(r, 7) if r.has(7) else None
    data = r.label_input(0, quantizations[0])
    if r.attribute("transA", 0):
        turned = r.intermediate("rows", r.tensor(0).dtype, quantizations[0])
        (data,) = r.emit("Transpose", [data], [turned], dtype=r.tensor(0).dtype, perm=(1, 0))
    inputs = [data, _outputs_first(r, quantizations[1], transposed), *_vector(r, quantizations)]
    if result is None:
        r.emit("Gemm", inputs, r.outputs[:1], dtype="float32", integers=True)
    else:
        emit_result(r, "Gemm", inputs, r.tensor(0).dtype, 7, result)


def _vector(r: Reading, quantizations: tuple[Quantization, Quantization]) -> list[str]:
    """QGemm's C as one number for each column, with its label, if there is one."""
    if not r.has(6):
        return []
    quantization = accumulator_quantization(quantizations[0], quantizations[1].with_axis(None if quantizations[1].is_per_tensor else 0))
    data = r.constant(6)
    if r.tensor(6).rank == 1:
        return [r.label_input(6, quantization)]
    if data is None:
        raise NotCoveredError("a bias of another rank that is computed")
    return [r.variant(6, "vector", data.reshape(-1), quantization)]


def _outputs_first(r: Reading, quantization: Quantization, transposed: bool) -> str:
    """QGemm's B with its label as O,I."""
    if transposed:
        return r.label_input(3, quantization)
    data, turned = r.constant(3), quantization.transpose((1, 0))
    if data is not None:
        return r.variant(3, "transposed", data.swapaxes(0, 1), turned)
    name = r.intermediate("transposed", r.tensor(3).dtype, turned)
    return r.emit("Transpose", [r.label_input(3, quantization)], [name], dtype=r.tensor(3).dtype, perm=(1, 0))[0]


def write_matmul(op: Op, b: Builder) -> str:
    """MatMul as QLinearMatMul; with a real result as MatMulIntegerToFloat, with a real left operand as MatMulNBits."""
    if b.operand(op).quantization is None:
        return write_matmul_nbits(op, b)
    result = b.result(op)
    op_type = "MatMulIntegerToFloat" if result.quantization is None else "QLinearMatMul"
    reason = linear_reason(op, b, op_type) or _columns_reason(op, b, op_type)
    if reason or (result.quantization is None and result.dtype != "float32"):
        return reason or f"{op_type} gives float32, not {result.dtype}"
    left, right = (
        [value, *b.parameters(value, b.tensor(name).dtype, quantization)]
        for name, (value, quantization) in zip(op.inputs, (matmul_operand(op, b, index) for index in (0, 1)), strict=True)
        if quantization is not None
    )
    if result.quantization is not None:
        return write_form(op, b, op_type, [*left, *right, *b.quantization(result.name)], domain="")
    inputs = [left[0], right[0], left[1], right[1], left[2], right[2]]
    b.compute(op, inputs, op_type, domain=CONTRIB)
    return ""


def _columns_reason(op: Op, b: Builder, op_type: str) -> str:
    """Why the scales of the right operand do not fit: onnxruntime takes a list along the columns of a matrix."""
    tensor = b.operand(op, 1)
    quantization, rank = tensor.quantization, tensor.rank
    if quantization is None or quantization.is_per_tensor:
        return ""
    if quantization.block_size or rank != 2:
        return f"{op_type} takes one scale, or one for each column of a matrix"
    return "" if quantization.axis == (0 if op["trans_b"] else 1) else f"{op_type} takes scales along columns, not along rows"


def write_gemm(op: Op, b: Builder) -> str:
    """Gemm as QGemm, with a quantized or a real result, or with real data as MatMulNBits."""
    if b.operand(op).quantization is None:
        return write_matmul_nbits(op, b)
    result = b.result(op)
    reason = linear_reason(op, b, "QGemm") or bias_reason(op, b, "QGemm")
    if reason or (result.quantization is None and result.dtype != "float32"):
        return reason or f"QGemm gives float32, not {result.dtype}"
    bias = stored_bias(op, b) or [""]
    inputs = [*operand(b, op.inputs[0]), *operand(b, op.inputs[1]), *bias]
    if result.quantization is not None:
        return write_form(op, b, "QGemm", [*inputs, *b.quantization(result.name)], transB=1)
    if not inputs[-1]:
        inputs.pop()
    b.compute(op, inputs, "QGemm", domain=CONTRIB, transB=1)
    return ""


def read_qlinear_conv(r: Reading) -> None:
    """QLinearConv(x, x_scale, x_zero_point, w, …, y_scale, y_zero_point, B): B is int32 at x_scale * w_scale."""
    r.require_only(channels_last=0)
    window = read_conv_window(r, 3)
    quantizations = one_quantization(r, 1), weights_quantization(r, 4, 0)
    result = one_quantization(r, 6)
    bias = [r.label_input(8, accumulator_quantization(*quantizations))] if r.has(8) else []
    inputs = [r.label_input(0, quantizations[0]), r.label_input(3, quantizations[1]), *bias]
    emit_result(r, "Conv", inputs, r.tensor(0).dtype, 6, result, data_format="channels_first", **window)


def weights_quantization(r: Reading, scale: int, axis: int) -> Quantization:
    """The quantization of the weights before input `scale`: along `axis` if there is a list of scales as long as that."""
    data, shape = r.constant(scale), r.tensor(scale - 1).shape
    is_list = data is not None and data.ndim == 1 and (data.size > 1 or (shape is not None and shape[axis] == 1))
    return r.quantization(scale, scale + 1, axis if is_list else None)


def write_conv(op: Op, b: Builder) -> str:
    """Conv as QLinearConv."""
    reason = linear_reason(op, b, "QLinearConv") or bias_reason(op, b, "QLinearConv")
    if reason or b.result(op).quantization is None:
        return reason or "QLinearConv has no real result"
    inputs = [*operand(b, op.inputs[0]), *operand(b, op.inputs[1]), *b.quantization(op.outputs[0])]
    return write_form(op, b, "QLinearConv", [*inputs, *stored_bias(op, b)], domain="", **conv_window(op))


READERS: Readers = {
    "QLinearMatMul": read_qlinear_matmul,
    f"{CONTRIB}.DynamicQuantizeMatMul": read_dynamic_quantize_matmul,
    f"{CONTRIB}.GatherBlockQuantized": read_gather_blocks,
    f"{CONTRIB}.MatMulIntegerToFloat": read_matmul_integer_to_float,
    f"{CONTRIB}.MatMulNBits": read_matmul_nbits,
    f"{CONTRIB}.QGemm": read_qgemm,
    "QLinearConv": read_qlinear_conv,
    f"{CONTRIB}.QLinearConv": read_qlinear_conv,
}

WRITERS: WriteForms = {
    "Gather": write_gather,
    "Gemm": write_gemm,
    "MatMul": write_matmul,
    "Conv": write_conv,
}
