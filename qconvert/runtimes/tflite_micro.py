"""Runs a .tflite model in TensorFlow Lite for Microcontrollers, by its Python package tflite_micro."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.errors import RuntimeRefusedError
from qconvert.graph import Array
from qconvert.plugins import ModelFile
from qconvert.runtimes.litert import read_content
from qconvert.runtimes.packages import capture_stderr, runtime_package

#: Arena sizes to try, in bytes. The package's own guess, ten times the file, is too small for small files with large activations.
_ARENAS = (2**21, 2**25, 2**29)


#: What the interpreter prints when an arena is too small.
_TOO_SMALL = ("Failed to resize buffer", "Failed to allocate", "arena")


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
        RuntimeRefusedError: the interpreter does not take the model; the reason is what it printed.
    """

    note = ""

    def __init__(self, model: bytes) -> None:
        from qconvert.formats.tflite.probe import require_for_micro

        self._runtime = runtime_package("tflite_micro", "qconvert[micro]", "runs models as microcontrollers do").runtime
        require_for_micro(model)
        self._model = model  # the interpreter reads constants from these bytes
        self.reset()
        input_names, output_names = _names(model)
        self.inputs = self._describe(input_names, self._interpreter.get_input_details)
        self.outputs = self._describe(output_names, self._interpreter.get_output_details)

    def reset(self) -> None:
        """The next run is the first of a sequence; its own reset gives variables their zero points, not their first values."""
        self._interpreter = _load_interpreter(self._runtime.Interpreter, self._model)

    @staticmethod
    def _describe(names: list[str], details: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
        found = {}
        for index, name in enumerate(names):
            item = details(index)
            found[name] = (np.dtype(item["dtype"]).name, tuple(int(size) for size in item["shape"]))
        return found

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs once. Inputs are stored values by name; returns stored outputs by name."""
        return dict(zip(self.outputs, self.run_in_order([inputs[name] for name in self.inputs]), strict=True))

    def run_in_order(self, inputs: list[Array]) -> list[Array]:
        """Runs once with inputs and outputs in the model's order."""
        with capture_stderr() as printed:
            try:
                for index, value in enumerate(inputs):
                    self._interpreter.set_input(np.asarray(value, order="C"), index)
                self._interpreter.invoke()
                return [np.array(self._interpreter.get_output(index)) for index in range(len(self.outputs))]
            except (ValueError, RuntimeError) as error:
                failure = error
        raise RuntimeRefusedError(
            f"tflite-micro failed while running the model: {_reason(printed, failure)}", rule="run-failed"
        ) from failure


def _load_interpreter(interpreter: Any, model: bytes) -> Any:
    """Load the model into the smallest arena that holds it."""
    for arena in _ARENAS:
        with capture_stderr() as printed:
            try:
                return interpreter.from_bytes(model, arena_size=arena + len(model))
            except (ValueError, RuntimeError) as error:
                failure = error
        if not any(words in printed[0] for words in _TOO_SMALL):
            break
    raise RuntimeRefusedError(
        f"tflite-micro does not take the model: {_reason(printed, failure)}",
        remedy="Convert the model with --target tflite-micro, which allows only its operators.",
        rule="model-refused",
    ) from failure


def _reason(printed: list[str], failure: Exception) -> str:
    """Return the printed text of the interpreter, which says more than its exception."""
    lines = [line.strip() for line in "".join(printed).splitlines() if line.strip()]
    return "; ".join(lines[:3]) or str(failure)


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
