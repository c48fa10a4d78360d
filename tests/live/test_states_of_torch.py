"""state_dicts that PyTorch writes, next to the float network that it exports: equal to the TorchScript of the same network, or to the
module under training."""

from __future__ import annotations

import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from refusals import refused
from torch_states import computed, equal_layers

import qconvert
from qconvert.errors import InvalidModelError
from qconvert.graph import Array, Graph

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'qconvert[torch]'")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

FIXTURES = Path(__file__).parents[2] / "fixtures"


def exported(folder: Path, model: Any, inputs: Any, suffix: str) -> Path:
    """The float network as a file; .onnx by the older exporter, which makes biases of normalizations and writes modules into names."""
    path = folder / f"float{suffix}"
    if suffix == ".pt2":
        torch.export.save(torch.export.export(model, inputs), path)
    else:
        torch.onnx.export(copy.deepcopy(model), inputs, path, dynamo=False)
    return path


def saved(folder: Path, module: Any) -> Path:
    torch.save(module.state_dict(), folder / "weights.pth")
    return folder / "weights.pth"


def values(inputs: Any) -> dict[str, Array]:
    return {f"input_{index}": value.numpy() for index, value in enumerate(inputs)}


def results(module: Any, inputs: Any) -> Array:
    with torch.no_grad():
        return np.asarray(module(*inputs).numpy())


@pytest.mark.parametrize(
    ("network", "flow", "engine", "suffix"),
    [
        ("vision", "eager", "fbgemm", ".onnx"),
        ("vision", "fx", "qnnpack", ".pt2"),
        ("normalized", "eager", "qnnpack", ".pt2"),
        ("norms", "fx", "fbgemm", ".onnx"),
        ("upward", "fx", "qnnpack", ".pt2"),
        ("upward", "eager", "fbgemm", ".onnx"),
        ("perceptron", "fx", "fbgemm", ".onnx"),
    ],
)
def test_a_state_is_the_torchscript_of_its_network(
    networks: ModuleType, tmp_path: Path, network: str, flow: str, engine: str, suffix: str
) -> None:
    model, samples = networks._float(network)
    module = networks._quantized(network, flow, engine)
    torch.jit.save(torch.jit.trace(module, samples[0], check_trace=False), tmp_path / "script.pt")
    script = qconvert.load(tmp_path / "script.pt", input_shape="; ".join(",".join(map(str, item.shape)) for item in samples[0]))
    found = qconvert.load(saved(tmp_path, module), graph=exported(tmp_path, model, samples[0], suffix))
    assert equal_layers(found, script)
    assert np.array_equal(computed(found, values(samples[0])), computed(script, values(samples[0])))


@pytest.mark.parametrize("mapping", ["eager_fbgemm", "qnnpack", "channel_affine"])
@pytest.mark.parametrize("network", ["normalized"])
def test_a_state_under_training_gives_the_forward_of_its_module(networks: ModuleType, tmp_path: Path, network: str, mapping: str) -> None:
    model, samples = networks._float(network)
    module = networks._trained(network, mapping)
    found = qconvert.load(saved(tmp_path, module), graph=exported(tmp_path, model, samples[0], ".pt2"))
    assert np.abs(computed(found, values(samples[0])) - results(module, samples[0])).max() < 1e-6
    own = {tensor.data.tobytes(): tensor for tensor in _weights(qconvert.from_torch(module, samples[0]))}
    for tensor in _weights(found):
        other = own[tensor.data.tobytes()]
        assert tensor.quantization == other.quantization and tensor.dtype == other.dtype == "int8"
    assert "source.trained_scales" in found.metadata and "limits" in found.metadata["source.assumed"]


def test_a_graph_without_its_normalizations_does_not_say_their_epsilon(networks: ModuleType, tmp_path: Path) -> None:
    model, samples = networks._float("normalized")
    path = saved(tmp_path, networks._trained("normalized", "eager_fbgemm"))
    with refused(InvalidModelError, "normalization-missing") as caught:
        qconvert.load(path, graph=exported(tmp_path, model, samples[0], ".onnx"))
    assert "torch.export.save" in caught.value.remedy


@pytest.mark.cross_section
def test_observers_of_fx_that_do_not_fit_the_operators_are_refused(networks: ModuleType, tmp_path: Path) -> None:
    """The network has a Dropout, which has an observer of its own and is in no graph."""
    model, samples = networks._float("vision")
    path = saved(tmp_path, networks._trained("vision", "fbgemm"))
    with refused(InvalidModelError, "observers-do-not-fit") as caught:
        qconvert.load(path, graph=exported(tmp_path, model, samples[0], ".pt2"))
    assert "Dropout" in caught.value.remedy


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_a_dynamic_state(networks: ModuleType, tmp_path: Path, suffix: str) -> None:
    model, samples = networks._float("perceptron")
    module = networks.flows.dynamic(model, "fbgemm", per_channel=True)
    torch.jit.save(torch.jit.trace(module, samples[0]), tmp_path / "script.pt")
    found = qconvert.load(saved(tmp_path, module), graph=exported(tmp_path, model, samples[0], suffix))
    assert equal_layers(found, qconvert.load(tmp_path / "script.pt", input_shape="3,64"))
    assert {op["arithmetic"] for op in found.ops if op.kind == "Gemm"} == {"dynamic_reduced"}
    np.testing.assert_allclose(computed(found, values(samples[0])), results(module, samples[0]), atol=1e-5)


