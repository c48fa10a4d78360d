"""Encodings put into a graph and taken out of one: names, quantizations, integers, what is inferred and what stays real."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from qconvert import (
    Encoding,
    Encodings,
    Graph,
    Op,
    Place,
    QParams,
    Quantization,
    Range,
    Tensor,
    apply,
    check,
    convert,
    diff,
    extract_scales,
    load,
    save,
    save_encodings,
)
from qconvert.arithmetic import scale_and_zero_point
from qconvert.conversion.encodings import add_implied_encodings, extract_file
from qconvert.errors import InvalidModelError, OptionError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.passes.apply_encodings import quantize_by_encodings

FIXTURES = Path(__file__).parents[2] / "fixtures"
RNG = np.random.default_rng(3)
WEIGHTS = RNG.normal(size=(4, 3, 3, 3)).astype(np.float32)
EDGES = {"pads": (0, 0, 0, 0), "data_format": "channels_first"}
BIAS = RNG.normal(size=4).astype(np.float32)


def network() -> Graph:
    """x -> Conv "conv" -> Relu -> MaxPool -> Reshape -> y."""
    tensors = [
        Tensor("x", "float32", (1, 3, 8, 8)),
        Tensor("w", "float32", (4, 3, 3, 3), WEIGHTS),
        Tensor("b", "float32", (4,), BIAS),
        Tensor("c", "float32", (1, 4, 6, 6)),
        Tensor("r", "float32", (1, 4, 6, 6)),
        Tensor("p", "float32", (1, 4, 3, 3)),
        Tensor("s", "int64", (2,), np.array([1, 36])),
        Tensor("y", "float32", (1, 36)),
    ]
    ops = (
        Op("Conv", ("x", "w", "b"), ("c",), {**EDGES, "strides": (1, 1), "dilations": (1, 1), "group": 1}, "Conv /layer/conv"),
        Op("Relu", ("c",), ("r",), {}, "Relu /layer/relu"),
        Op("MaxPool", ("r",), ("p",), {**EDGES, "kernel_shape": (2, 2), "strides": (2, 2)}),
        Op("Reshape", ("p", "s"), ("y",)),
    )
    return Graph("net", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",))


def quantization(scale: float, point: int = 0, dtype: str = "int8") -> Encoding:
    return Encoding(QParams(dtype, Quantization.per_tensor(scale, point)))


CHANNELS = Encoding(QParams("int8", Quantization(np.full(4, 0.02, np.float32), np.zeros(4, np.int64))))


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


@pytest.mark.parametrize("place", [Place("w"), Place("/layer/conv", "input", 1), Place("c", "input", 1), Place("r", "input", 1)], ids=str)
def test_weights_are_found_by_every_name(place: Place) -> None:
    """By the tensor, the operator, what it computes, and what a runtime computes that fuses the Relu."""
    changed = apply(network(), Encodings({"x": quantization(0.05), "r": quantization(0.03, -128), place: CHANNELS}))
    conv = next(op for op in changed.ops if op.kind == "Conv")
    weights, bias = changed[conv.inputs[1]], changed[conv.inputs[2]]
    assert weights.quantization == Quantization.per_axis(np.full(4, 0.02), 0)
    np.testing.assert_array_equal(weights.data, np.clip(np.rint(WEIGHTS / np.float32(0.02)), -128, 127))
    assert bias.dtype == "int32"
    np.testing.assert_array_equal(bias.data, np.rint(BIAS.astype(np.float64) / float(np.float32(0.05) * np.float32(0.02))))


@pytest.mark.parametrize("name", ["/layer/conv", "c", "/layer/relu", "r"])
def test_the_result_of_a_layer_is_that_of_the_relu_behind_it(name: str) -> None:
    """Runtimes fuse both, and their files name the layer; with a quantization between the Conv and the Relu the Conv's data would stay
    real."""
    entries = {Place("x", "output"): quantization(0.1), Place(name, "output"): quantization(0.05, -128), Place("c", "input", 1): CHANNELS}
    found = apply(network(), Encodings(entries))
    assert kinds(found)[:2] == ["Quantize", "Conv"] and found.ops[1]["activation"] in ("", "relu")
    assert found["r"].quantization == Quantization.per_tensor(0.05, -128) and "c" not in found.tensors


def normalized() -> Graph:
    """The same with a BatchNormalization between the Conv and the Relu."""
    graph = network()
    values = [np.array(item, np.float32) for item in ([2, 1, 0.5, 3], [0, 1, -1, 0], [0.1, 0, 0, 0], [1, 2, 1, 1])]
    tensors = [Tensor(f"n{index}", "float32", (4,), value) for index, value in enumerate(values)]
    norm = Op("BatchNormalization", ("c", "n0", "n1", "n2", "n3"), ("n",), {"epsilon": 1e-5, "data_format": "channels_first"})
    conv, relu, *rest = graph.ops
    ops = (conv, norm, Op("Relu", ("n",), ("r",), {}, relu.source), *rest)
    return graph.evolve(tensors=[*tensors, Tensor("n", "float32", (1, 4, 6, 6))], ops=ops)


@pytest.mark.parametrize("name", ["/layer/conv", "c", "r"])
def test_runtimes_fold_a_batch_normalization_first(name: str) -> None:
    """Scales of weights are those of the folded ones, and the result of the layer is after the normalization."""
    from qconvert.passes.batch_norms import fold_batch_norm

    entries = {Place("x"): quantization(0.1), Place(name, "output"): quantization(0.05, -128), Place(name, "input", 1): CHANNELS}
    found, notes = quantize_by_encodings(normalized(), Encodings(entries))
    assert kinds(found)[:2] == ["Quantize", "Conv"] and found["r"].quantization == Quantization.per_tensor(0.05, -128)
    folded = fold_batch_norm(normalized(), None)[0]
    weights = folded[folded.ops[0].inputs[1]].data
    assert weights is not None and np.array_equal(
        found[found.ops[1].inputs[1]].data, np.clip(np.rint(weights / np.float32(0.02)), -128, 127)
    )
    assert any("1 BatchNormalizations are folded into the weights" in str(note) for note in notes)


def test_a_quantization_before_a_batch_normalization_keeps_it() -> None:
    entries = {
        Place("x"): quantization(0.1),
        Place("c"): quantization(0.05),
        Place("c", "input", 1): CHANNELS,
        Place("n"): quantization(0.1),
    }
    assert "BatchNormalization" in kinds(apply(normalized(), Encodings(entries)))


def matrices(turned: bool) -> Graph:
    """x -> MatMul by w, or Gemm with its rows outputs -> y."""
    weights = np.arange(16, dtype=np.float32).reshape(4, 4)
    tensors = [Tensor("x", "float32", (2, 4)), Tensor("w", "float32", (4, 4), weights), Tensor("y", "float32", (2, 4))]
    op = Op("Gemm" if turned else "MatMul", ("x", "w"), ("y",))
    return Graph("net", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",))


def test_integers_beside_scales_without_an_axis_are_outputs_first() -> None:
    """As the scales are; a MatMul has its inputs first, a Gemm its outputs."""
    integers = np.arange(16, dtype=np.int8).reshape(4, 4)
    for is_gemm in (False, True):
        entry = Encoding(CHANNELS.qparams, integers=integers)
        found = apply(matrices(is_gemm), Encodings({Place("y", "input", 1): entry}))
        stored = found[next(op for op in found.ops if op.kind == "Dequantize").inputs[0]]
        assert stored.data is not None and np.array_equal(stored.data, integers if is_gemm else integers.T)
        assert stored.quantization is not None and stored.quantization.axis == (0 if is_gemm else 1)


def test_integers_may_have_more_sizes_of_1() -> None:
    """MNN has layers of one dimension as convolutions of two."""
    graph = network()
    entry = Encoding(CHANNELS.qparams, integers=np.arange(4 * 27, dtype=np.int8).reshape(4, 3, 3, 3, 1))
    found = apply(graph, Encodings({"w": entry}))
    assert np.array_equal(found["w"].data, np.arange(4 * 27, dtype=np.int8).reshape(4, 3, 3, 3))


def test_a_layer_and_the_relu_behind_it_may_have_quantizations_of_their_own() -> None:
    entries = {
        Place("x"): quantization(0.1),
        Place("c", "output"): quantization(0.05),
        Place("r", "output"): quantization(0.02),
        Place("w"): CHANNELS,
    }
    found = apply(network(), Encodings(entries))
    assert found["c"].quantization == Quantization.per_tensor(0.05) and found["r"].quantization == Quantization.per_tensor(0.02)


def test_what_has_no_quantization_stays_real_and_is_named() -> None:
    changed, notes = quantize_by_encodings(network(), Encodings({"x": quantization(0.05), "w": CHANNELS}))
    assert changed["w"].dtype == "int8" and changed["c"].dtype == "float32" == changed["y"].dtype
    assert any("1 Conv" in str(note) and "'c'" in str(note) for note in notes)


def test_quantizations_are_inferred_through_moves_and_pools() -> None:
    """The quantization of the last reaches the layer, and that of the first the last."""
    backwards, notes = quantize_by_encodings(
        network(), Encodings({"x": quantization(0.05), "y": quantization(0.03, -128), "w": CHANNELS}), fill="infer"
    )
    assert kinds(backwards) == ["Quantize", "Conv", "MaxPool", "Reshape", "Dequantize"]
    assert any("2 of them inferred" in str(note) for note in notes)
    forwards = apply(network(), Encodings({"x": quantization(0.05), "r": quantization(0.03, -128), "w": CHANNELS}), fill="infer")
    assert kinds(forwards) == kinds(backwards)
    none = apply(network(), Encodings({"x": quantization(0.05), "w": CHANNELS}))
    assert "Relu" in kinds(none) and none["c"].dtype == "float32"


def test_integers_are_taken_as_they_are() -> None:
    integers = RNG.integers(-127, 128, WEIGHTS.shape).astype(np.int8)
    assert CHANNELS.qparams is not None
    changed = apply(
        network(), Encodings({"x": quantization(0.05), "r": quantization(0.03, -128), "w": Encoding(CHANNELS.qparams, integers=integers)})
    )
    np.testing.assert_array_equal(changed["w"].data, integers)


def test_ranges_become_quantizations() -> None:
    values = Range(np.array([-1.0]), np.array([3.0]))
    weights = Range(-np.ones(4), np.ones(4))
    entries = {"x": Encoding(range=values), "r": Encoding(range=Range(np.array([0.5]), np.array([2.55]))), "w": Encoding(range=weights)}
    changed = apply(network(), Encodings(entries), range_dtype="uint8")
    on = changed["r"].quantization
    assert on is not None and (changed["r"].dtype, on.point) == ("uint8", 0)
    assert on.scale[0] == np.float32(2.55) / np.float32(255)  # 0 is in the range
    conv = next(op for op in changed.ops if op.kind == "Conv")
    found = changed[conv.inputs[1]].quantization
    assert found is not None and found.axis == 0 and (found.scale == np.float32(1) / np.float32(127)).all()


def test_weights_that_a_file_leaves_out() -> None:
    changed = apply(network(), Encodings({"x": quantization(0.05), "r": quantization(0.03, -128)}, weights="max-abs"))
    on = changed["w"].quantization
    assert on is not None
    np.testing.assert_array_equal(on.scale, np.abs(WEIGHTS).max(axis=(1, 2, 3)) / np.float32(127))
    assert np.abs(np.asarray(changed["w"].data, np.int64)).max() == 127


def test_limits_of_a_quantization_hold() -> None:
    limited = Encoding(QParams("int8", Quantization(np.float32([0.01]), np.array([0]), None, 0, -127, 100)))
    changed = apply(network(), Encodings({"x": limited}))
    values = evaluate(changed, {"x": np.full((1, 3, 8, 8), 9.0, np.float32)})
    unlimited = evaluate(network(), {"x": np.full((1, 3, 8, 8), 1.0, np.float32)})
    np.testing.assert_allclose(values["y"], unlimited["y"], rtol=1e-5)


ERRORS = {
    "unknown": ({"rr": quantization(1)}, "unknown-tensor", ("1 encoding ", "'rr' (nearest: 'r')")),
    "operator": ({Place("/layer/con", "input", 1): CHANNELS}, "unknown-tensor", ("'/layer/con' (nearest: '/layer/conv')",)),
    "input": ({Place("/layer/conv", "input", 5): CHANNELS}, "unknown-tensor", ("the graph has no input 5 of '/layer/conv'",)),
    "channels": ({"w": Encoding(QParams("int8", Quantization.per_axis(np.ones(3), 0)))}, "blocks-do-not-fit", (3, "axis 0", 4)),
    "axis": ({"w": Encoding(QParams("int8", Quantization.per_axis(np.ones(3), 7)))}, "blocks-do-not-fit", ("axis 7",)),
    "no such axis": (
        {"x": Encoding(QParams("int8", Quantization(np.ones(5, np.float32), np.zeros(5, np.int64))))},
        "blocks-do-not-fit",
        (5, "[1, 3, 8, 8]"),
    ),
    "integers": (
        {"w": Encoding(QParams("int8", Quantization.per_tensor(1)), integers=np.zeros(3, np.int8))},
        "shape-mismatch",
        ("[3]", "[4, 3, 3, 3]"),
    ),
    "computed": (
        {"x": Encoding(QParams("int8", Quantization.per_tensor(1)), integers=np.zeros(3, np.int8))},
        "integers-not-constant",
        ("'x'",),
    ),
    "shape": ({"s": quantization(1)}, "not-a-float-tensor", ("'s'", "int64")),
    "twice": ({"w": CHANNELS, Place("r", "output", 0): quantization(1), "r": quantization(2)}, "encoding-twice", ("output 0 of 'r'",)),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_does_not_fit_is_an_error(case: str) -> None:
    entries, rule, named = ERRORS[case]
    with refused(InvalidModelError, rule, holds=named):
        apply(network(), Encodings(entries))  # type: ignore[arg-type]


def test_one_scale_along_an_axis_of_one_is_one_scale() -> None:
    along = Encoding(QParams("int8", Quantization.per_axis([0.05], 0)))
    changed = apply(network(), Encodings({"x": along, "r": quantization(0.03, -128), "w": CHANNELS}))
    assert all(t.quantization.axis is None for t in changed.tensors.values() if t.quantization is not None and not t.is_constant)


@pytest.mark.formats
def test_a_model_without_scales_has_none_to_extract(tmp_path: Path) -> None:
    save(network(), tmp_path / "float.onnx")
    with refused(UnsupportedError, "nothing-quantized"):
        extract_file(tmp_path / "float.onnx", tmp_path / "scales.json")
    assert not (tmp_path / "scales.json").exists()


def test_inputs_are_operators_of_runtimes() -> None:
    changed, notes = quantize_by_encodings(
        network(), Encodings({Place("x", "output"): quantization(0.05), Place("r", "input", 1): CHANNELS})
    )
    assert "Quantize" in kinds(changed) and any("1 activation and 1 constant are quantized" in str(note) for note in notes)


def test_the_output_of_a_layer_is_behind_its_relu() -> None:
    by_operator = apply(
        network(), Encodings({"x": quantization(0.05), Place("/layer/conv", "output"): quantization(0.03, -128), "w": CHANNELS})
    )
    assert diff(by_operator, apply(network(), Encodings({"x": quantization(0.05), "r": quantization(0.03, -128), "w": CHANNELS}))) == []
    before = apply(network(), Encodings({"x": quantization(0.05), "c": quantization(0.03), "w": CHANNELS}))
    assert before["c"].dtype == "int8"


def test_what_runtimes_add_may_be_absent() -> None:
    assert CHANNELS.qparams is not None
    found = Encodings({"nothing": Encoding(CHANNELS.qparams, required=False), "x": quantization(0.05)})
    assert "Quantize" in kinds(apply(network(), found))


def test_a_quantized_tensor_takes_no_encoding() -> None:
    once = apply(network(), Encodings({"x": quantization(0.05), "r": quantization(0.03, -128), "w": CHANNELS}))
    with refused(InvalidModelError, "not-a-float-tensor", where="'w'"):
        apply(once, Encodings({"w": CHANNELS}))


@pytest.mark.formats
@pytest.mark.parametrize(
    "case", ["torch_mobilenet_v2_qdq", "micro_kws_m_static_qdq", "torch_fx_fbgemm_vision", "torch_pt2e_xnnpack_attention"]
)
def test_a_model_apart_and_together_is_itself(case: str) -> None:
    graph = load(FIXTURES / "onnx" / f"{case}.onnx")
    real, found = extract_scales(graph)
    assert not any(tensor.is_quantized for tensor in real.tensors.values())
    assert diff(graph, apply(real, found)) == []


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("name", ["tiny_resnet_cifar10_int8", "tiny_kws_dscnn_int8", "coral_mobilenet_v1_025_128_uint8"])
def test_a_tflite_model_through_files(name: str, tmp_path: Path) -> None:
    """A float ONNX file and a JSON file give the source's integers back, for ONNX and for TFLite."""
    model = FIXTURES / f"{name}.tflite"
    real, found = extract_scales(model)
    convert_real = tmp_path / "float.qgraph"
    save(real, convert_real)
    convert(convert_real, tmp_path / "float.onnx")
    save_encodings(found, tmp_path / "scales.json")
    source = load(model)
    for suffix in ("onnx", "tflite"):
        result = tmp_path / f"quantized.{suffix}"
        report = convert(tmp_path / "float.onnx", result, encodings=str(tmp_path / "scales.json"))
        assert report.provenance["qconvert.encodings"] == "scales.json" and str(tmp_path) not in str(dict(report.provenance))
        again = load(result)
        for op in source.ops:
            if op.kind in ("Conv", "Gemm"):
                old, new = source[op.inputs[1]], again[op.inputs[1]]
                real = [np.asarray(item.data, int) - _points(item) for item in (old, new)]
                np.testing.assert_array_equal(real[0].ravel(), real[1].ravel())
        assert check(model, result).passed


