"""Linear layers that a network has as one and its file as several, or under another name: versions of transformers differ in that.

Weights of a mixture of experts: a network has those of all experts in one tensor, its file a layer for each expert, perhaps under other
names. Versions of transformers differ in both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qconvert.conversion.states.network import member, module_of, rename_parameters
from qconvert.errors import UnsupportedError, format_count
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.operators import kind_of
from qconvert.plugins import Decoding, Parameters
from qconvert.rewriting import Rewriter

#: A layer of a network -> the layers of a file whose outputs, one after another, are its own (conversion_mapping.py of transformers).
PARTS_OF_LAYERS: Mapping[str, tuple[str, ...]] = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "lm_head": ("embed_out",),
}


def split_joined_layers(graph: Graph, known: Mapping[str, Tensor]) -> Graph:
    """Return the graph with the layers that the file has, each of them a product of its own, and their results joined.

    Args:
        graph: whose linear layers are Gemm.
        known: the tensors of the file, by names of the graph.
    """
    rewriter = Rewriter(graph)
    for op in rewriter:
        _split_layer(rewriter, op, known)
    return rewriter.finish()


def _split_layer(rewriter: Rewriter, op: Op, known: Mapping[str, Tensor]) -> None:
    """Put the operators that compute what a layer does in its place; where the file has it as it is, it stays."""
    graph, kind = rewriter.graph, kind_of(op)
    modules = _find_modules(op.inputs[1], known) if kind.has_weights and kind.is_matrix_product else ()
    sizes = [(known[member(module, "weight")].static_shape or (0,))[0] for module in modules]
    constants = [graph[name] for name in op.inputs[1:] if name]
    if not modules or any(constant.data is None or len(constant.data) != sum(sizes) for constant in constants):
        return
    whole = graph[op.name]
    shape = whole.shape or ()
    ops = []
    for module, end, size in zip(modules, np.cumsum(sizes), sizes, strict=True):
        inputs = [op.inputs[0]]
        for part, constant in zip(("weight", "bias"), constants, strict=False):
            assert constant.data is not None
            rows = constant.data[end - size : end]
            inputs.append(rewriter.add(member(module, part), constant, shape=rows.shape, data=rows))
        result = whole.name if len(modules) == 1 else rewriter.add(f"{module}/result", whole, shape=(*shape[:-1], size))
        ops.append(replace(op, inputs=tuple(inputs), outputs=(result,)))
    if len(modules) > 1:
        ops.append(op.derive("Concat", tuple(part.outputs[0] for part in ops), op.outputs, axis=len(shape) - 1))
    rewriter.replace(op, *ops)


def _find_modules(weight: str, known: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the layers of the file that a layer of the network with this weight consists of; none where the file has it as it is."""
    around, _, own = module_of(weight).rpartition(".")
    modules = tuple(member(around, part) for part in PARTS_OF_LAYERS.get(own, ()))
    return modules if weight not in known and all(member(module, "weight") in known for module in modules) else ()


