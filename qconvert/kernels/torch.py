"""The kernels of PyTorch 2.13: programs in float32 between dequantize and quantize, quantized modules, and those of inductor. Quantized
modules hold what the kernels of all engines take: fbgemm, x86 (a choice of fbgemm and onednn for each layer) and qnnpack, since the
engine of the loading process packs the weights of a file again; an operator that one of them refuses, or computes wrongly, is written
in float (tests/formats/torch/test_module_kernels.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from qconvert.arithmetic import REQUANTIZERS, effective_scale
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op, Tensor, integer_range
from qconvert.graph.activations import activation_bounds, clip_range
from qconvert.graph.metadata import NUMERICS, SOURCE_KERNELS, SOURCE_PRODUCER
from qconvert.kernels.accumulators import row_pairs
from qconvert.kernels.kernel import IN_ANY_ORDER, Integers, Kernel, quantizations_of
from qconvert.kernels.products import ExactProducts, Requantizer
from qconvert.kernels.tolerances import Found, fine, partial_sums
from qconvert.operators import is_dynamic, kind_of
from qconvert.operators.sizes import SAME

_BYTES = "data or a result that are not uint8 with one scale"
_GRID = "a result with another scale or zero point than its data"
_LAYOUT = "channels that are last"
#: Groups of a convolution that x86 takes onednn for.
_MOST_GROUPS = 100


def is_bytes(tensor: Tensor) -> bool:
    """Whether a tensor is what the kernels take: uint8 with one scale, in the whole range of the type."""
    quantization = tensor.per_tensor
    return tensor.dtype == "uint8" and quantization is not None and quantization.limits("uint8") == (0, 255)


def _bytes(graph: Graph, *names: str) -> bool:
    return all(is_bytes(graph[name]) for name in names if name)


def _any_qparams(graph: Graph, op: Op) -> str:
    """The obstacle for kernels whose result may have any quantization."""
    return "" if _bytes(graph, *op.inputs, op.name) else _BYTES


def _same_qparams(graph: Graph, op: Op) -> str:
    """The obstacle for kernels whose result has the quantization of the data."""
    if not _bytes(graph, op.inputs[0], op.name):
        return _BYTES
    return "" if graph[op.inputs[0]].shares_quantization(graph[op.name]) else _GRID


def _layout(op: Op) -> str:
    return _LAYOUT if op.attributes.get("data_format", "channels_first") != "channels_first" else ""


def _packed_layer(graph: Graph, op: Op, axis: int = 0) -> str:
    """The obstacle for layers with packed weights: constants of 8 bits with one scale, or per-channel along `axis`, and a constant bias."""
    weights = graph[op.inputs[1]]
    quantization = weights.quantization
    if is_dynamic(op) or not _bytes(graph, op.inputs[0], op.name):
        return _BYTES
    if (
        weights.data is None
        or quantization is None
        or quantization.block_size
        or weights.dtype not in ("int8", "uint8")
        or quantization.axis not in (None, axis)
    ):
        return "weights that are no constants of 8 bits with a scale for each output"
    bias = graph[op.inputs[2]] if op.has(2) else None
    if bias is not None and (bias.data is None or bias.data.shape != (weights.data.shape[axis],)):
        return "a bias that is no constant for each output"
    return ""


def _rank(graph: Graph, op: Op) -> str:
    """The obstacle of data without space, or with more than three axes of it."""
    return "" if graph[op.inputs[0]].rank in (3, 4, 5) else "data of another rank than 3, 4 or 5"


def _conv(graph: Graph, op: Op) -> str:
    return _layout(op) or _rank(graph, op) or _packed_layer(graph, op)


def _matmul(graph: Graph, op: Op) -> str:
    left, right = (graph[name] for name in op.inputs[:2])
    if right.data is not None and right.rank == 2 and not op["trans_a"]:
        return _packed_layer(graph, op, 0 if op["trans_b"] else 1)
    if left.rank != right.rank or (left.shape or ())[:-2] != (right.shape or ())[:-2]:
        return "operands of different batches"
    return "a Relu inside" if op["activation"] == "relu" else _any_qparams(graph, op)


#: Curves whose kernels fix the quantization of the result -> by its type scale and zero point
#: (aten/src/ATen/native/quantized/cpu/kernels/QuantizedOpKernels.cpp).
FIXED_RESULTS: Mapping[str, Mapping[str, tuple[float, int]]] = {
    **{kind: {"uint8": (1 / 256, 0), "int8": (1 / 256, -128)} for kind in ("Sigmoid", "HardSigmoid")},
    "Tanh": {"uint8": (1 / 128, 128), "int8": (1 / 128, 0)},
}


def _fixed_qparams(graph: Graph, op: Op, fixed: tuple[float, int] = FIXED_RESULTS["Sigmoid"]["uint8"]) -> str:
    """The obstacle for curves whose kernels fix the quantization of the result."""
    quantization = graph[op.name].quantization
    if quantization is None or not _bytes(graph, op.inputs[0], op.name):
        return _BYTES
    return "" if (quantization.step, quantization.point) == fixed else f"a result whose scale is not 1/{1 / fixed[0]:g}"


def _hard_sigmoid(graph: Graph, op: Op) -> str:
    usual = np.float32(op["alpha"]) == np.float32(1 / 6) and op["beta"] == 0.5
    return _fixed_qparams(graph, op) if usual else "other numbers than PyTorch's"


def _clip(graph: Graph, op: Op) -> str:
    bounds = [graph.constant(name) if name else None for name in op.inputs[1:3]]
    known = all(not name or (bound is not None and bound.size == 1) for name, bound in zip(op.inputs[1:3], bounds, strict=True))
    return _same_qparams(graph, op) if known else "bounds that are computed"


def _softmax(graph: Graph, op: Op) -> str:
    return _any_qparams(graph, op) if op["beta"] == 1 else "a beta"


def _norm(graph: Graph, op: Op) -> str:
    """The obstacle for normalizations by constants."""
    if any(graph.constant(name) is None for name in op.inputs[1:] if name):
        return "parameters that are computed"
    return _layout(op) or ("further results" if any(op.outputs[1:]) else "" if _bytes(graph, op.inputs[0], op.name) else _BYTES)


def _batch_norm(graph: Graph, op: Op) -> str:
    return _norm(graph, op) if graph[op.inputs[0]].rank in (4, 5) and len(op.inputs) == 5 else "data of another rank than 4 or 5"


def _layer_norm(graph: Graph, op: Op) -> str:
    shape = graph[op.inputs[0]].shape
    known = shape is not None and all(isinstance(size, int) for size in shape[int(op["axis"]) % len(shape) :])
    return _norm(graph, op) if known else "axes of unknown size"


def _instance_norm(graph: Graph, op: Op) -> str:
    return _rank(graph, op) or _norm(graph, op)


def _max_pool(graph: Graph, op: Op) -> str:
    if len(op["kernel_shape"]) > 2:
        return "three axes, which qnnpack has no kernel for"
    return _layout(op) or ("further results" if any(op.outputs[1:]) else _same_qparams(graph, op))


def _average_pool(graph: Graph, op: Op) -> str:
    """qnnpack counts padding in any case."""
    if len(op["kernel_shape"]) not in (2, 3) or op["ceil_mode"]:
        return "one axis, or a size that is rounded up"
    pads = [int(pad) for pad in op["pads"]]
    if op["auto_pad"] in SAME or (any(pads) and (not op["count_include_pad"] or pads[: len(pads) // 2] != pads[len(pads) // 2 :])):
        return "padding that does not count, which qnnpack counts, or differs on both sides"
    return _layout(op) or _same_qparams(graph, op)


def _global_average(graph: Graph, op: Op) -> str:
    return _layout(op) or _rank(graph, op) or _same_qparams(graph, op)


def _mean(graph: Graph, op: Op) -> str:
    known = not op.has(1) or graph.constant(op.inputs[1]) is not None
    return _same_qparams(graph, op) if known else "axes that are computed"


def _resize(graph: Graph, op: Op) -> str:
    if op["mode"] != "nearest" or graph[op.inputs[0]].rank not in (4, 5):
        return "values between those of the data, or one axis"
    return _layout(op) or _same_qparams(graph, op)


def program(graph: Graph, op: Op, exact: Array) -> Found:
    """Return the tolerance of curves, which are coarser than float32, or of sums of products, whose terms may exceed the result."""
    if kind_of(op).sums_products:
        return 10 * fine(exact) + 2 * partial_sums(graph, op, exact, least=255.0), False
    return np.full(exact.shape, 0.01), False


def few_roundings(graph: Graph, op: Op, exact: Array) -> Found:
    """quantize multiplies by the reciprocal of the scale, another rounding of float32 (fx/_decomposed.py)."""
    return 20 * fine(exact), False


def computes_in_float32(graph: Graph) -> bool:
    """Whether a graph was read from a program that torch.export wrote, which is exact as it stands: float32 between dequantize and
    quantize. A program that qconvert wrote says of itself whether it is."""
    exported = graph.is_from("torch") and graph.metadata.get(SOURCE_PRODUCER, "").startswith("torch.export")
    return exported and graph.metadata.get(NUMERICS) != "exact"


def _in_float32(graph: Graph, op: Op) -> str:
    """Say where a program rebuilt for a check does not compute in float64."""
    return "the program of the file computes it in float32" if computes_in_float32(graph) else ""


def _reorder_channels(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """qnnpack's relu6, hardtanh and clamp take data as contiguous (qclamp.cpp), but the convolution before them stores its result channels
    last, so the values are in another order. The reader fuses both into one operator."""
    if graph.metadata.get(SOURCE_KERNELS) != "torch:qnnpack" or graph[op.name].rank != len(_TO_LAST):
        return None
    found = evaluate_op(graph, op, list(stored))[0].stored
    if found.ndim != len(_TO_LAST):  # codes that are tried one by one
        return None
    return Integers((found.transpose(_TO_LAST).reshape(found.shape),), _REORDERED)


def _keeps_order(graph: Graph, op: Op) -> str:
    """Say why qnnpack gives the values of an operator in their order: see _reorder_channels(). A sum keeps the order of its data."""
    shape = graph[op.name].shape or ()
    if graph.metadata.get(SOURCE_KERNELS) != "torch:qnnpack" or not is_bytes(graph[op.name]) or len(shape) != len(_TO_LAST):
        return "another engine, type or rank"
    if op.attributes.get("activation", "clips") in ("", "relu"):
        return "no bounds"
    if shape[1] == 1 or shape[2:] == (1, 1):
        return "a single channel or pixel"
    producers, waiting, seen = graph.producers(), [op.name], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or (before := producers.get(name)) is None:
            continue
        if kind_of(before).has_windows and kind_of(before).sums_products:
            return ""
        seen.add(name)
        waiting += before.inputs
    return "no convolution before it"


def _find_misplaced(graph: Graph, op: Op) -> str:
    """quantized/cpu/UpSampleNearest2d.cpp and UpSampleBilinear2d.cpp take data of one pixel as stored channels last, which their result is
    not."""
    (_, channels, *space), (_, _, *sizes) = (graph[name].shape or (1, 1) for name in (op.inputs[0], op.name))
    is_torchs = graph.metadata.get(SOURCE_KERNELS, "").startswith("torch:") and graph.is_quantized(op.name)
    return "gives values of one pixel in another order" if is_torchs and channels != 1 and space == [1, 1] != sizes else ""


def _misplace_pixels(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """See _find_misplaced(); other interpolations add in an order that is not known."""
    if not (fault := _find_misplaced(graph, op)):
        return None
    found = evaluate_op(graph, op, list(stored))[0].stored
    return Integers((found.transpose(_TO_LAST).reshape(found.shape),), fault)


def _runs_fbgemm(graph: Graph, op: Op) -> bool:
    """Whether fbgemm computes a convolution: x86 leaves to it what should_use_onednn_quant (quantized/cpu/OnednnUtils.h) refuses."""
    engine, factors = graph.metadata.get(SOURCE_KERNELS), graph[op.inputs[1]].require_quantization()
    has_output_padding = kind_of(op).spreads and any(op["output_padding"])
    is_refused = int(op["group"]) > _MOST_GROUPS or factors.zero_point.any() or has_output_padding
    return engine == "torch:fbgemm" or (engine == "torch:x86" and bool(is_refused))


def _find_wrong_layer(graph: Graph, op: Op) -> str:
    """Say which convolutions an engine of PyTorch 2.13 computes wrongly (60,000 random transposed ones and 3,000 others were compared with
    exact sums, on a CPU with VNNI)."""
    weights, kind = graph[op.inputs[1]], kind_of(op)
    if weights.data is None or weights.dtype != "int8" or not graph.is_quantized(op.name):
        return ""
    if kind.spreads:
        return _find_wrong_transposed(graph, op, weights.data)
    return _find_saturation(graph, op, weights.data) if kind.has_windows else ""


def _find_saturation(graph: Graph, op: Op, weights: Array) -> str:
    """fbgemm has kernels of depthwise convolutions that add the products of two neighbouring weights in 16 bits, on every CPU
    (takeDepthWiseFastPath in FbgemmConv.cc, vpmaddubsw in FbgemmI8DepthwiseAvx2-inl.h)."""
    outputs, inputs, *sizes = weights.shape
    channels, pads = int(op["group"]), [(size - 1) // 2 for size in sizes]
    if not _runs_fbgemm(graph, op) or inputs != 1 or channels % 8 or outputs not in (channels, 2 * channels):
        return ""
    if len(sizes) < 2 or sizes[-1] != sizes[-2] or not {3, 5, 7}.issuperset(sizes) or list(op["pads"]) != 2 * pads:
        return ""
    if set(op["dilations"]) != {1} or not {1, 2}.issuperset(op["strides"]):
        return ""
    before, largest = graph.producers().get(op.inputs[0]), integer_range("uint8")[1]
    if before is not None:
        bounds = kind_of(before).limits(before, graph.constant) or activation_bounds(before)
        largest = clip_range(graph[op.inputs[0]], bounds)[1]
    return "saturates sums of two products at 16 bits" if largest * row_pairs(weights.reshape(outputs, -1)) > 2**15 else ""


def _find_wrong_transposed(graph: Graph, op: Op, weights: Array) -> str:
    """See _find_wrong_layer()."""
    engine, groups, (outputs, inputs, *sizes) = graph.metadata.get(SOURCE_KERNELS, ""), int(op["group"]), weights.shape
    outputs //= groups
    if engine == "torch:qnnpack":
        return "computes transposed convolutions over three axes wrongly" if len(sizes) == 3 else ""
    if _runs_fbgemm(graph, op):
        is_packed = groups == 1 and inputs % 8 == outputs % 8 == 0 and len(sizes) == 2 and sizes[0] == 2
        wrong = is_packed and not any(op["pads"]) and set(op["dilations"]) == {1}
        return "computes two rows of weights, of multiples of eight channels, wrongly" if wrong else ""
    if engine not in ("torch:x86", "torch:onednn"):
        return ""
    if 1 not in (inputs, outputs) and inputs != outputs:
        return f"computes groups of {inputs} inputs and {outputs} outputs wrongly"
    gaps = [stride - (size - 1) * dilation - 1 for stride, size, dilation in zip(op["strides"], sizes, op["dilations"], strict=True)]
    return "leaves rows that no weight reaches undefined" if any(gap > 1 for gap in gaps[:-1]) else ""


def _differs_from_quantized_prelu(graph: Graph, op: Op) -> str:
    """Say which operators are none of quantized::prelu of a TorchScript file."""
    return "" if op.source.startswith("quantized::prelu") else "another operator"


def _find_wrong_slope(graph: Graph, op: Op) -> str:
    """qprelu_out_kernel (quantized/cpu/kernels/QuantizedOpKernels.cpp) takes values above the zero point times 1 with the quantization of
    the slopes, which does not reach 1 where these are small."""
    slopes = graph[op.inputs[1]].per_tensor if op.has(1) else None
    if slopes is None:
        return ""
    one = (min(round(1 / slopes.step) + slopes.point, slopes.limits("uint8")[1]) - slopes.point) * slopes.step
    return "" if abs(one - 1) < 0.5 / 255 else f"multiplies values above the zero point by {one:.3g}"


def differs_from_quantized_mul(graph: Graph, op: Op) -> str:
    """Say which products are none of the operator quantized::mul of a TorchScript file."""
    named = SOURCE_KERNELS in graph.metadata and op.source.startswith("quantized::mul")
    return "" if named and all(graph[name].dtype == "uint8" for name in op.names) else "another operator"


def differs_from_scalar_sum(graph: Graph, op: Op) -> str:
    """Say which additions are none of a number by the operator quantized::add_scalar of a TorchScript file."""
    named = SOURCE_KERNELS in graph.metadata and op.source.startswith("quantized::add")
    is_number = graph[op.inputs[1]].rank == 0 and graph.constant(op.inputs[1]) is not None
    return "" if named and is_number and graph[op.inputs[0]].dtype == graph[op.name].dtype == "uint8" else "another operator"


def _add_number(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """qadd_scalar_kernel (quantized/cpu/kernels/QuantizedOpKernels.cpp): the number is a whole number of steps of the data, and a float32
    multiplies the sum."""
    quantizations = quantizations_of(graph, op)
    if not quantizations or stored[0] is None:
        return None
    data, result = quantizations
    steps = np.rint(graph[op.inputs[1]].float_values().astype(np.float64) / data.step)
    total = stored[0].astype(np.int64) - data.point + int(steps)
    found = REQUANTIZERS["single_float32"](total, effective_scale(data.scale, 1.0, result.scale, "reciprocal"))
    return Integers.clip_to_limits(graph, op, found + result.point)


def _compute_exactly(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """A program rebuilt for a check computes operators between integers in float64 (formats/torch/writing.py, Builder.wide)."""
    known = graph[op.name].is_quantized and all(not name or value is not None for name, value in zip(op.inputs, stored, strict=True))
    return Integers((evaluate_op(graph, op, list(stored))[0].stored,)) if known else None


def _unlike_qnnpack(graph: Graph, op: Op) -> str:
    """Say why qnnpack does not compute a layer of a file that was made for it, or not as its reference says: transposed convolutions over
    three axes give something else, and a Clip as above."""
    weights, activation = graph[op.inputs[1]], op["activation"]
    if graph.metadata.get(SOURCE_KERNELS) != "torch:qnnpack" or weights.data is None or weights.dtype != "int8" or op["arithmetic"]:
        return "another engine, or weights that are not int8 constants"
    if activation not in ("", "relu") or (kind_of(op).spreads and (activation or weights.data.ndim > 4)):
        return "what its kernel computes otherwise"
    if not kind_of(op).has_windows:
        return ""
    pads = [int(pad) for pad in op["pads"]]
    is_even = pads[: len(pads) // 2] == pads[len(pads) // 2 :] and op.attributes.get("auto_pad") not in SAME
    return _layout(op) or ("" if is_even else "padding that differs on both sides")


def _is_of_qnnpack(graph: Graph, op: Op) -> str:
    """Say where a program does not compute a layer by itself, on exact sums (formats/torch/writers/layer_parts.py, integer_sum())."""
    return "qnnpack may run it" if graph.metadata.get(SOURCE_KERNELS) == "torch:qnnpack" else _in_float32(graph, op)


def _not_lowered(graph: Graph, op: Op) -> str:
    """Say why inductor computes an operator in float."""
    weights = graph[op.inputs[1]]
    if not weights.is_constant or weights.dtype != "int8":
        return "weights that are not int8 constants"
    if not kind_of(op).has_windows and (weights.quantization is None or weights.quantization.axis is None):
        return "weights with one scale, for which inductor does not replace linear layers"
    return ""


_TO_LAST = (0, 2, 3, 1)
_REORDERED = "gives data stored channels last in another order"
_FEW = ("Add", "Sub", "Mul", "Div", "ReduceMean", "ReduceSum", "AveragePool", "GlobalAveragePool", "Requantize", "Quantize", "LeakyRelu",
        "PRelu", "Relu", "Clip", "Concat", "HardSwish", "HardSigmoid")  # fmt: skip

#: Kinds of which float64 holds the exact values, or rounds them once.
_EXACT = ("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Relu", "Clip", "Max", "Min", "LeakyRelu", "PRelu", "Reciprocal", "Square", "Sqrt",
          "Floor", "Ceil", "Round", "Requantize", "HardSwish", "HardSigmoid")  # fmt: skip

#: Layers of qnnpack, which has an integer bias: a float32 multiplies, ties to even (qnnpack/src/q8gemm, q8conv, q8dwconv).
_OF_QNNPACK = Kernel(("Conv", "ConvTranspose", "Gemm"), ("uint8",), "float", lacks=_unlike_qnnpack, tolerance=program,
                     reference=Requantizer("single_float32", "reciprocal"))  # fmt: skip
#: Operators of TorchScript files in which a float32 multiplies an integer (qmul_kernel and qadd_scalar_kernel, QuantizedOpKernels.cpp).
_OF_INTEGERS = (
    Kernel(("Mul",), ("uint8",), "float", lacks=differs_from_quantized_mul, tolerance=few_roundings,
           reference=Requantizer("single_float32", "reciprocal")),
    Kernel(("Add",), ("uint8",), "float", lacks=differs_from_scalar_sum, tolerance=few_roundings, reference=_add_number),
)  # fmt: skip
#: The operator quantized::prelu of TorchScript files.
_PRELU = Kernel(("PRelu", "LeakyRelu"), runs="float", lacks=_differs_from_quantized_prelu, tolerance=program, fault=_find_wrong_slope,
                unknown="its products are rounded once more than exact ones")  # fmt: skip
#: What computes in float32.
IN_FLOAT = (
    Kernel(("Resize",), runs="float", tolerance=few_roundings, fault=_find_misplaced, reference=_misplace_pixels),
    Kernel(_FEW, runs="float", tolerance=few_roundings, unknown=IN_ANY_ORDER),
    Kernel(("ConvTranspose",), runs="float", tolerance=program, fault=_find_wrong_layer, unknown=IN_ANY_ORDER),
    Kernel(runs="float", tolerance=program, unknown=IN_ANY_ORDER),
)
#: Bounds of qnnpack, which a program rebuilt for a check gives in their order.
_REORDERING = Kernel(("Clip", "Max", "Min", "Conv", "ConvTranspose", "Add", "Mul"), ("uint8",), "float", lacks=_keeps_order,
                     tolerance=program, fault=lambda graph, op: _REORDERED, unknown=_REORDERED)  # fmt: skip
#: Programs in float64, whose layers the engine of the file may run, or those of torch.export, in float32.
PROGRAM = (
    _REORDERING,
    _OF_QNNPACK,
    *_OF_INTEGERS,
    _PRELU,
    Kernel(
        ("Conv", "ConvTranspose", "Gemm"),
        ("int8", "uint8"),
        "float",
        lacks=_is_of_qnnpack,
        tolerance=program,
        fault=_find_wrong_layer,
        reference=ExactProducts(),
    ),
    Kernel(_EXACT, runs="float", lacks=_in_float32, tolerance=few_roundings, reference=_compute_exactly),
    *IN_FLOAT,
)
#: Files that PyTorch runs itself.
TRUSTED = (
    *_OF_INTEGERS,
    _PRELU,
    Kernel(("Clip", "Relu"), runs="float", tolerance=few_roundings, reference=_reorder_channels),
    Kernel(("Max", "Min"), runs="float", tolerance=program, reference=_reorder_channels),  # a Clip's, in proofs
    Kernel(("Conv", "ConvTranspose"), runs="float", tolerance=program, fault=_find_wrong_layer, reference=_reorder_channels),
    *IN_FLOAT,
)
_ENGINE = "each engine has other kernels, and the process that loads the file chooses one"
_module = partial(Kernel, types=("uint8",), tolerance=program, unknown=_ENGINE)
#: torch.ao.nn.quantized and the operators quantized::. ConvTranspose is none of them: each engine computes some wrongly
#: (_find_wrong_layer()), and fbgemm takes no scale for each output.
MODULES = (
    _module(("Conv",), lacks=_conv, real=("bias",)),
    _module(("Gemm",), lacks=_packed_layer, real=("bias",)),
    _module(("MatMul",), lacks=_matmul),
    _module(("Add", "Mul", "HardSwish", "LeakyRelu", "Elu", "Celu", "Concat"), lacks=_any_qparams),
    _module(("Sigmoid",), lacks=_fixed_qparams),
    _module(("Tanh",), lacks=partial(_fixed_qparams, fixed=FIXED_RESULTS["Tanh"]["uint8"])),
    _module(("HardSigmoid",), lacks=_hard_sigmoid),
    _module(("Relu",), lacks=_same_qparams),
    _module(("Clip",), lacks=_clip),
    _module(("Softmax",), lacks=_softmax),
    _module(("BatchNormalization",), lacks=_batch_norm),
    _module(("LayerNormalization",), lacks=_layer_norm),
    _module(("GroupNormalization",), lacks=_norm),
    _module(("InstanceNormalization",), lacks=_instance_norm),
    _module(("MaxPool",), lacks=_max_pool),
    _module(("AveragePool",), lacks=_average_pool),
    _module(("GlobalAveragePool",), lacks=_global_average),
    _module(("ReduceMean",), lacks=_mean),
    _module(("Resize",), lacks=_resize),
    IN_FLOAT[-1],
)
#: Functions of two values that a FloatFunctional, or the code of a module, calls.
FUNCTION_NAMES = {"Add": "add", "Mul": "mul", "Concat": "cat", "MatMul": "matmul", "Sub": "sub", "Div": "div"}
#: Kinds that FX quantizes, after each of which it has an observer (torch/ao/quantization/backend_config).
OBSERVED_KINDS = {kind for row in MODULES for kind in row.kinds if kind != "Celu"} | {
    "ConvTranspose", "GlobalMaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze"}  # fmt: skip
#: oneDNN, to which inductor with freezing lowers products of uint8 data, on x86-64; additions after a convolution become part of it.
INDUCTOR = (
    Kernel(("Conv", "Gemm"), ("uint8",), real=("bias", "result"), lacks=_not_lowered, tolerance=program,
           unknown="its bias is added in float32, with what inductor fuses after it"),
    IN_FLOAT[-1],
)  # fmt: skip
