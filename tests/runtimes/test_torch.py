"""PyTorch as a runtime: files are written again before it loads them, unless the user trusts them."""

from __future__ import annotations

import io
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats.torch.written import inputs_of, needs_torch
from refusals import refused

import qconvert
from qconvert.arithmetic import quantize
from qconvert.arithmetic.rounding import to_small_float
from qconvert.errors import RuntimeRefusedError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor, numpy_dtype
from qconvert.plugins import ModelFile, runtime_of
from qconvert.runtimes import torch_inside
from qconvert.runtimes.torch import open_model
from qconvert.runtimes.torch_inside import TorchInside, TrustedInside

pytestmark = pytest.mark.torch

FIXTURES = Path(__file__).parents[2] / "fixtures"
MODEL = FIXTURES / "tiny_wakeword_int8.tflite"
TORCH = FIXTURES / "torch"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("torch") / "model.pt2"
    qconvert.convert(MODEL, path)
    return path


@pytest.mark.torch
@pytest.mark.litert
@needs_torch
def test_a_check_passes_in_pytorch(written: Path) -> None:
    report = qconvert.check(MODEL, written, samples=2, per_op=True)
    assert report.verdict == "passed" and "torch:rebuilt" in report.kernels
    assert any("rebuilt" in text for text in report.machine)
    assert [op for op in report.operators if op.verdict == "unexplained"] == []


@pytest.mark.torch
@pytest.mark.litert
@needs_torch
@pytest.mark.parametrize(("version", "newer"), [("2.13.0+cpu", False), ("2.9.1", False), ("2.14.0", True), ("3.0.0a0+git1", True)])
def test_a_pytorch_whose_roundings_are_not_known_is_named(
    version: str, newer: bool, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch, "__version__", version)
    report = qconvert.check(MODEL, written, samples=1)
    assert any(f"PyTorch {version} rounds otherwise" in text for text in report.machine) == newer


@pytest.mark.torch
@pytest.mark.litert
@needs_torch
def test_a_wrong_weight_is_found(written: Path, tmp_path: Path) -> None:
    """The file on disk is what is judged: a changed byte of a weight changes what PyTorch computes."""
    content = bytearray(written.read_bytes())
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        weights = [entry for entry in archive.infolist() if "weights/weight_" in entry.filename]
        if not weights:
            pytest.skip("PyTorch before 2.9 keeps weights in a pickle")
        largest = max(weights, key=lambda entry: entry.file_size)
        data = bytearray(archive.read(largest))
        data[:] = bytes(byte ^ 0x40 for byte in data)
        with zipfile.ZipFile(tmp_path / "wrong.pt2", "w") as changed:
            for entry in archive.infolist():
                changed.writestr(entry, bytes(data) if entry is largest else archive.read(entry))
    assert qconvert.check(MODEL, tmp_path / "wrong.pt2", samples=2).verdict == "not equal"


@pytest.mark.torch
@pytest.mark.cross_section
@needs_torch
def test_a_foreign_file_runs_nothing_of_its_own(written: Path, tmp_path: Path) -> None:
    """PyTorch's own loader falls back to a pickle that runs what it says; the check never gets there."""
    with zipfile.ZipFile(written) as archive, zipfile.ZipFile(tmp_path / "evil.pt2", "w") as evil:
        for entry in archive.infolist():
            said = b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR."
            evil.writestr(entry, said if entry.filename.endswith("sample_inputs/model.pt") else archive.read(entry))
    model = open_model(ModelFile(tmp_path / "evil.pt2", "rebuilt"))
    assert set(model.inputs) and not (tmp_path / "ran").exists()


@pytest.mark.torch
@needs_torch
def test_both_ways_give_the_same(written: Path) -> None:
    graph = qconvert.load(written)
    feed = inputs_of(graph)
    rebuilt, trusted = (open_model(ModelFile(written, kernels)) for kernels in ("rebuilt", "trusted"))
    for name, value in rebuilt.run(feed).items():
        assert np.array_equal(value, trusted.run(feed)[name])
    (written.parent / "model.pt").write_bytes(written.read_bytes())  # what is loaded is told by the content
    assert open_model(ModelFile(written.parent / "model.pt", "trusted")).outputs == trusted.outputs
    assert "rebuilt" in rebuilt.note and "as it is" in trusted.note


