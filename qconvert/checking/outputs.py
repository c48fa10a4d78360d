"""Inputs and outputs of two models side by side: the same values for both, how far what they give differs, how well they predict texts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from qconvert.arguments import Progress
from qconvert.arithmetic import dequantize, quantize
from qconvert.checking.exchanged_values import LAYOUTS, find_transposed, to_float
from qconvert.checking.findings import OutputComparison, TextComparison
from qconvert.checking.same_codes import SAME_CODES, shift_codes
from qconvert.data.texts import TextInputs
from qconvert.errors import OptionError, format_count, quote_some
from qconvert.graph import Array, Arrays, Graph, Tensor, numpy_dtype
from qconvert.operators.properties import permutation
from qconvert.plugins import LoadedModel

#: Inputs or outputs that a message names; the others are counted.
_NAMED = 8
#: Of a step: a float value that is nearer to a multiple of a scale than this is that multiple.
_SAME_STEP = 1e-3
#: Of the multiple: what the rounding of a float value to float32 adds, which counts with 16 bits.
_ROUNDED = 2.0**-24


@dataclass(frozen=True, slots=True)
class Border:
    """Which input and output of the result is which of the source.

    Attributes:
        graph, other: the canonical graphs of source and result.
        inputs, outputs: for each of the source's, in order, the result's name: the same one, or where the two sides have not the same
            names that at the same place.
        problems: in sentences, what is at another place than in the source.
        turned: the result's layout of the source's names that have another one there, whether or not the shape shows it.
        requantized: names whose quantization the conversion declared to be another.
        layout: of the result's files where the source's have another one: what fits it alone is taken to be turned; "" else.
    """

    graph: Graph
    other: Graph
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    problems: tuple[str, ...]
    turned: Mapping[str, str]
    requantized: Collection[str] = ()
    layout: str = ""

    @classmethod
    def of(cls, graph: Graph, other: Graph, requantized: Collection[str] = (), layout: str = "") -> Border:
        """Pair the names of both. Raise OptionError if one side has more inputs or outputs than the other, or an input of another size."""
        inputs, wrong_inputs = _pair_names("input", graph.inputs, other.inputs)
        outputs, wrong_outputs = _pair_names("output", graph.outputs, other.outputs)
        for name, there in inputs.items():
            _require_same_size(graph[name], other[there])
        turned = find_transposed(graph, other, "channels_first", {**inputs, **outputs})
        for name, there in inputs.items():
            own, its = graph[name].static_shape or (), other[there].static_shape or ()
            moved = (tuple(own[axis] for axis in order) for order in _list_orders(len(own), (turned.get(name, ""), layout)))
            if sorted(own) == sorted(its) and its not in moved:  # runtimes take inputs of another shape, and their results vary with it
                wrong_inputs.append(f"the axes of the input {name!r} are in another order: {its} instead of {own}")
        return cls(graph, other, inputs, outputs, (*wrong_inputs, *wrong_outputs), turned, requantized, layout)

    def convert_inputs(self, feed: Arrays, runtime: LoadedModel) -> dict[str, Array]:
        """Return the source's stored inputs as the result's runtime takes them: as its type, with its quantization, in its layout."""
        own_names = dict(zip(self.other.inputs, runtime.inputs, strict=True))
        matched = {}
        for name, value in feed.items():
            other = self.other[self.inputs[name]]
            there = own_names[other.name]
            stored = _convert_storage(self.graph[name], other, value, name in self.requantized)
            matched[there] = _transpose_to_layout(stored, runtime.inputs[there][1], (self.turned.get(name, ""), self.layout))
        return {name: matched[name] for name in runtime.inputs if name in matched}

    def pair_outputs(self, expected: Arrays, actual: Arrays) -> list[tuple[str, Array, Array]]:
        """Return (name, the source's values, the result's in the source's layout)."""
        found = []
        for name, a, b, order in self._find_orders(expected, actual):
            moved = b.transpose(np.argsort(order)) if order else b
            found.append((name, a, moved.reshape(a.shape) if b.size == a.size == 1 else moved))
        return found

    def describe_orders(self, expected: Arrays, actual: Arrays) -> list[str]:
        """Return a sentence for each order of axes, other than the source's, in which outputs are compared."""
        names: dict[tuple[int, ...], list[str]] = {}
        for name, _, _, order in self._find_orders(expected, actual):
            names.setdefault(order, []).append(name)
        return [
            f"{'output' if len(listed) == 1 else 'outputs'} {quote_some(listed, _NAMED)} {'has' if len(listed) == 1 else 'have'} the "
            f"source's axes in the order {','.join(map(str, order))}, in which {'it is' if len(listed) == 1 else 'they are'} compared"
            for order, listed in names.items()
            if order != tuple(range(len(order)))
        ]

    def _find_orders(self, expected: Arrays, actual: Arrays) -> Iterator[tuple[str, Array, Array, tuple[int, ...]]]:
        """Yield (name, the source's values, the result's as they are, the order of the source's axes in these); the order is () if none of
        a layout fits the shapes of both."""
        there = dict(zip(self.other.outputs, actual.values(), strict=True))
        for name, a in zip(self.graph.outputs, expected.values(), strict=True):
            b = there[self.outputs[name]]
            orders = _list_orders(a.ndim, (self.turned.get(name, ""), self.layout)) if a.ndim == b.ndim else ()
            yield name, a, b, next((order for order in orders if tuple(a.shape[axis] for axis in order) == b.shape), ())

    def pair_runs(self, runs: Iterable[tuple[Arrays, Arrays]]) -> dict[str, list[tuple[Array, Array]]]:
        """Return the source's values and the result's of each output, a pair for each run, from the outputs of both in these runs."""
        found: dict[str, list[tuple[Array, Array]]] = {}
        for expected, actual in runs:
            for name, a, b in self.pair_outputs(expected, actual):
                found.setdefault(name, []).append((a, b))
        return found

    def compare_output(self, name: str, pairs: Sequence[tuple[Array, Array]]) -> OutputComparison:
        """Return statistics of an output over all runs; see compare_output()."""
        return compare_output(self.graph[name], self.other[self.outputs[name]], pairs, name in self.requantized)


def _pair_names(what: str, names: Sequence[str], others: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    if len(names) != len(others):
        raise OptionError(
            f"the source has {format_count(len(names), what)}, the result {len(others)}",
            remedy="Name the file that the result was made from.",
            rule="different-number-of-ports",
        )
    if set(names) == set(others):
        orders = [quote_some(listed, _NAMED) for listed in (others, names)]
        problems = [f"the {what}s are in another order: {orders[0]} instead of {orders[1]}"] if names != others else []
        return {name: name for name in names}, problems
    moved = [name for name, other in zip(names, others, strict=True) if name in others and name != other]
    problems = [f"the {what} {name!r} is at another position in the result" for name in moved]
    return dict(zip(names, others, strict=True)), problems


def _require_same_size(own: Tensor, other: Tensor) -> None:
    """Refuse an input that holds another number of values than the source's, in all and in one sample, whatever the layout."""
    shapes = (own.shape or (), other.shape or ())
    if any(isinstance(size, str) for shape in shapes for size in shape[1:]) or _count_values(shapes[0]) & _count_values(shapes[1]):
        return
    words = [",".join(map(str, shape)) for shape in shapes]
    raise OptionError(
        f"the input {own.name!r} is {words[0]} in the source and {words[1]} in the result",
        remedy="Name the file that the result was made from, or give both the same size with --input-shape.",
        rule="different-sizes-of-inputs",
    )


def _count_values(shape: Sequence[int | str]) -> set[int]:
    """Return how many values one sample of a shape holds, and how many the whole does where that is known."""
    return {math.prod(size for size in sizes if isinstance(size, int)) for sizes in (shape, shape[1:])}


def _convert_storage(own: Tensor, other: Tensor, value: Array, requantized: bool) -> Array:
    """Return stored values of the source as the result stores them.

    Zero points do not take part where no change was declared: a result whose zero point is wrong must not be fed as if it were right.
    """
    if own.quantization is not None and other.quantization is not None:
        if requantized or not _has_same_width(own, other):
            return quantize(dequantize(value, own.quantization), other.quantization, other.dtype)
        return shift_codes(value, own.dtype, other.dtype)
    if own.quantization is not None and other.dtype == "float32":
        return np.asarray(dequantize(value, own.quantization), np.float32)
    if other.quantization is not None and value.dtype.kind == "f":
        return quantize(value.astype(np.float64), other.quantization, other.dtype)
    return value if own.dtype == other.dtype or "int" in own.dtype + other.dtype else value.astype(numpy_dtype(other.dtype))


def _has_same_width(own: Tensor, other: Tensor) -> bool:
    """Return whether both store the same codes, moved where one is signed and the other is not."""
    return own.dtype == other.dtype or {own.dtype, other.dtype} in SAME_CODES


def _transpose_to_layout(value: Array, shape: tuple[Any, ...], layouts: tuple[str, str]) -> Array:
    """Return `value` in the first order of _list_orders() that fits `shape`."""
    if value.ndim != len(shape):
        return value
    moved = (value.transpose(order) for order in _list_orders(value.ndim, layouts))
    return next((item for item in moved if _fits(item.shape, shape)), value)


def _list_orders(rank: int, layouts: tuple[str, str]) -> Iterator[tuple[int, ...]]:
    """Yield the orders of axes that the result's values may have.

    Args:
        rank: how many axes there are.
        layouts: of values that are known to be turned their layout, which may be a guess; that of the result's files where the source's
            have another one. "" for neither.
    """
    turned, other = layouts
    if turned and rank > 2:
        yield permutation(turned, rank)
    yield tuple(range(rank))
    yield from (permutation(item, rank) for item in (LAYOUTS if turned else (other,)) if item in LAYOUTS and rank > 2)


def _fits(actual: tuple[int, ...], wanted: tuple[Any, ...]) -> bool:
    return all(not isinstance(size, int) or size in (0, own) for own, size in zip(actual, wanted, strict=True))


def compare_output(own: Tensor, other: Tensor, pairs: Sequence[tuple[Array, Array]], requantized: bool = False) -> OutputComparison:
    """Return statistics over all runs.

    They are in steps of the source's scale, of the coarser one where the quantizations differ, or of the range of floats.

    Args:
        own, other: the output as source and result declare it.
        pairs: stored values of both sides, a pair for each run.
        requantized: whether the conversion declared that the quantization is another, so that float values are compared.
    """
    on = _choose_scale(own, other, pairs[0], requantized)
    shapes = next((f"{b.shape} instead of {a.shape}" for a, b in pairs if a.shape != b.shape), "")
    if shapes:
        return OutputComparison(own.name, 0.0, np.inf, np.inf, on.unit, -np.inf, None, shapes=shapes)
    left, right = (np.concatenate([on.steps(tensor, pair[side]).reshape(-1) for pair in pairs]) for side, tensor in ((0, own), (1, other)))
    difference, nan = absolute_difference(left, right), np.isnan(left) & np.isnan(right)
    if pairs[0][0].dtype == pairs[0][1].dtype in (np.int64, np.uint64):  # two that are one float64
        difference[(difference == 0) & np.concatenate([(a != b).reshape(-1) for a, b in pairs])] = 1
    finite = left[np.isfinite(left)]
    scale = 1.0 if on.unit != "of range" else float(finite.max(initial=0) - finite.min(initial=0)) or 1.0
    noise = float(np.square(difference).mean()) if difference.size else 0.0
    signal = float(np.square(finite - on.offset).mean()) if finite.size else 0.0
    is_scores = all(a.ndim == 2 and a.shape[0] == 1 and a.shape[1] > 1 for a, _ in pairs)
    same = float(np.mean([on.steps(own, a).argmax() == on.steps(other, b).argmax() for a, b in pairs])) if is_scores else None
    return OutputComparison(
        own.name,
        float(((difference == 0) & ~nan).mean()) if difference.size else 1.0,
        float(difference.max(initial=0)) / scale,
        float(difference.mean()) / scale if difference.size else 0.0,
        on.unit,
        None if noise == 0 else float(10 * (np.log10(max(signal, 1e-300)) - np.log10(noise))),
        same,
        int(nan.sum()),
        _varying_share([a for a, _ in pairs]),
        on.quantizations,
    )


def absolute_difference(a: Array, b: Array) -> Array:
    """Return |a - b| in float64: 0 where both are equal or neither is a number, infinite where one alone is a number."""
    first, second = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        off = np.where((first == second) | (np.isnan(first) & np.isnan(second)), 0.0, np.abs(first - second))
    return np.where(np.isnan(off), np.inf, off)


def largest_magnitude(values: Array) -> float:
    """Return the largest magnitude among finite values; 0 without any."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0))


def _varying_share(values: list[Array]) -> float:
    """Return the share of elements that differ between runs; of a single run, the share of its values that differ from the commonest."""
    if len({value.shape for value in values}) != 1:
        return 1.0
    if not values[0].size:
        return 0.0
    if len(values) > 1:
        return float(np.mean(np.any([value != values[0] for value in values[1:]], axis=0)))
    _, counts = np.unique(values[0].astype(str) if values[0].dtype.kind == "O" else values[0], return_counts=True)
    return 1.0 - float(counts.max()) / values[0].size


@dataclass(frozen=True, slots=True)
class _Scale:
    """In what an output is compared.

    Attributes:
        unit: see OutputComparison.
        step: the float value of a unit; 0 for stored values as they are.
        offset: the unit that stands for the float value 0.
        dtype: as what stored integers are taken.
        quantizations: see OutputComparison.
    """

    unit: str
    step: float = 0.0
    offset: float = 0.0
    dtype: str = ""
    quantizations: str = ""

    def steps(self, tensor: Tensor, values: Array) -> Array:
        """Return the values of one side in units, as float64; texts as numbers of their own."""
        if values.dtype.kind in "OSU":
            return np.array([crc32(str(value).encode()) for value in values.reshape(-1)], np.float64).reshape(values.shape)
        if not self.step:
            return np.asarray(shift_codes(values, values.dtype.name, self.dtype or values.dtype.name).astype(np.float64))
        real = to_float(tensor, values)
        found = np.asarray(real / self.step + self.offset)
        whole = np.rint(found)
        return np.where(np.abs(found - whole) <= _SAME_STEP + np.abs(real / self.step) * _ROUNDED, whole, found)


def _choose_scale(own: Tensor, other: Tensor, pair: tuple[Array, Array], requantized: bool) -> _Scale:
    a, b = own.quantization, other.quantization
    floats = [values.dtype.kind == "f" for values in pair]
    if a is not None and b is not None and not any(floats):
        if not requantized and _has_same_width(own, other):
            return _Scale("LSB", offset=a.point, dtype=own.dtype)
        steps = [float(np.max(quantization.scale)) for quantization in (a, b)]
        return _Scale("LSB", max(steps), quantizations=f"steps of {steps[0]:.6g} and {steps[1]:.6g}")
    if a is not None and not floats[0] and floats[1]:
        return _Scale("LSB", a.step, a.point)
    if b is not None and floats[0] and not floats[1]:
        return _Scale("LSB", float(np.max(b.scale)))
    return _Scale("of range") if floats[0] else _Scale("LSB")


def compare_texts(texts: TextInputs, border: Border, models: tuple[LoadedModel, LoadedModel], progress: Progress) -> TextComparison:
    """Run both sides on each window, of which one at a time is in memory.

    Args:
        texts: the windows.
        border: which output is which.
        models: source and result, loaded.
        progress: is called with ("windows", done, total).

    Raises:
        OptionError: the logits have no row for each place of a window, or none for a token that the tokenizer gives.
        RuntimeRefusedError: a runtime does not run a window.
    """
    source, result = models
    tensors = border.graph[texts.output], border.other[border.outputs[texts.output]]
    losses, power, error = [0.0, 0.0], 0.0, 0.0
    for done, (feed, ids) in enumerate(zip(texts.feeds, texts.ids, strict=True)):
        pairs = border.pair_outputs(source.run(feed), result.run(border.convert_inputs(feed, result)))
        stored = next((a, b) for name, a, b in pairs if name == texts.output)
        before, after = (_read_logits(values, tensor, ids, texts) for values, tensor in zip(stored, tensors, strict=True))
        for side, rows in enumerate((before, after)):
            losses[side] += _sum_losses(rows, ids)
        power += float(np.square(before).sum())
        error += float(np.square(after - before).sum())
        progress("windows", done + 1, len(texts.ids))
    perplexities = float(np.exp(losses[0] / texts.tokens)), float(np.exp(losses[1] / texts.tokens))
    return TextComparison(len(texts.ids), texts.tokens, perplexities, 10 * float(np.log10(power / error)) if error else None)


def _read_logits(logits: Array, tensor: Tensor, ids: Array, texts: TextInputs) -> Array:
    """The logits of each place of a window, float64 [L, vocabulary]."""
    if logits.ndim != 3 or logits.shape[0] != 1 or logits.shape[1] < len(ids) or logits.shape[2] <= int(ids.max()):
        raise OptionError(
            f"the logits {texts.output!r} have shape {list(logits.shape)}, and a window has {len(ids)} tokens up to {int(ids.max())}",
            file=str(texts.tokenizer),
            remedy="Export the model with the logits of all places, and take the tokenizer that belongs to it.",
            rule="logits-do-not-fit",
        )
    rows = logits[0, : len(ids)]
    return np.asarray(rows if tensor.quantization is None else dequantize(rows, tensor.quantization), np.float64)


def _sum_losses(rows: Array, ids: Array) -> float:
    """The sum of -log of the probabilities of all tokens but the first, each after those before it."""
    largest = rows[:-1].max(axis=1)
    sums = np.log(np.exp(rows[:-1] - largest[:, None]).sum(axis=1)) + largest
    return float((sums - rows[np.arange(len(ids) - 1), ids[1:]]).sum())
