"""TFLite to PyTorch and back, and PyTorch to ONNX and back: nothing of the graph changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from formats.torch.written import needs_torch

import qconvert
from qconvert.graph import Graph, Op, Quantization, Tensor

pytestmark = pytest.mark.torch

FIXTURES = Path(__file__).parents[3] / "fixtures"
#: Padding on one side, averages, additions, softmax, 16-bit data, names that are no identifiers.
MODELS = ["tiny_kws_dscnn_int8", "tiny_resnet_cifar10_int8", "tiny_wakeword_int8", "tflm_seanet_conv_int16x8"]


@needs_torch
@pytest.mark.parametrize("name", MODELS)
def test_tflite_to_torch_and_back(name: str, tmp_path: Path) -> None:
    source = FIXTURES / f"{name}.tflite"
    qconvert.convert(source, tmp_path / "model.pt2")
    qconvert.convert(tmp_path / "model.pt2", tmp_path / "back.tflite")
    assert qconvert.diff(qconvert.load(source), qconvert.load(tmp_path / "back.tflite")) == []
    written = qconvert.load(tmp_path / "model.pt2")
    names = set(qconvert.load(source).tensors)
    assert [op.outputs[0] for op in written.ops if op.outputs[0].removesuffix("/channels_first") not in names and op.kind == "Conv"] == []
    assert written.metadata["qconvert.source"] == source.name


@needs_torch
def test_torch_to_onnx_and_back(tmp_path: Path) -> None:
    qconvert.convert(FIXTURES / "tiny_resnet_cifar10_int8.tflite", tmp_path / "model.pt2")
    qconvert.convert(tmp_path / "model.pt2", tmp_path / "model.onnx", target="generic")
    qconvert.convert(tmp_path / "model.onnx", tmp_path / "back.pt2")
    assert qconvert.diff(qconvert.load(tmp_path / "model.pt2"), qconvert.load(tmp_path / "back.pt2")) == []


@needs_torch
@pytest.mark.parametrize("name", ["torch_fx_qat_vision"])
def test_onnx_to_torch_and_back(name: str, tmp_path: Path) -> None:
    """A network in training among them, whose normalization stands after its layers in ONNX."""
    source = FIXTURES / "onnx" / f"{name}.onnx"
    qconvert.convert(source, tmp_path / "model.pt2")
    assert qconvert.diff(qconvert.load(source), qconvert.load(tmp_path / "model.pt2")) == []
    qconvert.convert(tmp_path / "model.pt2", tmp_path / "back.onnx", target="generic")
    assert qconvert.diff(qconvert.load(source), qconvert.load(tmp_path / "back.onnx")) == []


@needs_torch
@pytest.mark.parametrize("name", ["older/program.pt2", "classifier/pt2e_x86.pt2", "classifier/eager_fbgemm_frozen.pt"])
def test_programs_and_modules_to_onnx_and_back(name: str, tmp_path: Path) -> None:
    """Limits of weights, sizes that the file leaves open, and what an engine rounds: first the data, then averages and additions."""
    source = FIXTURES / "torch" / name
    qconvert.convert(source, tmp_path / "model.onnx", target="generic")
    qconvert.convert(tmp_path / "model.onnx", tmp_path / "back.pt2")
    assert qconvert.diff(qconvert.load(source), qconvert.load(tmp_path / "back.pt2")) == []


@needs_torch
def test_open_sizes_are_those_that_the_operators_take(tmp_path: Path) -> None:
    """Rows of 16 as 5 x 16: only a multiple of 5 of them, whatever the input's name says."""
    tensors = [
        Tensor("x", "float32", ("batch", 16)), Tensor("s", "int64", (3,), np.array([-1, 5, 16])), Tensor("y", "float32", ("n", 5, 16)),
    ]  # fmt: skip
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (Op("Reshape", ("x", "s"), ("y",)),), ("x",), ("y",))
    qconvert.save(graph, tmp_path / "model.pt2")
    found = qconvert.load(tmp_path / "model.pt2")
    assert [op.kind for op in found.ops] == ["Reshape"]
    assert (found["x"].shape or ())[1:] == (16,)


