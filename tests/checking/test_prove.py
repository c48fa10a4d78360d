"""prove() and `check --prove`: what is equal for all inputs, what is not, and at which inputs."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import forked
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from tflite_models import OpSpec, TensorSpec, model, single_op

from qconvert import Proof, check, convert, load, prove, run, save
from qconvert.checking.proof.classes import Proved
from qconvert.graph import Graph, Op, Quantization, Tensor, numpy_dtype
from qconvert.kernels import KERNELS
from qconvert.kernels.accumulators import accumulator_of
from qconvert.kernels.proofs import integers_for_all

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from mutation_score import score
from proof_mutants import find_mutants

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

FIXTURES = Path(__file__).parents[2] / "fixtures"


def classes(proof: Proof) -> Counter[str]:
    return Counter(item.class_ for item in proof.operators)


def test_a_single_operator_is_counted_in_the_singular() -> None:
    proof = Proof((Proved("MUL #0", "y", "R1"),), (), (), (), False, False)
    assert proof.sentence == "proved: 0 of 1 operator equal for all inputs (1 R1)"


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    source, result = FIXTURES / "tiny_resnet_cifar10_int8.tflite", tmp_path_factory.mktemp("proof") / "result.onnx"
    convert(source, result)
    return source, result


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("tiny_ad_toycar_int8", {"E0": 10}),
        ("tflm_mobilenet_v2_from_torch_int8", {"E0": 53, "E1": 11}),
        ("tflm_seanet_conv_int16x8", {"E1": 1}),
        ("mww_okay_nabu_streaming_int8", {"E0": 32, "E1": 1}),
        ("tflm_person_detect_int8", {"E0": 28, "E1": 2}),  # all pairs of its Softmax of two classes
    ],
)
def test_outputs_are_equal_for_all_inputs_where_all_operators_are(name: str, wanted: dict[str, int], tmp_path: Path) -> None:
    source, result = FIXTURES / f"{name}.tflite", tmp_path / "result.onnx"
    convert(source, result)
    found = check(source, result)
    assert found.passed and found.proof is not None and "proved equal for all inputs, and every output element is equal" in found.sentence
    assert classes(found.proof) == wanted
    assert found.proof.equal_for_all_inputs and not found.proof.problems and not found.proof.lost
    assert found.proof.sentence.startswith(f"proved equal for all inputs: {sum(wanted.values())} operator")


@pytest.mark.parametrize(
    ("numerics", "words", "wanted"), [("exact", "", {"E1": 1, "E0": 11}), ("fast", " once they are quantized", {"R1": 1, "E0": 11})]
)
def test_float_inputs_are_equal(numerics: str, words: str, wanted: dict[str, int], tmp_path: Path) -> None:
    """XNNPACK's QUANTIZE multiplies by the inverse of the scale, as a Mul in front of a QuantizeLinear does, which divides by it alone."""
    graph = load(FIXTURES / "tiny_ad_toycar_int8.tflite")
    given, last = graph[graph.inputs[0]], graph[graph.outputs[0]]
    ends = [Tensor("x", "float32", given.shape), Tensor("y", "float32", last.shape)]
    ops = [Op("Quantize", ("x",), (given.name,)), *graph.ops, Op("Dequantize", (last.name,), ("y",))]
    save(graph.evolve(tensors=ends, ops=ops, inputs=("x",), outputs=("y",)), tmp_path / "float.tflite")
    convert(tmp_path / "float.tflite", tmp_path / "float.onnx", numerics=numerics)
    found = check(tmp_path / "float.tflite", tmp_path / "float.onnx")
    assert found.passed and found.proof is not None
    assert f"proved equal for all inputs{words}, and" in found.sentence
    assert classes(found.proof) == wanted and found.proof.equal_for_all_inputs == (not words)


@pytest.mark.parametrize(("scale", "point"), [(0.25, -3), (0.1, 7)])
def test_every_float_is_tried_at_a_quantization(scale: float, point: int, tmp_path: Path) -> None:
    """Of a power of two both runtimes give the same; else the numbers around each tie are counted, as a run of them shows."""
    ties = (np.arange(-129, 128) + 0.5 - point) * np.float64(np.float32(scale))
    data = np.unique(ties.astype(np.float32).view(np.int32)[:, None] + np.arange(-4, 5, dtype=np.int32)).astype(np.int32).view(np.float32)
    tensors = [Tensor("x", "float32", data.shape), Tensor("y", "int8", data.shape, None, Quantization.per_tensor(scale, point))]
    graph = Graph("quantize", {tensor.name: tensor for tensor in tensors}, (Op("Quantize", ("x",), ("y",)),), ("x",), ("y",))
    places = [tmp_path / "x.onnx", tmp_path / "y.tflite"]
    save(graph, places[0])
    convert(places[0], places[1], numerics="fast")  # by default inputs are divided as in onnxruntime
    (item,) = (proof := prove(*places)).operators
    here, there = (run(place, {"x": data})["y"] for place in places)
    differing = int((here.astype(int) != there).sum())
    assert (item.class_, item.method, bool(differing)) == ("R1" if differing else "E1", "thresholds", scale == 0.1)
    assert proof.equal_for_all_inputs == (not differing)
    assert not differing or item.why.startswith(f"{differing} of 4294967296 float32 numbers")


def test_a_softmax_of_many_classes_adds_as_its_kernel_does(tmp_path: Path) -> None:
    """Data for which one rounding less, as of onnxruntime's x / y in place of x * (1 / y), gives another integer."""
    data = np.array([[-94, -99, -89, -125, -76, -97, -88, -123, -84, -98, -112, -97]], np.int8)
    sides = [("x", 0.027187826111912727, -30), ("y", 1 / 256, -128)]
    tensors = {name: Tensor(name, "int8", (1, 12), None, Quantization.per_tensor(scale, point)) for name, scale, point in sides}
    source, result = tmp_path / "x.tflite", tmp_path / "y.onnx"
    save(Graph("softmax", tensors, (Op("Softmax", ("x",), ("y",), {"beta": 1.0}),), ("x",), ("y",)), source)
    convert(source, result)
    assert prove(source, result).equal_for_all_inputs
    assert np.array_equal(*(run(place, {"x": data})["y"] for place in (source, result)))


def _function(path: Path, kind: str, **attributes: float) -> Path:
    """One function of bytes."""
    sides = [("x", 0.03, 5), ("y", 0.0078125, -10)]
    tensors = {name: Tensor(name, "int8", (256,), None, Quantization.per_tensor(scale, point)) for name, scale, point in sides}
    save(Graph(kind, tensors, (Op(kind, ("x",), ("y",), attributes),), ("x",), ("y",)), path)
    return path


@pytest.mark.parametrize("kind", ["Mish", "Softsign", "Erf"])
def test_a_function_that_is_written_with_others_is_compared_on_all_codes(kind: str, tmp_path: Path) -> None:
    """Mish and Softsign are float arithmetic in TFLite, Erf is a table."""
    source, result = _function(tmp_path / "x.onnx", kind), tmp_path / "y.tflite"
    convert(source, result)
    assert len(load(result).ops) > 3
    (item,) = (proof := prove(source, result)).operators
    assert (item.class_, item.method) == ("E1", "256 codes") and proof.equal_for_all_inputs and not proof.lost
    codes = {"x": np.arange(-128, 128, dtype=np.int8)}
    assert np.array_equal(*(run(place, codes)["y"] for place in (source, result)))


def test_a_result_computes_in_float_between_dequantize_and_quantize(tmp_path: Path) -> None:
    """LiteRT's SQRT of bytes drops fractions; the target tflite-micro has the operator in float, which rounds them."""
    names = TensorSpec("x", (1, 64), "int8", 0.01, -128), TensorSpec("y", (1, 64), "int8", 0.007, -128)
    source, result = tmp_path / "source.tflite", tmp_path / "result.tflite"
    source.write_bytes(single_op("SQRT", None, names[:1], names[1:]))
    convert(source, result, target="tflite-micro")
    (found,) = prove(source, result).operators
    assert (found.class_, found.method) == ("R1", "256 codes")
    assert check(source, result).passed


