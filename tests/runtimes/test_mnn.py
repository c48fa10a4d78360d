"""MNN in a process of its own: whole files, parts of them, and what is said where it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert import Graph, Op, Quantization, Tensor, check, convert, load, save
from qconvert.checking.file_in_runtime import sides_of
from qconvert.checking.operator_finding import Judge
from qconvert.errors import OptionError, RuntimeRefusedError
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array
from qconvert.kernels import KERNELS
from qconvert.plugins import ModelFile
from qconvert.runtimes import mnn
from qconvert.runtimes.litert import LiteRT
from qconvert.runtimes.mnn import MNNInside, MNNModel

pytestmark = [pytest.mark.mnn, pytest.mark.skipif(find_spec("MNN") is None, reason="MNN is not installed")]

FIXTURES = Path(__file__).parents[2] / "fixtures"
RESNET = FIXTURES / "tiny_resnet_cifar10_int8.tflite"


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mnn") / "resnet.mnn"
    convert(RESNET, path)
    return path


def image(seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-128, 128, (1, 32, 32, 3)).astype(np.int8)


@pytest.mark.litert
def test_a_file_takes_and_gives_real_values(resnet: Path) -> None:
    model = MNNModel(resnet)
    assert model.inputs == {"input_1_int8": ("float32", (1, 32, 32, 3))} and list(model.outputs) == ["Identity_int8"]
    assert model.note.startswith("MNN 3.")
    source = LiteRT(RESNET.read_bytes())
    for seed in range(3):
        expected = next(iter(source.run({"input_1_int8": image(seed)}).values())).astype(np.float32)
        found = model.run({"input_1_int8": image(seed).astype(np.float32) + 128})["Identity_int8"]
        assert found.shape == (1, 10) and np.abs(found * 256 - (expected + 128)).max() < 20
    model.close()


def test_a_part_of_a_file(resnet: Path) -> None:
    """MNN rounds what it is given to the quantization of an int8 layer, and gives values with the quantization of its result."""
    graph = load(RESNET)
    inside = MNNInside(ModelFile(resnet, "cpu"), graph)
    first, second = (op.outputs[0] for op in graph.ops[:2])
    assert {first, second, "input_1_int8", "Identity_int8"} <= inside.names
    pieces = inside.pieces(frozenset((first, second)), frozenset((second,)))
    assert (pieces.fed, pieces.computed, pieces.shapes[first]) == ((first,), {second}, (1, 16, 32, 32))
    quantization, result = graph[first].quantization, graph[second].quantization
    assert quantization is not None and result is not None
    on_quantization = np.random.default_rng(0).integers(0, 256, (1, 16, 32, 32)).astype(np.float32) * quantization.scale[0]
    found = pieces.run({first: on_quantization})[second] / result.scale[0]
    assert found.shape == (1, 16, 32, 32) and np.abs(found - np.rint(found)).max() < 1e-3


def test_data_that_a_layer_reads_after_movement_stay_packed(tmp_path: Path) -> None:
    """MNN runs a part of which it packs the data again in float, by Winograd's convolution, which gives no integers."""
    rng = np.random.default_rng(0)
    data, result, step = Quantization.per_tensor(0.02, 1), Quantization.per_tensor(0.0208, 1), Quantization.per_tensor(0.0011, 0)
    tensors = [
        Tensor("x", "int8", (1, 24, 24, 16), None, data),
        Tensor("v", "int8", (16, 16, 1, 1), rng.integers(-127, 128, (16, 16, 1, 1)).astype(np.int8), step),
        Tensor("c", "int8", (1, 24, 24, 16), None, data),
        Tensor("sizes", "int64", (4,), np.array([1, 12, 48, 16])),
        Tensor("s", "int8", (1, 12, 48, 16), None, data),
        Tensor("w", "int8", (3, 16, 3, 3), rng.integers(-127, 128, (3, 16, 3, 3)).astype(np.int8), step),
        Tensor("y", "int8", (1, 12, 48, 3), None, result),
    ]
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "group": 1, "activation": "", "data_format": "channels_last"}
    conv = Op("Conv", ("s", "w"), ("y",), {**window, "pads": (1, 1, 1, 1)})
    ops = (Op("Conv", ("x", "v"), ("c",), window), Op("Reshape", ("c", "sizes"), ("s",)), conv)
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",))
    path = tmp_path / "net.mnn"
    convert(graph, path)
    pieces = MNNInside(ModelFile(path, "cpu"), graph).pieces(frozenset(("s",)), frozenset(("y",)))
    stored = rng.integers(-128, 128, (1, 12, 48, 16)).astype(np.int8)
    found = pieces.run({"s": (stored.astype(np.float32) - 1) * np.float32(0.02)})["y"] / np.float32(0.0208) + 1
    assert np.mean(np.rint(found) != evaluate_op(graph, conv, [stored, graph.constant("w")])[0].stored) < 2e-4
    assert np.abs(found - np.rint(found)).max() < 1e-3


