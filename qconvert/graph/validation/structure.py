"""Invariants of names, order, operators and tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from qconvert.graph import DTYPES, Graph, Op, Tensor, numpy_dtype
from qconvert.graph.activations import ACTIVATIONS
from qconvert.graph.kinds import KINDS, REQUIRED, Kind

__all__ = ["Problems", "located", "names", "operators", "order", "tensors"]

#: (operator or tensor, what is wrong with it)
Problems = Iterator[tuple[str, str]]

#: More elements than any network's tensor has; a larger product comes from a damaged file.
_MOST_ELEMENTS = 2**40

#: The sort of the attributes that have no default to tell it.
_SORTS: dict[str, type] = {
    **dict.fromkeys(("strides", "pads", "dilations", "kernel_shape", "perm"), tuple),
    **dict.fromkeys(("axis", "blocksize", "max_detections", "num_classes", "num_groups", "version"), int),
    **dict.fromkeys(("data_format", "mode", "coordinate_transformation_mode", "to"), str),
    **dict.fromkeys(("equation", "format", "domain", "op_type"), str),
    **dict.fromkeys(("nms_score_threshold", "nms_iou_threshold", "y_scale", "x_scale", "h_scale", "w_scale"), float),
}
_SORT_NAMES = {tuple: "a tuple of integers", int: "an integer", str: "text", float: "a number"}
#: Attributes that are tuples of text.
_TEXTS = ("captures",)

_FLAGS = ("keepdims", "trans_a", "trans_b", "exclusive", "reverse", "largest", "sorted", "use_regular_nms",
          "ceil_mode", "count_include_pad", "upper", "allowzero")  # fmt: skip
#: Values that an attribute may have, by its name or by (kind, name).
_CHOICES: dict[str | tuple[str, str], tuple[Any, ...]] = {
    **dict.fromkeys(_FLAGS, (0, 1)),
    "data_format": ("channels_first", "channels_last"),
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "activation": tuple(ACTIVATIONS),
    "to": DTYPES,
    "ties": ("even", "up", "away"),
    "approximate": ("none", "tanh"),
    "reduction": ("none", "add", "mul", "max", "min"),
    "coordinate_transformation_mode": (
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    ),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    ("Resize", "mode"): ("nearest", "linear", "cubic"),
    ("Pad", "mode"): ("constant", "reflect", "symmetric", "edge", "wrap"),
}  # fmt: skip


def located(op: Op) -> str:
    """The operator as errors name it: where it came from, its kind and its first output."""
    return f"{op.source} {op}".strip()


def names(graph: Graph) -> Problems:
    """Every name exists, keys are names, and each tensor has one origin."""
    for key, tensor in graph.tensors.items():
        if key != tensor.name:
            yield f"tensor {key!r}", f"is filed under another name than its own, {tensor.name!r}"
    for op in graph.ops:
        for name in (*op.inputs, *op.outputs):
            if name and name not in graph.tensors:
                yield located(op), f"names the tensor {name!r}, which does not exist"
    yield from _border_names(graph)
    origin = dict.fromkeys(graph.inputs, "is a graph input")
    origin |= {tensor.name: "is a constant" for tensor in graph.constants()}
    for op in graph.ops:
        for name in filter(None, op.outputs):
            if name in origin:
                yield located(op), f"writes {name!r}, which {origin[name]}"
            origin[name] = f"{located(op)} writes already"


def _border_names(graph: Graph) -> Problems:
    """Graph inputs, outputs and signatures name tensors that exist; inputs are distinct and no constants."""
    for what, listed in (("input", graph.inputs), ("output", graph.outputs)):
        for name in listed:
            if name not in graph.tensors:
                yield f"tensor {name!r}", f"is a graph {what} that does not exist"
    for name, count in Counter(graph.inputs).items():
        if count > 1:
            yield f"tensor {name!r}", f"is a graph input {count} times"
        if graph[name].is_constant:
            yield f"tensor {name!r}", "is a graph input and a constant"
    for signature in graph.signatures:
        for argument, name in (*signature.inputs.items(), *signature.outputs.items()):
            if name not in graph.tensors:
                yield f"signature {signature.key!r}", f"maps {argument!r} to {name!r}, which does not exist"


def order(graph: Graph) -> Problems:
    """Operators come after what they read: a cycle, a wrong order and a value never written."""
    ready = {*graph.inputs} | {tensor.name for tensor in graph.constants()}
    producers = graph.producers()
    for op in graph.ops:
        for name in op.inputs:
            if not name or name in ready:
                continue
            if name not in producers:
                yield located(op), f"reads {name!r}, which is no input, no constant and no operator's output"
            elif _reaches(graph, op, producers[name]):
                yield located(op), f"is part of a cycle: {name!r} depends on its own output"
            else:
                yield located(op), f"comes before {located(producers[name])}, which writes its input {name!r}"
        ready.update(op.outputs)
    for name in graph.outputs:
        if name not in ready:
            yield f"tensor {name!r}", "is a graph output that nothing writes"


def _reaches(graph: Graph, start: Op, goal: Op) -> bool:
    """Whether `goal` depends on the outputs of `start`."""
    consumers = graph.consumers()
    pending, seen = [start], {id(start)}
    while pending:
        op = pending.pop()
        if op is goal:
            return True
        for reader in (reader for name in op.outputs for reader in consumers.get(name, [])):
            if id(reader) not in seen:
                seen.add(id(reader))
                pending.append(reader)
    return False


def operators(graph: Graph) -> Problems:
    """Kinds exist, arity fits, attributes are the kind's own with values of the right sort."""
    for op in graph.ops:
        spec = KINDS.get(op.kind)
        if spec is None:
            yield located(op), f"the operator set has no kind {op.kind!r}"
            return
        yield from _arity(op, spec)
        yield from _attributes(op, spec)


