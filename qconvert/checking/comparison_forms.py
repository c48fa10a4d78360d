"""Forms to which two graphs are brought before they are compared: one form for TFLite and ONNX, the form without attributes of one
framework, and numbers for sizes that are known only at run time.

TFLite has padding of a convolution as SAME or as a Pad in front, a Slice after a transposed one, nothing over one dimension, global pooling
as a reduction, and no names for sizes that are known only at run time. None of this changes a value.

The plain form is without attributes for one framework's rounding, activations that a quantization implies, the axis of a single scale, and
Reshapes to the same shape. Formats without such attributes decompose them as further operators or leave them away, so only plain graphs can
be expected back. TFLite, which has no Identity, holds one as a RESHAPE.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count

import numpy as np

from qconvert.arithmetic import dequantize
from qconvert.checking.outputs import Border
from qconvert.data.input_limits import sizes_to_try
from qconvert.errors import InvalidGraphError, format_count, format_verb
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS, clip_range, simplest_activation
from qconvert.kernels.products import count_ones
from qconvert.operators import is_dynamic, kind_of
from qconvert.operators.properties import permutation
from qconvert.operators.shapes_and_functions import infer
from qconvert.operators.sizes import explicit_pads
from qconvert.passes.absorb_quantization import absorb_quantization
from qconvert.passes.batch_norms import fold_qat_batch_norm
from qconvert.passes.constants import fold_constants, remove_dead_code
from qconvert.passes.convolutions import crop, dense_weights, widen_1d
from qconvert.passes.gemms import matmul_to_gemm
from qconvert.passes.pads_and_dilations import fuse_pads
from qconvert.rewriting import Rewriter

#: What a weight of an average may be off the reciprocal of its number of elements by rounding alone, as a share of it.
_CLOSE = 2.0**-20


def to_comparison_form(graph: Graph) -> Graph:
    """The graph with quantized operators wherever they can be, padding in convolutions, reductions for global pooling, convolutions and
    pools over two dimensions where they are over one, and equal forms of what has several: axes, sizes of a Reshape, groups and borders of
    transposed convolutions, sizes known only at run time, and values that only get another name."""
    graph = _read_indices_directly(_remove_identities(_drop_size_names(graph)))
    graph, _ = fold_qat_batch_norm(matmul_to_gemm(graph, None)[0], None)
    graph, _ = absorb_quantization(graph, None)
    graph, _ = fuse_pads(_remove_identities(graph), lambda op: True)
    graph, _ = dense_weights(widen_1d(graph, None)[0], None)
    graph = _read_averages(_crop_transposed(graph))
    tensors: dict[str, Tensor] = {}
    ops = [op if (canonical := kind_of(op).canonical) is None else canonical(graph, op, tensors) for op in graph.ops]
    rewriter = Rewriter(graph.evolve(tensors=tensors.values(), ops=ops))
    for op in rewriter:
        parts = [_dequantize_bounds(rewriter, part) for part in _split_op(rewriter, op)]
        if parts[0] is not op:
            rewriter.replace(op, *parts)
    return rewriter.finish()


def _crop_transposed(graph: Graph) -> Graph:
    """With transposed convolutions that give all positions, and Slices of these where they crop them."""
    rewriter = Rewriter(graph)
    for op in (op for op in rewriter if kind_of(op).spreads):
        pads, added = explicit_pads(op, len(op["strides"])), op["output_padding"]
        if any(min(ends) < 0 for ends in pads):
            continue
        # A position that is added at an end and cropped there is none.
        none = [min(more, high) for more, (_, high) in zip(added, pads, strict=True)]
        ends = [high - less for (_, high), less in zip(pads, none, strict=True)]
        added = tuple(more - less for more, less in zip(added, none, strict=True))
        whole = op.with_attributes(pads=(*(low for low, _ in pads), *ends), output_padding=added)
        rewriter.replace(op, *(crop(rewriter, whole, [0] * len(pads)) or [whole]))
    return rewriter.finish()


def _read_averages(graph: Graph) -> Graph:
    """With averages where convolutions with ones give them, as forms of averages that round in another way do."""
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("Conv"):
        count = count_ones(graph, op)
        scale = graph[op.inputs[1]].per_tensor
        if count is None or scale is None or abs(scale.step * count - 1) > _CLOSE or any(step != 1 for step in op["dilations"]):
            continue
        attributes = {name: op.attributes[name] for name in ("strides", "data_format", "activation") if name in op.attributes}
        sizes = (graph[op.inputs[1]].static_shape or ())[2:]
        made = op.derive("AveragePool", op.inputs[:1], op.outputs, **attributes, kernel_shape=sizes, pads=(0,) * (2 * len(sizes)))
        rewriter.replace(op, made)
    return rewriter.finish()


def _read_indices_directly(graph: Graph) -> Graph:
    """Without those that count indices of a Gather from the front, for runtimes that know no others."""
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("Gather"):
        wrap, rows = rewriter.producers.find(op.inputs[1], "FloorMod"), graph[op.inputs[0]].static_shape
        size = graph.constant(wrap.inputs[1]) if wrap is not None else None
        if wrap is not None and rows is not None and size is not None and size.tolist() == rows[int(op["axis"])]:
            rewriter.replace(op, op.with_input(1, wrap.inputs[0]))
    return rewriter.finish(prune=rewriter.is_changed)


def _split_op(rewriter: Rewriter, op: Op) -> list[Op]:
    """A Clip as the Max and Min that TFLite has, and an activation of float values by itself."""
    result = rewriter[op.outputs[0]] if op.outputs else None
    if kind_of(op).clips and result is not None and op.has(1) and op.has(2):
        lower = rewriter.add(f"{result.name}/lower", result)
        return [op.derive("Max", op.inputs[:2], (lower,)), op.derive("Min", (lower, op.inputs[2]), op.outputs)]
    if op.attributes.get("activation") == "relu" and result is not None and not result.is_quantized:
        whole = rewriter.add(f"{result.name}/whole", result)
        return [replace(op.with_attributes(activation=""), outputs=(whole,)), op.derive("Relu", (whole,), op.outputs)]
    return [op]


def _dequantize_bounds(rewriter: Rewriter, op: Op) -> Op:
    """A Max or Min of quantized data and one quantized number, as of that real number."""
    real: dict[str, str] = {}
    for name in op.inputs if kind_of(op).picks else ():
        tensor = rewriter[name]
        if tensor.data is not None and tensor.data.size == 1 and tensor.quantization is not None:
            real[name] = rewriter.constant(f"{name}/real", np.asarray(dequantize(tensor.data, tensor.quantization), np.float32))
    return op.with_names(real) if real else op


def _drop_size_names(graph: Graph) -> Graph:
    def drop_names(tensor: Tensor) -> Tensor:
        assert tensor.shape is not None
        return replace(tensor, shape=tuple("?" if isinstance(size, str) else size for size in tensor.shape))

    return graph.evolve(tensors=[drop_names(t) for t in graph.tensors.values() if t.shape is not None and t.static_shape is None])


def _remove_identities(graph: Graph) -> Graph:
    """Without those that only rename a value that an operator computes for nobody else."""
    rewriter = Rewriter(graph)
    for op in (op for op in rewriter if kind_of(op).copies):
        source = rewriter.resolve(op.inputs[0])
        if op.name not in graph.public:
            rewriter.forward(op.name, source)
        elif source in rewriter.producers and rewriter.is_read_once(source):
            rewriter.define(replace(graph[source], name=op.name))
            rewriter.rename(source, op.name)
        else:
            continue
        rewriter.remove(op)
    return rewriter.finish()


def to_plain_form(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph with all operators rounding to the nearest integer, ties to even, and the changes in words."""
    kept = [_reshape_to_identity(graph, op) for op in graph.ops]
    if named := sum(new is not old for new, old in zip(kept, graph.ops, strict=True)):
        graph, _ = remove_dead_code(graph.evolve(ops=kept), None)
    ops = [_simplify_activation(graph, op) for op in graph.ops]
    implied = sum(new is not old for new, old in zip(ops, graph.ops, strict=True))
    rounded = [_round_to_even(op) for op in ops]
    changed = sum(new is not old for new, old in zip(rounded, ops, strict=True))
    single = [_make_per_tensor(tensor) for tensor in graph.tensors.values() if _has_one_scale(tensor)]
    if not named and not implied and not changed and not single:
        return graph, ()
    notes = [
        f"{format_count(implied, 'activation', 'are')} removed or simplified, because quantization of the output clips to the same range"
    ] * bool(implied)
    notes += [f"{named} Reshape that change no shape are Identity"] * bool(named)
    notes += [f"{format_count(changed, 'operator', 'round')} ties to even instead of as the source's kernels do"] * bool(changed)
    notes += [
        f"{format_count(len(single), 'tensor')} with one scale along an axis {format_verb(len(single), 'have')} it for the whole tensor"
    ] * bool(single)
    return graph.evolve(tensors=single, ops=rounded), tuple(notes)


