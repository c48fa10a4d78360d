"""--subgraph, --input-shape, --batch and --rename: what is asked of a graph once it is read, for every format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_graphs import random_graph
from refusals import refused

from qconvert import Graph, Op, Quantization, Signature, Tensor, check, convert, load
from qconvert.checking.adapted_files import write_adapted_copy
from qconvert.checking.file_in_runtime import sides_of
from qconvert.conversion.adapting import adapt_graph
from qconvert.conversion.adapting.input_sizes import with_batch
from qconvert.errors import OptionError
from qconvert.evaluate import evaluate
from qconvert.graph.metadata import SHIFTED
from qconvert.rules.validation import validate
from qconvert.testing import random_inputs

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
MOBILENET = FIXTURES / "coral_mobilenet_v2_224_uint8.tflite"
VISION = FIXTURES / "onnx" / "torch_fx_fbgemm_vision.onnx"
SSD = FIXTURES / "coco_ssd_mobilenet_v1_uint8.tflite"
FIRST, LAST = "MobilenetV2/expanded_conv_2/add", "MobilenetV2/expanded_conv_4/add"


def refuse(graph: Graph, rule: str, *named: object, where: str = "", **options: Any) -> None:
    with refused(OptionError, rule, where=where, holds=named):
        adapt_graph(graph, options)


def net(
    *ops: Op, inputs: Mapping[str, tuple[int | str, ...]], outputs: tuple[str, ...], constants: Mapping[str, Any] | None = None
) -> Graph:
    """A real graph; shapes of results are worked out."""
    from qconvert.operators.shapes_and_functions import infer

    tensors = {name: Tensor(name, "float32", shape) for name, shape in inputs.items()}
    for name, data in (constants or {}).items():
        array = np.asarray(data)
        tensors[name] = Tensor(name, str(array.dtype), array.shape, array)
    tensors |= {name: Tensor(name, "float32", None) for op in ops for name in op.outputs}
    return infer(Graph("net", tensors, ops, tuple(inputs), outputs))


def reached(graph: Graph) -> set[str]:
    """What depends on the inputs."""
    found = set(graph.inputs)
    for op in graph:
        if not found.isdisjoint(op.inputs):
            found.update(op.outputs)
    return found


# The batch.


def test_a_batch_gives_what_its_samples_give_one_by_one() -> None:
    """Random graphs of some thirty kinds: either an operator is named, or each sample comes out as it does alone."""
    done = 0
    for seed in range(120):
        graph = random_graph(seed)
        if len({graph[name].shape[0] for name in graph.inputs if graph[name].shape}) != 1:  # type: ignore[index]
            continue
        old = next(int(graph[name].shape[0]) for name in graph.inputs if graph[name].shape)  # type: ignore[index]
        try:
            new = with_batch(graph, 3 * old)
        except OptionError as error:
            assert error.where and "--batch" in error.reason
            continue
        validate(new)
        feeds = random_inputs(new, seed)
        alone = [
            evaluate(graph, {name: value[k * old : (k + 1) * old] if graph[name].shape else value for name, value in feeds.items()})
            for k in range(3)
        ]
        for name, found in evaluate(new, feeds).items():
            before = graph[name].static_shape
            assert before is not None
            axes = [axis for axis, (a, b) in enumerate(zip(before, found.shape, strict=True)) if a != b]
            assert len(axes) == (name in reached(graph)), (seed, name)
            expected = np.concatenate([run[name] for run in alone], axes[0]) if axes else alone[0][name]
            assert np.allclose(expected.astype(float), found.astype(float), atol=1e-5, equal_nan=True), (seed, name)
        done += 1
    assert done > 40


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [([1, -1], [4, 24]), ([1, 24], [4, 24]), ([-1, 24], None), ([0, -1], None), ([6, 4], [24, 4]), ([1, 1, 24], [4, 1, 24]), ([24], [96])],
)
def test_reshapes_with_fixed_sizes_are_mended(sizes: list[int], wanted: list[int] | None) -> None:
    """[1, -1] takes any number of elements, and would put the samples into one row."""
    graph = net(Op("Reshape", ("x", "sizes"), ("y",)), inputs={"x": (1, 6, 4)}, outputs=("y",), constants={"sizes": np.array(sizes)})
    new = with_batch(graph, 4)
    stored = new[new.ops[0].inputs[1]].data
    assert stored is not None and stored.tolist() == (wanted or sizes)


def test_rows_of_samples_behind_a_reshape_come_apart_again() -> None:
    """Time first: (5, 1, 4) -> (5, 4) -> (5, 1, 4) has a row for each step of each sample between."""
    ops = (Op("Reshape", ("x", "flat"), ("rows",)), Op("Reshape", ("rows", "back"), ("y",)))
    constants = {"flat": np.array([5, 4]), "back": np.array([5, 1, 4])}
    graph = net(Op("Transpose", ("a",), ("x",), {"perm": (1, 0, 2)}), *ops, inputs={"a": (1, 5, 4)}, outputs=("y",), constants=constants)
    new = with_batch(graph, 3)
    assert [new[name].shape for name in ("x", "rows", "y")] == [(5, 3, 4), (15, 4), (5, 3, 4)]
    data = np.arange(60, dtype=np.float32).reshape(3, 5, 4)
    assert np.array_equal(evaluate(new, {"a": data})["y"], data.transpose(1, 0, 2))


def test_a_token_for_one_sample_is_repeated_for_each() -> None:
    token = np.ones((1, 1, 4), np.float32)
    graph = net(Op("Concat", ("t", "x"), ("y",), {"axis": 1}), inputs={"x": (1, 5, 4)}, outputs=("y",), constants={"t": token})
    assert with_batch(graph, 3)["y"].shape == (3, 6, 4)


@pytest.mark.parametrize(
    ("op", "constants", "named"),
    [
        (Op("Softmax", ("x",), ("y",), {"axis": 0}), {}, ("axis 0", "'x'")),
        (Op("ReduceMean", ("x", "axes"), ("y",), {"keepdims": 1}), {"axes": np.array([0])}, ("'y'",)),
        (Op("Gather", ("x", "i"), ("y",), {"axis": 0}), {"i": np.array([0])}, ("axis 0", "'x'")),
        (Op("Concat", ("x", "x"), ("y",), {"axis": 0}), {}, ("axis 0", "'x'")),
        (Op("Squeeze", ("x", "axes"), ("y",)), {"axes": np.array([0])}, (3,)),
        (Op("Pad", ("x", "pads"), ("y",)), {"pads": np.array([1, 0, 0, 0])}, ("(4, 4)", "(2, 4)")),
        (Op("MatMul", ("t", "x"), ("y",)), {"t": np.ones((2, 1), np.float32)}, (3,)),
        (Op("Tile", ("x", "r"), ("y",)), {"r": np.array([2, 1])}, ("'y'",)),
    ],
)
def test_operators_that_mix_samples_are_named(op: Op, constants: dict[str, Any], named: tuple[object, ...]) -> None:
    graph = net(op, inputs={"x": (1, 4)}, outputs=("y",), constants=constants)
    refuse(graph, "batch-not-separable", *named, where=f"{op.kind} 'y'", batch=3)


def test_inputs_of_different_first_sizes_are_refused() -> None:
    ops = (Op("Relu", ("x",), ("a",)), Op("Relu", ("y",), ("b",)))
    graph = net(*ops, inputs={"x": (1, 4), "y": (300, 4)}, outputs=("a", "b"))
    refuse(graph, "different-batches", "'x' 1, 'y' 300", "--input-shape", batch=2)


@pytest.mark.formats
def test_an_open_size_called_batch_is_the_batch() -> None:
    """PyTorch's recurrent layers have the steps first."""
    found = load(FIXTURES / "torch" / "recurrent" / "dynamic_frozen.pt", batch=2)
    assert found[found.inputs[0]].shape == ("length", 2, 8)


