"""Products of matrices as Gemms, and Gemms as convolutions.

matmul_to_gemm: a MatMul with constant weights, and the addition of a constant bias after it, become a Gemm.

Exact in real numbers: the Gemm is the same sum of products. Where data and weights are quantized and the product is not, the bias joins the
sum before its one rounding, as in the source. Targets have a kernel for this (FULLY_CONNECTED), and mostly none for MatMul. Integer weights
after a Dequantize count as constants, and stay integers.

gemm_to_conv: a Gemm of quantized rows becomes a convolution over one position, between two Reshapes. Exact: the same sums of products.

For runtimes whose integer kernels are those of convolutions alone. Gemms whose bias is no row, or whose weights are no constants, stay.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Attribute, Graph, Op, Quantization, Shape, Tensor
from qconvert.operators import is_dynamic
from qconvert.operators.sizes import reshape_sizes
from qconvert.plugins import Change, PassResult, Target
from qconvert.rewriting import Pattern, Rewriter, dequantized_source, find_matches

_PRODUCT = Pattern("MatMul", name="product", attributes={"activation": ""})
_BIASED = Pattern("Add", _PRODUCT, "row", any_order=True, attributes={"arithmetic": ""})


def matmul_to_gemm(graph: Graph, target: Target | None) -> PassResult:
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


def gemm_to_conv(graph: Graph, target: Target | None) -> PassResult:
    """Change every Gemm with quantized data and constant weights; what else reads these reads them as before."""
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("Gemm"):
        bias = _find_bias_row(graph, op)
        if bias is not None:
            _replace_gemm(rewriter, op, bias)
    return rewriter.finish_with("{} Gemm are 1x1 convolutions".format)


def _replace_gemm(rewriter: Rewriter, op: Op, bias: Tensor) -> None:
    """Put a Conv between two Reshapes in the place of a Gemm, whose bias is a row."""
    data, weights, result = (rewriter.graph[name] for name in (*op.inputs[:2], op.name))
    assert weights.data is not None
    outputs, inputs = weights.data.shape
    kernel = replace(weights, shape=(outputs, inputs, 1, 1), data=weights.data.reshape(outputs, inputs, 1, 1))
    rows = (data.shape or ("?",))[0]
    sizes = rewriter.constant(f"{data.name}/sizes", [-1, inputs, 1, 1])
    wide = replace(data, shape=(rows, inputs, 1, 1))
    spread = rewriter.compute("Reshape", (data.name, sizes), f"{data.name}/position", wide, op.source)
    found = rewriter.add(f"{result.name}/position", result, shape=(rows, outputs, 1, 1))
    operands = (spread, _constant(rewriter, kernel), *([_constant(rewriter, bias)] if bias.name else []))
    attributes: dict[str, Attribute] = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "group": 1}
    attributes |= {"data_format": "channels_first", **{name: op.attributes[name] for name in ("activation",) if name in op.attributes}}
    rewriter.replace(
        op,
        op.derive("Conv", operands, (found,), **attributes),
        op.derive("Reshape", (found, rewriter.constant(f"{result.name}/sizes", [-1, outputs])), op.outputs),
    )


def _find_bias_row(graph: Graph, op: Op) -> Tensor | None:
    """Return the bias of a Gemm that is changed, as a row; a tensor without a name if it has none; None where the Gemm stays."""
    if is_dynamic(op):
        return None
    data, weights, result = (graph[name] for name in (*op.inputs[:2], op.name))
    if weights.data is None or weights.quantization is None or data.quantization is None or data.rank != 2 or result.rank != 2:
        return None
    if weights.quantization.block_size or weights.quantization.axis not in (None, 0):
        return None
    if not op.has(2):
        return Tensor("", "int32", ())
    bias, count = graph[op.inputs[2]], len(weights.data)
    if bias.data is None or bias.data.size not in (1, count) or bias.data.shape[-1:] not in ((count,), (1,), ()):
        return None
    row = np.broadcast_to(bias.data.reshape(-1), (count,))
    q = bias.quantization
    if q is not None and q.axis is not None:
        if q.scale.size not in (1, count):
            return None
        repeated = [np.broadcast_to(values.reshape(-1), (count,)) for values in (q.scale, q.zero_point)]
        q = Quantization(repeated[0], repeated[1], 0)
    return replace(bias, shape=(count,), data=row, quantization=q)


def _constant(rewriter: Rewriter, tensor: Tensor) -> str:
    """Return the name of a constant in its new shape: its own where nothing else reads it."""
    old = rewriter.graph[tensor.name]
    if old.shape == tensor.shape and old.quantization == tensor.quantization:
        return tensor.name
    if not rewriter.is_read_once(tensor.name):
        return rewriter.add(f"{tensor.name}/position", tensor, data=tensor.data)
    if old.data is None or tensor.data is None or old.data.size != tensor.data.size:
        rewriter.forget((tensor.name,))
    return rewriter.define(tensor)
