"""Copies of ONNX files without some operators, for checks of the operators around them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qconvert.errors import RuntimeRefusedError
from qconvert.graph import Tensor
from qconvert.graph.carried_states import parse_states
from qconvert.graph.metadata import STATES
from qconvert.plugins import ModelFile
from qconvert.runtimes.onnx_inside import load_whole_model

__all__ = ["copy_without_operators"]


def copy_without_operators(
    file: ModelFile, gone: frozenset[str], inputs: Sequence[tuple[Tensor, str]], outputs: Sequence[tuple[str, str]], copy: Path
) -> None:
    """See plugins.Runtime. The graph gives the types of removed operators' results if the file does not state them. States stay inputs and
    outputs of the copy."""
    from onnx import ValueInfoProto, helper

    model = load_whole_model(file.path)
    graph = model.graph
    stated = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
    kept = [node for node in graph.node if gone.isdisjoint(node.output)]
    first = [helper.make_node("Identity", [name], [tensor.name]) for tensor, name in inputs if name != tensor.name]
    last = [helper.make_node("Identity", [name], [wanted]) for name, wanted in outputs if name != wanted]
    fed = [_rename_value(_make_value_info(tensor, stated.get(tensor.name)), name) for tensor, name in inputs]
    given = [_rename_value(stated.get(name) or ValueInfoProto(name=name), wanted) for name, wanted in outputs]
    text = next((entry.value for entry in model.metadata_props if entry.key == STATES), "")
    states = {item.output for item in parse_states(text)} if text else set()
    given += [value for value in graph.output if value.name in states.difference(value.name for value in given)]
    names = {value.name for value in (*graph.input, *fed, *given)}
    values = [value for value in graph.value_info if value.name not in names]
    for field, items in (("node", [*first, *kept, *last]), ("output", given), ("value_info", values)):
        del getattr(graph, field)[:]
        getattr(graph, field).extend(items)
    graph.input.extend(fed)
    copy.write_bytes(model.SerializeToString())


def _rename_value(value: Any, name: str) -> Any:
    found = type(value)()
    found.CopyFrom(value)
    found.name = name
    return found


def _make_value_info(tensor: Tensor, stated: Any) -> Any:
    from onnx import helper

    from qconvert.formats.onnx.builder import ELEMENT_TYPES

    if stated is not None and stated.HasField("type"):
        return stated
    if tensor.dtype not in ELEMENT_TYPES:
        raise RuntimeRefusedError(
            f"the file does not state the type of {tensor.name!r}, which a custom operator computes", rule="unknown-type"
        )
    return helper.make_tensor_value_info(tensor.name, ELEMENT_TYPES[tensor.dtype], None if tensor.shape is None else list(tensor.shape))
