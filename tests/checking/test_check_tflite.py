"""check() of .tflite results: sound models pass on both kernels, a planted fault is named at its operator, layouts and storage fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx_models import path_of
from refusals import refused
from tflite_models import OpSpec, TensorSpec, model

from qconvert import Graph, Op, Quantization, Tensor, check, convert, load, save
from qconvert.checking.classify import classify, further_tolerance
from qconvert.checking.file_in_runtime import sides_of
from qconvert.checking.operator_finding import Judge
from qconvert.errors import InvalidModelError
from qconvert.rules.changed_values import changed_values

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
VISION = FIXTURES / "onnx" / "torch_fx_fbgemm_vision.onnx"
MODELS = (
    "torch_fx_fbgemm_vision", "torch_pt2e_xnnpack_vision", "brevitas_int8", "tf2onnx_tiny_resnet_cifar10_int8",
    "torch_pt2e_xnnpack_attention", "mobile-S8S8-qdq", "mobile-U8S8-pc-qdq", "encoder-S8S8-qdq", "conv_1d-U8S8-pc-qoperator",
    "conv_transpose-S8S8-pc-qdq", "average_pool-U8S8-qoperator", "average_pool_padded-S8S8-qoperator",
)  # fmt: skip


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("kernels", ["litert:default", "litert:reference"])
@pytest.mark.parametrize("name", MODELS)
def test_a_sound_model_passes(name: str, kernels: str, tmp_path: Path) -> None:
    source, result = path_of(name, tmp_path), tmp_path / "result.tflite"
    convert(source, result)
    report = check(source, result, samples=2, per_op=True, kernels=[kernels, "onnxruntime:unoptimized"])
    graph = load(source)
    assert report.passed, report.problems
    assert len(report.operators) >= 0.75 * len(graph.ops)
    for op in report.operators:
        assert op.largest <= (1 if graph[op.output].is_quantized else 2e-5), op


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("name", ["resize_linear-U8S8-qoperator", "resize_linear-S8S8-qoperator"])
def test_plain_integers_keep_their_storage(name: str, tmp_path: Path) -> None:
    """ONNX resizes the integers as plain numbers: stored as int8 they would be other numbers, off by the whole range."""
    source, result = path_of(name, tmp_path), tmp_path / "result.tflite"
    convert(source, result)
    report = check(source, result, samples=2, per_op=True, kernels="onnxruntime:unoptimized")
    assert report.passed, report.problems
    assert all(item.largest < 1.5 / 255 for item in report.outputs)


@pytest.mark.litert
@pytest.mark.parametrize("name", ["tiny_kws_dscnn_int8", "tiny_ad_toycar_int8", "tflm_person_detect_int8"])
def test_a_tflite_source_gives_its_own_values(name: str, tmp_path: Path) -> None:
    """The same operators on the same kernels: nothing differs."""
    source, result = FIXTURES / f"{name}.tflite", tmp_path / "result.tflite"
    convert(source, result)
    report = check(source, result, samples=3, per_op=True, kernels="litert:reference")
    assert report.passed, report.problems
    assert {op.verdict for op in report.operators} == {"equal"}
    assert len(report.operators) >= 0.9 * len([op for op in load(source).ops if op.outputs])
    assert report.kernels == ("litert:reference",) * 2


def planted(source: Path, folder: Path, change: Callable[[Graph, Op], Tensor]) -> tuple[Path, str]:
    """The sound .tflite file with one tensor of its third convolution changed, and the name of that convolution's output."""
    sound, result = folder / "sound.tflite", folder / "result.tflite"
    convert(source, sound)
    graph = load(sound)
    op = [op for op in graph.ops if op.kind == "Conv"][2]
    save(graph.evolve(tensors=[change(graph, op)]), result)
    return result, op.outputs[0]


def one_weight(graph: Graph, op: Op) -> Tensor:
    weights = graph[op.inputs[1]]
    assert weights.data is not None
    data = weights.data.copy()
    data.reshape(-1)[3] ^= 64
    return replace(weights, data=data)


def rolled_bias(graph: Graph, op: Op) -> Tensor:
    bias = graph[op.inputs[2]]
    assert bias.data is not None
    return replace(bias, data=np.roll(bias.data, 1))


def output_zero_point(graph: Graph, op: Op) -> Tensor:
    result = graph[op.outputs[0]]
    assert result.quantization is not None
    return replace(result, quantization=result.quantization.shift_zero_point(1))


