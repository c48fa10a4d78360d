"""Inputs, outputs and constants by the target tensorrt: TensorRT-RTX builds what it takes, and refuses what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from refusals import refused

from qconvert import audit, check, convert, load
from qconvert.errors import UnsupportedError
from qconvert.graph.metadata import COMMAND
from qconvert.runtimes.tensorrt import Builder
from qconvert.targets.tensorrt import bounds

pytest.importorskip("tensorrt_rtx_bindings")

TYPES = (
    "FLOAT16",
    "DOUBLE",
    "INT8",
    "UINT8",
    "INT16",
    "UINT16",
    "INT32",
    "UINT32",
    "INT64",
    "STRING",
    "COMPLEX64",
    "FLOAT8E4M3FN",
    "UINT4",
)
#: Next to a Relu: an input that nobody reads, one that is an output, by itself and through an Identity, and an output that is a constant.
PLACES = ("unread", "output", "passed", "constant")


def network(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Any] | None = None, more: Any = ()) -> Any:
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [*values, *more])
    return onnx.shape_inference.infer_shapes(model_of(graph, 21))


def side(name: str, dtype: str = "FLOAT", shape: tuple[int | str, ...] = (2, 3)) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.DataType.Value(dtype), shape)


def edges(place: str, dtype: str) -> Any:
    nodes, inputs, outputs = [helper.make_node("Relu", ["x"], ["y"])], [side("x")], [side("y")]
    if place == "constant":
        data = [b"a", b"b"] if dtype == "STRING" else [1, 0]
        constant = helper.make_tensor("u", TensorProto.DataType.Value(dtype), [2], data)
        return network(nodes, inputs, [*outputs, side("u", dtype, (2,))], more=[constant])
    more = [helper.make_node("Identity", ["u"], ["v"])] if place == "passed" else []
    given = {"unread": [], "output": [side("u", dtype)], "passed": [side("v", dtype)]}[place]
    return network([*nodes, *more], [*inputs, side("u", dtype)], [*outputs, *given])


@pytest.mark.tensorrt
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("place", PLACES)
def test_types_at_the_edges_are_taken_as_the_builder_takes_them(place: str, dtype: str, tmp_path: Path, builder: Builder) -> None:
    source, result = tmp_path / "model.onnx", tmp_path / "result.onnx"
    model = edges(place, dtype)
    onnx.save(model, source)
    taken = builder.build(model.SerializeToString()).built
    if taken:
        convert(source, result, target="tensorrt")
        assert builder.build(result).built
        return
    with refused(UnsupportedError, "target-rules", holds=("'u' is", dtype.lower())) as error:
        convert(source, result, target="tensorrt")
    assert error.value.remedy and not result.exists()


CONSTANT = np.array([1, 2, 3], np.int8)


@pytest.mark.tensorrt
@pytest.mark.parametrize("kind", ["Add", "Equal", "Max", "Concat", "Gather"])
def test_constants_of_int8_that_nobody_dequantizes_are_refused(kind: str, tmp_path: Path, builder: Builder) -> None:
    inputs = ["c", "i"] if kind == "Gather" else ["x", "c"]
    given = [side("i", "INT64", (2,))] if kind == "Gather" else [side("x", "INT8", (3,))]
    attributes = {"axis": 0} if kind == "Concat" else {}
    result = "BOOL" if kind == "Equal" else "INT8"
    model = network([helper.make_node(kind, inputs, ["y"], **attributes)], given, [side("y", result, ("n",))], {"c": CONSTANT})
    assert not builder.build(model.SerializeToString()).built
    onnx.save(model, tmp_path / "model.onnx")
    with refused(UnsupportedError, "target-rules", holds=("'c'", "int8")):
        convert(tmp_path / "model.onnx", tmp_path / "result.onnx", target="tensorrt")


@pytest.mark.tensorrt
def test_what_is_computed_of_constants_is_computed_before(tmp_path: Path, builder: Builder) -> None:
    """A Cast of an int8 constant, which the builder refuses."""
    nodes = [helper.make_node("Cast", ["c"], ["k"], to=TensorProto.FLOAT), helper.make_node("Add", ["x", "k"], ["y"])]
    model = network(nodes, [side("x")], [side("y")], {"c": CONSTANT})
    assert not builder.build(model.SerializeToString()).built
    onnx.save(model, tmp_path / "model.onnx")
    convert(tmp_path / "model.onnx", tmp_path / "result.onnx", target="tensorrt")
    assert builder.build(tmp_path / "result.onnx").built


@pytest.mark.tensorrt
@pytest.mark.parametrize("read", [True, False])
def test_open_sizes_of_an_input_that_is_an_output(read: bool, tmp_path: Path, builder: Builder) -> None:
    """TensorRT's parser calls such an input otherwise, by which bounds have to call it too."""
    nodes = [helper.make_node("Relu", ["u"], ["y"])] if read else [helper.make_node("Relu", ["x"], ["y"])]
    inputs = [side("u", shape=("n", 3))] if read else [side("x"), side("u", shape=("n", 3))]
    path = tmp_path / "model.onnx"
    onnx.save(network(nodes, inputs, [side("y", shape=("n" if read else 2, 3)), side("u", shape=("n", 3))]), path)
    convert(path, tmp_path / "result.onnx", target="tensorrt")
    assert builder.build(tmp_path / "result.onnx", bounds=bounds(load(path))).built
    (command,) = (item.value for item in onnx.load(tmp_path / "result.onnx").metadata_props if item.key == COMMAND)
    assert "--minShapes=__u:1x3" in command