def test_roundings_one_after_the_other_come_back_through_files(tmp_path: Path) -> None:
    """As in files for runtimes of unsigned data: a Requantize of the input, and one in the middle, are Identities in float."""
    quantizations = {"x": ("int8", 0.1, 3), "u": ("uint8", 0.1, 131), "r": ("uint8", 0.1, 131), "y": ("uint8", 0.05, 90)}
    tensors = {name: Tensor(name, dtype, (1, 4), None, Quantization.per_tensor(s, z)) for name, (dtype, s, z) in quantizations.items()}
    ops = (Op("Requantize", ("x",), ("u",)), Op("Relu", ("u",), ("r",)), Op("Requantize", ("r",), ("y",)))
    real, found = extract_scales(Graph("one", tensors, ops, ("x",), ("y",)))
    save(real, tmp_path / "float.onnx")
    again = apply(load(tmp_path / "float.onnx"), encodings=found)
    stored = {(tensor.dtype, q.step, q.point) for tensor in again.tensors.values() if (q := tensor.per_tensor) is not None}
    assert stored == {(dtype, np.float32(scale), point) for dtype, scale, point in quantizations.values()}
    assert kinds(again).count("Requantize") == 2
    codes = np.array([[-128, 0, 3, 127]])
    floats = {"x": ((codes - 3) * 0.1).astype(np.float32)}
    np.testing.assert_allclose(evaluate(again, floats)["y"], [[0, 0, 0, 165 * 0.05]], rtol=1e-6)


