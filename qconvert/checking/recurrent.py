"""Recurrent networks in a check: sequences of steps through which both sides carry their states, and integer LSTMs that the conversion
made LSTMs in float (passes/recurrences.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.checking.exchanged_values import to_float
from qconvert.checking.findings import Finding, OutputComparison
from qconvert.checking.outputs import Border
from qconvert.checking.requantized_operators import sqnr
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate
from qconvert.graph import Array, Arrays, Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import states_by_reader
from qconvert.passes.recurrences import lstms_to_float
from qconvert.plugins import LoadedModel
from qconvert.rewriting.parts import trace_back
from qconvert.rules.changed_values import constant_difference, declared_names

#: A random sequence has so many steps.
STEPS = 50


class Sequences:
    """A model that begins again with each sequence.

    Args:
        model: the model, loaded.
        open: loads it once more, where it has no reset of its own.
        steps: of a sequence.

    Attributes:
        inputs, outputs, note, unjudged: see plugins.LoadedModel.
    """

    def __init__(self, model: LoadedModel, open: Callable[[], LoadedModel], steps: int) -> None:
        self._model, self._open, self._steps, self._done = model, open, steps, 0
        self.inputs, self.outputs = model.inputs, model.outputs
        self.note, self.unjudged = model.note, str(getattr(model, "unjudged", ""))

    def run(self, inputs: Arrays) -> dict[str, Array]:
        if self._done % self._steps == 0 and not restart(self._model):
            self._model = self._open()
        self._done += 1
        return self._model.run(inputs)


def restart(model: Any) -> bool:
    """Makes the next run the first of a sequence; False where the model, or what gives out its inner tensors, cannot."""
    reset = getattr(model, "reset", None)
    if reset is not None:
        reset()
    return reset is not None


def describe_drift(border: Border, name: str, pairs: Sequence[tuple[Array, Array]], steps: int) -> str:
    """Which steps of an output differ, in words; "" if none does.

    Args:
        border: of source and result.
        name: of the output.
        pairs: values of both sides, a pair for each step, sequence after sequence.
        steps: of a sequence.
    """
    differing = [index for index, (a, b) in enumerate(pairs) if a.shape != b.shape or not np.array_equal(a, b)]
    sizes = {index: found.largest for index in differing if (found := border.compare_output(name, [pairs[index]])).differs}
    if not sizes:
        return ""
    first, most = min(sizes, key=lambda index: index % steps), max(sizes, key=lambda index: sizes[index])
    unit = border.compare_output(name, pairs).unit
    late = [index for index in sizes if index % steps >= steps - steps // 5]
    grows = f"; {len(late)} of them among the last {steps // 5} of a sequence" if steps >= 10 else ""
    return (
        f"output {name!r}: {len(sizes)} of {len(pairs)} steps differ, "
        f"the earliest is step {first % steps + 1} of sequence {first // steps + 1}, "
        f"the largest difference {sizes[most]:.4g} {unit} at step {most % steps + 1} of sequence {most // steps + 1}{grows}"
    )


def state_problems(graph: Graph, other: Graph, declared: Collection[str]) -> list[str]:
    """States that one side lacks, or that begin with another value, in sentences; how integers are stored does not count.

    Args:
        graph, other: source and result.
        declared: tensors of the result whose quantization the conversion declared to be another.
    """
    found = [f"the state {name!r} is not in the {side}" for name, side in _find_missing_states(graph, other)]
    for name in graph.states.keys() & other.states.keys():
        a, b = graph.states[name], other.states[name]
        requantized = any(op.attributes.get("state") == name and not {*op.inputs, *op.outputs}.isdisjoint(declared) for op in other.ops)
        if (text := _compare_first_values(a, b)) and not requantized:
            found.append(f"the initial value of the state {name!r} differs: {text}")
    return sorted([*found, *_compare_state_io(graph, other)])


def _compare_state_io(graph: Graph, other: Graph) -> Iterator[str]:
    """Yield reads of another state, and writes of another tensor than the source's, each by the nearest tensor that both have."""
    own, its = (states_by_reader(side) for side in (graph, other))
    for name in own.keys() & its.keys():
        if own[name] != its[name]:
            yield f"{name!r} is read of the state {its[name]!r}, not {own[name]!r}"
    before, after = (_describe_state_writes(side, graph.tensors.keys() & other.tensors.keys()) for side in (graph, other))
    written = _map_state_writes(graph)
    for state in before.keys() & other.states.keys():
        if state not in after:
            yield f"nothing is written to the state {state!r} in the result"
        elif before[state] and after[state] and before[state] != after[state]:
            yield f"{after[state]} is written to the state {state!r}, not {before[state]}"
        elif after[state] and not before[state] and not _is_computed_from(graph, written[state], after[state]):
            yield f"{after[state]} is written to the state {state!r}, not {written[state]!r}, which is not computed from it"


