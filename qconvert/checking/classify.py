"""Explains the differences of one operator, element by element, from the exact value that both sides round, and from the tolerances of
their kernels. Also says what further roundings add to these tolerances.

With the same inputs, source and result approximate one real number r, in steps of the output's scale. A kernel whose arithmetic is off by
at most e gives an integer within 1/2 + e of r. So a difference is explained exactly if both integers lie within their kernels' tolerance of
r; then r is near a tie, or the kernels are coarse. The share of elements whose r lies that near to a tie is the predicted rate: an upper
bound for the share that differs. Whatever lies outside is unexplained, and is a fault.

The tolerances of kernels are in their rows (kernels/).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from qconvert.checking.findings import KERNELS, Finding
from qconvert.checking.outputs import absolute_difference, largest_magnitude
from qconvert.checking.same_codes import is_storage
from qconvert.graph import Array, Graph, Op
from qconvert.operators import kind_of
from qconvert.plugins import Runtime, kernels_named
from qconvert.rewriting.parts import computable_ops


def further_tolerance(graph: Graph, other: Graph, shared: set[str], declared: Collection[str]) -> dict[str, float]:
    """For the outputs of the source's operators, in steps of their scale; those that the result rounds as often are absent.

    A rounding that the conversion did not declare adds nothing: whatever it costs is the result's fault.

    Args:
        graph, other: the source's and the result's canonical graphs.
        shared: names of the tensors at which both are cut.
        declared: names of the result's tensors onto which the conversion declared that it rounds.
    """
    found = dict(_add_up_roundings(other, computable_ops(other, shared), shared, declared))
    producers = other.producers()
    for op in graph.ops:
        pair = producers.get(op.outputs[0]) if op.outputs else None
        stays = pair is not None and kind_of(pair) is kind_of(op) and pair.has(2)
        if not stays or pair is None or other[pair.inputs[2]].dtype != "float32":
            added = _bias_tolerance(graph, op)
            found.update({name: found.get(name, 0.0) + added for name in op.outputs if added})
    return found


def _add_up_roundings(other: Graph, ops: list[Op], shared: set[str], declared: Collection[str]) -> Iterator[tuple[str, float]]:
    """Yield each output after intermediate roundings, and their addition to the kernel's tolerance, in steps of the output's scale.

    A rounding before the last one is off by half a step of its own scale; a Requantize multiplies with 8 fractional bits at least
    (see classify.py), which counts where it stands for a part of another operator.
    """
    inner: dict[str, float] = {}
    onto = set(declared)
    for op in reversed(ops):  # what is only moved to a declared quantization was rounded onto it before
        if kind_of(op).rule == "move" and op.outputs[0] in onto:
            onto.update(op.inputs[:1] if other[op.inputs[0]].quantization == other[op.outputs[0]].quantization else ())
    for op in ops:
        before = max((inner.get(name, 0.0) for name in op.inputs if name not in shared), default=0.0)
        if kind_of(op).dequantizes and op.outputs[0] not in shared:
            inner[op.outputs[0]] = before
        quantization = other[op.outputs[0]].per_tensor if op.outputs else None
        if quantization is None:
            continue
        step = quantization.step
        rounds = kind_of(op).rule in ("real", "convert") and not is_storage(other, op)
        coarse = 0.5 if kind_of(op).requantizes and rounds and before else 0.0
        for name in op.outputs:
            if name in shared:
                if before:
                    yield name, before / step + coarse
            else:
                inner[name] = before + (0.5 + coarse) * step if rounds and name in onto else before


def _bias_tolerance(graph: Graph, op: Op) -> float:
    """What a float bias rounded to int32 adds to the tolerance, in steps: half of input scale * weight scale."""
    result = graph[op.outputs[0]].quantization if op.outputs else None
    if not kind_of(op).has_weights or result is None or len(op.inputs) < 3 or not op.inputs[2] or graph[op.inputs[2]].dtype != "float32":
        return 0.0
    quantizations = [graph[name].quantization for name in op.inputs[:2]]
    steps = [float(np.max(quantization.scale)) for quantization in quantizations if quantization is not None]
    return 0.5 * steps[0] * steps[1] / result.step if len(steps) == len(quantizations) else 0.0


_TIE = 1e-6
#: Steps that a bias rounded to int32 may add are below this, those of an operator's result that is rounded twice above.
_MUCH = 0.1


def classify(
    graph: Graph,
    op: Op,
    source: Array,
    result: Array,
    exact: Array | None,
    kernels: tuple[str, str],
    further: float | Array = 0.0,
    summed: Array | None = None,
    cancellation: float | Array = 0.0,
) -> Finding:
    """The finding for one operator output.

    Args:
        graph, op: the operator in the source's graph.
        source: stored values that the source's kernel gave.
        result: what the result gave for the same inputs, in the source's storage type and layout.
        exact: the real-valued result, or None where integers are only moved or compared.
        kernels: the source's and the result's, as in plugins.kernels_named().
        further: what further roundings add to the result's tolerance, in steps, of all or of each element; see _MUCH.
        summed: what kernels sum before the activation cuts it off, on which their tolerance depends; `exact` if not given.
        cancellation: by how much terms that cancel may make either side off, in steps, likewise.
    """
    tensor = graph[op.outputs[0]]
    difference = np.abs(source.astype(np.int64) - result.astype(np.int64))
    differing = difference != 0
    equal = 1.0 - float(differing.mean()) if source.size else 1.0
    largest = float(difference.max(initial=0))
    if exact is None or tensor.quantization is None:
        verdict, reason = ("unexplained", "moved or compared integers differ") if differing.any() else ("equal", "integers are moved")
        return Finding(verdict, reason, equal, largest, 0.0, int(differing.sum()))
    scale, zero_point = tensor.quantization.step, tensor.quantization.point
    low, high = tensor.quantization.limits(tensor.dtype)
    steps = exact / scale
    sums = steps if summed is None or summed.shape != steps.shape else summed / scale
    runtimes = [resolve_runtime(side) for side in kernels]
    allowed = [runtime.rows(name).tolerance(graph, op, sums) for runtime, name in runtimes]
    (source_tolerance, coarse_source), (result_tolerance, coarse_result) = allowed
    source_tolerance, result_tolerance = source_tolerance + cancellation, result_tolerance + further + cancellation
    often = float(np.max(further + cancellation, initial=0.0)) > _MUCH
    position = np.clip(steps + zero_point, low, high)
    undefined = np.isnan(position)  # what integer NaN becomes, nothing says
    if undefined.any() and (differing & undefined).any():
        return Finding(KERNELS, "each runtime converts NaN to another integer", equal, largest, 1.0)
    missed_source = np.abs(source - position) > 0.5 + source_tolerance
    missed_result = np.abs(result - position) > 0.5 + result_tolerance
    with np.errstate(invalid="ignore"):  # log(0) is infinite
        from_tie = np.abs(np.abs(steps - np.floor(steps)) - 0.5)
    predicted = float((from_tie <= source_tolerance + result_tolerance).mean()) if steps.size else 0.0
    unexplained = int((differing & (missed_source | missed_result)).sum())
    if unexplained:
        side = "the source's kernel is outside its known arithmetic" if not (differing & missed_result).any() else "the result is wrong"
        return Finding("unexplained", side, equal, largest, predicted, unexplained)
    if not differing.any():
        return Finding("equal", "", equal, largest, predicted)
    ties = from_tie[differing] <= _TIE
    coarse = coarse_source or coarse_result or often
    reason = "rounding tie" if ties.all() else "order of requantization"
    if coarse and not ties.all():
        reason = f"coarse arithmetic of {runtimes[0 if coarse_source else 1][0].title}'s kernel"
    if often and not (coarse_source or ties.all()):
        reason = "rounded more than once, because several operators replace one"
    return Finding("approximate" if coarse else "one rounding", reason, equal, largest, predicted)


def resolve_runtime(side: str) -> tuple[Runtime, str]:
    """The runtime and the set of its kernels that a side names; "mixed" is none that a user may choose."""
    name, _, wanted = side.partition(":")
    runtime, first = kernels_named(name)
    return runtime, wanted or first


#: By what share of the largest value results may differ; one or two roundings of the 11 bits of float16, since some kernels compute in it
#: and others in float32.
_SHARES = {"float16": 2.0**-10}
_SHARE = 1e-5


def allowed_share(values: Array) -> float:
    """Return the share of the largest float by which others of its type may be off."""
    return _SHARES.get(values.dtype.name, _SHARE)


#: Why outputs are unexplained whose exact values are not known.
UNKNOWN = "values differ"

#: Steps by which integers of an operator without an exact evaluation may be off where they have 8 or 16 bits.
_LARGEST_STEPS = 1
_STORED = ("int8", "uint8", "int16", "uint16")


def compare_inexact(a: Array, b: Array, least: float = 0.0, share: float = 0.0) -> Finding:
    """Two outputs that differ, of an operator without an exact evaluation.

    Args:
        a, b: the outputs.
        least: floats below it are judged as if they were as large.
        share: of the largest float by which others may be off; 0 for what its type allows.
    """
    differing = a != b
    equal = 1.0 - float(differing.mean())
    if a.dtype.kind not in "biuf":
        return Finding("unexplained", UNKNOWN, equal, float("inf"), 0.0, int(differing.sum()))
    difference = absolute_difference(a, b)
    if a.dtype.kind == "f":
        allowed, reason = share or allowed_share(a), "float arithmetic"
        difference /= max(largest_magnitude(a), least) or 1.0
    else:
        allowed, reason = (_LARGEST_STEPS if a.dtype.name in _STORED else 0), "compared without an exact value"
    wrong = int((difference > allowed).sum())
    largest = float(difference.max(initial=0))
    verdict = "unexplained" if wrong else "approximate"
    return Finding(verdict, UNKNOWN if wrong else reason, equal, largest, 1.0, wrong)
