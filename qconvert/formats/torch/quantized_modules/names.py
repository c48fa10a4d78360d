"""Names of tensors in written TorchScript, found by reading it: TorchScript keeps names of variables and attributes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qconvert.formats.torch.archive import Archive
from qconvert.formats.torch.given_inputs import GivenInputs
from qconvert.formats.torch.quantized_modules.builder import ModuleBuilder
from qconvert.formats.torch.quantized_modules.program import Modules
from qconvert.formats.torch.torchscript.reader import read_named
from qconvert.graph import Graph, Op

__all__ = ["collect_names"]

#: Operators between the one that stands for a canonical operator and its result: a Quantize, a Relu, a Clip …
_BEHIND = 4


def collect_names(builder: ModuleBuilder, made: Modules, content: bytes) -> dict[str, Any]:
    """The notes that give tensors, operators and dynamic dimensions of an archive their names again, and inputs their shapes and types."""
    graph = builder.graph
    inputs, sizes = _describe_inputs(builder, made)
    read, variables = read_named(Archive(memoryview(content)), graph.name, GivenInputs(inputs))
    names: dict[str, str] = {}
    for node, name in builder.names.items():
        there = made.made.get(node)
        if there is None:
            continue
        found = variables.get(there.name, "" if node.operator else variables.get(str(there.target), str(there.target)))
        if found in read.tensors:
            names.setdefault(found, name)
    ends = dict(zip(read.outputs, graph.outputs, strict=True))
    names |= {found: name for found, name in ends.items() if name not in names.values()}
    _add_constants(graph, read, names)
    helpers = [made.made[node].name for node in builder.nodes if node in builder.helpers]
    padding = [variables[name] for name in helpers if name in variables]
    return {
        "inputs": inputs,
        "sizes": sizes,
        "tensors": {found: name for found, name in names.items() if found != name},
        "operators": _sources(graph, read, names),
        "padding": padding,
    }


def _describe_inputs(builder: ModuleBuilder, made: Modules) -> tuple[str, dict[str, str]]:
    """Inputs as --input-shape states them, and the names of dynamic dimensions in it -> those of the graph."""
    graph, sizes, parts = builder.graph, dict[str, str](), []
    arguments = [str(made.made[node].target) for node in builder.nodes if node.is_input]
    for argument, name in zip(arguments, graph.inputs, strict=True):
        texts = []
        for size in graph[name].shape or ():
            if isinstance(size, str):
                sizes.setdefault(size, f"size_{len(sizes)}")
            texts.append(str(sizes.get(size, size) if isinstance(size, str) else size))
        if graph[name].shape is not None:
            parts.append(f"{argument}={','.join(texts)}:{graph[name].dtype}")
    return "; ".join(parts), {found: size for size, found in sizes.items()}


def _add_constants(graph: Graph, read: Graph, names: dict[str, str]) -> None:
    """Names constants of operators by their places among the inputs."""
    found_as, producers = {name: found for found, name in names.items()}, read.producers()
    for op in graph.ops:
        twin = _find_counterpart(op, read, producers, found_as.get(op.outputs[0], ""))
        if twin is None:
            continue
        for found, name in zip(twin.inputs, op.inputs, strict=False):
            maker = producers.get(found)
            if maker is not None and maker.kind == "Dequantize":
                found = maker.inputs[0]
            if found and name and read[found].is_constant and graph[name].is_constant and name not in found_as:
                names.setdefault(found, name)
                found_as[name] = found


def _find_counterpart(op: Op, read: Graph, producers: Mapping[str, Op], name: str) -> Op | None:
    """The nearest operator of op's kind before a tensor; None if none is near."""
    for _ in range(_BEHIND):
        found = producers.get(name)
        if found is None or found.kind == op.kind:
            return found
        name = found.inputs[0] if found.inputs else ""
    return None


def _sources(graph: Graph, read: Graph, names: Mapping[str, str]) -> dict[str, str]:
    """First results of operators as they are read -> the source of the written operator that they belong to."""
    producers = graph.producers()
    found: dict[str, str] = {}
    waiting: list[str] = []
    for op in read.ops:
        waiting.append(op.outputs[0])
        maker = producers.get(names.get(op.outputs[0], ""))
        if maker is not None:
            found |= dict.fromkeys(waiting, maker.source)
            waiting = []
    return {name: source for name, source in found.items() if source}
