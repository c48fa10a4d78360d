"""Operators as quantized modules: every engine of PyTorch gives what the graph means, and the rest is in float."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from formats.torch.written import needs_torch, run

from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.kernels import KERNELS
from qconvert.plugins import target_named
from qconvert.runtimes.onnx_rewrites import has_vnni

pytestmark = pytest.mark.torch

ENGINES = ("fbgemm", "x86", "qnnpack")
DATA = Quantization.per_tensor(0.02, 131)
RESULT = Quantization.per_tensor(0.031, 117)
WIDE = Quantization.per_tensor(0.2, 117)
#: For averages, whose ties are common: PyTorch's go to even integers, the graph's to even steps from the zero point, here the same.
EVEN = Quantization.per_tensor(0.02, 130)


@contextmanager
def engine(name: str) -> Iterator[None]:
    """PyTorch's engine that packs weights and runs kernels."""
    from qconvert.formats.torch.program import torch_package

    backends = torch_package().backends.quantized
    if name not in backends.supported_engines:
        pytest.skip(f"this PyTorch has no {name}")
    before, backends.engine = backends.engine, name
    try:
        yield
    finally:
        backends.engine = before


def graph_of(
    kind: str,
    shape: Sequence[int],
    result: Sequence[int],
    constants: Sequence[Tensor] = (),
    *,
    others: int = 0,
    quantization: Quantization = RESULT,
    data: Quantization = DATA,
    **attributes: Any,
) -> Graph:
    """One operator on bytes: `others` further inputs like the first, then constants."""
    names = ["x", *(f"x{index}" for index in range(others))]
    tensors = [*(Tensor(name, "uint8", tuple(shape), None, data) for name in names), *constants]
    tensors.append(Tensor("y", "uint8", tuple(result), None, quantization))
    op = Op(kind, (*names, *(constant.name for constant in constants)), ("y",), attributes)
    return Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), tuple(names), ("y",))


def weights(shape: Sequence[int], *, axis: int | None = 0, dtype: str = "int8", point: int = 0, largest: int = 127) -> Tensor:
    """Random weights, with a scale for each index along `axis`."""
    rng = np.random.default_rng(5)
    low = 0 if dtype == "uint8" else -largest - 1
    data = rng.integers(low, 256 if dtype == "uint8" else largest + 1, shape).astype(dtype)
    if axis is None:
        return Tensor("w", dtype, tuple(shape), data, Quantization.per_tensor(0.011, point))
    scales = rng.uniform(0.004, 0.02, shape[axis]).astype(np.float32)
    return Tensor("w", dtype, tuple(shape), data, Quantization(scales, np.full(shape[axis], point), axis))


def real(name: str, *shape: int, low: float = -1.0) -> Tensor:
    """Random real numbers."""
    return Tensor(name, "float32", shape, np.random.default_rng(9).uniform(low, 1.5, shape).astype(np.float32))


def listed(name: str, *values: int) -> Tensor:
    """A list of whole numbers."""
    return Tensor(name, "int64", (len(values),), np.array(values))


def conv(shape: Sequence[int], kernel: Sequence[int], result: Sequence[int], tensor: Tensor | None = None, **more: Any) -> Graph:
    """A convolution of one, two or three axes."""
    spatial = len(shape) - 2
    usual = {"strides": (1,) * spatial, "pads": (1,) * (2 * spatial), "dilations": (1,) * spatial, "data_format": "channels_first"}
    tensor = tensor or weights(kernel)
    return graph_of(
        "Conv", shape, result, (tensor, real("b", kernel[0])), quantization=Quantization.per_tensor(0.9, 117), **{**usual, **more}
    )


def pool(kind: str, result: Sequence[int], **more: Any) -> Graph:
    """A pool over 7 x 6."""
    usual = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "data_format": "channels_first"}
    return graph_of(kind, (2, 5, 7, 6), result, quantization=EVEN, data=EVEN, **{**usual, **more})


