"""The view of a protobuf that the reader works on: order, uses, types, attributes, and nodes that are carried as they are."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx_models import run
from onnx_nodes import model_of
from refusals import refused

from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.onnx.container import open_model, parse_model
from qconvert.formats.onnx.local_functions import sort_nodes
from qconvert.formats.onnx.model import attribute_value, describe_type
from qconvert.formats.onnx.reader import read_bytes

pytestmark = pytest.mark.formats

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def opened(text: str, **options: Any) -> Any:
    return parse_model(parser.parse_model(f"{HEADER} {text}").SerializeToString(), **options)


def test_order_is_the_nearest_to_that_of_the_file() -> None:
    found = opened("g (float[4] x) => (float[4] d) { a = Relu(x)  d = Add(c, b)  b = Neg(x)  c = Abs(a) }")
    assert [node.op_type for node in found.proto.graph.node] == ["Relu", "Neg", "Abs", "Add"]
    sorted_already = opened("g (float[4] x) => (float[4] d) { b = Neg(x)  a = Relu(x)  c = Abs(a)  d = Add(c, b) }")
    assert [node.op_type for node in sorted_already.proto.graph.node] == ["Neg", "Relu", "Abs", "Add"]


def test_nodes_of_subgraphs_are_sorted_and_stand_behind_what_they_capture() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        y = If (c) <then_branch = t () => (float[4] u) { u = Neg(v)  v = Relu(late) },
                    else_branch = e () => (float[4] w) { w = Identity(late) }>
        late = Abs(x)
    }"""
    nodes = parser.parse_model(f"{HEADER} {text}").graph.node
    sort_nodes(nodes)
    assert [node.op_type for node in nodes] == ["Abs", "If"]
    assert [node.op_type for node in nodes[1].attribute[0].g.node] == ["Relu", "Neg"]
    found = opened(text)
    assert found.graph.read == {"late", "c", "x", "y"}  # "late" in the branches alone, "y" as an output


def test_types_and_shapes_of_the_file_and_of_inference() -> None:
    text = "g (float[N, 4] x) => (float[N, M] y) { a = Relu(x)  y = Identity(a) }"
    plain, inferred = (opened(text, infer=infer).graph.values for infer in (False, True))
    assert "a" not in plain
    assert (describe_type(inferred["a"][0]), inferred["a"][1]) == ("FLOAT", ("N", 4))
    assert (plain["y"][1], inferred["y"][1]) == (("N", "M"), ("N", 4))


def test_a_sequence_has_no_tensor_type() -> None:
    found = opened("g (float[4] x) => (float y) { s = SequenceConstruct(x)  i = Constant<value_int = 0>()  y = SequenceAt(s, i) }")
    assert describe_type(found.graph.values["s"][0]) == "Sequence(Tensor(FLOAT))"
    with refused(UnsupportedError, "type-not-covered", holds=("Sequence(Tensor(FLOAT))",)) as told:
        read_bytes(
            parser.parse_model(f"{HEADER} g (float[4] x) => (seq(float[4]) s) {{ s = SequenceConstruct(x) }}").SerializeToString(), "m"
        )
    assert "zipmap" in told.value.remedy


def test_a_tensor_of_an_unknown_type_is_not_told_to_become_a_tensor() -> None:
    model = parser.parse_model(f"{HEADER} g (float[4] x) => (float[4] y) {{ y = Identity(x) }}")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT8E8M0
    with refused(UnsupportedError, "type-not-covered", holds=("FLOAT8E8M0",)) as told:
        read_bytes(model.SerializeToString(), "m")
    assert told.value.remedy == ""


