"""Checks of what was converted from PyTorch's files: they are read as the conversion read them, and run in PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from formats.torch.written import needs_torch
from refusals import refused
from test_cli import run

import qconvert
from qconvert import convert, load, prove, save
from qconvert.checking.proof.classes import EQUAL_CLASSES
from qconvert.conversion.comparing import read_noted_options
from qconvert.errors import OptionError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.plugins import ModelFile, format_named, kernels_named
from qconvert.runtimes.onnx_rewrites import has_vnni
from qconvert.runtimes.torch import open_model
from qconvert.runtimes.torch_engines import use_engine

pytestmark = pytest.mark.torch

TORCH = Path(__file__).parents[2] / "fixtures" / "torch"
FROZEN = TORCH / "classifier" / "eager_fbgemm_frozen.pt"
SHAPE = "2,3,20,24"


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of one shape, of a file that states none."""
    path = tmp_path_factory.mktemp("shaped") / "result.onnx"
    qconvert.convert(FROZEN, path, input_shape=SHAPE)
    return path


@pytest.mark.onnxruntime
@needs_torch
def test_the_source_is_read_as_the_conversion_read_it(shaped: Path) -> None:
    report = qconvert.check(FROZEN, shaped, samples=2, per_op=True)
    assert report.verdict == "passed", (report.problems, report.unjudged)
    assert report.operators and not any(op.verdict == "not compared" for op in report.operators)
    assert f"{FROZEN.name} is read with --input-shape {SHAPE}, as the metadata of result.onnx state" in report.notes


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@needs_torch
def test_what_the_user_says_comes_before_what_the_result_says(shaped: Path) -> None:
    with pytest.raises(OptionError, match="is 1,3,8,8 in the source and 2,3,20,24 in the result"):
        qconvert.check(FROZEN, shaped, samples=1, input_shape="1,3,8,8")
    model = onnx.load(str(shaped))
    del model.metadata_props[:]
    onnx.save(model, str(shaped.with_name("silent.onnx")))
    report = qconvert.check(FROZEN, shaped.with_name("silent.onnx"), samples=1, input_shape=SHAPE)
    assert report.verdict == "passed", (report.problems, report.unjudged)


@pytest.mark.parametrize(
    "said",
    [
        "no JSON", "[]", '{"options": []}', '{"options": null}', '{"options": {"input_shape": 3}}', '{"options": {"input_shape": ["1"]}}',
        '{"options": {"bits": 3}}', "{}", "[" * 10_000, '{"options": 1e999}',
    ],
)  # fmt: skip
def test_metadata_that_say_nothing_usable_give_no_options(said: str) -> None:
    metadata = {"qconvert.version": "0.1.0", "qconvert.options": said}
    assert read_noted_options(metadata, format_named("torch")) == {}
    assert read_noted_options(
        {**metadata, "qconvert.options": '{"options": {"input_shape": "1,2", "opset": 13}}'}, format_named("torch")
    ) == {"input_shape": "1,2"}


def test_options_that_no_reader_takes_are_refused(shaped: Path) -> None:
    for options, rule in (({"bits": 3}, "unknown-option"), ({"input_shape": 3}, "wrong-type")):
        with refused(OptionError, rule, holds=(*options,)):
            qconvert.check(FROZEN, shaped, **options)
    with refused(OptionError, "unknown-option", holds=("'bits'",)):
        qconvert.check(shaped, shaped, bits=3)


@pytest.mark.end_to_end
def test_the_other_commands_read_it_so_too(shaped: Path) -> None:
    assert qconvert.roundtrip(FROZEN, "qgraph", samples=1, input_shape=SHAPE).legs[0].differences == ()
    lines = qconvert.audit(FROZEN, "ort-x86", input_shape=SHAPE).lines
    assert sum(line.count for line in lines if line.integer) > 5
    assert SHAPE in run("inspect", FROZEN, "--input-shape", SHAPE).stdout and SHAPE not in run("inspect", FROZEN).stdout
    said = run("diff", FROZEN, shaped, "--verbose").stdout  # the result says how its source was read
    other = run("diff", FROZEN, shaped, "--input-shape", "batch,3,height,width", "--verbose").stdout
    assert "batch" in other and "batch" not in said


