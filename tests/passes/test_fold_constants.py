"""fold_constants: chains on constants disappear; what is not sure, large, or keeps weights small stays."""

from __future__ import annotations

import numpy as np
import pytest
from passes.graphs import applied, assert_equal, constant, make, q

from qconvert import Op, Tensor
from qconvert.evaluate.folding import LARGEST

X = Tensor("x", "float32", (2, 3))
FEEDS = {"x": np.float32([[1, -2, 3], [4, -5, 6]])}


@pytest.mark.onnxruntime
def test_a_shape_computation_becomes_a_constant() -> None:
    """Reshape(x, Concat(Slice(Shape(x)), [-1])), as torch.onnx writes a flatten."""
    tensors = [X, *(constant(n, np.array([v], np.int64)) for n, v in (("zero", 0), ("one", 1), ("rest", -1)))]
    tensors += [Tensor(n, "int64", None) for n in ("shape", "first", "sizes")]
    ops = [
        Op("Shape", ("x",), ("shape",)),
        Op("Slice", ("shape", "zero", "one", "zero"), ("first",)),
        Op("Concat", ("first", "rest"), ("sizes",), {"axis": 0}),
        Op("Reshape", ("x", "sizes"), ("y",)),
    ]
    graph = make(ops, tensors, "x", "y")
    changed, notes = applied(graph, "fold_constants")
    assert [op.kind for op in changed.ops] == ["Reshape"]
    assert changed["sizes"].data is not None and changed["sizes"].data.tolist() == [2, -1]
    assert notes == ("3 operators on constants are replaced by their results (1 Concat, 1 Shape, 1 Slice)",)
    assert_equal(graph, changed, FEEDS)


def test_sizes_that_no_open_size_changes_become_constants() -> None:
    """Slice(Concat(Slice(Shape(x)), [9, 5])), as a Resize by sizes has it: the kernels that resize by a constant are others."""
    numbers = {"zero": [0], "two": [2], "four": [4], "wanted": [9, 5]}
    tensors = [Tensor("x", "float32", ("batch", 3, 4, 4)), *(constant(n, np.array(v, np.int64)) for n, v in numbers.items())]
    tensors += [Tensor(n, "int64", None) for n in ("shape", "first", "sizes", "spatial", "z")]
    ops = [
        Op("Shape", ("x",), ("shape",)),
        Op("Slice", ("shape", "zero", "two", "zero"), ("first",)),
        Op("Concat", ("first", "wanted"), ("sizes",), {"axis": 0}),
        Op("Slice", ("sizes", "two", "four", "zero"), ("spatial",)),
        Op(
            "Resize",
            ("x", "spatial"),
            ("y",),
            {"mode": "linear", "coordinate_transformation_mode": "half_pixel", "data_format": "channels_first"},
        ),
        Op("Add", ("sizes", "sizes"), ("z",)),
    ]
    graph = make(ops, tensors, "x", "y z")
    changed, _ = applied(graph, "fold_constants")
    assert [op.kind for op in changed.ops] == ["Shape", "Slice", "Concat", "Resize", "Add"]
    assert changed["spatial"].data is not None and changed["spatial"].data.tolist() == [9, 5]


@pytest.mark.onnxruntime
def test_floats_have_the_bits_of_the_runtime() -> None:
    rng = np.random.default_rng(1)
    a, b = (constant(n, rng.normal(0, 1, (2, 3)).astype(np.float32)) for n in "ab")
    ops = [
        Op("Div", ("a", "b"), ("c",)),
        Op("Abs", ("c",), ("d",)),
        Op("Sqrt", ("d",), ("e",)),
        Op("Mul", ("x", "e"), ("y",)),
        Op("Exp", ("e",), ("f",)),
        Op("Add", ("y", "f"), ("z",)),
    ]
    graph = make(ops, [X, a, b], "x", "z")
    changed, _ = applied(graph, "fold_constants")
    assert [op.kind for op in changed.ops] == ["Mul", "Exp", "Add"]
    assert_equal(graph, changed, FEEDS)


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_weights_quantized_from_floats_become_integers() -> None:
    weights = np.random.default_rng(2).normal(0, 1, (4, 3)).astype(np.float32)
    tensors = [X, constant("float", weights), Tensor("w", "int8", (4, 3), None, q(0.02)), Tensor("t", "int8", (3, 4), None, q(0.02))]
    ops = [
        Op("Quantize", ("float",), ("w",)),
        Op("Transpose", ("w",), ("t",), {"perm": (1, 0)}),
        Op("Dequantize", ("t",), ("real",)),
        Op("MatMul", ("x", "real"), ("y",)),
    ]
    graph = make(ops, tensors, "x", "y")
    changed, _ = applied(graph, "fold_constants")
    assert [op.kind for op in changed.ops] == ["Dequantize", "MatMul"]  # the weights stay in 8 bits
    assert changed["t"].data is not None and changed["t"].data.dtype == np.int8
    assert_equal(graph, changed, FEEDS)


