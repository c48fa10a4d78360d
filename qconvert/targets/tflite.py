"""LiteRT with XNNPACK on CPUs, and microcontrollers.

Rules of quantization: the TFLite 8-bit quantization specification (tensorflow/lite/g3doc/performance/quantization_spec.md) and what the
kernels demand beyond it (kernels/activations.cc, l2norm.cc).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from qconvert.plugins import Target, Violation

if TYPE_CHECKING:
    from qconvert.graph import Graph

__all__ = ["TARGETS"]

_PASSES = (
    "fold_batch_norm", "fuse_gelu", "widen_1d", "matmul_to_gemm", "fuse_activation", "assign_layout", "merge_reshapes", "quantize_operands",
    "symmetric_weights", "float_bias_to_int32", "store_activations", "remove_redundant_requantize", "isolate_float", "match_scales",
    "float_io", "integer_io", "merge_reshapes", "remove_dead_code",
)  # fmt: skip
_ALL = ("int8", "uint8", "int16")
_BYTES = ("int8", "uint8")

#: Kinds with integer kernels in LiteRT 2.3 for these types of the data; data movement has them for all types.
_KERNELS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "AveragePool", "MaxPool", "Add", "Sub", "Mul", "Concat", "Sigmoid", "Tanh",
                     "Softmax", "LeakyRelu", "Relu", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "GlobalAveragePool",
                     "GlobalMaxPool", "Max", "Min", "Clip", "Abs"), _ALL),
    **dict.fromkeys(("Resize", "HardSwish", "PRelu", "ReduceProd", "ArgMax", "ArgMin", "Where"), _BYTES),
    **dict.fromkeys(("MatMul", "SquaredDifference", "Rsqrt", "Exp", "Log"), ("int8", "int16")),
    **dict.fromkeys(("Elu", "Gelu", "LogSoftmax", "LpNormalization"), ("int8",)),
    "DetectionPostProcess": ("uint8",),
}  # fmt: skip

#: Results whose scale and zero point the kernels fix.
_FIXED: dict[str, dict[str, tuple[float, int]]] = {
    "Softmax": {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (1 / 32768, 0)},
    "Sigmoid": {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (1 / 32768, 0)},
    "Tanh": {"int8": (1 / 128, 0), "uint8": (1 / 128, 128), "int16": (1 / 32768, 0)},
    "LogSoftmax": {"int8": (16 / 256, 127), "uint8": (16 / 256, 255)},
    "LpNormalization": {"int8": (1 / 128, 0), "uint8": (1 / 128, 128)},
}

#: Kinds of real values whose kernels only move or compare stored integers, or average them on one grid.
_EQUAL = {**dict.fromkeys(("AveragePool", "Resize", "Max", "Min", "Where"), _ALL), "Concat": ("int8", "int16")}

#: The same for tflite-micro, which has no uint8 kernels (targets/kernels_tflite.py).
_MICRO_KERNELS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul", "AveragePool", "MaxPool", "Add", "Sub", "Mul", "SquaredDifference",
                     "Concat", "Sigmoid", "Tanh", "Softmax", "LeakyRelu", "Relu", "Clip", "Max", "Min", "Abs", "Rsqrt", "ReduceMean",
                     "ReduceSum", "GlobalAveragePool", "Where"), ("int8", "int16")),
    **dict.fromkeys(("Resize", "HardSwish", "PRelu", "Elu", "LogSoftmax", "LpNormalization", "ReduceMax", "ReduceMin", "GlobalMaxPool",
                     "ArgMax", "ArgMin"), ("int8",)),
}  # fmt: skip


def check(graph: Graph) -> Iterable[Violation]:
    """What LiteRT does not take; see rules_tflite.py."""
    from qconvert.targets import rules_tflite

    return rules_tflite.check(graph)


def check_micro(graph: Graph) -> Iterable[Violation]:
    """What tflite-micro does not take."""
    from qconvert.targets import rules_tflite

    return rules_tflite.check_micro(graph)


_SAME = tuple(name for name in _PASSES if name not in ("fold_batch_norm", "symmetric_weights", "store_activations"))

TARGETS = (
    Target("tflite", "tflite", "LiteRT with XNNPACK: int8 activations, signed symmetric weights", passes=_PASSES,
           layout="channels_last", activations="int8", integer_kernels=_KERNELS, symmetric_weights=True, fixed_outputs=_FIXED,
           equal_scales=_EQUAL, check=check),
    Target("tflite-micro", "tflite", "microcontrollers: what tflite-micro has, int8 activations, signed symmetric weights",
           passes=_PASSES, layout="channels_last", activations="int8", integer_kernels=_MICRO_KERNELS, symmetric_weights=True,
           fixed_outputs=_FIXED, equal_scales=_EQUAL, check=check_micro),
    Target("tflite-uint8", "tflite", "LiteRT: uint8 activations and weights, one scale for each tensor", passes=_PASSES,
           layout="channels_last", activations="uint8", integer_kernels=_KERNELS, fixed_outputs=_FIXED, equal_scales=_EQUAL,
           check=check),
    Target("tflite-same", "tflite", "TFLite with the storage types that the source has", passes=_SAME, layout="channels_last",
           integer_kernels=_KERNELS, fixed_outputs=_FIXED, equal_scales=_EQUAL, check=check),
)  # fmt: skip
