"""The invariants of a canonical graph. validate() checks all of them and says what is wrong, where, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qconvert.errors import InvalidGraphError
from qconvert.graph import DTYPES, Graph, Op, Tensor, integer_range, numpy_dtype
from qconvert.ops import ACTIVATIONS, OPS, REQUIRED
from qconvert.shapes import compatible, output_shapes

__all__ = ["validate"]

_LAYOUTS = ("channels_first", "channels_last")
_BIAS_TOLERANCE = 1e-6


def validate(graph: Graph) -> None:
    """Raises InvalidGraphError at the first broken invariant of names, order, operators, tensors, quantization or shapes."""
    for checks in (_names(graph), _order(graph), _operators(graph), _tensors(graph), _quantization(graph), _shapes(graph)):
        for where, reason in checks:
            raise InvalidGraphError(reason, where=where)


Problems = Iterator[tuple[str, str]]


def _at(op: Op) -> str:
    return f"{op.source} {op}".strip()


def _names(graph: Graph) -> Problems:
    """Every name is defined, keys match names, and each tensor is written once."""
    for key, tensor in graph.tensors.items():
        if key != tensor.name:
            yield key, f"is filed under another name than its own, {tensor.name!r}"
    for name in (*graph.inputs, *graph.outputs):
        if name not in graph.tensors:
            yield repr(name), "is a graph input or output that does not exist"
    written: set[str] = {*graph.inputs}
    for op in graph.ops:
        for name in (*op.inputs, *op.outputs):
            if name and name not in graph.tensors:
                yield _at(op), f"names the tensor {name!r}, which does not exist"
        for name in op.outputs:
            if name in written or (name and graph[name].is_constant):
                yield _at(op), f"writes {name!r}, which is an input, a constant or another operator's output"
            written.add(name)


def _order(graph: Graph) -> Problems:
    """Operators come after what they read; a cycle is told apart from a wrong order."""
    ready = {*graph.inputs} | {tensor.name for tensor in graph.constants()}
    for op in graph.ops:
        missing = [name for name in op.inputs if name and name not in ready]
        if missing:
            problem = "is part of a cycle" if _reaches_itself(graph, op) else "comes before the operator that writes its input"
            yield _at(op), f"{problem}: {missing[0]!r} is not computed yet"
        ready.update(op.outputs)
    for name in graph.outputs:
        if name not in ready:
            yield repr(name), "is a graph output that no operator writes"


def _reaches_itself(graph: Graph, start: Op) -> bool:
    consumers = graph.consumers()
    pending, seen = [start], set()
    while pending:
        for name in pending.pop().outputs:
            for reader in consumers.get(name, []):
                if reader is start:
                    return True
                if id(reader) not in seen:
                    seen.add(id(reader))
                    pending.append(reader)
    return False


def _operators(graph: Graph) -> Problems:
    """Kinds exist, arity fits, attributes are the kind's own with values of the right sort."""
    for op in graph.ops:
        spec = OPS.get(op.kind)
        if spec is None:
            yield _at(op), "is of a kind that the operator set does not have"
            return
        for what, names, (fewest, most) in (("inputs", op.inputs, spec.inputs), ("outputs", op.outputs, spec.outputs)):
            if len(names) < fewest or (most >= 0 and len(names) > most):
                yield _at(op), f"has {len(names)} {what}, not {fewest if fewest == most else f'{fewest} to {most}'}"
        for name in op.attributes:
            if name not in spec.attributes:
                yield _at(op), f"has the attribute {name!r}, which its kind does not have"
        for name, default in spec.attributes.items():
            if default is REQUIRED and name not in op.attributes:
                yield _at(op), f"lacks the attribute {name!r}"
            elif default is not REQUIRED and not isinstance(op[name], type(default)) and not (isinstance(default, float) and isinstance(op[name], int)):
                yield _at(op), f"has {op[name]!r} as attribute {name!r}, not a {type(default).__name__}"
        if op.attributes.get("data_format", _LAYOUTS[0]) not in _LAYOUTS:
            yield _at(op), f"has the data_format {op['data_format']!r}"
        if op.attributes.get("activation", "") not in ACTIVATIONS:
            yield _at(op), f"has the activation {op['activation']!r}"


def _tensors(graph: Graph) -> Problems:
    """Types exist, sizes are not negative, constants have the shape and type that they claim."""
    for tensor in graph.tensors.values():
        if tensor.dtype not in DTYPES:
            yield repr(tensor.name), f"is of type {tensor.dtype!r}, which does not exist"
            return
        if any(isinstance(size, int) and size < 0 for size in tensor.shape or ()):
            yield repr(tensor.name), f"has a negative size in its shape {tensor.shape}"
        if tensor.data is not None and tensor.data.shape != tensor.shape:
            yield repr(tensor.name), f"has data of shape {tensor.data.shape}, not {tensor.shape}"
        if tensor.data is not None and tensor.data.dtype != numpy_dtype(tensor.dtype):
            yield repr(tensor.name), f"has data of type {tensor.data.dtype}, not {tensor.dtype}"


