"""Grids that a file lists in the order of the operators, without saying which operators these are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from qconvert.conversion.states.network import Network
from qconvert.conversion.states.places import Places, keeps_grid
from qconvert.errors import InvalidModelError
from qconvert.graph import Op
from qconvert.graph.kinds import KINDS
from qconvert.plugins import Grid

__all__ = ["place_observed", "place_sequences"]

_REMEDY = (
    "The graph has to be of the same network and of the same version of its code. A TorchScript file of the quantized model "
    "(torch.jit.trace) holds everything."
)


def place_sequences(network: Network, places: Places) -> None:
    """Places the grids of functions: of a quantized network those without a module, of one in training every operator's.

    Raises:
        InvalidModelError: there are more or fewer grids than operators.
    """
    for path, grids in network.parameters.functions.items():
        if network.parameters.trained:
            place_observed(network, places, grids)
        else:
            _place_functions(network, places, path, grids)


def _place_functions(network: Network, places: Places, path: str, grids: Sequence[Grid]) -> None:
    """The operators of a module's own code that need a grid and have none yet take these in their order.

    A grid that an earlier tensor has may stand for the result of an operator that keeps it, which needs none.
    """
    ends = places.ends_of(path) if path and len(grids) == 1 else []
    if len(ends) == 1:
        places.put_behind_relu(ends[0], grids[0])
        return
    ops = places.listed_ops(path)
    wanting = [op for op in ops if _needs_grid(network, places, op)]
    left = _without_repeated(grids, places.behind.values(), len(grids) - len(wanting))
    if len(left) != len(wanting):
        where = f"the module {path!r}" if path else "the network's own code"
        raise InvalidModelError(
            f"{len(grids)} grids are listed for operators in {where}, and {len(wanting)} operators need one there: "
            f"{', '.join(op.outputs[0] for op in wanting[:8]) or 'none'}",
            remedy=_REMEDY,
        )
    for op, grid in zip(wanting, left, strict=True):
        places.put_behind_relu(op.outputs[0], grid)


def _without_repeated(grids: Sequence[Grid], known: Iterable[Grid], most: int) -> list[Grid]:
    """The grids without those that stand among known ones or before in the list, the first `most` of these."""
    seen = {_key(grid) for grid in known}
    kept = []
    for grid in grids:
        key = _key(grid)
        if key in seen and most > 0:
            most -= 1
        else:
            kept.append(grid)
        seen.add(key)
    return kept


def _key(grid: Grid) -> tuple[Hashable, ...]:
    return grid.dtype, grid.quantization.key


def _among(grid: Grid, others: Sequence[Grid]) -> bool:
    return any(grid.dtype == other.dtype and grid.quantization == other.quantization for other in others)


def _needs_grid(network: Network, places: Places, op: Op) -> bool:
    """Whether an operator of values computes what no grid of its data fits: sums and products of two values, activations, norms."""
    if not op.outputs or op.outputs[0] in places.behind or op.outputs[0] in places.inner or KINDS[op.kind].rule != "real":
        return False
    if keeps_grid(op.kind) or op.kind in network.parameters.fixed or network[op.outputs[0]].dtype != "float32":
        return False
    two = op.kind not in ("Add", "Mul", "Sub", "Div") or not any(network.constant(name) is not None for name in op.inputs)
    return two and bool(network.data(op))


def place_observed(network: Network, places: Places, grids: Sequence[Grid]) -> None:
    """Places the observers of FX: of real inputs where they are first used, and behind every operator that it quantizes.

    An operator that keeps its data's grid shares its observer, which is listed once more under the next number.
    """
    left = list(grids)
    skipped: set[str] = set()
    for op in network.ops:
        if op.kind == "Dequantize" or not op.outputs or op.outputs[0] in skipped:
            continue
        data = [name for name in network.data(op) if network[name].dtype == "float32"]
        if not data:
            continue
        if keeps_grid(op.kind) and op.kind != "Concat":
            held = next((places.behind[name] for name in data if name in places.behind), None)
            if held is not None and left and _among(left[0], [held]):
                places.put(op.outputs[0], left.pop(0))
            elif held is not None:
                places.behind[op.outputs[0]] = held  # seen by what reads it; taken off again below
                skipped.add(op.outputs[0])
            continue
        for name in data:
            if name in network.graph.inputs and name not in places.behind and left:
                places.put(name, left.pop(0))
        if not all(name in places.behind for name in data):
            continue
        name = _end(network, op, skipped)
        if not left:
            raise _uneven(grids, op)
        places.put(name, left.pop(0))
    for name in skipped:
        places.behind.pop(name, None)
    if _without_repeated(left, grids[: len(grids) - len(left)], len(left)):
        raise _uneven(grids, None)


def _end(network: Network, op: Op, skipped: set[str]) -> str:
    """The result of an operator with the Relu that was fused with it: FX has one observer for both."""
    reader = network.only_consumer(op.outputs[0])
    if reader is None or reader.kind != "Relu":
        return op.outputs[0]
    skipped.add(reader.outputs[0])
    return reader.outputs[0]


def _uneven(grids: Sequence[Grid], op: Op | None) -> InvalidModelError:
    found = f"operators from {op} on have none" if op is not None else "some are left behind the last operator"
    return InvalidModelError(f"{len(grids)} grids are listed in the order of the operators, and {found}", remedy=_REMEDY)
