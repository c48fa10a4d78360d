"""store_activations, guard_saturation, match_rounding, fuse_pad and float_io: exact, and what they promise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from differential import compare, converted
from hypothesis import given, settings
from hypothesis import strategies as st
from passes.graphs import constant, make, q
from tflite_models import OpSpec, TensorSpec, model, run_litert, single_op

from qconvert import Op, Quantization, Tensor, check, convert, diff, load, save
from qconvert.conversion import normalize
from qconvert.evaluate import evaluate
from qconvert.kernels.accumulators import largest_pair_sum
from qconvert.plugins import Change, target_named
from qconvert.runtimes.onnxruntime import OnnxRuntime

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
ALL = np.arange(256, dtype=np.uint8)


@pytest.mark.formats
@pytest.mark.property
@settings(max_examples=60)
@given(rows=st.integers(1, 4), depth=st.integers(1, 9), seed=st.integers(0, 999))
def test_the_saturation_certificate_against_16_bit_sums(rows: int, depth: int, seed: int) -> None:
    """Weights with pair sums up to 128 never leave 16 bits with any unsigned inputs; a larger sum does with inputs of 255."""
    weights = np.random.default_rng(seed).integers(-128, 128, (rows, depth)).astype(np.int16)
    sums = [int(w[i]) + int(w[i + 1]) for w in weights for i in range(0, depth - 1, 2)]
    largest = largest_pair_sum(Op("Gemm", ("x", "w"), ("y",)), weights)
    assert largest == max(map(abs, sums), default=0)
    assert (largest <= 128) == all(-(2**15) <= 255 * total < 2**15 for total in sums)


@pytest.mark.formats
@pytest.mark.parametrize(
    ("shape", "group"), [((4, 1, 3, 3), 1), ((6, 1, 3, 3), 3), ((3, 1, 3, 3), 3), ((4, 3, 1, 1), 1), ((4, 3, 2, 3), 1), ((4, 2, 3, 1), 2)]
)  # fmt: skip
def test_the_certificate_of_convolutions(shape: tuple[int, ...], group: int) -> None:
    """K is (row, column, input channel); only one input and one output channel a group has a kernel of its own, which adds in 32 bits."""
    weights = np.random.default_rng(sum(shape)).integers(-128, 128, shape).astype(np.int16)
    largest = largest_pair_sum(Op("Conv", ("x", "w"), ("y",), {"group": group}), weights)
    if shape[0] == group:
        assert largest == 0
        return
    along_k = [[int(w[c, i, j]) for i in range(shape[2]) for j in range(shape[3]) for c in range(shape[1])] for w in weights]
    sums = [abs(row[i] + row[i + 1]) for row in along_k for i in range(0, len(row) - 1, 2)]
    assert largest >= max(sums) > 128


@pytest.mark.formats
def test_a_convolution_of_one_channel_is_guarded() -> None:
    """On x86 without VNNI, stored as int8, it was wrong in 60% of elements, by up to 88."""
    graph, _ = normalize(load(FIXTURES / "tiny_kws_dscnn_int8.tflite"), target_named("ort-x86"))
    convolutions = [op for op in graph.ops if op.kind == "Conv"]
    first, depthwise = convolutions[0], convolutions[1]
    assert (graph[first.inputs[1]].shape, graph[first.inputs[1]].dtype) == ((64, 1, 10, 4), "uint8")
    assert (depthwise["group"], graph[depthwise.inputs[1]].dtype) == (64, "int8")


@pytest.mark.formats
def test_a_convolution_over_one_dimension_is_guarded(tmp_path: Path) -> None:
    """Found by random graphs: its weights have three dimensions, and the conversion ended in a traceback."""
    weights = constant("w", np.full((4, 3, 2), 100, np.int8), q(0.01))
    tensors = [Tensor("x", "uint8", (1, 3, 7), None, q(0.05, 128)), weights, Tensor("y", "uint8", None, None, q(0.4, 128))]
    window = {"strides": (1,), "pads": (0, 0), "dilations": (1,), "data_format": "channels_first"}
    save(make([Op("Conv", ("x", "w"), ("y",), window)], tensors, "x", "y"), tmp_path / "a.qgraph")
    report = convert(tmp_path / "a.qgraph", tmp_path / "a.onnx", target="ort-x86")
    assert next(c.text for c in report.changes if c.by == "guard_saturation").startswith("1 weight is stored as uint8")


@pytest.mark.formats
def test_guarded_weights_are_the_same_numbers() -> None:
    source = load(FIXTURES / "tiny_vww_mobilenet_int8.tflite")
    graph, changes = normalize(source, target_named("ort-x86"))
    words = "13 weights are stored as uint8 with zero point + 128, because sums of two products could saturate"
    assert Change(words, exact=True, by="guard_saturation") in changes
    checked = 0
    for name, tensor in graph.tensors.items():
        if tensor.dtype == "uint8" and tensor.is_constant:
            old = source[name]
            assert old.data is not None and tensor.data is not None and tensor.quantization is not None
            assert np.array_equal(tensor.data.astype(int) - 128, old.data)
            assert (tensor.quantization.zero_point == 128).all()
            assert old.quantization is not None and np.array_equal(tensor.quantization.scale, old.quantization.scale)
            checked += 1
    assert checked == 13
    assert {op.kind for op in graph.ops if graph[op.inputs[0]].dtype == "int8"} == {"Requantize"}


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_additions_are_equal_for_all_pairs(seed: int, dtype: str) -> None:
    """All 65,536 pairs of inputs, in LiteRT and in onnxruntime, for scales as trained models have them."""
    rng = np.random.default_rng(seed)
    low = -128 if dtype == "int8" else 0
    scales = rng.uniform(0.01, 0.3, 2)
    zeros = rng.integers(low, low + 256, 3)
    output = float(scales.max() * rng.uniform(0.8, 1.9))
    a, b = (TensorSpec(n, (256, 256), dtype, float(scales[i]), int(zeros[i])) for i, n in enumerate("ab"))
    y = TensorSpec("y", (256, 256), dtype, output, int(zeros[2]))
    data = single_op("ADD", {"fusedActivationFunction": seed % 2}, [a, b], [y])
    codes = (ALL.astype(np.int16) + low).astype(dtype)
    pairs = [np.repeat(codes, 256).reshape(256, 256), np.tile(codes, 256).reshape(256, 256)]
    (found,) = compare(data, pairs)
    assert np.array_equal(found.source, found.result)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("scales", "zeros", "kinds"),
    [
        ((0.036664, 0.063876, 0.059768), (43, -50, 98), {"QLinearAdd"}),  # two pairs differ at the tensors' own scales
        ((0.03, 0.03, 0.06), (-128, -128, -128), {"QLinearAdd"}),  # every second sum is a tie, all on one side of zero
        ((0.03, 0.03, 0.06), (0, 0, 0), {"Cast", "Mul", "Add", "Clip"}),  # on both sides
        ((0.153608, 0.032989, 0.0366), (4, -45, 36), {"QLinearAdd"}),  # four do
    ],
)
def test_the_cheapest_form_of_an_addition(
    scales: tuple[float, ...], zeros: tuple[int, ...], kinds: set[str], dtype: str, tmp_path: Path
) -> None:
    """QLinearAdd at scales at which it gives XNNPACK's integers for all pairs, else float64; the tensors keep their scales."""
    low = -128 if dtype == "int8" else 0
    specs = [TensorSpec(n, (256, 256), dtype, s, z + low + 128) for n, s, z in zip("aby", scales, zeros, strict=True)]
    (tmp_path / "m.tflite").write_bytes(single_op("ADD", {}, specs[:2], specs[2:]))
    convert(tmp_path / "m.tflite", tmp_path / "m.onnx", target="ort-x86")
    optimized = tmp_path / "optimized.onnx"
    session = OnnxRuntime(tmp_path / "m.onnx", save_optimized=optimized)
    found = {node.op_type for node in onnx.load(optimized).graph.node}
    assert found >= kinds and ("QLinearAdd" in found) == ("QLinearAdd" in kinds)
    codes = (ALL.astype(np.int16) + low).astype(dtype)
    pairs = [np.repeat(codes, 256).reshape(256, 256), np.tile(codes, 256).reshape(256, 256)]
    (wanted,) = run_litert((tmp_path / "m.tflite").read_bytes(), pairs)
    for runtime in (session, OnnxRuntime(tmp_path / "m.onnx", optimize=False)):
        (got,) = runtime.run(dict(zip("ab", pairs, strict=True))).values()
        assert np.array_equal(got, wanted)
    convert(tmp_path / "m.onnx", tmp_path / "back.tflite")
    assert diff(load(tmp_path / "m.tflite"), load(tmp_path / "back.tflite")) == []


