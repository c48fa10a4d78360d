"""Custom operators: carried from TFLite to ONNX and back, and from ONNX's other domains to TFLite and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from custom_models import OPTIONS, altered, custom_model, foreign_model
from flatbuffers import flexbuffers
from onnx import TensorProto, helper
from refusals import refused
from tflite_models import OpSpec, TensorSpec, model

from qconvert import convert, diff, load
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.flatbuffers import pack_model, unpack_view
from qconvert.formats.reading.flexbuffer import encode_flexbuffer
from qconvert.formats.tflite import schema
from qconvert.operators.opaque import TFLITE_DOMAIN

pytestmark = pytest.mark.litert


def custom_of(path: Path) -> tuple[str, bytes, int]:
    """Code, options and version of the one custom operator of a .tflite file."""
    from qconvert.formats.tflite.schema import root

    found = root(path.read_bytes())
    codes = [(code.customCode, code.version) for code in found.operatorCodes]
    ((code, version, options),) = [
        (*codes[op.opcodeIndex], bytes(op.customOptions)) for op in found.subgraphs[0].operators if codes[op.opcodeIndex][0] is not None
    ]
    return code.decode(), options, version


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("options", [OPTIONS, b"\1\2\3\0raw", b"", encode_flexbuffer([1, "x"])], ids=["map", "bytes", "none", "vector"])
def test_there_and_back(options: Any, dtype: str, tmp_path: Path) -> None:
    """The same operator with the same bytes, scales and zero points; in ONNX a node on the stored integers in TFLite's layout."""
    source, there, back = tmp_path / "a.tflite", tmp_path / "a.onnx", tmp_path / "b.tflite"
    source.write_bytes(custom_model(options=options, dtype=dtype))
    report = convert(source, there)
    assert report.custom == {f"{TFLITE_DOMAIN}.My-Op.2": 1}
    (warning,) = [change for change in report.changes if change.code == "custom-operator"]
    assert "My-Op.2 (1)" in warning.text
    (node,) = [node for node in onnx.load(there).graph.node if node.domain == TFLITE_DOMAIN]
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    assert (node.op_type, attributes["custom_code"], attributes["custom_version"]) == ("My_Op_2", b"My-Op.2", 3)
    assert attributes["output_0_scale"] == [0.25] and attributes["output_0_zero_point"] == [7 if dtype == "int8" else 135]
    if options is OPTIONS:
        assert (attributes["n"], attributes["on"], attributes["list"]) == (5, 1, [1, 2, 3])
        assert attributes["alpha"] == np.float32(0.3) and "deep" not in attributes
    types = {value.name: value.type.tensor_type for value in onnx.load(there).graph.value_info}
    for name in (node.input[0], node.output[0]):
        assert types[name].elem_type == {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}[dtype]
        assert [size.dim_value for size in types[name].shape.dim] == [1, 8, 8, 4]
    convert(there, back)
    assert custom_of(back) == custom_of(source)
    assert diff(load(source), load(back)) == []


def test_a_changed_attribute_rules(tmp_path: Path) -> None:
    """What is changed in the ONNX file reaches the options; the rest of them stays, nested values too."""
    source, there, back = tmp_path / "a.tflite", tmp_path / "a.onnx", tmp_path / "b.tflite"
    source.write_bytes(custom_model())
    convert(source, there)
    changed = onnx.load(there)
    (node,) = [node for node in changed.graph.node if node.domain == TFLITE_DOMAIN]
    for item in node.attribute:
        if item.name == "n":
            item.i = 6
    node.attribute.remove(next(item for item in node.attribute if item.name == "name"))
    node.attribute.append(helper.make_attribute("added", [0.5, 1.5]))
    onnx.save(changed, there)
    convert(there, back)
    found = flexbuffers.Loads(custom_of(back)[1])
    assert found == {**{key: value for key, value in OPTIONS.items() if key != "name"}, "n": 6, "added": [0.5, 1.5]}


