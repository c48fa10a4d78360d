"""Opens .onnx files: memory-mapped, verified, with functions inlined, nodes in order and shapes inferred."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError, QConvertError
from qconvert.files import map_file
from qconvert.formats.onnx.inference import infer_shapes
from qconvert.formats.onnx.mapped_constants import Files
from qconvert.formats.onnx.model import Model
from qconvert.formats.onnx.old_opsets import lift_opset
from qconvert.formats.onnx.ordering import inline_functions, sort_nodes
from qconvert.formats.onnx.regions import inline_regions
from qconvert.formats.onnx.signatures import check_signatures
from qconvert.formats.onnx.verify import verify
from qconvert.formats.onnx.wire import OWN_FILE, without_large_constants

__all__ = ["external_files", "form_of", "load_proto", "open_model", "parse_model", "parse_proto", "unverified_proto"]

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
    return proto


def load_proto(path: Path) -> Any:
    """The onnx.ModelProto in a file, verified, with external constants loaded into it; raises InvalidModelError if it is none."""
    from google.protobuf.message import DecodeError
    from onnx import ModelProto
    from onnx.external_data_helper import load_external_data_for_model

    data = map_file(path)
    try:
        without_large_constants(data)  # counts what a parser would make objects of
        model = ModelProto.FromString(bytes(data))
        verify(model, path.parent, len(data))
    except DecodeError as error:
        raise InvalidModelError("not an ONNX file, or a damaged one", file=str(path), rule="not-this-format") from error
    except QConvertError as error:
        error.file = error.file or str(path)
        raise
    load_external_data_for_model(model, str(path.parent))
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
    names: dict[str, None] = {}
    proto = _parse_bytes(data)
    verify(proto, path.parent, len(data))
    waiting = [proto]
    while waiting:
        message = waiting.pop()
        if message.DESCRIPTOR.name == "TensorProto":
            if message.data_location == message.EXTERNAL:
                names.update((entry.value, None) for entry in message.external_data if entry.key == "location")
            continue
        for field, value in message.ListFields():
            if field.message_type is not None:
                waiting += value if isinstance(value, Iterable) else [value]
    return tuple(path.parent / name for name in names if name != OWN_FILE)


def _parse_bytes(data: mmap.mmap | bytes) -> Any:
    """The onnx.ModelProto in `data`, large constants left out as wire.py says."""
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    if len(data) > _LARGEST_PROTOBUF:
        remedy = "Save it with external data (onnx.save_model(…, save_as_external_data=True))."
        raise InvalidModelError("the file is above 2 GB, the limit of a protobuf", remedy=remedy, rule="file-too-large")
    try:
        return ModelProto.FromString(without_large_constants(data))
    except DecodeError as error:
        deep = "MaxDepth" in str(error)
        reason = "its graphs are nested too deeply" if deep else "this is not an ONNX file, or it is cut off or damaged"
        raise InvalidModelError(reason, rule="not-this-format") from error
