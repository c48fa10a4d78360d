"""FULLY_CONNECTED and BATCH_MATMUL."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.formats.tflite.ops.conv import accumulator_bias, bias_type, dynamic_range, float_weights, write_bias
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op, Shape, Tensor
from qconvert.operators import is_dynamic
from qconvert.operators.shapes_and_functions import merge_shapes
from qconvert.operators.sizes import UNKNOWN, is_compatible, reshape_sizes


def read_fully_connected(r: Reading) -> None:
    """FULLY_CONNECTED: weights O,I; data of any rank is flattened to rows of I and reshaped back if keep_num_dims."""
    if r.option("weightsFormat") != 0:
        raise r.unsupported_error("shuffled weights", rule="form-not-covered")
    weights = r.tensor(1)
    shape = weights.static_shape
    if shape is None or len(shape) != 2 or 0 in shape:
        raise r.invalid(f"weights of shape {weights.shape}", rule="wrong-rank")
    data = r.tensor(0)
    rows = _rows(r, shape[1])
    r.require_sound([r.input(1)])
    operands = [_flatten_data(r, rows, shape[1]), float_weights(r, r.input(1))]
    if r.has(2):
        operands.append(accumulator_bias(r, 2, data, weights))
    result = _result(r, rows, shape)
    arithmetic = dynamic_range(r, r.input(1), asymmetric=r.option("asymmetricQuantizeInputs", False))
    if result.rank == 2:
        r.emit("Gemm", operands, arithmetic=arithmetic, activation=r.activation())
        return
    flat = r.like("rows", result, (rows, shape[0]))
    r.emit("Gemm", operands, [flat], arithmetic=arithmetic, activation=r.activation())
    sizes = reshape_sizes(result.shape or ())
    r.emit("Reshape", [flat, r.list64(sizes, "shape") if sizes.count(-1) < 2 else _leading(r, shape[0])])


def _leading(r: Reading, outputs: int) -> str:
    """The data's own leading sizes, then the number of outputs, where several are dynamic."""
    rank = r.rank()
    whole = r.emit_new("Shape", [r.input(0)], "data_shape", "int64", (rank,))
    bounds = [r.list64([value], hint) for value, hint in ((0, "first"), (rank - 1, "last"), (0, "sizes"))]
    leading = r.emit_new("Slice", [whole, *bounds], "leading", "int64", (rank - 1,))
    return r.emit_new("Concat", [leading, r.list64([outputs], "outputs")], "shape", "int64", (rank,), axis=0)


def _result(r: Reading, rows: int | str, weights: tuple[int, ...]) -> Tensor:
    """The result, of the shape that the kernel gives it: rows of outputs, or the data's own leading dimensions if keep_num_dims is set."""
    result, data = r.result(), r.tensor(0).shape or ()
    wanted: Shape = (rows, weights[0])
    if r.option("keepNumDims", False):
        if not data or (isinstance(data[-1], int) and data[-1] != weights[1]):
            raise r.invalid(f"keeps the dimensions of data of shape {data} with weights of shape {weights}", rule="shape-mismatch")
        wanted = (*data[:-1], weights[0])
    return r.with_shape(merge_shapes(result.name, wanted, result.shape) if is_compatible(result.shape, wanted) else wanted)


def _rows(r: Reading, depth: int) -> int | str:
    """How many rows of `depth` the data have."""
    shape = r.tensor(0).shape
    if shape is None:
        raise r.unsupported_error("data of unknown rank", rule="unknown-rank")
    symbols = [size for size in shape if isinstance(size, str)]
    known = math.prod(size for size in shape if isinstance(size, int))
    if not symbols:
        if known % depth:
            raise r.invalid(f"data of shape {shape} do not divide into rows of {depth}", rule="shape-mismatch")
        return known // depth
    if len(symbols) == 1 and known == depth:
        return symbols[0]
    return UNKNOWN


def _flatten_data(r: Reading, rows: int | str, depth: int) -> str:
    data = r.tensor(0)
    if data.rank == 2 and data.shape is not None and data.shape[1] == depth:
        return data.name
    flat = r.like("flattened", data, (rows, depth))
    return r.emit("Reshape", [data.name, r.list64([-1, depth], "flattened_shape")], [flat])[0]


