"""--verify-each: the model is run before and after each pass, and a pass that changes more than it says is named.

The runs are those of the evaluator (qconvert.evaluate), on random inputs that every pass's own change of the inputs is followed on. A
network with states keeps them from one of its inputs to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.arithmetic import affine_range, dequantize, quantize
from qconvert.conversion.normalizing import require_valid
from qconvert.errors import InternalError, InvalidGraphError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.graph import Array, Arrays, Graph, Tensor, integer_range, numpy_dtype
from qconvert.graph.metadata import find_layout_changes
from qconvert.operators import kind_of
from qconvert.passes.states import io_to_states
from qconvert.plugins import Change, Pass
from qconvert.rewriting.claims import verify

#: Permutations that a change of the layout of inputs and outputs makes of four dimensions.
_TURNS = ((0, 3, 1, 2), (0, 2, 3, 1))


class Verifier:
    """Runs a graph after each pass; an observer of a pipeline.

    Attributes:
        said: (pass, what was found), for every pass that changed the graph.
    """

    def __init__(self, graph: Graph, samples: int = 2, seed: int = 0) -> None:
        """Chooses the inputs: `samples` of them, from the random numbers of `seed`."""
        rng = np.random.default_rng(seed)
        self.said: list[tuple[str, str]] = []
        self._feeds = [random_inputs(graph, rng) for _ in range(samples)]
        self._outputs = self._run(graph, "the model")

    def __call__(self, item: Pass, before: Graph, after: Graph, notes: tuple[Change, ...]) -> None:
        """Compares the graph after a pass with that before it.

        Raises:
            InternalError: the pass made a graph that is not valid, or changed an output by more than it declares.
        """
        if after is before:
            return
        require_valid(after, f"the pass {item.name} makes a graph that is not valid")
        stored = before, after
        before, after = (io_to_states(graph, None)[0] for graph in (before, after))
        feed = self._feeds[0] if self._feeds else {}
        turned = find_layout_changes(before.metadata, after.metadata)
        hidden = [name for name in after.inputs if name in turned]
        if hidden and self._outputs:
            self.said.append(
                (item.name, f"not judged, nor the passes after it: the shape of {hidden[0]!r} does not show how it was transposed")
            )
            self._feeds = []
        self._feeds = [convert_feed(before, after, feed) for feed in self._feeds]
        old, self._outputs = self._outputs, self._run(after, item.name)
        if not old or not self._outputs:
            return
        worst = max((change(before, after, a, b) for a, b in zip(old, self._outputs, strict=True)), key=lambda found: found[0])
        self._judge(item, *worst, notes)
        if feed.keys() == {*stored[0].inputs}:
            self._verify_claims(item, *stored, feed)

    def _verify_claims(self, item: Pass, before: Graph, after: Graph, feed: Arrays) -> None:
        """Compare the tensors of an exact pass one by one, each computed of the values before it (rewriting/claims.py).

        Raises:
            InternalError: a tensor does not have the values that the pass's correspondence says.
        """
        if not item.exact or before.states or after.states:
            return
        try:
            refuted = verify(before, after, after.correspondence, feed)
        except (UnsupportedError, InvalidGraphError):  # which the comparison of the outputs tells
            return
        if refuted:
            first = refuted[0]
            raise InternalError(
                f"the pass {item.name} maps the tensor {first.source!r} to {first.result!r}, which differs by {first.largest:.3g}",
                where=f"tensor {first.result!r}",
                remedy="This is a fault of the pass: declare what becomes of a tensor with Rewriter.define and forget.",
                rule="correspondence-refuted",
            )

    def _judge(self, item: Pass, share: float, output: str, notes: tuple[Change, ...]) -> None:
        allowed = item.within if item.within is not None else (0.0 if item.exact else np.inf)
        told = "" if notes or not share else " without a note"
        if share > allowed or told:
            words = "is exact" if allowed == 0 else f"changes outputs by {allowed:g} of their range at most"
            declared = f"declares that it {words}, but " if np.isfinite(allowed) else ""
            raise InternalError(
                f"the pass {item.name} {declared}changes an output by {share:.3g} of its range on average{told}",
                where=f"output {output!r}",
                remedy="This is a fault of the pass, not of the model. --print-after shows the graph before and after it.",
                rule="pass-not-exact",
            )
        self.said.append((item.name, f"changes outputs by {share:.2g} of their range on average" if share else "leaves every output equal"))

    def _run(self, graph: Graph, who: str) -> list[dict[str, Array]]:
        """The outputs for each input; none where the evaluator has no function for an operator or no use for random numbers."""
        states: dict[str, Array] = {}
        try:
            return [evaluate(graph, feed, states) for feed in self._feeds]
        except (UnsupportedError, InvalidGraphError) as error:
            self.said.append((who, f"not judged: {error.where + ': ' if error.where else ''}{error.reason}"))
            return []


def random_inputs(graph: Graph, rng: np.random.Generator) -> dict[str, Array]:
    """Stored values for every graph input: from the whole quantization of quantized ones, and of real ones that are quantized at once.

    Sizes that are not known are 1.
    """
    quantizations: dict[str, Tensor] = {op.inputs[0]: graph[op.name] for op in graph.of_kind("Quantize")}
    return {name: _random(graph[name], quantizations.get(name), rng) for name in graph.inputs}


def _random(tensor: Tensor, quantization: Tensor | None, rng: np.random.Generator) -> Array:
    shape = tuple(size if isinstance(size, int) else 1 for size in tensor.shape or ())
    dtype = numpy_dtype(tensor.dtype)
    if "float" in tensor.dtype:
        q = quantization.quantization if quantization is not None else None
        if quantization is None or q is None or "float" in quantization.dtype:
            return rng.standard_normal(shape).astype(dtype)
        low, high = affine_range(q, quantization.dtype)
        return rng.uniform(1.1 * float(low.min()), 1.1 * float(high.max()), shape).astype(dtype)
    if tensor.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    low_int, high_int = integer_range(tensor.dtype) if tensor.is_quantized else (0, 1)
    return rng.integers(low_int, high_int + 1, shape).astype(dtype)


def convert_feed(before: Graph, after: Graph, feed: Arrays) -> dict[str, Array]:
    """The same inputs for the graph after a pass: turned, stored as another type or real, where the pass changed its inputs."""
    return {name: _convert_values(after[name], before[name], _transpose_to_shape(feed[name], after[name])) for name in after.inputs}


def _convert_values(tensor: Tensor, old: Tensor, values: Array) -> Array:
    if (tensor.dtype, tensor.quantization) == (old.dtype, old.quantization):
        return values
    real = values.astype(np.float64) if old.quantization is None else dequantize(values, old.quantization)
    if tensor.quantization is None:
        return np.asarray(real.astype(numpy_dtype(tensor.dtype)))
    return quantize(real, tensor.quantization, tensor.dtype)


def _transpose_to_shape(values: Array, tensor: Tensor) -> Array:
    """Values in the shape of a tensor, where only the layout of four dimensions differs."""
    wanted = tuple(size if isinstance(size, int) else 1 for size in tensor.shape or ())
    if tensor.shape is None or values.shape == wanted:
        return values
    turns = [values.transpose(turn) for turn in _TURNS if values.ndim == len(turn)]
    return next((turned for turned in turns if turned.shape == wanted), values)


def change(before: Graph, after: Graph, a: Arrays, b: Arrays) -> tuple[float, str]:
    """The largest mean change of an output as a share of its range, and that output; outputs keep their order and names."""
    found, unseen = [(0.0, "")], find_layout_changes(before.metadata, after.metadata)  # which the shapes of cubes do not show
    for (name, old), (_, new) in zip(_outputs(before, a), _outputs(after, b), strict=True):
        turns = [new.transpose(turn) for turn in _TURNS] if new.ndim == 4 and (new.shape != old.shape or name in unseen) else []
        found.append(
            (min(_mean_change(old, form, _output_range(_find_quantized_source(before, name), old)) for form in (new, *turns)), name)
        )
    return max(found, key=lambda item: item[0])


def _outputs(graph: Graph, values: Arrays) -> Sequence[tuple[str, Array]]:
    """Every output as real numbers; of float outputs next to integers, both are rounded to float32."""
    found = []
    for name in graph.outputs:
        q, value = graph[name].quantization, values[name]
        found.append((name, value if q is None else dequantize(value, q).astype(np.float32)))
    return found


def _find_quantized_source(graph: Graph, name: str) -> Tensor:
    """The quantized tensor whose float values an output gives, moved or not; the output itself where there is none.

    Float values of a coarse quantization are a few steps of it, so that a rounding is a large share of the largest of them.
    """
    producers, found = graph.producers(), name
    while (op := producers.get(found)) is not None and (kind_of(op).dequantizes or kind_of(op).rule == "move"):
        found = kind_of(op).moved_inputs(op)[0]
        if graph[found].is_quantized:
            return graph[found]
    return graph[name]


def _output_range(tensor: Tensor, values: Array) -> float:
    """The range of an output: that of its quantization, or from 0 to the largest magnitude of float values."""
    if tensor.quantization is not None and "float" not in tensor.dtype:
        low, high = affine_range(tensor.quantization, tensor.dtype)
        return float((high - low).max())
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    return float(np.abs(finite.astype(np.float64)).max(initial=0.0)) or 1.0 if values.dtype.kind in "fiu" else 1.0


def _mean_change(old: Array, new: Array, span: float) -> float:
    if old.shape != new.shape:
        return float("inf")
    if np.array_equal(old, new, equal_nan=old.dtype.kind == "f") or not old.size:
        return 0.0
    if old.dtype.kind not in "fbiu":
        return float("inf")
    a, b = old.astype(np.float64), new.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(a)
    return float(np.abs(a - b)[finite].mean() / span)
