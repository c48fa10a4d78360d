"""Outputs side by side: what is compared, and what says too little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qconvert import Graph, Op, Tensor, check, convert, load, save
from qconvert.checking.float_sums import Sum, classify_sums
from qconvert.checking.outputs import compare_output


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_that_are_one_float64_differ(dtype: str) -> None:
    large = np.array([2**53, 7], dtype)
    tensor = Tensor("y", dtype, (2,))
    found = compare_output(tensor, tensor, [(large, large + np.array([1, 0], dtype))])
    assert (found.differs, found.equal, found.largest) == (True, 0.5, 1.0)
    assert not compare_output(tensor, tensor, [(large, large)]).differs


def test_an_output_that_is_empty_in_every_run_says_nothing() -> None:
    nothing = np.zeros((0, 4), np.float32)
    found = compare_output(Tensor("y", "float32", ("n", 4)), Tensor("y", "float32", ("n", 4)), [(nothing, nothing)] * 2)
    assert (found.differs, found.varied) == (False, 0.0)


def test_sums_that_are_no_normal_numbers_may_be_zero() -> None:
    """XNNPACK takes such numbers for zero; onnxruntime does not."""
    tiny = float(np.finfo(np.float32).tiny)
    exact, bound = np.array([tiny / 2, 1.0, -tiny]), np.full(3, 1e-60)
    sums = [Sum("", exact, bound)]
    found = classify_sums(np.float32([0, 1, 0]), exact.astype(np.float32), sums, sums)
    assert found.verdict == "approximate"
    wrong = classify_sums(np.float32([0, 1, 0]), np.float32([tiny / 2, 1, 20 * tiny]), sums, sums)
    assert wrong.verdict == "unexplained"


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_an_output_of_another_shape_is_not_equal(tmp_path: Path) -> None:
    x = Tensor("x", "float32", (2, 3))
    for name, inputs in (("source", ("x",)), ("result", ("x", "x"))):
        y = Tensor("y", "float32", (2 * len(inputs), 3))
        save(Graph("g", {"x": x, "y": y}, (Op("Concat", inputs, ("y",), {"axis": 0}),), ("x",), ("y",)), tmp_path / f"{name}.onnx")
    report = check(tmp_path / "source.onnx", tmp_path / "result.onnx", samples=1)
    assert report.verdict == "not equal"
    assert report.problems[0] == "output 'y' has the shape (4, 3) instead of (2, 3)"
    assert report.outputs[0].differs and report.outputs[0].equal == 0


@pytest.mark.litert
def test_an_output_without_its_axes_of_one_is_of_another_shape(tmp_path: Path) -> None:
    tensors = [Tensor("x", "float32", (2, 3, 4)), Tensor("axes", "int64", (1,), np.array([1]))]
    for name, keeps in (("source", 1), ("result", 0)):
        y = Tensor("y", "float32", (2, 1, 4) if keeps else (2, 4))
        ops = (Op("ReduceMax", ("x", "axes"), ("y",), {"keepdims": keeps}),)
        save(Graph("g", {tensor.name: tensor for tensor in (*tensors, y)}, ops, ("x",), ("y",)), tmp_path / f"{name}.tflite")
    report = check(tmp_path / "source.tflite", tmp_path / "result.tflite", samples=1)
    assert report.problems[0] == "output 'y' has the shape (2, 4) instead of (2, 1, 4)"


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("kind", "other"), [("LessOrEqual", "Less"), ("Greater", "GreaterOrEqual")])
def test_comparisons_that_differ_where_both_sides_are_equal(kind: str, other: str, tmp_path: Path) -> None:
    """Random float inputs are hardly ever equal."""
    tensors = {name: Tensor(name, "bool" if name == "y" else "float32", (2, 3)) for name in "aby"}
    for name, compared in (("source", kind), ("result", other)):
        save(Graph("g", tensors, (Op(compared, ("a", "b"), ("y",)),), ("a", "b"), ("y",)), tmp_path / f"{name}.onnx")
    report = check(tmp_path / "source.onnx", tmp_path / "result.onnx", samples=1)
    assert report.verdict == "not equal"
    assert check(tmp_path / "source.onnx", tmp_path / "source.onnx", samples=1).passed


@pytest.mark.litert
@pytest.mark.onnxruntime
def test_an_altered_result_without_names_of_the_source_is_not_equal(tmp_path: Path) -> None:
    """It was refused as an error of the user's, who did not ask for a comparison of operators."""
    tensors = {name: Tensor(name, "float32", (2, 3)) for name in "xy"}
    save(Graph("g", tensors, (Op("Abs", ("x",), ("y",)),), ("x",), ("y",)), tmp_path / "source.tflite")
    convert(tmp_path / "source.tflite", tmp_path / "result.onnx")
    model = onnx.load(tmp_path / "result.onnx")
    (node,) = model.graph.node
    node.op_type, node.output[0], model.graph.output[0].name = "Neg", "z", "z"
    onnx.save(model, tmp_path / "result.onnx")
    assert check(tmp_path / "source.tflite", tmp_path / "result.onnx", samples=1).verdict == "not equal"


