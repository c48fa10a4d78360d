"""What tensors and config.json mean together: what would be read wrongly is refused or said, and loaders are told what they need."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoint_formulas import write_checkpoint
from refusals import refused

import qconvert
from qconvert import convert
from qconvert.checkpoints import weight as weight_module
from qconvert.checkpoints.config import Config
from qconvert.checkpoints.container import Needs
from qconvert.checkpoints.nearest import find_nearest_weight, signal_to_noise
from qconvert.checkpoints.parts import Parts
from qconvert.checkpoints.safetensors import written_file
from qconvert.checkpoints.source import CheckpointSource, checkpoint_summary
from qconvert.checkpoints.weight import E2M1, BlockWeight, pack, unpack
from qconvert.errors import InternalError, InvalidModelError, UnsupportedError

pytestmark = pytest.mark.formats

RNG = np.random.default_rng(11)
GPTQ_CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"}


def gptq(layer: str, outputs: int = 32, inputs: int = 64, block: int = 32, dtype: Any = np.float16) -> dict[str, Any]:
    """A layer of GPTQ v2 without g_idx."""
    groups = -(-inputs // block)
    words = pack(RNG.integers(0, 16, (outputs, inputs), np.uint8), 4)
    zeros = pack(RNG.integers(1, 16, (groups, outputs), np.uint8), 4)
    scales = RNG.uniform(0.01, 0.1, (groups, outputs)).astype(dtype)
    tensors = {"qweight": np.ascontiguousarray(words.T).view(np.int32), "qzeros": zeros.view(np.int32), "scales": scales}
    return {f"{layer}.{name}": tensor for name, tensor in tensors.items()}


def mlx(layer: str, outputs: int = 32, inputs: int = 64) -> dict[str, Any]:
    words = pack(RNG.integers(0, 16, (outputs, inputs), np.uint8), 4)
    scales = np.full((outputs, inputs // 32), 0.5, np.float16)
    return {f"{layer}.weight": words, f"{layer}.scales": scales, f"{layer}.biases": (-8 * scales).astype(np.float16)}


def stated_in(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def test_fp6_has_the_names_of_fp4(tmp_path: Path) -> None:
    tensors = {"m.l.weight_packed": RNG.integers(0, 256, (32, 96), np.uint8), "m.l.weight_scale": np.full((32, 4), 120, np.uint8)}
    source = write_checkpoint(tmp_path / "s", tensors, {"quant_method": "compressed-tensors", "format": "mxfp6-pack-quantized"})
    with refused(InvalidModelError, "blocks-do-not-fit"):
        convert(source, tmp_path / "o", result_format="nvfp4")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_summary_names_the_version_of_gptq_that_config_json_states(version: str, tmp_path: Path) -> None:
    stated = {**GPTQ_CONFIG, "checkpoint_format": {"v1": "gptq", "v2": "gptq_v2"}[version]}
    tensors = gptq("m.l")
    tensors["m.l.qzeros"] = np.full_like(tensors["m.l.qzeros"], 0x77777777)  # 7 in v2, 8 in v1
    summary = checkpoint_summary(write_checkpoint(tmp_path / "s", tensors, stated) / "model.safetensors")
    assert summary is not None and [layer["container"] for layer in summary["layers"]] == [f"GPTQ {version}"]


@pytest.mark.parametrize("block", [32, 128])
def test_blocks_are_those_that_config_json_states(block: int, tmp_path: Path) -> None:
    """96 inputs in two blocks are not two of 48, where config.json states others."""
    source = write_checkpoint(tmp_path / "s", gptq("m.l", inputs=96, block=64), {**GPTQ_CONFIG, "group_size": block})
    with refused(InvalidModelError, "config-contradicts"):
        convert(source, tmp_path / "o", result_format="awq")


def test_a_tensor_that_its_container_does_not_have_is_refused(tmp_path: Path) -> None:
    """It changes what the others mean: factors of data next to MXFP4, a rotation next to AWQ."""
    fp4 = {
        "m.l.weight": RNG.integers(0, 256, (16, 32), np.uint8),
        "m.l.weight_scale": np.full((16, 2), 120, np.uint8),
        "m.l.pre_quant_scale": np.full(64, 2, np.float32),
    }
    found = {"fp4": (fp4, {"quant_method": "modelopt"}), "theta": ({**gptq("m.l"), "m.l.theta": np.ones(4, np.float32)}, GPTQ_CONFIG)}
    found["nested"] = ({**gptq("m.l"), "m.l.lora_A.weight": np.ones((4, 4), np.float32)}, GPTQ_CONFIG)
    found["float"] = ({**gptq("m.l"), "m.l.weight": np.ones((32, 64), np.float16)}, GPTQ_CONFIG)
    found["method"] = (gptq("m.l"), {**GPTQ_CONFIG, "quant_method": "paroquant"})
    found["transform"] = (gptq("m.l"), {**GPTQ_CONFIG, "transform_config": {"config_groups": {"R1": {}}}})
    for name, (tensors, stated) in found.items():
        with refused(UnsupportedError, "blocks-not-covered"):
            CheckpointSource.of(write_checkpoint(tmp_path / name, tensors, stated) / "model.safetensors")
    with_bias = write_checkpoint(tmp_path / "bias", {**gptq("m.l"), "m.l.bias": np.ones(32, np.float16)}, GPTQ_CONFIG)
    convert(with_bias, tmp_path / "o", result_format="awq")
    assert qconvert.diff(with_bias, tmp_path / "o") == []


def test_a_pattern_that_would_take_minutes_to_match_is_refused() -> None:
    """.*.*.*.* takes a time of the fourth power of the length of a layer's path."""
    config = Config({"config_groups": {"first": {"targets": ["re:.*.*.*.*x"]}, "second": {"targets": ["Linear"]}}})
    assert Parts("a" * 50, {}, config=config).group == {"targets": ["Linear"]}
    with refused(UnsupportedError, "blocks-not-covered"):
        assert Parts("a" * 1000, {}, config=config).group


