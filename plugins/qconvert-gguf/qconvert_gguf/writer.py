"""The weights of a network as a .gguf file: those in blocks as Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0, float weights unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import (
    Array,
    BlockWeight,
    Change,
    Graph,
    Op,
    OptionError,
    Tensor,
    UnsupportedError,
    format_count,
    pack_words,
    quote_nearest,
    require_package,
)
from qconvert_gguf.blocks import BLOCK, KINDS, pack_weight
from qconvert_gguf.container import GGUF, LONGEST_NAME, MOST_AXES
from qconvert_gguf.places import is_transposed, read_names

_ARCHITECTURE = "qconvert"
_PLAIN = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
#: Integer type -> the stored integer that is 0 in Q4_0 and Q8_0.
_MIDDLES = {"int4": 0, "uint4": 8, "int8": 0, "uint8": 128}
_SHOWN = 4
#: Suffixes of the names that the reader gives to intermediate tensors of Q4_1.
_BETWEEN = ("/rows", "/turned")
_REMEDY = "The pass change_bits quantizes weights in blocks of 32: --pass change_bits:weight_bits=4,block_size=32."


class _Refusal(Exception):  # noqa: N818  # collected, then raised as one error
    """Why a tensor cannot be written."""


def write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[Change | str, ...]:
    """Write the weights of a network, without its operators.

    Raises:
        UnsupportedError: tensors cannot be stored in a .gguf file; all are named.
    """
    require_package(*GGUF)
    from gguf import GGMLQuantizationType, GGUFWriter

    if graph.functions:
        raise UnsupportedError(
            "the network has functions, whose weights have no unique names in a .gguf file", rule="subgraphs-not-covered"
        )
    written = _Written(graph, options.get("rounding") == "round")
    found, refused = dict[str, tuple[str, Array]](), list[str]()
    for name, tensor in written.weights():
        try:
            found[name] = written.encode_tensor(name, tensor)
        except _Refusal as reason:
            refused.append(f"{name!r} {reason}")
    if refused:
        more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        raise UnsupportedError(
            f"{format_count(len(refused), 'tensor')} cannot be stored in a .gguf file: {'; '.join(refused[:_SHOWN])}{more}",
            remedy=_REMEDY,
            rule="not-storable",
        )
    if not any(type in KINDS for type, _ in found.values()):
        raise UnsupportedError("the network has no weights in blocks", remedy=_REMEDY, rule="no-blocks")
    names = _names(list(found), options.get("names") or "")
    writer = GGUFWriter(path, _ARCHITECTURE)
    for key, value in sorted((options.get("provenance") or {}).items()):
        writer.add_string(f"qconvert.{key}", str(value))
    for name, (type, data) in found.items():
        writer.add_tensor(names[name], data, raw_dtype=GGMLQuantizationType[type])
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    types = [type for type, _ in found.values()]
    counts = ", ".join(f"{types.count(type)} of {type}" for type in sorted(set(types)))
    text = f"the file has the weights, {counts}, and no operators: to read it, give the float network (graph=…)"
    return (Change(text, exact=True), *written.changes)


def _names(found: list[str], path: str) -> dict[str, str]:
    """Return the names in the file. Raise OptionError for duplicate or unknown names, UnsupportedError for names that are too long."""
    stated = read_names(path)
    lost = [name for name in stated if name not in found]
    if lost:
        raise OptionError(f"no weights that are written have these names: {quote_nearest(lost, found)}", file=path, rule="unknown-tensor")
    names = {name: stated.get(name, name) for name in found}
    if len(set(names.values())) < len(names):
        raise OptionError("two tensors get the same name", file=path, rule="duplicate-name")
    long = [name for name in names.values() if len(name.encode()) > LONGEST_NAME]
    if long:
        raise UnsupportedError(
            f"the number of names longer than the {LONGEST_NAME} bytes of ggml is {len(long)}",
            where=repr(long[0]),
            remedy="State shorter ones in a JSON file: -O names=names.json.",
            rule="name-too-long",
        )
    return names


class _Written:
    """The weights of a graph.

    Args:
        graph: whose weights are written.
        may_round: whether scales and minima may be rounded to float16.

    Attributes:
        changes: what was rounded.
    """

    def __init__(self, graph: Graph, may_round: bool) -> None:
        self._graph, self._may_round = graph, may_round
        self._consumers = graph.consumers()
        self._minima: dict[str, Array] = {}
        self._inner: set[str] = set()
        self.changes: list[Change] = []

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the constants that are weights, each with the name of its float values."""
        found = [(self._float_name(tensor), tensor) for tensor in self._graph.constants()]
        for name, tensor in found:
            plain = tensor.quantization is None and tensor.dtype in _PLAIN and tensor.rank
            if tensor.name not in self._inner and (tensor.quantization is not None or plain):
                yield name, tensor

    def _float_name(self, tensor: Tensor) -> str:
        """Return the name of a constant's float values; record the minima that are added to it."""
        if tensor.quantization is None:
            return tensor.name
        real = self._only_reader(tensor.name, "Dequantize")
        if real is None:
            return tensor.name
        added = self._only_reader(real.outputs[0], "Add")
        shaped = self._only_reader(added.outputs[0], "Reshape") if added is not None else None
        if added is None or shaped is None:
            return real.outputs[0]
        other = next((name for name in added.inputs if name != real.outputs[0]), "")
        minima = self._graph.constant(other)
        shape, result = tensor.static_shape, self._graph[shaped.outputs[0]].static_shape
        in_blocks = shape is not None and result == (*shape[:-2], shape[-2] * shape[-1]) and shape[-1] == BLOCK
        if shape is None or minima is None or not in_blocks or minima.shape != (*shape[:-1], 1) or added.attributes.get("activation"):
            return real.outputs[0]
        self._minima[tensor.name] = minima[..., 0]
        self._inner |= {other, shaped.inputs[1]}
        name = shaped.outputs[0]
        for kind in ("Transpose", "Cast"):  # added by the reader; a Transpose of the network has another name
            further = self._only_reader(name, kind) if name.endswith(_BETWEEN) else None
            name = further.outputs[0] if further is not None else name
        return name

    def _only_reader(self, name: str, kind: str) -> Op | None:
        readers = self._consumers.get(name, [])
        is_one = len(readers) == 1 and readers[0].kind == kind and name not in self._graph.public
        return readers[0] if is_one and readers[0].inputs.count(name) == 1 else None

    def encode_tensor(self, name: str, tensor: Tensor) -> tuple[str, Array]:
        """Return ggml's type of a tensor, and its numbers or bytes. Raise _Refusal."""
        assert tensor.data is not None
        try:
            way = is_transposed(self._graph, tensor.name if tensor.name not in self._minima else "", self._consumers)
        except UnsupportedError as error:
            raise _Refusal(error.reason) from error
        if len(tensor.data.shape) > MOST_AXES:
            raise _Refusal(f"has {len(tensor.data.shape)} axes, where ggml has {MOST_AXES}")
        if not tensor.data.size:
            raise _Refusal("is empty")
        if tensor.quantization is None:
            data = np.ascontiguousarray(np.swapaxes(tensor.data, -1, -2) if way else tensor.data)
            return _PLAIN[tensor.dtype], data.view(np.uint8) if tensor.dtype == "bfloat16" else data
        type, weight, lead = (
            self._encode_minima_blocks(name, tensor) if tensor.name in self._minima else self._encode_blocks(name, tensor, way)
        )
        return type, pack_weight(weight, type).reshape(*lead, -1)

    def _encode_minima_blocks(self, name: str, tensor: Tensor) -> tuple[str, BlockWeight, tuple[int, ...]]:
        q, data = tensor.quantization, tensor.data
        assert q is not None and data is not None
        bits = {"uint4": 4, "uint8": 5}.get(tensor.dtype, 0)
        is_one = q.block_size == BLOCK and q.axis == data.ndim - 1 and bits and not q.zero_point.any()
        if not is_one or int(data.max()) >= 2**bits:
            raise _Refusal("has sums in blocks that do not have the form of Q4_1 or Q5_1")
        minima = self._round_to_float16(self._minima[tensor.name], name, "minima")
        codes = data.astype(np.uint8).reshape(*data.shape[:-2], -1)
        return (
            f"Q{bits}_1",
            _make_weight(codes, bits, self._round_to_float16(q.scale[..., 0], name, "scales"), offset=minima),
            codes.shape[:-1],
        )

    def _encode_blocks(self, name: str, tensor: Tensor, way: bool) -> tuple[str, BlockWeight, tuple[int, ...]]:
        q, data = tensor.quantization, tensor.data
        assert q is not None and data is not None
        if tensor.dtype not in _MIDDLES:
            raise _Refusal(f"is {tensor.dtype}, which no block of GGUF has")
        if not q.block_size or q.axis is None:
            raise _Refusal(
                f"has {'one scale' if q.scale.size == 1 else f'a scale for each index of axis {q.axis}'}, not one for each {BLOCK}"
            )
        last = data.ndim - (2 if way else 1)
        if q.axis != last:
            raise _Refusal(f"has its blocks along axis {q.axis}; GGUF requires blocks along the axis that is summed, here {last}")
        if q.block_size % BLOCK or data.shape[last] % BLOCK:
            raise _Refusal(f"has blocks of {q.block_size} along {data.shape[last]}, which is not a whole number of blocks of {BLOCK}")
        times, count = q.block_size // BLOCK, data.shape[last] // BLOCK
        stored, scale, points = data.astype(np.int16), q.scale, q.zero_point
        if way:
            stored, scale, points = (np.swapaxes(item, -1, -2) for item in (stored, scale, points))
        scale, points = (np.repeat(item, times, axis=-1)[..., :count] for item in (scale, points))
        middle, half = _MIDDLES[tensor.dtype], self._round_to_float16(scale, name, "scales")
        lead, is_wide = stored.shape[:-1], tensor.dtype in ("int8", "uint8")
        if (points == middle).all():
            bits = 8 if is_wide else 4
            return ("Q8_0" if is_wide else "Q4_0"), _make_weight(stored - middle + 2 ** (bits - 1), bits, half), lead
        if is_wide and (points == 16).all() and stored.min() >= 0 and stored.max() < 32:
            return "Q5_0", _make_weight(stored, 5, half), lead
        if is_wide:
            raise _Refusal("has zero points, which 8-bit blocks of GGUF do not have")
        shift = 8 if tensor.dtype == "int4" else 0
        with np.errstate(over="ignore"):
            minima = 0 - (points + shift) * half.astype(np.float32)
        return "Q4_1", _make_weight(stored + shift, 4, half, offset=self._round_to_float16(minima, name, "minima")), lead

    def _round_to_float16(self, numbers: Array, name: str, what: str) -> Array:
        """Round numbers to float16 and record the change. Raise _Refusal if they change and rounding is not allowed."""
        with np.errstate(over="ignore"):
            half = numbers.astype(np.float16)
        wrong = half.astype(np.float64) != numbers.astype(np.float64)
        if not wrong.any():
            return half
        if not np.isfinite(half).all():
            raise _Refusal(f"has {what} up to {np.abs(numbers).max():g}, outside of float16")
        if what == "scales" and not half[wrong].all():
            raise _Refusal(f"has scales down to {np.abs(numbers[wrong]).min():g}, which float16 holds as 0")
        if not self._may_round:
            raise _Refusal(f"has {what} that float16 does not hold, such as {float(numbers[wrong][0]):.9g} (-O rounding=round rounds them)")
        worst = float(np.max(np.abs(half.astype(np.float64) - numbers)[wrong] / np.abs(numbers[wrong])))
        self.changes.append(Change(f"{int(wrong.sum())} of {numbers.size} {what} of {name!r} are rounded to float16, by up to {worst:.2g}"))
        return half


def _make_weight(codes: Array, bits: int, scale: Array, offset: Array | None = None) -> BlockWeight:
    """Return a weight in blocks of 32 along the last axis."""
    flat = codes.astype(np.uint8).reshape(-1, codes.shape[-1])
    rows = scale.reshape(len(flat), -1)
    return BlockWeight(pack_words(flat, bits), bits, codes.shape[-1], rows, offset=None if offset is None else offset.reshape(rows.shape))
