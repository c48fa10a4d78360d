"""AIMET's encodings: three versions of its own export, what its simulation computes, and what is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from qconvert import Encoding, Encodings, Grid, Place, QConvertError, Quantization, convert, extract, load_encodings, save_encodings
from qconvert.errors import UnsupportedError
from qconvert.plugins import encodings_format_of

FIXTURES = Path(__file__).parents[3] / "fixtures"
FOLDER = FIXTURES / "aimet"
VERSIONS = ("0.6.1", "1.0.0", "2.0.0")


def exported(version: str) -> Path:
    return FOLDER / f"version_{version}.encodings"


@pytest.mark.parametrize("version", VERSIONS)
def test_what_aimet_simulates(version: str, tmp_path: Path) -> None:
    """Its fake quantization and onnxruntime's integers give the same codes, all 80."""
    result = tmp_path / "quantized.onnx"
    convert(FOLDER / "float.onnx", result, encodings=str(exported(version)))
    found = load_encodings(exported(version))["y"].grid
    assert found is not None
    data = np.load(FOLDER / "simulated.npz")
    session = onnxruntime.InferenceSession(result)
    outputs = np.stack([session.run(None, {"x": item})[0] for item in data["x"]])
    np.testing.assert_array_equal(np.rint(outputs / found.quantization.scale), np.rint(data["y"] / found.quantization.scale))


def test_versions_say_the_same() -> None:
    found = [load_encodings(exported(version)) for version in VERSIONS]
    for place, entry in found[0].entries.items():
        for other in found[1:]:
            grid = other[place].grid
            assert grid is not None and entry.grid is not None and grid.dtype == entry.grid.dtype
            assert grid.quantization == entry.grid.quantization, place
    assert found[0]["x"].grid == Grid("uint8", Quantization.per_tensor(float(found[0]["x"].grid.quantization.scale[0]), 124))
    assert encodings_format_of(exported("2.0.0"), is_read=True).name == "aimet"


@pytest.mark.parametrize("version", ["1.0.0", "2.0.0"])
def test_what_is_written_is_read_again(version: str, tmp_path: Path) -> None:
    real, found = extract(FIXTURES / "tiny_kws_dscnn_int8.tflite")
    path = tmp_path / "model.encodings"
    notes = save_encodings(found, path, graph=real, aimet_version=version)
    assert "integers of" in notes[0].text
    again = load_encodings(path)
    for place, entry in found.entries.items():
        assert entry.grid is not None
        if entry.grid.dtype == "int32":
            assert place not in again.entries
            continue
        grid = again[place].grid
        assert grid is not None
        shift = 128 * (grid.dtype == "uint8" != entry.grid.dtype)
        np.testing.assert_array_equal(grid.quantization.scale, entry.grid.quantization.scale)
        np.testing.assert_array_equal(grid.quantization.zero_point - shift, entry.grid.quantization.zero_point)


def test_the_range_tells_where_the_offset_is_another(tmp_path: Path) -> None:
    """AIMET's specification has an example with offset 11 whose range begins at -12 steps."""
    entry = {"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "min": -12 * 0.1, "max": 243 * 0.1, "offset": 11, "scale": 0.1}
    path = tmp_path / "model.encodings"
    path.write_text(json.dumps({"version": "0.6.1", "activation_encodings": {"x": [entry]}, "param_encodings": {}}))
    found = load_encodings(path)
    assert found["x"].grid is not None and int(found["x"].grid.quantization.zero_point[0]) == 12
    assert "'x'" in found.notes[0]


def test_bits_between_and_floats(tmp_path: Path) -> None:
    entries = [
        {"name": "w", "enc_type": "PER_TENSOR", "dtype": "INT", "bw": 6, "is_sym": True, "scale": [0.5], "offset": [-32]},
        {"name": "f", "enc_type": "PER_TENSOR", "dtype": "FLOAT", "bw": 16},
    ]
    path = tmp_path / "model.encodings"
    path.write_text(json.dumps({"version": "1.0.0", "activation_encodings": [], "param_encodings": entries}))
    found = load_encodings(path)
    q = Quantization(np.float32([0.5]), np.array([0]), None, 0, -32, 31)
    assert found.entries.keys() == {Place("w")} and found["w"].grid == Grid("int8", q)
    assert "1 tensors are floats" in found.notes[0]


def one(**changes: Any) -> dict[str, Any]:
    entry = {"name": "x", "enc_type": "PER_TENSOR", "dtype": "INT", "bw": 8, "is_sym": False, "scale": [0.5], "offset": [-3]}
    return {"version": "1.0.0", "activation_encodings": [{**entry, **changes}], "param_encodings": []}


def two(**changes: Any) -> dict[str, Any]:
    return {"version": "2.0.0", "encodings": [{"name": "x", "output_dtype": "int8", "y_scale": 0.5, **changes}]}


BAD = {
    "version": ({**one(), "version": "3.0.0"}, "version 3.0.0"),
    "version is a number": ({**one(), "version": 1}, "not text"),
    "lpbq": (one(enc_type="LPBQ"), "encodings LPBQ"),
    "name": (one(name=3), "not text"),
    "scale": (one(scale=[-1.0]), "no positive number"),
    "NaN": (one(scale=[float("nan")]), "no positive number"),
    "zero": (one(scale=[0]), "no positive number"),
    "scales": (one(scale=[1, 2]), "2 scales and 1 offsets"),
    "offset": (one(offset=[300]), "zero point -300, beyond uint8"),
    "bits": (one(bw=99), "bit widths"),
    "no bits": (one(bw="8"), "is no integer"),
    "twice": ({**one(), "param_encodings": one()["activation_encodings"]}, "second entry of 'x'"),
    "not a list": ({**one(), "activation_encodings": 5}, "not a list"),
    "two: type": (two(output_dtype="int9"), "grid of int9"),
    "two: no scale": ({"version": "2.0.0", "encodings": [{"name": "x", "output_dtype": "int8"}]}, "blocks of blocks"),
    "two: points": (two(y_zero_point=[1, 2]), "1 scales and 2 zero points"),
    "two: ragged": (two(y_scale=[[1], [1, 2]]), "several lengths"),
    "two: blocks": (two(y_scale=[[1.0], [2.0]]), "do not fit scales"),
    "two: text": (two(y_scale=["a"]), "not made of numbers"),
    "two: member": (two(scale=1), "does not belong"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_damaged_is_one_error(case: str, tmp_path: Path) -> None:
    document, reason = BAD[case]
    path = tmp_path / "model.encodings"
    path.write_text(json.dumps(document))
    with pytest.raises(QConvertError, match=reason):
        load_encodings(path, "aimet")


def test_what_aimet_has_no_words_for(tmp_path: Path) -> None:
    grid = Grid("int8", Quantization.per_tensor(1))
    with pytest.raises(UnsupportedError, match="not operators"):
        save_encodings(Encodings({Place("x", "input", 1): Encoding(grid)}), tmp_path / "a.encodings")
    blocks = Quantization(np.ones((2, 2), np.float32), np.zeros((2, 2), np.int64), 1, 4)
    found = Encodings({"w": Encoding(Grid("int8", blocks))})
    with pytest.raises(UnsupportedError, match="blocks"):
        save_encodings(found, tmp_path / "b.encodings")
    assert not list(tmp_path.iterdir())
    save_encodings(found, tmp_path / "c.encodings", aimet_version="2.0.0")
    assert load_encodings(tmp_path / "c.encodings")["w"].grid == Grid("int8", blocks)
