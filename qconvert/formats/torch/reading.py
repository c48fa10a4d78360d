"""The interface of operators' read functions: one call of a PyTorch operator with its arguments, and ways to add canonical operators.

Both kinds of files end here: TorchScript, whose tensors carry their quantizations with them, and .pt2, where operators between float values
quantize and dequantize. A read function returns what the operator returns: the name of a tensor, the Part that is one (operands.py), a
number, or a list or tuple of these.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec

import numpy as np

from qconvert.arithmetic import quantize
from qconvert.arithmetic.storage import DTYPES, REALS
from qconvert.errors import UnsupportedError
from qconvert.formats.reading.draft import OperatorReading
from qconvert.formats.reading.quantizations import label_tensor, unlabel_tensor
from qconvert.formats.torch.session import Session, quantization_of
from qconvert.formats.torch.stored_values import EXPORT, QUANTIZED, StoredTensor, TorchType
from qconvert.formats.torch.values import EndlessError, Packed, Ref, bind_arguments, parse_signature
from qconvert.graph import Array, Attribute, Op, Quantization, Shape, Tensor, canonical_dtype, integer_range, numpy_dtype
from qconvert.operators import KINDS
from qconvert.operators.typing import stated_output_type

_KEEP = Quantization.per_tensor(1.0)
_SPATIAL = re.compile("([123])d")
_LARGEST_REAL = float(np.finfo(np.float32).max)
#: Attributes that count elements along an axis, which has less than so many.
_STEPS, _LARGEST_STEP = ("strides", "pads", "dilations", "kernel_shape", "output_padding"), 2**31
#: Bytes of the constants that calls make of numbers alone.
_MOST_MADE = 2**25
#: Bytes that one of several results of a call counts as.
_RESULT = 2**11


class Reading(OperatorReading):
    """One call of an operator of PyTorch that is being read.

    Args:
        session: of the model.
        operator: its name with its namespace, such as "aten::conv2d".
        values: arguments by name, defaults filled in.
        source: the operator and where it stands, for messages.
        hint: the name that the program gives the result.
    """

    def __init__(self, session: Session, operator: str, values: Mapping[str, Any], source: str, hint: str) -> None:
        super().__init__(session.draft, operator, source, (), (hint,))
        self.operator = operator
        self.session = session
        self._values = values
        self._constants = session.constants
        self.hint = hint

    def __getitem__(self, name: str) -> Any:
        """The value of an argument: a number, a list, a text, None, or a Ref."""
        value = self._values[name]
        return self._constants.ref(value, f"{self.hint}/{name}") if isinstance(value, StoredTensor) else value

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an argument; `default` where this overload does not have it, or has None."""
        return default if self._values.get(name) is None else self[name]

    def __contains__(self, name: str) -> bool:
        """Whether this overload has an argument."""
        return name in self._values

    @property
    def arguments(self) -> list[str]:
        """The names of the arguments, in order."""
        return list(self._values)

    @property
    def first_argument(self) -> str:
        """The name of the first argument, which is the data of most operators."""
        return next(iter(self._values))

    def unsupported_error(self, what: str, *, rule: str = "form-not-covered") -> UnsupportedError:
        """See OperatorReading."""
        return super().unsupported_error(what, rule=rule)

    def name(self, argument: str = "") -> str:
        """The name of the tensor that an argument is, by default the first."""
        argument = argument or self.first_argument
        value = self[argument]
        if not isinstance(value, Ref):
            raise self.invalid(f"the argument {argument!r} is not a tensor", rule="not-a-tensor")
        return value.name

    def names(self, argument: str) -> list[str]:
        """The names of the tensors in an argument that is a list, one tensor, or None."""
        return [self._constants.name(item) for item in self.items(argument) if item is not None]

    def operand(self, argument: str = "") -> Tensor:
        """The canonical tensor that an argument is."""
        return self.lookup(self.name(argument))

    def shape_of(self, name: str, argument: str = "data") -> Shape:
        """The shape of the tensor called `name`; raises UnsupportedError, which calls it `argument`, if the file does not say it."""
        shape = self.lookup(name).shape
        if shape is None:
            raise self.unknown_shape_of(name, argument)
        return shape

    def rank(self, argument: str = "") -> int:
        """The rank of a tensor; raises UnsupportedError if the file does not say it."""
        return len(self.shape_of(self.name(argument), argument or self.first_argument))

    def static_shape(self, argument: str = "") -> tuple[int, ...]:
        """The shape of a tensor in numbers; raises UnsupportedError if a size is known only at run time."""
        shape = self.operand(argument).static_shape
        if shape is None:
            raise self.unknown_shape(argument)
        return shape

    def unknown_shape(self, argument: str = "") -> Exception:
        """Return the error for a tensor whose shape this operator requires and the file does not state."""
        return self.unknown_shape_of(self.name(argument), argument or self.first_argument)

    def unknown_shape_of(self, name: str, argument: str) -> Exception:
        """The error for a tensor of unknown shape, by its name in the graph."""
        error = self.unsupported_error(
            f"{argument} of a shape that the file does not state, {self.lookup(name).shape},", rule="shape-not-stated"
        )
        error.remedy = "State the shape of the model's inputs, like --input-shape 1,3,224,224 or --input-shape name=1,3,224,224."
        return error

    def known(self, name: str) -> Array | None:
        """The data of the tensor called `name` if they are known before the model runs, else None."""
        return self.draft.known.get(name)

    def constant(self, argument: str) -> Array | None:
        """The data of a tensor if it is known before the model runs, else None."""
        value = self[argument]
        return None if not isinstance(value, Ref) else self.draft.known.get(value.name)

    def items(self, argument: str) -> list[Any]:
        """The items of an argument that is a list, or one item."""
        value = self._values[argument]
        return list(value) if isinstance(value, (list, tuple)) else [value]

    def integers(self, argument: str, count: int = 0) -> tuple[int, ...]:
        """Whole numbers that are known before the model runs; one is repeated `count` times."""
        found = tuple(self.whole(item, argument) for item in self.items(argument))
        return found * count if len(found) == 1 and count > 1 else found

    def integer(self, argument: str) -> int:
        """One whole number that is known before the model runs."""
        return self.whole(self._values[argument], argument)

    def number(self, argument: str) -> float:
        """One number that is known before the model runs."""
        value = self[argument]
        return float(self._item(value, argument) if isinstance(value, Ref) else value)

    def _item(self, value: Ref, argument: str) -> Any:
        """The one element of a tensor that is known before the model runs."""
        known = self.draft.known.get(value.name)
        if known is None or known.size != 1:
            raise self.unsupported_error(f"{argument} that is computed at run time", rule="not-constant")
        return known.reshape(-1)[0]

    def whole(self, value: Any, argument: str) -> int:
        """A value in an argument as a whole number that is known before the model runs."""
        if isinstance(value, StoredTensor):
            value = self._constants.ref(value)
        if isinstance(value, Ref):
            return int(self._item(value, argument))
        if not isinstance(value, (int, float)) or int(value) != value:
            raise self.invalid(f"the argument {argument!r} is {value!r}, not an integer", rule="wrong-type")
        return int(value)

    def axes(self, argument: str) -> list[int]:
        """Possibly negative axes of the first argument as those from 0 on; all of them where none are given."""
        rank = self.rank()
        value = self._values[argument]
        if value is None or (isinstance(value, (list, tuple)) and not value):
            return list(range(rank))
        return [self.axis(axis, rank) for axis in self.integers(argument)]

    def axis_of(self, argument: str = "dim") -> int:
        """The axis of the first argument that another names, from 0 on."""
        return self.axis(self.integer(argument), self.rank())

    def size(self, axis: int) -> int | str:
        """The size of an axis of the first argument; a name if it is known only at run time."""
        return self.shape_of(self.name(), self.first_argument)[axis]

    def static_size(self, axis: int, name: str = "") -> int:
        """The size of an axis of the first argument, or of the tensor `name`; raises UnsupportedError if it is known only at run time."""
        size = self.shape_of(name or self.name(), self.first_argument)[axis]
        if not isinstance(size, int):
            raise self.unknown_shape()
        return size

    def require_plain(self, *names: str) -> None:
        """Raise UnsupportedError if one of the tensors called so is quantized."""
        if any(self.lookup(name).is_quantized for name in names):
            raise self.unsupported_error("quantized data", rule="quantized-data")

    def dtype(self, argument: str) -> str | None:
        """The canonical storage type that an argument names, such as "uint8" for torch.quint8; None for None."""
        name = self.torch_type(argument)
        return None if name is None else QUANTIZED.get(name, name)

    def torch_type(self, argument: str) -> str | None:
        """The same by PyTorch's name of a quantized type."""
        value = self._values[argument]
        if value is None:
            return None
        if isinstance(value, TorchType):
            return value.name
        if value not in self.session.scalar_types:
            raise self.unsupported_error(f"storage type number {value}", rule="dtype-not-covered")
        return self.session.scalar_types[value]

    def packed_parameters(self, argument: str) -> Packed:
        """The packed parameters that an argument is."""
        value = self._values[argument]
        if not isinstance(value, Packed):
            raise self.invalid(f"the argument {argument!r} is not packed parameters", rule="wrong-type")
        return value

    def require_quantized(self, argument: str) -> None:
        """Raise UnsupportedError if the tensor in an argument has no scale and zero point."""
        tensor = self.operand(argument)
        if tensor.is_quantized:
            return
        error = self.unsupported_error(f"{argument} of {tensor.dtype} without a scale and a zero point", rule="not-quantized")
        if self.producer(tensor.name) is None and not tensor.is_constant:
            shape = ",".join(map(str, tensor.shape or (1, 3, 224, 224)))
            error.remedy = (
                "The model takes a quantized tensor, whose scale and zero point the file does not hold. State those that the program "
                f"around it gives, here 0.02 and 128: --input-shape '{tensor.name}={shape}:quint8(0.02,128)'."
            )
        raise error

    def quantization(self, scale: str = "scale", zero_point: str = "zero_point", dtype: str = "uint8") -> Quantization:
        """The quantization that two arguments state, for integers of a type.

        Raises:
            InvalidModelError: the scale is no positive number, or the zero point is outside of the type.
        """
        with np.errstate(over="ignore"):
            real, zero = np.float32(self.number(scale)), self.integer(zero_point)
        low, high = self.range_of(dtype)
        if not np.isfinite(real) or real <= 0 or not low <= zero <= high:
            raise self.invalid(
                f"scale {self.number(scale)} and zero point {zero} do not quantize to {dtype}", rule="quantization-outside-type"
            )
        return Quantization.per_tensor(float(real), zero)

    def output_quantization(self) -> Quantization:
        """The quantization that a quantized:: operator states for its result, of the type of its data."""
        return self.quantization("output_scale", "output_zero_point", self.operand().dtype)

    def range_of(self, dtype: str) -> tuple[int, int]:
        """The smallest and largest integer of a storage type, which has to be one of integers."""
        if "int" not in dtype or dtype not in DTYPES:
            raise self.unsupported_error(f"a result of {dtype}", rule="dtype-not-covered")
        return integer_range(dtype)

    def add_constant(self, tensor: StoredTensor, name: str, data: Array | None = None, axis: int | None = None) -> str:
        """Adds a quantized constant, perhaps with its axes in another order; returns its name.

        Args:
            tensor: of the file.
            name: of the constant.
            data: its values in canonical order, if that is another.
            axis: that its scales then run along.
        """
        quantization = quantization_of(tensor, name)
        if quantization is not None and axis is not None and quantization.axis is not None:
            quantization = quantization.with_axis(axis)
        values = tensor.data if data is None else data
        return self.draft.add(name, canonical_dtype(values.dtype), values.shape, values, quantization)

    def const(self, data: Any, hint: str = "constant", quantization: Quantization | None = None) -> str:
        """See OperatorReading; counts the constant's bytes."""
        self.take(np.asarray(data).nbytes)
        return super().const(data, hint, quantization)

    def take(self, size: int) -> None:
        """Counts bytes of tensors that the program makes from numbers alone. Raises EndlessError if there are too many."""
        self.session.made_bytes += size
        if self.session.made_bytes > _MOST_MADE:
            raise EndlessError(
                f"{self.source}: the model makes more than {_MOST_MADE} bytes of constants from numbers", rule="constants-too-large"
            )

    def real_constant(self, value: float, like: str, hint: str = "constant") -> str:
        """Adds one real number in the type of the tensor `like`, float32 for a quantized one; returns its name."""
        tensor = self.lookup(like)
        return self.const(np.asarray(value, numpy_dtype("float32" if tensor.is_quantized else tensor.dtype)), hint)

    def label_tensor(self, tensor: Tensor, quantization: Quantization) -> str:
        """A tensor of integers with a quantization that this call states; see formats/reading/quantizations.py."""
        return label_tensor(self.draft, tensor, quantization, self.source)

    @property
    def spatial(self) -> int:
        """How many axes of space the operator's name says, 2 of conv2d, or its weights have."""
        found = _SPATIAL.search(self.operator)
        return int(found[1]) if found else self.rank("weight") - 2

    @property
    def activation(self) -> str:
        """The activation that the operator's name says: "relu" of conv2d_relu."""
        return "relu" if "_relu" in self.operator else ""

    @property
    def is_plain(self) -> bool:
        """Whether tensors of integers are plain numbers to this operator, whatever others say of them: in a .pt2 file they are."""
        return self.session.scalar_types is EXPORT

    def plain(self, name: str) -> str:
        """Integers without their quantization where they are plain numbers, else the tensor itself."""
        return unlabel_tensor(self.draft, self.lookup(name), self.source) if self.is_plain else name

    def emit(
        self,
        kind: str,
        inputs: Sequence[str],
        *,
        dtype: str = "",
        quantization: Quantization | None = _KEEP,
        hint: str = "",
        **attributes: Attribute,
    ) -> str:
        """Appends a canonical operator of one output.

        Args:
            kind: a kind of KINDS.
            inputs: names of tensors.
            dtype: of the output; by default what the kind says, or that of the first data.
            quantization: of the output; by default that of the first data, which PyTorch's operators keep. None for plain numbers.
            hint: what stands after the result's name, for a tensor between two operators.
            attributes: of the operator.
        """
        return self.emit_several(kind, inputs, 1, dtype=dtype, quantization=quantization, hint=hint, **attributes)[0]

    def emit_several(
        self,
        kind: str,
        inputs: Sequence[str],
        count: int,
        *,
        dtype: str = "",
        quantization: Quantization | None = _KEEP,
        hint: str = "",
        **attributes: Attribute,
    ) -> list[str]:
        """emit() for an operator with several outputs of one type, such as Split."""
        for key in _STEPS:
            steps = attributes.get(key, ())
            if isinstance(steps, tuple) and any(isinstance(step, int) and abs(step) >= _LARGEST_STEP for step in steps):
                raise self.invalid(f"the {key} are {steps}", rule="number-out-of-range")
        if count > 1:  # one short call may make thousands
            self.take(count * _RESULT)
        if any(isinstance(value, float) and _LARGEST_REAL < abs(value) < math.inf for value in attributes.values()):
            raise self.invalid(f"the attributes {attributes} do not fit float32", rule="number-out-of-range")
        what = KINDS[kind]
        data = what.data(Op(kind, tuple(inputs), ()))
        first = self.draft.tensors[data[0] if data else inputs[0]] if inputs else None
        label = (first.quantization if first is not None else None) if quantization is _KEEP else quantization
        kept = first.dtype if first is not None else "float32"
        if kept != "float64":  # PyTorch's kernels take numbers in the precision of their sums
            attributes = {key: float(np.float32(value)) if isinstance(value, float) else value for key, value in attributes.items()}
        stored = dtype or stated_output_type(what, attributes, 0) or kept
        if what.rule == "index" or (quantization is _KEEP and stored != kept):
            label = None
        wanted = f"{self.hint}/{hint}" if hint else self.hint
        outputs = [self.draft.add(wanted if count == 1 else f"{wanted}/{index}", stored, None, None, label) for index in range(count)]
        op = self.draft.check_op(Op(kind, tuple(inputs), tuple(outputs), attributes, self.source))
        if label is not None and label.axis is not None and kind != "Quantize":
            raise self.unsupported_error("a result with per-channel scales", rule="form-not-covered")
        for output, shape in zip(outputs, self.draft.shapes(op), strict=True):
            self.draft.tensors[output] = replace(self.draft.tensors[output], shape=shape)
        self.draft.append(op)
        return outputs

    def filler(self, value: float, like: str, hint: str) -> str:
        """Adds one number in the type and with the quantization of the tensor `like`, which it is to stand in; returns its name.

        In a .pt2 file it is a stored integer, as all tensors are plain there. "" for the integer that is real zero.
        """
        tensor = self.lookup(like)
        if tensor.quantization is None:
            return self.const(np.asarray(value).astype(numpy_dtype(tensor.dtype)), hint)
        if self.is_plain:
            is_zero = tensor.quantization.is_per_tensor and value == tensor.quantization.zero_point[0]
            return "" if is_zero else self.const(np.asarray(value).astype(numpy_dtype(tensor.dtype)), hint, tensor.quantization)
        return self.const(quantize(np.asarray(float(value)), tensor.quantization, tensor.dtype), hint, tensor.quantization)

    def is_real(self, name: str) -> bool:
        """Whether a tensor has float values, stored as such or quantized."""
        tensor = self.lookup(name)
        return tensor.is_quantized or tensor.dtype in REALS


ReadFunction = Callable[[Reading], Any]
P = ParamSpec("P")


def with_arguments(read: Callable[Concatenate[Reading, P], Any]) -> Callable[P, ReadFunction]:
    """Decorate a function of a call and further arguments: called with these alone, it returns the read function of an operator."""

    def choose(*given: P.args, **named: P.kwargs) -> ReadFunction:
        return lambda c: read(c, *given, **named)

    return choose


def with_unused(read: ReadFunction, further: Any, count: int = 1) -> ReadFunction:
    """The read function of an operator with further results that no graph computes: `count` times `further`."""
    return lambda c: (read(c), *[further] * count)


@dataclass(frozen=True, slots=True)
class Operator:
    """How an operator of PyTorch is read.

    Attributes:
        signature: its arguments (values.py).
        read: the function.
    """

    signature: str
    read: ReadFunction

    @property
    def quantized_arguments(self) -> Sequence[str]:
        """The names of the arguments that are quantized tensors."""
        return [argument.name for argument in parse_signature(self.signature) if argument.letter == "q"]

    def bind(self, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any] | None:
        """The arguments by name, or None if they are of another overload."""
        return bind_arguments(self.signature, given, named)
