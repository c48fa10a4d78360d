"""Kinds that PyTorch has no operator for, or several: each program gives what the kind means, and is read as the one operator again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from edge_graphs import joined
from formats.torch.written import needs_torch, run
from refusals import refused

import qconvert
from qconvert.errors import UnsupportedError
from qconvert.evaluate import evaluate, evaluate_op
from qconvert.formats.torch.writer import build, live
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, canonical_dtype
from qconvert.operators import KINDS
from qconvert.operators.formulas import FORMULAS
from qconvert.plugins import operators

pytestmark = needs_torch
_RNG = np.random.default_rng(5)
_GRID, _OTHER = Quantization.per_tensor(0.05, 3), Quantization.per_tensor(0.07, -9)


def _real(*shape: int) -> Array:
    return _RNG.normal(size=shape).astype(np.float32)


def _codes(*shape: int) -> Array:
    return _RNG.integers(-128, 128, shape).astype(np.int8)


def _whole(low: int, high: int, *shape: int, dtype: str = "int64") -> Array:
    return _RNG.integers(low, high, shape).astype(dtype)


class Given:
    """An input: its values, whether they are a constant, and a quantization."""

    def __init__(self, data: Any, constant: bool = False, quantization: Quantization | None = None) -> None:
        self.data, self.constant = np.asarray(data), constant
        self.quantization = quantization if quantization is not None or self.data.dtype != np.int8 else _GRID


def const(data: Any, quantization: Quantization | None = None) -> Given:
    return Given(data, True, quantization)


def ints(*values: int) -> Given:
    return const(np.array(values, np.int64))


#: Kind, inputs, attributes, types of the outputs where they are not the first input's.
CASES: list[tuple[str, Sequence[Any], dict[str, Any], Sequence[str]]] = [
    ("GatherND", [_codes(3, 4, 5), Given(_whole(-3, 3, 2, 2))], {}, ()),
    ("GatherND", [_real(2, 4, 5), Given(_whole(-4, 4, 2, 3, 1))], {"batch_dims": 1}, ()),
    ("Gather", [_codes(2, 3, 5, 4), Given(_whole(-5, 5, 2, 6))], {"axis": 2, "batch_dims": 1}, ()),
    ("GatherElements", [_codes(3, 4), Given(_whole(-4, 4, 3, 2))], {"axis": 1}, ()),
    ("ScatterND", [_codes(4, 3), ints(2, 0).data.reshape(2, 1), _codes(2, 3)], {}, ()),
    ("ScatterND", [_codes(4, 3), np.array([[1], [1]]), _codes(2, 3)], {"reduction": "add"}, ()),
    ("ScatterND", [_real(4, 3), np.array([[1, -1], [1, 2]]), _real(2)], {"reduction": "max"}, ()),
    ("ScatterElements", [_codes(3, 3), np.array([[0, 1, -1]]), _codes(1, 3)], {"axis": 0}, ()),
    ("ScatterElements", [_codes(3, 3), np.array([[0, 0, 1]]), _codes(1, 3)], {"axis": 1, "reduction": "add"}, ()),
    ("ScatterElements", [_real(3, 3), np.array([[0, 0, 1]]), _real(1, 3)], {"axis": 1, "reduction": "mul"}, ()),
    ("ReverseSequence", [_codes(4, 3, 2), Given(np.array([4, 1, 2]))], {"time_axis": 0, "batch_axis": 1}, ()),
    ("TensorScatter", [_codes(2, 4, 3), _codes(2, 2, 3), Given(np.array([3, 1]))], {"mode": "circular"}, ()),
    ("TensorScatter", [_real(1, 4, 3), _real(1, 2, 3)], {"axis": 1}, ()),
    ("DynamicUpdateSlice", [_codes(4, 5), _codes(2, 2), Given(np.array([3, 1], np.int32))], {}, ()),
    ("SparseToDense", [np.array([[0, 1], [2, 0]], np.int32), ints(3, 2), _codes(2), const(np.array(7, np.int8))], {}, ("int8",)),
    ("ReduceWindow", [_real(4, 5), const(np.float32(0.5))],
     {"function": "add", "window": (2, 2), "strides": (1, 2), "dilations": (1, 2)}, ()),
    ("StartGather", [_codes(4, 5), np.array([[1], [9]], np.int32)],
     {"offset_dims": (1, 2), "collapsed_dims": (), "start_index_map": (1,), "index_vector_dim": 1, "slice_sizes": (2, 3)}, ()),
    ("SegmentSum", [_real(4, 2), const(np.array([0, 0, 2, 2], np.int32))], {}, ()),
    ("UnsortedSegment", [_whole(-9, 9, 4, 2, dtype="int32"), np.array([2, -1, 0, 2], np.int32), ints(4)], {"reduction": "max"}, ()),
    ("UnsortedSegment", [_real(4, 2), np.array([2, 1, 0, 2], np.int32), ints(3)], {"reduction": "prod"}, ()),
    ("TopK", [np.array([[3, 1, 3, 2], [5, 5, 5, 0]], np.int8), ints(3)], {"axis": 1}, ("int8", "int64")),
    ("TopK", [_real(3, 4), ints(2)], {"axis": 0, "largest": 0}, ("float32", "int32")),
    ("NonZero", [np.array([[3, 0, 4], [3, 3, 1]], np.int8)], {}, ("int64",)),
    ("OneHot", [_whole(-4, 6, 3, 2), ints(5), np.array([0.5, 2], np.float32)], {"axis": 1}, ("float32",)),
    ("OneHot", [_whole(-4, 4, 3), ints(4), np.array([0, 9], np.int32)], {"wraps": 1}, ("int32",)),
    *[(kind, [_whole(-99, 99, 3, 4, dtype="int32"), _whole(-99, 99, 4, dtype="int32")], {}, ())
      for kind in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")],
    *[("BitShift", [_whole(-99, 99, 6, dtype="int32"), np.array([0, 1, 7, 31, 32, 40], np.int32)], {"direction": way}, ())
      for way in ("LEFT", "RIGHT")],
    ("Bitcast", [_real(3, 2)], {"to": "int16", "ratio": 2}, ("int16",)),
    ("Bitcast", [_whole(0, 99, 3, 4, dtype="int16")], {"to": "int64", "ratio": -4}, ("int64",)),
    ("Rank", [_real(3, 2)], {}, ("int32",)),
    ("Range", [const(np.array(2.0, np.float32)), const(np.array(4.0, np.float32)), const(np.array(0.3, np.float32))], {}, ("float32",)),
    ("Trilu", [_real(2, 3, 4), const(np.array(1))], {"upper": 0}, ()),
    ("ZerosLike", [_real(2, 3)], {}, ()),
    ("MatrixDiag", [_real(2, 3)], {}, ()),
    ("MatrixSetDiag", [_codes(2, 3, 4), _codes(2, 3)], {}, ()),
    ("InteriorPad", [_codes(3, 4), const(np.array(9, np.int8))], {"low": (1, -2), "high": (-1, 2), "interior": (1, 2)}, ()),
    ("Bucketize", [_real(7), const(np.array([-0.5, 0.0, 0.5], np.float32))], {}, ("int32",)),
    ("FakeQuant", [_real(3, 4)], {"min": -1.1, "max": 1.3}, ()),
    ("Real", [_real(3, 2)], {}, ()),
    ("Imag", [_real(3, 2)], {}, ()),
    *[(kind, [_codes(2, 3, 4), ints(0, 2)], {"keepdims": 0}, ()) for kind in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd")],
    ("ReduceLogSumExp", [_codes(2, 3, 4), ints(1)], {}, ()),
    ("ReduceMean", [_whole(-9, 9, 3, 4, dtype="int32"), ints(1)], {}, ()),
    ("ReduceSum", [_whole(-9, 9, 3, 4, dtype="int32"), ints()], {"keepdims": 0}, ()),
    ("CumSum", [_codes(2, 5)], {"axis": 1, "exclusive": 1, "reverse": 1}, ()),
    ("CumSum", [_whole(-9, 9, 3, 4, dtype="int32")], {"axis": 0}, ()),
    *[("CumProd", [_real(3, 4)], {"axis": 1, "exclusive": exclusive, "reverse": 1}, ()) for exclusive in (0, 1)],
    ("CumProd", [_whole(-3, 3, 3, 4, dtype="int32")], {"axis": 0}, ()),
    ("Hardmax", [_real(3, 4)], {"axis": 0}, ()),
    ("BitwiseNot", [_whole(-9, 9, 3, 4, dtype="int32")], {}, ()),
    ("Softsign", [_codes(2, 5)], {}, ()),
    ("Shrink", [_codes(2, 5)], {"bias": 0.3, "lambd": 0.7}, ()),
    ("FloorDiv", [_whole(-9, 9, 6, dtype="int32"), _whole(1, 5, 6, dtype="int32")], {}, ()),
    ("LRN", [_codes(1, 5, 2, 3)], {"size": 3, "alpha": 0.1, "data_format": "channels_first"}, ()),
    ("RMSNormalization", [_codes(2, 6), const(_real(6))], {}, ()),
    ("L2Pool", [_codes(1, 2, 5, 5)],
     {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "auto_pad": "SAME_UPPER", "data_format": "channels_first"}, ()),
    ("ConvInteger", [_whole(0, 255, 1, 2, 5, 5, dtype="uint8"), const(_whole(0, 255, 3, 2, 3, 3, dtype="uint8")),
                     const(np.array(7, np.uint8)), const(np.array([1, 2, 3], np.uint8))],
     {"strides": (1, 1), "pads": (1, 0, 1, 2), "dilations": (1, 1), "data_format": "channels_first"}, ("int32",)),
    ("Einsum", [_codes(2, 3, 4), _codes(2, 4, 5)], {"equation": "bij,bjk->bik"}, ()),
    *[("Pad", [_codes(4, 5), ints(2, 1, 3, 4)], {"mode": mode}, ()) for mode in ("symmetric", "wrap", "reflect", "edge")],
    ("Pad", [_codes(4, 5), ints(-1, 1, 2, -2)], {"mode": "edge"}, ()),
    *[("Resize", [_codes(1, 2, 3, 5), ints(7, 4)],
       {"mode": mode, "coordinate_transformation_mode": places, "nearest_mode": nearest, "data_format": "channels_first"}, ())
      for mode, nearest in (("linear", "floor"), ("nearest", "ceil"), ("nearest", "round_prefer_floor"))
      for places in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")],
]  # fmt: skip


_DETECTION = {
    "max_detections": 4, "num_classes": 2, "nms_score_threshold": 0.1, "nms_iou_threshold": 0.5, "y_scale": 10.0, "x_scale": 10.0,
    "h_scale": 5.0, "w_scale": 5.0,
}  # fmt: skip
for _classes in (1, 2):
    _boxes = [_real(1, 9, 4), _RNG.uniform(0, 1, (1, 9, 3)).astype(np.float32), _RNG.uniform(0.2, 0.8, (9, 4)).astype(np.float32)]
    CASES.append(("DetectionPostProcess", _boxes, {**_DETECTION, "max_classes_per_detection": _classes}, ("float32",) * 4))

_IN_GROUPS: Any = (  # weights that are computed at run time, which other operators bring to PyTorch's order
    ("ConvTranspose", [_real(1, 4, 5, 4), _real(6, 2, 3, 2)],
     {"group": 2, "strides": (2, 1), "pads": (0,) * 4, "dilations": (1, 1), "output_padding": (0, 0), "data_format": "channels_first"}, ())
)  # fmt: skip
CASES.append(_IN_GROUPS)


def _graph(case: tuple[str, Sequence[Any], dict[str, Any], Sequence[str]]) -> tuple[Graph, dict[str, Array]]:
    """The graph of one operator, and values of its inputs. Results of real kinds have a quantization of their own."""
    kind, values, attributes, types = case
    given = [value if isinstance(value, Given) else Given(value) for value in values]
    tensors = {
        f"i{place}": Tensor(
            f"i{place}", canonical_dtype(item.data.dtype), item.data.shape, item.data if item.constant else None, item.quantization
        )
        for place, item in enumerate(given)
    }
    first = tensors["i0"]
    rule, names = KINDS[kind].rule, [f"o{place}" for place in range(max(len(types), 1))]
    op = Op(kind, tuple(tensors), tuple(names), attributes)
    for name, dtype in zip(names, types or (first.dtype,), strict=True):
        quantization = None if dtype != "int8" else _OTHER if rule == "real" else _GRID
        tensors[name] = Tensor(name, dtype, None, None, quantization)
    inputs = {f"i{place}": item.data for place, item in enumerate(given) if not item.constant}
    results = evaluate_op(Graph("", tensors, (op,), tuple(inputs), tuple(names)), op, [item.data for item in given])
    for name, result in zip(names, results, strict=True):
        shape: tuple[int | str, ...] = result.stored.shape if kind != "NonZero" else (result.stored.shape[0], "?")
        tensors[name] = Tensor(name, tensors[name].dtype, shape, None, tensors[name].quantization)
    return Graph(kind, tensors, (op,), tuple(inputs), tuple(names)), inputs


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0] if isinstance(case, tuple) else None)
def test_a_kind_means_what_it_means(case: Any) -> None:
    graph, feed = _graph(case)
    expected, found = evaluate(graph, feed), run(live(graph), graph, feed)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype and found[name].shape == values.shape
        if values.dtype.kind == "f":
            assert np.allclose(found[name], values, rtol=1e-6, atol=1e-6)
        else:
            assert np.array_equal(found[name], values)


@pytest.mark.torch
def test_data_without_a_range_have_the_scale_1() -> None:
    """As onnxruntime has it: PyTorch's program had a scale of 0."""
    data = np.zeros((2, 3), np.float32)
    graph, feed = _graph(("DynamicQuantizeLinear", [data], {}, ("uint8", "float32", "uint8")))
    found = run(live(graph), graph, feed)
    assert found["o1"] == np.float32(1) and found["o2"] == 0 and not found["o0"].any()


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["Trilu", "MatrixDiag", "ZerosLike"])
def test_sizes_may_be_known_at_run_time_alone(kind: str) -> None:
    tensors = [Tensor("x", "float32", ("rows", "columns")), Tensor("y", "float32", None)]
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (Op(kind, ("x",), ("y",)),), ("x",), ("y",))
    feed = {"x": _real(3, 4)}
    assert np.array_equal(run(live(graph), graph, feed)["y"], evaluate(graph, feed)["y"])


