"""If, Loop and Scan of ONNX: read as functions, evaluated, normalized and written; onnxruntime is the judge."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import qconvert
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.onnx.reader import read_bytes
from qconvert.formats.onnx.writer import build
from qconvert.graph import Graph
from qconvert.operators.shapes_and_functions import all_ops
from qconvert.rules.differences import diff
from qconvert.rules.validation import validate
from tests.onnx_nodes import session

X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
TRUE, FALSE = np.array(True), np.array(False)

#: name -> (graph in ONNX's text form, values of its inputs)
GRAPHS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "branches that capture": (
        """(float[2,3] x, bool c, float[3] b) => (float[2,3] y, float z) {
            h = Abs(x)
            y, z = If (c) <
              then_branch = t () => (float[2,3] u, float s) { u = Add(h, b)  s = ReduceSum<keepdims = 0>(u) },
              else_branch = e () => (float[2,3] v, float m) { v = Neg(h)  m = ReduceMax<keepdims = 0>(x) }> }""",
        {"x": X, "c": TRUE, "b": np.arange(3, dtype=np.float32)},
    ),
    "branches of other shapes": (
        """(float[2,3] x, bool c) => (float[a,b] y) {
            y = If (c) <then_branch = t () => (float[1,3] u) { u = ReduceMax<axes = [0]>(x) },
                        else_branch = e () => (float[2,1] v) { v = ReduceMax<axes = [1]>(x) }> }""",
        {"x": X, "c": FALSE},
    ),
    "branches of equal names and constants": (
        """(float[2,3] x, bool c) => (float[2,3] y) {
            y = If (c) <then_branch = t () => (float[2,3] u) <float k = {2}> { u = Mul(x, k) },
                        else_branch = e () => (float[2,3] u) <float k = {3}> { u = Mul(x, k) }> }""",
        {"x": X, "c": FALSE},
    ),
    "a branch within a branch": (
        """(float[2,3] x, bool c, bool d) => (float[2,3] y) {
            y = If (c) <
              then_branch = t () => (float[2,3] u) {
                 w = Abs(x)
                 u = If (d) <then_branch = tt () => (float[2,3] p) { p = Add(w, x) },
                             else_branch = te () => (float[2,3] q) { q = Sub(w, x) }> },
              else_branch = e () => (float[2,3] v) { v = Identity(x) }> }""",
        {"x": X, "c": TRUE, "d": FALSE},
    ),
    "a loop with a trip count": (
        """(float[2,3] x, int64 n, float[3] b) => (float[2,3] y, float[k,2] stack) {
            t = Constant<value_int = 1>()  go = Cast<to = 9>(t)
            y, stack = Loop (n, go, x) <body = body (int64 i, bool c, float[2,3] v) => (bool again, float[2,3] w, float[2] sums) {
               again = Identity(c)  f = Cast<to = 1>(i)  a = Mul(v, f)  w = Add(a, b)  sums = ReduceSum<keepdims = 0>(w, axis) }> }""",
        {"x": X, "n": np.array(4, np.int64), "b": np.ones(3, np.float32), "axis": np.array([1], np.int64)},
    ),
    "a loop that ends by itself": (
        """(float[2,3] x, bool go) => (float[2,3] y, float[k] seen) {
            y, seen = Loop (, go, x) <body = body (int64 i, bool c, float[2,3] v) => (bool again, float[2,3] w, float s) {
               w = Add(v, v)  a = Abs(w)  s = ReduceSum<keepdims = 0>(a)  limit = Constant<value_float = 100.0>()
               again = Less(s, limit) }> }""",
        {"x": X, "go": TRUE},
    ),
    "a loop that does not run": (
        """(float[2,3] x, int64 n, bool go) => (float[2,3] y, float[k,2,3] seen) {
            y, seen = Loop (n, go, x) <body = body (int64 i, bool c, float[2,3] v) => (bool again, float[2,3] w, float[2,3] s) {
               again = Identity(c) w = Add(v, v) s = Neg(w) }> }""",
        {"x": X, "n": np.array(5, np.int64), "go": FALSE},
    ),
    "a value that grows": (
        """(float[2,3] x, int64 n, bool go) => (float[k,3] y) {
            y = Loop (n, go, x) <body = body (int64 i, bool c, float[m,3] v) => (bool again, float[r,3] w) {
               again = Identity(c) w = Concat<axis = 0>(v, x) }> }""",
        {"x": X, "n": np.array(3, np.int64), "go": TRUE},
    ),
    "a scan": (
        """(float[2,3] x, float[3] b) => (float[3] last, float[2,3] all) {
            last, all = Scan <num_scan_inputs = 1, body = body (float[3] s, float[3] e) => (float[3] t, float[3] o) {
               t = Add(s, e) o = Mul(t, b) }> (b, x) }""",
        {"x": X, "b": np.arange(3, dtype=np.float32)},
    ),
    "a scan backwards and along axis 1": (
        """(float[2,3] x, float[2] b) => (float[2] last, float[2,3] all) {
            last, all = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], scan_output_axes = [-1],
                              scan_output_directions = [1], body = body (float[2] s, float[2] e) => (float[2] t, float[2] o) {
               t = Add(s, e) o = Neg(t) }> (b, x) }""",
        {"x": X, "b": np.arange(2, dtype=np.float32)},
    ),
    "a loop in a loop": (
        """(float[2,3] x, int64 n, bool go) => (float[2,3] y) {
            y = Loop (n, go, x) <body = outer (int64 i, bool c, float[2,3] v) => (bool again, float[2,3] w) {
               again = Identity(c)
               w = Loop (i, c, v) <body = inner (int64 j, bool d, float[2,3] p) => (bool more, float[2,3] q) {
                  more = Identity(d)  s = Add(p, x)  q = Sub(s, v) }> }> }""",
        {"x": X, "n": np.array(3, np.int64), "go": TRUE},
    ),
}  # fmt: skip


def model(text: str) -> bytes:
    from onnx import parser

    data: bytes = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}').SerializeToString()
    return data


def graph_of(name: str) -> tuple[bytes, Graph, dict[str, Any]]:
    text, given = GRAPHS[name]
    if "axis" in given:  # an outer value that the text form cannot state as a constant
        text = text.replace("axis)", "ax)").replace("{\n", "{ ax = Constant<value_ints = [1]>()\n", 1)
        given = {key: value for key, value in given.items() if key != "axis"}
    data = model(text)
    return data, read_bytes(data, "g"), dict(given)


def outputs(data: bytes, given: Mapping[str, Any]) -> list[Any]:
    found: list[Any] = session(data).run(None, dict(given))
    return found


@pytest.mark.onnxruntime
@pytest.mark.parametrize("name", GRAPHS)
def test_they_mean_what_onnxruntime_computes(name: str) -> None:
    data, graph, given = graph_of(name)
    validate(graph)
    assert graph.functions and not any(op.kind == "Opaque" for op in all_ops(graph))
    for feed in (given, {**given, **{key: np.logical_not(value) for key, value in given.items() if value.dtype == bool}}):
        feed = {key: np.asarray(value) for key, value in feed.items()}
        if name == "a loop that ends by itself" and not feed["go"]:
            continue
        found = evaluate(graph, {key: feed[key] for key in graph.inputs})
        for output, wanted in zip(graph.outputs, outputs(data, feed), strict=True):
            assert found[output].shape == np.asarray(wanted).shape
            assert np.allclose(found[output], wanted, rtol=1e-6), output


@pytest.mark.onnxruntime
@pytest.mark.parametrize("name", GRAPHS)
def test_they_are_written_as_they_were(name: str) -> None:
    data, graph, given = graph_of(name)
    written = build(graph, 17, {}).SerializeToString()
    for a, b in zip(outputs(data, given), outputs(written, given), strict=True):
        assert np.array_equal(a, b)
    assert diff(graph, read_bytes(written, "g")) == []


@cache
def node_tests() -> dict[str, Any]:
    """onnx's own tests of nodes, with these operators among their nodes."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    kinds = {"If", "Loop", "Scan", "LSTM", "GRU", "RNN"}
    return {item.name: item for item in found if kinds & {node.op_type for node in item.model.graph.node} and "expanded" not in item.name}


