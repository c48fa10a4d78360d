"""Operators that a target lacks: composed of others, looked up in tables, or named.

lower_missing: operators that the target's runtime lacks become others that it has, by the formulas of operators/formulas/.

The writer of a format puts a formula in the place of what the format lacks; here it is the runtime that has no kernel, as a row of the
target's kernels says (`runs="nothing"`), or the target's rules say of the file that would be written (tflite-micro has no TILE, LiteRT has
one). Each operator of a formula is held against the same rows and rules, alone, and is lowered in its turn where it does not pass. A
constant with scales along an axis, before a Dequantize, is float there: tflite-micro reads the first scale for all.

unary_to_table: elementwise functions of one quantized tensor that the target has no operator for become tables of their values.

Everything that is computed of one tensor of 8 bits, element by element, has at most 256 values, however many operators and quantizations
lie between: a Gelu decomposed with Quantize and Dequantize between its parts is one table. The table holds what the evaluation of the
operators gives for each code, with every rounding between them, so nothing is rounded otherwise. It is read as

    codes (int8) -> Cast to int32 -> Add 128 -> Gather of the table -> codes of the result

By default (tables=missing) a function becomes a table only if a part of it has no operator in the target's format, or a formula of
several that comes near to it, or of 8 bits no kernel in the target's runtime, and a formula. The table begins at the nearest tensor of
codes from which all such parts are computed, and includes the rest of the function after them, up to a tensor with other readers. 16 bits
have tables of 65,536 values.

    x -> Div -> a -> Erf -> b -> Add -> c -> Mul by x -> y      becomes      x -> Cast -> Add -> Gather -> y

With tables=chains every function of 8 bits of two operators or more becomes one table. It begins at the farthest tensor of codes with no
other readers in between; with tables=chains16 functions of 16 bits become tables too.

carry_custom: list custom operators of a result, which no runtime runs by itself, and refuse those that cannot be carried.

Nothing is rewritten: a reader makes an Opaque of each, and a writer takes it as it is. What a vendor's compiler has made of a part of a
model (compiler_of) is no operator that another runtime could have: the part is gone, and with it the integers and scales.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from qconvert.arithmetic.storage import bit_width
from qconvert.errors import UnsupportedError, format_count, format_counts
from qconvert.evaluate.curves import curve_operators, curve_roots, curve_values, has_codes
from qconvert.graph import Array, Graph, Op, Tensor, count_kinds, integer_range, numpy_dtype
from qconvert.operators import kind_of
from qconvert.operators.formulas import FORMULAS, formulas_of
from qconvert.operators.opaque import BEFORE_COMPILER, compiler_of, custom_name, is_custom
from qconvert.operators.shapes_and_functions import all_graphs, all_ops
from qconvert.passes.constants import fold_float_constants
from qconvert.plugins import Change, PassResult, Target, operators
from qconvert.rewriting import Rewriter
from qconvert.rewriting.lowering import legality, lower


def lower_missing(graph: Graph, target: Target | None) -> PassResult:
    """Lower the operators that have a formula of which all is accepted; constants that the runtime cannot dequantize become float."""
    if target is None or (target.own_rules is None and not target.kernels.missing):
        return graph, ()
    lowered, composed = _lower_operators(graph, target)
    unpacked, floats = _unpack_constants(lowered, target)
    return unpacked, (*composed, *floats)


def _lower_operators(graph: Graph, target: Target) -> PassResult:
    if not any(map(formulas_of, all_ops(graph))):
        return graph, ()
    known, writers, lacks = {id(op) for op in all_ops(graph)}, operators(target.format, "write"), target.kernels.lacks
    takes = legality(writers) if writers else None  # a format of a plugin may have one function that writes all kinds
    lacking = {
        id(op)
        for _, inner in all_graphs(graph)
        for op in inner.ops
        if formulas_of(op) and (lacks(op) or target.has_no_kernel(inner.tensors, op))
    }

    def legal(tensors: Mapping[str, Tensor], op: Op) -> str:
        if id(op) in lacking or (id(op) not in known and lacks(op)):
            return "no kernel"
        if id(op) in known:
            return ""
        return (takes(tensors, op) if takes is not None else "") or next(
            (broken.rule for broken in target.violations_alone(tensors, op)), ""
        )

    lowered = lower(graph, legal)
    counts = count_kinds(op for op in all_ops(graph) if id(op) in lowered.reasons)
    return lowered.graph, (f"composed of operators that {target.name} has: {format_counts(counts)}",) if counts else ()


def _unpack_constants(graph: Graph, target: Target) -> PassResult:
    unpacked = [
        op.name
        for op in graph.ops
        if kind_of(op).dequantizes and graph[op.inputs[0]].is_constant and target.violations_alone(graph.tensors, op)
    ]
    if not unpacked:
        return graph, ()
    note = f"{format_count(len(unpacked), 'constant')} in float: {target.name} has no kernel that dequantizes by these scales"
    return fold_float_constants(graph, unpacked), (note,)


#: curve_roots() of a graph.
_Roots = Callable[[], Mapping[str, tuple[str, ...]]]
_BYTE = 8


def unary_to_table(graph: Graph, target: Target | None, *, tables: str = "missing") -> PassResult:
    """Make tables for the functions that hold a kind which the target's format or runtime lacks; for chains where they are asked for."""
    rewriter, roots = Tables(graph), cache(lambda: curve_roots(graph))  # which is computed once somebody asks
    missing, lacked = _find_unwritable(graph, target, roots)
    chains = _chains(rewriter, roots, _BYTE if tables == "chains" else 16) if tables != "missing" else {}
    if not missing and not chains:
        return graph, ()
    wanted = set(graph.public)
    sizes: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
    for op in reversed(graph.ops):
        name = op.name if op.outputs else ""
        root = chains.get(name) or missing.get(name, "")
        if root and name in wanted and has_codes(graph[name]):
            values = curve_values(graph, rewriter.producers, name, root)
            rewriter.replace(op, *rewriter.lookup(op, root, values))
            wanted.add(root)
            sizes[name in chains][values.size] += 1
        elif name not in roots() or name in wanted:
            wanted.update(op.inputs)
        else:
            rewriter.remove(op)
    notes = (
        (sizes[False], f"functions of one tensor with {', '.join(sorted(lacked))}, which the target lacks, are lookup tables"),
        (sizes[True], "chains of operators on one tensor are lookup tables"),
    )
    changes = []
    for found, text in notes:
        listed = ", ".join(f"{count} of {size} values" for size, count in sorted(found.items()))
        changes += [Change(f"{text}: {listed}", exact=True)] if found else []
    return (rewriter.finish(), tuple(changes)) if changes else (graph, ())