@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_an_addition_spelled_out_without_its_scales_comes_back(dtype: str, tmp_path: Path) -> None:
    """A file of integers alone: no DequantizeLinear says the scales, but the note does."""
    zeros = (3, -11, -7) if dtype == "int8" else (131, 117, 121)
    a, b, y = (TensorSpec(n, (7, 30), dtype, scale, zero) for n, scale, zero in zip("aby", (0.05, 0.031, 0.09), zeros, strict=True))
    (tmp_path / "m.tflite").write_bytes(single_op("ADD", {}, [a, b], [y]))
    changes = str(convert(tmp_path / "m.tflite", tmp_path / "m.onnx", target="generic").changes)
    assert "decomposed, to round as XNNPACK does for every pair of inputs: 1 Add" in changes
    graph = load(tmp_path / "m.onnx")
    assert [(op.kind, op["arithmetic"]) for op in graph.ops] == [("Add", "xnnpack")]
    assert [graph[name].quantization for name in "aby"] == [Quantization.per_tensor(t.scale, t.zero_point) for t in (a, b, y)]
    rng = np.random.default_rng(3)
    feeds = [rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (7, 30)).astype(dtype) for _ in "ab"]
    found = evaluate(graph, dict(zip("ab", feeds, strict=True)))
    assert np.array_equal(run_litert((tmp_path / "m.tflite").read_bytes(), feeds)[0], found["y"])
    convert(tmp_path / "m.onnx", tmp_path / "back.tflite")
    assert np.array_equal(run_litert((tmp_path / "back.tflite").read_bytes(), feeds)[0], found["y"])


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_additions_of_additions_and_of_constants_come_back(tmp_path: Path) -> None:
    """Sums that only other sums read, a constant that sums share with others, and one that a plain reader takes too."""
    shape, one = (7, 30), np.array([90], np.int8)
    quantizations = {"x": (0.05, 3), "s": (0.07, -11), "t": (0.09, -7), "u": (0.1, 4), "v": (0.4, 5), "c": (0.02, 9)}
    tensors = [
        TensorSpec(name, (1,) if name == "c" else shape, "int8", *quantization, data=one if name == "c" else None)
        for name, quantization in quantizations.items()
    ]
    ops = [OpSpec("ADD", ["x", "c"], ["s"]), OpSpec("ADD", ["s", "x"], ["t"], {"fusedActivationFunction": 1}),
           OpSpec("ADD", ["c", "t"], ["u"]), OpSpec("MUL", ["u", "c"], ["v"])]  # fmt: skip
    (tmp_path / "m.tflite").write_bytes(model(ops, tensors, ["x"], ["v"]))
    convert(tmp_path / "m.tflite", tmp_path / "m.onnx")
    convert(tmp_path / "m.onnx", tmp_path / "back.tflite")
    assert [op.kind for op in load(tmp_path / "back.tflite").ops] == ["Add", "Add", "Add", "Mul"]
    assert diff(load(tmp_path / "m.tflite"), load(tmp_path / "back.tflite")) == []
    for source, result in (("m.tflite", "m.onnx"), ("m.onnx", "back.tflite"), ("m.tflite", "back.tflite")):
        assert (report := check(tmp_path / source, tmp_path / result)).passed, report.problems


