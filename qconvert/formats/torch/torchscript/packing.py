"""Packing and unpacking of parameters that code does: a layer's `__setstate__` packs its weights, and its methods ask for them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.torch.packed_parameters import cell_of, verify_packed
from qconvert.formats.torch.stored_values import StoredTensor
from qconvert.formats.torch.values import Packed, PackedCell

__all__ = ["PACKING", "method_of_packed"]


def method_of_packed(packed: Packed, name: str, where: str) -> Any:
    """Return a method of packed parameters: `unpack`, `stride`, `padding` …"""
    if name == "unpack":
        return packed.weight, packed.bias
    if name == "transpose":
        return packed.transposed
    if name in ("stride", "padding", "dilation", "output_padding"):
        return list(getattr(packed, name))
    if name == "groups":
        return packed.groups
    raise InvalidModelError(f"packed parameters have no method {name!r}", where=where, rule="unknown-name")


def _numbers(value: Any, count: int) -> tuple[int, ...]:
    items = list(value) if isinstance(value, (list, tuple)) else [value] * count
    if not all(isinstance(item, int) for item in items):
        raise TypeError("sizes that are no whole numbers")
    return tuple(items)


def _convolution(place: str, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any) -> Packed:
    rank = len(weight.shape) - 2
    sizes = [_numbers(value, rank) for value in (stride, padding, dilation)]
    return Packed(place, weight, bias, sizes[0], sizes[1], sizes[2], (0,) * rank, int(groups))


def _conv_transpose(
    place: str, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, dilation: Any, groups: Any
) -> Packed:
    rank = len(weight.shape) - 2
    sizes = [_numbers(value, rank) for value in (stride, padding, dilation, output_padding)]
    return Packed(place, weight, bias, sizes[0], sizes[1], sizes[2], sizes[3], int(groups), True)


def _linear(place: str, weight: Any, bias: Any = None) -> Packed:
    return Packed(place, weight, bias)


def _half_linear(place: str, weight: Any, bias: Any = None) -> Packed:
    if isinstance(weight, StoredTensor) and weight.dtype != "float32":
        raise TypeError(f"weights of {weight.dtype} in float16")
    return Packed(place, weight, bias)


def _dynamic_cell(place: str, w_ih: Any, w_hh: Any, bias_ih: Any, bias_hh: Any, reduce_range: Any = False) -> PackedCell:
    return cell_of(w_ih, w_hh, reduces=bool(reduce_range))  # its kernels take the biases that are packed with the weights


def _half_cell(place: str, w_ih: Any, w_hh: Any) -> PackedCell:
    return cell_of(w_ih, w_hh, reduces=False)


def _embedding(place: str, weight: Any, *rest: Any) -> Packed:
    return Packed(place, weight, None)


def _packing(make: Callable[..., Packed | PackedCell]) -> Callable[..., Any]:
    """A function that packs, with its errors named."""

    def pack(place: str, where: str, *given: Any, **named: Any) -> Packed | PackedCell:
        try:
            found = make(place or "packed", *given, **named)
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidModelError(
                f"the code packs something that cannot be packed: {error}", where=where, rule="malformed-packed"
            ) from error
        if isinstance(found, PackedCell):
            return found
        if not isinstance(found.weight, StoredTensor):
            raise InvalidModelError("the code packs weights that are not constant", where=where, rule="weights-not-constant")
        return verify_packed(found)

    return pack


def _unpacking(read: Callable[[Packed], Any]) -> Callable[..., Any]:
    def unpack(place: str, where: str, *given: Any, **named: Any) -> Any:
        values = [*given, *named.values()]
        if len(values) != 1 or not isinstance(values[0], Packed):
            raise InvalidModelError("the code unpacks something that is not packed", where=where, rule="malformed-packed")
        return read(values[0])

    return unpack


def _weight_and_bias(packed: Packed) -> Any:
    return packed.weight, packed.bias


def _sizes(name: str) -> Callable[[Packed], Any]:
    return lambda packed: method_of_packed(packed, name, "")


#: Operator -> (place, where, its arguments) -> what it gives.
PACKING: dict[str, Callable[..., Any]] = {
    **{f"quantized::{name}_prepack": _packing(_convolution) for name in ("conv", "conv1d", "conv2d", "conv3d")},
    **{f"quantized::conv_transpose{rank}d_prepack": _packing(_conv_transpose) for rank in (1, 2, 3)},
    "quantized::linear_prepack": _packing(_linear),
    "quantized::linear_prepack_fp16": _packing(_half_linear),
    "quantized::make_quantized_cell_params_dynamic": _packing(_dynamic_cell),
    "quantized::make_quantized_cell_params_fp16": _packing(_half_cell),
    "quantized::embedding_bag_prepack": _packing(_embedding),
    **{
        f"quantized::{name}_unpack": _unpacking(_weight_and_bias)
        for name in ("conv", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear")
    },
    "quantized::linear_unpack_fp16": _unpacking(_weight_and_bias),
    "quantized::embedding_bag_unpack": _unpacking(lambda packed: packed.weight),
    **{
        f"quantized::{layer}_{name}": _unpacking(_sizes(name))
        for layer in ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")
        for name in ("stride", "padding", "output_padding", "dilation", "groups", "transpose")
    },
}  # fmt: skip
PACKING |= {f"_{name}": PACKING[name] for name in PACKING if name.endswith(("_prepack", "_prepack_fp16"))}