def _points(tensor: Tensor) -> np.ndarray:
    """The zero points, in a shape that spreads over the integers."""
    assert tensor.quantization is not None
    return scale_and_zero_point(tensor.quantization, tensor.static_shape or ())[1]


def test_options_that_are_none() -> None:
    with refused(OptionError, "unknown-fill"):
        apply(network(), Encodings({}), fill="all")


def test_functions_are_refused() -> None:
    inner = network()
    graph = Graph("outer", {"x": inner["x"]}, (), ("x",), ("x",), functions={"f": inner})
    with refused(UnsupportedError, "subgraphs-not-covered"):
        extract_scales(graph)
    with refused(UnsupportedError, "has-functions"):
        apply(graph, Encodings({}))


@pytest.mark.formats
def test_options_of_the_reader_of_encodings(tmp_path: Path) -> None:
    """MNN's dump of its method KL names tensors by numbers; the .mnn next to it is named by an option of its reader."""
    mnn = FIXTURES / "mnn"
    dump, net = mnn / "KL_dump.json", mnn / "KL.mnn"
    report = convert(mnn / "float.onnx", tmp_path / "q.onnx", encodings=str(dump), mnn=str(net))
    assert report.provenance["qconvert.mnn"] == net.name and str(FIXTURES) not in str(dict(report.provenance))
    with refused(OptionError, "source-overwritten"):
        convert(mnn / "float.onnx", net, encodings=str(dump), mnn=str(net), force=True, result_format="mnn")
    with refused(OptionError, "unknown-option", holds=("nothing",)):
        convert(mnn / "float.onnx", tmp_path / "r.onnx", encodings=str(dump), nothing=1)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
