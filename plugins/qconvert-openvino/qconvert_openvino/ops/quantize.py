"""Quantizations: FakeQuantize, Convert to integers and back, and casts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.plugin import Array, NotedTensor, Op, Quantization, UnsupportedError, integer_range
from qconvert_openvino.constants import constant_of, quantization_along
from qconvert_openvino.container import Node
from qconvert_openvino.elements import DTYPES, RESULT_DTYPES, TYPES
from qconvert_openvino.ranges import Stated, fake_quantize_of, quantization_of
from qconvert_openvino.reading import Reading, name_dynamic_sizes
from qconvert_openvino.writing import GRIDS, Writing, unsupported_error


def read_fake_quantize(r: Reading) -> None:
    """FakeQuantize: Quantize and Dequantize; followed by a Convert to integers only a Quantize."""
    stated = fake_quantize_of(r.node)
    if stated is None:
        raise r.unsupported_error("whose bounds are computed, are not finite, or run along several axes")
    convert = r.sole_reader()
    to = DTYPES.get(convert.attributes.get("destination_type", ""), "") if convert is not None and convert.type == "Convert" else ""
    if convert is not None and _has_consecutive_levels(stated, to):
        _read_quantize(r, stated, convert)
        return
    port = next(iter(r.node.ports))
    name, described = r.draft.port_names(r.node, port)[0], r.node.ports[port]
    noted = r.draft.notes.quantizations.get(name)
    dtype, q = _quantization(r, stated, noted)
    shape = name_dynamic_sizes(r.node.name, described.shape)
    own = noted.name if noted is not None and noted.name not in r.draft.tensors and noted.name else name
    given_out = r.draft.is_output(r.node, port)
    free = not given_out or own != name
    stored = r.draft.add(own if free else f"{name}/{dtype}", dtype, shape, None, q, own=free)
    r.draft.ops.append(Op("Quantize", (r.value(0),), (stored,), {}, str(r.node)))
    if not stated.is_plain:
        stored = _relabel_tensor(r, stated, stored)
    if given_out:
        r.emit("Dequantize", [stored])
    else:
        real = r.draft.add(f"{name}/real", "float32", shape)
        r.draft.values[r.node.id, port] = real
        r.draft.ops.append(Op("Dequantize", (stored,), (real,), {}, str(r.node)))


def _quantization(r: Reading, stated: Stated, noted: NotedTensor | None) -> tuple[str, Quantization]:
    try:
        return quantization_of(stated.taken, stated.axis, None if noted is None else (noted.dtype, noted.quantization))
    except UnsupportedError as error:
        raise r.unsupported_error(f", which {error.reason},") from error


def _has_consecutive_levels(stated: Stated, dtype: str) -> bool:
    """Return whether the levels of a FakeQuantize are consecutive integers of a type."""
    if dtype not in GRIDS or (stated.axis is not None and len(np.unique(stated.given.low)) > 1):
        return False
    low, high, (smallest, largest) = float(stated.given.low[0]), float(stated.given.high[0]), integer_range(dtype)
    one_after_the_other = low.is_integer() and (stated.given.high == high).all() and high - low == stated.given.levels - 1
    return bool(one_after_the_other and smallest <= low <= high <= largest)


def _read_quantize(r: Reading, stated: Stated, convert: Node) -> None:
    """Read a FakeQuantize and the Convert after it as a Quantize."""
    result = Reading(r.draft, convert)
    dtype = DTYPES[convert.attributes["destination_type"]]
    name = r.draft.port_names(convert, next(iter(convert.ports)))[0]
    noted = r.draft.notes.quantizations.get(name)
    smallest = int(stated.given.low[0])
    found, q = _quantization(r, stated, noted if noted is not None and noted.dtype == dtype else None)
    if (found, q.limits(found)[0]) != (dtype, smallest):
        q = Quantization(q.scale, q.zero_point - q.limits(found)[0] + smallest, q.axis)
        q = q.with_limits(dtype, smallest, smallest + stated.taken.levels - 1)
    r.draft.done.add(convert.id)
    value = r.value(0)
    (stored,) = result.emit("Quantize", [value])
    r.draft.tensors[stored] = replace(r.draft.tensors[stored], quantization=q)


def _relabel_tensor(r: Reading, stated: Stated, stored: str) -> str:
    """Add a Reinterpret of the levels with the quantization of the output bounds."""
    tensor = r.draft.tensors[stored]
    assert tensor.quantization is not None
    try:
        dtype, q = quantization_of(stated.given, stated.axis)
    except UnsupportedError as error:
        raise r.unsupported_error(f", which gives out what {error.reason},") from error
    smallest = tensor.quantization.limits(tensor.dtype)[0]
    q = replace(tensor.quantization, scale=q.scale, zero_point=q.zero_point - q.limits(dtype)[0] + smallest)
    name = r.draft.add(f"{stored}/given", tensor.dtype, tensor.shape, None, q)
    r.draft.ops.append(Op("Reinterpret", (stored,), (name,), {}, str(r.node)))
    return name


def read_convert(r: Reading) -> None:
    """Convert: a Cast; integers followed by Subtract and Multiply of constants are a Dequantize."""
    dtype = RESULT_DTYPES.get(r.text("destination_type"), "")
    source = r.draft.tensors[r.value(0)]
    if not dtype:
        raise r.unsupported_error(f"to {r.text('destination_type')!r}")
    if dtype == "float32" and source.dtype in GRIDS and _read_dequantize(r):
        return
    if source.dtype == dtype and source.quantization is None:
        r.emit("Identity", [source.name])
        return
    plain = source.name
    if source.quantization is not None:  # the integers as numbers
        plain = r.draft.add(f"{source.name}/plain", source.dtype, source.shape)
        r.draft.ops.append(Op("Reinterpret", (source.name,), (plain,), {}, str(r.node)))
    r.emit("Cast", [plain], to=dtype)


def _read_dequantize(r: Reading) -> bool:
    """Read Convert, optional Subtract, and Multiply of constants as a Dequantize; return whether they are one."""
    node, taken, point = r.sole_reader(), [], np.zeros((), np.int64)
    if node is not None and node.type == "Subtract" and node.inputs[0][0] is r.node:
        item = constant_of(node.inputs[1][0])
        values = None if item is None or not item.is_plain else item.data
        if values is None or not np.isfinite(values).all() or (values != np.rint(values)).any():
            return False
        taken, point = [node], values.astype(np.int64)
        node = Reading(r.draft, node).sole_reader()
    if node is None or node.type != "Multiply" or len(node.inputs) != 2:
        return False
    last = taken[-1] if taken else r.node
    other = next((source for source, _ in node.inputs if source is not last), None)
    item = None if other is None else constant_of(other)
    if item is None or item.scale is not None or item.data.dtype != np.float32:
        return False
    if not (np.isfinite(item.data).all() and (item.data > 0).all()):
        return False
    source = r.draft.tensors[r.value(0)]
    q = _match_quantization(item.data, point, source.rank or 0)
    if q is None:
        return False
    r.draft.done.update(step.id for step in (*taken, node))
    Reading(r.draft, node).emit("Dequantize", [_label_tensor(r, source.name, q)])
    return True


def _match_quantization(scale: Array, point: Array, rank: int) -> Quantization | None:
    try:
        shape = np.broadcast_shapes(scale.shape, point.shape, (1,) * rank)
    except ValueError:
        return None
    if len(shape) != rank:
        return None
    q = quantization_along(np.broadcast_to(scale, shape), np.broadcast_to(point, shape)) if rank or scale.size == 1 else None
    return None if q is None or q.block_size else q


def _label_tensor(r: Reading, name: str, q: Quantization) -> str:
    """Return integers with a quantization: an input of the model gets it, other tensors a Reinterpret if theirs differs."""
    tensor = r.draft.tensors[name]
    if tensor.quantization is None and not any(name in op.names for op in r.draft.ops):
        r.draft.tensors[name] = replace(tensor, quantization=q)
        return name
    own = tensor.quantization
    if own is not None and replace(own, quant_min=None, quant_max=None) == q:
        return name
    other = r.draft.add(f"{name}/labelled", tensor.dtype, tensor.shape, None, q)
    r.draft.ops.append(Op("Reinterpret", (name,), (other,), {}, str(r.node)))
    return other


def write_cast(op: Op, w: Writing) -> None:
    to = TYPES.get(op["to"])
    if to is None:
        raise unsupported_error(op, f"to {op['to']}")
    w.finish(op, w.op.convert(w.value(op.inputs[0]), to))


def write_quantize(op: Op, w: Writing) -> None:
    """Quantize and Requantize: a FakeQuantize of the float values."""
    w.set_value(op.outputs[0], w.value(op.inputs[0]), rounds=True)


def write_identity(op: Op, w: Writing) -> None:
    """Dequantize and Identity: the value of the input."""
    w.values[op.outputs[0]] = w.value(op.inputs[0])
    if op.inputs[0] in w.unrounded and w.graph[op.outputs[0]].is_quantized:
        w.unrounded[op.outputs[0]] = w.unrounded[op.inputs[0]]


def write_reinterpret(op: Op, w: Writing) -> None:
    """Reinterpret: the stored integers, with another quantization."""
    source, result = w.graph[op.inputs[0]], w.graph[op.outputs[0]]
    found = w.value(source.name)
    if source.quantization is not None:
        value = w.unrounded.get(source.name, found)
        note = w.notes.quantizations.get(source.name)
        found = w.emit_quantize(value, source).output(0)
        if note is None:
            w.notes.quantizations.pop(source.name, None)
    if result.quantization is None:
        w.values[result.name] = w.set_name(found, result.name)
        return
    q = w.quantization(result)
    w.values[result.name] = w.dequantize(w.op.convert(found, "f32"), result.dtype, q, w.sizes(result, q)).output(0)


READERS = {"FakeQuantize": read_fake_quantize, "Convert": read_convert}
WRITERS = {
    "Cast": write_cast,
    "Quantize": write_quantize,
    "Requantize": write_quantize,
    "Dequantize": write_identity,
    "Identity": write_identity,
    "Reinterpret": write_reinterpret,
}
