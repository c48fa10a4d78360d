"""Pools, averages and resizing of bytes that keep their quantization."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.torch.quantized_modules.builder import ModuleBuilder, ModuleFunction
from qconvert.formats.torch.writers.norm import axes_of
from qconvert.formats.torch.writers.resize import known_sizes, nearest_operator
from qconvert.formats.torch.writers.sizes import sizes_of
from qconvert.formats.torch.writers.windows import is_symmetric, pad_data, pads_of
from qconvert.graph import Op

__all__ = ["WRITERS"]


def _window(op: Op, b: ModuleBuilder) -> tuple[list[int], list[int], list[int], bool]:
    """Kernel, dilations and pads of a pool, and whether PyTorch can state the pads."""
    kernel = [int(size) for size in op["kernel_shape"]]
    dilations = [int(step) for step in op["dilations"]] if op.kind == "MaxPool" and op["dilations"] else [1] * len(kernel)
    pads = pads_of(op, b, kernel, dilations)
    fits = is_symmetric(pads) and all(2 * pad <= size for pad, size in zip(pads, kernel, strict=False))
    return kernel, dilations, pads, fits


def write_max_pool(op: Op, b: ModuleBuilder) -> None:
    """MaxPool; padding that PyTorch cannot state is added before, with the smallest integer."""
    kernel, dilations, pads, fits = _window(op, b)
    node = b.stored_value(op.inputs[0]) if fits else pad_data(op, b, pads, float("-inf"))
    padding = pads[: len(kernel)] if fits else [0] * len(kernel)
    strides = [int(step) for step in op["strides"]]
    b.close(op, b.aten(f"max_pool{len(kernel)}d", node, kernel, strides, padding, dilations, bool(op["ceil_mode"])))


def write_average_pool(op: Op, b: ModuleBuilder) -> None:
    """AveragePool."""
    kernel, _, pads, _ = _window(op, b)
    strides = [int(step) for step in op["strides"]]
    sizes = (kernel, strides, pads[: len(kernel)], False, bool(op["count_include_pad"]))
    b.close(op, b.aten(f"avg_pool{len(kernel)}d", b.stored_value(op.inputs[0]), *sizes))


def write_global_average(op: Op, b: ModuleBuilder) -> None:
    """GlobalAveragePool."""
    spatial = b.rank(op) - 2
    b.close(op, b.aten(f"adaptive_avg_pool{spatial}d", b.stored_value(op.inputs[0]), [1] * spatial))


def write_mean(op: Op, b: ModuleBuilder) -> None:
    """ReduceMean over constant axes."""
    b.close(op, b.aten("mean.dim", b.stored_value(op.inputs[0]), axes_of(op, b), bool(op["keepdims"])))


def write_nearest(op: Op, b: ModuleBuilder) -> None:
    """Resize that repeats elements."""
    name = nearest_operator(op, known_sizes(op, b))
    if name is None:
        raise b.unsupported_error(op, f"{op['coordinate_transformation_mode']} places and {op['nearest_mode']}", rule="form-not-covered")
    b.set_node(op.outputs[0], b.aten(f"{name}{b.rank(op) - 2}d", b.stored_value(op.inputs[0]), sizes_of(b, op.inputs[1])))


WRITERS: Mapping[str, ModuleFunction] = {
    "MaxPool": write_max_pool,
    "AveragePool": write_average_pool,
    "GlobalAveragePool": write_global_average,
    "ReduceMean": write_mean,
    "Resize": write_nearest,
}