def test_a_check_with_the_scales(tmp_path: Path) -> None:
    """Without them a quantized result of a float source is not judged; with others it is not equal."""
    scales, source = tmp_path / "scales.json", tmp_path / "float.onnx"
    save(network(), source)
    for name, scale in (("scales", 0.03), ("others", 0.06)):
        save_encodings(Encodings({"x": quantization(0.05), "r": quantization(scale, -128), "w": CHANNELS}), tmp_path / f"{name}.json")
    for suffix in ("onnx", "tflite"):
        result = tmp_path / f"quantized.{suffix}"
        convert(source, result, encodings=str(scales))
        assert check(source, result).verdict == "inconclusive"
        assert check(source, result, encodings=scales, min_sqnr=3).passed  # scales that keep 3.8 dB of this network
        assert check(source, result, encodings=tmp_path / "others.json").verdict == "not equal"


def in_blocks(kind: str, shape: tuple[int, ...]) -> Graph:
    """x times constant weights "w" of a shape, as a layer of a kind."""
    attributes = {
        "Conv": {**EDGES, "strides": (1, 1), "dilations": (1, 1), "group": 1},
        "ConvTranspose": {**EDGES, "strides": (1, 1), "dilations": (1, 1), "group": 1, "output_padding": (0, 0)},
    }.get(kind, {})
    spatial = (1, 1) if len(shape) == 4 else ()
    inputs, outputs = (shape[0], shape[1]) if kind == "MatMul" else (shape[1], shape[0])
    weights = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) - 5
    tensors = [
        Tensor("x", "float32", (1, inputs, *spatial)),
        Tensor("w", "float32", shape, weights),
        Tensor("y", "float32", (1, outputs, *spatial)),
    ]
    return Graph("net", {t.name: t for t in tensors}, (Op(kind, ("x", "w"), ("y",), attributes),), ("x",), ("y",))


