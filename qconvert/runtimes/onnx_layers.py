"""The operators of the graph that onnxruntime saves after optimizing, and which of them stay in float."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qconvert.files.system import temporary_folder
from qconvert.formats.onnx.container import unverified_proto
from qconvert.kernels.onnxruntime import FUSED
from qconvert.operators import KINDS
from qconvert.plugins import Layer, ModelFile
from qconvert.runtimes.onnxruntime import OnnxRuntime

#: Large constants are written next to the graph, where they are not read.
_WITHOUT_CONSTANTS = {"session.optimized_model_external_initializers_file_name": "constants"}
#: Operators of the file that become part of the one before, or are moved.
_FUSED = {"QuantizeLinear", "Cast"}.union(name for name, kind in KINDS.items() if kind.transposes or kind.copies or kind.clips)
#: Operators whose result is stored as their data are.
KEEP = {"Flatten", "NhwcMaxPool", "Resize"}.union(name for name, kind in KINDS.items() if kind.rule == "move" or kind.chooses or kind.clips)
_CLIPS = ("Relu", "Clip")
#: Operators between a product and its QuantizeLinear, which the reader lets follow on integers.
_FOLLOWING = {*_CLIPS}.union(name for name, kind in KINDS.items() if kind.rule == "move")
#: Operators between real and stored values.
_CONVERT = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


def layers(file: ModelFile) -> tuple[Layer, ...]:
    """The nodes of the optimized main graph, in order, on the CPU that this is.

    A node is on integers if it is one of onnxruntime's integer operators, or if its data are stored as integers of 8 or 16 bits. A value
    of the file that the optimizer removed, such as the result of a fused or moved QuantizeLinear, is listed with its layer.
    """
    import onnx

    optimized = _optimize(file, exact=False)
    stated = onnx.load(str(file.path), load_external_data=False)
    integers = _integer_values(optimized)
    writers = {name: node for node in optimized.graph.node for name in node.output}
    moved = {name for node in stated.graph.node if node.op_type == "Transpose" for name in node.output}
    became = _map_lost_values(stated, writers)
    found = []
    for node in optimized.graph.node:
        real = node if moved.intersection(node.output) else _skip_transposes(node, writers)
        names = (*node.output, *(gone for name in node.output for gone in became.get(name, ())))
        integer = None if real.op_type in _CONVERT else _is_integer(real) or _reads_integers(real, integers)
        found.append(Layer(_kind(real), names, integer))
    return tuple(found)


def kept_in_float(file: ModelFile) -> dict[str, str]:
    """See Runtime.taken_by: the results of operators between DequantizeLinear and QuantizeLinear that run without an integer kernel.

    What the optimizer fuses depends on types, zero points, scales and all readers, and on the CPU (qdq_selectors.cc), so its result is
    asked: a float value that it still computes is part of no integer kernel.
    """
    if file.kernels != "optimized":
        return {}
    graph = unverified_proto(file.path).graph
    writers = {name: node for node in graph.node for name in node.output}
    found: dict[str, tuple[list[str], list[str]]] = {}
    for node in graph.node:
        names = _find_values_before(node.input[0], writers) if node.op_type == "QuantizeLinear" else []
        if names and _computes_dequantized(names[-1], writers):
            unclipped = [
                f"{real}/{dtype}" for real in names[1:] for dtype in ("int8", "uint8")
            ]  # as the reader names a result before a Clip
            moved = [place for place, real in enumerate(names[:-1]) if writers[real].op_type not in _CLIPS]
            found[node.output[0]] = names[max(moved, default=-1) + 1 :], unclipped
        elif node.op_type in _CLIPS and node.input[0] in found:  # of integers, which the reader makes an activation
            found[node.output[0]] = found[node.input[0]]
    left = {name for node in _optimize(file, exact=True).graph.node for name in node.output} if found else ()
    return {
        name: "in_float"
        for result, (values, unclipped) in found.items()
        # The optimizer drops clips to the limits of the type, and names a value anew whose QuantizeLinear it moves (propagate_qdq).
        if any(name in left for value in values for name in (value, f"{value}_pre_q"))
        for name in (result, *unclipped)
    }


def _find_values_before(name: str, writers: Mapping[str, Any]) -> list[str]:
    """Return a value, and what each Relu, Clip and data movement before it reads, the first of these last."""
    found = [name]
    while found[-1] in writers and writers[found[-1]].op_type in _FOLLOWING:
        found.append(writers[found[-1]].input[0])
    return found


def _computes_dequantized(name: str, writers: Mapping[str, Any]) -> bool:
    """Whether a value is what an operator that has an integer kernel makes of dequantized data; MatMul and Add together are a Gemm."""
    node = writers.get(name)
    if node is None or node.op_type not in FUSED:
        return False
    read = next((writers[item] for item in node.input if _is_result_of(item, "MatMul", writers)), node) if node.op_type == "Add" else node
    return all(_is_result_of(item, "DequantizeLinear", writers) for item in read.input[:2])


def _is_result_of(name: str, op_type: str, writers: Mapping[str, Any]) -> bool:
    return name in writers and writers[name].op_type == op_type


def _optimize(file: ModelFile, exact: bool) -> Any:
    """Return the graph that onnxruntime runs, as an onnx.ModelProto without large constants; see OnnxRuntime for `exact`."""
    import onnx

    with temporary_folder() as folder:
        saved = Path(folder, "optimized.onnx")
        OnnxRuntime(file.path, save_optimized=saved, settings=_WITHOUT_CONSTANTS, exact=exact)
        return onnx.load(str(saved), load_external_data=False)


def _map_lost_values(model: Any, writers: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return value of the optimized graph -> values of the file that it replaces.

    The new result of a node that is rewritten for another layout has the node's name.
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


def _skip_transposes(node: Any, writers: Mapping[str, Any]) -> Any:
    """Return the node before one or several Transposes."""
    while node.op_type == "Transpose" and node.input[0] in writers:
        node = writers[node.input[0]]
    return node


def _integer_values(model: Any) -> set[str]:
    """Return the names of the values that are stored as integers of 8 or 16 bits, as far as the graph alone tells."""
    from onnx import TensorProto

    stored = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16)
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    found = {value.name for value in values if value.type.tensor_type.elem_type in stored}
    found.update(item.name for item in model.graph.initializer if item.data_type in stored)
    for node in model.graph.node:
        stores = node.op_type.startswith(("QLinear", "QuantizeLinear")) or (node.op_type == "QGemm" and len(node.input) > 8)
        if stores or (node.op_type in KEEP and _reads_integers(node, found)):
            found.update(node.output if node.op_type == "Split" else node.output[:1])
    return found


def _is_integer(node: Any) -> bool:
    """Whether a node is one of onnxruntime's for integers."""
    return bool(node.op_type.startswith(("QLinear", "QGemm", "MatMulInteger", "ConvInteger")))


def _reads_integers(node: Any, integers: set[str]) -> bool:
    """Whether a node's data are among the values called `integers`."""
    data = node.input[1:2] if node.op_type == "Where" else node.input[:1]
    return bool(integers.intersection(data))
