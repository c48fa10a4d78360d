"""Definitions of products, reductions and elementwise operators, and of onnxruntime's operators on integers in the forms that are not read
as one operator: what these mean in float, between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

import math

import numpy as np

from qconvert.formats.onnx.definitions.decomposition import Decomposition, Definition, Definitions, NoDefinitionError
from qconvert.formats.onnx.signatures import CONTRIB
from qconvert.graph import Array


def _matmul(s: Decomposition) -> None:
    """MatMul or MatMulInteger by a vector: a row in front, or a column after, which the result loses again (numpy.matmul)."""
    ranks = s.rank(0), s.rank(1)
    axes = [axis for axis, rank in zip((-2, -1), ranks, strict=True) if rank == 1]
    if not axes:
        raise NoDefinitionError("no vector")
    a = s("Unsqueeze", s.x, [0]) if ranks[0] == 1 else s.x
    b = s("Unsqueeze", s.input(1), [1]) if ranks[1] == 1 else s.input(1)
    s.end(s("Squeeze", s(str(s.op["op_type"]), a, b, s.input(2), s.input(3)), axes))


def _fused_matmul(s: Decomposition) -> None:
    """onnxruntime's FusedMatMul: alpha * A' @ B'."""
    if s.attribute("transBatchA", 0) or s.attribute("transBatchB", 0):
        raise NoDefinitionError("batches after rows")
    operands = []
    for index, name in enumerate(("transA", "transB")):
        rank = s.rank(index)
        turned = bool(s.attribute(name, 0)) and rank > 1
        operands.append(s("Transpose", s.input(index), perm=[*range(rank - 2), rank - 1, rank - 2]) if turned else s.input(index))
    alpha = float(s.attribute("alpha", 1.0))
    if alpha != 1:
        operands[1] = s("Mul", operands[1], alpha)
    s.end(s("MatMul", *operands))


def _power(s: Decomposition, value: str, power: int) -> str:
    """|x| ** power."""
    return s("Abs", value) if power == 1 else s("Mul", value, value) if power == 2 else s("Pow", s("Abs", value), float(power))


def _root(s: Decomposition, value: str, power: int) -> str:
    return value if power == 1 else s("Sqrt", value) if power == 2 else s("Pow", value, 1 / power)


def _lp_pool(s: Decomposition) -> None:
    """(sum of |x| ** p) ** (1 / p) over windows: their mean, with the padding counted, times their size."""
    if s.attribute("ceil_mode", 0) or any(size != 1 for size in s.attribute("dilations", ())):
        raise NoDefinitionError("windows with holes, or that hang over the edge")
    power = int(s.attribute("p", 2))
    kernel = list(s.attribute("kernel_shape"))
    window = s.attributes("auto_pad", "pads", "strides")
    mean = s("AveragePool", _power(s, s.x, power), kernel_shape=kernel, count_include_pad=1, **window)
    total = s("Mul", mean, float(math.prod(kernel)))
    s.end(total if power == 1 else _root(s, total, power))


def _global_lp_pool(s: Decomposition) -> None:
    """(sum of |x| ** p) ** (1 / p) over space."""
    power, axes = int(s.attribute("p", 2)), range(2, s.rank())
    s.end(s("ReduceL1", s.x, axes) if power == 1 else s("ReduceL2", s.x, axes) if power == 2
          else _root(s, s("ReduceSum", _power(s, s.x, power), axes), power))  # fmt: skip


def _dilated_average(s: Decomposition) -> None:
    """AveragePool with holes: a convolution of each channel by equal weights. Padding would have to be counted out."""
    channels, kernel = s.shape()[1], list(s.attribute("kernel_shape"))
    if any(s.attribute("pads", ())) or s.attribute("ceil_mode", 0) or s.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise NoDefinitionError("padding")
    weights = np.full((channels, 1, *kernel), 1 / math.prod(kernel), np.float32)
    s.end(s("Conv", s.x, weights, group=channels, **s.attributes("strides", "dilations")))


