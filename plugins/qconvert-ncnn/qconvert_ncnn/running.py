"""A network in ncnn, on this machine's CPU, in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from qconvert.plugin import STATES, Array, Child, ModelFile, StatefulModel, dequantize, quantize, require_package
from qconvert_ncnn.reader import read_network

_PATIENCE = 600.0


class _Net:
    """A network in a process, by its blobs."""

    def __init__(self, child: Child, version: str) -> None:
        self._child, self.version = child, version

    def extract_blobs(self, inputs: Mapping[str, Array], wanted: Sequence[str]) -> list[Array]:
        """Return the values of the blobs `wanted`, as float32, for the values of input blobs."""
        values = [np.ascontiguousarray(value, np.float32) for value in inputs.values()]
        asked = [[name, list(value.shape)] for name, value in zip(inputs, values, strict=True)]
        answer = self._child.request({"run": asked, "give": [*wanted]}, values)
        return self._child.arrays(answer.get("arrays"))


def load_in_child(path: Path, threads: int) -> _Net:
    """Start a process and load a network in it.

    Raises:
        MissingPackageError: ncnn is not installed.
        RuntimeRefusedError: it does not load the files.
    """
    require_package("ncnn", "ncnn", "runs networks of ncnn")
    child = Child(Path(__file__).parent / "child.py", "ncnn", _PATIENCE)
    found = child.request({"load": [str(path), str(path.with_suffix(".bin")), threads]})
    return _Net(child, str(found.get("version"))[:40])


class NcnnModel(StatefulModel):
    """A network that ncnn has loaded.

    Attributes:
        inputs: name -> (dtype, shape), in order, with the batch dimension of 1.
        outputs: likewise.
        note: the version of ncnn, and the number of layers on integers.

    Raises:
        MissingPackageError: ncnn is not installed.
        RuntimeRefusedError: it does not take the network.
    """

    def __init__(self, file: ModelFile) -> None:
        network = read_network(file.path, file.options)
        layers, graph = network.layers, network.graph
        self._graph, self._blobs = graph, (network.inputs, network.outputs)
        sides = ({name: (graph[name].dtype, graph[name].static_shape or ()) for name in names} for names in (graph.inputs, graph.outputs))
        super().__init__(graph.metadata.get(STATES), *sides)
        self._net = load_in_child(file.path, file.threads)
        products = [layer for layer in layers if layer.kind in ("Convolution", "ConvolutionDepthWise", "InnerProduct")]
        count = sum(bool(layer.integer(8)) for layer in products)
        self.note = f"ncnn {self._net.version} ran {count} of {len(products)} convolutions and fully connected layers on int8"

    def compute(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs, stored values by name; ncnn takes and gives dequantized ones."""
        given = [np.ascontiguousarray(self._dequantize_value(name, values[name]), np.float32) for name in self.network_inputs]
        found = self._net.extract_blobs({blob: value[0] for blob, value in zip(self._blobs[0], given, strict=True)}, self._blobs[1])
        return {name: self._quantize_value(name, value[None]) for name, value in zip(self.network_outputs, found, strict=True)}

    def _dequantize_value(self, name: str, value: Array) -> Array:
        q = self._graph[name].quantization
        return value if q is None else dequantize(value, q)

    def _quantize_value(self, name: str, value: Array) -> Array:
        q = self._graph[name].quantization
        return value if q is None else quantize(value, q, self._graph[name].dtype)
