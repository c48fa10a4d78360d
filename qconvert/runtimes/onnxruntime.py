"""Runs an .onnx model in onnxruntime's CPU execution provider: inputs and outputs of 2 and 4 bits as bytes, since its Python interface has
no arrays of these types, and states carried from one run to the next in two sets of buffers, so that none is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from qconvert.errors import QConvertError, RuntimeRefusedError
from qconvert.files import map_file
from qconvert.graph import Array, Arrays, numpy_dtype
from qconvert.graph.carried_states import Carried, parse_network_states
from qconvert.graph.metadata import STATES
from qconvert.plugins import ModelFile
from qconvert.runtimes.onnx_rewrites import NOTE, cpu_saturates, with_unsigned_weights, without_qonnx
from qconvert.runtimes.packages import runtime_package

#: onnxruntime's names of types -> the canonical type, and the bytes that hold it.
FEW_BITS = {f"tensor({name})": (name, "uint8" if name.startswith("u") else "int8") for name in ("int4", "uint4", "int2", "uint2")}
#: The opset from which on Cast knows them; before it they stand next to onnxruntime's own conversions.
_OPSET, _CONTRIB = 21, "com.microsoft"
_SUFFIX = "/qconvert_bytes"
#: What onnxruntime says of an operator that it does not have, optimized or not.
_UNREGISTERED = "is not a registered function/op"


class Bytes:
    """The inputs and outputs of 2 and 4 bits, which are bytes in the copy.

    Args:
        types: name in the model -> canonical type.
        held: the type of all of them in the copy; "" for the bytes of each.
    """

    def __init__(self, types: Mapping[str, str], held: str = "") -> None:
        self.types, self._held = types, held

    def name_in_copy(self, name: str) -> str:
        """Return the name in the copy of an input or output of the model."""
        return name + _SUFFIX if name in self.types else name

    def name_in_model(self, name: str) -> str:
        """Return the name in the model of an input or output of the copy."""
        plain = name.removesuffix(_SUFFIX)
        return plain if plain in self.types else name

    def pack_inputs(self, inputs: Arrays) -> dict[str, Array]:
        """Return the inputs of the copy for inputs of the model."""
        return {
            self.name_in_copy(name): value.astype(self._held or _byte_type(self.types[name])) if name in self.types else value
            for name, value in inputs.items()
        }

    def unpack_output(self, name: str, value: Array) -> Array:
        """Return an output of the model for the value that the copy computed."""
        return value.astype(numpy_dtype(self.types[name])) if name in self.types else value


NO_BYTES = Bytes(MappingProxyType({}))


def with_bytes(model: bytes | Path, inputs: Iterable[Any], outputs: Iterable[Any]) -> tuple[bytes, Bytes] | None:
    """Return the copy; None for a model without such inputs and outputs, or without an operator that converts them to bytes.

    Args:
        model: the file's content, or the file.
        inputs, outputs: what onnxruntime says of them.
    """
    types = {item.name: FEW_BITS[item.type][0] for item in (*inputs, *outputs) if item.type in FEW_BITS}
    if not types:
        return None
    from onnx import ModelProto, TensorProto

    from qconvert.formats.onnx.container import load_proto

    proto = load_proto(model) if isinstance(model, Path) else ModelProto.FromString(bytes(model))
    casts = any(item.domain in ("", "ai.onnx") and item.version >= _OPSET for item in proto.opset_import)
    if not casts and not any(item.domain == _CONTRIB for item in proto.opset_import):
        return None
    graph, before, following = proto.graph, list[Any](), list[Any]()
    for value in graph.input:
        if value.name in types:
            before.append(_make_conversion_node(proto, "QuantizeLinear", value.name + _SUFFIX, value.name, types[value.name], casts))
            value.type.tensor_type.elem_type = _element_type(_byte_type(types[value.name]) if casts else "float")
            value.name += _SUFFIX
    taken = {value.name for value in graph.input}
    for value in graph.output:
        if value.name in types:
            if value.name + _SUFFIX not in taken:
                following.append(
                    _make_conversion_node(proto, "DequantizeLinear", value.name, value.name + _SUFFIX, types[value.name], casts)
                )
            elem: Any = value.type.tensor_type
            if elem.elem_type != TensorProto.UNDEFINED:
                elem.elem_type = _element_type(_byte_type(types[value.name]) if casts else "float")
            value.name += _SUFFIX
    nodes = [*before, *graph.node, *following]
    del graph.node[:]
    graph.node.extend(nodes)
    return proto.SerializeToString(), Bytes(types, "" if casts else "float32")


def _make_conversion_node(proto: Any, op_type: str, data: str, result: str, dtype: str, casts: bool) -> Any:
    """Return the node between few bits and bytes: Cast, or onnxruntime's own conversion to float32 with a scale of 1."""
    from onnx import helper

    if casts:
        return helper.make_node("Cast", [data], [result], to=_element_type(dtype if op_type == "QuantizeLinear" else _byte_type(dtype)))
    scale, zero_point = f"{result}/scale", f"{result}/zero_point"
    proto.graph.initializer.extend([
        helper.make_tensor(scale, _element_type("float"), [], [1.0]),
        helper.make_tensor(zero_point, _element_type(dtype), [], [0]),
    ])  # fmt: skip
    return helper.make_node(op_type, [data, scale, zero_point], [result], domain=_CONTRIB)


