"""Operators whose tensors state different scales: the ONNX file gives what the kernel makes of the stored integers.

Some of LiteRT's kernels bring their data to the result's scale, others move, compare or average the stored integers whatever the file
says. Each operator with a quantized type is run with another scale and zero point on every tensor; what LiteRT takes, the graph, the ONNX
file and the file that is TFLite again compute too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from differential import converted
from loaded import tflite_graph
from targets.one_operator import BUILTINS, CASES, QUANTIZED, random_feed
from tflite_models import Array, TensorSpec, run_litert, single_op

from qconvert.conversion import normalize
from qconvert.errors import RuntimeRefusedError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.tflite.writer import build
from qconvert.plugins import target_named
from qconvert.runtimes.onnxruntime import OnnxRuntime
from qconvert.targets.audit import violations

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

_GRIDS = {"int8": ((0.05, 3), (0.031, -5), (0.043, 7), (0.083, -20)), "uint8": ((0.05, 131), (0.031, 120), (0.043, 140), (0.083, 100)),
          "int16": ((0.0002, 0), (0.0001, 0), (0.0003, 0), (0.0004, 0))}  # fmt: skip

#: Kernels that compute by tables, which are coarse where a function is steep, or in steps of their own: how far they may be from the exact
#: value, in steps of the result.
_COARSE = {("EXP", "int16"): 200, ("LOG", "int16"): 20000, ("RSQRT", "int16"): 8000, ("SQRT", "int16"): 4, ("GELU", "int16"): 4,
           ("LOGISTIC", "int16"): 4, ("TANH", "int16"): 4,
           ("REDUCE_PROD", "int8"): 2, ("REDUCE_PROD", "int16"): 2}  # fmt: skip

#: Kernels that look at no scale: the result is just what they give.
_STORED = frozenset(
    "MAXIMUM MINIMUM MAX_POOL_2D RESIZE_NEAREST_NEIGHBOR SELECT SELECT_V2 NEG FLOOR_DIV FLOOR_MOD PAD RESHAPE TRANSPOSE SLICE "
    "STRIDED_SLICE SPLIT SPLIT_V SPACE_TO_DEPTH DEPTH_TO_SPACE TILE BROADCAST_TO GATHER GATHER_ND REVERSE_V2 REVERSE_SEQUENCE "
    "SCATTER_ND TOPK_V2 ARG_MAX ARG_MIN REDUCE_MAX REDUCE_MIN SHAPE SQUEEZE MAX_POOL_2D/relu6".split()
)


def _pool(dtype: str, activation: int) -> Any:
    options = {"padding": 0, "strideH": 2, "strideW": 2, "filterHeight": 2, "filterWidth": 2, "fusedActivationFunction": activation}
    return options, [TensorSpec("x", (1, 6, 6, 3), dtype, 1.0)], [TensorSpec("y", (1, 3, 3, 3), dtype, 1.0)]


def _choice(dtype: str, shape: tuple[int, ...]) -> Any:
    data = [TensorSpec(name, (4, 5), dtype, 1.0) for name in "aby"]
    return None, [TensorSpec("c", shape, "bool"), *data[:2]], data[2:]


MORE = {
    **{f"{name}/{word}": (lambda dtype, rank, number=number: _pool(dtype, number))
       for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D") for number, word in ((1, "relu"), (3, "relu6"))},
    "SELECT": lambda dtype, rank: _choice(dtype, (4, 5)),
    "SELECT/rows": lambda dtype, rank: _choice(dtype, (4,)),
}  # fmt: skip


def _with_other_quantizations(name: str, dtype: str) -> tuple[bytes, list[Array]]:
    """The operator with another quantization on each of its quantized activations, and data for it."""
    options, inputs, outputs = {**CASES, **MORE}[name](dtype, 4)
    quantizations = iter(_GRIDS[dtype][:3])
    found: dict[str, TensorSpec] = {}
    for tensor in (*inputs, *outputs):
        if tensor is not None and tensor.dtype == dtype and tensor.scale is not None and tensor.name != "w":
            scale, point = _GRIDS[dtype][3] if tensor in outputs else next(quantizations)
            found[tensor.name] = replace(tensor, scale=scale, zero_point=point)
        elif tensor is not None:
            found[tensor.name] = tensor
    builtin = BUILTINS.get(name, name.partition("/")[0])
    used = [found[tensor.name] if tensor is not None else None for tensor in inputs]
    data = single_op(builtin, options, used, [found[tensor.name] for tensor in outputs])
    rng = np.random.default_rng(5)
    return data, [random_feed(tensor, builtin, rng) for tensor in used if tensor is not None and tensor.data is None]


def _run(data: bytes, feeds: list[Array]) -> list[Array] | None:
    """What LiteRT gives, by its reference kernels where the default ones refuse the model; None if both do."""
    for kernels in ("default", "reference"):
        try:
            return run_litert(data, feeds, kernels)
        except RuntimeRefusedError:
            continue
    return None


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_other_scales_mean_what_the_kernel_makes_of_them(name: str, dtype: str) -> None:
    try:
        data, feeds = _with_other_quantizations(name, dtype)
    except LookupError:
        pytest.skip("the operator has no such type")
    wanted = _run(data, feeds)
    if wanted is None:
        pytest.skip("LiteRT takes no such model")
    builtin = name.partition("/")[0]
    allowed = _COARSE.get((name, dtype), 0 if builtin in _STORED else 1)
    graph = tflite_graph(data)
    _require(wanted, list(evaluate(graph, dict(zip(graph.inputs, feeds, strict=True))).values()), allowed)
    fitted, model = converted(data, "generic")
    _require(wanted, list(OnnxRuntime(model.SerializeToString()).run(dict(zip(fitted.inputs, feeds, strict=True))).values()), allowed)
    target = target_named("tflite-same")
    try:
        again, _ = normalize(graph, target)
    except UnsupportedError:
        return
    if not violations(again, target):
        found = _run(build(again, {}), feeds)
        assert found is not None
        _require(wanted, found, allowed)


def _require(wanted: list[Array], found: list[Array], allowed: int) -> None:
    for a, b in zip(wanted, found, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0) <= allowed
