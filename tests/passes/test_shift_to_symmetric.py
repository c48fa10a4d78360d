"""shift_to_symmetric: the same stored integers under the zero point 0, by the evaluator's numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from passes.graphs import CONV, constant, make, q, random_integers

from qconvert import Graph, Op, Quantization, Target, Tensor, load, save
from qconvert.evaluate import evaluate
from qconvert.graph import Array, numpy_dtype
from qconvert.graph.metadata import SHIFTED
from qconvert.kernels import Kernels
from qconvert.plugins import Storage, pass_named
from qconvert.rules.validation import validate

SYMMETRIC = Target(
    "symmetric", "onnx", "", storage=Storage(symmetric_activations=("int8",), activation_dtypes=("int8",)),
    kernels=Kernels(unpacked_weights="int8"),
)  # fmt: skip


def shifted(graph: Graph, target: Target | None = SYMMETRIC) -> Graph:
    """The graph after the pass: no activation inside it has a zero point, and the metadata say which had one."""
    changed, notes = pass_named("shift_to_symmetric").run(graph, target)
    validate(changed)
    assert notes
    inner = [tensor for tensor in changed.tensors.values() if tensor.quantization is not None and tensor.dtype == "int8"]
    edges = {*changed.inputs, *changed.outputs}
    assert all(tensor.quantization.is_symmetric for tensor in inner if tensor.name not in edges and tensor.quantization is not None)
    assert all(changed[name].quantization is not None for name in json.loads(changed.metadata[SHIFTED]))
    return changed


def integers(graph: Graph, feeds: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
    """The stored values of tensors in a run."""
    found = evaluate(replace(graph, outputs=tuple(names), signatures=()), feeds)
    return [found[name] for name in names]


def same(graph: Graph, *, ties: int = 0, target: Target | None = SYMMETRIC, seed: int = 0) -> Graph:
    """The graph after the pass, whose outputs and inner activations are the integers of the graph before."""
    changed = shifted(graph, target)
    shapes = {name: tuple(size if isinstance(size, int) else 2 for size in graph[name].shape or ()) for name in graph.inputs}
    feeds = {
        name: np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        if graph[name].dtype == "float32"
        else random_integers(shape, graph[name].dtype, seed)
        for name, shape in shapes.items()
    }
    assert [changed[name] for name in graph.inputs + graph.outputs] == [graph[name] for name in graph.inputs + graph.outputs]
    names = [
        tensor.name
        for tensor in graph.tensors.values()
        if tensor.is_quantized and not tensor.is_constant and tensor.name in changed.tensors
    ]
    for name, was, now in zip(names, integers(graph, feeds, names), integers(changed, feeds, names), strict=True):
        different = np.abs(was.astype(np.int32) - now)
        assert (different > 0).sum() <= ties and different.max(initial=0) <= 1, name
        assert len(np.unique(was)) > 1, f"{name} tells nothing"
    back = restored(graph, changed)
    left = [name for name in names if name in back.tensors]
    assert set(graph.outputs) & set(names) <= set(left)
    for name, was, now in zip(left, integers(graph, feeds, left), integers(back, feeds, left), strict=True):
        different = np.abs(was.astype(np.int32) - now)
        assert (different > 0).sum() <= ties and different.max(initial=0) <= 1, name
    return changed


def restored(graph: Graph, changed: Graph) -> Graph:
    """What restore_zero_points makes of a shifted graph: the quantizations of the graph before."""
    back, notes = pass_named("restore_zero_points").run(changed, None)
    validate(back)
    assert notes and SHIFTED not in back.metadata
    for name, tensor in graph.tensors.items():
        if name in back.tensors and tensor.is_quantized and not tensor.is_constant:
            assert back[name].quantization == tensor.quantization, name
    return back


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


def bias_of(graph: Graph, kind: str = "Conv") -> Array:
    (op,) = (op for op in graph.ops if op.kind == kind)
    data = graph[op.inputs[2]].data
    assert data is not None
    return data


def conv(
    *,
    point: int = -3,
    result: int = 5,
    group: int = 1,
    scale: float = 0.4,
    has_bias: bool = True,
    batch: int | str = 1,
    **attributes: object,
) -> Graph:
    """x (…,4,6,5) -> Conv with 4 outputs and 3x3 weights of a scale for each channel -> y."""
    weights = random_integers((4, 4 // group, 3, 3), "int8", 1).clip(-127, 127)
    scales = np.array([0.01, 0.02, 0.015, 0.03], np.float32)
    bias = constant("b", np.array([300, -900, 20, 7], np.int32), Quantization.per_axis(scales * np.float32(0.05), 0))
    inputs = ("x", "w", "b") if has_bias else ("x", "w")
    tensors = [
        Tensor("x", "int8", (batch, 4, 6, 5), None, q(0.05, point)),
        constant("w", weights, Quantization.per_axis(scales, 0)),
        *([bias] if has_bias else []),
        Tensor("y", "int8", None, None, q(scale, result)),
    ]
    return make([Op("Conv", inputs, ("y",), {**CONV, "group": group, **attributes})], tensors, "x", "y")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"group": 2},
        {"group": 4, "strides": (2, 1)},
        {"pads": (0, 2, 1, 0)},
        {"pads": (0, 0, 0, 0), "dilations": (2, 1)},
        {"pads": (0, 0, 0, 0), "auto_pad": "SAME_UPPER", "strides": (2, 2)},
        {"pads": (0, 0, 0, 0), "auto_pad": "SAME_LOWER", "strides": (2, 2)},
        {"pads": (0, 0, 0, 0), "auto_pad": "VALID"},
        {"has_bias": False},
        {"point": 0},
        {"result": 0, "has_bias": False},
        {"batch": "n"},
    ],
)
def test_a_convolution_gives_the_integers_that_it_gave(changes: dict[str, object]) -> None:
    changed = same(conv(**changes))  # type: ignore[arg-type]
    (op,) = (op for op in changed.ops if op.kind == "Conv")
    pads = changes.get("point", -3) != 0
    assert op["auto_pad"] == "NOTSET" and (not pads or not any(op["pads"]))
    assert changed[op.inputs[2]].dtype == "float32" and changed[op.inputs[1]].dtype == "int8"


def test_the_bias_is_worked_out_in_float64() -> None:
    graph = conv()
    weights, bias, data = graph["w"], graph["b"], graph["x"]
    assert weights.data is not None and bias.data is not None
    real = weights.data.astype(np.float64) * weights.quantization.scale.astype(np.float64)[:, None, None, None]  # type: ignore[union-attr]
    wanted = bias.data * bias.quantization.scale.astype(np.float64)  # type: ignore[union-attr]
    wanted = wanted - data.quantization.step * -3 * real.sum((1, 2, 3)) + float(np.float32(0.4)) * 5  # type: ignore[union-attr]
    assert np.array_equal(bias_of(shifted(graph)), wanted.astype(np.float32))
    assert json.loads(shifted(graph).metadata[SHIFTED])["y/shifted"] == 5


@pytest.mark.parametrize("size", ["h", 6])
def test_a_convolution_pads_by_itself_where_its_pads_depend_on_sizes_that_are_not_known(size: int | str) -> None:
    graph = conv(auto_pad="SAME_UPPER", strides=(2, 2), pads=(0, 0, 0, 0))
    x, y = replace(graph["x"], shape=(1, 4, size, 5)), replace(graph["y"], shape=(1, 4, 3, 3))
    changed = shifted(replace(graph, tensors={**graph.tensors, "x": x, "y": y}))
    (op,) = (op for op in changed.ops if op.kind == "Conv")
    assert changed[op.inputs[0]].is_quantized == (size == 6)
    explicit = replace(graph, tensors={**graph.tensors, "x": x, "y": replace(y, shape=(1, 4, size, 5))}, ops=conv().ops)
    padded = shifted(explicit)
    assert padded[next(op for op in padded.ops if op.kind == "Pad").outputs[0]].shape == (1, 4, 8 if size == 6 else "h+2", 7)


@pytest.mark.parametrize(("activation", "result", "scale", "clips"), [
    ("relu", -128, 0.4, False), ("relu6", -128, 6 / 255, False), ("relu", 5, 0.4, True), ("relu6", -100, 0.1, True),
    ("relu_n1_to_1", 0, 0.1, True),
])  # fmt: skip
def test_an_activation_is_a_clip_where_the_quantization_does_not_imply_it(activation: str, result: int, scale: float, clips: bool) -> None:
    changed = same(conv(activation=activation, result=result, scale=scale))
    assert ("Clip" in kinds(changed)) is clips
    assert not any(op.attributes.get("activation") for op in changed.ops)
    (op,) = (op for op in changed.ops if op.kind == "Conv")
    assert changed[op.outputs[0]].is_quantized is not clips  # integers are never clipped


def gemm(kind: str, point: int, weights: tuple[int, ...], data: tuple[int | str, ...], **attributes: object) -> Graph:
    axis = 0 if kind == "Gemm" else len(weights) - (2 if attributes.get("trans_b") else 1)
    scales = np.linspace(0.01, 0.03, weights[axis]).astype(np.float32)
    tensors = [
        Tensor("x", "int8", data, None, q(0.05, point)),
        constant("w", random_integers(weights, "int8", 2).clip(-127, 127), Quantization.per_axis(scales, axis)),
        Tensor("y", "int8", None, None, q(0.3, 9)),
    ]
    return make([Op(kind, ("x", "w"), ("y",), attributes)], tensors, "x", "y")  # type: ignore[arg-type]


@pytest.mark.parametrize(("graph"), [
    gemm("Gemm", -128, (5, 7), (3, 7)),
    gemm("Gemm", -128, (5, 7), ("n", 7), activation="relu"),
    gemm("MatMul", 11, (7, 5), (2, 3, 7)),
    gemm("MatMul", 11, (5, 7), (2, 3, 7), trans_b=1),
    gemm("MatMul", 11, (7, 5), (3, 7), activation="relu"),
    gemm("MatMul", 11, (2, 7, 5), (2, 3, 7)),
])  # fmt: skip
def test_products_give_the_integers_that_they_gave(graph: Graph) -> None:
    changed = same(graph)
    (op,) = (op for op in changed.ops if op.kind in ("Gemm", "MatMul"))
    assert changed[op.inputs[0]].quantization == q(0.05) and changed[op.inputs[1]].dtype == "int8"


def test_a_real_result_is_what_it_was() -> None:
    for graph in (gemm("MatMul", 11, (7, 5), (3, 7)), gemm("Gemm", 11, (5, 7), (3, 7))):
        real = replace(graph, tensors={**graph.tensors, "y": replace(graph["y"], dtype="float32", quantization=None)})
        changed = shifted(real)
        feeds = {"x": random_integers((3, 7), "int8")}
        assert np.allclose(evaluate(real, feeds)["y"], evaluate(changed, feeds)["y"], rtol=1e-5, atol=1e-5)


def moved(*ops: Op, shape: tuple[int, ...] = (1, 4, 6, 6), tensors: Sequence[Tensor] = (), point: int = -7, **others: Tensor) -> Graph:
    """x -> Identity -> operators that move -> y, all with one quantization."""
    quantization = q(0.1, point)
    names = dict.fromkeys(name for op in ops for name in op.outputs)
    known = {tensor.name for tensor in tensors}
    made = [Tensor(name, "int8", None, None, quantization) for name in names if name not in known]
    first = [Tensor("x", "int8", shape, None, quantization), Tensor("a", "int8", None, None, quantization)]
    return make([Op("Identity", ("x",), ("a",)), *ops], [*first, *made, *tensors], "x", list(names)[-1])


POOL = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "data_format": "channels_first"}
INDICES = constant("i", np.array([2, 0], np.int64))


@pytest.mark.parametrize("graph", [
    moved(Op("MaxPool", ("a",), ("y",), POOL)),
    moved(Op("Transpose", ("a",), ("b",), {"perm": (0, 2, 3, 1)}), Op("Reshape", ("b", "s"), ("y",)),
          tensors=[constant("s", np.array([4, 36], np.int64))]),
    moved(Op("Concat", ("a", "a"), ("y",), {"axis": 1})),
    moved(Op("Concat", ("a", "c"), ("y",), {"axis": 1}), tensors=[constant("c", random_integers((1, 1, 6, 6), "int8"), q(0.1, -7))]),
    moved(Op("Concat", ("a", "c"), ("y",), {"axis": 1}), tensors=[constant("c", np.full((1, 1, 6, 6), -7, np.int8), q(0.1, -7))]),
    moved(Op("Gather", ("a", "i"), ("y",), {"axis": 1}), tensors=[INDICES]),
    moved(Op("Max", ("a", "a"), ("y",))),
    moved(Op("Pad", ("a", "p", "f"), ("y",), {"mode": "constant"}),
          tensors=[constant("p", np.array([0, 0, 1, 0, 0, 0, 0, 2], np.int64)), constant("f", np.array(90, np.int8), q(0.1, -7))]),
    moved(Op("Pad", ("a", "p"), ("y",), {"mode": "reflect"}), tensors=[constant("p", np.array([0, 0, 1, 0, 0, 0, 0, 2], np.int64))]),
])  # fmt: skip
def test_moves_stay_on_integers(graph: Graph) -> None:
    changed = same(graph)
    assert {"Dequantize", "Quantize"}.isdisjoint(kinds(changed)) and kinds(changed).count("Reinterpret") == 2


@pytest.mark.parametrize("graph", [
    moved(Op("Pad", ("a", "p"), ("y",), {"mode": "constant"}), tensors=[constant("p", np.array([0, 0, 1, 0, 0, 0, 0, 2], np.int64))]),
    moved(Op("Relu", ("a",), ("y",))),
    moved(Op("Add", ("a", "c"), ("y",)), tensors=[constant("c", random_integers((4, 1, 1), "int8"), q(0.17, 12)),
                                                  Tensor("y", "int8", None, None, q(0.3, -20))]),
    moved(Op("Mul", ("a", "a"), ("y",), {"activation": "relu"}), tensors=[Tensor("y", "int8", None, None, q(0.7, -30))]),
    moved(Op("Concat", ("a", "a"), ("y",), {"axis": 1}), tensors=[Tensor("y", "int8", None, None, q(0.23, 20))]),
    moved(Op("Sigmoid", ("a",), ("y",)), tensors=[Tensor("y", "int8", None, None, q(1 / 256, -128))]),
    moved(Op("Requantize", ("a",), ("y",)), tensors=[Tensor("y", "int8", None, None, q(0.23, 20))]),
])  # fmt: skip
def test_what_computes_runs_on_real_values(graph: Graph) -> None:
    changed = same(graph)
    assert {"Dequantize", "Quantize"} <= {*kinds(changed)}
    reals = [op for op in changed.ops if op.kind in ("Pad", "Relu", "Add", "Mul", "Sigmoid")]
    assert all(changed[name].dtype == "float32" for op in reals for name in op.outputs)


def test_readers_with_different_pads_get_a_copy_each_and_equal_ones_share() -> None:
    tensors = [Tensor("x", "int8", (1, 2, 5, 5), None, q(0.05, -9)), constant("w", random_integers((2, 2, 3, 3), "int8"), q(0.01))]
    pads = [(1, 1, 1, 1), (0, 1, 0, 1), (1, 1, 1, 1), (0, 0, 0, 0)]
    ops = [Op("Conv", ("x", "w"), (f"y{i}",), {**CONV, "pads": pad}) for i, pad in enumerate(pads)]
    results = [Tensor(f"y{i}", "int8", None, None, q(0.3, 3 + i)) for i in range(len(pads))]
    changed = same(make(ops, [*tensors, *results], "x", "y0 y1 y2 y3"))
    assert kinds(changed).count("Pad") == 2
    read = [op.inputs[0] for op in changed.ops if op.kind == "Conv"]
    assert read[0] == read[2] and len({*read}) == 3


def test_uint8_edges_are_exact_for_each_code() -> None:
    """The integers of a uint8 input and output are plain numbers to operators in float."""
    inner = [Tensor("a", "int8", (256,), None, q(0.017, 3)), Tensor("b", "int8", (256,), None, q(0.017, 3))]
    ops = [Op("Requantize", ("x",), ("a",)), Op("Identity", ("a",), ("b",)), Op("Requantize", ("b",), ("y",))]
    for new in (q(0.017, 131), q(0.023, 100)):
        graph = make(ops, [Tensor("x", "uint8", (256,), None, q(0.017, 131)), *inner, Tensor("y", "uint8", (256,), None, new)], "x", "y")
        changed = shifted(graph)
        feeds = {"x": np.arange(256, dtype=np.uint8)}
        assert np.array_equal(evaluate(graph, feeds)["y"], evaluate(changed, feeds)["y"])
        assert "Requantize" not in kinds(changed) and all(
            changed[name].dtype != "uint8" or name in ("x", "y") for op in changed.ops for name in (*op.inputs, *op.outputs)
        )


def test_real_values_do_not_go_by_uint8() -> None:
    """As after float_io, where a network's inputs and outputs were uint8."""
    inner = [Tensor(name, "int8", None, None, q(0.02, 3)) for name in "ab"]
    outer = [Tensor(name, "uint8", None, None, q(0.02, 131)) for name in "uv"]
    ops = [Op("Quantize", ("x",), ("u",)), Op("Requantize", ("u",), ("a",)), Op("Identity", ("a",), ("b",)),
           Op("Requantize", ("b",), ("v",)), Op("Dequantize", ("v",), ("y",))]  # fmt: skip
    graph = make(ops, [Tensor("x", "float32", (4, 64)), *inner, *outer], "x", "y")
    changed = same(graph)
    assert not any(tensor.dtype == "uint8" for tensor in changed.tensors.values())
    x = np.random.default_rng(3).normal(size=(4, 64)).astype(np.float32)
    assert np.allclose(evaluate(graph, {"x": x})["y"], evaluate(changed, {"x": x})["y"], atol=1e-6)


