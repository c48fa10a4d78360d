"""IF, WHILE and CALL: subgraphs are functions; files of TensorFlow's converter, and made by hand; LiteRT is the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import qconvert
from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.onnx.reader import read_bytes as read_onnx
from qconvert.formats.tflite.reader import read_bytes
from qconvert.formats.tflite.writer import build
from qconvert.graph import Graph
from qconvert.operators.shapes_and_functions import all_ops
from qconvert.rules.differences import diff
from qconvert.rules.validation import validate
from tests.formats.onnx.test_control import GRAPHS, graph_of, outputs
from tests.onnx_nodes import session
from tests.tflite_models import OpSpec, TensorSpec, model, run_litert

FOLDER = Path(__file__).parents[3] / "fixtures" / "recurrent"
#: Those with IF and WHILE; the others hold fused LSTMs (test_float_lstm.py), variables (test_streaming_files.py), or two signatures.
FILES = sorted(path.stem for path in FOLDER.glob("*.tflite") if not path.stem.startswith(("two_", "lstm_float", "lstm_both", "stream_")))


def feeds(graph: Graph, count: int = 3) -> list[dict[str, Any]]:
    """Random inputs; conditions are true and false, counts 1 to 5."""
    found = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        feed: dict[str, Any] = {}
        for name in graph.inputs:
            tensor = graph[name]
            shape = tensor.static_shape or ()
            if tensor.dtype == "float32":
                feed[name] = rng.standard_normal(shape).astype(np.float32)
            else:
                feed[name] = np.array(seed % 2 == 0) if tensor.dtype == "bool" else np.array(1 + 2 * seed, tensor.dtype)
        found.append(feed)
    return found


def litert(data: bytes, graph: Graph, feed: dict[str, Any]) -> list[Any]:
    return run_litert(data, [feed[name] for name in graph.inputs], kernels="default")


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("name", FILES)
def test_files_of_the_converter_go_through(name: str, tmp_path: Path) -> None:
    """Read, evaluated, written again with equal outputs, and converted to ONNX: IF becomes If, WHILE a Loop."""
    path = FOLDER / f"{name}.tflite"
    data, graph = path.read_bytes(), qconvert.load(path)
    assert graph.functions
    written = build(graph, {})
    if name not in ("gru_sequences_float", "rnn_float"):  # whose lists are cut at places that are computed: SLICE takes sizes, not ends
        assert diff(graph, read_bytes(written, name)) == []
    qconvert.convert(path, tmp_path / "r.onnx")
    converted = session((tmp_path / "r.onnx").read_bytes())
    dynamic = name.endswith("dynamic")  # whose rows are rounded when they run, and real in onnxruntime unless asked for
    for feed in feeds(graph):
        wanted = litert(data, graph, feed)
        assert all(np.array_equal(a, b) for a, b in zip(wanted, litert(written, graph, feed), strict=True))
        meant = evaluate(graph, feed)
        found = converted.run(None, dict(zip([item.name for item in converted.get_inputs()], feed.values(), strict=True)))
        for output, a, b in zip(graph.outputs, wanted, found, strict=True):
            assert np.allclose(meant[output], a, atol=1e-6)
            assert np.allclose(b, a, atol=0.02 if dynamic else 1e-6)


#: Loops of ONNX that carry all that they give; LiteRT's values do not change their shapes here.
LOOPS = ["branches that capture", "branches of equal names and constants", "a branch within a branch", "a loop that ends by itself",
         "a loop in a loop"]  # fmt: skip


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("name", LOOPS)
def test_branches_and_loops_of_onnx_become_those_of_tflite(name: str, tmp_path: Path) -> None:
    data, _, given = graph_of(name)
    if name == "a loop that ends by itself":  # without the stack
        text = GRAPHS[name][0].replace(", float[k] seen)", ")").replace("y, seen =", "y =").replace(", float s) {", ") {")
        from tests.formats.onnx.test_control import model as onnx_model

        data = onnx_model(text)
    (tmp_path / "m.onnx").write_bytes(data)
    qconvert.convert(tmp_path / "m.onnx", tmp_path / "r.tflite")
    graph = qconvert.load(tmp_path / "r.tflite")
    assert any(op.kind in ("If", "While") for op in all_ops(graph))
    feed = {key: np.asarray(value) for key, value in given.items()}
    for a, b in zip(outputs(data, feed), litert((tmp_path / "r.tflite").read_bytes(), graph, feed), strict=True):
        assert np.allclose(a, b, rtol=1e-6)
    # and back: the same again
    qconvert.convert(tmp_path / "r.tflite", tmp_path / "back.onnx")
    validate(read_onnx((tmp_path / "back.onnx").read_bytes(), "back"))
    for a, b in zip(outputs(data, feed), outputs((tmp_path / "back.onnx").read_bytes(), feed), strict=True):
        assert np.allclose(a, b, rtol=1e-6)


X, Y, C = TensorSpec("x", (1, 4), "int8", 0.5, 3), TensorSpec("y", (1, 4), "int8", 0.5, 3), TensorSpec("c", (), "bool")


def chosen(inner: tuple[TensorSpec, TensorSpec] = (X, Y), then: int = 1, other: int = 2) -> bytes:
    """y = c ? -x : relu(x), on integers."""
    a, b = inner
    parts = [([OpSpec(kind, ["x"], ["y"])], [a, b], ["x"], ["y"]) for kind in ("NEG", "RELU")]
    op = OpSpec("IF", ["c", "x"], ["y"], {"thenSubgraphIndex": then, "elseSubgraphIndex": other})
    return model([op], [X, C, Y], ["x", "c"], ["y"], further=parts)


@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize("scale", [0.5, 0.25])
def test_stored_integers_pass_as_they_are(scale: float) -> None:
    """Whatever scales both sides state: LiteRT copies bytes."""
    inner = (TensorSpec("x", (1, 4), "int8", scale, 3), TensorSpec("y", (1, 4), "int8", scale, 3))
    data = chosen(inner)
    graph = read_bytes(data, "g")
    validate(graph)
    x = np.array([[-100, -3, 3, 99]], np.int8)
    for c in (True, False):
        (wanted,) = run_litert(data, [x, np.array(c)], kernels="reference")
        assert np.array_equal(evaluate(graph, {"x": x, "c": np.array(c)})["y"], wanted)


@pytest.mark.parametrize(
    ("data", "rule", "holds"),
    [
        (lambda: chosen(then=3), "unknown-subgraph", (3,)),
        (lambda: chosen(then=0), "unknown-subgraph", (0, 3)),
        (lambda: chosen((TensorSpec("x", (1, 5), "int8", 0.5, 3), TensorSpec("y", (1, 5), "int8", 0.5, 3))), "shape-mismatch", ()),
        (lambda: chosen((TensorSpec("x", (1, 4), "float32"), TensorSpec("y", (1, 4), "float32"))), "type-mismatch", ("float32", "int8")),
    ],
)
def test_subgraphs_that_do_not_fit_are_refused(data: Any, rule: str, holds: tuple[object, ...]) -> None:
    with refused(QConvertError, rule, holds=holds):
        read_bytes(data(), "g")


def recursive() -> bytes:
    part = ([OpSpec("IF", ["c", "x"], ["y"], {"thenSubgraphIndex": 1, "elseSubgraphIndex": 1})], [X, C, Y], ["x", "c"], ["y"])
    op = OpSpec("IF", ["c", "x", "c"], ["y"], {"thenSubgraphIndex": 1, "elseSubgraphIndex": 1})
    return model([op], [X, C, Y], ["x", "c"], ["y"], further=[part])


def test_a_subgraph_that_runs_itself_is_refused() -> None:
    with refused(InvalidModelError, "recursive-subgraph"):
        read_bytes(recursive(), "g")


def nested(depth: int) -> bytes:
    """A branch whose branches are both the next one, and so on."""
    sides = [X, C, Y]
    parts = [([OpSpec("IF", ["c", "x", "c"], ["y"], {"thenSubgraphIndex": i + 2, "elseSubgraphIndex": i + 2})], sides, ["x", "c"], ["y"])
             for i in range(depth)]  # fmt: skip
    op = OpSpec("IF", ["c", "x", "c"], ["y"], {"thenSubgraphIndex": 1, "elseSubgraphIndex": 1})
    return model([op], sides, ["x", "c"], ["y"], further=[*parts, ([OpSpec("NEG", ["x"], ["y"])], sides, ["x", "c"], ["y"])])


def test_subgraphs_that_run_each_other_are_refused() -> None:
    sides = [X, C, Y]
    parts = [
        ([OpSpec("IF", ["c", "x", "c"], ["y"], {"thenSubgraphIndex": i, "elseSubgraphIndex": i})], sides, ["x", "c"], ["y"]) for i in (2, 1)
    ]
    op = OpSpec("IF", ["c", "x", "c"], ["y"], {"thenSubgraphIndex": 1, "elseSubgraphIndex": 2})
    with refused(InvalidModelError, "recursive-subgraph", holds=(1,)):
        read_bytes(model([op], sides, ["x", "c"], ["y"], further=parts), "g")


@pytest.mark.parametrize("depth", [60, 400])
def test_subgraphs_that_stand_too_deep_are_refused(depth: int) -> None:
    with refused(InvalidModelError, "nested-too-deeply", holds=(50,)):
        read_bytes(nested(depth), "g")


@pytest.mark.formats
def test_functions_that_double_at_each_step_stay_functions(tmp_path: Path) -> None:
    """TFLite names them; ONNX would hold each twice in the one before, which is refused."""
    (tmp_path / "m.tflite").write_bytes(nested(30))
    qconvert.convert(tmp_path / "m.tflite", tmp_path / "r.tflite")
    with refused(UnsupportedError, "too-many-operators", holds=("50,000",)):
        qconvert.convert(tmp_path / "m.tflite", tmp_path / "r.onnx")
    assert not (tmp_path / "r.onnx").exists()


@pytest.mark.parametrize(
    ("given", "results", "rule", "holds"), [(["x", "x"], ["y"], "counts-differ", (1, 2)), (["x"], ["y", "c"], "counts-differ", (1, 2))]
)
def test_a_call_with_other_values_than_its_subgraph_has_is_refused(
    given: list[str], results: list[str], rule: str, holds: tuple[object, ...]
) -> None:
    part = ([OpSpec("NEG", ["x"], ["y"])], [X, Y], ["x"], ["y"])
    with refused(InvalidModelError, rule, holds=holds):
        read_bytes(model([OpSpec("CALL", given, results, {"subgraph": 1})], [X, Y, C], ["x"], results, further=[part]), "g")


def looped(condition: str = "bool", carried: int = 1) -> bytes:
    n = TensorSpec("n", (), "int32")
    limit = TensorSpec("limit", (), "int32", data=np.array(5, np.int32))
    ends = TensorSpec("go", (), condition)
    first = ([OpSpec("LESS" if condition == "bool" else "ADD", ["n", "limit"], ["go"])], [n, limit, ends], ["n"], ["go"])
    one, m = TensorSpec("one", (), "int32", data=np.array(2, np.int32)), TensorSpec("m", (), "int32")
    step = ([OpSpec("ADD", ["n", "one"], ["m"])], [n, one, m], ["n"], ["m"])
    op = OpSpec("WHILE", ["n"] * carried, ["y"], {"condSubgraphIndex": 1, "bodySubgraphIndex": 2})
    return model([op], [n, TensorSpec("y", (), "int32")], ["n"], ["y"], further=[first, step])


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("start", [0, 4, 9])
def test_a_while_asks_before_each_turn(start: int, tmp_path: Path) -> None:
    data, n = looped(), np.array(start, np.int32)
    graph = read_bytes(data, "g")
    (wanted,) = run_litert(data, [n], kernels="reference")
    assert int(wanted) == {0: 6, 4: 6, 9: 9}[start]
    assert evaluate(graph, {"n": n})["y"] == wanted
    (tmp_path / "m.tflite").write_bytes(data)
    qconvert.convert(tmp_path / "m.tflite", tmp_path / "r.onnx")
    assert outputs((tmp_path / "r.onnx").read_bytes(), {"n": n}) == [wanted]


@pytest.mark.parametrize(
    ("changes", "rule", "holds"), [({"condition": "int32"}, "type-mismatch", ("int32", "bool")), ({"carried": 2}, "counts-differ", ())]
)
def test_loops_that_contradict_themselves_are_refused(changes: dict[str, Any], rule: str, holds: tuple[object, ...]) -> None:
    with refused(InvalidModelError, rule, holds=holds):
        read_bytes(looped(**changes), "g")