def _has_one_scale(tensor: Tensor) -> bool:
    q = tensor.quantization
    return q is not None and q.axis is not None and q.scale.size == 1 and not q.block_size


def _make_per_tensor(tensor: Tensor) -> Tensor:
    assert tensor.quantization is not None
    return replace(tensor, quantization=replace(tensor.quantization, axis=None))


def _reshape_to_identity(graph: Graph, op: Op) -> Op:
    """An Identity for a Reshape that changes neither shape nor quantization."""
    if not kind_of(op).keeps_order:
        return op
    source, result = graph[op.inputs[0]], graph[op.outputs[0]]
    same = source.static_shape is not None and source.static_shape == result.static_shape and source.shares_quantization(result)
    return op.derive("Identity", op.inputs[:1], op.outputs) if same else op


def _simplify_activation(graph: Graph, op: Op) -> Op:
    """The first activation of ACTIVATIONS that leaves the same integers: none if the whole quantization is left, relu for relu6 of (0,
    6)."""
    name = str(op.attributes.get("activation", ""))
    tensor = graph[op.outputs[0]] if op.outputs else None
    if not name or tensor is None or tensor.per_tensor is None:
        return op
    found = simplest_activation(tensor, clip_range(tensor, ACTIVATIONS[name]))
    return op if found is None or found == name else op.with_attributes(activation=found)


