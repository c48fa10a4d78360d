"""Operators of PyTorch's quantized engines, run by PyTorch's own kernels, for files that were made for an engine.

Packed parameters belong to the engine that is chosen when they are packed; additions and averages ask for it each time they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from qconvert.arithmetic import FLOAT_MEAN, TORCH_AVERAGES
from qconvert.formats.torch.engines import ENGINES
from qconvert.formats.torch.program import make_quantized_tensor, torch_package
from qconvert.formats.torch.writing import Builder, WriteFunction
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.kernels.torch import differs_from_quantized_mul, differs_from_scalar_sum
from qconvert.operators import kind_of
from qconvert.operators.sizes import swapped_weights
from qconvert.plugins import operators
from qconvert.rewriting.lowering import with_conditions_of

#: Averages that PyTorch's kernels for channels stored last give; so are means of images that it dequantizes.
_LAST = ("fbgemm_vectors", "fbgemm_adaptive")


def engine_of(graph: Graph) -> str:
    """Return the engine whose arithmetic a graph has; "" if it has none."""
    engine = graph.metadata.get(SOURCE_KERNELS, "").removeprefix("torch:")
    return engine if engine in ENGINES else ""


@contextmanager
def use_engine(engine: str) -> Iterator[None]:
    """Set PyTorch's quantized engine for the block, if this PyTorch has it; "" changes nothing."""
    if not engine:
        yield
        return
    settings: Any = torch_package().backends.quantized
    before = settings.engine
    settings.engine = engine if engine in settings.supported_engines else before
    try:
        yield
    finally:
        settings.engine = before


def writers_of(engine: str) -> Mapping[str, WriteFunction]:
    """Return the writers of the operators with kernels in an engine; none without an engine, or if this PyTorch lacks it."""
    if not engine or engine not in torch_package().backends.quantized.supported_engines:
        return {}
    return _writers()


@cache
def _writers() -> Mapping[str, WriteFunction]:
    known = operators("torch", "write")
    return {kind: _with_fallback(packed, known[kind]) for kind, packed in _PACKED.items()}


def _with_fallback(packed: Callable[[Op, Builder], Any], otherwise: WriteFunction) -> WriteFunction:
    """Return a writer that uses the engine's kernel if it takes the operator, else `otherwise`."""

    def write(op: Op, b: Builder) -> None:
        found = packed(op, b) if _is_quantized(b.result(op)) else None
        if found is None:
            otherwise(op, b)
        else:
            b.store(op, b.function(found[0], *found[1:]))

    return with_conditions_of(otherwise, write)


def _is_quantized(tensor: Tensor) -> bool:
    return tensor.dtype == "uint8" and tensor.per_tensor is not None


def _scale_and_zero_point(tensor: Tensor) -> tuple[float, int]:
    quantization = tensor.require_quantization()
    return quantization.step, quantization.point


def _as_quantized(tensor: Tensor) -> Callable[[Any], Any]:
    """Return the function from stored integers to a quantized tensor of PyTorch."""
    scale, zero_point = _scale_and_zero_point(tensor)
    make: Callable[..., Any] = torch_package()._make_per_tensor_quantized_tensor
    return lambda values: make(values, scale, zero_point)


def _constants(op: Op, b: Builder) -> tuple[Tensor, Array, Quantization, Any] | None:
    """Data, weights with their quantization, and the real bias of a layer that qnnpack has kernels for.

    The kernels of the other engines add pairs of products in 16 bits, which saturate: depthwise ones everywhere, all on CPUs without VNNI.
    Otherwise their results are the exact ones, so that the operators' meaning is computed instead.
    """
    if torch_package().backends.quantized.engine != "qnnpack":
        return None
    data, weights = b.operand(op), b.operand(op, 1)
    bias = b.operand(op, 2) if op.has(2) else None
    known = weights.data is not None and weights.quantization is not None and (bias is None or bias.data is not None)
    if not _is_quantized(data) or not known or op["activation"] not in ("", "relu") or op.attributes.get("arithmetic"):
        return None
    real = None
    if bias is not None and bias.data is not None:
        real = torch_package().from_numpy(np.array(bias.float_values(), np.float32))
    assert weights.data is not None and weights.quantization is not None
    return data, weights.data, weights.quantization, real


def _layer(op: Op, b: Builder, name: str, data: Tensor, arguments: tuple[Any, ...]) -> Any:
    """The call of a layer; None where the engine refuses its parameters."""
    space: Any = torch_package().ops.quantized
    try:
        packed = getattr(space, f"{name}_prepack")(*arguments)
    except RuntimeError:
        return None
    quantization, on = _scale_and_zero_point(b.result(op)), _as_quantized(data)
    run = getattr(space, f"{name}_relu" if op["activation"] else name)

    def layer(values: Any) -> Any:
        return run(on(values), packed, *quantization).int_repr()

    return layer, b.stored_value(data.name)


def _spatial(op: Op, rank: int) -> tuple[list[int], list[int], list[int]] | None:
    """Strides, padding and dilations of `rank` axes that PyTorch's layers can state."""
    pads = list(op["pads"])
    if op["data_format"] != "channels_first" or op.attributes.get("auto_pad", "NOTSET") != "NOTSET" or pads[:rank] != pads[rank:]:
        return None
    return list(op["strides"]), pads[:rank], list(op["dilations"])