def test_a_foreign_node_there_and_back(tmp_path: Path) -> None:
    """It is the same node with the same attributes, of types that FlexBuffers do not have too, on data channels first."""
    source, there, back = tmp_path / "a.onnx", tmp_path / "a.tflite", tmp_path / "b.onnx"
    table = helper.make_tensor("t", TensorProto.FLOAT16, [2], np.array([1, 2], np.float16))
    attributes = {"alpha": 0.5, "kinds": ["u", "v"], "n": 2**40, "table": table, "ints": [1, 2], "raw": b"\xff\0"}
    onnx.save(foreign_model(**attributes), source)
    report = convert(source, there)
    assert report.custom == {"my.domain.Twist": 1}
    code, options, _ = custom_of(there)
    found = flexbuffers.Loads(options)
    assert code == "my.domain.Twist"
    assert (found["domain"], found["op_type"], found["version"]) == ("my.domain", "Twist", 4)
    stated = {"alpha": 0.5, "kinds": ["u", "v"], "n": 2**40, "ints": [1, 2]}
    assert {key: found["attributes"][key] for key in stated} == stated and "table" not in found["attributes"]
    convert(there, back)
    nodes = [[node for node in onnx.load(path).graph.node if node.domain] for path in (source, back)]
    assert list(nodes[0][0].attribute) == list(nodes[1][0].attribute)
    assert {item.domain: item.version for item in onnx.load(back).opset_import}["my.domain"] == 4
    shapes = [load(path).tensors[node.output[0]].shape for path, (node,) in zip((source, back), nodes, strict=True)]
    assert shapes == [(1, 3, 6, 6)] * 2


def test_options_that_only_look_like_a_node_stay_options(tmp_path: Path) -> None:
    """One changed byte, or another code, and it is TFLite's own custom operator, with the bytes as they are."""
    source, there = tmp_path / "a.onnx", tmp_path / "a.tflite"
    onnx.save(foreign_model(alpha=0.5), source)
    convert(source, there)
    _, options, _ = custom_of(there)
    place = options.index(b"alpha") + 1
    for code, content in (("my.domain.Twist", options[:place] + b"L" + options[place + 1 :]), ("other", options)):
        changed = tmp_path / "c.tflite"
        changed.write_bytes(altered(there.read_bytes(), code, content))
        (op,) = [op for op in load(changed).ops if op.kind == "Opaque"]
        assert (op["domain"], op["op_type"]) == (TFLITE_DOMAIN, code)
        convert(changed, tmp_path / "d.onnx", force=True)
        convert(tmp_path / "d.onnx", tmp_path / "e.tflite", force=True)
        assert custom_of(tmp_path / "e.tflite") == (code, content, 1)


@pytest.mark.parametrize("choice", ["carry", "refuse", "keep"])
@pytest.mark.parametrize("code", ["My", "ethos-u", "edgetpu-custom-op", "NeutronGraph", "XC_conv2d_v2"])
def test_what_is_refused(code: str, choice: str, tmp_path: Path) -> None:
    source = tmp_path / "a.tflite"
    source.write_bytes(custom_model(code, b"blob"))
    for result in (tmp_path / "a.onnx", tmp_path / "b.tflite"):
        if choice == "keep" or (code == "My" and choice == "carry"):
            convert(source, result, custom=choice)
            continue
        with refused(
            UnsupportedError, "operators-not-covered" if code == "My" else "compiled-for-accelerator", holds=(f"{code} (1)",)
        ) as caught:
            convert(source, result, custom=choice)
        assert caught.value.code == "unsupported-op" and not result.exists()
        assert ("before the compiler" in caught.value.remedy) == (code != "My")


def _compiled(code: str, scratch: TensorSpec) -> bytes:
    """A compiled operator after another, with scratch memory and its instructions as inputs."""
    x, a, y = (TensorSpec(name, (1, 4), "int8", 0.1, 0) for name in "xay")
    ops = [OpSpec(code, ["stream", scratch.name, "a"], ["y"], None, 1, True), OpSpec("RELU", ["x"], ["a"])]
    return model(ops[::-1], [x, a, y, scratch, TensorSpec("stream", (8,), "uint8", data=np.arange(8))], ["x"], ["y"])


@pytest.mark.parametrize("is_variable", [False, True])
@pytest.mark.parametrize(("code", "tool"), [("ethos-u", "Vela"), ("XC_conv2d_v2", "xformer")])
def test_scratch_memory_of_compiled_operators_names_the_compiler(code: str, tool: str, is_variable: bool, tmp_path: Path) -> None:
    (tmp_path / "a.tflite").write_bytes(_compiled(code, TensorSpec("scratch", (1000,), "uint8", is_variable=is_variable)))
    with refused(UnsupportedError, "compiled-for-accelerator", holds=(tool,)) as caught:
        load(tmp_path / "a.tflite")
    assert caught.value.code == "unsupported-op" and "before the compiler" in caught.value.remedy


def test_a_list_of_tensors_names_tensorflows_loops(tmp_path: Path) -> None:
    """VARIANT, type 14, which Flex operators write."""
    made = unpack_view(schema.root(_compiled("FlexTensorListReserve", TensorSpec("list", (), "uint8"))))
    made.subgraphs[0].tensors[3].type = 14
    (tmp_path / "a.tflite").write_bytes(pack_model(made))
    with refused(UnsupportedError, "tensor-list", holds=("FlexTensorListReserve",)) as caught:
        load(tmp_path / "a.tflite")
    assert caught.value.code == "unsupported-op" and "unroll=True" in caught.value.remedy


