"""The entries of encodings in a graph: where they stand, their quantizations as they fit the tensors there, and what runtimes do before
they choose scales: constants are computed, batch normalizations and activations are part of their layers.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np

from qconvert.encodings import BATCH_NORM, FOLDED, FUSED, Encoding, Encodings, Place, QParams, quantization_of
from qconvert.errors import InvalidModelError, format_count, format_some, format_verb
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.graph.names import quote_nearest
from qconvert.operators import kind_of, output_axis
from qconvert.passes.batch_norms import fold_batch_norm
from qconvert.passes.constants import fold_float_constants
from qconvert.rewriting import Rewriter

#: What runtimes fuse into the layer before it, which then has the name of this result.
_FUSED = frozenset(("Relu", "Clip", "LeakyRelu", "HardSwish"))
#: In the place of an input's number: the tensor itself, whoever reads it.
_WHOLE = -1
#: Places that an error names; the others are counted.
_NAMED = 8
_REMEDY = "Names are those of the graph's tensors and operators, as `qconvert inspect --verbose` shows them."


@dataclass(frozen=True, slots=True)
class Matched:
    """Entries by what they are of.

    Attributes:
        tensors: tensor -> its encoding.
        operands: (the first result of an operator, which of its inputs) -> the encoding of that input there alone.
        absent: places that the graph lacks, and may lack.
    """

    tensors: dict[str, Encoding] = field(default_factory=dict)
    operands: dict[tuple[str, int], Encoding] = field(default_factory=dict)
    absent: list[Place] = field(default_factory=list)


def match_entries(graph: Graph, encodings: Encodings, renamed: Mapping[str, str] | None = None) -> Matched:
    """Return the places of all entries.

    Args:
        graph: that they belong to.
        encodings: the entries.
        renamed: results of operators that are gone from the graph -> what stands for them.

    Raises:
        InvalidModelError: the graph has no such place; the nearest names are listed. Or two entries of one tensor say different things.
    """
    rewriter, own = Rewriter(graph), _operators_by_name(graph.ops)
    producers = rewriter.producers
    found = Matched()
    lost: list[Place] = []
    results: list[tuple[str, Encoding, Place]] = []
    for place, encoding in encodings.entries.items():
        if place.role == "tensor":
            where = (place.name, _WHOLE) if place.name in graph.tensors else None
        else:
            op = own.get(place.name) or producers.get((renamed or {}).get(place.name, place.name))
            # Runtimes have an operator for an input of the graph.
            is_input = place.name in graph.inputs and (place.role, place.index) == ("output", 0)
            where = _locate_operand(op, place, producers) if op is not None else (place.name, _WHOLE) if is_input else None
        if where is None:
            (lost if encoding.required else found.absent).append(place)
        elif place.role == "output":
            results.append((where[0], encoding, place))
        else:
            _add_entry(found, where, encoding, place)
    named = {*found.tensors, *(name for name, _, _ in results)}
    for name, encoding, place in results:
        _add_entry(found, (_skip_activations(name, rewriter, named), _WHOLE), encoding, place)
    if lost:
        raise InvalidModelError(_describe_unmatched(lost, graph, own), remedy=_REMEDY, rule="unknown-tensor")
    return found


def _operators_by_name(ops: Iterable[Op]) -> dict[str, Op]:
    """Return operators by their own names in the source's file, where it gives them names."""
    found: dict[str, Op] = {}
    for op in ops:
        if op.source_name:
            found.setdefault(op.source_name, op)
    return found


def _locate_operand(op: Op, place: Place, producers: Mapping[str, Op]) -> tuple[str, int] | None:
    """Return the tensor or operand that is an input or output of an operator, perhaps of the layer that a runtime fuses it into."""
    if place.role == "output":
        return (op.outputs[place.index], _WHOLE) if place.index < len(op.outputs) and op.outputs[place.index] else None
    stated = op
    while op.kind in _FUSED and (place.index or _is_layer(producers.get(op.inputs[0]))):
        before = producers.get(op.inputs[0])
        if before is None:
            return None
        op = before
    if op is not stated and not _is_layer(op):  # such as a normalization, which a runtime folds into weights that the graph does not have
        return None
    if place.index >= len(op.inputs) or not op.inputs[place.index]:
        return None
    return op.name, place.index