def test_a_file_that_mnn_does_not_take(tmp_path: Path) -> None:
    broken = tmp_path / "broken.mnn"
    broken.write_bytes(b"\x00" * 100)
    with refused(RuntimeRefusedError, "model-refused", holds=("MNN",)):
        MNNModel(broken)


@pytest.mark.end_to_end
def test_a_process_that_ends_is_reported_with_what_it_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resnet: Path) -> None:
    crash = "import os, sys; print('Error for 12', file=sys.stderr, flush=True); os.abort()"
    for code, rule, holds in (
        (crash, "process-ended", ("SIGABRT", "Error for 12")),
        ("raise SystemExit(7)", "process-ended", (7,)),
        ("print('no JSON', flush=True); input()", "invalid-answer", ("no JSON",)),
    ):
        program = tmp_path / "child.py"
        program.write_text(code)
        monkeypatch.setattr(mnn, "_CHILD", program)
        with refused(RuntimeRefusedError, rule, holds=holds):
            MNNModel(resnet)


@pytest.mark.end_to_end
@pytest.mark.parametrize("described", ['[["object", [1]]]', '[["float32", [-1]]]', '[["float32", [99999999999]]]', '"x"', '[["float32"]]'])
def test_results_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resnet: Path, described: str) -> None:
    program = tmp_path / "child.py"
    loaded = '{"model": 0, "inputs": [["x", "float", [1]]], "outputs": ["y"], "version": "0"}'
    results = f"print('{{\"values\": {described}}}', flush=True)"
    listen = "sys.stdin.buffer.readline()"
    program.write_text("\n".join(["import sys", f"print('{{}}\\n{loaded}', flush=True)", listen, listen, listen, results, listen]))
    monkeypatch.setattr(mnn, "_CHILD", program)
    model = MNNModel(resnet)
    with refused(RuntimeRefusedError, "invalid-answer", holds=("MNN",)):
        model.run({"x": np.zeros(1, np.float32)})


@pytest.mark.end_to_end
def test_a_process_that_does_not_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resnet: Path) -> None:
    program = tmp_path / "child.py"
    program.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(mnn, "_CHILD", program)
    monkeypatch.setattr(mnn, "_PATIENCE", 0.5)
    with refused(RuntimeRefusedError, "no-answer"):
        MNNModel(resnet)


@pytest.mark.litert
def test_the_check_compares_every_operator(resnet: Path) -> None:
    report = check(RESNET, resnet, samples=2)
    assert report.verdict == "passed" and report.kernels == ("litert:default", "mnn:cpu")
    assert len(report.operators) == 16 and {op.verdict for op in report.operators} <= {"equal", "one rounding"}
    assert sum(op.equal == 1 for op in report.operators) >= 13
    assert any("integers of 10 layers are read and compared" in note for note in report.notes)


@pytest.mark.litert
def test_the_check_names_integers_that_are_others(resnet: Path, tmp_path: Path) -> None:
    """One bit of the weights of a layer: the file says so, and so does MNN."""
    data = bytearray(resnet.read_bytes())
    weights = load(RESNET).ops[2].inputs[1]
    stored = load(RESNET)[weights].data
    assert stored is not None
    codes = (stored.reshape(-1).astype(np.int16) + 128).astype(np.uint8).tobytes()
    start = bytes(data).index(codes)
    data[start + 700] ^= 0x40
    other = tmp_path / "other.mnn"
    other.write_bytes(data)
    report = check(RESNET, other, samples=1)
    assert report.verdict == "not equal" and any("1 integers differ" in problem for problem in report.problems)


@pytest.mark.litert
def test_the_check_of_weights_that_the_conversion_changed(tmp_path: Path) -> None:
    """uint8 weights with a zero point become symmetric, which the conversion declares."""
    source, result = FIXTURES / "coral_mobilenet_v1_025_128_uint8.tflite", tmp_path / "model.mnn"
    said = convert(source, result)
    assert any("symmetric_weights" in str(change) and "3681 of 3737 scales" in str(change) for change in said.changes)
    report = check(source, result, samples=1)
    assert report.verdict == "passed" and {op.verdict for op in report.operators} >= {"requantized"}