def _round_to_even(op: Op) -> Op:
    return op.with_attributes(arithmetic="") if op.attributes.get("arithmetic") and not is_dynamic(op) else op


def fix_sizes(border: Border) -> list[tuple[Graph, Graph]]:
    """Both graphs with one number for each size of an input that is known only at run time, then with other numbers: what is a constant in
    one graph may be a size in the other. The result is as it is where it does not take the numbers.

    What is computed of sizes is constant then, if no two of them have the same number.
    """
    tried, source = sizes_to_try(border.graph), border.graph
    listed = [*tried[1:], tried[0]]  # the first one has batches of 1, whose axis may stand anywhere
    for numbers in (*map(_tell_apart, listed), *listed):
        try:
            source = _set_sizes(border.graph, numbers)
            graphs = source, _set_sizes(border.other, _find_result_sizes(border, source))
        except InvalidGraphError:
            continue
        return [_fold_sizes(graphs, numbers), *_fix_other_sizes(border, numbers)]
    return [(source, border.other)]


def _fix_other_sizes(border: Border, numbers: Mapping[str, int]) -> Iterator[tuple[Graph, Graph]]:
    """Both graphs with other numbers for as many sizes as the source and the inputs of the result take; nothing if that is none."""
    others, source, are_apart = dict(numbers), border.graph, len({*numbers.values()}) == len(numbers)
    places = {name: place * are_apart for place, name in enumerate(numbers)}
    larger = {name: number + 5 * places[name] + 1 for name, number in numbers.items()}  # neither the same sums nor the same multiples
    multiples = {name: number * (places[name] + 2) for name, number in numbers.items()}
    for given in (larger, multiples):
        for names in ([*numbers], *([name] for name in numbers)):
            tried = {**others, **{name: given[name] for name in names if others[name] == numbers[name]}}
            if tried == others or (are_apart and len({*tried.values()}) < len(tried)):
                continue
            try:
                found = _set_sizes(border.graph, tried)
            except InvalidGraphError:
                continue
            if all(_fits(found[name], border.other[other], name in border.turned) for name, other in border.inputs.items()):
                others, source = tried, found
    if others != numbers:
        try:
            yield _fold_sizes((source, _set_sizes(border.other, _find_result_sizes(border, source))), others)
        except InvalidGraphError:
            yield source, border.other


