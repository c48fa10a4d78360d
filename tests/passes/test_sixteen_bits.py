"""Convolutions of 16-bit data that are decomposed to have the integers of LiteRT's kernels, and what comes back of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from tflite_models import OpSpec, TensorSpec, model, run_litert, single_op

from qconvert import check, convert, diff, load
from qconvert.evaluate import evaluate

pytestmark = pytest.mark.litert

_SAME, _VALID = 0, 1
CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...], tuple[int, ...], int | None]] = {
    "padded": ("CONV_2D", {"padding": _SAME, "strideH": 1, "strideW": 1}, (4, 3, 3, 3), (1, 9, 8, 3), (1, 9, 8, 4), 0),
    "one scale": ("CONV_2D", {"padding": _VALID, "strideH": 2, "strideW": 1}, (4, 3, 3, 3), (2, 9, 8, 3), (2, 4, 6, 4), None),
    "groups": ("CONV_2D", {"padding": _VALID, "strideH": 1, "strideW": 1}, (4, 3, 3, 2), (1, 9, 8, 4), (1, 7, 6, 4), 0),
    "clipped": ("CONV_2D", {"padding": _VALID, "strideH": 1, "strideW": 1, "fusedActivationFunction": 3}, (4, 1, 1, 9), (1, 9, 8, 9),
                (1, 9, 8, 4), 0),
    "depthwise": ("DEPTHWISE_CONV_2D", {"padding": _SAME, "strideH": 1, "strideW": 1, "depthMultiplier": 1}, (1, 3, 3, 5), (1, 9, 8, 5),
                  (1, 9, 8, 5), 3),
}  # fmt: skip


def made(case: str, seed: int, large: bool = False) -> tuple[bytes, np.ndarray]:
    """A model of one convolution, and its input."""
    name, options, kernel, data, result, axis = CASES[case]
    rng = np.random.default_rng(seed)
    weights = rng.integers(-127, 128, kernel).astype(np.int8)
    count = result[-1]
    scales = np.exp(rng.uniform(-7, -5, count if axis is not None else 1)).astype(np.float32)
    x = TensorSpec("x", data, "int16", 0.0003, 0)
    y = TensorSpec("y", result, "int16", float(np.float32(0.0003 * scales.max() * 127 * weights[0].size ** 0.5)), 0)
    quantization: dict[str, Any] = {"scale": scales if axis is not None else float(scales[0]), "zero_point": 0}
    bias = rng.integers(-(10**5), 10**5, count) + (2**40 if large else 0)
    products = scales * np.float32(0.0003)
    inputs = [
        x,
        TensorSpec("w", kernel, "int8", data=weights, axis=axis or 0, **quantization),
        TensorSpec("b", (count,), "int64", products if axis is not None else float(products[0]), 0, data=bias, axis=0),
    ]
    return single_op(name, options, inputs, [y]), rng.integers(-32768, 32768, data).astype(np.int16)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("case", CASES)
def test_every_integer_is_litert_s_and_the_operator_comes_back(case: str, tmp_path: Path) -> None:
    source, result, back = (tmp_path / name for name in ("m.tflite", "m.onnx", "back.tflite"))
    for seed in range(3):
        data, x = made(case, seed)
        source.write_bytes(data)
        report = convert(source, result, force=True)
        assert "decomposed, to round as TFLite's own kernels do: 1 Conv" in str(report.changes)
        (wanted,) = run_litert(data, [x])
        assert len(np.unique(wanted)) > 50
        for optimize in (True, False):
            assert np.array_equal(onnx_models.run(result.read_bytes(), {"x": x}, optimize)[0], wanted)
        graph = load(result)
        (op,) = (op for op in graph.ops if op.kind == "Conv")
        assert op["arithmetic"] == "tflite"
        assert np.array_equal(evaluate(graph, {"x": x})["y"], wanted)
        convert(result, back, force=True)
        assert diff(load(source), load(back)) == []
        assert check(source, result, samples=2).passed


@pytest.mark.onnxruntime
@pytest.mark.parametrize("activation", [0, 3])
@pytest.mark.parametrize("rows", [1, 3000])
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL"])
def test_pairs(name: str, rows: int, activation: int, tmp_path: Path) -> None:
    """A constant of 16 bits, which may be broadcast, comes back too."""
    rng = np.random.default_rng(2)
    source, result, back = (tmp_path / name for name in ("m.tflite", "m.onnx", "back.tflite"))
    for ratio in (0.8, 1.3, 9.0):
        constant = TensorSpec(
            "b", (1, rows, 5), "int16", float(np.float32(0.0003 * ratio)), 0, data=rng.integers(-9999, 9999, (1, rows, 5)).astype("int16")
        )
        inputs = [TensorSpec("a", (1, 3000, 5), "int16", 0.0003, 0), constant]
        y = TensorSpec("y", (1, 3000, 5), "int16", float(np.float32(0.0003 * ratio * (3 if name == "MUL" else 1))), 0)
        options = {"fusedActivationFunction": activation, **({} if name == "MUL" else {"potScaleInt16": False})}
        source.write_bytes(single_op(name, options, inputs, [y]))
        a = rng.integers(-32768, 32768, (1, 3000, 5)).astype(np.int16)
        (wanted,) = run_litert(source.read_bytes(), [a])
        assert len(np.unique(wanted)) > 400
        convert(source, result, force=True)
        for optimize in (True, False):
            assert np.array_equal(onnx_models.run(result.read_bytes(), {"a": a}, optimize)[0], wanted)
        assert np.array_equal(evaluate(load(result), {"a": a})["y"], wanted)
        convert(result, back, force=True)
        assert diff(load(source), load(back)) == []


def test_fast_numerics_and_sums_beyond_the_exact_ones_stay_plain(tmp_path: Path) -> None:
    for large, options in ((False, {"numerics": "fast"}), (True, {})):
        data, _ = made("padded", 0, large)
        (tmp_path / "m.tflite").write_bytes(data)
        convert(tmp_path / "m.tflite", tmp_path / "m.onnx", force=True, **options)  # type: ignore[arg-type]
        assert [op["arithmetic"] for op in load(tmp_path / "m.onnx").ops if op.kind == "Conv"] == [""]


#: What reads a product of 16 bits, y, next to another tensor with its quantization, q; and its results, with quantizations or of plain
#: integers.
READERS: dict[str, tuple[list[OpSpec], list[TensorSpec]]] = {
    "joined": ([OpSpec("CONCATENATION", ["y", "q"], ["z"], {"axis": 1})], [TensorSpec("z", (2, 6), "int16", 0.002, 0)]),
    "stacked": ([OpSpec("PACK", ["y", "q"], ["z"], {"axis": 0, "valuesCount": 2})], [TensorSpec("z", (2, 2, 3), "int16", 0.002, 0)]),
    "chosen": ([OpSpec("SELECT_V2", ["c", "y", "q"], ["z"])], [TensorSpec("z", (2, 3), "int16", 0.002, 0)]),
    "relabelled": ([OpSpec("SELECT_V2", ["c", "y", "x"], ["z"])], [TensorSpec("z", (2, 3), "int16", 0.0003, 0)]),
    "cast": ([OpSpec("CAST", ["y"], ["z"])], [TensorSpec("z", (2, 3), "int32")]),
    "moved and joined": (
        [OpSpec("TRANSPOSE", ["y", "p"], ["t"]), OpSpec("TRANSPOSE", ["q", "p"], ["u"]), OpSpec("MUL", ["t", "u"], ["v"]),
         OpSpec("CONCATENATION", ["v", "u", "t"], ["z"], {"axis": 0})],
        [*(TensorSpec(name, (3, 2), "int16", 0.002, 0) for name in "tuv"), TensorSpec("z", (9, 2), "int16", 0.002, 0)],
    ),
}  # fmt: skip


@pytest.mark.cross_section
@pytest.mark.parametrize("reader", READERS)
def test_quantizations_that_no_node_states_beside_integers(reader: str, tmp_path: Path) -> None:
    """Only the note has the quantizations of y and of its constant, which other products share."""
    ops, tensors = READERS[reader]
    rng = np.random.default_rng(5)
    known = [
        TensorSpec("x", (2, 3), "int16", 0.0003, 0),
        TensorSpec("c", (2, 3), "bool"),
        TensorSpec("k", (1, 3), "int16", 0.0007, 0, data=np.array([[30000, -20000, 9000]], np.int16)),
        TensorSpec("p", (2,), "int32", data=np.array([1, 0], np.int32)),
        TensorSpec("y", (2, 3), "int16", 0.002, 0),
        TensorSpec("q", (2, 3), "int16", 0.002, 0),
    ]
    first = [OpSpec("MUL", ["x", "k"], ["y"]), OpSpec("MUL", ["k", "y"], ["w"]), OpSpec("QUANTIZE", ["w"], ["q"])]
    data = model([*first, *ops], [*known, TensorSpec("w", (2, 3), "int16", 0.01, 0), *tensors], ["x", "c"], ["z", "w"])
    source, result, back = (tmp_path / name for name in ("m.tflite", "m.onnx", "back.tflite"))
    source.write_bytes(data)
    convert(source, result)
    convert(result, back)
    kinds = [sorted(op.kind for op in load(path).ops if op.kind in ("Mul", "Where", "Cast")) for path in (source, back)]
    assert kinds[0] == kinds[1]
    feeds = [rng.integers(-32768, 32768, (2, 3)).astype(np.int16), np.array([[True, False, True], [False, True, False]])]
    wanted = run_litert(data, feeds)
    assert len(np.unique(wanted[0])) > 2
    for got, other in zip(run_litert(back.read_bytes(), feeds), wanted, strict=True):
        assert np.array_equal(got, other)
    assert evaluate(load(result), dict(zip("xc", feeds, strict=True)))["z"].tolist() == wanted[0].tolist()
