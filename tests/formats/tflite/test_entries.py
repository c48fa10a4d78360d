"""Signatures go to ONNX and come back; a file of several subgraphs is refused by their names; float16 weights and open batch sizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from differential import compare
from formats.tflite.written import codes, opened, rewritten
from loaded import tflite_graph
from refusals import refused
from tflite_models import OpSpec, TensorSpec, model, run_litert

from qconvert import Graph, check, convert, load, save
from qconvert.errors import InvalidModelError, OptionError, UnsupportedError
from qconvert.formats.flatbuffers import pack_model, unpack_view
from qconvert.formats.tflite import schema
from qconvert.graph.metadata import SOURCE_SIGNATURES


def _relu(signatures: dict[str, Any] | None) -> bytes:
    tensors = [TensorSpec(name, (1, 2, 3, 4), "int8", 0.05, 3) for name in "xy"]
    return model([OpSpec("RELU", ["x"], ["y"])], tensors, ["x"], ["y"], signatures=signatures)


def _signatures(graph: Graph) -> list[tuple[str, dict[str, str], dict[str, str]]]:
    return [(found.key, dict(found.inputs), dict(found.outputs)) for found in graph.signatures]


@pytest.mark.litert
@pytest.mark.parametrize("options", [{}, {"io_layout": "nchw"}, {"io": "float"}])
def test_signatures_outlive_the_way_through_onnx(tmp_path: Path, options: dict[str, Any]) -> None:
    source, middle, result = (tmp_path / name for name in ("a.tflite", "b.onnx", "c.tflite"))
    source.write_bytes(_relu({"serve": ({"image": "x"}, {"scores": "y"}), "again": ({"picture": "x"}, {"marks": "y"})}))
    wanted = [("serve", {"image": "x"}, {"scores": "y"}), ("again", {"picture": "x"}, {"marks": "y"})]
    convert(source, middle, **options)
    assert _signatures(load(middle)) == wanted
    assert SOURCE_SIGNATURES not in load(middle).metadata
    convert(middle, result)
    assert _signatures(load(result)) == wanted
    (found, _) = opened(result.read_bytes()).signatureDefs
    assert (found.signatureKey, found.inputs[0].name) == (b"serve", b"image")


@pytest.mark.formats
def test_a_note_of_signatures_is_checked(tmp_path: Path) -> None:
    (tmp_path / "a.tflite").write_bytes(_relu({"serve": ({"image": "x"}, {"scores": "y"})}))
    path = tmp_path / "a.onnx"
    convert(tmp_path / "a.tflite", path)
    made = onnx.load(path)
    (entry,) = [item for item in made.metadata_props if item.key == SOURCE_SIGNATURES]
    entry.value = entry.value.replace('"y"', '"gone"')
    onnx.save(made, path)
    assert load(path).signatures == ()
    entry.value = "[1]"
    onnx.save(made, path)
    with refused(InvalidModelError, "malformed-metadata"):
        load(path)


def _with_second_subgraph(signatures: dict[str, Any] | None, indices: tuple[int, ...]) -> bytes:
    made = unpack_view(schema.root(_relu(signatures)))
    made.subgraphs = [made.subgraphs[0], unpack_view(schema.root(_relu(None))).subgraphs[0]]
    made.subgraphs[1].name = "decoder"
    for found, index in zip(made.signatureDefs or [], indices, strict=True):
        found.subgraphIndex = index
    return pack_model(made)


@pytest.mark.formats
def test_a_second_subgraph_that_nothing_enters_is_refused_by_name() -> None:
    with refused(UnsupportedError, "several-subgraphs", holds=("'decoder'", 1)):
        tflite_graph(_with_second_subgraph(None, ()))


@pytest.mark.formats
def test_a_signature_of_another_subgraph_enters_a_function(tmp_path: Path) -> None:
    """It survives a file of either format that has several entry points; ONNX has one, and says which are too many."""
    both = {"encode": ({"x": "x"}, {"y": "y"}), "decode": ({"given": "x"}, {"found": "y"})}
    graph = tflite_graph(_with_second_subgraph(both, (0, 1)))
    assert [(item.key, item.function) for item in graph.signatures] == [("encode", ""), ("decode", "decoder")]
    assert graph.signatures[1].inputs == {"given": "x"} and [op.kind for op in graph.functions["decoder"].ops] == ["Relu"]
    for suffix in ("tflite", "qgraph"):
        save(graph, tmp_path / f"m.{suffix}")
        again = load(tmp_path / f"m.{suffix}")
        assert again.signatures == graph.signatures and again.functions.keys() == graph.functions.keys()
    with refused(UnsupportedError, "several-entry-points", holds=("'decode'", "'encode'")):
        convert(tmp_path / "m.tflite", tmp_path / "m.onnx")
    with refused(InvalidModelError, "unknown-subgraph", holds=(2,)):
        tflite_graph(_with_second_subgraph(both, (0, 2)))


@pytest.mark.litert
def test_both_signatures_of_a_file_run_after_a_conversion(tmp_path: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter

    source = Path(__file__).parents[3] / "fixtures" / "recurrent" / "two_signatures.tflite"
    convert(source, tmp_path / "r.tflite")
    given = {"encode": {"x": np.array([[1, -2, 3, 0.5]], np.float32)}, "decode": {"code": np.array([[0.3, -1]], np.float32)}}
    for key, feed in given.items():
        found = [Interpreter(str(path)).get_signature_runner(key)(**feed) for path in (source, tmp_path / "r.tflite")]
        assert found[0].keys() == found[1].keys() and all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.formats
def test_a_second_subgraph_that_no_signature_reaches_is_left_out() -> None:
    graph = tflite_graph(_with_second_subgraph({"serve": ({"x": "x"}, {"y": "y"})}, (0,)))
    assert [op.kind for op in graph.ops] == ["Relu"]


def _half(builtin: str) -> bytes:
    """A float convolution whose weights stand as float16 before a DEQUANTIZE."""
    shape = {"CONV_2D": (4, 3, 3, 2), "DEPTHWISE_CONV_2D": (1, 3, 3, 4), "TRANSPOSE_CONV": (4, 2, 2, 2), "FULLY_CONNECTED": (4, 2)}[builtin]
    values = np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float16)
    channels = 4 if builtin == "DEPTHWISE_CONV_2D" else 2
    x = TensorSpec("x", (1, 4, 4, channels), "float32", shape_signature=(-1, 4, 4, channels))
    side = 8 if builtin == "TRANSPOSE_CONV" else 4
    y = TensorSpec("y", (1, side, side, 4), "float32", shape_signature=(-1, side, side, 4))
    bias = TensorSpec("b", (4,), "float16", data=np.arange(4).astype(np.float16))
    tensors = [
        x,
        y,
        TensorSpec("h", shape, "float16", data=values),
        TensorSpec("w", shape, "float32"),
        bias,
        TensorSpec("c", (4,), "float32"),
    ]
    ops = [OpSpec("DEQUANTIZE", ["h"], ["w"], {}), OpSpec("DEQUANTIZE", ["b"], ["c"], {})]
    options: dict[str, Any] = {"padding": 0, "strideH": 1, "strideW": 1}
    operands: list[str | None] = ["x", "w", "c"]
    if builtin == "TRANSPOSE_CONV":
        options, operands = {"padding": 0, "strideH": 2, "strideW": 2}, ["s", "w", "x", "c"]
        tensors += [TensorSpec("n", (4,), "int32"), TensorSpec("first", (1,), "int32"), TensorSpec("s", (4,), "int32")]
        tensors += [
            TensorSpec(name, (len(v),), "int32", data=np.array(v, np.int32)) for name, v in (("0", [0]), ("1", [1]), ("d", [8, 8, 4]))
        ]
        ops += [OpSpec("SHAPE", ["x"], ["n"], {"outType": 2}), OpSpec("SLICE", ["n", "0", "1"], ["first"]),
                OpSpec("CONCATENATION", ["first", "d"], ["s"], {"axis": 0})]  # fmt: skip
    elif builtin == "DEPTHWISE_CONV_2D":
        options["depthMultiplier"] = 1
    elif builtin == "FULLY_CONNECTED":
        options = {"keepNumDims": True}
    return model([*ops, OpSpec(builtin, operands, ["y"], options)], tensors, ["x"], ["y"])


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("builtin", ["CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED"])
def test_float16_weights_behind_a_dequantize(builtin: str) -> None:
    data = _half(builtin)
    graph = tflite_graph(data)
    assert {tensor.dtype for tensor in graph.constants()} <= {"float16", "int64", "int32"}
    feed = np.random.default_rng(2).uniform(-1, 1, (1, 4, 4, 4 if builtin == "DEPTHWISE_CONV_2D" else 2)).astype(np.float32)
    (item,) = compare(data, [feed])
    assert item.largest < 1e-6
    result = rewritten(data)
    assert [name for name, _ in codes(result)].count("DEQUANTIZE") == 2
    np.testing.assert_array_equal(run_litert(result, [feed])[0], run_litert(data, [feed])[0])


TWO = Path(__file__).parents[3] / "fixtures" / "recurrent" / "two_signatures.tflite"


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(("key", "kinds"), [("encode", ["Gemm"]), ("decode", ["Gemm", "Tanh"])])
def test_one_of_several_signatures_is_chosen(key: str, kinds: list[str], tmp_path: Path) -> None:
    """Read, converted and checked by itself; LiteRT's runner of that signature is the judge."""
    from ai_edge_litert.interpreter import Interpreter

    from qconvert import check

    graph = load(TWO, signature=key)
    assert [op.kind for op in graph.ops] == kinds and not graph.functions and [item.key for item in graph.signatures] == [key]
    convert(TWO, tmp_path / "m.onnx", signature=key)
    assert check(TWO, tmp_path / "m.onnx", samples=1, per_op=True).passed
    convert(TWO, tmp_path / "m.tflite", signature=key)
    (argument,) = graph.signatures[0].inputs
    feed = {argument: np.arange(4 if key == "encode" else 2, dtype=np.float32)[None]}
    found = [Interpreter(str(path)).get_signature_runner(key)(**feed) for path in (TWO, tmp_path / "m.tflite")]
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.litert
def test_a_check_says_which_of_several_it_compares(tmp_path: Path) -> None:
    from qconvert import check

    convert(TWO, tmp_path / "m.tflite")
    report = check(TWO, tmp_path / "m.tflite", samples=1)
    assert report.passed and "compares the entry point 'decode', not 'encode'" in report.notes[0]
    assert not check(TWO, tmp_path / "m.tflite", samples=1, signature="decode").notes