def output_scale(graph: Graph, op: Op) -> Tensor:
    result = graph[op.outputs[0]]
    assert result.quantization is not None
    return replace(result, quantization=replace(result.quantization, scale=result.quantization.scale * np.float32(1.02)))


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (one_weight, "1 of "),
        (rolled_bias, "integers of"),
        (output_zero_point, "the zero point of"),
        (output_scale, "is off by 2%"),
    ],
)
def test_a_planted_fault_is_named_at_its_operator(fault: Callable[[Graph, Op], Tensor], reason: str, tmp_path: Path) -> None:
    result, name = planted(VISION, tmp_path, fault)
    report = check(VISION, result, samples=2, per_op=True, kernels="onnxruntime:unoptimized")
    assert not report.passed
    first = next(op for op in report.operators if op.verdict == "unexplained")
    assert first.output == name
    assert reason in first.reason
    named = {op.output for op in report.operators if op.verdict == "unexplained"}
    readers = {output for op in load(VISION).ops if name in op.inputs for output in op.outputs}
    assert named <= {name, *readers}


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_wrong_operator_is_found_by_its_values(tmp_path: Path) -> None:
    """No constant tells of a stride or a fused activation that is wrong."""
    sound, result = tmp_path / "sound.tflite", tmp_path / "result.tflite"
    convert(VISION, sound)
    graph = load(sound)
    op = next(op for op in graph.ops if op.kind == "Add")
    save(graph.evolve(ops=[replace(o, kind="Sub") if o is op else o for o in graph.ops]), result)
    report = check(VISION, result, samples=2, per_op=True, kernels="onnxruntime:unoptimized")
    wrong = [item for item in report.operators if item.verdict == "unexplained"]
    assert [item.output for item in wrong] == [op.outputs[0]]
    assert wrong[0].reason.startswith("differs from what the conversion makes: altered Sub ") and wrong[0].unexplained > 0
    assert wrong[0].largest > 10


def square(path: Path) -> Path:
    """x (1, 4, 4, 4) -> Relu -> MaxPool 1x1 -> y: no shape shows a layout."""
    quantization = Quantization.per_tensor(0.05, 3)
    tensors = {name: Tensor(name, "int8", (1, 4, 4, 4), None, quantization) for name in ("x", "r", "p", "y")}
    pool = {"kernel_shape": (1, 2), "strides": (1, 1), "pads": (0, 0, 0, 1), "dilations": (1, 1), "data_format": "channels_first"}
    ops = (Op("Relu", ("x",), ("r",)), Op("MaxPool", ("r",), ("p",), pool), Op("Relu", ("p",), ("y",)))
    save(Graph("square", tensors, ops, ("x",), ("y",)), path)
    return path


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_layouts_that_no_shape_shows_are_known(tmp_path: Path) -> None:
    source, result = square(tmp_path / "square.onnx"), tmp_path / "square.tflite"
    convert(source, result)
    written = load(result)
    assert written.metadata["layout.transposed"] != "[]"
    report = check(source, result, samples=2, per_op=True, kernels="onnxruntime:unoptimized")
    assert report.passed, report.problems
    assert {op.verdict for op in report.operators} == {"equal"}
    assert {op.output for op in report.operators} == {"r", "y"}  # the pool's activation is part of it


def test_the_weights_of_a_matmul_are_compared_turned() -> None:
    quantization = Quantization.per_tensor(0.5)
    data = np.arange(9, dtype=np.int8).reshape(3, 3)
    a, b, c = (
        Graph("g", {"w": Tensor("w", "int8", (3, 3), values, quantization)}, (), (), ("w",)) for values in (data, data.T, data.T + 1)
    )
    assert changed_values(a, b) == {}
    assert changed_values(a, c) == {"w": "9 of 9 integers of 'w' are not the source's"}


def test_two_roundings_explain_one_step_more() -> None:
    """An average on the scale of its data, 2, and from there on its own, 1: off by at most a step and a half, and approximate."""
    fine, coarse = Quantization.per_tensor(1.0), Quantization.per_tensor(2.0)
    tensors = {
        "x": Tensor("x", "int8", (1, 2, 2, 1), None, coarse),
        "m": Tensor("m", "int8", (1, 1, 1, 1), None, coarse),
        "y": Tensor("y", "int8", (1, 1, 1, 1), None, fine),
    }
    average = Op("GlobalAveragePool", ("x",), ("y",), {"data_format": "channels_last"})
    graph = Graph("g", {name: tensors[name] for name in ("x", "y")}, (average,), ("x",), ("y",))
    ops = (replace(average, outputs=("m",)), Op("Requantize", ("m",), ("y",)))
    other = Graph("g", tensors, ops, ("x",), ("y",))
    further = further_tolerance(graph, other, {"x", "y"}, {"m"})
    assert further == {"y": 1.5}
    source, result, exact = np.array([1], np.int8), np.array([2], np.int8), np.array([0.9])
    found = classify(graph, average, source, result, exact, ("onnxruntime", "litert"), further["y"])
    assert (found.verdict, found.reason) == ("approximate", "rounded more than once, because several operators replace one")
    assert classify(graph, average, source, result, exact, ("onnxruntime", "litert")).verdict == "unexplained"
    far = classify(graph, average, source, np.array([4], np.int8), exact, ("onnxruntime", "litert"), further["y"])
    assert (far.verdict, far.unexplained) == ("unexplained", 1)


