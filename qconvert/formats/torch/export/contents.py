"""The contents of a torch.export archive: the JSON of the program, taken apart, and its parameters, buffers and constants.

The JSON has nodes with their arguments, what the program's inputs and outputs are, and shapes. Tensors are raw bytes next to a list of what
they are, or before PyTorch 2.9 pickles. Source: torch/_export/serde/schema.py (versions 2 to 8). Files of one major version differ in what
they leave out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qconvert.arithmetic.storage import numpy_dtype
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.archive import Archive
from qconvert.formats.torch.stored_values import EXPORT, Storages, StoredTensor, WrappedTensor
from qconvert.formats.torch.unpickler import unpickle_entry
from qconvert.formats.torch.values import Ref

_NEWEST, _OLDEST = 8, 2
_MOST_NODES = 1_000_000
_PLAIN = frozenset(f"as_{name}" for name in "int float bool string ints floats bools strings scalar_type expr".split())
#: What says nothing of values.
_ABSENT = frozenset(["as_none", "as_device", "as_layout", "as_memory_format"])
_SIZES = frozenset(
    f"as_{name}" for name in "optional_tensors optional_tensor sym_int sym_ints sym_float sym_floats sym_bool sym_bools".split()
)


@dataclass(frozen=True, slots=True)
class Node:
    """One call.

    Attributes:
        target: such as "aten::conv2d", without the overload.
        overload: such as "default".
        arguments: by name; those of higher-order operators by their position as text. A Ref is a value of the program.
        outputs: what it computes: a Ref, a list of Refs, or None for what nobody has.
        name: of the node.
    """

    target: str
    overload: str
    arguments: Mapping[str, Any]
    outputs: Sequence[Any]
    name: str

    @property
    def gives_list(self) -> bool:
        """Whether its one result is a list of values."""
        return len(self.outputs) == 1 and isinstance(self.outputs[0], (list, tuple))

    @property
    def results(self) -> Sequence[Any]:
        """What it computes, those in a list one by one."""
        return self.outputs[0] if self.gives_list else self.outputs

    def split_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments by position, where they have no other names, and by name."""
        positional = [self.arguments[str(place)] for place in range(len(self.arguments)) if str(place) in self.arguments]
        return positional, {key: value for key, value in self.arguments.items() if not key.isdigit()}


