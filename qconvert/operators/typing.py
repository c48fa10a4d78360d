"""Which storage types go together at an operator, from the words in which its kind says them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from qconvert.graph.schema import Op, Tensor
from qconvert.operators.kind import Broken, Kind

__all__ = ["input_type", "type_problems"]

#: Types of positions and counts.
_INDEX = ("int32", "int64")


def input_type(kind: Kind, index: int) -> str:
    """The word of Kind.types for input `index`; "" where it says nothing."""
    words = kind.types.split("->")[0].split()
    return words[min(index, len(words) - 1)] if words else ""


def type_problems(kind: Kind, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> Iterator[Broken]:
    """What is wrong with the types of an operator's tensors.

    Words of Kind.types stand for one tensor each, the last of a side for all further ones: a type; "any"; "index", int32 or int64;
    "@to", the type that the attribute `to` names; a capital letter, one type for all tensors under it. Where floats are
    compared (the rule "index"), quantized ones may have any type, and be compared with float32.

    Args:
        kind: of the operator.
        op: the operator.
        inputs, outputs: its tensors, None for an absent one. Nothing is said of a type that is not known.
    """
    if not kind.types:
        return
    same: dict[str, list[Tensor]] = {}
    for words, tensors in zip(kind.types.split("->"), (inputs, outputs), strict=True):
        listed = words.split()
        for index, tensor in enumerate(tensors):
            if tensor is None or tensor.dtype == "unknown":
                continue
            word = listed[min(index, len(listed) - 1)]
            if len(word) == 1:
                same.setdefault(word, []).append(tensor)
                continue
            wanted = _INDEX if word == "index" else (str(op[word[1:]]),) if word.startswith("@") else (word,)
            if word != "any" and tensor.dtype not in wanted:
                yield "type-mismatch", f"has {tensor.name!r} of {tensor.dtype}, not {' or '.join(wanted)}"
    for group in same.values():
        plain = [tensor for tensor in group if not tensor.is_quantized or kind.rule != "index"]
        for first, other in pairwise(plain):
            if first.dtype != other.dtype:
                yield "type-mismatch", f"has {first.name!r} of {first.dtype} and {other.name!r} of {other.dtype}, which must have one type"
        if 0 < len(plain) < len(group) and plain[0].dtype != "float32":
            yield "float-type", f"has {plain[0].name!r} of plain {plain[0].dtype} with quantized operands; it must be float32"