@pytest.mark.torch
def test_all_are_read_as_they_were(tmp_path: Any) -> None:
    graph = joined(
        [graph for graph, _ in map(_graph, (case for case in CASES if case is not _IN_GROUPS)) if graph.name != "NonZero" and graph.inputs]
    )
    qconvert.save(graph, tmp_path / "model.pt2")
    assert qconvert.diff(graph, qconvert.load(tmp_path / "model.pt2")) == []


@pytest.mark.torch
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_plain_numbers_of_quantized_values_are_put_among_others(reduction: str, tmp_path: Any) -> None:
    """As SCATTER_ND of TFLite adds stored integers: a program has no call that says that they are plain numbers."""
    tensors = [
        Tensor("x", "float32", (2, 3)), Tensor("q", "int8", (2, 3), quantization=_GRID), Tensor("plain", "int8", (2, 3)),
        Tensor("zeros", "int8", (4, 3), np.zeros((4, 3), np.int8)), Tensor("places", "int64", (2, 1), np.array([[1], [1]])),
        Tensor("sums", "int8", (4, 3)), Tensor("s", "int8", (4, 3), quantization=_GRID), Tensor("y", "float32", (4, 3)),
    ]  # fmt: skip
    ops = (
        Op("Quantize", ("x",), ("q",)),
        Op("Reinterpret", ("q",), ("plain",)),
        Op("ScatterND", ("zeros", "places", "plain"), ("sums",), {"reduction": reduction}),
        Op("Reinterpret", ("sums",), ("s",)),
        Op("Dequantize", ("s",), ("y",)),
    )
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",))
    qconvert.save(graph, tmp_path / "model.pt2")
    feed = {"x": _real(2, 3)}
    assert np.array_equal(evaluate(qconvert.load(tmp_path / "model.pt2"), feed)["y"], evaluate(graph, feed)["y"])