#: Inputs or outputs that are sequences or optional values; a Scan of opset 8, which has a batch. test_backend_nodes.py has them refused.
REFUSED = ("test_if_seq", "test_if_opt", "test_loop13_seq", "test_loop16_seq_none", "test_scan_sum")


@pytest.mark.onnxruntime
def test_onnx_tests_of_these_nodes_pass_through() -> None:
    from onnx.reference import ReferenceEvaluator

    assert len(node_tests()) >= 28 and set(REFUSED) <= node_tests().keys()
    for name, item in node_tests().items():
        if name in REFUSED:
            continue
        data = item.model.SerializeToString()
        graph = read_bytes(data, name)
        assert not any(op.kind == "Opaque" for op in all_ops(graph)), name
        written = build(graph, 0, {})
        names = [value.name for value in item.model.graph.input]
        feed = {key: np.asarray(value) for key, value in zip(names, item.data_sets[0][0], strict=True)}
        if "batchwise" in name:  # which onnxruntime does not run
            wanted, found = (ReferenceEvaluator(proto).run(None, feed) for proto in (item.model, written))
        else:
            wanted, found = outputs(data, feed), outputs(written.SerializeToString(), feed)
        meant = evaluate(graph, feed)
        for output, a, b in zip(graph.outputs, wanted, found, strict=True):
            assert np.array_equal(a, b), name
            assert np.allclose(meant[output], a, atol=1e-6), name


