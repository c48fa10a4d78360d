"""Linear layers of packed weights in float: weights in float16, and data that the layer itself rounds to a quantization."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.formats.torch.ops.layers import bias_of, emit_gemm, quantized_linear_params, require_real, rounding_of
from qconvert.formats.torch.packed_parameters import round_to_float16
from qconvert.formats.torch.reading import Call, Operator, ReadFunction
from qconvert.formats.torch.values import Ref
from qconvert.graph import Quantization

__all__ = ["OPERATORS"]


def _apply_activation(c: Call, result: Ref, activation: str) -> Ref:
    return c.emit(activation, [result.name]) if activation else result


def read_dynamic(activation: str = "") -> ReadFunction:
    """quantized::linear_dynamic and linear_dynamic_fp16. The packed weights choose the kernel, whichever operator is called.

    Next to quantized weights, data become integers at each run; qnnpack does not reduce their range. Weights in float16 are real weights.
    """

    def read(c: Call) -> Ref:
        packed, data = c.packed_parameters("W_prepack"), c.name("X")
        require_real(c, data)
        if packed.weight.scales is None:
            weights = c.const(packed.weight.data, "weights")
            return _apply_activation(c, emit_gemm(c, data, [weights, *bias_of(c, packed)], None), activation)
        factors = [c.add_constant(packed.weight, f"{packed.name}.weight"), *bias_of(c, packed)]
        return emit_gemm(c, data, factors, None, activation=activation.lower(), arithmetic=rounding_of(c))

    return read


def read_unpacked(c: Call) -> Ref:
    """quantized::linear_dynamic_fp16_unpacked_weight: the same on weights that the call rounds to float16."""
    weight = c.known(c.name("weight"))
    if weight is None or weight.dtype != np.float32:
        raise c.unsupported_error("weights that are computed at run time", rule="not-constant")
    weights = c.const(round_to_float16(weight), "weights")
    return emit_gemm(c, c.name("X"), [weights, *([c.name("bias")] if c["bias"] is not None else [])], None)


def read_rounded(activation: str = "") -> ReadFunction:
    """quantized::linear_with_input_q_dq_qweight_dq_output_fp32: data are rounded to a quantization that the call states; the result is
    real."""

    def read(c: Call) -> Ref:
        packed = quantized_linear_params(c)
        quantization: Quantization = c.quantization("X_scale", "X_zero_point", "uint8")
        stored = c.emit("Quantize", [c.name("X")], dtype="uint8", quantization=quantization, hint="rounded")
        weights = c.add_constant(packed.weight, f"{packed.name}.weight")
        return _apply_activation(c, emit_gemm(c, stored.name, [weights, *bias_of(c, packed)], None, dtype="float32"), activation)

    return read


_STATIC = "T X, f X_scale, i X_zero_point, o W_prepack"

OPERATORS: Mapping[str, Operator] = {
    **{
        f"quantized::linear{name}_dynamic{form}": Operator("T X, o W_prepack, b reduce_range=False", read_dynamic(activation))
        for name, activation in (("", ""), ("_relu", "Relu"))
        for form in ("", "_fp16")
    },
    "quantized::linear_dynamic_fp16_unpacked_weight": Operator("T X, T weight, T? bias", read_unpacked),
    "quantized::linear_with_input_q_dq_qweight_dq_output_fp32": Operator(_STATIC, read_rounded()),
    "quantized::linear_with_input_q_dq_qweight_dq_relu_output_fp32": Operator(_STATIC, read_rounded("Relu")),
}
