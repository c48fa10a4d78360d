"""Reads a .tflite file into the canonical graph: container, tensors, signatures and order; operators come from ops/."""

from __future__ import annotations

import json
import math
import mmap
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.files import map_file
from qconvert.formats.reading.draft import Draft
from qconvert.formats.tflite.arity import wrong_arity
from qconvert.formats.tflite.attachments import read_files, text_of
from qconvert.formats.tflite.ops.custom import read_custom
from qconvert.formats.tflite.ops.signal import COMPLEX
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.schema import BUILTIN_OPERATOR_NAMES, root
from qconvert.formats.tflite.tensors import read_tensors
from qconvert.formats.tflite.verify import verify
from qconvert.graph import Graph, Signature
from qconvert.graph.metadata import (
    CHANGED,
    IGNORED_SCALES,
    SOURCE_DESCRIPTION,
    SOURCE_FORMAT,
    SOURCE_KERNELS,
    SOURCE_METADATA,
    TRANSPOSED,
)
from qconvert.plugins import operators

__all__ = ["operator_names", "read"]


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
    model = root(data)
    if model.version != 3:
        raise InvalidModelError(f"schema version {model.version}; only version 3 exists")
    if not model.subgraphs:
        raise InvalidModelError("the file holds no subgraph")
    subgraph = model.subgraphs[0]
    codes = _operator_codes(model)
    operations = subgraph.operators
    named = [_code_of(codes, operation.opcodeIndex) for operation in operations]
    readers = operators("tflite", "read")
    _require_covered([code.name for code in named if not code.is_custom], readers, len(named))
    _require_one_subgraph(model)
    draft = Draft()
    tensor_names = read_tensors(model, data, draft)
    inputs = _indices(subgraph.inputs, tensor_names, "graph inputs")
    outputs = _indices(subgraph.outputs, tensor_names, "graph outputs")
    ready = {name for name, tensor in draft.tensors.items() if tensor.is_constant} | set(inputs)
    for index, (operation, code) in enumerate(zip(operations, named, strict=True)):
        reading = _reading(draft, operation, index, code, tensor_names)
        _require_order(reading, ready)
        _reader(readers.get(code.key, read_custom), draft, reading)(reading)
        ready.update(reading.outputs)
    _require_produced(outputs, ready)
    outputs = draft.distinct(outputs)
    signatures = tuple(_signatures(model, tensor_names))
    draft.prune({*outputs, *(name for found in signatures for name in found.outputs.values())})
    draft.settle_names(outputs)
    graph = Graph(
        name=(subgraph.name or b"").decode("utf-8", "replace") or name,
        tensors=draft.tensors,
        ops=(),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        signatures=signatures,
        metadata={**_metadata(model), **read_files(data), **_ignored(draft)},
    )
    return graph.evolve(ops=draft.ops)


def _reader(usual: ReadFunction, draft: Draft, reading: Reading) -> ReadFunction:
    """The function that reads an operator: one of few where it has complex numbers."""
    if draft.complex.isdisjoint((*reading.inputs, *reading.outputs)):
        return usual
    if reading.name not in COMPLEX:
        raise reading.unsupported("complex numbers")
    return COMPLEX[reading.name]


def operator_names(model: Any, subgraph: Any) -> list[str]:
    """The operators of a subgraph in order, custom ones by their own names."""
    codes = _operator_codes(model)
    return [_code_of(codes, operation.opcodeIndex).name for operation in subgraph.operators]


class _Code(NamedTuple):
    """An operator code: the builtin operator's name, or the custom operator's own."""

    name: str
    version: int
    is_custom: bool

    @property
    def key(self) -> str:
        """Under which its read function is known; "" for a custom operator that is called as a builtin one."""
        return "" if self.is_custom and self.name in BUILTIN_OPERATOR_NAMES else self.name


def _operator_codes(model: Any) -> list[_Code]:
    """The operator codes of a model; one that is wrong has an empty name, which counts only where an operator has it."""
    builtin = dict(enumerate(BUILTIN_OPERATOR_NAMES))
    found = []
    for code in model.operatorCodes:
        # Files older than 2020 have the number in the 8-bit field; newer ones fill both (schema.fbs, OperatorCode).
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        name = builtin.get(number, f"operator number {number}")
        is_custom = name == "CUSTOM"
        found.append(_Code(_custom_code(code.customCode) if is_custom else name, code.version, is_custom))
    return found


def _custom_code(code: bytes | None) -> str:
    """The code of a custom operator as text; "" where it has none, or it is no text."""
    try:
        return (code or b"").decode("utf-8")
    except UnicodeDecodeError:
        return ""