@dataclass(frozen=True, slots=True)
class Body:
    """A graph that an operator of higher order runs.

    Attributes:
        nodes: in order.
        inputs, outputs: its arguments and what it gives.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A torch.export program.

    Attributes:
        nodes: in order.
        inputs: each with its kind ("parameter", "buffer", "user_input" …), its name in the graph, and its name in the model.
        outputs: each with its kind ("user_output", "buffer_mutation" …), its argument, and the name of a buffer.
        tensors: name -> storage type and sizes, None for one known only at run time.
        torch_version: that wrote it.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[tuple[str, Any, str], ...]
    outputs: tuple[tuple[str, Any, str], ...]
    tensors: Mapping[str, tuple[str, tuple[int | str, ...]]]
    torch_version: str


def parse_program(text: str) -> Program:
    """The program in a document.

    Raises:
        InvalidModelError: it is damaged.
        UnsupportedError: it is of a newer schema than 8, or older than 2.
    """
    try:
        document = json.loads(text)
        _verify_version(document["schema_version"])
        module = document["graph_module"]
        graph, signature = module["graph"], module["signature"]
        nodes = graph["nodes"]
        if len(nodes) > _MOST_NODES:
            raise InvalidModelError(f"the program has {len(nodes)} nodes; at most {_MOST_NODES} are read", rule="too-many-nodes")
        return Program(
            tuple(_node(node) for node in nodes),
            tuple(_read_spec(spec) for spec in signature["input_specs"]),
            tuple(_read_spec(spec) for spec in signature["output_specs"]),
            {str(name): (EXPORT.get(meta["dtype"], "unknown"), sizes_of(meta["sizes"])) for name, meta in graph["tensor_values"].items()},
            str(document.get("torch_version", "")),
        )
    except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise InvalidModelError(f"the program is damaged: {type(error).__name__} {error}", rule="damaged-program") from error


def _verify_version(stated: Any) -> None:
    major, minor = (stated, 0) if isinstance(stated, int) else (int(stated["major"]), int(stated["minor"]))
    if not _OLDEST <= major <= _NEWEST:
        raise UnsupportedError(
            f"the program has schema {major}.{minor}; {_OLDEST} to {_NEWEST} are covered",
            remedy="Save it with another version of PyTorch: 2.13 writes schema 8.",
            rule="version-not-covered",
        )


def sizes_of(sizes: Any) -> tuple[int | str, ...]:
    """Sizes of a tensor; one known only at run time has the name of its symbol, or is an expression as text."""
    return tuple(_size(size) for size in sizes)


def _size(size: Any) -> int | str:
    if isinstance(size, int):
        return size
    ((kind, value),) = size.items()
    if kind == "as_int":
        if type(value) is not int or not 0 <= value < 2**62:
            raise ValueError(f"a size {value}")
        return value
    return _symbol(str(value["expr_str"]))


def _symbol(text: str) -> str:
    """The name in "Symbol('s77', positive=True, integer=True)", or a whole expression, which is nobody's name."""
    parts = text.split("'")
    if text.startswith("Symbol('") and len(parts) == 3 and parts[1].isidentifier():
        return parts[1]
    return f"({text})" if len(text) <= 60 else f"({text[:60]} {hashlib.sha256(text.encode()).hexdigest()[:8]})"


def _node(node: Any) -> Node:
    target, overload = _target(str(node["target"]))
    arguments: dict[str, Any] = {}
    for position, argument in enumerate(node["inputs"]):
        arguments[str(argument.get("name") or position)] = value_of(argument["arg"])
    outputs = [value_of(output) for output in node["outputs"]]
    first = outputs[0].name if outputs and isinstance(outputs[0], Ref) else target
    return Node(target, overload, arguments, outputs, str(node.get("name") or first))


def _target(text: str) -> tuple[str, str]:
    """ "torch.ops.aten.add.Tensor" as "aten::add" and "Tensor"; "_operator.mul" and "torch.sym_max" as "prim::mul" and "prim::sym_max"."""
    parts = text.split(".")
    if parts[:2] == ["torch", "ops"] and len(parts) in (4, 5):
        return f"{parts[2]}::{parts[3]}", parts[4] if len(parts) == 5 else "default"
    return f"prim::{parts[-1]}", "default"


def value_of(union: Any) -> Any:
    """The value of an argument, a union of one key: numbers and lists as they are, tensors and sizes as Refs of the program's values."""
    if not isinstance(union, dict) or len(union) != 1:
        raise ValueError("an argument that is no union of one")
    ((kind, value),) = union.items()
    if kind in _ABSENT:
        return None
    if kind in _PLAIN:
        return float(value) if kind == "as_float" else value
    if kind == "as_tensor":
        return Ref(str(value["name"]))
    if kind == "as_name":
        return Ref(str(value), number=True)
    if kind == "as_tensors":
        return [Ref(str(item["name"])) for item in value]
    if kind in _SIZES:
        return [None if item is None else value_of(item) for item in value] if isinstance(value, list) else value_of(value)
    if kind == "as_graph":
        graph = value["graph"]
        parts = [tuple(value_of(item) for item in graph[key]) for key in ("inputs", "outputs")]
        return Body(tuple(_node(node) for node in graph["nodes"]), parts[0], parts[1])
    if kind == "as_complex":
        return complex(value["real"], value["imag"])
    return {kind: value}


