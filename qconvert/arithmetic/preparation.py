"""What is computed before a network runs: scale and zero point of a range of float values by the formula of each framework, normalizations
that are folded into weights and biases, and the mean error of rounded weights.

FORMULAS holds the formulas by name. They differ in the divisor, in where the zero point is rounded to and how its ties fall, and in what
becomes of ranges without zero. Each computes in the precision of its source, so that scales are equal to the last bit;
tests/test_formulas.py compares with PyTorch and onnxruntime themselves, and with values worked out by hand from the sources named below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic.rounding import round_half_away, round_half_up
from qconvert.arithmetic.storage import Array, Quantization, integer_range
from qconvert.errors import OptionError, require_word

_F32 = np.float32
#: The smallest scale that PyTorch's observers give, whatever the range: torch.finfo(torch.float32).eps.
PYTORCH_EPS = float(np.finfo(np.float32).eps)
#: The smallest normal number of float32.
_TINY = float(np.finfo(np.float32).tiny)
_Computed = tuple[Array, Array]


class Formula(NamedTuple):
    """How a framework makes a quantization of a range.

    Attributes:
        name: its key in FORMULAS.
        text: the formula; n and p are the lowest and the highest integer.
        source: where it is written.
        computes: (smallest and largest float value, float32; lowest and highest integer) -> scale and zero point as the source computes
            them, without any check: 0, NaN or a zero point beyond the integers where it gives these.
        integers: "int" and "uint", as far as it takes them; the first where nobody says otherwise.
        symmetric: whether only the largest magnitude counts.
        narrow: whether the lowest of signed integers is left out, so that -n = p.
        beyond: what becomes of a range without zero: "extended" to it, "nudged" there by moving, or "refused".
        per_axis: whether it takes ranges along an axis.
    """

    name: str
    text: str
    source: str
    computes: Callable[[Array, Array, int, int], _Computed]
    integers: tuple[str, ...] = ("int", "uint")
    symmetric: bool = False
    narrow: bool = False
    beyond: str = "extended"
    per_axis: bool = True

    def __call__(
        self, low: Any, high: Any, bits: int = 8, *, dtype: str = "", axis: int | None = None, narrow: bool = False
    ) -> tuple[str, Quantization]:
        """The storage type and the quantization of a range.

        Differs from the source where the source gives no quantization. A range of zero alone, or one so small that its scale is no normal
        number of float32, gets the scale 1 and the zero point 0; a range without zero follows `beyond`.

        Args:
            low: smallest float value, rounded to float32, one, or one for each index along `axis`.
            high: largest, likewise.
            bits: of the integers, 2 to 16. PyTorch's reduce_range is 7.
            dtype: the storage type, by default of 8 or 16 bits, signed as `integers` says.
            axis: the dimension that the values run along, or None.
            narrow: whether the lowest integer is left out, as TensorFlow's narrow_range does, where the formula does not by itself.

        Raises:
            OptionError: the range is none (NaN, infinite, its ends in the wrong order), the formula refuses it, or its scale is beyond
                float32; or bits, type and axis do not fit.
        """
        dtype, lowest, highest = self._integers(bits, dtype, narrow)
        lows, highs = self._range(low, high, axis)
        with np.errstate(all="ignore"):
            scale, point = (np.asarray(found, np.float64) for found in self.computes(lows, highs, lowest, highest))
            scale = scale.astype(_F32)
        if not np.isfinite(scale).all():
            raise OptionError(f"the scale of a range from {low} to {high} is outside of float32", rule="scale-not-float32")
        is_none = scale < _F32(_TINY)  # no runtime divides by less, nor does onnxruntime's formula
        point = np.where(is_none, 0, point).clip(lowest, highest).astype(np.int64)
        ends = (end if end != whole else None for end, whole in zip((lowest, highest), integer_range(dtype), strict=True))
        return dtype, Quantization(np.where(is_none, _F32(1), scale), point, axis, 0, *ends)

    def _integers(self, bits: int, dtype: str, narrow: bool) -> tuple[str, int, int]:
        dtype = dtype or f"{self.integers[0]}{8 if bits <= 8 else 16}"
        word, width = dtype.rstrip("0123456789"), dtype.lstrip("uint")
        if not 2 <= bits <= 16 or width not in ("2", "4", "8", "16") or bits > int(width) or word not in self.integers:
            types = " or ".join(f"{word}{2 ** max(1, (bits - 1).bit_length())}" for word in self.integers)
            raise OptionError(
                f"{self.name} has no quantization of {bits} bits in {dtype}",
                remedy=f"Use 2 to 16 bits, in a type such as {types}.",
                rule="bits-not-covered",
            )
        half = 2 ** (bits - 1)
        return (dtype, int(narrow), 2 * half - 1) if word == "uint" else (dtype, (narrow or self.narrow) - half, half - 1)

    def _range(self, low: Any, high: Any, axis: int | None) -> tuple[Array, Array]:
        with np.errstate(over="ignore"):
            lows, highs = (np.atleast_1d(np.asarray(end, _F32)) for end in (low, high))
        if not (np.isfinite(lows).all() and np.isfinite(highs).all() and lows.shape == highs.shape and (lows <= highs).all()):
            raise OptionError(f"a range from {low} to {high} has no scale", rule="range-not-finite")
        if lows.ndim != 1 or not lows.size or (axis is None and lows.size != 1):
            raise OptionError(f"{lows.size} ranges require an axis that they run along", rule="axis-missing")
        if axis is not None and not self.per_axis:
            raise OptionError(
                f"{self.name} has one scale for a tensor", remedy="Use another formula for per-channel scales.", rule="not-per-tensor"
            )
        if not self.symmetric and self.beyond == "refused" and ((lows > 0) | (highs < 0)).any():
            raise OptionError(
                f"the range is {low} to {high}; {self.name} requires a range that includes 0",
                remedy="Extend the range to 0.",
                rule="range-without-zero",
            )
        if not self.symmetric and self.beyond == "extended":
            lows, highs = np.minimum(lows, _F32(0)), np.maximum(highs, _F32(0))
        return lows, highs


def choose_quantization(
    name: str, low: Any, high: Any, bits: int = 8, *, dtype: str = "", axis: int | None = None, narrow: bool = False
) -> tuple[str, Quantization]:
    """The storage type and the quantization of a range by one of FORMULAS; see Formula.__call__().

    Raises:
        OptionError: there is no such formula, or it takes no such range.
    """
    require_word("the formula", name, FORMULAS, "unknown-formula")
    return FORMULAS[name](low, high, bits, dtype=dtype, axis=axis, narrow=narrow)


def _absmax(low: Array, high: Array) -> Array:
    return np.asarray(np.maximum(np.abs(low), np.abs(high)))


def _symmetric(low: Array, high: Array, lowest: int, highest: int) -> _Computed:
    scale = _absmax(low, high) / _F32(highest)
    return scale, np.zeros(scale.shape)


def _google_affine(low: Array, high: Array, lowest: int, highest: int) -> _Computed:
    """OneFlow's zero point is that of unsigned integers; nothing keeps it among them."""
    scale = (high - low) / _F32(highest - lowest)
    return scale, lowest - np.rint(low / scale).astype(np.float64)