@pytest.mark.parametrize("has_order", [True, False])
def test_the_last_block_of_gptq_may_be_shorter(has_order: bool, tmp_path: Path) -> None:
    """Blocks of 64 of 96 inputs, as auto-round writes them."""
    tensors = gptq("m.l", inputs=96, block=64) | ({"m.l.g_idx": np.arange(96, dtype=np.int32) // 64} if has_order else {})
    folder = write_checkpoint(tmp_path / "source", tensors, {**GPTQ_CONFIG, "group_size": 64})
    weight = CheckpointSource.of(folder / "model.safetensors").weight("m.l")
    scales, zeros = tensors["m.l.scales"], unpack(tensors["m.l.qzeros"], 4, 32)
    steps = unpack(np.ascontiguousarray(tensors["m.l.qweight"].T), 4, 96).T - zeros[np.arange(96) // 64].astype(np.float32)
    np.testing.assert_array_equal(weight.values().T, steps * scales.astype(np.float32)[np.arange(96) // 64])
    assert weight.block == 32
    tensors["m.l.g_idx"] = np.repeat(np.arange(2), (64, 32))[RNG.permutation(96)].astype(np.int32)
    folder = write_checkpoint(tmp_path / "mixed", tensors, {**GPTQ_CONFIG, "group_size": 64})
    with refused(UnsupportedError, "act-order-not-covered"):
        CheckpointSource.of(folder / "model.safetensors").weight("m.l")


def test_bits_and_blocks_that_auto_round_states_of_one_layer(tmp_path: Path) -> None:
    stated = {**GPTQ_CONFIG, "bits": 8, "group_size": 64, "extra_config": {"m.l": {"bits": 4, "group_size": 32}}}
    folder = write_checkpoint(tmp_path / "source", gptq("m.l"), stated)
    weight = CheckpointSource.of(folder / "model.safetensors").weight("m.l")
    assert (weight.bits, weight.block) == (4, 32)


def test_blocks_of_bitsandbytes_across_rows(tmp_path: Path) -> None:
    """Blocks of 64 of the flattened weight, of rows of 24; the last one is not full."""
    codes, absmax = RNG.integers(0, 16, 240, np.uint8), RNG.uniform(0.1, 1, 4).astype(np.float32)
    table, state = np.sort(RNG.normal(size=16)).astype(np.float32), json.dumps({"shape": [10, 24], "blocksize": 64}).encode()
    tensors = {
        "m.l.weight": (codes[::2] << 4 | codes[1::2])[:, None],
        "m.l.weight.absmax": absmax,
        "m.l.weight.quant_map": table,
        "m.l.weight.quant_state.bitsandbytes__nf4": np.frombuffer(state, np.uint8),
    }
    folder = write_checkpoint(tmp_path / "source", tensors, {"quant_method": "bitsandbytes"})
    weight = CheckpointSource.of(folder / "model.safetensors").weight("m.l")
    np.testing.assert_array_equal(weight.values().reshape(-1), table[codes] * absmax[np.arange(240) // 64])


def test_two_levels_of_scales_beyond_float32(tmp_path: Path) -> None:
    tensors = {
        "m.l.weight_packed": np.ones((16, 32), np.uint8),
        "m.l.weight_scale": np.full((16, 4), 448, ml_dtypes.float8_e4m3fn),
        "m.l.weight_global_scale": np.array([1e-37], np.float32),
    }
    folder = write_checkpoint(tmp_path / "source", tensors, {"quant_method": "compressed-tensors"})
    with refused(InvalidModelError, "scale-not-finite"):
        CheckpointSource.of(folder / "model.safetensors").weight("m.l")


def test_sizes_of_blocks_that_mlx_chooses(tmp_path: Path) -> None:
    stated = {"bits": 8, "group_size": 32, "m.l": {"bits": None, "group_size": None, "mode": "affine"}}
    tensors = {name: tensor if name.endswith("weight") else tensor[:, :1] for name, tensor in mlx("m.l").items()}
    folder = write_checkpoint(tmp_path / "source", tensors, None, quantization=stated)
    weight = CheckpointSource.of(folder / "model.safetensors").weight("m.l")
    assert (weight.bits, weight.block) == (4, 64)


def test_factors_next_to_integers_of_8_bits_and_nvfp4(tmp_path: Path) -> None:
    """SmoothQuant and AWQ by ModelOpt."""
    factors = RNG.uniform(0.5, 2, 64).astype(ml_dtypes.bfloat16)
    both = {
        "W8A8_SQ_PER_CHANNEL": {"weight": np.ones((16, 64), np.int8), "weight_scale": np.ones(16, np.float32)},
        "NVFP4_AWQ": {
            "weight": np.ones((16, 32), np.uint8),
            "weight_scale": np.ones((16, 4), ml_dtypes.float8_e4m3fn),
            "weight_scale_2": np.ones((), np.float32),
        },
    }
    for name, tensors in both.items():
        parts = {f"m.l.{part}": tensor for part, tensor in {**tensors, "pre_quant_scale": factors}.items()}
        folder = write_checkpoint(tmp_path / name, parts, {"quant_method": "modelopt", "quant_algo": name})
        weight = CheckpointSource.of(folder / "model.safetensors").weight("m.l")
        assert weight.factors is not None and np.array_equal(weight.factors, factors.astype(np.float32))


def test_a_header_without_metadata(tmp_path: Path) -> None:
    """MLX writes null."""
    source = write_checkpoint(tmp_path / "s", mlx("m.l"), {"bits": 4, "group_size": 32})
    content = (source / "model.safetensors").read_bytes()  # the header is filled up with spaces
    (source / "model.safetensors").write_bytes(content.replace(b'"__metadata__":{}', b'"__metadata__":null').replace(b"  ", b"", 1))
    assert list(CheckpointSource.of(source / "model.safetensors").layers) == ["m.l"]


def test_one_name_twice_is_no_file(tmp_path: Path) -> None:
    with refused(InternalError, "duplicate-name"), written_file(tmp_path / "f.safetensors", ["a"], {}) as writer:
        writer.add("a", np.zeros(2, np.float32))
        writer.add("a", np.zeros(2, np.float32))


def experts_of_mlx(layer: str, experts: int = 3, outputs: int = 32, inputs: int = 64) -> dict[str, Any]:
    """A layer whose experts are in one tensor each, of MLX affine with blocks of 32."""
    words = pack(RNG.integers(0, 16, (experts, outputs, inputs), np.uint8), 4)
    scales = RNG.uniform(0.01, 0.1, (experts, outputs, inputs // 32)).astype(np.float16)
    return {f"{layer}.weight": words, f"{layer}.scales": scales, f"{layer}.biases": (-8 * scales).astype(np.float16)}


def experts_of_gpt_oss(path: str, experts: int = 3, outputs: int = 16, inputs: int = 64) -> dict[str, Any]:
    """Both tensors of experts of a layer, with their biases; rows of gate and up in turns."""
    found: dict[str, Any] = {}
    for name, rows in (("gate_up_proj", 2 * outputs), ("down_proj", outputs)):
        found[f"{path}.{name}_blocks"] = RNG.integers(0, 256, (experts, rows, inputs // 32, 16), np.uint8)
        found[f"{path}.{name}_scales"] = RNG.integers(118, 126, (experts, rows, inputs // 32), np.uint8)
        found[f"{path}.{name}_bias"] = RNG.normal(size=(experts, rows)).astype(ml_dtypes.bfloat16)
    return found


def test_experts_of_gpt_oss_become_those_of_mlx(tmp_path: Path) -> None:
    """The tensors are those that mlx_lm's sanitize() makes: words of 8 codes, gate and up apart, each with its bias."""
    path = "model.layers.0.mlp.experts"
    tensors = experts_of_gpt_oss(path)
    source = write_checkpoint(tmp_path / "s", tensors, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    report = convert(source, tmp_path / "o", result_format="mlx-mxfp4")
    assert report.kept_all and report.kept["layers in blocks"] == 3 and report.kept["integers in them"] == 3 * 3 * 16 * 64
    found = CheckpointSource.of(tmp_path / "o" / "model.safetensors").checkpoint.tensors
    wanted = {}
    for name, stored, rows in (("gate_proj", "gate_up_proj", 0), ("up_proj", "gate_up_proj", 1), ("down_proj", "down_proj", None)):
        taken = slice(None) if rows is None else slice(rows, None, 2)
        blocks = np.ascontiguousarray(tensors[f"{path}.{stored}_blocks"][:, taken])
        wanted[f"{path}.{name}.weight"] = blocks.reshape(3, 16, 32).view(np.uint32)
        wanted[f"{path}.{name}.scales"] = tensors[f"{path}.{stored}_scales"][:, taken]
        wanted[f"{path}.{name}.bias"] = tensors[f"{path}.{stored}_bias"][:, taken]
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        np.testing.assert_array_equal(found[name], tensor)
    assert stated_in(tmp_path / "o") == {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    assert qconvert.diff(source, tmp_path / "o") == []
    low, high = (tensors[f"{path}.down_proj_blocks"] >> shift & 15 for shift in (0, 4))
    codes = np.stack([low, high], axis=-1).reshape(48, 64)
    scales = np.exp2(tensors[f"{path}.down_proj_scales"].astype(np.float64) - 127).reshape(48, 2).repeat(32, axis=1)
    weight = CheckpointSource.of(source / "model.safetensors").weight(f"{path}.down_proj")
    np.testing.assert_array_equal(weight.exact_values(), E2M1[codes] * scales)


@pytest.mark.parametrize("result", ["mlx", "mlx-mxfp4", "mlx-nvfp4", "mlx-mxfp8"])
def test_experts_in_one_tensor_stay_in_one(result: str, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "s", experts_of_mlx("m.switch_mlp.up_proj"), {"bits": 4, "group_size": 32})
    report = convert(source, tmp_path / "o", result_format=result, requantize=result != "mlx")
    found = CheckpointSource.of(tmp_path / "o" / "model.safetensors")
    assert found.checkpoint.tensors["m.switch_mlp.up_proj.weight"].shape == (3, 32, 16 if result == "mlx-mxfp8" else 8)
    assert report.kept_all is (result == "mlx")
    before, after = CheckpointSource.of(source / "model.safetensors").weight("m.switch_mlp.up_proj"), found.weight("m.switch_mlp.up_proj")
    assert before.shape == after.shape == (3, 32, 64) and (signal_to_noise(before, after) or 99) > 15
    assert (qconvert.diff(source, tmp_path / "o") == []) is (result == "mlx")


@pytest.mark.parametrize("requantize", [False, True])
def test_experts_in_one_tensor_are_refused_by_name_elsewhere(requantize: bool, tmp_path: Path) -> None:
    sources = {"mlx": experts_of_mlx("m.l"), "oss": experts_of_gpt_oss("m.experts")}
    for name, tensors in sources.items():
        folder = write_checkpoint(tmp_path / name, tensors, {"bits": 4, "group_size": 32})
        result = {"mlx": "gptq", "oss": "mxfp4"}[name]
        with pytest.raises(UnsupportedError, match="experts are in one tensor"):
            convert(folder, tmp_path / "o", result_format=result, requantize=requantize)
    words = pack(RNG.integers(0, 16, (2, 64, 32), np.uint8), 4).transpose(0, 2, 1)  # of vLLM's fused AWQ and GPTQ
    stacked = {"m.l.qweight": np.ascontiguousarray(words).view(np.int32), "m.l.scales": np.ones((2, 2, 64), np.float16)}
    stacked["m.l.qzeros"] = np.zeros((2, 2, 8), np.int32)
    with pytest.raises(UnsupportedError, match="experts in one tensor"):
        convert(write_checkpoint(tmp_path / "gptq", stacked, GPTQ_CONFIG), tmp_path / "o", result_format="awq")


@pytest.mark.parametrize("result", ["awq", "compressed-tensors", "mlx"])
def test_experts_with_a_layer_each_are_layers(result: str, tmp_path: Path) -> None:
    """The gate, which is a matrix of floats, is stated as not quantized."""
    tensors = {**gptq("m.experts.0.up_proj"), **gptq("m.experts.1.up_proj"), "m.gate.weight": np.ones((2, 64), np.float16)}
    source = write_checkpoint(tmp_path / "s", tensors, GPTQ_CONFIG)
    convert(source, tmp_path / "o", result_format=result)
    found = CheckpointSource.of(tmp_path / "o" / "model.safetensors")
    assert list(found.layers) == ["m.experts.0.up_proj", "m.experts.1.up_proj"] and list(found.plain) == ["m.gate.weight"]
    assert qconvert.diff(source, tmp_path / "o") == []


def test_tensors_of_experts_that_do_not_fit(tmp_path: Path) -> None:
    mlx_config, oss = {"bits": 4, "group_size": 32}, experts_of_gpt_oss("m.experts")
    broken = {
        "mlx": {**experts_of_mlx("m.l"), "m.l.scales": np.ones((2, 32, 2), np.float16)},
        "rank": {**experts_of_mlx("m.l"), "m.l.biases": np.ones((96, 2), np.float16)},
    }
    for name, tensors in broken.items():
        with refused(InvalidModelError, "blocks-do-not-fit"):
            convert(write_checkpoint(tmp_path / name, tensors, mlx_config), tmp_path / "o", result_format="mlx")
    nan = {**oss, "m.experts.down_proj_scales": np.full((3, 16, 2), 255, np.uint8)}
    shape = {**oss, "m.experts.down_proj_scales": np.full((3, 16, 3), 120, np.uint8)}
    bias = {**oss, "m.experts.down_proj_bias": np.ones(48, np.float16)}
    for name, tensors in {"nan": nan, "shape": shape, "bias": bias}.items():
        with refused(InvalidModelError, "scale-not-finite" if name == "nan" else "wrong-type"):
            convert(write_checkpoint(tmp_path / name, tensors, {"quant_method": "mxfp4"}), tmp_path / "o", result_format="mlx-mxfp4")


def test_factors_of_data_count_in_a_comparison_with_floats(tmp_path: Path) -> None:
    packed, scales = RNG.integers(0, 256, (8, 64), np.uint8), np.full((16, 2), 0.5, np.float32)
    tensors = {"m.l.weight": packed, "m.l.weight_scale": scales, "m.l.pre_quant_scale": np.full(64, 2, np.float32)}
    source = write_checkpoint(tmp_path / "s", tensors, {"quant_method": "modelopt"})
    values = CheckpointSource.of(source / "model.safetensors").weight("m.l").values()
    real = write_checkpoint(tmp_path / "real", {"m.l.weight": values * 2}, None)
    half = write_checkpoint(tmp_path / "half", {"m.l.weight": values}, None)
    assert qconvert.diff(source, real) == [] and len(qconvert.diff(source, half)) == 1


def test_layers_that_stay_real_are_stated(tmp_path: Path) -> None:
    real = {name: np.ones((32, 64), np.float16) for name in ("m.down.weight", "embed_out.weight", "m.embed_tokens.weight")}
    source = write_checkpoint(tmp_path / "s", {**gptq("m.up"), **real}, GPTQ_CONFIG)
    for result in ("gptq", "awq", "compressed-tensors", "awq-modelopt"):
        convert(source, tmp_path / result, result_format=result, requantize=True)
    assert stated_in(tmp_path / "gptq")["dynamic"] == {r"-:^m\.down$": {}} and stated_in(tmp_path / "gptq")["lm_head"] is False
    assert stated_in(tmp_path / "awq")["modules_to_not_convert"] == ["m.down", "embed_out"]
    assert stated_in(tmp_path / "compressed-tensors")["ignore"] == ["embed_out", "lm_head", "m.down"]
    assert stated_in(tmp_path / "awq-modelopt")["ignore"] == ["m.down", "embed_out"]


def test_the_last_layer_is_real_in_awq(tmp_path: Path) -> None:
    """transformers reads no AWQ there; other containers have it in blocks."""
    source = write_checkpoint(tmp_path / "s", {**gptq("m.up"), **gptq("lm_head")}, {**GPTQ_CONFIG, "lm_head": True})
    report = convert(source, tmp_path / "awq", result_format="awq")
    assert any("lm_head" in str(change) and "became floats" in str(change) for change in report.changes)
    found = CheckpointSource.of(tmp_path / "awq" / "model.safetensors")
    assert list(found.layers) == ["m.up"] and list(found.plain) == ["lm_head.weight"] and qconvert.diff(source, tmp_path / "awq") == []
    convert(source, tmp_path / "gptq", result_format="gptq")
    assert stated_in(tmp_path / "gptq")["lm_head"] is True


@pytest.mark.parametrize("result", ["gptq", "awq", "compressed-tensors"])
@pytest.mark.parametrize("inside", [False, True])
def test_float16_scales_in_a_bfloat16_model_are_warned_of(result: str, inside: bool, tmp_path: Path) -> None:
    model: dict[str, Any] = {"text_config": {"dtype": "bfloat16"}} if inside else {"torch_dtype": "bfloat16"}
    source = write_checkpoint(tmp_path / "s", gptq("m.l"), GPTQ_CONFIG, **model)
    report = convert(source, tmp_path / "o", result_format=result)
    assert any("warning: config.json says bfloat16" in str(change) for change in report.changes)
    other = write_checkpoint(tmp_path / "b", gptq("m.l", dtype=ml_dtypes.bfloat16), GPTQ_CONFIG, **model)
    report = convert(other, tmp_path / "p", result_format="awq")
    assert not any("bfloat16" in str(change) for change in report.changes)


def test_a_quantization_that_is_stated_for_the_language_model_inside(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "s", gptq("m.l"), None, text_config={"quantization_config": GPTQ_CONFIG, "hidden_size": 64})
    plain = write_checkpoint(tmp_path / "p", CheckpointSource.of(source / "model.safetensors").checkpoint.tensors, GPTQ_CONFIG)  # type: ignore[arg-type]
    assert qconvert.diff(source, plain) == []
    convert(source, tmp_path / "o", result_format="awq")
    model = json.loads((tmp_path / "o" / "config.json").read_text())
    assert model["text_config"] == {"hidden_size": 64} and model["quantization_config"]["quant_method"] == "awq"


def test_what_is_left_out_of_the_configuration_is_said(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "s", gptq("m.l"), {**GPTQ_CONFIG, "kv_cache_scheme": {"num_bits": 8}})
    report = convert(source, tmp_path / "o", result_format="awq")
    assert any("KV cache" in str(change) for change in report.changes)


@pytest.mark.parametrize("stated", [{}, {"bits": "4", "group_size": 32}, {"bits": 4}, {"bits": 4, "group_size": True}])
def test_mlx_does_not_tell_bits_without_config_json(stated: dict[str, Any], tmp_path: Path) -> None:
    with refused(UnsupportedError, "config-missing"):
        convert(write_checkpoint(tmp_path / "s", mlx("m.l"), stated), tmp_path / "o", result_format="mlx")


def test_a_refusal_of_the_nearest_weights_says_why(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "s", gptq("m.l", outputs=32, inputs=48, block=48), {**GPTQ_CONFIG, "group_size": -1})
    with pytest.raises(UnsupportedError, match="blocks have 48 inputs") as caught:
        convert(source, tmp_path / "o", result_format="mxfp4", requantize=True)
    assert caught.value.remedy == ""


@pytest.mark.parametrize(
    "needs", [Needs((4,), zeros=lambda bits: (1, 15)), Needs((4,), E2M1, scales=("float8_e4m3fn",), blocks=(16,), outer="divides")]
)
def test_a_few_outputs_at_a_time_give_the_same(needs: Needs, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = RNG.integers(0, 256, (40, 64), np.uint8)
    scale = RNG.uniform(0.001, 0.1, (40, 2)).astype(np.float32)
    weight = BlockWeight(pack(codes, 8), 8, 64, scale, np.full((40, 2), 128, np.int16))
    whole = find_nearest_weight(weight, needs)
    monkeypatch.setattr(weight_module, "_AT_ONCE", 64 * 7)
    assert len(list(weight.pieces())) == 6
    parts = find_nearest_weight(weight, needs)
    assert isinstance(whole, BlockWeight) and isinstance(parts, BlockWeight)
    np.testing.assert_array_equal(whole.exact_values(), parts.exact_values())
    assert signal_to_noise(weight, parts) == pytest.approx(signal_to_noise(weight, whole))
    np.testing.assert_array_equal(weight.floats(np.dtype(np.float32)), weight.values())


def test_all_outputs_of_a_weight_have_one_second_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of MXFP4 the powers of two of the last outputs are in E4M3 and those of the first are not: no mixture of both ways."""
    exponents = np.where(np.arange(40)[:, None] < 20, -30, 0) + np.zeros((40, 2))
    scale = np.exp2(exponents).astype(np.float32).astype(ml_dtypes.float8_e8m0fnu)
    weight = BlockWeight(pack(RNG.integers(0, 16, (40, 64), np.uint8), 4), 4, 64, scale, table=E2M1)
    monkeypatch.setattr(weight_module, "_AT_ONCE", 64 * 7)
    needs = Needs((4,), E2M1, scales=("float8_e4m3fn",), blocks=(16,), outer="divides")
    made = find_nearest_weight(weight, needs)
    assert isinstance(made, BlockWeight) and made.outer is not None
    assert (signal_to_noise(weight, made) or 99) > 20


def test_layers_with_the_same_numbers_are_equal_without_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A diff of 7 billion weights computes none of them where their integers and parameters are the same."""
    first = write_checkpoint(tmp_path / "s", gptq("m.l"), GPTQ_CONFIG)
    convert(first, tmp_path / "same", result_format="awq")
    tensors = gptq("m.l")
    second = write_checkpoint(tmp_path / "other", tensors, GPTQ_CONFIG)

    def refuse(one: BlockWeight, other: BlockWeight) -> Any:
        raise AssertionError("values are computed")

    monkeypatch.setattr("qconvert.checkpoints.source.comparable_values", refuse)
    assert qconvert.diff(first, tmp_path / "same") == []
    with pytest.raises(AssertionError, match="values are computed"):
        qconvert.diff(first, second)


def test_numbers_are_the_same_where_none_differs() -> None:
    source = BlockWeight(
        pack(RNG.integers(0, 16, (8, 64), np.uint8), 4),
        4,
        64,
        np.full((8, 2), 0.5, np.float16),
        np.full((8, 2), 8, np.int16),
        groups=np.arange(64, dtype=np.int32) % 2,
        factors=np.ones(64, np.float32),
        outer=np.ones((1, 1), np.float32),
    )
    assert source.has_same_numbers(replace(source))
    assert source.has_same_numbers(replace(source, words=np.asfortranarray(source.words)))
    for name in ("words", "scale", "zero", "groups", "factors", "outer"):
        changed = getattr(source, name).copy()
        changed.flat[-1] += 1
        assert not source.has_same_numbers(replace(source, **{name: changed})), name
    others: list[dict[str, Any]] = [{"zero": None}, {"offset": source.scale}, {"table": E2M1}, {"outer_divides": True}, {"bits": 8}]
    for other in others:
        assert not source.has_same_numbers(replace(source, **other)), other
