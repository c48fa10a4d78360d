"""What a tool's way to store weights in blocks is: the tensors of a layer by their names, how the layer is known, read and written, and
which weights it has room for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.activations import Activations
from qconvert.checkpoints.config import FILES_OF_CONFIG, Config
from qconvert.checkpoints.weight import BlockWeight, dtype_of
from qconvert.errors import InvalidModelError, UnsupportedError


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of a layer.

    Attributes:
        layer: its path, such as "model.layers.0.mlp.down_proj".
        tensors: by their names below it, such as "qweight".
        stated: what the header of the file says of the weight; empty where it says nothing.
        in_columns: whether the words of the weight are to lie in memory column by column, where they are made and not viewed.
    """

    layer: str
    tensors: Mapping[str, Array]
    stated: Mapping[str, Any] = field(default_factory=dict)
    in_columns: bool = False

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def dtype(self, name: str) -> str:
        """The type of a tensor; "" if there is none of this name."""
        found = self.tensors.get(name)
        return "" if found is None else found.dtype.name

    def join_experts(self) -> tuple[Parts, int]:
        """The tensors with the rows of one expert after those of another, and how many experts there are; 0 where `weight` is a matrix."""
        shape = self.tensors["weight"].shape
        if len(shape) != 3 or not shape[0]:
            return self, 0
        if any(tensor.ndim != 3 or tensor.shape[:2] != shape[:2] for tensor in self.tensors.values()):
            raise self.shapes_error(*self.tensors)
        return Parts(self.layer, {name: tensor.reshape(-1, tensor.shape[2]) for name, tensor in self.tensors.items()}), shape[0]

    def words(self, name: str) -> Array:
        """A tensor of packed words: int32 or uint32 with two axes, as uint32."""
        found = self.tensors.get(name)
        if found is not None and found.ndim == 3:
            raise self.unsupported(f"{name} has 3 axes: experts in one tensor are not covered here", rule="blocks-not-covered")
        if found is None or found.dtype not in (np.int32, np.uint32) or found.ndim != 2 or not found.size:
            raise self.tensor_error(name, "int32 with 2 axes")
        return found.view(np.uint32)

    def matrix(self, name: str, dtype: str) -> Array:
        """A tensor of two axes and one type."""
        found = self.tensors.get(name)
        if found is None or found.dtype.name != dtype or found.ndim != 2 or not found.size:
            raise self.tensor_error(name, f"{dtype} with 2 axes")
        return found

    def scales(self, name: str, axes: Collection[int] = (2,)) -> Array:
        """Floats, all of them finite; a block of zeros may have a scale of 0, and one of -8 to 7 a negative scale."""
        found = self.tensors.get(name)
        if found is None or found.ndim not in axes or not found.size or not is_float(found):
            raise self.tensor_error(name, f"a tensor of floats with {' or '.join(map(str, axes))} axes")
        self.require_finite(name, found)
        return found

    def small_scales(self, name: str, dtype: str) -> Array:
        """Scales of 8 bits, all of them finite, as numbers of their type, E4M3 or E8M0; files have bytes where they have no name for it."""
        found = self.matrix(name, self.dtype(name) if self.dtype(name) == dtype else "uint8").view(dtype_of(dtype))
        self.require_finite(name, found)
        return found

    def require_finite(self, name: str, scales: Array) -> None:
        """Raise InvalidModelError where a scale is no finite number."""
        if not np.isfinite(scales).all():
            raise self.invalid(f"{name} has a scale that is not finite", rule="scale-not-finite")

    def number(self, name: str) -> Array:
        """One float32 that is finite and not 0, as [1, 1]."""
        found = self.tensors.get(name)
        if found is None or found.size != 1 or not is_float(found) or not np.isfinite(found).all() or not found.any():
            raise self.invalid(f"{name} is missing, 0 or not finite", rule="scale-not-finite")
        return found.astype(np.float32).reshape(1, 1)

    def factors(self, inputs: int) -> Array | None:
        """What ModelOpt multiplies data by first, float32 [K]; None for nothing."""
        if "pre_quant_scale" not in self:
            return None
        found = self.scales("pre_quant_scale", (1,))
        if len(found) != inputs:
            raise self.invalid(
                f"pre_quant_scale has shape {list(found.shape)}; one for each of {inputs} inputs is required", rule="counts-differ",
            )  # fmt: skip
        return found.astype(np.float32)

    def invalid(self, reason: str, *, rule: str) -> InvalidModelError:
        """The error of what no tool writes."""
        return InvalidModelError(reason, where=repr(self.layer), rule=rule)

    def unsupported(self, reason: str, *, rule: str, remedy: str = "") -> UnsupportedError:
        """The error of what is not covered."""
        return UnsupportedError(reason, where=repr(self.layer), remedy=remedy, rule=rule)

    def tensor_error(self, name: str, wanted: str) -> InvalidModelError:
        """The error of a tensor that is missing or of another type."""
        found = self.tensors.get(name)
        what = "missing" if found is None else f"{found.dtype} of shape {list(found.shape)}"
        return self.invalid(f"{name} is {what}; {wanted} is required", rule="wrong-type")

    def shapes_error(self, *names: str) -> InvalidModelError:
        """The error of tensors whose shapes do not fit each other."""
        shapes = ", ".join(f"{name} {list(self.tensors[name].shape)}" for name in names if name in self.tensors)
        return self.invalid(f"{shapes} do not fit each other", rule="blocks-do-not-fit")