@pytest.mark.onnxruntime
def test_without_pytorch_the_verdict_is_that_it_did_not_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = next(path for path in sorted((FIXTURES / "torch").glob("*/*.pt2")) if "float" in path.name)
    qconvert.convert(source, tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "torch", None)
    report = qconvert.check(source, tmp_path / "model.onnx", samples=1)
    assert report.verdict == "inconclusive", report.problems
    said = next(text for text in report.unjudged if "not judged in PyTorch" in text)
    assert "\n" not in said and " --index-url https" in said  # one line, in which the command is one for a shell


@pytest.mark.torch
@needs_torch
def test_what_pytorch_refuses_is_an_error_of_the_runtime(tmp_path: Path, written: Path) -> None:
    (tmp_path / "half.pt2").write_bytes(written.read_bytes()[:1000])
    with pytest.raises(qconvert.QConvertError):
        open_model(ModelFile(tmp_path / "half.pt2", "trusted"))
    assert runtime_of("torch")[1] == "rebuilt"
    assert RuntimeRefusedError.__mro__[1] is not Exception


def inside_of(path: Path, kernels: str = "rebuilt") -> tuple[qconvert.Graph, TorchInside]:
    graph = qconvert.load(path)
    return graph, TorchInside(ModelFile(path, kernels), graph)


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize("name", ["classifier/eager_fbgemm_traced.pt", "classifier/pt2e_x86.pt2", "vision/fx_fbgemm_frozen.pt"])
def test_inner_tensors_are_those_of_the_run_and_pieces_compute_them_again(name: str) -> None:
    graph, inside = inside_of(TORCH / name)
    arrays = np.load((TORCH / name).with_suffix(".npz"))
    feed = {graph.inputs[0]: arrays["input_0"]}
    values = inside.values(feed)
    assert inside.cuts and set(values) == inside.names and values.keys() > {*graph.inputs, *graph.outputs}
    quantized = {name for name, tensor in graph.tensors.items() if tensor.is_quantized and not tensor.is_constant}
    assert quantized <= inside.names and len(quantized) > 4
    assert np.allclose(values[graph.outputs[0]], arrays["output_0"], atol=0.05)
    first = graph[next(op for op in graph.ops if op.kind == "Quantize").outputs[0]]
    assert first.quantization is not None
    assert np.array_equal(values[first.name], quantize(arrays["input_0"], first.quantization, first.dtype))
    pieces = inside.pieces(inside.names, inside.names)
    assert pieces.computed == inside.names - set(graph.inputs) and {*pieces.fed} <= inside.names
    for name, value in pieces.run(values).items():
        assert value.dtype == pieces.dtypes[name] and np.array_equal(value, values[name], equal_nan=True), name


@needs_torch
def test_sizes_are_no_place_to_cut_a_program(tmp_path: Path) -> None:
    graph, inside = inside_of(TORCH / "shapes" / "fx_fbgemm_frozen.pt")
    sizes = {name for op in graph.ops if op.kind in ("Shape", "Gather", "Pack") for name in op.outputs}
    assert sizes and sizes.isdisjoint(inside.names)


def test_what_pytorch_cannot_be_given_is_evaluated_inside_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    graph, inside = inside_of(TORCH / "classifier" / "pt2e_x86.pt2")
    feed = inputs_of(graph)
    values = inside.values(feed)
    assert np.allclose(values[graph.outputs[0]], evaluate(graph, feed)[graph.outputs[0]], atol=1e-6)
    part = inside.pieces(inside.names, frozenset(graph.outputs))
    assert np.array_equal(part.run(values)[graph.outputs[0]], values[graph.outputs[0]])


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize("name", ["classifier/eager_fbgemm_traced.pt", "single/eager_fbgemm_scripted.pt", "classifier/pt2e_x86.pt2"])
def test_a_trusted_file_gives_out_its_own_tensors(name: str) -> None:
    """They come from the file's packed kernels: the integers of each tensor lie next to those of the program written again."""
    file = TORCH / name
    graph, again = inside_of(file)
    feed = {graph.inputs[0]: np.load(file.with_suffix(".npz"))["input_0"]}
    trusted = torch_inside.inside_of(ModelFile(file, "trusted"), graph)
    assert isinstance(trusted, TrustedInside) and not trusted.cuts
    values, near = trusted.values(feed), again.values(feed)
    quantized = {op.outputs[0] for op in graph.ops if op.outputs and graph[op.outputs[0]].is_quantized}
    assert quantized <= values.keys() and graph.outputs[0] in values
    for tensor in quantized:
        assert values[tensor].dtype == near[tensor].dtype and values[tensor].shape == near[tensor].shape
        assert np.abs(values[tensor].astype(int) - near[tensor].astype(int)).max() <= 2, tensor
    if "single" not in name:  # that file was not run in training, so that its outputs are those of the file next to it
        assert np.allclose(values[graph.outputs[0]], np.load(file.with_suffix(".npz"))["output_0"], atol=1e-6)