@pytest.mark.onnxruntime
def test_a_constant_that_is_requantized_is_folded_whole() -> None:
    """Dequantize -> Transpose -> Quantize of constants: the numbers between them are not kept."""
    tensors = [
        constant("w", np.int8([[1, -7, 100]]), q(0.5)),
        Tensor("v", "int8", (3, 1), None, q(0.25, 3)),
        Tensor("x", "float32", (3, 1)),
    ]
    ops = [
        Op("Dequantize", ("w",), ("real",)),
        Op("Transpose", ("real",), ("turned",), {"perm": (1, 0)}),
        Op("Quantize", ("turned",), ("v",)),
        Op("Dequantize", ("v",), ("again",)),
        Op("Add", ("x", "again"), ("y",)),
    ]
    graph = make(ops, tensors, "x", "y")
    changed, _ = applied(graph, "fold_constants")
    assert [op.kind for op in changed.ops] == ["Dequantize", "Add"]
    assert changed["v"].data is not None and changed["v"].data.tolist() == [[5], [-11], [127]]
    assert_equal(graph, changed, {"x": np.float32([[1], [2], [3]])})


def test_graph_outputs_and_large_results_stay() -> None:
    tensors = [constant("c", np.float32([1])), constant("big", np.array([2**20], np.int64)), X]
    ops = [Op("Neg", ("c",), ("y",)), Op("Expand", ("c", "big"), ("wide",)), Op("Abs", ("wide",), ("z",))]
    graph = make(ops, tensors, "", "y z")
    changed, notes = applied(graph, "fold_constants")
    assert changed is graph and notes == ()


def test_many_operators_cannot_make_more_than_a_budget() -> None:
    """Each doubles what the one before it gives: 26 of them and 20 copies would make 1 GiB."""
    ops = [Op("Concat", (f"c{i}", f"c{i}"), (f"c{i + 1}",), {"axis": 0}) for i in range(26)]
    branches = [Op("Neg", ("c23",), (f"n{i}",)) for i in range(20)]
    adds = [Op("Add", ("x", "c26"), ("y",)), *(Op("Add", ("x", f"n{i}"), (f"y{i}",)) for i in range(20))]
    tensors = [constant("c0", np.float32([1])), Tensor("x", "float32", (1,))]
    graph = make([*ops, *branches, *adds], tensors, "x", " ".join(["y", *(f"y{i}" for i in range(20))]))
    changed, _ = applied(graph, "fold_constants")
    assert sum(tensor.data.nbytes for tensor in changed.constants() if tensor.data is not None) <= LARGEST
    assert {"Concat", "Neg", "Add"} == {op.kind for op in changed.ops}


@pytest.mark.parametrize(("rows", "is_folded"), [([[0], [2]], True), ([[0], [-1]], True), ([[1], [1]], False), ([[-1], [2]], False)])
@pytest.mark.parametrize("kind", ["ScatterND", "ScatterElements"])
def test_writes_to_different_places_are_folded(kind: str, rows: list[list[int]], is_folded: bool) -> None:
    data, updates = np.zeros((3, 1), np.float32), np.array([[5.0], [7.0]], np.float32)
    tensors = [constant("d", data), constant("i", np.array(rows, np.int64)), constant("u", updates), Tensor("x", "float32", (3, 1))]
    graph = make([Op(kind, ("d", "i", "u"), ("s",)), Op("Add", ("x", "s"), ("y",))], tensors, "x", "y")
    changed, _ = applied(graph, "fold_constants")
    assert [op.kind for op in changed.ops] == (["Add"] if is_folded else [kind, "Add"])
    if is_folded:
        wanted = data.copy()
        wanted[np.array(rows)[:, 0]] = updates
        assert np.array_equal(changed.constant(changed.ops[0].inputs[1]), wanted)


def test_elements_gathered_of_constants_are_folded() -> None:
    tensors = [
        constant("d", np.arange(6, dtype=np.float32).reshape(2, 3)),
        constant("i", np.array([[2, -1], [0, 1]])),
        Tensor("x", "float32", (2, 2)),
    ]
    graph = make([Op("GatherElements", ("d", "i"), ("s",), {"axis": 1}), Op("Add", ("x", "s"), ("y",))], tensors, "x", "y")
    changed, _ = applied(graph, "fold_constants")
    assert changed.constant(changed.ops[0].inputs[1]).tolist() == [[2, 2], [3, 4]]  # type: ignore[union-attr]
