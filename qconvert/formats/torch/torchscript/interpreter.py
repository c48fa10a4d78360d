"""TorchScript's code, followed step by step, and the objects of the file: numbers, lists and modules are worked out, and operators on
tensors become calls.

Nothing of the file runs: this walks the syntax tree of its methods with a budget of steps. What depends on the values of tensors is named
as not covered; what depends on sizes is known from the shapes of the inputs. Objects have attributes, places in the model, and states that
their classes unpack.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.formats.torch.calls import Missing, is_covered
from qconvert.formats.torch.in_place import InPlace
from qconvert.formats.torch.packed_parameters import PACKING, call_packed, is_packed, unpack_parameters
from qconvert.formats.torch.session import Constants, Session
from qconvert.formats.torch.stored_values import ScriptObject, StoredTensor
from qconvert.formats.torch.torchscript.code import Code, Method, file_of
from qconvert.formats.torch.torchscript.frame import CodeError, Frame, Function, ReturnedError
from qconvert.formats.torch.torchscript.numbers import NUMBERS, compute_number, function_of
from qconvert.formats.torch.values import UNKNOWN, EndlessError, Named, Packed, PackedCell, Ref, Unknown, leaves

#: What a packed-parameters object is called in the module of its layer.
_PACKED = re.compile(r"(\._packed_(params|weight))+(\.\d+)?$")


class Objects:
    """The objects of one model.

    Args:
        interpreter: that follows their methods.
        code: the archive's classes.
        constants: of the file, by their places.
    """

    def __init__(self, interpreter: Interpreter, code: Code, constants: Constants) -> None:
        self._interpreter = interpreter
        self._code = code
        self._constants = constants
        self._places: dict[int, str] = {}
        self._packed: dict[int, Packed | PackedCell] = {}
        self._packed_weights: dict[str, Any] = {}
        self._ready: dict[int, ScriptObject] = {}

    def root(self, model: ScriptObject) -> None:
        """Says which object the model is."""
        self._places[id(model)] = ""

    def place(self, target: ScriptObject) -> str:
        """Where in the model an object stands, such as "features.0"; "" for the model itself."""
        return self._places.get(id(target), "")

    def make_ready(self, target: ScriptObject) -> None:
        """Gives an object whose class packs its state the attributes that `__setstate__` makes of it."""
        if id(target) in self._ready:
            return
        self._ready[id(target)] = target
        method = self._code.method(target.class_name, "__setstate__")
        if method is not None:
            state, target.state = target.state, {}
            self._interpreter.run_method(method, [target, state], {}, self.place(target))

    def attribute(self, target: Any, name: str, where: str) -> Any:
        """An attribute of an object of the file."""
        if isinstance(target, Unknown):
            return UNKNOWN
        if isinstance(target, Named) and name in target.names:
            return target[target.names.index(name)]
        if isinstance(target, ScriptObject):
            self.make_ready(target)
            if isinstance(target.state, dict):
                if name in target.state:
                    return self.register_value(target.state[name], ".".join(filter(None, (self.place(target), name))))
                stated = self._code.class_named(target.class_name)
                if stated is not None and name in stated.values:
                    return Frame(self._interpreter, file_of(target.class_name.rpartition(".")[0]), "", {}).value(stated.values[name])
        kind = target.class_name if isinstance(target, ScriptObject) else type(target).__name__
        raise InvalidModelError(f"{kind} has no attribute {name!r}", where=where, rule="unknown-name")

    def set_attribute(self, target: Any, name: str, value: Any, where: str) -> None:
        """Gives an attribute a value."""
        if isinstance(target, Unknown):
            return
        if not isinstance(target, ScriptObject) or not isinstance(target.state, dict):
            raise InvalidModelError("an attribute is set on something that has no attributes", where=where, rule="unknown-name")
        target.state[name] = value

    def register_value(self, value: Any, place: str) -> Any:
        """A value of the file, with its place noted and packed parameters unpacked."""
        if isinstance(value, StoredTensor):
            self._constants.place(value, place)
        elif is_packed(value):
            if id(value) not in self._packed:
                self._packed[id(value)] = unpack_parameters(value, layer_of(place))
            return self._packed[id(value)]
        elif isinstance(value, ScriptObject):
            self._places.setdefault(id(value), place)
        elif isinstance(value, (list, tuple)) and any(isinstance(item, (StoredTensor, ScriptObject)) for item in value):
            items = [self.register_value(item, f"{place}.{index}") for index, item in enumerate(value)]
            if isinstance(value, tuple):
                return tuple(items)
            value[:] = items
        return value

    def packed_name(self, wanted: str, given: Sequence[Any]) -> str:
        """Return the name of what code packs: `wanted`, with a number where the code packs other weights under that name too.

        Args:
            wanted: the place of the object whose code packs, or the variable of the result.
            given: the arguments, of which the first is the weights.
        """
        weight, name, count = (given or [None])[0], wanted, 1
        while self._packed_weights.setdefault(name, weight) is not weight:
            count += 1
            name = f"{wanted}_{count}"
        return name

    def create_empty(self, class_name: str) -> ScriptObject:
        """A new object of a class, without attributes."""
        made = ScriptObject(class_name)
        self._ready[id(made)] = made
        return made

    def create_object(self, class_name: str, given: list[Any], named: Mapping[str, Any], where: str) -> Any:
        """A new object of a class: a tuple for one whose fields have names and nothing else."""
        stated = self._code.class_named(class_name)
        if stated is not None and (fields := stated.fields) is not None:
            values = dict(zip(fields, given, strict=False)) | dict(named)
            if len(given) + len(named) != len(fields) or set(values) != set(fields):
                raise InvalidModelError(
                    f"{class_name} has {len(fields)} fields and is given {len(given) + len(named)}", where=where, rule="counts-differ"
                )
            return Named.of({name: values[name] for name in fields})
        made = self.create_empty(class_name)
        if self._code.method(class_name, "__init__") is not None:
            self._interpreter.invoke(made, "__init__", given, named, where)
        return made


def layer_of(place: str) -> str:
    """The layer that packed parameters belong to: its place without what PyTorch's passes put around it."""
    return _PACKED.sub("", place.removeprefix("_jit_pass_hoist_conv_packed_params.")) or place


