"""What a tool's way to store weights in blocks is: the tensors of a layer by their names, how the layer is known, read and written, and
which weights it has room for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.config import Config
from qconvert.checkpoints.weight import BlockWeight
from qconvert.errors import InvalidModelError, UnsupportedError

__all__ = ["Container", "Needs", "Parts", "Written", "is_embedding", "is_head"]


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of a layer.

    Attributes:
        layer: its path, such as "model.layers.0.mlp.down_proj".
        tensors: by their names below it, such as "qweight".
    """

    layer: str
    tensors: Mapping[str, Array]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def dtype(self, name: str) -> str:
        """The type of a tensor; "" if there is none of this name."""
        found = self.tensors.get(name)
        return "" if found is None else found.dtype.name

    def words(self, name: str) -> Array:
        """A tensor of packed words: int32 or uint32 with two axes, as uint32."""
        found = self.tensors.get(name)
        if found is not None and found.ndim == 3:
            raise UnsupportedError("experts in one tensor are not covered", where=repr(self.layer), rule="blocks-not-covered")
        if found is None or found.dtype not in (np.int32, np.uint32) or found.ndim != 2 or not found.size:
            raise self.tensor_error(name, "int32 with 2 axes")
        return found.view(np.uint32)

    def matrix(self, name: str, dtype: str) -> Array:
        """A tensor of two axes and one type."""
        found = self.tensors.get(name)
        if found is None or found.dtype.name != dtype or found.ndim != 2 or not found.size:
            raise self.tensor_error(name, f"{dtype} with 2 axes")
        return found

    def scales(self, name: str) -> Array:
        """Floats with two axes, all of them finite; a block of zeros may have a scale of 0, and one of -8 to 7 a negative scale."""
        found = self.tensors.get(name)
        if found is None or found.ndim != 2 or not found.size or not is_float(found):
            raise self.tensor_error(name, "a tensor of floats with 2 axes")
        if not np.isfinite(found.astype(np.float32)).all():
            raise InvalidModelError(f"{name} has a scale that is not finite", where=repr(self.layer), rule="scale-not-finite")
        return found

    def number(self, name: str) -> Array:
        """One float32 that is finite and not 0, as [1, 1]."""
        found = self.tensors.get(name)
        if found is None or found.size != 1 or not is_float(found) or not np.isfinite(found.astype(np.float32)).all() or not found.any():
            raise InvalidModelError(f"{name} is missing, 0 or not finite", where=repr(self.layer), rule="scale-not-finite")
        return found.astype(np.float32).reshape(1, 1)

    def tensor_error(self, name: str, wanted: str) -> InvalidModelError:
        """The error of a tensor that is missing or of another type."""
        found = self.tensors.get(name)
        what = "missing" if found is None else f"{found.dtype} of shape {list(found.shape)}"
        return InvalidModelError(f"{name} is {what}; {wanted} is required", where=repr(self.layer), rule="wrong-type")

    def shapes_error(self, *names: str) -> InvalidModelError:
        """The error of tensors whose shapes do not fit each other."""
        shapes = ", ".join(f"{name} {list(self.tensors[name].shape)}" for name in names if name in self.tensors)
        return InvalidModelError(f"{shapes} do not fit each other", where=repr(self.layer), rule="blocks-do-not-fit")


def is_float(numbers: Array) -> bool:
    """Whether numbers are floats, those of ml_dtypes among them."""
    return numbers.dtype.kind == "f" or numbers.dtype.name in ("bfloat16", "float8_e4m3fn")


@dataclass(frozen=True, slots=True)
class Needs:
    """Which weights a container has room for.

    Attributes:
        bits: of a code.
        table: the values of codes; None for integers.
        zeros: bits -> the smallest and the largest zero point; None where there are none.
        has_offsets: whether blocks have an offset instead.
        scales: types of scales, in the order of preference.
        blocks: sizes of blocks; () for any that divides the inputs.
        outer: "no", "times" or "divides": whether scales have a second level, and how it is applied.
        has_groups: whether inputs may be in another order.
        has_factors: whether data may be multiplied first.
        outputs_in_words: whether eight outputs share a word, of which a layer then has a whole number.
        inputs_in_words: the same of inputs.
        one_block: whether one size of blocks and one number of bits hold for all layers.
    """

    bits: tuple[int, ...]
    table: Array | None = None
    zeros: Callable[[int], tuple[int, int]] | None = None
    has_offsets: bool = False
    scales: tuple[str, ...] = ("float16",)
    blocks: tuple[int, ...] = ()
    outer: str = "no"
    has_groups: bool = False
    has_factors: bool = False
    outputs_in_words: bool = False
    inputs_in_words: bool = False
    one_block: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """What the configuration of a checkpoint has to say of its weights.

    Attributes:
        layers: layer -> (bits, inputs of a block, whether it is symmetric); -1 for blocks where each row of every layer is one.
        real: layers with a float matrix of weights, which are not in blocks.
        has_groups: whether the inputs of a layer are in another order.
    """

    layers: Mapping[str, tuple[int, int, bool]]
    real: Sequence[str]
    has_groups: bool = False

    @property
    def usual(self) -> tuple[int, int]:
        """Bits and size of blocks of most layers."""
        kinds = [(bits, block) for bits, block, _ in self.layers.values()]
        return max(dict.fromkeys(kinds), key=kinds.count)

    @property
    def is_symmetric(self) -> bool:
        """Whether all layers are."""
        return all(symmetric for _, _, symmetric in self.layers.values())

    def unusual(self) -> dict[str, tuple[int, int]]:
        """Layers with other bits or blocks than most have."""
        return {name: (bits, block) for name, (bits, block, _) in self.layers.items() if (bits, block) != self.usual}


@dataclass(frozen=True, slots=True)
class Container:
    """How one tool stores a layer.

    Attributes:
        name: as on the command line, such as "gptq-v2".
        title: as its users call it.
        parts: names of the tensors of a layer, that which tells it first.
        recognizes: whether the tensors of a layer are stored this way.
        read: the tensors and the configuration -> the weight. Raises QConvertError.
        needs: which weights can be written; None where none are.
        write: weight -> tensors by their names below the layer.
        config: what the configuration says then, as entries of config.json.
        files: further JSON files that its users' programs read, by name: what they say.
        has_embeddings: whether tables of embeddings may be in blocks too.
        has_head: whether the last layer, lm_head, may.
    """

    name: str
    title: str
    parts: tuple[str, ...]
    recognizes: Callable[[Parts], bool]
    read: Callable[[Parts, Config], BlockWeight]
    needs: Needs | None = None
    write: Callable[[BlockWeight], dict[str, Array]] | None = None
    config: Callable[[Written], dict[str, Any]] = field(default=lambda written: {})
    files: Callable[[Written], dict[str, Any]] = field(default=lambda written: {})
    has_embeddings: bool = False
    has_head: bool = True


def is_embedding(layer: str) -> bool:
    """Whether a layer is a table of embeddings, by its name; embed_out of GPT-NeoX is a linear layer."""
    own = layer.rpartition(".")[2]
    return own in ("wte", "wpe", "embed_in") or own.endswith(("embed_tokens", "embedding", "embeddings", "embed_positions"))


def is_head(layer: str) -> bool:
    """Whether a layer is the last one, which gives the logits, by its name."""
    return layer.rpartition(".")[2] in ("lm_head", "embed_out")
