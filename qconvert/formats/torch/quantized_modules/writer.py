"""Writes the canonical graph as TorchScript of quantized modules (.pt, .ptl), for versions of PyTorch without torch.export.

Nodes and layers become a torch.fx.GraphModule of quantized modules, with quantized tensors as buffers. TorchScript keeps names of variables
and attributes alone: names of tensors are found by reading what was written, and noted next to it.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import QConvertError
from qconvert.formats.torch.archive import Archive
from qconvert.formats.torch.notes import NOTES, graph_notes
from qconvert.formats.torch.program import Module, Node, make_quantized_tensor, quantized_modules, tensor_of, torch_package
from qconvert.formats.torch.quantized_modules.builder import LAYER, Layer, ModuleBuilder
from qconvert.formats.torch.quantized_modules.operators import module_writers
from qconvert.formats.torch.session import GivenInputs
from qconvert.formats.torch.torchscript.reader import read_named
from qconvert.formats.torch.writer import fill, lower_graph
from qconvert.graph import Array, Graph, Op, Producers
from qconvert.plugins import operators

#: Operators of aten that TorchScript calls otherwise.
_RENAMED = {"sym_size": "size"}


class Modules(Module):
    """A torch.fx.GraphModule made of what a builder collected.

    Args:
        builder: likewise.
    """

    def __init__(self, builder: ModuleBuilder) -> None:
        self._builder = builder
        super().__init__(builder.nodes, builder.outputs)
        self.module.eval()

    def _add_node(self, graph: Any, node: Node) -> Any:
        if node.operator != LAYER:
            return super()._add_node(graph, node)
        name = self._free(node.name)
        self.module.add_module(name, _make_module(self._builder.layers[node]))
        return graph.create_node("call_module", name, tuple(self._argument(value) for value in node.arguments), name=f"{name}_result")

    def _constant(self, node: Node) -> Any:
        quantization = self._builder.quantizations.get(node)
        return super()._constant(node) if quantization is None or node.data is None else make_quantized_tensor(node.data, quantization)

    def _free(self, wanted: str) -> str:
        """A name that is an identifier, as old versions want."""
        plain = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in wanted).strip("_").lower()
        return super()._free(plain if plain[:1].isalpha() else f"constant_{plain}".strip("_"))

    def _function(self, operator: str) -> Any:
        """Without its overload, which TorchScript finds by the arguments."""
        space, name, *_ = operator.split(".")
        if space == "operator":
            return super()._function(operator)
        return getattr(getattr(self._torch.ops, space), _RENAMED.get(name, name))


def _make_module(layer: Layer) -> Any:
    """A module with its weights and the quantization of its results."""
    arguments = [_parameter(value) if isinstance(value, np.ndarray) else value for value in layer.arguments]
    module = getattr(quantized_modules(layer.fused), layer.kind)(*arguments)
    if layer.weights is not None:
        module.set_weight_bias(make_quantized_tensor(*layer.weights), None if layer.bias is None else tensor_of(layer.bias))
    for name, values in layer.parameters.items():
        setattr(module, name, _parameter(values) if isinstance(getattr(module, name), torch_package().nn.Parameter) else tensor_of(values))
    if layer.quantization is not None:
        as_tensors = isinstance(module.scale, torch_package().Tensor)
        module.scale, module.zero_point = (tensor_of(np.array(value)) for value in layer.quantization) if as_tensors else layer.quantization
    return module.eval()


def _parameter(values: Array) -> Any:
    return torch_package().nn.Parameter(tensor_of(values), requires_grad=False)


#: Operators between the one that stands for a canonical operator and its result: a Quantize, a Relu, a Clip …
_AFTER = 4


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
        twin = _find_counterpart(op, producers, found_as.get(op.outputs[0], ""))
        if twin is None:
            continue
        for found, name in zip(twin.inputs, op.inputs, strict=False):
            if (maker := producers.find(found, "Dequantize")) is not None:
                found = maker.inputs[0]
            if found and name and read[found].is_constant and graph[name].is_constant and name not in found_as:
                names.setdefault(found, name)
                found_as[name] = found


def _find_counterpart(op: Op, producers: Producers, name: str) -> Op | None:
    """The nearest operator of op's kind before a tensor; None if none is near."""
    for _ in range(_AFTER):
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


def write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes `graph` to `path`; returns, in words, what the user should know of the form chosen.

    Args:
        graph: spatial operators channels first; bytes are kept as they are, and all other integers as PyTorch has them.
        path: the file; it is overwritten. One that ends in .ptl has the lite interpreter's code too.
        options: "provenance" (str -> str, goes into the notes), "freeze" (whether modules become constants of one function).

    Raises:
        MissingPackageError: PyTorch is not installed.
        UnsupportedError: operators or types that have no form in PyTorch; all are listed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantized tensors are deprecated
        builder = build(graph)
        made = Modules(builder)
        script = _compile_script(made.module, graph.name, bool(options.get("freeze")))
        if path.suffix.lower() == ".ptl":
            content = script._save_to_buffer_for_lite_interpreter()
        else:
            buffer = io.BytesIO()
            torch_package().jit.save(script, buffer)
            content = buffer.getvalue()
    notes = {**graph_notes(graph, dict(options.get("provenance") or {})), **collect_names(builder, made, content)}
    path.write_bytes(_with_notes(content, json.dumps(notes, ensure_ascii=False).encode()))
    return ()


def build(graph: Graph) -> ModuleBuilder:
    """The calls, layers and constants of a graph; see write()."""
    writers = module_writers(operators("torch", "write"))
    builder = ModuleBuilder(lower_graph(graph, writers, is_exact=False).graph)
    fill(builder, writers)
    return builder


def live(graph: Graph) -> Any:
    """A torch.fx.GraphModule of quantized modules that computes the graph: inputs in order, and a tuple of outputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Modules(build(graph)).module


def _strip_attributes(module: Any) -> Any:
    """A GraphModule as a plain module, without the attributes of torch.fx, which TorchScript would keep."""
    kind = type("Network", (torch_package().nn.Module,), {"forward": type(module).forward, "__module__": "network"})
    plain = kind()
    for name, part in module.named_children():
        plain.add_module(name, part)
    for name, tensor in module.named_buffers(recurse=False):
        plain.register_buffer(name, tensor)
    return plain.eval()


def _compile_script(module: Any, name: str, freeze: bool) -> Any:
    """The module compiled by torch.jit.script, which follows no data."""
    torch = torch_package()
    try:
        script = torch.jit.script(_strip_attributes(module))
        return torch.jit.freeze(script) if freeze else script
    except Exception as error:  # PyTorch's errors share no base class but Exception
        raise QConvertError(
            f"PyTorch does not compile the modules: {str(error).strip()[:300]}", where=name, rule="runtime-refused-model"
        ) from error


def _with_notes(content: bytes, notes: bytes) -> bytes:
    """An archive with notes, and without its debug records, which name files of the machine that writes it; aligned as PyTorch does."""
    torch, buffer = torch_package(), io.BytesIO()
    reader = torch._C.PyTorchFileReader(io.BytesIO(content))
    writer = torch._C.PyTorchFileWriter(buffer)
    made_by_itself = ("version", "byteorder", ".data/serialization_id")
    kept = [name for name in reader.get_all_records() if not name.endswith(".debug_pkl") and name not in made_by_itself]
    for name, data in (*((name, reader.get_record(name)) for name in kept), (f"extra/{NOTES}", notes)):
        writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    return buffer.getvalue()
