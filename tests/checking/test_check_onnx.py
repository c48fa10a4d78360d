"""check() from ONNX to ONNX: sound models pass, a planted fault is named at its operator, inputs suit the source."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import path_of
from onnx_nodes import model_of

from qconvert import check, convert, load

pytestmark = pytest.mark.onnxruntime

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
RESNET = FIXTURES / "onnx" / "tf2onnx_tiny_resnet_cifar10_int8.onnx"
FORMS = ("qdq", "qoperator")
MODELS = (
    "tf2onnx_tiny_kws_dscnn_int8", "torch_pt2e_x86_vision", "torch_fx_fbgemm_attention", "modelopt_ptq_attention", "brevitas_int8",
    "mobile-S8S8-qdq", "mobile-U8U8-qoperator", "encoder-U8S8-pc-qdq", "encoder-S8S8-qoperator", "conv-dynamic-S8",
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_a_sound_model_passes(name: str, form: str, tmp_path: Path) -> None:
    source, result = path_of(name, tmp_path), tmp_path / "result.onnx"
    convert(source, result, form=form)
    report = check(source, result, samples=2, per_op=True, kernels="onnxruntime:unoptimized")
    assert report.passed, report.problems
    assert report.kernels == ("onnxruntime:unoptimized",) * 2
    graph = load(source)
    computing = [op for op in graph.ops if not all(graph[name].is_constant for name in op.inputs if name)]
    assert len(report.operators) >= 0.85 * len(computing)
    assert all(op.largest <= 1 for op in report.operators)
    if form == "qdq" and "qoperator" not in name:
        assert all(item.equal == 1 for item in report.outputs)
        assert {op.verdict for op in report.operators} == {"equal"}
    assert check(source, result, samples=2, per_op=True).passed


def test_sums_that_the_optimizer_orders_otherwise_are_explained_without_it(tmp_path: Path) -> None:
    """The source's MatMul and Add become one node, the result's do not: in pieces they are equal, and so they are not as a whole."""
    source, result = path_of("torch_pt2e_x86_attention", tmp_path), tmp_path / "result.onnx"
    convert(source, result, form="qoperator")
    report = check(source, result)
    assert report.passed, report.problems
    if any(item.differs for item in report.outputs):
        assert "the operators are compared without optimizations" in report.notes[-1]
        assert {op.verdict for op in report.operators} <= {"equal", "approximate"}


class Planter:
    """A result, its initializers, and one of its convolutions in either form.

    Attributes:
        output: the name of the quantized tensor that the convolution writes.
        weights, scale, zero_point: names of initializers: its weights, and the quantization of its output.
    """

    def __init__(self, path: Path, form: str) -> None:
        self.path = path
        self.model = onnx.load(path)
        self.values = {item.name: item for item in self.model.graph.initializer}
        op = [op for op in load(path).ops if op.kind == "Conv"][2]
        self.output, self.weights = op.outputs[0], op.inputs[1]
        node = next(n for n in self.model.graph.node if self.output in n.output)
        assert node.op_type == ("QLinearConv" if form == "qoperator" else "QuantizeLinear")
        self.scale, self.zero_point = node.input[6:8] if form == "qoperator" else node.input[1:3]

    def change(self, name: str, function: Callable[[Any], Any]) -> None:
        """Replaces an initializer and saves the model."""
        old = numpy_helper.to_array(self.values[name])
        new = np.asarray(function(old.copy())).astype(old.dtype).reshape(old.shape)
        assert not np.array_equal(old, new)
        self.values[name].CopyFrom(numpy_helper.from_array(new, name))
        onnx.save(self.model, self.path)


def one_weight(p: Planter) -> None:
    def add(weights: Any) -> Any:
        weights.reshape(-1)[7] ^= 0x40
        return weights

    p.change(p.weights, add)


def output_zero_point(p: Planter) -> None:
    p.change(p.zero_point, lambda z: z + 1)


def output_scale(p: Planter) -> None:
    p.change(p.scale, lambda s: s * np.float32(1.01))


@pytest.mark.parametrize("kernels", ["optimized", "unoptimized"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fault", [one_weight, output_zero_point, output_scale])
@pytest.mark.parametrize("name", ["tf2onnx_tiny_resnet_cifar10_int8", "mobile-U8U8-qoperator", "mobile-S8S8-qdq"])
def test_a_fault_is_named_at_its_operator(name: str, fault: Callable[[Planter], None], form: str, kernels: str, tmp_path: Path) -> None:
    source, result = path_of(name, tmp_path), tmp_path / "result.onnx"
    convert(source, result, form=form)
    planter = Planter(result, form)
    fault(planter)
    report = check(source, result, samples=1, per_op=True, kernels=f"onnxruntime:{kernels}")
    named = [op.output for op in report.operators if op.verdict == "unexplained"]
    assert not report.passed
    assert named[0] == planter.output
    readers = {name for op in load(source).ops if planter.output in op.inputs for name in op.outputs}
    assert set(named[1:]) <= readers  # a wrong scale or zero point is also wrong for whoever reads the tensor


def test_a_weight_that_these_inputs_do_not_bring_out(tmp_path: Path) -> None:
    convert(RESNET, tmp_path / "result.onnx")
    planter = Planter(tmp_path / "result.onnx", "qdq")
    planter.change(planter.weights, lambda w: w ^ (np.arange(w.size).reshape(w.shape) == 5))
    np.save(tmp_path / "input.npy", np.zeros((1, 32, 32, 3), np.int8))
    report = check(RESNET, planter.path, data=[str(tmp_path / "input.npy")], per_op=True)
    (named,) = [op for op in report.operators if op.verdict == "unexplained"]
    assert named.output == planter.output
    assert "1 of" in named.reason
    assert "integers of" in named.reason


def test_a_tensor_under_another_name_is_found_by_what_reads_it(tmp_path: Path) -> None:
    convert(RESNET, tmp_path / "result.onnx")
    renamed = onnx.load(tmp_path / "result.onnx")
    wanted = next(op.outputs[0] for op in load(RESNET).ops if op.kind == "Add")
    for node in renamed.graph.node:
        for names in (node.input, node.output):
            names[:] = ["renamed" if name == wanted else name for name in names]
    onnx.save(renamed, tmp_path / "result.onnx")
    report = check(RESNET, tmp_path / "result.onnx", samples=1, per_op=True, kernels="onnxruntime:unoptimized")
    assert report.passed
    assert wanted in {op.output for op in report.operators}
    assert not any("judged together with what reads" in note for note in report.notes)


def written(path: Path, nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], outputs: dict[str, int], **constants: Any) -> Path:
    values = [helper.make_tensor_value_info(name, *described) for name, described in inputs.items()]
    results = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs.items()]
    weights = [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()]
    graph = helper.make_graph(nodes, "made", values, results, weights)
    onnx.save(model_of(graph), path)
    return path


def test_indices_of_a_gather_stay_in_its_table(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m.onnx",
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        {"ids": (TensorProto.INT64, ["batch", 40])},
        {"y": TensorProto.FLOAT},
        table=np.arange(9, dtype=np.float32).reshape(3, 3),
    )
    report = check(path, path, per_op=True)
    assert (report.passed, report.notes, report.runs) == (True, (), 5)


def test_integers_that_the_source_refuses_are_halved(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m.onnx",
        [helper.make_node("Mul", ["ids", "ids"], ["square"]), helper.make_node("Gather", ["table", "square"], ["y"])],
        {"ids": (TensorProto.INT64, [40])},
        {"y": TensorProto.FLOAT},
        table=np.arange(9, dtype=np.float32).reshape(3, 3),
    )
    report = check(path, path, samples=2)
    assert report.notes == ("integer inputs are at most 1: the source refuses others",)
    assert report.outputs[0].equal == 1


@pytest.mark.cross_section
def test_free_sizes_grow_until_the_source_takes_them(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m.onnx",
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        {"x": (TensorProto.FLOAT, ["n", 1, "h", "w_"])},
        {"y": TensorProto.FLOAT},
        w=np.ones((1, 1, 7, 7), np.float32),
    )
    report = check(path, path, samples=1, per_op=True)
    assert report.passed
    assert report.notes == ("dynamic dimensions are n 2, h 16, w_ 16: the source refuses others",)


def test_a_source_that_refuses_every_input_is_quoted(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m.onnx",
        [helper.make_node("Gather", ["table", "nine"], ["t"]), helper.make_node("Add", ["x", "t"], ["y"])],
        {"x": (TensorProto.FLOAT, [3])},
        {"y": TensorProto.FLOAT},
        table=np.arange(9, dtype=np.float32).reshape(3, 3),
        nine=np.int64(9),
    )
    report = check(path, path)
    assert report.verdict == "inconclusive"
    assert "onnxruntime failed while running the model" in report.unjudged[0]


def test_values_that_subgraphs_read_are_fed_to_them(tmp_path: Path) -> None:
    branches = {
        key: helper.make_graph([helper.make_node(kind, ["a", "b"], [key])], key, [], [helper.make_tensor_value_info(key, 1, [3])])
        for key, kind in (("then_branch", "Add"), ("else_branch", "Mul"))
    }
    path = written(
        tmp_path / "m.onnx",
        [
            helper.make_node("Sigmoid", ["x"], ["a"]),
            helper.make_node("Tanh", ["x"], ["b"]),
            helper.make_node("If", ["choose"], ["y"], **branches),  # type: ignore[arg-type]
        ],
        {"x": (TensorProto.FLOAT, [3]), "choose": (TensorProto.BOOL, [])},
        {"y": TensorProto.FLOAT},
    )
    report = check(path, path, per_op=True)
    assert report.passed
    assert {op.output for op in report.operators} == {"a", "b", "y"}


def test_infinities_of_both_sides_are_equal_and_nan_is_not_judged(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", [helper.make_node("Log", ["x"], ["y"])], {"x": (1, [64])}, {"y": 1})
    np.save(tmp_path / "x.npy", np.random.default_rng(0).uniform(-1, 1, 64).astype(np.float32))
    report = check(path, path, data=[tmp_path / "x.npy"], per_op=True)
    assert 0 < report.outputs[0].nan == round(64 * (1 - report.outputs[0].equal))
    assert report.outputs[0].largest == 0
    assert report.operators[0].verdict == "equal"
    assert report.verdict == "inconclusive"
    assert "'y' is NaN in source and result" in report.unjudged[0]


@pytest.mark.torch
def test_an_identity_that_gives_an_output_is_judged_by_what_it_reads(tmp_path: Path) -> None:
    nodes = [helper.make_node("Sqrt", ["x"], ["root"]), helper.make_node("Min", ["root", "root"], ["less"])]
    path = written(tmp_path / "m.onnx", [*nodes, helper.make_node("Identity", ["less"], ["y"])], {"x": (1, [64])}, {"y": 1})
    convert(path, tmp_path / "m.pt2")
    assert load(tmp_path / "m.pt2").outputs == ("less",)
    report = check(path, tmp_path / "m.pt2", per_op=True)
    assert report.passed, report.problems
    assert {op.output for op in report.operators} == {"root", "less"}


#: Constants of in_integers(), and some to compute with.
GRID = {"s": np.float32(0.05), "z": np.int8(0), "zero": np.float32(0), "one": np.ones(4, np.float32), "none": np.zeros(4, np.float32)}


def in_integers(source: str, result: str) -> list[Any]:
    """A tensor rounded onto GRID."""
    nodes = (("QuantizeLinear", [source, "s", "z"], [f"{result}_q"]), ("DequantizeLinear", [f"{result}_q", "s", "z"], [result]))
    return [helper.make_node(*node) for node in nodes]


@pytest.mark.torch
@pytest.mark.litert
@pytest.mark.parametrize("quantized", [True, False])
def test_differences_that_optimizations_alone_make_are_not_judged_where_they_are_infinite(quantized: bool, tmp_path: Path) -> None:
    """onnxruntime multiplies infinities by a matrix otherwise where it fuses what stands around."""
    nodes = [*in_integers("x", "a"), helper.make_node("Div", ["a", "zero"], ["b"]), helper.make_node("MatMul", ["b", "w"], ["v"])]
    nodes += (
        [*in_integers("v", "u"), helper.make_node("Relu", ["u"], ["y"])] if quantized else [helper.make_node("Mul", ["v", "one"], ["y"])]
    )
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    path = written(tmp_path / "m.onnx", nodes, {"x": (1, [1, 4, 4, 4])}, {"y": 1}, w=weights, **GRID)
    convert(path, tmp_path / "m.pt2")
    report = check(path, tmp_path / "m.pt2")
    assert not report.problems
    assert report.passed == all(np.isfinite(item.largest) for item in report.outputs)
    assert report.passed or "caused by optimizations alone" in report.unjudged[-1]


@pytest.mark.torch
@pytest.mark.litert
def test_nan_on_one_side_alone_at_the_ends_is_not_judged(tmp_path: Path) -> None:
    """Equal values less their mean are 0, or last bits, by the order of the sum: over their deviation 0 / 0, which is NaN, or a number."""
    sizes = {"axes": [-1]}
    nodes = [
        *in_integers("x", "a"),
        helper.make_node("ReduceMean", ["a"], ["mean"], **sizes),
        helper.make_node("Sub", ["a", "mean"], ["b"]),
    ]
    nodes += [helper.make_node("Mul", ["b", "b"], ["c"]), helper.make_node("ReduceMean", ["c"], ["variance"], **sizes)]
    nodes += [helper.make_node("Sqrt", ["variance"], ["deviation"]), helper.make_node("Div", ["b", "deviation"], ["y"])]
    path = written(tmp_path / "m.onnx", nodes, {"x": (1, [1, 4, 4, 16])}, {"y": 1}, **GRID)
    convert(path, tmp_path / "m.pt2")
    report = check(path, tmp_path / "m.pt2")
    assert report.verdict == "inconclusive", report.problems
    assert "NaN in only one of source and result at the ends" in report.unjudged[0]


@pytest.mark.torch
def test_a_vector_of_zeros_over_its_norm_stays_in_pytorch(tmp_path: Path) -> None:
    nodes = [*in_integers("x", "a"), helper.make_node("LpNormalization", ["a"], ["y"], axis=-1, p=2)]
    path = written(tmp_path / "m.onnx", nodes, {"x": (1, [2, 8])}, {"y": 1}, **GRID)
    convert(path, tmp_path / "m.pt2")
    np.save(tmp_path / "x.npy", np.zeros((2, 8), np.float32))
    assert check(path, tmp_path / "m.pt2").passed
    report = check(path, tmp_path / "m.pt2", data=[tmp_path / "x.npy"], per_op=True)
    assert report.verdict == "passed"
    assert report.outputs[0].nan == 0


@pytest.mark.litert
@pytest.mark.parametrize("kind", ["LayerNormalization", "Div"])
def test_integers_that_are_made_of_nan_are_not_judged(kind: str, tmp_path: Path) -> None:
    """0 / 0 is NaN on both sides, of which onnxruntime makes -128 and LiteRT another integer."""
    nodes = [*in_integers("x", "a"), helper.make_node("Mul", ["a", "zero"], ["b"])]
    given, options = (["b", "b"], {}) if kind == "Div" else (["b", "one", "none"], {"epsilon": 0.0})
    nodes += [helper.make_node(kind, given, ["v"], **options), *in_integers("v", "u"), helper.make_node("Neg", ["u"], ["y"])]
    path = written(tmp_path / "m.onnx", nodes, {"x": (1, [1, 4, 4, 4])}, {"y": 1}, **GRID)
    convert(path, tmp_path / "m.tflite")
    report = check(path, tmp_path / "m.tflite")
    assert report.outputs[0].differs
    assert report.verdict == "inconclusive"
    assert "each runtime converts NaN to another integer" in report.unjudged[0]


def test_float_inputs_cover_the_range_of_the_quantize_that_reads_them(tmp_path: Path) -> None:
    from qconvert.data import random_inputs

    path = path_of("mobile-S8S8-qdq", tmp_path)
    graph = load(path)
    quantize = next(op for op in graph.ops if op.kind == "Quantize" and op.inputs[0] == graph.inputs[0])
    found = graph[quantize.outputs[0]].quantization
    assert found is not None
    low, high = ((limit - found.point) * found.step for limit in (-128, 127))
    (feed,) = random_inputs(graph, 1, 0)
    values = feed[graph.inputs[0]]
    assert values.dtype == np.float32
    assert 0.7 * (high - low) < values.max() - values.min() < 1.7 * (high - low)


def test_inputs_of_a_dynamic_batch_come_from_files(tmp_path: Path) -> None:
    convert(RESNET, tmp_path / "result.onnx", form="qoperator")
    name = load(RESNET).inputs[0]
    np.savez(tmp_path / "a.npz", **{name: np.random.default_rng(1).integers(-128, 128, (1, 32, 32, 3)).astype(np.int8)})
    report = check(RESNET, tmp_path / "result.onnx", data=[str(tmp_path / "a.npz")], max_lsb=1)
    assert (report.passed, report.runs) == (True, 1)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return forked.run(arguments)


@pytest.mark.end_to_end
def test_command_line(tmp_path: Path) -> None:
    result = tmp_path / "result.onnx"
    convert(RESNET, result)
    done = run("check", RESNET, result, "--per-op", "--kernels", "onnxruntime:unoptimized", "--samples", "1")
    assert done.returncode == 0, done.stderr
    assert "on 1 input, 18 of 18 operators" in done.stdout
    planter = Planter(result, "qdq")
    one_weight(planter)
    wrong = run("check", RESNET, result, "--per-op", "--kernels", "onnxruntime:unoptimized", "--samples", "1", "--json")
    assert wrong.returncode == 1
    document = json.loads(wrong.stdout)
    assert not document["passed"]
    assert planter.output in document["problems"][0]
    convert(RESNET, tmp_path / "source.qgraph")
    refused = run("check", tmp_path / "source.qgraph", result)
    assert refused.returncode == 4
    assert "inconclusive" in refused.stdout
    assert "no runtime runs qgraph files" in refused.stdout
    assert "Convert the model to .onnx" in refused.stdout


def test_an_activation_that_its_quantization_implies_leaves_the_tensor_its_name_of_the_file(tmp_path: Path) -> None:
    """By that name the check finds it in the file."""
    path = FIXTURES / "onnx" / "tf2onnx_tiny_kws_dscnn_int8.onnx"
    names = {name for node in onnx.load(path).graph.node for name in node.output}
    graph = load(path)
    assert all(name in names for op in graph.ops for name in op.outputs)