def test_a_node_of_onnx_itself_is_not_carried(tmp_path: Path) -> None:
    """Det has no form in TFLite: that is a rule, and no custom operator would run it."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [2, 3, 3]), ("y", [2])))
    graph = helper.make_graph([helper.make_node("Det", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "a.onnx")
    with refused(UnsupportedError, "target-rules", holds=("ai.onnx.Det",)):
        convert(tmp_path / "a.onnx", tmp_path / "a.tflite", custom="keep")


def test_flex_operators_are_named_as_tensorflows(tmp_path: Path) -> None:
    source = tmp_path / "a.tflite"
    source.write_bytes(custom_model("FlexErf", encode_flexbuffer(["Erf", b"\n\3Erf"])))
    report = convert(source, tmp_path / "a.onnx")
    assert any("FlexErf (TensorFlow's Erf, for the Flex delegate) (1)" in change.text for change in report.changes)


@pytest.mark.parametrize("code", [None, "", b"\xff\xfe"], ids=["none", "empty", "no UTF-8"])
def test_a_code_that_is_none(code: Any, tmp_path: Path) -> None:
    data = (
        altered(custom_model("XXXXXX"), code)
        if code is None or isinstance(code, str)
        else custom_model("XX").replace(b"XX\0", code + b"\0")
    )
    (tmp_path / "a.tflite").write_bytes(data)
    with refused(InvalidModelError, "operator-without-name"):
        load(tmp_path / "a.tflite")


def test_a_code_that_is_a_builtins_name_is_a_custom_operator(tmp_path: Path) -> None:
    (tmp_path / "a.tflite").write_bytes(custom_model("RELU", b"x"))
    assert [op.kind for op in load(tmp_path / "a.tflite").ops] == ["Conv", "Opaque", "Conv"]
    convert(tmp_path / "a.tflite", tmp_path / "b.tflite")
    assert custom_of(tmp_path / "b.tflite") == ("RELU", b"x", 3)


def test_megabytes_of_options_and_many_operators(tmp_path: Path) -> None:
    """Options above the limits are carried as bytes alone; a chain of 3,000 operators stays linear."""
    source, there, back = tmp_path / "a.tflite", tmp_path / "a.onnx", tmp_path / "b.tflite"
    big = encode_flexbuffer({"blob": bytes(3 * 2**20)})
    source.write_bytes(custom_model(options=big))
    convert(source, there)
    convert(there, back)
    assert custom_of(back) == ("My-Op.2", big, 3)
    count = 3000
    tensors = [TensorSpec(f"t{index}", (1, 4), "int8", 0.5, 1) for index in range(count + 1)]
    ops = [OpSpec("My", [f"t{index}"], [f"t{index + 1}"], {"n": 1}, custom=True) for index in range(count)]
    source.write_bytes(model(ops, tensors, ["t0"], [f"t{count}"]))
    assert convert(source, there, force=True).custom == {f"{TFLITE_DOMAIN}.My": count}
    convert(there, back, force=True)
    assert diff(load(source), load(back)) == []


@pytest.mark.parametrize(
    ("name", "value", "broken"),
    [
        ("output_0_scale", "text", ("damaged-payload",)),
        ("output_0_scale", [0.5, 0.5], ("damaged-payload",)),
        ("output_0_zero_point", [1, 2], ("damaged-payload",)),
        ("output_0_zero_point", [4000], ("zero-point-outside-type",)),
        ("output_0_scale", [-1.0], ("scale-not-positive",)),
        ("custom_version", "x", ("damaged-payload", "custom_version")),
        ("custom_options", b"raw", ("damaged-payload",)),
    ],
)
def test_a_node_that_contradicts_itself_is_one_error(name: str, value: Any, broken: tuple[Any, ...], tmp_path: Path) -> None:
    (tmp_path / "a.tflite").write_bytes(custom_model())
    convert(tmp_path / "a.tflite", tmp_path / "a.onnx")
    changed = onnx.load(tmp_path / "a.onnx")
    (node,) = [node for node in changed.graph.node if node.domain == TFLITE_DOMAIN]
    node.attribute.remove(next(item for item in node.attribute if item.name == name))
    node.attribute.append(helper.make_attribute(name, value))
    onnx.save(changed, tmp_path / "a.onnx")
    with refused(InvalidModelError, broken[0], holds=broken[1:]):
        load(tmp_path / "a.onnx")
