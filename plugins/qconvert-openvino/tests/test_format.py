"""Models written as .xml and .bin, and read again: the same integers, scales, zero points and outputs."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from conftest import written
from qconvert_openvino.constants import quantization_along
from qconvert_openvino.ranges import quantization_of, ranges_of
from qconvert_openvino.running import OpenVinoModel

import qconvert
from qconvert.plugin import FileAccessError, Graph, ModelFile, Op, Quantization, Tensor, UnsupportedError, convert, evaluate, load
from qconvert.testing import assert_round_trips, random_inputs

REAL = [
    "aww_int8.tflite",
    "coco_ssd_mobilenet_v1_uint8.tflite",
    "coral_mobilenet_v1_025_128_uint8.tflite",
    "tflm_mobilenet_v2_from_torch_int8.tflite",
    "tflm_seanet_conv_int16x8.tflite",
    "tiny_ad_toycar_int8.tflite",
    "tiny_kws_dscnn_int8.tflite",
    "tiny_resnet_cifar10_int8.tflite",
    "onnx/brevitas_int4_weights.onnx",
    "onnx/micro_kws_m_static_qdq.onnx",
    "onnx/modelopt_ptq_attention.onnx",
    "onnx/ort_conv.int4_weights.qdq.onnx",
    "onnx/ort_qdq_with_multi_consumer_dq_nodes.fixed.qdq16.onnx",
    "onnx/torch_fx_qat_vision.onnx",
    "onnx/torch_pt2e_x86_attention.onnx",
    "onnx/torch_pt2e_xnnpack_vision.onnx",
]


def test_sample_graphs_round_trip() -> None:
    assert assert_round_trips("openvino") == ()


@pytest.mark.parametrize("name", REAL)
def test_real_models_keep_integers_scales_zero_points_and_outputs(name: str, fixtures: Path, tmp_path: Path) -> None:
    graph = load(fixtures / name)
    processing = [op for op in graph if op.kind == "DetectionPostProcess"]
    if processing:  # the network up to it
        graph = graph.evolve(ops=[op for op in graph if op not in processing], outputs=processing[0].inputs[:2])
    fitted, again = written(graph, tmp_path / "model.xml")
    given = random_inputs(fitted)
    before, after = evaluate(fitted, given), evaluate(again, dict(zip(again.inputs, given.values(), strict=True)))
    assert [*before] == [*after]
    assert all(np.array_equal(before[output], after[output]) for output in before)
    kept = {name for name in fitted.tensors if name in again and again[name].shares_quantization(fitted[name])}
    turned = sum(op.kind == "MatMul" for op in fitted)  # whose weights become those of a Gemm
    constants = [tensor for tensor in fitted.constants() if tensor.is_quantized]
    assert constants and len([tensor for tensor in constants if tensor.name in kept]) >= len(constants) - turned
    layers = [op.outputs[0] for op in fitted if op.kind in ("Conv", "Gemm", "Add") and fitted[op.outputs[0]].is_quantized]
    assert {*layers} <= kept
    for tensor in constants:
        if tensor.name in kept:
            integers, own = np.asarray(again[tensor.name].data, np.int64), np.asarray(tensor.data, np.int64)
            assert np.array_equal(integers, own.T if turned and integers.shape != own.shape else own)


@pytest.mark.parametrize(
    "q",
    [
        Quantization.per_tensor(0.5, 0),
        Quantization.per_axis(np.array([0.5, 0.3, 2], np.float32), 0),
        Quantization(np.array([[0.1, 3], [0.5, 0.25], [1, 2]], np.float32), np.zeros((3, 2), np.int64), 1, 4),
    ],
    ids=["tensor", "outputs", "blocks"],
)
def test_weights_of_fp8_stay_what_they_are(q: Quantization, tmp_path: Path) -> None:
    """Products with a unit matrix are exact, so that OpenVINO gives the dequantized weights."""
    stored = np.linspace(-448, 448, 24).astype(ml_dtypes.float8_e4m3fn).reshape(3, 8)
    tensors = [Tensor("x", "float32", (8, 8)), Tensor("w", "float8e4m3fn", (3, 8), stored, q)]
    tensors += [Tensor("r", "float32", (3, 8)), Tensor("y", "float32", (8, 3))]
    ops = (Op("Dequantize", ("w",), ("r",)), Op("Gemm", ("x", "r"), ("y",)))
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",))
    _, again = written(graph, tmp_path / "model.xml")
    (weights,) = (tensor for tensor in again.constants() if tensor.is_quantized)
    assert weights.dtype == "float8e4m3fn" and weights.data is not None and weights.data.tobytes() == stored.tobytes()
    assert weights.quantization == q
    found = OpenVinoModel(ModelFile(tmp_path / "model.xml", "real")).run({"x": np.eye(8, dtype=np.float32)})["y"]
    np.testing.assert_array_equal(found, evaluate(graph, {"x": np.eye(8, dtype=np.float32)})["y"])


def test_states_come_back(fixtures: Path, tmp_path: Path) -> None:
    source, result = fixtures / "mww_okay_nabu_streaming_int8.tflite", tmp_path / "wake.xml"
    convert(source, result)
    before, after = load(source), load(result)
    assert {name: state.dtype for name, state in after.states.items()} == {name: state.dtype for name, state in before.states.items()}
    for name, state in after.states.items():
        assert np.array_equal(np.asarray(state.data).reshape(-1), np.asarray(before.states[name].data).reshape(-1))


def test_what_cannot_be_written_is_named_all_at_once(fixtures: Path, tmp_path: Path) -> None:
    tensors = [Tensor(name, "int32", (1, 4)) for name in "xabcy"]
    pairs = [("BitwiseAnd", "xa"), ("BitwiseOr", "ab"), ("BitwiseOr", "bc"), ("Add", "cy")]
    ops = tuple(Op(kind, (data, data), (result,)) for kind, (data, result) in pairs)
    graph = Graph("odd", {item.name: item for item in tensors}, ops, ("x",), ("y",))
    with pytest.raises(UnsupportedError) as caught:
        written(graph, tmp_path / "model.xml")
    assert caught.value.rule == "operators-not-writable" and "1 BitwiseAnd, 2 BitwiseOr" in caught.value.reason
    assert not [*tmp_path.iterdir()]
    with pytest.raises(UnsupportedError) as caught:
        convert(fixtures / "tflm_keyword_svdf_int8.tflite", tmp_path / "model.xml")
    assert caught.value.rule == "operators-not-writable" and "7 IntegerSVDF" in caught.value.reason


def test_the_bin_file_lies_beside_and_is_needed(fixtures: Path, tmp_path: Path) -> None:
    convert(fixtures / "tiny_resnet_cifar10_int8.tflite", tmp_path / "model.xml")
    assert {item.name for item in tmp_path.iterdir()} == {"model.xml", "model.bin"}
    (tmp_path / "model.bin").unlink()
    with pytest.raises(FileAccessError) as caught:
        load(tmp_path / "model.xml")
    assert caught.value.rule == "file-not-read"
    assert "model.bin" in caught.value.file


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4", "int16", "uint16"])
def test_ranges_give_scales_back(dtype: str) -> None:
    """To the last bit for nearly all; the others are noted in the file."""
    rng = np.random.default_rng(5)
    low, high = qconvert.plugin.integer_range(dtype)
    exact = 0
    for scale in np.exp(rng.uniform(-12, 4, 500)).astype(np.float32):
        q = Quantization.per_tensor(float(scale), int(rng.integers(low, high + 1)))
        fake = ranges_of(q, dtype)
        found = quantization_of(fake, None)
        shift = low - qconvert.plugin.integer_range(found[0])[0]
        assert found[1].point + shift == q.point
        np.testing.assert_allclose(found[1].scale, q.scale, rtol=2**-23)
        exact += found[1].scale[0] == scale
        assert quantization_of(fake, None, (dtype, q)) == (dtype, q)
    assert exact > 480


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_many_weights_of_4_bits_are_written_as_they_are(dtype: str, tmp_path: Path) -> None:
    """OpenVINO's constants of 4 bits share numpy's memory by default: what is freed before the file is written has other numbers then."""
    rng = np.random.default_rng(7)
    low, high = qconvert.plugin.integer_range(dtype)
    tensors, ops, last = [Tensor("x", "float32", (2, 256))], [], "x"
    for place in range(16):
        data = rng.integers(low, high + 1, (256, 256)).astype(qconvert.plugin.numpy_dtype(dtype))
        q = Quantization(rng.uniform(0.001, 0.01, (256, 4)).astype(np.float32), np.full((256, 4), (low + high + 1) // 2), 1, 64)
        tensors += [Tensor(f"q{place}", dtype, data.shape, data, q), Tensor(f"w{place}", "float32", data.shape)]
        tensors.append(Tensor(f"y{place}", "float32", (2, 256)))
        ops += [Op("Dequantize", (f"q{place}",), (f"w{place}",)), Op("Gemm", (last, f"w{place}"), (f"y{place}",))]
        last = f"y{place}"
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, tuple(ops), ("x",), (last,))
    qconvert.save(graph, tmp_path / "m.xml")
    found = load(tmp_path / "m.xml")
    stored = [tensor for tensor in found.constants() if tensor.is_quantized]
    assert len(stored) == 16
    wanted = [graph[f"q{place}"].float_values() for place in range(16)]
    assert all(any(np.array_equal(tensor.float_values(), other) for other in wanted) for tensor in stored)


def test_a_note_that_does_not_fit_the_ranges_is_not_believed() -> None:
    q = Quantization.per_tensor(0.5, 3)
    fake = ranges_of(q, "int8")
    for other in (Quantization.per_tensor(0.25, 3), Quantization.per_tensor(0.5, 4)):
        assert quantization_of(fake, None, ("int8", other)) == ("uint8", Quantization.per_tensor(0.5, 131))
    assert quantization_of(fake, None, ("float32", q))[0] == "uint8"


@pytest.mark.parametrize(
    ("scales", "points", "shape", "expected"),
    [
        ([[1], [1], [2], [2]], [[0]], (4, 6), (0, 0, 4)),  # neighbours with equal scales are no block
        ([[1], [1]], [[0]], (2, 6), (0, 0, 2)),
        ([[1, 1, 2, 2]], [[0]], (1, 4), (1, 2, 2)),
        ([[1, 1, 2, 2, 3, 3]], [[1, 1, 1, 2, 2, 2]], (1, 6), (1, 0, 6)),  # blocks of 2 and of 3
        ([[1, 1, 2, 2], [3, 3, 4, 4]], [[0]], (2, 4), (1, 2, 4)),
        ([[1]], [[3]], (2, 4), (None, 0, 1)),
    ],
)
def test_scales_of_each_element_are_per_axis_or_in_blocks(
    scales: list[list[int]], points: list[list[int]], shape: tuple[int, int], expected: tuple[int | None, int, int]
) -> None:
    scale, point = np.broadcast_to(np.array(scales, np.float32), shape), np.broadcast_to(np.array(points), shape)
    found = quantization_along(scale, point)
    assert (found.axis, found.block_size, found.scale.size) == expected


@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_reduction_over_no_axes_is_one_over_all(keepdims: int, tmp_path: Path) -> None:
    tensors = [Tensor("x", "float32", (2, 3)), Tensor("a", "int64", (0,), np.zeros(0, np.int64))]
    tensors.append(Tensor("y", "float32", (1, 1) if keepdims else ()))
    op = Op("ReduceSum", ("x", "a"), ("y",), {"keepdims": keepdims})
    _, found = written(Graph("sum", {item.name: item for item in tensors}, (op,), ("x",), ("y",)), tmp_path / "m.xml")
    assert float(evaluate(found, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})["y"].reshape(-1)[0]) == 15


@pytest.mark.parametrize("is_sorted", [0, 1])
def test_a_topk_takes_the_first_of_equal_values(is_sorted: int, tmp_path: Path) -> None:
    tensors = [Tensor("x", "float32", (1, 6)), Tensor("k", "int64", (1,), np.array([3])), Tensor("y", "float32", (1, 3))]
    tensors.append(Tensor("i", "int64", (1, 3)))
    op = Op("TopK", ("x", "k"), ("y", "i"), {"axis": 1, "sorted": is_sorted})
    written(Graph("top", {item.name: item for item in tensors}, (op,), ("x",), ("y", "i")), tmp_path / "m.xml")
    found = OpenVinoModel(ModelFile(tmp_path / "m.xml", "real")).run({"x": np.array([[3, 1, 5, 3, 5, 0]], np.float32)})
    assert sorted(np.ravel(found["i"]).tolist()) == [0, 2, 4]


@pytest.mark.parametrize("kind", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize(("size", "kernel", "stride", "pad"), [(7, 3, 2, 0), (6, 3, 2, 1), (5, 2, 3, 1), (4, 2, 3, 1), (7, 2, 2, 0)])
def test_windows_that_hang_over(kind: str, size: int, kernel: int, stride: int, pad: int, tmp_path: Path) -> None:
    """ceil_mode, of which OpenVINO has two meanings."""
    window = {"kernel_shape": (kernel, kernel), "strides": (stride, stride), "pads": (pad,) * 4, "ceil_mode": 1}
    op = Op(kind, ("x",), ("y",), {**window, "data_format": "channels_first"})
    graph = Graph("pool", {"x": Tensor("x", "float32", (1, 2, size, size)), "y": Tensor("y", "float32", None)}, (op,), ("x",), ("y",))
    given = random_inputs(graph)
    exact = evaluate(graph, given)["y"]
    _, again = written(graph.evolve(tensors=[Tensor("y", "float32", exact.shape)]), tmp_path / "model.xml")
    assert np.array_equal(evaluate(again, given)["y"], exact)
    found = OpenVinoModel(ModelFile(tmp_path / "model.xml", "real")).run(given)["y"]
    np.testing.assert_allclose(found, exact, atol=1e-6)


@pytest.mark.parametrize("kind", ["ReduceMean", "ReduceMax", "ReduceLogSumExp"])
def test_a_reduction_without_axes_is_one_of_all(kind: str, tmp_path: Path) -> None:
    """OpenVINO reduces nothing there."""
    tensors = [Tensor("x", "float32", (1, 2, 3, 4)), Tensor("axes", "int64", (0,), np.zeros(0, np.int64)), Tensor("y", "float32", (1,) * 4)]
    op = Op(kind, ("x", "axes"), ("y",), {"keepdims": 1})
    graph = Graph("all", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",))
    _, again = written(graph, tmp_path / "model.xml")
    given = random_inputs(graph)
    exact = evaluate(graph, given)["y"]
    for found in (evaluate(again, given)["y"], OpenVinoModel(ModelFile(tmp_path / "model.xml", "real")).run(given)["y"]):
        np.testing.assert_allclose(found, exact, rtol=1e-6)


def test_an_output_that_is_an_input_keeps_its_name(tmp_path: Path) -> None:
    tensors = {name: Tensor(name, "float32", (1, 4)) for name in "xy"}
    _, again = written(Graph("same", tensors, (Op("Relu", ("x",), ("y",)),), ("x",), ("y", "x")), tmp_path / "model.xml")
    assert (again.inputs, again.outputs) == (("x",), ("y", "x"))


def test_names_with_what_xml_and_openvino_give_a_meaning(tmp_path: Path, sample_graph: Graph) -> None:
    other = sample_graph.with_names({name: f'{name},"<b>&\\{name}' for name in sample_graph.tensors})
    fitted, again = written(other, tmp_path / "model.xml")
    assert (again.inputs, again.outputs) == (fitted.inputs, fitted.outputs)