def test_a_function_with_another_constant_is_another_one(tmp_path: Path) -> None:
    source, other = (_function(tmp_path / f"{alpha}.onnx", "HardSigmoid", alpha=alpha, beta=0.5) for alpha in (0.2, 0.21))
    convert(other, tmp_path / "y.tflite")
    (item,) = (proof := prove(source, tmp_path / "y.tflite")).operators
    codes = {"x": np.arange(-128, 128, dtype=np.int8)}
    here, there = (run(place, codes)["y"].astype(int) for place in (source, tmp_path / "y.tflite"))
    assert item.class_ == "R1" and item.why.startswith(f"{(here != there).sum()} of 256 codes differ") and not proof.equal_for_all_inputs


def test_tensors_that_are_requantized_before_they_are_joined_are_compared_on_their_codes(tmp_path: Path) -> None:
    """TFLite's CONCATENATION takes one quantization, so that a QUANTIZE comes before it. Operands in another order are others."""
    for path, order in ((tmp_path / "x.onnx", "abc"), (tmp_path / "other.onnx", "bac")):
        sides = [("a", 8, 0.0625), ("b", 8, 0.125), ("c", 8, 0.0625), ("y", 24, 0.03125)]
        tensors = {name: Tensor(name, "int8", (4, size), None, Quantization.per_tensor(scale, 3)) for name, size, scale in sides}
        save(Graph("joined", tensors, (Op("Concat", tuple(order), ("y",), {"axis": 1}),), tuple("abc"), ("y",)), path)
        convert(path, path.with_suffix(".tflite"))
    assert [op.kind for op in load(tmp_path / "x.tflite").ops].count("Requantize") == 3
    (item,) = (proof := prove(tmp_path / "x.onnx", tmp_path / "x.tflite")).operators
    assert (item.class_, item.method) == ("E1", "768 codes") and proof.equal_for_all_inputs
    assert not {"E0", "E1"} & set(classes(prove(tmp_path / "x.onnx", tmp_path / "other.tflite")))


@pytest.mark.parametrize(("scale", "wanted"), [(0.05, ("E1", "65536 pairs")), (14.7, ("?", ""))])
def test_comparisons_are_compared_on_all_pairs(scale: float, wanted: tuple[str, str], tmp_path: Path) -> None:
    """Those of LiteRT multiply by scales, which have to be below 1: from 1 on most codes are equal to it."""
    given = {name: Tensor(name, "uint8", (256, 256), None, Quantization.per_tensor(scale, 7)) for name in "ab"}
    tensors = {**given, "y": Tensor("y", "bool", (256, 256))}
    save(Graph("comparison", tensors, (Op("NotEqual", ("a", "b"), ("y",)),), ("a", "b"), ("y",)), tmp_path / "x.tflite")
    convert(tmp_path / "x.tflite", tmp_path / "y.onnx")
    (item,) = prove(tmp_path / "x.tflite", tmp_path / "y.onnx").operators
    codes = np.arange(256, dtype=np.uint8)
    data = dict(zip("ab", np.meshgrid(codes, codes), strict=True))
    here, there = (run(tmp_path / name, data)["y"] for name in ("x.tflite", "y.onnx"))
    assert (item.class_, item.method) == wanted and np.array_equal(here, there) is (item.class_ == "E1")