def _cambricon(low: Array, high: Array, lowest: int, highest: int) -> _Computed:
    """2 to the power of what OneFlow stores in the place of a scale."""
    scale = np.exp2(np.floor(np.log2(_absmax(low, high))) - _F32((highest + 1).bit_length() - 2))
    return scale, np.zeros(scale.shape)


def _pytorch_affine(low: Array, high: Array, lowest: int, highest: int) -> _Computed:
    scale = np.maximum((high - low) / _F32(highest - lowest), _F32(PYTORCH_EPS))
    return scale, np.clip(lowest - np.rint(low / scale).astype(np.float64), lowest, highest)


def _pytorch_symmetric(low: Array, high: Array, lowest: int, highest: int) -> _Computed:
    """(p - n) / 2 is 127.5 in 8 bits: the quantization is half a step wider than the range below, and half a step short of it above."""
    scale = np.maximum(_absmax(low, high) / _F32((highest - lowest) / 2), _F32(PYTORCH_EPS))
    whole = highest in (255, 65535)
    middle = 0 if lowest < 0 else (highest + whole) // 2
    return scale, np.full(scale.shape, float(middle))


def _tensorflow(low: Array, high: Array, lowest: int, highest: int) -> _Computed:
    scale = (high - low) / _F32(highest - lowest)
    point = _F32(lowest) - low / scale
    return scale, np.clip(round_half_away(point), lowest, highest)


