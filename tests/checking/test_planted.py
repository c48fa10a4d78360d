"""Faults that random inputs do not reach, in results with and without the metadata that say which conversion made them: each is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tflite_models import OpSpec, TensorSpec, model

from qconvert import check, convert, load, save
from qconvert.data import extreme_inputs, inputs_of_other_sizes, zero_inputs
from qconvert.graph import Graph, Op, Quantization, Tensor

FIXTURES = Path(__file__).parents[2] / "fixtures"
SHAPE = (1, 6, 6, 8)


def maxima(path: Path) -> None:
    """The largest of 36 random values is never negative."""
    tensors = [
        TensorSpec("x", SHAPE, "int8", 0.05, 0),
        TensorSpec("axes", (2,), "int32", None, None, 0, np.array([1, 2], np.int32)),
        TensorSpec("y", (1, 8), "int8", 0.05, 0),
    ]
    path.write_bytes(model([OpSpec("REDUCE_MAX", ["x", "axes"], ["y"], {"keepDims": False})], tensors, ["x"], ["y"]))


def addition(path: Path) -> None:
    """Scales of the operands far below that of the sum's range, which it hardly fills."""
    tensors = [
        TensorSpec("a", SHAPE, "int8", 0.04, 3),
        TensorSpec("b", SHAPE, "int8", 0.031, -5),
        TensorSpec("y", SHAPE, "int8", 0.0703, 1),
    ]
    path.write_bytes(model([OpSpec("ADD", ["a", "b"], ["y"], {})], tensors, ["a", "b"], ["y"]))


def quantized_input(path: Path) -> None:
    tensors = [TensorSpec("x", SHAPE, "float32"), TensorSpec("y", SHAPE, "int8", 0.05, 0)]
    path.write_bytes(model([OpSpec("QUANTIZE", ["x"], ["y"], {})], tensors, ["x"], ["y"]))


def unread_input(path: Path) -> None:
    """Of a function that ignores one of its arguments, as TensorFlow's converter writes it."""
    tensors = [
        TensorSpec("a", SHAPE, "int8", 0.04, 3),
        TensorSpec("b", SHAPE, "int8", 0.031, -5),
        TensorSpec("u", SHAPE, "int8", 0.05, 0),
        TensorSpec("y", SHAPE, "int8", 0.0703, 1),
    ]
    path.write_bytes(model([OpSpec("ADD", ["a", "b"], ["y"], {})], tensors, ["a", "u", "b"], ["y"]))


def before_the_last_rounding(proto: onnx.ModelProto, insert: Callable[[str, float], list[onnx.NodeProto]]) -> None:
    """Nodes between a QuantizeLinear and what it reads; the last one gives "planted"."""
    place = max(index for index, node in enumerate(proto.graph.node) if node.op_type == "QuantizeLinear")
    node = proto.graph.node[place]
    scale = next(float(numpy_helper.to_array(item)) for item in proto.graph.initializer if item.name == node.input[1])
    for step, new in enumerate(insert(node.input[0], scale)):
        proto.graph.node.insert(place + step, new)
    node.input[0] = "planted"


def extra_relu(proto: onnx.ModelProto) -> None:
    place = next(node for node in proto.graph.node if node.op_type == "ReduceMax")
    reader = next(node for node in proto.graph.node if place.output[0] in node.input)
    reader.input[0] = "planted"
    proto.graph.node.insert(list(proto.graph.node).index(reader), helper.make_node("Relu", [place.output[0]], ["planted"], name="planted"))


def clip_near_the_top(proto: onnx.ModelProto) -> None:
    def nodes(name: str, scale: float) -> list[onnx.NodeProto]:
        for key, value in (("low", -1e30), ("high", 124 * scale)):
            proto.graph.initializer.append(numpy_helper.from_array(np.float32(value), key))
        return [helper.make_node("Clip", [name, "low", "high"], ["planted"], name="planted")]

    before_the_last_rounding(proto, nodes)