def _arity(op: Op, spec: Kind) -> Problems:
    for what, given, (fewest, most) in (
        ("inputs", op.inputs, spec.inputs),
        ("outputs", op.outputs, spec.outputs),
    ):
        if len(given) < fewest or 0 <= most < len(given):
            wanted = f"at least {fewest}" if most < 0 else str(fewest) if fewest == most else f"{fewest} to {most}"
            yield located(op), f"has {len(given)} {what}, not {wanted}"
    needed = spec.inputs[0] if spec.inputs[1] >= 0 or spec.rule == "opaque" else len(op.inputs)
    for index, name in enumerate(op.inputs[:needed]):
        if not name:
            yield located(op), f"lacks input {index}, which is not optional"


def _attributes(op: Op, spec: Kind) -> Problems:
    for name in op.attributes:
        if name not in spec.attributes:
            yield located(op), f"has the attribute {name!r}, which its kind does not have"
    for name, default in spec.attributes.items():
        if name not in op.attributes:
            if default is REQUIRED:
                yield located(op), f"lacks the attribute {name!r}"
            continue
        value = op.attributes[name]
        sort = _SORTS.get(name) if default is REQUIRED else type(default)
        if name in _TEXTS:
            if not (isinstance(value, tuple) and all(isinstance(item, str) for item in value)):
                yield located(op), f"has {value!r} as attribute {name!r}, which is a tuple of text"
        elif sort is not None and not _is_of(value, sort):
            yield located(op), f"has {value!r} as attribute {name!r}, which is {_SORT_NAMES[sort]}"
        choices = _CHOICES.get((op.kind, name)) or _CHOICES.get(name)
        if choices is not None and value not in choices:
            yield (
                located(op),
                f"has {value!r} as attribute {name!r}, which is one of {', '.join(map(repr, choices))}",
            )


def _is_of(value: object, sort: type) -> bool:
    if isinstance(value, bool):
        return False
    if sort is tuple:
        return isinstance(value, tuple) and all(_is_of(item, int) for item in value)
    if sort is float:
        return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return isinstance(value, sort)


def tensors(graph: Graph) -> Problems:
    """Types exist, sizes are sane, constants have the shape and type that they claim."""
    for tensor in graph.tensors.values():
        where = f"tensor {tensor.name!r}"
        if tensor.dtype not in DTYPES:
            yield where, f"is of type {tensor.dtype!r}, which does not exist"
            return
        yield from ((where, reason) for reason in _shape_problems(tensor))
        if tensor.data is None:
            continue
        if tensor.data.shape != tensor.shape:
            yield where, f"has data of shape {tensor.data.shape}, but says {tensor.shape}"
        if tensor.data.dtype != numpy_dtype(tensor.dtype):
            yield where, f"has data of type {tensor.data.dtype}, but says {tensor.dtype}"


def _shape_problems(tensor: Tensor) -> Iterator[str]:
    count = 1
    for size in tensor.shape or ():
        if isinstance(size, str):
            if not size:
                yield f"has a size without a name in its shape {tensor.shape}"
        elif not isinstance(size, int) or isinstance(size, bool):
            yield f"has {size!r} in its shape, which is neither a number nor a name"
            return
        elif size < 0:
            yield f"has a negative size in its shape {tensor.shape}"
        else:
            count *= max(size, 1)
    if count > _MOST_ELEMENTS:
        yield f"has more than 2^40 elements in its shape {tensor.shape}"
