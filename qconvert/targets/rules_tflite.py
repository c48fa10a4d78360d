"""What TFLite demands beyond the data of its targets, one small function each: the own_rules of these targets.

A rule looks at an operator of a normalized graph (channels last, after the target's passes) or, in FILE_RULES, at the operators that a
file would hold. Sources: files are those of tflite/kernels in LiteRT; "measured" means that LiteRT 2.3 or tflite-micro was seen to refuse
or misread a model that breaks the rule (tests/targets/).

Of kernels there are types and largest ranks, for each operator of LiteRT and tflite-micro.

kernel_table_tflite.py was found by running a model of one operator for every entry, with LiteRT's default kernels, and comparing the result
with the exact one; tests/targets/test_kernels.py repeats it. Kernels that run but are wrong are not in it: quantized DIV (one or two
steps by many give the extreme value), quantized NEG, FLOOR_DIV and FLOOR_MOD (they take integers for plain numbers), and int8 CUMSUM
of tflite-micro. Ranks above 7 were not tried: tflite-micro reads beyond its shapes there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from qconvert.formats.tflite.variables import VARIABLE_OPERATORS
from qconvert.formats.tflite.write_operators import write_operators
from qconvert.graph import Graph, Op, Tensor
from qconvert.kernels.litert.limits import FACTORS, Sides, list_unfit_factors
from qconvert.operators import kind_of
from qconvert.operators.formulas.places import MOST_JOINED
from qconvert.operators.opaque import is_custom
from qconvert.operators.products import is_depthwise
from qconvert.plugins import Target, Violation
from qconvert.plugins.abilities import IN_THE_FILE
from qconvert.plugins.rules import Breach, Demand, demands, weights_of
from qconvert.targets.kernel_table_tflite import LITERT, LITERT_CASTS, MICRO, MICRO_CASTS
from qconvert.targets.tflite import TARGETS

if TYPE_CHECKING:
    from qconvert.formats.tflite.operator import Operator
    from qconvert.formats.tflite.writing import Writing


#: Where an operator's data are, if they are not its first input.
_DATA = {"TRANSPOSE_CONV": 2, "SPLIT": 1, "FILL": 1, "SCATTER_ND": 1, "SELECT": 1, "SELECT_V2": 1, "ONE_HOT": 2}

#: Operators whose result may have more dimensions than their data.
_BROADCAST = frozenset(
    "ADD SUB MUL DIV MAXIMUM MINIMUM POW FLOOR_DIV FLOOR_MOD SQUARED_DIFFERENCE PRELU EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS "
    "LESS_EQUAL LOGICAL_AND LOGICAL_OR SELECT_V2 BROADCAST_TO FILL BATCH_MATMUL".split()
)


#: Operators of two operands, which have one type.
_PAIRS = _BROADCAST - {"SELECT_V2", "BROADCAST_TO", "FILL", "BATCH_MATMUL"}


#: Operators with weights.
_WITH_WEIGHTS = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL")


#: Recurrent operators of tflite-micro -> types of data, weights and state that it takes (svdf.cc, lstm_eval.cc; measured).
_MICRO_RECURRENT = {
    "SVDF": (("float32", "float32", "float32"), ("int8", "int8", "int16"), ("int8", "int8", "int8")),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (("float32", "float32", "float32"), ("int8", "int8", "int8")),
}
#: Operators of tflite-micro whose results are indices of int32 alone (arg_min_max.cc, shape.cc; measured).
_GIVES_INT32 = ("ARG_MAX", "ARG_MIN", "SHAPE")
#: Where the first weights and the first state of these are; and inputs of an LSTM that tflite-micro wants (the input gate), or has none of
#: (peepholes, projection, layer normalization).
_WEIGHTS_AND_STATE = {"SVDF": (1, 4), "UNIDIRECTIONAL_SEQUENCE_LSTM": (2, 18)}
_SVDF_BIAS = 3
_WANTED, _UNKNOWN = (1, 5, 12), (9, 10, 11, 16, 17, 20, 21, 22, 23)


def has_no_kernel(w: Writing, operator: Operator) -> Iterator[Breach]:
    """LiteRT has no kernel for the type or the rank of the data; types that were not tried are left to LiteRT."""
    if operator.builtin == "SPARSE_TO_DENSE" and w.tensor(operator.inputs[2]).dtype == "int16":  # sparse_to_dense.cc, Prepare
        yield operator.inputs[2], "SPARSE_TO_DENSE of int16"
    elif operator.custom is None and operator.builtin in OPERATORS["LiteRT"]:
        yield from _kernel_breaches(w, operator, "LiteRT", SURVEYED)


def has_no_micro_kernel(w: Writing, operator: Operator) -> Iterator[Breach]:
    """The same for tflite-micro, where what is not in the table does not exist."""
    if operator.custom is None and operator.builtin in VARIABLE_OPERATORS:
        return
    carried = operator.origin is not None and kind_of(operator.origin).rule == "opaque"
    if operator.custom is not None and (operator.builtin in MICRO_CUSTOM or carried):
        return
    if operator.custom is None and operator.builtin in _MICRO_RECURRENT:
        yield from _recurrence_breaches(w, operator)
    elif operator.custom is not None or operator.builtin not in OPERATORS["tflite-micro"]:
        yield operator.outputs[0], f"there is no {operator.builtin}"
    else:
        yield from _kernel_breaches(w, operator, "tflite-micro", ())
        result = w.tensor(operator.outputs[0])
        if operator.builtin in _GIVES_INT32 and result.dtype != "int32":
            yield result.name, f"{operator.builtin} giving {result.dtype}"
        if operator.builtin == "CONCATENATION" and len(operator.inputs) > MOST_JOINED:
            yield result.name, f"CONCATENATION of {len(operator.inputs)} tensors"
        data = w.tensor(operator.inputs[0]) if operator.builtin == "DEQUANTIZE" else None
        if data is not None and data.quantization is not None and data.quantization.scale.size > 1:  # dequantize.cc reads the first alone
            yield data.name, "DEQUANTIZE by more scales than one"
        weights = w.tensor(operator.inputs[1]) if operator.builtin in _WITH_WEIGHTS else None
        if weights is not None and weights.is_quantized and not w.tensor(operator.outputs[0]).is_quantized:
            yield weights.name, f"{operator.builtin} of float data with weights of {weights.dtype}"


def _recurrence_breaches(w: Writing, operator: Operator) -> Iterator[Breach]:
    """In what a recurrent operator is none of tflite-micro's."""
    types = tuple(w.tensor(operator.inputs[index]).dtype for index in (0, *_WEIGHTS_AND_STATE[operator.builtin]))
    if types not in _MICRO_RECURRENT[operator.builtin]:
        yield operator.inputs[0], f"{operator.builtin} of {types[0]} with weights of {types[1]} and a state of {types[2]}"
    if operator.builtin == "SVDF" and not operator.inputs[_SVDF_BIAS]:
        yield operator.outputs[0], "an SVDF without a bias, which tflite-micro reads all the same"
    if operator.builtin == "UNIDIRECTIONAL_SEQUENCE_LSTM":
        given = {index for index, name in enumerate(operator.inputs) if name}
        for index in sorted(given & {*_UNKNOWN}):
            yield operator.inputs[index], "tflite-micro has no peepholes, projections and layer normalizations"
        if not given.issuperset(_WANTED):
            yield operator.outputs[0], "tflite-micro has no LSTM without an input gate"