@pytest.mark.onnxruntime
@needs_torch
@pytest.mark.parametrize("name", ["vision/eager_qnnpack_frozen", "operators/convolutions_tensor_qnnpack_frozen"])
def test_sizes_that_a_file_leaves_open_are_found(name: str, tmp_path: Path) -> None:
    """A slice leaves nothing of images of 2 x 2, of which no runtime takes an average; transposed convolutions have real biases."""
    source = TORCH / f"{name}.pt"
    qconvert.convert(source, tmp_path / "result.onnx")
    report = qconvert.check(source, tmp_path / "result.onnx", samples=2, per_op=True)
    assert report.verdict == "passed", (report.problems, report.unjudged)
    assert not any("refuses" in text for text in report.notes)  # the strides suggest sizes that it takes
    assert not any(op.verdict == "not compared" for op in report.operators)


@pytest.mark.onnxruntime
def test_what_pytorch_cannot_be_given_is_compared_and_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise UnsupportedError("operators without a form in PyTorch: Odd (1)")

    monkeypatch.setattr("qconvert.runtimes.torch.live", refused)
    source = TORCH / "classifier" / "pt2e_x86.pt2"
    qconvert.convert(source, tmp_path / "result.onnx")
    report = qconvert.check(source, tmp_path / "result.onnx", samples=2, per_op=True)
    assert report.verdict == "inconclusive" and "not judged in PyTorch" in report.unjudged[0], report.problems
    assert len(report.operators) > 4 and {op.verdict for op in report.operators} <= {"equal", "one rounding", "approximate"}
    model = onnx.load(str(tmp_path / "result.onnx"))
    weights = max(model.graph.initializer, key=lambda item: len(item.raw_data))
    weights.raw_data = bytes([weights.raw_data[0] ^ 1]) + weights.raw_data[1:]
    onnx.save(model, str(tmp_path / "wrong.onnx"))
    assert qconvert.check(source, tmp_path / "wrong.onnx", samples=2).verdict == "not equal"


@pytest.mark.litert
@needs_torch
def test_rows_that_pytorch_does_not_give_out_are_known(tmp_path: Path) -> None:
    """A linear layer of three axes whose data are rounded as a whole, and by rows in LiteRT: the rows are no tensor of PyTorch's."""
    import torch
    import torch.ao.quantization.fx._decomposed  # registers the operators

    space: Any = torch.ops.quantized_decomposed

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.from_numpy(np.random.default_rng(0).integers(-127, 128, (8, 16)).astype(np.int8)))

        def forward(self, x: Any) -> Any:
            limits = -128, 127
            scale, point = space.choose_qparams(x, *limits, 1e-5, torch.int8)
            stored = space.quantize_per_tensor(x, scale, point, *limits, torch.int8)
            data = space.dequantize_per_tensor(stored, scale, point, *limits, torch.int8)
            weight = space.dequantize_per_tensor(self.weight, 0.01, 0, -127, 127, torch.int8)
            return torch.nn.functional.linear(data, weight)

    source, result = tmp_path / "model.pt2", tmp_path / "model.tflite"
    torch.export.save(torch.export.export(Layer().eval(), (torch.randn(2, 5, 16),)), source)
    qconvert.convert(source, result)
    report = qconvert.check(source, result, samples=2, per_op=True)
    assert report.verdict == "passed", report.problems
    assert "dynamic range" in {op.verdict for op in report.operators}


