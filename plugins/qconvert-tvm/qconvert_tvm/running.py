"""An .onnx file in TVM: imported by the Relax frontend, compiled for the CPU, run by Relax's virtual machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import (
    STATES,
    Array,
    Graph,
    InvalidModelError,
    ModelFile,
    Op,
    RuntimeRefusedError,
    StatefulModel,
    partial_sums,
    runtime_package,
)

_LINES = 3  # of an error message of TVM that are shown
#: A few roundings of float32 as a share of the value, and the least of any operator, in steps.
_FEW, _LEAST = 32 * 2.0**-24, 1e-3
#: Curves and normalizations, whose approximations TVM and LLVM choose.
_CURVE = 0.01
_CURVES = frozenset(("Softmax", "LogSoftmax", "Sigmoid", "Tanh", "Gelu", "Erf", "Exp", "Log", "Pow", "Silu", "LayerNormalization"))


class TvmModel(StatefulModel):
    """A model that TVM has compiled.

    Attributes:
        inputs: name -> (dtype, shape), in order; a dynamic dimension is a text. States are left out.
        outputs: likewise.
        note: the version of TVM, and the CPU.

    Raises:
        MissingPackageError: TVM is not installed.
        InvalidModelError: the file is no ONNX model.
        RuntimeRefusedError: TVM's importer or compiler does not take the model.
    """

    def __init__(self, file: ModelFile) -> None:
        tvm = runtime_package("tvm", "apache-tvm>=0.27,<0.28", "runs the model")
        model = _load_proto(file.path)
        given = {item.name for item in model.graph.initializer}
        own = [item for item in model.graph.input if item.name not in given]
        sides = ({item.name: _describe_value(item) for item in side} for side in (own, model.graph.output))
        states = next((entry.value for entry in model.metadata_props if entry.key == STATES), None)
        super().__init__(states, *sides)
        self._machine = _compile_model(model, str(file.path), file.threads)
        self._tensor, self._device = tvm.runtime.tensor, tvm.cpu()
        machine = tvm.target.Target("llvm").attrs.get("mtriple", "this machine's CPU")
        self.note = f"TVM {tvm.__version__} compiled it for {machine}; its layers compute in float between quantize and dequantize"

    def compute(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs, stored values by name."""
        try:
            fed = [np.array(values[name], dtype, order="C") for name, (dtype, _) in self.network_inputs.items()]
            found = self._machine["main"](*(self._tensor(value, self._device) for value in fed))
            arrays = [found.numpy()] if hasattr(found, "numpy") else [item.numpy() for item in found]
        except Exception as error:  # errors of TVM share no base class but Exception
            raise RuntimeRefusedError(f"TVM failed while running the model: {_shorten_error(error)}", rule="run-failed") from error
        return dict(zip(self.network_outputs, arrays, strict=True))


def _load_proto(path: Path) -> Any:
    """Load the onnx.ModelProto of a file, with external constants."""
    import onnx

    try:
        return onnx.load(str(path))
    except Exception as error:  # of protobuf, of onnx's own, of the file system
        raise InvalidModelError(f"cannot be read as ONNX: {_shorten_error(error)}", file=str(path), rule="malformed-model") from error


def _describe_value(item: Any) -> tuple[str, tuple[Any, ...]]:
    from onnx import helper

    kind = item.type.tensor_type
    try:
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    except (KeyError, ValueError) as error:
        raise RuntimeRefusedError(
            f"{item.name!r} is not a tensor; TVM requires tensors", remedy="Check it in onnxruntime.", rule="not-a-tensor"
        ) from error
    return dtype, tuple(size.dim_value if size.HasField("dim_value") else size.dim_param or "?" for size in kind.shape.dim)


def _compile_model(model: Any, path: str, threads: int) -> Any:
    """Compile a model for Relax's virtual machine. Raise RuntimeRefusedError with the operators that the importer lacks."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    try:
        module = from_onnx(model, keep_params_in_input=False)
    except Exception as error:  # OpNotImplemented for unknown operators; any exception for unsupported attributes
        remedy = "Check it in another runtime, such as --kernels onnxruntime."
        raise RuntimeRefusedError(
            f"TVM cannot import the model: {_shorten_error(error)}", file=path, remedy=remedy, rule="runtime-refused-model"
        ) from error
    try:
        if threads:
            tvm.get_global_func("runtime.config_threadpool")(1, threads)
        with tvm.transform.PassContext(opt_level=3):
            return relax.VirtualMachine(tvm.compile(module, target=tvm.target.Target("llvm")), tvm.cpu())
    except Exception as error:
        raise RuntimeRefusedError(
            f"TVM cannot compile the model: {_shorten_error(error)}", file=path, rule="runtime-refused-model"
        ) from error


def _shorten_error(error: Exception) -> str:
    """Return TVM's message without its stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("File ", "Traceback", "^", "[bt]"))][:_LINES]
    return f"{type(error).__name__}: {' '.join(told)}" if told else type(error).__name__


def tolerance(graph: Graph, op: Op, exact: Array) -> tuple[Array, bool]:
    """See qconvert.plugin.Kernel: float32 between dequantize and quantize, with sums in the order of the loops."""
    found = np.maximum(_LEAST, np.abs(exact) * _FEW)
    if op.kind in _CURVES:
        return np.maximum(found, _CURVE), False
    return found + 2 * partial_sums(graph, op, exact, least=255.0), False