@pytest.mark.parametrize(("source", "result", "exact"), [(np.nan, 1.0, 1.0), (1.0, np.nan, 1.0), (np.nan, 1.0, np.nan)])
def test_no_bound_explains_nan_beside_a_number(source: float, result: float, exact: float) -> None:
    means = [Sum("", np.array([exact]), np.array([np.inf]))]
    assert classify_sums(np.array([source], np.float32), np.array([result], np.float32), means, means).verdict == "unexplained"


def _transposed(perm: tuple[int, ...], shape: tuple[int, ...], names: tuple[str, str] = ("x", "y")) -> Graph:
    """A Relu of data (1, 4, 2, 6), and a Transpose."""
    x, a, y = (Tensor(name, "float32", sizes) for name, sizes in ((names[0], (1, 4, 2, 6)), ("a", (1, 4, 2, 6)), (names[1], shape)))
    ops = Op("Relu", (x.name,), ("a",)), Op("Transpose", ("a",), (y.name,), {"perm": perm})
    return Graph("g", {item.name: item for item in (x, a, y)}, ops, (x.name,), (y.name,))


@pytest.mark.litert
@pytest.mark.onnxruntime
def test_another_order_of_axes_is_named_and_no_result_of_the_conversion(tmp_path: Path) -> None:
    source, result = tmp_path / "source.onnx", tmp_path / "result.tflite"
    save(_transposed((0, 2, 3, 1), (1, 2, 6, 4)), source)
    convert(source, result)
    made = load(result)
    report = check(source, result, samples=1)
    assert (report.verdict, report.notes) == ("passed", ())
    note = "output 'y' has the source's axes in the order 0,2,3,1, in which it is compared"
    other = _transposed((0, 3, 1, 2), (1, 6, 4, 2), ("renamed_x", "renamed_y"))
    save(other, result, force=True)
    report = check(source, result, samples=2)
    assert report.notes == (note,) and report.outputs[0].equal == 1  # whoever made it does not say the layout
    save(other.evolve(metadata=made.metadata), result, force=True)
    report = check(source, result, samples=1)
    words = "the axes of 'renamed_y' are in another order: (1, 6, 4, 2) instead of (1, 2, 6, 4)"
    assert report.problems == (f"differs from what the conversion makes: {words}",)
    assert report.notes == (note,)


@pytest.mark.litert
@pytest.mark.onnxruntime
@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_an_output_is_turned_to_the_layout_of_the_result_alone(tmp_path: Path, suffix: str) -> None:
    """Another perm of the last Transpose passed, if its shape was that of the source's channels first: also in files of one format."""
    source, result = tmp_path / f"source.{suffix}", tmp_path / "result.tflite"
    save(_transposed((0, 2, 3, 1), (1, 2, 6, 4)), source)
    save(_transposed((0, 1, 2, 3), (1, 4, 2, 6)), result)
    assert "output 'y' has the shape (1, 4, 2, 6) instead of (1, 2, 6, 4)" in check(source, result, samples=2).problems


@pytest.mark.litert
def test_an_input_with_axes_in_another_order_is_named(tmp_path: Path) -> None:
    """LiteRT gave the result's input the source's shape, and all outputs were equal."""
    for name, shape in (("source", (1, 4, 2, 6)), ("result", (1, 6, 4, 2))):
        tensors = {item: Tensor(item, "float32", shape) for item in "xy"}
        save(Graph("g", tensors, (Op("Relu", ("x",), ("y",)),), ("x",), ("y",)), tmp_path / f"{name}.tflite")
    words = "the axes of the input 'x' are in another order: (1, 6, 4, 2) instead of (1, 4, 2, 6)"
    assert check(tmp_path / "source.tflite", tmp_path / "result.tflite").problems == (words,)


@pytest.mark.litert
@pytest.mark.onnxruntime
def test_data_of_equal_sizes_are_channels_last_where_the_conversion_says_so(tmp_path: Path) -> None:
    """They were fed as channels first, to whatever a conversion had transposed."""
    pool = {"kernel_shape": (2, 1), "strides": (1, 1), "pads": (0, 0, 1, 0), "dilations": (1, 1), "data_format": "channels_first"}
    tensors = {name: Tensor(name, "float32", (1, 4, 4, 4)) for name in "xy"}
    save(Graph("g", tensors, (Op("MaxPool", ("x",), ("y",), pool),), ("x",), ("y",)), tmp_path / "source.onnx")
    convert(tmp_path / "source.onnx", tmp_path / "result.tflite", io_layout="nhwc")
    for before, after, order in (("source.onnx", "result.tflite", "0,2,3,1"), ("result.tflite", "source.onnx", "0,3,1,2")):
        report = check(tmp_path / before, tmp_path / after, samples=1)
        assert report.passed and report.outputs[0].equal == 1, report.problems
        assert f"output 'y' has the source's axes in the order {order}, in which it is compared" in report.notes