def _code_of(codes: list[_Code], index: int) -> _Code:
    if index >= len(codes):
        raise InvalidModelError(f"an operator names operator code {index} of {len(codes)}")
    if not codes[index].name:
        raise InvalidModelError("a custom operator has no code, or one that is not UTF-8", where=f"operator code {index}")
    return codes[index]


def _require_covered(names: list[str], readers: Any, count: int) -> None:
    """Raises UnsupportedError with every operator that no plugin reads, and how often each occurs."""
    missing = Counter(name for name in names if name not in readers)
    if missing:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
        raise UnsupportedError(
            f"{sum(missing.values())} of {count} operators are not covered: {listed}",
            remedy="A plugin can add operators (hook qconvert_operators); `qconvert plugins` lists what is loaded.",
        )


def _require_one_subgraph(model: Any) -> None:
    """Raises UnsupportedError for further subgraphs, unless the file has signatures and all of them lead to the first.

    No operator that is covered refers to a subgraph, so without a signature that names it a further one cannot be reached.
    """
    if len(model.subgraphs) == 1:
        return
    keys: dict[int, list[str]] = {}
    for found in model.signatureDefs:
        keys.setdefault(found.subgraphIndex, []).append((found.signatureKey or b"").decode("utf-8", "replace"))
    if set(keys) == {0}:
        return
    named = []
    for index, subgraph in enumerate(model.subgraphs):
        name = (subgraph.name or b"").decode("utf-8", "replace")
        signatures = "".join(f", signature {key!r}" for key in keys.get(index, ()))
        named.append(f"{index} ({name!r}{signatures})")
    listed = ", ".join(named[:8]) + (" …" if len(named) > 8 else "")
    raise UnsupportedError(
        f"the file holds {len(named)} subgraphs, and one is covered: {listed}",
        remedy="Export each signature to a file of its own.",
    )


def _indices(indices: Any, names: list[str], what: str) -> list[str]:
    """Tensor names for a vector of tensor indices, or for None; -1 is an absent tensor."""
    if indices is None:
        return []
    found = []
    for index in indices.tolist():
        if not -1 <= index < len(names):
            raise InvalidModelError(f"{what} name tensor {index} of {len(names)}")
        found.append("" if index == -1 else names[index])
    return found


def _reading(draft: Draft, operation: Any, index: int, code: _Code, names: list[str]) -> Reading:
    where = f"{code.name} #{index}"
    inputs = _indices(operation.inputs, names, f"the inputs of {where}")
    outputs = _indices(operation.outputs, names, f"the outputs of {where}")
    if not all(outputs) or not outputs:
        raise InvalidModelError("an operator without outputs" if not outputs else "an output is absent", where=where)
    if wrong := wrong_arity(code.key, inputs, outputs):
        raise InvalidModelError(wrong, where=f"{where} ({outputs[0]!r})")
    custom = b"" if operation.customOptions is None else operation.customOptions.tobytes()
    options = operation.builtinOptions or operation.builtinOptions2
    return Reading(draft, code.name, index, tuple(inputs), tuple(outputs), options, code.version, custom)


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

    def mapping(pairs: Any) -> dict[str, str]:
        return {(pair.name or b"").decode("utf-8", "replace"): names[pair.tensorIndex] for pair in pairs if pair.tensorIndex < len(names)}

    return [
        Signature(
            (found.signatureKey or b"").decode("utf-8", "replace"),
            mapping(found.inputs),
            mapping(found.outputs),
        )
        for found in model.signatureDefs
        if found.subgraphIndex == 0
    ]


def _ignored(draft: Draft) -> dict[str, str]:
    """What the file states of scales that its kernels do not use; what is no number in JSON is a text there."""
    stated = {
        name: [[scale if math.isfinite(scale) else str(scale), point] for scale, point in pairs]
        for name, pairs in draft.ignored_scales.items()
    }
    return {IGNORED_SCALES: json.dumps(stated)} if stated else {}


def _metadata(model: Any) -> dict[str, str]:
    """The description and every metadata buffer, in base64 if it is no short text."""
    found = {SOURCE_FORMAT: "tflite", SOURCE_KERNELS: "tflite-xnnpack"}
    if model.description:
        found[SOURCE_DESCRIPTION] = model.description.decode("utf-8", "replace")
    buffers = model.buffers
    for index, entry in enumerate(model.metadata):
        if entry.buffer >= len(buffers):
            raise InvalidModelError(f"metadata entry {index} names buffer {entry.buffer} of {len(buffers)}")
        raw = buffers[entry.buffer].data
        data = b"" if raw is None else raw.tobytes()
        name = (entry.name or b"").decode("utf-8", "replace")
        if name in (TRANSPOSED, CHANGED):
            found[name] = data.rstrip(b"\0").decode("utf-8", "replace")
        else:
            found[f"{SOURCE_METADATA}{name}"] = text_of(data)
    return found
