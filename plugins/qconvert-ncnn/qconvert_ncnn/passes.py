"""Passes for ncnn: one sample, products with constants as fully connected layers, and quantizations of int8 layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.plugin import (
    KINDS,
    Array,
    Change,
    Cost,
    Graph,
    Op,
    Quantization,
    Rewriter,
    Target,
    Tensor,
    dequantize,
    format_count,
    infer,
    quantize,
)
from qconvert_ncnn.quantizations import (
    INT8,
    LIMIT,
    PRODUCTS,
    has_data_quantization,
    missing_kernel_reason,
    nearest_invertible_scale,
    outputs_axis,
)

#: Candidates for new scale / old scale, in addition to the one of the whole range: many codes stay exact with them.
_RATIOS = (1.0, 1.25, 4 / 3, 1.5, 5 / 3, 1.75, 2.0)
#: Ratios without ties between codes, and an addition to the range with the same effect: float32 would decide a tie of rounded values.
_WITHOUT_TIES, _BEYOND = (1.0, 1.25, 1.5, 5 / 3, 1.75), 0.1


def set_one_sample(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change, ...]]:
    """Set a dynamic number of samples to 1, since ncnn runs one sample at a time."""
    firsts = [graph[name].shape[0] for name in graph.inputs if graph[name].shape]  # type: ignore[index]
    symbols = {size for size in firsts if isinstance(size, str)}
    if not symbols:
        return graph, ()
    tensors = []
    for tensor in graph.tensors.values():
        if tensor.shape is not None and symbols.intersection(tensor.shape):
            tensors.append(replace(tensor, shape=tuple(1 if size in symbols else size for size in tensor.shape)))
    return infer(graph.evolve(tensors=tensors)), (Change("the number of samples, which was dynamic, is 1", exact=True),)


def replace_matmul(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Replace a MatMul of a vector and a constant matrix by a Gemm with transposed weights; not for scales along K or in blocks."""
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("MatMul"):
        data, weights = graph[op.inputs[0]], graph[op.inputs[1]]
        q, name = weights.quantization, weights.name
        is_along_outputs = q is None or (not q.block_size and q.axis in (None, outputs_axis(op)))
        if weights.data is None or weights.rank != 2 or data.rank != 2 or op["trans_a"] or not is_along_outputs:
            continue
        if not op["trans_b"]:
            turned = None if q is None else q.transpose((1, 0))
            name = rewriter.constant(f"{name}/turned", np.ascontiguousarray(weights.data.T), weights.dtype, turned)
        kept = {key: value for key, value in op.attributes.items() if key not in ("trans_a", "trans_b")}
        rewriter.replace(op, Op("Gemm", (data.name, name), op.outputs, kept, op.source))
    return rewriter.finish_with("MatMul with constant weights is written as a fully connected layer: {}".format)


def requantize_data(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change, ...]]:
    """Quantize the data of convolutions and fully connected layers as int8, from -127 to 127, with zero point 0.

    Scales of data and weights become the nearest with an exact inverse, since ncnn's files have inverses. A tensor that only such layers
    read is rounded to the new quantization at once; other tensors are requantized for the layers.
    """
    users = graph.consumers()
    made: dict[str, Tensor] = {}
    names, costs = graph.names(made), list[Cost]()
    again, moved = dict[str, str](), list[Cost]()
    for op in graph.ops:
        if op.kind not in PRODUCTS or missing_kernel_reason(graph, op):
            continue
        data, own = graph[op.inputs[0]], graph[op.inputs[1]]
        if own.name not in made and own.quantization is not None:
            scale = nearest_invertible_scale(own.quantization.scale)
            if (scale != own.quantization.scale).any():
                made[own.name] = replace(own, quantization=replace(own.quantization, scale=scale))
                error = np.abs(scale / own.quantization.scale.astype(np.float64) - 1).max() * 128
                moved.append(Cost(own.name, None, float(error)))  # in steps
        if data.name in made or data.name in again or (has_data_quantization(data) and _has_invertible_scale(data)):
            continue
        name, once = data.name, _is_only_data(graph, data.name, users[data.name])
        quantization = _choose_quantization(data, once and graph.producers()[name].kind != "Requantize")  # a Requantize has rounded data
        if once:
            made[data.name] = replace(data, dtype=INT8, quantization=quantization)
        else:
            again[data.name] = name = names.fresh(f"{data.name}/{INT8}")
            plain = replace(quantization, quant_min=-LIMIT, quant_max=LIMIT)  # the old quantization has clipped already
            made[name] = Tensor(name, INT8, data.shape, None, plain)
        cost = _cost(data, quantization)
        costs += [replace(cost, tensor=name)] if cost is not None else []
    if not made:
        return graph, ()
    changed = graph.evolve(tensors=made.values(), ops=_insert_requantize(graph, again))
    notes = []
    if len(made) > len(moved):
        text = f"{format_count(len(made) - len(moved), 'tensor')} read by layers, now int8 from -127 to 127 with the zero point 0"
        notes.append(Change(f"{text}; {len(again)} of them in addition to the tensors of the source", exact=False, costs=tuple(costs)))
    if moved:
        text = f"scales of {format_count(len(moved), 'weight')} change by up to 2e-7 of their size, since ncnn stores their inverses"
        notes.append(Change(text, exact=False, costs=tuple(moved)))
    return changed, tuple(notes)