def expand_blocks(parts: Parts, config: Config, name: str, numbers: Array, sizes: tuple[int, int]) -> Array:
    """Numbers of blocks of a weight [N, K] as one for each output and block of inputs: [N, G].

    Args:
        parts: of the layer.
        config: states the sizes of blocks, where they have several outputs; 128 x 128 where it does not.
        name: of the tensor that `numbers` are of, for messages.
        numbers: one, [N], [N, G], or of blocks with several outputs [R, C] or [R, 1, C, 1].
        sizes: N and K.

    Raises:
        InvalidModelError: there are not as many as the weight has blocks, or config.json states another size.
    """
    outputs, inputs = sizes
    if numbers.size == 1:
        return np.repeat(numbers.reshape(1, 1), outputs, axis=0)
    if numbers.ndim == 4 and numbers.shape[1] == numbers.shape[3] == 1:
        numbers = numbers[:, 0, :, 0]
    if numbers.shape == (outputs,):
        numbers = numbers[:, None]
    stated = config.block_of_layer(parts.layer)
    if numbers.ndim != 2:
        raise parts.shapes_error("weight", "weight_packed", name)
    if stated is None and len(numbers) == outputs:
        if inputs % numbers.shape[1]:
            raise parts.shapes_error("weight", "weight_packed", name)
        config.require_block(parts.layer, inputs // numbers.shape[1], inputs)
        return numbers
    high, wide = stated or (128, 128)
    if numbers.shape != (-(-outputs // high), -(-inputs // wide)):
        raise parts.shapes_error("weight", "weight_packed", name)
    return divide_blocks(np.repeat(numbers, high, axis=0)[:outputs], inputs, wide)


def divide_blocks(numbers: Array, inputs: int, block: int) -> Array:
    """Numbers of blocks, of which the last may have fewer inputs than the others, as those of smaller blocks of one size."""
    return numbers[:, np.arange(0, inputs, math.gcd(block, inputs)) // block] if inputs % block else numbers


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
        has_experts: whether one tensor may have the weights of several experts.
        outputs_in_words: whether eight outputs share a word, of which a layer then has a whole number.
        inputs_in_words: the same of inputs.
        one_block: whether one size of blocks and one number of bits hold for all layers.
        outputs: that share scales; 0 for one scale of the whole tensor.
        has_activations: whether data may be rounded in a way, or stay float.
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
    has_experts: bool = False
    outputs_in_words: bool = False
    inputs_in_words: bool = False
    one_block: bool = False
    outputs: int = 1
    has_activations: Callable[[Activations | None], bool] = lambda activations: activations is None


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What the configuration of a checkpoint has to say of a layer.

    Attributes:
        bits: of a code.
        block: inputs of a block; -1 where each row of every layer is one.
        is_symmetric: whether every zero point is the middle of the codes.
        strategy: which weights share a scale, see BlockWeight.
        activations: how data are rounded, without the scale.
    """

    bits: int
    block: int
    is_symmetric: bool
    strategy: str = "group"
    activations: Activations | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What the configuration of a checkpoint has to say of its weights.

    Attributes:
        layers: those in blocks, by their paths.
        real: layers with a float matrix of weights, which are not in blocks.
        has_groups: whether the inputs of a layer are in another order.
    """

    layers: Mapping[str, LayerKind]
    real: Sequence[str]
    has_groups: bool = False

    @property
    def usual(self) -> tuple[int, int]:
        """Bits and size of blocks of most layers."""
        kinds = [(kind.bits, kind.block) for kind in self.layers.values()]
        return max(dict.fromkeys(kinds), key=kinds.count)

    @property
    def is_symmetric(self) -> bool:
        """Whether all layers are."""
        return all(kind.is_symmetric for kind in self.layers.values())

    def unusual(self) -> dict[str, tuple[int, int]]:
        """Layers with other bits or blocks than most have."""
        usual = self.usual
        return {name: (kind.bits, kind.block) for name, kind in self.layers.items() if (kind.bits, kind.block) != usual}


#: JSON files next to a checkpoint, by name: their entries, of config.json those that are added to the model's.
Documents = Mapping[str, Mapping[str, Any]]


def config_of(stated: Mapping[str, Any]) -> Documents:
    """config.json with a quantization."""
    return {FILES_OF_CONFIG[0]: {"quantization_config": stated}}


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
        documents: what config.json, and other JSON files that its users' programs read, say then.
        has_embeddings: whether tables of embeddings may be in blocks too.
        has_head: whether the last layer, lm_head, may.
        in_columns: whether words are written column by column: those that lie so in memory are written as they are.
        note: what a user should know of layers that are read.
        methods: what config.json calls the tool (quant_method), if anything; () for several, which are not told apart.
    """

    name: str
    title: str
    parts: tuple[str, ...]
    recognizes: Callable[[Parts], bool]
    read: Callable[[Parts, Config], BlockWeight]
    needs: Needs | None = None
    write: Callable[[BlockWeight], dict[str, Array]] | None = None
    documents: Callable[[Written], Documents] = field(default=lambda written: {})
    has_embeddings: bool = False
    has_head: bool = True
    in_columns: bool = False
    note: str = ""
    methods: tuple[str, ...] = ()


def is_embedding(layer: str) -> bool:
    """Whether a layer is a table of embeddings, by its name; embed_out of GPT-NeoX is a linear layer."""
    own = layer.rpartition(".")[2]
    return own in ("wte", "wpe", "embed_in") or own.endswith(("embed_tokens", "embedding", "embeddings", "embed_positions"))


def is_head(layer: str) -> bool:
    """Whether a layer is the last one, which gives the logits, by its name."""
    return layer.rpartition(".")[2] in ("lm_head", "embed_out")
