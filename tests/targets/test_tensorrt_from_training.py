"""From quantization-aware training in PyTorch to TensorRT: what the network gave in training = the file in onnxruntime, node by node, whose
convolutions and products TensorRT-RTX builds on integers. No engine is run.

Outputs are PyTorch's own, stored next to its files, or computed here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from targets.test_tensorrt import as_told

from qconvert import check, convert
from qconvert.graph import Array
from qconvert.graph.metadata import SHIFTED
from qconvert.runtimes.onnxruntime import OnnxRuntime
from qconvert.runtimes.tensorrt import Builder

pytest.importorskip("tensorrt_rtx_bindings")
pytestmark = [pytest.mark.onnxruntime, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

FIXTURES = Path(__file__).parents[2] / "fixtures"
NOTHING = "no activation has a zero point: nothing is shifted"
#: A network in training: its convolutions and products, how many activations are shifted, and what share of the outputs is a step off.
TRAINED = {
    "single/qat_fbgemm.pt2": (1, 3, 0.0),
    "single/qat_eager_fbgemm_traced.pt": (1, 3, 0.0),
    "single/qat_channel_affine.pt2": (1, 2, 0.2),  # weights with zero points, of which a step in a thousand is lost
    "small/pt2e_x86_qat.pt2": (2, 3, 0.0),
    "small/pt2e_xnnpack_qat.pt2": (2, 4, 0.0),
}


def run(path: Path, *inputs: Array) -> Array:
    model = OnnxRuntime(path.read_bytes(), optimize=False)
    return next(iter(model.run(dict(zip(model.inputs, inputs, strict=True))).values()))


def shifted(model: Any) -> int:
    return sum(entry.value.count(":") for entry in model.metadata_props if entry.key == SHIFTED)


def scales(model: Any) -> list[Array]:
    """The scales of all Quantize and Dequantize, as the file has them."""
    constants = {item.name: item for item in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    return [numpy_helper.to_array(constants[node.input[1]]) for node in nodes]


@pytest.mark.tensorrt
@pytest.mark.parametrize("name", TRAINED)
def test_training_is_what_the_file_computes_and_tensorrt_builds(name: str, tmp_path: Path, builder: Builder) -> None:
    source, path = FIXTURES / "torch" / name, tmp_path / "model.onnx"
    products, moved, share = TRAINED[name]
    stored = np.load(source.with_suffix(".npz"))
    options = {"input_shape": ",".join(map(str, stored["input_0"].shape))} if name.endswith(".pt") else {}
    convert(source, path, target="tensorrt", **options)
    model, found, wanted = onnx.load(path), run(path, stored["input_0"]), stored["output_0"]
    off = np.abs(found - wanted)
    assert (off > 1e-6).mean() <= share and off.max() <= 1.01 * scales(model)[-1].max()
    assert shifted(model) == moved
    engine = builder.build(path)
    assert engine.built, engine.errors
    assert as_told(model, engine) == (products, products)


def test_the_check_explains_each_layer(tmp_path: Path) -> None:
    source, path = FIXTURES / "torch" / "small" / "pt2e_x86_qat.pt2", tmp_path / "model.onnx"
    convert(source, path, target="tensorrt")
    pytest.importorskip("torch")
    report = check(source, path, samples=2, per_op=True)
    assert report.verdict == "passed", report.problems


@pytest.fixture(scope="module")
def oneflow() -> ModuleType:
    pytest.importorskip("torch")
    sys.path.insert(0, str(FIXTURES))
    try:
        from torch_networks import oneflow
    finally:
        sys.path.remove(str(FIXTURES))
    return oneflow


def plain(folder: Path) -> Path:
    """The network of the states in fixtures/torch/oneflow, without quantization."""
    import torch

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.BatchNorm2d(6)
            self.second, self.output = torch.nn.Conv2d(6, 4, 3, padding=1), torch.nn.Linear(4, 5)

        def forward(self, x: Any) -> Any:
            return self.output(torch.relu(self.second(torch.relu(self.norm(self.first(x))))).mean((2, 3)))

    torch.export.save(torch.export.export(Plain().eval(), (torch.randn(2, 3, 6, 6),)), folder / "float.pt2")
    return folder / "float.pt2"


def of_oneflow(name: str, folder: Path, how: str) -> tuple[Any, Array, Array]:
    """The file, what it gives and what OneFlow's formulas give."""
    source, path = FIXTURES / "torch" / "oneflow" / f"{name}.pth", folder / "model.onnx"
    stored = np.load(source.with_suffix(".npz"))
    convert(source, path, target="tensorrt", graph=plain(folder), oneflow=how)
    return onnx.load(path), run(path, stored["input_0"]), stored["output_0"]


