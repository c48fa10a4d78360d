"""Reads a .tflite file into the canonical graph: container, tensors, signatures and order; operators come from ops/."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.files import map_file
from qconvert.formats.reading.draft import Draft
from qconvert.formats.tflite.attachments import read_files, text_of
from qconvert.formats.tflite.reading import Reading
from qconvert.formats.tflite.tensors import read_tensors
from qconvert.formats.tflite.verify import verify
from qconvert.graph import Graph, Signature
from qconvert.graph.metadata import SOURCE_DESCRIPTION, SOURCE_FORMAT, SOURCE_KERNELS, SOURCE_METADATA, TRANSPOSED
from qconvert.plugins import operators

__all__ = ["read"]


def read(path: Path) -> Graph:
    """The canonical graph of a .tflite file. Constants are views on the memory-mapped file.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no TFLite model, is damaged, or contradicts the schema.
        UnsupportedError: it holds operators that are not covered; all are listed.
    """
    return read_bytes(map_file(path), path.stem)


def read_bytes(data: mmap.mmap | bytes, name: str) -> Graph:
    """The canonical graph of a .tflite model in memory; see read()."""
    verify(data)
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(data, 0)
    if model.Version() != 3:
        raise InvalidModelError(f"schema version {model.Version()}; only version 3 exists")
    if model.SubgraphsLength() == 0:
        raise InvalidModelError("the file holds no subgraph")
    subgraph = model.Subgraphs(0)
    codes = _operator_codes(model, schema)
    operations = [subgraph.Operators(i) for i in range(subgraph.OperatorsLength())]
    names = [_code_of(codes, operation.OpcodeIndex()) for operation in operations]
    readers = operators("tflite", "read")
    _require_covered([name for name, _ in names], readers)
    draft = Draft()
    tensor_names = read_tensors(model, data, draft)
    inputs = _indices(subgraph.InputsAsNumpy(), tensor_names, "graph inputs")
    outputs = _indices(subgraph.OutputsAsNumpy(), tensor_names, "graph outputs")
    ready = {name for name, tensor in draft.tensors.items() if tensor.is_constant} | set(inputs)
    for index, (operation, (op_name, version)) in enumerate(zip(operations, names, strict=True)):
        reading = _reading(draft, operation, index, op_name, version, tensor_names, schema)
        _require_order(reading, ready)
        readers[op_name](reading)
        ready.update(reading.outputs)
    _require_produced(outputs, ready)
    draft.settle_names()
    graph = Graph(
        name=(subgraph.Name() or b"").decode("utf-8", "replace") or name,
        tensors=draft.tensors,
        ops=(),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        signatures=tuple(_signatures(model, tensor_names)),
        metadata={**_metadata(model), **read_files(data)},
    )
    return graph.evolve(ops=draft.ops)


def _operator_codes(model: Any, schema: Any) -> list[tuple[str, int]]:
    """Name and version of each operator code. Custom operators have their own name."""
    builtin = {value: key for key, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    found = []
    for i in range(model.OperatorCodesLength()):
        code = model.OperatorCodes(i)
        # Files older than 2020 have the number in the 8-bit field; newer ones fill both (schema.fbs, OperatorCode).
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        name = builtin.get(number, f"operator number {number}")
        if name == "CUSTOM":
            name = (code.CustomCode() or b"CUSTOM").decode("utf-8", "replace")
        found.append((name, code.Version()))
    return found


def _code_of(codes: list[tuple[str, int]], index: int) -> tuple[str, int]:
    if index >= len(codes):
        raise InvalidModelError(f"an operator names operator code {index} of {len(codes)}")
    return codes[index]


def _require_covered(names: list[str], readers: Any) -> None:
    """Raises UnsupportedError with every operator that no plugin reads, and how often each occurs."""
    missing = Counter(name for name in names if name not in readers)
    if missing:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
        raise UnsupportedError(
            f"{sum(missing.values())} of {len(names)} operators are not covered: {listed}",
            remedy="A plugin can add operators (hook qconvert_operators); `qconvert plugins` lists what is loaded.",
        )


def _indices(indices: Any, names: list[str], what: str) -> list[str]:
    """Tensor names for a vector of tensor indices; -1 is an absent tensor."""
    if isinstance(indices, int):  # flatbuffers returns 0 for a vector that is not there
        return []
    found = []
    for index in indices.tolist():
        if not -1 <= index < len(names):
            raise InvalidModelError(f"{what} name tensor {index} of {len(names)}")
        found.append("" if index == -1 else names[index])
    return found


def _reading(draft: Draft, operation: Any, index: int, name: str, version: int, names: list[str], schema: Any) -> Reading:
    where = f"{name} #{index}"
    inputs = _indices(operation.InputsAsNumpy(), names, f"the inputs of {where}")
    outputs = _indices(operation.OutputsAsNumpy(), names, f"the outputs of {where}")
    if not all(outputs) or not outputs:
        raise InvalidModelError("an operator without outputs" if not outputs else "an output is absent", where=where)
    custom = b"" if isinstance(raw := operation.CustomOptionsAsNumpy(), int) else raw.tobytes()
    options = _options(operation.BuiltinOptionsType, operation.BuiltinOptions, schema, schema.BuiltinOptions)
    options = options or _options(operation.BuiltinOptions2Type, operation.BuiltinOptions2, schema, schema.BuiltinOptions2)
    return Reading(draft, name, index, tuple(inputs), tuple(outputs), options, version, custom)


def _options(type_of: Callable[[], int], table_of: Callable[[], Any], schema: Any, union: Any) -> Any:
    """The option table of an operator as an object of its generated class, or None."""
    table = table_of()
    name = next((key for key, value in vars(union).items() if value == type_of()), "NONE")
    if table is None or name == "NONE":
        return None
    options = getattr(schema, name)()
    options.Init(table.Bytes, table.Pos)
    return options


def _require_order(reading: Reading, ready: set[str]) -> None:
    """TFLite runs operators as listed: an input that nothing has computed yet means a cycle or a wrong order."""
    for name in reading.inputs:
        if name and name not in ready:
            raise reading.invalid(f"reads {name!r} before any operator has computed it (unordered operators, or a cycle)")
    for name in reading.outputs:
        if name in ready:
            raise reading.invalid(f"writes {name!r}, which is already an input, a constant or another operator's output")


def _require_produced(outputs: list[str], ready: set[str]) -> None:
    if not outputs:
        raise InvalidModelError("the model has no outputs")
    for name in outputs:
        if name not in ready:
            raise InvalidModelError("a graph output is computed by no operator", where=repr(name))


def _signatures(model: Any, names: list[str]) -> list[Signature]:
    """The signatures of subgraph 0."""

    def mapping(count: int, item: Callable[[int], Any]) -> dict[str, str]:
        pairs = (item(i) for i in range(count))
        return {
            (pair.Name() or b"").decode("utf-8", "replace"): names[pair.TensorIndex()] for pair in pairs if pair.TensorIndex() < len(names)
        }

    return [
        Signature(
            (found.SignatureKey() or b"").decode("utf-8", "replace"),
            mapping(found.InputsLength(), found.Inputs),
            mapping(found.OutputsLength(), found.Outputs),
        )
        for found in (model.SignatureDefs(i) for i in range(model.SignatureDefsLength()))
        if found.SubgraphIndex() == 0
    ]


def _metadata(model: Any) -> dict[str, str]:
    """The description and every metadata buffer, in base64 if it is no short text."""
    found = {SOURCE_FORMAT: "tflite", SOURCE_KERNELS: "tflite-xnnpack"}
    if model.Description():
        found[SOURCE_DESCRIPTION] = model.Description().decode("utf-8", "replace")
    for i in range(model.MetadataLength()):
        entry = model.Metadata(i)
        if entry.Buffer() >= model.BuffersLength():
            raise InvalidModelError(f"metadata entry {i} names buffer {entry.Buffer()} of {model.BuffersLength()}")
        raw = model.Buffers(entry.Buffer()).DataAsNumpy()
        data = b"" if isinstance(raw, int) else np.asarray(raw).tobytes()
        name = (entry.Name() or b"").decode("utf-8", "replace")
        if name == TRANSPOSED:
            found[name] = data.rstrip(b"\0").decode("utf-8", "replace")
        else:
            found[f"{SOURCE_METADATA}{name}"] = text_of(data)
    return found
