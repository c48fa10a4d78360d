"""The tools whose layers are read alone.

bitsandbytes: 4-bit codes with a table of their values (nf4, fp4), and int8 with a scale for each output.

4 bits: `weight` uint8 [N * K / 2, 1], the upper half first, `weight.absmax` [N * K / 64], one for each block along the flattened weight,
`weight.quant_map` float32 [16] and the JSON `weight.quant_state.bitsandbytes__nf4`. With nested quantization absmax are uint8, and
`weight.nested_absmax`, `weight.nested_quant_map` and an offset in the JSON make float32 of them. int8: `weight` int8 [N, K] and `SCB` [N];
the value is (q * SCB) * (1 / 127), each product rounded to float32. Source: functional.py and nn/modules.py of bitsandbytes.

torchao: a weight is an object of a class whose tensors and attributes stand apart in a .safetensors file.

The tensors of X.weight are `X._weight_qdata`, `X._weight_scale` and `X._weight_zero_point`; the file's header has a JSON text under the
name X.weight, with the class, its attributes, and the names of its tensors. Int8Tensor and IntxUnpackedToInt8Tensor: `qdata` int8 [N, K],
scales and zero points int8 of blocks, the value is scale * (q - zero point). Float8Tensor: `qdata` E4M3, scale * q. Int4Tensor: `qdata`
[N, K / 2] in two's complement, the lower half first, scales and zero points [G, N], which are floats: scale * q + zero point. The
attributes `act_quant_kwargs` and `activation_quantization` say how data are rounded at each run; they are None where data stay floats.
Source: quantization/quantize_/workflows and prototype/safetensors of torchao; int4_row_quantize_zp and pack_int4 of FBGEMM for Int4Tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.activations import Activations
from qconvert.checkpoints.container import Container
from qconvert.checkpoints.parts import Parts
from qconvert.checkpoints.small_floats import float8_codes
from qconvert.checkpoints.weight import E4M3, BlockWeight, symmetric_zero_point, symmetric_zeros, words_of_bytes, words_of_integers
from qconvert.files.documents import json_of

_STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
_LARGEST = 10_000
_INVERSE: Array = np.array([[1 / 127]], np.float32)


def _read_4bit(parts: Parts) -> BlockWeight:
    state = _state(parts)
    shape, block = state.get("shape"), state.get("blocksize")
    sizes = [size for size in shape if type(size) is int and 0 < size < 2**31] if isinstance(shape, list) else []
    if len(sizes) != 2 or type(block) is not int or block < 1:
        raise parts.invalid("the quant_state has no shape of 2 axes or no blocksize", rule="damaged-config")
    outputs, inputs = sizes
    packed, table = parts.tensors["weight"], parts.tensors.get("weight.quant_map")
    if packed.dtype != np.uint8 or packed.size * 2 != math.prod(sizes):
        raise parts.shapes_error("weight")
    if table is None or table.shape != (16,) or table.dtype != np.float32 or not np.isfinite(table).all():
        raise parts.tensor_error("weight.quant_map", "float32 [16]")
    if inputs % 8:
        raise parts.unsupported(
            f"rows of {inputs} inputs are no whole number of words, which is not covered", rule="blocks-not-covered",
        )  # fmt: skip
    scale = _absmax(parts, state)
    if scale.size != -(-outputs * inputs // block):
        raise parts.shapes_error("weight", "weight.absmax")
    divisor = math.gcd(block, inputs)  # a block that begins in one row and ends in the next becomes several of one row
    scale = np.repeat(scale, block // divisor)[: outputs * inputs // divisor]
    turned = packed.reshape(outputs, inputs // 2)
    words = np.ascontiguousarray(turned >> np.uint8(4) | turned << np.uint8(4)).view("<u4")
    return BlockWeight(words, 4, inputs, scale.reshape(outputs, -1), table=table)


def _state(parts: Parts) -> dict[str, Any]:
    stored = next((parts.tensors[name] for name in _STATES if name in parts), None)
    if stored is None or stored.dtype != np.uint8 or stored.size > _LARGEST:
        raise parts.tensor_error(_STATES[0], "a JSON text of bytes")
    found = json_of(stored.tobytes(), "the quant_state")
    if not isinstance(found, dict):
        raise parts.tensor_error(_STATES[0], "a JSON object")
    return found


def _absmax(parts: Parts, state: dict[str, Any]) -> Array:
    """The scales, float32; those of the second level are multiplied out, as bitsandbytes does before each product."""
    found = parts.tensors.get("weight.absmax")
    if found is None or found.dtype not in (np.float32, np.uint8):
        raise parts.tensor_error("weight.absmax", "float32 or uint8")
    if found.dtype == np.uint8:
        table, outer = parts.tensors.get("weight.nested_quant_map"), parts.tensors.get("weight.nested_absmax")
        block, offset = state.get("nested_blocksize"), state.get("nested_offset")
        if table is None or table.shape != (256,) or outer is None or outer.dtype != np.float32 or type(block) is not int or block < 1:
            raise parts.tensor_error("weight.nested_quant_map", "float32 [256] with nested_absmax and nested_blocksize")
        if outer.size != -(-found.size // block) or not isinstance(offset, int | float):
            raise parts.shapes_error("weight.absmax", "weight.nested_absmax")
        inner = table.astype(np.float32)[found.reshape(-1)]
        found = inner * np.repeat(outer.reshape(-1), block)[: found.size] + np.float32(offset)
    parts.require_finite("weight.absmax", found)
    return np.asarray(found.reshape(-1))


def _read_int8(parts: Parts) -> BlockWeight:
    integers, scales = parts.matrix("weight", "int8"), parts.tensors["SCB"]
    if scales.dtype != np.float32 or scales.size != len(integers):
        raise parts.tensor_error("SCB", f"float32 [{len(integers)}]")
    parts.require_finite("SCB", scales)
    if "weight_format" in parts and parts.tensors["weight_format"].any():
        raise parts.unsupported("weight_format is not 0: the integers are not in rows, which is not covered", rule="blocks-not-covered")
    scale = scales.reshape(-1, 1)
    zeros = symmetric_zeros(scale, 8)
    words = words_of_bytes(integers.view(np.uint8) ^ np.uint8(0x80))
    return BlockWeight(words, 8, integers.shape[1], scale, zeros, outer=_INVERSE, outer_is_last=True, is_signed=True)


BNB_4BIT = Container(
    "bitsandbytes",
    "bitsandbytes (nf4 or fp4)",
    ("weight.absmax", "weight", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map", *_STATES),
    lambda parts: "weight.absmax" in parts and "weight" in parts,
    _read_4bit,
    methods=("bitsandbytes",),
)
BNB_INT8 = Container(
    "bitsandbytes-int8",
    "bitsandbytes (int8)",
    ("SCB", "weight", "weight_format"),
    lambda parts: "SCB" in parts and parts.dtype("weight") == "int8",
    _read_int8,
    note="bitsandbytes rounds the data of int8 layers to 8 bits at each run, which is not carried over: they stay floats",
    methods=("bitsandbytes",),
)


_PREFIX = "_weight_"
_STRATEGIES = {"PerRow": "token", "PerTensor": "tensor"}
_SIGNS = np.uint32(0x88888888)  # of nibbles: what makes codes of two's complement


def _read_torchao(parts: Parts) -> BlockWeight:
    found = parts.stated.get("_data")
    stated: Mapping[str, Any] = found if isinstance(found, dict) else {}
    tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in parts.tensors.items()}
    weight = read_torchao(replace(parts, tensors=tensors), str(parts.stated.get("_type")), stated)
    return replace(weight, activations=_read_activations(stated, parts))


def _read_activations(stated: Mapping[str, Any], parts: Parts) -> Activations | None:
    how, affine = stated.get("act_quant_kwargs"), stated.get("activation_quantization")
    if how is None and affine is None:
        return None
    if affine == "int8_asym_per_token":
        return Activations("int8", "token", is_symmetric=False)
    own = how.get("_data") if isinstance(how, dict) else None
    own = own if isinstance(own, dict) else {}
    granularity, mapping = own.get("granularity"), own.get("mapping_type")
    strategy = _STRATEGIES.get(str(granularity.get("_type"))) if isinstance(granularity, dict) else None
    is_limited = own.get("reduce_range") or any(own.get(key) is not None for key in ("hp_value_lb", "hp_value_ub"))
    dtype = _dtype_name(own.get("float8_dtype")) or "int8"
    if affine is not None or strategy is None or is_limited or dtype not in ("int8", "float8_e4m3fn"):
        raise parts.unsupported(f"data are rounded at each run too, as {affine or how!r}, which is not covered", rule="dynamic-operator")
    is_affine = isinstance(mapping, dict) and mapping.get("_data") == "ASYMMETRIC"
    return Activations(dtype.replace("8_e", "8e"), strategy, is_symmetric=not is_affine)


def read_torchao(parts: Parts, kind: str, stated: Mapping[str, Any]) -> BlockWeight:
    """The weight of an object of one of torchao's classes, as its users see it: [N, K].

    Args:
        parts: its tensors: qdata, scale and perhaps zero_point.
        kind: the name of its class.
        stated: its other attributes: block_size, and target_dtype of IntxUnpackedToInt8Tensor.

    Raises:
        UnsupportedError: the class is not covered, or it has more or fewer than 2 axes.
        InvalidModelError: its parts do not fit each other.
    """
    reader = {
        "Int8Tensor": _read_integers,
        "IntxUnpackedToInt8Tensor": _read_integers,
        "Float8Tensor": _read_float8,
        "Int4Tensor": _read_int4,
    }
    if kind not in reader:
        raise parts.unsupported(f"weights of torchao's class {kind!r} are not covered", rule="class-not-covered")
    data = parts.tensors.get("qdata")
    if data is None or data.ndim != 2 or not data.size:
        raise parts.unsupported(
            f"qdata is {'missing' if data is None else f'of shape {list(data.shape)}'}; weights with 2 axes are covered",
            rule="blocks-not-covered",
        )
    return reader[kind](parts, stated)


def _read_integers(parts: Parts, stated: Mapping[str, Any]) -> BlockWeight:
    integers, bits = parts.matrix("qdata", "int8"), _bits(parts, stated)
    scale = _in_blocks(parts, "scale", integers.shape, stated)
    half = symmetric_zero_point(bits)
    zeros = symmetric_zeros(scale, bits)
    if "zero_point" in parts and parts.tensors["zero_point"].size:
        found = _in_blocks(parts, "zero_point", integers.shape, stated)
        whole = np.rint(found.astype(np.float64))
        if (found != whole).any() or (np.abs(whole) > 2**bits).any():
            raise parts.unsupported("zero points are not whole, or far outside of the integers", rule="blocks-not-covered")
        zeros += whole.astype(np.int16)
    if not -half <= int(integers.min()) <= int(integers.max()) < half:
        raise parts.invalid(f"an integer is outside of {-half} to {half - 1}", rule="value-outside-type")
    return BlockWeight(words_of_integers(integers, bits), bits, integers.shape[1], scale, zeros, is_signed=True)


def _read_float8(parts: Parts, stated: Mapping[str, Any]) -> BlockWeight:
    codes = float8_codes(parts, "qdata")
    return BlockWeight(words_of_bytes(codes), 8, codes.shape[1], _in_blocks(parts, "scale", codes.shape, stated), table=E4M3)


def _read_int4(parts: Parts, stated: Mapping[str, Any]) -> BlockWeight:
    if (data := _dtype_name(stated.get("activation_dtype"))) not in ("", "bfloat16"):
        raise parts.unsupported(f"data are rounded to {data} at each run too, which is not covered", rule="dynamic-operator")
    packed = parts.tensors["qdata"]
    inputs = 2 * packed.shape[1]
    if packed.dtype not in (np.int8, np.uint8) or inputs % 8:
        raise parts.tensor_error("qdata", "int8 [N, K / 2], K a multiple of 8")
    turned = replace(parts, tensors={name: parts.tensors[name].T for name in ("scale", "zero_point") if name in parts})
    scale, offset = (_in_blocks(turned, name, (len(packed), inputs), stated) for name in ("scale", "zero_point"))
    if scale.dtype != offset.dtype:
        raise parts.tensor_error("zero_point", f"{scale.dtype}, as scale is,")
    words = np.ascontiguousarray(packed).view("<u4") ^ _SIGNS
    zeros = symmetric_zeros(scale, 4)
    return BlockWeight(words, 4, inputs, scale, zeros, offset=offset, is_signed=True)


def _bits(parts: Parts, stated: Mapping[str, Any]) -> int:
    """Bits of the integers that are used, which int8 stores: those of target_dtype, else all."""
    name = _dtype_name(stated.get("target_dtype")) or "int8"
    bits = name.removeprefix("int")
    if not bits.isdecimal() or not 2 <= int(bits) <= 8:
        raise parts.unsupported(f"integers of {name!r} are not covered", rule="dtype-not-covered")
    return int(bits)


def _dtype_name(stated: Any) -> str:
    """The name of a dtype of PyTorch, as a header or a state_dict has it; "" for None."""
    name = stated.get("_data") if isinstance(stated, dict) else getattr(stated, "name", stated)
    return "" if name is None else str(name).removeprefix("torch.")


def _in_blocks(parts: Parts, name: str, shape: tuple[int, ...], stated: Mapping[str, Any]) -> Array:
    """A number for each output and block of inputs, [N, G], of one for each block of block_size."""
    block = stated.get("block_size")
    sizes = list(block) if isinstance(block, list | tuple) else []
    if len(sizes) != 2 or any(type(size) is not int or size < 1 or whole % size for size, whole in zip(sizes, shape, strict=True)):
        raise parts.invalid(f"block_size {block!r} does not divide {list(shape)}", rule="blocks-do-not-fit")
    found = parts.tensors.get(name)
    counts = tuple(whole // size for size, whole in zip(sizes, shape, strict=True))
    if found is None or found.shape != counts:
        raise parts.tensor_error(name, f"one number for each of {counts[0]} x {counts[1]} blocks")
    if name == "scale" or found.dtype.kind not in "iu":
        found = parts.scales(name)
    return np.repeat(found, sizes[0], axis=0)


TORCHAO = Container(
    "torchao",
    "torchao",
    ("_weight_qdata", "_weight_scale", "_weight_zero_point"),
    lambda parts: "_weight_qdata" in parts and bool(parts.stated),
    _read_torchao,
    methods=("torchao",),
)