_LAST = {"data_format": "channels_first"}
_DEPTHWISE = ((1, 16, 6, 6), (16, 1, 3, 3), (1, 16, 6, 6))
_NORM = [real("gamma", 6), real("beta", 6)]
_STATISTICS = [*_NORM, real("mean", 6), real("variance", 6, low=0.1)]
#: Operators that kernels take, and how large a share of the results may be off by one: where exact values lie near the middle.
TAKEN: Mapping[str, tuple[Graph, float]] = {
    "conv1d": (conv((2, 3, 9), (4, 3, 3), (2, 4, 9)), 0.002),
    "conv2d": (conv((2, 3, 7, 8), (4, 3, 3, 3), (2, 4, 7, 8)), 0.002),
    "conv3d": (conv((1, 3, 5, 6, 5), (4, 3, 3, 3, 3), (1, 4, 5, 6, 5)), 0.002),
    "conv2d_relu": (conv((2, 3, 7, 8), (4, 3, 3, 3), (2, 4, 7, 8), activation="relu"), 0.002),
    "conv2d_relu6": (conv((2, 3, 7, 8), (4, 3, 3, 3), (2, 4, 7, 8), activation="relu6"), 0.002),
    "conv2d_strides": (conv((2, 3, 7, 8), (4, 3, 3, 3), (2, 4, 4, 4), strides=(2, 2)), 0.002),
    "conv2d_dilations": (conv((2, 3, 7, 8), (4, 3, 3, 3), (2, 4, 5, 6), dilations=(2, 2)), 0.002),
    "conv2d_one_side": (conv((2, 3, 7, 8), (4, 3, 3, 3), (2, 4, 6, 7), pads=(0, 0, 1, 1)), 0.002),
    "conv2d_groups": (conv((2, 8, 6, 6), (16, 2, 3, 3), (2, 16, 6, 6), group=4), 0.002),
    "conv2d_one_scale": (conv((2, 3, 7, 8), (4, 3, 3, 3), (2, 4, 7, 8), weights((4, 3, 3, 3), axis=None)), 0.002),
    "conv2d_unsigned": (conv((2, 3, 7, 8), (4, 3, 3, 3), (2, 4, 7, 8), weights((4, 3, 3, 3), axis=None, dtype="uint8", point=99)), 0.002),
    "depthwise": (conv(*_DEPTHWISE, group=16), 0.002),
    "depthwise_unsigned": (conv(*_DEPTHWISE, weights((16, 1, 3, 3), axis=None, dtype="uint8", point=76), group=16), 0.002),
    "depthwise_small": (conv(*_DEPTHWISE, weights((16, 1, 3, 3), largest=60), group=16), 0.002),
    "gemm": (graph_of("Gemm", (5, 24), (5, 9), (weights((9, 24)), real("b", 9)), quantization=WIDE), 0.002),
    "gemm_relu": (graph_of("Gemm", (5, 24), (5, 9), (weights((9, 24)), real("b", 9)), activation="relu"), 0.002),
    "gemm_no_bias": (graph_of("Gemm", (5, 24), (5, 9), (weights((9, 24)),), quantization=WIDE), 0.002),
    "matmul_constant": (graph_of("MatMul", (2, 5, 24), (2, 5, 9), (weights((24, 9), axis=1),), quantization=WIDE), 0.002),
    "matmul": (graph_of("MatMul", (2, 6, 6), (2, 6, 6), others=1, trans_b=1, quantization=WIDE), 0.002),
    "add": (graph_of("Add", (2, 5, 9), (2, 5, 9), others=1, quantization=Quantization.per_tensor(0.05, 117)), 0.03),
    "add_relu": (graph_of("Add", (2, 5, 9), (2, 5, 9), others=1, activation="relu"), 0.03),
    "mul": (graph_of("Mul", (2, 5, 9), (2, 5, 9), others=1, quantization=Quantization.per_tensor(0.06, 117)), 0.01),
    "concat": (graph_of("Concat", (2, 5, 9), (2, 10, 9), others=1, axis=1), 0.002),
    "concat_one_quantization": (graph_of("Concat", (2, 5, 9), (2, 10, 9), others=1, axis=1, quantization=DATA), 0.0),
    "relu": (graph_of("Relu", (2, 5, 9), (2, 5, 9), quantization=DATA), 0.0),
    "clip": (graph_of("Clip", (2, 5, 9), (2, 5, 9), (real("low"), real("high", low=1.4)), quantization=DATA), 0.0),
    "hard_swish": (graph_of("HardSwish", (4, 256), (4, 256)), 0.01),
    "leaky_relu": (graph_of("LeakyRelu", (4, 256), (4, 256), alpha=0.1), 0.01),
    "elu": (graph_of("Elu", (4, 256), (4, 256), alpha=1.0), 0.02),
    "celu": (graph_of("Celu", (4, 256), (4, 256), alpha=0.8), 0.02),
    "sigmoid": (graph_of("Sigmoid", (4, 256), (4, 256), quantization=Quantization.per_tensor(1 / 256, 0)), 0.02),
    "tanh": (graph_of("Tanh", (4, 256), (4, 256), quantization=Quantization.per_tensor(1 / 128, 128)), 0.02),
    "hard_sigmoid": (graph_of("HardSigmoid", (4, 256), (4, 256), quantization=Quantization.per_tensor(1 / 256, 0), alpha=1 / 6,
        beta=0.5), 0.02),
    "softmax": (graph_of("Softmax", (4, 11), (4, 11), quantization=Quantization.per_tensor(1 / 256, 0), axis=-1), 0.03),
    "batch_norm": (graph_of("BatchNormalization", (2, 6, 5, 5), (2, 6, 5, 5), _STATISTICS, epsilon=1e-3, **_LAST), 0.01),
    "batch_norm_3d": (graph_of("BatchNormalization", (2, 6, 5, 5, 2), (2, 6, 5, 5, 2), _STATISTICS, epsilon=1e-3, **_LAST), 0.01),
    "layer_norm": (graph_of("LayerNormalization", (4, 5, 6), (4, 5, 6), _NORM, axis=-1, epsilon=1e-5), 0.02),
    "group_norm": (graph_of("GroupNormalization", (2, 6, 5, 5), (2, 6, 5, 5), _NORM, num_groups=3, epsilon=1e-5, **_LAST), 0.02),
    "instance_norm": (graph_of("InstanceNormalization", (2, 6, 5, 5), (2, 6, 5, 5), _NORM, epsilon=1e-5, **_LAST), 0.02),
    "max_pool": (pool("MaxPool", (2, 5, 3, 3)), 0.0),
    "max_pool_one_side": (pool("MaxPool", (2, 5, 4, 3), pads=(0, 0, 1, 0)), 0.0),
    "average_pool": (pool("AveragePool", (2, 5, 3, 3)), 0.0),
    "average_pool_padding": (pool("AveragePool", (2, 5, 4, 4), pads=(1, 1, 1, 1), count_include_pad=1), 0.0),
    "global_average": (graph_of("GlobalAveragePool", (2, 5, 7, 6), (2, 5, 1, 1), quantization=EVEN, data=EVEN, **_LAST), 0.0),
    "mean": (graph_of("ReduceMean", (2, 5, 7, 6), (2, 5), (listed("axes", 2, 3),), quantization=EVEN, data=EVEN, keepdims=0), 0.0),
    "nearest": (
        graph_of("Resize", (2, 5, 4, 3), (2, 5, 8, 9), (listed("sizes", 8, 9),), quantization=DATA, mode="nearest",
                 coordinate_transformation_mode="asymmetric", nearest_mode="floor", **_LAST), 0.0,
    ),
    "nearest_by_indices": (  # places that no operator of PyTorch has
        graph_of("Resize", (2, 5, 5, 4), (2, 5, 7, 6), (listed("sizes", 7, 6),), quantization=DATA, mode="nearest",
                 coordinate_transformation_mode="align_corners", nearest_mode="ceil", **_LAST), 0.0,
    ),
}  # fmt: skip
#: Operators that they do not take, which have the same results in float.
REFUSED: Mapping[str, Graph] = {
    "average_pool_not_counted": pool("AveragePool", (2, 5, 4, 4), pads=(1, 1, 1, 1), count_include_pad=0),
    "sigmoid_other_scale": graph_of("Sigmoid", (4, 256), (4, 256), quantization=Quantization.per_tensor(0.005, 3)),
    "transposed": graph_of(
        "ConvTranspose", (2, 8, 5, 5), (2, 8, 10, 10), (weights((8, 8, 2, 2), axis=None), real("b", 8)), strides=(2, 2), pads=(0, 0, 0, 0),
        dilations=(1, 1), output_padding=(0, 0), quantization=Quantization.per_tensor(0.9, 117), **_LAST,
    ),
    "transposed_scales": graph_of(
        "ConvTranspose", (2, 8, 5, 5), (2, 4, 9, 9), (weights((4, 8, 3, 3)), real("b", 4)), strides=(2, 2), pads=(1, 1, 1, 1),
        dilations=(1, 1), output_padding=(0, 0), quantization=Quantization.per_tensor(0.9, 117), **_LAST,
    ),
    "max": graph_of("Max", (2, 5, 9), (2, 5, 9), others=1),
    "sub": graph_of("Sub", (2, 5, 9), (2, 5, 9), others=1),
    "prelu": graph_of("PRelu", (2, 5, 9), (2, 5, 9), (real("slopes", 5, 1),)),
    "bilinear": graph_of("Resize", (2, 5, 4, 3), (2, 5, 8, 9), (listed("sizes", 8, 9),), quantization=EVEN, data=EVEN, mode="linear",
                         coordinate_transformation_mode="half_pixel", **_LAST),
    "relu_onto_another_quantization": graph_of("Relu", (2, 5, 9), (2, 5, 9)),
}  # fmt: skip