def read_batch_matmul(r: Reading) -> None:
    """BATCH_MATMUL: adj_x and adj_y transpose the last two dimensions."""
    trans_a, trans_b = int(r.option("adjX", False)), int(r.option("adjY", False))
    asymmetric = r.option("asymmetricQuantizeInputs", False)
    arithmetic = dynamic_range(r, r.input(1), asymmetric=asymmetric) if r.tensor(1).is_constant else ""
    r.emit("MatMul", arithmetic=arithmetic, trans_a=trans_a, trans_b=trans_b)


READERS: Readers = {
    "FULLY_CONNECTED": read_fully_connected,
    "BATCH_MATMUL": read_batch_matmul,
}


def write_gemm(op: Op, w: Writing) -> None:
    """Gemm as FULLY_CONNECTED, which flattens its data and gives leading dimensions back by itself."""
    bias = _bias_vector(op, w)
    data, outputs = op.inputs[0], op.outputs
    flatten, restore = w.producer(data, "Reshape"), w.successor(op.outputs[0], "Reshape")
    if flatten is not None and w.is_inner(data, "flattened"):
        w.retract(flatten)
        data = flatten.inputs[0]
    keep = False
    if restore is not None and w.is_inner(op.outputs[0], "rows"):
        shapes = w.tensor(data).shape, w.result(restore).shape
        keep = shapes[0] is not None and shapes[1] is not None and shapes[0][:-1] == shapes[1][:-1]
    if keep and restore is not None:
        w.absorb(restore)
        outputs = restore.outputs
    _require_blocks(op, w, op.inputs[1])
    fields = {"fusedActivationFunction": w.activation(op), "keepNumDims": keep, **_rounding(op), **bias_type(op, w)}
    w.emit("FULLY_CONNECTED", [data, op.inputs[1], bias], outputs, **fields)


def _rounding(op: Op) -> dict[str, Any]:
    """The option that says how data are rounded at each run."""
    return {"asymmetricQuantizeInputs": op["arithmetic"] != "dynamic_symmetric"} if is_dynamic(op) else {}


def _require_blocks(op: Op, w: Writing, name: str) -> None:
    """Raises UnsupportedError for scales in blocks that XNNPACK, the only one with a kernel for them, does not take (measured)."""
    weights = w.tensor(name)
    quantization = weights.quantization
    if quantization is None or not quantization.block_size:
        return
    exact = np.array_equal(quantization.scale.astype(np.float16).astype(np.float32), quantization.scale) and bool(
        (quantization.scale > 0).all()
    )
    along = (
        weights.rank == 2
        and quantization.axis == 1
        and (weights.shape or (0, ""))[1] == quantization.scale.shape[1] * quantization.block_size
    )
    if weights.dtype != "int4" or not quantization.is_symmetric or not along or not exact or w.operand(op).dtype != "float32":
        raise w.unsupported_error(
            op,
            f"{name!r}, whose blocks of scales are not those of int4 rows with positive float16 scales and float32 data",
            rule="block-scales",
        )


def _bias_vector(op: Op, w: Writing) -> str:
    """The bias, which FULLY_CONNECTED takes as one number for each output; a constant one of a row or a single number is spread."""
    name, outputs = op.input(2), (w.operand(op, 1).shape or ("",))[:1]
    if not name or w.tensor(name).shape == outputs:
        return name and write_bias(op, w)[0]
    data, quantization = w.tensor(name).data, w.tensor(name).quantization
    row = data is not None and data.shape[-1:] == outputs and data.size == data.shape[-1]
    if data is None or not isinstance(outputs[0], int) or not (row or data.size == 1):
        raise w.unsupported_error(op, f"a bias of shape {w.tensor(name).shape}", rule="unsupported-shape")
    quantization = quantization if quantization is None or quantization.is_per_tensor else replace(quantization, axis=0)
    return w.variant(name, f"of {outputs[0]}", np.array(np.broadcast_to(data.reshape(-1), outputs[0])), quantization)


def write_matmul(op: Op, w: Writing) -> None:
    """MatMul as BATCH_MATMUL."""
    if op["activation"]:
        raise w.unsupported_error(op, f"a fused {op['activation']}", rule="activation-not-covered")
    w.emit("BATCH_MATMUL", op.inputs[:2], op.outputs, adjX=op["trans_a"], adjY=op["trans_b"], **_rounding(op))


WRITERS: Writers = {"Gemm": write_gemm, "MatMul": write_matmul}