def _quantization(graph: Graph) -> Problems:
    for tensor in graph.tensors.values():
        yield from _tensor_quantization(tensor)
    for op in graph.ops:
        rule = OPS[op.kind].rule
        if rule == "move":
            yield from _moved(graph, op)
        elif rule == "convert":
            yield from _converted(graph, op)
        if op.kind in ("Conv", "ConvTranspose", "Gemm"):
            yield from _weights_and_bias(graph, op)


def _tensor_quantization(tensor: Tensor) -> Problems:
    """Scales are finite and positive, zero points fit the type, one of each for every index of the axis."""
    quantization, where = tensor.quantization, repr(tensor.name)
    if quantization is None:
        return
    if "int" not in tensor.dtype:
        yield where, f"is quantized although its type is {tensor.dtype}"
        return
    if not np.isfinite(quantization.scale).all() or (quantization.scale <= 0).any():
        yield where, "has a scale that is zero, negative or not finite"
    if quantization.zero_point.shape != quantization.scale.shape:
        yield where, f"has {quantization.scale.size} scales and {quantization.zero_point.size} zero points"
    low, high = integer_range(tensor.dtype)
    if (quantization.zero_point < low).any() or (quantization.zero_point > high).any():
        yield where, f"has a zero point outside {tensor.dtype}"
    axis = quantization.axis
    if axis is None:
        if quantization.scale.size != 1:
            yield where, f"has {quantization.scale.size} scales and no axis"
        return
    if tensor.shape is None or not 0 <= axis < len(tensor.shape):
        yield where, f"is quantized along axis {axis} of shape {tensor.shape}"
    elif not quantization.block_size and isinstance(tensor.shape[axis], int) and tensor.shape[axis] != quantization.scale.size:
        yield where, f"has {quantization.scale.size} scales along axis {axis} of shape {tensor.shape}"


def _moved(graph: Graph, op: Op) -> Problems:
    """Data movement keeps integers, so all its data sides share one quantization (an axis may move with them)."""
    count = OPS[op.kind].data
    inputs = op.inputs if count < 0 else op.inputs[:count]
    outputs = op.outputs[:1] if op.kind == "TopK" else op.outputs
    tensors = [graph[name] for name in (*inputs, *outputs) if name]
    first = tensors[0]
    for other in tensors[1:]:
        a, b = first.quantization, other.quantization
        per_tensor = (a is None or a.axis is None) and (b is None or b.axis is None)
        if (a is None) != (b is None) or (per_tensor and a != b):
            yield _at(op), f"moves integers between {first.name!r} and {other.name!r}, whose quantizations differ"


def _converted(graph: Graph, op: Op) -> Problems:
    data, result = graph[op.inputs[0]], graph[op.outputs[0]]
    wanted = {"Quantize": (False, True), "Dequantize": (True, False), "Requantize": (True, True)}[op.kind]
    for tensor, quantized in ((data, wanted[0]), (result, wanted[1])):
        if tensor.is_quantized != quantized:
            yield _at(op), f"needs {tensor.name!r} to be {'quantized' if quantized else 'real numbers'}"


def _weights_and_bias(graph: Graph, op: Op) -> Problems:
    """Weights are quantized along O, the bias is int32 (int64 beside int16 data) at input scale * weight scale."""
    data, weights = graph[op.inputs[0]], graph[op.inputs[1]]
    if weights.quantization is not None and weights.quantization.axis not in (None, 0):
        yield _at(op), f"has weights {weights.name!r} quantized along axis {weights.quantization.axis}, not 0"
    if len(op.inputs) < 3 or not op.inputs[2]:
        return
    bias = graph[op.inputs[2]]
    if bias.quantization is None or data.quantization is None or weights.quantization is None:
        return
    if bias.dtype not in ("int32", "int64") or bias.quantization.zero_point.any():
        yield _at(op), f"has a bias {bias.name!r} of type {bias.dtype}, or with a zero point"
    exact = data.quantization.scale * weights.quantization.scale
    if bias.quantization.scale.size not in (1, exact.size) or not np.allclose(bias.quantization.scale, exact, rtol=_BIAS_TOLERANCE, atol=0):
        yield _at(op), f"has a bias {bias.name!r} whose scale is not input scale times weight scale"


def _shapes(graph: Graph) -> Problems:
    tensors = dict(graph.tensors)
    for op in graph.ops:
        for name, shape in zip(op.outputs, output_shapes(tensors, op), strict=True):
            if not compatible(tensors[name].shape, shape):
                yield _at(op), f"gives {name!r} the shape {shape}, but the graph says {tensors[name].shape}"