def _gemmlowp(low: Array, high: Array, lowest: int, highest: int) -> _Computed:
    """In float64, by the end of the range whose error is smaller."""
    wide, top = low.astype(np.float64), high.astype(np.float64)
    scale = (top - wide) / (highest - lowest)
    below, above = wide / scale, top / scale
    point = np.where(abs(lowest) + np.abs(below) < abs(highest) + np.abs(above), lowest - below, highest - above)
    return scale, round_half_away(np.clip(point, lowest, highest))


def _mindspore_affine(low: Array, high: Array, lowest: int, highest: int) -> _Computed:
    scale = (high - low) / _F32(highest - lowest)
    return scale, round_half_up(_F32(lowest) - low / scale)


def _mindspore_symmetric(low: Array, high: Array, lowest: int, highest: int) -> _Computed:
    largest = _absmax(low, high)
    scale = (largest + largest) / _F32(highest - lowest)
    return scale, np.zeros(scale.shape) if lowest < 0 else round_half_up(_F32(lowest) + largest / scale)


def _onnxruntime_affine(low: Array, high: Array, lowest: int, highest: int) -> _Computed:
    scale = (high.astype(np.float64) - low) / (highest - lowest)
    return np.where(scale < _TINY, 0, scale), np.rint(lowest - low / scale)


def _onnxruntime_symmetric(low: Array, high: Array, lowest: int, highest: int) -> _Computed:
    scale = 2 * _absmax(low, high).astype(np.float64) / (highest - lowest)
    return np.where(scale < _TINY, 0, scale), np.full(scale.shape, np.rint((lowest + highest) / 2))


_ONEFLOW = "OneFlow, user/kernels/min_max_observer_kernel.cpp"
_TORCH = "PyTorch, ao/quantization/observer.py, _calculate_qparams"
_TFLITE = "TFLite, tools/optimize/quantization_utils.cc"
_MINDSPORE = "MindSpore, compression/quant/quant_utils.py, cal_quantization_params"
_ORT = "onnxruntime, quantization/quant_utils.py, compute_scale_zp"
_AMAX = "s = absmax / p, z = 0"
_SIGNED, _UNSIGNED = ("int",), ("uint", "int")

_REGISTER = (
    Formula("google_symmetric", _AMAX, _ONEFLOW, _symmetric, _SIGNED, symmetric=True),
    Formula("google_affine", "s = (max - min) / (p - n), z = n - rint(min / s)", _ONEFLOW, _google_affine, integers=_UNSIGNED),
    Formula("cambricon", "s = 2^(floor(log2(absmax)) - (bits - 2)), z = 0", _ONEFLOW, _cambricon, _SIGNED, symmetric=True,
            per_axis=False),
    Formula("pytorch_affine", "s = max((max - min) / (p - n), eps), z = n - rint(min / s), within n and p", _TORCH, _pytorch_affine,
            integers=_UNSIGNED),
    Formula("pytorch_symmetric", "s = max(absmax / ((p - n) / 2), eps), z = 0; 128 or the middle of unsigned integers", _TORCH,
            _pytorch_symmetric, symmetric=True),
    Formula("tensorflow", "s = (max - min) / (p - n), z = round(n - min / s), ties away from zero, within n and p",
            "TensorFlow, core/kernels/fake_quant_ops_functor.h, Nudge", _tensorflow, integers=_UNSIGNED, beyond="nudged"),
    Formula("tflite_affine", "s = (max - min) / (p - n), z = round(n - min / s), ties away from zero, within n and p",
            f"{_TFLITE}, GetAsymmetricQuantizationParams", _tensorflow),
    Formula("tflite_symmetric", f"{_AMAX}, without the lowest integer", f"{_TFLITE}, SymmetricPerChannelQuantization", _symmetric,
            _SIGNED, symmetric=True, narrow=True),
    Formula("gemmlowp", "s = (max - min) / (p - n), z = round(n - min / s or p - max / s), ties away from zero, in float64",
            "TFLite, kernels/internal/quantization_util.h, ChooseQuantizationParams, which is gemmlowp's", _gemmlowp, integers=_UNSIGNED,
            beyond="refused"),
    Formula("mindspore_affine", "s = (max - min) / (p - n), z = floor(n - min / s + 1/2)", _MINDSPORE, _mindspore_affine),
    Formula("mindspore_symmetric", "s = 2 absmax / (p - n), z = 0; floor(n + absmax / s + 1/2) of unsigned integers", _MINDSPORE,
            _mindspore_symmetric, symmetric=True),
    Formula("onnxruntime_affine", "s = (max - min) / (p - n), z = rint(n - min / s), in float64", _ORT, _onnxruntime_affine,
            integers=_UNSIGNED),
    Formula("onnxruntime_symmetric", "s = 2 absmax / (p - n), z = rint((n + p) / 2), in float64, without the lowest of signed integers",
            _ORT, _onnxruntime_symmetric, symmetric=True, narrow=True),
    Formula("tensorrt", _AMAX, "TensorRT, developer guide, explicit quantization: dynamic range = 127 s", _symmetric, _SIGNED,
            symmetric=True),
    Formula("mnn", f"{_AMAX}, without the lowest integer", "MNN, tools/quantization, MAX_ABS", _symmetric, _SIGNED, symmetric=True,
            narrow=True),
)  # fmt: skip

