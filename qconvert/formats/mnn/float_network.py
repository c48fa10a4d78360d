"""The float network that MNN's converter reads: its quantizations, the roundings that are operators in it, and biases that are changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import affine_range, compensate_mnn_bias
from qconvert.encodings import Encodings, Place, QParams, extract_encodings
from qconvert.formats.mnn.layers import MNN_KERNELS, Layer
from qconvert.graph import Graph, Op
from qconvert.kernels.mnn import is_depthwise_in_mnn
from qconvert.operators import kind_of
from qconvert.operators.properties import Suits
from qconvert.rewriting import Rewriter

#: In sums with it float32 keeps whole numbers alone, of up to 2^22 in size: 1.5 * 2^23.
_WHOLE = np.float32(12582912)
_DTYPES = ("int2", "int4", "uint4", "int8", "uint8", "int16", "uint16")
#: How far from a whole number of steps a bound may be that counts as one.
_NEAR = 1e-4


def is_rounding(network: Graph, op: Op, encodings: Encodings, readers: Mapping[str, Sequence[Op]]) -> bool:
    """Return whether an Identity rounds: to another quantization, or float values that others read as they are."""
    if not kind_of(op).copies or network[op.inputs[0]].is_constant:
        return False
    before, after = (_quantization(encodings, name) for name in (op.inputs[0], op.outputs[0]))
    if after is None or Place(op.inputs[0]) not in encodings.entries:
        return after is not None and (len(readers[op.inputs[0]]) > 1 or op.inputs[0] in network.outputs)
    return before is not None and _steps(before) != _steps(after)


def insert_roundings(
    network: Graph,
    encodings: Encodings,
    layers: Sequence[Layer],
    exact: Set[str],
    called: Mapping[str, str],
) -> tuple[Graph, list[str]]:
    """Return the float network with operators for the roundings that a reader or an output needs, and the names of the rounded tensors.

    Args:
        network: of float values; an Identity between two quantizations rounds.
        encodings: the quantizations of its tensors.
        layers: those of it that run on integers.
        exact: inputs that have their quantizations when they are given.
        called: tensors that are called otherwise once they are rounded.
    """
    wanted = _find_roundings(network, encodings, layers, exact)
    rewriter, instead = Rewriter(network), dict[str, str]()
    for name in network.inputs:
        if name in wanted:
            instead[name] = rewriter.add(called.get(name, f"{name}/rounded"), network[name])
            rewriter.emit(*_round(rewriter, name, instead[name], wanted[name]))
    for op in rewriter:
        inputs = tuple(instead.get(name, name) for name in op.inputs)
        if is_rounding(network, op, encodings, rewriter.readers):
            if op.outputs[0] in wanted:
                rewriter.replace(op, *_round(rewriter, inputs[0], op.outputs[0], wanted[op.outputs[0]]))
            else:
                instead[op.outputs[0]] = inputs[0]
                rewriter.remove(op)
            continue
        real = {name: rewriter.add(f"{name}/real", network[name]) for name in op.outputs if name in wanted and name not in called}
        ops = [replace(op, inputs=inputs, outputs=tuple(real.get(name, name) for name in op.outputs))]
        for name in wanted.keys() & set(op.outputs):
            if name in called:
                instead[name] = rewriter.add(called[name], network[name])
            ops += _round(rewriter, real.get(name, name), instead.get(name, name), wanted[name])
        rewriter.replace(op, *ops)
    return rewriter.finish(), list(wanted)


def _round(rewriter: Rewriter, source: str, result: str, quantization: QParams) -> Iterator[Op]:
    """Yield the operators that round `source` to a quantization, as `result`."""
    step, like = quantization.quantization.scale.reshape(-1)[0], rewriter[result]
    pairs = zip(("lowest", "highest"), _float_limits(quantization), strict=True)
    ends = [rewriter.constant(f"{result}/{hint}", np.asarray(end)) for hint, end in pairs]
    before = rewriter.add(f"{result}/cut", like)
    yield Op("Clip", (source, *ends), (before,))
    for kind, by in (("Div", step), ("Add", _WHOLE), ("Sub", _WHOLE), ("Mul", step)):
        after = result if kind == "Mul" else rewriter.add(f"{result}/{kind}", like)
        yield Op(kind, (before, rewriter.constant(f"{result}/{kind}/by", np.asarray(by))), (after,))
        before = after


def _quantization(encodings: Encodings, name: str) -> QParams | None:
    """Return the quantization of a tensor, if it is one that can be written."""
    found = encodings.entries.get(Place(name))
    qparams = found.qparams if found is not None and found.integers is None else None
    return qparams if qparams is not None and qparams.dtype in _DTYPES and qparams.quantization.scale.size == 1 else None


def _float_limits(quantization: QParams) -> tuple[np.float32, np.float32]:
    """Return the smallest and the largest float value of a quantization."""
    low, high = (np.float32(end.reshape(-1)[0]) for end in affine_range(quantization.quantization, quantization.dtype))
    return low, high


def _steps(quantization: QParams) -> tuple[float, ...]:
    """Return the scale, the smallest and the largest float value of a quantization."""
    return quantization.quantization.step, *map(float, _float_limits(quantization))


def _find_roundings(network: Graph, encodings: Encodings, layers: Sequence[Layer], exact: Set[str]) -> dict[str, QParams]:
    """Return the tensors to round: nothing rounds them to their quantization before a reader that needs rounded values."""
    quantizations = {name: quantization for name in network.tensors if (quantization := _quantization(encodings, name)) is not None}
    readers = network.consumers()
    integer = _find_integer_tensors(network, quantizations, layers, exact)
    seen = _find_float_reads(network, quantizations, layers, integer)
    held, found = {*exact, *integer}, dict[str, QParams]()
    found.update((name, quantizations[name]) for name in network.inputs if name in quantizations and name in seen and name not in held)
    held.update(found)
    for op in network.ops:
        again = is_rounding(network, op, encodings, readers)
        keeps = (
            not again
            and held.issuperset(_data(op))
            and _has_one_quantization(op, quantizations)
            and (kind_of(op).rule == "move" or _is_clip_on_steps(network, op, quantizations))
        )
        for name in op.outputs:
            wanted = name in seen or _is_scale_passed_back(op) or (again and op.inputs[0] in quantizations)
            if not keeps and name in quantizations and name not in held and wanted:
                found[name] = quantizations[name]
            if keeps or name in found:
                held.add(name)
    return found


def _is_scale_passed_back(op: Op) -> bool:
    """Return whether MNN gives the data the scale of the result too, so that the operator before rounds them: also of pools and resizes."""
    kind = kind_of(op)
    return kind.rule == "move" or (kind.keeps_range and kind.layout.suits is Suits.DECIDES)


def _data(op: Op) -> Sequence[str]:
    kind = kind_of(op)
    return kind.moved_inputs(op) if kind.rule == "move" else op.inputs[:1]


def _has_one_quantization(op: Op, quantizations: Mapping[str, QParams]) -> bool:
    """Return whether data and results have one quantization."""
    names = (*_data(op), *op.outputs)
    return all(name in quantizations for name in names) and len({_steps(quantizations[name]) for name in names}) == 1


def _find_integer_tensors(network: Graph, quantizations: Mapping[str, QParams], layers: Sequence[Layer], exact: Set[str]) -> set[str]:
    """Return the tensors that MNN stores as integers: results of layers, copies of these, and sums between layers."""
    scaled = {layer.data.name for layer in layers}
    found = {*(layer.result.name for layer in layers), *scaled.intersection(exact)}
    for op in network.ops:
        kind = kind_of(op)
        moves = kind.rule == "move" and _has_one_quantization(op, quantizations)
        if moves and found.issuperset(_data(op)):
            found.update(op.outputs)
        is_integer = kind.affine is not None and bool(MNN_KERNELS.rows_for(op))  # sums and products
        if is_integer and scaled.issuperset(op.outputs) and found.issuperset(op.inputs):
            found.update(op.outputs)
    return found


def _find_float_reads(network: Graph, quantizations: Mapping[str, QParams], layers: Sequence[Layer], integer: set[str]) -> set[str]:
    """Return outputs, and tensors that operators in float read, also after data movement. Layers round their data themselves."""
    own = {(layer.data.name, layer.weights) for layer in layers}
    found = set(network.outputs)
    for op in reversed(network.ops):
        if op.inputs[:2] in own:
            continue
        moves = kind_of(op).rule == "move" and _has_one_quantization(op, quantizations)
        if not (found.isdisjoint(op.outputs) if moves else integer.issuperset(op.outputs)):
            found.update(op.inputs)
    return found - integer


def _is_clip_on_steps(network: Graph, op: Op, quantizations: Mapping[str, QParams]) -> bool:
    """Return whether an operator clips, and its limits are numbers of its quantization, or beyond these."""
    quantization, limits = quantizations.get(op.outputs[0]), kind_of(op).limits(op, network.constant)
    if quantization is None or limits is None:
        return False
    low, high = _float_limits(quantization)
    steps = [limit / quantization.quantization.step for limit in limits if limit is not None and low < limit < high]
    return all(abs(step - round(step)) <= _NEAR for step in steps)


def split_encodings(graph: Graph, exact: bool = True) -> tuple[Graph, Encodings]:
    """Return the graph in float, and the quantizations that its tensors had, with their integers.

    MNN's converter drops an Identity, and one of its names. So the result has an Identity only between two visible names, and where it
    rounds to another quantization (insert_roundings writes these).

    Args:
        graph: the quantized graph.
        exact: whether such an Identity rounds. Otherwise a requantized tensor has the quantization on which it was computed, and the name
            of the output that it becomes.

    Raises:
        UnsupportedError: the graph has a Reinterpret of stored integers, which has no form in float.
    """
    network, encodings = extract_encodings(graph)
    readers = network.consumers()
    dropped = [op for op in network.of_kind("Identity") if not (exact and is_rounding(network, op, encodings, readers))]
    names = _merge_names(network, dropped)
    renamed = [op.with_names(names) for op in network.ops]
    ops = [op for op in renamed if not kind_of(op).copies or op.inputs != op.outputs]
    computed = {name: place for name in names if (place := Place(name)) in encodings.entries and names[name] in network.public}
    entries = {place: found for place, found in encodings.entries.items() if place.name not in names}
    entries.update({Place(names[name]): encodings[place] for name, place in computed.items()})
    tensors = [replace(network[name], name=new) for name, new in names.items() if new in network.public]
    return network.evolve(tensors=tensors, ops=ops), encodings.evolve(entries)


def rounded_names(graph: Graph, network: Graph) -> dict[str, str]:
    """Return float value -> result of the only Quantize that reads it, if the float network has no tensor of that name."""
    readers = graph.consumers()
    found = {op.inputs[0]: op.outputs[0] for op in graph.of_kind("Quantize") if len(readers[op.inputs[0]]) == 1}
    return {name: after for name, after in found.items() if after not in network.tensors}


def _merge_names(network: Graph, dropped: Sequence[Op]) -> dict[str, str]:
    """Return the tensors on both sides of an Identity that get the name of the other."""
    seen = {*network.inputs, *network.public, *(tensor.name for tensor in network.constants())}
    found: dict[str, str] = {}
    for op in dropped:
        source, result = found.get(op.inputs[0], op.inputs[0]), op.outputs[0]
        if result not in network.public:
            found[result] = source
        elif source not in seen:
            found.update({name: result for name, known in found.items() if known == source})
            found[source] = result
            seen.add(result)
    return found


def isolate_inexact_operators(network: Graph) -> Graph:
    """Return the network with a Max before and after each operator whose kernel of integers is inexact (kernels/mnn.py).

    MNN runs an operator on integers once data and result have scales, which it passes on through pools and resizes. It has no kernel of
    integers for a Max with a constant, so that what is between two has no scale and is computed in float. A Max with the least float32
    changes no value.
    """
    rewriter, least = Rewriter(network), np.array(np.finfo(np.float32).min)
    for op in rewriter:
        if not any(row.lacks is None or not row.lacks(network, op) for row in MNN_KERNELS.rows_for(op, "inexact")):
            continue
        source, result, bound = network[op.inputs[0]], network[op.outputs[0]], rewriter.shared_constant("least_float32", least)
        before = rewriter.compute("Max", (source.name, bound), f"{source.name}/float", source)
        after = rewriter.add(f"{result.name}/float", result)
        inner = replace(op, inputs=(before, *op.inputs[1:]), outputs=(after,))
        rewriter.replace(op, inner, Op("Max", (after, bound), (result.name,)))
    return rewriter.finish()


def compensate_biases(network: Graph, layers: Sequence[Layer]) -> tuple[Graph, int]:
    """Return the network with biases of depthwise layers that make up for what MNN cuts off, and the number of changed values.

    Args:
        network: of float values.
        layers: those of it that are to run on integers.
    """
    by_weights = {layer.weights: layer for layer in layers}
    rewriter, count = Rewriter(network), 0
    for op in rewriter:
        layer = by_weights.get(op.inputs[1]) if is_depthwise_in_mnn(network, op) else None
        bias = None if layer is None else network[op.inputs[2]].data if op.has(2) else np.zeros(len(layer.scales), np.float32)
        if layer is not None and bias is not None and bias.shape == (len(layer.scales),):
            values, units = compensate_mnn_bias(bias, layer.data.scale, layer.scales, layer.result.scale, layer.result.zero_point)
            name = rewriter.constant(f"{op.inputs[2] if op.has(2) else op.outputs[0]}/compensated", values)
            rewriter.replace(op, op.with_input(2, name))
            count += int(np.count_nonzero(units))
    return rewriter.finish(), count
