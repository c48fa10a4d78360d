"""An .onnx file in onnxruntime-qnn, in a process of its own: its outputs, and the nodes that HTP runs."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import (
    STATES,
    Array,
    Child,
    Graph,
    Layer,
    ModelFile,
    OnnxInside,
    RuntimeRefusedError,
    StatefulModel,
    require_package,
)
from qconvert_qnn import CHIPS

_PATIENCE = 600.0
#: The suffix of nodes that onnxruntime rewrites for another layout.
_TOKEN = re.compile(r"_token_\d+$")


def _load_in_child(file: ModelFile) -> tuple[Child, Mapping[str, Any]]:
    """Start a process and load a model in it; return the process and its description of the model.

    Raises:
        MissingPackageError: onnxruntime-qnn is not installed.
        RuntimeRefusedError: it does not load the file, crashes, or takes too long.
    """
    require_package("onnxruntime_qnn", "onnxruntime-qnn>=2.7,<3", "computes as HTP does")
    child = Child(Path(__file__).parent / "child.py", "HTP", _PATIENCE, forks=True)
    found = child.request({"load": [str(file.path), CHIPS[file.kernels], file.threads]})
    try:
        for side in ("inputs", "outputs"):
            for name, dtype, _ in found[side]:
                np.dtype(dtype if isinstance(name, str) else "?")
        for name, kind, unit in found["assigned"]:
            if not all(isinstance(item, str) for item in (name, kind, unit)):
                raise ValueError(name)
    except (KeyError, TypeError, ValueError) as error:
        raise RuntimeRefusedError(f"HTP's process gave an invalid answer: {str(error)[:100]}", rule="invalid-answer") from None
    return child, found


class HtpModel(StatefulModel):
    """A model that onnxruntime-qnn has loaded.

    Attributes:
        inputs: name -> (dtype, shape), in order.
        outputs: likewise.
        note: the chip, and the number of nodes that HTP runs.

    Raises:
        MissingPackageError: onnxruntime-qnn is not installed.
        RuntimeRefusedError: it does not take the model.
    """

    def __init__(self, file: ModelFile) -> None:
        import onnx

        self._child, found = _load_in_child(file)
        sides = ({name: (dtype, tuple(shape)) for name, dtype, shape in found[side]} for side in ("inputs", "outputs"))
        entries = onnx.load(str(file.path), load_external_data=False).metadata_props
        super().__init__(next((item.value for item in entries if item.key == STATES), None), *sides)
        count = sum(unit == "HTP" for _, _, unit in found["assigned"])
        version = str(found.get("version"))[:20]
        self.note = f"HTP of {file.kernels.upper()} (onnxruntime-qnn {version}, on x86) ran {count} of {len(found['assigned'])} nodes"

    def compute(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs, stored values by name."""
        given = [np.ascontiguousarray(values[name], dtype) for name, (dtype, _) in self.network_inputs.items()]
        return self._child.run(given, self.network_outputs)


def inside(file: ModelFile, graph: Graph) -> OnnxInside:
    """Return the file cut at its tensors; HTP runs the parts, with onnxruntime's values at the cuts."""

    def open_piece(model: bytes) -> HtpModel:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "piece.onnx")
            path.write_bytes(model)
            return HtpModel(replace(file, path=path))

    return OnnxInside(file, graph, open_piece)


def layers(file: ModelFile) -> tuple[Layer, ...]:
    """Return the nodes of a file, each with its device; a QuantizeLinear belongs to the node that computes its input."""
    import onnx

    child, found = _load_in_child(file)
    child.close()
    units = {_TOKEN.sub("", name): unit for name, _, unit in found["assigned"]}
    nodes = onnx.load(str(file.path), load_external_data=False).graph.node
    writers = {name: node for node in nodes for name in node.output}
    names: dict[str, list[str]] = {}
    for node in nodes:
        maker = writers.get(node.input[0]) if node.op_type == "QuantizeLinear" else None
        joins = maker is not None and maker.op_type not in ("QuantizeLinear", "DequantizeLinear")
        owner = maker if joins and maker is not None else node
        names.setdefault(owner.name, []).extend(node.output)
    return tuple(
        Layer(node.op_type, tuple(names[node.name]), units[node.name] == "HTP", units[node.name])
        for node in nodes
        if node.name in names and node.name in units
    )