@pytest.mark.onnxruntime
@needs_torch
@pytest.mark.filterwarnings("ignore")
def test_a_fault_of_pytorchs_own_kernel_is_named_as_such(tmp_path: Path) -> None:
    """qnnpack's ReLU6 gives data stored channels last, as its convolutions do, in another order; no result does."""
    import torch

    source, result = tmp_path / "m.pt", tmp_path / "m.onnx"
    quantization, before = torch.ao.quantization, torch.backends.quantized.engine
    torch.manual_seed(1)
    try:
        torch.backends.quantized.engine = "qnnpack"
        network = quantization.QuantWrapper(
            torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU6(), torch.nn.Conv2d(4, 3, 3))
        ).eval()
        network.qconfig = quantization.get_default_qconfig("qnnpack")
        network = quantization.prepare(network)
        network(3 * torch.randn(4, 3, 9, 8))
        torch.jit.trace(quantization.convert(network), torch.randn(1, 3, 9, 8)).save(str(source))
    finally:
        torch.backends.quantized.engine = before
    qconvert.convert(source, result, engine="qnnpack")
    rebuilt = qconvert.check(source, result, samples=2, engine="qnnpack")
    assert rebuilt.verdict == "passed" and rebuilt.rebuilt == (str(source),) and "m.pt (rebuilt from what was read" in rebuilt.sentence
    assert any("Its own kernel gives data stored channels last in another order: quantized::relu6" in note for note in rebuilt.machine)
    own = qconvert.check(source, result, samples=2, engine="qnnpack", kernels="torch:trusted")
    (fault,) = [item for item in own.operators if item.equal < 1]
    assert fault.verdict == "source overflows" and "PyTorch's own kernel gives data stored channels last in another order" in fault.reason
    assert own.verdict == "passed" and not own.rebuilt and "the file itself, engine qnnpack" in own.ran
    wrong = qconvert.load(result)
    bias = next(wrong[op.inputs[2]] for op in wrong.ops if op.kind == "Conv")
    assert bias.data is not None
    qconvert.save(wrong.evolve(tensors=[dataclasses.replace(bias, data=bias.data + 3000)]), tmp_path / "wrong.onnx", provenance=None)
    assert qconvert.check(source, tmp_path / "wrong.onnx", samples=2, engine="qnnpack", kernels="torch:trusted").verdict == "not equal"


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
@pytest.mark.parametrize(("is_float", "class_"), [(True, "R1"), (False, "E1")])
def test_float_biases_of_layers_are_compared_over_all_accumulators(suffix: str, is_float: bool, class_: str, tmp_path: Path) -> None:
    """All inputs of a layer of two say the same: a bias rounded to an integer moves limits between results, one of the program does not."""
    scales, steps = np.array([0.011, 0.0071, 0.019], np.float32), np.array([120, -341, 77], np.int32)
    products = np.float32(0.031) * scales
    floats = ((steps + np.array([0.3, -0.45, 0.2])) * products).astype(np.float32)
    along = Quantization(products, np.zeros(3, np.int64), 0)
    weights = np.array([[93, -31], [-12, 127], [55, 41]], np.int8)
    codes = np.arange(256, dtype=np.uint8)
    data = np.stack([np.repeat(codes, 256), np.tile(codes, 256)], axis=1)
    tensors = [
        Tensor("x", "uint8", data.shape, None, Quantization.per_tensor(0.031, 117)),
        Tensor("w", "int8", (3, 2), weights, Quantization(scales, np.zeros(3, np.int64), 0)),
        Tensor("b", "float32", (3,), floats) if is_float else Tensor("b", "int32", (3,), steps, along),
        Tensor("y", "uint8", (65536, 3), None, Quantization.per_tensor(0.083, 60)),
    ]
    source, result = tmp_path / "source.pt2", tmp_path / f"result{suffix}"
    save(Graph("layer", {tensor.name: tensor for tensor in tensors}, (Op("Gemm", ("x", "w", "b"), ("y",)),), ("x",), ("y",)), source)
    convert(source, result)
    found = []
    for path, kernels in ((source, "torch:rebuilt"), (result, "litert:default" if suffix == ".tflite" else "onnxruntime:optimized")):
        runtime, name = kernels_named(kernels)
        model = runtime.open(ModelFile(path, name))
        ((given, (dtype, _)),) = model.inputs.items()
        signed = 128 * (str(dtype) == "int8")
        (values,) = model.run({given: (data.astype(np.int16) - signed).astype(dtype)}).values()
        found.append(values.astype(np.int16) + 128 * (values.dtype == np.int8))
    (item,) = prove(source, result).operators
    assert (item.class_, item.method) == (class_, "thresholds")
    assert np.array_equal(*found) == (class_ == "E1") and np.abs(found[0] - found[1]).max() == is_float


def _run(path: Path, kernels: str, *inputs: Any) -> Any:
    """The one output of a model."""
    runtime, name = kernels_named(kernels)
    model = runtime.open(ModelFile(path, name))
    (found,) = model.run(dict(zip(model.inputs, inputs, strict=True))).values()
    return found


