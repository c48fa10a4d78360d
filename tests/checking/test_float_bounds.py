"""Bounds of float operators in a proof: what they say, and that no two runtimes are farther apart than that."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qconvert import Proof, convert, prove, run, save
from qconvert.checking.expected_values import _evaluate_absolute, count_terms
from qconvert.checking.proof.classes import Proved
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.operators import KINDS
from qconvert.operators.shapes_and_functions import infer

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

_WINDOW = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}
_BOUND = re.compile(r"at most (\S+) of the sum")


def make_graph(
    kind: str, shapes: tuple[tuple[int, ...], ...], *constants: Array, quantization: Quantization | None = None, **more: object
) -> Graph:
    """An operator on float data of some shapes and on constants, the first of which has a quantization."""
    tensors = [Tensor(f"x{place}", "float32", shape) for place, shape in enumerate(shapes)]
    tensors += [
        Tensor(f"c{place}", item.dtype.name, item.shape, item, None if place else quantization) for place, item in enumerate(constants)
    ]
    op = Op(kind, tuple(tensor.name for tensor in tensors), ("y",), more)
    inputs = tuple(tensor.name for tensor in tensors if tensor.data is None)
    return infer(Graph(kind, {item.name: item for item in (*tensors, Tensor("y", "float32", None))}, (op,), inputs, ("y",)))


def quantize_weights(values: Array, axis: int) -> tuple[Array, Quantization]:
    """Weights in 8 bits with a scale for each channel of an axis."""
    others = tuple(place for place in range(values.ndim) if place != axis)
    scale = (np.abs(values).max(axis=others) / 127).astype(np.float32)
    spread = scale.reshape([-1 if place == axis else 1 for place in range(values.ndim)])
    return np.rint(values / spread).astype(np.int8), Quantization(scale, np.zeros(scale.size, np.int64), axis)


def draw_data(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers of one size, of many sizes, near ties of a sum, or with a large common part that cancels."""
    values = rng.normal(size=shape)
    ways = values, values * 10.0 ** rng.uniform(-6, 6, shape), np.round(values * 8) / 8 + 1 / 16, values + 1000.0
    return ways[rng.integers(len(ways))].astype(np.float32)


def draw_graph(rng: np.random.Generator, kind: str, layout: str, rounding: str) -> Graph:
    """An operator of a kind with random sizes; its weights are integers if `rounding` is the arithmetic of dynamic range, or "weights"."""
    batch, depth, width = (int(item) for item in rng.integers(1, (4, 200, 12)))
    more: dict[str, object] = {}
    if kind in ("Conv", "Gemm", "MatMul"):
        image = (batch, 5, 6, depth) if layout == "channels_last" else (batch, depth, 5, 6)
        shape, weights = (image, (width, depth, 2, 3)) if kind == "Conv" else ((batch, depth), (width, depth))
        more = {**_WINDOW, "data_format": layout} if kind == "Conv" else {}
        axis = 1 if kind == "MatMul" else 0
        values = rng.normal(size=weights[::-1] if kind == "MatMul" else weights) * 10.0 ** rng.uniform(-2, 2)
        if rounding not in ("", "weights"):
            more["arithmetic"] = rounding
        if not rounding:
            return make_graph(kind, (shape,), values.astype(np.float32), **more)
        data, quantization = quantize_weights(values, axis)
        return make_graph(kind, (shape,), data, quantization=quantization, **more)
    if kind in ("ReduceMean", "ReduceSum"):
        return make_graph(kind, ((batch, depth, width),), np.array([1, 2]), keepdims=0)
    shapes = ((batch, depth, width),) * (2 if KINDS[kind].inputs[0] == 2 else 1)
    return make_graph(kind, shapes, **({"alpha": 0.3} if kind == "LeakyRelu" else {}))


