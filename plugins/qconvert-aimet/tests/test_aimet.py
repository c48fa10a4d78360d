"""AIMET's encodings: three versions of its own export, what its simulation computes, and what is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from qconvert import (
    Encoding,
    Encodings,
    Graph,
    Op,
    Place,
    QConvertError,
    QParams,
    Quantization,
    Tensor,
    apply,
    convert,
    extract_scales,
    load,
    load_encodings,
    save_encodings,
)
from qconvert.plugin import InvalidModelError, UnsupportedError, evaluate

FOLDER = Path(__file__).parents[1] / "fixtures"
VERSIONS = ("0.6.1", "1.0.0", "2.0.0")


def exported(version: str) -> Path:
    return FOLDER / f"version_{version}.encodings"


@pytest.mark.parametrize("version", VERSIONS)
def test_what_aimet_simulates(version: str, tmp_path: Path) -> None:
    """Its fake quantization and onnxruntime's integers give the same codes, all 80."""
    result = tmp_path / "quantized.onnx"
    convert(FOLDER / "float.onnx", result, encodings=str(exported(version)))
    found = load_encodings(exported(version))["y"].qparams
    assert found is not None
    data = np.load(FOLDER / "simulated.npz")
    session = onnxruntime.InferenceSession(result)
    outputs = np.stack([session.run(None, {"x": item})[0] for item in data["x"]])
    np.testing.assert_array_equal(np.rint(outputs / found.quantization.scale), np.rint(data["y"] / found.quantization.scale))


def test_versions_say_the_same() -> None:
    found = [load_encodings(exported(version)) for version in VERSIONS]
    for place, entry in found[0].entries.items():
        for other in found[1:]:
            quantization = other[place].qparams
            assert quantization is not None and entry.qparams is not None and quantization.dtype == entry.qparams.dtype
            assert quantization.quantization == entry.qparams.quantization, place
    assert found[0]["x"].qparams == QParams("uint8", Quantization.per_tensor(found[0]["x"].qparams.quantization.step, 124))
    assert "AIMET" in found[2].origin


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_written_is_read_again(version: str, tmp_path: Path) -> None:
    """Quantizations of int8 with zero points, as TensorFlow Lite has them; blocks in the versions that have them."""
    real, found = extract_scales(quantized())
    path = tmp_path / "model.encodings"
    notes = save_encodings(found, path, graph=real, aimet_version=version)
    assert "integers of 2 constants" in notes[0].text
    again = load_encodings(path)
    assert found.entries.keys() - again.entries.keys() == {Place("b")}  # int32, left to the rule of all biases
    for place, entry in again.entries.items():
        quantization, given = entry.qparams, found[place].qparams
        assert quantization is not None and given is not None
        assert quantization.dtype == ("int8" if place.name == "w" else "uint8")
        np.testing.assert_array_equal(quantization.quantization.scale, given.quantization.scale)
        shift = 128 if place.name != "w" else 0
        np.testing.assert_array_equal(quantization.quantization.zero_point - shift, given.quantization.zero_point)
    result = apply(real, again)
    data = {"x": np.random.default_rng(0).integers(-128, 128, (2, 4)).astype(np.int8)}
    given_x = {"x": (data["x"].astype(np.float32) - 3) * np.float32(0.5)}
    np.testing.assert_array_equal(
        evaluate(result, given_x)["y"], (evaluate(quantized(), data)["y"].astype(np.float32) + 7) * np.float32(0.25)
    )


def quantized() -> Graph:
    """A linear layer of int8."""
    tensors = [
        Tensor("x", "int8", (2, 4), None, Quantization.per_tensor(0.5, 3)),
        Tensor("w", "int8", (3, 4), np.arange(-6, 6, dtype=np.int8).reshape(3, 4), Quantization.per_axis([0.25, 0.1, 0.125], 0)),
        Tensor(
            "b", "int32", (3,), np.array([5, -20, 7], np.int32), Quantization.per_axis(np.float32([0.25, 0.1, 0.125]) * np.float32(0.5), 0)
        ),
        Tensor("y", "int8", (2, 3), None, Quantization.per_tensor(0.25, -7)),
    ]
    return Graph("hand", {t.name: t for t in tensors}, (Op("Gemm", ("x", "w", "b"), ("y",)),), ("x",), ("y",))


