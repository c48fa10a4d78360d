"""Runs stateful models step by step: an .onnx file whose states are inputs and outputs, or a .tflite file with variables.

session = qconvert.streaming.Session("wake_word.onnx")
for chunk in chunks:
    result = session.run({"audio": chunk})["score"]
session.reset()
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qconvert.conversion.loading import source_format
from qconvert.errors import OptionError
from qconvert.graph import Array
from qconvert.plugins import LoadedModel, ModelFile, runtime_of
from qconvert.plugins.options import fill_defaults


class Session:
    """A model in its runtime, which carries its states from one run to the next.

    Args:
        model: the file: .onnx (onnxruntime), .tflite (LiteRT) or .pt2 (PyTorch).
        kernels: the runtime, or it and a set of its kernels, as `qconvert check --kernels` takes it; by default the format's.
        threads: how many the kernels may use.

    Attributes:
        inputs: name -> (dtype, shape), in order, without those that are states.
        outputs: likewise.

    Raises:
        QConvertError: the file cannot be read, its package is not installed, or the runtime does not take it.

    Example:
        >>> session = Session("wake_word.onnx")
        >>> score = session.run({"audio": chunk})["score"]
    """

    def __init__(self, model: str | Path, *, kernels: str = "", threads: int = 1) -> None:
        format = source_format(Path(model))
        runtime, chosen = runtime_of(format.name, kernels)
        self._model: LoadedModel = runtime.open(ModelFile(Path(model), chosen, fill_defaults({}, format.read_options), threads))
        if not hasattr(self._model, "reset"):
            raise OptionError(
                f"{runtime.title} does not run models with states",
                file=str(model),
                remedy="Use an .onnx or .tflite file.",
                rule="no-states",
            )
        self.inputs, self.outputs = self._model.inputs, self._model.outputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The next step: stored values of the inputs, by name -> those of the outputs."""
        missing = [name for name in self.inputs if name not in inputs]
        if missing or len(inputs) != len(self.inputs):
            raise OptionError(f"the inputs are {', '.join(self.inputs)}, not {', '.join(inputs) or 'none'}", rule="input-names")
        return self._model.run(inputs)

    def reset(self) -> None:
        """The next step is the first: states have their first values."""
        self._model.reset()  # type: ignore[attr-defined]