@pytest.mark.litert
@needs_torch
def test_a_program_that_pytorch_exported_is_compared_in_float32(tmp_path: Path) -> None:
    """Its products are rounded before they are divided by the scale: 78 of 65,536 pairs next to a tie are another integer in XNNPACK."""
    import torch
    import torch.ao.quantization.fx._decomposed  # registers the operators

    space: Any = torch.ops.quantized_decomposed
    grids = ((0.14140500128269196, 0), (0.12318392843008041, 34), (1.74188232421875, 235))

    def requantize(x: Any, place: int) -> Any:
        grid = (*grids[place], 0, 255, torch.uint8)
        return space.dequantize_per_tensor(space.quantize_per_tensor(x, *grid), *grid)

    class Product(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return requantize(requantize(x, 0) * requantize(y, 1), 2)

    steps = torch.meshgrid(*[torch.arange(256.0) - point for _, point in grids[:2]], indexing="ij")
    data = tuple(each * scale for each, (scale, _) in zip(steps, grids, strict=False))
    source, result = tmp_path / "model.pt2", tmp_path / "model.tflite"
    torch.export.save(torch.export.export(Product(), data), source)
    convert(source, result)
    found = _run(result, "litert:default", *(each.numpy() for each in data))
    differing = int((found != Product()(*data).numpy()).sum())
    item = next(item for item in prove(source, result).operators if item.operator.startswith("aten::mul"))
    assert (item.class_, item.why) == ("R1", f"{differing} of 65536 pairs differ, by at most 1") and differing


@pytest.mark.onnxruntime
@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("operator", "class_"),
    [
        ("interpolate(x, size=(7, 9), mode='bilinear')", "A"),
        ("interpolate(x, size=(10, 12), mode='bilinear')", "E1"),
        ("interpolate(x, size=(9, 6), mode='bilinear', align_corners=True)", "E1"),
        ("adaptive_avg_pool2d(x, 1)", "E1"),
        ("hardtanh(x.mean(-1), -1e9, 1e9)", "A"),
    ],
)
def test_forms_of_kernels_are_equal_where_they_are_exact(operator: str, class_: str, tmp_path: Path) -> None:
    """Weights of interpolations are rounded unless sizes are related by powers of two; a mean over one axis has no form, and ties."""
    import torch

    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            x = torch.quantize_per_tensor(x, 0.17, 130, torch.quint8)
            return eval(operator, {**vars(torch.nn.functional), "x": x}).dequantize()

    source, result = tmp_path / "m.pt", tmp_path / "m.onnx"
    steps = torch.from_numpy(np.random.default_rng(0).integers(-130, 126, (50, 8, 5, 6)).astype(np.float32))
    torch.jit.trace(Network(), steps).save(str(source))
    convert(source, result, engine="fbgemm", input_shape="50,8,5,6")
    found = _run(result, "onnxruntime:optimized", steps.numpy() * np.float32(0.17))
    off = np.abs(found - Network()(steps * 0.17).numpy()).max()
    item = prove(source, result, engine="fbgemm", input_shape="50,8,5,6").operators[1]
    assert item.class_ == class_ and bool(off) == (class_ == "A")


@pytest.mark.onnxruntime
@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("function", "after_layer", "engine", "fault"),
    [
        ("clamp", True, "qnnpack", "gives data stored channels last in another order"),
        ("hardtanh", True, "qnnpack", "gives data stored channels last in another order"),  # bounds that bound no integer
        ("clamp", False, "qnnpack", ""),
        ("clamp", True, "fbgemm", ""),
        ("prelu", False, "fbgemm", "multiplies values above the zero point by 0.5"),
        ("prelu", False, "fbgemm", ""),
        ("prelu", True, "qnnpack", "multiplies values above the zero point by 0.5"),
    ],
)
def test_functions_that_pytorch_computes_wrongly(function: str, after_layer: bool, engine: str, fault: str, tmp_path: Path) -> None:
    """PyTorch's own values are far from the converted ones where the rows say so; a check says it, and nothing is proved equal."""
    import torch
    from torch.ao.nn import quantized

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = quantized.Conv2d(4, 4, 1) if after_layer else torch.nn.Identity()
            if after_layer:
                weights = torch.from_numpy(np.random.default_rng(0).integers(-127, 128, (4, 4, 1, 1)).astype(np.int8))
                self.layer.set_weight_bias(torch._make_per_tensor_quantized_tensor(weights, 0.01, 0), None)
                self.layer.scale, self.layer.zero_point = 0.05, 120
            self.slopes = torch.quantize_per_tensor(torch.tensor([0.1, 0.2, 0.3, 0.4]), 0.5 / 255 if fault else 0.01, 0, torch.quint8)

        def forward(self, x: Any) -> Any:
            x = self.layer(torch.quantize_per_tensor(x, 0.05, 120, torch.quint8))
            if function == "prelu":
                return torch.ops.quantized.prelu(x, self.slopes, 0.05, 120).dequantize()
            return (torch.clamp(x, -0.5, 0.5) if function == "clamp" else torch.nn.functional.hardtanh(x, -50.0, 50.0)).dequantize()

    source, result = tmp_path / "m.pt", tmp_path / "m.onnx"
    data = torch.from_numpy(np.random.default_rng(1).integers(-120, 136, (1, 4, 5, 6)).astype(np.float32)) * 0.05
    with use_engine(engine):
        network = Network()
        torch.jit.trace(network, data).save(str(source))
        own = network(data).numpy()
    options: Any = {"engine": engine, "input_shape": "1,4,5,6"}
    convert(source, result, **options)
    off = np.abs(_run(result, "onnxruntime:optimized", data.numpy()) - own).max() / 0.05
    report = qconvert.check(source, result, samples=1, **options)
    proof = prove(source, result, **options)
    items = [item for item in proof.operators if function in item.operator]
    assert not (fault and proof.equal_for_all_inputs)
    assert (off > 3, any(fault and fault in note for note in report.machine)) == (bool(fault), bool(fault)), (off, report.machine)
    assert report.verdict == "passed" and {item.class_ in EQUAL_CLASSES for item in items} <= {not fault}, items


