"""Values that are known before a model runs, found by folding the operators that lead to them when somebody asks.

Exporters put Constant, Identity, Cast, Reshape and ConstantOfShape between a scale and its use. Integers of shapes, pads and bounds are
known as polynomials over the names of dynamic sizes (arithmetic/polynomials.py).

    Shape of (batch, 8, 8, 3) -> Slice of the first -> Pack with 16, 16, 4: (batch, 16, 16, 4)

An element is a Polynomial over the names of sizes and over whatever is not worked out, which stands for itself: two elements are the
same number in every run if their polynomials are equal. An atom is the number of a size with a name, or of an operation on polynomials that
is none itself (a remainder, a division, the larger of two).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from qconvert.arithmetic.polynomials import Polynomial, add_polynomials, from_number, multiply_polynomials, number
from qconvert.errors import QConvertError
from qconvert.evaluate.folding import LARGEST, evaluate_constant, is_affordable
from qconvert.graph import Array, Graph, Op, Tensor, integer_range, numpy_dtype
from qconvert.operators import Kind, find_kind, kind_of
from qconvert.operators.properties import REDUCES
from qconvert.operators.shapes_and_functions import output_shapes
from qconvert.operators.sizes import UNKNOWN, Size


class Atoms:
    """The atoms of a graph, each with a number of its own."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._symbols: dict[int, str] = {}

    def of(self, key: Hashable) -> Polynomial:
        """The atom of that key, which is the same whenever it is asked for."""
        return ((((self._numbers.setdefault(key, len(self._numbers))),), 1),)

    def of_symbol(self, name: str) -> Polynomial:
        """A size that has a name."""
        form = self.of(("size", name))
        self._symbols[form[0][0][0]] = name
        return form

    def symbol(self, form: Polynomial) -> str:
        """The name of the size that a polynomial is; "" if it is none."""
        return self._symbols.get(form[0][0][0], "") if len(form) == 1 and form[0][1] == 1 and len(form[0][0]) == 1 else ""

    def apply(self, kind: Kind, *forms: Polynomial) -> Polynomial | None:
        """What an operator of `kind` gives for some elements; None if it is none that sizes are computed with."""
        if kind.polynomial is None:
            return None
        found = kind.polynomial(*forms)
        return self.of((kind.name, forms)) if found is None else found


_INTEGERS = ("int32", "int64")
#: Elements that a tensor of sizes may have; all of a graph together.
_MOST_ELEMENTS = 128
_MOST_IN_ALL = 2**20
#: What UnsortedSegment makes of the elements of a segment.
_OF_SEGMENTS = {"sum": add_polynomials, "prod": multiply_polynomials}


