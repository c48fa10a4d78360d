"""The inside of a .mnn file in MNN: its tensors given out, and the file cut at them.

MNN loads a part of a network between any tensors. It takes and gives float values there too: what it runs on integers it rounds when it
comes in, so that values on a tensor's quantization are the integers themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qconvert.errors import RuntimeRefusedError, UnsupportedError
from qconvert.formats.mnn.network import Node, read_network
from qconvert.formats.mnn.scales import find_misnamed, is_packing
from qconvert.graph import Array, Arrays, Graph
from qconvert.plugins import ModelFile, Pieces
from qconvert.runtimes.mnn import MNNModel, new_child

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
