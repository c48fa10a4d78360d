"""Weights in blocks, as the tools for language models store them in .safetensors (qconvert.checkpoints), as tensors of a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qconvert.checkpoints import describe_layers, layers_in_blocks
from qconvert.checkpoints.config import read_config
from qconvert.checkpoints.weight import BlockWeight, symmetric_zero_point
from qconvert.errors import format_count
from qconvert.formats.torch.states.entries import Entries, take_rest
from qconvert.formats.torch.stored_values import StoredTensor
from qconvert.graph import Array, Quantization, Tensor, numpy_dtype
from qconvert.plugins import Decoding, Parameters

__all__ = ["read_blocks"]

#: Bits that a layer may have -> the types that hold them, unsigned and signed.
_TYPES = {2: ("uint4", "int4"), 3: ("uint4", "int4"), 4: ("uint4", "int4")}
_WIDEST = ("uint8", "int8")


def read_blocks(entries: Entries, path: Path) -> Parameters | None:
    """The parameters of a checkpoint whose weights are in blocks; None where it has none.

    Args:
        entries: the tensors of the file.
        path: the file; config.json is looked for next to it.

    Raises:
        InvalidModelError: tensors of a layer do not fit each other, or what config.json says.
        UnsupportedError: the checkpoint is of another format, or has what is not covered.
    """
    stored = {name: value for name, value in entries.values.items() if isinstance(value, StoredTensor)}
    found = layers_in_blocks({name: value.data for name, value in stored.items() if value.scales is None})
    if not found:
        return None
    config = read_config(path)
    config.require_known()
    tensors: dict[str, Tensor] = {}
    orders: dict[str, Array] = {}
    factors: dict[str, Array] = {}
    decodings: dict[str, Decoding] = {}
    for layer, (container, parts) in found.items():
        weight = container.read(parts, config)
        entries.used.update(f"{layer}.{part}" for part in parts.tensors)
        name = f"{layer}.weight"
        order = None if weight.groups is None else np.argsort(weight.groups, kind="stable").astype(np.int64)
        tensors[name], decoding = _tensor(name, weight, order)
        if decoding is not None:
            decodings[name] = decoding
        if order is not None:
            orders[layer] = order
        if weight.factors is not None:
            factors[layer] = weight.factors
    notes = list(describe_layers(found, config))
    if orders:
        notes.append(f"{format_count(len(orders), 'layer')} with inputs in another order (act-order), in which a Gather brings the data")
    if factors:
        notes.append(f"{format_count(len(factors), 'layer')} whose data are multiplied by factors first (pre_quant_scale)")
    return Parameters({**tensors, **take_rest(entries)}, orders=orders, factors=factors, decodings=decodings, notes=tuple(notes))


def _tensor(name: str, weight: BlockWeight, order: Array | None) -> tuple[Tensor, Decoding | None]:
    """The weight [N, K] with its quantization, and how its values come about where no zero point says it; inputs by their blocks."""
    weight = weight.integers()
    codes = weight.codes if order is None else weight.codes[:, order]
    scales = weight.scales
    if weight.table is not None:
        dtype = _TYPES.get(weight.bits, _WIDEST)[0]
        tensor = Tensor(name, dtype, codes.shape, codes.astype(numpy_dtype(dtype)), Quantization.per_tensor(1.0, 0))
        return tensor, Decoding(scales, table=weight.table)
    dtype = _TYPES.get(weight.bits, _WIDEST)[weight.is_signed]
    if weight.offset is not None:
        tensor = _make_quantized(name, dtype, codes, scales, np.zeros(scales.shape, np.int64))
        return tensor, Decoding(scales, offsets=weight.offset.astype(np.float32))
    assert weight.zero is not None
    half = symmetric_zero_point(weight.bits) if weight.is_signed else 0
    integers = codes.astype(np.int16) - half if half else codes
    return _make_quantized(name, dtype, integers, scales, weight.zero.astype(np.int64) - half), None


def _make_quantized(name: str, dtype: str, integers: Array, scales: Array, zeros: Array) -> Tensor:
    data = np.ascontiguousarray(integers).astype(numpy_dtype(dtype))
    groups, scales = scales.shape[1], np.ascontiguousarray(scales)
    q = Quantization(scales[:, 0], zeros[:, 0], 0) if groups == 1 else Quantization(scales, zeros, 1, data.shape[1] // groups)
    return Tensor(name, dtype, data.shape, data, q)
