"""The canonical graph while the reader builds it, and a layer as the functions in ops/ see it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from qconvert.plugin import Array, Names, Op, Quantization, Tensor, UnsupportedError
from qconvert_openvino.constants import Constant, constant_of
from qconvert_openvino.container import Model, Node, Port
from qconvert_openvino.elements import RESULT_DTYPES


class Draft:
    """The graph while it grows.

    Args:
        model: the file.

    Attributes:
        values: (layer, port) -> the tensor of its float values, or of its plain numbers.
        done: ids of layers that another layer's function has read.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.notes = model, model.notes
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        self.readers: dict[tuple[int, int], list[Node]] = {}
        for node in model.nodes:
            for source, port in node.inputs:
                self.readers.setdefault((source.id, port), []).append(node)
        self.names = Names(self.tensors, {name for node in model.nodes for port in node.ports for name in self.port_names(node, port)[:1]})
        self.values: dict[tuple[int, int], str] = {}
        self.done: set[int] = set()
        self._constants: dict[tuple[int, str], str] = {}

    def port_names(self, node: Node, port: int) -> list[str]:
        """Return the names of a result in alphabetical order; the layer's name without any."""
        names = sorted(node.ports[port].names)
        return names or [node.name if len(node.ports) == 1 else f"{node.name}.{[*node.ports].index(port)}"]

    def is_output(self, node: Node, port: int) -> bool:
        return any(reader.type == "Result" for reader in self.readers.get((node.id, port), ()))

    def add(
        self, wanted: str, dtype: str, shape: Any, data: Array | None = None, q: Quantization | None = None, *, own: bool = False
    ) -> str:
        """Add a tensor; return its name: `wanted` if free; only with `own` it may be a name in the file."""
        name = wanted if own and wanted and wanted not in self.tensors else self.names.fresh(wanted)
        self.tensors[name] = Tensor(name, dtype, shape, data, q)
        return name

    def add_port(self, node: Node, port: int) -> str:
        """Add the tensor of a result, with its name in the file."""
        described = node.ports[port]
        if described.type not in RESULT_DTYPES:
            raise UnsupportedError(f"results of the type {described.type!r} are not covered", where=str(node), rule="dtype-not-covered")
        shape = name_dynamic_sizes(f"{node.name}.{port}", described.shape)
        name = self.add(self.port_names(node, port)[0], RESULT_DTYPES[described.type], shape, own=True)
        self.values[node.id, port] = name
        return name

    def constant(self, item: Constant, key: str, data: Array | None = None) -> str:
        """Add a constant: its integers with their quantization and a Dequantize, or its values."""
        item = item.without_unit_scale
        at = id(item.data if data is None else data), f"{item.name}/{key}"
        q = item.quantization
        if q is None:
            return self.add(item.name, item.dtype, item.data.shape, item.data, own=True)
        if at not in self._constants:
            stored = self.add(item.name, item.dtype, item.data.shape, item.data, q, own=True)
            self._constants[at] = self.add(f"{item.name}/real", "float32", item.data.shape)
            self.ops.append(Op("Dequantize", (stored,), (self._constants[at],)))
        return self._constants[at]


