"""Nodes that do not fit their operator are refused by name, before a read function or onnx's shape inference looks at them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

from qconvert.errors import InvalidModelError, QConvertError
from qconvert.formats.onnx.reader import read_bytes
from qconvert.formats.onnx.signatures import CONTRIB, CONTRIB_SIGNATURES, signature
from qconvert.plugins import operators

WEIGHTS = numpy_helper.from_array(np.ones((4, 2, 3, 3), np.float32), "w")
INDEX = numpy_helper.from_array(np.ones(4, np.int64), "index")
NOTHING = numpy_helper.from_array(np.ones((3, 0), np.int64), "n")
ONES = numpy_helper.from_array(np.ones(4, np.float32), "s")


def model(*nodes: Any, opset: int = 17, domains: tuple[str, ...] = ()) -> bytes:
    """x (1, 4, 8, 8), constants w and s, output y."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(list(nodes), "g", [x], [y], [WEIGHTS, ONES, INDEX, NOTHING])
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    data: bytes = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    return data


def node(kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(kind, inputs, outputs, **attributes)


def one(kind: str, inputs: str = "x", outputs: str = "y", opset: int = 17, **attributes: Any) -> bytes:
    return model(node(kind, inputs.split(), outputs.split(), **attributes), opset=opset)


BAD = {
    "surplus output": (one("Relu", "x", "y z"), "wrong-number-of-tensors", ("'y'", 2, 1)),
    "no output": (model(node("Relu", ["x"], ["y"]), node("Abs", ["x"], [])), "wrong-number-of-tensors", (0, 1)),
    "nameless output": (model(node("Relu", ["x"], ["y"]), node("Abs", ["x"], [""])), "output-missing", ()),
    "surplus input": (one("Relu", "x w"), "wrong-number-of-tensors", (2, 1)),
    "missing input": (one("CumSum"), "wrong-number-of-tensors", (1, 2)),
    "no input": (one("Max", ""), "wrong-number-of-tensors", (0, 1)),
    "empty required input": (model(node("EyeLike", [""], ["y"])), "input-missing", (0,)),
    "empty one of many": (model(node("Concat", ["x", ""], ["y"], axis=1)), "input-missing", (1,)),
    "Concat": (one("Concat", "x x"), "attribute-missing", ("'axis'",)),
    "SpaceToDepth": (one("SpaceToDepth"), "attribute-missing", ("'blocksize'",)),
    "DepthToSpace": (one("DepthToSpace"), "attribute-missing", ("'blocksize'",)),
    "Slice of opset 9": (one("Slice", opset=9), "attribute-missing", ("'ends'",)),
    "Pad of opset 10": (one("Pad", opset=10), "attribute-missing", ("'pads'",)),
    "TopK of opset 9": (one("TopK", "x", "y i", opset=9), "attribute-missing", ("'k'",)),
    "Constant": (model(node("Constant", [], ["c"]), node("Add", ["x", "c"], ["y"])), "not-a-scalar", (0,)),
    "Cast to integers": (one("Cast", to=[1, 2]), "attribute-type", ("'to'", "INTS", "INT")),
    "axis is text": (one("Softmax", axis="a"), "attribute-type", ("'axis'", "STRING", "INT")),
    "alpha is integers": (one("LeakyRelu", alpha=[1]), "attribute-type", ("'alpha'", "INTS", "FLOAT")),
    "strides is a float": (one("AveragePool", kernel_shape=[2, 2], strides=1.5), "attribute-type", ("'strides'", "FLOAT", "INTS")),
    "epsilon is integers": (one("InstanceNormalization", "x s s", epsilon=[1]), "attribute-type", ("'epsilon'", "INTS", "FLOAT")),
    "unknown attribute": (one("Relu", alpha=1.0), "unknown-attribute", ("'alpha'",)),
    "no groups": (one("ConvTranspose", "x w", group=0), "groups-do-not-divide", (0,)),
    "groups that do not divide": (one("ConvTranspose", "x w", group=3), "groups-do-not-divide", (3,)),
    "stride 0": (one("Conv", "x w", group=2, strides=[0, 1]), "attribute-out-of-range", ("(0, 1)",)),
    "kernel 0": (one("MaxPool", kernel_shape=[0, 2]), "attribute-out-of-range", ("kernel_shape",)),
    "Split into many": (one("Split", opset=18, num_outputs=2**31 - 1), "wrong-number-of-tensors", (1, 2147483647)),
    "Split into few": (one("Split", "x", "y z", opset=18, num_outputs=1), "wrong-number-of-tensors", (2, 1)),
    "batches": (one("GatherND", "x index", opset=18, batch_dims=-3), "attribute-out-of-range", ("-3",)),
    "type": (model(node("Softmax", ["index"], ["o"]), node("Cast", ["o"], ["y"], to=1)), "operand-types", ("int64", "float16", 0)),
    "two types": (one("Add", "x index"), "operand-types", ("'y'", "int64", "float32", 1)),
    "type of a result": (one("Shape"), "operand-types", ("'y'", "float32", "int64", 0)),
    "type of an opaque one": (one("Softmax", "n", opset=11), "operand-types", ("'y'", "int64", 0)),
    "contrib operator": (
        model(node("QLinearSigmoid", ["x", "s", "", ""], ["y"], domain=CONTRIB), domains=(CONTRIB,)), "input-missing", (3,),
    ),
}  # fmt: skip


@pytest.mark.formats
@pytest.mark.parametrize("case", BAD)
def test_a_node_that_does_not_fit_its_operator(case: str) -> None:
    data, rule, holds = BAD[case]
    with refused(QConvertError, rule, holds=holds):
        read_bytes(data, "m")


@pytest.mark.formats
def test_types_of_a_later_opset_are_told_with_that_opset() -> None:
    """tf2onnx writes int16 at opset 17, which QuantizeLinear takes from 21 on; no opset adds float32 to int64."""
    zero = node("Constant", [], ["z"], value=numpy_helper.from_array(np.zeros((), np.int16)))
    scale = node("Constant", [], ["one"], value=numpy_helper.from_array(np.ones((), np.float32)))
    nodes = (scale, zero, node("QuantizeLinear", ["x", "one", "z"], ["q"]), node("DequantizeLinear", ["q", "one", "z"], ["y"]))
    with refused(InvalidModelError, "operand-types", holds=("int16", "int8 or uint8")) as caught:
        read_bytes(model(*nodes), "m")
    assert caught.value.remedy == "From opset 21 on QuantizeLinear takes these types: export the model with that opset."
    with refused(InvalidModelError, "operand-types") as caught:
        read_bytes(one("Add", "x index"), "m")
    assert not caught.value.remedy


@pytest.mark.formats
def test_also_in_the_graphs_inside_a_node() -> None:
    body = helper.make_graph([node("EyeLike", [""], ["o"])], "b", [], [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)])
    condition = node("Constant", [], ["c"], value=helper.make_tensor("v", TensorProto.BOOL, [], [True]))
    data = model(condition, node("If", ["c"], ["y"], then_branch=body, else_branch=body))
    with refused(InvalidModelError, "input-missing", holds=("'o'", "EyeLike", 0)):
        read_bytes(data, "m")