@pytest.mark.torch
@needs_torch
def test_tensors_that_stand_for_none_are_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that ran and tensors that were read are put side by side in order; one that is missing shifts no other."""
    file = TORCH / "classifier" / "eager_fbgemm_traced.pt"
    graph, _ = inside_of(file)
    inside = TrustedInside(ModelFile(file, "trusted"), graph)
    feed = {graph.inputs[0]: np.load(file.with_suffix(".npz"))["input_0"]}
    every, run = inside.values(feed), inside._probe.run
    place = [call.operator for call in run([torch_tensor(feed[graph.inputs[0]])])].index("quantized::conv2d")
    less = replace(inside._probe, run=lambda inputs: [call for number, call in enumerate(run(inputs)) if number != place])
    monkeypatch.setattr(inside, "_probe", less)
    found = inside.values(feed)
    assert len(found) == len(every) - 1
    assert all(np.array_equal(value, every[name]) for name, value in found.items())


def torch_tensor(value: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(value)


@pytest.mark.torch
@pytest.mark.litert
@needs_torch
def test_a_file_whose_calls_have_other_names_is_run_as_it_is_read(written: Path) -> None:
    """Programs of our own have the operators' names of their source; their inner tensors are then those of programs written again."""
    with refused(RuntimeRefusedError, "call-mismatch"):
        TrustedInside(ModelFile(written, "trusted"), qconvert.load(written))
    report = qconvert.check(MODEL, written, samples=1, per_op=True, kernels="torch:trusted")
    assert report.verdict == "passed" and any("does not return the inner tensors of model.pt2" in text for text in report.notes)


@needs_torch
@pytest.mark.parametrize("dtype", ["float8e4m3fn", "float8e5m2"])
@pytest.mark.parametrize("axis", [None, 0])
def test_data_are_rounded_to_floats_of_8_bits(dtype: str, axis: int | None, tmp_path: Path) -> None:
    """A program that is written divides in float32, saturates and rounds once; with one scale it is read as Quantize again."""
    scales = np.array([0.05] if axis is None else [0.05, 0.1, 3.0], np.float32)
    quantization = Quantization(scales, np.zeros(len(scales), np.int64), axis)
    tensors = [Tensor(name, "float32", (3, 4096)) for name in "xy"]
    tensors.append(Tensor("q", dtype, (3, 4096), quantization=quantization))
    ops = Op("Quantize", ("x",), ("q",)), Op("Dequantize", ("q",), ("y",))
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("q", "y"))
    qconvert.save(graph, tmp_path / "m.pt2")
    if axis is None:
        assert [op.kind for op in qconvert.load(tmp_path / "m.pt2").ops] == ["Quantize", "Dequantize"]
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(3, 4096)) * 10.0 ** rng.uniform(-4, 6, (3, 4096))).astype(np.float32)
    x[:, :512] = (np.arange(512) - 256) / 32 * scales[:, None]
    steps = x / scales[:, None]
    wanted = to_small_float(steps, dtype)
    assert (np.abs(steps.astype(np.float64) - wanted.astype(np.float64)) == 2.0**-5).any()  # ties
    found = open_model(ModelFile(tmp_path / "m.pt2", "rebuilt")).run({"x": x})
    assert found["q"].dtype == wanted.dtype
    np.testing.assert_array_equal(found["q"].view(np.uint8), wanted.view(np.uint8))
    np.testing.assert_array_equal(found["y"], wanted.astype(np.float32) * scales[:, None])


@needs_torch
def test_bfloat16_goes_in_and_comes_out(tmp_path: Path) -> None:
    tensors = {name: Tensor(name, "bfloat16", (2, 3)) for name in "xy"}
    graph = Graph("g", tensors, (Op("Relu", ("x",), ("y",)),), ("x",), ("y",))
    qconvert.save(graph, tmp_path / "m.pt2")
    x = np.array([[1.5, -2, 3], [-0.25, 0, 1e30]], numpy_dtype("bfloat16"))
    found = open_model(ModelFile(tmp_path / "m.pt2", "rebuilt")).run({"x": x})["y"]
    np.testing.assert_array_equal(found.astype(np.float32), np.maximum(x.astype(np.float32), 0))