def _feed(graph: Graph, largest: int = 255) -> dict[str, Any]:
    """All bytes up to the largest, in every place, and where there are several inputs others."""
    rng = np.random.default_rng(3)
    return {name: rng.integers(0, largest, graph[name].static_shape, endpoint=True).astype(np.uint8) for name in graph.inputs}


def _off(graph: Graph, largest: int = 255) -> np.ndarray:
    """By how much each result of the module is off."""
    from qconvert.formats.torch.quantized_modules.writer import live

    feed = _feed(graph, largest)
    found, expected = run(live(graph), graph, feed)["y"], evaluate(graph, feed)["y"]
    assert found.dtype == expected.dtype and found.shape == expected.shape
    return np.abs(found.astype(int) - expected.astype(int))


@needs_torch
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("case", TAKEN)
def test_kernels_compute_what_the_graph_means(case: str, name: str) -> None:
    graph, share = TAKEN[case]
    assert KERNELS["torch:modules"].find_kernel(graph, graph.ops[0], "uint8")[0] is not None
    # Without VNNI fbgemm adds two products in 16 bits, which saturate for larger bytes: PyTorch calibrates to 7 bits there (reduce_range).
    largest = 255 if name == "qnnpack" or has_vnni() else 127
    with engine(name):
        off = _off(graph, largest)
    assert off.max(initial=0) <= 1 and (off > 0).mean() <= share


