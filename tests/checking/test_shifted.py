"""Files for TensorRT, whose activations are shifted: their check, what is altered in them, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qconvert import check, convert, load
from qconvert.graph.metadata import SHIFTED

FIXTURES = Path(__file__).parents[2] / "fixtures"
SOURCE = FIXTURES / "tiny_resnet_cifar10_int8.tflite"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shifted") / "model.onnx"
    convert(SOURCE, path, target="tensorrt")
    return path


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
def test_the_check_runs_every_node_and_sees_the_source_s_quantizations(result: Path) -> None:
    report = check(SOURCE, result, per_op=True, samples=2)
    assert report.verdict == "passed", report.problems
    assert report.kernels[1] == "onnxruntime:unoptimized"
    assert all(op.largest <= 1 for op in report.operators)
    assert [op.verdict for op in report.operators if op.operator.startswith("AVERAGE_POOL")] == ["equal"]  # ties as TFLite rounds them


@pytest.mark.formats
def test_the_file_is_read_as_what_it_was_made_of(result: Path, tmp_path: Path) -> None:
    source, graph = load(SOURCE), load(result)
    assert SHIFTED not in graph.metadata
    shared = [name for name in source.tensors if name in graph.tensors and source[name].is_quantized]
    assert len(shared) > 30 and all(graph[name].quantization == source[name].quantization for name in shared)
    biases = [name for name in shared if source[name].dtype == "int32"]
    assert len(biases) == 10 and all(np.array_equal(graph[name].data, source[name].data) for name in biases)  # type: ignore[arg-type]
    convert(result, tmp_path / "back.tflite", numerics="fast")  # exact numerics give additions scales that round like onnxruntime's
    back = load(tmp_path / "back.tflite")
    assert [op.kind for op in back.ops] == [op.kind for op in source.ops]
    assert all(back[name].quantization == source[name].quantization for name in shared if name in back.tensors)


@pytest.mark.formats
def test_uint8_edges_have_their_quantizations_again(tmp_path: Path) -> None:
    source, there, back = FIXTURES / "coral_mobilenet_v1_025_128_uint8.tflite", tmp_path / "model.onnx", tmp_path / "back.tflite"
    convert(source, there, target="tensorrt")
    convert(there, back)
    graphs = load(source), load(back)
    for ends in zip((*graphs[0].inputs, *graphs[0].outputs), (*graphs[1].inputs, *graphs[1].outputs), strict=True):
        tensors = [graph[name] for graph, name in zip(graphs, ends, strict=True)]
        assert tensors[0].quantization == tensors[1].quantization and [tensor.dtype for tensor in tensors] == ["uint8"] * 2
    assert [op.kind for op in graphs[0].ops if op.kind in ("Conv", "Softmax")] == [
        op.kind for op in graphs[1].ops if op.kind in ("Conv", "Softmax")
    ]


def bias(model: onnx.ModelProto) -> onnx.TensorProto:
    node = next(node for node in model.graph.node if node.op_type == "Conv")
    return next(item for item in model.graph.initializer if item.name == node.input[2])


def moved_bias(model: onnx.ModelProto) -> None:
    item = bias(model)
    data = numpy_helper.to_array(item).copy()
    data[3] += 0.05
    item.CopyFrom(numpy_helper.from_array(data, item.name))


def scaled(model: onnx.ModelProto) -> None:
    item = next(item for item in model.graph.initializer if item.name.endswith("/scale") and len(item.dims) == 0)
    item.CopyFrom(numpy_helper.from_array(np.asarray(numpy_helper.to_array(item) * 1.02, np.float32), item.name))


def other_weight(model: onnx.ModelProto) -> None:
    item = next(item for item in model.graph.initializer if item.data_type == onnx.TensorProto.INT8 and len(item.dims) == 4)
    data = numpy_helper.to_array(item).copy()
    data[0, 0, 1, 1] += 3
    item.CopyFrom(numpy_helper.from_array(data, item.name))


def other_shift(model: onnx.ModelProto) -> None:
    item = next(item for item in model.graph.initializer if item.name.endswith("/shift"))
    item.CopyFrom(numpy_helper.from_array(np.asarray(numpy_helper.to_array(item) * 1.1, np.float32), item.name))


def other_padding(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "Pad")
    item = next(item for item in model.graph.initializer if item.name == node.input[2])
    item.CopyFrom(numpy_helper.from_array(np.asarray(numpy_helper.to_array(item) * 0, np.float32), item.name))


def other_note(model: onnx.ModelProto) -> None:
    entry = next(entry for entry in model.metadata_props if entry.key == SHIFTED)
    entry.value = entry.value.replace("-128", "-120")


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("change", [moved_bias, scaled, other_weight, other_shift, other_padding, other_note])
def test_what_is_altered_is_found(change: Callable[[onnx.ModelProto], None], result: Path, tmp_path: Path) -> None:
    model = onnx.load(result)
    change(model)
    onnx.save(model, tmp_path / "altered.onnx")
    assert check(SOURCE, tmp_path / "altered.onnx", samples=2).verdict == "not equal"
