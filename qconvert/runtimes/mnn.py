"""Runs a .mnn file in MNN, in a child process, because MNN aborts its process at unsupported models.

MNN takes and gives float values alone: inputs and outputs are those of the float model that the file was made of. mnn_child.py is the
other end.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import RuntimeRefusedError, UnsupportedError
from qconvert.formats.mnn.network import Node, read_network
from qconvert.formats.mnn.scales import find_misnamed, is_packing
from qconvert.formats.mnn.writer import require_installed
from qconvert.graph import Array, Arrays, Graph
from qconvert.plugins import ModelFile, Pieces, Timing
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
        threads: how many MNN may use; 0 for as many as it likes.

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
        threads: int = 0,
    ) -> None:
        self._child, self._packed, self._file = child or new_child(), packed, str(path)
        self._child.begin_memory()
        wanted = {"path": os.path.realpath(path), "inputs": list(inputs), "outputs": list(outputs), "threads": threads}
        found = self._child.request({"load": wanted})
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
        """Runs so many times on the same values."""
        values, described = self._encode_inputs(inputs)
        found = self._child.request({"time": self._model, "times": times, "values": described}, values)
        return Timing(tuple(found["wall"]), tuple(found["processor"]), self._child.peak_memory())

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
    return MNNModel(file.path, threads=file.threads)


#: Operators whose results MNN packs by channels, and operators that keep the layout of their data.
_PACKED = (
    "Convolution", "ConvolutionDepthwise", "Deconvolution", "DeconvolutionDepthwise", "Pooling", "Interp", "Resize", "ROIPooling",
    "DepthToSpace", "SpaceToDepth",
)  # fmt: skip
_KEEPING = (
    "BinaryOp",
    "UnaryOp",
    "Eltwise",
    "ReLU",
    "ReLU6",
    "PReLU",
    "ELU",
    "Sigmoid",
    "TanH",
    "Concat",
    "Scale",
    "Select",
    "Cast",
    "Identity",
    "Permute",
    "Reshape",
    "Tile",
)


class MNNInside:
    """A .mnn file whose tensors are known by the names of a canonical graph; see plugins.Inside.

    Args:
        file: the file.
        graph: whose activations are wanted; a name that the file does not have is ignored.
    """

    cuts = True

    def __init__(self, file: ModelFile, graph: Graph) -> None:
        self._path = file.path
        self._network = read_network(file.path)
        self._makers = {self._network.names[index]: node for node in self._network.nodes for index in node.outputs}
        wanted = {name for name, tensor in graph.tensors.items() if not tensor.is_constant}
        wanted -= {self._network.names[index] for index in find_misnamed(self._network.nodes, self._network.names)}
        self.names = frozenset(name for name in wanted & self._makers.keys() if self._makers[name].type != "Const")
        inputs = [name for name, node in self._makers.items() if node.type == "Input"]
        self._sizes = {name: tensor.static_shape for name, tensor in graph.tensors.items()}
        self._whole = MNNModel(self._path, outputs=sorted(self.names - set(inputs)))
        self._shapes: dict[str, tuple[int | None, ...]] = {}

    def values(self, feed: Arrays) -> dict[str, Array]:
        given = {name: value for name, value in feed.items() if name in self.names}
        return {**given, **self._whole.run(feed)}

    def _measure_shapes(self) -> Mapping[str, tuple[int | None, ...]]:
        """Return the shapes of all tensors, by a run; none if inputs have dynamic dimensions, since MNN states no other shapes."""
        described = self._whole.inputs
        if not self._shapes and all(isinstance(size, int) for _, shape in described.values() for size in shape):
            found = self.values({name: np.zeros(shape, dtype) for name, (dtype, shape) in described.items()})
            self._shapes = {name: value.shape for name, value in found.items()}
        return self._shapes

    def pieces(self, names: frozenset[str], wanted: frozenset[str]) -> Pieces:
        child = new_child()  # its own, so that a crash stops nothing else
        parts: dict[str, MNNModel] = {}
        for name in sorted(wanted & self.names):
            fed = self._find_feeds(name, names)
            if fed:
                parts[name] = MNNModel(self._path, fed, [name], child, [item for item in fed if self._is_packed(item)])
        if not parts:
            raise UnsupportedError("nothing between these tensors is computed from them", file=str(self._path), rule="nothing-computed")
        fed_names = tuple(dict.fromkeys(name for part in parts.values() for name in part.inputs))

        known = (*fed_names, *parts)
        shapes = self._measure_shapes()

        def run(values: Arrays) -> dict[str, Array]:
            given = {name: _match_rank(value, shapes.get(name)) for name, value in values.items()}
            found = {name: list(part.run(given).values()) for name, part in parts.items()}
            if empty := next((name for name, results in found.items() if not results), ""):
                raise RuntimeRefusedError(
                    f"MNN computes nothing for {empty!r} from {', '.join(map(repr, parts[empty].inputs))}", rule="nothing-computed"
                )
            return {name: _match_rank(results[0], self._sizes.get(name)) for name, results in found.items()}

        return Pieces(fed_names, frozenset(parts), dict.fromkeys(known, "float32"), {name: shapes.get(name) for name in known}, run)

    def _find_feeds(self, wanted: str, names: frozenset[str]) -> list[str]:
        """Return the tensors among `names`, and the inputs, from which MNN computes a tensor."""
        found: list[str] = []
        seen: set[str] = set()
        waiting = self._input_names(self._makers[wanted])
        while waiting:
            name = waiting.pop(0)
            node = self._makers.get(name)
            if name in seen or node is None:
                continue
            seen.add(name)
            if name in names or node.type == "Input":
                found.append(name)
            else:
                waiting += self._input_names(node)
        return found

    def _is_packed(self, name: str) -> bool:
        """Whether MNN packs a tensor by channels where it is computed; elementwise operators keep the layout of their data."""
        seen: set[str] = set()
        while (node := self._makers.get(name)) is not None and name not in seen:
            seen.add(name)
            if node.type in _PACKED:
                return True
            if node.type == "ConvertTensor":
                return is_packing(name)
            if node.type not in _KEEPING or not node.inputs:
                return False
            name = self._network.names[node.inputs[0]]
        return False

    def _input_names(self, node: Node) -> list[str]:
        return [self._network.names[index] for index in node.inputs]


def _match_rank(value: Array, shape: Sequence[int | None] | None) -> Array:
    """Return a value reshaped to the wanted rank: where MNN merges Reshapes, a name may stand on the other side of them."""
    if shape is None or value.ndim == len(shape) or any(size is None for size in shape):
        return value
    sizes = [int(size) for size in shape if size is not None]
    return value.reshape(sizes) if value.size == math.prod(sizes) else value
