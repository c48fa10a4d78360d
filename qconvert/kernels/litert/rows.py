"""The kernels of LiteRT 2.3 and of tflite-micro: XNNPACK's, where it has one, and TFLite's own.

Rules of quantization: the TFLite 8-bit quantization specification (tensorflow/lite/g3doc/performance/quantization_spec.md), and what the
kernels demand beyond it (kernels/activations.cc, l2norm.cc). Which builtin operators take which types and ranks was measured besides
(targets/kernel_table_tflite.py); movements of integers that are not named have a kernel for all types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from qconvert.arithmetic import has_xnnpack_add
from qconvert.graph import Array, Graph, Op
from qconvert.kernels.kernel import Kernel, Kernels
from qconvert.kernels.litert import forms, limits, references
from qconvert.kernels.litert import tolerances as off
from qconvert.kernels.litert.limits import factor_fault
from qconvert.kernels.products import Requantizer
from qconvert.kernels.tolerances import Found

__all__ = ["DEFAULT", "MICRO", "MIXED", "REFERENCE"]

_BYTES = ("int8", "uint8")
_INT8 = ("int8",)
_INT16 = ("int16",)
_ALL = (*_BYTES, *_INT16)
_SIGNED = (*_INT8, *_INT16)

_SIGMOID = {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (1 / 32768, 0)}
_TANH = {"int8": (1 / 128, 0), "uint8": (1 / 128, 128), "int16": (1 / 32768, 0)}
_LOG_SOFTMAX = {"int8": (16 / 256, 127), "uint8": (16 / 256, 255)}

_SUMS, _PRODUCTS, _RESCALED = factor_fault(limits.sums, "ADD"), factor_fault(limits.product), factor_fault(limits.rescaling)
_DIFFERENCES, _TABLES, _EXPONENTIAL = factor_fault(limits.sums), factor_fault(limits.tables), factor_fault(limits.exponential)


def _rows(plain: bool) -> tuple[Kernel, ...]:
    """Return the rows of TFLite's own kernels: the reference or the optimized ones. Both round alike except where `plain` is read."""
    either = partial(Kernel, as_fast_in_float=True)
    twice = Requantizer("tflite_double_rounding")
    conv, dense = (twice, Requantizer("tflite_float")) if plain else (None, None)
    curve, total = partial(references.curve, plain=plain), limits.reduce_sum if plain else factor_fault(limits.total)
    return (
        # Products and their sums.
        Kernel(("Conv", "ConvTranspose"), _BYTES, tolerance=off.rounded_twice, fault=limits.volume, reference=conv),
        Kernel(("Conv",), _INT16, tolerance=off.sixteen_bits, fault=limits.volume, arithmetic=forms.convolution),
        Kernel(("ConvTranspose",), _INT16, tolerance=off.sixteen_bits, fault=limits.volume),
        Kernel(("Gemm",), _BYTES, tolerance=off.rounded_twice, reference=dense),
        Kernel(("Gemm",), _INT16, tolerance=off.sixteen_bits),
        Kernel(("MatMul",), _INT8, tolerance=off.rounded_twice, fault=factor_fault(limits.linear, "BATCH_MATMUL"), reference=twice),
        Kernel(("MatMul",), _INT16, tolerance=off.sixteen_bits, fault=factor_fault(limits.linear, "BATCH_MATMUL")),
        Kernel(("Mul",), _BYTES, tolerance=off.rounded_twice, fault=_PRODUCTS, reference=Requantizer("tflite_double_rounding", "float32")),
        Kernel(("Mul",), _INT16, tolerance=off.twice_on_16_bits, fault=_PRODUCTS, arithmetic=forms.pair),
        Kernel(("ReduceProd",), _SIGNED, tolerance=off.reduce_prod),
        # Sums of two values, averages.
        Kernel(("Add",), _BYTES, tolerance=off.added_twice, fault=_SUMS, reference=references.add),
        Kernel(("Add",), _INT16, tolerance=off.added_twice, fault=_SUMS, arithmetic=forms.pair),
        Kernel(("Sub",), _BYTES, tolerance=off.added_twice, fault=_DIFFERENCES),
        Kernel(("Sub",), _INT16, tolerance=off.added_twice, fault=_DIFFERENCES, arithmetic=forms.pair),
        Kernel(("SquaredDifference",), _INT8, tolerance=off.squared_difference, fault=factor_fault(limits.squared_difference)),
        Kernel(("ReduceMean",), _ALL, tolerance=off.mean, fault=_RESCALED, reference=references.mean, arithmetic=forms.reduction),
        Kernel(("GlobalAveragePool",), _ALL, tolerance=off.mean, fault=_RESCALED),
        Kernel(("ReduceSum",), _ALL, tolerance=off.mean, fault=total, arithmetic=forms.reduction),
        Kernel(
            ("AveragePool",), _BYTES, one_quantization="all", fault=limits.average_pool, tolerance=partial(off.average_pool, twice=True)
        ),
        Kernel(("AveragePool",), _INT16, one_quantization="all", fault=limits.average_pool, tolerance=off.sixteen_bits),
        # What chooses among values.
        Kernel(("MaxPool", "ReduceMax", "ReduceMin", "GlobalMaxPool"), _ALL),
        Kernel(("Max", "Min"), _ALL, one_quantization="all", tolerance=off.by_sign),
        Kernel(("Where",), _BYTES, one_quantization="all", tolerance=off.by_sign),
        Kernel(("Concat",), _SIGNED, one_quantization="all", tolerance=off.by_sign),
        Kernel(("Concat",), ("uint8",), tolerance=off.by_sign),  # it requantizes (concatenation.cc; measured)
        Kernel(("Resize",), _BYTES, one_quantization="all", tolerance=partial(off.interpolation, fraction_of_size=True)),
        Kernel(("ArgMax", "ArgMin", "SpaceToDepth", "DepthToSpace"), _BYTES),
        # Functions of one value.
        Kernel(("Relu",), _ALL, tolerance=off.rescaling, fault=_RESCALED),
        Kernel(("Clip",), _ALL, tolerance=off.rescaling),
        Kernel(("Abs",), _SIGNED, tolerance=off.rescaling),
        Kernel(("LeakyRelu",), _BYTES, tolerance=off.by_sign, fault=_RESCALED, reference=partial(references.leaky_relu, own=True)),
        Kernel(("LeakyRelu",), _INT16, tolerance=off.by_sign, fault=_RESCALED),
        Kernel(("PRelu",), _BYTES, tolerance=off.by_sign, fault=_RESCALED),
        Kernel(
            ("HardSwish",),
            _BYTES,
            tolerance=off.table,
            fault=factor_fault(limits.hard_swish),
            reference=references.hard_swish,
            arithmetic=forms.curve,
        ),
        *(() if plain else (Kernel(("Elu",), _INT8, tolerance=off.table, fault=limits.elu),)),
        Kernel(("Gelu",), _INT8, tolerance=off.table),
        Kernel(("Sqrt",), _SIGNED, tolerance=off.cut_off, fault=limits.square_root, arithmetic=forms.root),
        Kernel(("Exp",), _INT8, tolerance=off.table, reference=references.lookup_table),
        Kernel(("Rsqrt",), _INT8, tolerance=off.table),
        Kernel(("Exp", "Rsqrt"), _INT16, tolerance=off.lookup_table),
        Kernel(("Log",), _INT8, tolerance=off.table, reference=references.lookup_table),
        Kernel(("Log",), _INT16, tolerance=off.lookup_table, fault=limits.logarithm, reference=references.logarithm),
        either(("Sigmoid",), _BYTES, result=_SIGMOID, tolerance=off.table, fault=_TABLES, reference=references.lookup_table),
        either(("Tanh",), _BYTES, result=_TANH, tolerance=off.table, fault=_TABLES, reference=references.lookup_table),
        either(("Sigmoid",), _INT16, result=_SIGMOID, tolerance=partial(off.curve, plain=plain), fault=_TABLES, reference=curve),
        either(("Tanh",), _INT16, result=_TANH, tolerance=partial(off.curve, plain=plain), fault=_TABLES, reference=curve),
        # Along an axis.
        either(("Softmax",), _BYTES, result=_SIGMOID, tolerance=off.table, fault=_EXPONENTIAL),
        either(("Softmax",), _INT16, result=_SIGMOID, tolerance=off.softmax_on_16_bits, fault=_EXPONENTIAL, reference=references.softmax),
        either(("LogSoftmax",), _INT8, result=_LOG_SOFTMAX, tolerance=off.log_softmax if plain else off.table, fault=_EXPONENTIAL),
        Kernel(("LpNormalization",), _INT8, result=_TANH, tolerance=off.by_sign, fault=limits.lp_normalization),
        Kernel(("DetectionPostProcess",), ("uint8",), tolerance=off.table),
        # Conversions, and kernels that a target leaves alone, whose operators a file may have nevertheless.
        Kernel(("Requantize",), _BYTES, tolerance=off.rounded_twice, reference=references.requantize),
        Kernel(("Requantize",), (*_INT16, "int32"), tolerance=off.twice_on_16_bits, reference=references.requantize),
        Kernel(("Div",), runs="float", tolerance=off.division, reference=references.divide),
        Kernel(tuple(references.COMPARISONS), runs="float", reference=references.compare),
        Kernel(("Gelu",), _INT16, "float", tolerance=off.lookup_table),
        Kernel(("PRelu", "Where"), _INT16, "float", tolerance=off.by_sign),
        Kernel(("Resize",), _INT16, "float", tolerance=partial(off.interpolation, fraction_of_size=True)),
        *((Kernel(("LRN",), runs="float", fault=limits.local_response),) if plain else ()),
        Kernel((), _INT16, "float", tolerance=off.sixteen_bits),
        Kernel(runs="float", tolerance=off.table),
    )


