"""Calibration caches of TensorRT: what is read and written, what TensorRT computes in one, and what is damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from refusals import refused
from test_cli import run

import qconvert
from qconvert import (
    Encoding,
    Encodings,
    Place,
    QConvertError,
    QParams,
    Quantization,
    apply,
    extract_scales,
    load,
    load_encodings,
    save_encodings,
)
from qconvert.errors import InvalidModelError, OptionError, UnsupportedError
from qconvert.plugins import encodings_format_of

pytestmark = pytest.mark.onnxruntime

FIXTURES = Path(__file__).parents[3] / "fixtures"
FIRST = "TRT-8601-EntropyCalibration2"


def digits(scale: float) -> str:
    return struct.pack(">f", scale).hex()


def cache(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def network(path: Path, *, shared_scale: bool = False) -> Path:
    """x -> Conv -> BatchNormalization -> Relu -> Conv -> y, float."""
    rng = np.random.default_rng(7)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in (("w1", (4, 3, 3, 3)), ("w2", (2, 4, 1, 1)))}
    statistics = {name: np.float32(np.abs(rng.normal(size=4)) + 0.5) for name in ("gamma", "beta", "mean", "variance")}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c"], name="first"),
        helper.make_node("BatchNormalization", ["c", "gamma", "beta", "mean", "variance"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Conv", ["r", "w2"], ["y"], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 6, 6])],
        [numpy_helper.from_array(data, name) for name, data in (weights | statistics).items()],
    )
    onnx.save(model_of(graph), path)
    return path


WHOLE = {"x": 0.04, "c": 0.002, "n": 0.003, "r": 0.2, "y": 0.2}


def test_a_cache_as_tensorrt_writes_it(tmp_path: Path) -> None:
    lines = [FIRST, "data: 3c008912", "input_1:0: 3c010a14", "(Unnamed Layer* 4) [Fully Connected]_output: 3d65992f", "tiny: 45"]
    path = cache(tmp_path / "calibration.cache", "\n".join(lines) + "\n")
    assert encodings_format_of(path, is_read=True).name == "tensorrt-cache"
    found = load_encodings(path)
    assert found.weights == "max-abs" and "EntropyCalibration2" in found.origin
    quantization = found["input_1:0"].qparams
    assert quantization == QParams("int8", Quantization.per_tensor(np.uint32(0x3C010A14).view(np.float32)))
    assert quantization.quantization.step == pytest.approx(1 / 127, rel=1e-3)
    assert found["data"].required and not found["(Unnamed Layer* 4) [Fully Connected]_output"].required
    assert found["tiny"].qparams.quantization.scale[0] == np.uint32(0x45).view(np.float32)  # hex() leaves zeros in front out


@pytest.mark.cross_section
@pytest.mark.parametrize("ending", ["\r\n", "\r", "\n\n", " \n"])
def test_line_ends(ending: str, tmp_path: Path) -> None:
    path = cache(tmp_path / "a.cache", ending.join([FIRST, "x: 3c008912", "y\u2028z: 3C010A14", ""]))
    assert [place.name for place in load_encodings(path).entries] == ["x", "y\u2028z"]


@pytest.mark.parametrize("suffix", [".cache", ".calib", ".table", ".bin", ".txt"])
def test_any_suffix(suffix: str, tmp_path: Path) -> None:
    path = cache(tmp_path / f"a{suffix}", f"\ufeff{FIRST}\nx: 3c008912")
    assert load_encodings(path).entries.keys() == {Place("x")}


BAD = {
    "empty": (b"", ("empty-file",)),
    "binary": (bytes(range(256)) * 4, ("not-this-format",)),
    "only text": (b"x: 3c008912\n", ("not-this-format",)),
    "letters": (f"{FIRST}\nx: 3c00z912", ("malformed-scale", "line 2, 'x'")),
    "nine digits": (f"{FIRST}\nx: 3c0089120", ("malformed-scale",)),
    "prefix": (f"{FIRST}\nx: 0x3c00", ("malformed-scale",)),
    "no scale": (f"{FIRST}\nx:", ("malformed-scale",)),
    "no colon": (f"{FIRST}\nx 3c008912", ("malformed-line",)),
    "no name": (f"{FIRST}\n: 3c008912", ("malformed-line",)),
    "zero": (f"{FIRST}\n\nx: 0", ("scale-not-positive", "line 3, 'x'", "0.0")),
    "negative": (f"{FIRST}\nx: bc008912", ("scale-not-positive",)),
    "NaN": (f"{FIRST}\nx: 7fc00000", ("scale-not-positive", "nan")),
    "infinite": (f"{FIRST}\nx: 7f800000", ("scale-not-positive", "inf")),
    "twice": (f"{FIRST}\nx: 3c008912\nx: 3c008913", ("contradicting-scales", "line 3, 'x'")),
    "no text": (FIRST.encode() + b"\nx\xff: 3c008912", ("not-utf8",)),
    "half": (f"{FIRST}\nx: 3c008912\ny", ("malformed-line", "line 3")),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_damaged_is_one_error(case: str, tmp_path: Path) -> None:
    content, broken = BAD[case]
    with refused(InvalidModelError, broken[0], holds=broken[1:]) as caught:
        load_encodings(cache(tmp_path / "bad.cache", content), "tensorrt-cache")
    assert "bad.cache" in str(caught.value)


def test_an_enormous_cache_is_refused_at_once(tmp_path: Path) -> None:
    path = cache(tmp_path / "a.cache", FIRST + "\n")
    with path.open("r+b") as stream:
        stream.truncate(5_000_000_000)
    with refused(InvalidModelError, "file-too-large", holds=(5000000000,)):
        load_encodings(path)


def test_what_tensorrt_could_not_scale_of_its_own(tmp_path: Path) -> None:
    found = load_encodings(cache(tmp_path / "a.cache", f"{FIRST}\nx: 3c008912\nx: 3c008912\n(Unnamed Layer* 1) [Constant]_output: 0"))
    assert found.entries.keys() == {Place("x")} and "1 tensor of TensorRT's own" in found.notes[0]


@pytest.mark.end_to_end
def test_applied_as_tensorrt_computes(tmp_path: Path) -> None:
    """Conv, normalization and Relu are one, rounded after the Relu; weights are max|w| / 127 of each channel after folding."""
    model = network(tmp_path / "float.onnx")
    text = "\n".join([FIRST, *(f"{name}: {digits(scale)}" for name, scale in WHOLE.items()), "ONNXTRT_ShapeShuffle_1_output: 3c008912"])
    scales = cache(tmp_path / "scales.cache", text)
    result = run("apply", model, scales, "-o", tmp_path / "q.onnx", "--target", "generic")
    assert result.returncode == 0, result.stderr
    assert "2 tensors before a normalization or a Relu are not quantized" in result.stdout
    graph = load(tmp_path / "q.onnx")
    assert [op.kind for op in graph.ops if op.kind not in ("Quantize", "Dequantize", "Relu")] == ["Conv", "Conv"]
    first, second = (op for op in graph.ops if op.kind == "Conv")
    weights = graph[first.inputs[1]]
    assert weights.quantization.axis == 0 and (np.abs(weights.data.astype(int)).max(axis=(1, 2, 3)) == 127).all()
    assert graph[second.inputs[0]].quantization.scale[0] == np.float32(WHOLE["r"])
    rng = np.random.default_rng(1)
    feed = {"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)}
    real, rounded = (onnxruntime.InferenceSession(path).run(None, feed)[0] for path in (model, tmp_path / "q.onnx"))
    assert np.abs(np.clip(real, -128 * 0.2, 127 * 0.2) - rounded).max() < 0.4


@pytest.mark.end_to_end
def test_names_of_nothing(tmp_path: Path) -> None:
    scales = cache(tmp_path / "scales.cache", f"{FIRST}\nx: 3c008912\nrr: 3c008912")
    result = run("apply", network(tmp_path / "float.onnx"), scales, "-o", tmp_path / "q.onnx")
    assert result.returncode == 2 and "'rr' (nearest: 'r')" in result.stderr and not (tmp_path / "q.onnx").exists()


@pytest.mark.end_to_end
def test_calibrated_written_and_applied(tmp_path: Path) -> None:
    """calibrate writes a cache, whose model is as one calibrated at once."""
    model, scales = network(tmp_path / "float.onnx"), tmp_path / "scales.cache"
    data = tmp_path / "x.npy"
    np.save(data, np.random.default_rng(3).normal(size=(8, 1, 3, 8, 8)).astype(np.float32))
    refused = run("calibrate", model, "-o", scales, "--data", data, "--affine")
    assert refused.returncode == 2 and "zero point" in refused.stderr and not scales.exists()
    made = run("calibrate", model, "-o", scales, "--data", data)
    assert made.returncode == 0, made.stderr
    assert "for TensorRT 10.3.0" in made.stdout
    text = scales.read_text()
    assert text.startswith("TRT-100300-EntropyCalibration2\nx: ") and all(
        len(line.rpartition(": ")[2]) == 8 for line in text.splitlines()[1:]
    )
    assert run("apply", model, scales, "-o", tmp_path / "a.onnx").returncode == 0
    assert run("calibrate", model, "-o", tmp_path / "b.onnx", "--data", data, "--symmetric").returncode == 0
    assert not qconvert.diff(load(tmp_path / "a.onnx"), load(tmp_path / "b.onnx"))


def symmetric(scale: float = 0.5) -> Encoding:
    return Encoding(QParams("int8", Quantization.per_tensor(scale)))


def test_scales_come_back_bit_for_bit(tmp_path: Path) -> None:
    scales = np.random.default_rng(0).uniform(size=40).astype(np.float32) ** 20
    scales = np.append(scales, np.float32([1e-45, 1e-39, 3e38]))
    found = Encodings({f"t:{number}": symmetric(scale) for number, scale in enumerate(scales) if scale > 0})
    save_encodings(found, tmp_path / "a.cache", trt_version="8.6.1", trt_calibrator="MinMaxCalibration")
    again = load_encodings(tmp_path / "a.cache")
    assert again.metadata["tensorrt.version"] == "8601" and again.metadata["tensorrt.algorithm"] == "MinMaxCalibration"
    assert {place: entry.qparams for place, entry in again.entries.items()} == {
        place: entry.qparams for place, entry in found.entries.items()
    }
    assert b"\r" not in (tmp_path / "a.cache").read_bytes()


def test_unsigned_around_128_is_the_same_quantization(tmp_path: Path) -> None:
    save_encodings(Encodings({"x": Encoding(QParams("uint8", Quantization.per_tensor(0.5, 128)))}), tmp_path / "a.cache")
    assert load_encodings(tmp_path / "a.cache")["x"].qparams == symmetric().qparams


PER_AXIS = Quantization.per_axis(np.float32([1, 2]), 0)
REFUSED = {
    "affine": ({"x": Encoding(QParams("int8", Quantization.per_tensor(0.5, 3)))}, ("zero-point-not-storable", "x", 3)),
    "unsigned": ({"x": Encoding(QParams("uint8", Quantization.per_tensor(0.5, 0)))}, ("zero-point-not-storable", 0, "uint8")),
    "wide": ({"x": Encoding(QParams("int16", Quantization.per_tensor(0.5)))}, ("dtype-not-storable", "x", "int16")),
    "per axis": ({"x": Encoding(QParams("int8", PER_AXIS))}, ("not-per-tensor", "x", 2)),
    "narrow": (
        {"x": Encoding(QParams("int8", Quantization(np.float32([1]), np.array([0]), None, 0, 0, 127)))},
        ("limits-not-storable", 0, 127),
    ),
    "operator": ({Place("x", "input", 1): symmetric()}, ("not-a-tensor",)),
    "colon": ({"a: b": symmetric()}, ("name-not-storable",)),
    "line": ({"a\nb": symmetric()}, ("name-not-storable",)),
    "blank": ({" a": symmetric()}, ("name-not-storable",)),
    "weights": ({"w": Encoding(QParams("int8", Quantization.per_tensor(1)), integers=np.int8([[1]]))}, ("graph-missing",)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_cache_has_no_words_for(case: str, tmp_path: Path) -> None:
    entries, broken = REFUSED[case]
    with refused(QConvertError, broken[0], holds=broken[1:]) as caught:
        save_encodings(Encodings(entries), tmp_path / "a.cache")
    assert isinstance(caught.value, UnsupportedError | OptionError) and caught.value.remedy and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("version", "rule"), [("11.0", "version-not-covered"), ("eight", "unknown-version"), ("8", "unknown-version")])
def test_versions(version: str, rule: str, tmp_path: Path) -> None:
    with refused(OptionError, rule):
        save_encodings(Encodings({"x": symmetric()}), tmp_path / "a.cache", trt_version=version)


@pytest.mark.parametrize("change", ["", "ulp", "two ulps", "scale", "per tensor", "axis", "int4", "zeros"])
def test_trained_weights_are_refused_unless_tensorrt_derives_them(change: str, tmp_path: Path) -> None:
    real = load(network(tmp_path / "float.onnx"))
    weights = real["w2"].data
    scale = np.abs(weights).max(axis=(1, 2, 3)) / np.float32(127)
    if change == "zeros":  # a channel of zeros may have any scale
        real = real.evolve(
            tensors=[qconvert.Tensor("w2", "float32", weights.shape, np.where(np.arange(2)[:, None, None, None], weights, 0))]
        )
        scale = np.float32([5, scale[1]])
    for _ in range({"ulp": 1, "two ulps": 2}.get(change, 0)):
        scale = np.nextafter(scale, np.float32(np.inf))
    q = Quantization.per_axis(scale * np.float32(1.5 if change == "scale" else 1), 1 if change == "axis" else 0)
    q = Quantization.per_tensor(scale.max()) if change == "per tensor" else q
    found = Encodings(
        {"x": symmetric(), "w2": Encoding(QParams("int4" if change == "int4" else "int8", q)), "b": Encoding(QParams("int32", q))}
    )
    if change in ("", "ulp", "zeros"):
        said, lacking, weighed = save_encodings(found, tmp_path / "a.cache", graph=real)
        assert "4 tensors have no scale" in lacking.text and "'y'" in lacking.text
        assert "TensorRT 10.3.0" in said.text and "1 weight " in weighed.text
        assert load_encodings(tmp_path / "a.cache").entries.keys() == {Place("x")}
        return
    with refused(UnsupportedError, "scales-not-derived", holds=("w2",)) as caught:
        save_encodings(found, tmp_path / "a.cache", graph=real)
    assert "Conv" in str(caught.value) and not (tmp_path / "a.cache").exists()


@pytest.mark.end_to_end
def test_extracted_scales_make_the_model_again(tmp_path: Path) -> None:
    """A symmetric model taken apart into a cache and a float model, and put together again, computes the same."""
    real, quantizations = load(network(tmp_path / "float.onnx")), {name: symmetric(scale) for name, scale in WHOLE.items() if name in "xry"}
    given = Encodings(quantizations, weights="max-abs", metadata={"batch_norm": "folded"})
    qconvert.save(apply(real, given), tmp_path / "q.onnx")
    made = run("extract-scales", tmp_path / "q.onnx", tmp_path / "s.cache", "--float", tmp_path / "f.onnx", "--trt-version", "8.6.1")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "s.cache").read_text().startswith("TRT-8601-")
    again = apply(tmp_path / "f.onnx", tmp_path / "s.cache")
    first, second = (extract_scales(graph)[1] for graph in (load(tmp_path / "q.onnx"), again))
    for place, entry in first.entries.items():
        other = second[place]
        assert other.qparams.dtype == entry.qparams.dtype
        np.testing.assert_allclose(other.qparams.quantization.scale, entry.qparams.quantization.scale, rtol=2e-7)
        if entry.integers is not None:
            np.testing.assert_array_equal(other.integers, entry.integers)
