"""The kernels of LiteRT 2.3 and of tflite-micro: XNNPACK's, where it has one, and TFLite's own.

Rules of quantization: the TFLite 8-bit quantization specification (tensorflow/lite/g3doc/performance/quantization_spec.md), and what the
kernels demand beyond it (kernels/activations.cc, l2norm.cc). Which builtin operators take which types and ranks was measured besides
(targets/kernel_table_tflite.py); movements of integers that are not named have a kernel for all types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from qconvert.arithmetic import has_xnnpack_add
from qconvert.graph import Array, Graph, Op
from qconvert.kernels.kernel import IN_ANY_ORDER, Form, Integers, Kernel, Kernels, Reference, quantizations_of, quantizing_form
from qconvert.kernels.litert import forms, limits, references
from qconvert.kernels.litert import references_along_axes as axes
from qconvert.kernels.litert import references_of_functions as functions
from qconvert.kernels.litert import tolerances as off
from qconvert.kernels.litert.limits import factor_fault
from qconvert.kernels.litert.references import slope_of
from qconvert.kernels.products import Requantizer, SumReference
from qconvert.kernels.tolerances import Found
from qconvert.operators import KINDS

_BYTES = ("int8", "uint8")
_INT8 = ("int8",)
_INT16 = ("int16",)
_ALL = (*_BYTES, *_INT16)
_SIGNED = (*_INT8, *_INT16)
#: Equal, Less and their like.
_COMPARISONS = tuple(name for name, kind in KINDS.items() if kind.compares and kind.inputs == (2, 2))

_ORDERS = tuple(name for name in _COMPARISONS if name not in ("Equal", "NotEqual"))

_SIGMOID = {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (1 / 32768, 0)}
_TANH = {"int8": (1 / 128, 0), "uint8": (1 / 128, 128), "int16": (1 / 32768, 0)}
_LOG_SOFTMAX = {"int8": (16 / 256, 127), "uint8": (16 / 256, 255)}

_SUMS, _PRODUCTS, _RESCALED = factor_fault(limits.sums, "ADD"), factor_fault(limits.product), factor_fault(limits.rescaling)
_NARROW_SUMS = factor_fault(limits.narrow_sums, "ADD")
_DIFFERENCES, _TABLES, _EXPONENTIAL = factor_fault(limits.sums), factor_fault(limits.tables), factor_fault(limits.exponential)


def _table(function: functions.Function) -> Reference:
    return partial(functions.lookup_table, function=function)


def _of_16_bits(kind: str, function: functions.Function, outside: int | None = None, fault: Form | None = None) -> Kernel:
    """Return the row of a function of int16 by lines between 513 points; see lookup_table_of_16_bits()."""
    tolerance, reference = partial(off.lookup_table, outside=outside), functions.lookup_table_of_16_bits
    return Kernel((kind,), _INT16, tolerance=tolerance, fault=fault, reference=partial(reference, function=function, outside=outside))


def _requantize(graph: Graph, op: Op, stored: Sequence[Any], plain: bool) -> Integers | None:
    """QUANTIZE from integers; of a conversion, the float values stand between where 32 bits do not hold a step
    (write_quantize, formats/tflite/ops/quantize.py)."""
    return None if _RESCALED(graph, op) and not graph.is_from("tflite") else references.requantize(graph, op, stored, plain)


def _signed_weights(graph: Graph, op: Op) -> str:
    return "" if graph[op.inputs[1]].dtype == "uint8" else "weights of int8"


def _rows(of: str) -> tuple[Kernel, ...]:
    """Return the rows of TFLite's own kernels, which round alike except where `of` is read.

    Args:
        of: "optimized" or "reference" kernels of LiteRT, or "micro", those of tflite-micro, which are the reference ones with multipliers
            in float64.
    """
    plain, micro = of != "optimized", of == "micro"
    either = partial(Kernel, as_fast_in_float=not micro)
    by_shape = "" if plain else "which of several kernels runs depends on sizes and CPU"  # of what XNNPACK leaves
    twice, short = Requantizer("tflite_double_rounding"), Requantizer("tflite_16_bits", bits=16)
    layer = partial(Kernel, ("Conv", "ConvTranspose"), tolerance=off.rounded_twice, fault=limits.volume)
    conv = twice if plain else None
    dense = Requantizer("tflite_float") if of == "reference" else conv
    wide_dense = short if micro else Requantizer("tflite_float", bits=16) if plain else references.multiply_dense
    precision = "float64" if micro else "float32"
    rescaling = partial(partial, precision=precision)
    products = [Requantizer("tflite_double_rounding", precision, bits) for bits in (8, 16)]
    matrices = [replace(item, precision="float64" if micro else "product") for item in (twice, short)]
    pair, requantize = (partial(function, plain=plain) for function in (references.pair, _requantize))
    sigmoid, tanh, elu = (_table(function) for function in (functions.sigmoid, functions.tanh, functions.elu))
    if micro:
        elu = _table(functions.elu_by_exp)
        sigmoid, tanh = functions.sigmoid_in_fixed_point, functions.tanh_in_fixed_point
    wide_sigmoid, wide_tanh = (partial(functions.curve, function=name, plain=plain) for name in ("Sigmoid", "Tanh"))
    mean = SumReference(partial(axes.mean, plain=plain))
    pool = partial(Kernel, ("AveragePool",), one_quantization="all", fault=limits.average_pool, reference=axes.average_pool)
    resize = partial(Kernel, ("Resize",), tolerance=partial(off.interpolation, fraction_of_size=True))
    curve_fault = limits.curve_in_fixed_point if micro else _TABLES
    total_fault, total = {
        "optimized": (factor_fault(limits.total), SumReference(axes.total_in_float)),
        "reference": (limits.reduce_sum, None),
        "micro": (factor_fault(limits.total), SumReference(axes.total)),
    }[of]
    return (
        # Products and their sums.
        *((layer(("uint8",), lacks=_signed_weights, reference=replace(twice, precision="product")),) if of == "reference" else ()),
        layer(_BYTES, reference=conv, unknown=by_shape),
        Kernel(("Conv",), _INT16, tolerance=off.sixteen_bits, fault=limits.volume, reference=short, arithmetic=forms.convolution),
        Kernel(("ConvTranspose",), _INT16, tolerance=off.sixteen_bits, fault=limits.volume, reference=short),
        Kernel(("Gemm",), _BYTES, tolerance=off.rounded_twice, reference=dense, unknown=by_shape),
        Kernel(("Gemm",), _INT16, tolerance=off.sixteen_bits, reference=wide_dense),
        Kernel(("MatMul",), _INT8, tolerance=off.rounded_twice, fault=factor_fault(limits.linear, "BATCH_MATMUL"), reference=matrices[0]),
        Kernel(("MatMul",), _INT16, tolerance=off.sixteen_bits, fault=factor_fault(limits.linear, "BATCH_MATMUL"), reference=matrices[1]),
        Kernel(("Mul",), _BYTES, fault=_PRODUCTS, reference=products[0]),
        Kernel(("Mul",), _INT16, tolerance=off.rounded_twice, fault=_PRODUCTS, reference=products[1], arithmetic=forms.pair),
        Kernel(
            ("ReduceProd",),
            _SIGNED,
            tolerance=off.reduce_prod,
            fault=None if plain else limits.product_of_one,
            reference=partial(axes.product, copies_one=not plain),
        ),
        # Sums of two values, averages.
        Kernel(("Add",), _BYTES, tolerance=off.added_twice, fault=_SUMS if plain else _NARROW_SUMS, reference=pair),
        Kernel(("Add",), _INT16, tolerance=off.added_twice, fault=_SUMS, reference=pair, arithmetic=forms.pair),
        Kernel(("Sub",), _BYTES, tolerance=off.added_twice, fault=_DIFFERENCES, reference=pair),
        Kernel(("Sub",), _INT16, tolerance=off.added_twice, fault=_DIFFERENCES, reference=pair, arithmetic=forms.pair),
        Kernel(
            ("SquaredDifference",),
            _INT8,
            tolerance=off.squared_difference,
            fault=factor_fault(limits.squared_difference),
            reference=references.squared_difference,
        ),
        Kernel(("ReduceMean",), _ALL, tolerance=off.mean, fault=_RESCALED, reference=mean, arithmetic=forms.reduction),
        Kernel(("GlobalAveragePool",), _ALL, tolerance=off.mean, fault=_RESCALED, reference=mean),
        Kernel(
            ("ReduceSum",),
            _ALL,
            tolerance=partial(off.mean, is_sum=True),
            fault=total_fault,
            reference=total,
            arithmetic=forms.reduction,
            unknown="" if total else "it adds onto what is not cleared",
        ),
        pool(_BYTES, tolerance=partial(off.average_pool, twice=True)),
        pool(_INT16, tolerance=off.sixteen_bits),
        # What chooses among values.
        Kernel(("MaxPool", "ReduceMax", "ReduceMin", "GlobalMaxPool"), _ALL),
        Kernel(("Max", "Min"), _ALL, one_quantization="all", tolerance=off.by_sign, reference=references.choose),
        Kernel(("Where",), _BYTES, one_quantization="all", tolerance=off.by_sign, reference=references.choose),
        Kernel(("Concat",), _SIGNED, one_quantization="all", tolerance=off.by_sign, reference=references.choose),
        Kernel(("Concat",), ("uint8",), tolerance=off.by_sign, reference=references.concatenate),
        resize(_INT8, one_quantization="all", reference=axes.interpolate),
        resize(("uint8",), one_quantization="all", reference=axes.interpolate_in_float if plain else None, unknown=by_shape),
        Kernel(("ArgMax", "ArgMin", "SpaceToDepth", "DepthToSpace"), _BYTES),
        # Functions of one value.
        Kernel(("Relu",), _ALL, fault=_RESCALED, reference=rescaling(functions.relu)),
        Kernel(
            ("Clip",),
            _ALL,
            tolerance=off.rescaling,
            fault=_RESCALED,
            reference=None if micro else functions.clip,
            unknown=IN_ANY_ORDER if micro else "",
        ),
        Kernel(("Abs",), _SIGNED, reference=rescaling(functions.absolute)),
        Kernel(("LeakyRelu",), _ALL, fault=_RESCALED, reference=rescaling(functions.leaky_relu)),
        Kernel(("PRelu",), _BYTES, fault=_RESCALED, reference=rescaling(functions.parametric_relu)),
        Kernel(
            ("HardSwish",),
            _BYTES,
            fault=factor_fault(limits.hard_swish),
            reference=rescaling(functions.hard_swish),
            arithmetic=forms.curve,
        ),
        *(() if of == "reference" else (Kernel(("Elu",), _INT8, fault=limits.elu, reference=elu),)),
        Kernel(("Gelu",), _INT8, reference=functions.gelu),
        Kernel(("Sqrt",), _SIGNED, fault=limits.square_root, reference=functions.square_root, arithmetic=forms.root),
        Kernel(("Exp",), _INT8, reference=_table(functions.exp)),
        Kernel(("Log",), _INT8, reference=_table(functions.log)),
        Kernel(("Rsqrt",), _SIGNED if micro else _INT8, reference=rescaling(functions.inverse_square_root)),
        _of_16_bits("Exp", functions.exp),
        _of_16_bits("Rsqrt", functions.inverse_root_of, outside=32767),
        _of_16_bits("Log", functions.log, outside=-32768, fault=limits.logarithm),
        either(("Sigmoid",), _BYTES, result=_SIGMOID, fault=curve_fault, reference=sigmoid),
        either(("Tanh",), _BYTES, result=_TANH, fault=curve_fault, reference=tanh),
        either(("Sigmoid",), _INT16, result=_SIGMOID, fault=_TABLES, reference=wide_sigmoid),
        either(("Tanh",), _INT16, result=_TANH, fault=_TABLES, reference=wide_tanh),
        # Along an axis.
        either(
            ("Softmax",),
            _BYTES,
            result=_SIGMOID,
            tolerance=off.table,
            fault=_EXPONENTIAL,
            reference=axes.softmax if plain else axes.softmax_by_table,
            arithmetic=None if plain else forms.distribution,
            below_largest=not plain,
        ),
        either(
            ("Softmax",),
            _INT16,
            result=_SIGMOID,
            tolerance=off.softmax_on_16_bits,
            fault=_EXPONENTIAL,
            reference=rescaling(axes.softmax_of_16_bits),
        ),
        either(
            ("LogSoftmax",),
            _INT8,
            result=_LOG_SOFTMAX,
            tolerance=off.log_softmax if plain else off.table,
            fault=_EXPONENTIAL,
            reference=axes.log_softmax if plain else axes.log_softmax_by_table,
        ),
        Kernel(("LpNormalization",), _INT8, result=_TANH, tolerance=off.by_sign, fault=limits.lp_normalization, reference=axes.normalize),
        Kernel(("DetectionPostProcess",), ("uint8",), tolerance=off.table, unknown="results are float32, of exp() in C's library"),
        # Conversions, and kernels that a target leaves alone, whose operators a file may have nevertheless.
        Kernel(("Requantize",), _BYTES, tolerance=off.rounded_twice, reference=requantize),
        Kernel(("Requantize",), (*_INT16, "int32"), tolerance=off.rounded_twice, reference=requantize),
        Kernel(("Div",), runs="inexact", tolerance=off.division, reference=rescaling(references.divide)),
        Kernel(_ORDERS, _INT16, "inexact", reference=references.compare_stored),
        Kernel(_COMPARISONS, runs="inexact", reference=references.compare),
        Kernel(("Gelu",), _INT16, "inexact", tolerance=off.lookup_table, unknown="erfcf() and tanhf() differ in each C library"),
        Kernel(("Where",), _INT16, "inexact", tolerance=off.by_sign, reference=references.choose),
        Kernel(("PRelu",), _INT16, "inexact", tolerance=off.by_sign, unknown=IN_ANY_ORDER),
        resize(_INT16, "inexact", reference=axes.interpolate),
        *((Kernel(("LRN",), runs="float", fault=limits.local_response),) if plain else ()),
        Kernel((), _INT16, "float", tolerance=off.sixteen_bits, unknown=IN_ANY_ORDER),
        Kernel(runs="float", tolerance=off.table, unknown=IN_ANY_ORDER),
    )


def _among(rows: Sequence[Kernel], kinds: Sequence[str], types: Sequence[str], **changes: Any) -> tuple[Kernel, ...]:
    """Return the rows of some kinds, restricted to some types, with changes."""
    found = []
    for row in rows:
        own, both = tuple(kind for kind in row.kinds if kind in kinds), tuple(dtype for dtype in row.types if dtype in types)
        if own and (both or not row.types):
            found.append(replace(row, kinds=own, types=both or tuple(types), **changes))
    return tuple(found)


def _tflite_weights(graph: Graph, op: Op) -> str:
    """Refuse weights that XNNPACK leaves to TFLite's own kernels; the runtime lists its other refusals (Runtime.taken_by)."""
    weights = graph[op.inputs[1]] if op.has(1) else None
    return "such weights" if weights is not None and "int4" in weights.dtype else ""