_DEEPEST = 100
#: Steps that an operator on tensors takes, and each tensor that it reads.
_OPERATOR, _OPERAND = 16, 4
#: Steps of an operator that writes a view back, which is several of the graph.
_WRITTEN_BACK = 64
_OTHER_SHAPES = "The model may be made for inputs of other shapes: state them with --input-shape."
#: Of numbers known only at run time: the same operators by the names that torch.export gives them.
_SIZES = {f"aten::{name}": f"prim::{name}" for name in ("add", "sub", "mul", "floordiv", "eq", "ne", "lt", "le", "gt", "ge")}


@dataclass(slots=True)
class Budget:
    """How many steps the code may take: statements, expressions, eight items of a list; an operator on tensors is 16.

    d2go, a real detector, takes 60,000.

    Attributes:
        steps: taken so far.
        most: in all.
    """

    most: int
    steps: int = 0

    def spend(self, steps: int = 1) -> None:
        """Counts steps; raises EndlessError where there are too many."""
        self.steps += steps
        if self.steps > self.most:
            raise EndlessError(f"the code does not end within {self.most} steps", rule="too-many-steps")


class Interpreter:
    """Follows the methods of a model.

    Args:
        code: the archive's classes.
        session: of the model.
        listed: what the code calls CONSTANTS.c0 and so on.
        budget: of steps.

    Attributes:
        variables: of the method that run() follows, by name, as it leaves them.
    """

    def __init__(self, code: Code, session: Session, listed: Sequence[Any], budget: Budget) -> None:
        self.objects = Objects(self, code, session.constants)
        self.budget = budget
        self.variables: dict[str, Any] = {}
        self._code = code
        self._listed = listed
        self._depth = 0
        self._in_place = InPlace(session, lambda where: budget.spend(_WRITTEN_BACK))
        self._missing = Missing()

    def run(self, model: ScriptObject, name: str, arguments: Sequence[Any]) -> Any:
        """Run a method of the model; returns its result.

        Raises:
            UnsupportedError: it calls what is not covered, or branches on what is known only at run time; all such things are listed.
            InvalidModelError: the code is damaged, raises an error of its own, or does not end.
        """
        self.objects.root(model)
        try:
            result = self.invoke(model, name, list(arguments), {}, "")
            deque(leaves(result, self.budget.spend), maxlen=0)
            result = self._in_place.current_value(result)
        except CodeError as raised:
            error: QConvertError = InvalidModelError(f"the code raises an error: {raised}", remedy=_OTHER_SHAPES, rule="code-raises")
            raise self._missing.combine_with(error) from None
        except QConvertError as error:
            raise self._missing.combine_with(error) from error
        except RecursionError as error:
            raise InvalidModelError("the code is nested too deeply", rule="nested-too-deeply") from error
        self._missing.require_none()
        return result

    def invoke(self, target: ScriptObject, name: str, given: list[Any], named: Mapping[str, Any], where: str) -> Any:
        """Run a method of an object; returns its result."""
        method = self._code.method(target.class_name, name)
        if method is None:
            raise InvalidModelError(
                f"the class {target.class_name} has no method {name!r}", where=where or self.objects.place(target), rule="unknown-name"
            )
        self.objects.make_ready(target)
        return self.run_method(method, [target, *given], named, self.objects.place(target))

    def run_method(self, method: Method, given: list[Any], named: Mapping[str, Any], place: str) -> Any:
        """Run a method or function; returns its result."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise InvalidModelError(f"the code calls itself more than {_DEEPEST} times", where=method.file, rule="nested-too-deeply")
        values: dict[str, Any] = {}
        if self._depth == 1:
            self.variables = values
        frame = Frame(self, method.file, place, values)
        frame.bind_arguments(method.node, given, named)
        try:
            frame.statements(method.node.body)
        except ReturnedError as returned:
            return returned.value
        finally:
            self._depth -= 1
        return None

    def constant(self, name: str) -> Any:
        """CONSTANTS.c<number>."""
        number = name[1:]
        if not re.fullmatch("[0-9]{1,9}", number) or int(number) >= len(self._listed):
            raise InvalidModelError(f"the archive has no constant {name!r}", rule="unknown-name")
        return self.objects.register_value(self._listed[int(number)], f"CONSTANTS.{name}")

    def call(self, function: Function, given: list[Any], named: dict[str, Any], where: str, hint: str, place: str) -> Any:
        """Return the result of a call: of a method, of a function on numbers and lists, or of an operator on tensors."""
        name, target = function.name, function.target
        if isinstance(target, ScriptObject):
            return self.invoke(target, name, given, named, where)
        if isinstance(target, Packed):
            return call_packed(target, name, where)
        if name in ("prim::RaiseException", "aten::raise"):
            raise CodeError(str(given[0])[:500] if given else "")
        if name.startswith("__torch__."):
            return self._call_from_file(name, given, named, where)
        if name in PACKING:
            return PACKING[name](self.objects.packed_name(place or hint, [*given, *named.values()]), where, *given, **named)
        compute, kinds = function_of(name, given, True), set[type]()
        if compute is None:
            self.budget.spend(sum(len(value) for value in given if isinstance(value, (list, tuple))) // 8)
            kinds = {type(leaf) for leaf in leaves([given, named], self.budget.spend)}
            compute = function_of(name, given, bool(kinds & _TENSORS))
        if compute is not None:
            return compute_number(name, compute, given, named, where, self.budget)
        if Unknown in kinds:
            if name not in NUMBERS and not is_covered(name):
                self._missing.operator(name, where)
            return UNKNOWN
        numbers = [leaf.number for leaf in leaves(given) if isinstance(leaf, Ref)]
        self.budget.spend(_OPERAND * len(numbers))
        if name in _SIZES and numbers and all(numbers) and StoredTensor not in kinds:
            name = _SIZES[name]
        return self._call_on_tensors(name, given, named, where, hint)

    def _call_on_tensors(self, name: str, given: list[Any], named: dict[str, Any], where: str, hint: str) -> Any:
        if not is_covered(name):
            self._missing.operator(name, where)
            return UNKNOWN
        self.budget.spend(_OPERATOR)
        try:
            result = self._in_place.run(name, given, named, where, hint)
        except UnsupportedError as error:
            self._missing.form(error)
            return UNKNOWN
        if isinstance(result, (list, tuple)):
            self.budget.spend(_OPERATOR * len(result))
        return result

    def _call_from_file(self, name: str, given: list[Any], named: dict[str, Any], where: str) -> Any:
        """A function of the file, or an object of one of its classes."""
        method = self._code.function(name)
        if method is not None:
            return self.run_method(method, given, named, "")
        if name.endswith(".__new__") and self._code.class_named(name.removesuffix(".__new__")) is not None:
            return self.objects.create_empty(name.removesuffix(".__new__"))
        if self._code.class_named(name) is None:
            raise InvalidModelError(f"the archive has no function {name}", where=where, rule="unknown-name")
        return self.objects.create_object(name, given, named, where)


_TENSORS = {Ref, StoredTensor, Unknown}
