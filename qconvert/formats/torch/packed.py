"""Packed parameters of quantized layers, as TorchScript's files keep them: three versions of convolutions, linear layers, embeddings, and
cells of recurrent layers.

Sources: aten/src/ATen/native/quantized/cpu/fbgemm_utils.cpp, conv_serialization.h (parse_conv_serialized_state, serialize_conv), and
aten/src/ATen/native/RNN.cpp (CellParamsSerializationType).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qconvert.arithmetic.dtypes import REALS
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.stored import ScriptObject, StoredTensor
from qconvert.formats.torch.values import Packed, PackedCell

__all__ = ["is_packed", "unpacked", "verified"]

_LARGEST = 2**20
_CELL = ".classes.rnn.CellParamsBase"


def is_packed(value: Any) -> bool:
    """Whether an object is one of PyTorch's packed-parameters classes."""
    return isinstance(value, ScriptObject) and (".classes.quantized." in value.class_name or value.class_name.endswith(_CELL))


def unpacked(value: ScriptObject, name: str) -> Packed | PackedCell:
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
            raise UnsupportedError(f"the packed parameters {kind} are not covered", where=name)
    except (ValueError, IndexError, TypeError, AttributeError) as error:
        raise InvalidModelError(f"its {kind} are damaged: {error}", where=name) from error
    return verified(found)


def _cell(state: Any, name: str) -> PackedCell:
    """("quantized_dynamic", [the two biases], [], [whether it reduces the range], [the weights]), or "quantized_fp16", which has weights
    alone; the kernels take the biases that are packed with the weights."""
    word, _, _, flags, objects = state
    if word not in ("quantized_dynamic", "quantized_fp16"):
        raise UnsupportedError(f"recurrent cells of the form {word!r} are not covered", where=name)
    parts = [unpacked(item, f"{name}.{what}") for item, what in zip(objects, ("data", "hidden"), strict=True)]
    if not all(isinstance(part, Packed) for part in parts):
        raise ValueError("its weights are those of no linear layers")
    return PackedCell(parts[0], parts[1], word == "quantized_dynamic" and bool(flags[0]))  # type: ignore[arg-type]


def _convolution(state: Any, name: str) -> Packed:
    """The three versions: a plain tuple with tensors of one number; "2" with int16 numbers in a tensor; 3 with a list of integers."""
    version = state[0]
    if isinstance(version, StoredTensor):
        weight, bias, stride, padding, dilation, count = state
        stated = [tuple(int(item.data.item()) for item in part) for part in (stride, padding, dilation)]
        return Packed(name, weight, bias, stated[0], stated[1], stated[2], (0,) * len(stride), int(count.data.item()))
    if int(version) == 2:
        _, (sizes, weight), (bias,) = state
        numbers = [int(number) for number in sizes.data]
    else:
        _, listed, (_, weight, bias) = state
        numbers = [int(number) for number in listed]
    rank = numbers[0]
    parts = [tuple(numbers[1 + index * rank : 1 + (index + 1) * rank]) for index in range(4)]
    groups, flags = numbers[1 + 4 * rank :]
    return Packed(name, weight, bias, parts[0], parts[1], parts[2], parts[3], groups, bool(flags & 1))


def verified(packed: Packed) -> Packed:
    """Packed parameters whose weights are quantized, or those of a linear layer in float16, and whose sizes fit them.

    Raises:
        InvalidModelError: they are not.
    """
    real = isinstance(packed.weight, StoredTensor) and not packed.stride and packed.weight.dtype in REALS  # of a layer in float16
    if not isinstance(packed.weight, StoredTensor) or (packed.weight.scales is None and not real):
        raise InvalidModelError("its weights are not quantized", where=packed.name)
    if packed.bias is not None and not isinstance(packed.bias, StoredTensor):
        raise InvalidModelError("its bias is no tensor", where=packed.name)
    rank = len(packed.weight.shape) - 2
    parts: Sequence[tuple[int, ...]] = (packed.stride, packed.padding, packed.dilation, packed.output_padding)
    if not packed.stride:
        return packed
    for part, fewest in zip(parts, (1, 0, 1, 0), strict=True):
        if len(part) != rank or not all(fewest <= number < _LARGEST for number in part):
            raise InvalidModelError(
                f"strides, paddings and dilations {parts} do not fit weights of shape {packed.weight.shape}", where=packed.name
            )
    if packed.groups < 1 or packed.weight.shape[0] % packed.groups:
        raise InvalidModelError(f"{packed.groups} groups do not divide weights of shape {packed.weight.shape}", where=packed.name)
    return packed