@pytest.mark.onnxruntime
@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_embeddings_with_zero_points_between_integers(dtype: str, tmp_path: Path) -> None:
    """torchao's EmbeddingQuantizer gives each row a float zero point."""
    import torch
    import torch.ao.quantization.fx._decomposed  # registers the operators

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            rng = np.random.default_rng(0)
            self.register_buffer("rows", torch.from_numpy(rng.integers(0, 256, (9, 4)).astype(np.uint8)))
            self.register_buffer("scales", torch.from_numpy(rng.uniform(0.01, 0.02, 9).astype(np.float32)))
            self.register_buffer("points", torch.from_numpy(rng.uniform(90, 140, 9).astype(np.float32)))

        def forward(self, x: Any) -> Any:
            dequantize = torch.ops.quantized_decomposed.dequantize_per_channel
            rows = dequantize(self.rows, self.scales, self.points, 0, 0, 255, torch.uint8, out_dtype=getattr(torch, dtype))
            return torch.nn.functional.embedding(x, rows)

    source, result = tmp_path / "m.pt2", tmp_path / "m.onnx"
    network, data = Network(), torch.arange(9).reshape(1, 9)
    torch.export.save(torch.export.export(network, (data,)), source)
    convert(source, result)
    found = _run(result, "onnxruntime:optimized", data.numpy())
    assert found.dtype == dtype and np.allclose(found, network(data).numpy(), rtol=1e-6, atol=1e-7)
    network.points[3] = torch.nan
    torch.export.save(torch.export.export(network, (data,)), source)
    with refused(UnsupportedError, "zero-point-not-integer"):
        load(source)


@pytest.mark.onnxruntime
@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("size", "mode"), [((1, 2), "bilinear"), ((2, 2), "bilinear"), ((4, 2), "nearest")])
def test_interpolations_of_one_pixel_are_no_movement_in_pytorch(size: tuple[int, int], mode: str, tmp_path: Path) -> None:
    """Its kernels give the channels of one pixel in another order."""
    import torch

    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            x = torch.quantize_per_tensor(x, 0.17, 130, torch.quint8)
            return torch.nn.functional.interpolate(x, size=size, mode=mode).dequantize()

    source, result = tmp_path / "m.pt", tmp_path / "m.onnx"
    data = torch.arange(5.0).reshape(1, 5, 1, 1) * 0.17
    torch.jit.trace(Network(), data).save(str(source))
    convert(source, result, engine="fbgemm", input_shape="1,5,1,1")
    assert (_run(result, "onnxruntime:optimized", data.numpy()) != Network()(data).numpy()).any()
    proof = prove(source, result, engine="fbgemm", input_shape="1,5,1,1")
    assert not proof.equal_for_all_inputs
    assert [item.class_ for item in proof.operators if item.operator.startswith("aten::upsample")] == ["?"]
    assert qconvert.check(source, result, samples=1, engine="fbgemm", input_shape="1,5,1,1").verdict == "passed"


