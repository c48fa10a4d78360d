"""Mixtures of experts: networks have the weights of all experts in one tensor, checkpoints a layer for each, or one tensor of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from checkpoint_formulas import write_checkpoint
from onnx import helper, numpy_helper
from refusals import refused

from qconvert import convert, load
from qconvert.checkpoints.source import CheckpointSource
from qconvert.checkpoints.weight import pack
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.evaluate import evaluate

RNG = np.random.default_rng(0)
EXPERTS, OUTPUTS, INPUTS = 3, 32, 64
GPTQ_CONFIG = {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}
SIZES = {"gate_up_proj": (2 * OUTPUTS, INPUTS), "down_proj": (INPUTS, OUTPUTS)}


def network(path: Path, *, is_turned: bool = False) -> Path:
    """A product with each tensor of experts, as torch.onnx exports it; `is_turned` as of gpt-oss."""
    nodes, sides, weights = [], [], []
    for name, (rows, columns) in SIZES.items():
        shape = (EXPERTS, columns, rows) if is_turned else (EXPERTS, rows, columns)
        weights.append(numpy_helper.from_array(np.zeros(shape, np.float32), f"layers.0.mlp.experts.{name}"))
        nodes.append(helper.make_node("MatMul", [f"{name}/x", weights[-1].name] if is_turned else [weights[-1].name, f"{name}/x"], [name]))
        sides.append((f"{name}/x", [EXPERTS, columns, columns]))
        sides.append((name, [EXPERTS, columns, rows] if is_turned else [EXPERTS, rows, columns]))
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in sides]
    graph = helper.make_graph(nodes, "g", values[::2], values[1::2], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path / "float.onnx")
    return path / "float.onnx"


def gptq(layer: str, outputs: int, inputs: int, **more: Any) -> dict[str, Any]:
    """A layer of GPTQ v2 with blocks of 16."""
    words = pack(RNG.integers(0, 16, (outputs, inputs), np.uint8), 4)
    zeros = pack(RNG.integers(1, 16, (inputs // 16, outputs), np.uint8), 4)
    scales = RNG.uniform(0.01, 0.1, (inputs // 16, outputs)).astype(np.float16)
    tensors = {"qweight": np.ascontiguousarray(words.T).view(np.int32), "qzeros": zeros.view(np.int32), "scales": scales, **more}
    return {f"{layer}.{name}": tensor for name, tensor in tensors.items()}


def fp8(layer: str, outputs: int, inputs: int) -> dict[str, Any]:
    """A layer of FP8 with a scale for each output, or of the tensor, as parts of one expert may have."""
    rows = 1 if layer.endswith("w1") else outputs
    scales = RNG.uniform(0.01, 0.1, (rows, 1)).astype(np.float32)
    return {f"{layer}.weight": RNG.normal(size=(outputs, inputs)).astype(ml_dtypes.float8_e4m3fn), f"{layer}.weight_scale": scales}


def mixed(layer: str, outputs: int, inputs: int) -> dict[str, Any]:
    """A layer of GPTQ where it is the second of an expert; others are not quantized."""
    if layer.endswith("w2"):
        return gptq(layer, outputs, inputs)
    return {f"{layer}.weight": RNG.normal(size=(outputs, inputs)).astype(ml_dtypes.bfloat16)}


def layers(make: Any) -> dict[str, Any]:
    """The layers of all experts as Mixtral names them."""
    found: dict[str, Any] = {}
    for expert in range(EXPERTS):
        for name, sizes in (("w1", (OUTPUTS, INPUTS)), ("w2", (INPUTS, OUTPUTS)), ("w3", (OUTPUTS, INPUTS))):
            found |= make(f"layers.0.block_sparse_moe.experts.{expert}.{name}", *sizes)
    return found


def values(folder: Path, layer: str) -> Any:
    """The weight of a layer, as its tool dequantizes it."""
    source = CheckpointSource.of(folder / "model.safetensors")
    if layer in source.layers:
        weight = source.weight(layer)
        return weight.floats(np.dtype(np.float32)).reshape(weight.shape)
    return source.plain[f"{layer}.weight"].astype(np.float32)


def results(folder: Path, path: Path, *, is_turned: bool = False) -> list[Any]:
    """The weights of the network, which it multiplies by one."""
    graph = load(folder / "model.safetensors", graph=network(path, is_turned=is_turned))
    ones = {f"{name}/x": np.tile(np.eye(columns, dtype=np.float32), (EXPERTS, 1, 1)) for name, (_, columns) in SIZES.items()}
    return list(evaluate(graph, ones).values())


@pytest.mark.parametrize("make", [gptq, fp8, mixed])
def test_layers_of_experts_become_one_tensor(make: Any, tmp_path: Path) -> None:
    """Under the names that another version of transformers has: gate before up, one expert after the other."""
    folder = write_checkpoint(tmp_path / "s", layers(make), {} if make is fp8 else GPTQ_CONFIG)
    gate_up, down = results(folder, tmp_path)
    for expert in range(EXPERTS):
        gate, second, up = (values(folder, f"layers.0.block_sparse_moe.experts.{expert}.{name}") for name in ("w1", "w2", "w3"))
        np.testing.assert_array_equal(gate_up[expert], np.concatenate([gate, up]))
        np.testing.assert_array_equal(down[expert], second)


def test_experts_of_mlx_become_one_tensor(tmp_path: Path) -> None:
    """Their values have offsets, and gate and up tensors of their own."""
    tensors = {}
    for name, (rows, columns) in {"gate_proj": (OUTPUTS, INPUTS), "up_proj": (OUTPUTS, INPUTS), "down_proj": (INPUTS, OUTPUTS)}.items():
        layer = f"layers.0.mlp.switch_mlp.{name}"
        tensors[f"{layer}.weight"] = pack(RNG.integers(0, 16, (EXPERTS, rows, columns), np.uint8), 4)
        for part in ("scales", "biases"):
            tensors[f"{layer}.{part}"] = RNG.normal(size=(EXPERTS, rows, columns // 32)).astype(np.float32)
    folder = write_checkpoint(tmp_path / "s", tensors, {"bits": 4, "group_size": 32})
    gate_up, down = results(folder, tmp_path)
    gate, up, second = (values(folder, f"layers.0.mlp.switch_mlp.{name}") for name in ("gate_proj", "up_proj", "down_proj"))
    np.testing.assert_allclose(gate_up, np.concatenate([gate, up], axis=1), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(down, second, rtol=1e-6, atol=1e-6)


def test_experts_of_gpt_oss_are_turned(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {}
    for name, (rows, columns) in SIZES.items():
        tensors[f"layers.0.mlp.experts.{name}_blocks"] = RNG.integers(0, 256, (EXPERTS, rows, columns // 32, 16), np.uint8)
        tensors[f"layers.0.mlp.experts.{name}_scales"] = RNG.integers(118, 126, (EXPERTS, rows, columns // 32), np.uint8)
    folder = write_checkpoint(tmp_path / "s", tensors, {"quant_method": "mxfp4"})
    gate_up, down = results(folder, tmp_path, is_turned=True)
    path = "layers.0.mlp.experts"
    np.testing.assert_array_equal(gate_up[:, :, ::2], values(folder, f"{path}.gate_proj").transpose(0, 2, 1))
    np.testing.assert_array_equal(gate_up[:, :, 1::2], values(folder, f"{path}.up_proj").transpose(0, 2, 1))
    np.testing.assert_array_equal(down, values(folder, f"{path}.down_proj").transpose(0, 2, 1))


def test_experts_that_have_no_place_are_refused(tmp_path: Path) -> None:
    """One that is missing, one whose inputs are in another order, and one that is stored in another way."""
    tensors = layers(gptq)
    fewer = {name: tensor for name, tensor in tensors.items() if "experts.1.w3" not in name}
    with pytest.raises(InvalidModelError, match="are not in the graph"):
        convert(write_checkpoint(tmp_path / "fewer", fewer, GPTQ_CONFIG), tmp_path / "m.onnx", graph=network(tmp_path))
    tensors["layers.0.block_sparse_moe.experts.1.w3.g_idx"] = np.arange(INPUTS, dtype=np.int32)[::-1] // 16
    with refused(UnsupportedError, "blocks-not-covered", holds=("act-order",)):
        convert(write_checkpoint(tmp_path / "ordered", tensors, GPTQ_CONFIG), tmp_path / "m.onnx", graph=network(tmp_path))
    tensors = layers(mixed) | gptq("layers.0.block_sparse_moe.experts.1.w3", OUTPUTS, INPUTS)
    del tensors["layers.0.block_sparse_moe.experts.1.w3.weight"]
    with refused(UnsupportedError, "blocks-not-covered", holds=("different ways",)):
        convert(write_checkpoint(tmp_path / "other", tensors, GPTQ_CONFIG), tmp_path / "m.onnx", graph=network(tmp_path))
    assert not (tmp_path / "m.onnx").exists()