QUANTIZED = """(float[1,4] x, int64 n, bool go) => (float[1,4] y) <float s = {0.05}, uint8 z = {128}, float t = {0.01}, int8 o = {0}> {
    q = QuantizeLinear(x, s, z)
    r = Loop (n, go, q) <body = body (int64 i, bool c, uint8[1,4] v) => (bool again, uint8[1,4] w) {
        again = Identity(c)
        d = DequantizeLinear(v, s, z)  k = DequantizeLinear(weights, t, o)  p = MatMul(d, k)  w = QuantizeLinear(p, s, z) }>
    y = DequantizeLinear(r, s, z) }"""


def quantized() -> bytes:
    """A loop whose body is an integer product, with weights from outside, so small that no CPU's kernels saturate."""
    import onnx
    from onnx import numpy_helper

    proto = onnx.load_from_string(model(QUANTIZED))
    weights = np.random.default_rng(1).integers(-63, 64, (4, 4)).astype(np.int8)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "weights"))
    return bytes(proto.SerializeToString())


@pytest.mark.onnxruntime
def test_integers_stay_integers_through_a_loop(tmp_path: Path) -> None:
    """Quantizations reach into the body and out of it; a target changes the body's operators too, and nothing of what they compute."""
    data = quantized()
    (tmp_path / "m.onnx").write_bytes(data)
    graph = qconvert.load(tmp_path / "m.onnx")
    body = graph.functions["body"]
    assert [op.kind for op in body.ops if op.kind != "Identity"] == ["MatMul"]
    assert all(body[name].is_quantized for op in body.ops if op.kind == "MatMul" for name in (*op.inputs, *op.outputs))
    assert graph["r"].is_quantized and body[body.inputs[2]].quantization == graph["q"].quantization
    for form in ("qdq", "qoperator"):
        result = tmp_path / f"{form}.onnx"
        qconvert.convert(tmp_path / "m.onnx", result, form=form)
        for count in (0, 1, 5):
            given = {"x": np.linspace(-3, 3, 4, dtype=np.float32)[None], "n": np.array(count, np.int64), "go": TRUE}
            assert np.array_equal(*(outputs(item, given)[0] for item in (data, result.read_bytes())))
    assert "QLinearMatMul" in result.read_bytes().decode("latin1")


@pytest.mark.onnxruntime
def test_plain_integers_inside_get_a_quantization_only_there() -> None:
    """A value from outside that the body takes for a quantized one, and others for plain numbers."""
    data = model("""(uint8[4] x, bool c) => (float[4] y, uint8[4] w) <float s = {0.5}, uint8 z = {3}> {
        w = Add(x, x)
        y = If (c) <then_branch = t () => (float[4] u) { u = DequantizeLinear(x, s, z) },
                    else_branch = e () => (float[4] v) { v = Cast<to = 1>(x) }> }""")
    graph = read_bytes(data, "g")
    validate(graph)
    given = {"x": np.array([1, 3, 5, 7], np.uint8)}
    for c in (TRUE, FALSE):
        found = evaluate(graph, {**given, "c": c})
        assert [found["y"].tolist(), found["w"].tolist()] == [item.tolist() for item in outputs(data, {**given, "c": c})]