#: What some versions call a part of a path, and others (conversion_mapping.py of transformers, of Mixtral).
_USUAL = {"block_sparse_moe": "mlp", "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
#: gpt-oss, whose file has gate and up of an expert in one layer, multiplies by matrices that are turned.
_TURNED = (0, 2, 1)


def join_experts(parameters: Parameters, graph: Graph, modules: Collection[str]) -> Parameters:
    """Return the parameters under the names that the graph has, with one tensor for all experts where the graph has one.

    Args:
        parameters: of the file.
        graph: of the network.
        modules: of the network, as far as its file tells.

    Raises:
        UnsupportedError: experts are stored in different ways, or their data in another order than others.
    """
    known = {*modules, *(tensor.name for tensor in graph.constants())}
    by_usual_name = {_usual_name(name): name for name in known}

    def name_in_graph(name: str) -> str:
        around, _, own = name.rpartition(".")
        module = by_usual_name.get(_usual_name(around), around)
        found = by_usual_name.get(_usual_name(name)) or member(module, own)
        return name if name in known or found in parameters.tensors else found

    parameters = rename_parameters(parameters, name_in_graph)
    stored = {_usual_name(name): name for name in parameters.tensors}
    for tensor in graph.constants():
        if tensor.rank == 3 and tensor.name not in parameters.tensors:
            names = _find_experts(tensor, stored)
            is_turned = member(_usual_name(module_of(tensor.name)), "0.gate_up_proj.weight") in stored
            parameters = _join(parameters, tensor.name, names, is_turned=is_turned) if names else parameters
    return parameters


def _usual_name(name: str) -> str:
    return ".".join(_USUAL.get(part, part) for part in name.split("."))


def _find_experts(tensor: Tensor, stored: Mapping[str, str]) -> list[list[str]]:
    """Return the file's tensors of each expert that a tensor of the network has the rows of; none where the file lacks one."""
    around, _, own = _usual_name(tensor.name).rpartition(".")
    experts = range((tensor.static_shape or (0,))[0])
    for parts in ((own,), PARTS_OF_LAYERS.get(own, ())):
        if not parts or member(around, f"0.{parts[0]}.weight") not in stored:
            continue
        names = [[member(around, f"{expert}.{part}.weight") for part in parts] for expert in experts]
        if all(name in stored for item in names for name in item):
            return [[stored[name] for name in item] for item in names]
    return []


def _join(parameters: Parameters, name: str, names: Sequence[Sequence[str]], *, is_turned: bool) -> Parameters:
    """Return the parameters with tensors of experts as one, [E, N, K], or [E, K, N] where it is turned."""
    parts = [part for item in names for part in item]
    if any(module_of(part) in adjusted for part in parts for adjusted in (parameters.orders, parameters.factors)):
        raise UnsupportedError(
            "data of an expert are in another order (act-order) or multiplied by factors (pre_quant_scale), and the network has all "
            "experts in one tensor",
            where=repr(name),
            rule="blocks-not-covered",
        )
    taken = {*parts}
    tensors = {part: tensor for part, tensor in parameters.tensors.items() if part not in taken}
    decodings = {part: decoding for part, decoding in parameters.decodings.items() if part in tensors}
    joined, decoding = _join_rows(name, [parameters.tensors[part] for part in parts], [parameters.decodings.get(part) for part in parts])
    assert joined.data is not None
    sizes = len(names), len(joined.data) // len(names)

    def divide(numbers: Array) -> Array:
        return numbers.reshape(*sizes, -1)

    data, quantization = divide(joined.data), joined.quantization
    if quantization is not None and quantization.axis is not None:
        quantization = replace(quantization, scale=divide(quantization.scale), zero_point=divide(quantization.zero_point), axis=2)
    if is_turned:
        data, quantization = data.transpose(_TURNED), quantization and quantization.transpose(_TURNED)
    tensors[name] = replace(joined, shape=data.shape, data=data, quantization=quantization)
    if decoding is not None:
        offsets = None if decoding.offsets is None else divide(decoding.offsets)
        decodings[name] = replace(decoding, scales=divide(decoding.scales), offsets=offsets)
    rounded = {module: how for module, how in parameters.rounded.items() if member(module, "weight") in tensors}
    left_out = len(parameters.rounded) - len(rounded)
    note = f"data of {name} stay float, which the checkpoint states to be rounded for {format_count(left_out, 'layer')} of experts"
    notes = (*parameters.notes, note) if left_out else parameters.notes
    return replace(parameters, tensors=tensors, decodings=decodings, rounded=rounded, notes=notes)


def _join_rows(name: str, tensors: Sequence[Tensor], decodings: Sequence[Decoding | None]) -> tuple[Tensor, Decoding | None]:
    """Return matrices as one, with the rows of one after those of another, and how its values come about."""
    decoded = [decoding for decoding in decodings if decoding is not None]
    sizes = {(tensor.dtype, tensor.is_quantized, tensor.shape) for tensor in tensors}
    ways = {(decoding.offsets is None, decoding.factor, decoding.table is not None and decoding.table.tobytes()) for decoding in decoded}
    arrays = [tensor.data for tensor in tensors if tensor.data is not None and tensor.rank == 2]
    if len(sizes) > 1 or len(ways) > 1 or len(decoded) % len(tensors) or len(arrays) < len(tensors):
        raise _different_ways_error(name)
    data = np.concatenate(arrays)
    joined = Tensor(name, tensors[0].dtype, data.shape, data, tensors[0].quantization)
    if decoded and decoded[0].table is not None:
        return joined, replace(decoded[0], scales=_join_blocks(name, [decoding.scales for decoding in decoded]))
    stated = [tensor.quantization for tensor in tensors if tensor.quantization is not None]
    if not stated:
        return joined, None
    scale, zero_point = (
        _join_blocks(name, [_numbers_of_rows(numbers, len(item)) for numbers, item in zip(found, arrays, strict=True)])
        for found in ([q.scale for q in stated], [q.zero_point for q in stated])
    )
    quantization = Quantization(scale, zero_point, 1, data.shape[1] // scale.shape[1])
    offsets = [decoding.offsets for decoding in decoded if decoding.offsets is not None]
    decoding = replace(decoded[0], scales=scale, offsets=_join_blocks(name, offsets) if offsets else None) if decoded else None
    return replace(joined, quantization=quantization), decoding


def _numbers_of_rows(numbers: Array, rows: int) -> Array:
    """Return scales or zero points as one for each row and block, [N, G]."""
    return numbers if numbers.ndim == 2 else np.broadcast_to(numbers[:, None], (rows, 1))


def _join_blocks(name: str, numbers: Sequence[Array]) -> Array:
    """Return numbers of the blocks of all rows, of larger blocks as those of smaller ones."""
    most = max(item.shape[1] for item in numbers)
    if any(most % item.shape[1] for item in numbers):
        raise _different_ways_error(name)
    return np.concatenate([np.repeat(item, most // item.shape[1], axis=1) for item in numbers])


def _different_ways_error(name: str) -> UnsupportedError:
    return UnsupportedError("experts are stored in different ways", where=repr(name), rule="blocks-not-covered")