def _other_ratios(graph: Graph, op: Op) -> str:
    """XNNPACK leaves ratios of scales outside of [2^-8, 2^7] to TFLite's own kernels, also those of negative values of a LeakyRelu
    (xnn_create_leaky_relu_nc_qs8, xnn_create_convert_nc_qs8)."""
    if words := _other_types(graph, op):
        return words
    quantizations = quantizations_of(graph, op)
    if not quantizations:
        return ""
    given, output = quantizations
    ratio = given.scale[0] / output.scale[0]
    return "" if all(2.0**-8 <= item <= 2.0**7 for item in (ratio, abs(ratio * np.float32(slope_of(op))))) else "such scales"


def _steps_grow(graph: Graph, op: Op) -> str:
    """XNNPACK leaves steps that grow by 2^8 and more to TFLite's own kernel."""
    return "steps that grow by 2^8" if off.growth(graph, op) >= 2.0**8 else ""


def _other_steps(graph: Graph, op: Op) -> str:
    """Additions have a smallest step too (arithmetic/kernels.py, xnnpack_adds)."""
    found = quantizations_of(graph, op, 2)
    if not found:
        return _steps_grow(graph, op)
    return "" if has_xnnpack_add((found[0], found[1]), found[2]) else "such steps"


def _other_types(graph: Graph, op: Op) -> str:
    """XNNPACK takes one type on both sides, as a conversion from another format gives it."""
    types = {graph[name].dtype for name in (op.inputs[0], op.name)}
    same = len(types) == 1 or (types <= set(_BYTES) and not graph.is_from("tflite"))
    return "" if same else "other types"