FAULTS: Mapping[str, tuple[str, str, tuple[object, ...]]] = {
    "too few values": (
        "(float[2] x, int64 n, bool go) => (float[2] y) { y = Loop (n, go, x) "
        "<body = b (int64 i, bool c) => (bool d) { d = Identity(c) }> }",
        "counts-differ", (2, 3),
    ),
    "another type": (
        """(float[2] x, int64 n, bool go) => (float[2] y) { y = Loop (n, go, x) <body = b (int64 i, bool c, int32[2] v)
           => (bool d, int32[2] w) { d = Identity(c) w = Identity(v) }> }""",
        "type-mismatch", ("int32",),
    ),
    "no condition": (
        """(float[2] x, int64 n, bool go) => (float[2] y) { y = Loop (n, go, x) <body = b (int64 i, bool c, float[2] v)
           => (float[2] d, float[2] w) { d = Identity(v) w = Identity(v) }> }""",
        "call-mismatch", ("Loop", "bool"),
    ),
    "a number for a truth value": (
        "(float[2] x, int64 c) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] u) { u = Neg(x) }, "
        "else_branch = e () => (float[2] u) { u = Abs(x) }> }",
        "operand-types", ("int64", "bool"),
    ),
    "fewer results": (
        "(float[2] x, bool c) => (float[2] y, float[2] z) { y, z = If (c) <then_branch = t () => (float[2] u) { u = Neg(x) }, "
        "else_branch = e () => (float[2] u) { u = Abs(x) }> }",
        "counts-differ", (),
    ),
}  # fmt: skip


@pytest.mark.formats
@pytest.mark.parametrize("name", FAULTS)
def test_graphs_that_do_not_fit_their_node_are_refused(name: str, tmp_path: Path) -> None:
    text, rule, holds = FAULTS[name]
    (tmp_path / "m.onnx").write_bytes(model(text))
    with refused(InvalidModelError, rule, holds=holds):
        qconvert.convert(tmp_path / "m.onnx", tmp_path / "r.onnx")


@pytest.mark.formats
def test_many_loops_within_each_other_take_no_time(tmp_path: Path) -> None:
    """Bodies are read again where a size changes: deep ones are not, or 20 of them would be read 3**20 times."""
    text = "w20 = Concat<axis = 0>(v20, v20)"
    for depth in range(19, -1, -1):
        text = (f"w{depth} = Loop (n, go, v{depth}) <body = b{depth} (int64 i{depth}, bool c{depth}, float[m] v{depth + 1}) "
                f"=> (bool d{depth}, float[r] w{depth + 1}) {{ d{depth} = Identity(c{depth}) {text} }}>")  # fmt: skip
    data = model(f"(float[2] v0, int64 n, bool go) => (float[k] w0) {{ {text} }}")
    graph = read_bytes(data, "g")
    assert len(graph.functions) == 20


@pytest.mark.formats
def test_a_loop_without_end_is_not_run_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qconvert.operators.properties.MOST_TURNS", 500)
    data = model("(float[2] x, bool go) => (float[2] y) { y = Loop (, go, x) <body = b (int64 i, bool c, float[2] v) "
                 "=> (bool d, float[2] w) { d = Identity(c) w = Neg(v) }> }")  # fmt: skip
    graph = read_bytes(data, "g")
    with refused(UnsupportedError, "too-many-iterations", holds=(500,)):
        evaluate(graph, {"x": np.ones(2, np.float32), "go": TRUE})


