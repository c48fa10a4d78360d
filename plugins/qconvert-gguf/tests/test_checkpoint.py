"""A .gguf file of a Llama as a checkpoint of another tool: the values that the gguf package reads, rows in the order of Hugging Face."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

import qconvert
from qconvert.plugin import InvalidModelError, QConvertError, UnsupportedError

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests"))
from checkpoint_formulas import tensors_of, weights_of  # noqa: E402

HEADS, HEADS_OF_KEYS, SIZE, INNER = 4, 2, 256, 512
SHAPES = {
    "attn_q": (SIZE, SIZE),
    "attn_k": (SIZE // 2, SIZE),
    "attn_v": (SIZE // 2, SIZE),
    "attn_output": (SIZE, SIZE),
    "ffn_gate": (INNER, SIZE),
    "ffn_up": (INNER, SIZE),
    "ffn_down": (SIZE, INNER),
}
LAYERS = {
    "blk.0.attn_q.weight": "model.layers.0.self_attn.q_proj",
    "blk.0.attn_k.weight": "model.layers.0.self_attn.k_proj",
    "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj",
}
#: ggml's type -> a container that holds it exactly.
EXACT = {
    "Q4_0": ("gptq-v2", "awq", "compressed-tensors", "mlx"),
    "Q4_1": ("mlx",),
    "Q5_0": ("compressed-tensors", "gptq"),
    "Q5_1": ("mlx",),
    "Q8_0": ("gptq-v2", "compressed-tensors-int8"),
    "Q4_K": ("mlx",),
    "Q6_K": ("compressed-tensors-int8",),
    "IQ4_NL": ("gptq", "compressed-tensors-int8"),
    "MXFP4": ("mxfp4", "mlx-mxfp4", "nvfp4"),
}
FLOAT16 = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}


def random_blocks(type: str, shape: tuple[int, int], rng: np.random.Generator) -> Any:
    """Bytes of a type, with scales near one another."""
    kind = GGMLQuantizationType[type]
    count, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (shape[0], shape[1] // count, size), np.uint8)
    half = rng.uniform(0.5, 1, (*data.shape[:2], 2)).astype("<f2").view(np.uint8)
    if type == "MXFP4":
        data[..., 0] = rng.integers(118, 124, data.shape[:2])
    elif type == "Q6_K":
        data[..., -2:] = half[..., :2]
    else:
        size = 4 if type in ("Q4_1", "Q5_1", "Q4_K") else 2
        data[..., :size] = half[..., :size]
    return data.reshape(shape[0], -1)


def llama(
    path: Path,
    type: str,
    without: str = "",
    more: dict[str, Any] | None = None,
    architecture: str = "llama",
    fields: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a Llama of one block; return what the gguf package reads.

    Args:
        path: of the file.
        type: of the weights in blocks.
        without: a field or tensor that is left out.
        more: tensors.
        architecture: ggml's name of it.
        fields: texts, floats or integers of the architecture.
    """
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, architecture)
    numbers = {"block_count": 1, "embedding_length": SIZE, "feed_forward_length": INNER, "context_length": 64}
    heads = {"attention.head_count": HEADS, "attention.head_count_kv": HEADS_OF_KEYS}
    for field, number in {**numbers, **heads}.items():
        if field not in (without, *(fields or {})):
            writer.add_uint32(f"{architecture}.{field}", number)
    for field, value in (fields or {}).items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint64}[value.__class__]
        add(f"{architecture}.{field}", value)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(500000.0)
    found = {}
    for part, shape in SHAPES.items():
        name, data = f"blk.0.{part}.weight", random_blocks(type, shape, rng)
        if name == without:
            continue
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[type])
        found[name] = gguf.dequantize(data, GGMLQuantizationType[type])
    plain = {
        "token_embd.weight": rng.normal(size=(32, SIZE)).astype(np.float16),
        **{name: np.ones(SIZE, np.float32) for name in ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight")},
        "blk.0.attn_q.bias": np.arange(SIZE, dtype=np.float32),
        **(more or {}),
    }
    for name, tensor in plain.items():
        if tensor.dtype == ml_dtypes.bfloat16:
            writer.add_tensor(name, tensor.view(np.uint8), raw_dtype=GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {**found, **plain}


def restored(rows: Any, heads: int) -> Any:
    """Rows of queries or keys in Hugging Face's order: of each head one half after the other."""
    return rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("type", EXACT)
def test_values(type: str, tmp_path: Path) -> None:
    wanted = llama(tmp_path / "m.gguf", type)
    for container in EXACT[type]:
        report = qconvert.convert(tmp_path / "m.gguf", tmp_path / container, result_format=container)
        assert report.kept_all and report.kept["layers in blocks"] == len(SHAPES)
        found = weights_of(tmp_path / container)
        for name, layer in LAYERS.items():
            heads = {"attn_q": HEADS, "attn_k": HEADS_OF_KEYS}.get(name.split(".")[2])
            values = wanted[name] if heads is None else restored(wanted[name], heads)
            dtype = np.float32 if type in FLOAT16 and container != "mlx" else np.float64
            if container == "mlx":  # its sum is rounded to the type of its scales
                dtype = np.float16 if type in FLOAT16 else np.float32
            np.testing.assert_array_equal(np.asarray(found[layer]).astype(dtype), values.astype(dtype))
        assert qconvert.diff(tmp_path / "m.gguf", tmp_path / container) == []


def test_other_tensors_and_config(tmp_path: Path) -> None:
    keys = np.arange(SIZE // 2, dtype=np.float32)
    head = np.random.default_rng(1).normal(size=(32, SIZE)).astype(ml_dtypes.bfloat16)
    wanted = llama(tmp_path / "m.gguf", "Q4_0", more={"blk.0.attn_k.bias": keys, "output.weight": head})
    qconvert.convert(tmp_path / "m.gguf", tmp_path / "out", result_format="gptq-v2")
    found = tensors_of(tmp_path / "out")
    np.testing.assert_array_equal(found["model.embed_tokens.weight"], wanted["token_embd.weight"])
    np.testing.assert_array_equal(found["lm_head.weight"], head)
    np.testing.assert_array_equal(found["model.layers.0.self_attn.q_proj.bias"], restored(wanted["blk.0.attn_q.bias"], HEADS))
    np.testing.assert_array_equal(found["model.layers.0.self_attn.k_proj.bias"], restored(keys, HEADS_OF_KEYS))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    stated = {"model_type": "llama", "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 500000.0}
    assert config.items() >= {**stated, "vocab_size": 32, "tie_word_embeddings": False, "attention_bias": True}.items()
    assert config["quantization_config"]["group_size"] == 32 and config["quantization_config"]["sym"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_type_of_the_model_is_that_of_its_embeddings(dtype: str, tmp_path: Path) -> None:
    llama(tmp_path / "m.gguf", "Q4_0", more={"token_embd.weight": np.ones((32, SIZE), dtype)})
    qconvert.convert(tmp_path / "m.gguf", tmp_path / "out", result_format="gptq-v2")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == dtype


def test_rows_of_qwen2_stay(tmp_path: Path) -> None:
    wanted = llama(tmp_path / "m.gguf", "Q8_0", architecture="qwen2")
    qconvert.convert(tmp_path / "m.gguf", tmp_path / "out", result_format="gptq")
    np.testing.assert_array_equal(weights_of(tmp_path / "out")["model.layers.0.self_attn.q_proj"], wanted["blk.0.attn_q.weight"])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is True


def test_frequencies_of_llama_3(tmp_path: Path) -> None:
    """The factors that convert_hf_to_gguf.py computes of a rope_scaling of 8."""
    wavelengths = 2 * np.pi * 500000.0 ** (np.arange(0, 64, 2) / 64)
    smooth = (8192 / wavelengths - 1) / 3
    factors = np.where(wavelengths < 2048, 1, np.where(wavelengths > 8192, 8, 1 / ((1 - smooth) / 8 + smooth))).astype(np.float32)
    llama(tmp_path / "m.gguf", "Q4_0", more={"rope_freqs.weight": factors})
    qconvert.convert(tmp_path / "m.gguf", tmp_path / "out", result_format="gptq-v2")
    scaling = json.loads((tmp_path / "out" / "config.json").read_text())["rope_scaling"]
    assert scaling["rope_type"] == "llama3" and scaling["factor"] == 8
    llama(tmp_path / "n.gguf", "Q4_0", more={"rope_freqs.weight": factors + np.float32(0.1)})
    with pytest.raises(UnsupportedError) as caught:
        qconvert.convert(tmp_path / "n.gguf", tmp_path / "n", result_format="gptq-v2")
    assert caught.value.rule == "form-not-covered"


@pytest.mark.parametrize(
    ("rule", "kind", "how"),
    [
        ("field-missing", InvalidModelError, {"without": "embedding_length"}),
        ("field-missing", InvalidModelError, {"fields": {"attention.head_count": 4.5}}),
        ("shape-differs", InvalidModelError, {"more": {"blk.0.attn_q.bias": np.zeros(6, np.float32)}}),
        ("shape-differs", InvalidModelError, {"fields": {"attention.head_count_kv": 4}}),
        ("shape-differs", InvalidModelError, {"fields": {"attention.key_length": 2**39}}),
        ("tensor-missing", InvalidModelError, {"fields": {"block_count": 2**39}}),
        ("tensor-missing", InvalidModelError, {"without": "blk.0.ffn_up.weight"}),
        ("wrong-type", InvalidModelError, {"more": {"rope_freqs.weight": np.ones(32, np.int32)}}),
        ("form-not-covered", UnsupportedError, {"more": {"rope_freqs.weight": np.zeros(32, np.float32)}}),
        ("form-not-covered", UnsupportedError, {"fields": {"rope.scaling.type": "yarn"}}),
        ("form-not-covered", UnsupportedError, {"fields": {"rope.scale_linear": 4.0}}),
        ("form-not-covered", UnsupportedError, {"fields": {"rope.dimension_count": 32}}),
        ("form-not-covered", UnsupportedError, {"fields": {"attention.sliding_window": 4096}}),
        ("unknown-tensor", UnsupportedError, {"more": {"blk.0.ffn_gate_inp.weight": np.zeros((4, SIZE), np.float32)}}),
        ("unknown-tensor", UnsupportedError, {"more": {"blk.1.attn_q.bias": np.zeros(SIZE, np.float32)}}),
        ("unknown-tensor", UnsupportedError, {"more": {"blk.00.attn_q.bias": np.zeros(SIZE, np.float32)}}),
        ("unknown-tensor", UnsupportedError, {"more": {"blk.0.attn_q_norm.weight": np.ones(64, np.float32)}}),
        ("unknown-tensor", UnsupportedError, {"more": {"output_norm.bias": np.zeros(SIZE, np.float32)}}),
        ("unknown-architecture", UnsupportedError, {"architecture": "gemma"}),
        ("not-lossless", UnsupportedError, {"type": "Q4_1"}),
    ],
)
def test_what_is_refused(rule: str, kind: type[QConvertError], how: dict[str, Any], tmp_path: Path) -> None:
    llama(tmp_path / "m.gguf", **{"type": "Q4_0", **how})
    with pytest.raises(kind) as caught:
        qconvert.convert(tmp_path / "m.gguf", tmp_path / "out", result_format="gptq-v2")
    assert caught.value.rule == rule and not (tmp_path / "out").exists()


def test_there_and_back(tmp_path: Path) -> None:
    """A checkpoint that was made of a .gguf file, with that file as the template, becomes the same blocks."""
    llama(tmp_path / "m.gguf", "Q4_0")
    qconvert.convert(tmp_path / "m.gguf", tmp_path / "out", result_format="compressed-tensors")
    qconvert.convert(tmp_path / "out", tmp_path / "n.gguf", template=str(tmp_path / "m.gguf"))  # type: ignore[call-arg]
    first, second = (gguf.GGUFReader(tmp_path / name) for name in ("m.gguf", "n.gguf"))
    own = {item.name: item for item in second.tensors}
    assert set(own) == {item.name for item in first.tensors}
    for item in first.tensors:
        assert own[item.name].tensor_type == item.tensor_type
        np.testing.assert_array_equal(own[item.name].data, item.data)
