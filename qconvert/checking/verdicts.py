"""The verdict from the outputs, constants and operators of a check: problems, and reasons why it is inconclusive.

Passed means that nothing is left unexplained: either all outputs are equal and so are the integers, scales and zero points, but for those
that the conversion declared; or every operator that differs is explained, and no operator on the way to a differing output was left out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from qconvert.checking.findings import KERNELS, NOT_COMPARED, OVERFLOW, Finding, OutputComparison, lowest_sqnr
from qconvert.checking.proof.classes import Proof
from qconvert.checking.value_limits import operator_limits
from qconvert.errors import OptionError, format_some
from qconvert.graph import Graph
from qconvert.operators import kind_of
from qconvert.rewriting.parts import trace_back

#: Outputs of which fewer elements vary from run to run say too little of the operators before them.
_VARYING = 0.1
#: With another quantization, which the conversion declared, a constant holds if its signal is that far above the difference, in dB.
LEAST_SQNR = 20.0
#: An output, or an operator by itself, of which no element is off by more steps of the coarser scale holds whatever its SQNR is.
MOST_STEPS = 2.0
#: Least SQNR of each constant and each operator by itself after an inexact pass that the user named, in dB. Weights of 4 bits bring layers
#: of a MobileNet down to 6; a scale that is wrong by a factor of two, and values that nearly all saturate, leave 0.
LEAST_ALONE = 3.0
#: With another quantization, this share of the runs has the same best class.
_LEAST_TOP1 = 0.5
#: Outputs that are nearly all zero, as those of a Softmax, have little signal: they hold if no element is off by more of such steps than
#: the first number, and their mean is by no more than the second.
_FAINT = 8.0, 0.5
#: Operators that a note names.
_LISTED = 3
#: The largest difference, in LSB or 1/255 of the range, that may be an accumulation of single roundings where nothing tells more.
_ROUNDING = 1.0
#: Some last bits of float32, as a share of the range.
_LAST_BITS = 2.0**-20
#: An SQNR below this, in dB, is that of an output which is zero in every element of the source, and so has no range of its own.
_NO_SIGNAL = -1000.0


def describe_dull_outputs(outputs: Iterable[OutputComparison], fixed: Collection[str]) -> str:
    """A line on outputs that are nearly the same whatever the inputs are, but for those that depend on none; "" if there are none."""
    dull = [item.name for item in outputs if item.varied < _VARYING and item.name not in fixed]
    return (
        f"the output {dull[0]!r} hardly varies with the inputs" + (f", nor do {len(dull) - 1} others" if dull[1:] else "") if dull else ""
    )


def list_nan_outputs(outputs: Iterable[OutputComparison]) -> list[str]:
    """Outputs that are no numbers on both sides."""
    return [f"output {item.name!r} is NaN in source and result in {item.nan} elements" for item in outputs if item.nan]


def shape_problems(outputs: Iterable[OutputComparison]) -> list[str]:
    """Outputs that are of another shape in the result."""
    return [f"output {item.name!r} has the shape {item.shapes}" for item in outputs if item.shapes]


def limit_problems(outputs: Iterable[OutputComparison], max_lsb: float) -> list[str]:
    """Outputs that differ by more than a limit, in LSB, or for float outputs in 1/255 of their range."""
    return [
        f"output {item.name!r} differs by {to_lsb(item):g} LSB, more than {max_lsb:g}" for item in outputs if not to_lsb(item) <= max_lsb
    ]


def to_lsb(item: OutputComparison) -> float:
    """The largest difference in LSB, or for float outputs in 1/255 of their range."""
    return item.largest * (1 if item.unit == "LSB" else 255)


def least_sqnr(stated: float | None, default: float) -> float:
    """Return the SQNR that an output keeps at least, in dB.

    Raises:
        OptionError: what is stated is no number.
    """
    least = default if stated is None else float(stated)
    if math.isnan(least):
        raise OptionError("min_sqnr is not a number", remedy="Give decibels, such as 30.", rule="not-a-number")
    return least


def distant_outputs(graph: Graph, outputs: Iterable[OutputComparison], least: float, why: str, *, top1: bool = False) -> list[str]:
    """Return a sentence for each output that keeps too little of the source's, however well its operators are explained or declared.

    Outputs that are ranked (best classes, boxes in the order of their scores) are judged by their operators alone.

    Args:
        graph: the source's.
        outputs: compared.
        least: the SQNR that an output keeps at least, in dB.
        why: they differ, as the end of a sentence.
        top1: whether the best class has to be the same in half of the runs besides.
    """
    found, ranked = [], _find_ranked_tensors(graph)
    for item in outputs:
        if item.name in ranked or _is_last_bits(graph, item):
            continue
        faint = item.largest <= _FAINT[0] and item.mean <= _FAINT[1]
        near = item.sqnr_db is None or item.sqnr_db >= least or (item.unit == "LSB" and (item.largest <= MOST_STEPS or faint))
        if not near:
            found.append(
                f"output {item.name!r}: SQNR {item.sqnr_db:.1f} dB, below {least:g}, and up to {_format_difference(item)} off, {why}"
            )
        elif top1 and item.same_top1 is not None and item.same_top1 < _LEAST_TOP1:
            found.append(
                f"output {item.name!r}: {100 * item.same_top1:.3g}% of the runs have the same best class, below {100 * _LEAST_TOP1:g}%"
            )
    return found


def _format_difference(item: OutputComparison) -> str:
    """The largest difference with its unit, in words."""
    return f"{item.largest:.4g} " + ("steps" + (" of the coarser scale" if item.quantizations else "") if item.unit == "LSB" else item.unit)


def describe_growth(findings: Iterable[Finding]) -> str:
    """Return, in words, the operators whose differences add up."""
    places = [op.operator for op in findings if op.equal < 1]
    return f"which the differences of {format_some(places, _LISTED) or 'single operators'} add up to, each explained alone"


def compare_with_float(graph: Graph, outputs: Sequence[OutputComparison], least: float) -> tuple[str, list[str]]:
    """Return what the outputs of a quantized model come to next to those of its float source, in a sentence, and the problems.

    Args:
        graph: the float source's.
        outputs: compared.
        least: the SQNR that an output keeps at least, in dB.
    """
    problems = [f"float against quantized: {text}" for text in distant_outputs(graph, outputs, least, "by quantization")]
    worst = lowest_sqnr(outputs)
    found = "every output element is equal" if worst is None else f"SQNR {worst:.1f} dB at the outputs"
    return f"float against quantized: {found}, {'below' if problems else 'held to'} {least:g} dB", problems


def output_costs(outputs: Iterable[OutputComparison]) -> list[str]:
    """Return a sentence for each output that differs: what the passes cost that the user named."""
    return [
        f"output {item.name!r}: SQNR {item.sqnr_db:.1f} dB, up to {_format_difference(item)} off"
        for item in outputs
        if item.differs and item.sqnr_db is not None
    ]


def _is_last_bits(graph: Graph, item: OutputComparison) -> bool:
    """Whether real numbers differ by last bits of their range alone."""
    if item.unit == "LSB" or item.largest > _LAST_BITS or item.sqnr_db is None:
        return False
    writers = graph.producers()
    op = writers.get(trace_back(writers, item.name, lambda op: kind_of(op).rule == "move"))
    return item.sqnr_db > _NO_SIGNAL or (op is not None and max(map(abs, operator_limits(graph, op))) <= 1)


def _find_ranked_tensors(graph: Graph) -> set[str]:
    """The tensors that are computed from the place of values among others."""
    found: set[str] = set()
    for op in graph.ops:
        if kind_of(op).ranks or not found.isdisjoint(op.inputs):
            found.update(op.outputs)
    return found


def operator_problems(findings: Iterable[Finding]) -> list[str]:
    """Operators that differ without an explanation, those whose difference was seen first."""
    wrong = [op for op in findings if op.is_fault]
    found = []
    for op in sorted(wrong, key=lambda op: not op.unexplained):
        seen = f"{op.unexplained} elements, by at most {op.largest:g}" if op.unexplained else "not seen with these inputs"
        found.append(f"{op.operator} ({op.output!r}): {op.reason}; {seen}")
    return found


def differing_parts(parts: Mapping[str, str], findings: Iterable[Finding]) -> list[str]:
    """The parts of a result in several that compute what is not explained. `parts`: tensor -> what computes it, in words."""
    found = dict.fromkeys(parts[op.output] for op in findings if op.is_fault and op.output in parts)
    return [f"{part} computes values that differ from the source's" for part in found]


def list_costly_operators(findings: Iterable[Finding]) -> list[str]:
    """Operators on declared quantizations that by themselves lose more than a pass that the user named may cost them."""
    return [
        f"{op.operator} ({op.output!r}): SQNR {op.sqnr_db:.1f} dB alone, below {LEAST_ALONE:g}, by changes that the conversion declared"
        for op in findings
        if op.verdict == "requantized" and op.sqnr_db is not None and op.sqnr_db < LEAST_ALONE and op.largest > MOST_STEPS
    ]


def overflow_notes(findings: Iterable[Finding]) -> list[str]:
    """What the reader should know of results that the source computes by an overflow, and the result does not."""
    found = list(dict.fromkeys(op.reason for op in findings if op.verdict == OVERFLOW))
    return [f"{text}, to the last bit; the result computes what the operator means, and outputs after it differ" for text in found]


def kernel_differences(findings: Iterable[Finding]) -> list[str]:
    """Operators by which the runtime's own kernels differ as much as source and result do."""
    return [
        f"{op.operator} ({op.output!r}): {op.reason}, and source and result by {op.largest:g}" for op in findings if op.verdict == KERNELS
    ]


