"""Opens .onnx files: memory-mapped, verified, with functions inlined, nodes in order and shapes inferred."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.files import map_file
from qconvert.formats.onnx.verify import verify

if TYPE_CHECKING:
    import onnx_ir

__all__ = ["open_model"]

_LARGEST_PROTOBUF = 2**31 - 1


def open_model(path: Path) -> onnx_ir.Model:
    """The model of an .onnx file, ready to be read.

    Constants are lazy: external ones are views on the memory-mapped file. Functions are inlined, constants that are listed as
    inputs too (IR version < 4) are constants alone, and nodes are in an order in which they can run.

    Args:
        path: the file; external data lie beside it.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no ONNX file, is damaged, or its external data do not fit.
        UnsupportedError: it holds something that is not covered at all.
    """
    proto = _parsed(map_file(path))
    try:
        verify(proto, path.parent)
    except UnicodeDecodeError as error:  # onnx.proto has proto2 strings, which are decoded when they are looked at
        raise InvalidModelError(f"a name in the file is not UTF-8: {error.reason}") from error
    model = _deserialized(proto)
    _map_constants(model, path.parent)
    _drop_constant_inputs(model)
    _inline_functions(model)
    model.graph.sort()
    _infer_shapes(model)
    return model


def _parsed(data: mmap.mmap) -> Any:
    """The onnx.ModelProto in `data`."""
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    if len(data) > _LARGEST_PROTOBUF:
        remedy = "Save it with external data (onnx.save_model(…, save_as_external_data=True))."
        raise InvalidModelError("the file is above 2 GB, the limit of a protobuf", remedy=remedy)
    try:
        with memoryview(data) as view:
            return ModelProto.FromString(view)
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


def _map_constants(model: onnx_ir.Model, folder: Path) -> None:
    """Replaces external tensors by views on one mapping a file; onnx_ir maps the whole file once for each tensor."""
    import onnx_ir

    files: dict[Path, mmap.mmap] = {}
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


def _mapped(tensor: onnx_ir.ExternalTensor, folder: Path, files: dict[Path, mmap.mmap]) -> Any:
    import onnx_ir

    shape, dtype = tensor.shape.numpy(), tensor.dtype
    if tensor.size == 0:
        return onnx_ir.Tensor(np.zeros(shape, dtype.numpy()), dtype=dtype, name=tensor.name)
    place = folder / str(tensor.location)
    if place not in files:
        files[place] = map_file(place)
    packed = dtype.bitwidth < 8
    kind = np.dtype(np.uint8) if packed else dtype.numpy().newbyteorder("<")
    count = (tensor.size * dtype.bitwidth + 7) // 8 if packed else tensor.size
    data = np.frombuffer(files[place], kind, count, tensor.offset or 0)
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


def _infer_shapes(model: onnx_ir.Model) -> None:
    """Fills in shapes and types where onnx can; a model that it cannot infer keeps those that the file gives."""
    from onnx_ir.passes.common import ShapeInferencePass

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