@pytest.mark.parametrize(("scale", "other"), [(0.1, 0.07), (0.1, 0.1), (0.03, 0.017)])
def test_averages_are_compared_on_all_sums(scale: float, other: float, tmp_path: Path) -> None:
    """Of 4 bytes there are 1021 sums; a run of them shows as many differences."""
    sides = [("x", (1021, 1, 2, 2), scale, 3), ("y", (1021, 1, 1, 1), other, 7)]
    tensors = {name: Tensor(name, "uint8", shape, None, Quantization.per_tensor(each, point)) for name, shape, each, point in sides}
    average = Op("GlobalAveragePool", ("x",), ("y",), {"data_format": "channels_first"})
    save(Graph("average", tensors, (average,), ("x",), ("y",)), tmp_path / "x.onnx")
    convert(tmp_path / "x.onnx", tmp_path / "y.tflite")
    (item,) = prove(tmp_path / "x.onnx", tmp_path / "y.tflite").operators
    sums = np.arange(1021)[:, None]
    data = {"x": (sums // 4 + (np.arange(4) < sums % 4)).astype(np.uint8).reshape(1021, 1, 2, 2)}
    here, there = (run(tmp_path / name, data)["y"] for name in ("x.onnx", "y.tflite"))
    differing = int((here != there).sum())
    assert (item.class_, item.method) == ("R1" if differing else "E1", "1021 sums")
    assert not differing or item.why == f"{differing} of 1021 sums differ, by at most 1"


def test_an_average_of_all_positions_is_compared_on_all_sums(tmp_path: Path) -> None:
    """onnxruntime runs it by the kernel of GlobalAveragePool, whose integers follow from the sum; the nearest tie is 1 / 2178 away."""
    quantization = Quantization.per_tensor(0.17556647956371307, 131)
    tensors = [Tensor(name, "uint8", (1, size, size, 4), None, quantization) for name, size in (("x", 33), ("y", 1))]
    window = {"kernel_shape": (33, 33), "strides": (1, 1), "pads": (0, 0, 0, 0), "data_format": "channels_last"}
    graph = Graph("average", {tensor.name: tensor for tensor in tensors}, (Op("AveragePool", ("x",), ("y",), window),), ("x",), ("y",))
    save(graph, tmp_path / "m.tflite")
    convert(tmp_path / "m.tflite", tmp_path / "m.onnx")
    (item,) = prove(tmp_path / "m.tflite", tmp_path / "m.onnx").operators
    assert (item.class_, item.method) == ("E1", "277696 sums")


def test_averages_of_a_kernel_without_a_reference_are_compared_where_none_is_near_a_tie(tmp_path: Path) -> None:
    """onnxruntime computes a ReduceMean in float; a mean of 9 bytes is at least 1/18 from a tie, one of 4 may be a tie."""
    found = {}
    for count in (9, 4):
        quantization, axes = Quantization.per_tensor(0.1, 3), Tensor("a", "int64", (1,), np.array([1]))
        ends = [Tensor("x", "uint8", (2, count), None, quantization), Tensor("y", "uint8", (2,), None, quantization)]
        mean = Op("ReduceMean", ("x", "a"), ("y",), {"keepdims": 0})
        save(Graph("mean", {item.name: item for item in (*ends, axes)}, (mean,), ("x",), ("y",)), source := tmp_path / f"{count}.onnx")
        convert(source, source.with_suffix(".tflite"))
        found[count] = [(item.class_, item.method) for item in prove(source, source.with_suffix(".tflite")).operators]
    assert found == {9: [("E1", "2296 sums")], 4: [("A", "tolerances")]}


def test_means_of_many_elements_are_not_decided_by_the_exact_ones(tmp_path: Path) -> None:
    """onnxruntime adds rows one by one in float32: of 401 bytes, whose mean is at least 1/802 from a tie, it makes another integer."""
    quantization, axes = Quantization.per_tensor(0.016220147, 0), Tensor("a", "int64", (1,), np.array([1]))
    ends = [Tensor("x", "uint8", (1, 401, 8), None, quantization), Tensor("y", "uint8", (1, 8), None, quantization)]
    mean = Op("ReduceMean", ("x", "a"), ("y",), {"keepdims": 0})
    save(Graph("mean", {item.name: item for item in (*ends, axes)}, (mean,), ("x",), ("y",)), source := tmp_path / "x.onnx")
    convert(source, result := tmp_path / "y.tflite")
    data = np.repeat(np.array([255] * 201 + [254] * 200, np.uint8)[None, :, None], 8, axis=2)
    total = np.add.accumulate(np.float32(quantization.step) * data[0, :, 0].astype(np.float32), dtype=np.float32)[-1]
    assert np.rint(total / np.float32(401) / np.float32(quantization.step)) == 254
    assert run(result, {"x": data})["y"].tolist() == [[255] * 8]
    (item,) = prove(source, result).operators
    assert (item.class_, item.method) == ("A", "tolerances")


@pytest.mark.parametrize("second", [(0.05, 20), (0.1, 20)])
def test_roundings_that_onnxruntime_merges_are_not_proved(second: tuple[float, int], tmp_path: Path) -> None:
    """DoubleQDQPairsRemover makes one QuantizeLinear of two, with other integers; not if the integers between them are an output."""
    quantizations = {"x": None, "a": Quantization.per_tensor(0.1, 0), "b": Quantization.per_tensor(*second), "y": None}
    tensors = {name: Tensor(name, "int8" if item else "float32", (1, 600), None, item) for name, item in quantizations.items()}
    kinds = (("Quantize", "x", "a"), ("Requantize", "a", "b"), ("Dequantize", "b", "y"))
    ops = tuple(Op(kind, (given,), (result,)) for kind, given, result in kinds)
    data = {"x": np.linspace(-13, 13, 600, dtype=np.float32).reshape(1, 600)}
    for outputs, differs in ((("y",), True), (("y", "b"), False)):
        source, result = tmp_path / f"{len(outputs)}.onnx", tmp_path / f"{len(outputs)}.tflite"
        save(Graph("twice", tensors, ops, ("x",), outputs), source)
        convert(source, result)
        assert (not np.array_equal(*(run(path, data)["y"] for path in (source, result)))) == differs
        assert (prove(source, result).claim == "") == differs


@pytest.mark.parametrize("second", [(0.06, 23), (0.12, 23)])
def test_a_quantize_that_onnxruntime_would_merge_is_kept_apart(second: tuple[float, int], tmp_path: Path) -> None:
    """With one scale and another zero point too, from which onnxruntime makes a range, and a scale, that both have."""
    quantizations = {"x": (0.1, 0), "a": (0.12, 3), "b": second}
    tensors = {name: Tensor(name, "int8", (1, 256), None, Quantization.per_tensor(*item)) for name, item in quantizations.items()}
    tensors["y"] = Tensor("y", "float32", (1, 256))
    ops = (Op("Add", ("x", "x"), ("a",), {"activation": ""}), Op("Requantize", ("a",), ("b",)), Op("Dequantize", ("b",), ("y",)))
    source, result = tmp_path / "source.tflite", tmp_path / "result.onnx"
    save(Graph("moved", tensors, ops, ("x",), ("y",)), source)
    convert(source, result, target="ort-x86")
    data = np.arange(-128, 128, dtype=np.int8).reshape(1, 256)
    assert np.array_equal(run(source, {"x": data})["y"], run(result, {"x": data})["y"])
    assert prove(source, result).claim == "proved equal for all inputs"


def test_what_follows_an_operator_that_is_not_compared_is_compared(tmp_path: Path) -> None:
    """A convolution with a BatchNormalization has a result of 8 channels of 8 x 8, whose shape does not show the order of its axes."""
    source = FIXTURES / "onnx" / "torch_fx_qat_vision.onnx"
    convert(source, tmp_path / "y.tflite")
    named = {item.operator: item.class_ for item in prove(source, tmp_path / "y.tflite").operators}
    assert [named[f"{kind} /{name}"] for kind, name in (("Conv", "pointwise/Conv"), ("Add", "Add"), ("MaxPool", "pool/MaxPool"))] == [
        "E0",
        "E1",
        "E0",
    ]


def test_indices_may_be_counted_from_the_front_before_a_gather(tmp_path: Path) -> None:
    table = Tensor("table", "int8", (5, 3), np.arange(15, dtype=np.int8).reshape(5, 3), Quantization.per_tensor(0.5, 0))
    tensors = [table, Tensor("x", "int64", (4,)), Tensor("y", "int8", (4, 3), None, table.quantization)]
    op = Op("Gather", ("table", "x"), ("y",), {"axis": 0})
    save(Graph("rows", {item.name: item for item in tensors}, (op,), ("x",), ("y",)), tmp_path / "x.onnx")
    convert(tmp_path / "x.onnx", tmp_path / "y.tflite")
    assert "FloorMod" in [op.kind for op in load(tmp_path / "y.tflite").ops]
    found = prove(tmp_path / "x.onnx", tmp_path / "y.tflite")
    assert found.equal_for_all_inputs and classes(found) == {"E0": 1}


def test_what_is_not_equal_is_named_with_the_codes(tmp_path: Path) -> None:
    """A QUANTIZE of XNNPACK's 8 fractional bits: the plain form of "fast" is another function of some codes."""
    source, fast = FIXTURES / "coral_deeplabv3_mnv2_dm05_uint8.tflite", tmp_path / "fast.onnx"
    convert(source, fast, numerics="fast")
    found = prove(source, fast)
    assert not found.equal_for_all_inputs
    one = next(item for item in found.operators if item.operator == "QUANTIZE #65")
    assert (one.class_, one.method, one.why) == ("R1", "256 codes", "30 of 256 codes differ, by at most 1")


def test_a_difference_of_two_requantizers_comes_with_an_accumulator_where_it_is(resnet: tuple[Path, Path]) -> None:
    source, result = resnet
    proof = prove(source, result, kernels="litert:reference")
    first = next(item for item in proof.operators if item.class_ == "R1" and item.method == "thresholds")
    graph = load(source)
    op = next(op for op in graph.ops if op.source == first.operator)
    words = first.why.split("such as ")[1].replace(",", "").replace(":", "").split()
    acc, channel, here, there = (int(words[place]) for place in (0, 3, 4, 8))
    sums = accumulator_of(graph, op)
    assert sums is not None and sums.low[channel] <= acc <= sums.high[channel]
    point = int(graph[op.outputs[0]].quantization.zero_point[0]) + 128  # the result has uint8
    for name, wanted in (("litert:reference", here), ("litert:default", there)):
        kernel = KERNELS[name].of(graph, op).reference
        found = int(kernel.steps(np.array([acc]), kernel.multiplier(graph, op)[channel : channel + 1])[0]) + point
        assert found == wanted
    assert here != there


def test_a_form_for_other_kernels_proves_nothing(resnet: tuple[Path, Path]) -> None:
    """Nudged scales give XNNPACK's additions in QLinearAdd, which onnxruntime uses with its optimizations alone."""
    found = prove(*resnet, kernels="onnxruntime:unoptimized")
    forms = [item for item in found.operators if item.operator.startswith(("ADD", "AVERAGE"))]
    assert {item.class_ for item in forms} <= {"?", "A"} and any("another set of kernels" in item.why for item in forms)
    kernels = ["onnxruntime:unoptimized", "onnxruntime:optimized"]
    assert "E1" not in classes(prove(resnet[1], resnet[1], kernels=kernels)), "the source has forms too"


def test_a_float_model_is_never_proved(tmp_path: Path) -> None:
    source, result = FIXTURES / "recurrent" / "lstm_float.tflite", tmp_path / "result.onnx"
    convert(source, result)
    found = prove(source, result)
    assert not found.equal_for_all_inputs and "E1" not in classes(found) and classes(found)["?"]


def _inserted(model: onnx.ModelProto, kind: str, following: str, *constants: float) -> None:
    """An operator of float values after a tensor."""
    graph = model.graph
    for node in graph.node:
        node.input[:] = [f"{name}/planted" if name == following else name for name in node.input]
    names = [f"planted{place}" for place in range(len(constants))]
    graph.initializer.extend(numpy_helper.from_array(np.float32(value), name) for name, value in zip(names, constants, strict=True))
    place = next(place for place, node in enumerate(graph.node) if following in node.output)
    graph.node.insert(place + 1, helper.make_node(kind, [following, *names], [f"{following}/planted"]))


def _change(model: onnx.ModelProto, dtype: int, amount: float) -> None:
    item = next(item for item in model.graph.initializer if item.data_type == dtype and np.prod(item.dims) > 8)
    values = numpy_helper.to_array(item).copy()
    values.reshape(-1)[3] += values.dtype.type(amount)
    item.CopyFrom(numpy_helper.from_array(values, item.name))


def _real(model: onnx.ModelProto, kind: str, which: int) -> str:
    """The real result of one of the operators of a kind."""
    return str([node for node in model.graph.node if node.op_type == kind][which].output[0])


@pytest.mark.parametrize(
    "plant",
    [
        lambda m: _inserted(m, "Clip", _real(m, "Add", 0), -1e9, 5.0),
        lambda m: _inserted(m, "Relu", _real(m, "Conv", 2)),
        lambda m: _inserted(m, "Add", _real(m, "Conv", 3), 1e-3),
        lambda m: _inserted(m, "Mul", _real(m, "Gemm", 0), 1 + 2**-20),
        lambda m: _change(m, TensorProto.INT8, 1),
        lambda m: _change(m, TensorProto.INT32, 1),
    ],
    ids=["a bound that few inputs reach", "a Relu", "a little more", "a little larger", "a weight", "a bias"],
)
def test_a_planted_fault_is_never_proved_equal(plant: Callable[[onnx.ModelProto], None], resnet: tuple[Path, Path], tmp_path: Path) -> None:
    source, sound = resnet
    model = onnx.load(sound)
    before = model.SerializeToString()
    plant(model)
    assert model.SerializeToString() != before
    onnx.save(model, tmp_path / "planted.onnx")
    found, good = prove(source, tmp_path / "planted.onnx"), prove(source, sound)
    assert classes(found)["E0"] + classes(found)["E1"] < classes(good)["E0"] + classes(good)["E1"]
    assert classes(found)["?"] + classes(found)["R1"] and not found.equal_for_all_inputs


@pytest.mark.parametrize(("model", "seed"), [("tiny_kws_dscnn_int8.tflite", 1), ("coral_lstm_mnist_int8.tflite", 2)])
def test_no_changed_file_is_called_equal(model: str, seed: int) -> None:
    """benchmarks/proof_mutants.py makes thousands."""
    ends = Counter(item.end for item in find_mutants(6, seed, model))
    assert ends["found"] >= 6 and not ends["wrong"]


@pytest.mark.torch
@pytest.mark.parametrize(
    "model",
    ["tiny_ad_toycar_int8.tflite", "onnx/torch_fx_fbgemm_attention.onnx", "onnx/brevitas_int8.onnx", "tiny_wakeword_int8.tflite"],
)
def test_a_bound_that_no_input_reaches_fails_the_default_check(model: str, tmp_path: Path) -> None:
    found = score(model, 6, 5, tmp_path, bare=True, unreached=True)
    assert found.sound == "passed" and found.missed == [] and found.caught >= 5


def _convolution(path: Path, dtype: str, *bias: float) -> Path:
    """A Conv of one place with a float bias, whose products are steps of 0.125."""
    quantization = Quantization.per_tensor(0.25, 0 if dtype == "int8" else 128)
    weights = np.array([[1, 2], [3, -4], [5, 6]], np.int8).reshape(3, 2, 1, 1)
    tensors = [
        Tensor("x", dtype, (1, 2, 1, 1), None, quantization),
        Tensor("w", "int8", weights.shape, weights, Quantization.per_tensor(0.5, 0)),
        Tensor("b", "float32", (3,), np.array(bias, np.float32)),
        Tensor("y", dtype, (1, 3, 1, 1), None, quantization),
    ]
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "group": 1, "data_format": "channels_first"}
    op = Op("Conv", ("x", "w", "b"), ("y",), window)
    save(Graph("convolution", {item.name: item for item in tensors}, (op,), ("x",), ("y",)), path)
    return path


@pytest.mark.parametrize(("dtype", "class_"), [("uint8", "E"), ("int8", "A")])
def test_onnxruntime_rounds_float_biases_and_computes_convolutions_of_int8_in_float(dtype: str, class_: str, tmp_path: Path) -> None:
    """0.3125 is 2.5 steps of 0.25 * 0.5, which are 2: weight_bias_quantization.cc divides in float32 and rounds half to even.

    x86 CPUs are meant: there QLinearConv takes the place of a Conv of uint8 alone.
    """
    source = _convolution(tmp_path / "source.onnx", dtype, 0.3125, -0.9, 7.0)
    convert(source, tmp_path / "result.tflite")
    conv = next(op for op in load(tmp_path / "result.tflite").ops if op.kind == "Conv")
    assert load(tmp_path / "result.tflite")[conv.inputs[2]].data.tolist() == [2, -7, 56]
    found = check(source, tmp_path / "result.tflite")
    (item,) = [item for item in found.proof.operators if item.output.startswith("y")]
    assert found.passed and item.class_.startswith(class_), item
    plain = prove(source, tmp_path / "result.tflite", kernels=["onnxruntime:unoptimized", "litert:default"])
    assert ("A", "its bias is rounded, by at most 0.25 steps of the result") in [(item.class_, item.why) for item in plain.operators]


def test_an_average_over_all_positions_is_proved_for_any_batch(tmp_path: Path) -> None:
    steps = Quantization.per_tensor(0.05, -7)
    tensors = {name: Tensor(name, "int8", ("batch", 3, *sizes), None, steps) for name, sizes in (("x", (7, 7)), ("y", (1, 1)))}
    save(Graph("average", tensors, (Op("GlobalAveragePool", ("x",), ("y",), {"data_format": "channels_first"}),), ("x",), ("y",)),
         tmp_path / "x.onnx")  # fmt: skip
    convert(tmp_path / "x.onnx", tmp_path / "y.tflite")
    (item,) = prove(tmp_path / "x.onnx", tmp_path / "y.tflite").operators
    assert (item.class_, item.method) == ("E1", "12496 sums")


def _save_addition(path: Path, grids: dict[str, tuple[float, int]], form: str, activation: str = "") -> dict[str, np.ndarray]:
    """Write an int8 addition of two results of operators; return data that has all pairs of codes."""
    tensors = {name: Tensor(name, "int8", (1, 1, 256, 256), None, Quantization.per_tensor(*grid)) for name, grid in grids.items()}
    window = {"kernel_shape": (1, 1), "strides": (1, 1), "pads": (0, 0, 0, 0), "data_format": "channels_first"}
    pools = [Op("AveragePool", (data,), (moved,), window) for data, moved in ("ac", "bd")]
    attributes = {"activation": activation} if activation else {}
    save(Graph("sum", tensors, (*pools, Op("Add", ("c", "d"), ("y",), attributes)), ("a", "b"), ("y",)), path, form=form)
    codes = np.arange(-128, 128, dtype=np.int8)
    return {"a": np.repeat(codes, 256).reshape(1, 1, 256, 256), "b": np.tile(codes, 256).reshape(1, 1, 256, 256)}


@pytest.mark.parametrize("activation", ["", "relu"])
def test_an_int8_addition_that_onnxruntime_leaves_in_float_has_the_integers_of_float32(activation: str, tmp_path: Path) -> None:
    """On x86 CPUs onnxruntime makes uint8 of the inputs, but not of a result that is an output or that a Clip reads, so that no QLinearAdd
    takes both."""
    source, result = tmp_path / "source.onnx", tmp_path / "result.tflite"
    grids = dict(zip("abcdy", [(0.1333519, -85), (0.31233707, 11)] * 2 + [(0.43064117, 34)], strict=True))
    feed = _save_addition(source, grids, "qdq", activation)
    convert(source, result, numerics="strict")
    wanted, found = (run(path, feed)["y"] for path in (source, result))
    assert np.array_equal(wanted, found) and prove(source, result).equal_for_all_inputs


def test_additions_of_the_qoperator_form_stay_int8(tmp_path: Path) -> None:
    """As uint8, whose zero points are other numbers, 55 of the pairs would be rounded otherwise."""
    path = tmp_path / "source.onnx"
    grids = dict(zip("abcdy", [(0.21051574, 52), (0.28249478, 64)] * 2 + [(0.42103148, 43)], strict=True))
    wanted = run(path, _save_addition(path, grids, "qoperator"))["y"].reshape(256, 256)
    graph = load(path)
    (op,) = (op for op in graph.ops if op.kind == "Add")
    found = integers_for_all(graph, op, KERNELS["onnxruntime:optimized"].of(graph, op))
    assert found is not None and np.array_equal(found, wanted)


@pytest.mark.parametrize(
    ("op_type", "dtype", "form", "class_"),
    [
        ("Gemm", "uint8", "", "E0"), ("Gemm", "uint8", "no zero point", "A"), ("Gemm", "int8", "output_dtype", "A"),
        ("MatMul", "int8", "", "E0"), ("MatMul", "int8", "output_dtype", "A"),
        ("Add", "uint8", "", "E1"), ("Add", "int8", "", "R1"),
    ],
)  # fmt: skip
def test_the_proof_knows_which_operators_onnxruntime_leaves_in_float(
    op_type: str, dtype: str, form: str, class_: str, tmp_path: Path
) -> None:
    """A constant of int8 stays so on x86 CPUs, where the optimizer makes uint8 of other data; QLinearAdd takes no mixture."""
    points = [] if form else ["p"]
    attributes = {"output_dtype": TensorProto.INT8} if form == "output_dtype" else {}
    scales = {"s": np.float32(0.02), "u": np.float32(0.05), "t": np.float32(0.017)}
    constants = {**scales, "p": np.array(0, dtype), "z": np.array(0, "int8"), "w": np.arange(-24, 24, dtype=np.int8).reshape(8, 6)}
    if op_type == "Add":
        constants |= {"w": np.arange(16).astype(dtype).reshape(2, 8), "z": np.array(0, dtype)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", *points], ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", "s", *points], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "t", "z"], ["v"]),
        helper.make_node(op_type, ["d", "v"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "u", *points], ["o"], **attributes),
        helper.make_node("DequantizeLinear", ["o", "u", *points], ["y"]),
    ]
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    ends = [[helper.make_tensor_value_info(name, 1, shape)] for name, shape in (("x", [2, 8]), ("y", None))]
    graph = helper.make_graph(nodes, "g", *ends, held)
    onnx.save(model_of(graph, 21), tmp_path / "x.onnx")
    convert(tmp_path / "x.onnx", tmp_path / "y.onnx", target="ort-x86")
    found = {item.class_ for item in prove(tmp_path / "x.onnx", tmp_path / "y.onnx").operators if item.operator.startswith(op_type)}
    assert found == {class_}


