"""The operators that Vela 5.2 gives to the NPU of each family, as data: `vela --supported-ops-report`, else measured.

A rule takes an operator as the file holds it, and yields the reasons why the CPU runs it. tests/test_constraints.py compares the rules with
Vela, for the repository's models and for random operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TypeVar

import numpy as np

from qconvert.plugin import Graph, Op, Tensor, TfliteOperator, TfliteWriting, Violation, write_tflite_operators

T = TypeVar("T")
#: (file that is written, operator of the file) -> reasons.
Rule = Callable[[TfliteWriting, TfliteOperator], Iterator[str]]

_BYTES = ("int8", "uint8")
_WITH_WEIGHTS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")
#: Operators whose data are not their first input -> the index of the data.
_DATA = {"SPLIT": 1, "TRANSPOSE_CONV": 2}
#: The largest sum of the absolute weights of an output channel (127 * 2^16, as in Vela's report).
_LARGEST_SUM = 8_323_072
_VALID = 1  # Padding.VALID of the schema


def data_of(w: TfliteWriting, op: TfliteOperator) -> Tensor:
    return w.tensor(op.inputs[_DATA.get(op.builtin, 0)])


def _data_and_results(w: TfliteWriting, op: TfliteOperator) -> list[Tensor]:
    """Return data and results, without weights, biases, sizes and indices."""
    taken: tuple[str, ...] = (op.inputs[_DATA.get(op.builtin, 0)],)
    if op.builtin in _PAIRS or op.builtin in ("CONCATENATION", "PACK"):
        taken = op.inputs
    return [w.tensor(name) for name in (*taken, *op.outputs) if name]


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    """Return the sizes of a tensor; for Vela a dynamic dimension is 1."""
    return tuple(size if isinstance(size, int) else 1 for size in tensor.shape or ())


def _image(tensor: Tensor) -> tuple[int, int, int, int]:
    """Return the sizes as batch, height, width and channels."""
    sizes = (1, 1, 1, 1, *_sizes(tensor))[-4:]
    return sizes[0], sizes[1], sizes[2], sizes[3]


def _strides(op: TfliteOperator) -> tuple[int, int]:
    return int(op.options.strideH), int(op.options.strideW)


def _wide_strides(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    is_dilated = (getattr(op.options, "dilationHFactor", 1), getattr(op.options, "dilationWFactor", 1)) != (1, 1)
    if max(_strides(op)) > 3 and (is_dilated or op.options.padding != _VALID):
        yield "strides above 3 with dilation or padding"


def _strides_to_3(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    if max(_strides(op)) > 3:
        yield "strides above 3"


def _weights(largest: Mapping[str, int]) -> Rule:
    def rule(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
        data, weights = data_of(w, op), w.tensor(op.inputs[1])
        place = {"TRANSPOSE_CONV": 3}.get(op.builtin, 2)
        bias = w.tensor(op.inputs[place]) if len(op.inputs) > place and op.inputs[place] else None
        if bias is not None and not bias.is_constant:
            yield "a bias that is computed"
        if not weights.is_constant:
            if op.builtin != "FULLY_CONNECTED":
                yield "weights that are computed"
            return
        if weights.dtype not in _BYTES:
            yield f"weights of {weights.dtype}"
        elif weights.data is not None and weights.quantization is not None:
            axis = 3 if op.builtin == "DEPTHWISE_CONV_2D" else 0
            shape = [1] * weights.data.ndim
            shape[axis] = -1
            points = weights.quantization.zero_point.astype(np.int64)
            centred = weights.data.astype(np.int64) - (points.reshape(shape) if points.size > 1 else points.reshape(-1)[0])
            sums, limit = np.abs(centred).sum(axis=tuple(i for i in range(centred.ndim) if i != axis)), largest.get(data.dtype)
            if limit is not None and sums.max(initial=0) > limit:
                yield f"weights whose absolute sum exceeds {limit}"

    return rule


def _transposed_strides(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    _, height, width, _ = _image(data_of(w, op))
    kernel = _sizes(w.tensor(op.inputs[1]))[1:3]
    strides = _strides(op)
    flat = (strides == (1, 2) and height == kernel[0] == 1) or (strides == (2, 1) and width == kernel[1] == 1)
    if strides not in ((1, 1), (2, 2)) and not flat:
        yield f"strides of {strides[0]}x{strides[1]}"


def _transposed_sizes(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    _, *given, _ = _image(data_of(w, op))
    _, *found, _ = _image(w.tensor(op.outputs[0]))
    kernel = _sizes(w.tensor(op.inputs[1]))[1:3]
    for size, result, window, stride in zip(given, found, kernel, _strides(op), strict=True):
        if result != size * stride + (max(window - stride, 0) if op.options.padding == _VALID else 0):
            yield "a result of another size than its padding gives"
            return


def _window(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    height, width = int(op.options.filterHeight), int(op.options.filterWidth)
    if op.builtin == "AVERAGE_POOL_2D" and op.options.padding != _VALID:
        if max(height, width) > 8:
            yield "a padded window above 8x8"
    elif height > 256 or height * width > 65536:
        yield "a window above 256x256"


def _require_types(*types: str) -> Rule:
    def rule(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
        data, result = data_of(w, op), w.tensor(op.outputs[0])
        if data.dtype not in types or result.dtype != data.dtype:
            yield f"{data.dtype} data"

    return rule


def _require_data_types(*types: str) -> Rule:
    def rule(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
        if data_of(w, op).dtype not in types:
            yield f"{data_of(w, op).dtype} data"

    return rule


def _require_one_quantization(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    result = w.tensor(op.outputs[0])
    if any(not w.tensor(name).shares_quantization(result) for name in op.inputs):
        yield "inputs whose scales are not the result's"


def _require_constant_parameters(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    if any(name and not w.tensor(name).is_constant for name in op.inputs[1:]):
        yield "parameters that are computed"


def _integer_vector(tensor: Tensor) -> list[int]:
    return [] if tensor.data is None else [int(item) for item in np.asarray(tensor.data).reshape(-1)]


def _mean(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    data = data_of(w, op)
    sizes = _sizes(data)
    axes = [(axis % len(sizes), sizes[axis]) for axis in _integer_vector(w.tensor(op.inputs[1])) if sizes]
    if len(sizes) == 4 and sizes[0] != 1:
        yield "a batch"
    if max((size for _, size in axes), default=0) >= 4096:
        yield "a reduced axis of 4096 or more"
    if prod(size for _, size in axes) > {"int8": 2**24, "uint8": 2**23, "int16": 2**16}.get(data.dtype, 2**24):
        yield "too many reduced elements"
    if len(sizes) > 1 and any(axis == len(sizes) - 1 and size > 1 for axis, size in axes) and min(_image(data)[1:]) > 1:
        yield "a mean over channels of images"


def _argmax(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    sizes = _sizes(data_of(w, op))
    axis = _integer_vector(w.tensor(op.inputs[1]))
    if not axis or axis[0] % max(1, len(sizes)) != len(sizes) - 1:
        yield "another axis than the last"
    elif sizes[-1] > 127:
        yield "more than 127 channels"


def _matmul(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    if op.builtin == "FULLY_CONNECTED" and w.tensor(op.inputs[1]).is_constant:
        return
    if data_of(w, op).dtype != "int8":
        yield f"a product of two {data_of(w, op).dtype} data"
    elif max(_sizes(data_of(w, op))[-1], _sizes(w.tensor(op.outputs[0]))[-1]) > 2**16:
        yield "a product of more than 65536 columns"


def _softmax(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    if prod(_image(data_of(w, op))[1:3]) >= 65536:
        yield "65536 rows or more"


def _factors(w: TfliteWriting, op: TfliteOperator) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return numerators and denominators of the scaling along height and width; None where nothing is scaled."""
    _, height, width, _ = _image(data_of(w, op))
    _, tall, wide, _ = _image(w.tensor(op.outputs[0]))
    if height == width == 1 or (height, width) == (tall, wide):
        return None
    less = 1 if op.options.alignCorners else 0
    return (tall - less, height - less), (wide - less, width - less)


