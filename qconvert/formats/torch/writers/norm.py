"""Normalizations, softmax and reductions, on real values."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.torch.writers.kernels import reduced_as_kernels
from qconvert.formats.torch.writing import Builder, WriteFunction
from qconvert.graph import Op

__all__ = ["WRITERS"]


def write_batch_norm(op: Op, b: Builder) -> None:
    """BatchNormalization by its stored mean and variance."""
    b.channels_first(op)
    b.finish(op, b.aten("batch_norm", *b.reals(op), False, 0.1, float(op["epsilon"]), False))


def write_layer_norm(op: Op, b: Builder) -> None:
    """LayerNormalization over the axes from `axis` on."""
    shape = b.shape(op, op.inputs[0])
    sizes = shape[int(op["axis"]) % len(shape) :]
    if any(isinstance(size, str) for size in sizes) or op.outputs[1:]:
        raise b.unsupported(op, f"sizes {sizes} or further results")
    parameters = [b.real(name) for name in (*op.inputs[1:3], "", "")[:2]]
    b.finish(op, b.aten("layer_norm", b.real(op.inputs[0]), [int(size) for size in sizes], *parameters, float(op["epsilon"])))


def write_instance_norm(op: Op, b: Builder) -> None:
    """InstanceNormalization."""
    b.channels_first(op)
    data, weight, bias = b.reals(op)
    b.finish(op, b.aten("instance_norm", data, weight, bias, None, None, True, 0.1, float(op["epsilon"]), False))


def write_group_norm(op: Op, b: Builder) -> None:
    """GroupNormalization."""
    b.channels_first(op)
    data, weight, bias = b.reals(op)
    b.finish(op, b.aten("group_norm", data, int(op["num_groups"]), weight, bias, float(op["epsilon"])))


def write_softmax(op: Op, b: Builder) -> None:
    """Softmax, of data times beta, and LogSoftmax."""
    node = b.real(op.inputs[0])
    if op.kind == "LogSoftmax":
        b.finish(op, b.aten("log_softmax.int", node, int(op["axis"])))
        return
    if op["beta"] != 1:
        node = b.aten("mul.Tensor", node, float(op["beta"]))
    b.finish(op, b.aten("softmax.int", node, int(op["axis"])))


def write_reduction(operator: str) -> WriteFunction:
    """A reduction over constant axes, which none stated stand for all."""

    def write(op: Op, b: Builder) -> None:
        if not reduced_as_kernels(op, b, _axes(op, b)):
            b.finish(op, b.aten(operator, b.real(op.inputs[0]), _axes(op, b), bool(op["keepdims"])))

    return write


def _axes(op: Op, b: Builder) -> list[int]:
    rank = b.rank(op)
    stated = b.integers(op, 1) if len(op.inputs) > 1 and op.inputs[1] else []
    return [axis % max(rank, 1) for axis in stated] or list(range(rank))


def write_arg(operator: str) -> WriteFunction:
    """ArgMax and ArgMin: the first of equal ones."""

    def write(op: Op, b: Builder) -> None:
        node = b.aten(operator, b.real(op.inputs[0]), int(op["axis"]), bool(op["keepdims"]))
        dtype = b.tensor(op.outputs[0]).dtype
        b.set(op.outputs[0], node if dtype == "int64" else b.aten("to.dtype", node, b.dtype(dtype)))

    return write


def write_norm(op: Op, b: Builder) -> None:
    """LpNormalization: along an axis, divided by the norm."""
    node = b.real(op.inputs[0])
    length = b.aten("linalg_vector_norm", node, int(op["p"]), [int(op["axis"])], True)
    b.finish(op, b.aten("div.Tensor", node, length))


WRITERS: Mapping[str, WriteFunction] = {
    "BatchNormalization": write_batch_norm,
    "LayerNormalization": write_layer_norm,
    "InstanceNormalization": write_instance_norm,
    "GroupNormalization": write_group_norm,
    "Softmax": write_softmax,
    "LogSoftmax": write_softmax,
    "LpNormalization": write_norm,
    "ReduceMean": write_reduction("mean.dim"),
    "ReduceSum": write_reduction("sum.dim_IntList"),
    "ReduceMax": write_reduction("amax"),
    "ReduceMin": write_reduction("amin"),
    "ReduceAll": write_reduction("all.dims"),
    "ReduceAny": write_reduction("any.dims"),
    "ArgMax": write_arg("argmax"),
    "ArgMin": write_arg("argmin"),
}
