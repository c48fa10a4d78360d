"""What a format gives of a file without a graph: its tensors and quantizations, by the names of modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qconvert.checkpoints.activations import Activations
    from qconvert.encodings import QParams
    from qconvert.graph import Array, Graph, Tensor


@dataclass(frozen=True, slots=True)
class Folding:
    """What gives the tensors of a module whose weights are quantized as they stand in the graph.

    Attributes:
        tensors: epsilon of the batch normalization after the module -> its tensors by their names.
        has_norm: whether that normalization is part of them.
    """

    tensors: Callable[[float], Mapping[str, Tensor]]
    has_norm: bool


@dataclass(frozen=True, slots=True, eq=False)
class Decoding:
    """How the codes of a weight in blocks, [N, K], become real where no quantization says it.

    Attributes:
        scales: float32 [N, G], one for each block of K / G inputs.
        table: float32 [codes]: the value is table[code] * scale, and the weight has the quantization of scale 1 and zero point 0.
        offsets: float32 [N, G]: the value is code * scale + offset, and the weight has the scales as its quantization.
        factor: the value is (code * scale) * factor, and the weight has the scales as its quantization.
    """

    scales: Array
    table: Array | None = None
    offsets: Array | None = None
    factor: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """A network without its graph. Modules are named by their paths, such as "features.0.conv", tensors "features.0.conv.weight".

    Attributes:
        tensors: by name; quantized ones with their quantizations, weights as PyTorch lays them out: outputs first, but for transposed
            convolutions.
        absent: names of tensors that a module can have and this one has not: biases.
        folded: of modules whose weights have yet to be given their quantization, perhaps with the batch normalization after them.
        results: the quantizations of what modules compute.
        inputs: the quantizations of inputs of the network, in order, by the module that rounds them.
        data: the quantizations that modules round their first input onto.
        functions: those of what stands in a module's own code, in order, by the module, in whose path "_" stands for ".".
        fixed: kinds of operators whose quantized results have one quantization: it stands in no file.
        function_names: kinds of operators that stand in the code of a module without a module of their own -> the name of the function
            there; a module that stands for such a function has it in its name.
        observed_kinds: kinds of operators that have a quantization of their own in the list of a network in training.
        dynamic: modules with weights that round their data at each run -> `arithmetic`, see operators/attributes.py.
        orders: modules whose weights have their inputs in another order -> int64, which input of the network stands at each place.
        factors: modules whose data are multiplied first -> float32, the factor of each input.
        rounded: modules whose data are rounded then, whatever else reads them -> how, with the scale that the file has.
        decodings: weights, by their names, whose float values no quantization expresses.
        trained: whether values are rounded where `results` and `inputs` say alone, and are real between, as in quantization-aware training.
            Else what has a quantization stays on one until an operator without a quantized form comes.
        finished: the last step on the resulting graph of quantized operators, such as noting whose kernels they have.
        places: module -> name of a tensor in the graph, as the user states it.
        metadata: of the graph.
        notes: what the user should know.
    """

    tensors: Mapping[str, Tensor]
    absent: frozenset[str] = frozenset()
    folded: Mapping[str, Folding] = field(default_factory=dict)
    results: Mapping[str, QParams] = field(default_factory=dict)
    inputs: Mapping[str, QParams] = field(default_factory=dict)
    data: Mapping[str, QParams] = field(default_factory=dict)
    functions: Mapping[str, tuple[QParams, ...]] = field(default_factory=dict)
    fixed: Mapping[str, QParams] = field(default_factory=dict)
    function_names: Mapping[str, str] = field(default_factory=dict)
    observed_kinds: frozenset[str] = frozenset()
    dynamic: Mapping[str, str] = field(default_factory=dict)
    orders: Mapping[str, Array] = field(default_factory=dict)
    factors: Mapping[str, Array] = field(default_factory=dict)
    rounded: Mapping[str, Activations] = field(default_factory=dict)
    decodings: Mapping[str, Decoding] = field(default_factory=dict)
    trained: bool = False
    finished: Callable[[Graph], Graph] = lambda graph: graph
    places: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