def _other_quantizations(graph: Graph, op: Op) -> str:
    """XNNPACK concatenates what has one quantization; before what a file of another format has, a QUANTIZE brings others to it."""
    result = graph[op.name]
    shares = all(graph[name].shares_quantization(result) for name in op.inputs)
    return "" if shares or not graph.is_from("tflite") else "several quantizations"


def _other_factor(graph: Graph, op: Op) -> str:
    """XNNPACK multiplies by a second factor of int8 with the zero point 0."""
    factor = graph[op.inputs[1]]
    points = None if factor.quantization is None else factor.quantization.zero_point - (128 if factor.dtype == "uint8" else 0)
    return "such a factor" if points is None or points.any() else ""


def _tflite_activations(graph: Graph, op: Op) -> str:
    """A Clip that is no activation of TFLite becomes a QUANTIZE if quantizations differ, then a MAXIMUM and a MINIMUM."""
    return "TFLite's own activations" if functions.is_activation(graph, op) else _other_types(graph, op)


def _by_xnnpack(rows: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Return the rows of XNNPACK's kernels; they require the same of scales as TFLite's own kernels of these kinds."""
    requantized, products = references.requantize_by_xnnpack, Requantizer("single_float32", "float32")
    average, total = (SumReference(partial(axes.reduce_by_xnnpack, is_mean=is_mean)) for is_mean in (True, False))
    xnnpack = partial(_among, rows, types=_BYTES, reference=None, unknown="")
    return (
        *xnnpack(("Conv", "ConvTranspose", "Gemm", "Mul"), tolerance=off.rounded_once, lacks=_tflite_weights, reference=products),
        *xnnpack(("MatMul",), tolerance=off.rounded_once, lacks=_other_factor, reference=products),
        *xnnpack(("ReduceMean", "GlobalAveragePool"), tolerance=off.averaged_once, reference=average),
        *xnnpack(("ReduceSum",), tolerance=off.averaged_once, reference=total),
        *xnnpack(
            ("Add",),
            tolerance=off.added_once,
            lacks=_other_steps,
            fault=_SUMS,
            reference=references.add_by_xnnpack,
            arithmetic=forms.addition,
        ),
        *xnnpack(("Sub",), tolerance=off.added_once, lacks=_steps_grow, reference=references.subtract_by_xnnpack),
        *xnnpack(("Clip",), tolerance=off.eight_bits, lacks=_tflite_activations, reference=functions.clip_by_xnnpack),
        *xnnpack(
            ("LeakyRelu",),
            tolerance=off.eight_bits,
            lacks=_other_ratios,
            reference=functions.leaky_relu_by_xnnpack,
            arithmetic=forms.line_form,
        ),
        *xnnpack(("Elu",), reference=partial(functions.curve_by_xnnpack, function=functions.elu)),
        *xnnpack(("Sigmoid",), reference=partial(functions.curve_by_xnnpack, function=functions.xnnpack_sigmoid)),
        *xnnpack(("Tanh",), reference=partial(functions.curve_by_xnnpack, function=functions.tanh)),
        *xnnpack(("Concat",), tolerance=off.brought_to_one_quantization, lacks=_other_quantizations, reference=references.choose),
        *xnnpack(("Max", "Min", "Where"), tolerance=off.brought_to_one_quantization, reference=references.choose),
        *xnnpack(
            ("Resize",),
            tolerance=partial(off.interpolation, fraction_of_size=False),
            reference=axes.interpolate_by_xnnpack,
            arithmetic=forms.interpolation,
        ),
        *xnnpack(("AveragePool",), tolerance=partial(off.average_pool, twice=False), reference=axes.average_pool),
        Kernel(
            ("Quantize",),
            _BYTES,
            "float",
            tolerance=off.table,
            reference=references.quantize_by_xnnpack,
            arithmetic=quantizing_form("reciprocal"),
        ),
        Kernel(("Requantize",), _BYTES, tolerance=off.eight_bits, lacks=_other_ratios, reference=requantized, arithmetic=forms.line_form),
        Kernel(("Slice",), (*_BYTES, "float32"), "float", fault=limits.empty_slice),
    )


#: TFLite's own reference kernels.
REFERENCE = _rows("reference")
#: TFLite's own optimized kernels, which run what XNNPACK leaves.
OPTIMIZED = _rows("optimized")
#: What LiteRT runs by default.
DEFAULT = (*_by_xnnpack(OPTIMIZED), *OPTIMIZED)
_BOTH = Kernels(DEFAULT), Kernels(OPTIMIZED)


def _either(graph: Graph, op: Op, exact: Array) -> Found:
    """Return the tolerance of an operator that XNNPACK and TFLite's own kernels run in part each."""
    (one, first), (other, second) = (kernels.tolerance(graph, op, exact) for kernels in _BOTH)
    return np.maximum(one, other), first or second


MIXED = (Kernel(runs="float", tolerance=_either, unknown="XNNPACK or TFLite's own kernels run it", by_file=True),)


_OF_MICRO = (
    Kernel(_ORDERS, _INT16, "inexact", fault=limits.orders_of_16_bits),
    Kernel(("SquaredDifference",), _INT16, fault=factor_fault(limits.squared_difference),
           tolerance=partial(off.squared_difference, bits=0), reference=partial(references.squared_difference, bits=0)),
    Kernel(("Where",), _INT16, one_quantization="all", tolerance=off.by_sign, reference=references.choose),
    *_rows("micro"),
)  # fmt: skip
#: tflite-micro, which has no uint8 kernels.
MICRO = (
    # RELU6 clips integers, whatever the result's scale (activations.cc; measured).
    Kernel(("Clip",), _INT8, one_quantization="all", fault=limits.clip, reference=functions.clip),
    *_among(_OF_MICRO, ("Conv", "ConvTranspose", "Gemm", "MatMul", "AveragePool", "MaxPool", "Add", "Sub", "Mul", "Concat", "Sigmoid",
                        "Tanh", "Softmax", "LeakyRelu", "Relu", "Max", "Min", "Abs", "Rsqrt", "ReduceMean", "ReduceSum",
                        "GlobalAveragePool", "Where", "SquaredDifference"), _SIGNED),
    *_among(_OF_MICRO, ("Resize", "HardSwish", "PRelu", "Elu", "LogSoftmax", "LpNormalization", "ReduceMax", "ReduceMin",
                        "GlobalMaxPool", "ArgMax", "ArgMin", "SpaceToDepth", "DepthToSpace"), _INT8),
    Kernel(("SpaceToBatch",), _INT8, fault=limits.space_to_batch),
    Kernel(("SpaceToBatch",), runs="float", fault=partial(limits.space_to_batch, in_float=True)),
    Kernel(("BatchToSpace",), _INT8),
    *(row if row.runs == "inexact" and not row.types else replace(row.as_float_row(), reference=row.reference) for row in _OF_MICRO),
)  # fmt: skip
