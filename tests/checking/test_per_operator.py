"""The per-operator check between any two runtimes: errors of reading, tensors that the reader adds, and runtimes of a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflite_models import OpSpec, TensorSpec, model

from qconvert import Graph, Op, Quantization, Runtime, Tensor, check, convert, load, save
from qconvert.checking.expected_values import bound_cancellation, is_score_tie
from qconvert.checking.file_values import complete_settled, complete_values
from qconvert.checking.findings import OUT_OF_TIME, Finding, join_findings
from qconvert.checking.memory import Splitting
from qconvert.errors import RuntimeRefusedError
from qconvert.evaluate import evaluate
from qconvert.kernels import Kernel, Kernels, constant_tolerance
from qconvert.plugins import ModelFile, Pieces, operators, registry, runtimes

FIXTURES = Path(__file__).parents[2] / "fixtures"
VISION = FIXTURES / "onnx" / "torch_fx_fbgemm_vision.onnx"
KWS = FIXTURES / "tiny_kws_dscnn_int8.tflite"


def read_add_as_sub(op: Any) -> None:
    op.emit("Sub", activation=op.activation())


def read_sub_as_add(op: Any) -> None:
    op.emit("Add", activation=op.activation())


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_file_that_is_read_wrong_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The result is sound; its ADD is read as a Sub, so that the pieces are not the file's."""
    result = tmp_path / "result.tflite"
    convert(VISION, result)
    added = next(op.outputs[0] for op in load(result).ops if op.kind == "Add")
    monkeypatch.setitem(operators("tflite", "read"), "ADD", read_add_as_sub)  # type: ignore[arg-type]
    report = check(VISION, result, samples=2, per_op=True, kernels="onnxruntime:unoptimized")
    wrong = [op for op in report.operators if op.verdict == "unexplained"]
    assert [op.output for op in wrong] == [added]
    assert wrong[0].reason == "reading error: what is read of result.tflite does not compute the file's own values"
    assert wrong[0].unexplained > 10
    assert not report.passed


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_wrong_file_that_is_read_as_if_it_were_right_does_not_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its SUB is read as an Add: the pieces compute what the source does, the file does not."""
    sound, result = tmp_path / "sound.tflite", tmp_path / "result.tflite"
    convert(VISION, sound)
    graph = load(sound)
    add = next(op for op in graph.ops if op.kind == "Add")
    save(graph.evolve(ops=[replace(op, kind="Sub") if op is add else op for op in graph.ops]), result)
    monkeypatch.setitem(operators("tflite", "read"), "SUB", read_sub_as_add)  # type: ignore[arg-type]
    assert load(result).ops[graph.ops.index(add)].kind == "Add"
    report = check(VISION, result, samples=1, per_op=True, kernels="onnxruntime:unoptimized")
    wrong = [op for op in report.operators if op.verdict == "unexplained"]
    assert [(op.output, op.reason.split(":")[0]) for op in wrong] == [(add.outputs[0], "reading error")]


def relabelling(path: Path) -> Path:
    """A RESHAPE whose two sides have different scales: the reader adds a tensor between the move and the new label."""
    x, r = (TensorSpec(name, (1, 4, 4, 4), "int8", 0.1, 3) for name in "xr")
    sizes = TensorSpec("s", (2,), "int32", data=np.array([4, 16], np.int32))
    m, y = TensorSpec("m", (4, 16), "int8", 0.2, 1), TensorSpec("y", (4, 16), "int8", 0.3, -1)
    ops = [
        OpSpec("RELU", ["x"], ["r"], None),
        OpSpec("RESHAPE", ["r", "s"], ["m"], {"newShape": [4, 16]}),
        OpSpec("ADD", ["m", "m"], ["y"], {}),
    ]
    path.write_bytes(model(ops, [x, r, sizes, m, y], ["x"], ["y"]))
    return path


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("kernels", ["litert:default", "litert:reference"])
@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_tensors_that_the_reader_adds(suffix: str, kernels: str, tmp_path: Path) -> None:
    source, result = relabelling(tmp_path / "m.tflite"), tmp_path / f"result.{suffix}"
    convert(source, result)
    assert "m/moved" in load(source).tensors
    report = check(source, result, samples=2, per_op=True, kernels=kernels)
    assert report.passed, report.problems
    assert {op.output: op.verdict for op in report.operators} == dict.fromkeys(("r", "m/moved", "m", "y"), "equal")


@pytest.mark.formats
def test_the_evaluator_completes_what_a_runtime_gives(tmp_path: Path) -> None:
    graph = load(relabelling(tmp_path / "m.tflite"))
    stored = np.arange(64, dtype=np.int8).reshape(1, 4, 4, 4)
    found = complete_values(graph, {"x": stored, "r": stored, "y": np.zeros((4, 16), np.int8)})
    assert np.array_equal(found["m/moved"], stored.reshape(4, 16)) and np.array_equal(found["m"], stored.reshape(4, 16))
    assert not found["y"].any()  # what the runtime gives is not computed again
    assert "m" not in complete_values(graph, {})


def test_sizes_follow_from_a_tensor_and_float_results_do_not() -> None:
    tensors = [Tensor("x", "float32", (2, 3)), Tensor("s", "int64", (2,)), Tensor("r", "float32", (2, 3)), Tensor("y", "float32", (2, 3))]
    ops = (Op("Shape", ("x",), ("s",)), Op("Relu", ("x",), ("r",)), Op("Reshape", ("r", "s"), ("y",)))
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",))
    found = complete_settled(graph, {"x": np.ones((2, 3), np.float32)})
    assert found["s"].tolist() == [2, 3] and found.keys() == {"x", "s"}


class Evaluator:
    """A runtime of .qgraph files: qconvert's own evaluator, wrong by a step where `wrong` says so."""

    note = ""

    def __init__(self, path: Path, wrong: str = "") -> None:
        self.graph, self._wrong = load(path), wrong
        self.inputs = {name: (self.graph[name].dtype, self.graph[name].shape or ()) for name in self.graph.inputs}
        self.outputs = {name: (self.graph[name].dtype, self.graph[name].shape or ()) for name in self.graph.outputs}

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = evaluate(self.graph, inputs)
        return {name: value + (2 if self._wrong and name.startswith(self._wrong) else 0) for name, value in found.items()}


