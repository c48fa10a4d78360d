"""Reductions over axes, order along an axis, and normalizations: largest and smallest elements and their places, sorted elements, running
sums. Parameters that a normalization does not have are 1 and 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qconvert.arithmetic.storage import REALS
from qconvert.formats.torch.operands import Part, as_real, cast_operand, emit_reshape
from qconvert.formats.torch.ops.elementwise import read_binary
from qconvert.formats.torch.quantizing import emit_dequantize
from qconvert.formats.torch.reading import ReadFunction, Reading, with_arguments, with_unused
from qconvert.formats.torch.values import Ref, Uncomputed
from qconvert.graph import Op, Quantization, Shape, numpy_dtype
from qconvert.operators.values import Value, absolute, apply, reduce, sqrt, square


@with_arguments
def read_place(c: Reading, kind: str) -> str:
    """aten::argmax, argmin: along an axis, or of all elements."""
    name, rank = c.name(), c.rank()
    if c["dim"] is None:
        flat = emit_reshape(c, name, [-1], hint="flat")
        found = c.emit(kind, [flat], hint="place" if c["keepdim"] else "", axis=0, keepdims=0)
        return emit_reshape(c, found, [1] * rank) if c["keepdim"] else found
    return c.emit(kind, [name], axis=_axis(c), keepdims=_keepdims(c))


def _emit_top_k(c: Reading, count: str, axis: int, largest: bool, in_order: bool) -> list[str]:
    tensor = c.operand()
    results = [(tensor.dtype, tensor.quantization), ("int64", None)]
    outputs = [c.draft.add(f"{c.hint}/{place}", dtype, None, None, quantization) for place, (dtype, quantization) in enumerate(results)]
    attributes = {"axis": axis, "largest": int(largest), "sorted": int(in_order)}
    c.draft.append(Op("TopK", (tensor.name, count), tuple(outputs), attributes, c.source))
    return outputs


def read_topk(c: Reading) -> list[str]:
    """aten::topk(x, k, dim, largest, sorted): values and their places."""
    axis = c.axis_of()
    value = c["k"]
    count = emit_reshape(c, value.name, [1], hint="k") if isinstance(value, Ref) else c.list64([value], "k")
    return _emit_top_k(c, count, axis, bool(c["largest"]), bool(c["sorted"]))


@with_arguments
def read_sort(c: Reading, *results: int) -> list[str] | str:
    """aten::sort: values and their places; argsort: the places; msort: the values along the first axis."""
    axis = _axis(c) if "dim" in c else 0
    found = _emit_top_k(c, c.list64([c.static_size(axis)], "k"), axis, bool(c.get("descending")), True)
    return [found[index] for index in results] if len(results) > 1 else found[results[0]]


@with_arguments
def read_cumulative(c: Reading, kind: str) -> str:
    """aten::cumsum(x, dim, dtype) and aten::cumprod: of whole numbers and truth values in int64."""
    tensor, wanted = c.operand(), c.dtype("dtype")
    c.require_plain(tensor.name)
    dtype = wanted or (tensor.dtype if tensor.dtype in REALS else "int64")
    return c.emit(kind, [cast_operand(c, tensor.name, dtype, "data")], axis=_axis(c))


def read_kth(c: Reading) -> list[str]:
    """aten::kthvalue(x, k, dim): the k-th smallest, and its place."""
    axis, count = c.axis_of(), c.integer("k")
    if count < 1:
        raise c.invalid(f"k is {count}; elements are counted from 1", rule="index-out-of-range")
    found = _emit_top_k(c, c.list64([count], "k"), axis, False, True)
    last = c.const(np.array(count - 1) if c["keepdim"] is False else np.array([count - 1]), "last")
    return [c.emit("Gather", [name, last], hint=hint, axis=axis) for name, hint in zip(found, ("value", "place"), strict=True)]


def _axis(c: Reading) -> int:
    """The axis that the call states; a tensor of rank 0 has one too."""
    return c.axis(c.integer("dim"), max(c.rank(), 1))


def _keepdims(c: Reading) -> int:
    """Whether the axes stay, with one element each."""
    return int(bool(c.get("keepdim")))


_SORTED = "i dim=-1, b descending=False"


def emit_reduction(c: Reading, kind: str, name: str = "", hint: str = "") -> str:
    """A reduction of a tensor, by default `self`, over the axes `dim` of the call, all of them where it has none."""
    axes = c.list64(c.axes("dim") if "dim" in c and c.rank() else [], "axes")
    return c.emit(kind, [name or c.name(), axes], hint=hint, keepdims=_keepdims(c))


def read_mean(c: Reading) -> str:
    """aten::mean: of float values, or of what is cast to the type that the call states."""
    wanted = c.dtype("dtype")
    name = as_real(c) if wanted is None else cast_operand(c, c.name(), wanted, "data")
    return emit_reduction(c, "ReduceMean", name)


@with_arguments
def read_total(c: Reading, kind: str) -> str:
    """aten::sum and prod: of integers and truth values in int64, unless the call states a type."""
    tensor, wanted = c.operand(), c.dtype("dtype")
    c.require_plain(tensor.name)
    if wanted is None and tensor.dtype not in REALS:
        wanted = "int64"
    return emit_reduction(c, kind, tensor.name if wanted is None else cast_operand(c, tensor.name, wanted, "data"))


#: aten::amax, amin, and max, min of all elements: the largest or smallest stored value.
read_extreme = with_arguments(emit_reduction)


@with_arguments
def read_extreme_with_position(c: Reading, kind: str, position: str) -> tuple[str, str]:
    """aten::max, min along an axis: the values, and the positions of the first of them."""
    values = emit_reduction(c, kind)
    return values, c.emit(position, [c.name()], hint="indices", axis=_axis(c), keepdims=_keepdims(c))


def read_truth(kind: str) -> ReadFunction:
    """aten::all and any: of what is not 0."""
    return lambda c: emit_reduction(c, kind, cast_operand(c, c["self"], "bool", "data"))


def read_norm(c: Reading) -> Value:
    """aten::norm, linalg_vector_norm: the root of the sum of powers of magnitudes; of infinite order the largest or smallest."""
    order = c["ord"] if c["ord"] is not None else 2
    name = as_real(c)
    if c.lookup(name).is_quantized:
        name = emit_dequantize(c, name, hint="real")
    wanted = c.dtype("dtype")
    if wanted is not None:
        name = cast_operand(c, name, wanted, "data")
    if order in (1, 2):
        return emit_reduction(c, "ReduceL1" if order == 1 else "ReduceL2", name)
    magnitudes = absolute(Part(c, name))
    if math.isinf(order):
        return emit_reduction(c, "ReduceMax" if order > 0 else "ReduceMin", magnitudes.name)
    if order == 0:
        raise c.unsupported_error("order 0")
    total = emit_reduction(c, "ReduceSum", apply("Pow", magnitudes, order).name, hint="total")
    return apply("Pow", Part(c, total), 1 / order, hint="")


def _variance(c: Reading, name: str, hint: str) -> Value:
    """The variance over the call's axes."""
    rank = c.rank()
    listed = c.axes("dim") if "dim" in c and rank else list(range(rank))
    sizes = [c.size(axis) for axis in listed]
    correction = 1.0
    if "unbiased" in c:
        correction = 1.0 if c["unbiased"] else 0.0
    elif c["correction"] is not None:
        correction = c.number("correction")
    if correction and any(isinstance(size, str) for size in sizes):
        raise c.unknown_shape()
    x = Part(c, name)
    squares = square(x - reduce("ReduceMean", x, listed))
    count = math.prod(int(size) for size in sizes) if correction else 1
    if correction and count <= correction:
        raise c.unsupported_error(f"a variance of {count} elements", rule="shape-not-covered")
    if not correction:
        return apply("ReduceMean", squares, listed, hint=hint, keepdims=_keepdims(c))
    return apply("Mul", apply("ReduceMean", squares, listed, keepdims=_keepdims(c)), count / (count - correction), hint=hint)


