"""Plain integers that several movements and DequantizeLinear read, in any order: a label is on all tensors that hold them, or on none."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loaded import onnx_graph
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from refusals import refused

from qconvert.errors import InvalidModelError
from qconvert.evaluate import evaluate
from qconvert.formats.onnx.reader import read_bytes

pytestmark = pytest.mark.onnxruntime

_CONSTANTS = {
    "flat": np.array([24]), "amounts": np.array([0, 0, 1, 1]), "filler": np.uint8(3), "starts": np.array([0, 0]), "ends": np.array([2, 2]),
    "rows": np.array([[0], [1]]), "updates": np.full((2, 6), 9, np.uint8), "sizes": np.array([2, 4]), "order": np.array([1, 0]),
    "scale_a": np.float32(0.5), "zero_a": np.uint8(3), "scale_b": np.float32(0.25), "zero_b": np.uint8(7),
    "scale_c": np.array([0.1, 0.2, 0.3, 0.4], np.float32), "zero_c": np.array([1, 2, 3, 4], np.uint8),
}  # fmt: skip
#: Node, its further inputs, its attributes.
_MOVES = {
    "none": None, "Reshape": (["flat"], {}), "Transpose": ([], {"perm": [1, 0]}), "Pad": (["amounts", "filler"], {}), "Identity": ([], {}),
    "Slice": (["starts", "ends"], {}), "ScatterND": (["rows", "updates"], {}), "Split": (["sizes"], {"axis": 1}),
    "Gather": (["order"], {}), "Concat": (["updates"], {"axis": 0}),
}  # fmt: skip
_ENDS = {
    "a": ("DequantizeLinear", {}), "b": ("DequantizeLinear", {}), "c": ("DequantizeLinear", {"axis": 0}),
    "cast": ("Cast", {"to": TensorProto.FLOAT}), "add": ("Add", {}), "given out": ("Identity", {}),
}  # fmt: skip


def _branch(move: str, end: str, name: str) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto], onnx.ValueInfoProto]:
    nodes, held = [], "x"
    if (found := _MOVES[move]) is not None:
        held = f"{name}_moved"
        rest = [f"{name}_rest"] if move == "Split" else []
        nodes.append(helper.make_node(move, ["x", *found[0]], [held, *rest], **found[1]))
    operator, attributes = _ENDS[end]
    inputs = {"DequantizeLinear": [held, f"scale_{end}", f"zero_{end}"], "Add": [held, held]}.get(operator, [held])
    dtype = TensorProto.UINT8 if end in ("add", "given out") else TensorProto.FLOAT
    shape = [None] * (1 if move == "Reshape" else 2)
    return nodes, [helper.make_node(operator, inputs, [name], **attributes)], helper.make_tensor_value_info(name, dtype, shape)


def _takes(move: str, end: str) -> bool:
    """Whether the scales fit the moved rows."""
    return end != "c" or move in ("none", "Identity", "ScatterND")


_BRANCHES = [(move, end) for move in _MOVES for end in _ENDS if _takes(move, end)]


@pytest.mark.property
@given(st.booleans(), st.sampled_from(_BRANCHES), st.sampled_from(_BRANCHES), st.integers(0, 2))
def test_integers_that_several_nodes_move_and_label(computed: bool, one: tuple[str, str], two: tuple[str, str], order: int) -> None:
    (moves, ends, first), (others, other_ends, second) = _branch(*one, "one"), _branch(*two, "two")
    nodes = [
        *([helper.make_node("Cast", ["given"], ["x"], to=TensorProto.UINT8)] if computed else []),
        *((moves, others, other_ends, ends), (moves, others, ends, other_ends), (others, other_ends, moves, ends))[order],
    ]
    flat = [node for part in nodes for node in (part if isinstance(part, list) else [part])]
    name, dtype = ("given", TensorProto.FLOAT) if computed else ("x", TensorProto.UINT8)
    constants = [numpy_helper.from_array(np.asarray(value), key) for key, value in _CONSTANTS.items()]
    graph = helper.make_graph(flat, "g", [helper.make_tensor_value_info(name, dtype, [4, 6])], [first, second], constants)
    data = model_of(graph, 18).SerializeToString()
    value = np.random.default_rng(0).integers(0, 255, (4, 6)).astype(np.float32 if computed else np.uint8)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = ort.InferenceSession(data, options).run(None, {name: value})
    read = onnx_graph(data)
    found = evaluate(read, {read.inputs[0]: value})
    for output, expected in zip(read.outputs, wanted, strict=True):
        np.testing.assert_array_equal(found[output], expected)


@pytest.mark.cross_section
@pytest.mark.parametrize("zero_point", [3e38, float("nan"), float("inf")])
def test_a_zero_point_that_no_integer_type_holds_is_refused(zero_point: float) -> None:
    node = helper.make_node("QLinearGlobalAveragePool", ["x", "s", "z", "s", "s"], ["y"], domain="com.microsoft")
    ports = [helper.make_tensor_value_info(name, TensorProto.UINT8, [1, 2, 4, 4]) for name in "xy"]
    constants = [numpy_helper.from_array(np.float32(value), name) for name, value in (("s", 0.1), ("z", zero_point))]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", ports[:1], ports[1:], constants), opset_imports=imports, ir_version=8)
    with refused(InvalidModelError, "zero-point-type", holds=("'z'",)):
        read_bytes(model.SerializeToString(), "g")
