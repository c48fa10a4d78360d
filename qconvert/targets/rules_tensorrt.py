"""What TensorRT refuses beyond the data of its targets, as its parser and builder did: TensorRT-RTX 1.7.1 with onnx's own node tests.

Operators are named as nodes of ONNX where they are carried as they are (Opaque).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.operators.opaque import custom_name, is_custom
from qconvert.plugins import Violation
from qconvert.plugins.rules import Breach, addend, quantized_data

#: Nodes that the parser has no importer for.
_NO_IMPORTER = frozenset((
    "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "ConvInteger", "CumProd", "DFT", "Det", "DynamicQuantizeLinear",
    "BasicLSTM", "ImageDecoder", "IntegerLSTM", "IntegerSVDF", "MatMulInteger",
    "MelWeightMatrix", "OptionalGetElement", "OptionalHasElement", "QLinearConv", "QLinearMatMul",
    "RegexFullMatch", "Rfft2d", "StringConcat", "StringNormalizer", "StringSplit", "SwiGLU", "TfIdfVectorizer", "Unique",
))  # fmt: skip
#: Nodes that are plugins or kernels which TensorRT-RTX lacks.
_NOT_IN_RTX = frozenset((
    "CausalConvWithState", "DeformConv", "DetectionPostProcess", "LinearAttention", "NonMaxSuppression", "NonZero", "RoiAlign",
    "SelectBoxes",
))  # fmt: skip
#: Types of values that TensorRT has none of (uint8 in inputs and outputs alone).
_NO_TYPES = frozenset((
    "int16", "uint16", "uint32", "uint64", "uint4", "int2", "uint2", "string", "complex64", "complex128", "float8e5m2", "float8e4m3fnuz",
    "float8e5m2fnuz",
))  # fmt: skip
#: Types whose constants stand before Dequantize alone, or are bounds of Clip; those of uint8 are cast alone.
_STORED = ("int8", "int4", "float8e4m3fn", "float4e2m1")
#: Operators that demand two axes.
_NOT_FLAT = ("ArgMax", "ArgMin", "Hardmax", "LogSoftmax", "Softmax")
_CUT = "use --target tensorrt, or cut the network before it"
_IO = "use --io float at inputs and outputs, or cast what it is computed with"
_TYPED = "values have a type that TensorRT has"
_NEWER = "build for a newer device: --kernels tensorrt:sm80 or tensorrt:sm89"
#: What is demanded of networks for a compute capability.
_LACKING = {
    "sm75": "for SM75 products of matrices are float16, and no weights are 4-bit blocks or 8-bit floats",
    **dict.fromkeys(("sm80", "sm86"), "8-bit floats are for SM89 and newer"),
}
_KEEP = "leave the operator to the program around the network, or a plugin of TensorRT's"


def own_rules(graph: Graph, rtx: bool, device: str = "") -> Callable[[Op], Iterable[Violation]]:
    """What operators of a graph break.

    Args:
        graph: normalized for the target.
        rtx: whether TensorRT-RTX is meant.
        device: the compute capability that an engine is for, such as "sm75"; "" for any.
    """
    producers = graph.producers()

    def find(op: Op) -> Iterator[Violation]:
        missing = list(_unsupported_operators(op, rtx))
        yield from missing
        if missing:
            return
        for text, remedy, breaches in (
            (_TYPED, _IO, _unsupported_types(graph, op)),
            ("only Dequantize reads constants of 8 bits and fewer", "cast the data, and store the constant in another type",
             _narrow_constants(graph, op)),
            ("activations have one scale for the whole tensor", "quantize the model's activations per tensor",
             _per_axis_activations(graph, op)),
            ("windows of pools have no dilation", _KEEP, _dilated_pools(op)),
            ("transposed convolutions have strides or dilations, not both", _KEEP, _strided_and_dilated(op)),
            ("scattered values replace the old ones", _KEEP, _scatter_reductions(op)),
            ("data that are compared along an axis have at least two axes", "give the data a first axis of 1",
             _single_axis_data(graph, op)),
            ("loops that read their condition have an initial condition", "give the Loop the condition true",
             _missing_conditions(graph, op)),
            ("no number is divided by the result of a Dequantize: TensorRT-RTX 1.7.1 drops the division",
             "leave the operand float", _dequantized_divisors(graph, op, producers)),
            ("no single number is added after a 1-D convolution: TensorRT-RTX 1.7.1 takes it for a bias and fails",
             "add it to the convolution's bias", _single_addends(graph, op, producers) if rtx else ()),
            (_LACKING.get(device, ""), _NEWER, _missing_device_kernels(graph, op, device)),
        ):  # fmt: skip
            yield from (Violation(f"{op.location}: {name!r} {how}", text, remedy) for name, how in breaches)

    return find


def edge_rules(graph: Graph) -> Iterator[Violation]:
    """What inputs and outputs break that operators do not: those that nobody reads, and constants that are given out."""
    touched = {name for op in graph.ops for name in op.names}
    for side, names in (("input", graph.inputs), ("output", graph.outputs)):
        for tensor in (graph[name] for name in names if name not in touched):
            if tensor.dtype in _NO_TYPES:
                yield Violation(f"{side} {tensor.name!r} is {tensor.dtype}", _TYPED, f"leave the {side} out")
            elif tensor.is_constant and tensor.dtype in (*_STORED, "uint8"):
                text = "outputs that are constants are float, or integers of 32 bits and more"
                yield Violation(
                    f"output {tensor.name!r} is a constant of {tensor.dtype}", text, "leave the output out: its values are known"
                )


def _node_name(op: Op) -> str:
    """The node of ONNX that an operator is."""
    return str(op["op_type"]) if kind_of(op).rule == "opaque" else op.kind


def _unsupported_operators(op: Op, rtx: bool) -> Iterator[Violation]:
    """Operators that there are none of."""
    name, is_carried = _node_name(op), kind_of(op).rule == "opaque"
    if is_carried and (is_custom(op) or (str(op["domain"]) not in ("", "ai.onnx") and name != "Gelu")):
        yield Violation(f"{op.location}: {custom_name(op)}", "TensorRT has only the operators of ONNX, and plugins", _KEEP)
    elif is_carried and name in ("QuantizeLinear", "DequantizeLinear"):
        yield Violation(f"{op.location}: {name}", "scales and zero points are constants", "quantize the model with scales that are fixed")
    elif name in _NO_IMPORTER:
        yield Violation(f"{op.location}: {name}", "TensorRT has no such operator", _operator_remedy(name))
    elif rtx and name in _NOT_IN_RTX:
        yield Violation(f"{op.location}: {name}", "TensorRT-RTX has no such operator", _CUT)


def _operator_remedy(name: str) -> str:
    if name in ("DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"):
        return "quantize the model's activations with scales that are fixed (qconvert calibrate)"
    return _KEEP


def _unsupported_types(graph: Graph, op: Op) -> Iterator[Breach]:
    edges = graph.public.union(graph.inputs)
    data = {tensor.name for tensor in quantized_data(graph, op)} - edges  # of which the target says it
    for name in dict.fromkeys(op.names):
        if not name or name in data:
            continue
        tensor = graph[name]
        if tensor.dtype in _NO_TYPES:
            yield tensor.name, f"is {tensor.dtype}"
        elif tensor.dtype == "uint8" and not _is_allowed_uint8(graph, op, tensor):
            yield tensor.name, "is uint8"


def _is_allowed_uint8(graph: Graph, op: Op, tensor: Tensor) -> bool:
    """Whether TensorRT takes a uint8 tensor here: as an input or a constant that a Cast reads, as an output of a Cast, or passed on from
    input to output."""
    if kind_of(op).copies:
        return op.inputs[0] in graph.inputs and op.name in graph.public
    return kind_of(op).casts and (tensor.is_constant or tensor.name in graph.inputs or tensor.name in graph.public)


def _narrow_constants(graph: Graph, op: Op) -> Iterator[Breach]:
    """Constants of few bits that are taken as plain numbers, or handed on as they are."""
    kind = kind_of(op)
    if kind.clips or kind.dequantizes:
        return
    literal = kind.rule in ("plain", "opaque", "control", "state", "relabel")
    for name in dict.fromkeys(filter(None, op.inputs)):
        tensor = graph[name]
        if tensor.is_constant and tensor.dtype in _STORED and (literal or not tensor.is_quantized):
            yield tensor.name, f"is a constant of {tensor.dtype}"


def _per_axis_activations(graph: Graph, op: Op) -> Iterator[Breach]:
    weights = kind_of(op).inputs_with_role(op, "factor")
    for tensor in quantized_data(graph, op):
        q = tensor.quantization
        if q is not None and not q.is_per_tensor and not (tensor.is_constant and tensor.name in weights):
            yield tensor.name, f"has {q.scale.size} scales"


def _dilated_pools(op: Op) -> Iterator[Breach]:
    if kind_of(op).rule == "move" and "dilations" in op.attributes and any(step != 1 for step in op["dilations"]):
        yield op.name, f"has dilations of {tuple(op['dilations'])}"


def _strided_and_dilated(op: Op) -> Iterator[Breach]:
    if kind_of(op).spreads and any(step != 1 for step in op["strides"]) and any(step != 1 for step in op["dilations"]):
        yield op.name, f"has strides of {tuple(op['strides'])} and dilations of {tuple(op['dilations'])}"


def _scatter_reductions(op: Op) -> Iterator[Breach]:
    if kind_of(op).rule == "move" and op.attributes.get("reduction", "none") != "none":
        yield op.name, f"has the reduction {op['reduction']!r}"


def _single_axis_data(graph: Graph, op: Op) -> Iterator[Breach]:
    shape = graph[op.inputs[0]].shape if _node_name(op) in _NOT_FLAT else None
    if shape is not None and len(shape) < 2:
        yield op.inputs[0], f"has {len(shape)} axes"


def _missing_conditions(graph: Graph, op: Op) -> Iterator[Breach]:
    """The condition of a loop's body, which the parser does not know where the loop is given none."""
    if op.kind != "Loop" or op.has(1):
        return
    body = graph.functions[str(op["body"])]
    condition = body.inputs[1]
    if condition in body.outputs or any(condition in inner.inputs for inner in body.ops):
        yield op.name, "is of a loop without a condition, whose body reads it"