def half_a_step(proto: onnx.ModelProto) -> None:
    def nodes(name: str, scale: float) -> list[onnx.NodeProto]:
        proto.graph.initializer.append(numpy_helper.from_array(np.float32(scale / 2), "half"))
        return [helper.make_node("Add", [name, "half"], ["planted"], name="planted")]

    before_the_last_rounding(proto, nodes)


def through_float16(proto: onnx.ModelProto) -> None:
    def nodes(name: str, scale: float) -> list[onnx.NodeProto]:
        casts = ((name, "planted_16", TensorProto.FLOAT16), ("planted_16", "planted", TensorProto.FLOAT))
        return [helper.make_node("Cast", [before], [after], name=after, to=to) for before, after, to in casts]

    before_the_last_rounding(proto, nodes)


def lost_saturation(proto: onnx.ModelProto) -> None:
    """A Cast wraps where a QuantizeLinear saturates."""
    place = max(index for index, node in enumerate(proto.graph.node) if node.op_type in ("QuantizeLinear", "QLinearAdd"))
    node = proto.graph.node[place]
    values = {item.name: numpy_helper.to_array(item) for item in proto.graph.initializer}
    scale, zero_point = (values[name] for name in node.input[1:3])
    proto.graph.initializer.extend([numpy_helper.from_array(scale, "step"), numpy_helper.from_array(np.float32(zero_point), "zero")])
    proto.graph.node.remove(node)
    made = [
        helper.make_node("Div", [node.input[0], "step"], ["steps"]),
        helper.make_node("Round", ["steps"], ["whole"]),
        helper.make_node("Add", ["whole", "zero"], ["stored"]),
        helper.make_node("Cast", ["stored"], ["wide"], to=TensorProto.INT32),
        helper.make_node("Cast", ["wide"], list(node.output), to=helper.np_dtype_to_tensor_dtype(zero_point.dtype)),
    ]
    for step, new in enumerate(made):
        proto.graph.node.insert(place + step, new)


CASES = [
    (maxima, extra_relu), (quantized_input, clip_near_the_top), (quantized_input, half_a_step), (quantized_input, through_float16),
    (addition, lost_saturation), (unread_input, lost_saturation),
]  # fmt: skip


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("bare", [False, True], ids=["with metadata", "bare"])
@pytest.mark.parametrize(("network", "fault"), CASES, ids=lambda item: item.__name__)
def test_what_no_random_input_brings_out(
    network: Callable[[Path], None], fault: Callable[[onnx.ModelProto], None], bare: bool, tmp_path: Path
) -> None:
    source, result = tmp_path / "m.tflite", tmp_path / "m.onnx"
    network(source)
    convert(source, result, target="generic")
    proto = onnx.load(result)
    if bare:
        del proto.metadata_props[:]
        onnx.save(proto, result)
    assert check(source, result, samples=1).verdict == "passed"
    fault(proto)
    onnx.save(proto, result)
    report = check(source, result, samples=1)
    assert report.verdict == "not equal"
    assert any("'y'" in text for text in report.problems)
    assert bare or any("planted" in text or "'steps'" in text for text in report.problems)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("scale", [None, 0.3], ids=["float32", "256 codes"])
def test_a_rounding_to_float16_is_named_unless_all_codes_become_the_same(scale: float | None, tmp_path: Path) -> None:
    """In a bare result; a float32 that is rounded to float16 rarely becomes another integer, and none of 256 codes at 0.3 does."""
    types = {"x": "float32", "short": "float16", "wide": "float32"}
    tensors = {name: Tensor(name, dtype, (1, 2)) for name, dtype in types.items()}
    tensors["codes"] = Tensor("codes", "int8", (1, 2), None, Quantization.per_tensor(scale or 1.0, 7))
    tensors["y"] = Tensor("y", "uint8", (1, 2), None, Quantization.per_tensor(2.0, 9))
    first = [Op("Dequantize", ("codes",), ("x",))] if scale else []
    casts = [Op("Cast", ("x",), ("short",), {"to": "float16"}), Op("Cast", ("short",), ("wide",), {"to": "float32"})]
    for name, ops in (("source", [Op("Quantize", ("x",), ("y",))]), ("result", [*casts, Op("Quantize", ("wide",), ("y",))])):
        used = {item: tensors[item] for op in (*first, *ops) for item in op.names}
        save(Graph(name, used, (*first, *ops), ("codes" if scale else "x",), ("y",)), tmp_path / f"{name}.onnx")
    report = check(tmp_path / "source.onnx", tmp_path / "result.onnx")
    assert report.verdict == ("passed" if scale else "not equal")
    assert any("('short')" in text for text in report.problems) == (scale is None)


