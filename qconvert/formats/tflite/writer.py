"""Writes the canonical graph as a .tflite file: container, tensors and signatures; operators come from ops/.

The file is built of the objects of schema.py, which formats/flatbuffers packs.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from qconvert.errors import UnsupportedError, format_some
from qconvert.formats.flatbuffers import DeferredBytes
from qconvert.formats.reading.notes import decomposition_notes, dump_notes
from qconvert.formats.tflite import schema
from qconvert.formats.tflite.file_contents import append_files, bytes_of
from qconvert.formats.tflite.operator import Operator
from qconvert.formats.tflite.packing import pack_parts
from qconvert.formats.tflite.tensors import DTYPE_NUMBERS, constant_bytes
from qconvert.formats.tflite.write_operators import take_operators, write_initial_values
from qconvert.formats.tflite.writing import Writing, as_int32
from qconvert.formats.writing import list_kinds
from qconvert.graph import Array, Graph, Quantization, Tensor
from qconvert.graph.activations import narrow_constants
from qconvert.graph.metadata import (
    CHANGED,
    DECOMPOSED,
    DYNAMIC_RANGE,
    PROVENANCE,
    SOURCE_DESCRIPTION,
    SOURCE_METADATA,
    STATED_ATTRIBUTES,
    STATED_LIMITS,
    TRANSPOSED,
)
from qconvert.kernels.torch_forms import has_quantize_form
from qconvert.operators import kind_of
from qconvert.operators.formulas import FORMULAS
from qconvert.operators.sizes import reshape_sizes
from qconvert.plugins import operators


def write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes `graph` to `path`.

    Args:
        graph: spatial operators channels last, on types that TFLite's kernels have; see targets/tflite.py.
        path: the file; it is overwritten.
        options: "provenance" (str -> str, goes into the metadata).

    Returns:
        a note on dynamic dimensions of inputs.

    Raises:
        UnsupportedError: operators that no plugin writes; all are listed.
        QConvertError: the model without its constants would be above 2 GB.
    """
    with path.open("w+b") as stream:
        _write_model(graph, dict(options.get("provenance") or {}), stream)
    return _dynamic_inputs(graph)


def _dynamic_inputs(graph: Graph) -> tuple[str, ...]:
    """Which inputs have dynamic dimensions: a file states numbers for them, with which LiteRT begins, and that they are dynamic."""
    found = []
    for name in graph.inputs:
        shape = graph[name].shape or ()
        if any(isinstance(size, str) for size in shape):
            found.append(f"{name!r} ({', '.join(map(str, shape))})")
    if not found:
        return ()
    listed = format_some(found, 3)
    return (f"note: dynamic dimensions of inputs are 1 until the program resizes them: {listed}; --input-shape fixes them",)


def build(graph: Graph, provenance: Mapping[str, str]) -> bytes:
    """The .tflite file of `graph`; see write()."""
    stream = io.BytesIO()
    _write_model(graph, provenance, stream)
    return stream.getvalue()


def _write_model(graph: Graph, provenance: Mapping[str, str], stream: BinaryIO) -> None:
    found = take_operators(graph)
    ops = (op for writing in (found.writing, *found.functions) for op in writing.graph.ops)
    if missing := list_kinds(ops, (operators("tflite", "write"), FORMULAS)):
        raise UnsupportedError(f"operators without a TFLite form: {missing}", rule="operators-not-writable")
    if found.failures:
        raise found.failures[0][1]
    for writing in (found.writing, *found.functions):
        for name in writing.graph.outputs:
            writing.use(name)
        writing.prune()
    stream.writelines(_File(found.writing, found.functions).pack(provenance))
    append_files(stream, graph.metadata)


#: Bytes by which most buffers differ.
_BEGINNING = 256


def _pieces(data: bytes | memoryview | DeferredBytes) -> Iterator[bytes | memoryview]:
    return iter(data.pieces() if isinstance(data, DeferredBytes) else (data,))


def _digest(data: bytes | memoryview | DeferredBytes) -> bytes:
    found = hashlib.sha256()
    for piece in _pieces(data):
        found.update(piece)
    return found.digest()


