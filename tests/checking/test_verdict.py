"""The verdict of a check: how a wrong result could pass, and does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from tflite_models import TensorSpec, single_op

from qconvert import check, convert, load, save
from qconvert.checking.findings import Finding, OutputComparison
from qconvert.checking.verdicts import describe_growth, distant_outputs, is_declared_exact
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.graph.metadata import CHANGED
from qconvert.rules.changed_values import declared_changes, declared_names

FIXTURES = Path(__file__).parents[2] / "fixtures"
KWS = FIXTURES / "tiny_kws_dscnn_int8.tflite"


def conv(path: Path, seed: int, *, roll: int = 0) -> Path:
    """A 1x1 convolution with random weights."""
    x = TensorSpec("x", (1, 4, 4, 3), "int8", scale=0.05, zero_point=3)
    y = TensorSpec("y", (1, 4, 4, 4), "int8", scale=0.1, zero_point=-7)
    weights = np.roll(np.random.default_rng(seed).integers(-90, 90, (4, 1, 1, 3)).astype(np.int8), roll)
    w = TensorSpec("w", (4, 1, 1, 3), "int8", scale=0.02, zero_point=0, data=weights)
    b = TensorSpec("b", (4,), "int32", scale=0.05 * 0.02, zero_point=0, data=np.zeros(4, np.int32))
    options = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1, "padding": 1}
    path.write_bytes(single_op("CONV_2D", options, [x, w, b], [y]))
    return path


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("roll", [0, 1])
def test_the_result_of_another_model_is_not_equal(roll: int, tmp_path: Path) -> None:
    """Other weights, or the same ones rolled by one place."""
    source, other = conv(tmp_path / "m0.tflite", 0), conv(tmp_path / "m1.tflite", 1 - roll, roll=roll)
    convert(other, tmp_path / "m1.onnx")
    report = check(source, tmp_path / "m1.onnx")
    assert (report.verdict, report.passed) == ("not equal", False)
    assert report.outputs[0].largest > 50
    assert report.problems[0].startswith("CONV_2D #0 ('y'): ")
    assert "12 integers of 'w' are not the source's" in report.problems[0]
    convert(source, tmp_path / "m0.onnx")
    assert check(source, tmp_path / "m0.onnx").verdict == "passed"


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("per_op", [False, True])
def test_a_reshape_between_two_quantizations_is_checked(per_op: bool, tmp_path: Path) -> None:
    shape = TensorSpec("s", (2,), "int32", data=np.array([1, 256], np.int32))
    tensors = [TensorSpec("x", (1, 8, 8, 4), "int8", 0.05, 3), shape], [TensorSpec("y", (1, 256), "int8", 0.1, 3)]
    (tmp_path / "m.tflite").write_bytes(single_op("RESHAPE", {"newShape": [1, 256]}, *tensors))
    convert(tmp_path / "m.tflite", tmp_path / "m.onnx", target="generic")
    assert check(tmp_path / "m.tflite", tmp_path / "m.onnx", per_op=per_op).verdict == "passed"


def gemm_with_a_zero_point_of_the_bias(path: Path) -> Path:
    weights = np.random.default_rng(0).integers(-99, 99, (4, 8), dtype=np.int8)
    constants = {"s": np.float32(0.02), "z": np.int8(0), "w": weights, "ws": np.float32(0.01)}
    constants |= {"b": np.array([10, 20, 30, 40], np.int32), "bs": np.float32(0.0002), "bz": np.int32(5000)}
    nodes = [
        helper.make_node(kind, inputs, [output], **({"transB": 1} if kind == "Gemm" else {}))
        for kind, inputs, output in (
            ("QuantizeLinear", ["x", "s", "z"], "q"),
            ("DequantizeLinear", ["q", "s", "z"], "d"),
            ("DequantizeLinear", ["w", "ws", "z"], "dw"),
            ("DequantizeLinear", ["b", "bs", "bz"], "db"),
            ("Gemm", ["d", "dw", "db"], "g"),
            ("QuantizeLinear", ["g", "s", "z"], "gq"),
            ("DequantizeLinear", ["gq", "s", "z"], "y"),
        )
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in (("x", 8), ("y", 4))]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()])
    onnx.save(model_of(graph), path)
    return path


@pytest.mark.onnxruntime
def test_a_bias_that_loses_its_zero_point_is_not_equal(tmp_path: Path) -> None:
    """onnxruntime ignores that zero point when it optimizes, on both sides alike; as the graphs stand the two differ by 1.0."""
    source = gemm_with_a_zero_point_of_the_bias(tmp_path / "source.onnx")
    lost = onnx.load(source)
    next(item for item in lost.graph.initializer if item.name == "bz").CopyFrom(numpy_helper.from_array(np.asarray(np.int32(0)), "bz"))
    onnx.save(lost, tmp_path / "lost.onnx")
    report = check(source, tmp_path / "lost.onnx", kernels="onnxruntime:unoptimized")
    assert report.verdict == "not equal"
    assert "'gq'" in report.problems[0]
    assert check(source, source, kernels="onnxruntime:unoptimized").verdict == "passed"


@pytest.mark.litert
def test_quick_judges_the_outputs_alone(tmp_path: Path) -> None:
    source, other = conv(tmp_path / "m0.tflite", 0), conv(tmp_path / "m1.tflite", 1)
    wrong = check(source, other, quick=True)
    assert wrong.operators == ()
    assert wrong.problems == (f"output 'y' differs by {wrong.outputs[0].largest:g} LSB, more than 1",)
    assert check(source, other, quick=True, max_lsb=255).passed
    graph = load(source)
    near = replace(graph["b"], data=np.array([0, 0, 0, 30], np.int32))  # 0.3 LSB
    save(graph.evolve(tensors=[near]), tmp_path / "near.tflite")
    assert check(source, tmp_path / "near.tflite", quick=True).passed
    assert not check(source, tmp_path / "near.tflite", quick=True, max_lsb=0).passed
    report = check(source, tmp_path / "near.tflite")
    assert report.problems[0].startswith("CONV_2D #0 ('y'): 1 of 4 integers of 'b' are not the source's")


def chain(path: Path, change: Callable[[Graph], Graph] = lambda graph: graph) -> Path:
    """x, z -> a = x + z, b = x * z, both outputs of one type and shape."""
    quantization = Quantization.per_tensor(0.05, 3)
    tensors = {name: Tensor(name, "int8", (1, 4, 4, 4), None, quantization) for name in ("x", "z", "a", "b")}
    ops = (Op("Add", ("x", "z"), ("a",), {}, "ADD #0"), Op("Mul", ("a", "z"), ("b",), {}, "MUL #1"))
    save(change(Graph("chain", tensors, ops, ("x", "z"), ("a", "b"))), path)
    return path


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("suffix", ["tflite", "onnx"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: replace(g, outputs=("b", "a")), "the outputs are in another order: 'b', 'a' instead of 'a', 'b'"),
        (lambda g: replace(g, inputs=("z", "x")), "the inputs are in another order: 'z', 'x' instead of 'x', 'z'"),
        (lambda g: g.evolve(ops=[g.ops[0], replace(g.ops[1], inputs=("x", "z"))]), "MUL #1 ('b')"),
        (lambda g: g.evolve(ops=[replace(g.ops[0], kind="Sub"), g.ops[1]]), "ADD #0 ('a')"),
    ],
    ids=["outputs", "inputs", "edge", "kind"],
)
def test_order_edges_and_kinds(change: Callable[[Graph], Graph], words: str, suffix: str, tmp_path: Path) -> None:
    source = chain(tmp_path / f"source.{suffix}")
    assert check(source, chain(tmp_path / f"same.{suffix}")).verdict == "passed"
    report = check(source, chain(tmp_path / f"wrong.{suffix}", change))
    assert report.verdict == "not equal"
    wanted = words if suffix == "tflite" or "#" not in words else words.split(" ", 2)[2]
    assert any(wanted in text for text in report.problems), report.problems


@pytest.mark.litert
def test_a_scale_that_no_output_of_this_runtime_shows_is_not_equal(tmp_path: Path) -> None:
    source = chain(tmp_path / "source.tflite")
    quantization = Quantization.per_tensor(0.06, 3)
    report = check(
        source,
        chain(tmp_path / "wrong.tflite", lambda g: g.evolve(tensors=[replace(t, quantization=quantization) for t in g.tensors.values()])),
    )
    assert report.verdict == "not equal"
    assert any("a scale of 'a' is off by 20%" in text for text in report.problems)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
def test_outputs_that_hardly_vary_have_their_operators_compared(tmp_path: Path) -> None:
    """Every output saturates; what is before it says whether the models are equal."""
    path = FIXTURES / "tiny_wakeword_int8.tflite"
    convert(path, tmp_path / "m.onnx")
    report = check(path, tmp_path / "m.onnx")
    assert report.passed and report.outputs[0].equal == 1
    assert report.outputs[0].varied < 0.1 and len(report.operators) == len(load(path).ops)
    assert check(KWS, KWS).operators == ()


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(("declared", "suffix"), [(True, "tflite"), (True, "onnx"), (False, "tflite")])
def test_another_quantization_is_compared_as_real_values_if_the_conversion_declared_it(declared: bool, suffix: str, tmp_path: Path) -> None:
    wide = Quantization.per_tensor(0.4, 3)
    source = chain(tmp_path / f"source.{suffix}", lambda g: g.evolve(tensors=[replace(g["b"], quantization=wide)]))
    result, graph = tmp_path / f"result.{suffix}", load(source)
    requantized = graph.evolve(tensors=[replace(graph["b"], quantization=Quantization.per_tensor(0.45, -2))])
    changed = {CHANGED: json.dumps(declared_changes(requantized, ["b"]))} if declared else {}
    save(requantized, result, provenance=changed)
    report = check(source, result)
    (compared,) = (item for item in report.outputs if item.name == "b")
    assert report.passed == declared, report.problems
    if declared:
        assert compared.quantizations == "steps of 0.4 and 0.45"
        assert 0 < compared.largest <= 2
        assert compared.sqnr_db is not None and compared.sqnr_db > 20
        assert [op.output for op in report.operators if op.verdict == "requantized"] == ["b"]


@pytest.mark.litert
def test_a_declared_quantization_that_loses_too_much_is_not_equal(tmp_path: Path) -> None:
    """Nearly everything saturates."""
    source, result = chain(tmp_path / "source.tflite"), tmp_path / "result.tflite"
    graph = load(source)
    requantized = graph.evolve(tensors=[replace(graph["b"], quantization=Quantization.per_tensor(0.001, 0))])
    save(requantized, result, provenance={CHANGED: json.dumps(declared_changes(requantized, ["b"]))})
    report = check(source, result)
    assert report.verdict == "not equal"
    assert any("output 'b': SQNR" in text and "below 30" in text for text in report.problems)


def requantized(path: Path, folder: Path, *, declared: bool) -> Path:
    """The weights of a model with one scale for all channels, by the pass that does that."""
    result = folder / f"{declared}.onnx"
    convert(path, result, passes=["per_axis_to_per_tensor"])
    if not declared:
        model = onnx.load(result)
        kept = [item for item in model.metadata_props if item.key != "qconvert.changed"]
        del model.metadata_props[:]
        model.metadata_props.extend(kept)
        onnx.save(model, result)
    return result


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_declared_change_of_weights_passes_with_its_cost_and_an_undeclared_one_does_not(tmp_path: Path) -> None:
    report = check(KWS, requantized(KWS, tmp_path, declared=True))
    assert report.passed, report.problems
    changed = [op for op in report.operators if op.verdict == "requantized"]
    assert changed and all(op.sqnr_db is not None or op.equal == 1 for op in changed)
    assert report.outputs[0].sqnr_db is not None and report.outputs[0].sqnr_db >= 20
    undeclared = check(KWS, requantized(KWS, tmp_path, declared=False))
    assert undeclared.verdict == "not equal"
    assert "are not the source's" in undeclared.problems[0]


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_declared_tensor_that_is_not_what_was_declared_is_named(tmp_path: Path) -> None:
    result = requantized(KWS, tmp_path, declared=True)
    graph = load(result)
    name = next(name for name in sorted(declared_names(graph)) if graph[name].dtype == "int8" and graph[name].is_constant)
    data = np.array(graph[name].data)
    data.reshape(-1)[7] ^= 1
    save(graph.evolve(tensors=[replace(graph[name], data=data)]), result, force=True)
    report = check(KWS, result)
    assert report.verdict == "not equal"
    assert any(repr(name) in text for text in report.problems)


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_what_an_earlier_conversion_declared_is_the_sources_own(tmp_path: Path) -> None:
    """A chain of conversions: the first puts tensors in, the second only stores them otherwise."""
    first, second = tmp_path / "first.tflite", tmp_path / "second.onnx"
    convert(FIXTURES / "onnx" / "torch_pt2e_x86_attention.onnx", first)
    convert(first, second)
    assert declared_names(load(first)) and declared_names(load(second))
    assert not declared_names(load(second), load(first))
    report = check(first, second, per_op=True)
    assert report.passed, report.problems
    assert not any(op.verdict == "requantized" for op in report.operators)


@pytest.mark.litert
def test_a_rounding_that_nobody_declared_explains_nothing(tmp_path: Path) -> None:
    """The sum goes over a quantization of its own, twice as coarse."""

    def twice(graph: Graph) -> Graph:
        coarse = Tensor("c", "int8", (1, 4, 4, 4), None, Quantization.per_tensor(0.1, 3))
        ops = [Op("Add", ("x", "z"), ("c",)), Op("Requantize", ("c",), ("a",)), graph.ops[1]]
        return graph.evolve(tensors=[coarse], ops=ops)

    report = check(chain(tmp_path / "source.tflite"), chain(tmp_path / "wrong.tflite", twice))
    assert report.verdict == "not equal"
    assert "ADD #0 ('a')" in report.problems[0]


@pytest.mark.formats
def test_outputs_on_other_quantizations_that_are_faint_or_ranked() -> None:
    """Where the conversion declared other values: a few steps of an output that is nearly all zero, and boxes in another order."""
    tensors = {name: Tensor(name, "int8", (1, 4), None, Quantization.per_tensor(0.1, 0)) for name in ("x", "y")}
    plain = Graph("g", tensors, (Op("Sigmoid", ("x",), ("y",)),), ("x",), ("y",))
    ranked = plain.evolve(ops=(Op("TopK", ("x",), ("y",)),))
    faint, wrong = (OutputComparison("y", 0.9, largest, mean, "LSB", 16.0, 1.0) for largest, mean in ((3.0, 0.02), (9.0, 0.6)))
    assert distant_outputs(plain, [faint], 30.0, "declared") == []
    assert "SQNR 16.0 dB, below 30, and up to 9 steps off" in distant_outputs(plain, [wrong], 30.0, "declared")[0]
    assert distant_outputs(ranked, [wrong], 30.0, "declared") == distant_outputs(plain, [wrong], 16.0, "declared") == []


@pytest.mark.formats
@pytest.mark.parametrize(("sqnr", "said"), [(0.9, True), (29.0, True), (35.0, False), (None, False)])
def test_outputs_that_single_roundings_grew_away_from_are_not_equal(sqnr: float | None, said: bool) -> None:
    output = OutputComparison("y", 0.5 if sqnr else 1.0, 160.0 if sqnr else 0.0, 20.0, "LSB", sqnr, None)
    findings = [Finding("one rounding", "rounding tie", 0.97, 1, 0.03, 0, f"MEAN #{number}", f"m{number}") for number in range(5)]
    findings.append(Finding("equal", "", 1.0, 0, 0.0, 0, "CONV_2D #9", "c"))
    tensors = {name: Tensor(name, "int8", (1, 4), None, Quantization.per_tensor(0.1, 0)) for name in ("x", "y")}
    graph = Graph("g", tensors, (Op("Sigmoid", ("x",), ("y",)),), ("x",), ("y",))
    problems = distant_outputs(graph, [output], 30.0, describe_growth(findings))
    assert [(f"{sqnr} dB" in text, "MEAN #0, MEAN #1, MEAN #2 and 2 more" in text) for text in problems] == ([(True, True)] if said else [])


@pytest.mark.formats
@pytest.mark.parametrize(
    ("found", "nothing"),
    [
        ([("requantized", 1.0), ("one rounding", 0.9)], True),
        ([("requantized", 0.99), ("one rounding", 0.9)], False),
        ([("requantized", 1.0), ("not compared", 0.0)], False),
        ([("one rounding", 0.9)], False),
        ([], False),
    ],
)
def test_what_was_declared_costs_nothing_where_each_operator_gives_the_same(found: list[tuple[str, float]], nothing: bool) -> None:
    findings = [Finding(verdict, "", equal, 0.0, 0.0, 0, "Concat", "y") for verdict, equal in found]
    assert is_declared_exact(findings) == nothing


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("off", "verdict"), [(0.0, "passed"), (2.0**-22, "passed"), (1e-3, "not equal")])
def test_a_constant_that_the_conversion_computed_may_differ_by_a_rounding(off: float, verdict: str, tmp_path: Path) -> None:
    """The source computes it at each run, of constants alone, in float32 of its own."""
    given = np.random.default_rng(2).normal(size=(4, 6)).astype(np.float32)
    computed = np.exp(given) * np.float32(1 + off)
    edges = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 6)) for name in "xy"]
    paths = tmp_path / "source.onnx", tmp_path / "result.onnx"
    forms = ([helper.make_node("Exp", ["c"], ["e"])], numpy_helper.from_array(given, "c")), ([], numpy_helper.from_array(computed, "e"))
    for path, (nodes, held) in zip(paths, forms, strict=True):
        graph = helper.make_graph([*nodes, helper.make_node("Mul", ["x", "e"], ["y"])], "g", edges[:1], edges[1:], [held])
        onnx.save(model_of(graph), path)
    report = check(*paths, per_op=True)
    assert report.verdict == verdict, report.problems


@pytest.mark.formats
@pytest.mark.parametrize(("kind", "off", "holds"), [("Sigmoid", 5e-9, True), ("Sigmoid", 1e-5, False), ("Exp", 5e-9, False)])
def test_an_output_that_is_zero_everywhere_has_the_range_of_its_operator(kind: str, off: float, holds: bool) -> None:
    """It has no signal and no range of its own; a Sigmoid is at most 1."""
    tensors = {name: Tensor(name, "float32", (1, 4)) for name in ("x", "y", "z")}
    ops = (Op(kind, ("x",), ("y",)), Op("Reshape", ("y",), ("z",)))
    item = OutputComparison("z", 0.0, off, off, "of range", -2800.0, None)
    assert (distant_outputs(Graph("g", tensors, ops, ("x",), ("z",)), [item], 30.0, "declared") == []) == holds