@pytest.mark.onnxruntime
def test_rows_from_the_fifth_on(tmp_path: Path) -> None:
    """Of a batch that is known only when the model runs."""
    shape = ["n", 3]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    numbers = {"s": np.float32(0.05), "z": np.uint8(128)}
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()]
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    opset = [helper.make_opsetid("", 17)]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", *[[end] for end in ends], held), opset_imports=opset, ir_version=8),
        tmp_path / "a.onnx",
    )
    for name, value in {"0": 0, "4": 4, "end": 2**31}.items():
        held.append(numpy_helper.from_array(np.array([value], np.int64), name))
    nodes[1].output[0] = "all"
    nodes += [
        helper.make_node("Slice", ["all", "0", "4", "0"], ["first"]),
        helper.make_node("Slice", ["all", "4", "end", "0"], ["rest"]),
        helper.make_node("Neg", ["rest"], ["turned"]),
        helper.make_node("Concat", ["first", "turned"], ["y"], axis=0),
    ]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", *[[end] for end in ends], held), opset_imports=opset, ir_version=8),
        tmp_path / "b.onnx",
    )
    assert check(tmp_path / "a.onnx", tmp_path / "a.onnx").verdict == "passed"
    assert check(tmp_path / "a.onnx", tmp_path / "b.onnx").verdict == "not equal"


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
def test_what_an_optimizer_made_of_a_result_passes(tmp_path: Path) -> None:
    """It folds constants and leaves out what does nothing; no operator is altered by that."""
    import onnxruntime

    source, result, optimized = (
        Path(__file__).parents[2] / "fixtures" / "tiny_kws_dscnn_int8.tflite",
        tmp_path / "m.onnx",
        tmp_path / "o.onnx",
    )
    convert(source, result)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(optimized)
    onnxruntime.InferenceSession(str(result), options, providers=["CPUExecutionProvider"])
    proto = onnx.load(optimized)
    if not proto.metadata_props:
        proto.metadata_props.extend(onnx.load(result).metadata_props)
        onnx.save(proto, optimized)
    assert optimized.read_bytes() != result.read_bytes()
    report = check(source, optimized, samples=1)
    assert (report.verdict, report.problems) == ("passed", ())


@pytest.mark.litert
def test_an_operator_that_reads_another_tensor_is_named_without_metadata(tmp_path: Path) -> None:
    """The result that reads the same is proved equal, and no operator is compared by runs unless that is asked for."""
    source, result = tmp_path / "a.tflite", tmp_path / "b.tflite"
    addition(source)
    graph = load(source)
    save(graph, result)
    assert check(source, result).operators == () and len(check(source, result, per_op=True).operators) == 1
    save(graph.evolve(ops=[replace(graph.ops[0], inputs=("a", "a"))]), result, force=True)
    report = check(source, result)
    assert report.verdict == "not equal" and "ADD #0 ('y')" in report.problems[0]