class _File:
    """The FlatBuffer objects of one model."""

    def __init__(self, writing: Writing, functions: Sequence[Writing]) -> None:
        self._writing, self._functions = writing, functions
        self._graph = writing.graph
        self._initial = write_initial_values(self._graph)
        self._numbers: dict[str, int] = {}  # of the tensors of the subgraph that is packed
        self._codes: dict[tuple[str, bool], int] = {}
        self._versions: dict[tuple[str, bool], int] = {}
        written = [operator for part in (writing, self._initial, *functions) if part is not None for operator in part.operators]
        for operator in written:
            key = (operator.builtin, operator.custom is not None)
            self._versions[key] = max(operator.version, self._versions.get(key, 1))
        self._buffers: list[Any] = [schema.BufferT()]  # buffer 0 is the empty one that activations name
        #: Buffers by their length and beginning: the first one, and where there are several, all by their digests.
        self._known: dict[tuple[int, bytes], tuple[int, dict[bytes, int]]] = {}
        #: What custom operators compute: their kernels say the shape, so a file need not.
        self._carried = {name for operator in written if operator.custom is not None for name in operator.outputs}
        self._variables: set[str] = set()
        self._scales: list[Any] = []  # tensors after the others, which hold scales of blocks

    def pack(self, provenance: Mapping[str, str]) -> Iterator[bytes | memoryview]:
        first = [] if self._initial is None else [self._subgraph(self._initial)]
        others = [*first, *map(self._subgraph, self._functions)]
        model = schema.ModelT(
            version=3,
            subgraphs=[self._subgraph(self._writing), *others],
            operatorCodes=[self._code(*key, self._versions[key]) for key in self._codes],
            description=self._graph.metadata.get(SOURCE_DESCRIPTION, "qconvert"),
            metadata=self._metadata(provenance),
            signatureDefs=self._signatures(),
            buffers=self._buffers,
        )
        return pack_parts(model)

    def _subgraph(self, writing: Writing) -> Any:
        """A subgraph; what names tensors of the main one is packed after it."""
        self._numbers = {name: number for number, name in enumerate(writing.tensors)}
        self._scales, self._variables = [], writing.variables
        tensors = [self._tensor(tensor) for tensor in writing.tensors.values()]
        return schema.SubGraphT(
            name=writing.graph.name,
            tensors=tensors + self._scales,
            inputs=self._indices(writing.graph.inputs),
            outputs=self._indices(writing.graph.outputs),
            operators=[self._operator(operator) for operator in writing.operators],
        )

    def _tensor(self, tensor: Tensor) -> Any:
        if tensor.data is not None and tensor.dtype == "string":
            raise UnsupportedError("constant strings are not covered", where=f"tensor {tensor.name!r}", rule="constant-strings")
        if tensor.shape is None and tensor.name not in self._carried:  # a scalar, for every reader of a file
            remedy = "Export the model with shapes; dynamic dimensions are enough, the rank has to be known."
            raise UnsupportedError(
                "its rank is unknown; TFLite requires a known rank", where=f"tensor {tensor.name!r}", remedy=remedy, rule="unknown-rank"
            )
        sizes = reshape_sizes(tensor.shape or ())
        return schema.TensorT(
            name=tensor.name,
            type=DTYPE_NUMBERS[tensor.dtype],
            isVariable=tensor.name in self._variables,
            hasRank=tensor.shape is not None,
            shape=as_int32([1 if size < 0 else size for size in sizes], tensor.name),
            shapeSignature=np.array(sizes, np.int32) if -1 in sizes else None,
            buffer=0 if tensor.data is None else self._buffer(constant_bytes(tensor.data, tensor.dtype)),
            quantization=None if tensor.quantization is None else self._quantization(tensor.name, tensor.quantization),
        )

    def _quantization(self, name: str, quantization: Quantization) -> Any:
        """Scales and zero points. Scales in blocks are a tensor of their own; XNNPACK takes them as float16 alone, without zero points."""
        if not quantization.block_size:
            return schema.QuantizationParametersT(
                scale=np.ascontiguousarray(quantization.scale, np.float32),
                zeroPoint=np.ascontiguousarray(quantization.zero_point, np.int64),
                quantizedDimension=quantization.axis or 0,
            )
        number = len(self._numbers) + len(self._scales)
        scales = quantization.scale.astype(np.float16)
        self._scales.append(self._tensor(Tensor(f"{name}/scales", "float16", scales.shape, scales)))
        return schema.QuantizationParametersT(
            detailsType=schema.QuantizationDetails.BlockwiseQuantization,
            details=schema.BlockwiseQuantizationT(scales=number, zeroPoints=-1, blockSize=quantization.block_size),
        )

    def _buffer(self, data: bytes | memoryview | DeferredBytes) -> int:
        """The number of a buffer with these bytes; equal ones are stored once. Those that begin like no other are not read for that."""
        number = len(self._buffers)
        first, digests = self._known.setdefault((len(data), bytes(next(_pieces(data), b"")[:_BEGINNING])), (number, {}))
        if first < number:
            if not digests:
                digests[_digest(self._buffers[first].data)] = first
            number = digests.setdefault(_digest(data), number)
        if number == len(self._buffers):
            self._buffers.append(schema.BufferT(data=data))
        return number

    def _indices(self, names: Any) -> Array:
        return np.array([self._numbers[name] if name else -1 for name in names], np.int32)

    def _operator(self, operator: Operator) -> Any:
        key = (operator.builtin, operator.custom is not None)
        options: dict[str, Any] = {}
        if operator.custom is not None:
            options["customOptions"] = np.frombuffer(operator.custom, np.uint8)
        elif operator.options is not None:
            table = operator.options.table
            union = "builtinOptions" if hasattr(schema.BuiltinOptions, table) else "builtinOptions2"
            numbers = getattr(schema, union[0].upper() + union[1:])
            options = {f"{union}Type": getattr(numbers, table), union: operator.options}
        return schema.OperatorT(
            opcodeIndex=self._codes.setdefault(key, len(self._codes)),
            inputs=self._indices(operator.inputs),
            outputs=self._indices(operator.outputs),
            intermediates=self._indices(operator.intermediates) if operator.intermediates else None,
            **options,
        )

    def _code(self, builtin: str, is_custom: bool, version: int) -> Any:
        """An operator code, one for all of a kind as converters write it; numbers above 127 have the 8-bit field say so (schema.fbs)."""
        number = schema.BuiltinOperator.CUSTOM if is_custom else getattr(schema.BuiltinOperator, builtin)
        return schema.OperatorCodeT(
            builtinCode=number, deprecatedBuiltinCode=min(number, 127), version=version, customCode=builtin if is_custom else None
        )

    def _metadata(self, provenance: Mapping[str, str]) -> list[Any]:
        """The source's own metadata, and where the file came from."""
        texts = {key.removeprefix(SOURCE_METADATA): text for key, text in self._graph.metadata.items() if key.startswith(SOURCE_METADATA)}
        contents = {key: content for key, text in texts.items() if (content := bytes_of(text)) is not None}
        if self._graph.metadata.get(TRANSPOSED, "[]") != "[]":
            contents[TRANSPOSED] = self._graph.metadata[TRANSPOSED].encode()
        notes = dump_notes({STATED_LIMITS: narrow_constants(self._graph)})
        notes |= {key: self._graph.metadata[key] for key in (STATED_ATTRIBUTES, DYNAMIC_RANGE) if key in self._graph.metadata}
        notes |= dump_notes(
            {DECOMPOSED: decomposition_notes(self._graph, lambda op: kind_of(op).quantizes and has_quantize_form(op, "tflite"))}
        )
        contents |= {key: text.encode() for key, text in notes.items()}
        origin = dict(provenance)
        if changed := origin.pop(CHANGED, self._graph.metadata.get(CHANGED, "")):
            contents[CHANGED] = changed.encode()
        if origin:
            contents[PROVENANCE] = json.dumps(origin).encode()
        return [schema.MetadataT(name=name, buffer=self._buffer(content)) for name, content in contents.items()]

    def _signatures(self) -> list[Any]:
        found = []
        first = 1 + (self._initial is not None)
        for signature in self._graph.signatures:
            number, writing = 0, self._writing
            if signature.function:
                number = self._writing.subgraphs[signature.function]
                writing = self._functions[number - first]
            places = {name: place for place, name in enumerate(writing.tensors)}
            inputs, outputs = ([schema.TensorMapT(name=argument, tensorIndex=places[name]) for argument, name in names.items()]
                               for names in (signature.inputs, signature.outputs))  # fmt: skip
            found.append(schema.SignatureDefT(signatureKey=signature.key, subgraphIndex=number, inputs=inputs, outputs=outputs))
        return found
