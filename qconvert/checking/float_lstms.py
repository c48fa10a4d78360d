"""Integer LSTMs of the source that the conversion, asked for the fastest form, made to LSTMs in float (passes/real_recurrence.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from qconvert.arithmetic import dequantize
from qconvert.checking.findings import Finding, OutputComparison
from qconvert.checking.requantized_operators import sqnr
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate
from qconvert.graph import Array, Graph, Op
from qconvert.operators import kind_of
from qconvert.passes.real_recurrence import lstms_to_float
from qconvert.rules.changed_values import declared_names

__all__ = ["describe_drift_costs", "judge_float_lstm"]

_REASON = "a float LSTM, as requested"
#: How far a stored result may be from what the evaluator computes, in steps: a value next to a tie falls to either side.
_MOST = 1


def judge_float_lstm(
    graph: Graph, other: Graph, op: Op, index: int, values: Mapping[str, Array], pair: tuple[Array, Array]
) -> Finding | None:
    """Return the finding for output `index` of an integer LSTM that the result declares a float LSTM: it must equal the float LSTM.

    Args:
        graph, other: the canonical graphs of the source and of the result.
        op: of the source.
        index: of the output.
        values: the stored values of the source's tensors, by name.
        pair: what the source and the result compute from them.

    Returns:
        None for other operators, without such a declaration, or if an input of the operator is not known.
    """
    if op.kind != "IntegerLSTM" or pair[0].shape != pair[1].shape or not _is_declared(other, op.outputs[index]):
        return None
    names = tuple(dict.fromkeys((*filter(None, op.inputs), *op.outputs)))
    alone = Graph("", {name: graph[name] for name in names}, (op,), op.inputs[:3], op.outputs)
    try:
        meant = evaluate(lstms_to_float(alone, (op,)), {name: values[name] for name in alone.inputs})[op.outputs[index]]
    except (QConvertError, KeyError):
        return None
    quantization = graph[op.outputs[index]].quantization
    off, apart = (np.abs(a.astype(np.int64) - pair[1]) for a in (meant, pair[0]))
    equal, largest = float((apart == 0).mean()), float(apart.max(initial=0))
    if wrong := int((off > _MOST).sum()):
        reason = f"differs from {_REASON}, by up to {off.max():g} steps"
        return Finding("unexplained", reason, equal, largest, 0.0, wrong)
    real = [value.astype(np.float64) if quantization is None else dequantize(value, quantization) for value in pair]
    return Finding("requantized", _REASON, equal, largest, 1.0, 0, sqnr_db=sqnr(real[0], real[1]))


def _is_declared(other: Graph, name: str) -> bool:
    """Whether a tensor of the result is what an LSTM gives, rounded to a quantization that the conversion declared."""
    writers, declared = other.producers(), declared_names(other)
    is_rounded = False
    while (op := writers.get(name)) is not None and (kind_of(op).rule in ("move", "relabel") or op.kind in ("Quantize", "Requantize")):
        is_rounded = is_rounded or (op.kind == "Quantize" and name in declared)
        name = op.inputs[0]
    return is_rounded and op is not None and op.kind == "LSTM"


def describe_drift_costs(outputs: Iterable[OutputComparison], findings: Iterable[Finding], drifts: Mapping[str, str]) -> list[str]:
    """What LSTMs in float cost at the outputs, in sentences: as little as it may be, it grows with the sequence.

    Args:
        outputs: compared.
        findings: of the operators.
        drifts: by the name of the output, which of its steps differ.
    """
    places = [item.operator for item in findings if item.reason == _REASON]
    if not places:
        return []
    by = f"{', '.join(places)} in float"
    return [f"{drifts.get(item.name) or f'output {item.name!r} differs'}, by {by}" for item in outputs if item.differs]
