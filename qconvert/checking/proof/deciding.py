"""Whether an operator gives the same integers on both sides for every input, as the rows of their kernels say (kernels/)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qconvert.checking.proof.classes import Proved
from qconvert.checking.proof.correspondence import Pair, Trace
from qconvert.graph import Array, Graph, Op, integer_range
from qconvert.kernels import Kernel, Kernels
from qconvert.kernels.products import Requantizer
from qconvert.kernels.proofs import compare_products, integers_for_all
from qconvert.operators import kind_of

__all__ = ["decided"]

#: Rules of kinds of which nothing is proved, and why.
_UNKNOWN = {
    "control": "it runs functions, whose operators are not compared",
    "opaque": "what it computes is not known",
}
_REALS = "it computes real values, which runtimes round otherwise"
#: (graph, operator) -> the stored results for all codes of its operands, or None.
Run = Callable[[Graph, Op], "Array | None"]
#: Makes what is found of an operator: (class, method, why).
Found = Callable[..., Proved]


def decided(
    pair: Pair, trace: Trace, sides: tuple[tuple[Graph, Kernels], tuple[Graph, Kernels]], run: Sequence[Run], *, has_forms: bool = True
) -> Proved:
    """The class of an operator of the result.

    Args:
        pair: the operator and the source's.
        trace: whose graphs have both.
        sides: for source and result the graph as it was read, whose operators kernels take, and the kernels that run this one.
        run: for both what runs an operator for all codes of its operands.
        has_forms: whether the result's kernels are those for which forms of other kernels are made.
    """
    name, output = pair.source.source or pair.source.kind, next(filter(None, pair.result.outputs), "")

    def found(class_: str, method: str = "", why: str = "") -> Proved:
        return Proved(name, output, class_, method, why)

    if pair.moves:
        return found("E0", "identical parameters")
    if kind_of(pair.result).rule in _UNKNOWN:
        return found("?", why=_UNKNOWN[kind_of(pair.result).rule])
    if kind_of(pair.result).rule == "stored":  # the kind is the kernel, whose integers its form gives
        fault = sides[0][1].fault(sides[0][0], pair.source)
        return found("?", why=fault) if fault else found("E1", "form of the kernel")
    if not output:  # it writes a state, whose stored values are what it reads
        return found("E0", "identical parameters")
    result = trace.result[output]
    if not result.is_quantized:
        return found("E0", "identical parameters") if _is_exact(trace.result, pair.result) else found("?", why=_REALS)
    if kind_of(pair.result).rule == "convert" and not trace.result[pair.result.inputs[0]].is_quantized:
        return found("?", why="it rounds real inputs, which its runtime divides by the scale, or multiplies by its inverse")
    own, other = (_as_read(graph, op) for (graph, _), op in zip(sides, (pair.source, pair.result), strict=True))
    first, second = (kernels.of(graph, op) for (graph, kernels), op in zip(sides, (own, other), strict=True))
    if first is None or second is None:
        return found("?", why="no kernel is known for it")
    for (graph, kernels), op in zip(sides, (own, other), strict=True):
        if fault := kernels.fault(graph, op):
            return found("?", why=fault)
    forms = [str(op.attributes.get("arithmetic", "")) for op in (own, other)]
    if forms[1] and not has_forms:
        return found("?", why=f"its form has the integers of {forms[1]} in another set of kernels")
    integers = [
        form or (row.arithmetic(graph, op) if row.arithmetic is not None else "")
        for form, row, (graph, _), op in zip(forms, (first, second), sides, (own, other), strict=True)
    ]
    if any(forms) and integers[0] == integers[1]:
        return found("E1", "form of the kernel")
    if not any(forms) and isinstance(first.reference, Requantizer) and isinstance(second.reference, Requantizer):
        return _of_products(found, (first.reference, second.reference), sides[1][0], other)
    values = [
        _integers(graph, op, None if form else row, runs)
        for form, row, (graph, _), op, runs in zip(forms, (first, second), sides, (own, other), run, strict=True)
    ]
    if values[0] is not None and values[1] is not None:
        return _of_codes(found, values[0], values[1], (trace.source[pair.source.outputs[0]].dtype, result.dtype))
    if (bounded := _bounded(found, sides, (own, other))) is not None:
        return bounded
    unknown = not isinstance(first.reference, Requantizer) and values[0] is None
    return found("?", why=f"the integers of the {'source' if unknown else 'result'}'s kernel are not known for all inputs")


def _is_exact(graph: Graph, op: Op) -> bool:
    """Whether an operator without a quantized result gives the same bits everywhere: it computes on integers, or makes real numbers of
    few bits, whose product with the scale is rounded once."""
    given = [graph[name] for name in op.inputs if name]
    if kind_of(op).rule == "convert":
        return given[0].dtype in ("int8", "uint8", "int16", "uint16") and graph[op.outputs[0]].dtype == "float32"
    sides = (*given, *(graph[name] for name in op.outputs if name))
    return kind_of(op).rule in ("index", "plain") and not any("float" in tensor.dtype for tensor in sides)


def _as_read(graph: Graph, op: Op) -> Op:
    """The operator as a graph has it that is found in the form of comparisons."""
    read = graph.producers().get(op.outputs[0])
    return read if read is not None and read.inputs[:1] == op.inputs[:1] else op


def _of_products(found: Found, kernels: tuple[Requantizer, Requantizer], graph: Graph, op: Op) -> Proved:
    if not all(kernel.takes(graph, op) for kernel in kernels):
        return found("?", why="its accumulator, bias or weights are none that the kernels' arithmetic is known for")
    if kernels[0] == kernels[1]:
        return found("E0", "identical parameters")
    difference = compare_products(graph, op, *kernels)
    if difference is None:
        return found("?", why="the range of its accumulator is not known")
    if not difference.differing:
        return found("E1", "thresholds")
    channel, acc, one, other = difference.examples[0]
    share = f"{difference.differing} of {difference.total} accumulators"
    return found("R1", "thresholds", f"{share}, such as {acc} in channel {channel}: {one} in the source, {other} in the result")


def _of_codes(found: Found, first: Array, second: Array, dtypes: tuple[str, str]) -> Proved:
    method = f"{first.size} {'codes' if first.ndim == 1 else 'pairs'}"
    a, b = (values.astype(np.int64) - integer_range(dtype)[0] for values, dtype in zip((first, second), dtypes, strict=True))
    if a.shape == b.shape and np.array_equal(a, b):
        return found("E1", method)
    off = np.abs(a - b)
    return found("R1", method, f"{int((off > 0).sum())} of {method} differ, by at most {int(off.max())}")


def _integers(graph: Graph, op: Op, kernel: Kernel | None, run: Run) -> Array | None:
    """What a kernel gives for all codes, by its reference, or by running it; without a kernel what the form of the operator says itself."""
    if kernel is not None and kernel.reference is None:
        return run(graph, op)
    found = integers_for_all(graph, op, kernel)
    return found if found is not None or kernel is None else run(graph, op)


def _bounded(found: Found, sides: tuple[tuple[Graph, Kernels], tuple[Graph, Kernels]], ops: tuple[Op, Op]) -> Proved | None:
    """The class of an operator whose kernels are near enough to the exact value for all results to be one integer apart at most."""
    allowed = 0.0
    for (graph, kernels), own in zip(sides, ops, strict=True):
        tensor, row = graph[own.outputs[0]], kernels.of(graph, own)
        if row is None or not row.kinds:
            return None
        if tensor.dtype not in ("int8", "uint8") or tensor.quantization is None or not tensor.quantization.is_per_tensor:
            return None
        low, high = integer_range(tensor.dtype)
        steps = np.arange(low, high + 1, dtype=np.float64) - int(tensor.quantization.zero_point[0])
        allowed += float(kernels.tolerance(graph, own, steps.reshape((1,) * ((tensor.rank or 1) - 1) + (-1,)))[0].max(initial=0))
    return found("A", "tolerances", "its integers differ by at most one") if allowed < 1 else None
