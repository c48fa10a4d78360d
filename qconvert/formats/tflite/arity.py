"""How many inputs and outputs each builtin operator has, as LiteRT's kernels demand; checked once, before a read function runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["ARITY", "wrong_arity"]

#: "inputs optional ones outputs"; "+" is any number from one.
_COUNTS = {
    "0 0 0": "CALL_ONCE",
    "0 0 1": "VAR_HANDLE",
    "2 0 0": "ASSIGN_VARIABLE",
    "1 0 1": "ABS NEG EXP LOG SQRT SQUARE RSQRT SIN COS ROUND FLOOR CEIL SIGN RELU RELU6 RELU_N1_TO_1 RELU_0_TO_1 ELU GELU HARD_SWISH "
             "LEAKY_RELU LOGISTIC TANH SOFTMAX LOG_SOFTMAX L2_NORMALIZATION QUANTIZE DEQUANTIZE CAST LOGICAL_NOT AVERAGE_POOL_2D "
             "MAX_POOL_2D L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION ZEROS_LIKE RANK BITCAST FAKE_QUANT BUCKETIZE REAL IMAG COMPLEX_ABS "
             "MATRIX_DIAG DENSIFY SPACE_TO_DEPTH DEPTH_TO_SPACE SQUEEZE SHAPE WHERE READ_VARIABLE Landmarks2TransformMatrix",
    "1 1 1": "RESHAPE",
    "2 0 1": "ATAN2 BITWISE_XOR RIGHT_SHIFT STABLEHLO_ADD STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_MINIMUM STABLEHLO_AND "
             "STABLEHLO_SHIFT_LEFT STABLEHLO_GATHER STABLEHLO_REDUCE_WINDOW "
             "STABLEHLO_PAD EMBEDDING_LOOKUP SEGMENT_SUM MATRIX_SET_DIAG RFFT2D BROADCAST_ARGS ADD SUB MUL DIV "
             "MAXIMUM MINIMUM POW FLOOR_DIV FLOOR_MOD SQUARED_DIFFERENCE EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS "
             "LESS_EQUAL LOGICAL_AND LOGICAL_OR MEAN SUM REDUCE_PROD REDUCE_MAX REDUCE_MIN REDUCE_ANY REDUCE_ALL ARG_MAX ARG_MIN CUMSUM "
             "BATCH_MATMUL RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR EXPAND_DIMS TRANSPOSE PAD MIRROR_PAD TILE BROADCAST_TO FILL GATHER "
             "GATHER_ND REVERSE_SEQUENCE REVERSE_V2 PRELU MaxUnpooling2D TransformLandmarks TransformTensorBilinear",
    "2 1 1": "CONV_2D CONV_3D DEPTHWISE_CONV_2D FULLY_CONNECTED",
    "3 0 1": "DYNAMIC_UPDATE_SLICE DILATE UNSORTED_SEGMENT_SUM UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_MIN "
             "Convolution2DTransposeBias SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND SLICE PADV2 SCATTER_ND SELECT SELECT_V2 RANGE",
    "3 1 1": "TRANSPOSE_CONV CONV_3D_TRANSPOSE",
    "3 2 1": "SVDF",
    "1 23 1": "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "5 0 1": "REDUCE_WINDOW UNIDIRECTIONAL_SEQUENCE_RNN RNN",
    "1 23 +": "LSTM",
    "1 47 +": "BIDIRECTIONAL_SEQUENCE_LSTM",
    "9 3 +": "BIDIRECTIONAL_SEQUENCE_RNN",
    "4 0 1": "STRIDED_SLICE ONE_HOT SPARSE_TO_DENSE",
    "2 0 2": "TOPK_V2",
    "1 0 2": "UNIQUE MaxPoolingWithArgmax2D",
    "5 0 2": "NON_MAX_SUPPRESSION_V4",
    "6 0 3": "NON_MAX_SUPPRESSION_V5",
    "1 0 +": "UNPACK",
    "2 0 +": "SPLIT",
    "3 0 +": "SPLIT_V",
    "+ 0 +": "IF WHILE CALL",
    "+ 0 1": "CONCATENATION PACK ADD_N",
    "3 0 4": "TFLite_Detection_PostProcess",
}  # fmt: skip
#: Operator -> (inputs, optional inputs after them, outputs); -1 is any number from one.
ARITY: Mapping[str, tuple[int, int, int]] = {
    name: (int(inputs.replace("+", "-1")), int(optional), int(outputs.replace("+", "-1")))
    for counts, names in _COUNTS.items()
    for inputs, optional, outputs in (counts.split(),)
    for name in names.split()
}


def wrong_arity(name: str, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """What is wrong with the inputs ("" for an absent one) and outputs of an operator, in words; "" if nothing is."""
    if name not in ARITY:
        return ""
    required, optional, results = ARITY[name]
    needed = inputs[:required] if required >= 0 else inputs
    if not all(needed):
        return f"input {list(needed).index('')} is absent"
    if required < 0 and not inputs:
        return "has 0 inputs, not at least one"
    if required >= 0 and not required <= len(inputs) <= required + optional:
        wanted = f"{required} to {required + optional}" if optional else str(required)
        return f"has {len(inputs)} input{'s' * (len(inputs) != 1)}, not {wanted}"
    if results >= 0 and len(outputs) != results:
        return f"has {len(outputs)} output{'s' * (len(outputs) != 1)}, not {results}"
    return ""