@pytest.mark.formats
def test_attributes_that_contradict_themselves() -> None:
    softmax = node("Softmax", ["x"], ["y"], axis=1)
    softmax.attribute[0].f = 2.0
    with refused(InvalidModelError, "attribute-type", holds=("'axis'",)):
        read_bytes(model(softmax), "m")
    softmax = node("Softmax", ["x"], ["y"], axis=1)
    softmax.attribute[0].ClearField("type")
    with refused(InvalidModelError, "attribute-type", holds=("'axis'",)):
        read_bytes(model(softmax), "m")


@pytest.mark.end_to_end
@pytest.mark.cross_section
def test_the_process_lives_where_an_empty_input_would_have_ended_it(tmp_path: Path) -> None:
    """onnx's shape inference follows a null pointer there, so the reader must not come so far."""
    encoder = node("LabelEncoder", [""], ["y"], domain="ai.onnx.ml", keys_strings=["a"], values_int64s=[1])
    (tmp_path / "m.onnx").write_bytes(model(encoder, domains=("ai.onnx.ml",)))
    script = f"import qconvert; qconvert.load({str(tmp_path / 'm.onnx')!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "InvalidModelError: " in done.stderr


@pytest.mark.onnxruntime
def test_every_contrib_operator_that_is_read_has_onnxruntimes_signature() -> None:
    from onnxruntime.capi import _pybind_state as runtime

    options = runtime.schemadef.OpSchema.FormalParameterOption
    schemas = {item.name: item for item in runtime.get_all_operator_schema() if item.domain == CONTRIB}
    read = {name.removeprefix(f"{CONTRIB}.") for name in operators("onnx", "read") if name.startswith(f"{CONTRIB}.")}
    assert read == set(CONTRIB_SIGNATURES)
    for name in read:
        ours, schema = signature(name, CONTRIB, 1), schemas[name]
        assert ours is not None
        assert (name, ours.inputs) == (name, (schema.min_input, schema.max_input))
        assert (name, ours.outputs) == (name, (schema.min_output, schema.max_output))
        assert (name, ours.needed) == (name, tuple(item.option != options.Optional for item in schema.inputs))
        assert (name, set(ours.attributes)) == (name, set(schema.attributes))
        assert (name, ours.required) == (name, {key for key, value in schema.attributes.items() if value.required})


@pytest.mark.formats
def test_operators_that_nobody_knows_are_not_judged() -> None:
    assert signature("Foo", "", 17) is None
    assert signature("Relu", "somebody", 1) is None
    assert signature("Relu", "somebody", 2**40) is None and signature("Relu", "", -(2**40)) is None  # the library takes 32 bits
    graph = read_bytes(model(node("Foo", ["", "x"], ["y", "z"], domain="own", size=[1]), domains=("own",)), "m")
    assert [op.kind for op in graph.ops] == ["Opaque"]
