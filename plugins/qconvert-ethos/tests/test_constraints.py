"""What constraints.py says of an operator is what Vela does with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from qconvert_ethos.constraints import cpu_reasons
from qconvert_ethos.vela import compile_file

from qconvert import audit
from qconvert.plugin import (
    Graph,
    Op,
    QConvertError,
    Quantization,
    Tensor,
    TfliteListed,
    UnsupportedError,
    normalize,
    refuse_violations,
    save,
    target_named,
    write_tflite_operators,
)
from qconvert.testing import kinds_with_kernels, make_graph

NPUS = {"ethos-u55": "ethos-u55-128", "ethos-u65": "ethos-u65-256", "ethos-u85": "ethos-u85-256"}
#: Models -> how many operators run on an Ethos-U55 and on an Ethos-U85, of how many.
MODELS = {
    "tiny_kws_dscnn_int8.tflite": (13, 13, 13),
    "tiny_resnet_cifar10_int8.tflite": (16, 16, 16),
    "coco_ssd_mobilenet_v1_uint8.tflite": (75, 75, 78),
    "coral_lstm_mnist_int8.tflite": (10, 10, 10),
    "mww_okay_nabu_streaming_int8.tflite": (36, 48, 48),
    "tflm_keyword_svdf_int8.tflite": (20, 21, 31),
    "onnx/torch_mobilenet_v2_qdq.onnx": (66, 66, 68),
    "onnx/micro_kws_m_static_qdq.onnx": (16, 16, 18),
    "onnx/ort_conv.int4_weights.qdq.onnx": (3, 3, 5),
    "onnx/torch_pt2e_x86_vision.onnx": (6, 6, 33),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("family", ["ethos-u55", "ethos-u85"])
def test_the_prediction_for_whole_models_is_what_vela_does(name: str, family: str, fixtures: Path) -> None:
    report = audit(fixtures / name, family, run=True)
    assert report.otherwise == () and report.accelerator == family.title()
    on_npu = sum(op.integer for op in report.operators)
    assert (on_npu, len(report.operators)) == (MODELS[name][0 if family == "ethos-u55" else 1], MODELS[name][2])


def compared(graph: Graph, family: str, path: Path) -> int:
    """How many operators of a graph's file are placed as predicted; all of them are."""
    save(graph, path, force=True)
    found, writing = compile_file(path, NPUS[family]), write_tflite_operators(graph).writing
    for op in writing.operators:
        words = list(cpu_reasons(family, writing, op))
        assert bool(words) == found.is_on_cpu(TfliteListed(op.builtin, op.inputs, op.outputs)), (op.builtin, words, found)
    return len(writing.operators)


def join_graphs(graphs: list[Graph]) -> Graph:
    """Return one graph of several that have nothing to do with each other: Vela takes a second to start."""
    renamed = [(graph, {name: f"{place}/{name}" for name in graph.tensors} | {"": ""}) for place, graph in enumerate(graphs)]
    tensors = [replace(tensor, name=names[tensor.name]) for graph, names in renamed for tensor in graph.tensors.values()]
    ops = [op.with_names(names) for graph, names in renamed for op in graph.ops]
    inputs, outputs = (
        tuple(names[name] for graph, names in renamed for name in listed(graph)) for listed in (lambda g: g.inputs, lambda g: g.outputs)
    )
    return Graph("several", {tensor.name: tensor for tensor in tensors}, tuple(ops), inputs, outputs)


