"""carry_custom: list custom operators of a result, which no runtime runs by itself, and refuse those that cannot be carried.

Nothing is rewritten: a reader makes an Opaque of each, and a writer takes it as it is. What a vendor's compiler has made of a part of a
model (compiler_of) is no operator that another runtime could have: the part is gone, and with it the integers and scales.
"""

from __future__ import annotations

from collections import Counter

from qconvert.errors import UnsupportedError
from qconvert.graph import Graph, Op
from qconvert.operators.opaque import BEFORE_COMPILER, compiler_of, custom_name, is_custom
from qconvert.plugins import Change, PassResult, Target

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
    said = (
        f"warning: {len(foreign)} custom operators are copied unchanged and run only where they are registered: {_list_operators(foreign)}"
    )
    return graph, (Change(said.replace(" 1 custom operators are", " 1 custom operator is"), exact=True, code="custom-operator"),)


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