def blocks_of_layer(count: int, size: int) -> Encodings:
    scale = np.arange(1, count + 1, dtype=np.float32)
    return Encodings({"w": Encoding(QParams("int8", Quantization(scale, np.zeros(count, np.int64), None, size)))})


@pytest.mark.parametrize(("kind", "shape"), [("Gemm", (2, 6)), ("MatMul", (6, 2)), ("Conv", (2, 6, 1, 1))])
def test_blocks_without_an_axis_are_channel_by_channel(kind: str, shape: tuple[int, ...]) -> None:
    """Scales 1, 2 are those of the first output channel, inputs 0 to 3 and 4 and 5; 3 and 4 those of the second."""
    changed = apply(in_blocks(kind, shape), blocks_of_layer(4, 4))
    q = changed["w"].quantization
    assert q is not None and q.block_size == 4 and q.axis == (0 if kind == "MatMul" else 1)
    by_output = q.scale.T if kind == "MatMul" else q.scale.reshape(2, 2)
    np.testing.assert_array_equal(by_output, [[1, 2], [3, 4]])


def test_one_scale_stands_for_all_places_of_a_kernel() -> None:
    q = Quantization(np.float32([[[[1]], [[2]]], [[[3]], [[4]]]]), np.zeros((2, 2, 1, 1), np.int64), 1, 4)
    graph = network()
    wide = Tensor("w", "float32", (2, 6, 3, 3), np.ones((2, 6, 3, 3), np.float32))
    tensors = [Tensor("x", "float32", (1, 6, 8, 8)), wide, Tensor("c", "float32", (1, 2, 6, 6))]
    graph = Graph(
        "net", {t.name: t for t in tensors}, (graph.ops[0].__class__("Conv", ("x", "w"), ("c",), graph.ops[0].attributes),), ("x",), ("c",)
    )
    found = apply(graph, Encodings({"w": Encoding(QParams("int8", q))}))["w"].quantization
    assert found is not None
    np.testing.assert_array_equal(found.scale, np.broadcast_to(q.scale, (2, 2, 3, 3)))