def _fits(own: Tensor, other: Tensor, is_turned: bool) -> bool:
    """Whether an input of the result takes the sizes of the source's."""
    sizes, wanted = own.static_shape, other.shape
    if sizes is None or wanted is None or len(sizes) != len(wanted):
        return True
    return all(isinstance(b, str) or a == b for a, b in zip(_transpose_sizes(sizes, wanted, is_turned), wanted, strict=True))


def _fold_sizes(graphs: tuple[Graph, Graph], numbers: Mapping[str, int]) -> tuple[Graph, Graph]:
    """The graphs, with constants in the place of what is computed of sizes that can be told apart."""
    if not numbers or len({*numbers.values()}) < len(numbers):
        return graphs
    source, result = (fold_constants(graph, None)[0] for graph in graphs)
    return source, result


def _tell_apart(numbers: Mapping[str, int]) -> dict[str, int]:
    """The numbers, of which those that are taken become larger."""
    found: dict[str, int] = {}
    for name, number in numbers.items():
        found[name] = next(item for item in count(number) if item not in found.values())
    return found


def _find_result_sizes(border: Border, source: Graph) -> dict[str, int]:
    """Numbers for the names of the result's sizes, from those of the source's inputs."""
    given: dict[str, int] = {}
    for name, other in border.inputs.items():
        sizes, wanted = source[name].static_shape, border.other[other].shape
        if sizes is not None and wanted is not None and len(sizes) == len(wanted):
            turned = _transpose_sizes(sizes, wanted, name in border.turned)
            given.update((size, turned[axis]) for axis, size in enumerate(wanted) if isinstance(size, str))
    return given


def _transpose_sizes(sizes: tuple[int, ...], wanted: tuple[int | str, ...], is_turned: bool) -> tuple[int, ...]:
    """Sizes of the source's input in the order of the result's."""
    orders = [*([] if is_turned else [tuple(range(len(sizes)))]), *list_layouts(len(sizes))]
    found = (tuple(sizes[axis] for axis in perm) for perm in orders)
    return next((item for item in found if all(isinstance(b, str) or a == b for a, b in zip(item, wanted, strict=True))), sizes)


def _set_sizes(graph: Graph, numbers: Mapping[str, int]) -> Graph:
    """The graph with numbers for names of sizes; what follows from them is inferred."""
    if not numbers:
        return graph

    def set_shape(tensor: Tensor) -> Tensor:
        assert tensor.shape is not None
        shape = tuple(numbers.get(size, size) if isinstance(size, str) else size for size in tensor.shape)
        known = tensor.name in graph.inputs or all(isinstance(size, int) for size in shape)
        return replace(tensor, shape=shape if known else None)

    tensors = [set_shape(tensor) for tensor in graph.tensors.values() if tensor.shape is not None and tensor.static_shape is None]
    return infer(graph.evolve(tensors=tensors))


def list_layouts(rank: int) -> Iterator[tuple[int, ...]]:
    """Orders of axes that an input may have: its own, and those of the two layouts."""
    if rank > 2:
        yield permutation("channels_first", rank)
        yield permutation("channels_last", rank)
