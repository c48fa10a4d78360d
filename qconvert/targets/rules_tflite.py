"""What TFLite demands beyond the data of its targets, one small function each: the own_rules of these targets.

A rule looks at an operator of a normalized graph (channels last, after the target's passes) or, in FILE_RULES, at the operators that a
file would hold. Sources: files are those of tflite/kernels in LiteRT; "measured" means that LiteRT 2.3 or tflite-micro was seen to refuse
or misread a model that breaks the rule (tests/targets/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qconvert.formats.tflite.written import written
from qconvert.graph import Graph, Op
from qconvert.operators.opaque import is_custom
from qconvert.plugins import Target, Violation
from qconvert.plugins.rules import Breach, Demand, demands, place
from qconvert.plugins.sides import weights_of
from qconvert.plugins.verdict import IN_THE_FILE
from qconvert.targets.tflite import TARGETS
from qconvert.targets.written_tflite import has_no_kernel, has_no_micro_kernel, has_wild_multiplier

if TYPE_CHECKING:
    from qconvert.formats.tflite.operator import Operator

__all__ = ["FILE_RULES", "MICRO_FILE_RULES", "MICRO_RULES", "RULES", "Rule", "own_rules", "stated"]


@dataclass(frozen=True, slots=True)
class Rule:
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
    depthwise = op.kind == "Conv" and int(op["group"]) > 1 and weights.shape is not None and weights.shape[1] == 1
    if op.kind == "ConvTranspose" or (data.dtype == "int16" and depthwise):
        yield weights.name, f"is int4; the data are {data.dtype}"


def activated_concat(graph: Graph, op: Op) -> Iterator[Breach]:
    """CONCATENATION fuses no activation."""
    if op.kind == "Concat" and op["activation"]:
        yield op.outputs[0], f"fuses {op['activation']}"


def micro_memory(graph: Graph, op: Op) -> Iterator[Breach]:
    """LiteRT's SVDF takes the bytes of a memory of int8 for int16, without an error."""
    if op.kind == "IntegerSVDF" and graph[op.inputs[1]].dtype == "int8":
        yield op.inputs[1], "is int8"


def open_size(graph: Graph, op: Op) -> Iterator[Breach]:
    """Sizes are known before the model runs, but for the first, which then is 1: the file states it so."""
    for name in (*op.inputs, *op.outputs):
        shape = graph[name].shape if name else ()
        if shape is None or any(isinstance(size, str) for size in shape[1:]):
            yield name, f"has the shape {shape}"


def _like(name: str, find: Callable[..., Iterator[Breach]]) -> Rule:
    """A further case of what the data of TFLite's targets demand, in its words."""
    return next(stated(demand, target, find) for target in TARGETS for demand in demands(target) if demand.name == name)


def stated(demand: Demand, target: Target, find: Callable[..., Iterator[Breach]] = lambda graph, op: iter(())) -> Rule:
    """A demand of a target's data as a rule, with its text and its source."""
    return Rule(demand.text(target), target.sources.get(demand.name, ""), demand.remedy(target), find)


_EVERYWHERE = (
    _like("weight_dtypes", packed_weights),
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
                            "set the sizes of the model's inputs (--input-shape)", open_size))  # fmt: skip

MICRO_FILE_RULES = (
    Rule("tflite-micro has a kernel for the operator on this type and rank", "measured", "--target tflite, if it need not run there",
         has_no_micro_kernel),
    FILE_RULES[1],
)  # fmt: skip

_NO_FORM = "TFLite has an operator, or a few, for the kind"
_REFUSED = "TFLite can state the operator"


def own_rules(graph: Graph, rules: Sequence[Rule], file_rules: Sequence[Rule]) -> Callable[[Op], Iterator[Violation]]:
    """What an operator of a normalized graph breaks of the rules. The whole graph is written once, since writers take operators in.

    Args:
        graph: after the passes of the target.
        rules: of the graph's operators.
        file_rules: of the operators that the file would hold.
    """
    found = written(graph)
    late: dict[int, list[Violation]] = {}
    for op, error in found.failures:
        late.setdefault(id(op), []).append(Violation(f"{error.where}: {error.reason}", _REFUSED, error.remedy, 1))
    for operator in found.writing.operators:
        for rule in file_rules:
            late.setdefault(id(operator.origin), []).extend(
                Violation(f"{_origin(operator)}: {name!r}: {how}", rule.text, rule.remedy, IN_THE_FILE)
                for name, how in rule.find(found.writing, operator)
            )

    def broken(op: Op) -> Iterator[Violation]:
        foreign = op.kind == "Opaque" and not is_custom(op)
        if id(op) in found.without_form or foreign:
            kind = f"{op['domain'] or 'ai.onnx'}.{op['op_type']}" if foreign else op.kind
            yield Violation(f"{place(op)}: {kind}", _NO_FORM, "replace the operator before the model is exported")
        for rule in rules:
            yield from (Violation(f"{place(op)}: {name!r} {how}", rule.text, rule.remedy) for name, how in rule.find(graph, op))
        yield from () if foreign else late.get(id(op), ())

    return broken


def _origin(operator: Operator) -> str:
    return operator.builtin if operator.origin is None else place(operator.origin)
