"""The conversion that a result says it comes from, made once more: what was altered since is named, also where no input shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from formats.torch.written import needs_torch
from onnx import helper
from onnx_nodes import model_of

from qconvert import check, convert, load, save
from qconvert.checking.file_in_runtime import sides_of
from qconvert.checking.repeated_conversion import RepeatedConversion, repeat_conversion
from qconvert.graph import Graph
from qconvert.graph.metadata import OPTIONS, TRANSPOSED, origin

FIXTURES = Path(__file__).parents[2] / "fixtures"
WAKEWORD, ATTENTION = FIXTURES / "tiny_wakeword_int8.tflite", FIXTURES / "onnx" / "torch_fx_fbgemm_attention.onnx"
CLASSIFIER = FIXTURES / "torch/classifier/eager_fbgemm_frozen.pt"


def again(source: Path, result: Path) -> RepeatedConversion:
    return repeat_conversion(*sides_of(source, result, (), {})[0])


def altered(source: Path, result: Path, change: Callable[[Graph], Graph], **options: Any) -> Path:
    """A conversion of `source`, read, changed and written over itself."""
    convert(source, result, **options)
    save(change(load(result)), result, force=True)
    return result


def with_attributes(kind: str, **attributes: Any) -> Callable[[Graph], Graph]:
    def change(graph: Graph) -> Graph:
        place = next(index for index, op in enumerate(graph.ops) if op.kind == kind)
        ops = [op.with_attributes(**attributes) if index == place else op for index, op in enumerate(graph.ops)]
        return graph.evolve(ops=ops)

    return change


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(
    ("source", "suffix", "change", "said"),
    [
        (WAKEWORD, "tflite", with_attributes("Softmax", beta=1.25), "SOFTMAX #10 ('StatefulPartitionedCall:0'): "),
        (WAKEWORD, "tflite", with_attributes("Gemm", activation="relu_n1_to_1"), "the activation is relu_n1_to_1 instead of none"),
        (ATTENTION, "onnx", with_attributes("LayerNormalization", epsilon=0.01), "('/norm/QuantizeLinear_output_0'): "),
        (ATTENTION, "onnx", with_attributes("Softmax", axis=2), "Softmax"),
    ],
    ids=["beta", "activation", "epsilon", "axis"],
)
def test_an_attribute_that_hardly_shows(source: Path, suffix: str, change: Callable[[Graph], Graph], said: str, tmp_path: Path) -> None:
    report = check(source, altered(source, tmp_path / f"m.{suffix}", change), samples=1)
    assert report.verdict == "not equal"
    assert said in report.problems[0]


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(
    ("source", "suffix", "change", "said"),
    [
        (WAKEWORD, "tflite", with_attributes("Softmax", beta=1.25), "beta is 1.25 instead of 1"),
        (WAKEWORD, "tflite", with_attributes("Gemm", activation="relu_n1_to_1"), "the activation is relu_n1_to_1 instead of none"),
        (ATTENTION, "onnx", with_attributes("LayerNormalization", epsilon=0.01), "epsilon is 0.01 instead of 1e-05"),
    ],
    ids=["beta", "activation", "epsilon"],
)
def test_an_attribute_of_a_result_that_says_nothing_of_itself(
    source: Path, suffix: str, change: Callable[[Graph], Graph], said: str, tmp_path: Path
) -> None:
    def bare(graph: Graph) -> Graph:
        return change(graph).evolve(metadata={key: text for key, text in graph.metadata.items() if "qconvert" not in key})

    report = check(source, altered(source, tmp_path / f"m.{suffix}", bare), samples=1)
    assert report.verdict == "not equal"
    assert said in report.problems[0]


_ENGINE = [("Quantize", ""), ("Add", "qnnpack"), ("GlobalAveragePool", "")]


@pytest.fixture(scope="module")
def conversions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of fbgemm as ONNX and for PyTorch."""
    folder = tmp_path_factory.mktemp("conversions")
    convert(CLASSIFIER, folder / "good.onnx", target="generic")
    convert(CLASSIFIER, folder / "good.pt2")
    return folder


@pytest.mark.onnxruntime
@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
@pytest.mark.parametrize(("kind", "arithmetic"), _ENGINE)
def test_the_arithmetic_of_an_engine(kind: str, arithmetic: str, suffix: str, conversions: Path, tmp_path: Path) -> None:
    """Another engine's, or none, differs in a few integers next to ties, which a check of outputs hardly meets."""
    change = with_attributes(kind, arithmetic=arithmetic)
    save(change(load(conversions / f"good.{suffix}")), tmp_path / f"m.{suffix}")
    report = check(CLASSIFIER, tmp_path / f"m.{suffix}", samples=1)
    assert report.verdict == "not equal" and "arithmetic" in report.problems[0]


@pytest.mark.onnxruntime
@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
@pytest.mark.parametrize(("kind", "arithmetic"), [("Add", "qnnpack"), ("GlobalAveragePool", "qnnpack_average")])
def test_the_arithmetic_of_an_engine_in_a_result_that_says_nothing(
    kind: str, arithmetic: str, suffix: str, conversions: Path, tmp_path: Path
) -> None:
    changed = with_attributes(kind, arithmetic=arithmetic)(load(conversions / f"good.{suffix}"))
    bare = changed.evolve(metadata={key: text for key, text in changed.metadata.items() if "qconvert" not in key})
    save(bare, tmp_path / f"m.{suffix}")
    report = check(CLASSIFIER, tmp_path / f"m.{suffix}", samples=1)
    assert report.verdict == "not equal" and f"the arithmetic is {arithmetic} instead of fbgemm" in report.problems[0]


