"""What a .mnn file says of names, scales and weights, and the part of MNN's schema that says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError, UnsupportedError, name_file_in_errors
from qconvert.files import map_file
from qconvert.formats.flatbuffers import Schema, damaged_error, verify_tables
from qconvert.formats.mnn.weights import (
    CONVERSIONS,
    CONVOLUTIONS,
    LayerWeights,
    kept_tensors,
    layer_weights,
    read_conversion,
    read_old_weights,
    require_readable,
)

_TABLES = {
    "Net": "bizCode:string extraTensorDescribe:[TensorDescribe] - oplists:[Op] outputName:[string] - - "
    "tensorName:[string] tensorNumber:int - subgraphs:[SubGraphProto] mnn_uuid:string",
    "Op": "inputIndexes:[int] mainType:ubyte main:OpParameter name:string outputIndexes:[int] type:int - "
    "externalPath:string",
    "TensorDescribe": "- index:int name:string - quantInfo:TensorQuantInfo",
    "TensorQuantInfo": "scale:float zero:float min:float=-128 max:float=127 type:int",
    "SubGraphProto": "name:string - - - nodes:[Op] extraTensorDescribe:[TensorDescribe]",
    "Convolution2D": "common:Convolution2DCommon weight:[float] bias:[float] quanParameter:IDSTQuan "
    "symmetricQuan:QuantizedFloatParam - external:[long]",
    "Convolution2DCommon": "- - kernelX:int=1 kernelY:int=1 - - - - - group:int=1 outputCount:int inputCount:int",
    "IDSTQuan": "buffer:[byte] alpha:[float] type:int useInt32:bool quantScale:float scaleIn:float scaleOut:float "
    "aMaxOrBits:int aMin:int readType:int has_scaleInt:bool shapeInt32:bool weightSize:uint index:[uint] "
    "alphaFp16:[ushort] scaleStorage:byte",
    "QuantizedFloatParam": "weight:[byte] - scale:[float] tensorScale:[float] - nbits:int=8 zeroPoint:byte outputZeroPoint:byte "
    "clampMin:byte=-128 clampMax:byte=127",
}  # fmt: skip
#: The members of a union that are read have their names at their places: 9 is that of all convolutions, 74 that of conversions to int8.
_UNIONS = {"OpParameter": " ".join({9: "Convolution2D", 74: "QuantizedFloatParam"}.get(place, "-") for place in range(1, 75))}
NET = Schema(_TABLES, _UNIONS, "Net")
#: DataType of TensorQuantInfo (schema/default/Type.fbs).
DT_INT8 = 6

#: OpType (schema/default/MNN.fbs), as its enumeration is written there. Some names changed over the years; the numbers did not.
_TYPES = (
    "AbsVal QuantizedAdd ArgMax AsString InstanceNorm BatchToSpaceND Copy BinaryOp Bnll Cast Concat Const Convolution "
    "ConvolutionDepthwise Crop CropAndResize ImageProcess Deconvolution DeconvolutionDepthwise Dequantize DetectionOutput Dropout "
    "Eltwise ELU Unique Exp ExpandDims Fill Flatten Im2Col Gather GatherV2 Im2Seq InnerProduct Input Interp Log LRN LSTM MatMul MoE "
    "NonMaxSuppression NonMaxSuppressionV2 Normalize Pack Padding Permute Pooling Power PReLU PriorBox Proposal QuantizedAvgPool "
    "QuantizedBiasAdd QuantizedConcat QuantizedDepthwiseConv2D QuantizedLogistic RasterAndInterpolate QuantizedMaxPool Texture "
    "RasterDiff QuantizedReshape QuantizedSoftmax QuantizeMaxMin QuantizeV2 Range Rank ReduceJoin Reduction ReLU ReLU6 "
    "RequantizationRange Requantize Reshape Resize RNN ROIPooling Scale Selu Seq2Out Shape Sigmoid Size Slice SliceTf Softmax "
    "SpaceToBatchND SpatialProduct Col2Im Segment Squeeze StridedSlice CastLike StringSplit StringToNumber TanH TfQuantizedConv2D "
    "Threshold Tile TopKV2 Transpose UnaryOp Unpack Where Moments RNNSequenceGRU BatchMatMul Unsqueeze CosineSimilarity DepthToSpace "
    "SpaceToDepth ReverseSequence Pooling3D Convolution3D MatrixBandPart GatherND DetectionPostProcess UnravelIndex ScatterNd OneHot "
    "BroadcastTo Dilation2D Interp3D Raster=128 ConvertTensor ArgMin LinSpace RandomUniform TensorArray LSTMBlockCell=141 Reverse "
    "ROIAlign EyeLike=147 CumSum CumProd=150 ScatterElements GatherElements DynamicQuant=155 Plugin=256 Select ZerosLike Identity=262 "
    "BatchNorm=267 Attention=299 Extra=512 ConvInt8 Int8ToFloat DepthwiseConvInt8 PoolInt8 FloatToInt8 EltwiseInt8 While=600 If "
    "LayerNorm=603 GridSample"
)


#: Their names by number.
TYPES: dict[int, str] = {}
for _word in _TYPES.split():
    _name, _, _number = _word.partition("=")
    TYPES[int(_number or max(TYPES, default=-1) + 1)] = _name


@dataclass(frozen=True, slots=True)
class Node:
    """An operator.

    Attributes:
        name: its own; "" for none.
        type: such as "Convolution"; "" where a file does not say it.
        inputs, outputs: indices of tensors. Weights are no inputs.
    """

    name: str
    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorQuantization:
    """What a file says of the scale of a tensor, as it stands there.

    Attributes:
        scale, zero: real = scale * (q - zero).
        lowest, highest: integers that are used.
    """

    scale: float
    zero: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Layer:
    """An operator with weights, whose parameters are quantized.

    Attributes:
        node: the operator.
        weights: as stored; None where they are real numbers.
        data, result: the quantizations of its data and of its result as the layer itself states them; None where its scale is 0.
    """

    node: Node
    weights: LayerWeights | None
    data: TensorQuantization | None
    result: TensorQuantization | None


@dataclass(frozen=True, slots=True)
class Network:
    """A .mnn file.

    Attributes:
        nodes: in order.
        names: of the tensors, by index.
        quantizations: index of a tensor -> its scale, where it has one.
        layers: those with weights.
        uuid: of the file; "" for none.
        code: what its bizCode says, where qconvert names itself and the source; "" for none.
    """

    nodes: tuple[Node, ...]
    names: tuple[str, ...]
    quantizations: Mapping[int, TensorQuantization]
    layers: tuple[Layer, ...]
    uuid: str = ""
    code: str = ""


def copy_names(network: Network, named: Network) -> Network:
    """A network with the names of another one with the same operators, such as the one before MNN's quantizer with EMA rebuilt it.

    Raises:
        InvalidModelError: the other has other operators.
    """
    types = [[node.type for node in found.nodes] for found in (network, named)]
    if types[0] != types[1] or any(len(a.outputs) != len(b.outputs) for a, b in zip(network.nodes, named.nodes, strict=True)):
        raise InvalidModelError(
            "the operators differ from those of the .mnn file that names the tensors",
            remedy="Give the .mnn file that the quantizer read, as mnnconvert wrote it.",
            rule="files-do-not-match",
        )
    names = list(network.names)
    for mine, theirs in zip(network.nodes, named.nodes, strict=True):
        for index, other in zip(mine.outputs, theirs.outputs, strict=True):
            names[index] = named.names[other]
    nodes = [replace(mine, name=theirs.name) for mine, theirs in zip(network.nodes, named.nodes, strict=True)]
    known = dict(zip(network.nodes, nodes, strict=True))
    layers = tuple(replace(layer, node=known[layer.node]) for layer in network.layers)
    return replace(network, nodes=tuple(nodes), names=tuple(names), layers=layers)


def is_network(data: Any) -> bool:
    """Whether bytes are a .mnn file: a FlatBuffer of MNN's schema with operators. It raises nothing."""
    try:
        _verify_data(data)
        return bool(NET.root(data).oplists)
    except InvalidModelError:
        return False


