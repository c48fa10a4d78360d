"""Pickles of PyTorch, read without running them: only the names below mean anything, and what they make is data.

A pickle is a program that may call whatever it names. This one is run by a machine of our own that knows the opcodes for data, and for
which a name is a function of this page or an error. pickletools (standard library) takes the opcodes apart.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import numpy_dtype
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.archive import Archive
from qconvert.formats.torch.stored_values import (
    FLOAT_QPARAMS_STORAGES,
    NAMES,
    QUANTIZED,
    STORAGES,
    ScriptObject,
    Storages,
    StoredTensor,
    TorchType,
    WrappedTensor,
    require_finite,
    require_sizes,
)
from qconvert.graph import Array

#: The largest real data.pkl seen has 60,000.
_MOST_OPCODES = 1_000_000
#: How a model is saved that is read without running anything.
READABLE = (
    "Save a file that holds a graph and no code of yours: in the program that has the model,\n"
    "    import torch\n"
    "    program = torch.export.export(model.eval(), example_inputs)\n"
    "    torch.export.save(program, 'model.pt2')"
)


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    key: str
    count: int


@dataclass(frozen=True, slots=True)
class _Name:
    """A global that a pickle names."""

    name: str


_MARK = object()
#: Packages of classes whose objects are data here.
_CLASSES = ("__torch__.", "torchao.")


def unpickle(content: bytes, storage: Callable[[str], Array] | None, what: str) -> Any:
    """Return the value in a pickle of PyTorch.

    Args:
        content: of the entry.
        storage: key of a storage -> its bytes. None where only shapes and types count: every element is zero then.
        what: the entry's name, for messages.

    Raises:
        InvalidModelError: it is damaged.
        UnsupportedError: it names something that is not on the list, which PyTorch would import and run.
    """
    try:
        return _Machine(storage, what).run(content)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidModelError(f"the pickle {what} is damaged: {error}", rule="damaged-pickle") from error


def unpickle_entry(archive: Archive, what: str = "data.pkl") -> Any:
    """Return the value in an archive that torch.save wrote, or in the objects of one that torch.jit.save wrote; see unpickle().

    Args:
        archive: the archive.
        what: its name, for messages.
    """
    return unpickle(archive.read("data.pkl"), lambda key: archive.storage(f"data/{key}"), what)


class _Machine:
    def __init__(self, storage: Callable[[str], Array] | None, what: str) -> None:
        self._storage = storage
        self._what = what
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._bytes: dict[str, Array] = {}
        self._storages = Storages()

    def run(self, content: bytes) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(BytesIO(content))):
            name = opcode.name
            if name == "STOP":
                break
            if count > _MOST_OPCODES:
                raise InvalidModelError(
                    f"the pickle {self._what} has more than {_MOST_OPCODES} opcodes, which is the limit", rule="too-many-opcodes"
                )
            if name in _CONSTANTS:
                self._stack.append(argument)
            else:
                self._execute(name, argument)
        if len(self._stack) != 1:
            raise ValueError(f"{len(self._stack)} values are left")
        found = self._pop()
        require_finite(found, self._what)
        return found

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError("a value is missing after a mark")
        return value

    def _top(self) -> Any:
        if self._stack[-1] is _MARK:
            raise ValueError("a value is missing after a mark")
        return self._stack[-1]

    def _pop_mark(self) -> list[Any]:
        place = len(self._stack) - 1
        while self._stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise ValueError("a mark is missing")
        items = self._stack[place + 1 :]
        del self._stack[place:]
        return items

    def _execute(self, name: str, argument: Any) -> None:
        """Does what an opcode says; raises UnsupportedError for one that PyTorch does not write."""
        push = self._stack.append
        match name:
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[int(argument)] = self._top()
            case "GET" | "BINGET" | "LONG_BINGET":
                push(self._memo[int(argument)])
            case "MARK":
                push(_MARK)
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                push(self._pop_tuple(int(name[-1]) if name[-1].isdecimal() else 0))
            case "TUPLE":
                push(tuple(self._pop_mark()))
            case "NEWOBJ" | "REDUCE":
                arguments, function = self._pop(), self._pop()
                push(self._call(function, arguments, is_class=name == "NEWOBJ"))
            case "BINPERSID":
                push(self._storage_of(self._pop()))
            case "NEWTRUE" | "NEWFALSE":
                push(name == "NEWTRUE")
            case "EMPTY_LIST":
                push([])
            case "APPEND" | "APPENDS":
                items = [self._pop()] if name == "APPEND" else self._pop_mark()
                self._target(list).extend(items)
            case "EMPTY_DICT":
                push({})
            case "SETITEM" | "SETITEMS":
                items = [self._pop(), self._pop()][::-1] if name == "SETITEM" else self._pop_mark()
                self._target(dict).update(_pair_up(items))
            case "BUILD":
                self._build(self._pop())
            case "NONE":
                push(None)
            case "GLOBAL":
                push(self._resolve_name(argument.replace(" ", ".", 1)))
            case "PROTO" | "FRAME":
                pass
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._top()
            case "STACK_GLOBAL":
                last, module = self._pop(), self._pop()
                push(self._resolve_name(f"{module}.{last}"))
            case "LIST":
                push(self._pop_mark())
            case "DICT":
                push(_pair_up(self._pop_mark()))
            case _:
                raise UnsupportedError(
                    f"the pickle {self._what} has the opcode {name}, which PyTorch does not write",
                    remedy=READABLE,
                    rule="opcode-not-allowed",
                )

    def _pop_tuple(self, count: int) -> tuple[Any, ...]:
        items = tuple(self._stack[-count:]) if count else ()
        if len(items) != count or _MARK in items:
            raise ValueError("a tuple lacks items")
        del self._stack[len(self._stack) - count :]
        return items

    def _target(self, kind: type) -> Any:
        """The list or dictionary that gets items."""
        found = self._stack[-1]
        if type(found) is not kind:
            raise TypeError(f"items are given to what is no {kind.__name__}")
        return found

    def _storage_of(self, value: Any) -> _Storage:
        """('storage', class, key, place, count, …): the only thing that PyTorch keeps outside of a pickle.

        torch::jit::Unpickler reads its tuples by index and ignores what follows; so do the functions here.
        """
        tag, kind, key, _, count, *_ = value
        if tag != "storage" or not isinstance(kind, _Name) or not isinstance(key, str) or type(count) is not int or count < 0:
            raise ValueError("a persistent value is no storage")
        return _Storage(STORAGES[kind.name.removeprefix("torch.").removeprefix("storage.")], key, count)

    def _call(self, function: Any, arguments: Any, *, is_class: bool) -> Any:
        """What a class, or a function of the list, makes of arguments."""
        if not isinstance(function, _Name) or type(arguments) is not tuple:
            raise TypeError("an object is made of no class" if is_class else "what is called is no function")
        if not is_class and function.name in _FUNCTIONS:
            return _FUNCTIONS[function.name](self, *arguments)
        if not function.name.startswith(_CLASSES):
            raise self._refusal_error(function.name)
        return ScriptObject(function.name, arguments)

    def _build(self, state: Any) -> None:
        target = self._stack[-1]
        if isinstance(target, ScriptObject):
            target.state = state
        elif not (type(target) is dict and isinstance(state, dict)):  # an OrderedDict with _metadata: versions of modules
            raise TypeError("a state is given to what has none")

    def _resolve_name(self, name: str) -> Any:
        if name.startswith("torch.") and name[6:] in NAMES:
            return TorchType(NAMES[name[6:]])
        known = name in _FUNCTIONS or name in _VALUES or name.removeprefix("torch.").removeprefix("storage.") in STORAGES
        if not (known or name.startswith(_CLASSES)):
            raise self._refusal_error(name)
        return _Name(name)

    def _refusal_error(self, name: str) -> UnsupportedError:
        code = name.startswith(("torch.fx", "torch.nn", "torch.ao", "__main__"))
        reason = "holds a whole module, that is, code of classes" if code else "names code, which loading the file would run"
        return UnsupportedError(f"the pickle {self._what} {reason}", where=name, remedy=READABLE, rule="name-not-allowed")

    def tensor(self, storage: Any, offset: Any, sizes: Any, strides: Any, *rest: Any) -> StoredTensor:
        """torch._utils._rebuild_tensor_v2(storage, storage_offset, size, stride, requires_grad, backward_hooks)."""
        data, dtype, shape = self._view(storage, offset, sizes, strides)
        return StoredTensor(data, dtype, shape)

    def make_typed_tensor(
        self, storage: Any, offset: Any, sizes: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *rest: Any
    ) -> StoredTensor:
        """torch._utils._rebuild_tensor_v3(…, dtype, metadata): bytes of a type without a storage class, such as float8."""
        if not isinstance(storage, _Storage) or not isinstance(dtype, TorchType):
            raise ValueError("a tensor without a type")
        count = storage.count // numpy_dtype(dtype.name).itemsize
        return self.tensor(_Storage(dtype.name, storage.key, count), offset, sizes, strides)

    def make_quantized_tensor(self, storage: Any, offset: Any, sizes: Any, strides: Any, parameters: Any, *rest: Any) -> StoredTensor:
        """torch._utils._rebuild_qtensor(storage, storage_offset, size, stride, quantizer_params, …)."""
        data, dtype, shape = self._view(storage, offset, sizes, strides)
        if dtype not in QUANTIZED:
            raise ValueError(f"a quantized tensor of {dtype}")
        scheme, *values = parameters
        if not isinstance(scheme, _Name):
            raise ValueError("a quantized tensor without a scheme")
        if scheme.name == "torch.per_tensor_affine":
            scale, zero_point, *_ = values
            return StoredTensor(data, dtype, shape, np.array([float(scale)]), np.array([int(zero_point)], np.int64))
        scales, zero_points = (np.asarray(value.data if isinstance(value, StoredTensor) else value) for value in values[:2])
        axis = values[2]
        if not 0 <= axis < len(shape) or scales.shape != (shape[axis],) or zero_points.shape != scales.shape:
            raise ValueError(f"scales of shape {scales.shape} along axis {axis} of a tensor of shape {shape}")
        return StoredTensor(data, dtype, shape, scales.astype(np.float64), zero_points, int(axis))

    def make_wrapped_tensor(self, function: Any, kind: Any, arguments: Any, state: Any) -> Any:
        """torch._tensor._rebuild_from_type_v2(func, type, args, state): a tensor of a class, or with attributes of its own."""
        if not isinstance(function, _Name) or function.name not in _FUNCTIONS or type(arguments) is not tuple:
            raise ValueError("a tensor of no class")
        if function.name != "torch._utils._rebuild_wrapper_subclass":
            return _FUNCTIONS[function.name](self, *arguments)
        if not isinstance(kind, _Name) or type(state) is not dict:
            raise ValueError("a tensor of no class")
        _, _, shape, *_ = arguments
        if kind.name not in _WRAPPED:
            raise UnsupportedError(f"weights of the class {kind.name} are not covered", where=self._what, rule="class-not-covered")
        return WrappedTensor(kind.name, _size(self, shape), {str(key): value for key, value in state.items()})

    def _view(self, storage: Any, offset: Any, sizes: Any, strides: Any) -> tuple[Array, str, tuple[int, ...]]:
        """The values of a tensor in its storage: a view, whose every element lies within it."""
        if not isinstance(storage, _Storage):
            raise ValueError("a tensor without a storage")
        shape = tuple(sizes)
        kind = numpy_dtype(QUANTIZED.get(storage.dtype, storage.dtype))
        require_sizes(offset, sizes, strides)
        if self._storage is None:  # only shapes and types count
            return np.broadcast_to(np.zeros((), kind), shape if math.prod(shape) < 2**40 else ()), storage.dtype, shape
        if storage.key not in self._bytes:
            self._bytes[storage.key] = self._storage(storage.key)
        content = self._bytes[storage.key]
        if storage.dtype in FLOAT_QPARAMS_STORAGES:
            return content, storage.dtype, shape
        return self._storages.view(storage.key, content, kind, (offset, sizes, strides), storage.count), storage.dtype, shape


#: Opcodes whose argument is the value.
_CONSTANTS = frozenset(
    ["INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
     "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINUNICODE8"]
)  # fmt: skip


def _pair_up(items: list[Any]) -> dict[Any, Any]:
    """Keys and values, one after the other, as a dictionary."""
    return dict(zip(items[::2], items[1::2], strict=True))


def _size(machine: _Machine, sizes: Any = ()) -> tuple[int, ...]:
    """torch.Size."""
    return tuple(int(size) for size in sizes)


#: What a pickle may call. Where something lay (torch.device and the like) is nothing.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": lambda machine, items=(), *rest: dict(items),
    "torch._utils._rebuild_tensor": _Machine.tensor,
    "torch._utils._rebuild_tensor_v2": _Machine.tensor,
    "torch._utils._rebuild_tensor_v3": _Machine.make_typed_tensor,
    "torch._utils._rebuild_qtensor": _Machine.make_quantized_tensor,
    **{f"torch._utils._rebuild_parameter{ending}": lambda machine, data, *rest: data for ending in ("", "_with_state")},
    **{f"torch.jit._pickle.build_{kind}list": lambda machine, items: list(items) for kind in ("int", "tensor", "double", "bool")},
    "torch.jit._pickle.restore_type_tag": lambda machine, value, tag: value,
    "torch.Size": _size,
    **dict.fromkeys(
        ("torch.device", "torch.serialization._get_layout", "torch._utils._rebuild_wrapper_subclass"), lambda machine, *rest: None
    ),
    "torch._tensor._rebuild_from_type_v2": _Machine.make_wrapped_tensor,
}
#: torchao's classes of weights whose parts say what they are; the packed ones of its kernels do not.
_WRAPPED = frozenset(
    f"torchao.{module}{name}"
    for name, modules in {
        "Int8Tensor": ("quantization.", "quantization.quantize_.workflows.int8.int8_tensor."),
        "IntxUnpackedToInt8Tensor": ("quantization.", "quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor."),
    }.items()
    for module in modules
)
#: What it may name besides.
_VALUES = _WRAPPED | frozenset(
    ["torch.per_tensor_affine", "torch.per_tensor_symmetric", "torch.per_channel_affine", "torch.per_channel_symmetric",
     "torch.per_channel_affine_float_qparams"]
)  # fmt: skip
