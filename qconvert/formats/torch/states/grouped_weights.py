"""Weights in groups or rows with a scale each: torchao's in a state_dict, and those in blocks that the tools for language models store.
torchao's are integers with a scale for each row or group of a row; data stay real, or are rounded by rows. Weights in blocks stand in
.safetensors files (qconvert.checkpoints).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.checkpoints.activations import Activations
from qconvert.checkpoints.config import SCALES_OF_CACHE, read_config
from qconvert.checkpoints.parts import Parts
from qconvert.checkpoints.safetensors import Checkpoint
from qconvert.checkpoints.small_floats import name_experts
from qconvert.checkpoints.source import describe_layers, layers_in_blocks
from qconvert.checkpoints.torchao_and_bitsandbytes import read_torchao
from qconvert.checkpoints.weight import E4M3, BlockWeight, symmetric_zero_point
from qconvert.errors import InvalidModelError, UnsupportedError, format_count
from qconvert.formats.torch.quantizing import quantization_of_blocks
from qconvert.formats.torch.states.entries import Entries, take_rest
from qconvert.formats.torch.stored_values import ScriptObject, StoredTensor, TorchType, WrappedTensor
from qconvert.graph import Array, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.plugins import Decoding, Parameters

#: torchao's classes whose weights have any number of axes, and those that linear layers alone have.
_CLASSES, _OF_LAYERS = ("Int8Tensor", "IntxUnpackedToInt8Tensor"), ("Float8Tensor", "Int4Tensor")


def weight(value: WrappedTensor, name: str) -> tuple[Tensor, Decoding | None]:
    """The integers of a weight with its quantization in blocks, and the decoding of its values if the quantization does not say it.

    Raises:
        UnsupportedError: it is of another class, or in blocks along several axes.
        InvalidModelError: its parts do not fit each other.
    """
    kind = value.class_name.rpartition(".")[2]
    if kind in _OF_LAYERS:
        tensors = {part: item.data for part, item in value.parts.items() if isinstance(item, StoredTensor)}
        attributes = {part: item for part, item in value.parts.items() if part not in tensors}
        return _tensor(name, read_torchao(Parts(name.removesuffix(".weight"), tensors), kind, attributes), None)
    if kind not in _CLASSES:
        raise UnsupportedError(f"weights of the class {value.class_name} are not covered", where=name, rule="class-not-covered")
    data, scales = _part(value, "qdata", name), _part(value, "scale", name).astype(np.float32)
    points = value.parts.get("zero_point")
    zeros = np.zeros(scales.shape, np.int64) if not isinstance(points, StoredTensor) or not points.data.size else points.data
    stated = value.parts.get("block_size")
    blocks = tuple(stated) if isinstance(stated, (list, tuple)) else ()
    fits = data.dtype == np.int8 and data.ndim == len(blocks) and all(type(block) is int and block > 0 for block in blocks)
    if not fits or any(size % block for size, block in zip(data.shape, blocks, strict=True)):
        raise InvalidModelError(f"blocks of shape {blocks} do not fit integers of shape {data.shape}", where=name, rule="blocks-do-not-fit")
    counts = tuple(size // block for size, block in zip(data.shape, blocks, strict=True))
    if scales.shape != counts or zeros.shape != counts or zeros.dtype.kind not in "iu":
        raise InvalidModelError(f"scales of shape {scales.shape} do not fit {counts} blocks", where=name, rule="counts-differ")
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise InvalidModelError("a scale is not a positive number", where=name, rule="scale-not-positive")
    low, high = _limits(value, name)
    if data.size and not low <= int(data.min()) <= int(data.max()) <= high:
        raise InvalidModelError(f"an integer is outside of {low} to {high}", where=name, rule="value-outside-type")
    quantization = quantization_of_blocks(scales, zeros.astype(np.int64), blocks)
    if quantization.block_size and sum(block > 1 for block in blocks) != 1:
        raise UnsupportedError(f"blocks of shape {blocks} are not covered", where=name, rule="form-not-covered")
    return Tensor(name, "int8", data.shape, data, quantization.with_limits("int8", low, high)), None


def _part(value: WrappedTensor, part: str, name: str) -> Array:
    found = value.parts.get(part)
    if not isinstance(found, StoredTensor) or found.scales is not None:
        raise InvalidModelError(f"the weights have no tensor {part!r}", where=name, rule="tensor-missing")
    return np.asarray(found.data)


def _limits(value: WrappedTensor, name: str) -> tuple[int, int]:
    """The integers that are used: of int4, -8 to 7 in int8."""
    target = value.parts.get("target_dtype")
    if target is None:
        return integer_range("int8")
    bits = target.name.removeprefix("int") if isinstance(target, TorchType) else ""
    if not bits.isdecimal() or not 1 <= int(bits) <= 8:
        raise UnsupportedError(f"weights of {getattr(target, 'name', target)!r} are not covered", where=name, rule="dtype-not-covered")
    return -(2 ** (int(bits) - 1)), 2 ** (int(bits) - 1) - 1


def rounding_of_data(value: WrappedTensor, name: str) -> str:
    """How the layer rounds its data at each run: "" if they stay real, "rows_symmetric" or "rows_affine"."""
    stated, affine = value.parts.get("act_quant_kwargs"), value.parts.get("activation_quantization")
    for part in ("act_pre_scale", "act_quant_scale"):
        if value.parts.get(part) is not None:
            raise UnsupportedError(f"{part} of torchao's weights is not covered", where=name, rule="form-not-covered")
    if affine is not None:
        if affine != "int8_asym_per_token":
            raise UnsupportedError(f"data quantized as {affine!r} are not covered", where=name, rule="form-not-covered")
        return "rows_affine"
    if stated is None:
        return ""
    granularity, mapping = _class_or_value(_state(stated, "granularity")), _state(stated, "mapping_type")
    symmetric = mapping.arguments == (1,) if isinstance(mapping, ScriptObject) else _class_or_value(mapping) == "SYMMETRIC"
    if granularity != "PerRow" or not symmetric:
        raise UnsupportedError(f"data quantized by {granularity} are not covered", where=name, rule="form-not-covered")
    return "rows_symmetric"


def _state(value: Any, name: str) -> Any:
    """An attribute of an object of torchao, of a pickle or of JSON."""
    state = value.state if isinstance(value, ScriptObject) else value.get("_data", {}) if isinstance(value, dict) else {}
    return state.get(name) if isinstance(state, dict) else None


def _class_or_value(value: Any) -> str:
    """The class or the value that such an object says."""
    if isinstance(value, ScriptObject):
        return value.class_name.rpartition(".")[2]
    if isinstance(value, dict):
        data = value.get("_data")
        return str(data) if isinstance(data, str) else str(value.get("_type", "")).rpartition(".")[2]
    return str(value)


def _type_of(bits: int, *, is_signed: bool) -> str:
    """The type that holds the integers of a layer."""
    return f"{'' if is_signed else 'u'}int{4 if 2 <= bits <= 4 else 8}"


def read_blocks(entries: Entries, path: Path, *, round_data: bool) -> Parameters | None:
    """The parameters of a checkpoint whose weights are in blocks; None where it has none.

    Args:
        entries: the tensors of the file.
        path: the file; config.json is looked for next to it.
        round_data: whether data are rounded where a layer has a scale for them; else they stay float, which the notes say.

    Raises:
        InvalidModelError: tensors of a layer do not fit each other, or what config.json says.
        UnsupportedError: the checkpoint is of another format, or has what is not covered.
    """
    stored = {name: value for name, value in entries.values.items() if isinstance(value, StoredTensor)}
    arrays = {name: value.data for name, value in stored.items() if value.scales is None}
    checkpoint = name_experts(Checkpoint(arrays, {name: name for name in arrays}, {}), are_apart=False)  # places: names in the file
    found = layers_in_blocks(checkpoint.tensors)
    if not found:
        return None
    config = read_config(path)
    config.require_known(found)
    tensors: dict[str, Tensor] = {}
    orders: dict[str, Array] = {}
    factors: dict[str, Array] = {}
    rounded: dict[str, Activations] = {}
    left_out: list[str] = []
    decodings: dict[str, Decoding] = {}
    for stored_layer, (container, parts) in found.items():
        entries.used.update(checkpoint.places[f"{stored_layer}.{part}"] for part in parts.tensors)
        for layer, weight in _name_experts(stored_layer, container.read(replace(parts, config=config))).items():
            name = f"{layer}.weight"
            order = None if weight.groups is None else np.argsort(weight.groups, kind="stable").astype(np.int64)
            tensors[name], decoding = _tensor(name, weight, order)
            if decoding is not None:
                decodings[name] = decoding
            if order is not None:
                orders[layer] = order
            if weight.factors is not None:
                factors[layer] = weight.factors
            how = weight.activations
            if how is None:
                continue
            can_round = how.has_two_levels or how.dtype == "float8e4m3fn" or (how.dtype == "int8" and weight.table is None)
            if can_round and how.scale is not None:
                rounded[layer] = how
            if not (round_data and layer in rounded):
                left_out.append(str(how))
    notes = list(describe_layers(found, config))
    if config.cache_note:
        entries.used.update(name for name in entries.values if name.rpartition(".")[2] in SCALES_OF_CACHE)
    if orders:
        notes.append(f"{format_count(len(orders), 'layer')} with inputs in another order (act-order), in which a Gather brings the data")
    if factors:
        notes.append(f"{format_count(len(factors), 'layer')} whose data are multiplied by factors first (pre_quant_scale)")
    if left_out:
        notes.append(f"data of {format_count(len(left_out), 'layer')} stay float, which config.json states to be rounded to {left_out[0]}")
        notes += ["-O round_data=true rounds those for which the file has a scale"] if rounded and not round_data else []
    return Parameters(
        {**tensors, **take_rest(entries)},
        orders=orders,
        factors=factors,
        rounded=rounded if round_data else {},
        decodings=decodings,
        notes=tuple(notes),
    )


def _name_experts(layer: str, weight: BlockWeight) -> dict[str, BlockWeight]:
    """The weight of a layer, of several experts each as a layer of its own, as other tools name them."""
    if not weight.experts:
        return {layer: weight}
    around, _, own = layer.rpartition(".")
    around, rows = around.replace("switch_mlp", "experts"), weight.outputs // weight.experts  # MLX's name
    pieces = (weight.rows(slice(expert * rows, (expert + 1) * rows)) for expert in range(weight.experts))
    return {f"{around}.{expert}.{own}": replace(piece, experts=0) for expert, piece in enumerate(pieces)}


def _tensor(name: str, weight: BlockWeight, order: Array | None) -> tuple[Tensor, Decoding | None]:
    """The weight [N, K] with its quantization, and how its values come about where no zero point says it; inputs by their blocks."""
    weight = weight.integers()
    if weight.table is not None and np.array_equal(weight.table, E4M3, equal_nan=True):
        stored = np.ascontiguousarray(weight.codes).view(numpy_dtype("float8e4m3fn"))
        return _make_quantized(name, "float8e4m3fn", stored, weight.scales, np.zeros(weight.scale.shape, np.int64)), None
    codes = weight.codes if order is None else weight.codes[:, order]
    scales = weight.scales
    if weight.table is not None:
        dtype = _type_of(weight.bits, is_signed=False)
        tensor = Tensor(name, dtype, codes.shape, codes.astype(numpy_dtype(dtype)), Quantization.per_tensor(1.0, 0))
        return tensor, Decoding(scales, table=weight.table)
    dtype = _type_of(weight.bits, is_signed=weight.is_signed)
    half = symmetric_zero_point(weight.bits) if weight.is_signed else 0
    integers = codes.astype(np.int16) - half if half else codes
    zeros = np.zeros(scales.shape, np.int64) if weight.zero is None else weight.zero.astype(np.int64) - half
    decoding = None
    if weight.offset is not None:
        decoding = Decoding(scales, offsets=weight.offset.astype(np.float32))
    elif weight.outer_is_last:
        assert weight.outer is not None
        scales, decoding = weight.scale, Decoding(weight.scale, factor=float(weight.outer[0, 0]))
    return _make_quantized(name, dtype, integers, scales, zeros), decoding


def _make_quantized(name: str, dtype: str, integers: Array, scales: Array, zeros: Array) -> Tensor:
    data = np.ascontiguousarray(integers).astype(numpy_dtype(dtype), copy=False)
    groups, scales = scales.shape[1], np.ascontiguousarray(scales)
    if groups > 1 or not (scales > 0).all():  # those of blocks alone may be negative
        q = Quantization(scales, zeros, 1, data.shape[1] // groups)
    elif (scales == scales[0, 0]).all() and (zeros == zeros[0, 0]).all():
        q = Quantization.per_tensor(float(scales[0, 0]), int(zeros[0, 0]))
    else:
        q = Quantization(scales[:, 0], zeros[:, 0], 0)
    return Tensor(name, dtype, data.shape, data, q)