def test_what_has_no_form_is_known() -> None:
    """Results whose sizes depend on values, loops over boxes, states, functions, recurrences of TFLite, and what nobody knows."""
    lowered = {kind for kind, items in FORMULAS.items() if any(item.is_emitted for item in items)}
    missing = set(KINDS) - set(operators("torch", "write")) - lowered
    assert missing <= {
        "Opaque",
        "ReadState",
        "WriteState",
        "If",
        "Loop",
        "Scan",
        "Call",
        "While",
        "IntegerLSTM",
        "IntegerSVDF",
        "BasicLSTM",
        "Unique",
        "NonMaxSuppression",
        "SelectBoxes",
        "DetectionPostProcess",
    }


def test_custom_operators_are_named() -> None:
    custom = Op("Opaque", ("x",), ("y",), {"format": "tflite", "domain": "tflite.custom", "op_type": "Foo", "version": 1})
    tensors = {name: Tensor(name, "float32", (2,)) for name in "xy"}
    with refused(UnsupportedError, "operators-not-writable", holds=("tflite.custom.Foo (1)",)) as error:
        build(Graph("g", tensors, (custom,), ("x",), ("y",)))
    assert "plugin" in error.value.remedy


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["Gemm", "Conv", "ConvTranspose"])
@pytest.mark.parametrize("rounding", KINDS["Gemm"].attributes["arithmetic"].choices[1:])
def test_data_are_rounded_when_the_program_runs(rounding: str, kind: str, tmp_path: Any) -> None:
    """As the kernel does that the operator names, also for data of one sign, and of zeros."""
    spatial = () if kind == "Gemm" else (5, 5)
    quantization = Quantization.per_axis([0.01, 0.02, 0.03], 0)
    window = {"strides": (1, 1), "pads": (1, 0, 1, 1), "dilations": (1, 1), "data_format": "channels_first"} if spatial else {}
    result = {"Gemm": (3, 3), "Conv": (3, 3, 5, 4), "ConvTranspose": (3, 3, 5, 6)}[kind]
    tensors = [
        Tensor("x", "float32", (3, 4, *spatial)),
        Tensor("w", "int8", (3, 4, *[3] * len(spatial)), _codes(3, 4, *[3] * len(spatial)), quantization),
        Tensor("b", "float32", (3,), _real(3)), Tensor("y", "float32", result),
    ]  # fmt: skip
    op = Op(kind, ("x", "w", "b"), ("y",), {"arithmetic": rounding, **window})
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",))
    x = _real(3, 4, *spatial)
    x[0], x[1] = np.abs(x[0]), 0
    for feed in ({"x": x}, {"x": -np.abs(x)}, {"x": np.zeros_like(x)}):
        assert np.array_equal(run(live(graph), graph, feed)["y"], evaluate(graph, feed)["y"])
    qconvert.save(graph, tmp_path / "model.pt2")
    assert qconvert.diff(graph, qconvert.load(tmp_path / "model.pt2")) == []