class KnownSizes:
    """The integers of a graph as polynomials, each worked out once.

    Args:
        tensors: every tensor by name. More may be added while this object is in use.
        producers: the operator that writes each tensor; likewise.
    """

    def __init__(self, tensors: Mapping[str, Tensor], producers: Mapping[str, Op]) -> None:
        self._tensors = tensors
        self._producers = producers
        self._atoms = Atoms()
        self._found: dict[str, tuple[Polynomial, ...] | None] = {}
        self._left = _MOST_IN_ALL

    def get(self, name: str) -> tuple[Polynomial, ...] | None:
        """The elements of the integer tensor `name`, flat; None if it is large, or its number of elements is not known."""
        pending = [name]
        opened: set[str] = set()  # names whose operator's inputs were pushed once, so that a cycle terminates
        while pending:
            current = pending[-1]
            op = self._producers.get(current)
            first = current not in opened and current not in self._found
            missing = [other for other in self._operands(op) if other not in self._found] if first and op is not None else []
            opened.add(current)
            if missing:
                pending += missing
                continue
            pending.pop()
            if current not in self._found:
                self._work_out(current, op)
        return self._found[name]

    def numbers(self, name: str) -> Array | None:
        """The tensor `name` if each of its elements is one number whatever the sizes are, else None."""
        shape = self._shape(name)
        forms = None if shape is None else self.get(name)
        if shape is None or forms is None:
            return None
        values = [number(form) for form in forms]
        if any(value is None for value in values):
            return None
        low, high = integer_range(self._tensors[name].dtype)
        if any(not low <= value <= high for value in values if value is not None):
            return None
        return np.array(values, numpy_dtype(self._tensors[name].dtype)).reshape(shape)

    def size(self, value: int | str) -> Polynomial:
        """One size of a shape."""
        return from_number(value) if isinstance(value, int) else self._atoms.of_symbol(value)

    def dimension_of(self, form: Polynomial) -> Size | None:
        """The number, or the name of the dynamic size, that an element equals; None if it is neither."""
        value = number(form)
        return value if value is not None else self._atoms.symbol(form) or None

    def dimensions(self, name: str) -> list[Size] | None:
        """The elements of the integer tensor `name` as sizes, UNKNOWN for those that equal none; None if nothing is known of them."""
        forms = self.get(name)
        return None if forms is None else [UNKNOWN if (size := self.dimension_of(form)) is None else size for form in forms]

    def _operands(self, op: Op) -> list[str]:
        """The inputs that have to be known: none where the elements would stand for themselves anyway."""
        if kind_of(op).lists_sizes or not any(self._is_small(name) for name in op.outputs if name):
            return []
        return [name for name in op.inputs if name and self._is_small(name)]

    def _shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a small tensor of integers; None for another one."""
        tensor = self._tensors[name]
        if tensor.dtype not in _INTEGERS or tensor.is_quantized:
            return None
        shape = tensor.static_shape
        return shape if shape is not None and math.prod(shape) <= _MOST_ELEMENTS else None

    def _is_small(self, name: str) -> bool:
        return self._shape(name) is not None

    def _work_out(self, name: str, op: Op | None) -> None:
        """Every output of the operator, or a constant or an input of the graph."""
        names = [name] if op is None else [output for output in op.outputs if output]
        forms = None if op is None or self._left <= 0 else self._results(op)
        for position, output in enumerate(names):
            shape, data = self._shape(output), self._tensors[output].data
            if shape is None:
                self._found[output] = None
                continue
            if data is not None:
                found = [from_number(int(value)) for value in data.reshape(-1)]
            else:
                known = forms[position] if forms is not None and len(forms) == len(names) else None
                known = known if known is not None and len(known) == math.prod(shape) else [None] * math.prod(shape)
                found = [self._atoms.of((output, i)) if form is None else form for i, form in enumerate(known)]
            self._found[output] = tuple(found)
            self._left -= sum(1 + len(form) for form in found)

    def _results(self, op: Op) -> list[Sequence[Polynomial | None]] | None:
        """The elements of each output; None for those that stand for themselves."""
        kind = kind_of(op)
        if kind.lists_sizes:
            shape = self._tensors[op.inputs[0]].shape
            return None if shape is None else [[self.size(size) for size in shape]]
        if kind.by_place and kind.fold is not None:
            return self._move_elements(op)
        inputs = [self._found.get(name) for name in op.inputs]
        if not inputs or inputs[0] is None:
            return None
        if op.kind == "UnsortedSegment":
            return self._reduce_segments(op)
        if kind.polynomial is None or op.attributes.get("activation"):
            return None
        if kind.layout == REDUCES:
            return self._reduce_elements(op)
        if len(inputs) == 1:
            return [[self._atoms.apply(kind, form) for form in inputs[0]]]
        if len(inputs) == 2 and inputs[1] is not None:
            return self._broadcast_elements(op, inputs[0], inputs[1])
        return None

    def _broadcast_elements(self, op: Op, a: Sequence[Polynomial], b: Sequence[Polynomial]) -> list[Sequence[Polynomial | None]] | None:
        """An operator on pairs of elements, with numpy's broadcasting."""
        shapes = [self._shape(name) or () for name in op.inputs]
        try:
            places = np.broadcast_arrays(*(np.arange(len(side)).reshape(shape) for side, shape in zip((a, b), shapes, strict=True)))
        except ValueError:
            return None
        if places[0].size > _MOST_ELEMENTS:
            return None
        pairs = zip(places[0].reshape(-1), places[1].reshape(-1), strict=True)
        return [[self._atoms.apply(kind_of(op), a[i], b[j]) for i, j in pairs]]

    def _reduce_elements(self, op: Op) -> list[Sequence[Polynomial | None]] | None:
        """A sum or product over axes that are known; without any, over all."""
        shape, forms = self._shape(op.inputs[0]), self._found[op.inputs[0]]
        axes = self._found.get(op.inputs[1]) if op.has(1) else ()
        known = [number(axis) for axis in axes or ()]
        if shape is None or forms is None or axes is None or any(axis is None or not -len(shape) <= axis < len(shape) for axis in known):
            return None
        gone = sorted({axis % len(shape) for axis in known if axis is not None}) or list(range(len(shape)))
        kept = [axis for axis in range(len(shape)) if axis not in gone]
        groups = np.arange(len(forms)).reshape(shape).transpose(kept + gone).reshape(math.prod(shape[axis] for axis in kept), -1)
        return [[self._atoms.apply(kind_of(op), *(forms[int(place)] for place in group)) for group in groups]]

    def _reduce_segments(self, op: Op) -> list[Sequence[Polynomial | None]] | None:
        """Sums or products of the elements of a list that have one number."""
        forms, function = self._found.get(op.inputs[0]), _OF_SEGMENTS.get(str(op["reduction"]))
        ids, counts = (self.numbers(name) if self._is_small(name) else None for name in op.inputs[1:3])
        if forms is None or function is None or ids is None or counts is None or ids.shape != self._shape(op.inputs[0]) or ids.ndim != 1:
            return None
        count = int(counts.reshape(-1)[0]) if counts.size == 1 else -1
        if not 0 <= count <= _MOST_ELEMENTS:
            return None
        return [[function(*(form for form, place in zip(forms, ids, strict=True) if place == i)) for i in range(count)]]

    def _move_elements(self, op: Op) -> list[Sequence[Polynomial | None]] | None:
        """Data movement of element numbers, mapped back to the elements after it; number 0 is the zero with which a Pad fills."""
        numbered: list[Polynomial] = [()]
        moved = set(kind_of(op).positions(op, "data", "factor", "filler"))
        tensors: dict[str, Tensor] = {}
        values: list[Array | None] = []
        for position, name in enumerate(op.inputs):
            if not name:
                values.append(None)
                continue
            shape, forms = self._shape(name), self._found.get(name)
            if shape is None or forms is None:
                return None
            if position in moved:
                value: Array = np.arange(len(numbered), len(numbered) + len(forms), dtype=np.int64).reshape(shape)
                numbered += forms
            else:
                known = self.numbers(name)
                if known is None:
                    return None
                value = known
            tensors[name] = Tensor(name, str(value.dtype), shape)
            values.append(value)
        shapes = {name: Tensor(name, "int64", None) for name in op.outputs if name}
        found = evaluate_constant(op, {**tensors, **shapes}, values)
        return None if found is None else [[numbered[int(i)] for i in array.reshape(-1)] for array in found]


