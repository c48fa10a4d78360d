"""What a conversion declares of the tensors whose values or quantizations it changes: a digest for each, next to its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.graph.metadata import CHANGED, read_entries
from qconvert.graph.schema import Graph, Tensor
from qconvert.rules.changed_values import INTEGERS, float_values, zero_points


def digest(tensor: Tensor) -> str:
    """A short name of a tensor's quantization and, of a constant, its values, however they are stored; of one in blocks, which few formats
    have, its float values alone."""
    quantization = tensor.quantization
    if quantization is not None and quantization.block_size and tensor.data is not None:
        return digest(Tensor("", "float32", tensor.shape, float_values(tensor).astype(np.float32)))
    parts: list[Array] = []
    if quantization is not None:
        scale = quantization.scale.reshape(-1)
        parts.append(scale[:1] if (scale == scale[:1]).all() else scale)
    if tensor.data is not None:
        parts.append(
            tensor.steps()
            if quantization is not None and tensor.dtype in INTEGERS and not quantization.block_size
            else float_values(tensor)
        )
    elif quantization is not None:
        parts.append(zero_points(tensor, from_lowest=True))
    found = hashlib.sha256()
    for part in parts:
        found.update(np.ascontiguousarray(part.astype(np.float64 if part.dtype.kind == "f" else np.int64)).tobytes())
    return found.hexdigest()[:16]


def narrowed_names(graph: Graph, other: Graph) -> set[str]:
    """The activations that saturate at other integers of the same quantization in `other`, which changed_values() leaves out."""
    pairs = ((tensor, other[name]) for name, tensor in graph.tensors.items() if name in other.tensors and tensor.data is None)
    return {a.name for a, b in pairs if a.dtype == b.dtype and _limits(a) != _limits(b) and digest(a) == digest(b)}


def _limits(tensor: Tensor) -> tuple[int, int] | None:
    return None if tensor.quantization is None else tensor.quantization.limits(tensor.dtype)


def _names_with_limits(found: Mapping[str, object]) -> set[str]:
    """The tensors whose declared digests include limits."""
    return {name for name, wanted in found.items() if " " in str(wanted)}


def declared_changes(graph: Graph, names: Iterable[str], narrowed: Collection[str] = ()) -> dict[str, str]:
    """The digest of each tensor whose values or quantization a pass changed, as a conversion writes it next to its result. For tensors in
    `narrowed`, of which only the limits changed, the digest includes these."""
    found = {name: digest(graph[name]) for name in sorted(names) if name in graph.tensors}
    return {name: f"{text} {_limits(graph[name])}" if name in narrowed else text for name, text in found.items()}


def declared_names(graph: Graph, source: Graph | None = None) -> frozenset[str]:
    """The tensors of a result that are what its conversion declared of them.

    Args:
        graph: the result.
        source: what it is compared with: tensors that have its values and quantization are left out. An earlier conversion may have
            declared them, of which the source is the result.
    """
    found = read_entries(graph.metadata, CHANGED)
    names = [name for name, wanted in found.items() if name in graph.tensors and _has_digest(graph[name], wanted)]
    if source is None:
        return frozenset(names)
    own = declared_changes(source, names, _names_with_limits(found))
    return frozenset(name for name in names if name not in own or not _has_digest(graph[name], own[name]))


def redeclare_changes(before: Graph, after: Graph) -> Graph:
    """`after`, an equivalent form of `before`, with those declared changes of `before` that still hold there."""
    found = read_entries(before.metadata, CHANGED)
    names = [
        name for name, wanted in found.items() if name in before.tensors and name in after.tensors and _has_digest(before[name], wanted)
    ]
    if not names:
        return after
    text = json.dumps({**found, **declared_changes(after, names, _names_with_limits(found))})
    return replace(after, metadata={**after.metadata, CHANGED: text})


def _has_digest(tensor: Tensor, wanted: object) -> bool:
    """Whether a tensor has a digest, as it stands or, a matrix, transposed."""
    found = digest(tensor)
    if wanted in (found, f"{found} {_limits(tensor)}"):
        return True
    if tensor.data is None or tensor.data.ndim != 2 or (tensor.quantization is not None and tensor.quantization.block_size):
        return False
    quantization = tensor.quantization
    turned = quantization if quantization is None or quantization.axis is None else quantization.with_axis(1 - quantization.axis)
    return digest(Tensor(tensor.name, tensor.dtype, tensor.data.T.shape, tensor.data.T, turned)) == wanted