@pytest.mark.cross_section
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("google_symmetric", "google,symmetric,per_layer,8"),
        ("google_channel", "google,symmetric,per_channel,8"),
        ("cambricon", "cambricon,8"),
    ],
)
def test_symmetric_networks_of_oneflow_need_no_shift(name: str, how: str, tmp_path: Path, builder: Builder) -> None:
    pytest.importorskip("torch")
    model, found, wanted = of_oneflow(name, tmp_path, how)
    assert not shifted(model) and any(NOTHING in entry.value for entry in model.metadata_props)
    assert {node.op_type for node in model.graph.node} == {
        "QuantizeLinear", "DequantizeLinear", "Conv", "Clip", "Relu", "ReduceMean", "Gemm"
    }  # fmt: skip
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    powers = [np.all(np.log2(scale) == np.round(np.log2(scale))) for scale in scales(model)]
    assert all(powers) == (name == "cambricon")
    engine = builder.build(tmp_path / "model.onnx")
    assert engine.built and as_told(model, engine) == (3, 3)


def test_affine_networks_of_oneflow_run_on_integers_where_their_ranges_hold_zero(tmp_path: Path, builder: Builder) -> None:
    """Of data above zero OneFlow's affine formula gives a zero point that no type holds: those of the last layer."""
    pytest.importorskip("torch")
    model, found, wanted = of_oneflow("google_affine", tmp_path, "google,affine,per_layer,8")
    assert np.abs(found - wanted).max() < 0.002
    engine = builder.build(tmp_path / "model.onnx")
    conv, second, gemm = (node for node in model.graph.node if node.op_type in ("Conv", "Gemm"))
    layers = {node.name: layer.integer for layer in engine.layers if layer.sums for node in layer.nodes}
    assert [layers[node.name] for node in (conv, second, gemm)] == [True, True, False]


def trained_symmetric() -> tuple[Any, Any]:
    """A small network after quantization-aware training with symmetric int8 quantizations for data and weights, and an input."""
    import torch
    from torch.ao import quantization as ao

    torch.manual_seed(0)
    quantization = {"quant_min": -128, "quant_max": 127, "dtype": torch.qint8}
    data = ao.FakeQuantize.with_args(observer=ao.MovingAverageMinMaxObserver, qscheme=torch.per_tensor_symmetric, **quantization)
    weights = ao.FakeQuantize.with_args(
        observer=ao.MovingAveragePerChannelMinMaxObserver, qscheme=torch.per_channel_symmetric, **quantization
    )
    layers = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, stride=2), torch.nn.Flatten()
    network = torch.nn.Sequential(ao.QuantStub(), *layers, torch.nn.Linear(72, 5)).train()
    ao.fuse_modules_qat(network, [["1", "2"]], inplace=True)
    network.qconfig = ao.QConfig(data, weights)  # type: ignore[assignment]
    ao.prepare_qat(network, inplace=True)
    trainer = torch.optim.SGD(network.parameters(), 0.05)
    for _ in range(5):
        trainer.zero_grad()
        network(torch.randn(4, 3, 8, 8)).square().mean().backward()
        trainer.step()
    return network.eval().apply(ao.disable_observer), torch.randn(1, 3, 8, 8)


def test_symmetric_training_needs_no_shift(tmp_path: Path, builder: Builder) -> None:
    torch = pytest.importorskip("torch")
    network, data = trained_symmetric()
    torch.jit.save(torch.jit.trace(network, data), tmp_path / "qat.pt")
    convert(tmp_path / "qat.pt", tmp_path / "model.onnx", target="tensorrt")
    model = onnx.load(tmp_path / "model.onnx")
    assert not shifted(model) and any(NOTHING in entry.value for entry in model.metadata_props)
    for x in (data, *torch.randn(20, 1, 3, 8, 8)):
        with torch.no_grad():
            wanted = network(x).numpy()
        assert np.abs(run(tmp_path / "model.onnx", x.numpy()) - wanted).max() <= 1.01 * scales(model)[-1].max()
    engine = builder.build(tmp_path / "model.onnx")
    assert engine.built and as_told(model, engine) == (3, 3)
