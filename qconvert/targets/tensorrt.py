"""TensorRT: ONNX whose quantized values are int8 on symmetric quantizations; its kernels are in kernels/tensorrt.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from qconvert.kernels import KERNELS
from qconvert.plugins import Storage, Target, Violation
from qconvert.targets.trtexec import trtexec

if TYPE_CHECKING:  # targets are listed without numpy
    from qconvert.graph import Graph, Op

__all__ = ["TARGETS"]

_PASSES = (
    "lift_states", "expand_definitions", "carry_custom", "fold_constants", "widen_float16", "dynamic_range", "fold_qat_batch_norm",
    "fuse_dilation", "fuse_pad", "assign_layout", "store_activations", "symmetric_weights", "symmetric_activations", "isolate_float",
    "float_io", "integer_io", "states_to_io", "shift_to_symmetric", "sparse_pairs", "spread_addends", "int32_bias_to_float",
    "remove_dead_code",
)  # fmt: skip
_INT8, _FP8 = ("int8",), "float8e4m3fn"


def _rules(rtx: bool, device: str = "") -> Callable[[Graph], Callable[[Op], Iterable[Violation]]]:
    """What TensorRT refuses; TensorRT-RTX lacks some plugins and kernels besides, and devices lack others."""

    def own_rules(graph: Graph) -> Callable[[Op], Iterable[Violation]]:
        from qconvert.targets.rules_tensorrt import own_rules as rules

        return rules(graph, rtx, device)

    return own_rules


def _devices(rtx: bool) -> dict[str, dict[str, Any]]:
    """What compute capabilities before 8.9 lack."""
    return {name: {"kernels": KERNELS[f"tensorrt:{name}"], "own_rules": _rules(rtx, name)} for name in ("sm75", "sm80", "sm86")}


def _edges(graph: Graph) -> Iterable[Violation]:
    """What TensorRT refuses of inputs and outputs by themselves."""
    from qconvert.targets.rules_tensorrt import edge_rules

    return edge_rules(graph)


_TENSORRT = Target(
    "tensorrt", "onnx", "TensorRT: symmetric int8, integers and scales kept",
    passes=_PASSES, write_options={"numerics": "fast", "guards": False}, checked_by="onnxruntime:unoptimized",
    layout="channels_first", kernels=KERNELS["tensorrt:sm89"],
    storage=Storage(activations="int8", weights="int8", activation_dtypes=(*_INT8, _FP8), symmetric_activations=_INT8,
                    weight_dtypes={"int8": _INT8, _FP8: (_FP8,)}, symmetric_weights=True, weight_granularity="per_axis"),
    own_rules=_rules(rtx=False), edge_rules=_edges, by_kernels=_devices(rtx=False),
    with_scales="tensorrt-cache", command=trtexec,
)  # fmt: skip

TARGETS = (
    _TENSORRT,
    _TENSORRT.derive(name="tensorrt-rtx", summary="TensorRT-RTX: as tensorrt, without the operators that it lacks",
                     own_rules=_rules(rtx=True), by_kernels=_devices(rtx=True)),
)  # fmt: skip
