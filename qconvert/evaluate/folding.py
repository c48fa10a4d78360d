"""What an operator on constants gives, where every runtime must give the same bits.

Those are data movement, integers, comparisons, casts that lose no range, and the float operations that IEEE 754 rounds correctly.
Sums and transcendental functions are left alone: their last bit is the kernel's own. Sizes are worked out before anything is
computed, so a model cannot make a fold larger than LARGEST.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from qconvert.errors import QConvertError
from qconvert.graph import Array, Op, Shape, Tensor, canonical_dtype, numpy_dtype
from qconvert.operators import Call, find_kind, kind_of
from qconvert.operators.shapes_and_functions import output_shapes
from qconvert.operators.sizes import MAX_RANK

#: Bytes of a result; results above SMALL are folded only up to GROWTH times the size of what they are made of.
LARGEST = 64 * 2**20
SMALL = 2**16
GROWTH = 16


def evaluate_constant(op: Op, tensors: Mapping[str, Tensor], values: Sequence[Array | None]) -> list[Array] | None:
    """The outputs of an operator whose inputs are all known, one array an output; None if it cannot be folded.

    Safe for models from anywhere: what does not fit together gives None, and no array above LARGEST is made.

    Args:
        op: the operator.
        tensors: types and quantizations of inputs and outputs, by name; missing ones are taken to be plain numbers. A Quantize
            needs that of its output. Data in them are ignored.
        values: the stored values of the inputs, in order; None for one that is absent, or that a Shape need not know.

    Sources: ONNX QuantizeLinear and DequantizeLinear (opset 21) with float32 arithmetic; IEEE 754 for the rest.
    """
    kind = find_kind(op)
    if kind is None:
        return None
    if kind.lists_sizes:
        return _shape(op, tensors, values)
    if kind.fold is None or [bool(name) for name in op.inputs] != [value is not None for value in values]:
        return None
    given = {
        name: _make_constant(name, value, tensors.get(name)) for name, value in zip(op.inputs, values, strict=True) if value is not None
    }
    if not given:
        return None
    try:
        shapes = output_shapes(given, op)
        dtypes = [str(op.attributes.get("to") or (tensors.get(name) or _data(op, given)).dtype) for name in op.outputs]
        if not is_affordable(shapes, dtypes, [tensor.data for tensor in given.values()]):
            return None
        inputs = tuple(given[name] if name else None for name in op.inputs)
        results = tuple(tensors.get(name) or Tensor(name, _data(op, given).dtype, None) for name in op.outputs if name)
        with np.errstate(all="ignore"):
            found = kind.fold(Call(op, tuple(values), inputs, results))
    except (QConvertError, ArithmeticError, AssertionError, IndexError, KeyError, MemoryError, TypeError, ValueError):
        return None
    if found is None:
        return None
    arrays = [np.asarray(item) for item in (found if isinstance(found, list) else [found])]
    if [array.shape for array in arrays] != [tuple(shape or ()) for shape in shapes]:
        return None
    wanted = [
        tensors[name].dtype if name in tensors else canonical_dtype(array.dtype) for name, array in zip(op.outputs, arrays, strict=True)
    ]
    return arrays if [canonical_dtype(array.dtype) for array in arrays] == wanted else None


def _make_constant(name: str, value: Array, tensor: Tensor | None) -> Tensor:
    """The input as a constant of the type and shape that its value really has."""
    return Tensor(name, canonical_dtype(value.dtype), value.shape, value, tensor.quantization if tensor else None)


def _data(op: Op, given: Mapping[str, Tensor]) -> Tensor:
    """The input whose type the outputs have where nothing else says it."""
    return given[kind_of(op).data(op)[0]]


def _shape(op: Op, tensors: Mapping[str, Tensor], values: Sequence[Array | None]) -> list[Array] | None:
    tensor = tensors.get(op.inputs[0])
    known = values[0].shape if values and values[0] is not None else tensor.static_shape if tensor else None
    result = tensors.get(op.outputs[0])
    dtype = result.dtype if result else "int64"
    return None if known is None or dtype not in ("int32", "int64") else [np.array(known, dtype)]


def is_affordable(shapes: Sequence[Shape | None], dtypes: Sequence[str], inputs: Iterable[Array | None], growth: int = GROWTH) -> bool:
    """Whether all results are small enough, and small enough next to the inputs."""
    limit = min(LARGEST, max(SMALL, growth * sum(data.nbytes for data in inputs if data is not None)))
    total = 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        if shape is None or len(shape) > MAX_RANK or any(isinstance(size, str) or size < 0 for size in shape):
            return False
        total += math.prod(int(size) for size in shape) * numpy_dtype(dtype).itemsize
    return total <= limit
