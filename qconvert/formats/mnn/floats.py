"""The float network that MNN's converter reads, and beside it the grids of its tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize
from qconvert.encodings import Encoding, Encodings, Grid, Place
from qconvert.errors import UnsupportedError
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.kinds import KINDS

__all__ = ["split"]


def split(graph: Graph) -> tuple[Graph, Encodings]:
    """The graph on real values, constants being integer * scale rounded once, and the grids that its tensors had, with their integers.

    A conversion between grids is no operator there: a tensor has the grid on which it was computed, or where it was real the first on which
    it was rounded.

    Raises:
        UnsupportedError: stored integers are taken for others than they are (Reinterpret), which no real value does.
    """
    same: dict[str, str] = {}
    grids: dict[str, Encoding] = {}
    ops: list[Op] = []
    for op in graph.ops:
        if op.kind == "Reinterpret":
            raise UnsupportedError("stored integers are read on another grid than they were made on", where=str(op))
        if KINDS[op.kind].rule == "convert":
            source, made = same.get(op.inputs[0], op.inputs[0]), graph[op.outputs[0]]
            if made.quantization is not None and source not in grids and not graph[source].is_quantized:
                grids[source] = Encoding(Grid(made.dtype, made.quantization), origin="its Quantize")
            if made.name in graph.public:
                ops.append(Op("Identity", (source,), op.outputs, {}, op.source))
            else:
                same[made.name] = source
            continue
        inputs = tuple(same.get(name, name) for name in op.inputs)
        ops.append(replace(op, inputs=inputs, attributes={k: v for k, v in op.attributes.items() if k != "arithmetic"}))
    tensors = []
    for tensor in graph.tensors.values():
        if tensor.quantization is None:
            continue
        grids[tensor.name] = Encoding(Grid(tensor.dtype, tensor.quantization), integers=tensor.data, origin="the network's own")
        data = None if tensor.data is None else dequantize(tensor.data, tensor.quantization).astype(np.float32)
        tensors.append(Tensor(tensor.name, "float32", tensor.shape, data))
    made_graph = graph.evolve(tensors=tensors, ops=ops)
    return made_graph, Encodings({Place(name): found for name, found in grids.items() if name in made_graph.tensors})