class Reading:
    """A layer while it is read.

    Args:
        draft: the graph.
        node: the layer.
    """

    def __init__(self, draft: Draft, node: Node) -> None:
        self.draft, self.node = draft, node

    # inputs

    @property
    def count(self) -> int:
        return len(self.node.inputs)

    def source(self, index: int) -> tuple[Node, int]:
        if index >= self.count:
            raise self.node.invalid(f"input {index} is missing", rule="input-missing")
        return self.node.inputs[index]

    def port(self, index: int) -> Port:
        node, port = self.source(index)
        return node.ports[port]

    def rank(self, index: int = 0) -> int:
        return len(self.port(index).shape)

    def value(self, index: int) -> str:
        """Return the tensor of an input: float values, or plain numbers."""
        node, port = self.source(index)
        if (node.id, port) not in self.draft.values:
            item = constant_of(node)
            if item is None:
                raise self.unsupported_error("reads what was not read")
            self.draft.values[node.id, port] = self.draft.constant(item, "")
        return self.draft.values[node.id, port]

    def constant(self, index: int) -> Constant | None:
        return constant_of(self.source(index)[0])

    def numbers(self, index: int, what: str) -> list[int]:
        """Return a constant input of integers.

        Raises:
            UnsupportedError: it is computed when the model runs.
        """
        data = self.data(index)
        if data is None:
            raise self.unsupported_error(f"with {what} that are computed when the model runs", rule="not-constant")
        return [int(value) for value in data.reshape(-1)]

    def single(self, index: int, what: str) -> int:
        """Return a constant input of one integer. Raise InvalidModelError for several or none."""
        found = self.numbers(index, what)
        if len(found) != 1:
            raise self.node.invalid(f"input {index} has {len(found)} integers, not 1", rule="counts-differ")
        return found[0]

    def data(self, index: int) -> Array | None:
        """Return the values of a constant input without scales, or None."""
        item = self.constant(index)
        item = None if item is None else item.without_unit_scale
        return None if item is None or item.scale is not None else item.data

    def axes(self, index: int, rank: int) -> list[int]:
        """Return constant axes, nonnegative."""
        found = [axis + rank if axis < 0 else axis for axis in self.numbers(index, "axes")]
        if any(not 0 <= axis < rank for axis in found) or len(set(found)) != len(found):
            raise self.node.invalid(f"the axes are {found} of {rank}", rule="axis-out-of-range")
        return found

    def axis(self, index: int, rank: int) -> int:
        """Return a constant axis, nonnegative."""
        self.single(index, "axes")
        return self.axes(index, rank)[0]

    def index(self, values: Iterable[int]) -> str:
        """Add a constant of int64."""
        data = np.array(list(values), np.int64)
        return self.draft.add(f"{self.node.name}/index", "int64", data.shape, data)

    def int64(self, index: int) -> str:
        """Return an integer input as int64, with a Cast from other types."""
        data = self.data(index)
        if data is not None:
            return self.draft.add(f"{self.node.name}/index", "int64", data.shape, data.astype(np.int64))
        name = self.value(index)
        tensor = self.draft.tensors[name]
        if tensor.dtype == "int64":
            return name
        wide = self.draft.add(f"{name}/int64", "int64", tensor.shape)
        self.draft.ops.append(Op("Cast", (name,), (wide,), {"to": "int64"}))
        return wide

    # attributes

    def text(self, name: str, default: str | None = None) -> str:
        found = self.node.attributes.get(name, default)
        if found is None:
            raise self.node.invalid(f"the attribute {name!r} is missing", rule="missing-member")
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        return self.text(name, str(default)).lower() in ("true", "1")

    def integer(self, name: str, default: str | None = None) -> int:
        found = self.integers(name, default)
        if len(found) != 1:
            raise self.node.invalid(f"the attribute {name!r} has {len(found)} integers, not 1", rule="counts-differ")
        return found[0]

    def integers(self, name: str, default: str | None = None) -> list[int]:
        parts = [part.strip() for part in self.text(name, default).split(",") if part.strip()]
        if any(not re.fullmatch(r"-?[0-9]{1,9}", part) for part in parts):
            raise self.node.invalid(f"the attribute {name!r} is {self.text(name, default)[:40]!r}", rule="unknown-word")
        return [int(part) for part in parts]

    def number(self, name: str, default: str | None = None) -> float:
        try:
            return float(self.text(name, default))
        except ValueError as error:
            raise self.node.invalid(f"the attribute {name!r} is not a number", rule="not-a-number") from error

    def choice(self, name: str, known: Mapping[str, str], default: str | None = None) -> str:
        """Return the canonical word for an attribute with a few possible words."""
        found = self.text(name, default)
        if found not in known:
            raise self.unsupported_error(f"with {name} {found!r}")
        return known[found]

    # results

    @property
    def result(self) -> Port:
        """The first result."""
        return next(iter(self.node.ports.values()))

    def sole_reader(self) -> Node | None:
        """Return the only layer that reads the result, None if there are several or the result is an output."""
        readers = self.draft.readers.get((self.node.id, next(iter(self.node.ports))), [])
        return readers[0] if len(readers) == 1 and readers[0].type != "Result" else None

    def emit(self, kind: str, inputs: Iterable[str], **attributes: Any) -> tuple[str, ...]:
        """Add the operator of the layer's results."""
        outputs = tuple(self.draft.add_port(self.node, port) for port in self.node.ports)
        self.draft.ops.append(Op(kind, tuple(inputs), outputs, attributes, str(self.node)))
        return outputs

    def step(self, kind: str, inputs: Iterable[str], shape: Any, dtype: str = "float32", **attributes: Any) -> str:
        """Add an intermediate operator; return its result."""
        name = self.draft.add(f"{self.node.name}/{kind.lower()}", dtype, shape)
        self.draft.ops.append(Op(kind, tuple(inputs), (name,), attributes, str(self.node)))
        return name

    def unsupported_error(self, what: str, *, rule: str = "variant-not-covered") -> UnsupportedError:
        return UnsupportedError(f"{self.node.type} {what} is not covered", where=str(self.node), rule=rule)


def name_dynamic_sizes(name: str, shape: Iterable[int]) -> tuple[int | str, ...]:
    """Return a shape in which each dynamic dimension has a distinct name."""
    return tuple(size if size >= 0 else f"{name}.{axis}" for axis, size in enumerate(shape))