def test_a_product_before_a_limit_that_no_quantization_implies_stays_in_float(tmp_path: Path) -> None:
    """onnxruntime makes a FusedConv of it, whose zero point is 128 here; with a Clip of integers after it, it is a QLinearConv."""
    plain = _convolution(tmp_path / "plain.onnx", "uint8", 0.0, 0.0, 0.0)
    for name, *node in (("relu", "Relu"), ("clip", "Clip", -3.0, 5.0)):
        model = onnx.load(plain)
        _inserted(model, str(node[0]), _real(model, "Conv", 0), *map(float, node[1:]))
        onnx.save(model, tmp_path / f"{name}.onnx")
    found = {}
    for source in (tmp_path / f"{name}.onnx" for name in ("plain", "relu", "clip")):
        convert(source, tmp_path / "result.tflite", force=True)
        convert(tmp_path / "result.tflite", tmp_path / "again.onnx", force=True)
        pairs = (source, tmp_path / "result.tflite"), (tmp_path / "result.tflite", tmp_path / "again.onnx")
        found[source.stem] = [
            next(item.class_ for item in prove(*pair).operators if item.operator.startswith(("Conv", "CONV"))) for pair in pairs
        ]
    assert found == {"plain": ["E0", "E0"], "relu": ["A", "E0"], "clip": ["A", "E0"]}


