"""Integer weights beside real data (hybrid kernels) of recurrent operators, which round rows of data and hidden values when they run."""

from __future__ import annotations

from qconvert.formats.tflite.reading import Reading
from qconvert.formats.tflite.writing import Writing
from qconvert.graph import Array, Op, Quantization, Tensor

__all__ = ["arithmetic_of", "constant_int8", "is_asymmetric", "require_int8"]


def arithmetic_of(r: Reading) -> str:
    """How the operator's kernel rounds rows."""
    return "dynamic_rows" if r.option("asymmetricQuantizeInputs", False) else "dynamic_symmetric"


def is_asymmetric(op: Op) -> bool:
    """asymmetric_quantize_inputs of what is written."""
    return bool(op["arithmetic"] == "dynamic_rows")


def constant_int8(r: Reading, index: int) -> tuple[Array, Quantization]:
    """The integers and the one scale of weights, at which kernels look; they take the zero point for 0.

    Raises:
        UnsupportedError: they are computed at run time, or have several scales or a zero point.
    """
    tensor = r.tensor(index)
    if problem := _problem(tensor):
        raise r.unsupported(f"{tensor.name!r} {problem},")
    assert tensor.data is not None and tensor.quantization is not None
    return tensor.data, tensor.quantization


def require_int8(w: Writing, op: Op, index: int) -> str:
    """The name of weights that a hybrid kernel takes as they are; raises UnsupportedError for others."""
    tensor = w.tensor(op.inputs[index])
    if problem := _problem(tensor):
        raise w.unsupported(op, f"{tensor.name!r} {problem}")
    return tensor.name


def _problem(tensor: Tensor) -> str:
    q = tensor.quantization
    if tensor.data is None or tensor.dtype != "int8":
        return f"of {tensor.dtype} that {'are computed at run time' if tensor.data is None else 'are not int8'}"
    if q is None or q.scale.size != 1 or not q.is_symmetric:
        return "that have no single scale with zero point 0"
    return ""
