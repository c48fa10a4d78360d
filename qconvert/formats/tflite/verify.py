"""Checks of a .tflite file: that it is a sound FlatBuffer of the schema, that the tables of one just written fit each other, and how many
inputs and outputs each operator has.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.files import map_file
from qconvert.formats.flatbuffers import MOST_VISITS, verify_tables
from qconvert.formats.tflite.schema import BUILTIN_OPERATOR_NAMES, TFLITE, builtin_number, decode_text, numbers_of, root
from qconvert.formats.tflite.tensors import RESOURCE, byte_count, dtype_of

#: Where a table says (place, length) of data after the FlatBuffer, in files above 2 GB.
_OUTSIDE = {"Buffer": (6, 8), "Operator": (22, 24)}
_OTHER_FORMATS = (
    (b"PK\x03\x04", "a zip archive, such as a PyTorch, Keras or NumPy file"),
    (b"GGUF", "a GGUF file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, such as an older Keras model"),
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer; fetch the file itself with `git lfs pull`"),
    (b"<", "an HTML or XML page, which servers send in place of a file"),
    *((bytes([0x80, protocol]), "a Python pickle") for protocol in range(2, 6)),
    # ModelProto.ir_version (field 1, varint), then producer_name, domain, graph or opset_import (onnx.proto).
    *((bytes([8, version, tag]), "an ONNX file") for version in range(1, 32) for tag in (0x12, 0x22, 0x3A, 0x42)),
)


def verified_root(data: mmap.mmap | bytes) -> Any:
    """The root of a .tflite file after its verification; see verify()."""
    verify(data)
    return root(data)


def verify(data: bytes | bytearray | memoryview | mmap.mmap, *, max_tables: int = MOST_VISITS) -> None:
    """Checks every offset, vtable, vector and string of a .tflite file, see verify_tables().

    Args:
        data: the whole file.
        max_tables: how many tables and vectors a walk may meet.

    Raises:
        InvalidModelError: it is no TFLite file or is damaged; the reason names the field, the place and the excess.
    """
    with memoryview(data) as raw, raw.cast("B") as view:
        if len(view) < 8:
            reason = f"a TFLite file has at least 8 bytes, this one has {len(view)}" if len(view) else "the file is empty"
            raise InvalidModelError(reason, rule="not-this-format")
        _require_identifier(view)
        verify_tables(view, TFLITE, max_tables=max_tables, outside=_OUTSIDE)


def _require_identifier(view: memoryview) -> None:
    magic = bytes(view[4:8])
    if magic == TFLITE.identifier:
        return
    start = bytes(view[:32])
    hint = next((f"; it looks like {name}" for prefix, name in _OTHER_FORMATS if start.startswith(prefix)), "")
    if start[8:10] == b'{"':
        hint = "; it looks like a safetensors file"
    raise InvalidModelError(f"this is not a TFLite file: bytes 4 to 7 are {magic!r} instead of b'TFL3'{hint}", rule="not-this-format")


def check(path: Path) -> mmap.mmap:
    """Checks the file at `path`; returns it, mapped.

    Raises:
        InvalidModelError: indices, names, order, operator codes, or shapes and buffers contradict each other; it names the place.
    """
    data = map_file(path)
    model = verified_root(data)
    if not model.subgraphs:
        raise InvalidModelError("it holds no subgraph", rule="no-subgraph")
    buffers = list(model.buffers or ())
    for subgraph in model.subgraphs:
        _tensors(subgraph, buffers)
        _operators(subgraph, list(model.operatorCodes or ()))
    for signature in model.signatureDefs or ():
        for entry in (*(signature.inputs or ()), *(signature.outputs or ())):
            if not 0 <= entry.tensorIndex < len(model.subgraphs[signature.subgraphIndex].tensors):
                what, where = f"maps {decode_text(entry.name)!r} to tensor {entry.tensorIndex}", decode_text(signature.signatureKey)
                raise InvalidModelError(what, where=where, rule="unknown-tensor")
    return data


def _tensors(subgraph: Any, buffers: list[Any]) -> None:
    """Names are there and distinct; a buffer holds just the values of the shape; each index has its scale."""
    sizes = [buffer.size if buffer.data is None else buffer.data.size for buffer in buffers]
    names: set[str] = set()
    for tensor in subgraph.tensors:
        name = decode_text(tensor.name)
        where = f"tensor {name!r}"
        if not name or name in names:
            raise InvalidModelError(
                "has the same name as another tensor" if name else "a tensor has no name",
                where=where,
                rule="duplicate-name" if name else "no-name",
            )
        names.add(name)
        shape = numbers_of(tensor.shape)
        if tensor.buffer >= len(sizes):
            raise InvalidModelError(f"names buffer {tensor.buffer} of {len(sizes)}", where=where, rule="unknown-buffer")
        stored, dtype = sizes[tensor.buffer], dtype_of(tensor)
        if dtype == RESOURCE:
            continue
        needed = byte_count(dtype, math.prod(shape))
        if stored and dtype != "string" and stored != needed:
            raise InvalidModelError(
                f"of shape {shape} needs {needed} bytes, but its buffer has {stored}", where=where, rule="buffer-too-short"
            )
        quantization = tensor.quantization
        scales = 0 if quantization is None or quantization.scale is None else quantization.scale.size
        axis = 0 if quantization is None else quantization.quantizedDimension
        if scales > 1 and not (axis < len(shape) and shape[axis] == scales):
            raise InvalidModelError(f"of shape {shape} has {scales} scales along axis {axis}", where=where, rule="counts-differ")


def _operators(subgraph: Any, codes: list[Any]) -> None:
    """Operators have known codes, stand after what they read, and each tensor has one origin."""
    count = len(subgraph.tensors)
    inputs, outputs = (_indices(vector, count, "the subgraph") for vector in (subgraph.inputs, subgraph.outputs))
    constants = {index for index, tensor in enumerate(subgraph.tensors) if tensor.buffer or tensor.isVariable}
    produced = set(inputs)
    if len(produced) != len(inputs):
        raise InvalidModelError("a tensor is a graph input twice", rule="duplicate-input")
    written = {index for operator in subgraph.operators or () for index in _indices(operator.outputs, count, "an operator")} - constants
    for number, operator in enumerate(subgraph.operators or ()):
        if operator.opcodeIndex >= len(codes):
            raise InvalidModelError(
                f"names operator code {operator.opcodeIndex} of {len(codes)}", where=f"operator #{number}", rule="unknown-operator-code"
            )
        code = codes[operator.opcodeIndex]
        builtin = builtin_number(code)
        if not 0 <= builtin < len(BUILTIN_OPERATOR_NAMES) or code.version < 1:
            raise InvalidModelError(
                f"is operator code {builtin} in version {code.version}", where=f"operator #{number}", rule="wrong-operator-version"
            )
        where = f"{BUILTIN_OPERATOR_NAMES[builtin]} #{number}"
        for index in _indices(operator.inputs, count, where):
            if index in written and index not in produced:
                raise InvalidModelError(
                    f"reads {decode_text(subgraph.tensors[index].name)!r} before it is written", where=where, rule="not-computed"
                )
        for index in _indices(operator.outputs, count, where):
            if index < 0 or index in produced or (index in constants and not subgraph.tensors[index].isVariable):
                name = decode_text(subgraph.tensors[index].name) if index >= 0 else "nothing"
                raise InvalidModelError(
                    f"writes {name!r}, which has another producer or is not a tensor", where=where, rule="two-producers"
                )
            produced.add(index)
    for index in outputs:
        if index not in produced and index not in constants:
            raise InvalidModelError(f"gives out {decode_text(subgraph.tensors[index].name)!r}, which nothing writes", rule="not-computed")


def _indices(vector: Any, count: int, where: str) -> list[int]:
    found = numbers_of(vector)
    for index in found:
        if not -1 <= index < count:
            raise InvalidModelError(f"names tensor {index} of {count}", where=where, rule="unknown-tensor")
    return found


#: "inputs optional ones outputs"; "+" is any number from one.
_COUNTS = {
    "0 0 0": "CALL_ONCE",
    "0 0 1": "VAR_HANDLE",
    "2 0 0": "ASSIGN_VARIABLE",
    "1 0 1": "ABS NEG EXP LOG SQRT SQUARE RSQRT SIN COS ROUND FLOOR CEIL SIGN RELU RELU6 RELU_N1_TO_1 RELU_0_TO_1 ELU GELU HARD_SWISH "
             "LEAKY_RELU LOGISTIC TANH SOFTMAX LOG_SOFTMAX L2_NORMALIZATION QUANTIZE DEQUANTIZE CAST LOGICAL_NOT AVERAGE_POOL_2D "
             "MAX_POOL_2D L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION ZEROS_LIKE RANK BITCAST FAKE_QUANT BUCKETIZE REAL IMAG COMPLEX_ABS "
             "MATRIX_DIAG DENSIFY SPACE_TO_DEPTH DEPTH_TO_SPACE SQUEEZE SHAPE WHERE READ_VARIABLE Landmarks2TransformMatrix",
    "1 1 1": "RESHAPE",
    "2 0 1": "ATAN2 BITWISE_XOR RIGHT_SHIFT STABLEHLO_ADD STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_MINIMUM STABLEHLO_AND "
             "STABLEHLO_SHIFT_LEFT STABLEHLO_GATHER STABLEHLO_REDUCE_WINDOW "
             "STABLEHLO_PAD EMBEDDING_LOOKUP SEGMENT_SUM MATRIX_SET_DIAG RFFT2D BROADCAST_ARGS ADD SUB MUL DIV "
             "MAXIMUM MINIMUM POW FLOOR_DIV FLOOR_MOD SQUARED_DIFFERENCE EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS "
             "LESS_EQUAL LOGICAL_AND LOGICAL_OR MEAN SUM REDUCE_PROD REDUCE_MAX REDUCE_MIN REDUCE_ANY REDUCE_ALL ARG_MAX ARG_MIN CUMSUM "
             "BATCH_MATMUL RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR EXPAND_DIMS TRANSPOSE PAD MIRROR_PAD TILE BROADCAST_TO FILL GATHER "
             "GATHER_ND REVERSE_SEQUENCE REVERSE_V2 PRELU MaxUnpooling2D TransformLandmarks TransformTensorBilinear",
    "2 1 1": "CONV_2D CONV_3D DEPTHWISE_CONV_2D FULLY_CONNECTED",
    "3 0 1": "DYNAMIC_UPDATE_SLICE DILATE UNSORTED_SEGMENT_SUM UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_MIN "
             "Convolution2DTransposeBias SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND SLICE PADV2 SCATTER_ND SELECT SELECT_V2 RANGE",
    "3 1 1": "TRANSPOSE_CONV CONV_3D_TRANSPOSE",
    "3 2 1": "SVDF",
    "1 23 1": "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "5 0 1": "REDUCE_WINDOW UNIDIRECTIONAL_SEQUENCE_RNN RNN",
    "1 23 +": "LSTM",
    "1 47 +": "BIDIRECTIONAL_SEQUENCE_LSTM",
    "9 3 +": "BIDIRECTIONAL_SEQUENCE_RNN",
    "4 0 1": "STRIDED_SLICE ONE_HOT SPARSE_TO_DENSE",
    "2 0 2": "TOPK_V2",
    "1 0 2": "UNIQUE MaxPoolingWithArgmax2D",
    "5 0 2": "NON_MAX_SUPPRESSION_V4",
    "6 0 3": "NON_MAX_SUPPRESSION_V5",
    "1 0 +": "UNPACK",
    "2 0 +": "SPLIT",
    "3 0 +": "SPLIT_V",
    "+ 0 +": "IF WHILE CALL",
    "+ 0 1": "CONCATENATION PACK ADD_N",
    "3 0 4": "TFLite_Detection_PostProcess",
}  # fmt: skip
#: Operator -> (inputs, optional inputs after them, outputs); -1 is any number from one.
ARITY: Mapping[str, tuple[int, int, int]] = {
    name: (int(inputs.replace("+", "-1")), int(optional), int(outputs.replace("+", "-1")))
    for counts, names in _COUNTS.items()
    for inputs, optional, outputs in (counts.split(),)
    for name in names.split()
}


def wrong_arity(name: str, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """What is wrong with the inputs ("" for an absent one) and outputs of an operator, in words; "" if nothing is."""
    if name not in ARITY:
        return ""
    required, optional, results = ARITY[name]
    needed = inputs[:required] if required >= 0 else inputs
    if not all(needed):
        return f"input {list(needed).index('')} is absent"
    if required < 0 and not inputs:
        return "has 0 inputs, not at least one"
    if required >= 0 and not required <= len(inputs) <= required + optional:
        wanted = f"{required} to {required + optional}" if optional else str(required)
        return f"has {len(inputs)} input{'s' * (len(inputs) != 1)}, not {wanted}"
    if results >= 0 and len(outputs) != results:
        return f"has {len(outputs)} output{'s' * (len(outputs) != 1)}, not {results}"
    return ""
