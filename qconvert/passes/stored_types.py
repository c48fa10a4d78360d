"""What passes share that store quantized tensors as another integer type of the same width.

Exact: every stored integer and its zero point move by half the range together, so the real values stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from qconvert.graph import Graph, Op, Tensor, integer_range, numpy_dtype
from qconvert.graph.kinds import KINDS

__all__ = ["SIGNED", "UNSIGNED", "change_storage", "needs_storage", "replace_grids", "shifted"]

#: Signed type -> unsigned type of the same width, and back.
UNSIGNED = {"int4": "uint4", "int8": "uint8", "int16": "uint16"}
SIGNED = {unsigned: signed for signed, unsigned in UNSIGNED.items()}


def shifted(tensor: Tensor, dtype: str) -> Tensor:
    """The tensor with its stored integers in `dtype`, of the same width."""
    assert tensor.quantization is not None
    offset = integer_range(dtype)[0] - integer_range(tensor.dtype)[0]
    data = None if tensor.data is None else (tensor.data.astype("int32") + offset).astype(numpy_dtype(dtype))
    return replace(tensor, dtype=dtype, data=data, quantization=tensor.quantization.shifted(offset))


def needs_storage(graph: Graph, op: Op) -> bool:
    """Whether the stored integers themselves matter to an operator, or its rule names their type.

    A state moves along with what is read and written, unless functions may name it, the operator stands in one, or what it is read for
    takes integers as they are.
    """
    if KINDS[op.kind].rule == "state":
        state = op["state"]
        return bool(graph.functions) or state not in graph.states or state in _states_as_stored(graph)
    if KINDS[op.kind].rule in ("opaque", "plain", "control", "stored") or op.attributes.get("reduction") == "mul":
        return True
    if op.kind == "Reinterpret":  # beside plain integers, which stay what they are
        return not all(graph[name].is_quantized for name in (*op.inputs, *op.outputs))
    if op.kind == "AveragePool" and op["arithmetic"] == "ties_away":  # away from a stored zero, which only uint8 is known to keep at 128
        return graph[op.inputs[0]].dtype not in ("int8", "uint8")
    return op.has(2) and KINDS[op.kind].has_weights and graph[op.inputs[2]].dtype == "int64"


def _states_as_stored(graph: Graph) -> frozenset[str]:
    """The states that operators on stored integers read or write."""
    stored = [op for op in graph.ops if KINDS[op.kind].rule == "stored"]
    names = {name for op in stored for name in (*op.inputs, *op.outputs)}
    passing = (op for op in graph.ops if KINDS[op.kind].rule == "state")
    return frozenset(str(op["state"]) for op in passing if names.intersection((*op.inputs, *op.outputs)))


def change_storage(
    graph: Graph, moved: Iterable[Tensor], dtypes: Mapping[str, str], *, keeps: Callable[[Graph, Op], bool], keep_io: bool
) -> tuple[Graph, int]:
    """Stores tensors in other types; a Requantize stands where somebody needs the old one. Returns the number of activations changed.

    Args:
        graph: what is changed.
        moved: quantized tensors, activations and constants.
        dtypes: old type -> new type.
        keeps: whether an operator needs its tensors as they are.
        keep_io: whether graph inputs and outputs stay as they are.
    """
    changed = {tensor.name: shifted(tensor, dtypes[tensor.dtype]) for tensor in moved}
    result, count = replace_grids(graph, changed, lambda tensor: tensor.dtype, keeps=keeps, keep_io=keep_io)
    states = {str(op["state"]) for op in graph.ops if KINDS[op.kind].rule == "state" and not keeps(graph, op)}
    if not states:
        return result, count
    return replace(result, states={name: _shifted_state(state, name in states, dtypes) for name, state in graph.states.items()}), count


def _shifted_state(state: Tensor, moves: bool, dtypes: Mapping[str, str]) -> Tensor:
    return shifted(state, dtypes[state.dtype]) if moves and state.dtype in dtypes and state.is_quantized else state


def replace_grids(
    graph: Graph, changed: dict[str, Tensor], suffix: Callable[[Tensor], str], *, keeps: Callable[[Graph, Op], bool], keep_io: bool
) -> tuple[Graph, int]:
    """Puts tensors in the place of those of their names, on other grids; a Requantize stands where somebody needs the old one.

    Returns the new graph, and the number of activations changed.

    Args:
        graph: what is changed.
        changed: name -> the tensor on its new grid.
        suffix: of the name of the new one where the old one stays too.
        keeps: whether an operator needs its tensors as they are.
        keep_io: whether graph inputs and outputs stay as they are.
    """
    held = {name for op in graph.ops if keeps(graph, op) for name in (*op.inputs, *op.outputs)}
    held |= {*graph.inputs, *graph.outputs} if keep_io else set()
    twins: dict[str, Tensor] = {}  # of the tensors that must stay: the same values in the new type
    names: dict[str, str] = {}
    made: set[str] = set()
    unused = graph.names(made)
    for name in [name for name in changed if name in held]:
        names[name] = unused.fresh(f"{name}/{suffix(changed[name])}")
        made.add(names[name])
        twins[name] = replace(changed.pop(name), name=names[name])
    ops: list[Op] = [Op("Requantize", (name,), (names[name],)) for name in graph.inputs if name in names]
    for op in graph.ops:
        if keeps(graph, op):
            ops += [op, *(Op("Requantize", (name,), (names[name],)) for name in op.outputs if name in names)]
            continue
        inputs, outputs = (tuple(names.get(name, name) for name in listed) for listed in (op.inputs, op.outputs))
        ops.append(replace(op, inputs=inputs, outputs=outputs))
        ops += [Op("Requantize", (names[name],), (name,)) for name in op.outputs if name in names]
    count = sum(not tensor.is_constant for tensor in (*changed.values(), *twins.values()))
    return _without_unread(graph.evolve(tensors=[*changed.values(), *twins.values()], ops=ops), set(names) | set(names.values())), count


def _without_unread(graph: Graph, names: set[str]) -> Graph:
    """Drops each Requantize between the two forms of a tensor whose result nobody reads."""
    consumers = graph.consumers()

    def is_unread(op: Op) -> bool:
        if op.kind != "Requantize":
            return False
        name = op.outputs[0]
        return name in names and op.inputs[0] in names and name not in consumers and name not in graph.public

    return graph.evolve(ops=[op for op in graph.ops if not is_unread(op)])
