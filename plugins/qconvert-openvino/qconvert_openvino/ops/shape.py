"""Operators that move elements."""

from __future__ import annotations

import numpy as np

from qconvert.plugin import Op
from qconvert_openvino.reading import Reading, name_dynamic_sizes
from qconvert_openvino.writing import Writing, unsupported_error


def read_reshape(r: Reading) -> None:
    r.emit("Reshape", [r.value(0), r.int64(1)], **({} if r.flag("special_zero") else {"allowzero": 1}))


def write_reshape(op: Op, w: Writing) -> None:
    w.finish(op, w.op.reshape(*w.inputs(op), not op["allowzero"]))


def read_transpose(r: Reading) -> None:
    perm = r.numbers(1, "an order") or [*range(r.rank())][::-1]
    r.emit("Transpose", [r.value(0)], perm=tuple(perm))


def write_transpose(op: Op, w: Writing) -> None:
    w.finish(op, w.op.transpose(w.value(op.inputs[0]), w.numbers(op["perm"])))


def read_squeeze(r: Reading) -> None:
    rank = r.rank() + (len(r.numbers(1, "axes")) if r.node.type == "Unsqueeze" else 0)
    axes = r.axes(1, rank) if r.count > 1 else [axis for axis, size in enumerate(r.port(0).shape) if size == 1]
    r.emit(r.node.type, [r.value(0), r.index(axes)])


def write_squeeze(op: Op, w: Writing) -> None:
    make = w.op.squeeze if op.kind == "Squeeze" else w.op.unsqueeze
    w.finish(op, make(*w.inputs(op)))


def read_concat(r: Reading) -> None:
    r.emit("Concat", [r.value(index) for index in range(r.count)], axis=r.integer("axis"))


def write_concat(op: Op, w: Writing) -> None:
    w.finish(op, w.op.concat(w.inputs(op), int(op["axis"])))


def write_pack(op: Op, w: Writing) -> None:
    """An Unsqueeze of each operand and a Concat."""
    axis = int(op["axis"])
    w.finish(op, w.op.concat([w.op.unsqueeze(item, w.numbers([axis])) for item in w.inputs(op)], axis))


def write_unpack(op: Op, w: Writing) -> None:
    """A Split and a Squeeze of each part."""
    axis = w.numbers([int(op["axis"])])
    parts = w.op.split(w.value(op.inputs[0]), w.op.constant(int(op["axis"])), len(op.outputs))
    w.finish(op, *(w.op.squeeze(part, axis) for part in parts.outputs()))


