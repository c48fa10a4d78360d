"""RFFT2D and complex numbers, which the canonical graph has as two real parts along a last axis; ranges; sums of neighbours."""

from __future__ import annotations

from functools import partial

import numpy as np

from qconvert.formats.tflite.ops.one_to_one import make_indexed_reader, make_reader
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op, Tensor
from qconvert.operators.sizes import UNKNOWN, reshape_sizes


def read_reshaped(r: Reading) -> None:
    """RESHAPE, SQUEEZE and EXPAND_DIMS of complex numbers: to the result's shape, as far as it is known."""
    shape = r.result().shape or ()
    sizes = reshape_sizes(shape)
    if sizes and sizes.count(-1) <= 1:
        r.emit("Reshape", [r.input(0), r.list64(sizes, "shape")])
    elif r.name == "RESHAPE" and r.has(1):
        whole = r.intermediate("shape", "int64", (UNKNOWN,))
        r.emit("Concat", [r.flat64(1), r.list64([2], "parts")], [whole], axis=0)
        r.emit("Reshape", [r.input(0), whole])
    elif r.name == "EXPAND_DIMS":
        r.emit("Unsqueeze", [r.input(0), r.list64([r.axis(r.integer(1), r.rank())], "axes")])
    elif r.name == "SQUEEZE" and (named := [int(axis) for axis in r.option("squeezeDims", ())]):
        r.emit("Squeeze", [r.input(0), r.list64(sorted({r.axis(axis, r.rank() - 1) for axis in named}), "axes")])
    else:
        raise r.unsupported_error(f"complex numbers of shape {shape}", rule="complex-numbers")


def read_cast(r: Reading) -> None:
    """CAST of complex numbers to real ones, which keeps the real part."""
    if r.result().dtype == "float32" and r.tensor().rank == (r.result().rank or 0) + 1:
        r.emit("Real")
    else:
        raise r.unsupported_error(f"complex numbers and {r.result().dtype}", rule="complex-numbers")


#: The readers of operators on complex numbers.
COMPLEX: Readers = {
    "RFFT2D": make_indexed_reader("Rfft2d"),
    "REAL": make_reader("Real"),
    "IMAG": make_reader("Imag"),
    "COMPLEX_ABS": make_reader("ComplexAbs"),
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"), read_reshaped),
    "CAST": read_cast,
}


def read_bucketize(r: Reading) -> None:
    """BUCKETIZE, whose boundaries are an option."""
    stated = r.option("boundaries", None)
    boundaries = np.asarray([] if stated is None else stated, np.float32).reshape(-1)
    if not np.isfinite(boundaries).all() or (np.diff(boundaries) < 0).any():
        raise r.invalid("has boundaries that do not increase", rule="not-increasing")
    r.emit("Bucketize", [r.input(0), r.const(boundaries, "boundaries")])


def read_local_response_normalization(r: Reading) -> None:
    """LOCAL_RESPONSE_NORMALIZATION: alpha is of each square, ONNX's of their mean."""
    radius = r.option("radius")
    if radius < 0:
        raise r.invalid(f"has the radius {radius}", rule="not-positive")
    size = 2 * radius + 1
    numbers = {name: float(r.option(name, 0.0)) for name in ("alpha", "beta", "bias")}
    r.emit("LRN", size=size, **{**numbers, "alpha": numbers["alpha"] * size}, data_format="channels_last")


def read_fake_quant(r: Reading) -> None:
    """FAKE_QUANT, whose kernel is of float32."""
    if r.tensor().dtype != "float32":
        raise r.invalid(f"data of {r.tensor().dtype}, not float32", rule="operand-types")
    low, high = float(r.option("min", 0.0)), float(r.option("max", 0.0))
    r.emit("FakeQuant", min=low, max=high, num_bits=r.option("numBits"), narrow_range=int(r.option("narrowRange")))


READERS: Readers = {
    **{name: COMPLEX[name] for name in ("RFFT2D", "REAL", "IMAG", "COMPLEX_ABS")},
    "BUCKETIZE": read_bucketize,
    "LOCAL_RESPONSE_NORMALIZATION": read_local_response_normalization,
    "FAKE_QUANT": read_fake_quant,
}


def write_rfft2d(op: Op, w: Writing) -> None:
    """RFFT2D."""
    w.emit("RFFT2D", [op.inputs[0], w.index(op, 1)], [w.complex(op, op.outputs[0])])


def _write_part(builtin: str, op: Op, w: Writing) -> None:
    """REAL, IMAG or COMPLEX_ABS."""
    made = w.tensors.get(op.inputs[0])
    if made is None or made.dtype == "complex64" or made.name in w.graph.inputs:
        w.emit(builtin, [w.complex(op, op.inputs[0])], op.outputs)
    else:
        _write_part_of_real(builtin, op, w, made)


def _write_part_of_real(builtin: str, op: Op, w: Writing, data: Tensor) -> None:
    """A part of complex numbers that are two real ones along the last axis in the file too."""
    shape = data.shape or ()
    last = len(shape) - 1
    if builtin != "COMPLEX_ABS":
        index = w.ints(int(builtin == "IMAG"), f"{op.outputs[0]}/part")
        w.emit("GATHER", [data.name, index], op.outputs, axis=last)
        return
    squares, total = w.add(f"{op.outputs[0]}/squares", data.dtype, shape), w.add(f"{op.outputs[0]}/sum", data.dtype, shape[:-1])
    w.emit("SQUARE", [data.name], [squares])
    w.emit("SUM", [squares, w.ints([last], f"{op.outputs[0]}/axis")], [total], keepDims=False)
    w.emit("SQRT", [total], op.outputs)


def write_bucketize(op: Op, w: Writing) -> None:
    """BUCKETIZE."""
    w.emit("BUCKETIZE", op.inputs[:1], op.outputs, boundaries=w.constant(op, 1).reshape(-1))


def write_lrn(op: Op, w: Writing) -> None:
    """LRN over an odd number of channels as LOCAL_RESPONSE_NORMALIZATION."""
    size = int(op["size"])
    if size % 2 == 0 or op["data_format"] != "channels_last" or w.operand(op).rank != 4:
        raise w.unsupported_error(op, f"a size of {size}, or data not of rank 4 and channels last,", rule="form-not-covered")
    if w.operand(op).dtype != "float32":
        raise w.unsupported_error(op, f"data of {w.operand(op).dtype}", rule="operand-types")
    fields = {"alpha": float(op["alpha"]) / size, "beta": op["beta"], "bias": op["bias"]}
    w.emit("LOCAL_RESPONSE_NORMALIZATION", op.inputs, op.outputs, radius=(size - 1) // 2, **fields)


def write_fake_quant(op: Op, w: Writing) -> None:
    """FAKE_QUANT, whose kernel is of float32."""
    if w.operand(op).dtype != "float32":
        raise w.unsupported_error(op, f"data of {w.operand(op).dtype}", rule="operand-types")
    w.emit("FAKE_QUANT", op.inputs, op.outputs, min=op["min"], max=op["max"], numBits=op["num_bits"], narrowRange=op["narrow_range"])


WRITERS: Writers = {
    "Rfft2d": write_rfft2d,
    "Real": partial(_write_part, "REAL"),
    "Imag": partial(_write_part, "IMAG"),
    "ComplexAbs": partial(_write_part, "COMPLEX_ABS"),
    "Bucketize": write_bucketize,
    "LRN": write_lrn,
    "FakeQuant": write_fake_quant,
}
