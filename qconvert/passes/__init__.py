"""Rewritings of the canonical graph, one a file. Each takes (graph, target) and returns the new graph and what it changed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Pass, hookimpl

if TYPE_CHECKING:
    from qconvert.graph import Graph

#: Name and what it changes. All are exact but those in INEXACT.
BUILTIN = {
    "fuse_pad": "a Pad with real zero before a convolution becomes the convolution's own padding",
    "assign_layout": "spatial operators get the target's layout, with the fewest Transposes",
    "match_add": "additions round as the source's kernel does, for every pair of inputs",
    "store_activations": "8-bit activations are stored as the target's integer type; the real values stay the same",
    "guard_saturation": "weights that the target's kernels would add with saturation are stored as uint8",
    "float_io": "quantized graph inputs and outputs become float, with the conversion inside the graph",
    "per_tensor_to_per_axis": "weights and biases with one scale get it once for each output channel",
    "per_axis_to_per_tensor": "weights with a scale for each output channel are requantized to one scale",
    "signed_to_unsigned": "signed quantized tensors of 4, 8 and 16 bits are stored as unsigned integers, graph inputs and outputs too",
    "unsigned_to_signed": "unsigned quantized tensors of 4, 8 and 16 bits are stored as signed integers, graph inputs and outputs too",
    "fold_batch_norm": "a BatchNormalization behind a float convolution or Gemm becomes part of its weights and bias",
    "fold_constants": "operators on constants are replaced by their results",
    "fuse_activation": "a Relu or Clip becomes the activation of the operator before it, or disappears if the grid implies it",
    "remove_redundant_requantize": "conversions between equal grids disappear; two in a row become one",
    "int32_bias_to_float": "int32 biases of quantized operators become float32",
    "float_bias_to_int32": "float32 biases of quantized operators become int32 at input scale * weight scale",
    "deduplicate_constants": "constants of equal type, shape, data and quantization become one",
    "absorb_quantization": "Quantize and Dequantize around operators on real values become quantized operators",
    "restate_attributes": "attributes that the source's format cannot state come back from its metadata",
    "widen_1d": "convolutions and pools over one dimension become ones over two",
    "fuse_gelu": "a Gelu that was spelled out with Erf becomes one operator",
    "merge_reshapes": "a chain of Reshape, Squeeze and Unsqueeze becomes one Reshape, or nothing",
    "matmul_to_gemm": "a MatMul with constant weights, and the bias added behind it, become a Gemm",
    "quantize_operands": "real constants beside quantized data become quantized",
    "symmetric_weights": "constant weights become signed with zero point 0",
    "symmetric_activations": "signed activations get grids with zero point 0",
    "isolate_float": "operators that the target cannot run on integers run on real values between Dequantize and Quantize",
    "match_scales": "results and operands get the scales that the target's kernels demand",
    "integer_io": "graph inputs and outputs that are quantized at once become the integers",
    "remove_dead_code": "operators and tensors that no output needs disappear",
}

#: These may change values; their notes say by how much.
INEXACT = frozenset(("per_axis_to_per_tensor", "fold_batch_norm", "int32_bias_to_float", "float_bias_to_int32",
                     "quantize_operands", "symmetric_activations", "symmetric_weights", "match_scales", "fuse_gelu"))  # fmt: skip


def _runner(name: str) -> Any:
    def run(graph: Graph, *arguments: Any, **options: Any) -> Any:
        return import_module(f"qconvert.passes.{name}").run(graph, *arguments, **options)

    return run


@hookimpl
def qconvert_passes() -> Iterable[Pass]:
    return [Pass(name, summary, _runner(name), name not in INEXACT) for name, summary in BUILTIN.items()]
