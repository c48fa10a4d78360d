"""Linear layers of packed weights on real data: weights in float16, and data that the layer itself rounds onto a grid."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.formats.torch.ops.layers import bias_of, quantized, rows
from qconvert.formats.torch.reading import Call, Operator, ReadFunction
from qconvert.formats.torch.values import Ref
from qconvert.graph import Quantization

__all__ = ["OPERATORS"]


def _finished(c: Call, result: Ref, activation: str) -> Ref:
    return c.emit(activation, [result.name]) if activation else result


def read_half(activation: str = "") -> ReadFunction:
    """quantized::linear_dynamic_fp16: weights that float16 holds, data as they are."""

    def read(c: Call) -> Ref:
        packed = c.packed("W_prepack")
        if packed.weight.scales is not None:
            raise c.invalid("its weights are quantized")
        weights = c.const(packed.weight.data.astype(np.float32), "weights")
        return _finished(c, rows(c, c.name("X"), [weights, *bias_of(c, packed)], None), activation)

    return read


def read_rounded(activation: str = "") -> ReadFunction:
    """quantized::linear_with_input_q_dq_qweight_dq_output_fp32: data are rounded onto a grid that the call states; the result is real."""

    def read(c: Call) -> Ref:
        packed = quantized(c)
        grid: Quantization = c.grid("X_scale", "X_zero_point", "uint8")
        stored = c.emit("Quantize", [c.name("X")], dtype="uint8", grid=grid, hint="rounded")
        weights = c.stored(packed.weight, f"{packed.name}.weight")
        return _finished(c, rows(c, stored.name, [weights, *bias_of(c, packed)], None, dtype="float32"), activation)

    return read


_STATIC = "T X, f X_scale, i X_zero_point, o W_prepack"

OPERATORS: Mapping[str, Operator] = {
    **{
        f"quantized::linear{name}_dynamic_fp16": Operator("T X, o W_prepack", read_half(activation))
        for name, activation in (("", ""), ("_relu", "Relu"))
    },
    "quantized::linear_with_input_q_dq_qweight_dq_output_fp32": Operator(_STATIC, read_rounded()),
    "quantized::linear_with_input_q_dq_qweight_dq_relu_output_fp32": Operator(_STATIC, read_rounded("Relu")),
}
