"""The layers while the writer builds them, and an operator's results with their activation and their rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.plugin import KINDS, Array, Graph, NotedTensor, Op, Quantization, Tensor, UnsupportedError
from qconvert_ncnn.blobs import Blobs, sizes_of, unsupported_error
from qconvert_ncnn.container import Layer, pack_weights
from qconvert_ncnn.notes import Notes, data_name
from qconvert_ncnn.quantizations import LIMIT, find_integer_tensors, find_reader_rounded, inverse, is_data_movement

#: Canonical activation -> its bounds.
ACTIVATIONS: Mapping[str, tuple[float, float | None]] = {"relu": (0.0, None), "relu6": (0.0, 6.0), "relu_n1_to_1": (-1.0, 1.0)}
#: BinaryOp's op_types, and UnaryOp's of rounding halves to even.
ADDED, SUBTRACTED, MULTIPLIED, ROUND = 0, 1, 2, 18
CLIP = "Clip"
#: Keys of sizes in Input, Reshape and MemoryData, for blobs of 1 to 4 dimensions, the outermost first.
_SIZE_KEYS = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}


def blob_params(sizes: Sequence[int]) -> dict[int, Any]:
    """Return the sizes of a blob as parameters of Input, Reshape and MemoryData."""
    return dict(zip(_SIZE_KEYS[len(sizes)], sizes, strict=True))


@dataclass(frozen=True, slots=True)
class Step:
    """A layer with one result; its first input is the result of the step before it.

    Attributes:
        inputs: input blobs: all of a first step, else the further ones.
        suffix: of the names of its blob and layer.
    """

    kind: str
    params: Mapping[int, Any]
    weights: tuple[bytes, ...] = ()
    inputs: tuple[str, ...] = ()
    suffix: str = "part"


class Writing:
    """The layers while they grow.

    Args:
        graph: what is written, with spatial operators that are channels_first.
        rounds: whether tensors that int8 layers do not round are rounded by separate layers.

    Attributes:
        layers: in order.
        values: tensor -> the blob of its float values, or of its integers for tensors in `stored`.
        stored: tensors between layers that are integers.
        notes: names and quantizations of blobs.
        inside: output blob that layers read too -> the blob that they read.
        unrounded: the number of tensors that are not rounded since `rounds` is False.
    """

    def __init__(self, graph: Graph, rounds: bool) -> None:
        self.graph, self.rounds = graph, rounds
        self.layers: list[Layer] = []
        self.values: dict[str, str] = {}
        self.blobs, self._layers = Blobs(), Blobs()
        self.stored = find_integer_tensors(graph)
        self.inside: dict[str, str] = {}
        self.unrounded = 0
        self.notes = Notes()
        self._rounded_later = find_reader_rounded(graph)

    # values

    def add(self, kind: str, name: str, inputs: Sequence[str], outputs: Sequence[str], params: Mapping[int, Any], *weights: bytes) -> None:
        """Add a layer; its name and `outputs` are names of Blobs."""
        self.layers.append(Layer(kind, name, tuple(inputs), tuple(outputs), dict(params), tuple(weights)))

    def value(self, name: str, rank: int = 0) -> str:
        """Return the blob of a tensor's float values, with leading sizes of 1 up to `rank` dimensions."""
        tensor = self.graph[name]
        if tensor.is_constant:
            return self._constant(tensor, rank)
        found, sizes = self.values[name], sizes_of(tensor)
        if rank <= len(sizes):
            return found
        wide = self.blobs.fresh(f"{name}/{rank}d")
        self.add("Reshape", wide, [found], [wide], blob_params(((1,) * rank + sizes)[-rank:]))
        return wide

    def _constant(self, tensor: Tensor, rank: int) -> str:
        real = self.real(tensor)
        shape = real.shape if real.ndim > rank else (1,) * (rank + 1 - real.ndim) + real.shape
        if shape[0] != 1 or not 1 < len(shape) <= len(_SIZE_KEYS) + 1:
            raise UnsupportedError(
                f"a constant of the shape {real.shape} cannot be written to ncnn", where=repr(tensor.name), rule="shape-not-writable"
            )
        name = self.blobs.fresh(tensor.name)
        self.add("MemoryData", name, [], [name], blob_params(shape[1:]), pack_weights(real))
        return name

    def real(self, tensor: Tensor) -> Array:
        """Return the values of a constant as float32. Raise UnsupportedError for other types than float and quantized ones."""
        if tensor.data is None or not (tensor.is_quantized or tensor.dtype in ("float16", "bfloat16", "float32")):
            raise UnsupportedError(
                f"the constant is {tensor.dtype}; ncnn requires float", where=repr(tensor.name), rule="dtype-not-writable"
            )
        found: Array = np.asarray(tensor.float_values(), np.float32)
        return found

    def layer(self, op: Op) -> str:
        """Return the name of an operator's first layer: the source's name, as tables of scales have it, or that of the result."""
        return self._layers.name(op.source_name or op.outputs[0])

    def integers(self, op: Op, index: int, what: str) -> list[int]:
        """Return a constant input of integers."""
        data = self.graph.constant(op.inputs[index]) if op.has(index) else None
        if data is None:
            raise unsupported_error(op, f"with {what} that are computed when the model runs", rule="not-constant")
        return [int(value) for value in data.reshape(-1)]

    def sizes(self, name: str) -> tuple[int, ...]:
        return sizes_of(self.graph[name])

    # results

    def finish(self, op: Op, kind: str, params: Mapping[int, Any], *weights: bytes, inputs: Sequence[str] | None = None) -> None:
        """Add the layer of an operator's result, followed by activation, limits and rounding.

        Args:
            op: the operator, with one result.
            kind, params, weights: of the layer.
            inputs: its blobs; by default the operator's first input.
        """
        taken = tuple(inputs) if inputs is not None else (self.value(op.inputs[0]),)
        self.steps(op, [Step(kind, params, weights, taken, "real")])

    def steps(self, op: Op, first: Sequence[Step]) -> None:
        """Add the layers of an operator's result, followed by activation, limits and rounding."""
        self.chain(op, [*first, *self.following_steps(op, str(op.attributes.get("activation", "")))])

    def chain(self, op: Op, steps: Sequence[Step]) -> None:
        """Add the layers of the first result of an operator."""
        name, own = op.outputs[0], self.layer(op)
        sizes_of(self.graph[name])
        found, blob = "", self.blobs.name(name)
        for index, step in enumerate(steps):
            output = blob if index == len(steps) - 1 else self.blobs.fresh(f"{name}/{step.suffix}")
            layer = f"{own}/{step.suffix}" if index else own
            self.add(step.kind, layer, [*([found] if found else []), *step.inputs], [output], step.params, *step.weights)
            found = output
        self.values[name] = found

    def following_steps(self, op: Op, activation: str = "") -> list[Step]:
        """Return the steps of an activation and of the rounding to the result's quantization."""
        found = [bounds_step(*ACTIVATIONS[activation])] if activation else []
        tensor = self.graph[op.outputs[0]]
        if tensor.quantization is not None and KINDS[op.kind].rounds and not is_data_movement(self.graph, op):
            found += self.rounding_steps(tensor, tensor.quantization)
        return found

    def rounding_steps(self, tensor: Tensor, q: Quantization) -> list[Step]:
        """Return the steps that round values to a quantization; only to its limits if the readers round, or if `rounds` is False."""
        if not q.is_per_tensor:
            raise UnsupportedError("activations have several scales; ncnn requires one", where=repr(tensor.name), rule="not-per-tensor")
        low, high = (limit - q.point for limit in q.limits(tensor.dtype))
        scale = q.scale.reshape(-1)[0]
        if tensor.name in self._rounded_later or not self.rounds:
            self.unrounded += tensor.name not in self._rounded_later
            if (low, high) == (-LIMIT, LIMIT):
                return []
            return [bounds_step(None if low == -LIMIT else float(low * scale), None if high == LIMIT else float(high * scale))]
        return [
            Step("BinaryOp", {0: MULTIPLIED, 1: 1, 2: float(inverse(scale))}, suffix="scaled"),
            Step("UnaryOp", {0: ROUND}, suffix="rounded"),
            Step(CLIP, {0: float(low), 1: float(high)}, suffix="clipped"),
            Step("BinaryOp", {0: MULTIPLIED, 1: 1, 2: float(scale)}, suffix="quantization"),
        ]

    def note(self, name: str) -> None:
        """Note the name and the quantization of a tensor, which its blob lacks."""
        tensor, blob = self.graph[name], self.blobs.name(name)
        if blob != name:
            self.notes.names[blob] = name
        if name in self._rounded_later:
            read = self.values[name]
            self.notes.names[data_name(self.inside.get(read, read))] = name
        if tensor.per_tensor is not None and not tensor.is_constant:
            self.notes.quantizations[blob] = NotedTensor(name, tensor.dtype, tensor.per_tensor)

    def alias(self, op: Op) -> None:
        """Give the result the blob of the first input."""
        self.values[op.outputs[0]] = self.value(op.inputs[0])


def bounds_step(low: float | None, high: float | None) -> Step:
    """Return the step of a Clip, or of a ReLU."""
    if low == 0 and high is None:
        return Step("ReLU", {}, suffix="relu")
    most = float(np.finfo(np.float32).max)
    return Step(CLIP, {0: -most if low is None else low, 1: most if high is None else high}, suffix="bounded")