@pytest.mark.tflite_micro
def test_a_reader_of_another_tensor_is_named_where_a_runtime_gives_no_inner_tensors(tmp_path: Path) -> None:
    """Averages of random inputs are below the constant, so that both maxima are equal, and so are the outputs."""
    image, one, quantization = (1, 8, 8, 1), (1, 1, 1, 1), Quantization.per_tensor(0.1, 0)
    shapes = {"a": image, "b": image, "mean_a": one, "mean_b": one, "most_a": one, "most_b": one, "y": image, "z": image}
    tensors = {name: Tensor(name, "int8", shape, None, quantization) for name, shape in shapes.items()}
    tensors["c"] = Tensor("c", "int8", one, np.full(one, 30, np.int8), quantization)
    ops = [Op("GlobalAveragePool", (name,), (f"mean_{name}",), {"data_format": "channels_last"}) for name in "ab"]
    ops += [Op("Max", (f"mean_{name}", "c"), (f"most_{name}",)) for name in "ab"]
    right, wrong = ([Op("Add", (one, f"most_{other}"), (y,)) for one, other, y in ways] for ways in (("aay", "bbz"), ("aby", "baz")))
    for name, adds in (("source", right), ("right", right), ("wrong", wrong)):
        save(Graph("maxima", tensors, (*ops, *adds), ("a", "b"), ("y", "z")), tmp_path / f"{name}.tflite")
    assert check(tmp_path / "source.tflite", tmp_path / "right.tflite", kernels="tflite-micro").verdict == "passed"
    report = check(tmp_path / "source.tflite", tmp_path / "wrong.tflite", kernels="tflite-micro")
    assert report.verdict == "inconclusive" and "ADD #4, ADD #5" in report.unjudged[0]


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_the_limit_of_an_exact_softmax_is_a_part_of_its_form(tmp_path: Path) -> None:
    """256 of 256 is 255 with it, and 0 without: where one class has nearly all, as it has for no random scores of ten."""
    sides = [("x", Quantization.per_tensor(0.1718, 24)), ("y", Quantization.per_tensor(1 / 256, -128))]
    tensors = {name: Tensor(name, "int8", (1, 10), None, quantization) for name, quantization in sides}
    save(Graph("softmax", tensors, (Op("Softmax", ("x",), ("y",), {"axis": -1}),), ("x",), ("y",)), tmp_path / "x.tflite")
    convert(tmp_path / "x.tflite", tmp_path / "y.onnx")
    assert check(tmp_path / "x.tflite", tmp_path / "y.onnx").verdict == "passed"
    network = onnx.load(tmp_path / "y.onnx")
    (clip,) = (node for node in network.graph.node if node.op_type == "Clip")
    (cast,) = (node for node in network.graph.node if clip.output[0] in node.input)
    cast.input[0] = clip.input[0]
    network.graph.node.remove(clip)
    onnx.save(network, tmp_path / "y.onnx")
    assert check(tmp_path / "x.tflite", tmp_path / "y.onnx").verdict == "not equal"


@pytest.mark.formats
def test_extreme_inputs_reach_the_ends_of_a_range_within_its_bounds() -> None:
    quantization = Quantization(np.array([0.1]), np.array([0]))
    tensors = [Tensor("x", "float32", (4,)), Tensor("q", "int8", (4,), quantization=quantization), Tensor("i", "int64", (2,))]
    tensors += [Tensor("scalar", "int8", (), quantization=quantization), Tensor("none", "int8", (0, 4), quantization=quantization)]
    graph = Graph(
        "g", {item.name: item for item in tensors}, (Op("Quantize", ("x",), ("q",), {}, ""),), ("x", "i", "scalar", "none"), ("q",)
    )
    like = {"x": np.zeros(4, np.float32), "i": np.array([3, 5]), "scalar": np.array(0, np.int8), "none": np.zeros((0, 4), np.int8)}
    found = list(extreme_inputs(graph, like, 0))
    assert min(feed["x"].min() for feed in found) < -12.8 and max(feed["x"].max() for feed in found) > 12.7
    assert all(np.array_equal(feed["i"], [3, 5]) for feed in found)
    zero = zero_inputs(graph, {**like, "x": np.ones(4, np.float32)})
    assert not zero["x"].any() and np.array_equal(zero["i"], [3, 5])
    assert max(feed["x"].max() for feed in extreme_inputs(graph, like, 0, {"x": (0.0, 1.0)})) == 1
    alone = [sorted(feed["x"]) for feed in found]
    assert any(value[0] == value[2] < value[3] for value in alone) and any(value[0] < value[1] == value[3] for value in alone)