@pytest.mark.onnxruntime
@needs_torch
@pytest.mark.filterwarnings("ignore")
def test_an_addition_of_which_onnx_has_no_exact_form_is_compared_on_all_pairs(tmp_path: Path) -> None:
    """The file notes which kernel is meant, and has onnxruntime's own: 2 of 65,536 pairs are another integer."""
    import torch

    grids = (0.18605974316596985, 0), (0.0247814804315567, 170), (1.190931797027588, 125)

    class Network(torch.nn.Module):
        def forward(self, *data: Any) -> Any:
            stored = [torch.quantize_per_tensor(x, *grid, torch.quint8) for x, grid in zip(data, grids, strict=False)]
            return torch.ops.quantized.add(*stored, *grids[2]).dequantize()

    source, result = tmp_path / "m.pt", tmp_path / "m.onnx"
    steps = torch.meshgrid(*[torch.arange(256.0) - point for _, point in grids[:2]], indexing="ij")
    data = tuple(each * scale for each, (scale, _) in zip(steps, grids, strict=False))
    torch.jit.trace(Network(), data).save(str(source))
    convert(source, result, engine="fbgemm", input_shape="256,256;256,256")
    differing = int((_run(result, "onnxruntime:optimized", *(each.numpy() for each in data)) != Network()(*data).numpy()).sum())
    item = prove(source, result, engine="fbgemm", input_shape="256,256;256,256").operators[2]
    assert (item.class_, item.why) == ("R1", f"{differing} of 65536 pairs differ, by at most 1") and differing == 2


@pytest.mark.onnxruntime
@pytest.mark.litert
@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
@pytest.mark.parametrize("operator", ["mul", "add_scalar"])
def test_products_and_sums_with_a_number_are_those_of_pytorchs_kernels(operator: str, suffix: str, tmp_path: Path) -> None:
    """A float32 multiplies the integers, so that next to ties another integer is stored than the exact value's."""
    import torch

    grids = ((0.02, 0), (0.0116, 77), (0.036, 0)) if operator == "mul" else ((0.026, 0),)

    class Network(torch.nn.Module):
        def forward(self, *data: Any) -> Any:
            stored = [torch.quantize_per_tensor(x, *grid, torch.quint8) for x, grid in zip(data, grids, strict=False)]
            run = torch.ops.quantized
            return (run.mul(*stored, *grids[2]) if operator == "mul" else run.add_scalar(*stored, 6.64)).dequantize()

    source, result = tmp_path / "m.pt", tmp_path / f"m{suffix}"
    steps = torch.meshgrid(*[torch.arange(256.0) - point for _, point in grids[:2]], indexing="ij")
    data = tuple(each * scale for each, (scale, _) in zip(steps, grids, strict=False))
    torch.jit.trace(Network(), data).save(str(source))
    options = {"engine": "fbgemm", "input_shape": ";".join(",".join(map(str, each.shape)) for each in data)}
    convert(source, result, **options)
    own, inputs = Network()(*data).numpy(), [each.numpy() for each in data]
    model = open_model(ModelFile(source, "rebuilt", options))
    assert np.array_equal(next(iter(model.run(dict(zip(model.inputs, inputs, strict=True))).values())), own)
    kernels = "onnxruntime:optimized" if suffix == ".onnx" else "litert:default"
    differing = int((_run(result, kernels, *inputs) != own).sum())
    (item,) = [item for item in prove(source, result, **options).operators if operator in item.operator]
    counted = f"{differing} of {own.size} {'pairs' if operator == 'mul' else 'codes'} differ, by at most 1"
    assert (item.class_, item.why) == (("R1", counted) if differing else ("E1", "")), (differing, item)


@needs_torch
@pytest.mark.filterwarnings("ignore")
def test_a_number_is_added_by_a_kernel_of_its_own(tmp_path: Path) -> None:
    """It adds integers before it multiplies: the sum is the exact one, but where that is a tie."""
    import torch

    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            stored = torch.quantize_per_tensor(x, 0.9518892168998718, 255, torch.quint8)
            return torch.ops.quantized.add_scalar(stored, -47.3).dequantize()

    source, data = tmp_path / "m.pt", (torch.arange(256.0) - 255) * 0.9518892168998718
    torch.jit.trace(Network(), data).save(str(source))
    graph = qconvert.load(source, engine="fbgemm", input_shape="256")
    (addition,) = [op for op in graph.ops if op.kind == "Add"]
    assert not addition.attributes.get("arithmetic")
    assert np.allclose(evaluate(graph, {graph.inputs[0]: data.numpy()})[graph.outputs[0]], Network()(data).numpy(), rtol=1e-6)


def _compare_with_engine(make: Callable[[], Any], engine: str, shape: tuple[int, ...], folder: Path) -> tuple[float, list[Any]]:
    """Trace a network as m.pt and convert it to m.onnx; return how far their results are from each other, in steps of 0.9, and what the
    proof says of convolutions."""
    import torch

    source, result = folder / "m.pt", folder / "m.onnx"
    data = torch.from_numpy(np.random.default_rng(1).integers(-117, 139, shape).astype(np.float32)) * 0.031
    with use_engine(engine):
        network = make()
        torch.jit.trace(network, data).save(str(source))
        own = network(data).numpy()
    options = {"engine": engine, "input_shape": ",".join(map(str, shape))}
    convert(source, result, **options)
    off = np.abs(_run(result, "onnxruntime:optimized", data.numpy()) - own).max() / 0.9
    return off, [item for item in prove(source, result, **options).operators if "conv" in item.operator]


