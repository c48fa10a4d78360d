"""Integer weights with float data (hybrid kernels) of recurrent operators, which round rows of data and hidden values when they run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.formats.tflite.reading import Reading
from qconvert.formats.tflite.writing import Writing
from qconvert.graph import Array, Op, Quantization, Tensor

__all__ = [
    "INTEGERS",
    "Constant",
    "arithmetic_of",
    "constant_int8",
    "is_asymmetric",
    "joined_gates",
    "require_int8",
    "rounds_rows",
    "split_gates",
]

#: What is integers where weights are.
INTEGERS = ("weights", "recurrent", "peephole", "projection_weights")
#: The data of a constant and its scales, or None if it is real.
Constant = tuple[Array, Quantization | None]


def rounds_rows(r: Reading, weights: int) -> bool:
    """Whether the operator rounds rows of its data when it runs: its weights, input `weights`, are integers with float data."""
    return r.tensor(0).dtype == "float32" and r.tensor(weights).dtype == "int8"


def arithmetic_of(r: Reading) -> str:
    """How the operator's kernel rounds rows."""
    return "dynamic_rows" if r.option("asymmetricQuantizeInputs", False) else "dynamic_symmetric"


def is_asymmetric(op: Op) -> bool:
    """asymmetric_quantize_inputs of what is written."""
    return bool(op["arithmetic"] == "dynamic_rows")


def constant_int8(r: Reading, index: int, shape: tuple[int, ...] | None = None) -> tuple[Array, Quantization]:
    """The integers and the one scale of weights, at which kernels look; they take the zero point for 0.

    Raises:
        InvalidModelError: they have another shape than `shape`.
        UnsupportedError: they are computed at run time, or have several scales or a zero point.
    """
    if shape is not None and r.static_shape(index) != shape:
        raise r.invalid(f"has {r.inputs[index]!r} of shape {r.static_shape(index)}, not {shape}", rule="shape-mismatch")
    tensor = r.tensor(index)
    if problem := _problem(tensor):
        raise r.unsupported_error(f"{tensor.name!r} {problem},", rule="weight-quantization")
    assert tensor.data is not None and tensor.quantization is not None
    return tensor.data, tensor.quantization


def joined_gates(r: Reading, places: dict[str, int], shape: tuple[int, ...], gates: Sequence[str]) -> Constant:
    """The integers of all gates one above the other, with a scale for each row, as an LSTM has them after an axis of directions.

    Args:
        r: the operator.
        places: gate -> its input. An input gate that is absent is 1 - the forget gate: it has the other's values with the other sign.
        shape: of each gate's.
        gates: in this order.
    """
    found = {gate: constant_int8(r, place, shape) for gate, place in places.items()}
    if len(found) < len(gates):
        data, quantization = found["forget"]
        if data.min(initial=0) == -128:
            raise r.unsupported_error("a coupled input gate and weights of -128, which int8 cannot negate,", rule="weight-quantization")
        found["input"] = -data, quantization
    scales = np.concatenate([np.repeat(found[gate][1].scale, shape[0]) for gate in gates])
    joined = Quantization(scales, np.zeros(len(scales), np.int64), 1)
    return np.concatenate([found[gate][0] for gate in gates]), joined


def split_gates(w: Writing, op: Op, index: int, count: int) -> list[tuple[Array, Quantization]]:
    """The reverse: the integers of each gate, and their one scale, at which kernels look.

    Raises:
        UnsupportedError: a gate has several scales, or there are zero points or no integers.
    """
    tensor = w.tensor(op.inputs[index])
    q = tensor.quantization
    if tensor.data is None or tensor.dtype != "int8" or q is None or not q.is_symmetric or q.block_size or q.axis not in (None, 1):
        raise w.unsupported_error(
            op,
            f"{tensor.name!r} that is not an int8 constant with zero point 0, for data that are quantized at run time",
            rule="weight-quantization",
        )
    parts = np.split(tensor.data[0], count)
    scales = np.split(np.broadcast_to(q.scale, (count * len(parts[0]),)), count)
    if any((scale != scale[0]).any() for scale in scales):
        raise w.unsupported_error(
            op, f"{tensor.name!r} with several scales in one gate, of which TFLite's operator has one,", rule="weight-quantization"
        )
    return [(part, Quantization.per_tensor(float(scale[0]), 0)) for part, scale in zip(parts, scales, strict=True)]


def require_int8(w: Writing, op: Op, index: int) -> str:
    """The name of weights that a hybrid kernel takes as they are; raises UnsupportedError for others."""
    tensor = w.tensor(op.inputs[index])
    if problem := _problem(tensor):
        raise w.unsupported_error(op, f"{tensor.name!r} {problem}", rule="weight-quantization")
    return tensor.name


def _problem(tensor: Tensor) -> str:
    q = tensor.quantization
    if tensor.data is None or tensor.dtype != "int8":
        return f"of {tensor.dtype} that {'are computed at run time' if tensor.data is None else 'are not int8'}"
    if q is None or q.scale.size != 1 or not q.is_symmetric:
        return "that have no single scale with zero point 0"
    return ""
