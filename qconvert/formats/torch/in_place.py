"""Changes in place: the new values of the tensor, of its views, and of the tensor that it views.

A graph has no changes. A view shares its elements with its base: a changed view is written back into its base, up to the tensor that holds
the elements; other views of that tensor are rebuilt when they are read next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qconvert.errors import UnsupportedError
from qconvert.formats.torch.calls import bind_operator, call_operator, is_change
from qconvert.formats.torch.session import Session
from qconvert.formats.torch.stored_values import StoredTensor
from qconvert.formats.torch.values import Ref, map_leaves

#: Calls an operator: its name, its arguments by position and by name.
_Call = Callable[..., Any]


def _aten(*names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names)


#: Operators whose arguments say which elements a view takes, or in which order.
_CHOSEN = (
    "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "select", "slice", "narrow", "unbind", "chunk", "split",
    "split_with_sizes", "tensor_split",
)  # fmt: skip
_RESHAPED = ("view", "view_as", "unflatten", "squeeze", "unsqueeze", "flatten", "reshape", "reshape_as", "contiguous", "ravel")
_OTHER = ("expand", "expand_as", "broadcast_to", "diagonal", "unfold")
#: Operators that give their input itself, or a copy of another type.
_SAME_OR_COPY = (
    "to", "type_as", "float", "double", "half", "bfloat16", "int", "long", "short", "char", "byte", "bool", "cpu", "cuda",
)  # fmt: skip
_SAME = ("detach", "alias", "dropout", "feature_dropout", "alpha_dropout", "positive", "t", "numpy_T", "mT", *_SAME_OR_COPY)
#: Operators whose results share elements with their first input. Where a result is that input, it is the same tensor.
VIEWS = _aten(*_CHOSEN, *_RESHAPED, *_OTHER, *_SAME)
#: Of these, those that copy tensors whose elements do not lie in the order of their axes, as those of a transposed one.
MAY_COPY = _aten("flatten", "reshape", "reshape_as", "contiguous", "ravel")
#: Of these, those whose form in place changes the shape of a tensor and none of its elements.
CHANGES_SHAPE = _aten("squeeze", "unsqueeze", "transpose", "t", "swapaxes", "swapdims")
#: Views that leave elements in the order of their axes.
KEEPS_ORDER = _aten(*_RESHAPED, "detach", "alias")
#: Operators whose results have their elements in the order of their axes if their inputs have.
MAKES = _aten(
    "zeros", "ones", "full", "empty", "arange", "eye", "linspace", "tensor", "scalar_tensor", "zeros_like", "ones_like", "full_like",
    "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "clone", "cat", "stack", "add", "sub", "rsub", "mul", "div",
    "neg", "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "abs", "clamp", "pow", "where", "masked_fill", "gelu", "silu",
    "hardswish", "leaky_relu", "conv1d", "conv2d", "conv3d", "_convolution", "convolution", "batch_norm", "layer_norm", "linear",
    "max_pool2d", "avg_pool2d", "softmax", "copy", "fill", "zero", "bitwise_and", "logical_and", "gt", "lt", "ge", "le", "eq", "ne",
    "floor", "round",
)  # fmt: skip


def write_back(name: str, base: Any, given: Sequence[Any], named: Mapping[str, Any], part: int, new: Any, call: _Call) -> Any:
    """Return the new value of a tensor after a view of it has changed.

    Args:
        name: of the view's operator.
        base: the tensor.
        given, named: the operator's arguments after the tensor.
        part: which of its results the view is.
        new: what the view is now.
        call: calls an operator.

    Raises:
        UnsupportedError: the operator is one of those whose results are not written to.
    """
    short = name.removeprefix("aten::")
    _, values = bind_operator(name, [base, *given], named) or (None, dict(named))
    match short:
        case "t" | "numpy_T" | "mT":
            return call(name, new)
        case "permute":
            order = [axis % len(values["dims"]) for axis in values["dims"]]
            return call(name, new, [order.index(axis) for axis in range(len(order))])
        case "movedim" | "moveaxis":
            return call(name, new, values["destination"], values["source"])
        case "transpose" | "swapaxes" | "swapdims":
            return call(name, new, *given, **named)
        case "select":
            return call("aten::select_scatter", base, new, values["dim"], values["index"])
        case "diagonal":
            return call("aten::diagonal_scatter", base, new, *given, **named)
        case "unbind":
            return call("aten::select_scatter", base, new, values["dim"], part)
        case "slice":
            return call("aten::slice_scatter", base, new, *(values[key] for key in ("dim", "start", "end", "step")))
        case "narrow" if isinstance(values["start"], int) and isinstance(values["length"], int):
            start, end = values["start"], values["start"] + values["length"]
            return call("aten::slice_scatter", base, new, values["dim"], start, None if start < 0 == end else end)
        case "chunk" | "split" | "split_with_sizes" | "tensor_split":
            parts = list(call(name, base, *given, **named))
            parts[part] = new
            return call("aten::cat", parts, values["dim"])
        case _ if short in _RESHAPED:
            return call("aten::view_as", new, base)
    raise UnsupportedError(f"an in-place change of the result of {name} is not covered", rule="change-of-a-view")


@dataclass(frozen=True, slots=True)
class _Step:
    """How a view is made.

    Attributes:
        name: of the operator.
        given, named: its arguments after the tensor.
        part: which of its results the view is; None if it has one.
        certain: whether it is a view, and no copy.
        where: the operator stands in the file.
        hint: the name of its result.
    """

    name: str
    given: Sequence[Any]
    named: Mapping[str, Any]
    part: int | None
    certain: bool
    where: str
    hint: str


@dataclass(slots=True, eq=False)
class _Held:
    """A tensor of the program.

    Attributes:
        value: what it was when its base had the version `version`.
        version: counts changes of the elements; of a view, that of its base which `value` shows.
        base: what it is a view of; None for a tensor of its own.
        step: how it is made of its base.
        torn: where a change may or may not have reached it; "" if there is none.
    """

    value: Any
    version: int = 0
    base: _Held | None = None
    step: _Step | None = None
    torn: str = ""

    def root(self) -> _Held:
        """The tensor that holds the elements."""
        held = self
        while held.base is not None:
            held = held.base
        return held


class InPlace:
    """Tensors that changed, and their new values. Tensors are compared by identity, since a clone has the name of its source.

    Args:
        session: of the model.
        spend: is told of every operator that is called to write a view back.
    """

    def __init__(self, session: Session, spend: Callable[[str], None]) -> None:
        self._session = session
        self._name = session.constants.name
        self._spend = spend
        self._held: dict[int, _Held] = {}
        self._kept: list[Any] = []  # so that no other object gets the identity of one that is noted
        self._changed = False
        #: Tensors whose elements may lie in another order than that of their axes.
        self._strided: dict[int, Any] = {}

    def _call(self, name: str, given: Sequence[Any], named: Mapping[str, Any], where: str, hint: str) -> Any:
        """Call an operator that the program does not state."""
        self._spend(where)
        return call_operator(self._session, name, given, named, where, hint)

    def current_value(self, value: Any) -> Any:
        """A value with every tensor in it as it is now.

        Raises:
            UnsupportedError: one may or may not have changed with another.
        """
        return map_leaves(value, self._current_tensor) if self._changed else value

    def _current_tensor(self, value: Any) -> Any:
        held = self._held.get(id(value))
        return value if held is None else self._current(held)

    def run(self, name: str, given: Sequence[Any], named: Mapping[str, Any], where: str, hint: str) -> Any:
        """Return the result of an operator on tensors as they are now; notes changes, and results that share elements with its input.

        Args:
            name: of the operator, with the "_" of one that changes its input.
            given, named: its arguments, as the program has them.
            where: it stands.
            hint: the name of the result.
        """
        result = call_operator(self._session, name, self.current_value(given), self.current_value(named), where, hint)
        first = given[0] if given else named.get("self", named.get("input"))
        if not isinstance(first, (Ref, StoredTensor)):
            return result
        rest = given[1:], {key: value for key, value in named.items() if value is not first}
        if is_change(name):
            plain = name[:-1]
            if plain in CHANGES_SHAPE:
                base = self._held_of(first)  # a tensor with another shape becomes a view of its former value
                self._note(first, _Held(result, base.root().version, base, _Step(plain, *rest, None, True, where, hint)))
                self._strided[id(first)] = first
                self._changed = True
                return first
            return self._change_elements(first, result, where, hint) if isinstance(result, Ref) else result
        if name in VIEWS:
            return self._note_views(name, first, rest, result, where, hint)
        if isinstance(result, Ref):
            result = Ref(result.name, result.number)  # an operator may give the very object that it was given
            tensors = [value for value in (*given, *named.values()) if isinstance(value, (Ref, StoredTensor))]
            if name not in MAKES or any(map(self._is_strided, tensors)):
                self._strided[id(result)] = result
        return result

    def _note_views(self, name: str, first: Any, rest: tuple[Sequence[Any], Mapping[str, Any]], result: Any, where: str, hint: str) -> Any:
        """Notes the results of an operator that gives views."""
        strided = self._is_strided(first)
        certain = name not in MAY_COPY or not strided
        if isinstance(result, Ref):
            same = result.name == self._name(self.current_value(first))
            if same and (certain or name != "aten::contiguous"):
                return first
            if not same and name.removeprefix("aten::") in _SAME_OR_COPY:
                return result
            return self._note_view(first, result, _Step(name, *rest, None, certain, where, hint), strided)
        if isinstance(result, (list, tuple)):
            made = (self._note_view(first, item, _Step(name, *rest, i, True, where, hint), strided) for i, item in enumerate(result))
            return type(result)(made)
        return result

    def _note_view(self, first: Any, item: Any, step: _Step, strided: bool) -> Any:
        if not isinstance(item, Ref):
            return item
        item = Ref(item.name, item.number)
        base = self._held_of(first)
        self._note(item, _Held(item, base.root().version, base, step))
        if strided or step.name not in KEEPS_ORDER:
            self._strided[id(item)] = item
        return item

    def _is_strided(self, value: Any) -> bool:
        if isinstance(value, StoredTensor):
            return not value.data.flags.c_contiguous
        return id(value) in self._strided

    def _held_of(self, value: Any) -> _Held:
        """The note of a tensor, made if there is none."""
        return self._held.get(id(value)) or self._note(value, _Held(value))

    def _note(self, value: Any, held: _Held) -> _Held:
        self._held[id(value)] = held
        self._kept.append(value)
        return held

    def _change_elements(self, first: Any, new: Ref, where: str, hint: str) -> Any:
        """Notes that a tensor has other elements; it keeps its type."""
        held = self._held_of(first)
        current = self._current(held)
        if self._name(current) == new.name:
            return first
        self._changed = True
        self._write(held, self._call("aten::type_as", [new, current], {}, where, hint), where)
        return first

    def _write(self, held: _Held, new: Any, where: str) -> None:
        """Gives a tensor other elements, and through it what it is a view of."""
        base, step = held.base, held.step
        held.value = new
        if base is None or step is None:
            held.version += 1
            return
        if not step.certain:
            held.root().torn = where
            held.base, held.step, held.version = None, None, held.version + 1
            return

        def call(name: str, *given: Any, **named: Any) -> Any:
            return self._call(name, given, named, where, step.hint)

        try:
            whole = write_back(step.name, self._current(base), step.given, step.named, step.part or 0, new, call)
        except UnsupportedError as error:
            error.where = error.where or where
            raise
        self._write(base, whole, where)
        held.version = held.root().version

    def _current(self, held: _Held) -> Any:
        """The current value of a tensor, rebuilt from its base if that changed."""
        root = held.root()
        if root.torn:
            raise _unknown(root.torn)
        if held.base is None or held.step is None or held.version == root.version:
            return held.value
        step = held.step
        if not step.certain:
            raise _unknown(step.where)
        made = self._call(step.name, [self._current(held.base), *step.given], step.named, step.where, step.hint)
        held.value = made if step.part is None else made[step.part]
        held.version = root.version
        return held.value


def _unknown(where: str) -> UnsupportedError:
    return UnsupportedError(
        "an in-place change of a tensor is not covered where something that may be a view of it is used later",
        where=where,
        remedy="Write the model without in-place changes, or copy the tensor with clone() before the change.",
        rule="change-of-a-view",
    )
