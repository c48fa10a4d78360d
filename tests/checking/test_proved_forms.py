"""What a proof follows where a format writes an operator in another form: over another axis, cropped, in float, as several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_nodes import model_of

from qconvert import convert, prove, run
from qconvert.checking.proof.classes import Proof
from qconvert.graph import Array

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: Scale and zero point of data, weights and results.
SCALES = {"x": (0.02, 120), "w": (0.005, 0), "y": (0.11, 90)}


def write_between_conversions(
    path: Path, nodes: Sequence[onnx.NodeProto], shape: Sequence[int], constants: Mapping[str, Array], **scales: tuple[float, int]
) -> Path:
    """Write an ONNX file of nodes from `data` to `result`, with bytes before and after them; a constant `w` is stored as int8."""
    numbers = dict(constants)
    made = [helper.make_node("DequantizeLinear", ["x", "x_scale", "x_point"], ["data"])]
    for name, (scale, point) in {**SCALES, **scales}.items():
        numbers |= {f"{name}_scale": np.array(scale, np.float32), f"{name}_point": np.array(point, np.int8 if name == "w" else np.uint8)}
    if "w" in constants:
        made.append(helper.make_node("DequantizeLinear", ["w", "w_scale", "w_point"], ["weights"]))
    made += [*nodes, helper.make_node("QuantizeLinear", ["result", "y_scale", "y_point"], ["y"])]
    ends = [[helper.make_tensor_value_info(name, onnx.TensorProto.UINT8, size)] for name, size in (("x", shape), ("y", None))]
    graph = helper.make_graph(made, "forms", *ends, [numpy_helper.from_array(data, name) for name, data in numbers.items()])
    model = model_of(graph)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def prove_converted(source: Path, shape: Sequence[int]) -> tuple[Proof, int]:
    """Return what is proved of the file as TFLite, and by how many steps runs of both differ at most."""
    result = source.with_suffix(".tflite")
    convert(source, result, force=True)
    random, apart = np.random.default_rng(0), 0
    for low, high in ((0, 256), (0, 256), (100, 140)):
        data = {"x": random.integers(low, high, shape).astype(np.uint8)}
        here, there = (run(path, data)["y"].astype(int) for path in (source, result))
        apart = max(apart, int(np.abs(here - there).max()))
    return prove(source, result), apart


def _weights(*shape: int) -> Array:
    return np.random.default_rng(1).integers(-127, 128, shape).astype(np.int8)


@pytest.mark.parametrize(
    ("kind", "shape", "weights", "attributes", "scale", "method"),
    [
        ("Conv", (2, 4, 14), (6, 2, 3), {"pads": [1, 0], "strides": [2], "group": 2}, 0.11, "identical parameters"),
        ("MaxPool", (2, 4, 14), (), {"kernel_shape": [3], "pads": [1, 2], "strides": [2]}, 0.02, "identical parameters"),
        ("MaxPool", (2, 4, 9, 9), (), {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1]}, 0.02, "identical parameters"),
        ("AveragePool", (2, 4, 10), (), {"kernel_shape": [2]}, 0.0331, "511 sums"),
        ("AveragePool", (2, 4, 9, 9), (), {"kernel_shape": [2, 2]}, 0.0273, "1021 sums"),
    ],
)
def test_another_form_of_one_operator_is_followed(
    kind: str,
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    attributes: dict[str, list[int]],
    scale: float,
    method: str,
    tmp_path: Path,
) -> None:
    node = helper.make_node(kind, ["data", *["weights"] * bool(weights)], ["result"], **attributes)
    point = 120 if kind == "MaxPool" else 90
    source = write_between_conversions(
        tmp_path / "m.onnx", [node], shape, {"w": _weights(*weights)} if weights else {}, y=(scale, point), w=(0.005, 0)
    )
    proof, apart = prove_converted(source, shape)
    assert proof.equal_for_all_inputs and apart == 0
    assert [item.method for item in proof.operators] == [method]


@pytest.mark.parametrize(
    ("shape", "weights", "attributes"),
    [
        ((2, 4, 5, 6), (4, 3, 3, 2), {"group": 2, "strides": [2, 3], "pads": [1, 0, 1, 1], "output_padding": [1, 1]}),
        ((2, 4, 5, 6), (4, 3, 2, 2), {"strides": [3, 2], "output_padding": [2, 1], "pads": [0, 0, 1, 0]}),
        ((2, 4, 7), (4, 3, 3), {"strides": [2], "pads": [1, 0]}),
    ],
)
def test_a_transposed_convolution_may_be_cropped_later(
    shape: tuple[int, ...], weights: tuple[int, ...], attributes: dict[str, list[int]], tmp_path: Path
) -> None:
    """LiteRT's kernel is exact, onnxruntime's computes in float."""
    node = helper.make_node("ConvTranspose", ["data", "weights"], ["result"], **attributes)
    proof, apart = prove_converted(write_between_conversions(tmp_path / "m.onnx", [node], shape, {"w": _weights(*weights)}), shape)
    assert [(item.class_, item.method) for item in proof.operators] == [("A", "tolerances")]
    assert not proof.problems and not proof.lost and apart <= 1
    assert proof.operators[0].operator.startswith("ConvTranspose")


def test_another_padding_of_a_transposed_convolution_is_another_operator(tmp_path: Path) -> None:
    """Both crop one position, at other ends."""
    shape, files = (1, 2, 5, 5), []
    for name, pads in (("a", [1, 1, 0, 0]), ("b", [0, 0, 1, 1])):
        node = helper.make_node("ConvTranspose", ["data", "weights"], ["result"], strides=[2, 2], pads=pads)
        files.append(write_between_conversions(tmp_path / f"{name}.onnx", [node], shape, {"w": _weights(2, 3, 3, 3)}))
    convert(files[1], tmp_path / "b.tflite")
    proof = prove(files[0], tmp_path / "b.tflite")
    assert not proof.equal_for_all_inputs and proof.problems


@pytest.mark.parametrize("bias", [0.0, 0.0123])
def test_a_product_whose_bias_is_added_in_float_is_none_of_integers(bias: float, tmp_path: Path) -> None:
    """Rows of more than two axes: the Quantize is after a Reshape in what is compared."""
    shape = (1, 50, 16)
    nodes = [helper.make_node("MatMul", ["data", "weights"], ["sum"]), helper.make_node("Add", ["sum", "bias"], ["result"])]
    constants = {"w": _weights(16, 8), "bias": np.full(8, bias, np.float32)}
    proof, apart = prove_converted(write_between_conversions(tmp_path / "m.onnx", nodes, shape, constants), shape)
    assert [item.class_ for item in proof.operators] == ["A"] and not proof.lost and apart <= 1
    assert proof.operators[0].output == "y"


def test_a_normalization_in_float_is_no_proof_of_equal_integers(tmp_path: Path) -> None:
    """What training leaves after a convolution joins its bias; the source computes it in float, and rounds some sums otherwise."""
    shape, random, found = (4, 3, 16, 16), np.random.default_rng(5), []
    for _ in range(6):
        numbers = {name: random.uniform(0.5, 2, 4).astype(np.float32) for name in ("gamma", "variance")}
        numbers |= {"beta": random.normal(size=4).astype(np.float32), "mean": random.normal(size=4).astype(np.float32)}
        factor = numbers["gamma"] / np.sqrt(numbers["variance"] + np.float32(1e-5))
        nodes = [
            helper.make_node("Conv", ["data", "weights"], ["sum"], pads=[1, 1, 1, 1]),
            helper.make_node("Div", ["sum", "factor"], ["divided"]),
            helper.make_node("BatchNormalization", ["divided", "gamma", "beta", "mean", "variance"], ["result"]),
        ]
        constants = {"w": _weights(4, 3, 3, 3), "factor": factor.reshape(1, 4, 1, 1), **numbers}
        source = write_between_conversions(tmp_path / "m.onnx", nodes, shape, constants, y=(0.03, 90))
        proof, apart = prove_converted(source, shape)
        assert [item.class_ for item in proof.operators] == ["A"] and not proof.lost
        found.append(apart)
    assert max(found) == 1


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "suffix", "unproved"),
    [
        # A mean in float, quantized as a fused sum.
        ("arithmetic/fx_fbgemm_frozen", "onnx", {"aten::mean": "it is written as 8 operators of float values"}),
        ("arithmetic/fx_fbgemm_frozen", "tflite", {"aten::mean": "it is written as 15 operators of float values"}),
        # Truth values of dequantized data, compared for all codes.
        ("operators/activations_fbgemm_frozen", "onnx", {}),
        # A loop, of whose results no size is known.
        ("gated/dynamic_frozen", "tflite", {"aten::quantized_gru": "it is written as 2 operators of float values"}),
    ],
)
def test_what_stands_for_one_operator_has_one_class(name: str, suffix: str, unproved: dict[str, str], tmp_path: Path) -> None:
    source, result = FIXTURES / "torch" / f"{name}.pt", tmp_path / f"result.{suffix}"
    convert(source, result)
    proof = prove(source, result)
    found = {item.operator.split()[0]: item.why.partition(", which")[0] for item in proof.operators if item.class_ == "?"}
    assert found == unproved and not proof.lost
