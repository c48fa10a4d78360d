"""The code in a TorchScript archive: classes and their methods, taken apart by Python's own parser and never run."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass, field

from qconvert.errors import InvalidModelError
from qconvert.formats.torch.archive import Archive

#: Parsing needs memory of about a hundred times the text, and 1.5 kB for each word. The largest file of a real detector has 200 kB.
_LARGEST_FILE, _MOST_WORDS = 2**22, 2**18
#: Nested brackets beyond which Python's parser may run out of stack.
_DEEPEST = 100
_WORD = re.compile(r"\w+")
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
class ScriptClass:
    """A class of the code.

    Attributes:
        methods: by name.
        values: constants that it states for all of its objects.
        fields: the names of the items, where it is a tuple with names.
    """

    methods: dict[str, Method] = field(default_factory=dict)
    values: dict[str, ast.expr] = field(default_factory=dict)
    fields: tuple[str, ...] | None = None


class Code:
    """Classes and functions by their qualified names; files are parsed when something in them is first asked for.

    Args:
        archive: the model's.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._files: dict[str, dict[str, ScriptClass]] = {}

    def class_named(self, class_name: str) -> ScriptClass | None:
        """A class such as "__torch__.torchvision.models.resnet.ResNet"; None if the archive has none of that name."""
        module, _, short = class_name.rpartition(".")
        return self._module(module).get(short) if short else None

    def method(self, class_name: str, name: str) -> Method | None:
        """A method of a class; None if it has none of that name."""
        found = self.class_named(class_name)
        return None if found is None else found.methods.get(name)

    def function(self, qualified: str) -> Method | None:
        """A function that belongs to no class."""
        module, _, short = qualified.rpartition(".")
        free = self._module(module).get("")
        return None if free is None else free.methods.get(short)

    def _module(self, module: str) -> dict[str, ScriptClass]:
        if module not in self._files:
            name = file_of(module)
            self._files[module] = self._parse_file(name) if name in self._archive else {}
        return self._files[module]

    def _parse_file(self, name: str) -> dict[str, ScriptClass]:
        text = self._archive.text(name)
        _verify(text, name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes in texts
                tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InvalidModelError(f"the code cannot be parsed: {error}", where=name, rule="malformed-code") from error
        found: dict[str, ScriptClass] = {"": ScriptClass()}
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name] = _class(name, node)
            elif isinstance(node, ast.FunctionDef):
                found[""].methods[node.name] = Method(name, node)
        return found


def file_of(module: str) -> str:
    """The entry of the archive that has the code of a module."""
    return f"code/{module.replace('.', '/')}.py"


def _class(name: str, node: ast.ClassDef) -> ScriptClass:
    methods = {item.name: Method(name, item) for item in node.body if isinstance(item, ast.FunctionDef)}
    stated = [item for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
    values = {item.target.id: item.value for item in stated if isinstance(item.target, ast.Name) and item.value is not None}
    named = any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in node.bases)
    return ScriptClass(methods, values, tuple(item.target.id for item in stated if isinstance(item.target, ast.Name)) if named else None)


def _verify(text: str, name: str) -> None:
    """Raises InvalidModelError for a text that would take Python's parser too much memory or stack."""
    if len(text) > _LARGEST_FILE:
        raise InvalidModelError(f"the code has {len(text)} characters; at most {_LARGEST_FILE} are read", where=name, rule="code-too-large")
    if (words := sum(1 for _ in _WORD.finditer(text))) > _MOST_WORDS:
        raise InvalidModelError(f"the code has {words} words; at most {_MOST_WORDS} are read", where=name, rule="code-too-large")
    depth = 0
    for bracket in _OPENING.findall(text):
        depth += 1 if bracket in "[({" else -1
        if depth > _DEEPEST:
            raise InvalidModelError(f"the code has more than {_DEEPEST} nested brackets", where=name, rule="nested-too-deeply")