def test_real_edges_and_inner_outputs() -> None:
    """A float input, a Dequantize, and an output that is read inside as well keep what they mean."""
    graph = make(
        [Op("Quantize", ("x",), ("a",)), Op("Identity", ("a",), ("b",)), Op("Dequantize", ("b",), ("y",))],
        [Tensor("x", "float32", (4, 64)), *(Tensor(name, "int8", None, None, q(0.02, -30)) for name in "ab")],
        "x",
        "y a",
    )
    changed = same(graph)
    assert kinds(changed).count("Reinterpret") == 1 and changed["a"] == graph["a"]
    x = np.random.default_rng(3).normal(size=(4, 64)).astype(np.float32)
    assert np.allclose(evaluate(graph, {"x": x})["y"], evaluate(changed, {"x": x})["y"], atol=1e-6)


def test_symmetric_graphs_stay_as_they_are() -> None:
    graph = conv(point=0, result=0)
    assert pass_named("shift_to_symmetric").run(graph, SYMMETRIC) == (
        graph,
        ("no activation has a zero point: nothing is shifted",),
    )
    affine = conv()
    assert pass_named("shift_to_symmetric").run(affine, Target("any", "onnx", ""))[0] is affine


def test_roundings_of_the_sources_kernels_fall_away_for_a_target_that_computes_on_real_values() -> None:
    graph = moved(Op("Add", ("a", "a"), ("y",), {"arithmetic": "qnnpack"}), tensors=[Tensor("y", "int8", None, None, q(0.3, -20))])
    changed = same(graph, ties=4)
    assert not any(op.attributes.get("arithmetic") for op in changed.ops)


