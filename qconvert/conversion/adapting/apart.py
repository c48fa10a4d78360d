"""Along which axis of which input samples may stand, so that each kind of operator computes on each of them by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qconvert.graph import Op

__all__ = ["APART", "RECURRENT", "RESHAPES"]

#: (operator, index of the input, the axis of its samples, its rank) -> whether samples stay apart.
_Apart = Callable[[Op, int, int, int], bool]

RESHAPES = ("Reshape", "Squeeze", "Unsqueeze")
RECURRENT = ("LSTM", "GRU", "RNN")
#: Kinds of which each element of the result belongs to the samples of its data, wherever these stand: that the result has them along one
#: axis is all that need be seen.
_FREE = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atan2 Atanh BitShift Bitcast BitwiseAnd BitwiseOr BitwiseXor Bucketize Cast Ceil Celu Clip"
    " ComplexAbs Cos Cosh Dequantize Div Einsum Elu Equal Erf Exp Expand FakeQuant Floor FloorDiv FloorMod Gelu Greater GreaterOrEqual"
    " HardSigmoid HardSwish Identity Imag InteriorPad IsInf IsNaN LeakyRelu Less LessOrEqual Log MatMul Max Min Mish Mod Mul Neg Not"
    " NotEqual OneHot Or PRelu Pack Pad Pow Quantize Real Reciprocal ReduceAll ReduceAny ReduceL1 ReduceL2 ReduceLogSum"
    " ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Reinterpret Relu Requantize Round Rsqrt Selu"
    " Shrink Sigmoid Sign Sin Sinh Slice Softplus Softsign Sqrt Square SquaredDifference Sub Sum Swish Tan Tanh ThresholdedRelu Tile"
    " Transpose Where Xor ZerosLike"
)
#: Kinds that compute along the axis that an attribute names.
_ALONG = "ArgMax ArgMin Concat CumSum GatherElements LogSoftmax LpNormalization ScatterElements Softmax Split TopK Unpack"
#: Kinds whose data have the samples first.
_SPATIAL = (
    "AveragePool BatchNormalization BatchToSpace Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool GlobalMaxPool"
    " GroupNormalization InstanceNormalization L2Pool LRN MaxPool Resize SpaceToBatch SpaceToDepth"
)
#: Kinds that compute along so many of the last axes.
_LAST = {"Gemm": 1, "MatrixDiag": 1, "MatMulInteger": 1, "Trilu": 2, "MatrixSetDiag": 2, "Rfft2d": 2}


def _behind_last(count: int) -> _Apart:
    return lambda op, index, axis, rank: axis < rank - count


#: Kinds that are not here may mix samples.
APART: Mapping[str, _Apart] = {
    **dict.fromkeys((*_FREE.split(), *RESHAPES), lambda op, index, axis, rank: True),
    **dict.fromkeys(_ALONG.split(), lambda op, index, axis, rank: op["axis"] % rank != axis),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), lambda op, index, axis, rank: axis < op["axis"] % rank),
    **dict.fromkeys(_SPATIAL.split(), lambda op, index, axis, rank: index == axis == 0),
    **{kind: _behind_last(count) for kind, count in _LAST.items()},
    "Gather": lambda op, index, axis, rank: index == 1 or axis != op["axis"] % rank or op["batch_dims"] > axis,
    "GatherND": lambda op, index, axis, rank: index == 1 or op["batch_dims"] > axis,
    **dict.fromkeys(RECURRENT, lambda op, index, axis, rank: axis == (0 if op["layout"] or index == 4 else 1)),
    **dict.fromkeys(("SVDF", "IntegerSVDF"), lambda op, index, axis, rank: index <= 1 and axis == 0),
    "IntegerLSTM": lambda op, index, axis, rank: axis == (1 if op["time_major"] and index == 0 else 0),
    "ReverseSequence": lambda op, index, axis, rank: axis == (0 if index == 1 else op["batch_axis"] % rank),
}