def read_network(path: Path) -> Network:
    """A .mnn file.

    Raises:
        FileAccessError: it cannot be read.
        InvalidModelError: it is damaged.
        UnsupportedError: it holds subgraphs with scales, weights in another file, weights stored as no known version of MNN does, or an
            int8 operator of MNN 1 that is not read.
    """
    data = map_file(path)
    with name_file_in_errors(path):
        _verify_data(data)
        return _network(NET.root(data))


def _verify_data(data: Any) -> None:
    with memoryview(data) as raw, raw.cast("B") as view:
        if len(view) < 8:
            raise InvalidModelError(f"the file has {len(view)} bytes; a .mnn file has at least 8", rule="damaged-file")
        if int.from_bytes(view[:4], "little") >= len(view) or bytes(view[4:8]) == b"TFL3":
            raise InvalidModelError("is not a .mnn file, nor another file of MNN's", rule="not-this-format")
        verify_tables(view, NET)


def _network(net: Any) -> Network:
    for item in net.subgraphs or ():
        _require_float(item)
    views = net.oplists
    if not views:
        raise InvalidModelError(
            "the file has no operators", remedy="Give a .mnn file that mnnconvert or mnnquant wrote.", rule="no-operators"
        )
    names = tuple(_text(name) for name in net.tensorName)
    nodes = tuple(_node(view, len(names)) for view in views)
    require_readable((node.type, node.name) for node in nodes)
    quantizations = dict(_quantizations(net, len(names)))
    read = [(view, node) for view, node in zip(views, nodes, strict=True)]
    conversions = [read_conversion(node.type, node.name, view, names) for view, node in read if node.type in CONVERSIONS]
    kept = kept_tensors(conversions)
    for found in conversions:
        place, quantization = kept[found.dropped], TensorQuantization(*found[2:])
        known = quantizations.setdefault(place, quantization)
        if known is not quantization and not _is_close(known, quantization):
            raise UnsupportedError(f"tensor {names[place]!r} is converted to int8 with two scales", rule="contradicting-scales")
    read = [(view, _without_conversions(node, kept)) for view, node in read if node.type not in CONVERSIONS]
    layers = tuple(layer for view, node in read if (layer := _layer(view, node, quantizations)) is not None)
    return Network(tuple(node for _, node in read), names, quantizations, layers, _text(net.mnn_uuid), _text(net.bizCode))


