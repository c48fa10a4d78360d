"""The runtimes as the hook gives them: which runs what, the reach of kernels, and that no name is taken twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from custom_models import foreign_model
from refusals import refused

from qconvert import Graph, Op, Quantization, Tensor
from qconvert.errors import OptionError, RuntimeRefusedError
from qconvert.plugins import ModelFile, kernels_named, runtime_of, runtimes

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.parametrize(
    ("format", "kernels", "expected"),
    [
        ("tflite", "", ("litert", "default")),
        ("tflite", "litert", ("litert", "default")),
        ("tflite", "litert:reference", ("litert", "reference")),
        ("tflite", "tflite-micro", ("tflite-micro", "reference")),
        ("onnx", "litert:reference", ("onnxruntime", "optimized")),
        ("onnx", "litert:reference, onnxruntime:unoptimized", ("onnxruntime", "unoptimized")),
        ("onnx", ["onnxruntime:unoptimized", "litert:reference", "onnxruntime:unoptimized"], ("onnxruntime", "unoptimized")),
        ("tflite", "onnxruntime:unoptimized", ("litert", "default")),
    ],
)
def test_what_runs_a_file(format: str, kernels: str | list[str], expected: tuple[str, str]) -> None:
    runtime, chosen = runtime_of(format, kernels)
    assert (runtime.name, chosen) == expected


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_the_optimizer_is_not_suspected_of_what_onnxruntime_lacks(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(foreign_model().SerializeToString())
    runtime, chosen = runtime_of("onnx")
    with refused(RuntimeRefusedError, "model-refused", holds=("Twist",)) as caught:
        runtime.open(ModelFile(tmp_path / "m.onnx", chosen))
    assert not caught.value.remedy


def test_what_nothing_runs() -> None:
    with refused(RuntimeRefusedError, "no-runtime", holds=("qgraph",)):
        runtime_of("qgraph")
    with refused(OptionError, "ambiguous-kernels", holds=("litert:reference", "tflite-micro:reference", "tflite")):
        runtime_of("tflite", ["litert:reference", "tflite-micro"])


@pytest.mark.parametrize("name", ["none", "reference", "litert:none", "onnxruntime:reference", ":default"])
def test_unknown_kernels_are_named(name: str) -> None:
    with refused(OptionError, "unknown-kernels", holds=(f"'{name}'",)) as caught:
        runtime_of("tflite", ["litert:default", name])
    every = "litert:default, litert:reference, tflite-micro:reference, onnxruntime:optimized, onnxruntime:unoptimized"
    every += ", torch:rebuilt, torch:trusted, mnn:cpu"
    every += "".join(f", tensorrt:sm{capability}" for capability in (89, 75, 80, 86, 120, 121))
    every += ", partition:parts"
    assert caught.value.remedy == f"Known kernels: {every}."


def reach_of(kernels: str, graph: Graph, op: Op, steps: np.ndarray) -> tuple[np.ndarray, bool]:
    runtime, name = kernels_named(kernels)
    return runtime.rows(name).tolerance(graph, op, steps)


def graph_of(op: Op, dtype: str = "int8", scale: float = 0.25) -> Graph:
    quantizations = {"x": Quantization.per_tensor(0.5), "w": Quantization.per_tensor(0.01), "y": Quantization.per_tensor(scale)}
    tensors = {name: Tensor(name, dtype, (1, 8, 8, 4), None, quantization) for name, quantization in quantizations.items()}
    return Graph("made", tensors, (op,), ("x", "w"), ("y",))


POOL = {"kernel_shape": (4, 4)}
STEPS = np.array([0.0, 100.0, -1000.0])
FINE = np.maximum(1e-4, np.abs(STEPS) * 2.0**-21)
#: Operator, kernels -> reach, and whether that is coarse. 0.5 * 0.01 / 0.25 = 0.02 has a right shift of 5.
REACHES = {
    ("Conv", "litert:default"): (FINE, False),
    ("Conv", "litert:reference"): (FINE + 2.0**-6, False),
    ("Conv", "onnxruntime"): (10 * FINE, False),
    ("MatMul", "litert:default"): (FINE, False),
    ("Add", "litert:default"): (np.array([0.00058637, 0.00058637, 0.00096321]), False),  # multipliers of 20 bits
    ("Add", "litert:reference"): (FINE + 2e-3 + 2.0**-18 * (1.5 + 2.0**-7 + 0.01 / 2), False),  # data of scales 0.5 and 0.01
    ("ReduceMean", "litert:reference"): (FINE + 2.0**-5, False),  # 256 / 3 elements: 2 / 2**6 has a shift of 4
    ("ReduceMean", "litert:default"): (4 * FINE, False),
    # 100 steps are 50 of the input, -1000 are more than 255 of it with the slope of 0.01.
    ("LeakyRelu", "litert:default"): (FINE + np.array([0, 50, 255]) / 512, True),
    ("Resize", "litert:default"): (np.full(3, 0.02 + 255 / 1024), True),
    ("Resize", "litert:reference"): (np.full(3, 0.02 + 255 * 8 / 1024), True),
    ("Sigmoid", "litert:default"): (np.full(3, 1e-6), False),
    ("Sigmoid", "onnxruntime"): (np.full(3, 0.01), False),
    ("Softmax", "onnxruntime"): (np.full(3, 0.01), False),
}


@pytest.mark.parametrize(("kind", "kernels"), REACHES)
def test_the_reach_of_kernels(kind: str, kernels: str) -> None:
    op = Op(kind, ("x", "w") if kind in ("Conv", "MatMul", "Add") else ("x",), ("y",), {"mode": "linear"} if kind == "Resize" else {})
    reach, coarse = reach_of(kernels, graph_of(op), op, STEPS)
    expected = REACHES[kind, kernels]
    assert np.allclose(reach, expected[0], rtol=1e-12) and coarse is expected[1]


def test_the_reach_of_16_bits_and_4_bits() -> None:
    op = Op("Conv", ("x", "w"), ("y",))
    wide = reach_of("litert", graph_of(op, "int16"), op, STEPS)
    assert np.allclose(wide[0], FINE + np.maximum(np.abs(STEPS) / 2**15, 2.0**-6)) and wide[1]  # 32-bit sums: there is no bias of int64
    assert np.allclose(reach_of("onnxruntime", graph_of(op, "int16"), op, STEPS)[0], 0.02)
    four = graph_of(op)
    four = four.evolve(tensors=[Tensor("w", "int4", (4, 1, 1, 4), None, Quantization.per_tensor(0.01))])
    assert np.allclose(reach_of("litert", four, op, STEPS)[0], FINE + 2.0**-6)  # not XNNPACK's


def test_a_softmax_whose_scale_is_no_whole_part_of_one() -> None:
    """onnxruntime multiplies by floor(1 / 0.3) = 3: a tenth is lost."""
    op = Op("Softmax", ("x",), ("y",))
    reach, coarse = reach_of("onnxruntime", graph_of(op, scale=0.3), op, np.array([2.0]))
    assert np.allclose(reach, 0.01 + 2 * 0.1, atol=1e-6) and coarse


def test_depthwise_kernels_of_mnn_cut_off_a_unit_of_their_sum() -> None:
    op = Op("Conv", ("x", "w"), ("y",), {"group": 4})
    graph = graph_of(op)
    graph = graph.evolve(tensors=[replace(graph["w"], shape=(4, 1, 3, 3))])
    plain = reach_of("mnn", graph, Op("Conv", ("x", "w"), ("y",)), STEPS)[0]
    assert np.allclose(reach_of("mnn", graph, op, STEPS)[0], plain + 0.5 * 0.01 / 0.25)


def test_averages_of_one_quantization_are_rounded_once() -> None:
    op = Op("AveragePool", ("x",), ("y",), POOL)
    assert np.allclose(reach_of("litert:reference", graph_of(op, scale=0.5), op, STEPS)[0], FINE)
    assert np.allclose(reach_of("litert:reference", graph_of(op), op, STEPS)[0], FINE + 2.0**-3)  # 2 / 16 = 0.125, a shift of 2
    assert np.allclose(reach_of("litert", graph_of(op), op, STEPS)[0], FINE)


@pytest.mark.litert
@pytest.mark.cross_section
def test_layers_without_a_delegate() -> None:
    runtime = runtimes()["litert"]
    assert runtime.layers is not None
    path = FIXTURES / "tiny_kws_dscnn_int8.tflite"
    default, reference = (runtime.layers(ModelFile(path, kernels)) for kernels in ("default", "reference"))
    assert {layer.by for layer in reference} == {""} and "XNNPACK" in {layer.by for layer in default}
    assert [layer.outputs for layer in default] == [layer.outputs for layer in reference]
    assert all(layer.integer for layer in default)
