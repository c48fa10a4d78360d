"""--input-shape and --batch: other sizes of inputs or another number of samples in each run, and what follows from them.

For a batch, a walk through the operators (batch_propagation.py) keeps, for each tensor, the axis along which samples stand. Sizes that a
file states as numbers, of a Reshape or a Slice, are mended; an operator that would mix samples, or lose some, is named. Where a Reshape
leaves a choice, as it does before axes of size 1, what comes after it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from qconvert.conversion.adapting.batch_propagation import Walk
from qconvert.conversion.adapting.samples import Choices, Place
from qconvert.errors import InvalidGraphError, OptionError, QConvertError
from qconvert.evaluate.known_values import KnownSizes
from qconvert.graph import Graph, Op, Shape, Tensor
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import merge_shapes, output_shapes, with_used_functions
from qconvert.operators.sizes import Size, failure, is_compatible
from qconvert.plugins.options import parse_input_shapes

_LARGEST = 2**31 - 1


def with_shapes(graph: Graph, text: str) -> Graph:
    """The graph whose inputs have the sizes that a text states; see parse_input_shapes(). An open size may stay open, by a name.

    Sizes that were open become numbers, or get other names, everywhere. Where a number becomes another, operators have the shapes that
    their rules give, as a runtime's resizing of inputs does it; where they do not fit and the first axis changed, that is the batch.

    Raises:
        OptionError: no input is called so, the rank is another, or an operator does not take the sizes; it is named.
    """
    wanted = {str(name): shape for name, (shape, _) in parse_input_shapes(text, graph.inputs).items()}
    for name, shape in wanted.items():
        _require_fitting(graph[name], shape)
    symbols: dict[str, Size] = {}
    for name, shape in wanted.items():
        for old, new in zip(graph[name].shape or (), shape, strict=False):
            if isinstance(old, str) and symbols.setdefault(old, new) != new:
                raise OptionError(
                    f"--input-shape sets the dynamic dimension {old!r} to both {symbols[old]} and {new}", rule="size-contradicts"
                )
    try:
        graph = set_dynamic_sizes(graph, symbols, wanted)
        changed = {name: shape for name, shape in wanted.items() if graph[name].shape != shape}
        return infer_shapes(graph, changed) if changed else graph
    except QConvertError as error:
        if isinstance(error, InvalidGraphError):
            if (found := _as_batch(graph, wanted)) is not None:
                return found
            raise OptionError(
                f"the model does not accept inputs of these sizes: {error.reason}", where=error.where, rule="sizes-not-accepted"
            ) from error
        raise


def _as_batch(graph: Graph, wanted: Mapping[str, Shape]) -> Graph | None:
    """The graph with the first sizes changed as a batch, after the other sizes; None where that does not go either."""
    first = {name: (before[0], shape[0]) for name, shape in wanted.items() if (before := graph[name].shape) and before[0] != shape[0]}
    if len(set(first.values())) != 1 or not all(isinstance(size, int) for size in next(iter(first.values()))):
        return None
    old, new = next(iter(first.values()))
    others = {name: (old, *shape[1:]) if name in first else shape for name, shape in wanted.items()}
    try:
        sized = infer_shapes(graph, {name: shape for name, shape in others.items() if graph[name].shape != shape})
        return change_batch(sized, dict.fromkeys(first, 0), int(old), int(new))
    except QConvertError:
        return None


def _require_fitting(tensor: Tensor, shape: Shape) -> None:
    old = tensor.shape
    what = f"the input {tensor.name!r}"
    if old is not None and len(old) != len(shape):
        raise OptionError(f"{what} has {len(old)} axes, {_format_shape(old)}; --input-shape has {len(shape)}", rule="wrong-rank")
    for axis, size in enumerate(shape):
        if isinstance(size, int) and not 1 <= size <= _LARGEST:
            raise OptionError(
                f"--input-shape has the size {size} for axis {axis} of {what}; sizes must be at least 1", rule="size-not-positive"
            )
        if isinstance(size, str) and old is not None and isinstance(old[axis], int):
            raise OptionError(
                f"axis {axis} of {what} has the size {old[axis]}; it cannot become the dynamic dimension {size!r}", rule="size-not-dynamic"
            )


def _format_shape(shape: Shape) -> str:
    return ",".join(map(str, shape)) or "none"


def set_dynamic_sizes(graph: Graph, symbols: Mapping[str, Size], inputs: Mapping[str, Shape]) -> Graph:
    """The graph with sizes in place of open ones, and what follows from them. Inputs without a rank get the shape stated.

    Raises:
        InvalidGraphError: an operator does not take the sizes; it is named.
    """
    ranked = {name: shape for name, shape in inputs.items() if graph[name].shape is None}
    if not symbols and not ranked:
        return graph

    def set_sizes(tensor: Tensor) -> Tensor:
        if tensor.name in ranked:
            return replace(tensor, shape=ranked[tensor.name])
        if tensor.shape is None or not any(size in symbols for size in tensor.shape if isinstance(size, str)):
            return tensor
        return replace(tensor, shape=tuple(symbols.get(size, size) if isinstance(size, str) else size for size in tensor.shape))

    tensors = {name: set_sizes(tensor) for name, tensor in graph.tensors.items()}
    found = replace(graph, tensors=tensors)

    def shape_of(op: Op, name: str, shape: Shape | None, old: Shape | None) -> Shape | None:
        if not is_compatible(old, shape):
            raise failure(
                op,
                f"gives {name!r} the shape {_format_shape(shape or ())}, but the model states {_format_shape(old or ())}",
                rule="shape-mismatch",
            )
        return merge_shapes(name, shape, old)

    return _infer_op_shapes(found, tensors, {op.outputs for op in graph.ops}, shape_of)


def infer_shapes(graph: Graph, inputs: Mapping[str, Shape]) -> Graph:
    """The graph with these shapes of inputs, and of all that depends on them the shapes that the rules of the operators give.

    Raises:
        InvalidGraphError: an operator does not take the sizes; it is named.
        OptionError: what it gives depends on functions or on an operator of which nothing is known; likewise.
    """
    tensors = {name: replace(tensor, shape=inputs.get(name, tensor.shape)) for name, tensor in graph.tensors.items()}
    touched = set(inputs)
    following: set[tuple[str, ...]] = set()
    for op in graph.ops:
        if not kind_of(op).has_effect and not touched.isdisjoint(op.inputs):  # validation says whether a state still fits
            if kind_of(op).is_structural:
                raise OptionError(
                    "the result of this operator for other input sizes is not known",
                    where=op.location,
                    rule="sizes-not-derived",
                )
            touched.update(op.outputs)
            following.add(op.outputs)
    return _infer_op_shapes(graph, tensors, following, lambda op, name, shape, old: merge_shapes(name, shape, None))


def _infer_op_shapes(
    graph: Graph,
    tensors: dict[str, Tensor],
    following: set[tuple[str, ...]],
    shape_of: Callable[[Op, str, Shape | None, Shape | None], Shape | None],
) -> Graph:
    """The graph with the shapes of the outputs in `after` worked out again, in order."""
    known = KnownSizes(tensors, graph.producers())
    for op in graph.ops:
        if op.outputs not in following or kind_of(op).is_structural:
            continue
        for name, shape in zip(op.outputs, output_shapes(tensors, op, known.dimensions), strict=True):
            if name:
                tensors[name] = replace(tensors[name], shape=shape_of(op, name, shape, tensors[name].shape))
    return replace(graph, tensors=tensors)


#: How often a network is walked through until all choices fit.
_MOST_WALKS = 50


def with_batch(graph: Graph, number: int) -> Graph:
    """The graph for so many samples in each run.

    Args:
        graph: its inputs have samples along their first axis, or along the axis with the dynamic dimension "batch"; inputs without
            axes are left alone.
        number: of samples, at least 1.

    Raises:
        OptionError: inputs have different first sizes, or an operator mixes or loses samples, or does not take more; it is named.
    """

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