def _skip_activations(name: str, rewriter: Rewriter, named: Container[str]) -> str:
    """Return the result of an operator after the activation functions that a runtime fuses into it; those with an entry are not fused."""
    while (op := rewriter.only_reader(name)) is not None and kind_of(op).clips and op.inputs[0] == name and op.name not in named:
        name = op.name
    return name


def _is_layer(op: Op | None) -> bool:
    return op is not None and kind_of(op).sums_products


def _add_entry(found: Matched, where: tuple[str, int], encoding: Encoding, place: Place) -> None:
    name, index = where
    known = found.tensors.get(name) if index == _WHOLE else found.operands.get(where)
    if known is not None and (known.qparams, known.range) != (encoding.qparams, encoding.range):
        raise InvalidModelError("two entries give different encodings of this tensor", where=str(place), rule="encoding-twice")
    if index == _WHOLE:
        found.tensors[name] = encoding
    else:
        found.operands[where] = encoding


def _describe_unmatched(lost: list[Place], graph: Graph, own: Mapping[str, Op]) -> str:
    known = dict.fromkeys((*graph.tensors, *own))
    unknown = [place.name for place in lost if place.name not in known]
    misplaced = [str(place) for place in lost if place.name in known]
    parts = []
    if unknown:
        verb = format_verb(len(unknown), "have")
        nearest = quote_nearest(dict.fromkeys(unknown), known)
        parts.append(f"{format_count(len(unknown), 'encoding')} {verb} no tensor or operator in the graph: {nearest}")
    if misplaced:
        parts.append(f"the graph has no {format_some(misplaced, _NAMED)}")
    return "; ".join(parts)


def fit_encoding(encoding: Encoding, tensor: Tensor, reader: Op | None, index: int, dtype: str) -> tuple[QParams, Array | None]:
    """Return the quantization of a tensor, and its integers where the encoding has them; see _fit_quantization() and _orient()."""
    return _fit_quantization(encoding, tensor, reader, index, dtype), _orient(encoding, tensor, reader, index)


def _fit_quantization(encoding: Encoding, tensor: Tensor, reader: Op | None, index: int, dtype: str) -> QParams:
    """Return the quantization of a tensor: a range has become one, and several scales have their axis.

    Args:
        encoding: of the tensor.
        tensor: in the graph.
        reader: an operator that reads it, for the axis of weights; None if none does.
        index: which of its inputs that is.
        dtype: the type that activations get where the encoding is a range; weights get int8 around zero.

    Raises:
        InvalidModelError: scales are not as many as channels.
    """
    if encoding.qparams is not None:
        axis, count = encoding.qparams.quantization.axis, encoding.qparams.quantization.scale.size
    else:
        assert encoding.range is not None
        axis, count = encoding.range.axis, encoding.range.lowest.size
    if count == 1 and not tensor.is_constant:
        axis = None  # of one sample: kernels take activations with one scale alone
    if encoding.qparams is not None and encoding.qparams.quantization.block_size:
        q = _blocks(encoding.qparams.quantization, tensor, reader, index)
        encoding, axis, count = replace(encoding, qparams=replace(encoding.qparams, quantization=q)), q.axis, q.scale.size
    elif axis is None and count > 1:
        axis = _channels(tensor, reader, index, count)
    _require_length(encoding, tensor, axis, count)
    if encoding.qparams is not None:
        return replace(encoding.qparams, quantization=replace(encoding.qparams.quantization, axis=axis))
    assert encoding.range is not None
    on = replace(encoding.range, axis=axis)
    return quantization_of(on, "int8", symmetric=True, narrow=True) if tensor.is_constant else quantization_of(on, dtype)


