"""The layers that MNN runs on integers: which of a float network's convolutions have a quantization on both sides, and under which names.

MNN fuses a Relu, and a Clip from 0 to 6, into the convolution before it; the layer then has the name of what the activation computes. A
convolution that computes an output of the network is called otherwise, since MNN puts a change of layout after it. Measured with 3.6.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

import numpy as np

from qconvert.encodings import Encoding, Encodings, Place
from qconvert.errors import OptionError
from qconvert.graph import Array, Graph, Op
from qconvert.kernels import KERNELS
from qconvert.operators import kind_of
from qconvert.operators.products import count_groups

#: What MNN appends to the name of a convolution's result before the change of layout of a network's output.
BEFORE_TRANSPOSE = "__before_tr"
_RELU6 = (0.0, 6.0)
#: Between the name of a convolution's result and the number of a group, which is a convolution of its own in MNN.
_GROUP = "___output___"
MNN_KERNELS = KERNELS["mnn:cpu"]
#: The longest list of names in an error.
_LISTED = 8


@dataclass(frozen=True, slots=True)
class Activation:
    """A tensor of float values and its int8 quantization."""

    name: str
    scale: float
    zero_point: int


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A layer that is to run on integers.

    Attributes:
        name: of its result in MNN, the activation that is fused included.
        operator: the operator's name in the source's file, or that of its result.
        data, result: the tensors on both sides; the result has the name that it has in the ONNX file.
        weights: the name of the constant.
        scales: float32, one a channel of the output.
        integers: int8, O,I,spatial; None where nobody says them, and MNN rounds.
    """

    name: str
    operator: str
    data: Activation
    result: Activation
    weights: str
    scales: Array
    integers: Array | None


def activations_of(graph: Graph, encodings: Encodings) -> dict[str, Activation]:
    """The int8 quantizations of all tensors that have one, by name."""
    found: dict[str, Activation] = {}
    for place, encoding in encodings.entries.items():
        if place.role == "tensor" and place.name in graph.tensors and not graph[place.name].is_constant:
            quantization = _int8_activation(place.name, encoding)
            if isinstance(quantization, Activation):
                found[place.name] = quantization
    return found


def layers_of(graph: Graph, encodings: Encodings, kept_float: Iterable[str] = ()) -> tuple[list[Layer], dict[str, str]]:
    """The layers, and for each convolution that stays float (by the name of its result) why, in words.

    Args:
        graph: of float values.
        encodings: the quantizations of its tensors.
        kept_float: layers to leave float: names of results or of the source's operators, or patterns of these such as "Gemm*".

    Raises:
        OptionError: one of `kept_float` is none.
    """
    readers = graph.consumers()
    kept = _Kept(kept_float)
    layers, floats = [], {}
    for op in graph.ops:
        if not kind_of(op).sums_products:
            continue
        result = _fused_result(graph, op, readers.get(op.outputs[0], []))
        if kept.matches(op, result):
            floats[result] = "as asked for"
            continue
        found = _layer(graph, op, result, encodings, readers)
        if isinstance(found, str):
            floats[result] = found
        else:
            layers += _groups(graph, op, found)
    kept.require_all()
    return layers, floats


class _Kept:
    """Which layers a user wants float."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)
        self._used: set[str] = set()
        self._known: list[str] = []

    def matches(self, op: Op, result: str) -> bool:
        names = [result, op.outputs[0], op.source, op.source.partition(" ")[0], op.kind]
        self._known += [result, op.source]
        fitting = {pattern for pattern in self._patterns for name in names if pattern == name or fnmatchcase(name, pattern)}
        self._used |= fitting
        return bool(fitting)

    def require_all(self) -> None:
        """Raises OptionError for a pattern that no layer fits."""
        for pattern in self._patterns:
            if pattern not in self._used:
                near = get_close_matches(pattern, self._known, _LISTED, 0.3) or self._known[:_LISTED]
                listed = ", ".join(map(repr, near))
                raise OptionError(
                    f"no layer is named {pattern!r}, which is to stay float",
                    remedy=f"Layers are, among others: {listed}.",
                    rule="unknown-layer",
                )


def _fused_result(graph: Graph, op: Op, readers: Sequence[Op]) -> str:
    """The name of what a layer computes with the activation that MNN fuses into it."""
    if kind_of(op).has_windows and len(readers) == 1 and op.outputs[0] not in graph.public:
        (reader,) = readers
        if reader.kind == "Relu" or kind_of(reader).limits(reader, graph.constant) == _RELU6:
            return reader.outputs[0]
    return op.outputs[0]


def _find_folded_operator(graph: Graph, name: str, readers: Mapping[str, Sequence[Op]]) -> str:
    """The operator with a constant after a layer that MNN makes a part of the layer's weights and bias, in words; "" if there is none. The
    layer's result, which has a quantization of its own, is no tensor then."""
    following = readers.get(name, ())
    while len(following) == 1 and name not in graph.public:
        op = following[0]
        if kind_of(op).affine is not None and any(graph[operand].is_constant for operand in op.inputs):
            return f"the {op.kind} {op.outputs[0]!r}"
        if not kind_of(op).keeps_order:
            return ""
        name = op.outputs[0]
        following = readers.get(name, ())
    return ""