def test_another_float_bias_is_none_that_is_rounded(tmp_path: Path) -> None:
    """0.3 is 2.4 steps: 2 and 3 are as near as a rounding or one step more."""
    convert(_convolution(tmp_path / "a.onnx", "uint8", 0.3, 0.0, 0.0), tmp_path / "a.tflite")
    convert(_convolution(tmp_path / "b.onnx", "uint8", 0.375, 0.0, 0.0), tmp_path / "b.tflite")
    kernels = ["onnxruntime:unoptimized", "litert:default"]
    found = [
        [item.why for item in prove(tmp_path / "a.onnx", tmp_path / name, kernels=kernels).operators] for name in ("a.tflite", "b.tflite")
    ]
    assert any("is rounded" in why for why in found[0]) and any(why == "input 2 has other values" for why in found[1])


def test_an_output_with_another_scale_is_another_output(tmp_path: Path) -> None:
    """The kernel of a TRANSPOSE copies integers, whatever the scale of its result is."""
    quantization, other = (Quantization.per_tensor(scale, 3) for scale in (0.1, 0.11))
    tensors = [Tensor("x", "int8", (2, 3), None, quantization), Tensor("y", "int8", (3, 2), None, quantization)]
    graph = Graph("turned", {item.name: item for item in tensors}, (Op("Transpose", ("x",), ("y",), {"perm": (1, 0)}),), ("x",), ("y",))
    moved = [Op("Transpose", ("x",), ("m",), {"perm": (1, 0)}), Op("Reinterpret", ("m",), ("y",))]
    again = [Tensor("m", "int8", (3, 2), None, quantization), Tensor("y", "int8", (3, 2), None, other)]
    save(graph, tmp_path / "x.tflite")
    save(graph.evolve(tensors=again, ops=moved), tmp_path / "y.tflite")
    assert load(tmp_path / "y.tflite")["y"].quantization == other
    assert prove(tmp_path / "x.tflite", tmp_path / "x.tflite").equal_for_all_inputs
    assert prove(tmp_path / "x.tflite", tmp_path / "y.tflite").problems == ("output 'y' is not traced to the source's",)


def test_a_result_that_takes_no_input_of_the_source_is_not_proved(tmp_path: Path) -> None:
    """Rows of 7 of 8 numbers for each of a batch are possible for some batches alone."""
    sizes = {name: Tensor(name, "int64", (2,), np.array([-1, int(name[1])])) for name in ("r8", "r7")}
    quantization = Quantization.per_tensor(0.1, 3)
    ends = {name: Tensor(name, "int8", (size, 8), None, quantization) for name, size in (("x", "batch"), ("y", "batch"))}
    ops = [Op("Reshape", ("x", "r8"), ("y",))], [Op("Reshape", ("x", "r7"), ("m",)), Op("Reshape", ("m", "r8"), ("y",))]
    inner = {"m": Tensor("m", "int8", ("rows", 7), None, quantization)}
    for name, each in zip(("x", "y"), ops, strict=True):
        save(Graph("rows", {**ends, **sizes, **(inner if name == "y" else {})}, tuple(each), ("x",), ("y",)), tmp_path / f"{name}.onnx")
    assert prove(tmp_path / "x.onnx", tmp_path / "x.onnx").equal_for_all_inputs
    assert not prove(tmp_path / "x.onnx", tmp_path / "y.onnx").equal_for_all_inputs


def _two_layers(path: Path, *between: Op, activation: str = "", readers: str = "x") -> Path:
    """Two products in a row, with operators between that have results "clipped0" and so on, of which the second product reads one."""
    quantization = Quantization.per_tensor(0.05, 3)
    weights = {name: np.random.default_rng(seed).integers(-127, 128, (4, 4)).astype(np.int8) for seed, name in enumerate("vw")}
    names = ["given", "x", "y", *(name for op in between for name in op.outputs)]
    tensors = [Tensor(name, "int8", (1, 4), None, quantization) for name in names]
    tensors += [Tensor(name, "int8", (4, 4), data, Quantization.per_tensor(0.01, 0)) for name, data in weights.items()]
    tensors += [Tensor(f"end{end:g}", "float32", (), np.array(end, np.float32)) for end in (6.0, 6.3)]
    first, last = Op("Gemm", ("given", "v"), ("x",), {"activation": activation}), Op("Gemm", (readers, "w"), ("y",))
    save(Graph("two layers", {item.name: item for item in tensors}, (first, *between, last), ("given",), ("y",)), path)
    return path


def test_an_activation_may_be_an_operator_of_its_own(tmp_path: Path) -> None:
    """A Relu that a product has in itself is the same as one after it, and a Clip to 6.3 is none where codes end at 6.2."""
    source = _two_layers(tmp_path / "a.onnx", activation="relu")
    other = _two_layers(tmp_path / "b.onnx", Op("Relu", ("x",), ("clipped0",)), readers="clipped0")
    whole = Op("Clip", ("x", "", "end6.3"), ("clipped0",))
    for pair in ((source, other), (other, source)):
        found = prove(*pair)
        assert not found.faults and {item.class_ for item in found.operators} <= {"E0", "E1"} and found.equal_for_all_inputs
    found = prove(_two_layers(tmp_path / "c.onnx"), _two_layers(tmp_path / "d.onnx", whole, readers="clipped0"))
    assert not found.faults and not found.problems


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize(
    ("op", "words", "ends"),
    [
        (Op("Relu", ("x",), ("clipped0",)), "131 codes of '{}', such as -128: {} in the source, {} in the result", (-128, 3)),
        (
            Op("Clip", ("x", "", "end6"), ("clipped0",)),
            "4 codes of '{}', such as 124: {} in the source, {} in the result (Min 'clipped0')",
            (124, 123),
        ),
    ],
    ids=["Relu", "Clip"],
)
def test_a_clip_that_is_lost_or_one_too_many_is_named_with_a_code(
    op: Op, words: str, ends: tuple[int, int], is_lost: bool, tmp_path: Path
) -> None:
    """A Relu is read as the activation of its product."""
    without, clipping = _two_layers(tmp_path / "a.onnx"), _two_layers(tmp_path / "b.onnx", op, readers="clipped0")
    found = prove(clipping, without) if is_lost else prove(without, clipping)
    name = "clipped0" if is_lost and op.kind == "Relu" else "x"
    (fault,) = found.faults
    assert fault.endswith("('y'): " + words.format(name, *ends[:: -1 if is_lost else 1])) and not found.equal_for_all_inputs