def _clip(s: Decomposition) -> None:
    """min(max(x, low), high) with bounds that are computed."""
    value = s.x
    for index, kind in ((1, "Max"), (2, "Min")):
        value = s(kind, value, s.input(index)) if s.input(index) else value
    if value == s.x:
        raise NoDefinitionError("no bounds")
    s.end(value)


def _single(kind: str) -> Definition:
    """A reduction along no axes."""

    def define(s: Decomposition) -> None:
        if not s.attribute("noop_with_empty_axes", 0) or (s.input(1) and s.known(1).size):
            raise NoDefinitionError("axes")
        squared = "Square" in kind or kind == "ReduceL2"
        value = s("Mul", s.x, s.x) if squared else s("Abs", s.x) if kind == "ReduceL1" else ""
        s.end(s("Sqrt", value) if kind == "ReduceL2" else value or s("Log" if kind == "ReduceLogSum" else "Identity", s.x))

    return define


def _last_index(s: Decomposition) -> None:
    """The last of equal extremes: the first one of the reversed data."""
    axis = s.axis(default=0)
    size = s.shape()[axis]
    reverse = s("Slice", s.x, [-1], [-size - 1], [axis], [-1])
    found = s(str(s.op["op_type"]), reverse, axis=axis, keepdims=s.attribute("keepdims", 1))
    s.end(s("Sub", np.array(size - 1, np.int64), found))


def _is_inf(s: Decomposition) -> None:
    """x equal to one of the infinities."""
    if bool(s.attribute("detect_negative", 1)) == bool(s.attribute("detect_positive", 1)):
        raise NoDefinitionError("both or none")
    s.end(s("Equal", s.x, -math.inf if s.attribute("detect_negative", 1) else math.inf))


def _quick_gelu(s: Decomposition) -> None:
    """onnxruntime's QuickGelu: x * sigmoid(alpha * x)."""
    s.end(s("Swish", s.x, alpha=float(s.attribute("alpha", 1.702))))


