"""MNN: a network of float values, and next to it the scales by which its converter makes integers of convolutions.

Measured with MNN 3.6.1. It has int8 alone, a scale for each output channel, and zero points of activations. A convolution becomes int8
where data and result have a quantization; additions, pooling and data movement between them follow by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from qconvert.kernels import KERNELS
from qconvert.plugins import Storage, Target, Violation

if TYPE_CHECKING:  # targets are listed without numpy
    from qconvert.graph import Graph, Op

_PASSES = (
    "expand_definitions", "carry_custom", "sums_in_float", "fold_constants", "compute_constants", "widen_float16", "settle_sizes",
    "dynamic_range", "fold_qat_batch_norm", "fold_batch_norm", "fuse_dilation", "fuse_pad", "matmul_to_gemm", "fuse_activation",
    "assign_layout", "gemm_to_conv", "pool_to_mean", "store_activations", "symmetric_weights", "per_tensor_to_per_axis",
    "decompose_activations", "remove_dead_code",
)  # fmt: skip


_EMPTY = "tensors have elements: MNN computes nothing of empty ones"
_EMPTY_REMEDY = "remove operators on empty tensors, or give the inputs other sizes"
_SELECT = "operands of Where have the size of its result or one element: MNN reads others at wrong positions"
_SELECT_REMEDY = "put an Expand before the Where"
_PLANE = "convolutions are 1-D or 2-D: MNN has no result for others"
_PLANE_REMEDY = "write it as a sum of 2-D convolutions, or leave it to the program that runs the model"
_RIGHT = "operators are those that MNN computes rightly, or has other operators for"
_RIGHT_REMEDY = "remove it, or leave it to the program that runs the model"
_DYNAMIC = "no DynamicQuantizeLinear: MNN computes other integers and zero points"
_DYNAMIC_REMEDY = "with constant weights after it the product is computed in float instead"
_ROUNDED = "activations are integers with one scale for the whole tensor: the float network rounds to no others"
_ROUNDED_REMEDY = "quantize the model's activations so"
#: Dimensions of the weights of a convolution over two.
_LARGEST_RANK = 4


def own_rules(graph: Graph) -> Callable[[Op], Iterator[Violation]]:
    """See plugins.Abilities.own_rules: cases that MNN 3.6.1 computes wrongly, or not at all (measured)."""
    from qconvert.formats.mnn.faults import unmet_fault
    from qconvert.operators import kind_of

    def broken(op: Op) -> Iterator[Violation]:
        for name in op.outputs:
            if name and 0 in (graph[name].shape or ()):
                yield Violation(f"{op.location}: {name!r} has the shape {graph[name].shape}", _EMPTY, _EMPTY_REMEDY)
            q = graph[name].quantization if name else None
            if q is not None and (not q.is_per_tensor or "float" in graph[name].dtype):
                what = f"has {q.scale.size} scales" if not q.is_per_tensor else f"is {graph[name].dtype}"
                yield Violation(f"{op.location}: {name!r} {what}", _ROUNDED, _ROUNDED_REMEDY)
        if kind_of(op).has_weights and (graph[op.inputs[1]].rank or 0) > _LARGEST_RANK:
            yield Violation(f"{op.location}: weights {op.inputs[1]!r} have the shape {graph[op.inputs[1]].shape}", _PLANE, _PLANE_REMEDY)
        if fault := unmet_fault(graph.tensors, op):
            yield Violation(f"{op.location}: {fault}", _RIGHT, _RIGHT_REMEDY)
        if op.kind == "DynamicQuantizeLinear":
            yield Violation(op.location, _DYNAMIC, _DYNAMIC_REMEDY)
        if op.kind == "Where":
            whole = graph[op.name].static_shape
            for name in op.inputs:
                shape = graph[name].static_shape
                if whole is not None and shape is not None and math.prod(shape) not in (1, math.prod(whole)):
                    yield Violation(f"{op.location}: {name!r} has the shape {shape}, the result {whole}", _SELECT, _SELECT_REMEDY)

    return broken


TARGETS = (
    Target(
        "mnn", "mnn", "MNN: a float model and a Pipeline of scales, from which its converter makes int8",
        passes=_PASSES, layout="channels_first", storage=Storage(activations="int8", weights="int8"),
        kernels=KERNELS["mnn:cpu"], own_rules=own_rules,
    ),
)  # fmt: skip