@pytest.mark.parametrize(
    ("kind", "shape", "count", "size", "named"),
    [
        ("Gemm", (2, 6), 5, 4, ("2 channels", "2 blocks of 4")),
        ("Gemm", (2, 6), 2, 4, ("2 channels", "2 blocks of 4")),
        ("ConvTranspose", (6, 2, 1, 1), 4, 4, ("blocks of 4", "Conv, Gemm or MatMul")),
    ],
)
def test_blocks_that_do_not_fit(kind: str, shape: tuple[int, ...], count: int, size: int, named: tuple[object, ...]) -> None:
    with refused(InvalidModelError, "blocks-do-not-fit", where="'w'", holds=named):
        apply(in_blocks(kind, shape), blocks_of_layer(count, size))


def test_data_take_no_blocks_without_an_axis() -> None:
    found = Encodings({"x": Encoding(QParams("int8", Quantization(np.ones(2, np.float32), np.zeros(2, np.int64), None, 3)))})
    with refused(InvalidModelError, "blocks-do-not-fit", where="'x'"):
        apply(in_blocks("Gemm", (2, 6)), found)


def test_what_follows_from_encodings() -> None:
    """The result before a Relu, the bias and what is moved; not what a Relu does not read alone. Applied, the integers are the same."""
    given = Encodings({"x": quantization(0.05), "r": quantization(0.03, -128), "p": quantization(0.03, -128), "w": CHANNELS})
    found = add_implied_encodings(network(), given)
    assert found.entries.keys() - given.entries.keys() == {Place("c"), Place("b"), Place("y")}
    assert found["c"].qparams == found["y"].qparams == given["r"].qparams
    bias = found["b"].qparams
    assert bias is not None and bias.dtype == "int32"
    np.testing.assert_array_equal(bias.quantization.scale, np.full(4, np.float32(0.05) * np.float32(0.02)))
    both = network().evolve(outputs=("y", "c"))
    assert Place("c") not in add_implied_encodings(both, given).entries
    fine = Encodings({"x": quantization(1e-9), "w": quantization(1e-9)})
    assert Place("b") not in add_implied_encodings(network(), fine).entries  # its integers would have more than 32 bits
    channels = Encodings({"r": Encoding(QParams("int8", Quantization(np.full(4, 0.03), np.zeros(4, np.int64), 1)))})
    assert add_implied_encodings(network(), channels).entries == channels.entries
    ranged = Encodings({"p": quantization(0.03, -128), "r": Encoding(range=Range(np.array([0.0]), np.array([1.0])))})
    assert add_implied_encodings(network(), ranged).entries.keys() == {*map(Place, "rpy")}  # of a range nothing follows
    whole = found.evolve({place: entry for place, entry in found.entries.items() if place != Place("b")})  # apply() makes biases
    feed = {"x": RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)}
    np.testing.assert_array_equal(evaluate(apply(network(), whole), feed)["y"], evaluate(apply(network(), given), feed)["y"])


@pytest.mark.parametrize(("filler", "known"), [(0.0, {"x", "y"}), (9.0, {"x"})])
def test_what_fills_gaps_has_an_integer(filler: float, known: set[str]) -> None:
    """Data of a Pad imply its result, unless what it adds may be rounded by their scale."""
    tensors = [
        Tensor("x", "float32", (2, 3)),
        Tensor("pads", "int64", (4,), np.array([0, 1, 0, 0])),
        Tensor("filler", "float32", (), np.array(filler, np.float32)),
        Tensor("y", "float32", (2, 4)),
    ]
    graph = Graph("pad", {tensor.name: tensor for tensor in tensors}, (Op("Pad", ("x", "pads", "filler"), ("y",)),), ("x",), ("y",))
    assert add_implied_encodings(graph, Encodings({"x": quantization(0.01)})).entries.keys() == {*map(Place, known)}