@with_arguments
def read_variance(c: Reading, root: bool, mean: bool = False) -> Value | tuple[Value, str]:
    """aten::var and std, also with the mean next to it; a quantized tensor keeps its quantization."""
    name, quantization = as_real(c), c.operand().quantization
    dtype = c.operand().dtype
    if quantization is not None:
        name = emit_dequantize(c, name, hint="real")
    hint = "variance" if root else "" if quantization is None else "exact"
    result = _variance(c, name, hint)
    if root:
        result = sqrt(result, hint="" if quantization is None else "exact")
    if quantization is not None:
        result = c.emit("Quantize", [result.name], dtype=dtype, quantization=quantization)
    return (result, emit_reduction(c, "ReduceMean", name, hint="average")) if mean else result


_ALL_OR_SOME = ("T self", "T self, l? dim, b keepdim=False")
_TYPED = ", *, i? dtype=None"
_VAR = (
    "T self, b unbiased=True",
    "T self, l? dim, b unbiased, b keepdim=False",
    "T self, l? dim=None, f? correction=None, b keepdim=False",
)


#: The most elements of a parameter that a file does not hold.
_MOST = 2**24


def _parameter(c: Reading, argument: str, default: float, shape: Sequence[int]) -> str:
    """The name of a parameter; one that is absent has one value everywhere."""
    if c[argument] is not None:
        return c.name(argument)
    if math.prod(shape) > _MOST:
        raise c.invalid(f"the parameters have the shape {tuple(shape)}", rule="shape-mismatch")
    tensor = c.operand()
    return c.const(np.full(tuple(shape), default, numpy_dtype("float32" if tensor.is_quantized else tensor.dtype)), argument)


