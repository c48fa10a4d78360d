"""What onnxruntime makes of a model: the operators of the graph that it saves after optimizing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qconvert.files.temporary import temporary_folder
from qconvert.plugins import Layer, ModelFile
from qconvert.runtimes.onnxruntime import OnnxRuntime

__all__ = ["layers"]

#: Operators of the file that become part of the one before, or are moved.
_FUSED = ("QuantizeLinear", "Transpose", "Identity", "Cast", "Relu", "Clip")
#: Operators whose result is stored as their data are.
_KEEP = (
    "Concat",
    "Transpose",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Identity",
    "Slice",
    "Split",
    "Pad",
    "Gather",
    "GatherElements",
    "GatherND",
    "Expand",
    "Tile",
    "DepthToSpace",
    "SpaceToDepth",
    "MaxPool",
    "NhwcMaxPool",
    "Where",
    "Relu",
    "Clip",
    "Max",
    "Min",
    "Resize",
)
#: Operators between real and stored values.
_CONVERT = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


def layers(file: ModelFile) -> tuple[Layer, ...]:
    """The nodes of the optimized main graph, in order, on the CPU that this is.

    A node is on integers if it is one of onnxruntime's for integers, or if what it reads as data is stored as integers of 8 or 16 bits.
    A value of the file that is no more stands for the layer that it became part of: a fused QuantizeLinear, or one that is moved.
    """
    import onnx

    with temporary_folder() as folder:
        saved = Path(folder, "optimized.onnx")
        OnnxRuntime(file.path, save_optimized=saved, exact=False)
        optimized = onnx.load(str(saved))
    stated = onnx.load(str(file.path), load_external_data=False)
    integers = _integers(optimized)
    writers = {name: node for node in optimized.graph.node for name in node.output}
    moved = {name for node in stated.graph.node if node.op_type == "Transpose" for name in node.output}
    became = _became(stated, writers)
    found = []
    for node in optimized.graph.node:
        real = node if moved.intersection(node.output) else _after_transposes(node, writers)
        names = (*node.output, *(gone for name in node.output for gone in became.get(name, ())))
        integer = None if real.op_type in _CONVERT else _is_integer(real) or _reads(real, integers)
        found.append(Layer(_kind(real), names, integer))
    return tuple(found)


def _became(model: Any, writers: Mapping[str, Any]) -> dict[str, list[str]]:
    """Value of the optimized graph -> values of the file that are gone and that it stands for.

    Where a node is rewritten for another layout, its new result has the node's name.
    """
    own = {name: node for node in model.graph.node for name in node.output}
    found: dict[str, list[str]] = {}
    for name in own:
        value = name
        while value not in writers and own[value].name not in writers and own[value].op_type in _FUSED and own[value].input[0] in own:
            value = own[value].input[0]
        value = value if value in writers else own[value].name
        if name not in writers and value in writers:
            found.setdefault(value, []).append(name)
    return found


def _kind(node: Any) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _after_transposes(node: Any, writers: Mapping[str, Any]) -> Any:
    """The node whose result one or several Transposes move."""
    while node.op_type == "Transpose" and node.input[0] in writers:
        node = writers[node.input[0]]
    return node


def _integers(model: Any) -> set[str]:
    """Names of the values that are stored as integers of 8 or 16 bits, as far as they can be known from the graph alone."""
    from onnx import TensorProto

    stored = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16)
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    found = {value.name for value in values if value.type.tensor_type.elem_type in stored}
    found.update(item.name for item in model.graph.initializer if item.data_type in stored)
    for node in model.graph.node:
        stores = node.op_type.startswith(("QLinear", "QuantizeLinear")) or (node.op_type == "QGemm" and len(node.input) > 8)
        if stores or (node.op_type in _KEEP and _reads(node, found)):
            found.update(node.output if node.op_type == "Split" else node.output[:1])
    return found


def _is_integer(node: Any) -> bool:
    """Whether a node is one of onnxruntime's for integers."""
    return bool(node.op_type.startswith(("QLinear", "QGemm", "MatMulInteger", "ConvInteger")))


def _reads(node: Any, integers: set[str]) -> bool:
    """Whether a node's data are among the values called `integers`."""
    data = node.input[1:2] if node.op_type == "Where" else node.input[:1]
    return bool(integers.intersection(data))
