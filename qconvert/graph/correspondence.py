"""Which tensor of a rewritten graph holds what a tensor of the graph before it held.

Tensors keep their names. So a correspondence lists exceptions alone: tensors that have another name, another order of axes or shifted
integers, and those that are gone. How the two tensors of a pair are stored says the rest: integers with one scale and two zero points are
shifted, an integer and a float tensor are dequantized or quantized.

A relation is local: it says what a tensor of the result is if the operator that computes it is given the source's values. Costs do not
add up through a network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Relation(NamedTuple):
    """Where the values of one tensor of the source are in the result.

    Attributes:
        tensor: its name in the result; "" if no tensor of the result holds them.
        permutation: axis i of the result is axis permutation[i] of the source; () for the same order.
        shift: what is added to the stored integers where their zero points do not say it, since the float values move; None where they do.
    """

    tensor: str
    permutation: tuple[int, ...] = ()
    shift: int | None = None

    def then(self, later: Relation) -> Relation:
        """Return the relation to the result of a second step, given that of this one's tensor to it."""
        if not self.tensor or not later.tensor:
            return GONE
        first, second = self.permutation, later.permutation
        permutation = tuple(first[axis] for axis in second) if first and second else first or second
        shift = self.shift if later.shift is None else later.shift + (self.shift or 0)
        return Relation(later.tensor, () if permutation == tuple(range(len(permutation))) else permutation, shift)


#: Of a tensor that the result does not hold.
GONE = Relation("")
#: For tensors of the source: their relations to the result. A tensor that is absent keeps its name and its values.
Correspondence = Mapping[str, Relation]


def compose(first: Correspondence, second: Correspondence) -> Correspondence:
    """Return the correspondence of two steps, the second after the first.

    Tensors that the first step made are among the result if the second changed them; whoever knows the source leaves them out.
    """
    if not first or not second:
        return first or second
    composed = {name: item.then(second.get(item.tensor, Relation(item.tensor))) for name, item in first.items()}
    for name, item in second.items():
        composed.setdefault(name, item)
    return {name: item for name, item in composed.items() if item != Relation(name)}