def _among(rows: Sequence[Kernel], kinds: Sequence[str], types: Sequence[str]) -> tuple[Kernel, ...]:
    """Return the rows of some kinds, restricted to some types."""
    found = []
    for row in rows:
        own, both = tuple(kind for kind in row.kinds if kind in kinds), tuple(dtype for dtype in row.types if dtype in types)
        if own and (both or not row.types):
            found.append(replace(row, kinds=own, types=both or tuple(types)))
    return tuple(found)


def _tflite_weights(graph: Graph, op: Op) -> str:
    """Refuse weights that XNNPACK leaves to TFLite's own kernels; the runtime lists its other refusals (Runtime.taken_by)."""
    weights = graph[op.inputs[1]] if op.has(1) else None
    return "such weights" if weights is not None and "int4" in weights.dtype else ""


def _steps_grow(graph: Graph, op: Op) -> str:
    """XNNPACK leaves steps that grow by 2^8 and more to TFLite's own kernel."""
    return "steps that grow by 2^8" if off.growth(graph, op) >= 2.0**8 else ""


def _other_steps(graph: Graph, op: Op) -> str:
    """Additions have a smallest step too (arithmetic/kernels.py, xnnpack_adds)."""
    quantizations = [graph[name].quantization for name in (*op.inputs[:2], op.outputs[0])]
    first, second, result = (
        quantization if quantization is not None and quantization.is_per_tensor else None for quantization in quantizations
    )
    if first is None or second is None or result is None:
        return _steps_grow(graph, op)
    return "" if has_xnnpack_add((first, second), result) else "such steps"


