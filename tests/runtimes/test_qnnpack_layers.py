"""Layers of qnnpack give what the reference of their row says, and are proved equal to onnxruntime's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qconvert import convert
from qconvert.checking.file_in_runtime import sides_of
from qconvert.checking.proof.proving import prove_sides
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.kernels import KERNELS
from qconvert.operators.shapes_and_functions import infer

pytestmark = pytest.mark.torch

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
_ROWS = KERNELS["torch:rebuilt"]


def random_layer(kind: str, rng: np.random.Generator) -> tuple[Graph, Array]:
    """A layer of any size with scales that are powers of two, or a result near a tie, and zero points at the ends; and its data."""
    ties, per_channel = bool(rng.random() < 0.4), bool(rng.random() < 0.5)

    def scales(low: float, high: float, count: int = 1) -> Array:
        exponents = rng.uniform(low, high, count)
        return np.exp2(np.rint(exponents) if ties else exponents).astype(np.float32)

    rank = 2 if kind == "ConvTranspose" else int(rng.integers(1, 4))
    group = int(rng.choice([1, 1, 2]))
    outputs, inputs = group * int(rng.integers(1, 5)), int(rng.integers(1, 9))
    attributes: dict[str, Any] = {}
    if kind == "Gemm":
        shape, weights = (300, 7 * inputs), (outputs, 7 * inputs)
    else:
        shape = (2, group * inputs, *map(int, rng.integers(5, 10, rank)))
        weights = (outputs, inputs, *map(int, rng.integers(1, 4, rank)))
        pads = tuple(map(int, rng.integers(0, 2, rank)))
        attributes |= {"data_format": "channels_first", "strides": tuple(map(int, rng.integers(1, 3, rank))), "pads": (*pads, *pads)}
        attributes |= {"dilations": (1,) * rank, "group": group}
        per_channel = per_channel and (kind == "Conv" or group == 1)
    if kind == "ConvTranspose":
        attributes["output_padding"] = (0,) * rank
    elif rng.random() < 0.3:
        attributes["activation"] = "relu"

    def any_point(scale: float) -> Quantization:
        return Quantization.per_tensor(scale, int(rng.choice([0, 255, rng.integers(0, 256)])))

    data, steps = any_point(float(scales(-8, 2)[0])), scales(-9, -3, outputs if per_channel else 1)
    size = float(data.scale[0] * steps.mean()) * 60 * float(np.sqrt(np.prod(weights[1:]))) * float(scales(-3, 3)[0])
    size = 2.0 ** round(np.log2(size)) if ties else size
    quantization = Quantization.per_axis(steps, 0) if per_channel else Quantization.per_tensor(float(steps[0]), 0)
    tensors = [
        Tensor("x", "uint8", shape, None, data),
        Tensor("w", "int8", weights, rng.integers(-127, 128, weights).astype(np.int8), quantization),
        Tensor("y", "uint8", None, None, any_point(float(np.float32(size)))),
    ]
    if rng.random() < 0.7:
        units = data.scale[0] * steps
        bias = Quantization.per_axis(units, 0) if per_channel else Quantization.per_tensor(float(units[0]), 0)
        tensors.append(Tensor("b", "int32", (outputs,), rng.integers(-3000, 3000, outputs).astype(np.int32), bias))
    names = tuple(name for name in ("x", "w", "b") if name in {tensor.name for tensor in tensors})
    op = Op(kind, names, ("y",), attributes)
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",), metadata={SOURCE_KERNELS: "torch:qnnpack"})
    graph, values = infer(graph), rng.integers(0, 256, shape).astype(np.uint8)
    return (graph if ties else with_a_tie(graph, values, rng)), values


def with_a_tie(graph: Graph, data: Array, rng: np.random.Generator) -> Graph:
    """The layer with a scale of its result for which an element is half a step above an integer, but for the last bits."""
    (op,), result = graph.ops, graph["y"]
    real = evaluate_op(graph, op, [data, *(graph.constant(name) for name in op.inputs[1:])])[0].real
    assert real is not None and result.quantization is not None
    value = float(np.abs(rng.choice(real.reshape(-1), 20)).max())
    scale = float(np.float32(value / (int(rng.integers(60, 120)) + 0.5))) or 1.0
    quantization = Quantization.per_tensor(scale, result.quantization.point)
    return graph.evolve(tensors=[replace(result, quantization=quantization)])


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm"])
def test_the_reference_has_the_integers_of_the_kernel(kind: str) -> None:
    from qconvert.runtimes.torch import program

    seen = 0
    for seed in range(60):
        graph, data = random_layer(kind, np.random.default_rng((7, seed)))
        function, refused = program(graph, "qnnpack")
        assert not refused
        if _ROWS.fault(graph, graph.ops[0]):
            continue  # PyTorch gives bounded values in another order, which the program does not repeat
        found = _ROWS.integers(graph, graph.ops[0], [data, *(graph.constant(name) for name in graph.ops[0].inputs[1:])])
        assert found is not None
        np.testing.assert_array_equal(function([data])[0], found.ways[0])
        seen += data.size
    assert seen > 20_000


def test_layers_are_proved_equal_to_those_of_onnxruntime(tmp_path: Path) -> None:
    """All but the first rounding of real data, and averages over images whose sizes are open."""
    source = FIXTURES / "torch/vision/eager_qnnpack_frozen.pt"
    convert(source, tmp_path / "m.onnx")
    found = prove_sides(sides_of(source, tmp_path / "m.onnx", (), {})[0])
    assert [item.operator.partition(" ")[0] for item in found.operators if item.class_ not in ("E0", "E1")] == [
        "aten::adaptive_avg_pool2d"
    ] * 2


@pytest.mark.parametrize("changed", [{"activation": "relu6"}, {"pads": (0, 1, 1, 0), "strides": (1, 1), "dilations": (1, 1)}])
def test_other_layers_have_no_reference(changed: dict[str, Any]) -> None:
    graph, _ = random_layer("ConvTranspose", np.random.default_rng(1))
    op = graph.ops[0].with_attributes(**changed)
    other = Op("Conv", op.inputs, op.outputs, {key: value for key, value in op.attributes.items() if key != "output_padding"})
    row = _ROWS.of(graph, other)
    assert row is not None and row.reference is None
