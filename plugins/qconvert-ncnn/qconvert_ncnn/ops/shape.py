"""Operators that move values: shapes, orders, parts, padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.plugin import Op
from qconvert_ncnn.blobs import axis_of, order_of, perm_of, unsupported_error
from qconvert_ncnn.reading import Reading
from qconvert_ncnn.writing import Writing, blob_params

_SIZE_KEYS = (2, 11, 1, 0)
_REST = -233
_PADDINGS = {"constant": 0, "edge": 1, "reflect": 2}
_SPATIAL = 4


def write_reshape(op: Op, w: Writing) -> None:
    """Reshape, Squeeze and Unsqueeze: the sizes that come out."""
    w.finish(op, "Reshape", blob_params(w.sizes(op.outputs[0])))


def read_reshape(r: Reading) -> None:
    """Reshape; 0 keeps a size, which is 1 where the blob has fewer dimensions, -1 is inferred."""
    if r.layer.numbers(6) or len(r.layer.inputs) > 1:
        raise r.unsupported_error("to sizes that are computed")
    given = {key: r.layer.integer(key, _REST) for key in _SIZE_KEYS}
    found = [(key, size) for key, size in given.items() if size != _REST]
    own = blob_params(r.shape()[1:])
    sizes = [own.get(key, 1) if size == 0 else size for key, size in found]
    if not sizes or min(sizes) < -1 or sizes.count(-1) > 1:
        raise r.layer.invalid(f"the sizes are {sizes}", rule="sizes-do-not-fit")
    r.emit("Reshape", [r.value(), r.numbers((1, *sizes))])


def read_flatten(r: Reading) -> None:
    r.emit("Reshape", [r.value(), r.numbers((1, -1))])


def read_squeeze(r: Reading) -> None:
    """ExpandDims and Squeeze by axes, as a Reshape."""
    axes, sizes = [int(axis) for axis in r.layer.numbers(3)], [*r.shape()[1:]]
    rank = len(sizes) + (len(axes) if r.layer.kind == "ExpandDims" else 0)
    places = sorted({axis + rank if axis < 0 else axis for axis in axes})
    if not axes or len(places) != len(axes) or not 0 <= places[0] <= places[-1] < rank:
        raise r.unsupported_error(f"along the axes {axes} of {rank}")
    for place in places if r.layer.kind == "ExpandDims" else places[::-1]:
        if r.layer.kind == "ExpandDims":
            sizes.insert(place, 1)
        elif sizes.pop(place) != 1:
            raise r.layer.invalid(f"axis {place} of the sizes {r.shape()[1:]} cannot be dropped", rule="axis-out-of-range")
    r.emit("Reshape", [r.value(), r.numbers((1, *sizes))])


def write_transpose(op: Op, w: Writing) -> None:
    perm = [int(axis) for axis in op["perm"]]
    if perm[0]:
        raise unsupported_error(op, "of the samples", rule="several-samples")
    sizes = w.sizes(op.inputs[0])
    moved = [axis - 1 for axis in perm[1:]]
    if [axis for axis in moved if sizes[axis] > 1] == sorted(axis for axis in moved if sizes[axis] > 1):
        w.finish(op, "Reshape", blob_params(w.sizes(op.outputs[0])))
    else:
        w.finish(op, "Permute", {0: order_of(moved)})


def read_permute(r: Reading) -> None:
    rank, order = len(r.shape()) - 1, r.layer.integer(0)
    try:
        perm = perm_of(order, rank) if order >= 0 else ()
    except IndexError:
        perm = ()
    if not perm:
        raise r.layer.invalid(f"the order is {order}, of {rank} axes", rule="not-a-permutation")
    r.emit("Transpose", [r.value()], perm=(0, *(axis + 1 for axis in perm)))


def write_identity(op: Op, w: Writing) -> None:
    w.alias(op)


def read_identity(r: Reading) -> None:
    """Noop, Dropout: an Identity."""
    if r.layer.kind == "Dropout" and r.layer.number(0, 1.0) != 1:
        raise r.unsupported_error("with a factor")
    if len(r.layer.inputs) != 1 or len(r.layer.outputs) != 1:
        raise r.unsupported_error(f"of {len(r.layer.inputs)} blobs to {len(r.layer.outputs)}")
    (blob,), taken = r.layer.outputs, r.draft.origins.get(r.layer.inputs[0], r.layer.inputs[0])
    names = r.draft.notes.names
    if taken in r.draft.entered and blob in r.draft.given and names.get(blob) == names.get(taken, taken):
        r.draft.returned[blob] = r.draft.entered[taken]  # the output is the input itself
        return
    r.emit("Identity", [r.value()])


def read_split(r: Reading) -> None:
    """Split: one value for several readers."""
    for blob in r.layer.outputs:
        r.draft.values[blob] = r.value()
        r.draft.origins[blob] = r.draft.origins.get(r.layer.inputs[0], r.layer.inputs[0])
        if r.layer.inputs[0] in r.draft.quantizations:
            r.draft.quantizations[blob] = r.draft.quantizations[r.layer.inputs[0]]


def write_slice(op: Op, w: Writing) -> None:
    """Crop along some axes."""
    shape = (1, *w.sizes(op.inputs[0]))
    starts, ends = w.integers(op, 1, "starts"), w.integers(op, 2, "ends")
    axes = w.integers(op, 3, "axes") if op.has(3) else [*range(len(starts))]
    steps = w.integers(op, 4, "steps") if op.has(4) else [1] * len(axes)
    if any(step != 1 for step in steps):
        raise unsupported_error(op, "with steps")
    found: dict[int, tuple[int, int]] = {}
    for axis, start, end in zip((axis % len(shape) for axis in axes), starts, ends, strict=True):
        size = shape[axis]
        bounds = [min(max(place + size if place < 0 else place, 0), size) for place in (start, end)]
        if axis == 0 and bounds != [0, 1]:
            raise unsupported_error(op, "of the samples", rule="several-samples")
        if axis:
            found[axis - 1] = bounds[0], bounds[1]
    if not found:
        w.alias(op)
        return
    order = sorted(found)
    w.finish(op, "Crop", {9: tuple(found[axis][0] for axis in order), 10: tuple(found[axis][1] for axis in order), 11: tuple(order)})


def read_crop(r: Reading) -> None:
    """Crop with explicit axes."""
    rank = len(r.shape()) - 1
    starts, ends = ([int(number) for number in r.layer.numbers(key)] for key in (9, 10))
    axes = [int(axis) for axis in r.layer.numbers(11)] or [*range(len(starts))]
    if not starts or not len(starts) == len(ends) == len(axes) or len(r.layer.inputs) > 1:
        raise r.unsupported_error("of an older form", rule="form-not-covered")
    far = 2**31
    ends = [far if end == _REST else end for end in ends]
    if any(not -rank <= axis < rank for axis in axes):
        raise r.layer.invalid(f"the axes are {axes} of {rank}", rule="axis-out-of-range")
    r.emit("Slice", [r.value(), r.numbers(starts), r.numbers(ends), r.numbers(axis % rank + 1 for axis in axes)])


def write_split(op: Op, w: Writing) -> None:
    """Slice into parts of given sizes."""
    axis = axis_of(w.graph, op, int(op["axis"]))
    sizes = [w.sizes(name)[axis] for name in op.outputs]
    names = [w.blobs.name(name) for name in op.outputs]
    w.add("Slice", w.layer(op), [w.value(op.inputs[0])], names, {0: tuple(sizes), 1: axis})
    w.values.update(zip(op.outputs, names, strict=True))


def read_slice(r: Reading) -> None:
    """Slice; -233 is an equal part of the remaining size."""
    axis = r.axis(1)
    size, sizes = r.shape()[axis], list[int]()
    given = [int(number) for number in r.layer.numbers(0)]
    if len(given) != len(r.layer.outputs):
        raise r.unsupported_error("at places instead of sizes")
    for index, part in enumerate(given):
        sizes.append((size - sum(sizes)) // (len(given) - index) if part == _REST else part)
    if min(sizes, default=0) <= 0 or sum(sizes) != size:
        raise r.layer.invalid(f"the sizes {sizes} do not add up to {size}", rule="sizes-do-not-fit")
    r.emit("Split", [r.value(), r.numbers(sizes)], axis=axis)


def write_concat(op: Op, w: Writing) -> None:
    rank = len(w.sizes(op.outputs[0]))
    w.finish(op, "Concat", {0: axis_of(w.graph, op, int(op["axis"]))}, inputs=[w.value(name, rank) for name in op.inputs])


def read_concat(r: Reading) -> None:
    r.emit("Concat", [r.value(index) for index in range(len(r.layer.inputs))], axis=r.axis(0))


def write_pad(op: Op, w: Writing) -> None:
    """Padding of rows, columns and channels."""
    pads, rank = w.integers(op, 1, "pads"), len(w.sizes(op.inputs[0]))
    mode = _PADDINGS.get(str(op["mode"]))
    if mode is None or min(pads) < 0 or pads[0] or pads[rank + 1] or rank == _SPATIAL:
        raise unsupported_error(op, f"with mode {op['mode']!r}, cut off, or of the samples", rule="several-samples")
    begin, end = ([0] * (3 - rank) + pads[1 : rank + 1], [0] * (3 - rank) + pads[rank + 2 :])
    if mode and (begin[0] or end[0]):
        raise unsupported_error(op, f"of channels with mode {op['mode']!r}")
    value = 0.0
    if op.has(2):
        filler = w.graph[op.inputs[2]]
        if filler.data is None:
            raise unsupported_error(op, "with a value that is computed when the model runs", rule="not-constant")
        value = float(w.real(filler).reshape(-1)[0])
    params: dict[int, Any] = {0: begin[1], 1: end[1], 2: begin[2], 3: end[2], 4: mode, 5: value}
    w.finish(op, "Padding", {**params, 7: begin[0], 8: end[0]} if begin[0] or end[0] else params)


def read_padding(r: Reading) -> None:
    rank, layer = len(r.shape()) - 1, r.layer
    mode = next((name for name, number in _PADDINGS.items() if number == layer.integer(4)), None)
    if mode is None or layer.integer(6) or rank == _SPATIAL or len(layer.inputs) > 1:
        raise r.unsupported_error("of several values, or of another form", rule="form-not-covered")
    begin, end = [layer.integer(7), layer.integer(0), layer.integer(2)], [layer.integer(8), layer.integer(1), layer.integer(3)]
    if min(*begin, *end) < 0 or any((*begin[: 3 - rank], *end[: 3 - rank])):
        raise layer.invalid(f"the padding is {begin} and {end}", rule="padding-out-of-range")
    pads = r.numbers((0, *begin[3 - rank :], 0, *end[3 - rank :]))
    extra = [r.scalar(layer.number(5))] if layer.number(5) else []
    r.emit("Pad", [r.value(), pads, *extra], **({"mode": mode} if mode != "constant" else {}))


def read_memory(r: Reading) -> None:
    """MemoryData: a constant."""
    sizes = [r.layer.integer(key) for key in _SIZE_KEYS]
    (blob,) = r.layer.outputs
    (data,) = r.weights
    shape = (1, *(size for size in sizes if size))
    if min(shape) < 1 or int(np.prod(shape)) != data.size:
        raise r.layer.invalid(f"the sizes are {shape}, the number of elements is {data.size}", rule="counts-differ")
    r.draft.values[blob] = r.draft.add(blob, "float32", shape, data.reshape(shape), own=True)


def write_depth_to_space(op: Op, w: Writing) -> None:
    w.finish(op, "PixelShuffle", {0: int(op["blocksize"]), 1: int(op["mode"] == "DCR")})


def read_pixel_shuffle(r: Reading) -> None:
    r.emit("DepthToSpace", [r.value()], data_format="channels_first", blocksize=r.layer.integer(0, 1),
           mode="DCR" if r.layer.integer(1) else "CRD")  # fmt: skip


def read_shuffle(r: Reading) -> None:
    """ShuffleChannel: channels as a matrix groups x channels, transposed; the inverse with the parameter `reverse`."""
    shape, group = r.shape(), r.layer.integer(0, 1)
    if len(shape) != _SPATIAL or group < 1 or shape[1] % group:
        raise r.layer.invalid(f"{group} groups do not fit data of the shape {shape}", rule="counts-differ")
    rows = shape[1] // group if r.layer.integer(1) else group
    wide = r.step("Reshape", [r.value(), r.numbers((1, rows, shape[1] // rows, shape[2] * shape[3]))])
    r.emit("Reshape", [r.step("Transpose", [wide], perm=(0, 2, 1, 3)), r.numbers(shape)])


READERS = {
    "Reshape": read_reshape,
    "Flatten": read_flatten,
    "ExpandDims": read_squeeze,
    "Squeeze": read_squeeze,
    "Permute": read_permute,
    "Noop": read_identity,
    "Dropout": read_identity,
    "Split": read_split,
    "Crop": read_crop,
    "Slice": read_slice,
    "Concat": read_concat,
    "Padding": read_padding,
    "MemoryData": read_memory,
    "PixelShuffle": read_pixel_shuffle,
    "ShuffleChannel": read_shuffle,
}
WRITERS = {
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze"), write_reshape),
    "Transpose": write_transpose,
    "Identity": write_identity,
    "Slice": write_slice,
    "Split": write_split,
    "Concat": write_concat,
    "Pad": write_pad,
    "DepthToSpace": write_depth_to_space,
}
