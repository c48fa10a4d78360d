"""Operands of calls: storage types as PyTorch finds them for several operands, float values with Python's operators, sizes as numbers or
tensors, and weights made of constants.

Types: tensors before tensors of rank 0 before numbers. Sizes are numbers where they are known, and tensors of int64 where they are
known only at run time. Source: c10/core/ScalarType.cpp (promoteTypes), ATen/native/TypeProperties.cpp (result_type).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import REALS
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.reading import Reading
from qconvert.formats.torch.values import Ref
from qconvert.graph import Array, Op, Quantization, canonical_dtype, numpy_dtype
from qconvert.operators.values import Values


def operands(c: Reading, *arguments: str, real: bool = False) -> tuple[list[str], str]:
    """Arguments of one elementwise operator, tensors or numbers, as tensors of the type that PyTorch promotes them to.

    Args:
        c: the call.
        arguments: their names.
        real: whether the operator makes float32 of integers.

    Returns:
        Names of the tensors, and their type. A quantized tensor stays as it is, next to float32.
    """
    values = [c[argument] for argument in arguments]
    wanted = common_type(c, values)
    if real and wanted not in REALS:
        wanted = "float32"
    return [cast_operand(c, value, wanted, argument) for value, argument in zip(values, arguments, strict=True)], wanted


def as_real(c: Reading) -> str:
    """The name of the first argument, which is cast to float32 if it holds integers or truth values without a quantization."""
    return operands(c, c.first_argument, real=True)[0][0]


@dataclass(frozen=True, eq=False)
class Part(Values):
    """A float value in a formula.

    Attributes:
        c: the call.
        name: of the tensor.
    """

    c: Reading
    name: str

    def apply(self, kind: str, operands: Sequence[Any], attributes: Mapping[str, Any], outputs: int) -> Part:
        """Return the result of an operator, a plain tensor; numbers are of the type of the last operand that is a tensor."""
        like = next(item.name for item in reversed(operands) if isinstance(item, Part))
        names = [
            item.name
            if isinstance(item, Part)
            else self.c.const(item, "list")
            if isinstance(item, (list, np.ndarray))
            else self.c.real_constant(item, like, "number")
            for item in operands
        ]
        return Part(self.c, self.c.emit(kind, names, quantization=None, **{"hint": "part", **attributes}))


def float_parts(c: Reading, *arguments: str) -> list[Part]:
    """Arguments as float values of one type for a formula; raises UnsupportedError for quantized ones."""
    names, _ = operands(c, *arguments, real=True)
    c.require_plain(*names)
    return [Part(c, name) for name in names]


def cast_operand(c: Reading, value: Any, dtype: str, hint: str) -> str:
    """The name of a tensor, which may be given by its name, or of a number in a type."""
    if not isinstance(value, (str, Ref)):
        return c.const(np.asarray(value, numpy_dtype(dtype)), hint)
    tensor = c.lookup(c.plain(value if isinstance(value, str) else value.name))
    if tensor.dtype == dtype or tensor.is_quantized:
        return tensor.name
    if tensor.data is not None:
        return c.draft.variant(tensor.name, dtype, tensor.data.astype(numpy_dtype(dtype)), None)
    return c.emit("Cast", [tensor.name], quantization=None, hint=f"{hint}/{dtype}", to=dtype)


def common_type(c: Reading, values: Sequence[Any]) -> str:
    """The type that PyTorch gives the result of an elementwise operator on tensors, which may be given by their names, and numbers."""
    groups: list[str] = ["", "", ""]  # tensors, those of rank 0, numbers
    for value in values:
        rank, dtype = _group_and_type(c, value)
        groups[rank] = _promote_types(groups[rank], dtype) if groups[rank] else dtype
    return _combine_types(groups[0], _combine_types(groups[1], groups[2])) or "float32"


def _group_and_type(c: Reading, value: Any) -> tuple[int, str]:
    """Which group an operand is in, and its type."""
    if isinstance(value, str):
        value = Ref(value)
    if not isinstance(value, Ref):
        return 2, "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"
    tensor = c.lookup(value.name)
    dtype = "float32" if (tensor.is_quantized and not c.is_plain) or tensor.dtype == "unknown" else tensor.dtype
    if tensor.shape == () and tensor.name.startswith("CONSTANTS.") and dtype in ("float64", "int64"):
        return 2, "float32" if dtype == "float64" else dtype  # how TorchScript writes numbers down
    return (2, dtype) if value.number else (int(tensor.shape == ()), dtype)


def _combine_types(first: str, second: str) -> str:
    """The type of operands of two groups: the second counts where it is of another category above the first's."""
    if not first or not second:
        return first or second
    return first if _category(second) <= _category(first) else _promote_types(first, second)


