"""Scales in MNN's files: which tensor or operand of a model has one, and the int8 quantization that it states."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from qconvert.arithmetic.storage import integer_range
from qconvert.encodings import Encoding, Place, QParams
from qconvert.errors import InvalidModelError
from qconvert.formats.mnn.network import TYPES, Node
from qconvert.graph import Quantization

#: After the name of the result of a matrix product that became a convolution.
MATMUL = "__matmul_converted"
_BEFORE = "__before_tr"
_LAYOUT = "___tr4"
_GROUP = re.compile(r"(.+)__group__\d+", re.DOTALL)
_PART = re.compile(r".+(___(input|output)___\d+|_____slice)", re.DOTALL)
_MOVES = frozenset(("ConvertTensor", "Flatten", "Permute", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
_MADE = re.compile(rf"({'|'.join(sorted(set(TYPES.values()), key=len, reverse=True))})\d+")


def group_of(name: str) -> str:
    """The convolution that an operator is one group of; "" if it is none."""
    match = _GROUP.fullmatch(name)
    return match[1] if match else ""


def model_name(name: str) -> str:
    """The name that a model has for a result."""
    return name.removesuffix(_BEFORE).removesuffix(MATMUL)


def is_own_name(name: str) -> bool:
    """Whether a tensor or operator of this name is MNN's own, by the look of it."""
    return not name or _LAYOUT in name or any(pattern.fullmatch(name) for pattern in (_MADE, _GROUP, _PART))


def is_packing(name: str) -> bool:
    """Whether a change of layout that gives a tensor of this name packs by channels; the others undo it."""
    return _LAYOUT in name


def is_own(node: Node) -> bool:
    """Whether an operator is one that MNN added."""
    return node.type == "ConvertTensor" or is_own_name(node.name)


def _is_data_movement(node: Node) -> bool:
    """Whether an operator of MNN's own gives the values that it gets."""
    return _LAYOUT in node.name or (node.type or node.name.rstrip("0123456789")) in _MOVES


def find_misnamed(nodes: Sequence[Node], names: Sequence[str]) -> frozenset[int]:
    """The tensors that have the name of another operator's result: when MNN puts a Reshape after other operators, operators and tensors
    keep their names."""
    operators = {model_name(node.name) for node in nodes}
    return frozenset(
        index
        for node in nodes
        for index in node.outputs
        if len(node.outputs) == 1 and model_name(node.name) != model_name(names[index]) and model_name(names[index]) in operators
    )


def place_encodings(
    nodes: Sequence[Node], names: Sequence[str] | None, quantizations: Mapping[int, QParams], origin: str
) -> dict[Place, Encoding]:
    """Entries for the tensors that have a quantization.

    Args:
        nodes: the operators of MNN's network, in order.
        names: of tensors, by index, "" for one that has none; None where the file names operators alone.
        quantizations: index of a tensor -> its quantization.
        origin: for the entries.

    Raises:
        InvalidModelError: two tensors of one name have different quantizations.
    """
    makers = {index: node for node in nodes for index in node.outputs}
    found: dict[Place, Encoding] = {}
    exact: set[Place] = set()
    for place, quantization, is_exact in (*_results(makers, names, quantizations), *_operands(nodes, makers, names, quantizations)):
        known = found.get(place)
        if known is not None and known.qparams != quantization and (is_exact == (place in exact)):
            raise InvalidModelError("two tensors of this name have different scales", where=str(place), rule="contradicting-scales")
        if known is None or (is_exact and place not in exact):
            found[place] = Encoding(quantization, origin=origin, required=not is_own_name(place.name))
        if is_exact:
            exact.add(place)
    return found


def _results(
    makers: Mapping[int, Node], names: Sequence[str] | None, quantizations: Mapping[int, QParams]
) -> Iterator[tuple[Place, QParams, bool]]:
    """(place, quantization, whether the name is the file's own) of results that a model has too."""
    for index, quantization in quantizations.items():
        node = makers.get(index)
        if node is None or is_own(node):
            continue
        name = node.name if names is None else names[index]
        if not name or is_own_name(name):
            continue
        place = Place(model_name(name), "output", node.outputs.index(index)) if names is None else Place(model_name(name))
        yield place, quantization, model_name(name) == name


def _operands(
    nodes: Sequence[Node], makers: Mapping[int, Node], names: Sequence[str] | None, quantizations: Mapping[int, QParams]
) -> Iterator[tuple[Place, QParams, bool]]:
    """The same of operands that MNN's own operators pass on to the model's with another quantization than their source."""
    parted = {node.name.removesuffix(MATMUL) for node in nodes if node.name.endswith(MATMUL)} | {group_of(node.name) for node in nodes}
    for node in nodes:
        if is_own(node) or not node.outputs or node.name in parted:  # which puts together what others computed
            continue
        name = node.name if names is None else names[node.outputs[0]]
        for position, index in enumerate(node.inputs):
            quantization, maker = quantizations.get(index), makers.get(index)
            nameless = names is not None and not names[index]
            if quantization is None or not name or is_own_name(name) or not (nameless or maker is None or is_own(maker)):
                continue
            start = _find_source(index, makers)
            if nameless or (start is not None and quantizations.get(start) != quantization):
                yield Place(model_name(name), "input", position), quantization, model_name(name) == name


def _find_source(index: int, makers: Mapping[int, Node]) -> int | None:
    """The tensor whose values MNN's own operators copy: one of the model, or -1 if the file states no input; None if they compute."""
    seen: set[int] = set()
    while (maker := makers.get(index)) is not None and is_own(maker):
        if index in seen or not _is_data_movement(maker):
            return None
        seen.add(index)
        if not maker.inputs:  # dumps leave inputs out
            return -1
        index = maker.inputs[0]
    return index


def activation_quantization(
    scales: Sequence[float], zero_point: float, where: str, limits: tuple[float, float] = (-128, 127), *, dtype: str = "int8"
) -> QParams:
    """The quantization of an activation.

    Args:
        scales: one, or one for each channel.
        zero_point: of all.
        where: the place in the file, for the error.
        limits: the smallest and largest integer that is used.
        dtype: of the integers.

    Raises:
        InvalidModelError: a scale is no positive number of float32, the zero point or a limit is no integer of the type, or the limits
            are the wrong way round.
    """
    with np.errstate(all="ignore"):
        scale = np.array(scales, np.float64).astype(np.float32)
    if bad := [stated for stated, kept in zip(scales, scale.tolist(), strict=True) if not (np.isfinite(kept) and kept > 0)]:
        raise InvalidModelError(f"the scale is {bad[0]}; MNN requires a positive, finite float32", where=where, rule="scale-not-positive")
    low, high = integer_range(dtype)
    if zero_point != int(zero_point if np.isfinite(zero_point) else 0) or not low <= zero_point <= high:
        raise InvalidModelError(
            f"the zero point is {zero_point}; MNN requires an integer of {dtype}", where=where, rule="zero-point-outside-type"
        )
    if not (low <= limits[0] < limits[1] <= high) or any(limit != int(limit) for limit in limits):
        raise InvalidModelError(
            f"the integers run from {limits[0]} to {limits[1]}, which is not a range within {dtype}",
            where=where,
            rule="limits-outside-type",
        )
    zero_points = np.full(scale.shape, int(zero_point), np.int64)
    return QParams(dtype, Quantization(scale, zero_points, None if scale.size == 1 else 1).with_limits(dtype, *limits))
