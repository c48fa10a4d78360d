"""Networks written as .param and .bin, read again, and run in ncnn: integers, scales and outputs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conftest import written
from qconvert_ncnn.container import read_param
from qconvert_ncnn.quantizations import is_int8_layer, nearest_invertible_scale
from qconvert_ncnn.running import NcnnModel

import qconvert
from qconvert.plugin import Graph, ModelFile, Op, Quantization, Tensor, UnsupportedError, convert, evaluate, load
from qconvert.testing import assert_target_takes, random_inputs

REAL = [
    "aww_int8.tflite",
    "coral_mobilenet_v1_025_128_uint8.tflite",
    "tflm_seanet_conv_int16x8.tflite",
    "tiny_ad_toycar_int8.tflite",
    "tiny_kws_dscnn_int8.tflite",
    "tiny_resnet_cifar10_int8.tflite",
    "onnx/brevitas_int8.onnx",
    "onnx/micro_kws_m_static_qdq.onnx",
    "onnx/modelopt_ptq_attention.onnx",
    "onnx/ort_conv.int4_weights.qdq.onnx",
    "onnx/torch_fx_qat_attention.onnx",
    "onnx/torch_pt2e_x86_vision.onnx",
]


@pytest.mark.parametrize("name", REAL)
def test_real_models_keep_integers_scales_and_outputs(name: str, fixtures: Path, tmp_path: Path) -> None:
    fitted, again = written(load(fixtures / name), tmp_path / "model.param")
    given = random_inputs(fitted)
    before, after = evaluate(_rounded_once(fitted), given), evaluate(again, dict(zip(again.inputs, given.values(), strict=True)))
    assert [*before] == [*after]
    for output in before:
        near = np.isclose(after[output], before[output], rtol=1e-5, atol=1e-6)
        assert near.mean() > 0.99, output  # real sums are float32 before they are rounded: ties may fall to the other side
    layers = [op for op in fitted if is_int8_layer(fitted, op)]
    weights = [fitted[op.inputs[1]] for op in layers]
    if "int16" not in name:
        assert weights
    for tensor in weights:
        assert again[tensor.name].quantization == tensor.quantization
        assert np.array_equal(np.asarray(again[tensor.name].data, np.int8), np.asarray(tensor.data, np.int8))
    for op in layers:
        assert again[op.inputs[0]].shares_quantization(fitted[op.inputs[0]])


@pytest.mark.parametrize(
    "name", ["tiny_resnet_cifar10_int8.tflite", "onnx/torch_pt2e_xnnpack_vision.onnx", "tiny_vww_mobilenet_int8.tflite"]
)
def test_ncnn_computes_what_the_conversion_declared(name: str, fixtures: Path, tmp_path: Path) -> None:
    convert(fixtures / name, tmp_path / "model.param")
    report = qconvert.check(fixtures / name, tmp_path / "model.param", per_op=True)
    assert report.passed, report.problems
    kinds = ("Convolution", "ConvolutionDepthWise", "InnerProduct")
    products = [layer for layer in read_param(tmp_path / "model.param") if layer.kind in kinds]
    on_int8 = sum(bool(layer.integer(8)) for layer in products)
    assert on_int8 > len(products) // 2
    assert f"ran {on_int8} of {len(products)} convolutions" in NcnnModel(ModelFile(tmp_path / "model.param", "cpu")).note


@pytest.mark.parametrize("name", ["tiny_ad_toycar_int8.tflite", "tiny_kws_dscnn_int8.tflite", "tflm_person_detect_int8.tflite"])
def test_on_real_values_every_output_is_the_source_s(name: str, fixtures: Path, tmp_path: Path) -> None:
    convert(fixtures / name, tmp_path / "model.param", target="ncnn-real")
    report = qconvert.check(fixtures / name, tmp_path / "model.param")
    assert report.passed
    assert all(item.equal == 1.0 for item in report.outputs), report.outputs


def test_states_come_back_and_are_carried(fixtures: Path, tmp_path: Path) -> None:
    source, result = fixtures / "mww_okay_nabu_streaming_int8.tflite", tmp_path / "wake.param"
    convert(source, result, target="ncnn-real")
    before, after = load(source), load(result)
    assert {name: state.dtype for name, state in after.states.items()} == {name: state.dtype for name, state in before.states.items()}
    report = qconvert.check(source, result, per_op=False)
    assert all(item.equal > 0.99 for item in report.outputs), report.outputs


def test_numerics_fast_leaves_roundings_out(fixtures: Path, tmp_path: Path) -> None:
    source = fixtures / "tiny_resnet_cifar10_int8.tflite"
    convert(source, tmp_path / "exact.param")
    report = convert(source, tmp_path / "fast.param", numerics="fast")
    assert len(read_param(tmp_path / "fast.param")) < len(read_param(tmp_path / "exact.param"))
    assert "not rounded" in " ".join(str(change) for change in report.changes)


def test_the_target_takes_sample_graphs() -> None:
    assert_target_takes("ncnn")


def test_a_tensor_that_layers_alone_read_is_rounded_once(tmp_path: Path) -> None:
    """To a quantization without a zero point, at which it saturates as before; the layer in front gives its integers."""
    graph = _chain(("int8", Quantization.per_tensor(0.02, -128)))
    fitted, again = written(graph, tmp_path / "model.param")
    q = fitted["a"].quantization
    assert q is not None
    assert (fitted["a"].dtype, q.zero_point.tolist(), q.quant_min, q.quant_max) == ("int8", [0], 0, 127)
    np.testing.assert_allclose(q.scale, 0.04, rtol=0.005)
    assert nearest_invertible_scale(q.scale) == q.scale
    assert again["a"].shares_quantization(fitted["a"])
    first, second = [layer for layer in read_param(tmp_path / "model.param") if layer.kind == "Convolution"]
    assert (first.integer(8), second.integer(8)) == (101, 1)


def test_a_tensor_with_other_readers_is_rounded_beside_them(tmp_path: Path) -> None:
    graph = _chain(("int8", Quantization.per_tensor(0.02, -100)), outputs=("y", "a"))
    fitted, again = written(graph, tmp_path / "model.param")
    assert fitted["a"].shares_quantization(graph["a"])
    assert again["a"].shares_quantization(graph["a"])
    data = next(fitted[op.inputs[0]] for op in fitted if op.kind == "Conv" and op.outputs == ("y",))
    assert data.name == "a/int8"
    assert again["a/int8"].shares_quantization(data)


def test_what_cannot_be_written_is_named_all_at_once(tmp_path: Path) -> None:
    tensors = [Tensor(name, "float32", (1, 4)) for name in "xabcy"]
    ops = (Op("Atan2", ("x", "x"), ("a",)), Op("ZerosLike", ("a",), ("b",)), Op("ZerosLike", ("b",), ("c",)), Op("Relu", ("c",), ("y",)))
    graph = Graph("odd", {item.name: item for item in tensors}, ops, ("x",), ("y",))
    with pytest.raises(UnsupportedError) as caught:
        written(graph, tmp_path / "model.param")
    assert caught.value.rule == "operators-not-writable" and "Atan2" in caught.value.reason and "ZerosLike" in caught.value.reason
    assert not [*tmp_path.iterdir()]


def test_several_samples_are_refused_with_the_remedy(tmp_path: Path) -> None:
    graph = Graph("two", {name: Tensor(name, "float32", (2, 4)) for name in "xy"}, (Op("Relu", ("x",), ("y",)),), ("x",), ("y",))
    with pytest.raises(UnsupportedError) as caught:
        written(graph, tmp_path / "model.param")
    assert caught.value.rule == "shape-not-writable" and "--batch 1" in caught.value.remedy


def test_an_open_number_of_samples_is_one(tmp_path: Path) -> None:
    graph = Graph("open", {name: Tensor(name, "float32", ("n", 4)) for name in "xy"}, (Op("Relu", ("x",), ("y",)),), ("x",), ("y",))
    fitted, again = written(graph, tmp_path / "model.param")
    assert fitted["y"].shape == again["y"].shape == (1, 4)


def test_outputs_keep_names_and_order(tmp_path: Path) -> None:
    """An inner tensor, one that is an input, and the last one first."""
    tensors = {name: Tensor(name, "float32", (1, 4)) for name in "xaby"}
    ops = (Op("Relu", ("x",), ("a",)), Op("Neg", ("a",), ("b",)), Op("Tanh", ("b",), ("y",)))
    _, again = written(Graph("order", tensors, ops, ("x",), ("y", "a")), tmp_path / "model.param")
    assert (again.inputs, again.outputs) == (("x",), ("y", "a"))
    found = NcnnModel(ModelFile(tmp_path / "model.param", "cpu")).run({"x": np.array([[-1, 0, 1, 2]], np.float32)})
    assert found["a"].tolist() == [[0, 0, 1, 2]]
    np.testing.assert_allclose(found["y"], np.tanh([[-0.0, 0, -1, -2]]), atol=1e-6)


def test_names_with_blanks_and_of_any_length_come_back(tmp_path: Path, fixtures: Path) -> None:
    graph = load(fixtures / "tiny_ad_toycar_int8.tflite")
    other = graph.with_names({name: f"{name}\n of <b> & {'long' * 80} {name}" for name in graph.tensors})
    fitted, again = written(other, tmp_path / "model.param")
    assert (again.inputs, again.outputs) == (other.inputs, other.outputs)
    computed = {name for op in fitted for name in op.outputs}
    assert {name for op in again for name in op.outputs} >= {name for name in computed if name in other.tensors}
    given = random_inputs(fitted)
    found = NcnnModel(ModelFile(tmp_path / "model.param", "cpu")).run(given)
    for name, value in evaluate(fitted, given).items():
        assert np.abs(found[name].astype(int) - value.astype(int)).max() <= 1


def _rounded_once(graph: Graph) -> Graph:
    """The graph without the roundings of the source's kernels, which the file cannot say."""
    return graph.evolve(ops=[op.with_attributes(arithmetic="") if op.attributes.get("arithmetic") else op for op in graph.ops])