def _category(dtype: str) -> int:
    return 0 if dtype == "bool" else 3 if dtype.startswith("complex") else 2 if dtype in REALS or dtype.startswith("float") else 1


def _promote_types(first: str, second: str) -> str:
    """The type of two operands of one group: of one category as numpy promotes them."""
    low, high = sorted((first, second), key=_category)
    if _category(low) < _category(high) or low == high:
        return high
    return "float32" if {low, high} == {"float16", "bfloat16"} else canonical_dtype(np.promote_types(numpy_dtype(low), numpy_dtype(high)))


def size_of(c: Reading, name: str, axis: int) -> Any:
    """A size of a tensor: a number, or, if it is known only at run time, a Ref of one."""
    shape = c.shape_of(name)
    if not 0 <= axis < len(shape):
        raise c.invalid(f"axis {axis} of a tensor of shape {shape}", rule="axis-out-of-range")
    size = shape[axis]
    if isinstance(size, int):
        return size
    whole = c.emit("Shape", [name], hint="shape_of")
    found = c.emit("Gather", [whole, c.const(np.array(axis, np.int64), "axis")], hint="size", axis=0)
    return Ref(found, number=True)


def sizes_of(c: Reading, argument: str = "") -> list[Any]:
    """All sizes of the tensor that an argument is."""
    return [size_of(c, c.name(argument), axis) for axis in range(c.rank(argument))]


def scalar(c: Reading, value: Any, hint: str) -> str:
    """The name of a tensor of rank 0 that holds a whole number."""
    return value.name if isinstance(value, Ref) else c.const(np.array(int(value), np.int64), hint)


def sizes_tensor(c: Reading, sizes: Sequence[Any], hint: str) -> str:
    """The name of a list of sizes, a constant if all are numbers."""
    if not any(isinstance(size, Ref) for size in sizes):
        return c.list64([int(size) for size in sizes], hint)
    names = [scalar(c, size, f"{hint}/{index}") for index, size in enumerate(sizes)]
    return c.emit("Pack", names, hint=hint, axis=0)


def emit_reshape(c: Reading, name: str, sizes: Sequence[Any] | int, hint: str = "") -> str:
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


def emit_transpose(c: Reading, name: str, order: Sequence[int], hint: str = "") -> str:
    """A tensor with its axes in another order; itself if that is the order they have."""
    return c.emit("Transpose", [name], perm=tuple(order), hint=hint) if list(order) != list(range(len(order))) else name


def emit_expand(c: Reading, name: str, shape: Sequence[Any], hint: str = "") -> str:
    """A tensor repeated to a shape; itself if it has that shape."""
    if c.lookup(name).shape == tuple(shape):
        return name
    return c.emit("Expand", [name, sizes_tensor(c, shape, f"{hint}_shape" if hint else "shape")], hint=hint)


def emit_broadcast(c: Reading, names: Sequence[str]) -> tuple[list[str], list[Any]]:
    """Tensors repeated to the shape that they have together, and its sizes: numbers, or Refs of those that are known only at run time.

    Raises:
        InvalidModelError: the shapes cannot be broadcast.
        UnsupportedError: a shape is unknown.
    """
    shapes = [c.shape_of(name) for name in names]
    whole: list[int | str | None] = []
    sizes: list[Any] = []
    for axis in range(-max(map(len, shapes), default=0), 0):
        held = {shape[axis]: (name, len(shape) + axis) for name, shape in zip(names, shapes, strict=True) if len(shape) >= -axis}
        wide = [size for size in held if size != 1] or [1]
        known = [size for size in wide if isinstance(size, int)]
        if len(known) > 1:
            raise c.invalid(f"the shapes {shapes} cannot be broadcast", rule="shape-mismatch")
        chosen = known or wide
        found = [size_of(c, *held[size]) for size in chosen]
        whole.append(chosen[0] if len(chosen) == 1 else None)
        sizes.append(
            found[0] if len(found) == 1 else Ref(c.emit("Max", [size.name for size in found], dtype="int64", hint="size"), number=True)
        )
    repeated = [
        name if shape == tuple(whole) else emit_expand(c, name, sizes, f"wide{index}")
        for index, (name, shape) in enumerate(zip(names, shapes, strict=True))
    ]
    return repeated, sizes