@pytest.mark.formats
def test_a_signature_that_there_is_not_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with refused(OptionError, "unknown-signature", holds=("'run'",)) as caught:
        convert(TWO, tmp_path / "m.onnx", signature="run")
    assert caught.value.remedy == "The file has: 'decode', 'encode'." and not (tmp_path / "m.onnx").exists()
    with refused(OptionError, "unknown-signature", holds=("'all'",)) as caught:
        convert(TWO, tmp_path / "m.onnx", signature="all")
    assert "`qconvert convert --signature all` writes a file for each" in caught.value.remedy
    (tmp_path / "plain.tflite").write_bytes(_relu(None))
    with refused(OptionError, "unknown-signature", holds=("no signatures",)) as caught:
        convert(tmp_path / "plain.tflite", tmp_path / "m.onnx", signature="foo")
    assert caught.value.remedy == "Leave out --signature."
    (tmp_path / "twice.tflite").write_bytes(_with_second_subgraph({"a": ({"x": "x"}, {"y": "y"}), "b": ({"x": "x"}, {"y": "y"})}, (0, 1)))
    with refused(UnsupportedError, "several-entry-points") as caught:
        convert(tmp_path / "twice.tflite", tmp_path / "m.onnx")
    assert "--signature" in caught.value.remedy


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.end_to_end
def test_every_signature_gets_a_file_of_its_own(tmp_path: Path) -> None:
    """ONNX has one entry point: the error names --signature all, which writes one file for each, and both compute what LiteRT does."""
    import onnxruntime
    from ai_edge_litert.interpreter import Interpreter

    with refused(UnsupportedError, "several-entry-points") as caught:
        convert(TWO, tmp_path / "r.onnx")
    assert "--signature all" in caught.value.remedy
    command = [sys.executable, "-m", "qconvert", "convert", str(TWO), str(tmp_path / "r.onnx"), "--signature", "all"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.decode.onnx", "r.encode.onnx"]
    for key, feed in {"encode": np.array([[1, -2, 3, 0.5]], np.float32), "decode": np.array([[0.3, -1]], np.float32)}.items():
        session = onnxruntime.InferenceSession(tmp_path / f"r.{key}.onnx")
        name = {"encode": "x", "decode": "code"}[key]
        (wanted,) = Interpreter(str(TWO)).get_signature_runner(key)(**{name: feed}).values()
        np.testing.assert_allclose(session.run(None, {session.get_inputs()[0].name: feed})[0], wanted, atol=1e-6)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
def test_a_signature_may_name_the_output_that_is_called_as_its_input(tmp_path: Path) -> None:
    """TensorFlow's converter finds tensors by their names: an input that is an output too has two tensors of one name."""
    tensors = [TensorSpec(name, (1, 4), "uint8", 0.1, 3) for name in ("given", "relu", "again")]
    ops = [OpSpec("RELU", ["given"], ["relu"]), OpSpec("RELU", ["relu"], ["again"])]
    entry = {"serve": ({"x": "again"}, {"y": "relu", "z": "again"})}
    source = tmp_path / "m.tflite"
    source.write_bytes(model(ops, tensors, ["given"], ["relu", "again"], signatures=entry).replace(b"again", b"given"))
    assert _signatures(load(source)) == [("serve", {"x": "given"}, {"y": "relu", "z": "given_1"})]
    convert(source, tmp_path / "m.onnx")
    assert check(source, tmp_path / "m.onnx").passed
