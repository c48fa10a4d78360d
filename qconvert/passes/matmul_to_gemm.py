"""matmul_to_gemm: a MatMul with constant weights, and the addition of a constant bias after it, become a Gemm.

Exact in real numbers: the Gemm is the same sum of products. Where data and weights are quantized and the product is not, the bias joins the
sum before its one rounding, as in the source. Targets have a kernel for this (FULLY_CONNECTED), and mostly none for MatMul. Integer weights
after a Dequantize count as constants, and stay integers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Graph, Op, Shape, Tensor
from qconvert.operators.sizes import reshape_sizes
from qconvert.plugins import Change, PassResult, Target
from qconvert.rewriting import Pattern, Rewriter, dequantized_source, find_matches

_PRODUCT = Pattern("MatMul", name="product", attributes={"activation": ""})
_BIASED = Pattern("Add", _PRODUCT, "row", any_order=True, attributes={"arithmetic": ""})


def run(graph: Graph, target: Target | None) -> PassResult:
    """Change every MatMul of a matrix of constants; data of more dimensions are reshaped to rows, and the result back."""
    rewriting = _Rewriting(graph)
    for op in rewriting.of_kind("MatMul"):
        if rewriting.is_linear(op):
            rewriting.change(op)
    if not rewriting.replaced:
        return graph, ()
    note = f"{rewriting.replaced} MatMul with constant weights are Gemm, {rewriting.biases} of them with the bias added after them"
    return rewriting.finish(), (Change(note, exact=not rewriting.real),)


class _Rewriting(Rewriter):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._transposed: dict[str, str] = {}  # constant -> the same as outputs x inputs
        self._biased = {match.named["product"].name: match for match in find_matches(graph, _BIASED)}
        self._dequantized: dict[str, str] = {}  # weights after a Dequantize -> the same as outputs x inputs
        self.biases = 0
        self.real = False  # whether sums of real numbers are among them, which may be added in another order

    def change(self, op: Op) -> None:
        """Put a Gemm in the place of a MatMul."""
        addition, bias = self._bias(op)
        last = addition or op
        weights = self._weights_of(op)
        data, result = self.graph[op.inputs[0]], self.graph[last.name]
        self.real |= addition is not None or not (data.is_quantized and result.is_quantized)
        rows, (depth, count) = _rows(data), self._sizes(op)
        inputs = (self._as_rows(data, rows, depth), weights, *([bias] if bias else []))
        given = {"activation": str(last["activation"]), "arithmetic": str(op["arithmetic"])}
        attributes = {key: value for key, value in given.items() if value}
        if data.rank == 2:
            self.replace(op, op.derive("Gemm", inputs, last.outputs, **attributes))
            return
        flat = self.add(f"{result.name}/rows", result, shape=(rows, count))
        shape = self.constant(f"{result.name}/shape", reshape_sizes(result.shape or ()))
        reshape = op.derive("Reshape", (flat, shape), (result.name,))
        self.replace(op, op.derive("Gemm", inputs, (flat,), **attributes), reshape)

    def is_linear(self, op: Op) -> bool:
        """Return whether a Gemm can compute a MatMul."""
        if op["trans_a"]:
            return False
        data, weights = self.graph[op.inputs[0]], self.graph[self._constant(op.inputs[1])]
        q = weights.quantization
        along = data.per_tensor is data.quantization and (q is None or q.axis in (None, 0 if op["trans_b"] else 1))
        summed = all(tensor.is_quantized or "float" in tensor.dtype for tensor in (data, weights))  # a Gemm takes no plain integers
        is_matrix = weights.data is not None and weights.data.ndim == 2
        has_elements = 0 not in (data.shape or ())  # to a Reshape, 0 is the size that there was
        fits = summed and is_matrix and has_elements and data.rank is not None and data.rank >= 2
        symbols = [size for size in (self.graph[op.name].shape or ("?", "?")) if isinstance(size, str)]
        return fits and along and (q is None or not q.block_size) and (data.rank == 2 or len(symbols) <= 1)

    def _constant(self, name: str) -> str:
        """Return what a Dequantize before the weights reads, where there is one; else the weights."""
        source = dequantized_source(self.producers, name) if self.graph[name].dtype == "float32" else ""
        return source or name

    def _bias(self, op: Op) -> tuple[Op | None, str]:
        """Return the Add of a constant row after the MatMul, and that row as float values; (None, "") if there is none to take over."""
        match = self._biased.get(op.name)
        row = None if match is None or self.graph[op.name].is_quantized else self._row(match.tensors["row"], self._sizes(op)[1])
        if match is None or row is None:
            return None, ""
        addition, other = match.ops[-1], match.tensors["row"]
        self.remove(addition)
        self.biases += 1
        tensor = self.graph[other]
        return addition, other if not tensor.is_quantized and tensor.rank == 1 else self.constant(f"{other}/row", row)

    def _row(self, name: str, count: int) -> Array | None:
        """Return the float32 values of a constant that is one row of `count`; a quantized one as its float values, rounded once."""
        tensor = self.graph[name]
        if tensor.data is None or tensor.data.size != count or tensor.data.shape[-1:] != (count,):
            return None
        if tensor.quantization is not None:
            return tensor.float_values().astype(np.float32).reshape(count)
        return tensor.data.reshape(count) if tensor.dtype == "float32" else None

    def _weights_of(self, op: Op) -> str:
        """Return the weights as outputs x inputs."""
        name, is_turned = op.inputs[1], bool(op["trans_b"])
        if is_turned:
            return name
        stored = self._constant(name)
        turned = self._transpose_weights(stored, alone=stored == name and self.is_read_once(name))
        if stored == name:
            return turned
        if name not in self._dequantized:
            self._dequantized[name] = weights = self.dequantize(turned, f"{name}/OI", op.source)
            if self.is_read_once(stored) and self.is_read_once(name):
                self.relate(stored, turned, permutation=(1, 0))
                self.relate(name, weights, permutation=(1, 0))
        return self._dequantized[name]

    def _transpose_weights(self, name: str, *, alone: bool) -> str:
        """Return a constant of inputs x outputs as outputs x inputs, under its own name if it stands `alone`."""
        if name not in self._transposed:
            tensor = self.graph[name]
            assert tensor.data is not None
            q = None if tensor.quantization is None else tensor.quantization.transpose((1, 0))
            data = tensor.data.swapaxes(0, 1)
            wanted = name if alone else self.fresh(f"{name}/OI")
            turned = replace(tensor, name=wanted, shape=data.shape, data=data, quantization=q)
            self._transposed[name] = self.define(turned, permutation=(1, 0) if alone else ())
        return self._transposed[name]

    def _sizes(self, op: Op) -> tuple[int, int]:
        """Return how many products are added, and how many sums there are: the weights know it even where the data's shape does not."""
        inputs, outputs = (int(size) for size in self.graph[op.inputs[1]].shape or ())
        return (outputs, inputs) if op["trans_b"] else (inputs, outputs)

    def _as_rows(self, data: Tensor, rows: int | str, depth: int) -> str:
        if data.rank == 2:
            return data.name
        shape = self.constant(f"{data.name}/rows_shape", [-1, depth])
        return self.compute("Reshape", (data.name, shape), f"{data.name}/rows", replace(data, shape=(rows, depth)))


def _rows(data: Tensor) -> int | str:
    """Return how many rows the data have."""
    sizes: Shape = (data.shape or ())[:-1]
    symbols = [size for size in sizes if isinstance(size, str)]
    known = int(np.prod([size for size in sizes if isinstance(size, int)], dtype=np.int64))
    return known if not symbols else symbols[0] if len(symbols) == 1 and known == 1 else f"{data.name}_rows"