def is_declared_exact(findings: Iterable[Finding]) -> bool:
    """Return whether every operator was compared, and those with declared constants or quantizations equal the source in float.

    Outputs then differ by explained roundings of the other operators, such as constants that a Concat rounds to its quantization in either
    file."""
    seen = list(findings)
    declared = [op for op in seen if op.verdict == "requantized"]
    return bool(declared) and all(op.equal == 1 for op in declared) and all(op.verdict != "not compared" for op in seen)


def select_limited_outputs(graph: Graph, outputs: Iterable[OutputComparison], findings: Collection[Finding]) -> list[OutputComparison]:
    """Return the outputs with a limit of their SQNR; the others are judged by their operators alone.

    The others come from an operator whose kernel overflows in the source, or for which the source's own kernels differ. Or they are float
    values that differ by one operator alone: by some steps of dequantized integers, or by last bits, a large share of a Sigmoid's result
    near zero.
    """
    following = {op.output for op in findings if op.verdict in (OVERFLOW, KERNELS)}
    differing = {op.output: op for op in findings if op.equal < 1}
    alone: set[str] = set()
    added: set[str] = set()  # computed from what differs, with further operations
    for op in graph.ops:
        if not following.isdisjoint(op.inputs):
            following.update(op.outputs)
        moved = kind_of(op).rule in ("move", "relabel", "convert")
        if any(name in added or (name in differing and not (moved and name in alone)) for name in op.inputs):
            added.update(op.outputs)
        elif moved and not alone.isdisjoint(op.inputs):
            alone.update(op.outputs)
        for name in op.outputs:
            found = differing.get(name)
            if found is not None and name not in added:
                last_bits = found.verdict == "approximate" and "float" in graph[name].dtype
                alone.update([name] if last_bits or ("float" not in graph[name].dtype and found.largest <= MOST_STEPS) else [])
    return [item for item in outputs if item.name not in following and not (item.unit != "LSB" and item.name in alone)]


