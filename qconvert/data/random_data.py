"""Random inputs of a graph, within what its operators take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from math import ceil, floor, inf, isfinite
from types import MappingProxyType

import numpy as np

from qconvert.data.input_limits import input_bounds, number_of, other_sizes, sizes_to_try
from qconvert.errors import OptionError, RuntimeRefusedError
from qconvert.graph import Array, Arrays, Graph, Op, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.operators import kind_of
from qconvert.operators.properties import Interval, Number, hull

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
#: A limit that is none.
_HUGE = 1e9
#: By what share of its span a float input goes beyond the range onto which it is quantized.
_BEYOND = 0.125
_SHAPELESS = "Use --data, or --input-shape for a PyTorch file."
_BYTES = {"int2", "uint2", "int4", "uint4", "int8", "uint8"}
_INTEGERS = {*_BYTES, "int16", "uint16", "int32", "uint32", "int64", "uint64"}


def random_inputs(
    graph: Graph, samples: int, seed: int, *, sizes: Mapping[str, int] | None = None, largest: int = _LARGEST
) -> list[dict[str, Array]]:
    """`samples` sets of inputs: quantized integers over the whole range of their type, others from 0; floats from -1 to 1, or from a
    normal distribution over the range of the Quantize that reads them; all within the bounds that operators set (see input_limits.py).

    Of masks, booleans or integers that are called so, the first element of each row is set, so that no row is masked out.

    Args:
        graph: the source.
        samples: how many sets.
        seed: of the random numbers.
        sizes: a number for each name of a size that is known only when the model runs; without, the most likely (see sizes.py).
        largest: bound of plain integers that no operator bounds. Below its default it holds for bounded ones too.

    Returns: for each sample, stored values by input name.

    Raises:
        OptionError: an input's shape is not known, there are no random values of its type, or nobody could wait for so many.
        RuntimeRefusedError: numpy has no arrays of so many dimensions.
    """
    if seed < 0:
        raise OptionError(f"the seed is {seed}; it must be at least 0", rule="number-out-of-range")
    if samples > _MOST:
        raise OptionError(
            f"{samples} random inputs are more than the maximum, {_MOST:,}", remedy="Ask for fewer samples.", rule="too-many-samples"
        )
    rng, number = np.random.default_rng(seed), number_of(sizes_to_try(graph)[0] if sizes is None else sizes)
    readers, bounds = graph.consumers(), input_bounds(graph, number)
    ranges = {name: _range(graph, readers.get(name, [])) for name in graph.inputs}
    limits = {name: _bounds_by_name(graph, name, bounds.get(name), number) for name in graph.inputs}
    return [{name: _random(graph[name], rng, ranges[name], limits[name], largest, number) for name in graph.inputs} for _ in range(samples)]


def accepted_inputs(
    graph: Graph, samples: int, seed: int, run: Callable[[Arrays], dict[str, Array]], who: str = "the source"
) -> tuple[list[dict[str, Array]], list[dict[str, Array]], str]:
    """Random inputs that the source takes, its results for them, and a note on sizes or values that are not the first choice.

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
                return *found, _choice_note(sizes, largest, f"{who} returns NaN with" if doubtful else f"{who} refuses", tried)
            doubtful.append((sizes, largest))
            break
    if doubtful:
        found = _run(graph, samples, seed, *doubtful[0], run, always=True)
        assert found is not None
        return *found, _choice_note(*doubtful[0], f"{who} refuses", tried)
    assert refusal is not None
    raise refusal