def read_batched(c: Reading, spatial: int, read: Callable[[str], str]) -> str:
    """Return `read` of data with channels and `spatial` axes; data without a batch axis get one, and the result loses it."""
    name, rank = c.name(), c.operand().rank
    if rank != spatial + 1:
        return read(name)
    axes = c.list64([0], "batch_axis")
    result = read(c.emit("Unsqueeze", [name, axes], hint="batched"))
    return c.emit("Squeeze", [result, axes], hint="unbatched")


#: Tensors that lead to one, beyond which it counts as computed: each operator that asks looks at so many.
_MOST = 256
#: Movements between a constant and an operator that reads it in another order.
_MOST_MOVES = 4


def is_constant(c: Reading, name: str) -> bool:
    """Whether a tensor is made of constants alone, by a few operators, so that it is the same at each run."""
    waiting, seen = [name], {name}
    while waiting:
        each = waiting.pop()
        if c.lookup(each).data is not None:
            continue
        op = c.producer(each)
        if op is None or not op.inputs or len(seen) > _MOST:
            return False
        new = {other for other in op.inputs if other} - seen
        seen |= new
        waiting += new
    return True


def skip_reinterpret(draft: Draft, name: str) -> str:
    """The name of a tensor; for int_repr of a quantized tensor, the quantized tensor itself, which stores the same integers."""
    maker = draft.producers.find(name, "Reinterpret")
    is_int_repr = maker is not None and not draft.tensors[name].is_quantized and draft.tensors[maker.inputs[0]].is_quantized
    return maker.inputs[0] if maker is not None and is_int_repr else name


def rearrange_constant(c: Reading, name: str, move: Callable[[Array], Array], turn: Callable[[Quantization], Quantization]) -> str | None:
    """Constant weights with their elements in another order; None if they are no constant, and do not come from one.

    Args:
        c: the call.
        name: of the weights, constants or dequantized ones.
        move: gives the new order.
        turn: gives the quantization of a quantized constant in that order.
    """
    tensor, op = c.lookup(name), c.producer(name, "Dequantize")
    if tensor.data is not None:
        quantization = None if tensor.quantization is None else turn(tensor.quantization)
        return c.draft.variant(name, "outputs_first", np.ascontiguousarray(move(tensor.data)), quantization)
    if op is None:
        return None
    stored = rearrange_constant(c, op.inputs[0], move, turn)
    return None if stored is None else c.emit("Dequantize", [stored], dtype=tensor.dtype, quantization=None, hint="weights")


def find_dequantized_source(c: Reading, name: str, move: Callable[[Array], Array]) -> str | None:
    """The dequantized constant before transpositions and reshapes that `move` undoes; None if there is none."""
    moves: list[Op] = []
    while (before := c.producer(name, "Transpose", "Reshape")) is not None and len(moves) < _MOST_MOVES:
        moves.append(before)
        name = before.inputs[0]
    op = c.producer(name, "Dequantize") if moves else None
    stored = None if op is None else c.lookup(op.inputs[0]).data
    if op is None or stored is None:
        return None
    places = wanted = np.arange(stored.size).reshape(stored.shape)
    for step in reversed(moves):
        shape = c.lookup(step.outputs[0]).static_shape
        if shape is None:
            return None
        places = places.transpose(step["perm"]) if step.kind == "Transpose" else places.reshape(shape)
    return op.outputs[0] if np.array_equal(move(places), wanted) else None
