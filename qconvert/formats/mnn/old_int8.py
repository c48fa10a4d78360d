"""The int8 operators of MNN 1: conversions between float and int8 tensors, and convolutions whose three scales are one product.

MNN 1 quantizes with operators: FloatToInt8 (tensorScale is 1 / scale), ConvInt8 and DepthwiseConvInt8, Int8ToFloat (tensorScale is the
scale); source: tools/quantization/calibration.cpp of MNN 1.0, schema/default/CaffeOp.fbs. A convolution computes
round((sum q w + bias) * scale), where scale is data scale * weight scale / result scale for each channel. MNN 3.6.1 runs them, and its
integers are these (measured).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.mnn.weights import LayerWeights

__all__ = ["CONVERSIONS", "CONVOLUTIONS", "Conversion", "kept_tensors", "read_conversion", "read_old_weights", "require_readable"]

#: What converts between a float tensor and an int8 tensor of the same values.
CONVERSIONS = ("FloatToInt8", "Int8ToFloat")
#: Operators of MNN 1, and what MNN 2 calls them.
CONVOLUTIONS = {"ConvInt8": "Convolution", "DepthwiseConvInt8": "ConvolutionDepthwise"}
#: MNN 3.6.1 has no kernel for EltwiseInt8, and no longer knows PoolInt8: nothing runs here that a reading could be compared with.
_REFUSED = ("EltwiseInt8", "PoolInt8")
_REMEDY = "Convert the file with MNNConvert of version 2 or later from its float model."
#: How far the product of a convolution's scales may be from the one that the file states: float32 rounds each of two operations.
_TOLERANCE = 1e-5


class Conversion(NamedTuple):
    """A conversion between float and int8.

    Attributes:
        dropped, kept: the tensors that it connects, of which one has the name of a float model's tensor.
        scale, zero, lowest, highest: the quantization parameters of both.
    """

    dropped: int
    kept: int
    scale: float
    zero: int
    lowest: int
    highest: int


def require_readable(operators: Iterable[tuple[str, str]]) -> None:
    """Check the (type, name) of all operators.

    Raises:
        UnsupportedError: one is an int8 operator of MNN 1 that is not read.
    """
    for kind, name in operators:
        if kind in _REFUSED:
            raise UnsupportedError(
                f"is {kind}, an int8 operator of MNN before version 2, which is not covered",
                where=name,
                remedy=_REMEDY,
                rule="version-not-covered",
            )


def read_conversion(kind: str, name: str, view: Any, names: tuple[str, ...]) -> Conversion:
    """Read a FloatToInt8 or Int8ToFloat.

    Args:
        kind: the type of the operator.
        name: of the operator. Its inserted tensor has the same one.
        view: the operator in the file, with one input and one output.
        names: of the file's tensors.

    Raises:
        InvalidModelError: it lacks its scale, or an input or output.
        UnsupportedError: it has a scale for each channel.
    """
    stated, places = view.main, (view.inputIndexes, view.outputIndexes)
    scales = stated.tensorScale if stated is not None and view.mainType == 74 else None
    if stated is None or scales is None or not len(scales) or any(found is None or len(found) != 1 for found in places):
        raise InvalidModelError(f"is {kind}, which requires a scale, one input and one output", where=name, rule="malformed-operator")
    if not np.array_equal(scales, np.full_like(scales, scales[0]), equal_nan=True):
        raise UnsupportedError(
            f"is {kind} of MNN before version 2 with a scale for each channel; one scale for the tensor is covered",
            where=name,
            remedy=_REMEDY,
            rule="not-per-tensor",
        )
    with np.errstate(all="ignore"):
        scale = np.float32(1) / scales[0] if kind == "FloatToInt8" else scales[0]
    source, target = (int(found[0]) for found in places)
    dropped, kept = (source, target) if names[source] == name else (target, source)
    return Conversion(dropped, kept, float(scale), stated.zeroPoint, stated.clampMin, stated.clampMax)


def kept_tensors(conversions: Iterable[Conversion]) -> dict[int, int]:
    """Return, for each dropped tensor, the tensor of the same values that has a name of its own.

    Raises:
        InvalidModelError: conversions form a cycle, or two give one tensor.
    """
    direct: dict[int, int] = {}
    for conversion in conversions:
        if direct.setdefault(conversion.dropped, conversion.kept) != conversion.kept:
            raise InvalidModelError(
                f"tensor {conversion.dropped} is the result of two conversions between float and int8", rule="duplicate-name"
            )
    return {start: _follow_conversions(start, direct) for start in direct}


def _follow_conversions(start: int, direct: Mapping[int, int]) -> int:
    place = start
    for _ in range(len(direct)):
        place = direct[place]
        if place not in direct:
            return place
    raise InvalidModelError("conversions between float and int8 form a cycle", rule="cycle")


def read_old_weights(view: Any, kernel: tuple[int, int], outputs: int, data: float | None, result: float | None) -> LayerWeights:
    """Read the weights of a ConvInt8 or DepthwiseConvInt8.

    Args:
        view: its Convolution2D, with integers in symmetricQuan.
        kernel: height and width.
        outputs: the number of channels.
        data, result: the scales of the input and the output; None where the file states none.

    Raises:
        InvalidModelError: sizes contradict each other, or a scale is no positive number.
        UnsupportedError: the file does not state the scales of the weights.
    """
    stated, quantized = view.symmetricQuan, view.quanParameter
    size = outputs * math.prod(kernel)
    if min(outputs, *kernel) < 1 or not stated.weight.size or stated.weight.size % size:
        raise InvalidModelError(f"{stated.weight.size} weights do not fit {outputs} outputs and a kernel of {kernel}", rule="counts-differ")
    alpha = quantized.alpha if quantized is not None else None
    if alpha is None and (data is None or result is None):
        missing = "input" if data is None else "output"
        raise UnsupportedError(
            f"is an int8 layer of MNN before version 2, and the file does not have the scale of its {missing}",
            remedy=_REMEDY,
            rule="scale-missing",
        )
    products = stated.scale
    if products is not None and data is not None and result is not None:
        if len(products) != outputs:
            raise InvalidModelError(f"{len(products)} scales do not fit {outputs} channels", rule="counts-differ")
        with np.errstate(all="ignore"):
            computed = (products.astype(np.float64) * result / np.float64(data)).astype(np.float32)
        if alpha is None:
            alpha = computed
        elif len(alpha) != outputs or not np.allclose(alpha, computed, rtol=_TOLERANCE, atol=0):
            raise UnsupportedError(
                "the scales of the weights differ from those that MNN computes with", remedy=_REMEDY, rule="contradicting-scales"
            )
    if alpha is None or len(alpha) != outputs or not (np.isfinite(alpha) & (alpha >= 0)).all():
        raise InvalidModelError(f"{outputs} channels require as many scales that are finite and not negative", rule="scale-not-positive")
    return LayerWeights(stated.weight.reshape(outputs, -1, *kernel), 8, np.asarray(alpha, np.float32), None, True)
