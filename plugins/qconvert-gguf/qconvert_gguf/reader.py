"""A float network with the weights of a .gguf file: integers, scales and minima as the file has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import (
    Array,
    BlockWeight,
    Graph,
    InvalidModelError,
    Needs,
    Op,
    OptionError,
    Quantization,
    Tensor,
    UnsupportedError,
    fit_weight,
    format_count,
    load,
    map_file,
    numpy_dtype,
    quote_nearest,
    run_passes,
)
from qconvert_gguf.blocks import TYPES, require_finite_scales, unpack_weight
from qconvert_gguf.container import PLAIN, Stored, decode_numbers, read_header, tensor_bytes
from qconvert_gguf.places import is_transposed, read_names, require_known, swap_last_axes

_REAL = ("float32", "float16", "bfloat16")
#: The largest norm of the difference from the network's weights, relative to their norm: 4 bits cost about a tenth.
_RESEMBLANCE = 0.5
_OTHERS = f"Covered are {', '.join((*TYPES, *PLAIN))}; llama-quantize converts files to these."


def read(path: Path, options: Mapping[str, Any]) -> Graph:
    """Return the network of the option `graph`, with the weights of the file.

    Raises:
        InvalidModelError: the file is damaged, or its tensors are not those of the network.
        OptionError: no network is named.
        UnsupportedError: it has tensors of other types.
    """
    if not options.get("graph"):
        raise OptionError(
            "a .gguf file holds weights, not operators",
            remedy="Name the float network that the weights belong to: --graph float.onnx.",
            rule="graph-missing",
        )
    data = map_file(path)
    _, stored = read_header(data)
    stated = read_names(options.get("names") or "")
    graph = _network(options, {*(tensor.name for tensor in stored), *stated})
    made = _Made(graph, options)
    for name, tensor in _match_tensors(graph, stored, stated, options):
        made.put(name, tensor, tensor_bytes(data, tensor))
    if not made.tensors:
        raise InvalidModelError(
            f"the file has no weights of the network: {quote_nearest([item.name for item in stored], list(graph.tensors))}",
            rule="unknown-tensor",
        )
    return graph.evolve(tensors=made.tensors, ops=[*made.ops, *graph.ops])


def _network(options: Mapping[str, Any], names: set[str]) -> Graph:
    """Return the network, with folded constants if these then have more of the names, such as that of a transposed matrix."""
    graph = load(options["graph"])
    folded, _ = run_passes(graph, ["fold_constants"])
    return _drop_identities(max((graph, folded), key=lambda item: len(names & {tensor.name for tensor in item.constants()})))


def _drop_identities(graph: Graph) -> Graph:
    """Return the network without Identity operators of constants, so that products read their weights directly."""
    names: dict[str, str] = {}
    ops: list[Op] = []
    for op in graph:
        renamed = op.with_names(names)
        if op.kind == "Identity" and graph[renamed.inputs[0]].is_constant and op.name not in graph.public:
            names[op.name] = renamed.inputs[0]
        else:
            ops.append(renamed)
    return graph.evolve(ops=ops) if names else graph


def _match_tensors(graph: Graph, stored: list[Stored], stated: Mapping[str, str], options: Mapping[str, Any]) -> list[tuple[str, Stored]]:
    """Return the tensors of the file with their names in the network. Raise InvalidModelError or UnsupportedError for mismatches."""
    require_known(stated, graph, [tensor.name for tensor in stored], options.get("names") or "")
    names = {other: name for name, other in stated.items()}
    pairs = [(names.get(tensor.name, tensor.name), tensor) for tensor in stored]
    twice = [name for name, tensor in pairs if name in stated and stated[name] != tensor.name]
    if twice:
        raise InvalidModelError(
            "the file also has the tensor that the names state for this one", where=repr(twice[0]), rule="duplicate-name"
        )
    known = [(name, tensor) for name, tensor in pairs if name in graph.tensors and graph[name].is_constant]
    lost = [tensor.name for name, tensor in pairs if name not in graph.tensors or not graph[name].is_constant]
    if lost and options.get("rest") != "ignore":
        raise InvalidModelError(
            f"the file has {format_count(len(lost), 'tensor')} other than weights of the network: "
            f"{quote_nearest(lost, [tensor.name for tensor in graph.constants()])}",
            remedy="State names that differ in a JSON file (-O names=names.json), or leave such tensors out (-O rest=ignore).",
            rule="unknown-tensor",
        )
    others = sorted({tensor.type for _, tensor in known} - {*TYPES, *PLAIN})
    if others:
        which = [f"{name} ({sum(item.type == name for _, item in known)})" for name in others]
        first = next(tensor.name for _, tensor in known if tensor.type in others)
        raise UnsupportedError(
            f"the file has tensors of types that are not covered: {', '.join(which)}",
            where=repr(first),
            remedy=_OTHERS,
            rule="type-not-covered",
        )
    return known


class _Made:
    """The tensors and operators that replace the network's own weights.

    Attributes:
        tensors: new and changed ones.
        ops: operators that dequantize the stored weights.
    """

    def __init__(self, graph: Graph, options: Mapping[str, Any]) -> None:
        self._graph, self._consumers = graph, graph.consumers()
        self._names = graph.names()
        self._demands = options.get("resemblance") != "waive"
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []

    def put(self, name: str, stored: Stored, data: Array) -> None:
        """Replace the weights `name` with a tensor of the file."""
        own = self._graph[name]
        if own.data is None or own.dtype not in _REAL:
            raise InvalidModelError(
                f"the tensor is {own.dtype} in the network; a float tensor is required", where=repr(name), rule="not-float"
            )
        is_turned_round = is_transposed(self._graph, name, self._consumers)
        shape = swap_last_axes(own.data.shape) if is_turned_round else own.data.shape
        if _drop_leading_ones(stored.shape) != _drop_leading_ones(shape):
            raise InvalidModelError(
                f"the shape in the file is {list(stored.shape)}, the network requires {list(shape)}"
                + (f", the transpose of its weights {list(own.data.shape)}" if is_turned_round else ""),
                where=repr(name),
                rule="shape-differs",
            )
        if stored.type in PLAIN:
            values = decode_numbers(data, stored.type).reshape(shape)
            values = np.swapaxes(values, -1, -2) if is_turned_round else values
            self._require_resemblance(values, own)
            self.tensors.append(replace(own, data=_cast_exactly(values, own)))
            return
        if _drop_leading_ones(stored.shape)[-1:] != shape[-1:]:
            raise InvalidModelError(
                f"the blocks lie along an axis that has size 1 in the network: {list(stored.shape)}, {list(shape)}",
                where=repr(name),
                rule="blocks-do-not-fit",
            )
        weight = unpack_weight(data, stored.type, shape)
        require_finite_scales(weight, name)
        values = weight.values().reshape(shape)
        self._require_resemblance(np.swapaxes(values, -1, -2) if is_turned_round else values, own)
        self._add_blocks(own, _with_zero_points(weight), stored.type, shape, is_turned_round)

    def _require_resemblance(self, values: Array, own: Tensor) -> None:
        """Raise InvalidModelError if weights are far from those of the network: another tensor, or rows in another order."""
        assert own.data is not None
        wanted = own.data.astype(np.float32)
        size = float(np.linalg.norm(wanted.reshape(-1)))
        if self._demands and size and not float(np.linalg.norm((values.astype(np.float32) - wanted).reshape(-1))) <= _RESEMBLANCE * size:
            raise InvalidModelError(
                "the values are far from those of the network: this is another tensor, or its rows are in another order, as "
                "llama.cpp reorders those of queries and keys",
                where=repr(own.name),
                remedy="If the values of the network's own weights do not matter: -O resemblance=waive.",
                rule="values-differ",
            )

    def _add_tensor(self, hint: str, dtype: str, shape: tuple[int, ...], data: Array | None = None) -> str:
        name = self._names.fresh(hint)
        self.tensors.append(Tensor(name, dtype, shape, data))
        return name

    def _add_blocks(self, own: Tensor, weight: BlockWeight, type: str, shape: tuple[int, ...], is_turned_round: bool) -> None:
        """Add the integers as a quantized constant, and the operators that dequantize it."""
        self.tensors.append(replace(own, data=None))
        lead = shape[:-1]
        codes, scale = weight.codes.reshape(shape), weight.scales.reshape(*lead, -1)
        dtype = "int8" if weight.is_signed else "uint4" if weight.bits <= 4 else "uint8"
        shift = 128 if weight.is_signed else 0
        integers = (codes.astype(np.int16) - shift).astype(numpy_dtype(dtype))
        q = self._names.fresh(f"{own.name}/{type}")
        if weight.offset is not None:
            self._add_minima_blocks(own, Tensor(q, dtype, shape, integers), scale, weight.offset.reshape(*lead, -1), is_turned_round)
            return
        assert weight.zero is not None
        zeros = weight.zero.reshape(*lead, -1).astype(np.int64) - shift
        quantization = Quantization(scale, zeros, len(shape) - 1, weight.block)
        if is_turned_round:
            perm = swap_last_axes(tuple(range(len(shape))))
            integers, quantization = np.ascontiguousarray(integers.transpose(perm)), quantization.transpose(perm)
        self.tensors.append(Tensor(q, dtype, integers.shape, integers, quantization))
        self.ops.append(Op("Dequantize", (q,), (own.name,), {}, f"GGUF {own.name}"))

    def _add_minima_blocks(self, own: Tensor, stored: Tensor, scale: Array, minima: Array, is_turned_round: bool) -> None:
        """Add d * q + m as operators, since no integer zero point exists."""
        assert stored.shape is not None and stored.data is not None
        shape, source, q = stored.static_shape, f"GGUF {own.name}", stored.name
        assert shape is not None
        block = shape[-1] // scale.shape[-1]
        parts = (*shape[:-1], scale.shape[-1], block)
        quantization = Quantization(scale[..., None], np.zeros((*scale.shape, 1), np.int64), len(parts) - 1, block)
        self.tensors.append(Tensor(q, stored.dtype, parts, stored.data.reshape(parts), quantization))
        m = self._add_tensor(f"{own.name}/minima", "float32", (*parts[:-1], 1), minima.astype(np.float32)[..., None])
        sizes = self._add_tensor(f"{own.name}/shape", "int64", (len(shape),), np.array(shape, np.int64))
        steps, sums = (self._add_tensor(f"{own.name}/{hint}", "float32", parts) for hint in ("products", "sums"))
        self.ops += [Op("Dequantize", (q,), (steps,), {}, source), Op("Add", (steps, m), (sums,), {}, source)]
        ends = [*(["Transpose"] if is_turned_round else []), *(["Cast"] if own.dtype != "float32" else [])]
        rows = own.name if not ends else self._add_tensor(f"{own.name}/rows", "float32", shape)
        self.ops.append(Op("Reshape", (sums, sizes), (rows,), {}, source))
        for kind in ends:
            last = kind == ends[-1]
            result = own.name if last else self._add_tensor(f"{own.name}/turned", "float32", swap_last_axes(shape))
            perm = swap_last_axes(tuple(range(len(shape))))
            self.ops.append(Op(kind, (rows,), (result,), {"perm": perm} if kind == "Transpose" else {"to": own.dtype}, source))
            rows = result


def _with_zero_points(weight: BlockWeight) -> BlockWeight:
    """Return the weight with integers instead of a table, and with zero points if they express all minima exactly."""
    weight = weight.integers()
    if weight.offset is None:
        return weight
    found = fit_weight(weight, Needs((weight.bits,), zeros=lambda bits: (0, 2**bits - 1), scales=("float32",)))
    return found if isinstance(found, BlockWeight) else weight


def _drop_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its leading ones, which ggml drops."""
    first = next((i for i, size in enumerate(shape) if size != 1), len(shape))
    return shape[first:]


def _cast_exactly(values: Array, own: Tensor) -> Array:
    """Cast numbers to the type in the network. Raise UnsupportedError if a value changes."""
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(values.astype(numpy_dtype(own.dtype)))
    if not np.array_equal(found.astype(np.float32), values.astype(np.float32), equal_nan=True):
        raise UnsupportedError(
            f"a value is outside of {own.dtype}, the type in the network", where=repr(own.name), rule="value-outside-type"
        )
    return found.reshape(own.shape)
