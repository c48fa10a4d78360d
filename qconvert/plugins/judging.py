"""The judge after Target.judge: whether an operator runs on integers, on floats, or is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import is_dynamic, kind_of, nudge_input_scales
from qconvert.plugins.abilities import IN_THE_FILE, Abilities, Verdict, Violation
from qconvert.plugins.rules import computed_inputs, demands, weights_of

_DYNAMIC = "rounds its data to integers at each run (dynamic range)"
#: Operators with these values of `arithmetic` are decomposed; additions but where other scales of their inputs give the integers.
_DECOMPOSED = {
    **{
        name: f"decomposed in float64 to be equal to {kernel}'s integer arithmetic"
        for name, kernel in (("xnnpack", "xnnpack"), ("tflite", "TFLite"), ("qnnpack", "qnnpack"))
    },
    "tflite_softmax": "decomposed in float32 to be equal to TFLite's table of exponentials",
}
#: What operators do on stored integers, by the rule of their kind, where every target can do it.
_ON_INTEGERS = {
    **dict.fromkeys(("move", "relabel", "state"), "moves stored integers"),
    "control": "passes stored integers to functions and back",
    "stored": "computes on stored integers, as its kernel does",
    "opaque": "carried as it is, with its stored integers",
}
_BETWEEN = "it runs in float between Dequantize and Quantize"


def judge_operators(target: Abilities, graph: Graph, ops: Iterable[Op], final: bool) -> Iterator[Verdict]:
    """A verdict for each operator; see Target.judge."""
    wanted = demands(target) if final else ()
    own = target.own_rules(graph) if final and target.own_rules is not None else None
    lacks = target.accelerator.lacks(graph) if own is not None and target.accelerator is not None else None
    for op in ops:
        verdict = _judge_by_kernels(target, graph, op)
        found = list(verdict.violations)
        # What is demanded of quantized operators is demanded of none whose data are real.
        for demand in wanted if verdict.rule != _DYNAMIC else ():
            found += (
                Violation(f"{op.location}: {name!r} {how}", demand.text(target), demand.remedy(target))
                for name, how in demand.find(target, graph, op)
            )
        found += own(op) if own is not None else ()
        if lacks is not None and not lacks(op):  # which kernels the CPU has is no matter of what the accelerator runs
            found = [violation for violation in found if violation.order != IN_THE_FILE]
        first = min(found, key=lambda violation: violation.order) if found else None
        yield verdict if first is None else replace(verdict, runs="refused", rule=first.rule, remedy=first.remedy, violations=tuple(found))


def _judge_by_kernels(target: Abilities, graph: Graph, op: Op) -> Verdict:
    """Where the target's kernels would run the operator."""
    quantized = any(graph.is_quantized(name) for name in op.names)
    kind = kind_of(op)
    rule = kind.rule
    if is_dynamic(op) and target.kernels.dynamic_range:
        return Verdict("integers", _DYNAMIC)
    if target.kernels.lacks(op):
        words = f"{target.name} has no {kind.name}"
        return _judge_on_floats(target, op, f"{words}: {_BETWEEN}" if quantized else words, f"{target.name} has none" if quantized else "")
    if not quantized:
        is_float = rule == "real" and any("float" in graph[name].dtype for name in list(filter(None, op.outputs))[:1])
        return _judge_on_floats(target, op, "its data are float") if is_float else Verdict("floats", "not quantized")
    if rule == "move" and (lacking := _find_lacking_move_kernel(target, graph, op)):
        return _judge_on_floats(target, op, f"{lacking}: {_BETWEEN}", lacking)
    if rule in _ON_INTEGERS:
        return Verdict("integers", _ON_INTEGERS[rule])
    if kind.lists_sizes:
        return Verdict("integers", "reads sizes only")
    if rule == "convert":
        is_between_integers = all(graph.is_quantized(name) for name in (*kind.data(op), *op.outputs))
        return Verdict("floats", f"converts between {'two quantizations' if is_between_integers else 'float and stored integers'}")
    if rule == "plain" and not any("float" in graph[name].dtype for name in op.outputs if name):
        return Verdict("integers", "takes stored integers as plain numbers")
    stored = _describe_stored_integers(graph, op)
    if stored and target.kernels.rows_for(op, "stored"):
        return Verdict("integers", stored)
    float_sides = _list_float_sides(target, graph, op)
    brief, words = _find_obstacle(target, graph, op, float_sides)
    if not stored and any(tensor.dtype == "float32" for tensor in float_sides):
        words = "part of its data is float"
    elif not stored and op.attributes.get("arithmetic") in _DECOMPOSED and nudge_input_scales(graph, op) is None:
        words = _DECOMPOSED[str(op["arithmetic"])]
    if words:
        return _judge_on_floats(target, op, words, brief if rule in ("real", "index") else "")
    eight_bits = any(tensor.dtype.startswith("float8") for tensor in computed_inputs(graph, op)[:1])
    return Verdict("integers", stored or ("kernel of 8-bit floats" if eight_bits else "integer kernel"))


