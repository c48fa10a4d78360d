"""--batch: another number of samples in each run, along the first axis of every input, and what follows from it.

A walk through the operators (walking.py) keeps, for each tensor, the axis along which samples stand. Sizes that a file states as numbers,
of a Reshape or a Slice, are mended; an operator that would mix samples, or lose some, is named. Where a Reshape leaves a choice, as it does
before axes of size 1, what comes after it decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qconvert.conversion.adapting.batch_propagation import Walk
from qconvert.conversion.adapting.samples import Choices, Place
from qconvert.errors import InvalidGraphError, OptionError, QConvertError
from qconvert.graph import Graph, Shape
from qconvert.operators.functions import with_used_functions
from qconvert.operators.sizes import Size

__all__ = ["change_batch", "with_batch"]

#: How often a network is walked through until all choices fit.
_MOST_WALKS = 50
_LARGEST = 2**31 - 1


def with_batch(graph: Graph, number: int) -> Graph:
    """The graph for so many samples in each run.

    Args:
        graph: its inputs have samples along their first axis, or along the axis with the dynamic dimension "batch"; inputs without
            axes are left alone.
        number: of samples, at least 1.

    Raises:
        OptionError: inputs have different first sizes, or an operator mixes or loses samples, or does not take more; it is named.
    """
    from qconvert.conversion.adapting.shapes import set_dynamic_sizes

    if number > _LARGEST:
        raise OptionError(f"the batch is {number}; at most {_LARGEST} is allowed", rule="number-out-of-range")
    firsts: dict[str, Size] = {}
    axes: dict[str, int] = {}
    for name in graph.inputs:
        shape = graph[name].shape
        if shape is None:
            raise OptionError(f"the input {name!r} has no known shape", remedy="Give it with --input-shape.", rule="unknown-shape")
        if shape:
            axes[name] = next((axis for axis, size in enumerate(shape) if _is_called_batch(size)), 0)
            firsts[name] = shape[axes[name]]
    if not firsts:
        raise OptionError("no input has a batch axis", rule="no-batch-axis")
    sizes = list(dict.fromkeys(size for size in firsts.values() if isinstance(size, int)))
    if len(sizes) > 1:
        listed = ", ".join(f"{name!r} {size}" for name, size in firsts.items())
        raise OptionError(
            f"inputs have different sizes along the first axis: {listed}",
            remedy="Give the shapes with the batch: --input-shape name=4,224,224,3.",
            rule="different-batches",
        )
    old = sizes[0] if sizes else number
    symbols = [size for size in firsts.values() if isinstance(size, str)]
    try:
        found = set_dynamic_sizes(graph, dict.fromkeys(symbols, old), {})
    except InvalidGraphError as error:
        if sizes or (mended := _change_batch_from_one(graph, symbols, axes, number)) is None:
            raise OptionError(
                f"the model does not accept a batch of {old}: {error.reason}", where=error.where, rule="batch-not-accepted"
            ) from error
        return mended
    if sizes or (mended := _change_batch_from_one(graph, symbols, axes, number)) is None:
        return change_batch(found, axes, old, number)
    # A file that takes any batch may still put all samples into one row at its end.
    return mended if any(mended[name].shape != found[name].shape for name in graph.outputs) else found


def _change_batch_from_one(graph: Graph, symbols: Sequence[str], axes: Mapping[str, int], number: int) -> Graph | None:
    """The graph for one sample, rebatched: sizes inside may be stated for that, whatever the inputs say. None where that does not go."""
    from qconvert.conversion.adapting.shapes import set_dynamic_sizes

    try:
        return change_batch(set_dynamic_sizes(graph, dict.fromkeys(symbols, 1), {}), axes, 1, number)
    except QConvertError:
        return None


def change_batch(graph: Graph, inputs: Mapping[str, int], old: int, new: int) -> Graph:
    """The graph with `new` instead of `old` samples along an axis of some inputs.

    Raises:
        OptionError: see with_batch().
    """
    if old == new:
        return graph
    choices, problem, spare = Choices(), None, None
    places = {name: Place(axis) for name, axis in inputs.items()}
    for _ in range(_MOST_WALKS):
        walk = Walk(graph, places, (old, new), choices)
        try:
            found = with_used_functions(walk.result())
            if all(_has_own_axis(graph[name].shape or (), walk.places[name], old) for name in graph.outputs if name in walk.places):
                return found
            spare = spare or found  # an output has samples side by side in one row
        except OptionError as error:
            problem = problem or error
        if not choices.advance():
            break
    if spare is not None:
        return spare
    assert problem is not None
    raise problem


def _has_own_axis(shape: Shape, place: Place, old: int) -> bool:
    """Whether samples have an axis for themselves."""
    return place.before == 1 and shape[place.axis] == old


def _is_called_batch(size: Size) -> bool:
    """Whether a dynamic dimension is the number of samples by its name, wherever it stands."""
    return isinstance(size, str) and size.lower().startswith("batch")