def _find_unwritable(graph: Graph, target: Target | None, roots: _Roots) -> tuple[dict[str, str], set[str]]:
    """Return the tensors on whose way an operator has no writer, each with the root before these, and the kinds that have none."""
    writers = operators(target.format, "write") if target is not None and target.format else {}
    formulas = {kind for kind, items in FORMULAS.items() if any(item.is_emitted and not item.is_near for item in items)}
    known = {*writers, *formulas}
    has_writer_alone = known - FORMULAS.keys()
    missing: dict[str, str] = {}
    lacked: set[str] = set()
    if target is None or not writers:
        return missing, lacked

    def lacks(op: Op) -> bool:
        if op.kind not in known:
            return True
        return bool(formulas_of(op)) and _is_of_bytes(graph, op) and target.has_no_kernel(graph.tensors, op)

    for op in graph.ops:
        name = op.name if op.outputs else ""
        if (op.kind in has_writer_alone and missing.keys().isdisjoint(op.inputs)) or name not in roots():
            continue
        if (is_lacked := lacks(op)) or not missing.keys().isdisjoint(op.inputs):
            if has_codes(graph[name]) and not _has_lookup(graph[name], target):
                continue
            root = next((item for item in roots()[name] if item not in missing), "")
            missing.update({name: root} if root else {})
            lacked.update({op.kind} if is_lacked else ())
    return missing, lacked


def _is_of_bytes(graph: Graph, op: Op) -> bool:
    """Whether an operator has one operand and all its data are codes of 8 bits, for which a table is small."""
    data = [graph[name] for name in op.names if name and not graph[name].is_constant]
    return len(data) == 1 + len(op.outputs) and all(has_codes(tensor) and bit_width(tensor.dtype) <= _BYTE for tensor in data)


def _has_lookup(codes: Tensor, target: Target) -> bool:
    """Whether the target can look up codes of this type and quantization."""
    table = replace(codes, name="table", shape=(256,), data=np.zeros(256, numpy_dtype(codes.dtype)))
    tensors = {
        "table": table,
        "index": Tensor("index", "int32", (1,), np.zeros(1, np.int32)),
        "codes": replace(codes, name="codes", shape=(1,), data=None),
    }
    return not target.has_no_kernel(tensors, Op("Gather", ("table", "index"), ("codes",), {"axis": 0}))


