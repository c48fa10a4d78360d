"""Copies of a .tflite model for checks: one that LiteRT accepts, and one whose outputs are all its tensors."""

from __future__ import annotations

from qconvert.formats.reading.draft import Draft
from qconvert.formats.tflite.flatbuffer import packed
from qconvert.formats.tflite.schema import root, unpacked
from qconvert.formats.tflite.tensors import read_tensors
from qconvert.formats.tflite.verify import verify

__all__ = ["accepted_copy", "with_all_outputs"]


def accepted_copy(data: bytes) -> bytes:
    """The model with quantized_dimension 0 on one-dimensional tensors: LiteRT refuses the other numbers that some converters write."""
    verify(data)
    model = unpacked(root(data))
    changed = False
    for tensor in (tensor for subgraph in model.subgraphs for tensor in subgraph.tensors):
        one_dimensional = tensor.shape is not None and len(tensor.shape) == 1
        if one_dimensional and tensor.quantization is not None and tensor.quantization.quantizedDimension:
            tensor.quantization.quantizedDimension = 0
            changed = True
    return packed(model, b"TFL3") if changed else data


def with_all_outputs(data: bytes) -> tuple[bytes, list[str]]:
    """The model with every operator's outputs as graph outputs, and their canonical names in the same order.

    Kernels stay the same; a delegate must hand out each tensor, so nothing is fused away.
    """
    verify(data)
    names = read_tensors(root(data), data, Draft())
    model = unpacked(root(data))
    subgraph = model.subgraphs[0]
    inputs = {int(index) for index in subgraph.inputs}
    found = dict.fromkeys(int(i) for op in subgraph.operators for i in op.outputs if int(i) not in inputs)
    subgraph.outputs = list(found)
    model.signatureDefs = None
    return packed(model, b"TFL3"), [names[index] for index in found]
