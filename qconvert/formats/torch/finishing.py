"""Finishing a graph after a program has been read: decomposed quantizations, scales of weights, constant subgraphs and outputs.

Brevitas, ModelOpt, pytorch-quantization, AIMET and OneFlow's networks leave decomposed fake quantization in an exported program:

    q = clamp(round(x / s + z), low, high)        s, z: constants, for all or along an axis; x * (1 / s) likewise
    y = (q - z) * s                               or q / (1 / s)

with Round and Clip in either order, z inside or outside of the rounding, or none. The integers of constants are those that the program
computes. Only what is this function becomes a Quantize and a Dequantize: scales have to be the same on both sides, zero points whole and
within the type.

Products whose integer weights are scaled after the sum, as torchao writes them, (x @ q) * s, become x @ (q * s), weights with a
quantization: one real-valued function, which float32 rounds in another order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qconvert.arithmetic.kernels import dequantize_float32
from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.quantizations import label_key
from qconvert.formats.torch.operands import skip_reinterpret
from qconvert.formats.torch.session import Session
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.operators import kind_of, output_axis


def finish_graph(
    session: Session,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    producer: str,
    *,
    states: Mapping[str, Tensor] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Graph:
    """The graph of a program.

    Args:
        session: of the reading.
        name: of the graph.
        inputs, outputs: names of tensors; an output may be named twice, be an input or a constant.
        producer: what made the file.
        states: tensors that live from one run to the next.
        metadata: further entries.
    """
    draft = session.draft
    outputs = [skip_reinterpret(draft, output) for output in outputs]
    outputs = _copy_outputs(draft, inputs, draft.distinct(outputs))
    session.trained.extend(_replace_fake_quantizations(draft))
    _scale_weights(draft, outputs)
    _compute_constants(draft)
    draft.prune(outputs)
    _drop_unread_states(draft, outputs)
    entries = {**session.metadata(producer), **(metadata or {})}
    return draft.finish(name, inputs, outputs, entries, states=states or {})


def _drop_unread_states(draft: Draft, outputs: Sequence[str]) -> None:
    """Drops trailing states that nothing reads; the first result of an operator always has a name."""
    read = {*outputs, *(name for op in draft.ops for name in op.inputs)}
    for index, op in enumerate(draft.ops):
        if kind_of(op).recurs and not read.issuperset(op.outputs[1:]):
            names = [op.outputs[0], *(name if name in read else "" for name in op.outputs[1:])]
            while not names[-1]:
                names.pop()
            draft.ops[index] = replace(op, outputs=tuple(names))
            for name in {*op.outputs[1:]} - read:
                del draft.tensors[name]


def _copy_outputs(draft: Draft, inputs: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """Outputs that are inputs or constants become Identities of them."""
    found = []
    for name in outputs:
        tensor = draft.tensors[name]
        if name in inputs or tensor.is_constant:
            name = draft.add(f"{name}/output", tensor.dtype, tensor.shape, None, tensor.quantization)
            draft.append(Op("Identity", (tensor.name,), (name,)))
        found.append(name)
    return found


def _compute_constants(draft: Draft) -> None:
    """Fold operators on constants alone into constants; integers after a Dequantize stay integers."""
    unpacked: set[str] = set()
    kept = []
    for op in draft.ops:
        is_unpacked = not unpacked.isdisjoint(op.inputs) or (kind_of(op).dequantizes and draft.known.get(op.inputs[0]) is not None)
        if is_unpacked:
            unpacked.update(op.outputs)
        is_quantized = any(draft.tensors[name].is_quantized for name in op.names if name)
        is_kept = is_unpacked or is_quantized or kind_of(op).has_effect or not op.inputs
        values = [None if is_kept or not name else draft.known.get(name) for name in op.outputs]
        if is_kept or any(value is None for value in values):
            kept.append(op)
            continue
        for name, value in zip(op.outputs, values, strict=True):
            if value is not None:
                draft.tensors[name] = replace(draft.tensors[name], data=value, shape=value.shape)
                draft.producers.pop(name, None)
    draft.ops = kept


def _scale_weights(draft: Draft, outputs: Collection[str]) -> None:
    """Gives the scales after a product to its weights, where these are integers on the scale 1 and nothing else reads the product."""
    gone: set[int] = set()
    new: dict[int, list[Op]] = {}
    for op in draft.ops:
        product = draft.producers.get(op.inputs[0]) if op.kind == "Mul" else None
        if product is None or not _is_plain(product) or op.attributes.get("activation"):
            continue
        if len(draft.readers[op.inputs[0]]) != 1 or op.inputs[0] in outputs:
            continue
        turned = draft.producers.find(product.inputs[1], "Transpose")
        made = draft.producers.find(product.inputs[1] if turned is None else turned.inputs[0], "Dequantize")
        scales = draft.known.get(op.inputs[1])
        if made is None or scales is None:
            continue
        stored = draft.tensors[made.inputs[0]]
        axis = output_axis(product, 2)
        quantization = _scaled_quantization(stored, scales, axis if turned is None else 1 - axis)
        if quantization is None or stored.data is None:
            continue
        name = draft.variant(stored.name, f"label_{label_key(quantization)}", stored.data, quantization)
        real = draft.add(f"{name}/real", "float32", stored.shape)
        ops = [Op("Dequantize", (name,), (real,), {}, made.source)]
        if turned is not None:
            again = draft.add(f"{name}/turned", "float32", draft.tensors[turned.outputs[0]].shape)
            ops.append(replace(turned, inputs=(real,), outputs=(again,)))
        new[id(op)] = [*ops, replace(product, inputs=(product.inputs[0], ops[-1].outputs[0]), outputs=op.outputs)]
        gone.add(id(product))
    draft.ops = [item for op in draft.ops if id(op) not in gone for item in new.get(id(op), [op])]


def _is_plain(op: Op) -> bool:
    """Whether an operator is a product of data and weights without anything after it."""
    return (
        kind_of(op).is_matrix_product
        and len(op.inputs) == 2
        and not any(op.attributes.get(name) for name in ("activation", "trans_a", "trans_b"))
    )


def _scaled_quantization(weights: Tensor, scales: Array, axis: int) -> Quantization | None:
    """The quantization of a matrix of weights on the scale 1 that is multiplied by one number, or by one for each index of an axis."""
    quantization, data = weights.quantization, weights.data
    if (
        data is None
        or data.ndim != 2
        or quantization is None
        or quantization.axis is not None
        or quantization.scale[0] != 1
        or quantization.zero_point[0] != 0
    ):
        return None
    flat = scales.reshape(-1).astype(np.float32)
    fits = scales.dtype == np.float32 and (scales.ndim == 0 or scales.shape[-1] == scales.size) and scales.size in (1, data.shape[axis])
    if not fits or not (np.isfinite(flat) & (flat > 0)).all():
        return None
    return Quantization(flat, np.zeros(flat.size, np.int64), None if flat.size == 1 else axis)


_TYPES = ("uint8", "int8", "uint16", "int16")


@dataclass(slots=True)
class _FakeQuantization:
    """A fake quantization, found walking back from its result."""

    data: str
    stored: str
    scale: Array
    zero_point: Array
    limits: tuple[float, float]


def _replace_fake_quantizations(draft: Draft) -> list[str]:
    """Replaces every fake quantization in the draft's operators; returns the names of the results."""
    matcher = _Matcher(draft)
    ops: list[Op] = []
    names = []
    for op in draft.ops:
        found = matcher.match_at(op)
        new = [] if found is None else _replace_operators(draft, op, found)
        ops += new or [op]
        names += [op.outputs[0]] if new else []
    draft.ops = ops
    return names