def _kernel_breaches(w: Writing, operator: Operator, runtime: str, judged: Sequence[str]) -> Iterator[Breach]:
    data = w.tensor(operator.inputs[_DATA.get(operator.builtin, 0)])
    result = w.tensor(operator.outputs[0])
    if operator.builtin == "QUANTIZE" and data.dtype != "float32":
        if {data.dtype, result.dtype} <= {"int8", "uint8", "int16"} and (data.dtype, result.dtype) not in REQUANTIZE[runtime]:
            yield result.name, f"QUANTIZE from {data.dtype} to {result.dtype}"
        return
    dtype = kernel_type(result if operator.builtin == "QUANTIZE" else data)
    if (judged and dtype not in judged) or (runtime == "LiteRT" and operator.builtin == "DEQUANTIZE" and dtype == "float16"):
        return
    if operator.builtin == "CAST" and (not judged or kernel_type(result) in judged):
        if not has_cast(runtime, data.dtype, result.dtype):
            yield result.name, f"CAST from {data.dtype} to {result.dtype}"
        return
    other = w.tensor(operator.inputs[1]) if operator.builtin in _PAIRS else data
    if other.dtype != data.dtype:
        yield other.name, f"{operator.builtin} of {data.dtype} and {other.dtype}"
    if operator.builtin == "PRELU" and dtype == "float16" and not other.is_constant:  # XNNPACK's, which takes constants alone
        yield other.name, "PRELU of float16 with factors that are computed"
    rank = max(data.rank or 0, (result.rank or 0) if operator.builtin in _BROADCAST else 0)
    most = largest_rank(runtime, operator.builtin, dtype)
    if most == 0:
        yield data.name, f"{operator.builtin} of {dtype.replace('_', ' ')}"
    elif rank > most and (runtime != "LiteRT" or most < TRIED):
        yield data.name, f"{operator.builtin} of {dtype.replace('_', ' ')} with {rank} dimensions, at most {most}"


