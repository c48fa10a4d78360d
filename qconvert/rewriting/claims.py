"""A correspondence as a file carries it, and its verification in values.

The map in a file is a claim of whoever wrote the file. verify() runs the source and derives the inputs of each operator of the result
from the source's values by the claims. It compares the computed results with the claimed ones. So a false claim is
found at the operator that computes the tensor or that reads it, and differences do not add up through the network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.evaluate import evaluate, evaluate_op
from qconvert.graph import Array, Graph, Tensor, numpy_dtype
from qconvert.graph.correspondence import Correspondence, Relation

#: Of the document.
_SCHEMA = 1
#: What float32 values may differ by, as a share of the largest of the tensor: results are rounded to float32 in other orders.
_FLOAT = 2.0**-16


def write_claims(source: Graph, result: Graph) -> str:
    """Return the JSON document of the correspondence from a source to the result that passes made of it.

    {"schema": 1, "tensors": {name in the source: {"tensor": name in the result, "permutation": [...], "shift": n}}, "gone": [names]}: a
    tensor that neither names keeps its name. `gone` are names that the result has for other values.
    """
    tensors, gone = {}, []
    for name, item in result.correspondence.items():
        if name not in source:
            continue
        if item.tensor in result:
            entry: dict[str, object] = {"tensor": item.tensor}
            entry |= {"permutation": list(item.permutation)} if item.permutation else {}
            entry |= {"shift": item.shift} if item.shift is not None else {}
            tensors[name] = entry
        elif name in result:
            gone.append(name)
    return json.dumps({"schema": _SCHEMA, "tensors": tensors, "gone": gone})


class Refuted(NamedTuple):
    """A claim that values contradict.

    Attributes:
        source, result: the tensors.
        largest: the largest difference, in steps of a quantized result, as a share of the largest value of a float one; infinite where
            the shapes differ.
    """

    source: str
    result: str
    largest: float


def verify(source: Graph, result: Graph, claims: Correspondence, inputs: Mapping[str, Array], *, steps: float = 0.0) -> tuple[Refuted, ...]:
    """Return the claims that the values of a run contradict.

    Args:
        source, result: the graphs; both without states.
        claims: from the source's tensors to the result's.
        inputs: stored values of the source's inputs, by name.
        steps: by how many steps a quantized tensor may differ, as declared.

    Raises:
        UnsupportedError: an operator has no evaluation.
    """
    inner = tuple(dict.fromkeys(name for op in source.ops for name in op.outputs if name))
    run = evaluate(source.evolve(outputs=inner, signatures=()), inputs)
    before = {tensor.name: tensor.data for tensor in source.constants() if tensor.data is not None} | run | dict(inputs)
    expected: dict[str, list[tuple[str, Array]]] = {}  # several tensors of the source may be one of the result
    refuted = []
    for name, value in before.items():
        item = claims.get(name, Relation(name))
        if item.tensor not in result:
            continue
        tensor = result[item.tensor]
        found = _predict(item, np.asarray(value), source[name], tensor)
        if found is None:
            refuted.append(Refuted(name, tensor.name, np.inf))
        elif tensor.data is not None:
            refuted += _refute(name, tensor, found, tensor.data, steps)
        else:
            expected.setdefault(tensor.name, []).append((name, found))
    values: dict[str, Array] = {tensor.name: tensor.data for tensor in result.constants() if tensor.data is not None}
    for name in result.inputs:  # whose values the user gives, under the name that they had
        given = expected[name][0][1] if name in expected else None
        if given is None and name in before and name in source:
            given = _predict(Relation(name), np.asarray(before[name]), source[name], result[name])
        if given is None:
            return (*refuted, Refuted("", name, np.inf))
        values[name] = given
    for op in result.ops:
        computed = evaluate_op(result, op, [values[name] if name else None for name in op.inputs])
        for name, output in zip(filter(None, op.outputs), computed, strict=True):
            values[name] = np.asarray(output.stored)
            for old, wanted in expected.get(name, ()):
                refuted += _refute(old, result[name], wanted, values[name], steps)
            if name in expected and expected[name][0][1].shape == values[name].shape:
                values[name] = expected[name][0][1]
    return tuple(refuted)


def _predict(relation: Relation, value: Array, old: Tensor, new: Tensor) -> Array | None:
    """Return the stored values that a claim says a tensor of the result has; None if they do not fit it."""
    if relation.permutation:
        if value.ndim != len(relation.permutation):
            return None
        value = value.transpose(relation.permutation)
    shape = new.static_shape
    if shape is not None and shape != value.shape:
        if int(np.prod(shape)) != value.size:
            return None
        value = value.reshape(shape)
    was, now = old.quantization, new.quantization
    if relation.permutation and was is not None:
        was = was.transpose(relation.permutation)
    if (old.dtype, was) == (new.dtype, now):
        return value + relation.shift if relation.shift else value
    if relation.shift is not None:
        return (value.astype(np.int64) + relation.shift).astype(numpy_dtype(new.dtype))
    try:
        real = value.astype(np.float64) if was is None else dequantize(value, was)
    except ValueError:  # scales along an axis of another size
        return None
    return np.asarray(real.astype(numpy_dtype(new.dtype))) if now is None else quantize(real, now, new.dtype)


def _refute(old: str, tensor: Tensor, wanted: Array, value: Array, steps: float) -> list[Refuted]:
    is_float = tensor.quantization is None and "float" in tensor.dtype
    largest = _largest_difference(tensor, wanted, value, is_float)
    return [Refuted(old, tensor.name, largest)] if largest > (_FLOAT if is_float else steps) else []


def _largest_difference(tensor: Tensor, wanted: Array, value: Array, is_share: bool) -> float:
    """Return how far values of a tensor are off at most, in steps or as a share of the largest; infinity where they cannot be compared."""
    if wanted.shape != value.shape:
        return np.inf
    if np.array_equal(wanted, value, equal_nan=wanted.dtype.kind == "f"):
        return 0.0
    if wanted.dtype.kind not in "fiub" and "float" not in tensor.dtype:
        return np.inf
    a, b = wanted.astype(np.float64), value.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return np.inf
    largest = float(np.abs(a - b)[finite].max(initial=0))
    return largest / (float(np.abs(a[finite]).max(initial=0)) or 1.0) if is_share else largest