@pytest.mark.end_to_end
def test_the_command_says_it_and_its_document_has_it(resnet: tuple[Path, Path]) -> None:
    source, result = resnet
    shown = forked.run(("check", source, result, "--prove"))
    assert shown.returncode == 0, shown.stderr
    assert "proved equal for all inputs: 15 operators (10 E0, 5 E1)" in shown.stdout
    document = json.loads(forked.run(("check", source, result, "--prove", "--json")).stdout)
    assert document["proof"]["equal_for_all_inputs"] is True
    assert Counter(item["class"] for item in document["proof"]["operators"]) == {"E0": 10, "E1": 5}
    assert {"operator", "output", "class", "method", "why"} == set(document["proof"]["operators"][0])


@pytest.mark.parametrize(("changed", "equal"), [(0.0, True), (0.25, False)])
def test_constants_of_8_bit_floats_are_compared_as_they_are(changed: float, equal: bool, tmp_path: Path) -> None:
    """Both 0.5 and 0.25 are 0 as integers."""
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path, offset in zip(paths, (0.0, changed), strict=True):
        weights = (np.array([[0.5], [1.0]], np.float32) - offset).astype(numpy_dtype("float8e4m3fn"))
        tensors = [
            Tensor("x", "float32", (1, 2)),
            Tensor("w", "float8e4m3fn", (2, 1), weights, Quantization.per_tensor(0.5, 0)),
            Tensor("v", "float32", (2, 1)),
            Tensor("y", "float32", (1, 1)),
        ]
        ops = (Op("Dequantize", ("w",), ("v",)), Op("MatMul", ("x", "v"), ("y",)))
        save(Graph("g", {item.name: item for item in tensors}, ops, ("x",), ("y",)), path)
    reasons = [item.why for item in prove(*paths).operators]
    assert ("has other values" not in "".join(reasons)) is equal, reasons


def _save_and_prove(folder: Path, source: Graph, result: Graph, suffix: str) -> Proof:
    paths = [folder / f"{name}{suffix}" for name in ("source", "result")]
    for graph, path in zip((source, result), paths, strict=True):
        save(graph, path, force=True)
    return prove(*paths)


@pytest.mark.parametrize(("axis", "is_proved"), [(1, True), (2, False), (3, False)])
def test_scales_along_an_axis_turn_with_the_data(axis: int, is_proved: bool, tmp_path: Path) -> None:
    def quantization(axis: int) -> Quantization:
        return Quantization(np.array([0.01, 0.02, 0.03, 0.05], np.float32), np.array([0, 3, 0, -2]), axis)

    shape, names = (1, 4, 4, 4), ("x", "q", "y")
    tensors = {name: Tensor(name, "float32", shape) for name in (*names, "xt", "yt")}
    tensors["q"] = Tensor("q", "int8", shape, None, quantization(3))
    source = Graph(
        "g", {name: tensors[name] for name in names}, (Op("Quantize", ("x",), ("q",)), Op("Dequantize", ("q",), ("y",))), ("x",), ("y",)
    )
    ops = (
        Op("Transpose", ("x",), ("xt",), {"perm": (0, 3, 1, 2)}),
        Op("Quantize", ("xt",), ("q",)),
        Op("Dequantize", ("q",), ("yt",)),
        Op("Transpose", ("yt",), ("y",), {"perm": (0, 2, 3, 1)}),
    )
    result = Graph("g", {**tensors, "q": replace(tensors["q"], quantization=quantization(axis))}, ops, ("x",), ("y",))
    assert _save_and_prove(tmp_path, source, result, ".onnx").equal_for_all_inputs is is_proved


@pytest.mark.torch
def test_a_requantization_in_another_form_has_the_integers_of_xnnpack(tmp_path: Path) -> None:
    """Its form has the name of an addition's too; the scales are those of a Resize of DeepLab."""
    scales = {"x": 0.012298396788537502, "y": 0.029082998633384705}
    tensors = {name: Tensor(name, "uint8", (256,), None, Quantization.per_tensor(scale, 0)) for name, scale in scales.items()}
    save(Graph("requantize", tensors, (Op("Requantize", ("x",), ("y",)),), ("x",), ("y",)), tmp_path / "m.tflite")
    convert(tmp_path / "m.tflite", tmp_path / "m.onnx")
    proof = prove(tmp_path / "m.tflite", tmp_path / "m.onnx")
    assert [(item.class_, item.method) for item in proof.operators] == [("E1", "form of the kernel")]


@pytest.mark.parametrize("kind", ["Quantize", "Requantize"])
def test_a_quantization_with_other_limits_clips_other_codes(kind: str, tmp_path: Path) -> None:
    whole = Quantization.per_tensor(0.1, 0)

    def make(highest: int | None) -> Graph:
        data = Tensor("x", "float32", (2, 8)) if kind == "Quantize" else Tensor("x", "int8", (2, 8), None, whole)
        tensors = [data, Tensor("q", "int8", (2, 8), None, replace(whole, quant_max=highest)), Tensor("y", "float32", (2, 8))]
        ops = (Op(kind, ("x",), ("q",)), Op("Dequantize", ("q",), ("y",)))
        return Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",))

    for highest, other in ((60, 90), (None, 60)):
        assert not _save_and_prove(tmp_path, make(highest), make(other), ".pt2").equal_for_all_inputs
    assert _save_and_prove(tmp_path, make(60), make(60), ".pt2").equal_for_all_inputs


def test_a_state_that_is_read_before_it_is_written_is_another_value(tmp_path: Path) -> None:
    quantization = Quantization.per_tensor(0.1, 0)
    tensors = {name: Tensor(name, "int8", (1, 8), None, quantization) for name in ("x", "old")}
    tensors["y"] = Tensor("y", "int8", (8, 1), None, quantization)
    states = {"state": Tensor("state", "int8", (1, 8), np.zeros((1, 8), np.int8), quantization)}
    write, read = Op("WriteState", ("x",), (), {"state": "state"}), Op("ReadState", (), ("old",), {"state": "state"})
    turn = Op("Transpose", ("old",), ("y",), {"perm": (1, 0)})
    late, early = (Graph("g", tensors, (*ops, turn), ("x",), ("y",), states=states) for ops in ((write, read), (read, write)))
    assert _save_and_prove(tmp_path, late, late, ".tflite").equal_for_all_inputs
    assert not _save_and_prove(tmp_path, late, early, ".tflite").equal_for_all_inputs


def test_a_rounding_that_onnxruntime_merges_is_named(tmp_path: Path) -> None:
    """Compared alone, both are equal; in the whole model another step results for a fifth of all elements."""
    steps = {"x": (0.1, 0), "x2": (0.1, 0), "m": (0.12, 5), "a": (0.37, 3), "b": (0.05, 3), "y": (0.4, -7)}
    tensors = {name: Tensor(name, "int8", (1, 4096), None, Quantization.per_tensor(*item)) for name, item in steps.items()}
    ops = (
        Op("Add", ("x", "x2"), ("m",), {"activation": ""}),
        Op("Requantize", ("m",), ("a",)),
        Op("Requantize", ("a",), ("b",)),
        Op("Mul", ("b", "b"), ("y",), {"activation": ""}),
    )
    save(Graph("g", tensors, ops, ("x", "x2"), ("y",)), tmp_path / "source.tflite")
    convert(tmp_path / "source.tflite", tmp_path / "result.onnx", target="generic")
    found = check(tmp_path / "source.tflite", tmp_path / "result.onnx")
    assert found.outputs[0].equal < 0.8 and found.operators[2].equal == 1
    assert found.proof is not None and found.proof.merged_roundings == ("QUANTIZE #2",)
    assert "one rounding of QUANTIZE #2" in found.sentence


