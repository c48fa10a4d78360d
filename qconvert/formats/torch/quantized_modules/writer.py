"""Writes the canonical graph as TorchScript of quantized modules (.pt, .ptl), for versions of PyTorch without torch.export."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qconvert.errors import QConvertError
from qconvert.formats.torch.building import fill, lower_graph
from qconvert.formats.torch.frameworks import torch_package
from qconvert.formats.torch.notes import NOTES, graph_notes
from qconvert.formats.torch.quantized_modules import module_writers
from qconvert.formats.torch.quantized_modules.builder import ModuleBuilder
from qconvert.formats.torch.quantized_modules.names import collect_names
from qconvert.formats.torch.quantized_modules.program import Modules
from qconvert.graph import Graph
from qconvert.plugins import operators

__all__ = ["build", "live", "write"]


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
        content = _archive(_compile_script(made.module, graph.name, bool(options.get("freeze"))), lite=path.suffix.lower() == ".ptl")
    notes = {**graph_notes(graph, dict(options.get("provenance") or {})), **collect_names(builder, made, content)}
    path.write_bytes(_with_entry(content, f"extra/{NOTES}", json.dumps(notes, ensure_ascii=False).encode()))
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


def _archive(script: Any, lite: bool) -> bytes:
    """The module as an archive, without its debug records, which name files of the machine that writes it."""
    torch, buffer = torch_package(), io.BytesIO()
    if lite:
        buffer.write(script._save_to_buffer_for_lite_interpreter())
    else:
        torch.jit.save(script, buffer)
    return _rewritten(buffer.getvalue(), lambda name: not name.endswith(".debug_pkl"), {})


def _with_entry(content: bytes, name: str, data: bytes) -> bytes:
    return _rewritten(content, lambda _: True, {name: data})


def _rewritten(content: bytes, keeps: Callable[[str], bool], more: Mapping[str, bytes]) -> bytes:
    """An archive with some of its entries and further ones, aligned as PyTorch aligns them."""
    torch, buffer = torch_package(), io.BytesIO()
    reader = torch._C.PyTorchFileReader(io.BytesIO(content))
    writer = torch._C.PyTorchFileWriter(buffer)
    made_by_itself = ("version", "byteorder", ".data/serialization_id")
    records = {name: reader.get_record(name) for name in reader.get_all_records() if keeps(name) and name not in made_by_itself}
    for name, data in {**records, **more}.items():
        writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    return buffer.getvalue()
