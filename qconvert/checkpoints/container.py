"""What a tool's way to store weights in blocks is: the tensors of a layer by their names, how the layer is known, read and written, and
which weights it has room for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.activations import Activations
from qconvert.checkpoints.config import FILES_OF_CONFIG
from qconvert.checkpoints.parts import Parts
from qconvert.checkpoints.weight import BlockWeight


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
        read: the layer -> the weight. Raises QConvertError.
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
    read: Callable[[Parts], BlockWeight]
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
