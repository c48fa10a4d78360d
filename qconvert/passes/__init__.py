"""Rewritings of the canonical graph, one a file, or a few of one subject. Each is a function of its name that takes (graph, target) and
returns the new graph and what it changed.

BUILTIN is their register: the change that each makes, whether it is exact, its options, and the passes that run before it. Passes
are imported when they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from qconvert.plugins import Option, Pass, defer_imports, hookimpl
from qconvert.plugins.options import FORM, NUMERICS, WEIGHTS_BY_CPU

__all__ = ["BUILTIN", "qconvert_passes"]

_lazy = defer_imports(__name__)


def _pass(path: str, summary: str, *, within: float | None = None, **more: Any) -> Pass:
    """A pass by its name, after the name of its file if that is another one."""
    module, _, name = path.rpartition(".")
    return Pass(name, summary, _lazy(module or name, name), within=within, **{"exact": within is None, **more})


#: Of tensors that have the quantization, not Quantize and Dequantize around operators: the property holds after reading.
_absorbed = partial(_pass, requires=("absorbed",))


_IO_LAYOUT = Option(
    "io_layout", str, "", "4-D inputs and outputs: nchw (channels first) or nhwc (last).", ("nchw", "nhwc"), common=True, border=True
)
_IO = "Inputs and outputs: float (instead of quantized ones), or integer (where the model quantizes them at once)."
_IO_FLOAT = Option("io", str, "", _IO, ("float", "integer"), by_hand="float", common=True, border=True)
_IO_INTEGER = Option("io", str, "", _IO, ("float", "integer"), by_hand="integer", common=True, border=True)
_CUSTOM = Option("custom", str, "carry", "Custom operators: carry or refuse; keep: compiled ones too.", ("carry", "refuse", "keep"))
_DYNAMIC = Option(
    "dynamic",
    str,
    "",
    "Dynamic quantization in ONNX: keep (data are quantized at run time) or real (float), the default for other sources.",
    ("keep", "real"),
)
_BIASES = Option(
    "biases",
    str,
    "round",
    "Float biases of PyTorch's layers: round (integer kernels) or keep (equal results, in float, slower).",
    ("round", "keep"),
)
_UNROLL = Option("unroll", int, 0, "ONNX: unroll integer LSTMs and Scans with at most this many steps; 0: none.")
_TABLES = Option(
    "tables",
    str,
    "missing",
    "Lookup tables for functions of one tensor: missing (those that the format lacks), chains (of two or more "
    "operators), chains16 (16 bits too).",
    ("missing", "chains", "chains16"),
)
_FIXED_POINT = Option(
    "fixed_point",
    str,
    "single",
    "Rounding of multiplier and shift: single (once, ties up), away (once, ties away from zero), double (as TFLite's reference kernels).",
    ("single", "away", "double"),
)
_ENCODINGS = Option("encodings", str, "", "A file with scales of the float model; the model is quantized with them.", is_file=True)
_ENCODINGS_OPTIONS = Option("encodings_options", str, "{}", "Options of the reader of --encodings, as JSON; its own flags mean the same.")
_FILL = Option(
    "fill", str, "none", "With infer, data movement, pools and Relu pass quantization on where the file gives none.", ("none", "infer")
)
_RANGE_DTYPE = Option(
    "range_dtype", str, "int8", "The type of activations for which encodings state only a range.", ("int8", "uint8", "int16", "uint16")
)
_NO_FLOAT = Option("no_float", bool, False, "Refuse a quantized model in which operators would run in float.", common=True)
_ROUNDING = Option(
    "rounding", str, "up", "Exponent that power_of_two chooses: up (the formula), nearest (may clip) or mse (least squared error).",
    ("up", "nearest", "mse"),
)  # fmt: skip
_SCHEME = Option(
    "scheme", str, "types", "Formulas of google_scales for activations: symmetric, affine, or types (symmetric for signed types).",
    ("types", "symmetric", "affine"),
)  # fmt: skip
_REDUCE = Option(
    "reduce", str, "weights", "What reduced_range reduces to 7 bits: weights, activations or both.", ("weights", "activations", "both")
)
_ZERO_POINTS = Option(
    "zero_points", str, "shift", "Zero points that TensorRT lacks: shift (integers and scales are kept) or symmetric (new scales, lossy).",
    ("shift", "symmetric"),
)  # fmt: skip
_PAIRS = Option(
    "pairs",
    str,
    "every",
    "Quantization that sparse_pairs keeps: every, or sparse (only where products read integers).",
    ("every", "sparse"),
    by_hand="sparse",
)
_WEIGHT_BITS = Option("weight_bits", int, 0, "Bits of weights after change_bits: 4, 8 or 16; 0 keeps them.", (0, 4, 8, 16))
_ACTIVATION_BITS = Option("activation_bits", int, 0, "Bits of activations after change_bits: 4, 8 or 16; 0 keeps them.", (0, 4, 8, 16))
_EDGES = Option(
    "edges",
    str,
    "keep",
    "Quantization of graph inputs and outputs: keep (a Requantize is added) or change.",
    ("keep", "change"),
    border=True,
)
_SCOPE = Option(
    "scope", str, "asked", "Tensors that become symmetric: asked (those that the target requires) or all (the default with --pass).",
    ("asked", "all"), by_hand="all",
)  # fmt: skip
_GRANULARITY = Option(
    "granularity", str, "axis", "Scales of weights that change: axis (per-channel) or tensor (per-tensor).", ("axis", "tensor"),
)  # fmt: skip
_BLOCK_SIZE = Option(
    "block_size",
    int,
    0,
    "Weights per block with one scale each, for weights that change_bits makes narrower; 0: no blocks.",
    (0, 16, 32, 64, 128, 256),
)
#: Three change a value by one step where it is a tie, and little else: match_rounding rounds as the source's kernel does, isolate_float
#: rounds to float32 before it quantizes, and matmul_to_gemm may add in another order.
_REGISTER = (
    _pass("missing_operators.carry_custom", "list custom operators; refuse compiled ones, or all", options=(_CUSTOM,)),
    _pass("states.lift_states",
          "pass states that functions read and write through them as values; the network reads and writes the states"),
    _pass("pads_and_dilations.fuse_dilation", "replace SpaceToBatch, a convolution and BatchToSpace with one dilated convolution"),
    _pass("pads_and_dilations.fuse_pad", "replace a Pad with zeros before a convolution with the convolution's own padding"),
    _pass("assign_layout", "give spatial operators the target's layout, with the fewest Transposes",
         options=(_IO_LAYOUT,), after=("fuse_dilation", "fuse_pad", "widen_1d", "matmul_to_gemm"), ensures=("layout",)),
    _pass("match_rounding", "round additions, and convolutions of 16-bit data, as the source's kernel does",
         options=(NUMERICS, _BIASES, _IO_INTEGER), within=4e-3),
    _pass("dynamic_range", "quantize data at run time as the target does, or compute in float",
         options=(_DYNAMIC, NUMERICS), within=0.05),
    _absorbed("stored_types.store_activations", "store 8-bit activations as the target's integer type; dequantized values are unchanged",
         after=("match_rounding",)),
    _absorbed("isolate_float.movement_in_float",
          "move, select and compare data of 2 and 4 bits in float, because no runtime of ONNX moves such integers",
         after=("store_activations",)),
    _pass("weight_storage.guard_saturation", "store weights as uint8 whose sums would saturate in the target's kernels",
         after=("store_activations",)),
    _pass("number_types.float_io", "make quantized graph inputs and outputs float, with the conversion inside the graph",
         options=(_IO_FLOAT,), after=("match_scales", "store_activations", "symmetric_activations")),
    _pass("weights_and_biases.per_tensor_to_per_axis", "repeat the scale of per-tensor weights and biases for each output channel"),
    _pass("weights_and_biases.per_axis_to_per_tensor", "requantize per-channel weights to one scale",
         within=0.1, after=("symmetric_weights",)),
    _pass("stored_types.signed_to_unsigned",
          "store signed quantized tensors of 4, 8 and 16 bits as unsigned integers, graph inputs and outputs too", border=True),
    _pass("stored_types.unsigned_to_signed",
          "store unsigned quantized tensors of 4, 8 and 16 bits as signed integers, graph inputs and outputs too",
          border=True),
    _pass("batch_norms.fold_qat_batch_norm", "fold what quantization-aware training leaves after a convolution into its bias",
         within=1e-5),
    _pass("batch_norms.fold_batch_norm", "fold a BatchNormalization after a float convolution or Gemm into its weights and bias",
         within=1e-05),
    _pass("constants.fold_constants", "replace operators on constants with their results"),
    _pass("constants.compute_constants", "compute once what depends on constants alone, each operator rounded once",
         within=4e-3, after=("fold_constants",)),
    _pass("activations.fuse_activation", "fuse a Relu or Clip into the operator before it, or remove it if the quantization clips already"),
    _absorbed("activations.decompose_activations", "write fused and implied activations as operators, for programs that get floats",
         after=("fuse_activation", "store_activations")),
    _pass("requantizations.remove_redundant_requantize",
          "remove conversions between equal scales and zero points; replace two in a row with one"),
    _pass("weights_and_biases.int32_bias_to_float", "make int32 biases of quantized operators float32",
         within=1e-05),
    _pass("weights_and_biases.float_bias_to_int32", "quantize float32 biases of quantized operators to int32 at input scale * weight scale",
         within=0.02,
         after=("symmetric_weights", "fold_batch_norm")),
    _pass("constants.deduplicate_constants", "merge constants of equal type, shape, data and quantization"),
    _pass("dynamic_range.fuse_integer_products",
          "replace products of integers, and the scales of their sums, with products of quantized operands", within=1e-5),
    _pass("absorb_quantization", "replace Quantize and Dequantize around float operators with quantized operators",
         ensures=("absorbed",), after=("fuse_integer_products",)),
    _pass("dynamic_range.fuse_dynamic",
          "replace nodes that quantize data at run time, multiply integers and scale the sums with one operator",
         after=("absorb_quantization",)),
    _pass("apply_encodings", "quantize a float model with scales from a separate file",
         options=(_ENCODINGS, _ENCODINGS_OPTIONS, _FILL, _RANGE_DTYPE), exact=False),
    _pass("fuse_recurrence", "replace decomposed loops over a sequence with LSTM, GRU, RNN or Scan", within=1e-5),
    _pass("recurrences.real_recurrence", "compute integer LSTMs in float between their quantized tensors, with numerics fast",
         options=(NUMERICS,), exact=False, after=("fuse_recurrence",)),
    _pass("recurrences.unroll_sequences", "unroll loops over short sequences, with the option unroll",
         options=(_UNROLL,), after=("fuse_recurrence", "real_recurrence")),
    _pass("restate_attributes", "restore attributes and limits that the source's format cannot state from its metadata"),
    _pass("number_types.widen_float16", "compute networks of float16 and bfloat16 in float32; weights stay float16",
         within=0.05),
    _pass("convolutions.widen_1d", "replace 1-D convolutions and pools with 2-D ones"),
    _pass("convolutions.dense_weights", "replace groups and dilations that the target lacks with zeros among the weights of convolutions"),
    _pass("fuse_functions", "replace functions that an exporter decomposed, such as Gelu, with one operator each",
         within=1e-05),
    _absorbed("missing_operators.unary_to_table",
          "replace elementwise functions of one quantized tensor with lookup tables: those that the target lacks, or chains",
         options=(_TABLES,), after=("store_activations", "symmetric_activations", "assign_layout")),
    _pass("pads_and_dilations.separate_pads", "pad before a SpaceToBatch, where the target's kernel fills what it pads wrongly"),
    _pass("convolutions.crop_transposed", "put a Slice after a ConvTranspose with unequal pads, which then has equal ones"),
    _pass("convolutions.transposed_to_conv", "replace a ConvTranspose with strides of 1 with a Conv"),
    _pass("isolate_float.clip_before_quantize",
          "clip a Softmax, a conversion to another type, or a product of float weights before the Quantize, for runtimes that fuse them",
         within=1e-05),
    _pass("number_types.narrow_indices", "give indices as int32 in place of int64, for runtimes whose kernels give no other", border=True),
    _pass("shapes.settle_sizes", "replace dynamic dimensions with the number that the operators require, where there is just one"),
    _pass("shapes.merge_reshapes", "replace a chain of Reshape, Squeeze and Unsqueeze with one Reshape, or nothing"),
    _pass("gemms.matmul_to_gemm", "replace a MatMul with constant weights, and the bias added after it, with a Gemm",
         within=1e-05, after=("fuse_functions",)),
    _absorbed("gemms.gemm_to_conv", "replace a Gemm of quantized rows with a 1x1 convolution between two Reshapes",
         after=("matmul_to_gemm", "assign_layout")),
    _absorbed("convolutions.pool_to_mean", "replace an average over all positions with a mean along the two axes",
         within=4e-3),
    _absorbed("operand_scales.quantize_operands", "quantize float constants that are combined with quantized data",
         within=0.05,
         after=("store_activations", "unary_to_table")),
    _pass("weight_storage.symmetric_weights", "make constant weights signed with zero point 0",
         options=(_SCOPE,), within=0.1,
         after=("matmul_to_gemm", "fold_batch_norm", "store_activations")),
    _absorbed("scales_and_zero_points.symmetric_activations", "requantize signed activations with zero point 0",
         options=(_SCOPE, _EDGES, _ZERO_POINTS), within=0.2,
         after=("store_activations",)),
    _absorbed("scales_and_zero_points.affine_activations",
          "requantize symmetric 8-bit activations with a zero point where part of their range is never used",
         options=(_EDGES,), within=0.05),
    _absorbed("scales_and_zero_points.power_of_two", "make scales powers of two and zero points 0",
         options=(_ROUNDING, _GRANULARITY, _EDGES), tried=({}, {"rounding": "mse"}, {"rounding": "mse", "granularity": "tensor"}),
         within=0.2),
    _absorbed("scales_and_zero_points.google_scales", "compute scales by the google formulas for the range of each tensor",
         options=(_SCHEME, _GRANULARITY, _EDGES), tried=({"scheme": "symmetric"}, {"scheme": "affine"}),
         within=0.2),
    _pass("integer_ranges.narrow_range", "leave the lowest integer of the type of weights out",
         within=0.05),
    _absorbed("integer_ranges.reduced_range", "use 7 of 8 bits for weights, activations or both",
         options=(_REDUCE, _GRANULARITY), tried=({"reduce": "weights"}, {"reduce": "activations"}),
         within=0.1),
    _absorbed("integer_ranges.change_bits", "store weights, activations or both in 4, 8 or 16 bits",
         options=(_WEIGHT_BITS, _ACTIVATION_BITS, _GRANULARITY, _BLOCK_SIZE, _EDGES),
         tried=({"weight_bits": 4}, {"activation_bits": 16}),
         within=0.3),
    _absorbed("isolate_float", "run operators in float, between Dequantize and Quantize, that the target cannot run on integers",
         options=(_NO_FLOAT, NUMERICS), within=4e-3,
         after=("quantize_operands", "symmetric_weights", "float_bias_to_int32", "store_activations")),
    _pass("missing_operators.lower_missing", "compose operators that the target's runtime has no kernel for of others that it has",
         within=1e-4, after=("isolate_float", "unary_to_table")),
    _absorbed("operand_scales.match_scales", "give results and operands the scales that the target's kernels require",
         within=0.05,
         after=("isolate_float", "symmetric_activations", "store_activations")),
    _absorbed("shift_to_symmetric", "shift signed activations to the zero point 0; integers and scales are kept, dequantized values shift",
         options=(_SCOPE,), within=4e-3,
         after=("symmetric_weights", "symmetric_activations", "store_activations", "isolate_float", "assign_layout"),
         ensures=("shifted zero points",)),
    _absorbed("restore_zero_points", "restore the zero points of activations that shift_to_symmetric shifted, from the metadata",
         within=4e-3),
    _absorbed("requantizations.sparse_pairs", "clip, and do not round, activations that no product reads as integers",
         options=(_PAIRS,), within=0.05,
         after=("isolate_float", "shift_to_symmetric", "float_io", "integer_io")),
    _pass("convolutions.spread_addends", "replace a number added after a 1-D convolution with a vector that has it for each channel",
         after=("shift_to_symmetric", "sparse_pairs")),
    _pass("requantizations.per_axis_in_float", "quantize activations with scales along an axis by float operators", within=4e-3),
    _absorbed("requantizations.requantize_in_float", "requantize by float values where the target's integer kernel rounds otherwise",
         options=(NUMERICS,), within=4e-3,
         after=("match_scales", "isolate_float", "remove_redundant_requantize"), ensures=("one rounding",)),
    _pass("number_types.integer_io", "make graph inputs and outputs integer that are quantized at once",
         options=(_IO_INTEGER,), after=("match_scales", "isolate_float", "float_io")),
    _pass("states.states_to_io", "turn states into inputs and outputs, which the program carries from one run to the next",
         after=("assign_layout", "store_activations", "float_io", "integer_io"), ensures=("no states",)),
    _pass("states.io_to_states", "turn inputs and outputs that the metadata name as states into states"),
    _pass("pixels.merge_pixels", "give convolutions of few channels those of neighbouring pixels, for onnxruntime's kernels",
         options=(WEIGHTS_BY_CPU,), after=("fold_qat_batch_norm", "fuse_dilation", "fuse_pad", "match_rounding", "split_wide_weights")),
    _pass("pixels.split_pixels", "restore the convolutions of pixels from those of blocks of pixels"),
    _pass("wide_weights.split_wide_weights",
         "give convolutions int8 weights for uint8 ones, some on copied channels, for onnxruntime's kernels",
         options=(WEIGHTS_BY_CPU,), after=("fold_qat_batch_norm", "fuse_dilation", "fuse_pad", "match_rounding")),
    _pass("wide_weights.join_wide_weights", "restore the uint8 weights of convolutions from int8 ones on copied channels"),
    _pass("decompose_weights", "write integer weights of float operators as Cast, Sub and Mul, which onnxruntime folds at load",
         options=(FORM,), after=("store_activations", "guard_saturation", "float_io", "integer_io")),
    _absorbed("requantize_to_fixed_point", "write requantization as an integer multiplier and shifts of integer sums",
         options=(_FIXED_POINT,), within=4e-3,
         after=("store_activations", "guard_saturation", "match_rounding", "isolate_float", "match_scales")),
    _pass("sums_in_float", "compute sums of integer products in float32, in parts where float32 would not be exact",
         after=("fuse_dynamic",)),
    _pass("constants.remove_dead_code", "remove operators and tensors that no output needs"),
)  # fmt: skip

BUILTIN: Mapping[str, Pass] = {item.name: item for item in _REGISTER}


@hookimpl
def qconvert_passes() -> Iterable[Pass]:
    return _REGISTER
