"""Runs a .mnn file in MNN, in a child process, because MNN aborts its process at unsupported models.

MNN takes and gives float values alone: inputs and outputs are those of the float model that the file was made of. mnn_child.py is the
other end.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import RuntimeRefusedError
from qconvert.formats.mnn.child import require_installed
from qconvert.graph import Array, Arrays
from qconvert.plugins import ModelFile, Timing
from qconvert.runtimes.packages import Child

_CHILD = Path(__file__).with_name("mnn_child.py")
#: Seconds for which an answer is waited for.
_PATIENCE = 600.0
_SPATIAL = 4  # dimensions of data that MNN packs by channels inside a network
#: MNN's names of types -> numpy's.
_TYPES = {"float": "float32", "double": "float64", "int": "int32", "int64": "int64", "uint8": "uint8"}


class MNNModel:
    """A .mnn file loaded in MNN, or a part of it.

    Args:
        path: the file.
        inputs, outputs: names of the tensors where it is cut; the file's own if there are none.
        child: the process that runs it; a new one if there is none.
        packed: those of the inputs that MNN has packed by channels there, as between spatial operators.

    Attributes:
        inputs: name -> (dtype, shape), in order; a size that is open is a text.
        outputs: likewise, but MNN does not tell their sizes.
        note: what a user should know of how it runs.

    Raises:
        MissingPackageError: MNN is not installed.
        RuntimeRefusedError: MNN does not take the file, or its process ended.
    """

    def __init__(
        self,
        path: Path,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        child: Child | None = None,
        packed: Collection[str] = (),
    ) -> None:
        self._child, self._packed, self._file = child or new_child(), packed, str(path)
        found = self._child.request({"load": {"path": os.path.realpath(path), "inputs": list(inputs), "outputs": list(outputs)}})
        try:
            self._model = int(found["model"])
            self.inputs = {str(name): (_TYPES[dtype], _sizes(shape)) for name, dtype, shape in found["inputs"]}
            self.outputs: dict[str, tuple[str, tuple[Any, ...]]] = {str(name): ("float32", ()) for name in found["outputs"]}
        except (KeyError, TypeError, ValueError) as error:
            raise RuntimeRefusedError(
                f"MNN's description of the file is not understood: {str(found)[:300]}", file=str(path), rule="invalid-answer"
            ) from error
        self.note = f"MNN {str(found.get('version', ''))[:20]} ran on this machine's CPU, in a process of its own"

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Runs once. Inputs and outputs are float values by name."""
        values, described = self._encode_inputs(inputs)
        found = self._child.request({"run": self._model, "values": described}, values)
        results = self._child.arrays(found.get("values"))
        if len(results) != len(self.outputs):
            raise RuntimeRefusedError(
                f"MNN gives {len(results)} values, but the file names {len(self.outputs)} outputs",
                file=self._file,
                rule="counts-differ",
            )
        return dict(zip(self.outputs, results, strict=True))

    def close(self) -> None:
        """Ends the process, of whatever else it runs too."""
        self._child.close()

    def time_runs(self, inputs: Arrays, times: int) -> Timing:
        """Runs so many times on the same values; what the process holds is not known, since it may run other files."""
        values, described = self._encode_inputs(inputs)
        found = self._child.request({"time": self._model, "times": times, "values": described}, values)
        return Timing(tuple(found["wall"]), tuple(found["processor"]))

    def _encode_inputs(self, inputs: Arrays) -> tuple[list[Array], list[list[Any]]]:
        """Return the arrays to send for inputs, and their descriptions."""
        values = [np.asarray(inputs[name], dtype, "C") for name, (dtype, _) in self.inputs.items()]
        packed = [name in self._packed and value.ndim == _SPATIAL for name, value in zip(self.inputs, values, strict=True)]
        described = [[value.dtype.name, list(value.shape), how] for value, how in zip(values, packed, strict=True)]
        return values, described


def _sizes(shape: Sequence[int]) -> tuple[int | str, ...]:
    return tuple(int(size) if int(size) > 0 else "?" for size in shape)


def new_child() -> Child:
    """A process in which MNN runs; raises MissingPackageError if it is not installed."""
    require_installed("runs .mnn files")
    return Child(_CHILD, "MNN", _PATIENCE)


def open_model(file: ModelFile) -> MNNModel:
    """See plugins.Runtime; there is one set of kernels."""
    return MNNModel(file.path)