def test_the_range_tells_where_the_offset_is_another(tmp_path: Path) -> None:
    """AIMET's specification has an example with offset 11 whose range begins at -12 steps."""
    entry = {"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "min": -12 * 0.1, "max": 243 * 0.1, "offset": 11, "scale": 0.1}
    path = tmp_path / "model.encodings"
    path.write_text(json.dumps({"version": "0.6.1", "activation_encodings": {"x": [entry]}, "param_encodings": {}}))
    found = load_encodings(path)
    assert found["x"].qparams is not None and found["x"].qparams.quantization.point == 12
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
    assert found.entries.keys() == {Place("w")} and found["w"].qparams == QParams("int8", q)
    assert "1 tensor left float, as the encodings say" in found.notes[0]


def one(**changes: Any) -> dict[str, Any]:
    entry = {"name": "x", "enc_type": "PER_TENSOR", "dtype": "INT", "bw": 8, "is_sym": False, "scale": [0.5], "offset": [-3]}
    return {"version": "1.0.0", "activation_encodings": [{**entry, **changes}], "param_encodings": []}


def lpbq(**changes: Any) -> dict[str, Any]:
    fields = {"enc_type": "LPBQ", "compressed_bw": 4, "block_size": 4, "per_block_int_scale": [3, 16], "offset": [-128]}
    return one(**{**fields, **changes})


def old(**changes: Any) -> dict[str, Any]:
    entry = {"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "min": -1.5, "max": 126.0, "offset": -3.0, "scale": 0.5}
    return {"version": "0.6.1", "activation_encodings": {"x": [{**entry, **changes}]}, "param_encodings": {}}


def two(**changes: Any) -> dict[str, Any]:
    return {"version": "2.0.0", "encodings": [{"name": "x", "output_dtype": "int8", "y_scale": 0.5, **changes}]}


INFINITE = float("inf")
BAD = {
    "version": ({**one(), "version": "3.0.0"}, ("version-not-covered", "3.0.0")),
    "version is a number": ({**one(), "version": 1}, ("wrong-type",)),
    "kind": (one(enc_type="PER_ROW"), ("unknown-word", "x", "enc_type", "PER_ROW")),
    "type": (one(dtype="INT8"), ("unknown-word", "INT8")),
    "name": (one(name=3), ("wrong-type",)),
    "scale": (one(scale=[-1.0]), ("scale-not-positive", "x", "-1.0")),
    "NaN": (one(scale=[float("nan")]), ("scale-not-positive", "x")),
    "infinite": (one(scale=[INFINITE]), ("scale-not-positive", "x")),
    "beyond float32": (one(scale=[1e300]), ("scale-not-positive", "x")),
    "below float32": (one(scale=[1e-300]), ("scale-not-positive", "x")),
    "zero": (one(scale=[0]), ("scale-not-positive",)),
    "no scale": (one(scale=[]), ("counts-differ", "x", 0)),
    "scales": (one(scale=[1, 2]), ("counts-differ", "x", 2, 1)),
    "one scale": (one(scale=[1, 2], offset=[0, 0]), ("counts-differ", 2, "PER_TENSOR")),
    "offset": (one(offset=[-300]), ("zero-point-outside-type", "x", 300, 8, 255)),
    "half an offset": (one(offset=[-3.5]), ("wrong-type", "x", "-3.5")),
    "NaN offset": (one(offset=[float("nan")]), ("wrong-type", "x")),
    "infinite offset": (one(offset=[-INFINITE]), ("wrong-type", "x")),
    "huge offset": (one(offset=[2.0**70]), ("wrong-type", "x")),
    "shift": (one(zero_point_shift=[0.5]), ("zero-point-not-integer", "x")),
    "symmetric": (one(is_sym="yes"), ("wrong-type", "x", "is_sym")),
    "symmetric number": (one(is_sym=1), ("wrong-type",)),
    "bits": (one(bw=99), ("bits-not-covered", "x", 99, 32)),
    "one bit": (one(bw=1), ("number-out-of-range", "x", 2)),
    "no bits": (one(bw="8"), ("wrong-type",)),
    "twice": ({**one(), "param_encodings": one()["activation_encodings"]}, ("duplicate-name", "x")),
    "not a list": ({**one(), "activation_encodings": 5}, ("wrong-type",)),
    "blocks of nothing": (one(enc_type="PER_BLOCK"), ("wrong-type", "block_size")),
    "blocks of none": (one(enc_type="PER_BLOCK", block_size=0), ("number-out-of-range", "block_size")),
    "lpbq: bits": (lpbq(compressed_bw=None), ("wrong-type", "x", "compressed_bw")),
    "lpbq: none": (lpbq(per_block_int_scale=[]), ("counts-differ", 1, 0)),
    "lpbq: counts": (lpbq(scale=[1, 2], offset=[-128] * 2, per_block_int_scale=[3, 4, 5]), ("counts-differ", 2, 3)),
    "lpbq: zero": (lpbq(per_block_int_scale=[0, 1]), ("scale-not-positive",)),
    "lpbq: huge": (lpbq(per_block_int_scale=[2**70, 1]), ("number-out-of-range", "x", "per_block_int_scale")),
    "old: widths": ({**old(), "activation_encodings": {"x": [{"bitwidth": b, "scale": 1.0} for b in (4, 8)]}}, ("contradicting-channels",)),
    "old: nothing": ({**old(), "activation_encodings": {"x": []}}, ("no-scales", "x")),
    "old: no list": ({**old(), "activation_encodings": {"x": {"bitwidth": 8}}}, ("wrong-type", "x")),
    "old: symmetric": (old(is_symmetric="Maybe"), ("wrong-type", "x", "is_symmetric")),
    "old: type": (old(dtype="fixed"), ("unknown-word", "x", "fixed")),
    "old: scale": (old(scale="0.5"), ("wrong-type", "x", "scale")),
    "old: NaN": (old(scale=float("nan")), ("scale-not-positive", "x")),
    "old: lowest": (old(min=float("nan")), ("range-not-finite", "x", "nan")),
    "old: offset": (old(offset=-3.5), ("wrong-type", "x", "offset")),
    "old: offset of the range": (old(scale=1e-30, min=-1e30), ("wrong-type", "x", "offset of the range")),
    "two: type": (two(output_dtype="int99"), ("dtype-not-covered", "x", "int99")),
    "two: float": (two(output_dtype="float8e4m3fn"), ("dtype-not-covered", "x", "float8e4m3fn")),
    "two: no scale": ({"version": "2.0.0", "encodings": [{"name": "x", "output_dtype": "int8"}]}, ("wrong-type", "x", "y_scale")),
    "two: points": (two(y_zero_point=[1, 2]), ("counts-differ", "x", 1, 2)),
    "two: ragged": (two(y_scale=[[1], [1, 2]]), ("ragged-list",)),
    "two: blocks": (two(y_scale=[[1.0], [2.0]]), ("blocks-do-not-fit",)),
    "two: text": (two(y_scale=["a"]), ("wrong-type",)),
    "two: truth": (two(y_scale=[True]), ("wrong-type",)),
    "two: member": (two(scale=1), ("unknown-member",)),
    "two: steps": (two(y_scale={"x": [[1, 2]], "x_scale": [1, 2, 3], "axis": 0}, axis=1, block_size=4), ("counts-differ",)),
    "two: zero points of steps": (two(y_scale={"x": [[1]], "x_scale": [1.0], "x_zero_point": 1}), ("form-not-covered", "x_zero_point")),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_damaged_is_one_error(case: str, tmp_path: Path) -> None:
    document, broken = BAD[case]
    path = tmp_path / "model.encodings"
    path.write_text(json.dumps(document))
    with pytest.raises(QConvertError) as caught:
        load_encodings(path, "aimet")
    assert caught.value.rule == broken[0] and all(str(part) in str(caught.value) for part in broken[1:])


def test_what_aimet_has_no_words_for(tmp_path: Path) -> None:
    quantization = QParams("int8", Quantization.per_tensor(1))
    with pytest.raises(UnsupportedError) as caught:
        save_encodings(Encodings({Place("x", "input", 1): Encoding(quantization)}), tmp_path / "a.encodings")
    assert caught.value.rule == "not-a-tensor"
    blocks = Quantization(np.ones((2, 2), np.float32), np.zeros((2, 2), np.int64), 1, 4)
    found = Encodings({"w": Encoding(QParams("int8", blocks))})
    with pytest.raises(UnsupportedError) as caught:
        save_encodings(found, tmp_path / "b.encodings", aimet_version="0.6.1")
    assert caught.value.rule == "blocks-not-storable"
    for narrow in (
        Quantization(np.float32([1]), np.array([0]), None, 0, -127, 127),
        Quantization(np.float32([1]), np.array([0]), None, 0, -5, 9),
    ):
        with pytest.raises(UnsupportedError) as caught:
            save_encodings(Encodings({"x": Encoding(QParams("int8", narrow))}), tmp_path / "b.encodings")
        assert caught.value.rule == "limits-not-storable" and caught.value.where == "'x'"
    with pytest.raises(UnsupportedError) as caught:
        save_encodings(Encodings({"x": Encoding(QParams("float8e4m3fn", Quantization.per_tensor(1)))}), tmp_path / "b.encodings")
    assert caught.value.rule == "dtype-not-storable" and "float8e4m3fn" in str(caught.value)
    own_places = Quantization(np.arange(1, 17, dtype=np.float32).reshape(2, 2, 2, 2), np.zeros((2, 2, 2, 2), np.int64), 1, 4)
    for version in ("1.0.0", "2.0.0"):
        with pytest.raises(UnsupportedError) as caught:
            save_encodings(Encodings({"w": Encoding(QParams("int8", own_places))}), tmp_path / "b.encodings", aimet_version=version)
        assert caught.value.rule == "blocks-not-storable"
    assert not list(tmp_path.iterdir())
    save_encodings(found, tmp_path / "c.encodings", aimet_version="2.0.0")
    assert load_encodings(tmp_path / "c.encodings")["w"].qparams == QParams("int8", blocks)


def altered(value: Any, rng: np.random.Generator, chance: float) -> Any:
    """A document with some of its values replaced by others that may stand in JSON."""
    if rng.random() < chance:
        odd = [
            None,
            True,
            -1,
            0,
            2,
            33,
            2**40,
            2**70,
            1e-320,
            1e400,
            float("nan"),
            "x",
            "True",
            [],
            [[]],
            {},
            [0.5, "x"],
            -0.5,
            "LPBQ",
            0.1,
        ]
        return odd[rng.integers(len(odd))]
    if isinstance(value, dict):
        return {key: altered(item, rng, chance) for key, item in value.items() if rng.random() > chance / 4}
    if isinstance(value, list):
        kept = [altered(item, rng, chance) for item in value if rng.random() > chance / 4]
        return kept + kept[: int(rng.integers(0, 3))] if rng.random() < chance else kept
    return value


SEEDS = {
    **{version: json.loads(exported(version).read_text()) for version in VERSIONS},
    "lpbq": lpbq(),
    "blocks": one(enc_type="PER_BLOCK", block_size=4),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_files_are_errors_by_name(seed: str, tmp_path: Path) -> None:
    """Whatever values a file has, it is applied or refused."""
    network, path, refused = load(FOLDER / "float.onnx"), tmp_path / "model.encodings", 0
    rng = np.random.default_rng(11)
    for _ in range(80):
        path.write_text(json.dumps(altered(SEEDS[seed], rng, float(rng.choice([0.002, 0.02, 0.1])))))
        try:
            apply(network, load_encodings(path, "aimet"))
        except QConvertError as error:
            assert str(error)
            refused += 1
    assert refused > 20


def test_names_that_the_model_has_not(tmp_path: Path) -> None:
    path = tmp_path / "model.encodings"
    path.write_text(json.dumps(one(name="stem_rleu")))
    with pytest.raises(InvalidModelError) as caught:
        apply(FOLDER / "float.onnx", path)
    assert caught.value.rule == "unknown-tensor" and "stem_rleu" in str(caught.value) and "stem_relu" in str(caught.value)