@needs_torch
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("case", REFUSED)
def test_what_no_kernel_takes_is_on_real_values(case: str, name: str) -> None:
    graph = REFUSED[case]
    assert KERNELS["torch:modules"].find_kernel(graph, graph.ops[0], "uint8")[0] is None
    with engine(name):
        off = _off(graph)
    assert off.max(initial=0) <= 1 and (off > 0).mean() <= 0.02


def test_the_target_names_the_kinds_that_have_kernels() -> None:
    assert {kind for kind, _ in target_named("torch-modules").kernels} == {graph.ops[0].kind for graph, _ in TAKEN.values()}


@pytest.mark.cross_section
@needs_torch
def test_a_depthwise_layer_whose_products_would_saturate_is_padded_before() -> None:
    """fbgemm's kernel for these layers is taken for a layer's own padding alone (the figures of the cases above would be off by 50)."""
    from qconvert.formats.torch.quantized_modules.writer import live

    def padding(case: str) -> tuple[int, ...]:
        module = live(TAKEN[case][0])
        return next(tuple(layer.padding) for layer in module.children() if hasattr(layer, "padding"))

    assert [padding(case) for case in ("depthwise", "depthwise_unsigned", "depthwise_small", "conv2d")] == [(0, 0), (0, 0), (1, 1), (1, 1)]
