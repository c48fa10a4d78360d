"""Names of tensors in a network and in a .gguf file, and the order of their axes.

GGUF has the summed axis innermost, one row for each output. A product x @ w of ONNX has transposed weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from qconvert.plugin import Array, Graph, InvalidModelError, Op, OptionError, UnsupportedError, map_file, quote_nearest

_LARGEST_NAMES = 2**24


def read_names(path: str) -> dict[str, str]:
    """Return the names in the file of the option `names`: name in the network -> name in the .gguf file.

    Raises:
        OptionError: it is no JSON object of texts, or a name occurs twice.
    """
    if not path:
        return {}
    data = map_file(Path(path))
    if len(data) > _LARGEST_NAMES:
        raise OptionError(f"has {len(data)} bytes; names of tensors take at most {_LARGEST_NAMES}", file=path, rule="file-too-large")
    try:
        found = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise OptionError(f"is not JSON: {error}", file=path, rule="not-json") from error
    if not isinstance(found, dict) or not all(isinstance(name, str) and name for name in found.values()):
        raise OptionError(
            "is not a JSON object of names",
            file=path,
            remedy='Write {"name in the network": "name in the .gguf file"}.',
            rule="malformed-names",
        )
    if len(set(found.values())) < len(found):
        raise OptionError("one name of the .gguf file stands for two tensors of the network", file=path, rule="duplicate-name")
    return found


def is_transposed(graph: Graph, name: str, consumers: Mapping[str, list[Op]]) -> bool:
    """Return whether the network has a matrix of weights transposed, compared with a .gguf file.

    Raises:
        UnsupportedError: operators that read the matrix sum along different axes.
    """
    ways = set(_find_orientations(graph, name, consumers))
    if len(ways) > 1:
        raise UnsupportedError(
            "the weights are read by operators that sum along different axes; a .gguf file requires one order of axes",
            where=repr(name),
            rule="contradicting-orders",
        )
    return ways.pop() if ways else False


def _find_orientations(graph: Graph, name: str, consumers: Mapping[str, list[Op]]) -> Iterator[bool]:
    """Yield for each operator that reads a tensor whether it sums along the last axis but one."""
    for op in consumers.get(name, []):
        if op.kind in ("Dequantize", "Identity", "Cast"):
            yield from _find_orientations(graph, op.outputs[0], consumers)
        elif op.kind == "Transpose" and len(op["perm"]) > 1 and tuple(op["perm"]) == swap_last_axes(tuple(range(len(op["perm"])))):
            yield from (not way for way in _find_orientations(graph, op.outputs[0], consumers))
        elif op.kind == "MatMul" and len(graph[name].shape or ()) > 1:
            yield (not op["trans_b"]) if op.inputs[1] == name else bool(op["trans_a"])
        else:
            yield False


def order_of_heads(count: int, heads: int) -> Array:
    """Return the order in which llama.cpp has the rows of queries and keys: the two halves of a head alternate (LlamaModel.permute)."""
    return np.arange(count).reshape(heads, 2, count // heads // 2).swapaxes(1, 2).reshape(-1)


def swap_last_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape, or an order of axes, with the last two swapped."""
    return (*shape[:-2], shape[-1], shape[-2])


def require_known(stated: Mapping[str, str], graph: Graph, stored: list[str], path: str) -> None:
    """Raise InvalidModelError for names that neither the network nor the .gguf file has."""
    lost = [name for name in stated if name not in graph.tensors or not graph[name].is_constant]
    if lost:
        constants = [tensor.name for tensor in graph.constants()]
        raise InvalidModelError(
            f"the network has no weights of these names: {quote_nearest(lost, constants)}", file=path, rule="unknown-tensor"
        )
    missing = [name for name in stated.values() if name not in stored]
    if missing:
        raise InvalidModelError(
            f"the .gguf file has no tensors of these names: {quote_nearest(missing, stored)}", file=path, rule="unknown-tensor"
        )
