"""What operators and tensors cost, whatever runs them: multiplications and bytes."""

from __future__ import annotations

from math import prod

from qconvert.arithmetic.dtypes import numpy_dtype
from qconvert.graph.schema import Graph, Op, Shape, Tensor
from qconvert.operators import KINDS

__all__ = ["macs", "stored_bytes"]

#: Kinds that multiply each row of their data, and of what they remember, by all of their weights.
_RECURRENT = ("LSTM", "GRU", "RNN", "SVDF", "IntegerLSTM", "IntegerSVDF", "BasicLSTM")


def macs(graph: Graph, op: Op) -> int:
    """How many products an operator sums in one run: those of convolutions, products of matrices and recurrences; 0 for all others.

    Sizes that are open count as 1. What functions of the operator multiply is left out, since a loop may run them any number of times.
    """
    if op.kind == "Einsum":
        return _einsum(graph, op)
    kind = KINDS.get(op.kind)
    if kind is None or not (kind.sums_products or op.kind in (*_RECURRENT, "MatMulInteger")):
        return 0
    data = _sizes(graph[op.inputs[0]].shape)
    if op.kind in _RECURRENT:
        weights = (_sizes(graph[name].shape) for name in op.inputs[1:] if name and graph[name].is_constant)
        return prod(data[:-1]) * sum(prod(sizes) for sizes in weights if len(sizes) > 1)
    results, factors = (_sizes(graph[name].shape) for name in (op.outputs[0], op.inputs[1]))
    if op.kind in ("MatMul", "MatMulInteger"):
        return prod(results) * (data[-2] if len(data) > 1 and op.attributes.get("trans_a") else data[-1] if data else 1)
    if op.kind == "Gemm":
        return prod(data[:-1]) * prod(factors)
    # A convolution uses each weight at each place of its result, a transposed one at each place of its data.
    places = data if op.kind == "ConvTranspose" else results
    channels = places[-1 if op.attributes.get("data_format") == "channels_last" else 1] if len(places) > 1 else 1
    return prod(places) // max(channels, 1) * prod(factors)


def _einsum(graph: Graph, op: Op) -> int:
    sizes: dict[str, int] = {}
    terms = str(op["equation"]).replace(" ", "").split("->")[0].split(",")
    if "." in str(op["equation"]):
        return 0
    for term, name in zip(terms, op.inputs, strict=False):
        sizes.update(zip(term, _sizes(graph[name].shape), strict=False))
    return prod(sizes.values()) if len(terms) > 1 else 0


def stored_bytes(tensor: Tensor) -> int:
    """How many bytes a tensor takes where it goes from one part of a network to another: types below 8 bits take a byte there.

    Sizes that are open count as 1, and what has no size of its own, such as text, as 0.
    """
    return 0 if tensor.dtype in ("string", "unknown") else prod(_sizes(tensor.shape)) * numpy_dtype(tensor.dtype).itemsize


def _sizes(shape: Shape | None) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else 1 for size in shape or ())