def made_up(monkeypatch: pytest.MonkeyPatch, wrong: str = "") -> None:
    """Adds the runtime as a plugin's hook does."""

    def opened(file: ModelFile) -> Evaluator:
        return Evaluator(file.path, wrong)

    def rows(kernels: str) -> Kernels:
        return Kernels((Kernel(tolerance=constant_tolerance(1e-6)),))

    added = Runtime("evaluator", ("qgraph",), "the exact evaluator", "the evaluator", opened, rows, ("exact",))
    monkeypatch.setattr(registry, "runtimes", lambda: {**runtimes(), "evaluator": added})


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("source", [KWS, FIXTURES / "onnx" / "torch_pt2e_xnnpack_vision.onnx"], ids=lambda path: path.name)
def test_a_runtime_of_a_plugin_runs_results(source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    convert(source, tmp_path / "result.qgraph")
    made_up(monkeypatch)
    report = check(source, tmp_path / "result.qgraph", samples=2, per_op=True, kernels="onnxruntime:unoptimized")
    assert report.passed, report.problems
    assert len(report.operators) >= 0.9 * len(load(source).ops)
    assert "the evaluator returns no inner tensors: they are not compared with what was read of result.qgraph" in report.notes


@pytest.mark.litert
def test_a_wrong_operator_of_a_plugins_runtime_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    convert(KWS, tmp_path / "result.qgraph")
    pool = next(op.outputs[0] for op in load(KWS).ops if op.kind == "AveragePool")
    made_up(monkeypatch, wrong=pool)
    report = check(KWS, tmp_path / "result.qgraph", samples=1, per_op=True)
    assert [op.output for op in report.operators if op.verdict == "unexplained"] == [pool]


@pytest.mark.onnxruntime
def test_a_runtime_of_a_plugin_runs_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It returns no inner tensors: they come from the evaluator, and what it computes from its pieces."""
    convert(KWS, tmp_path / "source.qgraph")
    convert(tmp_path / "source.qgraph", tmp_path / "result.onnx")
    made_up(monkeypatch)
    report = check(tmp_path / "source.qgraph", tmp_path / "result.onnx", samples=2, per_op=True)
    assert report.passed, report.problems
    assert report.kernels[0] == "evaluator:exact"
    assert len(report.operators) >= 0.9 * len(load(KWS).ops)
    assert all(op.largest <= 1 for op in report.operators)


def refusing(names: set[str], asked: list[frozenset[str]]) -> Any:
    """Pieces of a runtime that takes nothing that computes one of `names`."""

    def make(wanted: frozenset[str]) -> Pieces:
        asked.append(wanted)
        if wanted & names:
            raise RuntimeRefusedError("it has no kernel\nfor that")
        return Pieces(("x",), wanted, dict.fromkeys(wanted, "int8"), {}, lambda values: dict.fromkeys(wanted, values["x"]))

    return make


def test_what_a_runtime_refuses_is_left_out_and_named() -> None:
    asked: list[frozenset[str]] = []
    pieces = Splitting(refusing({"c", "k"}, asked), tuple("abcdefghijklmnop"))
    assert pieces.refused == dict.fromkeys("ck", "it has no kernel for that")
    assert pieces.output_names == set("abdefghijlmnop")
    assert set(pieces.run({"x": np.zeros(1, np.int8)}.__getitem__)) == set("abdefghijlmnop")
    assert len(asked) <= 2 * 2 * 4 + 1  # by halves, not one by one


def test_values_that_are_large_together_are_computed_one_group_after_the_other() -> None:
    asked: list[frozenset[str]] = []
    pieces = Splitting(refusing(set(), asked), tuple("abcde"), dict(zip("abcde", (30, 30, 30, 90, 1), strict=True)), 64)
    assert asked == [{"a", "b"}, {"c"}, {"d"}, {"e"}]
    assert pieces.refused == {}
    given = pieces.parts({"x": np.zeros(1, np.int8)}.__getitem__)
    assert set(next(given)) == {"a", "b"}
    given.close()  # type: ignore[attr-defined]
    assert set(pieces.run({"x": np.zeros(1, np.int8)}.__getitem__)) == set("abcde")  # nothing is lost where a run was not finished


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("at_once", [1, 64 << 20])
@pytest.mark.parametrize(("file", "verdict"), [(KWS, "passed"), (VISION, "inconclusive")])
def test_operators_that_the_time_does_not_reach_are_named(
    file: Path, verdict: str, at_once: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where outputs are equal that is no problem; where they differ, nobody knows what explains it."""
    from qconvert.checking import memory, per_operator

    monkeypatch.setattr(memory, "_AT_ONCE", at_once)
    convert(file, tmp_path / "result.tflite")
    monkeypatch.setattr(per_operator, "SECONDS", 0.0)
    report = check(file, tmp_path / "result.tflite", samples=2, per_op=True)
    missed = [op.verdict for op in report.operators if op.reason == OUT_OF_TIME]
    assert len(missed) > 0.5 * len(report.operators)
    assert set(missed) == {"not compared"}
    assert report.verdict == verdict, (report.problems, report.unjudged)


def test_what_a_runtime_refuses_when_it_runs_is_named_too() -> None:
    def make(wanted: frozenset[str]) -> Pieces:
        def run(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            if "b" in wanted:
                raise RuntimeRefusedError("no")
            return dict.fromkeys(wanted, values["x"])

        return Pieces(("x",), wanted, {}, {}, run)

    pieces = Splitting(make, ("a", "b", "c"))
    assert pieces.output_names == {"a", "b", "c"}
    for _ in range(2):
        assert set(pieces.run({"x": np.zeros(1, np.int8)}.__getitem__)) == {"a", "c"}
    assert pieces.refused == {"b": "no"}


@pytest.mark.litert
def test_an_operator_that_no_runtime_takes_by_itself_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The others are compared all the same."""
    from qconvert.checking import per_operator

    convert(KWS, tmp_path / "result.tflite")
    pool = next(op.outputs[0] for op in load(KWS).ops if op.kind == "AveragePool")
    whole = per_operator.canonical_pieces

    def refused(graph: Any, names: set[str], wanted: frozenset[str], *others: Any) -> Pieces:
        if pool in wanted:
            raise RuntimeRefusedError("LiteRT does not take the model")
        return whole(graph, names, wanted, *others)

    monkeypatch.setattr(per_operator, "canonical_pieces", refused)
    report = check(KWS, tmp_path / "result.tflite", samples=1, per_op=True)
    left = [op for op in report.operators if op.verdict == "not compared"]
    assert [(op.output, op.reason) for op in left] == [(pool, "LiteRT does not take the model")]
    assert {op.verdict for op in report.operators} == {"equal", "not compared"}
    assert len(report.operators) == len(load(KWS).ops)


def dense(path: Path, dtype: str = "int8", **wrong: Any) -> Path:
    """FULLY_CONNECTED of rank 3, which is read as several operators between which the runtime has no tensors."""
    rng = np.random.default_rng(5)
    real = dtype == "float32"
    x = TensorSpec("x", (2, 3, 16), dtype, None if real else 0.05, None if real else 3)
    y = TensorSpec("y", (2, 3, 8), dtype, None if real else 0.4, None if real else -7)
    weights = rng.integers(-127, 128, (8, 16)).astype(np.int8) + np.int8(0)
    if "weight" in wrong:
        weights[3, 5] = -weights[3, 5]
    w = TensorSpec("w", (8, 16), "int8", 0.02, 0, data=weights)
    path.write_bytes(model([OpSpec("FULLY_CONNECTED", ["x", "w", None], ["y"], {"keepNumDims": True})], [x, w, y], ["x"], ["y"]))
    return path


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize(("dtype", "classes"), [("int8", {"equal", "one rounding"}), ("float32", {"dynamic range"})])
@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_an_operator_that_is_read_as_several_is_judged_as_one(dtype: str, classes: set[str], suffix: str, tmp_path: Path) -> None:
    source = dense(tmp_path / "source.tflite", dtype)
    convert(source, tmp_path / f"result.{suffix}")
    report = check(source, tmp_path / f"result.{suffix}", samples=20, per_op=True)
    assert report.passed, report.problems
    found = {op.output: op.verdict for op in report.operators}
    assert found["y"] in {"equal", *classes}
    assert suffix != "onnx" or found["y"] in classes


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_a_wrong_weight_of_an_operator_that_is_read_as_several_is_named(dtype: str, tmp_path: Path) -> None:
    source = dense(tmp_path / "source.tflite", dtype)
    convert(dense(tmp_path / "wrong.tflite", dtype, weight=True), tmp_path / "result.onnx")
    report = check(source, tmp_path / "result.onnx", samples=3, per_op=True)
    wrong = [op for op in report.operators if op.verdict == "unexplained"]
    assert wrong and all(op.operator == "FULLY_CONNECTED #0" for op in wrong)


def test_the_mean_share_counts_every_run_alike() -> None:
    runs = [Finding("equal", "", share, 0.0, 0.0, 0) for share in (1.0, 1.0, 1.0, 0.2)]
    assert join_findings(Op("Relu", ("x",), ("y",), {}, "RELU #0"), "y", runs).equal == pytest.approx(0.8)


def boxes(path: Path) -> Path:
    """A suppression of 40 boxes whose scores are integers: some are equal."""
    data = [TensorSpec("b", (40, 4), "float32"), TensorSpec("x", (40,), "int8", 1.0, 0), TensorSpec("r", (40,), "float32")]
    numbers = {"most": np.int32(30), "overlap": np.float32(0.5), "least": np.float32(-200)}
    constants = [TensorSpec(name, (), value.dtype.name, data=value) for name, value in numbers.items()]
    results = [TensorSpec("y", (30,), "int32"), TensorSpec("n", (), "int32")]
    ops = [OpSpec("DEQUANTIZE", ["x"], ["r"], None), OpSpec("NON_MAX_SUPPRESSION_V4", ["b", "r", *numbers], ["y", "n"], None)]
    path.write_bytes(model(ops, [*data, *constants, *results], ["b", "x"], ["y", "n"]))
    return path


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_boxes_of_equal_score_may_come_in_another_order(tmp_path: Path) -> None:
    source, result = boxes(tmp_path / "source.tflite"), tmp_path / "result.onnx"
    convert(source, result)
    report = check(source, result, samples=8, per_op=True)
    assert report.passed, report.problems
    (chosen,) = [op for op in report.operators if op.output == "y"]
    assert (chosen.verdict, chosen.reason) == ("approximate", "boxes of equal score in another order")
    assert chosen.equal < 1


@pytest.mark.parametrize(
    ("chosen", "is_free"),
    [([1, 0, 2], True), ([0, 1, 2], True), ([2, 0, 1], False), ([0, 0, 2], False), ([0, 2, 1], False), ([0, 3, 2], False)],
)
def test_other_boxes_are_no_free_choice(chosen: list[int], is_free: bool) -> None:
    """Four boxes side by side, the first two of equal score; the last is below the threshold."""
    boxes = np.float32([[0, i, 1, i + 1] for i in range(4)])
    values = {"b": boxes, "s": np.float32([0.9, 0.9, 0.5, 0.1])}
    constants = {"most": np.array([3]), "overlap": np.float32(0.5), "least": np.float32(0.2)}
    tensors = [Tensor(name, str(value.dtype), value.shape) for name, value in values.items()]
    tensors += [Tensor(name, str(value.dtype), value.shape, value) for name, value in constants.items()]
    tensors += [Tensor("y", "int32", (3,)), Tensor("n", "int32", ())]
    op = Op("SelectBoxes", ("b", "s", "most", "overlap", "least"), ("y", "n"))
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("b", "s"), ("y", "n"))
    assert is_score_tie(graph, op, values, np.int32(chosen)) == is_free


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_what_moves_alone_make_of_shared_tensors_is_known(tmp_path: Path) -> None:
    """A Clip after a convolution whose data the result has in another shape: the exact value is that of the shared tensor, turned."""
    rng = np.random.default_rng(1)
    weights = rng.integers(-127, 128, (40, 1, 1, 24)).astype(np.int8)
    tensors = [
        TensorSpec("v", (24,), "float32"), TensorSpec("x", (1, 1, 1, 24), "float32"), TensorSpec("a", (1, 1, 1, 24), "float32"),
        TensorSpec("y", (1, 1, 1, 40), "float32"),
        TensorSpec("z", (1, 1, 1, 40), "float32"), TensorSpec("w", weights.shape, "int8", 0.01, 0, data=weights),
        TensorSpec("c", (40,), "float32", data=rng.normal(0, 0.1, 40).astype(np.float32)),
    ]  # fmt: skip
    ops = [
        OpSpec("ADD", ["x", "v"], ["a"], {}),
        OpSpec("CONV_2D", ["a", "w", "c"], ["y"], {"strideW": 1, "strideH": 1, "fusedActivationFunction": 3}),
        OpSpec("ABS", ["y"], ["z"], None),
    ]
    source, between, result = (tmp_path / name for name in ("s.tflite", "m.onnx", "r.tflite"))
    source.write_bytes(model(ops, tensors, ["x", "v"], ["z"]))
    convert(source, between)
    convert(between, result)
    report = check(between, result, samples=5, per_op=True)
    assert report.passed, report.problems
    assert {op.verdict for op in report.operators} >= {"dynamic range"}


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_differences_of_equal_values_on_a_fine_quantization_are_the_kernels(tmp_path: Path) -> None:
    """x - x, as a logarithm of sums has it: LiteRT's sums of 20 bits are off by a step that the result's are finer than."""
    x, y = TensorSpec("x", (1, 256), "int8", 0.01175929, -128), TensorSpec("y", (1, 256), "int8", 7.843137e-09, 0)
    source, result = tmp_path / "source.tflite", tmp_path / "result.onnx"
    source.write_bytes(model([OpSpec("SUB", ["x", "x"], ["y"], {})], [x, y], ["x"], ["y"]))
    convert(source, result)
    report = check(source, result, samples=2, per_op=True)
    assert report.passed, report.problems


def _convolutions(layout: str, seed: int = 0) -> Graph:
    """Two convolutions, with (1, 4, 4, 4) between them: its shape is the same in each layout."""
    rng = np.random.default_rng(seed)
    quantization, factor = Quantization.per_tensor(0.05), Quantization.per_tensor(0.002)
    shapes = {"x": (3, 5, 6), "t": (4, 4, 4), "y": (5, 4, 4)}
    shapes = {name: (1, *shape) if layout == "channels_first" else (1, *shape[1:], shape[0]) for name, shape in shapes.items()}
    tensors = [Tensor(name, "int8", shape, None, quantization) for name, shape in shapes.items()]
    weights = {"v": (4, 3, 2, 3), "w": (5, 4, 3, 3)}
    tensors += [Tensor(name, "int8", shape, rng.integers(-127, 128, shape).astype(np.int8), factor) for name, shape in weights.items()]
    window = {"strides": (1, 1), "dilations": (1, 1), "group": 1, "activation": "", "data_format": layout}
    places = (("x", "v", "t", 0), ("t", "w", "y", 1))
    ops = tuple(Op("Conv", (data, by), (result,), {**window, "pads": (pad,) * 4}) for data, by, result, pad in places)
    return Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",))


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("seed", [0, 1])
def test_a_tensor_of_another_layout_is_known_by_its_operators(seed: int, tmp_path: Path) -> None:
    """Between files that no conversion of qconvert's made: nothing else says that the axes of (1, 4, 4, 4) have another order."""
    save(_convolutions("channels_last"), tmp_path / "m.tflite")
    save(_convolutions("channels_first", seed), tmp_path / "m.onnx")
    report = check(tmp_path / "m.tflite", tmp_path / "m.onnx", per_op=True)
    assert report.passed == (not seed)
    assert [op.equal == 1 for op in report.operators] == [not seed] * 2


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("sizes", [(4, 4, 4), (4, 5, 6)])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("seed", [0, 1])
def test_inputs_of_another_layout_are_known_by_their_operators(sizes: tuple[int, int, int], order: int, seed: int, tmp_path: Path) -> None:
    """Between files of others, whichever is the source, and whether or not the shapes of input and output show the layout."""

    def network(layout: str, seed: int) -> Graph:
        quantization, factor = Quantization.per_tensor(0.05), Quantization.per_tensor(0.002)
        order = (0, 1, 2) if layout == "channels_first" else (1, 2, 0)
        shape, shape_after = ((1, *(size[axis] for axis in order)) for size in (sizes, (4, *sizes[1:])))
        weights = np.random.default_rng(seed).integers(-127, 128, (4, 4, 3, 3)).astype(np.int8)
        tensors = [
            Tensor("x", "float32", shape),
            Tensor("q", "int8", shape, None, quantization),
            Tensor("w", "int8", weights.shape, weights, factor),
        ]
        tensors += [Tensor("t", "int8", shape_after, None, quantization), Tensor("y", "float32", shape_after)]
        window = {"strides": (1, 1), "dilations": (1, 1), "group": 1, "activation": "", "pads": (1,) * 4, "data_format": layout}
        ops = (Op("Quantize", ("x",), ("q",)), Op("Conv", ("q", "w"), ("t",), window), Op("Dequantize", ("t",), ("y",)))
        return Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",))

    save(network("channels_last", 0), tmp_path / "m.tflite")
    save(network("channels_first", seed), tmp_path / "m.onnx")
    report = check(*(tmp_path / "m.tflite", tmp_path / "m.onnx")[::order])
    assert report.passed == (not seed), report.problems
    assert report.verdict == ("passed", "not equal")[seed]


def test_a_row_of_equal_elements_may_be_off_where_epsilon_is_tiny() -> None:
    """Of it less its mean only the roundings are left, which LayerNormalization divides by the root of epsilon, 1e-6 in BERT."""
    x = np.stack([np.full(32, 2.4), np.linspace(-1, 1, 32)]).astype(np.float32)
    scale = Tensor("g", "float32", (32,), np.ones(32, np.float32))
    op = Op("LayerNormalization", ("x", "g"), ("y",), {"axis": -1, "epsilon": 1e-12})
    graph = Graph("g", {"x": Tensor("x", "float32", (2, 32)), "g": scale, "y": Tensor("y", "float32", (2, 32))}, (op,), ("x",), ("y",))
    bound = np.asarray(bound_cancellation(graph, op, {"x": x}))
    assert bound[0].min() > 1 and bound[1].max() < 1e-4