def _factors(c: Reading, shape: Sequence[int]) -> list[str]:
    """The names of the factors and summands of each channel."""
    return [_parameter(c, "weight", 1.0, shape), _parameter(c, "bias", 0.0, shape)]


def _channels(c: Reading, *arguments: str) -> int:
    """How many channels the data have, by their shape or by that of a parameter."""
    shape = c.operand().shape
    if shape is not None and len(shape) > 1 and isinstance(shape[1], int):
        return shape[1]
    for argument in arguments:
        if c[argument] is not None and (static := c.operand(argument).static_shape):
            return static[0]
    raise c.unknown_shape()


def _quantization(c: Reading) -> Quantization | None:
    """The quantization that a quantized:: operator states for its result."""
    return c.output_quantization() if "output_scale" in c else None


def read_batch_norm(c: Reading) -> str:
    """aten::batch_norm of a model that is not trained, quantized::batch_norm, also with a Relu."""
    if c.get("training"):
        raise c.unsupported_error("training mode; export the model after eval(),", rule="training-mode")
    if c["running_mean"] is None or c["running_var"] is None:
        raise c.unsupported_error("statistics of the batch; export the model after eval(),", rule="training-mode")
    count = [_channels(c, "running_mean")]
    names = [*_factors(c, count), c.name("running_mean"), c.name("running_var")]
    inputs, hint = [as_real(c), *names], "normalized" if c.activation else ""
    whole = c.emit(
        "BatchNormalization", inputs, quantization=_quantization(c), hint=hint, epsilon=c.number("eps"), data_format="channels_first"
    )
    return c.emit("Relu", [whole]) if c.activation else whole  # a Relu commutes with rounding to a quantization


def read_layer_norm(c: Reading) -> str:
    """layer_norm over the last axes, quantized::layer_norm."""
    shape = c.integers("normalized_shape")
    factors = [_parameter(c, "weight", 1.0, shape), *c.names("bias")]
    return c.emit("LayerNormalization", [as_real(c), *factors], quantization=_quantization(c), axis=-len(shape), epsilon=c.number("eps"))


def read_rms_norm(c: Reading) -> str:
    """aten::rms_norm over the last axes; an epsilon that is not stated is that of the type."""
    shape, name = c.integers("normalized_shape"), as_real(c)
    epsilon = c.number("eps") if c["eps"] is not None else float(np.finfo(numpy_dtype(c.lookup(name).dtype)).eps)
    return c.emit("RMSNormalization", [name, _parameter(c, "weight", 1.0, shape)], quantization=None, axis=-len(shape), epsilon=epsilon)


def read_group_norm(c: Reading) -> str:
    """group_norm, quantized::group_norm."""
    count = [_channels(c, "weight", "bias")]
    names = [as_real(c), *_factors(c, count)]
    groups, epsilon = c.integer("num_groups" if "num_groups" in c else "group"), c.number("eps")
    return c.emit(
        "GroupNormalization", names, quantization=_quantization(c), num_groups=groups, epsilon=epsilon, data_format="channels_first"
    )


