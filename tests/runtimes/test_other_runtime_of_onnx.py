"""A runtime that a plugin gives for .onnx files: it has no inner values of its own, computes floats as float16, and wants unsigned data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qconvert import check, convert, load
from qconvert.conversion import normalize
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.plugin import (
    Accelerator,
    Integers,
    Kernel,
    Kernels,
    ModelFile,
    OnnxInside,
    Runtime,
    Target,
    constant_tolerance,
    evaluate,
    evaluate_op,
    hookimpl,
    quantize,
    temporary_plugin,
)
from qconvert.plugins import target_named
from qconvert.runtimes.onnxruntime import OnnxRuntime

FIXTURES = Path(__file__).parents[2] / "fixtures"
pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]


class HalfRuntime(OnnxRuntime):
    """onnxruntime whose float outputs are those of float16, which are counted."""

    opened = 0

    def __init__(self, model: bytes | Path) -> None:
        type(self).opened += 1
        super().__init__(model, optimize=False)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = super().run(inputs)
        return {name: value.astype(np.float16).astype(np.float32) if value.dtype == np.float32 else value for name, value in found.items()}


def inside(file: ModelFile, graph: Graph) -> OnnxInside:
    return OnnxInside(file, graph, HalfRuntime)


class Plugin:
    def __init__(self, half: bool) -> None:
        self.rows = Kernels((Kernel(),), half_floats=half)

    @hookimpl
    def qconvert_runtimes(self) -> Iterable[Runtime]:
        def open_model(file: ModelFile) -> Any:
            return HalfRuntime(file.path)

        return [Runtime("halves", ("onnx",), "as float16", "Halves", open_model, lambda name: self.rows, ("only",), inside=inside)]

    @hookimpl
    def qconvert_targets(self) -> Iterable[Any]:
        npu = Accelerator("NPU", lambda graph: lambda op: "")
        return [Target.derive("portable", name="halves", storage={"activations": "unsigned"}, accelerator=npu, checked_by="halves")]


@pytest.fixture
def plugin(request: pytest.FixtureRequest) -> Iterator[None]:
    with temporary_plugin(Plugin(request.param), "halves"):
        yield


@pytest.mark.parametrize("plugin", [True, False], indirect=True)
def test_operators_are_compared_in_parts_that_the_runtime_runs(plugin: None, tmp_path: Path) -> None:
    source, result = tmp_path / "m.tflite", tmp_path / "m.onnx"
    convert(FIXTURES / "onnx" / "torch_fx_fbgemm_vision.onnx", source, batch=1)
    convert(source, result, target="halves")
    before = HalfRuntime.opened
    report = check(source, result, kernels="halves", per_op=True)
    assert HalfRuntime.opened > before + 1
    # Where no row says what the parts round, the file, which the runtime runs as a whole without that, is judged by its own tensors.
    assert [item for item in report.operators if item.verdict != "equal"] and report.passed


@pytest.mark.parametrize("plugin", [True], indirect=True)
def test_unsigned_data_of_8_and_16_bits(plugin: None) -> None:
    wide, narrow = Quantization.per_tensor(2**-10, -7), Quantization.per_tensor(0.1, -3)
    tensors = [Tensor(name, "int16", (2, 3), None, wide) for name in "xy"]
    tensors += [Tensor(name, "int8", (2, 3), None, narrow) for name in "zw"]
    ops = (Op("Tanh", ("x",), ("y",), {}), Op("Requantize", ("y",), ("z",), {}), Op("Relu", ("z",), ("w",), {}))
    graph = Graph("g", {item.name: item for item in tensors}, ops, ("x",), ("w",))
    fitted, _ = normalize(graph, target_named("halves"))
    inner = {op.kind: fitted[op.outputs[0]] for op in fitted.ops if op.kind in ("Tanh", "Relu")}
    assert (inner["Tanh"].dtype, inner["Relu"].dtype) == ("uint16", "float32")  # Relu stands between Dequantize and Quantize
    assert fitted["x"].dtype == "int16" and fitted["w"].dtype == "int8"
    found = [tensor for tensor in fitted.tensors.values() if tensor.dtype == "uint16" and tensor.quantization is not None]
    assert found and all(tensor.quantization.point == 2**15 - 7 for tensor in found if tensor.quantization is not None)


@pytest.mark.parametrize("plugin", [True], indirect=True)
def test_what_is_written_for_it_is_read_again(plugin: None, tmp_path: Path) -> None:
    convert(FIXTURES / "tiny_kws_dscnn_int8.tflite", tmp_path / "m.onnx", target="halves", batch=1)
    graph = load(tmp_path / "m.onnx")
    assert {graph[op.outputs[0]].dtype for op in graph.ops if op.kind == "Conv"} == {"uint8"}


class HalfUp:
    """A runtime without inner tensors, written as docs/plugins.md has it: it rounds half up, and states no layout."""

    @hookimpl
    def qconvert_runtimes(self) -> Iterable[Runtime]:
        rows = Kernels((Kernel(("Conv", "Gemm"), ("int8",), tolerance=constant_tolerance(1e-6), reference=half_up), Kernel()))

        class Model:
            note = ""

            def __init__(self, file: ModelFile) -> None:
                self.graph = load(file.path, **file.options)
                self.inputs, self.outputs = (
                    {name: (self.graph[name].dtype, self.graph[name].shape or ()) for name in names}
                    for names in (self.graph.inputs, self.graph.outputs)
                )

            def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
                return evaluate(self.graph, inputs, kernels=rows.compute_stored)

        return [Runtime("half-up", ("onnx",), "", "half up", Model, lambda name: rows, ("only",))]


def half_up(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    result = graph[op.outputs[0]]
    if result.quantization is None or any(name and value is None for name, value in zip(op.inputs, stored, strict=True)):
        return None
    exact = evaluate_op(graph, op, stored)[0].real
    return Integers.clip_to_limits(graph, op, quantize(exact, result.quantization, result.dtype, "half_up"))


def test_files_of_a_runtime_have_the_layout_of_their_format(tmp_path: Path) -> None:
    """Values of the channels_last source are fed to pieces of the channels_first result, although the runtime does not say so."""
    with temporary_plugin(HalfUp(), "half-up"):
        source = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
        convert(source, tmp_path / "m.onnx", target="ort-arm")
        found = check(source, tmp_path / "m.onnx", kernels=("litert:reference", "half-up"), per_op=True, samples=1)
    assert found.verdict == "passed" and not found.problems
    assert "one rounding" in {item.verdict for item in found.operators}