@pytest.mark.onnxruntime
@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_the_arithmetic_of_an_engine_passes_as_it_is(suffix: str, conversions: Path) -> None:
    report = check(CLASSIFIER, conversions / f"good.{suffix}", samples=1)
    assert report.verdict == "passed" and not any("cannot be repeated" in note for note in report.notes)


@pytest.mark.litert
def test_an_activation_that_the_quantization_implies_may_be_stated(tmp_path: Path) -> None:
    result = altered(WAKEWORD, tmp_path / "m.tflite", with_attributes("Conv", activation="relu_n1_to_1"))
    assert load(result).ops[0]["activation"] != load(WAKEWORD).ops[0]["activation"]
    assert check(WAKEWORD, result, samples=1).verdict == "passed"


@pytest.mark.onnxruntime
def test_a_constant_of_plain_integers(tmp_path: Path) -> None:
    """A row of a table that no input reads."""
    table, rows = np.arange(64, dtype=np.int64), np.array([3], np.int64)
    nodes = [helper.make_node("Gather", ["table", "rows"], ["y"], name="look"), helper.make_node("Mul", ["x", "y"], ["z"], name="mul")]
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [1]) for name in ("x", "z")]
    held = [helper.make_tensor(name, onnx.TensorProto.INT64, data.shape, data) for name, data in (("table", table), ("rows", rows))]
    inputs = [value[0], helper.make_tensor_value_info("rows", onnx.TensorProto.INT64, [1])]
    onnx.save(
        model_of(helper.make_graph(nodes, "g", inputs, value[1:], held[:1])),
        tmp_path / "m.onnx",
    )

    def change(graph: Graph) -> Graph:
        data = graph["table"].data.copy()  # type: ignore[union-attr]
        data[63] = 99
        return graph.evolve(tensors=[replace(graph["table"], data=data)])

    report = check(tmp_path / "m.onnx", altered(tmp_path / "m.onnx", tmp_path / "r.onnx", change), samples=1)
    said = "Gather look ('y'): differs from what the conversion makes: constant 'table': 1 of 64 elements differ, by at most 36; "
    assert [problem.startswith(said) for problem in report.problems] == [True]


@pytest.mark.formats
@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("onnx", {"io_layout": "nchw", "target": "ort-arm", "opset": 21}),
        ("onnx", {"form": "qoperator", "io": "float"}),
        ("onnx", {"passes": ["store_activations"], "numerics": "fast", "external_data": True}),
        ("tflite", {"target": "tflite-micro"}),
        ("qgraph", {}),
    ],
    ids=str,
)
def test_options_are_those_of_the_first_time(suffix: str, options: dict[str, Any], tmp_path: Path) -> None:
    source, result = FIXTURES / "tiny_kws_dscnn_int8.tflite", tmp_path / f"m.{suffix}"
    convert(source, result, min_tensor_sqnr=float("-inf"), **options)
    graph = load(result)
    assert OPTIONS in origin(graph.metadata)
    if suffix == "qgraph":
        return  # nothing runs it
    assert again(source, result) == RepeatedConversion(same=True)
    save(
        graph.evolve(metadata={**graph.metadata, "note": "written once more"}),
        result,
        force=True,
        **{key: options[key] for key in options if key == "form"},
    )
    assert again(source, result).altered == {}


@pytest.mark.formats
def test_the_record_of_layouts_and_the_signatures(tmp_path: Path) -> None:
    source = FIXTURES / "tiny_kws_dscnn_int8.tflite"
    recorded = altered(source, tmp_path / "m.onnx", lambda graph: graph.evolve(metadata={**graph.metadata, TRANSPOSED: '["input_1"]'}))
    assert again(source, recorded).altered == {
        "input_1": f"differs from what the conversion makes: the record of its layout ({TRANSPOSED}) differs"
    }
    convert(WAKEWORD, tmp_path / "s.tflite")
    (signature,) = load(tmp_path / "s.tflite").signatures
    renamed = replace(signature, inputs={f"{name}_2": tensor for name, tensor in signature.inputs.items()})
    unsigned = altered(WAKEWORD, tmp_path / "t.tflite", lambda graph: replace(graph, signatures=(renamed,)))
    assert list(again(WAKEWORD, unsigned).altered.values()) == ["differs from what the conversion makes: the signatures differ"]


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
def test_what_was_worked_on_since_is_compared_by_operators(tmp_path: Path) -> None:
    source, result = FIXTURES / "tiny_kws_dscnn_int8.tflite", tmp_path / "m.onnx"
    convert(source, result)
    model = onnx.load(result)
    nodes = model.graph.node
    place = next(index for index, node in enumerate(nodes) if node.op_type == "Conv")
    nodes.insert(place, helper.make_node("Neg", [nodes[place].input[0]], ["negative"], name="negative"))
    nodes.insert(place + 1, helper.make_node("Neg", ["negative"], ["positive"], name="positive"))
    nodes[place + 2].input[0] = "positive"
    onnx.save(model, result)
    assert again(source, result) == RepeatedConversion({}, rebuilt=True)
    report = check(source, result, samples=1)
    assert (report.verdict, len(report.operators) > 5) == ("passed", True)


@pytest.mark.litert
def test_a_result_of_another_source_says_so(tmp_path: Path) -> None:
    convert(WAKEWORD, tmp_path / "middle.onnx")
    convert(tmp_path / "middle.onnx", tmp_path / "m.tflite")
    report = check(WAKEWORD, tmp_path / "m.tflite", samples=1)
    assert report.verdict == "passed"
    assert "the metadata of m.tflite name another source file than tiny_wakeword_int8.tflite" in report.notes
