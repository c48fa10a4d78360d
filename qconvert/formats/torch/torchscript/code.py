"""The code in a TorchScript archive: classes and their methods, taken apart by Python's own parser and never run."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass, field

from qconvert.errors import InvalidModelError
from qconvert.formats.torch.archive import Archive

__all__ = ["Code", "Method"]

#: Parsing needs memory of about a hundred times the text. The largest file of a real detector has 200 kB.
_LARGEST_FILE = 2**24
#: Nested brackets beyond which Python's parser may run out of stack.
_DEEPEST = 100
_OPENING = re.compile(r"[\[({]|[\])}]")


@dataclass(frozen=True, slots=True)
class Method:
    """A function of the code.

    Attributes:
        file: in the archive, for messages.
        node: its definition.
    """

    file: str
    node: ast.FunctionDef


@dataclass(slots=True)
class _Class:
    methods: dict[str, Method] = field(default_factory=dict)


class Code:
    """Classes and functions by their qualified names; files are parsed when something in them is first asked for.

    Args:
        archive: the model's.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._files: dict[str, dict[str, _Class]] = {}

    def method(self, class_name: str, name: str) -> Method | None:
        """A method of a class such as "__torch__.torchvision.models.resnet.ResNet"; None if it has none of that name."""
        module, _, short = class_name.rpartition(".")
        found = self._module(module).get(short)
        return None if found is None else found.methods.get(name)

    def function(self, qualified: str) -> Method | None:
        """A function that belongs to no class."""
        module, _, short = qualified.rpartition(".")
        free = self._module(module).get("")
        return None if free is None else free.methods.get(short)

    def _module(self, module: str) -> dict[str, _Class]:
        if module not in self._files:
            name = f"code/{module.replace('.', '/')}.py"
            self._files[module] = self._parsed(name) if name in self._archive else {}
        return self._files[module]

    def _parsed(self, name: str) -> dict[str, _Class]:
        text = self._archive.text(name)
        _verify(text, name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes in texts
                tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InvalidModelError(f"its code cannot be parsed: {error}", where=name) from error
        found: dict[str, _Class] = {"": _Class()}
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                methods = {item.name: Method(name, item) for item in node.body if isinstance(item, ast.FunctionDef)}
                found[node.name] = _Class(methods)
            elif isinstance(node, ast.FunctionDef):
                found[""].methods[node.name] = Method(name, node)
        return found


def _verify(text: str, name: str) -> None:
    """Raises InvalidModelError for a text that would take Python's parser too much memory or stack."""
    if len(text) > _LARGEST_FILE:
        raise InvalidModelError(f"its code has {len(text)} characters, more than {_LARGEST_FILE}", where=name)
    depth = 0
    for bracket in _OPENING.findall(text):
        depth += 1 if bracket in "[({" else -1
        if depth > _DEEPEST:
            raise InvalidModelError(f"its code has more than {_DEEPEST} brackets within each other", where=name)