def _layer(graph: Graph, op: Op, result: str, encodings: Encodings, readers: Mapping[str, Sequence[Op]]) -> Layer | str:
    """The layer of a convolution, or why it stays float."""
    if MNN_KERNELS.lacks(op):
        return f"MNN quantizes no {op.kind}"
    if taken := _find_folded_operator(graph, op.outputs[0], readers):
        return f"MNN would take {taken} into it, before it rounds"
    shape, groups = graph[op.inputs[1]].shape or (0, 0), count_groups(op)
    if groups > 1 and shape[1] == 1 and shape[0] != groups:
        return "MNN takes apart depthwise convolutions that give several results for a channel"
    weights = _weights(graph, op, encodings)
    if isinstance(weights, str):
        return weights
    data = _activation(op.inputs[0], encodings, "input", op)
    if isinstance(data, str):
        return f"its data have {data}"
    following = _activation(result, encodings, "output", op)
    if isinstance(following, str):
        return f"its result has {following}"
    name = f"{result}{BEFORE_TRANSPOSE}" if kind_of(op).has_windows and result in graph.outputs else result
    return Layer(name, op.source or result, data, following, op.inputs[1], *weights)


def _groups(graph: Graph, op: Op, layer: Layer) -> list[Layer]:
    """What MNN makes of a layer: a convolution for each group, but of a depthwise one."""
    count = count_groups(op)
    outputs, inputs = len(layer.scales), (graph[op.inputs[1]].shape or (0, 0))[1]
    if count == 1 or (count == outputs and inputs == 1):
        return [layer]
    rows = [slice(start, start + outputs // count) for start in range(0, outputs, outputs // count)]
    return [
        replace(layer, name=f"{op.outputs[0]}{_GROUP}{number}", scales=layer.scales[part],
                integers=None if layer.integers is None else layer.integers[part])
        for number, part in enumerate(rows)
    ]  # fmt: skip


def _activation(name: str, encodings: Encodings, role: str, op: Op) -> Activation | str:
    """The int8 quantization of a tensor, or what it has instead."""
    return _int8_activation(name, encodings.entries.get(Place(name)) or encodings.entries.get(Place(op.outputs[0], role)))


def _int8_activation(name: str, found: Encoding | None) -> Activation | str:
    if found is None or found.qparams is None:
        return "no quantization"
    quantization = found.qparams
    q = quantization.quantization
    if quantization.dtype not in ("int8", "uint8"):
        return f"quantization to {quantization.dtype}, and MNN has int8 only"
    if q.scale.size != 1:
        return "several scales, and MNN has one"
    shift = 128 if quantization.dtype == "uint8" else 0
    return Activation(name, q.step, q.point - shift)


def _weights(graph: Graph, op: Op, encodings: Encodings) -> tuple[Array, Array | None] | str:
    """Scales, one a channel, and integers of a layer's weights; or why there are none."""
    name = op.inputs[1]
    weights, found = graph[name], encodings.entries.get(Place(name)) or encodings.entries.get(Place(op.outputs[0], "input", 1))
    if weights.data is None:
        return "its weights are computed at run time"
    if found is None or found.qparams is None:
        return "its weights are not quantized"
    quantization = found.qparams
    q = quantization.quantization
    unsigned = quantization.dtype in ("uint8", "uint4")
    middle = 2 ** (int(quantization.dtype[4:]) - 1) if unsigned else 0
    if quantization.dtype not in ("int8", "uint8", "int4", "uint4", "int2"):
        return f"its weights are quantized to {quantization.dtype}"
    if q.block_size or (q.scale.size > 1 and q.axis not in (None, 0)):
        return (
            "its weights have a scale for each block"
            if q.block_size
            else "its weights have scales that do not run along its output channels"
        )
    if (q.zero_point != middle).any():
        return "its weights have a zero point"
    scales = np.broadcast_to(q.scale.reshape(-1), (len(weights.data),)).astype(np.float32)
    with np.errstate(over="ignore", divide="ignore"):
        if not np.isfinite(np.float32(1) / scales).all():
            return "its weights have scales so small that MNN cannot divide by them"
    return scales, None if found.integers is None else (np.asarray(found.integers).astype(np.int16) - middle).astype(np.int8)