#: How many times larger values may be than what they are made of.
GROWTH = 4


def compute_constant(op: Op, tensors: Mapping[str, Tensor], values: Sequence[Array | None]) -> list[Array] | None:
    """The outputs of an operator whose inputs are all known; None where it has no evaluation, works with quantizations, or would make too
    much.

    Args:
        op: the operator: none that sums products, none with effects.
        tensors: its inputs and outputs, by name.
        values: stored values of the inputs, in order; None for one that is absent.
    """
    from qconvert.evaluate import evaluate_op

    kind = find_kind(op)
    if kind is None or kind.evaluate is None or kind.sums_products or kind.rule not in ("real", "move", "index", "plain"):
        return None
    named = [name for name in op.names if name]
    if any(name not in tensors or tensors[name].is_quantized for name in named):
        return None
    given = {
        name: Tensor(name, tensors[name].dtype, value.shape, value)
        for name, value in zip(op.inputs, values, strict=True)
        if value is not None
    }
    try:
        if not is_affordable(output_shapes(given, op), [tensors[name].dtype for name in op.outputs], values, GROWTH):
            return None
        outputs = {name: tensors[name] for name in op.outputs if name}
        found = evaluate_op(Graph("", {**given, **outputs}, (op,), (), ()), op, values)
    except (QConvertError, ArithmeticError, MemoryError, KeyError, TypeError, ValueError, IndexError):
        return None
    return [np.asarray(result.stored) for result in found] if len(found) == len(op.outputs) else None


