"""One change of an .onnx file: a number, an attribute, an input, or a node that is lost or one too many."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
from changed_numbers import Change, change_number, change_scale, pick
from onnx import TensorProto, helper, numpy_helper

_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE}


def _constants(model: onnx.ModelProto) -> dict[str, Any]:
    return {item.name: item for item in model.graph.initializer}


def _read_as(model: onnx.ModelProto) -> dict[str, list[tuple[Any, int]]]:
    found: dict[str, list[tuple[Any, int]]] = {}
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            found.setdefault(name, []).append((node, index))
    return found


def _role(node: Any, index: int) -> str:
    """What a constant is to a node: "scale", "point", "data", "bias", "bound", "table", "shape", "pads", "axes" or "other"."""
    kind = node.op_type
    if kind in ("QuantizeLinear", "DequantizeLinear"):
        return ("data", "scale", "point")[index]
    if (kind.startswith("QLinear") and "Conv" in kind) or kind == "QLinearMatMul":
        return ("data", "scale", "point", "data", "scale", "point", "scale", "point", "bias")[index]
    if kind in ("Clip", "Max", "Min"):
        return "bound"
    if kind in ("Gather", "GatherND", "GatherElements") and index == 0:
        return "table"
    if kind in ("Reshape", "Expand"):
        return "shape"
    if kind == "Pad" and index == 1:
        return "pads"
    if kind.startswith("Reduce") or kind in ("Squeeze", "Unsqueeze", "Slice"):
        return "axes"
    return "other"


def _element(role: str, types: Collection[int] = ()) -> Change:
    """An element of a constant with a role; `types` are those of its data, all by default."""

    def change(model: onnx.ModelProto, rng: np.random.Generator) -> str:
        constants, read = _constants(model), _read_as(model)
        fits = [
            item for item in constants.values()
            if np.prod(item.dims) and (not types or item.data_type in types)
            and any(_role(*use) == role for use in read.get(item.name, []))
        ]  # fmt: skip
        item = pick(fits, rng)
        if item is None:
            return ""
        data = numpy_helper.to_array(item).copy()
        if data.dtype.kind not in "fiub":
            return ""
        words = change_number(data, rng, int(rng.integers(data.size)))
        if words:
            item.CopyFrom(numpy_helper.from_array(data, item.name))
        return words and f"{item.name!r}: {words}"

    return change


def _attribute(wanted: str) -> Change:
    """One number of an attribute; `wanted` is its name, or "" for any other."""
    named = ("axis", "perm", "pads")

    def change(model: onnx.ModelProto, rng: np.random.Generator) -> str:
        found = [
            (node, item) for node in model.graph.node for item in node.attribute
            if (item.name == wanted if wanted else item.name not in named) and item.type in (1, 2, 6, 7)
        ]  # fmt: skip
        picked = pick(found, rng)
        if picked is None:
            return ""
        node, item = picked
        before = helper.get_attribute_value(item)
        if item.type == 1:
            item.f = float(change_scale(np.float32(item.f), rng)[0]) if item.f else 0.5
        elif item.type == 2:
            item.i += int(rng.choice([-1, 1]))
        elif item.type == 7 and len(item.ints) > 1 and (wanted or rng.integers(2)):
            places = rng.permutation(len(item.ints))[:2]
            values = list(item.ints)
            values[places[0]], values[places[1]] = values[places[1]], values[places[0]]
            item.ints[:] = values
        elif item.type == 7 and item.ints:
            item.ints[int(rng.integers(len(item.ints)))] += int(rng.choice([-1, 1]))
        after = helper.get_attribute_value(item)
        return f"{node.op_type} {node.output[0]!r}: {item.name} {before} -> {after}" if before != after else ""

    return change


def _exchange(model: onnx.ModelProto, rng: np.random.Generator) -> str:
    node = pick([node for node in model.graph.node if len(node.input) > 1 and node.input[0] and node.input[1]], rng)
    if node is None or node.input[0] == node.input[1]:
        return ""
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return f"{node.op_type} {node.output[0]!r}: inputs exchanged"


def _edge(model: onnx.ModelProto, rng: np.random.Generator) -> str:
    """A node reads a tensor that comes before it instead of its own."""
    nodes, constants = list(model.graph.node), _constants(model)
    place = int(rng.integers(len(nodes)))
    node = nodes[place]
    index = int(rng.integers(len(node.input)))
    old = node.input[index]
    if not old:
        return ""
    if old in constants:
        alike = [name for name, item in constants.items()
                 if name != old and item.dims == constants[old].dims and item.data_type == constants[old].data_type]  # fmt: skip
    else:
        alike = [name for item in nodes[:place] for name in item.output if name != old]
    new = pick(alike, rng)
    if new is None:
        return ""
    node.input[index] = new
    return f"{node.op_type} {node.output[0]!r} reads {new!r}, not {old!r}"


def _lost(*kinds: str) -> Change:
    """A node is left out: its readers read its data."""

    def change(model: onnx.ModelProto, rng: np.random.Generator) -> str:
        ends = {item.name for item in model.graph.output}
        node = pick([node for node in model.graph.node if (not kinds or node.op_type in kinds) and not ends & {*node.output}], rng)
        if node is None or not node.input:
            return ""
        for other in model.graph.node:
            other.input[:] = [node.input[0] if name == node.output[0] else name for name in other.input]
        words = f"{node.op_type} {node.output[0]!r} is left out"
        model.graph.node.remove(node)
        return words

    return change


def _insert(kind: str) -> Change:
    """One node too many, of float values before a QuantizeLinear or after the DequantizeLinear of its result.

    Args:
        kind: of the node; "half" adds part of a step, "Cast" converts to float16 and back, "Mul" multiplies by the next number after 1.
    """

    def change(model: onnx.ModelProto, rng: np.random.Generator) -> str:
        constants, nodes = _constants(model), list(model.graph.node)
        ends = [node for node in nodes if node.op_type == "QuantizeLinear" and {*node.input[1:]} <= constants.keys()]
        end = pick(ends, rng)
        if end is None:
            return ""
        scale, *points = (numpy_helper.to_array(constants[name]).reshape(-1)[0] for name in end.input[1:])
        again = [node for node in nodes if node.op_type == "DequantizeLinear" and end.output[0] in node.input]
        data, place = end.input[0], nodes.index(end)
        if again and rng.integers(2):
            data, place = again[0].output[0], nodes.index(again[0]) + 1
        if kind == "Clip":
            limits, side = np.iinfo(points[0].dtype if points else np.uint8), int(rng.integers(2))
            steps = np.array([limits.min, limits.max], np.int64) - (int(points[0]) if points else 0)
            steps[side] += int(rng.integers(1, 4)) * (1 - 2 * side)
            bounds = [(f"planted{number}", np.float32(step * scale)) for number, step in enumerate(steps)]
            model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in bounds)
            added = [helper.make_node("Clip", [data, *(name for name, _ in bounds)], ["planted"])]
        elif kind == "Cast":
            types = ((data, "planted0", TensorProto.FLOAT16), ("planted0", "planted", TensorProto.FLOAT))
            added = [helper.make_node("Cast", [given], [result], to=to) for given, result, to in types]
        elif kind in ("half", "Mul"):
            value = np.float32(scale * rng.choice([0.5, -0.5, 0.01])) if kind == "half" else np.nextafter(np.float32(1), np.float32(2))
            model.graph.initializer.append(numpy_helper.from_array(value, "planted0"))
            added = [helper.make_node("Add" if kind == "half" else kind, [data, "planted0"], ["planted"])]
        else:
            added = [helper.make_node(kind, [data], ["planted"])]
        for node in nodes[place:]:
            node.input[:] = ["planted" if name == data else name for name in node.input]
        for offset, node in enumerate(added):
            model.graph.node.insert(place + offset, node)
        return f"{kind} after {data!r}"

    return change


def _outputs(model: onnx.ModelProto, rng: np.random.Generator) -> str:
    if len(model.graph.output) < 2:
        return ""
    names = [onnx.ValueInfoProto.FromString(item.SerializeToString()) for item in model.graph.output]
    del model.graph.output[:]
    model.graph.output.extend([names[1], names[0], *names[2:]])
    return "outputs exchanged"


#: Kind of change -> what makes it.
CHANGES: Mapping[str, Change] = {
    "scale": _element("scale", _FLOATS),
    "zero point": _element("point"),
    "weight": _element("data", {TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16}),
    "bias": _element("data", {TensorProto.INT32}),
    "bias of QLinear": _element("bias"),
    "bound": _element("bound"),
    "table": _element("table"),
    "shape": _element("shape"),
    "axes": _element("axes"),
    "padding": _element("pads"),
    "other constant": _element("other"),
    "attribute": _attribute(""),
    "axis": _attribute("axis"),
    "perm": _attribute("perm"),
    "pads": _attribute("pads"),
    "inputs exchanged": _exchange,
    "other input": _edge,
    "lost limit": _lost("Clip", "Relu", "Max", "Min", "LeakyRelu"),
    "lost operator": _lost(),
    "a Relu": _insert("Relu"),
    "a Clip": _insert("Clip"),
    "a Cast": _insert("Cast"),
    "part of a step": _insert("half"),
    "a factor": _insert("Mul"),
    "a Floor": _insert("Floor"),
    "outputs exchanged": _outputs,
}