def _orient(encoding: Encoding, tensor: Tensor, reader: Op | None, index: int) -> Array | None:
    """Return the integers of an encoding in the tensor's shape; None where it has none.

    Next to several scales without an axis they lie outputs first, as the scales do; sizes of 1 may be more or fewer, as where a runtime
    computes a matrix product or a layer of one dimension as a convolution of two.

    Raises:
        InvalidModelError: they do not fit the tensor.
    """
    integers = encoding.integers
    if integers is None or encoding.qparams is None:
        return integers
    if tensor.data is None:
        raise InvalidModelError(
            f"has integers of shape {list(integers.shape)} in its encoding, but is computed; only constants have them",
            where=repr(tensor.name),
            rule="integers-not-constant",
        )
    shape, q = tensor.data.shape, encoding.qparams.quantization
    is_turned = q.axis is None and q.scale.size > 1 and index == 1 and reader is not None and output_axis(reader, len(shape)) != 0
    whole = tuple(size for size in integers.shape if size != 1)
    turned = integers.transpose() if is_turned and integers.ndim == len(shape) == 2 else integers
    if turned.shape != shape and not is_turned and whole == tuple(size for size in shape if size != 1):
        turned = turned.reshape(shape)
    if turned.shape != shape:
        raise InvalidModelError(
            f"has integers of shape {list(integers.shape)} in its encoding; its own shape is {list(shape)}",
            where=repr(tensor.name),
            rule="shape-mismatch",
        )
    return turned


def _channels(tensor: Tensor, reader: Op | None, index: int, count: int) -> int:
    """Return the axis of scales whose file does not state it: the output channels of weights, the axis of that length of other tensors."""
    shape = tensor.shape or ()
    if reader is not None and index == 1 and tensor.is_constant:
        return output_axis(reader, len(shape))
    fitting = [axis for axis, size in enumerate(shape) if size == count]
    if len(fitting) != 1:
        _refuse(tensor, count, f"{len(fitting)} axes are as long")
    return fitting[0]


