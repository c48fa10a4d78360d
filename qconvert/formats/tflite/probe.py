"""Copies of a .tflite model for checks: one that LiteRT accepts, and one whose outputs are all its tensors."""

from __future__ import annotations

from typing import Any

from qconvert.formats.reading.draft import Draft
from qconvert.formats.tflite.tensors import read_tensors
from qconvert.formats.tflite.verify import verify

__all__ = ["accepted_copy", "with_all_outputs"]


def _unpacked(data: bytes) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    verify(data)
    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))


def _packed(model: Any) -> bytes:
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def accepted_copy(data: bytes) -> bytes:
    """The model with quantized_dimension 0 on one-dimensional tensors: LiteRT refuses the other numbers that some converters write."""
    model = _unpacked(data)
    changed = False
    for tensor in (tensor for subgraph in model.subgraphs for tensor in subgraph.tensors):
        one_dimensional = tensor.shape is not None and len(tensor.shape) == 1
        if one_dimensional and tensor.quantization is not None and tensor.quantization.quantizedDimension:
            tensor.quantization.quantizedDimension = 0
            changed = True
    return _packed(model) if changed else data


def with_all_outputs(data: bytes) -> tuple[bytes, list[str]]:
    """The model with every operator's outputs as graph outputs, and their canonical names in the same order.

    Kernels stay the same; a delegate must hand out each tensor, so nothing is fused away.
    """
    from ai_edge_litert import schema_py_generated as schema

    draft = Draft()
    names = read_tensors(schema.Model.GetRootAs(data, 0), data, draft)
    model = _unpacked(data)
    subgraph = model.subgraphs[0]
    inputs = {int(index) for index in subgraph.inputs}
    found = dict.fromkeys(int(i) for op in subgraph.operators for i in op.outputs if int(i) not in inputs)
    subgraph.outputs = list(found)
    model.signatureDefs = None
    return _packed(model), [names[index] for index in found]