def measure(graph: Graph, proved: Proved, feeds: dict[str, Array], results: tuple[Array, Array]) -> float:
    """How far two results are apart, as a share of what a proof allows."""
    (op,), found = graph.ops, _BOUND.search(proved.why)
    plain = op.with_attributes(arithmetic="") if op.attributes.get("arithmetic") else op
    allowed = np.full(results[0].shape, 2.0**-126)
    if found is not None and KINDS[op.kind].sum_sign:
        allowed += float(found[1]) * sum(np.abs(value.astype(np.float64)) for value in feeds.values())
    elif found is not None:
        terms = None if KINDS[op.kind].product_sign or KINDS[op.kind].power else _evaluate_absolute(graph, plain, feeds)
        allowed += 1.01 * float(found[1]) * np.abs(results[0] if terms is None else terms)
    if "its data" in proved.why:
        weighted = _evaluate_absolute(graph, plain, {"x0": np.ones_like(feeds["x0"])})
        assert weighted is not None
        allowed += np.ptp(np.append(feeds["x0"], 0).astype(np.float64)) / 127 * weighted
    apart = np.abs(results[0].astype(np.float64) - results[1].astype(np.float64))
    return float((apart / allowed).max())


_KINDS = (
    "Conv",
    "Gemm",
    "MatMul",
    "Add",
    "Sub",
    "Mul",
    "Div",
    "ReduceMean",
    "ReduceSum",
    "Relu",
    "LeakyRelu",
    "Abs",
    "Round",
    "Sqrt",
    "Max",
)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    ("suffixes", "roundings"),
    [
        ((".onnx", ".tflite"), ("", "weights", "dynamic_tensor")),
        ((".tflite", ".onnx"), ("", "dynamic", "dynamic_images")),
        pytest.param((".pt2", ".onnx"), ("", "weights"), marks=[pytest.mark.torch, pytest.mark.end_to_end]),
    ],
    ids=["to TFLite", "to ONNX", "from PyTorch"],
)
def test_results_are_within_the_bound_of_the_proof(
    kind: str, suffixes: tuple[str, str], roundings: tuple[str, ...], tmp_path: Path
) -> None:
    rng, layout = np.random.default_rng(7), "channels_last" if suffixes[0] == ".tflite" else "channels_first"
    source, result = (tmp_path / f"m{suffix}" for suffix in suffixes)
    for rounding in roundings if KINDS[kind].sums_products else ("",):
        graph = draw_graph(rng, kind, layout, rounding)
        save(graph, source, force=True)
        convert(source, result, force=True)
        found = [item for item in prove(source, result).operators if item.method == "error bound"]
        assert len(found) == 1, rounding
        for _ in range(2):
            feeds = {name: draw_data(rng, graph[name].static_shape or ()) for name in graph.inputs}
            feeds = {name: np.abs(value) for name, value in feeds.items()} if kind == "Sqrt" else feeds
            outputs = run(source, feeds)["y"], next(value for name, value in run(result, feeds).items() if name not in feeds)
            assert measure(graph, found[0], feeds, (outputs[0], outputs[1])) <= 1, rounding


def bounds(graph: Graph, folder: Path, suffixes: tuple[str, str] = (".onnx", ".tflite")) -> list[str]:
    """What the proof says of the operators of a graph that is written as one format and converted to another."""
    source, result = (folder / f"m{suffix}" for suffix in suffixes)
    save(graph, source)
    convert(source, result, force=True)
    proof = prove(source, result)
    assert {item.class_ for item in proof.operators} == {"A"} and not proof.equal_for_all_inputs
    return [item.why for item in proof.operators]


def test_a_bound_names_the_terms_of_a_sum(tmp_path: Path) -> None:
    weights = np.ones((4, 8, 2, 3), np.float32)
    graph = make_graph("Conv", ((1, 8, 5, 6),), weights, **_WINDOW, data_format="channels_first")
    assert bounds(graph, tmp_path) == ["its results differ by at most 1.2e-05 of the sum of the magnitudes of its 48 terms"]


def test_an_addition_that_a_runtime_may_join_with_a_product_has_the_terms_of_both(tmp_path: Path) -> None:
    product = make_graph("Gemm", ((2, 30),), np.ones((4, 30), np.float32))
    tensors = [*product.tensors.values(), *(Tensor(name, "float32", (2, 4)) for name in ("u", "z"))]
    graph = product.evolve(tensors=tensors, ops=(*product.ops, Op("Add", ("y", "u"), ("z",))), inputs=("x0", "u"), outputs=("z",))
    assert [re.findall(r"its (\d+) terms", text) for text in bounds(graph, tmp_path)] == [["30"], ["31"]]