def _dequantized_divisors(graph: Graph, op: Op, producers: dict[str, Op]) -> Iterator[Breach]:
    if op.kind == "Reciprocal":
        divisor = op.inputs[0]
    elif op.kind == "Div" and (above := graph[op.inputs[0]]).data is not None and above.data.size == 1:
        divisor = op.inputs[1]
    else:
        return
    maker = producers.get(divisor)
    if graph[divisor].is_quantized or (maker is not None and kind_of(maker).dequantizes):
        yield divisor, "is what a number is divided by"


def _single_addends(graph: Graph, op: Op, producers: dict[str, Op]) -> Iterator[Breach]:
    """Addends that the pass spread_addends leaves: for one channel, with one position or a dynamic number of them."""
    number = addend(graph, op, producers)
    if number is not None:
        yield number.name, "is such a number"


def _missing_device_kernels(graph: Graph, op: Op, device: str) -> Iterator[Breach]:
    """Values for whose products a device has no kernel: of 8-bit floats before SM89, and for SM75 in float32 but those of convolutions, and
    of 4-bit blocks."""
    if not device:
        return
    kind = kind_of(op)
    multiplied = kind.sums_all_weights or kind.dequantizes
    sides = [graph[name] for name in (*op.inputs[:2], *op.outputs) if name] if multiplied else []
    for tensor in sides:
        if tensor.dtype.startswith("float8") and tensor.is_quantized:
            yield tensor.name, f"is {tensor.dtype}"
        elif device == "sm75" and tensor.dtype == "int4" and tensor.quantization is not None and tensor.quantization.block_size:
            yield tensor.name, "is int4 in blocks"
    result = graph[op.name] if op.outputs else None
    if device == "sm75" and kind.is_matrix_product and result is not None and result.dtype not in ("float16", "bfloat16"):
        yield result.name, "is a product of matrices in float32"
