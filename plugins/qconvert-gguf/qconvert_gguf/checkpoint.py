"""A .gguf file of a Llama-like model as a checkpoint of Hugging Face's names, every integer, scale and minimum kept.

The names, and the numbers of config.json, are those that llama.cpp's convert_hf_to_gguf.py takes: what it does to a model is undone. The
tokenizer stays in the .gguf file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import chain
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

#: Architecture -> its class and model_type in transformers, whether rows of queries and keys are reordered, and whether these have norms.
_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama", True, False),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", False, False),
    "qwen3": ("Qwen3ForCausalLM", "qwen3", False, True),
}
#: Name -> Hugging Face's, and the sizes of its weight.
_OUTER = {
    "token_embd": ("model.embed_tokens", "vocabulary hidden"),
    "output_norm": ("model.norm", "hidden"),
    "output": ("lm_head", "vocabulary hidden"),
}
_INNER = {
    "attn_norm": ("input_layernorm", "hidden"),
    "attn_q": ("self_attn.q_proj", "queries hidden"),
    "attn_k": ("self_attn.k_proj", "keys hidden"),
    "attn_v": ("self_attn.v_proj", "keys hidden"),
    "attn_output": ("self_attn.o_proj", "hidden queries"),
    "ffn_norm": ("post_attention_layernorm", "hidden"),
    "ffn_gate": ("mlp.gate_proj", "inner hidden"),
    "ffn_up": ("mlp.up_proj", "inner hidden"),
    "ffn_down": ("mlp.down_proj", "hidden inner"),
}
_NORMS = {"attn_q_norm": ("self_attn.q_norm", "head"), "attn_k_norm": ("self_attn.k_norm", "head")}
#: Entry of config.json -> field of the architecture.
_COUNTS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_ROPE = "rope_freqs.weight"
#: What all models of Llama 3 with scaled frequencies state; their factors tell the largest alone.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_FILE = "model.safetensors"
_REMEDY = "With its float network it becomes a model: qconvert convert FILE.gguf model.onnx --graph float.onnx."


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
        name, content = model.rename_tensor(item), tensor_bytes(data, item)
        heads = model.count_heads(item.name)
        if item.type in PLAIN:
            tensors[name] = _decode_plain(content, item, heads)
        elif item.type in TYPES and name.endswith(".weight") and len(item.shape) == 2:
            layer = name.removesuffix(".weight")
            tensors[name] = content
            layers[layer] = _GGUF, Parts(layer, {"weight": content}, {"type": item.type, "shape": item.shape, "heads": heads})
        else:
            raise UnsupportedError(
                f"the tensor is {item.type} of shape {list(item.shape)}; a checkpoint takes {', '.join(PLAIN)}, "
                f"and matrices of {', '.join(TYPES)}",
                where=repr(item.name),
                rule="type-not-covered",
            )
    model.require_all_tensors()
    factors = model.tensors.get(_ROPE)
    if factors is not None and factors.type not in PLAIN:
        raise InvalidModelError(f"the factors are {factors.type}; floats are required", where=repr(_ROPE), rule="wrong-type")
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
        self._class, self._type, self._has_own_order, has_norms = _ARCHITECTURES[self._architecture]
        self._inner = {**_INNER, **(_NORMS if has_norms else {})}
        self._counts = {entry: self._count(field) for entry, field in _COUNTS.items()}
        hidden, heads = self._counts["hidden_size"], self._counts["num_attention_heads"]
        self._heads_of_keys = self._count("attention.head_count_kv", heads)
        head = self._count("attention.key_length", hidden // heads)
        self._require_usual(head)
        embeddings = tensors.get("token_embd.weight")
        self._sizes = {
            "vocabulary": 0 if embeddings is None else embeddings.shape[0],
            "hidden": hidden,
            "inner": self._counts["intermediate_size"],
            "head": head,
            "queries": heads * head,
            "keys": self._heads_of_keys * head,
        }

    def _require_usual(self, head: int) -> None:
        """Raise UnsupportedError for what config.json would have to say, and is not made to: else a result would be another model."""
        usual: dict[str, tuple[Any, ...]] = {
            "rope.scaling.type": ("none",),
            "rope.scaling.factor": (1, 0),  # of linear scaling, where no type is stated (llama.cpp, llama_model::load_hparams)
            "rope.scale_linear": (1, 0),
            "rope.dimension_count": (head,),
            "attention.value_length": (head,),
            "attention.sliding_window": (0,),
            "expert_count": (0,),
        }
        for field, values in usual.items():
            found = self._metadata.get(f"{self._architecture}.{field}", values[0])
            if found not in values:
                raise UnsupportedError(
                    f"{self._architecture}.{field} is {'a list' if found is None else repr(found)}; checkpoints are made of models with "
                    f"{values[0]!r}",
                    remedy=_REMEDY,
                    rule="form-not-covered",
                )
        if head % 2:
            raise InvalidModelError(f"a head has {head} values; rotary embeddings require an even number", rule="shape-differs")

    def rename_tensor(self, stored: Stored) -> str:
        """Return Hugging Face's name of a tensor.

        Raises:
            InvalidModelError: its shape contradicts the numbers of the architecture.
            UnsupportedError: a Llama-like model has no tensor of this name.
        """
        own, _, part = stored.name.rpartition(".")
        in_block = re.fullmatch(r"blk\.(0|[1-9][0-9]{0,5})\.(\w+)", own)
        layer, axes = (_OUTER.get(own) if in_block is None else self._inner.get(in_block[2])) or ("", "")
        sizes = tuple(self._sizes[axis] for axis in axes.split())
        is_known = part == "weight" or (part == "bias" and in_block is not None and len(sizes) == 2)
        if not layer or not is_known or (in_block is not None and int(in_block[1]) >= self._counts["num_hidden_layers"]):
            known = [*(f"{outer}.weight" for outer in _OUTER), *(f"blk.0.{inner}.weight" for inner in self._inner)]
            raise UnsupportedError(
                f"the model is not a {self._class} with a block_count of {self._counts['num_hidden_layers']}: it has the tensor "
                f"{quote_nearest([stored.name], known)}",
                remedy=_REMEDY,
                rule="unknown-tensor",
            )
        expected = sizes if part == "weight" else sizes[:1]
        if stored.shape != expected:
            raise InvalidModelError(
                f"the shape is {list(stored.shape)}; the numbers of the architecture require {list(expected)}",
                where=repr(stored.name),
                rule="shape-differs",
            )
        return f"{layer if in_block is None else f'model.layers.{in_block[1]}.{layer}'}.{part}"

    def require_all_tensors(self) -> None:
        """Raise InvalidModelError if a weight of the model is missing; without that of the last layer, the embeddings stand for it."""
        blocks = (f"blk.{index}.{inner}.weight" for index in range(self._counts["num_hidden_layers"]) for inner in self._inner)
        missing = next((name for name in chain(("token_embd.weight", "output_norm.weight"), blocks) if name not in self.tensors), "")
        if missing:
            raise InvalidModelError("the file lacks this tensor of the model", where=repr(missing), rule="tensor-missing")

    def count_heads(self, name: str) -> int:
        """Return of how many heads the rows of a tensor are reordered; 0 for none."""
        heads = {"attn_q": self._counts["num_attention_heads"], "attn_k": self._heads_of_keys}
        return heads.get(name.split(".")[-2], 0) if self._has_own_order else 0

    def _count(self, field: str, default: int | None = None) -> int:
        """Return a number of the architecture that is a count. Raise InvalidModelError if it is none, or is missing and has no default."""
        found = self._number(field, default)
        if not isinstance(found, int) or not found:
            raise InvalidModelError(f"{self._architecture}.{field} is {found!r}; a count is required", rule="field-missing")
        return found

    def _number(self, field: str, default: float | None = None) -> float:
        """Return a number of the architecture. Raise InvalidModelError if it is missing and has no default."""
        found = self._metadata.get(f"{self._architecture}.{field}", default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 2**40:
            what = "missing or a list" if found is None else repr(found)
            raise InvalidModelError(f"{self._architecture}.{field} is {what}; a number is required", rule="field-missing")
        return found

    def make_config(self, factors: Array | None) -> dict[str, Any]:
        """Return config.json of the model.

        Args:
            factors: of the frequencies of rotary embeddings, float32; None for none.
        """
        base, size = self._number("rope.freq_base", 10000.0), self._sizes["head"]
        ends = {f"{end}_token_id": self._metadata.get(f"tokenizer.ggml.{end}_token_id") for end in ("bos", "eos")}
        return {
            "architectures": [self._class],
            "model_type": self._type,
            **self._counts,
            "rms_norm_eps": float(str(np.float32(self._number("attention.layer_norm_rms_epsilon")))),  # as before it became float32
            "num_key_value_heads": self._heads_of_keys,
            "head_dim": size,
            "hidden_act": "silu",
            "rope_theta": float(base),
            **({} if factors is None else {"rope_scaling": _find_scaling(factors, base, size)}),
            "vocab_size": self._sizes["vocabulary"],
            **{entry: number for entry, number in ends.items() if isinstance(number, int)},
            "tie_word_embeddings": "output.weight" not in self.tensors,
            "attention_bias": "blk.0.attn_q.bias" in self.tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in self.tensors,
            "torch_dtype": self._find_dtype(),
        }

    def _find_dtype(self) -> str:
        """Return the type of the largest matrix of floats; that of the scales of most types where all matrices are in blocks."""
        matrices = [stored for stored in self.tensors.values() if stored.type in _FLOATS and len(stored.shape) == 2]
        return _FLOATS[max(matrices, key=lambda stored: math.prod(stored.shape)).type] if matrices else "float16"


def _find_scaling(factors: Array, base: float, size: int) -> dict[str, Any]:
    """Return rope_scaling of Llama 3 that gives these factors. Raise UnsupportedError for others.

    Source: LlamaModel.generate_extra_tensors of convert_hf_to_gguf.py.
    """
    largest = float(factors.max())
    low, high, length = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"], _LLAMA3["original_max_position_embeddings"]
    is_one = factors.size * 2 == size and base > 0 and largest > 0
    if is_one:
        waves = 2 * math.pi * base ** (np.arange(0, size, 2) / size)
        smooth = (length / waves - low) / (high - low)
        between = 1 / ((1 - smooth) / largest + smooth)
        wanted = np.where(waves < length / high, 1, np.where(waves > length / low, largest, between))
        is_one = np.allclose(factors, wanted, rtol=1e-5, atol=0)
    if not is_one:
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


def _read_layer(parts: Parts) -> BlockWeight:
    weight = unpack_weight(parts.tensors["weight"], parts.stated["type"], parts.stated["shape"])
    require_finite_scales(weight, parts.layer)
    heads = parts.stated["heads"]
    return weight.rows(np.argsort(order_of_heads(weight.outputs, heads))) if heads else weight


_NOTE = "the tokenizer stays in the .gguf file: tokenizer.json of the same model belongs next to the result"
_GGUF = Container("gguf", "GGUF", ("weight",), lambda parts: False, _read_layer, note=_NOTE)
