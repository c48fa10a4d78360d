"""From a float file to scales and to quantized models: the command, the same integers in every format, and MNN's configurations."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from refusals import refused
from typer.testing import CliRunner

import qconvert
from qconvert.calibration import files
from qconvert.calibration.driver import run_calibration
from qconvert.calibration.files import calibrate_file
from qconvert.calibration.mnn_config import read_mnn_config
from qconvert.errors import FileAccessError, InvalidModelError, OptionError, QConvertError
from qconvert.operators import KINDS
from qconvert.runtimes.onnxruntime import OnnxRuntime

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "fixtures" / "digits"
FLOAT, DRAWN = DIGITS / "float.onnx", DIGITS / "drawn.onnx"
sys.path.append(str(ROOT / "fixtures"))
from make_float import draw  # noqa: E402


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.load(DIGITS / "test.npz")["images"]


@pytest.fixture(scope="module")
def drawn(images: np.ndarray) -> np.ndarray:
    return draw(images, 0)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the command in this process."""
    import typer

    from qconvert.cli.calibrating import add_calibration_commands

    app = typer.Typer()
    app.callback()(lambda: None)
    add_calibration_commands(app)
    return lambda *words: CliRunner().invoke(app, ["calibrate", *map(str, words)])


def integers(path: Path) -> list[tuple[list[int], list[int]]]:
    """The weights of each layer without their zero points, and its bias."""
    graph, found = qconvert.load(path), []
    for op in graph.ops:
        if KINDS[op.kind].has_weights and graph[op.inputs[1]].is_quantized:
            weights, bias = graph[op.inputs[1]], graph.constant(op.inputs[2])
            stored = weights.data.astype(np.int64) - int(weights.quantization.zero_point.reshape(-1)[0])
            found.append((stored.reshape(-1).tolist(), bias.reshape(-1).tolist()))
    return found


def quantizations(path: Path) -> set[tuple[float, int]]:
    """Scales of activations, with the distance of their zero points from the smallest stored value."""
    graph = qconvert.load(path)
    found = [tensor for tensor in graph.tensors.values() if not tensor.is_constant and tensor.is_quantized]
    return {(t.quantization.step, t.quantization.point + (128 if t.dtype == "int8" else 0)) for t in found}


@pytest.mark.onnxruntime
@pytest.mark.torch
@pytest.mark.parametrize(("model", "method"), [(FLOAT, "entropy"), (DRAWN, "min-max")])
def test_every_format_has_the_same_integers(model: Path, method: str, images: np.ndarray, drawn: np.ndarray, tmp_path: Path) -> None:
    data = (drawn if model is DRAWN else images)[:8]
    names = ["q.onnx", "q.tflite", "q.qgraph", *(["q.pt2"] if find_spec("torch") else [])]
    for name in names:
        calibrate_file(model, data, tmp_path / name, method=method)
    expected = integers(tmp_path / "q.qgraph")
    assert len(expected) == (10 if model is DRAWN else 8) and all(len(bias) for _, bias in expected)
    for name in names:
        assert integers(tmp_path / name) == expected, name
        assert quantizations(tmp_path / name) == quantizations(tmp_path / "q.qgraph"), name


@pytest.mark.onnxruntime
@pytest.mark.mnn
def test_mnn_has_the_same_integers_too(images: np.ndarray, tmp_path: Path) -> None:
    if find_spec("MNN") is None:  # importing it would load it into this process
        pytest.skip("MNN is not installed")
    _, report = calibrate_file(FLOAT, images[:40], tmp_path / "q.mnn")
    assert any("8 of 8 layers are int8" in str(change) and "equal scales and zero points" in str(change) for change in report.changes)


@pytest.mark.onnxruntime
def test_scales_applied_later_give_the_same_model(images: np.ndarray, tmp_path: Path) -> None:
    calibrate_file(FLOAT, images[:40], tmp_path / "s.json", method="percentile")
    calibrate_file(FLOAT, images[:40], tmp_path / "q.onnx", method="percentile")
    qconvert.convert(FLOAT, tmp_path / "a.onnx", encodings=str(tmp_path / "s.json"))
    assert qconvert.diff(qconvert.load(tmp_path / "q.onnx"), qconvert.load(tmp_path / "a.onnx")) == []