class KnownValues:
    """The known values of a graph, each worked out once.

    Integers computed from sizes are known if they do not depend on dynamic sizes.

    All of them together have at most LARGEST bytes, as a single one has, or GROWTH times the bytes of the constants: what would be more
    is not known. A file of 1 MB can name as many large values as it likes.

    Args:
        tensors: every tensor by name. More may be added while this object is in use.
        producers: the operator that writes each tensor; likewise.

    Attributes:
        sizes: what is known of the integers that depend on sizes.
        computes: whether a value counts as known too if kernels differ in its last bit; see compute_constant().
    """

    def __init__(self, tensors: Mapping[str, Tensor], producers: Mapping[str, Op]) -> None:
        self.sizes = KnownSizes(tensors, producers)
        self.computes = False
        self._tensors = tensors
        self._producers = producers
        self._found: dict[str, Array | None] = {}
        self._left = -1  # bytes; not worked out before the first question, when the constants are there

    def get(self, name: str) -> Array | None:
        """The data of the tensor `name`, or None if they depend on the model's inputs."""
        if name in self._found:
            return self._found[name]
        pending = [_Question(name, self._producers.get(name), self._found)]
        asked = {name}
        while pending:
            question = pending[-1]
            op, data = question.op, self._tensors[question.name].data
            if question.name in self._found or data is not None or op is None:
                self._found.setdefault(question.name, data)
                pending.pop()
                continue
            wanted = question.next_missing(self._found)
            if wanted in asked:  # a cycle, which validation refuses: nothing is known in it
                self._found[wanted] = None
                continue
            if wanted is not None:
                asked.add(wanted)
                pending.append(_Question(wanted, self._producers.get(wanted), self._found))
                continue
            found = self._compute_outputs(op)
            for position, output in enumerate(op.outputs):
                self._found[output] = None if found is None or position >= len(found) else found[position]
            pending.pop()
        return self._found[name]

    def _compute_outputs(self, op: Op) -> list[Array] | None:
        """The outputs of an operator, if all that it reads is known, can be computed and can be afforded."""
        values = [self._found.get(value) if value else None for value in op.inputs]
        known = all(self._found.get(value) is not None for value in op.inputs if value)
        found = evaluate_constant(op, self._tensors, values) if known or kind_of(op).lists_sizes else None
        if found is None and known and self.computes and op.inputs:
            found = compute_constant(op, self._tensors, values)
        if found is None:
            numbers = [self.sizes.numbers(output) if output else None for output in op.outputs]
            found = [data for data in numbers if data is not None]
            found = found if len(found) == len(numbers) else None
        return found if found is not None and self._is_affordable(found, values) else None

    def _is_affordable(self, found: list[Array], inputs: Sequence[Array | None]) -> bool:
        """Whether there are bytes left for the values; views on the operator's inputs cost none."""
        if self._left < 0:
            constants = sum(tensor.data.nbytes for tensor in self._tensors.values() if tensor.data is not None)
            self._left = max(LARGEST, GROWTH * constants)
        own = [array for array in found if not any(value is not None and np.may_share_memory(array, value) for value in inputs)]
        size = sum(array.nbytes for array in own)
        if size > self._left:
            return False
        self._left -= size
        return True


class _Question:
    """A value that is asked for, and how far its operator's inputs have been looked at, so that none is looked at twice."""

    def __init__(self, name: str, op: Op | None, found: Mapping[str, Array | None]) -> None:
        self.name, self.op = name, op
        # Sizes need no values, and nothing is computed of an Opaque.
        needed = () if op is None or kind_of(op).lists_sizes or kind_of(op).rule == "opaque" else op.inputs
        self._left = [value for value in reversed(needed) if value]
        if any(value in found and found[value] is None for value in self._left):
            self._left.clear()

    def next_missing(self, found: Mapping[str, Array | None]) -> str | None:
        """The next input that has to be worked out; None if all are, or if one is not known, after which the others need no computing."""
        while self._left:
            if self._left[-1] not in found:
                return self._left[-1]
            if found[self._left.pop()] is None:
                self._left.clear()
        return None
