"""A model in OpenVINO's CPU plugin, in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import STATES, Array, Child, Layer, ModelFile, RuntimeRefusedError, StatefulModel, require_package
from qconvert_openvino.container import Notes
from qconvert_openvino.elements import DTYPES

_PATIENCE = 600.0
#: Places of the metadata entry of states: qconvert's, and ONNX's.
_ENTRIES = [["qconvert", "metadata"], ["framework", STATES]]


def _load_in_child(file: ModelFile) -> tuple[Child, Mapping[str, Any], dict[str, dict[str, Any]]]:
    """Start a process and load a model in it; return the process, its description of the model, and the inputs and outputs.

    Raises:
        MissingPackageError: OpenVINO is not installed.
        RuntimeRefusedError: it does not load the file, crashes, or takes too long.
    """
    require_package("openvino", "openvino", "runs OpenVINO models")
    child = Child(Path(__file__).parent / "child.py", "OpenVINO", _PATIENCE)
    try:
        found = child.request({"load": [str(file.path), file.kernels, file.threads], "entries": _ENTRIES})
    except RuntimeRefusedError as error:
        error.file = str(file.path)
        error.remedy = "Check it in another runtime, such as --kernels onnxruntime." if file.path.suffix == ".onnx" else ""
        raise
    return (
        child,
        found,
        {side: {name: (DTYPES.get(own, own), tuple(sizes)) for name, own, sizes in found[side]} for side in ("inputs", "outputs")},
    )


class OpenVinoModel(StatefulModel):
    """A model that OpenVINO has compiled for this machine's CPU.

    Attributes:
        inputs: name -> (dtype, shape), in order; a dynamic dimension is a text. States are left out.
        outputs: likewise.
        note: the version of OpenVINO, and the number of layers on integers.

    Raises:
        MissingPackageError: OpenVINO is not installed.
        RuntimeRefusedError: it does not take the model.
    """

    def __init__(self, file: ModelFile) -> None:
        self._child, found, own = _load_in_child(file)
        stated = dict(zip(own, _read_onnx_names(file), strict=True))
        sides = (
            dict(zip(stated[side] if len(stated[side]) == len(known) else known, known.values(), strict=True))
            for side, known in own.items()
        )
        notes, framework = found["entries"]
        super().__init__(framework or Notes.of({"metadata": notes or ""}).metadata.get(STATES), *sides)
        self.note = _note(found)

    def compute(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs, stored values by name."""
        given = [np.array(values[name], dtype, order="C") for name, (dtype, _) in self.network_inputs.items()]
        return self._child.run(given, self.network_outputs)


def _note(found: Mapping[str, Any]) -> str:
    """Describe a run: the version of OpenVINO, the number of layers on integers, and the roundings that it skips."""
    if "unstated" in found:
        return _unstated(found)
    integer = [item for _, _, item, _ in found["layers"] if item is not None]
    clipped, fine = found["clipped"], found["fine"]
    rounding = f"; {clipped} sums take what a convolution computed without rounding it, only clipped to its range" if clipped else ""
    rounding += f"; {fine} FakeQuantizes of more than 256 levels are left out, with their clipping" if fine else ""
    return f"OpenVINO {found['version']} ran {sum(integer)} of {len(integer)} layers on integers, the others in float32{rounding}"


def _unstated(found: Mapping[str, Any]) -> str:
    return f"OpenVINO does not state how it runs the model: {found['unstated']}"


def _read_onnx_names(file: ModelFile) -> tuple[list[str], list[str]]:
    """Return the names of an ONNX file's inputs and outputs: in OpenVINO equal values share their names."""
    if file.path.suffix.lower() == ".xml":
        return [], []
    import onnx

    graph = onnx.load(str(file.path), load_external_data=False).graph
    given = {item.name for item in graph.initializer}
    return [item.name for item in graph.input if item.name not in given], [item.name for item in graph.output]


def layers(file: ModelFile) -> tuple[Layer, ...]:
    """Return the layers that the CPU plugin executes, in order, each with its tensors in the file."""
    child, found, _ = _load_in_child(file)
    child.close()
    if "unstated" in found:
        raise RuntimeRefusedError(_unstated(found), rule="layers-not-stated")
    return tuple(Layer(kind, tuple(names), integer, by) for kind, names, integer, by in found["layers"])