@pytest.mark.litert
def test_layers_left_float_are_named_by_the_check(tmp_path: Path) -> None:
    convert(RESNET, tmp_path / "model.mnn", float_layers="FULLY_CONNECTED*")
    report = check(RESNET, tmp_path / "model.mnn", samples=1)
    assert report.verdict == "passed" and any("1 layer has no scales in the file" in note for note in report.notes)


def test_a_mnn_file_is_no_source_of_a_check(resnet: Path, tmp_path: Path) -> None:
    save(load(RESNET), tmp_path / "model.qgraph")
    with refused(OptionError, "operators-not-read", holds=("mnn",)):
        check(resnet, RESNET)


@pytest.mark.onnxruntime
def test_results_without_a_quantization_are_named(tmp_path: Path) -> None:
    source = FIXTURES / "onnx" / "brevitas_int8.onnx"
    convert(source, tmp_path / "model.mnn")
    report = check(source, tmp_path / "model.mnn", samples=1)
    assert any("results of operators have no scale in the file" in note for note in report.notes)
    assert {op.verdict for op in report.operators if op.operator.startswith("Conv ")} <= {"equal", "one rounding"}


def scores(path: Path, factor: float = 1.0) -> Path:
    """A linear layer and a Softmax, of which a real output is read."""
    rng = np.random.default_rng(3)
    tensors = [
        Tensor("x", "int8", (1, 16), None, Quantization.per_tensor(0.02, 3)),
        Tensor("w", "int8", (10, 16), rng.integers(-127, 128, (10, 16)).astype(np.int8), Quantization.per_tensor(0.01, 0)),
        Tensor("y", "int8", (1, 10), None, Quantization.per_tensor(0.1 * factor, 5)),
        Tensor("s", "int8", (1, 10), None, Quantization.per_tensor(1 / 256, -128)),
        Tensor("given", "float32", (1, 16)),
        Tensor("read", "float32", (1, 10)),
    ]
    ops = [Op("Quantize", ("given",), ("x",)), Op("Gemm", ("x", "w"), ("y",)), Op("Softmax", ("y",), ("s",), {"axis": 1})]
    ops.append(Op("Dequantize", ("s",), ("read",)))
    save(Graph("scores", {tensor.name: tensor for tensor in tensors}, tuple(ops), ("given",), ("read",)), path)
    return path


@pytest.mark.onnxruntime
def test_real_outputs_that_are_not_rounded_are_compared_on_the_source_s_quantization(tmp_path: Path) -> None:
    source, result = scores(tmp_path / "m.onnx"), tmp_path / "m.mnn"
    assert convert(source, result) and not check(source, result).outputs[0].differs
    said = convert(source, result, numerics="fast", force=True)
    assert any("quantizes the outputs 'read'" in str(change) for change in said.changes)
    report = check(source, result)
    assert report.passed and report.outputs[0].differs
    (last,) = [op for op in report.operators if op.output == "read"]
    assert last.reason == "floats, which the source quantizes" and last.largest <= 0.5 / 256 / 0.3
    convert(scores(tmp_path / "other.onnx", 1.3), tmp_path / "other.mnn", numerics="fast")
    assert not check(source, tmp_path / "other.mnn").passed


def test_real_outputs_that_are_wrong_by_more_than_half_a_step_fail(tmp_path: Path) -> None:
    """The Softmax of one row, as it is, and moved by most of a step."""
    source, result = scores(tmp_path / "m.onnx"), tmp_path / "m.mnn"
    convert(source, result)
    graph = load(source)
    values = {"y": np.array([[5, 20, -30, 7, 40, 5, 5, 5, 5, 5]], np.int8)}
    side = sides_of(source, result, "", {})[0][1].use_graph(graph, {"s"})
    judge = Judge(graph, graph.producers(), graph, graph.producers(), (side, side), {}, {"y"}, {"y"})
    exact = evaluate_op(graph.evolve(tensors=[Tensor("s", "float32", (1, 10))]), graph.producers()["s"], [values["y"]])[0].stored
    rounded = (np.rint(exact * 256) / 256).astype(np.float32)
    op = graph.producers()["read"]
    for off, verdict in ((0.0, "approximate"), (0.9 / 256, "unexplained"), (np.nan, "unexplained")):
        found = judge.finding(op, 0, values, (rounded, (exact + np.float32(off)).astype(np.float32)))
        assert found.verdict == verdict, (off, found)