def _read_spec(spec: Any) -> tuple[str, Any, str]:
    """Read an input or output spec of the program: its kind, its argument in the graph, and the name of the parameter or buffer."""
    ((kind, value),) = spec.items()
    if "arg" not in value:  # a number, text or None that the program was exported for
        return str(kind), None, ""
    argument = value["arg"]
    plain = isinstance(argument, dict) and set(argument) == {"name"}
    found = Ref(str(argument["name"])) if plain else value_of(argument)
    names = [str(value[key]) for key in ("parameter_name", "buffer_name", "tensor_constant_name", "custom_obj_name") if key in value]
    return str(kind), found, names[0] if names else ""


_FOLDERS = (("data/weights", "_weights_config.json"), ("data/constants", "_constants_config.json"))
#: Dictionaries of tensors that torch.save wrote, of PyTorch 2.1 to 2.7.
_EARLY = ("serialized_state_dict.pt", "serialized_constants.pt")


def read_stored_tensors(archive: Archive, model: str) -> dict[str, StoredTensor | WrappedTensor]:
    """Every parameter, buffer and constant, by its name in the model.

    Args:
        archive: the file's.
        model: the name of the program in it.

    Raises:
        InvalidModelError: a tensor does not lie within its bytes, or the list is damaged.
    """
    found: dict[str, StoredTensor | WrappedTensor] = {}
    for entry in _EARLY:
        found |= _dictionary(archive, entry)
    storages = Storages()
    for folder, ending in _FOLDERS:
        name = f"{folder}/{model}{ending}"
        found |= _dictionary(archive, f"{folder}/{model}.pt")
        if name not in archive:
            continue
        try:
            config = json.loads(archive.text(name))["config"]
            for key, entry in config.items():
                path = f"{folder}/{entry['path_name']}"
                value = (
                    _read_pickled(archive, path, str(key)) if entry.get("use_pickle") else _tensor(archive, storages, path, entry, str(key))
                )
                if value is not None:
                    found[str(key)] = value
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise InvalidModelError(f"the list {name} is damaged: {type(error).__name__} {error}", rule="damaged-entry") from error
    return found


def _dictionary(archive: Archive, entry: str) -> dict[str, StoredTensor | WrappedTensor]:
    """The tensors of a dictionary that torch.save wrote; none where the archive has no such entry."""
    if entry not in archive or not archive.storage(entry).size:
        return {}
    values = read_saved(archive, entry)
    if not isinstance(values, dict):
        raise InvalidModelError("the entry does not hold a dictionary of tensors", where=entry, rule="damaged-entry")
    return {str(key): value for key, value in values.items() if isinstance(value, (StoredTensor, WrappedTensor))}


def read_saved(archive: Archive, entry: str) -> Any:
    """Unpickle an entry written by torch.save: an archive in the archive."""
    return unpickle_entry(Archive(archive.storage(entry).data), entry)


def _read_pickled(archive: Archive, path: str, name: str) -> StoredTensor | WrappedTensor | None:
    """A tensor of a class that keeps others inside, such as those of torchao."""
    try:
        value = read_saved(archive, path)
    except UnsupportedError as error:
        error.where = f"{name}: {error.where}"
        raise
    return value if isinstance(value, (StoredTensor, WrappedTensor)) else None


def _tensor(archive: Archive, storages: Storages, path: str, entry: Mapping[str, Any], name: str) -> StoredTensor | None:
    meta = entry.get("tensor_meta")
    if meta is None:  # an object of somebody's class
        return None
    dtype = EXPORT.get(meta["dtype"])
    if dtype is None:
        raise UnsupportedError(f"storage type number {meta['dtype']} is not covered", where=name, rule="dtype-not-covered")
    shape, strides = sizes_of(meta["sizes"]), sizes_of(meta["strides"])
    (offset,) = sizes_of([meta["storage_offset"]])
    try:
        data = storages.view(path, archive.storage(path), numpy_dtype(dtype), (offset, shape, strides))
    except ValueError as error:
        raise InvalidModelError(str(error), where=name, rule="damaged-tensor") from error
    return StoredTensor(data, dtype, tuple(data.shape))