def _chains(rewriter: Rewriter, roots: _Roots, bits: int) -> dict[str, str]:
    """Return the results of functions of several operators whose inner tensors have no other readers.

    Each comes with the farthest tensor of codes of at most so many bits that it is a function of.
    """
    graph = rewriter.graph
    found: dict[str, str] = {}
    inside: set[str] = set()
    for op in reversed(graph.ops):
        name = op.name if op.outputs else ""
        if name not in roots() or name in inside or not has_codes(graph[name]):
            continue
        for root in reversed(roots()[name]):
            way = curve_operators(graph, rewriter.producers, name, root)
            between = way.keys() - {name}
            readers = (reader for item in between for reader in rewriter.readers[item])
            is_read = not graph.public.isdisjoint(between) or any(way.keys().isdisjoint(reader.outputs) for reader in readers)
            count = sum(_computes(step) for step in way.values())
            if bit_width(graph[root].dtype) <= bits and count > 1 and not is_read:
                found[name] = root
                inside |= between
                break
    return found


def _computes(op: Op) -> bool:
    """Whether an operator alone is a function that a table would be worth."""
    kind = kind_of(op)
    return not (kind.quantizes or kind.dequantizes or kind.rule == "relabel" or kind.copies or kind.casts)


class Tables(Rewriter):
    """A graph that gets tables, each once, and the operators that read them."""

    def lookup(self, op: Op, name: str, values: Array) -> list[Op]:
        """Return the operators that give the result of `op` by a table of stored values, one for each code of the tensor `name`."""
        root, result = self.graph[name], self.graph[op.name]
        table = self.shared_constant(f"{result.name}/table", values, result.dtype, result.quantization)
        index = self.add(f"{result.name}/codes", root, dtype="int32", quantization=None)
        found = [op.derive("Cast", (root.name,), (index,), to="int32")]
        low = integer_range(root.dtype)[0]
        if low:
            offset = self.shared_constant(f"{result.name}/first", np.array(-low, np.int32), "int32")
            codes, index = index, self.add(f"{result.name}/index", root, dtype="int32", quantization=None)
            found.append(op.derive("Add", (codes, offset), (index,)))
        return [*found, op.derive("Gather", (table, index), (result.name,), axis=0)]


_FLEX = "Flex"


def carry_custom(graph: Graph, target: Target | None, *, custom: str = "carry") -> PassResult:
    """Name the custom operators, with counts.

    Args:
        graph: stays as it is.
        target: whose format the result has.
        custom: "carry"; "refuse" all that TFLite's format or the source's does not have; "keep" compiled ones too.

    Raises:
        UnsupportedError: some are refused; all are listed.
    """
    found = [op for op in graph.ops if is_custom(op)]
    if not found:
        return graph, ()
    compiled = [op for op in found if op["format"] == "tflite" and compiler_of(str(op["op_type"]))]
    if compiled and custom != "keep":
        makers = ", ".join(dict.fromkeys(compiler_of(str(op["op_type"])) for op in compiled))
        raise UnsupportedError(
            f"{len(compiled)} of {len(graph.ops)} operators are compiled code: {_list_operators(compiled)} ({makers})",
            where=compiled[0].location,
            remedy=f"{BEFORE_COMPILER} -O custom=keep keeps the compiled operators as they are.",
            rule="compiled-for-accelerator",
        )
    foreign = [op for op in found if target is None or op["format"] != target.format]
    refused = [op for op in found if op["format"] == "tflite" or op in foreign] if custom == "refuse" else []
    if refused:
        raise UnsupportedError(
            f"{len(refused)} of {len(graph.ops)} operators are not covered: {_list_operators(refused)}",
            where=refused[0].location,
            remedy="-O custom=carry copies custom operators unchanged; a plugin can add operators (hook qconvert_operators).",
            rule="operators-not-covered",
        )
    if not foreign:
        return graph, ()
    copied = format_count(len(foreign), "custom operator", "are copied unchanged")
    said = f"warning: {copied}; only runtimes that have such operators registered run the model: {_list_operators(foreign)}"
    return graph, (Change(said, exact=True, code="custom-operator"),)


def _list_operators(ops: list[Op]) -> str:
    counts = Counter(_operator_label(op) for op in ops)
    listed = [f"{name} ({count})".replace("\n", "\\n") for name, count in counts.most_common()]
    return ", ".join(listed[:12]) + (f" and {len(listed) - 12} others" if len(listed) > 12 else "")


def _operator_label(op: Op) -> str:
    """TFLite's by their codes, those of TensorFlow with its name."""
    code = str(op["op_type"])
    if op["format"] != "tflite":
        return custom_name(op)
    flex = code.removeprefix(_FLEX)
    return f"{code} (TensorFlow's {flex}, for the Flex delegate)" if code.startswith(_FLEX) and flex[:1].isupper() else code