def test_averages_are_a_few_roundings_off() -> None:
    def averaged(kernel: tuple[int, int]) -> bool:
        tensors = {name: Tensor(name, "int8", (1, 3, 4, 4), None, Quantization.per_tensor(0.1)) for name in "xy"}
        op = Op("AveragePool", ("x",), ("y",), {"kernel_shape": kernel, "data_format": "channels_first"})
        reach, coarse = KERNELS["mnn:cpu"].tolerance(Graph("pool", tensors, (op,), ("x",), ("y",)), op, np.zeros(3))
        assert bool((reach >= 1).all()) == coarse
        return coarse

    assert not averaged((2, 2)) and not averaged((4, 4))


@pytest.mark.cross_section
def test_depthwise_layers_round_within_half_a_unit_of_their_sum(tmp_path: Path) -> None:
    """MNN cuts off a part of the result's zero point; biases make up for more than half a unit of it."""
    rng = np.random.default_rng(0)
    steps = np.float32(0.05) * (scales := rng.uniform(0.02, 0.05, 16).astype(np.float32))
    tensors = {
        "x": Tensor("x", "int8", (1, 16, 12, 12), None, Quantization.per_tensor(0.05, 3)),
        "w": Tensor("w", "int8", (16, 1, 3, 3), rng.integers(-128, 128, (16, 1, 3, 3)).astype(np.int8), Quantization.per_axis(scales, 0)),
        "b": Tensor("b", "int32", (16,), rng.integers(-9999, 9999, 16).astype(np.int32), Quantization.per_axis(steps, 0)),
        "y": Tensor("y", "int8", (1, 16, 10, 10), None, Quantization.per_tensor(0.31, -17)),
    }
    attributes = {"group": 16, "data_format": "channels_first", "dilations": (1, 1), "strides": (1, 1), "pads": (0, 0, 0, 0)}
    graph = Graph("depthwise", tensors, (Op("Conv", ("x", "w", "b"), ("y",), attributes),), ("x",), ("y",))
    save(graph, tmp_path / "model.qgraph")
    convert(tmp_path / "model.qgraph", tmp_path / "model.mnn")
    x = rng.integers(-128, 128, (1, 16, 12, 12)).astype(np.int8)
    exact = evaluate_op(graph, graph.ops[0], [x, tensors["w"].data, tensors["b"].data])[0].real
    model = MNNModel(tmp_path / "model.mnn")
    found = np.rint(model.run({"x": (x.astype(np.float32) - 3) * np.float32(0.05)})["y"] / np.float32(0.31))
    wanted = np.asarray(exact, np.float64) / np.float64(np.float32(0.31))
    inside = np.abs(found - 17) < 127  # 17 below zero is the zero point
    off = np.abs(found - wanted) - 0.5
    unit = (steps.astype(np.float64) / 0.31).reshape(1, -1, 1, 1)
    assert (off[inside] <= (0.51 * np.broadcast_to(unit, off.shape))[inside]).all() and (found == np.rint(wanted))[inside].mean() > 0.99


def scaled(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The Pipeline in fixtures/, with something of its second layer otherwise."""
    document = json.loads((FIXTURES / "mnn" / "pipeline.json").read_text())
    change(document["algo"][0]["quantParams"]["layer"][1])
    path.write_text(json.dumps(document))
    return path


def other_result(layer: dict[str, Any]) -> None:
    layer["output"][0]["scales"] = [1.1 * scale for scale in layer["output"][0]["scales"]]


def other_zero_point(layer: dict[str, Any]) -> None:
    layer["output"][0]["zeroPoint"] += 3


def other_weights(layer: dict[str, Any]) -> None:
    layer["weight"][0]["scales"][0] *= 1.1


@pytest.mark.onnxruntime
def test_a_float_model_beside_the_scales_it_was_made_with(tmp_path: Path) -> None:
    """Right scales: equal. Of another result, zero point or channel of weights: not equal, and where is said. None: it cannot be judged."""
    source, result = FIXTURES / "mnn" / "float.onnx", tmp_path / "model.mnn"
    convert(source, result, encodings=str(FIXTURES / "mnn" / "pipeline.json"), no_mnn=False)
    assert check(source, result, samples=2, encodings=FIXTURES / "mnn" / "pipeline.json").verdict == "passed"
    for number, change in enumerate((other_result, other_zero_point, other_weights)):
        report = check(source, result, samples=2, encodings=scaled(tmp_path / f"{number}.json", change))
        assert report.verdict == "not equal", change.__name__
        assert any("scale" in problem or "zero point" in problem for problem in report.problems), report.problems
    assert check(source, result, samples=2).verdict != "passed"
