"""Weights that no Quantization describes, decoded by operators: codes with a table of values, and blocks with an offset."""

from __future__ import annotations

import numpy as np

from qconvert.conversion.states.network import Network
from qconvert.graph import Array, Op, Tensor
from qconvert.plugins import Decoding

__all__ = ["decoded"]


def decoded(network: Network, stored: str, decoding: Decoding, source: str) -> tuple[str, list[Op]]:
    """The name of a stored weight decoded to float, and the operators that decode it.

    Args:
        network: gets the intermediate tensors.
        stored: the weight, [N, K].
        decoding: the scales, and the table or offsets.
        source: of the operators.
    """
    ops: list[Op] = []
    shape = network[stored].static_shape
    assert shape is not None
    parts = (shape[0], decoding.scales.shape[1], shape[1] // decoding.scales.shape[1])

    def constant(hint: str, values: Array) -> str:
        return network.add(f"{stored}/{hint}", Tensor("", str(values.dtype), values.shape, values))

    def after(kind: str, inputs: tuple[str, ...], dtype: str, sizes: tuple[int, ...], **attributes: int | str) -> str:
        made = network.add(f"{stored}/{kind.lower()}", Tensor("", dtype, sizes))
        ops.append(Op(kind, inputs, (made,), attributes, source))
        return made

    real = after("Dequantize", (stored,), "float32", shape)
    if decoding.table is not None:
        indices = after("Cast", (real,), "int32", shape, to="int32")
        real = after("Gather", (constant("table", decoding.table), indices), "float32", shape, axis=0)
        kind, numbers = "Mul", decoding.scales
    else:
        kind, numbers = "Add", decoding.offsets if decoding.offsets is not None else np.zeros_like(decoding.scales)
    in_blocks = after("Reshape", (real, constant("blocks", np.array(parts, np.int64))), "float32", parts)
    numbers = np.ascontiguousarray(numbers[..., None], dtype=np.float32)
    changed = after(kind, (in_blocks, constant("scales" if kind == "Mul" else "offsets", numbers)), "float32", parts)
    return after("Reshape", (changed, constant("shape", np.array(shape, np.int64))), "float32", shape), ops
