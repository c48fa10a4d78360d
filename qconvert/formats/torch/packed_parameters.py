"""Packed parameters of quantized layers, as TorchScript's files keep them and as its code packs and unpacks them.

There are three versions of convolutions, linear layers, embeddings, and cells of recurrent layers. Of a convolution, PyTorch takes the
parts by index and ignores further ones; the others have a fixed number. In code, a layer's `__setstate__` packs its weights, and its
methods ask for them again. Sources: aten/src/ATen/native/quantized/cpu/fbgemm_utils.cpp, conv_serialization.h (parse_conv_serialized_state,
serialize_conv), and aten/src/ATen/native/RNN.cpp (CellParamsSerializationType, cell_params_deserializers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import REALS
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.stored_values import ScriptObject, StoredTensor
from qconvert.formats.torch.values import Packed, PackedCell
from qconvert.graph import Array

_LARGEST = 2**20
_CELL = ".classes.rnn.CellParamsBase"


def is_packed(value: Any) -> bool:
    """Whether an object is one of PyTorch's packed-parameters classes."""
    return isinstance(value, ScriptObject) and (".classes.quantized." in value.class_name or value.class_name.endswith(_CELL))


def unpack_parameters(value: ScriptObject, name: str) -> Packed | PackedCell:
    """The weights, bias and sizes that a packed-parameters object holds.

    Args:
        value: the object.
        name: its place in the model.

    Raises:
        InvalidModelError: its state is not of the form that its class writes.
        UnsupportedError: it is of a class that is not covered.
    """
    kind = value.class_name.rpartition(".")[2]
    try:
        if value.class_name.endswith(_CELL):
            return _cell(value.state, name)
        if kind.startswith("Conv"):
            found = _convolution(value.state, name)
        elif kind == "LinearPackedParamsBase":
            weight, bias = value.state
            found = Packed(name, weight, bias)
        elif kind.startswith("EmbeddingPackedParamsBase"):
            _, tensors, *_ = value.state
            found = Packed(name, tensors[0], None)
        else:
            raise UnsupportedError(f"the packed parameters {kind} are not covered", where=name, rule="class-not-covered")
    except (ValueError, OverflowError, LookupError, TypeError, AttributeError) as error:
        raise InvalidModelError(
            f"the state of a {kind} does not have the form that PyTorch 2.13 loads: {error}", where=name, rule="damaged-tensor"
        ) from error
    return verify_packed(found)


def _cell(state: Any, name: str) -> PackedCell:
    """Read one of three states of five parts: a word, tensors, numbers, integers, and packed linear layers.

    ("quantized_dynamic", [both biases], [], [whether the range is reduced, absent before PyTorch 1.7], [weights]); "quantized_fp16", which
    has weights alone; and "quantized" of torch.jit.quantized, whose weights are plain int8: ([both weights, both biases, sums of columns],
    [both scales], [both zero points], []). The kernels of the first two take the biases that are packed with the weights.
    """
    word, tensors, numbers, integers, objects = state
    names = [f"{name}.{what}" for what in ("data", "hidden")]
    if word == "quantized":
        data, hidden = (
            verify_packed(
                Packed(
                    names[index],
                    replace(
                        tensors[index],
                        dtype="qint8",
                        scales=np.array([float(numbers[index])]),
                        zero_points=np.array([int(integers[index])], np.int64),
                    ),
                    tensors[2 + index],
                )
            )
            for index in (0, 1)
        )
        return PackedCell(data, hidden)
    if word not in ("quantized_dynamic", "quantized_fp16"):
        raise UnsupportedError(f"recurrent cells of the form {word!r} are not covered", where=name, rule="form-not-covered")
    return cell_of(*[unpack_parameters(item, where) for item, where in zip(objects, names, strict=True)], reduces=any(integers[:1]))


def cell_of(data: Any, hidden: Any, *, reduces: bool) -> PackedCell:
    """A recurrent cell of the packed parameters of two linear layers, both quantized or both in float16.

    Raises:
        TypeError: these are no packed parameters of linear layers.
    """
    if not all(isinstance(part, Packed) and not part.stride for part in (data, hidden)):
        raise TypeError("its weights are not those of linear layers")
    return PackedCell(data, hidden, reduces)


def _convolution(state: Any, name: str) -> Packed:
    """The three versions: a plain tuple with tensors of one number; "2" with int16 numbers in a tensor; 3 with a list of integers."""
    version = state[0]
    if isinstance(version, StoredTensor):
        weight, bias, stride, padding, dilation, count, *_ = state
        stated = [tuple(int(item.data.item()) for item in part) for part in (stride, padding, dilation)]
        return Packed(name, weight, bias, stated[0], stated[1], stated[2], (0,) * len(stride), int(count.data.item()))
    if int(version) == 2:
        _, (sizes, weight, *_), (bias, *_), *_ = state
        numbers = [int(number) for number in sizes.data]
    else:
        _, listed, (_, weight, bias) = state
        numbers = [int(number) for number in listed]
    rank = numbers[0]
    parts = [tuple(numbers[1 + index * rank : 1 + (index + 1) * rank]) for index in range(4)]
    groups, flags = numbers[1 + 4 * rank :]
    return Packed(name, weight, bias, parts[0], parts[1], parts[2], parts[3], groups, bool(flags & 1))