def pairs(*names: str) -> list[Any]:
    """Nodes that round to the quantization of step s; the result of the first is called q."""
    nodes = []
    for name in names:
        nodes += [helper.make_node("QuantizeLinear", [name, "s", "z"], [f"{name}_q"]),
                  helper.make_node("DequantizeLinear", [f"{name}_q", "s", "z"], [f"{name}_r"])]  # fmt: skip
    return nodes


GRID = {"s": np.float32(0.05), "z": np.int8(0)}


@pytest.mark.tensorrt
@pytest.mark.parametrize(("channels", "length", "weights", "kind"), [
    (4, 6, "int8", "Add"), (4, 6, "real", "Sub"), (1, 6, "int8", "Sub"), (1, 1, "real", "Add")
])  # fmt: skip
def test_a_number_behind_a_convolution_over_one_dimension(
    channels: int, length: int, weights: str, kind: str, tmp_path: Path, builder: Builder
) -> None:
    """The builder takes it for a bias and fails; as a vector it is taken. Of one value there is no vector."""
    taps = np.random.default_rng(0).integers(-9, 9, (channels, 4, 1))
    conv = [helper.make_node("Conv", ["x", "w"], ["v"])]
    constants: dict[str, Any] = {"w": taps.astype(np.float32), "c": np.float32(3)}
    if weights == "int8":
        conv = [*pairs("x"), helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wr"]), helper.make_node("Conv", ["x_r", "wr"], ["v"])]
        constants = {"w": taps.astype(np.int8), "c": np.float32(3), **GRID}
    nodes = [*conv, helper.make_node(kind, ["v", "c"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    model = network(nodes, [side("x", shape=(1, 4, length))], [side("y", shape=(1, channels, length))], constants)
    source, result = tmp_path / "model.onnx", tmp_path / "result.onnx"
    onnx.save(model, source)
    failed = builder.build(model.SerializeToString())
    assert failed.parsed and not failed.built and "nbdims_bias" in failed.errors[0].text
    if channels == length == 1:
        with refused(UnsupportedError, "target-rules", holds=("'c'",)):
            convert(source, result, target="tensorrt-rtx")
        return
    convert(source, result, target="tensorrt-rtx")
    found = builder.build(result)
    assert found.built and [layer.integer for layer in found.layers if layer.sums] == [weights == "int8"]


@pytest.mark.tensorrt
@pytest.mark.parametrize("kind", ["Max", "GlobalMaxPool", "Corr"])
def test_kernels_that_are_generated_are_predicted(kind: str, tmp_path: Path) -> None:
    """What chooses is done next to the roundings; a convolution over one dimension without a bias has a generated kernel on integers."""
    shape = (1, 4, 6)
    if kind == "Corr":
        taps = {"w": np.ones((4, 4, 1), np.int8)}
        nodes = [*pairs("x"), helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wr"]), helper.make_node("Conv", ["x_r", "wr"], ["y"])]
        model = network(nodes, [side("x", shape=shape)], [side("y", shape=shape)], {**taps, **GRID})
    else:
        inputs = ["x_r", "x_r"] if kind != "GlobalMaxPool" else ["x_r"]
        nodes = [*pairs("x"), helper.make_node(kind, inputs, ["m"]), *pairs("m")]
        model = network(nodes, [side("x", shape=shape)], [side("m_r", shape=(1, 4, "n"))], GRID)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    report = audit(path, "tensorrt-rtx", build=True)
    assert report.otherwise == () and {op.kind for op in report.operators} >= {"Conv" if kind == "Corr" else kind}
    assert [layer.integer for layer in report.layers if "Conv" in layer.operators] == [True] * (kind == "Corr")


@pytest.mark.formats
def test_weights_that_no_integer_kernel_takes_are_not_rounded(tmp_path: Path) -> None:
    """Those of a transposed convolution, unsigned with a zero point at the end: no int8 with this scale holds them."""
    taps = np.random.default_rng(0).integers(0, 256, (4, 3, 2, 2)).astype(np.uint8)
    nodes = [*pairs("x"), helper.make_node("DequantizeLinear", ["w", "s", "e"], ["wr"]),
             helper.make_node("ConvTranspose", ["x_r", "wr"], ["y"]), *pairs("y")]  # fmt: skip
    model = network(nodes, [side("x", shape=(1, 4, 5, 5))], [side("y_r", shape=(1, 3, 6, 6))], {"w": taps, "e": np.uint8(255), **GRID})
    onnx.save(model, tmp_path / "model.onnx")
    convert(tmp_path / "model.onnx", tmp_path / "result.onnx", target="tensorrt")
    (weights,) = (tensor for tensor in load(tmp_path / "result.onnx").constants() if tensor.shape == (3, 4, 2, 2))
    assert weights.data is not None
    real = (taps.astype(np.float64) - 255) * np.float64(np.float32(0.05))
    np.testing.assert_allclose(weights.data, real.transpose(1, 0, 2, 3)[..., ::1, ::1], rtol=1e-6)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_outputs_that_the_network_reads_too_are_judged_with_their_ties(dtype: str, tmp_path: Path) -> None:
    """A rounding of x.5 that goes the other way there, since it is shifted, is three steps of the finer quantization after."""
    point = np.dtype(dtype).type(3 if dtype == "int8" else 131)
    constants = {
        "s": np.float32(1 / 16),
        "z": point,
        "t": np.float32(0.0234375),
        "o": np.int8(0),
        "low": np.float32(-2),
        "high": np.float32(2),
    }
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["a"]), helper.make_node("DequantizeLinear", ["a", "s", "z"], ["b"]),
             helper.make_node("Clip", ["b", "low", "high"], ["c"]), helper.make_node("QuantizeLinear", ["c", "t", "o"], ["d"]),
             helper.make_node("DequantizeLinear", ["d", "t", "o"], ["y"])]  # fmt: skip
    model = network(nodes, [side("x", shape=(40,))], [side("a", dtype.upper(), (40,)), side("y", shape=(40,))], constants)
    source, result = tmp_path / "model.onnx", tmp_path / "result.onnx"
    onnx.save(model, source)
    convert(source, result, target="tensorrt")
    np.save(tmp_path / "x.npy", (np.arange(-20, 20, dtype=np.float32) + 0.5) / 16)  # ties all
    report = check(source, result, data=[tmp_path / "x.npy"], per_op=True, min_sqnr=20)  # each value is a tie: 21.2 dB
    assert report.passed, report.problems
    assert {op.verdict for op in report.operators} != {"equal"}


@pytest.mark.formats
def test_a_requantization_between_shifted_quantizations_is_one_again(tmp_path: Path) -> None:
    """Where the first quantization has the zero point 0 as well: an addition to stored integers stands in the file."""
    for first, second in ((0, -20), (-20, 0), (-20, 7)):
        constants = {"s": np.float32(0.05), "z": np.int8(first), "t": np.float32(0.03), "o": np.int8(second)}
        steps = (("Quantize", "x", "sz", "a"), ("Dequantize", "a", "sz", "b"), ("Quantize", "b", "to", "c"), ("Dequantize", "c", "to", "y"))
        nodes = [helper.make_node(f"{kind}Linear", [data, *quantization], [result]) for kind, data, quantization, result in steps]
        onnx.save(network(nodes, [side("x")], [side("y")], constants), tmp_path / "model.onnx")
        convert(tmp_path / "model.onnx", tmp_path / "result.onnx", target="tensorrt", force=True)
        kinds = [[op.kind for op in load(tmp_path / name).ops if op.kind != "Identity"] for name in ("model.onnx", "result.onnx")]
        assert kinds[0] == kinds[1] == ["Quantize", "Requantize", "Dequantize"]


@pytest.mark.tensorrt
@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("dtype", ["FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("point", [0, 3])
def test_products_of_sixteen_bits_beside_zero_points_run_on_integers(dtype: str, point: int, tmp_path: Path, builder: Builder) -> None:
    """After shifts in float32; without zero points they stay in 16 bits, and are on integers as well."""
    real = TensorProto.DataType.Value(dtype)
    taps = np.random.default_rng(0).integers(-50, 50, (4, 4, 3, 3)).astype(np.int8)
    constants = {"z": np.int8(point), "o": np.zeros(4, np.int8), "w": taps}
    more = [
        helper.make_tensor("s", real, [], [0.05]),
        helper.make_tensor("t", real, [4], [0.01] * 4),
        helper.make_tensor("b", real, [4], [0.25] * 4),
    ]
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), helper.make_node("DequantizeLinear", ["q", "s", "z"], ["r"]),
             helper.make_node("DequantizeLinear", ["w", "t", "o"], ["wr"], axis=0),
             helper.make_node("Conv", ["r", "wr", "b"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["y"])]  # fmt: skip
    model = network(nodes, [side("x", dtype, (1, 4, 6, 6))], [side("y", dtype, (1, 4, 6, 6))], constants, more)
    model.opset_import[0].version = 22
    source, result = tmp_path / "model.onnx", tmp_path / "result.onnx"
    onnx.save(model, source)
    report = convert(source, result, target="tensorrt")
    assert any("are float32" in str(change) for change in report.changes) is bool(point)
    found = builder.build(result)
    assert [layer.integer for layer in found.layers if layer.sums] == [True]
    if dtype == "FLOAT16":
        assert check(source, result).passed


@pytest.mark.tensorrt
def test_pools_over_three_dimensions_are_real(tmp_path: Path, builder: Builder) -> None:
    """TensorRT has none of int8."""
    pool = helper.make_node("MaxPool", ["x_r"], ["m"], kernel_shape=[2, 2, 2])
    model = network([*pairs("x"), pool, *pairs("m")], [side("x", shape=(1, 2, 4, 4, 4))], [side("m_r", shape=(1, 2, 3, 3, 3))], GRID)
    onnx.save(model, tmp_path / "model.onnx")
    report = convert(tmp_path / "model.onnx", tmp_path / "result.onnx", target="tensorrt")
    assert any("1 MaxPool" in str(change) and "3-D pools" in str(change) for change in report.changes)
    assert builder.build(tmp_path / "result.onnx").built
