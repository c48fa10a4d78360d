"""ONNX models of one operator on every type: what is written to TFLite loads and runs in LiteRT, the rest is refused with its rule."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from loaded import onnx_graph
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of

from qconvert.conversion import normalize
from qconvert.errors import UnsupportedError
from qconvert.formats.tflite.writer import build
from qconvert.graph import numpy_dtype
from qconvert.plugins import target_named
from qconvert.targets.audit import refuse_violations

pytestmark = pytest.mark.end_to_end

TYPES = "FLOAT FLOAT16 DOUBLE BFLOAT16 INT8 UINT8 INT16 UINT16 INT32 UINT32 INT64 UINT64 BOOL".split()
UNARY = "Abs Log Exp Sqrt Neg Relu Sigmoid Softmax Tanh Ceil Floor Round Sin Cos Not Sign Elu LeakyRelu HardSwish Reciprocal".split()
PAIRS = "Add Mul Sub Div Max Min Equal Greater Less LessOrEqual GreaterOrEqual Pow And Or Mod PRelu Where".split()
MOVES = "Transpose Flatten Concat Identity ReduceMax ReduceMean ReduceSum ArgMax CumSum".split()


def _model(kind: str, number: int, rank: int) -> bytes | None:
    """The operator on data of a type; None where ONNX has no such operator."""
    shape = [1] * (rank - 1) + [4]
    names = ["x", "b"] if kind in (*PAIRS, "Concat") else ["x"]
    result = TensorProto.BOOL if kind in PAIRS[6:11] else TensorProto.INT64 if kind == "ArgMax" else number
    attributes = {"Concat": {"axis": 0}}.get(kind, {"fmod": 1} if kind == "Mod" and number in (1, 10, 11, 16) else {})
    inputs = [helper.make_tensor_value_info(name, number, shape) for name in names]
    constants = []
    if kind == "Where":
        names = ["c", *names]
        inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, shape), *inputs]
    if kind == "CumSum":
        names, constants = ["x", "axis"], [numpy_helper.from_array(np.array(0, np.int64), "axis")]
    node = helper.make_node(kind, names, ["y"], **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", result, None)], constants)
    model = model_of(graph)
    try:
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # onnx raises several classes
        return None
    data: bytes = model.SerializeToString()
    return data


def _outcome(data: bytes) -> str:
    """ "runs", "refused", or what went wrong."""
    graph = onnx_graph(data)
    target = target_named("tflite")
    try:
        graph, _ = normalize(graph, target)
        refuse_violations(graph, target)
    except UnsupportedError:
        return "refused"
    written = build(graph, {})
    child = os.fork()
    if child:
        return "runs" if os.waitpid(child, 0)[1] == 0 else "written, does not run"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    code = 1
    try:
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(model_content=written)
        interpreter.allocate_tensors()
        for item in interpreter.get_input_details():
            if graph[item["name"]].dtype != "bfloat16":  # LiteRT's Python interface has no such arrays
                interpreter.set_tensor(item["index"], np.ones(item["shape"], numpy_dtype(graph[item["name"]].dtype)))
        interpreter.invoke()
        code = 0
    finally:
        os._exit(code)


@pytest.mark.parametrize("kind", [*UNARY, *PAIRS, *MOVES])
def test_what_is_written_runs(kind: str) -> None:
    found = {}
    for name in TYPES:
        for rank in (1, 4):
            data = _model(kind, getattr(TensorProto, name), rank)
            if data is not None:
                found[name, rank] = _outcome(data)
    assert Counter(found.values())["written, does not run"] == 0, found
    if kind not in ("And", "Or", "Not", "Sign", "CumSum"):
        assert "runs" in found.values()


CONVOLUTIONS = [
    ("Conv", (4, 3, 1, 1), 3, {}),
    ("Conv", (3, 1, 3, 3), 3, {"group": 3}),
    ("Conv", (4, 2, 1, 1), 4, {"group": 2}),
    ("Conv", (4, 3, 3), 3, {}),
    ("ConvTranspose", (3, 4, 2, 2), 3, {}),
    ("ConvTranspose", (3, 4, 2), 3, {}),
    ("Conv", (4, 3, 1, 1, 1), 3, {}),
]


@pytest.mark.cross_section
@pytest.mark.parametrize(("kind", "shape", "channels", "attributes"), CONVOLUTIONS)
def test_a_convolution_without_a_bias_runs(
    kind: str, shape: tuple[int, ...], channels: int, attributes: dict[str, int], tmp_path: Path
) -> None:
    inputs = [helper.make_tensor_value_info("x", 1, [1, channels, *[4] * (len(shape) - 2)])]
    weights = numpy_helper.from_array(np.ones(shape, np.float32), "w")
    node = helper.make_node(kind, ["x", "w"], ["y"], **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, None)], [weights])
    model = model_of(graph)
    assert _outcome(model.SerializeToString()) == "runs"
