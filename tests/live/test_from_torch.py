"""Modules in memory: graphs of every way to quantize, next to what the modules themselves compute and hold."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from refusals import refused

import qconvert
from qconvert.errors import OptionError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'qconvert[torch]'")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def outputs(graph: Graph, inputs: Any) -> np.ndarray:
    values = {name: value.numpy() for name, value in zip(graph.inputs, inputs, strict=True)}
    return evaluate(graph, values)[graph.outputs[0]]


def computed(module: Any, inputs: Any) -> np.ndarray:
    with torch.no_grad():
        return module(*inputs).numpy()


def states(module: Any) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("engine", ["fbgemm", "qnnpack"])
@pytest.mark.parametrize("flow", ["eager", "fx"])
@pytest.mark.parametrize("network", ["classifier"])
def test_converted_modules_keep_integers_and_scales(networks: ModuleType, network: str, flow: str, engine: str) -> None:
    module, inputs = networks._quantized(network, flow, engine), networks._float(network)[1][0]
    graph = qconvert.from_torch(module, inputs)
    convs = [child for child in module.modules() if hasattr(child, "weight") and callable(child.weight)]
    found = {graph[op.inputs[1]].name: graph[op.inputs[1]] for op in graph.ops if op.kind in ("Conv", "Gemm")}
    assert len(found) == len(convs)
    for child, tensor in zip(convs, found.values(), strict=True):
        weight = child.weight()
        assert np.array_equal(tensor.data.reshape(-1), weight.int_repr().numpy().reshape(-1))
        scales = weight.q_per_channel_scales() if weight.qscheme() == torch.per_channel_affine else torch.tensor([weight.q_scale()])
        assert np.array_equal(tensor.quantization.scale, scales.float().numpy())
    scale = float(np.abs(computed(module, inputs)).max()) / 40
    np.testing.assert_allclose(outputs(graph, inputs), computed(module, inputs), atol=scale)


@pytest.mark.parametrize("mapping", ["fbgemm", "qnnpack_plain", "channel_affine", "eager_fbgemm"])
@pytest.mark.parametrize("network", ["normalized"])
def test_training_modules_give_their_own_forward_and_stay_as_they_are(networks: ModuleType, network: str, mapping: str) -> None:
    """With observers switched on: the module's own forward would move its averages."""
    module, inputs = copy.deepcopy(networks._trained(network, mapping)), networks._float(network)[1][0]
    expected = computed(module, inputs)
    module.apply(torch.ao.quantization.enable_observer)
    module.train()
    before = states(module)
    graph = qconvert.from_torch(module, inputs)
    assert module.training and all(torch.equal(value, before[name]) for name, value in states(module).items())
    assert np.abs(outputs(graph, inputs) - expected).max() < 1e-6


@pytest.mark.parametrize("qat", ["", "before", "after"])
@pytest.mark.parametrize("kind", ["x86", "xnnpack"])
def test_graphs_of_pt2e(networks: ModuleType, kind: str, qat: str) -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    model, samples = networks._float("classifier")
    module = networks.flows.pt2e(model, samples, kind, qat=qat).module()
    graph = qconvert.from_torch(module, samples[0])
    assert [graph[op.inputs[1]].dtype for op in graph.ops if op.kind == "Conv"] == ["int8", "int8"]
    assert np.abs(outputs(graph, samples[0]) - computed(module, samples[0])).max() < 1e-6


def test_float_modules_keep_the_names_of_their_parameters(networks: ModuleType) -> None:
    model, samples = networks._float("classifier")
    batch = torch.export.Dim("batch", min=1, max=64)
    graph = qconvert.from_torch(model, samples[0], dynamic_shapes=({0: batch},))
    assert {"first.weight", "second.bias", "output.weight"} <= set(graph.tensors)
    assert isinstance(graph[graph.inputs[0]].shape[0], str) and graph[graph.inputs[0]].shape[1:] == (3, 8, 8)
    assert np.abs(outputs(graph, samples[0]) - computed(model, samples[0])).max() < 1e-6


def test_programs_and_scripts_are_taken_as_they_are(networks: ModuleType) -> None:
    model, samples = networks._float("classifier")
    expected = computed(model, samples[0])
    for held in (torch.export.export(model, samples[0]), torch.jit.trace(model, samples[0])):
        assert np.abs(outputs(qconvert.from_torch(held, samples[0]), samples[0]) - expected).max() < 1e-6