def _conv(op: Op, b: Builder) -> Any:
    found = _constants(op, b)
    rank = len(found[1].shape) - 2 if found is not None else 0
    sizes = _spatial(op, rank) if found is not None and rank in (1, 2, 3) else None
    if found is None or sizes is None:
        return None
    (data, weights, quantization, bias), group = found, int(op["group"])
    if not kind_of(op).spreads:
        return _layer(op, b, f"conv{rank}d", data, (make_quantized_tensor(weights, quantization), bias, *sizes, group))
    if op["activation"] or (group != 1 and not quantization.is_per_tensor):
        return None
    turned = make_quantized_tensor(swapped_weights(weights, group), quantization.with_axis(None if quantization.is_per_tensor else 1))
    arguments = (turned, bias, sizes[0], sizes[1], list(op["output_padding"]), sizes[2], group)
    return _layer(op, b, f"conv_transpose{rank}d", data, arguments)


def _gemm(op: Op, b: Builder) -> Any:
    found = _constants(op, b)
    if found is None:
        return None
    data, weights, quantization, bias = found
    return _layer(op, b, "linear", data, (make_quantized_tensor(weights, quantization), bias))


def _add(op: Op, b: Builder) -> Any:
    if not differs_from_scalar_sum(b.graph, op):
        return _add_number(op, b)
    sides = [b.tensor(name) for name in op.inputs]
    if not op["arithmetic"] or op["activation"] not in ("", "relu") or not all(map(_is_quantized, sides)):
        return None
    quantization, on = _scale_and_zero_point(b.result(op)), [_as_quantized(side) for side in sides]
    space: Any = torch_package().ops.quantized
    run = space.add_relu if op["activation"] else space.add

    def add(first: Any, second: Any) -> Any:
        return run(on[0](first), on[1](second), *quantization).int_repr()

    return add, b.stored_input(op), b.stored_input(op, 1)


def _add_number(op: Op, b: Builder) -> Any:
    on, value, run = _as_quantized(b.operand(op)), float(b.operand(op, 1).float_values()), torch_package().ops.quantized.add_scalar
    return lambda values: run(on(values), value).int_repr(), b.stored_input(op)


def _mul(op: Op, b: Builder) -> Any:
    if differs_from_quantized_mul(b.graph, op):
        return None
    quantization, on = _scale_and_zero_point(b.result(op)), [_as_quantized(b.tensor(name)) for name in op.inputs]
    run = torch_package().ops.quantized.mul_relu if op["activation"] else torch_package().ops.quantized.mul

    def multiply(first: Any, second: Any) -> Any:
        return run(on[0](first), on[1](second), *quantization).int_repr()

    return multiply, b.stored_input(op), b.stored_input(op, 1)


def _average(op: Op, b: Builder, averaging: Callable[[Op, Builder], Callable[[Any], Any]]) -> Any:
    """An average of data that are stored as the kernel asked for takes them."""
    data = b.operand(op)
    if op["arithmetic"] not in (*TORCH_AVERAGES, FLOAT_MEAN) or not _is_quantized(data):
        return None
    torch, on = torch_package(), _as_quantized(data)
    is_last = op["arithmetic"] in _LAST or (op["arithmetic"] == FLOAT_MEAN and data.rank == 4)
    stored = torch.channels_last if is_last else torch.contiguous_format
    run = averaging(op, b)

    def average(values: Any) -> Any:
        return run(on(values.contiguous(memory_format=stored))).int_repr()

    return average, b.stored_value(data.name)


def _average_axes(op: Op, b: Builder) -> Callable[[Any], Any]:
    axes, keeps = b.integers(op, 1), bool(op["keepdims"])
    return lambda data: data.mean(axes, keeps)


def _average_all(op: Op, b: Builder) -> Callable[[Any], Any]:
    functions: Any = torch_package().nn.functional
    return lambda data: functions.adaptive_avg_pool2d(data, (1, 1))


def _average_windows(op: Op, b: Builder) -> Callable[[Any], Any]:
    functions: Any = torch_package().nn.functional
    if op["arithmetic"] in ("fbgemm_adaptive", "fbgemm_frames"):
        sizes = [int(size) for size in b.shape(op, op.outputs[0])[2:]]
        return lambda data: functions.adaptive_avg_pool2d(data, sizes)
    window = list(op["kernel_shape"]), list(op["strides"]), list(op["pads"])[: len(op["kernel_shape"])]
    return lambda data: functions.avg_pool2d(data, *window, False, True)


def _resize(op: Op, b: Builder) -> Any:
    data = b.operand(op)
    places = {"half_pixel": False, "align_corners": True}.get(str(op["coordinate_transformation_mode"]))
    if not op["arithmetic"] or places is None or not _is_quantized(data) or data.rank != 4 or b.graph.constant(op.inputs[1]) is None:
        return None
    torch, on, sizes = torch_package(), _as_quantized(data), b.integers(op, 1)

    def resize(values: Any) -> Any:
        stored = on(values.contiguous())
        return torch.nn.functional.interpolate(stored, sizes, mode="bilinear", align_corners=places).int_repr()

    return resize, b.stored_value(data.name)


def _quantize(op: Op, b: Builder) -> Any:
    if b.operand(op).dtype != "float32":
        return None
    torch, quantization = torch_package(), _scale_and_zero_point(b.result(op))

    def quantize(values: Any) -> Any:
        return torch.quantize_per_tensor(values, *quantization, torch.quint8).int_repr()

    return quantize, b.stored_input(op)


_PACKED: Mapping[str, Callable[[Op, Builder], Any]] = {
    "Conv": _conv,
    "ConvTranspose": _conv,
    "Gemm": _gemm,
    "Add": _add,
    "Mul": _mul,
    "AveragePool": partial(_average, averaging=_average_windows),
    "GlobalAveragePool": partial(_average, averaging=_average_all),
    "ReduceMean": partial(_average, averaging=_average_axes),
    "Resize": _resize,
    "Quantize": _quantize,
}
