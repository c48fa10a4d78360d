"""Packing and unpacking of parameters that code does: a layer's `__setstate__` packs its weights, and its methods ask for them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.torch.packed import verified
from qconvert.formats.torch.stored import StoredTensor
from qconvert.formats.torch.values import Packed

__all__ = ["PACKING", "method_of_packed"]


def method_of_packed(packed: Packed, name: str, where: str) -> Any:
    """What a method of packed parameters gives: `unpack`, `stride`, `padding` …"""
    if name == "unpack":
        return packed.weight, packed.bias
    if name == "transpose":
        return packed.transposed
    if name in ("stride", "padding", "dilation", "output_padding"):
        return list(getattr(packed, name))
    if name == "groups":
        return packed.groups
    raise InvalidModelError(f"packed parameters have no method {name!r}", where=where)


def _numbers(value: Any, count: int) -> tuple[int, ...]:
    items = list(value) if isinstance(value, (list, tuple)) else [value] * count
    if not all(isinstance(item, int) for item in items):
        raise TypeError("sizes that are no whole numbers")
    return tuple(items)


def _convolution(place: str, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any) -> Packed:
    rank = len(weight.shape) - 2
    sizes = [_numbers(value, rank) for value in (stride, padding, dilation)]
    return Packed(place, weight, bias, sizes[0], sizes[1], sizes[2], (0,) * rank, int(groups))


def _transposed(place: str, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, dilation: Any, groups: Any) -> Packed:
    rank = len(weight.shape) - 2
    sizes = [_numbers(value, rank) for value in (stride, padding, dilation, output_padding)]
    return Packed(place, weight, bias, sizes[0], sizes[1], sizes[2], sizes[3], int(groups), True)


def _linear(place: str, weight: Any, bias: Any = None) -> Packed:
    return Packed(place, weight, bias)


def _embedding(place: str, weight: Any, *rest: Any) -> Packed:
    return Packed(place, weight, None)


def _packing(make: Callable[..., Packed]) -> Callable[..., Any]:
    """A function that packs, with its errors named."""

    def pack(place: str, where: str, *given: Any, **named: Any) -> Packed:
        try:
            found = make(place or "packed", *given, **named)
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidModelError(f"its code packs what cannot be packed: {error}", where=where) from error
        if not isinstance(found.weight, StoredTensor):
            raise InvalidModelError("its code packs weights that are no constant", where=where)
        return verified(found)

    return pack


def _unpacking(read: Callable[[Packed], Any]) -> Callable[..., Any]:
    def unpack(place: str, where: str, *given: Any, **named: Any) -> Any:
        values = [*given, *named.values()]
        if len(values) != 1 or not isinstance(values[0], Packed):
            raise InvalidModelError("its code unpacks what is not packed", where=where)
        return read(values[0])

    return unpack


def _both(packed: Packed) -> Any:
    return packed.weight, packed.bias


def _sizes(name: str) -> Callable[[Packed], Any]:
    return lambda packed: method_of_packed(packed, name, "")


#: Operator -> (place, where, its arguments) -> what it gives.
PACKING: Mapping[str, Callable[..., Any]] = {
    **{f"quantized::{name}_prepack": _packing(_convolution) for name in ("conv", "conv1d", "conv2d", "conv3d")},
    **{f"quantized::conv_transpose{rank}d_prepack": _packing(_transposed) for rank in (1, 2, 3)},
    "quantized::linear_prepack": _packing(_linear),
    "quantized::embedding_bag_prepack": _packing(_embedding),
    **{
        f"quantized::{name}_unpack": _unpacking(_both)
        for name in ("conv", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear")
    },
    "quantized::embedding_bag_unpack": _unpacking(lambda packed: packed.weight),
    **{
        f"quantized::{layer}_{name}": _unpacking(_sizes(name))
        for layer in ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")
        for name in ("stride", "padding", "output_padding", "dilation", "groups", "transpose")
    },
}  # fmt: skip