@pytest.mark.onnxruntime
@pytest.mark.parametrize("places", [(0, 1), (1, 0)])
def test_what_is_computed_of_sizes_is_constant(places: tuple[int, int], tmp_path: Path) -> None:
    """The sizes of a Reshape, taken from the data: in their order it moves nothing, and in another one it does, whatever they are."""
    quantization = Quantization.per_tensor(0.05, 3)
    tensors = [Tensor(name, "int8", ("n", "m", 4), None, quantization) for name in "xyr"]
    plain = Graph("g", {tensor.name: tensor for tensor in tensors[:2]}, (Op("Sigmoid", ("x",), ("y",)),), ("x",), ("y",))
    tensors += [Tensor("sizes", "int64", (3,)), Tensor("wanted", "int64", (3,)), Tensor("places", "int64", (3,), np.array([*places, 2]))]
    ops = (
        Op("Shape", ("x",), ("sizes",)),
        Op("Gather", ("sizes", "places"), ("wanted",), {"axis": 0}),
        Op("Reshape", ("x", "wanted"), ("r",)),
        Op("Sigmoid", ("r",), ("y",)),
    )
    computed = Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",))
    for name, graph in (("plain.tflite", plain), ("computed.tflite", computed)):
        save(graph, tmp_path / name)
    assert prove(tmp_path / "plain.tflite", tmp_path / "computed.tflite").equal_for_all_inputs == (places == (0, 1))


@pytest.mark.parametrize(
    ("target", "attributes", "is_equal"),
    [
        ("generic", {}, True),
        ("generic", {"activation": "relu"}, False),
        ("generic", {"auto_pad": "SAME_UPPER"}, False),
        ("portable", {}, False),
        ("portable", {"kernel_shape": (1, 3)}, True),
    ],
)
def test_ties_of_an_average_are_the_source_s_where_the_file_has_a_form_for_them(
    target: str, attributes: dict[str, str], is_equal: bool, tmp_path: Path
) -> None:
    """Of a plain AveragePool the metadata state how the source rounded ties, but onnxruntime takes them to even."""
    q, window = Quantization.per_tensor(0.05, 3), {"kernel_shape": (1, 2), "strides": (1, 1), "pads": (0, 0, 0, 0)} | attributes
    width = 8 if "auto_pad" in attributes else 9 - window["kernel_shape"][1]
    tensors = {"x": Tensor("x", "uint8", (1, 1, 8, 2), None, q), "y": Tensor("y", "uint8", (1, 1, width, 2), None, q)}
    op = Op("AveragePool", ("x",), ("y",), {"data_format": "channels_last", **window})
    save(Graph("g", tensors, (op,), ("x",), ("y",)), tmp_path / "m.tflite")
    convert(tmp_path / "m.tflite", tmp_path / "m.onnx", target=target)
    assert prove(tmp_path / "m.tflite", tmp_path / "m.onnx").equal_for_all_inputs == is_equal
    assert prove(tmp_path / "m.onnx", tmp_path / "m.tflite", kernels="litert:reference").equal_for_all_inputs == is_equal


@pytest.mark.parametrize(("place", "addend"), [(0, -1), (1, -2)])
def test_a_constant_or_another_size_is_not_the_same_by_chance(place: int, addend: int, tmp_path: Path) -> None:
    """Of data with 2 rows and 3 columns rows - 1, columns - 2 and 1 are the same index, of others they are not."""
    tensors = {name: Tensor(name, "int8", ("n", "m") if name == "x" else ("m",), None, Quantization.per_tensor(0.05, 3)) for name in "xy"}
    for name, data in {"place": 0, "other": place, "less": -1, "addend": addend, "one": 1}.items():
        tensors[name] = Tensor(name, "int64", (), np.array(data))
    tensors |= {name: Tensor(name, "int64", shape) for name, shape in (("sizes", (2,)), ("size", ()), ("index", ()))}

    def write(name: str, place: str, addend: str) -> Path:
        ops = (
            Op("Shape", ("x",), ("sizes",)),
            Op("Gather", ("sizes", place), ("size",), {"axis": 0}),
            Op("Add", ("size", addend), ("index",)),
            Op("Gather", ("x", "index"), ("y",), {"axis": 0}),
        )
        kept = ops if place else (Op("Gather", ("x", "one"), ("y",), {"axis": 0}),)
        used = {item for op in kept for item in (*op.inputs, *op.outputs)}
        save(Graph("g", {key: tensors[key] for key in tensors if key in used}, kept, ("x",), ("y",)), tmp_path / name)
        return tmp_path / name

    source = write("source.onnx", "place", "less")
    assert prove(source, write("same.onnx", "other", "addend")).equal_for_all_inputs == (place == 0)
    assert not prove(source, write("constant.onnx", "", "")).equal_for_all_inputs


@pytest.mark.torch
def test_operators_on_sizes_alone_are_none_of_a_proof(tmp_path: Path) -> None:
    source = FIXTURES / "torch" / "shapes" / "fx_fbgemm_frozen.pt"
    convert(source, tmp_path / "m.tflite")
    assert classes(prove(source, tmp_path / "m.tflite")).keys() <= {"E0", "E1", "R1", "A"}


@pytest.mark.parametrize(
    ("builtin", "options", "dtype", "result"),
    [
        ("SOFTMAX", {"beta": 1.0}, "int8", ("int8", 1 / 256, -128)),
        ("RELU", None, "int8", ("int8", 0.25, -7)),
        ("MEAN", {"keepDims": True}, "int8", ("int8", 0.25, -7)),
        ("DEQUANTIZE", None, "int4", ("float32", None, None)),
    ],
)
def test_one_kernel_with_the_same_parameters_is_equal(
    builtin: str, options: dict[str, object] | None, dtype: str, result: tuple[str, float | None, int | None], tmp_path: Path
) -> None:
    """A file of TFLite made of one: no codes have to be tried, and no arithmetic to be known."""
    source, target = tmp_path / "source.tflite", tmp_path / "target.tflite"
    shape, inputs = (1, 8), [TensorSpec("x", (1, 8), dtype, 0.5, 0, data=np.arange(8) - 4 if dtype == "int4" else None)]
    inputs += [TensorSpec("axes", (1,), "int32", data=np.array([1], np.int32))] if builtin == "MEAN" else []
    y = TensorSpec("y", (1, 1) if builtin == "MEAN" else shape, result[0], result[1], result[2])
    ops, tensors = [OpSpec(builtin, [item.name for item in inputs], ["y"], options)], [*inputs, y]
    if dtype == "int4":  # constants alone have this type
        ops.append(OpSpec("ADD", ["y", "u"], ["z"], {}))
        tensors += [TensorSpec("u", shape, "float32"), TensorSpec("z", shape, "float32")]
    source.write_bytes(model(ops, tensors, ["u" if dtype == "int4" else "x"], ["z" if dtype == "int4" else "y"]))
    convert(source, target)
    first = prove(source, target).operators[0]
    assert (first.class_, first.method) == ("E0", "identical parameters")


@pytest.mark.torch
@pytest.mark.parametrize("name", ["qat_fbgemm", "reference_fbgemm"])
def test_inputs_that_are_clipped_before_they_are_quantized_are_multiplied_by_the_reciprocal(name: str, tmp_path: Path) -> None:
    """As PyTorch does; divided by the scale, 72 and 11 of all float32 numbers become another integer."""
    source, result = FIXTURES / "torch" / "single" / f"{name}.pt2", tmp_path / "result.onnx"
    convert(source, result)
    rounded = [item for item in prove(source, result).operators if item.method == "thresholds"]
    assert rounded[0].class_ == "E1"


