"""LiteRT with XNNPACK on CPUs, and microcontrollers. What their kernels are is in kernels/litert."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from qconvert.kernels import KERNELS
from qconvert.plugins import Storage, Target, defer_imports

_PASSES = (
    "lift_states", "expand_definitions", "carry_custom", "sums_in_float", "fold_constants", "compute_constants", "widen_float16",
    "settle_sizes", "per_axis_in_float",
    "dynamic_range", "decompose_recurrence", "fold_qat_batch_norm", "fold_batch_norm", "fuse_functions", "dense_weights", "widen_1d",
    "matmul_to_gemm", "fuse_activation", "match_rounding", "assign_layout", "merge_reshapes", "store_activations", "symmetric_activations",
    "unary_to_table", "quantize_operands", "symmetric_weights", "float_bias_to_int32", "remove_redundant_requantize", "isolate_float",
    "match_scales", "float_io", "integer_io", "merge_reshapes", "remove_dead_code",
)  # fmt: skip

_EDGES = _PASSES.index("float_io")
#: Who demands what: "specification" is the TFLite 8-bit quantization specification.
_SOURCES = {
    "activation_dtypes": "specification",
    "conversion_dtypes": "quantize.cc, measured",
    "activation_granularity": "specification",
    "symmetric_activations": "specification; add.cc, conv.cc, concatenation.cc, measured",
    "one_type": "kernels compare types; measured",
    "explicit_conversions": "kernels compare types",
    "weight_dtypes": "specification; conv.cc, measured",
    "symmetric_weights": "specification; conv.cc:390, measured",
    "weight_granularity": "specification; kernel_util.cc:240, measured",
    "bias_dtypes": "specification; kernel_util.cc",
    "fixed_outputs": "specification; activations.cc, l2norm.cc, measured",
    "equal_scales": "specification; pooling.cc, maximum_minimum.cc, measured",
}


#: What kernels do not take beyond the data below.
_own_rules = defer_imports("qconvert.targets")("rules_tflite", "own_rules")

_STORAGE = Storage(
    activations="int8", weights="int8", activation_dtypes=("int8", "uint8", "int16"), conversion_dtypes=("int32",),
    activation_granularity="per_tensor", symmetric_activations=("int16",), free_edges=False, one_type=True, explicit_conversions=True,
    weight_dtypes={"int8": ("int8", "int4"), "int16": ("int8", "int4"), "uint8": ("uint8",)}, symmetric_weights=True,
    weight_granularity="per_axis_signed", bias_dtypes={"int8": ("int32",), "uint8": ("int32",), "int16": ("int32", "int64")},
)  # fmt: skip

_LITERT = Target(
    "tflite", "tflite", "LiteRT with XNNPACK: int8 where no weight changes by that, else as the source has it",
    passes=(*_PASSES[:_EDGES], "requantize_in_float", *_PASSES[_EDGES:]),
    layout="channels_last", storage=replace(_STORAGE, activations="int8_or_source", weights="source"), kernels=KERNELS["litert:default"],
    own_rules=_own_rules, sources=_SOURCES,
)  # fmt: skip

TARGETS = (
    _LITERT,
    _LITERT.derive(name="tflite-micro", summary="microcontrollers: what tflite-micro has, int8 activations, signed symmetric weights",
                   passes=("separate_pads", *_PASSES[:-2], "narrow_indices", "lower_missing", *_PASSES[-2:]), storage=_STORAGE,
                   kernels=KERNELS["tflite-micro:reference"],
                   own_rules=partial(_own_rules, is_micro=True)),
    _LITERT.derive(name="tflite-uint8", summary="LiteRT: uint8 activations and weights, one scale for each tensor",
                   storage=replace(_STORAGE, activations="uint8", weights="uint8")),
    _LITERT.derive(name="tflite-same", summary="LiteRT: uint8 or int8 as the source has it, where LiteRT has kernels for it",
                   storage=replace(_STORAGE, activations="source", weights="source")),
)  # fmt: skip
