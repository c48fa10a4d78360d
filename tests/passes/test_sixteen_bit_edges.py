"""Graph inputs and outputs of uint16, or of int16 with another zero point than 0, in TFLite, which has neither."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_models
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of

from qconvert import check, convert, load

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

_TYPES = {"uint16": TensorProto.UINT16, "int16": TensorProto.INT16}


def model(op: str, dtype: str, point: int, edges: tuple[bool, bool]) -> bytes:
    """An operator on 16 bits, whose input, output or both are the integers themselves."""
    of = _TYPES[dtype]
    quantizations = {"s": np.float32(0.01), "t": np.float32(0.013), "z": np.array(point, dtype)}
    given = ("x", "y_q") if edges[0] else ("x_q", "y_q")
    nodes = [] if edges[0] else [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["x_q"])]
    result = "y" if edges[1] else given[1]
    nodes += [
        helper.make_node("DequantizeLinear", [given[0], "s", "z"], ["a"]),
        helper.make_node(op, ["a"] * (2 if op == "Add" else 1), ["b"]),
        helper.make_node("QuantizeLinear", ["b", "t", "z"], [result]),
    ]
    nodes += [] if edges[1] else [helper.make_node("DequantizeLinear", [result, "t", "z"], ["y"])]
    values = [
        helper.make_tensor_value_info(name, of if edge else TensorProto.FLOAT, [1, 8, 4, 4]) for name, edge in zip("xy", edges, strict=True)
    ]
    graph = helper.make_graph(
        nodes, "g", values[:1], values[1:], [numpy_helper.from_array(value, name) for name, value in quantizations.items()]
    )
    return bytes(model_of(graph, 21).SerializeToString())


@pytest.mark.parametrize("io_float", [False, True])
@pytest.mark.parametrize(("dtype", "point"), [("uint16", 32768), ("uint16", 30000), ("uint16", 0), ("int16", -3000), ("int16", 0)])
@pytest.mark.parametrize(("op", "edges"), [("Relu", (True, False)), ("Sigmoid", (False, True)), ("Add", (True, True))])
def test_they_become_symmetric_int16(op: str, dtype: str, point: int, edges: tuple[bool, bool], io_float: bool, tmp_path: Path) -> None:
    source, result = tmp_path / "m.onnx", tmp_path / "m.tflite"
    source.write_bytes(model(op, dtype, point, edges))
    report = convert(source, result, io="float" if io_float else "")
    graph = load(result)
    for name, edge in zip("xy", edges, strict=True):
        assert graph[name].dtype == ("int16" if edge and not io_float else "float32")
        if edge and not io_float:
            quantization, before = graph[name].quantization, load(source)[name].quantization
            assert quantization is not None and before is not None and not quantization.zero_point.any()
            assert (quantization.scale[0] == before.scale[0]) == ((dtype, point) in (("uint16", 32768), ("int16", 0)))
    outer = [name for name, edge in zip("xy", edges, strict=True) if edge]
    if (dtype, point) != ("int16", 0):
        assert f"inputs and outputs {', '.join(map(repr, outer))} too" in str(report.changes)
    found = check(source, result, samples=2, per_op=True)
    assert found.verdict == "passed", found.problems


@pytest.mark.cross_section
def test_a_wrong_zero_point_of_an_edge_is_found(tmp_path: Path) -> None:
    """Integers of an edge are moved by 32,768, whatever zero point the result states."""
    source, wrong, result = (tmp_path / name for name in ("m.onnx", "wrong.onnx", "m.tflite"))
    source.write_bytes(model("Relu", "uint16", 32768, (True, False)))
    convert(source, result)
    other = onnx.load_from_string(model("Relu", "int16", 100, (True, False)))
    other.graph.initializer[2].CopyFrom(numpy_helper.from_array(np.int16(100), "z"))
    wrong.write_bytes(other.SerializeToString())
    assert check(source, result, samples=2).verdict == "passed"
    assert check(source, wrong, samples=2).verdict == "not equal"
    assert onnx_models.run(source.read_bytes(), {"x": np.full((1, 8, 4, 4), 40000, np.uint16)})[0].max() == pytest.approx(72.32, abs=0.02)
