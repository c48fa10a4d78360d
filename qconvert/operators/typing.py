"""Which storage types go together at an operator, from the words in which its kind says them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from qconvert.arithmetic.storage import DTYPES
from qconvert.graph.schema import Op, Tensor
from qconvert.operators.kind import Broken, Kind

#: Types of positions and counts.
_INDEX = ("int32", "int64")


def input_type(kind: Kind, index: int) -> str:
    """The word of Kind.types for input `index`; "" where it says nothing."""
    return _pick_word(kind.types.partition("->")[0], index)


def output_type(kind: Kind, index: int) -> str:
    """The word of Kind.types for output `index`; "" where it says nothing."""
    return _pick_word(kind.types.partition("->")[2], index)


def stated_output_type(kind: Kind, attributes: Mapping[str, Any], index: int) -> str:
    """Return the type that a kind says of output `index`, indices being int64; "" if it is that of the data."""
    word = output_type(kind, index)
    if word.startswith("@"):
        return str(attributes[word[1:]])
    return "int64" if word == "index" else word if word in DTYPES else ""


def _pick_word(words: str, index: int) -> str:
    """Return the word for a tensor of one side, of which the last word stands for all further ones."""
    listed = words.split()
    return listed[min(index, len(listed) - 1)] if listed else ""


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
        for index, tensor in enumerate(tensors):
            if tensor is None or tensor.dtype == "unknown":
                continue
            word = _pick_word(words, index)
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
