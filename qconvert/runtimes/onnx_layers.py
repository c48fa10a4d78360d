"""What onnxruntime makes of a model: the operators of the graph that it saves after optimizing."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qconvert.plugins import Layer
from qconvert.runtimes.onnxruntime import OnnxRuntime

__all__ = ["layers"]

#: Operators of the file that become part of the one before, or are moved.
_FUSED = ("QuantizeLinear", "Transpose", "Identity", "Cast", "Relu", "Clip")
#: Operators between real and stored values.
_CONVERT = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


def layers(path: Path, kernels: str) -> tuple[Layer, ...]:
    """The nodes of the optimized main graph, in order, on the CPU that this is.

    A node is on integers if it is one of onnxruntime's for integers, or if what it reads as data is stored as integers of 8 or 16 bits.
    A value of the file that is no more stands for the layer that it became part of: a fused QuantizeLinear, or one that is moved.
    """
    import onnx

    with tempfile.TemporaryDirectory(prefix="qconvert-") as folder:
        saved = Path(folder, "optimized.onnx")
        OnnxRuntime(path, save_optimized=saved, exact=False)
        optimized = onnx.load(str(saved))
    types = _types(optimized)
    writers = {name: node for node in optimized.graph.node for name in node.output}
    became = _became(onnx.load(str(path), load_external_data=False), writers)
    found = []
    for node in optimized.graph.node:
        real = _behind_transposes(node, writers)
        names = (*node.output, *(gone for name in node.output for gone in became.get(name, ())))
        found.append(Layer(_kind(real), names, _on_integers(real, types)))
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


def _behind_transposes(node: Any, writers: Mapping[str, Any]) -> Any:
    """The node whose result one or several Transposes move."""
    while node.op_type == "Transpose" and node.input[0] in writers:
        node = writers[node.input[0]]
    return node


def _types(model: Any) -> dict[str, int]:
    """Element types of inputs, constants and, as far as onnxruntime says, of what nodes compute."""
    types = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.value_info, *model.graph.input, *model.graph.output)}
    types.update((item.name, item.data_type) for item in model.graph.initializer)
    return types


def _on_integers(node: Any, types: Mapping[str, int]) -> bool:
    from onnx import TensorProto

    if node.op_type in _CONVERT:
        return False
    if node.op_type.startswith(("QLinear", "QGemm")) or node.op_type in ("MatMulInteger", "ConvInteger"):
        return True
    stored = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16)
    return any(types.get(name) in stored for name in node.input[:1])