def test_data_next_to_integer_weights_may_be_rounded_as_onnxruntime_does(tmp_path: Path) -> None:
    """It makes a MatMulNBits of the product, which rounds the data: far more than the order of a sum explains."""
    rng = np.random.default_rng(0)
    data, quantization = quantize_weights(rng.normal(size=(64, 16)), 1)
    graph = make_graph("MatMul", ((4, 64),), data, quantization=quantization)
    (text,) = bounds(graph, tmp_path)
    assert text.endswith("its data, which may be rounded at run time, by 1/127 of their range")
    feeds = {"x0": rng.normal(size=(4, 64)).astype(np.float32)}
    outputs = [run(tmp_path / name, feeds)["y"] for name in ("m.onnx", "m.tflite")]
    plain = Proved("MatMul", "y", "A", "error bound", text.partition(", its data")[0])
    assert measure(graph, plain, feeds, (outputs[0], outputs[1])) > 10
    assert measure(graph, replace(plain, why=text), feeds, (outputs[0], outputs[1])) < 1


def test_a_root_is_not_rounded_once_in_litert(tmp_path: Path) -> None:
    graph = make_graph("Sqrt", ((1, 4096),))
    assert bounds(graph, tmp_path) == ["its results differ by at most 1.2e-06 of the sum of the magnitudes of its terms"]
    feeds = {"x0": np.random.default_rng(0).uniform(1, 4, (1, 4096)).astype(np.float32)}
    outputs = [run(tmp_path / name, feeds)["y"] for name in ("m.onnx", "m.tflite")]
    assert np.array_equal(outputs[0], np.sqrt(feeds["x0"])) and not np.array_equal(*outputs)


def test_operators_of_one_rounding_are_equal_but_for_the_smallest_numbers(tmp_path: Path) -> None:
    assert bounds(make_graph("Relu", ((1, 64),)), tmp_path) == ["its results are equal, but that numbers below 2^-126 may count as zero"]


@pytest.mark.parametrize("kind", ["MaxPool", "ReduceMax", "ReduceMin"])
def test_the_largest_of_the_smallest_floats_is_zero_in_litert(kind: str, tmp_path: Path) -> None:
    window = {**_WINDOW, "kernel_shape": (2, 2), "data_format": "channels_first"}
    del window["group"]
    graph = (
        make_graph(kind, ((1, 4, 6, 6),), **window)
        if kind == "MaxPool"
        else make_graph(kind, ((1, 4, 6, 6),), np.array([2, 3]), keepdims=1)
    )
    assert bounds(graph, tmp_path) == ["its results are equal, but that numbers below 2^-126 may count as zero"]
    feeds = {"x0": np.full((1, 4, 6, 6), -1e-40 if kind != "ReduceMin" else 1e-40, np.float32)}
    outputs = [run(tmp_path / name, feeds)["y"] for name in ("m.onnx", "m.tflite")]
    assert outputs[0].all() and not outputs[1].any()


def test_a_function_in_float_has_no_bound(tmp_path: Path) -> None:
    save(make_graph("Tanh", ((1, 8),)), tmp_path / "m.onnx")
    convert(tmp_path / "m.onnx", tmp_path / "m.tflite", force=True)
    assert [item.class_ for item in prove(tmp_path / "m.onnx", tmp_path / "m.tflite").operators] == ["?"]


def test_a_transposed_matrix_has_as_many_terms_as_rows() -> None:
    assert [count_terms(Op("MatMul", ("a", "b"), ("y",), {"trans_a": turned}), ((3, 50), None), None) for turned in (0, 1)] == [50, 3]


def test_only_integers_differ_by_at_most_one_step() -> None:
    for method, text in (("tolerances", "; each of the others differs by at most one step"), ("error bound", "")):
        proof = Proof((Proved("Conv", "y", "A", method),), (), (), (), False, False)
        assert proof.sentence == f"proved: 0 of 1 operator equal for all inputs (1 A){text}"