@pytest.mark.parametrize(("sizes", "place", "wanted"), [("3", 1, [3, 4, 5]), ("3", 2, [6]), ("{2, 4, 1}", 1, [2, 3, 4, 5])])
def test_a_part_of_a_divided_tensor_is_a_slice(sizes: str, place: int, wanted: list[int]) -> None:
    """As torch.onnx exports chunk()."""
    kind = "value_ints" if sizes.startswith("{") else "value_int"
    text = f"""g (float[7, 2] x) => (float[N, 2] y) {{ n = Constant<{kind} = {sizes.replace("{", "[").replace("}", "]")}>()
        s = SplitToSequence<axis = 0>(x, n)  i = Constant<value_int = {place}>()  y = SequenceAt(s, i) }}"""
    graph = read_bytes(parser.parse_model(f"{HEADER} {text}").SerializeToString(), "m")
    x = np.arange(14, dtype=np.float32).reshape(7, 2)
    np.testing.assert_array_equal(evaluate(graph.evolve(ops=[op for op in graph.ops if op.kind != "Opaque"]), {"x": x})["y"], x[wanted])


@pytest.mark.parametrize("parts", ['SplitToSequence<axis = 0>(x, "")', "SplitToSequence<axis = 0>(x)", "SequenceConstruct(x)"])
def test_a_part_of_another_sequence_stays_an_operator_that_is_not_covered(parts: str) -> None:
    text = f"g (float[7, 2] x) => (float[N, 2] y) {{ s = {parts}  i = Constant<value_int = 0>()  y = SequenceAt(s, i) }}"
    graph = read_bytes(parser.parse_model(f"{HEADER} {text}").SerializeToString(), "m")
    assert [op["op_type"] for op in graph.ops if op.kind == "Opaque"][1:] == ["SequenceAt"]


def test_attributes() -> None:
    values = {"i": 3, "f": 0.5, "s": "text", "ints": [1, 2], "floats": [0.5], "strings": ["a", "b"]}
    node = helper.make_node("Custom", ["x"], ["y"], domain="own", **values, t=numpy_helper.from_array(np.arange(3, dtype=np.int8)))
    node.attribute.add(name="bytes", type=onnx.AttributeProto.STRING, s=b"\xff\xfe")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("own", 1)])
    graph = parse_model(model.SerializeToString()).graph
    found = {item.name: attribute_value(item, graph.files) for item in graph.proto.node[0].attribute}
    assert {name: found[name] for name in values} == {
        "i": 3,
        "f": 0.5,
        "s": "text",
        "ints": (1, 2),
        "floats": (0.5,),
        "strings": ("a", "b"),
    }
    assert found["bytes"] == b"\xff\xfe"
    assert found["t"].tolist() == [0, 1, 2]


def test_large_constant_nodes_become_constants_of_the_graph(tmp_path: Path) -> None:
    """Inference sees no copy of them; those in a file compared with the model stay there."""
    values = np.arange(300, dtype=np.float32)
    (tmp_path / "weights").write_bytes(values.tobytes())
    tensor = TensorProto(name="t", dims=[300], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights")
    nodes = [helper.make_node("Constant", [], ["c"], value=tensor), helper.make_node("Add", ["x", "c"], ["y"])]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [300]), helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 17)])
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    found = open_model(tmp_path / "model.onnx")
    assert [node.op_type for node in found.proto.graph.node] == ["Add"]
    data = found.graph.files.numpy(found.graph.constants["c"])
    assert np.array_equal(data, values)
    assert not data.flags.owndata
    assert found.graph.values["y"][1] == (300,)


def test_a_carried_node_is_the_file_s_own_with_its_constants_in_it() -> None:
    weights = numpy_helper.from_array(np.arange(2000, dtype=np.float32), "w")
    branch = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["u"])], "b", [], [helper.make_tensor_value_info("u", TensorProto.FLOAT, [2000])], [weights]
    )
    node = helper.make_node("If", ["c"], ["y"], name="choice", doc_string="words", then_branch=branch, else_branch=branch)
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2000]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [2000]),
    ]
    node.domain = "acme"
    model = helper.make_model(
        helper.make_graph([node], "g", ends[:2], ends[2:]), opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    )
    op = read_bytes(model.SerializeToString(), "m").ops[0]
    carried = onnx.NodeProto.FromString(base64.b64decode(str(op["payload"])))
    assert op["captures"] == ("x",)
    assert carried.op_type == "If"
    assert not carried.name and not carried.input and not carried.doc_string
    assert carried.attribute[0].g.initializer[0] == weights


