"""Variables of a .tflite file, which its subgraphs share; the states that they become, and those that are variables of one operator."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.tflite.schema import decode_text, numbers_of
from qconvert.formats.tflite.tensors import read_tensors
from qconvert.graph import Graph, Names, Op, Tensor, numpy_dtype
from qconvert.graph.metadata import VARIABLES
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import all_graphs
from qconvert.operators.sizes import is_compatible

VARIABLE_OPERATORS = frozenset(("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"))

#: LiteRT knows a variable by this, not by the tensor of a handle (var_handle.cc).
_Key = tuple[str, str]


class _Use(NamedTuple):
    """A READ_VARIABLE, or an ASSIGN_VARIABLE: the variable and what is read from it or put into it."""

    key: _Key
    value: Tensor
    writes: bool


class Variables:
    """What is known of the variables before operators are read, and how far these have come.

    Attributes:
        states: the state that each variable becomes, by its name. Its quantization is that of what is read from it, as kernels look at
            none.
        constant: names of those that nothing changes.
        ready: names of those that hold a value where reading stands.
        handles: the tensors that stand for a variable, and its state.
        initial: the subgraphs that CALL_ONCE names.

    Raises:
        InvalidModelError: types or shapes of one variable contradict each other.
        UnsupportedError: first values that are computed.
    """

    def __init__(self, model: Any, data: mmap.mmap | bytes, named: Callable[[int], Sequence[str]]) -> None:
        self._model, self._data, self._named = model, data, named
        self.states: dict[str, Tensor] = {}
        self.constant: set[str] = set()
        self.ready: set[str] = set()
        self.handles: dict[str, str] = {}
        self.initial: set[int] = set()
        self._names: dict[_Key, str] = {}
        self._first: dict[int, dict[_Key, Tensor]] = {}
        listed = [named(index) for index in range(len(model.subgraphs))]
        if not any(VARIABLE_OPERATORS.intersection(names) for names in listed):
            return
        for index, names in enumerate(listed):
            self.initial.update(self._initial_subgraphs(index, names))
        uses = [use for index in range(len(listed)) if index not in self.initial for use in self._uses(index)]
        self._first = {index: self._first_values(index) for index in sorted(self.initial)}
        self._settle(uses)

    @property
    def renamed_states(self) -> dict[str, list[str]]:
        """Container and shared name of each state whose name here is another one."""
        return {name: [*key] for key, name in self._names.items() if key != ("", name)}

    def declare(self, handle: str, options: Any) -> None:
        """A VAR_HANDLE stands here: the tensor `handle` is the variable that its options name, or one that nothing reads or changes."""
        self.handles[handle] = self._names.get(_key(options), "")

    def initialize(self, subgraph: int) -> None:
        """A CALL_ONCE stands here."""
        self.ready.update(self._names[key] for key in self._first[subgraph] if key in self._names)

    def for_function(self) -> Variables:
        """The same for a subgraph that an operator runs, with handles of its own. What it writes need not be written: it may not run."""
        found = copy(self)
        found.handles, found.ready = {}, set(self.ready)
        return found

    def _initial_subgraphs(self, index: int, names: Sequence[str]) -> Iterator[int]:
        for operation, name in zip(self._model.subgraphs[index].operators, names, strict=True):
            if name == "CALL_ONCE":
                number = int(getattr(operation.builtinOptions, "initSubgraphIndex", 0))
                if not 0 < number < len(self._model.subgraphs) or number == index:
                    raise InvalidModelError(
                        f"it names subgraph {number} of {len(self._model.subgraphs)}",
                        where=f"CALL_ONCE in {index}",
                        rule="unknown-subgraph",
                    )
                yield number

    def _uses(self, index: int) -> Iterator[_Use]:
        """What the operators of a subgraph do with variables, in order."""
        subgraph, draft = self._model.subgraphs[index], Draft()
        tensors = [draft.tensors[name] for name in read_tensors(self._model, self._data, draft, index)]
        handles: dict[int, _Key] = {}
        for operation, name in zip(subgraph.operators, self._named(index), strict=True):
            inputs, outputs = (_numbers(side, len(tensors), name) for side in (operation.inputs, operation.outputs))
            if name == "DEQUANTIZE" and index in self.initial and len(inputs) == len(outputs) == 1:
                tensors[outputs[0]] = _widen_float16(tensors[inputs[0]], tensors[outputs[0]])
            elif name == "VAR_HANDLE" and len(outputs) == 1:
                handles[outputs[0]] = _key(operation.builtinOptions)
            elif name == "READ_VARIABLE" and len(inputs) == len(outputs) == 1 and inputs[0] in handles:
                yield _Use(handles[inputs[0]], tensors[outputs[0]], False)
            elif name == "ASSIGN_VARIABLE" and len(inputs) == 2 and inputs[0] in handles:
                yield _Use(handles[inputs[0]], tensors[inputs[1]], True)

    def _first_values(self, index: int) -> dict[_Key, Tensor]:
        """The constants that a subgraph of CALL_ONCE assigns; those of float16 models come out of a DEQUANTIZE."""
        others = sorted({*self._named(index)} - {"VAR_HANDLE", "ASSIGN_VARIABLE", "DEQUANTIZE"})
        where = f"subgraph {index}, which CALL_ONCE names"
        if others:
            raise UnsupportedError(
                f"it holds {', '.join(others)}; constant initial values of variables are covered",
                where=where,
                rule="initial-value-not-constant",
            )
        found: dict[_Key, Tensor] = {}
        for use in self._uses(index):
            if use.value.data is None:
                raise UnsupportedError(
                    f"it computes {use.value.name!r}, the initial value of the variable {use.key[1]!r}",
                    where=where,
                    rule="initial-value-not-constant",
                )
            if use.key in found:
                raise InvalidModelError(f"it gives the variable {use.key[1]!r} two initial values", where=where, rule="two-initial-values")
            found[use.key] = use.value
        return found

    def _settle(self, uses: Sequence[_Use]) -> None:
        """Makes the states."""
        first = {key: value for values in self._first.values() for key, value in values.items()}
        names, by_key = Names(self.states), dict[_Key, list[_Use]]()
        for use in uses:
            by_key.setdefault(use.key, []).append(use)
        for key, own in by_key.items():
            stated = next((use.value for use in own if not use.writes), own[0].value)
            name = names.fresh("/".join(filter(None, key)) or "variable")
            self._names[key] = name
            if not any(use.writes for use in own):
                self.constant.add(name)
            self.states[name] = _state(name, stated, first.get(key))


def variable_keys(graph: Graph) -> dict[str, tuple[str, str]]:
    """Container and shared name of each state: as the metadata say, as long as no two have the same, or its own name."""
    try:
        stated = json.loads(graph.metadata.get(VARIABLES, "{}"))
    except (ValueError, RecursionError):
        stated = {}
    own = {name: ("", name) for name in graph.states}
    found = dict(own)
    for name in graph.states:
        key = stated.get(name) if isinstance(stated, dict) else None
        if isinstance(key, list) and len(key) == 2 and all(isinstance(word, str) for word in key):
            found[name] = key[0], key[1]
    return found if len({*found.values()}) == len(found) else own


def _key(options: Any) -> _Key:
    """The variable that the options of a VAR_HANDLE name."""
    return decode_text(getattr(options, "container", None)), decode_text(getattr(options, "sharedName", None))


def _widen_float16(narrow: Tensor, wide: Tensor) -> Tensor:
    """The result of a DEQUANTIZE of float16, with its value if that is known."""
    fits = narrow.dtype == "float16" and wide.dtype == "float32" and narrow.shape == wide.shape
    return replace(wide, data=narrow.data.astype(np.float32)) if fits and narrow.data is not None else wide


def _numbers(vector: Any, count: int, name: str) -> list[int]:
    found = numbers_of(vector)
    if any(not 0 <= index < count for index in found) and name in VARIABLE_OPERATORS:
        raise InvalidModelError(f"it names a tensor that is none of {count}", where=name, rule="unknown-tensor")
    return found


def _state(name: str, stated: Tensor, first: Tensor | None) -> Tensor:
    """The state of a variable: with its first value, or, where it has none and is written before it is read, with zeros."""
    where = f"variable {name!r}"
    if first is None:
        return replace(stated, name=name, data=first_value(stated, where))
    if first.dtype != stated.dtype or not is_compatible(first.shape, stated.shape):
        what = f"is {stated.dtype} of shape {stated.shape}, its initial value is {first.dtype} of shape {first.shape}"
        raise InvalidModelError(what, where=where, rule="initial-value-mismatch")
    return replace(first, name=name, quantization=stated.quantization)


def first_value(tensor: Tensor, where: str) -> Any:
    """What LiteRT resets a tensor to: int8 to its zero point, other types to 0 (ResetVariableTensor, core/api/tensor_utils.cc).

    Raises:
        UnsupportedError: its size is dynamic.
    """
    if tensor.static_shape is None:
        raise UnsupportedError("it has a dynamic dimension; a variable has to have a static shape", where=where, rule="dynamic-dimension")
    point = 0 if tensor.quantization is None or tensor.dtype != "int8" else int(tensor.quantization.zero_point.flat[0])
    return np.full(tensor.static_shape, point, numpy_dtype(tensor.dtype))


def inner_states(graph: Graph) -> frozenset[str]:
    """The states that a single operator reads and writes, with the initial value of a runtime's reset (first_value())."""
    if not graph.states:
        return frozenset()
    reads, writes = _uses(graph, "ReadState"), _uses(graph, "WriteState")
    consumers = graph.consumers()
    return frozenset(
        name
        for name in graph.states
        if len(reads.get(name, ())) == len(writes.get(name, ())) == 1
        and _is_inner(graph, consumers, reads[name][0].outputs[0], writes[name][0])
        and np.array_equal(graph.states[name].data, first_value(graph.states[name], name))  # type: ignore[arg-type]
    )


def _uses(graph: Graph, kind: str) -> dict[str, list[Op]]:
    found: dict[str, list[Op]] = {}
    for _, inner in all_graphs(graph):
        for op in inner.of_kind(kind):
            found.setdefault(str(op["state"]), []).append(op)
    return found


def _is_inner(graph: Graph, consumers: dict[str, list[Op]], value: str, write: Op) -> bool:
    """Whether one operator has `value` as its variable, and nobody else sees that or what `write` makes of it."""
    readers = consumers.get(value, [])
    if len(readers) != 1 or value in graph.public:
        return False
    op, after = readers[0], write.inputs[0]
    if kind_of(op).next_state(op, op.inputs.index(value)) != after or after in graph.public:
        return False
    return len(consumers[after]) == 1 and graph[value].shares_quantization(graph[after])
