"""Shape rules: numbers against numpy and ONNX's own inference, names of sizes, contradictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from qconvert.errors import InvalidGraphError
from qconvert.graph import Graph, Op, Shape, Tensor
from qconvert.operators.shapes_and_functions import infer, output_shapes

WINDOW = {"strides": (1, 1), "pads": (0, 0, 0, 0), "data_format": "channels_last"}


def shapes_of(kind: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> list[Shape | None]:
    """The output shapes of one operator; an input is a shape, None (unknown rank), or an array (a constant)."""
    tensors = {}
    for index, value in enumerate(inputs):
        constant = value if isinstance(value, np.ndarray) else None
        shape = value.shape if isinstance(value, np.ndarray) else value
        tensors[f"i{index}"] = Tensor(f"i{index}", "float32" if constant is None else constant.dtype.name, shape, constant)
    op = Op(kind, tuple(tensors), tuple(f"o{index}" for index in range(outputs)), attributes)
    return output_shapes(tensors, op)


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


LAST = {"data_format": "channels_last"}
FIRST = {"data_format": "channels_first"}
FAR = 2**63 - 1
CASES: list[tuple[str, list[Any], dict[str, Any], list[Any]]] = [
    ("Conv", [(1, 9, 8, 3), (5, 3, 3, 3)], {**WINDOW, "dilations": (1, 1)}, [(1, 7, 6, 5)]),
    ("Conv", [(1, 3, 9, 8), (5, 3, 3, 3)], {**WINDOW, **FIRST, "strides": (2, 2), "pads": (1, 0, 1, 1), "dilations": (1, 2)},
     [(1, 5, 5, 3)]),
    ("Conv", [("n", 9, 8, 4), (8, 2, 3, 3), (8,)], {**WINDOW, "strides": (2, 3), "dilations": (1, 1), "group": 2, "auto_pad": "SAME_UPPER"},
     [("n", 5, 3, 8)]),
    ("Conv", [(1, "h", "w", 4), (8, 4, 3, 3)], {**WINDOW, "pads": (1, 0, 1, 1), "dilations": (1, 1)}, [(1, "h", "?", 8)]),
    ("Conv", [(1, 9, 8, 4), (8, 4, 3, 3)], {**WINDOW, "pads": (1, 1, 1, 1), "auto_pad": "VALID", "dilations": (1, 1)}, [(1, 7, 6, 8)]),
    ("Conv", [(1, 9, 4), (8, 4, 3)], {**LAST, "strides": (1,), "pads": (0, 0), "dilations": (2,)}, [(1, 5, 8)]),
    ("Conv", [None, (8, 4, 3, 3)], {**WINDOW, "dilations": (1, 1)}, [None]),
    ("ConvTranspose", [(1, 4, 4, 3), (2, 3, 3, 3)],
     {**WINDOW, "strides": (2, 2), "dilations": (1, 1), "pads": (0, 0, 1, 0), "output_padding": (0, 1)}, [(1, 8, 10, 2)]),
    ("ConvTranspose", [(1, "h", "w", 3), (2, 3, 3, 3)], {**WINDOW, "strides": (1, 2), "dilations": (2, 1), "pads": (2, 0, 2, 1)},
     [(1, "h", "?", 2)]),
    ("Gemm", [("rows", 4), (7, 4), (7,)], {}, [("rows", 7)]),
    ("MatMul", [(5, 1, 2, 3), (4, 6, 3)], {"trans_b": 1}, [(5, 4, 2, 6)]),
    ("MatMul", [("b", 3, 2), ("b", 3, 6)], {"trans_a": 1}, [("b", 2, 6)]),
    ("AveragePool", [(1, 7, 7, 3)], {**WINDOW, "kernel_shape": (3, 3), "strides": (2, 2)}, [(1, 3, 3, 3)]),
    ("MaxPool", [(1, 3, 7, 8)], {**WINDOW, **FIRST, "kernel_shape": (2, 2), "strides": (2, 2), "auto_pad": "SAME_UPPER"}, [(1, 3, 4, 4)]),
    ("MaxPool", [(1, 9, 9, 3)], {**WINDOW, "kernel_shape": (3, 2), "dilations": (2, 3)}, [(1, 5, 6, 3)]),
    ("AveragePool", [(1, 6, 7, 3)], {**WINDOW, "kernel_shape": (3, 3), "strides": (2, 2), "ceil_mode": 1}, [(1, 3, 3, 3)]),
    ("AveragePool", [(1, "h", 7, 3)], {**WINDOW, "kernel_shape": (3, 3), "strides": (2, 2), "ceil_mode": 1}, [(1, "?", 3, 3)]),
    ("GlobalAveragePool", [("n", "h", 5, 3)], LAST, [("n", 1, 1, 3)]),
    ("GlobalMaxPool", [(2, 3, 4, 5, 6)], FIRST, [(2, 3, 1, 1, 1)]),
    ("GlobalMaxPool", [None], FIRST, [None]),
    ("ConvInteger", [(1, 3, 9, 8), (5, 3, 3, 3), (), (5,)], {**WINDOW, **FIRST, "dilations": (1, 1)}, [(1, 5, 7, 6)]),
    ("MatMulInteger", [("b", 2, 3), (3, 6), (), (6,)], {}, [("b", 2, 6)]),
    ("BatchNormalization", [("n", 3, 4), (3,), (3,), (3,), (3,)], FIRST, [("n", 3, 4)]),
    ("LayerNormalization", [("n", 3, 4), (3, 4)], {"axis": 1}, [("n", 3, 4)]),
    ("GatherElements", [(5, "n"), (2, 3)], {"axis": 1}, [(2, 3)]),
    ("GatherElements", [None, (2, "k")], {}, [(2, "k")]),
    ("ScatterElements", [(5, "n"), (2, 3), (2, 3)], {"axis": -1}, [(5, "n")]),
    ("Einsum", [("b", 2, 3), ("b", 3, 6)], {"equation": "bij,bjk->bik"}, [("b", 2, 6)]),
    ("Einsum", [("n", 3), (1, 3)], {"equation": "ij,ij->ji"}, [(3, "n")]),
    ("Einsum", [(2, 3), (3, 4)], {"equation": "z j, j a"}, [(4, 2)]),
    ("Einsum", [(5, 2, 3), (7, 1, 3, 4)], {"equation": "...ij,...jk->...ik"}, [(7, 5, 2, 4)]),
    ("Einsum", [(2, 3), (3,)], {"equation": "...i,i"}, [(2,)]),
    ("Einsum", [(2, 3), (3,)], {"equation": "ij,j->"}, [()]),
    ("Einsum", [None, (3,)], {"equation": "ij,j->i"}, [None]),
    ("Resize", [(1, 4, 5, 3), ints(8, 9)], {**LAST, "mode": "linear"}, [(1, 8, 9, 3)]),
    ("Resize", [(1, 3, 4, 5), (2,)], {**FIRST, "mode": "linear"}, [(1, 3, "?", "?")]),
    ("DepthToSpace", [("n", 2, 3, 12)], {**LAST, "blocksize": 2}, [("n", 4, 6, 3)]),
    ("SpaceToDepth", [(1, 3, 4, 6)], {**FIRST, "blocksize": 2}, [(1, 12, 2, 3)]),
    ("SpaceToBatch", [(2, 4, 5, 3), ints(2, 3), ints(0, 0, 0, 1)], LAST, [(12, 2, 2, 3)]),
    ("BatchToSpace", [(12, 2, 2, 3), ints(2, 3), ints(0, 0, 0, 1)], LAST, [(2, 4, 5, 3)]),
    ("Add", [("n", 1, 3), (4, 1)], {}, [("n", 4, 3)]),
    ("Add", [("n", 3), (5, 1)], {}, [(5, 3)]),
    ("Add", [("n", 3), ("m", 3)], {}, [("?", 3)]),
    ("Equal", [(2, 3), None], {}, [None]),
    ("Where", [(2, 1), (3,), ()], {}, [(2, 3)]),
    ("Softmax", [("n", 3)], {}, [("n", 3)]),
    ("ReduceMean", [(2, 3, 4), ints(-1, 0)], {"keepdims": 0}, [(3,)]),
    ("ReduceMax", [(2, 3, 4), ints(1)], {}, [(2, 1, 4)]),
    ("ReduceSum", [(2, 3), ints()], {}, [(1, 1)]),
    ("ReduceSum", [(2, 3), (1,)], {}, [("?", "?")]),
    ("ReduceSum", [(2, 3), (1,)], {"keepdims": 0}, [("?",)]),
    ("ArgMax", [(2, 3, 4)], {"axis": -1, "keepdims": 0}, [(2, 3)]),
    ("Concat", [(2, 3), (2, 4)], {"axis": -1}, [(2, 7)]),
    ("Concat", [("n", 3), ("m", 3)], {"axis": 0}, [("?", 3)]),
    ("Concat", [("n", 3), (2, 3)], {"axis": 1}, [(2, 6)]),
    ("Pack", [(2, 3), (2, 3)], {"axis": -1}, [(2, 3, 2)]),
    ("Unsqueeze", [("n", 3), ints(0, -1)], {}, [(1, "n", 3, 1)]),
    ("Squeeze", [(1, "n", 1), ints(0, 2)], {}, [("n",)]),
    ("Reshape", [(2, 3, 4), ints(0, -1)], {}, [(2, 12)]),
    ("Reshape", [("n", 3, 4), ints(-1, 12)], {}, [("n", 12)]),
    ("Reshape", [("n", 3, 4), ints(0, -1)], {}, [("n", 12)]),
    ("Reshape", [("n", 3, 4), ints(-1, 6)], {}, [("?", 6)]),
    ("Reshape", [("n", "m"), ints(-1)], {}, [("?",)]),
    ("Reshape", [(2, 3), (3,)], {}, [("?", "?", "?")]),
    ("Reshape", [(2, 3), ("k",)], {}, [None]),
    ("Reshape", [(0, 3), ints(-1, 3)], {}, [(0, 3)]),
    ("Transpose", [("n", 2, 3)], {"perm": (2, 0, 1)}, [(3, "n", 2)]),
    ("Slice", [("n", 9), ints(0, -1), ints(FAR, -FAR - 1), ints(0, 1), ints(1, -2)], {}, [("n", 5)]),
    ("Slice", [("n", 9), ints(1), ints(3), ints(0)], {}, [("?", 9)]),
    ("Slice", [(5, 9), (1,), (1,), ints(1)], {}, [(5, "?")]),
    ("Pad", [("n", 4), ints(0, 1, 0, 2)], {}, [("n", 7)]),
    ("Tile", [("n", 4), ints(1, 3)], {}, [("n", 12)]),
    ("Expand", [(3, 1), ints(2, 1, 4)], {}, [(2, 3, 4)]),
    ("Expand", [(3, 1), (3,)], {}, [("?", 3, "?")]),
    ("Gather", [(2, 5, 4), (2, 7)], {"axis": 1, "batch_dims": 1}, [(2, 7, 4)]),
    ("Gather", [(2, 5, 4), ()], {"axis": -1}, [(2, 5)]),
    ("GatherND", [(2, 5, 4), (2, 7, 1)], {"batch_dims": 1}, [(2, 7, 4)]),
    ("ScatterND", [(5, 4), (7, 1), (7, 4)], {}, [(5, 4)]),
    ("OneHot", [("n",), np.array(6), (2,)], {}, [("n", 6)]),
    ("NonZero", [(2, 3)], {}, [(2, "?")]),
    ("Shape", [(2, "n", 4)], {}, [(3,)]),
    ("Range", [np.array(0), np.array(10), np.array(3)], {}, [(4,)]),
    ("Range", [np.array(1.0), np.array(0.0), np.array(-0.25)], {}, [(4,)]),
    ("Range", [np.array(0), (), np.array(3)], {}, [("?",)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "inputs", "attributes", "expected"), CASES)
def test_shape(kind: str, inputs: list[Any], attributes: dict[str, Any], expected: list[Shape | None]) -> None:
    assert shapes_of(kind, inputs, **attributes) == expected


def test_operators_with_several_outputs() -> None:
    assert shapes_of("TopK", [("n", 9), ints(4)], 2) == [("n", 4), ("n", 4)]
    assert shapes_of("Split", [("n", 9), ints(4, 5)], 2, axis=-1) == [("n", 4), ("n", 5)]
    assert shapes_of("Unpack", [(2, "n")], 2, axis=0) == [("n",), ("n",)]
    assert shapes_of("DynamicQuantizeLinear", [(2, "n")], 3) == [(2, "n"), (), ()]
    assert shapes_of("Opaque", [(2, "n"), ()], 2, format="onnx", domain="d", op_type="t", version=1) == [None, None]
    detection = {"max_detections": 10, "max_classes_per_detection": 2, "num_classes": 90}
    boxes: list[Any] = [(1, 99, 4), (1, 99, 91), (99, 4)]
    assert shapes_of("DetectionPostProcess", boxes, 4, **detection)[0] == (1, 20, 4)


WRONG: list[tuple[str, list[Any], int, dict[str, Any], str, tuple[object, ...]]] = [
    ("Conv", [(1, 9, 8, 4), (5, 3, 3, 3)], 1, {**WINDOW, "dilations": (1, 1)}, "groups-do-not-divide", (4, 1, 3)),
    ("Conv", [(1, 2, 8, 3), (5, 3, 3, 3)], 1, {**WINDOW, "dilations": (1, 1)}, "window-too-large", (3, 2)),
    ("Conv", [(1, 9, 8, 3), (5, 3, 3, 3), (4,)], 1, {**WINDOW, "dilations": (1, 1)}, "sizes-differ", (4, 5)),
    ("Conv", [(1, 9, 8, 3), (5, 3, 3)], 1, {**WINDOW, "dilations": (1, 1)}, "shape-mismatch", ("(5, 3, 3)",)),
    ("MaxPool", [(1, 9, 8, 3)], 1, {**WINDOW, "kernel_shape": (2, 2), "strides": (0, 1)}, "attribute-out-of-range", ("strides",)),
    ("MaxPool", [(1, 9, 8, 3)], 1, {**WINDOW, "kernel_shape": (2, 2), "dilations": (0, 1)}, "attribute-out-of-range", ("dilations",)),
    ("MaxPool", [(1, 9, 8, 3)], 1, {**WINDOW, "kernel_shape": (3, 3), "dilations": (1, 4)}, "window-too-large", (9, 8)),
    ("GlobalMaxPool", [(2, 3)], 1, FIRST, "wrong-rank", ()),
    ("GatherElements", [(2, 3), (2,)], 1, {}, "shape-mismatch", ("(2,)", "(2, 3)")),
    ("GatherElements", [(2, 3), (2, 3)], 1, {"axis": 2}, "axis-out-of-range", (2,)),
    ("Einsum", [(2, 3)], 1, {"equation": "ij,j->i"}, "equation-mismatch", ("'ij,j->i'", 2, 1)),
    ("Einsum", [(2, 3), (4,)], 1, {"equation": "ij,j->i"}, "sizes-differ", ("'j'",)),
    ("Einsum", [(2, 3), (3, 1)], 1, {"equation": "ij,j->i"}, "equation-mismatch", ("'j'", "(3, 1)")),
    ("Einsum", [(2,)], 1, {"equation": "...ij->i"}, "equation-mismatch", ()),
    ("Einsum", [(2, 3)], 1, {"equation": "ij->k"}, "equation-mismatch", ("'ij->k'",)),
    ("Einsum", [(2, 3)], 1, {"equation": "...j->j"}, "equation-mismatch", ("'...j->j'",)),
    ("Einsum", [(2, 3), (4, 3)], 1, {"equation": "...j,...j->..."}, "not-broadcastable", ()),
    ("Gemm", [(2, 4), (7, 5)], 1, {}, "sizes-differ", ()),
    ("Gemm", [(2, 4), (7, 4), (2, 2, 7)], 1, {}, "shape-mismatch", ()),
    ("MatMul", [(2, 4), (5, 4)], 1, {}, "sizes-differ", ()),
    ("Add", [(2, 3), (4,)], 1, {}, "not-broadcastable", ()),
    ("Concat", [(2, 3), (1, 3)], 1, {"axis": 1}, "sizes-differ", (0,)),
    ("Concat", [(2, 3), (2,)], 1, {"axis": 0}, "wrong-rank", ()),
    ("Softmax", [(2, 3)], 1, {"axis": 2}, "axis-out-of-range", (2,)),
    ("ReduceSum", [(2, 3), ints(0, -2)], 1, {}, "duplicate-axis", ()),
    ("DepthToSpace", [(1, 2, 2, 6)], 1, {**LAST, "blocksize": 2}, "sizes-do-not-divide", (4,)),
    ("SpaceToDepth", [(1, 3, 4, 6)], 1, {**LAST, "blocksize": 2}, "sizes-do-not-divide", (2,)),
    ("SpaceToBatch", [(1, 3, 4, 6), ints(2, 2), ints(0, 0, 0, 0)], 1, LAST, "sizes-do-not-divide", (2,)),
    ("Reshape", [(2, 3), ints(4, -1)], 1, {}, "shape-mismatch", ("[4, -1]",)),
    ("Reshape", [(2, 3), ints(-1, -1)], 1, {}, "invalid-shape", ()),
    ("Reshape", [("n", 3), ints(0, 4)], 1, {}, "shape-mismatch", ()),
    ("Reshape", [(2, 3), np.array([1.5, 4])], 1, {}, "not-integers", ()),
    ("Reshape", [(2, 3), (1000,)], 1, {}, "rank-too-large", (1000,)),
    ("Squeeze", [(1, 2), ints(1)], 1, {}, "shape-mismatch", (1,)),
    ("Transpose", [(1, 2)], 1, {"perm": (0, 0)}, "not-a-permutation", (2,)),
    ("Split", [(2, 9), ints(4, 4)], 2, {"axis": 1}, "sizes-do-not-divide", (9,)),
    ("Unpack", [(2, 9)], 3, {"axis": 0}, "sizes-do-not-divide", (3, 2)),
    ("Slice", [(5,), ints(0), ints(3), ints(0), ints(0)], 1, {}, "counts-differ", ()),
    ("Pad", [(5,), ints(-3, -3)], 1, {}, "crop-too-large", ("-3 and -3",)),
    ("Pad", [(3,), ints(4, -5)], 1, {}, "crop-too-large", ("4 and -5",)),
    ("Gather", [(2, 5), (3, 7)], 1, {"axis": 1, "batch_dims": 1}, "sizes-differ", (0,)),
    ("ScatterND", [(5, 4), (7, 1), (7, 3)], 1, {}, "sizes-differ", ()),
    ("TopK", [(2, 3), ints(4)], 2, {}, "too-many-elements", (4, 3)),
    ("Range", [np.array(0), np.array(1), np.array(0)], 1, {}, "endless-range", ()),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "inputs", "outputs", "attributes", "rule", "holds"), WRONG)
def test_contradiction(
    kind: str, inputs: list[Any], outputs: int, attributes: dict[str, Any], rule: str, holds: tuple[object, ...]
) -> None:
    with refused(InvalidGraphError, rule, holds=holds) as raised:
        shapes_of(kind, inputs, outputs, **attributes)
    assert raised.value.where == f"{kind} 'o0'"


def test_a_constant_too_large_for_a_shape_is_refused() -> None:
    with refused(InvalidGraphError, "too-many-elements"):
        shapes_of("Reshape", [(2, 3), np.ones(10**6, np.int64)])


@pytest.mark.property
@given(st.integers(0, 12), st.integers(-15, 15), st.integers(-15, 15), st.integers(-4, 4).filter(bool))
def test_slices_are_numpys(size: int, start: int, end: int, step: int) -> None:
    expected = np.zeros(size)[start:end:step].shape
    assert shapes_of("Slice", [(size,), ints(start), ints(end), ints(0), ints(step)]) == [expected]


@pytest.mark.property
@given(st.lists(st.lists(st.sampled_from([1, 1, 2, 3]), max_size=3).map(tuple), min_size=2, max_size=2))
def test_broadcasting_is_numpys(shapes: list[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with refused(InvalidGraphError, "not-broadcastable"):
            shapes_of("Mul", list(shapes))
    else:
        assert shapes_of("Mul", list(shapes)) == [expected]


@pytest.mark.formats
@pytest.mark.property
@given(
    size=st.integers(1, 20), taps=st.integers(1, 4), stride=st.integers(1, 3), dilation=st.integers(1, 3),
    pads=st.tuples(st.integers(0, 3), st.integers(0, 3)), auto=st.sampled_from(["NOTSET", "SAME_UPPER", "VALID"]),
)  # fmt: skip
def test_windows_are_onnxs(size: int, taps: int, stride: int, dilation: int, pads: tuple[int, int], auto: str) -> None:
    from onnx import TensorProto, helper, shape_inference

    reach = (taps - 1) * dilation + 1
    own = sum(pads) if auto == "NOTSET" else 0
    if auto != "SAME_UPPER" and size + own < reach:
        return
    explicit = {"pads": list(pads)} if auto == "NOTSET" else {"auto_pad": auto}
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[stride], dilations=[dilation], **explicit)
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, size]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 2, taps]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([node], "g", inputs, [output]), opset_imports=[helper.make_opsetid("", 17)])
    inferred = shape_inference.infer_shapes(model, strict_mode=True).graph.output[0].type.tensor_type.shape
    window = {"strides": (stride,), "pads": pads, "dilations": (dilation,), "auto_pad": auto, **FIRST}
    assert shapes_of("Conv", [(1, 2, size), (4, 2, taps)], **window) == [tuple(d.dim_value for d in inferred.dim)]


def inferred_by_onnx(kind: str, shapes: list[tuple[int, ...]], **attributes: Any) -> tuple[int, ...]:
    """The output shape that onnx infers for one node."""
    from onnx import TensorProto, helper, shape_inference

    names = [f"x{i}" for i in range(len(shapes))]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in zip(names, shapes, strict=True)]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(kind, names, ["y"], **attributes)], "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    found = shape_inference.infer_shapes(model, strict_mode=True).graph.output[0].type.tensor_type.shape
    return tuple(size.dim_value for size in found.dim)


@pytest.mark.formats
@pytest.mark.property
@given(
    size=st.integers(1, 20), taps=st.integers(1, 4), stride=st.integers(1, 4), dilation=st.integers(1, 3),
    pads=st.tuples(st.integers(0, 3), st.integers(0, 3)), auto=st.sampled_from(["NOTSET", "SAME_LOWER", "VALID"]),
    ceil=st.integers(0, 1), kind=st.sampled_from(["MaxPool", "AveragePool"]),
)  # fmt: skip
def test_pools_are_onnxs(size: int, taps: int, stride: int, dilation: int, pads: tuple[int, int], auto: str, ceil: int, kind: str) -> None:
    reach = (taps - 1) * dilation + 1
    own = sum(pads) if auto == "NOTSET" else 0
    if (auto != "SAME_LOWER" and size + own < reach) or (auto == "VALID" and ceil):  # onnx's VALID ignores ceil_mode
        return
    explicit: dict[str, Any] = {"pads": pads} if auto == "NOTSET" else {"auto_pad": auto}
    shared = {"kernel_shape": (taps,), "strides": (stride,), "dilations": (dilation,), "ceil_mode": ceil}
    canonical = {**shared, "pads": pads, "auto_pad": auto, **FIRST}
    if kind == "AveragePool":
        shared["dilations"] = (1,)
        del canonical["dilations"]
    assert shapes_of(kind, [(1, 2, size)], **canonical) == [inferred_by_onnx(kind, [(1, 2, size)], **shared, **explicit)]


EQUATIONS = ["ij,jk->ik", "bij,bjk->bik", "ij,jk", "ij,ij->", "ij->ji", "ii->i", "ii", "...ij,...jk->...ik", "...i,i", "i...,j->j...i"]


@pytest.mark.formats
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsums_are_onnxs(equation: str) -> None:
    sizes = {"i": 3, "j": 4, "k": 5, "b": 2}
    terms = equation.partition("->")[0].replace("...", ".").split(",")
    shapes = [tuple(size for letter in term for size in ((7, 2) if letter == "." else (sizes[letter],))) for term in terms]
    assert shapes_of("Einsum", list(shapes), equation=equation) == [inferred_by_onnx("Einsum", shapes, equation=equation)]


@pytest.mark.formats
@pytest.mark.parametrize("kind", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pools_are_onnxs(kind: str) -> None:
    assert shapes_of(kind, [(2, 3, 4, 5)], **FIRST) == [inferred_by_onnx(kind, [(2, 3, 4, 5)])]


def chain(stored: Shape | None) -> Graph:
    """x -> Reshape to rows of 6 -> Relu."""
    tensors = [
        Tensor("x", "float32", ("n", 4, 3)),
        Tensor("sizes", "int64", (2,), ints(-1, 6)),
        Tensor("rows", "float32", stored),
        Tensor("y", "float32", None),
    ]
    ops = (Op("Reshape", ("x", "sizes"), ("rows",)), Op("Relu", ("rows",), ("y",)))
    return Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",))


def test_infer_names_unknown_sizes_and_passes_them_on() -> None:
    assert infer(chain(None))["y"].shape == ("rows_0", 6)


def test_infer_keeps_what_is_known_more_exactly() -> None:
    assert infer(chain((8, 6)))["y"].shape == (8, 6)
    assert infer(chain(("many", "six")))["rows"].shape == ("many", 6)


def test_infer_raises_where_the_graph_contradicts() -> None:
    with refused(InvalidGraphError, "shape-mismatch", holds=("'rows'", "(2, 7)")):
        infer(chain((2, 7)))
