"""A state_dict of modules under quantization-aware training, before PyTorch converts them: the scales that stand in the buffers.

<m>.weight_fake_quant.scale, .zero_point         of the weights; with <m>.bn.* of the weights times the factor of the normalization
<m>.activation_post_process.scale, …             of what a module computes
activation_post_process_<n>.scale, …             FX: of the operators in their order; the first is the input's

A state_dict does not hold the limits of the integers. Those of activations follow from the range that stands next to each scale.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from qconvert.arithmetic import fold_batch_norm
from qconvert.encodings import QParams
from qconvert.errors import InvalidModelError
from qconvert.formats.torch.quantizing import ROUNDED, integers
from qconvert.formats.torch.states.entries import Entries, entry_name, norm_numbers, parent, quantization, sort_by_number, take_rest
from qconvert.graph import Array, Quantization, Tensor
from qconvert.graph.metadata import OBSERVED_SCALES, TRAINED_SCALES
from qconvert.kernels.torch import FUNCTION_NAMES, OBSERVED_KINDS
from qconvert.plugins import Folding, Parameters

_WEIGHTS, _RESULTS = "weight_fake_quant", "activation_post_process"
_LISTED = re.compile(r"^(?P<path>(?:.*\.)?)activation_post_process_(?P<number>\d{1,6})$")
#: What observers and fake quantizations keep next to scale and zero point.
_BESIDE = (
    "fake_quant_enabled", "observer_enabled", "static_enabled", "learning_enabled", "eps",
    "activation_post_process.eps", "activation_post_process.min_val", "activation_post_process.max_val",
    "activation_post_process.histogram", "activation_post_process.scale", "activation_post_process.zero_point", "min_val", "max_val",
)  # fmt: skip


def is_trained(entries: Entries) -> bool:
    """Whether fake quantizations stand in the state_dict."""
    return any(name.endswith(".fake_quant_enabled") for name in entries.values)


def read_trained(entries: Entries) -> Parameters:
    """Read a state_dict of modules under quantization-aware training."""
    folded: dict[str, Folding] = {}
    results: dict[str, QParams] = {}
    inputs: dict[str, QParams] = {}
    listed: dict[str, list[tuple[int, QParams | None]]] = {}
    said: list[str] = []
    observed: list[str] = []
    ranges: list[str] = []
    for fake in entries.modules_with("fake_quant_enabled"):
        is_on, is_observing = entries.number(fake, "fake_quant_enabled"), entries.number(fake, "observer_enabled")
        found = _take_fake_quantize(entries, fake)
        if fake.rpartition(".")[2] == _WEIGHTS:
            module = parent(fake)
            weight, bias, norm = entries.layer(module)
            folded[module] = Folding(partial(_fold_weights, module, weight, bias, norm, found if is_on else None), bool(norm))
        else:
            own = _quantization_of(found, fake) if is_on else None
            match = _LISTED.match(fake)
            if match is not None:
                listed.setdefault(match["path"].removesuffix("."), []).append((int(match["number"]), own))
            elif own is not None:
                (inputs if _is_stub(parent(fake)) else results)[parent(fake)] = own
            if own is not None:
                ranges.append("{} to {}".format(*own.quantization.limits(own.dtype)))
        if is_on:
            said.append(fake)
            observed += [fake] if is_observing else []
    tensors = take_rest(entries)
    metadata = {TRAINED_SCALES: json.dumps(said)} | ({OBSERVED_SCALES: json.dumps(observed)} if observed else {})
    limits = ", ".join(sorted(set(ranges)))
    note = f"a state_dict does not state the limits of integers; by its ranges and scales they are {limits} for activations"
    return Parameters(
        tensors,
        folded=folded,
        results=results,
        inputs=inputs,
        functions=sort_by_number(listed),
        function_names=FUNCTION_NAMES,
        observed_kinds=frozenset(OBSERVED_KINDS),
        trained=True,
        metadata=metadata,
        notes=(note,) if ranges else (),
    )


def _is_stub(module: str) -> bool:
    """Whether a module is a QuantStub by its name: it has no weights, as a FloatFunctional has none."""
    last, above = module.rpartition(".")[2], parent(module).rpartition(".")[2]
    return last.startswith("quant") or (last.isdecimal() and above.startswith("quant"))


class _Fake(NamedTuple):
    """The state of a fake quantization."""

    scale: Array
    zero_point: Array
    low: Array | None
    high: Array | None


def _take_fake_quantize(entries: Entries, fake: str) -> _Fake:
    scale, zero_point = entries.numbers(fake, "scale"), entries.numbers(fake, "zero_point")
    if scale is None or zero_point is None:
        raise InvalidModelError("a fake quantization has no scale or no zero point", where=fake, rule="scale-missing")
    low, high = (entries.numbers(fake, f"activation_post_process.{end}") for end in ("min_val", "max_val"))
    for name in _BESIDE:
        entries.take(fake, name)
    return _Fake(scale.reshape(-1).astype(np.float32), np.rint(zero_point.reshape(-1).astype(np.float64)), low, high)


def _quantization_of(found: _Fake, where: str) -> QParams:
    """The quantization of activations: its limits from the range that the scale was made of, or those of the whole type."""
    if found.scale.size != 1 or found.zero_point.size != 1:
        raise InvalidModelError(
            f"the number of scales is {found.scale.size}; an activation requires one", where=where, rule="not-per-tensor"
        )
    scale, point = float(found.scale[0]), float(found.zero_point[0])
    steps, lowest = _steps(found, scale, point)
    dtype = "int8" if lowest < 0 else "uint8"
    if steps > 255:
        dtype = "int16" if lowest < 0 else "uint16"
    return quantization(scale, point, where, dtype, lowest, lowest + steps)


def _steps(found: _Fake, scale: float, point: float) -> tuple[int, int]:
    """How many steps a quantization has, and its lowest integer: 255 from 0, or what the range next to the scale says.

    scale = (max - min) / steps and zero point = lowest - round(min / scale), where 0 lies in the range; symmetric ones have steps / 2 of
    the larger end, and the zero point 0 or that in the middle of uint8.
    """
    default = (255, -128 if point < 0 else 0)
    if found.low is None or found.high is None or found.low.size != 1 or found.high.size != 1 or not scale > 0:
        return default
    low, high = min(float(found.low.reshape(())), 0.0), max(float(found.high.reshape(())), 0.0)
    if not np.isfinite(low) or not np.isfinite(high) or high <= low:
        return default
    counts = [15, 127, 255, 65535]
    affine = (high - low) / scale
    nearest = min(counts, key=lambda count: abs(count - affine))
    if abs(affine - nearest) < 0.01 * nearest:
        lowest = point + np.rint(low / scale)
        return nearest, -(nearest + 1) // 2 if lowest < 0 else 0
    twice = 2 * max(-low, high) / scale
    nearest = min(counts, key=lambda count: abs(count - twice))
    if abs(twice - nearest) < 0.01 * nearest:
        return nearest, 0 if point > 0 else -(nearest + 1) // 2
    return default


def _fold_weights(
    module: str, weight: Array, bias: Array | None, norm: Mapping[str, Array], fake: _Fake | None, epsilon: float
) -> Mapping[str, Tensor]:
    """weight * gamma / sqrt(variance + epsilon) with its quantization, in float32 as in training; beta + (bias - mean) * that factor."""
    if norm:
        single, double = (fold_batch_norm(weight, bias, *norm_numbers(norm), epsilon, real) for real in ("float32", "float64"))
        with np.errstate(all="ignore"):
            weight, bias = single[0], double[1].astype(np.float32)
        if not np.isfinite(weight).all() or not np.isfinite(bias).all():
            raise InvalidModelError(
                "folding the normalization makes weights that are NaN or infinite", where=module, rule="weights-not-finite"
            )
    weight_name, bias_name = (entry_name(module, part) for part in ("weight", "bias"))
    if fake is None:
        found = {weight_name: Tensor(weight_name, "float32", weight.shape, weight)}
    else:
        on = _weight_quantization(fake, weight.shape, module)
        found = {weight_name: Tensor(weight_name, "int8", weight.shape, integers(weight, on, "int8", ROUNDED), on)}
    if bias is not None:
        found[bias_name] = Tensor(bias_name, "float32", bias.shape, np.asarray(bias, np.float32))
    return found


def _weight_quantization(fake: _Fake, shape: tuple[int, ...], module: str) -> Quantization:
    """The quantization of weights: along the outputs where there are several scales; 8 bits, or 4 where the range next to the scale says
    so."""
    scale, points = fake.scale, fake.zero_point.astype(np.int64)
    if scale.shape != points.shape or scale.size not in (1, shape[0] if shape else 1):
        raise InvalidModelError(f"{scale.size} scales do not fit weights of shape {shape}", where=module, rule="counts-differ")
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise InvalidModelError("a scale of the weights is not a positive number", where=module, rule="scale-not-positive")
    low, high = _weight_limits(fake)
    if ((points < low) | (points > high)).any():
        raise InvalidModelError(f"a zero point of the weights is outside of {low} to {high}", where=module, rule="zero-point-outside-type")
    is_listed = scale.size > 1 or (fake.low is not None and fake.low.ndim == 1 and shape[:1] == (1,))
    return Quantization(scale, points, 0 if is_listed else None).with_limits("int8", low, high)


def _weight_limits(fake: _Fake) -> tuple[int, int]:
    """-128 to 127; -127 to 127 if each scale is max(-low, high) / 127; -8 to 7 if it is max(-low, high) / about 7.5."""
    if fake.low is None or fake.high is None or fake.low.size != fake.scale.size or fake.high.size != fake.scale.size:
        return -128, 127
    low, high = (np.asarray(end, np.float64).reshape(-1) for end in (fake.low, fake.high))
    with np.errstate(all="ignore"):
        ends = np.maximum(-low, high) / fake.scale
        negative = ends[-low > high]
    if ends.size and np.isfinite(ends).all() and (ends < 16).all() and not fake.zero_point.any():
        return -8, 7
    exact = negative.size > 0 and (np.abs(ends - 127) < 0.01).all() and not fake.zero_point.any()
    return (-127, 127) if exact else (-128, 127)