@pytest.mark.parametrize("name", ["int8_dynamic", "int4_weight", "int8_int4_dynamic", "safe_int8_weight"])
def test_weights_of_torchao(networks: ModuleType, tmp_path: Path, name: str) -> None:
    """The committed files; torchao is not needed."""
    model, samples = networks._float("perceptron")
    path = FIXTURES / "torch" / "perceptron" / f"torchao_{name}{'.safetensors' if name.startswith('safe') else '.pth'}"
    stored = np.load(path.with_suffix(".npz"))
    found = qconvert.load(path, graph=exported(tmp_path, model, samples[0], ".pt2"))
    integers = [tensor for tensor in found.constants() if tensor.is_quantized]
    assert [tensor.name for tensor in integers] == ["first.weight", "second.weight", "third.weight"]
    for tensor in integers:
        assert np.array_equal(tensor.data, stored[f"param/{tensor.name}/qdata"])
        assert np.array_equal(tensor.quantization.scale.reshape(-1), stored[f"param/{tensor.name}/scale"].reshape(-1))
    np.testing.assert_allclose(computed(found, stored), stored["output_0"], atol=1e-6)
    result = tmp_path / "a.tflite"
    assert qconvert.convert(path, result, graph=tmp_path / "float.pt2").quantized


class _Plain(torch.nn.Module):
    """The network of fixtures/torch_networks/oneflow.py without quantization."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.BatchNorm2d(6)
        self.second, self.output = torch.nn.Conv2d(6, 4, 3, padding=1), torch.nn.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.second(torch.relu(self.norm(self.first(x)))))
        return self.output(x.mean((2, 3)))


@pytest.mark.parametrize(
    "name",
    ["google_symmetric", "google_affine", "google_channel", "google_affine_channel", "google_16", "google_4", "cambricon", "cambricon_16"],
)
def test_a_state_with_the_observers_of_oneflow(networks: ModuleType, tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    module, samples = networks.Network(*networks.ONEFLOW[name]).train(), [torch.randn(2, 3, 6, 6) for _ in range(4)]
    for sample in samples:
        module(sample)
    formula, bits, scheme, is_layer = networks.ONEFLOW[name]
    how = f"{formula}, {bits}, {scheme}, {'per_layer' if is_layer else 'per_channel'}"
    graph = exported(tmp_path, _Plain().eval(), (samples[0],), ".pt2")
    found = qconvert.load(saved(tmp_path, module.eval()), graph=graph, oneflow=how)
    for layer, tensor in zip((module.first, module.second, module.output), _weights(found), strict=True):
        folded = layer.folded()[0]
        scale, zero_point = layer.min_max_observer(folded)
        integers = layer.fake_quantization.integers(folded, scale, zero_point).detach().numpy()
        assert np.array_equal(tensor.data.astype(np.int64), integers.astype(np.int64))
        assert np.array_equal(tensor.quantization.scale, (torch.exp2(scale) if formula == "cambricon" else scale).detach().numpy())
    assert np.abs(computed(found, values((samples[0],))) - results(module, (samples[0],))).max() < 1e-6
    assert f"{formula},{scheme}" in found.metadata["source.assumed"]


def _weights(graph: Graph) -> list[Any]:
    """Those of the layers; next to data that no quantization rounds they are dequantized."""
    real = {op.outputs[0]: op.inputs[0] for op in graph.ops if op.kind == "Dequantize"}
    return [graph[real.get(op.inputs[1], op.inputs[1])] for op in graph.ops if op.kind in ("Conv", "Gemm")]


class _Joined(torch.nn.Module):
    """Three concatenations in one module's code, as torchvision's Inception has them."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Conv2d(2, 2, 1), torch.nn.Conv2d(2, 2, 1)
        self.join1, self.join2 = (torch.ao.nn.quantized.FloatFunctional() for _ in range(2))

    def forward(self, x: Any) -> Any:
        left, right = self.left(x), self.right(x)
        return self.join2.cat([self.join1.cat([left, right], 1), right], 1)


def test_modules_that_only_a_number_tells_apart_are_taken_in_order_and_told(tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.backends.quantized.engine = "fbgemm"
    model, x = torch.ao.quantization.QuantWrapper(_Joined()).eval(), torch.randn(1, 2, 4, 4)
    graph = exported(tmp_path, model, (x,), ".pt2")
    model.qconfig = torch.ao.quantization.get_default_qconfig("fbgemm")
    prepared = torch.ao.quantization.prepare(model)
    prepared(x)
    module = torch.ao.quantization.convert(prepared)
    module.module.join1.scale = 0.05
    path = tmp_path / "weights.pth"
    torch.save(module.state_dict(), path)
    found = qconvert.load(path, graph=graph)
    steps = [found[op.outputs[0]].quantization.scale[0] for op in found.ops if op.kind == "Concat"]
    assert steps == [np.float32(0.05), np.float32(module.module.join2.scale)]
    assert "in the order of their numbers" in found.metadata["source.assumed"]