def _byte_type(dtype: str) -> str:
    return FEW_BITS[f"tensor({dtype})"][1]


def _element_type(dtype: str) -> int:
    from onnx import TensorProto

    return int(getattr(TensorProto, dtype.upper()))


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
        items = (*session.get_inputs(), *session.get_outputs())
        known = {item.name: item for item in items if item.type in TYPES and all(isinstance(size, int) for size in item.shape)}
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

    def run(self, feeds: Arrays) -> list[Array]:
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


def _empty(item: Any) -> Any:
    from onnxruntime import OrtValue

    return OrtValue.ortvalue_from_shape_and_type(item.shape, np.dtype(TYPES[item.type]))


def _copy_contiguous(value: Array) -> Array:
    return np.array(value, order="C")


class OnnxRuntime:
    """An .onnx model loaded in onnxruntime.

    Args:
        model: the file's content, or the file, which may have external data.
        threads: number of threads; 0 for onnxruntime's default.
        optimize: whether the graph is optimized (all levels) or left as it is.
        save_optimized: where to write the graph after optimizing.
        settings: further entries of the session's configuration, by onnxruntime's names.
        exact: whether signed weights are stored as unsigned ones where kernels would saturate with them on this CPU (onnx_rewrites.py);
            without, the model runs as it does elsewhere.
        without: names of optimizers that are left out.
        keep_memory: whether the session keeps, for its next run, what it allocated; without, a run is hardly slower.

    Attributes:
        inputs: name -> (dtype, shape), in order; a dynamic dimension is a string or None. States are left out.
        outputs: likewise.
        session: onnxruntime's own object.
        note: what a user should know of how it runs; "" if there is nothing.
        bytes: the inputs and outputs of 2 and 4 bits, which `session` takes and gives as bytes.

    Raises:
        MissingPackageError: onnxruntime is not installed.
        RuntimeRefusedError: onnxruntime does not take the model.
    """

    def __init__(
        self,
        model: bytes | Path,
        threads: int = 1,
        optimize: bool = True,
        save_optimized: Path | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        exact: bool = True,
        without: Sequence[str] = (),
        keep_memory: bool = True,
    ) -> None:
        if not isinstance(model, Path):
            model = without_qonnx(model)
        changed = with_unsigned_weights(model, optimize) if exact and cpu_saturates() else None
        self.note = NOTE if changed is not None else ""
        self.session = _session(changed or model, _options(threads, optimize, save_optimized, settings, keep_memory), without)
        self.bytes = NO_BYTES
        copy = with_bytes(changed or model, self.session.get_inputs(), self.session.get_outputs())
        if copy is not None:
            self.session, self.bytes = (
                _session(copy[0], _options(threads, optimize, save_optimized, settings, keep_memory), without),
                copy[1],
            )
        states = states_of(self.session)
        self.inputs = describe_values(self.session.get_inputs(), {item.input for item in states}, self.bytes)
        self.outputs = describe_values(self.session.get_outputs(), {item.output for item in states}, self.bytes)
        self._carried = CarriedStates(self.session, states, [*self.outputs]) if states else None

    @property
    def states(self) -> dict[str, Array]:
        """What the inputs of states hold now."""
        return {} if self._carried is None else self._carried.values()

    def reset(self) -> None:
        """The next run is the first of a sequence: states have their first values."""
        if self._carried is not None:
            self._carried.reset()

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Runs once, the next step if the model has states. Inputs and outputs are stored values by name."""
        feeds = self.bytes.pack_inputs({name: np.asarray(value, order="C") for name, value in inputs.items()})
        with describe_failures():
            found = self.session.run(None, feeds) if self._carried is None else self._carried.run(feeds)
            return {name: self.bytes.unpack_output(name, value) for name, value in zip(self.outputs, found, strict=True)}

    def bind(self, inputs: Arrays) -> partial[Any]:
        """Return what runs the model on these values without copies of inputs and outputs; the next step, with copies, if it has states."""
        feeds = self.bytes.pack_inputs({name: np.asarray(value, order="C") for name, value in inputs.items()})
        if self._carried is not None:
            return partial(self._carried.run, feeds)
        binding = self.session.io_binding()
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        for item in self.session.get_outputs():
            binding.bind_output(item.name)
        return partial(self.session.run_with_iobinding, binding)


@contextmanager
def describe_failures() -> Iterator[None]:
    """Raise RuntimeRefusedError where onnxruntime fails in the block."""
    try:
        yield
    except QConvertError:
        raise
    except Exception as error:  # onnxruntime's errors share no base class but Exception
        raise RuntimeRefusedError(f"onnxruntime failed while running the model: {str(error).strip()}", rule="run-failed") from error


def describe_values(items: Sequence[Any], states: Collection[str] = (), few: Bytes = NO_BYTES) -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Return types and shapes of inputs or outputs without states. An output that is listed twice has a second name there.

    Args:
        items: what onnxruntime says of them.
        states: names that are left out.
        few: which of them a copy takes and gives as bytes.
    """
    found: dict[str, tuple[str, tuple[Any, ...]]] = {}
    for item in items:
        name = few.name_in_model(item.name)
        while name in found:
            name = f"{name}_1"
        if item.name not in states:
            found[name] = (few.types.get(name) or TYPES.get(item.type, item.type), tuple(item.shape))
    return found