class _Matcher:
    """Recognizes fake quantizations by their last operators."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def match_at(self, op: Op) -> _FakeQuantization | None:
        """Return the fake quantization whose last operator is `op`, or None."""
        last = self._split_scale(op)
        if last is None:
            return None
        steps, subtracted = self._shift(last[0], -1)
        stored = steps
        limits, rounded, shifted = (-np.inf, np.inf), False, False
        added = np.zeros((), np.float32)
        for _ in range(6):
            before = self._draft.producers.get(steps)
            if before is None or before.attributes.get("activation"):
                return None
            if not rounded and self._draft.producers.find(steps, "Round"):
                steps, rounded = before.inputs[0], True
            elif (bounds := self._bounds(before)) is not None:
                limits = max(limits[0], bounds[0]), min(limits[1], bounds[1])
                steps = bounds[2]
            elif kind_of(before).sum_sign and not shifted:
                steps, added = self._shift(steps, 1)
                shifted = True
            else:
                break
        first = self._split_scale(before) if rounded and before is not None else None
        if first is None or not _are_close(subtracted, added, 0.0):
            return None
        with np.errstate(all="ignore"):
            scale, divisor = last[1].astype(np.float32), (1 / first[1]).astype(np.float32)
        return _FakeQuantization(first[0], stored, scale, subtracted, limits) if _are_close(divisor, scale, 2.0**-22) else None

    def _split_scale(self, op: Op) -> tuple[str, Array] | None:
        """The data of a Mul or Div, and their factor; None if another operator, or both operands are computed."""
        found = None if kind_of(op).sum_sign else self._split_affine(op)
        return None if found is None else found[:2]

    def _split_affine(self, op: Op) -> tuple[str, Array, Array] | None:
        """The data of an operator on data and a constant, their factor and what is added to them, in float64."""
        affine = kind_of(op).affine
        if affine is None or op.attributes.get("activation"):
            return None
        for place in (1, 0):
            known = self._number(op.inputs[place])
            with np.errstate(all="ignore"):
                found = None if known is None else affine(place, known.astype(np.float64))
            if found is not None:
                return op.inputs[1 - place], np.asarray(found[0]), np.asarray(found[1])
        return None

    def _number(self, name: str) -> Array | None:
        found = self._draft.known.get(name)
        return found if found is not None and found.dtype == np.float32 and not self._draft.tensors[name].is_quantized else None

    def _shift(self, name: str, sign: int) -> tuple[str, Array]:
        """The value before an Add or Sub of a constant, and the constant as added (sign 1) or subtracted (-1); zero if there is none."""
        op = self._draft.producers.find(name, "Add", "Sub")
        found = None if op is None else self._split_affine(op)
        if found is None or found[1] != 1:
            return name, np.zeros((), np.float32)
        return found[0], (sign * found[2]).astype(np.float32)

    def _bounds(self, op: Op) -> tuple[float, float, str] | None:
        """The limits of a Clip, of a Max or Min with a constant or of a choice by comparison, and its data."""
        kind = kind_of(op)
        if limits := kind.limits(op, self._draft.known.get):
            low, high = limits
            return -np.inf if low is None else low, np.inf if high is None else high, op.inputs[0]
        if not kind.picks:
            return self._choice_limit(op) if kind.chooses and len(op.inputs) == 3 else None
        for data, other in (op.inputs, op.inputs[::-1]):
            known = self._number(other)
            if known is not None and known.size == 1:  # of a constant, both sides are known
                return _limit_at(known, kind.picks > 0, data)
        return None

    def _choice_limit(self, op: Op) -> tuple[float, float, str] | None:
        """The limit of where(x > limit, limit, x), as Brevitas clips, or of one with "<"."""
        find = self._draft.producers.find
        greater = find(op.inputs[0], "Greater", "GreaterOrEqual")
        test = greater or find(op.inputs[0], "Less", "LessOrEqual")
        if test is None or op.inputs[2] != test.inputs[0]:
            return None
        limit, chosen = self._number(test.inputs[1]), self._number(op.inputs[1])
        if limit is None or chosen is None or limit.size != 1 or chosen.size != 1 or limit.item() != chosen.item():
            return None
        return _limit_at(limit, greater is None, op.inputs[2])


def _limit_at(bound: Array, is_lowest: bool, data: str) -> tuple[float, float, str]:
    """The limits of data with one bound, and the data."""
    return (bound.item(), np.inf, data) if is_lowest else (-np.inf, bound.item(), data)


def _are_close(first: Array, second: Array, tolerance: float) -> bool:
    """Whether two lists of numbers, of which one may be one number for all, are the same up to a relative difference."""
    one, other = (np.squeeze(values).astype(np.float64) for values in (first, second))
    if one.ndim and other.ndim and one.shape != other.shape:
        return False
    with np.errstate(invalid="ignore"):  # of infinite scales
        return bool((np.abs(one - other) <= tolerance * np.abs(other)).all())


def _replace_operators(draft: Draft, op: Op, found: _FakeQuantization) -> list[Op]:
    """The operators in the place of the last one; none if no quantization holds these integers."""
    result = draft.tensors[op.outputs[0]]
    low, high = found.limits
    dtype = next((name for name in _TYPES if integer_range(name)[0] <= low <= high <= integer_range(name)[1]), "")
    quantization = _quantization(found, result.shape, dtype) if dtype and low == np.rint(low) and high == np.rint(high) else None
    if quantization is None or result.is_quantized or result.dtype != "float32":
        return []
    limited = quantization.with_limits(dtype, low, high)
    values = draft.known.get(found.stored)
    source = op.source
    if values is not None:
        if not (np.isfinite(values).all() and (np.rint(values) == values).all() and draft.tensors[found.data].shape == result.shape):
            return []
        stored = draft.variant(found.data, f"integers_{label_key(limited)}", values.astype(numpy_dtype(dtype)), limited)
        return [Op("Dequantize", (stored,), op.outputs, {}, source)]
    if draft.tensors[found.data].shape != result.shape or (limited != quantization and quantization.axis is not None):
        return []
    ops, name = [], found.data
    if limited != quantization:
        bounds = [dequantize_float32(limit, quantization) for limit in (low, high)]
        names = [draft.add(f"{result.name}/limit", "float32", (), bound) for bound in bounds]
        clipped = draft.add(f"{result.name}/limited", "float32", result.shape)
        ops.append(Op("Clip", (name, *names), (clipped,), {}, source))
        name = clipped
    stored = draft.add(f"{result.name}/quantized", dtype, result.shape, None, quantization)
    return [*ops, Op("Quantize", (name,), (stored,), {}, source), Op("Dequantize", (stored,), op.outputs, {}, source)]


def _quantization(found: _FakeQuantization, shape: Sequence[int | str] | None, dtype: str) -> Quantization | None:
    """The quantization of scales and zero points that broadcast with a tensor of a shape: for all, or along one axis."""
    low, high = integer_range(dtype)
    scale, point = np.broadcast_arrays(found.scale, found.zero_point)
    if not (
        np.isfinite(scale).all() and (scale > 0).all() and (np.rint(point) == point).all() and ((point >= low) & (point <= high)).all()
    ):
        return None
    if scale.size == 1:
        return Quantization(scale.reshape(1).astype(np.float32), point.reshape(1).astype(np.int64))
    if shape is None or scale.ndim > len(shape):
        return None
    wide = (1,) * (len(shape) - scale.ndim) + scale.shape
    axes = [axis for axis, size in enumerate(wide) if size > 1]
    if len(axes) != 1 or shape[axes[0]] != wide[axes[0]]:
        return None
    return Quantization(scale.reshape(-1).astype(np.float32), point.reshape(-1).astype(np.int64), axes[0])