@pytest.mark.torch
@pytest.mark.cross_section
@pytest.mark.parametrize("kind", ["Gemm", "MatMul"])
def test_scales_in_blocks(kind: str, tmp_path: Any) -> None:
    """Groups of rows have an operator; blocks along another axis are decomposed."""
    shape, axis = ((4, 6), 1) if kind == "Gemm" else ((6, 4), 0)
    blocks = tuple(size // 3 if place == axis else size for place, size in enumerate(shape))
    quantization = Quantization(_RNG.uniform(0.01, 0.1, blocks).astype(np.float32), _whole(-4, 4, *blocks), axis, 3)
    tensors = [Tensor("x", "float32", (2, 6)), Tensor("w", "int8", shape, _codes(*shape), quantization), Tensor("y", "float32", (2, 4))]
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (Op(kind, ("x", "w"), ("y",)),), ("x",), ("y",))
    feed = {"x": _real(2, 6)}
    assert np.allclose(run(live(graph), graph, feed)["y"], evaluate(graph, feed)["y"], rtol=1e-6, atol=1e-6)
    qconvert.save(graph, tmp_path / "model.pt2")
    found = qconvert.load(tmp_path / "model.pt2")
    assert np.allclose(evaluate(found, feed)["y"], evaluate(graph, feed)["y"], rtol=1e-6, atol=1e-6)
    if kind == "Gemm":
        (product,) = [op for op in found.ops if op.kind == "Gemm"]
        made = found.producers().get(product.inputs[1])
        weights = found[product.inputs[1] if made is None else made.inputs[0]]
        assert weights.quantization == quantization and np.array_equal(weights.data, graph["w"].data)


