"""The runtimes as the hook gives them: which runs what, the reach of kernels, and that no name is taken twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from qconvert import Graph, Op, Quantization, Tensor
from qconvert.errors import OptionError
from qconvert.plugins import kernels_named, runtime_of, runtimes

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.parametrize(
    ("format", "kernels", "expected"),
    [
        ("tflite", "", ("litert", "default")),
        ("tflite", "reference", ("litert", "reference")),
        ("tflite", "micro", ("tflite-micro", "micro")),
        ("onnx", "reference", ("onnxruntime", "onnxruntime")),
        ("tflite", "onnxruntime", ("litert", "default")),
    ],
)
def test_what_runs_a_file(format: str, kernels: str, expected: tuple[str, str]) -> None:
    runtime, chosen = runtime_of(format, kernels)
    assert (runtime.name, chosen) == expected


def test_what_nothing_runs() -> None:
    with pytest.raises(OptionError, match="no runtime runs qgraph files"):
        runtime_of("qgraph")
    with pytest.raises(OptionError, match="there are no kernels 'none'") as caught:
        runtime_of("tflite", "none")
    assert caught.value.remedy == "Known kernels: default, reference, micro, onnxruntime."


def test_names_of_kernels_are_one_runtimes_own() -> None:
    counted = Counter(kernels for runtime in runtimes().values() for kernels in runtime.kernels)
    assert set(counted.values()) == {1}


def graph_of(op: Op, dtype: str = "int8", scale: float = 0.25) -> Graph:
    grids = {"x": Quantization.per_tensor(0.5), "w": Quantization.per_tensor(0.01), "y": Quantization.per_tensor(scale)}
    tensors = {name: Tensor(name, dtype, (1, 8, 8, 4), None, grid) for name, grid in grids.items()}
    return Graph("made", tensors, (op,), ("x", "w"), ("y",))


POOL = {"kernel_shape": (4, 4)}
STEPS = np.array([0.0, 100.0, -1000.0])
FINE = np.maximum(1e-4, np.abs(STEPS) * 2.0**-21)
#: Operator, kernels -> reach, and whether that is coarse. 0.5 * 0.01 / 0.25 = 0.02 has a right shift of 5.
REACHES = {
    ("Conv", "default"): (FINE, False),
    ("Conv", "reference"): (FINE + 2.0**-6, False),
    ("Conv", "onnxruntime"): (10 * FINE, False),
    ("MatMul", "default"): (FINE + 2.0**-6, False),
    ("Add", "default"): (np.maximum(FINE, 4e-4), False),
    ("Add", "reference"): (FINE + 2e-3, False),
    ("ReduceMean", "reference"): (np.full(3, 0.51), True),
    ("ReduceMean", "default"): (FINE, False),
    ("LeakyRelu", "default"): (np.maximum(0.26, np.abs(STEPS) / 256 + 2.0**-9), True),
    ("Resize", "default"): (np.full(3, 0.02 + 255 / 1024), True),
    ("Resize", "reference"): (np.full(3, 0.02 + 255 * 8 / 1024), True),
    ("Sigmoid", "default"): (np.full(3, 0.03), False),
    ("Sigmoid", "onnxruntime"): (np.full(3, 0.01), False),
    ("Softmax", "onnxruntime"): (np.full(3, 0.01), False),
}


@pytest.mark.parametrize(("kind", "kernels"), REACHES)
def test_the_reach_of_kernels(kind: str, kernels: str) -> None:
    op = Op(kind, ("x", "w") if kind in ("Conv", "MatMul", "Add") else ("x",), ("y",), {"mode": "linear"} if kind == "Resize" else {})
    reach, coarse = kernels_named(kernels).reach(graph_of(op), op, STEPS, kernels)
    expected = REACHES[kind, kernels]
    assert np.allclose(reach, expected[0], rtol=1e-12) and coarse is expected[1]


def test_the_reach_of_16_bits_and_4_bits() -> None:
    op = Op("Conv", ("x", "w"), ("y",))
    wide = kernels_named("default").reach(graph_of(op, "int16"), op, STEPS, "default")
    assert np.allclose(wide[0], [0.02, 0.02, 1000 / 2**15]) and wide[1]
    assert np.allclose(kernels_named("onnxruntime").reach(graph_of(op, "int16"), op, STEPS, "onnxruntime")[0], 0.02)
    four = graph_of(op)
    four = four.evolve(tensors=[Tensor("w", "int4", (4, 1, 1, 4), None, Quantization.per_tensor(0.01))])
    assert np.allclose(kernels_named("default").reach(four, op, STEPS, "default")[0], FINE + 2.0**-6)  # not XNNPACK's


def test_a_softmax_whose_scale_is_no_whole_part_of_one() -> None:
    """onnxruntime multiplies by floor(1 / 0.3) = 3: a tenth is lost."""
    op = Op("Softmax", ("x",), ("y",))
    reach, coarse = kernels_named("onnxruntime").reach(graph_of(op, scale=0.3), op, np.array([2.0]), "onnxruntime")
    assert np.allclose(reach, 0.01 + 2 * 0.1, atol=1e-6) and coarse


def test_averages_of_one_grid_are_rounded_once() -> None:
    op = Op("AveragePool", ("x",), ("y",), POOL)
    reference = kernels_named("reference").reach
    assert np.allclose(reference(graph_of(op, scale=0.5), op, STEPS, "reference")[0], FINE)
    assert np.allclose(reference(graph_of(op), op, STEPS, "reference")[0], FINE + 2.0**-3)  # 2 / 16 = 0.125, a shift of 2
    assert np.allclose(kernels_named("default").reach(graph_of(op), op, STEPS, "default")[0], FINE)


def test_layers_without_a_delegate() -> None:
    runtime = runtimes()["litert"]
    assert runtime.layers is not None
    path = FIXTURES / "tiny_kws_dscnn_int8.tflite"
    default, reference = (runtime.layers(path, kernels) for kernels in ("default", "reference"))
    assert {layer.by for layer in reference} == {""} and "XNNPACK" in {layer.by for layer in default}
    assert [layer.outputs for layer in default] == [layer.outputs for layer in reference]
    assert all(layer.integer for layer in default)
