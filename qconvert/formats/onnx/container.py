"""Opens .onnx files: memory-mapped, verified, with functions inlined, nodes in order and shapes inferred. And looks at the nodes of a
file: to check one just written, to list its operators, to tell modules of PyTorch.
"""

from __future__ import annotations

import ast
import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError, name_file_in_errors
from qconvert.files import map_file
from qconvert.formats.onnx.inference import infer_shapes
from qconvert.formats.onnx.initializers import Files
from qconvert.formats.onnx.local_functions import inline_functions, inline_regions, sort_nodes
from qconvert.formats.onnx.model import DEFAULT_DOMAINS, Model, all_nodes
from qconvert.formats.onnx.old_opsets import lift_opset
from qconvert.formats.onnx.proto import ModelProto
from qconvert.formats.onnx.signatures import check_signatures
from qconvert.formats.onnx.verify import node_label, verify
from qconvert.formats.onnx.weights_by_cpu import take_unsigned_weights
from qconvert.formats.onnx.wire import OWN_FILE, without_large_constants

_LARGEST_PROTOBUF = 2**31 - 1


def open_model(path: Path, *, infer: bool = True) -> Model:
    """The model of an .onnx file, ready to be read.

    Large constants, external ones and those in the file itself, are views on memory-mapped files. Functions are inlined, constants
    that are listed as inputs too (IR version < 4) are constants alone, nodes are in an order in which they can run, and opsets below 7
    are lifted to it.

    Args:
        path: the file; external data lie next to it.
        infer: whether types and shapes that the file does not state are inferred; see inference.py.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no ONNX file, is damaged, or its external data do not fit.
        UnsupportedError: it holds something that is not covered at all.
    """
    return parse_model(map_file(path), path.parent, infer=infer)


def parse_model(data: mmap.mmap | bytes, folder: Path = Path(os.devnull), *, infer: bool = True) -> Model:
    """The model in `data`; see open_model(). By default there is no folder that external data could lie in."""
    proto = parse_proto(data, folder)
    sort_nodes(proto.graph.node)
    files = Files(folder, data)
    lift_opset(proto, files)
    model = Model(proto, files)
    if infer:
        infer_shapes(model)
    return model


def parse_proto(data: mmap.mmap | bytes, folder: Path) -> Any:
    """The onnx.ModelProto in `data`, verified, with functions inlined, and large constants left out as wire.py says."""
    proto = _parse_bytes(data)
    verify(proto, folder, len(data))
    if proto.functions:
        inline_regions(proto)
    if proto.functions:
        proto = inline_functions(proto)
    check_signatures(proto)
    take_unsigned_weights(proto, Files(folder, data))
    return proto


def load_proto(path: Path) -> Any:
    """The onnx.ModelProto in a file, verified, with all constants loaded into it; raises InvalidModelError if it is none."""
    data = map_file(path)
    with name_file_in_errors(path):
        model = _parse_bytes(data)
        verify(model, path.parent, len(data))
    files = Files(path.parent, data)
    for tensor in _constants(model):
        files.embed_data(tensor)
    return model


def unverified_proto(path: Path) -> Any:
    """The onnx.ModelProto in a file as it stands, large constants left out; raises InvalidModelError if it is none."""
    return _parse_bytes(map_file(path))


def form_of(path: Path) -> str:
    """Return the form in which a file holds quantized operators: "QOperator" if one node is of it, "QONNX", "QDQ", or "float"."""
    proto = unverified_proto(path)
    kinds = {node.op_type for part in (proto.graph, *proto.functions) for node in part.node}
    if any(kind.startswith(("QLinear", "QGemm")) for kind in kinds):
        return "QOperator"
    if kinds.intersection(("Quant", "BipolarQuant", "IntQuant", "FloatQuant")):
        return "QONNX"
    return "QDQ" if kinds.intersection(("QuantizeLinear", "DequantizeLinear")) else "float"


def external_files(path: Path) -> tuple[Path, ...]:
    """The files next to an .onnx file that hold constants of it, in the order in which it names them.

    Raises:
        QConvertError: as open_model().
    """
    data = map_file(path)
    if data.find(b"location") < 0:
        return ()
    proto = _parse_bytes(data)
    verify(proto, path.parent, len(data))
    external = (tensor for tensor in _constants(proto) if tensor.data_location == tensor.EXTERNAL)
    names = dict.fromkeys(entry.value for tensor in external for entry in tensor.external_data if entry.key == "location")
    return tuple(path.parent / name for name in names if name != OWN_FILE)


def _constants(model: Any) -> Iterator[Any]:
    """Every TensorProto in a ModelProto, wherever it stands."""
    waiting = [model]
    while waiting:
        message = waiting.pop()
        if message.DESCRIPTOR.name == "TensorProto":
            yield message
            continue
        for field, value in message.ListFields():
            if field.message_type is not None:
                waiting += value if isinstance(value, Iterable) else [value]