#: Every formula by its name.
FORMULAS: Mapping[str, Formula] = {item.name: item for item in _REGISTER}


def batch_norm_factor(scale: Any, variance: Any, epsilon: float, precision: str = "float64") -> Array:
    """scale / sqrt(variance + epsilon): what a batch normalization multiplies each channel by.

    Source: Ioffe and Szegedy, "Batch Normalization" (arXiv 1502.03167), algorithm 1; ONNX BatchNormalization-15. Where the variance is not
    positive it is NaN or infinite, which the caller has to look at.

    Args:
        scale, variance: one number for each channel.
        epsilon: is added to the variance.
        precision: in which it is computed: float64, or float32 as trainers do.
    """
    real = np.dtype(precision).type
    with np.errstate(all="ignore"):
        return np.asarray(np.asarray(scale, real) / np.sqrt(np.asarray(variance, real) + real(epsilon)))


def fold_batch_norm(
    weights: Any, bias: Any, scale: Any, offset: Any, mean: Any, variance: Any, epsilon: float, precision: str = "float64"
) -> tuple[Array, Array]:
    """Weights and bias of a layer that does what the layer and a batch normalization after it do.

    weights * f and (bias - mean) * f + offset, with f of batch_norm_factor(). Source: Jacob et al. (arXiv 1712.05877), section 3.2, where
    the folded weights are those that are quantized.

    Args:
        weights: outputs first: O,I,spatial of a convolution, O,I of a matrix product.
        bias: one for each output, one for all, or None.
        scale, offset, mean, variance: one for each output: gamma, beta and the statistics.
        epsilon: is added to the variance.
        precision: of all that is computed, and of what is returned.
    """
    real = np.dtype(precision).type
    weights, offset, mean = (np.asarray(item, real) for item in (weights, offset, mean))
    factor = batch_norm_factor(scale, variance, epsilon, precision)
    given = np.zeros(1, real) if bias is None else np.asarray(bias, real).reshape(-1)
    with np.errstate(all="ignore"):
        return np.asarray(weights * factor.reshape(-1, *[1] * (weights.ndim - 1))), np.asarray((given - mean) * factor + offset)


def bias_correction(weights: Any, rounded: Any, mean: Any, groups: int = 1) -> Array:
    """Return the addend of a bias with which rounding the weights keeps the mean of each output.

    The error of the weights times the mean of the data, E[y] - E[y'] = (W - W') E[x]. Source: Nagel et al., "Data-Free Quantization Through
    Weight Equalization and Bias Correction" (arXiv 1906.04721), section 4.2. Padding is not looked at: at the borders of an image the mean
    is that of the inside.

    Args:
        weights: real, outputs first: O,I,spatial or O,I, with the inputs of one group.
        rounded: the float values of the quantized weights.
        mean: of the data: one for each input channel, over all groups.
        groups: of the convolution.

    Returns:
        float64, one for each output.
    """
    error = np.asarray(weights, np.float64) - np.asarray(rounded, np.float64)
    error = error.reshape(groups, -1, *error.shape[1:2], int(np.prod(error.shape[2:], dtype=np.int64))).sum(axis=-1)
    means = np.asarray(mean, np.float64).reshape(groups, 1, -1)
    return np.asarray((error * means).sum(axis=-1).reshape(-1))
