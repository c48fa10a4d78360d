"""The benchmark's own arithmetic: differences in steps, layouts, types and order of inputs and outputs, peak memory of a process."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import qconvert
from qconvert.runtimes.onnxruntime import OnnxRuntime

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import converters  # noqa: E402
import measures  # noqa: E402
import tflite_measures  # noqa: E402

INT8 = measures.Port("int8", (1, 4), 0.5, -3)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (np.array([[-128, 0, 5, 127]], np.int8), (4, 0.0)),
        (np.array([[-128, 2, 5, 127]], np.int8), (3, 2.0)),
        (np.array([[0, 128, 133, 255]], np.uint8), (4, 0.0)),
        (np.array([[-62.5, 1.5, 4.0, 65.0]], np.float32), (4, 0.0)),
        (np.array([[-62.5, 3.0, 4.0, 65.0]], np.float32), (3, 3.0)),
        (np.array([[np.nan, 1.5, 4.0, 65.0]], np.float32), (3, np.inf)),
    ],
)
def test_difference_in_steps_of_the_output(result: measures.Array, expected: tuple[int, float]) -> None:
    assert measures._difference(np.array([[-128, 0, 5, 127]], np.int8), result, INT8) == expected


def test_difference_of_floats_is_relative_to_their_range() -> None:
    port = measures.Port("float32", (3,))
    assert measures._difference(np.array([0, 1, 4], np.float32), np.array([0, 1, 3], np.float32), port) == (2, 0.25)


def test_inputs_are_matched_by_position_or_else_by_shape() -> None:
    assert measures.matching([(1, 8, 8, 3), (1, 4)], [(1, 3, 8, 8), (None, 4)]) == [0, 1]
    assert measures.matching([(1, 8, 8, 3), (1, 4)], [(1, 4), (1, 3, 8, 8)]) == [1, 0]
    with pytest.raises(ValueError, match="shape"):
        measures.matching([(1, 8, 8, 3)], [(1, 7, 8, 3)])


def test_layouts_are_told_apart_by_shape() -> None:
    value = np.arange(24).reshape(1, 2, 3, 4)
    assert np.array_equal(measures.in_layout(value, (None, 4, 2, 3), (0, 3, 1, 2)), value.transpose(0, 3, 1, 2))
    assert measures.in_layout(value, (1, 2, 3, 4), (0, 3, 1, 2)) is value
    assert measures.in_layout(np.zeros((1, 4, 1, 1)), (1, 4), (0, 2, 3, 1)).shape == (1, 4)


def test_stored_values_move_between_types() -> None:
    value = np.array([-128, 127], np.int8)
    assert measures.stored(value, INT8, "uint8").tolist() == [0, 255]
    assert measures.stored(value, INT8, "float32").tolist() == [-62.5, 65.0]
    with pytest.raises(ValueError, match="input of type int8"):
        measures.stored(np.zeros(2, np.float32), measures.Port("float32", (2,)), "int8")


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("name", ["tiny_wakeword_int8", "coral_lstm_mnist_int8", "mww_okay_nabu_streaming_int8", "tflm_keyword_svdf_int8"])
def test_a_result_of_the_source_itself_is_equal(name: str, tmp_path: Path) -> None:
    """The last three are stateful: their samples are steps of one sequence, and a second comparison begins it again."""
    from qconvert import convert

    model = ROOT / "fixtures" / f"{name}.tflite"
    convert(model, tmp_path / "result.onnx")
    source = measures.SourceModel(model.read_bytes())
    inputs = measures.random_inputs(source, 2)
    assert (inputs[0][0] != inputs[1][0]).any()
    result = measures.OnnxModel(tmp_path / "result.onnx", source)
    assert [measures.compare(source, result, inputs) for _ in range(2)] == [measures.Fidelity(1.0, 0.0, None)] * 2


@pytest.mark.end_to_end
def test_peak_memory_is_the_childs_own(tmp_path: Path) -> None:
    held = np.ones(300 << 17)  # 300 MB that belong to this process
    small = converters.run_process([sys.executable, "-S", "-c", "print('done')"], tmp_path / "log")
    large = converters.run_process([sys.executable, "-S", "-c", "x = bytearray(b'1') * (200 << 20); raise SystemExit(3)"], tmp_path / "log")
    assert held.nbytes == 300 << 20
    assert (small.code, small.message) == (0, "done")
    assert small.megabytes < 50
    assert large.code == 3
    assert 200 < large.megabytes < 260


@pytest.mark.end_to_end
def test_the_error_is_reported_not_the_remedy_after_it(tmp_path: Path) -> None:
    script = "print('Traceback'); print('error: /some/folder/m.tflite: no LSTM'); print('A plugin can add it.'); raise SystemExit(2)"
    failed = converters.run_process([sys.executable, "-S", "-c", script], tmp_path / "log")
    assert (failed.code, failed.message) == (2, "error: m.tflite: no LSTM")


@pytest.mark.end_to_end
def test_the_cause_of_a_chain_of_errors_is_reported(tmp_path: Path) -> None:
    script = "try:\n  [][0]\nexcept IndexError as error:\n  raise RuntimeError('all failed') from error"
    failed = converters.run_process([sys.executable, "-S", "-c", script], tmp_path / "log")
    assert (failed.code, failed.message) == (1, "IndexError: list index out of range")


@pytest.mark.end_to_end
def test_an_error_that_lists_is_reported_with_the_first_of_its_list(tmp_path: Path) -> None:
    script = "print('error: 2 places:'); print('- a rule. Broken by:'); print('Erf /erf'); print('Erf /b'); raise SystemExit(2)"
    failed = converters.run_process([sys.executable, "-S", "-c", script], tmp_path / "log")
    assert failed.message == "error: 2 places: - a rule. Broken by: Erf /erf"


@pytest.mark.end_to_end
def test_a_converter_works_on_a_copy_and_its_result_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    program = tmp_path / "env" / "bin" / "program"
    program.write_text('#!/bin/sh\nmkdir "$2" && tr a b < "$1" > "$2/$3.made" && echo overwritten > "$1"\n')
    program.chmod(0o755)
    (tmp_path / "model.onnx").write_text("aaa")
    converter = converters.Converter("env", ("bin/program", "{source}", "{folder}", "{stem}"), "{folder}/{stem}.made")
    assert converters.convert(converter, tmp_path, tmp_path / "model.onnx", tmp_path / "result.tflite").code == 0
    assert (tmp_path / "model.onnx").read_text() == "aaa"
    assert (tmp_path / "result.tflite").read_text() == "bbb"


@pytest.mark.litert
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiny_resnet_cifar10_int8", tflite_measures.Census(14, 0, 0, 16)),
        ("tflm_mobilenet_v2_from_torch_int8", tflite_measures.Census(64, 0, 0, 84)),
        ("coral_lstm_mnist_int8", tflite_measures.Census(1, 0, 2, 6)),
        ("coco_ssd_mobilenet_v1_uint8", tflite_measures.Census(47, 1, 0, 64)),
    ],
)
def test_census_of_operators(name: str, expected: tflite_measures.Census) -> None:
    assert tflite_measures.census(ROOT / "fixtures" / f"{name}.tflite") == expected


@pytest.mark.parametrize(
    ("reference", "result", "port", "own", "expected"),
    [
        # floats with a quantization of 0.5, from floats and from integers at another zero point
        (np.float32([1.0, 2.0]), np.float32([1.0, 2.5]), measures.Port("float32", (2,), 0.5, 3), measures.Port("float32", (2,)), (1, 1.0)),
        (np.float32([1.0, 2.0]), np.int8([-1, 3]), measures.Port("float32", (2,), 0.5), measures.Port("int8", (2,), 0.5, -3), (1, 2.0)),
        # floats without a quantization: relative to their range of 4
        (np.float32([0.0, 4.0]), np.float32([0.0, 3.0]), measures.Port("float32", (2,)), measures.Port("float32", (2,)), (1, 0.25)),
        # uint8 next to int8 of the same quantization
        (np.uint8([0, 255]), np.int8([-128, 125]), measures.Port("uint8", (2,), 0.5), measures.Port("int8", (2,), 0.5, -128), (1, 2.0)),
    ],
)
def test_difference_from_onnxruntime(
    reference: measures.Array, result: measures.Array, port: measures.Port, own: measures.Port, expected: tuple[int, float]
) -> None:
    assert tflite_measures.difference(reference, result, port, own) == expected


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_a_reference_knows_the_quantizations_of_its_float_inputs_and_outputs() -> None:
    reference = tflite_measures.OnnxReference(ROOT / "fixtures" / "digits" / "fx.onnx")
    (x,), (logits,) = reference.inputs.values(), reference.outputs.values()
    assert (x.dtype, logits.dtype) == ("float32", "float32")
    assert x.scale == pytest.approx(1 / 255, rel=0.01)
    values = reference.run(reference.random_inputs(1)[0])[0] / logits.scale
    assert np.abs(values - np.rint(values)).max() < 1e-3


@pytest.mark.onnxruntime
def test_nodes_take_together_what_a_run_takes_without_the_profiler(tmp_path: Path) -> None:
    """The profiler adds some 2 microseconds to each of 30 nodes, twice what the network takes by itself."""
    qconvert.convert(ROOT / "fixtures" / "tiny_kws_dscnn_int8.tflite", tmp_path / "m.onnx")
    runtime = OnnxRuntime(tmp_path / "m.onnx", exact=False)
    feeds = {
        name: np.zeros([size if isinstance(size, int) else 1 for size in shape], dtype) for name, (dtype, shape) in runtime.inputs.items()
    }
    nodes = measures.profile_nodes(tmp_path / "m.onnx", feeds, 60, tmp_path)
    _, whole = measures.interleaved_latency({"": partial(runtime.session.run, None, feeds)}, 200)[""]
    times = {name: time for name, _, time in nodes}
    assert len(nodes) > 20 and 0.4 * whole < sum(times.values()) / 1000 < 1.3 * whole
