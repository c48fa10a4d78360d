"""Rewritings of the canonical graph, one a file. Each takes (graph, target) and returns the new graph and what it changed.

BUILTIN is their register: what each changes, whether that is exact, its options, and what stands before it. Passes are imported when
they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from qconvert.passes.grids.options import BLOCK_SIZE, EDGES, GRANULARITY, SCOPE
from qconvert.plugins import Option, Pass, hookimpl
from qconvert.plugins.options import FORM, NUMERICS

if TYPE_CHECKING:
    from qconvert.graph import Graph

__all__ = ["BUILTIN", "qconvert_passes"]


def _runner(name: str) -> Any:
    def run(graph: Graph, *arguments: Any, **options: Any) -> Any:
        return import_module(f"qconvert.passes.{name}").run(graph, *arguments, **options)

    return run


def _pass(name: str, summary: str, **more: Any) -> Pass:
    return Pass(name, summary, _runner(name), **more)


_IO_LAYOUT = Option(
    "io_layout", str, "", "4-D inputs and outputs: nchw (channels first) or nhwc (last).", ("nchw", "nhwc"), common=True, border=True
)
_IO = "Inputs and outputs: float (instead of quantized ones), or integer (where the model quantizes them at once)."
_IO_FLOAT = Option("io", str, "", _IO, ("float", "integer"), by_hand="float", common=True, border=True)
_IO_INTEGER = Option("io", str, "", _IO, ("float", "integer"), by_hand="integer", common=True, border=True)
_CUSTOM = Option("custom", str, "carry", "Custom operators: carry or refuse; keep: compiled ones too.", ("carry", "refuse", "keep"))
_DYNAMIC = Option(
    "dynamic", str, "", "dynamic range in ONNX: keep (rounded when it runs) or real, the default for other sources.", ("keep", "real")
)
_BIASES = Option(
    "biases",
    str,
    "round",
    "real biases of PyTorch's layers: round (integer kernels) or keep (equal, on real values, slower).",
    ("round", "keep"),
)
_UNROLL = Option("unroll", int, 0, "ONNX: LSTMs on integers, and Scans, of up to so many steps stand in the graph step by step; 0: none.")
_TABLES = Option(
    "tables",
    str,
    "missing",
    "functions of one tensor as tables: missing (what the format lacks), chains (of two operators or more; chains16: of 16 bits too).",
    ("missing", "chains", "chains16"),
)
_FIXED_POINT = Option(
    "fixed_point",
    str,
    "single",
    "how a multiplier and shifts round: single (once, ties up), away (once, ties away from zero), double (as TFLite's reference kernels).",
    ("single", "away", "double"),
)
_ENCODINGS = Option("encodings", str, "", "A file of scales that stand beside the model, which make a quantized model of it.", is_file=True)
_ENCODINGS_OPTIONS = Option("encodings_options", str, "{}", "Options of the reader of --encodings, as JSON; its own flags say the same.")
_FILL = Option("fill", str, "none", "infer: grids go on through moves, pools and Relu where the file gives none.", ("none", "infer"))
_RANGE_DTYPE = Option(
    "range_dtype", str, "int8", "The type of activations for which encodings state a range alone.", ("int8", "uint8", "int16", "uint16")
)
_NO_FLOAT = Option("no_float", bool, False, "Refuse a quantized model in which operators would run in float.", common=True)
_ROUNDING = Option(
    "rounding", str, "up", "positions of power_of_two: up (the formula), nearest (may clip) or mse (least square error).",
    ("up", "nearest", "mse"),
)  # fmt: skip
_SCHEME = Option(
    "scheme", str, "types", "formulas of google_scales for activations: symmetric, affine, or types (signed ones symmetric).",
    ("types", "symmetric", "affine"),
)  # fmt: skip
_REDUCE = Option(
    "reduce", str, "weights", "what reduced_range leaves 7 bits: weights, activations or both.", ("weights", "activations", "both")
)
_ZERO_POINTS = Option(
    "zero_points", str, "shift", "zero points that TensorRT lacks: shift (integers and scales stay) or symmetric (new scales, lossy).",
    ("shift", "symmetric"),
)  # fmt: skip
_PAIRS = Option(
    "pairs",
    str,
    "every",
    "what sparse_pairs keeps: every grid, or sparse ones, which products read.",
    ("every", "sparse"),
    by_hand="sparse",
)
_WEIGHT_BITS = Option("weight_bits", int, 0, "how many bits change_bits gives weights: 4, 8 or 16; 0 leaves them.", (0, 4, 8, 16))
_ACTIVATION_BITS = Option(
    "activation_bits", int, 0, "how many bits change_bits gives activations: 4, 8 or 16; 0 leaves them.", (0, 4, 8, 16)
)

#: Three change a value by one step where it is a tie, and little else: match_rounding rounds as the source's kernel does, isolate_float
#: rounds to float32 before it rounds to the grid, and matmul_to_gemm may add in another order.
#: The property "absorbed" holds behind reading: quantization stands on tensors, not in Quantize and Dequantize around operators.
_REGISTER = (
    _pass("carry_custom", "custom operators are named; compiled ones, or all, are refused", options=(_CUSTOM,)),
    _pass("lift_states", "states that functions read and write go through them as values, and the network reads and writes them"),
    _pass("fuse_dilation", "SpaceToBatch, a convolution and BatchToSpace become one dilated convolution"),
    _pass("fuse_pad", "a Pad with real zero before a convolution becomes the convolution's own padding"),
    _pass("assign_layout", "spatial operators get the target's layout, with the fewest Transposes",
         options=(_IO_LAYOUT,), after=("fuse_dilation", "fuse_pad", "widen_1d", "matmul_to_gemm"), ensures=("layout",)),
    _pass("match_rounding", "additions, and convolutions of 16-bit data, round as the source's kernel does",
         options=(NUMERICS, _BIASES, _IO_INTEGER), exact=False, within=4e-3),
    _pass("dynamic_range", "operators that round real data when they run do so as the target does, or compute on real data",
         options=(_DYNAMIC, NUMERICS), exact=False, within=0.05),
    _pass("store_activations", "8-bit activations are stored as the target's integer type; the real values stay the same",
         after=("match_rounding",), requires=("absorbed",)),
    _pass("moves_on_reals", "data of 2 and 4 bits are moved, chosen and compared as real values, as no runtime of ONNX moves them",
         after=("store_activations",), requires=("absorbed",)),
    _pass("guard_saturation", "weights that the target's kernels would add with saturation are stored as uint8",
         after=("store_activations",)),
    _pass("float_io", "quantized graph inputs and outputs become float, with the conversion inside the graph",
         options=(_IO_FLOAT,), after=("match_scales", "store_activations", "symmetric_activations")),
    _pass("per_tensor_to_per_axis", "weights and biases with one scale get it once for each output channel"),
    _pass("per_axis_to_per_tensor", "weights with a scale for each output channel are requantized to one scale",
         exact=False, within=0.1, after=("symmetric_weights",)),
    _pass("signed_to_unsigned",
          "signed quantized tensors of 4, 8 and 16 bits are stored as unsigned integers, graph inputs and outputs too", border=True),
    _pass("unsigned_to_signed",
          "unsigned quantized tensors of 4, 8 and 16 bits are stored as signed integers, graph inputs and outputs too", border=True),
    _pass("fold_qat_batch_norm", "what quantization-aware training leaves behind a convolution is folded into its bias",
         exact=False, within=1e-5),
    _pass("fold_batch_norm", "a BatchNormalization behind a float convolution or Gemm becomes part of its weights and bias",
         exact=False, within=1e-05),
    _pass("fold_constants", "operators on constants are replaced by their results"),
    _pass("compute_constants", "what is computed of constants alone is computed once, each operator rounded once",
         exact=False, within=4e-3, after=("fold_constants",)),
    _pass("fuse_activation", "a Relu or Clip becomes the activation of the operator before it, or disappears if the grid implies it"),
    _pass("spell_activations", "activations that attributes and grids stand for become operators, for programs that get real values",
         after=("fuse_activation", "store_activations"), requires=("absorbed",)),
    _pass("remove_redundant_requantize", "conversions between equal grids disappear; two in a row become one"),
    _pass("int32_bias_to_float", "int32 biases of quantized operators become float32",
         exact=False, within=1e-05),
    _pass("float_bias_to_int32", "float32 biases of quantized operators become int32 at input scale * weight scale",
         exact=False, within=0.02,
         after=("symmetric_weights", "fold_batch_norm")),
    _pass("deduplicate_constants", "constants of equal type, shape, data and quantization become one"),
    _pass("absorb_quantization", "Quantize and Dequantize around operators on real values become quantized operators",
         ensures=("absorbed",)),
    _pass("fuse_dynamic", "nodes that round real data when they run, multiply integers and scale the sums become one operator",
         after=("absorb_quantization",)),
    _pass("apply_encodings", "scales that stand in a file beside the model make quantized operators of it",
         options=(_ENCODINGS, _ENCODINGS_OPTIONS, _FILL, _RANGE_DTYPE), exact=False),
    _pass("fuse_recurrence", "loops over a sequence that are spelled out become LSTM, GRU, RNN or a Scan", exact=False, within=1e-5),
    _pass("real_recurrence", "integer LSTMs compute on real values between their grids, with numerics fast",
         options=(NUMERICS,), exact=False, after=("fuse_recurrence",)),
    _pass("unroll_sequences", "what runs step by step over a short sequence stands in the graph for each step, with the option unroll",
         options=(_UNROLL,), after=("fuse_recurrence", "real_recurrence")),
    _pass("restate_attributes", "attributes and limits that the source's format cannot state come back from its metadata"),
    _pass("widen_float16", "networks of float16 and bfloat16 compute in float32, their weights staying float16",
         exact=False, within=0.05),
    _pass("widen_1d", "convolutions and pools over one dimension become ones over two"),
    _pass("dense_weights", "groups and dilations that TFLite lacks become zeros among the weights of convolutions"),
    _pass("fuse_gelu", "a Gelu that was spelled out with Erf becomes one operator",
         exact=False, within=1e-05),
    _pass("unary_to_table", "elementwise functions of one quantized tensor become tables: what the target has no operator for, or chains",
         options=(_TABLES,), after=("store_activations", "symmetric_activations", "assign_layout"), requires=("absorbed",)),
    _pass("settle_sizes", "sizes that have names become the one number that the operators take, where there is just one"),
    _pass("merge_reshapes", "a chain of Reshape, Squeeze and Unsqueeze becomes one Reshape, or nothing"),
    _pass("matmul_to_gemm", "a MatMul with constant weights, and the bias added behind it, become a Gemm",
         exact=False, within=1e-05, after=("fuse_gelu",)),
    _pass("gemm_to_conv", "a Gemm of quantized rows becomes a convolution over one position, between two Reshapes",
         after=("matmul_to_gemm", "assign_layout"), requires=("absorbed",)),
    _pass("pool_to_mean", "an average over all positions becomes a mean along the two axes",
         exact=False, within=4e-3, requires=("absorbed",)),
    _pass("quantize_operands", "real constants beside quantized data become quantized",
         exact=False, within=0.05,
         after=("store_activations", "unary_to_table"), requires=("absorbed",)),
    _pass("symmetric_weights", "constant weights become signed with zero point 0",
         options=(SCOPE,), exact=False, within=0.1,
         after=("matmul_to_gemm", "fold_batch_norm", "store_activations")),
    _pass("symmetric_activations", "signed activations get grids with zero point 0",
         options=(SCOPE, EDGES, _ZERO_POINTS), exact=False, within=0.2,
         after=("store_activations",), requires=("absorbed",)),
    _pass("affine_activations", "8-bit activations on symmetric grids get affine ones where part of their grid is never reached",
         options=(EDGES,), exact=False, within=0.05, requires=("absorbed",)),
    _pass("power_of_two", "scales become powers of two and zero points 0",
         options=(_ROUNDING, GRANULARITY, EDGES), tried=({}, {"rounding": "mse"}, {"rounding": "mse", "granularity": "tensor"}),
         exact=False, within=0.2, requires=("absorbed",)),
    _pass("google_scales", "scales become those of the google formulas for the range of each grid",
         options=(_SCHEME, GRANULARITY, EDGES), tried=({"scheme": "symmetric"}, {"scheme": "affine"}),
         exact=False, within=0.2, requires=("absorbed",)),
    _pass("narrow_range", "weights leave the lowest integer of their type out",
         exact=False, within=0.05),
    _pass("reduced_range", "weights, activations or both use 7 of 8 bits",
         options=(_REDUCE, GRANULARITY), tried=({"reduce": "weights"}, {"reduce": "activations"}),
         exact=False, within=0.1, requires=("absorbed",)),
    _pass("change_bits", "weights, activations or both are stored in 4, 8 or 16 bits",
         options=(_WEIGHT_BITS, _ACTIVATION_BITS, GRANULARITY, BLOCK_SIZE, EDGES),
         tried=({"weight_bits": 4}, {"activation_bits": 16}),
         exact=False, within=0.3, requires=("absorbed",)),
    _pass("isolate_float", "operators that the target cannot run on integers run on real values between Dequantize and Quantize",
         options=(_NO_FLOAT, NUMERICS), exact=False, within=4e-3,
         after=("quantize_operands", "symmetric_weights", "float_bias_to_int32", "store_activations"),
         requires=("absorbed",)),
    _pass("match_scales", "results and operands get the scales that the target's kernels demand",
         exact=False, within=0.05,
         after=("isolate_float", "symmetric_activations", "store_activations"), requires=("absorbed",)),
    _pass("shift_to_symmetric", "signed activations get the zero point 0 and keep integers and scales; their real values move",
         options=(SCOPE,), exact=False, within=4e-3,
         after=("symmetric_weights", "symmetric_activations", "store_activations", "isolate_float", "assign_layout"),
         requires=("absorbed",)),
    _pass("restore_zero_points", "activations that shift_to_symmetric shifted, as the metadata note, get their zero points back",
         exact=False, within=4e-3, requires=("absorbed",)),
    _pass("sparse_pairs", "activations that no product reads as integers are clipped to the range of their grid, and not rounded",
         options=(_PAIRS,), exact=False, within=0.05,
         after=("isolate_float", "shift_to_symmetric", "float_io", "integer_io"), requires=("absorbed",)),
    _pass("spread_addends", "a number added behind a convolution over one dimension becomes a vector, with the number for each channel",
         after=("shift_to_symmetric", "sparse_pairs")),
    _pass("integer_io", "graph inputs and outputs that are quantized at once become the integers",
         options=(_IO_INTEGER,), after=("match_scales", "isolate_float", "float_io")),
    _pass("states_to_io", "states, which live from one run to the next, become inputs and outputs that whoever runs the network carries",
         after=("assign_layout", "store_activations", "float_io", "integer_io")),
    _pass("io_to_states", "inputs and outputs that the metadata call states become states"),
    _pass("spell_weights", "integer weights of operators on real values become Cast, Sub and Mul, which onnxruntime folds at load",
         options=(FORM,), after=("store_activations", "guard_saturation", "float_io", "integer_io")),
    _pass("requantize_to_fixed_point", "sums of integers, and a multiplier and shifts of integers that bring them to the result's grid",
         options=(_FIXED_POINT,), exact=False, within=4e-3,
         after=("store_activations", "guard_saturation", "match_rounding", "isolate_float", "match_scales"), requires=("absorbed",)),
    _pass("sum_on_reals", "sums of products of integers are computed in float32, in parts where it would not hold them exactly",
         after=("fuse_dynamic",)),
    _pass("remove_dead_code", "operators and tensors that no output needs disappear"),
)  # fmt: skip

BUILTIN: Mapping[str, Pass] = {item.name: item for item in _REGISTER}


@hookimpl
def qconvert_passes() -> Iterable[Pass]:
    return _REGISTER
