"""Opens .onnx files: memory-mapped, verified, with functions inlined, nodes in order and shapes inferred."""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.files import map_file
from qconvert.formats.onnx.verify import verify
from qconvert.formats.onnx.wire import OWN_FILE, without_large_constants

if TYPE_CHECKING:
    import onnx_ir

__all__ = ["external_files", "infer_shapes", "load_proto", "open_model", "parse_model"]

_LARGEST_PROTOBUF = 2**31 - 1


def open_model(path: Path, *, infer: bool = True) -> onnx_ir.Model:
    """The model of an .onnx file, ready to be read.

    Large constants, external ones and those in the file itself, are views on memory-mapped files. Functions are inlined, constants
    that are listed as inputs too (IR version < 4) are constants alone, and nodes are in an order in which they can run.

    Args:
        path: the file; external data lie beside it.
        infer: whether types and shapes that the file does not state are inferred; see infer_shapes().

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no ONNX file, is damaged, or its external data do not fit.
        UnsupportedError: it holds something that is not covered at all.
    """
    return parse_model(map_file(path), path.parent, infer=infer)


def parse_model(data: mmap.mmap | bytes, folder: Path = Path(os.devnull), *, infer: bool = True) -> onnx_ir.Model:
    """The model in `data`; see open_model(). By default there is no folder that external data could lie in."""
    model = _deserialized(_verified(data, folder))
    _map_constants(model, folder, data)
    _drop_constant_inputs(model)
    _inline_functions(model)
    model.graph.sort()
    if infer:
        infer_shapes(model)
    return model


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
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidModelError("no ONNX file, or a damaged one", file=str(path)) from error
    except QConvertError as error:
        error.file = error.file or str(path)
        raise
    load_external_data_for_model(model, str(path.parent))
    return model


def external_files(path: Path) -> tuple[Path, ...]:
    """The files beside an .onnx file that hold constants of it, in the order in which it names them.

    Raises:
        QConvertError: as open_model().
    """
    data = map_file(path)
    if data.find(b"location") < 0:
        return ()
    names: dict[str, None] = {}
    waiting = [_verified(data, path.parent)]
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


def _verified(data: mmap.mmap | bytes, folder: Path) -> Any:
    """The onnx.ModelProto in `data`, sound and without its large constants."""
    proto = _parsed(data)
    try:
        verify(proto, folder, len(data))
    except UnicodeDecodeError as error:  # onnx.proto has proto2 strings, which are decoded when they are looked at
        raise InvalidModelError(f"a name in the file is not UTF-8: {error.reason}") from error
    return proto


def _parsed(data: mmap.mmap | bytes) -> Any:
    """The onnx.ModelProto in `data`, large constants left out as wire.py says."""
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    if len(data) > _LARGEST_PROTOBUF:
        remedy = "Save it with external data (onnx.save_model(…, save_as_external_data=True))."
        raise InvalidModelError("the file is above 2 GB, the limit of a protobuf", remedy=remedy)
    try:
        return ModelProto.FromString(without_large_constants(data))
    except DecodeError as error:
        deep = "MaxDepth" in str(error)
        reason = "its graphs are nested too deeply" if deep else "this is no ONNX file, or it is cut off or damaged"
        raise InvalidModelError(reason) from error


def _deserialized(proto: Any) -> onnx_ir.Model:
    from onnx_ir.serde import deserialize_model

    try:
        return deserialize_model(proto)
    except Exception as error:  # whatever onnx_ir finds wrong beyond verify(), of any class
        while error.__cause__ is not None and isinstance(error.__cause__, Exception):
            error = error.__cause__
        raise InvalidModelError(f"the model cannot be read: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")[:300] or type(error).__name__


def _map_constants(model: onnx_ir.Model, folder: Path, data: mmap.mmap | bytes) -> None:
    """Replaces external tensors by views on one mapping a file; onnx_ir maps the whole file once for each tensor."""
    import onnx_ir

    files: dict[str, mmap.mmap | bytes] = {OWN_FILE: data}
    graphs = [model.graph, *model.graph.subgraphs(), *(graph for f in model.functions.values() for graph in (f.graph, *f.subgraphs()))]
    for graph in graphs:
        for value in graph.initializers.values():
            if isinstance(value.const_value, onnx_ir.ExternalTensor):
                value.const_value = _mapped(value.const_value, folder, files)
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                if isinstance(attribute.value, onnx_ir.ExternalTensor):
                    node.attributes[name] = onnx_ir.AttrTensor(name, _mapped(attribute.value, folder, files))
                elif attribute.type == onnx_ir.AttributeType.TENSORS and not attribute.is_ref():
                    items = [_mapped(t, folder, files) if isinstance(t, onnx_ir.ExternalTensor) else t for t in attribute.as_tensors()]
                    node.attributes[name] = onnx_ir.AttrTensors(name, items)


def _mapped(tensor: onnx_ir.ExternalTensor, folder: Path, files: dict[str, mmap.mmap | bytes]) -> Any:
    import onnx_ir

    shape, dtype, location = tensor.shape.numpy(), tensor.dtype, str(tensor.location)
    if tensor.size == 0:
        return onnx_ir.Tensor(np.zeros(shape, dtype.numpy()), dtype=dtype, name=tensor.name)
    if location not in files:
        files[location] = map_file(folder / location)
    packed = dtype.bitwidth < 8
    kind = np.dtype(np.uint8) if packed else dtype.numpy().newbyteorder("<")
    count = (tensor.size * dtype.bitwidth + 7) // 8 if packed else tensor.size
    data = np.frombuffer(files[location], kind, count, tensor.offset or 0)
    if packed:
        return onnx_ir.PackedTensor(data, dtype, shape=tensor.shape, name=tensor.name)
    return onnx_ir.Tensor(data.reshape(shape), dtype=dtype, name=tensor.name)


def _drop_constant_inputs(model: onnx_ir.Model) -> None:
    for graph in (model.graph, *model.graph.subgraphs()):
        kept = [value for value in graph.inputs if value.const_value is None]
        if len(kept) != len(graph.inputs):
            graph.inputs.clear()
            graph.inputs.extend(kept)


def _inline_functions(model: onnx_ir.Model) -> None:
    if not model.functions:
        return
    from onnx_ir.passes.common import InlinePass, TopologicalSortPass

    try:
        TopologicalSortPass()(model)
        InlinePass()(model)
    except QConvertError:
        raise
    except Exception as error:  # what the inliner refuses, such as a function of another opset
        while error.__cause__ is not None and isinstance(error.__cause__, Exception):
            error = error.__cause__
        raise UnsupportedError(f"a function of the model cannot be inlined: {_first_line(error)}") from error


def infer_shapes(model: onnx_ir.Model) -> None:
    """Fills in shapes and types where onnx can; a model that it cannot infer keeps those that the file gives."""
    from onnx_ir.passes.common import LiftConstantsToInitializersPass, ShapeInferencePass

    # inference works on a copy of the model, but without its large initializers
    LiftConstantsToInitializersPass(size_limit=256)(model)
    with _quiet("onnx_ir.passes.common.shape_inference"):
        ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
