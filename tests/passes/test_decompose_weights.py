"""decompose_weights: integer weights become real once, when onnxruntime loads a file, and are read as the Dequantize that they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from passes.graphs import applied, assert_equal, random_integers

import qconvert
from qconvert import Graph, Op, Quantization, Tensor
from qconvert.passes import BUILTIN
from qconvert.rules.differences import diff

pytestmark = pytest.mark.onnxruntime

FIXTURES = Path(__file__).parents[2] / "fixtures" / "keras"
SHAPE = (3, 4)
SCALES = np.array([0.25, 0.003, 1 / 3], np.float32)


def weighted(dtype: str, q: Quantization) -> Graph:
    """x (3, 4) times the float values of constant integers."""
    tensors = (
        Tensor("x", "float32", SHAPE), Tensor("w", dtype, SHAPE, random_integers(SHAPE, dtype), q),
        Tensor("r", "float32", SHAPE), Tensor("y", "float32", SHAPE),
    )  # fmt: skip
    ops = (Op("Dequantize", ("w",), ("r",)), Op("Mul", ("x", "r"), ("y",)))
    return Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",))


def decomposed(graph: Graph) -> Graph:
    return applied(graph, "decompose_weights")[0]


def absorbed(graph: Graph) -> Graph:
    return BUILTIN["absorb_quantization"].run(graph, None)[0]


GRIDS = {
    "int8": Quantization.per_tensor(0.1, 0), "int8 shifted": Quantization.per_tensor(0.1, -7),
    "int8 by rows": Quantization.per_axis(SCALES, 0),
    "uint8 by rows": Quantization(SCALES, np.array([0, 128, 255]), 0), "uint8": Quantization.per_tensor(3e-5, 128),
    "int16": Quantization.per_tensor(2**-12, 0), "uint16 by columns": Quantization.per_axis(np.full(4, 0.7, np.float32), 1, 40000),
}  # fmt: skip


@pytest.mark.cross_section
@pytest.mark.parametrize("name", GRIDS)
def test_the_values_stay_and_the_operator_comes_back(name: str) -> None:
    graph = weighted(name.split()[0], GRIDS[name])
    changed = decomposed(graph)
    shifted = [] if GRIDS[name].is_symmetric else ["Sub"]
    assert [op.kind for op in changed.ops] == ["Cast", *shifted, "Mul", "Mul"]
    assert_equal(graph, changed, {"x": np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)})
    assert not diff(graph, absorbed(changed))


@pytest.mark.litert
def test_onnxruntime_computes_them_when_it_loads(tmp_path: Path) -> None:
    source, result, optimized = FIXTURES / "keras_causal_dynamic.tflite", tmp_path / "y.onnx", tmp_path / "z.onnx"
    report = qconvert.convert(source, result)
    assert report.quantized and report.operators["Dequantize"] == 5 and "Cast" not in report.operators
    written = {tensor.name: tensor for tensor in onnx.load(result).graph.initializer}
    weights = [tensor for tensor in qconvert.load(source).tensors.values() if tensor.dtype == "int8" and tensor.is_constant]
    assert weights
    for tensor in weights:
        assert sorted(numpy_helper.to_array(written[tensor.name]).reshape(-1)) == sorted(tensor.data.reshape(-1))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(optimized)
    onnxruntime.InferenceSession(str(result), options, providers=["CPUExecutionProvider"])
    kinds = {node.op_type for node in onnx.load(optimized).graph.node}
    assert not kinds & {"Cast", "DequantizeLinear"} and kinds & {"Conv", "FusedConv"}
    assert qconvert.check(source, result).passed


@pytest.mark.parametrize("name", ["keras_causal_dynamic", "keras_transposed_dynamic"])
def test_they_come_back_to_tflite(name: str, tmp_path: Path) -> None:
    qconvert.convert(FIXTURES / f"{name}.tflite", tmp_path / "y.onnx")
    qconvert.convert(tmp_path / "y.onnx", tmp_path / "z.tflite")
    before, after = (qconvert.load(path) for path in (FIXTURES / f"{name}.tflite", tmp_path / "z.tflite"))
    assert _integers(before) == _integers(after) != []


def _integers(graph: Graph) -> list[list[int]]:
    """The constants of int8, without the order of their axes."""
    found = [tensor.data for tensor in graph.tensors.values() if tensor.dtype == "int8"]
    return sorted(sorted(data.reshape(-1).tolist()) for data in found if data is not None)


def test_what_keeps_its_dequantize() -> None:
    """Constants that others read, activations, graph outputs, and the form that has nodes of its own."""
    graph = weighted("int8", GRIDS["int8"])
    twice = graph.evolve(tensors=[Tensor("s", "int8", SHAPE, quantization=GRIDS["int8"])], ops=[*graph.ops, Op("Identity", ("w",), ("s",))],
                         outputs=("y", "s"))  # fmt: skip
    fed = replace(graph, inputs=("x", "w")).evolve(tensors=[replace(graph["w"], data=None)])
    for case in (twice, fed, graph.evolve(outputs=("y", "r"))):
        assert decomposed(case) is case
    assert BUILTIN["decompose_weights"].run(graph, None, form="qonnx") == (graph, ())


def altered(graph: Graph, kind: str, value: Any) -> Graph:
    """With another constant next to the first operator of a kind."""
    op = next(op for op in graph.ops if op.kind == kind)
    data = np.asarray(value, np.float32)
    return graph.evolve(tensors=[replace(graph[op.inputs[1]], shape=data.shape, data=data)])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("Mul", -0.1),
        ("Mul", 0.0),
        ("Mul", np.nan),
        ("Mul", np.inf),
        ("Mul", np.full(SHAPE, 0.1)),
        ("Sub", 0.5),
        ("Sub", 300),
        ("Sub", np.nan),
    ],
)
def test_what_is_no_quantization_stays_as_it_is(kind: str, value: Any) -> None:
    graph = altered(decomposed(weighted("int8", GRIDS["int8 shifted"])), kind, value)
    assert [op.kind for op in absorbed(graph).ops] == ["Cast", "Sub", "Mul", "Mul"]


def test_other_orders_mean_something_else() -> None:
    """A number minus the integers, and a value that others read, stay; what follows the product stays after it."""
    graph = decomposed(weighted("int8", GRIDS["int8 shifted"]))
    cast, minus, times, last = graph.ops
    turned = graph.evolve(ops=[cast, replace(minus, inputs=minus.inputs[::-1]), times, last])
    seen = graph.evolve(outputs=("y", minus.outputs[0]))
    for case in (turned, seen):
        assert [op.kind for op in absorbed(case).ops] == [op.kind for op in case.ops]
    first = replace(times, inputs=(cast.outputs[0], times.inputs[1]), outputs=minus.outputs)
    late = graph.evolve(ops=[cast, first, replace(minus, inputs=(minus.outputs[0], minus.inputs[1]), outputs=times.outputs), last])
    found = absorbed(late)
    assert [op.kind for op in found.ops] == ["Dequantize", "Sub", "Mul"]
    assert_equal(late, found, {"x": np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)})
