"""Additions of 8-bit tensors as kernels round them, by the names of the attribute `arithmetic`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array, integer_range
from qconvert.arithmetic.kernels import has_xnnpack_add, xnnpack_add, xnnpack_add_multipliers
from qconvert.arithmetic.quantization import Quantization
from qconvert.arithmetic.torch_kernels import fbgemm_add, has_qnnpack_add, qnnpack_add, qnnpack_add_multipliers

__all__ = ["ADDITIONS", "INTEGER_FACTORS", "Addition", "Quantizations", "has_addition", "is_same_addition"]

Quantizations = tuple[Quantization, Quantization]
#: (stored values, stored values, quantizations, quantization of the result, type) -> stored results.
Addition = Callable[[Any, Any, Quantizations, Quantization, str], Array]

ADDITIONS: Mapping[str, Addition] = {
    "xnnpack": xnnpack_add,
    "qnnpack": qnnpack_add,
    "fbgemm": fbgemm_add,
}

#: Multipliers of both inputs and the right shift, of those that compute in integers.
INTEGER_FACTORS: Mapping[str, Callable[[Quantizations, Quantization], tuple[tuple[int, int], int]]] = {
    "xnnpack": xnnpack_add_multipliers,
    "qnnpack": qnnpack_add_multipliers,
}

_TAKEN: Mapping[str, Callable[[Quantizations, Quantization], bool]] = {"xnnpack": has_xnnpack_add, "qnnpack": has_qnnpack_add}


def has_addition(name: str, inputs: Quantizations, output: Quantization) -> bool:
    """Whether a kernel has an addition of 8-bit data with these quantizations, each of one scale.

    Args:
        name: the `arithmetic` of an Add, which may be that of no such kernel.
        inputs, output: the quantizations.
    """
    return (
        name in ADDITIONS
        and all(quantization.is_per_tensor for quantization in (*inputs, output))
        and _TAKEN.get(name, _always)(inputs, output)
    )


def _always(inputs: Quantizations, output: Quantization) -> bool:
    return True


def is_same_addition(name: str, own: Addition, inputs: Quantizations, output: Quantization, dtype: str) -> bool:
    """Whether an addition of 8-bit data gives the integers of the kernel `name` for all 65,536 pairs of inputs.

    Args:
        name: of ADDITIONS; the kernel takes these quantizations (adds_as()).
        own: the addition, tried in unsigned storage.
        inputs, output: the quantizations.
        dtype: the type of all three.
    """
    offset = -integer_range(dtype)[0]
    codes = np.arange(256, dtype=np.int64)
    quantizations, result = (inputs[0].shift_zero_point(offset), inputs[1].shift_zero_point(offset)), output.shift_zero_point(offset)
    found = [kernel(codes[:, None], codes[None, :], quantizations, result, "uint8") for kernel in (own, ADDITIONS[name])]
    return bool(np.array_equal(found[0], found[1]))