def accuracy(path: Path, data: np.ndarray, labels: np.ndarray) -> float:
    (logits,) = OnnxRuntime(path).run({"x": data}).values()
    return float((logits.argmax(1) == labels).mean())


BOTH = ("equalization", "bias_correction")


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("model", "options"), [
    (DRAWN, {}), (FLOAT, {BOTH[0]: True}), pytest.param(DRAWN, {BOTH[1]: True}, marks=pytest.mark.slow), (FLOAT, dict.fromkeys(BOTH, True)),
])  # fmt: skip
def test_accuracy_behind_calibration(model: Path, options: dict[str, Any], images: np.ndarray, drawn: np.ndarray, tmp_path: Path) -> None:
    """The network that is written next to has equalized weights, which compute the same, and corrected biases, which do not quite."""
    data, labels = drawn if model is DRAWN else images, np.load(DIGITS / "test.npz")["labels"]
    calibrate_file(model, data[:100], tmp_path / "q.onnx", real=tmp_path / "f.onnx", per_channel=False, **options)
    expected = accuracy(model, data[100:], labels[100:])
    assert accuracy(tmp_path / "q.onnx", data[100:], labels[100:]) > expected - 0.02
    assert accuracy(tmp_path / "f.onnx", data[100:], labels[100:]) == pytest.approx(expected, abs=0.012 if BOTH[1] in options else 0)


@pytest.mark.slow
def test_bias_correction_brings_the_means_of_channels_back(drawn: np.ndarray, tmp_path: Path) -> None:
    """With 4-bit weights rounding moves the means a lot."""
    (expected,) = OnnxRuntime(DRAWN).run({"x": drawn[100:300]}).values()

    def moved(**options: Any) -> float:
        found = run_calibration(DRAWN, drawn[:100], weights="int4", **options)
        qconvert.save(qconvert.apply(found.graph, found.encodings), tmp_path / "q.onnx", force=True)
        (logits,) = OnnxRuntime(tmp_path / "q.onnx").run({"x": drawn[100:300]}).values()
        return float(np.abs((logits - expected).mean(0)).mean())

    assert moved(bias_correction=True) < 0.7 * moved()


@pytest.mark.slow
@pytest.mark.parametrize(("images_of", "verdict"), [(1.0, "passed"), (1e-3, "not equal")], ids=["good", "ruined"])
def test_a_check_compares_float_with_quantized_whatever_the_scales_say(
    images_of: float, verdict: str, images: np.ndarray, tmp_path: Path
) -> None:
    """Scales of images a thousandth as bright clip everything, and the result has exactly these scales."""
    result, scales = tmp_path / "a.onnx", tmp_path / "s.json"
    calibrate_file(FLOAT, images[:32] * np.float32(images_of), scales)
    qconvert.convert(FLOAT, result, encodings=str(scales))
    np.savez(tmp_path / "images.npz", **{qconvert.load(FLOAT).inputs[0]: images[:8]})
    given: dict[str, Any] = {"encodings": scales, "data": [tmp_path / "images.npz"]}
    report = qconvert.check(FLOAT, result, **given)
    assert all(item.equal == 1 for item in report.outputs) and report.verdict == verdict, report.problems
    (found,) = report.float_outputs
    assert found.sqnr_db is not None and (found.sqnr_db > 20) == (verdict == "passed") and (found.sqnr_db < 10) == (verdict != "passed")
    assert f"SQNR {found.sqnr_db:.1f} dB" in report.float_verdict
    assert qconvert.check(FLOAT, result, **given, min_sqnr=found.sqnr_db - 1).passed
    assert not qconvert.check(FLOAT, result, **given, min_sqnr=found.sqnr_db + 1).passed


