"""The integer arithmetic of the runtimes, in numpy: quantization, rounding, fixed point, requantization.

Each function gives the same bits as the kernel that it is named after, so that a difference between two
runtimes can be explained and predicted. An accumulator is int64 here; the kernels use int32, and valid models
stay inside it.

Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference" (2017), which defines the scheme; the TFLite 8-bit quantization specification; gemmlowp's
fixedpoint.h for the two integer roundings; TFLite's quantization_util.cc and common.h; XNNPACK's
microparams-init.c; OneFlow's min_max_observer and quantization kernels.
"""

from __future__ import annotations

from qconvert.arithmetic.accumulators import accumulator_quantization, accumulator_scale, is_accumulator_scale
from qconvert.arithmetic.addition_scales import nudge_add_scales
from qconvert.arithmetic.additions import ADDITIONS, INTEGER_FACTORS, has_addition, is_same_addition
from qconvert.arithmetic.basic_lstm import BASIC_GATES, BasicLstm
from qconvert.arithmetic.comparisons import tflite_comparison_tables
from qconvert.arithmetic.division import tflite_divide
from qconvert.arithmetic.dynamic import DYNAMIC_ROUNDINGS, OF_ROWS, OF_WHOLE_TENSORS, dynamic_steps
from qconvert.arithmetic.fixed_point import FIXED_POINT_ROUNDINGS, Difference, FixedPoint, compare_requantizations
from qconvert.arithmetic.folding import batch_norm_factor, bias_correction, fold_batch_norm
from qconvert.arithmetic.formulas import FORMULAS, PYTORCH_EPS, Formula, choose_quantization
from qconvert.arithmetic.int32_overflow import (
    GEMMLOWP_SCALES,
    tflite_curve,
    tflite_logarithm,
    tflite_requantize,
    tflite_softmax,
    tflite_wrapped_mean,
)
from qconvert.arithmetic.kernels import (
    average_away,
    average_up,
    has_xnnpack_add,
    onnxruntime_add,
    onnxruntime_softmax,
    tflite_add,
    tflite_hard_swish,
    tflite_leaky_relu,
    xnnpack_add,
    xnnpack_add_multipliers,
    xnnpack_leaky_relu,
    xnnpack_requantize,
)
from qconvert.arithmetic.lstm import GATES, IntegerGate, IntegerLstm, IntegerProjection
from qconvert.arithmetic.means import tflite_mean, tflite_mean_multiplier, xnnpack_reduce, xnnpack_reduction
from qconvert.arithmetic.requantize import (
    REQUANTIZERS,
    effective_scale,
    multiply_by_quantized_multiplier,
    predicted_rate_double_rounding,
    quantize_multiplier,
    requantize,
    rounding_divide_by_pot,
    saturating_rounding_doubling_high_mul,
    shift_half_up,
)
from qconvert.arithmetic.rounding import (
    ROUNDINGS,
    affine_range,
    dequantize,
    quantize,
    round_half_away,
    round_half_even,
    round_half_up,
    saturate,
    scale_and_zero_point,
)
from qconvert.arithmetic.sixteen_bits import PAIR_BITS, pair_factors, short_multipliers, tflite_pair, tflite_sums
from qconvert.arithmetic.svdf import IntegerSvdf
from qconvert.arithmetic.tables import lookup_table
from qconvert.arithmetic.torch_kernels import (
    TORCH_AVERAGES,
    averaging_scale,
    fbgemm_add,
    has_qnnpack_add,
    is_same_average,
    qnnpack_add,
    qnnpack_add_multipliers,
    qnnpack_bias,
    torch_average,
)
from qconvert.arithmetic.torch_quantize import SplitProduct, split_product, torch_quantize

__all__ = [
    "ADDITIONS",
    "BASIC_GATES",
    "DYNAMIC_ROUNDINGS",
    "FIXED_POINT_ROUNDINGS",
    "FORMULAS",
    "GATES",
    "GEMMLOWP_SCALES",
    "INTEGER_FACTORS",
    "OF_ROWS",
    "OF_WHOLE_TENSORS",
    "PAIR_BITS",
    "PYTORCH_EPS",
    "REQUANTIZERS",
    "ROUNDINGS",
    "TORCH_AVERAGES",
    "BasicLstm",
    "Difference",
    "FixedPoint",
    "Formula",
    "IntegerGate",
    "IntegerLstm",
    "IntegerProjection",
    "IntegerSvdf",
    "SplitProduct",
    "accumulator_quantization",
    "accumulator_scale",
    "affine_range",
    "average_away",
    "average_up",
    "averaging_scale",
    "batch_norm_factor",
    "bias_correction",
    "choose_quantization",
    "compare_requantizations",
    "dequantize",
    "dynamic_steps",
    "effective_scale",
    "fbgemm_add",
    "fold_batch_norm",
    "has_addition",
    "has_qnnpack_add",
    "has_xnnpack_add",
    "is_accumulator_scale",
    "is_same_addition",
    "is_same_average",
    "lookup_table",
    "multiply_by_quantized_multiplier",
    "nudge_add_scales",
    "onnxruntime_add",
    "onnxruntime_softmax",
    "pair_factors",
    "predicted_rate_double_rounding",
    "qnnpack_add",
    "qnnpack_add_multipliers",
    "qnnpack_bias",
    "quantize",
    "quantize_multiplier",
    "requantize",
    "round_half_away",
    "round_half_even",
    "round_half_up",
    "rounding_divide_by_pot",
    "saturate",
    "saturating_rounding_doubling_high_mul",
    "scale_and_zero_point",
    "shift_half_up",
    "short_multipliers",
    "split_product",
    "tflite_add",
    "tflite_comparison_tables",
    "tflite_curve",
    "tflite_divide",
    "tflite_hard_swish",
    "tflite_leaky_relu",
    "tflite_logarithm",
    "tflite_mean",
    "tflite_mean_multiplier",
    "tflite_pair",
    "tflite_requantize",
    "tflite_softmax",
    "tflite_sums",
    "tflite_wrapped_mean",
    "torch_average",
    "torch_quantize",
    "xnnpack_add",
    "xnnpack_add_multipliers",
    "xnnpack_leaky_relu",
    "xnnpack_reduce",
    "xnnpack_reduction",
    "xnnpack_requantize",
]