def paired() -> Graph:
    """A Conv whose result an addition and another Conv read, through a Reshape that only the addition reads."""
    weights = constant("w", random_integers((2, 2, 1, 1), "int8"), q(0.01))
    tensors = [Tensor("x", "float32", (1, 2, 5, 5)), weights, constant("s", np.array([2, 25], np.int64)),
               *(Tensor(name, "int8", None, None, q(0.05, -9)) for name in "abcde")]  # fmt: skip
    bare = {**CONV, "pads": (0, 0, 0, 0)}
    ops = [
        Op("Quantize", ("x",), ("a",)),
        Op("Conv", ("a", "w"), ("b",), bare),
        Op("Conv", ("b", "w"), ("c",), bare),
        Op("Reshape", ("c", "s"), ("d",)),
        Op("Sigmoid", ("d",), ("e",)),
        Op("Dequantize", ("e",), ("y",)),
    ]
    return make(ops, tensors, "x", "y")


def test_sparse_pairs_stay_in_front_of_products_and_leave_their_clip() -> None:
    graph = shifted(paired())
    changed, notes = pass_named("sparse_pairs").run(graph, SYMMETRIC, pairs="sparse")
    validate(changed)
    assert pass_named("sparse_pairs").run(graph, SYMMETRIC) == (graph, ())
    assert {name for name in "abcde" if name in changed.tensors} == {"a", "b"} and json.loads(changed.metadata[SHIFTED]) == {
        "a": -9,
        "b": -9,
    }
    clips = [op for op in changed.ops if op.kind == "Clip"]
    assert len(clips) == 2 and notes[0].costs
    low, high = (float(changed[name].data) for name in clips[0].inputs[1:])  # type: ignore[arg-type]
    assert (low, high) == (np.float32(-128 * np.float32(0.05)), np.float32(127 * np.float32(0.05)))
    feeds = {"x": np.random.default_rng(1).normal(0, 5, (1, 2, 5, 5)).astype(np.float32)}
    was, now = evaluate(graph, feeds)["y"], evaluate(changed, feeds)["y"]
    assert np.abs(was - now).max() <= 0.06 and not np.array_equal(was, now)