def read_instance_norm(c: Reading) -> str:
    """instance_norm by statistics of each instance, or by stored ones; quantized::instance_norm."""
    if "use_input_stats" in c and not c["use_input_stats"]:
        return read_batch_norm(c)
    count = [_channels(c, "weight", "bias")]
    names = [as_real(c), *_factors(c, count)]
    return c.emit("InstanceNormalization", names, quantization=_quantization(c), epsilon=c.number("eps"), data_format="channels_first")


def read_batch_norm_legit(c: Reading) -> str:
    """aten::_native_batch_norm_legit without stored statistics: a decomposed instance norm, with the instances as channels."""
    shape = c.operand().shape
    if not c["training"] or shape is None or shape[0] != 1:
        raise c.unsupported_error("statistics of the batch; export the model after eval(),", rule="training-mode")
    return read_instance_norm(c) if isinstance(shape[1], int) else _normalize_over_space(c, shape)


def _normalize_over_space(c: Reading, shape: Shape) -> str:
    """Instance norm of a dynamic number of channels: each channel over its positions, then the channels' parameters."""
    if any(isinstance(size, str) for size in shape[2:]):
        raise c.unknown_shape()
    factors = [c.const(np.ones([int(size) for size in shape[2:]], np.float32), "ones")]
    parameters = [(kind, c.name(name)) for kind, name in (("Mul", "weight"), ("Add", "bias")) if c[name] is not None]
    hints = ["standardized", *("scaled" for _ in parameters[1:]), ""] if parameters else [""]
    result = c.emit("LayerNormalization", [as_real(c), *factors], quantization=None, hint=hints[0], axis=2, epsilon=c.number("eps"))
    for (kind, name), hint in zip(parameters, hints[1:], strict=True):
        upright = c.emit("Reshape", [name, c.list64([-1, *[1] * (len(shape) - 2)], f"{kind}/shape")], hint=f"{kind}/upright")
        result = c.emit(kind, [result, upright], hint=hint)
    return result


#: Statistics that only training uses.
_UNUSED = Uncomputed("the statistics of a normalization")
_AFFINE = "T? weight=None, T? bias=None"
_REQUIRED = "T? weight, T? bias"
_STATISTICS = "T? running_mean, T? running_var"
_GRID = "f output_scale, i output_zero_point"
_STATED = f"T input, {_REQUIRED}, T running_mean, T running_var, f eps, {_GRID}"
_TRAINABLE = f"T input, {_REQUIRED}, {_STATISTICS}, b training, f momentum, f eps"

