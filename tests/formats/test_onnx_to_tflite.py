"""Operators of ONNX that become several of TFLite: run in onnxruntime and in LiteRT, on inputs that meet every branch of them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_nodes import model_of
from refusals import refused

from qconvert import check, convert
from qconvert.errors import UnsupportedError
from qconvert.runtimes.litert import LiteRT

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

SIZES = {"images": ((2, 3, 4, 5), (2, 6, 4, 2)), "row": ((1, 1, 1, 7), (1, 20, 4, 2)), "volume": ((1, 2, 3, 4, 5), (1, 3, 4, 6, 3))}


def both(tmp_path: Path, op_type: str, feeds: dict[str, Any], constants: dict[str, Any], outputs: int = 1, opset: int = 20,
         **attributes: Any) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """The results of one node in onnxruntime and, as TFLite, in LiteRT."""
    import onnxruntime

    names = [*feeds, *constants]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in feeds.items()
    ]
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items() if value is not None]
    node = helper.make_node(
        op_type, [name if constants.get(name, 0) is not None else "" for name in names], [f"y{i}" for i in range(outputs)], **attributes
    )
    results = [helper.make_value_info(f"y{i}", helper.make_tensor_type_proto(1, None)) for i in range(outputs)]
    graph = helper.make_graph([node], "g", inputs, results, held)
    model = model_of(graph, opset)
    from onnx import TypeProto, shape_inference

    for value in model.graph.output:
        value.type.CopyFrom(TypeProto())
    for value, found in zip(model.graph.output, shape_inference.infer_shapes(model).graph.output, strict=True):
        value.type.CopyFrom(found.type)
    source, result = tmp_path / "a.onnx", tmp_path / "b.tflite"
    source.write_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    wanted = list(session.run(None, feeds))
    convert(source, result, force=True)
    return wanted, LiteRT(result.read_bytes()).run_in_order(list(feeds.values()))


def assert_near(wanted: list[Any], found: list[Any], near: float = 1e-5) -> None:
    for a, b in zip(wanted, found, strict=True):
        assert a.shape == b.shape
        assert np.allclose(a, b, near, near)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(tmp_path: Path, sizes: str, mode: str) -> None:
    shape, places = SIZES[sizes]
    if len(shape) == 5 and mode == "cubic":
        pytest.skip("onnxruntime has none of three dimensions")
    rng = np.random.default_rng(7)
    feeds = {"x": rng.normal(size=shape).astype(np.float32), "grid": rng.uniform(-2.7, 2.7, places).astype(np.float32)}
    for padding, align in itertools.product(("zeros", "border", "reflection"), (0, 1)):
        assert_near(*both(tmp_path, "GridSample", feeds, {}, mode=mode, padding_mode=padding, align_corners=align), 1e-4)


@pytest.mark.cross_section
@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize(("images", "classes", "most", "overlap", "least"), [
    (1, 1, 10, 0.3, 0.1), (2, 3, 4, 0.5, 0.4), (1, 2, 100, 0.01, None), (1, 3, 5, None, 0.99),
])  # fmt: skip
def test_suppression(tmp_path: Path, center: int, images: int, classes: int, most: int, overlap: float | None, least: float | None) -> None:
    rng = np.random.default_rng(most)
    boxes = np.concatenate([rng.uniform(0, 4, (images, 30, 2)), rng.uniform(0.1, 2, (images, 30, 2))], -1)
    boxes[..., 2:] += 0 if center else boxes[..., :2]
    feeds = {"boxes": boxes.astype(np.float32), "scores": rng.permutation(images * classes * 30).reshape(images, classes, 30) / 200}
    feeds["scores"] = feeds["scores"].astype(np.float32)
    thresholds = {name: None if value is None else np.array(value, np.float32) for name, value in (("overlap", overlap), ("least", least))}
    constants = {"most": np.array([most]), **thresholds}
    wanted, found = both(tmp_path, "NonMaxSuppression", feeds, constants, center_point_box=center)
    assert np.array_equal(wanted[0], found[0])
    assert wanted[0].size or least == 0.99


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_remainder(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.uniform(-50, 50, (7, 40)), rng.uniform(1, 9, (7, 1)) * rng.choice([-1, 1], (7, 1))
    wanted, found = both(tmp_path, "Mod", {"x": x.astype(dtype), "y": y.astype(dtype)}, {}, fmod=1)
    assert np.array_equal(wanted[0], found[0])


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("window", [
    {"kernel_shape": [2, 3, 2]}, {"kernel_shape": [3, 2, 1], "strides": [2, 1, 3]}, {"kernel_shape": [3, 3, 3], "pads": [1, 0, 1, 1, 2, 0]},
    {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2], "ceil_mode": 1}, {"kernel_shape": [3, 3, 2], "auto_pad": "SAME_LOWER"},
])  # fmt: skip
def test_pools_of_volumes(tmp_path: Path, kind: str, window: dict[str, Any]) -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 5, 7, 6)).astype(np.float32)
    for counted in ({}, {"count_include_pad": 1}) if kind == "AveragePool" else ({},):
        assert_near(*both(tmp_path, kind, {"x": x}, {}, **window, **counted))


@pytest.mark.parametrize("window", [
    {"kernel_shape": [3, 2], "dilations": [2, 3]}, {"kernel_shape": [3, 3], "dilations": [2, 2], "pads": [2, 1, 0, 2], "strides": [2, 1]},
    {"kernel_shape": [2, 1], "dilations": [3, 1]}, {"kernel_shape": [2, 2, 2], "dilations": [2, 1, 3], "strides": [1, 2, 2]},
])  # fmt: skip
def test_windows_with_holes(tmp_path: Path, window: dict[str, Any]) -> None:
    shape = (2, 3, 6, 7, 5)[: 2 + len(window["kernel_shape"])]
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    wanted, found = both(tmp_path, "MaxPool", {"x": x}, {}, **window)
    assert np.array_equal(wanted[0], found[0])


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("taps", "strides", "dilations", "extra"), [
    ([2, 3], [2, 1], [1, 1], [0, 0]), ([2, 3], [2, 2], [1, 2], [1, 1]), ([3, 2], [3, 3], [1, 2], [2, 1]), ([3, 3], [2, 3], [2, 1], [1, 0]),
    ([1, 2], [2, 3], [1, 1], [0, 1]), ([3, 3], [1, 1], [2, 1], [0, 0]), ([3, 2, 2], [2, 3, 1], [1, 1, 1], [1, 2, 0]),
])  # fmt: skip
def test_transposed_convolutions_crop_what_onnxruntime_crops(
    tmp_path: Path, auto_pad: str, taps: list[int], strides: list[int], dilations: list[int], extra: list[int]
) -> None:
    """What is cropped counts output_padding; where the weights reach less far than a step, nothing is."""
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(2, 3, 4, 5, 3)[: 2 + len(taps)]), rng.normal(size=(3, 4, *taps))
    wanted, found = both(
        tmp_path, "ConvTranspose", {"x": x.astype(np.float32)}, {"w": w.astype(np.float32)},
        auto_pad=auto_pad, strides=strides, dilations=dilations, output_padding=extra,
    )  # fmt: skip
    assert_near(wanted, found)


@pytest.mark.parametrize("more", [{}, {"strides": [2, 1]}, {"pads": [1, 0, 2, 1]}, {"dilations": [2, 2], "strides": [1, 2]}])
def test_blocks_of_an_image(tmp_path: Path, more: dict[str, Any]) -> None:
    size, block = np.array([7, 6]), np.array([2, 3])
    strides, dilations, pads = (
        np.array(more.get(name, default)) for name, default in (("strides", [1, 1]), ("dilations", [1, 1]), ("pads", [0] * 4))
    )
    steps = (size + pads[:2] + pads[2:] - dilations * (block - 1) - 1) // strides + 1
    x = np.random.default_rng(1).normal(size=(2, 3 * 6, int(steps.prod()))).astype(np.float32)
    assert_near(*both(tmp_path, "Col2Im", {"x": x}, {"size": size, "block": block}, **more))


@pytest.mark.parametrize("kind", ["Sigmoid", "Tanh", "Softmax"])
@pytest.mark.parametrize("stored", [np.uint8, np.int8])
def test_curves_that_a_quantizer_left_on_quantizations_of_their_own_are_equal(kind: str, stored: type, tmp_path: Path) -> None:
    """x * f(x), each part with the quantization of its calibration: with LiteRT's own integer kernels a tenth of it would be off by a
    step."""
    grids = {"x": (0.0613, 131), "f": (0.00371 if kind != "Tanh" else 0.0069, 0 if kind != "Tanh" else 127), "y": (0.0271, 90)}
    shift = 128 if stored is np.int8 else 0
    constants, nodes = [], []
    for name, (scale, zero) in grids.items():
        constants += [numpy_helper.from_array(np.array(scale, np.float32), f"{name}.s"),
                      numpy_helper.from_array(np.array(zero - shift, stored), f"{name}.z")]  # fmt: skip

    def pair(name: str, result: str) -> list[onnx.NodeProto]:
        ends = [f"{name}.s", f"{name}.z"]
        return [helper.make_node("QuantizeLinear", [f"{name}.r", *ends], [f"{name}.q"]),
                helper.make_node("DequantizeLinear", [f"{name}.q", *ends], [result])]  # fmt: skip

    nodes = [*pair("x", "x.d"), helper.make_node(kind, ["x.d"], ["f.r"]), *pair("f", "f.d"),
             helper.make_node("Mul", ["x.d", "f.d"], ["y.r"]), *pair("y", "y")]  # fmt: skip
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [16, 64]) for name in ("x.r", "y")]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], constants)
    onnx.save(model_of(graph), tmp_path / "source.onnx")
    convert(tmp_path / "source.onnx", tmp_path / "result.tflite")
    (output,) = check(tmp_path / "source.onnx", tmp_path / "result.tflite", samples=4).outputs
    assert output.equal == 1.0 if kind != "Softmax" else output.equal > 0.97  # onnxruntime multiplies by the whole part of 1 / scale


def test_the_mask_of_a_dropout(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
    wanted, found = both(tmp_path, "Dropout", {"x": x}, {}, outputs=2)
    assert all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))
    assert found[1].all()


@pytest.mark.parametrize("op_type", ["GatherElements", "ScatterElements", "ScatterElements add"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("stored", ["float32", "int32"])
def test_elements_of_open_sizes(tmp_path: Path, op_type: str, axis: int, stored: str) -> None:
    """Indices of any sizes, some counted from the end."""
    import onnxruntime

    kind, _, reduction = op_type.partition(" ")
    rng, (data, places) = np.random.default_rng(3), ((3, 5, 4), (2, 4, 4))
    x, u = ((rng.normal(size=shape) * 50).astype(stored) for shape in (data, places))
    indices = np.argsort(rng.random((*places[: axis % 3], data[axis], *places[axis % 3 + 1 :])), axis=axis)
    indices = np.take(indices, range(places[axis]), axis=axis)
    indices[::2] -= data[axis]
    given = {"x": x, "i": indices} | ({} if kind == "GatherElements" else {"u": u})
    shapes = {"x": ["b", "t", 4], "i": ["c", "n", 4], "u": ["c", "n", 4]}
    values = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), shapes[n]) for n, v in given.items()]
    node = helper.make_node(kind, list(given), ["y"], axis=axis, **({"reduction": reduction} if reduction else {}))
    result = helper.make_tensor_value_info("y", values[0].type.tensor_type.elem_type, shapes["i" if kind == "GatherElements" else "x"])
    graph = helper.make_graph([node], "g", values, [result])
    source = tmp_path / "a.onnx"
    source.write_bytes(model_of(graph, 18).SerializeToString())
    convert(source, tmp_path / "b.tflite")
    (wanted,) = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, given)
    (found,) = LiteRT((tmp_path / "b.tflite").read_bytes()).run_in_order(list(given.values()))
    assert_near([wanted], [found])


VALUES = "<float[2] v = {-1.5, 7}>"
AT_RUN_TIME = {
    "triangle": "(float[N, 5, M] x) => (float[N, 5, M] y) { y = Trilu <upper = 0> (x) }",
    "triangle of a square": "(int64[N, N] x) => (int64[N, N] y) <int64 k = {-1}> { y = Trilu (x, k) }",
    "triangle from a diagonal": "(float[2, 5, 5] x, int64 d) => (float[2, 5, 5] y) { y = Trilu <upper = 0> (x, d) }",
    "triangle of a mask": """(float[B, N, 8] x) => (float[B, N, N] y) <int64[1] one = {1}, float[1] z = {0}, float[1] low = {-10000}> {
        s = Shape(x) t = Gather <axis = 0> (s, one) tt = Concat <axis = 0> (t, t) o = ConstantOfShape <value = float[1] {1}> (tt)
        l = Trilu <upper = 0> (o) b = Cast <to = 9> (l) m = Where(b, z, low) xt = Transpose <perm = [0, 2, 1]> (x) q = MatMul(x, xt)
        y = Add(q, m) }""",
    "eye": "(float[N, M] x) => (float[N, M] y) { y = EyeLike (x) }",
    "eye of known columns": "(int64[N, 5] x) => (float[N, 5] y) { y = EyeLike <k = -1, dtype = 1> (x) }",
    "eye of known rows": "(float16[5, M] x) => (int32[5, M] y) { y = EyeLike <k = 2, dtype = 6> (x) }",
    "eye of doubles": "(float[N, M] x) => (double[N, M] y) { y = EyeLike <k = 1, dtype = 11> (x) }",
    "eye without ones": "(int64[N, M] x) => (int64[N, M] y) { y = EyeLike <k = 5000000000> (x) }",
    "one hot": f"(int64[N] x, int64 d) => (float[N, D] y) {VALUES} {{ y = OneHot (x, d, v) }}",
    "one hot in a list": f"(int32[N, M] x, int32[1] d) => (float[N, D, M] y) {VALUES} {{ y = OneHot <axis = -2> (x, d, v) }}",
    "one hot of floats": f"(float[N, M] x, float[1] d) => (float[N, D, M] y) {VALUES} {{ y = OneHot <axis = 1> (x, d, v) }}",
    "one hot of a float": "(int64[N, M] x, float d) => (int32[N, M, D] y) <int32[2] v = {3, 4}> { y = OneHot (x, d, v) }",
    "one hot of inputs": "(int64[N, M] x, int64 d, int64[2] v) => (int64[D, N, M] y) { y = OneHot <axis = 0> (x, d, v) }",
    "one hot of halves": "(int64[N, M] x, int64 d, float16[2] v) => (float16[N, M, D] y) { y = OneHot (x, d, v) }",
    "one hot of a known depth": """(int64[N, M] x) => (float[N, 4, M] y) <int64 d = {4}, float[2] v = {0, 1}> {
        y = OneHot <axis = -2> (x, d, v) }""",
    "one hot of a size": """(float[B, M] x) => (float[M, 6] y)
        <float[2] v = {0, 1}, int64[6] i = {0, 1, -1, 5, -9, 7}, int64[1] one = {1}> {
        s = Shape(x) d = Gather <axis = 0> (s, one) y = OneHot <axis = 0> (i, d, v) }""",
    "one hot of the largest": """(float[N, M] x) => (float[N, M] y) <float[2] v = {0, 1}, int64 one = {1}> {
        a = ArgMax <axis = 1, keepdims = 0> (x) s = Shape(x) d = Gather <axis = 0> (s, one) y = OneHot (a, d, v) }""",
}


def of_text(text: str) -> bytes:
    from onnx import parser

    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}').SerializeToString()


@pytest.mark.parametrize("name", AT_RUN_TIME)
def test_sizes_known_at_run_time(name: str, tmp_path: Path) -> None:
    """Operators whose dynamic sizes, diagonal or depth (d) are computed; indices are outside of the depth too."""
    import onnxruntime
    from ai_edge_litert.interpreter import Interpreter

    made = of_text(AT_RUN_TIME[name])
    (tmp_path / "m.onnx").write_bytes(made)
    report = convert(tmp_path / "m.onnx", tmp_path / "r.tflite")
    inputs = onnx.load_from_string(made).graph.input
    dynamic = any(part.dim_param for item in inputs for part in item.type.tensor_type.shape.dim)
    assert any("dynamic dimensions of inputs" in change.text for change in report.changes) == dynamic
    rng = np.random.default_rng(3)
    session, interpreter = onnxruntime.InferenceSession(made), Interpreter(str(tmp_path / "r.tflite"))
    for size in (1, 4, 7):
        feeds = {}
        for item in onnx.load_from_string(made).graph.input:
            kind = item.type.tensor_type
            shape = [part.dim_value or {"N": size, "M": size + 1}.get(part.dim_param, 2) for part in kind.shape.dim]
            values = np.full(shape, size) if item.name == "d" else rng.integers(-9, 10, shape)
            feeds[item.name] = values.astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        if name.startswith("one hot") and feeds["x"].dtype == np.int64:
            feeds["x"].flat[:2] = 2**32 + 1, -(2**32) + 1  # of which the lower 32 bits are legal
        details = {item["name"]: item["index"] for item in interpreter.get_input_details()}
        for key, feed in feeds.items():
            interpreter.resize_tensor_input(details[key], feed.shape)
        interpreter.allocate_tensors()
        for key, feed in feeds.items():
            interpreter.set_tensor(details[key], feed)
        interpreter.invoke()
        found, wanted = interpreter.get_tensor(interpreter.get_output_details()[0]["index"]), session.run(None, feeds)[0]
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["eye", "one hot", "one hot of a float", "one hot of a size"])
def test_sizes_known_at_run_time_are_checked(name: str, tmp_path: Path) -> None:
    """Of an input of which an operator reads the sizes alone, too."""
    (tmp_path / "m.onnx").write_bytes(of_text(AT_RUN_TIME[name]))
    for result in ("r.tflite", "r.onnx"):
        convert(tmp_path / "m.onnx", tmp_path / result)
        report = check(tmp_path / "m.onnx", tmp_path / result)
        assert (report.verdict, [item.differs for item in report.outputs]) == ("passed", [0]), report.problems


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("(float[N, M] x) => (uint64[N, M] y) { y = EyeLike <dtype = 13> (x) }", ("CAST", "bool", "uint64")),
        ("(int64[N] x, int64 d, string[2] v) => (string[N, D] y) { y = OneHot (x, d, v) }", ("OneHot", "string")),
        ("(uint64[N] x, int64 d, float[2] v) => (float[N, D] y) { y = OneHot (x, d, v) }", ("CAST", "uint64", "int32")),
    ],
)
def test_types_that_litert_lacks_are_named(text: str, named: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(of_text(text))
    with refused(UnsupportedError, "target-rules", holds=named):
        convert(tmp_path / "m.onnx", tmp_path / "r.tflite")