@pytest.mark.torch
def test_layers_are_normalized_over_open_sizes() -> None:
    tensors = [Tensor("x", "float32", (2, "n")), Tensor("w", "float32", (1,), np.array([2], np.float32)), Tensor("y", "float32", (2, "n"))]
    op = Op("LayerNormalization", ("x", "w"), ("y",), {"axis": 1})
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",))
    feed = {"x": _real(2, 5)}
    assert np.allclose(run(live(graph), graph, feed)["y"], evaluate(graph, feed)["y"], atol=1e-6)


def test_products_of_quantized_values_are_refused() -> None:
    graph, _ = _graph(("ScatterND", [_codes(4, 3), np.array([[1]]), _codes(1, 3)], {}, ()))
    changed = graph.evolve(ops=[graph.ops[0].with_attributes(reduction="mul")])
    with refused(UnsupportedError, "quantized-data"):
        build(changed)


@pytest.mark.torch
@pytest.mark.parametrize(("mode", "sizes"), [("nearest", (6, 8)), ("nearest", (7, 9)), ("linear", (7, 9))])
def test_a_resize_is_one_of_the_core_operators(mode: str, sizes: tuple[int, int]) -> None:
    """ExecuTorch takes those of torch.Tag.core alone: the overloads with lists of sizes, not those with a factor for each axis."""
    import torch

    tensors = [
        Tensor("x", "float32", (1, 2, 3, 4)),
        Tensor("sizes", "int64", (2,), np.array(sizes)),
        Tensor("y", "float32", (1, 2, *sizes)),
    ]
    places = {"coordinate_transformation_mode": "asymmetric" if mode == "nearest" else "half_pixel", "nearest_mode": "floor"}
    attributes = {"mode": mode, "data_format": "channels_first", **places}
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (Op("Resize", ("x", "sizes"), ("y",), attributes),), ("x",), ("y",))
    program = live(graph)
    called = [node.target for node in program.graph.nodes if node.op == "call_function" and "upsample" in str(node.target)]
    assert len(called) == 1 and torch.Tag.core in called[0].tags
    feed = {"x": _real(1, 2, 3, 4)}
    assert np.allclose(run(program, graph, feed)["y"], evaluate(graph, feed)["y"], atol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("nearest_mode", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_twice_as_many_elements_are_not_each_repeated_twice_where_places_are_not_rounded(nearest_mode: str) -> None:
    """The middle of an element of the result lies a quarter before or after that of one of the data: `floor` takes the one before."""
    tensors = [Tensor("x", "float32", (1, 2, 3)), Tensor("sizes", "int64", (1,), np.array([6])), Tensor("y", "float32", (1, 2, 6))]
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": nearest_mode}
    op = Op("Resize", ("x", "sizes"), ("y",), {**attributes, "data_format": "channels_first"})
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",))
    feed = {"x": np.array([[[0, 1, 2], [3, 4, 5]]], np.float32)}
    wanted = {"floor": [0, 0, 0, 1, 1, 2], "ceil": [0, 1, 1, 2, 2, 2]}.get(nearest_mode, [0, 0, 1, 1, 2, 2])
    assert run(live(graph), graph, feed)["y"][0, 0].tolist() == wanted


@pytest.mark.torch
def test_constants_without_elements_are_saved(tmp_path: Any) -> None:
    """torch.export.save() fails on an empty tensor of numpy's, whose storage has an address and no bytes."""
    x, y = (Tensor(name, "float32", (2, 3)) for name in "xy")
    none = Tensor("none", "float32", (0, 3), np.zeros((0, 3), np.float32))
    graph = Graph("empty", {t.name: t for t in (x, none, y)}, (Op("Concat", ("x", "none"), ("y",), {"axis": 0}),), ("x",), ("y",))
    qconvert.save(graph, tmp_path / "model.pt2")
    assert qconvert.diff(graph, qconvert.load(tmp_path / "model.pt2")) == []