@pytest.mark.onnxruntime
@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("engine", "channels", "size", "options", "is_wrong"),
    [
        ("onednn", (3, 2), (3, 3), {}, True),
        ("x86", (3, 2), (3, 3), {}, True),
        ("x86", (6, 4), (2, 2), {"groups": 2}, True),
        ("x86", (3, 2), (3, 3), {"stride": 2, "output_padding": 1}, False),
        ("x86", (3, 3), (3, 3), {}, False),
        ("onednn", (3, 1), (3, 3), {}, False),
        ("x86", (8, 8), (2, 2), {}, False),
        ("x86", (8, 8), (2, 2), {"stride": 2, "output_padding": 1}, True),
        ("x86", (202, 303), (2, 2), {"groups": 101}, False),
        ("fbgemm", (8, 16), (2, 3), {}, True),
        ("fbgemm", (8, 16), (2, 3), {"padding": 1}, False),
        ("fbgemm", (8, 16), (3, 2), {}, False),
        ("fbgemm", (3, 2), (2, 2), {}, False),
    ],
)
def test_transposed_convolutions_that_an_engine_computes_wrongly(
    engine: str, channels: tuple[int, int], size: tuple[int, int], options: dict[str, int], is_wrong: bool, tmp_path: Path
) -> None:
    """PyTorch's own result is far from the converted one where the row says so, and nowhere else."""
    import torch
    from torch.ao.nn import quantized

    if engine == "x86" and not has_vnni():
        pytest.skip("x86 is fbgemm on CPUs without VNNI")

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            groups = options.get("groups", 1)
            self.layer = quantized.ConvTranspose2d(*channels, size, **options)
            shape = (channels[0], channels[1] // groups, *size)
            weights = torch.from_numpy(np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8))
            self.layer.set_weight_bias(torch._make_per_tensor_quantized_tensor(weights, 0.0123, 0), None)
            self.layer.scale, self.layer.zero_point = 0.9, 121

        def forward(self, x: Any) -> Any:
            return self.layer(torch.quantize_per_tensor(x, 0.031, 117, torch.quint8)).dequantize()

    off, (item,) = _compare_with_engine(Network, engine, (1, channels[0], 5, 6), tmp_path)
    assert (off > 3, item.class_ == "?") == (is_wrong, is_wrong), (off, item)