@pytest.mark.parametrize(
    ("following", "dtypes", "point"),
    [("Relu", ("uint8", "int8"), -128), ("Reshape", ("int8", "int8"), 3), ("Reshape", ("int8", "uint8"), 3)],
)
def test_a_product_in_float_before_a_clip_or_a_reshape_is_none_of_integers(
    following: str, dtypes: tuple[str, str], point: int, tmp_path: Path
) -> None:
    """onnxruntime makes no QGemm of these; it drops a Relu that clips to the least integer, and leaves a Reshape between both."""
    rng = np.random.default_rng(0)
    types = [np.dtype(name) for name in dtypes]
    constants: dict[str, np.ndarray] = {
        "sx": np.float32(0.0123), "zx": types[0].type(7), "w": rng.integers(-127, 128, (16, 8)).astype(np.int8),
        "sw": np.float32(0.01), "zw": np.int8(0), "b": rng.integers(-3000, 3000, 8).astype(np.int32),
        "sb": np.float32(0.0123) * np.float32(0.01), "zb": np.int32(0), "sy": np.float32(0.05), "zy": types[1].type(point),
        "shape": np.array([1, 4, 8], np.int64),
    }  # fmt: skip
    nodes = [helper.make_node("DequantizeLinear", [name, f"s{name}", f"z{name}"], [f"{name}/real"]) for name in ("x", "w", "b")]
    nodes += [
        helper.make_node("MatMul", ["x/real", "w/real"], ["products"]),
        helper.make_node("Add", ["products", "b/real"], ["sums"]),
        helper.make_node(following, ["sums", *(["shape"] if following == "Reshape" else [])], ["last"]),
        helper.make_node("QuantizeLinear", ["last", "sy", "zy"], ["y"]),
    ]
    sizes = {"x": (4, 16), "y": (1, 4, 8) if following == "Reshape" else (4, 8)}
    ends = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), sizes[name])
        for name, dtype in zip(sizes, types, strict=True)
    ]
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    made = helper.make_graph(nodes, "product", ends[:1], ends[1:], held)
    onnx.save(model_of(made), source := tmp_path / "x.onnx")
    convert(source, result := tmp_path / "y.tflite")
    assert set(classes(prove(source, result))).isdisjoint({"E0", "E1"})


def test_nothing_is_said_of_sums_that_may_leave_int32(tmp_path: Path) -> None:
    """The accumulator of a bias near the end of int32 wraps around in XNNPACK, where onnxruntime computes a Conv of int8 in float32."""
    steps, weights = Quantization.per_tensor(1e-9, 45), np.array([[-38], [42]], np.int8).reshape(2, 1, 1, 1)
    tensors = [
        Tensor("x", "int8", (1, 1, 1, 2), None, steps),
        Tensor("w", "int8", weights.shape, weights, Quantization.per_tensor(1.5e-4, 0)),
        Tensor("b", "int32", (2,), np.array([2 - 2**31, 2**31 - 2], np.int32), Quantization.per_tensor(1.5e-13, 0)),
        Tensor("y", "int8", (1, 2, 1, 2), None, Quantization.per_tensor(1.6e-5, 0)),
    ]
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "group": 1, "data_format": "channels_first"}
    op = Op("Conv", ("x", "w", "b"), ("y",), window)
    source, result = tmp_path / "source.onnx", tmp_path / "result.tflite"
    save(Graph("large", {item.name: item for item in tensors}, (op,), ("x",), ("y",)), source)
    convert(source, result)
    feed = {"x": np.array([-128, 127], np.int8).reshape(1, 1, 1, 2)}
    wanted, found = (run(path, feed)["y"].astype(int) for path in (source, result))
    (item,) = [item for item in prove(source, result).operators if item.output.startswith("y")]
    assert np.abs(wanted - found).max() > 1 and item.class_ == "?"


@pytest.mark.parametrize(
    ("target", "numerics", "class_"), [("portable", "exact", "A"), ("ort-x86", "exact", "A"), ("ort-x86", "fast", "?")]
)
def test_no_bound_is_said_of_float_weights_that_onnxruntime_rounds(target: str, numerics: str, class_: str, tmp_path: Path) -> None:
    """It rounds float weights between DequantizeLinear and QuantizeLinear to int8 (weight_bias_quantization.cc), and not before a Max or
    a Min, of which other compilers know the latter."""
    steps = Quantization.per_tensor(2.0**-8, 0)
    weights = np.array([[1, 0.0039, 0.0118], [1, 0.51, 0.263]], np.float32)
    tensors = [
        *(Tensor(name, "int16", (1, size), None, steps) for name, size in (("x", 3), ("y", 2))),
        *(Tensor(f"{name}/real", "float32", (1, size)) for name, size in (("x", 3), ("y", 2))),
        Tensor("w", "float32", weights.shape, weights),
    ]
    ops = (Op("Dequantize", ("x",), ("x/real",)), Op("Gemm", ("x/real", "w"), ("y/real",)), Op("Quantize", ("y/real",), ("y",)))
    source, result = tmp_path / "source.tflite", tmp_path / "result.onnx"
    save(Graph("float", {item.name: item for item in tensors}, ops, ("x",), ("y",)), source)
    convert(source, result, target=target, numerics=numerics)
    feed = {"x": np.array([[0, 32767, 32767]], np.int16)}
    wanted, found = (run(path, feed)["y"].astype(int) for path in (source, result))
    (item,) = [item for item in prove(source, result).operators if item.output.startswith("y/real")]
    assert item.class_ == class_, item
    assert np.abs(wanted - found).max() <= 1 if class_ == "A" else np.abs(wanted - found).max() > 10


def test_onnxruntime_loses_the_last_bits_of_exponentials_at_small_scales(tmp_path: Path) -> None:
    """It computes exp(x) - 1 (activations.h), which is 0 of a few 1e-9; XNNPACK has expm1."""
    steps = Quantization.per_tensor(1e-9, -126)
    tensors = [Tensor("x", "int8", (256,), None, steps), Tensor("y", "int8", (256,), None, Quantization.per_tensor(1e-9, 0))]
    source, result = tmp_path / "source.tflite", tmp_path / "result.onnx"
    save(Graph("elu", {item.name: item for item in tensors}, (Op("Elu", ("x",), ("y",)),), ("x",), ("y",)), source)
    convert(source, result)
    feed = {"x": np.arange(-128, 128, dtype=np.int8)}
    wanted, found = (run(path, feed)["y"].astype(int) for path in (source, result))
    proof = prove(source, result)
    assert np.abs(wanted - found).max() == 2 and not proof.equal_for_all_inputs
    assert [item.class_ for item in proof.operators if item.operator.startswith("ELU")] == ["R1"]


def strided_slice(ends: list[int], steps: int, scale: float) -> bytes:
    """A model that takes the elements of (4, 2, 3) from 0 on, of int8, or of floats without a scale."""
    sizes = (*(len(range(0, end, steps)) for end in ends), *(4, 2, 3)[len(ends) :])
    dtype, qparams = ("int8", (scale, 3)) if scale else ("float32", ())
    bounds = (("begin", [0] * len(ends)), ("end", ends), ("strides", [steps] * len(ends)))
    indices = (TensorSpec(name, (len(ends),), "int32", data=np.array(values, np.int32)) for name, values in bounds)
    x, y = (TensorSpec(name, shape, dtype, *qparams) for name, shape in (("x", (4, 2, 3)), ("y", sizes)))
    return single_op("STRIDED_SLICE", {}, [x, *indices], [y])


@pytest.mark.parametrize("scale", [0.25, 0.0])
@pytest.mark.parametrize(("ends", "steps", "faulty"), [([4, 2, 0], 1, True), ([0, 2, 3], 1, True), ([0], 1, False), ([4, 2, 0], 2, False)])
def test_a_slice_of_no_elements_of_xnnpack_is_not_proved(ends: list[int], steps: int, faulty: bool, scale: float, tmp_path: Path) -> None:
    """It takes all that is left where the end is 0 (measured); TFLite's own kernel, which it leaves other slices to, takes nothing."""
    source, result = tmp_path / "source.tflite", tmp_path / "result.onnx"
    source.write_bytes(strided_slice(ends, steps, scale))
    convert(source, result)
    feed = {"x": np.zeros((4, 2, 3), np.int8 if scale else np.float32)}
    wanted, found = (run(path, feed)["y"].shape for path in (source, result))
    proof = prove(source, result)
    assert (wanted != found) == faulty
    assert proof.equal_for_all_inputs != faulty
    assert not any("please report" in problem for problem in check(source, result).problems)


def test_a_slice_of_no_elements_is_written_as_xnnpack_takes_it(tmp_path: Path) -> None:
    step = Quantization.per_tensor(0.25, 3)
    bounds = [Tensor(name, "int64", (1,), np.array([value])) for name, value in (("start", 0), ("end", 0), ("axis", 2), ("step", 1))]
    tensors = [Tensor("x", "int8", (1, 2, 3), None, step), Tensor("y", "int8", (1, 2, 0), None, step), *bounds]
    op, path = Op("Slice", ("x", "start", "end", "axis", "step"), ("y",)), tmp_path / "result.tflite"
    save(Graph("empty", {item.name: item for item in tensors}, (op,), ("x",), ("y",)), path)
    assert run(path, {"x": np.zeros((1, 2, 3), np.int8)})["y"].shape == (1, 2, 0)
