"""onnxruntime's CPU execution provider (kernels/onnxruntime.py), and ONNX in general."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from qconvert.kernels import KERNELS, Kernels
from qconvert.plugins import Storage, Target, Violation

if TYPE_CHECKING:  # targets are listed without numpy
    from qconvert.graph import Graph, Op


_ROWS = KERNELS["onnxruntime:optimized"]

_PASSES = (
    "lift_states", "carry_custom", "dynamic_range", "fuse_recurrence", "real_recurrence", "unroll_sequences",
    "fold_qat_batch_norm", "fuse_dilation", "fuse_pad", "match_rounding", "assign_layout",
    "store_activations", "movement_in_float", "guard_saturation", "float_io", "integer_io", "states_to_io",
    "decompose_weights",
)  # fmt: skip
#: Without what only makes a model smaller or faster.
_LITERAL = tuple(name for name in _PASSES if name not in ("fuse_pad", "fold_qat_batch_norm", "decompose_weights"))


def _four_bit_rules(graph: Graph) -> Callable[[Op], Iterator[Violation]]:
    """Activations of 4 bits next to operators that onnxruntime's optimizer replaces by kernels of 8 bits, whatever the width of their data
    is; the model then does not load."""
    from qconvert.operators import kind_of
    from qconvert.plugins.rules import quantized_data

    def find(op: Op) -> Iterator[Violation]:
        replaced = kind_of(op).rule == "real" and _ROWS.rows_for(op)
        for tensor in quantized_data(graph, op) if replaced else ():
            if tensor.dtype in ("int4", "uint4") and not tensor.is_constant:
                rule = "activations of operators with integer kernels have 8 or 16 bits"
                yield Violation(
                    f"{op.location}: {tensor.name!r} is {tensor.dtype}",
                    rule,
                    "--target generic, or pass change_bits (-O activation_bits=8)",
                )

    return find


def _domain_rules(graph: Graph) -> Callable[[Op], Iterator[Violation]]:
    """Operators of other domains than ONNX's, which no definition gave in those of the standard."""

    def find(op: Op) -> Iterator[Violation]:
        if op.attributes.get("domain"):
            rule = "operators are those of the ONNX standard"
            yield Violation(f"{op.location}: {op['op_type']} is of the domain {op['domain']!r}", rule, "--target generic, or ort-x86")

    return find


#: Blocks of pixels and copies of channels are made before Transposes are.
_LAYOUT = _PASSES.index("assign_layout")

_X86 = Target(
    "ort-x86", "onnx", "onnxruntime on any x86-64 CPU, exact without VNNI too", cpu="x86", layout="channels_first",
    passes=(*_PASSES[:_LAYOUT], "split_wide_weights", "merge_pixels", *_PASSES[_LAYOUT:]),
    storage=Storage(activations="uint8"), kernels=replace(_ROWS, max_pair_sum=128), own_rules=_four_bit_rules,
)  # fmt: skip

TARGETS = (
    _X86,
    _X86.derive(name="ort-x86-vnni", summary="onnxruntime on x86-64 CPUs with VNNI, where signed weights are always exact",
                kernels=_ROWS),
    _X86.derive(name="ort-arm", cpu="arm", passes=_PASSES, summary="onnxruntime on Arm CPUs: int8 activations and weights",
                storage=Storage(activations="int8"), kernels=_ROWS),
    Target("generic", "onnx", "ONNX as the source has it, in ONNX's layout", passes=_LITERAL, layout="channels_first",
           kernels=Kernels(dynamic_range="onnx")),
    Target("portable", "onnx", "ONNX of the standard alone, for compilers, accelerators and other runtimes than onnxruntime",
           passes=("expand_definitions", "transposed_to_conv", "crop_transposed", "fold_qat_batch_norm", *_LITERAL, "clip_before_quantize"),
           layout="channels_first", write_options={"numerics": "fast", "guards": False},
           storage=Storage(moves_in_float=True), kernels=Kernels(dynamic_range="onnx"), own_rules=_domain_rules),
)  # fmt: skip