@pytest.mark.formats
@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_branch_that_sizes_choose_stands_in_the_place_of_its_if(tmp_path: Path) -> None:
    """torch.squeeze(x, 1) of TorchScript's exporter: the rank after the If is known, so what follows is read."""
    text = """(float[2,1,3] x) => (float[2,4] y) <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}, int64 one = {1}, int64[1] axis = {1}> {
        sizes = Shape(x)  size = Gather<axis = 0>(sizes, one)  c = Equal(size, one)
        z = If (c) <then_branch = t () => (float[a,b] u) { u = Squeeze(x, axis) },
                    else_branch = e () => (float[a,b,d] u) { u = Identity(x) }>
        y = MatMul(z, w) }"""
    graph = read_bytes(model(text), "g")
    assert not graph.functions
    assert {"If", "Call", "Opaque"}.isdisjoint(op.kind for op in graph.ops)
    assert graph["z"].shape == (2, 3)
    given = {"x": X[:, None]}
    np.testing.assert_allclose(evaluate(graph, given)["y"], X @ np.arange(1, 13, dtype=np.float32).reshape(3, 4), rtol=1e-6)
    (tmp_path / "m.onnx").write_bytes(model(text))
    qconvert.convert(tmp_path / "m.onnx", tmp_path / "m.tflite")
    assert qconvert.check(tmp_path / "m.onnx", tmp_path / "m.tflite").passed


def test_what_nothing_runs_is_no_function() -> None:
    data = model("(float[2] x, bool c) => (float[2] y) { y = Neg(x) z = If (c) <then_branch = t () => (float[2] u) { u = Neg(x) }, "
                 "else_branch = e () => (float[2] v) { v = Abs(x) }> }")  # fmt: skip
    assert read_bytes(data, "g").functions == {}


@pytest.mark.onnxruntime
def test_a_large_constant_of_two_branches_is_written_once() -> None:
    import onnx
    from onnx import numpy_helper

    proto = onnx.load_from_string(
        model("""(float[1,600] x, bool c) => (float[1,600] y) {
        y = If (c) <then_branch = t () => (float[1,600] u) { u = MatMul(x, k) },
                    else_branch = e () => (float[1,600] v) { w = MatMul(x, k) v = Neg(w) }> }""")
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(600, dtype=np.float32), "k"))
    data = proto.SerializeToString()
    written = build(read_bytes(data, "g"), 17, {}).SerializeToString()
    assert len(written) < 1.1 * len(data)
    given = {"x": np.arange(600, dtype=np.float32)[None], "c": FALSE}
    assert np.array_equal(outputs(data, given)[0], outputs(written, given)[0])


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_large_constants_of_one_name_and_other_values_stay_apart() -> None:
    import onnx
    from onnx import numpy_helper

    proto = onnx.load_from_string(
        model("""(float[1,600] x, bool c) => (float[1,600] y) {
        y = If (c) <then_branch = t () => (float[1,600] u) { u = MatMul(x, k) },
                    else_branch = e () => (float[1,600] v) { v = MatMul(x, k) }> }""")
    )
    for factor, attribute in enumerate(proto.graph.node[0].attribute, 2):
        attribute.g.initializer.append(numpy_helper.from_array(factor * np.eye(600, dtype=np.float32), "k"))
    data = proto.SerializeToString()
    written = build(read_bytes(data, "g"), 17, {}).SerializeToString()
    for c in (TRUE, FALSE):
        given = {"x": np.arange(600, dtype=np.float32)[None], "c": c}
        assert np.array_equal(outputs(data, given)[0], outputs(written, given)[0])


@pytest.mark.onnxruntime
def test_names_made_for_a_branch_are_none_that_it_has_further_on() -> None:
    """The branch's k is called k_1, as the graph around has a k of its own; the branch has a k_1 too."""
    text = """(float[2,3] x, bool c) => (float[2,3] y) {
        k = Abs(x)
        b = If (c) <then_branch = t () => (float[2,3] u) <float k = {2}, float k_1 = {5}> { w = Mul(x, k)  u = Add(w, k_1) },
                    else_branch = e () => (float[2,3] v) { v = Neg(x) }>
        y = Add(b, k) }"""
    written = build(read_bytes(model(text), "g"), 17, {}).SerializeToString()
    assert np.array_equal(outputs(written, {"x": X, "c": TRUE})[0], (X * 2 + 5) + np.abs(X))


@pytest.mark.formats
def test_errors_are_those_of_the_model() -> None:
    with pytest.raises(InvalidModelError):
        read_bytes(model("(float[2] x, bool c) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] u) { u = Neg(x) }> }"), "g")
