"""Dumps in their three layouts, Pipelines as JSON and protobuf, and PPQ's file: which places get which quantizations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert.encodings import Encodings, Place
from qconvert.errors import InvalidModelError, OptionError, UnsupportedError
from qconvert.formats.mnn.reader import holds, read_encodings
from qconvert.plugins import encodings_format_of

FIXTURES = Path(__file__).parents[3] / "fixtures" / "mnn"
SHARED = Path(__file__).parents[4] / "shared" / "models" / "mnn"
needs_samples = pytest.mark.skipif(not SHARED.is_dir(), reason="the samples of ../shared/models/mnn are not here")


def quantizations(encodings: Encodings) -> dict[str, tuple[Any, Any]]:
    """Place -> (scales, zero points)."""
    found = {}
    for place, encoding in encodings.entries.items():
        assert encoding.qparams is not None
        q = encoding.qparams.quantization
        found[str(place)] = (q.scale.tolist(), q.zero_point.tolist()) if q.scale.size > 1 else (q.scale[0].item(), q.zero_point[0].item())
    return found


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Any], Path]:
    """Writes a document as JSON, bytes as they are."""

    def write(document: Any, name: str = "scales.json") -> Path:
        path = tmp_path / name
        path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
        return path

    return write


Written = Callable[..., Path]


def tensor(index: int, scale: float, zero_point: float = 0.0) -> dict[str, Any]:
    return {"tensorIndex": index, "scales": [scale], "zeropoint": [zero_point]}


#: x -> Conv c1 -> Relu (fused) -> Add s of c1 and a constant
DUMP: list[dict[str, Any]] = [
    {"name": "x", "outputs": [tensor(0, 0.5)]},
    {"name": "x___tr4c1", "inputs": [tensor(0, 0.5)], "outputs": [tensor(1, 0.5)]},
    {"name": "c1", "inputs": [tensor(1, 0.5)], "outputs": [tensor(2, 0.25, 3.0)]},
    {"name": "Const7", "outputs": [tensor(3, 0.0)]},
    {"name": "s", "inputs": [tensor(2, 0.25, 3.0)], "outputs": [tensor(4, 0.125)]},
    {"name": "ConvertTensor8", "inputs": [tensor(4, 0.125)], "outputs": [tensor(5, 0.0625)]},
    {"name": "y__matmul_converted", "inputs": [tensor(5, 0.0625)], "outputs": [tensor(6, 2.0)]},
    {"name": "y", "outputs": [tensor(7, 2.0)]},
]


def altered(change: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
    document = json.loads(json.dumps(DUMP))
    change(document)
    return list(document)


def test_scales_of_mnns_own_operators_become_those_of_operands(written: Written) -> None:
    found = read_encodings(written(DUMP), {})
    assert quantizations(found) == {
        "output 0 of 'x'": (0.5, 0),
        "output 0 of 'c1'": (0.25, 3),
        "output 0 of 's'": (0.125, 0),
        "output 0 of 'y'": (2.0, 0),
        "input 0 of 'y'": (0.0625, 0),  # what ConvertTensor8 gives; c1 reads x___tr4c1, which has the scale of x
    }
    assert found.weights == "max-abs"


def test_the_layout_without_zero_points(written: Written) -> None:
    """From 2021 to October 2023."""
    document = altered(lambda d: [item.pop("zeropoint") for op in d for item in op.get("inputs", []) + op["outputs"]])
    found = quantizations(read_encodings(written(document), {}))
    assert found["output 0 of 'c1'"] == (0.25, 0)


def test_the_layout_with_a_scale_for_each_channel(written: Written) -> None:
    """Of early 2021. A tensor of which some channels have no scale has none."""

    def change(document: list[dict[str, Any]]) -> None:
        for op in document:
            for item in op.get("inputs", []) + op["outputs"]:
                del item["zeropoint"]
                item["scales"] = [item["scales"][0] * factor for factor in (1, 2, 3)]
        document[4]["outputs"][0]["scales"] = document[5]["inputs"][0]["scales"] = [0.125, 0.0, 0.5]

    found = read_encodings(written(altered(change)), {})
    assert quantizations(found)["output 0 of 'c1'"] == ([0.25, 0.5, 0.75], [0, 0, 0])
    assert found["x" if "x" in found.entries else Place("x", "output")].qparams.quantization.axis == 1  # type: ignore[union-attr]
    assert "output 0 of 's'" not in quantizations(found) and found.notes == ("1 tensor has a scale for some channels alone, and none here",)


def test_a_dump_of_zeros_is_refused(written: Written) -> None:
    for path in (FIXTURES / "EMA_dump.json", written([{"name": "x", "outputs": [tensor(0, 0.0)]}])):
        with refused(InvalidModelError, "all-scales-zero") as caught:
            read_encodings(path, {})
        assert "KL or ADMM" in caught.value.remedy and holds(path)


@pytest.mark.formats
@pytest.mark.parametrize("method", ["KL", "ADMM"])
def test_the_network_beside_a_dump_names_its_tensors(method: str) -> None:
    """Operators alone say c1 for what a1 is, after a Relu."""
    dump = FIXTURES / f"{method}_dump.json"
    alone, beside = read_encodings(dump, {}), read_encodings(dump, {"mnn": str(FIXTURES / f"{method}.mnn")})
    fused = {"c1": "a1", "c2": "a2", "s": "a3"}
    renamed = {}
    for place, encoding in alone.entries.items():
        name = fused.get(place.name, place.name)
        renamed[Place(name, "input", place.index) if place.role == "input" else Place(name)] = encoding
    assert renamed == beside.entries
    assert read_encodings(dump, {"mnn": str(FIXTURES / "float.mnn")}) == beside


@pytest.mark.formats
def test_a_network_that_the_dump_does_not_belong_to() -> None:
    with refused(InvalidModelError, "files-do-not-match"):
        read_encodings(FIXTURES / "KL_dump.json", {"mnn": str(FIXTURES / "weights_8.mnn")})
    for name in ("pipeline.json", "pipeline.bin"):
        with refused(OptionError, "option-not-applicable"):
            read_encodings(FIXTURES / name, {"mnn": str(FIXTURES / "float.mnn")})


def test_a_pipeline_is_the_same_as_json_and_as_protobuf() -> None:
    found = read_encodings(FIXTURES / "pipeline.json", {})
    assert found == read_encodings(FIXTURES / "pipeline.bin", {})
    stated = json.loads((FIXTURES / "pipeline.json").read_text())["algo"][0]["quantParams"]["layer"]
    assert quantizations(found)["'a1'"] == (pytest.approx(0.0212, rel=1e-7), -128)
    assert quantizations(found)["input 0 of 'a1'"] == (0.03125, 3) and "input 0 of 'a2'" not in quantizations(found)  # a1 has it
    for layer in stated:
        encoding = found[Place(layer["output"][0]["name"], "input", 1)]
        assert encoding.qparams is not None and encoding.integers is None
        q = encoding.qparams.quantization
        assert q.scale.tolist() == layer["weight"][0]["scales"] and (q.axis, q.quant_min, q.quant_max) == (None, -127, None)


def test_what_a_pipeline_may_leave_out_or_spell_otherwise(written: Written) -> None:
    document = {
        "version": "1",
        "unknown": [1],
        "algo": [
            {
                "type": 0,
                "quant_params": {
                    "round_mode": "ROUND_HALF_TO_EVEN",
                    "layer": [{"output": [{"name": "y__matmul_converted", "scales": [0.5], "zero_point": -3, "clamp_min": -127}]}],
                },
            }
        ],
    }
    found = read_encodings(written(document), {})
    assert quantizations(found) == {"'y'": (0.5, -3)}
    assert found["y"].qparams is not None and found["y"].qparams.quantization.quant_min == -127


def pipeline(**changes: Any) -> dict[str, Any]:
    """A Pipeline of one layer, with other values at paths such as output__scales."""
    layer: dict[str, Any] = {
        "input": [{"name": "x", "scales": [0.5]}],
        "weight": [{"name": "w", "scales": [0.25, 0.5]}],
        "output": [{"name": "y", "scales": [0.125]}],
    }
    document: dict[str, Any] = {"version": "0.0.0", "algo": [{"type": "QUANTIZE", "quantParams": {"layer": [layer]}}]}
    for path, value in changes.items():
        place, _, key = path.partition("__")
        if key:
            layer[place][0][key] = value
        elif place in layer or place == "method":
            layer[place] = value
        else:
            document[place] = value
    return document


def test_bits_of_a_pipeline(written: Written) -> None:
    found = read_encodings(written(pipeline(weight__bits=4, output__bits=6)), {})
    weights, result = found[Place("y", "input", 1)].qparams, found["y"].qparams
    assert weights is not None and result is not None
    assert (weights.dtype, weights.quantization.quant_min) == ("int4", None)
    assert (result.dtype, result.quantization.quant_min, result.quantization.quant_max) == ("int8", -32, 31)


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"forGuide": True}, ("no-scales",)),
        ({"for_guide": True}, ("no-scales",)),
        ({"algo": [{"type": "PRUNE"}]}, ("not-quantization",)),
        ({"weight__asymmetric": True}, ("form-not-covered",)),
        ({"weight__blockSize": 32}, ("form-not-covered", 32)),
        ({"weight__bits": 16}, ("bits-not-covered", 16)),
        ({"output__bits": 1}, ("bits-not-covered", 1)),
    ],
)
def test_what_a_pipeline_says_and_nothing_here_covers(changes: dict[str, Any], broken: tuple[Any, ...], written: Written) -> None:
    with refused(UnsupportedError, broken[0], holds=broken[1:]):
        read_encodings(written(pipeline(**changes)), {})


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"version": 3}, ("wrong-type",)),
        ({"algo": {}}, ("wrong-type",)),
        ({"algo": [{"type": "SHRINK"}]}, ("unknown-word", "SHRINK")),
        ({"algo": []}, ("no-scales",)),
        ({"output": []}, ("missing-member",)),
        ({"output__scales": []}, ("not-per-tensor", 0)),
        ({"output__scales": [0.5, 0.25]}, ("not-per-tensor", 2)),
        ({"output__scales": [0]}, ("scale-not-positive", 0)),
        ({"output__scales": [-0.5]}, ("scale-not-positive", "-0.5")),
        ({"output__scales": ["NaN"]}, ("wrong-type",)),
        ({"output__scales": [float("nan")]}, ("scale-not-positive", "nan")),
        ({"output__scales": [1e39]}, ("scale-not-positive", "1e+39")),
        ({"output__scales": [1e-50]}, ("scale-not-positive", "1e-50")),
        ({"output__zeroPoint": 200}, ("zero-point-outside-type", 200)),
        ({"output__zeroPoint": -129}, ("zero-point-outside-type", -129)),
        ({"output__zeroPoint": 0.5}, ("wrong-type",)),
        ({"output__clampMin": -200}, ("limits-outside-type", -200)),
        ({"output__clampMin": 100, "output__clampMax": -100}, ("limits-outside-type", 100, -100)),
        ({"weight__scales": []}, ("no-scales",)),
        ({"weight__scales": [0.5, 0]}, ("scale-not-positive", 0)),
        ({"input__name": None}, ("missing-member", "name")),
        ({"weight__bits": True}, ("wrong-type",)),
        ({"weight__bits": 2**40}, ("number-out-of-range", 32)),
        ({"method": "LSQ"}, ("unknown-word", "LSQ")),
    ],
)
def test_pipelines_that_are_none(changes: dict[str, Any], broken: tuple[Any, ...], written: Written) -> None:
    with refused(InvalidModelError, broken[0], holds=broken[1:]):
        read_encodings(written(pipeline(**changes)), {})


def test_layers_that_contradict_each_other(written: Written) -> None:
    document = pipeline()
    layers = document["algo"][0]["quantParams"]["layer"]
    layers.append({"output": [{"name": "y", "scales": [0.25]}]})
    with refused(InvalidModelError, "contradicting-scales", holds=("y",)):
        read_encodings(written(document), {})


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (lambda d: d[7]["outputs"][0].update(scales=[-0.5]), ("scale-not-positive", "-0.5")),
        (lambda d: d[7]["outputs"][0].update(scales=[float("inf")]), ("scale-not-positive", "inf")),
        (lambda d: d[2]["outputs"][0].update(scales=["x"]), ("wrong-type",)),
        (lambda d: d[2]["outputs"][0].update(scales=0.5), ("wrong-type",)),
        (lambda d: d[2]["outputs"][0].update(scales=[]), ("no-scales",)),
        (lambda d: d[7]["outputs"][0].update(zeropoint=[300]), ("zero-point-outside-type", 300)),
        (lambda d: d[7]["outputs"][0].update(zeropoint=[0.5]), ("zero-point-outside-type", "0.5")),
        (lambda d: d[7]["outputs"][0].update(zeropoint=[float("nan")]), ("zero-point-outside-type", "nan")),
        (lambda d: d[7]["outputs"][0].update(zeropoint=[1, 2]), ("counts-differ", 1, 2)),
        (lambda d: d[7]["outputs"][0].pop("zeropoint"), ("zero-point-missing",)),
        (lambda d: d[7]["outputs"][0].update(tensorIndex=-1), ("number-out-of-range", 0)),
        (lambda d: d[7]["outputs"][0].update(tensorIndex=4), ("contradicting-scales",)),
        (lambda d: d[7]["outputs"][0].update(scale=1), ("unknown-member", "scale")),
        (lambda d: d[7].update(name=3), ("wrong-type",)),
        (lambda d: d[7].update(outputs={}), ("wrong-type",)),
        (lambda d: d.append({"inputs": []}), ("missing-member", "name")),
        (lambda d: d.append(7), ("wrong-type",)),
        (lambda d: d.append({"name": "z", "outputs": [tensor(7, 2.0)]}), ("duplicate-name", "y", "z")),
        (lambda d: d.append({"name": "s", "outputs": [tensor(8, 2.0)]}), ("contradicting-scales",)),
    ],
)
def test_dumps_that_are_none(change: Callable[[list[dict[str, Any]]], object], broken: tuple[Any, ...], written: Written) -> None:
    with refused(InvalidModelError, broken[0], holds=broken[1:]):
        read_encodings(written(altered(change)), {})


PPQ = {
    "shape": {"channels": 3, "height": 4, "width": 4},
    "conv 1 input_tensor_0": 0.5,
    "conv 1 output_tensor_0": 0.25,
    "add input_tensor_1": 0,
}


def test_ppqs_file(written: Written) -> None:
    found = read_encodings(written(PPQ), {})
    assert quantizations(found) == {"input 0 of 'conv 1'": (0.5, 0), "output 0 of 'conv 1'": (0.25, 0)}  # 0 stands for none
    assert found.weights == "max-abs"


@pytest.mark.parametrize(
    ("document", "broken"),
    [
        ({"a input_tensor_0": -1}, ("scale-not-positive", -1)),
        ({"a input_tensor_0": [1]}, ("wrong-type",)),
        ({"a input_tensor_0": 0}, ("all-scales-zero",)),
        ({"a input_tensor_0": 0.5, "other": 1}, ("not-this-format",)),
        ({"a input_tensor_1": 1, "a input_tensor_01": 2}, ("duplicate-name",)),
        ({"shape": {}}, ("not-this-format",)),
        ({}, ("not-this-format",)),
        ([], ("not-this-format",)),
        (["a"], ("not-this-format",)),
        ({"format": "RGB", "feature_quantize_method": "KL"}, ("not-this-format",)),
        (b'{"a input_tensor_0": 0.5', ("not-json",)),
        (b"[" * 100_000, ("not-json",)),
        (b'{"a input_tensor_0": 0.5, "a input_tensor_0": 0.5}', ("not-json",)),
        (b'{"a input_tensor_0": 1e400}', ("scale-not-positive", "inf")),
        (b'{"a input_tensor_0": -nan}', ("not-json",)),
        (b'[{"name": "\xff"}]', ("not-json",)),
        (b"\n\x050.0.0\x12\x00\x12", ("damaged-file",)),
        (b"\n\x050.0.0\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", ("damaged-file",)),
        (b"\n\x050.0.0\x12\x04\x12\x02\x22\x00", ("missing-member",)),
        (b"\n\x050.0.0\x10\x04", ("no-scales",)),  # algo as a number, which protobuf takes for an unknown field
        (b"\n\x050.0.0\x12\xff\xff\xff\x7f", ("damaged-file",)),
        (b"\n\x050.0.0", ("no-scales",)),
        (b"\x1a", ("damaged-file", 8)),
        (b"TFL3TFL3", ("not-this-format",)),
        (b"\x08\0\0\0TFL3" + bytes(40), ("not-this-format",)),
        (b"\x08\0\0\0\0\0\0\0" + bytes(40), ("damaged-file", 0)),
    ],
)
def test_files_that_are_none(document: Any, broken: tuple[Any, ...], written: Written) -> None:
    with refused(InvalidModelError, broken[0], holds=broken[1:]) as caught:
        read_encodings(written(document), {})
    assert caught.value.file.endswith("scales.json")


@pytest.mark.formats
def test_formats_are_told_apart_by_content(written: Written) -> None:
    for name in ("KL_dump.json", "EMA_dump.json", "pipeline.json", "pipeline.bin", "KL.mnn", "guide.json"):
        assert holds(FIXTURES / name)
        assert encodings_format_of(FIXTURES / name, is_read=True).name == "mnn"
    assert holds(written(PPQ)) and holds(written((FIXTURES / "KL.mnn").read_bytes(), "renamed.bin"))
    for document in ({"encodings": 1, "entries": []}, {"a": 1}, [], [{"name": 1, "x": 2}], b"", b"\x0a", b"nothing", b"\x00" * 64):
        path = written(document)
        if path.stat().st_size:
            assert not holds(path), document


@pytest.mark.formats
@needs_samples
def test_the_sample_documents() -> None:
    kl = read_encodings(SHARED / "mnnquant_3.6.1_KL_resnet8_dump.json", {})
    named = read_encodings(SHARED / "mnnquant_3.6.1_KL_resnet8_dump.json", {"mnn": str(SHARED / "resnet8_mnnquant_KL.mnn")})
    assert len(kl) == len(named) == 17
    assert quantizations(named)["'v4'"] == (np.float32(0.035348765552043915).item(), 0)
    admm = read_encodings(SHARED / "mnnquant_3.6.1_ADMM_resnet8_dump.json", {})
    assert len(admm) == 18  # the first layer reads its data with another scale than the input has
    with refused(InvalidModelError, "all-scales-zero"):
        read_encodings(SHARED / "mnnquant_3.6.1_EMA_resnet8_dump_all_zero.json", {})
    assert read_encodings(SHARED / "pipeline_resnet8_affine.bin", {}) == read_encodings(SHARED / "pipeline_resnet8_affine.json", {})
    symmetric = read_encodings(SHARED / "pipeline_resnet8_symmetric.json", {})
    assert all(not encoding.qparams.quantization.zero_point.any() for encoding in symmetric.entries.values() if encoding.qparams)
    for name in ("q32_EMA", "q32_KL", "qs_ADMM"):
        assert not holds(SHARED / f"{name}.json")