@pytest.mark.onnxruntime
def test_tensors_that_cost_most_stay_float(images: np.ndarray, tmp_path: Path) -> None:
    found = run_calibration(FLOAT, images[:20], keep_float=2)
    costs = [one.sqnr_db for one in found.sensitivity]
    assert costs == sorted(costs) and len(costs) == len(found.tensors) + 8
    assert found.kept_float == (*found.sensitivity[0].names, *found.sensitivity[1].names)
    assert not {place.name for place in found.encodings.entries} & {*found.kept_float}
    alone = run_calibration(FLOAT, images[:20], skip=("conv2.weight", "/block1/Add"))
    assert {"conv2.weight", "/block1/relu2/Relu_output_0"} - {place.name for place in alone.encodings.entries}
    with refused(OptionError, "unknown-tensor", where="'nothing'"):
        run_calibration(FLOAT, images[:20], skip=("nothing",))


@pytest.mark.onnxruntime
def test_the_command_writes_scales_and_says_what_it_found(run: Callable[..., Any], images: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", images[:30])
    done = run(FLOAT, "--data", tmp_path / "a.npy", "-o", tmp_path / "s.json", "--samples", 2, "--method", "mse", "--sensitivity")
    assert done.exit_code == 0, done.output
    assert run(FLOAT, "--data", tmp_path / "a.npy", "-o", tmp_path / "one.json", "--samples", 1).output.startswith("min-max of 1 sample,")
    assert "mse of 2 samples" in done.output and "scales of 14 activations and 8 constants" in done.output and "Sensitivity" in done.output
    done = run(
        FLOAT,
        "--data",
        tmp_path / "a.npy",
        "-o",
        tmp_path / "q.onnx",
        "--json",
        "--method",
        "percentile",
        "-O",
        "percentile=99.5",
    )
    found = json.loads(done.output)
    assert found["samples"] == 30 and len(found["tensors"]) == 11 and found["written"]["target"] == "ort-x86"
    assert found["written"]["files"] == {}  # the scales' own file was a temporary one
    assert len(qconvert.load(tmp_path / "q.onnx").ops) == 15
    done = run(FLOAT, "--data", tmp_path / "a.npy", "-o", tmp_path / "r.onnx", "--scales", tmp_path / "r.json")
    gone = run(FLOAT, "--data", tmp_path / "a.npy", "-o", tmp_path / "s.onnx", "--html", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count('"ends":') >= len(found["tensors"])  # min-max itself counts no histogram
    assert "next: the same command with --scales scales.json --force" in gone.output and "next: qconvert check" not in gone.output
    assert f"next: qconvert check {FLOAT} {tmp_path / 'r.onnx'} --encodings {tmp_path / 'r.json'}" in done.output.replace("\n", " ")
    assert qconvert.check(FLOAT, tmp_path / "r.onnx", encodings=str(tmp_path / "r.json"), samples=2).passed


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize(("words", "error", "rule"), [
    ((), OptionError, "no-data"),
    (("--data", "empty"), OptionError, "no-input-files"),
    (("--data", "a.npy", "--method", "none"), OptionError, "unknown-method"),
    (("--data", "a.npy", "--equalization"), OptionError, "scales-only"),
    (("--data", "a.npy", "-O", "equalization=false"), OptionError, "unknown-option"),
    (("--data", "photos"), OptionError, "image-size"),
    (("--data", "photos", "--resize", "8.5"), OptionError, "not-a-number"),
    (("--mnn-config", "none.json"), FileAccessError, "not-readable"),
])  # fmt: skip
def test_what_the_command_refuses(
    words: tuple[str, ...], error: type[QConvertError], rule: str, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    Image.new("L", (12, 9)).save(tmp_path / "photos" / "p.png")
    np.save(tmp_path / "a.npy", np.zeros((2, 1, 8, 8), np.float32))
    done = run(FLOAT, "-o", "s.json", *words)
    assert isinstance(done.exception, error) and done.exception.rule == rule
    assert not (tmp_path / "s.json").exists()


@pytest.mark.parametrize("words", [
    ("-o", "s.json", "--method", "percentile", "-O", "percentil=99"),
    ("-o", "q.onnx", "-O", "opst=13"),
    ("-o", "q.onnx", "-O", "opset=thirteen"),
    ("-o", "q.onnx", "--target", "tflite"),
])  # fmt: skip
def test_options_are_refused_before_the_network_runs(
    words: tuple[str, ...], run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "run_calibration", lambda *_, **__: pytest.fail("the network ran"))
    np.save(tmp_path / "a.npy", np.zeros((2, 1, 8, 8), np.float32))
    done = run(FLOAT, "--data", "a.npy", *words)
    assert isinstance(done.exception, OptionError)
    assert "percentil" not in words[-1] or "Known options: batch, input_shape, percentile," in str(done.exception)


@pytest.mark.parametrize("words", [
    ("-o", "q.onnx", "--float", "q.onnx"),
    ("-o", "q.onnx", "--float", "folder/../q.onnx", "--force"),
    ("-o", "s.json", "--scales", "s.json"),
])  # fmt: skip
def test_no_result_replaces_another(
    words: tuple[str, ...], run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "a.npy", np.zeros((2, 1, 8, 8), np.float32))
    done = run(FLOAT, "--data", "a.npy", *words)
    assert isinstance(done.exception, OptionError) and "two results would be written to this file" in str(done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "folder"]


@pytest.mark.onnxruntime
def test_photographs_are_prepared(run: Callable[..., Any], tmp_path: Path) -> None:
    Image.new("L", (12, 9), 255).save(tmp_path / "p.png")
    words = ("--resize", "8", "--crop", "8,8", "--mean", "0.5", "--std", "0.25", "--json")
    done = run(FLOAT, "--data", tmp_path / "p.png", "-o", tmp_path / "s.json", *words)
    assert json.loads(done.output)["tensors"][0]["highest"] == 2.0


@pytest.mark.onnxruntime
@pytest.mark.parametrize("size", ["9999999,9999999", "9999999", "99999999999999999999999,1", "1,100000000"])
def test_a_size_beyond_memory_is_refused_before_it_is_made(size: str, run: Callable[..., Any], tmp_path: Path) -> None:
    Image.new("L", (12, 9), 255).save(tmp_path / "p.png")
    done = run(FLOAT, "--data", tmp_path / "p.png", "-o", tmp_path / "s.json", "--resize", size)
    assert isinstance(done.exception, OptionError) and "9 x 12 pixels and would be" in str(done.exception)


def test_a_suffix_of_nothing_names_those_of_models_and_of_scales(run: Callable[..., Any], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 1, 8, 8), np.float32))
    done = run(FLOAT, "--data", tmp_path / "a.npy", "-o", tmp_path / "o.xyz")
    assert isinstance(done.exception, OptionError)
    assert all(word in str(done.exception) for word in ("'.xyz' belongs to no format", ".onnx", ".tflite", ".json"))
    assert str(done.exception).count("uffixes") == 1


@pytest.mark.onnxruntime
def test_a_network_that_gives_nan_is_an_error_that_names_tensor_and_sample(tmp_path: Path) -> None:
    from qconvert import Graph, Op, Tensor

    names = {name: Tensor(name, "float32", (1, 4)) for name in ("x", "a", "b", "c")}
    graph = Graph("made", names, (Op("Log", ("x",), ("a",)), Op("Add", ("a", "x"), ("b",)), Op("Mul", ("b", "x"), ("c",))), ("x",), ("c",))
    data = np.ones((6, 4), np.float32)
    data[4, 2] = -1
    with refused(InvalidModelError, "not-finite", where="tensor 'a'") as caught:
        run_calibration(graph, data)
    assert caught.value.where == "tensor 'a'" and caught.value.file == "sample 4"


CONFIG = {
    "path": "photos", "format": "GRAY", "mean": [127.5], "normal": [0.00784314], "width": 8, "height": 8, "used_image_num": 3,
    "feature_quantize_method": "KL", "weight_quantize_method": "MAX_ABS",
}  # fmt: skip


def write_config(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({key: value for key, value in {**CONFIG, **changes}.items() if value is not None}))
    return folder / "config.json"


@pytest.mark.onnxruntime
def test_a_configuration_of_mnn_says_data_preparation_and_methods(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(5):
        Image.new("L", (10, 10), 51 * number).save(tmp_path / "photos" / f"{number}.png")
    found = read_mnn_config(write_config(tmp_path, center_crop_h=0.5, unknown=1))
    assert found.options["preparation"].share == (0.5, 1.0) and found.options["samples"] == 3
    assert (found.options["method"], found.options["weights_method"], found.options["clamp"]) == ("mnn-kl", "max-abs", 127)
    assert found.notes == ("MNN's quantizer knows no unknown",)
    done = run(FLOAT, "--mnn-config", write_config(tmp_path), "-o", tmp_path / "s.json", "--json")
    assert done.exit_code == 0, done.exception
    report = json.loads(done.output)
    assert (
        report["samples"] == 3
        and report["origin"] == "mnn-kl of 3 samples"
        and report["tensors"][0]["lowest"] == pytest.approx(-1, abs=1e-5)
    )
    assert all(item["zero_point"] == 0 for item in report["tensors"])


@pytest.mark.onnxruntime
def test_a_sequence_of_mnn(images: np.ndarray, tmp_path: Path) -> None:
    for number in range(3):
        folder = tmp_path / "sequence" / str(number)
        folder.mkdir(parents=True)
        (folder / "input.json").write_text(json.dumps({"inputs": [{"name": "x", "shape": [1, 1, 8, 8]}], "outputs": ["logits"]}))
        np.savetxt(folder / "x.txt", images[number].reshape(-1), "%.9g")
    found = read_mnn_config(
        write_config(tmp_path, path=str(tmp_path / "sequence"), input_type="sequence", used_image_num=None, used_sample_num=2)
    )
    expected, report = run_calibration(FLOAT, images[:2], method="mnn-kl"), run_calibration(FLOAT, found.data, **found.options)
    assert report.samples == 2 and [item.qparams for item in report.tensors] == [item.qparams for item in expected.tensors]


@pytest.mark.parametrize(("changes", "error", "rule", "where"), [
    ({"path": None}, InvalidModelError, "no-data", "path"),
    ({"mean": ["a"]}, InvalidModelError, "wrong-type", "mean[0]"),
    ({"width": "8"}, InvalidModelError, "wrong-type", "width"),
    ({"feature_quantize_method": "MAX"}, OptionError, "unknown-word", ""),
    ({"quant_bits": 4}, OptionError, "clamp-not-supported", ""),
    ({"weight_clamp_value": 64}, OptionError, "clamp-not-supported", ""),
    ({"normal": [0]}, OptionError, "factor-not-positive", "normal"),
    ({"format": "CMYK"}, OptionError, "unknown-word", ""),
])  # fmt: skip
def test_configurations_that_are_refused(
    changes: dict[str, Any], error: type[QConvertError], rule: str, where: str, tmp_path: Path
) -> None:
    ((name, value),) = changes.items()
    named = (
        (value.lower(),) if name == "format" else (name, value) if rule == "unknown-word" else (value,) if isinstance(value, int) else ()
    )
    with refused(error, rule, where=where, holds=named) as caught:
        read_mnn_config(write_config(tmp_path, **changes))
    assert caught.value.file == str(tmp_path / "config.json")


@pytest.mark.parametrize(("text", "rule"), [("[]", "not-a-configuration"), ("{", "not-json"), ("3", "not-a-configuration")])
def test_files_that_are_no_configuration(text: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(text)
    with refused(InvalidModelError, rule):
        read_mnn_config(tmp_path / "c.json")


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("name", [
    "onnx/torch_pt2e_xnnpack_attention.onnx", "onnx/torch_pt2e_xnnpack_vision.onnx", "onnx/brevitas_int8.onnx",
    "tiny_kws_dscnn_int8.tflite",
])  # fmt: skip
def test_networks_of_many_kinds_of_operators(name: str, tmp_path: Path) -> None:
    """The float forms of quantized networks, calibrated again: what comes out is near them, in ONNX and in LiteRT."""
    from qconvert.data import random_inputs
    from qconvert.runtimes.litert import LiteRT

    real, _ = qconvert.extract_scales(ROOT / "fixtures" / name)
    feeds = random_inputs(real, 12, 0)
    qconvert.save(real, tmp_path / "f.qgraph")
    for result in ("f.onnx", "f.tflite"):
        qconvert.convert(tmp_path / "f.qgraph", tmp_path / result)
        calibrate_file(tmp_path / "f.qgraph", feeds, tmp_path / f"q{Path(result).suffix}", method="mse", writing={"min_tensor_sqnr": 0})
    for load, suffix in ((OnnxRuntime, ".onnx"), (lambda path: LiteRT(path.read_bytes()), ".tflite")):
        models = [load(tmp_path / f"{stem}{suffix}") for stem in "fq"]
        real_values, rounded = (np.concatenate([_output(model, feed).reshape(-1) for feed in feeds]) for model in models)
        noise = float(np.square(real_values - rounded).sum() / np.square(real_values).sum())
        assert noise < 10**-1.5, (suffix, -10 * np.log10(noise))


def _output(model: Any, feed: dict[str, Any]) -> np.ndarray:
    """The first output, of values in the order of the inputs."""
    return next(iter(model.run(dict(zip(model.inputs, feed.values(), strict=True))).values())).astype(np.float64)


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("theirs", "method"), [("MinMax", "min-max"), ("Entropy", "entropy"), ("Percentile", "percentile")])
def test_accuracy_is_not_below_that_of_onnxruntimes_quantizer(
    theirs: str, method: str, drawn: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """quantize_static with the same images and int8 weights per channel. Two images of 500 may fall otherwise on another CPU."""
    import logging

    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        waiting = iter([{"x": image[None]} for image in drawn[:100]])

        def get_next(self) -> Any:
            return next(self.waiting, None)

    logging.disable(logging.WARNING)
    try:
        chosen = getattr(CalibrationMethod, theirs)
        result = tmp_path / "theirs.onnx"
        quantize_static(DRAWN, result, Reader(), per_channel=True, weight_type=QuantType.QInt8, calibrate_method=chosen)
    finally:
        logging.disable(logging.NOTSET)
    calibrate_file(DRAWN, drawn[:100], tmp_path / "ours.onnx", method=method)
    labels = np.load(DIGITS / "test.npz")["labels"]
    found = {name: accuracy(tmp_path / f"{name}.onnx", drawn[100:], labels[100:]) for name in ("ours", "theirs")}
    assert found["ours"] >= found["theirs"] - 0.004


@pytest.mark.parametrize("data", ["data", "data/a.npy"])
def test_no_result_replaces_data(data: str, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "a.npy", np.zeros((2, 1, 8, 8), np.float32))
    done = run(FLOAT, "--data", data, "-o", "data/a.npy", "--to", "onnx", "--force")
    assert isinstance(done.exception, OptionError) and np.load(tmp_path / "data" / "a.npy").shape == (2, 1, 8, 8)


@pytest.mark.end_to_end
@pytest.mark.onnxruntime
def test_a_check_without_the_scales_says_what_keeps_them(images: np.ndarray, tmp_path: Path) -> None:
    result, kept, taken = (tmp_path / name for name in ("q.onnx", "kept.json", "taken.json"))
    calibrate_file(FLOAT, images[:32], result, scales=kept)
    assert any("`qconvert calibrate --scales FILE` keeps them" in reason for reason in qconvert.check(FLOAT, result).unjudged)
    assert not qconvert.check(FLOAT, result, encodings=str(kept)).unjudged
    command = [sys.executable, "-m", "qconvert", "extract-scales", str(result), str(taken), "--float", str(tmp_path / "float.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{result} -> {taken} and {tmp_path / 'float.onnx'}: the model has scales of 14 activations and 16 constants\n"