def _blocks(q: Quantization, tensor: Tensor, reader: Op | None, index: int) -> Quantization:
    """Return scales in blocks as ONNX has them: of the tensor's shape but for the axis of the blocks.

    A file may say one scale for all places of a kernel, sizes of 1; or without an axis a list, channel by channel of the output, of the
    blocks along the channels of the input.
    """
    shape = tuple(size for size in tensor.shape or () if isinstance(size, int))
    axis, scale, points = q.axis, q.scale, q.zero_point
    if axis is None:
        if reader is None or index != 1 or not tensor.is_constant or not kind_of(reader).sums_all_weights or len(shape) < 2:
            _refuse(tensor, scale.size, f"blocks of {q.block_size} without an axis are of the weights of a Conv, Gemm or MatMul")
        out = output_axis(reader, len(shape))
        axis = 1 if out == 0 else 2 * len(shape) - 3 - out
        laid = (shape[out], -(-shape[axis] // q.block_size))
        if scale.size != laid[0] * laid[1]:
            _refuse(tensor, scale.size, f"{laid[0]} channels in {laid[1]} blocks of {q.block_size} need {laid[0] * laid[1]}")
        sizes = [size if other == out else laid[1] if other == axis else 1 for other, size in enumerate(shape)]
        scale, points = ((values.reshape(laid) if out < axis else values.reshape(laid).T).reshape(sizes) for values in (scale, points))
    if scale.ndim == len(shape) and axis < len(shape):
        whole = tuple(scale.shape[axis] if other == axis else size for other, size in enumerate(shape))
        if all(have in (1, size) for have, size in zip(scale.shape, whole, strict=True)):
            scale, points = np.broadcast_to(scale, whole), np.broadcast_to(points, whole)
    return replace(q, scale=scale, zero_point=points, axis=axis)


def _require_length(encoding: Encoding, tensor: Tensor, axis: int | None, count: int) -> None:
    """Raise InvalidModelError where scales do not fit the tensor."""
    q = encoding.qparams.quantization if encoding.qparams is not None else None
    shape = tensor.shape
    if axis is None or shape is None:
        return
    if axis >= len(shape):
        _refuse(tensor, count, f"there is no axis {axis}")
    if q is not None and q.block_size:
        blocks = tuple(-(-int(s) // q.block_size) if i == axis else s for i, s in enumerate(shape) if isinstance(s, int))
        if q.scale.shape != blocks:
            _refuse(tensor, count, f"blocks of {q.block_size} along axis {axis} need {blocks}")
    elif isinstance(shape[axis], int) and shape[axis] != count:
        _refuse(tensor, count, f"axis {axis} has {shape[axis]}")


def _refuse(tensor: Tensor, count: int, why: str) -> NoReturn:
    raise InvalidModelError(
        f"has {count} scales, which do not fit the shape {list(tensor.shape or ())}: {why}",
        where=repr(tensor.name),
        rule="blocks-do-not-fit",
    )


def drop_unrounded(graph: Graph, encodings: Encodings) -> tuple[Encodings, int]:
    """Return the encodings without those of tensors that the runtime never has, where they say so, and how many these are.

    A calibrator sees the result of a layer, of its normalization and of its Relu; the runtime computes them in one and rounds the last.
    """
    if encodings.metadata.get(BATCH_NORM) != FUSED:
        return encodings, 0
    rewriter, gone = Rewriter(graph), set[Place]()
    for op in graph.ops:
        if not (kind_of(op).sums_products or kind_of(op).sum_sign > 0):
            continue
        name, before = op.name, list[Place]()
        while (following := _fused_after(name, rewriter)) is not None:
            before, name = [*before, Place(name)], following.name
            if Place(name) in encodings.entries:
                gone.update(before)
    gone &= encodings.entries.keys()
    kept = {place: found for place, found in encodings.entries.items() if place not in gone}
    return (encodings.evolve(kept) if gone else encodings), len(gone)


def _fused_after(name: str, rewriter: Rewriter) -> Op | None:
    """Return the one operator after a result that is computed together with it."""
    op = rewriter.only_reader(name)
    is_fused = op is not None and (op.kind == "BatchNormalization" or kind_of(op).clips) and op.inputs[0] == name
    return op if is_fused else None


def normalize(graph: Graph, encodings: Encodings) -> tuple[Graph, Mapping[str, str]]:
    """Return the graph with constants folded and batch normalizations folded into their layers.

    Tensors with entries become constants if they depend on constants alone. Normalizations are folded if entries name operators, as
    runtimes do, or if the encodings say so. An entry of the tensor between a layer and its normalization prevents this: the tool
    observed both separately.

    Returns:
        the graph, and the result of each layer that is gone -> what the layer computes now.
    """
    graph = fold_float_constants(graph, _find_encoded_tensors(graph, encodings))
    producers = graph.producers()
    norms = graph.of_kind("BatchNormalization")
    between = {norm.inputs[0]: norm.name for norm in norms if _has_weights(producers.get(norm.inputs[0]))}
    named = {place.name for place in encodings.entries if place.role != "tensor"}
    if (
        not between
        or not (named or encodings.metadata.get(BATCH_NORM) in (FOLDED, FUSED))
        or any(place.role == "tensor" and place.name in between for place in encodings.entries)
    ):
        return graph, {}
    folded, _ = fold_batch_norm(graph, None)
    return folded, {before: after for before, after in between.items() if before not in folded.tensors and after in folded.tensors}


def _find_encoded_tensors(graph: Graph, encodings: Encodings) -> set[str]:
    """Return the tensors that entries name, and the biases of layers, which become integers; where some name operators, also weights."""
    found = {place.name for place in encodings.entries if place.role == "tensor"}
    first = 1 if any(place.role == "input" for place in encodings.entries) else 2
    return found.union(name for op in graph.ops if _has_weights(op) for name in op.inputs[first:])


def _has_weights(op: Op | None) -> bool:
    return op is not None and kind_of(op).has_weights


def split_limits(quantization: QParams) -> tuple[Quantization, list[Array]]:
    """Return a quantization of the whole type, and the real bounds where it uses a part of it: between these a Clip keeps what is
    rounded."""
    q = quantization.quantization
    if q.quant_min is None and q.quant_max is None:
        return q, []
    with np.errstate(over="ignore"):  # at scales near the largest float32 a bound is infinite
        bounds = [np.asarray(np.float32(limit - q.point) * q.scale[0], np.float32) for limit in q.limits(quantization.dtype)]
    return replace(q, quant_min=None, quant_max=None), bounds