def _require_float(body: Any) -> None:
    """Raise an UnsupportedError where a subgraph, the body of a While or an If, has a scale."""
    nodes = [(view, Node(_text(view.name), TYPES.get(view.type, ""), (), ())) for view in body.nodes or ()]
    require_readable((node.type, node.name) for _, node in nodes)
    described = [item.quantInfo for item in body.extraTensorDescribe or ()]
    if any(info is not None and info.scale != 0 for info in described) or any(_layer(view, node, {}) is not None for view, node in nodes):
        raise UnsupportedError(
            f"subgraph {_text(body.name)!r} has scales; scales are read outside subgraphs",
            remedy="Convert the model to MNN without quantizing what it runs in a loop or under a condition.",
            rule="subgraphs-not-covered",
        )


def _is_close(one: TensorQuantization, other: TensorQuantization) -> bool:
    """Whether two statements of a tensor's quantization parameters agree: 1 / (1 / scale) is rounded twice."""
    return one.zero == other.zero and abs(one.scale - other.scale) <= 2.0**-22 * abs(one.scale)


def _without_conversions(node: Node, kept: Mapping[int, int]) -> Node:
    """The operator as MNN 2 has it: without conversions between float and int8 tensors."""
    inputs, outputs = (tuple(kept.get(index, index) for index in found) for found in (node.inputs, node.outputs))
    return Node(node.name, CONVOLUTIONS.get(node.type, node.type), inputs, outputs)


def _text(value: bytes | None) -> str:
    try:
        return (value or b"").decode()
    except UnicodeDecodeError as error:
        raise InvalidModelError(f"a name is not UTF-8: {(value or b'')[:40]!r}", rule="not-utf8") from error


def _node(view: Any, count: int) -> Node:
    places = [tuple(int(index) for index in found) if found is not None else () for found in (view.inputIndexes, view.outputIndexes)]
    name = _text(view.name)
    if any(not 0 <= index < count for index in (*places[0], *places[1])):
        raise damaged_error(f"operator {name!r} names a tensor that is not among the {count} of the file")
    return Node(name, TYPES.get(view.type, f"type {view.type}"), *places)


def _quantizations(net: Any, count: int) -> Iterator[tuple[int, TensorQuantization]]:
    seen: set[int] = set()
    for item in net.extraTensorDescribe:
        info = item.quantInfo
        if info is None:
            continue
        if not 0 <= item.index < count:
            raise damaged_error(f"a scale is of tensor {item.index}, which is not among the {count} of the file")
        if item.index in seen:
            raise damaged_error(f"tensor {item.index} has two scales")
        seen.add(item.index)
        if info.type not in (0, DT_INT8) and info.scale != 0:
            raise UnsupportedError(f"tensor {item.index} is quantized to DataType {info.type}; int8 is covered", rule="dtype-not-covered")
        if info.scale != 0:
            yield item.index, TensorQuantization(info.scale, info.zero, info.min, info.max)


def _layer(view: Any, node: Node, quantizations: Mapping[int, TensorQuantization]) -> Layer | None:
    layer = view.main if view.mainType == 9 else None
    if layer is None:
        return None
    quantized, symmetric = layer.quanParameter, layer.symmetricQuan
    is_old = symmetric is not None and symmetric.weight is not None and (quantized is None or quantized.buffer is None)
    if quantized is None and not is_old:
        return None
    zeros, limits = ((0, 0), (-128, 127))
    if symmetric is not None:
        zeros, limits = (symmetric.zeroPoint, symmetric.outputZeroPoint), (symmetric.clampMin, symmetric.clampMax)
    stated = (quantized.scaleIn, quantized.scaleOut) if quantized is not None else (0.0, 0.0)
    data, result = (
        TensorQuantization(scale, zero, *limits) if scale != 0 else quantizations.get(indices[0]) if is_old and indices else None
        for scale, zero, indices in zip(stated, zeros, (node.inputs, node.outputs), strict=True)
    )
    try:
        if layer.external is not None and quantized is not None and quantized.buffer is None:
            raise UnsupportedError(
                "the weights are in another file", remedy="Convert the model without --saveExternalData.", rule="external-data"
            )
        common = layer.common
        kernel = (common.kernelY, common.kernelX) if common is not None else (1, 1)
        outputs = common.outputCount if common is not None else 0
        weights = (
            read_old_weights(layer, kernel, outputs, data.scale if data else None, result.scale if result else None)
            if is_old
            else layer_weights(quantized, kernel, outputs)
        )
    except (InvalidModelError, UnsupportedError) as error:
        error.where = error.where or node.name
        raise
    return Layer(node, weights, data, result)
