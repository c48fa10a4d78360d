"""Calibration tables of ncnn: what they say, what is damaged in them, and back from a calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import qconvert
from qconvert import Encoding, Encodings, Place, QParams, Quantization
from qconvert.errors import InvalidModelError, OptionError, QConvertError, UnsupportedError
from qconvert.plugins import read_encodings

FLOAT = Path(__file__).parents[3] / "fixtures" / "digits" / "float.onnx"

#: As ncnn2table writes it.
TABLE = """conv1_param_0 63.500000 127.000000 254.000000
fc_param_0 100.000000
conv1 31.750000
fc 12.700000
"""


def read(path: Path, text: str) -> Encodings:
    path.write_text(text)
    return read_encodings(path)


def test_numbers_are_inverse_scales_of_the_inputs_of_layers(tmp_path: Path) -> None:
    found = read(tmp_path / "a.table", TABLE)
    assert set(found.entries) == {Place(name, "input", index) for name in ("conv1", "fc") for index in (0, 1)}
    weights, data = (found[Place("conv1", "input", index)].qparams for index in (1, 0))
    assert weights is not None and data is not None
    assert weights.quantization.scale.tolist() == [np.float32(1 / 63.5), np.float32(1 / 127), np.float32(1 / 254)]
    assert weights.quantization.limits("int8") == (-127, 127) and weights.quantization.axis is None
    assert (data.dtype, data.quantization.scale.tolist(), data.quantization.zero_point.tolist()) == ("int8", [np.float32(1 / 31.75)], [0])
    assert not found.notes


def test_comments_empty_lines_and_channels_of_zeros(tmp_path: Path) -> None:
    found = read(tmp_path / "a.table", "#conv1_param_0 1\nfc_param_0 0.0 127 0\n\nfc 12.7\nodd 2.0\n")
    assert found[Place("fc", "input", 1)].qparams.quantization.scale.tolist() == [np.float32(1 / 127)] * 3  # type: ignore[union-attr]
    assert found.notes == (
        "line 3 is empty: ncnn reads no further, here the rest is taken too",
        "1 layer has a scale of data and none of weights, at which ncnn2int8 stops: odd",
    )


@pytest.mark.parametrize(("text", "broken"), [
    ("", ("not-this-format",)),
    ("conv1 x", ("not-this-format",)),
    ("a 1.0\nconv1 x", ("not-a-number",)),
    ("a 1.0\nconv1", ("not-a-number",)),
    ("a 1.0\nconv1 1.0 2.0", ("not-per-tensor", 2)),
    ("a 1.0\na 2.0", ("duplicate-name",)),
    ("a 1.0\nb_param_0 -1.0", ("scale-not-positive",)),
    ("a 1.0\nb nan", ("scale-not-positive",)),
    ("a 1.0\nb inf", ("scale-not-positive",)),
    ("a 1.0\nb_param_0 0 0", ("scale-not-positive",)),
    ("a 1.0\nb 1e-300", ("scale-not-float32",)),
    ("a 1.0\nb_param_1 1.0", ("not-covered",)),
    ("a 1.0\nb_param_0 bits=4 block=64 1.0", ("blocks-not-covered",)),
    ("a 1.0\n" + 300 * "b" + " 1.0", ("name-too-long", 300)),
    ("a 1.0\nb 1_0", ("not-a-number",)),
])  # fmt: skip
def test_what_is_damaged_is_one_error(text: str, broken: tuple[Any, ...], tmp_path: Path) -> None:
    with refused(QConvertError, broken[0], holds=broken[1:]):
        read(tmp_path / "a.table", text)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.table").write_bytes(b"a 1.0\n\xff\xfe 1.0\n")
    with refused(InvalidModelError, "not-utf8"):
        read_encodings(tmp_path / "a.table")


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_a_calibration_goes_there_and_back(tmp_path: Path) -> None:
    """The scales of data and weights of all layers come back in every bit, and the quantized network has them."""
    images = np.load(FLOAT.parent / "test.npz")["images"][:20]
    scales = qconvert.calibrate(FLOAT, images, symmetric=True)
    graph = qconvert.load(FLOAT)
    qconvert.save_encodings(scales, tmp_path / "a.table", graph=graph)
    lines = (tmp_path / "a.table").read_text().splitlines()
    found = read_encodings(tmp_path / "a.table")
    layers = [op for op in graph.ops if op.kind in ("Conv", "Gemm")]
    assert len(lines) == len(found) == 2 * len(layers) and all("_param_0 " in line for line in lines[: len(layers)])
    for place, entry in found.entries.items():
        op = next(op for op in layers if place.name in (op.source.partition(" ")[2], op.outputs[0]))
        ours = scales[op.inputs[place.index]].qparams
        assert ours is not None and entry.qparams is not None
        assert np.array_equal(ours.quantization.scale, entry.qparams.quantization.scale)
    applied = qconvert.apply(graph, found)
    assert sum(applied[op.inputs[1]].is_quantized for op in applied.ops if op.kind in ("Conv", "Gemm")) == len(layers)


@pytest.mark.onnxruntime
def test_what_a_table_cannot_state_is_refused(tmp_path: Path) -> None:
    images = np.load(FLOAT.parent / "test.npz")["images"][:4]
    graph = qconvert.load(FLOAT)
    with refused(UnsupportedError, "quantization-not-storable"):
        qconvert.save_encodings(qconvert.calibrate(FLOAT, images), tmp_path / "a.table", graph=graph)
    lone = Encodings({graph.inputs[0]: Encoding(QParams("int8", Quantization.per_tensor(0.1)))})
    with refused(OptionError, "no-scales"):
        qconvert.save_encodings(lone, tmp_path / "a.table", graph=graph)
    assert not (tmp_path / "a.table").exists()
