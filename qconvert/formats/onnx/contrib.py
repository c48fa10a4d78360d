"""The signatures of operators outside ONNX that are read: onnxruntime's own (docs/ContribOperators.md), and QONNX's."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CONTRIB", "CONTRIB_SIGNATURES", "OUTPUTS", "QONNX", "QONNX_DOMAINS", "SIGNATURES"]

CONTRIB = "com.microsoft"
#: The domain of QONNX that is written, and those of older exporters.
QONNX = "qonnx.custom_op.general"
QONNX_DOMAINS = (QONNX, "finn.custom_op.general", "onnx.brevitas")

_ONE = "x x_scale x_zero_point? y_scale y_zero_point?"
_PAIR = "a a_scale a_zero_point? b b_scale b_zero_point? c_scale c_zero_point?"
_WINDOW = {"auto_pad": "STRING", "kernel_shape": "INTS", "pads": "INTS", "strides": "INTS", "channels_last": "INT"}

#: Operator -> its inputs ("?" after an optional one, "*" after one of which there may be any number) and its attributes with their
#: types ("!" after a required one). Each has one output, but for those in OUTPUTS.
CONTRIB_SIGNATURES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "QuantizeLinear": ("x y_scale y_zero_point?", {"axis": "INT"}),
    "DequantizeLinear": ("x x_scale x_zero_point?", {"axis": "INT"}),
    "DynamicQuantizeMatMul": ("a b b_scale b_zero_point? bias?", {}),
    "DynamicQuantizeLSTM": (
        "x w r b? sequence_lens? initial_h? initial_c? p? w_scale w_zero_point r_scale r_zero_point",
        {
            "activations": "STRINGS",
            "activation_alpha": "FLOATS",
            "activation_beta": "FLOATS",
            "clip": "FLOAT",
            "direction": "STRING",
            "hidden_size": "INT",
            "input_forget": "INT",
        },
    ),
    "Gelu": ("x", {}),
    "FastGelu": ("x bias?", {}),
    "BiasGelu": ("x bias", {}),
    "MatMulIntegerToFloat": ("a b a_scale b_scale a_zero_point? b_zero_point? bias?", {}),
    "MatMulNBits": (
        "a b scales zero_points? g_idx? bias?",
        {"K": "INT!", "N": "INT!", "bits": "INT", "block_size": "INT!", "accuracy_level": "INT", "weight_prepacked": "INT"},
    ),
    "QGemm": (
        "a a_scale a_zero_point b b_scale b_zero_point c? y_scale? y_zero_point?",
        {"alpha": "FLOAT", "transA": "INT", "transB": "INT"},
    ),
    "QLinearAdd": (_PAIR, {}),
    "QLinearMul": (_PAIR, {}),
    "QLinearWhere": ("condition x x_scale x_zero_point y y_scale y_zero_point z_scale z_zero_point", {}),
    "QLinearAveragePool": (_ONE, {**_WINDOW, "kernel_shape": "INTS!", "ceil_mode": "INT", "count_include_pad": "INT"}),
    "QLinearGlobalAveragePool": ("x x_scale x_zero_point y_scale y_zero_point", {"channels_last": "INT"}),
    "QLinearReduceMean": (_ONE, {"axes": "INTS!", "keepdims": "INT!"}),
    "QLinearLeakyRelu": (_ONE, {"alpha": "FLOAT"}),
    "QLinearSigmoid": (_ONE, {}),
    "QLinearSoftmax": ("x x_scale x_zero_point? y_scale y_zero_point", {"axis": "INT", "opset": "INT!"}),
    "QLinearConcat": ("y_scale y_zero_point inputs*", {"axis": "INT!"}),
    "QLinearConv": (
        "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point b?",
        {**_WINDOW, "dilations": "INTS", "group": "INT"},
    ),
}

#: The most outputs of those that have others than one.
OUTPUTS: Mapping[str, tuple[int, int]] = {"DynamicQuantizeLSTM": (0, 3)}

_ROUNDED = {"signed": "INT", "narrow": "INT", "rounding_mode": "STRING"}
_QONNX: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "Quant": ("x scale zero_point bit_width", _ROUNDED),
    "IntQuant": ("x scale zero_point bit_width", _ROUNDED),
    "BipolarQuant": ("x scale", {}),
    "Trunc": ("x scale zero_point in_bit_width out out_bit_width?", _ROUNDED),
}

SIGNATURES: Mapping[str, Mapping[str, tuple[str, Mapping[str, str]]]] = {
    CONTRIB: CONTRIB_SIGNATURES,
    **dict.fromkeys(QONNX_DOMAINS, _QONNX),
}
