"""Convolutions and fully connected layers, on int8 and in float. ncnn's weights are O,I,spatial, as here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.plugin import Op, stated_pads
from qconvert_ncnn.blobs import order_of, unsupported_error
from qconvert_ncnn.container import REQUANTIZED, Layer, pack_weights, scales_of, top_scale
from qconvert_ncnn.quantizations import INT8, LIMIT, inverse, is_fully_connected, is_int8_layer, outputs_axis
from qconvert_ncnn.reading import Reading
from qconvert_ncnn.writing import ACTIVATIONS, Writing

_RELU, _CLIP = 1, 3
_LARGEST = float(np.finfo(np.float32).max)
#: Values of pad_left that stand for SAME_UPPER and SAME_LOWER (src/layer/convolution.cpp).
_SAME = {-233: "SAME_UPPER", -234: "SAME_LOWER"}


# windows


def size_2d(layer: Layer, key: int) -> tuple[int, int]:
    """Return height and width of a window: the key of the height is that of the width + 10; by default both are equal."""
    width = layer.integer(key, 1)
    found = layer.integer(key + 10, width), width
    if min(found) < 1 or max(found) > 2**16:
        raise layer.invalid(f"the parameter {key} is {found}, not the size of a window", rule="malformed-window")
    return found


def read_pads(layer: Layer) -> dict[str, Any]:
    """Return the padding attributes of a convolution."""
    left = layer.integer(4)
    if left in _SAME:
        return {"auto_pad": _SAME[left], "pads": (0, 0, 0, 0)}
    right = layer.integer(15, left)
    top = layer.integer(14, left)
    found = (top, left, layer.integer(16, top), right)
    if min(found) < 0:
        raise layer.invalid(f"the padding is {found}", rule="padding-out-of-range")
    return {"pads": found}


def _window_params(op: Op, w: Writing) -> dict[int, Any]:
    kernel = w.graph[op.inputs[1]].static_shape
    if kernel is None or len(kernel) != 4:
        raise unsupported_error(op, "that is not over two dimensions")
    height, width = kernel[2:]
    is_transposed = op.kind == "ConvTranspose"
    pads = op["pads"] if is_transposed else stated_pads(op, w.sizes(op.inputs[0])[1:], kernel[2:], op["dilations"])
    top, left, bottom, right = map(int, pads)
    params = {
        0: kernel[0], 1: width, 11: height, 2: int(op["dilations"][1]), 12: int(op["dilations"][0]), 3: int(op["strides"][1]),
        13: int(op["strides"][0]), 4: left, 14: top, 15: right, 16: bottom, 6: math.prod(kernel),
    }  # fmt: skip
    return params if op["group"] == 1 else {**params, 7: int(op["group"])}


# writing


def write_conv(op: Op, w: Writing) -> None:
    """Convolution, or with groups ConvolutionDepthWise."""
    _write_product(op, w, "Convolution" if op["group"] == 1 else "ConvolutionDepthWise", _window_params(op, w), 5)


def write_conv_transpose(op: Op, w: Writing) -> None:
    """Deconvolution, or with groups DeconvolutionDepthWise; in float."""
    params, extra = _window_params(op, w), [int(size) for size in op["output_padding"]]
    params |= {18: extra[1], 19: extra[0]} if any(extra) else {}
    _write_product(op, w, "Deconvolution" if op["group"] == 1 else "DeconvolutionDepthWise", params, 5)


def write_gemm(op: Op, w: Writing) -> None:
    """InnerProduct of vectors, or of each row of a matrix."""
    shape = w.graph[op.inputs[1]].static_shape
    if shape is None or len(w.sizes(op.inputs[0])) > 2:
        raise unsupported_error(op, "of data over more than two dimensions")
    _write_product(op, w, "InnerProduct", {0: shape[0], 2: math.prod(shape)}, 1)


def write_matmul(op: Op, w: Writing) -> None:
    """InnerProduct of each row with a constant matrix; MatMul of two blobs, after a Permute of a transposed first one."""
    if is_fully_connected(w.graph, op):
        shape = w.graph[op.inputs[1]].static_shape or ()
        _write_product(op, w, "InnerProduct", {0: shape[outputs_axis(op)], 2: math.prod(shape)}, 1)
        return
    rank = len(w.sizes(op.outputs[0]))
    first, second = (w.value(name, rank) for name in op.inputs)
    if rank == 1:
        raise unsupported_error(op, "of vectors")
    if op["trans_a"]:
        turned = w.blobs.fresh(f"{op.inputs[0]}/turned")
        w.add("Permute", turned, [first], [turned], {0: order_of([*range(rank - 2), rank - 1, rank - 2])})
        first = turned
    w.finish(op, "MatMul", {0: int(op["trans_b"])}, inputs=[first, second])


def _write_product(op: Op, w: Writing, kind: str, params: dict[int, Any], bias_key: int) -> None:
    """Add the layer with its weights: integers and scales if ncnn runs it on int8."""
    weights, bias = w.graph[op.inputs[1]], w.graph[op.inputs[2]] if op.has(2) else None
    if weights.data is None or (bias is not None and bias.data is None):
        raise unsupported_error(op, "with weights or a bias that are computed when the model runs", rule="not-constant")
    real_bias = [] if bias is None else [pack_weights(w.real(bias).reshape(-1))]
    for item, part in ((weights, "weights"), (bias, "bias")):
        if item is not None:
            w.notes.names[f"{w.layer(op)}/{part}"] = item.name
    params[bias_key] = int(bias is not None)
    params |= _activation_params(str(op["activation"]))
    turns = outputs_axis(op) == 1
    if not is_int8_layer(w.graph, op):
        real = w.real(weights)
        w.finish(op, kind, params, pack_weights(real.T if turns else real, marked=True), *real_bias)
        return
    q, data = weights.quantization, w.graph[op.inputs[0]].quantization
    assert q is not None and data is not None
    groups = int(params.get(7, params[0]))
    scales = inverse(np.broadcast_to(q.scale.reshape(-1), params[0])[:: max(params[0] // groups, 1)])
    integers = np.asarray(weights.data).astype(np.int8)
    parts = [pack_weights(integers.T if turns else integers, marked=True), *real_bias, pack_weights(scales)]
    parts.append(pack_weights(inverse(data.scale.reshape(-1))))
    params[8] = 1
    name = op.outputs[0]
    if name not in w.stored:
        w.finish(op.with_attributes(activation=""), kind, params, *parts)
        return
    quantization = w.graph[name].quantization
    assert quantization is not None
    low, high = quantization.limits(INT8)
    params |= _limit_activation(ACTIVATIONS.get(str(op["activation"]), (-_LARGEST, None)), (low, high), quantization.step)
    params[8] = REQUANTIZED + 1
    output = w.blobs.name(name)
    w.add(
        kind,
        w.layer(op),
        [w.value(op.inputs[0])],
        [output],
        params,
        *parts,
        pack_weights(inverse(quantization.scale.reshape(-1))),
    )
    w.values[name] = output


def _activation_params(name: str) -> dict[int, Any]:
    if not name:
        return {}
    return {9: _RELU} if name == "relu" else {9: _CLIP, 10: tuple(float(bound or 0) for bound in ACTIVATIONS[name])}


def _limit_activation(activation: tuple[float, float | None], limits: tuple[int, int], scale: float) -> dict[int, Any]:
    """Return the activation parameters that also clip to the limits of the quantization."""
    low, high = activation[0], _LARGEST if activation[1] is None else activation[1]
    low = low if limits[0] == -LIMIT or low >= limits[0] * scale else limits[0] * scale
    high = high if limits[1] == LIMIT or high <= limits[1] * scale else limits[1] * scale
    if high == _LARGEST:
        return {} if low == -_LARGEST else {9: _RELU} if low == 0 else {9: _CLIP, 10: (float(low), high)}
    return {9: _CLIP, 10: (float(low), float(high))}


# reading


def read_convolution(r: Reading) -> None:
    """Convolution, ConvolutionDepthWise, Deconvolution and DeconvolutionDepthWise."""
    layer, transposed = r.layer, r.layer.kind.startswith("Deconvolution")
    group = r.layer.integer(7, 1) if layer.kind.endswith("DepthWise") else 1
    attributes: dict[str, Any] = {
        "data_format": "channels_first", "strides": size_2d(layer, 3), "dilations": size_2d(layer, 2), "group": group, **read_pads(layer),
    }  # fmt: skip
    if transposed:
        if attributes.pop("auto_pad", "") or layer.integer(20) or layer.integer(21):
            raise r.unsupported_error("with a size of its result")
        attributes["output_padding"] = (layer.integer(19, layer.integer(18)), layer.integer(18))
    if layer.number(18) and not transposed:
        raise r.unsupported_error(f"padded with {layer.number(18)}")
    outputs, channels = layer.integer(0), r.shape()[1] if len(r.shape()) == 4 else 0
    if group < 1 or not channels or channels % group or outputs % group:
        raise layer.invalid(f"{group} groups of {outputs} outputs do not fit data of the shape {r.shape()}", rule="counts-differ")
    shape = (outputs, channels // group, *size_2d(layer, 1))
    _read_product(r, "ConvTranspose" if transposed else "Conv", shape, attributes)


def read_inner_product(r: Reading) -> None:
    """InnerProduct of vectors or rows; other data are flattened to a vector."""
    outputs, size, shape = r.layer.integer(0), r.layer.integer(2), r.shape()
    inner = size // outputs
    rows = len(shape) == 3 and shape[-1] == inner
    if inner * outputs != size or (not rows and math.prod(shape) != inner):
        raise r.layer.invalid(f"{size} weights for {outputs} outputs do not fit data of the shape {shape}", rule="counts-differ")
    _read_product(r, "MatMul" if rows else "Gemm", (outputs, inner), {}, flat=len(shape) > 2 and not rows)


def read_gemm(r: Reading) -> None:
    """Gemm of rows with a constant matrix."""
    outputs, inner, shape = r.layer.integer(8), r.layer.integer(9), r.shape()
    if len(shape) != 3 or shape[-1] != inner:
        raise r.layer.invalid(f"weights of {inner} inputs do not fit data of the shape {shape}", rule="counts-differ")
    weights, bias = r.weights
    matrix = weights.reshape(outputs, inner).T if r.layer.integer(3) else weights.reshape(inner, outputs)
    product = [r.value(), r.parameter(np.ascontiguousarray(matrix), "weights")]
    if not bias.size:
        r.emit("MatMul", product)
        return
    r.emit("Add", [r.step("MatMul", product), r.parameter(bias, "bias")])


def _read_product(r: Reading, kind: str, shape: tuple[int, ...], attributes: Mapping[str, Any], *, flat: bool = False) -> None:
    """Read data, weights and bias of a product, on int8 if the layer has scales, and its activation.

    Args:
        shape: of the weights, outputs first; those of a MatMul are transposed.
        flat: whether the data are flattened to a vector.
    """
    weights, bias = r.weights[:2]
    if weights.size != math.prod(shape) or bias.size not in (0, shape[0]):
        raise r.layer.invalid(f"{weights.size} weights do not fit the sizes {shape}", rule="counts-differ")
    value, data, turns = r.value(), weights.reshape(shape), kind == "MatMul"
    data = np.ascontiguousarray(data.T) if turns else data
    if len(r.weights) > 2:
        value = r.round_input(float(r.weights[3][0]))
        scales = scales_of(r.weights)
        same = scales.size == 1 or bool((scales == scales[0]).all())
        own = r.dequantize_weights(data, scales[:1] if same else np.repeat(scales, shape[0] // scales.size), int(turns))
    else:
        own = r.parameter(data, "weights")
    if flat:
        value = r.step("Reshape", [value, r.numbers((1, -1))])
    inputs = [value, own, *([r.parameter(bias, "bias")] if bias.size and not turns else [])]
    activation, top = r.activation(), top_scale(r.weights)
    named = {"activation": activation} if activation else {}
    if activation is not None and not (turns and bias.size):
        r.emit_rounded(kind, inputs, top, {**attributes, **named})
        return
    result = r.step(kind, inputs, **attributes)
    if turns and bias.size:
        result = r.step("Add", [result, r.parameter(bias, "bias")], **named)
    r.emit_rounded("Identity", [r.apply_activation(result) if activation is None else result], top, {})


def read_matmul(r: Reading) -> None:
    if len(r.shape(0)) != len(r.shape(1)):
        raise r.unsupported_error("of blobs of several dimensions")
    r.emit("MatMul", [r.value(0), r.value(1)], **({"trans_b": 1} if r.layer.integer(0) else {}))


READERS = {
    **dict.fromkeys(("Convolution", "ConvolutionDepthWise", "Deconvolution", "DeconvolutionDepthWise"), read_convolution),
    "InnerProduct": read_inner_product,
    "Gemm": read_gemm,
    "MatMul": read_matmul,
}
WRITERS = {"Conv": write_conv, "ConvTranspose": write_conv_transpose, "Gemm": write_gemm, "MatMul": write_matmul}
