"""TensorRT up to 10 with a calibration cache: it quantizes a float model by itself (implicit quantization), with the scales of the cache.

Activations are int8 with one scale and zero point 0; weights get max|w| / 127 of each output channel, whatever they had. Which layers run
on integers TensorRT decides by their speed. Nothing of it was tried: the packages that install have explicit quantization alone.
"""

from __future__ import annotations

from qconvert.plugins import Storage, Target
from qconvert.targets.tensorrt import trtexec

__all__ = ["TARGETS"]

#: Biases become real first, so that they keep their values next to other scales.
_PASSES = (
    "expand_definitions", "carry_custom", "dynamic_range", "fold_qat_batch_norm", "fold_batch_norm", "fuse_dilation", "fuse_pad",
    "assign_layout", "unsigned_to_signed", "symmetric_weights", "int32_bias_to_float", "symmetric_activations",
    "remove_redundant_requantize", "decompose_activations", "remove_dead_code",
)  # fmt: skip


TARGETS = (
    Target(
        "tensorrt-cache", "onnx", "TensorRT up to 10: a float model, with symmetric scales in a separate calibration cache",
        passes=_PASSES, needs_scales=True, command=trtexec, layout="channels_first",
        storage=Storage(activations="int8", weights="int8", symmetric_activations=("int8",), free_edges=False),
    ),
)  # fmt: skip
