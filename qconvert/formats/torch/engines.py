"""The arithmetic of PyTorch's quantized engines, which a file does not name: it is noted at operators that they round in their own ways.

Layers of x86, onednn and fbgemm add the real bias to the sum; qnnpack rounds it to an integer first. Additions and averages have kernels of
their own (arithmetic/torch_kernels.py). Those of averages differ with the order in which PyTorch stores the data: convolutions give data
with the channels last, and what follows keeps them there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import FLOAT_MEAN, accumulator_quantization, has_addition, qnnpack_bias
from qconvert.graph import Graph, Op, Tensor, integer_range
from qconvert.graph.metadata import SOURCE_ENGINE, SOURCE_KERNELS
from qconvert.operators import kind_of
from qconvert.operators.properties import Suits

ENGINES = ("x86", "fbgemm", "onednn", "qnnpack")

#: Channels that PyTorch averages together (AVX-512); those left over round as single ones do, which is not modelled.
_VECTOR = 16


def set_engine_arithmetic(graph: Graph, wanted: str) -> Graph:
    """The graph of a TorchScript file with the arithmetic of an engine at its operators.

    Args:
        graph: as read, biases real.
        wanted: one of ENGINES, or "" for that which the file hints at.
    """
    if wanted == "qnnpack":  # which rounds float data in 255 steps, whether a file asks for a reduced range or not
        changed = {"dynamic_reduced": "dynamic_tensor"}
        arithmetics = [op.attributes.get("arithmetic") for op in graph.ops]
        pairs = zip(graph.ops, arithmetics, strict=True)
        graph = graph.evolve(ops=[op.with_attributes(arithmetic=changed[one]) if one in changed else op for op, one in pairs])
    layers = [op for op in graph.ops if kind_of(op).has_weights and _is_quantized(graph, op)]
    if not any(_is_quantized(graph, op) for op in graph.ops):
        return graph
    engine, reason = (wanted, "as asked for") if wanted else _guess_engine(graph, layers)
    biases: dict[tuple[str, str, str], Tensor] = {}
    order = _Order(graph)
    ops = []
    for op in graph.ops:
        if kind_of(op).has_weights and engine == "qnnpack":
            op = _with_rounded_bias(graph, op, biases)
        elif arithmetic := _choose_arithmetic(graph, op, engine, order):
            op = op.with_attributes(arithmetic=arithmetic)
            if kind_of(op).has_windows and arithmetic == "qnnpack_average":
                op = op.with_attributes(count_include_pad=1)  # whatever the file says
        ops.append(op)
    metadata = {**graph.metadata, SOURCE_KERNELS: f"torch:{engine}", SOURCE_ENGINE: f"{engine}, {reason}"}
    return graph.evolve(tensors=biases.values(), ops=ops, metadata=metadata)


def _is_quantized(graph: Graph, op: Op) -> bool:
    """Whether an operator has quantized data and a quantized result, uint8 both, as engines take them."""
    sides = [graph[name] for name in (*op.inputs[:1], *op.outputs[:1]) if name]
    return len(sides) == 2 and all(tensor.is_quantized and tensor.dtype == "uint8" for tensor in sides)


def _keeps_quantization(graph: Graph, op: Op) -> bool:
    """Whether the data and the result are quantized likewise, as engines take them."""
    return _is_quantized(graph, op) and graph[op.inputs[0]].shares_quantization(graph[op.outputs[0]])


def _guess_engine(graph: Graph, layers: list[Op]) -> tuple[str, str]:
    """The engine that a file was probably made for, and why: qnnpack's layers have one scale and data of 8 bits, no others' both."""
    quantizations = [graph[op.inputs[1]].quantization for op in layers]
    if any(graph[op.inputs[1]].dtype == "uint8" for op in layers):
        return "qnnpack", "since its weights are unsigned, which no other engine takes"
    points = [int(q.zero_point.max()) for t in graph.tensors.values() if t.dtype == "uint8" and (q := t.quantization) is not None]
    single = bool(quantizations) and all(quantization is not None and quantization.is_per_tensor for quantization in quantizations)
    if single and max(points, default=0) > 127:
        return "qnnpack", "since its layers have per-tensor weights and some zero points are above 127"
    return "x86", "PyTorch's default, whose layers round as those of fbgemm and onednn do"


def _with_rounded_bias(graph: Graph, op: Op, made: dict[tuple[str, str, str], Tensor]) -> Op:
    """A layer with the integers that qnnpack makes of its bias."""
    bias = graph.tensors.get(op.input(2))
    data, weights = graph[op.inputs[0]].quantization, graph[op.inputs[1]].quantization
    if bias is None or bias.data is None or bias.dtype != "float32" or data is None or weights is None or not _is_quantized(graph, op):
        return op
    quantization = accumulator_quantization(data, weights)
    steps = qnnpack_bias(bias.data, quantization.scale)
    low, high = integer_range("int32")
    if not np.isfinite(steps).all() or (steps < low).any() or (steps > high).any() or (quantization.scale == 0).any():
        return op
    key = (bias.name, op.inputs[0], op.inputs[1])
    if key not in made:
        others = sum(name == bias.name for name, *_ in made)
        name = f"{bias.name}/{others}" if others else bias.name
        made[key] = replace(bias, name=name, dtype="int32", data=steps.astype(np.int32), quantization=quantization)
    return op.with_input(2, made[key].name)


def _choose_arithmetic(graph: Graph, op: Op, engine: str, order: _Order) -> str:
    """The `arithmetic` of an operator with an engine; "" where it is the plain one, or has no name."""
    kind = kind_of(op)
    if kind.averages and kind.keeps_range:
        return (_pool_arithmetic if kind.layout.suits is Suits.DECIDES else _mean_arithmetic)(graph, op, engine, order)
    if kind.sum_sign > 0:
        return _add_arithmetic(graph, op, engine)
    if kind.quantizes:
        return "fused" if graph[op.outputs[0]].dtype == "uint8" and graph[op.inputs[0]].dtype == "float32" else ""
    return "torch" if kind.layout.sized and op["mode"] == "linear" and _keeps_quantization(graph, op) else ""


def _pool_arithmetic(graph: Graph, op: Op, engine: str, order: _Order) -> str:
    data, is_global = graph[op.inputs[0]], not kind_of(op).has_windows
    if data.rank != 4 or not _keeps_quantization(graph, op):
        return ""
    adaptive = is_global or "adaptive" in op.source.partition(" ")[0]
    if engine == "qnnpack" and (is_global or (_has_even_windows(data, op) if adaptive else not op["ceil_mode"])):
        return "qnnpack_average"
    last = order.is_last(data.name)
    if adaptive:
        return "fbgemm_adaptive" if last else "fbgemm_frames"
    channels = (data.shape or ())[1]
    return "fbgemm_vectors" if last and isinstance(channels, int) and channels >= _VECTOR else "fbgemm_windows"


def _add_arithmetic(graph: Graph, op: Op, engine: str) -> str:
    if not _is_quantized(graph, op):
        return ""
    first, second, result = (graph[name] for name in op.names)
    if first.quantization is None or second.quantization is None or result.quantization is None or second.dtype != "uint8":
        return ""
    if not second.rank:  # quantized::add with a number has a kernel of its own (qadd_scalar_kernel), which adds integers
        return ""
    name = "qnnpack" if engine == "qnnpack" and first.shape == second.shape else "fbgemm"
    return name if has_addition(name, (first.quantization, second.quantization), result.quantization) else ""


def _mean_arithmetic(graph: Graph, op: Op, engine: str, order: _Order) -> str:
    data, axes = graph[op.inputs[0]], graph.constant(op.inputs[1]) if len(op.inputs) > 1 else None
    if axes is None or data.rank is None or not _keeps_quantization(graph, op):
        return ""
    over = sorted(int(axis) % data.rank for axis in axes.reshape(-1))
    inner = over == list(range(data.rank - len(over), data.rank)) and bool(over)
    if engine == "qnnpack" and data.rank == 4 and over == [2, 3]:
        return "qnnpack_average"
    return "fbgemm_means" if inner and not order.is_last(data.name) else FLOAT_MEAN


def _has_even_windows(data: Tensor, op: Op) -> bool:
    """Whether the windows of an adaptive average tile the data. qnnpack has a kernel for this case alone."""
    sizes = (data.shape or ())[2:]
    return tuple(op["strides"]) == tuple(op["kernel_shape"]) and all(
        isinstance(size, int) and size % kernel == 0 for size, kernel in zip(sizes, op["kernel_shape"], strict=True)
    )


class _Order:
    """Whether PyTorch stores a tensor with the channels last."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[str, bool] = {}
        for op in graph.ops:  # in an order in which they can run
            for name in op.outputs:
                self._known[name] = self._is_result_last(op)

    def is_last(self, name: str) -> bool:
        """Whether the channels of a tensor of four axes are last; one of one channel is stored so in any case."""
        shape = self._graph[name].shape or ()
        return len(shape) == 4 and (shape[1] == 1 or self._known.get(name, False))

    def _is_result_last(self, op: Op) -> bool:
        """Whether the first result is: elementwise operators, pools, resizes and normalizations keep the order of their first operand."""
        kind = kind_of(op)
        if kind.has_weights:
            return _is_quantized(self._graph, op)
        if op.kind == "Concat":
            return all(map(self.is_last, op.inputs))
        is_spatial = kind.layout.suits is Suits.DECIDES and (kind.has_windows or kind.layout.sized or kind.normalizes)
        return (is_spatial or kind.layout.suits is Suits.BROADCASTS) and self.is_last(op.inputs[0])
