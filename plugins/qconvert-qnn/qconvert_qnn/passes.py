"""Passes for HTP in addition to those of the target portable: no operator that HTP refuses, and the quantizations of its kernels."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from qconvert.plugin import (
    Attribute,
    Change,
    Graph,
    Op,
    Quantization,
    Rewriter,
    Target,
    Tensor,
    format_count,
    lower,
    numpy_dtype,
)
from qconvert_qnn.operators import (
    JOINED,
    SQUARES,
    counts_padding,
    exceeded_bounds,
    find_square_factor,
    float_constant,
    lowering_reason,
    needs_clipped_data,
    needs_wide_data,
    right_quantization,
    widen_quantization,
)


def lower_for_htp(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Decompose operators that HTP lacks or fails at, in float, make constants float, and give activations operators of their own.

    onnxruntime-qnn fuses an activation into an operator only where the quantization of the result implies it. HTP runs others in float,
    without rounding or clipping what stands between two of them (see keep_integers()); onnxruntime-qnn leaves a Gemm to the CPU.
    """
    found = lower(graph, lowering_reason)
    rewriter, count, graph = Rewriter(found.graph), len(found.reasons), found.graph
    for op in rewriter:
        if (found_constant := float_constant(graph, op)) is not None:
            place, stored = found_constant
            real = rewriter.constant(f"{stored.name}/real", stored.float_values().astype(np.float32))
            rewriter.replace(op, op.with_input(place, real))
            count += 1
        elif counts_padding(op) and not any(op["pads"]):
            rewriter.replace(op, op.with_attributes(count_include_pad=0))
            count += 1
        else:
            count += _divide_data(rewriter, op) if op.kind in SQUARES else _split_activation(rewriter, op)
    note = f"{format_count(count, 'operator')} that HTP fails at or lacks, replaced by others"
    return (rewriter.finish(), (note,)) if count else (graph, ())


def _split_activation(rewriter: Rewriter, op: Op) -> bool:
    """Put an activation that the quantization of the result does not imply after the operator, between conversions."""
    bounds, result = exceeded_bounds(rewriter.graph, op), rewriter.graph[op.outputs[0]]
    if bounds == (None, None):
        return False
    inner = rewriter.add(f"{result.name}/unlimited", result)
    real, limited = (rewriter.add(f"{result.name}/{word}", result, dtype="float32", quantization=None) for word in ("real", "limited"))
    bare = replace(op.with_attributes(activation=""), outputs=(inner,))
    clip = op.derive("Relu", (real,), (limited,)) if bounds == (0.0, None) else rewriter.clip(real, bounds, limited, op.source)
    rewriter.replace(op, bare, Op("Dequantize", (inner,), (real,)), clip, Op("Quantize", (limited,), (result.name,)))
    return True


def _divide_data(rewriter: Rewriter, op: Op) -> bool:
    """Divide data by a power of 2 before an operator that squares them, and multiply its result, where float16 would not hold the squares.

    Scales are divided and multiplied likewise, so that all integers stay.
    """
    graph, power = rewriter.graph, SQUARES[op.kind]
    count = 1 + (op.kind == "SquaredDifference")
    data, result = [graph[name] for name in op.inputs[:count]], graph[op.outputs[0]]
    if result.per_tensor is None or any(item.per_tensor is None for item in data):
        return False
    if (factor := find_square_factor(op, data, result)) == 1:
        return False

    def scaled(tensor: Tensor, by: float) -> Tensor:
        q = tensor.per_tensor
        assert q is not None
        return replace(tensor, quantization=Quantization.per_tensor(q.step * by, q.point), data=None)

    def number(value: float, dtype: str) -> str:
        one = np.ones((), numpy_dtype(dtype))
        return rewriter.constant(f"{result.name}/factor", one, dtype, Quantization.per_tensor(value, 0))

    names = list(op.inputs)
    for place, item in enumerate(data):
        small = scaled(item, 1 / factor)
        names[place] = (
            rewriter.compute("Mul", (item.name, number(1 / factor, item.dtype)), f"{item.name}/divided", small, op.source)
            if item.data is None
            else rewriter.constant(f"{item.name}/divided", item.data, item.dtype, small.quantization)
        )
    changed = replace(op, inputs=tuple(names))
    if op.kind == "RMSNormalization":
        changed = changed.with_attributes(epsilon=float(str(op["epsilon"])) / factor**2)
    if not power:
        rewriter.replace(op, changed)
        return True
    inner = rewriter.add(f"{result.name}/divided", scaled(result, factor**-power))
    back = op.derive("Mul", (inner, number(factor**power, result.dtype)), (result.name,))
    rewriter.replace(op, replace(changed, outputs=(inner,)), back)
    return True


