"""Random inputs of a graph, within what its operators take."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import ceil, floor, inf, isfinite

import numpy as np

from qconvert.data.bounds import Bounds, Number, input_bounds
from qconvert.data.sizes import number_of, sizes_to_try
from qconvert.errors import OptionError, RuntimeRefusedError
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range, numpy_dtype

__all__ = ["accepted_inputs", "random_inputs"]

#: Plain integers go up to this where no bound is known, unless the source refuses them.
_LARGEST = 8
#: Quantized integers of 32 bits are this many steps from zero at most: sums of them have to fit 32 bits too.
_MOST_STEPS = 2**15
#: Lengths up to this begin at 1, longer ones at half of the longest: windows have to fit.
_SHORT = 64
#: How plain integers are called that say how many of another input's elements count.
_LENGTH = re.compile(r"length|seq_?lens?|(^|[^a-z])lens?([^a-z]|$)")
#: NPY_MAXDIMS of numpy 1 and 2.
_MOST_DIMENSIONS = 32 if np.__version__.startswith("1.") else 64
#: So many sets of inputs are made; they are all in memory.
_MOST = 1_000_000
_SHAPELESS = "Use --data, or --input-shape for a PyTorch file."
_BYTES = {"int2", "uint2", "int4", "uint4", "int8", "uint8"}
_INTEGERS = {*_BYTES, "int16", "uint16", "int32", "uint32", "int64", "uint64"}


def random_inputs(
    graph: Graph, samples: int, seed: int, *, sizes: Mapping[str, int] | None = None, largest: int = _LARGEST
) -> list[dict[str, Array]]:
    """`samples` sets of inputs: quantized integers over the whole range of their type, others from 0; floats from -1 to 1, or from a
    normal distribution over the range of the Quantize that reads them; all within the bounds that operators set (see bounds.py).

    Of masks, booleans or integers that are called so, the first element of each row is set, so that no row is masked out.

    Args:
        graph: the source.
        samples: how many sets.
        seed: of the random numbers.
        sizes: a number for each name of a size that is known only when the model runs; without, the likeliest (see sizes.py).
        largest: bound of plain integers that no operator bounds. Below its default it holds for bounded ones too.

    Returns: for each sample, stored values by input name.

    Raises:
        OptionError: an input's shape is not known, there are no random values of its type, or nobody could wait for so many.
        RuntimeRefusedError: numpy has no arrays of so many dimensions.
    """
    if seed < 0:
        raise OptionError(f"the seed is {seed}, and seeds are 0 or more")
    if samples > _MOST:
        raise OptionError(f"{samples} random inputs are more than {_MOST:,}", remedy="Ask for fewer samples.")
    rng, number = np.random.default_rng(seed), number_of(sizes_to_try(graph)[0] if sizes is None else sizes)
    readers, bounds = graph.consumers(), input_bounds(graph, number)
    ranges = {name: _range(graph, readers.get(name, [])) for name in graph.inputs}
    limits = {name: _named(graph, name, bounds.get(name), number) for name in graph.inputs}
    return [{name: _random(graph[name], rng, ranges[name], limits[name], largest, number) for name in graph.inputs} for _ in range(samples)]


def accepted_inputs(
    graph: Graph, samples: int, seed: int, run: Callable[[Mapping[str, Array]], dict[str, Array]], who: str = "the source"
) -> tuple[list[dict[str, Array]], list[dict[str, Array]], str]:
    """Random inputs that the source takes, what it computes from them, and, in words, what had to be chosen otherwise.

    A model may refuse indices that are too large, or sizes that are too small for its windows: plain integers are halved down to 0, then
    other sizes are tried. These are tried too where a result is no number (NaN), as the deviation of a single value; if none helps, the
    first inputs that the model takes are.

    Args:
        graph, samples, seed: as in random_inputs().
        run: runs the source.
        who: what it is that may refuse inputs, in words.

    Raises:
        RuntimeRefusedError: the source refuses all of them; this is what it said first.
    """
    plain = any(_is_plain(graph[name]) for name in graph.inputs)
    refusal: RuntimeRefusedError | None = None
    tried, doubtful = sizes_to_try(graph), list[tuple[Mapping[str, int], int]]()
    for sizes in tried:
        for largest in _halves(_LARGEST) if plain else (_LARGEST,):
            try:
                found = _run(graph, samples, seed, sizes, largest, run)
            except RuntimeRefusedError as error:
                refusal = refusal or error
                continue
            if isinstance(found, tuple):
                return *found, _chosen(sizes, largest, f"{who} gives NaN with" if doubtful else f"{who} refuses", tried)
            doubtful.append((sizes, largest))
            break
    if doubtful:
        found = _run(graph, samples, seed, *doubtful[0], run, always=True)
        assert found is not None
        return *found, _chosen(*doubtful[0], f"{who} refuses", tried)
    assert refusal is not None
    raise refusal


_Runs = tuple[list[dict[str, Array]], list[dict[str, Array]]]


def _run(
    graph: Graph, samples: int, seed: int, sizes: Mapping[str, int], largest: int,
    run: Callable[[Mapping[str, Array]], dict[str, Array]], always: bool = False,
) -> _Runs | None:  # fmt: skip
    """Random inputs and what the source computes from them; None if part of that is no number, unless they are taken `always`."""
    feeds, computed = random_inputs(graph, samples, seed, sizes=sizes, largest=largest), []
    for feed in feeds:
        computed.append(run(feed))
        if not always and any(value.dtype.kind == "f" and np.isnan(value).any() for value in computed[-1].values()):
            return None
    return feeds, computed


def _chosen(sizes: Mapping[str, int], largest: int, refuses: str, tried: list[dict[str, int]]) -> str:
    """In words, what had to be chosen otherwise than first, and who does what with others."""
    notes = [f"integer inputs are at most {largest}"] * (largest < _LARGEST)
    chosen = ", ".join(f"{name} {size}" for name, size in sizes.items())
    notes += [f"sizes known only at run time are {chosen}"] * (sizes != tried[0])
    return f"{' and '.join(notes)}: {refuses} others" if notes else ""


def _halves(number: int) -> list[int]:
    """The number, its half, and so on down to 0."""
    return [number] if not number else [number, *_halves(number // 2)]


def _is_plain(tensor: Tensor) -> bool:
    """Integers that are no data: bytes are data even where the graph does not know their scale, as before an operator that carries them."""
    return tensor.dtype in _INTEGERS and not tensor.is_quantized and tensor.dtype not in _BYTES


def _range(graph: Graph, readers: list[Op]) -> Bounds | None:
    """The real range of the Quantize that reads an input, if one does."""
    for op in (op for op in readers if op.kind == "Quantize"):
        tensor = graph[op.outputs[0]]
        if tensor.quantization is not None and tensor.dtype in _INTEGERS:
            scale, zero_point = float(tensor.quantization.scale.flat[0]), int(tensor.quantization.zero_point.flat[0])
            low, high = integer_range(tensor.dtype)
            return (low - zero_point) * scale, (high - zero_point) * scale
    return None


def _named(graph: Graph, name: str, bounds: Bounds | None, number: Number) -> Bounds | None:
    """The bounds of an input: of plain integers that are called length the sizes of other inputs, of those called mask 0 and 1, where
    operators set none."""
    words = name.lower()
    if not _is_plain(graph[name]):
        return bounds
    if _LENGTH.search(words):
        sizes = [number(shape[1]) for other in graph.inputs if other != name and len(shape := graph[other].shape or ()) > 1]
        longest = max(sizes, default=1)
        shortest = 1 if longest <= _SHORT else longest // 2
        low, high = bounds or (-inf, inf)
        return (max(shortest, low), min(longest, high)) if low <= longest and high >= shortest else bounds
    return (0, 1) if bounds is None and "mask" in words else bounds


def _random(tensor: Tensor, rng: np.random.Generator, real: Bounds | None, bounds: Bounds | None, largest: int, number: Number) -> Array:
    if tensor.shape is None:
        raise OptionError("its shape is not known, so no random input can be made", where=f"input {tensor.name!r}", remedy=_SHAPELESS)
    shape, dtype = tuple(map(number, tensor.shape)), tensor.dtype
    if len(shape) > _MOST_DIMENSIONS:
        reason = f"the input {tensor.name!r} has {len(shape)} dimensions; arrays of numpy have at most {_MOST_DIMENSIONS}"
        raise RuntimeRefusedError(reason, remedy="Give the model an input of fewer dimensions.")
    if dtype == "bool":
        return _not_all_masked(rng.integers(0, 2, shape)).astype(bool)
    if dtype in _INTEGERS:
        found = rng.integers(*_integers(tensor, bounds, largest), shape, endpoint=True, dtype=np.int64)
        masks = _is_plain(tensor) and "mask" in tensor.name.lower()
        return (_not_all_masked(found) if masks else found).astype(numpy_dtype(dtype))
    if "float" not in dtype:
        raise OptionError(f"there are no random inputs of type {dtype}", where=f"input {tensor.name!r}", remedy="Use --data.")
    return _floats(rng, shape, real, bounds).astype(numpy_dtype(dtype))


def _integers(tensor: Tensor, bounds: Bounds | None, largest: int) -> tuple[int, int]:
    """The smallest and the largest integer of an input."""
    low, high = integer_range("int64" if tensor.dtype == "uint64" else tensor.dtype)
    if tensor.quantization is not None:
        low, high = max(low, -_MOST_STEPS), min(high, _MOST_STEPS)
        return _on_grid(tensor.quantization, bounds, low, high) if bounds is not None and tensor.quantization.is_per_tensor else (low, high)
    if not _is_plain(tensor) and bounds is None:
        return low, high
    lowest, highest = bounds or (-inf, inf)
    low = max(low, ceil(lowest)) if isfinite(lowest) and lowest > 0 else 0
    limit = floor(highest) if isfinite(highest) and largest == _LARGEST else min(largest, highest)
    return low, max(low, min(high, int(limit)))


def _on_grid(grid: Quantization, bounds: Bounds, low: int, high: int) -> tuple[int, int]:
    """The stored integers from `low` to `high` whose real values are within bounds; all, if there are none."""
    scale, zero_point = float(grid.scale[0]), int(grid.zero_point[0])
    least = max(low, ceil(bounds[0] / scale) + zero_point) if isfinite(bounds[0]) else low
    most = min(high, floor(bounds[1] / scale) + zero_point) if isfinite(bounds[1]) else high
    return (least, most) if least <= most else (low, high)


def _floats(rng: np.random.Generator, shape: tuple[int, ...], real: Bounds | None, bounds: Bounds | None) -> Array:
    # Five standard deviations span the range: 1.2% of the values saturate.
    found = rng.uniform(-1, 1, shape) if real is None else rng.normal(sum(real) / 2, (real[1] - real[0]) / 5, shape)
    if bounds is None:
        return found
    low, high = bounds
    if isfinite(low) and isfinite(high) and real is None:
        return np.asarray(rng.uniform(low, high, shape))
    span = real or (-1.0, 1.0)
    lowest, highest = max(low, min(span[0], high)), min(high, max(span[1], low + 1))
    return np.asarray(np.where((found < low) | (found > high), rng.uniform(lowest, highest, shape), found))


def _not_all_masked(values: Array) -> Array:
    """With the first element of each row 1."""
    if values.ndim and values.shape[-1] > 1:
        values[..., 0] = 1
    return values