def test_learned_steps_are_rounded_as_their_kernel_rounds_them() -> None:
    from torch.ao.quantization import MovingAverageMinMaxObserver
    from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize

    fake = _LearnableFakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.quint8, scale=0.05, zero_point=3.4)
    fake.enable_static_estimate()
    fake.toggle_observer_update(False)
    with torch.no_grad():
        fake.scale.fill_(0.05)
        fake.zero_point.fill_(3.4)
    graph = qconvert.from_torch(torch.nn.Sequential(fake), torch.zeros(1, 8))
    quantizations = [tensor.quantization for tensor in graph.tensors.values() if tensor.quantization is not None]
    assert quantizations and all(
        quantization.zero_point.tolist() == [3] and quantization.scale.tolist() == [np.float32(0.05)] for quantization in quantizations
    )


@pytest.mark.parametrize("config", ["int8_weight", "int8_dynamic", "int4_weight"])
def test_tensors_of_torchao(networks: ModuleType, config: str) -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    from torchao import quantization as ao

    model, samples = networks._float("perceptron")
    model = copy.deepcopy(model)
    configs = {"int8_weight": ao.Int8WeightOnlyConfig, "int8_dynamic": ao.Int8DynamicActivationInt8WeightConfig}
    int4 = ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerGroup(16))
    ao.quantize_(model, configs[config]() if config in configs else int4)
    graph = qconvert.from_torch(model, samples[0])
    assert {tensor.dtype for tensor in graph.tensors.values() if tensor.is_constant} & {"int8", "int4"}
    np.testing.assert_allclose(outputs(graph, samples[0]), computed(model, samples[0]), atol=1e-2)


@pytest.mark.parametrize(
    "name", ["google_symmetric", "google_affine", "google_channel", "google_16", "google_4", "cambricon", "cambricon_16"]
)
def test_networks_with_the_observers_of_oneflow(networks: ModuleType, name: str) -> None:
    """The integers of every layer are those of its formula; cambricon's scales are powers of two."""
    torch.manual_seed(0)
    module, samples = networks.Network(*networks.ONEFLOW[name]).train(), [torch.randn(2, 3, 6, 6) for _ in range(4)]
    for sample in samples:
        module(sample)
    graph = qconvert.from_torch(module.eval(), samples[0])
    real = {op.outputs[0]: op.inputs[0] for op in graph.ops if op.kind == "Dequantize"}  # next to data that no quantization can round
    weights = [graph[real.get(op.inputs[1], op.inputs[1])] for op in graph.ops if op.kind in ("Conv", "Gemm")]
    for layer, tensor in zip((module.first, module.second, module.output), weights, strict=True):
        folded = layer.folded()[0]
        scale, zero_point = layer.min_max_observer(folded)
        integers = layer.fake_quantization.integers(folded, scale, zero_point).detach().numpy()
        assert np.array_equal(tensor.data.astype(np.int64).reshape(-1), integers.astype(np.int64).reshape(-1))
        step = torch.exp2(scale) if name.startswith("cambricon") else scale
        assert np.array_equal(tensor.quantization.scale, step.detach().numpy())
    assert np.abs(outputs(graph, (samples[0],)) - computed(module, (samples[0],))).max() < 1e-6


def test_a_module_with_observers_alone_is_refused(networks: ModuleType) -> None:
    model, samples = networks._float("classifier")
    prepared = networks.flows._fx_prepared(model, samples, "fbgemm")
    with refused(UnsupportedError, "not-converted") as caught:
        qconvert.from_torch(prepared, samples[0])
    assert "convert_fx" in caught.value.remedy


@pytest.mark.cross_section
@pytest.mark.parametrize("scripted", [False, True])
def test_a_quantized_example_gives_its_scale_to_the_input(scripted: bool) -> None:
    class Doubles(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.quantized.add(x, x, 0.3, 7)

    module = torch.jit.script(Doubles()) if scripted else Doubles()
    x = torch.quantize_per_tensor(torch.linspace(-5, 5, 77), 0.05, 110, torch.quint8)
    graph = qconvert.from_torch(module, x)
    quantization = graph["x"].quantization
    assert quantization is not None and (quantization.step, quantization.point) == (np.float32(0.05), 110)
    assert np.array_equal(outputs(graph, [x.int_repr()]), module(x).int_repr().numpy())


def test_what_torch_cannot_write_says_why() -> None:
    class Other(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return int("x")

    with refused(UnsupportedError, "export-failed", holds=("invalid literal",)):
        qconvert.from_torch(Other(), torch.zeros(1))
    with refused(OptionError, "not-a-module", holds=("torch.nn.Module", "dict")):
        qconvert.from_torch({}, torch.zeros(1))
    with refused(OptionError, "inputs-not-tensors"):
        qconvert.from_torch(torch.nn.ReLU(), [[1.0]])