def test_symmetric_quantizations_are_an_option_of_targets_that_shift() -> None:
    target = SYMMETRIC.derive(name="shifting", passes=("symmetric_activations", "shift_to_symmetric"))
    run = pass_named("symmetric_activations").run
    assert run(paired(), target)[1] == ()
    changed, notes = run(paired(), target, zero_points="symmetric")
    assert notes and all(tensor.quantization.is_symmetric for tensor in changed.tensors.values() if tensor.quantization is not None)
    assert run(paired(), SYMMETRIC)[1]


def test_restored_graphs_have_the_operators_and_biases_that_they_had() -> None:
    def read(graph: Graph) -> Graph:
        changed, _ = pass_named("absorb_quantization").run(shifted(graph), None)
        return restored(graph, changed)

    graph = conv()
    back = read(graph)
    assert kinds(back) == ["Conv"] and back.ops[0]["pads"] == graph.ops[0]["pads"] and back[back.ops[0].inputs[2]].dtype == "int32"
    assert np.array_equal(back[back.ops[0].inputs[2]].data, graph["b"].data)  # type: ignore[arg-type]
    assert read(conv(has_bias=False)).ops[0].inputs == ("x", "w")


@pytest.mark.formats
def test_an_activation_that_the_file_has_as_a_clip_on_real_values_comes_back(tmp_path: Path) -> None:
    graph = conv(activation="relu6", result=-100, scale=0.1)
    save(shifted(graph), tmp_path / "model.onnx", guards=False)
    back = load(tmp_path / "model.onnx")
    assert kinds(back) == ["Conv"] and back.ops[0]["activation"] == "relu6" and back["y"].quantization == graph["y"].quantization
    assert np.array_equal(back[back.ops[0].inputs[2]].data, graph["b"].data)  # type: ignore[arg-type]