@pytest.mark.formats
def test_fast_numerics_leave_additions_alone() -> None:
    source = load(FIXTURES / "tiny_resnet_cifar10_int8.tflite")
    exact, _ = normalize(source, target_named("ort-x86"))
    fast, _ = normalize(source, target_named("ort-x86"), numerics="fast")
    assert sum(op.attributes.get("arithmetic") == "xnnpack" for op in exact.ops) == 3
    assert not any(op.attributes.get("arithmetic") == "xnnpack" for op in fast.ops)


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_pad_before_a_convolution_is_fused_and_equal() -> None:
    rng = np.random.default_rng(0)
    x = TensorSpec("x", (1, 7, 9, 3), "int8", 0.1, -20)
    pads = TensorSpec("p", (4, 2), "int32", data=np.array([[0, 0], [1, 2], [0, 1], [0, 0]], np.int32))
    m = TensorSpec("m", (1, 10, 10, 3), "int8", 0.1, -20)
    w = TensorSpec("w", (4, 3, 3, 3), "int8", 0.02, 0, data=rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8))
    b = TensorSpec("b", (4,), "int32", float(np.float32(0.1) * np.float32(0.02)), 0, data=rng.integers(-99, 99, 4).astype(np.int32))
    y = TensorSpec("y", (1, 8, 8, 4), "int8", 0.4, 1)
    ops = [OpSpec("PAD", ["x", "p"], ["m"], {}), OpSpec("CONV_2D", ["m", "w", "b"], ["y"], {"padding": 1, "strideH": 1, "strideW": 1})]
    data = model(ops, [x, pads, m, w, b, y], ["x"], ["y"])
    graph, onnx_model = converted(data)
    assert "Pad" not in {node.op_type for node in onnx_model.graph.node}
    assert next(op for op in graph.ops if op.kind == "Conv")["pads"] == (1, 0, 2, 1)
    (found,) = compare(data, [rng.integers(-128, 128, (1, 7, 9, 3)).astype(np.int8)])
    assert found.largest == 0


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("why", ["another filler", "channels", "a second reader"])
def test_a_pad_that_a_convolution_cannot_take_over_stays(why: str) -> None:
    rng = np.random.default_rng(1)
    channels = 4 if why == "channels" else 3
    x, m = TensorSpec("x", (1, 6, 6, 3), "int8", 0.1, -20), TensorSpec("m", (1, 8, 8, channels), "int8", 0.1, -20)
    amounts = np.array([[0, 0], [1, 1], [1, 1], [0, channels - 3]], np.int32)
    tensors = [x, m, TensorSpec("p", (4, 2), "int32", data=amounts)]
    filler = TensorSpec("f", (1,), "int8", 0.1, -20, data=np.int8([5]))
    pad = OpSpec("PADV2", ["x", "p", "f"], ["m"], {}) if why == "another filler" else OpSpec("PAD", ["x", "p"], ["m"], {})
    tensors += [filler] if why == "another filler" else []
    w = TensorSpec("w", (2, 3, 3, channels), "int8", 0.02, 0, data=rng.integers(-127, 128, (2, 3, 3, channels)).astype(np.int8))
    b = TensorSpec("b", (2,), "int32", float(np.float32(0.1) * np.float32(0.02)), 0, data=np.zeros(2, np.int32))
    tensors += [w, b, TensorSpec("y", (1, 6, 6, 2), "int8", 0.4, 1), TensorSpec("z", (1, 8, 8, channels), "int8", 0.1, -20)]
    ops = [pad, OpSpec("CONV_2D", ["m", "w", "b"], ["y"], {"padding": 1, "strideH": 1, "strideW": 1})]
    outputs = ["y"]
    if why == "a second reader":
        ops.append(OpSpec("RELU", ["m"], ["z"]))
        outputs.append("z")
    else:
        tensors.pop()
    data = model(ops, tensors, ["x"], outputs)
    _, onnx_model = converted(data)
    assert "Pad" in {node.op_type for node in onnx_model.graph.node}
    for found in compare(data, [rng.integers(-128, 128, (1, 6, 6, 3)).astype(np.int8)]):
        assert found.largest == 0


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_float_io_gives_the_same_integers() -> None:
    x, y = TensorSpec("x", (256,), "int8", 0.1, 3), TensorSpec("y", (256,), "int8", 0.1, 3)
    data = single_op("RELU", None, [x], [y])
    graph, onnx_model = converted(data, io="float")
    assert graph["x"].dtype == graph["y"].dtype == "float32"
    codes = (ALL.astype(np.int16) - 128).astype(np.int8)
    real = ((codes.astype(np.float32) - 3) * np.float32(0.1)).astype(np.float32)
    result = OnnxRuntime(onnx_model.SerializeToString(), exact=False).run({"x": real})["y"]
    (expected,) = run_litert(data, [codes])
    assert np.array_equal(np.rint(result / np.float32(0.1)) + 3, expected)
