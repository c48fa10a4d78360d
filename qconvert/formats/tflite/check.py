"""Checks a .tflite file that was just written: what its tables say of each other. The FlatBuffer itself is verify.py's.

No shape is inferred and no constant is looked at, so that it takes a small part of the time of writing.
"""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.files import map_file
from qconvert.formats.tflite.schema import BUILTIN_OPERATOR_NAMES, root
from qconvert.formats.tflite.tensors import PACKED_BITS, RESOURCE, dtype_of
from qconvert.formats.tflite.verify import verify
from qconvert.graph import numpy_dtype

__all__ = ["check"]


def check(path: Path) -> mmap.mmap:
    """Checks the file at `path`; returns it, mapped.

    Raises:
        InvalidModelError: indices, names, order, operator codes, or shapes and buffers contradict each other; it names the place.
    """
    data = map_file(path)
    verify(data)
    model = root(data)
    if not model.subgraphs:
        raise InvalidModelError("it holds no subgraph", rule="no-subgraph")
    buffers = list(model.buffers or ())
    for subgraph in model.subgraphs:
        _tensors(subgraph, buffers)
        _operators(subgraph, list(model.operatorCodes or ()))
    for signature in model.signatureDefs or ():
        for entry in (*(signature.inputs or ()), *(signature.outputs or ())):
            if not 0 <= entry.tensorIndex < len(model.subgraphs[signature.subgraphIndex].tensors):
                raise InvalidModelError(
                    f"maps {_text(entry.name)!r} to tensor {entry.tensorIndex}", where=_text(signature.signatureKey), rule="unknown-tensor"
                )
    return data


def _text(name: bytes | None) -> str:
    return (name or b"").decode("utf-8", "replace")


def _tensors(subgraph: Any, buffers: list[Any]) -> None:
    """Names are there and distinct; a buffer holds just the values of the shape; each index has its scale."""
    sizes = [0 if buffer.data is None else buffer.data.size for buffer in buffers]
    names: set[str] = set()
    for tensor in subgraph.tensors:
        name = _text(tensor.name)
        where = f"tensor {name!r}"
        if not name or name in names:
            raise InvalidModelError(
                "has the same name as another tensor" if name else "a tensor has no name",
                where=where,
                rule="duplicate-name" if name else "no-name",
            )
        names.add(name)
        shape = [] if tensor.shape is None else tensor.shape.tolist()
        if tensor.buffer >= len(sizes):
            raise InvalidModelError(f"names buffer {tensor.buffer} of {len(sizes)}", where=where, rule="unknown-buffer")
        stored, dtype = sizes[tensor.buffer], dtype_of(tensor)
        if dtype == RESOURCE:
            continue
        count = math.prod(shape)
        needed = -(-count * PACKED_BITS[dtype] // 8) if dtype in PACKED_BITS else count * numpy_dtype(dtype).itemsize
        if stored and dtype != "string" and stored != needed:
            raise InvalidModelError(
                f"of shape {shape} needs {needed} bytes, but its buffer has {stored}", where=where, rule="buffer-too-short"
            )
        quantization = tensor.quantization
        scales = 0 if quantization is None or quantization.scale is None else quantization.scale.size
        axis = 0 if quantization is None else quantization.quantizedDimension
        if scales > 1 and not (axis < len(shape) and shape[axis] == scales):
            raise InvalidModelError(f"of shape {shape} has {scales} scales along axis {axis}", where=where, rule="counts-differ")


def _operators(subgraph: Any, codes: list[Any]) -> None:
    """Operators have known codes, stand after what they read, and each tensor has one origin."""
    count = len(subgraph.tensors)
    inputs, outputs = (_indices(vector, count, "the subgraph") for vector in (subgraph.inputs, subgraph.outputs))
    constants = {index for index, tensor in enumerate(subgraph.tensors) if tensor.buffer or tensor.isVariable}
    produced = set(inputs)
    if len(produced) != len(inputs):
        raise InvalidModelError("a tensor is a graph input twice", rule="duplicate-input")
    written = {index for operator in subgraph.operators or () for index in _indices(operator.outputs, count, "an operator")} - constants
    for number, operator in enumerate(subgraph.operators or ()):
        if operator.opcodeIndex >= len(codes):
            raise InvalidModelError(
                f"names operator code {operator.opcodeIndex} of {len(codes)}", where=f"operator #{number}", rule="unknown-operator-code"
            )
        code = codes[operator.opcodeIndex]
        builtin = max(code.builtinCode, code.deprecatedBuiltinCode)
        if not 0 <= builtin < len(BUILTIN_OPERATOR_NAMES) or code.version < 1:
            raise InvalidModelError(
                f"is operator code {builtin} in version {code.version}", where=f"operator #{number}", rule="wrong-operator-version"
            )
        where = f"{BUILTIN_OPERATOR_NAMES[builtin]} #{number}"
        for index in _indices(operator.inputs, count, where):
            if index in written and index not in produced:
                raise InvalidModelError(
                    f"reads {_text(subgraph.tensors[index].name)!r} before it is written", where=where, rule="not-computed"
                )
        for index in _indices(operator.outputs, count, where):
            if index < 0 or index in produced or (index in constants and not subgraph.tensors[index].isVariable):
                name = _text(subgraph.tensors[index].name) if index >= 0 else "nothing"
                raise InvalidModelError(
                    f"writes {name!r}, which has another producer or is not a tensor", where=where, rule="two-producers"
                )
            produced.add(index)
    for index in outputs:
        if index not in produced and index not in constants:
            raise InvalidModelError(f"gives out {_text(subgraph.tensors[index].name)!r}, which nothing writes", rule="not-computed")


def _indices(vector: Any, count: int, where: str) -> list[int]:
    found = [] if vector is None else [int(index) for index in vector.tolist()]
    for index in found:
        if not -1 <= index < count:
            raise InvalidModelError(f"names tensor {index} of {count}", where=where, rule="unknown-tensor")
    return found