def _insert_requantize(graph: Graph, again: dict[str, str]) -> list[Op]:
    """Return the operators, with a Requantize of each tensor in `again` before the first layer that reads it."""
    found, done = [], set[str]()
    for op in graph.ops:
        name = op.inputs[0] if op.inputs else ""
        if name not in again or op.kind not in PRODUCTS or missing_kernel_reason(graph, op):
            found.append(op)
            continue
        if name not in done:
            done.add(name)
            found.append(op.derive("Requantize", (name,), (again[name],)))
        found.append(op.with_input(0, again[name]))
    return found


def _has_invertible_scale(tensor: Tensor) -> bool:
    return tensor.quantization is not None and bool(
        (nearest_invertible_scale(tensor.quantization.scale) == tensor.quantization.scale).all()
    )


def _is_only_data(graph: Graph, name: str, users: list[Op]) -> bool:
    """Return whether only int8 layers read a tensor, as data, and its producer can round to any quantization."""
    if name in graph.public or name in graph.inputs:
        return False
    if any(
        op.kind not in PRODUCTS or op.inputs.count(name) != 1 or op.inputs[0] != name or missing_kernel_reason(graph, op) for op in users
    ):
        return False
    producer = graph.producers()[name]
    return (
        KINDS[producer.kind].rounds
        and len(producer.outputs) == 1
        and not str(producer.attributes.get("arithmetic", "")).startswith("fixed")
    )


def _choose_quantization(tensor: Tensor, once: bool) -> Quantization:
    """Return the quantization with zero point 0 and the least error over the codes of the old one, with the same limits.

    Args:
        once: whether values are rounded only to the new quantization, not to the old one before.
    """
    q = tensor.quantization
    assert q is not None
    codes = _codes(tensor)
    whole = max(abs(int(codes[0])), abs(int(codes[-1])), 1)
    ratios = np.array([whole / LIMIT, *_RATIOS] if once else [(whole + _BEYOND) / LIMIT, *_WITHOUT_TIES])
    losses = [float(np.square(np.clip(np.rint(codes / ratio), -LIMIT, LIMIT) * ratio - codes).mean()) for ratio in ratios]
    scale = nearest_invertible_scale((q.scale * ratios[int(np.argmin(losses))]).astype(np.float32))
    plain = Quantization(scale, np.zeros(scale.shape, np.int64), None, 0, -LIMIT, LIMIT)
    low, high = quantize(dequantize(np.array(q.limits(tensor.dtype)), q), plain, INT8)
    return replace(plain, quant_min=int(low), quant_max=int(high))


def _codes(tensor: Tensor) -> Array:
    """Return the stored integers of a tensor less its zero point."""
    q = tensor.quantization
    assert q is not None
    low, high = q.limits(tensor.dtype)
    found: Array = np.arange(low, high + 1, dtype=np.float64) - q.point
    return found


def _cost(tensor: Tensor, quantization: Quantization) -> Cost | None:
    """Return the error over the codes of the old quantization, or None without one."""
    q = tensor.quantization
    assert q is not None
    codes = _codes(tensor) * q.step
    step = quantization.step
    low, high = quantization.limits(INT8)
    error = np.clip(np.rint(codes / step), low, high) * step - codes
    noise = float(np.square(error).mean())
    if noise <= (1e-6 * step) ** 2:
        return None
    return Cost(tensor.name, float(10 * np.log10(np.square(codes).mean() / noise)), float(np.abs(error).max() / step))