def has_wild_multiplier(w: Writing, operator: Operator) -> Iterator[Breach]:
    """The factor that a kernel computes of its scales is outside what its fixed-point arithmetic holds."""
    if operator.custom is not None or operator.builtin not in FACTORS:
        return
    inputs = [w.tensor(name) for name in operator.inputs if name]
    data = w.tensor(operator.inputs[_DATA.get(operator.builtin, 0)])
    result = w.tensor(operator.outputs[0])
    beta = float(getattr(operator.options, "beta", 1.0) or 1.0)
    yield from (
        (result.name, words) for words in list_unfit_factors(FACTORS[operator.builtin], Sides(operator.builtin, inputs, data, result, beta))
    )


class Rule(NamedTuple):
    """One rule.

    Attributes:
        text: what is demanded.
        source: who demands it.
        remedy: the pass or the option that helps.
        find: (graph, operator) -> each tensor that breaks it and how; in FILE_RULES (Writing, Operator).
    """

    text: str
    source: str
    remedy: str
    find: Callable[..., Iterator[Breach]]


def packed_weights(graph: Graph, op: Op) -> Iterator[Breach]:
    """int4 weights only where a kernel unpacks them: no transposed convolution, no depthwise one of int16."""
    found = weights_of(graph, op)
    if found is None or found[1].dtype != "int4":
        return
    data, weights = found
    if kind_of(op).spreads or (data.dtype == "int16" and is_depthwise(op, weights)):
        yield weights.name, f"is int4; the data are {data.dtype}"


def activated_concat(graph: Graph, op: Op) -> Iterator[Breach]:
    """CONCATENATION fuses no activation."""
    if kind_of(op).chooses and op.attributes.get("activation"):
        yield op.name, f"fuses {op['activation']}"


def micro_memory(graph: Graph, op: Op) -> Iterator[Breach]:
    """LiteRT's SVDF takes the bytes of a memory of int8 for int16, without an error."""
    if op.kind == "IntegerSVDF" and graph[op.inputs[1]].dtype == "int8":
        yield op.inputs[1], "is int8"


def dynamic_dimension(graph: Graph, op: Op) -> Iterator[Breach]:
    """Sizes are known before the model runs, but for the first, which then is 1: the file states it so."""
    for name in op.names:
        shape = graph[name].shape if name else ()
        if shape is None or any(isinstance(size, str) for size in shape[1:]):
            yield name, f"has the shape {shape}"


def rule_of_demand(demand: Demand, target: Target, find: Callable[..., Iterator[Breach]] = lambda graph, op: iter(())) -> Rule:
    """A demand of a target's data as a rule, with its text and its source."""
    return Rule(demand.text(target), target.sources.get(demand.name, ""), demand.remedy(target), find)


_EVERYWHERE = (
    # A further case of what the data of TFLite's targets demand, in its words.
    next(rule_of_demand(item, target, packed_weights) for target in TARGETS for item in demands(target) if item.name == "weight_dtypes"),
    Rule("Concat fuses no activation", "concatenation.cc:143, measured", "", activated_concat),
)
RULES = (
    *_EVERYWHERE,
    Rule(
        "the memory of an SVDF on integers is int16",
        "svdf.cc, measured",
        "--target tflite-micro, which alone has one of int8",
        micro_memory,
    ),
)

FILE_RULES = (
    Rule("LiteRT has a kernel for the operator on this type and rank", "measured",
         "pass isolate_float, or int32_bias_to_float for a bias", has_no_kernel),
    Rule("the factors that kernels compute of scales fit their fixed-point arithmetic", "quantization_util.cc, XNNPACK, measured",
         "check the scales: a calibration went wrong, or channels are unused", has_wild_multiplier),
)  # fmt: skip

MICRO_RULES = (*_EVERYWHERE, Rule("only the first dimension may be dynamic", "tflite-micro has no dynamic tensors",
                            "set the sizes of the model's inputs (--input-shape)", dynamic_dimension))  # fmt: skip