def _resize_u55(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    found = _factors(w, op)
    if found is None:
        return
    ratios = [top / bottom if bottom else float(top or 1) for top, bottom in found]
    _, tall, wide, _ = _image(w.tensor(op.outputs[0]))
    if ratios[0] != ratios[1] and not ((tall == 1 and ratios[0] == 1) or (wide == 1 and ratios[1] == 1)):
        yield "other factors along height than along width"
        return
    factor = max(ratios)
    half = bool(getattr(op.options, "halfPixelCenters", False)) and op.builtin == "RESIZE_BILINEAR"
    if factor not in ((2,) if half else (2, 4, 8)):
        yield f"a factor of {factor:g}{' with half-pixel centres' if half else ''}"


def _resize_u85(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    found = _factors(w, op)
    if found is None:
        return
    for top, bottom in found:
        factor = top / bottom if bottom else 1.0
        if op.builtin == "RESIZE_BILINEAR" and (factor != int(factor) or int(factor) & (int(factor) - 1)):
            yield f"a factor of {factor:g}"
            return
        if factor > (2048 if op.options.alignCorners else 1024):
            yield f"a factor of {factor:g}"
            return


def _slices(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    yield from _require_constant_parameters(w, op)
    steps = _integer_vector(w.tensor(op.inputs[3])) if len(op.inputs) > 3 else []
    if any(step < 0 for step in steps):
        yield "negative steps"


def _gather(w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    if int(op.options.axis) != int(op.options.batchDims):
        yield "an axis other than its batch axes"


_PAIRS = frozenset(
    "ADD SUB MUL DIV MAXIMUM MINIMUM SQUARED_DIFFERENCE PRELU EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_OR"
    " BATCH_MATMUL".split()
)
_LIMITS = dict.fromkeys(("int8", "uint8", "int16"), _LARGEST_SUM)
#: Operators of all families -> their rules; the rules of single families are below.
_COMMON: Mapping[str, Sequence[Rule]] = {
    **dict.fromkeys(
        ("ABS ADD CONCATENATION EXP EXPAND_DIMS HARD_SWISH LEAKY_RELU LOGISTIC MUL NEG PACK PRELU QUANTIZE REDUCE_MAX REDUCE_MIN RELU RELU6"
         " RELU_0_TO_1 RELU_N1_TO_1 RESHAPE REVERSE_V2 SPLIT SPLIT_V SQUARED_DIFFERENCE SQUEEZE SUB SUM TANH TILE UNPACK"
         " UNIDIRECTIONAL_SEQUENCE_LSTM").split(),
        (),
    ),
    **dict.fromkeys(("MIRROR_PAD", "PAD", "PADV2", "SLICE", "TRANSPOSE"), (_require_constant_parameters,)),
    **dict.fromkeys(("MAXIMUM", "MINIMUM"), (_require_one_quantization,)),
    "AVERAGE_POOL_2D": (_window,),
    "MAX_POOL_2D": (_window,),
    "ELU": (_require_types("int8"),),
    "GELU": (_require_types(*_BYTES),),
    "LOG": (_require_types("int8", "int16"),),
    "MEAN": (_require_data_types("int8", "uint8", "int16"), _require_constant_parameters, _mean),
    "RSQRT": (_require_data_types("int8", "int16"),),
    "SOFTMAX": (_softmax,),
    "STRIDED_SLICE": (_slices,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """The operators and types that the NPUs of a family support.

    Attributes:
        rules: operator -> its rules; other operators run on the CPU.
        types: storage types of data.
        unscaled: operators whose data need no scales.
        wide: operators that accept data of 32 bits; None if all do.
        longest: operators that accept data of 64 bits.
    """

    rules: Mapping[str, Sequence[Rule]]
    types: tuple[str, ...]
    unscaled: frozenset[str]
    wide: frozenset[str] | None = None
    longest: frozenset[str] = field(default_factory=frozenset)


_U55_RULES: Mapping[str, Sequence[Rule]] = {
    **_COMMON,
    "ARG_MAX": (_argmax,),
    "AVERAGE_POOL_2D": (_window, _wide_strides),
    "MAX_POOL_2D": (_window, _wide_strides),
    "BATCH_MATMUL": (_matmul,),
    "CONV_2D": (_weights(_LIMITS), _wide_strides),
    "DEPTHWISE_CONV_2D": (_weights(_LIMITS), _strides_to_3),
    "FULLY_CONNECTED": (_weights(_LIMITS), _matmul),
    "TRANSPOSE_CONV": (_weights(_LIMITS), _transposed_strides, _transposed_sizes),
    "RESIZE_BILINEAR": (_resize_u55,),
    "RESIZE_NEAREST_NEIGHBOR": (_resize_u55,),
}
_U85_LIMITS = {**_LIMITS, "int16": 2_130_706_432}
_U85_RULES: Mapping[str, Sequence[Rule]] = {
    **_COMMON,
    **dict.fromkeys(
        ("ARG_MAX ASSIGN_VARIABLE BATCH_MATMUL CAST DIV EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_NOT LOGICAL_OR"
         " NOT_EQUAL READ_VARIABLE REDUCE_ALL REDUCE_ANY SCATTER_ND SELECT SELECT_V2").split(),
        (),
    ),
    "CONV_2D": (_weights(_U85_LIMITS),),
    "DEPTHWISE_CONV_2D": (_weights(_U85_LIMITS),),
    "FULLY_CONNECTED": (_weights(_U85_LIMITS),),
    "TRANSPOSE_CONV": (_weights(_U85_LIMITS), _transposed_sizes),
    "GATHER": (_gather,),
    "RESIZE_BILINEAR": (_resize_u85,),
    "RESIZE_NEAREST_NEIGHBOR": (_resize_u85,),
}  # fmt: skip
_UNSCALED = frozenset("ARG_MAX EXPAND_DIMS MIRROR_PAD PAD PADV2 QUANTIZE TRANSPOSE".split())
_U55 = Family(
    _U55_RULES,
    ("int8", "uint8", "int16", "int32", "int64"),
    _UNSCALED,
    frozenset("ADD SUB MUL NEG EXPAND_DIMS RESHAPE SQUEEZE ARG_MAX BATCH_MATMUL FULLY_CONNECTED MIRROR_PAD PADV2 SUM TRANSPOSE".split()),
    frozenset(("ARG_MAX",)),
)
FAMILIES: Mapping[str, Family] = {
    "ethos-u55": _U55,
    "ethos-u65": _U55,
    "ethos-u85": Family(
        _U85_RULES,
        (*_U55.types, "bool"),
        _UNSCALED
        | frozenset("GATHER LOGICAL_AND LOGICAL_NOT LOGICAL_OR RESHAPE SQUEEZE SELECT SELECT_V2 REDUCE_ALL REDUCE_ANY".split())
        | frozenset("ASSIGN_VARIABLE READ_VARIABLE SCATTER_ND".split()),
    ),
}
_REFUSED = "Vela compiles the operator, or leaves it to the CPU (measured with 5.2)"
#: Operators without a kernel: the handle of a variable, and the call that initializes variables.
NO_KERNELS = frozenset(("VAR_HANDLE", "CALL_ONCE"))


def cpu_reasons(family: str, w: TfliteWriting, op: TfliteOperator) -> Iterator[str]:
    """Yield the reasons why the CPU runs an operator of a file; none if the NPU runs it."""
    known = FAMILIES[family]
    if op.builtin in NO_KERNELS:
        return
    if op.custom is not None or op.builtin not in known.rules:
        yield f"Vela has no {op.builtin}"
        return
    sides = _data_and_results(w, op) if op.builtin not in ("ASSIGN_VARIABLE", "READ_VARIABLE") else []
    for tensor in sides:
        if tensor.dtype not in known.types:
            yield f"{op.builtin} of {tensor.dtype}"
            return
        if not tensor.is_quantized and op.builtin not in known.unscaled:
            yield f"{op.builtin} of data without scales"
            return
        if tensor.quantization is not None and tensor.quantization.scale.size > 1:
            yield f"{op.builtin} of data with scales along an axis"
            return
        if known.wide is not None and tensor.dtype == "int64" and op.builtin not in known.longest:
            yield f"{op.builtin} of 64-bit data"
            return
    is_wide = any(tensor.dtype in ("int32", "uint32") for tensor in sides)
    if known.wide is not None and op.builtin not in known.wide and is_wide:
        yield f"{op.builtin} of 32-bit feature maps"
    for rule in known.rules[op.builtin]:
        yield from (f"{op.builtin} with {words}" for words in rule(w, op))


def find_refused_tensors(family: str, w: TfliteWriting, op: TfliteOperator) -> Iterator[tuple[str, str]]:
    """Yield the tensors for which Vela refuses the whole file, each with the reason, though the CPU could run the operator."""
    if op.builtin == "ARG_MAX" and data_of(w, op).dtype not in _BYTES:
        yield op.inputs[0], f"ARG_MAX of {data_of(w, op).dtype}"
    if FAMILIES[family] is _U55:
        is_wide = op.builtin == "CONV_2D" and max(_strides(op)) > 3
        if is_wide and any(other.builtin == "PAD" and op.inputs[0] in other.outputs for other in w.operators):
            yield op.inputs[0], "CONV_2D with strides above 3 after a PAD, which Vela takes into it"
        edges = (name for name in (*op.inputs, *op.outputs) if name in w.graph.public and w.tensor(name).dtype == "bool")
        yield from ((name, f"{op.builtin} of bool that is an input or output of the model") for name in edges)


def _by_origin(graph: Graph, describe: Callable[[TfliteWriting, TfliteOperator], Iterator[T]]) -> dict[int, list[T]]:
    """Return what is said of the operators of a graph's file, by the id of the graph's operator that each stands for."""
    found, said = write_tflite_operators(graph), dict[int, list[T]]()
    for writing in (found.writing, *found.functions):
        for operator in writing.operators:
            said.setdefault(id(operator.origin), []).extend(describe(writing, operator))
    return said


def violations(family: str, graph: Graph) -> Callable[[Op], Iterator[Violation]]:
    """Return the rule of the target for a normalized graph: an operator -> its violations; see qconvert.plugin.Target."""

    def refusals(w: TfliteWriting, operator: TfliteOperator) -> Iterator[Violation]:
        for name, words in find_refused_tensors(family, w, operator):
            yield Violation(f"{operator.origin}: {name!r}: {words}", _REFUSED, "--target tflite-micro, which runs it on the CPU", 1)

    found = _by_origin(graph, refusals)
    return lambda op: iter(found.get(id(op), ()))


def lacks(family: str, graph: Graph) -> Callable[[Op], str]:
    """Return a function of an operator of a normalized graph: the reason why the CPU runs it, or ""; see qconvert.plugin.Accelerator.

    Args:
        family: a name of FAMILIES.
        graph: after the passes of its target.
    """
    reasons = _by_origin(graph, partial(cpu_reasons, family))
    return lambda op: next(iter(reasons.get(id(op), ())), "")
