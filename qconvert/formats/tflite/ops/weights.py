"""The weights of convolutions in the order of axes that TFLite's operators have."""

from __future__ import annotations

from qconvert.formats.tflite.reading import Reading
from qconvert.formats.tflite.writing import Writing
from qconvert.graph import Op, Quantization

__all__ = ["find_weight_dequantize", "transpose_quantization", "write_weights"]


def transpose_quantization(r: Reading, index: int, perm: tuple[int, ...]) -> Quantization | None:
    """The quantization of the weights in input `index` after the transposition to O,I,spatial. A kernel takes scales along the outputs
    alone; a DEQUANTIZE before it takes them along any axis."""
    maker = r.find_dequantize(index)
    weights = r.tensor(index) if maker is None else r.lookup(maker.inputs[0])
    quantization = weights.quantization
    if quantization is None or quantization.axis is None:
        return quantization
    if maker is None and quantization.axis != perm[0]:
        raise r.invalid(f"weights {weights.name!r} are quantized along axis {quantization.axis}", rule="weight-axis")
    return quantization.transpose(perm)


def find_weight_dequantize(op: Op, w: Writing) -> Op | None:
    """The operator that makes the weights of `op` of a constant, float16 or integers, by a DEQUANTIZE; None if there is none."""
    maker = w.producer(op.inputs[1])
    if maker is None or maker.kind not in ("Cast", "Dequantize") or w.graph[op.inputs[1]].dtype != "float32":
        return None
    stored = w.graph[maker.inputs[0]]
    if stored.quantization is not None and stored.quantization.block_size:
        return None
    return maker if stored.is_constant and (stored.dtype == "float16" or maker.kind == "Dequantize") else None


def write_weights(op: Op, w: Writing, key: str, axes: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The weights of `op` with their axes in TFLite's order, after a DEQUANTIZE if they have one; and their shape, O,I,spatial.

    Args:
        op: with weights in input 1.
        w: what is written.
        key: names the order.
        axes: the order.
    """
    maker = find_weight_dequantize(op, w)
    name = maker.inputs[0] if maker is not None else op.inputs[1]
    data, quantization = w.graph.constant(name), w.graph[name].quantization
    if data is None:
        return _write_computed_weights(op, w, name, axes)
    if data.ndim != len(axes):
        raise w.unsupported_error(op, f"weights of rank {data.ndim}", rule="wrong-rank")
    moved = None if quantization is None else quantization.transpose(axes)
    kernel = w.variant(name, key, data.transpose(axes), moved)
    if maker is None:
        return kernel, data.shape
    w.retract(maker)
    real = w.add(f"{op.inputs[1]}/{key}", "float32", w.tensor(kernel).shape)
    w.emit("DEQUANTIZE", [kernel], [real], "DequantizeOptions")
    return real, data.shape


def _write_computed_weights(op: Op, w: Writing, name: str, axes: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Weights that are computed at run time after a TRANSPOSE; without that and the one before it, if they cancel out."""
    shape, maker, quantization = w.shape(name, op), w.producer(name), w.tensor(name).quantization
    if len(shape) != len(axes) or (quantization is not None and not quantization.is_per_tensor):
        raise w.unsupported_error(op, f"weights {name!r} of shape {shape} that are computed at run time", rule="weights-not-constant")
    if maker is not None and maker.kind == "Transpose" and [maker["perm"][axis] for axis in axes] == list(range(len(axes))):
        w.retract(maker)
        return maker.inputs[0], shape
    result = w.like(f"{name}/turned", name, tuple(shape[axis] for axis in axes))
    w.emit("TRANSPOSE", [name, w.ints(axes, f"{name}/perm")], [result], "TransposeOptions")
    return result, shape
