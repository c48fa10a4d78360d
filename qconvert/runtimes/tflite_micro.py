"""Runs a .tflite model in TensorFlow Lite for Microcontrollers, by its Python package tflite_micro, in a child process: the interpreter
aborts where a kernel's arithmetic does not hold a scale. tflite_micro_child.py is the other end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import RuntimeRefusedError
from qconvert.graph import Array
from qconvert.plugins import ModelFile
from qconvert.runtimes.litert import read_content
from qconvert.runtimes.packages import Child, runtime_package

_CHILD = Path(__file__).with_name("tflite_micro_child.py")
#: Seconds for which an answer is waited for.
_PATIENCE = 600.0


class TFLiteMicro:
    """A .tflite model loaded in the micro interpreter. It keeps no names; those of the file are used.

    Args:
        model: the file's content.

    Attributes:
        inputs: name -> (dtype, shape), in order.
        outputs: likewise.
        note: what a user should know of how it runs; "" if there is nothing.

    Raises:
        MissingPackageError: tflite_micro is not installed.
        RuntimeRefusedError: the interpreter does not take the model, and the reason is what it printed; or its process ended.
    """

    note = ""

    def __init__(self, model: bytes) -> None:
        from qconvert.formats.tflite.probe import require_for_micro

        runtime_package("tflite_micro", "qconvert[micro]", "runs models as microcontrollers do")
        require_for_micro(model)
        self._names = _names(model)
        self._child = Child(_CHILD, "tflite-micro", _PATIENCE, forks=True)
        found = self._load(bytes(model))
        self.inputs, self.outputs = (
            {name: (dtype, tuple(shape)) for name, (dtype, shape) in zip(names, found[side], strict=True)}
            for side, names in zip(("inputs", "outputs"), self._names, strict=True)
        )

    def reset(self) -> None:
        """The next run is the first of a sequence; its own reset gives variables their zero points, not their first values."""
        self._load(b"")

    def _load(self, model: bytes) -> Mapping[str, Any]:
        """Load a file; without one, the same once more."""
        inputs, outputs = map(len, self._names)
        found = self._child.request({"load": len(model), "inputs": inputs, "outputs": outputs}, [np.frombuffer(model, np.uint8)])
        if "refused" in found:
            raise RuntimeRefusedError(
                f"tflite-micro does not take the model: {found['refused']}",
                remedy="Convert the model with --target tflite-micro, which allows only its operators.",
                rule="model-refused",
            )
        return found

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs once. Inputs are stored values by name; returns stored outputs by name."""
        return dict(zip(self.outputs, self.run_in_order([inputs[name] for name in self.inputs]), strict=True))

    def run_in_order(self, inputs: Sequence[Array]) -> list[Array]:
        """Runs once with inputs and outputs in the model's order."""
        given = [np.asarray(value, order="C") for value in inputs]
        described = [(value.dtype.name, value.shape) for value in given]
        found = self._child.request({"run": described, "outputs": len(self.outputs)}, given)
        if "refused" in found:
            raise RuntimeRefusedError(f"tflite-micro failed while running the model: {found['refused']}", rule="run-failed")
        return self._child.arrays(found["values"])


def _names(model: bytes) -> tuple[list[str], list[str]]:
    """The names of the first subgraph's inputs and outputs, as the reader has them: one that is empty or taken is made of its place."""
    from qconvert.formats.reading.draft import Draft
    from qconvert.formats.tflite.schema import root
    from qconvert.formats.tflite.tensors import read_tensors

    names, graph = read_tensors(root(model), model, Draft()), root(model).subgraphs[0]
    inputs, outputs = ([] if indices is None else [names[int(index)] for index in indices] for indices in (graph.inputs, graph.outputs))
    return inputs, outputs


def open_model(file: ModelFile) -> TFLiteMicro:
    """See plugins.Runtime; the package has one set of kernels."""
    return TFLiteMicro(read_content(file))
