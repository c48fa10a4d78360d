"""Operators that a target's runtime has no kernel for, composed of those that it has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qconvert.conversion import load, normalize
from qconvert.evaluate import evaluate
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.kernels import Kernel, Kernels
from qconvert.operators.values import FAR
from qconvert.passes.missing_operators import lower_missing
from qconvert.plugins import Accelerator, Target, target_named
from qconvert.rules.validation import validate

FIXTURES = Path(__file__).parents[2] / "fixtures"
MICRO = target_named("tflite-micro")


def graph_of(kind: str, *inputs: Tensor, dtype: str, **attributes: object) -> Graph:
    from qconvert.operators.shapes_and_functions import infer

    quantization = Quantization.per_tensor(0.1, 3) if dtype == "int8" else None
    tensors = [*inputs, Tensor("y", dtype, None, None, quantization)]
    op = Op(kind, tuple(tensor.name for tensor in inputs), ("y",), attributes)
    return infer(Graph("one", {tensor.name: tensor for tensor in tensors}, (op,), tuple(t.name for t in inputs if t.data is None), ("y",)))


BYTES = Tensor("x", "int8", (2, 3), None, Quantization.per_tensor(0.1, 3))
NUMBERS = Tensor("x", "float32", (2, 3))
REPEATS = Tensor("r", "int64", (2,), np.array([2, 3]))
CHOICE = (Tensor("c", "bool", (2, 3)), *(Tensor(name, "int32", (2, 3)) for name in "ab"))


@pytest.mark.parametrize(
    ("graph", "kinds"),
    [
        (graph_of("Tile", BYTES, REPEATS, dtype="int8"), ["Concat", "Concat"]),
        (graph_of("Tile", NUMBERS, Tensor("r", "int64", (2,), np.array([25, 1])), dtype="float32"), ["Concat"] * 3),
        (graph_of("Tile", Tensor("x", "bool", (2, 3)), REPEATS, dtype="bool"), ["Concat", "Concat"]),
        (graph_of("Concat", *(replace(NUMBERS, name=f"x{place}") for place in range(11)), dtype="float32", axis=0), ["Concat"] * 2),
        (graph_of("Sinh", NUMBERS, dtype="float32"),
         ["Abs", "Greater", "Cast", "Less", "Cast", "Sub", "Mul", "Elu", "Exp", "Mul", "Mul", "Mul"]),
        (graph_of("Where", *CHOICE, dtype="int32"), ["Cast", "Mul", "Sub", "Mul", "Add"]),
        (graph_of("HardSigmoid", NUMBERS, dtype="float32", alpha=0.2, beta=0.5), ["Mul", "Add", "Max", "Min"]),
        (graph_of("Pow", NUMBERS, Tensor("e", "float32", (), np.float32(3)), dtype="float32"), ["Mul", "Mul"]),
        (graph_of("Mod", NUMBERS, Tensor("z", "float32", (2, 3)), dtype="float32"),
         ["Abs", "Abs", "FloorMod", "Greater", "Cast", "Less", "Cast", "Sub", "Mul"]),
    ],
)  # fmt: skip
def test_what_is_composed_computes_the_same(graph: Graph, kinds: list[str]) -> None:
    found, notes = lower_missing(graph, MICRO)
    assert [op.kind for op in found.ops] == kinds
    assert notes == (f"composed of operators that tflite-micro has: 1 {graph.ops[0].kind}",)
    validate(found)
    rng = np.random.default_rng(3)

    def values(tensor: Tensor) -> Array:
        if tensor.dtype == "float32":
            return rng.normal(0, 3, (2, 3)).astype(np.float32)
        return rng.integers(*((0, 2) if tensor.dtype == "bool" else (-99, 99)), (2, 3)).astype(tensor.dtype)

    feed = {name: values(graph[name]) for name in graph.inputs}
    np.testing.assert_allclose(evaluate(found, feed)["y"], evaluate(graph, feed)["y"], rtol=1e-5)
    assert {verdict.runs for _, verdict in MICRO.verdicts(found)} <= {"integers", "floats"}
    assert lower_missing(graph, target_named("tflite"))[0] is graph
    assert lower_missing(found, MICRO)[0] is found


@pytest.mark.parametrize(("missing", "kinds"), [(("Mish",), ["Softplus", "Tanh", "Mul"]), (("Mish", "Softplus"), [])])
def test_what_a_row_says_has_no_kernel_is_composed(missing: tuple[str, ...], kinds: list[str]) -> None:
    chip = Target("chip", "qgraph", "a chip", kernels=Kernels((Kernel(missing, runs="nothing"), Kernel(runs="float"))))
    graph = graph_of("Mish", NUMBERS, dtype="float32")
    found, _ = lower_missing(graph, chip)
    assert not {op.kind for op in found.ops} & {*missing}
    assert not kinds or [op.kind for op in found.ops] == kinds
    feed = {"x": np.linspace(-4, 4, 6, dtype=np.float32).reshape(2, 3)}
    np.testing.assert_allclose(evaluate(found, feed)["y"], evaluate(graph, feed)["y"], rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 2, 3, 2, 3, 4), (2, 3, 2, 3, 4, 5), ("n", 1, 3, 2, 2, 3)])
def test_a_transpose_of_too_many_axes_is_one_of_fewer(shape: tuple[int | str, ...]) -> None:
    graph = graph_of("Transpose", replace(BYTES, shape=shape), dtype="int8", perm=(0, 3, 1, 2, 4, 5))
    found, _ = lower_missing(graph, MICRO)
    assert [op.kind for op in found.ops] == ["Reshape", "Transpose", "Reshape"] and found["y"] == graph["y"]
    x = np.random.default_rng(3).integers(-128, 128, [size if isinstance(size, int) else 2 for size in shape]).astype(np.int8)
    np.testing.assert_array_equal(evaluate(found, {"x": x})["y"], x.transpose(0, 3, 1, 2, 4, 5))


@pytest.mark.parametrize("size", [3, "n"])
def test_a_slice_of_too_many_axes_is_one_of_fewer(size: int | str) -> None:
    bounds = [
        Tensor(name, "int64", (3,), np.array(data))
        for name, data in zip("seaz", ([1, 0, -1], [2, FAR, -9], [1, 2, -1], [1, 1, -2]), strict=True)
    ]
    graph = graph_of("Slice", replace(BYTES, shape=(size, 3, 2, 3, 4)), *bounds, dtype="int8")
    found, _ = lower_missing(graph, MICRO)
    assert [op.kind for op in found.ops] == ["Reshape", "Slice", "Reshape"] and found["y"] == graph["y"]
    x = np.random.default_rng(3).integers(-128, 128, (3, 3, 2, 3, 4)).astype(np.int8)
    np.testing.assert_array_equal(evaluate(found, {"x": x})["y"], x[:, 1:2, :, :, ::-2])


@pytest.mark.parametrize(
    "graph",
    [
        graph_of("Transpose", replace(BYTES, shape=(2, 3, 2, 3, 4, 5)), dtype="int8", perm=(5, 4, 3, 2, 1, 0)),
        graph_of("Tile", BYTES, Tensor("r", "int64", (2,)), dtype="int8"),
        graph_of("Pow", NUMBERS, Tensor("e", "float32", (1, 1, 1), np.full((1, 1, 1), 3, np.float32)), dtype="float32"),
    ],
)
def test_what_has_no_formula_for_its_operands_stays(graph: Graph) -> None:
    assert lower_missing(graph, MICRO)[0].ops == graph.ops


def test_constants_that_the_runtime_cannot_dequantize_are_float() -> None:
    weights = Tensor("w", "int8", (2, 3), np.arange(6, dtype=np.int8).reshape(2, 3), Quantization.per_axis([0.5, 2.0], 0))
    tensors = (weights, replace(NUMBERS, name="real"), NUMBERS, replace(NUMBERS, name="y"))
    ops = (Op("Dequantize", ("w",), ("real",)), Op("Mul", ("x", "real"), ("y",)))
    graph = Graph("one", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",))
    found, notes = lower_missing(graph, MICRO)
    assert [op.kind for op in found.ops] == ["Mul"] and notes
    assert found["real"].data.tolist() == [[0, 0.5, 1], [6, 8, 10]]  # type: ignore[union-attr]
    single = graph.evolve(tensors=[replace(weights, quantization=Quantization.per_tensor(0.5))])
    assert lower_missing(single, MICRO)[0].ops == ops


def test_functions_are_lowered_and_keep_the_choices_in_them() -> None:
    tile = graph_of("Tile", NUMBERS, REPEATS, dtype="float32")
    tensors = {"c": Tensor("c", "bool", ()), "x": NUMBERS, "y": tile["y"]}

    def choose(name: str, **functions: Graph) -> Graph:
        op = Op("If", ("c", "x"), ("y",), {"then_branch": name, "else_branch": "tile"})
        return Graph("one", tensors, (op,), ("c", "x"), ("y",), functions=functions)

    graph = choose("inner", tile=tile, inner=choose("tile"))
    found, notes = lower_missing(graph, MICRO)
    assert {name: [op.kind for op in item.ops] for name, item in found.functions.items()} == {"tile": ["Concat"] * 2, "inner": ["If"]}
    assert found.ops == graph.ops and notes == ("composed of operators that tflite-micro has: 1 Tile",)


def test_an_accelerator_keeps_what_it_runs() -> None:
    graph = graph_of("Tile", BYTES, REPEATS, dtype="int8")
    npu = MICRO.derive(name="npu", accelerator=Accelerator("NPU", lambda graph: lambda op: ""))
    assert lower_missing(graph, npu)[0].ops == graph.ops


@pytest.mark.tflite_micro
@pytest.mark.litert
def test_a_gelu_of_bytes_is_a_table_on_a_microcontroller() -> None:
    graph, _ = normalize(graph_of("Gelu", BYTES, dtype="int8", approximate="none"), MICRO)
    assert [op.kind for op in graph.ops] == ["Cast", "Add", "Gather"]


@pytest.mark.formats
def test_an_lstm_whose_states_only_its_graph_holds_keeps_its_kernel() -> None:
    graph, _ = normalize(load(FIXTURES / "recurrent" / "lstm_float16.tflite"), MICRO)
    assert [op.kind for op in graph.ops].count("LSTM") == 2


def test_a_target_is_chosen_by_its_name() -> None:
    graph = graph_of("Tile", NUMBERS, REPEATS, dtype="float32")
    assert normalize(graph, "tflite-micro")[0].ops == normalize(graph, MICRO)[0].ops
