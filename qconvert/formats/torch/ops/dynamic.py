"""Scales that are computed of the data at run time: decomposed, part by part, as PyTorch computes them in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.formats.torch.quantizing import cast_to_float32, stated_limits
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS"]

_SMALLEST = float(np.finfo(np.float32).smallest_normal)


class _Parts:
    """Real numbers on the way to a scale, under one name each."""

    def __init__(self, c: Call) -> None:
        self._c = c

    def number(self, value: float) -> str:
        return self._c.const(np.float32(value), "number")

    def emit(self, kind: str, *names: str, hint: str = "part") -> str:
        return self._c.emit(kind, list(names), dtype="float32", quantization=None, hint=hint).name

    def ends(self, axes: Sequence[int], keepdims: bool, *, with_zero: bool = True) -> tuple[str, str]:
        """The smallest and the largest element along axes, 0 among them."""
        c = self._c
        data = cast_to_float32(c, c.name("input"))
        found = []
        for kind, other in (("ReduceMin", "Min"), ("ReduceMax", "Max")):
            end = c.emit(kind, [data, c.list64(axes, "axes")], quantization=None, hint=other.lower(), keepdims=int(keepdims)).name
            found.append(self.emit(other, end, self.number(0), hint=f"{other.lower()}_zero") if with_zero else end)
        return found[0], found[1]

    def at_least(self, value: str, lowest: float) -> str:
        return self.emit("Max", value, self.number(lowest), hint="scale")

    def zero_point(self, low_end: str, scale: str, limits: tuple[int, int]) -> str:
        """low - rint(min / scale), within the limits."""
        steps = self.emit("Round", self.emit("Div", low_end, scale))
        point = self.emit("Sub", self.number(limits[0]), steps)
        return self.emit("Clip", point, self.number(limits[0]), self.number(limits[1]), hint="zero_point")


def read_choose(c: Call) -> tuple[Ref, Ref]:
    """quantized_decomposed::choose_qparams(x, quant_min, quant_max, eps, dtype): one scale and zero point, each of shape (1,)."""
    parts, limits = _Parts(c), (c.integer("quant_min"), c.integer("quant_max"))
    low, high = parts.ends(range(c.rank("input")), False)
    scale = parts.emit("Div", parts.emit("Sub", high, low), parts.number(limits[1] - limits[0]))
    scale = parts.at_least(scale, c.number("eps"))
    point = parts.zero_point(low, scale, limits)
    return _unsqueeze_scalar(c, scale), _unsqueeze_scalar(c, point)


def read_choose_symmetric(c: Call) -> tuple[Ref, Ref]:
    """quantized_decomposed::choose_qparams_symmetric: the zero point is 0, or 128 of uint8."""
    parts, limits = _Parts(c), (c.integer("quant_min"), c.integer("quant_max"))
    low, high = parts.ends(range(c.rank("input")), False)
    largest = parts.emit("Max", parts.emit("Neg", low), high)
    scale = parts.at_least(parts.emit("Div", largest, parts.number((limits[1] - limits[0]) / 2)), c.number("eps"))
    return _unsqueeze_scalar(c, scale), Ref(c.const(np.array([128 if c.dtype("dtype") == "uint8" else 0], np.float32), "zero_point"))


def _unsqueeze_scalar(c: Call, name: str) -> Ref:
    return c.emit("Unsqueeze", [name, c.list64([0], "axes")], quantization=None, hint="listed")


def read_choose_rows(c: Call) -> tuple[Ref, Ref]:
    """quantized_decomposed::choose_qparams_per_token: the largest of each row, symmetric."""
    parts, axis = _Parts(c), [c.rank("input") - 1]
    low, high = parts.ends(axis, True, with_zero=False)
    largest = parts.emit("Max", parts.emit("Neg", low), high)
    scale = parts.emit("Div", parts.at_least(largest, 1e-5), parts.number(c.range_of(c.dtype("dtype") or "int8")[1]))
    return Ref(scale), Ref(parts.emit("Mul", scale, parts.number(0), hint="zero_point"))


def read_choose_rows_affine(c: Call) -> tuple[Ref, Ref]:
    """quantized_decomposed::choose_qparams_per_token_asymmetric: the zero point with the smaller error at the two range limits; int8."""
    parts, axis = _Parts(c), [c.rank("input") - 1]
    limits = (-128, 127)
    low, high = parts.ends(axis, True)
    scale = parts.emit("Div", parts.emit("Sub", high, low), parts.number(255))
    scale = parts.at_least(scale, float(np.finfo(np.float32).eps))
    first, last = (parts.emit("Div", end, scale) for end in (low, high))
    errors = parts.emit("Add", parts.emit("Add", parts.number(limits[0]), first), parts.emit("Add", parts.number(limits[1]), last))
    condition = c.emit("Greater", [errors, parts.number(0)], dtype="bool", quantization=None, hint="nearer").name
    chosen = parts.emit(
        "Where", condition, parts.emit("Sub", parts.number(limits[0]), first), parts.emit("Sub", parts.number(limits[1]), last)
    )
    point = parts.emit("Round", parts.emit("Clip", chosen, *map(parts.number, limits)), hint="zero_point")
    return Ref(scale), Ref(point)


def read_choose_affine(c: Call) -> tuple[Ref, Ref]:
    """torchao::choose_qparams_affine(x, mapping_type, block_size, target_dtype, quant_min, quant_max, eps, …)."""
    shape, blocks = c.operand("input").shape, c.integers("block_size")
    if shape is None or len(shape) != len(blocks) or any(block not in (1, size) for size, block in zip(shape, blocks, strict=True)):
        raise c.unsupported_error(f"blocks of shape {blocks} in a tensor of shape {shape}", rule="form-not-covered")
    parts, limits = _Parts(c), stated_limits(c, c.dtype("target_dtype") or "int8")
    axes = [axis for axis, block in enumerate(blocks) if block != 1]
    low, high = parts.ends(axes, bool(c["keepdim"])) if axes else _element_range(c, parts)
    eps = _SMALLEST if c["eps"] is None else c.number("eps")
    mapping = c["mapping_type"]
    if mapping == "ASYMMETRIC":
        scale = parts.at_least(parts.emit("Div", parts.emit("Sub", high, low), parts.number(limits[1] - limits[0])), eps)
        return Ref(scale), Ref(parts.zero_point(low, scale, limits))
    if mapping == "SYMMETRIC":
        scale = parts.emit("Div", parts.emit("Max", parts.emit("Neg", low), high), parts.number((limits[1] - limits[0]) / 2))
    elif mapping == "SYMMETRIC_NO_CLIPPING_ERR":
        scale = parts.emit("Max", parts.emit("Div", low, parts.number(limits[0])), parts.emit("Div", high, parts.number(limits[1])))
    else:
        raise c.unsupported_error(f"the mapping {mapping}", rule="form-not-covered")
    scale = parts.at_least(scale, eps)
    return Ref(scale), Ref(c.const(np.float32((limits[0] + limits[1] + 1) // 2), "zero_point"))


def _element_range(c: Call, parts: _Parts) -> tuple[str, str]:
    data, zero = c.name("input"), parts.number(0)
    return parts.emit("Min", data, zero), parts.emit("Max", data, zero)


_LIMITS = "i quant_min, i quant_max, f eps, i dtype"

OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "quantized_decomposed::choose_qparams": Operator(f"T input, {_LIMITS}", read_choose),
    "quantized_decomposed::choose_qparams_symmetric": Operator(f"T input, {_LIMITS}", read_choose_symmetric),
    "quantized_decomposed::choose_qparams_per_token": Operator("T input, i dtype", read_choose_rows),
    "quantized_decomposed::choose_qparams_per_token_asymmetric": Operator("T input, i dtype", read_choose_rows_affine),
    "quantized_decomposed::_choose_qparams_per_token_asymmetric_impl": Operator("T input, i dtype", read_choose_rows_affine),
    "torchao::choose_qparams_affine": Operator(
        "T input, s mapping_type, l block_size, i target_dtype, f? quant_min=None, f? quant_max=None, f? eps=None, i? scale_dtype=None, "
        "i? zero_point_dtype=None, b keepdim=False",
        read_choose_affine,
    ),
}