def htp_scales(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Give results and data the quantization in which HTP computes rightly, with a Requantize to their own; see right_quantization().

    An addition of a constant of zeros is a Requantize: HTP leaves it out, and keeps the integers of the data in another scale.
    """
    changed, count = graph, 0
    for kinds in (None, "Requantize"):  # those that the first walk adds are looked at too
        rewriter = Rewriter(changed)
        for op in rewriter:
            if kinds in (None, op.kind):
                _restate(rewriter, op)
        count += rewriter.replaced
        changed = rewriter.finish()
    return (changed, (f"{format_count(count, 'result')} rounded to the scales that HTP computes in first",)) if count else (graph, ())


def _restate(rewriter: Rewriter, op: Op) -> None:
    """Replace an operator that HTP computes wrongly, on integers or between conversions, by one with other quantizations."""
    graph = rewriter.graph
    begins = [rewriter.producers.get(name) for name in op.inputs]
    is_real = [begin is not None and begin.kind == "Dequantize" for begin in begins]
    names = [begin.inputs[0] if begin and real else name for name, begin, real in zip(op.inputs, begins, is_real, strict=True)]
    data = [graph[name] for name in names if name and graph[name].is_quantized]
    end = op if graph[op.outputs[0]].is_quantized else rewriter.only_reader(op.outputs[0])
    if end is None or (end is not op and end.kind != "Quantize") or op.kind in ("Quantize", "Dequantize"):
        return
    result = graph[end.outputs[0]]
    if op.kind == "Add" and len(data) == len(names) and data[1].is_constant and not data[1].float_values().any():
        if graph[op.outputs[0]].shape == graph[op.inputs[0]].shape and not op.attributes.get("activation"):
            rewriter.replace(op, op.derive("Requantize", (names[0],), (result.name,)))
        return
    right = right_quantization(op, data, result)
    if right is None:
        return
    dtype, quantization = right
    other = rewriter.add(f"{result.name}/htp", result, dtype=dtype, quantization=quantization)
    inputs = op.inputs
    if needs_wide_data(op, data, result):
        inputs = tuple(_widen(rewriter, name, real, op.source) for name, real in zip(names, is_real, strict=True))
    changed = replace(op, inputs=inputs, outputs=(other,) if end is op else op.outputs)
    back = op.derive("Requantize", (other,), (result.name,))
    if end is op:
        rewriter.replace(op, changed, back)
    else:
        rewriter.replace(op, changed)
        rewriter.replace(end, replace(end, outputs=(other,)), back)


def _widen(rewriter: Rewriter, name: str, in_float: bool, source: str) -> str:
    """Return data of uint8 as uint16, which stand for the same values."""
    data = rewriter.graph[name]
    q = data.per_tensor
    if q is None or data.dtype != "uint8":
        return name
    fine = widen_quantization(q)
    if data.data is not None:
        wide = rewriter.constant(f"{name}/wide", data.data.astype(np.uint16) * np.uint16(256), "uint16", fine)
    else:
        wide = rewriter.compute("Requantize", (name,), f"{name}/wide", replace(data, dtype="uint16", quantization=fine), source)
    return rewriter.dequantize(wide, f"{wide}/real", source) if in_float else wide


def keep_integers(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Put a MaxPool of one element where HTP would change integers, or leave them out: it changes nothing next to a MaxPool. Exact.

    HTP joins data of one quantization alone, so it gives that of a Concat's result to whatever computes an input. A Reshape, Transpose,
    DepthToSpace or SpaceToDepth then copies integers that stand for other values, and arithmetic no longer clips to the range of its own
    result. HTP leaves out a Quantize of values that it computes in float and reads in float again, so that these are neither rounded nor
    clipped; and it computes a product with a constant and the sum with another in one, and what gives the data of an activation with the
    activation (tests/test_operators.py).
    """
    rewriter, kept = Rewriter(graph), 0
    for op in rewriter:
        if op.kind == "Concat":
            _pool_before_concat(rewriter, op)
        elif _is_clipped_late(rewriter, op) or (
            _is_left_out(rewriter, op) if op.kind in ("Quantize", "Requantize") else _is_normalized(rewriter, op)
        ):
            data = graph[op.outputs[0]]
            if data.per_tensor is not None and data.static_shape is not None:
                rounded = rewriter.add(f"{data.name}/rounded", data)
                rewriter.remove(op)
                rewriter.emit(replace(op, outputs=(rounded,)))
                rewriter.rename(_pool(rewriter, rewriter[rounded], op.source), data.name)
                kept += 1
    note = "integers of {} operators go through a MaxPool of one element, so that HTP keeps them".format
    return rewriter.finish_with(note, rewriter.replaced + kept)


def _is_left_out(rewriter: Rewriter, op: Op) -> bool:
    """Return whether HTP leaves out a Quantize or Requantize: one between operators in float. Those of inputs are onnxruntime's."""
    graph, producers, readers = rewriter.graph, rewriter.producers, rewriter.readers

    def runs_on_integers(other: Op) -> bool:
        ends = readers.get(other.name, ())
        if graph[other.name].dtype == "float32" and not (ends and all(end.kind == "Quantize" for end in ends)):
            return False
        begins = [producers.get(name) for name in other.inputs if name and graph[name].data is None and graph[name].dtype == "float32"]
        return all(begin is not None and begin.kind == "Dequantize" for begin in begins)

    def is_in_float(reader: Op) -> bool:
        if reader.kind == "Dequantize":
            return any(end.kind != "Quantize" and not runs_on_integers(end) for end in readers.get(reader.name, ()))
        return reader.kind == "Requantize" or not runs_on_integers(reader)

    maker = producers.get(op.inputs[0])
    is_written = maker is not None and (op.kind == "Requantize" or not runs_on_integers(maker))
    return is_written and any(map(is_in_float, readers.get(op.name, ())))


def _is_clipped_late(rewriter: Rewriter, op: Op) -> bool:
    """Return whether an activation reads a result whose clipping HTP leaves out, and its own result shows that."""
    tensors, readers = rewriter.graph.tensors, rewriter.readers
    data = tensors.get(op.name)
    if data is None or data.per_tensor is None:
        return False
    direct = readers.get(op.name, ())
    activations = [end for reader in direct for end in (reader, *readers.get(reader.name, ())) if end.kind in JOINED]
    results = [(end, tensors[last.name]) for end in activations for last in (end, *readers.get(end.name, ())) if last.name]
    return any(needs_clipped_data(tensors, end, data, result) for end, result in results)


def _is_normalized(rewriter: Rewriter, op: Op) -> bool:
    """Return whether an operator multiplies integers by a constant and the next one adds a constant, as normalizations do."""

    def takes_constant(other: Op) -> bool:
        return any(rewriter.graph[name].is_constant for name in other.inputs)

    readers = rewriter.readers.get(op.name, ())
    return op.kind == "Mul" and takes_constant(op) and any(end.kind in ("Add", "Sub") and takes_constant(end) for end in readers)


def _pool_before_concat(rewriter: Rewriter, op: Op) -> None:
    """Put a MaxPool of one element before each input of a Concat whose scale or zero point is not the result's."""
    graph = rewriter.graph
    ends = [end for end in rewriter.readers.get(op.outputs[0], ()) if end.kind == "Quantize"]
    begins = [rewriter.producers.get(name) for name in op.inputs]
    inputs = list(op.inputs)
    for place, begin in enumerate(begins):
        if not ends or begin is None or begin.kind != "Dequantize":
            continue
        data = graph[begin.inputs[0]]
        is_computed = data.name in rewriter.producers and data.static_shape is not None
        if is_computed and not data.shares_quantization(graph[ends[0].outputs[0]]):
            inputs[place] = rewriter.dequantize(_pool(rewriter, data, op.source), f"{data.name}/joined", op.source)
    if inputs != [*op.inputs]:
        rewriter.replace(op, replace(op, inputs=tuple(inputs)))


def _pool(rewriter: Rewriter, data: Tensor, source: str) -> str:
    """Put a MaxPool of one element after quantized data, as an image between two Reshapes where they are none; return its result."""

    def run(kind: str, name: str, wanted: str, shape: tuple[int, ...], *more: str, **attributes: Attribute) -> str:
        real = rewriter.dequantize(name, f"{wanted}/data", source)
        result = rewriter.compute(kind, (real, *more), f"{wanted}/real", replace(rewriter[real], shape=shape), source, **attributes)
        return rewriter.compute("Quantize", (result,), wanted, replace(data, shape=shape), source)

    shape = data.static_shape or ()
    image = shape if len(shape) == 4 else (1, 1, prod(shape[:-1]), prod(shape[-1:]))
    name = data.name
    if image != shape:
        name = run("Reshape", name, f"{data.name}/image", image, rewriter.constant(f"{data.name}/image_sizes", [*image]))
    one: dict[str, Attribute] = {"kernel_shape": (1, 1), "strides": (1, 1), "pads": (0, 0, 0, 0), "data_format": "channels_first"}
    name = run("MaxPool", name, f"{data.name}/pooled", image, **one)
    if image != shape:
        name = run("Reshape", name, f"{data.name}/joint", shape, rewriter.constant(f"{data.name}/sizes", [*shape]))
    return name
