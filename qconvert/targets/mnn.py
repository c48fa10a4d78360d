"""MNN: a network of float values, and next to it the scales by which its converter makes integers of convolutions.

Measured with MNN 3.6.1. It has int8 alone, a scale for each output channel, and zero points of activations. A convolution becomes int8
where data and result have a quantization; additions, pooling and data movement between them follow by themselves.
"""

from __future__ import annotations

from qconvert.kernels import KERNELS
from qconvert.plugins import Storage, Target, defer_imports

_PASSES = (
    "expand_definitions", "carry_custom", "sums_in_float", "fold_constants", "compute_constants", "widen_float16", "settle_sizes",
    "dynamic_range", "fold_qat_batch_norm", "fold_batch_norm", "fuse_dilation", "fuse_pad", "matmul_to_gemm", "fuse_activation",
    "assign_layout", "gemm_to_conv", "pool_to_mean", "store_activations", "symmetric_weights", "per_tensor_to_per_axis",
    "decompose_activations", "remove_dead_code",
)  # fmt: skip


TARGETS = (
    Target(
        "mnn", "mnn", "MNN: a float model and a Pipeline of scales, from which its converter makes int8",
        passes=_PASSES, layout="channels_first", storage=Storage(activations="int8", weights="int8"),
        kernels=KERNELS["mnn:cpu"], own_rules=defer_imports("qconvert.targets")("rules_mnn", "own_rules"),
    ),
)  # fmt: skip