@needs_torch
@pytest.mark.parametrize("unread", [0, 1])
@pytest.mark.parametrize("kind", ["TopK", "Split"])
def test_results_that_nothing_reads_come_back(kind: str, unread: int, tmp_path: Path) -> None:
    """PyTorch leaves out what computes them."""
    quantization = Quantization.per_tensor(0.25, 7)
    indices = kind == "TopK"
    tensors = [
        Tensor("x", "uint8", (2, 6), None, quantization),
        Tensor("k", "int64", (1,) if indices else (2,), np.array([3] if indices else [3, 3])),
        Tensor("a", "uint8", (2, 3), None, quantization),
        Tensor("b", "int64" if indices else "uint8", (2, 3), None, None if indices else quantization),
    ]  # fmt: skip
    outputs = ("a", "b")[1 - unread : 2 - unread]
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (Op(kind, ("x", "k"), ("a", "b"), {"axis": 1}),), ("x",), outputs)
    qconvert.save(graph, tmp_path / "model.pt2")
    assert qconvert.diff(graph, qconvert.load(tmp_path / "model.pt2")) == []


@needs_torch
@pytest.mark.parametrize("filler", [None, -20, 7])
def test_a_pad_of_stored_integers_keeps_its_filler(filler: int | None, tmp_path: Path) -> None:
    """In a program the number is a stored integer, and none is stated for real zero."""
    quantization = Quantization.per_tensor(0.25, 7)
    tensors = [
        Tensor("r", "float32", (1, 4)), Tensor("x", "int8", (1, 4), None, quantization), Tensor("y", "int8", (1, 6), None, quantization),
        Tensor("p", "int64", (4,), np.array([0, 1, 0, 1])), Tensor("f", "int8", (), np.array(filler or 0, np.int8), quantization),
        Tensor("s", "float32", (1, 6)),
    ]  # fmt: skip
    ops = (Op("Quantize", ("r",), ("x",)), Op("Pad", ("x", "p", *(["f"] if filler is not None else [])), ("y",)),
           Op("Dequantize", ("y",), ("s",)))  # fmt: skip
    kept = [tensor for tensor in tensors if filler is not None or tensor.name != "f"]
    graph = Graph("g", {tensor.name: tensor for tensor in kept}, ops, ("r",), ("s",))
    qconvert.save(graph, tmp_path / "model.pt2")
    found = qconvert.load(tmp_path / "model.pt2")
    if filler == 7:  # real zero
        assert [len(op.inputs) for op in found.ops] == [1, 2, 1]
    else:
        assert qconvert.diff(graph, found) == []


@pytest.mark.cross_section
@needs_torch
@pytest.mark.parametrize("group", [1, 2])
def test_weights_of_transposed_convolutions_keep_their_order_and_scales(group: int, tmp_path: Path) -> None:
    """Programs for compilers turn them when they run, also those of groups with scales of their own."""
    rng = np.random.default_rng(2)
    scales = Quantization(rng.uniform(0.01, 0.1, 6).astype(np.float32), np.zeros(6, np.int64), 0)
    quantizations = Quantization.per_tensor(0.02, 131), Quantization.per_tensor(0.8, 117)
    tensors = [
        Tensor("x", "uint8", (1, 4, 5, 5), None, quantizations[0]), Tensor("y", "uint8", (1, 6, 9, 9), None, quantizations[1]),
        Tensor("w", "int8", (6, 4 // group, 3, 3), rng.integers(-127, 128, (6, 4 // group, 3, 3)).astype(np.int8), scales),
    ]  # fmt: skip
    sizes = {"strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "output_padding": (0, 0), "group": group}
    op = Op("ConvTranspose", ("x", "w"), ("y",), {**sizes, "data_format": "channels_first"})
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",))
    for name, options in (("fast.pt2", {"numerics": "fast"}), ("exact.pt2", {}), ("model.pt", {})):
        qconvert.save(graph, tmp_path / name, **options)
        assert qconvert.diff(graph, qconvert.load(tmp_path / name)) == []