def verify_packed(packed: Packed) -> Packed:
    """Return packed parameters after checks: quantized weights (or a linear layer's, rounded to float16), and sizes that fit them.

    Raises:
        InvalidModelError: they are not.
    """
    real = isinstance(packed.weight, StoredTensor) and not packed.stride and packed.weight.dtype in REALS  # of a layer in float16
    if not isinstance(packed.weight, StoredTensor) or (packed.weight.scales is None and not real):
        raise InvalidModelError("the weights are not quantized", where=packed.name, rule="not-quantized")
    if packed.bias is not None and not isinstance(packed.bias, StoredTensor):
        raise InvalidModelError("the bias is not a tensor", where=packed.name, rule="wrong-type")
    if real:  # as PackedLinearWeightFp16::prepack rounds them; files hold them in float32
        packed = replace(packed, weight=replace(packed.weight, data=round_to_float16(packed.weight.data)))
    rank = len(packed.weight.shape) - 2
    parts: Sequence[tuple[int, ...]] = (packed.stride, packed.padding, packed.dilation, packed.output_padding)
    if not packed.stride:
        return packed
    for part, fewest in zip(parts, (1, 0, 1, 0), strict=True):
        if len(part) != rank or not all(fewest <= number < _LARGEST for number in part):
            raise InvalidModelError(
                f"strides, paddings and dilations {parts} do not fit weights of shape {packed.weight.shape}",
                where=packed.name,
                rule="counts-differ",
            )
    if packed.groups < 1 or packed.weight.shape[0] % packed.groups:
        raise InvalidModelError(
            f"{packed.groups} groups do not divide weights of shape {packed.weight.shape}", where=packed.name, rule="counts-differ"
        )
    return packed


def round_to_float16(data: Array) -> Array:
    """Values rounded to float16, as float32; values outside of its range are clipped."""
    limit = float(np.finfo(np.float16).max)
    return np.clip(data, -limit, limit).astype(np.float16).astype(np.float32)


#: Methods of packed parameters.
_METHODS: Mapping[str, Callable[[Packed], Any]] = {
    "unpack": lambda packed: (packed.weight, packed.bias),
    "stride": lambda packed: list(packed.stride),
    "padding": lambda packed: list(packed.padding),
    "output_padding": lambda packed: list(packed.output_padding),
    "dilation": lambda packed: list(packed.dilation),
    "groups": lambda packed: packed.groups,
    "transpose": lambda packed: packed.transposed,
}


def call_packed(packed: Packed, name: str, where: str) -> Any:
    """Return what a method of packed parameters gives."""
    if name not in _METHODS:
        raise InvalidModelError(f"packed parameters have no method {name!r}", where=where, rule="unknown-name")
    return _METHODS[name](packed)


def _numbers(value: Any, count: int) -> tuple[int, ...]:
    items = list(value) if isinstance(value, (list, tuple)) else [value] * count
    if not all(isinstance(item, int) for item in items):
        raise TypeError("sizes that are no whole numbers")
    return tuple(items)


def _pack_convolution(
    place: str,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    output_padding: Any = 0,
    transposed: bool = False,
) -> Packed:
    rank = len(weight.shape) - 2
    sizes = [_numbers(value, rank) for value in (stride, padding, dilation, output_padding)]
    return Packed(place, weight, bias, sizes[0], sizes[1], sizes[2], sizes[3], int(groups), transposed)


def _half_linear(place: str, weight: Any, bias: Any = None) -> Packed:
    if isinstance(weight, StoredTensor) and weight.dtype != "float32":
        raise TypeError(f"weights of {weight.dtype} in float16")
    return Packed(place, weight, bias)


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


_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
#: Operator -> (place, where, its arguments) -> what it gives.
PACKING: dict[str, Callable[..., Any]] = {
    **{f"quantized::{name}_prepack": _packing(_pack_convolution) for name in ("conv", "conv1d", "conv2d", "conv3d")},
    **{
        f"quantized::conv_transpose{rank}d_prepack": _packing(
            lambda place, weight, bias, stride, padding, output_padding, dilation, groups: _pack_convolution(
                place, weight, bias, stride, padding, dilation, groups, output_padding, True
            )
        )
        for rank in (1, 2, 3)
    },
    "quantized::linear_prepack": _packing(lambda place, weight, bias=None: Packed(place, weight, bias)),
    "quantized::linear_prepack_fp16": _packing(_half_linear),
    "quantized::make_quantized_cell_params_dynamic": _packing(  # its kernels take the biases that are packed with the weights
        lambda place, w_ih, w_hh, bias_ih, bias_hh, reduce_range=False: cell_of(w_ih, w_hh, reduces=bool(reduce_range))
    ),
    "quantized::make_quantized_cell_params_fp16": _packing(lambda place, w_ih, w_hh: cell_of(w_ih, w_hh, reduces=False)),
    "quantized::embedding_bag_prepack": _packing(lambda place, weight, *rest: Packed(place, weight, None)),
    **{f"quantized::{name}_unpack": _unpacking(_METHODS["unpack"]) for name in ("conv", *_CONVOLUTIONS, "linear")},
    "quantized::linear_unpack_fp16": _unpacking(_METHODS["unpack"]),
    "quantized::embedding_bag_unpack": _unpacking(lambda packed: packed.weight),
    **{
        f"quantized::{layer}_{name}": _unpacking(read)
        for layer in _CONVOLUTIONS
        if not layer.endswith("1d")
        for name, read in _METHODS.items()
    },
}
PACKING |= {f"_{name}": PACKING[name] for name in PACKING if name.endswith(("_prepack", "_prepack_fp16"))}