@pytest.mark.formats
def test_sizes_known_at_run_time_are_1_2_and_7() -> None:
    graph = Graph(
        "g", {name: Tensor(name, "float32", ("n", 3)) for name in ("x", "y")}, (Op("Relu", ("x",), ("y",), {}, ""),), ("x",), ("y",)
    )
    assert [feed["x"].shape for feed in inputs_of_other_sizes(graph, {"x": np.zeros((1, 3), np.float32)}, 0)] == [(2, 3), (7, 3)]


def write_without_metadata(source: Path, result: Path, target: str = "") -> None:
    convert(source, result, target=target)
    if result.suffix == ".tflite":
        save(replace(load(result), metadata={}), result, force=True)
        return
    proto = onnx.load(result)
    del proto.metadata_props[:]
    onnx.save(proto, result)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(
    ("name", "suffix", "target"),
    [
        ("keras/keras_transposed_int8.tflite", "onnx", "ort-x86"),  # a LeakyRelu with a nudged alpha
        ("qonnx/mlp_2_bits.onnx", "tflite", ""),  # float biases, rounded to the scale of the sums
    ],
)
def test_what_is_stated_otherwise_is_no_fault_where_the_operator_is_proved_to_be_the_same(
    name: str, suffix: str, target: str, tmp_path: Path
) -> None:
    source, result = FIXTURES / name, tmp_path / f"m.{suffix}"
    write_without_metadata(source, result, target)
    report = check(source, result, samples=1)
    assert (report.verdict, report.problems) == ("passed", ())


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(("steps", "named"), [(0, False), (2, True)])
def test_a_limit_of_one_channel_of_what_a_quantized_operator_reads(steps: int, named: bool, tmp_path: Path) -> None:
    source, result = tmp_path / "m.tflite", tmp_path / "m.onnx"
    addition(source)
    write_without_metadata(source, result, "generic")
    proto = onnx.load(result)
    add = next(node for node in proto.graph.node if node.op_type == "Add")
    tops = np.full((1, 1, 1, 8), 1e30, np.float32)
    tops[..., 3] = (127 - 3 - steps) * np.float32(0.04)
    proto.graph.initializer.append(numpy_helper.from_array(tops, "tops"))
    proto.graph.node.insert(list(proto.graph.node).index(add), helper.make_node("Min", [add.input[0], "tops"], ["planted"], name="planted"))
    add.input[0] = "planted"
    onnx.save(proto, result)
    assert any("ADD #0 ('y')" in text for text in check(source, result, samples=1).problems) == named


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_what_the_files_say_is_judged_where_the_runtime_refuses_the_source(tmp_path: Path) -> None:
    """LiteRT has no SquaredDifference of int16."""
    source, result = FIXTURES / "keras" / "keras_causal_int16x8.tflite", tmp_path / "m.onnx"
    convert(source, result)
    assert check(source, result).verdict == "inconclusive"
    proto = onnx.load(result)
    weights = next(item for item in proto.graph.initializer if item.data_type == TensorProto.INT8 and len(item.dims) == 4)
    weights.CopyFrom(numpy_helper.from_array(np.roll(numpy_helper.to_array(weights), 1), weights.name))
    onnx.save(proto, result)
    report = check(source, result)
    assert report.verdict == "not equal" and "SquaredDifference" in report.unjudged[0]


@pytest.mark.onnxruntime
def test_a_fault_names_what_is_judged_together_with_its_operator(tmp_path: Path) -> None:
    source, result = FIXTURES / "qonnx" / "mlp_binary.onnx", tmp_path / "m.onnx"
    write_without_metadata(source, result)
    proto = onnx.load(result)
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "half"))
    first = proto.graph.node[0]
    added = helper.make_node("Add", [first.input[0], "half"], ["planted"], name="planted")
    first.input[0] = "planted"
    proto.graph.node.insert(0, added)
    onnx.save(proto, result)
    (problem,) = check(source, result, samples=1).problems
    assert "Gemm /1/Gemm ('/1/Gemm_output_0')" in problem and "BipolarQuant /0/act_quant/export_handler/BipolarQuant (" in problem


