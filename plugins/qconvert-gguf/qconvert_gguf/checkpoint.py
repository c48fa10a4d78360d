"""A .gguf file of a Llama-like model as a checkpoint of Hugging Face's names, every integer, scale and minimum kept.

The names, and the numbers of config.json, are those that llama.cpp's convert_hf_to_gguf.py takes: what it does to a model is undone. The
tokenizer stays in the .gguf file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import (
    Array,
    BlockWeight,
    Checkpoint,
    CheckpointSource,
    Config,
    Container,
    InvalidModelError,
    Parts,
    UnsupportedError,
    map_file,
    numpy_dtype,
    quote_nearest,
)
from qconvert_gguf.blocks import TYPES, require_finite_scales, unpack_weight
from qconvert_gguf.container import PLAIN, Stored, decode_numbers, read_header, tensor_bytes
from qconvert_gguf.places import order_of_heads

__all__ = ["open_checkpoint"]

#: Architecture -> its class and model_type in transformers, and whether the rows of queries and keys are reordered.
_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama", True),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", False),
    "qwen3": ("Qwen3ForCausalLM", "qwen3", False),
}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
#: Entry of config.json -> field of the architecture.
_NUMBERS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_ROPE = "rope_freqs.weight"
#: What all models of Llama 3 with scaled frequencies state; their factors tell the largest alone.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_FILE = "model.safetensors"
_REMEDY = "Name the float network that the weights belong to: --graph float.onnx."


def open_checkpoint(path: Path) -> CheckpointSource:
    """Open the weights of a .gguf file as a checkpoint.

    Raises:
        InvalidModelError: the file is damaged, or lacks numbers of the architecture.
        UnsupportedError: it is of another architecture, or has tensors of types or names that are not covered.
    """
    data = map_file(path)
    metadata, stored = read_header(data)
    model = _Model(metadata, {item.name: item for item in stored})
    tensors: dict[str, Array] = {}
    layers: dict[str, tuple[Container, Parts]] = {}
    for item in stored:
        if item.name == _ROPE:
            continue
        name, content = model.rename_tensor(item.name), tensor_bytes(data, item)
        heads = model.count_heads(item)
        if item.type in PLAIN:
            tensors[name] = _decode_plain(content, item, heads)
        elif item.type in TYPES and name.endswith(".weight") and len(item.shape) == 2:
            layer = name.removesuffix(".weight")
            tensors[name] = content
            layers[layer] = _GGUF, Parts(layer, {"weight": content}, {"type": item.type, "shape": item.shape, "heads": heads})
        else:
            raise UnsupportedError(
                f"the tensor is {item.type} of shape {list(item.shape)}; a checkpoint takes matrices of {', '.join(TYPES)}",
                where=repr(item.name),
                rule="type-not-covered",
            )
    factors = model.tensors.get(_ROPE)
    config = model.make_config(None if factors is None else decode_numbers(tensor_bytes(data, factors), factors.type))
    plain = {name: tensor for name, tensor in tensors.items() if name.removesuffix(".weight") not in layers}
    return CheckpointSource(Checkpoint(tensors, dict.fromkeys(tensors, _FILE), {}), Config({}, config), layers, plain)


class _Model:
    """What a .gguf file says of its model.

    Args:
        metadata: its fields, without arrays.
        tensors: by name.
    """

    def __init__(self, metadata: Mapping[str, Any], tensors: Mapping[str, Stored]) -> None:
        self._metadata, self.tensors = metadata, tensors
        self._architecture = str(metadata.get("general.architecture", ""))
        if self._architecture not in _ARCHITECTURES or metadata.get("split.count"):
            what = "one of several files" if metadata.get("split.count") else f"of the architecture {self._architecture!r}"
            raise UnsupportedError(
                f"the file is {what}; whole files of {', '.join(_ARCHITECTURES)} become checkpoints",
                remedy=_REMEDY,
                rule="unknown-architecture",
            )
        self._class, self._type, self._has_own_order = _ARCHITECTURES[self._architecture]

    def rename_tensor(self, name: str) -> str:
        """Return Hugging Face's name of a tensor. Raise UnsupportedError for a name that a Llama-like model does not have."""
        own, _, part = name.rpartition(".")
        in_block = re.fullmatch(r"blk\.(\d{1,6})\.(\w+)", own)
        layer = _OUTER.get(own) if in_block is None else _INNER.get(in_block[2])
        if layer is None or part not in ("weight", "bias"):
            known = [*(f"{outer}.weight" for outer in _OUTER), *(f"blk.0.{inner}.weight" for inner in _INNER)]
            raise UnsupportedError(
                f"the model is not like Llama: it has the tensor {quote_nearest([name], known)}", remedy=_REMEDY, rule="unknown-tensor"
            )
        return f"{layer if in_block is None else f'model.layers.{in_block[1]}.{layer}'}.{part}"

    def count_heads(self, stored: Stored) -> int:
        """Return of how many heads the rows of a tensor are reordered; 0 for none."""
        part = stored.name.split(".")[-2]
        if not self._has_own_order or part not in ("attn_q", "attn_k"):
            return 0
        heads = int(self._number("attention.head_count"))
        if part == "attn_k":
            heads = int(self._number("attention.head_count_kv", heads))
        rows = stored.shape[0]
        if not heads or rows % (2 * heads):
            raise InvalidModelError(f"the tensor has {rows} rows, and {heads} heads", where=repr(stored.name), rule="shape-differs")
        return heads

    def _number(self, field: str, default: float | None = None) -> float:
        """Return a number of the architecture. Raise InvalidModelError if it is missing and has no default."""
        found = self._metadata.get(f"{self._architecture}.{field}", default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 2**40:
            raise InvalidModelError(f"{self._architecture}.{field} is {found!r}; a number is required", rule="field-missing")
        return found

    def make_config(self, factors: Array | None) -> dict[str, Any]:
        """Return config.json of the model.

        Args:
            factors: of the frequencies of rotary embeddings, float32; None for none.
        """
        scaling = self._metadata.get(f"{self._architecture}.rope.scaling.type", "none")
        if scaling != "none":
            raise UnsupportedError(
                f"rotary embeddings are scaled by {scaling!r}, which is not covered", remedy=_REMEDY, rule="form-not-covered"
            )
        numbers = {entry: self._number(field) for entry, field in _NUMBERS.items()}
        heads = int(numbers["num_attention_heads"])
        base = self._number("rope.freq_base", 10000.0)
        size = int(self._number("attention.key_length", numbers["hidden_size"] // max(heads, 1)))
        embeddings = self.tensors.get("token_embd.weight")
        return {
            "architectures": [self._class],
            "model_type": self._type,
            **numbers,
            "rms_norm_eps": float(str(np.float32(numbers["rms_norm_eps"]))),  # as it was before it became float32
            "num_key_value_heads": int(self._number("attention.head_count_kv", heads)),
            "head_dim": size,
            "hidden_act": "silu",
            "rope_theta": float(base),
            **({} if factors is None else {"rope_scaling": _find_scaling(factors, base, size)}),
            "vocab_size": embeddings.shape[0] if embeddings is not None else 0,
            "tie_word_embeddings": "output.weight" not in self.tensors,
            "attention_bias": "blk.0.attn_q.bias" in self.tensors,
            "torch_dtype": "float16",
        }


def _find_scaling(factors: Array, base: float, size: int) -> dict[str, Any]:
    """Return rope_scaling of Llama 3 that gives these factors. Raise UnsupportedError for others.

    Source: LlamaModel.generate_extra_tensors of convert_hf_to_gguf.py.
    """
    largest = float(factors.max())
    waves = 2 * math.pi * base ** (np.arange(0, size, 2) / size)
    low, high, length = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"], _LLAMA3["original_max_position_embeddings"]
    smooth = (length / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / largest + smooth)
    wanted = np.where(waves < length / high, 1, np.where(waves > length / low, largest, between))
    if factors.shape != wanted.shape or not np.allclose(factors, wanted, rtol=1e-5, atol=0):
        raise UnsupportedError(
            "rotary embeddings are scaled by factors other than those of Llama 3, which are not covered",
            where=repr(_ROPE),
            remedy=_REMEDY,
            rule="form-not-covered",
        )
    return {"rope_type": "llama3", "factor": largest, **_LLAMA3}


def _decode_plain(content: Array, stored: Stored, heads: int) -> Array:
    numbers = content.view(numpy_dtype("bfloat16")) if stored.type == "BF16" else decode_numbers(content, stored.type)
    numbers = numbers.reshape(stored.shape)
    return numbers[np.argsort(order_of_heads(len(numbers), heads))] if heads else numbers


def _read_layer(parts: Parts, config: Config) -> BlockWeight:
    weight = unpack_weight(parts.tensors["weight"], parts.stated["type"], parts.stated["shape"])
    require_finite_scales(weight, parts.layer)
    heads = parts.stated["heads"]
    return weight.rows(np.argsort(order_of_heads(weight.outputs, heads))) if heads else weight


_NOTE = "the tokenizer stays in the .gguf file: tokenizer.json of the same model belongs next to the result"
_GGUF = Container("gguf", "GGUF", ("weight",), lambda parts: False, _read_layer, note=_NOTE)