@pytest.mark.onnxruntime
@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("engine", "channels", "size", "options", "largest_weight", "is_wrong"),
    [
        ("fbgemm", (8, 8), (3, 3), {"padding": 1}, 127, True),
        ("fbgemm", (8, 8), (3, 3), {"padding": 1}, 64, False),
        ("fbgemm", (8, 8), (3, 3), {"padding": 1, "activation": "relu6"}, 127, False),
        ("fbgemm", (8, 16), (5, 5), {"padding": 2, "stride": 2}, 127, True),
        ("fbgemm", (8, 8), (7, 7), {"padding": 3}, 127, True),
        ("fbgemm", (8, 8), (9, 9), {"padding": 4}, 127, False),
        ("fbgemm", (8, 8), (3, 5, 5), {"padding": (1, 2, 2)}, 127, True),
        ("fbgemm", (8, 8), (1, 3, 3), {"padding": (0, 1, 1)}, 127, False),
        ("fbgemm", (12, 12), (3, 3), {"padding": 1}, 127, False),
        ("fbgemm", (8, 24), (3, 3), {"padding": 1}, 127, False),
        ("fbgemm", (8, 8), (3, 3), {}, 127, False),
        ("fbgemm", (8, 8), (3, 3), {"padding": 1, "stride": 3}, 127, False),
        ("fbgemm", (8, 8), (3, 3), {"padding": 1, "dilation": 2}, 127, False),
        ("x86", (8, 8), (3, 3), {"padding": 1}, 127, False),
        ("x86", (104, 104), (3, 3), {"padding": 1}, 127, True),
        ("onednn", (104, 104), (3, 3), {"padding": 1}, 127, False),
        ("qnnpack", (8, 8), (3, 3), {"padding": 1}, 127, False),
    ],
)
def test_depthwise_convolutions_whose_pairs_of_products_saturate(
    engine: str,
    channels: tuple[int, int],
    size: tuple[int, ...],
    options: dict[str, Any],
    largest_weight: int,
    is_wrong: bool,
    tmp_path: Path,
) -> None:
    """PyTorch's own result is far from the converted one where the row says so, and nowhere else."""
    import torch
    from torch.ao.nn import quantized

    if engine == "x86" and not has_vnni():
        pytest.skip("x86 is fbgemm on CPUs without VNNI")
    sizes = dict(options)
    is_limited = bool(sizes.pop("activation", ""))

    def weigh(layer: Any, weights: Any) -> Any:
        layer.set_weight_bias(torch._make_per_tensor_quantized_tensor(torch.from_numpy(weights.astype(np.int8)), 0.0123, 0), None)
        layer.scale, layer.zero_point = 0.9, 121
        return layer

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            make = quantized.Conv2d if len(size) == 2 else quantized.Conv3d
            steps = np.random.default_rng(0).choice([-largest_weight, largest_weight], (channels[1], 1, *size))
            self.layer = weigh(make(*channels, size, groups=channels[0], **sizes), steps)
            eye = np.eye(channels[0])[:, :, None, None] * 100
            self.first = weigh(quantized.Conv2d(channels[0], channels[0], 1), eye) if is_limited else None
            if self.first is not None:
                self.first.scale, self.first.zero_point = 6 / 120, 0

        def forward(self, x: Any) -> Any:
            x = torch.quantize_per_tensor(x, 0.031, 117, torch.quint8)
            if self.first is not None:
                x = torch.nn.functional.relu6(self.first(x))
            return self.layer(x).dequantize()

    shape = (1, channels[0], 9, 10) if len(size) == 2 else (1, channels[0], 6, 9, 10)
    off, (*_, item) = _compare_with_engine(Network, engine, shape, tmp_path)
    assert (off > 3, item.class_ == "?") == (is_wrong, is_wrong), (off, item)
    text = ",".join(map(str, shape))
    run = qconvert.check(tmp_path / "m.pt", tmp_path / "m.onnx", engine=engine, input_shape=text, samples=1)
    assert ("saturates sums of two products at 16 bits" in str(run.machine)) == is_wrong


@pytest.mark.litert
@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("bias", "class_"), [(None, "E1"), ([0.3, -0.41, 0.77], "R1")])
def test_transposed_convolutions_are_compared_over_all_accumulators(bias: list[float] | None, class_: str, tmp_path: Path) -> None:
    import torch
    from torch.ao.nn import quantized

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = quantized.ConvTranspose2d(4, 3, 3, stride=2, bias=bias is not None)
            weights = torch.from_numpy(np.random.default_rng(0).integers(-127, 128, (4, 3, 3, 3)).astype(np.int8))
            packed = torch._make_per_tensor_quantized_tensor(weights, 0.0123, 0)
            self.layer.set_weight_bias(packed, None if bias is None else torch.tensor(bias))
            self.layer.scale, self.layer.zero_point = 0.9, 121

        def forward(self, x: Any) -> Any:
            return self.layer(torch.quantize_per_tensor(x, 0.031, 117, torch.quint8)).dequantize()

    source, result = tmp_path / "m.pt", tmp_path / "m.tflite"
    torch.jit.trace(Network(), torch.zeros(1, 4, 5, 6)).save(str(source))
    convert(source, result, engine="fbgemm", input_shape="1,4,5,6")
    proof = prove(source, result, engine="fbgemm", input_shape="1,4,5,6")
    (item,) = [item for item in proof.operators if "conv" in item.operator]
    assert (item.class_, item.method) == (class_, "thresholds")


@pytest.mark.litert
@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("operator", ["relu(x)", "hardtanh(x, 0.0, 6.0)"])
def test_a_limit_that_litert_has_an_activation_for_is_compared_on_all_codes(operator: str, tmp_path: Path) -> None:
    import torch

    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            x = torch.quantize_per_tensor(x, 0.0625, 117, torch.quint8)
            return eval(operator, {**vars(torch.nn.functional), "x": x}).dequantize()

    source, result = tmp_path / "m.pt", tmp_path / "m.tflite"
    data = (torch.arange(256.0).reshape(1, 256) - 117) * 0.0625
    torch.jit.trace(Network(), data).save(str(source))
    convert(source, result, input_shape="1,256")
    assert prove(source, result, input_shape="1,256").claim == "proved equal for all inputs"
    assert np.array_equal(_run(result, "litert:default", data.numpy()), Network()(data).numpy())