MICRO_FILE_RULES = (
    Rule("tflite-micro has a kernel for the operator on this type and rank", "measured", "--target tflite, if it need not run there",
         has_no_micro_kernel),
    FILE_RULES[1],
)  # fmt: skip

_NO_FORM = "TFLite has an operator, or a few, for the kind"
_REFUSED = "TFLite can state the operator"


def own_rules(graph: Graph, is_micro: bool = False) -> Callable[[Op], Iterator[Violation]]:
    """What an operator of a normalized graph breaks of the rules. The whole graph is written once, since writers take operators in.

    Args:
        graph: after the passes of the target.
        is_micro: whether by the rules of tflite-micro, not of LiteRT.
    """
    rules, file_rules = (MICRO_RULES, MICRO_FILE_RULES) if is_micro else (RULES, FILE_RULES)
    found = write_operators(graph)
    late: dict[int, list[Violation]] = {}
    for op, error in found.failures:
        late.setdefault(id(op), []).append(Violation(f"{error.where}: {error.reason}", _REFUSED, error.remedy, 1))
    for operator in found.writing.operators:
        place = operator.builtin if operator.origin is None else operator.origin.location
        for rule in file_rules:
            late.setdefault(id(operator.origin), []).extend(
                Violation(f"{place}: {name!r}: {how}", rule.text, rule.remedy, IN_THE_FILE)
                for name, how in rule.find(found.writing, operator)
            )

    def broken(op: Op) -> Iterator[Violation]:
        foreign = kind_of(op).rule == "opaque" and not is_custom(op)
        if id(op) in found.without_form or foreign:
            kind = f"{op['domain'] or 'ai.onnx'}.{op['op_type']}" if foreign else op.kind
            yield Violation(f"{op.location}: {kind}", _NO_FORM, "replace the operator before the model is exported")
        for rule in rules:
            yield from (Violation(f"{op.location}: {name!r} {how}", rule.text, rule.remedy) for name, how in rule.find(graph, op))
        yield from () if foreign else late.get(id(op), ())

    return broken


#: The types that were tried. Those of 8 and 16 bits have scales, or are "plain".
SURVEYED = ("int8", "uint8", "int16", "float32", "int32", "int64", "bool", "plain_int8", "plain_uint8", "plain_int16", "uint16", "uint32",
            "uint64", "float16", "bfloat16", "float64")  # fmt: skip

#: The largest rank that was tried. LiteRT has no other limit where it takes this many dimensions.
TRIED = 7

#: The custom operators of tflite-micro: its detection was seen to equal LiteRT's, on the detection model in fixtures/.
MICRO_CUSTOM = frozenset(("TFLite_Detection_PostProcess",))

#: QUANTIZE from integers to integers: runtime -> pairs of types.
REQUANTIZE: Mapping[str, frozenset[tuple[str, str]]] = {
    "LiteRT": frozenset((a, b) for a in ("int8", "uint8", "int16") for b in ("int8", "uint8", "int16")) - {("int16", "uint8")},
    "tflite-micro": frozenset((("int8", "int8"), ("int8", "uint8"), ("int8", "int16"), ("uint8", "int8"), ("int16", "int8"),
                               ("int16", "int16"))),
}  # fmt: skip


#: Runtime -> operator -> "largest rank: types of the data", see kernel_table_tflite.py.
OPERATORS: Mapping[str, Mapping[str, str]] = {"LiteRT": LITERT, "tflite-micro": MICRO}
_CASTS: Mapping[str, Mapping[str, str]] = {"LiteRT": LITERT_CASTS, "tflite-micro": MICRO_CASTS}


def kernel_type(tensor: Tensor) -> str:
    """The type of a tensor as the table has it."""
    plain = tensor.dtype in ("int8", "uint8", "int16") and not tensor.is_quantized
    return f"plain_{tensor.dtype}" if plain else tensor.dtype


def has_cast(runtime: str, source: str, result: str) -> bool:
    """Whether CAST takes values from one type to another."""
    return source == result or result in _CASTS[runtime].get(source, "").split()


@cache
def largest_rank(runtime: str, operator: str, dtype: str) -> int:
    """The largest rank of data of type `dtype` that the operator takes in "LiteRT" or "tflite-micro"; 0 if there is no such kernel."""
    entry = OPERATORS[runtime].get(operator, "")
    for part in entry.split("  "):
        rank, _, types = part.partition(": ")
        if dtype in types.split():
            return int(rank)
    return 0