def _chain(middle: tuple[str, Quantization], outputs: tuple[str, ...] = ("y",)) -> Graph:
    """Two convolutions of 1 x 1, with a tensor with a quantization between them."""
    rng = np.random.default_rng(0)
    weights = [rng.integers(-127, 128, (4, 4, 1, 1)).astype(np.int8) for _ in range(2)]
    window = {"dilations": (1, 1), "strides": (1, 1), "pads": (0, 0, 0, 0), "data_format": "channels_first"}
    q = Quantization.per_tensor(0.5, 0)
    tensors = [
        Tensor("x", "int8", (1, 4, 3, 3), None, dataclasses.replace(q, quant_min=-127, quant_max=127)),
        Tensor("v", "int8", (4, 4, 1, 1), weights[0], Quantization.per_tensor(0.0078125)),
        Tensor("a", middle[0], (1, 4, 3, 3), None, middle[1]),
        Tensor("w", "int8", (4, 4, 1, 1), weights[1], Quantization.per_tensor(0.0078125)),
        Tensor("y", "int8", (1, 4, 3, 3), None, Quantization.per_tensor(0.1, 7)),
    ]
    ops = (Op("Conv", ("x", "v"), ("a",), window), Op("Conv", ("a", "w"), ("y",), window))
    return Graph("chain", {item.name: item for item in tensors}, ops, ("x",), outputs)