def _package() -> Any:
    return runtime_package("onnxruntime", "qconvert[check]", "runs .onnx models")


def _options(threads: int, optimize: bool, save_optimized: Path | None, settings: Mapping[str, str], keep_memory: bool) -> Any:
    """onnxruntime's SessionOptions."""
    onnxruntime = _package()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = keep_memory
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    for name, value in settings.items():
        options.add_session_config_entry(name, value)
    if save_optimized is not None:
        options.optimized_model_filepath = str(save_optimized)
    return options


def _session(model: bytes | Path, options: Any, without: Sequence[str] = ()) -> Any:
    """An InferenceSession on the CPU; raises RuntimeRefusedError."""
    onnxruntime = _package()
    given = str(model) if isinstance(model, Path) else bytes(model)
    try:
        left_out = {"disabled_optimizers": list(without)} if without else {}
        return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"], **left_out)
    except Exception as error:  # onnxruntime's errors share no base class but Exception
        raise RuntimeRefusedError(f"onnxruntime does not take the model: {str(error).strip()}", rule="model-refused") from error


def open_model(file: ModelFile) -> OnnxRuntime:
    """See plugins.Runtime; the kernels are "optimized", or "unoptimized": every node as it stands."""
    from qconvert.formats.onnx.container import external_files

    try:
        model = file.path if external_files(file.path) else bytes(map_file(file.path))
        return OnnxRuntime(model, file.threads, optimize=file.kernels == "optimized")
    except RuntimeRefusedError as error:
        error.file = error.file or str(file.path)
        if file.kernels == "optimized" and _UNREGISTERED not in error.reason:
            error.remedy = "If onnxruntime's optimizer is at fault, --kernels onnxruntime:unoptimized runs the graph as it stands."
        raise
