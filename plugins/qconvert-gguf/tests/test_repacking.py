"""Checkpoints of other tools as .gguf files: read by the gguf package, the values are those of the checkpoint's own formula."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

import qconvert
from qconvert.plugin import InvalidModelError, OptionError, QConvertError, UnsupportedError

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "fixtures" / "blocks"
sys.path.insert(0, str(ROOT / "tests"))
from checkpoint_formulas import weights_of  # noqa: E402

HEADS = 4
NAMES = {"model.layers.0.mlp.down_proj": "blk.0.ffn_down.weight", "model.layers.0.self_attn.q_proj": "blk.0.attn_q.weight"}
#: Checkpoint -> the type of its weights in a .gguf file; "" where GGUF holds not every value.
TYPES = {
    "ar_auto_gptq_W4A16_asym": "Q5_0",
    "gm_v2_asym": "Q5_0",
    "ar_auto_awq_W4A16_asym": "Q5_0",
    "ct_W4A16_ASYM": "Q5_0",
    "gm_desc4": "",
    "ct_W4A16": "Q4_0",
    "ct_MXFP4A16": "MXFP4",
    "ct_NVFP4A16": "",
    "mo_INT4_AWQ": "",
    "mlx4": "Q4_1",
    "bnb_nf4_plain": "",
    "bnb_int8": "",
    "ao_int8": "Q8_0",
    "ao_intx4": "Q5_0",
    "ao_int4": "",
    "ao_float8": "",
    "quark_int4": "",
    "quark_uint4": "",
}


def permuted(weight: Any) -> Any:
    """The rows of queries as llama.cpp has them: of each head, those of both halves alternate."""
    return weight.reshape(HEADS, 2, len(weight) // HEADS // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def template(path: Path, weights: dict[str, Any], **fields: Any) -> Path:
    """A file of the same model: float weights near those of the checkpoint, a tokenizer, and a tensor of its own."""
    writer = GGUFWriter(path, fields.get("architecture", "llama"))
    writer.add_block_count(1)
    writer.add_head_count(HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab"])
    writer.add_array("test.numbers", [1, 2, 3])
    writer.add_file_type(1)
    rng = np.random.default_rng(0)
    for name, weight in weights.items():
        near = weight + rng.normal(size=weight.shape) * weight.std() / 10
        writer.add_tensor(NAMES[name], (permuted(near) if "q_proj" in name else near).astype(np.float16))
    writer.add_tensor("rope_freqs.weight", np.arange(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", TYPES)
def test_checkpoints(name: str, tmp_path: Path) -> None:
    wanted = weights_of(FIXTURES / name)
    base = template(tmp_path / "base.gguf", wanted)
    options: dict[str, Any] = {"template": str(base)}
    if not TYPES[name]:
        with pytest.raises(UnsupportedError) as caught:
            qconvert.convert(FIXTURES / name, tmp_path / "out.gguf", **options)
        assert caught.value.rule == "not-lossless" and {item.name for item in tmp_path.iterdir()} == {"base.gguf"}
        options["requantize"] = True
    report = qconvert.convert(FIXTURES / name, tmp_path / "out.gguf", **options)
    assert report.kept_all is bool(TYPES[name]) and report.kept["integers in them"] == sum(item.size for item in wanted.values())
    reader = GGUFReader(tmp_path / "out.gguf")
    found = {item.name: item for item in reader.tensors}
    assert set(found) == {*(NAMES[layer] for layer in wanted), "rope_freqs.weight"}
    for layer, weight in wanted.items():
        item = found[NAMES[layer]]
        values = gguf.dequantize(item.data, item.tensor_type)
        weight = permuted(weight) if "q_proj" in layer else weight
        if TYPES[name]:
            assert item.tensor_type.name == TYPES[name]
            np.testing.assert_array_equal(values, weight.astype(np.float32))
        else:
            assert np.square(values - weight).sum() < 0.05 * np.square(weight).sum()
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b", "ab"]
    assert reader.fields["test.numbers"].contents() == [1, 2, 3] and reader.fields["llama.block_count"].contents() == 1
    assert reader.fields["general.quantization_version"].contents() == 2
    np.testing.assert_array_equal(found["rope_freqs.weight"].data, np.arange(4, dtype=np.float32))


def test_what_a_template_cannot_be(tmp_path: Path) -> None:
    source = FIXTURES / "ct_W4A16"
    weights = weights_of(source)

    def refused(kind: type[QConvertError], rule: str, **options: Any) -> None:
        with pytest.raises(kind) as caught:
            qconvert.convert(source, tmp_path / "out.gguf", **options)
        assert caught.value.rule == rule and not (tmp_path / "out.gguf").exists()

    refused(OptionError, "template-missing")
    rows = {name: weight[::-1] for name, weight in weights.items()}
    refused(InvalidModelError, "values-differ", template=str(template(tmp_path / "rows.gguf", rows)))
    few = {name: weight for name, weight in weights.items() if "q_proj" in name}
    refused(InvalidModelError, "unknown-tensor", template=str(template(tmp_path / "few.gguf", few)))
    short = {name: weight[:128] for name, weight in weights.items()}
    refused(InvalidModelError, "shape-differs", template=str(template(tmp_path / "short.gguf", short)))
    refused(InvalidModelError, "unknown-architecture", template=str(template(tmp_path / "x.gguf", weights, architecture="unheard")))
    whole = template(tmp_path / "whole.gguf", weights).read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    refused(InvalidModelError, "malformed-offset", template=str(tmp_path / "cut.gguf"))


def test_norms_that_are_one_more(tmp_path: Path) -> None:
    """Gemma's: the checkpoint has 0 for 1."""
    folder = tmp_path / "source"
    folder.mkdir()
    content = (FIXTURES / "ct_W4A16" / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])
    head.pop("__metadata__", None)
    data = content[8 + length :]
    norm = np.linspace(-0.2, 0.3, 16, dtype=np.float16)
    head["model.norm.weight"] = {"dtype": "F16", "shape": [16], "data_offsets": [len(data), len(data) + norm.nbytes]}
    text = json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data + norm.tobytes())
    (folder / "config.json").write_bytes((FIXTURES / "ct_W4A16" / "config.json").read_bytes())
    base = template(tmp_path / "base.gguf", weights_of(FIXTURES / "ct_W4A16"))
    reader = GGUFReader(base)
    again = GGUFWriter(tmp_path / "with.gguf", "llama")
    again.add_block_count(1)
    again.add_head_count(HEADS)
    for item in reader.tensors:
        again.add_tensor(item.name, item.data)
    again.add_tensor("output_norm.weight", norm.astype(np.float32) + 1)
    again.write_header_to_file()
    again.write_kv_data_to_file()
    again.write_tensors_to_file()
    again.close()
    qconvert.convert(folder, tmp_path / "out.gguf", template=str(tmp_path / "with.gguf"))  # type: ignore[call-arg]
    found = {item.name: item for item in GGUFReader(tmp_path / "out.gguf").tensors}
    np.testing.assert_array_equal(found["output_norm.weight"].data, norm.astype(np.float32) + 1)