def calling(*nodes: Any, opset: int) -> bytes:
    """A model of opset 17 that calls a function of another opset."""
    function = helper.make_function("local", "f", ["a"], ["b"], list(nodes), [helper.make_opsetid("", opset)])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("f", ["x"], ["y"], domain="local")], "g", ends[:1], ends[1:])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return bytes(helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=8).SerializeToString())


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        ([helper.make_node("LeakyRelu", ["a"], ["b"], alpha=0.5)], 16),  # means the same in 17
        ([helper.make_node("ReduceMean", ["a"], ["b"], axes=[1])], 14),
        ([helper.make_node("Softmax", ["a"], ["b"], axis=0)], 13),
        ([helper.make_node("Softmax", ["a"], ["b"], axis=0)], 11),  # along all axes there
        ([helper.make_node("Clip", ["a"], ["b"], min=-0.5, max=0.5)], 10),  # whose bounds were attributes
    ],
)
def test_functions_of_another_opset_mean_what_they_did(nodes: list[Any], opset: int) -> None:
    data, inputs = calling(*nodes, opset=opset), np.linspace(-2, 2, 16, dtype=np.float32).reshape(4, 4)
    node = parse_model(data).proto
    whole = model_of(helper.make_graph([*(type(item).FromString(item.SerializeToString()) for item in nodes)], "g",
                          [helper.make_tensor_value_info("a", TensorProto.FLOAT, [4, 4])],
                          [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)]), opset)  # fmt: skip
    expected = run(bytes(whole.SerializeToString()), {"a": inputs})[0]
    assert not node.functions
    np.testing.assert_array_equal(run(bytes(node.SerializeToString()), {"x": inputs})[0], expected)


def test_a_function_that_cannot_be_converted_is_refused() -> None:
    with pytest.raises(QConvertError):
        parse_model(calling(helper.make_node("Upsample", ["a", "s"], ["b"]), opset=9))


@pytest.mark.parametrize("equation", ["i+j", "...1->...i", "i>j"])
def test_an_equation_that_onnx_s_inference_never_finishes_is_refused(equation: str) -> None:
    text = f'g (float[3, 3] x) => (float[N] y) {{ y = Einsum<equation = "{equation}">(x) }}'
    with refused(InvalidModelError, "invalid-equation", holds=(equation,)):
        opened(text, infer=True)
    inner = f"""g (float[3, 3] x, bool c) => (float[N] y) {{
        y = If (c) <then_branch = t () => (float[N] u) {{ u = Einsum<equation = "{equation}">(x) }},
                    else_branch = e () => (float[N] w) {{ w = Einsum<equation = "ii->i">(x) }}>
    }}"""
    with refused(InvalidModelError, "invalid-equation"):
        opened(inner, infer=True)


@pytest.mark.parametrize("word", ["Graph", "Relu", "domain", "input", "middle", "constant"])
def test_a_name_that_is_not_utf_8_is_refused(word: str) -> None:
    nodes = [
        helper.make_node("Relu", ["input"], ["middle"]),
        helper.make_node("Own", ["middle"], ["own"], domain="domain"),
        helper.make_node("Add", ["own", "constant"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("input", "y")]
    weights = [numpy_helper.from_array(np.ones(4, np.float32), "constant")]
    graph = helper.make_graph(nodes, "Graph", ends[:1], ends[1:], weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("domain", 1)]
    data = helper.make_model(graph, opset_imports=imports).SerializeToString()
    assert [node.op_type for node in parse_model(data).proto.graph.node] == ["Relu", "Own", "Add"]
    with refused(InvalidModelError, "not-utf8"):
        parse_model(data.replace(word.encode(), b"\xff" + word.encode()[1:]))


def test_an_attribute_that_is_required_and_missing_is_named() -> None:
    model = parser.parse_model(f"{HEADER} g (uint8[4] x, uint8[4] n) => (uint8[4] y) {{ y = BitShift(x, n) }}")
    with refused(InvalidModelError, "attribute-missing", holds=("'direction'",)):
        read_bytes(model.SerializeToString(), "m")