def _parse_bytes(data: mmap.mmap | bytes) -> Any:
    """The onnx.ModelProto in `data`, large constants left out as wire.py says."""
    from google.protobuf.message import DecodeError

    if len(data) > _LARGEST_PROTOBUF:
        remedy = "Save it with external data (onnx.save_model(…, save_as_external_data=True))."
        raise InvalidModelError("the file is above 2 GB, the limit of a protobuf", remedy=remedy, rule="file-too-large")
    try:
        return ModelProto.FromString(without_large_constants(data))
    except DecodeError as error:
        deep = "MaxDepth" in str(error)
        reason = "its graphs are nested too deeply" if deep else "this is not an ONNX file, or it is cut off or damaged"
        raise InvalidModelError(reason, rule="not-this-format") from error


def check(path: Path) -> Any:
    """Checks the file at `path`; its external data lie next to it. Returns its onnx.ModelProto, without large constants.

    Raises:
        InvalidModelError: names, order, constants or operators contradict each other or their operator sets; it names the node.
    """
    proto = parse_proto(map_file(path), path.parent)
    graph = proto.graph
    ready = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    names: set[str] = set()
    for node in graph.node:
        if node.name and node.name in names:
            raise InvalidModelError("has the same name as another node", where=node_label(node), rule="duplicate-name")
        names.add(node.name)
        for name in node.input:
            if name and name not in ready:
                raise InvalidModelError(f"reads {name!r} before it is written", where=node_label(node), rule="not-computed")
        ready.update(node.output)
    outputs = [value.name for value in graph.output]
    if len(set(outputs)) != len(outputs):
        raise InvalidModelError("the model has the same output twice", rule="duplicate-output")
    return proto


def contents(path: Path) -> dict[str, Any]:
    """IR version, opsets and producer, and the operator types of all graphs in the file with their counts.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no ONNX file.
    """
    model = unverified_proto(path)
    nodes = all_nodes(node for part in (model.graph, *model.functions) for node in part.node)
    names = (node.op_type if node.domain in DEFAULT_DOMAINS else f"{node.domain}.{node.op_type}" for node in nodes)
    return {
        "ir version": model.ir_version,
        "opset": ", ".join(f"{item.domain} {item.version}".strip() for item in model.opset_import),
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        **({"functions": len(model.functions)} if model.functions else {}),
        "operators": dict(Counter(names).most_common()),
    }


#: The list of scopes that torch.onnx.export(dynamo=True) writes at each node; the last is the node itself.
_SCOPES = "pkg.torch.onnx.name_scopes"
_LONGEST = 10_000


def modules(path: Path) -> dict[str, str]:
    """Tensor -> path of the module that computes it, such as "features.0"; nothing of tensors of which the file does not tell it.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no ONNX file.
    """
    model = unverified_proto(path)
    found: dict[str, str] = {}
    for node in model.graph.node:
        stated = next((item.value for item in node.metadata_props if item.key == _SCOPES), "")
        module = _module_from_scopes(stated) if stated else _module_from_name(node.name)
        if module is not None:
            found.update((name, module) for name in node.output if name)
    return found


def _module_from_scopes(text: str) -> str | None:
    """The module in a list of scopes as Python prints it."""
    try:
        scopes = ast.literal_eval(text) if len(text) < _LONGEST else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    if not isinstance(scopes, list) or not scopes or not all(isinstance(scope, str) for scope in scopes):
        return None
    return scopes[-2] if len(scopes) > 1 else ""


def _module_from_name(name: str) -> str | None:
    """The module in a node's name of torch.onnx.export(dynamo=False): "/features/features.0/conv/Conv" stands in features.0.conv."""
    parts = name.split("/")
    if len(parts) < 2 or parts[0]:
        return None
    return _path(parts[1:-1])


def _path(parts: Sequence[str]) -> str:
    """Modules in a list are called by the list and their number, "features.0" after "features"."""
    path: list[str] = []
    before = ""
    for part in parts:
        if before and part.startswith(f"{before}."):
            path[-1] = part
        else:
            path.append(part)
        before = part
    return ".".join(path)


def with_dynamic_dimensions(path: Path, folder: Path) -> Path | None:
    """Copy a file to a new folder with dynamic dimensions of inputs, outputs and inner tensors; None for a file with external
    constants.

    Raises:
        QConvertError: see load_proto().
    """
    if external_files(path):
        return None
    model = load_proto(path)
    for value in (*model.graph.input, *model.graph.output):
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            size.dim_param = f"{value.name}_{axis}"
    del model.graph.value_info[:]
    folder.mkdir()
    (folder / path.name).write_bytes(model.SerializeToString())
    return folder / path.name
