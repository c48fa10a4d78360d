"""Kernels of the source that overflow: said as such where their results are known to the last bit, and only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_models
import onnxruntime
import pytest
from loaded import onnx_graph, tflite_graph
from onnx import numpy_helper
from onnx_nodes import model_of
from tflite_models import OpSpec, TensorSpec, model, run_litert, single_op

from qconvert import check, convert
from qconvert.arithmetic import onnxruntime_softmax, tflite_wrapped_mean
from qconvert.checking.expected_values import Overflowed
from qconvert.graph import Quantization
from qconvert.kernels import KERNELS

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

MASKED = 1e9 / 32767
#: Whether the installed onnxruntime has the QLinearSoftmax of 1.32.
ROUNDS_ONCE = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 32)


def softmax(scale: float) -> bytes:
    """A SOFTMAX of int16 scores whose scale is that of a mask of -1e9."""
    specs = TensorSpec("x", (4, 12), "int16", scale, 0), TensorSpec("y", (4, 12), "int16", 1 / 32768, 0)
    return single_op("SOFTMAX", {"beta": 1.0}, specs[:1], specs[1:])


def capped(scale: float) -> bytes:
    """MINIMUM of data that are brought to a scale thousands of times finer, and others."""
    tensors = [
        TensorSpec("x", (3, 5), "int16", scale, 0),
        TensorSpec("z", (3, 5), "int16", 4e-5, 0),
        TensorSpec("own", (3, 5), "int16", 4e-5, 0),
        TensorSpec("y", (3, 5), "int16", 4e-5, 0),
    ]
    ops = [OpSpec("QUANTIZE", ["x"], ["own"]), OpSpec("MINIMUM", ["own", "z"], ["y"], {})]
    return model(ops, tensors, ["x", "z"], ["y"])


def logarithm(scale: float) -> bytes:
    """LOG of int16 from 0 on: the first points of its table are the smallest result, and the logarithm of a large scale."""
    quantizations = (("x", scale), ("a", scale), ("y", 3.6e-4))
    tensors = [TensorSpec(name, (1, 3000), "int16", step, 0) for name, step in quantizations]
    return model([OpSpec("ABS", ["x"], ["a"]), OpSpec("LOG", ["a"], ["y"])], tensors, ["x"], ["y"])


@pytest.mark.parametrize(
    ("made", "place"),
    [(lambda: softmax(MASKED), "SOFTMAX #0"), (lambda: capped(305.0), "QUANTIZE #0"), (lambda: logarithm(3.8), "LOG #1")],
)
def test_an_overflow_is_named_and_passes(made: Callable[[], bytes], place: str, tmp_path: Path) -> None:
    source, result = tmp_path / "m.tflite", tmp_path / "m.onnx"
    source.write_bytes(made())
    convert(source, result)
    report = check(source, result)
    assert report.passed, report.problems
    (found,) = (item for item in report.operators if item.verdict == "source overflows")
    assert found.largest > 1000
    assert found.reason == f"LiteRT's own kernel overflows in {place}"
    assert any(place in note for note in report.notes)


@pytest.mark.parametrize("scale", [0.3, 1.5, 7.5, 2.0**15, 1e6, 1.33e36])
@pytest.mark.parametrize("name", ["EQUAL", "LESS", "GREATER_EQUAL", "DIV"])
def test_what_c_does_not_define_is_not_imitated(name: str, scale: float, tmp_path: Path) -> None:
    """Comparisons of bytes at scales from 1 on, quotients far below a step: the result is what the operator means, and the check says why
    the source has something else."""
    source, result, divides = tmp_path / "m.tflite", tmp_path / "m.onnx", name == "DIV"
    quantizations = (float(np.float32(scale)), -3), (float(np.float32(scale * 0.8637)), -128 if divides else 5)
    specs = [TensorSpec(tensor, (1, 60), "int8", *quantization) for tensor, quantization in zip("ab", quantizations, strict=True)]
    output = TensorSpec("y", (1, 60), "int8", 2.0**14, 0) if divides else TensorSpec("y", (1, 60), "bool")
    source.write_bytes(single_op(name, {}, specs, [output]))
    convert(source, result)
    report = check(source, result, samples=2, per_op=True)
    assert report.passed, report.problems
    assert any(item.verdict == "source overflows" for item in report.operators) == (scale >= 1 or divides)


@pytest.mark.parametrize("kernels", ["default", "reference"])
@pytest.mark.parametrize("scale", [174_000.0, 174_763.0, 1e6, 1.33e36])
@pytest.mark.parametrize("name", ["LOGISTIC", "TANH"])
def test_curves_of_scales_whose_multiplier_c_does_not_define(name: str, scale: float, kernels: str, tmp_path: Path) -> None:
    """All integers: LiteRT's default kernels are gemmlowp's then; the reference ones multiply by the smallest int32."""
    every = np.arange(-(2**15), 2**15).astype(np.int16).reshape(1, -1)
    specs = TensorSpec("x", every.shape, "int16", scale, 0), TensorSpec("y", every.shape, "int16", 2.0**-15, 0)
    data = single_op(name, None, specs[:1], specs[1:])
    graph = tflite_graph(data)
    found = KERNELS[f"litert:{kernels}"].integers(graph, graph.ops[0], [every])
    forms = found.ways if found is not None and found.fault else None
    assert forms is not None
    assert np.array_equal(forms[0], run_litert(data, [every], kernels)[0])
    source, result = tmp_path / "m.tflite", tmp_path / "m.onnx"
    source.write_bytes(data)
    convert(source, result)
    report = check(source, result, kernels=f"litert:{kernels}", samples=1)
    assert report.passed, report.problems
    assert {item.verdict for item in report.operators} == {"source overflows"}


def test_of_two_forms_each_element_is_one_and_no_other() -> None:
    forms = np.array([1, 1, 1, 5]), np.array([1, 2, 2, 5])
    found = Overflowed(forms, np.zeros(4), {}, (), "overflows")
    assert found.can_give(np.array([1, 2, 1, 5])) and found.can_give(forms[0])
    assert not found.can_give(np.array([1, 2, 1, 4])) and not found.can_give(np.array([1, 2, 1]))


@pytest.mark.parametrize("made", [lambda: softmax(0.001), lambda: capped(1e-4)])
def test_what_does_not_overflow_is_not_named_so(made: Callable[[], bytes], tmp_path: Path) -> None:
    source, result = tmp_path / "m.tflite", tmp_path / "m.onnx"
    source.write_bytes(made())
    convert(source, result)
    report = check(source, result, per_op=True)
    assert report.passed and not any(item.verdict == "source overflows" for item in report.operators)


def doubled(proto: Any) -> None:
    """The first real constant of a result, a scale, twice as large."""
    item = next(item for item in proto.graph.initializer if numpy_helper.to_array(item).dtype == np.float32)
    item.CopyFrom(numpy_helper.from_array((numpy_helper.to_array(item) * 2).astype(np.float32), item.name))


def other_operator(proto: Any) -> None:
    node = next(node for node in proto.graph.node if node.op_type in ("Softmax", "Min", "Log"))
    node.op_type = {"Softmax": "LogSoftmax", "Min": "Max", "Log": "Sqrt"}[node.op_type]


@pytest.mark.parametrize("fault", [doubled, other_operator])
@pytest.mark.parametrize("made", [lambda: softmax(MASKED), lambda: capped(305.0), lambda: logarithm(3.8)])
def test_a_fault_behind_an_overflow_is_found(made: Callable[[], bytes], fault: Callable[[Any], None], tmp_path: Path) -> None:
    source, result = tmp_path / "m.tflite", tmp_path / "m.onnx"
    source.write_bytes(made())
    convert(source, result)
    proto = onnx.load(result)
    fault(proto)
    del proto.metadata_props[:]  # the conversion is not made again: the operators alone show it
    onnx.save(proto, result)
    assert not check(source, result).passed


def shares(shape: tuple[int, ...], dtype: str, scale: float, axis: int = -1) -> bytes:
    """A Softmax between Q and DQ, which onnxruntime fuses to QLinearSoftmax."""
    point = np.iinfo(dtype).min
    of = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["x", "s", "p"], ["a"]),
        onnx.helper.make_node("Softmax", ["a"], ["b"], axis=axis),
        onnx.helper.make_node("QuantizeLinear", ["b", "t", "z"], ["y"]),
    ]
    constants = {"s": np.float32(0.1), "p": np.array(3, dtype), "t": np.float32(scale), "z": np.array(point, dtype)}
    edges = [onnx.helper.make_tensor_value_info(name, of, shape) for name in "xy"]
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = onnx.helper.make_graph(nodes, "g", edges[:1], edges[1:], held)
    return bytes(model_of(graph).SerializeToString())


@pytest.mark.parametrize("scale", [1 / 255, 1 / 256, 1 / 100, 0.00039])
@pytest.mark.parametrize(("shape", "axis"), [((40, 1), -1), ((1, 40), 0), ((3, 5), -1), ((2, 64), -1)])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_softmax_of_onnxruntime_to_the_last_bit(dtype: str, shape: tuple[int, ...], axis: int, scale: float) -> None:
    x = np.random.default_rng(5).integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
    (wanted,) = onnx_models.run(shares(shape, dtype, scale, axis), {"x": x}, optimize=True)
    found, overflows = onnxruntime_softmax(x, float(np.float32(0.1)), Quantization.per_tensor(scale, np.iinfo(dtype).min), dtype, axis)
    assert np.array_equal(found[ROUNDS_ONCE], wanted)
    assert overflows == ((shape[axis] == 1 and scale < 1 / 148) or (scale < 0.001 and shape == (3, 5)))


@pytest.mark.parametrize(("inverse", "before", "since"), [(43, 21, 22), (81, 41, 40), (173, 87, 86), (240, 119, 120)])
def test_ties_of_onnxruntimes_softmax(inverse: int, before: int, since: int) -> None:
    """Two equal elements."""
    x = np.full((1, 2), 9, np.uint8)
    (wanted,) = onnx_models.run(shares((1, 2), "uint8", 1 / inverse), {"x": x}, optimize=True)
    found, overflows = onnxruntime_softmax(x, float(np.float32(0.1)), Quantization.per_tensor(1 / inverse, 0), "uint8", -1)
    assert [way[0, 0] for way in found] == [before, since] and not overflows
    assert np.array_equal(found[ROUNDS_ONCE], wanted)
    graph = onnx_graph(shares((1, 2), "uint8", 1 / inverse))
    known = KERNELS["onnxruntime:optimized"].integers(graph, graph.ops[0], [x])
    assert known is not None and any(np.array_equal(way, wanted) for way in known.ways)


@pytest.mark.parametrize("suffix", [".tflite", ".onnx"])
def test_a_softmax_of_one_element_is_the_source_s_overflow(suffix: str, tmp_path: Path) -> None:
    """onnxruntime fuses it for uint8 alone. Since 1.32 it gives 254, the whole part of 1 / scale."""
    dtype = "uint8"
    source, result = tmp_path / "m.onnx", tmp_path / f"result{suffix}"
    source.write_bytes(shares((40, 1), dtype, 1 / 255))
    convert(source, result, form="qoperator") if suffix == ".onnx" else convert(source, result)
    report = check(source, result, per_op=True)
    assert report.passed, report.problems
    reason = "coarse arithmetic of onnxruntime's kernel" if ROUNDS_ONCE else "onnxruntime's own kernel overflows in Softmax"
    assert [item.reason for item in report.operators] == [reason]
    wrong = onnx.load_from_string(shares((40, 1), dtype, 1 / 255))
    wrong.graph.node[1].op_type = "Sigmoid"
    del wrong.graph.node[1].attribute[:]
    (tmp_path / "wrong.onnx").write_bytes(wrong.SerializeToString())
    assert not check(source, tmp_path / "wrong.onnx", per_op=True).passed


def test_a_mean_on_a_scale_that_calibration_saw_as_zero(tmp_path: Path) -> None:
    """MEAN of int16 whose result has a scale millions of times finer than its data: LiteRT's 32 bits overflow, and what onnxruntime's sums
    in float32 lose is many steps of that scale."""
    rng = np.random.default_rng(0)
    source, result = tmp_path / "m.tflite", tmp_path / "m.onnx"
    specs = TensorSpec("x", (16, 8, 4), "int16", 9.5864234e-05, 0), TensorSpec("y", (16, 8, 1), "int16", 3.63809e-12, 0)
    axes = TensorSpec("axes", (1,), "int32", data=np.array([2], np.int32))
    source.write_bytes(single_op("MEAN", {"keepDims": True}, [specs[0], axes], specs[1:]))
    convert(source, result)
    values = rng.integers(-(2**15), 2**15, (16, 8, 4)).astype(np.int16)
    values[::2, :, 3] = np.clip(-values[::2, :, :3].astype(np.int64).sum(-1), -(2**15), 2**15 - 1)  # means of 0, and near it
    np.savez(tmp_path / "x.npz", x=values)
    report = check(source, result, data=[tmp_path / "x.npz"])
    assert report.passed, report.problems
    assert report.operators[0].verdict == "source overflows" and report.operators[0].equal < 0.9
    quantizations = [Quantization.per_tensor(spec.scale, 0) for spec in specs]
    total = values.astype(np.int64).sum(-1, keepdims=True)
    found, overflown = tflite_wrapped_mean(total, values.size // total.size, *quantizations, "int16")
    assert overflown and np.array_equal(found, run_litert(source.read_bytes(), [values])[0])


@pytest.mark.cross_section
def test_no_logarithm_is_written_whose_table_overflows(tmp_path: Path) -> None:
    """From ONNX to TFLite LOG runs in float then; at a finer scale its 16-bit kernel is used."""
    for scale, dtype in ((3.8, "float32"), (1e-3, "int16")):
        source, middle, result = tmp_path / "m.tflite", tmp_path / "m.onnx", tmp_path / "again.tflite"
        source.write_bytes(logarithm(scale))
        convert(source, middle, force=True)
        convert(middle, result, force=True)
        graph = tflite_graph(result.read_bytes())
        (op,) = (op for op in graph.ops if op.kind == "Log")
        assert graph[op.inputs[0]].dtype == dtype
        if dtype == "float32":
            report = check(middle, result)
            assert report.passed, report.problems