@pytest.mark.parametrize("family", NPUS)
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_random_operators(family: str, dtype: str, tmp_path: Path) -> None:
    """An operator of each kind, all of them in one file; what Vela would refuse is refused by name."""
    target, taken, refused = target_named(family), list[Graph](), list[str]()
    for kind in kinds_with_kernels():
        graph, _ = normalize(make_graph(kind, dtype, np.random.default_rng(7), target.kernels, "channels_last"), target)
        try:
            refuse_violations(graph, target)
        except UnsupportedError:
            refused.append(kind)
        else:
            taken.append(graph)
    assert compared(join_graphs(taken), family, tmp_path / "all.tflite") > 40
    bools = {"Equal", "NotEqual", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"} if family != "ethos-u85" else set()
    assert set(refused) == bools | {"ReduceProd"} | ({"ArgMax"} if dtype == "int16" else set())


def image(name: str, shape: tuple[int, ...] = (1, 8, 8, 4), dtype: str = "int8", data: object = None) -> Tensor:
    return Tensor(name, dtype, shape, data, Quantization.per_tensor(0.1, 0))


def one(kind: str, attributes: dict[str, object], data: Tensor, result: Tensor, *more: Tensor) -> Graph:
    op = Op(kind, (data.name, *(tensor.name for tensor in more)), (result.name,), attributes)
    inputs = tuple(tensor.name for tensor in (data, *more) if tensor.data is None)
    return Graph(kind, {tensor.name: tensor for tensor in (data, *more, result)}, (op,), inputs, (result.name,))


def sizes(*values: int) -> Tensor:
    return Tensor("sizes", "int64", (len(values),), np.array(values, np.int64))


SPACE = {"data_format": "channels_last"}
POOL = {**SPACE, "pads": (0, 0, 0, 0), "strides": (1, 1)}
HALF = {**SPACE, "mode": "linear", "coordinate_transformation_mode": "half_pixel"}
NEAREST = {**SPACE, "mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
CASES = {
    "a padded average of 9x9": one("AveragePool", {**POOL, "kernel_shape": (9, 9), "pads": (4, 4, 4, 4)}, image("x"), image("y")),
    "an average of 8x8": one("AveragePool", {**POOL, "kernel_shape": (8, 8)}, image("x"), image("y", (1, 1, 1, 4))),
    "strides of 4": one("MaxPool", {**POOL, "kernel_shape": (2, 2), "strides": (4, 4)}, image("x"), image("y", (1, 2, 2, 4))),
    "bilinear twice": one("Resize", HALF, image("x"), image("y", (1, 16, 16, 4)), sizes(16, 16)),
    "bilinear four times": one("Resize", HALF, image("x"), image("y", (1, 32, 32, 4)), sizes(32, 32)),
    "bilinear three times": one("Resize", HALF, image("x"), image("y", (1, 24, 24, 4)), sizes(24, 24)),
    "nearest three times": one("Resize", NEAREST, image("x"), image("y", (1, 24, 24, 4)), sizes(24, 24)),
    "nearest eight times": one("Resize", NEAREST, image("x"), image("y", (1, 64, 64, 4)), sizes(64, 64)),
    "a mean over channels": one("ReduceMean", {"keepdims": 1}, image("x"), image("y", (1, 8, 8, 1)), sizes(3)),
    "a mean of a batch": one("ReduceMean", {"keepdims": 1}, image("x", (2, 8, 8, 4)), image("y", (2, 1, 1, 4)), sizes(1, 2)),
    "ArgMax of 200 channels": one("ArgMax", {"axis": 3, "keepdims": 0}, image("x", (1, 2, 2, 200)), Tensor("y", "int64", (1, 2, 2))),
    "ArgMax along rows": one("ArgMax", {"axis": 1, "keepdims": 0}, image("x"), Tensor("y", "int64", (1, 8, 4))),
    "Transpose of rank 3": one("Transpose", {"perm": (2, 0, 1)}, image("x", (3, 5, 7)), image("y", (7, 3, 5))),
    "SpaceToDepth": one("SpaceToDepth", {**SPACE, "blocksize": 2}, image("x"), image("y", (1, 4, 4, 16))),
}  # fmt: skip


@pytest.mark.parametrize("family", NPUS)
@pytest.mark.parametrize("case", CASES)
def test_limits_of_sizes(case: str, family: str, tmp_path: Path) -> None:
    target = target_named(family)
    graph, _ = normalize(CASES[case], target)
    refuse_violations(graph, target)
    assert compared(graph, family, tmp_path / "one.tflite") >= 1


def test_what_vela_refuses_is_refused_by_name() -> None:
    both = Tensor("a", "int32", (4,)), Tensor("b", "int32", (4,))
    less = one("Less", {}, both[0], Tensor("y", "bool", (4,)), both[1])
    largest = one("ArgMax", {"axis": 0, "keepdims": 0}, Tensor("x", "float32", (4,)), Tensor("y", "int64", ()))
    for graph, family, words in ((less, "ethos-u55", "LESS of bool"), (largest, "ethos-u85", "ARG_MAX of float32")):
        target = target_named(family)
        with pytest.raises(QConvertError, match=words):
            refuse_violations(normalize(graph, target)[0], target)
    refuse_violations(normalize(less, target_named("ethos-u85"))[0], target_named("ethos-u85"))


@pytest.mark.parametrize("family", NPUS)
def test_a_pad_before_wide_strides_ends_vela(family: str, tmp_path: Path) -> None:
    q = Quantization.per_tensor
    tensors = [
        Tensor("x", "int8", (1, 8, 32, 4), None, q(0.1, 3)), Tensor("widths", "int64", (8,), np.array([0, 0, 2, 0, 0, 0, 2, 0])),
        Tensor("p", "int8", (1, 8, 36, 4), None, q(0.1, 3)), Tensor("w", "int8", (4, 4, 1, 4), np.ones((4, 4, 1, 4), np.int8), q(0.1, 0)),
        Tensor("b", "int32", (4,), np.zeros(4, np.int32), q(0.01, 0)), Tensor("y", "int8", (1, 8, 9, 4), None, q(0.2, 1)),
    ]  # fmt: skip
    attributes = {"strides": (1, 4), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1, "data_format": "channels_last"}
    conv = Op("Conv", ("p", "w", "b"), ("y",), attributes)
    graph = Graph("wide", {tensor.name: tensor for tensor in tensors}, (Op("Pad", ("x", "widths"), ("p",)), conv), ("x",), ("y",))
    save(graph, tmp_path / "m.tflite")
    refused = [op.kind for op, verdict in target_named(family).verdicts(graph) if verdict.runs == "refused"]
    if family == "ethos-u85":
        assert not refused and not compile_file(tmp_path / "m.tflite", NPUS[family]).on_cpu
        return
    assert refused == ["Conv"]
    with pytest.raises(QConvertError, match="exit code 1"):
        compile_file(tmp_path / "m.tflite", NPUS[family])