def read_split(r: Reading) -> None:
    """Split into equal parts, and VariadicSplit."""
    axis = r.axis(1, r.rank())
    sizes = r.numbers(2, "lengths") if r.node.type == "VariadicSplit" else []
    total = r.port(0).shape[axis]
    if not sizes:
        count = len(r.node.ports)
        if total < 0 or total % count:
            raise r.unsupported_error("of a size that is known only at run time", rule="not-constant")
        sizes = [total // count] * count
    if -1 in sizes:
        if total < 0:
            raise r.unsupported_error("of a size that is known only at run time", rule="not-constant")
        sizes = [size if size >= 0 else total - sum(sizes) - 1 for size in sizes]
    r.emit("Split", [r.value(0), r.index(sizes)], axis=axis)


def write_split(op: Op, w: Writing) -> None:
    found = w.op.variadic_split(w.value(op.inputs[0]), w.op.constant(int(op["axis"])), w.value(op.inputs[1]))
    w.finish(op, *found.outputs())


def read_slice(r: Reading) -> None:
    """Slice (data, starts, stops, steps, axes)."""
    axes = r.int64(4) if r.count > 4 else r.index(range(len(r.numbers(1, "starts"))))
    r.emit("Slice", [r.value(0), r.int64(1), r.int64(2), axes, r.int64(3)])


def write_slice(op: Op, w: Writing) -> None:
    data, starts, ends, axes, *steps = w.inputs(op)
    if not steps:
        steps = [w.numbers([1] * len(w.integers_of(op, 3, "axes")))]
    w.finish(op, w.op.slice(data, starts, ends, *steps, axes))


def read_strided_slice(r: Reading) -> None:
    """StridedSlice with constant bounds: a Slice, followed by a Squeeze of shrunk axes."""
    begin, end = r.numbers(1, "starts"), r.numbers(2, "ends")
    steps = r.numbers(3, "steps") if r.count > 3 else [1] * len(begin)
    masks = {name: r.integers(name, "") for name in ("begin_mask", "end_mask", "new_axis_mask", "shrink_axis_mask", "ellipsis_mask")}
    if any(masks["ellipsis_mask"]) or any(masks["new_axis_mask"]) or not len(begin) == len(end) == len(steps) <= r.rank():
        raise r.unsupported_error("with an ellipsis or new axes")
    far = 2**31 - 1
    starts, ends, gone = [], [], []
    for axis, step in enumerate(steps):
        left, right, shrinks = (axis < len(masks[name]) and masks[name][axis] for name in ("begin_mask", "end_mask", "shrink_axis_mask"))
        starts.append(begin[axis] if shrinks or not left else 0 if step > 0 else far)
        if shrinks:
            gone.append(axis)
            ends.append(begin[axis] + 1 if begin[axis] != -1 else far)
        else:
            ends.append(end[axis] if not right else far if step > 0 else -far)
    steps = [1 if axis in gone else step for axis, step in enumerate(steps)]
    inputs = [r.value(0), r.index(starts), r.index(ends), r.index(range(len(begin))), r.index(steps)]
    if not gone:
        r.emit("Slice", inputs)
        return
    source = r.draft.tensors[inputs[0]]
    shape = list(name_dynamic_sizes(r.node.name, r.result.shape))
    for axis in gone:
        shape.insert(axis, 1)
    middle = r.step("Slice", inputs, tuple(shape), source.dtype)
    r.emit("Squeeze", [middle, r.index(gone)])


def read_pad(r: Reading) -> None:
    mode = r.choice("pad_mode", {"constant": "constant", "reflect": "reflect", "symmetric": "symmetric", "edge": "edge"})
    pads = r.numbers(1, "pads") + r.numbers(2, "pads")
    filler = [r.value(3)] if r.count > 3 and mode == "constant" else []
    value = r.data(3) if filler else None
    if value is not None and not value.any():
        filler = []
    if min(pads, default=0) < 0 and r.node.opset != "opset12":
        raise r.unsupported_error("with pads below zero")
    r.emit("Pad", [r.value(0), r.index(pads), *filler], **({} if mode == "constant" else {"mode": mode}))


def write_pad(op: Op, w: Writing) -> None:
    pads, mode = w.integers_of(op, 1, "pads"), str(op["mode"])
    if mode == "wrap":
        raise unsupported_error(op, "that wraps around")
    data, half = w.value(op.inputs[0]), len(pads) // 2
    filler = w.value(op.inputs[2]) if op.has(2) else None
    if filler is None and mode == "constant":
        filler = w.op.constant(np.zeros((), data.get_element_type().to_dtype()))
    if op.has(2) and w.graph[op.inputs[2]].shape not in ((), None):
        filler = w.op.reshape(filler, w.op.constant(np.zeros(0, np.int64)), False)
    w.finish(op, w.op.pad(data, w.numbers(pads[:half]), w.numbers(pads[half:]), mode, filler))


def read_gather(r: Reading) -> None:
    """Gather along a constant axis, since opset7 with batch_dims."""
    axis, batch = r.axis(2, r.rank()), r.integer("batch_dims", "0")
    batch += r.rank(1) if batch < 0 else 0
    r.emit("Gather", [r.value(0), r.int64(1)], axis=axis, **({"batch_dims": batch} if batch else {}))


def write_gather(op: Op, w: Writing) -> None:
    data, indices = w.inputs(op)
    w.finish(op, w.op.gather(data, indices, w.op.constant(int(op["axis"])), int(op["batch_dims"])))


def read_gather_nd(r: Reading) -> None:
    batch = r.integer("batch_dims", "0")
    r.emit("GatherND", [r.value(0), r.int64(1)], **({"batch_dims": batch} if batch else {}))


def write_gather_nd(op: Op, w: Writing) -> None:
    w.finish(op, w.op.gather_nd(*w.inputs(op), int(op["batch_dims"])))


def read_gather_elements(r: Reading) -> None:
    r.emit("GatherElements", [r.value(0), r.int64(1)], axis=r.integer("axis"))


def write_gather_elements(op: Op, w: Writing) -> None:
    w.finish(op, w.op.gather_elements(*w.inputs(op), int(op["axis"])))


def read_tile(r: Reading) -> None:
    """Tile with a count for each axis."""
    if len(r.numbers(1, "counts")) != r.rank():
        raise r.unsupported_error("to another rank")
    r.emit("Tile", [r.value(0), r.int64(1)])


def write_tile(op: Op, w: Writing) -> None:
    w.finish(op, w.op.tile(*w.inputs(op)))


def read_broadcast(r: Reading) -> None:
    if r.text("mode", "numpy").lower() not in ("numpy", "bidirectional"):
        raise r.unsupported_error(f"with mode {r.text('mode')!r}")
    r.emit("Expand", [r.value(0), r.int64(1)])


def write_expand(op: Op, w: Writing) -> None:
    w.finish(op, w.op.broadcast(*w.inputs(op), broadcast_spec="BIDIRECTIONAL"))


def read_shape_of(r: Reading) -> None:
    """ShapeOf; the canonical operator gives int64."""
    if r.text("output_type", "i64") == "i64":
        r.emit("Shape", [r.value(0)])
        return
    sizes = r.step("Shape", [r.value(0)], (r.rank(),), "int64")
    r.emit("Cast", [sizes], to="int32")


def write_shape(op: Op, w: Writing) -> None:
    w.finish(op, w.op.shape_of(w.value(op.inputs[0]), "i64" if w.graph[op.outputs[0]].dtype == "int64" else "i32"))


_DEPTHS = {"blocks_first": "DCR", "depth_first": "CRD"}


def read_identity(r: Reading) -> None:
    r.emit("Identity", [r.value(0)])


def read_range(r: Reading) -> None:
    """Range of numbers of one type."""
    dtype = r.result.type
    if any(r.port(index).type != dtype for index in range(3)):
        raise r.unsupported_error("of numbers of several types")
    r.emit("Range", [r.value(index) for index in range(3)])


def write_range(op: Op, w: Writing) -> None:
    own = w.value(op.inputs[0]).get_element_type().get_type_name()
    w.finish(op, w.op.range(*w.inputs(op), own))


def read_depth_to_space(r: Reading) -> None:
    mode = r.choice("mode", _DEPTHS)
    extra = {"mode": mode} if mode != "DCR" else {}
    r.emit("DepthToSpace", [r.value(0)], data_format="channels_first", blocksize=r.integer("block_size"), **extra)


def write_depth_to_space(op: Op, w: Writing) -> None:
    mode = next(own for own, name in _DEPTHS.items() if name == op["mode"])
    w.finish(op, w.op.depth_to_space(w.value(op.inputs[0]), mode, int(op["blocksize"])))


def read_space_to_depth(r: Reading) -> None:
    if r.text("mode") != "blocks_first":
        raise r.unsupported_error("with the depth first")
    r.emit("SpaceToDepth", [r.value(0)], data_format="channels_first", blocksize=r.integer("block_size"))


def write_space_to_depth(op: Op, w: Writing) -> None:
    w.finish(op, w.op.space_to_depth(w.value(op.inputs[0]), "blocks_first", int(op["blocksize"])))


READERS = {
    "Reshape": read_reshape,
    "Transpose": read_transpose,
    "Squeeze": read_squeeze,
    "Unsqueeze": read_squeeze,
    "Concat": read_concat,
    "Split": read_split,
    "VariadicSplit": read_split,
    "Slice": read_slice,
    "StridedSlice": read_strided_slice,
    "Pad": read_pad,
    "Gather": read_gather,
    "GatherND": read_gather_nd,
    "GatherElements": read_gather_elements,
    "Tile": read_tile,
    "Broadcast": read_broadcast,
    "ShapeOf": read_shape_of,
    "Identity": read_identity,
    "Range": read_range,
    "DepthToSpace": read_depth_to_space,
    "SpaceToDepth": read_space_to_depth,
}
WRITERS = {
    "Reshape": write_reshape,
    "Transpose": write_transpose,
    "Squeeze": write_squeeze,
    "Unsqueeze": write_squeeze,
    "Concat": write_concat,
    "Pack": write_pack,
    "Unpack": write_unpack,
    "Split": write_split,
    "Slice": write_slice,
    "Pad": write_pad,
    "Gather": write_gather,
    "GatherND": write_gather_nd,
    "GatherElements": write_gather_elements,
    "Tile": write_tile,
    "Expand": write_expand,
    "Shape": write_shape,
    "Range": write_range,
    "DepthToSpace": write_depth_to_space,
    "SpaceToDepth": write_space_to_depth,
}