def test_a_storage_only_conversion_is_no_rounding() -> None:
    a, b = Quantization.per_tensor(0.5, -3), Quantization.per_tensor(0.5, 125)
    tensors = {
        "x": Tensor("x", "int8", (4,), None, a),
        "m": Tensor("m", "uint8", (4,), None, b),
        "y": Tensor("y", "int8", (4,), None, a),
    }
    graph = Graph("g", {name: tensors[name] for name in "xy"}, (Op("Sigmoid", ("x",), ("y",)),), ("x",), ("y",))
    other = Graph("g", tensors, (Op("Requantize", ("x",), ("m",)), Op("Sigmoid", ("m",), ("y",))), ("x",), ("y",))
    assert further_tolerance(graph, other, {"x", "y"}, {"m"}) == {}
    moved = other.evolve(tensors=[Tensor("m", "uint8", (4,), None, Quantization.per_tensor(0.5, 124))])
    assert further_tolerance(graph, moved, {"x", "y"}, {"m"}) == {"y": 0.5}
    values = Tensor("m/real", "float32", (4,))
    ops = (Op("Sigmoid", ("x",), ("m",)), Op("Dequantize", ("m",), ("m/real",)), Op("Quantize", ("m/real",), ("y",)))
    assert further_tolerance(graph, moved.evolve(tensors=[values], ops=ops), {"x", "y"}, {"m"}) == {"y": 0.5}


@pytest.mark.litert
def test_two_kernels_of_one_format_run_a_side_each() -> None:
    source = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
    report = check(source, source, samples=3, kernels="litert:default,litert:reference")
    assert report.kernels == ("litert:default", "litert:reference") and report.passed and report.outputs[0].differs


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_tie_of_sums_in_float32_that_are_far_larger_than_what_is_left_of_them() -> None:
    """The first sum is 2 million steps, of which float32 keeps a quarter of a step; the second one is 0.6 steps."""
    coarse, fine = Quantization.per_tensor(1.0), Quantization.per_tensor(0.5)
    weights = np.zeros((2, 64), np.float32)
    weights[0], weights[1, 0] = 0.5, 0.3
    graph = Graph(
        "g",
        {
            "x": Tensor("x", "int16", (1, 64), None, coarse),
            "w": Tensor("w", "float32", (2, 64), weights),
            "y": Tensor("y", "int16", (1, 2), None, fine),
        },
        (Op("Gemm", ("x", "w"), ("y",), {"activation": ""}),),
        ("x",),
        ("y",),
    )
    real = [Tensor(name, "float32", graph[name[0]].shape) for name in ("x/real", "y/real")]
    ops = (
        Op("Dequantize", ("x",), ("x/real",)),
        Op("Gemm", ("x/real", "w"), ("y/real",), {"activation": ""}),
        Op("Quantize", ("y/real",), ("y",)),
    )
    source = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
    (side, _), _ = sides_of(source, source, "litert:reference", {})
    values, stored = {"x": np.array([[1, *[32767] * 63]], np.int16), "w": weights}, [np.array([[32767, last]], np.int16) for last in (1, 0)]
    for other, verdict in ((graph.evolve(tensors=real, ops=ops), "approximate"), (graph, "unexplained")):
        judge = Judge(graph, graph.producers(), other, other.producers(), (side, side), {}, {"x", "y"}, {"x", "y"})
        assert judge.finding(graph.ops[0], 0, values, (stored[0], stored[1])).verdict == verdict


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
def test_results_without_common_names_are_refused(tmp_path: Path) -> None:
    result = tmp_path / "result.tflite"
    convert(VISION, result)
    graph = load(result)
    renamed = graph.with_names({name: f"other/{name}" for name in graph.tensors})
    save(Graph(graph.name, renamed.tensors, renamed.ops, renamed.inputs, renamed.outputs), tmp_path / "other.tflite")
    with refused(InvalidModelError, "no-common-tensors", where="comparison of operators"):
        check(VISION, tmp_path / "other.tflite", samples=1, per_op=True)


@pytest.mark.end_to_end
def test_the_command_line(tmp_path: Path) -> None:
    result = tmp_path / "result.tflite"
    convert(VISION, result)
    command = [sys.executable, "-m", "qconvert", "check", str(VISION), str(result), "--per-op", "--kernels", "litert:reference", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["kernels"] == ["onnxruntime:optimized", "litert:reference"]
    assert len(report["operators"]) == 22
    together = "1 of 23 operators is judged together with what reads it: no output has the same name in both files"
    assert report["notes"] == [together]


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_float_sigmoid_far_below_zero_is_no_difference(tmp_path: Path) -> None:
    """onnxruntime cuts its argument off, so results that are all next to zero differ by much of their own."""
    x, y, z = (TensorSpec(name, (1, 64), "float32") for name in "xyz")
    shift = TensorSpec("c", (1, 64), "float32", data=np.full((1, 64), -40, np.float32))
    source, result = tmp_path / "m.tflite", tmp_path / "m.onnx"
    source.write_bytes(model([OpSpec("ADD", ["x", "c"], ["y"], {}), OpSpec("LOGISTIC", ["y"], ["z"])], [x, shift, y, z], ["x"], ["z"]))
    convert(source, result)
    assert check(source, result, per_op=True).passed