def _is_computed_from(graph: Graph, name: str, words: str) -> bool:
    """Return whether a tensor is computed from what `words` name; see _describe_state_writes()."""
    producers, reads, seen, waiting = graph.producers(), states_by_reader(graph), set[str](), [name]
    while waiting:
        found = waiting.pop()
        op = producers.get(found) if found not in seen else None
        seen.add(found)
        if words == repr(found) or (found in reads and words == _describe_read(reads[found])):
            return True
        waiting += filter(None, op.inputs if op is not None else ())
    return False


def _describe_read(state: str) -> str:
    return f"what is read of the state {state!r}"


def _map_state_writes(graph: Graph) -> dict[str, str]:
    """Return the states that are written, each with the tensor that is written to it last."""
    return {str(op["state"]): op.inputs[0] for op in graph.ops if kind_of(op).has_effect}


def _describe_state_writes(graph: Graph, shared: Collection[str]) -> dict[str, str]:
    """Return what is written to each state, in words: the nearest tensor of `shared` before conversions and data movement, or a read of a
    state; "" if there is neither."""
    producers, reads, found = graph.producers(), states_by_reader(graph), {}

    def trace_stored(name: str) -> str:
        """The tensor of which another is another form."""
        return trace_back(producers, name, lambda op: kind_of(op).rule in ("relabel", "convert"))

    forms = {trace_stored(name): name for name in sorted(shared, reverse=True)}
    for state, name in _map_state_writes(graph).items():
        words = ""
        while name and not words:
            maker = producers.get(name)
            if name in reads:
                words = _describe_read(reads[name])
            elif name in shared or trace_stored(name) in forms:
                words = repr(name if name in shared else forms[trace_stored(name)])
            name = maker.inputs[0] if maker is not None and kind_of(maker).rule in ("move", "relabel", "convert") else ""
        found[state] = words
    return found


def _find_missing_states(graph: Graph, other: Graph) -> list[tuple[str, str]]:
    gone = [(name, "result") for name in graph.states.keys() - other.states.keys()]
    return gone + [(name, "source") for name in other.states.keys() - graph.states.keys()]


def _compare_first_values(a: Tensor, b: Tensor) -> str:
    if a.data is None or b.data is None or a.data.size != b.data.size:
        return f"shape {a.shape} -> {b.shape}"
    if a.quantization is None and b.quantization is None:
        return "" if np.array_equal(a.data.reshape(-1), b.data.reshape(-1), equal_nan=a.data.dtype.kind == "f") else "plain values differ"
    return constant_difference(a, b)


_REASON = "a float LSTM, as requested"
#: How far a stored result may be from what the evaluator computes, in steps: a value next to a tie falls to either side.
_MOST = 1


def judge_float_lstm(graph: Graph, other: Graph, op: Op, index: int, values: Arrays, pair: tuple[Array, Array]) -> Finding | None:
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
    off, cost = (np.abs(a.astype(np.int64) - pair[1]) for a in (meant, pair[0]))
    equal, largest = float((cost == 0).mean()), float(cost.max(initial=0))
    if wrong := int((off > _MOST).sum()):
        reason = f"differs from {_REASON}, by up to {off.max():g} steps"
        return Finding("unexplained", reason, equal, largest, 0.0, wrong)
    real = [to_float(graph[op.outputs[index]], value) for value in pair]
    return Finding("requantized", _REASON, equal, largest, 1.0, sqnr_db=sqnr(real[0], real[1]))


def _is_declared(other: Graph, name: str) -> bool:
    """Whether a tensor of the result is what an LSTM gives, rounded to a quantization that the conversion declared."""
    writers, declared = other.producers(), declared_names(other)
    is_rounded = False
    while (op := writers.get(name)) is not None and kind_of(op).rule in ("move", "relabel", "convert"):
        is_rounded = is_rounded or (kind_of(op).quantizes and name in declared)
        name = op.inputs[0]
    return is_rounded and writers.find(name, "LSTM") is not None


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
