"""Sizes in calls: numbers where they are known, tensors of int64 where they are known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.reading import Call
from qconvert.formats.torch.values import Ref

__all__ = ["emit_reshape", "read_batched", "scalar", "size_of", "sizes_tensor"]


def size_of(c: Call, name: str, axis: int) -> Any:
    """A size of a tensor: a number, or, if it is known only at run time, a Ref of one."""
    shape = c.lookup(name).shape
    if shape is None:
        raise c.unknown_shape_of(name)
    if not 0 <= axis < len(shape):
        raise c.invalid(f"axis {axis} of a tensor of shape {shape}", rule="axis-out-of-range")
    size = shape[axis]
    if isinstance(size, int):
        return size
    whole = c.emit("Shape", [name], dtype="int64", quantization=None, hint="shape_of")
    found = c.emit("Gather", [whole.name, c.const(np.array(axis, np.int64), "axis")], hint="size", axis=0)
    return Ref(found.name, number=True)


def scalar(c: Call, value: Any, hint: str) -> str:
    """The name of a tensor of rank 0 that holds a whole number."""
    return value.name if isinstance(value, Ref) else c.const(np.array(int(value), np.int64), hint)


def sizes_tensor(c: Call, sizes: Sequence[Any], hint: str) -> str:
    """The name of a list of sizes, a constant if all are numbers."""
    if not any(isinstance(size, Ref) for size in sizes):
        return c.list64([int(size) for size in sizes], hint)
    names = [scalar(c, size, f"{hint}/{index}") for index, size in enumerate(sizes)]
    return c.emit("Pack", names, dtype="int64", quantization=None, hint=hint, axis=0).name


def emit_reshape(c: Call, name: str, sizes: Sequence[Any] | int, hint: str = "") -> Ref:
    """A tensor in another shape; one size may be -1, what is left. Sizes that are the data's own need not be computed."""
    wanted = [sizes] if isinstance(sizes, (int, Ref)) else list(sizes)
    if not any(isinstance(size, Ref) for size in wanted):
        shape = c.list64([int(size) for size in wanted], f"{hint}shape")
        return c.emit("Reshape", [name, shape], hint=hint, allowzero=1) if 0 in wanted else c.emit("Reshape", [name, shape], hint=hint)
    computed = sizes_tensor(c, wanted, f"{hint}shape")
    constant = c.constant_sizes(name, computed)
    if constant is not None:
        return c.emit("Reshape", [name, c.list64(constant, f"{hint}sizes")], hint=hint)
    return c.emit("Reshape", [name, computed], hint=hint)


def read_batched(c: Call, argument: str, spatial: int, read: Callable[[str], Ref]) -> Ref:
    """Return `read` of data with channels and `spatial` axes; data without a batch axis get one, and the result loses it."""
    name, rank = c.name(argument), c.lookup(c.name(argument)).rank
    if rank != spatial + 1:
        return read(name)
    axes = c.list64([0], "batch_axis")
    result = read(c.emit("Unsqueeze", [name, axes], hint="batched").name)
    return c.emit("Squeeze", [result.name, axes], hint="unbatched")
