"""Runs an .onnx model in onnxruntime's CPU execution provider."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from qconvert.errors import QConvertError, RuntimeRefusedError
from qconvert.files import map_file
from qconvert.graph import Array
from qconvert.plugins import ModelFile
from qconvert.runtimes.few_bits import NO_BYTES, Bytes, with_bytes
from qconvert.runtimes.onnx_states import TYPES, CarriedStates, states_of
from qconvert.runtimes.packages import runtime_package
from qconvert.runtimes.qonnx import without_qonnx
from qconvert.runtimes.saturation import NOTE, cpu_saturates, with_unsigned_weights

__all__ = ["OnnxRuntime", "describe_values", "open_model"]


class OnnxRuntime:
    """An .onnx model loaded in onnxruntime.

    Args:
        model: the file's content, or the file, which may have external data.
        threads: number of threads; 0 for onnxruntime's default.
        optimize: whether the graph is optimized (all levels) or left as it is.
        save_optimized: where to write the graph after optimizing.
        settings: further entries of the session's configuration, by onnxruntime's names.
        exact: whether signed weights are stored as unsigned ones where kernels would saturate with them on this CPU (saturation.py);
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

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs once, the next step if the model has states. Inputs and outputs are stored values by name."""
        feeds = self.bytes.pack_inputs({name: np.asarray(value, order="C") for name, value in inputs.items()})
        try:
            found = self.session.run(None, feeds) if self._carried is None else self._carried.run(feeds)
            return {name: self.bytes.unpack_output(name, value) for name, value in zip(self.outputs, found, strict=True)}
        except QConvertError:
            raise
        except Exception as error:  # as above
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
    return runtime_package("onnxruntime", "check", "runs .onnx models")


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
        if file.kernels == "optimized":
            error.remedy = "If onnxruntime's optimizer is at fault, --kernels onnxruntime:unoptimized runs the graph as it stands."
        raise
