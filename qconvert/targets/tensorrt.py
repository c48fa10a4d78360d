"""TensorRT: ONNX whose quantized values are int8 on symmetric grids. Measured with TensorRT-RTX 1.7.1, which shares parser and graph checks
with TensorRT (docs/tensorrt.md, tests/tensorrt_cases.py).

Convolutions and products of int8 on both sides become integer kernels, and what only moves integers goes on with them. All else is computed
in float32 in kernels that are generated, with the roundings between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Target, Violation
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
_INT8 = ("int8",)
_FP8 = ("float8e4m3fn",)
#: Kinds whose sums of products of int8 become real numbers, to which a float32 bias is added.
_PRODUCTS = ("Conv", "Gemm", "MatMul")
#: Kinds that choose among stored integers where all sides have one grid.
_CHOOSING = ("Concat", "Max", "Min", "Where", "Resize", "ArgMax", "ArgMin")
#: The rank of data over three dimensions.
_RANK_OF_VOLUMES = 5
#: Kinds that move stored integers.
_MOVING = (
    "MaxPool", "GlobalMaxPool", "Identity", "ReduceMax", "ReduceMin", "TopK", "Pack", "Unpack", "Split", "Reshape", "Squeeze", "Unsqueeze",
    "Transpose", "Tile", "Expand", "Slice", "Pad", "Gather", "GatherND", "GatherElements", "ScatterND", "ScatterElements",
    "ReverseSequence", "DynamicUpdateSlice", "StartGather", "DepthToSpace", "SpaceToDepth",
)  # fmt: skip


def _product(graph: Graph, op: Op) -> str:
    """Products whose zero points neither constants nor sums beside them make up for."""
    from qconvert.plugins.sides import is_product_of_activations

    data, other = (graph[name] for name in op.inputs[:2])
    if other.is_constant and not data.is_constant:
        return ""
    points = [tensor.quantization.zero_point.any() for tensor in (data, other) if tensor.quantization is not None]
    return "products of two activations with zero points" if any(points) and not is_product_of_activations(graph, op) else ""


def _choice(graph: Graph, op: Op) -> str:
    """Where integers of several grids, or constants, meet."""
    from qconvert.operators import kind_of

    kind = kind_of(op)
    names = [*kind.data(op), *(() if kind.rule == "index" else op.outputs)]
    if any(not graph[name].shares_grid(graph[names[0]]) for name in names) or op.attributes.get("activation"):
        return "data with several scales"
    return "other interpolation than the nearest" if op.kind == "Resize" and op["mode"] != "nearest" else _move(graph, op)


def _move(graph: Graph, op: Op) -> str:
    """What is moved that TensorRT takes in front of Dequantize alone: constants; and what is filled in that is not the integer 0."""
    from qconvert.operators import kind_of

    moved = [graph[name] for name in kind_of(op).moved(op)]
    if any(tensor.is_constant for tensor in moved):
        return "constants among the moved data"
    if op.kind == "MaxPool" and moved[0].rank == _RANK_OF_VOLUMES:
        return "3-D pools"
    q = moved[0].quantization
    return "padding with a zero point" if op.kind == "Pad" and op["mode"] == "constant" and q is not None and q.zero_point.any() else ""


def _rules(rtx: bool, device: str = "") -> Callable[[Graph], Callable[[Op], Iterable[Violation]]]:
    """What TensorRT refuses; TensorRT-RTX lacks some plugins and kernels besides, and devices lack others."""

    def own_rules(graph: Graph) -> Callable[[Op], Iterable[Violation]]:
        from qconvert.targets.rules_tensorrt import own_rules as rules

        return rules(graph, rtx, device)

    return own_rules


def _devices(rtx: bool) -> dict[str, dict[str, Any]]:
    """What compute capabilities before 8.9 lack: 8-bit floats, and 7.5 integer kernels that sum products."""
    integers: dict[str, tuple[str, ...]] = dict.fromkeys((*_CHOOSING, *_MOVING), _INT8)
    kernels = {"sm75": integers, **{name: {**integers, **dict.fromkeys(_PRODUCTS, _INT8)} for name in ("sm80", "sm86")}}
    return {name: {"integer_kernels": found, "own_rules": _rules(rtx, name)} for name, found in kernels.items()}


def _edges(graph: Graph) -> Iterable[Violation]:
    """What TensorRT refuses of inputs and outputs by themselves."""
    from qconvert.targets.rules_tensorrt import edge_rules

    return edge_rules(graph)


_TENSORRT = Target(
    "tensorrt", "onnx", "TensorRT: symmetric int8, integers and scales kept",
    passes=_PASSES, write_options={"numerics": "fast", "guards": False}, checked_by="onnxruntime:unoptimized",
    layout="channels_first", activations="int8", weights="int8",
    integer_kernels={**dict.fromkeys(_PRODUCTS, (*_INT8, *_FP8)), **dict.fromkeys((*_CHOOSING, *_MOVING), _INT8)},
    real_sums=_PRODUCTS, unpacked_weights="int8",
    unpacked_blocks=("int4", "int8"),
    missing_kernels={**dict.fromkeys(_MOVING, _move), **dict.fromkeys(_CHOOSING, _choice), **dict.fromkeys(_PRODUCTS, _product)},
    forbidden=("SpaceToBatch", "BatchToSpace", "SparseToDense", "MatrixSetDiag", "InteriorPad"),
    activation_dtypes=(*_INT8, *_FP8), symmetric_activations=_INT8, weight_dtypes={"int8": _INT8, _FP8[0]: _FP8}, symmetric_weights=True,
    weight_granularity="per_axis", own_rules=_rules(rtx=False), edge_rules=_edges, by_kernels=_devices(rtx=False),
    with_scales="tensorrt-cache", command=trtexec,
)  # fmt: skip

TARGETS = (
    _TENSORRT,
    _TENSORRT.derive(name="tensorrt-rtx", summary="TensorRT-RTX: as tensorrt, without the operators that it lacks",
                     own_rules=_rules(rtx=True), by_kernels=_devices(rtx=True)),
)  # fmt: skip
