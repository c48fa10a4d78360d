"""An .onnx file in TVM, in a process of its own: imported by the Relax frontend, compiled for the CPU, run by Relax's virtual machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import (
    STATES,
    Array,
    Child,
    Graph,
    InvalidModelError,
    ModelFile,
    Op,
    RuntimeRefusedError,
    StatefulModel,
    partial_sums,
    require_package,
)

_PATIENCE = 600.0
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
        require_package("tvm", "apache-tvm>=0.27,<0.28", "runs the model")
        model = _load_proto(file.path)
        given = {item.name for item in model.graph.initializer}
        own = [item for item in model.graph.input if item.name not in given]
        sides = ({item.name: _describe_value(item) for item in side} for side in (own, model.graph.output))
        states = next((entry.value for entry in model.metadata_props if entry.key == STATES), None)
        super().__init__(states, *sides)
        self._child = Child(Path(__file__).parent / "child.py", "TVM", _PATIENCE)
        try:
            found = self._child.request({"load": [str(file.path), file.threads]})
        except RuntimeRefusedError as error:
            error.file, error.remedy = str(file.path), "Check it in another runtime, such as --kernels onnxruntime."
            raise
        version, machine = (str(found.get(key))[:60] for key in ("version", "machine"))
        self.note = f"TVM {version} compiled it for {machine}; its layers compute in float between quantize and dequantize"

    def compute(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs, stored values by name."""
        given = [np.array(values[name], dtype, order="C") for name, (dtype, _) in self.network_inputs.items()]
        return self._child.run(given, self.network_outputs)


def _load_proto(path: Path) -> Any:
    """Load the onnx.ModelProto of a file, without external constants."""
    import onnx

    try:
        return onnx.load(str(path), load_external_data=False)
    except Exception as error:  # of protobuf, of onnx's own, of the file system
        raise InvalidModelError(f"cannot be read as ONNX: {str(error)[:200]}", file=str(path), rule="malformed-model") from error


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


def tolerance(graph: Graph, op: Op, exact: Array) -> tuple[Array, bool]:
    """See qconvert.plugin.Kernel: float32 between dequantize and quantize, with sums in the order of the loops."""
    found = np.maximum(_LEAST, np.abs(exact) * _FEW)
    if op.kind in _CURVES:
        return np.maximum(found, _CURVE), False
    return found + 2 * partial_sums(graph, op, exact, least=255.0), False