def _fused_conv(s: Decomposition) -> None:
    """onnxruntime's FusedConv: a Conv, a sum that joins it, and an activation after both."""
    window = s.attributes("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    value = s("Conv", s.x, s.input(1), s.input(2), **window)
    value = s("Add", value, s.input(3)) if s.input(3) else value
    kind, numbers = s.attribute("activation", ""), list(s.attribute("activation_params", ()))
    if kind in ("Relu", "Sigmoid", "Tanh"):
        value = s(kind, value)
    elif kind == "LeakyRelu":
        value = s(kind, value, alpha=float(numbers[0]) if numbers else 0.01)
    elif kind == "Clip" and len(numbers) == 2:
        value = s(kind, value, *map(np.float32, numbers))
    elif kind:
        raise NoDefinitionError(kind)
    s.end(value)


def _fused_gemm(s: Decomposition) -> None:
    """onnxruntime's FusedGemm: a Gemm and an activation after it."""
    value = s("Gemm", s.x, s.input(1), s.input(2), **s.attributes("alpha", "beta", "transA", "transB"))
    kind, slope = str(s.attribute("activation", "")), s.attribute("activation_alpha")
    if kind in ("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign"):
        value = s(kind, value)
    elif kind in ("LeakyRelu", "Elu"):
        value = s(kind, value, alpha=slope)
    elif kind:
        raise NoDefinitionError(kind)
    s.end(value)


_REDUCTIONS = "ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp"


def _real(s: Decomposition, index: int, scale: int, axis: int | None = None) -> str:
    """The float values of input `index`, whose scale and zero point are the inputs from `scale` on."""
    along = axis if axis is not None and math.prod(s.shape(scale)) > 1 else None
    return s("DequantizeLinear", s.input(index), s.input(scale), s.input(scale + 1), axis=along)


def _end(s: Decomposition, value: str, scale: int) -> None:
    """The result with its quantization, or as it is where the node names no quantization."""
    s.end(s("QuantizeLinear", value, s.input(scale), s.input(scale + 1)) if s.input(scale) else value)


def _qgemm(s: Decomposition) -> None:
    """QGemm with any factor alpha and any C: alpha * (A' @ B' + C), C being int32 at the scale of the products."""
    turned = bool(s.attribute("transB", 0))
    a, b = _real(s, 0, 1), _real(s, 3, 4, 0 if turned else 1)
    a = s("Transpose", a, perm=[1, 0]) if s.attribute("transA", 0) else a
    alpha = float(s.attribute("alpha", 1.0))
    product = s("Gemm", a, b, transB=int(turned))
    if s.input(6):
        scales = s.known(1).reshape(-1).astype(np.float32) * s.known(4).reshape(-1).astype(np.float32)
        product = s("Add", product, s("Mul", s("Cast", s.input(6), to=1), scales if scales.size > 1 else scales.reshape(())))
    _end(s, s("Mul", product, np.float32(alpha)) if alpha != 1 else product, 7)


def _softmax(s: Decomposition) -> None:
    """QLinearSoftmax of an opset before 13: all axes from one on together."""
    if int(s.attribute("opset", 13)) >= 13:
        raise NoDefinitionError("one axis")
    axis, shape = s.axis(default=1), s.shape()
    rows = s("Reshape", _real(s, 0, 1), [math.prod(shape[:axis]), math.prod(shape[axis:])])
    _end(s, s("Reshape", s("Softmax", rows, axis=-1), shape), 3)


def _channels_last(kind: str, *names: str, domain: str = CONTRIB) -> Definition:
    """An operator on integers of channels-last data: the same after a Transpose of the integers, and one before the result."""

    def define(s: Decomposition) -> None:
        rank = s.rank()
        if (not s.attribute("channels_last", 0) and kind != "MaxPool") or rank < 3:
            raise NoDefinitionError("channels first")
        front, back = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
        given = [s.input(index) for index in range(1, len(s.op.inputs))]
        value = s(kind, s("Transpose", s.x, perm=front), *given, domain=domain, **s.attributes(*names))
        s.end(s("Transpose", value, perm=back))

    return define


_WINDOW = ("auto_pad", "ceil_mode", "kernel_shape", "pads", "strides")

_FLOAT = 1  # TensorProto.FLOAT


def _features(s: Decomposition) -> str:
    """The data as float32, which these operators compute."""
    return s.x if s.tensor().dtype == "float32" else s("Cast", s.x, to=_FLOAT)


def _floats(s: Decomposition, name: str) -> Array:
    return np.array(s.attribute(name, ()), np.float32)


def _scaler(s: Decomposition) -> None:
    """(x - offset) * scale, of each feature or of all."""
    moved = s("Sub", _features(s), _floats(s, "offset"))
    s.end(s("Mul", moved, _floats(s, "scale")))


def _array_feature_extractor(s: Decomposition) -> None:
    """Elements of the last axis; data of one axis are a row (onnxruntime, array_feature_extractor.cc)."""
    rank, last = s.rank(), s.rank() - 1
    found = s("Gather", s.x, s("Reshape", s.input(1), [-1]), axis=last)
    s.end(s("Reshape", found, [1, -1]) if rank == 1 else found)


def _binarizer(s: Decomposition) -> None:
    """1 where a value is above the threshold, else 0."""
    above = s("Greater", s.x, float(s.attribute("threshold", 0.0)))
    s.end(s("Cast", above, to=s.element()))


def _normalizer(s: Decomposition) -> None:
    """Rows divided by their maximum, their sum of absolutes, or their length; where that is 0 a row stays (onnxruntime, normalizer.cc)."""
    norm = s.attribute("norm", "MAX")
    if norm not in ("MAX", "L1", "L2"):
        raise NoDefinitionError(f"the norm {norm}")
    data = _features(s)
    axes = [-1]
    size = s("ReduceMax", data, axes) if norm == "MAX" else s("ReduceL1" if norm == "L1" else "ReduceL2", data, axes)
    zero = s.const(np.float32(0))
    s.end(s("Div", data, s("Where", s("Equal", size, zero), np.float32(1), size)))


def _linear_regressor(s: Decomposition) -> None:
    """x @ coefficients' + intercepts, of each target."""
    if s.attribute("post_transform", "NONE") != "NONE":
        raise NoDefinitionError("a function of the result")
    targets = int(s.attribute("targets", 1))
    weights = _floats(s, "coefficients").reshape(targets, -1)
    product = s("MatMul", _features(s), np.ascontiguousarray(weights.T))
    intercepts = _floats(s, "intercepts")
    s.end(s("Add", product, intercepts) if intercepts.size else product)


def _linear_classifier(s: Decomposition) -> None:
    """The label of the largest score, and the scores, x @ coefficients' + intercepts, or a function of them."""
    labels = s.attribute("classlabels_ints")
    function = s.attribute("post_transform", "NONE")
    if not labels or function not in ("NONE", "SOFTMAX", "LOGISTIC"):
        raise NoDefinitionError("labels that are texts, or another function of the scores")
    weights, intercepts = _floats(s, "coefficients"), _floats(s, "intercepts")
    if len(labels) < 3 or intercepts.size != len(labels) or weights.size % len(labels):
        raise NoDefinitionError("scores of one of two classes")
    product = s("MatMul", _features(s), np.ascontiguousarray(weights.reshape(len(labels), -1).T))
    scores = s("Add", product, intercepts)
    best = s("ArgMax", scores, axis=1, keepdims=0)
    s.end(s("Gather", np.array(labels, np.int64), best, axis=0))
    given = s("Softmax", scores, axis=1) if function == "SOFTMAX" else s("Sigmoid", scores) if function == "LOGISTIC" else scores
    s.end(given, 1)


DEFINITIONS: Definitions = {
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "LpPool": _lp_pool,
    "GlobalLpPool": _global_lp_pool,
    "AveragePool": _dilated_average,
    "Clip": _clip,
    "ArgMax": _last_index,
    "ArgMin": _last_index,
    "IsInf": _is_inf,
    **{kind: _single(kind) for kind in _REDUCTIONS.split()},
    "com.microsoft.FusedMatMul": _fused_matmul,
    "com.microsoft.TransposeMatMul": _fused_matmul,
    "com.microsoft.FusedGemm": _fused_gemm,
    "com.microsoft.FusedConv": _fused_conv,
    "com.microsoft.QuickGelu": _quick_gelu,
    "com.microsoft.QGemm": _qgemm,
    "com.microsoft.QLinearSoftmax": _softmax,
    "com.microsoft.QLinearConv": _channels_last(
        "QLinearConv", "auto_pad", "kernel_shape", "pads", "strides", "dilations", "group", domain=""
    ),
    "com.microsoft.QLinearAveragePool": _channels_last("QLinearAveragePool", *_WINDOW, "count_include_pad"),
    "com.microsoft.QLinearGlobalAveragePool": _channels_last("QLinearGlobalAveragePool"),
    "com.microsoft.NhwcMaxPool": _channels_last("MaxPool", *_WINDOW, "dilations", domain=""),
    "ai.onnx.ml.ArrayFeatureExtractor": _array_feature_extractor,
    "ai.onnx.ml.Binarizer": _binarizer,
    "ai.onnx.ml.LinearClassifier": _linear_classifier,
    "ai.onnx.ml.LinearRegressor": _linear_regressor,
    "ai.onnx.ml.Normalizer": _normalizer,
    "ai.onnx.ml.Scaler": _scaler,
}
