"""Encodings as JSON: the schema holds, everything comes back, and what is damaged is one error that names its place."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from qconvert import Encoding, Encodings, Place, QParams, Quantization, Range, extract_scales, load_encodings, save_encodings
from qconvert.encodings import from_document, to_document
from qconvert.errors import FileAccessError, InvalidModelError, OptionError
from qconvert.graph import integer_range, numpy_dtype

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "encodings.schema.json").read_text())
TYPES = ("int2", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32")


def sample() -> Encodings:
    blocks = Quantization(np.full((4, 2), 0.5, np.float32), np.zeros((4, 2), np.int64), 1, 16)
    return Encodings(
        {
            Place("x"): Encoding(QParams("uint8", Quantization.per_tensor(0.1, 3)), origin="KL of 8 inputs"),
            Place("conv", "input", 1): Encoding(
                QParams("int8", Quantization(np.array([0.1, 0.2], np.float32), np.zeros(2, np.int64), 0, 0, -127, 127)),
                integers=np.array([[1, -127], [3, 4]], np.int8),
            ),
            Place("w"): Encoding(QParams("int4", blocks), integers=np.full((4, 32), -8).astype(numpy_dtype("int4"))),
            Place("y"): Encoding(range=Range(np.array([-1.5]), np.array([2.0])), required=False),
        },
        "a test",
        "max-abs",
        {"key": "text"},
        ("a note",),
    )


def test_everything_comes_back() -> None:
    document = json.loads(json.dumps(to_document(sample())))
    jsonschema.validate(document, SCHEMA)
    assert from_document(document) == sample()


@pytest.mark.property
@given(st.sampled_from(TYPES), st.floats(2.0**-100, 2.0**100, width=32), st.data())
def test_any_quantization_comes_back_bit_for_bit(dtype: str, scale: float, data: st.DataObject) -> None:
    low, high = integer_range(dtype)
    point = data.draw(st.integers(low, high))
    found = Encodings({"x": Encoding(QParams(dtype, Quantization.per_tensor(scale, point)))})
    assert from_document(json.loads(json.dumps(to_document(found)))) == found


@pytest.mark.formats
def test_a_model_taken_apart_obeys_the_schema(tmp_path: Path) -> None:
    _, found = extract_scales(ROOT / "fixtures" / "tiny_kws_dscnn_int8.tflite")
    save_encodings(found, tmp_path / "scales.json")
    jsonschema.validate(json.loads((tmp_path / "scales.json").read_text()), SCHEMA)
    assert load_encodings(tmp_path / "scales.json") == found
    with refused(FileAccessError, "file-exists"):
        save_encodings(found, tmp_path / "scales.json")


BAD = {
    "version": (lambda d: d.update(encodings=3), ("version-not-covered", 3)),
    "no entries": (lambda d: d.pop("entries"), ("missing-member", "entries")),
    "foreign member": (lambda d: d.update(scales=[]), ("unknown-member", "scales")),
    "no name": (lambda d: d["entries"][0].pop("name"), ("missing-member", "name")),
    "empty name": (lambda d: d["entries"][0].update(name=""), ("malformed-place",)),
    "role": (lambda d: d["entries"][0].update(role="weights"), ("unknown-word", "weights")),
    "both": (lambda d: d["entries"][0].update(range={"lowest": 0, "highest": 1}), ("qparams-or-range",)),
    "neither": (lambda d: d["entries"][0].pop("qparams"), ("qparams-or-range",)),
    "twice": (lambda d: d["entries"].append(copy.deepcopy(d["entries"][0])), ("duplicate-name", "x")),
    "type": (lambda d: d["entries"][0]["qparams"].update(dtype="int9"), ("unknown-type", "int9")),
    "negative": (lambda d: d["entries"][0]["qparams"].update(scale=-0.1), ("scale-not-positive",)),
    "zero": (lambda d: d["entries"][0]["qparams"].update(scale=[0]), ("scale-not-positive",)),
    "NaN": (lambda d: d["entries"][0]["qparams"].update(scale=[float("nan")]), ("scale-not-positive",)),
    "beyond float32": (lambda d: d["entries"][0]["qparams"].update(scale=1e300), ("scale-not-positive",)),
    "text": (lambda d: d["entries"][0]["qparams"].update(scale="0.1"), ("wrong-type",)),
    "no scales": (lambda d: d["entries"][0]["qparams"].update(scale=[]), ("ragged-list",)),
    "zero point": (lambda d: d["entries"][0]["qparams"].update(zero_point=[256]), ("zero-point-outside-type", 256)),
    "zero points": (lambda d: d["entries"][0]["qparams"].update(zero_point=[1, 2]), ("counts-differ", 1, 2)),
    "ragged": (lambda d: d["entries"][2]["qparams"].update(scale=[[1, 2], [3]]), ("ragged-list",)),
    "blocks": (lambda d: d["entries"][2]["qparams"].update(block_size=0), ("blocks-do-not-fit",)),
    "limits": (lambda d: d["entries"][0]["qparams"].update(quant_min=9, quant_max=3), ("limits-outside-type", 9, 3)),
    "truth": (lambda d: d["entries"][0]["qparams"].update(runs_in_float=1), ("wrong-type", "runs_in_float")),
    "base64": (lambda d: d["entries"][1]["integers"].update(data="?"), ("not-base64",)),
    "too few bytes": (lambda d: d["entries"][1]["integers"].update(shape=[9, 9]), ("counts-differ", 4)),
    "beyond int4": (lambda d: d["entries"][2]["integers"].update(data="fw==", shape=[1]), ("value-outside-type",)),
    "empty range": (lambda d: d["entries"][3]["range"].update(lowest=3.0), ("range-inverted",)),
    "ranges": (lambda d: d["entries"][3]["range"].update(lowest=[1, 2]), ("counts-differ", 2, 1)),
    "weights": (lambda d: d.update(weights="max"), ("unknown-word", "max")),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_damaged_is_named(case: str, tmp_path: Path) -> None:
    change, broken = BAD[case]
    document: dict[str, Any] = json.loads(json.dumps(to_document(sample())))
    change(document)  # type: ignore[no-untyped-call]
    path = tmp_path / "scales.json"
    path.write_text(json.dumps(document))
    with refused(InvalidModelError, broken[0], holds=broken[1:]) as caught:
        load_encodings(path)
    assert caught.value.file == str(path)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[1, 2]", '{"a": 1}', "\x00\xff", '{"encodings": 1, "encodings": 1}'])
def test_what_is_no_document_is_one_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "scales.json"
    path.write_text(text)
    with pytest.raises((InvalidModelError, OptionError)):
        load_encodings(path)


def test_blocks_of_a_layer_need_no_axis(tmp_path: Path) -> None:
    of_layer = Encodings({"w": Encoding(QParams("int4", Quantization(np.float32([1, 2, 3, 4]), np.zeros(4, np.int64), None, 16)))})
    assert from_document(json.loads(json.dumps(to_document(of_layer))))["w"] == of_layer["w"]
