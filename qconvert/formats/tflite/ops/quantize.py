"""QUANTIZE and DEQUANTIZE."""

from __future__ import annotations

from dataclasses import replace

from qconvert.arithmetic import dequantize, tflite_requantize
from qconvert.formats.tflite.ops.shape import reshape_to_result
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Array, Op, Tensor, numpy_dtype
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.operators.sizes import reshape_sizes
from qconvert.rewriting.torch_forms import quantize_form


def read_quantize(r: Reading) -> None:
    """QUANTIZE: from float, or from one quantization to another (requantize)."""
    overflown = _overflown(r.tensor(), r.result())
    if overflown is not None:
        r.declare(replace(r.result(), data=overflown, shape=overflown.shape))
        return
    r.emit("Requantize" if r.tensor().is_quantized else "Quantize")


def _overflown(data: Tensor, result: Tensor) -> Array | None:
    """What the kernel makes of a constant whose integers, shifted left, do not fit its 32 bits; None where they do, or may not be known.

    TensorFlow's converter has it do so for the bounds of a normalization in int16 (quantize.cc, MultiplyByQuantizedMultiplier: the
    shift wraps around).
    """
    given, wanted = data.per_tensor, result.per_tensor
    if data.data is None or given is None or wanted is None or data.dtype == result.dtype != "int16":  # which XNNPACK may take
        return None
    found, overflows = tflite_requantize(data.data, given, wanted, result.dtype)
    return found if overflows else None


def read_dequantize(r: Reading) -> None:
    """DEQUANTIZE: from integers, or from float16 constants."""
    if r.tensor().is_quantized:
        r.emit("Dequantize")
    else:
        r.emit("Cast", to=r.result().dtype)


def read_densify(r: Reading) -> None:
    """DENSIFY: a sparse constant with its zeros, which all constants here have."""
    r.declare(r.tensor())


READERS: Readers = {
    "DENSIFY": read_densify,
    "QUANTIZE": read_quantize,
    "DEQUANTIZE": read_dequantize,
}


#: How many steps of the result one of the data, of 8 bits and of 16, must not be for QUANTIZE: a stored integer, shifted left by as much,
#: has to fit 32 bits.
_MOST = 2.0**23, 2.0**15


def write_quantize(op: Op, w: Writing) -> None:
    """Quantize and Requantize as QUANTIZE.

    Where a step becomes more steps than its kernel's arithmetic holds, the float values stand between: one step more or less is then the
    whole range, so that nothing is rounded otherwise. They do too from int16 to uint8, for which there is no kernel, and in models of
    PyTorch, whose engines compute them, while XNNPACK's kernel has 8 bits of a step.
    """
    if op.attributes.get("arithmetic") and _write_form(op, w):
        return
    data, result = w.operand(op), w.result(op)
    first, second = data.quantization, result.quantization
    by_reals = w.graph.metadata.get(SOURCE_KERNELS, "").startswith("torch:")
    fits = first is None or second is None or float(first.scale.max()) / float(second.scale.min()) < _MOST[data.dtype == "int16"]
    lacks = (data.dtype, result.dtype) == ("int16", "uint8")  # the one pair of these types that no kernel has
    if first is None or (fits and not by_reals and not lacks):
        w.emit("QUANTIZE", op.inputs[:1], op.outputs)
        return
    real = w.emit_new("DEQUANTIZE", op.inputs[:1], f"{op.outputs[0]}/real", "float32", data.shape)
    w.emit("QUANTIZE", [real], op.outputs)


def _write_form(op: Op, w: Writing) -> bool:
    """A Quantize as PyTorch's engines round, decomposed; whether it has such a form."""

    def add(item: Tensor, hint: str) -> str:
        return w.add(f"{op.outputs[0]}/{hint}", item.dtype, item.shape, item.data, item.quantization)

    found = quantize_form(w.graph.tensors, op, "tflite", add)
    for made in found[0] if found is not None else []:
        if made.kind in WRITERS:
            WRITERS[made.kind](made, w)
        else:
            w.emit(made.kind.upper(), made.inputs, made.outputs, fusedActivationFunction=w.activation(made))
    return found is not None


def write_dequantize(op: Op, w: Writing) -> None:
    """DEQUANTIZE; of constants with scales in blocks, which its kernel does not look at, the float values."""
    stored, result = w.operand(op), w.result(op)
    if stored.quantization is not None and stored.quantization.block_size and stored.data is not None:
        real = dequantize(stored.data, stored.quantization).astype(numpy_dtype(result.dtype))
        w.tensors[result.name] = replace(result, data=real)
        return
    w.emit("DEQUANTIZE", op.inputs[:1], op.outputs)


def write_relabel(op: Op, w: Writing) -> None:
    """Reinterpret and Identity as a RESHAPE to the same shape, which copies the stored values whatever their scales."""
    shape = w.operand(op).shape or ()
    if reshape_sizes(shape).count(-1) > 1:
        whole = w.emit_new("SHAPE", op.inputs, f"{op.outputs[0]}/shape", "int32", (len(shape),))
        w.emit("RESHAPE", [op.inputs[0], whole], op.outputs)
        return
    reshape_to_result(op, w)


WRITERS: Writers = {
    "Quantize": write_quantize,
    "Requantize": write_quantize,
    "Dequantize": write_dequantize,
    "Reinterpret": write_relabel,
    "Identity": write_relabel,
}