def extreme_inputs(
    graph: Graph, like: Arrays, seed: int, within: Mapping[str, Interval] = MappingProxyType({})
) -> Iterator[dict[str, Array]]:
    """Sets of inputs over their whole ranges and at the ends of these, each made when it is asked for: each element anywhere, all at the
    lower end, all at the upper one, each element at one of both, each input at one of both (twice), flat at a value between, and few
    elements at one end among others at the other one (both ways), since only there does one element alone have nearly all of a Softmax.

    Quantized integers and bytes have the ends of their type, floats go beyond those of the Quantize that reads them, both within the
    bounds that operators set (see input_limits.py). Random inputs hardly come near these bounds, nor does a sum of many random values come
    near its own.

    Args:
        graph: the inputs' graph.
        like: a set of inputs, whose shapes all have, and the values of those without a range.
        seed: of the random numbers.
        within: further bounds in float, by the input's name.
    """
    rng, ends = np.random.default_rng(seed), _ends_of_inputs(graph, within)
    if not ends:
        return

    def values(choose: Callable[[float, float, tuple[int, ...]], Array]) -> dict[str, Array]:
        return {name: choose(*ends[name], value.shape).astype(value.dtype) if name in ends else value for name, value in like.items()}

    def fill_between(low: float, high: float, shape: tuple[int, ...]) -> Array:
        middle = rng.uniform(low, high)
        return np.full(shape, middle if isinstance(low, float) else round(middle))

    def anywhere(low: float, high: float, shape: tuple[int, ...]) -> Array:
        return rng.uniform(low, high, shape) if isinstance(low, float) else rng.integers(low, high, shape, endpoint=True)

    def either(low: float, high: float, shape: tuple[int, ...]) -> Array:
        return np.full(shape, (low, high)[int(rng.integers(2))])

    def few(one: float, others: float, shape: tuple[int, ...]) -> Array:
        size, found = int(np.prod(shape)), np.full(shape, others)
        found.flat[rng.choice(size, size // max((1, *shape)), replace=False)] = one
        return found

    yield values(anywhere)
    yield values(lambda low, high, shape: np.full(shape, low))
    yield values(lambda low, high, shape: np.full(shape, high))
    yield values(lambda low, high, shape: np.where(rng.integers(0, 2, shape) == 1, high, low))
    yield values(either)
    yield values(either)
    yield values(fill_between)
    yield values(lambda low, high, shape: few(high, low, shape))
    yield values(lambda low, high, shape: few(low, high, shape))


def zero_inputs(graph: Graph, like: Arrays) -> dict[str, Array]:
    """Return inputs that stand for zero, or for the nearest value within the bounds of operators.

    Args:
        graph: the inputs' graph.
        like: a set of inputs: the shapes of all, and the values of those whose type has no zero.
    """
    ends = _ends_of_inputs(graph, {})
    return {name: _zeros(graph[name], ends.get(name), value) for name, value in like.items()}


def _zeros(tensor: Tensor, ends: tuple[float, float] | None, like: Array) -> Array:
    if (tensor.quantization is not None and not tensor.quantization.is_per_tensor) or _is_plain(tensor):
        return like
    zero = 0 if tensor.quantization is None else tensor.quantization.point
    return np.full_like(like, zero if ends is None else np.clip(zero, *ends))


def _ends_of_inputs(graph: Graph, within: Mapping[str, Interval]) -> dict[str, tuple[float, float]]:
    """Return the smallest and the largest value of each input that has such; see extreme_inputs()."""
    readers, bounds, ends = graph.consumers(), input_bounds(graph, number_of({})), {}
    for name in graph.inputs:
        found = _ends(graph[name], _range_after(graph, readers, name), _intersect(bounds.get(name), within.get(name)))
        if found is not None:
            ends[name] = found
    return ends


def inputs_of_other_sizes(graph: Graph, like: Arrays, seed: int) -> list[dict[str, Array]]:
    """A random set of inputs for each of the sizes 1, 2 and a larger one that is no power of two, where sizes are known only when the
    model runs; see sizes.other_sizes(). `like` is a set of inputs, whose own sizes are left out."""
    shapes = {name: like[name].shape for name in graph.inputs}
    return [random_inputs(graph, 1, seed, sizes=sizes)[0] for sizes in other_sizes(graph, shapes)]


def _intersect(a: Interval | None, b: Interval | None) -> Interval | None:
    """Bounds within both; those of `a` where nothing is."""
    if a is None or b is None:
        return a or b
    both = max(a[0], b[0]), min(a[1], b[1])
    return both if both[0] <= both[1] else a


def _ends(tensor: Tensor, real: Interval | None, bounds: Interval | None) -> tuple[float, float] | None:
    """The smallest and the largest stored value of an input; None where it has none: plain integers, and floats that nothing limits."""
    if tensor.dtype in _INTEGERS and not _is_plain(tensor):
        if tensor.quantization is not None and not tensor.quantization.is_per_tensor:
            return None
        return _integers(tensor, bounds, _LARGEST)
    low, high = bounds or (-inf, inf)
    if real is not None:
        beyond = _BEYOND * (real[1] - real[0])
        low, high = max(real[0] - beyond, low), min(real[1] + beyond, high)
    return (float(low), float(high)) if "float" in tensor.dtype and isfinite(low) and isfinite(high) and low <= high else None


_Runs = tuple[list[dict[str, Array]], list[dict[str, Array]]]


def _run(
    graph: Graph, samples: int, seed: int, sizes: Mapping[str, int], largest: int,
    run: Callable[[Arrays], dict[str, Array]], always: bool = False,
) -> _Runs | None:  # fmt: skip
    """Random inputs and what the source computes from them; None if part of that is no number, unless they are taken `always`."""
    feeds, computed = random_inputs(graph, samples, seed, sizes=sizes, largest=largest), []
    for feed in feeds:
        computed.append(run(feed))
        if not always and any(value.dtype.kind == "f" and np.isnan(value).any() for value in computed[-1].values()):
            return None
    return feeds, computed


def _choice_note(sizes: Mapping[str, int], largest: int, refuses: str, tried: list[dict[str, int]]) -> str:
    """Return a note on sizes or values that are not the first choice, and on who refuses the first."""
    notes = [f"integer inputs are at most {largest}"] * (largest < _LARGEST)
    chosen = ", ".join(f"{name} {size}" for name, size in sizes.items())
    notes += [f"dynamic dimensions are {chosen}"] * (sizes != tried[0])
    return f"{' and '.join(notes)}: {refuses} others" if notes else ""


def _halves(number: int) -> list[int]:
    """The number, its half, and so on down to 0."""
    return [number] if not number else [number, *_halves(number // 2)]


def _is_plain(tensor: Tensor) -> bool:
    """Integers that are no data: bytes are data even where the graph does not know their scale, as before an operator that carries them."""
    return tensor.dtype in _INTEGERS and not tensor.is_quantized and tensor.dtype not in _BYTES


def _range(graph: Graph, readers: list[Op]) -> Interval | None:
    """The real range of the Quantize that reads an input, if one does."""
    for op in (op for op in readers if kind_of(op).quantizes):
        tensor = graph[op.outputs[0]]
        if tensor.quantization is not None and tensor.dtype in _INTEGERS:
            scale, zero_point = tensor.quantization.step, tensor.quantization.point
            low, high = integer_range(tensor.dtype)
            return (low - zero_point) * scale, (high - zero_point) * scale
    return None


def _range_after(graph: Graph, readers: Mapping[str, list[Op]], name: str) -> Interval | None:
    """The real range onto which a tensor is rounded, clipped or cast by what reads it, perhaps after it is moved; the widest of several."""
    found = [] if (own := _range(graph, readers.get(name, []))) is None else [own]
    for op in readers.get(name, []):
        kind = kind_of(op)
        if kind.nearby and (dtype := graph[op.outputs[0]].dtype) in _INTEGERS and dtype not in ("int64", "uint64"):
            found.append(integer_range(dtype))
        elif kind.clips and (limits := [graph.constant(item) for item in op.inputs[1:] if item]):
            ends = [
                float(item.reshape(-1)[0]) for item in limits if item is not None and item.size and abs(float(item.reshape(-1)[0])) < _HUGE
            ]
            found += [(min(ends) - 1, max(ends) + 1)] if ends else []
        if kind.rule == "move" or kind.clips or kind.nearby or kind.chooses:
            found += [range_ for item in op.outputs if (range_ := _range_after(graph, readers, item)) is not None]
    return hull(found) if found else None


def _bounds_by_name(graph: Graph, name: str, bounds: Interval | None, number: Number) -> Interval | None:
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


def _random(
    tensor: Tensor, rng: np.random.Generator, real: Interval | None, bounds: Interval | None, largest: int, number: Number
) -> Array:
    if tensor.shape is None:
        raise OptionError(
            "its shape is not known, so that no random input can be made",
            where=f"input {tensor.name!r}",
            remedy=_SHAPELESS,
            rule="unknown-shape",
        )
    shape, dtype = tuple(map(number, tensor.shape)), tensor.dtype
    if len(shape) > _MOST_DIMENSIONS:
        reason = f"the input {tensor.name!r} has {len(shape)} dimensions; NumPy requires at most {_MOST_DIMENSIONS}"
        raise RuntimeRefusedError(reason, remedy="Give the model an input of fewer dimensions.", rule="too-many-dimensions")
    if dtype == "bool":
        return _unmask_first(rng.integers(0, 2, shape)).astype(bool)
    if dtype in _INTEGERS:
        found = rng.integers(*_integers(tensor, bounds, largest), shape, endpoint=True, dtype=np.int64)
        masks = _is_plain(tensor) and "mask" in tensor.name.lower()
        return (_unmask_first(found) if masks else found).astype(numpy_dtype(dtype))
    if "float" not in dtype:
        raise OptionError(
            f"its type is {dtype}, for which no random inputs can be made",
            where=f"input {tensor.name!r}",
            remedy="Use --data.",
            rule="type-without-random",
        )
    return _floats(rng, shape, real, bounds).astype(numpy_dtype(dtype))


def _integers(tensor: Tensor, bounds: Interval | None, largest: int) -> tuple[int, int]:
    """The smallest and the largest integer of an input."""
    low, high = integer_range("int64" if tensor.dtype == "uint64" else tensor.dtype)
    if tensor.quantization is not None:
        low, high = max(low, -_MOST_STEPS), min(high, _MOST_STEPS)
        return (
            _on_quantization(tensor.quantization, bounds, low, high)
            if bounds is not None and tensor.quantization.is_per_tensor
            else (low, high)
        )
    if not _is_plain(tensor) and bounds is None:
        return low, high
    lowest, highest = bounds or (-inf, inf)
    low = max(low, ceil(lowest)) if isfinite(lowest) and lowest > 0 else 0
    limit = floor(highest) if isfinite(highest) and largest == _LARGEST else min(largest, highest)
    return low, max(low, min(high, int(limit)))


def _on_quantization(quantization: Quantization, bounds: Interval, low: int, high: int) -> tuple[int, int]:
    """The stored integers from `low` to `high` whose float values are within bounds; all, if there are none."""
    scale, zero_point = quantization.step, quantization.point
    least = max(low, ceil(bounds[0] / scale) + zero_point) if isfinite(bounds[0]) else low
    most = min(high, floor(bounds[1] / scale) + zero_point) if isfinite(bounds[1]) else high
    return (least, most) if least <= most else (low, high)


def _floats(rng: np.random.Generator, shape: tuple[int, ...], real: Interval | None, bounds: Interval | None) -> Array:
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


def _unmask_first(values: Array) -> Array:
    """With the first element of each row 1."""
    if values.ndim and values.shape[-1] > 1:
        values[..., 0] = 1
    return values