@pytest.mark.formats
def test_states_get_a_row_for_each_sample() -> None:
    graph = load(FIXTURES / "recurrent" / "lstm_float.tflite", batch=3)
    assert {state.shape for state in graph.states.values()} == {(1, 3, 6), (1, 3, 4)}


@pytest.mark.parametrize("number", [-1, 2**31])
def test_numbers_that_are_no_batch(number: int) -> None:
    refuse(random_graph(1), "batch-not-positive" if number < 0 else "number-out-of-range", number, batch=number)


# Sizes of inputs.


@pytest.mark.formats
def test_open_sizes_become_numbers_everywhere() -> None:
    graph = load(FIXTURES / "onnx" / "torch_mobilenet_v2_qdq.onnx", input_shape="2,3,244,244")
    assert {graph[name].shape[0] for op in graph for name in op.outputs if graph[name].shape} == {2}  # type: ignore[index]
    assert all(graph[name].static_shape is not None for op in graph for name in op.outputs)


@pytest.mark.litert
@pytest.mark.parametrize(
    ("name", "shape", "is_taken"),
    [
        ("tflm_seanet_conv_int16x8.tflite", (1, 8, 98, 2), True),
        ("coral_mobilenet_v1_025_128_uint8.tflite", (1, 160, 160, 3), True),
        ("coral_mobilenet_v1_025_128_uint8.tflite", (1, 96, 96, 3), False),
        ("keras/keras_causal_int8.tflite", (1, 48, 4), False),
        ("recurrent/while_float.tflite", (2, 4), None),
    ],
)
def test_tflite_inputs_are_resized_as_litert_does_it(name: str, shape: tuple[int, ...], is_taken: bool | None) -> None:
    """LiteRT after resize_tensor_input() has the same shapes, or refuses them too; of loops nothing is said here."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(FIXTURES / name))
    interpreter.resize_tensor_input(interpreter.get_input_details()[0]["index"], shape)
    try:
        interpreter.allocate_tensors()
        theirs = [tuple(int(size) for size in item["shape"]) for item in interpreter.get_output_details()]
    except RuntimeError:
        theirs = []
    try:
        graph = load(FIXTURES / name, input_shape=",".join(map(str, shape)))
        ours = [graph[output].shape for output in graph.outputs]
    except OptionError as error:
        assert error.where
        ours = []
    assert is_taken is None or (ours == theirs and bool(ours) == is_taken)


@pytest.mark.formats
@pytest.mark.parametrize(
    ("text", "rule", "named"),
    [
        ("1,96,96,3", "sizes-not-accepted", ("AveragePool 'MobilenetV2/Logits/AvgPool'", 7)),
        ("1,224,224", "wrong-rank", (4, "1,224,224,3", 3)),
        ("0,224,224,3", "size-not-positive", (0, "axis 0")),
        ("1,224,224,x", "size-not-dynamic", ("'x'",)),
        ("inptu=1,224,224,3", "unknown-input", ("'inptu' (nearest: 'input')",)),
        ("1,224,224,3;1,2", "too-many-shapes", (2, 1)),
        ("1,2.5,3,4", "not-a-size", ("'1,2.5,3,4'",)),
        ("input=1,224,224,3; input=2,224,224,3", "shape-twice", ("'input'",)),
        ("1,224,224,5", "sizes-not-accepted", ("'MobilenetV2/Conv",)),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_the_reason(text: str, rule: str, named: tuple[object, ...]) -> None:
    with refused(OptionError, rule, holds=named):
        adapt_graph(load(MOBILENET), {"input_shape": text})


@pytest.mark.formats
def test_another_first_size_is_a_batch_where_the_model_takes_it_no_other_way() -> None:
    """LiteRT itself fails here: a Reshape to (1, 1001) stands before the end."""
    graph = load(MOBILENET, input_shape="input=4,224,224,3")
    assert [graph[name].shape for name in graph.outputs] == [(4, 1001)]


def test_one_name_of_a_size_has_one_number() -> None:
    graph = net(Op("Add", ("x", "y"), ("z",)), inputs={"x": ("n", 4), "y": ("n", 4)}, outputs=("z",))
    refuse(graph, "size-contradicts", "'n'", "2 and 3", input_shape="2,4; 3,4")
    assert adapt_graph(graph, {"input_shape": "x=2,4"})["y"].shape == (2, 4)


def test_a_size_that_an_operator_contradicts_is_refused() -> None:
    graph = net(Op("Reshape", ("x", "s"), ("y",)), inputs={"x": ("n", 4)}, outputs=("y",), constants={"s": np.array([2, 6])})
    refuse(graph, "sizes-not-accepted", where="Reshape 'y'", input_shape="2,4")


# A part.


@pytest.mark.formats
def test_a_part_has_its_operators_alone() -> None:
    graph = load(MOBILENET, subgraph=f"{FIRST}:{LAST}")
    assert (graph.inputs, graph.outputs, graph.signatures) == ((FIRST,), (LAST,), ())
    assert {op.kind for op in graph} == {"Conv", "Add"} and len(graph.ops) == 7
    assert all(name in (FIRST, LAST) or not name.startswith("MobilenetV2/Logits") for name in graph.tensors)


@pytest.mark.formats
@pytest.mark.parametrize(
    ("text", "rule", "named"),
    [
        (f"{FIRST[:-1]}:{LAST}", "unknown-tensor", f"{FIRST[:-1]!r} (nearest: {FIRST!r})"),
        (f"{LAST}:{FIRST}", "input-missing", "'input'"),
        (FIRST, "no-colon", FIRST),
        (":", "no-tensor-named", "':'"),
        (f"{FIRST}:{FIRST}", "empty-part", FIRST),
        (f"{FIRST},{FIRST}:{LAST}", "named-twice", FIRST),
        (f"{FIRST},MobilenetV2/Predictions/Softmax:{LAST}", "input-not-read", "'MobilenetV2/Predictions/Softmax'"),
    ],
)
def test_cuts_that_are_none(text: str, rule: str, named: str) -> None:
    refuse(load(MOBILENET), rule, named, subgraph=text)


@pytest.mark.formats
def test_a_cut_at_a_constant_is_refused() -> None:
    graph = load(VISION)
    name = next(graph.constants()).name
    refuse(graph, "cut-at-constant", repr(name), subgraph=f"{name}:{graph.outputs[0]}")


def test_names_may_have_colons_and_commas() -> None:
    ops = (Op("Relu", ("a:0",), ("b,c:1",)), Op("Neg", ("b,c:1",), ("d:0,e",)))
    graph = net(*ops, inputs={"a:0": (1, 2)}, outputs=("d:0,e",))
    assert adapt_graph(graph, {"subgraph": "b,c:1:d:0,e"}).inputs == ("b,c:1",)
    assert adapt_graph(graph, {"subgraph": "a:0:b,c:1"}).outputs == ("b,c:1",)
    assert adapt_graph(graph, {"subgraph": "b,c:1:"}).outputs == ("d:0,e",)
    ops = (Op("Relu", ("a",), ("a:b",)), Op("Relu", ("a:b",), ("b:c",)), Op("Neg", ("b:c",), ("c",)))
    graph = net(*ops, inputs={"a": (1, 2)}, outputs=("c",))
    refuse(graph, "ambiguous-names", 2, subgraph="a:b:c")


@pytest.mark.formats
def test_a_state_goes_with_what_reads_it() -> None:
    whole = load(FIXTURES / "mww_okay_nabu_streaming_int8.tflite")
    reading = next(op for op in whole if op.kind == "ReadState")
    following = next(op for op in whole if reading.outputs[0] in op.inputs)
    part = adapt_graph(whole, {"subgraph": f":{following.outputs[0]}"})
    assert set(part.states) == {str(op["state"]) for op in part if op.kind == "ReadState"}
    assert {op["state"] for op in part if op.kind == "WriteState"} == set(part.states)


# Names.


@pytest.mark.formats
def test_signatures_states_and_notes_follow_names() -> None:
    whole = load(FIXTURES / "mww_okay_nabu_streaming_int8.tflite")
    state = next(iter(whole.states))
    noted = replace(
        whole,
        metadata={**whole.metadata, SHIFTED: f'{{"{whole.outputs[0]}": 3}}'},
        signatures=(Signature("run", {"audio": whole.inputs[0]}, {"score": whole.outputs[0]}),),
    )
    graph = adapt_graph(noted, {"rename": (f"{whole.inputs[0]}=audio in", f"{whole.outputs[0]}=score", f"{state}=memory")})
    assert (graph.inputs, graph.outputs) == (("audio in",), ("score",))
    assert graph.signatures[0].inputs == {"audio": "audio in"} and graph.signatures[0].outputs == {"score": "score"}
    assert "memory" in graph.states and state not in graph.states
    assert graph.metadata[SHIFTED] == '{"score": 3}'
    assert all(graph.states[str(op["state"])].name == op["state"] for op in graph if op.kind in ("ReadState", "WriteState"))


def test_names_may_be_exchanged() -> None:
    graph = net(Op("Sub", ("x", "y"), ("z",)), inputs={"x": (1, 2), "y": (1, 2)}, outputs=("z",))
    assert adapt_graph(graph, {"rename": ("x=y", "y=x")}).ops[0].inputs == ("y", "x")


@pytest.mark.parametrize(
    ("pairs", "rule", "named"),
    [
        (("x=z",), "duplicate-name", "'z'"),
        (("x=n", "y=n"), "duplicate-name", "'n'"),
        (("x=a", "x=b"), "renamed-twice", "'a' and 'b'"),
        (("xx=a",), "unknown-tensor", "'xx'"),
        (("x=",), "malformed-option", "'x='"),
        (("x",), "malformed-option", "'x'"),
    ],
)
def test_names_that_clash_are_refused(pairs: tuple[str, ...], rule: str, named: str) -> None:
    graph = net(Op("Sub", ("x", "y"), ("z",)), inputs={"x": (1, 2), "y": (1, 2)}, outputs=("z",))
    refuse(graph, rule, named, rename=pairs)


@pytest.mark.formats
def test_a_name_outside_the_part_is_refused_as_such() -> None:
    refuse(load(MOBILENET), "renamed-outside", "'input'", subgraph=f"{FIRST}:{LAST}", rename=("input=x",))


# Checks of what was made of it.


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(
    ("source", "suffix", "options"),
    [
        (MOBILENET, ".onnx", {"subgraph": f"{FIRST}:{LAST}", "batch": 2, "rename": [f"{FIRST}=x", f"{LAST}=y"]}),
        (MOBILENET, ".tflite", {"subgraph": f"{LAST}:", "rename": [f"{LAST}=x"]}),
        (SSD, ".onnx", {"subgraph": ":concat", "batch": 2}),
        (VISION, ".tflite", {"batch": 3}),
        (VISION, ".onnx", {"subgraph": f":{'320'}", "rename": ["320=y"]}),
        (FIXTURES / "tiny_resnet_cifar10_int8.tflite", ".onnx", {"batch": 4}),
        (FIXTURES / "onnx" / "tf2onnx_tiny_resnet_cifar10_int8.onnx", ".tflite", {"input_shape": "3,32,32,3"}),
        (FIXTURES / "mww_okay_nabu_streaming_int8.tflite", ".onnx", {"batch": 2}),
        (FIXTURES / "coral_lstm_mnist_int8.tflite", ".onnx", {"batch": 2}),
    ],
    ids=lambda item: item.stem if isinstance(item, Path) else "" if isinstance(item, str) else "-".join(item),
)
def test_a_check_reads_the_source_as_its_conversion_did(source: Path, suffix: str, options: dict[str, Any], tmp_path: Path) -> None:
    result = tmp_path / f"result{suffix}"
    convert(source, result, **options)
    found = check(source, result, samples=2)
    assert found.passed, found.problems
    assert any("the file returns the same" in note for note in found.notes), found.notes
    assert check(source, result, samples=2, quick=True, **options).passed


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_what_stands_for_a_source_is_held_against_its_file(tmp_path: Path) -> None:
    """A graph that was read wrongly is in the copy and in the result, and in neither of them alone."""
    convert(VISION, tmp_path / "result.onnx", batch=2)
    (source, _), _ = sides_of(VISION, tmp_path / "result.onnx", (), {})
    graph = source.graph
    name = next(op.inputs[1] for op in graph if op.kind == "Conv")
    data = np.array(graph[name].data)
    wrong = graph.evolve(tensors=[replace(graph[name], data=-data // 2)])
    copy = write_adapted_copy(source.use_graph(wrong), tmp_path)
    assert copy is not None and any("with other values" in text for text in copy.problems)


@pytest.mark.onnxruntime
def test_other_sizes_of_onnx_inputs_are_held_against_the_file_too(tmp_path: Path) -> None:
    source = FIXTURES / "onnx" / "torch_mobilenet_v2_qdq.onnx"
    convert(source, tmp_path / "small.onnx", input_shape="1,3,64,64")
    found = check(source, tmp_path / "small.onnx", samples=2)
    assert found.passed and any("the file returns the same" in note for note in found.notes)


@pytest.mark.onnxruntime
def test_a_result_of_another_batch_is_not_equal(tmp_path: Path) -> None:
    convert(VISION, tmp_path / "result.onnx", batch=2)
    assert not check(VISION, tmp_path / "result.onnx", samples=2, batch=3).passed


@pytest.mark.formats
def test_errors_name_the_file() -> None:
    with refused(OptionError, "batch-not-separable") as caught:
        load(SSD, batch=2)
    assert str(caught.value).startswith(f"{SSD}: TFLite_Detection_PostProcess #63")


@pytest.mark.formats
def test_a_quantized_part_keeps_its_quantizations(tmp_path: Path) -> None:
    whole, part = load(MOBILENET), load(MOBILENET, subgraph=f"{FIRST}:{LAST}")
    assert isinstance(part[FIRST].quantization, Quantization)
    assert all(part[name].quantization == whole[name].quantization for name in part.tensors)