def _other_types(graph: Graph, op: Op) -> str:
    """XNNPACK takes one type on both sides, as a conversion from another format gives it."""
    types = {graph[name].dtype for name in (op.inputs[0], op.outputs[0])}
    same = len(types) == 1 or (types <= set(_BYTES) and not graph.is_from("tflite"))
    return "" if same else "other types"


def _tflite_activations(graph: Graph, op: Op) -> str:
    """TFLite has no Clip: one of another format becomes a QUANTIZE if quantizations differ, then a MAXIMUM and a MINIMUM."""
    return "TFLite's own activations" if graph.is_from("tflite") else _other_types(graph, op)


def _by_xnnpack(rows: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Return the rows of XNNPACK's kernels; they require the same of scales as TFLite's own kernels of these kinds."""
    requantized, products = references.requantize_by_xnnpack, Requantizer("single_float32", "float32")

    def xnnpack(kinds: tuple[str, ...], **changes: object) -> tuple[Kernel, ...]:
        return tuple(replace(row, **{"reference": None, **changes}) for row in _among(rows, kinds, _BYTES))  # type: ignore[arg-type]

    return (
        *xnnpack(("Conv", "ConvTranspose", "Gemm", "Mul"), tolerance=off.rounded_once, lacks=_tflite_weights, reference=products),
        *xnnpack(("ReduceMean", "ReduceSum", "GlobalAveragePool"), tolerance=off.averaged_once),
        *xnnpack(("Add",), tolerance=off.added_once, lacks=_other_steps, reference=references.add_by_xnnpack, arithmetic=forms.addition),
        *xnnpack(("Sub",), tolerance=off.added_once, lacks=_steps_grow),
        *xnnpack(("Clip",), tolerance=off.eight_bits, lacks=_tflite_activations),
        *xnnpack(("LeakyRelu",), tolerance=off.eight_bits, reference=partial(references.leaky_relu, own=False), arithmetic=forms.line_form),
        *xnnpack(("Concat", "Max", "Min", "Where"), tolerance=off.brought_to_one_quantization),
        *xnnpack(("Resize",), tolerance=partial(off.interpolation, fraction_of_size=False), arithmetic=forms.interpolation),
        *xnnpack(("AveragePool",), tolerance=partial(off.average_pool, twice=False)),
        Kernel(("Requantize",), _BYTES, lacks=_other_types, tolerance=off.eight_bits, reference=requantized, arithmetic=forms.line_form),
    )


#: TFLite's own reference kernels.
REFERENCE = _rows(plain=True)
_OPTIMIZED = _rows(plain=False)
#: What LiteRT runs by default.
DEFAULT = (*_by_xnnpack(_OPTIMIZED), *_OPTIMIZED)
_BOTH = Kernels(DEFAULT), Kernels(REFERENCE)


def _either(graph: Graph, op: Op, exact: Array) -> Found:
    """Return the tolerance of an operator that XNNPACK and TFLite's own kernels run in part each."""
    (one, first), (other, second) = (kernels.tolerance(graph, op, exact) for kernels in _BOTH)
    return np.maximum(one, other), first or second


MIXED = (Kernel(runs="float", tolerance=_either),)


def _micro(kinds: tuple[str, ...], types: tuple[str, ...]) -> tuple[Kernel, ...]:
    """Return the rows of tflite-micro's kernels; they require and round as the reference ones. Their overflows were not measured."""
    rows = (*_among(_OPTIMIZED, ("Elu", "ReduceSum"), _ALL), *REFERENCE)  # LiteRT's reference kernels have no ELU, and another SUM
    return tuple(replace(row, reference=None, as_fast_in_float=False) for row in _among(rows, kinds, types))


#: tflite-micro, which has no uint8 kernels.
MICRO = (
    Kernel(("Clip",), _INT8, one_quantization="all"),  # RELU6 clips integers, whatever the result's scale (activations.cc; measured)
    Kernel(("Where",), _INT16, one_quantization="all", tolerance=off.by_sign),
    Kernel(("SquaredDifference",), _INT16, tolerance=partial(off.squared_difference, bits=0),
           fault=factor_fault(limits.squared_difference)),
    *_micro(("Conv", "ConvTranspose", "Gemm", "MatMul", "AveragePool", "MaxPool", "Add", "Sub", "Mul", "Concat", "Sigmoid", "Tanh",
             "Softmax", "LeakyRelu", "Relu", "Max", "Min", "Abs", "Rsqrt", "ReduceMean", "ReduceSum", "GlobalAveragePool",
             "Where", "SquaredDifference"), _SIGNED),
    *_micro(("Resize", "HardSwish", "PRelu", "Elu", "LogSoftmax", "LpNormalization", "ReduceMax", "ReduceMin", "GlobalMaxPool",
             "ArgMax", "ArgMin", "SpaceToDepth", "DepthToSpace"), _INT8),
    Kernel(("SpaceToBatch",), _INT8, fault=limits.space_to_batch),
    Kernel(("SpaceToBatch",), runs="float", fault=partial(limits.space_to_batch, in_float=True)),
    Kernel(("BatchToSpace",), _INT8),
    *(row.as_float_row() for row in REFERENCE),
)  # fmt: skip
