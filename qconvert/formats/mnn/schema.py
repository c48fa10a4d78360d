"""The part of MNN's schema that says names, scales and weights (schema/default of MNN 3.6, MNN.fbs and CaffeOp.fbs), as data.

A .mnn file is a FlatBuffer of the table Net, without an identifier. Fields and parameters of operators that nothing here asks for are "-";
their tables are passed over.
"""

from __future__ import annotations

from qconvert.formats.flatbuffers import Schema

__all__ = ["DT_INT8", "NET", "type_name"]

_TABLES = {
    "Net": "bizCode:string extraTensorDescribe:[TensorDescribe] - oplists:[Op] outputName:[string] - - "
    "tensorName:[string] tensorNumber:int - subgraphs:[SubGraphProto] mnn_uuid:string",
    "Op": "inputIndexes:[int] mainType:ubyte main:OpParameter name:string outputIndexes:[int] type:int - "
    "externalPath:string",
    "TensorDescribe": "- index:int name:string - quantInfo:TensorQuantInfo",
    "TensorQuantInfo": "scale:float zero:float min:float=-128 max:float=127 type:int",
    "SubGraphProto": "name:string",
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

#: OpType from 0, and those with numbers of their own. Some names changed over the years; the numbers did not.
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
    "BroadcastTo Dilation2D Interp3D"
)
_NUMBERED = {
    128: "Raster", 129: "ConvertTensor", 130: "ArgMin", 131: "LinSpace", 132: "RandomUniform", 133: "TensorArray", 141: "LSTMBlockCell",
    142: "Reverse", 143: "ROIAlign", 147: "EyeLike", 148: "CumSum", 150: "CumProd", 151: "ScatterElements", 152: "GatherElements",
    155: "DynamicQuant", 256: "Plugin", 257: "Select", 258: "ZerosLike", 262: "Identity", 267: "BatchNorm", 299: "Attention", 512: "Extra",
    513: "ConvInt8", 514: "Int8ToFloat", 515: "DepthwiseConvInt8", 516: "PoolInt8", 517: "FloatToInt8", 518: "EltwiseInt8", 600: "While",
    601: "If", 603: "LayerNorm", 604: "GridSample",
}  # fmt: skip
TYPES = {**dict(enumerate(_TYPES.split())), **_NUMBERED}


def type_name(number: int) -> str:
    """The name of an OpType, such as "Convolution"."""
    return TYPES.get(number, f"type {number}")
