"""Builds small .tflite models in memory, and runs them in LiteRT.

A model is a list of TensorSpec and OpSpec; single_op() is the short way to a model with one operator:

    x = TensorSpec("x", (1, 8, 8, 4), "int8", scale=0.5, zero_point=3)
    y = TensorSpec("y", (1, 8, 8, 4), "int8", scale=0.25, zero_point=-7)
    data = single_op("RELU", None, [x], [y])
    (result,) = run_litert(data, [stored], kernels="reference")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from qconvert.runtimes.litert import LiteRT

Array = np.ndarray[Any, np.dtype[Any]]

#: Builtins whose options table is not called as they are.
_OPTIONS = {
    "AVERAGE_POOL_2D": "Pool2D",
    "CONV_3D_TRANSPOSE": "Conv3D",
    "MAX_POOL_2D": "Pool2D",
    "L2_POOL_2D": "Pool2D",
    "L2_NORMALIZATION": "L2Norm",
    "MAXIMUM": "MaximumMinimum",
    "MINIMUM": "MaximumMinimum",
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL"), "Reducer"),
}

#: Newest version that both of LiteRT 2.3's kernel sets register, where it is not 1 (found by trying them).
_VERSIONS = {
    name: version
    for version, names in {
        2: "L2_NORMALIZATION SPACE_TO_DEPTH DIV EXP LOG_SOFTMAX ARG_MAX GREATER LESS_EQUAL TILE LOG SUM "
        "SQRT ARG_MIN FAKE_QUANT REDUCE_PROD FLOOR_MOD LEAKY_RELU SQUARED_DIFFERENCE WHERE SELECT_V2 "
        "GELU SIGN",
        3: "AVERAGE_POOL_2D LOGISTIC MAX_POOL_2D RELU RELU6 RNN SOFTMAX TANH UNIDIRECTIONAL_SEQUENCE_RNN "
        "MEAN UNIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_RNN TOPK_V2 "
        "BIDIRECTIONAL_SEQUENCE_LSTM LESS GREATER_EQUAL SPARSE_TO_DENSE RSQRT REDUCE_MAX REDUCE_MIN "
        "FLOOR_DIV MIRROR_PAD ABS SPLIT_V",
        4: "LSTM RESIZE_BILINEAR SVDF BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND STRIDED_SLICE MAXIMUM MINIMUM "
        "SELECT NOT_EQUAL RESIZE_NEAREST_NEIGHBOR REVERSE_V2 BATCH_MATMUL BROADCAST_TO",
        5: "ADD EMBEDDING_LOOKUP SUB SPLIT TRANSPOSE_CONV EQUAL PACK FILL",
        6: "DEPTHWISE_CONV_2D PAD PADV2 UNPACK GATHER_ND QUANTIZE DYNAMIC_UPDATE_SLICE",
        7: "CONCATENATION MUL",
        8: "CONV_2D GATHER TRANSPOSE SLICE",
        9: "DEQUANTIZE CAST",
        14: "FULLY_CONNECTED",
    }.items()
    for name in names.split()
}

_PACKED = {"int4": 4, "uint4": 4, "int2": 2}


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a model.

    Attributes:
        name: unique in the model.
        shape: sizes; those that are open in `shape_signature` are 1 by custom. None: the file states no rank.
        dtype: a canonical dtype name, such as int8 or float32.
        scale: None, one value, or one for each index along `axis`.
        zero_point: None (0 for each scale), one value for all, or one each.
        axis: quantized_dimension.
        data: stored values of a constant; 2- and 4-bit types are given one element a byte and are packed here.
        shape_signature: sizes with -1 where the size is open.
        is_variable: a state tensor.
        sparsity: a SparsityParametersT; `data` are then the values that are stored, flat.
        blocks: name of the tensor with the scales of blocks, how many elements of a row each has, and of that with the zero points or "".
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    scale: float | np.floating[Any] | Sequence[float] | Array | None = None
    zero_point: int | Sequence[int] | Array | None = None
    axis: int = 0
    data: Any = None
    shape_signature: tuple[int, ...] | None = None
    is_variable: bool = False
    sparsity: Any = None
    blocks: tuple[str, int, str] | None = None


@dataclass(frozen=True)
class OpSpec:
    """One operator of a model.

    Attributes:
        builtin: a name of BuiltinOperator, or the name of a custom operator if `custom` is true.
        inputs: tensor names; None or "" for an optional one that is absent.
        outputs: tensor names.
        options: an ...OptionsT object of the schema, or its fields by name (absent ones keep the schema's defaults), or None.
        version: of the operator; None takes the newest that LiteRT registers.
        custom: whether the operator is a custom one; its options are then a mapping, written as a flexbuffer.
    """

    builtin: str
    inputs: Sequence[str | None]
    outputs: Sequence[str]
    options: object | Mapping[str, Any] | None = None
    version: int | None = None
    custom: bool = False


@cache
def _schema() -> Any:
    from ai_edge_litert import schema_py_generated

    return schema_py_generated


def single_op(
    builtin: str,
    options: object | Mapping[str, Any] | None,
    inputs: Sequence[TensorSpec | None],
    outputs: Sequence[TensorSpec],
    *,
    version: int | None = None,
    custom: bool = False,
    **more: Any,
) -> bytes:
    """A model with one operator. Inputs that have data are constants, the others are the model's inputs."""
    op = OpSpec(
        builtin,
        [tensor.name if tensor else None for tensor in inputs],
        [t.name for t in outputs],
        options,
        version,
        custom,
    )
    present = {tensor.name: tensor for tensor in (*inputs, *outputs) if tensor}
    free = list(dict.fromkeys(t.name for t in inputs if t and t.data is None and not t.is_variable))
    return model([op], list(present.values()), free, [tensor.name for tensor in outputs], **more)


def model(
    ops: Sequence[OpSpec],
    tensors: Sequence[TensorSpec],
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    signatures: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] | None = None,
    metadata: Mapping[str, bytes] | None = None,
    description: str = "",
    subgraph_name: str = "main",
    further: Sequence[tuple[Sequence[OpSpec], Sequence[TensorSpec], Sequence[str], Sequence[str]]] = (),
) -> bytes:
    """The bytes of a .tflite model.

    Args:
        ops: in the order in which they run.
        tensors: all that the operators name.
        inputs: names of the model's inputs.
        outputs: names of the model's outputs.
        signatures: key -> (public input name -> tensor name, public output name -> tensor name).
        metadata: name -> content of a metadata buffer.
        description: of the model.
        subgraph_name: of its first subgraph.
        further: operators, tensors, inputs and outputs of each further subgraph.
    """
    import flatbuffers

    schema = _schema()
    index = {tensor.name: number for number, tensor in enumerate(tensors)}
    buffers = [schema.BufferT()]
    codes: dict[tuple[str, int, bool], int] = {}
    subgraphs = []
    for number, (own_ops, own, given, wanted) in enumerate(((ops, tensors, inputs, outputs), *further)):
        places = {tensor.name: position for position, tensor in enumerate(own)}
        subgraph = schema.SubGraphT(
            tensors=[_tensor(tensor, buffers, places) for tensor in own],
            inputs=[places[name] for name in given],
            outputs=[places[name] for name in wanted],
            operators=[_operator(op, places, codes) for op in own_ops],
            name=f"{subgraph_name}_{number}" if number else subgraph_name,
        )
        subgraphs.append(subgraph)
    result = schema.ModelT(
        version=3,
        operatorCodes=[_operator_code(*key) for key in codes],
        subgraphs=subgraphs,
        description=description or None,
        buffers=buffers,
    )
    for name, content in (metadata or {}).items():
        result.metadata = [
            *(result.metadata or []),
            schema.MetadataT(name=name, buffer=_buffer(content, buffers)),
        ]
    for key, (public_inputs, public_outputs) in (signatures or {}).items():
        result.signatureDefs = [
            *(result.signatureDefs or []),
            _signature(key, public_inputs, public_outputs, index),
        ]
    builder = flatbuffers.Builder(1024)
    builder.Finish(result.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def run_litert(model_bytes: bytes, inputs: Sequence[Array], kernels: str = "default") -> list[Array]:
    """Runs a model once in LiteRT.

    Args:
        model_bytes: the model.
        inputs: stored values, in the order of the model's inputs.
        kernels: "default" (XNNPACK where it has a kernel) or "reference".

    Returns:
        The stored outputs, in the model's order.
    """
    return LiteRT(model_bytes, kernels).run_in_order(list(inputs))


def _buffer(content: bytes, buffers: list[Any]) -> int:
    buffers.append(_schema().BufferT(data=np.frombuffer(content, np.uint8)))
    return len(buffers) - 1


def _stored_bytes(tensor: TensorSpec) -> bytes:
    """The bytes of a constant: little endian, 2- and 4-bit elements packed from the low bits up, strings with their offsets."""
    if tensor.dtype == "string":
        texts = [text.encode() if isinstance(text, str) else text for text in np.ravel(tensor.data)]
        starts = np.cumsum([4 * (len(texts) + 2), *map(len, texts)])
        return np.array([len(texts), *starts], "<i4").tobytes() + b"".join(texts)
    if tensor.dtype in _PACKED:
        bits = _PACKED[tensor.dtype]
        values = np.asarray(tensor.data).astype(np.int64).ravel() & (2**bits - 1)
        per_byte = 8 // bits
        groups = np.pad(values, (0, -len(values) % per_byte)).reshape(-1, per_byte)
        shifted = groups << (bits * np.arange(per_byte))
        return bytes(shifted.sum(axis=1).astype(np.uint8))
    if tensor.dtype == "bfloat16":
        import ml_dtypes

        return bytes(np.asarray(tensor.data).astype(ml_dtypes.bfloat16).tobytes())
    data = np.asarray(tensor.data, np.dtype(tensor.dtype).newbyteorder("<"))
    fits = data.shape == tuple(tensor.shape or ()) or tensor.sparsity is not None
    assert fits, f"{tensor.name}: data of shape {data.shape} for {tensor.shape}"
    return data.tobytes()


def _tensor(tensor: TensorSpec, buffers: list[Any], index: Mapping[str, int]) -> Any:
    schema = _schema()
    quantization = None
    if tensor.blocks is not None:
        scales, size, points = tensor.blocks
        details = schema.BlockwiseQuantizationT(scales=index[scales], zeroPoints=index[points] if points else -1, blockSize=size)
        kind = schema.QuantizationDetails.BlockwiseQuantization
        quantization = schema.QuantizationParametersT(detailsType=kind, details=details)
    if tensor.scale is not None:
        scale = np.atleast_1d(np.asarray(tensor.scale, np.float32))
        zero = 0 if tensor.zero_point is None else tensor.zero_point
        zero_point = np.broadcast_to(np.asarray(zero, np.int64), scale.shape)
        quantization = schema.QuantizationParametersT(scale=scale, zeroPoint=zero_point.copy(), quantizedDimension=tensor.axis)
    return schema.TensorT(
        shape=np.array(tensor.shape or (), np.int32),
        type=getattr(schema.TensorType, tensor.dtype.upper()),
        buffer=0 if tensor.data is None else _buffer(_stored_bytes(tensor), buffers),
        name=tensor.name,
        quantization=quantization,
        isVariable=tensor.is_variable,
        sparsity=tensor.sparsity,
        shapeSignature=None if tensor.shape_signature is None else np.array(tensor.shape_signature, np.int32),
        hasRank=tensor.shape is not None,
    )


def _operator(op: OpSpec, index: Mapping[str, int], codes: dict[tuple[str, int, bool], int]) -> Any:
    schema = _schema()
    version = op.version or (1 if op.custom else _VERSIONS.get(op.builtin, 1))
    result = schema.OperatorT(
        opcodeIndex=codes.setdefault((op.builtin, version, op.custom), len(codes)),
        inputs=np.array([index[name] if name else -1 for name in op.inputs], np.int32),
        outputs=np.array([index[name] for name in op.outputs], np.int32),
    )
    if op.custom:
        result.customOptions = np.frombuffer(_flexbuffer(op.options), np.uint8)
    elif op.options is not None:
        options = _options(op.builtin, op.options)
        name = type(options).__name__.removesuffix("T")
        if hasattr(schema.BuiltinOptions, name):
            result.builtinOptions, result.builtinOptionsType = options, getattr(schema.BuiltinOptions, name)
        else:
            result.builtinOptions2, result.builtinOptions2Type = (
                options,
                getattr(schema.BuiltinOptions2, name),
            )
    return result


def _options(builtin: str, options: Any) -> Any:
    """The ...OptionsT object that `options` is, or that its fields make for the builtin."""
    if not isinstance(options, Mapping):
        return options
    wanted = (_OPTIONS.get(builtin, builtin.replace("_", "")) + "OptionsT").lower()
    (table,) = [value for name, value in vars(_schema()).items() if name.lower() == wanted]
    made = table()
    for name, value in options.items():
        assert hasattr(made, name), f"{table.__name__} has no field {name}"
        setattr(made, name, value)
    return made


def _flexbuffer(options: Any) -> bytes:
    from flatbuffers import flexbuffers

    builder = flexbuffers.Builder()
    with builder.Map():
        for name, value in (options or {}).items():
            builder.Key(name)
            builder.Add(value)
    return bytes(builder.Finish())


def _operator_code(name: str, version: int, custom: bool) -> Any:
    schema = _schema()
    code = schema.BuiltinOperator.CUSTOM if custom else getattr(schema.BuiltinOperator, name)
    # Readers of the old 8-bit field see 127 for newer builtins (schema.fbs, OperatorCode).
    return schema.OperatorCodeT(
        deprecatedBuiltinCode=min(code, 127),
        builtinCode=code,
        version=version,
        customCode=name if custom else None,
    )


def _signature(key: str, inputs: Mapping[str, str], outputs: Mapping[str, str], index: Mapping[str, int]) -> Any:
    schema = _schema()

    def maps(names: Mapping[str, str]) -> list[Any]:
        return [schema.TensorMapT(name=public, tensorIndex=index[name]) for public, name in names.items()]

    return schema.SignatureDefT(signatureKey=key, subgraphIndex=0, inputs=maps(inputs), outputs=maps(outputs))
