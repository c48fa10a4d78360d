"""States that an .onnx model has as inputs and outputs, carried from one run to the next in two sets of buffers, so that none is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.errors import RuntimeRefusedError
from qconvert.graph import Array
from qconvert.graph.carried_states import Carried, parse_network_states
from qconvert.graph.metadata import STATES

__all__ = ["TYPES", "CarriedStates", "states_of"]

#: onnxruntime's names of types -> numpy's.
TYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16", "tensor(bool)": "bool",
    **{f"tensor({name})": name for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")},
}  # fmt: skip


def states_of(session: Any) -> tuple[Carried, ...]:
    """Return the states that the metadata of a loaded model list.

    Raises:
        InvalidModelError: they name no inputs and outputs of it.
    """
    inputs, outputs = ({item.name for item in side} for side in (session.get_inputs(), session.get_outputs()))
    return parse_network_states(session.get_modelmeta().custom_metadata_map.get(STATES), inputs, outputs)


class CarriedStates:
    """Runs a session of onnxruntime that has states. Values of known size are bound once, since binding costs as much as a small network.

    Args:
        session: the session.
        states: see states_of().
        outputs: names of the outputs that are no states.
    """

    def __init__(self, session: Any, states: Sequence[Carried], outputs: Sequence[str]) -> None:
        from onnxruntime import OrtValue

        self._session, self._states, self._side = session, states, 0
        buffers = [{item.input: OrtValue.ortvalue_from_numpy(_copy_contiguous(item.first)) for item in states} for _ in range(2)]
        self._buffers, self._bindings = buffers, [session.io_binding() for _ in range(2)]
        known = {item.name: item for item in (*session.get_inputs(), *session.get_outputs()) if _has_size(item)}
        given = {item.name for item in session.get_inputs()} - {item.input for item in states}
        self._fixed = {name: _empty(known[name]) for name in (*given, *outputs) if name in known}
        self._takes = {name: (np.dtype(TYPES[known[name].type]), tuple(known[name].shape)) for name in given & known.keys()}
        self._outputs = {name: position for position, name in enumerate(outputs)}
        for side, binding in enumerate(self._bindings):
            for name in outputs:
                binding.bind_ortvalue_output(name, self._fixed[name]) if name in known else binding.bind_output(name)
            for name in given & known.keys():
                binding.bind_ortvalue_input(name, self._fixed[name])
            for item in states:
                binding.bind_ortvalue_input(item.input, buffers[side][item.input])
                binding.bind_ortvalue_output(item.output, buffers[1 - side][item.input])

    def reset(self) -> None:
        """The next run is the first of a sequence."""
        self._side = 0
        for item in self._states:
            self._buffers[0][item.input].update_inplace(_copy_contiguous(item.first))

    def values(self) -> dict[str, Array]:
        """What the inputs of states hold now."""
        return {name: np.array(value.numpy()) for name, value in self._buffers[self._side].items()}

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Run one step: stored values of the inputs that are no states -> values of the outputs."""
        binding = self._bindings[self._side]
        for name, value in feeds.items():
            if name not in self._fixed:
                binding.bind_cpu_input(name, value)
            elif self._takes[name] != (value.dtype, value.shape):
                dtype, shape = self._takes[name]
                raise RuntimeRefusedError(
                    f"the input {name!r} is {dtype} of shape {shape}, not {value.dtype} of shape {value.shape}", rule="input-mismatch"
                )
            else:
                self._fixed[name].update_inplace(value)
        for name in self._outputs.keys() - self._fixed.keys():
            binding.bind_output(name)  # again, or the last run's memory is taken
        self._session.run_with_iobinding(binding)
        self._side = 1 - self._side
        return [np.array(self._result(binding, name).numpy()) for name in self._outputs]

    def _result(self, binding: Any, name: str) -> Any:
        return self._fixed[name] if name in self._fixed else binding.get_outputs()[self._outputs[name]]


def _has_size(item: Any) -> bool:
    return item.type in TYPES and all(isinstance(size, int) for size in item.shape)


def _empty(item: Any) -> Any:
    from onnxruntime import OrtValue

    return OrtValue.ortvalue_from_shape_and_type(item.shape, np.dtype(TYPES[item.type]))


def _copy_contiguous(value: Array) -> Array:
    return np.array(value, order="C")