@pytest.mark.formats
def test_a_fused_activation_of_an_unshifted_result_keeps_no_shift_in_the_bias(tmp_path: Path) -> None:
    graph = conv(activation="relu", result=0)
    save(shifted(graph), tmp_path / "model.onnx", guards=False)
    back = load(tmp_path / "model.onnx")
    assert kinds(back) == ["Conv"] and back.ops[0]["activation"] == "relu" and back["x"].quantization == graph["x"].quantization
    assert np.array_equal(back[back.ops[0].inputs[2]].data, graph["b"].data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "note",
    ["", "[]", "{", '{"x": true}', '{"nothing": 3}', '{"y": 300}', '{"y": 1.5}', '{"w": 3}', '{"y": "7"}'],
)
def test_notes_that_say_nothing_change_nothing(note: str) -> None:
    graph = shifted(conv())
    noted = replace(graph, metadata={SHIFTED: note})
    back, notes = pass_named("restore_zero_points").run(noted, None)
    assert not notes and back.ops == graph.ops


def test_a_false_note_changes_no_result() -> None:
    graph = shifted(conv())
    points = {name: point + 9 for name, point in json.loads(graph.metadata[SHIFTED]).items()}
    back, _ = pass_named("restore_zero_points").run(replace(graph, metadata={SHIFTED: json.dumps(points)}), None)
    validate(back)
    feeds = {"x": random_integers((1, 4, 6, 5), "int8", 0)}
    assert np.array_equal(evaluate(back, feeds)["y"], evaluate(graph, feeds)["y"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_shifts_are_added_in_float32_to_values_of_16_bits(dtype: str) -> None:
    """s * q and s * zero point are much larger than their difference: 11 bits would lose parts of a step."""
    tensors = [Tensor("x", dtype, (4, 64)), Tensor("a", "int8", None, None, q(0.05, 100)), Tensor("r", dtype, None)]
    ops = [Op("Quantize", ("x",), ("a",)), Op("Dequantize", ("a",), ("r",)), Op("Relu", ("r",), ("y",))]
    graph = make(ops, [*tensors, Tensor("y", dtype, (4, 64))], "x", "y")
    changed = shifted(graph)
    x = np.random.default_rng(3).normal(0, 2, size=(4, 64)).astype(numpy_dtype(dtype))
    was, now = (evaluate(item, {"x": x})["y"].astype(np.float32) for item in (graph, changed))
    assert np.mean(was != now) < 0.02 and np.abs(was - now).max() < 0.051
    assert len(np.unique(was)) > 20


AVERAGE = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "arithmetic": "ties_away", "data_format": "channels_first"}


def average(point: int, *, isolated: bool, **changes: object) -> Graph:
    """x (1,3,16,16) -> AveragePool of 2x2 with its quantization -> y, by itself or in float between Dequantize and Quantize."""
    quantization = q(0.03, point)
    ends = [Tensor("x", "int8", (1, 3, 16, 16), None, quantization), Tensor("y", "int8", None, None, quantization)]
    attributes = {**AVERAGE, **changes}
    if not isolated:
        return make([Op("AveragePool", ("x",), ("y",), attributes)], ends, "x", "y")
    real = [Tensor("a", "float32", (1, 3, 16, 16)), Tensor("b", "float32", (1, 3, 8, 8))]
    ops = [Op("Dequantize", ("x",), ("a",)), Op("AveragePool", ("a",), ("b",), attributes), Op("Quantize", ("b",), ("y",))]
    return make(ops, [*ends, *real], "x", "y")


@pytest.mark.parametrize("point", [-128, 3, -7])
def test_ties_of_averages_go_away_from_the_stored_zero(point: int) -> None:
    graph = average(point, isolated=False)
    changed = same(graph)
    assert kinds(changed).count("Mul") == 1 and not {"Add", "Sub"} & {*kinds(changed)}
    alone = shifted(average(point, isolated=True))
    feeds = {"x": random_integers((1, 3, 16, 16), "int8", 3)}
    assert np.array_equal(evaluate(alone, feeds)["y"], evaluate(graph, feeds)["y"])
    read, _ = pass_named("absorb_quantization").run(changed, None)
    back = restored(graph, read)
    assert kinds(back) == ["AveragePool"] and back.ops[0]["arithmetic"] == "ties_away"


@pytest.mark.parametrize("changes", [{"arithmetic": ""}, {"pads": (0, 0, 1, 1)}, {"kernel_shape": (16, 16), "strides": (16, 16)}])
def test_other_averages_run_on_unshifted_values(changes: dict[str, object]) -> None:
    assert "Mul" not in kinds(shifted(average(-7, isolated=False, **changes)))