@pytest.mark.litert
def test_a_fault_that_runs_and_proof_show_is_named_once_with_the_codes(tmp_path: Path) -> None:
    tensors = {name: Tensor(name, "int8", SHAPE, None, Quantization.per_tensor(0.05, 0)) for name in ("x", "y", "clipped")}
    tensors["y"] = replace(tensors["y"], quantization=Quantization.per_tensor(0.01, -128))
    tensors["top"] = Tensor("top", "int8", (1, 1, 1, 1), np.full((1, 1, 1, 1), 120, np.int8), tensors["x"].quantization)
    own = [Op("Sigmoid", ("x",), ("y",))]
    its = [Op("Min", ("x", "top"), ("clipped",)), Op("Sigmoid", ("clipped",), ("y",))]
    tensors["y"] = replace(tensors["y"], quantization=Quantization.per_tensor(1 / 256, -128))
    for name, ops in (("source", own), ("result", its)):
        used = {item: tensors[item] for op in ops for item in op.names}
        save(Graph(name, used, tuple(ops), ("x",), ("y",)), tmp_path / f"{name}.tflite")
    report = check(tmp_path / "source.tflite", tmp_path / "result.tflite")
    assert report.verdict == "not equal"
    assert all("codes of 'x'" in text for text in report.problems) and len(report.problems) == 1


@pytest.mark.onnxruntime
@pytest.mark.mnn
@pytest.mark.parametrize("altered", [False, True])
def test_a_piece_that_mnn_computes_otherwise_than_the_file_says_nothing_of_it(altered: bool, tmp_path: Path) -> None:
    """Alone, MNN computes the last product in float and rounds it to no scale; in the file it does."""
    source = FIXTURES / "digits" / "brevitas.onnx"
    graph = load(source)
    if altered:
        last = [op for op in graph.ops if op.kind == "Gemm"][-1]
        bias = graph[last.inputs[2]]
        graph = graph.evolve(tensors=[replace(bias, data=np.roll(graph.constant(bias.name), 1))])
    convert(graph, tmp_path / "m.mnn")
    report = check(source, tmp_path / "m.mnn", samples=1)
    assert report.verdict == ("not equal" if altered else "passed")
    assert any("Gemm /head/Gemm" in text for text in report.problems) == altered


@pytest.mark.onnxruntime
def test_rows_that_are_wrong_from_the_fifth_on_are_found_where_the_outputs_do_not_show_them(tmp_path: Path) -> None:
    """All random inputs have the same class, whatever the rows of the first operator are: operators are compared for 7 rows."""
    source, result = FIXTURES / "onnx" / "micro_kws_m_static_qdq.onnx", tmp_path / "result.onnx"
    proto = onnx.load(source)
    node = next(item for item in proto.graph.node if item.op_type == "QuantizeLinear" and "Relu" in item.input[0])
    index = list(proto.graph.node).index(node)
    bounds = {"first": [0], "fifth": [4], "end": [2**31]}
    proto.graph.initializer.extend(numpy_helper.from_array(np.array(value, np.int64), name) for name, value in bounds.items())
    added = [
        helper.make_node("Slice", [node.input[0], "first", "fifth", "first"], ["few"]),
        helper.make_node("Slice", [node.input[0], "fifth", "end", "first"], ["more"]),
        helper.make_node("Neg", ["more"], ["negated"]),
        helper.make_node("Concat", ["few", "negated"], ["planted"], axis=0),
    ]
    node.input[0] = "planted"
    for place, item in enumerate(added):
        proto.graph.node.insert(index + place, item)
    onnx.save(proto, result)
    report = check(source, result)
    assert report.verdict == "not equal"
    assert [text.partition(" ")[0] for text in report.problems] == ["QuantizeLinear"], report.problems
