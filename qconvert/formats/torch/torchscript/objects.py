"""Objects of the file: their attributes, their places in the model, and the states that their classes unpack."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qconvert.errors import InvalidModelError
from qconvert.formats.torch.constants import Constants
from qconvert.formats.torch.packed_parameters import is_packed, unpack_parameters
from qconvert.formats.torch.stored_values import ScriptObject, StoredTensor
from qconvert.formats.torch.torchscript.code import Code
from qconvert.formats.torch.torchscript.frame import Frame
from qconvert.formats.torch.values import UNKNOWN, Named, Packed, PackedCell, Unknown

if TYPE_CHECKING:
    from qconvert.formats.torch.torchscript.interpreter import Interpreter

__all__ = ["Objects"]

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
                default = self._code.value(target.class_name, name)
                if default is not None:
                    return Frame(self._interpreter, default.method, "", {}).value(default.node)
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
        fields = self._code.fields(class_name)
        if fields is not None:
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
