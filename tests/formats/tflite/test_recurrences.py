"""LSTM, GRU, RNN, Scan and Loop of ONNX as loops of TFLite: LiteRT next to onnxruntime, and read back as what they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_nodes import model_of
from refusals import refused

import qconvert
from qconvert.errors import UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph
from qconvert.operators.recurrent import CELLS
from qconvert.operators.shapes_and_functions import all_ops
from tests.formats.onnx.test_control import GRAPHS, graph_of, outputs
from tests.tflite_models import run_litert

#: Sums of float32 in another order.
CLOSE = 3e-6


def recurrence(
    kind: str,
    *,
    steps: int = 5,
    rows: int = 2,
    bias: bool = True,
    first: bool = False,
    lengths: tuple[int, ...] = (),
    constant: bool = True,
    peephole: bool = False,
    computed: bool = False,
    free: bool = False,
    given: tuple[str, ...] = ("Y", "Y_h", "Y_c"),
    **attributes: Any,
) -> tuple[bytes, dict[str, Any]]:
    """A model of one recurrence with 3 values and 4 cells, and values of its inputs."""
    from onnx import helper, numpy_helper

    rng, ways, cells = np.random.default_rng(0), 2 if attributes.get("direction") == "bidirectional" else 1, 4
    batch_first = bool(attributes.get("layout"))

    def values(*shape: int) -> Any:
        return rng.normal(0, 0.7, shape).astype(np.float32)

    height = CELLS[kind].gates * cells
    feed: dict[str, Any] = {"x": values(rows, steps, 3) if batch_first else values(steps, rows, 3)}
    weights = {"W": values(ways, height, 3), "R": values(ways, height, cells)}
    constants = {} if computed else weights
    feed |= weights if computed else {}
    if bias:
        constants["B"] = values(ways, 2 * height)
    if lengths:
        (constants if constant else feed)["lengths"] = np.array(lengths, np.int32)
    shape = (rows, ways, cells) if batch_first else (ways, rows, cells)
    names = ["x", "W", "R", "B" if bias else "", "lengths" if lengths else ""]
    for name in ("h", "c")[: 2 if kind == "LSTM" else 1]:
        names.append(name if first else "")
        feed |= {name: values(*shape)} if first else {}
    if peephole:
        names.append("P")
        constants["P"] = values(ways, 3 * cells)
    results = [name if name in given else "" for name in ("Y", "Y_h", "Y_c")[: 3 if kind == "LSTM" else 2]]
    node = helper.make_node(kind, names, results, hidden_size=cells, **attributes)
    sizes = {"x": ["T", "N", 3], "h": [ways, "N", cells], "c": [ways, "N", cells], "lengths": ["N"]} if free else {}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), sizes.get(name, value.shape))
        for name, value in feed.items()
    ]
    outer = [helper.make_tensor_value_info(name, 1, [None] * (4 if name == "Y" else 3)) for name in results if name]
    graph = helper.make_graph([node], "g", inputs, outer, [numpy_helper.from_array(value, name) for name, value in constants.items()])
    return model_of(graph, 18).SerializeToString(), feed


def converted(data: bytes, folder: Path) -> Graph:
    """The graph of the TFLite file that a model becomes, which lies in the folder as m.tflite."""
    (folder / "m.onnx").write_bytes(data)
    qconvert.convert(folder / "m.onnx", folder / "m.tflite", force=True)
    return qconvert.load(folder / "m.tflite")


def compare(data: bytes, feed: dict[str, Any], folder: Path) -> Graph:
    """The graph after the way to TFLite, ONNX and back, after LiteRT and onnxruntime gave what the model means."""
    graph = converted(data, folder)
    source = qconvert.load(folder / "m.onnx")
    meant = evaluate(source, feed)
    wanted = [meant[name] for name in source.outputs]
    found = run_litert((folder / "m.tflite").read_bytes(), [feed[name] for name in graph.inputs], kernels="default")
    qconvert.convert(folder / "m.tflite", folder / "back.onnx", force=True)
    back = qconvert.load(folder / "back.onnx")
    again = outputs((folder / "back.onnx").read_bytes(), dict(zip(back.inputs, feed.values(), strict=True)))
    for results in (found, again):
        for one, other in zip(wanted, results, strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, atol=CLOSE, rtol=0)
    return back


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in all_ops(graph) if op.kind in (*CELLS, "Scan", "Loop")]


FORMS: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {}),
    ("LSTM", {"first": True, "direction": "bidirectional", "layout": 1}),
    ("LSTM", {"given": ("Y_c",), "steps": 1, "rows": 1}),
    ("GRU", {"direction": "reverse", "bias": False}),
    ("GRU", {"linear_before_reset": 1, "first": True, "lengths": (5, 5)}),
    ("GRU", {"given": ("Y_h",), "direction": "bidirectional"}),
    ("RNN", {"given": ("Y",)}),
    ("RNN", {"activations": ["Sigmoid"], "layout": 1}),
]


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(("kind", "form"), FORMS, ids=str)
def test_recurrences_are_the_same_again(kind: str, form: dict[str, Any], tmp_path: Path) -> None:
    back = compare(*recurrence(kind, **form), tmp_path)
    assert kinds(back) == [kind] * (2 if form.get("direction") == "bidirectional" else 1)


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {"lengths": (2, 5), "direction": "bidirectional", "constant": False, "free": True}),
    ("LSTM", {"peephole": True, "clip": 0.4, "input_forget": 1, "direction": "bidirectional"}),
    ("LSTM", {"activations": ["HardSigmoid", "Softsign", "LeakyRelu"], "free": True, "first": True}),
    ("GRU", {"lengths": (3, 1), "computed": True}),
    ("GRU", {"clip": 0.5, "direction": "reverse", "layout": 1, "computed": True}),
    ("RNN", {"activations": ["Affine", "ScaledTanh"], "activation_alpha": [0.5, 0.7], "activation_beta": [0.1, 0.9],
             "direction": "bidirectional"}),
    ("RNN", {"activations": ["ThresholdedRelu"], "lengths": (5, 2), "constant": False, "direction": "reverse"}),
    ("RNN", {"activations": ["Elu"], "free": True}),
]  # fmt: skip


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(("kind", "form"), OTHERS, ids=str)
def test_recurrences_that_have_more_are_loops(kind: str, form: dict[str, Any], tmp_path: Path) -> None:
    compare(*recurrence(kind, **form), tmp_path)


@pytest.mark.litert
def test_open_sizes_are_those_of_each_run(tmp_path: Path) -> None:
    """The numbers of steps and of sequences that the file was not made with."""
    graph = converted(recurrence("GRU", free=True)[0], tmp_path)
    for steps, rows in ((1, 3), (7, 1)):
        feed = recurrence("GRU", free=True, steps=steps, rows=rows)[1]
        meant = evaluate(qconvert.load(tmp_path / "m.onnx"), feed)
        found = run_litert((tmp_path / "m.tflite").read_bytes(), [feed["x"]], kernels="default")
        for name, value in zip(graph.outputs, found, strict=True):
            np.testing.assert_allclose(meant[name], value, atol=CLOSE, rtol=0)


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_checks_pass_and_find_a_wrong_weight(tmp_path: Path) -> None:
    converted(recurrence("GRU", direction="bidirectional")[0], tmp_path)
    report = qconvert.check(tmp_path / "m.onnx", tmp_path / "m.tflite", samples=1, per_op=True)
    assert report.passed, report
    graph = qconvert.load(tmp_path / "m.onnx")
    from dataclasses import replace

    weights = graph["R"]
    assert weights.data is not None
    changed = graph.evolve(tensors=[replace(weights, data=weights.data * np.float32(1.01))])
    qconvert.save(changed, tmp_path / "other.onnx")
    assert not qconvert.check(tmp_path / "other.onnx", tmp_path / "m.tflite", samples=1).passed


@pytest.mark.formats
def test_what_the_report_says(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(recurrence("GRU")[0])
    report = qconvert.convert(tmp_path / "m.onnx", tmp_path / "m.tflite")
    assert [change.text for change in report.changes if change.by == "decompose_recurrence"] == ["1 GRU are loops over their steps"]


#: Loops that give stacks of what each turn gives.
STACKED = [
    "a loop with a trip count", "a loop that ends by itself", "a loop that does not run", "a scan", "a scan backwards and along axis 1",
]  # fmt: skip


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("name", STACKED)
def test_stacks_of_each_turn_are_written(name: str, tmp_path: Path) -> None:
    data, _, given = graph_of(name)
    graph = converted(data, tmp_path)
    feed = {key: np.asarray(value) for key, value in given.items()}
    found = run_litert((tmp_path / "m.tflite").read_bytes(), [feed[key] for key in graph.inputs], kernels="default")
    for one, other in zip(outputs(data, feed), found, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.formats
def test_a_scan_is_a_scan_again(tmp_path: Path) -> None:
    converted(graph_of("a scan")[0], tmp_path)
    qconvert.convert(tmp_path / "m.tflite", tmp_path / "back.onnx")
    assert kinds(qconvert.load(tmp_path / "back.onnx")) == ["Scan"]


@pytest.mark.formats
def test_a_stack_of_open_sizes_is_refused_by_name(tmp_path: Path) -> None:
    """Each turn gives more than the one before, where the number of turns is known only when the loop ends."""
    from tests.formats.onnx.test_control import model

    text = (
        GRAPHS["a value that grows"][0]
        .replace("again = Identity(c) w", "again = Not(c) w")
        .replace("(float[k,3] y)", "(float[k,3] y, float[a,b,3] s)")
    )
    text = text.replace("y = Loop", "y, s = Loop").replace("float[r,3] w) {", "float[r,3] w, float[r,3] z) { z = Concat <axis=0> (v, v)")
    (tmp_path / "m.onnx").write_bytes(model(text))
    with refused(UnsupportedError, "dynamic-dimension", holds=("'z'",)):
        qconvert.convert(tmp_path / "m.onnx", tmp_path / "m.tflite")
    assert not (tmp_path / "m.tflite").exists()


#: Conditions of a loop over 5 steps whose counter t starts at 1, with 4 turns as its count: what they say, and how many turns run.
CONDITIONS = {
    "below the length, on reals": ("t1f = Cast <to=1> (t1) lim = Constant <value = float {6}> () again = Less (t1f, lim)", 4),
    "the turn and the counter": (
        """two = Constant <value = int64 {2}> () b0 = Less (i, two) lim = Constant <value = int32 {3}> () b1 = Less (t1, lim)
           again = And (b0, b1)""", 2),
    "at most one": ("lim = Constant <value = int32 {-7}> () again = Less (t1, lim)", 1),
    "a length that is given": ("again = Less (t1, limit)", 3),
    "a step of two": ("t2 = Add (t1, one) lim = Constant <value = int32 {5}> () again = Less (t2, lim)", 3),
    "not below": ("lim = Constant <value = int32 {3}> () stop = Less (lim, t1) again = Not (stop)", 3),
}  # fmt: skip


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_that_counts(name: str, tmp_path: Path) -> None:
    """A recurrence as tf2onnx decomposes it: rows are as many as the run says, and the stack of results has their size."""
    from tests.formats.onnx.test_control import model

    condition, turns = CONDITIONS[name]
    data = model(
        f"""(float[5,n,3] x, float[n,3] h, int32 limit) => (float[n,3] y, float[k,n,3] s) {{
              t0 = Constant <value = int32 {{1}}> () four = Constant <value = int64 {{4}}> () go = Constant <value = bool {{1}}> ()
              t, y, s = Loop (four, go, t0, h) <body = body (int64 i, bool c, int32 t_in, float[n,3] v)
                                                     => (bool again, int32 t1, float[n,3] w, float[p,3] z) {{
                one = Constant <value = int32 {{1}}> () t1 = Add (t_in, one) e = Gather <axis=0> (x, t_in) w0 = Add (v, e) w = Tanh (w0)
                z = Identity (w) {condition}
              }}> }}"""
    )
    graph = converted(data, tmp_path)
    for rows in (1, 3):
        rng = np.random.default_rng(rows)
        feed = {"x": rng.normal(size=(5, rows, 3)), "h": rng.normal(size=(rows, 3))}
        feed = {key: value.astype(np.float32) for key, value in feed.items()} | {"limit": np.array(4, np.int32)}
        found = run_litert((tmp_path / "m.tflite").read_bytes(), [feed[key] for key in graph.inputs], kernels="default")
        for one, other in zip(outputs(data, feed), found, strict=True):
            assert one.shape == other.shape and len(found[1]) == turns
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
