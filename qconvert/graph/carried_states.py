"""States as inputs and outputs of a network, for formats that have no variables, and what the metadata say of them (STATES)."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic.storage import DTYPES, Array, Quantization, numpy_dtype, read_only
from qconvert.errors import InvalidModelError
from qconvert.graph.metadata import STATES
from qconvert.graph.schema import Tensor

#: A first value that is stated as one number has no more elements than this.
_MOST_FILLED = 2**24


class Carried(NamedTuple):
    """A state that whoever runs the network carries from one run to the next.

    Attributes:
        input: that takes its value.
        output: that gives its next value.
        state: its name, type, shape, quantization and first value.
    """

    input: str
    output: str
    state: Tensor

    @property
    def first(self) -> Array:
        """What the input takes in the first run, and after a reset."""
        assert self.state.data is not None
        return self.state.data


def carried_text(states: Iterable[Carried]) -> str:
    """The entry of the metadata."""
    return json.dumps([_document(item) for item in states])


def _document(item: Carried) -> dict[str, Any]:
    state, first = item.state, item.first
    found: dict[str, Any] = {"state": state.name, "input": item.input, "output": item.output, "dtype": state.dtype}
    found["shape"] = list(first.shape)
    one = first.reshape(-1)[:1]
    uniform = one.size and (first == one).all() and math.isfinite(float(one[0])) and np.dtype(first.dtype).kind in "biuf"
    if uniform and not (first.dtype.kind == "f" and not float(one[0]) and np.signbit(first).any()):
        found["value"] = one[0].item()
    else:
        found["data"] = base64.b64encode(np.ascontiguousarray(first).tobytes()).decode("ascii")
    quantization = state.quantization
    if quantization is not None and not quantization.block_size:
        found |= {"scale": quantization.scale.tolist(), "zero_point": quantization.zero_point.tolist(), "axis": quantization.axis}
    return found


def parse_states(text: str) -> tuple[Carried, ...]:
    """What an entry of the metadata says.

    Raises:
        InvalidModelError: it is no list of states, or one that contradicts itself.
    """
    try:
        listed = json.loads(text)
        if not isinstance(listed, list):
            raise TypeError("no list")
        found = tuple(map(_parse_state, listed))
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise InvalidModelError(f"the metadata entry {STATES} is not a list of states: {error}", rule="malformed-metadata") from error
    for what, names in (("state", [item.state.name for item in found]), ("input", [item.input for item in found]),
                        ("output", [item.output for item in found])):  # fmt: skip
        if len({*names}) != len(names):
            raise InvalidModelError(f"the metadata entry {STATES} names the same {what} twice", rule="malformed-metadata")
    return found


def parse_network_states(text: str | None, inputs: Container[str], outputs: Container[str]) -> tuple[Carried, ...]:
    """What an entry of the metadata says of a network's inputs and outputs; () without an entry.

    Raises:
        InvalidModelError: it is no list of states, or names what the network does not have.
    """
    found = parse_states(text) if text else ()
    for item in found:
        if item.input not in inputs or item.output not in outputs:
            raise InvalidModelError(
                f"the metadata entry {STATES} names {item.input!r} and {item.output!r}, which the model does not have",
                rule="unknown-tensor",
            )
    return found


class StatefulModel:
    """A loaded network whose states are inputs and outputs, for a runtime that has no others: it carries them from one run to the next.

    A runtime derives its class from this one, and says in compute() how the network runs.

    Args:
        text: the metadata entry that names the states, or None.
        inputs, outputs: name -> (dtype, shape) of all, in order.

    Attributes:
        inputs, outputs: those of them that are no states.
        network_inputs, network_outputs: all of them.

    Raises:
        InvalidModelError: the entry is no list of states, or names what the network does not have.
    """

    def __init__(
        self, text: str | None, inputs: Mapping[str, tuple[str, tuple[Any, ...]]], outputs: Mapping[str, tuple[str, tuple[Any, ...]]]
    ) -> None:
        self._states = parse_network_states(text, inputs, outputs)
        taken, given = {item.input for item in self._states}, {item.output for item in self._states}
        self.network_inputs, self.network_outputs = inputs, outputs
        self.inputs = {name: known for name, known in inputs.items() if name not in taken}
        self.outputs = {name: known for name, known in outputs.items() if name not in given}
        self.reset()

    def reset(self) -> None:
        """The next run is the first of a sequence: states have their first values."""
        self._values: dict[str, Array] = {item.input: item.first for item in self._states}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once. Inputs and outputs are stored values by name."""
        results = self.compute({**inputs, **self._values})
        self._values = {item.input: results[item.output] for item in self._states}
        return {name: results[name] for name in self.outputs}

    def compute(self, values: Mapping[str, Array]) -> Mapping[str, Array]:
        """Compute all outputs of the network, stored values by name, from all its inputs."""
        raise NotImplementedError


def _parse_state(item: Any) -> Carried:
    name, given, wanted, dtype = (item[key] for key in ("state", "input", "output", "dtype"))
    if not all(isinstance(text, str) and text for text in (name, given, wanted)) or dtype not in DTYPES or dtype == "string":
        raise ValueError(f"{dtype!r} is not a type, or a name is empty")
    shape = tuple(item["shape"])
    if not all(type(size) is int and 0 <= size < 2**31 for size in shape) or len(shape) > 64:
        raise ValueError(f"{str(shape)[:80]} is not a shape")
    count, kind = math.prod(shape), numpy_dtype(dtype)
    if "data" in item:
        raw = base64.b64decode(item["data"], validate=True)
        if len(raw) != count * kind.itemsize:
            raise ValueError(f"{len(raw)} bytes for {name!r} of {dtype} and shape {shape}")
        data = np.frombuffer(raw, kind).reshape(shape)
    else:
        if count > _MOST_FILLED:
            raise ValueError(f"{name!r} has {count} elements, more than {_MOST_FILLED}, and its value as one number")
        data = np.full(shape, _number(item["value"], kind), kind)
    return Carried(given, wanted, Tensor(name, dtype, shape, read_only(data), _quantization(item)))


def _number(value: Any, dtype: np.dtype[Any]) -> Any:
    """A number that the type holds."""
    if not isinstance(value, bool | int | float) or (
        dtype.kind in "iu" and (isinstance(value, float) or np.array(value).astype(dtype) != value)
    ):
        raise ValueError(f"{value!r} is no {dtype}")
    return value


def _quantization(item: Any) -> Quantization | None:
    if item.get("scale") is None:
        return None
    scale, point = np.array(item["scale"], np.float32).reshape(-1), np.array(item["zero_point"], np.int64).reshape(-1)
    if not (np.isfinite(scale) & (scale > 0)).all() or scale.shape != point.shape or not scale.size:
        raise ValueError("a scale is zero, negative or not finite")
    axis = item.get("axis")
    return Quantization.per_tensor(float(scale[0]), int(point[0])) if axis is None else Quantization.per_axis(scale, int(axis), point)
