"""matmul_to_gemm: a MatMul with constant weights, and the addition of a constant bias behind it, become a Gemm.

Exact in real numbers: the Gemm is the same sum of products. Where data and weights are quantized and the product is not, the bias joins the
sum before its one rounding, as in the source. Targets have a kernel for this (FULLY_CONNECTED), and mostly none for MatMul. Integer weights
behind a Dequantize count as constants, and stay integers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize
from qconvert.graph import Array, Graph, Op, Shape, Tensor
from qconvert.plugins import Change, Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change, ...]]:
    """Changes every MatMul of a matrix of constants; data of more dimensions are reshaped to rows, and the result back."""
    rewriting = _Rewriting(graph)
    for op in graph.ops:
        rewriting.visit(op)
    if not rewriting.count:
        return graph, ()
    note = f"{rewriting.count} MatMul with constant weights are Gemm, {rewriting.biases} of them with the bias added behind"
    return graph.evolve(tensors=rewriting.tensors.values(), ops=rewriting.ops), (Change(note, exact=not rewriting.real),)


class _Rewriting:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._consumers = graph.consumers()
        self._producers = graph.producers()
        self._gone: set[int] = set()
        self._weights: dict[tuple[str, bool], str] = {}
        self.tensors: dict[str, Tensor] = {}
        self._names = graph.names(self.tensors)
        self.ops: list[Op] = []
        self.count = self.biases = 0
        self.real = False  # whether sums of real numbers are among them, which may be added in another order

    def visit(self, op: Op) -> None:
        """Takes an operator over, changed if it is such a MatMul."""
        if id(op) in self._gone:
            return
        if not self._is_linear(op):
            self.ops.append(op)
            return
        self.count += 1
        addition, bias = self._bias(op)
        last = addition or op
        activation = str(last["activation"])
        weights = self._weights_of(op)
        data, result = self._graph[op.inputs[0]], self._graph[last.outputs[0]]
        self.real |= addition is not None or not (data.is_quantized and result.is_quantized)
        rows = self._rows(data)
        inputs = [self._as_rows(data, rows, self._depth(op)), weights, *([bias] if bias else [])]
        attributes = {"activation": activation} if activation else {}
        attributes |= {"arithmetic": str(op["arithmetic"])} if op["arithmetic"] else {}
        if data.rank == 2:
            self.ops.append(Op("Gemm", tuple(inputs), last.outputs, attributes, op.source))
            return
        count = (self._graph[op.inputs[1]].shape or ())[0 if op["trans_b"] else 1]
        flat = self._add(f"{result.name}/rows", replace(result, shape=(rows, count)))
        self.ops.append(Op("Gemm", tuple(inputs), (flat,), attributes, op.source))
        self.ops.append(Op("Reshape", (flat, self._sizes(result)), (result.name,), {}, op.source))

    def _is_linear(self, op: Op) -> bool:
        if op.kind != "MatMul" or op["trans_a"]:
            return False
        data, weights = self._graph[op.inputs[0]], self._graph[self._constant(op.inputs[1])]
        q = weights.quantization
        per_tensor = data.quantization is None or data.quantization.is_per_tensor
        along = per_tensor and (q is None or q.axis in (None, 0 if op["trans_b"] else 1))
        summed = all(tensor.is_quantized or "float" in tensor.dtype for tensor in (data, weights))  # a Gemm takes no plain integers
        is_matrix = weights.data is not None and weights.data.ndim == 2
        has_elements = 0 not in (data.shape or ())  # to a Reshape, 0 is the size that there was
        fits = summed and is_matrix and has_elements and data.rank is not None and data.rank >= 2
        symbols = [size for size in (self._graph[op.outputs[0]].shape or ("?", "?")) if isinstance(size, str)]
        return fits and along and (q is None or not q.block_size) and (data.rank == 2 or len(symbols) <= 1)

    def _constant(self, name: str) -> str:
        """What a Dequantize in front of the weights reads, where there is one; else the weights."""
        maker = self._producers.get(name)
        return maker.inputs[0] if maker is not None and maker.kind == "Dequantize" and self._graph[name].dtype == "float32" else name

    def _bias(self, op: Op) -> tuple[Op | None, str]:
        """The Add of a constant row behind the MatMul, and that row as real values; (None, "") if there is none to take over."""
        name = op.outputs[0]
        readers = self._consumers.get(name, [])
        is_free = not self._graph[name].is_quantized and name not in self._graph.public and not op["activation"]
        if not is_free or len(readers) != 1 or readers[0].kind != "Add" or readers[0].attributes.get("arithmetic"):
            return None, ""
        addition = readers[0]
        other = next((operand for operand in addition.inputs if operand != name), "")
        count = (self._graph[op.inputs[1]].shape or ())[0 if op["trans_b"] else 1]
        row = self._row(other, int(count)) if other else None
        if row is None:
            return None, ""
        self._gone.add(id(addition))
        self.biases += 1
        tensor = self._graph[other]
        if not tensor.is_quantized and tensor.rank == 1:
            return addition, other
        return addition, self._add(f"{other}/row", Tensor("", "float32", row.shape, row))

    def _row(self, name: str, count: int) -> Array | None:
        """The float32 values of a constant that is one row of `count`; a quantized one as its real values, rounded once."""
        tensor = self._graph[name]
        if tensor.data is None or tensor.data.size != count or tensor.data.shape[-1:] != (count,):
            return None
        if tensor.quantization is not None:
            return dequantize(tensor.data, tensor.quantization).astype(np.float32).reshape(count)
        return tensor.data.reshape(count) if tensor.dtype == "float32" else None

    def _weights_of(self, op: Op) -> str:
        name, is_turned = op.inputs[1], bool(op["trans_b"])
        if is_turned:
            return name
        stored = self._constant(name)
        turned = self._turned(stored, alone=stored == name and len(self._consumers[name]) == 1 and name not in self._graph.public)
        if stored == name:
            return turned
        if (name, True) not in self._weights:
            shape = self.tensors[turned].shape
            self._weights[name, True] = self._add(f"{name}/OI", Tensor("", "float32", shape))
            self.ops.append(Op("Dequantize", (turned,), (self._weights[name, True],), {}, op.source))
        return self._weights[name, True]

    def _turned(self, name: str, *, alone: bool) -> str:
        """A constant of inputs x outputs as outputs x inputs, under its own name if it stands `alone`."""
        if (name, False) not in self._weights:
            tensor = self._graph[name]
            assert tensor.data is not None
            q = None if tensor.quantization is None else tensor.quantization.transposed((1, 0))
            data = tensor.data.swapaxes(0, 1)
            new = replace(tensor, shape=data.shape, data=data, quantization=q)
            self._weights[name, False] = self._add(name if alone else f"{name}/OI", new, keep=alone)
        return self._weights[name, False]

    @staticmethod
    def _rows(data: Tensor) -> int | str:
        """How many rows the data have."""
        sizes: Shape = (data.shape or ())[:-1]
        symbols = [size for size in sizes if isinstance(size, str)]
        known = int(np.prod([size for size in sizes if isinstance(size, int)], dtype=np.int64))
        return known if not symbols else symbols[0] if len(symbols) == 1 and known == 1 else f"{data.name}_rows"

    def _depth(self, op: Op) -> int:
        """How many products are added: the weights know it even where the data's shape does not say it."""
        return int((self._graph[op.inputs[1]].shape or ())[1 if op["trans_b"] else 0])

    def _as_rows(self, data: Tensor, rows: int | str, depth: int) -> str:
        if data.rank == 2:
            return data.name
        flat = self._add(f"{data.name}/rows", replace(data, shape=(rows, depth), data=None))
        sizes = np.array([-1, depth], np.int64)
        shape = self._add(f"{data.name}/rows_shape", Tensor("", "int64", (2,), sizes))
        self.ops.append(Op("Reshape", (data.name, shape), (flat,)))
        return flat

    def _sizes(self, result: Tensor) -> str:
        sizes = np.array([-1 if isinstance(size, str) else size for size in result.shape or ()], np.int64)
        return self._add(f"{result.name}/shape", Tensor("", "int64", sizes.shape, sizes))

    def _add(self, wanted: str, tensor: Tensor, keep: bool = False) -> str:
        name = wanted if keep else self._names.fresh(wanted)
        self.tensors[name] = replace(tensor, name=name)
        return name
