"""ReverseSequence, the operator that CONTRIBUTING.md adds: through the house, quantized, checked; and once more by a plugin."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused
from test_plugins import install
from tflite_models import TensorSpec, single_op

import qconvert
from qconvert.errors import UnsupportedError
from qconvert.graph import Op, Quantization, Tensor
from qconvert.operators import KINDS
from qconvert.operators.properties import AxisMove

ROOT = Path(__file__).parent.parent
LENGTHS = np.array([4, 1, 0], np.int64)


def quantized_onnx(path: Path, dtype: type[np.integer[Any]] = np.uint8) -> Path:
    """uint8 x -> ReverseSequence -> y, in QDQ form, or of another type."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("ReverseSequence", ["xd", "n"], ["r"], time_axis=0, batch_axis=1),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "s", "z"], ["y"]),
    ]
    constants = {"s": np.float32(0.05), "z": dtype(121), "n": LENGTHS}
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [4, 3, 5])], [value("y", TensorProto.FLOAT, [4, 3, 5])],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
def test_from_onnx_to_tflite_and_back_with_every_integer(tmp_path: Path) -> None:
    source = quantized_onnx(tmp_path / "a.onnx")
    graph = qconvert.load(source)
    (op,) = (op for op in graph.ops if op.kind == "ReverseSequence")
    assert graph[op.inputs[0]].dtype == graph[op.outputs[0]].dtype == "uint8"  # integers move; nothing is computed
    report = qconvert.convert(source, tmp_path / "b.tflite", target="tflite-uint8")
    assert report.operators["ReverseSequence"] == 1 and all(line.integer for line in report.audit if line.kind == "ReverseSequence")
    found = qconvert.check(source, tmp_path / "b.tflite", per_op=True)
    assert found.passed and all(item.verdict == "equal" for item in found.operators)
    qconvert.convert(tmp_path / "b.tflite", tmp_path / "c.onnx", target="generic", numerics="fast")
    assert qconvert.diff(qconvert.load(tmp_path / "b.tflite"), qconvert.load(tmp_path / "c.onnx")) == []


@pytest.mark.formats
def test_int8_is_refused_by_tflites_own_rule(tmp_path: Path) -> None:
    with refused(UnsupportedError, "target-rules", holds=("REVERSE_SEQUENCE",)):
        qconvert.convert(quantized_onnx(tmp_path / "a.onnx", np.int8), tmp_path / "b.tflite")
    assert not (tmp_path / "b.tflite").exists()


@pytest.mark.formats
@pytest.mark.parametrize(
    ("attributes", "lengths", "rule", "named"),
    [({"time_axis": 0, "batch_axis": 0}, 3, "duplicate-axis", ("[0, 0]",)), ({"time_axis": 5}, 3, "axis-out-of-range", (5, 3)),
     ({"time_axis": 0, "batch_axis": 1}, 2, "sizes-differ", ("2, 3",))],
)  # fmt: skip
def test_bad_axes_and_lengths_are_named(attributes: dict[str, int], lengths: int, rule: str, named: tuple[object, ...]) -> None:
    from qconvert.errors import InvalidGraphError
    from qconvert.operators.shapes_and_functions import output_shapes

    tensors = {"x": Tensor("x", "uint8", (4, 3, 5)), "n": Tensor("n", "int64", (lengths,))}
    with refused(InvalidGraphError, rule, where="ReverseSequence 'y'", holds=named):
        output_shapes(tensors, Op("ReverseSequence", ("x", "n"), ("y",), attributes))


@pytest.mark.formats
def test_scales_along_another_axis_than_time_survive() -> None:
    keeps = KINDS["ReverseSequence"].keeps_axis
    assert keeps is not None
    op = Op("ReverseSequence", ("x", "n"), ("y",), {"time_axis": 0, "batch_axis": 1})
    assert [keeps(AxisMove(op, lambda index: None, (4, 3, 5), (4, 3, 5), axis, axis)) for axis in range(3)] == [False, True, True]
    assert Quantization.per_axis([1.0, 2.0], 1).axis == 1


def test_the_code_in_contributing_is_the_projects_own() -> None:
    """Every block of the example stands to the letter in the file that the page names."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    blocks = re.findall(r"```\n(.*?)```", page[page.index("## Adding an operator") :], re.S)
    kernels = ("kernels/litert/rows.py", "kernels/litert/references_of_functions.py")
    files = ("operators/gather.py", "formats/tflite/ops/gather.py", "operators/formulas/elementwise.py", *kernels)
    for block, file in zip(blocks, files, strict=True):
        text = (ROOT / "qconvert" / file).read_text()
        assert [part for part in block.split("\n\n\n") if part not in text] == []


PLUGIN = """
import numpy as np
import qconvert
from qconvert.plugin import Kind, Samples, has, integer, replaces

def reverse(call):
    data = np.moveaxis(call.raw(), (call["batch"], call["time"]), (0, 1))
    result = data.copy()
    for row, length in enumerate(call.ints(1)):
        result[row, :length] = data[row, :length][::-1]
    return np.moveaxis(result, (0, 1), (call["batch"], call["time"]))

@qconvert.hookimpl
def qconvert_kinds():
    return [Kind("acme.Reverse", "data index", shape=lambda op, s: [s.shape(0)], rule="move", evaluate=reverse,
                 samples=Samples(lambda op, index, axis, rank: axis == (0 if index == 1 else op["batch"] % rank)),
                 attributes=has(time=integer(), batch=integer()))]

@replaces("REVERSE_SEQUENCE")
def read_tflite(r):
    r.emit("acme.Reverse", [r.input(0), r.int64(1)], time=r.option("seqDim"), batch=r.option("batchDim"))

def write_onnx(op, b):
    b.node("ReverseSequence", [b.stored_value(name) for name in op.inputs], op.outputs, time_axis=op["time"], batch_axis=op["batch"])

@qconvert.hookimpl
def qconvert_operators(format, direction):
    tables = {("tflite", "read"): {"REVERSE_SEQUENCE": read_tflite}, ("onnx", "write"): {"acme.Reverse": write_onnx}}
    return tables.get((format, direction), {})
"""


@pytest.mark.end_to_end
def test_a_plugin_adds_the_same_operator(tmp_path: Path) -> None:
    """Its kind is in the graph that is inspected, evaluated and written, without a line of code elsewhere."""
    install(tmp_path, "acme", "[qconvert]\nacme = acme\n", PLUGIN)
    quantization = {"dtype": "uint8", "scale": 0.05, "zero_point": 121}
    lengths = TensorSpec("n", (3,), "int32", data=LENGTHS.astype(np.int32))
    data = single_op("REVERSE_SEQUENCE", {"seqDim": 0, "batchDim": 1}, [TensorSpec("x", (4, 3, 5), **quantization), lengths],
                     [TensorSpec("y", (4, 3, 5), **quantization)])  # fmt: skip
    (tmp_path / "m.tflite").write_bytes(data)
    program = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import numpy as np, qconvert
from qconvert.evaluate import evaluate
graph = qconvert.load("m.tflite")
assert [op.kind for op in graph.ops] == ["acme.Reverse"], graph.ops
x = np.arange(60, dtype=np.uint8).reshape(4, 3, 5)
y = evaluate(graph, {{graph.inputs[0]: x}})[graph.outputs[0]]
assert (y[:, 0] == x[::-1, 0]).all() and (y[:, 1:] == x[:, 1:]).all()
qconvert.convert("m.tflite", "m.onnx", target="generic")
assert qconvert.check("m.tflite", "m.onnx", per_op=True).passed
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "done", done.stderr