OPERATORS: Mapping[str, ReadFunction] = {
    "aten::argmax(T self, i? dim=None, b keepdim=False)": read_place("ArgMax"),
    "aten::argmin(T self, i? dim=None, b keepdim=False)": read_place("ArgMin"),
    "aten::topk(T self, i k, i dim=-1, b largest=True, b sorted=True)": read_topk,
    f"aten::sort(T self, {_SORTED})": read_sort(0, 1),
    f"aten::sort(T self, b? stable, {_SORTED})": read_sort(0, 1),
    f"aten::argsort(T self, {_SORTED})": read_sort(1),
    f"aten::argsort(T self, b stable, {_SORTED})": read_sort(1),
    "aten::msort(T self)": read_sort(0),
    "aten::cumsum(T self, i dim, i? dtype=None)": read_cumulative("CumSum"),
    "aten::cumprod(T self, i dim, i? dtype=None)": read_cumulative("CumProd"),
    "aten::kthvalue(T self, i k, i dim=-1, b keepdim=False)": read_kth,
    **{f"aten::mean({form}{_TYPED})": read_mean for form in _ALL_OR_SOME},
    **{f"aten::sum({form}{_TYPED})": read_total("ReduceSum") for form in _ALL_OR_SOME},
    f"aten::prod(T self{_TYPED})": read_total("ReduceProd"),
    f"aten::prod(T self, i dim, b keepdim=False{_TYPED})": read_total("ReduceProd"),
    "aten::amax(T self, l dim=(), b keepdim=False)": read_extreme("ReduceMax"),
    "aten::amin(T self, l dim=(), b keepdim=False)": read_extreme("ReduceMin"),
    "aten::max(T self)": read_extreme("ReduceMax"),
    "aten::min(T self)": read_extreme("ReduceMin"),
    "aten::max(T self, T other)": read_binary("Max"),
    "aten::min(T self, T other)": read_binary("Min"),
    "aten::max(T self, i dim, b keepdim=False)": read_extreme_with_position("ReduceMax", "ArgMax"),
    "aten::min(T self, i dim, b keepdim=False)": read_extreme_with_position("ReduceMin", "ArgMin"),
    **{f"aten::all({form})": read_truth("ReduceAll") for form in _ALL_OR_SOME},
    **{f"aten::any({form})": read_truth("ReduceAny") for form in _ALL_OR_SOME},
    "aten::logsumexp(T self, l dim, b keepdim=False)": lambda c: emit_reduction(c, "ReduceLogSumExp", as_real(c)),
    "aten::frobenius_norm(T self, l dim, b keepdim=False)": lambda c: emit_reduction(c, "ReduceL2", as_real(c)),
    "aten::aminmax(T self, *, i? dim=None, b keepdim=False)": lambda c: (
        emit_reduction(c, "ReduceMin", hint="smallest"),
        emit_reduction(c, "ReduceMax", hint="largest"),
    ),
    f"aten::linalg_vector_norm(T self, f ord=2, l? dim=None, b keepdim=False{_TYPED})": read_norm,
    f"aten::norm(T self, f? ord=2{_TYPED})": read_norm,
    f"aten::norm(T self, f? ord, l dim, b keepdim=False{_TYPED})": read_norm,
    **{f"aten::{name}({form})": read_variance(root=name == "std") for name in ("var", "std") for form in _VAR},
    **{f"aten::{name}_mean({form})": read_variance(root=name == "std", mean=True) for name in ("var", "std") for form in _VAR},
    f"aten::batch_norm({_TRAINABLE}, b cudnn_enabled=False)": read_batch_norm,
    f"aten::native_batch_norm|_native_batch_norm_legit({_TRAINABLE})": with_unused(read_batch_norm, _UNUSED, 2),
    f"aten::cudnn_batch_norm({_TRAINABLE})": with_unused(read_batch_norm, _UNUSED, 3),
    f"aten::_native_batch_norm_legit(T input, {_REQUIRED}, b training, f momentum, f eps)": with_unused(read_batch_norm_legit, _UNUSED, 2),
    f"aten::_native_batch_norm_legit_no_training(T input, {_REQUIRED}, {_STATISTICS}, f momentum, f eps)": with_unused(
        read_batch_norm, _UNUSED, 2
    ),
    f"aten::_batch_norm_no_update(T input, {_REQUIRED}, {_STATISTICS}, f momentum, f eps)": with_unused(read_batch_norm, _UNUSED, 3),
    f"quantized::batch_norm|batch_norm#d|batch_norm_relu|batch_norm#d_relu|aten::quantized_batch_norm({_STATED})": read_batch_norm,
    f"aten::layer_norm(T input, l normalized_shape, {_AFFINE}, f eps=1e-05, b cudnn_enable=True)": read_layer_norm,
    f"quantized::layer_norm(T input, l normalized_shape, {_REQUIRED}, f eps, {_GRID})": read_layer_norm,
    f"aten::native_layer_norm(T input, l normalized_shape, {_REQUIRED}, f eps)": with_unused(read_layer_norm, _UNUSED, 2),
    "aten::rms_norm(T input, l normalized_shape, T? weight=None, f? eps=None)": read_rms_norm,
    "aten::_fused_rms_norm(T input, l normalized_shape, T? weight, f? eps)": with_unused(read_rms_norm, _UNUSED),
    f"aten::group_norm(T input, i num_groups, {_AFFINE}, f eps=1e-05, b cudnn_enabled=True)": read_group_norm,
    f"quantized::group_norm(T input, i num_groups, {_REQUIRED}, f eps, {_GRID})": read_group_norm,
    f"aten::native_group_norm(T input, {_REQUIRED}, i N, i C, i HxW, i group, f eps)": with_unused(read_group_norm, _UNUSED, 2),
    f"aten::instance_norm(T input, {_REQUIRED}, {_STATISTICS}, b use_input_stats, f momentum, f eps, b cudnn_enabled)": read_instance_norm,
    f"quantized::instance_norm(T input, {_REQUIRED}, f eps, {_GRID})": read_instance_norm,
}