def static_problems(graph: Graph, changed: Mapping[str, str], findings: Collection[Finding]) -> list[str]:
    """Changed values that no operator's finding names already."""
    named = {item.output: item.reason for item in findings if item.is_fault}
    readers, writers = graph.consumers(), graph.producers()
    found = []
    for name, text in changed.items():
        ops = [writers[name]] if name in writers else readers.get(name, [])
        if not any(text in named.get(output, "") for op in ops for output in op.outputs):
            op = ops[0] if ops else None
            place = f"{op.label} ({op.outputs[0]!r}): " if op is not None and op.outputs else ""
            found.append(f"{place}{text}")
    return found


def list_uncompared_outputs(graph: Graph, outputs: Sequence[OutputComparison], findings: Collection[Finding]) -> list[str]:
    """A problem for each output that differs and does not come from compared operators alone, with the first such operator."""
    missing = {item.output for item in findings if item.verdict == NOT_COMPARED}
    writers = graph.producers()
    found = []
    for item in outputs:
        if item.differs and (place := _first_missing(graph, item.name, missing)) is not None:
            op = writers[place]
            by = f"up to {item.largest:.4g} {item.unit if item.unit == 'LSB' else 'of its range'}"
            found.append(
                f"{op.label} ({place!r}) could not be compared alone, and output {item.name!r}, which depends on it, differs by {by}"
            )
    return found


def _first_missing(graph: Graph, output: str, missing: Collection[str]) -> str | None:
    """The first tensor of `missing`, in the order of the operators, that an output is computed from."""
    needed, found = {output}, None
    for op in reversed(graph.ops):
        if needed.intersection(op.outputs):
            needed.update(name for name in op.inputs if name)
            found = next((name for name in op.outputs if name in missing and name in needed), found)
    return found


def list_untraced(proof: Proof, reason: str) -> list[str]:
    """What is not judged where outputs are equal, and operators cannot be compared for a `reason`: operators of the source that the proof
    finds in the result nowhere, or not on what they read in the source, and outputs that are not traced."""
    lost = f"not found in the result: {format_some(proof.lost, _LISTED)}" if proof.lost else ""
    said = lost or next(iter(proof.problems), "")
    return [f"{said}; operators cannot be compared: {reason}"] if said else []


def judge_without_operators(
    outputs: Iterable[OutputComparison], reason: str, fixed: Collection[str], own: Mapping[str, float] = MappingProxyType({})
) -> tuple[list[str], list[str]]:
    """Problems and what was not judged, where outputs differ and operators cannot be compared at all.

    What a single rounding may be is not judged, nor is what the source's own kernels differ by (`own`); what is more is not equal. Real
    numbers that depend on no input (`fixed`) may differ by some last bits of float32: each runtime computes them, or folds them, with
    functions of its own.
    """
    problems: list[str] = []
    unjudged: list[str] = []
    for item in outputs:
        if item.differs and not (item.name in fixed and item.unit != "LSB" and item.largest <= _LAST_BITS):
            said = f"output {item.name!r} differs by up to {item.largest:.4g} {item.unit}, and operators cannot be compared: {reason}"
            if item.largest <= own.get(item.name, 0.0):
                said += f"; the source's own kernels differ by up to {own[item.name]:.4g} {item.unit}"
                unjudged.append(said)
            else:
                (problems if to_lsb(item) > _ROUNDING else unjudged).append(said)
    return problems, unjudged
