"""A piece that had to be rewritten must reproduce its own file's tensors; where it does not, the file was not read as it is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.checking.checked_file import Side
from qconvert.checking.findings import Finding
from qconvert.checking.known_tensors import complete_values, keep_varying
from qconvert.checking.splitting import Splitting
from qconvert.graph import Array, Tensor
from qconvert.plugins import Inside

__all__ = ["find_reading_errors"]

#: The share of the largest value by which float results may differ: the order of a sum may be another.
_FLOAT_SHARE = 1e-5
#: Elements that may lie so near to a tie by chance, however few are expected.
_FEW = 2


def find_reading_errors(side: Side, inside: Inside, pieces: Splitting, feed: Mapping[str, Array]) -> dict[str, Finding]:
    """The tensors that the pieces do not compute as the file does, each from the file's own tensors.

    Args:
        side: the file.
        inside: the untouched file.
        pieces: those of its canonical graph.
        feed: stored inputs of the file, in its order.
    """
    own = keep_varying(side.graph, inside.values(feed))
    known = complete_values(side.graph, own)
    if not all(name in known for name in pieces.input_names):
        return {}
    found: dict[str, Finding] = {}
    writers = side.graph.producers()
    for name, again in (item for part in pieces.parts(known.__getitem__) for item in part.items() if item[0] in own):
        wrong, largest = _count_differing(own[name], again)
        rounded = name in writers and writers[name].kind == "Quantize"
        if wrong and not (rounded and largest <= 1 and wrong <= _count_float_ties(side.graph[name], own[name])):
            reason = f"reading error: what is read of {side.path.name} does not compute the file's own values"
            found[name] = Finding("unexplained", reason, 1 - wrong / max(own[name].size, 1), largest, 0.0, wrong)
    return found


def _count_float_ties(tensor: Tensor, own: Array) -> float:
    """How many elements may round to the next integer where the floats in front, of another kernel, differ by their share."""
    if tensor.quantization is None or not tensor.quantization.is_per_tensor:
        return 0.0
    steps = np.abs(own.astype(np.int64) - int(tensor.quantization.zero_point[0])).max(initial=0)
    return float(_FEW + 2 * _FLOAT_SHARE * steps * own.size)


def _count_differing(own: Array, again: Array) -> tuple[int, float]:
    """How many elements differ, and the largest difference."""
    if own.shape != again.shape or own.dtype != again.dtype:
        return own.size or 1, float("inf")
    if np.array_equal(own, again):
        return 0, 0.0
    if own.dtype.kind not in "iuf":
        wrong = int((own != again).sum())
        return wrong, float(bool(wrong))
    a, b = own.astype(np.float64), again.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    allowed = _FLOAT_SHARE * float(np.abs(a[np.isfinite(a)]).max(initial=0)) if own.dtype.kind == "f" else 0.0
    return int((~(difference <= allowed)).sum()), float(np.nan_to_num(difference, nan=np.inf).max(initial=0))
