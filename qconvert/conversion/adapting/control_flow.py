"""Samples in functions: what an operator that runs some of them, again and again, does for another number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from qconvert.conversion.adapting.samples import Place
from qconvert.graph import Graph, Op
from qconvert.graph.names import Names
from qconvert.operators import FunctionCall, Port, calls
from qconvert.operators.functions import called_functions, rename_functions

if TYPE_CHECKING:
    from qconvert.conversion.adapting.batch_propagation import Walk

__all__ = ["adapt_control_op"]


#: Where samples stand in the inputs, or outputs, of a function, in order.
_Places = list[Place | None]


def adapt_control_op(walk: Walk, op: Op) -> Op:
    """An operator that runs functions, with functions for the new number of samples; the places of its results are noted.

    What goes from turn to turn has its samples where they are in the first turn; a value that has none there, such as zeros, gets them
    where the function puts them.

    Raises:
        OptionError: it has one condition for all samples, carries them in an order that changes, or a function mixes them.
    """
    if any(
        inner.kind in ("ReadState", "WriteState") for name in called_functions(walk.graph, [op]) for inner in walk.graph.functions[name].ops
    ):
        raise walk.batch_error(op, "runs functions with states, and is not known to keep samples separate")
    found = list(calls(op))
    offset = len(op.inputs) - len(found[0].inputs)
    if any(name in walk.places for name in op.inputs[:offset]) or (op.kind == "Loop" and any(x in walk.places for x in op.inputs[:2])):
        raise walk.batch_error(op, "has one condition for all samples")
    places = [_place_in_function(walk, op, port) for port in found[0].inputs]
    begun = list(places)
    for _, index in found[-1].carried:
        if places[index] is None and (axis := walk.axis_of_new(op, index + offset)) is not None:
            places[index] = Place(axis)
    while True:
        made = [_walk_function(walk, call, places) for call in found]
        results = [[inner.places.get(name) for name in inner.graph.outputs] for inner in made]
        if not _propagate_carried(walk, op, found, results, places):
            break
    for call, inner, result in zip(found, made, results, strict=True):
        _align_outputs(walk, op, call, inner, result, results)
    for index, (before, place) in enumerate(zip(begun, places, strict=True)):
        if before is None and place is not None:
            op = walk.with_repeated(op, index + offset, place.axis)
    names = {
        call.function: _add_function(walk.functions, call.function, inner.build_graph()) for call, inner in zip(found, made, strict=True)
    }
    _place_results(walk, op, found[-1].outputs, results[-1])
    return rename_functions(op, names)


def _place_in_function(walk: Walk, op: Op, port: Port) -> Place | None:
    """Where the samples of what a function is given stand in it."""
    place = walk.places.get(port.tensor) if port.tensor else None
    if place is None or port.axis is None:
        return place
    if place.axis == port.axis:
        raise walk.batch_error(op, f"iterates over the samples of {port.tensor!r}")
    return replace(place, axis=place.axis - (place.axis > port.axis))


def _walk_function(walk: Walk, call: FunctionCall, places: Sequence[Place | None]) -> Walk:
    inputs = walk.graph.functions[call.function].inputs
    known = {name: place for name, place in zip(inputs, places, strict=True) if place is not None}
    touched = [name for name, port in zip(inputs, call.inputs, strict=True) if port.tensor in walk.touched]
    inner = walk.inner(call.function, known, touched)
    inner.result()
    return inner


def _propagate_carried(walk: Walk, op: Op, found: Sequence[FunctionCall], results: Sequence[_Places], places: _Places) -> bool:
    """Whether values that go from turn to turn get samples which they had not; they are noted in `places`."""
    is_new = False
    for call, result in zip(found, results, strict=True):
        for output, index in call.carried:
            if result[output] == places[index]:
                continue
            if places[index] is not None:
                name = call.inputs[index].tensor or call.function
                raise walk.batch_error(op, f"carries the samples of {name!r} along another axis into the next iteration")
            places[index], is_new = result[output], True
    return is_new


def _align_outputs(walk: Walk, op: Op, call: FunctionCall, inner: Walk, result: _Places, results: Sequence[_Places]) -> None:
    """Sees to it that an output has samples at one place whichever function gives it, and that no question is one of samples."""
    for index, port in enumerate(call.outputs):
        place = result[index]
        if not port.tensor and port.dtype == "bool" and place is not None:
            raise walk.batch_error(op, "has one condition for all samples")
        wanted = next((other[index] for other in results if len(other) == len(result) and other[index] is not None), None)
        if op.kind != "If" or place == wanted:
            continue
        if place is not None or wanted is None or not inner.repeat_output(index, wanted):
            raise walk.batch_error(op, f"returns {port.tensor!r} with its samples along another axis in each of its functions")


def _add_function(functions: dict[str, Graph], name: str, graph: Graph) -> str:
    """Adds a function under a free name, which is returned."""
    new = Names(functions).fresh(f"{name}/batch")
    functions[new] = replace(graph, functions={}, states={})
    return new


def _place_results(walk: Walk, op: Op, ports: Sequence[Port], places: Sequence[Place | None]) -> None:
    """Notes where the samples of the operator's results stand."""
    for port, place in zip(ports, places, strict=True):
        if port.tensor and place is not None:
            axis = place.axis + (port.axis is not None and place.axis >= port.axis)
            walk.place_at(op, port.tensor, replace(place, axis=axis))