def _judge_on_floats(target: Abilities, op: Op, words: str, brief: str = "") -> Verdict:
    """On float values, or refused where the target has no floats."""
    if target.floats:
        return Verdict("floats", words, "pass isolate_float" if brief else "", brief)
    rule = f"{target.name} has no {op.kind}" if target.kernels.lacks(op) else f"{target.name} runs operators on integers alone"
    remedy = "quantize all of its data, or leave it to the program that runs the model"
    broken = Violation(f"{op.location}: {brief or words}", rule, remedy)
    return Verdict("refused", rule, remedy, violations=(broken,))


def _find_lacking_move_kernel(target: Abilities, graph: Graph, op: Op) -> str:
    """Why the target has no kernel, or a wrong one, for the operator's data movement on integers; "" if it has a right one."""
    kind = kind_of(op)
    if not target.kernels.rows_for(op):
        return ""
    for dtype in dict.fromkeys(graph[name].dtype for name in kind.moved_inputs(op) if graph.is_quantized(name)):
        kernel, lacking = target.kernels.find_kernel(graph, op, dtype)
        if kernel is None:
            return f"{target.name} has no integer kernel for {lacking}"
        if kernel.fault is not None and (fault := kernel.fault(graph, op)):
            return fault
    return ""


def _describe_stored_integers(graph: Graph, op: Op) -> str:
    """What an operator of float values does on stored integers, in words; "" if it has to compute."""
    kind = kind_of(op)
    is_nearest = op.attributes.get("mode") == "nearest"
    if not (kind.clips or kind.chooses or (kind.ranks and kind.compares) or is_nearest):
        return ""
    data, result = graph[op.inputs[0]], graph[op.outputs[0]]
    if kind.ranks:
        return "compares stored integers" if data.is_quantized else ""
    if kind.clips:
        return "clips stored integers" if data.is_quantized and data.shares_quantization(result) else ""
    shared = all(graph[name].shares_quantization(result) for name in (kind.data(op) if is_nearest else op.inputs) if name)
    if not shared or not (kind.by_place or result.dtype in ("int8", "uint8")):
        return ""
    return "moves stored integers" if kind.by_place or is_nearest else "compares stored integers"


def _list_float_sides(target: Abilities, graph: Graph, op: Op) -> list[Tensor]:
    """Inputs and results without a scale, but for those that the target's integer kernels take as they are."""
    kind = kind_of(op)
    if target.kernels.takes_real(op, "sums"):
        return [graph[name] for name in op.inputs[:2] if not graph[name].is_quantized]
    rounded = all(graph[name].is_quantized for name in op.outputs if name)
    taken = kind.inputs_with_role(op, "bias") if rounded and target.kernels.takes_real(op, "bias") else []
    given = op.outputs if target.kernels.takes_real(op, "result") and graph[op.inputs[1]].is_quantized else ()
    names = [name for name in op.names if name and name not in (*taken, *given)]
    return [graph[name] for name in names if not graph[name].is_quantized]


def _find_weights_obstacle(target: Abilities, graph: Graph, op: Op) -> str:
    """Why no kernel of the target takes integer weights of their type next to any data, such as int16; "" if one does."""
    found = weights_of(graph, op)
    if found is None or not found[1].is_quantized:
        return ""
    taken = {dtype for dtypes in target.storage.weight_dtypes.values() for dtype in dtypes}
    return f"{target.name} has no integer kernel for {found[1].dtype} weights" if taken and found[1].dtype not in taken else ""


def _find_obstacle(target: Abilities, graph: Graph, op: Op, float_sides: list[Tensor]) -> tuple[str, str]:
    """Why a quantized operator cannot run on integers: for a list of many, and for one; empty if it can."""
    data, rule = computed_inputs(graph, op), kind_of(op).rule
    results = [graph[name] for name in op.outputs if name] if rule == "real" else []
    floats = {tensor.name for tensor in float_sides}
    if rule in ("real", "index") and any(tensor.name in floats for tensor in (*data, *results)):
        is_result = bool(results) and not results[0].is_quantized
        return f"{'their results have' if is_result else 'some of their data have'} no scale", "part of its data is float"
    first = next((tensor.dtype for tensor in (*data, *results)), "")
    inexact = any(not row.types or first in row.types for row in target.kernels.rows_for(op, "inexact"))
    none, why = (f"{target.name}'s integer kernel", " is less exact") if inexact else (f"{target.name} has no integer kernel", "")
    kernel, lacking = target.kernels.find_kernel(graph, op, first)
    if kernel is None and not lacking:
        return f"{none}{why}", f"{none} for {op.kind}{why}: {_BETWEEN}"
    types = target.storage.activation_dtypes if kernel is not None and not (kernel.kinds or kernel.types) else ()
    if (types and first not in types) or any(tensor.dtype != first for tensor in results if tensor.is_quantized):
        lacking = f"{first} data"
    elif wide := _find_weights_obstacle(target, graph, op):
        return wide, f"{wide}: {_BETWEEN}"
    if lacking:
        return f"{none} for {lacking}{why}", f"{none} for {lacking}{why}: {_BETWEEN}"
    fault = kernel.fault(graph, op) if kernel is not None and kernel.fault is not None else ""
    if fault:
        return f"the integer kernel is wrong: {fault}", f"{fault}: {_BETWEEN}"
    return "", ""
